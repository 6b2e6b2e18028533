//! The end of the chain, kept apart from the store: the last durable record's number and hash.
//!
//! A store that ends before it is missing records (ACT-4): recovery after a crash, or after
//! someone cut the journal, cannot hide that. Two places are written in turn, so that one is
//! always whole. It protects nothing against someone who rewrites store and head together.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::record::Hash;
use super::store::StoreError;
use crate::os::private;

/// The file's name in the log's folder.
pub const NAME: &str = "head";
const MAGIC: [u8; 8] = *b"mcpphd\x00\x01";
const PLACE_BYTES: usize = 64;
/// The places lie a sector apart: a torn write spoils one of them at most.
const STRIDE: usize = 512;
const FILE_BYTES: usize = STRIDE + PLACE_BYTES;
const CHECK_BYTES: usize = 16;

/// The last record that is known to be durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Its sequence number.
    pub seq: u64,
    /// Its hash.
    pub hash: Hash,
}

/// What the file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The newest whole mark.
    pub mark: Option<Mark>,
    /// True when something in it is neither a mark nor empty: a write torn by a crash, or an
    /// alteration.
    pub torn: bool,
}

/// The open file.
#[derive(Debug)]
pub struct HeadFile {
    file: File,
    path: PathBuf,
    next: usize,
}

impl Reading {
    /// Refuses what was written and has no whole mark.
    ///
    /// # Errors
    ///
    /// [`StoreError::Damaged`].
    pub(super) fn usable(self, dir: &Path) -> Result<Self, StoreError> {
        match self {
            Self { mark: None, torn: true } => {
                let why = "it has no whole mark".into();
                Err(StoreError::Damaged { file: dir.join(NAME), why })
            }
            usable => Ok(usable),
        }
    }
}

impl HeadFile {
    /// Opens the file in `dir`, or makes it, and reads it.
    ///
    /// # Errors
    ///
    /// [`StoreError::Io`]; [`StoreError::Damaged`] if it has no whole mark but was written.
    pub fn open(dir: &Path) -> Result<(Self, Reading), StoreError> {
        let path = dir.join(NAME);
        let mut file =
            private::options().read(true).write(true).create(true).truncate(false).open(&path)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let (places, reading) = parse(&bytes);
        let reading = reading.usable(dir)?;
        if bytes.is_empty() {
            file.set_len(FILE_BYTES as u64)?;
            file.sync_all()?;
            File::open(dir)?.sync_all()?;
        }
        let next = match places {
            [Some(a), Some(b)] if a.seq < b.seq => 0,
            [Some(_), _] => 1,
            [None, _] => 0,
        };
        Ok((Self { file, path, next }, reading))
    }

    /// Reads the file in `dir` without touching it.
    ///
    /// # Errors
    ///
    /// [`StoreError::Io`]; a file that is not there has no mark.
    pub fn read(dir: &Path) -> Result<Reading, StoreError> {
        match std::fs::read(dir.join(NAME)) {
            Ok(bytes) => Ok(parse(&bytes).1),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Ok(Reading { mark: None, torn: false })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Writes a mark, durably.
    ///
    /// # Errors
    ///
    /// [`StoreError::Io`].
    pub fn write(&mut self, mark: Mark) -> Result<(), StoreError> {
        self.file.seek(SeekFrom::Start((self.next * STRIDE) as u64))?;
        self.file.write_all(&encode(mark))?;
        self.file.sync_data()?;
        self.next ^= 1;
        Ok(())
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn encode(mark: Mark) -> [u8; PLACE_BYTES] {
    let mut out = [0; PLACE_BYTES];
    let fields = MAGIC.into_iter().chain(mark.seq.to_be_bytes()).chain(mark.hash.0);
    let check = check(mark);
    out.iter_mut().zip(fields.chain(check)).for_each(|(to, from)| *to = from);
    out
}

fn check(mark: Mark) -> [u8; CHECK_BYTES] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&MAGIC).update(&mark.seq.to_be_bytes()).update(&mark.hash.0);
    let mut check = [0; CHECK_BYTES];
    check.iter_mut().zip(hasher.finalize().as_bytes()).for_each(|(to, from)| *to = *from);
    check
}

fn decode(bytes: &[u8]) -> Option<Mark> {
    let bytes: &[u8; PLACE_BYTES] = bytes.try_into().ok()?;
    let (_, rest) = bytes.split_first_chunk::<8>()?;
    let (seq, rest) = rest.split_first_chunk::<8>()?;
    let (hash, _) = rest.split_first_chunk::<32>()?;
    let mark = Mark { seq: u64::from_be_bytes(*seq), hash: Hash(*hash) };
    (encode(mark) == *bytes).then_some(mark)
}

fn parse(bytes: &[u8]) -> ([Option<Mark>; 2], Reading) {
    let place = |at: usize| bytes.get(at..at + PLACE_BYTES).unwrap_or_default();
    let places = [place(0), place(STRIDE)];
    let marks = places.map(decode);
    let empty = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    let between = bytes.get(PLACE_BYTES..STRIDE).unwrap_or_default();
    let length = bytes.is_empty() || bytes.len() == FILE_BYTES;
    let torn = !length
        || !empty(between)
        || places.iter().zip(&marks).any(|(place, mark)| mark.is_none() && !empty(place));
    let mark = marks.into_iter().flatten().max_by_key(|mark| mark.seq);
    (marks, Reading { mark, torn })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(seq: u64) -> Mark {
        Mark { seq, hash: Hash([seq as u8; 32]) }
    }

    #[test]
    fn act_4_the_newest_mark_is_read_back_and_one_torn_write_is_survived() {
        let dir = tempfile::tempdir().unwrap();
        let (mut file, reading) = HeadFile::open(dir.path()).unwrap();
        assert_eq!(reading, Reading { mark: None, torn: false });
        for seq in 1..=3 {
            file.write(mark(seq)).unwrap();
            assert_eq!(HeadFile::read(dir.path()).unwrap().mark, Some(mark(seq)));
        }
        let whole = std::fs::read(file.path()).unwrap();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            let reading = parse(&bytes).1;
            assert!(reading.torn, "byte {at}");
            assert!(reading.mark == Some(mark(3)) || reading.mark == Some(mark(2)));
        }
        let (mut file, reading) = HeadFile::open(dir.path()).unwrap();
        assert_eq!(reading.mark, Some(mark(3)));
        file.write(mark(4)).unwrap();
        let places = parse(&std::fs::read(file.path()).unwrap()).0;
        assert_eq!(places.map(|it| it.unwrap().seq), [3, 4]);
    }

    #[test]
    fn act_9_a_head_without_a_whole_mark_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(NAME), [1; FILE_BYTES]).unwrap();
        let error = HeadFile::open(dir.path()).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { file, .. } if file.ends_with("head")));
    }
}
