//! The ledger at work: what the log has committed is sealed and put into the store, until the node ends. Decides nothing
//! (`sealing`), makes nothing (`segment`), and asks the store nothing but what [`Bucket`] can be asked.

mod backlog;

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::watch;

use self::backlog::{Backlog, LOOK_EVERY, REPLY_MS};
use super::bucket::{Bucket, BucketError, Creation};
use super::checkpoint::{Checkpoint, CheckpointHash};
use super::cluster_key::KeyPurpose;
use super::config::{CATCH_UP, ClusterConfig, NodeName};
use super::facts::{FactExchangeSettings, FactKeys};
use super::fleet_node::{FleetNode, ProgramBuild};
use super::heartbeats::{Heartbeats, VitalsOf};
use super::joining::{self, Applicant, FleetMember, JoinError, segments_folder};
use super::node_key::NodeKey;
use super::own_place::{OwnPlace, PlaceWatch};
use super::peer_wire::PeerSender;
use super::peers::Peers;
use super::putting::{PutAnswer, PutAsk, PutNext, Putting};
use super::record_rows::RecordCollector;
use super::sealed_mark::{SealedMark, SealedMarkFile};
use super::sealing::{ChainPosition, SealAct, SealLimits, SegmentIntake};
use super::segment::{self, SealedBy, SealedSegment};
use super::signed_note::VerifierKey;
use crate::activity::{Activity, Durability, StoreError};
use crate::io::background_task::BackgroundTask;

/// How long the end waits until all is stored.
pub const END_LIMIT: Duration = Duration::from_secs(10);
/// Most time for the store to answer before a node that has been a member starts without it.
const JOIN_LIMIT: Duration = Duration::from_secs(10);
/// How often a node that could not take its place tries again.
const JOIN_AGAIN: Duration = Duration::from_secs(10);

/// What a node's ledger is made of.
#[derive(Clone, Debug)]
pub struct LedgerSettings {
    /// `cluster`
    pub config: ClusterConfig,
    /// Where the fleet's store is.
    pub store: String,
    /// The name of this node.
    pub node: NodeName,
    /// `data_dir/fleet`
    pub folder: PathBuf,
}

impl LedgerSettings {
    /// Of this config; `None` where there is no fleet.
    #[must_use]
    pub fn of(config: &ClusterConfig, folder: PathBuf) -> Option<Self> {
        let (store, node) = config.membership()?;
        Some(Self { config: config.clone(), store: store.to_owned(), node: node.clone(), folder })
    }
}

/// A node's place in its fleet, taken or, where the store could not be reached, to be taken.
#[derive(Debug)]
pub struct EnteredFleet {
    settings: LedgerSettings,
    node: Arc<FleetNode>,
    bucket: Bucket,
    member: Option<FleetMember>,
    /// How far its chain has come in the store, as far as the node knows.
    stored: ChainPosition,
}

impl EnteredFleet {
    /// The fleet's store.
    #[must_use]
    pub fn bucket(&self) -> &Bucket {
        &self.bucket
    }

    /// What the node takes part in the fleet's facts with; `None` without `cluster.key`. Blocks.
    ///
    /// # Errors
    ///
    /// [`JoinError::Folder`]
    pub fn facts(&self) -> Result<Option<FactExchangeSettings>, JoinError> {
        let LedgerSettings { config, node, folder, .. } = &self.settings;
        let Some(keys) = &config.key else { return Ok(None) };
        let unusable = |error| JoinError::Folder { folder: folder.clone(), error };
        let fleet = match &self.member {
            Some(member) => Some(member.fleet),
            None => SealedMarkFile::open(folder).map_err(unusable)?.1.map(|mark| mark.fleet),
        };
        let Some(fleet) = fleet else { return Ok(None) };
        let key = NodeKey::open(folder).map_err(unusable)?;
        let verifier = key.verifier(&fleet.to_string(), node.as_str());
        let keys = keys.derive(KeyPurpose::Facts);
        Ok(verifier.map(|verifier| FactExchangeSettings {
            fleet,
            node: node.clone(),
            folder: folder.clone(),
            keys: FactKeys::new(keys.all().map(|key| *key.expose())),
            verifier: verifier.to_string(),
        }))
    }

