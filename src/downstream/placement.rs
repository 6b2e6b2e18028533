//! Placement: which fleet node serves a message, and forwarding to it. After "dead", the table states the outcome if that
//! node is dead; "here" is this node.
//!
//! ```text
//! response to a server's question                          the node that asked
//! call repeated for its approval, or held for its input    the node that holds it; dead: here, where it is refused
//! read_result                                              the node that keeps the result; dead: here, which reports it
//! server with affinity, rules with context.session         the node that opened the session; dead: the session is lost
//! resources/subscribe                                      the same; dead or unreachable: here
//! everything else                                          here
//! ```
//!
//! While the liveness of the node is unknown, or an alive node is unreachable, the client is asked to retry, so that
//! a node that has just started or a failed connection never causes a permanent error.
//!
//! Modern clients have no session. Requests of a principal to a server with affinity go to one node, by rendezvous
//! hashing over the living nodes. If there are rules about sessions, all requests that send or fetch content also go
//! to that node, so that the principal's facts are known before its next request. If that node is unreachable, they
//! are served here with the facts that the fleet has shared.
//!
//! A request is forwarded as received, at most one hop, with the authenticated principal; the other node verifies
//! credentials again ([`answer_forwarded`](super::http::answer_forwarded)). The end of a session, its log level and
//! cancellations are broadcast to all living nodes, for at most [`BROADCAST_TIMEOUT`] each and without a retry.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt, future, stream};
use http::header::{ACCEPT, CONNECTION, CONTENT_LENGTH, HOST, RETRY_AFTER, TRANSFER_ENCODING};
use http::request::Parts;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use mcpproxy_fleet::peer_wire::{HEADER, PeerRoute};
use mcpproxy_fleet::peers::{Hop, PeerError, Peers};
use mcpproxy_policy::Principal;
use mcpproxy_policy::approvals::ApprovalId;
use mcpproxy_protocol::mcp::jsonrpc::Code;
use mcpproxy_protocol::mcp::{jsonrpc, message};
use mcpproxy_runtime::io::line_budget::{LinePeer, peer_line};
use serde::{Deserialize, Serialize};

use super::body::{Body, MAX_BODY_BYTES, plain};
use super::replay::{EventId, StreamKind};
use super::request::{Origin, Post};
use super::session::{Session, SessionHome};
use super::source::Source;
use mcpproxy_gateway::node_directory::{MAX_FORWARDED_BYTES, NodeTag, Whereabouts};
use mcpproxy_gateway::proxy::client::{Endpoint, node_of_question};
use mcpproxy_gateway::proxy::dispatch::{
    BoundTo, Incoming, Received, approval_of_repeat, bound_to, is_for_server, is_task_request,
};
use mcpproxy_gateway::proxy::reply::Aborted;

/// Methods whose state belongs to the session's notification stream, which the session's home node serves.
const SERVED_AT_HOME: [&str; 2] = ["resources/subscribe", "resources/unsubscribe"];

/// Methods that send data to servers or return their content.
const RAISES_FACTS: [&str; 6] = [
    "tools/call",
    "resources/read",
    "resources/directory/read",
    "skills/get",
    "prompts/get",
    "completion/complete",
];

fn raises_facts(endpoint: &Endpoint, method: &str) -> bool {
    RAISES_FACTS.contains(&method)
        || is_task_request(method)
        || (endpoint.server().is_some() && is_for_server(method))
}

/// Node that serves a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MessagePlace {
    Here,
    On(Box<str>),
    /// The named node, or this node if the named one is unreachable.
    OnOrHere(Box<str>),
    /// A node that may be alive or dead: the client must retry.
    NotKnown,
    /// A dead node: the client must open a new session.
    Gone,
}

impl From<Whereabouts> for MessagePlace {
    fn from(whereabouts: Whereabouts) -> Self {
        match whereabouts {
            Whereabouts::Here => Self::Here,
            Whereabouts::On(node) => Self::On(node),
            Whereabouts::NotKnown => Self::NotKnown,
            Whereabouts::Unreachable | Whereabouts::Gone => Self::Gone,
        }
    }
}

