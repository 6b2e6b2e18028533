//! One record with what an auditor needs to check it offline: that the node with this key has signed that this record is in its
//! chain, as it is, with its number, after the record with that hash. Pure, but for [`prove`], which asks the store.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use super::audit;
use super::bucket::{Bucket, BucketError};
use super::checkpoint::Checkpoint;
use super::hash_tree::{self, MAX_PATH, TreeHash};
use super::joining::segments_folder;
use super::segment::{self, OpenedSegment, SegmentName, day_folder, day_of};
use super::signed_note::VerifierKey;
use crate::activity::codec;
use crate::activity::record::{Hash, Id, NodeId, Record};

/// The form of a proof.
const FORMAT: u32 = 1;
/// Most bytes of a proof that is read.
pub const MAX_PROOF_BYTES: u64 = 16 << 20;
/// Days before its own in which the segment of a record may begin.
const DAYS_BACK: i32 = 7;

/// Why there is no proof, or why it proves nothing.
#[derive(Debug, Error)]
pub enum ProofError {
    /// The text is none of a proof.
    #[error("it is no proof of a record: {0}")]
    Form(String),
    /// Something in it does not fit the rest.
    #[error("it proves nothing: {0}")]
    False(String),
    /// No key that is given is that of the node.
    #[error("no key is given for {0}")]
    Key(String),
    /// The record is not in the store.
    #[error("record {0} is not in the store, or not yet")]
    Absent(Id),
    /// The segment of the record is not to be believed.
    #[error("{key}: {why}")]
    Segment {
        /// Its key in the store.
        key: String,
        /// What is wrong with it.
        why: String,
    },
    /// The store.
    #[error(transparent)]
    Store(#[from] BucketError),
}

/// A proof, as it is written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecordProof {
    format: u32,
    /// The record, for people: it says the same as `canonical`.
    record: Value,
    /// The log that it is of.
    log: String,
    /// Its number.
    seq: u64,
    /// The hash that it follows.
    prev_hash: String,
    /// Its canonical bytes, in base64.
    canonical: String,
    /// The hashes on the way to the root of the tree, in base64.
    path: Vec<String>,
    /// The signed note of the segment's end.
    checkpoint: String,
    /// The key that signed it, as the store has it.
    key: String,
}

/// What a proof proves.
#[derive(Clone, Debug)]
pub struct ProvenRecord {
    /// The record.
    pub record: Record,
    /// What was signed.
    pub checkpoint: Checkpoint,
    /// By which key.
    pub key: VerifierKey,
    /// Whether the key was given, and not taken from the proof itself.
    pub is_trusted: bool,
}

impl RecordProof {
    /// Of the record with that number in a segment; `None` if it is not there.
    #[must_use]
    pub fn of(segment: &OpenedSegment, seq: u64, key: &VerifierKey) -> Option<Self> {
        let at = usize::try_from(seq.checked_sub(segment.checkpoint.first)?).ok()?;
        let row = segment.records.iter().nth(at)?;
        let before = at.checked_sub(1).and_then(|at| segment.records.iter().nth(at));
        let prev = before.map_or(segment.checkpoint.after, |row| row.hash);
        let (head, body) = codec::split_canonical(row.canonical).ok()?;
        let log = segment.records.log();
        let record = Record::decode(log, seq, prev, row.hash, head, Some(body)).ok()?;
        Some(Self {
            format: FORMAT,
            record: serde_json::to_value(&record).ok()?,
            log: log.to_string(),
            seq,
            prev_hash: prev.to_string(),
            canonical: STANDARD.encode(row.canonical),
            path: segment.path(at).iter().map(|hash| STANDARD.encode(hash)).collect(),
            checkpoint: segment.note.clone(),
            key: key.to_string(),
        })
    }

