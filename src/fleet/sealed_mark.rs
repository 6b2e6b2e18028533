//! What a node remembers of its chain in the store: how far it has come, and which segment is on its way. Kept in the data
//! folder, in a file that is always whole.
//!
//! A segment is noted before it is put: after a crash the same records are sealed again, which gives the same key and the same
//! bytes, whether or not the put had arrived.

use std::io;
use std::path::Path;

use super::config::NodeName;
use super::sealing::ChainPosition;
use crate::activity::bytes::{DecodeError, Reader};
use crate::activity::record::{Hash, NodeId};
use crate::os::alternating_file::{AlternatingFile, FileKind};

const KIND: FileKind = FileKind { name: "sealed", magic: *b"mcpseal\x01" };
/// Its number; fleet, node and log; sequence, hash, whether there is a checkpoint, which; day; last planned.
const BYTES: usize = 8 + 16 + 16 + 16 + 8 + 32 + 1 + 32 + 4 + 8;

/// The id of a fleet: made at random when its store is first used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FleetId(pub [u8; 16]);

impl FleetId {
    /// Reads what [`std::fmt::Display`] writes.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let id = (text.len() == 32).then(|| u128::from_str_radix(text, 16).ok()).flatten();
        id.map(|id| Self(id.to_be_bytes())).filter(|id| id.to_string() == text)
    }
}

impl std::fmt::Display for FleetId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A node's name in a place of its own size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeTag([u8; 16]);

impl NodeTag {
    /// That of a name.
    #[must_use]
    pub fn of(node: &NodeName) -> Self {
        let hash = blake3::hash(node.as_str().as_bytes());
        Self(hash.as_bytes().first_chunk().copied().unwrap_or_default())
    }

    /// 31 bits of it, by which what is numbered on a node is told from what is numbered on another: of a thousand nodes two
    /// have the same once in 4000 fleets. Not 0.
    #[must_use]
    pub fn number(self) -> u64 {
        let first = self.0.first_chunk().copied().map_or(0, u32::from_be_bytes);
        u64::from(first >> 1).max(1)
    }

    /// The same as 7 letters and digits, for ids that people type.
    #[must_use]
    pub fn text(self) -> String {
        let number = self.number();
        let digit = |at: u32| char::from_digit((number >> (5 * at)) as u32 & 31, 32);
        (0..7).rev().filter_map(digit).collect()
    }

    /// What was written of one.
    #[must_use]
    pub fn of_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// To be written.
    #[must_use]
    pub fn bytes(self) -> [u8; 16] {
        self.0
    }
}

/// What is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealedMark {
    /// The fleet that the node belongs to.
    pub fleet: FleetId,
    /// The node as which it did so: under another name it begins another chain.
    pub node: NodeTag,
    /// The log that was sealed.
    pub log: NodeId,
    /// How far the chain has come in the store.
    pub stored: ChainPosition,
    /// The day in the name of the last segment there.
    pub day: i32,
    /// The last record of the segment that is on its way; `None` for none.
    pub planned: Option<u64>,
}

/// The open file.
#[derive(Debug)]
pub struct SealedMarkFile {
    file: AlternatingFile<BYTES>,
    number: u64,
}

impl SealedMarkFile {
    /// Opens the file in `dir`, or makes it, and reads what is remembered.
    ///
    /// # Errors
    ///
    /// The file system's; a file that was written and holds nothing whole is invalid data.
    pub fn open(dir: &Path) -> io::Result<(Self, Option<SealedMark>)> {
        let (file, found) = AlternatingFile::open(dir, KIND)?;
        let newest = found.newest();
        if newest.is_none() && found.torn {
            let why = format!("{} has nothing that is whole", file.path().display());
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let read = newest.map(|bytes| decode(&bytes)).transpose();
        let read =
            read.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
        let number = read.map_or(0, |(number, _)| number);
        Ok((Self { file, number }, read.map(|(_, mark)| mark)))
    }

    /// Remembers this instead, durably.
    ///
    /// # Errors
    ///
    /// The file system's.
    pub fn write(&mut self, mark: &SealedMark) -> io::Result<()> {
        self.number += 1;
        self.file.write(&encode(self.number, mark))
    }
}

fn encode(number: u64, mark: &SealedMark) -> [u8; BYTES] {
    let SealedMark { fleet, node, log, stored, day, planned } = mark;
    let mut out = Vec::with_capacity(BYTES);
    out.extend(number.to_be_bytes());
    out.extend(fleet.0);
    out.extend(node.0);
    out.extend(log.0);
    out.extend(stored.seq.to_be_bytes());
    out.extend(stored.head.0);
    out.push(u8::from(stored.checkpoint.is_some()));
    out.extend(stored.checkpoint.unwrap_or_default());
    out.extend(day.to_be_bytes());
    out.extend(planned.unwrap_or_default().to_be_bytes());
    std::array::from_fn(|at| out.get(at).copied().unwrap_or_default())
}

fn decode(bytes: &[u8; BYTES]) -> Result<(u64, SealedMark), DecodeError> {
    let mut reader = Reader(bytes);
    let number = u64::from_be_bytes(reader.array()?);
    let (fleet, node) = (FleetId(reader.array()?), NodeTag(reader.array()?));
    let log = NodeId(reader.array()?);
    let (seq, head) = (u64::from_be_bytes(reader.array()?), Hash(reader.array()?));
    let has_checkpoint = reader.byte()? != 0;
    let checkpoint = Some(reader.array()?).filter(|_| has_checkpoint);
    let day = i32::from_be_bytes(reader.array()?);
    let planned = u64::from_be_bytes(reader.array()?);
    let stored = ChainPosition { seq, head, checkpoint };
    let planned = Some(planned).filter(|planned| *planned > seq);
    Ok((number, SealedMark { fleet, node, log, stored, day, planned }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_is_there_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut mark = SealedMark {
            fleet: FleetId([1; 16]),
            node: NodeTag([4; 16]),
            log: NodeId([2; 16]),
            stored: ChainPosition { seq: 0, head: Hash([3; 32]), checkpoint: None },
            day: 0,
            planned: Some(7),
        };
        let (mut file, found) = SealedMarkFile::open(dir.path()).unwrap();
        assert_eq!(found, None);
        for seq in 0..5 {
            mark.stored.seq = seq * 10;
            mark.stored.checkpoint = (seq > 0).then_some([seq as u8; 32]);
            (mark.day, mark.planned) = (20_000, (seq % 2 == 0).then_some(seq * 10 + 7));
            file.write(&mark).unwrap();
            let (other, found) = SealedMarkFile::open(dir.path()).unwrap();
            assert_eq!(found, Some(mark));
            file = other;
        }
        std::fs::write(dir.path().join(KIND.name), [1; 2000]).unwrap();
        assert_eq!(
            SealedMarkFile::open(dir.path()).unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
        assert_eq!(FleetId::parse(&mark.fleet.to_string()), Some(mark.fleet));
        assert_eq!(FleetId::parse("01"), None);
    }
}
