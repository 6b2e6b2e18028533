//! Damage in a journal costs at most one block of records, is reported with its true size, and never causes a
//! number to be reused (ACT-9).

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mcpproxy_activity::bytes::unpack;
use mcpproxy_activity::codec::head_block;
use mcpproxy_activity::store::journal_format::{self, BatchSpan, Evidence};
use mcpproxy_activity::{
    Activity, Config, Record, ScrubTimes, StoreError, Type, Writer, salvage, verify::Report,
};

use crate::support::{call, copy_files, files, open, records_of, slot};
use crate::tamper::{check, flip, folder, with_copy};

/// Number of batches and calls per batch: several blocks.
const BATCHES: u64 = 24;
const CALLS: u64 = 150;
/// Maximum time of a repair on the slowest machine.
const REPAIRED_WITHIN: Duration = Duration::from_secs(60);

/// A log whose process was killed with everything in the journal. Returns its records, oldest first.
fn killed(dir: &Path) -> Vec<Record> {
    let home = folder();
    let live = home.path().join("log");
    let (activity, writer) = open(&live);
    for batch in 0..BATCHES {
        (0..CALLS).for_each(|n| drop(slot(&activity).submit(call(batch * CALLS + n))));
        activity.flush().unwrap();
    }
    let records = records_of(&activity);
    copy_files(&live, dir);
    writer.close().unwrap();
    records
}

fn journal(dir: &Path) -> PathBuf {
    let mut journals = files(&dir.join("db"));
    journals.retain(|it| it.extension().is_some_and(|end| end == "jnl"));
    assert_eq!(journals.len(), 1);
    journals.remove(0)
}

/// Batches of the journal that contain records, and for each the ranges of record numbers of its blocks.
fn batches(bytes: &[u8]) -> Vec<(BatchSpan, Vec<Range<u64>>)> {
    let found = journal_format::survey(bytes, |_| Evidence::Confirmed);
    let blocks = |span: &BatchSpan| -> Vec<Range<u64>> {
        let heads = journal_format::items(&bytes[span.range.clone()]).filter(|it| it.keyspace == 1);
        let heads = heads.map(|it| unpack(it.value.unwrap().to_vec().into()).unwrap());
        let block = heads.map(|heads| head_block(&heads).unwrap());
        block.map(|it| it.first..it.first + it.records.len() as u64).collect()
    };
    let all = found.batches.into_iter().map(|span| (blocks(&span), span));
    all.filter(|(blocks, _)| !blocks.is_empty()).map(|(blocks, span)| (span, blocks)).collect()
}

/// Result of salvaging the log in `dir`.
struct Salvaged {
    /// Numbers of lost records.
    lost: Vec<u64>,
    report: Report,
    next: u64,
}

/// Salvages a damaged log, and checks the invariants that hold for any damage.
fn salvaged(dir: &Path, before: &[Record]) -> Salvaged {
    let error = Activity::open(dir, Config::default()).unwrap_err();
    assert!(matches!(&error, StoreError::Damaged { .. }), "{error}");
    let done = salvage::salvage(dir, 0).unwrap().unwrap();
    assert_eq!(done.kept + done.lost, before.len() as u64, "{done:?}");
    let report = check(dir).unwrap();
    assert!(report.is_sound(), "{report:?}");
    assert_eq!(report.gaps.iter().map(|gap| gap.records()).sum::<u64>(), done.lost, "{report:?}");
    let (activity, writer) = open(dir);
    drop(slot(&activity).submit(call(7)));
    activity.flush().unwrap();
    let after = records_of(&activity);
    writer.close().unwrap();
    let (kept, added) = after.split_at(done.kept as usize);
    let lost: Vec<u64> =
        before.iter().map(|it| it.seq).filter(|seq| kept.iter().all(|it| it.seq != *seq)).collect();
    assert_eq!(lost.len() as u64, done.lost);
    let intact = before.iter().filter(|it| !lost.contains(&it.seq));
    assert!(intact.eq(kept), "kept records are unchanged");
    let last = before.last().unwrap().seq;
    assert!(added.iter().all(|it| it.seq > last), "no number is reused");
    let named = |seq: &u64| {
        report.gaps.iter().any(|gap| (gap.first_lost_seq..=gap.last_lost_seq).contains(seq))
    };
    assert!(lost.iter().all(named), "{report:?}");
    assert!(check(dir).unwrap().is_sound());
    Salvaged { lost, report, next: added.last().unwrap().seq }
}

