//! Whatever is done to the files of a log is found, or the log is refused; nothing is repaired
//! away in silence (ACT-4, ACT-9). Every attempt is made on a copy.

use std::fs;
use std::path::Path;

use mcpproxy::activity::codec::{BlockBuilder, body_block, head_block};
use mcpproxy::activity::pack::unpack;
use mcpproxy::activity::store::{Batch, Space, Store};
use mcpproxy::activity::{
    Activity, Config, Fault, Filter, Page, Report, StoreError, Type, salvage, verify,
};

use crate::support::{call, files, open, slot};

/// Places that are altered, over all files.
const PLACES: usize = 240;
/// Calls in the log, more than a segment of them.
const CALLS: u64 = 1030;

/// A folder in memory where there is one: these tests open hundreds of logs.
pub(crate) fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// A closed log with records in tables and in the journal.
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
    // The preallocated rest of the journal goes when the log is opened again.
    let (activity, writer) = open(dir);
    let count = activity.count(&Filter::default()).unwrap();
    writer.close().unwrap();
    count
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

/// Works on a copy of the log in `dir`.
pub(crate) fn with_copy<T>(dir: &Path, work: impl FnOnce(&Path) -> T) -> T {
    let aside = folder();
    let target = aside.path().join("log");
    copy(dir, &target);
    work(&target)
}

#[test]
fn act_4_one_altered_byte_anywhere_is_found_or_refused() {
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
        // Small files are the store's own: each gets its share.
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
                // Opening it must refuse, or show every record.
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
fn act_4_a_log_that_was_cut_is_refused_and_keeps_its_evidence() {
    let dir = folder();
    let dir = dir.path().join("log");
    log(&dir);
    let journal = files(&dir).into_iter().find(|it| it.extension().is_some_and(|e| e == "jnl"));
    let journal = journal.unwrap();
    let name = journal.strip_prefix(&dir).unwrap();
    let size = fs::metadata(&journal).unwrap().len();
    for keep in [0, size / 3, size / 2, size - 1] {
        with_copy(&dir, |dir| {
            // As after a crash: with its seal the log would be refused for that alone.
            fs::remove_file(dir.join("seal")).unwrap();
            let journal = dir.join(name);
            fs::File::options().write(true).open(&journal).unwrap().set_len(keep).unwrap();
            let before = fs::read(&journal).unwrap();
            let report = check(dir).unwrap();
            assert_eq!(report.broken.unwrap().fault, Fault::Missing, "{keep} of {size}");
            for _ in 0..2 {
                let error = Activity::open(dir, Config::default()).unwrap_err();
                assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
                assert_eq!(fs::read(&journal).unwrap(), before, "the evidence is kept");
            }
        });
    }
}

/// Rewrites the block of record `seq`: its records as (head, hash, body), changed by `change`.
fn rewrite(dir: &Path, seq: u64, change: impl FnOnce(&mut Vec<(Vec<u8>, [u8; 32], Vec<u8>)>)) {
    fs::remove_file(dir.join("seal")).unwrap();
    let store = Store::open(dir).unwrap();
    let snapshot = store.snapshot();
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
        builder.push(head, mcpproxy::activity::record::Hash(*hash), body);
    }
    let (heads, bodies) = builder.finish();
    let mut batch = Batch::default();
    batch.put(Space::Heads, key.clone(), heads);
    batch.put(Space::Bodies, key, bodies);
    store.commit(batch).unwrap();
    store.sync().unwrap();
}

#[test]
fn act_4_a_record_altered_removed_or_swapped_by_the_store_s_own_means_is_named() {
    let dir = folder();
    let dir = dir.path().join("log");
    log(&dir);
    // In the middle of its block, as the batches of this log are large.
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
        let snapshot = store.snapshot();
        let mut rows = snapshot.range(Space::Heads, &[0; 8], &(seq + 1u64).to_be_bytes());
        u64::from_be_bytes(rows.next_back().unwrap().unwrap().0[..].try_into().unwrap())
    };
    assert!(first < seq);
    with_copy(&dir, |dir| {
        rewrite(dir, seq, |records| *records[at(seq, first)].2.last_mut().unwrap() ^= 1);
        assert_eq!(named(dir), (seq, Fault::Altered));
    });
    with_copy(&dir, |dir| {
        rewrite(dir, seq, |records| records.swap(at(seq, first), at(seq, first) - 1));
        assert_eq!(named(dir), (seq - 1, Fault::Altered));
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
        assert_eq!(named(dir), (first, Fault::Missing));
    });
}

