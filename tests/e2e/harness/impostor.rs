//! A program that listens on a proxy's port and records every received byte.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// The impostor; it ends with the test.
pub(crate) struct Impostor {
    pub(crate) port: u16,
    sent: Arc<Mutex<Vec<u8>>>,
    ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Impostor {
    /// An impostor that answers every request like mcpproxy's health endpoint.
    pub(crate) fn lookalike() -> Self {
        Self::lookalike_on(0)
    }

    /// The same as [`lookalike`](Self::lookalike), on a port that another process has used before.
    pub(crate) fn lookalike_on(port: u16) -> Self {
        const HEALTH: &str =
            r#"{"status":"ok","activity":{},"success":true,"data":{"proof":"00"}}"#;
        let reply = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{HEALTH}", HEALTH.len());
        Self::start(port, move |mut stream, sent| {
            let mut bytes = [0; 65536];
            while let Ok(length @ 1..) = stream.read(&mut bytes) {
                sent.lock().unwrap().extend_from_slice(&bytes[..length]);
                // On loopback a request without a body arrives in a single read.
                let _ = stream.write_all(reply.as_bytes());
            }
        })
    }

    /// An impostor that relays everything, in both directions, to the proxy at another port.
    pub(crate) fn before(port: u16) -> Self {
        Self::start(0, move |mut client, sent| {
            let mut server = TcpStream::connect(("127.0.0.1", port)).expect("the proxy listens");
            let (mut back, mut from) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            let answers = std::thread::spawn(move || {
                let _ = std::io::copy(&mut from, &mut back);
                let _ = back.shutdown(Shutdown::Both);
            });
            let mut bytes = [0; 65536];
            while let Ok(length @ 1..) = client.read(&mut bytes) {
                sent.lock().unwrap().extend_from_slice(&bytes[..length]);
                let _ = server.write_all(&bytes[..length]);
            }
            let _ = server.shutdown(Shutdown::Both);
            let _ = answers.join();
        })
    }

    fn start(port: u16, talk: impl Fn(TcpStream, &Mutex<Vec<u8>>) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (sent, ending) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let (kept, over) = (Arc::clone(&sent), Arc::clone(&ending));
        let talk = Arc::new(talk);
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if over.load(Ordering::Acquire) {
                    return;
                }
                let (talk, kept) = (Arc::clone(&talk), Arc::clone(&kept));
                std::thread::spawn(move || talk(stream, &kept));
            }
        });
        Self { port, sent, ending, thread: Some(thread) }
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Bytes received so far, over all connections.
    pub(crate) fn sent(&self) -> String {
        String::from_utf8_lossy(&self.sent.lock().unwrap()).into_owned()
    }
}

impl Drop for Impostor {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Release);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
