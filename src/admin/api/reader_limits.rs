//! Limits on clients that follow, export or search the log: the number of concurrent clients, in total and per address,
//! and the time for which a client may leave sent data unread.
//!
//! An idle reader costs little; an active one uses part of a low-priority thread (`activity::Activity::run_on_reader`).
//! The limits bound memory use and the load on this thread.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::StatusCode;

use super::response::ApiError;
use mcpproxy_activity::Record;
use mcpproxy_downstream::source::Source;
use mcpproxy_runtime::keyed_counts::{CountedUse, KeyedCounts, UsedUp};

/// Maximum number of concurrent readers of `/events`.
const MAX_WATCHERS: usize = 64;
/// Maximum number of concurrent exports, each of which holds a portion of the log in memory.
const MAX_EXPORTS: usize = 4;
/// Maximum number of concurrent text searches, each of which holds a portion of the log in memory for seconds.
const MAX_SEARCHES: usize = 16;
/// `Retry-After` of a rejected client.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// Time after which a reader that leaves sent data unread is disconnected. It is shorter than the server's write
/// timeout, so that a reader that resumes in time still receives the reason.
pub(super) const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// Kind of reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A client that follows `/events`.
    Watch,
    /// An export, or another scan of the whole log.
    Export,
    /// A text search.
    Search,
}

/// Slots in use, by source address.
#[derive(Debug, Default)]
pub struct ReaderSlots {
    watchers: Arc<KeyedCounts<Source>>,
    exports: Arc<KeyedCounts<Source>>,
    searches: Arc<KeyedCounts<Source>>,
}

/// A reader's slot, released when dropped.
pub(super) type ReaderSlot = CountedUse<Source>;

impl ReaderSlots {
    /// Takes a slot for a reader at `source`; 503 with `Retry-After` if none is free.
    pub(super) fn enter(&self, purpose: Purpose, source: Source) -> Result<ReaderSlot, ApiError> {
        let (taken, limit, what) = match purpose {
            Purpose::Watch => (&self.watchers, MAX_WATCHERS, "readers of /events"),
            Purpose::Export => (&self.exports, MAX_EXPORTS, "exports of the activity log"),
            Purpose::Search => (&self.searches, MAX_SEARCHES, "searches of the activity log"),
        };
        let full = match taken.take(source, source.share(limit), limit) {
            Ok(slot) => return Ok(slot),
            Err(UsedUp::All) => format!("{limit} {what} are under way, which is the maximum"),
            Err(UsedUp::Key(used)) => format!(
                "{used} {what} are under way from your address, which is the maximum per address"
            ),
        };
        let text = format!("{full}: end one or retry in {} s", RETRY_AFTER.as_secs());
        let mut failure = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, text);
        failure.retry_after = Some(RETRY_AFTER);
        Err(failure)
    }
}

/// Timer for the time that a reader leaves sent data unread.
#[derive(Debug, Default)]
pub(super) struct ReaderPace {
    /// Time at which the last data was sent, until the reader polls for more.
    sent: Option<Instant>,
}

impl ReaderPace {
    pub(super) fn on_send(&mut self, now: Instant) {
        self.sent = Some(now);
    }

    /// Notes that the reader polls for more. Returns how long it left the last data unread, if longer than [`READ_TIMEOUT`].
    pub(super) fn on_poll(&mut self, now: Instant) -> Option<Duration> {
        let waited = now.saturating_duration_since(self.sent.take()?);
        (waited > READ_TIMEOUT).then_some(waited)
    }
}

/// Reason for disconnecting a reader after `waited`.
pub(super) fn too_slow(waited: Duration) -> String {
    let (waited, limit) = (waited.as_secs(), READ_TIMEOUT.as_secs());
    format!("nothing was read for {waited} s; the limit is {limit} s")
}

/// Final message to a disconnected reader as one line of JSON: the reason, and the record or fleet position to resume after.
pub(super) fn final_message(reason: &str, after: Option<impl std::fmt::Display>) -> String {
    let after = after.map(|id| id.to_string());
    serde_json::json!({"error": reason, "resume_after": after}).to_string()
}

/// Writes a record as one line of JSON. Payloads written by clients may contain line breaks between tokens, which are
/// replaced by equivalent spaces.
pub(super) fn one_line(record: &Record, out: &mut Vec<u8>) {
    let start = out.len();
    if serde_json::to_writer(&mut *out, record).is_err() {
        // A stored record is always valid JSON; a partial one must not be shown.
        out.truncate(start);
    }
    for byte in out.iter_mut().skip(start).filter(|byte| matches!(byte, b'\r' | b'\n')) {
        *byte = b' ';
    }
}

/// Writes a record as a server-sent event.
pub(super) fn event(record: &Record, out: &mut Vec<u8>) {
    out.extend_from_slice(format!("id: {}\nevent: activity\ndata: ", record.id).as_bytes());
    one_line(record, out);
    out.extend_from_slice(b"\n\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_limited_in_total_and_per_address_and_released() {
        let readers = ReaderSlots::default();
        let remote = |last| Source::of([10, 0, 0, last].into());
        let enter = |source| readers.enter(Purpose::Watch, source);
        let mut open: Vec<_> = (0..16).map(|_| enter(remote(1)).unwrap()).collect();
        let refused = enter(remote(1)).unwrap_err();
        assert_eq!(
            refused.message,
            "16 readers of /events are under way from your address, which is the maximum per \
             address: end one or retry in 5 s"
        );
        assert_eq!(refused.retry_after, Some(RETRY_AFTER));
        open.extend((16..MAX_WATCHERS).map(|_| enter(Source::Loopback).unwrap()));
        let refused = enter(remote(2)).unwrap_err();
        assert!(
            refused.message.starts_with("64 readers of /events are under way, "),
            "{refused:?}"
        );
        assert!(readers.enter(Purpose::Export, remote(2)).is_ok(), "limits are per kind");
        open.pop();
        assert!(enter(remote(2)).is_ok());
        drop(open);
        assert_eq!(readers.watchers.keys(), 0);
    }

    #[test]
    fn reader_counts_as_slow_only_while_sent_data_is_unread() {
        let (mut pace, start) = (ReaderPace::default(), Instant::now());
        let late = start + READ_TIMEOUT + Duration::from_millis(1);
        assert_eq!(pace.on_poll(late), None, "nothing was sent");
        pace.on_send(start);
        assert_eq!(pace.on_poll(start + READ_TIMEOUT), None);
        assert_eq!(pace.on_poll(late), None, "the reader was waiting since");
        pace.on_send(start);
        assert_eq!(pace.on_poll(late), Some(READ_TIMEOUT + Duration::from_millis(1)));
    }
}
