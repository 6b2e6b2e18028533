//! MCP over a client's pipes, legacy and modern (MCP 2025-11-25 and 2026-07-28 §stdio).
//!
//! One message per line in both directions. Only complete messages are written, and a raw newline between tokens of
//! an upstream's answer becomes a space (`requirements.md`, *holding and streaming*). Calls run concurrently; a reply
//! is sent when it is complete, and the notifications of its call are sent immediately.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mcpproxy_policy::Principal;
use mcpproxy_protocol::mcp::jsonrpc;
use mcpproxy_protocol::mcp::jsonrpc::Code;
use mcpproxy_protocol::mcp::message::Response;
use mcpproxy_protocol::mcp::revisions::ProtocolFamily;
use mcpproxy_protocol::wire::lines::one_line;
use mcpproxy_protocol::wire::splice::Splice;
use mcpproxy_runtime::io::line_reader::LineReader;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::in_flight::{InFlight, Owner, Taken, Watched};
use super::legacy::anonymous_client;
use super::listen::{Subscription, legacy_notification, notices};
use super::{request, server_endpoint};
use mcpproxy_gateway::proxy::client::{Channel, Client, Endpoint, Level, Peer};
use mcpproxy_gateway::proxy::dispatch::Incoming;
use mcpproxy_gateway::proxy::passthrough::list_cache::LIST_WAIT;
use mcpproxy_gateway::proxy::passthrough::revocation;
use mcpproxy_gateway::proxy::reply::{Initialize, NotificationFilter, Piece, Reaction, Running};
use mcpproxy_gateway::proxy::tasks::legacy::TaskStatuses;
use mcpproxy_gateway::proxy::{Worker, dispatch, render};

/// Maximum number of calls in flight; further lines wait in the pipe.
pub(crate) const MAX_CALLS: usize = 256;
/// Maximum number of replies queued for the client.
const REPLY_QUEUE: usize = 64;
/// Maximum number of responses of the client on their way to servers; further lines wait in the pipe.
const MAX_ANSWERS: usize = 64;
/// Maximum number of subscriptions, including those that are being opened.
const MAX_SUBSCRIPTIONS: usize = 32;
/// Time limit for remaining work of calls after the client has closed its end.
const SETTLE_TIME: Duration = Duration::from_secs(5);
/// Session id in records of calls over a pipe.
const SESSION_ID: &str = "stdio";

