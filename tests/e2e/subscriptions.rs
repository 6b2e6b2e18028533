//! Subscriptions of legacy clients to resources of a server of 2026-07-28. That revision has no such request: a server
//! notifies through the filter of `subscriptions/listen`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{
    Client, Connection, Events, PATIENCE, Proxy, create_token, stub_stdio, until,
};
use crate::protocol_modern::send;

/// Reaction of the server to a request for resource notifications.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tells {
    Yes,
    /// Declares that it supports subscriptions, but refuses them.
    Refuses,
    /// Does not declare that it supports subscriptions.
    No,
    /// A legacy server. For `resources/subscribe` it answers late for `x:slow`, accepts `x:busy` at the second attempt,
    /// and refuses all other resources.
    Legacy,
}

/// Delay of a legacy server's answer to `resources/subscribe`. An acknowledgment that did not wait for the answer would
/// be sent earlier.
const SLOW: Duration = Duration::from_millis(300);

/// A server of 2026-07-28, or a legacy one, controlled by the test.
struct Server {
    port: u16,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    methods: Vec<String>,
    /// For each stream the subscribed resources, and the connection.
    streams: Vec<(Value, TcpStream)>,
}

impl Server {
    fn start(tells: Tells) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let seen = Arc::<Mutex<Seen>>::default();
        let shared = Arc::clone(&seen);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let seen = Arc::clone(&shared);
                std::thread::spawn(move || serve(stream, tells, &seen));
            }
        });
        Self { port, seen }
    }

    fn entry(&self) -> Value {
        json!({"url": format!("http://127.0.0.1:{}/mcp", self.port)})
    }

    /// Announces a changed resource on every open stream that subscribed to it.
    fn tell(&self, uri: &str) {
        let message = json!({"jsonrpc": "2.0", "method": "notifications/resources/updated",
            "params": {"uri": uri}});
        let streams = &mut self.seen.lock().unwrap().streams;
        for (uris, stream) in streams {
            if uris.as_array().unwrap().contains(&json!(uri)) {
                let _ = event(stream, &message);
            }
        }
    }

    fn was_asked(&self, method: &str) -> bool {
        self.seen.lock().unwrap().methods.iter().any(|seen| seen == method)
    }
}

/// Sends an event as a chunk.
fn event(stream: &mut TcpStream, message: &Value) -> std::io::Result<()> {
    let event = format!("data: {message}\n\n");
    write!(stream, "{:x}\r\n{event}\r\n", event.len())
}

/// Body of a request.
fn read(stream: &TcpStream) -> Option<Value> {
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        match line.split_once(':') {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                length = value.trim().parse().ok()?;
            }
            Some(_) => {}
            None if line.trim().is_empty() => break,
            // Request line.
            None => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    serde_json::from_slice(&body).ok()
}

fn serve(mut stream: TcpStream, tells: Tells, seen: &Mutex<Seen>) -> Option<()> {
    let asked = read(&stream)?;
    let method = asked["method"].as_str()?.to_owned();
    seen.lock().unwrap().methods.push(method.clone());
    let uris = &asked["params"]["notifications"]["resourceSubscriptions"];
    let outcome = match method.as_str() {
        "initialize" if tells == Tells::Legacy => json!({"result": {
            "protocolVersion": "2025-06-18", "serverInfo": {"name": "legacy", "version": "1"},
            "capabilities": {"resources": {"subscribe": true}}}}),
        "resources/subscribe" if asked["params"]["uri"] == "x:slow" => {
            std::thread::sleep(SLOW);
            seen.lock().unwrap().methods.push("answer".to_owned());
            json!({"result": {}})
        }
        "server/discover" if tells != Tells::Legacy => json!({"result": {
            "resultType": "complete", "supportedVersions": ["2026-07-28"], "ttlMs": 0,
            "cacheScope": "private",
            "capabilities": {"tools": {}, "resources": {"subscribe": tells != Tells::No}}}}),
        "tools/list" => json!({"result": {
            "resultType": "complete", "tools": [], "ttlMs": 0, "cacheScope": "private"}}),
        "subscriptions/listen" if uris.to_string().contains("x:refused") => {
            json!({"error": {"code": -32602, "message": "no such resource"}})
        }
        // The first attempt is refused.
        "resources/subscribe" if asked["params"]["uri"] == "x:busy" => {
            let asked = |it: &&String| *it == "resources/subscribe";
            match seen.lock().unwrap().methods.iter().filter(asked).count() {
                1 => json!({"error": {"code": -32603, "message": "busy"}}),
                _ => json!({"result": {}}),
            }
        }
        "subscriptions/listen" if uris.is_array() && tells == Tells::Yes => {
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
                transfer-encoding: chunked\r\n\r\n";
            stream.write_all(head.as_bytes()).ok()?;
            let mut seen = seen.lock().unwrap();
            let asked = uris.as_array()?;
            if asked.contains(&json!("x:later")) {
                seen.methods.push("x:later".to_owned());
            }
            let is_first = seen.methods.iter().filter(|it| *it == "x:later").count() == 1;
            let agrees = |uri: &&Value| *uri != "x:left-out" && !(*uri == "x:later" && is_first);
            let agreed: Vec<_> = asked.iter().filter(agrees).collect();
            let hello = json!({"jsonrpc": "2.0",
                "method": "notifications/subscriptions/acknowledged",
                "params": {"notifications": {"resourceSubscriptions": agreed}}});
            event(&mut stream, &hello).ok()?;
            seen.streams.push((uris.clone(), stream));
            return Some(());
        }
        _ => json!({"error": {"code": -32601, "message": "no such method"}}),
    };
    let mut message = json!({"jsonrpc": "2.0", "id": asked["id"]});
    message.as_object_mut()?.extend(outcome.as_object()?.clone());
    let body = message.to_string();
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())).ok()
}

