//! Requests to other nodes over their advertised listeners, authentication of incoming ones, and suspected peers.
//!
//! [`crate::peer_wire`] defines the wire format and authentication; request routing decides who handles a request.
//! Forwarding is limited to one hop ([`Hop`]).
//!
//! A failed request marks its peer as suspected ([`SuspectedPeers`]); its heartbeat is re-read on the next tick.
//!
//! [`PeerLiveness`] watches the liveness of the requested node while its response is pending, because a node that
//! loses power or its network does not close its connections. Like request routing, it relies on heartbeats in the
//! store ([`Membership`]), so that during a store outage no node counts as dead.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt};
use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::Full;
use mcpproxy_runtime::io::clock::wall_ms;
use mcpproxy_runtime::io::http_client::{
    HttpConnection, HttpFault, HttpOrigin, IdleConnections, UnreadResponse,
};
use mcpproxy_runtime::io::line_budget::{LinePeer, peer_line};
use mcpproxy_runtime::io::tls::system_connector;
use parking_lot::Mutex;
use socket2::{SockRef, TcpKeepalive};
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::OnceCell;
use tokio::time::Sleep;
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;
use url::Url;

use crate::cluster_key::PurposeKeys;
use crate::config::{AdvertisedUrl, NodeName};
use crate::failure_detector::{Membership, NodeState};
use crate::node_state::FleetId;
use crate::peer_wire::{
    AnswerFrames, AnswerKey, AnswerReader, FRESH_MS, HEADER, MAX_REQUEST_BYTES, PeerAnswerPart,
    PeerRequestHead, PeerRoute, PeerSender, RequestBinding, RequestCounters, SeenRequests,
};

/// Time limit for connecting to another node.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// Idle time after which a connection is not reused; the other side closes it later.
const IDLE_LIMIT: Duration = Duration::from_secs(10);
/// Maximum number of idle connections per node.
const MAX_IDLE: usize = 32;
/// Content type of request bodies.
const BODY_TYPE: &str = "application/octet-stream";

/// Origin of a request to this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hop {
    /// A client: the request may be forwarded to another node.
    First,
    /// Another node: the request is not forwarded.
    Last,
}

/// Reason why another node did not respond.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum PeerError {
    /// The node does not exist or is dead, and its state is lost.
    #[error("node '{0}' is not alive")]
    Gone(String),
    #[error("node '{0}' has no cluster.advertise")]
    NotAdvertised(String),
    #[error("a request from another node would need a second hop")]
    SecondHop,
    #[error("a request to another node exceeds {MAX_REQUEST_BYTES} bytes")]
    TooLong,
    /// The node is unreachable; the request was not sent.
    #[error("node '{node}' cannot be reached: {why}")]
    Unreached { node: String, why: String },
    /// The response was late or truncated: the request may have been processed.
    #[error("node '{node}' did not answer: {why}")]
    Unanswered { node: String, why: String },
    /// The responder is not the requested node, or does not accept this one.
    #[error(
        "peer '{node}' failed authentication ({why}): check that both nodes use the same cluster.key"
    )]
    Unknown { node: String, why: String },
}

/// Client for requests to other nodes.
pub struct Peers {
    own: PeerSender,
    fleet: FleetId,
    keys: PurposeKeys,
    living: Arc<ArcSwap<Membership>>,
    suspected: SuspectedPeers,
    counters: Mutex<RequestCounters>,
    seen: Mutex<SeenRequests>,
    base: Instant,
    /// Runtime that owns the sockets, because callers may block their own threads.
    runtime: Handle,
    tls: OnceCell<TlsConnector>,
    idle: Arc<IdleConnections>,
}

/// Authenticated request of another node, whose body is still to be verified.
#[derive(Debug)]
pub struct AdmittedRequest {
    pub from: PeerSender,
    pub route: PeerRoute,
    body: [u8; 32],
    answer: AnswerKey,
}

impl AdmittedRequest {
    /// True if this is the request's body.
    pub fn is_of(&self, body: &[u8]) -> bool {
        *blake3::hash(body).as_bytes() == self.body
    }

    /// Encoder of the response frames.
    pub fn frames(&self) -> AnswerFrames {
        AnswerFrames::new(self.answer.clone())
    }
}

impl std::fmt::Debug for Peers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Peers").field(&self.own).finish()
    }
}

