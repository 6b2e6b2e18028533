//! An HTTP server that records complete requests. The test defines its answers.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::Pair;
use super::secure::server_config;

#[derive(Clone, Debug)]
pub(crate) struct Received {
    /// Lines of the head, including the request line.
    pub(crate) head: Vec<String>,
    pub(crate) body: Vec<u8>,
    /// Number of the connection, counted from 0.
    pub(crate) connection: usize,
}

impl Received {
    /// All values of a header.
    pub(crate) fn headers(&self, name: &str) -> Vec<&str> {
        let lines = self.head.iter().skip(1).filter_map(|line| line.split_once(':'));
        let found = lines.filter(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.trim()).collect()
    }
}

/// Answer to a request.
pub(crate) enum Reply {
    /// Status with its reason, header lines, and body.
    Http(&'static str, &'static str, Vec<u8>),
    /// Raw bytes, after which the connection is closed.
    Raw(Vec<u8>),
    /// No answer until the client disconnects.
    Hang,
    /// First bytes of a stream, which stays open until the client disconnects.
    Standing(Vec<u8>),
}

/// The server; it listens as long as the tests run.
pub(crate) struct Recorder {
    pub(crate) port: u16,
    received: Arc<Mutex<Vec<Received>>>,
    standing: Arc<AtomicUsize>,
}

impl Recorder {
    /// Starts a recorder. `answer` gets the number of the request, counted from 0, and the request.
    pub(crate) fn start(
        answer: impl Fn(usize, &Received) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self::at(0, answer)
    }

    /// Starts a recorder that listens at `port`.
    pub(crate) fn at(
        port: u16,
        answer: impl Fn(usize, &Received) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self::listen(port, None, answer)
    }

    /// Starts a recorder over TLS with a certificate.
    pub(crate) fn secure(
        pair: &Pair,
        answer: impl Fn(usize, &Received) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self::listen(0, Some(server_config(pair)), answer)
    }

    fn listen(
        port: u16,
        tls: Option<Arc<ServerConfig>>,
        answer: impl Fn(usize, &Received) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (received, answer) = (Arc::<Mutex<Vec<Received>>>::default(), Arc::new(answer));
        let kept = Arc::clone(&received);
        let standing = Arc::<AtomicUsize>::default();
        let open = Arc::clone(&standing);
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().flatten().enumerate() {
                let (kept, answer, tls) = (Arc::clone(&kept), Arc::clone(&answer), tls.clone());
                let open = Arc::clone(&open);
                std::thread::spawn(move || match tls {
                    None => serve(stream, number, (&kept, &open), &*answer),
                    Some(tls) => {
                        let session = ServerConnection::new(tls).expect("a session");
                        serve(StreamOwned::new(session, stream), number, (&kept, &open), &*answer);
                    }
                });
            }
        });
        Self { port, received, standing }
    }

    /// Number of [standing](Reply::Standing) streams.
    pub(crate) fn standing(&self) -> usize {
        self.standing.load(Ordering::SeqCst)
    }

    pub(crate) fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn serve(
    stream: impl Read + Write,
    connection: usize,
    (kept, standing): (&Mutex<Vec<Received>>, &AtomicUsize),
    answer: &(dyn Fn(usize, &Received) -> Reply + Send + Sync),
) {
    let mut reader = BufReader::new(stream);
    while let Some((head, body)) = read(&mut reader) {
        let received = Received { head, body, connection };
        let number = {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.push(received.clone());
            kept.len() - 1
        };
        match answer(number, &received) {
            Reply::Http(status, lines, body) => {
                let length = body.len();
                let head = format!("HTTP/1.1 {status}\r\n{lines}content-length: {length}\r\n\r\n");
                let whole = [head.into_bytes(), body].concat();
                if reader.get_mut().write_all(&whole).is_err() {
                    return;
                }
            }
            Reply::Raw(bytes) => {
                let _ = reader.get_mut().write_all(&bytes);
                return;
            }
            Reply::Hang => {
                let _ = reader.read_to_end(&mut Vec::new());
                return;
            }
            Reply::Standing(bytes) => {
                standing.fetch_add(1, Ordering::SeqCst);
                let _ = reader.get_mut().write_all(&bytes);
                let _ = reader.read_to_end(&mut Vec::new());
                standing.fetch_sub(1, Ordering::SeqCst);
                return;
            }
        }
    }
}

fn read(reader: &mut impl BufRead) -> Option<(Vec<String>, Vec<u8>)> {
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|count| *count > 0)?;
        match line.trim_end() {
            "" => break,
            line => head.push(line.to_owned()),
        }
    }
    let length = |line: &String| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    };
    let mut body = vec![0; head.iter().find_map(length).unwrap_or(0)];
    reader.read_exact(&mut body).ok()?;
    Some((head, body))
}
