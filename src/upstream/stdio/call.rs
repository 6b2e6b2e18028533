//! One call over a child's pipes: its pieces as they come, and its cancelling.
//!
//! Owns the waits of the call. What is put before it, and in which order, is the reader's business.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::mpsc;

use super::link::{ChildLink, Line, Waiter};
use super::queue::{self, CallPiece};
use crate::io::deadline::{Allowance, Deadline};
use crate::mcp::capabilities::ClientCapabilities;
use crate::upstream::answer::AnswerPart;
use crate::upstream::error::{Cause, Human, Sent};
use crate::upstream::http::STALL_LIMIT;
use crate::upstream::request::cancelled;
use crate::upstream::request_ids;

/// One call: its pieces as they come. Dropped before its end, it is cancelled.
#[derive(Debug)]
pub(in crate::upstream) struct StdioCall {
    link: Arc<ChildLink>,
    id: u64,
    pieces: mpsc::Receiver<CallPiece>,
    limit: Duration,
    timer: Deadline,
    /// When the present wait ends; that of a wait after the first is set when it begins.
    deadline: Option<Instant>,
    state: State,
    /// Garbage that had come when it was sent.
    garbage: u64,
    /// Something of its answer has come.
    heard: bool,
    /// Its request was never written: the server knows nothing of it.
    unwritten: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Unsent,
    Waiting,
    Inside,
    /// A message beside the answer was handed out, its end was not.
    MessageTaken,
    /// The last bytes were handed out, the end was not.
    LastTaken,
    Over,
}

impl StdioCall {
    /// Queues a request; `line` makes it for its id. It has that time until the first byte of its
    /// answer, with the wait for room in the queue.
    pub(in crate::upstream) async fn begin(
        link: &Arc<ChildLink>,
        line: impl FnOnce(u64) -> [Bytes; 3],
        time: Allowance,
        client_capabilities: Option<ClientCapabilities>,
    ) -> Result<Self, (Cause, Sent)> {
        let (sender, pieces) = queue::channel();
        let id = link
            .waiting()
            .enter(Waiter { sender, client_capabilities, written: false }, request_ids::fresh)
            .map_err(|full| (Cause::NotConnected { reason: full.to_string().into() }, Sent::No))?;
        let mut call = Self::new(link.clone(), id, pieces, time);
        // The reader may be waiting for another call, and may wait less long from now on.
        link.spill.stir();
        // Looked at after entering: whoever ends the link sets this first and clears the table
        // then, so no call is left behind.
        if let Some(reason) = link.ended.get() {
            return Err((Cause::NotConnected { reason: reason.clone() }, Sent::No));
        }
        match link.queue(Line { parts: line(id), call: Some(id) }, time).await {
            Ok(()) => {
                call.state = State::Waiting;
                Ok(call)
            }
            Err(cause) => Err((cause, Sent::No)),
        }
    }

    /// A call that is not on its way yet; its answer has to begin in that time.
    fn new(
        link: Arc<ChildLink>,
        id: u64,
        pieces: mpsc::Receiver<CallPiece>,
        time: Allowance,
    ) -> Self {
        let garbage = link.garbage.load(Ordering::Relaxed);
        let (timer, deadline, state) = (Deadline::default(), Some(time.until), State::Unsent);
        Self {
            link,
            id,
            pieces,
            limit: time.whole,
            timer,
            deadline,
            state,
            garbage,
            heard: false,
            unwritten: false,
        }
    }

    pub(in crate::upstream) fn id(&self) -> u64 {
        self.id
    }

    /// Whether nothing that could be of its answer was read: no piece of it, and no line that broke off before it was
    /// known whose it is.
    pub(in crate::upstream) fn is_unheard(&self) -> bool {
        !self.heard && !self.link.broke_off.load(Ordering::Acquire)
    }

    /// Whether the child has ended after it may have read this call: it may have ended by it.
    pub(in crate::upstream) fn may_have_ended_server(&self) -> bool {
        !self.unwritten
    }

    /// From now on a message may take this long to begin.
    pub(in crate::upstream) fn wait_longer(&mut self, limit: Duration) {
        self.limit = limit;
        self.deadline = None;
    }

