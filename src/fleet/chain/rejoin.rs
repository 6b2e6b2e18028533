//! Restoring a salvaged log from the store: the node's sealed records are fetched before its log is opened, and its
//! chain continues after them.
//!
//! ```text
//! claim is ours ─▶ no heartbeat under the name ─▶ names ─▶ each segment opened and linked ─▶ the log (`activity::restore`)
//! ```
//!
//! A missing or altered segment leaves a gap that the log records; the newest segment must be sound, as at any start. A forked
//! chain is rejected, because neither branch can be preferred.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use mcpproxy_activity::chain_tip::ChainTip;
use mcpproxy_activity::record::{Hash, NodeId};
use mcpproxy_activity::replica::LogStretch;
use mcpproxy_activity::restore::{LocalLog, Restored, Restoring};
use mcpproxy_activity::{codec, restore};
use mcpproxy_runtime::io::clock::wall_ms;
use mcpproxy_runtime::io::line_budget::{LinePeer, peer_line};
use mcpproxy_runtime::os::private;

use crate::bucket::{Bucket, BucketError};
use crate::chain::ChainDays;
use crate::chain::place::{FLEET, FleetObject, JoinError, NodeClaim, segments_folder, store_error};
use crate::checkpoint::{Checkpoint, CheckpointHash, VerifierKey};
use crate::config::NodeName;
use crate::heartbeat::{MAX_HEARTBEAT_BYTES, heartbeat_key};
use crate::node_state::{FleetId, NodeKey, NodeTag, SealedMark, SealedMarkFile};
use crate::parquet_table::RecordRows;
use crate::sealing::ChainPosition;
use crate::segment;
use crate::segment::SegmentName;

/// Time to watch for a heartbeat under the node's name; longer than the heartbeat interval.
const SILENT_FOR: Duration = Duration::from_millis(3_000);

/// Sources for restoring a node's log.
#[derive(Clone, Copy, Debug)]
pub struct RejoinPlan<'a> {
    pub bucket: &'a Bucket,
    pub folder: &'a Path,
    pub node: &'a NodeName,
    /// Folder of the node's log.
    pub log: &'a Path,
    /// Maximum number of records to fetch if no local log is left; 0 for all.
    pub max_records: u64,
}

/// The node's own chain in the store.
struct OwnChain {
    fleet: FleetId,
    log: NodeId,
    verifier: VerifierKey,
    file: SealedMarkFile,
    planned: Option<u64>,
}

/// Fetched segment.
struct Fetched {
    checkpoint: Checkpoint,
    rows: RecordRows,
}

