//! What the REST interface is given when the server starts, and with each connection.

use std::net::SocketAddr;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use tokio::sync::watch;

use super::reader_limits::ReaderSlots;
use crate::downstream::session::Sessions;
use crate::downstream::source::Source;
use crate::telemetry::LogLines;

/// What the REST interface needs beside the proxy.
#[derive(Debug)]
pub struct State {
    /// When the server started.
    pub started: Instant,
    /// Becomes true when the server shuts down, which ends streams that have no end of their own.
    pub ending: watch::Receiver<bool>,
    /// The lines on their way to stderr, of which lost ones are counted.
    pub lines: LogLines,
    /// Places for clients that follow the activity log, or export it.
    pub readers: ReaderSlots,
    /// Sessions of MCP clients.
    pub sessions: Arc<Sessions>,
    /// How many client connections each worker has; set once the workers run.
    pub connections: OnceLock<Box<[Arc<AtomicUsize>]>>,
}

/// Both ends of the connection that a request came on.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnectionInfo {
    /// Our address; `None` for a request of our own process.
    pub local: Option<SocketAddr>,
    /// Where the client is.
    pub source: Source,
}
