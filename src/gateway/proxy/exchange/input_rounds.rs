//! Input rounds: a modern server asks a legacy client for input (PRO-37).
//!
//! A modern server asks through its result (`input_required`; MCP 2026-07-28 §Multi Round-Trip Requests), which a
//! legacy client cannot interpret. Instead, the client is sent requests of its own revision within its call, and the
//! request to the server is repeated with the answers and the server's state, verbatim. Rounds, questions, bytes and
//! time are bounded, and a fault names the side that caused it.
//!
//! ```text
//! server ── input_required ─▶ read ─▶ lacking ─▶ Refused (-32021)
//!                              └────▶ answered ─▶ requests to the client ─▶ its answers ─▶ repeated ─▶ server
//! ```
//!
//! [`Exchange`](crate::proxy::exchange) runs the rounds. When the call ends, [`Relay`] voids its open questions.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mcpproxy_json::members::{member, members, string};
use mcpproxy_json::tape;
use mcpproxy_policy::sealed_state::MAX_SERVER_STATE_BYTES;
use mcpproxy_policy::{Access, Permit};
use mcpproxy_protocol::mcp::capabilities::{ClientCapabilities, ServerRequest};
use mcpproxy_protocol::mcp::jsonrpc::Code;
use mcpproxy_protocol::mcp::revisions::{ProtocolFamily, Revision};
use mcpproxy_protocol::mcp::shapes;
use mcpproxy_protocol::mcp::shapes::{Left, MemberRefused};
use mcpproxy_protocol::wire::splice::Splice;
use mcpproxy_schema::output::{Inspector, ResultTypePlace};
use mcpproxy_upstream::{CallExtras, RepeatableCall};
use serde_json::Value;
use serde_json::value::RawValue;
use thiserror::Error;
use tokio::sync::mpsc;

use crate::proxy::client::{
    Client, DroppedMembers, InputAnswer, InputQuestion, MAX_ASKED, Question,
};
use crate::proxy::recorded::question::QuestionRecord;
use crate::proxy::relay::{ASKED_LIMIT, Relay, elicitation_id};
use crate::proxy::render::shown;
use crate::proxy::reply::{Piece, Reply};
use crate::proxy::worker::Worker;

/// Maximum number of rounds of one request, as in the SDKs of clients.
pub(crate) const MAX_ROUNDS: u32 = 10;
/// Maximum number of questions of one round.
pub(crate) const MAX_QUESTIONS: usize = 16;
/// Maximum size of a result that asks for input, in bytes. A longer one without a `resultType` before this position
/// is not held back.
const MAX_QUESTION_BYTES: usize = 1024 * 1024;
/// Maximum size of the answers of one round, in bytes.
const MAX_ANSWERS_BYTES: usize = 4 * 1024 * 1024;
/// Maximum nesting of a result that asks for input: serde_json's limit minus the envelope.
const MAX_QUESTION_DEPTH: usize = 120;
/// Maximum length of a compared `resultType` as written, in bytes: each character may be escaped.
const MAX_TYPE_BYTES: usize = 6 * 16;

