//! Records that are too old, too many or too large are removed from the front, and the removal is recorded
//! (ACT-6).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mcpproxy_activity::{Activity, Config, Entry, Filter, From, Page, Period, Raw, Type, verify};

use crate::support::{NEW_YEAR, call, slot};

const HOUR_MS: u64 = 3600 * 1000;
const DAY_MS: u64 = 24 * HOUR_MS;

fn seqs(activity: &Activity) -> Vec<u64> {
    let page = Page { limit: 100_000, ..Page::default() };
    let records = activity.list(&Filter::default(), &page).unwrap().records;
    records.iter().map(|it| it.seq).rev().collect()
}

fn submit(activity: &Activity, calls: std::ops::Range<u64>) {
    calls.for_each(|n| drop(slot(activity).submit(call(n))));
}

#[test]
fn act_6_oldest_records_beyond_the_count_are_removed_and_the_chain_verifies() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("log");
    let config = || Config {
        max_records: 1500,
        retention_days: 0,
        min_retention: Duration::ZERO,
        ..Config::default()
    };
    // Limits with which retention does not start because of the number of records.
    let wide = Config { max_records: 0, retention_days: 0, ..Config::default() };
    let (activity, writer) = Activity::open(&dir, wide).unwrap();
    submit(&activity, 0..4000);
    let page = Page { limit: 2000, ..Page::default() };
    let cursor = activity.list(&Filter::default(), &page).unwrap().next_cursor.unwrap();
    let all = *seqs(&activity).last().unwrap();
    writer.close().unwrap();

    let (activity, writer) = Activity::open(&dir, config()).unwrap();
    let removed = activity.prune().unwrap();
    assert_eq!(removed, all + 1 - 1500);
    assert_eq!(seqs(&activity), (removed + 1..=all + 1).collect::<Vec<_>>());
    let page = Page { limit: 3, ..Page::default() };
    let newest = &activity.list(&Filter::default(), &page).unwrap().records[0];
    assert_eq!(newest.head.kind, Type::Retention);
    let json = serde_json::to_value(newest).unwrap();
    assert_eq!(json["metadata"]["first_kept_seq"], removed + 1);
    assert_eq!(json["metadata"]["removed"], removed);
    // A cursor to removed records ends the list.
    let page = Page { from: From::After(cursor), ..Page::default() };
    let listing = activity.list(&Filter::default(), &page).unwrap();
    assert!(listing.records.is_empty() && listing.next_cursor.is_none());
    // No query returns removed records.
    let filter = Filter { kinds: vec![Type::ToolCall], ..Filter::default() };
    let calls = activity.count(&filter).unwrap();
    let now = NEW_YEAR + 5000 * 1_000_000;
    assert_eq!(activity.summary(Period::Day, now).unwrap().stats.total(), calls);
    assert_eq!(activity.prune().unwrap(), 0);
    submit(&activity, 0..10);
    assert!(activity.verify(|_, _| {}).unwrap().is_sound());
    writer.close().unwrap();

    let report = verify::folder(&dir, tempfile::tempdir().unwrap().path(), |_, _| {}).unwrap();
    assert_eq!((report.is_sound(), report.first), (true, removed + 1), "{report:?}");
    let (activity, writer) = Activity::open(&dir, config()).unwrap();
    assert_eq!(activity.summary(Period::Day, now).unwrap().stats.total(), calls + 10);
    writer.close().unwrap();
}

#[test]
fn act_6_first_record_moved_without_a_retention_record_is_detected() {
    use mcpproxy_activity::keys;
    use mcpproxy_activity::store::{Batch, Space, Store};
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("log");
    let (activity, writer) = Activity::open(&dir, Config::default()).unwrap();
    submit(&activity, 0..100);
    let page = Page { limit: 100, ..Page::default() };
    let records = activity.list(&Filter::default(), &page).unwrap().records;
    writer.close().unwrap();
    let hidden = records.iter().find(|it| it.seq == 50).unwrap();
    let store = Store::open(&dir).unwrap();
    let mut batch = Batch::default();
    batch.put(Space::State, keys::FIRST, [&51u64.to_be_bytes()[..], &hidden.hash.0].concat());
    store.commit(batch).unwrap();
    store.sync().unwrap();
    drop(store);
    std::fs::remove_file(dir.join("seal")).unwrap();
    let report = verify::folder(&dir, tempfile::tempdir().unwrap().path(), |_, _| {}).unwrap();
    assert_eq!(report.broken.unwrap().seq, 50);
}

