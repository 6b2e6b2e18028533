//! Calls proceed while the log cannot be written: losses are counted and recorded in the log, also by the next
//! process and after a kill (ACT-2).

use mcpproxy_activity::{Activity, Config, Filter, Page, Report, Type, verify};

use crate::plan::{EIO, ENOSPC, Op};
use crate::subject::{LOSES, Phase};
use crate::sweep::{Run, build, folder};

/// Loses records. Returns the folder of the log, the last reported count, and the output of the child.
fn lose(phase: Phase, op: Op, error: u32, only: &str) -> (tempfile::TempDir, u64, String) {
    let (dir, shim) = (folder(), tempfile::tempdir().unwrap());
    let run = Run { shim: &build(shim.path()), phase, op, error, nth: 0, times: u64::MAX, only };
    let (ended_well, output) = run.run(&dir).unwrap();
    assert!(ended_well, "{output}");
    let mut lost = output.lines().filter_map(|line| line.strip_prefix("lost "));
    let lost = lost.next_back().unwrap().parse().unwrap();
    assert!(lost >= LOSES, "{output}");
    (dir, lost, output)
}

/// Verifies the files.
fn check(dir: &tempfile::TempDir) -> Report {
    let scratch = tempfile::tempdir().unwrap();
    let report = verify::folder(&dir.path().join("files/log"), scratch.path(), |_, _| {}).unwrap();
    assert!(report.is_sound(), "{report:?}");
    report
}

/// Opens and closes the log. Returns its loss count and the texts of its `gap` records.
fn open(dir: &tempfile::TempDir) -> (u64, Vec<String>) {
    let log = dir.path().join("files/log");
    let (activity, writer) = Activity::open(&log, Config::default()).unwrap();
    let filter = Filter { kinds: vec![Type::Gap], ..Filter::default() };
    let gaps = activity.list(&filter, &Page::default()).unwrap().records;
    assert!(activity.verify(|_, _| {}).unwrap().is_sound());
    let lost = activity.health().lost;
    writer.close().unwrap();
    (lost, gaps.into_iter().map(|gap| gap.head.error.to_string()).collect())
}

fn unrecorded(report: &Report) -> Vec<(u64, u64)> {
    report.unrecorded.iter().map(|it| (it.at_least, it.records)).collect()
}

#[test]
fn act_2_losses_are_recorded_once_the_log_can_be_written_again() {
    let (dir, lost, output) = lose(Phase::Lose, Op::Write, ENOSPC, "log/db");
    assert!(output.lines().any(|line| line == "back"), "{output}");
    assert_eq!(unrecorded(&check(&dir)), [(lost, lost)]);
    for _ in 0..2 {
        let (counted, gaps) = open(&dir);
        assert_eq!((counted, gaps.len()), (lost, 1));
        assert!(gaps[0].contains("could not be written") && gaps[0].contains("space"), "{gaps:?}");
    }
}

#[test]
fn act_2_losses_after_a_failed_sync_are_recorded_by_the_next_process() {
    // The count of losses is written, although it cannot be synced either.
    let (dir, lost, output) = lose(Phase::Lose, Op::Sync, EIO, "");
    assert!(output.lines().any(|line| line.starts_with("not back")), "{output}");
    assert_eq!(unrecorded(&check(&dir)), [(lost, lost)], "before it is recorded");
    for _ in 0..2 {
        let (counted, gaps) = open(&dir);
        assert_eq!((counted, gaps.len()), (lost, 1));
        assert_eq!(unrecorded(&check(&dir)), [(lost, lost)]);
    }
}

#[test]
fn act_2_losses_are_known_after_a_kill() {
    for (op, error, only) in [(Op::Write, ENOSPC, "log/db"), (Op::Sync, EIO, "")] {
        let (dir, lost, _) = lose(Phase::LoseKilled, op, error, only);
        let before = unrecorded(&check(&dir));
        assert_eq!(before.len(), 1, "{before:?}");
        let (at_least, records) = before[0];
        // Entries waiting in memory are lost as well.
        assert!(at_least >= lost && records >= at_least && records <= lost + 60, "{before:?}");
        for _ in 0..2 {
            let (counted, gaps) = open(&dir);
            assert_eq!((counted, gaps.len()), (records, 1));
            assert_eq!(unrecorded(&check(&dir)), before);
        }
    }
}
