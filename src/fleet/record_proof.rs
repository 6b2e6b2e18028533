//! One record with what an auditor needs to check it offline: that the node with this key has signed that this record is in its
//! chain, as it is, with its number, after the record with that hash. Pure, but for [`prove`], which asks the store.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

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
use crate::activity::config::MAX_KEPT_BYTES;
use crate::activity::record::{Hash, Id, NodeId, Record};

/// The form of a proof.
const FORMAT: u32 = 1;
/// Most bytes of a proof that is read. A record has up to twice `activity::config::MAX_KEPT_BYTES`; here it stands in JSON, in
/// which a byte can take six, and in base64.
pub const MAX_PROOF_BYTES: u64 = 64 << 20;
const _: () = assert!(2 * (MAX_KEPT_BYTES as u64) * (6 * 3 + 4) / 3 < MAX_PROOF_BYTES);
/// Days before its own in which the segment of a record may begin.
const DAYS_BACK: i32 = 7;
/// Segments that claim a record and are tried: one of them is its own, others somebody has put there.
const MAX_CANDIDATES: usize = 256;

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

/// Makes the proof of a record out of the store. A name proves nothing, so that each segment is tried that claims the record,
/// of whatever day: those first that begin on the days before it.
///
/// # Errors
///
/// [`ProofError`]; of segments that could not be used the first one, if none proves the record.
pub async fn prove(bucket: &Bucket, id: Id) -> Result<RecordProof, ProofError> {
    let mut wrong = None;
    for (node, claim) in audit::claims(bucket).await? {
        let of = |log: u128| Id::new(id.time_ms(), id.seq(), NodeId(log.to_be_bytes()));
        let log =
            (claim.log.len() == 32).then(|| u128::from_str_radix(&claim.log, 16).ok()).flatten();
        let Ok(key) = claim.verifier() else { continue };
        if log.map(of) != Some(id) {
            continue;
        }
        let mut candidates =
            Candidates { bucket, folder: segments_folder(&node), id, tried: BTreeSet::new() };
        let day = day_of(id.time_ms());
        let near = (day.saturating_sub(DAYS_BACK)..=day).rev().map(Some);
        // What lies in any other folder, in the end.
        for day in near.chain([None]) {
            for at in candidates.next(day).await? {
                match prove_by(bucket, &at, &key, id).await {
                    Ok(proof) => return Ok(proof),
                    Err(ProofError::Store(error)) => return Err(error.into()),
                    Err(error) => {
                        let _first = wrong.get_or_insert(error);
                    }
                }
            }
        }
    }
    Err(wrong.unwrap_or(ProofError::Absent(id)))
}

/// Segments of a node that claim a record.
struct Candidates<'a> {
    bucket: &'a Bucket,
    folder: String,
    id: Id,
    tried: BTreeSet<String>,
}

impl Candidates<'_> {
    /// The keys of those that were not given yet and begin on a day, or on any.
    async fn next(&mut self, day: Option<i32>) -> Result<Vec<String>, BucketError> {
        let Self { bucket, folder, id, tried } = self;
        let below = day.map_or(folder.clone(), |day| format!("{folder}/{}", day_folder(day)));
        let mut found = Vec::new();
        let each = bucket.walk(&below, None, |object| {
            let claims = SegmentName::of_key(folder, &object.key)
                .is_some_and(|name| (name.first..=name.last).contains(&id.seq()));
            if claims && !tried.contains(&object.key) {
                found.push(object.key);
            }
            match found.len() + tried.len() < MAX_CANDIDATES {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        });
        each.await?;
        found.sort();
        tried.extend(found.iter().cloned());
        Ok(found)
    }
}

