//! A disk that is full from time to time: calls are refused meanwhile, nothing is lost, retention continues, and the
//! log recovers each time (ACT-2, ACT-6).

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use mcpproxy_activity::{
    Activity, Config, Draft, Filter, NotAdmitted, Raw, Source, Status, Type, verify,
};

/// Environment variable with the folder of the small disk, for the child.
const DISK: &str = "FAULT_SMALL_DISK";
const MOUNT: &str = r#"mount -t tmpfs -o size=16m tmpfs "$0""#;
/// Free space left when it is filled.
const LEFT: u64 = 256 << 10;
/// Number of times it is filled.
const ROUNDS: u64 = 3;
/// Maximum number of records.
const KEPT: u64 = 200;
/// Capacity for waiting calls, less than the disk holds.
const CAPACITY: usize = 100;
/// Time limit of a recovery on the slowest machine.
const BACK_WITHIN: Duration = Duration::from_secs(30);

/// A call with incompressible arguments.
pub(crate) fn call(seed: &mut u64) -> Draft {
    let mut draft = Draft::new(Type::ToolCall, Source::Mcp, Status::Success);
    let mut digits = String::from("\"");
    for _ in 0..200 {
        *seed =
            seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        digits.push_str(&format!("{:016x}", *seed));
    }
    digits.push('"');
    draft.keep(Raw::Arguments, digits.as_bytes(), 4096);
    draft
}

/// Fills a disk of that size except for [`LEFT`]. Returns the path of the ballast file.
pub(crate) fn fill(disk: &Path, size: usize) -> PathBuf {
    let ballast = disk.join("ballast");
    let mut size = size;
    while size > 0 && fs::write(&ballast, vec![1; size]).is_err() {
        size -= 64 << 10;
    }
    let file = fs::File::options().write(true).open(&ballast).unwrap();
    file.set_len((size as u64).saturating_sub(LEFT)).unwrap();
    // An open file would occupy its space even after it is removed.
    drop(file);
    ballast
}

#[test]
fn child() {
    let Ok(disk) = std::env::var(DISK) else { return };
    let (disk, mut seed) = (Path::new(&disk), 1);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let config = Config {
        max_records: KEPT,
        min_retention: std::time::Duration::ZERO,
        queue_records: CAPACITY,
        ..Config::default()
    };
    let (activity, writer) = Activity::open(&disk.join("log"), config).unwrap();
    let mut sent = 0;
    for round in 0..ROUNDS {
        let ballast = fill(disk, 16 << 20);
        let refused = loop {
            match runtime.block_on(activity.reserve()) {
                Ok(slot) => drop(slot.submit(call(&mut seed))),
                Err(refused) => break refused,
            }
            sent += 1;
        };
        assert!(matches!(&refused, NotAdmitted::Failed(why) if why.contains("space")), "{refused}");
        // Retention cannot write its record while the disk is full, which must cause no harm.
        let _ignored = activity.prune();
        fs::remove_file(ballast).unwrap();
        let deadline = Instant::now() + BACK_WITHIN;
        while activity.flush().is_err() {
            assert!(Instant::now() < deadline, "round {round}: {:?}", activity.health());
            std::thread::park_timeout(Duration::from_millis(20));
        }
        activity.prune().unwrap();
        assert!(activity.verify(|_, _| {}).unwrap().is_sound());
    }
    // Every submitted record has a number, including those removed by retention.
    let kept = activity.count(&Filter::default()).unwrap();
    let retentions = Filter { kinds: vec![Type::Retention], ..Filter::default() };
    let report = activity.verify(|_, _| {}).unwrap();
    assert!(activity.count(&retentions).unwrap() > 0 && report.first > 1, "{report:?}");
    assert!((KEPT / 2..=KEPT).contains(&kept), "{kept}");
    assert!(report.last > sent, "{report:?} of {sent}");
    assert_eq!(activity.health().lost, 0);
    writer.close().unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let report = verify::folder(&disk.join("log"), scratch.path(), |_, _| {}).unwrap();
    assert!(report.is_sound(), "{report:?}");
    println!("\nheld");
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|it| it.uid() == 0)
}

/// Runs the test `child` of one of these modules with a small file system, which the command `mount` mounts. The
/// environment variable `disk` names its folder. Does nothing if it cannot be mounted here.
pub(crate) fn run_child(mount: &str, disk: &str, child: &str) {
    let folder = tempfile::tempdir().unwrap();
    let can = Command::new("unshare")
        .args(["-rm", "sh", "-c", mount])
        .arg(folder.path())
        .stderr(Stdio::null())
        .status();
    if !can.is_ok_and(|status| status.success()) {
        // On CI, root must be able to mount it.
        let required = std::env::var_os("CI").is_some_and(|ci| ci == "true");
        assert!(!(required && is_root()), "a small file system cannot be mounted");
        println!("not run: a small file system cannot be mounted here");
        return;
    }
    let output = Command::new("unshare")
        .args(["-rm", "sh", "-c", &format!("{mount} && exec \"$@\"")])
        .arg(folder.path())
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", child, "--nocapture", "--test-threads=1"])
        .env(disk, folder.path())
        .output()
        .unwrap();
    let printed = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success() && printed.lines().any(|line| line == "held"), "{printed}");
}

#[test]
fn act_2_disk_that_is_full_from_time_to_time_loses_no_record() {
    run_child(MOUNT, DISK, "small_disk::child");
}