/// Every record of a log, oldest first.
fn records(dir: &Path) -> Vec<mcpproxy::activity::Record> {
    let (activity, writer) = open(dir);
    let page = Page { limit: 100_000, ..Page::default() };
    let mut records = activity.list(&Filter::default(), &page).unwrap().records;
    writer.close().unwrap();
    records.reverse();
    records
}

pub(crate) fn flip(file: &Path, at: usize) {
    let mut bytes = fs::read(file).unwrap();
    bytes[at] ^= 1;
    fs::write(file, bytes).unwrap();
}

/// The largest table of the keyspace that holds a text.
pub(crate) fn table_with(dir: &Path, what: Space) -> std::path::PathBuf {
    let store = Store::open(dir).unwrap();
    let tables: Vec<_> =
        files(dir).into_iter().filter(|it| it.to_string_lossy().contains("/tables/")).collect();
    let folder = store.folder(what).to_path_buf();
    drop(store);
    let mut tables: Vec<_> = tables.into_iter().filter(|it| it.starts_with(&folder)).collect();
    tables.sort_by_key(|it| fs::metadata(it).unwrap().len());
    tables.pop().unwrap()
}

#[test]
fn act_9_a_flipped_bit_in_a_journal_costs_no_record_before_it() {
    let dir = folder();
    let dir = dir.path().join("log");
    let count = log(&dir);
    let before = records(&dir);
    let journal = files(&dir).into_iter().find(|it| it.extension().is_some_and(|e| e == "jnl"));
    let journal = journal.unwrap();
    let size = fs::metadata(&journal).unwrap().len() as usize;
    for at in [size / 4, size / 2, size - 100] {
        with_copy(&dir, |copy| {
            fs::remove_file(copy.join("seal")).unwrap();
            flip(&copy.join(journal.strip_prefix(&dir).unwrap()), at);
            let done = salvage::salvage(copy, 0).unwrap().unwrap();
            // What lies in tables is kept whatever the journal holds.
            assert!(done.kept >= CALLS && done.kept < count, "{done:?}");
            let after = records(copy);
            assert_eq!(after[..done.kept as usize], before[..done.kept as usize]);
            assert!(check(copy).unwrap().is_sound());
        });
    }
}

