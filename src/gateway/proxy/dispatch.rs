//! Parsing of client messages and routing of MCP methods to handlers.
//!
//! This module owns the list of methods and the response to `initialize`; HTTP and stdio share it (FR-A2: one
//! pipeline). Parsing is strict where two parsers could differ. Responses go to the server that asked.
//!
//! It also determines the state that a request is bound to in a fleet (a kept result, or a server with `affinity`)
//! before it is dispatched, so that it can be forwarded as received. An unreadable request is not bound to any state
//! and is refused on the node where it arrived.

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use mcpproxy_catalog::exposed;
use mcpproxy_json::members::{member, string};
use mcpproxy_json::tape;
use mcpproxy_json::tape::TapeFault;
use mcpproxy_policy as policy;
use mcpproxy_policy::approvals::{
    AnswerChannel, Answerer, ApprovalAnswer, ApprovalId, ApprovalVerdict, StateRead,
};
use mcpproxy_policy::intent::{NO_CALL_TOOL, Operation};
use mcpproxy_policy::tool::{Tool, ToolName, Trust};
use mcpproxy_policy::{Principal, ResourceRequest};
use mcpproxy_protocol::mcp::bounds::{MAX_ID_BYTES, MAX_URI_BYTES, MAX_URI_PREFIX_BYTES};
use mcpproxy_protocol::mcp::capabilities::ClientCapabilities;
use mcpproxy_protocol::mcp::jsonrpc::Code;
use mcpproxy_protocol::mcp::known_extensions::Extension;
use mcpproxy_protocol::mcp::message::{self, Message, Request, Response};
use mcpproxy_protocol::mcp::revisions::{LEGACY, NEWEST_LEGACY, ProtocolFamily, Revision};
use mcpproxy_protocol::mcp::shapes::Left;
use mcpproxy_protocol::mcp::{bounds, extensions, jsonrpc};
use mcpproxy_runtime::io::line_budget::peer_line;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::builtin::describe::DESCRIBE_TOOL;
use super::builtin::retrieve::{RETRIEVE_TOOLS, USAGE_INSTRUCTIONS};
use super::call::CallToolInput;
use super::client::{
    ApprovalQuestion, Client, Endpoint, InputAnswer, InputQuestion, Level, Peer, Question,
    ServerQuestion,
};
use super::kept_results::READ_RESULT;
use super::params::{AddressedRequest, CallParams, Target};
use super::passthrough::list_cache::FRESH_MS;
use super::passthrough::{Forward, List, lists};
use super::refusal::Refusal;
use super::render::Caching;
use super::reply::{Initialize, NotificationFilter, Reaction};
use super::worker::Worker;
use super::{approval, builtin, call, direct, extension, params, passthrough, render, tasks};
use crate::results::ResultHandle;