/// Reason why a request is not repeated with the client's input. The text follows server and tool in a message.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum InputFault {
    #[error("the server asked its client for input more than {MAX_ROUNDS} times for one request")]
    TooManyRounds,
    #[error("the server asked its client more than {MAX_QUESTIONS} questions at once")]
    TooManyQuestions,
    #[error("the server's input request exceeds {MAX_QUESTION_BYTES} bytes")]
    QuestionTooLong,
    #[error("the server sent a requestState of more than {MAX_SERVER_STATE_BYTES} bytes")]
    StateTooLong,
    #[error("the server asked for input with a result that cannot be parsed unambiguously")]
    Ambiguous,
    #[error(
        "the server asked for input without a question: its result has neither inputRequests nor requestState"
    )]
    NoQuestion,
    #[error("the server asked for input with inputRequests that is not an object of requests")]
    NoRequests,
    #[error(
        "the server asked its client for something other than elicitation/create (form, url), \
         sampling/createMessage and roots/list"
    )]
    UnknownRequest,
    #[error("the server asked its client with params of {0} that are invalid")]
    InvalidRequest(&'static str),
    #[error("the client cannot be asked by the server: {MAX_ASKED} questions to it are open")]
    ClientBusy,
    #[error(
        "the client did not answer the server's questions within {} minutes",
        ASKED_LIMIT.as_secs() / 60
    )]
    Unanswered,
    #[error("{0}")]
    NotRecorded(String),
    #[error("the client went away before it answered the server's questions")]
    ClientGone,
    #[error("the client answered the server's {method} with error {code}: {message}")]
    ClientError { method: &'static str, code: String, message: String },
    #[error("the client answered the server's {0} with a result that is not an object")]
    NoResult(&'static str),
    #[error("the client answered the server's questions with more than {MAX_ANSWERS_BYTES} bytes")]
    AnswersTooLong,
}

/// Repetition of a request with its client's input.
pub(crate) struct InputRounds {
    call: Box<RepeatableCall>,
    /// Number of rounds so far.
    count: u32,
    /// Whether the arriving result asks for input.
    is_asked: bool,
}

impl InputRounds {
    /// Whether a modern server may answer the request by asking. The answering connection is not known before the
    /// answer arrives.
    pub(crate) fn may_be_asked(client: &Client, access: &Access) -> bool {
        client.family == ProtocolFamily::Legacy && access.may_require_input()
    }

    /// State for a call that a modern server answers.
    pub(crate) fn of(call: Box<RepeatableCall>) -> Self {
        Self { call, count: 0, is_asked: false }
    }

    /// Whether the result may ask; `waiting` is the part that has arrived so far.
    pub(crate) fn may_ask(
        &mut self,
        inspector: &Inspector,
        waiting: &Splice,
    ) -> Result<bool, InputFault> {
        let is_long = waiting.len() > MAX_QUESTION_BYTES;
        if !self.is_asked {
            match inspector.result_type() {
                None => return Ok(!is_long),
                Some(ResultTypePlace::AfterContent) => return Ok(false),
                Some(ResultTypePlace::Within(span)) if span.end > MAX_QUESTION_BYTES as u64 => {
                    return Ok(false);
                }
                Some(ResultTypePlace::Within(span)) => {
                    let (start, len) = (span.start as usize, span.len() as usize);
                    self.is_asked = is_type(waiting, (start, len), "input_required");
                }
            }
        }
        match (self.is_asked, is_long) {
            (true, true) => Err(InputFault::QuestionTooLong),
            (is_asked, _) => Ok(is_asked),
        }
    }

    /// Whether the result asks for input.
    pub(crate) fn is_asked(&self) -> bool {
        self.is_asked
    }

    pub(crate) fn begin(&mut self) -> Result<(), InputFault> {
        if self.count >= MAX_ROUNDS {
            return Err(InputFault::TooManyRounds);
        }
        self.count += 1;
        self.is_asked = false;
        Ok(())
    }

    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// The request with these members added, raw JSON joined by commas.
    pub(crate) fn repeated(&self, members: Bytes, permit: &Permit) -> (Bytes, CallExtras) {
        let RepeatableCall { body, extras } = &*self.call;
        let extras = extras.clone();
        match permit.access() {
            Access::Tool(_) => (body.clone(), CallExtras { members, ..extras }),
            _ => (with_members(body, &members), extras),
        }
    }
}

/// Whether the value at this location (start and length) is this string, in any spelling.
pub(crate) fn is_type(waiting: &Splice, (start, len): (usize, usize), expected: &str) -> bool {
    let mut value = [0; MAX_TYPE_BYTES];
    let Some(value) = value.get_mut(..len) else { return false };
    let (mut before, mut filled) = (start, 0);
    for part in waiting.slices() {
        let skipped = before.min(part.len());
        before -= skipped;
        let part = part.get(skipped..).unwrap_or_default();
        let free = value.get_mut(filled..).unwrap_or_default();
        let fits = part.len().min(free.len());
        if let (Some(to), Some(from)) = (free.get_mut(..fits), part.get(..fits)) {
            to.copy_from_slice(from);
        }
        filled += fits;
    }
    let value = std::str::from_utf8(value).ok().and_then(string);
    value.as_deref() == Some(expected)
}

/// The object with these members before its own.
fn with_members(object: &Bytes, members: &[u8]) -> Bytes {
    let Some(rest) = object.strip_prefix(b"{") else { return object.clone() };
    let comma: &[u8] = if rest.trim_ascii_start().starts_with(b"}") { b"" } else { b"," };
    [b"{", members, comma, rest].concat().into()
}

/// Result that asks for input.
#[derive(Debug)]
pub(crate) struct InputRequired<'a> {
    requests: Vec<InputRequest<'a>>,
    /// Raw `requestState`.
    state: Option<&'a str>,
}

