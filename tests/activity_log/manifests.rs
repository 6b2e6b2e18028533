//! The store's manifests and tables after a crash: any damage is rejected with the file's name before the
//! store can delete a table, and a salvage keeps every record in an undamaged block (ACT-9).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use mcpproxy_activity::store::{Space, Store};
use mcpproxy_activity::{Activity, Config, Record, StoreError, salvage};

use crate::support::{call, copy_files, files, open, records, slot};
use crate::tamper::{check, flip, folder, log, with_copy};

/// Keyspaces: fjall's own one, and those of the log.
const KEYSPACES: [&str; 7] = ["0", "1", "2", "3", "4", "5", "6"];
/// Keyspaces that cannot be rebuilt.
const OF_RECORDS: [&str; 3] = ["1", "2", "6"];
/// Number of bits flipped in each manifest. In that of the heads every bit is flipped.
const PLACES: usize = 60;

/// A log in the state after a crash, with records in tables and in a journal.
fn crashed(dir: &Path) -> u64 {
    let count = log(dir);
    fs::remove_file(dir.join("seal")).unwrap();
    count
}

fn keyspace(dir: &Path, number: &str) -> PathBuf {
    dir.join("db/keyspaces").join(number)
}

fn current(dir: &Path, number: &str) -> PathBuf {
    keyspace(dir, number).join("current")
}

/// The manifest named by a keyspace's `current`.
fn manifest(dir: &Path, number: &str) -> PathBuf {
    let bytes = fs::read(current(dir, number)).unwrap();
    let version = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    keyspace(dir, number).join(format!("v{version}"))
}

/// Tables of a keyspace, the largest last.
fn tables(dir: &Path, number: &str) -> Vec<PathBuf> {
    let mut tables = files(&keyspace(dir, number).join("tables"));
    tables.sort_by_key(|table| fs::metadata(table).unwrap().len());
    tables
}

/// Contents of all files of the database except journals, which are copied and restored when the log is opened.
fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = files(&dir.join("db/keyspaces")).into_iter();
    files.map(|file| (file.clone(), fs::read(file).unwrap())).collect()
}

/// File named in the error that rejects the damaged log.
fn refused(dir: &Path) -> PathBuf {
    let file = match Activity::open(dir, Config::default()) {
        Err(StoreError::Damaged { file, .. }) => Ok(file),
        other => Err(other.map(drop)),
    };
    file.unwrap()
}

/// Salvages the log and checks that every record is kept.
fn assert_all_kept(dir: &Path, before: &[Record]) {
    let done = salvage::salvage(dir, 0).unwrap().unwrap();
    assert_eq!((done.kept, done.lost), (before.len() as u64, 0), "{done:?}");
    assert!(records(dir)[..before.len()] == *before, "{done:?}");
    assert!(check(dir).unwrap().is_sound());
    assert!(done.aside.is_dir(), "nothing is deleted");
}

#[test]
fn act_9_manifest_with_a_flipped_bit_is_rejected_and_no_table_is_deleted() {
    let home = folder();
    let dir = home.path().join("log");
    let count = crashed(&dir);
    let before = contents(&dir);
    let mut tried = 0;
    for number in KEYSPACES {
        for file in [current(&dir, number), manifest(&dir, number)] {
            let whole = fs::read(&file).unwrap();
            let bits = whole.len() * 8;
            let step = if number == "1" { 1 } else { (bits / PLACES).max(1) };
            for bit in (0..bits).step_by(step) {
                let mut bytes = whole.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                fs::write(&file, &bytes).unwrap();
                let error = Store::open(&dir).unwrap_err();
                let StoreError::Damaged { file: named, .. } = &error else { panic!("{error}") };
                assert!(named.starts_with(keyspace(&dir, number)), "{bit} of {file:?}: {error}");
                tried += 1;
            }
            // Also when the log itself is opened, which has journals to restore.
            fs::write(&file, &whole[..whole.len() - 1]).unwrap();
            assert!(refused(&dir).starts_with(keyspace(&dir, number)));
            assert!(check(&dir).is_err());
            fs::write(&file, &whole).unwrap();
        }
    }
    assert!(tried > 3000, "{tried}");
    assert!(contents(&dir) == before, "nothing was deleted or written");
    assert_eq!(records(&dir).len() as u64, count);
}

#[test]
fn act_9_salvage_keeps_every_record_whatever_the_damage_to_a_manifest() {
    let home = folder();
    let dir = home.path().join("log");
    crashed(&dir);
    let before = with_copy(&dir, records);
    for number in KEYSPACES {
        for file in [current(&dir, number), manifest(&dir, number)] {
            let name = file.strip_prefix(&dir).unwrap();
            let whole = fs::read(&file).unwrap();
            let (mut flipped, mut zeroed) = (whole.clone(), whole.clone());
            flipped[8] ^= 1;
            zeroed.fill(0);
            let damaged =
                [Some(flipped), Some(zeroed), Some(whole[..8].to_vec()), Some(vec![]), None];
            for (case, bytes) in damaged.into_iter().enumerate() {
                with_copy(&dir, |dir| {
                    match bytes {
                        Some(bytes) => fs::write(dir.join(name), bytes).unwrap(),
                        None => fs::remove_file(dir.join(name)).unwrap(),
                    }
                    let file = refused(dir);
                    assert!(file.starts_with(keyspace(dir, number)), "{case} {name:?} {file:?}");
                    assert_all_kept(dir, &before);
                });
            }
        }
    }
}

