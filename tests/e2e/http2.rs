//! Bounds of HTTP/2 that HTTP/1.1 does not have, tested with raw frames. The common bound of request bodies applies to
//! all connections and is tested over HTTP/1.1, which needs less effort.
//!
//! After each attack another connection is served, and memory has not grown with the bytes sent.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{
    API_KEY, CertificateAuthority, Connection, END_HEADERS, END_STREAM, Http2, HttpStub, Proxy,
    field, frame, kind, request, secure, until, write_private,
};

/// Maximum number of streams (`server::http2_connection`).
const MAX_STREAMS: u32 = 64;
/// Maximum number of client errors that end only their own streams (`server::http2_connection`).
const MAX_ERROR_RESETS: u32 = 256;
/// Ids of two settings: the maximum number of concurrent streams, and the initial window of streams (RFC 9113 §6.5.2).
const MAX_CONCURRENT_STREAMS: u16 = 3;
const INITIAL_WINDOW_SIZE: u16 = 4;
/// Codes of errors (RFC 9113 §7).
const PROTOCOL_ERROR: u32 = 1;
const REFUSED_STREAM: u32 = 7;
const CANCEL: u32 = 8;
const ENHANCE_YOUR_CALM: u32 = 11;

fn serve(config: Value) -> (Proxy, CertificateAuthority) {
    serve_for(config, None)
}

/// A proxy for clients with certificates of the authorities `clients`.
fn serve_for(config: Value, clients: Option<&str>) -> (Proxy, CertificateAuthority) {
    let (ca, folder) = (CertificateAuthority::new("ca"), tempfile::tempdir().unwrap());
    ca.local().write(folder.path(), "server");
    let mut config = config;
    config["tls"] = json!({"cert": "server.pem", "key": "server.key"});
    if let Some(clients) = clients {
        write_private(&folder.path().join("clients.pem"), clients);
        config["tls"]["client_ca"] = json!("clients.pem");
    }
    let proxy = Proxy::unready(config, folder);
    until("it is ready", || {
        let mut connection = Http2::open(proxy.port, &ca, &[]);
        connection.send(&get("/readyz", 1));
        connection.wait_for(kind::HEADERS, 1).is_ok().then_some(())
    });
    (proxy, ca)
}

/// A whole request with the API key.
fn get(path: &str, stream: u32) -> Vec<u8> {
    let head = [request("GET", path), keyed()].concat();
    frame(kind::HEADERS, END_STREAM | END_HEADERS, stream, &head)
}

fn keyed() -> Vec<u8> {
    [field(":authority", "localhost"), field("x-api-key", API_KEY)].concat()
}

/// Head of an anonymous message to `/mcp`.
fn message(stream: u32) -> Vec<u8> {
    let fields = [
        (":authority", "localhost"),
        ("content-type", "application/json"),
        ("accept", "application/json, text/event-stream"),
    ];
    let fields = fields.iter().flat_map(|(name, value)| field(name, value));
    let head = [request("POST", "/mcp"), fields.collect()].concat();
    frame(kind::HEADERS, END_HEADERS, stream, &head)
}

/// A request whose body is never sent. It stays open until the client ends it.
fn unfinished(stream: u32) -> Vec<u8> {
    let json = field("content-type", "application/json");
    let head = [request("POST", "/api/v1/tools/call"), keyed(), json].concat();
    frame(kind::HEADERS, END_HEADERS, stream, &head)
}

fn reset(stream: u32) -> Vec<u8> {
    frame(kind::RST_STREAM, 0, stream, &CANCEL.to_be_bytes())
}

/// Id of the `n`th stream: streams opened by a client have odd numbers.
fn nth(n: u32) -> u32 {
    2 * n + 1
}

fn assert_served(proxy: &Proxy, ca: &CertificateAuthority) {
    let mut other = Http2::open(proxy.port, ca, &[]);
    other.send(&get("/api/v1/status", 1));
    assert!(other.wait_for(kind::HEADERS, 1).is_ok());
}

/// Peak resident memory of the process in KB.
fn peak(proxy: &Proxy) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", proxy.process.0.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

// BND-4
#[test]
fn streams_above_the_bound_are_refused_and_the_others_continue() {
    let (proxy, ca) = serve(json!({}));
    let mut connection = Http2::open(proxy.port, &ca, &[]);
    let settings = connection.wait_for(kind::SETTINGS, 0).payload;
    let reported = settings.chunks(6).find(|it| it[..2] == MAX_CONCURRENT_STREAMS.to_be_bytes());
    assert_eq!(reported.unwrap()[2..], MAX_STREAMS.to_be_bytes());
    let all: Vec<u8> = (0..=MAX_STREAMS).flat_map(|n| unfinished(nth(n))).collect();
    connection.send(&all);
    let refused = connection.wait_for(kind::RST_STREAM, 0);
    assert_eq!((refused.stream, refused.code()), (nth(MAX_STREAMS), REFUSED_STREAM));
    assert_served(&proxy, &ca);
    connection.send(&[reset(1), get("/healthz", nth(MAX_STREAMS + 1))].concat());
    assert!(connection.wait_for(kind::HEADERS, nth(MAX_STREAMS + 1)).is_ok());
    drop(connection);
    proxy.end();
}

