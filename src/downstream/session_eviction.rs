//! Session eviction: quotas in total, per address and per principal, and victim selection.
//!
//! The longest idle sessions are evicted first. An address or principal at its quota evicts its own sessions. If the
//! table or an address is full, the heaviest holders lose sessions first, and a principal with no more sessions than
//! the newcomer does not lose any (max-min fairness). Unused sessions have their own quota, so that a client that
//! only opens sessions evicts only its own. Busy sessions are never evicted. This module keeps counts; the
//! [table](super::session_table) finds the sessions.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use thiserror::Error;

use super::source::Source;
use mcpproxy_policy::Principal;

/// Maximum number of live sessions.
pub(crate) const MAX_SESSIONS: usize = 10_000;
/// Maximum number of unused sessions per principal and address.
pub(crate) const MAX_UNUSED: usize = MAX_SESSIONS / 8;
/// Number of idle sessions evicted together, so that not every newcomer searches the table.
pub const EVICTED: usize = 64;

/// The table, or the quota of an address or principal, is full of busy sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "too many sessions are in use, in total, from one address or of one principal: end some with DELETE, or wait"
)]
pub struct TooManySessions;

/// Key of a session's quota: address and principal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Holder {
    pub(super) source: Source,
    pub(super) principal: Principal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Eviction {
    /// Evict all expired sessions.
    Expired,
    /// Evict [`EVICTED`] unused sessions of the newcomer's holder.
    Unused,
    /// Evict [`EVICTED`] sessions of the newcomer's principal.
    OfPrincipal,
    /// Evict [`EVICTED`] sessions of the newcomer's address, from its heaviest principals.
    OfSource,
    /// Evict [`EVICTED`] sessions among all, from the heaviest principals.
    Idle,
}

impl Eviction {
    /// Whether a session of `holder` is a candidate for this eviction.
    pub(super) fn is_about(self, holder: &Holder, is_used: bool, newcomer: &Holder) -> bool {
        match self {
            Self::Expired => false,
            Self::Unused => holder == newcomer && !is_used,
            Self::OfPrincipal => holder.principal == newcomer.principal,
            Self::OfSource => holder.source == newcomer.source,
            Self::Idle => true,
        }
    }
}

/// Sessions of a holder.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Held {
    pub(super) all: usize,
    /// Sessions without a request so far.
    pub(super) unused: usize,
}

/// Session counts, in total and by holder.
#[derive(Debug)]
pub(super) struct Occupancy {
    /// Maximum number of sessions.
    max: usize,
    count: AtomicUsize,
    held: Mutex<HeldSessions>,
}

#[derive(Debug, Default)]
struct HeldSessions {
    holders: HashMap<Holder, Held>,
    sources: HashMap<Source, usize>,
    principals: HashMap<Principal, usize>,
}

impl Default for Occupancy {
    fn default() -> Self {
        Self::of_at_most(MAX_SESSIONS)
    }
}

impl Occupancy {
    pub(super) fn of_at_most(max: usize) -> Self {
        Self { max, count: AtomicUsize::new(0), held: Mutex::default() }
    }

    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Counts a new session, unused so far.
    pub(super) fn opened(&self, holder: &Holder) {
        self.count.fetch_add(1, Ordering::Relaxed);
        let HeldSessions { holders, sources, principals } = &mut *self.held.lock();
        let held = holders.entry(holder.clone()).or_default();
        held.all += 1;
        held.unused += 1;
        *sources.entry(holder.source).or_default() += 1;
        *principals.entry(holder.principal.clone()).or_default() += 1;
    }

    /// Counts a session's first use.
    pub(super) fn used(&self, holder: &Holder) {
        if let Some(held) = self.held.lock().holders.get_mut(holder) {
            held.unused = held.unused.saturating_sub(1);
        }
    }

    /// Counts the end of a used session.
    pub(super) fn left(&self, holder: &Holder) {
        self.count.fetch_sub(1, Ordering::Relaxed);
        let HeldSessions { holders, sources, principals } = &mut *self.held.lock();
        if let Some(held) = holders.get_mut(holder) {
            held.all = held.all.saturating_sub(1);
            if held.all == 0 {
                holders.remove(holder);
            }
        }
        one_less(sources, &holder.source);
        one_less(principals, &holder.principal);
    }

    /// Ensures a free slot for a session of `holder`. `evict` removes sessions as far as possible and calls
    /// [`Self::left`] for each. Fails if that is not enough.
    pub(super) fn make_room(
        &self,
        holder: &Holder,
        evict: impl Fn(Eviction),
    ) -> Result<(), TooManySessions> {
        if self.of_holder(holder).unused >= MAX_UNUSED {
            evict(Eviction::Unused);
        }
        let is_full = || self.count() >= self.max;
        let principal_has_its_share = || {
            let Holder { principal, .. } = holder;
            self.of_principal(principal) >= principal.share(self.max)
        };
        let source_has_its_share =
            || self.of_source(holder.source) >= holder.source.share(self.max);
        if is_full() || principal_has_its_share() || source_has_its_share() {
            evict(Eviction::Expired);
        }
        if principal_has_its_share() {
            evict(Eviction::OfPrincipal);
        }
        if source_has_its_share() {
            evict(Eviction::OfSource);
        }
        if principal_has_its_share() || source_has_its_share() {
            return Err(TooManySessions);
        }
        if is_full() {
            evict(Eviction::Idle);
        }
        if is_full() { Err(TooManySessions) } else { Ok(()) }
    }