    /// The node, as the rest of the program sees it.
    #[must_use]
    pub fn node(&self) -> &Arc<FleetNode> {
        &self.node
    }
}

/// Takes the node's place. From now on the log keeps what is not in the store.
///
/// # Errors
///
/// [`JoinError`]. A node that has been a member starts without the store.
pub async fn enter(
    settings: LedgerSettings,
    build: ProgramBuild,
    activity: &Activity,
) -> Result<EnteredFleet, JoinError> {
    activity.confirm(0);
    let node = FleetNode::new(settings.node.clone(), settings.config.clone(), build)
        .map_err(|error| JoinError::Refused(error.to_string()))?;
    let node = Arc::new(node);
    let url = settings.store.clone();
    let opened = tokio::task::spawn_blocking(move || Bucket::open(&url)).await;
    let bucket = match opened {
        Ok(Ok(bucket)) => bucket,
        Ok(Err(error)) => return Err(JoinError::Refused(error.to_string())),
        Err(error) => return Err(JoinError::Refused(error.to_string())),
    };
    let joined = tokio::time::timeout(JOIN_LIMIT, join(&settings, &bucket, activity)).await;
    let late = BucketError::Late(JOIN_LIMIT);
    let joined = joined.unwrap_or_else(|_| {
        Err(JoinError::Store { store: bucket.shown().to_owned(), error: late })
    });
    let (stored, member) = match joined {
        Ok(member) => (member.mark.stored, Some(member)),
        Err(error @ JoinError::Store { .. }) if joining::was_member(&settings.folder) => {
            tracing::warn!(%error, "this node starts without its fleet's store");
            node.gauges.failed(&error);
            let who = Applicant { bucket: &bucket, folder: &settings.folder, node: &settings.node };
            let stored = joining::remembered(who, activity).await?;
            activity.confirm(stored.seq);
            (stored, None)
        }
        Err(error) => return Err(error),
    };
    Ok(EnteredFleet { settings, node, bucket, member, stored })
}

async fn join(
    settings: &LedgerSettings,
    bucket: &Bucket,
    activity: &Activity,
) -> Result<FleetMember, JoinError> {
    let who = Applicant { bucket, folder: &settings.folder, node: &settings.node };
    let member = joining::join(who, activity).await?;
    let (fleet, node, stored) = (member.fleet, member.node.as_str(), member.mark.stored.seq);
    tracing::info!(%fleet, node, stored, creates = member.creates, "this node has its place in the fleet");
    activity.confirm(stored);
    Ok(member)
}

/// The ledger of a node that runs.
#[derive(Debug)]
pub struct FleetLedger(BackgroundTask);

impl FleetLedger {
    /// Starts to seal, and to say that this node lives; `vitals` tells what else is said each time.
    #[must_use]
    pub fn start(
        entered: EnteredFleet,
        activity: Activity,
        vitals: VitalsOf,
        runtime: &Handle,
    ) -> Self {
        entered.node.begins();
        let config = &entered.settings.config;
        let limits = SealLimits {
            flush_ms: config.flush.as_millis() as u64,
            bytes: config.segment_bytes,
            catch_up: CATCH_UP,
            backlog_bytes: config.backlog_bytes,
            replies_wait: activity.config().durability == Durability::Fleet,
            reply_ms: REPLY_MS,
        };
        let (node, store) = (Arc::clone(&entered.node), entered.bucket.shown().to_owned());
        let backlog = Backlog::new(limits, entered.stored, activity.clone(), node, store);
        let spawning = runtime.clone();
        Self(BackgroundTask::start(runtime, |ending| {
            run(entered, backlog, activity, vitals, spawning, ending)
        }))
    }

