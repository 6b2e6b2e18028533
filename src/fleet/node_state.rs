//! Persistent state of a node in `data_dir/fleet`: its signing key and the high-water mark of its uploads.
//!
//! The signing key is generated at the first start and readable by the owner only. Anyone who has it can sign as this
//! node.
//!
//! The mark records how far the chain is uploaded and which segment is in flight, in a file that is replaced
//! atomically. A segment is recorded before its upload: after a crash the same records are sealed again with the same key
//! and bytes, whether or not the upload had completed.

use std::io;
use std::path::Path;
use std::sync::Arc;

use mcpproxy_activity::bytes::{DecodeError, Reader};
use mcpproxy_activity::record::{Hash, NodeId};
use mcpproxy_runtime::os::state_file;
use mcpproxy_runtime::os::state_file::{AlternatingFile, FileKind, SlotContents};
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair};

use crate::checkpoint;
use crate::checkpoint::{Checkpoint, SIGNATURE_BYTES, VerifierKey};
use crate::config::NodeName;
use crate::sealing::ChainPosition;

const KEY_FILE: &str = "node_key";
/// Maximum size of the key file in bytes.
const MAX_KEY_BYTES: u64 = 1024;

/// Signing key of a node. Clones share it.
#[derive(Clone)]
pub struct NodeKey(Arc<Ed25519KeyPair>);

impl std::fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NodeKey(…)")
    }
}

impl NodeKey {
    /// Opens the key in `dir`, or creates it durably.
    ///
    /// # Errors
    ///
    /// I/O errors; `InvalidData` if the file does not hold a key.
    pub fn open(dir: &Path) -> io::Result<Self> {
        match Self::stored(dir)? {
            Some(key) => Ok(key),
            None => Self::create(dir),
        }
    }

    /// The key in `dir`; `None` if there is none.
    pub(crate) fn stored(dir: &Path) -> io::Result<Option<Self>> {
        let path = dir.join(KEY_FILE);
        let unusable = |why: String| {
            let is_sound = |bytes: &[u8]| Self::of(bytes).is_ok();
            let otherwise =
                "restore it from a backup, or remove it and start with another cluster.node";
            let recovery = state_file::recovery(&path, is_sound, MAX_KEY_BYTES, otherwise);
            let text = format!("{}: {why}; {recovery}", path.display());
            io::Error::new(io::ErrorKind::InvalidData, text)
        };
        match state_file::read(&path, MAX_KEY_BYTES) {
            Ok(Some(bytes)) => {
                Self::of(&bytes).map(Some).map_err(|error| unusable(error.to_string()))
            }
            Ok(None) => Ok(None),
            Err(error) => Err(unusable(error.to_string())),
        }
    }

    fn of(pkcs8: &[u8]) -> io::Result<Self> {
        Ed25519KeyPair::from_pkcs8(pkcs8).map(|pair| Self(Arc::new(pair))).map_err(|_| no_key())
    }

    fn create(dir: &Path) -> io::Result<Self> {
        let made = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new())
            .map_err(|_| io::Error::other("the system's random number generator failed"))?;
        state_file::replace_with_copy(&dir.join(KEY_FILE), made.as_ref())?;
        Self::of(made.as_ref())
    }

    /// Public key of this node, named after its chain.
    pub fn verifier(&self, fleet: &str, node: &str) -> Option<VerifierKey> {
        let public = self.0.public_key().as_ref().try_into().ok()?;
        VerifierKey::new(&checkpoint::origin(fleet, node), public).ok()
    }

    /// Signs a checkpoint as a note. Deterministic.
    pub(crate) fn sign(&self, checkpoint: &Checkpoint, verifier: &VerifierKey) -> String {
        verifier.note(&checkpoint.text(), |text| self.signature(text))
    }

    /// Signs a text. The text's prefix must identify its kind, so that no signed text of another kind begins the same
    /// way.
    pub(crate) fn signature(&self, text: &[u8]) -> [u8; SIGNATURE_BYTES] {
        let mut signature = [0; SIGNATURE_BYTES];
        let made = self.0.sign(text);
        signature.iter_mut().zip(made.as_ref()).for_each(|(to, from)| *to = *from);
        signature
    }

    /// Deterministic key for tests.
    #[cfg(test)]
    pub(crate) fn of_seed(seed: u8) -> Self {
        Self(Arc::new(Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).unwrap()))
    }
}

fn no_key() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "not a node key")
}

const MARK_KIND: FileKind = FileKind { name: "sealed", magic: *b"mcpseal\x01" };
/// Length of an encoded mark: number; fleet, node and log; sequence, hash, checkpoint present, checkpoint; day; last
/// planned.
const MARK_BYTES: usize = 8 + 16 + 16 + 16 + 8 + 32 + 1 + 32 + 4 + 8;

