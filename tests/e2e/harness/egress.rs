//! An egress proxy that resolves every name to this machine, and records the heads of requests.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

/// Behavior of the proxy.
#[derive(Clone, Copy)]
pub(crate) enum EgressWay {
    /// Opens tunnels to, and forwards requests to, the port that the request names.
    Open,
    /// Forwards requests with this `Proxy-Authorization`, and refuses others with 407.
    Password(&'static str),
    /// Sends these bytes and closes the connection.
    Answers(&'static str),
}

/// The proxy; it listens as long as the tests run.
pub(crate) struct EgressProxy {
    pub(crate) port: u16,
    heads: Arc<Mutex<Vec<String>>>,
}

impl EgressProxy {
    pub(crate) fn start(way: EgressWay) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let heads = Arc::<Mutex<Vec<String>>>::default();
        let kept = Arc::clone(&heads);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let kept = Arc::clone(&kept);
                std::thread::spawn(move || serve(stream, way, &kept));
            }
        });
        Self { port, heads }
    }

    /// Head of the first request of each connection so far.
    pub(crate) fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// First lines of these requests, without duplicates.
    pub(crate) fn lines(&self) -> Vec<String> {
        let heads = self.heads();
        let mut lines: Vec<String> =
            heads.iter().filter_map(|head| Some(head.lines().next()?.to_owned())).collect();
        lines.sort();
        lines.dedup();
        lines
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

fn serve(mut client: TcpStream, way: EgressWay, kept: &Mutex<Vec<String>>) -> Option<()> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        client.read_exact(&mut byte).ok()?;
        head.extend_from_slice(&byte);
    }
    let text = String::from_utf8_lossy(&head).into_owned();
    kept.lock().unwrap_or_else(PoisonError::into_inner).push(text.clone());
    let refusal = match way {
        EgressWay::Open => None,
        EgressWay::Password(password) if has_header(&text, password) => None,
        EgressWay::Password(_) => {
            Some("HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n")
        }
        EgressWay::Answers(answer) => Some(answer),
    };
    if let Some(refusal) = refusal {
        client.write_all(refusal.as_bytes()).ok()?;
        return client.shutdown(Shutdown::Write).ok();
    }
    let target = text.split(' ').nth(1)?;
    let authority = target.strip_prefix("http://").unwrap_or(target).split('/').next()?;
    let port = authority.rsplit(':').next()?.parse::<u16>().ok()?;
    let mut server = TcpStream::connect(("127.0.0.1", port)).ok()?;
    if text.starts_with("CONNECT ") {
        client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").ok()?;
    } else {
        server.write_all(&head).ok()?;
    }
    let back = (server.try_clone().ok()?, client.try_clone().ok()?);
    std::thread::spawn(move || copy(back.0, back.1));
    copy(client, server);
    Some(())
}

fn has_header(head: &str, authorization: &str) -> bool {
    head.lines().any(|line| {
        line.split_once(':').is_some_and(|(name, value)| {
            name.eq_ignore_ascii_case("proxy-authorization") && value.trim() == authorization
        })
    })
}

fn copy(mut from: TcpStream, mut to: TcpStream) {
    let _ = std::io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
}
