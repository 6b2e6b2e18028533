//! Clients that send or read slowly, and servers that answer slowly, delay no others.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::json;

use crate::harness::{
    Client, Connection, Events, HttpStub, PATIENCE, Proxy, error_text, stub_stdio, until,
};

/// Pause between two bytes, far shorter than any time limit for a whole head or body.
const PAUSE: Duration = Duration::from_millis(100);
/// Maximum number of bytes sent. With a `PAUSE` after each byte this takes longer than the longest time limit.
const MOST: usize = 900;
/// Number of connections without traffic.
const IDLE: usize = 100;

/// Sends `start`, then single bytes until the server closes the connection. Returns the received text.
fn dribble(port: u16, start: &str, byte: u8) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PAUSE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.write_all(start.as_bytes()).unwrap();
    let (mut received, mut room) = (Vec::new(), [0; 4096]);
    for _ in 0..MOST {
        let _ = stream.write_all(&[byte]);
        match stream.read(&mut room) {
            Ok(0) => return String::from_utf8(received).unwrap(),
            Ok(count) => received.extend_from_slice(&room[..count]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            // The server has closed the connection, so bytes sent since cause an error.
            Err(_) => return String::from_utf8(received).unwrap(),
        }
    }
    panic!("the connection is open after {MOST} bytes: {start:?}");
}

// NET-5
#[test]
fn slow_sender_is_disconnected_and_does_not_delay_others() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&["--only", "read_item"])}));
    let port = proxy.port;
    let open = |start: &str| {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.write_all(start.as_bytes()).unwrap();
        stream
    };
    let _idle: Vec<_> = (0..IDLE).map(|_| open("")).collect();
    let _begun: Vec<_> = (0..IDLE).map(|_| open("POST /mcp HTTP/1.1\r\nHost: 127")).collect();
    let post = "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n\
                Accept: application/json, text/event-stream\r\n";
    let healthy = "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
    let head = format!("{post}X-Slow: ");
    let sized = format!("{post}Content-Length: 100000\r\n\r\n");
    // A body without Content-Length whose only chunk is never complete.
    let chunked = format!("{post}Transfer-Encoding: chunked\r\n\r\n186a0\r\n");
    let get = "GET /api/v1/status HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ".to_owned();
    let second = format!("{healthy}{get}");
    let late = "HTTP/1.1 408 ";
    let cases = [(head, ""), (get, ""), (second, "HTTP/1.1 200 "), (sized, late), (chunked, late)];
    std::thread::scope(|scope| {
        let slow: Vec<_> = cases
            .iter()
            .map(|(start, expected)| {
                (scope.spawn(move || dribble(port, start, b'a')), start, expected)
            })
            .collect();
        let works = || {
            let result = proxy.client().read("s:read_item", json!({}));
            assert_eq!(result["structuredContent"]["value"], 7, "{result}");
        };
        (0..20).for_each(|_| works());
        for (slow, start, expected) in slow {
            let answer = slow.join().unwrap();
            works();
            assert!(answer.starts_with(expected), "{start}: {answer}");
            assert_eq!(answer.matches("HTTP/1.1 ").count(), usize::from(!expected.is_empty()));
        }
    });
}

/// Begins a call whose answer is not read yet, and completes another call to the same child.
fn unread(proxy: &Proxy, bytes: usize) -> Client {
    let (mut slow, mut other) = (proxy.client(), proxy.client());
    slow.begin_read("s:text", json!({"size": bytes}));
    assert_eq!(slow.connection.head().0, 200);
    assert_eq!(other.read("s:read_item", json!({}))["structuredContent"]["value"], 7);
    slow
}

#[test]
fn slow_reader_gets_everything_and_does_not_delay_other_calls_of_the_same_child() {
    // More than sockets can buffer, and less than the proxy keeps for a slow client while other calls wait.
    const BYTES: usize = 12 << 20;
    let proxy = Proxy::start(json!({"s": stub_stdio(&[])}));
    let mut slow = unread(&proxy, BYTES);
    let mut body = 0;
    loop {
        let chunk = slow.connection.chunk().expect("the answer is not cut off");
        if chunk.is_empty() {
            break;
        }
        body += chunk.len();
    }
    assert!(body > BYTES, "{body}");
}

