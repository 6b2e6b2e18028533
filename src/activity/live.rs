//! Records as they are stored, for live readers: read back and rendered once, whoever many read.
//!
//! ```text
//! writer ── wrote up to n ─▶ the readers' thread ── a portion ─▶ what is recent ─▶ every reader
//!                             (low priority)                     (shared bytes)
//! ```
//!
//! What was rendered last is kept for all readers together, within a bound. Nobody waits
//! for a reader: one that is further behind is told so, and reads the log itself. A reader takes no
//! lock but that of the bell which wakes it.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use tokio::sync::Notify;

use super::handle::{Activity, QueryError};
use super::query::Filter;
use super::record::{Id, Record};
use super::shared::Shared;

/// Bytes of rendered records that are kept for live readers, beside the portion rendered last.
const RECENT_BYTES: usize = 4 << 20;
/// Most records that are read and rendered at a time: a millisecond's work, so that whoever else
/// waits for the thread does not wait long.
const PORTION_RECORDS: usize = 128;
/// The same in bytes, where payloads are kept at such a length.
const PORTION_BYTES: usize = 1 << 20;
/// Bytes of a record beside its payloads, as most have.
const RECORD_BYTES: usize = 2048;
/// Records the rendering may be behind the log before it goes on at the log's end. Readers then
/// read themselves what was left out.
const MOST_BEHIND: u64 = 16 * 1024;

/// Writes one record as readers get it.
pub type Render = fn(&Record, &mut Vec<u8>);

/// Some records after each other, rendered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Portion {
    bytes: Bytes,
    /// Each record's id, and where it ends.
    ends: Arc<[(Id, usize)]>,
}

impl Portion {
    /// Renders records that follow each other.
    #[must_use]
    pub fn of(records: &[Record], render: Render) -> Self {
        let mut bytes = Vec::new();
        let ends = records.iter().map(|record| {
            render(record, &mut bytes);
            (record.id, bytes.len())
        });
        let ends = ends.collect();
        Self { bytes: bytes.into(), ends }
    }

    /// The rendered bytes.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The last record in it; `None` for an empty one.
    #[must_use]
    pub fn last(&self) -> Option<Id> {
        self.ends.last().map(|(id, _)| *id)
    }

    /// What of it follows the record of that number, and its last record.
    fn after(&self, seq: u64) -> Option<(Bytes, Id)> {
        let last = self.last().filter(|last| last.seq() > seq)?;
        let passed = self.ends.partition_point(|(id, _)| id.seq() <= seq);
        let start = passed.checked_sub(1).and_then(|at| self.ends.get(at)).map_or(0, |end| end.1);
        Some((self.bytes.slice(start..), last))
    }
}

/// What was rendered last. Made anew for each portion, so that readers need no lock.
#[derive(Debug)]
struct Recent {
    portions: Vec<Portion>,
    /// The record before the first of them.
    before: u64,
    /// The last record of them.
    last: u64,
}

impl Recent {
    fn at(seq: u64) -> Self {
        Self { portions: Vec::new(), before: seq, last: seq }
    }

    /// The same with one more portion, which goes as far as record `last`.
    fn with(&self, portion: Portion, last: u64) -> Self {
        let mut bytes: usize = self.portions.iter().map(|it| it.bytes.len()).sum();
        let mut before = self.before;
        let gone = self.portions.iter().take_while(|oldest| {
            let goes = bytes > RECENT_BYTES;
            if goes {
                bytes -= oldest.bytes.len();
                before = oldest.last().map_or(before, Id::seq);
            }
            goes
        });
        let gone = gone.count();
        let kept = self.portions.iter().skip(gone).cloned();
        let portions = kept.chain((!portion.bytes.is_empty()).then_some(portion)).collect();
        Self { portions, before, last }
    }
}

/// What the writer, the readers' thread and live readers share.
#[derive(Debug, Default)]
pub(super) struct Hub {
    readers: AtomicUsize,
    /// The last record that can be read.
    stored: AtomicU64,
    /// Written by the readers' thread alone.
    recent: ArcSwapOption<Recent>,
    /// Rung when there is something new, or an end.
    bell: Notify,
}

impl Hub {
    /// The writer has written so far; true if somebody wants to know.
    pub(super) fn wrote(&self, seq: u64) -> bool {
        self.stored.store(seq, Ordering::SeqCst);
        self.readers.load(Ordering::SeqCst) > 0
    }

    /// Wakes every reader, to look again.
    pub(super) fn ring(&self) {
        self.bell.notify_waiters();
    }

    /// How many readers there are.
    pub(super) fn readers(&self) -> usize {
        self.readers.load(Ordering::SeqCst)
    }
}

impl Activity {
    /// Renders the next portion for live readers; true if there is more to render. For the readers'
    /// thread.
    pub(super) fn feed(&self, render: Render) -> bool {
        let hub = &self.shared.live;
        let recent = hub.recent.load_full();
        if hub.readers() == 0 {
            if recent.is_some() {
                hub.recent.store(None);
            }
            return false;
        }
        let stored = hub.stored.load(Ordering::SeqCst);
        let recent = recent.filter(|recent| stored.saturating_sub(recent.last) <= MOST_BEHIND);
        let next = match recent {
            None => Ok(Recent::at(stored)),
            Some(recent) if recent.last >= stored => return false,
            Some(recent) => self.portion(recent.last, render).map(|(portion, last)| {
                // Numbers that are lost have no record.
                recent.with(portion, last.max(recent.last + 1))
            }),
        };
        match next {
            Ok(next) => {
                let more = next.last < stored;
                hub.recent.store(Some(Arc::new(next)));
                hub.ring();
                more
            }
            Err(error) => {
                // Readers wait until the writer has written again.
                tracing::warn!(%error, "activity cannot be read for live readers");
                hub.recent.store(None);
                false
            }
        }
    }

