//! How a reply leaves a call: piece by piece, within one task.
//!
//! A call is a future; the face that answers the client polls it and takes the pieces it puts
//! down. Both sides live in one task, so there is no channel, no wake-up and no lock between them,
//! and a face that stops polling is back-pressure by itself.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use thiserror::Error;

use super::refusal::Refusal;
use crate::output::AnswerMember;
use crate::wire::splice::Splice;

/// One piece of a reply, in the order they leave.
#[derive(Debug)]
pub enum Piece {
    /// A complete message of the upstream that came before its answer, as its client may have it.
    Notification(Bytes),
    /// The same, and the client is to answer it: its id is one of [`Client`]'s own.
    ///
    /// [`Client`]: crate::proxy::client::Client
    Request(Bytes),
    /// Nothing to say, but that the call goes on: the reply becomes a stream, where it can be one.
    Alive,
    /// The whole value of the answer's member, and the reply is complete.
    Whole(AnswerMember, Splice),
    /// The answer begins; its value follows as [`Piece::Data`] until the reply ends.
    Begin(AnswerMember),
    /// The next bytes of the answer's value.
    Data(Splice),
    /// There is no answer: what each face makes of it is its own affair.
    Refused(Refusal),
}

/// The reply broke off after its first byte; the face must not end it as if it were whole.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the reply was broken off: {0}")]
pub struct Aborted(pub String);

/// The call's side: where pieces are put down.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    shared: Rc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    slot: RefCell<Option<Piece>>,
    /// The client gave the call up; it is dropped in the next moment.
    cancelled: Cell<bool>,
}

impl Reply {
    /// Puts a piece down and waits until it was taken.
    pub async fn send(&self, piece: Piece) {
        self.put(piece);
        // No waker: the face that takes the piece polls the call again.
        poll_fn(
            |_| if self.shared.slot.borrow().is_some() { Poll::Pending } else { Poll::Ready(()) },
        )
        .await;
    }

    /// Puts the last piece down without waiting; the call is expected to end now.
    pub fn put(&self, piece: Piece) {
        *self.shared.slot.borrow_mut() = Some(piece);
    }

    /// True while the call is being dropped because its client gave it up.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.shared.cancelled.get()
    }

    fn take(&self) -> Option<Piece> {
        self.shared.slot.borrow_mut().take()
    }
}

type Call = Pin<Box<dyn Future<Output = Result<(), Aborted>>>>;

/// The face's side: a call under way. Dropping it cancels the call.
pub struct Running {
    call: Option<Call>,
    /// How the call ended, until [`Running::poll_piece`] has returned it.
    aborted: Option<Aborted>,
    reply: Reply,
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running").field("ended", &self.call.is_none()).finish_non_exhaustive()
    }
}

impl Running {
    /// Starts the call that `make` returns; nothing happens until the first poll.
    pub fn new<F>(make: impl FnOnce(Reply) -> F) -> Self
    where
        F: Future<Output = Result<(), Aborted>> + 'static,
    {
        let reply = Reply::default();
        // The memory first, so that the call is written there and not copied whole into it.
        let call = Box::into_pin(Box::write(Box::new_uninit(), make(reply.clone())));
        Self { call: Some(call), aborted: None, reply }
    }

    /// The next piece; `None` when the reply is complete.
    pub fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, Aborted>>> {
        if let Some(piece) = self.reply.take() {
            return Poll::Ready(Some(Ok(piece)));
        }
        if let Some(call) = self.call.as_mut()
            && let Poll::Ready(ended) = call.as_mut().poll(cx)
        {
            self.call = None;
            self.aborted = ended.err();
        }
        match self.reply.take() {
            Some(piece) => Poll::Ready(Some(Ok(piece))),
            None if self.call.is_some() => Poll::Pending,
            None => Poll::Ready(self.aborted.take().map(Err)),
        }
    }

    /// The next piece; `None` when the reply is complete.
    pub async fn next(&mut self) -> Option<Result<Piece, Aborted>> {
        poll_fn(|cx| self.poll_piece(cx)).await
    }

    /// Drops the call because its client gave it up, which is then on record.
    pub fn cancel(self) {
        self.reply.shared.cancelled.set(true);
    }

    /// What is left to do after the last piece was taken, if anything is.
    #[must_use]
    pub fn rest(self) -> Option<Call> {
        self.call
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poll(running: &mut Running) -> Poll<Option<Result<Piece, Aborted>>> {
        running.poll_piece(&mut Context::from_waker(std::task::Waker::noop()))
    }

    #[test]
    fn pieces_leave_one_by_one_and_the_call_waits_for_each() {
        let progress = Rc::new(RefCell::new(0));
        let seen = Rc::clone(&progress);
        let mut running = Running::new(|reply| async move {
            reply.send(Piece::Begin(AnswerMember::Result)).await;
            *seen.borrow_mut() += 1;
            reply.send(Piece::Data(Splice::new())).await;
            *seen.borrow_mut() += 1;
            Ok(())
        });
        assert!(matches!(poll(&mut running), Poll::Ready(Some(Ok(Piece::Begin(_))))));
        assert_eq!(
            *progress.borrow(),
            0,
            "nothing goes on before the piece was taken and asked on"
        );
        assert!(matches!(poll(&mut running), Poll::Ready(Some(Ok(Piece::Data(_))))));
        assert_eq!(*progress.borrow(), 1);
        assert!(matches!(poll(&mut running), Poll::Ready(None)));
        assert_eq!(*progress.borrow(), 2);
        assert!(matches!(poll(&mut running), Poll::Ready(None)));
    }

    #[test]
    fn an_abort_comes_after_the_pieces_before_it() {
        let mut running = Running::new(|reply| async move {
            reply.put(Piece::Begin(AnswerMember::Result));
            Err(Aborted("gone".into()))
        });
        assert!(matches!(poll(&mut running), Poll::Ready(Some(Ok(Piece::Begin(_))))));
        assert!(matches!(poll(&mut running), Poll::Ready(Some(Err(Aborted(_))))));
        assert!(matches!(poll(&mut running), Poll::Ready(None)));
    }
}