impl MessagePlace {
    /// Forwards the message to its node; `None` if this node serves it.
    async fn answer(self, post: &Post<'_>, body: &[u8]) -> Option<Response<Body>> {
        match self {
            Self::Here => None,
            // This future is large and is not used for a node's own calls, so it is boxed to keep it out of their
            // futures.
            Self::On(node) => Some(Box::pin(forward(post, &node, body)).await),
            Self::OnOrHere(node) => match Box::pin(ask(post, &node, body)).await {
                Ok(response) => Some(response),
                Err(error) if was_not_asked(&error) => None,
                Err(error) => Some(refused(&error)),
            },
            Self::NotKnown => Some(not_known()),
            Self::Gone => Some(gone()),
        }
    }
}

/// Serves a session's message on the node that owns it; `None` if that is this node.
pub(super) async fn answer_elsewhere(
    post: &Post<'_>,
    session: &Session,
    incoming: &Incoming,
    body: &[u8],
) -> Option<Response<Body>> {
    if post.worker.proxy.nodes.is_alone() {
        return None;
    }
    place_of(post, session, incoming).await.answer(post, body).await
}

/// Node that serves a session's message.
pub(super) async fn place_of(
    post: &Post<'_>,
    session: &Session,
    incoming: &Incoming,
) -> MessagePlace {
    match incoming {
        Incoming::Response(response) => of_response(post, response),
        // Every node refuses this `initialize`, so it need not be forwarded.
        Incoming::Request(received) if &*received.request.method == "initialize" => {
            MessagePlace::Here
        }
        Incoming::Request(received) => of_request(post, session, received).await,
    }
}

/// Serves a GET on the node that holds its stream or, for a new stream, the session's notifications; `None` if that
/// is this node. A notification stream whose node is dead or unreachable restarts here; the rest of a response is
/// lost.
pub(super) async fn stream_elsewhere(
    post: &Post<'_>,
    session: &Session,
    seen: Option<EventId>,
) -> Option<Response<Body>> {
    let is_reply = seen.is_some_and(|seen| seen.kind == StreamKind::Reply);
    let place = match seen.map_or(0, |seen| seen.node()) {
        0 => at_home(post, session),
        node => whereabouts(post, |tag| tag.number() == node),
    };
    match place {
        Whereabouts::Here => None,
        Whereabouts::On(node) => match ask(post, &node, b"").await {
            Ok(answer) => Some(answer),
            // The node is not known to be dead yet.
            Err(error) if was_not_asked(&error) && !is_reply => None,
            Err(error) => Some(refused(&error)),
        },
        Whereabouts::NotKnown => is_reply.then(not_known),
        Whereabouts::Unreachable | Whereabouts::Gone => is_reply.then(gone),
    }
}

fn of_response(post: &Post<'_>, response: &message::Response) -> MessagePlace {
    let id = response.id.as_deref().and_then(|raw| std::str::from_utf8(raw).ok()?.parse().ok());
    match id.map_or(0, node_of_question) {
        0 => MessagePlace::Here,
        node => whereabouts(post, |tag| tag.number() == node).into(),
    }
}

async fn of_request(post: &Post<'_>, session: &Session, received: &Received) -> MessagePlace {
    if post.worker.proxy.nodes.is_alone() {
        return MessagePlace::Here;
    }
    match bound_to(post.worker, &session.endpoint, received).await {
        BoundTo::Node(node) => return of_result(post, node),
        BoundTo::Session => return with_state(post, session),
        BoundTo::Nothing => {}
    }
    let settings = post.worker.settings();
    if settings.policy.rules.as_ref().is_some_and(|rules| rules.reads_session_facts()) {
        return with_state(post, session);
    }
    match SERVED_AT_HOME.contains(&&*received.request.method) {
        false => MessagePlace::Here,
        true => match at_home(post, session) {
            Whereabouts::On(node) => MessagePlace::OnOrHere(node),
            Whereabouts::NotKnown => MessagePlace::NotKnown,
            // If the home node is not reachable, the session's notification stream restarts here, too.
            Whereabouts::Here | Whereabouts::Unreachable | Whereabouts::Gone => MessagePlace::Here,
        },
    }
}

/// Node that opened the session.
fn at_home(post: &Post<'_>, session: &Session) -> Whereabouts {
    match session.home() {
        SessionHome::Here | SessionHome::Forgotten => Whereabouts::Here,
        SessionHome::Elsewhere(home) => whereabouts(post, |tag| tag == home),
    }
}