#[test]
fn act_9_missing_or_empty_version_marker_is_rejected_by_name_and_salvaged() {
    let home = folder();
    let dir = home.path().join("log");
    crashed(&dir);
    let before = with_copy(&dir, records);
    for is_missing in [true, false] {
        with_copy(&dir, |dir| {
            let marker = dir.join("db/version");
            match is_missing {
                true => fs::remove_file(&marker).unwrap(),
                false => fs::write(&marker, "").unwrap(),
            }
            assert_eq!(refused(dir), marker);
            assert_all_kept(dir, &before);
        });
    }
}

#[test]
fn act_9_older_manifest_is_rejected_with_and_without_its_tables() {
    let home = folder();
    let dir = home.path().join("log");
    crashed(&dir);
    for number in OF_RECORDS {
        with_copy(&dir, |dir| {
            let keyspaces = dir.join("db/keyspaces");
            let older = contents(dir);
            // Adds some records, all of them in tables.
            let (activity, writer) = open(dir);
            (0..100).for_each(|n| drop(slot(&activity).submit(call(n))));
            writer.close().unwrap();
            let store = Store::open(dir).unwrap();
            for space in [Space::Heads, Space::Bodies, Space::State] {
                store.compact(space).unwrap();
            }
            store.note_tables();
            drop(store);
            fs::remove_file(dir.join("seal")).unwrap();
            let before = with_copy(dir, records);
            let put_back = |dir: &Path| {
                let manifest = manifest(dir, number);
                for (file, bytes) in &older {
                    let name = file.strip_prefix(&keyspaces).unwrap();
                    if name.starts_with(number) {
                        fs::write(dir.join("db/keyspaces").join(name), bytes).unwrap();
                    }
                }
                // Only the older version remains, as fjall removes the others.
                fs::remove_file(manifest).unwrap();
            };
            with_copy(dir, |dir| {
                put_back(dir);
                assert_eq!(refused(dir), current(dir, number));
                assert_all_kept(dir, &before);
            });
            // The journals are empty and the list of tables is missing as well. The tables that the older manifest does
            // not name then hold the only copy of some records.
            with_copy(dir, |dir| {
                let journals = files(&dir.join("db")).into_iter();
                let journals = journals.filter(|it| it.extension().is_some_and(|it| it == "jnl"));
                journals.for_each(|journal| fs::write(journal, "").unwrap());
                assert!(with_copy(dir, records) == before);
                // A table of keyspace 6, the log's state, may contain removed keys.
                if number == "6" {
                    return;
                }
                put_back(dir);
                fs::remove_file(dir.join("tables")).unwrap();
                let tables = tables(dir, number).len();
                assert!(refused(dir).starts_with(keyspace(dir, number).join("tables")));
                assert!(refused(dir).starts_with(keyspace(dir, number).join("tables")));
                assert_eq!(self::tables(dir, number).len(), tables, "nothing is deleted");
                assert_all_kept(dir, &before);
            });
        });
    }
}

#[test]
fn act_9_unfinished_table_is_removed_once_its_records_are_accounted_for() {
    let home = folder();
    let dir = home.path().join("log");
    let count = crashed(&dir);
    for is_cut in [true, false] {
        for has_list in [true, false] {
            with_copy(&dir, |dir| {
                for number in KEYSPACES.into_iter().skip(1) {
                    let Some(table) = tables(dir, number).pop() else { continue };
                    let bytes = fs::read(&table).unwrap();
                    let length = if is_cut { bytes.len() / 2 } else { bytes.len() };
                    fs::write(table.with_file_name("9999"), &bytes[..length]).unwrap();
                }
                if !has_list {
                    fs::remove_file(dir.join("tables")).unwrap();
                }
                assert_eq!(records(dir).len() as u64, count);
                let all = files(&dir.join("db/keyspaces"));
                assert!(!all.iter().any(|file| file.to_string_lossy().contains("9999")), "{all:?}");
            });
        }
    }
}

#[test]
fn act_9_salvage_completes_an_unfinished_table_from_the_journal() {
    let home = folder();
    let (dir, killed) = (home.path().join("log"), home.path().join("killed"));
    let (activity, writer) = open(&dir);
    // The records form one batch, of which an unfinished table contains a part.
    (0..500).for_each(|n| drop(slot(&activity).submit(call(n))));
    activity.flush().unwrap();
    copy_files(&dir, &killed);
    writer.close().unwrap();
    let before = with_copy(&killed, records);
    for number in OF_RECORDS {
        let bytes = fs::read(tables(&dir, number).pop().unwrap()).unwrap();
        for parts in [1, 2, 3] {
            with_copy(&killed, |dir| {
                let tables = keyspace(dir, number).join("tables");
                fs::create_dir_all(&tables).unwrap();
                fs::write(tables.join("9999"), &bytes[..bytes.len() * parts / 4]).unwrap();
                flip(&manifest(dir, number), 0);
                assert_all_kept(dir, &before);
            });
        }
    }
}

