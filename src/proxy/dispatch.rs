//! From a client's message to what is done about it: the router of our MCP methods.
//!
//! Owns the list of methods and the shape of `initialize`. Deliberately ignorant of how messages
//! arrive and leave: HTTP and stdio both come through here (FR-A2: one pipeline, no second door).

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::activity::record::Source;
use crate::intent::{NO_CALL_TOOL, Operation};
use crate::json::tape::{self, TapeFault};
use crate::mcp::capabilities::ClientCapabilities;
use crate::mcp::jsonrpc::{self, Code};
use crate::mcp::message::{Message, Request, Response};
use crate::mcp::meta::SERVER_KEY;
use crate::mcp::revisions::{Era, LEGACY, NEWEST_LEGACY};
use crate::mcp::shapes::Left;
use crate::output::AnswerMember;
use crate::proxy::call::{self, Caller, Given};
use crate::proxy::client::{Client, Endpoint, Level, Question};
use crate::proxy::params::{self, CallParams, ParamHeaders};
use crate::proxy::passthrough::{self, Forward, List};
use crate::proxy::reply::{Refusal, RefusalKind, Running};
use crate::proxy::retrieve::RETRIEVE_TOOLS;
use crate::proxy::{Worker, builtin, direct};

/// How long a client may keep a list of what is ours alone, in milliseconds.
const OWN_LIST_TTL_MS: u64 = 300_000;

/// Deepest nesting of a request: what serde_json follows, less the envelope.
const MAX_REQUEST_DEPTH: usize = 120;

/// Who a message came from, and by which way.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The client.
    pub client: Arc<Client>,
    /// Which set of tools it speaks to.
    pub endpoint: Endpoint,
    /// Whether something can be sent to it before the answer.
    pub channel: Channel,
    /// What the message's headers say of a tool's parameters; `None` where no headers do.
    pub headers: Option<ParamHeaders>,
}

impl Peer {
    /// What upstreams may ask the client before they answer its request.
    #[must_use]
    pub fn client_capabilities(&self) -> ClientCapabilities {
        match (self.client.era, self.channel) {
            (Era::Legacy, Channel::Stream) => self.client.client_capabilities,
            (Era::Legacy, Channel::Answer) | (Era::Modern, _) => ClientCapabilities::default(),
        }
    }
}

/// What a reply can carry beside its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// The answer only: the client takes nothing else.
    Answer,
    /// Notifications, and requests of upstreams in the legacy era.
    Stream,
}

/// What a message leads to.
#[derive(Debug)]
pub enum Reaction {
    /// Taken note of; there is no answer to it.
    Noted,
    /// A whole response with a result.
    Answer(Bytes),
    /// A whole response with an error of this code.
    Error(Code, Bytes),
    /// The client gives up its request of this raw id.
    Cancel(Bytes),
    /// The client wants to be told of changes (MCP 2026-07-28 §Subscriptions).
    Listen {
        /// The raw id to answer under.
        id: Bytes,
        /// Of which.
        filter: Filter,
    },
    /// A client introduces itself: the response, once a session is open for it.
    Initialize(Initialize),
    /// A tool is being called.
    Call {
        /// The raw id to answer under.
        id: Bytes,
        /// The reply on its way.
        running: Running,
    },
}

/// An accepted `initialize`.
#[derive(Debug)]
pub struct Initialize {
    /// The negotiated revision.
    pub version: &'static str,
    /// `clientInfo.name`
    pub client_name: String,
    /// `capabilities`
    pub client_capabilities: ClientCapabilities,
    /// The whole response.
    pub answer: Bytes,
}

/// What a client wants to be told of (MCP 2026-07-28 §Notification Filter).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the protocol's own words")]
pub struct Filter {
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub tools_list_changed: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub prompts_list_changed: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub resources_list_changed: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resource_subscriptions: Vec<String>,
}

/// A request that was read, and what makes it doubtful.
#[derive(Debug)]
pub struct Received {
    /// The request.
    pub request: Request,
    /// Two parsers could read it differently: it is refused, a call on record.
    doubt: Option<String>,
}

impl Received {
    /// True for a request that will be refused, so that nothing else of it counts.
    #[must_use]
    pub fn is_doubtful(&self) -> bool {
        self.doubt.is_some()
    }
}

/// A client's message.
#[derive(Debug)]
pub enum Incoming {
    /// A request or a notification.
    Request(Received),
    /// An answer to what an upstream asked it.
    Response(Response),
}

