//! Routing of server messages on streams shared by many calls: a child's pipe and the GET stream.
//!
//! Sans-I/O. [`ResponseMatcher`] parses a message incrementally until it is known whether it responds to one of the proxy's calls, so that
//! large responses are forwarded before they are complete. [`route`] decides about any other complete message. Messages within a call's own
//! HTTP stream are handled elsewhere.
//!
//! A server request (sampling, elicitation, roots), log message or cancellation does not name a call. Invariant: it is sent to a call only
//! if all calls that could have caused it belong to one session, that is to one client on behalf of one principal, since a guess could
//! reveal one client's data to another. Calls count even if their client could not accept the message; otherwise a client without
//! capabilities would make another the only candidate. A call without a session counts as its own session; this includes clients of the
//! stateless revision, since a gateway may multiplex several people. A request without a recipient is refused with the reason. Progress
//! needs a token of the proxy.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::pending;
use crate::request::CallSession;
use mcpproxy_json::members::member;
use mcpproxy_json::scan::{MessageKind, ScanLimits, Scanner};
use mcpproxy_json::span::Span;
use mcpproxy_policy::sealed_task::MAX_TASK_ID_BYTES;
use mcpproxy_protocol::mcp::bounds::MAX_URI_BYTES;
use mcpproxy_protocol::mcp::capabilities::{ClientCapabilities, ServerRequest};
use mcpproxy_protocol::mcp::extensions;
use mcpproxy_protocol::mcp::jsonrpc::{self, Code, Envelope, MAX_NUMERIC_ID_BYTES};
use mcpproxy_protocol::mcp::meta::SUBSCRIPTION_KEY;

/// Piece of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerPart {
    /// Next bytes of the current JSON message, never empty.
    Data(Bytes),
    /// End of the message: one JSON body, one event, one line.
    End,
    /// The event stream ended between two messages, before the response, and is being resumed.
    Interrupted,
}

/// Maximum length of a server request's id, in bytes as written.
const MAX_ID_BYTES: usize = 1024;
/// Maximum size of a message that is delivered to a call, in bytes.
const MAX_DELIVERED_BYTES: usize = 1024 * 1024;
/// Maximum length of a server's method name quoted in an error of the proxy, in characters.
const MAX_QUOTED_CHARS: usize = 100;
/// First message of a subscription.
pub(crate) const ACKNOWLEDGED: &str = "notifications/subscriptions/acknowledged";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangedList {
    Tools,
    Resources,
    Prompts,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// Response or other message for the lifecycle.
    Lifecycle,
    /// Log message and its recipient, if any.
    Log(Option<u64>),
    /// Completion of an elicitation, and the call that may deliver it: the call that would receive a log message.
    Completed(Option<u64>),
    /// Message for this call. If it has an id, it is a request that needs a response.
    Call(u64, Option<Bytes>),
    /// Message for one of these calls of one session.
    Calls(Box<[u64]>),
    Changed(ChangedList),
    Updated(Box<str>),
    /// Changed status of the task with this server-side id.
    Task(Box<str>),
    /// Acknowledgment of the subscription opened by the request with this id.
    Acknowledged(u64),
    /// Request that the proxy answers itself, with this message.
    Reply(Bytes),
    /// Message without a recipient, with the reason for the log.
    Nobody(&'static str),
}

/// Routes a complete message that is not a response to a call. `calls` lists all calls that the server may be working on for a client.
pub(crate) fn route(message: &[u8], calls: &[CallInFlight]) -> Destination {
    let Ok(envelope) = serde_json::from_slice::<Envelope<'_>>(message) else {
        return Destination::Nobody("a message that cannot be read");
    };
    let route = match (envelope.method.as_deref(), envelope.id) {
        (None, _) => Destination::Lifecycle,
        (Some(method), None) => notification(method, envelope.params, calls),
        (Some(method), Some(id)) => request((method, envelope.params), id.get(), calls),
    };
    let request = match &route {
        Destination::Call(_, request) => request.as_deref(),
        Destination::Log(_)
        | Destination::Completed(_)
        | Destination::Calls(_)
        | Destination::Acknowledged(_) => None,
        Destination::Lifecycle
        | Destination::Changed(_)
        | Destination::Updated(_)
        | Destination::Task(_)
        | Destination::Reply(_)
        | Destination::Nobody(_) => {
            return route;
        }
    };
    if message.len() <= MAX_DELIVERED_BYTES {
        return route;
    }
    let Some(id) = request else {
        return Destination::Nobody("a notification that is too large for a call");
    };
    let text = format!("the request is larger than {MAX_DELIVERED_BYTES} bytes");
    Destination::Reply(jsonrpc::error(Some(id), Code::Internal, &text))
}