    /// Seals what is left, within a bound if it is `patient`, else not at all. Everything was submitted, and is durable.
    pub async fn end(self, patient: bool) {
        let limit = if patient { END_LIMIT } else { Duration::ZERO };
        if !self.0.end_within(limit).await {
            tracing::warn!("what is not yet in the fleet's store is put there at the next start");
        }
    }
}

/// Takes the node's place if it has none yet, then seals.
async fn run(
    entered: EnteredFleet,
    mut backlog: Backlog,
    activity: Activity,
    vitals: VitalsOf,
    runtime: Handle,
    mut ending: watch::Receiver<bool>,
) {
    let EnteredFleet { settings, node, bucket, mut member, .. } = entered;
    let member = loop {
        if let Some(member) = member.take() {
            break member;
        }
        let waited = tokio::time::timeout(JOIN_AGAIN, ending.wait_for(|ends| *ends));
        if backlog.during(waited).await.is_ok() {
            return;
        }
        match backlog.during(join(&settings, &bucket, &activity)).await {
            Ok(joined) => {
                backlog.placed(joined.mark.stored);
                member = Some(joined);
            }
            Err(error @ JoinError::Store { .. }) => {
                tracing::warn!(%error, "the fleet's store cannot be reached");
                node.gauges.failed(&error);
            }
            // Somebody has to look: what is recorded has no place to go.
            Err(error) => backlog.refused(error.to_string()),
        }
    };
    let planned = member.mark.planned;
    let keys = settings.config.key.as_ref();
    let peers = keys.map(|keys| {
        let own = PeerSender { node: node.name.clone(), boot: node.facts.boot };
        let nodes = (Arc::clone(&node.living), node.doubted.clone());
        let keys = keys.derive(KeyPurpose::Peer);
        Peers::new(own, member.fleet, keys, nodes, runtime)
    });
    node.joined(member.fleet, peers);
    let heartbeats = Heartbeats {
        node: Arc::clone(&node),
        bucket: bucket.clone(),
        fleet: member.fleet,
        key: member.key.clone(),
        keys: keys.map(|keys| keys.derive(KeyPurpose::Heartbeat)),
        activity: activity.clone(),
        vitals,
    };
    let place = OwnPlace::of(member.fleet, &node.name, &member.verifier.to_string());
    let watch = PlaceWatch::new(place.clone());
    let member = Arc::new(parking_lot::Mutex::new(member));
    let sealer = Sealer { activity, bucket, place, member, node, backlog, planned, in_hand: None };
    // The last heartbeat says how far all has come.
    let (stops, stopping) = watch::channel(false);
    let seals = async {
        sealer.run(ending).await;
        stops.send_replace(true);
    };
    tokio::join!(seals, heartbeats.run(watch, stopping));
}

/// What seals.
struct Sealer {
    activity: Activity,
    bucket: Bucket,
    place: OwnPlace,
    /// Used by one thread at a time: reading and writing files is done beside the runtime.
    member: Arc<parking_lot::Mutex<FleetMember>>,
    node: Arc<FleetNode>,
    backlog: Backlog,
    /// The last record of a segment that was on its way when the process before this one ended.
    planned: Option<u64>,
    in_hand: Option<SealedSegment>,
}

