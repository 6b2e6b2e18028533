//! The monotonic clock: read if an exact time is needed, otherwise cached.
//!
//! A call is measured with a few readings. Its other uses of time are limits of many seconds, for which the last reading is precise enough:
//! a reading costs as much as a table lookup, and there would be about a dozen of them.

use std::cell::Cell;
use std::time::{Instant, SystemTime};

thread_local! {
    static LAST: Cell<Option<Instant>> = const { Cell::new(None) };
}

pub fn now() -> Instant {
    let now = Instant::now();
    LAST.set(Some(now));
    now
}

/// Time of this thread's last call to [`now`]. For workers, which call [`now`] for every request and, until they shut down, at least every
/// two seconds.
pub fn lately() -> Instant {
    LAST.get().unwrap_or_else(now)
}

/// Wall-clock time in milliseconds since 1970. Used for display, never for measuring.
pub fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coarse_clock_returns_the_last_exact_reading() {
        let first = lately();
        assert_eq!(lately(), first);
        let second = now();
        assert!(second >= first);
        assert_eq!(lately(), second);
    }
}
