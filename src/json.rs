//! JSON as bytes: spans, the streaming scanner, and the tape of one span.
//!
//! Owns everything that looks at JSON text without building a document tree.
//! Deliberately knows nothing of MCP beyond the member names the scanner is asked to find.

pub mod fold;
pub mod members;
mod plain;
pub mod scan;
pub mod span;
pub mod tape;
