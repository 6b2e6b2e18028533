//! A client's connection: the fast path first, then hyper for the rest of its life.
//!
//! Owns the limits of a connection's heads and waits. What a request leads to is `route`'s.

use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::Request;
use http::request::Parts;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

use super::app_state::AppState;
use super::connection_limit::ConnectionSlot;
use super::fast_path::{End, FastPath, HEADER_TIMEOUT};
use super::route::route;
use super::strays::{HANDSHAKE_RECORD, Stray};
use super::tracked_socket::{Exchanges, TrackedBody, TrackedSocket};
use super::unread_body::{self, BodyComes};
use crate::downstream::api_key;
use crate::downstream::http::{self as mcp, ClientConnection};
use crate::downstream::source::Source;
use crate::identity::{CertifiedClient, CurrentCredentials, Proven};
use crate::io::address::{Address, Reached};
use crate::io::write_timeout::WriteTimeout;
use crate::proxy::Worker;
use crate::proxy::settings::CurrentSettings;

/// A client that takes nothing of its reply for so long is given up.
pub(super) const CLIENT_STALL_LIMIT: Duration = Duration::from_secs(60);
/// Most header lines of one request.
const MAX_HEADERS: usize = 100;
/// Most bytes of a request's head, and of what is read ahead of its body.
const MAX_HEAD_BYTES: usize = 64 * 1024;

/// What is known of a connection's client when it has come.
#[derive(Debug)]
pub(super) struct Met {
    pub(super) source: Source,
    /// Where it came in.
    pub(super) reached: Option<Reached>,
    /// What its certificate proves.
    pub(super) certificate: Option<CertifiedClient>,
}

/// Serves a connection without TLS until it ends, or the server does. `address` is where it came in.
///
/// # Errors
///
/// What broke it; its client has gone, or is given up.
pub(super) async fn serve<S: AsyncRead + AsyncWrite + Unpin + 'static>(
    shared: Arc<AppState>,
    worker: Rc<Worker>,
    (socket, address): (S, Option<Address>),
    slot: &ConnectionSlot,
    drain: watch::Receiver<bool>,
) -> Result<(), Box<dyn std::error::Error>> {
    let remembered = Rc::new(ClientConnection::from(slot.source));
    let socket = TrackedSocket::new(socket, Arc::clone(&slot.idle));
    let exchanges = socket.exchanges();
    let mut socket = WriteTimeout::new(socket, CLIENT_STALL_LIMIT);
    match fast_path(&shared, &worker, &remembered, &mut socket, drain.clone()).await? {
        End::Closed => return Ok(()),
        End::Other(ahead) if ahead.first() == Some(&HANDSHAKE_RECORD) => {
            shared.strays.note(Stray::TlsOnPlain);
            return Ok(());
        }
        End::Other(ahead) => socket.unread(ahead),
    }
    remembered.came_to.replace(address.map(Reached::plainly));
    finish(shared, worker, remembered, socket, exchanges, drain).await
}

/// The same over TLS, of which the client has asked for HTTP/1.1.
///
/// # Errors
///
/// As of [`serve`].
pub(super) async fn serve_http1<S: AsyncRead + AsyncWrite + Unpin + 'static>(
    shared: Arc<AppState>,
    worker: Rc<Worker>,
    met: Met,
    socket: TrackedSocket<S>,
    drain: watch::Receiver<bool>,
) -> Result<(), Box<dyn std::error::Error>> {
    let remembered = ClientConnection::certified(met.source, met.certificate);
    remembered.came_to.replace(met.reached);
    let exchanges = socket.exchanges();
    let socket = WriteTimeout::new(socket, CLIENT_STALL_LIMIT);
    finish(shared, worker, Rc::new(remembered), socket, exchanges, drain).await
}

/// The rest of a connection's life: hyper serves it.
async fn finish<S: AsyncRead + AsyncWrite + Unpin + 'static>(
    shared: Arc<AppState>,
    worker: Rc<Worker>,
    remembered: Rc<ClientConnection>,
    socket: WriteTimeout<TrackedSocket<S>>,
    exchanges: Exchanges,
    mut drain: watch::Receiver<bool>,
) -> Result<(), Box<dyn std::error::Error>> {
    let seen = Rc::clone(&remembered);
    let service = service_fn(move |request: Request<Incoming>| {
        let (shared, worker) = (Arc::clone(&shared), Rc::clone(&worker));
        let remembered = Rc::clone(&remembered);
        remembered.used.set(true);
        let exchange = exchanges.begin();
        async move {
            let (head, body) = request.into_parts();
            let (lent, unread) = unread_body::lend(body, BodyComes::of(&head.headers));
            let request = Request::from_parts(head, lent);
            let mut answer = route(&shared, &worker, &remembered, request).await;
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
    if !seen.used.get() {
        // No request has come whole: there is nothing to finish.
        return Ok(());
    }
    Ok(served.await?)
}

/// What a head was admitted by.
struct Admitted {
    settings: CurrentSettings,
    credentials: CurrentCredentials,
    proven: Proven,
}

/// The hot path: messages are answered without hyper until something else comes.
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
        let proven =
            api_key::prove_for_mcp(auth, &credentials, headers, target, None, SystemTime::now)
                .ok()?;
        auth.host_check.check(headers, None).ok()?;
        // A head that is the same again has the same principal.
        connection.principal.replace(proven.principal.clone());
        Some(Admitted { settings, credentials, proven })
    };
    // Who was admitted by other settings or tokens, or for a time that is up, is looked at again.
    let holds = |admitted: &Admitted| {
        worker.settings().is(&admitted.settings)
            && worker.credentials().is(&admitted.credentials)
            && admitted.proven.holds(SystemTime::now)
    };
    let room = || worker.proxy.bodies.room(&connection.principal.borrow());
    let answer = async |head: &Parts, repeated: bool, body: Bytes| {
        connection.used.set(true);
        let _open = worker.busy_poll.open();
        let (sessions, now_ms) = (&shared.sessions, shared.now_ms());
        mcp::handle_whole(worker, sessions, connection, now_ms, head, repeated, body).await
    };
    FastPath::new(socket, drain).serve(admit, holds, room, answer).await
}
