//! One node's chain as it is followed: what is known of it, its copy, and what is done in a turn.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use parking_lot::Mutex;

use super::follow_context::{FollowContext, LONGEST_WAIT, NotFollowed};
use super::index_copy;
use crate::activity::codec;
use crate::activity::record::NodeId;
use crate::activity::replica::{LogStretch, Replica, ReplicaError};
use crate::fleet::bucket::{Bucket, BucketError};
use crate::fleet::chain_check::{ChainFault, NotBelieved, SegmentFacts};
use crate::fleet::checkpoint;
use crate::fleet::fleet_index::{FollowStatus, FollowedNode};
use crate::fleet::following::{
    ChainFollower, FollowMark, FollowStep, MAX_AHEAD, SeenObject, SeenPart, SegmentJudgement,
};
use crate::fleet::joining::{NodeClaim, claim_key, segments_folder};
use crate::fleet::record_rows::RecordRows;
use crate::fleet::segment::{SegmentName, day_of};
use crate::fleet::signed_note::VerifierKey;

/// Segments of a node that are fetched at a time.
const AT_A_TIME: usize = 3;
/// Segments that are taken of a node in a turn.
const TURN_SEGMENTS: usize = 16;
/// How many times as long it is waited as a listing took: a folder of many files is listed slowly.
const LISTING_SHARE: u32 = 10;
/// How many segments are counted that are not fetched yet.
const MAX_COUNTED: u64 = 100_000;
/// How often they are.
const COUNT_EVERY: Duration = Duration::from_secs(60);
/// How often it is looked for records that are no longer to be kept.
const PRUNE_EVERY: Duration = Duration::from_secs(60);
/// And after so many segments, while a backlog is taken.
const PRUNE_SEGMENTS: u64 = 256;

/// A chain that is followed.
pub(super) struct FollowedChain {
    node: Arc<FollowedNode>,
    follower: ChainFollower,
    key: Arc<VerifierKey>,
    /// Used by one thread at a time, beside the runtime.
    replica: Arc<Mutex<Replica>>,
    dir: PathBuf,
    /// When it is looked next whether the node is still the one it was.
    claim_at: Instant,
    /// Why that could not be seen.
    claim_error: Option<String>,
    /// When it was counted how many segments there are.
    counted_at: Option<Instant>,
    /// How many there were then behind those that were listed, and the last record of the last that was seen.
    counted: (u64, u64),
    pruned: Instant,
    pruned_at_segment: u64,
}

impl FollowedChain {
    /// Begins to follow a node, or goes on.
    pub(super) async fn begin(
        context: &FollowContext,
        fleet: &str,
        name: &str,
    ) -> Result<Self, NotFollowed> {
        let FollowContext { settings, bucket, index, every, .. } = context;
        let claim = NodeClaim::fetch(bucket, name)
            .await?
            .map_err(|fault| NotFollowed::Claim(format!("{}: {fault}", claim_key(name))))?;
        let log = u128::from_str_radix(&claim.log, 16).ok().filter(|_| claim.log.len() == 32);
        let log = NodeId(
            log.ok_or_else(|| NotFollowed::Claim("its claim names no log".into()))?.to_be_bytes(),
        );
        let (folder, shared) = (settings.folder.clone(), Arc::<str>::from(name));
        let opened = tokio::task::spawn_blocking(move || index_copy::open(&folder, &shared, log));
        let copy = opened.await.map_err(|_| NotFollowed::Thread)??;
        let mark = copy.mark.unwrap_or_else(|| FollowMark::new(claim.key.clone(), log));
        let key =
            VerifierKey::parse(&mark.key).map_err(|error| NotFollowed::Claim(error.to_string()))?;
        if *key.name() != checkpoint::origin(fleet, name) {
            return Err(NotFollowed::Claim(format!("its claim has the key of {}", key.name())));
        }
        let from_day = match settings.retention.days {
            0 => 0,
            days => day_of(unix_millis()).saturating_sub(i32::try_from(days).unwrap_or(i32::MAX)),
        };
        let every = every.as_millis() as u64;
        let follower = ChainFollower::new(mark, log, segments_folder(name), from_day.max(0), every);
        let reader = copy.replica.reader();
        let node = Arc::new(FollowedNode::new(name.into(), claim.log, reader, copy.made_anew));
        index.insert(Arc::clone(&node));
        let chain = Self {
            node,
            follower,
            key: Arc::new(key),
            replica: Arc::new(Mutex::new(copy.replica)),
            dir: copy.dir,
            claim_at: Instant::now(),
            claim_error: None,
            counted_at: None,
            counted: (0, 0),
            pruned: Instant::now(),
            pruned_at_segment: 0,
        };
        chain.publish(None);
        Ok(chain)
    }