    /// The next piece of the line; `None` after its end.
    pub(in crate::upstream) async fn next(&mut self) -> Result<Option<AnswerPart>, Cause> {
        match self.state {
            State::Over => return Ok(None),
            State::LastTaken => {
                self.state = State::Over;
                return Ok(Some(AnswerPart::End));
            }
            State::MessageTaken => {
                self.state = State::Waiting;
                return Ok(Some(AnswerPart::End));
            }
            State::Unsent | State::Waiting | State::Inside => {}
        }
        let piece = poll_fn(|cx| self.poll_piece(cx)).await;
        self.deadline = None;
        self.heard |=
            matches!(piece, Some(CallPiece::Data(_) | CallPiece::Spilled(_) | CallPiece::Last(_)));
        match piece {
            Some(CallPiece::Data(data)) => {
                self.state = State::Inside;
                Ok(Some(AnswerPart::Data(data)))
            }
            Some(CallPiece::Spilled(mut spilled)) => {
                self.state = State::Inside;
                Ok(Some(AnswerPart::Data(std::mem::take(&mut spilled.data))))
            }
            Some(CallPiece::Last(data)) if data.is_empty() => {
                self.state = State::Over;
                Ok(Some(AnswerPart::End))
            }
            Some(CallPiece::Last(data)) => {
                self.state = State::LastTaken;
                Ok(Some(AnswerPart::Data(data)))
            }
            Some(CallPiece::Message(message)) => {
                self.state = State::MessageTaken;
                Ok(Some(AnswerPart::Data(message)))
            }
            Some(CallPiece::Failed(cause)) => Err(self.fail(cause)),
            Some(CallPiece::Unwritten) => {
                self.unwritten = true;
                let reason = self.link.ended.get().cloned().unwrap_or_else(|| "".into());
                Err(self.fail(Cause::NoAnswerAtAll { reason }))
            }
            None => {
                let cause = match (self.link.ended.get(), self.state) {
                    (Some(reason), State::Inside) => Cause::CutOff { reason: reason.clone() },
                    (Some(reason), _) => Cause::NoAnswerAtAll { reason: reason.clone() },
                    // The reader has gone, and whoever ends the link is about to say why.
                    (None, State::Inside) => Cause::CutOff { reason: "".into() },
                    (None, _) => Cause::NoAnswerAtAll { reason: "".into() },
                };
                Err(self.fail(cause))
            }
        }
    }

    /// The next piece; a wait that ran out is one too.
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<CallPiece>> {
        if let Poll::Ready(piece) = self.pieces.poll_recv(cx) {
            self.link.spill.stir();
            return Poll::Ready(piece);
        }
        let inside = self.state == State::Inside;
        let limit = if inside { STALL_LIMIT } else { self.limit };
        let deadline = *self.deadline.get_or_insert_with(|| Instant::now() + limit);
        ready!(self.timer.poll_until(cx, deadline));
        let garbage = self.link.garbage.load(Ordering::Relaxed) - self.garbage;
        Poll::Ready(Some(CallPiece::Failed(match (inside, garbage) {
            (true, _) => Cause::Stalled { limit },
            (false, 0) => Cause::NoAnswer { limit },
            (false, lines) => Cause::Unreadable {
                reason: format!(
                    "no answer within {}, but {lines} lines that are no JSON-RPC messages",
                    Human(limit)
                )
                .into(),
            },
        })))
    }

    fn fail(&mut self, cause: Cause) -> Cause {
        if cause.leaves_call_running() {
            self.cancel();
        }
        self.state = State::Over;
        cause
    }

    fn cancel(&self) {
        if self.link.ended.get().is_some() {
            return;
        }
        let parts = [Bytes::from(cancelled(self.id)), Bytes::from_static(b"\n"), Bytes::new()];
        // A courtesy: a server that does not read gets none.
        let _ = self.link.out.try_send(Line { parts, call: None });
    }
}

impl Drop for StdioCall {
    fn drop(&mut self) {
        self.link.waiting().leave(self.id);
        if matches!(self.state, State::Waiting | State::MessageTaken | State::Inside) {
            self.cancel();
        }
    }
}