/// Why nothing was sealed.
#[derive(Debug, thiserror::Error)]
enum NotSealed {
    #[error(transparent)]
    Log(#[from] crate::activity::QueryError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{0}")]
    Segment(#[from] segment::SegmentError),
    #[error(
        "record {0} does not follow the one before it that is in the store: the log has gone another way"
    )]
    Fork(u64),
    #[error("what was sealed cannot be noted: {0}")]
    Mark(#[from] std::io::Error),
    #[error("the thread ended")]
    Thread,
}

impl Sealer {
    async fn run(mut self, mut ending: watch::Receiver<bool>) {
        loop {
            if self.backlog.state.is_failing() {
                self.backlog.look_closely().await;
            } else {
                self.backlog.look();
            }
            let (now, state) = (self.backlog.now(), &mut self.backlog.state);
            if *ending.borrow() {
                state.ends();
            }
            let act = state.act(now);
            let wait = match act {
                SealAct::Rest if *ending.borrow() => return,
                // It is not waited for a store that is away: what is left is put there after the next start.
                SealAct::Wait(_) if *ending.borrow() && state.is_failing() => return,
                SealAct::Rest => LOOK_EVERY,
                SealAct::Wait(until) => {
                    Duration::from_millis(until.saturating_sub(now)).min(LOOK_EVERY)
                }
                SealAct::Seal(bytes) => {
                    self.seal(bytes).await;
                    continue;
                }
                SealAct::Put => {
                    self.put().await;
                    continue;
                }
            };
            let (rests, stored) = (act == SealAct::Rest, state.stored().seq);
            tokio::select! {
                () = self.activity.durable_beyond(stored), if rests => {}
                () = tokio::time::sleep(wait) => {}
                _ = ending.wait_for(|ends| *ends), if !*ending.borrow() => {}
            }
        }
    }

    /// Makes the next segment of about so many bytes, and notes that it is on its way.
    async fn seal(&mut self, bytes: u64) {
        let (activity, member) = (self.activity.clone(), Arc::clone(&self.member));
        let (state, planned) = (&self.backlog.state, self.planned);
        let (stored, room) = (state.stored(), state.backlog().min(bytes) + state.record_bytes());
        let made =
            move || next_segment(&activity, &mut member.lock(), stored, planned, bytes, room);
        let made = tokio::task::spawn_blocking(made).await.unwrap_or(Err(NotSealed::Thread));
        let (now, state) = (self.backlog.now(), &mut self.backlog.state);
        match made {
            Ok((sealed, bytes)) => {
                self.planned = None;
                let checkpoint = &sealed.checkpoint;
                let position = ChainPosition {
                    seq: checkpoint.last,
                    head: checkpoint.head,
                    checkpoint: Some(checkpoint.hash()),
                };
                state.sealed(position, bytes, now);
                self.in_hand = Some(sealed);
            }
            Err(error) => {
                tracing::error!(%error, "activity cannot be sealed for the fleet's store");
                self.node.gauges.failed(&error);
                state.not_sealed(now);
            }
        }
    }

