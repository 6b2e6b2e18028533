//! Turn of one followed chain: fetches segments, applies them to the local copy, fills gaps and checks the claim.
//! This module also contains the settings shared by all chains ([`FollowContext`]) and the copy on disk
//! ([`IndexCopy`]), which is rebuilt if damaged.

use std::io::Write as _;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use mcpproxy_activity::record::NodeId;
use mcpproxy_activity::replica::{LogStretch, Replica, ReplicaError};
use mcpproxy_activity::{Retention, StoreError, codec};
use mcpproxy_runtime::io::clock::wall_ms;
use mcpproxy_runtime::io::line_budget::{LinePeer, peer_line};
use mcpproxy_runtime::os::private;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::bucket::{Bucket, BucketError};
use crate::chain::check::{ChainFault, SegmentFacts, SegmentRejection};
use crate::chain::follow::{
    ChainFollower, FollowMark, FollowStep, MAX_AHEAD, SeenObject, SeenPart, SegmentJudgment,
};
use crate::chain::place::{
    DAYS, JoinedStore, NodeClaim, StoreMismatch, claim_key, segments_folder,
};
use crate::checkpoint;
use crate::checkpoint::VerifierKey;
use crate::config::{IndexRole, NodeName};
use crate::fleet_logs::{FleetIndex, FollowStatus, FollowedNode};
use crate::node_state::FleetId;
use crate::parquet_table::RecordRows;
use crate::segment::{SegmentName, day_folder, day_of};

/// Number of segments fetched concurrently per node.
const AT_A_TIME: usize = 3;
/// Maximum number of segments per turn.
const TURN_SEGMENTS: usize = 16;
/// Maximum number of segments used at a time to fill a gap.
const MAX_HEALED: usize = 64;
/// Pause between listings, as a multiple of a listing's duration: folders with many files are slow to list.
const LISTING_SHARE: u32 = 10;
/// Maximum number of pending segments counted.
const MAX_COUNTED: u64 = 100_000;
/// Interval for counting pending segments.
const COUNT_EVERY: Duration = Duration::from_secs(60);
/// Interval for applying retention.
const PRUNE_EVERY: Duration = Duration::from_secs(60);
/// Number of segments after which retention is applied while catching up.
const PRUNE_SEGMENTS: u64 = 256;

pub(crate) struct FollowedChain {
    node: Arc<FollowedNode>,
    follower: ChainFollower,
    key: Arc<VerifierKey>,
    /// Used by one blocking thread at a time.
    replica: Arc<Mutex<Replica>>,
    dir: PathBuf,
    /// Expected fleet and claim.
    place: JoinedStore,
    /// Time of the next claim check.
    claim_at: Instant,
    /// Error of the last claim check.
    claim_error: Option<String>,
    /// Time of the last count of pending segments.
    counted_at: Option<Instant>,
    /// Number of segments after the listed ones, based on the last count, and the last record of the last of them.
    counted: (u64, u64),
    pruned: Instant,
    pruned_at_segment: u64,
}