impl Peers {
    /// Creates a client for this node. Peers that fail are added to `suspected`. Connections run on `runtime`.
    pub(crate) fn new(
        own: PeerSender,
        fleet: FleetId,
        keys: PurposeKeys,
        (living, suspected): (Arc<ArcSwap<Membership>>, SuspectedPeers),
        runtime: Handle,
    ) -> Self {
        Self {
            own,
            fleet,
            keys,
            living,
            suspected,
            counters: Mutex::default(),
            seen: Mutex::default(),
            base: Instant::now(),
            runtime,
            tls: OnceCell::new(),
            idle: Arc::new(IdleConnections::new(MAX_IDLE, IDLE_LIMIT)),
        }
    }

    /// Authenticates a request header: sent by a node of this fleet to this start of this node, recent and not seen
    /// before. Any other request is rejected without a reason.
    pub fn admit(
        &self,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
    ) -> Option<AdmittedRequest> {
        let route = PeerRoute::of(path)?;
        if method != Method::POST {
            return None;
        }
        let mut values = headers.get_all(HEADER).iter();
        let (value, None) = (values.next()?.to_str().ok()?, values.next()) else { return None };
        let place = RequestBinding { fleet: self.fleet, path };
        let (head, answer) = place.open(value, &self.keys)?;
        if head.to != self.own || head.from == self.own {
            return None;
        }
        let now = self.base.elapsed().as_millis() as u64;
        if head.time.abs_diff(wall_ms()) > FRESH_MS {
            Self::log_rejection(&head.from, "outdated");
            return None;
        }
        if !self.seen.lock().take(head.from.boot, head.counter, now) {
            Self::log_rejection(&head.from, "replayed");
            return None;
        }
        Some(AdmittedRequest { from: head.from, route, body: head.body, answer })
    }

    /// Logs a rejected request.
    fn log_rejection(from: &PeerSender, reason: &'static str) {
        // Anyone who captured a request can replay it any number of times.
        let node = from.node.as_str();
        peer_line!(warn, LinePeer::Node(node), node, reason, "rejected a request of another node");
    }

    /// Sends a request to another node and waits for the response header while that node is alive. The body
    /// is verified as it arrives: all received bytes are authentic, and an end without error is the true end.
    pub async fn request(
        &self,
        node: &str,
        route: PeerRoute,
        body: Bytes,
        hop: Hop,
    ) -> Result<Response<PeerBody>, PeerError> {
        if hop == Hop::Last {
            return Err(PeerError::SecondHop);
        }
        if body.len() > MAX_REQUEST_BYTES {
            return Err(PeerError::TooLong);
        }
        let answer = self.ask(node, route, body).await;
        match &answer {
            // The node may have restarted at another address.
            Err(
                PeerError::Unreached { .. }
                | PeerError::Unanswered { .. }
                | PeerError::Unknown { .. },
            ) => self.suspected.suspect(node),
            Err(
                PeerError::Gone(_)
                | PeerError::NotAdvertised(_)
                | PeerError::SecondHop
                | PeerError::TooLong,
            )
            | Ok(_) => {}
        }
        answer
    }

