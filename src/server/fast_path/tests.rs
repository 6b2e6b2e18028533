//! The fast path on a scripted client: every split of what it sends, and every way a connection ends.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::stream;

use super::*;
use crate::policy::Principal;
use crate::proxy::body_room::RequestBodies;
use crate::proxy::reply::Aborted;
use crate::server::idle_connections::IdleState;

/// What the client does once it has sent everything.
#[derive(Clone, Copy, PartialEq)]
enum Then {
    Leaves,
    Stays,
}

/// A client that sends its parts one by one, with a wait before each, and keeps what it is sent.
struct Client {
    parts: Rc<RefCell<VecDeque<Vec<u8>>>>,
    received: Rc<RefCell<Vec<u8>>>,
    waits: bool,
    waited: bool,
    then: Then,
}

impl AsyncRead for Client {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.waits && !std::mem::replace(&mut self.waited, true) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.waited = false;
        let mut parts = self.parts.borrow_mut();
        let Some(mut part) = parts.pop_front() else {
            return if self.then == Then::Leaves { Poll::Ready(Ok(())) } else { Poll::Pending };
        };
        let rest = part.split_off(part.len().min(buffer.remaining()));
        buffer.put_slice(&part);
        if !rest.is_empty() {
            parts.push_front(rest);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Client {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.received.borrow_mut().extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// A run of the fast path: who is admitted, and what became of it.
struct Run {
    parts: Rc<RefCell<VecDeque<Vec<u8>>>>,
    received: Rc<RefCell<Vec<u8>>>,
    then: Then,
    waits: bool,
    /// Heads are admitted as long as this is the number of the admission.
    admission: Cell<u32>,
    /// How many heads were shown to `admit`.
    looked: Cell<u32>,
    drain: watch::Sender<bool>,
    draining: watch::Receiver<bool>,
    bodies: RequestBodies,
}

impl Run {
    fn new(parts: &[&[u8]], then: Then) -> Self {
        let (drain, draining) = watch::channel(false);
        Self {
            parts: Rc::new(RefCell::new(parts.iter().map(|part| part.to_vec()).collect())),
            received: Rc::default(),
            then,
            waits: true,
            admission: Cell::new(1),
            looked: Cell::new(0),
            drain,
            draining,
            bodies: RequestBodies::default(),
        }
    }

    /// Serves; 0 as the admission refuses everything.
    fn serve(
        &self,
        answer: impl AsyncFn(&Parts, bool, Bytes) -> Response<Body>,
    ) -> io::Result<End> {
        let client = Client {
            parts: Rc::clone(&self.parts),
            received: Rc::clone(&self.received),
            waits: self.waits,
            waited: false,
            then: self.then,
        };
        let now = Instant::now();
        let socket = TrackedSocket::new(client, Arc::new(IdleState::new(now, now)));
        let mut socket = WriteTimeout::new(socket, Duration::from_secs(3600));
        let path = FastPath::new(&mut socket, self.draining.clone());
        let admit = |_: &Parts| {
            self.looked.set(self.looked.get() + 1);
            Some(self.admission.get()).filter(|admission| *admission > 0)
        };
        let holds = |admission: &u32| *admission == self.admission.get();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let room = || self.bodies.room(&Principal::Anonymous);
        runtime.block_on(path.serve(admit, holds, room, answer))
    }

    /// What was read for hyper, and what the client has not sent yet.
    fn rest(&self, end: End) -> String {
        let End::Other(read) = end else { panic!("the connection is closed") };
        let unsent: Vec<u8> = self.parts.borrow().iter().flatten().copied().collect();
        String::from_utf8([&read[..], &unsent].concat()).unwrap()
    }

    /// What the client was sent, without the lines that tell the time.
    fn received(&self) -> String {
        let text = String::from_utf8(self.received.borrow().clone()).unwrap();
        let lines = text.split_inclusive("\r\n").filter(|line| !line.starts_with("date: "));
        lines.collect()
    }
}

fn post(path: &str, body: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nhost: h\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// An answer that repeats what was asked.
async fn echo(head: &Parts, _: bool, body: Bytes) -> Response<Body> {
    let text = format!("{} {}", head.uri.path(), String::from_utf8_lossy(&body));
    Response::new(Body::from(Bytes::from(text)))
}

fn reply(body: &str, last: bool) -> String {
    let close = if last { "connection: close\r\n" } else { "" };
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: {UNNAMED_TYPE}\r\ncontent-length: {}\r\n{close}\r\n{body}",
        body.len()
    )
}

#[test]
fn requests_are_read_alike_however_they_are_split() {
    let foreign = "GET /ui/ HTTP/1.1\r\nhost: h\r\n\r\n";
    let sent =
        [&*post("/mcp", "{\"one\"}"), &*post("/mcp/all", "two\r\n\r\nPOST /"), foreign].concat();
    let expected =
        [reply("/mcp {\"one\"}", false), reply("/mcp/all two\r\n\r\nPOST /", false)].concat();
    for at in 0..=sent.len() {
        for waits in [false, true] {
            let (first, second) = sent.as_bytes().split_at(at);
            let parts: Vec<&[u8]> =
                [first, second].into_iter().filter(|part| !part.is_empty()).collect();
            let run = Run { waits, ..Run::new(&parts, Then::Stays) };
            let end = run.serve(echo).unwrap();
            assert_eq!(
                (run.rest(end).as_str(), run.received()),
                (foreign, expected.clone()),
                "at {at}"
            );
        }
    }
    let bytes: Vec<&[u8]> = sent.as_bytes().chunks(1).collect();
    let run = Run::new(&bytes, Then::Stays);
    let end = run.serve(echo).unwrap();
    assert_eq!((run.rest(end).as_str(), run.received()), (foreign, expected), "byte by byte");
}

#[test]
fn a_head_that_comes_again_is_not_looked_at_again_while_its_admission_holds() {
    let request = post("/mcp", "x");
    let run = Run::new(&[request.as_bytes(); 4], Then::Leaves);
    let seen = RefCell::new(Vec::new());
    let answer = async |head: &Parts, repeated: bool, body: Bytes| {
        seen.borrow_mut().push(repeated);
        if seen.borrow().len() == 2 {
            run.admission.set(2);
        }
        echo(head, repeated, body).await
    };
    assert!(matches!(run.serve(answer), Ok(End::Closed)));
    assert_eq!(*seen.borrow(), [false, true, false, true]);
    assert_eq!(run.looked.get(), 2);
}

#[test]
fn who_is_not_admitted_any_more_is_hypers_to_refuse() {
    let request = post("/mcp", "x");
    let run = Run::new(&[request.as_bytes(); 2], Then::Stays);
    let answer = async |head: &Parts, repeated: bool, body: Bytes| {
        run.admission.set(0);
        echo(head, repeated, body).await
    };
    let end = run.serve(answer).unwrap();
    assert_eq!((run.rest(end), run.received()), (request, reply("/mcp x", false)));
}

#[test]
fn what_is_not_a_plain_message_goes_to_hyper_whole() {
    let long = format!("POST /mcp HTTP/1.1\r\nx: {}", "y".repeat(MAX_HEAD_BYTES + READ_BYTES));
    for request in [
        "DELETE /mcp HTTP/1.1\r\nhost: h\r\n\r\n",
        "POST /elsewhere HTTP/1.1\r\ncontent-length: 0\r\n\r\n",
        "POST /mcp HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        &format!("POST /mcp HTTP/1.1\r\ncontent-length: {}\r\n\r\n", MAX_BODY_BYTES + 1),
        &long,
        "\r\n",
    ] {
        let run = Run::new(&[request.as_bytes()], Then::Stays);
        let end = run.serve(async |_, _, _| panic!("{request}")).unwrap();
        assert_eq!((run.rest(end).as_str(), run.received()), (request, String::new()));
    }
}

#[test]
fn a_request_that_breaks_off_is_not_answered() {
    let request = post("/mcp", "whole");
    for end in 0..request.len() {
        let run = Run::new(&[&request.as_bytes()[..end]], Then::Leaves);
        let ended = run.serve(async |_, _, _| panic!("{end} bytes are no request"));
        assert!(matches!(ended, Ok(End::Closed)), "{end}: {ended:?}");
        assert_eq!(run.received(), "");
    }
}

#[test]
fn a_call_is_dropped_when_its_client_leaves() {
    struct Dropped<'a>(&'a Cell<bool>);
    impl Drop for Dropped<'_> {
        fn drop(&mut self) {
            self.0.set(true);
        }
    }
    let dropped = Cell::new(false);
    let run = Run::new(&[post("/mcp", "x").as_bytes()], Then::Leaves);
    let ended = run.serve(async |_, _, _| {
        let _call = Dropped(&dropped);
        std::future::pending().await
    });
    assert!(matches!(ended, Ok(End::Closed)) && dropped.get());
    assert_eq!(run.received(), "");
}

#[test]
fn what_is_read_ahead_of_an_answer_is_bounded() {
    let request = post("/mcp", "x");
    let ahead = vec![b'P'; 1024];
    let mut parts = vec![request.as_bytes()];
    parts.extend(std::iter::repeat_n(&ahead[..], 200));
    let run = Run { waits: false, ..Run::new(&parts, Then::Stays) };
    let unsent = Cell::new(0);
    let answer = async |head: &Parts, repeated: bool, body: Bytes| {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        unsent.set(run.parts.borrow().iter().map(Vec::len).sum());
        echo(head, repeated, body).await
    };
    let end = run.serve(answer).unwrap();
    let read = 200 * 1024 - unsent.get();
    assert!((READ_BYTES..2 * READ_BYTES).contains(&read), "{read}");
    assert_eq!(run.rest(end).len(), 200 * 1024, "nothing of it is lost");
}

#[test]
fn an_answer_of_unknown_length_is_sent_in_chunks_and_one_that_breaks_off_has_no_end() {
    let whole = |pieces: Vec<Result<Bytes, Aborted>>| {
        let run = Run::new(&[post("/mcp", "x").as_bytes()], Then::Leaves);
        let pieces = RefCell::new(Some(pieces));
        let ended = run.serve(async |_, _, _| {
            let pieces = pieces.take().unwrap_or_default();
            Response::new(Body::Stream(Box::pin(stream::iter(pieces))))
        });
        let received = run.received();
        let (_, body) = received.split_once("transfer-encoding: chunked\r\n\r\n").unwrap();
        (ended.is_ok(), body.to_owned())
    };
    let [a, b] = ["hello", "0123456789abcdef"].map(|text| Ok(Bytes::from(text)));
    let sent = "5\r\nhello\r\n10\r\n0123456789abcdef\r\n";
    assert_eq!(
        whole(vec![a.clone(), Ok(Bytes::new()), b.clone()]),
        (true, format!("{sent}0\r\n\r\n"))
    );
    assert_eq!(whole(vec![a, b, Err(Aborted("lost".into()))]), (false, sent.to_owned()));
}

#[test]
fn a_server_that_ends_closes_idle_connections_and_answers_what_has_begun() {
    let idle = Run::new(&[], Then::Stays);
    idle.drain.send_replace(true);
    assert!(matches!(idle.serve(async |_, _, _| panic!()), Ok(End::Closed)));
    let run = Run::new(&[post("/mcp", "x").as_bytes()], Then::Stays);
    let answer = async |head: &Parts, repeated: bool, body: Bytes| {
        run.drain.send_replace(true);
        echo(head, repeated, body).await
    };
    assert!(matches!(run.serve(answer), Ok(End::Closed)));
    assert_eq!(run.received(), reply("/mcp x", true));
}

/// An answer that says how long the body was.
async fn measure(_: &Parts, _: bool, body: Bytes) -> Response<Body> {
    Response::new(Body::from(Bytes::from(body.len().to_string())))
}

#[test]
fn a_large_body_that_finds_no_room_is_read_and_refused_and_a_small_one_needs_none() {
    let (small, large) = ("x".repeat(SMALL_BODY_BYTES), "x".repeat(SMALL_BODY_BYTES + 1));
    let sent = [post("/mcp", &small), post("/mcp", &large)].concat();
    let parts: Vec<&[u8]> = sent.as_bytes().chunks(READ_BYTES).collect();
    let run = Run::new(&parts, Then::Leaves);
    assert!(matches!(run.serve(measure), Ok(End::Closed)));
    let (first, second) = (SMALL_BODY_BYTES.to_string(), (SMALL_BODY_BYTES + 1).to_string());
    assert_eq!(run.received(), [reply(&first, false), reply(&second, false)].concat());
    let run = Run::new(&parts, Then::Stays);
    let held = run.bodies.fill();
    assert!(matches!(run.serve(measure), Ok(End::Closed)));
    let received = run.received();
    let refused = received.strip_prefix(&reply(&first, false)).unwrap();
    assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
    assert!(
        refused.contains("connection: close") && refused.contains("found no room"),
        "{refused}"
    );
    assert!(run.parts.borrow().is_empty(), "all of it was read");
    drop(held);
}