#[test]
fn slow_reader_beyond_the_buffer_limit_loses_only_its_own_answer() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&[])}));
    let mut slow = unread(&proxy, 48 << 20);
    while slow.connection.chunk().is_some_and(|chunk| !chunk.is_empty()) {}
    let record = until("the record", || {
        proxy.activity(&format!("session_id={}&tool=text", slow.session)).pop()
    });
    assert_eq!(record["status"], "error", "{record}");
    let why = record["error_message"].as_str().unwrap();
    assert!(why.starts_with("s: text: the client read the answer too slowly: "), "{why}");
    let mut next = proxy.client();
    assert_eq!(next.read("s:read_item", json!({}))["structuredContent"]["value"], 7);
}

#[test]
fn client_that_answers_slowly_does_not_delay_other_calls_of_the_same_child() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&[])}));
    let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {"elicitation": {}},
        "clientInfo": {"name": "slow", "version": "1"}}});
    let opened = proxy.request("POST", "/mcp", &[], hello.to_string().as_bytes());
    let session = opened.header("mcp-session-id").expect("a session");
    let arguments = json!({"name": "s:ask", "args": {"ask": "elicitation/create"},
        "intent": {"operation_type": "read"}});
    let call = json!({"jsonrpc": "2.0", "id": "c", "method": "tools/call",
        "params": {"name": "call_tool_read", "arguments": arguments}});
    let mut asking = Connection::open(proxy.port);
    asking.send("POST", "/mcp", &[("Mcp-Session-Id", session)], call.to_string().as_bytes());
    let mut events = Events::of(asking);
    let id = events.message()["id"].clone();
    let mut other = proxy.client();
    let mut works = |size: usize| {
        // Answers on the same pipe after the question: a small one, and one larger than any buffer.
        assert_eq!(other.read("s:read_item", json!({}))["structuredContent"]["value"], 7);
        let text = other.read_raw("s:text", json!({"size": size}));
        assert!(text.whole && text.body.len() > size, "{} bytes", text.body.len());
    };
    works(1 << 20);
    let result = json!({"action": "accept", "content": {}});
    let answer = json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string();
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nMcp-Session-Id: {session}\r\n\
         Content-Length: {}\r\n\r\n",
        answer.len()
    );
    let (begun, rest) = answer.split_at(answer.len() / 2);
    let mut slow = Connection::open(proxy.port);
    slow.raw(format!("{head}{begun}").as_bytes());
    (0..5).for_each(|_| works(1 << 20));
    slow.raw(rest.as_bytes());
    assert_eq!(slow.response().status, 202);
    let notification = events.message();
    assert_eq!(notification["result"]["structuredContent"]["answered"], result, "{notification}");
    works(1);
}

#[test]
fn server_whose_answers_are_held_long_does_not_use_the_buffer_share_of_another() {
    let (large, other) = (HttpStub::start(&[]), HttpStub::start(&[]));
    let proxy = Proxy::with(json!({
        "mcpServers": {"large": large.entry(), "other": other.entry()},
        "output_validation":
            {"mode": "strict", "max_held_bytes": 1_000_000, "max_held_total_bytes": 4_000_000},
    }));
    // Each of these calls holds nearly its whole answer in memory for longer than any other call waits.
    let args = json!({"size": 990_000, "chunk": 985_000, "pause_ms": 20_000});
    let (sender, refused) = std::sync::mpsc::channel();
    for _ in 0..6 {
        let (sender, args, mut client) = (sender.clone(), args.clone(), proxy.client());
        // The thread ends with the test, which needs no further answers then.
        std::thread::spawn(move || {
            client.begin_read("large:blob", args);
            let response = client.connection.response();
            let _ = sender.send(response.json());
        });
    }
    let refused = refused.recv_timeout(PATIENCE).unwrap();
    let text = error_text(&refused["result"]).to_owned();
    assert!(text.starts_with("large: blob: no memory to hold its answer"), "{text}");
    assert!(text.contains("1000000 are its own (held_share_bytes)"), "{text}");
    assert!(text.contains("max_held_total_bytes 4000000 for all"), "{text}");
    let mut client = proxy.client();
    for _ in 0..3 {
        let result = client.read("other:blob", json!({"size": 900_000}));
        assert_eq!(result.get("isError"), None, "{result:.300}");
    }
}
