//! Calls in flight, so that their client can cancel them.
//!
//! One table for each connection: it is locked by its own calls alone, and by the rare
//! cancellation. A session keeps the tables of its connections. Several sessions may share a
//! connection, so a call is found by its session and its id together.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};

use crate::proxy::reply::{Aborted, Piece, Running};

/// Whose a call is. No owner can find or cancel a call of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner(u64);

impl Owner {
    /// The client of a pipe, which has no other.
    pub const PIPE: Self = Self(0);

    /// The session of that number, which is not 0.
    #[must_use]
    pub const fn session(number: u64) -> Self {
        Self(number)
    }
}

/// The calls of one connection.
#[derive(Debug, Default)]
pub struct InFlight {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    /// Never shrunk, so that only a connection's first call allocates.
    calls: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    owner: Owner,
    /// The raw id of the request.
    id: Bytes,
    cancelled: bool,
    waker: Option<Waker>,
}

impl InFlight {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }

    /// Enters a call; it is in the table until the returned value is dropped.
    #[must_use]
    pub fn watch(self: &Arc<Self>, owner: Owner, id: &Bytes, running: Running) -> Watched {
        let mut table = self.table();
        let number = table.next;
        table.next += 1;
        let entry = Entry { number, owner, id: id.clone(), cancelled: false, waker: None };
        table.calls.push(entry);
        drop(table);
        let ticket = Ticket { calls: Arc::clone(self), number };
        Watched { running: Some(running), ticket: Some(ticket) }
    }

    /// Cancels the owner's calls of that raw id; false if there is none.
    pub fn cancel(&self, owner: Owner, id: &[u8]) -> bool {
        let mut wakers = Vec::new();
        let mut found = false;
        let theirs = |entry: &&mut Entry| entry.owner == owner && *entry.id == *id;
        for entry in self.table().calls.iter_mut().filter(theirs) {
            found = true;
            entry.cancelled = true;
            wakers.extend(entry.waker.take());
        }
        wakers.into_iter().for_each(Waker::wake);
        found
    }

    /// True while a call of that owner is in the table.
    #[must_use]
    pub fn has(&self, owner: Owner) -> bool {
        self.table().calls.iter().any(|entry| entry.owner == owner)
    }
}

/// A call's place in the table.
#[derive(Debug)]
struct Ticket {
    calls: Arc<InFlight>,
    number: u64,
}

impl Ticket {
    fn is_cancelled(&self, cx: &Context<'_>) -> bool {
        let mut table = self.calls.table();
        let Some(entry) = table.calls.iter_mut().find(|entry| entry.number == self.number) else {
            return false;
        };
        if !entry.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            entry.waker = Some(cx.waker().clone());
        }
        entry.cancelled
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut table = self.calls.table();
        if let Some(at) = table.calls.iter().position(|entry| entry.number == self.number) {
            table.calls.swap_remove(at);
        }
    }
}

/// A reply in progress that its client can cancel.
#[derive(Debug)]
pub struct Watched {
    running: Option<Running>,
    ticket: Option<Ticket>,
}

/// The next step of a reply.
#[derive(Debug)]
pub enum Taken {
    /// A piece.
    Piece(Piece),
    /// It is complete.
    Over,
    /// It broke off after its first byte.
    Broken(Aborted),
    /// Its client has cancelled it and expects no answer.
    Cancelled,
}

impl From<Running> for Watched {
    /// A reply that cannot be cancelled but by dropping it.
    fn from(running: Running) -> Self {
        Self { running: Some(running), ticket: None }
    }
}

impl Watched {
    /// Polls for the next step.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Taken> {
        if self.ticket.as_ref().is_some_and(|ticket| ticket.is_cancelled(cx)) {
            self.cancel();
        }
        let Some(running) = &mut self.running else { return Poll::Ready(Taken::Cancelled) };
        running.poll_piece(cx).map(|next| match next {
            Some(Ok(piece)) => Taken::Piece(piece),
            Some(Err(aborted)) => Taken::Broken(aborted),
            None => Taken::Over,
        })
    }

    /// The next step.
    pub async fn next(&mut self) -> Taken {
        poll_fn(|cx| self.poll(cx)).await
    }

    /// Cancels the call; its record names the client as the cause.
    pub fn cancel(&mut self) {
        if let Some(running) = self.running.take() {
            running.cancel();
        }
    }

    /// The rest of the call after its last piece; it cannot be cancelled any more.
    #[must_use]
    pub fn rest(mut self) -> Option<Running> {
        self.running.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_ends_by_its_id_and_leaves_no_trace() {
        let calls = Arc::new(InFlight::default());
        let (one, two) = (Bytes::from_static(b"1"), Bytes::from_static(b"\"1\""));
        let never = || Running::new(|_| std::future::pending());
        let mut first = calls.watch(Owner::PIPE, &one, never());
        let mut second = calls.watch(Owner::PIPE, &two, never());
        let cx = &mut Context::from_waker(Waker::noop());
        assert!(first.poll(cx).is_pending() && second.poll(cx).is_pending());
        assert!(!calls.cancel(Owner::PIPE, b"2"), "nobody's");
        assert!(calls.cancel(Owner::PIPE, b"1"));
        assert!(matches!(first.poll(cx), Poll::Ready(Taken::Cancelled)));
        assert!(second.poll(cx).is_pending(), "a string is another id than a number");
        drop((first, second));
        assert!(!calls.has(Owner::PIPE));
    }

    #[test]
    fn the_same_id_of_two_sessions_is_two_calls() {
        let calls = Arc::new(InFlight::default());
        let id = Bytes::from_static(b"1");
        let never = || Running::new(|_| std::future::pending());
        let [ours, other, third] = [1, 2, 3].map(Owner::session);
        let mut mine = calls.watch(ours, &id, never());
        let mut theirs = calls.watch(other, &id, never());
        assert!(!calls.cancel(third, b"1") && !calls.has(third));
        assert!(calls.cancel(other, b"1"));
        let cx = &mut Context::from_waker(Waker::noop());
        assert!(mine.poll(cx).is_pending());
        assert!(matches!(theirs.poll(cx), Poll::Ready(Taken::Cancelled)));
    }
}