// BND-4
#[test]
fn flood_of_immediately_reset_requests_ends_the_connection() {
    let (proxy, ca) = serve(json!({}));
    let mut connection = Http2::open(proxy.port, &ca, &[]);
    // All frames are in one TLS record, so that no request is processed before its reset.
    let flood: Vec<u8> =
        (0..60).flat_map(|n| [unfinished(nth(n)), reset(nth(n))].concat()).collect();
    assert!(flood.len() < 16 * 1024);
    connection.send(&flood);
    assert_eq!(connection.ended(), Some(ENHANCE_YOUR_CALM));
    assert_served(&proxy, &ca);
    proxy.end();
}

#[test]
fn client_with_continuous_errors_loses_its_connection() {
    let (proxy, ca) = serve(json!({}));
    let mut connection = Http2::open(proxy.port, &ca, &[]);
    // A body longer than its content-length (RFC 9113 §8.1.1).
    let mistake = |n: u32| {
        let one = field("content-length", "1");
        let head = [request("POST", "/api/v1/tools/call"), keyed(), one].concat();
        let head = frame(kind::HEADERS, END_HEADERS, nth(n), &head);
        [head, frame(kind::DATA, 0, nth(n), b"{}")].concat()
    };
    for n in 0..MAX_ERROR_RESETS {
        connection.send(&mistake(n));
        assert_eq!(connection.wait_for(kind::RST_STREAM, nth(n)).code(), PROTOCOL_ERROR, "{n}");
    }
    connection.send(&get("/healthz", nth(MAX_ERROR_RESETS)));
    assert!(
        connection.wait_for(kind::HEADERS, nth(MAX_ERROR_RESETS)).is_ok(),
        "it continues so far"
    );
    connection.send(&mistake(MAX_ERROR_RESETS + 1));
    assert_eq!(connection.ended(), Some(ENHANCE_YOUR_CALM));
    assert_served(&proxy, &ca);
    proxy.end();
}

#[test]
fn oversized_heads_are_refused_and_endless_heads_end_the_connection() {
    let (proxy, ca) = serve(json!({}));
    let mut connection = Http2::open(proxy.port, &ca, &[]);
    // More than 64 KiB, in as many frames as that needs.
    let fields: Vec<Vec<u8>> =
        (0..5).map(|n| field(&format!("x-large-{n}"), &"a".repeat(15_000))).collect();
    let begun = [request("GET", "/healthz"), keyed()].concat();
    connection.send(&frame(kind::HEADERS, END_STREAM, 1, &begun));
    for (n, field) in fields.iter().enumerate() {
        let flags = if n + 1 == fields.len() { END_HEADERS } else { 0 };
        connection.send(&frame(kind::CONTINUATION, flags, 1, field));
    }
    let refused = connection.wait_for(kind::HEADERS, 1);
    // Status 431 in the Huffman code of RFC 7541, appendix B.
    let error = refused.payload.windows(3).any(|it| it == [0x69, 0x90, 0xff]);
    assert!(error && refused.flags & END_STREAM != 0, "{refused:?}");
    connection.send(&get("/healthz", 3));
    assert!(connection.wait_for(kind::HEADERS, 3).is_ok(), "the connection continues");
    let before = peak(&proxy);
    connection.send(&frame(kind::HEADERS, END_STREAM, 5, &begun));
    let flood = frame(kind::CONTINUATION, 0, 5, &field("x", "a")).repeat(1000);
    // The connection may be closed before everything is sent.
    let _ = connection.0.write_all(&flood);
    assert_eq!(connection.ended(), Some(ENHANCE_YOUR_CALM));
    assert_served(&proxy, &ca);
    let grown = peak(&proxy).saturating_sub(before);
    assert!(grown < 8 * 1024, "the peak grew by {grown} KB");
    proxy.end();
}