/// Node that holds the session's facts and its state at servers.
fn with_state(post: &Post<'_>, session: &Session) -> MessagePlace {
    match (session.home(), at_home(post, session)) {
        (SessionHome::Here, _) => MessagePlace::Here,
        // This node has lost the session's state.
        (SessionHome::Forgotten, _) => MessagePlace::Gone,
        (SessionHome::Elsewhere(_), Whereabouts::Here)
            if post.connection.origin == Origin::Client =>
        {
            MessagePlace::Gone
        }
        (SessionHome::Elsewhere(_), home) => home.into(),
    }
}

fn of_result(post: &Post<'_>, node: u32) -> MessagePlace {
    match whereabouts(post, |tag| tag.number() == u64::from(node)) {
        Whereabouts::On(node) => MessagePlace::OnOrHere(node),
        Whereabouts::NotKnown => MessagePlace::NotKnown,
        Whereabouts::Here | Whereabouts::Unreachable | Whereabouts::Gone => MessagePlace::Here,
    }
}

/// Node that holds the call of an approval. If that node is dead, this node, which refuses the call.
fn of_approval(post: &Post<'_>, id: &ApprovalId) -> MessagePlace {
    let Some(mark) = ApprovalId::node_in(id.as_str()) else { return MessagePlace::Here };
    match whereabouts(post, |tag| tag.text() == mark) {
        Whereabouts::On(node) => MessagePlace::OnOrHere(node),
        Whereabouts::NotKnown => MessagePlace::NotKnown,
        Whereabouts::Here | Whereabouts::Unreachable | Whereabouts::Gone => MessagePlace::Here,
    }
}

/// Serves a sessionless request on its node; `None` if that is this node.
pub(super) async fn answer_modern_elsewhere(
    post: &Post<'_>,
    received: &Received,
    body: &[u8],
) -> Option<Response<Body>> {
    if post.worker.proxy.nodes.is_alone() {
        return None;
    }
    if let Some(id) = approval_of_repeat(post.worker, &post.principal, received) {
        return of_approval(post, &id).answer(post, body).await;
    }
    match bound_to(post.worker, &post.endpoint, received).await {
        BoundTo::Nothing => {
            let asks = post.worker.settings().policy.rules.as_ref()?.reads_session_facts();
            if !(asks && raises_facts(&post.endpoint, &received.request.method)) {
                return None;
            }
            let node = of_principal(post)?;
            MessagePlace::OnOrHere(node).answer(post, body).await
        }
        BoundTo::Node(node) => of_result(post, node).answer(post, body).await,
        BoundTo::Session => {
            let node = of_principal(post)?;
            Some(match Box::pin(ask(post, &node, body)).await {
                Ok(response) => response,
                // There is no session that the client could reopen. Once the node is declared dead, another node
                // serves such requests.
                Err(error) => unanswered(&error),
            })
        }
    }
}

fn unanswered(error: &PeerError) -> Response<Body> {
    peer_line!(warn, LinePeer::Part("other nodes"), %error, "failed to forward a request");
    plain(StatusCode::BAD_GATEWAY, NOT_ANSWERED)
}

/// Maximum size of a forwarded request's head in bytes.
const MAX_FORWARDED_HEAD_BYTES: usize = 256 * 1024;
const _: () = assert!(MAX_BODY_BYTES + MAX_FORWARDED_HEAD_BYTES <= MAX_FORWARDED_BYTES);
/// Time limit per node of a broadcast.
const BROADCAST_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of nodes of a broadcast.
const MAX_BROADCAST: usize = 1024;
/// Maximum size in bytes of a response that is discarded or quoted.
const MAX_UNREAD_BYTES: usize = 64 * 1024;
pub(super) const GONE: &str = "Session not found: send initialize again";
const NOT_KNOWN: &str =
    "the node responsible for this request may be down; the request was not processed, retry";
const NOT_REACHED: &str =
    "the node responsible for this request is unreachable; the request was not processed, retry";
/// `Retry-After` of these errors in seconds; liveness is refreshed by then.
const RETRY_AFTER_S: u16 = 2;
/// The node's reason follows this text.
const NOT_TAKEN: &str = "the node responsible for this request does not accept requests now; the request was not processed, retry";
/// The node may have processed the request.
pub(super) const NOT_ANSWERED: &str = "the node responsible for this request did not answer";

