//! Requests of a session that another node of the fleet has to answer: since the event stream that is resumed, the question that
//! is answered, or the session itself is there. They go there whole, by one hop, with what this node has proven of the client;
//! what its credentials prove is proven there once more ([`forwarded`](super::forwarded)).
//!
//! What concerns a session wherever it is (its end, its level, the end of a call) is told to all nodes that live, each of them
//! for [`TELL_LIMIT`] at most; a node that does not hear it goes on without.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt, future, stream};
use http::header::{ACCEPT, CONNECTION, CONTENT_LENGTH, HOST, RETRY_AFTER, TRANSFER_ENCODING};
use http::request::Parts;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use serde::{Deserialize, Serialize};

use crate::downstream::body::Body;
use crate::downstream::client_connection::{CameBy, Post};
use crate::downstream::request_body::MAX_BODY_BYTES;
use crate::downstream::response::plain;
use crate::downstream::source::Source;
use crate::fleet::living_nodes::{LivingNodes, NodeState};
use crate::fleet::peer_wire::{HEADER, MAX_REQUEST_BYTES, PeerRoute};
use crate::fleet::peers::{Hop, PeerError, Peers};
use crate::fleet::sealed_mark::NodeTag;
use crate::mcp::jsonrpc::{self, Code};
use crate::policy::Principal;
use crate::proxy::reply::Aborted;

/// Most bytes of the head of a request that is passed on.
const MAX_FORWARDED_HEAD_BYTES: usize = 256 * 1024;
const _: () = assert!(MAX_BODY_BYTES + MAX_FORWARDED_HEAD_BYTES <= MAX_REQUEST_BYTES);
/// The longest that a node is waited for that is told something.
const TELL_LIMIT: Duration = Duration::from_secs(2);
/// Most nodes that are told something.
const MAX_TOLD: usize = 1024;
/// Most bytes of an answer that nobody reads.
const MAX_UNREAD_BYTES: usize = 64 * 1024;
/// Told where the session is to begin anew.
pub(super) const GONE: &str = "Session not found: send initialize again";
/// Told where it cannot be said whether what is asked for is there: nothing was done, and nothing is over.
pub(super) const NOT_KNOWN: &str = "This is on another node, and it is not known yet whether that lives: nothing was done, and the session goes on; ask again";
/// Told where the node that something is on lives, as far as is known, and cannot be reached: it was not asked.
pub(super) const NOT_REACHED: &str = "This is on another node, which cannot be reached now: nothing was done, and nothing is over; ask again";
/// In how many seconds it is asked again then: who lives is read anew by then.
const ASK_AGAIN_S: u16 = 2;
/// Told with what the node says that something is on and that does not take it: it has no room for it.
const NOT_TAKEN: &str = "This is on another node, which does not take it now: nothing was done, and nothing is over; ask again";
/// Told where another node may have done what was asked.
pub(super) const NOT_ANSWERED: &str = "the node that this is on did not answer";

/// The answer to a request that was passed on, as it comes.
pub(super) type PassedOn = Pin<Box<dyn Stream<Item = Result<Bytes, Aborted>>>>;

/// Where something lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Whereabouts {
    /// On this node, or nowhere that is known.
    Here,
    /// On the node of that name.
    On(Box<str>),
    /// On a node that says not how it is reached.
    Unreachable,
    /// On a node of which it is not known whether it lives: this node has just started, or that one has, or the store is away.
    NotKnown,
    /// It lived on a node that does not any more.
    Gone,
}

/// A request as it was read where it came in; its body follows after a line end.
#[derive(Serialize, Deserialize)]
pub(super) struct ForwardedHead {
    method: String,
    target: String,
    /// Each value's bytes as characters.
    headers: Vec<(String, String)>,
    pub(super) principal: ForwardedPrincipal,
    /// [`Principal::mark`]
    pub(super) mark: [u8; 16],
    /// The client's address, unless it is on the machine that it came to.
    pub(super) from: Option<IpAddr>,
    /// Whether the session is opened where it is not.
    pub(super) reopens: bool,
}

/// On whose behalf.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ForwardedPrincipal {
    Anonymous,
    Admin,
    /// What stands behind `cert:`.
    Certificate(String),
    /// Whoever the request's own headers prove.
    Headers,
}