// ACT-11
#[test]
fn flipped_bit_anywhere_in_a_journal_loses_only_its_block() {
    let home = folder();
    let dir = home.path().join("log");
    let before = killed(&dir);
    let name = journal(&dir);
    let bytes = fs::read(&name).unwrap();
    let all = batches(&bytes);
    assert!(all.len() as u64 >= BATCHES, "{}", all.len());
    let used = all.last().unwrap().0.range.end;
    let middle = |span: &BatchSpan| (span.range.start + span.range.end) / 2;
    let places = [
        middle(&all[0].0),
        all[0].0.range.start + used / 1000,
        used / 2,
        middle(&all.last().unwrap().0),
        // In the length of the first item, so that the end of the item is unknown.
        all[3].0.range.start + 13 + 13,
        // In the checksum.
        all[5].0.range.end - 6,
        // In the number of items, and in the sequence number.
        all[7].0.range.start + 1,
        all[9].0.range.start + 7,
    ];
    for at in places {
        with_copy(&dir, |dir| {
            flip(&journal(dir), at);
            let Salvaged { lost, .. } = salvaged(dir, &before);
            let (_, blocks) = all.iter().find(|(span, _)| span.range.contains(&at)).unwrap();
            assert!(
                lost.is_empty()
                    || blocks.iter().any(|block| lost == block.clone().collect::<Vec<_>>()),
                "byte {at}: {lost:?} of {blocks:?}"
            );
        });
    }
}

#[test]
fn zeroed_sector_in_a_journal_loses_at_most_the_batches_it_touches() {
    let home = folder();
    let dir = home.path().join("log");
    let before = killed(&dir);
    let bytes = fs::read(journal(&dir)).unwrap();
    let all = batches(&bytes);
    let used = all.last().unwrap().0.range.end;
    for sector in [0, used / 3 / 512, used / 512 - 1] {
        with_copy(&dir, |dir| {
            let range = sector * 512..(sector + 1) * 512;
            let mut bytes = bytes.clone();
            bytes[range.clone()].fill(0);
            fs::write(journal(dir), bytes).unwrap();
            let Salvaged { lost, .. } = salvaged(dir, &before);
            let touched = all
                .iter()
                .filter(|(span, _)| span.range.start < range.end && range.start < span.range.end);
            let touched: Vec<u64> = touched.flat_map(|it| it.1.clone()).flatten().collect();
            assert!(lost.iter().all(|seq| touched.contains(seq)), "{lost:?} of {touched:?}");
        });
    }
}

#[test]
fn truncated_journal_keeps_earlier_records_and_names_lost_ones() {
    let home = folder();
    let dir = home.path().join("log");
    let before = killed(&dir);
    let all = batches(&fs::read(journal(&dir)).unwrap());
    for cut in [0, 1, all.len() / 2, all.len() - 1] {
        with_copy(&dir, |dir| {
            let (span, blocks) = &all[cut];
            let length = (span.range.start + span.range.end) as u64 / 2;
            fs::File::options().write(true).open(journal(dir)).unwrap().set_len(length).unwrap();
            let Salvaged { lost, report, next } = salvaged(dir, &before);
            assert!(lost[0] >= blocks[0].start, "{lost:?} {blocks:?}");
            let last = before.last().unwrap().seq;
            assert_eq!(lost, (lost[0]..=last).collect::<Vec<_>>());
            let gap = report.gaps.last().unwrap();
            assert_eq!(gap.unknown_from, Some(last + 1), "the true end is unknown");
            assert!(next > gap.last_lost_seq, "{next} {gap:?}");
        });
    }
}

#[test]
fn lost_tail_of_a_closed_log_is_named_exactly() {
    let home = folder();
    let dir = home.path().join("log");
    let (activity, writer) = open(&dir);
    (0..500).for_each(|n| drop(slot(&activity).submit(call(n))));
    let before = records_of(&activity);
    writer.close().unwrap();
    for table in files(&dir).into_iter().filter(|it| it.to_string_lossy().contains("/1/tables/")) {
        let bytes = fs::read(&table).unwrap();
        flip(&table, bytes.len() / 3);
    }
    let done = salvage::salvage(&dir, 0).unwrap().unwrap();
    assert_eq!(done.kept + done.lost, before.len() as u64, "{done:?}");
    assert!(done.lost > 0, "{done:?}");
    let report = check(&dir).unwrap();
    assert!(report.is_sound(), "{report:?}");
    assert!(report.gaps.iter().all(|gap| gap.unknown_from.is_none()), "{report:?}");
    assert!(report.last > before.last().unwrap().seq);
}

