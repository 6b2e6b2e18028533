//! The way from node to node: requests to other nodes over the listener that they advertise, and who may make one here.
//!
//! What is said, and how each side knows the other, is `peer_wire`'s; who answers what is said where requests are routed. One
//! hop: what a node is asked by another it does not pass on ([`Hop`]).
//!
//! Size: a request from its head to the last part of its answer, and the connections that it goes over.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt};
use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body::Body as HttpBody;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::OnceCell;
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;
use url::{Host, Url};

use super::cluster_key::PurposeKeys;
use super::config::AdvertisedUrl;
use super::doubted_nodes::DoubtedNodes;
use super::line_budget::{LineBudget, LineLeave};
use super::living_nodes::{LivingNodes, NodeState};
use super::peer_life::{PeerLife, ends_when_unheard};
use super::peer_wire::{
    AnswerFrames, AnswerKey, AnswerReader, FRESH_MS, HEADER, MAX_REQUEST_BYTES, PeerAnswerPart,
    PeerPlace, PeerRequestHead, PeerRoute, PeerSender, RequestCounters, SeenRequests,
};
use super::sealed_mark::FleetId;
use crate::io::clock::wall_ms;
use crate::io::tls::{connector, system_roots};

/// Most time for a connection to another node.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// A connection that was not used for so long is not used again; the other side closes it later.
const IDLE_LIMIT: Duration = Duration::from_secs(10);
/// Most connections to one node that are kept.
const MAX_IDLE: usize = 32;
/// What is sent as the type of bodies.
const BODY_TYPE: &str = "application/octet-stream";

/// Whether something was asked of this node by a client, or by another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hop {
    /// By a client: another node may be asked.
    First,
    /// By another node: no further one is asked.
    Last,
}

/// Why another node did not answer.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum PeerError {
    /// There is no such node, or it lives no more: whatever lived there is gone.
    #[error("node '{0}' does not live")]
    Gone(String),
    /// It says not how it is reached.
    #[error("node '{0}' has no cluster.advertise")]
    NotAdvertised(String),
    /// It was another node that asked this.
    #[error("a node is asked by another for what it would have to ask a third")]
    SecondHop,
    /// The request is too long.
    #[error("a request to another node is longer than {MAX_REQUEST_BYTES} bytes")]
    TooLong,
    /// It cannot be reached; it was not asked.
    #[error("node '{node}' cannot be reached: {why}")]
    Unreached {
        /// Which.
        node: String,
        /// Why.
        why: String,
    },
    /// It was asked, and did not answer in time, or broke off: it may have done what was asked.
    #[error("node '{node}' did not answer: {why}")]
    Unanswered {
        /// Which.
        node: String,
        /// Why.
        why: String,
    },
    /// What answered is not that node, or does not know this one.
    #[error(
        "node '{node}' answered as no node of this fleet does ({why}): have both the same cluster.key?"
    )]
    Unknown {
        /// Which.
        node: String,
        /// What it did.
        why: String,
    },
}

/// The way to other nodes.
pub struct Peers {
    own: PeerSender,
    fleet: FleetId,
    keys: PurposeKeys,
    living: Arc<ArcSwap<LivingNodes>>,
    doubted: DoubtedNodes,
    counters: Mutex<RequestCounters>,
    seen: Mutex<SeenRequests>,
    /// Lines about requests that are not let in: whoever has captured one sends it as often as he likes.
    lines: Mutex<LineBudget>,
    base: Instant,
    /// Where connections are moved: whoever waits may be on a thread of its own.
    runtime: Handle,
    tls: OnceCell<TlsConnector>,
    idle: Arc<IdleConnections>,
}

/// A request that another node of this fleet has made: its body is still to be looked at.
#[derive(Debug)]
pub struct AdmittedRequest {
    /// Who asks.
    pub from: PeerSender,
    /// What for.
    pub route: PeerRoute,
    body: [u8; 32],
    answer: AnswerKey,
}

impl AdmittedRequest {
    /// Whether that is its body.
    #[must_use]
    pub fn is_of(&self, body: &[u8]) -> bool {
        *blake3::hash(body).as_bytes() == self.body
    }

