//! Kills at any moment, full disks and missing permissions: every acknowledged record is there, intact and
//! once.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use mcpproxy_activity::{
    Activity, Config, Draft, Durability, Filter, NotAdmitted, OnFailure, Page, Source, Status,
    StoreError, Text, Type, salvage,
};

use crate::support::{call, slot, wait};

const CHILD: &str = "ACTIVITY_TEST_LOG";
const KILLS: u64 = 200;
/// A new log is started from time to time, because recovery is slow in a test build.
const KILLS_PER_LOG: u64 = 25;
/// Calls between two acknowledgements.
const BURST: u64 = 20;

fn numbered(n: u64) -> Draft {
    let mut draft = Draft::new(Type::ToolCall, Source::Mcp, Status::Success);
    draft.set(Text::RequestId, &format!("{n}"));
    draft.set(Text::Server, "server");
    draft
}

/// Child process: checks the log of its predecessor, then writes until it is killed.
#[test]
fn child() {
    let Ok(dir) = std::env::var(CHILD) else { return };
    let dir = Path::new(&dir);
    let config = Config { durability: Durability::BeforeReply, ..Config::default() };
    let (activity, _writer) = Activity::open(&dir.join("log"), config).unwrap();
    let report = activity.verify(|_, _| {}).unwrap();
    assert!(report.is_sound(), "{report:?}");
    let page = Page { limit: 100_000, ..Page::default() };
    let records = activity.list(&Filter::default(), &page).unwrap().records;
    for (n, record) in records.iter().rev().enumerate() {
        assert_eq!((record.seq, &*record.head.request_id), (n as u64 + 1, &*n.to_string()));
    }
    let mut n = records.len() as u64;
    println!("\nfound {n}");
    wait(async {
        loop {
            let mut last = None;
            for _ in 0..BURST {
                last = activity.reserve().await.unwrap().submit(numbered(n));
                n += 1;
            }
            last.unwrap().wait().await.unwrap();
            println!("acknowledged {n}");
        }
    });
}

#[test]
fn act_3_log_killed_at_any_moment_reopens_without_losing_acknowledged_records() {
    let program = std::env::current_exe().unwrap();
    let mut acknowledged = 0;
    let mut dir = tempfile::tempdir().unwrap();
    let mut seed = 42_u64;
    for kill in 0..KILLS {
        if kill % KILLS_PER_LOG == 0 {
            (dir, acknowledged) = (tempfile::tempdir().unwrap(), 0);
        }
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Every fifth child is killed before it has printed anything.
        let lines = if kill % 5 == 4 { 0 } else { 1 + (seed >> 60) };
        let mut child = Command::new(&program)
            .args(["--exact", "crash::child", "--nocapture", "--test-threads=1"])
            .env(CHILD, dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut printed = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut received = 0;
        while received < lines {
            let Some(line) = printed.next() else {
                let output = child.wait_with_output().unwrap();
                panic!("kill {kill}: {}", String::from_utf8_lossy(&output.stderr));
            };
            let line = line.unwrap();
            if let Some(found) = line.strip_prefix("found ") {
                let found: u64 = found.parse().unwrap();
                assert!(found >= acknowledged, "kill {kill}: {found} of {acknowledged}");
                received += 1;
            } else if let Some(n) = line.strip_prefix("acknowledged ") {
                acknowledged = n.parse().unwrap();
                received += 1;
            }
        }
        child.kill().unwrap();
        for line in printed.map_while(Result::ok) {
            if let Some(n) = line.strip_prefix("acknowledged ") {
                acknowledged = n.parse().unwrap_or(acknowledged);
            }
        }
        child.wait().unwrap();
    }
}

/// A temporary folder with a small file system mounted on it.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    /// Mounts a small file system. `None` if mounting is not permitted; on CI, root must be able to.
    fn mount() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mount = ["-t", "tmpfs", "-o", "size=8m", "tmpfs"];
        let mounted = Command::new("mount").args(mount).arg(dir.path()).status();
        if mounted.is_ok_and(|it| it.success()) {
            return Some(Self(dir));
        }
        let required = std::env::var_os("CI").is_some_and(|ci| ci == "true");
        assert!(!(required && is_root()), "a small file system cannot be mounted");
        println!("not run: a small file system cannot be mounted here");
        None
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|it| it.uid() == 0)
}

