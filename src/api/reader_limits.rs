//! Limits on clients that follow the log or export it: how many at once, in all and from one address,
//! and how long one may leave what it was sent unread.
//!
//! A reader that waits costs little; one that reads takes a share of a thread of low priority
//! (`activity::Activity::aside`). The limits bound memory and that share.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::StatusCode;
use parking_lot::Mutex;

use super::response::ApiError;
use crate::activity::Record;
use crate::downstream::source::Source;

/// Readers of `/events` at once: people with a page or a terminal, and a collector or two.
const MAX_WATCHERS: usize = 64;
/// Exports at once: each has a portion of the log in memory.
const MAX_EXPORTS: usize = 4;
/// Searches for a text at once: each has a portion of the log in memory, for seconds at most.
const MAX_SEARCHES: usize = 16;
/// When a client without a place may try again.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// A reader that leaves what it was sent unread for this long loses its place. Shorter than the
/// server's own write timeout, so that a reader that goes on in time still receives the reason.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// What a place is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Following `/events`.
    Watch,
    /// An export, or another way through the whole log.
    Export,
    /// A search for a text.
    Search,
}

/// The places for readers.
#[derive(Debug, Default)]
pub struct ReaderSlots {
    watchers: Arc<Taken>,
    exports: Arc<Taken>,
    searches: Arc<Taken>,
}

/// How many places are taken, by where their readers are.
#[derive(Debug, Default)]
struct Taken(Mutex<HashMap<Source, usize>>);

/// A reader's place, given back when dropped.
#[derive(Debug)]
pub(super) struct ReaderSlot {
    taken: Arc<Taken>,
    source: Source,
}

impl ReaderSlots {
    /// Takes a place for a reader at `source`.
    ///
    /// # Errors
    ///
    /// 503 that names the limit, with `Retry-After`.
    pub(super) fn enter(&self, purpose: Purpose, source: Source) -> Result<ReaderSlot, ApiError> {
        let (taken, most, what) = match purpose {
            Purpose::Watch => (&self.watchers, MAX_WATCHERS, "readers of /events"),
            Purpose::Export => (&self.exports, MAX_EXPORTS, "exports of the activity log"),
            Purpose::Search => (&self.searches, MAX_SEARCHES, "searches of the activity log"),
        };
        let mut table = taken.0.lock();
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
        let mut table = self.taken.0.lock();
        if let Some(count) = table.get_mut(&self.source) {
            *count -= 1;
            if *count == 0 {
                table.remove(&self.source);
            }
        }
    }
}

/// How long a reader leaves what it was sent unread.
#[derive(Debug, Default)]
pub(super) struct ReaderPace {
    /// When it was sent something after which it has not asked for more.
    given: Option<Instant>,
}

impl ReaderPace {
    /// It is sent something.
    pub(super) fn gives(&mut self, now: Instant) {
        self.given = Some(now);
    }

    /// It asks for more. Returns how long it left the last part unread if that was over [`PATIENCE`].
    pub(super) fn asks(&mut self, now: Instant) -> Option<Duration> {
        let waited = now.saturating_duration_since(self.given.take()?);
        (waited > PATIENCE).then_some(waited)
    }
}

/// Why a reader is cut off after `waited`.
pub(super) fn too_slow(waited: Duration) -> String {
    let (waited, most) = (waited.as_secs(), PATIENCE.as_secs());
    format!("nothing was read for {waited} s, and a reader may take {most} s")
}

/// The last words to a reader that is cut off, as one line of JSON: why, and the record to resume
/// after, or the place in a fleet.
pub(super) fn last_words(reason: &str, after: Option<impl std::fmt::Display>) -> String {
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

/// A record as an event.
pub(super) fn event(record: &Record, out: &mut Vec<u8>) {
    out.extend_from_slice(format!("id: {}\nevent: activity\ndata: ", record.id).as_bytes());
    one_line(record, out);
    out.extend_from_slice(b"\n\n");
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
        assert!(readers.watchers.0.lock().is_empty());
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