/// Reads a client's message. Strict where two parsers could differ: it is exactly one JSON
/// value, and no key stands twice in any object.
///
/// # Errors
///
/// The whole error response to send.
pub fn read(worker: &Worker, body: &Bytes) -> Result<Incoming, Bytes> {
    let (doubt, refusal) = match strict(worker, body) {
        Ok(()) => (None, None),
        Err(fault @ TapeFault::DuplicateKey { .. }) => {
            let text = format!("Invalid params: the request {fault}");
            (Some(text.clone()), Some((Code::InvalidParams, text)))
        }
        Err(fault) => {
            let text = format!("Parse error: the request {fault}");
            return Err(jsonrpc::error(None, Code::Parse, &text));
        }
    };
    match (Message::parse(body), refusal) {
        (Ok(Message::Request(request)), _) => Ok(Incoming::Request(Received { request, doubt })),
        (Ok(Message::Response(response)), None) => Ok(Incoming::Response(response)),
        (Ok(Message::Response(_)), Some((code, text))) => Err(jsonrpc::error(None, code, &text)),
        (Err(unreadable), refusal) => {
            let (code, text) = refusal.unwrap_or((unreadable.code(), unreadable.to_string()));
            Err(jsonrpc::error(None, code, &text))
        }
    }
}

/// Hands a client's answer to the upstream that asked. An answer to what it was not asked, or is
/// not any more, is dropped.
///
/// # Errors
/// The whole error response to an answer that two readers could read differently. Whoever asked is
/// told the same.
pub async fn respond(worker: &Worker, client: &Client, response: Response) -> Result<(), Bytes> {
    let id = response.id.as_deref().and_then(|raw| std::str::from_utf8(raw).ok()?.parse().ok());
    let Some(question) = id.and_then(|id| client.answered(id)) else {
        tracing::debug!(session = %client.session_id, "an answer to what was not asked");
        return Ok(());
    };
    let Question { server, method, generation, raw_id } = question;
    let Some(upstream) = worker.proxy.upstreams.get(&server) else { return Ok(()) };
    let mut left = Left::default();
    let (outcome, answered) = match params::outcome(&method, client, &response, &mut left) {
        Ok(outcome) => (outcome, Ok(())),
        Err(refused) => {
            let text = format!("Invalid params: the client's answer: {refused}");
            let error = json!({"code": Code::InvalidParams as i32, "message": text});
            let told = jsonrpc::error(None, Code::InvalidParams, &text);
            (format!("\"error\":{error}").into(), Err(told))
        }
    };
    worker.proxy.dropped_members.of_client(client, &method, &left);
    if let Err(lost) = upstream.respond(generation, raw_id, outcome).await {
        tracing::warn!(%server, %lost, "a client's answer did not reach the server that asked");
    }
    answered
}

/// The same strictness for a body that is no JSON-RPC message.
///
/// # Errors
///
/// What is wrong with it, in one line.
pub fn check(worker: &Worker, body: &[u8]) -> Result<(), String> {
    strict(worker, body).map_err(|fault| format!("Invalid request body: it {fault}"))
}

fn strict(worker: &Worker, body: &[u8]) -> Result<(), TapeFault> {
    tape::check_unique(body, MAX_REQUEST_DEPTH, worker.scratch.borrow_mut().tape())
}

/// Decides what a request leads to; a call only starts when its reply is polled.
#[must_use]
pub fn dispatch(worker: &Rc<Worker>, peer: &Peer, received: Received) -> Reaction {
    let Received { request, doubt } = received;
    let params = request.params.unwrap_or(Bytes::from_static(b"{}"));
    let Some(id) = request.id else { return notification(&request.method, &params) };
    if let Some(text) = doubt {
        if &*request.method != "tools/call" {
            return error(&id, Code::InvalidParams, &text);
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
            let tools =
                builtin::tools_list(worker.proxy.intent.operation_type, worker.proxy.tools_limit);
            Reaction::Answer(own(era, &id, &tools, Caching::Milliseconds(OWN_LIST_TTL_MS)))
        }
        ("tools/list", _, Endpoint::All) => direct::list_tools(worker, peer, &id, &params),
        ("resources/list", ..) => passthrough::list(worker, peer, &id, List::Resources, &params),
        ("resources/templates/list", ..) => {
            passthrough::list(worker, peer, &id, List::Templates, &params)
        }
        ("prompts/list", ..) => passthrough::list(worker, peer, &id, List::Prompts, &params),
        ("resources/read", ..) => passthrough::forward(worker, peer, id, Forward::Read, params),
        ("prompts/get", ..) => passthrough::forward(worker, peer, id, Forward::Prompt, params),
        ("completion/complete", ..) => {
            passthrough::forward(worker, peer, id, Forward::Complete, params)
        }
        ("initialize", Era::Legacy, _) => initialize(worker, peer, &id, &params),
        ("ping", Era::Legacy, _) => Reaction::Answer(jsonrpc::response(&id, b"{}")),
        ("logging/setLevel", Era::Legacy, _) => set_level(peer, &id, &params),
        ("resources/subscribe", Era::Legacy, _) => {
            passthrough::forward(worker, peer, id, Forward::Subscribe, params)
        }
        ("resources/unsubscribe", Era::Legacy, _) => {
            passthrough::forward(worker, peer, id, Forward::Unsubscribe, params)
        }
        ("server/discover", Era::Modern, _) => discover(worker, peer, &id),
        ("subscriptions/listen", Era::Modern, _) => listen(id, &params),
        (method, ..) => unknown_method(&id, method),
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

/// `clientInfo`, as far as it is of use.
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
            return error(id, Code::InvalidParams, &format!("Invalid params: {problem}"));
        }
    };
    // A revision we do not serve is answered with the newest we do (MCP 2025-11-25 §Lifecycle).
    let version = LEGACY
        .into_iter()
        .find(|known| **known == params.protocol_version)
        .unwrap_or(NEWEST_LEGACY);
    let result = json!({
        "protocolVersion": version,
        "capabilities": capabilities(worker, peer),
        "serverInfo": server_info(),
        "instructions": builtin::USAGE_INSTRUCTIONS,
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
        "capabilities": capabilities(worker, peer),
        "instructions": builtin::USAGE_INSTRUCTIONS,
    });
    // What upstreams offer may change at any time.
    Reaction::Answer(own(Era::Modern, id, &result.to_string(), Caching::Milliseconds(0)))
}