#[derive(Debug)]
struct InputRequest<'a> {
    /// Encoded as a JSON string.
    key: String,
    request: ServerRequest,
    params: Option<&'a str>,
}

/// Parses a result that asks for input.
pub(crate) fn read<'a>(
    worker: &Worker,
    question: &'a [u8],
) -> Result<InputRequired<'a>, InputFault> {
    let mut scratch = worker.scratch.borrow_mut();
    tape::check_unique(question, MAX_QUESTION_DEPTH, scratch.tape())
        .map_err(|_| InputFault::Ambiguous)?;
    let text = std::str::from_utf8(question).map_err(|_| InputFault::Ambiguous)?;
    InputRequired::of(text)
}

impl<'a> InputRequired<'a> {
    /// Parses a result, which is valid JSON without duplicate keys.
    fn of(result: &'a str) -> Result<Self, InputFault> {
        let own = |name| member(result, name).filter(|value| *value != "null");
        let state = own("requestState");
        if state.is_some_and(|state| state.len() > MAX_SERVER_STATE_BYTES) {
            return Err(InputFault::StateTooLong);
        }
        let mut requests = Vec::new();
        if let Some(all) = own("inputRequests") {
            for request in members(all).map_err(|_| InputFault::NoRequests)? {
                let (key, value) = request.map_err(|_| InputFault::NoRequests)?;
                if requests.len() >= MAX_QUESTIONS {
                    return Err(InputFault::TooManyQuestions);
                }
                requests.push(InputRequest::of(&key, value)?);
            }
        }
        if requests.is_empty() && state.is_none() {
            return Err(InputFault::NoQuestion);
        }
        Ok(Self { requests, state })
    }

    /// Capabilities that the requests need beyond the `granted` ones.
    pub(crate) fn lacking(&self, granted: ClientCapabilities) -> ClientCapabilities {
        let lacking = self.requests.iter().map(|it| it.request).filter(|it| !granted.grant(*it));
        lacking.fold(ClientCapabilities::default(), ClientCapabilities::with)
    }

    /// Number of requests.
    pub(crate) fn count(&self) -> usize {
        self.requests.len()
    }

    /// Sends the requests to the client and waits for its answers, at most `limit`. `records` has one entry per
    /// request. Returns the members of the repeated request, raw JSON joined by commas.
    pub(crate) async fn answered(
        &self,
        relay: &mut Relay,
        reply: &Reply,
        (log_filter, server): (&DroppedMembers, &Arc<str>),
        (records, limit): (Vec<QuestionRecord>, Duration),
    ) -> Result<Bytes, InputFault> {
        if self.requests.is_empty() {
            return Ok(self.members(&[]));
        }
        let (sender, answers) = mpsc::channel(self.requests.len());
        let mut ids = Vec::new();
        let messages = match self.register(relay, &sender, (log_filter, server), &mut ids) {
            Ok(messages) => messages,
            Err(fault) => {
                // No request was sent, so there is nothing for the client to cancel.
                ids.into_iter().for_each(|id| drop(relay.take_back(id)));
                return Err(fault);
            }
        };
        let asked = ids.iter().zip(&messages).zip(&self.requests).zip(records);
        for (((id, message), request), mut record) in asked {
            record.asks(request.request.method(), message);
            relay.keep_record(*id, record);
        }
        // The remaining senders belong to the questions; the channel closes when these are void.
        drop(sender);
        let asked = async {
            for message in messages {
                reply.send(Piece::Request(message)).await;
            }
            self.collect(answers).await
        };
        let answers = tokio::time::timeout(limit, asked).await;
        match answers.unwrap_or(Err(InputFault::Unanswered)) {
            Ok(answers) => Ok(self.members(&answers)),
            Err(fault) => {
                for piece in ids.into_iter().filter_map(|id| relay.take_back(id)) {
                    reply.send(piece).await;
                }
                Err(fault)
            }
        }
    }

