//! Upstream: the MCP servers behind the proxy.
//!
//! Owns the connection to each server, its lifecycle, and the bytes of a call both ways. A call
//! needs a [`Permit`](crate::policy::Permit). The answer comes as the server's own bytes, message
//! by message; what is in them is deliberately not read here beyond what routing needs. A second
//! process, the [`reaper`], ends the children should this one be killed.
//!
//! ```text
//!            workers (one thread each)            │        control runtime
//!  Upstream::call ─ http::Pool ─ Connection ──────┼──────────────▶ server (HTTP)
//!        │                                        │  supervisor ─ lifecycle ─▶ the same server
//!        └──── stdio::ChildLink: queue ───────────┼─▶ writer ─▶ child
//!              channel of the call ◀──────────────┼── reader ◀─ child
//! ```

pub mod answer;
mod attempts;
pub mod call;
mod confidential;
mod config;
mod connect;
mod connection;
mod dual_stream;
mod endpoint;
mod error;
pub mod http;
mod inbound;
mod lifecycle;
mod listen;
mod notification_router;
pub mod oauth;
pub mod outgoing;
pub mod pace;
mod peer;
pub mod pending;
mod probe;
mod process;
pub mod reaper;
pub mod request;
mod request_ids;
mod response_matcher;
mod server_task;
mod session;
mod sse_only;
mod state;
mod status;
pub mod stdio;
mod subscriptions;
pub mod supervisor;

pub use answer::{Answer, AnswerPart};
pub use call::Upstream;
pub use config::{Config, Mistake, Protocol};
pub use error::{CallError, Cause, Sent, Undelivered};
pub use notification_router::{Changes, Told};
pub use outgoing::CallExtras;

/// The target of logs that quote what servers say, whole and as often as they say it, and the codes
/// of logins: nothing of it is to be logged but errors.
pub const TALKATIVE: &str = "rmcp";

#[cfg(test)]
mod tests;
