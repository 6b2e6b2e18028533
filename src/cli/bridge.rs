//! `mcpproxy stdio` before a server that runs already: lines on one side, HTTP on the other.
//!
//! Each line of the client is one POST to `/mcp`; what comes back, as JSON or as events, goes out
//! as lines, byte for byte but for raw line breaks between tokens. The server's own stream is
//! opened for whom the protocol gives one. Nothing is decided here: intent, verdicts and the
//! record are the server's, so that a call is the same whichever way it came (FR-A2).
//!
//! ```text
//! stdin ─ message ─┬─ request ─▶ a task: POST ─▶ JSON | events ─┐
//!                  ├─ initialize, notification: POST, in order  ├─▶ line ─▶ stdout
//!                  └─ end: drain ─▶ DELETE      GET stream ─────┘
//! ```

mod agreement;
mod client_message;
mod reply_messages;
mod server_session;
mod server_stream;

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};

use self::client_message::{ClientMessage, ClientMessageKind};
use self::reply_messages::ServerMessage;
use self::server_session::{DeliveryError, ServerSession, refusal, refused};
use super::http_client::{HttpClient, HttpReply};
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
/// A notification is waited for this long, since what follows must not overtake it.
const ONE_WAY_LIMIT: Duration = Duration::from_secs(10);
/// Carries one client's messages until its input ends, then lets what is under way finish, at most
/// [`DRAIN_TIMEOUT`].
///
/// # Errors
///
/// When a pipe fails.
pub(super) async fn run<R, W>(server: HttpClient, input: R, output: W) -> std::io::Result<()>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin + 'static,
{
    let (out, queue) = mpsc::channel(OUT_QUEUE);
    let writer = tokio::task::spawn_local(write(output, queue));
    let bridge = Rc::new(Bridge {
        server: Rc::new(ServerSession::new(server)),
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
    server: Rc<ServerSession>,
    out: mpsc::Sender<ServerMessage>,
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
                self.server.forget();
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
        match sent.unwrap_or(Err(DeliveryError::Late)) {
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
    async fn tell(self: &Rc<Self>, message: &ClientMessage) -> Result<(), DeliveryError> {
        let reply = self.server.post(message).await?;
        let status = reply.status();
        let refusal = refusal(reply).await?;
        if client_message::is_message(&refusal) {
            self.say(refusal).await;
        } else if !status.is_success() {
            tracing::warn!("the server refused a message: {}", refused(status, &refusal));
        }
        Ok(())
    }

    /// Sends a request and hands on what comes back; whatever happens, the client is answered.
    async fn answer(self: &Rc<Self>, message: ClientMessage) {
        let (told, failed) = match self.server.post(&message).await {
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

    /// Hands on the messages of a reply. Whether the client has its answer, and what went wrong.
    async fn hand_on(
        &self,
        message: &ClientMessage,
        mut reply: HttpReply,
    ) -> (bool, Option<String>) {
        let status = reply.status();
        if !status.is_success() {
            return match refusal(reply).await {
                Ok(body) if client_message::is_message(&body) => {
                    self.say(body).await;
                    (true, None)
                }
                Ok(body) => (false, Some(refused(status, &body))),
                Err(error) => (false, Some(format!("{}: {}", self.gone(), error.cause()))),
            };
        }
        let opens = matches!(message.kind, ClientMessageKind::Initialize(_));
        let id = reply.headers().get(SESSION_ID).cloned();
        let mut messages = self.server.messages(&reply);
        let events = messages.is_events();
        let mut told = false;
        loop {
            let said = match messages.next(&mut reply).await {
                Ok(Some(said)) => said,
                Ok(None) => break,
                Err(error) => return (told, Some(format!("{}: {error}", self.gone()))),
            };
            // A whole body is the answer; among events the answer is one of several messages.
            told = told || !events || client_message::is_response(&said.joined());
            if opens && told {
                let version = client_message::settled_version(&said.joined());
                self.server.begin(message.body.clone(), id.clone(), version);
            }
            // The client is gone when nobody takes it; there is no one to tell.
            let _ = self.out.send(said).await;
        }
        reply.finish();
        let silent = || format!("mcpproxy at {} did not answer", self.server.authority());
        (told, (!told && !message.ids().is_empty()).then(silent))
    }

    /// Opens the server's own stream, in place of the one before.
    fn open_stream(&self) {
        self.stop_stream();
        let follow = server_stream::follow(Rc::clone(&self.server), self.out.clone());
        *self.stream.borrow_mut() = Some(tokio::task::spawn_local(follow).abort_handle());
    }

    fn stop_stream(&self) {
        if let Some(task) = self.stream.borrow_mut().take() {
            task.abort();
        }
    }

    /// Writes a message of our own, or a short one of the server's.
    async fn say(&self, message: Bytes) {
        let _ = self.out.send(ServerMessage::from(message)).await;
    }

    fn gone(&self) -> String {
        format!("mcpproxy at {} went away before it answered", self.server.authority())
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
        self.server.end().await;
    }
}

async fn write<W: AsyncWrite + Unpin>(
    mut output: W,
    mut queue: mpsc::Receiver<ServerMessage>,
) -> std::io::Result<()> {
    while let Some(message) = queue.recv().await {
        for part in message.parts() {
            output.write_all(part).await?;
        }
        output.write_all(b"\n").await?;
        output.flush().await?;
    }
    Ok(())
}
