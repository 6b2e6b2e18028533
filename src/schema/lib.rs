//! Compiled JSON Schemas of tool inputs and outputs, evaluation of documents, and the policy for answers.
//!
//! The only crate that uses boon and jsonschema. Pure: no clock, thread or log.

mod accept;
pub mod bounds;
pub mod compile;
pub mod declared;
mod dialect;
mod form;
pub mod judge;
mod meter;
pub mod misfit;
pub mod output;
mod pattern;
mod required;
mod settings;
mod tape_json;
pub mod unusable;
pub mod violation;

pub use form::SUBSCHEMA_KEYWORDS;
