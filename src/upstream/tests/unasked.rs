//! Answers that nobody asked for: guessed ahead, given twice, under ids of nobody, in floods.

use std::io::{BufRead, Read, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use tokio::sync::mpsc as queues;

use super::fake::{Fake, Say, legacy};
use super::stdio::SERVER;
use super::*;
use crate::io::deadline::Allowance;
use crate::upstream::peer::LOG_BURST;
use crate::upstream::pending;
use crate::upstream::stdio::{self as pipes, ChildLink};

/// Answers requests with what a legacy server says. After the first call it waits for a word, then
/// answers the next one ahead, under the ids that follow.
fn guessing(listener: &TcpListener, now: &mpsc::Receiver<()>, done: &mpsc::Sender<()>) {
    let mut guessed = false;
    for stream in listener.incoming().map_while(Result::ok) {
        let mut stream = std::io::BufReader::new(stream);
        loop {
            let (mut head, mut length) = (String::new(), 0);
            while !head.ends_with("\r\n\r\n") {
                let start = head.len();
                if stream.read_line(&mut head).unwrap_or(0) == 0 {
                    break;
                }
                let line = head[start..].to_lowercase();
                length = line
                    .strip_prefix("content-length: ")
                    .map_or(length, |n| n.trim().parse().unwrap());
            }
            if head.is_empty() {
                break;
            }
            let mut body = vec![0; length];
            stream.read_exact(&mut body).unwrap();
            let body: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
            let id = &body["id"];
            let answer = |body: serde_json::Value| {
                let body = body.to_string();
                format!(
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                    body.len()
                )
            };
            let ok = |result| answer(json!({"jsonrpc": "2.0", "id": id, "result": result}));
            let text = match body["method"].as_str().unwrap_or_default() {
                "server/discover" => answer(json!({"jsonrpc": "2.0", "id": id,
                    "error": {"code": -32601, "message": "?"}})),
                "initialize" => ok(json!({"protocolVersion": "2025-06-18",
                    "capabilities": {"tools": {}}, "serverInfo": {"name": "g", "version": "1"}})),
                "tools/list" => ok(json!({"tools": [{"name": "t", "inputSchema": {}}]})),
                "tools/call" => ok(json!({"true": id})),
                _ if head.starts_with("GET") => {
                    "HTTP/1.1 405 No\r\ncontent-length: 0\r\n\r\n".into()
                }
                _ => "HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n".into(),
            };
            if stream.get_mut().write_all(text.as_bytes()).is_err() {
                break;
            }
            if body["method"] == "tools/call" && !guessed {
                guessed = true;
                if now.recv().is_err() {
                    return;
                }
                let next = id.as_u64().unwrap() + 1;
                let forged = answer(json!({"jsonrpc": "2.0", "id": next, "result": {"forged": 1}}));
                stream.get_mut().write_all(forged.as_bytes()).unwrap();
                done.send(()).unwrap();
            }
            if body["method"] != "tools/call" {
                break;
            }
        }
    }
}

#[tokio::test]
async fn an_answer_that_lies_on_an_idle_connection_is_nobodys() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let ((guess, now), (done, guessed)) = (mpsc::channel(), mpsc::channel());
    let _server = std::thread::spawn(move || guessing(&listener, &now, &done));
    let bench = Bench::start(json!({"web": {"url": url}}));
    bench.connected("web").await;
    let first = bench.call("web:t", "{}").await.unwrap();
    assert!(first[0].contains("true"), "{first:?}");
    assert_eq!(bench.pool.idle(), 1);
    // The runtime is not let look at its sockets in between.
    guess.send(()).unwrap();
    guessed.recv_timeout(PATIENCE).unwrap();
    let second = bench.call("web:t", "{}").await.unwrap();
    assert!(second[0].contains("true"), "{second:?}");
    bench.stop().await;
}

#[tokio::test]
async fn ids_cannot_be_told_from_those_before() {
    let server = Fake::start(legacy).await;
    let bench = server.bench();
    bench.connected("web").await;
    for _ in 0..3 {
        bench.call("web:t", "{}").await.unwrap();
    }
    let ids: Vec<i64> =
        server.seen("tools/call").iter().map(|seen| seen.body["id"].as_i64().unwrap()).collect();
    let [a, b, c] = ids[..] else { panic!("{ids:?}") };
    assert_ne!(b - a, c - b, "{ids:?}");
    assert!((b - a).abs() > 1000, "{ids:?}");
    bench.stop().await;
}

