//! The router of MCP methods: which handler a client's request goes to.
//!
//! Owns the list of methods and the shape of `initialize`. Deliberately ignorant of how messages
//! arrive and leave: HTTP and stdio both come through here (FR-A2: one pipeline, no second door).

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::call::{self, Given};
use super::caller::{Endpoint, Peer};
use super::client::Level;
use super::describe::DESCRIBE_TOOL;
use super::incoming::Received;
use super::keeping::READ_RESULT;
use super::params::CallParams;
use super::passthrough::list_cache::FRESH_MS;
use super::passthrough::{self, Forward, List};
use super::reaction::{Initialize, NotificationFilter, Reaction};
use super::read_result;
use super::refusal::{Refusal, RefusalKind};
use super::render::{self, Caching};
use super::reply::Running;
use super::retrieve::{RETRIEVE_TOOLS, USAGE_INSTRUCTIONS};
use super::worker::Worker;
use super::{builtin, describe, direct};
use crate::intent::{NO_CALL_TOOL, Operation};
use crate::mcp::capabilities::ClientCapabilities;
use crate::mcp::jsonrpc::{self, Code};
use crate::mcp::revisions::{Era, LEGACY, NEWEST_LEGACY};
use crate::policy::{self, ResourceRequest};

/// Decides what a request leads to; a call only starts when its reply is polled.
#[must_use]
pub fn dispatch(worker: &Rc<Worker>, peer: &Peer, received: Received) -> Reaction {
    let Received { request, doubt } = received;
    let params = request.params.unwrap_or(Bytes::from_static(b"{}"));
    let Some(id) = request.id else { return notification(&request.method, &params) };
    if let Some(text) = doubt {
        if &*request.method != "tools/call" {
            return Reaction::error(&id, Code::InvalidParams, &text);
        }
        return refuse(worker, peer, id, "", text);
    }
    let era = peer.client.era;
    match (&*request.method, era, peer.endpoint) {
        ("tools/call", _, Endpoint::Search) => call_tool(worker, peer, id, &params),
        ("tools/call", _, Endpoint::All) => match read_call(worker, peer, &params) {
            Ok(read) => direct::call_tool(worker, peer, id, read),
            Err(text) => refuse(worker, peer, id, "", text),
        },
        ("tools/list", _, Endpoint::Search) => {
            let (settings, overview) = (worker.settings(), overview(worker, peer));
            let required = settings.policy.intent.operation_type;
            let (limit, keeps) = (settings.tools_limit, settings.kept_results.is_some());
            let tools = builtin::tools_list(required, limit, &overview, keeps);
            Reaction::Answer(render::own(era, &id, &tools, Caching::Milliseconds(FRESH_MS)))
        }
        ("tools/list", _, Endpoint::All) => direct::list_tools(worker, peer, &id, &params),
        ("resources/list", ..) => passthrough::list(worker, peer, &id, List::Resources, &params),
        ("resources/templates/list", ..) => {
            passthrough::list(worker, peer, &id, List::Templates, &params)
        }
        ("prompts/list", ..) => passthrough::list(worker, peer, &id, List::Prompts, &params),
        ("resources/read", ..) => {
            passthrough::forward(worker, peer, id, Forward::Resource(ResourceRequest::Read), params)
        }
        ("prompts/get", ..) => passthrough::forward(worker, peer, id, Forward::Prompt, params),
        ("completion/complete", ..) => {
            passthrough::forward(worker, peer, id, Forward::Completion, params)
        }
        ("initialize", Era::Legacy, _) => initialize(worker, peer, &id, &params),
        ("ping", Era::Legacy, _) => Reaction::Answer(jsonrpc::response(&id, b"{}")),
        ("logging/setLevel", Era::Legacy, _) => set_level(peer, &id, &params),
        ("resources/subscribe", Era::Legacy, _) => passthrough::forward(
            worker,
            peer,
            id,
            Forward::Resource(ResourceRequest::Subscribe),
            params,
        ),
        ("resources/unsubscribe", Era::Legacy, _) => passthrough::forward(
            worker,
            peer,
            id,
            Forward::Resource(ResourceRequest::Unsubscribe),
            params,
        ),
        ("server/discover", Era::Modern, _) => discover(worker, peer, &id),
        ("subscriptions/listen", Era::Modern, _) => listen(id, &params),
        (method, ..) => Reaction::unknown_method(&id, method),
    }
}