/// The node with that number, or with that tag, as far as this one knows.
pub(super) fn whereabouts(post: &Post<'_>, is_it: impl Fn(NodeTag) -> bool) -> Whereabouts {
    let Some(fleet) = &post.worker.proxy.fleet else { return Whereabouts::Here };
    if post.connection.came_by != CameBy::Client || is_it(NodeTag::of(&fleet.name)) {
        return Whereabouts::Here;
    }
    by_what_is_seen(&fleet.living(), is_it)
}

/// Where another node is that has such a tag.
fn by_what_is_seen(living: &LivingNodes, is_it: impl Fn(NodeTag) -> bool) -> Whereabouts {
    match living.all().iter().find(|view| is_it(NodeTag::of(&view.name))) {
        None if living.may_lack_some() => Whereabouts::NotKnown,
        None => Whereabouts::Here,
        Some(view) if view.state == NodeState::Living => {
            let said = view.heartbeat.as_ref().and_then(|said| said.advertise.as_ref());
            match said {
                Some(_) => Whereabouts::On(view.name.as_str().into()),
                None => Whereabouts::Unreachable,
            }
        }
        Some(view) if view.is_undecided() => Whereabouts::NotKnown,
        Some(_) => Whereabouts::Gone,
    }
}

/// The answer that makes a client begin a new session: what it asks for was on a node that is no more.
pub(super) fn gone() -> Response<Body> {
    plain(StatusCode::NOT_FOUND, GONE)
}

/// The answer that makes a client ask again, in the same session.
pub(super) fn not_known() -> Response<Body> {
    ask_again(NOT_KNOWN)
}

fn ask_again(text: &'static str) -> Response<Body> {
    let mut response = plain(StatusCode::SERVICE_UNAVAILABLE, text);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(ASK_AGAIN_S));
    response
}

/// The node that sends what one principal, as which the request is made, asks of servers that keep something between calls,
/// where no session says which; `None` if it is this one. Nodes that know the same others find the same.
pub(super) fn of_principal(post: &Post<'_>) -> Option<Box<str>> {
    let fleet = post.worker.proxy.fleet.as_ref()?;
    if post.connection.came_by != CameBy::Client || fleet.peers().is_none() {
        return None;
    }
    let (living, mark) = (fleet.living(), post.principal.mark());
    let reached = living
        .living()
        .filter(|view| view.heartbeat.as_ref().is_some_and(|said| said.advertise.is_some()));
    let key = blake3::hash(&mark);
    let weight = |name: &str| *blake3::keyed_hash(key.as_bytes(), name.as_bytes()).as_bytes();
    let highest = reached.max_by_key(|view| weight(view.name.as_str()))?;
    (highest.name != fleet.name).then(|| highest.name.as_str().into())
}

/// Asks that node for the answer; a client learns what became of it.
pub(super) async fn forward(post: &Post<'_>, node: &str, body: &[u8]) -> Response<Body> {
    ask(post, node, body).await.unwrap_or_else(|error| refused(&error))
}

/// Asks that node for the answer.
///
/// # Errors
/// It did not answer.
pub(super) async fn ask(
    post: &Post<'_>,
    node: &str,
    body: &[u8],
) -> Result<Response<Body>, PeerError> {
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

/// Lets that node have a message of a batch that nothing answers, for [`TELL_LIMIT`] at most.
pub(super) async fn tell(post: &Post<'_>, node: &str, body: &[u8]) {
    let Some(peers) = peers(post) else { return };
    told(peers, node, envelope(post, body, true)).await;
}

/// Asks that node for the answer to one request of a batch, once this is polled: the JSON of the answer, or of an error in its
/// place; what has begun and breaks off is aborted. `id` is raw, `not_there` is told where the node was not asked.
pub(super) fn answer_to(
    post: &Post<'_>,
    node: Box<str>,
    id: Bytes,
    not_there: &'static str,
    body: &[u8],
) -> PassedOn {
    let peers = peers(post).cloned();
    let mut head = post.head.clone();
    // One answer, and nothing before it.
    head.headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    let sent = envelope_of(post, &head, body, true);
    let failed = move |text: &str| -> PassedOn {
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
                let said = response.into_body().whole(MAX_UNREAD_BYTES).await.unwrap_or_default();
                failed(&not_taken(&said))
            }
            Ok(_) => failed(NOT_ANSWERED),
            // It is found dead soon, if it is: only then what is there is gone.
            Err(PeerError::Unreached { .. }) => failed(NOT_REACHED),
            Err(error) if was_not_asked(&error) => failed(not_there),
            Err(error) => {
                tracing::warn!(%error, "a request of a batch could not be passed on");
                failed(NOT_ANSWERED)
            }
        }
    };
    Box::pin(stream::once(asked).flatten())
}

