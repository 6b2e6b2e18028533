//! Output schemas: compiled once, judged many times.
//!
//! The only home of boon and jsonschema. Deliberately pure: no clock, no thread, no log.

pub mod bounds;
pub mod cache;
pub mod compile;
mod dialect;
mod form;
mod formats;
pub mod judge;
mod meter;
mod pattern;
mod reference;
mod remotes;
mod settings;
mod tape_json;
pub mod unusable;
pub mod violation;

pub use form::SUBSCHEMA_KEYWORDS;