#[test]
fn act_6_records_beyond_the_maximum_age_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let now = Arc::new(AtomicU64::new(NEW_YEAR / 1000));
    let clock = || {
        let now = Arc::clone(&now);
        move || now.load(Ordering::Relaxed)
    };
    let config = Config { retention_days: 7, ..Config::default() };
    let (activity, writer) =
        Activity::open_with_clocks(dir.path(), config, clock(), clock()).unwrap();
    for day in 0..10 {
        now.store(NEW_YEAR / 1000 + day * DAY_MS, Ordering::Relaxed);
        submit(&activity, 0..150);
        activity.flush().unwrap();
    }
    // Each day has 165 records; on the tenth day the first two days are more than seven days old.
    assert_eq!(activity.prune().unwrap(), 2 * 165);
    assert_eq!(seqs(&activity).first(), Some(&(2 * 165 + 1)));
    assert!(activity.verify(|_, _| {}).unwrap().is_sound());
    writer.close().unwrap();
}

#[test]
fn act_6_clock_jump_removes_records_only_after_it_has_lasted_an_hour() {
    let dir = tempfile::tempdir().unwrap();
    let [wall, steady] = [NEW_YEAR / 1000, 0].map(|start| Arc::new(AtomicU64::new(start)));
    let open = |days| {
        let [wall, steady] = [&wall, &steady].map(Arc::clone);
        let read = |clock: Arc<AtomicU64>| move || clock.load(Ordering::Relaxed);
        let config = Config { retention_days: days, ..Config::default() };
        Activity::open_with_clocks(dir.path(), config, read(wall), read(steady)).unwrap()
    };
    let pass = |ms| [&wall, &steady].map(|clock| clock.fetch_add(ms, Ordering::Relaxed));
    let (activity, writer) = open(90);
    for _ in 0..10 {
        submit(&activity, 0..10);
        activity.flush().unwrap();
        pass(60_000);
    }
    let all = seqs(&activity).len();
    wall.fetch_add(100 * DAY_MS, Ordering::Relaxed);
    assert_eq!(activity.prune().unwrap(), 0);
    // Records stored meanwhile have the accepted time.
    submit(&activity, 0..1);
    activity.flush().unwrap();
    pass(60_000);
    assert_eq!(activity.prune().unwrap(), 0);
    wall.fetch_sub(100 * DAY_MS, Ordering::Relaxed);
    assert_eq!(activity.prune().unwrap(), 0);
    let page = Page { limit: 1, ..Page::default() };
    let last = activity.list(&Filter::default(), &page).unwrap().records[0].id.time_ms();
    assert!(last < NEW_YEAR / 1000 + DAY_MS, "{last}");
    writer.close().unwrap();

    // The same if the clock is already ahead when the log is opened.
    wall.fetch_add(100 * DAY_MS, Ordering::Relaxed);
    let (activity, writer) = open(90);
    assert_eq!(activity.prune().unwrap(), 0);
    pass(59 * 60_000);
    assert_eq!(activity.prune().unwrap(), 0);
    pass(60_000);
    assert!(activity.prune().unwrap() as usize >= all, "it has lasted an hour");
    assert!(activity.verify(|_, _| {}).unwrap().is_sound());
    writer.close().unwrap();
}

#[test]
fn act_6_removed_records_free_disk_space() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config {
        max_records: 500,
        retention_days: 0,
        min_retention: Duration::ZERO,
        ..Config::default()
    };
    let (activity, writer) = Activity::open(dir.path(), config).unwrap();
    for n in 0..3000 {
        let mut entry: Entry = call(n);
        // Text that compresses badly but contains a unique word.
        let noise: String = (0..100).map(|k| format!("{:x}", n * 7919 + k * k * 104_729)).collect();
        let text = format!(r#"{{"n":"needle-{n}-","noise":"{noise}"}}"#);
        entry.draft.keep(Raw::Arguments, text.as_bytes(), 4096);
        slot(&activity).submit(entry);
    }
    activity.flush().unwrap();
    activity.prune().unwrap();
    assert!(seqs(&activity).len() <= 500);
    let tables: u64 = size(&dir.path().join("db/keyspaces"));
    assert!(tables < 1_500_000, "{tables} bytes for some 1500 records of a kilobyte");
    writer.close().unwrap();
}

/// A log with manual clocks: a wall clock, and one that only advances.
struct Clocks {
    wall: Arc<AtomicU64>,
    steady: Arc<AtomicU64>,
}

impl Clocks {
    fn new() -> Self {
        let [wall, steady] = [NEW_YEAR / 1000, 0].map(|start| Arc::new(AtomicU64::new(start)));
        Self { wall, steady }
    }

