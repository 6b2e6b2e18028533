//! Registry of calls in flight, for cancellation by their client. Each connection has one table, locked by its own
//! calls and by rare cancellations. A session keeps the tables of its connections; sessions may share a connection,
//! so a call is keyed by session and id.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};

use mcpproxy_gateway::proxy::reply::{Aborted, Piece, Running};
use mcpproxy_protocol::wire::splice::Splice;
use mcpproxy_runtime::io::clock;

/// Client that a call belongs to. No owner can find or cancel another's call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner(u64);

impl Owner {
    /// The only client of a pipe.
    pub(crate) const PIPE: Self = Self(0);

    /// The session with this number, which is not 0.
    pub(crate) const fn session(number: u64) -> Self {
        Self(number)
    }
}

/// Calls of one connection.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    /// The vector never shrinks, so that only a connection's first call allocates.
    calls: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    began: Instant,
    owner: Owner,
    /// Raw id of the request.
    id: Bytes,
    canceled: bool,
    waker: Option<Waker>,
}

impl InFlight {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }

    /// Registers a call until the returned value is dropped.
    pub(crate) fn watch(self: &Arc<Self>, owner: Owner, id: &Bytes, running: Running) -> Watched {
        let mut table = self.table();
        let number = table.next;
        table.next += 1;
        let entry = Entry {
            number,
            began: clock::lately(),
            owner,
            id: id.clone(),
            canceled: false,
            waker: None,
        };
        table.calls.push(entry);
        drop(table);
        let ticket = Ticket { calls: Arc::clone(self), number };
        Watched { running: Some(running), ticket: Some(ticket) }
    }

    /// Cancels the newest call of the owner with this raw id; returns false if there is none. A client that reuses an
    /// id has abandoned the earlier call.
    pub(crate) fn cancel(&self, owner: Owner, id: &[u8]) -> bool {
        let mut table = self.table();
        let theirs = table
            .calls
            .iter_mut()
            .filter(|entry| entry.owner == owner && *entry.id == *id && !entry.canceled);
        let Some(newest) = theirs.max_by_key(|entry| (entry.began, entry.number)) else {
            return false;
        };
        newest.canceled = true;
        let waker = newest.waker.take();
        drop(table);
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }

    /// Start time of the call that [`cancel`](Self::cancel) would cancel.
    pub(crate) fn newest(&self, owner: Owner, id: &[u8]) -> Option<Instant> {
        let table = self.table();
        let theirs = table
            .calls
            .iter()
            .filter(|entry| entry.owner == owner && *entry.id == *id && !entry.canceled);
        theirs.map(|entry| entry.began).max()
    }

    /// Whether the owner has a call in flight.
    pub(crate) fn has(&self, owner: Owner) -> bool {
        self.table().calls.iter().any(|entry| entry.owner == owner)
    }
}

/// Registration of a call; removes it on drop.
#[derive(Debug)]
struct Ticket {
    calls: Arc<InFlight>,
    number: u64,
}

impl Ticket {
    fn is_canceled(&self, cx: &Context<'_>) -> bool {
        let mut table = self.calls.table();
        let Some(entry) = table.calls.iter_mut().find(|entry| entry.number == self.number) else {
            return false;
        };
        if !entry.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            entry.waker = Some(cx.waker().clone());
        }
        entry.canceled
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

/// Next step of a reply.
#[derive(Debug)]
pub(crate) enum Taken {
    Piece(Piece),
    Over,
    /// The reply broke off after its first byte.
    Broken(Aborted),
    /// The client canceled the call and expects no response.
    Canceled,
}

impl From<Running> for Watched {
    /// A reply that is canceled only by dropping it.
    fn from(running: Running) -> Self {
        Self { running: Some(running), ticket: None }
    }
}

impl Watched {
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Taken> {
        if self.ticket.as_ref().is_some_and(|ticket| ticket.is_canceled(cx)) {
            self.cancel();
        }
        let Some(running) = &mut self.running else { return Poll::Ready(Taken::Canceled) };
        running.poll_piece(cx).map(|next| match next {
            Some(Ok(piece)) => Taken::Piece(piece),
            Some(Err(aborted)) => Taken::Broken(aborted),
            None => Taken::Over,
        })
    }

    pub(crate) async fn next(&mut self) -> Taken {
        poll_fn(|cx| self.poll(cx)).await
    }

    /// Cancels the call; its record names the client as the cause.
    pub(crate) fn cancel(&mut self) {
        if let Some(running) = self.running.take() {
            running.cancel();
        }
    }

    /// Marks the connection as lost: the response goes to the replay buffer. `capacity` checks whether the rest of the
    /// response fits there.
    pub(crate) fn answers_to(&self, capacity: impl Fn(&Splice) -> Result<(), String> + 'static) {
        if let Some(running) = &self.running {
            running.answers_to(capacity);
        }
    }

    /// Cancels the call because nobody can receive its response; `why` goes into the record.
    pub(crate) fn give_up(&mut self, why: String) {
        if let Some(running) = self.running.take() {
            running.give_up(why);
        }
    }

    /// Work that remains after the last piece of the reply; it can no longer be canceled.
    pub(crate) fn rest(mut self) -> Option<Running> {
        self.running.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canceled_call_is_removed_from_the_table() {
        let calls = Arc::new(InFlight::default());
        let (one, two) = (Bytes::from_static(b"1"), Bytes::from_static(b"\"1\""));
        let never = || Running::new(|_| std::future::pending());
        let mut first = calls.watch(Owner::PIPE, &one, never());
        let mut second = calls.watch(Owner::PIPE, &two, never());
        let cx = &mut Context::from_waker(Waker::noop());
        assert!(first.poll(cx).is_pending() && second.poll(cx).is_pending());
        assert!(!calls.cancel(Owner::PIPE, b"2"), "nobody's");
        assert!(calls.cancel(Owner::PIPE, b"1"));
        assert!(matches!(first.poll(cx), Poll::Ready(Taken::Canceled)));
        assert!(second.poll(cx).is_pending(), "a string id differs from a number");
        drop((first, second));
        assert!(!calls.has(Owner::PIPE));
    }

    #[test]
    fn pro_10_only_the_newest_call_under_a_repeated_id_is_canceled() {
        let calls = Arc::new(InFlight::default());
        let id = Bytes::from_static(b"1");
        let never = || Running::new(|_| std::future::pending());
        let [mut first, mut second] = [(); 2].map(|()| calls.watch(Owner::PIPE, &id, never()));
        let cx = &mut Context::from_waker(Waker::noop());
        assert!(calls.cancel(Owner::PIPE, b"1"));
        assert!(first.poll(cx).is_pending());
        assert!(matches!(second.poll(cx), Poll::Ready(Taken::Canceled)));
        assert!(calls.cancel(Owner::PIPE, b"1"), "the next cancellation cancels the other one");
        assert!(matches!(first.poll(cx), Poll::Ready(Taken::Canceled)));
    }

    #[test]
    fn equal_ids_of_two_sessions_are_distinct_calls() {
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
        assert!(matches!(theirs.poll(cx), Poll::Ready(Taken::Canceled)));
    }
}