fn notification(method: &str, params: &[u8]) -> Reaction {
    #[derive(Deserialize)]
    struct Cancelled<'a> {
        #[serde(borrow, rename = "requestId")]
        request_id: &'a RawValue,
    }
    match (method, serde_json::from_slice::<Cancelled<'_>>(params)) {
        ("notifications/cancelled", Ok(cancelled)) => {
            Reaction::Cancel(Bytes::copy_from_slice(cancelled.request_id.get().as_bytes()))
        }
        // What we do not know is not answered, and so is a cancellation of nothing.
        _ => Reaction::Noted,
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct InitializeParams {
    protocol_version: String,
    #[serde(default)]
    client_info: ClientInfo,
    #[serde(default)]
    capabilities: ClientCapabilities,
}

/// `clientInfo`, as far as it is used.
#[derive(Default, Deserialize)]
pub struct ClientInfo {
    /// The name the client gives itself.
    #[serde(default)]
    pub name: String,
}

fn initialize(worker: &Worker, peer: &Peer, id: &Bytes, params: &Bytes) -> Reaction {
    let params: InitializeParams = match serde_json::from_slice(params) {
        Ok(params) => params,
        Err(problem) => {
            return Reaction::error(id, Code::InvalidParams, &format!("Invalid params: {problem}"));
        }
    };
    // A revision we do not serve is answered with the newest we do (MCP 2025-11-25 §Lifecycle).
    let version = LEGACY
        .into_iter()
        .find(|known| **known == params.protocol_version)
        .unwrap_or(NEWEST_LEGACY);
    let result = json!({
        "protocolVersion": version,
        "capabilities": capabilities(worker),
        "serverInfo": render::server_info(),
        "instructions": instructions(worker, peer),
    });
    Reaction::Initialize(Initialize {
        version,
        client_name: params.client_info.name,
        client_capabilities: params.capabilities,
        answer: jsonrpc::response(id, result.to_string().as_bytes()),
    })
}

/// `server/discover` (MCP 2026-07-28 §Discovery).
fn discover(worker: &Worker, peer: &Peer, id: &Bytes) -> Reaction {
    let result = json!({
        "supportedVersions": supported(worker),
        "capabilities": capabilities(worker),
        "instructions": instructions(worker, peer),
    });
    // What upstreams offer may change at any time.
    Reaction::Answer(render::own(Era::Modern, id, &result.to_string(), Caching::Milliseconds(0)))
}

/// What an agent is told at the start: of our own tools, where it has them, which server is for what.
fn instructions(worker: &Worker, peer: &Peer) -> String {
    match (peer.endpoint, &*overview(worker, peer)) {
        (Endpoint::All, _) | (Endpoint::Search, "") => USAGE_INSTRUCTIONS.to_owned(),
        (Endpoint::Search, overview) => format!("{USAGE_INSTRUCTIONS} {overview}"),
    }
}

/// What there is to say of the servers to this peer.
fn overview(worker: &Worker, peer: &Peer) -> Arc<str> {
    let (snapshot, settings) = (worker.proxy.catalog.load(), worker.settings());
    let visible = policy::visible(&peer.principal, &settings.policy);
    worker.proxy.overview.visible(&snapshot, visible)
}

/// The revisions that are named to clients, newest first.
#[must_use]
pub fn supported(worker: &Worker) -> Vec<&'static str> {
    worker.settings().offered_era.revisions()
}

/// What there is to be had, for `initialize` and `server/discover`.
#[must_use]
pub fn capabilities(worker: &Worker) -> Value {
    let mut capabilities = passthrough::capabilities(worker);
    // Our own tools name the servers, so that they change as well.
    capabilities.insert("tools".into(), json!({"listChanged": true}));
    capabilities.insert("logging".into(), json!({}));
    Value::Object(capabilities)
}

