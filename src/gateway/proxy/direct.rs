//! Direct mode: each upstream tool under a name of its own (`/mcp/all`), or the tools of one server under their own
//! names (`/mcp/server/NAME`).
//!
//! Calls go through the same admission and pipeline as those through a call tool (FR-A2). The operation is the tool's
//! effective side effect, since the client states no intent. The comparison of intent and side effect therefore always
//! matches; of the capability, only the operator's `approval` remains to be checked.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use super::advice;
use super::builtin::retrieve::MAX_RULED;
use super::call;
use super::client::Peer;
use super::params::{CallParams, ParamHeaders};
use super::passthrough::list_cache::{FRESH_MS, LIST_WAIT};
use super::recorded::{OnRecord, RecordedRequest};
use super::refusal::RecordKind;
use super::refusal::RefusalKind;
use super::refusal::{Refusal, Stopped};
use super::render;
use super::render::{Caching, shown};
use super::reply::{Piece, Reaction, Running};
use super::worker::Worker;
use mcpproxy_catalog::ToolSet;
use mcpproxy_catalog::exposed;
use mcpproxy_catalog::listing;
use mcpproxy_catalog::listing::Start;
use mcpproxy_policy as policy;
use mcpproxy_policy::tool::{OutputSchema, Tool, ToolName, Trust};
use mcpproxy_policy::{Access, Permit, ToolAccess};
use mcpproxy_protocol::mcp::jsonrpc::Code;
use mcpproxy_protocol::mcp::known_extensions::Extension;
use mcpproxy_schema::output::AnswerMember;
use mcpproxy_upstream::CallExtras;

/// `tool_variant` in records.
pub(crate) const VARIANT: &str = "direct";

pub(crate) fn list_tools(worker: &Rc<Worker>, peer: &Peer, id: &Bytes, params: &Bytes) -> Reaction {
    let start = match Start::parse(params) {
        Ok(start) => start,
        Err(bad) => return Reaction::error(id, Code::InvalidParams, &bad.to_string()),
    };
    let (worker, family, principal) =
        (Rc::clone(worker), peer.client.family, peer.principal.clone());
    let only = peer.endpoint.server().cloned();
    // A client without the UI extension would show app tools to the model (SEP-1865, Visibility).
    let takes_app_tools =
        only.is_some() || peer.client.client_capabilities.extensions.has(Extension::Ui);
    let running = Running::new(|reply| async move {
        worker.proxy.upstreams.nudge();
        first_sets(&worker, only.as_deref()).await;
        compiled_schemas(&worker, only.as_deref()).await;
        let own_members = render::own_members(family, Caching::Milliseconds(FRESH_MS));
        let (snapshot, settings) = (worker.proxy.catalog.load(), worker.settings());
        let visible = policy::visible(&principal, &settings.policy);
        let is_all = visible.is_all();
        let may_see = |tool: &Arc<Tool>| match is_all {
            true => tool.trust == Trust::Given,
            false => visible.tool(tool),
        };
        let shown = |tool: &Arc<Tool>| (takes_app_tools || !tool.is_app_only) && may_see(tool);
        let page = match &only {
            None => listing::page(&own_members, "tools", snapshot.listed(&start, family, shown)),
            Some(server) => {
                let tools = snapshot.listed_of(server, &start, family, shown);
                listing::page(&own_members, "tools", tools)
            }
        };
        reply.put(Piece::Whole(AnswerMember::Result, page));
        Ok(())
    });
    Reaction::Call { id: id.clone(), running }
}

/// Calls the tool named by `params`.
pub(crate) fn call_tool(
    worker: &Rc<Worker>,
    peer: &Peer,
    id: Bytes,
    params: CallParams<'_>,
) -> Reaction {
    let CallParams { name, arguments, mut extras, left: _ } = params;
    let (only, headers) = (peer.endpoint.server().cloned(), peer.headers.clone());
    let named = Named { name: name.into(), only, arguments, headers };
    let (caller, kind) = (peer.caller(&id), RecordKind::ToolCall(VARIANT));
    let request = RecordedRequest::begin(worker, caller, kind, || extras.meta.as_deref());
    let running = request.running(async move |mut on: OnRecord<'_>| {
        let (permit, arguments) = prepare(&mut on, &named, &mut extras).await?;
        Ok(call::send_permitted(on, permit, arguments, extras).await?)
    });
    Reaction::Call { id, running }
}

