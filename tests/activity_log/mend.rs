//! A log that is damaged while it is open goes on: what is derived is made anew, damaged records cost
//! their block and are named (ACT-9).

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mcpproxy::activity::store::{Space, Store};
use mcpproxy::activity::{
    Activity, Config, Filter, Period, Report, StoreError, Type, Writer, salvage,
};

use crate::support::{NEW_YEAR, call, open, wait};
use crate::tamper::{check, flip, folder, log, table_with, with_copy};

/// How long mending may take on the slowest machine.
const MENDS_WITHIN: Duration = Duration::from_secs(60);
/// How many places of each table are damaged, one after the other; `tools/faults` tries more.
const PLACES: &str = "FAULTS_FLIPS";
const ALL: [Space; 6] =
    [Space::Heads, Space::Bodies, Space::Index, Space::Segments, Space::Stats, Space::State];

/// What the index and the counters answer.
fn derived(activity: &Activity) -> (u64, u64, [u64; 4]) {
    let server = Filter { servers: vec!["github".into()], ..Filter::default() };
    let late = Filter { since: Some(NEW_YEAR + 100_000_000), ..Filter::default() };
    let summary = activity.summary(Period::Day, NEW_YEAR + 3_600_000_000).unwrap();
    let summary = serde_json::to_value(&summary).unwrap();
    let counts = ["total_count", "success_count", "error_count", "blocked_count"];
    let counts = counts.map(|count| summary[count].as_u64().unwrap());
    (activity.count(&server).unwrap(), activity.count(&late).unwrap(), counts)
}

