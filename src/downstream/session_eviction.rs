//! Session eviction: how many sessions there may be, over all and of one address, and which go when there is no room.
//!
//! A newcomer takes the place of whoever has been idle longest, of its own address first. Sessions that were opened and
//! never used have a bound of their own, so that a client that does nothing but open sessions evicts nobody else's.
//! Sessions that are busy are never evicted. Knows counts and not the sessions: the
//! [table](super::session_table) finds those that go.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use thiserror::Error;

use crate::downstream::source::Source;

/// Most sessions alive at once.
pub const MAX_SESSIONS: usize = 10_000;
/// Most sessions of one address that were opened and never used: the oldest of them makes room.
pub const MAX_UNUSED: usize = MAX_SESSIONS / 8;
/// Idle sessions that make room at once, so that not every newcomer searches the table.
pub const EVICTED: usize = 64;

/// The table, or an address's share of it, is full of sessions that are all in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "too many sessions are in use, over all or from one address: end some with DELETE, or wait"
)]
pub struct TooManySessions;

/// Which sessions go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Eviction {
    /// All that were idle for too long.
    Expired,
    /// [`EVICTED`] of an address that were opened and never used.
    UnusedOf(Source),
    /// [`EVICTED`] of an address.
    IdleOf(Source),
    /// [`EVICTED`] of all.
    Idle,
}

/// How many sessions an address has.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Held {
    pub(super) all: usize,
    /// Of these: in which nothing was asked yet.
    pub(super) unused: usize,
}

/// How many sessions there are, over all and by address.
#[derive(Debug)]
pub(super) struct Occupancy {
    /// Most that there may be.
    most: usize,
    count: AtomicUsize,
    sources: Mutex<HashMap<Source, Held>>,
}

impl Default for Occupancy {
    fn default() -> Self {
        Self::of_at_most(MAX_SESSIONS)
    }
}

