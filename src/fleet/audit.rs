//! The chains of a fleet, verified from its store alone: no node is asked, and nothing is changed. Fetches; what is right is
//! decided by `segment` and `chain_check`.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use serde::Serialize;

use super::bucket::{Bucket, BucketError};
use super::chain_check::{
    ChainCheck, ChainFault, ChainReport, FaultFound, ListedSegment, NotBelieved, SegmentFacts,
};
use super::chain_days::{ChainDays, ChainPart};
use super::checkpoint;
use super::config::NodeName;
use super::joining::{FLEET, FleetObject, NODES, NodeClaim, claim_key, segments_folder};
use super::signed_note::VerifierKey;
use super::strays::StrayObjects;

/// Segments that are fetched and looked at at a time.
const AT_A_TIME: usize = 4;
/// Most bytes of a file of keys.
pub const MAX_KEYS_BYTES: u64 = 1 << 20;

/// How an audit is made.
#[derive(Clone, Debug, Default)]
pub struct AuditOptions {
    /// The keys that are believed; `None` for those that lie in the store.
    pub keys: Option<Vec<VerifierKey>>,
    /// Whether segments that are missing at the beginning of a chain are no fault: the store's own rules remove old ones.
    pub expired: bool,
}

/// What was found of one node.
#[derive(Clone, Debug, Serialize)]
pub struct NodeReport {
    /// Its name.
    pub node: String,
    /// The key that its checkpoints were verified by; empty for none.
    pub key: String,
    /// Its chain.
    #[serde(flatten)]
    pub chain: ChainReport,
}

/// What was found of a fleet.
#[derive(Clone, Debug, Serialize)]
pub struct FleetReport {
    /// True when nothing is wrong.
    pub sound: bool,
    /// The store.
    pub store: String,
    /// The fleet.
    pub fleet: String,
    /// Its nodes.
    pub nodes: Vec<NodeReport>,
    /// What is wrong apart from their chains.
    pub faults: Vec<FaultFound>,
    /// Other findings. They are no faults.
    pub notes: Vec<String>,
}

/// Reads a file of keys: one in a line, as a claim has it; empty lines and those that begin with `#` say nothing.
///
/// # Errors
///
/// The number of the first line that is no key.
pub fn read_keys(text: &str) -> Result<Vec<VerifierKey>, usize> {
    let lines = (1..).zip(text.lines()).map(|(number, line)| (number, line.trim()));
    let keys = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    keys.map(|(number, line)| VerifierKey::parse(line).map_err(|_| number)).collect()
}

/// Verifies every chain. `progress` is told how many records are done.
///
/// # Errors
///
/// [`BucketError`] where the store cannot be read: then nothing is known.
pub async fn audit(
    bucket: &Bucket,
    options: &AuditOptions,
    mut progress: impl FnMut(u64),
) -> Result<FleetReport, BucketError> {
    let fleet = FleetObject::fleet(&bucket.get(FLEET).await?)
        .ok_or_else(|| BucketError::Failed(format!("{FLEET} is not what a fleet writes")))?;
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
    match &options.keys {
        Some(keys) => {
            let known = |key: &&VerifierKey| names.iter().any(|name| *key.name() == checkpoint::origin(&fleet, name));
            for key in keys.iter().filter(|key| !known(key)) {
                let why = format!("there is a key for {}, which is not in the store", key.name());
                let at = NODES.to_owned();
                faults.push(FaultFound { fault: ChainFault::Removed, at, first: None, last: None, why });
            }
        }
        None => notes.push("the keys were taken from the store: whoever can write there can replace them together with what they sign".into()),
    }
    notes.push("segments that were removed at the end of a chain are not missed by what is before them: compare the last records with those that the nodes have".into());
    let sound = faults.is_empty() && nodes.iter().all(|node| node.chain.sound);
    Ok(FleetReport { sound, store: bucket.shown().to_owned(), fleet, nodes, faults, notes })
}

