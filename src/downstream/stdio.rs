//! The same endpoint over a client's pipes, in both eras (MCP 2025-11-25 and 2026-07-28 §stdio).
//!
//! One message a line in both directions. Only complete messages are written, and a raw newline
//! between tokens of an upstream's answer becomes a space
//! ([streaming](crate::reference::requirements#holding-and-streaming)). Calls run side by side;
//! each reply leaves when it is complete, the notifications of its call at once.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::downstream::change_notifications::{legacy_notification, notices};
use crate::downstream::in_flight::{InFlight, Owner, Taken, Watched};
use crate::downstream::legacy::anonymous_client;
use crate::downstream::modern_client;
use crate::downstream::subscription::Subscription;
use crate::io::line_reader::LineReader;
use crate::mcp::jsonrpc::{self, Code};
use crate::mcp::message::Response;
use crate::mcp::revisions::Era;
use crate::policy::Principal;
use crate::proxy::Worker;
use crate::proxy::caller::{Channel, Endpoint, Peer};
use crate::proxy::client::{Client, Level};
use crate::proxy::incoming::{self, Incoming};
use crate::proxy::reaction::{Initialize, Reaction};
use crate::proxy::reply::{Piece, Running};
use crate::proxy::{dispatch, render};
use crate::wire::lines::one_line;
use crate::wire::splice::Splice;

/// Most calls of one client in flight; further lines wait in the pipe.
pub const MAX_CALLS: usize = 256;
/// Most replies that wait for the client to read them.
const REPLY_QUEUE: usize = 64;
/// Most answers of the client on their way to servers; further lines wait in the pipe.
const MAX_ANSWERS: usize = 64;
/// Most subscriptions of one client.
const MAX_SUBSCRIPTIONS: usize = 32;
/// The session id in records of calls over a pipe.
const SESSION_ID: &str = "stdio";

/// Serves one client until it closes its end, then lets the calls in flight finish.
///
/// # Errors
///
/// When the pipe fails.
pub async fn serve<R, W>(worker: Rc<Worker>, input: R, output: W) -> std::io::Result<()>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin + 'static,
{
    let (replies, queue) = mpsc::channel::<Splice>(REPLY_QUEUE);
    let writer = tokio::task::spawn_local(write(output, queue));
    let mut client = Pipe {
        worker,
        client: Arc::new(anonymous_client(SESSION_ID)),
        replies,
        calls: JoinSet::new(),
        answers: JoinSet::new(),
        in_flight: Arc::default(),
        subscriptions: JoinSet::new(),
        listeners: JoinSet::new(),
        draining: watch::Sender::new(false),
    };
    let mut lines = LineReader::new(input);
    while let Some(line) = lines.next().await? {
        match line {
            Ok(line) => client.take_line(line).await,
            Err(too_long) => {
                let text = format!("Invalid Request: {too_long}");
                client.send(jsonrpc::error(None, Code::InvalidRequest, &text)).await;
            }
        }
    }
    client.draining.send_replace(true);
    while client.calls.join_next().await.is_some() {}
    while client.answers.join_next().await.is_some() {}
    while client.subscriptions.join_next().await.is_some() {}
    client.listeners.shutdown().await;
    drop(client);
    writer.await.map_err(std::io::Error::other)?
}

struct Pipe {
    worker: Rc<Worker>,
    /// The client as `initialize` described it; a modern request describes its own.
    client: Arc<Client>,
    replies: mpsc::Sender<Splice>,
    calls: JoinSet<()>,
    /// The client's answers on their way to servers, so that a slow server delays no other line.
    answers: JoinSet<()>,
    in_flight: Arc<InFlight>,
    subscriptions: JoinSet<()>,
    /// The task that notifies a legacy client of changes.
    listeners: JoinSet<()>,
    /// The client has closed its end.
    draining: watch::Sender<bool>,
}

