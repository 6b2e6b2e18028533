//! `mcpproxy stdio` before a server that runs already: lines on one side, HTTP on the other.
//!
//! Each line of the client is one POST to `/mcp`; what comes back, as JSON or as events, goes out
//! as lines, byte for byte but for raw line breaks between tokens. The server's own stream is
//! opened for whom the protocol gives one. Nothing is decided here: intent, verdicts and the
//! record are the server's, so that a call is the same whichever way it came (FR-A2).
//!
//! ```text
//! stdin ─ Message ─┬─ request ─▶ a task: POST ─▶ JSON | events ─┐
//!                  ├─ initialize, notification: POST, in order  ├─▶ Line ─▶ stdout
//!                  └─ end: drain ─▶ DELETE      GET stream ─────┘
//! ```

mod link;
mod message;
mod reading;
mod session;

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};

use self::link::{Failed, Link, Reply};
use self::message::{ClientMessage, ClientMessageKind};
use self::reading::{Gathering, Line, Room};
use self::session::Session;
use super::http::hint;
use crate::downstream::lines::Lines;
use crate::mcp::headers::SESSION_ID;
use crate::mcp::jsonrpc::{self, Code};
use crate::proxy::shutdown::CUT_OFF;
use crate::server::DRAIN_TIMEOUT;

/// Requests of the client under way at once; further lines wait in the pipe.
const MAX_REQUESTS: usize = 256;
/// Answers of the client on their way at once; further lines wait in the pipe.
const MAX_ANSWERS: usize = 64;
/// Messages waiting for the client to read them.
const OUT_QUEUE: usize = 64;
/// A server that was restarted has this long to listen again before a request fails.
const RESTART_WAIT: Duration = Duration::from_secs(3);
/// How often it is tried meanwhile.
const RESTART_STEP: Duration = Duration::from_millis(100);
/// A notification is waited for this long, since what follows must not overtake it.
const ONE_WAY_LIMIT: Duration = Duration::from_secs(10);
/// Most bytes of a refusal that are read.
const MAX_REFUSAL_BYTES: usize = 64 * 1024;