fn set_level(peer: &Peer, id: &Bytes, params: &[u8]) -> Reaction {
    #[derive(Deserialize)]
    struct SetLevel {
        level: Level,
    }
    match serde_json::from_slice::<SetLevel>(params) {
        Ok(SetLevel { level }) => {
            peer.client.set_level(level);
            Reaction::Answer(jsonrpc::response(id, b"{}"))
        }
        Err(problem) => {
            Reaction::error(id, Code::InvalidParams, &format!("Invalid params: {problem}"))
        }
    }
}

fn listen(id: Bytes, params: &[u8]) -> Reaction {
    #[derive(Deserialize)]
    struct Listen {
        notifications: NotificationFilter,
    }
    match serde_json::from_slice::<Listen>(params) {
        Ok(Listen { notifications: filter }) => Reaction::Listen { id, filter },
        Err(problem) => {
            Reaction::error(&id, Code::InvalidParams, &format!("Invalid params: {problem}"))
        }
    }
}

/// Reads a call; what stays behind of it is warned of.
fn read_call<'a>(
    worker: &Worker,
    peer: &Peer,
    params: &'a Bytes,
) -> Result<CallParams<'a>, String> {
    let read = CallParams::read(params, peer.client.revision(), peer.client_capabilities())
        .map_err(|problem| format!("Invalid params: {problem}"))?;
    peer.client.warn_of_dropped(&worker.proxy.dropped_members, "tools/call", &read.left);
    Ok(read)
}

fn call_tool(worker: &Rc<Worker>, peer: &Peer, id: Bytes, params: &Bytes) -> Reaction {
    let CallParams { name, arguments, beside, left: _ } = match read_call(worker, peer, params) {
        Ok(read) => read,
        Err(text) => return refuse(worker, peer, id, "", text),
    };
    let (ours, caller) = (Rc::clone(worker), peer.caller(&id));
    let running = match (&*name, Operation::of_tool(&name)) {
        (_, Some(variant)) => {
            let given = Given { arguments, intent: None };
            Running::new(|reply| call::call(ours, caller, variant, given, beside, reply))
        }
        (RETRIEVE_TOOLS, None) => {
            let meta = beside.meta.as_deref();
            Running::new(|reply| call::retrieve_tools(ours, caller, arguments, meta, reply))
        }
        (DESCRIBE_TOOL, None) => {
            let meta = beside.meta.as_deref();
            Running::new(|reply| describe::describe_tool(ours, caller, arguments, meta, reply))
        }
        // Nobody has a handle where nothing was ever kept.
        (READ_RESULT, None) if keeps_results(worker) => {
            let meta = beside.meta.as_deref();
            Running::new(|reply| read_result::read_result(ours, caller, arguments, meta, reply))
        }
        ("call_tool", None) => return refuse(worker, peer, id, &name, NO_CALL_TOOL.to_owned()),
        (unknown, None) => {
            let text = format!(
                "Tool '{}' not found. Use retrieve_tools to find tools and call_tool_read, \
                 call_tool_write or call_tool_destructive to call them.",
                render::shown(unknown)
            );
            return refuse(worker, peer, id, unknown, text);
        }
    };
    Reaction::Call { id, running }
}

/// Whether results are kept, or some are left from when they were.
fn keeps_results(worker: &Worker) -> bool {
    worker.settings().kept_results.is_some() || !worker.proxy.results.is_empty()
}

/// Refuses a call of no tool of ours, or one that cannot be read; on record like any other.
fn refuse(worker: &Rc<Worker>, peer: &Peer, id: Bytes, tool: &str, text: String) -> Reaction {
    let (worker, caller) = (Rc::clone(worker), peer.caller(&id));
    let tool = render::shown(tool);
    let refusal = Refusal::new(RefusalKind::Unreadable, text);
    let running = Running::new(|reply| call::rejected(worker, caller, tool, refusal, reply));
    Reaction::Call { id, running }
}
