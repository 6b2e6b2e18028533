//! Calls in flight and the marks they leave in the store: if the process ends during a call, the call's mark
//! becomes a record at the next start (ACT-1).
//!
//! ```text
//! begin ──▶ unmarked ── a batch is written ──▶ marked ── the call ends ──▶ its record, no mark
//!              │                                  │
//!              └─ the call ends: no mark at all   └─ the process ends: a record, status unknown
//! ```
//!
//! Most calls end before the batch in which they began is written and cost the writer nothing: the call's
//! entry waits here, and once per batch the writer asks for the calls without a mark. Marks are added and
//! removed in the batches of records, so that there is always either the mark or the record. They are stored
//! outside the chain, in the state keyspace, under the call's ticket. `recover` turns marks of an earlier
//! process into records.
//!
//! A mark is redacted and limited like a record. `chain` assigns ids, hashes and times, which depend only on the log,
//! so a reader of a copy sees the records that the next start will create.
//!
//! ```text
//! mark     version · head · body · (verdict · metadata)*; all but the numbers are length-prefixed
//! ```
//!
//! The number of calls here is bounded by the log's capacity, because each holds a counted slot.

use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;

use super::bytes::{DecodeError, Reader, VERSION, put_bytes};
use super::record::{Entry, Verdict};

/// Number of shards, each with its own lock. A thread uses one shard for all calls that begin on it, so that workers do
/// not contend.
const SHARDS: usize = 16;

/// The calls in flight. Workers add and remove them, the writer marks them.
#[derive(Debug, Default)]
pub(super) struct CallsInFlight {
    shards: [CachePadded<Mutex<Shard>>; SHARDS],
}

#[derive(Debug, Default)]
struct Shard {
    calls: Vec<Option<Call>>,
    /// Indexes of empty places in `calls`.
    free: Vec<usize>,
    unmarked: usize,
}

#[derive(Debug)]
struct Call {
    /// The entry as known when the call began.
    entry: Box<Entry>,
    /// Set once the call's mark is in the store, or in a batch that is about to be written.
    ticket: Option<u64>,
}

/// Position of a call, kept by its slot.
#[derive(Debug)]
pub(super) struct CallPlace {
    shard: usize,
    index: usize,
}

impl CallsInFlight {
    /// Registers a call with the entry known so far.
    pub(super) fn begin(&self, entry: Box<Entry>) -> CallPlace {
        let shard = thread_number() % SHARDS;
        let call = Some(Call { entry, ticket: None });
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

    /// Removes a call. Returns its entry, and its ticket if it has a mark, which must be removed in the batch
    /// of the record.
    pub(super) fn end(&self, place: CallPlace) -> Option<(Box<Entry>, Option<u64>)> {
        let mut shard = self.shard(place.shard)?;
        let Call { entry, ticket } = shard.calls.get_mut(place.index)?.take()?;
        shard.free.push(place.index);
        shard.unmarked -= usize::from(ticket.is_none());
        Some((entry, ticket))
    }

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
                Some((call.entry.draft.started, CallPlace { shard: number, index }))
            });
            found.extend(unmarked);
        }
        found.sort_by_key(|(started, _)| *started);
        found.into_iter().map(|(_, place)| place).collect()
    }

    /// Assigns a ticket to the call at `place` and returns a copy of its entry for the mark; `None` if the call has
    /// ended. If another call has begun at that place in the meantime, that call is marked instead, because it has no
    /// mark either.
    pub(super) fn mark(&self, place: &CallPlace, ticket: u64) -> Option<Box<Entry>> {
        let mut shard = self.shard(place.shard)?;
        let call = shard.calls.get_mut(place.index)?.as_mut()?;
        if call.ticket.is_some() {
            return None;
        }
        call.ticket = Some(ticket);
        let entry = call.entry.clone();
        shard.unmarked -= 1;
        Some(entry)
    }

    fn shard(&self, number: usize) -> Option<parking_lot::MutexGuard<'_, Shard>> {
        self.shards.get(number).map(|shard| shard.lock())
    }
}

/// Number of this thread, counted in the order in which threads began their first call.
fn thread_number() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: usize = THREADS.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.with(|number| *number)
}

/// Error text of the record of a call whose outcome is unknown.
pub(crate) const OUTCOME_UNKNOWN: &str =
    "sent or about to be sent, outcome not known: mcpproxy ended during the call";
/// Contents of a call's mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallMark<'a> {
    pub head: &'a [u8],
    pub body: &'a [u8],
    /// Decisions made before the call was sent, with their metadata.
    pub decisions: Vec<(Verdict, &'a [u8])>,
}

