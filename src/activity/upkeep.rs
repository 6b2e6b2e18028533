//! What is done to an open log now and then, on threads of its own: old records are removed, tables
//! are looked at.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::error::QueryError;
use super::handle::{Activity, QUERY_TIMEOUT};
use super::mend;
use super::retention;
use super::shared::WriterCommand;
use super::store::{Store, StoreError};
use super::view::View;

/// How often it is looked for records that are no longer to be kept.
const PRUNE_EVERY: Duration = Duration::from_secs(60);

impl Activity {
    pub(super) fn prune_now_and_then(&self) {
        while !self.shared.is_closed.load(Ordering::Acquire) {
            thread::park_timeout(PRUNE_EVERY);
            let failed = self.shared.refuses();
            let closed = self.shared.is_closed.load(Ordering::Acquire);
            if !failed
                && !closed
                && let Err(error) = self.prune()
            {
                tracing::warn!(%error, "old activity could not be removed");
            }
        }
    }

    /// Removes what is no longer to be kept (ACT-6), and says how many records went. Done by itself
    /// every minute; never holds calls up. Blocks.
    ///
    /// # Errors
    ///
    /// [`QueryError`].
    pub fn prune(&self) -> Result<u64, QueryError> {
        let result = self.prune_now();
        if let Err(QueryError::Store(StoreError::Damaged { .. })) = &result {
            self.shared.suspect();
        }
        result
    }

    fn prune_now(&self) -> Result<u64, QueryError> {
        let _turn = self.shared.pruning.lock();
        let Some(store) = self.shared.store.load().as_ref().clone() else { return Ok(0) };
        let view = View::new(store.snapshot())?;
        let now = (self.shared.clock)();
        let now = self.shared.opened.get().map_or(now, |opened| opened.age_from(now));
        let confirmed = self.shared.confirmed.load(Ordering::Acquire);
        let cut = retention::due(&view, &store, &self.shared.retention.load(), confirmed, now)?;
        drop(view);
        if let Some(cut) = &cut {
            let (removed, first, limit) = (cut.removed, cut.first, cut.reason.as_str());
            tracing::info!(removed, first, limit, "old activity is removed");
            let (answer, answered) = mpsc::sync_channel(1);
            self.shared.send(WriterCommand::Cut(cut.clone(), answer));
            self.shared.wake();
            answered.recv_timeout(QUERY_TIMEOUT).map_err(|_| QueryError::Busy)?;
        }
        let mut cleared = cut.is_some();
        while !self.shared.is_closed.load(Ordering::Acquire) && retention::clear_segment(&store)? {
            cleared = true;
        }
        if cleared && !self.shared.is_closed.load(Ordering::Acquire) {
            retention::give_back(&store)?;
        }
        Ok(cut.map_or(0, |cut| cut.removed))
    }

    /// Reads every table, and has the log mended if one is damaged; which. Done by itself once a day,
    /// slowly. Blocks.
    ///
    /// # Errors
    ///
    /// [`QueryError`].
    pub fn scrub(&self) -> Result<Option<PathBuf>, QueryError> {
        self.scrub_slowly(Duration::ZERO)
    }

    fn scrub_slowly(&self, pause: Duration) -> Result<Option<PathBuf>, QueryError> {
        // Nothing keeps the store meanwhile: it may have to be opened again.
        let tables = self.shared.store.load().as_ref().as_ref().map(Store::tables);
        let tables = tables.unwrap_or_default();
        let goes_on = || !self.shared.is_closed.load(Ordering::Acquire);
        let damaged = mend::scrub(tables, pause, goes_on)?;
        if let Some(table) = &damaged {
            tracing::error!(table = %table.display(), "a table of the activity log is damaged");
            self.shared.send(WriterCommand::Damaged(table.clone()));
            self.shared.wake();
        }
        Ok(damaged)
    }

    pub(super) fn scrub_now_and_then(&self) {
        let shared = &self.shared;
        let (mut next, mut earliest) = (Instant::now() + mend::SCRUB_AFTER, Instant::now());
        while !shared.is_closed.load(Ordering::Acquire) {
            let now = Instant::now();
            let is_suspect = shared.is_suspect.load(Ordering::Acquire);
            let due = if is_suspect { next.min(earliest) } else { next };
            if now < due {
                thread::park_timeout(due.saturating_duration_since(now));
                continue;
            }
            shared.is_suspect.store(false, Ordering::Release);
            let pause = if is_suspect { Duration::ZERO } else { mend::SCRUB_PAUSE };
            if let Err(error) = self.scrub_slowly(pause) {
                tracing::warn!(%error, "the tables of the activity log could not be read");
            }
            (next, earliest) =
                (Instant::now() + mend::SCRUB_EVERY, Instant::now() + mend::SCRUB_AGAIN);
        }
    }
}
