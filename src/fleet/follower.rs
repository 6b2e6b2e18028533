//! The segments of other nodes, followed from the store into copies of their logs, until the node ends. Decides nothing
//! (`following`); lists, fetches, opens beside the runtime, and writes.
//!
//! ```text
//! data_dir/fleet/index/fleet      the fleet that is followed
//! data_dir/fleet/index/NODE~1     the copy of a node's log (`activity::replica`); a damaged one makes room for NODE~2
//! ```
//!
//! Bounds: [`MAX_FOLLOWED`] nodes; for each a database of some 10 MB in memory, and on disk what `activity.retention_days` and
//! its siblings allow a log. Three segments (`AT_A_TIME`) are in memory, each of at most 64 MiB packed and 512 MiB unpacked (as this
//! program seals, below 32 MiB); sixteen (`TURN_SEGMENTS`) are taken of a node before the next node has its turn.
//!
//! Size: one driver, whose parts share what a node's chain, its copy and its place among the others are.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::bucket::{Bucket, BucketError};
use super::chain_check::{ChainFault, NotBelieved, SegmentFacts};
use super::checkpoint;
use super::config::{IndexRole, NodeName};
use super::fleet_index::{FleetIndex, FollowStatus, FollowedNode, MAX_FOLLOWED};
use super::following::{
    ChainFollower, FollowMark, FollowStep, MAX_AHEAD, SeenObject, SeenPart, SegmentJudgement,
};
use super::joining::{CLAIM, FLEET, FleetObject, NODES, NodeClaim, node_folder, segments_folder};
use super::record_rows::RecordRows;
use super::segment::{SegmentName, day_of};
use super::signed_note::VerifierKey;
use crate::activity::codec;
use crate::activity::record::NodeId;
use crate::activity::replica::{LogStretch, Replica, ReplicaError};
use crate::activity::{Retention, StoreError};
use crate::os::private;

/// Segments of a node that are fetched and opened at a time.
const AT_A_TIME: usize = 3;
/// Segments that are taken of a node before the next node has its turn.
const TURN_SEGMENTS: usize = 16;
/// How often the store is asked for segments: as often as a node seals, within these.
const EVERY: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(250)..=Duration::from_secs(10);
/// How many times as long it is waited as a listing took: a folder of many files is listed slowly.
const LISTING_SHARE: u32 = 10;
/// How often it is looked for nodes, in the time of one listing.
const DISCOVER_EVERY: u32 = 2;
/// How often it is looked for records that are no longer to be kept.
const PRUNE_EVERY: Duration = Duration::from_secs(60);
/// And after so many segments, while a backlog is taken.
const PRUNE_SEGMENTS: u64 = 256;
/// The file that names the fleet.
const PIN: &str = "fleet";
/// The file in a copy's folder that says that it is of no use.
const DAMAGED: &str = "damaged";

/// What is followed, and into where.
#[derive(Clone, Debug)]
pub struct FollowSettings {
    /// What of the fleet this node keeps.
    pub role: IndexRole,
    /// This node's own name: its own log is not followed.
    pub own: NodeName,
    /// `data_dir/fleet/index`
    pub folder: PathBuf,
    /// How often nodes seal.
    pub flush: Duration,
    /// How long records are kept.
    pub retention: Retention,
}

/// What follows.
#[derive(Debug)]
pub struct FleetFollower {
    task: JoinHandle<()>,
    ends: watch::Sender<bool>,
}

impl FleetFollower {
    /// Starts to follow what lies in `bucket`, into `index`.
    #[must_use]
    pub fn start(
        settings: FollowSettings,
        bucket: Bucket,
        index: Arc<FleetIndex>,
        runtime: &Handle,
    ) -> Self {
        let (ends, ending) = watch::channel(false);
        let task = runtime.spawn(run(settings, bucket, index, ending));
        Self { task, ends }
    }

    /// Ends with what is being written.
    pub async fn end(self) {
        self.ends.send_replace(true);
        let _ = self.task.await;
    }
}

async fn run(
    settings: FollowSettings,
    bucket: Bucket,
    index: Arc<FleetIndex>,
    mut ending: watch::Receiver<bool>,
) {
    let every = settings.flush.clamp(*EVERY.start(), *EVERY.end());
    let mut driver = Driver {
        settings,
        bucket,
        index,
        every,
        base: Instant::now(),
        chains: BTreeMap::new(),
        discover_at: Instant::now(),
    };
    while !*ending.borrow() {
        let until = driver.round(&ending).await;
        tokio::select! {
            () = tokio::time::sleep_until(until.into()) => {}
            _ = ending.wait_for(|ends| *ends) => {}
        }
    }
}