/// Random id of a fleet, created when its store is first used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FleetId(pub [u8; 16]);

impl FleetId {
    /// Parses the text form.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let id = (text.len() == 32).then(|| u128::from_str_radix(text, 16).ok()).flatten();
        id.map(|id| Self(id.to_be_bytes())).filter(|id| id.to_string() == text)
    }
}

impl std::fmt::Display for FleetId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Fixed-size tag of a node's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeTag([u8; 16]);

impl NodeTag {
    pub fn of(node: &NodeName) -> Self {
        let hash = blake3::hash(node.as_str().as_bytes());
        Self(hash.as_bytes().first_chunk().copied().unwrap_or_default())
    }

    /// 31 bits of the tag, never 0, that distinguish numbers assigned by different nodes. In a fleet of a
    /// thousand nodes two collide with a probability of 1/4000.
    pub fn number(self) -> u64 {
        let first = self.0.first_chunk().copied().map_or(0, u32::from_be_bytes);
        u64::from(first >> 1).max(1)
    }

    /// The number as 7 letters and digits, for ids that people type.
    pub fn text(self) -> String {
        let number = self.number();
        let digit = |at: u32| char::from_digit((number >> (5 * at)) as u32 & 31, 32);
        (0..7).rev().filter_map(digit).collect()
    }