/// What is told of a request of a batch that its node does not take, with what that says.
fn not_taken(said: &[u8]) -> String {
    match String::from_utf8_lossy(said).trim_end() {
        "" => NOT_TAKEN.to_owned(),
        said => format!("{NOT_TAKEN} ({said})"),
    }
}

/// An answer once its first bytes are there; `None` if none come, which costs the others of a batch nothing.
async fn begun(parts: impl Stream<Item = Result<Bytes, Aborted>> + 'static) -> Option<PassedOn> {
    let mut parts = Box::pin(parts);
    let first =
        parts.next().await?.inspect_err(|error| tracing::warn!(%error, "an answer broke off"));
    Some(Box::pin(stream::iter([Ok(first.ok()?)]).chain(parts)))
}

/// True if the other node has done nothing because of the request.
pub(super) fn was_not_asked(error: &PeerError) -> bool {
    match error {
        PeerError::Gone(_) | PeerError::Unreached { .. } | PeerError::NotAdvertised(_) => true,
        PeerError::SecondHop
        | PeerError::TooLong
        | PeerError::Unanswered { .. }
        | PeerError::Unknown { .. } => false,
    }
}

/// What a client is told whose request another node did not answer: that it is gone ends its session, so that it is told only
/// where that node is known to be gone, or to be reached by nobody.
pub(super) fn refused(error: &PeerError) -> Response<Body> {
    if matches!(error, PeerError::Unreached { .. }) {
        tracing::debug!(%error, "what a client asks for is on another node");
        return ask_again(NOT_REACHED);
    }
    if was_not_asked(error) {
        tracing::debug!(%error, "what a client asks for was on another node");
        return gone();
    }
    tracing::warn!(%error, "a request could not be passed on");
    plain(StatusCode::BAD_GATEWAY, NOT_ANSWERED)
}

/// Lets all other nodes that live do the same. `reopens`: also where the session is not open.
pub(super) async fn tell_all(post: &Post<'_>, body: &[u8], reopens: bool) {
    let (Some(fleet), Some(peers)) = (&post.worker.proxy.fleet, peers(post)) else { return };
    if post.connection.came_by != CameBy::Client {
        return;
    }
    let (living, sent) = (fleet.living(), envelope(post, body, reopens));
    let others = living.living().filter(|view| view.name != fleet.name).take(MAX_TOLD);
    future::join_all(others.map(|view| told(peers, view.name.as_str(), sent.clone()))).await;
}

/// Tells one node.
async fn told(peers: &Peers, node: &str, sent: Bytes) {
    let told = async {
        let asked = peers.request(node, PeerRoute::Session, sent, Hop::First);
        asked.await?.into_body().whole(MAX_UNREAD_BYTES).await
    };
    match tokio::time::timeout(TELL_LIMIT, told).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a node was not told"),
        Err(_) => tracing::debug!(node, "a node was not told in time"),
    }
}

fn peers<'a>(post: &Post<'a>) -> Option<&'a Arc<Peers>> {
    post.worker.proxy.fleet.as_ref()?.peers()
}

/// What is sent of a request.
fn envelope(post: &Post<'_>, body: &[u8], reopens: bool) -> Bytes {
    envelope_of(post, post.head, body, reopens)
}