/// Who follows all of them.
struct Driver {
    settings: FollowSettings,
    bucket: Bucket,
    index: Arc<FleetIndex>,
    every: Duration,
    base: Instant,
    chains: BTreeMap<Arc<str>, FollowedChain>,
    discover_at: Instant,
}

/// One of them.
struct FollowedChain {
    node: Arc<FollowedNode>,
    follower: ChainFollower,
    key: Arc<VerifierKey>,
    /// Used by one thread at a time, beside the runtime.
    replica: Arc<Mutex<Replica>>,
    dir: PathBuf,
    pruned: Instant,
    pruned_at_segment: u64,
}

/// Why a node is not followed now.
#[derive(Debug, thiserror::Error)]
enum NotFollowed {
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
    #[error("the thread ended")]
    Thread,
}

impl NotFollowed {
    /// Whether the copy is of no use.
    fn is_damage(&self) -> bool {
        matches!(
            self,
            Self::Local(StoreError::Damaged { .. })
                | Self::Copy(ReplicaError::Store(StoreError::Damaged { .. }))
        )
    }
}

impl Driver {
    fn now(&self) -> u64 {
        self.base.elapsed().as_millis() as u64
    }

    /// Lets each node have its turn; when the next round begins.
    async fn round(&mut self, ending: &watch::Receiver<bool>) -> Instant {
        if Instant::now() >= self.discover_at {
            let found = self.discover().await;
            if let Err(error) = &found {
                tracing::warn!(%error, "the fleet's nodes cannot be looked for");
            }
            self.index.set_error(found.err().map(|error| error.to_string()));
            self.discover_at = Instant::now() + self.every * DISCOVER_EVERY;
        }
        let mut next = self.discover_at;
        let names: Vec<_> = self.chains.keys().cloned().collect();
        for name in names {
            if *ending.borrow() {
                break;
            }
            let (now, base) = (self.now(), self.base);
            let Some(chain) = self.chains.get_mut(&name) else { continue };
            match chain.turn(&self.bucket, &self.settings, (&self.index, base)).await {
                Ok(until) => {
                    chain.publish(None);
                    let waits = Duration::from_millis(until.saturating_sub(now));
                    next = next.min(Instant::now() + waits.min(*EVERY.end()));
                }
                Err(error) => {
                    tracing::warn!(node = &*name, %error, "a node's segments cannot be followed now");
                    chain.publish(Some(error.to_string()));
                    chain.follower.failed(base.elapsed().as_millis() as u64);
                    if error.is_damage() {
                        self.give_up(&name);
                    }
                }
            }
            if self.index.take_damaged(&name) {
                self.give_up(&name);
            }
        }
        next
    }

    /// The copy of a node is damaged: it is made anew.
    fn give_up(&mut self, name: &str) {
        if let Some(chain) = self.chains.remove(name) {
            let _ = std::fs::write(chain.dir.join(DAMAGED), b"");
            self.index.remove(name);
            self.discover_at = Instant::now();
        }
    }

    /// Looks for nodes that are not followed yet.
    async fn discover(&mut self) -> Result<(), NotFollowed> {
        let fleet = self.bucket.get(FLEET).await?;
        let fleet = FleetObject::fleet(&fleet)
            .ok_or_else(|| NotFollowed::Claim(format!("{FLEET} is not what a fleet writes")))?
            .to_string();
        private::folder(&self.settings.folder)?;
        let pin = self.settings.folder.join(PIN);
        match std::fs::read_to_string(&pin) {
            Ok(known) if known.trim() == fleet => {}
            Ok(known) => {
                self.chains.clear();
                return Err(NotFollowed::Claim(format!(
                    "{} is of fleet {fleet}, and fleet {} was followed from there: nothing of it is taken",
                    self.bucket.shown(),
                    known.trim()
                )));
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                std::io::Write::write_all(&mut private::create(&pin)?, fleet.as_bytes())?;
            }
            Err(error) => return Err(error.into()),
        }
        let names = self.bucket.folders(NODES).await?;
        let mut left = Vec::new();
        for name in names {
            let is_other = name != self.settings.own.as_str() && self.settings.role.holds(&name);
            if !is_other || NodeName::parse(&name).is_none() {
                continue;
            }
            if let Some(chain) = self.chains.get_mut(&*name) {
                chain.check_claim(&self.bucket).await?;
                continue;
            }
            if self.chains.len() >= MAX_FOLLOWED {
                left.push(name);
                continue;
            }
            match self.begin(&fleet, &name).await {
                Ok(chain) => {
                    self.index.insert(Arc::clone(&chain.node));
                    chain.publish(None);
                    self.chains.insert(name.into(), chain);
                }
                Err(error) => {
                    tracing::warn!(node = name, %error, "a node cannot be followed");
                    self.index.cannot(&name, error.to_string());
                }
            }
        }
        self.index.set_left(left);
        Ok(())
    }

