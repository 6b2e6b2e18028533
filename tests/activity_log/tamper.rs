//! Any change to the files of a log is detected, or the log is rejected; nothing is repaired silently (ACT-4,
//! ACT-9). Every attempt works on a copy.

use std::fs;
use std::ops::Range;
use std::path::Path;

use mcpproxy_activity::bytes::unpack;
use mcpproxy_activity::codec::{BlockBuilder, body_block, head_block};
use mcpproxy_activity::gap::Gap;
use mcpproxy_activity::store::{Batch, Space, Store};
use mcpproxy_activity::{
    Activity, Config, Filter, Page, RecordFault, Report, StoreError, Type, salvage, verify,
};

use crate::support::{call, files, open, records, slot};

/// Number of altered positions over all files.
const PLACES: usize = 240;
/// Upper bound of the size of a data block of a table, in bytes: fjall's default. New tables of records have smaller blocks.
const TABLE_BLOCK_BYTES: usize = 4096;
/// Number of calls in the log, more than a segment.
const CALLS: u64 = 1030;

/// A folder in memory if possible, since these tests open hundreds of logs.
pub(crate) fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Creates a closed log with all records in tables.
pub(crate) fn log(dir: &Path) -> u64 {
    let (activity, writer) = open(dir);
    (0..CALLS).for_each(|n| drop(slot(&activity).submit(call(n))));
    writer.close().unwrap();
    drop(activity);
    let store = Store::open(dir).unwrap();
    for space in [Space::Heads, Space::Bodies, Space::Index, Space::Segments, Space::Stats] {
        store.compact(space).unwrap();
    }
    drop(store);
    fs::remove_file(dir.join("seal")).unwrap();
    let (activity, writer) = open(dir);
    (0..200).for_each(|n| drop(slot(&activity).submit(call(n))));
    writer.close().unwrap();
    // The preallocated rest of the journal is released when the log is reopened.
    let (activity, writer) = open(dir);
    let count = activity.count(&Filter::default()).unwrap();
    writer.close().unwrap();
    count
}

/// A log whose process was killed, with records in tables and in the journal only.
fn killed_log(dir: &Path) -> u64 {
    let live = folder();
    let live = live.path().join("log");
    log(&live);
    let (activity, writer) = open(&live);
    for batch in 0..10 {
        (0..20).for_each(|n| drop(slot(&activity).submit(call(20 * batch + n))));
        activity.flush().unwrap();
    }
    let count = activity.count(&Filter::default()).unwrap();
    copy(&live, dir);
    writer.close().unwrap();
    count
}

/// The journal of a log, and its used length.
fn journal(dir: &Path) -> (std::path::PathBuf, usize) {
    let journal = files(dir).into_iter().find(|it| it.extension().is_some_and(|e| e == "jnl"));
    let journal = journal.unwrap();
    let used = fs::read(&journal).unwrap().iter().rposition(|byte| *byte != 0).unwrap() + 1;
    (journal, used)
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for file in files(from) {
        let target = to.join(file.strip_prefix(from).unwrap());
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::copy(&file, target).unwrap();
    }
}

pub(crate) fn check(dir: &Path) -> Result<Report, StoreError> {
    verify::folder(dir, tempfile::tempdir().unwrap().path(), |_, _| {})
}

/// Runs `work` on a copy of the log in `dir`.
pub(crate) fn with_copy<T>(dir: &Path, work: impl FnOnce(&Path) -> T) -> T {
    let aside = folder();
    let target = aside.path().join("log");
    copy(dir, &target);
    work(&target)
}

#[test]
fn act_4_unreadable_record_is_reported_with_the_table_of_the_log() {
    let home = folder();
    let dir = home.path().join("log");
    log(&dir);
    let _ = fs::remove_file(dir.join("seal"));
    for space in [Space::Heads, Space::Bodies] {
        with_copy(&dir, |dir| {
            let table = table_with(dir, space);
            flip(&table, fs::metadata(&table).unwrap().len() as usize / 8);
            let report = check(dir).unwrap();
            let why = report.broken.unwrap().why;
            assert!(why.contains(&*table.to_string_lossy()), "{space:?}: {why}");
            assert_eq!(report.altered, [table]);
        });
    }
}

