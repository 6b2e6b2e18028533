//! Offline verification of a fleet's chains from the store alone, and inclusion proofs of single records. Contacts no
//! node and writes nothing.
//!
//! [`audit`] fetches all segments; [`segment`] and [`ChainCheck`] verify them.
//!
//! A [`RecordProof`] lets an auditor check a record offline: the node with this key signed that the record is in its
//! chain, with this number, after the record with that hash. Only [`prove`] accesses the store.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use mcpproxy_activity::codec;
use mcpproxy_activity::config::MAX_KEPT_BYTES;
use mcpproxy_activity::record::{Hash, Id, NodeId, Record};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use crate::bucket::{Bucket, BucketError};
use crate::chain::check::{
    ChainCheck, ChainFault, ChainReport, FaultFound, ListedSegment, SegmentFacts, SegmentRejection,
};
use crate::chain::place::{FLEET, FleetObject, NODES, NodeClaim, claim_key, segments_folder};
use crate::chain::{ChainDays, ChainPart};
use crate::checkpoint::{Checkpoint, MAX_PATH, TreeHash, VerifierKey};
use crate::config::{NodeName, StrayObjects};
use crate::segment::{OpenedSegment, SegmentName, day_folder, day_of};
use crate::{checkpoint, segment};

/// Number of segments verified concurrently.
const AT_A_TIME: usize = 4;
/// Maximum size of a key file in bytes.
pub const MAX_KEYS_BYTES: u64 = 1 << 20;

#[derive(Clone, Debug, Default)]
pub struct AuditOptions {
    /// Trusted keys; `None` to take the keys from the store.
    pub keys: Option<Vec<VerifierKey>>,
    /// True if missing segments at the beginning are not a fault, because the store expires old ones.
    pub expired: bool,
}

/// Audit result of one node.
#[derive(Clone, Debug, Serialize)]
pub struct NodeReport {
    pub node: String,
    /// Key that verified its checkpoints; empty for none.
    pub key: String,
    #[serde(flatten)]
    pub chain: ChainReport,
}

/// Audit result of a fleet.
#[derive(Clone, Debug, Serialize)]
pub struct FleetReport {
    /// True if there are no faults.
    pub sound: bool,
    pub store: String,
    pub fleet: String,
    pub nodes: Vec<NodeReport>,
    /// Faults outside of chains.
    pub faults: Vec<FaultFound>,
    /// Findings that are not faults.
    pub notes: Vec<String>,
}

/// Parses a key file: one key per line, as in a claim; empty lines and comments (`#`) are skipped.
///
/// # Errors
///
/// Number of the first invalid line.
pub fn read_keys(text: &str) -> Result<Vec<VerifierKey>, usize> {
    let lines = (1..).zip(text.lines()).map(|(number, line)| (number, line.trim()));
    let keys = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    keys.map(|(number, line)| VerifierKey::parse(line).map_err(|_| number)).collect()
}

/// Verifies all chains. `progress` is called with the number of records done.
pub async fn audit(
    bucket: &Bucket,
    options: &AuditOptions,
    mut progress: impl FnMut(u64),
) -> Result<FleetReport, BucketError> {
    let fleet = FleetObject::fleet(&bucket.get(FLEET).await?)
        .ok_or_else(|| BucketError::Failed(format!("{FLEET} is not a valid fleet object")))?;
    let fleet = fleet.to_string();
    let (mut nodes, mut faults, mut notes, mut records) = (Vec::new(), Vec::new(), Vec::new(), 0);
    let (mut names, mut strays) = (bucket.folders(NODES).await?, StrayObjects::default());
    names.retain(|name| {
        let is_node = NodeName::parse(name).is_some();
        if !is_node {
            strays.add(name);
        }
        is_node
    });
    if !strays.is_empty() {
        let (fault, at, why) = (ChainFault::Foreign, NODES.to_owned(), strays.to_string());
        faults.push(FaultFound { fault, at, first: None, last: None, why });
    }
    for name in &names {
        let report = node(bucket, &fleet, name, options, |more| progress(records + more)).await?;
        records += report.chain.records;
        nodes.push(report);
    }
    let (forks, renamed) = shared_logs(&nodes);
    faults.extend(forks);
    notes.extend(renamed);
    match &options.keys {
        Some(keys) => {
            let known = |key: &&VerifierKey| names.iter().any(|name| *key.name() == checkpoint::origin(&fleet, name));
            for key in keys.iter().filter(|key| !known(key)) {
                let why = format!("{} has a key but is not in the store", key.name());
                let at = NODES.to_owned();
                faults.push(FaultFound { fault: ChainFault::Removed, at, first: None, last: None, why });
            }
        }
        None => notes.push("the keys were taken from the store: anyone with write access can replace them together with what they sign".into()),
    }
    notes.push("the removal of segments at the end of a chain is not detectable here: compare the last records with those of the nodes".into());
    let sound = faults.is_empty() && nodes.iter().all(|node| node.chain.sound);
    Ok(FleetReport { sound, store: bucket.shown().to_owned(), fleet, nodes, faults, notes })
}