impl Occupancy {
    /// None yet, of at most so many.
    pub(super) fn of_at_most(most: usize) -> Self {
        Self { most, count: AtomicUsize::new(0), sources: Mutex::default() }
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// One more, in which nothing was asked yet.
    pub(super) fn opened(&self, source: Source) {
        self.count.fetch_add(1, Ordering::Relaxed);
        let mut sources = self.sources.lock();
        let held = sources.entry(source).or_default();
        held.all += 1;
        held.unused += 1;
    }

    /// Something was asked for the first time in one that was opened from there.
    pub(super) fn used(&self, source: Source) {
        if let Some(held) = self.sources.lock().get_mut(&source) {
            held.unused = held.unused.saturating_sub(1);
        }
    }

    /// One less; it was counted as used before.
    pub(super) fn left(&self, source: Source) {
        self.count.fetch_sub(1, Ordering::Relaxed);
        let mut sources = self.sources.lock();
        if let Some(held) = sources.get_mut(&source) {
            held.all = held.all.saturating_sub(1);
            if held.all == 0 {
                sources.remove(&source);
            }
        }
    }

    /// Sees that there is room for one more from `source`. `evict` removes sessions, as many of the named as can go,
    /// each of which is counted by [`Self::left`] before it returns.
    ///
    /// # Errors
    /// [`TooManySessions`] if what was evicted is not enough.
    pub(super) fn make_room(
        &self,
        source: Source,
        evict: impl Fn(Eviction),
    ) -> Result<(), TooManySessions> {
        if self.held(source).unused >= MAX_UNUSED {
            evict(Eviction::UnusedOf(source));
        }
        let is_full = || self.count() >= self.most;
        let has_its_share = || self.held(source).all >= source.share(self.most);
        if is_full() || has_its_share() {
            evict(Eviction::Expired);
        }
        if is_full() || has_its_share() {
            evict(Eviction::IdleOf(source));
        }
        if has_its_share() {
            return Err(TooManySessions);
        }
        if is_full() {
            evict(Eviction::Idle);
        }
        if is_full() { Err(TooManySessions) } else { Ok(()) }
    }

    /// How many an address has.
    pub(super) fn held(&self, source: Source) -> Held {
        self.sources.lock().get(&source).copied().unwrap_or_default()
    }
}

/// The ids of those that go, of idle sessions with the time of their last use.
pub(super) fn longest_idle(mut idle: Vec<(u64, Arc<str>)>) -> impl Iterator<Item = Arc<str>> {
    idle.sort_unstable();
    idle.into_iter().take(EVICTED).map(|(_, id)| id)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Sessions from `source`, of which so many are unused.
    fn occupied(all: usize, unused: usize, source: Source) -> Occupancy {
        let occupancy = Occupancy::default();
        for n in 0..all {
            occupancy.opened(source);
            if n >= unused {
                occupancy.used(source);
            }
        }
        occupancy
    }

    /// What is asked for, where each eviction that `frees` names makes room for one.
    fn asked(
        occupancy: &Occupancy,
        source: Source,
        frees: &[Eviction],
    ) -> (Vec<Eviction>, Result<(), TooManySessions>) {
        let asked = RefCell::new(Vec::new());
        let outcome = occupancy.make_room(source, |eviction| {
            asked.borrow_mut().push(eviction);
            if frees.contains(&eviction) {
                occupancy.left(source);
            }
        });
        (asked.into_inner(), outcome)
    }

    fn remote() -> Source {
        Source::of([10, 0, 0, 1].into())
    }

    #[test]
    fn nothing_goes_while_there_is_room() {
        let occupancy = occupied(MAX_SESSIONS - 1, 0, Source::Loopback);
        assert_eq!(asked(&occupancy, Source::Loopback, &[]), (vec![], Ok(())));
    }

    #[test]
    fn the_gentlest_eviction_that_suffices_is_the_last() {
        use Eviction::{Expired, Idle, IdleOf};
        let all = || occupied(MAX_SESSIONS, 0, Source::Loopback);
        let own = IdleOf(Source::Loopback);
        assert_eq!(asked(&all(), Source::Loopback, &[Expired]), (vec![Expired], Ok(())));
        assert_eq!(asked(&all(), Source::Loopback, &[own]), (vec![Expired, own], Ok(())));
        let none = asked(&all(), Source::Loopback, &[]);
        assert_eq!(none, (vec![Expired, own], Err(TooManySessions)));
        // The table is full of others: an address below its share may evict them.
        let others = all();
        let (steps, outcome) = asked(&others, remote(), &[]);
        assert_eq!((steps, outcome), (vec![Expired, IdleOf(remote()), Idle], Err(TooManySessions)));
    }

    #[test]
    fn an_address_evicts_its_own_alone_when_it_has_its_share() {
        use Eviction::{Expired, IdleOf};
        let occupancy = occupied(remote().share(MAX_SESSIONS), 0, remote());
        let (steps, outcome) = asked(&occupancy, remote(), &[]);
        assert_eq!((steps, outcome), (vec![Expired, IdleOf(remote())], Err(TooManySessions)));
        assert_eq!(asked(&occupancy, Source::Loopback, &[]), (vec![], Ok(())));
    }

    #[test]
    fn sessions_that_are_only_opened_have_a_bound_of_their_own() {
        let below = occupied(MAX_UNUSED, MAX_UNUSED - 1, remote());
        assert_eq!(asked(&below, remote(), &[]).0, []);
        let at = occupied(MAX_UNUSED, MAX_UNUSED, remote());
        assert_eq!(asked(&at, remote(), &[]), (vec![Eviction::UnusedOf(remote())], Ok(())));
    }

    #[test]
    fn an_address_without_sessions_is_forgotten() {
        let occupancy = occupied(2, 0, remote());
        occupancy.left(remote());
        assert_eq!((occupancy.count(), occupancy.sources.lock().len()), (1, 1));
        occupancy.left(remote());
        assert_eq!((occupancy.count(), occupancy.sources.lock().len()), (0, 0));
    }

    #[test]
    fn those_that_were_used_longest_ago_go() {
        let idle = (0..EVICTED as u64 + 2).rev().map(|n| (n, n.to_string().into())).collect();
        let gone: Vec<_> = longest_idle(idle).collect();
        assert_eq!(gone.len(), EVICTED);
        assert_eq!((&*gone[0], &*gone[EVICTED - 1]), ("0", "63"));
    }
}