pub(super) type ForwardedResponse = Pin<Box<dyn Stream<Item = Result<Bytes, Aborted>>>>;

/// Head of a forwarded request; the body follows after a line feed.
#[derive(Serialize, Deserialize)]
pub(super) struct ForwardedHead {
    method: String,
    target: String,
    /// Names and values of the headers; the values are decoded as Latin-1.
    headers: Vec<(String, String)>,
    pub(super) principal: ForwardedPrincipal,
    /// [`Principal::mark`] of the authenticated principal.
    pub(super) mark: [u8; 16],
    /// The client's address, unless it is local.
    pub(super) from: Option<IpAddr>,
    /// Whether the session is reopened if necessary.
    pub(super) reopens: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ForwardedPrincipal {
    Anonymous,
    Admin,
    /// The principal's id without its prefix `cert:`.
    Certificate(String),
    /// The principal is authenticated by the request's headers.
    Headers,
}

/// Location of a node's state. A forwarded request is always served here.
fn whereabouts(post: &Post<'_>, is_it: impl Fn(NodeTag) -> bool) -> Whereabouts {
    match post.connection.origin {
        Origin::Client => post.worker.proxy.nodes.find(is_it),
        Origin::Node { .. } => Whereabouts::Here,
    }
}

fn of_principal(post: &Post<'_>) -> Option<Box<str>> {
    let is_client = post.connection.origin == Origin::Client;
    post.worker.proxy.nodes.of_principal(post.principal.mark()).filter(|_| is_client)
}

/// Response that makes the client open a new session: its state was on a dead node.
pub(super) fn gone() -> Response<Body> {
    plain(StatusCode::NOT_FOUND, GONE)
}

/// Response that makes the client retry within the same session.
pub(super) fn not_known() -> Response<Body> {
    retry_later(NOT_KNOWN)
}

fn retry_later(text: &'static str) -> Response<Body> {
    let mut response = plain(StatusCode::SERVICE_UNAVAILABLE, text);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(RETRY_AFTER_S));
    response
}

/// Forwards the request to `node`; failures become a response.
async fn forward(post: &Post<'_>, node: &str, body: &[u8]) -> Response<Body> {
    ask(post, node, body).await.unwrap_or_else(|error| refused(&error))
}

/// Forwards the request to `node`.
async fn ask(post: &Post<'_>, node: &str, body: &[u8]) -> Result<Response<Body>, PeerError> {
    let peers = peers(post).ok_or_else(|| PeerError::NotAdvertised(node.to_owned()))?;
    let sent = envelope(post, body, true);
    let response = peers.request(node, PeerRoute::Session, sent, Hop::First).await?;
    let (mut head, body) = response.into_parts();
    for name in [CONTENT_LENGTH, TRANSFER_ENCODING, CONNECTION] {
        head.headers.remove(name);
    }
    if matches!(head.status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) {
        return Ok(Response::from_parts(head, Body::Empty));
    }
    let parts = body.map(|part| part.map_err(|error| Aborted(error.to_string())));
    Ok(Response::from_parts(head, Body::Stream(Box::pin(parts))))
}

/// Forwards a notification of a batch to `node`, within [`BROADCAST_TIMEOUT`].
pub(super) async fn notify(post: &Post<'_>, node: &str, body: &[u8]) {
    let Some(peers) = peers(post) else { return };
    send(peers, node, envelope(post, body, true)).await;
}