/// Standing stream of a legacy client.
pub(crate) fn listen(proxy: &Proxy, client: &Client) -> Connection {
    let mut stream = Connection::open(proxy.port);
    let headers = [("Mcp-Session-Id", &*client.session), ("Accept", "text/event-stream")];
    stream.send("GET", "/mcp", &headers, b"");
    assert_eq!(stream.head().0, 200);
    stream
}

/// URI of the next resource update for a client.
pub(crate) fn updated_uri(stream: &mut Connection) -> String {
    let mut seen = String::new();
    loop {
        seen += std::str::from_utf8(&stream.chunk().expect("the stream is open")).unwrap();
        let Some((_, rest)) = seen.split_once("notifications/resources/updated") else { continue };
        if let Some((_, uri)) = rest.split_once(r#""uri":""#)
            && let Some((uri, _)) = uri.split_once('"')
        {
            return uri.to_owned();
        }
    }
}

#[test]
fn legacy_client_subscribes_to_a_resource_of_a_modern_server() {
    let server = Server::start(Tells::Yes);
    let proxy = Proxy::start(json!({"m": server.entry()}));
    let (mut one, mut other) = (proxy.client(), proxy.client());
    let (mut ones, mut others) = (listen(&proxy, &one), listen(&proxy, &other));
    let (shared, next) = (json!({"uri": "mcpproxy://m/a:b"}), json!({"uri": "mcpproxy://m/c:d"}));
    assert_eq!(one.ask("resources/subscribe", shared.clone())["result"], json!({}));
    // Once the subscription was answered, no change is missed.
    server.tell("a:b");
    assert_eq!(updated_uri(&mut ones), "mcpproxy://m/a:b");
    for params in [&shared, &next] {
        assert_eq!(other.ask("resources/subscribe", params.clone())["result"], json!({}));
    }
    server.tell("c:d");
    // The larger filter needs a new stream. The resources of the previous stream may have changed in between, so they
    // are reported, too.
    let mut until = updated_uri(&mut others);
    while until == "mcpproxy://m/a:b" {
        until = updated_uri(&mut others);
    }
    assert_eq!(until, "mcpproxy://m/c:d");
    // One client unsubscribes from a resource, to which the other one stays subscribed.
    assert_eq!(one.ask("resources/unsubscribe", shared.clone())["result"], json!({}));
    server.tell("a:b");
    assert_eq!(updated_uri(&mut others), "mcpproxy://m/a:b");
    for params in [shared, next] {
        assert_eq!(other.ask("resources/unsubscribe", params)["result"], json!({}));
    }
    assert!(!server.was_asked("resources/subscribe") && !server.was_asked("resources/unsubscribe"));
    let records = proxy.activity("server=m&type=internal_tool_call");
    assert_eq!(records.len(), 6);
    assert!(records.iter().all(|record| record["status"] == "success"), "{records:?}");
}

#[test]
fn modern_server_without_resource_notifications_yields_no_subscription() {
    for (tells, why) in [
        (Tells::Refuses, "m: the server did not accept the subscription"),
        (Tells::No, "m: the server does not notify of resource changes"),
    ] {
        let server = Server::start(tells);
        let proxy = Proxy::start(json!({"m": server.entry()}));
        let answer = proxy.client().ask("resources/subscribe", json!({"uri": "mcpproxy://m/a:b"}));
        assert_eq!(answer["error"]["message"], why, "{answer}");
        assert!(!server.was_asked("resources/subscribe"));
    }
}

// PRO-13
#[test]
fn pro_13_subscription_is_acknowledged_once_a_legacy_server_has_answered() {
    let server = Server::start(Tells::Legacy);
    let proxy = Proxy::start(json!({"s": server.entry()}));
    let (_events, agreed) = subscribed(&proxy, &["x:slow", "x:refused"]);
    assert!(server.was_asked("answer"), "a change after the acknowledgment would be missed");
    assert_eq!(agreed, json!(["mcpproxy://s/x:slow"]));
}

// PRO-13
#[test]
fn pro_13_resource_that_a_modern_server_leaves_out_is_not_acknowledged() {
    let server = Server::start(Tells::Yes);
    let proxy = Proxy::start(json!({"s": server.entry()}));
    let (_events, agreed) = subscribed(&proxy, &["x:left-out", "x:kept"]);
    assert_eq!(agreed, json!(["mcpproxy://s/x:kept"]));
    let uri = json!({"uri": "mcpproxy://s/x:left-out"});
    let refused = proxy.client().ask("resources/subscribe", uri);
    let why = "s: the server did not accept the subscription";
    assert_eq!(refused["error"]["message"], why, "{refused}");
}

// PRO-13
#[test]
fn pro_13_resource_that_was_left_out_once_is_requested_again() {
    let server = Server::start(Tells::Yes);
    let proxy = Proxy::start(json!({"s": server.entry()}));
    let (_events, agreed) = subscribed(&proxy, &["x:kept"]);
    assert_eq!(agreed, json!(["mcpproxy://s/x:kept"]));
    let mut client = proxy.client();
    let mut ask = || client.ask("resources/subscribe", json!({"uri": "mcpproxy://s/x:later"}));
    let why = "s: the server did not accept the subscription";
    assert_eq!(ask()["error"]["message"], why);
    let again = ask();
    assert_eq!(again["result"], json!({}), "{again}");
}

/// A modern server over stdio. For each subscription to resources it evaluates the shell code `$1`, with the id of the
/// subscription in `$id`.
const CHILD: &str = r#"
while read -r line; do
  id=${line#*\"id\":}; id=${id%%,*}
  case $line in
    *server/discover*) out='{"supportedVersions":["2026-07-28"],"capabilities":{"resources":{"subscribe":true}},"resultType":"complete"}';;
    *tools/list*) out='{"tools":[],"resultType":"complete"}';;
    *resourceSubscriptions*) eval "$1"; continue;;
    *) continue;;
  esac
  echo "{\"jsonrpc\":\"2.0\",\"id\":$id,\"result\":$out}"