/// The same under that head.
fn envelope_of(post: &Post<'_>, head: &Parts, body: &[u8], reopens: bool) -> Bytes {
    let Parts { method, uri, headers, .. } = head;
    let is_ours = |name: &HeaderName| {
        [HOST, CONTENT_LENGTH, TRANSFER_ENCODING, CONNECTION].contains(name) || name == HEADER
    };
    let latin = |value: &HeaderValue| value.as_bytes().iter().copied().map(char::from).collect();
    let sent = headers.iter().filter(|(name, _)| !is_ours(name));
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

/// Reads what [`envelope`] writes: the head of the request, what was said of it, and its body.
pub(super) fn read(sent: &Bytes) -> Option<(Parts, ForwardedHead, Bytes)> {
    let end = sent.iter().take(MAX_FORWARDED_HEAD_BYTES).position(|byte| *byte == b'\n')?;
    let said: ForwardedHead = serde_json::from_slice(sent.get(..end)?).ok()?;
    let mut request = Request::builder().method(said.method.as_str()).uri(said.target.as_str());
    for (name, value) in &said.headers {
        let bytes: Option<Vec<u8>> = value.chars().map(|c| u8::try_from(c).ok()).collect();
        request = request.header(name.as_str(), HeaderValue::from_bytes(&bytes?).ok()?);
    }
    let (head, ()) = request.body(()).ok()?.into_parts();
    Some((head, said, sent.slice(end + 1..)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::config::NodeName;
    use crate::fleet::heartbeat::tests::example;
    use crate::fleet::heartbeat::{BootId, Heartbeat};
    use crate::fleet::living_nodes::{DEAD_AFTER_MS, NodeWatch};

    #[test]
    fn only_a_node_that_is_known_to_be_gone_is_gone() {
        let [own, a] = ["me", "a"].map(|name| NodeName::parse(name).unwrap());
        let is_a = |tag| tag == NodeTag::of(&a);
        let of = |living: &LivingNodes| by_what_is_seen(living, is_a);
        let away = || "the store is away".to_owned();
        assert_eq!(of(&LivingNodes::default()), Whereabouts::NotKnown, "nobody was read");
        assert_eq!(of(&LivingNodes::default().unseen(away())), Whereabouts::NotKnown);
        let mut watch = NodeWatch::new(own, BootId([9; 16]));
        assert_eq!(of(&watch.snapshot(None)), Whereabouts::Here, "there is no such node");
        assert_eq!(of(&watch.snapshot(Some(away()))), Whereabouts::NotKnown, "it may be new");
        watch.there_are([a.clone()]);
        assert_eq!(of(&watch.snapshot(None)), Whereabouts::NotKnown, "nothing was read of it");
        let beat = |beat| example(1, beat, 0);
        let changed = |number, change: fn(&mut Heartbeat)| {
            let mut said = beat(number);
            change(&mut said);
            said
        };
        let mut read = |said: Heartbeat, now| {
            watch.sees(&a, Some(Ok(said)), (now, 0), true);
            watch.snapshot(None)
        };
        assert_eq!(of(&read(beat(1), 0)), Whereabouts::NotKnown, "it may have lain there");
        let living = read(beat(2), 1000);
        assert_eq!(of(&living), Whereabouts::On("a".into()));
        assert_eq!(of(&living.unseen(away())), Whereabouts::On("a".into()));
        assert_eq!(
            of(&read(changed(3, |said| said.advertise = None), 2000)),
            Whereabouts::Unreachable
        );
        let silent = (1..=DEAD_AFTER_MS / 1000).map(|at| read(beat(3), 2000 + at * 1000));
        assert_eq!(of(&silent.last().unwrap()), Whereabouts::Gone);
        let stopped = changed(4, |said| said.stopping = true);
        assert_eq!(of(&read(stopped, 60_000)), Whereabouts::Gone);
    }

    #[test]
    fn what_its_node_does_not_take_is_told_with_what_that_says() {
        assert_eq!(not_taken(b""), NOT_TAKEN);
        let told = not_taken(b"the request body found no room\n");
        assert_eq!(told, format!("{NOT_TAKEN} (the request body found no room)"));
    }

    #[test]
    fn a_request_is_read_as_it_was_sent() {
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
        let (head, said, body) = read(&sent.clone().into()).unwrap();
        assert_eq!((head.method.as_str(), head.uri.path()), ("POST", "/mcp"));
        assert_eq!(head.headers.get("x-api-key").unwrap().as_bytes(), b"s\xe4\xff");
        assert_eq!(
            (said.mark, said.from),
            (Principal::certificate("ada").mark(), Some([10, 0, 0, 1].into()))
        );
        assert_eq!(&body[..], b"{\"a\":\n1}");
        for end in 0..sent.iter().position(|byte| *byte == b'\n').unwrap() {
            assert!(read(&Bytes::copy_from_slice(&sent[..end])).is_none());
        }
        assert!(read(&Bytes::from_static(b"{}\n")).is_none());
        assert!(read(&vec![b' '; 1 << 20].into()).is_none());
    }
}