    /// Reads a proof; nothing in it is believed yet.
    ///
    /// # Errors
    ///
    /// [`ProofError::Form`].
    pub fn read(text: &[u8]) -> Result<Self, ProofError> {
        let form = |why: String| ProofError::Form(why);
        let read: Self = serde_json::from_slice(text).map_err(|error| form(error.to_string()))?;
        match read.format {
            FORMAT => Ok(read),
            other => Err(form(format!("it has unknown format {other}"))),
        }
    }

    /// Checks it: with the one of `keys` that is the node's, or where there are none with the key in it, which proves only that
    /// the proof agrees with itself.
    ///
    /// # Errors
    ///
    /// [`ProofError`].
    pub fn check(&self, keys: Option<&[VerifierKey]>) -> Result<ProvenRecord, ProofError> {
        let form = |what: &str| ProofError::Form(format!("{what} cannot be read"));
        let wrong = |why: &str| ProofError::False(why.into());
        let canonical = STANDARD.decode(&self.canonical).map_err(|_| form("canonical"))?;
        let prev = Hash::parse(&self.prev_hash).ok_or_else(|| form("prev_hash"))?;
        let log =
            (self.log.len() == 32).then(|| u128::from_str_radix(&self.log, 16).ok()).flatten();
        let log = NodeId(log.ok_or_else(|| form("log"))?.to_be_bytes());
        if self.path.len() > MAX_PATH {
            return Err(form("path"));
        }
        let hash = |text: &String| TreeHash::try_from(STANDARD.decode(text).ok()?).ok();
        let path: Option<Vec<_>> = self.path.iter().map(hash).collect();
        let path = path.ok_or_else(|| form("path"))?;
        let stated = VerifierKey::parse(&self.key).map_err(|_| form("key"))?;
        let key = match keys {
            None => &stated,
            Some(keys) => {
                let given = keys.iter().find(|key| key.name() == stated.name());
                given.ok_or_else(|| ProofError::Key(stated.name().to_owned()))?
            }
        };
        let checkpoint = Checkpoint::open(&self.checkpoint, key).map_err(|error| {
            ProofError::False(format!("the checkpoint cannot be believed: {error}"))
        })?;
        let (head, body) = codec::split_canonical(&canonical).map_err(|_| form("canonical"))?;
        let hash = codec::chain(prev, log, self.seq, head, body);
        let record = Record::decode(log, self.seq, prev, hash, head, Some(body))
            .map_err(|error| ProofError::Form(format!("canonical {error}")))?;
        if checkpoint.log != log {
            return Err(wrong("the checkpoint is of another log"));
        }
        let Some(at) = self.seq.checked_sub(checkpoint.first) else {
            return Err(wrong("the checkpoint is of other records"));
        };
        let count = checkpoint.last.saturating_sub(checkpoint.first).saturating_add(1);
        let root = hash_tree::root_by_path(hash_tree::leaf(&hash.0), at, count, &path);
        if root != Some(checkpoint.tree) {
            return Err(wrong("the record is not in the tree that was signed"));
        }
        if serde_json::to_value(&record).ok().as_ref() != Some(&self.record) {
            return Err(wrong("the record that is shown is not the one that is proven"));
        }
        Ok(ProvenRecord { record, checkpoint, key: key.clone(), is_trusted: keys.is_some() })
    }
}