done
"#;
const ACKNOWLEDGES: &str = r#"echo "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/subscriptions/acknowledged\",\"params\":{\"_meta\":{\"io.modelcontextprotocol/subscriptionId\":$id},\"notifications\":{\"resourceSubscriptions\":[\"a:b\"]}}}"
  echo '{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"a:b"}}'"#;
const LEAVES_OUT: &str = r#"echo "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/subscriptions/acknowledged\",\"params\":{\"_meta\":{\"io.modelcontextprotocol/subscriptionId\":$id},\"notifications\":{}}}""#;
/// Shell code that refuses after a delay.
const REFUSES_LATE: &str = r#"sleep 1; echo "{\"jsonrpc\":\"2.0\",\"id\":$id,\"error\":{\"code\":-32601,\"message\":\"?\"}}""#;

// PRO-13
#[test]
fn subscription_at_a_child_is_taken_once_the_child_has_acknowledged_it() {
    let proxy = |on_subscription| {
        let args = json!(["-c", CHILD, "sh", on_subscription]);
        Proxy::start(json!({"m": {"command": "sh", "args": args, "protocol_era": "modern"}}))
    };
    let uri = json!({"uri": "mcpproxy://m/a:b"});
    for on_subscription in [REFUSES_LATE, LEAVES_OUT] {
        let refusing = proxy(on_subscription);
        let refused = refusing.client().ask("resources/subscribe", uri.clone());
        let why = "m: the server did not accept the subscription";
        assert_eq!(refused["error"]["message"], why, "{refused}");
    }
    let proxy = proxy(ACKNOWLEDGES);
    let mut client = proxy.client();
    let mut stream = listen(&proxy, &client);
    assert_eq!(client.ask("resources/subscribe", uri)["result"], json!({}));
    assert_eq!(updated_uri(&mut stream), "mcpproxy://m/a:b");
}

