//! Downstream: the faces agents speak MCP to.
//!
//! ```text
//! http ─ request_head, era ─┬─ legacy ─ session_table ─ session ─ in_flight, replay, session_key
//!                           │    │         ├─ session_eviction
//!                           │    │         └─ session_ticket, ended_sessions (in a fleet)
//!                           │    ├─ batch, get_stream, resume
//!                           │    └─ reply ─ reply_stream ─ event_stream
//!                           └─ modern ─ modern_client, subscription, reply
//! forward (to another node of a fleet) ◀─ legacy;  forwarded (from one) ─▶ http
//! stdio ─ modern_client, subscription, in_flight
//! ```
//!
//! In front of all of them stands `policy::host_check` and, where it is required, `api_key`. An answer is a `body`; what a
//! message leads to is decided in `proxy`.

pub mod api_key;
mod batch;
pub mod body;
mod change_notifications;
mod client_connection;
mod ended_sessions;
mod era;
mod event_stream;
mod forward;
pub mod forwarded;
mod get_stream;
mod header_names;
pub mod http;
pub mod in_flight;
mod legacy;
mod modern;
mod modern_client;
mod placing;
pub mod replay;
mod reply;
mod reply_stream;
pub mod request_body;
mod request_head;
mod response;
mod resume;
pub mod session;
pub mod session_eviction;
pub mod session_key;
pub mod session_table;
pub mod session_ticket;
pub mod source;
pub mod stdio;
mod subscription;