    async fn ask(
        &self,
        node: &str,
        route: PeerRoute,
        body: Bytes,
    ) -> Result<Response<PeerBody>, PeerError> {
        let (url, to, time) = self.address(node)?;
        let unreached = |why: String| PeerError::Unreached { node: node.to_owned(), why };
        let mut host = url.host_str().unwrap_or_default().to_owned();
        if let Some(port) = url.port() {
            host = format!("{host}:{port}");
        }
        // A restarted node gets new connections.
        let key = format!("{} {url}", to.boot);
        let mut life = PeerLiveness::new(Arc::clone(&self.living), to.clone());
        let connection = match self.idle.take(&key) {
            Some(connection) => connection,
            None => self.connect(url).await.map_err(unreached)?,
        };
        // The request is numbered when it is ready to be sent, because the reordering window is bounded.
        let counter = self.counters.lock().next(to.boot);
        let (from, digest) = (self.own.clone(), *blake3::hash(&body).as_bytes());
        let head = PeerRequestHead { from, to, time, counter, body: digest };
        let place = RequestBinding { fleet: self.fleet, path: route.path() };
        let (value, answer) = place.seal(&head, &self.keys);
        let request = Request::post(route.path())
            .header(HOST, host)
            .header(CONTENT_TYPE, BODY_TYPE)
            .header(HEADER, value)
            .body(Full::new(body))
            .map_err(|error| unreached(error.to_string()))?;
        let unanswered = |why: String| PeerError::Unanswered { node: node.to_owned(), why };
        let asked = async {
            let sent = tokio::select! {
                biased;
                sent = connection.send(request) => sent,
                () = std::future::poll_fn(|cx| life.poll_end(cx)) => {
                    return Err(unanswered(PeerLiveness::end_reason()));
                }
            };
            let sent = sent.map_err(|error| unanswered(error.to_string()))?;
            if sent.head.status != StatusCode::OK {
                let why = format!("status {}", sent.head.status.as_u16());
                return Err(PeerError::Unknown { node: node.to_owned(), why });
            }
            let mut body = PeerBody {
                node: node.into(),
                reply: Some(sent),
                reader: AnswerReader::new(answer),
                life,
                over: false,
                pool: (Arc::clone(&self.idle), key),
            };
            match std::future::poll_fn(|cx| body.poll_part(cx)).await? {
                PeerAnswerPart::Head(status, headers) => {
                    let mut response = Response::new(body);
                    *response.status_mut() = status;
                    *response.headers_mut() = headers;
                    Ok(response)
                }
                PeerAnswerPart::Data(_) | PeerAnswerPart::End | PeerAnswerPart::Broken => {
                    Err(unanswered("the response has no header frame".to_owned()))
                }
            }
        };
        let limit = Duration::from_millis(route.answer_limit_ms());
        tokio::time::timeout(limit, asked).await.unwrap_or_else(|_| {
            Err(unanswered(format!("no response within {} s", limit.as_secs())))
        })
    }

    /// URL, identity and current time of an alive node.
    fn address(&self, node: &str) -> Result<(Url, PeerSender, u64), PeerError> {
        let living = self.living.load();
        let not_alive = || PeerError::Gone(node.to_owned());
        let view =
            living.get(node).filter(|it| it.state == NodeState::Alive).ok_or_else(not_alive)?;
        let heartbeat = view.heartbeat.as_ref().ok_or_else(not_alive)?;
        let advertised =
            heartbeat.advertise.as_deref().and_then(|it| AdvertisedUrl::parse(it).ok());
        let url = advertised.ok_or_else(|| PeerError::NotAdvertised(node.to_owned()))?;
        let to = PeerSender { node: view.name.clone(), boot: heartbeat.boot };
        let time =
            wall_ms().saturating_add_signed(view.skew_ms.unwrap_or_default().saturating_neg());
        Ok((url.url().clone(), to, time))
    }

    async fn connect(&self, url: Url) -> Result<HttpConnection, String> {
        let tls = match url.scheme() {
            "https" => {
                let load = || tokio::task::spawn_blocking(system_connector);
                let tls = self.tls.get_or_try_init(load).await;
                Some(tls.map_err(|error| error.to_string())?.clone())
            }
            _ => None,
        };
        // Never through an egress proxy.
        let origin = HttpOrigin::with(url, tls, None);
        let open = async move {
            let tcp = origin.dial(|_| true).await?;
            detect_unreachable(&tcp);
            origin.over(tcp).await
        };
        let connecting = async {
            match tokio::time::timeout(CONNECT_LIMIT, open).await {
                Ok(opened) => opened.map_err(|error| error.to_string()),
                Err(_) => Err(format!("no connection within {} s", CONNECT_LIMIT.as_secs())),
            }
        };
        // The socket belongs to the client's runtime, regardless of the thread that uses the connection.
        let connecting = AbortOnDropHandle::new(self.runtime.spawn(connecting));
        connecting.await.unwrap_or_else(|error| Err(error.to_string()))
    }
}

/// Response body, verified as it arrives; fails once the node is dead. Dropping it early closes the connection, which
/// cancels the request.
#[derive(Debug)]
pub struct PeerBody {
    node: Box<str>,
    /// `None` once the connection was returned to the pool.
    reply: Option<UnreadResponse>,
    reader: AnswerReader,
    life: PeerLiveness,
    over: bool,
    /// The connection pool, and the key of this connection in it.
    pool: (Arc<IdleConnections>, String),
}

