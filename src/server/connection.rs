//! Client connection. Without TLS, it starts on the fast path and may be handed to hyper for the rest of its life; over TLS, it starts with
//! the handshake and then uses HTTP/1.1 or HTTP/2 as negotiated by ALPN (RFC 7301). `route` dispatches requests.
//!
//! During the handshake the connection counts as idle, so it may be closed to free a slot. A connection with a client
//! certificate is drained when the certificate expires or its authority is no longer trusted; requests that arrive after that
//! moment are rejected (`downstream::authentication`), because a client may ignore a shutdown request.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::Request;
use http::header::ORIGIN;
use http::request::Parts;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::app_state::{AppState, HANDSHAKE_RECORD, WrongProtocol};
use super::connection_limit::ConnectionSlot;
use super::fast_path::{End, FastPath, HEADER_TIMEOUT};
use super::listener::{HTTP_2, ListenerTls, TlsTerms};
use super::route::route;
use super::shutdown::DRAIN_TIMEOUT;
use super::tracked_socket::{
    AcceptedClient, CLIENT_STALL_LIMIT, Exchanges, TrackedBody, TrackedSocket,
};
use super::unread_body::BodyTiming;
use super::{http2_connection, unread_body};
use mcpproxy_downstream::authentication::{self, ProofRule, StreamCredential};
use mcpproxy_downstream::http as mcp;
use mcpproxy_downstream::http::ClientConnection;
use mcpproxy_gateway::proxy::Worker;
use mcpproxy_gateway::proxy::settings::CurrentSettings;
use mcpproxy_policy::Principal;
use mcpproxy_policy::identity::{CertifiedClient, CurrentCredentials, Proven};
use mcpproxy_runtime::io::address::{Address, Reached};
use mcpproxy_runtime::io::deadline::WriteTimeout;
use mcpproxy_runtime::io::tls::facts;

/// Maximum number of header lines of a request.
const MAX_HEADERS: usize = 100;
/// Maximum size in bytes of a request's head, and of the read-ahead of its body.
const MAX_HEAD_BYTES: usize = 64 * 1024;

/// Serves a connection without TLS until it closes or the server shuts down. `address` is the local address.
pub(super) async fn serve<S: AsyncRead + AsyncWrite + Unpin + 'static>(
    shared: Arc<AppState>,
    worker: Rc<Worker>,
    (socket, address): (S, Option<Address>),
    slot: &ConnectionSlot,
    drain: watch::Receiver<bool>,
) -> Result<(), Box<dyn std::error::Error>> {
    let connection = Rc::new(ClientConnection::from(slot.source));
    let socket = TrackedSocket::new(socket, Arc::clone(&slot.idle));
    let exchanges = socket.exchanges();
    let mut socket = WriteTimeout::new(socket, CLIENT_STALL_LIMIT);
    match fast_path(&shared, &worker, &connection, &mut socket, drain.clone()).await? {
        End::Closed => return Ok(()),
        End::Other(ahead) if ahead.first() == Some(&HANDSHAKE_RECORD) => {
            shared.wrong_protocol.warn(WrongProtocol::TlsOnPlain);
            return Ok(());
        }
        End::Other(ahead) => socket.unread(ahead),
    }
    connection.came_to.replace(address.map(Reached::plainly));
    serve_hyper(shared, worker, connection, socket, exchanges, drain).await
}

/// Serves a connection over TLS for which HTTP/1.1 was negotiated.
pub(super) async fn serve_http1<S: AsyncRead + AsyncWrite + Unpin + 'static>(
    shared: Arc<AppState>,
    worker: Rc<Worker>,
    client: AcceptedClient,
    socket: TrackedSocket<S>,
    drain: watch::Receiver<bool>,
) -> Result<(), Box<dyn std::error::Error>> {
    let connection = Rc::new(client.connection());
    let exchanges = socket.exchanges();
    let socket = WriteTimeout::new(socket, CLIENT_STALL_LIMIT);
    serve_hyper(shared, worker, connection, socket, exchanges, drain).await
}

/// Serves the rest of a connection with hyper.
async fn serve_hyper<S: AsyncRead + AsyncWrite + Unpin + 'static>(
    shared: Arc<AppState>,
    worker: Rc<Worker>,
    connection: Rc<ClientConnection>,
    socket: WriteTimeout<TrackedSocket<S>>,
    exchanges: Exchanges,
    mut drain: watch::Receiver<bool>,
) -> Result<(), Box<dyn std::error::Error>> {
    let served_connection = Rc::clone(&connection);
    let service = service_fn(move |request: Request<Incoming>| {
        let (shared, worker) = (Arc::clone(&shared), Rc::clone(&worker));
        let connection = Rc::clone(&connection);
        connection.used.set(true);
        let exchange = exchanges.begin();
        async move {
            let (head, body) = request.into_parts();
            let (lent, unread) = unread_body::lend(body, BodyTiming::of(&head.headers));
            let request = Request::from_parts(head, lent);
            let mut answer = route(&shared, &worker, &connection, request).await;
            unread.discard().await;
            mcp::name_type(&mut answer);
            Ok::<_, Infallible>(answer.map(|body| TrackedBody::new(body, exchange)))
        }
    });
    let mut served = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .max_headers(MAX_HEADERS)
            .max_buf_size(MAX_HEAD_BYTES)
            .serve_connection(TokioIo::new(socket), service)
    );
    tokio::select! {
        ended = served.as_mut() => return Ok(ended?),
        _ = drain.wait_for(|draining| *draining) => served.as_mut().graceful_shutdown(),
    }
    if !served_connection.used.get() {
        // No complete request arrived, so there is nothing to finish.
        return Ok(());
    }
    Ok(served.await?)
}

