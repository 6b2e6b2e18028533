//! Relay that forwards an upstream's messages, sent before its answer, to the client of the call.
//!
//! A client receives messages of its own calls only: progress under its token, log messages at its level, and
//! requests that it declared support for, under ids of its own. Everything else is dropped, including unknown
//! members; other values are the server's bytes, except for a replaced token or id.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mcpproxy_json::members::{elements, member, string};
use mcpproxy_protocol::mcp::capabilities::{ClientCapabilities, ServerRequest};
use mcpproxy_protocol::mcp::jsonrpc::{self, Code, Envelope};
use mcpproxy_protocol::mcp::meta::SERVER_KEY;
use mcpproxy_protocol::mcp::revisions::{ProtocolFamily, Revision};
use mcpproxy_protocol::mcp::shapes::{Edit, Left, MemberRefused};
use mcpproxy_protocol::mcp::{extensions, shapes};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::client::{ActiveCall, Channel, Client, DroppedMembers, Level, Question, ServerQuestion};
use super::recorded::question::QuestionRecord;
use super::render;
use super::reply::Piece;

/// Maximum size of the id of a server's request, in bytes.
const MAX_SERVER_ID_BYTES: usize = 1024;

/// Time limit for a server that asked its client: a person may have to answer.
pub(super) const ASKED_LIMIT: Duration = Duration::from_secs(600);

/// Relay for the messages of one call.
pub(super) struct Relay {
    /// Counts as in flight until the answer is complete.
    client: Option<(ActiveCall, Channel)>,
    /// The client's raw progress token.
    token: Option<Bytes>,
    /// Open questions to the client.
    asked: Vec<u64>,
    /// Whether a message was sent, which made the reply a stream.
    streams: bool,
    /// Whether the call can be held while a modern client answers the server (PRO-42).
    holds: bool,
    /// Whether extension messages are forwarded to the client.
    extensions: bool,
}

/// Request of a legacy server for the modern client of a call.
#[derive(Debug)]
pub(super) struct HeldQuestion {
    pub(super) method: &'static str,
    /// The server's raw id of the request.
    pub(super) raw_id: Bytes,
    /// The request as a modern server would state it.
    pub(super) request: String,
}

/// Action for a message.
#[derive(Debug)]
pub(super) enum Step {
    Forward(Piece),
    Ask(AskedQuestion),
    /// Send this `error` or `result` member to the upstream, under the raw id.
    Respond(Bytes, Bytes),
    /// Hold the call and ask its client through the response.
    Hold(HeldQuestion),
    Drop,
}

/// Server's question, registered at its client.
#[derive(Debug)]
pub(super) struct AskedQuestion {
    pub(super) id: u64,
    pub(super) method: Box<str>,
    /// Request that is sent to the client.
    pub(super) message: Bytes,
    /// The server's raw id of its request.
    pub(super) raw_id: Bytes,
}

/// Server that answers the call, with the data needed to relay its messages.
pub(super) struct AnsweringServer<'a> {
    pub(super) server: &'a Arc<str>,
    /// Generation of its connection.
    pub(super) generation: u64,
    /// Log-once filter.
    pub(super) log_filter: &'a DroppedMembers,
    /// The server's own id of the related task.
    pub(super) related_to: Option<&'a str>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Params<'a> {
    #[serde(borrow)]
    progress_token: Option<&'a RawValue>,
    #[serde(borrow)]
    request_id: Option<&'a RawValue>,
    level: Option<Level>,
}

impl Relay {
    /// Relay to `client`, if messages can be sent to it; `token` is that of its call.
    pub(super) fn new(client: Option<(ActiveCall, Channel)>, token: Option<Bytes>) -> Self {
        Self { client, token, asked: Vec::new(), streams: false, holds: false, extensions: false }
    }

    /// Sets whether the call can be held.
    pub(super) fn holding(mut self, holds: bool) -> Self {
        self.holds = holds;
        self
    }

    /// Sets whether extension messages are forwarded.
    pub(super) fn taking_extensions(mut self, extensions: bool) -> Self {
        self.extensions = extensions;
        self
    }

    /// Takes a message that arrived before the answer to the request `id` of `asked`.
    pub(super) fn take(&mut self, message: &Bytes, id: u64, asked: &AnsweringServer<'_>) -> Step {
        let step = self.step(message, id, asked);
        self.streams |= matches!(step, Step::Forward(_) | Step::Ask(_));
        step
    }

    /// Records that the call's client used a server.
    pub(super) fn note_use(&self, now: Instant) {
        if let Some((client, _)) = &self.client {
            client.note_use(now);
        }
    }