    /// Registers the questions under `ids` and returns their messages. None is sent if one is invalid.
    fn register(
        &self,
        relay: &mut Relay,
        sender: &mpsc::Sender<InputAnswer>,
        (log_filter, server): (&DroppedMembers, &Arc<str>),
        ids: &mut Vec<u64>,
    ) -> Result<Vec<Bytes>, InputFault> {
        let mut messages = Vec::with_capacity(self.requests.len());
        for (index, request) in self.requests.iter().enumerate() {
            let method = request.request.method();
            let answers = sender.clone();
            let question = InputQuestion { method: method.into(), index, answers };
            let id = relay.ask(Question::Input(question)).ok_or(InputFault::ClientBusy)?;
            ids.push(id);
            let mut left = Left::default();
            let Some(client) = relay.legacy_client() else { return Err(InputFault::ClientGone) };
            let message = request.message(id, client.revision(), &mut left);
            let message = message.map_err(|refused| {
                log_filter.refused(server, method, &refused);
                InputFault::InvalidRequest(method)
            })?;
            log_filter.of_server(server, method, &left);
            if request.request == ServerRequest::ElicitUrl
                && let Some(elicitation) = request.params.and_then(elicitation_id)
            {
                client.elicited(server, &elicitation);
            }
            messages.push(message);
        }
        Ok(messages)
    }

    /// Raw results of all requests, in their order.
    async fn collect(
        &self,
        mut answers: mpsc::Receiver<InputAnswer>,
    ) -> Result<Vec<Bytes>, InputFault> {
        let mut results = vec![Bytes::new(); self.requests.len()];
        let mut left = MAX_ANSWERS_BYTES;
        for _ in &self.requests {
            let InputAnswer { index, outcome } =
                answers.recv().await.ok_or(InputFault::ClientGone)?;
            left = left.checked_sub(outcome.len()).ok_or(InputFault::AnswersTooLong)?;
            if let (Some(place), Some(asked)) = (results.get_mut(index), self.requests.get(index)) {
                *place = asked.result(&outcome)?;
            }
        }
        Ok(results)
    }

    /// Members of the repeated request: the answers, if any, and the server's state as written.
    fn members(&self, answers: &[Bytes]) -> Bytes {
        let mut out = Vec::new();
        for (request, answer) in self.requests.iter().zip(answers) {
            let before: &[u8] = if out.is_empty() { b"\"inputResponses\":{" } else { b"," };
            for part in [before, request.key.as_bytes(), b":", answer] {
                out.extend_from_slice(part);
            }
        }
        if !out.is_empty() {
            out.push(b'}');
        }
        if let Some(state) = self.state {
            let comma: &[u8] = if out.is_empty() { b"" } else { b"," };
            for part in [comma, b"\"requestState\":", state.as_bytes()] {
                out.extend_from_slice(part);
            }
        }
        out.into()
    }
}

impl<'a> InputRequest<'a> {
    fn of(key: &str, request: &'a str) -> Result<Self, InputFault> {
        let method = member(request, "method").and_then(string);
        let params = member(request, "params");
        let raw = params.and_then(|params| serde_json::from_str::<&RawValue>(params).ok());
        let request = match method.and_then(|method| ServerRequest::of(&method, raw)) {
            Some(ServerRequest::ElicitOther) | None => return Err(InputFault::UnknownRequest),
            Some(request) => request,
        };
        Ok(Self { key: Value::from(key).to_string(), request, params })
    }