impl PeerBody {
    /// Collects the body, at most `max` bytes.
    ///
    /// # Errors
    ///
    /// [`PeerError`]; [`PeerError::Unanswered`] if the body is longer.
    pub async fn whole(mut self, max: usize) -> Result<Bytes, PeerError> {
        let mut whole = BytesMut::new();
        while let Some(part) = self.next().await.transpose()? {
            if whole.len() + part.len() > max {
                return Err(self.unanswered(format!("the response exceeds {max} bytes")));
            }
            whole.extend_from_slice(&part);
        }
        Ok(whole.freeze())
    }

    fn unanswered(&self, why: impl Into<String>) -> PeerError {
        PeerError::Unanswered { node: self.node.to_string(), why: why.into() }
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Result<PeerAnswerPart, PeerError>> {
        loop {
            match self.reader.part() {
                Ok(Some(part)) => return Poll::Ready(Ok(part)),
                Ok(None) => {}
                Err(bad) => {
                    let (node, why) = (self.node.to_string(), bad.to_string());
                    return Poll::Ready(Err(PeerError::Unknown { node, why }));
                }
            }
            let Poll::Ready(data) = self.poll_data(cx) else {
                ready!(self.life.poll_end(cx));
                return Poll::Ready(Err(self.unanswered(PeerLiveness::end_reason())));
            };
            match data {
                Some(Ok(data)) => self.reader.push(&data),
                Some(Err(error)) => return Poll::Ready(Err(self.unanswered(error.to_string()))),
                None => return Poll::Ready(Err(self.unanswered("the response was truncated"))),
            }
        }
    }

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, HttpFault>>> {
        self.reply.as_mut().map_or(Poll::Ready(None), |reply| reply.poll_data(cx))
    }

    /// Returns the connection to the pool once the end of the body was read.
    fn finish(&mut self, cx: &mut Context<'_>) {
        let ended = self.poll_data(cx);
        if let (Poll::Ready(None), Some(reply)) = (ended, self.reply.take()) {
            let (idle, key) = &self.pool;
            idle.keep(key.clone(), reply.into_connection());
        }
    }
}

impl Stream for PeerBody {
    type Item = Result<Bytes, PeerError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if this.over {
            return Poll::Ready(None);
        }
        let part = ready!(this.poll_part(cx));
        this.over = !matches!(part, Ok(PeerAnswerPart::Data(_)));
        Poll::Ready(match part {
            Ok(PeerAnswerPart::Data(data)) => Some(Ok(data)),
            Ok(PeerAnswerPart::End) => {
                this.finish(cx);
                None
            }
            Ok(PeerAnswerPart::Broken) => {
                Some(Err(this.unanswered("the peer aborted the response")))
            }
            Ok(PeerAnswerPart::Head(..)) => {
                Some(Err(this.unanswered("a second header frame arrived")))
            }
            Err(error) => Some(Err(error)),
        })
    }
}

/// Maximum number of suspected peers; further ones are dropped.
const MAX_SUSPECTED: usize = 64;

/// Suspected peers: nodes whose heartbeat is re-read on the next tick. Clones share the set.
#[derive(Clone, Debug, Default)]
pub(crate) struct SuspectedPeers(Arc<Mutex<BTreeSet<NodeName>>>);

impl SuspectedPeers {
    /// Marks a peer as suspected.
    pub(crate) fn suspect(&self, node: &str) {
        let Some(name) = NodeName::parse(node) else { return };
        let mut suspected = self.0.lock();
        if suspected.len() < MAX_SUSPECTED {
            suspected.insert(name);
        }
    }

    /// Takes the suspected peers and clears the set.
    pub(crate) fn take(&self) -> BTreeSet<NodeName> {
        std::mem::take(&mut self.0.lock())
    }
}

/// Interval of liveness checks while waiting.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// TCP keep-alive: idle time before the first probe, and interval of the probes.
const TRY_EVERY: Duration = Duration::from_secs(10);
/// TCP keep-alive: number of probes.
#[cfg(not(windows))]
const TRIES: u32 = 3;
/// TCP user timeout for unacknowledged data.
#[cfg(any(target_os = "linux", target_os = "android"))]
const UNACKNOWLEDGED: Duration = Duration::from_secs(30);

/// Liveness watch of the node that a request was sent to.
#[derive(Debug)]
pub(crate) struct PeerLiveness {
    living: Arc<ArcSwap<Membership>>,
    of: PeerSender,
    /// Next check; `None` before the first wait.
    look: Option<Pin<Box<Sleep>>>,
}