    fn step(&mut self, message: &Bytes, id: u64, asked: &AnsweringServer<'_>) -> Step {
        let Ok(envelope) = serde_json::from_slice::<Envelope<'_>>(message) else {
            return Step::Drop;
        };
        let Some(method) = &envelope.method else { return Step::Drop };
        if self.extensions {
            match envelope.id {
                None if extensions::is_notification(method) => {
                    let message = verbatim(method, envelope.params, None);
                    return to_client(self.channel().map(|_| message));
                }
                Some(raw) if extensions::is_method(method) => {
                    return self.request(message, (method, envelope.params), raw, asked);
                }
                Some(_) | None => {}
            }
        }
        let params = envelope.params.map(|raw| serde_json::from_str::<Params<'_>>(raw.get()));
        let Ok(params) = params.transpose() else { return Step::Drop };
        match (&**method, envelope.id) {
            ("ping", Some(raw)) => respond(message, raw, Bytes::from_static(b"\"result\":{}")),
            (method, Some(raw)) => self.request(message, (method, envelope.params), raw, asked),
            (ELICITATION_COMPLETE, None) => match self.channel() {
                Some(client)
                    if envelope
                        .params
                        .and_then(|params| elicitation_id(params.get()))
                        .is_some_and(|id| client.completes(asked.server, &id)) =>
                {
                    to_client(notification(message, client.revision(), &[], asked))
                }
                // The message may concern an earlier call of another client.
                Some(_) | None => Step::Drop,
            },
            ("notifications/progress", None) => {
                let Some(found) = params.and_then(|params| params.progress_token) else {
                    return Step::Drop;
                };
                match (&self.token, self.channel()) {
                    // Any other token may belong to another call or be invented.
                    (Some(ours), Some(client))
                        if jsonrpc::numeric_id(found.get().as_bytes()) == Some(id) =>
                    {
                        let ours = std::str::from_utf8(ours).unwrap_or("null");
                        let edits = [("progressToken", Some(ours))];
                        to_client(notification(message, client.revision(), &edits, asked))
                    }
                    (Some(_), _) | (None, _) => Step::Drop,
                }
            }
            ("notifications/message", None) => {
                let level = params.and_then(|params| params.level).unwrap_or(Level::Info);
                match &self.client {
                    Some((client, channel)) if client.wants(level) => {
                        match log_message(message, client, asked.server, asked.log_filter) {
                            Some(message) => self.log(message, client, *channel),
                            None => Step::Drop,
                        }
                    }
                    Some(_) | None => Step::Drop,
                }
            }
            ("notifications/cancelled", None) => {
                match params.and_then(|params| params.request_id) {
                    Some(raw) => self.withdraw(message, raw, asked),
                    None => Step::Drop,
                }
            }
            (_, None) => Step::Drop,
        }
    }

    /// Handles a log message. It does not turn a plain response into a stream for a client that did not ask for log
    /// messages, since some clients read large answers from JSON only.
    fn log(&self, message: Bytes, client: &Client, channel: Channel) -> Step {
        match channel {
            Channel::Stream if self.streams || client.chose_level() => to_client(Some(message)),
            Channel::Stream | Channel::Answer => {
                client.send_aside(message);
                Step::Drop
            }
        }
    }

    pub(super) fn family(&self) -> ProtocolFamily {
        self.client.as_ref().map_or(ProtocolFamily::Legacy, |(client, _)| client.family)
    }

    /// Whether the answer is for an MCP client of a legacy revision.
    pub(super) fn is_for_legacy_client(&self) -> bool {
        self.legacy_client().is_some()
    }

    /// The answer's MCP client, if modern and able to open URLs.
    pub(super) fn modern_url_client(&self) -> Option<&Client> {
        let client = self.client.as_ref().map(|(client, _)| &***client);
        client.filter(|client| {
            client.family == ProtocolFamily::Modern && client.client_capabilities.elicitation_urls
        })
    }

    /// The answer's MCP client, if legacy.
    pub(super) fn legacy_client(&self) -> Option<&Client> {
        let client = self.client.as_ref().map(|(client, _)| &***client);
        client.filter(|client| client.family == ProtocolFamily::Legacy)
    }

    /// Requests that can be sent to the client during its call.
    pub(super) fn client_capabilities(&self) -> ClientCapabilities {
        match &self.client {
            Some((client, Channel::Stream)) if client.family == ProtocolFamily::Legacy => {
                client.client_capabilities
            }
            Some(_) | None => ClientCapabilities::default(),
        }
    }

    /// Registers a question of the proxy to a legacy client, void once the call ends; `None` if too many are open.
    pub(super) fn ask(&mut self, question: Question) -> Option<u64> {
        let id = self.legacy_client()?.ask(question)?;
        self.asked.push(id);
        self.streams = true;
        Some(id)
    }

    /// Stores the record of an open question.
    pub(super) fn keep_record(&self, id: u64, record: QuestionRecord) {
        if let Some(client) = self.legacy_client() {
            client.keep_record(id, record);
        }
    }

    /// Voids a question of the proxy; returns the notification for the client if it was open.
    pub(super) fn take_back(&self, id: u64) -> Option<Piece> {
        self.legacy_client()?.answered(id)?;
        let canceled = serde_json::json!({
            "jsonrpc": "2.0", "method": "notifications/cancelled",
            "params": {"requestId": id, "reason": "the call has ended"},
        });
        Some(Piece::Notification(canceled.to_string().into()))
    }

