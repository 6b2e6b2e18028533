//! Direct mode (`/mcp/all`): each upstream tool under a name of its own.
//!
//! A call goes through the same gate and the same pipeline as one by a call tool (FR-A2). Its
//! intent is what the tool's effective side effect says, since the client states none: the gate has
//! nothing to compare it with, and what is left of it is the operator's `approval`.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use crate::activity::record::{Raw, Status, Type};
use crate::catalog::exposed;
use crate::catalog::listing::{self, Start};
use crate::catalog::snapshot::ToolSet;
use crate::intent::{self, Operation, Permit, Requirement, Stated};
use crate::mcp::jsonrpc::Code;
use crate::output::AnswerMember;
use crate::proxy::Worker;
use crate::proxy::call::{self, Caller};
use crate::proxy::call_record::{CallRecord, Rejection};
use crate::proxy::dispatch::{self, Caching, Peer, Reaction};
use crate::proxy::params::{CallParams, ParamHeaders};
use crate::proxy::passthrough::list_cache::{FRESH_MS, LIST_WAIT};
use crate::proxy::reply::{Aborted, Piece, RefusalKind, Reply, Running};
use crate::tool::{Tool, ToolName};
use crate::upstream::CallExtras;

/// `tool_variant` in the record of such a call.
pub const VARIANT: &str = "direct";

/// The result of `tools/list`.
#[must_use]
pub fn list_tools(worker: &Rc<Worker>, peer: &Peer, id: &Bytes, params: &Bytes) -> Reaction {
    let start = match Start::parse(params) {
        Ok(start) => start,
        Err(bad) => return dispatch::error(id, Code::InvalidParams, &bad.to_string()),
    };
    let (worker, era) = (Rc::clone(worker), peer.client.era);
    let running = Running::new(|reply| async move {
        worker.proxy.upstreams.nudge();
        first_sets(&worker).await;
        let beside = dispatch::own_members(era, Caching::Milliseconds(FRESH_MS));
        let page = listing::page(&beside, "tools", worker.proxy.catalog.load().listed(&start));
        reply.put(Piece::Whole(AnswerMember::Result, page));
        Ok(())
    });
    Reaction::Call { id: id.clone(), running }
}

/// Calls the tool that `params` name.
#[must_use]
pub fn call_tool(worker: &Rc<Worker>, peer: &Peer, id: Bytes, params: CallParams<'_>) -> Reaction {
    let (worker, caller) = (Rc::clone(worker), dispatch::caller(peer, &id));
    let CallParams { name, arguments, beside, left: _ } = params;
    let named = Named { name: name.into(), arguments, headers: peer.headers.clone() };
    let running = Running::new(|reply| call(worker, caller, named, beside, reply));
    Reaction::Call { id, running }
}

/// What is called.
struct Named {
    name: Box<str>,
    arguments: Bytes,
    headers: Option<ParamHeaders>,
}

async fn call(
    worker: Rc<Worker>,
    caller: Caller,
    named: Named,
    beside: CallExtras,
    reply: Reply,
) -> Result<(), Aborted> {
    let mut call_record =
        match CallRecord::open(&worker, Type::ToolCall, &caller, VARIANT, &reply).await {
            Ok(call_record) => call_record,
            Err(refusal) => {
                reply.put(Piece::Refused(refusal));
                return Ok(());
            }
        };
    let prepared = prepare(&worker, &mut call_record, &named).await;
    let prepared = prepared.map(|permit| (permit, named.arguments));
    call::run(worker, call_record, caller.client, prepared, beside, reply).await
}

/// Finds the tool, asks the gate.
async fn prepare(
    worker: &Worker,
    call_record: &mut CallRecord,
    Named { name, arguments, headers }: &Named,
) -> Result<Permit, Rejection> {
    let proxy = &worker.proxy;
    call_record.name("", &dispatch::shown(name));
    call_record.keep(Raw::Arguments, arguments);
    if !arguments.starts_with(b"{") {
        let text = "Invalid params: arguments must be an object".to_owned();
        return Err(Rejection::new(Status::Rejected, RefusalKind::Unreadable, text));
    }
    let tool = find(worker, name, call_record.began()).await?;
    call_record.name(&tool.name.server, &tool.name.tool);
    if let (Some(parameter_headers), Some(headers)) = (&tool.parameter_headers, headers) {
        headers.check(parameter_headers, arguments).map_err(|mismatch| {
            let text = format!("Header mismatch: {mismatch}");
            Rejection::new(Status::Rejected, RefusalKind::Headers, text)
        })?;
    }
    let operation = Operation::recommended(tool.capability);
    call_record.operation(Some(operation));
    let settings = intent::Settings { operation_type: Requirement::Inferred, ..proxy.intent };
    let permit = intent::authorize(operation, &Stated::parse(&[]), tool, &settings)
        .map_err(|denial| call_record.deny(&denial))?;
    call::note_warnings(call_record, &permit);
    Ok(permit)
}

async fn find(worker: &Worker, name: &str, began: Instant) -> Result<Arc<Tool>, Rejection> {
    let proxy = &worker.proxy;
    let unknown = || {
        let text = format!("Unknown tool: {}", dispatch::shown(name));
        Rejection::new(Status::Rejected, RefusalKind::Unreadable, text)
    };
    if let Some(tool) = proxy.catalog.load().direct(name) {
        return Ok(Arc::clone(tool));
    }
    // After a start the server's first set of tools may still be on its way.
    if let Some((server, tool)) = exposed::split_name(name) {
        let name = ToolName { server: server.into(), tool: tool.into() };
        return call::find(worker, &name, began).await.map_err(|stop| match stop.refusal.kind {
            RefusalKind::Upstream => stop,
            RefusalKind::Unknown
            | RefusalKind::Unreadable
            | RefusalKind::Headers
            | RefusalKind::Intent
            | RefusalKind::Gate
            | RefusalKind::Unavailable
            | RefusalKind::Failed => unknown(),
        });
    }
    first_sets(worker).await;
    proxy.catalog.load().direct(name).cloned().ok_or_else(unknown)
}

/// Waits for the servers of which nothing is known yet, bounded: many clients ask for the list
/// once, and that is when they start us.
async fn first_sets(worker: &Worker) {
    let proxy = &worker.proxy;
    let snapshot = proxy.catalog.load();
    let awaited = snapshot.servers().filter(|(_, set)| *set == ToolSet::Awaited);
    let awaited = awaited.filter_map(|(server, _)| proxy.upstreams.get(server));
    let settled = futures_util::future::join_all(awaited.map(|upstream| upstream.settled()));
    let _ = tokio::time::timeout(LIST_WAIT, settled).await;
}
