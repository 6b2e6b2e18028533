//! The REST interface under `/api/v1`, and the two health responses.
//!
//! Owns routes, parameters and response envelopes. Calls are in the `gateway` crate, the log in `activity`. `Host`,
//! `Origin` and the credential are checked before a request arrives here.
//!
//! A request passes through `router` and `endpoints` (which handler, who may use it) to the handler's file. The handler
//! takes it as a `request::ApiRequest`, reads `query_parameters` and answers with a `response`.

mod activity;
mod approvals;
mod call;
mod config;
pub mod config_handle;
mod endpoints;
mod events;
pub mod export;
mod fleet;
mod local_approvals;
mod metrics;
mod page_session;
mod policy;
pub mod proof;
mod query_parameters;
mod reader_limits;
mod request;
mod resource_metadata;
mod response;
mod router;
mod servers;
mod status;
mod tokens;
mod tools;

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use mcpproxy_downstream::session_table::Sessions;
use mcpproxy_downstream::source::Source;
use mcpproxy_fleet::FleetIndex;
use mcpproxy_gateway::telemetry::{CertificateHealth, LogLines, LogTap};
use mcpproxy_policy::identity::{CertifiedClient, PageLogins};
use mcpproxy_runtime::io::address::Reached;
use tokio::sync::watch;

use crate::api::config_handle::{ConfigHandle, FleetConfigHandle};

pub use approvals::answer_node;
pub use call::SOURCE;
pub use reader_limits::ReaderSlots;
pub use router::{handle, handle_own, refuse, unauthorized};
pub use tokens::{shown_change, shown_tokens};

/// State of the REST interface, in addition to the proxy's.
#[derive(Debug)]
pub struct State {
    /// Time at which the server started.
    pub started: Instant,
    /// Becomes true when the server shuts down, which ends streams that would otherwise not end.
    pub ending: watch::Receiver<bool>,
    /// Log lines queued for stderr, with a counter of lost lines.
    pub lines: LogLines,
    /// Log lines exported to an OTLP collector.
    pub tap: LogTap,
    /// Limits on clients that follow, export or search the activity log.
    pub readers: ReaderSlots,
    /// Status of the config, and the task that reloads it.
    pub config: ConfigHandle,
    /// Login codes and sessions of the page.
    pub page_logins: PageLogins,
    /// MCP sessions of clients.
    pub sessions: Arc<Sessions>,
    /// Number of client connections of each worker; set once the workers run.
    pub connections: OnceLock<Box<[Arc<AtomicUsize>]>>,
    /// Index of the other nodes' logs; set in a fleet.
    pub fleet_index: OnceLock<Arc<FleetIndex>>,
    /// State of the listener's certificate; set if it uses TLS.
    pub certificate: OnceLock<Arc<CertificateHealth>>,
    /// The config shared by the fleet; set in a fleet with a `cluster.key`.
    pub fleet_config: OnceLock<FleetConfigHandle>,
}

/// Local and remote ends of the connection that carried a request.
#[derive(Clone, Debug, Default)]
pub struct ConnectionInfo {
    /// The local address; `None` for a request made by this process.
    pub reached: Option<Reached>,
    /// Address class of the client.
    pub source: Source,
    /// The client that the certificate identifies.
    pub certificate: Option<CertifiedClient>,
}