    /// The client of the call, active as long as the returned value exists.
    pub(super) fn active_client(&self) -> Option<ActiveCall> {
        self.client.as_ref().map(|(client, _)| ActiveCall::of(Arc::clone(client)))
    }

    /// Piece that turns the reply to a legacy client into an event stream, if it accepts one and has none yet.
    pub(super) fn opens_stream(&mut self) -> Option<Piece> {
        let is_legacy = self.channel()?.family == ProtocolFamily::Legacy;
        (is_legacy && !std::mem::replace(&mut self.streams, true)).then_some(Piece::Alive)
    }

    /// The client, if it can receive messages now.
    fn channel(&self) -> Option<&Arc<Client>> {
        match &self.client {
            Some((client, Channel::Stream)) => Some(client),
            Some((_, Channel::Answer)) | None => None,
        }
    }

    fn request(
        &mut self,
        message: &Bytes,
        (method, params): (&str, Option<&RawValue>),
        raw: &RawValue,
        asked: &AnsweringServer<'_>,
    ) -> Step {
        let refuse_with = |code: Code, text: &str| {
            let error = serde_json::json!({"code": code as i32, "message": text});
            respond(message, raw, Bytes::from(format!("\"error\":{error}")))
        };
        let refuse = |text: &str| refuse_with(Code::MethodNotFound, text);
        let Some((client, channel)) = &self.client else {
            return refuse(&format!("{method}: this call was not made by an MCP client"));
        };
        let request = ServerRequest::of(method, params);
        match (client.family, channel) {
            (ProtocolFamily::Modern, _) if self.holds && request.is_some() => {}
            (ProtocolFamily::Modern, _) => {
                return refuse(&format!(
                    "{method}: the client uses revision {}, in which servers send no requests",
                    client.version
                ));
            }
            (ProtocolFamily::Legacy, Channel::Answer) => {
                return refuse(&format!("{method}: the client accepts no event stream"));
            }
            (ProtocolFamily::Legacy, Channel::Stream) => {}
        }
        let is_extension = self.extensions && extensions::is_method(method);
        if request.is_none() && !is_extension {
            return refuse(&format!("{method}: the client did not declare that it can"));
        }
        if let Some(request) = request
            && !client.client_capabilities.grant(request)
        {
            let (code, why) = client.client_capabilities.refusal(request);
            return refuse_with(code, &format!("{method}: {why}"));
        }
        if raw.get().len() > MAX_SERVER_ID_BYTES {
            let text = format!("id is longer than {MAX_SERVER_ID_BYTES} bytes");
            return refuse_with(Code::InvalidRequest, &text);
        }
        // The id is copied, since it is retained until the client answers: a slice would pin the message.
        let raw_id = Bytes::copy_from_slice(raw.get().as_bytes());
        if let (ProtocolFamily::Modern, Some(request)) = (client.family, request) {
            let mut left = Left::default();
            return match modern_request(request, params, client.revision(), &mut left) {
                Ok(stated) => {
                    asked.log_filter.of_server(asked.server, method, &left);
                    let method = request.method();
                    Step::Hold(HeldQuestion { method, raw_id, request: stated })
                }
                Err(refused) => {
                    asked.log_filter.refused(asked.server, method, &refused);
                    refuse_with(Code::InvalidParams, &format!("Invalid params: {refused}"))
                }
            };
        }
        let (server, generation) = (Arc::clone(asked.server), asked.generation);
        let own_id = raw_id.clone();
        let task = asked.related_to.map(Box::from);
        let question = ServerQuestion { server, method: method.into(), generation, raw_id, task };
        let Some(id) = client.ask(Question::Server(question)) else {
            return refuse(&format!("{method}: the client has too many requests open"));
        };
        let Some(request) = request else {
            self.asked.push(id);
            let message = verbatim(method, params, Some(id));
            return Step::Ask(AskedQuestion { id, method: method.into(), message, raw_id: own_id });
        };
        let mut left = Left::default();
        match shapes::message(message, client.revision(), &[], Some(&id.to_string()), &mut left) {
            Ok(sent) => {
                asked.log_filter.of_server(asked.server, method, &left);
                self.asked.push(id);
                if request == ServerRequest::ElicitUrl
                    && let Some(params) = params
                    && let Some(elicitation) = elicitation_id(params.get())
                {
                    client.elicited(asked.server, &elicitation);
                }
                let (method, raw_id) = (method.into(), own_id);
                Step::Ask(AskedQuestion { id, method, message: sent, raw_id })
            }
            Err(refused) => {
                client.answered(id);
                asked.log_filter.refused(asked.server, method, &refused);
                refuse_with(Code::InvalidParams, &format!("Invalid params: {refused}"))
            }
        }
    }

