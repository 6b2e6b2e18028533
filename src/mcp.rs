//! The protocol (MCP): its revisions, what each side says it can do, the messages and their members, the headers, the
//! error codes.
//!
//! What client and server agree on, whichever of them the proxy is just then. Pure: how messages travel is
//! [`wire`](crate::wire), who is asked what is for `upstream`, `proxy` and `downstream`.

pub mod capabilities;
pub mod headers;
pub mod jsonrpc;
pub mod message;
pub mod meta;
pub mod revisions;
pub mod shapes;
pub mod trace_context;
