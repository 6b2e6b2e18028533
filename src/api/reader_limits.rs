//! Who follows the log or exports it: how many may at once, over all and from one address, and how
//! long one may take nothing.
//!
//! A reader that waits costs little; one that reads takes its part of a thread of low priority
//! (`activity::Activity::aside`). What the bounds here keep is memory, and that part.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::StatusCode;

use super::response::ApiError;
use crate::activity::{Id, Record};
use crate::downstream::source::Source;

/// Readers of `/events` at once: people with a page or a terminal, and a collector or two.
const MAX_WATCHERS: usize = 64;
/// Exports at once: each has a portion of the log in memory.
const MAX_EXPORTS: usize = 4;
/// Who finds no place is told to come back after this long.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// A reader that takes nothing for so long, though there is something, gives its place up. Shorter
/// than the server waits for a client, so that one who reads on in time is told why it ends.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// What a reader is here for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Watch,
    Export,
}

/// The places there are.
#[derive(Debug, Default)]
pub struct ReaderSlots {
    watchers: Arc<Taken>,
    exports: Arc<Taken>,
}

/// Places taken, by where their readers come from.
#[derive(Debug, Default)]
struct Taken(Mutex<HashMap<Source, usize>>);

impl Taken {
    fn table(&self) -> MutexGuard<'_, HashMap<Source, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A reader's place, given back when dropped.
#[derive(Debug)]
pub(super) struct ReaderSlot {
    taken: Arc<Taken>,
    source: Source,
}

impl ReaderSlots {
    /// A place for a reader from there.
    ///
    /// # Errors
    ///
    /// 503 that names the limit, and when to come back.
    pub(super) fn enter(&self, purpose: Purpose, source: Source) -> Result<ReaderSlot, ApiError> {
        let (taken, most, what) = match purpose {
            Purpose::Watch => (&self.watchers, MAX_WATCHERS, "readers of /events"),
            Purpose::Export => (&self.exports, MAX_EXPORTS, "exports of the activity log"),
        };
        let mut table = taken.table();
        let (all, of_source) =
            (table.values().sum::<usize>(), table.get(&source).copied().unwrap_or_default());
        let full = if all >= most {
            format!("{most} {what} are under way, which is the most at once")
        } else if of_source >= source.share(most) {
            format!(
                "{of_source} {what} are under way from your address, which is the most from one"
            )
        } else {
            *table.entry(source).or_default() += 1;
            return Ok(ReaderSlot { taken: Arc::clone(taken), source });
        };
        let text = format!("{full}: end one, or try again in {} s", RETRY_AFTER.as_secs());
        let mut failure = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, text);
        failure.retry_after = Some(RETRY_AFTER);
        Err(failure)
    }
}

impl Drop for ReaderSlot {
    fn drop(&mut self) {
        let mut table = self.taken.table();
        if let Some(count) = table.get_mut(&self.source) {
            *count -= 1;
            if *count == 0 {
                table.remove(&self.source);
            }
        }
    }
}

/// Whether a reader takes what it is given.
#[derive(Debug, Default)]
pub(super) struct ReaderPace {
    /// When it was given something that it has not asked on after.
    given: Option<Instant>,
}

impl ReaderPace {
    /// It is given something.
    pub(super) fn gives(&mut self, now: Instant) {
        self.given = Some(now);
    }

    /// It asks for more; how long it took nothing, if that was too long.
    pub(super) fn asks(&mut self, now: Instant) -> Option<Duration> {
        let waited = now.saturating_duration_since(self.given.take()?);
        (waited > PATIENCE).then_some(waited)
    }
}

/// Why a reader that is too slow is cut off.
pub(super) fn too_slow(waited: Duration) -> String {
    let (waited, most) = (waited.as_secs(), PATIENCE.as_secs());
    format!("nothing was read for {waited} s, and a reader may take {most} s")
}

/// The last words to a reader that is cut off, as one line of JSON: why, and the record to resume
/// after.
pub(super) fn last_words(reason: &str, after: Option<Id>) -> String {
    let after = after.map(|id| id.to_string());
    serde_json::json!({"error": reason, "resume_after": after}).to_string()
}

/// A record as one line of JSON. What a client wrote in it may hold line ends: between tokens, so
/// that a blank means the same.
pub(super) fn one_line(record: &Record, out: &mut Vec<u8>) {
    let start = out.len();
    if serde_json::to_writer(&mut *out, record).is_err() {
        // No record is made of what is not JSON; half of one must not be shown.
        out.truncate(start);
    }
    for byte in out.iter_mut().skip(start).filter(|byte| matches!(byte, b'\r' | b'\n')) {
        *byte = b' ';
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_bounded_over_all_and_from_one_address_and_given_back() {
        let readers = ReaderSlots::default();
        let remote = |last| Source::of([10, 0, 0, last].into());
        let enter = |source| readers.enter(Purpose::Watch, source);
        let mut open: Vec<_> = (0..16).map(|_| enter(remote(1)).unwrap()).collect();
        let refused = enter(remote(1)).unwrap_err();
        assert_eq!(
            refused.message,
            "16 readers of /events are under way from your address, which is the most from one: end \
             one, or try again in 5 s"
        );
        assert_eq!(refused.retry_after, Some(RETRY_AFTER));
        open.extend((16..MAX_WATCHERS).map(|_| enter(Source::Loopback).unwrap()));
        let refused = enter(remote(2)).unwrap_err();
        assert!(
            refused.message.starts_with("64 readers of /events are under way, "),
            "{refused:?}"
        );
        assert!(readers.enter(Purpose::Export, remote(2)).is_ok(), "another kind");
        open.pop();
        assert!(enter(remote(2)).is_ok());
        drop(open);
        assert!(readers.watchers.table().is_empty());
    }

    #[test]
    fn a_reader_is_slow_only_where_something_waits_for_it() {
        let (mut pace, start) = (ReaderPace::default(), Instant::now());
        let late = start + PATIENCE + Duration::from_millis(1);
        assert_eq!(pace.asks(late), None, "nothing was given");
        pace.gives(start);
        assert_eq!(pace.asks(start + PATIENCE), None);
        assert_eq!(pace.asks(late), None, "it waited for us since");
        pace.gives(start);
        assert_eq!(pace.asks(late), Some(PATIENCE + Duration::from_millis(1)));
    }
}
