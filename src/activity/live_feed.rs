//! What live readers share: the records stored last, rendered once and kept within a bound.
//!
//! The writer says how far it has written, the readers' thread adds portions, and readers take what
//! they have not had. That thread's part, reading the log and rendering, is `live`. Readers take no lock: what is recent is replaced as a whole.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use super::record::{Id, Record};

/// Bytes of rendered records that are kept for live readers, beside the portion rendered last.
const RECENT_BYTES: usize = 4 << 20;
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

/// What happens to a live reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LiveEvent {
    /// The next records, rendered, and the last of them.
    Records(Bytes, Id),
    /// The reader is so far behind that what comes next is only in the log.
    Behind,
    /// The log is closed.
    Closed,
}

/// What was rendered last.
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
pub(super) struct LiveFeed {
    readers: AtomicUsize,
    /// The last record that can be read.
    stored: AtomicU64,
    /// Written by the readers' thread alone.
    recent: ArcSwapOption<Recent>,
    /// Notified when there is something new, or an end.
    changed: Notify,
}

impl LiveFeed {
    /// The writer has written so far; true if there are readers.
    pub(super) fn wrote(&self, seq: u64) -> bool {
        self.stored.store(seq, Ordering::SeqCst);
        self.readers() > 0
    }

    /// Wakes every reader, to look again.
    pub(super) fn wake_readers(&self) {
        self.changed.notify_waiters();
    }

    /// Completes at the next wake-up.
    pub(super) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// How many readers there are.
    pub(super) fn readers(&self) -> usize {
        self.readers.load(Ordering::SeqCst)
    }

    /// Counts a reader in.
    pub(super) fn join(&self) {
        self.readers.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts a reader out; true if it was the last.
    pub(super) fn leave(&self) -> bool {
        self.readers.fetch_sub(1, Ordering::SeqCst) == 1
    }

    /// Adds the next portion, which `read` makes of what follows a record; it also says how far the
    /// portion goes. True if more is stored. Without readers nothing is kept; nor after a failure:
    /// readers then wait until the writer has written again.
    ///
    /// # Errors
    ///
    /// Those of `read`.
    pub(super) fn extend<E>(
        &self,
        read: impl FnOnce(u64) -> Result<(Portion, u64), E>,
    ) -> Result<bool, E> {
        let recent = self.recent.load_full();
        if self.readers() == 0 {
            if recent.is_some() {
                self.recent.store(None);
            }
            return Ok(false);
        }
        let stored = self.stored.load(Ordering::SeqCst);
        let recent = recent.filter(|recent| stored.saturating_sub(recent.last) <= MOST_BEHIND);
        let next = match recent {
            None => Recent::at(stored),
            Some(recent) if recent.last >= stored => return Ok(false),
            Some(recent) => {
                let (portion, last) = read(recent.last).inspect_err(|_| self.recent.store(None))?;
                // Numbers that are lost have no record.
                recent.with(portion, last.max(recent.last + 1))
            }
        };
        let more = next.last < stored;
        self.recent.store(Some(Arc::new(next)));
        self.wake_readers();
        Ok(more)
    }

    /// What a reader gets that has had everything up to the record `seq`; `None` if it has to wait.
    pub(super) fn after(&self, seq: u64) -> Option<LiveEvent> {
        let recent = self.recent.load();
        let recent = recent.as_ref()?;
        if seq < recent.before {
            return Some(LiveEvent::Behind);
        }
        let found = recent.portions.iter().find_map(|portion| portion.after(seq));
        found.map(|(bytes, last)| LiveEvent::Records(bytes, last))
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
