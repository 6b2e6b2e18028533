//! Results larger than the proxy may hold in memory are forwarded as they arrive.

use std::io::Write;
use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::harness::{
    Client, HttpStub, PATIENCE, Proxy, Received, Recorder, Reply, raw_result, stub_stdio, until,
};

const HUNDRED_MB: usize = 100 << 20;
/// Size of a first answer, after which queues and buffers have reached their maximum size.
const WARM_UP: usize = 16 << 20;
/// Maximum growth of the peak memory while a large result is streamed (`benches/README.md`, Budgets).
const GROWTH_KB: u64 = 4 * 1024;

/// A field of `/proc/PID/status`, in KB.
fn memory(proxy: &Proxy, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", proxy.process.0.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Reads a streamed result without keeping it, and compares each byte. Returns its length.
fn stream(client: &mut Client, tool: &str, size: usize) -> usize {
    client.begin_read(tool, json!({"size": size}));
    let (status, headers) = client.connection.head();
    assert_eq!(status, 200);
    assert!(
        headers.contains(&("transfer-encoding".to_owned(), "chunked".to_owned())),
        "{headers:?}"
    );
    let head = br#"{"jsonrpc":"2.0","id":"raw","result":{"content":[{"type":"text","text":""#;
    let tail = br#""}]}}"#;
    let (mut total, mut last) = (0, Vec::new());
    loop {
        let chunk = client.connection.chunk().expect("the stream is complete");
        if chunk.is_empty() {
            break;
        }
        let filler = |at: usize| at >= head.len();
        for (at, byte) in chunk.iter().enumerate().take(head.len().saturating_sub(total)) {
            assert_eq!(*byte, head[total + at]);
        }
        let from = head.len().saturating_sub(total).min(chunk.len());
        let odd = chunk[from..].iter().filter(|byte| **byte != b'x').count();
        assert!(odd <= tail.len() && (odd == 0 || filler(total + from)), "a byte differs");
        total += chunk.len();
        last.extend_from_slice(&chunk[chunk.len().saturating_sub(tail.len())..]);
        last.drain(..last.len().saturating_sub(tail.len()));
    }
    assert_eq!(last, tail);
    total - br#"{"jsonrpc":"2.0","id":"raw","result":}"#.len()
}

#[test]
fn hundred_mb_are_streamed_byte_for_byte_and_memory_stays_flat() {
    let http = HttpStub::start(&["--stateless"]);
    let proxy = Proxy::start(json!({"s": http.entry()}));
    let mut client = proxy.client();
    // A first large answer fills the buffers, which later answers then do not enlarge.
    stream(&mut client, "s:text", WARM_UP);
    let before = memory(&proxy, "VmHWM");
    assert_eq!(stream(&mut client, "s:text", HUNDRED_MB), HUNDRED_MB);
    let grown = memory(&proxy, "VmHWM").saturating_sub(before);
    assert!(grown <= GROWTH_KB, "the peak grew by {grown} KB");
    let record = client.records(&proxy, "").remove(0);
    assert_eq!(
        (&record["status"], &record["response_bytes"]),
        (&json!("success"), &json!(HUNDRED_MB))
    );
}

#[test]
fn line_of_a_hundred_mb_over_stdio_is_streamed_and_memory_stays_flat() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&[])}));
    let mut client = proxy.client();
    stream(&mut client, "s:text", WARM_UP);
    let before = memory(&proxy, "VmHWM");
    assert_eq!(stream(&mut client, "s:text", HUNDRED_MB), HUNDRED_MB);
    let grown = memory(&proxy, "VmHWM").saturating_sub(before);
    assert!(grown <= GROWTH_KB, "the peak grew by {grown} KB");
}

/// `max_bytes` of the upstream below.
const MAX_BYTES: usize = 4 << 20;

/// An upstream controlled by a test, byte by byte.
struct ByHand {
    listener: TcpListener,
    /// Definition of its only tool.
    tool: Value,
}

/// A request to the server, with its body read.
struct Asked {
    stream: std::net::TcpStream,
    body: Value,
}

impl ByHand {
    fn new() -> Self {
        let tool = json!({"name": "t", "inputSchema": {"type": "object"},
            "annotations": {"readOnlyHint": true}});
        Self { listener: TcpListener::bind("127.0.0.1:0").unwrap(), tool }
    }

    /// The same server with an output schema: `value` must be an integer.
    fn with_schema() -> Self {
        let mut server = Self::new();
        server.tool["outputSchema"] =
            json!({"type": "object", "properties": {"value": {"type": "integer"}}});
        server
    }

    fn entry(&self) -> Value {
        json!({
            "url": format!("http://{}/mcp", self.listener.local_addr().unwrap()),
            "output_validation": {"max_bytes": MAX_BYTES},
        })
    }