    /// Cancels a question that the upstream has withdrawn.
    fn withdraw(&mut self, message: &Bytes, raw: &RawValue, asked: &AnsweringServer<'_>) -> Step {
        let Some((client, _)) = &self.client else { return Step::Drop };
        let raw_id = raw.get().as_bytes();
        let is_it = |id: &u64| client.is_asked(*id, asked.server, asked.generation, raw_id);
        let Some(at) = self.asked.iter().position(is_it) else { return Step::Drop };
        let id = self.asked.swap_remove(at);
        if let Some(record) = client.take_record(id) {
            record.withdrawn();
        }
        client.answered(id);
        let edits = [("requestId", Some(&*id.to_string()))];
        to_client(notification(message, client.revision(), &edits, asked))
    }
}

/// States a legacy server's request as one of `inputRequests` (MCP 2026-07-28 §Multi Round-Trip Requests), reduced
/// to the members defined there.
fn modern_request(
    request: ServerRequest,
    params: Option<&RawValue>,
    revision: Revision,
    left: &mut Left,
) -> Result<String, MemberRefused> {
    let method = request.method();
    let shape = shapes::params(method).unwrap_or(shapes::Shape::Object(&[]));
    let params = params.map_or("{}", RawValue::get);
    let mut params = shapes::sift(shape, revision, params, &[], left)?;
    if request == ServerRequest::ElicitForm && member(&params, "mode").is_none() {
        let comma = if params == "{}" { "" } else { "," };
        params = params.replacen('{', &format!(r#"{{"mode":"form"{comma}"#), 1);
    }
    Ok(format!(r#"{{"method":"{method}","params":{params}}}"#))
}

impl Drop for Relay {
    /// Ends the call and voids its questions.
    fn drop(&mut self) {
        let Some((client, _)) = &self.client else { return };
        for id in self.asked.drain(..) {
            client.answered(id);
        }
    }
}

/// Extension message with the server's params, byte for byte; a request if `id` is given.
fn verbatim(method: &str, params: Option<&RawValue>, id: Option<u64>) -> Bytes {
    let id = id.map(|id| format!(r#""id":{id},"#)).unwrap_or_default();
    let method = serde_json::Value::from(method);
    let params = params.map(|raw| format!(r#","params":{}"#, raw.get())).unwrap_or_default();
    format!(r#"{{"jsonrpc":"2.0",{id}"method":{method}{params}}}"#).into()
}

fn to_client(message: Option<Bytes>) -> Step {
    message.map_or(Step::Drop, |message| Step::Forward(Piece::Notification(message)))
}

fn respond(message: &Bytes, raw: &RawValue, payload: Bytes) -> Step {
    Step::Respond(message.slice_ref(raw.get().as_bytes()), payload)
}

/// Log message or completion for `client`; `None` if ambiguous to parsers.
pub(super) fn log_message(
    message: &Bytes,
    client: &Client,
    server: &Arc<str>,
    log_filter: &DroppedMembers,
) -> Option<Bytes> {
    notification(
        message,
        client.revision(),
        &[],
        &AnsweringServer { server, generation: 0, log_filter, related_to: None },
    )
}

/// Notification that a URL interaction is complete (MCP 2025-11-25 §Completion Notifications).
pub(super) const ELICITATION_COMPLETE: &str = "notifications/elicitation/complete";

/// `elicitationId` in the params of an elicitation or of its completion.
pub(super) fn elicitation_id(params: &str) -> Option<Cow<'_, str>> {
    member(params, "elicitationId").and_then(string)
}

/// Registers the elicitations that a call's error asks its client to complete (-32042), so that it is notified of
/// their completion.
pub(super) fn note_elicitations(client: &Client, server: &Arc<str>, error: &str) {
    let asked = member(error, "data").and_then(|data| member(data, "elicitations"));
    let asked = asked.and_then(|asked| elements(asked).ok());
    for elicitation in asked.into_iter().flatten().map_while(Result::ok) {
        if let Some(id) = elicitation_id(elicitation) {
            client.elicited(server, &id);
        }
    }
}

/// Maximum number of URLs per error that a client is asked to open.
pub(super) const MAX_URLS: usize = 16;

/// Result that asks a modern client to open the URLs of error -32042, which its revision lacks (MCP 2026-07-28 §Multi
/// Round-Trip Requests). It has no request state: the repeated request is a new call. `None` if there are no URLs, if
/// there are too many, or if one of them is not the params of a URL elicitation.
pub(super) fn input_for_urls(error: &str, client: &Client) -> Option<String> {
    let asked = member(error, "data").and_then(|data| member(data, "elicitations"))?;
    let mut requests = String::new();
    for (at, elicitation) in elements(asked).ok()?.enumerate() {
        let params: &RawValue = serde_json::from_str(elicitation.ok()?).ok()?;
        let request = ServerRequest::of("elicitation/create", Some(params))?;
        if request != ServerRequest::ElicitUrl || at >= MAX_URLS {
            return None;
        }
        let left = &mut Left::default();
        let stated = modern_request(request, Some(params), client.revision(), left).ok()?;
        let comma = if at == 0 { "" } else { "," };
        // Infallible: writing to a String.
        let _ = write!(requests, r#"{comma}"url_{}":{stated}"#, at + 1);
    }
    let server = render::server_info();
    (!requests.is_empty()).then(|| {
        format!(
            r#"{{"resultType":"input_required","inputRequests":{{{requests}}},"_meta":{{"{SERVER_KEY}":{server}}}}}"#
        )
    })
}

/// Notification with `edits` to its params; `None` if ambiguous to parsers.
fn notification(
    message: &Bytes,
    revision: Revision,
    edits: &[Edit<'_>],
    asked: &AnsweringServer<'_>,
) -> Option<Bytes> {
    let mut left = Left::default();
    let sent = shapes::message(message, revision, edits, None, &mut left);
    let method = serde_json::from_slice::<Envelope<'_>>(message).ok()?.method?;
    match sent {
        Ok(sent) => {
            asked.log_filter.of_server(asked.server, &method, &left);
            Some(sent)
        }
        Err(refused) => {
            asked.log_filter.refused(asked.server, &method, &refused);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use mcpproxy_protocol::mcp::capabilities::ClientCapabilities;

    use super::super::client::{ActiveCall, Channel, MAX_ELICITATION_ID_BYTES, MAX_ELICITED};
    use super::{Relay, *};

    const ALL: ClientCapabilities = ClientCapabilities::ALL;

    fn client(family: ProtocolFamily, client_capabilities: ClientCapabilities) -> Arc<Client> {
        Arc::new(Client::new("s".into(), "ide", "2025-11-25", family, client_capabilities))
    }

    fn relay(client: &Arc<Client>, channel: Channel, token: Option<&'static str>) -> Relay {
        let token = token.map(|token| Bytes::from_static(token.as_bytes()));
        Relay::new(Some((ActiveCall::of(Arc::clone(client)), channel)), token)
    }

    fn take(relay: &mut Relay, message: &Bytes) -> Step {
        let asked = AnsweringServer {
            server: &"srv".into(),
            generation: 1,
            log_filter: &DroppedMembers::default(),
            related_to: None,
        };
        relay.take(message, 7, &asked)
    }

    /// Message that the client receives before the answer to request 7.
    fn received(relay: &mut Relay, message: &'static str) -> Option<String> {
        let message = Bytes::from_static(message.as_bytes());
        match take(relay, &message) {
            Step::Forward(Piece::Notification(message))
            | Step::Ask(AskedQuestion { message, .. }) => {
                Some(String::from_utf8(message.to_vec()).unwrap())
            }
            Step::Forward(piece) => panic!("{piece:?}"),
            Step::Respond(..) | Step::Hold(_) | Step::Drop => None,
        }
    }

    /// Response to the upstream: id and outcome.
    fn refused(relay: &mut Relay, message: &'static str) -> Option<(Bytes, String)> {
        match take(relay, &Bytes::from_static(message.as_bytes())) {
            Step::Respond(id, outcome) => Some((id, String::from_utf8(outcome.to_vec()).unwrap())),
            Step::Forward(_) | Step::Ask(_) | Step::Hold(_) | Step::Drop => None,
        }
    }

    #[test]
    fn progress_uses_the_clients_token_and_its_own_call() {
        let client = client(ProtocolFamily::Legacy, ALL);
        let mut ours = relay(&client, Channel::Stream, Some("\"t\\u0031\""));
        let progress = r#"{"method":"notifications/progress","params":{"progress":1.0, "progressToken" : 7 }}"#;
        let expected =
            progress.replace(r#", "progressToken" : 7 "#, r#","progressToken":"t\u0031""#);
        assert_eq!(received(&mut ours, progress), Some(expected));
        for spelling in [
            r#"{"method":"notifications/progress","params":{"progressToken":"7"}}"#,
            r#"{"method":"notifications/progress","params":{"progressToken":7.0}}"#,
        ] {
            let expected =
                r#"{"method":"notifications/progress","params":{"progressToken":"t\u0031"}}"#;
            assert_eq!(received(&mut ours, spelling).as_deref(), Some(expected));
        }
        for foreign in [
            r#"{"method":"notifications/progress","params":{"progressToken":8}}"#,
            r#"{"method":"notifications/progress","params":{"progressToken":"x"}}"#,
            r#"{"method":"notifications/progress","params":{}}"#,
            r#"{"method":"notifications/tools/list_changed"}"#,
            "not JSON",
        ] {
            assert_eq!(received(&mut ours, foreign), None, "{foreign}");
        }
        assert_eq!(received(&mut relay(&client, Channel::Stream, None), progress), None);
        assert_eq!(received(&mut relay(&client, Channel::Answer, Some("1")), progress), None);
        assert_eq!(received(&mut Relay::new(None, None), progress), None);
    }

    #[test]
    fn server_request_gets_a_client_id_and_ends_with_its_call() {
        let client = client(ProtocolFamily::Legacy, ALL);
        let mut ours = relay(&client, Channel::Stream, None);
        let ask = r#"{"id": "a\"b" ,"method":"roots/list"}"#;
        assert_eq!(received(&mut ours, ask).unwrap(), r#"{"id":0,"method":"roots/list"}"#);
        assert_eq!(received(&mut ours, ask).unwrap(), r#"{"id":1,"method":"roots/list"}"#);
        let Some(Question::Server(question)) = client.answered(0) else { panic!("not asked") };
        assert_eq!((&*question.server, question.generation), ("srv", 1));
        assert_eq!(question.raw_id, r#""a\"b""#);
        drop(ours);
        assert_eq!(client.answered(1), None, "the question is void");
    }

    #[test]
    fn pro_41_extension_messages_are_forwarded_verbatim_to_clients_that_accept_them() {
        let client = client(ProtocolFamily::Legacy, ClientCapabilities::default());
        let mut ours = relay(&client, Channel::Stream, None).taking_extensions(true);
        let changed = r#"{"jsonrpc":"2.0","method":"notifications/skills/changed","params":{"a" : [1.0e5, {"b":1}]}}"#;
        assert_eq!(received(&mut ours, changed).as_deref(), Some(changed));
        let asks = r#"{"x":1,"id":"q","method":"skills/pick","params":{"from" : []}}"#;
        let asked = r#"{"jsonrpc":"2.0","id":0,"method":"skills/pick","params":{"from" : []}}"#;
        assert_eq!(received(&mut ours, asks).as_deref(), Some(asked));
        assert!(matches!(client.answered(0), Some(Question::Server(_))));
        for kept in [
            r#"{"method":"notifications/tasks/status","params":{}}"#,
            r#"{"method":"notifications/Progress","params":{"progressToken":7}}"#,
        ] {
            assert_eq!(received(&mut ours, kept), None, "{kept}");
        }
        assert!(refused(&mut ours, r#"{"id":1,"method":"Roots/list"}"#).is_some());
        let mut others = relay(&client, Channel::Stream, None);
        assert_eq!(received(&mut others, changed), None);
        assert!(refused(&mut others, asks).is_some());
        let mut silent = relay(&client, Channel::Answer, None).taking_extensions(true);
        assert_eq!(received(&mut silent, changed), None);
    }

    #[test]
    fn message_is_reduced_to_known_members_and_refused_if_ambiguous() {
        let client = client(ProtocolFamily::Legacy, ALL);
        let mut ours = relay(&client, Channel::Stream, Some("1"));
        client.set_level(Level::Debug);
        for (message, expected) in [
            (
                r#"{"x":1,"result":{},"jsonrpc":"2.0","id":9,"method":"elicitation/create","params":{"message":"\u0041","y":1,"requestedSchema":{ "Z":1}}}"#,
                r#"{"jsonrpc":"2.0","id":0,"method":"elicitation/create","params":{"message":"\u0041","requestedSchema":{ "Z":1}}}"#,
            ),
            (
                r#"{"method":"notifications/message","params":{"level":"info","data":{ "Level":1},"x":1},"id2":1}"#,
                r#"{"method":"notifications/message","params":{"level":"info","data":{ "Level":1}}}"#,
            ),
            (
                r#"{"method":"notifications/progress","params":{"progressToken":7,"progress":1.0,"x":1}}"#,
                r#"{"method":"notifications/progress","params":{"progressToken":1,"progress":1.0}}"#,
            ),
        ] {
            assert_eq!(received(&mut ours, message).as_deref(), Some(expected));
        }
        for message in [
            r#"{"method":"notifications/message","params":{"level":"info","Level":"debug"}}"#,
            r#"{"method":"notifications/progress","params":{"progressToken":7,"ProgressToken":8}}"#,
            r#"{"Method":"x","method":"notifications/progress","params":{"progressToken":7}}"#,
            r#"{"method":"notifications/message","params":{"level":"info","data":1,"data":2}}"#,
        ] {
            assert_eq!(received(&mut ours, message), None, "{message}");
        }
        for (message, why) in [
            (r#"{"id":5,"method":"roots/list","METHOD":"x"}"#, "'METHOD' differs only by case"),
            (
                r#"{"id":5,"method":"elicitation/create","params":{"message":1,"me\u017f\u017fage":2}}"#,
                "differs only by case from 'message'",
            ),
        ] {
            let (id, outcome) = refused(&mut ours, message).unwrap();
            assert!(id == "5" && outcome.contains("-32602") && outcome.contains(why), "{outcome}");
        }
        let Some(Question::Server(asked)) = client.answered(0) else { panic!("not asked") };
        assert_eq!(asked.method, "elicitation/create".into());
        assert_eq!(client.answered(1), None, "no open question");
    }

    #[test]
    fn withdrawn_request_is_canceled_under_the_clients_id() {
        let client = client(ProtocolFamily::Legacy, ALL);
        let mut ours = relay(&client, Channel::Stream, None);
        received(&mut ours, r#"{"id":5,"method":"elicitation/create"}"#).unwrap();
        let cancel = r#"{"method":"notifications/cancelled","params":{"requestId":5}}"#;
        let expected = cancel.replace(":5", ":0");
        assert_eq!(received(&mut ours, cancel), Some(expected));
        assert_eq!(received(&mut ours, cancel), None, "nothing to cancel");
        assert_eq!(client.answered(0), None);
    }

    #[test]
    fn pro_42_request_for_a_modern_client_is_stated_in_its_revision() {
        let modern = |capabilities| {
            let (version, family) = ("2026-07-28", ProtocolFamily::Modern);
            Arc::new(Client::new("".into(), "ide", version, family, capabilities))
        };
        let able = modern(ALL);
        let mut ours = relay(&able, Channel::Answer, None).holding(true);
        for (message, expected) in [
            (
                r#"{"jsonrpc":"2.0","id":"a\u0062","method":"elicitation/create","params":{"message":"\u0041","x":1,"requestedSchema":{ "Z":1.0}}}"#,
                r#"{"method":"elicitation/create","params":{"mode":"form","message":"\u0041","requestedSchema":{ "Z":1.0}}}"#,
            ),
            (
                r#"{"id":"a\u0062","method":"elicitation/create","params":{"mode":"url","url":"x:y","elicitationId":"e","message":"m"}}"#,
                r#"{"method":"elicitation/create","params":{"mode":"url","url":"x:y","message":"m"}}"#,
            ),
            (r#"{"id":"a\u0062","method":"roots/list"}"#, r#"{"method":"roots/list","params":{}}"#),
        ] {
            let step = take(&mut ours, &Bytes::from_static(message.as_bytes()));
            let Step::Hold(held) = step else { panic!("{message}: {step:?}") };
            assert_eq!((&*held.request, &*held.raw_id), (expected, &br#""a\u0062""#[..]));
        }
        let unable = modern(ClientCapabilities { elicitation_urls: false, roots: false, ..ALL });
        let mut theirs = relay(&unable, Channel::Answer, None).holding(true);
        let (_, outcome) = refused(&mut theirs, r#"{"id":5,"method":"roots/list"}"#).unwrap();
        assert!(outcome.contains("-32601"), "{outcome}");
        let (_, outcome) = refused(&mut theirs, ASKS_FOR_URL).unwrap();
        assert!(outcome.contains("-32602"), "{outcome}");
        let variant =
            r#"{"id":5,"method":"elicitation/create","params":{"message":"a","Message":"b"}}"#;
        let (_, outcome) = refused(&mut ours, variant).unwrap();
        assert!(outcome.contains("-32602") && outcome.contains("differs only by case"));
    }

    #[test]
    fn unsupported_server_request_is_answered_with_the_reason() {
        let ask = r#"{"id":5,"method":"sampling/createMessage"}"#;
        let legacy = client(ProtocolFamily::Legacy, ALL);
        for (mut relay, why) in [
            (Relay::new(None, None), "not made by an MCP client"),
            (
                relay(&client(ProtocolFamily::Modern, ALL), Channel::Stream, None),
                "servers send no requests",
            ),
            (relay(&legacy, Channel::Answer, None), "accepts no event stream"),
            (
                relay(
                    &client(ProtocolFamily::Legacy, ClientCapabilities::default()),
                    Channel::Stream,
                    None,
                ),
                "not declare",
            ),
        ] {
            let (id, outcome) = refused(&mut relay, ask).unwrap();
            assert_eq!(id, "5");
            assert!(outcome.starts_with("\"error\":{") && outcome.contains(why), "{outcome}");
        }
        let mut ours = relay(&legacy, Channel::Stream, None);
        assert!(refused(&mut ours, r#"{"id":5,"method":"tools/call"}"#).is_some());
        let pong = refused(&mut ours, r#"{"id":5,"method":"ping"}"#).unwrap();
        assert_eq!(pong.1, r#""result":{}"#);
    }

    const ASKS_FOR_URL: &str = r#"{"id":5,"method":"elicitation/create","params":{"mode":"url","url":"x:y","elicitationId":"\u0065","message":"m"}}"#;
    const COMPLETED: &str =
        r#"{"method":"notifications/elicitation/complete","params":{"elicitationId":"e"}}"#;

    #[test]
    fn pro_32_url_is_shown_only_by_a_client_that_declared_it() {
        let forms = ClientCapabilities { elicitation_urls: false, ..ALL };
        let able = client(ProtocolFamily::Legacy, ALL);
        let unable = client(ProtocolFamily::Legacy, forms);
        let shown = received(&mut relay(&able, Channel::Stream, None), ASKS_FOR_URL).unwrap();
        assert!(shown.contains(r#""mode":"url","url":"x:y""#), "{shown}");
        let mut relay = relay(&unable, Channel::Stream, None);
        let (_, outcome) = refused(&mut relay, ASKS_FOR_URL).unwrap();
        assert!(outcome.contains("-32602") && outcome.contains("open a URL"), "{outcome}");
        assert_eq!(unable.answered(0), None, "it was not asked");
    }

    #[test]
    fn pro_36_completion_is_sent_once_to_the_client_that_was_asked() {
        let (asked, other) =
            (client(ProtocolFamily::Legacy, ALL), client(ProtocolFamily::Legacy, ALL));
        let mut ours = relay(&asked, Channel::Stream, None);
        assert_eq!(received(&mut ours, COMPLETED), None, "nothing was asked");
        received(&mut ours, ASKS_FOR_URL).unwrap();
        let mut theirs = relay(&other, Channel::Stream, None);
        assert_eq!(received(&mut theirs, COMPLETED), None);
        assert_eq!(received(&mut ours, COMPLETED).as_deref(), Some(COMPLETED));
        assert_eq!(received(&mut ours, COMPLETED), None);
        let error =
            r#"{"code":-32042,"message":"","data":{"elicitations":[7,{"elicitationId":"e"}]}}"#;
        note_elicitations(&other, &"srv".into(), error);
        assert_eq!(received(&mut ours, COMPLETED), None);
        assert_eq!(received(&mut theirs, COMPLETED).as_deref(), Some(COMPLETED));
    }

    #[test]
    fn pro_36_oldest_elicitation_is_forgotten_beyond_the_limit() {
        let client = client(ProtocolFamily::Legacy, ALL);
        let server = Arc::from("srv");
        let long = "x".repeat(MAX_ELICITATION_ID_BYTES + 1);
        client.elicited(&server, &long);
        assert!(!client.completes("srv", &long));
        for id in 0..=MAX_ELICITED {
            client.elicited(&server, &id.to_string());
            client.elicited(&server, &id.to_string());
        }
        assert!(!client.was_elicited("srv", "0") && !client.was_elicited("other", "1"));
        assert!((1..=MAX_ELICITED).all(|id| client.completes("srv", &id.to_string())));
    }

    #[test]
    fn unsolicited_log_messages_do_not_open_a_stream() {
        let info = r#"{"method":"notifications/message","params":{"level":"info","data":1}}"#;
        let progress = r#"{"method":"notifications/progress","params":{"progressToken":7}}"#;
        let client = client(ProtocolFamily::Legacy, ALL);
        let mut ours = relay(&client, Channel::Stream, Some("1"));
        assert_eq!(received(&mut ours, info), None);
        let mut aside = client.listen();
        assert_eq!(received(&mut ours, info), None);
        assert_eq!(aside.try_recv().unwrap(), info);
        assert!(received(&mut ours, progress).is_some());
        assert!(received(&mut ours, info).is_some(), "the reply is a stream already");
        assert!(aside.try_recv().is_err(), "no message is sent twice");
    }

    #[test]
    fn log_messages_respect_the_requested_level() {
        let info = r#"{"method":"notifications/message","params":{"level":"info","data":1}}"#;
        let (old, new) = (client(ProtocolFamily::Legacy, ALL), client(ProtocolFamily::Modern, ALL));
        assert!(received(&mut relay(&new, Channel::Stream, None), info).is_none());
        old.set_level(Level::Info);
        assert!(received(&mut relay(&old, Channel::Stream, None), info).is_some());
        assert!(received(&mut relay(&old, Channel::Answer, None), info).is_none());
        new.set_level(Level::Info);
        assert!(received(&mut relay(&new, Channel::Stream, None), info).is_some());
        old.set_level(Level::Notice);
        assert!(received(&mut relay(&old, Channel::Stream, None), info).is_none());
    }

    #[test]
    fn pro_35_urls_of_an_error_become_requests_for_input() {
        let family = ProtocolFamily::Modern;
        let client = &Client::new("".into(), "ide", "2026-07-28", family, ALL);
        let error = |elicitations: &str| {
            format!(r#"{{"code":-32042,"message":"m","data":{{"elicitations":{elicitations}}}}}"#)
        };
        let url = r#"{"mode":"url","message":"Sign in","url":"https://a.example/?x=1.0","elicitationId":"e"}"#;
        let result = input_for_urls(&error(&format!("[{url}, {url}]")), client).unwrap();
        let result: serde_json::Value = serde_json::from_str(&result).unwrap();
        assert_eq!(result["resultType"], "input_required");
        assert_eq!(result.get("requestState"), None);
        for key in ["url_1", "url_2"] {
            let request = &result["inputRequests"][key];
            assert_eq!(request["method"], "elicitation/create");
            assert_eq!(request["params"]["url"], "https://a.example/?x=1.0");
            assert_eq!(request["params"]["mode"], "url");
        }
        let many = vec![url; MAX_URLS + 1].join(",");
        let forms = r#"{"mode":"form","message":"m","requestedSchema":{}}"#;
        for unusable in [
            "[]",
            "7",
            "null",
            "[7]",
            "[{}]",
            forms,
            &format!("[{url},{forms}]"),
            &format!("[{many}]"),
        ] {
            assert_eq!(input_for_urls(&error(unusable), client), None, "{unusable}");
        }
        assert_eq!(input_for_urls(r#"{"code":-32042,"message":""}"#, client), None);
    }
}