impl<'a> CallMark<'a> {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        put_bytes(&mut out, self.head);
        put_bytes(&mut out, self.body);
        for (verdict, metadata) in &self.decisions {
            out.push(verdict.code());
            put_bytes(&mut out, metadata);
        }
        out
    }

    /// Decodes the output of [`Self::encode`], without decoding head and body.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader(bytes);
        reader.version()?;
        let (head, body) = (reader.bytes()?, reader.bytes()?);
        let mut decisions = Vec::new();
        while !reader.0.is_empty() {
            let verdict = Verdict::from_code(reader.byte()?).ok_or(DecodeError::Value)?;
            decisions.push((verdict, reader.bytes()?));
        }
        Ok(Self { head, body, decisions })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Draft, Source, Status, Type};

    fn call(started: u64) -> Box<Entry> {
        let mut draft = Draft::new(Type::ToolCall, Source::Mcp, Status::Error);
        draft.started = started;
        draft.into()
    }

    /// Marks all unmarked calls and returns their start times.
    fn mark_all(calls: &CallsInFlight, ticket: u64) -> Vec<u64> {
        let unmarked = calls.unmarked();
        let marked = unmarked.iter().zip(ticket..);
        marked.map(|(place, ticket)| calls.mark(place, ticket).unwrap().draft.started).collect()
    }

    #[test]
    fn calls_are_marked_once_in_start_order_and_end_with_their_ticket() {
        let calls = CallsInFlight::default();
        let mut places: Vec<_> = [5, 3, 9].map(|started| calls.begin(call(started))).into();
        let short = calls.end(places.remove(2)).unwrap();
        assert_eq!((short.0.draft.started, short.1), (9, None), "the call was never marked");
        assert!(calls.has_unmarked());
        assert_eq!(mark_all(&calls, 7), [3, 5]);
        assert!(!calls.has_unmarked() && calls.unmarked().is_empty());
        let tickets: Vec<_> = places.into_iter().map(|place| calls.end(place).unwrap().1).collect();
        assert_eq!(tickets, [Some(8), Some(7)]);
    }

    #[test]
    fn call_that_ends_before_its_mark_is_not_marked() {
        let calls = CallsInFlight::default();
        let place = calls.begin(call(1));
        let unmarked = calls.unmarked();
        assert_eq!(calls.end(place).unwrap().1, None);
        assert!(calls.mark(&unmarked[0], 1).is_none());
        // Another call that reused the place is marked instead.
        let next = calls.begin(call(2));
        assert_eq!(calls.mark(&unmarked[0], 2).unwrap().draft.started, 2);
        assert!(calls.mark(&unmarked[0], 3).is_none());
        assert!(!calls.has_unmarked());
        assert_eq!(calls.end(next).unwrap().1, Some(2));
    }

    #[test]
    fn places_are_reused_when_another_thread_ends_the_call() {
        let calls = CallsInFlight::default();
        for round in 0..10 {
            let places: Vec<_> = (0..3).map(|n| calls.begin(call(n))).collect();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    places.into_iter().for_each(|place| assert!(calls.end(place).is_some()));
                });
                // This thread is another worker, which has its own shard.
                scope.spawn(|| calls.end(calls.begin(call(round))));
            });
        }
        let places: Vec<_> =
            calls.shards.iter().map(|it| it.lock().calls.len()).filter(|it| *it > 0).collect();
        assert!(places.iter().all(|it| *it <= 3) && places.contains(&3), "{places:?}");
        assert!(!calls.has_unmarked());
    }
}

#[cfg(test)]
mod marks {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn mark_round_trips_and_a_truncated_mark_does_not() {
        let decisions = vec![(Verdict::Warning, &b"{}"[..]), (Verdict::Blocked, b"")];
        let mark = CallMark { head: b"head", body: b"", decisions };
        let bytes = mark.encode();
        assert_eq!(CallMark::decode(&bytes).as_ref(), Ok(&mark));
        for len in 0..bytes.len() {
            assert_ne!(CallMark::decode(&bytes[..len]).as_ref(), Ok(&mark), "cut at {len}");
        }
        let newer = [&[VERSION + 1], &bytes[1..]].concat();
        assert_eq!(CallMark::decode(&newer), Err(DecodeError::Version(VERSION + 1)));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_read_or_rejected(bytes: Vec<u8>) {
            if let Ok(mark) = CallMark::decode(&bytes) {
                let encoded = mark.encode();
                prop_assert_eq!(CallMark::decode(&encoded), Ok(mark));
            }
        }
    }
}
