//! Upstream: the MCP servers behind the proxy.
//!
//! Owns the connection to each server, its lifecycle, and the bytes of a call both ways. A call
//! needs a [`Permit`](crate::intent::Permit). The answer comes as the server's own bytes, message
//! by message; what is in them is deliberately not read here beyond what routing needs. A second
//! process, the [`reaper`], ends the children should this one be killed.
//!
//! ```text
//!            workers (one thread each)            │        control runtime
//!  Upstream::call ─ http::Pool ─ Connection ──────┼──────────────▶ server (HTTP)
//!        │                                        │  supervisor ─ lifecycle ─▶ the same server
//!        └──── stdio::Link: queue ────────────────┼─▶ writer ─▶ child
//!              channel of the call ◀──────────────┼── reader ◀─ child
//! ```

pub mod answer;
pub mod ask;
mod attempts;
pub mod call;
pub mod clock;
mod confidential;
mod config;
mod connection;
pub mod deadline;
mod desk;
mod endpoint;
mod error;
mod established;
mod heard;
pub mod http;
mod ids;
mod keeper;
mod lifecycle;
mod listen;
pub mod oauth;
pub mod pace;
mod peek;
mod peer;
pub mod pending;
mod probe;
mod process;
pub mod reaper;
pub mod request;
mod session;
mod sse_only;
mod state;
mod status;
pub mod stdio;
pub mod supervisor;
mod traffic;
mod wanted;

pub use answer::{Answer, Part};
pub use ask::{Ask, Beside, Changes, Era, Offers, Takes, Told};
pub use call::Upstream;
pub use config::{Config, Mistake, Protocol};
pub use error::{CallError, Cause, Sent, Undelivered};

/// The target of logs that quote what servers say, whole and as often as they say it, and the codes
/// of logins: nothing of it is to be logged but errors.
pub const TALKATIVE: &str = "rmcp";

#[cfg(test)]
mod tests;
