//! Downstream: the faces agents speak MCP to.

pub mod body;
pub mod guard;
pub mod http;
pub mod session;
pub mod stdio;
