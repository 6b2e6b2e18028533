//! Records as they are stored, for live readers: read back and rendered once, however many read.
//!
//! ```text
//! writer ── wrote up to n ─▶ the readers' thread ── a portion ─▶ the feed ─▶ every reader
//!                             (low priority)                     (shared bytes)
//! ```
//!
//! What was rendered last is kept for all readers together, within a bound (`live_feed`). Nobody
//! waits for a reader: one that is further behind gets [`LiveEvent::Behind`] and reads the log itself.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::error::QueryError;
use super::forward_scan::PortionLimit;
use super::handle::Activity;
use super::live_feed::{LiveEvent, Portion, Render};
use super::query::Filter;
use super::shared::Shared;

/// Most that is read and rendered at a time: a millisecond's work, so that whoever else waits for the
/// thread does not wait long.
pub const PORTION: PortionLimit = PortionLimit { records: 128, bytes: 1 << 20 };

impl Activity {
    /// Renders the next portion for live readers; true if there is more to render. For the readers'
    /// thread.
    pub(super) fn feed(&self, render: Render) -> bool {
        let more = self.shared.live.extend(|seq| self.portion(seq, render));
        more.unwrap_or_else(|error| {
            tracing::warn!(%error, "activity cannot be read for live readers");
            false
        })
    }

    fn portion(&self, seq: u64, render: Render) -> Result<(Portion, u64), QueryError> {
        let (records, last) = self.stored()?.since(seq, &Filter::default(), PORTION)?;
        Ok((Portion::of(&records, render), last))
    }

    /// Records as they are stored, from after the one of that number on. All live readers get them
    /// in the same rendering.
    #[must_use]
    pub fn live(&self, after: u64, render: Render) -> Live {
        let shared = Arc::clone(&self.shared);
        // The first reader's rendering holds for all: there is one kind of reader.
        let _ = shared.readers.render.set(render);
        shared.live.join();
        shared.readers.wake();
        Live { shared, seq: after }
    }
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
            let mut changed = pin!(self.shared.live.changed());
            // Registered before the check, so that no wake-up falls between.
            changed.as_mut().enable();
            if let Some(event) = self.look() {
                if let LiveEvent::Records(_, last) = &event {
                    self.seq = last.seq();
                }
                return event;
            }
            changed.await;
        }
    }

    fn look(&self) -> Option<LiveEvent> {
        if self.shared.is_closed.load(Ordering::Acquire) {
            return Some(LiveEvent::Closed);
        }
        self.shared.live.after(self.seq)
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
        // The readers' thread then lets go of what is recent.
        if self.shared.live.leave() {
            self.shared.readers.wake();
        }
    }
}