impl FollowedChain {
    /// Starts or resumes following a node.
    pub(crate) async fn begin(
        context: &FollowContext,
        fleet: &str,
        name: &str,
    ) -> Result<Self, NotFollowed> {
        let FollowContext { settings, bucket, index, every, .. } = context;
        let claim = NodeClaim::fetch(bucket, name)
            .await?
            .map_err(|fault| NotFollowed::Claim(format!("{}: {fault}", claim_key(name))))?;
        let log = claim.log_id();
        let log = log.ok_or_else(|| NotFollowed::Claim("its claim names no log".into()))?;
        let (folder, shared) = (settings.folder.clone(), Arc::<str>::from(name));
        let opened = tokio::task::spawn_blocking(move || open_copy(&folder, &shared, log));
        let copy = opened.await.map_err(|_| NotFollowed::Thread)??;
        let mark = copy.mark.unwrap_or_else(|| FollowMark::new(claim.key.clone(), log));
        let key =
            VerifierKey::parse(&mark.key).map_err(|error| NotFollowed::Claim(error.to_string()))?;
        if *key.name() != checkpoint::origin(fleet, name) {
            return Err(NotFollowed::Claim(format!("its claim has the key of {}", key.name())));
        }
        let place = match (FleetId::parse(fleet), NodeName::parse(name)) {
            (Some(fleet), Some(node)) => {
                JoinedStore::of(fleet, &node, &mark.key).with_log(&mark.log)
            }
            _ => {
                return Err(NotFollowed::Claim(format!(
                    "'{name}' is not a valid node name in {fleet}"
                )));
            }
        };
        let from_day = match settings.retention.days {
            0 => 0,
            days => day_of(wall_ms()).saturating_sub(i32::try_from(days).unwrap_or(i32::MAX)),
        };
        let every = every.as_millis() as u64;
        let follower = ChainFollower::new(mark, log, segments_folder(name), from_day.max(0), every);
        let reader = copy.replica.reader();
        let node = Arc::new(FollowedNode::new(name.into(), claim.log, reader, copy.rebuilt));
        index.insert(Arc::clone(&node));
        let chain = Self {
            node,
            follower,
            key: Arc::new(key),
            replica: Arc::new(Mutex::new(copy.replica)),
            dir: copy.dir,
            place,
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

    /// Checks that the store contains the fleet object, and that the node's claim is unchanged. A different claim is
    /// a fault once settled.
    async fn check_claim(&mut self, context: &FollowContext) -> Result<(), NotFollowed> {
        let looked = self.place.look(&context.bucket).await?;
        let wrong = match looked {
            Ok(()) => None,
            Err(lost) if lost.is_of_store() => {
                return Err(NotFollowed::Displaced(lost.to_string()));
            }
            Err(StoreMismatch::NoClaim) => Some("missing"),
            Err(_) => Some("key or log changed since the node was first followed"),
        };
        let key = claim_key(self.node.name());
        if let Some(mark) = self.follower.claim_seen(&key, wrong, context.now()) {
            self.write_mark(&mark).await?;
            self.follower.noted(mark);
        }
        Ok(())
    }

    /// Fails unless the store contains the fleet object and the node's claim. Without this confirmation no fault is
    /// accepted.
    async fn confirm(&mut self, context: &FollowContext) -> Result<(), NotFollowed> {
        match self.place.look(&context.bucket).await? {
            Ok(()) => Ok(()),
            Err(lost) => {
                self.follower.displaced(context.now());
                let why = match lost {
                    StoreMismatch::NoFleet | StoreMismatch::OtherFleet => lost.to_string(),
                    StoreMismatch::NoClaim => format!("{} is missing", claim_key(self.node.name())),
                    StoreMismatch::OtherClaim => {
                        format!("{} was replaced", claim_key(self.node.name()))
                    }
                };
                Err(NotFollowed::Displaced(why))
            }
        }
    }

    /// Runs a bounded turn; returns the time of the next one. Fails if the copy must be reopened because it
    /// is damaged, or because a write failed (after which the store rejects writes) and the disk is writable
    /// again. Until then the copy remains readable.
    pub(crate) async fn turn(&mut self, context: &FollowContext) -> Result<Instant, NotFollowed> {
        let until = match self.steps(context).await {
            Ok(until) => {
                self.publish(self.claim_error.clone());
                until
            }
            Err(error) => {
                let node = self.node.name();
                peer_line!(warn, LinePeer::Node(self.node.name()), node, %error, "cannot follow a node's segments now");
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
        let looked = tokio::task::spawn_blocking(move || could_be_written(&dir));
        looked.await.unwrap_or(false)
    }

    /// Marks the copy as damaged; it is rebuilt when the node is followed again.
    pub(crate) fn give_up(self, context: &FollowContext) {
        mark_damaged(&self.dir);
        self.close(context);
    }

    /// Closes the copy; it is reopened when the node is followed again.
    pub(crate) fn close(self, context: &FollowContext) {
        context.index.remove(self.node.name());
    }

    /// Runs steps within the bounds of a turn; returns the time until which there is nothing to do.
    async fn steps(&mut self, context: &FollowContext) -> Result<u64, NotFollowed> {
        let now = || context.now();
        if Instant::now() >= self.claim_at {
            let checked = self.check_claim(context).await;
            if let Err(error) = &checked {
                peer_line!(warn, LinePeer::Node(self.node.name()), node = self.node.name(), %error, "cannot read a node's claim now");
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
                    self.pass(context, *mark).await?;
                }
                FollowStep::Confirm => {
                    self.confirm(context).await?;
                    self.follower.confirmed();
                }
                FollowStep::Heal { first, last } => {
                    let found = self.heal(context, (first, last)).await?;
                    self.follower.sought(found, now());
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
            // The last count minus the objects listed since then, but at least the number of objects seen now.
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

    /// Fetches and applies segments. They are opened in order, so that the first of each chain gets one of
    /// the shared permits.
    async fn take(&mut self, context: &FollowContext) -> Result<(), NotFollowed> {
        let now = || context.now();
        let keys: Vec<String> =
            self.follower.next_keys().take(TURN_SEGMENTS).map(str::to_owned).collect();
        let fetched = stream::iter(keys)
            .map(|key| async { (fetch(&context.bucket, &key).await, key) })
            .buffered(AT_A_TIME);
        let permitted = fetched.then(|(fetched, key)| {
            let permit = Arc::clone(&context.opened).acquire_owned();
            // The semaphore is never closed.
            async { (permit.await.ok(), fetched, key) }
        });
        let verifier = Arc::clone(&self.key);
        let opened = permitted.map(move |(permit, fetched, key)| {
            let verifier = Arc::clone(&verifier);
            async move { (open_segment(fetched, verifier).await, key, permit) }
        });
        let mut fetched = std::pin::pin!(opened.buffered(AT_A_TIME));
        while let Some((fetched, key, _permit)) = fetched.next().await {
            if self.follower.step(now()) != FollowStep::Fetch(key) {
                break;
            }
            let fetched = fetched?;
            match self.follower.judge(fetched.as_ref().map(|it| &it.0), now()) {
                SegmentJudgment::Take(mark) => {
                    if self.follower.needs_place(&mark) {
                        self.confirm(context).await?;
                    }
                    let Ok((facts, rows)) = fetched else { break };
                    let (replica, bytes) = (Arc::clone(&self.replica), mark.encode());
                    let write = move || {
                        replica.lock().apply(stretch(&facts), canonical(&rows), bytes.into())
                    };
                    tokio::task::spawn_blocking(write).await.map_err(|_| NotFollowed::Thread)??;
                    self.report(&mark);
                    self.follower.committed(*mark);
                    self.publish(None);
                    context.index.mark_changed();
                }
                SegmentJudgment::Pass(mark) => self.pass(context, *mark).await?,
                SegmentJudgment::Again => break,
            }
        }
        Ok(())
    }

    /// Records the fault of the first listed object, which is skipped.
    async fn pass(&mut self, context: &FollowContext, mark: FollowMark) -> Result<(), NotFollowed> {
        if self.follower.needs_place(&mark) {
            self.confirm(context).await?;
        }
        self.write_mark(&mark).await?;
        self.report(&mark);
        self.follower.committed(mark);
        Ok(())
    }

    /// Fills a gap with segments that reappeared; returns whether there were any.
    async fn heal(
        &mut self,
        context: &FollowContext,
        (first, last): (u64, u64),
    ) -> Result<bool, NotFollowed> {
        let replica = Arc::clone(&self.replica);
        let beside = move || replica.lock().beside_gap(first, last);
        let beside =
            tokio::task::spawn_blocking(beside).await.map_err(|_| NotFollowed::Thread)??;
        // Records removed by retention are not fetched.
        let Some((before, behind)) = beside else { return Ok(false) };
        let names = gap_names(&context.bucket, self.node.name(), (first, last), (before, behind));
        let mut found = false;
        for name in names.await? {
            let key = format!("{}/{name}", segments_folder(self.node.name()));
            let fetched = fetch(&context.bucket, &key).await;
            let Ok(_permit) = Arc::clone(&context.opened).acquire_owned().await else {
                return Err(NotFollowed::Thread);
            };
            let Ok((facts, rows)) = open_segment(fetched, Arc::clone(&self.key)).await? else {
                continue;
            };
            let Some(mark) = self.follower.heals(&name, &facts) else { continue };
            let (replica, bytes) = (Arc::clone(&self.replica), mark.encode());
            let (first, last) = (facts.checkpoint.first, facts.checkpoint.last);
            let write =
                move || replica.lock().fill(stretch(&facts), canonical(&rows), bytes.into());
            match tokio::task::spawn_blocking(write).await.map_err(|_| NotFollowed::Thread)? {
                Ok(()) => {}
                // The segment does not belong in this gap.
                Err(ReplicaError::Chain(_)) => continue,
                Err(error) => return Err(error.into()),
            }
            let node = self.node.name();
            peer_line!(
                info,
                LinePeer::Node(node),
                node,
                first,
                last,
                "recovered records that were missing in this index"
            );
            self.follower.healed(*mark);
            self.publish(None);
            context.index.mark_changed();
            found = true;
        }
        Ok(found)
    }

    /// Logs new faults and gaps.
    fn report(&self, mark: &FollowMark) {
        let (node, known) = (self.node.name(), self.follower.mark());
        for found in mark.faults.iter().skip(known.faults.len()) {
            let (fault, why, at) = (found.fault, &found.why, &found.at);
            peer_line!(
                error,
                LinePeer::Node(self.node.name()),
                node,
                ?fault,
                at,
                why,
                "invalid segment in the fleet's store"
            );
        }
        for gap in mark.gaps.iter().skip(known.gaps.len()) {
            let (first, last, cause) = (gap.first, gap.last, gap.cause);
            peer_line!(
                warn,
                LinePeer::Node(self.node.name()),
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

    /// Applies retention periodically.
    async fn prune(&mut self, context: &FollowContext) -> Result<(), NotFollowed> {
        let segments = self.follower.mark().segments;
        let is_due = self.pruned.elapsed() >= PRUNE_EVERY
            || segments - self.pruned_at_segment.min(segments) >= PRUNE_SEGMENTS;
        if !is_due {
            return Ok(());
        }
        (self.pruned, self.pruned_at_segment) = (Instant::now(), segments);
        let (replica, retention) = (Arc::clone(&self.replica), context.settings.retention);
        let prune = move || replica.lock().prune(&retention, wall_ms());
        tokio::task::spawn_blocking(prune).await.map_err(|_| NotFollowed::Thread)??;
        Ok(())
    }

    /// Publishes the progress.
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

/// Segment names in the store that lie in a gap, at most [`MAX_HEALED`]. `stored` are the times of the adjacent records
/// in milliseconds since 1970, which limit the days to list.
async fn gap_names(
    bucket: &Bucket,
    node: &str,
    (first, last): (u64, u64),
    (before, behind): (Option<u64>, u64),
) -> Result<Vec<SegmentName>, NotFollowed> {
    let folder = segments_folder(node);
    // A segment of the previous day may begin with the record before the gap.
    let from = before.map_or_else(String::new, |at| day_folder(day_of(at)));
    let until = day_folder(day_of(behind));
    let mut days = bucket.folders(&folder).await?;
    days.retain(|day| day.starts_with(DAYS) && *day >= from && *day <= until);
    days.sort();
    let mut names = Vec::new();
    for day in days {
        let below = format!("{folder}/{day}");
        let after = format!("{below}/{first:020}-");
        let each = bucket.walk(&below, Some(&after), |object| {
            match SegmentName::of_key(&folder, &object.key) {
                Some(name) if name.first >= first && name.last <= last => names.push(name),
                // A local folder is not listed in order.
                Some(_) | None => {}
            }
            if names.len() < MAX_HEALED {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        each.await?;
    }
    names.sort();
    Ok(names)
}

/// Result of processing a segment. An outer error is not a fault of the segment.
type OfSegment<T> = Result<Result<T, SegmentRejection>, NotFollowed>;

async fn fetch(bucket: &Bucket, key: &str) -> OfSegment<Bytes> {
    match bucket.get(key).await {
        Ok(bytes) => Ok(Ok(bytes)),
        Err(error @ BucketError::TooLong(_)) => {
            Ok(Err(SegmentRejection { fault: ChainFault::Altered, why: error.to_string() }))
        }
        Err(error @ BucketError::Missing(_)) => {
            Ok(Err(SegmentRejection { fault: ChainFault::Removed, why: error.to_string() }))
        }
        Err(error) => Err(error.into()),
    }
}

async fn open_segment(
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

/// Log range that a segment contains.
fn stretch(facts: &SegmentFacts) -> LogStretch {
    let checkpoint = &facts.checkpoint;
    LogStretch { first: checkpoint.first, after: checkpoint.after, head: checkpoint.head }
}

/// Head and body of each record. Splitting cannot fail, because it succeeded when the segment was opened.
fn canonical(rows: &RecordRows) -> impl Iterator<Item = (&[u8], &[u8])> {
    rows.iter().map(|row| codec::split_canonical(row.canonical).unwrap_or_default())
}

/// Number of segments open at a time, of all nodes.
const OPENED: usize = 3;
/// Range of the listing interval. Within this range, it equals the nodes' sealing interval.
const EVERY: std::ops::RangeInclusive<Duration> = Duration::from_millis(250)..=LONGEST_WAIT;
/// Maximum interval between two polls of a node's chain.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// Interval for listing nodes and checking claims, in listing intervals.
const LOOK_EVERY: u32 = 2;
/// Maximum backoff for a node with an invalid claim: with the maximum number of names, 55 attempts per second.
const LONGEST_REST: Duration = Duration::from_secs(300);
/// Maximum number of doublings of the backoff.
const MAX_DOUBLINGS: u32 = 16;

/// Settings of the follower.
#[derive(Clone, Debug)]
pub struct FollowSettings {
    /// Index role of this node.
    pub role: IndexRole,
    /// Name of this node, whose own log is not followed.
    pub own: NodeName,
    pub folder: PathBuf,
    /// Sealing interval of the nodes.
    pub flush: Duration,
    /// Retention of the copies.
    pub retention: Retention,
}

/// Settings and state shared by all chains.
pub(crate) struct FollowContext {
    pub(crate) settings: FollowSettings,
    pub(crate) bucket: Bucket,
    pub(crate) index: Arc<FleetIndex>,
    /// Listing interval.
    pub(crate) every: Duration,
    base: Instant,
    pub(crate) opened: Arc<Semaphore>,
}

impl FollowContext {
    pub(crate) fn new(settings: FollowSettings, bucket: Bucket, index: Arc<FleetIndex>) -> Self {
        let every = settings.flush.clamp(*EVERY.start(), *EVERY.end());
        let opened = Arc::new(Semaphore::new(OPENED));
        Self { settings, bucket, index, every, base: Instant::now(), opened }
    }

    /// Milliseconds since the follower started.
    pub(crate) fn now(&self) -> u64 {
        self.base.elapsed().as_millis() as u64
    }

    pub(crate) fn look_every(&self) -> Duration {
        self.every * LOOK_EVERY
    }

    /// Backoff after this many failures because of the claim.
    pub(crate) fn rest_after(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(MAX_DOUBLINGS);
        self.look_every().saturating_mul(1 << doublings).min(LONGEST_REST)
    }
}

/// Reason why a node cannot be followed now.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotFollowed {
    #[error("{0}")]
    Store(#[from] BucketError),
    #[error("{0}")]
    Copy(#[from] ReplicaError),
    #[error("{0}")]
    Local(#[from] StoreError),
    #[error("{0}")]
    Folder(#[from] std::io::Error),
    #[error("{0}")]
    Claim(String),
    #[error(
        "the store is not the one that was followed ({0}): mount it, or restore its contents; until then no records count as \
         missing"
    )]
    Displaced(String),
    #[error(
        "{store} contains fleet {fleet}, but fleet {known} was followed before: nothing is copied"
    )]
    OtherFleet { store: String, fleet: String, known: String },
    #[error("a worker thread panicked")]
    Thread,
}

impl NotFollowed {
    /// True if the error concerns the copy, not the store.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self, Self::Copy(_) | Self::Local(_) | Self::Folder(_) | Self::Thread)
    }

    /// True if the error concerns the node's folder in the store: it persists until the folder is changed.
    pub(crate) fn is_of_claim(&self) -> bool {
        matches!(self, Self::Claim(_))
    }

    /// True if the copy is damaged.
    pub(crate) fn is_damage(&self) -> bool {
        matches!(
            self,
            Self::Local(StoreError::Damaged { .. })
                | Self::Copy(ReplicaError::Store(StoreError::Damaged { .. }))
        )
    }
}

/// File that marks a copy as damaged.
const DAMAGED: &str = "damaged";

/// File for testing whether the disk is writable, and its size.
const TRIED: &str = "tried";
const TRIED_BYTES: usize = 1 << 20;

/// Open copy.
pub(crate) struct IndexCopy {
    pub(crate) dir: PathBuf,
    pub(crate) replica: Replica,
    /// Progress of following; `None` for a new copy.
    pub(crate) mark: Option<FollowMark>,
    /// True if a damaged copy was replaced.
    pub(crate) rebuilt: bool,
}

/// Marks the copy as damaged.
pub(crate) fn mark_damaged(dir: &Path) {
    let _ = std::fs::write(dir.join(DAMAGED), b"");
}

/// Tests whether the copy's disk is writable.
pub(crate) fn could_be_written(dir: &Path) -> bool {
    let path = dir.join(TRIED);
    let write = || {
        let mut file = private::create(&path)?;
        file.write_all(&vec![1; TRIED_BYTES])?;
        file.sync_all()
    };
    let written = write();
    let removed = std::fs::remove_file(&path);
    written.and(removed).is_ok()
}

/// Opens the copy of a node's log, or creates it; a damaged copy is replaced.
pub(crate) fn open_copy(
    folder: &Path,
    name: &Arc<str>,
    log: NodeId,
) -> Result<IndexCopy, NotFollowed> {
    let number = |path: &Path| -> Option<u64> {
        let (node, number) = path.file_name()?.to_str()?.rsplit_once('~')?;
        (node == &**name).then(|| number.parse().ok())?
    };
    let entries = std::fs::read_dir(folder)?.filter_map(Result::ok).map(|entry| entry.path());
    let mut copies: Vec<_> = entries.filter_map(|path| Some((number(&path)?, path))).collect();
    copies.sort();
    let newest = copies.pop();
    let old = copies.into_iter().map(|(_, path)| path);
    old.for_each(|path| drop(std::fs::remove_dir_all(path)));
    let mut rebuilt = false;
    let mut next = 1;
    if let Some((number, dir)) = newest {
        next = number + 1;
        let opened = match dir.join(DAMAGED).try_exists()? {
            true => Err("found damaged when read".to_owned()),
            false => match open_at(&dir, log, name) {
                Err(error) if !error.is_damage() => return Err(error),
                opened => opened.map_err(|error| error.to_string()),
            },
        };
        match opened {
            Ok((replica, mark)) => return Ok(IndexCopy { dir, replica, mark, rebuilt }),
            Err(why) => {
                peer_line!(
                    error,
                    LinePeer::Node(name),
                    node = &**name,
                    why,
                    "rebuilding a node's index from the store"
                );
                rebuilt = true;
                // Readers keep their open files.
                let _ = std::fs::remove_dir_all(&dir);
            }
        }
    }
    let dir = folder.join(format!("{name}~{next}"));
    let (replica, mark) = open_at(&dir, log, name)?;
    Ok(IndexCopy { dir, replica, mark, rebuilt })
}

fn open_at(
    dir: &Path,
    log: NodeId,
    name: &Arc<str>,
) -> Result<(Replica, Option<FollowMark>), NotFollowed> {
    let damaged = |why: &str| {
        NotFollowed::Local(StoreError::Damaged { file: dir.to_owned(), why: why.into() })
    };
    let (replica, bytes) = Replica::open(dir, log, Arc::clone(name))?;
    let mark = match bytes {
        None => None,
        Some(bytes) => {
            Some(FollowMark::decode(&bytes).ok_or_else(|| damaged("its progress is missing"))?)
        }
    };
    if mark.as_ref().map_or(0, |mark| mark.last) != replica.last() {
        return Err(damaged("its end does not match its progress"));
    }
    Ok((replica, mark))
}