    /// Whether the node is still the one it was.
    async fn check_claim(&mut self, bucket: &Bucket) -> Result<(), NotFollowed> {
        let claim = NodeClaim::fetch(bucket, self.node.name()).await?;
        let mark = self.follower.mark();
        let why = match claim {
            Ok(claim) if claim.key == mark.key && claim.log == mark.log => return Ok(()),
            Ok(_) => "it has another key or log than when the node was first followed".into(),
            Err(fault) => fault.to_string(),
        };
        let key = claim_key(self.node.name());
        if let Some(mark) = self.follower.told(ChainFault::Key, &key, why) {
            self.write_mark(&mark).await?;
            self.follower.noted(mark);
        }
        Ok(())
    }

    /// Its turn: what is next, within the bounds of one; when it has the next. Fails where its copy is to be opened again: it is
    /// damaged; or it could not be written, after which a store writes nothing any more, and its disk can be written now. Until
    /// then what is there can be read.
    pub(super) async fn turn(&mut self, context: &FollowContext) -> Result<Instant, NotFollowed> {
        let until = match self.steps(context).await {
            Ok(until) => {
                self.publish(self.claim_error.clone());
                until
            }
            Err(error) => {
                let node = self.node.name();
                tracing::warn!(node, %error, "a node's segments cannot be followed now");
                self.publish(Some(error.to_string()));
                if error.is_damage() || (error.is_local() && self.could_be_written().await) {
                    return Err(error);
                }
                self.follower.failed(context.now())
            }
        };
        let waits = Duration::from_millis(until.saturating_sub(context.now()));
        Ok(Instant::now() + waits.min(LONGEST_WAIT))
    }

    async fn could_be_written(&self) -> bool {
        let dir = self.dir.clone();
        let looked = tokio::task::spawn_blocking(move || index_copy::could_be_written(&dir));
        looked.await.unwrap_or(false)
    }

    /// Its copy is of no use, and is made anew by who begins to follow the node next.
    pub(super) fn give_up(self, context: &FollowContext) {
        index_copy::is_damaged(&self.dir);
        self.close(context);
    }

    /// Its copy is closed, and opened again by who begins to follow the node next.
    pub(super) fn close(self, context: &FollowContext) {
        context.index.remove(self.node.name());
    }

    /// Does what is next, within the bounds of a turn; until when there is nothing to do.
    async fn steps(&mut self, context: &FollowContext) -> Result<u64, NotFollowed> {
        let now = || context.now();
        if Instant::now() >= self.claim_at {
            let checked = self.check_claim(&context.bucket).await;
            if let Err(error) = &checked {
                tracing::warn!(node = self.node.name(), %error, "a node's claim cannot be read now");
            }
            self.claim_error = checked.err().map(|error| error.to_string());
            self.claim_at = Instant::now() + context.look_every();
        }
        self.prune(context).await?;
        loop {
            match self.follower.step(now()) {
                FollowStep::Wait(until) => return Ok(until),
                FollowStep::List => {
                    let begun = Instant::now();
                    let part = self.list(&context.bucket).await?;
                    let rests = begun.elapsed() * LISTING_SHARE;
                    self.follower.listed(part, now() + rests.as_millis() as u64);
                }
                FollowStep::Pass(mark) => {
                    self.write_mark(&mark).await?;
                    self.tell(&mark);
                    self.follower.committed(*mark);
                }
                FollowStep::Fetch(_) => {
                    self.take(context).await?;
                    return Ok(now());
                }
            }
        }
    }

