//! A log damaged while it is open continues: derived data is rebuilt, and damaged records cost their block
//! and are named (ACT-9).

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mcpproxy_activity::store::{Space, Store};
use mcpproxy_activity::{
    Activity, Config, Filter, From, Page, Payloads, Period, QueryError, Report, StoreError, Type,
    Writer, salvage,
};

use crate::support::{NEW_YEAR, call, open, wait};
use crate::tamper::{assert_one_block_lost, check, flip, folder, log, rows, table_with, with_copy};

/// Maximum time of a repair on the slowest machine.
const REPAIR_TIMEOUT: Duration = Duration::from_secs(60);
/// Number of damaged positions per table; `tools/faults` tries more.
const PLACES: &str = "FAULTS_FLIPS";
const ALL: [Space; 6] =
    [Space::Heads, Space::Bodies, Space::Index, Space::Segments, Space::Stats, Space::State];

/// Results of queries that depend on the index and the counters.
fn derived(activity: &Activity) -> (u64, u64, [u64; 4]) {
    let server = Filter { servers: vec!["github".into()], ..Filter::default() };
    let late = Filter { since: Some(NEW_YEAR + 100_000_000), ..Filter::default() };
    let summary = activity.summary(Period::Day, NEW_YEAR + 3_600_000_000).unwrap();
    let summary = serde_json::to_value(&summary).unwrap();
    let counts = ["total_count", "success_count", "error_count", "blocked_count"];
    let counts = counts.map(|count| summary[count].as_u64().unwrap());
    (activity.count(&server).unwrap(), activity.count(&late).unwrap(), counts)
}