    /// Records to be read at a time for live readers and exports.
    #[must_use]
    pub fn portion_records(&self) -> usize {
        let config = self.config();
        let payloads = config.max_payload_bytes.saturating_add(config.max_response_bytes);
        (PORTION_BYTES / payloads.saturating_add(RECORD_BYTES)).clamp(1, PORTION_RECORDS)
    }

    fn portion(&self, seq: u64, render: Render) -> Result<(Portion, u64), QueryError> {
        let (records, last) =
            self.stored()?.since(seq, &Filter::default(), self.portion_records())?;
        Ok((Portion::of(&records, render), last))
    }

    /// Records as they are stored, from after the one of that number on. All live readers get them
    /// in the same rendering.
    #[must_use]
    pub fn live(&self, after: u64, render: Render) -> Live {
        let shared = Arc::clone(&self.shared);
        // Another rendering than the first one's there cannot be: there is one kind of reader.
        let _ = shared.readers.render.set(render);
        shared.live.readers.fetch_add(1, Ordering::SeqCst);
        shared.readers.wake();
        Live { shared, seq: after }
    }
}

/// What a live reader is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LiveEvent {
    /// The next records, rendered, and the last of them.
    Records(Bytes, Id),
    /// The reader is so far behind that what comes next is only in the log.
    Behind,
    /// The log is closed.
    Closed,
}

/// A live reader.
pub struct Live {
    shared: Arc<Shared>,
    /// The last record it was given, or passed over.
    seq: u64,
}

impl std::fmt::Debug for Live {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Live").field("seq", &self.seq).finish_non_exhaustive()
    }
}

impl Live {
    /// The next event. Dropped before its end, it has taken nothing.
    pub async fn next(&mut self) -> LiveEvent {
        loop {
            let mut rung = pin!(self.shared.live.bell.notified());
            // Registered before the look, so that no ring falls between.
            rung.as_mut().enable();
            let event = self.look();
            if let Some(event) = event {
                if let LiveEvent::Records(_, last) = &event {
                    self.seq = last.seq();
                }
                return event;
            }
            rung.await;
        }
    }

    fn look(&self) -> Option<LiveEvent> {
        if self.shared.is_closed.load(Ordering::Acquire) {
            return Some(LiveEvent::Closed);
        }
        let recent = self.shared.live.recent.load();
        let recent = recent.as_ref()?;
        if self.seq < recent.before {
            return Some(LiveEvent::Behind);
        }
        let found = recent.portions.iter().find_map(|portion| portion.after(self.seq));
        found.map(|(bytes, last)| LiveEvent::Records(bytes, last))
    }

    /// The last record it was given, or passed over.
    #[must_use]
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// It has read the log by itself, as far as the record of that number.
    pub fn has_read(&mut self, seq: u64) {
        self.seq = self.seq.max(seq);
    }

    /// How many live readers there are.
    #[must_use]
    pub fn readers(&self) -> usize {
        self.shared.live.readers()
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        // Whoever is the last lets go of what is recent.
        if self.shared.live.readers.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.shared.readers.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::activity::record::NodeId;

    fn portion(seqs: std::ops::RangeInclusive<u64>, bytes: usize) -> Portion {
        let mut end = 0;
        let ends = seqs.map(|seq| {
            end += bytes;
            (Id::new(1, seq, NodeId([0; 16])), end)
        });
        let ends: Arc<[_]> = ends.collect();
        Portion { bytes: vec![b'x'; ends.len() * bytes].into(), ends }
    }

    #[test]
    fn a_reader_gets_what_follows_of_a_portion() {
        let portion = portion(5..=7, 10);
        for (seq, bytes) in [(0, 30), (4, 30), (5, 20), (6, 10)] {
            let (rest, last) = portion.after(seq).unwrap();
            assert_eq!((rest.len(), last.seq()), (bytes, 7), "{seq}");
        }
        assert_eq!(portion.after(7), None);
        assert_eq!(Portion::default().after(0), None);
    }

    #[test]
    fn what_is_recent_is_bounded_and_says_where_it_begins() {
        let mut recent = Recent::at(4);
        for n in 0..10 {
            let first = 5 + 3 * n;
            recent = recent.with(portion(first..=first + 2, RECENT_BYTES / 6), first + 2);
            let bytes: usize = recent.portions.iter().map(|it| it.bytes.len()).sum();
            assert!(bytes <= RECENT_BYTES + RECENT_BYTES / 2, "{bytes}");
        }
        assert_eq!(recent.last, 34);
        let first = recent.portions.first().unwrap().ends.first().unwrap().0.seq();
        assert_eq!((recent.before + 1, recent.portions.len()), (first, 3));
    }
}