/// Logs sealed by two nodes. With the same records this is a fork, because a record id consists of log and number;
/// otherwise one continued where the other ended, which is a note.
fn shared_logs(nodes: &[NodeReport]) -> (Vec<FaultFound>, Vec<String>) {
    let (mut faults, mut notes) = (Vec::new(), Vec::new());
    for (at, node) in nodes.iter().enumerate().filter(|(_, node)| !node.chain.log.is_empty()) {
        let earlier = nodes.iter().take(at).filter(|it| it.chain.log == node.chain.log);
        for other in earlier {
            let (name, twin, log) = (&node.node, &other.node, &node.chain.log);
            let first = node.chain.first.max(other.chain.first);
            let last = node.chain.last.min(other.chain.last);
            if first > last {
                notes.push(format!("nodes '{twin}' and '{name}' each sealed a part of log {log}"));
                continue;
            }
            let why = format!(
                "the chain of log {log} has forked: nodes '{twin}' and '{name}' both sealed its records {first} to {last} \
                 under the same ids"
            );
            let (fault, at) = (ChainFault::Fork, segments_folder(name));
            faults.push(FaultFound { fault, at, first: Some(first), last: Some(last), why });
        }
    }
    (faults, notes)
}

/// Key that verifies a node's checkpoints.
async fn key_of(
    bucket: &Bucket,
    fleet: &str,
    node: &str,
    options: &AuditOptions,
) -> Result<Result<VerifierKey, String>, BucketError> {
    let origin = checkpoint::origin(fleet, node);
    if let Some(keys) = &options.keys {
        let found = keys.iter().find(|key| *key.name() == origin).cloned();
        return Ok(found.ok_or_else(|| format!("no key is given for {origin}")));
    }
    let claim = NodeClaim::fetch(bucket, node).await?.map_err(|fault| fault.to_string());
    let key = claim.and_then(|claim| claim.verifier());
    Ok(key.and_then(|key| match *key.name() == origin {
        true => Ok(key),
        false => Err(format!("the claim belongs to {}", key.name())),
    }))
}

async fn node(
    bucket: &Bucket,
    fleet: &str,
    name: &str,
    options: &AuditOptions,
    mut progress: impl FnMut(u64),
) -> Result<NodeReport, BucketError> {
    let mut check = ChainCheck::new(options.expired);
    let key = match key_of(bucket, fleet, name, options).await? {
        Ok(key) => Arc::new(key),
        Err(why) => {
            check.fault(ChainFault::Key, &claim_key(name), why);
            return Ok(NodeReport {
                node: name.to_owned(),
                key: String::new(),
                chain: check.finish(),
            });
        }
    };
    let folder = segments_folder(name);
    let mut days = match ChainDays::of(bucket, name).await {
        // The other chains are still verified.
        Err(error @ BucketError::TooManyFolders(_)) => {
            check.fault(ChainFault::Foreign, &folder, error.to_string());
            let (node, key) = (name.to_owned(), key.to_string());
            return Ok(NodeReport { node, key, chain: check.finish() });
        }
        days => days?,
    };
    let mut records = 0;
    while let Some(ChainPart { names, foreign }) = days.next().await? {
        let nothing = SegmentRejection { fault: ChainFault::Foreign, why: String::new() };
        for key in foreign {
            check.add(&ListedSegment { key, name: None }, Err(nothing.clone()));
        }
        let facts = stream::iter(names).map(|name| {
            let (at, key) = (format!("{folder}/{name}"), Arc::clone(&key));
            async move {
                let facts = facts(bucket, &at, key).await?;
                Ok::<_, BucketError>((ListedSegment { key: at, name: Some(name) }, facts))
            }
        });
        let mut facts = facts.buffered(AT_A_TIME);
        while let Some((listed, facts)) = facts.try_next().await? {
            records += facts.as_ref().map_or(0, |facts| facts.records);
            check.add(&listed, facts);
            progress(records);
        }
    }
    Ok(NodeReport { node: name.to_owned(), key: key.to_string(), chain: check.finish() })
}