/// Carries one client's messages until its input ends, then lets what is under way finish, at most
/// [`DRAIN_TIMEOUT`].
///
/// # Errors
///
/// When a pipe fails.
pub(super) async fn run<R, W>(
    authority: &str,
    api_key: &str,
    input: R,
    output: W,
) -> std::io::Result<()>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin + 'static,
{
    let link = Link::new(authority, api_key).map_err(std::io::Error::other)?;
    let (out, queue) = mpsc::channel(OUT_QUEUE);
    let writer = tokio::task::spawn_local(write(output, queue));
    let bridge = Rc::new(Bridge {
        link: Rc::new(link),
        session: Session::default(),
        room: Room::default(),
        out,
        in_flight: RefCell::default(),
        answers: RefCell::default(),
        stream: RefCell::default(),
    });
    let mut requests = JoinSet::new();
    let mut lines = Lines::new(input);
    let read = loop {
        match lines.next().await {
            Ok(Some(Ok(line))) => bridge.take(ClientMessage::read(line), &mut requests).await,
            Ok(Some(Err(too_long))) => {
                let text = format!("Invalid Request: {too_long}");
                bridge.say(jsonrpc::error(None, Code::InvalidRequest, &text)).await;
            }
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    bridge.drain(requests).await;
    drop(bridge);
    writer.await.map_err(std::io::Error::other)?.and(read)
}

/// One client and the server it is carried to.
struct Bridge {
    link: Rc<Link>,
    session: Session,
    room: Room,
    out: mpsc::Sender<Line>,
    /// The requests under way, by their raw ids.
    in_flight: RefCell<HashMap<Bytes, InFlight>>,
    /// Answers of the client on their way: nothing that follows waits for them, since a server may
    /// be slow to read its own.
    answers: RefCell<JoinSet<()>>,
    /// The reader of the server's own stream.
    stream: RefCell<Option<AbortHandle>>,
}

/// What is known of a request that has no answer yet.
struct InFlight {
    task: AbortHandle,
    modern: bool,
    listens: bool,
}

impl Bridge {
    /// Carries one message: a request beside the others, everything else before the next line.
    async fn take(self: &Rc<Self>, message: ClientMessage, requests: &mut JoinSet<()>) {
        match &message.kind {
            ClientMessageKind::Request(_)
            | ClientMessageKind::Listen(_)
            | ClientMessageKind::Other(_) => {
                while requests.len() >= MAX_REQUESTS {
                    requests.join_next().await;
                }
                while requests.try_join_next().is_some() {}
                let modern = message.modern.is_some();
                let listens = matches!(message.kind, ClientMessageKind::Listen(_));
                let ids = message.ids().to_vec();
                let bridge = Rc::clone(self);
                let task = requests.spawn_local(async move { bridge.answer(message).await });
                for id in ids {
                    let in_flight = InFlight { task: task.clone(), modern, listens };
                    self.in_flight.borrow_mut().insert(id, in_flight);
                }
            }
            ClientMessageKind::Initialize(_) => {
                self.stop_stream();
                self.session.forget();
                self.answer(message).await;
            }
            ClientMessageKind::Cancelled(id) if self.closes(id) => {}
            ClientMessageKind::Response if self.has_room_for_answer() => {
                let bridge = Rc::clone(self);
                let task = async move { bridge.tell_in_time(message).await };
                self.answers.borrow_mut().spawn_local(task);
            }
            ClientMessageKind::Cancelled(_)
            | ClientMessageKind::OneWay
            | ClientMessageKind::Initialized
            | ClientMessageKind::Response => {
                Rc::clone(self).tell_in_time(message).await;
            }
        }
    }

    fn has_room_for_answer(&self) -> bool {
        let mut answers = self.answers.borrow_mut();
        while answers.try_join_next().is_some() {}
        answers.len() < MAX_ANSWERS
    }

    /// Sends a message to which nothing comes back, within [`ONE_WAY_LIMIT`].
    async fn tell_in_time(self: Rc<Self>, message: ClientMessage) {
        let sent = tokio::time::timeout(ONE_WAY_LIMIT, self.tell(&message)).await;
        match sent.unwrap_or(Err(Failed::Broken("no answer in time".to_owned()))) {
            Ok(()) if message.kind == ClientMessageKind::Initialized => self.open_stream(),
            Ok(()) => {}
            Err(error) => tracing::warn!("a notification or an answer did not arrive: {error}"),
        }
    }

    /// Ends a modern request that the client cancels: closing its stream is what says so
    /// (MCP 2026-07-28 §Cancellation). False for what is cancelled by a message.
    fn closes(&self, id: &Bytes) -> bool {
        let mut in_flight = self.in_flight.borrow_mut();
        let modern = in_flight.get(id).is_some_and(|request| request.modern);
        if modern && let Some(request) = in_flight.remove(id) {
            request.task.abort();
        }
        modern
    }

    /// Sends a message to which nothing comes back, unless it is not one.
    async fn tell(self: &Rc<Self>, message: &ClientMessage) -> Result<(), Failed> {
        let reply = self.post(message).await?;
        let status = reply.status();
        let refusal = collect(reply, MAX_REFUSAL_BYTES).await?;
        if message::is_message(&refusal) {
            self.say(refusal).await;
        } else if !status.is_success() {
            tracing::warn!("the server refused a message: {}", refused(status, &refusal));
        }
        Ok(())
    }

    /// Sends a request and hands on what comes back; whatever happens, the client is answered.
    async fn answer(self: &Rc<Self>, message: ClientMessage) {
        let (told, failed) = match self.post(&message).await {
            Ok(reply) => self.hand_on(&message, reply).await,
            Err(error) => (false, Some(format!("{}: {error}", self.gone()))),
        };
        if let Some(failed) = failed
            && !told
        {
            tracing::warn!("{failed}");
            for id in message.ids() {
                self.say(jsonrpc::error(Some(id), Code::Internal, &failed)).await;
            }
        }
        for id in message.ids() {
            self.in_flight.borrow_mut().remove(id);
        }
    }

    /// Posts a message in its session, which is made anew where the server has forgotten it.
    async fn post(self: &Rc<Self>, message: &ClientMessage) -> Result<Reply, Failed> {
        let mut again = false;
        loop {
            let mut headers = self.session.headers();
            if let Some(modern) = &message.modern {
                headers.clone_from(modern);
            }
            if matches!(message.kind, ClientMessageKind::Initialize(_)) {
                headers.clear();
            }
            let used = headers.get(SESSION_ID).cloned();
            let reply = self.send(Method::POST, headers, message.body.clone()).await?;
            match used {
                // The server certainly did nothing with it.
                Some(stale) if reply.status() == StatusCode::NOT_FOUND && !again => {
                    collect(reply, MAX_REFUSAL_BYTES).await?;
                    self.remake(&stale).await?;
                    again = true;
                }
                Some(_) | None => return Ok(reply),
            }
        }
    }

    /// One exchange; a server that is being restarted is waited for a little.
    async fn send(
        &self,
        method: Method,
        mut headers: HeaderMap,
        body: Bytes,
    ) -> Result<Reply, Failed> {
        let accept = match method {
            Method::GET => "text/event-stream",
            _ => "application/json, text/event-stream",
        };
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        if method == Method::POST {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        let give_up = tokio::time::Instant::now() + RESTART_WAIT;
        loop {
            let sent = self.link.send(method.clone(), "/mcp", headers.clone(), body.clone()).await;
            match sent {
                Err(Failed::NotSent(_)) if tokio::time::Instant::now() < give_up => {
                    tokio::time::sleep(RESTART_STEP).await;
                }
                sent => return sent,
            }
        }
    }

    /// Hands on the messages of a reply. Whether the client has its answer, and what went wrong.
    async fn hand_on(&self, message: &ClientMessage, mut reply: Reply) -> (bool, Option<String>) {
        let status = reply.status();
        if !status.is_success() {
            return match collect(reply, MAX_REFUSAL_BYTES).await {
                Ok(body) if message::is_message(&body) => {
                    self.say(body).await;
                    (true, None)
                }
                Ok(body) => (false, Some(refused(status, &body))),
                Err(error) => (false, Some(format!("{}: {error}", self.gone()))),
            };
        }
        let opens = matches!(message.kind, ClientMessageKind::Initialize(_));
        let id = reply.header(SESSION_ID).cloned();
        let mut gathering = Gathering::of(&self.room, &reply);
        let events = gathering.is_events();
        let mut told = false;
        loop {
            let line = match gathering.next(&mut reply).await {
                Ok(Some(line)) => line,
                Ok(None) => break,
                Err(error) => return (told, Some(format!("{}: {error}", self.gone()))),
            };
            // A whole body is the answer; among events the answer is one of several messages.
            told = told || !events || message::is_response(&line.joined());
            if opens && told {
                let version = message::settled_version(&line.joined());
                self.session.begin(message.body.clone(), id.clone(), version);
            }
            // The client is gone when nobody takes it; there is no one to tell.
            let _ = self.out.send(line).await;
        }
        reply.finish();
        let silent = || format!("mcpproxy at {} did not answer", self.link.authority);
        (told, (!told && !message.ids().is_empty()).then(silent))
    }

    /// Writes a message of our own, or a short one of the server's.
    async fn say(&self, message: Bytes) {
        let _ = self.out.send(Line::from(message)).await;
    }

    fn gone(&self) -> String {
        format!("mcpproxy at {} went away before it answered", self.link.authority)
    }

    /// Lets the requests under way finish, then says goodbye.
    async fn drain(self: &Rc<Self>, mut requests: JoinSet<()>) {
        self.stop_stream();
        for request in self.in_flight.borrow().values().filter(|request| request.listens) {
            request.task.abort();
        }
        let mut answers = self.answers.take();
        let finished = async {
            while requests.join_next().await.is_some() {}
            while answers.join_next().await.is_some() {}
        };
        if tokio::time::timeout(DRAIN_TIMEOUT, finished).await.is_err() {
            tracing::warn!("{} requests were still without an answer", requests.len());
            requests.shutdown().await;
            let cut = |(id, request): (&Bytes, &InFlight)| (!request.listens).then(|| id.clone());
            let cut: Vec<Bytes> = self.in_flight.borrow().iter().filter_map(cut).collect();
            for id in cut {
                self.say(jsonrpc::error(Some(&id), Code::Internal, CUT_OFF)).await;
            }
        }
        self.farewell().await;
    }
}

/// Reads a short body whole.
async fn collect(mut reply: Reply, limit: usize) -> Result<Bytes, Failed> {
    let mut body = Vec::new();
    while let Some(data) = reply.next().await {
        let data = data?;
        if body.len() + data.len() > limit {
            return Ok(Bytes::from(body));
        }
        body.extend_from_slice(&data);
    }
    reply.finish();
    Ok(Bytes::from(body))
}

/// What a refusal says, in one line.
fn refused(status: StatusCode, body: &[u8]) -> String {
    #[derive(serde::Deserialize)]
    struct ErrorBody {
        error: String,
    }
    let said = serde_json::from_slice::<ErrorBody>(body).map(|envelope| envelope.error);
    let said = said.unwrap_or_else(|_| String::from_utf8_lossy(body).trim().to_owned());
    format!("mcpproxy answered HTTP {}: {said}{}", status.as_u16(), hint(status))
}

async fn write<W: AsyncWrite + Unpin>(
    mut output: W,
    mut queue: mpsc::Receiver<Line>,
) -> std::io::Result<()> {
    while let Some(line) = queue.recv().await {
        for part in line.parts() {
            output.write_all(part).await?;
        }
        output.write_all(b"\n").await?;
        output.flush().await?;
    }
    Ok(())
}