struct Named {
    /// Name as listed to the client.
    name: Box<str>,
    /// The only server of the endpoint.
    only: Option<Arc<str>>,
    arguments: Bytes,
    headers: Option<ParamHeaders>,
}

/// Finds the tool and asks for admission.
async fn prepare(
    on: &mut OnRecord<'_>,
    Named { name, only, arguments, headers }: &Named,
    extras: &mut CallExtras,
) -> Result<(Permit, Bytes), Stopped> {
    on.record.name(only.as_deref().unwrap_or_default(), &shown(name));
    on.record.keep_arguments(arguments);
    if !arguments.starts_with(b"{") {
        return Err(Refusal::invalid_params("arguments must be an object").into());
    }
    let only = only.as_ref();
    let tool = match find(on, only, name).await {
        Ok(tool) => tool,
        Err(stop) => {
            let stop = nearest(on, only, name, stop);
            let is_unknown = matches!(stop.kind, RefusalKind::Unreadable | RefusalKind::Upstream);
            return Err(match named(only, name).filter(|_| is_unknown) {
                Some(name) => on.unknown(&name, arguments, None, stop).into(),
                None => stop.into(),
            });
        }
    };
    on.record.name(&tool.name.server, &tool.name.tool);
    if let (Some(parameter_headers), Some(headers)) = (&tool.parameter_headers, headers) {
        headers.check(parameter_headers, arguments).map_err(|mismatch| {
            let text = format!("Header mismatch: {mismatch}");
            Refusal::rejected(RefusalKind::Headers, text)
        })?;
    }
    let access = ToolAccess::direct(tool);
    on.record.operation(Some(access.operation()));
    let mut arguments = arguments.clone();
    let admitted = on.admit(Access::Tool(access), &mut arguments, None, extras).await;
    let permit = admitted.map_err(|stop| match stop {
        // An invisible tool is refused like an unknown one.
        Stopped::Refused(refusal) if refusal.kind == RefusalKind::Unknown => {
            nearest(on, only, name, unknown(name)).into()
        }
        other => other,
    })?;
    Ok((permit, arguments))
}

/// Server and tool of a listed name, if the name determines them.
fn named(only: Option<&Arc<str>>, name: &str) -> Option<ToolName> {
    match only {
        Some(server) => Some(ToolName { server: Arc::clone(server), tool: name.into() }),
        None => {
            let (server, tool) = exposed::split_name(name)?;
            Some(ToolName { server: server.into(), tool: tool.into() })
        }
    }
}

/// Adds the nearest visible tools to the refusal of an unknown one.
fn nearest(on: &OnRecord<'_>, only: Option<&Arc<str>>, name: &str, refusal: Refusal) -> Refusal {
    if refusal.kind != RefusalKind::Unreadable {
        return refusal;
    }
    let snapshot = on.worker.proxy.catalog.load();
    let visible = policy::visible(&on.caller.principal, &on.settings.policy);
    let start = Start::default();
    let tools = snapshot.direct_tools(&start);
    let mut may_see = visible.first_tools(MAX_RULED);
    let of_server = |tool: &Tool| only.is_none_or(|server| *tool.name.server == **server);
    let shown = tools
        .filter(|(_, tool)| {
            of_server(tool) && tool.trust == Trust::Given && !tool.is_app_only && may_see(tool)
        })
        .map(|(listed, _)| if only.is_some() { &*listed.own } else { &*listed.key });
    refusal.helping(advice::nearest_names(name, shown))
}

fn unknown(name: &str) -> Refusal {
    Refusal::unreadable(format!("Unknown tool: {}", shown(name)))
}