    /// Answers other requests until a call arrives. Each answer closes its connection.
    fn call(&self) -> Asked {
        loop {
            let Some(mut asked) = self.next() else { continue };
            let result = match asked.body["method"].as_str().unwrap_or_default() {
                "tools/call" => return asked,
                "initialize" => {
                    json!({"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                    "serverInfo": {"name": "by hand", "version": "1"}})
                }
                "tools/list" => json!({"tools": [self.tool]}),
                _ => {
                    asked.send(
                        "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
                    );
                    continue;
                }
            };
            let body =
                json!({"jsonrpc": "2.0", "id": asked.body["id"], "result": result}).to_string();
            asked.begin(body.len());
            asked.send(&body);
        }
    }

    fn next(&self) -> Option<Asked> {
        use std::io::{BufRead, BufReader, Read};
        let (stream, _) = self.listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let (mut length, mut line) = (0, String::new());
        let mut first = String::new();
        loop {
            line.clear();
            if reader.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            if first.is_empty() {
                first.clone_from(&line);
            }
            let Some((name, value)) = line.trim_end().split_once(':') else {
                if line.trim_end().is_empty() { break } else { continue }
            };
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let mut asked = Asked { stream, body: serde_json::from_slice(&body).unwrap_or_default() };
        if !first.starts_with("POST") {
            asked.send(
                "HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            );
            return None;
        }
        Some(asked)
    }
}

impl Asked {
    fn send(&mut self, text: &str) {
        let _ = self.stream.write_all(text.as_bytes()).and_then(|()| self.stream.flush());
    }

    fn begin(&mut self, length: usize) {
        self.send(&format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
        ));
    }

    /// The answer in two parts: up to the middle of its text, and the rest.
    fn halves(&self) -> [String; 2] {
        let id = &self.body["id"];
        [
            format!(
                r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":[{{"type":"text","text":"first half"#
            ),
            r#" second half"}]}}"#.to_owned(),
        ]
    }

    /// The same answer with the id after the result.
    fn id_last(&self) -> [String; 2] {
        let id = &self.body["id"];
        [
            r#"{"result":{"content":[{"type":"text","text":"first half"#.to_owned(),
            format!(r#" second half"}}]}},"jsonrpc":"2.0","id":{id}}}"#),
        ]
    }

    /// Answer with a text of `size` bytes as `value`.
    fn violation(&self, size: usize) -> [String; 2] {
        let id = &self.body["id"];
        let head = r#""result":{"content":[],"structuredContent":{"value":""#;
        let text = "x".repeat(size);
        [format!(r#"{{"jsonrpc":"2.0","id":{id},{head}{text}first half"#), r#""}}}"#.to_owned()]
    }
}

/// Starts a proxy for a server controlled by the test, makes a call, and sends the first half of the answer.
fn half_way(halves: impl Fn(&Asked) -> [String; 2]) -> (Proxy, Client, Asked, String) {
    half_way_of(&ByHand::new(), halves)
}

fn half_way_of(
    server: &ByHand,
    halves: impl Fn(&Asked) -> [String; 2],
) -> (Proxy, Client, Asked, String) {
    half_way_with(json!({}), server, halves)
}

fn half_way_with(
    output_validation: Value,
    server: &ByHand,
    halves: impl Fn(&Asked) -> [String; 2],
) -> (Proxy, Client, Asked, String) {
    let config =
        json!({"mcpServers": {"s": server.entry()}, "output_validation": output_validation});
    let proxy = Proxy::unready(config, tempfile::tempdir().unwrap());
    let mut client = proxy.client();
    client.begin_read("s:t", json!({}));
    let mut asked = server.call();
    let [first, second] = halves(&asked);
    asked.begin(first.len() + second.len());
    asked.send(&first);
    (proxy, client, asked, second)
}

fn first_half(client: &mut Client) {
    let (status, headers) = client.connection.head();
    assert_eq!(status, 200, "{headers:?}");
    let mut got = Vec::new();
    while !got.ends_with(b"first half") {
        got.extend(client.connection.chunk().expect("the first half"));
    }
    assert!(got.starts_with(br#"{"jsonrpc":"2.0","id":"raw","result":{"content""#));
}

#[test]
fn first_bytes_are_forwarded_before_the_last_are_sent() {
    for halves in [Asked::halves, Asked::id_last] {
        let (proxy, mut client, mut asked, second) = half_way(halves);
        first_half(&mut client);
        asked.send(&second);
        let mut rest = Vec::new();
        while let Some(chunk) = client.connection.chunk().filter(|chunk| !chunk.is_empty()) {
            rest.extend(chunk);
        }
        assert_eq!(String::from_utf8(rest).unwrap(), r#" second half"}]}}"#);
        assert_eq!(client.records(&proxy, "")[0]["status"], "success");
    }
}

#[test]
fn upstream_that_fails_after_its_first_byte_aborts_the_response() {
    let (proxy, mut client, asked, _) = half_way(Asked::halves);
    first_half(&mut client);
    drop(asked);
    while let Some(chunk) = client.connection.chunk() {
        assert!(!chunk.is_empty(), "a final chunk would mark it as complete");
    }
    let record = until("the record", || client.records(&proxy, "type=tool_call").pop());
    assert_eq!(record["status"], "error");
    assert!(record["error_message"].as_str().unwrap().starts_with("s: t: "), "{record}");
}

#[test]
fn client_that_disconnects_cancels_the_call_and_it_is_recorded() {
    let (proxy, mut client, mut asked, second) = half_way(Asked::halves);
    first_half(&mut client);
    let session = client.session.clone();
    drop(client);
    let record = until("the record", || {
        proxy.activity(&format!("session_id={session}&type=tool_call")).pop()
    });
    assert_eq!(record["status"], "error");
    assert!(record["error_message"].as_str().unwrap().contains("client disconnected"), "{record}");
    // The proxy closes the connection to the upstream, without reading the rest of the answer.
    let mut end = [0];
    let closed = std::io::Read::read(&mut asked.stream, &mut end);
    assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
    asked.send(&second);
}

/// Disconnects the client while its answer, which violates the schema, is validated in mode `warn`.
fn disconnect_and_assert_decision(proxy: &Proxy, client: Client) {
    let session = client.session.clone();
    drop(client);
    let record = until("the record", || {
        proxy.activity(&format!("session_id={session}&type=tool_call")).pop()
    });
    assert_eq!(record["status"], "success", "{record}");
    let decisions = proxy.activity(&format!("session_id={session}&type=policy_decision"));
    assert_eq!(decisions.len(), 1);
    assert_eq!(decisions[0]["metadata"]["instance_path"], "/value", "{}", decisions[0]);
}

#[test]
fn fr_a11_decision_is_recorded_if_the_client_disconnects_before_the_last_byte() {
    let violation = |asked: &Asked| asked.violation(MAX_BYTES - 1000);
    let (proxy, mut client, mut asked, second) = half_way_of(&ByHand::with_schema(), violation);
    first_half(&mut client);
    asked.send(&second);
    let mut rest = Vec::new();
    while !rest.starts_with(br#""}}"#) {
        rest.extend(client.connection.chunk().expect("the rest of the result"));
    }
    disconnect_and_assert_decision(&proxy, client);
}

#[test]
fn fr_a11_decision_is_recorded_if_the_client_disconnects_and_the_answer_cannot_be_kept() {
    let violation = |asked: &Asked| asked.violation(MAX_BYTES - 1000);
    let little = json!({"max_held_bytes": 1000, "max_held_total_bytes": 1000});
    let (proxy, mut client, mut asked, second) =
        half_way_with(little, &ByHand::with_schema(), violation);
    first_half(&mut client);
    asked.send(&second);
    // The proxy closes the connection once the answer is complete. At this point the validation is running.
    let mut end = [0];
    let closed = std::io::Read::read(&mut asked.stream, &mut end);
    assert!(matches!(closed, Ok(0)), "{closed:?}");
    disconnect_and_assert_decision(&proxy, client);
}

#[test]
fn act_1_guard_verdict_is_recorded_even_if_the_client_disconnects() {
    let violation = |asked: &Asked| asked.violation(MAX_BYTES);
    let (proxy, mut client, mut asked, second) = half_way_of(&ByHand::with_schema(), violation);
    first_half(&mut client);
    let session = client.session.clone();
    drop(client);
    let record = until("the record", || {
        proxy.activity(&format!("session_id={session}&type=tool_call")).pop()
    });
    assert!(record["error_message"].as_str().unwrap().contains("client disconnected"), "{record}");
    let decisions = proxy.activity(&format!("session_id={session}&type=policy_decision"));
    assert_eq!(decisions.len(), 1);
    assert_eq!(decisions[0]["metadata"]["guard"], "max_bytes", "{}", decisions[0]);
    asked.send(&second);
}

#[test]
fn client_that_disconnects_before_any_answer_cancels_over_both_transports() {
    let http = HttpStub::start(&[]);
    let proxy = Proxy::start(json!({"web": http.entry(), "pipe": stub_stdio(&[])}));
    let mut watcher = proxy.client();
    for server in ["web", "pipe"] {
        let mut client = proxy.client();
        let session = client.session.clone();
        client.begin_read(&format!("{server}:never"), json!({}));
        let stats = |watcher: &mut Client| {
            watcher.read(&format!("{server}:stats"), json!({}))["structuredContent"].clone()
        };
        let mut asked = 0;
        until("the call is under way", || {
            asked += 1;
            (stats(&mut watcher)["calls"].as_u64()? > asked).then_some(())
        });
        drop(client);
        until("the upstream is notified", || {
            (stats(&mut watcher)["cancelled"].as_u64()? >= 1).then_some(())
        });
        let record = until("the record", || {
            proxy.activity(&format!("session_id={session}&type=tool_call")).pop()
        });
        assert_eq!(record["status"], "error", "{record}");
    }
}

#[test]
fn warn_also_streams_results_and_validates_them_afterwards() {
    let http = HttpStub::start(&["--stateless"]);
    let proxy = Proxy::start(json!({"s": http.entry()}));
    let mut client = proxy.client();
    let args = json!({"size": 20 << 20});
    let response = client.read_raw("s:too_big", args.clone());
    assert!(response.whole && response.header("transfer-encoding") == Some("chunked"));
    assert!(raw_result(&response.body) == http.direct("too_big", &args));
    let decision = client.records(&proxy, "type=policy_decision").remove(0);
    assert_eq!(decision["metadata"]["guard"], "max_bytes");
}

// NET-8
#[test]
fn silent_call_becomes_an_event_stream_if_the_client_accepts_one() {
    let mut server = stub_stdio(&[]);
    server["call_timeout"] = json!("1s");
    let proxy = Proxy::with(json!({
        "stream_after": "100ms", "keepalive": "200ms", "mcpServers": {"s": server},
    }));
    let mut client = proxy.client();
    let arguments = json!({"name": "s:never", "args": {}, "intent": {"operation_type": "read"}});
    let params = json!({"name": "call_tool_read", "arguments": arguments});
    let body = json!({"jsonrpc": "2.0", "id": "raw", "method": "tools/call", "params": params});
    let session = client.session.clone();
    let headers =
        [("Accept", "application/json, text/event-stream"), ("Mcp-Session-Id", session.as_str())];
    client.connection.send("POST", "/mcp", &headers, body.to_string().as_bytes());
    let streamed = client.connection.response();
    assert_eq!(streamed.header("content-type"), Some("text/event-stream"));
    let text = streamed.text();
    let (head, rest) = text.split_once("retry: 1000\ndata: \n\n").expect("a priming event");
    assert!(head.starts_with("id: r") && head.ends_with("-0\n"), "at once: {text}");
    assert!(rest.starts_with(":\n\n"), "comments after it: {text}");
    let event = rest.split("\n\n").find(|event| event.contains("data: ")).unwrap();
    assert!(event.contains("event: message\n") && event.contains("isError"), "{text}");
    // A client without event streams waits for its JSON.
    let plain = client.read_raw("s:never", json!({}));
    assert_eq!(plain.header("content-type"), Some("application/json"));
    assert_eq!(plain.json()["result"]["isError"], true);
}

#[test]
fn pro_13_change_announced_in_the_stream_of_a_call_takes_effect() {
    let count = AtomicUsize::new(1);
    let server = Recorder::start(move |_, request: &Received| {
        let message: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let answer =
            |result: Value| json!({"jsonrpc": "2.0", "id": message["id"], "result": result});
        let json = "content-type: application/json\r\n";
        let tool = |at| json!({"name": format!("t{at}"), "inputSchema": {"type": "object"}});
        let body = match message["method"].as_str() {
            Some("initialize") => answer(json!({"protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}}, "serverInfo": {"name": "a", "version": "1"}})),
            Some("tools/list") => {
                let tools: Vec<_> = (0..count.load(Ordering::SeqCst)).map(tool).collect();
                answer(json!({ "tools": tools }))
            }
            Some("tools/call") => {
                count.store(2, Ordering::SeqCst);
                let changed =
                    json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"});
                let events =
                    format!("data: {changed}\n\ndata: {}\n\n", answer(json!({"content": []})));
                let head = "content-type: text/event-stream\r\n";
                return Reply::Http("200 OK", head, events.into_bytes());
            }
            Some(method) if method.starts_with("notifications/") => {
                return Reply::Http("202 Accepted", "", Vec::new());
            }
            _ => return Reply::Http("405 Method Not Allowed", "", Vec::new()),
        };
        Reply::Http("200 OK", json, body.to_string().into_bytes())
    });
    let url = format!("http://127.0.0.1:{}/mcp", server.port);
    let proxy = Proxy::start(json!({"web": {"url": url, "protocol": "http"}}));
    assert_eq!(proxy.api("servers")["servers"][0]["tools"], 1);
    assert_eq!(proxy.client().call("write", "web:t0", json!({})).get("isError"), None);
    until("the new tool is known", || {
        (proxy.api("servers")["servers"][0]["tools"] == 2).then_some(())
    });
}