    /// Puts what is in hand into the store, and lets the log forget it once the store says that it is there.
    async fn put(&mut self) {
        let Some(sealed) = self.in_hand.clone() else { return };
        let (creates, node, verifier) = {
            let member = self.member.lock();
            (member.creates, member.node.clone(), member.verifier.clone())
        };
        let key = format!("{}/{}", segments_folder(node.as_str()), sealed.name);
        let putting = put((&self.bucket, &self.place), &key, &sealed, &verifier, creates);
        match self.backlog.during(putting).await {
            Ok(checkpoint) => {
                self.backlog.state.stored_now(checkpoint);
                self.node.gauges.put();
                self.in_hand = None;
                let stored = self.backlog.state.stored();
                self.activity.confirm(stored.seq);
                let member = Arc::clone(&self.member);
                let noted = move || {
                    let mut member = member.lock();
                    let mark =
                        SealedMark { stored, day: sealed.name.day, planned: None, ..member.mark };
                    (member.mark, member.file.write(&mark)).1
                };
                // Without it the next start finds the segment in the store.
                if let Ok(Err(error)) = tokio::task::spawn_blocking(noted).await {
                    tracing::warn!(%error, "what was sealed cannot be noted");
                }
            }
            Err(error) => {
                tracing::warn!(%error, key, "a segment is not in the fleet's store yet");
                self.node.gauges.failed(&error);
                let now = self.backlog.now();
                self.backlog.state.not_stored(now);
            }
        }
    }
}

/// Makes the next segment of about so many `bytes`, with `room` for them, and notes that it is on its way; and how many canonical
/// bytes it has.
fn next_segment(
    activity: &Activity,
    member: &mut FleetMember,
    stored: ChainPosition,
    planned: Option<u64>,
    bytes: u64,
    room: u64,
) -> Result<(SealedSegment, u64), NotSealed> {
    let view = activity.stored()?;
    let intake = SegmentIntake { planned, durable: activity.durable_seq(), bytes };
    let mut rows = RecordCollector::new(member.log).with_room(room as usize);
    let mut after = None;
    view.chained_from(stored.seq + 1, |record| {
        let last = rows.last().map(|(last, _)| last);
        if !intake.takes(record.seq, last, rows.len(), rows.bytes() as u64) {
            return ControlFlow::Break(());
        }
        after.get_or_insert(record.prev);
        rows.push(record);
        ControlFlow::Continue(())
    })?;
    drop(view);
    let bytes = rows.bytes() as u64;
    let rows = rows.finish();
    let first = rows.iter().next().map(|row| row.seq);
    if first == Some(stored.seq + 1) && after != Some(stored.head) {
        return Err(NotSealed::Fork(stored.seq + 1));
    }
    let by = SealedBy {
        key: &member.key,
        verifier: &member.verifier,
        node: member.node.as_str(),
        after: after.unwrap_or(stored.head),
        previous: stored.checkpoint,
    };
    let sealed = segment::seal(&rows, by)?;
    let mark = SealedMark { stored, planned: Some(sealed.checkpoint.last), ..member.mark };
    member.file.write(&mark)?;
    Ok((sealed, bytes))
}

/// Puts a segment; the checkpoint that is in the store then. It is stored when the store says so twice: in its answer, and when
/// it is asked; and is the one of this node's place.
async fn put(
    (bucket, place): (&Bucket, &OwnPlace),
    key: &str,
    sealed: &SealedSegment,
    verifier: &VerifierKey,
    creates: bool,
) -> Result<CheckpointHash, BucketError> {
    let mut putting = Putting::new(creates, sealed.bytes.len() as u64, sealed.checkpoint.hash());
    loop {
        let bytes = || sealed.bytes.clone();
        let answer = match putting.ask() {
            PutAsk::Create => match bucket.create(key, bytes()).await? {
                Creation::Made => PutAnswer::Done,
                Creation::Exists => PutAnswer::Exists,
            },
            PutAsk::Replace => bucket.put(key, bytes()).await.map(|()| PutAnswer::Done)?,
            PutAsk::Place => PutAnswer::Place(place.look(bucket).await?),
            PutAsk::Compare => {
                let there = bucket.get(key).await?;
                let (sealed, verifier) = (sealed.clone(), verifier.clone());
                let compare = move || checkpoint_of_same(&there, &sealed, &verifier);
                PutAnswer::There(tokio::task::spawn_blocking(compare).await.unwrap_or(None))
            }
            PutAsk::Measure => PutAnswer::Length(bucket.size(key).await?),
        };
        match putting.answered(answer) {
            Ok(PutNext::Ask(next)) => putting = next,
            Ok(PutNext::Stored(checkpoint)) => return Ok(checkpoint),
            Err(why) => return Err(BucketError::Failed(format!("{key} {why}"))),
        }
    }
}

/// The checkpoint of the same segment, perhaps written by another version; `None` if it is another segment, or none that this
/// node has signed and that is whole.
fn checkpoint_of_same(
    there: &Bytes,
    sealed: &SealedSegment,
    verifier: &VerifierKey,
) -> Option<CheckpointHash> {
    let checkpoint = &sealed.checkpoint;
    if *there == sealed.bytes {
        return Some(checkpoint.hash());
    }
    let there = segment::open(there, verifier).ok()?.checkpoint;
    let is_same = Checkpoint { data: checkpoint.data, ..there.clone() } == *checkpoint;
    is_same.then(|| there.hash())
}

#[cfg(test)]
mod tests;
