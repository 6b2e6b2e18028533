//! What a reader knows of the others that has just started, beside many or beside what is no node that lives.

use super::*;

/// The turn, counted from when it was listed first, from which on an object that says nothing is judged.
const JUDGED_AT: u64 = 1 + DEAD_AFTER_MS.div_ceil(LIST_EVERY_MS);

fn is_undecided(world: &World, node: &str) -> bool {
    world.watch.snapshot(None).get(node).unwrap().is_undecided()
}

#[test]
fn beside_however_many_it_takes_nobody_for_dead_who_waits_to_be_read() {
    for nodes in [3, 100, 257, 1_000, 2_000] {
        let mut world = World::new(nodes);
        let turns = world.begins();
        // Those that live are read in turn beside those that are new.
        let at_once = MAX_READ_AT_ONCE - READ_IN_TURN;
        assert!(turns <= 2 * nodes.div_ceil(at_once) + 5, "{nodes}: {turns}");
        assert!(world.news.iter().all(|(_, _, news)| *news == NodeNews::Lives), "{nodes}");
    }
}

#[test]
fn what_lies_there_and_never_changes_is_judged_in_time_though_it_was_never_read() {
    let mut world = World::new(1_000);
    let old = name("old");
    world.put(&old, "old".into(), Ok(example(1, 1, WALL)));
    world.withheld.insert(old.clone());
    for turn in 1..=JUDGED_AT {
        world.turn(&[]);
        assert_eq!(is_undecided(&world, "old"), turn < JUDGED_AT, "turn {turn}");
    }
    assert_eq!(world.state(&old), NodeState::Unknown, "it has never said anything");
    world.withheld.remove(&old);
    world.turns(40);
    assert_eq!(world.state(&old), NodeState::Silent);
}

#[test]
fn what_changes_is_judged_if_it_is_read_and_says_nothing_new_and_waited_for_if_it_is_not_given() {
    let mut world = World::new(3);
    world.begins();
    for turn in 1..=JUDGED_AT {
        let touched = || format!("touched {turn}");
        world.put(&name("odd"), touched(), Err(HeartbeatFault::Signature));
        world.put(&name("again"), touched(), Ok(example(1, 7, WALL)));
        world.put(&name("kept"), touched(), Ok(example(1, turn, WALL)));
        world.withheld.insert(name("kept"));
        world.turn(&[]);
        let judged = turn == JUDGED_AT;
        let undecided = ["odd", "again", "kept"].map(|node| is_undecided(&world, node));
        assert_eq!(undecided, [!judged, !judged, true], "turn {turn}");
    }
    let states = ["odd", "again"].map(|node| world.state(&name(node)));
    assert_eq!(states, [NodeState::Unknown, NodeState::Silent]);
}
