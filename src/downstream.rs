//! Downstream: the faces agents speak MCP to.

pub mod body;
mod events;
pub mod http;
pub mod in_flight;
mod legacy;
pub mod lines;
mod listen;
mod modern;
pub mod replay;
pub mod session;
pub mod session_key;
pub mod source;
pub mod stdio;
