//! The same endpoint over a client's pipes (MCP 2025-11-25 §stdio).
//!
//! One message a line in both directions. Only complete messages are written, and a raw newline
//! between tokens of an upstream's answer becomes a space (SPEC §3). Calls run side by side;
//! their replies leave in the order they are complete.

use std::rc::Rc;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::proxy::Worker;
use crate::proxy::client::{Client, Endpoint};
use crate::proxy::dispatch::{self, Channel, Initialize, Peer, Reaction};
use crate::proxy::reply::{Piece, Running};
use crate::upstream::Era;
use crate::wire::jsonrpc::{self, Code};
use crate::wire::splice::Splice;

/// Longest line accepted from the client: 16 MiB, as for an HTTP body. A longer one is refused, and
/// the session goes on.
pub const MAX_LINE_BYTES: usize = 16 * 1024 * 1024;
/// Calls of one client under way at once; further lines wait in the pipe.
pub const MAX_CALLS: usize = 256;
/// Replies waiting for the client to read them.
const REPLY_QUEUE: usize = 64;
const READ_BYTES: usize = 64 * 1024;

/// Serves one client until it closes its end, then lets the calls under way finish.
///
/// # Errors
///
/// When the pipe fails.
pub async fn serve<R, W>(worker: Rc<Worker>, mut input: R, output: W) -> std::io::Result<()>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin + 'static,
{
    let (replies, queue) = mpsc::channel::<Splice>(REPLY_QUEUE);
    let writer = tokio::task::spawn_local(write(output, queue));
    let mut client = Pipe { worker, peer: anonymous(), replies, calls: JoinSet::new() };
    let mut pending = BytesMut::new();
    let mut searched = 0;
    // True inside a line that was refused for its length.
    let mut skipping = false;
    loop {
        pending.reserve(READ_BYTES);
        if input.read_buf(&mut pending).await? == 0 {
            break;
        }
        while let Some(at) = memchr::memchr(b'\n', pending.get(searched..).unwrap_or_default()) {
            let line = pending.split_to(searched + at + 1).freeze();
            searched = 0;
            if !std::mem::take(&mut skipping) {
                client.take_line(line).await;
            }
        }
        searched = pending.len();
        if searched > MAX_LINE_BYTES {
            if !std::mem::replace(&mut skipping, true) {
                let text = format!("Invalid Request: a line is longer than {MAX_LINE_BYTES} bytes");
                client.send(jsonrpc::error(None, Code::InvalidRequest, &text)).await;
            }
            pending.clear();
            searched = 0;
        }
    }
    if !skipping {
        // A last line without its newline is a message all the same.
        client.take_line(pending.freeze()).await;
    }
    while client.calls.join_next().await.is_some() {}
    drop(client);
    writer.await.map_err(std::io::Error::other)?
}

struct Pipe {
    worker: Rc<Worker>,
    peer: Peer,
    replies: mpsc::Sender<Splice>,
    calls: JoinSet<()>,
}

impl Pipe {
    async fn take_line(&mut self, line: Bytes) {
        if line.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        let request = match dispatch::read(&self.worker, &line) {
            Ok(Some(request)) => request,
            Ok(None) => return,
            Err(error) => return self.send(error).await,
        };
        match dispatch::dispatch(&self.worker, &self.peer, request) {
            Reaction::Noted | Reaction::Cancel(_) | Reaction::Listen { .. } => {}
            Reaction::Answer(answer) | Reaction::Error(_, answer) => self.send(answer).await,
            Reaction::Initialize(accepted) => {
                let Initialize { version, client_name, takes, .. } = &accepted;
                let client = Client::new("stdio".into(), client_name, version, Era::Legacy, *takes);
                self.peer.client = Arc::new(client);
                self.send(accepted.answer).await;
            }
            Reaction::Call { id, running } => {
                while self.calls.len() >= MAX_CALLS {
                    self.calls.join_next().await;
                }
                let replies = self.replies.clone();
                self.calls.spawn_local(async move {
                    if let Some(message) = complete(&id, running, &replies).await {
                        // The client is gone when nobody takes it; there is no one to tell.
                        let _ = replies.send(message).await;
                    }
                });
            }
        }
    }

    async fn send(&self, message: Bytes) {
        let _ = self.replies.send(Splice::from(message)).await;
    }
}

/// Gathers a reply until it is a whole message, sends it, and lets the call finish.
async fn complete(
    id: &[u8],
    mut running: Running,
    replies: &mpsc::Sender<Splice>,
) -> Option<Splice> {
    let mut message = Splice::new();
    let broken = |text: &str| Some(Splice::from(jsonrpc::error(Some(id), Code::Internal, text)));
    loop {
        match running.next().await {
            Some(Ok(Piece::Notification(_) | Piece::Request(_))) => {}
            Some(Ok(Piece::Begin(member))) => message.push(dispatch::head(id, member)),
            Some(Ok(Piece::Data(data))) => message.extend(one_line(data)),
            Some(Ok(Piece::Whole(member, value))) => {
                message.push(dispatch::head(id, member));
                message.extend(one_line(value));
                message.push(jsonrpc::TAIL);
                let _ = replies.send(message).await;
                if let Some(rest) = running.rest() {
                    let _ = rest.await;
                }
                return None;
            }
            Some(Ok(Piece::Refused(refusal))) => {
                return Some(Splice::from(dispatch::refused(id, &refusal)));
            }
            // Nothing of it has been written, so the client can still be told.
            Some(Err(aborted)) => return broken(&aborted.to_string()),
            None => {
                message.push(jsonrpc::TAIL);
                return Some(message);
            }
        }
    }
}

/// Replaces raw line breaks by spaces. They can only stand between tokens of valid JSON; a slice
/// without one is passed on as it is.
fn one_line(value: Splice) -> impl Iterator<Item = Bytes> {
    value.into_iter().map(|part| {
        if memchr::memchr2(b'\n', b'\r', &part).is_none() {
            return part;
        }
        let spaced =
            part.iter().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte });
        spaced.collect::<Vec<u8>>().into()
    })
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

fn anonymous() -> Peer {
    let client = super::http::anonymous("stdio");
    Peer { client, endpoint: Endpoint::Search, channel: Channel::Answer }
}