fn notification(method: &str, params: Option<&RawValue>, calls: &[CallInFlight]) -> Destination {
    match method {
        "notifications/progress" => match params.and_then(progress_of) {
            Some(id) if calls.iter().any(|call| call.id() == Some(id)) => {
                Destination::Call(id, None)
            }
            Some(_) | None => Destination::Nobody("progress of a call that is not in flight"),
        },
        "notifications/message" => match Recipient::of(calls) {
            Recipient::Call { id, .. } => Destination::Log(Some(id)),
            Recipient::Nobody | Recipient::Ambiguous { .. } => Destination::Log(None),
        },
        "notifications/elicitation/complete" => match Recipient::of(calls) {
            Recipient::Call { id, .. } => Destination::Completed(Some(id)),
            Recipient::Nobody | Recipient::Ambiguous { .. } => Destination::Completed(None),
        },
        // Cancels a server request. The notification is sent to all calls of the session that can receive requests,
        // because each call knows which ones it received.
        "notifications/cancelled" => match Recipient::of(calls) {
            Recipient::Call { .. } => {
                let able = calls
                    .iter()
                    .filter(|call| call.client.capabilities != ClientCapabilities::default());
                Destination::Calls(able.filter_map(CallInFlight::id).collect())
            }
            Recipient::Nobody => Destination::Nobody("a cancellation without a recipient"),
            Recipient::Ambiguous { .. } => {
                Destination::Nobody("a cancellation that could be for several clients")
            }
        },
        "notifications/tools/list_changed" => Destination::Changed(ChangedList::Tools),
        "notifications/resources/list_changed" => Destination::Changed(ChangedList::Resources),
        "notifications/prompts/list_changed" => Destination::Changed(ChangedList::Prompts),
        "notifications/resources/updated" => match params.and_then(uri_of) {
            // Clients cannot subscribe to longer URIs.
            Some(uri) if uri.len() > MAX_URI_BYTES => {
                Destination::Nobody("the change of a resource with a URI that is too long")
            }
            Some(uri) => Destination::Updated(uri),
            None => Destination::Nobody("the change of a resource without a URI"),
        },
        "notifications/tasks" | "notifications/tasks/status" => match params.and_then(task_of) {
            Some(task) if task.len() <= MAX_TASK_ID_BYTES => Destination::Task(task),
            Some(_) | None => Destination::Nobody("the status of a task without a usable id"),
        },
        ACKNOWLEDGED => match params.and_then(subscription_of) {
            Some(id) => Destination::Acknowledged(id),
            None => Destination::Nobody("the acknowledgment of an unknown subscription"),
        },
        _ if extensions::is_notification(method) => match Recipient::of(calls) {
            Recipient::Call { id, extensions: true, .. } => Destination::Call(id, None),
            Recipient::Call { .. } | Recipient::Nobody => {
                Destination::Nobody("a notification of an unknown kind")
            }
            Recipient::Ambiguous { .. } => Destination::Nobody(
                "a notification of an unknown kind that could be for several clients",
            ),
        },
        _ => Destination::Nobody("a notification of an unknown kind"),
    }
}

fn request(
    (method, params): (&str, Option<&RawValue>),
    id: &str,
    calls: &[CallInFlight],
) -> Destination {
    if id.len() > MAX_ID_BYTES {
        return Destination::Nobody("a request whose id is too long");
    }
    if !id.starts_with(|first: char| matches!(first, '"' | '-' | '0'..='9')) {
        return Destination::Nobody("a request whose id is neither a string nor a number");
    }
    let reply =
        |code, text: &str| Destination::Reply(jsonrpc::error(Some(id.as_bytes()), code, text));
    if method == "ping" {
        return Destination::Reply(jsonrpc::response(id.as_bytes(), b"{}"));
    }
    let ambiguous = |calls: usize| {
        let text = format!(
            "{method}: {calls} calls are in flight or were abandoned recently, of more than one \
             client, and the request does not say which one it belongs to"
        );
        reply(Code::Internal, &text)
    };
    let Some(asked) = ServerRequest::of(method, params) else {
        if extensions::is_method(method) && calls.iter().any(|call| call.client.extensions) {
            match Recipient::of(calls) {
                Recipient::Call { id: call, extensions: true, .. } => {
                    return Destination::Call(call, Some(Bytes::copy_from_slice(id.as_bytes())));
                }
                Recipient::Ambiguous { calls } => return ambiguous(calls),
                Recipient::Call { .. } | Recipient::Nobody => {}
            }
        }
        let shown: String = method.chars().take(MAX_QUOTED_CHARS).collect();
        return reply(Code::MethodNotFound, &format!("Method not found: {shown}"));
    };
    match Recipient::of(calls) {
        Recipient::Call { id: call, capabilities, .. } if capabilities.grant(asked) => {
            Destination::Call(call, Some(Bytes::copy_from_slice(id.as_bytes())))
        }
        Recipient::Call { capabilities, .. } => match capabilities.refusal(asked) {
            (Code::MethodNotFound, _) => reply(
                Code::MethodNotFound,
                &format!("{method}: no client of a call in flight supports it"),
            ),
            (code, why) => reply(code, &format!("{method}: {why}")),
        },
        Recipient::Nobody => {
            reply(Code::Internal, &format!("{method}: no client is available to answer it"))
        }
        Recipient::Ambiguous { calls } => ambiguous(calls),
    }
}