/// Routes a request. A call starts when its reply is first polled.
pub fn dispatch(worker: &Rc<Worker>, peer: &Peer, received: Received) -> Reaction {
    let Received { request, ambiguity } = received;
    let params = request.params.unwrap_or(Bytes::from_static(b"{}"));
    let Some(id) = request.id else { return notification(&request.method, &params) };
    if let Some(text) = ambiguity {
        if &*request.method != "tools/call" {
            return Reaction::error(&id, Code::InvalidParams, &text);
        }
        return refuse(worker, peer, id, "", text);
    }
    let family = peer.client.family;
    match (&*request.method, family, &peer.endpoint) {
        ("tools/call", _, Endpoint::Search) => call_tool(worker, peer, id, &params),
        ("tools/call", _, Endpoint::All | Endpoint::Server(_)) => {
            match read_call(worker, peer, &params) {
                Ok(read) => direct::call_tool(worker, peer, id, read),
                Err(text) => refuse(worker, peer, id, "", text),
            }
        }
        ("tools/list", _, Endpoint::Search) => {
            let (settings, overview) = (worker.settings(), overview(worker, peer));
            let required = settings.policy.intent.operation_type;
            let (limit, keeps) = (settings.tools_limit, settings.kept_results.is_some());
            let visible = policy::visible(&peer.principal, &settings.policy);
            let offered = Operation::ALL.into_iter().filter(|it| visible.operation(*it));
            let tools = builtin::tools_list(offered, required, limit, &overview, keeps);
            Reaction::Answer(render::own(family, &id, &tools, Caching::Milliseconds(FRESH_MS)))
        }
        ("tools/list", _, Endpoint::All | Endpoint::Server(_)) => {
            direct::list_tools(worker, peer, &id, &params)
        }
        ("resources/list", ..) => passthrough::list(worker, peer, &id, List::Resources, &params),
        ("resources/templates/list", ..) => {
            passthrough::list(worker, peer, &id, List::Templates, &params)
        }
        ("prompts/list", ..) => passthrough::list(worker, peer, &id, List::Prompts, &params),
        ("skills/list", ..) if lists_skills(worker, peer) => {
            passthrough::list(worker, peer, &id, List::Skills, &params)
        }
        ("skills/get", ..) if peer.endpoint.server().is_some() || shows_skills(worker, peer) => {
            let request = ResourceRequest::GetSkill;
            passthrough::forward(worker, peer, id, Forward::Resource(request), params)
        }
        ("resources/directory/read", ..)
            if peer.endpoint.server().is_some() || shows_skills(worker, peer) =>
        {
            let request = ResourceRequest::ReadDirectory;
            passthrough::forward(worker, peer, id, Forward::Resource(request), params)
        }
        ("resources/read", ..) => {
            passthrough::forward(worker, peer, id, Forward::Resource(ResourceRequest::Read), params)
        }
        ("prompts/get", ..) => passthrough::forward(worker, peer, id, Forward::Prompt, params),
        ("completion/complete", ..) => {
            passthrough::forward(worker, peer, id, Forward::Completion, params)
        }
        ("initialize", ProtocolFamily::Legacy, _) => initialize(worker, peer, &id, &params),
        ("ping", ProtocolFamily::Legacy, _) => Reaction::Answer(jsonrpc::response(&id, b"{}")),
        ("logging/setLevel", ProtocolFamily::Legacy, _) => set_level(peer, &id, &params),
        ("resources/subscribe", ProtocolFamily::Legacy, _) => passthrough::forward(
            worker,
            peer,
            id,
            Forward::Resource(ResourceRequest::Subscribe),
            params,
        ),
        ("resources/unsubscribe", ProtocolFamily::Legacy, _) => passthrough::forward(
            worker,
            peer,
            id,
            Forward::Resource(ResourceRequest::Unsubscribe),
            params,
        ),
        ("server/discover", ProtocolFamily::Modern, _) => discover(worker, peer, &id),
        ("subscriptions/listen", ProtocolFamily::Modern, _) => listen(id, &params),
        ("tasks/list", ..) if peer.client.revision().has_tasks() => {
            tasks::legacy::list(worker, peer, &id, &params)
        }
        (method, ..) if tasks::is_request(method) => {
            match tasks::request_of(method, peer.client.revision()) {
                Some(request) => {
                    let running = tasks::running(worker, peer, &id, request, params);
                    Reaction::Call { id, running }
                }
                None => Reaction::unknown_method(&id, method),
            }
        }
        (method, _, Endpoint::Server(server)) if extensions::is_method(method) => {
            extension::forward(worker, peer, (id, server), method, params)
        }
        (method, ..) => Reaction::unknown_method(&id, method),
    }
}

/// Whether the proxy itself lists skills to the peer, namely those that its principal may read. Skills of a server
/// that does not declare them are not known to the proxy.
fn lists_skills(worker: &Worker, peer: &Peer) -> bool {
    match peer.endpoint.server() {
        Some(server) => {
            let upstream = worker.proxy.upstreams.get(server);
            upstream.is_some_and(|upstream| extension::merged::offers(&upstream, Extension::Skills))
        }
        None => shows_skills(worker, peer),
    }
}

/// Whether skills are among the extensions shown to the peer.
fn shows_skills(worker: &Worker, peer: &Peer) -> bool {
    extension::merged::is_shown(worker, &peer.principal, Extension::Skills)
}

