//! The schemas of tools, of what they give and what they take: compiled once, judged many times.
//!
//! The only home of boon and jsonschema. Deliberately pure: no clock, no thread, no log.

pub mod bounds;
pub mod cache;
pub mod compile;
mod cut;
mod dialect;
mod form;
mod formats;
pub mod judge;
mod meter;
pub mod misfit;
mod pattern;
mod reference;
mod remotes;
mod required;
mod settings;
mod tape_json;
pub mod unusable;
pub mod violation;

pub use form::SUBSCHEMA_KEYWORDS;