/// Error response to a request whose call has a full queue.
pub(crate) fn busy(id: &[u8]) -> Bytes {
    jsonrpc::error(Some(id), Code::Internal, "the client reads its messages too slowly")
}

/// Call that a progress notification belongs to: the token is the proxy's request id.
fn progress_of(params: &RawValue) -> Option<u64> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Params<'a> {
        #[serde(borrow)]
        progress_token: &'a RawValue,
    }
    let token = serde_json::from_str::<Params<'_>>(params.get()).ok()?.progress_token.get();
    jsonrpc::numeric_id(token.as_bytes()).filter(|id| pending::is_ours(*id))
}

/// Request that opened the acknowledged subscription (MCP 2026-07-28 §Subscriptions).
fn subscription_of(params: &RawValue) -> Option<u64> {
    let id = member(member(params.get(), "_meta")?, SUBSCRIPTION_KEY)?;
    jsonrpc::numeric_id(id.as_bytes()).filter(|id| pending::is_ours(*id))
}

fn task_of(params: &RawValue) -> Option<Box<str>> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Params {
        task_id: Box<str>,
    }
    serde_json::from_str::<Params>(params.get()).ok().map(|params| params.task_id)
}

fn uri_of(params: &RawValue) -> Option<Box<str>> {
    #[derive(Deserialize)]
    struct Params {
        uri: Box<str>,
    }
    serde_json::from_str::<Params>(params.get()).ok().map(|params| params.uri)
}

/// Period during which an abandoned call counts as in flight, unless the server responds earlier. Servers receive
/// `notifications/cancelled`, but some continue.
pub(crate) const ABANDONED_COUNTS_FOR: Duration = Duration::from_secs(300);
/// Maximum number of abandoned calls tracked per connection.
const MAX_ABANDONED: usize = 256;

/// Client of a call, as relevant for routing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CallClient {
    /// Session of the call; `None` if the call counts as its own session.
    pub(crate) session: Option<CallSession>,
    /// Capabilities of the client during this call.
    pub(crate) capabilities: ClientCapabilities,
    /// Whether extension messages are forwarded to the client.
    pub(crate) extensions: bool,
}

/// Call on which the server may be working.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallInFlight {
    pub(crate) client: CallClient,
    pub(crate) route: CallRoute,
}

/// Whether a call can be reached outside of its own stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallRoute {
    /// Reachable by its id. Later calls of a connection have a higher `order`.
    Reachable { id: u64, order: u64 },
    /// Not reachable, because only its own stream is read.
    Unreachable,
    /// Abandoned by its client.
    Abandoned,
}

impl CallInFlight {
    /// The call's id, if it is reachable.
    pub(super) fn id(&self) -> Option<u64> {
        match self.route {
            CallRoute::Reachable { id, .. } => Some(id),
            CallRoute::Unreachable | CallRoute::Abandoned => None,
        }
    }
}

/// Recipient of a message that does not name a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recipient {
    /// No reachable call is in flight.
    Nobody,
    /// Call of the only session: the newest whose client has capabilities, otherwise the newest.
    Call { id: u64, capabilities: ClientCapabilities, extensions: bool },
    /// Calls of more than one session.
    Ambiguous { calls: usize },
}

impl Recipient {
    /// Selects among all calls that could have caused the message.
    pub(super) fn of<'a>(calls: impl IntoIterator<Item = &'a CallInFlight>) -> Self {
        let (mut count, mut one_session) = (0_usize, true);
        let mut session = None;
        let mut chosen: Option<((bool, u64), u64, CallClient)> = None;
        for &CallInFlight { client, route } in calls {
            one_session &= count == 0 || (session.is_some() && client.session == session);
            session = client.session;
            count += 1;
            if let CallRoute::Reachable { id, order } = route {
                let rank = (client.capabilities != ClientCapabilities::default(), order);
                if chosen.is_none_or(|(best, ..)| rank > best) {
                    chosen = Some((rank, id, client));
                }
            }
        }
        match chosen {
            None => Self::Nobody,
            Some(_) if !one_session => Self::Ambiguous { calls: count },
            Some((_, id, CallClient { capabilities, extensions, .. })) => {
                Self::Call { id, capabilities, extensions }
            }
        }
    }
}

/// Abandoned calls of one connection on which the server may still be working.
#[derive(Debug, Default)]
pub(crate) struct AbandonedCalls {
    calls: VecDeque<AbandonedCall>,
    /// Time until which one call of an unknown session counts: more than [`MAX_ABANDONED`] calls were abandoned, or some were abandoned on
    /// an earlier connection.
    unknown_until: Option<Instant>,
}

#[derive(Debug)]
struct AbandonedCall {
    id: u64,
    session: Option<CallSession>,
    until: Instant,
}

impl AbandonedCalls {
    pub(crate) fn add(&mut self, id: u64, session: Option<CallSession>, now: Instant) {
        self.calls.retain(|call| now < call.until);
        if self.calls.len() >= MAX_ABANDONED
            && let Some(oldest) = self.calls.pop_front()
        {
            self.unknown_until = self.unknown_until.max(Some(oldest.until));
        }
        self.calls.push_back(AbandonedCall { id, session, until: now + ABANDONED_COUNTS_FOR });
    }