impl Pipe {
    async fn take_line(&mut self, line: Bytes) {
        if line.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[')
            && self.client.revision().has_batches()
        {
            return self.take_batch(&line).await;
        }
        self.take(line).await;
    }

    /// Takes the messages of a batch one by one; their responses leave one by one too, which that
    /// revision leaves to the server (MCP 2025-03-26 §Transports).
    async fn take_batch(&mut self, line: &Bytes) {
        let messages = jsonrpc::batch(line).filter(|messages| !messages.is_empty());
        let Some(messages) = messages else {
            let text = "Invalid Request: not a batch of messages";
            return self.send(jsonrpc::error(None, Code::InvalidRequest, text)).await;
        };
        for message in messages {
            self.take(message).await;
        }
    }

    async fn take(&mut self, line: Bytes) {
        let received = match incoming::read(&self.worker, &line) {
            Ok(Incoming::Request(received)) => received,
            Ok(Incoming::Response(response)) => return self.respond(response).await,
            Err(error) => return self.send(error).await,
        };
        let client = match modern_client::piped(&received.request) {
            None => Arc::clone(&self.client),
            Some(Ok(client)) => Arc::new(client),
            Some(Err(refused)) => {
                let Some(id) = &received.request.id else { return };
                return self.send(refused.answer(&self.worker, Some(id))).await;
            }
        };
        let era = client.era;
        let peer = Peer {
            client,
            // Whoever holds a pipe's other end has shown no key.
            principal: Principal::Anonymous,
            endpoint: Endpoint::Search,
            channel: Channel::Stream,
            headers: None,
            trace: None,
        };
        match dispatch::dispatch(&self.worker, &peer, received) {
            Reaction::Noted => {}
            Reaction::Cancel(id) => {
                self.in_flight.cancel(Owner::PIPE, &id);
            }
            Reaction::Answer(answer) | Reaction::Error(_, answer) => self.send(answer).await,
            Reaction::Initialize(accepted) => self.initialize(accepted).await,
            Reaction::Call { id, running } => {
                while self.calls.len() >= MAX_CALLS {
                    self.calls.join_next().await;
                }
                let replies = self.replies.clone();
                let call = self.in_flight.watch(Owner::PIPE, &id, running);
                self.calls.spawn_local(self.worker.ending.clone().attend(async move {
                    if let Some(message) = complete(era, &id, call, &replies).await {
                        // It fails only when the client is gone.
                        let _ = replies.send(message).await;
                    }
                }));
            }
            Reaction::Listen { id, filter } => {
                let draining = self.draining.subscribe();
                let subscription =
                    Subscription::new(&self.worker, &peer, id.clone(), filter, draining).await;
                self.listen(&id, subscription).await;
            }
        }
    }

    /// Hands the client's answer to the server that asked, while further lines are read.
    async fn respond(&mut self, response: Response) {
        while self.answers.try_join_next().is_some() {}
        while self.answers.len() >= MAX_ANSWERS {
            self.answers.join_next().await;
        }
        let (worker, client) = (Rc::clone(&self.worker), Arc::clone(&self.client));
        let replies = self.replies.clone();
        self.answers.spawn_local(async move {
            if let Err(error) = incoming::respond(&worker, &client, response).await {
                let _ = replies.send(Splice::from(error)).await;
            }
        });
    }

    async fn initialize(&mut self, accepted: Initialize) {
        let Initialize { version, client_name, client_capabilities, answer } = accepted;
        let id = SESSION_ID.into();
        self.client =
            Arc::new(Client::new(id, &client_name, version, Era::Legacy, client_capabilities));
        // A pipe has one stream, so every level goes there until the client asks for less.
        self.client.set_level(Level::Debug);
        self.send(answer).await;
        // A client that initializes again is notified once, not twice.
        self.listeners.abort_all();
        let (client, replies) = (Arc::clone(&self.client), self.replies.clone());
        let mut receiver = self.worker.proxy.catalog.notices();
        let mut aside = client.listen();
        self.listeners.spawn_local(async move {
            loop {
                let changes = tokio::select! {
                    changes = notices(&mut receiver) => changes,
                    Some(message) = aside.recv() => {
                        let _ = replies.send(Splice::from(one_line(message))).await;
                        continue;
                    }
                };
                for notice in changes {
                    let message = legacy_notification(&client, Endpoint::Search, &notice);
                    if let Some(message) = message {
                        let _ = replies.send(Splice::from(message)).await;
                    }
                }
            }
        });
    }

    /// Sends a subscription's messages until the client cancels it or closes its end.
    async fn listen(&mut self, id: &Bytes, mut subscription: Subscription) {
        while self.subscriptions.try_join_next().is_some() {}
        if self.subscriptions.len() >= MAX_SUBSCRIPTIONS {
            let text = format!("{MAX_SUBSCRIPTIONS} subscriptions are open: cancel one first");
            return self.send(jsonrpc::error(Some(id), Code::Internal, &text)).await;
        }
        // Entered as a call that never answers, so that it is cancelled like any other.
        let mut until =
            self.in_flight.watch(Owner::PIPE, id, Running::new(|_| std::future::pending()));
        let replies = self.replies.clone();
        self.subscriptions.spawn_local(async move {
            loop {
                let message = tokio::select! {
                    message = subscription.next() => message,
                    _ = until.next() => return,
                };
                let Some(message) = message else { return };
                let _ = replies.send(Splice::from(message)).await;
            }
        });
    }

    async fn send(&self, message: Bytes) {
        let _ = self.replies.send(Splice::from(message)).await;
    }
}

/// Gathers a reply until it is a whole message, sends it, and lets the call finish. What comes
/// before it is sent at once.
async fn complete(
    era: Era,
    id: &[u8],
    mut call: Watched,
    replies: &mpsc::Sender<Splice>,
) -> Option<Splice> {
    let mut message = Splice::new();
    let broken = |text: &str| Some(Splice::from(jsonrpc::error(Some(id), Code::Internal, text)));
    loop {
        match call.next().await {
            Taken::Piece(Piece::Notification(before) | Piece::Request(before)) => {
                let _ = replies.send(Splice::from(one_line(before))).await;
            }
            // A pipe needs no sign of life.
            Taken::Piece(Piece::Alive) => {}
            Taken::Piece(Piece::Begin(member)) => message.push(render::head(id, member)),
            Taken::Piece(Piece::Data(data)) => message.extend(data.into_iter().map(one_line)),
            Taken::Piece(Piece::Whole(member, value)) => {
                message.push(render::head(id, member));
                message.extend(value.into_iter().map(one_line));
                message.push(jsonrpc::TAIL);
                let _ = replies.send(message).await;
                if let Some(rest) = call.rest().and_then(Running::rest) {
                    let _ = rest.await;
                }
                return None;
            }
            Taken::Piece(Piece::Refused(refusal)) => {
                return Some(Splice::from(refusal.mcp_response(era, id)));
            }
            // Nothing of it was written yet, so that an error can take its place.
            Taken::Broken(aborted) => return broken(&aborted.to_string()),
            Taken::Over => {
                message.push(jsonrpc::TAIL);
                return Some(message);
            }
            // Who cancels waits for no answer (MCP 2025-11-25 §Cancellation).
            Taken::Cancelled => return None,
        }
    }
}

async fn write<W: AsyncWrite + Unpin>(
    mut output: W,
    mut queue: mpsc::Receiver<Splice>,
) -> std::io::Result<()> {
    while let Some(mut message) = queue.recv().await {
        output.write_all_buf(&mut message).await?;
        output.write_all(b"\n").await?;
        output.flush().await?;
    }
    Ok(())
}