async fn find(
    on: &OnRecord<'_>,
    only: Option<&Arc<str>>,
    name: &str,
) -> Result<Arc<Tool>, Refusal> {
    let (worker, proxy) = (on.worker, &on.worker.proxy);
    let unknown = || unknown(name);
    let snapshot = proxy.catalog.load();
    let tool = match only {
        Some(server) => snapshot.named(server, name),
        None => snapshot.direct(name),
    };
    if let Some(tool) = tool {
        return Ok(Arc::clone(tool));
    }
    drop(snapshot);
    if only.is_none()
        && !is_of_known_server(worker, name)
        && let Some(tool) = by_own_name(on, name).await
    {
        return Ok(tool);
    }
    // At startup the server's first tool list may still be pending.
    if let Some(name) = named(only, name) {
        return call::find(on, &name).await.map_err(|stop| match stop.kind {
            RefusalKind::Upstream => stop,
            _ => unknown(),
        });
    }
    first_sets(worker, None).await;
    proxy.catalog.load().direct(name).cloned().ok_or_else(unknown)
}

/// Whether a tool of this name belongs to a configured server; no other server can take such a name.
pub(super) fn is_of_known_server(worker: &Worker, name: &str) -> bool {
    let server = exposed::split_name(name).map(|(server, _)| server);
    server.is_some_and(|server| worker.proxy.upstreams.get(server).is_some())
}

/// Finds the only visible tool with the server-side name `own`: apps (SEP-1865) call their server's tools by these names.
async fn by_own_name(on: &OnRecord<'_>, own: &str) -> Option<Arc<Tool>> {
    let proxy = &on.worker.proxy;
    proxy.catalog.load().with_own_name(own).next()?;
    // A server that has not answered yet may have a tool of this name, too.
    first_sets(on.worker, None).await;
    let snapshot = proxy.catalog.load();
    let visible = policy::visible(&on.caller.principal, &on.settings.policy);
    let in_scope = |tool: &&Arc<Tool>| tool.trust == Trust::Given && visible.in_scope(tool);
    let candidates = snapshot.with_own_name(own).filter(in_scope);
    only_one(candidates, if visible.is_ruled() { MAX_RULED } else { usize::MAX }, |tool| {
        visible.tool(tool)
    })
    .cloned()
}

/// The only candidate accepted by `may_see`, which is called at most `max_asked` times; `None` if there are more
/// candidates, since another one may be visible.
fn only_one<T>(
    candidates: impl Iterator<Item = T>,
    max_asked: usize,
    may_see: impl Fn(&T) -> bool,
) -> Option<T> {
    let mut only = None;
    for (number, candidate) in candidates.enumerate() {
        if number == max_asked {
            return None;
        }
        if may_see(&candidate) && only.replace(candidate).is_some() {
            return None;
        }
    }
    only
}

/// Waits, up to a limit, for servers whose tools are unknown, or for `only` one. Many clients fetch the list just
/// once, at startup.
async fn first_sets(worker: &Worker, only: Option<&str>) {
    let proxy = &worker.proxy;
    let snapshot = proxy.catalog.load();
    let awaited = snapshot.servers().filter(|(server, set)| {
        *set == ToolSet::Awaited && only.is_none_or(|only| ***server == *only)
    });
    let awaited = awaited.filter_map(|(server, _)| proxy.upstreams.get(server));
    let settled =
        futures_util::future::join_all(awaited.map(async |upstream| upstream.settled().await));
    let _ = tokio::time::timeout(LIST_WAIT, settled).await;
}

/// Waits, with the same limit, for output schemas to be compiled: only schemas that compile are listed.
async fn compiled_schemas(worker: &Worker, only: Option<&str>) {
    let catalog = &worker.proxy.catalog;
    let until = Instant::now() + LIST_WAIT;
    let snapshot = catalog.load();
    let tools = only.map_or(snapshot.tools(), |server| snapshot.tools_of(server));
    for tool in tools {
        if matches!(tool.schema.now(), OutputSchema::Compiling(_)) {
            catalog.compiled(tool, until).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pro_45_own_name_is_resolved_only_if_no_other_tool_can_be_visible() {
        for (candidates, max_asked, expected) in [
            (&[][..], 2, None),
            (&[1], 2, Some(1)),
            (&[0, 1], 2, Some(1)),
            (&[1, 0, 0, 0], 4, Some(1)),
            (&[1, 1], 4, None),
            (&[1, 0, 0, 1], 4, None),
            // The third candidate is not checked.
            (&[1, 0, 0], 2, None),
            (&[1, 0, 1], 2, None),
        ] {
            let only = only_one(candidates.iter(), max_asked, |tool| **tool == 1);
            assert_eq!(only.copied(), expected, "{candidates:?}");
        }
    }
}