#[test]
fn act_4_altered_byte_anywhere_is_detected_or_rejected() {
    let dir = folder();
    let dir = dir.path().join("log");
    let count = log(&dir);
    let sound = check(&dir).unwrap();
    assert!(sound.is_sound());
    assert_eq!((sound.records, &sound.broken, &sound.notes[..]), (count, &None, &[][..]));

    let sizes: Vec<_> = files(&dir).iter().map(|it| fs::metadata(it).unwrap().len()).collect();
    let all: u64 = sizes.iter().sum();
    let mut silent = Vec::new();
    let mut tried = 0;
    for (file, size) in files(&dir).iter().zip(sizes) {
        // Small files belong to the store itself; each is altered at a minimum number of positions.
        let places = (PLACES as u64 * size / all).max(5).min(size);
        for place in 0..places {
            let at = (place * size / places + place * 7919 % (size / places)) as usize;
            let name = file.strip_prefix(&dir).unwrap();
            with_copy(&dir, |dir| {
                let mut bytes = fs::read(dir.join(name)).unwrap();
                bytes[at] ^= 1 << (place % 8);
                fs::write(dir.join(name), bytes).unwrap();
                tried += 1;
                let found = match check(dir) {
                    Ok(report) => !report.is_sound() || !report.notes.is_empty(),
                    Err(StoreError::Damaged { file, .. }) => file.starts_with(dir),
                    Err(_) => true,
                };
                // Opening it must fail or show every record.
                let kept = match Activity::open(dir, Config::default()) {
                    Ok((activity, writer)) => {
                        let kept = activity.count(&Filter::default());
                        let _ = writer.close();
                        kept.map_or(true, |kept| kept == count)
                    }
                    Err(_) => true,
                };
                if !found || !kept {
                    silent.push((name.to_path_buf(), at, found, kept));
                }
            });
        }
    }
    assert!(tried >= PLACES, "{tried}");
    assert_eq!(silent, [], "of {tried}");
}

#[test]
fn act_4_truncated_log_is_rejected_and_keeps_its_evidence() {
    let dir = folder();
    let dir = dir.path().join("log");
    killed_log(&dir);
    let (journal, size) = journal(&dir);
    let size = size as u64;
    let name = journal.strip_prefix(&dir).unwrap();
    for keep in [0, size / 3, size / 2, size - 1] {
        with_copy(&dir, |dir| {
            let journal = dir.join(name);
            fs::File::options().write(true).open(&journal).unwrap().set_len(keep).unwrap();
            let before = fs::read(&journal).unwrap();
            let report = check(dir).unwrap();
            assert_eq!(report.broken.unwrap().fault, RecordFault::Missing, "{keep} of {size}");
            for _ in 0..2 {
                let error = Activity::open(dir, Config::default()).unwrap_err();
                assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
                assert_eq!(fs::read(&journal).unwrap(), before, "the evidence is kept");
            }
        });
    }
}