/// Serves one client until it closes its end, then lets the calls in flight finish.
pub async fn serve<R, W>(
    worker: Rc<Worker>,
    endpoint: Endpoint,
    input: R,
    output: W,
) -> std::io::Result<()>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin + 'static,
{
    if let Some(server) = endpoint.server()
        && let Some(upstream) = worker.proxy.upstreams.get(server)
    {
        // The server's tools and capabilities are known only after it has answered.
        let _ = tokio::time::timeout(LIST_WAIT, upstream.settled()).await;
        server_endpoint::prepare(&worker, &endpoint).await;
    }
    let (replies, queue) = mpsc::channel::<Splice>(REPLY_QUEUE);
    let writer = tokio::task::spawn_local(write(output, queue));
    let mut client = Pipe {
        worker: Rc::clone(&worker),
        endpoint,
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
    while client.answers.join_next().await.is_some() {}
    client.client.end_questions();
    while client.calls.join_next().await.is_some() {}
    while client.subscriptions.join_next().await.is_some() {}
    client.listeners.shutdown().await;
    drop(client);
    let written = writer.await.map_err(std::io::Error::other)?;
    // Cancels, at their servers, the tasks that the client did not receive.
    let _ = tokio::time::timeout(SETTLE_TIME, worker.settled()).await;
    written
}

struct Pipe {
    worker: Rc<Worker>,
    endpoint: Endpoint,
    /// Client described by `initialize`; a modern request describes its own client.
    client: Arc<Client>,
    replies: mpsc::Sender<Splice>,
    calls: JoinSet<()>,
    /// The client's responses on their way to servers, so that a slow server does not delay other lines.
    answers: JoinSet<()>,
    in_flight: Arc<InFlight>,
    subscriptions: JoinSet<()>,
    /// The task that notifies a legacy client of changes.
    listeners: JoinSet<()>,
    /// Set when the client has closed its end.
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

    /// Serves the messages of a batch one by one; their responses are sent individually, as MCP 2025-03-26
    /// §Transports permits.
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
        let received = match dispatch::read(&self.worker, &line) {
            Ok(Incoming::Request(received)) => received,
            Ok(Incoming::Response(response)) => return self.respond(response).await,
            Err(error) => return self.send(error).await,
        };
        let client = match request::piped(&received.request) {
            None => Arc::clone(&self.client),
            Some(Ok(client)) => Arc::new(client),
            Some(Err(refused)) => {
                let Some(id) = &received.request.id else { return };
                return self.send(refused.answer(&self.worker, Some(id))).await;
            }
        };
        let family = client.family;
        let peer = self.peer(client);
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
                    if let Some(message) = complete(family, &id, call, &replies).await {
                        // Sending fails only if the client has disconnected.
                        let _ = replies.send(message).await;
                    }
                }));
            }
            Reaction::Listen { id, filter } => self.listen(peer, id, filter).await,
        }
    }

    fn peer(&self, client: Arc<Client>) -> Peer {
        Peer {
            client,
            // A client on a pipe sends no API key.
            principal: Principal::Anonymous,
            endpoint: self.endpoint.clone(),
            channel: Channel::Stream,
            headers: None,
            trace: None,
        }
    }

    /// Sends the client's response to the server that asked, while further lines are read.
    async fn respond(&mut self, response: Response) {
        while self.answers.try_join_next().is_some() {}
        while self.answers.len() >= MAX_ANSWERS {
            self.answers.join_next().await;
        }
        let (worker, client) = (Rc::clone(&self.worker), Arc::clone(&self.client));
        let replies = self.replies.clone();
        self.answers.spawn_local(async move {
            if let Err(error) = dispatch::respond(&worker, &client, response).await {
                let _ = replies.send(Splice::from(error)).await;
            }
        });
    }

    async fn initialize(&mut self, accepted: Initialize) {
        let Initialize { version, client_name, client_capabilities, answer } = accepted;
        let id = SESSION_ID.into();
        self.client = Arc::new(Client::new(
            id,
            &client_name,
            version,
            ProtocolFamily::Legacy,
            client_capabilities,
        ));
        // A pipe always has a stream for log messages, so every level is sent until the client selects one.
        self.client.set_level(Level::Debug);
        self.send(answer).await;
        // A client that initializes again is notified once, not twice.
        self.listeners.abort_all();
        let (client, replies) = (Arc::clone(&self.client), self.replies.clone());
        let (worker, endpoint) = (Rc::clone(&self.worker), self.endpoint.clone());
        let mut receiver = worker.proxy.catalog.notices();
        let mut aside = client.listen();
        let mut tasks = TaskStatuses::of(&worker, &self.peer(Arc::clone(&client)));
        self.listeners.spawn_local(async move {
            loop {
                let changes = tokio::select! {
                    changes = notices(&mut receiver) => changes,
                    Some(message) = aside.recv() => {
                        let _ = replies.send(Splice::from(one_line(message))).await;
                        continue;
                    }
                    message = tasks.next() => {
                        let _ = replies.send(Splice::from(one_line(message))).await;
                        continue;
                    }
                };
                for notice in changes {
                    let receives = |uri: &str| {
                        revocation::receives(&worker.proxy, &client, &Principal::Anonymous, uri)
                    };
                    let message = legacy_notification(&endpoint, &notice, receives);
                    if let Some(message) = message {
                        let _ = replies.send(Splice::from(message)).await;
                    }
                }
            }
        });
    }

    /// Opens a subscription, which may wait for a server while further lines are read, and sends its messages until the
    /// client cancels it or closes its end.
    async fn listen(&mut self, peer: Peer, id: Bytes, filter: NotificationFilter) {
        while self.subscriptions.try_join_next().is_some() {}
        if self.subscriptions.len() >= MAX_SUBSCRIPTIONS {
            let text = format!("{MAX_SUBSCRIPTIONS} subscriptions are open: cancel one first");
            return self.send(jsonrpc::error(Some(&id), Code::Internal, &text)).await;
        }
        // The subscription is registered as a call that never completes, so that it can be canceled like a call.
        let mut until =
            self.in_flight.watch(Owner::PIPE, &id, Running::new(|_| std::future::pending()));
        let (worker, draining) = (Rc::clone(&self.worker), self.draining.subscribe());
        let mut closed = self.draining.subscribe();
        let replies = self.replies.clone();
        self.subscriptions.spawn_local(async move {
            let opening = Subscription::new(&worker, &peer, id, filter, draining);
            let mut subscription = tokio::select! {
                subscription = opening => subscription,
                _ = until.next() => return,
                // The client has closed its end, and does not read an acknowledgment.
                _ = closed.wait_for(|closed| *closed) => return,
            };
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

/// Collects a reply into a complete message, sends it, and lets the call finish. Messages before it are sent
/// immediately.
async fn complete(
    family: ProtocolFamily,
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
            // Pipes need no keep-alive.
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
                return Some(Splice::from(refusal.mcp_response(family, id)));
            }
            // Nothing of the reply was written yet, so that an error can replace it.
            Taken::Broken(aborted) => return broken(&aborted.to_string()),
            Taken::Over => {
                message.push(jsonrpc::TAIL);
                return Some(message);
            }
            // A client that cancels expects no response (MCP 2025-11-25 §Cancellation).
            Taken::Canceled => return None,
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
