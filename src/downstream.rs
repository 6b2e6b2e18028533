//! Downstream: the faces agents speak MCP to.

pub mod http;
pub mod session;
pub mod stdio;