/// Forwards one request of a batch when polled; yields the JSON of the response or of an error. A truncated response is
/// aborted. `id` is raw; `not_there` is the error text if the node did not process the request.
pub(super) fn answer_to(
    post: &Post<'_>,
    node: Box<str>,
    id: Bytes,
    not_there: &'static str,
    body: &[u8],
) -> ForwardedResponse {
    let peers = peers(post).cloned();
    let mut head = post.head.clone();
    // The array needs a single JSON response, without messages that precede it.
    head.headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    let sent = envelope_of(post, &head, body, true);
    let failed = move |text: &str| -> ForwardedResponse {
        let error = jsonrpc::error(Some(&id), Code::Internal, text);
        Box::pin(stream::iter([Ok(error)]))
    };
    let asked = async move {
        let Some(peers) = peers else { return failed(NOT_ANSWERED) };
        match peers.request(&node, PeerRoute::Session, sent, Hop::First).await {
            Ok(response) if response.status() == StatusCode::OK => {
                let parts = response.into_body();
                let parts = parts.map(|part| part.map_err(|error| Aborted(error.to_string())));
                begun(parts).await.unwrap_or_else(|| failed(NOT_ANSWERED))
            }
            Ok(response) if response.status() == StatusCode::NOT_FOUND => failed(GONE),
            Ok(response) if response.status() == StatusCode::SERVICE_UNAVAILABLE => {
                let reason = response.into_body().whole(MAX_UNREAD_BYTES).await.unwrap_or_default();
                failed(&not_taken(&reason))
            }
            Ok(_) => failed(NOT_ANSWERED),
            // The state on the node counts as lost only once the node is declared dead, which takes a moment.
            Err(PeerError::Unreached { .. }) => failed(NOT_REACHED),
            Err(error) if was_not_asked(&error) => failed(not_there),
            Err(error) => {
                peer_line!(warn, LinePeer::Node(&node), %error, "failed to forward a request of a batch");
                failed(NOT_ANSWERED)
            }
        }
    };
    Box::pin(stream::once(asked).flatten())
}

/// Error for a batched request that its node refuses, with the reason.
fn not_taken(reason: &[u8]) -> String {
    match String::from_utf8_lossy(reason).trim_end() {
        "" => NOT_TAKEN.to_owned(),
        reason => format!("{NOT_TAKEN} ({reason})"),
    }
}

/// Waits for the first bytes of a response; `None` if none arrive. Other messages of the batch are not affected.
async fn begun(
    parts: impl Stream<Item = Result<Bytes, Aborted>> + 'static,
) -> Option<ForwardedResponse> {
    let mut parts = Box::pin(parts);
    let first = parts.next().await?;
    if let Err(error) = &first {
        peer_line!(warn, LinePeer::Part("other nodes"), %error, "a forwarded response broke off");
    }
    Some(Box::pin(stream::iter([Ok(first.ok()?)]).chain(parts)))
}

/// Whether the other node did not process the request.
fn was_not_asked(error: &PeerError) -> bool {
    match error {
        PeerError::Gone(_) | PeerError::Unreached { .. } | PeerError::NotAdvertised(_) => true,
        PeerError::SecondHop
        | PeerError::TooLong
        | PeerError::Unanswered { .. }
        | PeerError::Unknown { .. } => false,
    }
}

/// Response to a request that another node did not serve. Reports the session as lost only if the node is dead or
/// has no address, since that ends the session.
fn refused(error: &PeerError) -> Response<Body> {
    if matches!(error, PeerError::Unreached { .. }) {
        tracing::debug!(%error, "the owning node is unreachable");
        return retry_later(NOT_REACHED);
    }
    if was_not_asked(error) {
        tracing::debug!(%error, "the owning node is gone");
        return gone();
    }
    peer_line!(warn, LinePeer::Part("other nodes"), %error, "failed to forward a request");
    plain(StatusCode::BAD_GATEWAY, NOT_ANSWERED)
}

/// Forwards the request to all other living nodes; if `reopens` is set, also to those without the session.
pub(super) async fn broadcast(post: &Post<'_>, body: &[u8], reopens: bool) {
    let Some(peers) = peers(post) else { return };
    if post.connection.origin != Origin::Client {
        return;
    }
    let sent = envelope(post, body, reopens);
    let others = post.worker.proxy.nodes.others(MAX_BROADCAST);
    future::join_all(others.iter().map(|node| send(peers, node, sent.clone()))).await;
}

async fn send(peers: &Peers, node: &str, sent: Bytes) {
    let response = async {
        let asked = peers.request(node, PeerRoute::Session, sent, Hop::First);
        asked.await?.into_body().whole(MAX_UNREAD_BYTES).await
    };
    match tokio::time::timeout(BROADCAST_TIMEOUT, response).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => tracing::debug!(%error, "failed to notify a node"),
        Err(_) => tracing::debug!(node, "timed out notifying a node"),
    }
}

fn peers<'a>(post: &Post<'a>) -> Option<&'a Arc<Peers>> {
    post.worker.proxy.nodes.peers()
}

/// Encodes a request for forwarding.
fn envelope(post: &Post<'_>, body: &[u8], reopens: bool) -> Bytes {
    envelope_of(post, post.head, body, reopens)
}