impl PeerLiveness {
    pub(crate) fn new(living: Arc<ArcSwap<Membership>>, of: PeerSender) -> Self {
        Self { living, of, look: None }
    }

    fn makes_progress(&self) -> bool {
        let living = self.living.load();
        living.get(self.of.node.as_str()).is_some_and(|view| {
            let has_boot = view.heartbeat.as_ref().is_some_and(|it| it.boot == self.of.boot);
            // If two processes have the same name, their heartbeats alternate, so another start does not mean that the
            // node was restarted.
            view.state == NodeState::Alive && (has_boot || view.twice)
        })
    }

    /// Resolves once the node is dead or restarted.
    pub(crate) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let look = self.look.get_or_insert_with(|| Box::pin(tokio::time::sleep(LOOK_EVERY)));
            ready!(look.as_mut().poll(cx));
            look.as_mut().reset(tokio::time::Instant::now() + LOOK_EVERY);
            if !self.makes_progress() {
                return Poll::Ready(());
            }
        }
    }

    /// Error text for a dead or restarted node.
    pub(crate) fn end_reason() -> String {
        "the node is dead or was restarted".to_owned()
    }
}

/// Sets TCP keep-alive and timeout, to detect a peer that is unreachable from here although its heartbeats arrive.
pub(crate) fn detect_unreachable(tcp: &TcpStream) {
    let socket = SockRef::from(tcp);
    let tries = TcpKeepalive::new().with_time(TRY_EVERY).with_interval(TRY_EVERY);
    #[cfg(not(windows))]
    let tries = tries.with_retries(TRIES);
    let _ = socket.set_tcp_keepalive(&tries);
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let _ = socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED));
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    use crate::cluster_key::{ClusterKeys, KeyPurpose};
    use crate::failure_detector::{BeatRead, FailureDetector};
    use crate::heartbeat::tests::example;
    use crate::heartbeat::{BootId, Heartbeat};

    const FLEET: FleetId = FleetId([1; 16]);

    fn keys() -> PurposeKeys {
        let text: String = (0..32).map(|at| format!("{at:02x}")).collect();
        ClusterKeys::parse([&*text]).unwrap().derive(KeyPurpose::Peer)
    }

    fn sender(name: &str, boot: u8) -> PeerSender {
        PeerSender { node: NodeName::parse(name).unwrap(), boot: BootId([boot; 16]) }
    }

    fn peers() -> Peers {
        let nodes = (Arc::default(), SuspectedPeers::default());
        Peers::new(sender("b", 2), FLEET, keys(), nodes, Handle::current())
    }

    fn head(time: u64, counter: u64) -> PeerRequestHead {
        let (from, to) = (sender("a", 1), sender("b", 2));
        PeerRequestHead { from, to, time, counter, body: *blake3::hash(b"body").as_bytes() }
    }

    fn headers(head: &PeerRequestHead) -> HeaderMap {
        let place = RequestBinding { fleet: FLEET, path: PeerRoute::Ping.path() };
        let value = HeaderValue::from_str(&place.seal(head, &keys()).0).unwrap();
        [(http::HeaderName::from_static(HEADER), value)].into_iter().collect()
    }

    #[tokio::test]
    async fn peer_request_is_admitted_once_in_time_and_only_for_the_current_start() {
        let peers = peers();
        let path = PeerRoute::Ping.path();
        let admit = |headers: &HeaderMap| peers.admit(&Method::POST, path, headers);
        let good = headers(&head(wall_ms(), 1));
        let admitted = admit(&good).unwrap();
        assert_eq!(admitted.from, sender("a", 1));
        assert!(admitted.is_of(b"body") && !admitted.is_of(b"bodY"));
        assert!(admit(&good).is_none(), "once");
        const HOUR: u64 = 3_600_000;
        for time in [wall_ms() - HOUR, wall_ms() + HOUR, 0, u64::MAX] {
            assert!(admit(&headers(&head(time, 2))).is_none(), "{time}");
        }
        assert!(admit(&headers(&head(wall_ms(), 2))).is_some(), "rejected requests do not count");
        for (from, to) in [
            (sender("a", 1), sender("c", 2)),
            (sender("a", 1), sender("b", 3)),
            (sender("b", 2), sender("b", 2)),
        ] {
            let head = PeerRequestHead { from, to, ..head(wall_ms(), 3) };
            assert!(admit(&headers(&head)).is_none(), "{head:?}");
        }
        assert!(peers.admit(&Method::GET, path, &headers(&head(wall_ms(), 4))).is_none());
        assert!(peers.admit(&Method::POST, "/fleet/v1/x", &headers(&head(wall_ms(), 4))).is_none());
        let mut twice = headers(&head(wall_ms(), 4));
        twice.append(HEADER, HeaderValue::from_static("x"));
        assert!(admit(&twice).is_none() && admit(&HeaderMap::new()).is_none());
    }

    #[tokio::test]
    async fn request_carries_the_receivers_time_despite_clock_skew() {
        const HOURS: u64 = 2 * 3_600_000;
        let (mut peers, a) = (peers(), NodeName::parse("a").unwrap());
        for ahead in [true, false] {
            let there = |here: u64| if ahead { here + HOURS } else { here - HOURS };
            let mut watch = FailureDetector::new(sender("b", 2).node, BootId([2; 16]));
            for (at, beat) in [(0, 1), (1000, 2)] {
                let wall = wall_ms();
                watch.sees(&a, Some(Ok(example(1, beat, there(wall)))), (at, wall), true);
            }
            peers.living = Arc::new(ArcSwap::from_pointee(watch.snapshot(None)));
            let before = wall_ms();
            let (_, to, time) = peers.address("a").unwrap();
            assert_eq!(to, sender("a", 1));
            assert!((there(before)..=there(wall_ms())).contains(&time), "{ahead}: {time}");
        }
    }

    #[tokio::test]
    async fn second_hop_and_dead_nodes_are_rejected() {
        let peers = peers();
        let ask = async |node: &str, body: Bytes, hop| {
            peers.request(node, PeerRoute::Ping, body, hop).await.map(drop)
        };
        assert_eq!(ask("a", Bytes::new(), Hop::Last).await, Err(PeerError::SecondHop));
        assert_eq!(ask("a", Bytes::new(), Hop::First).await, Err(PeerError::Gone("a".into())));
        let long = Bytes::from(vec![0; MAX_REQUEST_BYTES + 1]);
        assert_eq!(ask("a", long, Hop::First).await, Err(PeerError::TooLong));
    }

    fn name(text: &str) -> NodeName {
        NodeName::parse(text).unwrap()
    }

    /// Snapshot after reading these heartbeats of `a`, one per second.
    fn seen(beats: impl IntoIterator<Item = Option<BeatRead>>) -> Membership {
        let mut watch = FailureDetector::new(name("me"), BootId([9; 16]));
        watch.there_are([name("a")]);
        for (at, beat) in beats.into_iter().enumerate() {
            watch.sees(&name("a"), beat, (at as u64 * 1_000, 1_000_000_000), true);
        }
        watch.snapshot(None)
    }

    fn beat(boot: u8, number: u64) -> Option<BeatRead> {
        Some(Ok(Heartbeat { boot: BootId([boot; 16]), ..example(boot, number, 1_000_000_000) }))
    }

    #[tokio::test]
    async fn response_is_awaited_while_the_node_is_alive_with_the_same_start() {
        let is_alive = || seen([beat(1, 1), beat(1, 2)]);
        let last = Heartbeat { stopping: true, ..example(1, 3, 1_000_000_000) };
        let stopped = seen([beat(1, 1), beat(1, 2), Some(Ok(last))]);
        let silent = seen([beat(1, 1), beat(1, 2)].into_iter().chain(vec![None; 9]));
        let restarted = seen([beat(1, 1), beat(1, 2), beat(2, 1)]);
        let twice = seen([beat(1, 1), beat(1, 2), beat(2, 1), beat(1, 3), beat(2, 2)]);
        for (what, now, makes_progress) in [
            ("lives", is_alive(), true),
            ("away", is_alive().unseen("no store".into()), true),
            ("twice", twice, true),
            ("silent", silent, false),
            ("stopped", stopped, false),
            ("restarted", restarted, false),
            ("gone", Membership::default(), false),
        ] {
            let of = PeerSender { node: name("a"), boot: BootId([1; 16]) };
            let mut life = PeerLiveness::new(Arc::new(ArcSwap::from_pointee(now)), of);
            assert_eq!(life.makes_progress(), makes_progress, "{what}");
            if !makes_progress {
                std::future::poll_fn(|cx| life.poll_end(cx)).await;
            }
        }
    }
}
