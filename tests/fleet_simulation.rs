//! The ledger under everything that can happen to it, in the order of a seed: crashes, requests and answers that are lost, late
//! or done twice, clocks that are wrong, disks that are put back or copied, a store that forgets. Short here; at length by
//! `cargo run --release --example simulate-fleet`.

#![allow(unreachable_pub, dead_code, missing_docs, reason = "shared with the example")]

#[path = "fleet_simulation/node.rs"]
mod node;
#[path = "fleet_simulation/random.rs"]
mod random;
#[path = "fleet_simulation/store.rs"]
mod store;
#[path = "fleet_simulation/variant.rs"]
mod variant;
#[path = "fleet_simulation/world.rs"]
mod world;

use variant::Variant;

/// Schedules that are run here.
const SCHEDULES: u64 = 2000;

#[test]
fn whatever_happens_each_record_is_in_the_ledger_once_and_no_fork_is_taken_for_a_chain() {
    let (mut segments, mut crashes, mut forked, mut forgot, mut refused) = (0, 0, 0, 0, 0);
    for seed in 0..SCHEDULES {
        let outcome = world::run(seed, Variant::Right, false);
        let outcome = outcome.unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        segments += outcome.segments;
        crashes += outcome.crashes;
        forked += u64::from(outcome.forked);
        forgot += u64::from(outcome.forgot);
        refused += u64::from(outcome.refused);
    }
    // It is no proof of anything if none of this has happened.
    for count in [segments, crashes, forked, forgot, refused] {
        assert!(count > SCHEDULES / 100, "{segments} {crashes} {forked} {forgot} {refused}");
    }
}

#[test]
fn each_broken_variant_is_found() {
    for variant in Variant::BROKEN {
        let found = (0..SCHEDULES).find(|seed| world::run(*seed, variant, false).is_err());
        assert!(found.is_some(), "{variant:?} was not found in {SCHEDULES} schedules");
    }
}

#[test]
fn a_seed_gives_the_same_schedule_again() {
    for seed in 0..50 {
        let outcome = || format!("{:?}", world::run(seed, Variant::Right, false));
        assert_eq!(outcome(), outcome());
    }
}
