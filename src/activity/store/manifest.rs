//! Opening fjall's database, and a decoder of its manifests, which name the tables of a keyspace.
//!
//! ```text
//! current    version: u64 · xxh3-128 of v{version}: u128 · kind of the checksum: u8
//! v{version} sections · table of contents · trailer (38 bytes): an `sfa` archive, like a table
//! ```
//!
//! All numbers are little-endian. fjall reads the checksum in `current` without comparing it, and the sections have no
//! checksum. A flipped bit in a count could thus leave tables unnamed, and recovery deletes unnamed tables. Both files
//! are therefore checked before fjall reads them (ACT-9).

use std::collections::BTreeMap;
use std::path::Path;

use fjall::config::BlockSizePolicy;
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions};
use xxhash_rust::xxh3::xxh3_128;

use super::error::{StoreError, guarded, read_error};
use crate::folder;
use crate::store::Space;
use mcpproxy_runtime::os::descriptors;

/// Length of `current`.
pub(super) const CURRENT_BYTES: usize = 8 + 16 + 1;
/// Length of an archive's trailer.
pub(super) const TRAILER_BYTES: usize = 4 + 1 + 1 + 16 + 8 + 8;
const TRAILER_MAGIC: &[u8] = b"SFA!\x01\x00";
const CONTENTS_MAGIC: &[u8] = b"TOC!";
const TABLES: &[u8] = b"tables";
/// The only kind of checksum: xxh3.
const XXH3: u8 = 0;

/// Contents of `current`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Current {
    /// Version of the named manifest.
    pub(super) version: u64,
    checksum: u128,
}

/// Version of a keyspace: its number, and its tables with their checksums.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Version {
    pub(super) number: u64,
    pub(super) tables: BTreeMap<u64, u128>,
}

impl Current {
    /// Decodes the file; `None` if fjall did not write it.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let current = Self { version: number(&mut rest)?, checksum: wide(&mut rest)? };
        (rest == [XXH3]).then_some(current)
    }

    /// Decodes the manifest named by this file; `None` if the checksum differs.
    pub(super) fn version(self, manifest: &[u8]) -> Option<Version> {
        if xxh3_128(manifest) != self.checksum {
            return None;
        }
        Some(Version { number: self.version, tables: tables(manifest)? })
    }
}

/// Position, length and checksum of the table of contents in an archive of `length` bytes, if its trailer is
/// intact.
pub(super) fn contents(trailer: &[u8], length: u64) -> Option<(u64, usize, u128)> {
    let mut rest = trailer.strip_prefix(TRAILER_MAGIC)?;
    let (checksum, at, size) = (wide(&mut rest)?, number(&mut rest)?, number(&mut rest)?);
    let end = at.checked_add(size)?.checked_add(TRAILER_BYTES as u64)?;
    (rest.is_empty() && end == length).then_some((at, usize::try_from(size).ok()?, checksum))
}

/// Whether these bytes are a table of contents that matches this checksum.
pub(super) fn are_contents(bytes: &[u8], checksum: u128) -> bool {
    bytes.starts_with(CONTENTS_MAGIC) && xxh3_128(bytes) == checksum
}

/// Tables named by an intact manifest.
fn tables(manifest: &[u8]) -> Option<BTreeMap<u64, u128>> {
    let at = manifest.len().checked_sub(TRAILER_BYTES)?;
    let (from, length, checksum) = contents(manifest.get(at..)?, manifest.len() as u64)?;
    let from = usize::try_from(from).ok()?;
    let contents = manifest.get(from..from.checked_add(length)?)?;
    if !are_contents(contents, checksum) {
        return None;
    }
    let mut rest = section(manifest, contents, TABLES)?;
    let mut found = BTreeMap::new();
    let levels = byte(&mut rest)?;
    for _ in 0..levels {
        let runs = byte(&mut rest)?;
        for _ in 0..runs {
            let count = u32::from_le_bytes(array(&mut rest)?);
            for _ in 0..count {
                let id = number(&mut rest)?;
                if byte(&mut rest)? != XXH3 {
                    return None;
                }
                let hash = wide(&mut rest)?;
                let _added_to_numbers = number(&mut rest)?;
                found.insert(id, hash);
            }
        }
    }
    rest.is_empty().then_some(found)
}