// BND-1
#[test]
fn stream_beyond_the_bound_does_not_subscribe() {
    // A quarter of `MAX_LISTENERS`, the maximum for one principal.
    const STREAMS: usize = 256;
    let proxy = Proxy::start(json!({"s": stub_stdio(&["--offers", "--only", "read_item"])}));
    let bearer = format!("Bearer {}", create_token(&proxy, &["ada"]));
    let open = |notifications: Value| {
        let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {}});
        let body = json!({"jsonrpc": "2.0", "id": "l", "method": "subscriptions/listen",
            "params": {"_meta": meta, "notifications": notifications}});
        let headers = [
            ("Authorization", &*bearer),
            ("MCP-Protocol-Version", "2026-07-28"),
            ("Mcp-Method", "subscriptions/listen"),
        ];
        let mut connection = Connection::open(proxy.port);
        connection.send("POST", "/mcp", &headers, body.to_string().as_bytes());
        let status = connection.head().0;
        (connection, status)
    };
    let lists = json!({"toolsListChanged": true});
    let mut streams: Vec<_> = (0..STREAMS).map(|_| open(lists.clone())).collect();
    assert!(streams.iter().all(|(_, status)| *status == 200));
    let uris = json!({"resourceSubscriptions": ["mcpproxy://s/test://shared"]});
    assert_eq!(open(uris.clone()).1, 429);
    drop(streams.pop());
    let _stream = until("a stream is free", || {
        let (stream, status) = open(uris.clone());
        (status == 200).then_some(stream)
    });
    let records = proxy.activity("type=internal_tool_call&tool=resources/subscribe");
    assert_eq!(records.len(), 1, "{records:?}");
}

/// Subscribes a modern client to resources of the server `s`. Returns the stream and the acknowledged resources.
fn subscribed(proxy: &Proxy, own: &[&str]) -> (Events, Value) {
    let uris: Vec<_> = own.iter().map(|own| format!("mcpproxy://s/{own}")).collect();
    let wants = json!({"notifications": {"resourceSubscriptions": uris}});
    let mut events = Events::of(send(proxy, "/mcp", "subscriptions/listen", wants));
    let agreed = events.message()["params"]["notifications"]["resourceSubscriptions"].take();
    (events, agreed)
}

// PRO-13
#[test]
fn pro_13_resource_refused_by_a_modern_server_does_not_prevent_other_subscriptions() {
    let server = Server::start(Tells::Yes);
    let proxy = Proxy::start(json!({"s": server.entry()}));
    assert_eq!(subscribed(&proxy, &["x:refused"]).1, Value::Null);
    let good = json!(["mcpproxy://s/x:good"]);
    assert_eq!(subscribed(&proxy, &["x:good"]).1, good);
    let (_events, agreed) = subscribed(&proxy, &["x:refused", "x:good"]);
    assert_eq!(agreed, good);
}

// PRO-13
#[test]
fn pro_13_subscription_that_a_legacy_server_does_not_answer_is_repeated() {
    let server = Server::start(Tells::Legacy);
    let proxy = Proxy::start(json!({"s": server.entry()}));
    let (mut events, agreed) = subscribed(&proxy, &["x:busy"]);
    assert_eq!(agreed, json!(["mcpproxy://s/x:busy"]));
    // The resource may have changed between the two requests, so an update is sent.
    let updated = events.message();
    assert_eq!(updated["params"]["uri"], "mcpproxy://s/x:busy", "{updated}");
    let methods = server.seen.lock().unwrap().methods.clone();
    assert_eq!(methods.iter().filter(|it| *it == "resources/subscribe").count(), 2, "{methods:?}");
}
