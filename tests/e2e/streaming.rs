//! Results that are larger than what the proxy may keep: they go on as they come.

use std::io::Write;
use std::net::TcpListener;

use serde_json::{Value, json};

use crate::harness::{Client, HttpStub, PATIENCE, Proxy, raw_result, stub_stdio, until};

const HUNDRED_MB: usize = 100 << 20;
/// What the peak may grow by while such a result goes through (`benches/README.md`, Budgets).
const GROWTH_KB: u64 = 4 * 1024;

/// A field of `/proc/PID/status`, in KB.
fn memory(proxy: &Proxy, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", proxy.process.0.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Reads a streamed result without keeping it; its length, if every byte is what the stub sends.
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
        let chunk = client.connection.chunk().expect("the stream is whole");
        if chunk.is_empty() {
            break;
        }
        let filler = |at: usize| at >= head.len();
        for (at, byte) in chunk.iter().enumerate().take(head.len().saturating_sub(total)) {
            assert_eq!(*byte, head[total + at]);
        }
        let from = head.len().saturating_sub(total).min(chunk.len());
        let odd = chunk[from..].iter().filter(|byte| **byte != b'x').count();
        assert!(odd <= tail.len() && (odd == 0 || filler(total + from)), "a byte is another");
        total += chunk.len();
        last.extend_from_slice(&chunk[chunk.len().saturating_sub(tail.len())..]);
        last.drain(..last.len().saturating_sub(tail.len()));
    }
    assert_eq!(last, tail);
    total - br#"{"jsonrpc":"2.0","id":"raw","result":}"#.len()
}

#[test]
fn a_hundred_mb_go_through_byte_for_byte_and_memory_stays_flat() {
    let http = HttpStub::start(&["--stateless"]);
    let proxy = Proxy::start(json!({"s": http.entry()}));
    let mut client = proxy.client();
    // What a first large answer needs is not growth with its size.
    stream(&mut client, "s:text", 1 << 20);
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
fn a_line_of_a_hundred_mb_over_stdio_goes_through_and_memory_stays_flat() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&[])}));
    let mut client = proxy.client();
    stream(&mut client, "s:text", 8 << 20);
    let before = memory(&proxy, "VmHWM");
    assert_eq!(stream(&mut client, "s:text", HUNDRED_MB), HUNDRED_MB);
    let grown = memory(&proxy, "VmHWM").saturating_sub(before);
    assert!(grown <= GROWTH_KB, "the peak grew by {grown} KB");
}

/// `max_bytes` of the upstream below.
const MAX_BYTES: usize = 4 << 20;

/// An upstream that a test plays by hand, byte by byte.
struct ByHand {
    listener: TcpListener,
    /// Its one tool.
    tool: Value,
}

/// One request to it, its body read.
struct Asked {
    stream: std::net::TcpStream,
    body: Value,
}

impl ByHand {
    fn new() -> Self {
        let tool = json!({"name": "t", "inputSchema": {"type": "object"}});
        Self { listener: TcpListener::bind("127.0.0.1:0").unwrap(), tool }
    }

    /// The same, whose answers are judged: `value` has to be an integer.
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

    /// Serves what is not a call until there is one. Each answer closes its connection.
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

    /// The answer's parts: up to the middle of its text, and the rest.
    fn halves(&self) -> [String; 2] {
        let id = &self.body["id"];
        [
            format!(
                r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":[{{"type":"text","text":"first half"#
            ),
            r#" second half"}]}}"#.to_owned(),
        ]
    }