/// Rewrites the block of record `seq`, with its records as (head, hash, body) modified by `change`.
fn rewrite(dir: &Path, seq: u64, change: impl FnOnce(&mut Vec<(Vec<u8>, [u8; 32], Vec<u8>)>)) {
    fs::remove_file(dir.join("seal")).unwrap();
    let store = Store::open(dir).unwrap();
    let snapshot = store.snapshot().unwrap();
    let mut rows = snapshot.range(Space::Heads, &[0; 8], &(seq + 1).to_be_bytes());
    let (key, heads) = rows.next_back().unwrap().unwrap();
    let bodies = snapshot.get(Space::Bodies, &key).unwrap().unwrap();
    let (heads, bodies) = (unpack(heads).unwrap(), unpack(bodies).unwrap());
    let block = head_block(&heads).unwrap();
    let ranges = body_block(&bodies).unwrap();
    let mut records: Vec<_> = (block.records.iter().zip(ranges))
        .map(|((head, hash), body)| (heads[head.clone()].to_vec(), hash.0, bodies[body].to_vec()))
        .collect();
    change(&mut records);
    let mut builder = BlockBuilder::new(block.first, block.prev);
    for (head, hash, body) in &records {
        builder.push(head, mcpproxy_activity::record::Hash(*hash), body);
    }
    let (heads, bodies) = builder.finish();
    let mut batch = Batch::default();
    batch.put(Space::Heads, key.clone(), heads);
    batch.put(Space::Bodies, key, bodies);
    store.commit(batch).unwrap();
    store.sync().unwrap();
}

#[test]
fn act_4_record_altered_removed_or_swapped_in_the_store_is_named() {
    let dir = folder();
    let dir = dir.path().join("log");
    log(&dir);
    // A record in the middle of its block: the batches of this log are large.
    let seq = 100;
    let at = |seq: u64, first: u64| (seq - first) as usize;
    let named = |dir: &Path| {
        let broken = check(dir).unwrap().broken.unwrap();
        let (activity, writer) = open(dir);
        assert_eq!(activity.verify(|_, _| {}).unwrap().broken.unwrap(), broken);
        writer.close().unwrap();
        (broken.seq, broken.fault)
    };
    let first = {
        let store = Store::open(&dir).unwrap();
        let snapshot = store.snapshot().unwrap();
        let mut rows = snapshot.range(Space::Heads, &[0; 8], &(seq + 1u64).to_be_bytes());
        u64::from_be_bytes(rows.next_back().unwrap().unwrap().0[..].try_into().unwrap())
    };
    assert!(first < seq);
    with_copy(&dir, |dir| {
        rewrite(dir, seq, |records| *records[at(seq, first)].2.last_mut().unwrap() ^= 1);
        assert_eq!(named(dir), (seq, RecordFault::Altered));
    });
    with_copy(&dir, |dir| {
        rewrite(dir, seq, |records| records.swap(at(seq, first), at(seq, first) - 1));
        assert_eq!(named(dir), (seq - 1, RecordFault::Altered));
    });
    with_copy(&dir, |dir| {
        rewrite(dir, seq, |records| drop(records.remove(at(seq, first))));
        assert_eq!(named(dir).0, seq);
    });
    with_copy(&dir, |dir| {
        fs::remove_file(dir.join("seal")).unwrap();
        let store = Store::open(dir).unwrap();
        let mut batch = Batch::default();
        batch.remove(Space::Heads, first.to_be_bytes().to_vec());
        store.commit(batch).unwrap();
        store.sync().unwrap();
        drop(store);
        assert_eq!(named(dir), (first, RecordFault::Missing));
    });
}

pub(crate) fn flip(file: &Path, at: usize) {
    let mut bytes = fs::read(file).unwrap();
    bytes[at] ^= 1;
    fs::write(file, bytes).unwrap();
}

/// Largest table of a keyspace with records.
pub(crate) fn table_with(dir: &Path, what: Space) -> std::path::PathBuf {
    // An open store may compact, which would alter a closed log.
    let folder = with_copy(dir, |copy| {
        let store = Store::open(copy).unwrap();
        dir.join(store.folder(what).strip_prefix(copy).unwrap())
    });
    let is_table = |it: &std::path::PathBuf| {
        it.starts_with(&folder) && it.to_string_lossy().contains("/tables/")
    };
    let mut tables: Vec<_> = files(dir).into_iter().filter(is_table).collect();
    tables.sort_by_key(|it| fs::metadata(it).unwrap().len());
    tables.pop().unwrap()
}

