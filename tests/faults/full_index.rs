//! The disk of an index is full for a while: what it has is answered from meanwhile, and it follows on once there is room,
//! without a restart, as it is on the disk.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mcpproxy::activity::{Activity, Config, Filter};
use mcpproxy::fleet::bucket::Bucket;
use mcpproxy::fleet::config::NodeName;
use mcpproxy::fleet::{
    ClusterConfig, FleetFollower, FleetIndex, FleetLedger, FollowSettings, IndexRole,
    LedgerSettings, NodeVitals, ProgramBuild, ledger,
};
use tokio::runtime::Runtime;

use crate::small_disk::{call, fill};

/// The folder of the small disk, for the child.
const DISK: &str = "FAULT_FULL_INDEX";
const MOUNT: &str = r#"mount -t tmpfs -o size=80m tmpfs "$0""#;
const DISK_BYTES: usize = 80 << 20;
/// How often a node seals.
const FLUSH: Duration = Duration::from_millis(100);
/// Records that are sent at a time, and how often at most until the disk is full.
const SENT: u64 = 100;
const MOST_SENT: u64 = 400;
/// How long something may take on the slowest machine.
const WITHIN: Duration = Duration::from_secs(60);

/// Waits until something is so.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + WITHIN;
    while !is_so() {
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
    until("the index has what was sent", || last() == stored());

    let ballast = fill(disk, DISK_BYTES);
    let error = || index.report().nodes.first().and_then(|node| node.status.error.clone());
    let mut rounds = 0;
    while error().is_none() {
        assert!(rounds < MOST_SENT, "the disk never is full");
        send(&runtime, &activity, &mut seed, SENT);
        until("it is taken, or it fails", || error().is_some() || last() == stored());
        rounds += 1;
    }
    assert_eq!(index.views().unwrap().len(), 1, "what is there is answered from");

    std::fs::remove_file(ballast).unwrap();
    send(&runtime, &activity, &mut seed, SENT);
    until("the index goes on", || last() == stored());
    let report = index.report();
    assert!(!report.nodes[0].made_anew && report.faults().is_empty(), "{report:?}");
    runtime.block_on(follower.end());
    runtime.block_on(ledger.end(true));
    writer.close().unwrap();
    println!("\nheld");
}

#[test]
fn act_2_an_index_whose_disk_was_full_follows_on_without_a_restart() {
    let disk = tempfile::tempdir().unwrap();
    let can = Command::new("unshare")
        .args(["-rm", "sh", "-c", MOUNT])
        .arg(disk.path())
        .stderr(Stdio::null())
        .status();
    if !can.is_ok_and(|status| status.success()) {
        println!("not run: a small file system cannot be mounted here");
        return;
    }
    let output = Command::new("unshare")
        .args(["-rm", "sh", "-c", &format!("{MOUNT} && exec \"$@\"")])
        .arg(disk.path())
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "full_index::child", "--nocapture", "--test-threads=1"])
        .env(DISK, disk.path())
        .output()
        .unwrap();
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success() && said.lines().any(|line| line == "held"), "{said}");
}
