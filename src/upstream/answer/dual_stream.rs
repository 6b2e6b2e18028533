//! A call with two streams: one over HTTP that its server may also speak to beside the call's own
//! stream.
//!
//! A server of the revisions with sessions may ask, or tell of progress, on the session's GET
//! stream, even before it has begun to answer. So such a call is sent while its answer is waited
//! for, and both streams are heard. Which messages are for this call,
//! [`crate::upstream::notification_router`] knows. Calls that ask for nothing of the kind are not made this
//! way and pay nothing for it.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::sync::mpsc;

use super::http_source::HttpSource;
use super::part::AnswerPart;
use crate::io::deadline::{Allowance, Deadline};
use crate::upstream::error::{Cause, Sent};
use crate::upstream::notification_router::Registration;

/// Sends the request; the head of its answer has come when it is done.
pub(in crate::upstream) type Sending = Pin<Box<dyn Future<Output = Outcome>>>;
/// What comes of sending it.
type Outcome = Result<(Box<HttpSource>, Attempt), (Cause, Sent)>;

/// What is known of a call while it is being sent.
#[derive(Debug, Default)]
pub(in crate::upstream) struct SendState {
    /// The connection it goes over: a new one if the session was lost.
    generation: Cell<u64>,
    /// Whether it may have been sent over it; it is not while it waits for a connection.
    sent: Cell<bool>,
}

impl SendState {
    /// The call goes over this connection now.
    pub(in crate::upstream) fn attempt(
        self: &Rc<Self>,
        generation: u64,
        place: Registration,
    ) -> Attempt {
        self.generation.set(generation);
        self.sent.set(true);
        Attempt { _place: place, send_state: self.clone() }
    }
}

/// A call on its way over one connection, where it is reached until this is dropped.
pub(in crate::upstream) struct Attempt {
    _place: Registration,
    send_state: Rc<SendState>,
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.send_state.sent.set(false);
    }
}

/// The call and what was said to it.
pub(in crate::upstream) struct DualStreamCall {
    id: u64,
    send_state: Rc<SendState>,
    messages: mpsc::Receiver<Bytes>,
    phase: Phase,
    /// What was handed out last.
    last: Last,
    /// Until the first byte of a message of its own stream.
    time: Allowance,
    timer: Deadline,
    /// The head of its answer has come.
    heard: bool,
}

enum Phase {
    Sending(Sending),
    Streaming { source: Box<HttpSource>, _attempt: Attempt },
    Over,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    /// A whole message.
    Whole,
    /// Part of a message of its own stream.
    Part,
    /// A message from beside; its end is to be told.
    Beside,
}

/// What comes of waiting for the head of the answer.
enum Step {
    Beside(Bytes),
    Sent(Outcome),
}

impl DualStreamCall {
    pub(in crate::upstream) fn new(
        id: u64,
        send_state: Rc<SendState>,
        messages: mpsc::Receiver<Bytes>,
        sending: Sending,
        time: Allowance,
    ) -> Self {
        let phase = Phase::Sending(sending);
        Self {
            id,
            send_state,
            messages,
            phase,
            last: Last::Whole,
            time,
            timer: Deadline::default(),
            heard: false,
        }
    }

    pub(in crate::upstream) fn id(&self) -> u64 {
        self.id
    }

    /// Whether not even the head of its answer has come.
    pub(in crate::upstream) fn is_unheard(&self) -> bool {
        !self.heard
    }

    pub(in crate::upstream) fn generation(&self) -> u64 {
        self.send_state.generation.get()
    }

    /// The next piece. Safe to drop and ask again.
    pub(in crate::upstream) async fn next(&mut self) -> Result<Option<AnswerPart>, (Cause, Sent)> {
        if self.last == Last::Beside {
            self.last = Last::Whole;
            return Ok(Some(AnswerPart::End));
        }
        if let Phase::Sending(_) = &self.phase {
            match poll_fn(|cx| self.poll_sending(cx)).await {
                Step::Beside(message) => return Ok(Some(self.beside(message))),
                Step::Sent(Ok((mut source, attempt))) => {
                    source.wait_until(self.time);
                    self.heard = true;
                    self.phase = Phase::Streaming { source, _attempt: attempt };
                }
                Step::Sent(Err(failed)) => {
                    // If it was still being sent, this cancels it.
                    self.phase = Phase::Over;
                    return Err(failed);
                }
            }
        }
        let Phase::Streaming { source, .. } = &mut self.phase else { return Ok(None) };
        let part = tokio::select! {
            biased;
            Some(message) = self.messages.recv(), if self.last == Last::Whole => {
                return Ok(Some(self.beside(message)));
            }
            part = source.next() => part,
        };
        match &part {
            Ok(Some(AnswerPart::Data(_))) => self.last = Last::Part,
            Ok(Some(AnswerPart::End)) => self.last = Last::Whole,
            Ok(None) | Err(_) => self.phase = Phase::Over,
        }
        part.map_err(|cause| (cause, Sent::Maybe))
    }

    fn beside(&mut self, message: Bytes) -> AnswerPart {
        self.last = Last::Beside;
        AnswerPart::Data(message)
    }

    fn poll_sending(&mut self, cx: &mut Context<'_>) -> Poll<Step> {
        if let Poll::Ready(Some(message)) = self.messages.poll_recv(cx) {
            return Poll::Ready(Step::Beside(message));
        }
        if let Phase::Sending(sending) = &mut self.phase
            && let Poll::Ready(sent) = sending.as_mut().poll(cx)
        {
            return Poll::Ready(Step::Sent(sent));
        }
        ready!(self.timer.poll_until(cx, self.time.until));
        let sent = if self.send_state.sent.get() { Sent::Maybe } else { Sent::No };
        Poll::Ready(Step::Sent(Err((Cause::NoAnswer { limit: self.time.whole }, sent))))
    }

    /// Its next message has to begin in this time.
    pub(in crate::upstream) fn wait_until(&mut self, time: Allowance) {
        self.time = time;
        if let Phase::Streaming { source, .. } = &mut self.phase {
            source.wait_until(time);
        }
    }

    /// Its connection is not used again.
    pub(in crate::upstream) fn distrust(&mut self) {
        if let Phase::Streaming { source, .. } = &mut self.phase {
            source.trusted = false;
        }
    }

    /// The response has ended.
    pub(in crate::upstream) fn done(&mut self) {
        if let Phase::Streaming { source, .. } = &mut self.phase {
            source.done();
        }
        self.phase = Phase::Over;
    }
}
