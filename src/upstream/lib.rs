//! Connections to the MCP servers behind the proxy.
//!
//! Owns the connection to each server, its lifecycle, and the bytes of a call in both directions. A call needs a
//! [`Permit`](mcpproxy_policy::Permit). The response is forwarded as the server's own bytes, message by message, and parsed only as far as
//! routing requires. If this process is killed, a second process, the [`reaper`], ends the child processes.
//!
//! ```text
//!            workers (one thread each)            │        control runtime
//! CallGuard::call ─ http::Pool ─ Connection ──────┼──────────────▶ server (HTTP)
//!        │                                        │  ServerTask ─ connect, lifecycle ─▶ the same
//!        └──── stdio::ChildLink: queue ───────────┼─▶ writer ─▶ child
//!              queue of the call ◀────────────────┼── reader ◀─ child
//! ```
//!
//! Suggested reading order: messages ([`request`], `inbound`, `pending`); transports ([`http`], `stdio`); a server's
//! `state` and the `handle` that shares it; calls (`outgoing_call`, `call`, `answer`); the connecting task (`connect`, `server_task`,
//! [`supervisor`]), and the second connection for clients of the other family (`second`, `second_task`).

mod answer;
mod backoff;
mod call;
mod config;
mod connect;
mod connection;
mod discovery;
mod endpoint;
mod error;
mod followed_set;
mod followed_tasks;
mod handle;
mod handshake;
pub mod http;
mod http_transport;
mod inbound;
mod listen;
pub mod login_session;
mod notifications;
pub mod oauth;
mod outbox;
mod outgoing_call;
mod pending;
mod process;
pub mod reaper;
mod remembered_family;
pub mod request;
mod second_connection;
mod second_task;
mod server_log;
mod server_task;
mod state;
pub mod stderr_log;
mod stdio;
pub mod supervisor;

pub use answer::Answer;
pub use backoff::Pace;
pub use config::{
    Config, Mistake, NamedValues, Protocol, ProtocolEra, ServerAffinity, ValuePart, filled_in,
    is_plain_header, named_files, named_values, named_variables, unset_variable, value_parts,
};
pub use endpoint::ServerTls;
pub use error::{CallError, Cause, Sent, Undelivered};
pub use followed_tasks::{GivenUp, TaskFollower, TooManyFollowed};
pub use handle::{CallGuard, NotRestarted, RESPOND_WAIT, Upstream};
pub use inbound::AnswerPart;
pub use notifications::{Changes, LogDelivery, SUBSCRIPTION_LIMIT, SubscriptionAnswer};
pub use outgoing_call::{CallAttempt, PermittedCall};
pub use reaper::WithheldVariables;
pub use request::{CallExtras, CallSession, RepeatableCall};
pub use second_connection::{SecondState, SecondStatus};
pub use state::Introduced;

/// Log target of a library that logs servers' messages in full, without a rate limit, as well as the codes of logins. Only its errors may
/// be logged.
pub const TALKATIVE: &str = "rmcp";

#[cfg(test)]
mod tests;