/// Restores a node's log from its sealed records, if requested and needed. Blocks; `runtime` drives the store requests.
///
/// # Errors
///
/// [`JoinError`]; the log is unchanged and is restored at the next start.
pub fn rejoin(
    plan: RejoinPlan<'_>,
    runtime: &tokio::runtime::LocalRuntime,
) -> Result<Option<Restored>, JoinError> {
    let Some(wanted) = restore::request(plan.log)? else { return Ok(None) };
    let Some(mut chain) = runtime.block_on(own_chain(plan))? else {
        restore::clear_request(plan.log)?;
        return Ok(None);
    };
    let local = LocalLog::open(plan.log)?;
    let is_ours = local.id() == chain.log && local.range().1 > 0;
    let from = if is_ours { local.range().0 } else { 1 };
    let max = if is_ours { 0 } else { plan.max_records };
    let names = runtime.block_on(names(plan, from, max))?;
    let Some(newest) = names.back().cloned() else {
        restore::clear_request(plan.log)?;
        return Ok(None);
    };
    let end = runtime.block_on(fetch(plan, &chain, &newest))?;
    let end = end.map_err(|why| cannot(plan, &newest, &why))?;
    let has_all = is_ours && names.iter().all(|name| local.has_all(name.first, name.last));
    if has_all && local.hash(end.checkpoint.last)? == Some(end.checkpoint.head) {
        drop(local);
        restore::clear_request(plan.log)?;
        return Ok(None);
    }
    peer_line!(
        warn,
        LinePeer::Part("rejoining"),
        node = plan.node.as_str(),
        last = end.checkpoint.last,
        "restoring the salvaged log: fetching its sealed records from the fleet's store"
    );
    let mut restoring = local.restore(chain.log)?;
    let mut before: Option<(u64, Hash, CheckpointHash)> = None;
    for name in &names {
        let segment = match runtime.block_on(fetch(plan, &chain, name))? {
            Ok(segment) => segment,
            Err(why) if name == &newest => return Err(cannot(plan, name, &why)),
            Err(why) => {
                let at = key_of(plan, name);
                peer_line!(
                    error,
                    LinePeer::Part("rejoining"),
                    at,
                    why,
                    "cannot restore a sealed segment"
                );
                continue;
            }
        };
        let Checkpoint { first, last, head, after, previous, .. } = segment.checkpoint;
        if let Some((end, hash, checkpoint)) = before {
            let is_next = first == end + 1;
            if is_next && (previous != Some(checkpoint) || after != hash) {
                return Err(cannot(plan, name, "does not follow its predecessor"));
            }
        }
        take(&mut restoring, &segment)?;
        before = Some((last, head, segment.checkpoint.hash()));
    }
    let durable = wanted.durable();
    // An interrupted upload may still complete: its numbers are not reused.
    let planned = chain.planned.map(|seq| ChainTip { seq, hash: Hash([0; 32]) });
    let durable = [planned, durable].into_iter().flatten().max_by_key(|tip| tip.seq);
    let restored = restoring.finish(durable, plan.bucket.shown(), wall_ms())?;
    let stored = ChainPosition {
        seq: end.checkpoint.last,
        head: end.checkpoint.head,
        checkpoint: Some(end.checkpoint.hash()),
    };
    let (node, day) = (NodeTag::of(plan.node), newest.day);
    let OwnChain { fleet, log, ref mut file, .. } = chain;
    let mark = SealedMark { fleet, node, log, stored, day, planned: None };
    file.write(&mark).map_err(|error| unusable(plan, error))?;
    restore::clear_request(plan.log)?;
    Ok(Some(restored))
}

fn take(restoring: &mut Restoring, segment: &Fetched) -> Result<(), JoinError> {
    let Checkpoint { first, last, head, after, .. } = segment.checkpoint;
    let stretch = LogStretch { first, after, head };
    let rows = segment.rows.iter().map(|row| {
        // The records were split when the segment was opened.
        let (head, body) = codec::split_canonical(row.canonical).unwrap_or_default();
        (row.hash, head, body)
    });
    Ok(restoring.sealed(stretch, last, rows)?)
}

fn unusable(plan: RejoinPlan<'_>, error: std::io::Error) -> JoinError {
    JoinError::Folder { folder: plan.folder.to_owned(), error }
}

fn key_of(plan: RejoinPlan<'_>, name: &SegmentName) -> String {
    format!("{}/{name}", segments_folder(plan.node.as_str()))
}

fn cannot(plan: RejoinPlan<'_>, name: &SegmentName, why: &str) -> JoinError {
    JoinError::Refused(format!(
        "cannot continue the chain after {}/{}: {why}; run `activity verify --store` for details",
        plan.bucket.shown(),
        key_of(plan, name)
    ))
}

