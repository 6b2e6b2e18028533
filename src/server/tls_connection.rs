//! A client's connection over TLS: the handshake and its bounds, and whom the client's certificate names.
//!
//! After the handshake it goes the way that the client has asked for by ALPN (RFC 7301): HTTP/2, else HTTP/1.1. While
//! the handshake lasts the connection counts as idle, so that it makes room for others. One of a client with a certificate
//! ends with that: when its time is up, or its authority counts no more. It has some time to finish what was begun; what
//! begins after that moment is refused (`downstream::api_key`), for a client need not heed that it is told to go away.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use thiserror::Error;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::app_state::AppState;
use super::connection::{self, Met};
use super::connection_limit::ConnectionSlot;
use super::http2_connection;
use super::listener_tls::{HTTP_2, ListenerTls, TlsTerms};
use super::shutdown::DRAIN_TIMEOUT;
use super::strays::{HANDSHAKE_RECORD, Stray};
use super::tracked_socket::TrackedSocket;
use crate::identity::{CertifiedClient, Proven};
use crate::io::address::{Address, Reached};
use crate::io::tls::facts;
use crate::policy::Principal;
use crate::proxy::Worker;

/// A client has this long for its part of the handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Handshakes under way at once, of one worker; with more the oldest one makes room.
const MAX_HANDSHAKES: usize = 256;
/// Most bytes that are read of what is not TLS, so that the answer is not lost with them.
const STRAY_BYTES: usize = 4096;

const NOT_TLS: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\n\
    content-length: 47\r\n\r\nThis port speaks HTTPS: write https://, please\n";

/// Why there is no connection.
#[derive(Debug, Error)]
enum HandshakeFailed {
    #[error("the client spoke without TLS, or said nothing")]
    NotTls,
    #[error("the handshake was not over within {HANDSHAKE_TIMEOUT:?}")]
    Late,
    #[error("a handshake made room for others")]
    MadeRoom,
    #[error("the server ends")]
    Ending,
    #[error("the client certificate counts no more")]
    TrustIsOver,
    #[error("the handshake failed: {0}")]
    Failed(#[from] std::io::Error),
}

/// The handshakes of one worker that are under way, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Handshakes(RefCell<VecDeque<Rc<Notify>>>);

/// One that is under way until this is dropped.
struct UnderWay<'a> {
    all: &'a Handshakes,
    told: Rc<Notify>,
}

impl Handshakes {
    fn enter(&self) -> UnderWay<'_> {
        let mut all = self.0.borrow_mut();
        if all.len() >= MAX_HANDSHAKES
            && let Some(oldest) = all.pop_front()
        {
            oldest.notify_one();
        }
        let told = Rc::new(Notify::new());
        all.push_back(Rc::clone(&told));
        UnderWay { all: self, told }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.all.0.borrow_mut().retain(|one| !Rc::ptr_eq(one, &self.told));
    }
}

/// Serves a connection until it ends, or the server does.
///
/// # Errors
///
/// What broke it; its client has gone, or is given up.
pub(super) async fn serve(
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
        let under_way = handshakes.enter();
        let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, shake(&shared, &terms, socket));
        tokio::select! {
            done = handshake => done.map_err(|_| HandshakeFailed::Late)??,
            () = under_way.told.notified() => return Err(HandshakeFailed::MadeRoom.into()),
            _ = drain.wait_for(|draining| *draining) => return Err(HandshakeFailed::Ending.into()),
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
        // Other authorities count since the handshake began: none of its requests is answered.
        return Err(HandshakeFailed::TrustIsOver.into());
    }
    let (end, ends) = watch::channel(false);
    let drain = if trust.is_some() { ends } else { drain };
    let met = Met { source: slot.source, reached, certificate };
    let socket = TrackedSocket::new(stream, Arc::clone(&slot.idle));
    let serving = async {
        match is_http_2 {
            true => http2_connection::serve(shared, worker, met, socket, drain).await,
            false => connection::serve_http1(shared, worker, met, socket, drain).await,
        }
    };
    let Some(trust) = &mut trust else { return serving.await };
    let over = async {
        tokio::select! {
            // The server's end is told in this way, too.
            _ = trust.wait_for(|over| *over) => {}
            () = passed(until) => {}
        }
        end.send_replace(true);
        tokio::time::sleep(DRAIN_TIMEOUT).await;
    };
    tokio::select! {
        served = serving => served,
        () = over => Err(HandshakeFailed::TrustIsOver.into()),
    }
}

/// Waits until a moment is over; for ever where there is none.
async fn passed(moment: Option<SystemTime>) {
    match moment {
        Some(moment) => {
            let left = moment.duration_since(SystemTime::now()).unwrap_or_default();
            tokio::time::sleep(left).await;
        }
        None => std::future::pending().await,
    }
}

async fn shake(
    shared: &AppState,
    terms: &TlsTerms,
    mut socket: TcpStream,
) -> Result<TlsStream<TcpStream>, HandshakeFailed> {
    let mut first = [0];
    match (socket.peek(&mut first).await?, first) {
        (1, [HANDSHAKE_RECORD]) => {}
        (0, _) => return Err(HandshakeFailed::NotTls),
        _ => {
            shared.strays.note(Stray::PlainOnTls);
            // What is left unread would take the answer with it.
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
    fn with_too_many_handshakes_the_oldest_makes_room() {
        let all = Handshakes::default();
        let mut under_way: Vec<_> = (0..MAX_HANDSHAKES).map(|_| all.enter()).collect();
        let is_told = |one: &UnderWay<'_>| one.told.notified().now_or_never().is_some();
        assert!(!under_way.iter().any(is_told));
        let _more = all.enter();
        let told: Vec<bool> = under_way.iter().map(is_told).collect();
        assert_eq!(told.iter().position(|told| *told), Some(0));
        assert_eq!(told.iter().filter(|told| **told).count(), 1);
        under_way.clear();
        assert_eq!(all.0.borrow().len(), 1, "what is over has left");
    }

    #[test]
    fn the_answer_without_tls_is_as_long_as_it_says() {
        let text = std::str::from_utf8(NOT_TLS).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.ends_with(&format!("content-length: {}", body.len())), "{}", body.len());
    }
}
