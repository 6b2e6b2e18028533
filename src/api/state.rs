//! What the REST interface is given when the server starts, and with each connection.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use tokio::sync::watch;

use super::config_door::ConfigDoor;
use super::fleet_config_door::FleetConfigDoor;
use super::reader_limits::ReaderSlots;
use crate::downstream::session_table::Sessions;
use crate::downstream::source::Source;
use crate::fleet::FleetIndex;
use crate::identity::PageLogins;
use crate::io::address::Reached;
use crate::telemetry::{CertificateHealth, LogLines, LogTap};

/// What the REST interface needs beside the proxy.
#[derive(Debug)]
pub struct State {
    /// When the server started.
    pub started: Instant,
    /// Becomes true when the server shuts down, which ends streams that have no end of their own.
    pub ending: watch::Receiver<bool>,
    /// The lines on their way to stderr, of which lost ones are counted.
    pub lines: LogLines,
    /// What became of lines on their way to a collector.
    pub tap: LogTap,
    /// Places for clients that follow the activity log, or export it.
    pub readers: ReaderSlots,
    /// How the config stands, and where it is asked to be read again.
    pub config: ConfigDoor,
    /// Who is logged in to the page.
    pub page_logins: PageLogins,
    /// Sessions of MCP clients.
    pub sessions: Arc<Sessions>,
    /// How many client connections each worker has; set once the workers run.
    pub connections: OnceLock<Box<[Arc<AtomicUsize>]>>,
    /// What this node has of the other nodes' logs, where there is a fleet.
    pub fleet_index: OnceLock<Arc<FleetIndex>>,
    /// The listener's certificate, where it has TLS.
    pub certificate: OnceLock<Arc<CertificateHealth>>,
    /// What is shared with the fleet, where there is one.
    pub fleet_config: OnceLock<FleetConfigDoor>,
}

/// Both ends of the connection that a request came on.
#[derive(Clone, Debug, Default)]
pub struct ConnectionInfo {
    /// Our end; `None` for a request of our own process.
    pub reached: Option<Reached>,
    /// Where the client is.
    pub source: Source,
}