    fn open(&self, dir: &std::path::Path) -> (Activity, mcpproxy_activity::Writer) {
        self.open_with(dir, Config { max_records: 1000, retention_days: 0, ..Config::default() })
    }

    fn open_with(
        &self,
        dir: &std::path::Path,
        config: Config,
    ) -> (Activity, mcpproxy_activity::Writer) {
        let read = |clock: &Arc<AtomicU64>| {
            let clock = Arc::clone(clock);
            move || clock.load(Ordering::Relaxed)
        };
        let (wall, steady) = (read(&self.wall), read(&self.steady));
        Activity::open_with_clocks(dir, config, wall, steady).unwrap()
    }

    /// Lets hours pass, with a few calls in each.
    fn pass(&self, activity: &Activity, hours: u64) {
        for _ in 0..hours {
            for clock in [&self.wall, &self.steady] {
                clock.fetch_add(HOUR_MS, Ordering::Relaxed);
            }
            submit(activity, 0..4);
            activity.flush().unwrap();
        }
    }

    fn step(&self, days: u64) {
        self.wall.fetch_add(days * DAY_MS, Ordering::Relaxed);
    }
}

#[test]
fn act_6_records_younger_than_the_minimum_age_survive_the_count_limit_and_clock_steps() {
    let (dir, clocks) = (tempfile::tempdir().unwrap(), Clocks::new());
    let (activity, writer) = clocks.open(dir.path());
    submit(&activity, 0..4000);
    activity.flush().unwrap();
    assert_eq!(activity.prune().unwrap(), 0, "four times the records to keep");
    // A lasting clock step is accepted after an hour for the time of records, but not for their age.
    clocks.step(100);
    clocks.pass(&activity, 3);
    assert_eq!(activity.prune().unwrap(), 0, "three hours old");
    let page = Page { limit: 1, ..Page::default() };
    let last = activity.list(&Filter::default(), &page).unwrap().records[0].id.time_ms();
    assert!(last > NEW_YEAR / 1000 + 100 * DAY_MS, "the step is accepted");
    // Time without a process does not count, nor does a step at the start.
    writer.close().unwrap();
    clocks.step(100);
    let (activity, writer) = clocks.open(dir.path());
    clocks.pass(&activity, 3);
    assert_eq!(activity.prune().unwrap(), 0, "six hours old");
    clocks.pass(&activity, 17);
    assert_eq!(activity.prune().unwrap(), 0, "23 hours old");
    clocks.pass(&activity, 3);
    let removed = activity.prune().unwrap();
    assert!(removed > 3000, "a day old: {removed}");
    assert!(activity.verify(|_, _| {}).unwrap().is_sound());
    writer.close().unwrap();
}

#[test]
fn act_6_clock_step_does_not_age_records_of_this_process() {
    let (dir, clocks) = (tempfile::tempdir().unwrap(), Clocks::new());
    let (activity, writer) = clocks.open(dir.path());
    let kept = Config { retention_days: 2, max_records: 0, ..Config::default() };
    activity.set_retention(kept.retention());
    submit(&activity, 0..100);
    activity.flush().unwrap();
    clocks.step(100);
    clocks.pass(&activity, 23);
    assert_eq!(activity.prune().unwrap(), 0, "23 hours old, though the clock says 101 days");
    clocks.pass(&activity, 26);
    assert!(activity.prune().unwrap() >= 100, "two days old");
    writer.close().unwrap();
}

#[test]
fn act_6_log_of_an_earlier_version_ages_records_by_their_time() {
    use mcpproxy_activity::keys;
    use mcpproxy_activity::store::{Batch, Space, Store};
    let (dir, clocks) = (tempfile::tempdir().unwrap(), Clocks::new());
    let (activity, writer) = clocks.open(dir.path());
    submit(&activity, 0..4000);
    activity.flush().unwrap();
    clocks.pass(&activity, 3);
    writer.close().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let mut batch = Batch::default();
    batch.remove(Space::State, keys::AGES);
    store.commit(batch).unwrap();
    store.sync().unwrap();
    drop(store);
    std::fs::remove_file(dir.path().join("seal")).unwrap();
    let (activity, writer) = clocks.open(dir.path());
    assert_eq!(activity.prune().unwrap(), 0, "three hours old");
    clocks.pass(&activity, 20);
    assert_eq!(activity.prune().unwrap(), 0, "23 hours old");
    clocks.pass(&activity, 2);
    assert!(activity.prune().unwrap() > 3000, "a day old");
    writer.close().unwrap();
}

