//! Calls over HTTP against a server that writes the bytes it is told to.

use std::collections::VecDeque;
use std::io;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};

use super::*;

/// What the server does with the connection after its answer to a call.
#[derive(Clone, Copy, PartialEq)]
enum Then {
    Keep,
    Close,
    /// Closes once the test says so.
    CloseLater,
    Hang,
}

/// The answer to a call: raw bytes, written one by one or at once.
struct Script {
    bytes: String,
    then: Then,
    piecewise: bool,
}

#[derive(Default)]
struct Log {
    /// Head and body of each request, in order.
    requests: Vec<(String, String)>,
    connections: usize,
    closed: usize,
    scripts: VecDeque<Script>,
}

#[derive(Clone)]
struct Server {
    log: Arc<Mutex<Log>>,
    url: String,
    close: Arc<Notify>,
    /// The log has changed.
    news: Arc<watch::Sender<()>>,
}

/// Marks the place of the call's id in a script, and is as long as one.
const ID: &str = "@@@@@@ID@@@@@@";

impl Server {
    fn new() -> Self {
        Self {
            log: Arc::default(),
            url: String::new(),
            close: Arc::default(),
            news: Arc::new(watch::Sender::new(())),
        }
    }

    /// Waits until the log is as asked.
    async fn until(&self, what: impl Fn(&Log) -> bool) {
        let mut news = self.news.subscribe();
        within(news.wait_for(|()| what(&self.log.lock()))).await.unwrap();
    }

    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp?x=1", listener.local_addr().unwrap());
        let server = Self { url, ..Self::new() };
        let it = server.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                it.log.lock().connections += 1;
                let it = it.clone();
                tokio::spawn(async move {
                    let _ = it.speak(stream).await;
                    it.log.lock().closed += 1;
                    it.news.send_replace(());
                });
            }
        });
        server
    }

    fn bench(&self) -> Bench {
        Bench::start(json!({"web": {"url": self.url, "headers": {"X-Key": "k"}}}))
    }

    fn script(&self, bytes: impl Into<String>, then: Then) {
        let script = Script { bytes: bytes.into(), then, piecewise: false };
        self.log.lock().scripts.push_back(script);
    }

    fn requests(&self, containing: &str) -> Vec<(String, String)> {
        let log = self.log.lock();
        log.requests.iter().filter(|(_, body)| body.contains(containing)).cloned().collect()
    }

    async fn speak(&self, stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut stream = BufReader::new(stream);
        while let Some((head, body)) = next_request(&mut stream).await? {
            let body = String::from_utf8(body).unwrap();
            self.log.lock().requests.push((head.clone(), body.clone()));
            self.news.send_replace(());
            let value: serde_json::Value = serde_json::from_str(&body).unwrap_or_default();
            let id = value["id"].as_u64().unwrap_or_default();
            let answer = match value["method"].as_str() {
                None => "HTTP/1.1 405 No\r\ncontent-length: 0\r\n\r\n".to_owned(),
                Some("initialize") => json_answer_with(
                    "mcp-session-id: s-1\r\n",
                    &json!({"jsonrpc": "2.0", "id": id, "result": {
                        "protocolVersion": "2025-06-18",
                        "capabilities": {"tools": {"listChanged": true}},
                        "serverInfo": {"name": "scripted", "version": "1"}}})
                    .to_string(),
                ),
                Some("tools/list") => json_answer(
                    &json!({"jsonrpc": "2.0", "id": id,
                        "result": {"tools": [{"name": "t", "inputSchema": {}}]}})
                    .to_string(),
                ),
                Some("tools/call") => {
                    let script = self.log.lock().scripts.pop_front();
                    let script = script.unwrap_or(Script {
                        bytes: json_answer(&result(id, "unscripted")),
                        then: Then::Keep,
                        piecewise: false,
                    });
                    let bytes = script.bytes.replace(ID, &id.to_string()).into_bytes();
                    if script.piecewise {
                        for byte in bytes {
                            stream.write_all(&[byte]).await?;
                            stream.flush().await?;
                            tokio::task::yield_now().await;
                        }
                    } else {
                        stream.write_all(&bytes).await?;
                    }
                    match script.then {
                        Then::Keep => continue,
                        Then::Close => return Ok(()),
                        Then::CloseLater => {
                            self.close.notified().await;
                            return Ok(());
                        }
                        Then::Hang => std::future::pending().await,
                    }
                }
                Some(_) => "HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n".to_owned(),
            };
            stream.write_all(answer.as_bytes()).await?;
        }
        Ok(())
    }
}