#[tokio::test]
async fn after_a_second_answer_on_its_stream_a_connection_is_not_used_again() {
    let connections = |second: &'static str| async move {
        let server = Fake::start(move |seen| match seen.method() {
            "tools/call" => {
                let id = &seen.body["id"];
                let answer = json!({"jsonrpc": "2.0", "id": id, "result": {}});
                Say::stream(&format!("data: {answer}\n\n{second}"))
            }
            _ => legacy(seen),
        })
        .await;
        let bench = server.bench();
        bench.connected("web").await;
        let mut answer = bench.begin("web:t", "{}").await.unwrap();
        next_message(&mut answer).await.unwrap().unwrap();
        answer.finish();
        assert_eq!(bench.pool.idle(), 1);
        bench.call("web:t", "{}").await.unwrap();
        bench.stop().await;
        server.calling.load(Ordering::Relaxed)
    };
    assert_eq!(connections(": a comment\n\n").await, 1);
    assert_eq!(connections("data: {\"id\":1,\"result\":{}}\n\n").await, 2);
}

fn child(on_call: &str) -> Bench {
    Bench::start(json!({"sh": {
        "command": "/bin/sh", "args": ["-c", SERVER, "server", on_call, ""]
    }}))
}

const ANSWER: &str = r#"printf '{"jsonrpc":"2.0","id":%s,"result":{}}\n' "$id""#;

#[tokio::test]
async fn a_child_that_answers_twice_is_not_listened_to_any_more() {
    let bench = child(&format!("{ANSWER}; {ANSWER}"));
    bench.connected("sh").await;
    assert_eq!(bench.call("sh:t", "{}").await.unwrap().len(), 1);
    let state = bench.until("sh", |state| state.status != Status::Connected).await;
    assert_eq!(&*state.reason, "reconnecting: it answered a request twice");
    bench.connected("sh").await;
    bench.stop().await;
}

#[tokio::test]
async fn a_late_answer_to_a_call_that_was_given_up_disturbs_nobody() {
    // Of three calls the first is answered with the third.
    let bench = child(&format!(
        r#"n=$((n + 1)); case $n in
             1) held=$id;;
             2) {ANSWER};;
             3) now=$id; id=$held; {ANSWER}; id=$now; {ANSWER}; n=0;;
           esac"#
    ));
    bench.connected("sh").await;
    for _ in 0..3 {
        let given_up = bench.begin("sh:t", "{}").await.unwrap();
        assert_eq!(bench.call("sh:t", "{}").await.unwrap().len(), 1);
        drop(given_up);
        assert_eq!(bench.call("sh:t", "{}").await.unwrap().len(), 1);
    }
    assert_eq!(bench.upstream("sh").state().status, Status::Connected);
    let lost = |event: &Event| matches!(event, Event::Server(state) if state.reason.contains("reconnecting"));
    assert!(!bench.events.lock().iter().any(lost));
    bench.stop().await;
}

#[tokio::test]
async fn an_answer_to_a_request_that_was_not_sent_yet_ends_the_pipe() {
    let (link, _unwritten) = ChildLink::new(Arc::default(), Arc::default());
    let line = |id: u64| [Bytes::from(id.to_string()), Bytes::new(), Bytes::new()];
    let Ok(call) =
        within(pipes::StdioCall::begin(&link, line, Allowance::now(PATIENCE), None)).await
    else {
        panic!()
    };
    let guess = format!("{{\"id\":{},\"result\":{{}}}}\n", call.id());
    let (inbox, _lifecycle) = queues::channel(1);
    let reason = within(pipes::read(link.clone(), guess.as_bytes(), inbox, 1)).await;
    assert_eq!(&*reason, "it answered a request before it was sent");
}

/// Counts the lines of log about servers.
struct Lines(Arc<AtomicUsize>);

impl tracing::Subscriber for Lines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target().starts_with("mcpproxy")
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test]
async fn a_flood_of_what_nobody_asked_for_fills_no_log() {
    let lines = Arc::new(AtomicUsize::new(0));
    let unknown = pending::FIRST_ID + 7;
    let flood = |line: &str| format!("yes '{line}' | head -n 50000; {ANSWER}");
    for line in [
        &*format!(r#"{{"id":{unknown},"result":{{}}}}"#),
        "no message at all",
        r#"{"method":"notifications/x"}"#,
        r#"{"method":"notifications/progress","params":{"progressToken":1}}"#,
    ] {
        lines.store(0, Ordering::Relaxed);
        let _logged = tracing::subscriber::set_default(Lines(lines.clone()));
        let bench = child(&flood(line));
        bench.connected("sh").await;
        assert_eq!(bench.call("sh:t", "{}").await.unwrap().len(), 1, "{line}");
        let told = lines.load(Ordering::Relaxed);
        // What the flood's own time allows for is below the burst.
        assert!((1..=2 * LOG_BURST as usize).contains(&told), "{line}: {told} lines");
        bench.stop().await;
    }
}
