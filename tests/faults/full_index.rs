//! A temporarily full disk of a fleet index: queries are answered from its current contents, and it continues to follow
//! without a restart once there is space.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mcpproxy_activity::{Activity, Config, Filter};
use mcpproxy_fleet::bucket::Bucket;
use mcpproxy_fleet::config::NodeName;
use mcpproxy_fleet::{
    ClusterConfig, FleetFollower, FleetIndex, FleetLedger, FollowSettings, IndexRole,
    LedgerSettings, NodeVitals, ProgramBuild, ledger,
};
use tokio::runtime::Runtime;

use crate::small_disk::{call, fill, run_child};

/// Environment variable with the folder of the small disk, for the child.
const DISK: &str = "FAULT_FULL_INDEX";
const MOUNT: &str = r#"mount -t tmpfs -o size=80m tmpfs "$0""#;
const DISK_BYTES: usize = 80 << 20;
/// Interval at which a node seals segments.
const FLUSH: Duration = Duration::from_millis(100);
/// Records per round, and maximum number of rounds until the disk is full.
const SENT: u64 = 100;
const MAX_ROUNDS: u64 = 400;
/// Time limit of a condition on the slowest machine.
const TIMEOUT: Duration = Duration::from_secs(60);

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

fn send(runtime: &Runtime, activity: &Activity, seed: &mut u64, count: u64) {
    for _ in 0..count {
        drop(runtime.block_on(activity.reserve()).unwrap().submit(call(seed)));
    }
    activity.flush().unwrap();
}

#[test]
fn child() {
    let Ok(disk) = std::env::var(DISK) else { return };
    let (disk, mut seed) = (Path::new(&disk), 1);
    let runtime = Runtime::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    std::fs::create_dir(&store).unwrap();
    let store = format!("file://{}", store.display());
    let log = folder.path().join("activity");
    let (activity, writer) = Activity::open(&log, Config::default()).unwrap();
    let config = ClusterConfig {
        store: Some(store.clone()),
        node: NodeName::parse("a"),
        flush: FLUSH,
        ..ClusterConfig::default()
    };
    let settings = LedgerSettings::of(&config, folder.path().join("fleet")).unwrap();
    let build = ProgramBuild { version: "0", commit: "0" };
    let entered = runtime.block_on(ledger::enter(settings, build, &activity)).unwrap();
    let vitals = Arc::new(NodeVitals::default);
    let ledger = FleetLedger::start(entered, activity.clone(), vitals, runtime.handle());
    let index = Arc::new(FleetIndex::new(IndexRole::Whole));
    let settings = FollowSettings {
        role: IndexRole::Whole,
        own: NodeName::parse("b").unwrap(),
        folder: disk.join("index"),
        flush: FLUSH,
        retention: Config::default().retention(),
    };
    let bucket = Bucket::open(&store).unwrap();
    let follower = FleetFollower::start(settings, bucket, Arc::clone(&index), runtime.handle());
    let stored = || activity.count(&Filter::default()).unwrap();
    let last = || index.report().nodes.first().map_or(0, |node| node.status.last);
    send(&runtime, &activity, &mut seed, SENT);
    until("the index has all records", || last() == stored());

    let ballast = fill(disk, DISK_BYTES);
    let error = || index.report().nodes.first().and_then(|node| node.status.error.clone());
    let mut rounds = 0;
    while error().is_none() {
        assert!(rounds < MAX_ROUNDS, "the disk does not get full");
        send(&runtime, &activity, &mut seed, SENT);
        until("the records are indexed, or indexing fails", || {
            error().is_some() || last() == stored()
        });
        rounds += 1;
    }
    assert_eq!(index.views().unwrap().len(), 1, "queries are answered from the current contents");

    std::fs::remove_file(ballast).unwrap();
    send(&runtime, &activity, &mut seed, SENT);
    until("the index continues", || last() == stored());
    let report = index.report();
    assert!(!report.nodes[0].rebuilt && report.faults().is_empty(), "{report:?}");
    runtime.block_on(follower.end());
    runtime.block_on(ledger.end(true));
    writer.close().unwrap();
    println!("\nheld");
}

#[test]
fn act_2_index_continues_without_a_restart_after_its_disk_was_full() {
    run_child(MOUNT, DISK, "full_index::child");
}
