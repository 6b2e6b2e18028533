//! The catalog: which tools exist, what they may do, how they are found.

pub mod persist;
pub mod search;
pub mod snapshot;