/// The revisions that a client is told of, newest first.
#[must_use]
pub fn supported(worker: &Worker) -> Vec<&'static str> {
    worker.proxy.offered_era.revisions()
}

/// What there is to be had, for `initialize` and `server/discover`.
#[must_use]
pub fn capabilities(worker: &Worker, peer: &Peer) -> Value {
    let mut capabilities = passthrough::capabilities(worker);
    // Our four tools never change.
    let changes = peer.endpoint == Endpoint::All;
    capabilities.insert("tools".into(), json!({"listChanged": changes}));
    capabilities.insert("logging".into(), json!({}));
    Value::Object(capabilities)
}

fn server_info() -> Value {
    json!({"name": "mcpproxy", "version": env!("CARGO_PKG_VERSION")})
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
        Err(problem) => error(id, Code::InvalidParams, &format!("Invalid params: {problem}")),
    }
}

fn listen(id: Bytes, params: &[u8]) -> Reaction {
    #[derive(Deserialize)]
    struct Listen {
        notifications: Filter,
    }
    match serde_json::from_slice::<Listen>(params) {
        Ok(Listen { notifications: filter }) => Reaction::Listen { id, filter },
        Err(problem) => error(&id, Code::InvalidParams, &format!("Invalid params: {problem}")),
    }
}

/// How long a client may keep a result (MCP 2026-07-28 §Caching).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caching {
    /// The result is of no kind that is kept.
    No,
    /// So long.
    Milliseconds(u64),
}

/// A response with a result of our own.
#[must_use]
pub fn own(era: Era, id: &[u8], result: &str, caching: Caching) -> Bytes {
    jsonrpc::response(id, own_result(era, result, caching).as_bytes())
}

/// A result of our own, a JSON object; in the modern era with what every result must say there. An
/// upstream's result never comes through here: what it lacks is added while it streams
/// ([verdicts](crate::reference::requirements#verdicts), [`Required`](crate::output::Required)).
#[must_use]
pub fn own_result(era: Era, result: &str, caching: Caching) -> Cow<'_, str> {
    let beside = own_members(era, caching);
    let Some(members) = result.strip_prefix('{').filter(|_| !beside.is_empty()) else {
        return Cow::Borrowed(result);
    };
    let comma = if members.trim_start().starts_with('}') { "" } else { "," };
    Cow::Owned(format!("{{{beside}{comma}{members}"))
}