fn notification(method: &str, params: &[u8]) -> Reaction {
    #[derive(Deserialize)]
    struct Canceled<'a> {
        #[serde(borrow, rename = "requestId")]
        request_id: &'a RawValue,
    }
    match (method, serde_json::from_slice::<Canceled<'_>>(params)) {
        // A longer id is ignored, since no request has one.
        ("notifications/cancelled", Ok(canceled))
            if canceled.request_id.get().len() <= MAX_ID_BYTES =>
        {
            Reaction::Cancel(Bytes::copy_from_slice(canceled.request_id.get().as_bytes()))
        }
        // Unknown notifications are ignored, and so is a cancellation without an id.
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

/// Members of `clientInfo` that the proxy uses.
#[derive(Default, Deserialize)]
pub struct ClientInfo {
    #[serde(default)]
    pub name: String,
}

fn initialize(worker: &Worker, peer: &Peer, id: &Bytes, params: &Bytes) -> Reaction {
    let params: InitializeParams = match serde_json::from_slice(params) {
        Ok(params) => params,
        Err(problem) => return invalid_params(id, &problem),
    };
    // The response to an unsupported revision names the newest supported one (MCP 2025-11-25 §Lifecycle).
    let version = LEGACY
        .into_iter()
        .find(|known| **known == params.protocol_version)
        .unwrap_or(NEWEST_LEGACY);
    let mut capabilities = declared_capabilities(worker, peer);
    tasks::capability::declare(&mut capabilities, worker, peer, Revision::of(version));
    let result = with_instructions(
        worker,
        peer,
        json!({
            "protocolVersion": version,
            "capabilities": capabilities,
            "serverInfo": render::server_info(),
        }),
    );
    Reaction::Initialize(Initialize {
        version,
        client_name: params.client_info.name,
        client_capabilities: params.capabilities.in_revision(Revision::of(version)),
        answer: jsonrpc::response(id, result.to_string().as_bytes()),
    })
}

/// Handles `server/discover` (MCP 2026-07-28 §Discovery).
fn discover(worker: &Worker, peer: &Peer, id: &Bytes) -> Reaction {
    let mut capabilities = declared_capabilities(worker, peer);
    tasks::capability::declare(&mut capabilities, worker, peer, Revision::NEWEST);
    let result = with_instructions(
        worker,
        peer,
        json!({
            "supportedVersions": supported(worker),
            "capabilities": capabilities,
        }),
    );
    // Upstream capabilities may change at any time.
    Reaction::Answer(render::own(
        ProtocolFamily::Modern,
        id,
        &result.to_string(),
        Caching::Milliseconds(0),
    ))
}

/// Instructions at `/mcp/all`, which has no call tools.
const DIRECT_INSTRUCTIONS: &str =
    "Each tool is one of an upstream server, listed as SERVER__TOOL: call it by the listed name.";

/// Adds `instructions` to an introduction, if there are any.
fn with_instructions(worker: &Worker, peer: &Peer, mut introduction: Value) -> Value {
    let text = instructions(worker, peer);
    if let (false, Some(members)) = (text.is_empty(), introduction.as_object_mut()) {
        members.insert("instructions".into(), text.into());
    }
    introduction
}

/// Instructions for an agent: the built-in tools with the purpose of each server, or the instructions of the only server.
fn instructions(worker: &Worker, peer: &Peer) -> String {
    match &peer.endpoint {
        Endpoint::All => DIRECT_INSTRUCTIONS.to_owned(),
        Endpoint::Search => match &*overview(worker, peer) {
            "" => USAGE_INSTRUCTIONS.to_owned(),
            overview => format!("{USAGE_INSTRUCTIONS} {overview}"),
        },
        Endpoint::Server(server) => own_instructions(worker, server),
    }
}

/// A server's own instructions. Empty while one of its tools is in quarantine, since they come from the same author
/// and are not reviewed.
fn own_instructions(worker: &Worker, server: &str) -> String {
    let snapshot = worker.proxy.catalog.load();
    let is_withheld = |tool: &Arc<Tool>| tool.trust == Trust::Withheld;
    match worker.proxy.upstreams.get(server) {
        Some(upstream) if !snapshot.tools_of(server).iter().any(is_withheld) => {
            upstream.introduced().instructions.to_string()
        }
        Some(_) | None => String::new(),
    }
}

/// Overview of the servers visible to this peer.
fn overview(worker: &Worker, peer: &Peer) -> Arc<str> {
    let (snapshot, settings) = (worker.proxy.catalog.load(), worker.settings());
    let visible = policy::visible(&peer.principal, &settings.policy);
    worker.proxy.overview.visible(&snapshot, visible)
}

/// Supported revisions, newest first.
pub fn supported(worker: &Worker) -> Vec<&'static str> {
    worker.settings().offered_era.revisions()
}