fn json_answer(body: &str) -> String {
    json_answer_with("", body)
}

fn json_answer_with(headers: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\n{headers}content-type: application/json; charset=utf-8\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn status(line: &str, kind: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {line}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

const EVENTS: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

fn chunk(text: &str) -> String {
    format!("{:x}\r\n{text}\r\n", text.len())
}

fn scripted(text: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{ID},"result":{{"content":[],"text":"{text}"}}}}"#)
}

fn scripted_json(text: &str) -> String {
    let body = scripted(text);
    let length = body.len();
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

#[tokio::test]
async fn a_call_carries_the_session_and_the_agents_own_bytes() {
    let server = Server::start().await;
    let bench = server.bench();
    let state = bench.connected("web").await;
    assert_eq!(state.protocol_version.as_deref(), Some("2025-06-18"));
    assert_eq!(state.server_info.as_deref(), Some("scripted 1"));
    assert_eq!((state.tools, bench.supervisor.settled()), (1, true));
    server.script(scripted_json("a"), Then::Keep);
    let mut answer = bench.begin("web:t", "{ \"b\" :1.50e1,\n\"a\":[] }").await.unwrap();
    let id = answer.id();
    let message = next_message(&mut answer).await.unwrap().unwrap();
    assert_eq!(message, scripted("a").replace(ID, &id.to_string()));
    assert_eq!(next_message(&mut answer).await.unwrap(), None);

    let [(head, body)] = &server.requests("tools/call")[..] else { panic!() };
    assert_eq!(
        *body,
        format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"tools/call\",\"params\":\
             {{\"name\":\"t\",\"arguments\":{{ \"b\" :1.50e1,\n\"a\":[] }}}}}}"
        )
    );
    assert!(head.starts_with("POST /mcp?x=1 HTTP/1.1\r\n"), "{head}");
    for line in [
        "accept: application/json, text/event-stream",
        "accept-encoding: identity",
        "content-type: application/json",
        "mcp-session-id: s-1",
        "mcp-protocol-version: 2025-06-18",
        "x-key: k",
    ] {
        assert!(head.lines().any(|it| it == line), "{line} is missing in {head}");
    }
    bench.stop().await;
    assert!(server.log.lock().requests.iter().any(|(head, _)| head.starts_with("DELETE ")));
}

#[tokio::test]
async fn a_connection_is_used_again_and_its_order_is_kept() {
    let server = Server::start().await;
    let bench = server.bench();
    bench.connected("web").await;
    let before = server.log.lock().connections;
    for n in 0..20 {
        server.script(scripted_json(&n.to_string()), Then::Keep);
        let messages = bench.call("web:t", "{}").await.unwrap();
        assert!(messages[0].contains(&format!("\"{n}\"")));
    }
    assert_eq!(server.log.lock().connections - before, 1);
    assert_eq!(bench.pool.idle(), 1);
    bench.stop().await;
}

#[tokio::test]
async fn calls_at_a_time_have_connections_of_their_own() {
    let server = Server::start().await;
    let bench = server.bench();
    bench.connected("web").await;
    let calls = (0..8).map(|_| bench.call("web:t", "{}"));
    for messages in futures_util::future::join_all(calls).await {
        assert!(messages.unwrap()[0].contains("unscripted"));
    }
    assert_eq!(bench.pool.idle(), 8);
    bench.stop().await;
}