/// Settings and credentials with which a request head was accepted.
struct Admitted {
    settings: CurrentSettings,
    credentials: CurrentCredentials,
    proven: Proven,
}

/// Hot path: serves JSON-RPC messages without hyper until another kind of request arrives.
async fn fast_path<S: AsyncRead + AsyncWrite + Unpin>(
    shared: &AppState,
    worker: &Rc<Worker>,
    connection: &ClientConnection,
    socket: &mut WriteTimeout<TrackedSocket<S>>,
    drain: watch::Receiver<bool>,
) -> io::Result<End> {
    let admit = |head: &Parts| {
        let (settings, credentials) = (worker.settings(), worker.credentials());
        let auth = &settings.http_auth;
        let (headers, target) = (&head.headers, &head.uri);
        let proven = authentication::authenticate_mcp(
            auth,
            &credentials,
            headers,
            target,
            None,
            SystemTime::now,
        )
        .ok()?;
        auth.host_check.check(headers, None).ok()?;
        if headers.contains_key(ORIGIN) {
            return None; // Responses to pages need more headers.
        }
        // Set only here, because a repeated head has the same principal.
        connection.principal.replace(proven.principal.clone());
        Some(Admitted { settings, credentials, proven })
    };
    // After a change of settings or tokens, or when a credential expires, the head is checked again.
    let holds = |admitted: &Admitted| {
        worker.settings().is(&admitted.settings)
            && worker.credentials().is(&admitted.credentials)
            && admitted.proven.holds(SystemTime::now)
    };
    let charge = || worker.proxy.bodies.charge(&connection.principal.borrow());
    let answer = async |head: &Parts, repeated: bool, body: Bytes| {
        connection.used.set(true);
        let _open = worker.busy_poll.open();
        let (sessions, now_ms) = (&shared.sessions, shared.now_ms());
        let answer =
            mcp::handle_whole(worker, sessions, connection, now_ms, head, repeated, body).await;
        authentication::bind_events(worker, answer, || {
            let principal = connection.principal.borrow().clone();
            StreamCredential::new(ProofRule::Mcp, &head.headers, &head.uri, None, principal)
        })
    };
    FastPath::new(socket, drain).serve(admit, holds, charge, answer).await
}

/// Timeout of the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of concurrent handshakes of a worker; another one aborts the oldest.
const MAX_HANDSHAKES: usize = 256;
/// Number of bytes read from a client that does not speak TLS, so that unread data does not discard the response.
const STRAY_BYTES: usize = 4096;

const NOT_TLS: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\n\
    content-length: 47\r\n\r\nThis port speaks HTTPS: write https://, please\n";

/// Reason why a TLS connection is ended.
#[derive(Debug, Error)]
enum HandshakeFailed {
    #[error("the client did not start a TLS handshake")]
    NotTls,
    #[error("the handshake did not finish within {HANDSHAKE_TIMEOUT:?}")]
    Late,
    #[error("the handshake was aborted in favor of a newer one")]
    Evicted,
    #[error("the server is shutting down")]
    ShuttingDown,
    #[error("the client certificate is no longer valid")]
    CertificateExpired,
    #[error("the handshake failed: {0}")]
    Failed(#[from] std::io::Error),
}

/// Handshakes in progress of a worker, oldest first.
#[derive(Debug, Default)]
pub(super) struct Handshakes(RefCell<VecDeque<Rc<Notify>>>);

/// Guard of a handshake in progress.
struct HandshakeGuard<'a> {
    all: &'a Handshakes,
    aborted: Rc<Notify>,
}

impl Handshakes {
    fn enter(&self) -> HandshakeGuard<'_> {
        let mut all = self.0.borrow_mut();
        if all.len() >= MAX_HANDSHAKES
            && let Some(oldest) = all.pop_front()
        {
            oldest.notify_one();
        }
        let aborted = Rc::new(Notify::new());
        all.push_back(Rc::clone(&aborted));
        HandshakeGuard { all: self, aborted }
    }
}

impl Drop for HandshakeGuard<'_> {
    fn drop(&mut self) {
        self.all.0.borrow_mut().retain(|one| !Rc::ptr_eq(one, &self.aborted));
    }
}

