//! A call over HTTP that its server may also speak to beside the call's own stream.
//!
//! A server of the revisions with sessions may ask, or tell of progress, on the session's GET
//! stream, even before it has begun to answer. So such a call is sent while its answer is waited
//! for, and both streams are heard. Which messages are for this call, [`super::desk`] knows. Calls
//! that ask for nothing of the kind are not made this way and pay nothing for it.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::mpsc;

use super::call::{HttpSource, Part};
use super::desk::Place;
use super::error::{Cause, Sent};

/// Sends the request; the head of its answer has come when it is done.
pub(super) type Sending = Pin<Box<dyn Future<Output = Result<(HttpSource, Place), (Cause, Sent)>>>>;

/// The call and what was said to it.
pub(super) struct Heard {
    id: u64,
    /// The connection it goes over, set when it is sent: over a new one if the session was lost.
    generation: Rc<Cell<u64>>,
    messages: mpsc::Receiver<Bytes>,
    phase: Phase,
    /// What was handed out last.
    last: Last,
    /// Until the first byte of a message of its own stream.
    limit: Duration,
    /// When the wait for the head of the answer ends; set when it begins.
    deadline: Option<Instant>,
}

enum Phase {
    Sending(Sending),
    Streaming {
        source: HttpSource,
        /// Where it is reached, until this is over.
        _place: Place,
    },
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

impl Heard {
    pub(super) fn new(
        id: u64,
        generation: Rc<Cell<u64>>,
        messages: mpsc::Receiver<Bytes>,
        sending: Sending,
        limit: Duration,
    ) -> Self {
        let phase = Phase::Sending(sending);
        Self { id, generation, messages, phase, last: Last::Whole, limit, deadline: None }
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation.get()
    }

    /// The next piece. Safe to drop and ask again.
    pub(super) async fn next(&mut self) -> Result<Option<Part>, (Cause, Sent)> {
        if self.last == Last::Beside {
            self.last = Last::Whole;
            return Ok(Some(Part::End));
        }
        loop {
            let between = self.last == Last::Whole;
            let message = match &mut self.phase {
                Phase::Over => return Ok(None),
                Phase::Sending(sending) => {
                    let limit = self.limit;
                    let deadline = *self.deadline.get_or_insert_with(|| Instant::now() + limit);
                    tokio::select! {
                        biased;
                        Some(message) = self.messages.recv(), if between => message,
                        sent = sending => {
                            self.deadline = None;
                            match sent {
                                Ok((mut source, place)) => {
                                    source.wait_longer(limit);
                                    self.phase = Phase::Streaming { source, _place: place };
                                }
                                Err(failed) => {
                                    self.phase = Phase::Over;
                                    return Err(failed);
                                }
                            }
                            continue;
                        }
                        () = tokio::time::sleep_until(deadline.into()) => {
                            // Dropping what is being sent cancels it.
                            self.phase = Phase::Over;
                            return Err((Cause::NoAnswer { limit }, Sent::Maybe));
                        }
                    }
                }
                Phase::Streaming { source, .. } => tokio::select! {
                    biased;
                    Some(message) = self.messages.recv(), if between => message,
                    part = source.next() => {
                        let part = part.map_err(|cause| (cause, Sent::Maybe));
                        match &part {
                            Ok(Some(Part::Data(_))) => self.last = Last::Part,
                            Ok(Some(Part::End)) => self.last = Last::Whole,
                            Ok(None) | Err(_) => self.phase = Phase::Over,
                        }
                        return part;
                    }
                },
            };
            self.last = Last::Beside;
            return Ok(Some(Part::Data(message)));
        }
    }

    /// Lets the next message take longer.
    pub(super) fn wait_longer(&mut self, limit: Duration) {
        self.limit = limit;
        self.deadline = None;
        if let Phase::Streaming { source, .. } = &mut self.phase {
            source.wait_longer(limit);
        }
    }

    /// The response has ended.
    pub(super) fn done(&mut self) {
        if let Phase::Streaming { source, .. } = &mut self.phase {
            source.done();
        }
        self.phase = Phase::Over;
    }
}
