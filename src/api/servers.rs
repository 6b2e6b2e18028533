//! `/api/v1/servers`: the upstream servers, their state, and what became of the calls to them.

use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::query_parameters::Query;
use super::response::{ApiError, Success, encode};
use super::status::CallCounts;
use crate::catalog::Snapshot;
use crate::proxy::Worker;
use crate::tool::Trust;
use crate::upstream::supervisor::{ServerState, Status, Transport};

/// Lists the upstream servers and their state.
#[utoipa::path(
    get,
    path = "/api/v1/servers",
    tag = "state",
    operation_id = "listServers",
    responses((status = 200, description = "All servers of the config", body = Success<Servers>))
)]
pub(super) fn servers(worker: &Worker, query: Query) -> Result<Bytes, ApiError> {
    query.finish()?;
    let counted = worker.proxy.calls.read();
    let snapshot = worker.proxy.catalog.load();
    let servers = worker.proxy.upstreams.iter().map(|upstream| CountedServer {
        server: upstream.state().into(),
        quarantined: quarantined(&snapshot, upstream.name()),
        calls: (&counted.of_server(upstream.id())).into(),
    });
    Ok(encode(&Servers { servers: servers.collect() }))
}

#[derive(Serialize, ToSchema)]
struct Servers {
    servers: Vec<CountedServer>,
}

/// A server, and what became of the calls to it.
#[derive(Serialize, ToSchema)]
struct CountedServer {
    #[serde(flatten)]
    server: ServerView,
    /// Tools of it whose definition waits for approval.
    quarantined: usize,
    calls: CallCounts,
}

fn quarantined(snapshot: &Snapshot, server: &str) -> usize {
    let tools = snapshot.tools_of(server).iter();
    tools.filter(|tool| tool.trust == Trust::Withheld).count()
}

/// One upstream server as it is shown.
#[derive(Serialize, ToSchema)]
#[schema(as = Server)]
pub(super) struct ServerView {
    #[schema(value_type = String)]
    name: Arc<str>,
    state: Status,
    protocol: Transport,
    /// Tools it offers.
    tools: usize,
    /// What is wrong; empty if nothing is.
    #[schema(value_type = String)]
    reason: Arc<str>,
    /// When its state last changed.
    #[schema(format = DateTime)]
    since: String,
    /// The protocol revision agreed on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    protocol_version: Option<Arc<str>>,
    /// What it calls itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    server_info: Option<Arc<str>>,
}

impl From<ServerState> for ServerView {
    fn from(state: ServerState) -> Self {
        let since = Timestamp::try_from(state.since).unwrap_or(Timestamp::UNIX_EPOCH);
        Self {
            name: state.name,
            state: state.status,
            protocol: state.transport,
            tools: state.tools,
            reason: state.reason,
            since: format!("{since:.3}"),
            protocol_version: state.protocol_version,
            server_info: state.server_info,
        }
    }
}
