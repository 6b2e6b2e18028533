//! The state of the program that requests are answered from, shared by all workers.

use std::sync::Arc;
use std::time::Instant;

use super::strays::Strays;
use crate::api;
use crate::downstream::session_table::Sessions;
use crate::io::clock;
use crate::proxy::Proxy;

/// What every request may need, shared by all workers.
#[derive(Debug)]
pub struct AppState {
    /// The pipeline.
    pub proxy: Arc<Proxy>,
    /// Sessions of `/mcp`.
    pub sessions: Arc<Sessions>,
    /// What the REST interface needs.
    pub api: api::State,
    /// Clients at the wrong kind of port.
    pub(super) strays: Strays,
    /// The origin of session times.
    pub started: Instant,
}

impl AppState {
    pub(super) fn now_ms(&self) -> u64 {
        let since = clock::lately().saturating_duration_since(self.started);
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }
}
