//! From a client's message to what is done about it: the router of our MCP methods.
//!
//! Owns the list of methods and the shape of `initialize`. Deliberately ignorant of how messages
//! arrive and leave: HTTP and stdio both come through here (FR-A2: one pipeline, no second door).

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::activity::record::Source;
use crate::intent::{NO_CALL_TOOL, Operation};
use crate::json::tape::{self, Fault};
use crate::output::Member;
use crate::proxy::call::{self, Caller, Given};
use crate::proxy::reply::{Refusal, RefusalKind, Running};
use crate::proxy::retrieve::RETRIEVE_TOOLS;
use crate::proxy::{Worker, builtin};
use crate::wire::jsonrpc::{self, Code, Message, Request};

/// Protocol revisions served with `initialize`, newest first.
pub const VERSIONS: [&str; 2] = ["2025-11-25", "2025-06-18"];

/// Deepest nesting of a request: what serde_json follows, less the envelope.
const MAX_REQUEST_DEPTH: usize = 120;

/// Who a message came from.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The session's id, empty outside of one.
    pub session_id: Arc<str>,
    /// The name the client gave itself, empty if it gave none.
    pub client_name: Arc<str>,
}

/// What a message leads to.
#[derive(Debug)]
pub enum Reaction {
    /// Taken note of; there is no answer to it.
    Noted,
    /// A whole response.
    Answer(Bytes),
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
    /// The whole response.
    pub answer: Bytes,
}

/// A request that was read, and what makes it doubtful.
#[derive(Debug)]
pub struct Received {
    /// The request.
    pub request: Request,
    /// Two parsers could read it differently: it is refused, a call on record.
    doubt: Option<String>,
}

/// Reads a client's message. Strict where two parsers could differ: it is exactly one JSON
/// value, and no key stands twice in any object. `None` for a response: we ask clients nothing
/// yet, so it answers nothing.
///
/// # Errors
///
/// The whole error response to send.
pub fn read(worker: &Worker, body: &Bytes) -> Result<Option<Received>, Bytes> {
    let (doubt, refusal) = match strict(worker, body) {
        Ok(()) => (None, None),
        Err(fault @ Fault::DuplicateKey { .. }) => {
            let text = format!("Invalid params: the request {fault}");
            (Some(text.clone()), Some((Code::InvalidParams, text)))
        }
        Err(fault) => {
            let text = format!("Parse error: the request {fault}");
            return Err(jsonrpc::error(None, Code::Parse, &text));
        }
    };
    match Message::parse(body) {
        Ok(Message::Request(request)) => Ok(Some(Received { request, doubt })),
        Ok(Message::Response(_)) => Ok(None),
        Err(unreadable) => {
            let (code, text) = refusal.unwrap_or((unreadable.code(), unreadable.to_string()));
            Err(jsonrpc::error(None, code, &text))
        }
    }
}

/// The same strictness for a body that is no JSON-RPC message.
///
/// # Errors
///
/// What is wrong with it, in one line.
pub fn check(worker: &Worker, body: &[u8]) -> Result<(), String> {
    strict(worker, body).map_err(|fault| format!("Invalid request body: it {fault}"))
}

fn strict(worker: &Worker, body: &[u8]) -> Result<(), Fault> {
    tape::check_unique(body, MAX_REQUEST_DEPTH, worker.scratch.borrow_mut().tape())
}