/// Section of an archive by name.
fn section<'a>(archive: &'a [u8], contents: &[u8], wanted: &[u8]) -> Option<&'a [u8]> {
    let mut rest = contents.strip_prefix(CONTENTS_MAGIC)?;
    let count = u32::from_le_bytes(array(&mut rest)?);
    for _ in 0..count {
        let (from, length) = (number(&mut rest)?, number(&mut rest)?);
        let (name, after) = {
            let length = u16::from_le_bytes(array(&mut rest)?);
            rest.split_at_checked(usize::from(length))?
        };
        rest = after;
        if name == wanted {
            let (from, length) = (usize::try_from(from).ok()?, usize::try_from(length).ok()?);
            return archive.get(from..from.checked_add(length)?);
        }
    }
    None
}

fn array<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (first, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(*first)
}

fn byte(rest: &mut &[u8]) -> Option<u8> {
    array(rest).map(|[byte]| byte)
}

fn number(rest: &mut &[u8]) -> Option<u64> {
    array(rest).map(u64::from_le_bytes)
}

fn wide(rest: &mut &[u8]) -> Option<u128> {
    array(rest).map(u128::from_le_bytes)
}

/// Folder of the database in the log's folder.
pub(crate) const DB: &str = "db";
/// Folder of keyspaces in a database.
pub(super) const KEYSPACES: &str = "keyspaces";
/// Folder of fjall's own keyspace.
pub(super) const META: &str = "0";
/// File that names a keyspace's manifest. fjall treats a keyspace without this file as unfinished and removes it.
pub(super) const CURRENT: &str = "current";
/// File with the version of the database.
pub(super) const VERSION: &str = "version";
/// Resource limits of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DatabaseSize {
    /// Memory for blocks read from disk.
    cache_bytes: u64,
    /// Maximum size of a keyspace's memtable.
    memtable_bytes: u64,
    /// Maximum number of open tables; lower if few file descriptors are available.
    open_tables: usize,
}

impl DatabaseSize {
    /// Limits of the log itself.
    pub(super) const LOG: Self =
        Self { cache_bytes: 8 << 20, memtable_bytes: 16 << 20, open_tables: usize::MAX };
    /// Limits of a replica. A node may hold many replicas.
    pub(super) const REPLICA: Self =
        Self { cache_bytes: 1 << 20, memtable_bytes: 2 << 20, open_tables: 32 };
}

/// Size of the journals at which the oldest one is flushed; the minimum that fjall accepts.
const JOURNAL_BYTES: u64 = 64 << 20;
/// Number of threads that flush and compact. With several threads, one of them would keep a core busy: while another
/// thread compacts, it puts its own compaction request back into the queue without a pause.
const WORKERS: usize = 1;

/// Opens or creates the database. Damage that makes fjall panic is reported as damage.
pub(super) fn open_db(path: &Path, size: DatabaseSize) -> Result<Database, StoreError> {
    let tables = descriptors::store_tables(descriptors::limit()).min(size.open_tables);
    folder::retry_lock(|| {
        guarded(&path.join(KEYSPACES), || {
            let opened = Database::builder(path)
                .cache_size(size.cache_bytes)
                .max_journaling_size(JOURNAL_BYTES)
                .manual_journal_persist(true)
                // Large values are compressed already.
                .journal_compression(CompressionType::None)
                .worker_threads(WORKERS)
                .max_cached_files(Some(tables))
                .open();
            opened.map_err(|error| read_error(path, error))
        })
    })
}

/// Target size of a data block in tables of records, in bytes. Damage makes a whole data block unreadable, so a small
/// size limits the loss: nearly every full block of records has a data block of its own. With a size of 1 byte, every
/// value would have its own data block, but a log of single records would be half as large again. Existing keyspaces
/// keep the size they were created with.
const TABLE_BLOCK_BYTES: u32 = 512;