#[test]
fn act_9_table_with_a_damaged_structure_is_rejected_by_name_without_loss() {
    let home = folder();
    let dir = home.path().join("log");
    crashed(&dir);
    let before = with_copy(&dir, records);
    for number in ["1", "2"] {
        let table = tables(&dir, number).pop().unwrap();
        let whole = fs::read(&table).unwrap();
        let named = |bytes: &[u8]| {
            fs::write(&table, bytes).unwrap();
            match Store::open(&dir) {
                Ok(_) => false,
                Err(StoreError::Damaged { file, .. }) => file == table,
                Err(error) => panic!("{error}"),
            }
        };
        // Backwards from the end: trailer, contents, meta block, filter and index.
        let mut refusals = 0;
        for back in (1..whole.len().min(1500)).step_by(7) {
            let at = whole.len() - back;
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (back % 8);
            let is_structure = named(&bytes);
            refusals += u32::from(is_structure);
            if back % 105 == 1 {
                with_copy(&dir, |dir| {
                    let done = salvage::salvage(dir, 0).unwrap().unwrap();
                    assert_eq!(done.kept + done.lost, before.len() as u64, "{back}: {done:?}");
                    assert!(done.lost == 0 || !is_structure, "{back}: {done:?}");
                });
            }
        }
        assert!(refusals > 50, "{refusals}");
        assert!(named(&[]) && named(&whole[..whole.len() - 1]) && named(&vec![0; whole.len()]));
        fs::remove_file(&table).unwrap();
        assert!(Store::open(&dir).is_err_and(|error| error.to_string().contains("it is missing")));
        // Truncated in the middle: records before it are kept.
        fs::write(&table, &whole[..whole.len() / 2]).unwrap();
        with_copy(&dir, |dir| {
            assert_eq!(
                refused(dir),
                dir.join(table.strip_prefix(home.path().join("log")).unwrap())
            );
            let done = salvage::salvage(dir, 0).unwrap().unwrap();
            assert!(done.kept > before.len() as u64 / 3 && done.lost > 0, "{done:?}");
            assert_eq!(done.kept + done.lost, before.len() as u64, "{done:?}");
            assert!(check(dir).unwrap().is_sound());
        });
        fs::write(&table, &whole).unwrap();
    }
    assert!(with_copy(&dir, records) == before);
}

#[test]
fn act_9_unexpected_file_in_the_store_is_rejected_by_name() {
    let home = folder();
    let dir = home.path().join("log");
    let count = crashed(&dir);
    for stray in ["db/keyspaces/lost+found", "db/keyspaces/77", "db/keyspaces/1/tables/5.d"] {
        fs::create_dir(dir.join(stray)).unwrap();
        assert_eq!(refused(&dir), dir.join(stray));
        fs::remove_dir(dir.join(stray)).unwrap();
    }
    fs::remove_file(dir.join("db/lock")).unwrap();
    let _ = fs::remove_file(dir.join("seal"));
    assert_eq!(records(&dir).len() as u64, count, "fjall's lock is no part of the log");
}

#[test]
fn act_9_damaged_or_missing_list_of_tables_is_rewritten() {
    let home = folder();
    let dir = home.path().join("log");
    let count = crashed(&dir);
    let list = dir.join("tables");
    let whole = fs::read(&list).unwrap();
    for damaged in [Some(&whole[1..]), Some(&[0xff; 9]), Some(&[]), None] {
        match damaged {
            Some(bytes) => fs::write(&list, bytes).unwrap(),
            None => fs::remove_file(&list).unwrap(),
        }
        assert_eq!(records(&dir).len() as u64, count);
        assert_eq!(fs::read(&list).unwrap().len(), whole.len());
        let _ = fs::remove_file(dir.join("seal"));
    }
}

#[test]
fn act_9_start_removes_leftovers_of_a_killed_salvage() {
    let home = folder();
    let dir = home.path().join("log");
    let count = log(&dir);
    let left = ["log.copy-4194303", "log.scratch-4194303", "log.salvaged"];
    for name in left {
        fs::create_dir_all(home.path().join(name).join("log/db")).unwrap();
    }
    assert_eq!(records(&dir).len() as u64, count);
    assert!(left.iter().all(|name| !home.path().join(name).exists()));
    for name in left {
        fs::create_dir_all(home.path().join(name).join("log/db")).unwrap();
    }
    assert_eq!(salvage::salvage(&dir, 0).unwrap(), None);
    assert!(left.iter().all(|name| !home.path().join(name).exists()));
}