/// Waits until everything is durable; the log may be mended meanwhile.
fn durable(activity: &Activity) {
    let deadline = Instant::now() + MENDS_WITHIN;
    while activity.flush().is_err() {
        assert!(Instant::now() < deadline, "{:?}", activity.health());
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

/// Writes records, whatever state the log is in.
fn goes_on(activity: &Activity) {
    for _ in 0..20 {
        durable(activity);
        if let Ok(slot) = wait(activity.reserve()) {
            slot.submit(call(3));
        }
    }
    durable(activity);
}

/// Waits until every record is as it was written, or the log says that it is not there.
fn sound(activity: &Activity) -> Report {
    let deadline = Instant::now() + MENDS_WITHIN;
    loop {
        match activity.verify(|_, _| {}) {
            Ok(report) if report.is_sound() => return report,
            found => assert!(Instant::now() < deadline, "{found:?}"),
        }
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

/// The largest table of a keyspace of a log that is open.
fn largest(dir: &Path, space: Space) -> PathBuf {
    let number = ALL.iter().position(|it| *it == space).unwrap() + 1;
    let tables = fs::read_dir(dir.join(format!("db/keyspaces/{number}/tables"))).unwrap();
    let tables = tables.map(|table| table.unwrap().path());
    tables.max_by_key(|table| fs::metadata(table).unwrap().len()).unwrap()
}

/// Closes the log, and rewrites all its tables.
fn closes_and_compacts(dir: &Path, writer: Writer) {
    writer.close().unwrap();
    let store = Store::open(dir).unwrap();
    ALL.into_iter().for_each(|space| store.compact(space).unwrap());
    drop(store);
    fs::remove_file(dir.join("seal")).unwrap();
    let report = check(dir).unwrap();
    assert!(report.is_sound(), "{report:?}");
}

fn asides(dir: &Path) -> usize {
    let beside = fs::read_dir(dir.parent().unwrap()).unwrap();
    beside
        .filter(|it| it.as_ref().unwrap().file_name().to_string_lossy().contains("damaged"))
        .count()
}

#[test]
fn act_9_a_scrub_finds_damage_in_what_is_derived_and_it_is_made_anew_in_its_place() {
    let dir = folder();
    let dir = dir.path().join("log");
    let count = log(&dir);
    for space in [Space::Index, Space::Segments, Space::Stats] {
        with_copy(&dir, |dir| {
            let (activity, writer) = open(dir);
            let before = derived(&activity);
            assert_eq!(activity.scrub().unwrap(), None);
            let table = largest(dir, space);
            flip(&table, fs::metadata(&table).unwrap().len() as usize / 8);
            assert_eq!(activity.scrub().unwrap(), Some(table));
            durable(&activity);
            assert_eq!(activity.count(&Filter::default()).unwrap(), count);
            assert_eq!(derived(&activity), before);
            goes_on(&activity);
            assert_eq!(activity.count(&Filter::default()).unwrap(), count + 20);
            assert_eq!(activity.scrub().unwrap(), None, "it is mended");
            assert_eq!(asides(dir), 0, "nothing had to be moved aside");
            closes_and_compacts(dir, writer);
        });
    }
}

#[test]
fn act_9_a_compaction_that_meets_damage_stops_the_log_only_until_it_is_mended() {
    let dir = folder();
    let dir = dir.path().join("log");
    let count = log(&dir);
    let places = std::env::var(PLACES).map_or(1, |places| places.parse::<usize>().unwrap());
    for space in ALL.into_iter().filter(|space| *space != Space::State) {
        for place in 0..places {
            with_copy(&dir, |dir| meets_damage(dir, space, count, (2 * place + 1, 8 * places)));
        }
    }
}

/// Damages a table of a keyspace at so many parts of it, and has the log compacted.
fn meets_damage(dir: &Path, space: Space, count: u64, (part, parts): (usize, usize)) {
    let _ = fs::remove_file(dir.join("seal"));
    let table = table_with(dir, space);
    let _ = fs::remove_file(dir.join("seal"));
    let size = fs::metadata(&table).unwrap().len() as usize;
    flip(&table, size * part / parts);
    let config = Config { max_records: count - 10, ..Config::default() };
    let (activity, writer) = match Activity::open(dir, config.clone()) {
        Ok(opened) => opened,
        // In a place without which it cannot be opened: then it is told, and salvaged.
        Err(error) => {
            assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
            salvage::salvage(dir, 0).unwrap().unwrap();
            Activity::open(dir, config).unwrap()
        }
    };
    // Rewrites the tables, and is told that it cannot.
    let damaged = fs::read(&table).ok();
    let _told = activity.prune();
    let deadline = Instant::now() + MENDS_WITHIN;
    while fs::read(&table).ok() == damaged && damaged.is_some() {
        assert!(Instant::now() < deadline, "{space:?} is not mended: {:?}", activity.health());
        std::thread::park_timeout(Duration::from_millis(20));
    }
    goes_on(&activity);
    let _pruned = activity.prune();
    goes_on(&activity);
    let report = sound(&activity);
    let lost: u64 = report.gaps.iter().map(|gap| gap.records()).sum();
    let is_derived = matches!(space, Space::Index | Space::Segments | Space::Stats);
    assert!(lost < count / 2 && !(is_derived && lost > 0), "{space:?} {report:?}");
    closes_and_compacts(dir, writer);
}

#[test]
fn act_9_damaged_records_cost_their_block_are_named_and_the_log_goes_on() {
    let dir = folder();
    let dir = dir.path().join("log");
    let count = log(&dir);
    for space in [Space::Heads, Space::Bodies] {
        with_copy(&dir, |dir| {
            let table = table_with(dir, space);
            let _ = fs::remove_file(dir.join("seal"));
            flip(&table, fs::metadata(&table).unwrap().len() as usize / 2);
            let (activity, writer) = open(dir);
            assert_eq!(activity.scrub().unwrap(), Some(table));
            goes_on(&activity);
            let report = sound(&activity);
            let lost: u64 = report.gaps.iter().map(|gap| gap.records()).sum();
            assert!(0 < lost && lost < count / 2, "{report:?}");
            let gaps = Filter { kinds: vec![Type::Gap], ..Filter::default() };
            assert_eq!(activity.count(&gaps).unwrap(), report.gaps.len() as u64);
            assert_eq!(asides(dir), 1, "nothing is deleted");
            assert_eq!(activity.scrub().unwrap(), None, "it is mended");
            closes_and_compacts(dir, writer);
        });
    }
}

#[test]
fn act_9_a_log_of_which_nothing_can_be_read_is_not_replaced_unasked() {
    let home = folder();
    let dir = home.path().join("log");
    log(&dir);
    let (activity, writer) = open(&dir);
    let table = largest(&dir, Space::Heads);
    let mut bytes = fs::read(&table).unwrap();
    let end = bytes.len() / 4 * 3;
    bytes[end..].fill(0);
    fs::write(&table, &bytes).unwrap();
    assert_eq!(activity.scrub().unwrap(), Some(table.clone()));
    let deadline = Instant::now() + MENDS_WITHIN;
    let tried =
        |failed: Option<String>| failed.is_some_and(|it| !it.contains("not what was written"));
    while !tried(activity.health().failed) {
        assert!(Instant::now() < deadline, "{:?}", activity.health());
        std::thread::park_timeout(Duration::from_millis(20));
    }
    assert!(wait(activity.reserve()).is_err(), "calls are refused");
    assert!(writer.close().is_err());
    assert_eq!((asides(&dir), fs::read(&table).unwrap()), (0, bytes), "it is where it was");
}