/// Opens or creates the keyspaces, in the order of [`Space::ALL`].
pub(super) fn keyspaces(
    db: &Database,
    path: &Path,
    size: DatabaseSize,
) -> Result<[Keyspace; Space::ALL.len()], StoreError> {
    let open = |space: Space| {
        let options = || {
            let options = KeyspaceCreateOptions::default().max_memtable_size(size.memtable_bytes);
            match space {
                Space::Heads | Space::Bodies => {
                    options.data_block_size_policy(BlockSizePolicy::all(TABLE_BLOCK_BYTES))
                }
                _ => options,
            }
        };
        guarded(&path.join(KEYSPACES).join(space.folder()), || {
            db.keyspace(space.name(), options).map_err(|error| read_error(path, error))
        })
    };
    let [a, b, c, d, e, f] = Space::ALL;
    Ok([open(a)?, open(b)?, open(c)?, open(d)?, open(e)?, open(f)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A manifest with one level and one run, as fjall writes it, and its `current`.
    pub(super) fn written(version: u64, tables: &[(u64, u128)]) -> (Vec<u8>, Vec<u8>) {
        let mut section = vec![1, 1];
        section.extend((tables.len() as u32).to_le_bytes());
        for (id, hash) in tables {
            section.extend(id.to_le_bytes());
            section.push(XXH3);
            section.extend(hash.to_le_bytes());
            section.extend(0_u64.to_le_bytes());
        }
        let mut contents = CONTENTS_MAGIC.to_vec();
        contents.extend(1_u32.to_le_bytes());
        contents.extend(0_u64.to_le_bytes());
        contents.extend((section.len() as u64).to_le_bytes());
        contents.extend((TABLES.len() as u16).to_le_bytes());
        contents.extend(TABLES);
        let mut archive = section.clone();
        archive.extend(&contents);
        archive.extend(TRAILER_MAGIC);
        archive.extend(xxh3_128(&contents).to_le_bytes());
        archive.extend((section.len() as u64).to_le_bytes());
        archive.extend((contents.len() as u64).to_le_bytes());
        let mut current = version.to_le_bytes().to_vec();
        current.extend(xxh3_128(&archive).to_le_bytes());
        current.push(XXH3);
        (current, archive)
    }

    #[test]
    fn manifest_names_its_tables() {
        let (current, manifest) = written(7, &[(3, 30), (4, 40)]);
        let version = Current::decode(&current).unwrap().version(&manifest).unwrap();
        assert_eq!(version, Version { number: 7, tables: [(3, 30), (4, 40)].into() });
    }

    #[test]
    fn manifest_with_a_flipped_bit_or_truncation_is_rejected() {
        let (current, manifest) = written(7, &[(3, 30), (4, 40)]);
        let whole = Current::decode(&current).unwrap();
        for bit in 0..manifest.len() * 8 {
            let mut bytes = manifest.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(whole.version(&bytes), None, "bit {bit}");
        }
        for bit in 0..current.len() * 8 {
            let mut bytes = current.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            // A flipped version number names a different manifest file.
            let read = Current::decode(&bytes).and_then(|it| it.version(&manifest));
            assert!(read.is_none_or(|it| it.number != 7 && bit < 64), "bit {bit}");
        }
        for length in 0..manifest.len() {
            assert_eq!(whole.version(&manifest[..length]), None, "{length}");
        }
        for length in 0..current.len() {
            assert_eq!(Current::decode(&current[..length]), None, "{length}");
        }
    }

    #[test]
    fn sections_with_a_false_extent_are_rejected() {
        let (_, mut manifest) = written(7, &[(3, 30)]);
        // The checksum matches, because anyone who writes the file can compute it.
        manifest[2] = u8::MAX;
        assert_eq!(tables(&manifest), None);
        manifest[0] = u8::MAX;
        assert_eq!(tables(&manifest), None);
        assert_eq!(contents(&manifest, 0), None);
    }
}