/// Encodes a request with another head.
fn envelope_of(post: &Post<'_>, head: &Parts, body: &[u8], reopens: bool) -> Bytes {
    let Parts { method, uri, headers, .. } = head;
    let is_hop_by_hop = |name: &HeaderName| {
        [HOST, CONTENT_LENGTH, TRANSFER_ENCODING, CONNECTION].contains(name) || name == HEADER
    };
    let latin = |value: &HeaderValue| value.as_bytes().iter().copied().map(char::from).collect();
    let sent = headers.iter().filter(|(name, _)| !is_hop_by_hop(name));
    let principal = match &post.principal {
        Principal::Anonymous => ForwardedPrincipal::Anonymous,
        Principal::Admin => ForwardedPrincipal::Admin,
        Principal::Certificate(id) => {
            ForwardedPrincipal::Certificate(id.strip_prefix("cert:").unwrap_or(id).to_owned())
        }
        Principal::Token(_) | Principal::Subject(_) => ForwardedPrincipal::Headers,
    };
    let head = ForwardedHead {
        method: method.as_str().to_owned(),
        target: uri.path_and_query().map_or(uri.path(), |it| it.as_str()).to_owned(),
        headers: sent.map(|(name, value)| (name.as_str().to_owned(), latin(value))).collect(),
        principal,
        mark: post.principal.mark(),
        from: match post.connection.source {
            Source::Loopback => None,
            Source::Remote(address) => Some(address),
        },
        reopens,
    };
    let mut sent = serde_json::to_vec(&head).unwrap_or_default();
    sent.push(b'\n');
    sent.extend_from_slice(body);
    sent.into()
}

/// Decodes the output of [`envelope`]: the request's head, its metadata, and the body.
pub(super) fn decode(sent: &Bytes) -> Option<(Parts, ForwardedHead, Bytes)> {
    let end = sent.iter().take(MAX_FORWARDED_HEAD_BYTES).position(|byte| *byte == b'\n')?;
    let metadata: ForwardedHead = serde_json::from_slice(sent.get(..end)?).ok()?;
    let mut request =
        Request::builder().method(metadata.method.as_str()).uri(metadata.target.as_str());
    for (name, value) in &metadata.headers {
        let bytes: Option<Vec<u8>> = value.chars().map(|c| u8::try_from(c).ok()).collect();
        request = request.header(name.as_str(), HeaderValue::from_bytes(&bytes?).ok()?);
    }
    let (head, ()) = request.body(()).ok()?.into_parts();
    Some((head, metadata, sent.slice(end + 1..)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_refused_forward_includes_the_reason() {
        assert_eq!(not_taken(b""), NOT_TAKEN);
        let text = not_taken(b"the request body exceeds the memory budget\n");
        assert_eq!(text, format!("{NOT_TAKEN} (the request body exceeds the memory budget)"));
    }

    #[test]
    fn forwarded_request_round_trips() {
        let head = ForwardedHead {
            method: "POST".into(),
            target: "/mcp?apikey=x".into(),
            headers: vec![("x-api-key".into(), "s\u{e4}\u{ff}".into())],
            principal: ForwardedPrincipal::Certificate("ada".into()),
            mark: Principal::certificate("ada").mark(),
            from: Some([10, 0, 0, 1].into()),
            reopens: true,
        };
        let mut sent = serde_json::to_vec(&head).unwrap();
        sent.extend(b"\n{\"a\":\n1}");
        let (head, metadata, body) = decode(&sent.clone().into()).unwrap();
        assert_eq!((head.method.as_str(), head.uri.path()), ("POST", "/mcp"));
        assert_eq!(head.headers.get("x-api-key").unwrap().as_bytes(), b"s\xe4\xff");
        assert_eq!(
            (metadata.mark, metadata.from),
            (Principal::certificate("ada").mark(), Some([10, 0, 0, 1].into()))
        );
        assert_eq!(&body[..], b"{\"a\":\n1}");
        for end in 0..sent.iter().position(|byte| *byte == b'\n').unwrap() {
            assert!(decode(&Bytes::copy_from_slice(&sent[..end])).is_none());
        }
        assert!(decode(&Bytes::from_static(b"{}\n")).is_none());
        assert!(decode(&vec![b' '; 1 << 20].into()).is_none());
    }
}