/// Serves a TLS connection until it closes or the server shuts down.
pub(super) async fn serve_tls(
    shared: Arc<AppState>,
    worker: Rc<Worker>,
    (tls, handshakes): (&ListenerTls, &Handshakes),
    socket: TcpStream,
    slot: &ConnectionSlot,
    mut drain: watch::Receiver<bool>,
) -> Result<(), Box<dyn std::error::Error>> {
    let address = socket.local_addr().ok().map(Address::Tcp);
    let terms = tls.terms();
    let stream = {
        let guard = handshakes.enter();
        let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake(&shared, &terms, socket));
        tokio::select! {
            done = handshake => done.map_err(|_| HandshakeFailed::Late)??,
            () = guard.aborted.notified() => return Err(HandshakeFailed::Evicted.into()),
            _ = drain.wait_for(|draining| *draining) => return Err(HandshakeFailed::ShuttingDown.into()),
        }
    };
    let session = stream.get_ref().1;
    let certificate = session.peer_certificates().and_then(|chain| chain.first());
    let certificate = certificate.and_then(|leaf| {
        let facts = facts(leaf)?;
        let principal = Principal::certificate(&facts.name.ok()?);
        let proven = Proven { principal, from: None, until: Some(facts.until) };
        Some(CertifiedClient { proven, authority: terms.trust.standing.clone() })
    });
    let reached = address.map(|address| Reached { address, certificate: Some(terms.shown) });
    let is_http_2 = session.alpn_protocol() == Some(HTTP_2);
    let until = certificate.as_ref().and_then(|client| client.proven.until);
    let mut trust = certificate.as_ref().map(|_| terms.trust.ends.clone());
    if trust.as_ref().is_some_and(|ends| *ends.borrow()) {
        // The trusted authorities changed during the handshake.
        return Err(HandshakeFailed::CertificateExpired.into());
    }
    let (end, ends) = watch::channel(false);
    let drain = if trust.is_some() { ends } else { drain };
    let client = AcceptedClient { source: slot.source, reached, certificate };
    let socket = TrackedSocket::new(stream, Arc::clone(&slot.idle));
    let serving = async {
        match is_http_2 {
            true => http2_connection::serve(shared, worker, client, socket, drain).await,
            false => serve_http1(shared, worker, client, socket, drain).await,
        }
    };
    let Some(trust) = &mut trust else { return serving.await };
    let expired = async {
        tokio::select! {
            // Also signaled when the server shuts down.
            _ = trust.wait_for(|over| *over) => {}
            () = expiry(until) => {}
        }
        end.send_replace(true);
        tokio::time::sleep(DRAIN_TIMEOUT).await;
    };
    tokio::select! {
        served = serving => served,
        () = expired => Err(HandshakeFailed::CertificateExpired.into()),
    }
}

/// Waits until the given time, or forever if it is `None`.
async fn expiry(moment: Option<SystemTime>) {
    match moment {
        Some(moment) => {
            let left = moment.duration_since(SystemTime::now()).unwrap_or_default();
            tokio::time::sleep(left).await;
        }
        None => std::future::pending().await,
    }
}

async fn handshake(
    shared: &AppState,
    terms: &TlsTerms,
    mut socket: TcpStream,
) -> Result<TlsStream<TcpStream>, HandshakeFailed> {
    let mut first = [0];
    match (socket.peek(&mut first).await?, first) {
        (1, [HANDSHAKE_RECORD]) => {}
        (0, _) => return Err(HandshakeFailed::NotTls),
        _ => {
            shared.wrong_protocol.warn(WrongProtocol::PlainOnTls);
            // Unread data would discard the response.
            let _ = socket.try_read(&mut [0; STRAY_BYTES]);
            socket.write_all(NOT_TLS).await?;
            socket.shutdown().await?;
            return Err(HandshakeFailed::NotTls);
        }
    }
    Ok(TlsAcceptor::from(Arc::clone(&terms.config)).accept(socket).await?)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn excess_handshake_aborts_the_oldest() {
        let all = Handshakes::default();
        let mut guards: Vec<_> = (0..MAX_HANDSHAKES).map(|_| all.enter()).collect();
        let is_aborted = |it: &HandshakeGuard<'_>| it.aborted.notified().now_or_never().is_some();
        assert!(!guards.iter().any(is_aborted));
        let _more = all.enter();
        let aborted: Vec<bool> = guards.iter().map(is_aborted).collect();
        assert_eq!(aborted.iter().position(|aborted| *aborted), Some(0));
        assert_eq!(aborted.iter().filter(|aborted| **aborted).count(), 1);
        guards.clear();
        assert_eq!(all.0.borrow().len(), 1, "finished handshakes are removed");
    }

    #[test]
    fn plain_http_response_has_the_stated_length() {
        let text = std::str::from_utf8(NOT_TLS).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.ends_with(&format!("content-length: {}", body.len())), "{}", body.len());
    }
}