/// Server capabilities for `initialize` and `server/discover`, with the extensions of the servers visible to the principal.
fn declared_capabilities(worker: &Worker, peer: &Peer) -> Value {
    let mut declared = capabilities(worker, &peer.endpoint, peer.client.family);
    if let (None, Some(members)) = (peer.endpoint.server(), declared.as_object_mut())
        && let Some(extensions) = extension::merged::declared(worker, &peer.principal)
    {
        members.insert("extensions".into(), extensions);
    }
    declared
}

/// Server capabilities at an endpoint for clients of this family. Includes extensions only for a single server.
pub fn capabilities(worker: &Worker, endpoint: &Endpoint, family: ProtocolFamily) -> Value {
    if let Some(server) = endpoint.server() {
        let upstream = worker.proxy.upstreams.get(server);
        let capabilities = upstream.map(|upstream| passthrough::capabilities_of(&upstream, family));
        return Value::Object(capabilities.unwrap_or_default());
    }
    let mut capabilities = passthrough::capabilities(worker, family);
    // The built-in tools name the servers, so their definitions change as well.
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
        Err(problem) => invalid_params(id, &problem),
    }
}

/// Refuses unreadable params. The problem text is truncated, since it may quote the params.
fn invalid_params(id: &Bytes, problem: &dyn std::fmt::Display) -> Reaction {
    const MAX_CHARS: usize = 512;
    let text: String = format!("Invalid params: {problem}").chars().take(MAX_CHARS).collect();
    Reaction::error(id, Code::InvalidParams, &text)
}

fn listen(id: Bytes, params: &[u8]) -> Reaction {
    #[derive(Deserialize)]
    struct Listen {
        notifications: NotificationFilter,
    }
    if let Some(why) = tasks::undeclared_subscription(params) {
        let data = tasks::capability::required();
        let error = jsonrpc::error_with(Some(&id), Code::MissingCapability, &why, &data);
        return Reaction::Error(Code::MissingCapability, error);
    }
    match serde_json::from_slice::<Listen>(params) {
        Ok(Listen { notifications: filter }) => {
            let limit = MAX_URI_PREFIX_BYTES + MAX_URI_BYTES;
            let mut uris = filter.resource_subscriptions.iter();
            match uris.try_for_each(|uri| bounds::within("a URI to subscribe to", uri, limit)) {
                Ok(()) => Reaction::Listen { id, filter },
                Err(too_long) => invalid_params(&id, &too_long),
            }
        }
        Err(problem) => invalid_params(&id, &problem),
    }
}

