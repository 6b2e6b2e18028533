//! Downstream: the faces agents speak MCP to.

pub mod body;
mod events;
pub mod guard;
pub mod http;
mod legacy;
pub mod lines;
mod listen;
mod modern;
pub mod principal;
pub mod session;
pub mod source;
pub mod stdio;
pub mod streams;
pub mod under_way;