    /// Counts calls of unknown sessions that were abandoned on an earlier connection.
    pub(crate) fn add_unknown(&mut self, now: Instant) {
        self.unknown_until = self.unknown_until.max(Some(now + ABANDONED_COUNTS_FOR));
    }

    /// Removes a call that the server has responded to.
    pub(crate) fn answered(&mut self, id: u64) {
        self.calls.retain(|call| call.id != id);
    }

    /// Calls that still count.
    pub(crate) fn active(&self, now: Instant) -> impl Iterator<Item = CallInFlight> + '_ {
        let unknown_until = self.unknown_until.filter(|until| now < *until).map(|_| None);
        let known = self.calls.iter().filter(move |call| now < call.until);
        known.map(|call| call.session).chain(unknown_until).map(|session| CallInFlight {
            client: CallClient { session, ..CallClient::default() },
            route: CallRoute::Abandoned,
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageRoute {
    /// The message responds to the call with this id.
    Call(u64),
    /// The message is another JSON object, for the lifecycle.
    Lifecycle,
    /// The message is not a JSON object.
    Garbage,
}

/// Incremental parser of one message's envelope.
#[derive(Debug)]
pub(crate) struct ResponseMatcher {
    scanner: Scanner,
}

impl ResponseMatcher {
    pub(crate) fn new(seed: u64) -> Self {
        Self { scanner: Scanner::new(ScanLimits::NONE, seed) }
    }

    /// Reads the last chunk of the message; earlier chunks must have been fed before. Returns the route once it is known.
    pub(crate) fn feed(&mut self, chunks: &[Bytes]) -> Option<MessageRoute> {
        let broken = self.scanner.feed(chunks.last()?).is_err();
        let envelope = self.scanner.envelope();
        let route = match (envelope.kind, envelope.id) {
            (Some(MessageKind::Method), _) => Some(MessageRoute::Lifecycle),
            // The kind is not needed: the outcome's value may not have begun yet, or may be null.
            (_, Some(id)) if envelope.has_outcome => {
                Some(ours(id, chunks).map_or(MessageRoute::Lifecycle, MessageRoute::Call))
            }
            (Some(MessageKind::Result | MessageKind::Error) | None, _) => None,
        };
        match route {
            // The call itself reports errors after the route is known.
            Some(MessageRoute::Call(_)) => route,
            Some(MessageRoute::Lifecycle | MessageRoute::Garbage) | None if broken => {
                Some(MessageRoute::Garbage)
            }
            Some(MessageRoute::Lifecycle | MessageRoute::Garbage) | None => route,
        }
    }

    /// Route of a complete message whose route was not known before.
    pub(crate) fn end(&self) -> MessageRoute {
        if self.scanner.finish().is_ok() { MessageRoute::Lifecycle } else { MessageRoute::Garbage }
    }
}

/// The proxy's call with this id, in any spelling of the number.
fn ours(id: Span, chunks: &[Bytes]) -> Option<u64> {
    let mut raw = [0; MAX_NUMERIC_ID_BYTES];
    let raw = raw.get_mut(..usize::try_from(id.len()).ok()?)?;
    let (mut base, mut filled) = (0, 0);
    for chunk in chunks {
        let part = id.within(chunk, base);
        raw.get_mut(filled..filled + part.len())?.copy_from_slice(&part);
        filled += part.len();
        base += chunk.len() as u64;
    }
    jsonrpc::numeric_id(raw).filter(|id| pending::is_ours(*id))
}

#[cfg(test)]
mod tests {
    use mcpproxy_protocol::mcp::known_extensions::Extensions;
    use serde_json::{Value, json};

    use super::*;
    use crate::request::CallSession;

    const A: u64 = pending::FIRST_ID;
    const B: u64 = pending::FIRST_ID + 1;
    const NONE: ClientCapabilities = ClientCapabilities {
        sampling: false,
        elicitation_forms: false,
        elicitation_urls: false,
        roots: false,
        extensions: Extensions::NONE,
    };
    const ELICITATION: ClientCapabilities = ClientCapabilities { elicitation_forms: true, ..NONE };

    /// Calls in flight, each with its own session.
    fn in_flight(calls: &[(u64, ClientCapabilities)]) -> Vec<CallInFlight> {
        let calls = calls.iter().map(|(id, capabilities)| CallInFlight {
            client: CallClient {
                session: Some(CallSession::fresh()),
                capabilities: *capabilities,
                extensions: false,
            },
            route: CallRoute::Reachable { id: *id, order: *id },
        });
        calls.collect()
    }

    fn check(message: &str, calls: &[(u64, ClientCapabilities)], expected: &Destination) {
        assert_eq!(&route(message.as_bytes(), &in_flight(calls)), expected, "{message}");
    }

    /// Code and text of the error response to a request.
    fn refused(message: &str, calls: &[(u64, ClientCapabilities)]) -> (i64, String) {
        let Destination::Reply(reply) = route(message.as_bytes(), &in_flight(calls)) else {
            panic!("{message} is not answered")
        };
        let reply: Value = serde_json::from_slice(&reply).unwrap();
        let asked: Value = serde_json::from_str(message).unwrap();
        assert_eq!((&reply["jsonrpc"], &reply["id"]), (&json!("2.0"), &asked["id"]));
        let error = &reply["error"];
        (error["code"].as_i64().unwrap(), error["message"].as_str().unwrap().to_owned())
    }

    #[test]
    fn progress_goes_to_the_call_whose_id_is_its_token() {
        let progress = |token: &str| {
            format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progress":1,"progressToken":{token}}}}}"#
            )
        };
        let calls = [(A, NONE), (B, ELICITATION)];
        for token in [B.to_string(), format!("\"{B}\""), format!("{B}.0")] {
            check(&progress(&token), &calls, &Destination::Call(B, None));
        }
        for token in [(B + 1).to_string(), "1".into(), "null".into(), "[]".into(), "\"x\"".into()] {
            let nobody = Destination::Nobody("progress of a call that is not in flight");
            check(&progress(&token), &calls, &nobody);
        }
        check(
            r#"{"method":"notifications/progress"}"#,
            &calls,
            &Destination::Nobody("progress of a call that is not in flight"),
        );
    }

    #[test]
    fn progress_without_a_token_is_dropped_even_with_a_single_call() {
        let nobody = Destination::Nobody("progress of a call that is not in flight");
        for params in ["{}", r#"{"progress":1}"#, r#"{"progressToken":null}"#, "[]"] {
            let message = format!(r#"{{"method":"notifications/progress","params":{params}}}"#);
            check(&message, &[(A, ELICITATION)], &nobody);
        }
    }

    #[test]
    fn request_goes_to_the_only_call_and_is_refused_if_ambiguous() {
        let asks = r#"{"jsonrpc":"2.0","id":"q-1","method":"elicitation/create","params":{}}"#;
        let to_b = Destination::Call(B, Some(Bytes::from_static(b"\"q-1\"")));
        check(asks, &[(B, ELICITATION)], &to_b);
        let (code, text) = refused(asks, &[]);
        assert_eq!(code, -32603);
        assert_eq!(text, "elicitation/create: no client is available to answer it");
        let (code, text) =
            refused(asks, &[(A, ClientCapabilities { sampling: true, roots: true, ..NONE })]);
        assert_eq!(code, -32601);
        assert_eq!(text, "elicitation/create: no client of a call in flight supports it");
        // A's client has no capabilities, but the request may be intended for A.
        for capabilities in [NONE, ELICITATION] {
            let (code, text) = refused(asks, &[(A, capabilities), (B, ELICITATION)]);
            assert_eq!(code, -32603);
            assert!(text.contains("2 calls are in flight"), "{text}");
        }
    }

    #[test]
    fn request_within_one_session_goes_to_the_call_with_the_capability() {
        let asks = r#"{"id":1,"method":"roots/list"}"#;
        let roots = ClientCapabilities { roots: true, ..NONE };
        let session = Some(CallSession::fresh());
        let calls = [(A, NONE), (B, roots)].map(|(id, capabilities)| CallInFlight {
            client: CallClient { session, capabilities, extensions: false },
            route: CallRoute::Reachable { id, order: id },
        });
        let to_b = Destination::Call(B, Some(Bytes::from_static(b"1")));
        assert_eq!(route(asks.as_bytes(), &calls), to_b);
        let ended = br#"{"method":"notifications/cancelled","params":{"requestId":1}}"#;
        assert_eq!(route(ended, &calls), Destination::Calls([B].into()));
    }

    #[test]
    fn ambiguous_cancellation_is_dropped() {
        let ended = r#"{"method":"notifications/cancelled","params":{"requestId":1}}"#;
        check(ended, &[(A, ELICITATION)], &Destination::Calls([A].into()));
        let nobody = Destination::Nobody("a cancellation without a recipient");
        check(ended, &[(A, NONE)], &Destination::Calls([].into()));
        check(ended, &[], &nobody);
        let several = "a cancellation that could be for several clients";
        check(ended, &[(A, NONE), (B, ELICITATION)], &Destination::Nobody(several));
    }

    #[test]
    fn each_request_requires_its_own_capability() {
        for (method, client_capabilities) in [
            ("sampling/createMessage", ClientCapabilities { sampling: true, ..NONE }),
            ("elicitation/create", ELICITATION),
            ("roots/list", ClientCapabilities { roots: true, ..NONE }),
        ] {
            let asks = format!(r#"{{"id":7,"method":"{method}"}}"#);
            check(
                &asks,
                &[(A, client_capabilities)],
                &Destination::Call(A, Some(Bytes::from_static(b"7"))),
            );
            let others = ClientCapabilities {
                sampling: !client_capabilities.sampling,
                elicitation_forms: !client_capabilities.elicitation_forms,
                elicitation_urls: false,
                roots: !client_capabilities.roots,
                extensions: Extensions::NONE,
            };
            assert_eq!(refused(&asks, &[(A, others)]).0, -32601);
        }
    }

    #[test]
    fn pro_36_completion_may_go_to_a_call_of_the_only_session() {
        let done =
            r#"{"method":"notifications/elicitation/complete","params":{"elicitationId":"e"}}"#;
        check(done, &[], &Destination::Completed(None));
        check(done, &[(A, NONE)], &Destination::Completed(Some(A)));
        check(done, &[(A, NONE), (B, NONE)], &Destination::Completed(None));
    }

    #[test]
    fn pro_32_elicitation_in_an_undeclared_mode_is_refused() {
        let urls = ClientCapabilities { elicitation_urls: true, ..NONE };
        for (mode, able, unable, why) in
            [("url", urls, ELICITATION, "open a URL"), ("form", ELICITATION, urls, "show a form")]
        {
            let asks =
                format!(r#"{{"id":7,"method":"elicitation/create","params":{{"mode":"{mode}"}}}}"#);
            let to_a = Destination::Call(A, Some(Bytes::from_static(b"7")));
            check(&asks, &[(A, able)], &to_a);
            let (code, text) = refused(&asks, &[(A, unable)]);
            assert_eq!(code, -32602);
            assert!(text.contains(why), "{text}");
            assert_eq!(refused(&asks, &[(A, NONE)]).0, -32601);
        }
    }

    #[test]
    fn ping_is_answered_and_unknown_methods_are_refused() {
        let ping = r#"{"jsonrpc":"2.0","id":-1.5,"method":"ping"}"#;
        let pong = Bytes::from_static(br#"{"jsonrpc":"2.0","id":-1.5,"result":{}}"#);
        check(ping, &[(A, ELICITATION)], &Destination::Reply(pong));
        let long = "x".repeat(10_000);
        let (code, text) = refused(&format!(r#"{{"id":1,"method":"{long}"}}"#), &[]);
        assert_eq!(code, -32601);
        assert!(text.len() < 200);
    }

    #[test]
    fn pro_41_extension_message_goes_to_the_only_session_that_accepts_it() {
        let call = |id, session, extensions| CallInFlight {
            client: CallClient { session: Some(session), capabilities: NONE, extensions },
            route: CallRoute::Reachable { id, order: id },
        };
        let [ours, other] = [(); 2].map(|()| CallSession::fresh());
        let changed = br#"{"method":"notifications/skills/changed"}"#;
        let asks = br#"{"id":1,"method":"skills/pick"}"#;
        for (calls, told, asked) in [
            (vec![call(A, ours, true)], Some(A), Some(A)),
            (vec![call(A, ours, true), call(B, ours, true)], Some(B), Some(B)),
            (vec![call(A, ours, false)], None, None),
            (vec![call(A, ours, true), call(B, other, false)], None, None),
            (vec![], None, None),
        ] {
            match (route(changed, &calls), told) {
                (Destination::Call(id, None), Some(told)) => assert_eq!(id, told),
                (Destination::Nobody(_), None) => {}
                (found, _) => panic!("{calls:?}: {found:?}"),
            }
            match (route(asks, &calls), asked) {
                (Destination::Call(id, Some(_)), Some(asked)) => assert_eq!(id, asked),
                (Destination::Reply(_), None) => {}
                (found, _) => panic!("{calls:?}: {found:?}"),
            }
        }
        let taken = route(br#"{"method":"notifications/Progress"}"#, &[call(A, ours, true)]);
        assert!(matches!(taken, Destination::Nobody(_)), "{taken:?}");
    }

    #[test]
    fn request_with_an_unusable_id_is_dropped() {
        for id in ["null", "{}", "[1]", "true", &format!("\"{}\"", "x".repeat(MAX_ID_BYTES))] {
            let asks = format!(r#"{{"id":{id},"method":"ping"}}"#);
            let found = route(asks.as_bytes(), &[]);
            assert!(matches!(found, Destination::Nobody(_)), "{id}: {found:?}");
        }
    }

    #[test]
    fn message_too_large_for_a_call_is_not_delivered() {
        let filler = "x".repeat(MAX_DELIVERED_BYTES);
        let calls = [(A, ELICITATION)];
        let asks = format!(r#"{{"id":7,"method":"elicitation/create","params":"{filler}"}}"#);
        let (code, text) = refused(&asks, &calls);
        assert_eq!((code, &*text), (-32603, "the request is larger than 1048576 bytes"));
        let log = format!(r#"{{"method":"notifications/message","params":"{filler}"}}"#);
        check(&log, &calls, &Destination::Nobody("a notification that is too large for a call"));
    }

    #[test]
    fn log_message_goes_to_the_only_call() {
        let log = r#"{"method":"notifications/message","params":{"level":"info"}}"#;
        check(log, &[(A, NONE)], &Destination::Log(Some(A)));
        check(log, &[], &Destination::Log(None));
        check(log, &[(A, NONE), (B, NONE)], &Destination::Log(None));
        // The server may log about a request that the proxy sent on behalf of another client.
        let session = Some(CallSession::fresh());
        let calls = [call(session, NONE, reachable(A)), call(None, NONE, CallRoute::Unreachable)];
        assert_eq!(route(log.as_bytes(), &calls[..1]), Destination::Log(Some(A)));
        assert_eq!(route(log.as_bytes(), &calls), Destination::Log(None));
    }

    #[test]
    fn change_notifications_are_distinguished() {
        for (method, list) in [
            ("tools", ChangedList::Tools),
            ("resources", ChangedList::Resources),
            ("prompts", ChangedList::Prompts),
        ] {
            let changed = format!(r#"{{"method":"notifications/{method}/list_changed"}}"#);
            check(&changed, &[], &Destination::Changed(list));
        }
        check(
            r#"{"method":"notifications/resources/updated","params":{"uri":"a\u0062"}}"#,
            &[],
            &Destination::Updated("ab".into()),
        );
    }

    #[test]
    fn other_messages_go_to_the_lifecycle_or_are_dropped() {
        check(r#"{"id":0,"result":{}}"#, &[], &Destination::Lifecycle);
        check(r#"{"error":{},"id":null}"#, &[], &Destination::Lifecycle);
        for message in ["[]", "7", "{", r#"{"method":1}"#, r#"{"method":"notifications/x"}"#] {
            let found = route(message.as_bytes(), &[]);
            assert!(matches!(found, Destination::Nobody(_)), "{message}: {found:?}");
        }
    }

    const ROOTS: ClientCapabilities = ClientCapabilities { roots: true, ..NONE };

    fn call(
        session: Option<CallSession>,
        capabilities: ClientCapabilities,
        route: CallRoute,
    ) -> CallInFlight {
        CallInFlight { client: CallClient { session, capabilities, extensions: false }, route }
    }

    fn reachable(id: u64) -> CallRoute {
        CallRoute::Reachable { id, order: id }
    }

    #[test]
    fn recipient_is_the_newest_capable_call_of_a_single_session() {
        let (a, b) = (Some(CallSession::fresh()), Some(CallSession::fresh()));
        let (abandoned, unreachable) = (CallRoute::Abandoned, CallRoute::Unreachable);
        let to = |id, capabilities| Recipient::Call { id, capabilities, extensions: false };
        let ambiguous = |calls| Recipient::Ambiguous { calls };
        for (calls, expected) in [
            (vec![], Recipient::Nobody),
            (vec![call(None, NONE, reachable(1))], to(1, NONE)),
            (vec![call(a, ROOTS, reachable(1))], to(1, ROOTS)),
            // A call without capabilities counts.
            (vec![call(a, NONE, reachable(1)), call(b, ROOTS, reachable(2))], ambiguous(2)),
            (vec![call(b, ROOTS, reachable(2)), call(a, NONE, reachable(1))], ambiguous(2)),
            // A call without a session counts as its own session.
            (vec![call(None, NONE, reachable(1)), call(None, ROOTS, reachable(2))], ambiguous(2)),
            (vec![call(None, NONE, reachable(1)), call(a, ROOTS, reachable(2))], ambiguous(2)),
            (vec![call(a, ROOTS, reachable(1)), call(None, NONE, unreachable)], ambiguous(2)),
            // Within one session, the newest capable call is chosen.
            (vec![call(a, ROOTS, reachable(3)), call(a, ROOTS, reachable(2))], to(3, ROOTS)),
            (vec![call(a, ROOTS, reachable(1)), call(a, NONE, reachable(2))], to(1, ROOTS)),
            (vec![call(a, NONE, reachable(2)), call(a, NONE, reachable(1))], to(2, NONE)),
            (
                vec![
                    call(a, NONE, reachable(1)),
                    call(b, NONE, reachable(2)),
                    call(a, ROOTS, reachable(3)),
                ],
                ambiguous(3),
            ),
            // Abandoned calls count, but receive nothing.
            (vec![call(a, ROOTS, reachable(2)), call(a, NONE, abandoned)], to(2, ROOTS)),
            (vec![call(b, ROOTS, reachable(2)), call(a, NONE, abandoned)], ambiguous(2)),
            (vec![call(a, NONE, abandoned)], Recipient::Nobody),
            (vec![call(a, NONE, abandoned), call(b, NONE, abandoned)], Recipient::Nobody),
        ] {
            assert_eq!(Recipient::of(&calls), expected, "{calls:?}");
        }
    }

    #[test]
    fn abandoned_calls_count_until_their_response_or_timeout() {
        let (mut calls, now) = (AbandonedCalls::default(), mcpproxy_runtime::io::clock::now());
        let session = Some(CallSession::fresh());
        calls.add(1, session, now);
        calls.add(2, None, now);
        assert_eq!(calls.active(now).count(), 2);
        assert_eq!(calls.active(now).next(), Some(call(session, NONE, CallRoute::Abandoned)));
        calls.answered(1);
        assert_eq!(calls.active(now).next(), Some(call(None, NONE, CallRoute::Abandoned)));
        assert_eq!(calls.active(now + ABANDONED_COUNTS_FOR).count(), 0);
    }

    #[test]
    fn abandoned_calls_beyond_the_bound_count_as_an_unknown_session() {
        let (mut calls, now) = (AbandonedCalls::default(), mcpproxy_runtime::io::clock::now());
        let session = Some(CallSession::fresh());
        for id in 0..2 * MAX_ABANDONED as u64 {
            calls.add(id, session, now);
        }
        assert_eq!(calls.calls.len(), MAX_ABANDONED);
        assert!(calls.active(now).any(|call| call.client.session.is_none()));
        (0..2 * MAX_ABANDONED as u64).for_each(|id| calls.answered(id));
        assert_eq!(calls.active(now).count(), 1, "dropped entries count as an unknown session");
        assert_eq!(calls.active(now + ABANDONED_COUNTS_FOR).count(), 0);
    }

    const OURS: u64 = pending::FIRST_ID;

    /// Checks the route at every split of the message.
    fn check_route(message: &str, expected: MessageRoute) {
        let bytes = Bytes::copy_from_slice(message.as_bytes());
        for cut in 0..=bytes.len() {
            let mut peek = ResponseMatcher::new(1);
            let (first, second) = (bytes.slice(..cut), bytes.slice(cut..));
            let route = peek
                .feed(std::slice::from_ref(&first))
                .or_else(|| peek.feed(&[first, second]))
                .unwrap_or_else(|| peek.end());
            assert_eq!(route, expected, "{message} cut at {cut}");
        }
    }

    #[test]
    fn response_is_matched_by_id_and_outcome_in_any_order() {
        check_route(
            &format!(r#"{{"jsonrpc":"2.0","id":{OURS},"result":{{}}}}"#),
            MessageRoute::Call(OURS),
        );
        check_route(
            &format!(r#"{{"result":{{"id":5}},"jsonrpc":"2.0","id":{OURS}}}"#),
            MessageRoute::Call(OURS),
        );
        check_route(
            &format!(r#" {{ "error" : {{}} , "id" : {OURS} }} "#),
            MessageRoute::Call(OURS),
        );
        check_route(
            &format!(r#"{{"result":{{"a\"}}\\":["]",{{"method":1}}]}},"id":{OURS}}}"#),
            MessageRoute::Call(OURS),
        );
    }

    #[test]
    fn pro_22_id_in_another_spelling_belongs_to_its_call() {
        let exponent = format!("1.{}e9", &OURS.to_string()[1..]);
        for id in [format!("\"{OURS}\""), format!("{OURS}.0"), format!("{OURS}e0"), exponent] {
            check_route(&format!(r#"{{"id":{id},"result":{{}}}}"#), MessageRoute::Call(OURS));
            check_route(&format!(r#"{{"error":{{}},"id":{id}}}"#), MessageRoute::Call(OURS));
        }
    }

    #[test]
    fn pro_23_response_with_a_null_or_mistyped_outcome_belongs_to_its_call() {
        for outcome in [
            r#""result":null"#,
            r#""error":null,"result":null"#,
            r#""result":[1]"#,
            r#""error":"boom""#,
            r#""result":{},"error":null"#,
        ] {
            check_route(&format!(r#"{{"id":{OURS},{outcome}}}"#), MessageRoute::Call(OURS));
            check_route(&format!(r#"{{{outcome},"id":{OURS}}}"#), MessageRoute::Call(OURS));
        }
    }

    #[test]
    fn messages_without_our_id_go_to_the_lifecycle() {
        for message in [
            r#"{"jsonrpc":"2.0","id":0,"result":{}}"#.to_owned(),
            format!(r#"{{"id":"x{OURS}","result":{{}}}}"#),
            format!(r#"{{"id":{OURS}0,"result":{{}}}}"#),
            format!(r#"{{"id":{OURS}.5,"result":{{}}}}"#),
            r#"{"id":null,"error":{}}"#.to_owned(),
            r#"{"id":null,"result":null}"#.to_owned(),
            format!(r#"{{"id":{OURS},"method":"ping"}}"#),
            r#"{"method":"notifications/progress","params":{"result":1}}"#.to_owned(),
            "{}".to_owned(),
        ] {
            check_route(&message, MessageRoute::Lifecycle);
        }
    }

    #[test]
    fn non_objects_count_as_garbage() {
        for message in ["Server listening", "[]", "12", "{\"id\"", "{} {}", "{1}", "{\"a\" 1}"] {
            check_route(message, MessageRoute::Garbage);
        }
    }

    #[test]
    fn response_that_breaks_after_its_id_still_belongs_to_its_call() {
        check_route(
            &format!(r#"{{"jsonrpc":"2.0","id":{OURS},"result":{{1}}}}"#),
            MessageRoute::Call(OURS),
        );
        check_route(
            &format!(r#"{{"jsonrpc":"2.0","result":{{1}},"id":{OURS}}}"#),
            MessageRoute::Garbage,
        );
    }

    #[test]
    fn route_is_known_before_the_result_has_arrived() {
        let head = Bytes::from(format!(r#"{{"jsonrpc":"2.0","id":{OURS},"result":{{"#));
        assert_eq!(ResponseMatcher::new(1).feed(&[head]), Some(MessageRoute::Call(OURS)));
    }
}