/// The node's own chain; `None` if there is none.
async fn own_chain(plan: RejoinPlan<'_>) -> Result<Option<OwnChain>, JoinError> {
    let RejoinPlan { bucket, folder, node, .. } = plan;
    let failed = store_error(bucket);
    private::folder(folder).map_err(|error| unusable(plan, error))?;
    let key = NodeKey::open(folder).map_err(|error| unusable(plan, error))?;
    let (file, mark) = SealedMarkFile::open(folder).map_err(|error| unusable(plan, error))?;
    let fleet = bucket.find(FLEET).await.map_err(&failed)?;
    let fleet = fleet.and_then(|bytes| FleetObject::fleet(&bytes));
    // A missing or foreign fleet object is reported by the join that follows.
    let Some(fleet) = fleet.filter(|fleet| mark.is_none_or(|mark| mark.fleet == *fleet)) else {
        return match mark {
            None => Ok(None),
            Some(mark) => Err(JoinError::Refused(format!(
                "{} is not the store of fleet {}, to which this node belongs: correct cluster.store, or restore its contents",
                bucket.shown(),
                mark.fleet
            ))),
        };
    };
    let Some(verifier) = key.verifier(&fleet.to_string(), node.as_str()) else { return Ok(None) };
    let claim = NodeClaim::fetch(bucket, node.as_str()).await.map_err(&failed)?;
    let Some(claim) = claim.ok().filter(|claim| claim.key == verifier.to_string()) else {
        return Ok(None);
    };
    let Some(log) = claim.log_id() else { return Ok(None) };
    if beats(bucket, node).await.map_err(&failed)? {
        return Err(JoinError::Refused(format!(
            "another process runs as node '{}' of this fleet: stop it, or choose another cluster.node and another data_dir",
            node.as_str()
        )));
    }
    let is_ours = |mark: &SealedMark| (mark.log, mark.node) == (log, NodeTag::of(node));
    let planned = mark.filter(is_ours).and_then(|mark| mark.planned);
    Ok(Some(OwnChain { fleet, log, verifier, file, planned }))
}

/// True if the heartbeat under the node's name changes.
async fn beats(bucket: &Bucket, node: &NodeName) -> Result<bool, BucketError> {
    let key = heartbeat_key(node);
    let read = async || match bucket.get_up_to(&key, MAX_HEARTBEAT_BYTES).await {
        Ok(bytes) => Ok(Some(bytes)),
        Err(BucketError::Missing(_) | BucketError::TooLong(_)) => Ok(None),
        Err(error) => Err(error),
    };
    let Some(before) = read().await? else { return Ok(false) };
    tokio::time::sleep(SILENT_FOR).await;
    Ok(read().await? != Some(before))
}

/// Names of the node's segments starting at record `from`, in chain order; limited to the newest `max` records unless
/// `max` is 0.
async fn names(
    plan: RejoinPlan<'_>,
    from: u64,
    max: u64,
) -> Result<VecDeque<SegmentName>, JoinError> {
    let failed = store_error(plan.bucket);
    let mut days = ChainDays::of(plan.bucket, plan.node.as_str()).await.map_err(&failed)?;
    let (mut names, mut records) = (VecDeque::<SegmentName>::new(), 0);
    let count = |name: &SegmentName| name.last - name.first + 1;
    while let Some(part) = days.next().await.map_err(&failed)? {
        for name in part.names.into_iter().filter(|name| name.last >= from) {
            if let Some(before) = names.back().filter(|before| before.last >= name.first) {
                // The same segment may be listed under two days.
                if before.is_same(&name) {
                    continue;
                }
                let why = format!("overlaps {}", key_of(plan, before));
                return Err(cannot(plan, &name, &why));
            }
            records += count(&name);
            names.push_back(name);
            while max > 0
                && names.len() > 1
                && let Some(oldest) = names.front().map(count).filter(|it| records - it >= max)
            {
                names.pop_front();
                records -= oldest;
            }
        }
    }
    Ok(names)
}

/// Fetches and verifies one segment.
async fn fetch(
    plan: RejoinPlan<'_>,
    chain: &OwnChain,
    name: &SegmentName,
) -> Result<Result<Fetched, String>, JoinError> {
    let bytes = match plan.bucket.get(&key_of(plan, name)).await {
        Ok(bytes) => bytes,
        Err(error @ (BucketError::Missing(_) | BucketError::TooLong(_))) => {
            return Ok(Err(error.to_string()));
        }
        Err(error) => return Err(store_error(plan.bucket)(error)),
    };
    let verifier = chain.verifier.clone();
    let opened = tokio::task::spawn_blocking(move || segment::open(&bytes, &verifier)).await;
    Ok(match opened {
        Ok(Ok(opened)) if !name.is_of(&opened.checkpoint) => {
            Err("its content does not match its name".to_owned())
        }
        Ok(Ok(opened)) if opened.checkpoint.log != chain.log => {
            Err("belongs to a different log than the node's claim".to_owned())
        }
        Ok(Ok(opened)) => Ok(Fetched { checkpoint: opened.checkpoint, rows: opened.records }),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("cannot be read".to_owned()),
    })
}