/// The proof of a record by the segment with that key.
async fn prove_by(
    bucket: &Bucket,
    at: &str,
    key: &VerifierKey,
    id: Id,
) -> Result<RecordProof, ProofError> {
    let wrong = |why: String| ProofError::Segment { key: at.to_owned(), why };
    let bytes = match bucket.get(at).await {
        Err(error @ (BucketError::Missing(_) | BucketError::TooLong(_))) => {
            return Err(wrong(error.to_string()));
        }
        bytes => bytes?,
    };
    let opened = segment::open(&bytes, key).map_err(|error| wrong(error.to_string()))?;
    let proof = RecordProof::of(&opened, id.seq(), key);
    let proof = proof.ok_or_else(|| wrong("it is another segment than its name says".into()))?;
    let is_it = proof.check(None)?.record.id == id;
    if is_it { Ok(proof) } else { Err(ProofError::Absent(id)) }
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

    /// A store with one segment of node `a`, stored so many days before its record 5 was, and with these objects beside it.
    async fn store(days_before: i32, beside: &[(&str, &[u8])]) -> (tempfile::TempDir, Bucket, Id) {
        let dir = tempfile::tempdir().unwrap();
        let bucket = Bucket::open(&format!("file://{}", dir.path().display())).unwrap();
        let mut log = ExampleLog::new(1);
        let by = sealed_by("a", log.head(), None);
        let mut sealed = segment::seal(&log.records(9), by.by()).unwrap();
        let id = sealed_id(&sealed.bytes, &by.verifier, 5);
        sealed.name.day -= days_before;
        let claim = json!({
            "format": 1, "node": "a", "log": log.log.to_string(), "key": by.verifier.to_string(),
        });
        let folder = segments_folder("a");
        let put = async |key: &str, bytes: &[u8]| {
            bucket.put(key, bytes.to_vec().into()).await.unwrap();
        };
        put("nodes/a/claim.json", claim.to_string().as_bytes()).await;
        put(&format!("{folder}/{}", sealed.name), &sealed.bytes).await;
        for (name, bytes) in beside {
            put(&format!("{folder}/{name}"), bytes).await;
        }
        (dir, bucket, id)
    }

    fn sealed_id(bytes: &bytes::Bytes, key: &VerifierKey, seq: u64) -> Id {
        let opened = segment::open(bytes, key).unwrap();
        let row = opened.records.iter().find(|row| row.seq == seq).unwrap();
        row.id(opened.records.log()).unwrap()
    }

    #[tokio::test]
    async fn a_record_is_found_however_long_before_it_its_segment_begins() {
        // The last: the clock was put back within the segment.
        for days_before in [0, 7, 8, 400, -3] {
            let (_dir, bucket, id) = store(days_before, &[]).await;
            let proof = prove(&bucket, id).await.unwrap();
            assert_eq!(proof.check(None).unwrap().record.seq, 5, "{days_before} days");
        }
        let (_dir, bucket, id) = store(0, &[]).await;
        let other = Id::new(id.time_ms(), 10, NodeId([1; 16]));
        assert!(matches!(prove(&bucket, other).await, Err(ProofError::Absent(id)) if id == other));
    }

    #[tokio::test]
    async fn a_segment_that_only_claims_a_record_does_not_hide_it() {
        let claims = |day: &str, first: u64| {
            format!("date={day}/{first:020}-00000000000000000009-0000000000000000.parquet")
        };
        let (near, far) = (claims("2026-01-01", 1), claims("2025-06-01", 2));
        let beside = [(&*near, &b"junk"[..]), (&*far, &b"junk"[..])];
        for days_before in [0, 30] {
            let (_dir, bucket, id) = store(days_before, &beside).await;
            assert!(prove(&bucket, id).await.is_ok(), "{days_before} days");
        }
        // Where none has it the first that claims it is named.
        let (dir, bucket, id) = store(400, &beside).await;
        let own = dir.path().join("nodes/a/segments/date=2024-11-27");
        std::fs::remove_dir_all(own).unwrap();
        match prove(&bucket, id).await {
            Err(ProofError::Segment { key, .. }) => assert!(key.ends_with(&near), "{key}"),
            other => panic!("{other:?}"),
        }
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