/// Rows of a keyspace with records, up to record `last`: the record numbers in each row, and the size of the row.
pub(crate) fn rows(dir: &Path, space: Space, last: u64) -> Vec<(Range<u64>, usize)> {
    let rows: Vec<(u64, usize)> = with_copy(dir, |copy| {
        let store = Store::open(copy).unwrap();
        (store.snapshot().unwrap().range(space, &[0; 8], &[u8::MAX; 8]))
            .map(Result::unwrap)
            .map(|(key, value)| (u64::from_be_bytes(key[..].try_into().unwrap()), 8 + value.len()))
            .collect()
    });
    let ends = rows.iter().skip(1).map(|(first, _)| *first).chain([last + 1]);
    rows.iter().zip(ends).map(|((first, size), end)| (*first..end, *size)).collect()
}

/// Asserts that the lost records are those of successive rows, and that these rows fit into one block of a table.
pub(crate) fn assert_one_block_lost(rows: &[(Range<u64>, usize)], report: &Report) {
    let numbers = |gap: &Gap| gap.first_lost_seq..=gap.last_lost_seq;
    let lost: Vec<u64> = report.gaps.iter().flat_map(numbers).collect();
    let is_lost = |(row, _): &&(Range<u64>, usize)| lost.contains(&(row.end - 1));
    let lost_rows: Vec<_> =
        rows.iter().skip_while(|row| !is_lost(row)).take_while(is_lost).collect();
    let of_rows = lost_rows.iter().flat_map(|(row, _)| row.clone());
    // Records before the first lost one may have been pruned.
    let of_rows: Vec<u64> = of_rows.filter(|seq| lost.first() <= Some(seq)).collect();
    assert_eq!(lost, of_rows, "{rows:?}");
    // A block ends with the row that reaches its size.
    let earlier = lost_rows.split_last().map_or(&[][..], |(_, earlier)| earlier);
    let size: usize = earlier.iter().map(|(_, size)| size).sum();
    assert!(size < TABLE_BLOCK_BYTES, "{lost_rows:?}");
}

#[test]
fn act_9_flipped_bit_in_a_journal_loses_no_earlier_record() {
    let dir = folder();
    let dir = dir.path().join("log");
    let count = killed_log(&dir);
    let before = with_copy(&dir, records);
    let (journal, size) = journal(&dir);
    for at in [size / 4, size / 2, size - 100] {
        with_copy(&dir, |copy| {
            flip(&copy.join(journal.strip_prefix(&dir).unwrap()), at);
            let done = salvage::salvage(copy, 0).unwrap().unwrap();
            assert_eq!(done.kept + done.lost, count, "{done:?}");
            assert!(done.lost <= 64, "{done:?}");
            let after = records(copy);
            let first = before.iter().zip(&after).take_while(|(a, b)| a == b).count();
            let rest = before.len() - first - done.lost as usize;
            assert_eq!(after[first..first + rest], before[before.len() - rest..]);
            assert!(check(copy).unwrap().is_sound());
        });
    }
}

#[test]
fn act_9_only_the_damaged_block_of_records_is_lost_and_the_loss_is_recorded() {
    let dir = folder();
    let dir = dir.path().join("log");
    let count = log(&dir);
    let before = records(&dir);
    for space in [Space::Heads, Space::Bodies] {
        with_copy(&dir, |dir| {
            let (table, rows) = (table_with(dir, space), rows(dir, space, count));
            let middle = fs::metadata(&table).unwrap().len() as usize / 2;
            flip(&table, middle);
            let report = check(dir).unwrap();
            assert!(report.altered.contains(&table) && !report.is_sound(), "{report:?}");
            let done = salvage::salvage(dir, 0).unwrap().unwrap();
            assert_eq!(done.kept + done.lost, count, "{done:?}");
            assert!(0 < done.lost, "{done:?}");
            let report = check(dir).unwrap();
            assert!(report.is_sound(), "{report:?}");
            assert_one_block_lost(&rows, &report);
            assert_eq!(report.gaps.iter().map(|gap| gap.records()).sum::<u64>(), done.lost);
            let after = records(dir);
            let gap = after.iter().find(|it| it.head.kind == Type::Gap).unwrap();
            assert!(gap.head.error.contains("are lost"), "{}", gap.head.error);
            let lost = |seq: u64| {
                let in_gap = |gap: &Gap| (gap.first_lost_seq..=gap.last_lost_seq).contains(&seq);
                report.gaps.iter().any(in_gap)
            };
            let kept: Vec<_> = before.iter().filter(|it| !lost(it.seq)).cloned().collect();
            assert_eq!(after[..done.kept as usize], kept[..]);
            // The log continues, is compacted, and stays sound.
            let (activity, writer) = open(dir);
            (0..100).for_each(|n| drop(slot(&activity).submit(call(n))));
            writer.close().unwrap();
            let store = Store::open(dir).unwrap();
            for space in [Space::Heads, Space::Bodies] {
                store.compact(space).unwrap();
            }
            drop(store);
            fs::remove_file(dir.join("seal")).unwrap();
            assert!(check(dir).unwrap().is_sound());
        });
    }
}

