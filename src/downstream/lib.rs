//! Downstream: MCP for agents, over HTTP and stdio.
//!
//! ```text
//! http ─ authentication, request ─┬─ legacy ─ session_table ─ session ─ in_flight, replay
//!                                 │    │         └─ session_eviction; session_ticket (in a fleet)
//!                                 │    └─ reply, listen
//!                                 └─ modern requests ─ reply, listen
//! placement: forwards a request to the fleet node that has its session
//! stdio ─ listen, in_flight
//! ```
//!
//! The host check and, where required, the API key check come first. `body` frames the response; `proxy` handles the
//! message.

pub mod authentication;
pub mod body;
pub mod http;
pub mod in_flight;
mod legacy;
mod listen;
mod modern;
mod placement;
pub mod replay;
mod reply;
mod request;
mod server_endpoint;
pub mod session;
pub mod session_eviction;
pub mod session_table;
pub mod session_ticket;
pub mod source;
pub mod stdio;
