//! The monotonic clock: read where the time is needed exactly, remembered for where it need not be.
//!
//! A call is measured by a few readings. What else it needs the time for are limits of many
//! seconds, for which the last of those does: a reading costs as much as a lookup in a table, and
//! there would be a dozen of them.

use std::cell::Cell;
use std::time::{Instant, SystemTime};

thread_local! {
    static LAST: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// The time.
pub fn now() -> Instant {
    let now = Instant::now();
    LAST.set(Some(now));
    now
}

/// The time when this thread last asked for [`now`]: for workers, which do so with every call and,
/// until they are about to end, every two seconds without one.
pub fn lately() -> Instant {
    LAST.get().unwrap_or_else(now)
}

/// The time of the day, in milliseconds since 1970: for what others are told, and never to measure.
pub fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lately_is_the_last_reading() {
        let first = lately();
        assert_eq!(lately(), first);
        let second = now();
        assert!(second >= first);
        assert_eq!(lately(), second);
    }
}
