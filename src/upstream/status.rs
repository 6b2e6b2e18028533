//! How a server is, as it is shown: for readiness, lists and records. Pure values.
//!
//! All of it is derived from [`super::state`].

use std::sync::Arc;
use std::time::SystemTime;

use super::oauth::says_needs_login;
use crate::catalog::Change;
use crate::mcp::capabilities::ServerCapabilities;
use crate::mcp::revisions::Era;

/// How a server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
#[schema(as = ServerStatus)]
pub enum Status {
    /// Switched off in the config.
    Disabled,
    /// An attempt is being made, or is about to be.
    Connecting,
    /// Initialized, and its tools are known.
    Connected,
    /// The last attempt failed; the next one comes.
    Failed,
}

impl Status {
    /// The word that REST, records and tables use ([contracts](crate::reference::contracts#http)).
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Disabled => "disabled",
            Self::Connecting => "connecting",
            Self::Connected => "connected",
            Self::Failed => "failed",
        }
    }
}

/// What carries a server's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// The pipes of a child process.
    Stdio,
    /// Streamable HTTP.
    StreamableHttp,
    /// The config does not say: the server cannot be reached.
    Unknown,
}

impl Transport {
    /// As the config writes it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stdio => "stdio",
            Self::StreamableHttp => "streamable-http",
            Self::Unknown => "unknown",
        }
    }
}

/// A server's state, for readiness, lists and records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerState {
    /// Its name in the config.
    pub name: Arc<str>,
    /// How it is reached.
    pub transport: Transport,
    /// How it is.
    pub status: Status,
    /// Why, in one line; when connected, what its login lacks or what is wrong with the files of its TLS, and empty if
    /// nothing.
    pub reason: Arc<str>,
    /// How many tools it listed last.
    pub tools: usize,
    /// Since when `status` is what it is.
    pub since: SystemTime,
    /// The revision agreed on, once connected.
    pub protocol_version: Option<Arc<str>>,
    /// Name and version of its implementation, as it gave them, once connected.
    pub server_info: Option<Arc<str>>,
    /// True once it was discovered or has failed: it holds up readiness no longer.
    pub settled: bool,
}

impl ServerState {
    /// Whether it failed for want of a login, which its operator can mend.
    #[must_use]
    pub fn needs_login(&self) -> bool {
        self.status == Status::Failed && says_needs_login(&self.reason, &self.name)
    }
}

/// What became of a login, for the activity log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoginOutcome {
    /// It was asked for.
    Began,
    /// There are tokens, from this issuer.
    Granted(Arc<str>),
    /// There are none.
    Failed(Arc<str>),
}

/// What happened to a server, for the activity log.
#[derive(Clone, Debug)]
pub enum Event {
    /// Its status is another.
    Server(ServerState),
    /// Its set of tools was read; `change` says what is different.
    Catalog {
        /// The server's name.
        server: Arc<str>,
        /// What replacing the set did.
        change: Change,
    },
    /// Somebody asked for a login with it, or that came to something.
    Login {
        /// The server's name.
        server: Arc<str>,
        /// The id of who asked for it.
        principal: Arc<str>,
        /// What became of it.
        outcome: LoginOutcome,
    },
}

/// What a server said of itself in the handshake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct About {
    pub(super) era: Era,
    pub(super) offers: ServerCapabilities,
}
