//! Chain tip: number and hash of the last durable record, kept in its own file next to the store.
//!
//! A store that ends before the tip has lost records (ACT-4), so neither crash recovery nor a truncated journal can
//! hide a loss. The file does not protect against someone who rewrites both the store and the tip.

use std::path::Path;

use super::record::Hash;
use super::store::StoreError;
use mcpproxy_runtime::os::state_file::{AlternatingFile, FileKind, SlotContents};

/// Name of the file in the log's folder.
pub(crate) const NAME: &str = "head";
const KIND: FileKind = FileKind { name: NAME, magic: *b"mcpphd\x00\x01" };
/// Size of an encoded tip.
const MARK_BYTES: usize = 8 + 32;

/// Number and hash of the last durable record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainTip {
    pub seq: u64,
    pub hash: Hash,
}

/// Contents of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TipReading {
    /// Newest intact tip.
    pub tip: Option<ChainTip>,
    /// Whether the file holds bytes that are neither empty nor a valid tip, because of a torn write or an alteration.
    pub torn: bool,
}

#[derive(Debug)]
pub(crate) struct ChainTipFile(AlternatingFile<MARK_BYTES>);

impl TipReading {
    /// Rejects a file that was written but holds no intact tip.
    pub(super) fn usable(self, dir: &Path) -> Result<Self, StoreError> {
        match self {
            Self { tip: None, torn: true } => {
                let why = "it holds no intact entry".into();
                Err(StoreError::Damaged { file: dir.join(NAME), why })
            }
            usable => Ok(usable),
        }
    }
}

impl From<SlotContents<MARK_BYTES>> for TipReading {
    fn from(found: SlotContents<MARK_BYTES>) -> Self {
        Self { tip: found.newest().and_then(|bytes| decode(&bytes)), torn: found.torn }
    }
}

impl ChainTipFile {
    /// Opens or creates the file in `dir` and reads it.
    pub(crate) fn open(dir: &Path) -> Result<(Self, TipReading), StoreError> {
        let opened = AlternatingFile::open(dir, KIND);
        let (places, found) =
            opened.map_err(|error| StoreError::unreadable(dir.join(NAME), error))?;
        Ok((Self(places), TipReading::from(found).usable(dir)?))
    }

    /// Reads the file in `dir` without changing it; a missing file yields no tip.
    pub(crate) fn read(dir: &Path) -> Result<TipReading, StoreError> {
        let found = AlternatingFile::read(dir, KIND);
        Ok(found.map_err(|error| StoreError::unreadable(dir.join(NAME), error))?.into())
    }

    /// Writes a tip durably.
    pub(crate) fn write(&mut self, mark: ChainTip) -> Result<(), StoreError> {
        let mut bytes = [0; MARK_BYTES];
        let fields = mark.seq.to_be_bytes().into_iter().chain(mark.hash.0);
        bytes.iter_mut().zip(fields).for_each(|(to, from)| *to = from);
        Ok(self.0.write(&bytes)?)
    }

    #[cfg(test)]
    pub(crate) fn path(&self) -> &Path {
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
    fn act_4_newest_tip_is_read_back_after_a_torn_write() {
        let dir = tempfile::tempdir().unwrap();
        let (mut file, reading) = ChainTipFile::open(dir.path()).unwrap();
        assert_eq!(reading, TipReading { tip: None, torn: false });
        for seq in 1..=3 {
            file.write(mark(seq)).unwrap();
            assert_eq!(ChainTipFile::read(dir.path()).unwrap().tip, Some(mark(seq)));
        }
        let whole = std::fs::read(file.path()).unwrap();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            std::fs::write(file.path(), bytes).unwrap();
            let reading = ChainTipFile::read(dir.path()).unwrap();
            assert!(reading.torn, "byte {at}");
            assert!(reading.tip == Some(mark(3)) || reading.tip == Some(mark(2)));
        }
        std::fs::write(file.path(), whole).unwrap();
        let (mut file, reading) = ChainTipFile::open(dir.path()).unwrap();
        assert_eq!(reading.tip, Some(mark(3)));
        file.write(mark(4)).unwrap();
        let found = AlternatingFile::read(dir.path(), KIND).unwrap();
        assert_eq!(found.places.map(|it| decode(&it.unwrap()).unwrap().seq), [3, 4]);
    }

    #[test]
    fn act_9_tip_file_without_an_intact_entry_is_rejected() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(NAME), [1; 576]).unwrap();
        let error = ChainTipFile::open(dir.path()).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { file, .. } if file.ends_with("head")));
    }
}
