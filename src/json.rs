//! JSON as bytes: spans, the streaming scanner, and the tape of one span.
//!
//! Owns everything that reads JSON text without building a document tree.
//! Deliberately knows nothing of MCP beyond the member names that the scanner finds.

pub(crate) mod cursor;
pub mod elements;
pub mod fold;
pub mod members;
mod plain;
pub mod pointer;
pub mod scan;
pub mod span;
pub mod tape;