/// What every result of our own says in the modern era: `"key":value`, separated by commas; empty
/// in the other.
#[must_use]
pub fn own_members(era: Era, caching: Caching) -> String {
    let by = match era {
        Era::Legacy => return String::new(),
        Era::Modern => server_info(),
    };
    let kept = match caching {
        Caching::No => String::new(),
        Caching::Milliseconds(ttl) => format!(r#""ttlMs":{ttl},"cacheScope":"private","#),
    };
    let meta = format!(r#""_meta":{{"{SERVER_KEY}":{by}}}"#);
    format!(r#""resultType":"complete",{kept}{meta}"#)
}

/// Reads a call; what stays behind of it is warned of.
fn read_call<'a>(
    worker: &Worker,
    peer: &Peer,
    params: &'a Bytes,
) -> Result<CallParams<'a>, String> {
    let read = CallParams::read(params, peer.client.revision(), peer.client_capabilities())
        .map_err(|problem| format!("Invalid params: {problem}"))?;
    worker.proxy.dropped_members.of_client(&peer.client, "tools/call", &read.left);
    Ok(read)
}

fn call_tool(worker: &Rc<Worker>, peer: &Peer, id: Bytes, params: &Bytes) -> Reaction {
    let CallParams { name, arguments, beside, left: _ } = match read_call(worker, peer, params) {
        Ok(read) => read,
        Err(text) => return refuse(worker, peer, id, "", text),
    };
    let (ours, caller) = (Rc::clone(worker), caller(peer, &id));
    let running = match (&*name, Operation::of_tool(&name)) {
        (_, Some(variant)) => {
            let given = Given { arguments, intent: None };
            Running::new(|reply| call::call(ours, caller, variant, given, beside, reply))
        }
        (RETRIEVE_TOOLS, None) => {
            Running::new(|reply| call::retrieve_tools(ours, caller, arguments, reply))
        }
        ("call_tool", None) => return refuse(worker, peer, id, &name, NO_CALL_TOOL.to_owned()),
        (unknown, None) => {
            let text = format!(
                "Tool '{}' not found. Use retrieve_tools to find tools and call_tool_read, \
                 call_tool_write or call_tool_destructive to call them.",
                shown(unknown)
            );
            return refuse(worker, peer, id, unknown, text);
        }
    };
    Reaction::Call { id, running }
}

/// Refuses a call of no tool of ours, or one that cannot be read; on record like any other.
pub(super) fn refuse(
    worker: &Rc<Worker>,
    peer: &Peer,
    id: Bytes,
    tool: &str,
    text: String,
) -> Reaction {
    let (worker, caller) = (Rc::clone(worker), caller(peer, &id));
    let tool = shown(tool);
    let refusal = Refusal { kind: RefusalKind::Unreadable, text };
    let running = Running::new(|reply| call::unreadable(worker, caller, tool, refusal, reply));
    Reaction::Call { id, running }
}

/// Who calls, for a request of this raw id.
pub(super) fn caller(peer: &Peer, id: &Bytes) -> Caller {
    let inside = id.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
    Caller {
        source: Source::Mcp,
        request_id: inside.map_or_else(|| id.clone(), |inside| id.slice_ref(inside)),
        name: Box::default(),
        client: Some((Arc::clone(&peer.client), peer.channel)),
    }
}

/// Answers a method that there is not.
#[must_use]
pub fn unknown_method(id: &[u8], method: &str) -> Reaction {
    error(id, Code::MethodNotFound, &format!("Method not found: {}", shown(method)))
}

/// Answers with an error.
#[must_use]
pub fn error(id: &[u8], code: Code, text: &str) -> Reaction {
    Reaction::Error(code, jsonrpc::error(Some(id), code, text))
}

/// A client's word inside one of our messages: cut, so that it cannot be used to grow them.
#[must_use]
pub fn shown(word: &str) -> String {
    const MAX_SHOWN_CHARS: usize = 128;
    word.chars().take(MAX_SHOWN_CHARS).collect()
}

/// What stands before a reply's value in the envelope.
#[must_use]
pub fn head(id: &[u8], member: AnswerMember) -> Bytes {
    match member {
        AnswerMember::Result => jsonrpc::result_head(id),
        AnswerMember::Error => jsonrpc::error_head(id),
    }
}

/// The response to a call that has no answer of an upstream: unreadable parameters and headers that
/// disagree with them are a JSON-RPC error, everything else a tool result, from which the agent can
/// correct itself ([contracts](crate::reference::contracts#errors)).
#[must_use]
pub fn refused(era: Era, id: &[u8], refusal: &Refusal) -> Bytes {
    match refusal.kind {
        RefusalKind::Unreadable => jsonrpc::error(Some(id), Code::InvalidParams, &refusal.text),
        RefusalKind::Headers => jsonrpc::error(Some(id), Code::HeaderMismatch, &refusal.text),
        RefusalKind::Failed => jsonrpc::error(Some(id), Code::Internal, &refusal.text),
        RefusalKind::Intent
        | RefusalKind::Gate
        | RefusalKind::Unknown
        | RefusalKind::Upstream
        | RefusalKind::Unavailable => jsonrpc::response(id, &error_result(era, &refusal.text)),
    }
}

/// A tool result that reports a failure: `isError: true`, one text block.
#[must_use]
pub fn error_result(era: Era, text: &str) -> Bytes {
    let result = json!({"content": [{"type": "text", "text": text}], "isError": true});
    own_result(era, &result.to_string(), Caching::No).into_owned().into()
}