/// The key that the checkpoints of a node are verified by.
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
        false => Err(format!("it is the claim of {}", key.name())),
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
        // The other chains are looked at all the same.
        Err(error @ BucketError::TooManyFolders(_)) => {
            check.fault(ChainFault::Foreign, &folder, error.to_string());
            let (node, key) = (name.to_owned(), key.to_string());
            return Ok(NodeReport { node, key, chain: check.finish() });
        }
        days => days?,
    };
    let mut records = 0;
    while let Some(ChainPart { names, foreign }) = days.next().await? {
        let nothing = NotBelieved { fault: ChainFault::Foreign, why: String::new() };
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

/// What a segment is; errors are those that say nothing of it.
async fn facts(
    bucket: &Bucket,
    at: &str,
    key: Arc<VerifierKey>,
) -> Result<Result<SegmentFacts, NotBelieved>, BucketError> {
    let bytes: Bytes = match bucket.get(at).await {
        Ok(bytes) => bytes,
        Err(error @ BucketError::TooLong(_)) => {
            return Ok(Err(NotBelieved { fault: ChainFault::Altered, why: error.to_string() }));
        }
        Err(error @ BucketError::Missing(_)) => {
            return Ok(Err(NotBelieved { fault: ChainFault::Removed, why: error.to_string() }));
        }
        Err(error) => return Err(error),
    };
    let looked = tokio::task::spawn_blocking(move || SegmentFacts::of(&bytes, &key)).await;
    let unread =
        |_| Err(NotBelieved { fault: ChainFault::Altered, why: "it cannot be read".into() });
    Ok(looked.unwrap_or_else(unread))
}

/// The nodes of a fleet and their claims, by name; those that have one that can be read.
///
/// # Errors
///
/// [`BucketError`].
pub async fn claims(bucket: &Bucket) -> Result<BTreeMap<String, NodeClaim>, BucketError> {
    let mut claims = BTreeMap::new();
    for name in bucket.folders(NODES).await?.into_iter().filter(|it| NodeName::parse(it).is_some())
    {
        if let Ok(claim) = NodeClaim::fetch(bucket, &name).await? {
            claims.insert(name, claim);
        }
    }
    Ok(claims)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::joining::MAX_CLAIM_BYTES;
    use crate::fleet::node_key::NodeKey;

    #[test]
    fn a_file_of_keys_is_read_and_the_line_that_is_none_is_named() {
        let key = super::super::node_key::NodeKey::of_seed(1).verifier("f1", "a").unwrap();
        let text = format!("# the first\n\n  {key}  \n");
        assert_eq!(read_keys(&text), Ok(vec![key]));
        assert_eq!(read_keys(&format!("{text}none\n")), Err(4));
        assert_eq!(read_keys(""), Ok(Vec::new()));
    }

    #[tokio::test]
    async fn a_claim_that_is_none_is_a_fault_of_its_node_and_of_no_other() {
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
        let most = usize::try_from(MAX_CLAIM_BYTES).unwrap();
        let padded = |node: &str, bytes: usize| format!("{:<bytes$}", claim(node));
        put(&claim_key("a"), &padded("a", most)).await;
        put(&claim_key("b"), &padded("b", most + 1)).await;
        put(&claim_key("c"), "{").await;
        put("nodes/d/segments/x", "").await;
        let report = audit(&bucket, &AuditOptions::default(), |_| {}).await.unwrap();
        let whys: Vec<_> = report.nodes.iter().map(|it| it.chain.faults.first()).collect();
        let whys: Vec<_> = whys.iter().map(|it| it.map_or("", |fault| &*fault.why)).collect();
        assert_eq!((whys[0], whys[3]), ("", "it is not there"), "{whys:?}");
        assert_eq!(whys[1], format!("it is longer than {MAX_CLAIM_BYTES} bytes"));
        assert!(whys[2].contains("EOF") && whys.len() == 4, "{whys:?}");
        assert_eq!(claims(&bucket).await.unwrap().into_keys().collect::<Vec<_>>(), ["a"]);
    }
}