/// Verifies one segment. An outer error comes from the store and is not a fault of the segment.
async fn facts(
    bucket: &Bucket,
    at: &str,
    key: Arc<VerifierKey>,
) -> Result<Result<SegmentFacts, SegmentRejection>, BucketError> {
    let bytes: Bytes = match bucket.get(at).await {
        Ok(bytes) => bytes,
        Err(error @ BucketError::TooLong(_)) => {
            return Ok(Err(SegmentRejection {
                fault: ChainFault::Altered,
                why: error.to_string(),
            }));
        }
        Err(error @ BucketError::Missing(_)) => {
            return Ok(Err(SegmentRejection {
                fault: ChainFault::Removed,
                why: error.to_string(),
            }));
        }
        Err(error) => return Err(error),
    };
    let looked = tokio::task::spawn_blocking(move || SegmentFacts::of(&bytes, &key)).await;
    let unread =
        |_| Err(SegmentRejection { fault: ChainFault::Altered, why: "cannot be read".into() });
    Ok(looked.unwrap_or_else(unread))
}

/// Nodes with readable claims, by name.
pub(crate) async fn claims(bucket: &Bucket) -> Result<BTreeMap<String, NodeClaim>, BucketError> {
    let mut claims = BTreeMap::new();
    for name in bucket.folders(NODES).await?.into_iter().filter(|it| NodeName::parse(it).is_some())
    {
        if let Ok(claim) = NodeClaim::fetch(bucket, &name).await? {
            claims.insert(name, claim);
        }
    }
    Ok(claims)
}

/// Format version of a proof.
const FORMAT: u32 = 1;
/// Maximum size of a proof in bytes. A record has up to twice `activity::config::MAX_KEPT_BYTES`; here it appears as
/// JSON, where a byte may take up to six bytes, and in base64.
pub const MAX_PROOF_BYTES: u64 = 64 << 20;
const _: () = assert!(2 * (MAX_KEPT_BYTES as u64) * (6 * 3 + 4) / 3 < MAX_PROOF_BYTES);
/// Maximum number of days between the beginning of a record's segment and the record.
const DAYS_BACK: i32 = 7;
/// Maximum number of segments that are tried for a record. Among the segments that claim it, one is genuine, and
/// others may be forged.
const MAX_CANDIDATES: usize = 256;

/// Reason why there is no valid proof.
#[derive(Debug, Error)]
pub enum ProofError {
    #[error("not a record proof: {0}")]
    Form(String),
    /// Parts of the proof contradict each other.
    #[error("invalid proof: {0}")]
    False(String),
    /// None of the given keys is the node's.
    #[error("no key is given for {0}")]
    Key(String),
    #[error("record {0} is not in the store; it may not have been uploaded yet")]
    Absent(Id),
    /// The record's segment is invalid.
    #[error("{key}: {why}")]
    Segment {
        /// Key in the store.
        key: String,
        why: String,
    },
    #[error(transparent)]
    Store(#[from] BucketError),
}

/// Inclusion proof of a record, in its JSON format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecordProof {
    format: u32,
    /// Record for display; must equal `canonical`.
    record: Value,
    /// Id of the log that contains the record.
    log: String,
    seq: u64,
    /// Hash of the preceding record.
    prev_hash: String,
    /// Canonical bytes in base64.
    canonical: String,
    /// Merkle path in base64.
    path: Vec<String>,
    /// Signed note of the segment's checkpoint.
    checkpoint: String,
    /// Key that signed the checkpoint, from the store.
    key: String,
}

/// Statement that a valid proof makes.
#[derive(Clone, Debug)]
pub struct ProvenRecord {
    pub record: Record,
    pub checkpoint: Checkpoint,
    pub key: VerifierKey,
    /// True if the caller supplied the key, false if it came from the proof.
    pub is_trusted: bool,
}