#[test]
fn verification_names_a_damaged_journal_and_the_first_record_in_it() {
    let home = folder();
    let dir = home.path().join("log");
    killed(&dir);
    let name = journal(&dir);
    let (span, blocks) = batches(&fs::read(&name).unwrap()).swap_remove(2);
    flip(&name, (span.range.start + span.range.end) / 2);
    let report = check(&dir).unwrap();
    assert_eq!(report.altered, [name]);
    let first = report.broken.unwrap().seq;
    assert!((blocks[0].start..blocks.last().unwrap().end).contains(&first), "{first} {blocks:?}");
}

/// The records of the damaged batch are also in a table that was unfinished when the process was killed.
#[test]
fn verification_names_a_damaged_journal_whose_records_are_in_an_unnamed_table() {
    let home = folder();
    let (live, dir) = (home.path().join("live"), home.path().join("log"));
    let (activity, writer) = open(&live);
    for batch in 0..3 {
        (0..CALLS).for_each(|n| drop(slot(&activity).submit(call(batch * CALLS + n))));
        activity.flush().unwrap();
    }
    copy_files(&live, &dir);
    writer.close().unwrap();
    let is_table = |it: &PathBuf| it.to_string_lossy().contains("keyspaces/1/tables/");
    let table = files(&live).into_iter().rfind(is_table).unwrap();
    let tables = dir.join("db/keyspaces/1/tables");
    fs::create_dir_all(&tables).unwrap();
    fs::copy(table, tables.join("9999")).unwrap();
    let name = journal(&dir);
    let (span, _) = batches(&fs::read(&name).unwrap()).swap_remove(0);
    flip(&name, (span.range.start + span.range.end) / 2);
    match check(&dir) {
        Err(StoreError::Damaged { file, .. }) => assert_eq!(file, name),
        other => panic!("{other:?}"),
    }
}

#[test]
fn clean_stop_flushes_the_journal_to_tables() {
    let home = folder();
    let dir = home.path().join("log");
    let (activity, writer) = open(&dir);
    (0..500).for_each(|n| drop(slot(&activity).submit(call(n))));
    let before = records_of(&activity);
    writer.close().unwrap();
    assert_eq!(fs::metadata(journal(&dir)).unwrap().len(), 0);
    // The next process continues after it, also after being killed itself.
    let killed = home.path().join("killed");
    let (activity, writer) = open(&dir);
    assert_eq!(records_of(&activity), before);
    drop(slot(&activity).submit(call(3)));
    activity.flush().unwrap();
    let after = records_of(&activity);
    copy_files(&dir, &killed);
    writer.close().unwrap();
    let (activity, writer) = open(&killed);
    assert_eq!(records_of(&activity), after);
    assert!(after.len() > before.len());
    writer.close().unwrap();
    assert!(check(&killed).unwrap().is_sound());
}