#[test]
fn act_6_count_alone_decides_without_a_minimum_age() {
    let (dir, clocks) = (tempfile::tempdir().unwrap(), Clocks::new());
    let (activity, writer) = clocks.open(dir.path());
    submit(&activity, 0..4000);
    activity.flush().unwrap();
    let kept = Config { max_records: 1000, min_retention: Duration::ZERO, ..Config::default() };
    activity.set_retention(kept.retention());
    activity.flush().unwrap();
    activity.prune().unwrap();
    assert!(seqs(&activity).len() <= 1000);
    writer.close().unwrap();
}

#[test]
fn act_6_principal_that_fills_the_log_is_slowed_and_others_are_not() {
    let (dir, clocks) = (tempfile::tempdir().unwrap(), Clocks::new());
    let (activity, writer) = clocks.open(dir.path());
    let write = |principal: &str, records: u64| {
        for number in 0..records {
            let mut entry = call(number);
            entry.decisions.clear();
            entry.draft.set(mcpproxy_activity::Text::Principal, principal);
            drop(slot(&activity).submit(entry));
        }
        activity.flush().unwrap();
        activity.prune().unwrap();
    };
    let admitted =
        |principal| (0..1000).filter(|_| activity.within_share(principal).is_ok()).count();
    write("token:busy", 900);
    write("token:calm", 50);
    assert_eq!((admitted("token:busy"), admitted("token:calm")), (1000, 1000), "within the budget");
    write("token:busy", 900);
    assert_eq!((admitted("token:busy"), admitted("token:calm")), (50, 1000), "beyond it");
    // A day later the young records can be removed, and the log is within its budget again.
    clocks.pass(&activity, 25);
    assert!(activity.prune().unwrap() > 0);
    activity.prune().unwrap();
    assert_eq!(admitted("token:busy"), 1000);
    writer.close().unwrap();
}

/// Writes records with incompressible responses of `bytes`.
fn submit_noise(activity: &Activity, calls: std::ops::Range<u64>, bytes: usize) {
    for n in calls {
        let mut entry = call(n);
        let noise = (0..bytes as u64 / 16).map(|at| {
            let word = (n << 32 | at).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            format!("{:016x}", (word ^ word >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9))
        });
        entry.draft.keep(Raw::Response, noise.collect::<String>().as_bytes(), bytes);
        drop(slot(activity).submit(entry));
        if n % 100 == 0 {
            activity.flush().unwrap();
        }
    }
    activity.flush().unwrap();
}

#[test]
fn act_6_records_older_than_the_minimum_age_are_removed_by_size_and_younger_ones_are_not() {
    let (dir, clocks) = (tempfile::tempdir().unwrap(), Clocks::new());
    let by_size = Config { max_records: 0, max_size_mb: 1, retention_days: 0, ..Config::default() };
    let open = || clocks.open_with(dir.path(), by_size.clone());
    // Three segments of 2 MiB each. A clean stop moves them to tables, to which the limit applies.
    let (activity, writer) = open();
    submit_noise(&activity, 0..3000, 2048);
    let last_old = *seqs(&activity).last().unwrap();
    writer.close().unwrap();
    let (activity, writer) = open();
    assert_eq!(activity.prune().unwrap(), 0, "all are young");
    clocks.pass(&activity, 26);
    let first_young = *seqs(&activity).last().unwrap() + 1;
    submit_noise(&activity, 0..3000, 2048);
    writer.close().unwrap();
    let (activity, writer) = open();
    let removed = activity.prune().unwrap();
    assert!(removed >= last_old, "{removed} of {last_old}");
    let kept = seqs(&activity);
    assert!(kept[0] <= first_young, "the young ones exceed the limit and are kept: {}", kept[0]);
    assert_eq!(activity.prune().unwrap(), 0);
    let page = Page { limit: 1, ..Page::default() };
    let newest = &activity.list(&Filter::default(), &page).unwrap().records[0];
    let json = serde_json::to_value(newest).unwrap();
    assert_eq!(newest.head.kind, Type::Retention);
    assert_eq!(json["metadata"]["reason"], "max_size_mb");
    assert!(activity.verify(|_, _| {}).unwrap().is_sound());
    writer.close().unwrap();
}

fn size(path: &std::path::Path) -> u64 {
    let entries = std::fs::read_dir(path).unwrap().map(|it| it.unwrap().path());
    entries.map(|it| if it.is_dir() { size(&it) } else { it.metadata().unwrap().len() }).sum()
}
