//! The end of the chain, kept apart from the store: the last durable record's number and hash.
//!
//! A store that ends before it is missing records (ACT-4): recovery after a crash, or after
//! someone cut the journal, cannot hide that. It does not protect against someone who
//! rewrites store and head together.

use std::path::Path;

use super::record::Hash;
use super::store::StoreError;
use crate::os::alternating_file::{AlternatingFile, FileKind, SlotContents};

/// The file's name in the log's folder.
pub const NAME: &str = "head";
const KIND: FileKind = FileKind { name: NAME, magic: *b"mcpphd\x00\x01" };
/// The bytes of a mark: its number, and its hash.
const MARK_BYTES: usize = 8 + 32;

/// The last record that is known to be durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainTip {
    /// Its sequence number.
    pub seq: u64,
    /// Its hash.
    pub hash: Hash,
}

/// The contents of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TipReading {
    /// The newest whole mark.
    pub mark: Option<ChainTip>,
    /// True when something in it is neither a mark nor empty: a write torn by a crash, or an
    /// alteration.
    pub torn: bool,
}

/// The open file.
#[derive(Debug)]
pub struct ChainTipFile(AlternatingFile<MARK_BYTES>);

impl TipReading {
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

impl From<SlotContents<MARK_BYTES>> for TipReading {
    fn from(found: SlotContents<MARK_BYTES>) -> Self {
        Self { mark: found.newest().and_then(|bytes| decode(&bytes)), torn: found.torn }
    }
}

impl ChainTipFile {
    /// Opens the file in `dir`, or makes it, and reads it.
    ///
    /// # Errors
    ///
    /// [`StoreError::Io`]; [`StoreError::Damaged`] if it has no whole mark but was written.
    pub fn open(dir: &Path) -> Result<(Self, TipReading), StoreError> {
        let (places, found) = AlternatingFile::open(dir, KIND)?;
        Ok((Self(places), TipReading::from(found).usable(dir)?))
    }

    /// Reads the file in `dir` without touching it.
    ///
    /// # Errors
    ///
    /// [`StoreError::Io`]; a file that is not there has no mark.
    pub fn read(dir: &Path) -> Result<TipReading, StoreError> {
        Ok(AlternatingFile::read(dir, KIND)?.into())
    }

    /// Writes a mark, durably.
    ///
    /// # Errors
    ///
    /// [`StoreError::Io`].
    pub fn write(&mut self, mark: ChainTip) -> Result<(), StoreError> {
        let mut bytes = [0; MARK_BYTES];
        let fields = mark.seq.to_be_bytes().into_iter().chain(mark.hash.0);
        bytes.iter_mut().zip(fields).for_each(|(to, from)| *to = from);
        Ok(self.0.write(&bytes)?)
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

fn decode(bytes: &[u8; MARK_BYTES]) -> Option<ChainTip> {
    let (seq, hash) = bytes.split_first_chunk()?;
    Some(ChainTip { seq: u64::from_be_bytes(*seq), hash: Hash(hash.try_into().ok()?) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(seq: u64) -> ChainTip {
        ChainTip { seq, hash: Hash([seq as u8; 32]) }
    }

    #[test]
    fn act_4_the_newest_mark_is_read_back_and_one_torn_write_is_survived() {
        let dir = tempfile::tempdir().unwrap();
        let (mut file, reading) = ChainTipFile::open(dir.path()).unwrap();
        assert_eq!(reading, TipReading { mark: None, torn: false });
        for seq in 1..=3 {
            file.write(mark(seq)).unwrap();
            assert_eq!(ChainTipFile::read(dir.path()).unwrap().mark, Some(mark(seq)));
        }
        let whole = std::fs::read(file.path()).unwrap();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            std::fs::write(file.path(), bytes).unwrap();
            let reading = ChainTipFile::read(dir.path()).unwrap();
            assert!(reading.torn, "byte {at}");
            assert!(reading.mark == Some(mark(3)) || reading.mark == Some(mark(2)));
        }
        std::fs::write(file.path(), whole).unwrap();
        let (mut file, reading) = ChainTipFile::open(dir.path()).unwrap();
        assert_eq!(reading.mark, Some(mark(3)));
        file.write(mark(4)).unwrap();
        let found = AlternatingFile::read(dir.path(), KIND).unwrap();
        assert_eq!(found.places.map(|it| decode(&it.unwrap()).unwrap().seq), [3, 4]);
    }

    #[test]
    fn act_9_a_head_without_a_whole_mark_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(NAME), [1; 576]).unwrap();
        let error = ChainTipFile::open(dir.path()).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { file, .. } if file.ends_with("head")));
    }
}