impl RecordProof {
    /// Proof of the record with this number in a segment; `None` if it is not there.
    pub(crate) fn of(segment: &OpenedSegment, seq: u64, key: &VerifierKey) -> Option<Self> {
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

    /// Parses a proof without verifying it.
    pub fn read(text: &[u8]) -> Result<Self, ProofError> {
        let form = |why: String| ProofError::Form(why);
        let read: Self = serde_json::from_slice(text).map_err(|error| form(error.to_string()))?;
        match read.format {
            FORMAT => Ok(read),
            other => Err(form(format!("unknown format {other}"))),
        }
    }

    /// Verifies the proof with the node's key among `keys`. Without `keys` the key in the proof is used,
    /// which shows only that the proof is consistent.
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
                let trusted = keys.iter().find(|key| key.name() == stated.name());
                trusted.ok_or_else(|| ProofError::Key(stated.name().to_owned()))?
            }
        };
        let checkpoint = Checkpoint::open(&self.checkpoint, key)
            .map_err(|error| ProofError::False(format!("invalid checkpoint: {error}")))?;
        let (head, body) = codec::split_canonical(&canonical).map_err(|_| form("canonical"))?;
        let hash = codec::chain(prev, log, self.seq, head, body);
        let record = Record::decode(log, self.seq, prev, hash, head, Some(body))
            .map_err(|error| ProofError::Form(format!("canonical {error}")))?;
        if checkpoint.log != log {
            return Err(wrong("the checkpoint belongs to another log"));
        }
        let Some(at) = self.seq.checked_sub(checkpoint.first) else {
            return Err(wrong("the checkpoint belongs to other records"));
        };
        let count = checkpoint.last.saturating_sub(checkpoint.first).saturating_add(1);
        let root = checkpoint::root_from_path(checkpoint::leaf_hash(&hash.0), at, count, &path);
        if root != Some(checkpoint.tree) {
            return Err(wrong("the record is not in the signed Merkle tree"));
        }
        if serde_json::to_value(&record).ok().as_ref() != Some(&self.record) {
            return Err(wrong("the displayed record is not the proven one"));
        }
        Ok(ProvenRecord { record, checkpoint, key: key.clone(), is_trusted: keys.is_some() })
    }
}

