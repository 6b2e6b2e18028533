//! Activity: every call and decision, kept in a log that loses nothing.

pub mod query;
pub mod record;
pub mod retention;
pub mod store;
pub mod writer;