#[test]
fn act_9_damage_in_derived_data_is_detected_and_loses_no_record() {
    let dir = folder();
    let dir = dir.path().join("log");
    let count = log(&dir);
    let before = records(&dir);
    for space in [Space::Index, Space::Segments, Space::Stats] {
        with_copy(&dir, |dir| {
            fs::remove_file(dir.join("seal")).unwrap();
            let table = table_with(dir, space);
            let size = fs::metadata(&table).unwrap().len() as usize;
            for at in [size / 8, size / 2, size - size / 8] {
                with_copy(dir, |copy| {
                    let table = copy.join(table.strip_prefix(dir).unwrap());
                    flip(&table, at);
                    match check(copy) {
                        Ok(report) => {
                            assert_eq!((&report.altered[..], report.broken), (&[table][..], None));
                        }
                        // The log may not open at all.
                        Err(error) => {
                            assert!(matches!(error, StoreError::Damaged { .. }), "{error}")
                        }
                    }
                    let done = salvage::salvage(copy, 0).unwrap().unwrap();
                    assert_eq!((done.kept, done.lost), (count, 0));
                    assert_eq!(records(copy)[..count as usize], before[..]);
                    assert!(check(copy).unwrap().is_sound());
                });
            }
        });
    }
}

/// The files of a keyspace, by number.
fn files_of(dir: &Path, keyspace: &str) -> Vec<std::path::PathBuf> {
    files(&dir.join("db/keyspaces").join(keyspace))
}

#[test]
fn act_9_damage_in_the_store_metadata_loses_no_record() {
    let home = folder();
    let whole = home.path().join("log");
    log(&whole);
    let pruned = home.path().join("pruned");
    copy(&whole, &pruned);
    let config =
        Config { max_records: 700, min_retention: std::time::Duration::ZERO, ..Config::default() };
    let (activity, writer) = Activity::open(&pruned, config).unwrap();
    assert!(activity.prune().unwrap() > 0);
    writer.close().unwrap();
    // Also moves the log's own state into a table.
    let store = Store::open(&pruned).unwrap();
    store.compact(Space::State).unwrap();
    drop(store);
    for (dir, keyspaces) in [(&whole, &["0", "6"][..]), (&pruned, &["0", "6"])] {
        // Without the seal, as after a crash.
        let _ = fs::remove_file(dir.join("seal"));
        let before = records(dir);
        let _ = fs::remove_file(dir.join("seal"));
        for file in keyspaces.iter().flat_map(|keyspace| files_of(dir, keyspace)) {
            let name = file.strip_prefix(dir).unwrap();
            let size = fs::metadata(&file).unwrap().len() as usize;
            for at in [size / 3, size - 1] {
                with_copy(dir, |copy| {
                    flip(&copy.join(name), at);
                    let Some(done) = salvage::salvage(copy, 0).unwrap() else {
                        // The flipped bit is in a part that is never read.
                        return assert_eq!(records(copy), before, "{name:?} {at}");
                    };
                    assert_eq!((done.kept, done.lost), (before.len() as u64, 0), "{name:?} {at}");
                    assert_eq!(records(copy)[..before.len()], before[..], "{name:?} {at}");
                    assert!(check(copy).unwrap().is_sound());
                });
            }
            // A missing file: fjall alone would treat the keyspace as an unfinished one.
            with_copy(dir, |copy| {
                fs::remove_file(copy.join(name)).unwrap();
                if salvage::salvage(copy, 0).unwrap().is_some() {
                    assert_eq!(records(copy)[..before.len()], before[..], "{name:?} missing");
                }
                assert!(check(copy).unwrap().records >= before.len() as u64);
            });
        }
    }
}

