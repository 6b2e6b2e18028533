//! JSON as bytes: spans, the streaming scanner, and the tape of one span.
//!
//! Contains all code that reads JSON text without a document tree. Independent of MCP, except for the member names that the scanner looks
//! for.

pub mod cursor;
pub mod fold;
pub mod keys;
pub mod members;
mod plain;
pub mod pointer;
pub mod scan;
pub mod span;
pub mod tape;