    async fn list(&mut self, bucket: &Bucket) -> Result<SeenPart, NotFollowed> {
        let folder = segments_folder(self.node.name());
        let counts = self.counted_at.is_none_or(|at| at.elapsed() >= COUNT_EVERY);
        let count = if counts { MAX_COUNTED } else { 1 };
        let part = bucket.list_part(&folder, &self.follower.after(), MAX_AHEAD, count).await?;
        let last = part.last.as_deref().and_then(|key| SegmentName::of_key(&folder, key));
        let last = last.map_or(0, |name| name.last);
        let (more, newest) = self.counted;
        self.counted = match (counts, part.more) {
            (true, more) => (more, last),
            (false, 0) => (0, last),
            // As many fewer as were listed since, and those that are seen at least.
            (false, seen) => {
                (more.saturating_sub(part.objects.len() as u64).max(seen), newest.max(last))
            }
        };
        if counts {
            self.counted_at = Some(Instant::now());
        }
        let objects = part.objects.into_iter().map(|object| SeenObject {
            name: SegmentName::of_key(&folder, &object.key),
            key: object.key,
            size: object.size,
        });
        let (more, newest) = self.counted;
        Ok(SeenPart { objects: objects.collect(), more, newest })
    }

    /// Fetches and takes the segments of a turn. They are opened in their order, so that the first of each chain has one of
    /// the permits that all chains share, or gets the next.
    async fn take(&mut self, context: &FollowContext) -> Result<(), NotFollowed> {
        let now = || context.now();
        let keys: Vec<String> =
            self.follower.next_keys().take(TURN_SEGMENTS).map(str::to_owned).collect();
        let fetched = stream::iter(keys)
            .map(|key| async { (fetch(&context.bucket, &key).await, key) })
            .buffered(AT_A_TIME);
        let permitted = fetched.then(|(fetched, key)| {
            let permit = Arc::clone(&context.opened).acquire_owned();
            // There always is one: nobody closes them.
            async { (permit.await.ok(), fetched, key) }
        });
        let opened = permitted.map(|(permit, fetched, key)| {
            let verifier = Arc::clone(&self.key);
            async move { (open(fetched, verifier).await, key, permit) }
        });
        let mut fetched = std::pin::pin!(opened.buffered(AT_A_TIME));
        while let Some((fetched, key, _permit)) = fetched.next().await {
            if self.follower.step(now()) != FollowStep::Fetch(key) {
                break;
            }
            let fetched = fetched?;
            match self.follower.judge(fetched.as_ref().map(|it| &it.0), now()) {
                SegmentJudgement::Take(mark) => {
                    let Ok((facts, rows)) = fetched else { break };
                    let (replica, bytes) = (Arc::clone(&self.replica), mark.encode());
                    let write = move || apply(&mut replica.lock(), &facts, &rows, bytes.into());
                    tokio::task::spawn_blocking(write).await.map_err(|_| NotFollowed::Thread)??;
                    self.tell(&mark);
                    self.follower.committed(*mark);
                    self.publish(None);
                    context.index.has_changed();
                }
                SegmentJudgement::Pass(mark) => {
                    self.write_mark(&mark).await?;
                    self.tell(&mark);
                    self.follower.committed(*mark);
                }
                SegmentJudgement::Again => break,
            }
        }
        Ok(())
    }