    /// Request to a client of `revision` under this id, reduced to the members of that revision.
    fn message(
        &self,
        id: u64,
        revision: Revision,
        left: &mut Left,
    ) -> Result<Bytes, MemberRefused> {
        let method = self.request.method();
        let params = match (self.params, self.request) {
            (None, ServerRequest::Roots) => String::new(),
            (params, _) => {
                let shape = shapes::params(method).unwrap_or(shapes::Shape::Object(&[]));
                // The server could not fetch the result of a client's task.
                let edits = [("task", None)];
                let params = params.unwrap_or_default();
                let mut params = shapes::sift(shape, revision, params, &edits, left)?;
                if self.request == ServerRequest::ElicitUrl
                    && shapes::knows(method, revision, ELICITATION_ID)
                    && member(&params, ELICITATION_ID).is_none()
                {
                    // The member is required in this revision and was removed later. The object has at least the
                    // member `mode`.
                    params.truncate(params.len().saturating_sub(1));
                    params.push_str(&format!(r#","{ELICITATION_ID}":"mcpproxy-{id}"}}"#));
                }
                format!(r#","params":{params}"#)
            }
        };
        Ok(format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}"{params}}}"#).into())
    }

    /// Raw result in a client's answer.
    fn result(&self, outcome: &Bytes) -> Result<Bytes, InputFault> {
        let method = self.request.method();
        if let Some(result) = outcome.strip_prefix(b"\"result\":") {
            return match result.starts_with(b"{") {
                true => Ok(outcome.slice_ref(result)),
                false => Err(InputFault::NoResult(method)),
            };
        }
        let error = outcome.strip_prefix(b"\"error\":").unwrap_or_default();
        let error = std::str::from_utf8(error).unwrap_or_default();
        let code = shown(member(error, "code").unwrap_or("null"));
        let message = member(error, "message").and_then(string).unwrap_or_default();
        Err(InputFault::ClientError { method, code, message: shown(&message) })
    }
}

/// Member of an elicitation with a URL; in 2025-11-25 only.
const ELICITATION_ID: &str = "elicitationId";

/// Error text for a client that `lacks` capabilities for the server's questions: either it has not declared them, or
/// it has, but it cannot be sent requests during its call.
pub(crate) fn refusal(lacks: ClientCapabilities, declared: ClientCapabilities) -> String {
    let needs = [
        (lacks.elicitation_forms, declared.elicitation_forms, "elicitation.form"),
        (lacks.elicitation_urls, declared.elicitation_urls, "elicitation.url"),
        (lacks.sampling, declared.sampling, "sampling"),
        (lacks.roots, declared.roots, "roots"),
    ];
    let needed = needs.iter().filter(|(lacks, ..)| *lacks);
    let undeclared: Vec<&str> =
        needed.clone().filter(|(_, declared, _)| !declared).map(|(.., name)| *name).collect();
    if undeclared.is_empty() {
        let names: Vec<&str> = needed.map(|(.., name)| *name).collect();
        return format!(
            "the server asks the client for input ({}), and the client accepts no event stream over which it could be asked",
            names.join(", ")
        );
    }
    format!(
        "the server asks the client for input that the client has not declared it can give: {}",
        undeclared.join(", ")
    )
}

/// JSON-RPC error with this text for a client without these capabilities (MCP 2026-07-28 §Error Codes).
pub(crate) fn missing(lacks: ClientCapabilities, text: &str) -> Bytes {
    let code = Code::MissingCapability as i32;
    let message = Value::from(text);
    let mut out =
        format!(r#"{{"code":{code},"message":{message},"data":{{"requiredCapabilities":"#)
            .into_bytes();
    lacks.push(&mut out);
    out.extend_from_slice(b"}}");
    out.into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::proxy::client::{ActiveCall, Channel, Client};
    use crate::proxy::reply::Running;

    const FORM: &str = r#"{"method":"elicitation/create","params":{"mode":"form","message":"m","requestedSchema":{}}}"#;
    const URL: &str = r#"{"method":"elicitation/create","params":{"mode":"url","message":"m","url":"https://a.example/"}}"#;

    fn asking(requests: &str) -> String {
        format!(r#"{{"resultType":"input_required","inputRequests":{{{requests}}}}}"#)
    }

    #[test]
    fn pro_37_invalid_input_requests_are_rejected_with_the_fault() {
        let many = |count: usize| {
            let all: Vec<String> = (0..count).map(|n| format!("\"{n}\":{FORM}")).collect();
            asking(&all.join(","))
        };
        let state = |len: usize| format!(r#"{{"requestState":"{}"}}"#, "x".repeat(len - 2));
        for (result, expected) in [
            (many(MAX_QUESTIONS), None),
            (many(MAX_QUESTIONS + 1), Some(InputFault::TooManyQuestions)),
            (many(1000), Some(InputFault::TooManyQuestions)),
            (state(MAX_SERVER_STATE_BYTES), None),
            (state(MAX_SERVER_STATE_BYTES + 1), Some(InputFault::StateTooLong)),
            ("{}".to_owned(), Some(InputFault::NoQuestion)),
            (asking(""), Some(InputFault::NoQuestion)),
            (
                r#"{"requestState":null,"inputRequests":null}"#.to_owned(),
                Some(InputFault::NoQuestion),
            ),
            (r#"{"inputRequests":[]}"#.to_owned(), Some(InputFault::NoRequests)),
            (asking(r#""k":7"#), Some(InputFault::UnknownRequest)),
            (asking(r#""k":{"method":"ping"}"#), Some(InputFault::UnknownRequest)),
            (
                asking(r#""k":{"method":"elicitation/create","params":{"mode":"x"}}"#),
                Some(InputFault::UnknownRequest),
            ),
        ] {
            let read = InputRequired::of(&result);
            assert_eq!(read.err(), expected, "{}", &result[..result.len().min(200)]);
        }
    }

    #[test]
    fn pro_37_request_has_the_form_of_the_clients_revision() {
        let sampling = r#"{"method":"sampling/createMessage","params":{"messages":[],"maxTokens":1.0,"tools":[],"task":{"ttl":1}}}"#;
        for (request, revision, expected) in [
            (FORM, Revision::June2025, json!({"message": "m", "requestedSchema": {}})),
            (
                FORM,
                Revision::November2025,
                json!({"mode": "form", "message": "m", "requestedSchema": {}}),
            ),
            (
                URL,
                Revision::November2025,
                json!({"mode": "url", "message": "m", "url": "https://a.example/", "elicitationId": "mcpproxy-7"}),
            ),
            (sampling, Revision::June2025, json!({"messages": [], "maxTokens": 1.0})),
            (
                sampling,
                Revision::November2025,
                json!({"messages": [], "maxTokens": 1.0, "tools": []}),
            ),
            (r#"{"method":"roots/list"}"#, Revision::June2025, Value::Null),
            (r#"{"method":"roots/list","params":{"x":1}}"#, Revision::June2025, json!({})),
        ] {
            let asked = InputRequest::of("k", request).unwrap();
            let message = asked.message(7, revision, &mut Left::default()).unwrap();
            let message: Value = serde_json::from_slice(&message).unwrap();
            assert_eq!(
                (&message["id"], &message["method"]),
                (&json!(7), &json!(asked.request.method()))
            );
            assert_eq!(message["params"], expected, "{request}");
        }
        let variant = r#"{"method":"elicitation/create","params":{"Message":"m"}}"#;
        let asked = InputRequest::of("k", variant).unwrap();
        assert!(asked.message(7, Revision::June2025, &mut Left::default()).is_err());
        let none = InputRequest::of("k", r#"{"method":"sampling/createMessage"}"#).unwrap();
        assert!(none.message(7, Revision::June2025, &mut Left::default()).is_err());
    }

    #[test]
    fn pro_37_answers_and_state_are_returned_as_written() {
        let state = r#""opaque \u00e9\/""#;
        let result = format!(
            r#"{{"requestState": {state} ,"inputRequests":{{"a\"\u0062":{FORM},"c":{URL}}}}}"#
        );
        let asked = InputRequired::of(&result).unwrap();
        let answers = [r#"{"action":"accept","content":{"n":1.0}}"#, r#"{"action":"decline"}"#];
        let members = asked.members(&answers.map(|it| Bytes::from_static(it.as_bytes())));
        let [first, second] = answers;
        assert_eq!(
            members,
            format!(r#""inputResponses":{{"a\"b":{first},"c":{second}}},"requestState":{state}"#)
        );
        for (body, expected) in [
            ("{}", r#"{"requestState":1}"#),
            (r#"{ "name":"x"}"#, r#"{"requestState":1, "name":"x"}"#),
        ] {
            assert_eq!(with_members(&body.into(), br#""requestState":1"#), expected);
        }
        let only_state = InputRequired::of(r#"{"requestState":{"a":[1.0]}}"#).unwrap();
        assert_eq!(only_state.members(&[]), r#""requestState":{"a":[1.0]}"#);
    }

    #[tokio::test]
    async fn pro_37_answers_are_bounded_and_client_faults_are_distinguished() {
        let result = asking(&format!("\"a\":{FORM},\"b\":{FORM}"));
        let asked = InputRequired::of(&result).unwrap();
        let long = format!("\"result\":{{\"x\":\"{}\"}}", "y".repeat(MAX_ANSWERS_BYTES / 2));
        let accept = "\"result\":{\"action\":\"accept\"}";
        let method = "elicitation/create";
        let failed = |code: &str, message: &str| {
            let (code, message) = (code.to_owned(), message.to_owned());
            Err(InputFault::ClientError { method, code, message })
        };
        for (answers, expected) in [
            (&[(1, accept), (0, "\"result\":{}")][..], Ok(["{}", "{\"action\":\"accept\"}"])),
            (&[(0, accept)], Err(InputFault::ClientGone)),
            (&[(0, &*long), (1, &*long)], Err(InputFault::AnswersTooLong)),
            (&[(0, "\"result\":7")], Err(InputFault::NoResult(method))),
            (&[(0, r#""error":{"code":-1,"message":"no \u0062"}"#)], failed("-1", "no b")),
            (&[(0, r#""error":7"#)], failed("null", "")),
        ] {
            let (sender, receiver) = mpsc::channel(2);
            for (index, outcome) in answers {
                let outcome = Bytes::copy_from_slice(outcome.as_bytes());
                sender.try_send(InputAnswer { index: *index, outcome }).unwrap();
            }
            drop(sender);
            let results = asked.collect(receiver).await;
            let expected = expected.map(|all| all.map(|it| Bytes::from_static(it.as_bytes())));
            assert_eq!(results, expected.map(Vec::from));
        }
    }

    #[tokio::test]
    async fn pro_37_unanswered_questions_are_withdrawn_after_the_time_limit() {
        let legacy = ProtocolFamily::Legacy;
        let all = ClientCapabilities::ALL;
        let client = Arc::new(Client::new("s".into(), "", "2025-11-25", legacy, all));
        let asked = Arc::clone(&client);
        let mut running = Running::new(|reply| async move {
            let result = asking(&format!("\"a\":{FORM},\"b\":{FORM}"));
            let required = InputRequired::of(&result).unwrap();
            let mut relay = Relay::new(Some((ActiveCall::of(asked), Channel::Stream)), None);
            let from = (&DroppedMembers::default(), &"s".into());
            let answered =
                required.answered(&mut relay, &reply, from, (Vec::new(), Duration::ZERO)).await;
            assert_eq!(answered, Err(InputFault::Unanswered));
            Ok(())
        });
        let mut canceled = Vec::new();
        while let Some(piece) = running.next().await {
            if let Piece::Notification(message) = piece.unwrap() {
                let message: Value = serde_json::from_slice(&message).unwrap();
                assert_eq!(message["method"], "notifications/cancelled");
                canceled.push(message["params"]["requestId"].as_u64().unwrap());
            }
        }
        assert_eq!(canceled, [0, 1]);
        assert!(canceled.into_iter().all(|id| client.answered(id).is_none()));
    }

    #[test]
    fn pro_37_input_request_is_recognized_by_result_type_in_any_spelling_and_split() {
        for (value, expected) in [
            (r#""input_required""#, true),
            (r#""input\u005frequired""#, true),
            (r#""complete""#, false),
            ("7", false),
        ] {
            let text = format!(r#"{{"a":1,"resultType":{value}}}"#);
            let start = text.len() - 1 - value.len();
            for size in 1..=text.len() {
                let mut waiting = Splice::new();
                for piece in text.as_bytes().chunks(size) {
                    waiting.push(Bytes::copy_from_slice(piece));
                }
                let found = is_type(&waiting, (start, value.len()), "input_required");
                assert_eq!(found, expected, "{value}");
            }
        }
        let long = format!("\"{}\"", "x".repeat(MAX_TYPE_BYTES));
        let whole = Splice::from(Bytes::from(long.clone()));
        assert!(!is_type(&whole, (0, long.len()), "input_required"));
    }

    #[test]
    fn pro_37_error_lists_the_missing_capabilities() {
        let forms = ClientCapabilities::default().with(ServerRequest::ElicitForm);
        let both = forms.with(ServerRequest::Sampling);
        let text = refusal(both, forms);
        assert!(text.ends_with("has not declared it can give: sampling"), "{text}");
        let text = refusal(both, both);
        assert!(text.contains("(elicitation.form, sampling)") && text.contains("event stream"));
        let error: Value = serde_json::from_slice(&missing(both, "a \"text\"")).unwrap();
        let required = json!({"elicitation": {"form": {}}, "sampling": {}});
        let data = json!({"requiredCapabilities": required});
        assert_eq!(error, json!({"code": -32021, "message": "a \"text\"", "data": data}));
    }
}