    /// What its answer is framed by.
    #[must_use]
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
    /// Of this node, with the keys for this purpose. Nodes that do not answer as they should are `doubted`. Connections are
    /// moved by `runtime`.
    #[must_use]
    pub(super) fn new(
        own: PeerSender,
        fleet: FleetId,
        keys: PurposeKeys,
        (living, doubted): (Arc<ArcSwap<LivingNodes>>, DoubtedNodes),
        runtime: Handle,
    ) -> Self {
        Self {
            own,
            fleet,
            keys,
            living,
            doubted,
            counters: Mutex::default(),
            seen: Mutex::default(),
            lines: Mutex::default(),
            base: Instant::now(),
            runtime,
            tls: OnceCell::new(),
            idle: Arc::default(),
        }
    }

    /// The request whose head this is, if a node of this fleet has made it for this start of this node, lately, and for the
    /// first time. Nobody else is told why it is none.
    #[must_use]
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
        let place = PeerPlace { fleet: self.fleet, path };
        let (head, answer) = place.open(value, &self.keys)?;
        if head.to != self.own || head.from == self.own {
            return None;
        }
        let now = self.base.elapsed().as_millis() as u64;
        if head.time.abs_diff(wall_ms()) > FRESH_MS {
            self.tell(&head.from, "a request of another node is not of this time", now);
            return None;
        }
        if !self.seen.lock().take(head.from.boot, head.counter, now) {
            self.tell(&head.from, "a request of another node came a second time", now);
            return None;
        }
        Some(AdmittedRequest { from: head.from, route, body: head.body, answer })
    }

    /// Tells that a request is not let in.
    fn tell(&self, from: &PeerSender, what: &'static str, now: u64) {
        let leave = self.lines.lock().take(now);
        if leave != LineLeave::LeaveOut {
            tracing::warn!(node = from.node.as_str(), "{what}");
        }
        if leave == LineLeave::Last {
            tracing::warn!("more such requests are not told of for a minute");
        }
    }

    /// Asks another node, and waits for the head of its answer, as long as it lives. The answer's body is checked as it comes:
    /// what has come is what the node said, and an end that is no error is the end.
    ///
    /// # Errors
    ///
    /// [`PeerError`].
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
            // It may have been started anew, at another address.
            Err(
                PeerError::Unreached { .. }
                | PeerError::Unanswered { .. }
                | PeerError::Unknown { .. },
            ) => self.doubted.doubt(node),
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
        // One that was started anew is reached anew.
        let key = format!("{} {url}", to.boot);
        let mut life = PeerLife::new(Arc::clone(&self.living), to.clone());
        let mut connection = match self.idle.take(&key) {
            Some(connection) => connection,
            None => self.connect(url).await.map_err(unreached)?,
        };
        // Numbered once it can be sent: by how many others it may be overtaken is bounded.
        let counter = self.counters.lock().next(to.boot);
        let (from, digest) = (self.own.clone(), *blake3::hash(&body).as_bytes());
        let head = PeerRequestHead { from, to, time, counter, body: digest };
        let place = PeerPlace { fleet: self.fleet, path: route.path() };
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
                sent = connection.sender.send_request(request) => sent,
                () = std::future::poll_fn(|cx| life.poll_end(cx)) => {
                    return Err(unanswered(PeerLife::end_words()));
                }
            };
            let sent = sent.map_err(|error| unanswered(error.to_string()))?;
            if sent.status() != StatusCode::OK {
                let why = format!("status {}", sent.status().as_u16());
                return Err(PeerError::Unknown { node: node.to_owned(), why });
            }
            let mut body = PeerBody {
                node: node.into(),
                incoming: sent.into_body(),
                reader: AnswerReader::new(answer),
                life,
                over: false,
                keeps: Some((Arc::clone(&self.idle), key, connection)),
            };
            match std::future::poll_fn(|cx| body.poll_part(cx)).await? {
                PeerAnswerPart::Head(status, headers) => {
                    let mut response = Response::new(body);
                    *response.status_mut() = status;
                    *response.headers_mut() = headers;
                    Ok(response)
                }
                PeerAnswerPart::Data(_) | PeerAnswerPart::End | PeerAnswerPart::Broken => {
                    Err(unanswered("its answer has no head".to_owned()))
                }
            }
        };
        let limit = Duration::from_millis(route.answer_limit_ms());
        tokio::time::timeout(limit, asked)
            .await
            .unwrap_or_else(|_| Err(unanswered(format!("nothing within {} s", limit.as_secs()))))
    }

    /// Where a node is that lives, and what time it is there.
    fn address(&self, node: &str) -> Result<(Url, PeerSender, u64), PeerError> {
        let living = self.living.load();
        let gone = || PeerError::Gone(node.to_owned());
        let view = living.get(node).filter(|it| it.state == NodeState::Living).ok_or_else(gone)?;
        let heartbeat = view.heartbeat.as_ref().ok_or_else(gone)?;
        let advertised =
            heartbeat.advertise.as_deref().and_then(|it| AdvertisedUrl::parse(it).ok());
        let url = advertised.ok_or_else(|| PeerError::NotAdvertised(node.to_owned()))?;
        let to = PeerSender { node: view.name.clone(), boot: heartbeat.boot };
        let time =
            wall_ms().saturating_add_signed(view.skew_ms.unwrap_or_default().saturating_neg());
        Ok((url.url().clone(), to, time))
    }

    async fn connect(&self, url: Url) -> Result<PeerConnection, String> {
        let tls = match url.scheme() {
            "https" => {
                let load = || tokio::task::spawn_blocking(|| connector(system_roots(), None));
                let tls = self.tls.get_or_try_init(load).await;
                Some(tls.map_err(|error| error.to_string())?.clone())
            }
            _ => None,
        };
        let runtime = self.runtime.clone();
        let connecting = async move {
            tokio::time::timeout(CONNECT_LIMIT, connect(&url, tls, &runtime)).await.unwrap_or_else(
                |_| Err(format!("no connection within {} s", CONNECT_LIMIT.as_secs())),
            )
        };
        let connecting = AbortOnDropHandle::new(self.runtime.spawn(connecting));
        connecting.await.unwrap_or_else(|error| Err(error.to_string()))
    }
}