#[test]
fn act_9_log_of_an_earlier_version_gets_its_node_file_when_opened() {
    let dir = folder();
    let dir = dir.path().join("log");
    let (_, writer) = open(&dir);
    writer.close().unwrap();
    let node = fs::read(dir.join("node")).unwrap();
    // The state left by such a version: the checksums do not list the node file.
    for name in ["node", "lost", "seal"] {
        fs::remove_file(dir.join(name)).unwrap();
    }
    mcpproxy_activity::file_checksums::write(&dir).unwrap();
    let (_, writer) = open(&dir);
    writer.close().unwrap();
    assert_eq!(fs::read(dir.join("node")).unwrap(), node);
    assert!(check(&dir).unwrap().is_sound());
}

#[test]
fn act_9_killed_salvage_leaves_the_log_in_place_or_is_finished_by_the_next_start() {
    let dir = folder();
    let dir = dir.path().join("log");
    let count = log(&dir);
    // Killed before the end: its unfinished result is beside the log.
    let unfinished = dir.with_file_name("log.salvaged");
    fs::create_dir(&unfinished).unwrap();
    fs::write(unfinished.join("db.new"), "").unwrap();
    assert_eq!(records(&dir).len() as u64, count);
    assert!(!unfinished.exists(), "the unfinished result is removed");
    // Killed between the two renames.
    fs::rename(&dir, &unfinished).unwrap();
    assert_eq!(records(&dir).len() as u64, count);
    assert!(!unfinished.exists());
}

#[test]
fn act_9_salvage_moves_a_damaged_log_aside_and_keeps_readable_records() {
    let dir = folder();
    let dir = dir.path().join("log");
    let count = killed_log(&dir);
    let before = with_copy(&dir, |dir| {
        assert_eq!(salvage::salvage(dir, 0).unwrap(), None, "a sound log is left alone");
        let mut records = records(dir);
        records.reverse();
        records
    });
    let (journal, size) = journal(&dir);
    let size = size as u64;
    fs::File::options().write(true).open(&journal).unwrap().set_len(size / 3 * 2).unwrap();
    let damaged = fs::read(&journal).unwrap();
    assert!(matches!(Activity::open(&dir, Config::default()), Err(StoreError::Damaged { .. })));

    let done = salvage::salvage(&dir, 0).unwrap().unwrap();
    assert!(0 < done.kept && done.kept < count, "{done:?}");
    let aside = done.aside.join(journal.strip_prefix(&dir).unwrap());
    assert_eq!(fs::read(aside).unwrap(), damaged, "nothing is deleted");
    let (activity, writer) = open(&dir);
    assert!(activity.verify(|_, _| {}).unwrap().is_sound());
    let page = Page { limit: 100_000, ..Page::default() };
    let after = activity.list(&Filter::default(), &page).unwrap().records;
    // The gap at the end is named, followed by the reason.
    assert_eq!(after.len() as u64, done.kept + 2);
    assert_eq!(after[2..], before[before.len() - done.kept as usize..]);
    assert_eq!((after[0].head.kind, after[1].head.kind), (Type::SystemStart, Type::Gap));
    assert_eq!(done.kept + done.lost, count);
    assert!(after[1].seq > count, "no number is reused");
    writer.close().unwrap();
}