#[tokio::test]
async fn a_connection_closed_while_idle_is_replaced_unseen() {
    let server = Server::start().await;
    let bench = server.bench();
    bench.connected("web").await;
    for n in 0..5 {
        server.script(scripted_json("x"), Then::CloseLater);
        let closed = server.log.lock().closed;
        bench.call("web:t", "{}").await.unwrap();
        assert_eq!(bench.pool.idle(), 1, "call {n}");
        server.close.notify_one();
        server.until(|log| log.closed > closed).await;
        // A round trip through the reactor: the end of the idle connection is known after it.
        let address = server.url.split('/').nth(2).unwrap().to_owned();
        TcpStream::connect(address).await.unwrap();
    }
    assert_eq!(server.requests("tools/call").len(), 5, "no call was sent twice");
    bench.stop().await;
}

#[tokio::test]
async fn an_event_stream_is_the_same_wherever_it_is_cut() {
    let server = Server::start().await;
    let bench = server.bench();
    bench.connected("web").await;
    let progress = r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{}}"#;
    for piecewise in [false, true] {
        let events = [
            ": hello\r\n\r\n".to_owned(),
            "event: ping\r\ndata: no\r\n\r\n".to_owned(),
            "id: 1\r\ndata: \r\n\r\n".to_owned(),
            format!("event: message\r\ndata: {progress}\r\n\r\n"),
            format!("data: {{\"jsonrpc\":\"2.0\",\r\ndata: \"id\":{ID},\r\ndata: \"result\":{{}}}}\r\n\r\n"),
        ]
        .map(|event| {
            let length = event.len();
            format!("{length:x}\r\n{event}\r\n")
        });
        let bytes = format!("{EVENTS}{}0\r\n\r\n", events.concat());
        server.log.lock().scripts.push_back(Script { bytes, then: Then::Keep, piecewise });
        let mut answer = bench.begin("web:t", "{}").await.unwrap();
        let id = answer.id();
        assert_eq!(next_message(&mut answer).await.unwrap().unwrap(), progress);
        assert_eq!(
            next_message(&mut answer).await.unwrap().unwrap(),
            format!("{{\"jsonrpc\":\"2.0\",\n\"id\":{id},\n\"result\":{{}}}}")
        );
        answer.finish();
        assert_eq!(bench.pool.idle(), 1);
    }
    bench.stop().await;
}

#[tokio::test]
async fn the_rest_of_an_event_stream_is_drained_and_its_connection_used_again() {
    let server = Server::start().await;
    let bench = server.bench();
    bench.connected("web").await;
    let before = server.log.lock().connections;
    for _ in 0..10 {
        let event = "data: {\"id\":1}\n\n";
        server.script(format!("{EVENTS}{}0\r\n\r\n", chunk(event)), Then::Keep);
        let mut answer = bench.begin("web:t", "{}").await.unwrap();
        assert_eq!(next_message(&mut answer).await.unwrap().unwrap(), "{\"id\":1}");
        answer.finish();
    }
    assert_eq!(server.log.lock().connections - before, 1);
    bench.stop().await;
}

#[tokio::test]
async fn an_event_stream_that_stays_open_is_not_waited_for() {
    let server = Server::start().await;
    let bench = server.bench();
    bench.connected("web").await;
    let event = "data: {\"id\":1}\n\n";
    server.script(format!("{EVENTS}{}", chunk(event)), Then::Hang);
    let mut answer = bench.begin("web:t", "{}").await.unwrap();
    assert_eq!(next_message(&mut answer).await.unwrap().unwrap(), "{\"id\":1}");
    answer.finish();
    assert!(bench.call("web:t", "{}").await.is_ok(), "the next call has another connection");
    assert!(server.requests("notifications/cancelled").is_empty());
    bench.stop().await;
}