#[test]
fn replies_without_client_window_wait_at_their_servers() {
    const REPLIES: u32 = 32;
    const BYTES: usize = 16 << 20;
    let stub = HttpStub::start(&["--stateless"]);
    let (proxy, ca) = serve(json!({"mcpServers": {"s": stub.entry()}}));
    let body = json!({"tool_name": "call_tool_read", "arguments": {"name": "s:text",
        "args": {"size": BYTES}, "intent": {"operation_type": "read"}}});
    let ask = |stream: u32| {
        let body = frame(kind::DATA, END_STREAM, stream, body.to_string().as_bytes());
        [unfinished(stream), body].concat()
    };
    // A first connection with a normal window, so that memory allocated for a first answer is not counted.
    let mut other = Http2::open(proxy.port, &ca, &[]);
    other.send(&ask(1));
    assert!(other.wait_for(kind::HEADERS, 1).is_ok());
    let before = peak(&proxy);
    let mut stalled = Http2::open(proxy.port, &ca, &[(INITIAL_WINDOW_SIZE, 0)]);
    stalled.send(&(0..REPLIES).flat_map(|n| ask(nth(n))).collect::<Vec<u8>>());
    for _ in 0..REPLIES {
        assert!(stalled.wait_for(kind::HEADERS, 0).is_ok());
    }
    assert_served(&proxy, &ca);
    stalled.send(&frame(kind::WINDOW_UPDATE, 0, 1, &100u32.to_be_bytes()));
    let first = stalled.wait_for(kind::DATA, 0);
    assert!(first.stream == 1 && (1..=100).contains(&first.payload.len()), "{}", first.stream);
    let grown = peak(&proxy).saturating_sub(before);
    assert!(grown < 64 * 1024, "{REPLIES} replies of {BYTES} bytes: the peak grew by {grown} KB");
    drop((stalled, other));
    proxy.end();
}

#[test]
fn frames_that_require_answers_are_not_read_while_answers_are_blocked() {
    const BYTES: usize = 24 << 20;
    let (proxy, ca) = serve(json!({}));
    for asks in [frame(kind::PING, 0, 0, &[7; 8]), frame(kind::SETTINGS, 0, 0, &[])] {
        let mut connection = Http2::open(proxy.port, &ca, &[]);
        // A thousand frames, all of which are answered.
        connection.send(&asks.repeat(1000));
        let answers = std::iter::from_fn(|| connection.next());
        let answers = answers.filter(|it| it.kind == asks[3] && it.flags & 1 != 0);
        assert_eq!(answers.take(1000).count(), 1000);
        let before = peak(&proxy);
        // The loop ends when all frames are sent, or when the proxy stops reading.
        connection.0.sock.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
        let portion = asks.repeat(1000);
        for _ in 0..BYTES / portion.len() {
            if connection.0.write_all(&portion).is_err() {
                break;
            }
        }
        assert_served(&proxy, &ca);
        let grown = peak(&proxy).saturating_sub(before);
        assert!(grown < 8 * 1024, "the peak grew by {grown} KB");
    }
    proxy.end();
}

#[test]
fn authority_is_checked_instead_of_an_accompanying_host_header() {
    let (proxy, ca) = serve(json!({}));
    let mut connection = Http2::open(proxy.port, &ca, &[]);
    for (stream, authority, host, served) in
        [(1, "localhost", "evil.example", true), (3, "evil.example", "localhost", false)]
    {
        let named = [field(":authority", authority), field("host", host)].concat();
        let head = [request("GET", "/healthz"), named].concat();
        connection.send(&frame(kind::HEADERS, END_STREAM | END_HEADERS, stream, &head));
        assert_eq!(connection.wait_for(kind::HEADERS, stream).is_ok(), served, "{authority}");
    }
    drop(connection);
    proxy.end();
}

#[test]
fn client_without_requests_does_not_delay_shutdown() {
    let (proxy, ca) = serve(json!({}));
    let _silent = secure(proxy.port, &ca, None, &[b"h2"]);
    let mut greeted = Http2::open(proxy.port, &ca, &[]);
    greeted.wait_for(kind::SETTINGS, 0);
    let folder = proxy.end();
    let log = std::fs::read_to_string(folder.path().join("log")).unwrap();
    assert!(!log.contains("cut off"), "{log}");
}

#[test]
fn client_whose_authority_was_withdrawn_is_refused_new_requests() {
    let clients = CertificateAuthority::new("clients");
    let (proxy, ca) = serve_for(json!({"require_mcp_auth": true}), Some(&clients.pem));
    let body = |stream: u32| {
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": {"name": "t", "version": "1"}});
        let asked = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params});
        frame(kind::DATA, END_STREAM, stream, asked.to_string().as_bytes())
    };
    // The client does not answer PING, so the proxy cannot know whether GOAWAY has arrived.
    let mut connection = Http2::by(Some(&clients.client("ada")), proxy.port, &ca, &[]);
    connection.send(&[message(1), message(3), body(3)].concat());
    assert!(connection.wait_for(kind::HEADERS, 3).is_ok());
    let others = CertificateAuthority::new("others").pem;
    write_private(&proxy.folder.path().join("clients.pem"), &others);
    until("the other authority is in force", || {
        proxy.log().contains("reloaded the TLS files").then_some(())
    });
    connection.send(&[message(5), body(5)].concat());
    assert!(!connection.wait_for(kind::HEADERS, 5).is_ok());
    let reported = connection.wait_for(kind::DATA, 5).payload;
    let reported = String::from_utf8_lossy(&reported);
    assert!(
        reported.contains(
            "The client certificate was issued by an authority that is no longer trusted"
        ),
        "{reported}"
    );
    connection.send(&body(1));
    assert!(connection.wait_for(kind::HEADERS, 1).is_ok(), "the request had begun before");
    drop(connection);
    proxy.end();
}