/// Waits until the log is repaired.
fn repaired(activity: &Activity) {
    let deadline = Instant::now() + REPAIRED_WITHIN;
    while activity.health().repaired.is_none() || activity.flush().is_err() {
        assert!(Instant::now() < deadline, "{:?}", activity.health());
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

/// Flips a bit of the third batch in a journal, in place, because the log has the file open.
fn flip_in_third_batch(journal: &Path) {
    use std::os::unix::fs::FileExt;
    let all = batches(&fs::read(journal).unwrap());
    let at = (all[2].0.range.start + 100) as u64;
    let file = fs::File::options().read(true).write(true).open(journal).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

/// Opens the log in `dir` with another schedule of scrubs.
fn scrubbed_at(dir: &Path, scrubs: ScrubTimes) -> (Activity, Writer) {
    Activity::open(dir, Config { scrubs, ..Config::default() }).unwrap()
}

const SOON: Duration = Duration::from_millis(100);

// ACT-11
#[test]
fn journals_are_scrubbed_at_intervals() {
    let home = folder();
    let dir = home.path().join("log");
    let scrubs = ScrubTimes { journals_after: SOON, journals_every: SOON, ..ScrubTimes::default() };
    let (activity, writer) = scrubbed_at(&dir, scrubs);
    for batch in 0..5 {
        (0..CALLS).for_each(|n| drop(slot(&activity).submit(call(batch * CALLS + n))));
        activity.flush().unwrap();
    }
    let before = records_of(&activity);
    flip_in_third_batch(&journal(&dir));
    repaired(&activity);
    assert_eq!(activity.health().repaired.unwrap().records_lost, 0);
    assert_eq!(records_of(&activity)[..before.len()], before[..]);
    writer.close().unwrap();
    assert!(check(&dir).unwrap().is_sound());
}

// ACT-9
#[test]
fn tables_are_scrubbed_at_intervals() {
    let home = folder();
    let dir = home.path().join("log");
    let (activity, writer) = open(&dir);
    (0..500).for_each(|n| drop(slot(&activity).submit(call(n))));
    let before = records_of(&activity).len() as u64;
    writer.close().unwrap();
    let scrubs = ScrubTimes { tables_after: SOON, tables_every: SOON, ..ScrubTimes::default() };
    let (activity, writer) = scrubbed_at(&dir, scrubs);
    let table = files(&dir).into_iter().filter(|it| it.to_string_lossy().contains("/2/tables/"));
    let table = table.max_by_key(|it| fs::metadata(it).unwrap().len()).unwrap();
    flip(&table, fs::metadata(&table).unwrap().len() as usize / 2);
    repaired(&activity);
    let lost = activity.health().repaired.unwrap().records_lost;
    assert!(lost < before, "{lost} of {before}");
    assert!(activity.verify(|_, _| {}).unwrap().is_sound());
    writer.close().unwrap();
}

// ACT-11
#[test]
fn scrub_finds_a_flipped_byte_in_a_live_journal_without_loss() {
    let home = folder();
    let dir = home.path().join("log");
    let (activity, writer) = open(&dir);
    for batch in 0..5 {
        (0..CALLS).for_each(|n| drop(slot(&activity).submit(call(batch * CALLS + n))));
        activity.flush().unwrap();
    }
    assert_eq!(activity.scrub_journals().unwrap(), None);
    let before = records_of(&activity);
    let name = journal(&dir);
    flip_in_third_batch(&name);
    assert_eq!(activity.scrub_journals().unwrap(), Some(name));
    repaired(&activity);
    assert_eq!(activity.health().repaired.unwrap().records_lost, 0);
    drop(slot(&activity).submit(call(3)));
    activity.flush().unwrap();
    let after = records_of(&activity);
    assert_eq!(after[..before.len()], before[..]);
    assert_eq!(activity.scrub_journals().unwrap(), None, "the journal is repaired");
    assert!(!after.iter().any(|it| it.head.kind == Type::Gap));
    writer.close().unwrap();
    assert!(check(&dir).unwrap().is_sound());
    let (activity, writer) = open(&dir);
    assert_eq!(records_of(&activity), after);
    writer.close().unwrap();
}

#[test]
fn repair_while_running_counts_every_record() {
    let home = folder();
    let dir = home.path().join("log");
    let (activity, writer) = open(&dir);
    (0..500).for_each(|n| drop(slot(&activity).submit(call(n))));
    let in_tables = records_of(&activity).len();
    writer.close().unwrap();
    let (activity, writer) = open(&dir);
    (0..500).for_each(|n| drop(slot(&activity).submit(call(n))));
    activity.flush().unwrap();
    let before = records_of(&activity);
    // Damages tables and removes the end of the journal.
    let name = journal(&dir);
    let used = batches(&fs::read(&name).unwrap()).last().unwrap().0.range.end as u64;
    fs::File::options().write(true).open(&name).unwrap().set_len(used / 2).unwrap();
    let table = files(&dir).into_iter().filter(|it| it.to_string_lossy().contains("/2/tables/"));
    let table = table.max_by_key(|it| fs::metadata(it).unwrap().len()).unwrap();
    flip(&table, fs::metadata(&table).unwrap().len() as usize / 2);
    assert_eq!(activity.scrub().unwrap(), Some(table));
    repaired(&activity);
    let lost = activity.health().repaired.unwrap().records_lost;
    let report = activity.verify(|_, _| {}).unwrap();
    assert!(report.is_sound(), "{report:?}");
    assert_eq!(report.gaps.iter().map(|gap| gap.records()).sum::<u64>(), lost);
    let after = records_of(&activity);
    let kept = after.iter().filter(|it| before.contains(it)).count() as u64;
    assert_eq!(kept + lost, before.len() as u64);
    assert!(lost > 0);
    let memory = &before[in_tables..];
    assert!(memory.iter().all(|it| after.contains(it)), "records in memory are kept");
    writer.close().unwrap();
}