    /// Begins to follow a node, or goes on.
    async fn begin(&self, fleet: &str, name: &str) -> Result<FollowedChain, NotFollowed> {
        let claim = self.bucket.get(&format!("{}/{CLAIM}", node_folder(name))).await?;
        let claim = NodeClaim::read(&claim).map_err(NotFollowed::Claim)?;
        let log = u128::from_str_radix(&claim.log, 16).ok().filter(|_| claim.log.len() == 32);
        let log = NodeId(
            log.ok_or_else(|| NotFollowed::Claim("its claim names no log".into()))?.to_be_bytes(),
        );
        let (folder, shared) = (self.settings.folder.clone(), Arc::<str>::from(name));
        let opened = tokio::task::spawn_blocking(move || open_copy(&folder, &shared, log));
        let (dir, replica, mark, made_anew) = opened.await.map_err(|_| NotFollowed::Thread)??;
        let mark = mark.unwrap_or_else(|| FollowMark::new(claim.key.clone(), log));
        let key =
            VerifierKey::parse(&mark.key).map_err(|error| NotFollowed::Claim(error.to_string()))?;
        if *key.name() != checkpoint::origin(fleet, name) {
            return Err(NotFollowed::Claim(format!("its claim has the key of {}", key.name())));
        }
        let from_day = match self.settings.retention.days {
            0 => 0,
            days => day_of(unix_millis()).saturating_sub(i32::try_from(days).unwrap_or(i32::MAX)),
        };
        let every = self.every.as_millis() as u64;
        let follower = ChainFollower::new(mark, log, segments_folder(name), from_day.max(0), every);
        let node = Arc::new(FollowedNode::new(name.into(), claim.log, replica.reader(), made_anew));
        Ok(FollowedChain {
            node,
            follower,
            key: Arc::new(key),
            replica: Arc::new(Mutex::new(replica)),
            dir,
            pruned: Instant::now(),
            pruned_at_segment: 0,
        })
    }
}

impl FollowedChain {
    /// Whether the node is still the one it was.
    async fn check_claim(&mut self, bucket: &Bucket) -> Result<(), NotFollowed> {
        let key = format!("{}/{CLAIM}", node_folder(self.node.name()));
        let claim = match bucket.find(&key).await? {
            Some(bytes) => NodeClaim::read(&bytes),
            None => Err("it is not there".into()),
        };
        let mark = self.follower.mark();
        let why = match claim {
            Ok(claim) if claim.key == mark.key && claim.log == mark.log => return Ok(()),
            Ok(_) => "it has another key or log than when the node was first followed".into(),
            Err(why) => why,
        };
        if let Some(mark) = self.follower.told(ChainFault::Key, &key, why) {
            self.write_mark(&mark).await?;
            self.follower.noted(mark);
        }
        Ok(())
    }

    /// Does what is next, within the bounds of a turn; until when there is nothing to do.
    async fn turn(
        &mut self,
        bucket: &Bucket,
        settings: &FollowSettings,
        (index, base): (&FleetIndex, Instant),
    ) -> Result<u64, NotFollowed> {
        let now = || base.elapsed().as_millis() as u64;
        self.prune(settings).await?;
        loop {
            match self.follower.step(now()) {
                FollowStep::Wait(until) => return Ok(until),
                FollowStep::List => {
                    let begun = Instant::now();
                    let part = self.list(bucket).await?;
                    let rests = begun.elapsed() * LISTING_SHARE;
                    self.follower.listed(part, now() + rests.as_millis() as u64);
                }
                FollowStep::Pass(mark) => {
                    self.write_mark(&mark).await?;
                    self.tell(&mark);
                    self.follower.committed(*mark);
                }
                FollowStep::Fetch(_) => {
                    self.take(bucket, index, now).await?;
                    return Ok(now());
                }
            }
        }
    }