#[tokio::test]
async fn what_is_no_answer_is_an_error_that_names_server_and_cause() {
    let server = Server::start().await;
    let bench = server.bench();
    bench.connected("web").await;
    let cut = "the server closed the connection in the middle of its answer";
    for (bytes, then, expected) in [
        (
            status("500 Oops", "text/html", "<h1>\x1b[31mNo\r\n</h1>"),
            Then::Keep,
            "the server answered HTTP 500: <h1>[31mNo </h1>",
        ),
        (
            status("200 OK", "text/html; charset=utf-8", "<p>Hello"),
            Then::Keep,
            "the server answered with text/html; charset=utf-8 instead of JSON or an event stream: <p>Hello",
        ),
        (
            status("200 OK", "application/jsonp", "x"),
            Then::Keep,
            "the server answered with application/jsonp instead of JSON or an event stream: x",
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx".to_owned(),
            Then::Keep,
            "the server answered with no content type instead of JSON or an event stream: x",
        ),
        (
            "HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n".to_owned(),
            Then::Keep,
            "the server accepted the call without answering it (HTTP 202)",
        ),
        (
            json_answer(""),
            Then::Keep,
            "the server closed the connection without an answer: the body is empty",
        ),
        (
            json_answer_with("content-encoding: gzip\r\n", "{}"),
            Then::Keep,
            "the server compressed its answer (gzip) though it was asked not to",
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{\"id"
                .to_owned(),
            Then::Close,
            cut,
        ),
        (format!("{EVENTS}{}", chunk("data: {\"id")), Then::Close, cut),
        (format!("{EVENTS}{}0\r\n\r\n", chunk("data: {\"id")), Then::Keep, cut),
        (
            format!("{EVENTS}zz\r\ndata: {{}}\r\n"),
            Then::Keep,
            "the server broke the HTTP protocol: a chunk's size is malformed",
        ),
        ("".to_owned(), Then::Close, "the server closed the connection without an answer"),
        (
            "SSH-2.0-OpenSSH\r\n".to_owned(),
            Then::Close,
            "the server broke the HTTP protocol: the answer does not begin like one of HTTP/1",
        ),
        (
            format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "y".repeat(70_000)),
            Then::Close,
            "the server broke the HTTP protocol: the head is larger than 65536 bytes",
        ),
        (
            format!("{EVENTS}{}", chunk(&format!("event: {}", "y".repeat(5000)))),
            Then::Hang,
            "the answer cannot be read: an event stream field is longer than 4096 bytes",
        ),
    ] {
        server.script(bytes.clone(), then);
        assert_eq!(bench.error("web:t").await, format!("web: t: {expected}"), "{bytes:.200}");
    }
    assert!(bench.call("web:t", "{}").await.is_ok(), "the server is used on");
    bench.stop().await;
}