async fn connect(
    url: &Url,
    tls: Option<TlsConnector>,
    runtime: &Handle,
) -> Result<PeerConnection, String> {
    let port = url.port_or_known_default().unwrap_or(443);
    let tcp = match url.host() {
        Some(Host::Ipv4(ip)) => TcpStream::connect((ip, port)).await,
        Some(Host::Ipv6(ip)) => TcpStream::connect((ip, port)).await,
        Some(Host::Domain(name)) => TcpStream::connect((name, port)).await,
        None => return Err("the URL names no host".to_owned()),
    };
    let tcp = tcp.map_err(|error| error.to_string())?;
    let _ = tcp.set_nodelay(true);
    ends_when_unheard(&tcp);
    let Some(tls) = tls else { return PeerConnection::over(tcp, runtime).await };
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    let name = ServerName::try_from(host).map_err(|error| error.to_string())?;
    let stream = tls.connect(name, tcp).await.map_err(|error| error.to_string())?;
    PeerConnection::over(stream, runtime).await
}

/// A connection to another node, and what moves it.
#[derive(Debug)]
struct PeerConnection {
    sender: SendRequest<Full<Bytes>>,
    _driver: AbortOnDropHandle<()>,
}

impl PeerConnection {
    async fn over<S>(stream: S, runtime: &Handle) -> Result<Self, String>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let shaken = http1::handshake(TokioIo::new(stream)).await;
        let (sender, connection) = shaken.map_err(|error| error.to_string())?;
        let driver = runtime.spawn(async move {
            // Whoever waits for an answer is told.
            let _ = connection.await;
        });
        Ok(Self { sender, _driver: AbortOnDropHandle::new(driver) })
    }
}

/// Connections that wait for the next request, by where they lead.
#[derive(Debug, Default)]
struct IdleConnections(Mutex<HashMap<String, Vec<(Instant, PeerConnection)>>>);

impl IdleConnections {
    fn take(&self, key: &str) -> Option<PeerConnection> {
        let mut all = self.0.lock();
        let kept = all.get_mut(key)?;
        kept.retain(|(since, it)| since.elapsed() < IDLE_LIMIT && it.sender.is_ready());
        kept.pop().map(|(_, connection)| connection)
    }

    fn keep(&self, key: String, connection: PeerConnection) {
        let mut all = self.0.lock();
        all.retain(|_, kept| {
            kept.retain(|(since, it)| since.elapsed() < IDLE_LIMIT && !it.sender.is_closed());
            !kept.is_empty()
        });
        let kept = all.entry(key).or_default();
        if kept.len() < MAX_IDLE {
            kept.push((Instant::now(), connection));
        }
    }
}

/// The body of another node's answer, checked as it comes; an error once that node lives no more. Dropped before its end it
/// closes the connection, which tells the other node.
#[derive(Debug)]
pub struct PeerBody {
    node: Box<str>,
    incoming: Incoming,
    reader: AnswerReader,
    life: PeerLife,
    over: bool,
    keeps: Option<(Arc<IdleConnections>, String, PeerConnection)>,
}