/// Parses a call and logs its dropped members.
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
    let CallParams { name, arguments, extras, left: _ } = match read_call(worker, peer, params) {
        Ok(read) => read,
        Err(text) => return refuse(worker, peer, id, "", text),
    };
    let (caller, meta) = (peer.caller(&id), extras.meta.as_deref());
    let running = match (&*name, Operation::of_tool(&name)) {
        (_, Some(variant)) => {
            let given = CallToolInput { arguments, intent: None };
            call::call(worker, caller, variant, given, extras)
        }
        (RETRIEVE_TOOLS, None) => call::retrieve_tools(worker, caller, arguments, meta),
        (DESCRIBE_TOOL, None) => builtin::describe::describe_tool(worker, caller, arguments, meta),
        // If no results are kept, no handle is valid.
        (READ_RESULT, None) if keeps_results(worker) => {
            builtin::read_result(worker, caller, arguments, meta)
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

/// Whether results are kept now, or results that were kept earlier remain.
fn keeps_results(worker: &Worker) -> bool {
    worker.settings().kept_results.is_some() || !worker.proxy.results.is_empty()
}

/// Refuses a call of an unknown or unreadable tool, with a record.
fn refuse(worker: &Rc<Worker>, peer: &Peer, id: Bytes, tool: &str, text: String) -> Reaction {
    let tool = render::shown(tool);
    let running = call::rejected(worker, peer.caller(&id), tool, Refusal::unreadable(text));
    Reaction::Call { id, running }
}

/// Maximum nesting of a request: serde_json's limit minus the envelope.
const MAX_REQUEST_DEPTH: usize = 120;

/// A parsed request, and its ambiguity if there is one.
#[derive(Debug)]
pub struct Received {
    pub request: Request,
    /// Reason why two parsers could read the request differently. If set, the request is refused, and recorded if it
    /// is a call.
    pub(super) ambiguity: Option<String>,
}

impl Received {
    /// Whether the request will be refused as ambiguous.
    pub fn is_ambiguous(&self) -> bool {
        self.ambiguity.is_some()
    }
}

#[derive(Debug)]
pub enum Incoming {
    Request(Received),
    /// A response to an upstream's request.
    Response(Response),
}

impl Incoming {
    /// Raw id of a request; `None` for a notification or a response.
    pub fn request_id(&self) -> Option<&[u8]> {
        match self {
            Self::Request(received) => received.request.id.as_deref(),
            Self::Response(_) => None,
        }
    }
}

/// Parses a client's message. Strict where parsers could differ: exactly one JSON value, without duplicate keys.
/// The error is the complete response to send.
pub fn read(worker: &Worker, body: &Bytes) -> Result<Incoming, Bytes> {
    let (ambiguity, refusal) = match strict(worker, body) {
        Ok(()) => (None, None),
        Err(fault @ TapeFault::DuplicateKey { .. }) => {
            let text = format!("Invalid params: the request {fault}");
            (Some(text.clone()), Some((Code::InvalidParams, text)))
        }
        Err(fault) => {
            let text = format!("Parse error: the request {fault}");
            // The id is readable if the fault is within a value; without it, a client on a pipe would wait forever.
            let id = message::id_of_invalid(body);
            return Err(jsonrpc::error(id.as_deref(), Code::Parse, &text));
        }
    };
    match (Message::parse(body), refusal) {
        (Ok(Message::Request(request)), _) => {
            Ok(Incoming::Request(Received { request, ambiguity }))
        }
        (Ok(Message::Response(response)), None) => Ok(Incoming::Response(response)),
        (Ok(Message::Response(_)), Some((code, text))) => Err(jsonrpc::error(None, code, &text)),
        (Err(unreadable), refusal) => {
            let (code, text) = refusal.unwrap_or((unreadable.code(), unreadable.to_string()));
            Err(jsonrpc::error(None, code, &text))
        }
    }
}

/// Forwards a client's response to the upstream, or the call, that asked. A response without an open question is
/// dropped. An ambiguous one fails with the complete error response; the upstream or call gets the same error.
pub async fn respond(worker: &Worker, client: &Client, response: Response) -> Result<(), Bytes> {
    let id = response.id.as_deref().and_then(|raw| std::str::from_utf8(raw).ok()?.parse().ok());
    let Some((question, record)) = id.and_then(|id| client.take_answered(id)) else {
        tracing::debug!(session = %client.session_id, "response without an open question dropped");
        return Ok(());
    };
    let recorded = |outcome: &Bytes| {
        if let Some(record) = record {
            record.answered(outcome);
        }
    };
    let ServerQuestion { server, method, generation, raw_id, task } = match question {
        Question::Server(question) => question,
        Question::Approval(question) => {
            approve(worker, &question, &response);
            return Ok(());
        }
        Question::Input(InputQuestion { method, index, answers }) => {
            // The server has the modern revision.
            let (outcome, answered) = outcome(worker, client, &method, Revision::NEWEST, &response);
            recorded(&outcome);
            // The channel has capacity for each answer, unless the call has ended.
            let _ = answers.try_send(InputAnswer { index, outcome });
            return answered;
        }
    };
    let (outcome, answered) = outcome(worker, client, &method, client.revision(), &response);
    let outcome = tasks::related::opened_answer(outcome, task.as_deref());
    recorded(&outcome);
    let Some(upstream) = worker.proxy.upstreams.connected_as(&server, generation) else {
        return answered;
    };
    if let Err(lost) = upstream.respond(generation, raw_id, outcome).await {
        peer_line!(warn, upstream, %server, %lost, "failed to send a client's response to the server");
    }
    answered
}

/// The forwarded member of a client's response to `method`, reduced to the members of `revision`. For an ambiguous
/// response this is an error, and the complete error response for the client is returned as well.
fn outcome(
    worker: &Worker,
    client: &Client,
    method: &str,
    revision: Revision,
    response: &Response,
) -> (Bytes, Result<(), Bytes>) {
    let mut left = Left::default();
    let outcome = match params::outcome(method, revision, response, &mut left) {
        Ok(outcome) => (outcome, Ok(())),
        Err(refused) => {
            let text = format!("Invalid params: the client's answer: {refused}");
            let error = json!({"code": Code::InvalidParams as i32, "message": text});
            let response = jsonrpc::error(None, Code::InvalidParams, &text);
            (format!("\"error\":{error}").into(), Err(response))
        }
    };
    client.warn_of_dropped(&worker.proxy.dropped_members, method, &left);
    outcome
}

/// Applies the user's answer to a call of that user; the first answer from any channel counts. A dialog that was
/// dismissed or failed is not an answer, so that other channels may still give one.
fn approve(worker: &Worker, question: &ApprovalQuestion, response: &Response) {
    let ApprovalQuestion { id, principal } = question;
    let Some(verdict) = elicited(&response.outcome) else {
        tracing::debug!(approval = %id, "the client's user has not answered");
        return;
    };
    let by = Answerer::here(principal.clone(), AnswerChannel::Elicitation);
    if let Err(why) = worker.proxy.approvals.answer(id, ApprovalAnswer { verdict, by, seen: None })
    {
        tracing::debug!(approval = %id, %why, "client's answer ignored");
    }
}

/// `action` of the result of `elicitation/create`.
fn elicited(outcome: &[u8]) -> Option<ApprovalVerdict> {
    let text = std::str::from_utf8(outcome).ok()?;
    let result = text.strip_prefix("\"result\":")?;
    approval::verdict(&string(member(result, "action")?)?)
}

/// Checks a non-JSON-RPC body with the same strictness. The error is one line.
pub fn check(worker: &Worker, body: &[u8]) -> Result<(), String> {
    strict(worker, body).map_err(|fault| format!("Invalid request body: it {fault}"))
}

fn strict(worker: &Worker, body: &[u8]) -> Result<(), TapeFault> {
    tape::check_unique(body, MAX_REQUEST_DEPTH, worker.scratch.borrow_mut().tape())
}

/// State that a request is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoundTo {
    /// No state: any node can serve the request.
    Nothing,
    /// State that a server holds for the client's session.
    Session,
    /// Result kept by the node with this number.
    Node(u32),
}

/// State that a request at this endpoint is bound to. May fetch lists of servers to resolve a URI, each within the
/// time limit for lists.
pub async fn bound_to(worker: &Worker, endpoint: &Endpoint, received: &Received) -> BoundTo {
    let request = &received.request;
    if let Some(server) = endpoint.server() {
        return match is_for_server(&request.method) {
            true => of_server(worker, server),
            false => BoundTo::Nothing,
        };
    }
    let (Some(params), false) = (&request.params, received.is_ambiguous()) else {
        return BoundTo::Nothing;
    };
    let forward = match &*request.method {
        "tools/call" => return of_call(worker, endpoint, params),
        "prompts/get" => Forward::Prompt,
        "completion/complete" => Forward::Completion,
        "resources/read" => Forward::Resource(ResourceRequest::Read),
        "resources/subscribe" => Forward::Resource(ResourceRequest::Subscribe),
        "resources/unsubscribe" => Forward::Resource(ResourceRequest::Unsubscribe),
        "resources/directory/read" => Forward::Resource(ResourceRequest::ReadDirectory),
        "skills/get" => Forward::Resource(ResourceRequest::GetSkill),
        method if tasks::is_request(method) => {
            let server = std::str::from_utf8(params).ok().and_then(tasks::server_of);
            return server.map_or(BoundTo::Nothing, |server| of_server(worker, &server));
        }
        _ => return BoundTo::Nothing,
    };
    if worker.settings().session_servers.is_empty() {
        return BoundTo::Nothing;
    }
    match AddressedRequest::read(forward, Revision::NEWEST, params) {
        Ok(addressed) => of_target(worker, addressed.target()).await,
        Err(_) => BoundTo::Nothing,
    }
}

/// Approval or held call named in the request state of a repeated request of `principal`, if a fleet node issued
/// that state.
pub fn approval_of_repeat(
    worker: &Worker,
    principal: &Principal,
    received: &Received,
) -> Option<ApprovalId> {
    let (Some(params), false) = (&received.request.params, received.is_ambiguous()) else {
        return None;
    };
    let state = member(std::str::from_utf8(params).ok()?, "requestState").and_then(string)?;
    match worker.proxy.approvals.read_state(&state, principal) {
        StateRead::Ours(id) | StateRead::Held(id) => Some(id),
        StateRead::Foreign | StateRead::Forged => None,
    }
}

/// Whether a request at the endpoint of one server is addressed to that server; lists are not.
pub fn is_for_server(method: &str) -> bool {
    let known = [
        "tools/call",
        "prompts/get",
        "completion/complete",
        "resources/read",
        "resources/subscribe",
        "resources/unsubscribe",
        "resources/directory/read",
    ];
    known.contains(&method) || tasks::is_request(method) || extensions::is_method(method)
}

/// Whether the method is a task request, whose answer may contain server content.
pub fn is_task_request(method: &str) -> bool {
    tasks::is_request(method)
}

async fn of_target(worker: &Worker, target: &Target) -> BoundTo {
    if let Some((server, _)) = target.split()
        && (matches!(target, Target::Prompt(_)) || worker.proxy.upstreams.get(&server).is_some())
    {
        return of_server(worker, &server);
    }
    match target {
        Target::Prompt(name) => {
            let sets = lists::all(worker, List::Prompts).await;
            let set = sets.into_iter().find(|set| set.find(name).is_some());
            set.map_or(BoundTo::Nothing, |set| of_server(worker, &set.server))
        }
        Target::Uri(uri) => {
            let upstream = lists::of_uri(worker, uri).await;
            upstream.map_or(BoundTo::Nothing, |upstream| of_server(worker, upstream.name()))
        }
    }
}

fn of_server(worker: &Worker, server: &str) -> BoundTo {
    match worker.settings().session_servers.contains(server) {
        true => BoundTo::Session,
        false => BoundTo::Nothing,
    }
}

fn of_call(worker: &Worker, endpoint: &Endpoint, params: &[u8]) -> BoundTo {
    let Ok(params) = std::str::from_utf8(params) else { return BoundTo::Nothing };
    let [name, arguments] = ["name", "arguments"].map(|key| member(params, key));
    let Some(name) = name.and_then(string) else { return BoundTo::Nothing };
    let within = |key| arguments.and_then(|arguments| member(arguments, key)).and_then(string);
    let server: Cow<'_, str> = match endpoint {
        Endpoint::Search if name == READ_RESULT => {
            let handle = within("handle").and_then(|handle| ResultHandle::parse(&handle));
            return match handle.map_or(0, |handle| handle.node()) {
                0 => BoundTo::Nothing,
                node => BoundTo::Node(node),
            };
        }
        _ if worker.settings().session_servers.is_empty() => return BoundTo::Nothing,
        Endpoint::Search if Operation::of_tool(&name).is_some() => {
            let Some(tool) = within("name") else { return BoundTo::Nothing };
            let server = ToolName::split(&tool).map(|(server, _)| server.to_owned());
            server.unwrap_or_default().into()
        }
        // Requests at the endpoint of one server are handled above.
        Endpoint::Search | Endpoint::Server(_) => return BoundTo::Nothing,
        Endpoint::All => {
            let catalog = worker.proxy.catalog.load();
            let known = catalog.direct(&name).map(|tool| tool.name.server.to_string());
            let named = || exposed::split_name(&name).map(|(server, _)| server.to_owned());
            let by_own_name = || {
                if direct::is_of_known_server(worker, &name) {
                    return None;
                }
                let mut named = catalog.with_own_name(&name);
                let first = named.next()?;
                named.next().is_none().then(|| first.name.server.to_string())
            };
            known.or_else(by_own_name).or_else(named).unwrap_or_default().into()
        }
    };
    of_server(worker, &server)
}