#[test]
fn act_9_a_damaged_block_of_records_costs_its_block_and_a_record_says_so() {
    let dir = folder();
    let dir = dir.path().join("log");
    let count = log(&dir);
    let before = records(&dir);
    for space in [Space::Heads, Space::Bodies] {
        with_copy(&dir, |dir| {
            let table = table_with(dir, space);
            let middle = fs::metadata(&table).unwrap().len() as usize / 2;
            flip(&table, middle);
            let report = check(dir).unwrap();
            assert!(report.altered.contains(&table) && !report.is_sound(), "{report:?}");
            let done = salvage::salvage(dir, 0).unwrap().unwrap();
            assert_eq!(done.kept + done.lost, count, "{done:?}");
            assert!(0 < done.lost && done.lost < count / 2, "{done:?}");
            let report = check(dir).unwrap();
            assert!(report.is_sound(), "{report:?}");
            assert_eq!(report.gaps.iter().map(|gap| gap.records()).sum::<u64>(), done.lost);
            let after = records(dir);
            let gap = after.iter().find(|it| it.head.kind == Type::Gap).unwrap();
            assert!(gap.head.error.contains("are lost"), "{}", gap.head.error);
            let lost = |seq: u64| {
                let in_gap = |gap: &mcpproxy::activity::gap::Gap| {
                    (gap.first_lost_seq..=gap.last_lost_seq).contains(&seq)
                };
                report.gaps.iter().any(in_gap)
            };
            let kept: Vec<_> = before.iter().filter(|it| !lost(it.seq)).cloned().collect();
            assert_eq!(after[..done.kept as usize], kept[..]);
            // The log goes on, is compacted, and stays sound.
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
fn act_9_damage_in_what_is_derived_is_found_and_costs_no_record() {
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
                        // Where it cannot even be opened.
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

/// The files of a keyspace, by its number.
fn files_of(dir: &Path, keyspace: &str) -> Vec<std::path::PathBuf> {
    files(&dir.join("db/keyspaces").join(keyspace))
}

#[test]
fn act_9_damage_in_the_store_s_own_bookkeeping_costs_no_record() {
    let home = folder();
    let whole = home.path().join("log");
    log(&whole);
    let pruned = home.path().join("pruned");
    copy(&whole, &pruned);
    let config = Config { max_records: 700, ..Config::default() };
    let (activity, writer) = Activity::open(&pruned, config).unwrap();
    assert!(activity.prune().unwrap() > 0);
    writer.close().unwrap();
    // What the log says of itself lies in a table, too.
    let store = Store::open(&pruned).unwrap();
    store.compact(Space::State).unwrap();
    drop(store);
    for (dir, keyspaces) in [(&whole, &["0", "6"][..]), (&pruned, &["0", "6"])] {
        // As after a crash.
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
                        // In a place that nobody reads.
                        return assert_eq!(records(copy), before, "{name:?} {at}");
                    };
                    assert_eq!((done.kept, done.lost), (before.len() as u64, 0), "{name:?} {at}");
                    assert_eq!(records(copy)[..before.len()], before[..], "{name:?} {at}");
                    assert!(check(copy).unwrap().is_sound());
                });
            }
            // Not there at all: fjall would take the keyspace for an unfinished one.
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
fn act_9_a_log_of_an_earlier_version_learns_whose_it_is_when_it_is_opened() {
    let dir = folder();
    let dir = dir.path().join("log");
    let (_, writer) = open(&dir);
    writer.close().unwrap();
    let node = fs::read(dir.join("node")).unwrap();
    // As such a version leaves it: with a seal that knows no such file.
    for name in ["node", "lost", "seal"] {
        fs::remove_file(dir.join(name)).unwrap();
    }
    mcpproxy::activity::file_checksums::write(&dir).unwrap();
    let (_, writer) = open(&dir);
    writer.close().unwrap();
    assert_eq!(fs::read(dir.join("node")).unwrap(), node);
    assert!(check(&dir).unwrap().is_sound());
}

#[test]
fn act_9_a_salvage_that_was_killed_leaves_the_log_where_it_was_or_is_ended_by_the_next_start() {
    let dir = folder();
    let dir = dir.path().join("log");
    let count = log(&dir);
    // Killed before the end: what it made so far lies beside the log.
    let unfinished = dir.with_file_name("log.salvaged");
    fs::create_dir(&unfinished).unwrap();
    fs::write(unfinished.join("db.new"), "").unwrap();
    assert_eq!(records(&dir).len() as u64, count);
    fs::remove_dir_all(&unfinished).unwrap();
    // Killed between the two renames.
    fs::rename(&dir, &unfinished).unwrap();
    assert_eq!(records(&dir).len() as u64, count);
    assert!(!unfinished.exists());
}

#[test]
fn act_9_salvage_moves_a_damaged_log_aside_and_keeps_what_can_be_read() {
    let dir = folder();
    let dir = dir.path().join("log");
    let count = log(&dir);
    assert_eq!(salvage::salvage(&dir, 0).unwrap(), None, "a sound log is left alone");
    let before = {
        let (activity, writer) = open(&dir);
        let page = Page { limit: 100_000, ..Page::default() };
        let records = activity.list(&Filter::default(), &page).unwrap().records;
        writer.close().unwrap();
        records
    };
    let journal = files(&dir).into_iter().find(|it| it.extension().is_some_and(|e| e == "jnl"));
    let journal = journal.unwrap();
    let size = fs::metadata(&journal).unwrap().len();
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
    assert_eq!(after.len() as u64, done.kept + 1);
    assert_eq!(after[1..], before[before.len() - done.kept as usize..]);
    assert_eq!((after[0].head.kind, after[0].seq), (Type::SystemStart, done.kept + 1));
    writer.close().unwrap();
}
