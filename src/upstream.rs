//! Upstream: the MCP servers behind the proxy.

pub mod http;
pub mod pending;
pub mod stdio;
pub mod supervisor;