    async fn list(&self, bucket: &Bucket) -> Result<SeenPart, NotFollowed> {
        let folder = segments_folder(self.node.name());
        let part = bucket.list_part(&folder, &self.follower.after(), MAX_AHEAD).await?;
        let name = |key: &str| SegmentName::parse(key.strip_prefix(&folder)?.strip_prefix('/')?);
        let newest = part.last.as_deref().and_then(name).map_or(0, |name| name.last);
        let objects = part.objects.into_iter().map(|object| SeenObject {
            name: name(&object.key),
            key: object.key,
            size: object.size,
        });
        Ok(SeenPart { objects: objects.collect(), more: part.more, newest })
    }

    /// Fetches and takes the segments of a turn.
    async fn take(
        &mut self,
        bucket: &Bucket,
        index: &FleetIndex,
        now: impl Fn() -> u64,
    ) -> Result<(), NotFollowed> {
        let keys: Vec<String> =
            self.follower.next_keys().take(TURN_SEGMENTS).map(str::to_owned).collect();
        let fetched = stream::iter(keys).map(|key| {
            let verifier = Arc::clone(&self.key);
            async move { (fetch(bucket, &key, verifier).await, key) }
        });
        let mut fetched = std::pin::pin!(fetched.buffered(AT_A_TIME));
        while let Some((fetched, key)) = fetched.next().await {
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
                    index.has_changed();
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
    async fn prune(&mut self, settings: &FollowSettings) -> Result<(), NotFollowed> {
        let segments = self.follower.mark().segments;
        let is_due = self.pruned.elapsed() >= PRUNE_EVERY
            || segments - self.pruned_at_segment.min(segments) >= PRUNE_SEGMENTS;
        if !is_due {
            return Ok(());
        }
        (self.pruned, self.pruned_at_segment) = (Instant::now(), segments);
        let (replica, retention) = (Arc::clone(&self.replica), settings.retention);
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

/// A segment that was fetched and opened; errors are those that say nothing of it.
async fn fetch(
    bucket: &Bucket,
    key: &str,
    verifier: Arc<VerifierKey>,
) -> Result<Result<(SegmentFacts, RecordRows), NotBelieved>, NotFollowed> {
    let bytes = match bucket.get(key).await {
        Ok(bytes) => bytes,
        Err(error @ BucketError::TooLong(_)) => {
            return Ok(Err(NotBelieved { fault: ChainFault::Altered, why: error.to_string() }));
        }
        Err(error @ BucketError::Missing(_)) => {
            return Ok(Err(NotBelieved { fault: ChainFault::Removed, why: error.to_string() }));
        }
        Err(error) => return Err(error.into()),
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

type OpenedCopy = (PathBuf, Replica, Option<FollowMark>, bool);

/// Opens the copy of a node's log, or makes it, anew where it is damaged.
fn open_copy(folder: &Path, name: &Arc<str>, log: NodeId) -> Result<OpenedCopy, NotFollowed> {
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
    let mut anew = false;
    let mut next = 1;
    if let Some((number, dir)) = newest {
        next = number + 1;
        let opened = match dir.join(DAMAGED).try_exists()? {
            true => Err("it was damaged when it was read".to_owned()),
            false => match open_at(&dir, log, name) {
                Err(error) if !error.is_damage() => return Err(error),
                opened => opened.map_err(|error| error.to_string()),
            },
        };
        match opened {
            Ok((replica, mark)) => return Ok((dir, replica, mark, anew)),
            Err(why) => {
                tracing::error!(
                    node = &**name,
                    why,
                    "the index of a node is made anew from the store"
                );
                anew = true;
                // Who reads it still has its files.
                let _ = std::fs::remove_dir_all(&dir);
            }
        }
    }
    let dir = folder.join(format!("{name}~{next}"));
    let (replica, mark) = open_at(&dir, log, name)?;
    Ok((dir, replica, mark, anew))
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
        Some(bytes) => Some(
            FollowMark::decode(&bytes).ok_or_else(|| damaged("how far it has come is not said"))?,
        ),
    };
    if mark.as_ref().map_or(0, |mark| mark.last) != replica.last() {
        return Err(damaged("it ends elsewhere than it says"));
    }
    Ok((replica, mark))
}

fn unix_millis() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}