    pub(super) fn of_holder(&self, holder: &Holder) -> Held {
        self.held.lock().holders.get(holder).copied().unwrap_or_default()
    }

    fn of_source(&self, source: Source) -> usize {
        self.held.lock().sources.get(&source).copied().unwrap_or_default()
    }

    pub(super) fn of_principal(&self, principal: &Principal) -> usize {
        self.held.lock().principals.get(principal).copied().unwrap_or_default()
    }
}

fn one_less<K: Eq + std::hash::Hash>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count = count.saturating_sub(1);
        if *count == 0 {
            counts.remove(key);
        }
    }
}

/// Candidates for an eviction.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    /// Sessions per principal, busy ones included.
    held: HashMap<Principal, usize>,
    /// Idle sessions: time of the last use, and id.
    idle: HashMap<Principal, Vec<(u64, Arc<str>)>>,
}

impl Candidates {
    /// Adds a session; `idle` is the time of its last use and its id, unless it is busy.
    pub(super) fn add(&mut self, principal: &Principal, idle: Option<(u64, Arc<str>)>) {
        *self.held.entry(principal.clone()).or_default() += 1;
        if let Some(idle) = idle {
            self.idle.entry(principal.clone()).or_default().push(idle);
        }
    }

    /// Ids of the sessions to evict for a newcomer of this principal: at most [`EVICTED`], longest idle first. They
    /// are taken from the heaviest holder until all holders are equal, and never from a holder with no more sessions
    /// than the newcomer.
    pub(super) fn evicted(self, newcomer: &Principal) -> impl Iterator<Item = Arc<str>> + use<> {
        let Self { held, idle } = self;
        let own = held.get(newcomer).copied().unwrap_or_default();
        let mut ranked = Vec::new();
        for (principal, mut sessions) in idle {
            let is_own = principal == *newcomer;
            let held = held.get(&principal).copied().unwrap_or_default();
            sessions.sort_unstable();
            // Sessions that its principal holds before this one is evicted.
            let before = (1..=held).rev();
            let going = sessions.into_iter().zip(before).take(EVICTED);
            let going = going.filter(|(_, before)| is_own || *before > own);
            ranked.extend(going.map(|((used, id), before)| (Reverse((before, is_own)), used, id)));
        }
        ranked.sort_unstable();
        ranked.into_iter().take(EVICTED).map(|(_, _, id)| id)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn at(source: Source) -> Holder {
        Holder { source, principal: Principal::Anonymous }
    }

    fn local() -> Holder {
        at(Source::Loopback)
    }

    fn remote() -> Holder {
        at(Source::of([10, 0, 0, 1].into()))
    }

    fn named(name: &str) -> Holder {
        Holder { source: Source::Loopback, principal: Principal::certificate(name) }
    }

    /// Sessions of `holder`, some of them unused.
    fn occupied(all: usize, unused: usize, holder: &Holder) -> Occupancy {
        let occupancy = Occupancy::default();
        for n in 0..all {
            occupancy.opened(holder);
            if n >= unused {
                occupancy.used(holder);
            }
        }
        occupancy
    }

    /// Evictions that are requested if only those in `frees` free a slot, and the result.
    fn asked(
        occupancy: &Occupancy,
        holder: &Holder,
        frees: &[Eviction],
    ) -> (Vec<Eviction>, Result<(), TooManySessions>) {
        let asked = RefCell::new(Vec::new());
        let outcome = occupancy.make_room(holder, |eviction| {
            asked.borrow_mut().push(eviction);
            if frees.contains(&eviction) {
                occupancy.left(holder);
            }
        });
        (asked.into_inner(), outcome)
    }

    #[test]
    fn no_session_is_evicted_below_the_quotas() {
        let occupancy = occupied(MAX_SESSIONS - 1, 0, &local());
        assert_eq!(asked(&occupancy, &local(), &[]), (vec![], Ok(())));
    }

    #[test]
    fn eviction_escalates_only_until_it_suffices() {
        use Eviction::{Expired, Idle, OfPrincipal, OfSource};
        let all = || occupied(MAX_SESSIONS, 0, &local());
        assert_eq!(asked(&all(), &local(), &[Expired]), (vec![Expired], Ok(())));
        let own = asked(&all(), &local(), &[OfPrincipal]);
        assert_eq!(own, (vec![Expired, OfPrincipal], Ok(())));
        let none = asked(&all(), &local(), &[]);
        assert_eq!(none, (vec![Expired, OfPrincipal, OfSource], Err(TooManySessions)));
        // The table is full of sessions of other holders: a holder below its quota may evict them.
        let (steps, outcome) = asked(&all(), &named("ada"), &[]);
        assert_eq!((steps, outcome), (vec![Expired, OfSource], Err(TooManySessions)));
        let full = occupied(MAX_SESSIONS, 0, &local());
        let elsewhere = Holder { principal: Principal::certificate("ada"), ..remote() };
        let (steps, outcome) = asked(&full, &elsewhere, &[]);
        assert_eq!((steps, outcome), (vec![Expired, Idle], Err(TooManySessions)));
    }

    #[test]
    fn address_at_its_quota_evicts_its_own_sessions() {
        use Eviction::{Expired, OfSource};
        let remote = remote();
        let occupancy = occupied(remote.source.share(MAX_SESSIONS), 0, &remote);
        let (steps, outcome) = asked(&occupancy, &remote, &[]);
        assert_eq!((steps, outcome), (vec![Expired, OfSource], Err(TooManySessions)));
        assert_eq!(asked(&occupancy, &local(), &[]), (vec![], Ok(())));
    }

    #[test]
    fn principal_at_its_quota_evicts_its_own_sessions() {
        use Eviction::{Expired, OfPrincipal};
        let ada = named("ada");
        let occupancy = occupied(MAX_SESSIONS / 4, 0, &ada);
        let (steps, outcome) = asked(&occupancy, &ada, &[]);
        assert_eq!((steps, outcome), (vec![Expired, OfPrincipal], Err(TooManySessions)));
        let elsewhere = Holder { source: remote().source, ..ada };
        assert_eq!(asked(&occupancy, &elsewhere, &[]).1, Err(TooManySessions), "from anywhere");
        assert_eq!(asked(&occupancy, &named("bob"), &[]), (vec![], Ok(())));
    }

    #[test]
    fn unused_sessions_have_a_quota_of_their_own() {
        let below = occupied(MAX_UNUSED, MAX_UNUSED - 1, &remote());
        assert_eq!(asked(&below, &remote(), &[]).0, []);
        let at = occupied(MAX_UNUSED, MAX_UNUSED, &remote());
        assert_eq!(asked(&at, &remote(), &[]), (vec![Eviction::Unused], Ok(())));
        let other = Holder { principal: Principal::certificate("ada"), ..remote() };
        assert_eq!(asked(&at, &other, &[]).0, [], "of another principal");
    }

    #[test]
    fn holder_without_sessions_is_removed() {
        let occupancy = occupied(2, 0, &remote());
        let counts = |occupancy: &Occupancy| {
            let held = occupancy.held.lock();
            [held.holders.len(), held.sources.len(), held.principals.len(), occupancy.count()]
        };
        occupancy.left(&remote());
        assert_eq!(counts(&occupancy), [1; 4]);
        occupancy.left(&remote());
        assert_eq!(counts(&occupancy), [0; 4]);
    }

    fn candidates(sessions: &[(&str, usize, usize)]) -> Candidates {
        let mut candidates = Candidates::default();
        for (name, idle, busy) in sessions {
            let principal = Principal::certificate(name);
            for n in (0..*idle).rev() {
                candidates.add(&principal, Some((n as u64, format!("{name}{n}").into())));
            }
            (0..*busy).for_each(|_| candidates.add(&principal, None));
        }
        candidates
    }

    fn evicted(sessions: &[(&str, usize, usize)], newcomer: &str) -> Vec<String> {
        let evicted = candidates(sessions).evicted(&Principal::certificate(newcomer));
        evicted.map(|id| id.to_string()).collect()
    }

    #[test]
    fn longest_idle_sessions_are_evicted() {
        let gone = evicted(&[("a", EVICTED + 2, 0)], "a");
        assert_eq!(gone.len(), EVICTED);
        assert_eq!((&*gone[0], &*gone[EVICTED - 1]), ("a0", "a63"));
    }

    #[test]
    fn heaviest_holder_is_evicted_first_but_never_for_an_equal_holder() {
        assert_eq!(evicted(&[("a", 3, 0), ("b", 1, 0)], "c"), ["a0", "a1", "b0", "a2"]);
        assert_eq!(evicted(&[("a", 3, 1), ("b", 1, 0)], "b"), ["a0", "a1", "a2", "b0"]);
        assert_eq!(evicted(&[("a", 3, 0), ("b", 2, 0)], "a"), ["a0", "a1", "a2"]);
        assert_eq!(evicted(&[("a", 2, 0), ("b", 2, 0)], "a"), ["a0", "a1"], "a tie is its own");
        assert_eq!(evicted(&[("a", 0, 2), ("b", 2, 0)], "a"), [] as [&str; 0]);
    }
}