/// Creates the proof of a record from the store. Names are not authenticated, so all segments that claim the record are
/// tried, those of the preceding days first.
///
/// # Errors
///
/// [`ProofError`]; if segments were invalid and none proves the record, the error of the first invalid segment.
pub async fn prove(bucket: &Bucket, id: Id) -> Result<RecordProof, ProofError> {
    let mut wrong = None;
    for (node, claim) in claims(bucket).await? {
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
        // The days near the record come first, then all folders (`None`).
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
    /// Returns the keys not yielded yet, of one day or, for `None`, of all days.
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

/// Proof of the record from one segment.
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
    let proof = proof.ok_or_else(|| wrong("its content does not match its name".into()))?;
    let is_it = proof.check(None)?.record.id == id;
    if is_it { Ok(proof) } else { Err(ProofError::Absent(id)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    use crate::chain::place::MAX_CLAIM_BYTES;
    use crate::node_state::NodeKey;
    use crate::segment::examples::{ExampleLog, sealed_by};

    #[test]
    fn key_file_is_parsed_and_invalid_line_is_reported() {
        let key = crate::node_state::NodeKey::of_seed(1).verifier("f1", "a").unwrap();
        let text = format!("# the first\n\n  {key}  \n");
        assert_eq!(read_keys(&text), Ok(vec![key]));
        assert_eq!(read_keys(&format!("{text}none\n")), Err(4));
        assert_eq!(read_keys(""), Ok(Vec::new()));
    }

    #[test]
    fn log_sealed_by_two_nodes_is_a_fork_if_records_overlap() {
        let node = |name: &str, log: &str, first: u64, last: u64| NodeReport {
            node: name.to_owned(),
            key: String::new(),
            chain: ChainReport { log: log.to_owned(), first, last, ..ChainReport::default() },
        };
        let found = |nodes: &[NodeReport]| {
            let (faults, notes) = shared_logs(nodes);
            let ranges = faults.iter().map(|it| (it.fault, it.first.unwrap(), it.last.unwrap()));
            (ranges.collect::<Vec<_>>(), notes.len())
        };
        let a = node("a", "x", 1, 90);
        assert_eq!(found(&[a.clone(), node("b", "y", 1, 90)]), (vec![], 0));
        let both = [a.clone(), node("a2", "x", 51, 140)];
        assert_eq!(found(&both), (vec![(ChainFault::Fork, 51, 90)], 0));
        let why = &shared_logs(&both).0[0].why;
        assert!(why.contains("has forked: nodes 'a' and 'a2'"), "{why}");
        assert_eq!(found(&[a, node("a2", "x", 91, 140)]), (vec![], 1), "one continued it");
        assert_eq!(found(&[node("c", "", 0, 0), node("d", "", 0, 0)]), (vec![], 0));
    }

    #[tokio::test]
    async fn invalid_claim_is_a_fault_only_of_its_node() {
        let dir = tempfile::tempdir().unwrap();
        let bucket = Bucket::open(&format!("file://{}", dir.path().display())).unwrap();
        let put = async |key: &str, text: &str| {
            bucket.put(key, Bytes::copy_from_slice(text.as_bytes())).await.unwrap();
        };
        let fleet = "0123456789abcdef0123456789abcdef";
        put(FLEET, &format!(r#"{{"format":1,"fleet":"{fleet}"}}"#)).await;
        let claim = |node: &str| {
            let key = NodeKey::of_seed(1).verifier(fleet, node).unwrap();
            format!(r#"{{"format":1,"node":"{node}","log":"{fleet}","key":"{key}"}}"#)
        };
        let max = usize::try_from(MAX_CLAIM_BYTES).unwrap();
        let padded = |node: &str, bytes: usize| format!("{:<bytes$}", claim(node));
        put(&claim_key("a"), &padded("a", max)).await;
        put(&claim_key("b"), &padded("b", max + 1)).await;
        put(&claim_key("c"), "{").await;
        put("nodes/d/segments/x", "").await;
        let report = audit(&bucket, &AuditOptions::default(), |_| {}).await.unwrap();
        let whys: Vec<_> = report.nodes.iter().map(|it| it.chain.faults.first()).collect();
        let whys: Vec<_> = whys.iter().map(|it| it.map_or("", |fault| &*fault.why)).collect();
        assert_eq!((whys[0], whys[3]), ("", "missing"), "{whys:?}");
        assert_eq!(whys[1], format!("longer than {MAX_CLAIM_BYTES} bytes"));
        assert!(whys[2].contains("EOF") && whys.len() == 4, "{whys:?}");
        assert_eq!(claims(&bucket).await.unwrap().into_keys().collect::<Vec<_>>(), ["a"]);
    }

    fn proof(seq: u64) -> (RecordProof, VerifierKey) {
        let mut log = ExampleLog::new(1);
        log.records(3);
        let by = sealed_by("a", log.head(), Some([1; 32]));
        let sealed = segment::seal(&log.records(11), by.by()).unwrap();
        let opened = segment::open(&sealed.bytes, &by.verifier).unwrap();
        (RecordProof::of(&opened, seq, &by.verifier).unwrap(), by.verifier.clone())
    }

    /// Store with one segment of node `a`, in the folder `days_before` days before record 5, and with the objects in
    /// `beside`.
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
    async fn record_is_found_in_a_segment_of_any_earlier_day() {
        // In the last case the clock was set back within the segment.
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
    async fn false_claim_does_not_hide_a_record() {
        let claims = |day: &str, first: u64| {
            format!("date={day}/{first:020}-00000000000000000009-0000000000000000.parquet")
        };
        let (near, far) = (claims("2026-01-01", 1), claims("2025-06-01", 2));
        let beside = [(&*near, &b"junk"[..]), (&*far, &b"junk"[..])];
        for days_before in [0, 30] {
            let (_dir, bucket, id) = store(days_before, &beside).await;
            assert!(prove(&bucket, id).await.is_ok(), "{days_before} days");
        }
        // If no segment has the record, the first one that claims it is reported.
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
    fn any_change_to_a_proof_is_detected() {
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
            // If keys are given, the key in the proof is ignored.
            let result = read.check(Some(std::slice::from_ref(&key)));
            assert_eq!(result.is_ok(), member == "key", "{member}: {result:?}");
        }
        let mut changed = text;
        changed["record"]["status"] = json!("error");
        let read = RecordProof::read(&serde_json::to_vec(&changed).unwrap()).unwrap();
        assert!(read.check(None).unwrap_err().to_string().contains("displayed"));
        assert!(matches!(RecordProof::read(b"{}"), Err(ProofError::Form(_))));
    }
}
