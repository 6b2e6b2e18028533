//! Direct mode (`/mcp/all`): each upstream tool under a name of its own.
//!
//! A call goes through the same admission and the same pipeline as one by a call tool (FR-A2). Its
//! operation is what the tool's effective side effect says, since the client states no intent: the matrix
//! always fits, and what is left is the operator's `approval`.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;

use super::advice;
use super::call;
use super::call_trace::CallTrace;
use super::caller::{Caller, Peer};
use super::params::{CallParams, ParamHeaders};
use super::passthrough::list_cache::{FRESH_MS, LIST_WAIT};
use super::reaction::Reaction;
use super::record_kind::RecordKind;
use super::recorded::{OnRecord, recorded};
use super::refusal::RefusalKind;
use super::rejection::{Rejection, Stopped};
use super::render::{self, Caching, shown};
use super::reply::{Aborted, Piece, Reply, Running};
use super::retrieve::MAX_RULED;
use super::worker::Worker;
use crate::activity::record::{Raw, Status};
use crate::catalog::ToolSet;
use crate::catalog::exposed;
use crate::catalog::listing::{self, Start};
use crate::mcp::jsonrpc::Code;
use crate::output::AnswerMember;
use crate::policy::{self, Access, Permit, ToolAccess};
use crate::tool::{Tool, ToolName, Trust};
use crate::upstream::CallExtras;

/// `tool_variant` in the record of such a call.
pub const VARIANT: &str = "direct";

/// The result of `tools/list`.
#[must_use]
pub fn list_tools(worker: &Rc<Worker>, peer: &Peer, id: &Bytes, params: &Bytes) -> Reaction {
    let start = match Start::parse(params) {
        Ok(start) => start,
        Err(bad) => return Reaction::error(id, Code::InvalidParams, &bad.to_string()),
    };
    let (worker, era, principal) = (Rc::clone(worker), peer.client.era, peer.principal.clone());
    let running = Running::new(|reply| async move {
        worker.proxy.upstreams.nudge();
        first_sets(&worker).await;
        let beside = render::own_members(era, Caching::Milliseconds(FRESH_MS));
        let (snapshot, settings) = (worker.proxy.catalog.load(), worker.settings());
        let visible = policy::visible(&principal, &settings.policy);
        let page = match visible.is_all() {
            true => listing::page(&beside, "tools", snapshot.listed(&start)),
            false => {
                let shown = snapshot.direct_tools(&start).filter(|(_, tool)| visible.tool(tool));
                listing::page(&beside, "tools", shown.map(|(listed, _)| listed))
            }
        };
        reply.put(Piece::Whole(AnswerMember::Result, page));
        Ok(())
    });
    Reaction::Call { id: id.clone(), running }
}

/// Calls the tool that `params` name.
#[must_use]
pub fn call_tool(worker: &Rc<Worker>, peer: &Peer, id: Bytes, params: CallParams<'_>) -> Reaction {
    let (worker, caller) = (Rc::clone(worker), peer.caller(&id));
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

fn call(
    worker: Rc<Worker>,
    caller: Caller,
    named: Named,
    mut beside: CallExtras,
    reply: Reply,
) -> impl Future<Output = Result<(), Aborted>> {
    let kind = RecordKind::ToolCall(VARIANT);
    let trace = CallTrace::begin(&worker, &caller, kind.method(), || beside.meta.as_deref());
    recorded(worker, caller, (kind, trace), reply, async move |mut on: OnRecord<'_>| {
        let permit = prepare(&mut on, &named, &mut beside).await?;
        Ok(call::send(on, permit, named.arguments, beside).await?)
    })
}

/// Finds the tool, asks whether it may be called.
async fn prepare(
    on: &mut OnRecord<'_>,
    Named { name, arguments, headers }: &Named,
    beside: &mut CallExtras,
) -> Result<Permit, Stopped> {
    on.record.name("", &shown(name));
    on.record.keep(Raw::Arguments, arguments);
    if !arguments.starts_with(b"{") {
        let text = "Invalid params: arguments must be an object".to_owned();
        return Err(Rejection::new(Status::Rejected, RefusalKind::Unreadable, text).into());
    }
    let found = find(on, name).await;
    let tool = found.map_err(|stop| nearest(on, name, stop))?;
    on.record.name(&tool.name.server, &tool.name.tool);
    if let (Some(parameter_headers), Some(headers)) = (&tool.parameter_headers, headers) {
        headers.check(parameter_headers, arguments).map_err(|mismatch| {
            let text = format!("Header mismatch: {mismatch}");
            Rejection::new(Status::Rejected, RefusalKind::Headers, text)
        })?;
    }
    let access = ToolAccess::direct(tool);
    on.record.operation(Some(access.operation()));
    on.admit(Access::Tool(access), arguments, None, beside).await
}

/// The same rejection, of an unknown tool with those that the caller may have meant.
fn nearest(on: &OnRecord<'_>, name: &str, rejection: Rejection) -> Rejection {
    if rejection.refusal.kind != RefusalKind::Unreadable {
        return rejection;
    }
    let snapshot = on.worker.proxy.catalog.load();
    let visible = policy::visible(&on.caller.principal, &on.settings.policy);
    let start = Start::default();
    let tools = snapshot.direct_tools(&start);
    let mut may_see = visible.first_tools(MAX_RULED);
    let shown = tools.filter(|(_, tool)| tool.trust == Trust::Given && may_see(tool));
    rejection.helping(advice::nearest_names(name, shown.map(|(listed, _)| &*listed.key)))
}

async fn find(on: &OnRecord<'_>, name: &str) -> Result<Arc<Tool>, Rejection> {
    let (worker, proxy) = (on.worker, &on.worker.proxy);
    let unknown = || {
        let text = format!("Unknown tool: {}", shown(name));
        Rejection::new(Status::Rejected, RefusalKind::Unreadable, text)
    };
    if let Some(tool) = proxy.catalog.load().direct(name) {
        return Ok(Arc::clone(tool));
    }
    // After a start the server's first set of tools may still be on its way.
    if let Some((server, tool)) = exposed::split_name(name) {
        let name = ToolName { server: server.into(), tool: tool.into() };
        return call::find(on, &name).await.map_err(|stop| match stop.refusal.kind {
            RefusalKind::Upstream => stop,
            RefusalKind::Unknown
            | RefusalKind::Unreadable
            | RefusalKind::Parameters
            | RefusalKind::Headers
            | RefusalKind::Intent
            | RefusalKind::Gate
            | RefusalKind::Arguments
            | RefusalKind::Limited
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
    let settled =
        futures_util::future::join_all(awaited.map(async |upstream| upstream.settled().await));
    let _ = tokio::time::timeout(LIST_WAIT, settled).await;
}
