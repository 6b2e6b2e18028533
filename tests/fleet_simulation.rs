//! The ledger, those who follow it, and shared facts under everything that can happen to them, in the order of a seed: crashes,
//! requests and answers that are lost, late or done twice, listings and reads that are old, clocks that are wrong, disks that are
//! put back or copied, a store that forgets, an empty one that is there instead for a while, and one in which a stranger changes,
//! removes or puts back what lies there. Short here; at length by `cargo run --release --example simulate-fleet`.

#![allow(unreachable_pub, dead_code, missing_docs, reason = "shared with the example")]

#[path = "fleet_simulation/follower.rs"]
mod follower;
#[path = "fleet_simulation/node.rs"]
mod node;
#[path = "fleet_simulation/random.rs"]
mod random;
#[path = "fleet_simulation/sharing.rs"]
mod sharing;
#[path = "fleet_simulation/sharing_node.rs"]
mod sharing_node;
#[path = "fleet_simulation/shelf.rs"]
mod shelf;
#[path = "fleet_simulation/store.rs"]
mod store;
#[path = "fleet_simulation/variant.rs"]
mod variant;
#[path = "fleet_simulation/world.rs"]
mod world;

use sharing::SharingOutcome;
use variant::Variant;

/// Schedules that are run here.
const SCHEDULES: u64 = 1000;
/// In which each broken variant is found: of one, seed 1054 is the first.
const MOST_SOUGHT: u64 = 4_000;

#[test]
fn whatever_happens_each_record_is_kept_and_followed_once_and_all_nodes_have_the_same_facts() {
    let (mut segments, mut crashes, mut forked, mut forgot, mut refused) = (0, 0, 0, 0, 0);
    let (mut taken, mut told, mut restarts, mut astray) = (0, 0, 0, 0);
    let mut shared = SharingOutcome::default();
    for seed in 0..SCHEDULES {
        let outcome = world::run(seed, Variant::Right, false);
        let outcome = outcome.unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        segments += outcome.segments;
        crashes += outcome.crashes;
        forked += u64::from(outcome.forked);
        forgot += u64::from(outcome.forgot);
        refused += u64::from(outcome.refused);
        taken += outcome.taken;
        astray += outcome.astray;
        told += outcome.told;
        restarts += outcome.restarts;
        shared.add(&outcome.sharing);
    }
    // It is no proof of anything if none of this has happened.
    let happened = [segments, crashes, forked, forgot, refused, taken, told, restarts, astray];
    let SharingOutcome { events: _, puts, ends, put_back, crashes } = shared;
    let happened = happened.into_iter().chain([puts, ends, put_back, crashes]);
    let happened: Vec<_> = happened.collect();
    assert!(happened.iter().all(|count| *count > SCHEDULES / 100), "{happened:?}");
}

#[test]
fn each_broken_variant_is_found() {
    for variant in Variant::BROKEN {
        let found = (0..MOST_SOUGHT).find(|seed| world::run(*seed, variant, false).is_err());
        assert!(found.is_some(), "{variant:?} was not found in {MOST_SOUGHT} schedules");
    }
}

#[test]
fn a_seed_gives_the_same_schedule_again() {
    for seed in 0..50 {
        let outcome = || format!("{:?}", world::run(seed, Variant::Right, false));
        assert_eq!(outcome(), outcome());
    }
}
