//! A disk that is full now and then: calls are refused while it is, nothing is lost, retention goes on,
//! and the log comes back each time (ACT-2, ACT-6).

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use mcpproxy::activity::{
    Activity, Config, Draft, Filter, NotAdmitted, Raw, Source, Status, Type, verify,
};

/// The folder of the small disk, for the child.
const DISK: &str = "FAULT_SMALL_DISK";
const MOUNT: &str = r#"mount -t tmpfs -o size=16m tmpfs "$0""#;
/// Room that is left on it where it is to be full soon.
const LEFT: u64 = 256 << 10;
/// How often it is filled.
const ROUNDS: u64 = 3;
/// Records that pruning keeps.
const KEPT: u64 = 200;
/// Calls that wait while it is full: less than it holds.
const ROOM: usize = 100;
/// How long coming back may take on the slowest machine.
const BACK_WITHIN: Duration = Duration::from_secs(30);

/// A call whose arguments do not get smaller by packing.
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

/// Fills a disk of that size but for [`LEFT`]: with the file that is named then.
pub(crate) fn fill(disk: &Path, size: usize) -> PathBuf {
    let ballast = disk.join("ballast");
    let mut size = size;
    while size > 0 && fs::write(&ballast, vec![1; size]).is_err() {
        size -= 64 << 10;
    }
    let file = fs::File::options().write(true).open(&ballast).unwrap();
    file.set_len((size as u64).saturating_sub(LEFT)).unwrap();
    // What is open takes its room even when it is removed.
    drop(file);
    ballast
}

#[test]
fn child() {
    let Ok(disk) = std::env::var(DISK) else { return };
    let (disk, mut seed) = (Path::new(&disk), 1);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let config = Config { max_records: KEPT, queue_records: ROOM, ..Config::default() };
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
        // Retention cannot write its record either, and harms nothing.
        let _told = activity.prune();
        fs::remove_file(ballast).unwrap();
        let deadline = Instant::now() + BACK_WITHIN;
        while activity.flush().is_err() {
            assert!(Instant::now() < deadline, "round {round}: {:?}", activity.health());
            std::thread::park_timeout(Duration::from_millis(20));
        }
        activity.prune().unwrap();
        assert!(activity.verify(|_, _| {}).unwrap().is_sound());
    }
    // Each record that was sent has its number, those that retention removed, by itself or asked to,
    // as well.
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

#[test]
fn act_2_a_disk_that_is_full_now_and_then_loses_nothing() {
    let disk = tempfile::tempdir().unwrap();
    let can = Command::new("unshare")
        .args(["-rm", "sh", "-c", MOUNT])
        .arg(disk.path())
        .stderr(Stdio::null())
        .status();
    if !can.is_ok_and(|status| status.success()) {
        // Where it has to run, root can.
        let required = std::env::var_os("CI").is_some_and(|ci| ci == "true");
        assert!(!(required && is_root()), "a small file system cannot be mounted");
        println!("not run: a small file system cannot be mounted here");
        return;
    }
    let output = Command::new("unshare")
        .args(["-rm", "sh", "-c", &format!("{MOUNT} && exec \"$@\"")])
        .arg(disk.path())
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "small_disk::child", "--nocapture", "--test-threads=1"])
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
