//! The time, read once where it is needed exactly, and used again where it need not be.
//!
//! A call is measured by a few readings. What else it needs the time for are limits of many
//! seconds, for which the last of those does: a reading costs as much as a lookup in a table, and
//! there would be a dozen of them.

use std::cell::Cell;
use std::time::Instant;

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