    /// Restores a stored tag.
    pub fn of_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    pub fn bytes(self) -> [u8; 16] {
        self.0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SealedMark {
    pub fleet: FleetId,
    /// Name under which the chain was sealed; another name begins another chain.
    pub node: NodeTag,
    pub log: NodeId,
    /// Position of the last uploaded segment.
    pub stored: ChainPosition,
    /// Day in the name of the last uploaded segment.
    pub day: i32,
    /// Last record of the segment in flight, if any.
    pub planned: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct SealedMarkFile {
    file: AlternatingFile<MARK_BYTES>,
    number: u64,
}

impl SealedMarkFile {
    /// Opens or creates the file in `dir` and reads the mark.
    ///
    /// # Errors
    ///
    /// I/O errors; `InvalidData` if the file was written but does not hold a complete mark.
    pub(crate) fn open(dir: &Path) -> io::Result<(Self, Option<SealedMark>)> {
        let (file, found) =
            AlternatingFile::open(dir, MARK_KIND).map_err(|error| Self::unusable(dir, &error))?;
        let read = Self::newest(dir, &found)?;
        let number = read.map_or(0, |(number, _)| number);
        Ok((Self { file, number }, read.map(|(_, mark)| mark)))
    }

    /// Reads the mark in `dir` without changing the file.
    pub(crate) fn stored(dir: &Path) -> io::Result<Option<SealedMark>> {
        let found = AlternatingFile::read(dir, MARK_KIND).map_err(|e| Self::unusable(dir, &e))?;
        Ok(Self::newest(dir, &found)?.map(|(_, mark)| mark))
    }

    fn newest(
        dir: &Path,
        found: &SlotContents<MARK_BYTES>,
    ) -> io::Result<Option<(u64, SealedMark)>> {
        let damaged = |why: &str| {
            let text =
                format!("{why}; remove it, and the next start derives it from cluster.store");
            Self::unusable(dir, &io::Error::new(io::ErrorKind::InvalidData, text))
        };
        let newest = found.newest();
        if newest.is_none() && found.torn {
            return Err(damaged("it holds no complete state"));
        }
        newest.map(|bytes| decode(&bytes)).transpose().map_err(|error| damaged(&error.to_string()))
    }

    fn unusable(dir: &Path, error: &io::Error) -> io::Error {
        let file = dir.join(MARK_KIND.name);
        io::Error::new(error.kind(), format!("{}: {error}", file.display()))
    }

    /// Replaces the mark durably.
    pub(crate) fn write(&mut self, mark: &SealedMark) -> io::Result<()> {
        self.number += 1;
        self.file.write(&encode(self.number, mark))
    }
}

fn encode(number: u64, mark: &SealedMark) -> [u8; MARK_BYTES] {
    let SealedMark { fleet, node, log, stored, day, planned } = mark;
    let mut out = Vec::with_capacity(MARK_BYTES);
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

fn decode(bytes: &[u8; MARK_BYTES]) -> Result<(u64, SealedMark), DecodeError> {
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
    use std::fs;

    use mcpproxy_runtime::os::private;

    use crate::checkpoint::tests::example;

    /// End of the private key in a PKCS#8 key of Ed25519: a head of 16 bytes, and the seed.
    const PRIVATE_END: usize = 16 + 32;

    #[test]
    fn key_is_created_once_private_and_signs_verifiable_notes() {
        let dir = tempfile::tempdir().unwrap();
        let key = NodeKey::open(dir.path()).unwrap();
        assert_eq!(private::wider(&dir.path().join(KEY_FILE)), None);
        let verifier = key.verifier("f1", "a").unwrap();
        let note = key.sign(&example(), &verifier);
        assert_eq!(Checkpoint::open(&note, &verifier), Ok(example()));
        let again = NodeKey::open(dir.path()).unwrap();
        assert_eq!(again.sign(&example(), &verifier), note);
        // The signature is valid for this chain's key only.
        let other = again.verifier("f1", "b").unwrap();
        let note = again.sign(&example(), &other);
        assert!(
            Checkpoint::open(&note, &other).is_err() && Checkpoint::open(&note, &verifier).is_err()
        );
        for bytes in [&b""[..], b"key", &[7; 2000]] {
            fs::write(dir.path().join(KEY_FILE), bytes).unwrap();
            let error = NodeKey::open(dir.path()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
            assert!(error.to_string().contains("cp -p"), "{error}");
            assert!(NodeKey::stored(dir.path()).is_err());
        }
    }

    // Requirement SF-2.
    #[test]
    fn key_file_with_any_changed_byte_is_refused_and_named() {
        let dir = tempfile::tempdir().unwrap();
        NodeKey::open(dir.path()).unwrap();
        let path = dir.path().join(KEY_FILE);
        let sound = fs::read(&path).unwrap();
        let mut changed: Vec<Vec<u8>> = (0..sound.len() * 8)
            .map(|bit| {
                let mut bytes = sound.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                bytes
            })
            .collect();
        changed.extend((0..sound.len()).map(|length| sound[..length].to_vec()));
        for (at, bytes) in changed.iter().enumerate() {
            fs::write(&path, bytes).unwrap();
            let error = NodeKey::stored(dir.path()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "change {at}");
            let text = error.to_string();
            assert!(text.starts_with(&format!("{}: ", path.display())), "change {at}: {text}");
            assert_eq!(fs::read(&path).unwrap(), *bytes, "no key is created instead");
        }
        fs::write(&path, &sound).unwrap();
        assert!(NodeKey::stored(dir.path()).unwrap().is_some());
    }

    // Requirement SF-2.
    #[test]
    fn key_without_its_public_half_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        NodeKey::open(dir.path()).unwrap();
        let path = dir.path().join(KEY_FILE);
        let sound = fs::read(&path).unwrap();
        // PKCS#8 v1 has no public key, with which a change of the private key would be detected.
        let mut without = sound[..PRIVATE_END].to_vec();
        (without[1], without[4]) = (PRIVATE_END as u8 - 2, 0);
        assert!(Ed25519KeyPair::from_pkcs8_maybe_unchecked(&without).is_ok());
        fs::write(&path, &without).unwrap();
        let error = NodeKey::stored(dir.path()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn error_names_the_unreadable_sealed_mark() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(MARK_KIND.name)).unwrap();
        let error = SealedMarkFile::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("/sealed: "), "{error}");
    }

    #[test]
    fn sealed_mark_round_trips() {
        let dir = tempfile::tempdir().unwrap();
        let mut mark = SealedMark {
            fleet: FleetId([1; 16]),
            node: NodeTag([4; 16]),
            log: NodeId([2; 16]),
            stored: ChainPosition { seq: 0, head: Hash([3; 32]), checkpoint: None },
            day: 0,
            planned: Some(7),
        };
        assert_eq!(SealedMarkFile::stored(dir.path()).unwrap(), None);
        assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none(), "nothing is created");
        let (mut file, found) = SealedMarkFile::open(dir.path()).unwrap();
        assert_eq!(found, None);
        for seq in 0..5 {
            mark.stored.seq = seq * 10;
            mark.stored.checkpoint = (seq > 0).then_some([seq as u8; 32]);
            (mark.day, mark.planned) = (20_000, (seq % 2 == 0).then_some(seq * 10 + 7));
            file.write(&mark).unwrap();
            let (other, found) = SealedMarkFile::open(dir.path()).unwrap();
            assert_eq!(found, Some(mark));
            assert_eq!(SealedMarkFile::stored(dir.path()).unwrap(), found);
            file = other;
        }
        std::fs::write(dir.path().join(MARK_KIND.name), [1; 2000]).unwrap();
        assert_eq!(
            SealedMarkFile::open(dir.path()).unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
        let error = SealedMarkFile::stored(dir.path()).unwrap_err().to_string();
        assert!(error.contains("/sealed: ") && error.contains("; remove it, and "), "{error}");
        assert_eq!(FleetId::parse(&mark.fleet.to_string()), Some(mark.fleet));
        assert_eq!(FleetId::parse("01"), None);
    }
}