/// Decides what a request leads to; a call only starts when its reply is polled.
#[must_use]
pub fn dispatch(worker: &Rc<Worker>, peer: &Peer, received: Received) -> Reaction {
    let Received { request, doubt } = received;
    let Some(id) = request.id else { return Reaction::Noted };
    if let Some(text) = doubt {
        if &*request.method != "tools/call" {
            return error(&id, Code::InvalidParams, &text);
        }
        return refuse(worker, peer, id, "", text);
    }
    match &*request.method {
        "ping" => Reaction::Answer(jsonrpc::response(&id, b"{}")),
        "initialize" => initialize(&id, request.params.as_ref()),
        "tools/list" => {
            let tools =
                builtin::tools_list(worker.proxy.intent.operation_type, worker.proxy.tools_limit);
            Reaction::Answer(jsonrpc::response(&id, tools.as_bytes()))
        }
        "tools/call" => call_tool(worker, peer, id, request.params.as_ref()),
        method => error(&id, Code::MethodNotFound, &format!("Method not found: {}", shown(method))),
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct InitializeParams {
    protocol_version: String,
    #[serde(default)]
    client_info: ClientInfo,
}

#[derive(Default, Deserialize)]
struct ClientInfo {
    #[serde(default)]
    name: String,
}

fn initialize(id: &Bytes, params: Option<&Bytes>) -> Reaction {
    let params: InitializeParams = match serde_json::from_slice(params.map_or(b"{}", |raw| raw)) {
        Ok(params) => params,
        Err(problem) => {
            return error(id, Code::InvalidParams, &format!("Invalid params: {problem}"));
        }
    };
    // A revision we do not serve is answered with the newest we do (MCP 2025-11-25 §Lifecycle).
    let [newest, ..] = VERSIONS;
    let version =
        VERSIONS.into_iter().find(|known| **known == params.protocol_version).unwrap_or(newest);
    let result = serde_json::json!({
        "protocolVersion": version,
        "capabilities": {"tools": {"listChanged": false}},
        "serverInfo": {"name": "mcpproxy", "version": env!("CARGO_PKG_VERSION")},
        "instructions": builtin::USAGE_INSTRUCTIONS,
    });
    Reaction::Initialize(Initialize {
        version,
        client_name: params.client_info.name,
        answer: jsonrpc::response(id, result.to_string().as_bytes()),
    })
}

#[derive(Deserialize)]
struct CallParams<'a> {
    #[serde(borrow)]
    name: std::borrow::Cow<'a, str>,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
}

fn call_tool(worker: &Rc<Worker>, peer: &Peer, id: Bytes, params: Option<&Bytes>) -> Reaction {
    const EMPTY: Bytes = Bytes::from_static(b"{}");
    let params = params.cloned().unwrap_or(EMPTY);
    let read: CallParams<'_> = match serde_json::from_slice(&params) {
        Ok(read) => read,
        Err(problem) => {
            return refuse(worker, peer, id, "", format!("Invalid params: {problem}"));
        }
    };
    let arguments = read.arguments.map_or(EMPTY, |raw| params.slice_ref(raw.get().as_bytes()));
    let name = &*read.name;
    let (ours, caller) = (Rc::clone(worker), caller(peer, &id));
    let running = match (name, Operation::of_tool(name)) {
        (_, Some(variant)) => {
            let given = Given { arguments, intent: None };
            Running::new(|reply| call::call(ours, caller, variant, given, reply))
        }
        (RETRIEVE_TOOLS, None) => {
            Running::new(|reply| call::retrieve_tools(ours, caller, arguments, reply))
        }
        ("call_tool", None) => return refuse(worker, peer, id, name, NO_CALL_TOOL.to_owned()),
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
fn refuse(worker: &Rc<Worker>, peer: &Peer, id: Bytes, tool: &str, text: String) -> Reaction {
    let (worker, caller) = (Rc::clone(worker), caller(peer, &id));
    let tool = shown(tool).into();
    let refusal = Refusal { kind: RefusalKind::Unreadable, text };
    let running = Running::new(|reply| call::unreadable(worker, caller, tool, refusal, reply));
    Reaction::Call { id, running }
}

fn caller(peer: &Peer, id: &[u8]) -> Caller {
    Caller {
        source: Source::Mcp,
        session_id: Arc::clone(&peer.session_id),
        client_name: Arc::clone(&peer.client_name),
        request_id: String::from_utf8_lossy(id).trim_matches('"').into(),
    }
}

fn error(id: &[u8], code: Code, text: &str) -> Reaction {
    Reaction::Answer(jsonrpc::error(Some(id), code, text))
}

/// A client's word inside one of our messages: cut, so that it cannot be used to grow them.
#[must_use]
pub fn shown(word: &str) -> String {
    const MAX_SHOWN_CHARS: usize = 128;
    word.chars().take(MAX_SHOWN_CHARS).collect()
}

/// What stands before a reply's value in the envelope.
#[must_use]
pub fn head(id: &[u8], member: Member) -> Bytes {
    match member {
        Member::Result => jsonrpc::result_head(id),
        Member::Error => jsonrpc::error_head(id),
    }
}

/// The response to a call that has no answer of an upstream: unreadable parameters are a JSON-RPC
/// error, everything else a tool result that the agent reads and corrects itself by (CONTRACTS
/// §Errors).
#[must_use]
pub fn refused(id: &[u8], refusal: &Refusal) -> Bytes {
    match refusal.kind {
        RefusalKind::Unreadable => jsonrpc::error(Some(id), Code::InvalidParams, &refusal.text),
        RefusalKind::Intent
        | RefusalKind::Gate
        | RefusalKind::Unknown
        | RefusalKind::Upstream
        | RefusalKind::Unavailable => jsonrpc::response(id, &error_result(&refusal.text)),
    }
}

/// A tool result that reports a failure: `isError: true`, one text block.
#[must_use]
pub fn error_result(text: &str) -> Bytes {
    let result = serde_json::json!({"content": [{"type": "text", "text": text}], "isError": true});
    Bytes::from(result.to_string())
}