/// Fills the disk except for `free` bytes.
fn fill(disk: &Path, free: u64) {
    let ballast = disk.join("ballast");
    let mut size = 16 << 20;
    while size > 0 && fs::write(&ballast, vec![1; size]).is_err() {
        size -= 64 << 10;
    }
    let file = fs::File::options().write(true).open(ballast).unwrap();
    file.set_len((size as u64).saturating_sub(free)).unwrap();
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn act_2_full_disk_refuses_calls_and_loses_no_record_once_there_is_space() {
    let Some(disk) = SmallDisk::mount() else { return };
    let disk = disk.0.path();
    let (activity, writer) = Activity::open(&disk.join("log"), Config::default()).unwrap();
    slot(&activity).submit(call(3));
    activity.flush().unwrap();
    fill(disk, 64 << 10);
    let mut sent = 1;
    let in_flight = slot(&activity);
    let refused = loop {
        match wait(activity.reserve()) {
            Ok(slot) => drop(slot.submit(call(3))),
            Err(refused) => break refused,
        }
        sent += 1;
    };
    assert!(matches!(&refused, NotAdmitted::Failed(why) if why.contains("space")), "{refused}");
    assert!(activity.health().failed.is_some());
    // A call that was sent before the disk was full is answered, and its record is kept.
    in_flight.submit(call(3));
    sent += 1;
    fs::remove_file(disk.join("ballast")).unwrap();
    until("it is written again", || activity.health().failed.is_none());
    slot(&activity).submit(call(3));
    assert_eq!(activity.count(&Filter::default()).unwrap(), sent + 1);
    assert!(activity.verify(|_, _| {}).unwrap().is_sound());
    assert_eq!(activity.health().lost, 0);
    writer.close().unwrap();
}

#[test]
fn act_9_salvage_without_space_reports_the_needed_space_and_changes_nothing() {
    let Some(disk) = SmallDisk::mount() else { return };
    let disk = disk.0.path();
    let dir = disk.join("log");
    let (activity, writer) = Activity::open(&dir, Config::default()).unwrap();
    (0..200).for_each(|n| drop(slot(&activity).submit(call(n))));
    writer.close().unwrap();
    fs::remove_file(dir.join("seal")).unwrap();
    fs::write(dir.join("db/keyspaces/1/current"), "").unwrap();
    fill(disk, 256 << 10);
    let names = || {
        let mut names: Vec<_> = fs::read_dir(disk).unwrap().flatten().map(|it| it.path()).collect();
        names.sort();
        names
    };
    let before = names();
    let error = salvage::salvage(&dir, 0).unwrap_err();
    let kind = error.io().unwrap().kind();
    assert_eq!(kind, std::io::ErrorKind::StorageFull, "{error}");
    let text = error.to_string();
    assert!(text.contains("MiB on its disk, and 0 MiB are free; free the rest"), "{text}");
    assert_eq!(names(), before, "nothing is left beside the log");
    fs::remove_file(disk.join("ballast")).unwrap();
    let done = salvage::salvage(&dir, 0).unwrap().unwrap();
    assert_eq!((done.kept, done.lost), (200 + 20, 0));
}

#[test]
fn act_2_on_failure_continue_lets_calls_proceed_and_counts_losses() {
    let Some(disk) = SmallDisk::mount() else { return };
    let disk = disk.0.path();
    let config = Config { on_failure: OnFailure::Continue, queue_records: 50, ..Config::default() };
    let (activity, writer) = Activity::open(&disk.join("log"), config).unwrap();
    slot(&activity).submit(call(3));
    activity.flush().unwrap();
    fill(disk, 64 << 10);
    let mut sent = 1;
    while activity.health().lost < 5 {
        slot(&activity).submit(call(3));
        sent += 1;
    }
    let lost = activity.health().lost;
    fs::remove_file(disk.join("ballast")).unwrap();
    until("it is written again", || activity.health().failed.is_none());
    let all = || activity.count(&Filter::default()).unwrap();
    until("the loss is recorded", || all() == sent - lost + 1);
    let report = activity.verify(|_, _| {}).unwrap();
    assert!(report.is_sound());
    assert_eq!(report.unrecorded.iter().map(|it| it.records).sum::<u64>(), lost);
    writer.close().unwrap();
    let (activity, writer) = Activity::open(&disk.join("log"), Config::default()).unwrap();
    assert_eq!(activity.health().lost, lost, "losses are counted across a restart");
    writer.close().unwrap();
}

#[test]
fn unwritable_folder_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    // Root may write to any folder, so the test uses a file in place of the folder, which has the same effect.
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let error = Activity::open(&file.join("log"), Config::default()).unwrap_err();
    assert!(matches!(error, StoreError::Io(_)), "{error:?}");
}
