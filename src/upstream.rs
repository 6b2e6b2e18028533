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
//!        │                                        │  ServerTask ─ connect, lifecycle ─▶ the same
//!        └──── stdio::ChildLink: queue ───────────┼─▶ writer ─▶ child
//!              queue of the call ◀────────────────┼── reader ◀─ child
//! ```
//!
//! Read from below: what a message says ([`request`], `inbound`, [`pending`]), what carries it
//! ([`http`], [`stdio`], then `carrier`), the one `state` of a server, the passive `handle` that
//! shares it, and on top of that side by side the calls (`call`, [`answer`], `away`) and the
//! task that makes connections (`connect`, `server_task`, [`supervisor`]).

pub mod answer;
mod away;
mod backoff;
mod call;
mod carrier;
mod child_environment;
mod confidential;
mod config;
mod connect;
mod connection;
mod control;
mod discovery;
mod endpoint;
mod error;
mod handle;
pub mod http;
mod http_transport;
mod in_use;
mod inbound;
mod lifecycle;
mod listen;
pub mod log_in;
mod login_desk;
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
mod restart;
mod resubscribe;
mod server_task;
mod server_tls;
mod sse_only;
mod state;
mod status;
pub mod stderr_log;
pub mod stdio;
mod subscriptions;
pub mod supervisor;
mod users;

pub use answer::{Answer, AnswerPart};
pub use child_environment::WithheldVariables;
pub use confidential::is_plain_header;
pub use config::{
    Config, Mistake, NamedValues, Protocol, ServerAffinity, ValuePart, filled_in, named_files,
    named_values, named_variables, value_parts,
};
pub use endpoint::tls_connector;
pub use error::{CallError, Cause, Sent, Undelivered};
pub use handle::{RESPOND_WAIT, Upstream};
pub use in_use::InUse;
pub use notification_router::{Changes, Told};
pub use outgoing::CallExtras;
pub use restart::NotRestarted;
pub use server_tls::ServerTls;

/// The target of logs that quote what servers say, whole and as often as they say it, and the codes
/// of logins: nothing of it is to be logged but errors.
pub const TALKATIVE: &str = "rmcp";

#[cfg(test)]
mod tests;