/// A client that has sent a part of a body, and the response received so far.
struct Unfinished {
    stream: TcpStream,
    received: Vec<u8>,
    is_over: bool,
}

impl Unfinished {
    /// Sends `bytes` as far as they are accepted.
    fn sending(port: u16, bytes: &[u8]) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        // The request may be refused, and the connection closed, before everything is sent.
        let _ = stream.write_all(bytes);
        stream.set_nonblocking(true).unwrap();
        Self { stream, received: Vec::new(), is_over: false }
    }

    /// Reads the available response. Returns whether the proxy has closed the connection.
    fn is_over(&mut self) -> bool {
        let mut bytes = [0; 4096];
        while !self.is_over {
            match self.stream.read(&mut bytes) {
                Ok(count) if count > 0 => self.received.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Ok(_) | Err(_) => self.is_over = true,
            }
        }
        self.is_over
    }
}

#[test]
fn bodies_in_transit_share_a_bound_that_leaves_space_for_authenticated_clients() {
    /// Common bound of the bodies of unauthenticated clients, and the size up to which a body does not count
    /// (`proxy::body_room`).
    const BOUND: usize = 64 << 20;
    const SMALL: usize = 64 << 10;
    const CLIENTS: usize = 48;
    const BYTES: usize = 6 << 20;
    let proxy = Proxy::with(json!({}));
    let port = proxy.port;
    let before = peak(&proxy);
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nContent-Length: {}\r\n\r\n",
        BYTES + 1
    );
    // The request without the last byte of its body.
    let sent = [head.into_bytes(), vec![b' '; BYTES]].concat();
    let mut clients: Vec<Unfinished> = std::thread::scope(|scope| {
        let sending: Vec<_> =
            (0..CLIENTS).map(|_| scope.spawn(|| Unfinished::sending(port, &sent))).collect();
        sending.into_iter().map(|it| it.join().unwrap()).collect()
    });
    // The other bodies do not fit. Those that fit end with a timeout.
    let fit = BOUND / (BYTES - SMALL);
    until("the others are refused", || {
        let over = clients.iter_mut().filter_map(|it| it.is_over().then_some(())).count();
        (over >= CLIENTS - fit).then_some(())
    });
    let grown = peak(&proxy).saturating_sub(before) as usize * 1024;
    assert!(grown < 3 * BOUND, "{CLIENTS} bodies of {BYTES} bytes: {grown} bytes");
    let mut refused = 0;
    for client in clients.iter().filter(|it| it.is_over) {
        let reported = String::from_utf8_lossy(&client.received);
        if !reported.starts_with("HTTP/1.1 408 ") {
            assert!(
                reported.starts_with("HTTP/1.1 503 ")
                    && reported.contains("exceeds the memory budget"),
                "{reported}"
            );
            assert!(reported.to_ascii_lowercase().contains("\r\nretry-after: "), "{reported}");
            refused += 1;
        }
    }
    assert!(refused > 0, "all of them were late, and none was refused");
    // The other bodies may still use up the common bound. Authenticated clients have a bound of their own, and small
    // bodies do not count.
    let key = [("X-API-Key", API_KEY)];
    let known = proxy.request("POST", "/api/v1/tools/call", &key, &vec![b' '; 1 << 20]);
    assert_eq!(known.status, 400, "{}", known.text());
    drop((proxy.client(), clients));
    proxy.end();
}

#[test]
fn refusal_is_delivered_even_if_the_body_is_rejected() {
    let proxy = Proxy::with(json!({}));
    let mut connection = Connection::open(proxy.port);
    // The request is refused because of its head. The body is longer than the proxy reads ahead.
    connection.send("POST", "/api/v1/tools/call", &[], &vec![b' '; 1 << 20]);
    assert_eq!(connection.response().status, 401);
    // The whole body was read. Otherwise the connection would be closed, and the client might receive a reset instead
    // of the refusal.
    connection.send("GET", "/healthz", &[], b"");
    assert_eq!(connection.response().status, 200);
    drop(connection);
    proxy.end();
}
