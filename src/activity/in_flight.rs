//! Calls that have begun and not ended, of those that leave a mark: should this process end first, the
//! mark becomes a record (ACT-1).
//!
//! ```text
//! begin ──▶ unmarked ── a batch is written ──▶ marked ── the call ends ──▶ its record, no mark
//!              │                                  │
//!              └─ the call ends: no mark at all   └─ the process ends: a record, status unknown
//! ```
//!
//! Most calls end before the batch in which they began is written, and cost the writer nothing: what is
//! known of a call waits here, and the writer asks for the calls without a mark once for each batch.
//! A mark comes and goes in the batches of records, so that there is always either the mark or the
//! record. It lies apart from the chain, in the state keyspace, under its call's ticket.
//!
//! What a mark says is `begun`'s; what is made at the next start of those that are left, `unfinished`'s.
//!
//! There are no more calls here than there is room for in the log: each has a slot that is counted.

use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;

use super::record::Entry;

/// Parts with a lock of their own. A thread uses one of them for all calls that begin on it, so that
/// workers do not wait for each other.
const SHARDS: usize = 16;

/// The calls in flight. Shared by workers, which add and take, and the writer, which marks.
#[derive(Debug, Default)]
pub(super) struct CallsInFlight {
    shards: [CachePadded<Mutex<Shard>>; SHARDS],
}

#[derive(Debug, Default)]
struct Shard {
    calls: Vec<Option<Call>>,
    /// The places in `calls` that are empty.
    free: Vec<usize>,
    /// Calls without a ticket.
    unmarked: usize,
}

#[derive(Debug)]
struct Call {
    /// What was known when it began.
    known: Box<Entry>,
    /// Of a call whose mark is in the store, or in a batch on its way there.
    ticket: Option<u64>,
}

/// Where a call is, for its slot.
#[derive(Debug)]
pub(super) struct CallPlace {
    shard: usize,
    index: usize,
}

impl CallsInFlight {
    /// A call begins, of which so much is known.
    pub(super) fn begin(&self, known: Box<Entry>) -> CallPlace {
        let shard = thread_number() % SHARDS;
        let call = Some(Call { known, ticket: None });
        let index = self.shard(shard).map_or(0, |mut shard| {
            shard.unmarked += 1;
            match shard.free.pop() {
                Some(index) => {
                    if let Some(place) = shard.calls.get_mut(index) {
                        *place = call;
                    }
                    index
                }
                None => {
                    shard.calls.push(call);
                    shard.calls.len() - 1
                }
            }
        });
        CallPlace { shard, index }
    }

    /// A call ends: what was known when it began, and its ticket if it has a mark, which goes with the
    /// batch that the record is in.
    pub(super) fn end(&self, place: CallPlace) -> Option<(Box<Entry>, Option<u64>)> {
        let mut shard = self.shard(place.shard)?;
        let Call { known, ticket } = shard.calls.get_mut(place.index)?.take()?;
        shard.free.push(place.index);
        shard.unmarked -= usize::from(ticket.is_none());
        Some((known, ticket))
    }

    /// Whether a call has no mark yet.
    pub(super) fn has_unmarked(&self) -> bool {
        self.shards.iter().any(|shard| shard.lock().unmarked > 0)
    }

    /// The calls without a mark, in the order in which they began.
    pub(super) fn unmarked(&self) -> Vec<CallPlace> {
        let mut found = Vec::new();
        for (number, shard) in self.shards.iter().enumerate() {
            let shard = shard.lock();
            if shard.unmarked == 0 {
                continue;
            }
            let unmarked = shard.calls.iter().enumerate().filter_map(|(index, call)| {
                let call = call.as_ref().filter(|call| call.ticket.is_none())?;
                Some((call.known.draft.started, CallPlace { shard: number, index }))
            });
            found.extend(unmarked);
        }
        found.sort_by_key(|(started, _)| *started);
        found.into_iter().map(|(_, place)| place).collect()
    }

    /// Gives the call at `place` a ticket, and a copy of what is known of it for its mark; `None` if
    /// the call has ended. Another that began there since is as good: it has no mark either.
    pub(super) fn mark(&self, place: &CallPlace, ticket: u64) -> Option<Box<Entry>> {
        let mut shard = self.shard(place.shard)?;
        let call = shard.calls.get_mut(place.index)?.as_mut()?;
        if call.ticket.is_some() {
            return None;
        }
        call.ticket = Some(ticket);
        let known = call.known.clone();
        shard.unmarked -= 1;
        Some(known)
    }

    fn shard(&self, number: usize) -> Option<parking_lot::MutexGuard<'_, Shard>> {
        self.shards.get(number).map(|shard| shard.lock())
    }
}

/// The number of this thread among those that have begun calls.
fn thread_number() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: usize = THREADS.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.with(|number| *number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::activity::record::{Draft, Source, Status, Type};

    fn call(started: u64) -> Box<Entry> {
        let mut draft = Draft::new(Type::ToolCall, Source::Mcp, Status::Error);
        draft.started = started;
        draft.into()
    }

    /// Marks all that have no mark; when they began.
    fn mark_all(calls: &CallsInFlight, ticket: u64) -> Vec<u64> {
        let unmarked = calls.unmarked();
        let marked = unmarked.iter().zip(ticket..);
        marked.map(|(place, ticket)| calls.mark(place, ticket).unwrap().draft.started).collect()
    }

    #[test]
    fn a_call_is_marked_once_in_the_order_of_beginning_and_ends_with_its_ticket() {
        let calls = CallsInFlight::default();
        let mut places: Vec<_> = [5, 3, 9].map(|started| calls.begin(call(started))).into();
        let short = calls.end(places.remove(2)).unwrap();
        assert_eq!((short.0.draft.started, short.1), (9, None), "it has left no mark");
        assert!(calls.has_unmarked());
        assert_eq!(mark_all(&calls, 7), [3, 5]);
        assert!(!calls.has_unmarked() && calls.unmarked().is_empty());
        let tickets: Vec<_> = places.into_iter().map(|place| calls.end(place).unwrap().1).collect();
        assert_eq!(tickets, [Some(8), Some(7)]);
    }

    #[test]
    fn a_call_that_ends_while_it_is_to_be_marked_is_not() {
        let calls = CallsInFlight::default();
        let place = calls.begin(call(1));
        let unmarked = calls.unmarked();
        assert_eq!(calls.end(place).unwrap().1, None);
        assert!(calls.mark(&unmarked[0], 1).is_none());
        // Its place was taken by another, which is marked in its stead.
        let next = calls.begin(call(2));
        assert_eq!(calls.mark(&unmarked[0], 2).unwrap().draft.started, 2);
        assert!(calls.mark(&unmarked[0], 3).is_none());
        assert!(!calls.has_unmarked());
        assert_eq!(calls.end(next).unwrap().1, Some(2));
    }

    #[test]
    fn places_are_used_again_whoever_ends_the_call() {
        let calls = CallsInFlight::default();
        for round in 0..10 {
            let places: Vec<_> = (0..3).map(|n| calls.begin(call(n))).collect();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    places.into_iter().for_each(|place| assert!(calls.end(place).is_some()));
                });
                // Another worker, with a shard of its own.
                scope.spawn(|| calls.end(calls.begin(call(round))));
            });
        }
        let places: Vec<_> =
            calls.shards.iter().map(|it| it.lock().calls.len()).filter(|it| *it > 0).collect();
        assert!(places.iter().all(|it| *it <= 3) && places.contains(&3), "{places:?}");
        assert!(!calls.has_unmarked());
    }
}