/// Makes the proof of a record out of the store.
///
/// # Errors
///
/// [`ProofError`].
pub async fn prove(bucket: &Bucket, id: Id) -> Result<RecordProof, ProofError> {
    let day = day_of(id.time_ms());
    for (node, claim) in audit::claims(bucket).await? {
        let of = |log: u128| Id::new(id.time_ms(), id.seq(), NodeId(log.to_be_bytes()));
        let log =
            (claim.log.len() == 32).then(|| u128::from_str_radix(&claim.log, 16).ok()).flatten();
        if log.map(of) != Some(id) {
            continue;
        }
        let Ok(key) = claim.verifier() else { continue };
        let folder = segments_folder(&node);
        for day in (day.saturating_sub(DAYS_BACK)..=day).rev() {
            let listed = bucket.list(&format!("{folder}/{}", day_folder(day)), None).await?;
            let named = listed.into_iter().filter_map(|object| {
                let name =
                    SegmentName::parse(object.key.strip_prefix(&folder)?.strip_prefix('/')?)?;
                Some((object.key, name))
            });
            let holds = |name: &SegmentName| (name.first..=name.last).contains(&id.seq());
            let Some((at, _)) = named.into_iter().find(|(_, name)| holds(name)) else { continue };
            let bytes = bucket.get(&at).await?;
            let wrong = |why: String| ProofError::Segment { key: at.clone(), why };
            let opened = segment::open(&bytes, &key).map_err(|error| wrong(error.to_string()))?;
            let proof = RecordProof::of(&opened, id.seq(), &key);
            let proof =
                proof.ok_or_else(|| wrong("it is another segment than its name says".into()))?;
            let is_it = proof.check(None)?.record.id == id;
            return if is_it { Ok(proof) } else { Err(ProofError::Absent(id)) };
        }
    }
    Err(ProofError::Absent(id))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fleet::examples::{ExampleLog, sealed_by};
    use crate::fleet::node_key::NodeKey;

    fn proof(seq: u64) -> (RecordProof, VerifierKey) {
        let mut log = ExampleLog::new(1);
        log.records(3);
        let by = sealed_by("a", log.head(), Some([1; 32]));
        let sealed = segment::seal(&log.records(11), by.by()).unwrap();
        let opened = segment::open(&sealed.bytes, &by.verifier).unwrap();
        (RecordProof::of(&opened, seq, &by.verifier).unwrap(), by.verifier.clone())
    }

    #[test]
    fn every_record_of_a_segment_has_a_proof() {
        for seq in 4..=14 {
            let (proof, key) = proof(seq);
            let read = RecordProof::read(&serde_json::to_vec(&proof).unwrap()).unwrap();
            let proven = read.check(None).unwrap();
            assert_eq!((proven.record.seq, proven.is_trusted), (seq, false));
            assert!(read.check(Some(std::slice::from_ref(&key))).unwrap().is_trusted);
            let other = NodeKey::of_seed(9).verifier("f1", "a").unwrap();
            assert!(matches!(read.check(Some(&[other])), Err(ProofError::False(_))));
            assert!(matches!(read.check(Some(&[])), Err(ProofError::Key(_))));
        }
    }

    #[test]
    fn whatever_is_changed_in_a_proof_is_found() {
        let (whole, key) = proof(7);
        let text = serde_json::to_value(&whole).unwrap();
        let other = serde_json::to_value(proof(8).0).unwrap();
        for member in
            ["record", "seq", "prev_hash", "canonical", "path", "log", "key", "checkpoint"]
        {
            let mut changed = text.clone();
            changed[member] = match member {
                "log" => json!("00000000000000000000000000000000"),
                "key" => json!(NodeKey::of_seed(9).verifier("f1", "a").unwrap().to_string()),
                "checkpoint" => json!(whole.checkpoint.replace("first 4", "first 5")),
                _ => other[member].clone(),
            };
            let read = RecordProof::read(&serde_json::to_vec(&changed).unwrap()).unwrap();
            assert!(read.check(None).is_err(), "{member}");
            // The key that is in it is not asked where keys are given.
            let given = read.check(Some(std::slice::from_ref(&key)));
            assert_eq!(given.is_ok(), member == "key", "{member}: {given:?}");
        }
        let mut changed = text;
        changed["record"]["status"] = json!("error");
        let read = RecordProof::read(&serde_json::to_vec(&changed).unwrap()).unwrap();
        assert!(read.check(None).unwrap_err().to_string().contains("shown"));
        assert!(matches!(RecordProof::read(b"{}"), Err(ProofError::Form(_))));
    }
}