    /// Says in the log what is new among faults and gaps.
    fn tell(&self, mark: &FollowMark) {
        let (node, known) = (self.node.name(), self.follower.mark());
        for found in mark.faults.iter().skip(known.faults.len()) {
            let (fault, why, at) = (found.fault, &found.why, &found.at);
            tracing::error!(
                node,
                ?fault,
                at,
                why,
                "a segment in the fleet's store is not as its node sealed it"
            );
        }
        for gap in mark.gaps.iter().skip(known.gaps.len()) {
            let (first, last, cause) = (gap.first, gap.last, gap.cause);
            tracing::warn!(
                node,
                first,
                last,
                ?cause,
                "records of a node are missing in this index"
            );
        }
    }

    async fn write_mark(&self, mark: &FollowMark) -> Result<(), NotFollowed> {
        let (replica, bytes) = (Arc::clone(&self.replica), mark.encode());
        let write = move || replica.lock().note(bytes.into());
        Ok(tokio::task::spawn_blocking(write).await.map_err(|_| NotFollowed::Thread)??)
    }

    /// Removes what is no longer to be kept, now and then.
    async fn prune(&mut self, context: &FollowContext) -> Result<(), NotFollowed> {
        let segments = self.follower.mark().segments;
        let is_due = self.pruned.elapsed() >= PRUNE_EVERY
            || segments - self.pruned_at_segment.min(segments) >= PRUNE_SEGMENTS;
        if !is_due {
            return Ok(());
        }
        (self.pruned, self.pruned_at_segment) = (Instant::now(), segments);
        let (replica, retention) = (Arc::clone(&self.replica), context.settings.retention);
        let prune = move || replica.lock().prune(&retention, unix_millis());
        tokio::task::spawn_blocking(prune).await.map_err(|_| NotFollowed::Thread)??;
        Ok(())
    }

    /// Shows how far it is.
    fn publish(&self, error: Option<String>) {
        let mark = self.follower.mark();
        let (behind_records, behind_segments) = self.follower.behind();
        self.node.set_status(FollowStatus {
            first: mark.first,
            last: mark.last,
            records: mark.records,
            segments: mark.segments,
            behind_records,
            behind_segments,
            gaps: mark.gaps.clone(),
            faults: mark.faults.clone(),
            more: mark.more,
            has_stopped: self.follower.has_stopped(),
            error,
        });
    }
}

/// What there is of a segment; errors are those that say nothing of it.
type OfSegment<T> = Result<Result<T, NotBelieved>, NotFollowed>;

async fn fetch(bucket: &Bucket, key: &str) -> OfSegment<Bytes> {
    match bucket.get(key).await {
        Ok(bytes) => Ok(Ok(bytes)),
        Err(error @ BucketError::TooLong(_)) => {
            Ok(Err(NotBelieved { fault: ChainFault::Altered, why: error.to_string() }))
        }
        Err(error @ BucketError::Missing(_)) => {
            Ok(Err(NotBelieved { fault: ChainFault::Removed, why: error.to_string() }))
        }
        Err(error) => Err(error.into()),
    }
}

async fn open(
    fetched: OfSegment<Bytes>,
    verifier: Arc<VerifierKey>,
) -> OfSegment<(SegmentFacts, RecordRows)> {
    let bytes = match fetched? {
        Ok(bytes) => bytes,
        Err(why) => return Ok(Err(why)),
    };
    let open = move || SegmentFacts::open(&bytes, &verifier);
    tokio::task::spawn_blocking(open).await.map_err(|_| NotFollowed::Thread)
}

/// Writes the records of a segment.
fn apply(
    replica: &mut Replica,
    facts: &SegmentFacts,
    rows: &RecordRows,
    mark: Bytes,
) -> Result<(), ReplicaError> {
    let checkpoint = &facts.checkpoint;
    let stretch =
        LogStretch { first: checkpoint.first, after: checkpoint.after, head: checkpoint.head };
    // They were split when the segment was opened.
    let records = rows.iter().map(|row| codec::split_canonical(row.canonical).unwrap_or_default());
    replica.apply(stretch, records, mark)
}

fn unix_millis() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}