    /// The same with the id behind the result.
    fn id_last(&self) -> [String; 2] {
        let id = &self.body["id"];
        [
            r#"{"result":{"content":[{"type":"text","text":"first half"#.to_owned(),
            format!(r#" second half"}}]}},"jsonrpc":"2.0","id":{id}}}"#),
        ]
    }

    /// An answer whose `value` is a text of `size` bytes.
    fn violation(&self, size: usize) -> [String; 2] {
        let id = &self.body["id"];
        let head = r#""result":{"content":[],"structuredContent":{"value":""#;
        let text = "x".repeat(size);
        [format!(r#"{{"jsonrpc":"2.0","id":{id},{head}{text}first half"#), r#""}}}"#.to_owned()]
    }
}

/// Starts a proxy before a server played by hand, makes a call, and sends the answer's first half.
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
fn the_first_bytes_leave_before_the_last_were_sent() {
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
fn an_upstream_that_fails_after_its_first_byte_aborts_the_response() {
    let (proxy, mut client, asked, _) = half_way(Asked::halves);
    first_half(&mut client);
    drop(asked);
    while let Some(chunk) = client.connection.chunk() {
        assert!(!chunk.is_empty(), "a final chunk would say that it is whole");
    }
    let record = until("the record", || client.records(&proxy, "type=tool_call").pop());
    assert_eq!(record["status"], "error");
    assert!(record["error_message"].as_str().unwrap().starts_with("s: t: "), "{record}");
}

#[test]
fn a_client_that_goes_away_cancels_the_call_and_it_is_on_record() {
    let (proxy, mut client, mut asked, second) = half_way(Asked::halves);
    first_half(&mut client);
    let session = client.session.clone();
    drop(client);
    let record = until("the record", || {
        proxy.activity(&format!("session_id={session}&type=tool_call")).pop()
    });
    assert_eq!(record["status"], "error");
    assert!(record["error_message"].as_str().unwrap().contains("client went away"), "{record}");
    // The connection to the upstream is closed: it is not read to the end for nobody.
    let mut end = [0];
    let closed = std::io::Read::read(&mut asked.stream, &mut end);
    assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
    asked.send(&second);
}

/// The client leaves while its answer, which breaks the schema, is judged in warn.
fn goes_away_and_leaves_its_decision(proxy: &Proxy, client: Client) {
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
fn fr_a11_a_client_that_goes_away_before_the_last_byte_loses_no_decision() {
    let violation = |asked: &Asked| asked.violation(MAX_BYTES - 1000);
    let (proxy, mut client, mut asked, second) = half_way_of(&ByHand::with_schema(), violation);
    first_half(&mut client);
    asked.send(&second);
    let mut rest = Vec::new();
    while !rest.starts_with(br#""}}"#) {
        rest.extend(client.connection.chunk().expect("the rest of the result"));
    }
    goes_away_and_leaves_its_decision(&proxy, client);
}

#[test]
fn fr_a11_a_client_that_goes_away_loses_no_decision_where_there_is_no_room_to_keep_the_answer() {
    let violation = |asked: &Asked| asked.violation(MAX_BYTES - 1000);
    let little = json!({"max_held_bytes": 1000, "max_held_total_bytes": 1000});
    let (proxy, mut client, mut asked, second) =
        half_way_with(little, &ByHand::with_schema(), violation);
    first_half(&mut client);
    asked.send(&second);
    // The proxy ends the connection once the answer is whole: it is being judged now.
    let mut end = [0];
    let closed = std::io::Read::read(&mut asked.stream, &mut end);
    assert!(matches!(closed, Ok(0)), "{closed:?}");
    goes_away_and_leaves_its_decision(&proxy, client);
}

#[test]
fn act_1_a_guards_word_is_on_record_though_the_client_goes_away() {
    let violation = |asked: &Asked| asked.violation(MAX_BYTES);
    let (proxy, mut client, mut asked, second) = half_way_of(&ByHand::with_schema(), violation);
    first_half(&mut client);
    let session = client.session.clone();
    drop(client);
    let record = until("the record", || {
        proxy.activity(&format!("session_id={session}&type=tool_call")).pop()
    });
    assert!(record["error_message"].as_str().unwrap().contains("client went away"), "{record}");
    let decisions = proxy.activity(&format!("session_id={session}&type=policy_decision"));
    assert_eq!(decisions.len(), 1);
    assert_eq!(decisions[0]["metadata"]["guard"], "max_bytes", "{}", decisions[0]);
    asked.send(&second);
}

#[test]
fn a_client_that_goes_away_while_nothing_was_answered_cancels_over_both_transports() {
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
        until("the upstream is told", || {
            (stats(&mut watcher)["cancelled"].as_u64()? >= 1).then_some(())
        });
        let record = until("the record", || {
            proxy.activity(&format!("session_id={session}&type=tool_call")).pop()
        });
        assert_eq!(record["status"], "error", "{record}");
    }
}

#[test]
fn warn_streams_as_well_and_judges_after() {
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
