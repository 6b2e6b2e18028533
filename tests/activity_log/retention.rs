//! What is too old, too much or too large goes, from the front and on record (ACT-6).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mcpproxy::activity::{Activity, Config, Entry, Filter, From, Page, Period, Raw, Type, verify};

use crate::support::{NEW_YEAR, call, slot};

const DAY_MS: u64 = 24 * 3600 * 1000;

fn seqs(activity: &Activity) -> Vec<u64> {
    let page = Page { limit: 100_000, ..Page::default() };
    let records = activity.list(&Filter::default(), &page).unwrap().records;
    records.iter().map(|it| it.seq).rev().collect()
}

fn submit(activity: &Activity, calls: std::ops::Range<u64>) {
    calls.for_each(|n| drop(slot(activity).submit(call(n))));
}

#[test]
fn act_6_the_oldest_beyond_the_count_go_and_the_chain_still_verifies() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("log");
    let config = || Config { max_records: 1500, retention_days: 0, ..Config::default() };
    // Enough room that the pruner is not woken by the count.
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
    // A cursor into what is gone ends the list.
    let page = Page { from: From::After(cursor), ..Page::default() };
    let listing = activity.list(&Filter::default(), &page).unwrap();
    assert!(listing.records.is_empty() && listing.next_cursor.is_none());
    // Every question leaves the removed out.
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
fn act_6_a_first_record_moved_without_a_retention_record_is_found() {
    use mcpproxy::activity::keys;
    use mcpproxy::activity::store::{Batch, Space, Store};
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
fn act_6_records_go_when_they_are_too_old() {
    let dir = tempfile::tempdir().unwrap();
    let now = Arc::new(AtomicU64::new(NEW_YEAR / 1000));
    let clock = Arc::clone(&now);
    let config = Config { retention_days: 7, ..Config::default() };
    let clock = move || clock.load(Ordering::Relaxed);
    let (activity, writer) = Activity::open_with_clock(dir.path(), config, clock).unwrap();
    for day in 0..10 {
        now.store(NEW_YEAR / 1000 + day * DAY_MS, Ordering::Relaxed);
        submit(&activity, 0..150);
        activity.flush().unwrap();
    }
    // Each day 165 records: the first two days are more than seven days ago on the tenth.
    assert_eq!(activity.prune().unwrap(), 2 * 165);
    assert_eq!(seqs(&activity).first(), Some(&(2 * 165 + 1)));
    assert!(activity.verify(|_, _| {}).unwrap().is_sound());
    writer.close().unwrap();
}

#[test]
fn act_6_a_clock_that_is_ahead_for_a_minute_removes_nothing_and_one_that_stays_does_after_an_hour()
{
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
    // What is stored meanwhile has the time that is believed.
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

    // The same of a clock that is ahead when the log is opened.
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
fn act_6_the_disk_gets_its_room_back() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { max_records: 500, retention_days: 0, ..Config::default() };
    let (activity, writer) = Activity::open(dir.path(), config).unwrap();
    for n in 0..3000 {
        let mut entry: Entry = call(n);
        // Hard to compress, easy to find.
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

fn size(path: &std::path::Path) -> u64 {
    let entries = std::fs::read_dir(path).unwrap().map(|it| it.unwrap().path());
    entries.map(|it| if it.is_dir() { size(&it) } else { it.metadata().unwrap().len() }).sum()
}
