//! How a server is, and what happened to it: for readiness, lists and records. Pure values.

use std::sync::Arc;
use std::time::SystemTime;

use super::status::{Status, Transport};
use crate::catalog::Change;

/// A server's state, for readiness, lists and records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerState {
    /// Its name in the config.
    pub name: Arc<str>,
    /// How it is reached.
    pub transport: Transport,
    /// How it is.
    pub status: Status,
    /// Why, in one line; when connected, what its login lacks, and empty if nothing.
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
}
