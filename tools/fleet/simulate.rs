//! Runs schedules of a simulated ledger, its followers and shared facts on all cores: `simulate-fleet [COUNT]
//! [FIRST_SEED] [VARIANT]`. At the first schedule that violates an invariant, it prints the seed and the events of that
//! schedule, and exits with 1.

#![allow(unreachable_pub, dead_code, missing_docs, reason = "shared with the test")]

#[path = "../../tests/fleet_simulation/follower.rs"]
mod follower;
#[path = "../../tests/fleet_simulation/node.rs"]
mod node;
#[path = "../../tests/fleet_simulation/random.rs"]
mod random;
#[path = "../../tests/fleet_simulation/sharing.rs"]
mod sharing;
#[path = "../../tests/fleet_simulation/sharing_node.rs"]
mod sharing_node;
#[path = "../../tests/fleet_simulation/shelf.rs"]
mod shelf;
#[path = "../../tests/fleet_simulation/store.rs"]
mod store;
#[path = "../../tests/fleet_simulation/variant.rs"]
mod variant;
#[path = "../../tests/fleet_simulation/world.rs"]
mod world;

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use variant::Variant;
use world::Outcome;

/// Schedules that a thread takes at a time.
const PORTION: u64 = 1000;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default| arguments.next().map_or(Ok(default), |it| it.parse::<u64>());
    let (Ok(count), Ok(first)) = (number(1_000_000), number(0)) else {
        eprintln!("usage: simulate-fleet [COUNT] [FIRST_SEED] [VARIANT]");
        return ExitCode::from(2);
    };
    let variant = match arguments.next() {
        None => Variant::Right,
        Some(name) => match Variant::named(&name) {
            Some(variant) => variant,
            None => {
                eprintln!("unknown variant {name}: expected Right or one of {:?}", Variant::BROKEN);
                return ExitCode::from(2);
            }
        },
    };
    let (begun, next, failed) = (Instant::now(), AtomicU64::new(first), AtomicU64::new(u64::MAX));
    let end = first + count;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let work = || {
        let mut sum = Outcome::default();
        let mut counts = [0_u64; 4];
        loop {
            let from = next.fetch_add(PORTION, Ordering::Relaxed);
            if from >= end || failed.load(Ordering::Relaxed) != u64::MAX {
                return (sum, counts);
            }
            for seed in from..(from + PORTION).min(end) {
                let Ok(outcome) = world::run(seed, variant, false) else {
                    failed.fetch_min(seed, Ordering::Relaxed);
                    break;
                };
                sum.events += outcome.events;
                sum.segments += outcome.segments;
                sum.records += outcome.records;
                sum.crashes += outcome.crashes;
                sum.astray += outcome.astray;
                sum.taken += outcome.taken;
                sum.reported += outcome.reported;
                sum.restarts += outcome.restarts;
                sum.sharing.add(&outcome.sharing);
                let happened = [true, outcome.forked, outcome.forgot, outcome.refused];
                counts.iter_mut().zip(happened).for_each(|(sum, it)| *sum += u64::from(it));
            }
        }
    };
    let sums = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect::<Vec<_>>()
    });
    let (mut sum, mut counts) = (Outcome::default(), [0_u64; 4]);
    for (outcome, more) in sums {
        sum.events += outcome.events;
        sum.segments += outcome.segments;
        sum.records += outcome.records;
        sum.crashes += outcome.crashes;
        sum.astray += outcome.astray;
        sum.taken += outcome.taken;
        sum.reported += outcome.reported;
        sum.restarts += outcome.restarts;
        sum.sharing.add(&outcome.sharing);
        counts.iter_mut().zip(more).for_each(|(sum, it)| *sum += it);
    }
    let [schedules, forked, forgot, refused] = counts;
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "{schedules} schedules from seed {first} in {seconds:.0} s ({:.0}/s): {} events, {} crashes, {} segments, {} records; \
         the store forgot in {forgot}, a chain forked in {forked}, a node was refused in {refused}; {} puts into \
         another store that was there instead; index nodes: {} segments, \
         {} faults reported, {} crashes; facts: {} events, {} puts, {} ends, {} times put back, removed or altered, {} crashes",
        schedules as f64 / seconds,
        sum.events,
        sum.crashes,
        sum.segments,
        sum.records,
        sum.astray,
        sum.taken,
        sum.reported,
        sum.restarts,
        sum.sharing.events,
        sum.sharing.puts,
        sum.sharing.ends,
        sum.sharing.put_back,
        sum.sharing.crashes,
    );
    match failed.load(Ordering::Relaxed) {
        u64::MAX => ExitCode::SUCCESS,
        seed => {
            let why = world::run(seed, variant, true).err().unwrap_or_default();
            println!("seed {seed}: {why}");
            ExitCode::FAILURE
        }
    }
}
