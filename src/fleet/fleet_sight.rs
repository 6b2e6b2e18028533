//! Whether a node that has just started has seen who else lives. Until then it cannot say of what is at another node whether that
//! is there, and it is not ready; but one that cannot see anybody, since the store is away, serves alone after [`SIGHT_LIMIT`].

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::living_nodes::LivingNodes;

/// The longest that a node that serves is not ready since it has not seen who lives. Longer than it takes to find one dead of
/// which a heartbeat lies there ([`DEAD_AFTER_MS`](super::living_nodes::DEAD_AFTER_MS)). In a fleet of more than some 350 nodes
/// it takes longer to read them all: then it serves, and says of what is at those that were not read that it does not know.
pub const SIGHT_LIMIT: Duration = Duration::from_secs(10);

/// Whether it was seen, since the start, who lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FleetSight {
    /// Once, of every node.
    Seen,
    /// Not yet.
    Awaited,
    /// Not within [`SIGHT_LIMIT`]: it is not waited for any more.
    Unseen,
}

/// When a node began to serve, and whether it has seen who lives since.
#[derive(Debug, Default)]
pub(super) struct SightSinceStart {
    began: OnceLock<Instant>,
    seen: AtomicBool,
}

impl SightSinceStart {
    /// The node serves from now on.
    pub(super) fn begins(&self) {
        let _ = self.began.set(Instant::now());
    }

    /// This is known now. Once everybody is judged it stays so, whoever comes later.
    pub(super) fn sees(&self, living: &LivingNodes) {
        if living.why_undecided().is_none() {
            self.seen.store(true, Ordering::Relaxed);
        }
    }

    /// How it is `now`.
    pub(super) fn at(&self, now: Instant) -> FleetSight {
        if self.seen.load(Ordering::Relaxed) {
            return FleetSight::Seen;
        }
        match self.began.get() {
            Some(began) if now.saturating_duration_since(*began) >= SIGHT_LIMIT => {
                FleetSight::Unseen
            }
            Some(_) | None => FleetSight::Awaited,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::config::NodeName;
    use crate::fleet::heartbeat::BootId;
    use crate::fleet::heartbeat::tests::example;
    use crate::fleet::living_nodes::{DEAD_AFTER_MS, NodeWatch};
    use crate::fleet::strays::StrayObjects;

    fn name(text: &str) -> NodeName {
        NodeName::parse(text).unwrap()
    }

    #[test]
    fn nobody_is_waited_for_longer_than_the_limit_and_who_was_seen_once_stays_so() {
        let sight = SightSinceStart::default();
        let now = Instant::now();
        assert_eq!(sight.at(now + 2 * SIGHT_LIMIT), FleetSight::Awaited, "it does not serve yet");
        sight.begins();
        let began = *sight.began.get().unwrap();
        assert_eq!(sight.at(began), FleetSight::Awaited);
        sight.begins();
        assert_eq!(sight.at(began + SIGHT_LIMIT), FleetSight::Unseen);

        let mut watch = NodeWatch::new(name("me"), BootId([9; 16]));
        watch.there_are([name("a")]);
        sight.sees(&LivingNodes::default());
        sight.sees(&watch.snapshot(None));
        assert_eq!(sight.at(began), FleetSight::Awaited, "nothing was read of a");
        watch.sees(&name("a"), Some(Ok(example(1, 1, 0))), (0, 0), true);
        sight.sees(&watch.snapshot(None));
        assert_eq!(sight.at(began), FleetSight::Awaited, "it may have lain there");
        watch.sees(&name("a"), Some(Ok(example(1, 2, 0))), (800, 0), true);
        sight.sees(&watch.snapshot(Some("the store is away".to_owned())));
        assert_eq!(sight.at(began), FleetSight::Awaited, "it is old");
        sight.sees(&watch.snapshot(None));
        assert_eq!(sight.at(began + SIGHT_LIMIT), FleetSight::Seen);
        watch.there_are([name("a"), name("b")]);
        sight.sees(&watch.snapshot(None));
        assert_eq!(sight.at(began + SIGHT_LIMIT), FleetSight::Seen, "b came later");
    }

    #[test]
    fn one_that_could_not_be_read_yet_was_not_seen_for_as_long_as_its_object_changes() {
        let sight = SightSinceStart::default();
        sight.begins();
        let began = *sight.began.get().unwrap();
        let mut watch = NodeWatch::new(name("me"), BootId([9; 16]));
        let mut list = |at: u64, state: u64| {
            let there = [(name("a"), state.to_string().into())];
            watch.listed(there, StrayObjects::default(), at * 1000, true);
            sight.sees(&watch.snapshot(None));
            sight.at(began)
        };
        for at in 0..60 {
            assert_eq!(list(at, at), FleetSight::Awaited, "after {at} s");
        }
        for at in 60..59 + DEAD_AFTER_MS / 1000 {
            assert_eq!(list(at, 59), FleetSight::Awaited, "after {at} s");
        }
        assert_eq!(list(59 + DEAD_AFTER_MS / 1000, 59), FleetSight::Seen, "it does not live");
    }

    #[test]
    fn a_node_that_never_says_anything_is_waited_for_as_long_as_one_that_says_nothing_more() {
        let mut watch = NodeWatch::new(name("me"), BootId([9; 16]));
        watch.there_are([name("a")]);
        let undecided = |watch: &NodeWatch| watch.snapshot(None).why_undecided().is_some();
        for at in 0..DEAD_AFTER_MS / 1000 {
            watch.sees(&name("a"), None, (at * 1000, 0), true);
            assert!(undecided(&watch), "after {at} s");
        }
        watch.sees(&name("a"), None, (DEAD_AFTER_MS, 0), true);
        assert!(!undecided(&watch));
    }
}
