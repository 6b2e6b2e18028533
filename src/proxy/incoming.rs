//! A client's message as it is read: strictly, where two parsers could differ.
//!
//! Requests go on to [`dispatch`](super::dispatch); answers to what a server asked go back to that server.

use bytes::Bytes;
use serde_json::json;

use super::client::{ApprovalQuestion, Client, Question, ServerQuestion};
use super::worker::Worker;
use super::{input_required, params};
use crate::approvals::{Answerer, ApprovalAnswer, ApprovalVerdict, Door};
use crate::json::members::{members, string};
use crate::json::tape::{self, TapeFault};
use crate::mcp::jsonrpc::{self, Code};
use crate::mcp::message::{Message, Request, Response};
use crate::mcp::shapes::Left;

/// Deepest nesting of a request: what serde_json follows, less the envelope.
const MAX_REQUEST_DEPTH: usize = 120;

/// A request that was read, and what makes it doubtful.
#[derive(Debug)]
pub struct Received {
    /// The request.
    pub request: Request,
    /// Two parsers could read it differently: it is refused, a call on record.
    pub(super) doubt: Option<String>,
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
/// The whole error response to an answer that two readers could read differently. The server that asked
/// gets the same error.
pub async fn respond(worker: &Worker, client: &Client, response: Response) -> Result<(), Bytes> {
    let id = response.id.as_deref().and_then(|raw| std::str::from_utf8(raw).ok()?.parse().ok());
    let Some(question) = id.and_then(|id| client.answered(id)) else {
        tracing::debug!(session = %client.session_id, "an answer to what was not asked");
        return Ok(());
    };
    let ServerQuestion { server, method, generation, raw_id } = match question {
        Question::Server(question) => question,
        Question::Approval(question) => {
            approve(worker, &question, &response);
            return Ok(());
        }
    };
    let Some(upstream) = worker.proxy.upstreams.connected_as(&server, generation) else {
        return Ok(());
    };
    let mut left = Left::default();
    let (outcome, answered) =
        match params::outcome(&method, client.revision(), &response, &mut left) {
            Ok(outcome) => (outcome, Ok(())),
            Err(refused) => {
                let text = format!("Invalid params: the client's answer: {refused}");
                let error = json!({"code": Code::InvalidParams as i32, "message": text});
                let told = jsonrpc::error(None, Code::InvalidParams, &text);
                (format!("\"error\":{error}").into(), Err(told))
            }
        };
    client.warn_of_dropped(&worker.proxy.dropped_members, &method, &left);
    if let Err(lost) = upstream.respond(generation, raw_id, outcome).await {
        tracing::warn!(%server, %lost, "a client's answer did not reach the server that asked");
    }
    answered
}

/// Takes what the client's user said to a call of its own: the first answer counts, by whatever door. A dialogue that
/// was closed without a word, or failed, is no answer: the others may still give one.
fn approve(worker: &Worker, question: &ApprovalQuestion, response: &Response) {
    let ApprovalQuestion { id, principal } = question;
    let Some(verdict) = elicited(&response.outcome) else {
        tracing::debug!(approval = %id, "the client's user has not answered");
        return;
    };
    let by = Answerer::here(principal.clone(), Door::Elicitation);
    if let Err(why) = worker.proxy.approvals.answer(id, ApprovalAnswer { verdict, by, seen: None })
    {
        tracing::debug!(approval = %id, %why, "the client's answer does not count");
    }
}

/// `action` of the result of `elicitation/create`.
fn elicited(outcome: &[u8]) -> Option<ApprovalVerdict> {
    let text = std::str::from_utf8(outcome).ok()?;
    let result = text.strip_prefix("\"result\":")?;
    let mut members = members(result).ok()?.map_while(Result::ok);
    let (_, action) = members.find(|(name, _)| name == "action")?;
    input_required::verdict(&string(action)?)
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