impl PeerBody {
    /// The whole of it, at most so many bytes.
    ///
    /// # Errors
    ///
    /// [`PeerError`]; [`PeerError::Unanswered`] where there are more.
    pub async fn whole(mut self, most: usize) -> Result<Bytes, PeerError> {
        let mut whole = BytesMut::new();
        while let Some(part) = self.next().await.transpose()? {
            if whole.len() + part.len() > most {
                return Err(self.unanswered(format!("its answer is longer than {most} bytes")));
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
            let Poll::Ready(frame) = Pin::new(&mut self.incoming).poll_frame(cx) else {
                ready!(self.life.poll_end(cx));
                return Poll::Ready(Err(self.unanswered(PeerLife::end_words())));
            };
            match frame {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.reader.push(&data);
                    }
                }
                Some(Err(error)) => return Poll::Ready(Err(self.unanswered(error.to_string()))),
                None => return Poll::Ready(Err(self.unanswered("its answer was cut off"))),
            }
        }
    }

    /// The answer is whole: the connection can be used again once the body's end was read.
    fn finish(&mut self, cx: &mut Context<'_>) {
        let ended = Pin::new(&mut self.incoming).poll_frame(cx);
        if let (Poll::Ready(None), Some((idle, key, connection))) = (ended, self.keeps.take()) {
            idle.keep(key, connection);
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
            Ok(PeerAnswerPart::Broken) => Some(Err(this.unanswered("its answer broke off"))),
            Ok(PeerAnswerPart::Head(..)) => Some(Err(this.unanswered("a second head came"))),
            Err(error) => Some(Err(error)),
        })
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::fleet::cluster_key::{ClusterKeys, KeyPurpose};
    use crate::fleet::config::NodeName;
    use crate::fleet::heartbeat::BootId;
    use crate::fleet::heartbeat::tests::example;
    use crate::fleet::living_nodes::NodeWatch;

    const FLEET: FleetId = FleetId([1; 16]);

    fn keys() -> PurposeKeys {
        let text: String = (0..32).map(|at| format!("{at:02x}")).collect();
        ClusterKeys::parse([&*text]).unwrap().derive(KeyPurpose::Peer)
    }

    fn sender(name: &str, boot: u8) -> PeerSender {
        PeerSender { node: NodeName::parse(name).unwrap(), boot: BootId([boot; 16]) }
    }

    fn peers() -> Peers {
        let nodes = (Arc::default(), DoubtedNodes::default());
        Peers::new(sender("b", 2), FLEET, keys(), nodes, Handle::current())
    }

    fn head(time: u64, counter: u64) -> PeerRequestHead {
        let (from, to) = (sender("a", 1), sender("b", 2));
        PeerRequestHead { from, to, time, counter, body: *blake3::hash(b"body").as_bytes() }
    }

    fn headers(head: &PeerRequestHead) -> HeaderMap {
        let place = PeerPlace { fleet: FLEET, path: PeerRoute::Ping.path() };
        let value = HeaderValue::from_str(&place.seal(head, &keys()).0).unwrap();
        [(http::HeaderName::from_static(HEADER), value)].into_iter().collect()
    }

    #[tokio::test]
    async fn a_request_is_let_in_once_in_time_for_this_start_of_this_node() {
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
        assert!(admit(&headers(&head(wall_ms(), 2))).is_some(), "what was refused is not counted");
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
    async fn a_request_has_the_time_of_the_node_that_is_asked_whose_clock_is_another() {
        const HOURS: u64 = 2 * 3_600_000;
        let (mut peers, a) = (peers(), NodeName::parse("a").unwrap());
        for ahead in [true, false] {
            let there = |here: u64| if ahead { here + HOURS } else { here - HOURS };
            let mut watch = NodeWatch::new(sender("b", 2).node, BootId([2; 16]));
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
    async fn a_node_that_was_asked_asks_no_other_and_nobody_asks_who_does_not_live() {
        let peers = peers();
        let ask = async |node: &str, body: Bytes, hop| {
            peers.request(node, PeerRoute::Ping, body, hop).await.map(drop)
        };
        assert_eq!(ask("a", Bytes::new(), Hop::Last).await, Err(PeerError::SecondHop));
        assert_eq!(ask("a", Bytes::new(), Hop::First).await, Err(PeerError::Gone("a".into())));
        let long = Bytes::from(vec![0; MAX_REQUEST_BYTES + 1]);
        assert_eq!(ask("a", long, Hop::First).await, Err(PeerError::TooLong));
    }
}