#[tokio::test]
async fn an_answer_longer_than_it_says_reaches_nobody_else() {
    let server = Server::start().await;
    let bench = server.bench();
    bench.connected("web").await;
    let spill =
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 5\r\n\r\n{\"a\"}";
    for extra in ["garbage", spill] {
        server.script(format!("{}{extra}", json_answer("{}")), Then::Keep);
        assert_eq!(bench.call("web:t", "{}").await.unwrap(), ["{}"]);
        let messages = bench.call("web:t", "{}").await.unwrap();
        assert!(messages[0].contains("unscripted"), "{messages:?}");
    }
    bench.stop().await;
}

#[tokio::test]
async fn a_json_rpc_error_with_a_bad_status_is_an_answer() {
    let server = Server::start().await;
    let bench = server.bench();
    bench.connected("web").await;
    let error = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32602,"message":"no"}}"#;
    for line in ["400 Bad Request", "500 Oops"] {
        server.script(status(line, "application/json", error), Then::Keep);
        assert_eq!(bench.call("web:t", "{}").await.unwrap(), [error]);
    }
    server.script(status("400 Bad", "application/json", r#"{"error":"no"}"#), Then::Keep);
    assert_eq!(
        bench.error("web:t").await,
        r#"web: t: the server answered HTTP 400: {"error":"no"}"#
    );
    bench.stop().await;
}

#[tokio::test]
async fn a_lost_session_is_made_anew_and_the_call_sent_once_more() {
    let server = Server::start().await;
    let bench = server.bench();
    bench.connected("web").await;
    let unknown = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"No valid session ID provided"}}"#;
    for answer in [
        status("404 Not Found", "text/plain", "gone"),
        status("400 Bad Request", "application/json", unknown),
    ] {
        let sessions = server.requests("\"initialize\"").len();
        server.script(answer, Then::Keep);
        let messages = bench.call("web:t", "{}").await.unwrap();
        assert!(messages[0].contains("unscripted"));
        assert_eq!(server.requests("\"initialize\"").len(), sessions + 1);
        bench.connected("web").await;
    }
    assert_eq!(server.requests("tools/call").len(), 4);
    // Twice in a row is an error.
    server.script(status("404 Not Found", "text/plain", "gone"), Then::Keep);
    server.script(status("404 Not Found", "text/plain", "gone again"), Then::Keep);
    assert_eq!(bench.error("web:t").await, "web: t: the server answered HTTP 404: gone again");
    bench.stop().await;
}

#[tokio::test]
async fn a_dropped_answer_cancels_its_call() {
    let server = Server::start().await;
    let bench = server.bench();
    bench.connected("web").await;
    server.script(format!("{EVENTS}{}", chunk("data: {\"x\":")), Then::Hang);
    let mut answer = bench.begin("web:t", "{}").await.unwrap();
    let id = answer.id();
    assert!(matches!(answer.next().await, Ok(Some(AnswerPart::Data(_)))));
    drop(answer);
    let cancelled = |body: &str| body.contains("notifications/cancelled");
    server.until(|log| log.requests.iter().any(|(_, body)| cancelled(body))).await;
    let [(head, body)] = &server.requests("notifications/cancelled")[..] else { panic!() };
    assert!(body.contains(&format!("\"requestId\":{id},")), "{body}");
    assert!(head.contains("mcp-session-id: s-1"));
    assert_eq!(bench.pool.idle(), 0);
    bench.stop().await;
}

#[tokio::test]
async fn a_mute_server_costs_its_callers_the_limit_and_nobody_else_anything() {
    let server = Server::start().await;
    let mute = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let bench = Bench::start(json!({
        "web": {"url": server.url, "call_timeout": "200ms"},
        "mute": {"url": format!("http://{}/", mute.local_addr().unwrap())},
        "dead": {"url": "http://127.0.0.1:9/"},
    }));
    bench.connected("web").await;
    assert!(bench.call("web:t", "{}").await.is_ok());
    assert_eq!(bench.upstream("mute").state().status, Status::Connecting);
    let dead = bench.until("dead", |state| state.status == Status::Failed).await;
    assert!(dead.reason.starts_with("cannot connect to 127.0.0.1:9: "), "{}", dead.reason);
    assert!(!bench.supervisor.settled());
    for script in ["", EVENTS, &format!("{EVENTS}{}", chunk(": ping\n\n"))] {
        server.script(script, Then::Hang);
        assert_eq!(bench.error("web:t").await, "web: t: no answer within 200ms");
    }
    bench.stop().await;
}

#[tokio::test]
async fn a_server_that_comes_back_is_used_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let bench = Bench::start(json!({"web": {"url": format!("http://{address}/")}}));
    bench.until("web", |state| state.status == Status::Failed).await;
    let server = Server::new();
    let listener = TcpListener::bind(address).await.unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let server = server.clone();
            tokio::spawn(async move { server.speak(stream).await });
        }
    });
    bench.connected("web").await;
    assert!(bench.call("web:t", "{}").await.is_ok());
    bench.stop().await;
}