/// Waits until everything is durable; the log may be repaired meanwhile.
fn durable(activity: &Activity) {
    let deadline = Instant::now() + REPAIR_TIMEOUT;
    while activity.flush().is_err() {
        assert!(Instant::now() < deadline, "{:?}", activity.health());
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

/// Writes records in any state of the log.
fn assert_writable(activity: &Activity) {
    for _ in 0..20 {
        durable(activity);
        if let Ok(slot) = wait(activity.reserve()) {
            slot.submit(call(3));
        }
    }
    durable(activity);
}

/// Waits until every record is intact or named as lost.
fn sound(activity: &Activity) -> Report {
    let deadline = Instant::now() + REPAIR_TIMEOUT;
    loop {
        match activity.verify(|_, _| {}) {
            Ok(report) if report.is_sound() => return report,
            found => assert!(Instant::now() < deadline, "{found:?}"),
        }
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

/// The largest table of a keyspace of an open log.
fn largest(dir: &Path, space: Space) -> PathBuf {
    let number = ALL.iter().position(|it| *it == space).unwrap() + 1;
    let tables = fs::read_dir(dir.join(format!("db/keyspaces/{number}/tables"))).unwrap();
    let tables = tables.map(|table| table.unwrap().path());
    tables.max_by_key(|table| fs::metadata(table).unwrap().len()).unwrap()
}

/// Closes the log and rewrites all its tables.
fn close_and_compact(dir: &Path, writer: Writer) {
    writer.close().unwrap();
    let store = Store::open(dir).unwrap();
    ALL.into_iter().for_each(|space| store.compact(space).unwrap());
    drop(store);
    fs::remove_file(dir.join("seal")).unwrap();
    let report = check(dir).unwrap();
    assert!(report.is_sound(), "{report:?}");
}

fn aside_folders(dir: &Path) -> usize {
    let beside = fs::read_dir(dir.parent().unwrap()).unwrap();
    beside
        .filter(|it| it.as_ref().unwrap().file_name().to_string_lossy().contains("damaged"))
        .count()
}

#[test]
fn act_9_scrub_finds_damaged_derived_data_which_is_rebuilt_in_place() {
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
            assert_writable(&activity);
            assert_eq!(activity.count(&Filter::default()).unwrap(), count + 20);
            assert_eq!(activity.scrub().unwrap(), None, "it is repaired");
            assert_eq!(aside_folders(dir), 0, "nothing had to be moved aside");
            close_and_compact(dir, writer);
        });
    }
}

#[test]
fn act_9_damage_found_by_any_read_is_reported_without_starting_a_repair() {
    let dir = folder();
    let dir = dir.path().join("log");
    let count = log(&dir);
    let calls = Filter { kinds: vec![Type::ToolCall], ..Filter::default() };
    let page = Page { limit: 10_000, from: From::Newest, payloads: Payloads::Include };
    type Read<'a> = &'a dyn Fn(&Activity) -> Option<QueryError>;
    let list = |activity: &Activity| {
        activity.stored().and_then(|view| Ok(view.list(&calls, &page)?)).err()
    };
    let reads: [(Space, Read<'_>); 5] = [
        (Space::Heads, &list),
        (Space::Bodies, &list),
        (Space::Bodies, &|activity| activity.verify(|_, _| {}).err()),
        (Space::Index, &list),
        (Space::Stats, &|activity| activity.summary(Period::Day, NEW_YEAR).err()),
    ];
    for (space, read) in reads {
        with_copy(&dir, |dir| {
            let table = table_with(dir, space);
            let (activity, writer) = open(dir);
            assert!(read(&activity).is_none() && activity.health().damaged.is_none(), "{space:?}");
            drop((activity, writer));
            flip(&table, fs::metadata(&table).unwrap().len() as usize / 8);
            let (activity, writer) = open(dir);
            let found = read(&activity);
            let health = activity.health();
            let damaged = health.damaged.unwrap_or_else(|| panic!("{space:?}: {found:?}"));
            assert!(damaged.contains("serve --salvage"), "{damaged}");
            assert!(damaged.contains(&*table.to_string_lossy()), "{space:?}: {damaged}");
            assert!(health.failed.is_none(), "the writer continues");
            activity.flush().unwrap();
            drop(writer);
        });
    }
    assert!(count > 0);
}

#[test]
fn act_9_compaction_of_a_damaged_table_stops_the_log_only_until_the_repair() {
    let dir = folder();
    let dir = dir.path().join("log");
    let count = log(&dir);
    let places = std::env::var(PLACES).map_or(1, |places| places.parse::<usize>().unwrap());
    for space in ALL.into_iter().filter(|space| *space != Space::State) {
        for place in 0..places {
            with_copy(&dir, |dir| {
                compact_damaged_table(dir, space, count, (2 * place + 1, 8 * places))
            });
        }
    }
}

/// Damages one of `parts` positions of a table of a keyspace, and compacts the log.
fn compact_damaged_table(dir: &Path, space: Space, count: u64, (part, parts): (usize, usize)) {
    let _ = fs::remove_file(dir.join("seal"));
    let table = table_with(dir, space);
    // Damage in derived data costs no record.
    let is_derived = matches!(space, Space::Index | Space::Segments | Space::Stats);
    let rows = if is_derived { Vec::new() } else { rows(dir, space, count) };
    let _ = fs::remove_file(dir.join("seal"));
    let size = fs::metadata(&table).unwrap().len() as usize;
    flip(&table, size * part / parts);
    let config = Config {
        max_records: count - 10,
        min_retention: std::time::Duration::ZERO,
        ..Config::default()
    };
    let (activity, writer) = match Activity::open(dir, config.clone()) {
        Ok(opened) => opened,
        // The log may not open at all with this damage: then it is salvaged.
        Err(error) => {
            assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
            salvage::salvage(dir, 0).unwrap().unwrap();
            Activity::open(dir, config).unwrap()
        }
    };
    // Removing records rewrites the tables, which fails because of the damage.
    let damaged = fs::read(&table).ok();
    let _pruned = activity.prune();
    let deadline = Instant::now() + REPAIR_TIMEOUT;
    while fs::read(&table).ok() == damaged && damaged.is_some() {
        assert!(Instant::now() < deadline, "{space:?} is not repaired: {:?}", activity.health());
        std::thread::park_timeout(Duration::from_millis(20));
    }
    assert_writable(&activity);
    let _pruned = activity.prune();
    assert_writable(&activity);
    let report = sound(&activity);
    assert_one_block_lost(&rows, &report);
    close_and_compact(dir, writer);
}

#[test]
fn act_9_damaged_records_lose_only_their_block_and_the_log_continues() {
    let dir = folder();
    let dir = dir.path().join("log");
    let count = log(&dir);
    for space in [Space::Heads, Space::Bodies] {
        with_copy(&dir, |dir| {
            let (table, rows) = (table_with(dir, space), rows(dir, space, count));
            let _ = fs::remove_file(dir.join("seal"));
            flip(&table, fs::metadata(&table).unwrap().len() as usize / 2);
            let (activity, writer) = open(dir);
            assert_eq!(activity.scrub().unwrap(), Some(table));
            assert_writable(&activity);
            let report = sound(&activity);
            assert!(!report.gaps.is_empty(), "{report:?}");
            assert_one_block_lost(&rows, &report);
            let gaps = Filter { kinds: vec![Type::Gap], ..Filter::default() };
            assert_eq!(activity.count(&gaps).unwrap(), report.gaps.len() as u64);
            assert_eq!(aside_folders(dir), 1, "nothing is deleted");
            assert_eq!(activity.scrub().unwrap(), None, "it is repaired");
            close_and_compact(dir, writer);
        });
    }
}

#[test]
fn act_9_unreadable_log_is_not_replaced_without_the_operator() {
    let home = folder();
    let dir = home.path().join("log");
    log(&dir);
    // Everything in tables, and nothing in journals.
    let store = Store::open(&dir).unwrap();
    ALL.into_iter().for_each(|space| store.compact(space).unwrap());
    drop(store);
    let journals = fs::read_dir(dir.join("db")).unwrap().map(|it| it.unwrap().path());
    let journals = journals.filter(|it| it.extension().is_some_and(|it| it == "jnl"));
    journals.for_each(|journal| fs::write(journal, "").unwrap());
    fs::remove_file(dir.join("seal")).unwrap();
    let (activity, writer) = open(&dir);
    let table = largest(&dir, Space::Heads);
    let bytes = vec![0; fs::metadata(&table).unwrap().len() as usize];
    fs::write(&table, &bytes).unwrap();
    assert_eq!(activity.scrub().unwrap(), Some(table.clone()));
    let deadline = Instant::now() + REPAIR_TIMEOUT;
    let tried = |failed: Option<String>| {
        failed.is_some_and(|it| !it.contains("it differs from what was written"))
    };
    while !tried(activity.health().failed) {
        assert!(Instant::now() < deadline, "{:?}", activity.health());
        std::thread::park_timeout(Duration::from_millis(20));
    }
    assert!(wait(activity.reserve()).is_err(), "calls are refused");
    assert!(writer.close().is_err());
    assert_eq!((aside_folders(&dir), fs::read(&table).unwrap()), (0, bytes), "it is left in place");
}
