//! Ledger task: seals the records that the log has committed and uploads them to the store, until shutdown.
//! [`SealState`] decides when, [`segment`] encodes, and [`SegmentUpload`] controls the upload.
//!
//! [`Backlog`] measures the records that wait for the store. It starts with the node, even if the node has not joined
//! yet, and notifies the log when these records are too many or too old.

use std::future::Future;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mcpproxy_activity::{Activity, Durability, QueryError, StoreError};
use mcpproxy_runtime::io::background_task::BackgroundTask;
use mcpproxy_runtime::io::line_budget::{LinePeer, peer_line};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::bucket::{Bucket, BucketError, Creation};
use crate::chain::place;
use crate::chain::place::{
    Applicant, FleetMember, JoinError, JoinedStore, StoreWatch, segments_folder,
};
use crate::checkpoint::{Checkpoint, CheckpointHash, VerifierKey};
use crate::cluster_key::KeyPurpose;
use crate::config::{CATCH_UP, ClusterConfig, NodeName};
use crate::facts::{FactExchangeSettings, FactKeys, FactMemory};
use crate::fleet_node::{FleetNode, Heartbeats, ProgramBuild, VitalsOf};
use crate::node_state::{NodeKey, SealedMark, SealedMarkFile};
use crate::parquet_table::RecordCollector;
use crate::peer_wire::PeerSender;
use crate::peers::Peers;
use crate::sealing::{
    ChainPosition, Overdue, SealAct, SealLimits, SealState, SegmentIntake, SegmentUpload,
    UploadReply, UploadRequest, UploadStep,
};
use crate::segment;
use crate::segment::{SealedBy, SealedSegment};

/// Time limit for the final upload.
pub const END_LIMIT: Duration = Duration::from_secs(10);
/// Time limit for joining, after which a former member starts without the store.
const JOIN_LIMIT: Duration = Duration::from_secs(10);
/// Interval between attempts to join.
const JOIN_AGAIN: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub struct LedgerSettings {
    pub config: ClusterConfig,
    /// URL of the fleet's store.
    pub store: String,
    pub node: NodeName,
    pub folder: PathBuf,
}

impl LedgerSettings {
    /// Settings from the config; `None` without a fleet.
    pub fn of(config: &ClusterConfig, folder: PathBuf) -> Option<Self> {
        let (store, node) = config.membership()?;
        Some(Self { config: config.clone(), store: store.to_owned(), node: node.clone(), folder })
    }

    /// Errors of the node's state files, each with the file and the next step. Changes nothing. Blocks.
    pub fn unusable_files(&self) -> Vec<String> {
        let folder = &self.folder;
        let key = NodeKey::stored(folder).map(drop).map_err(|error| error.to_string());
        let mark = SealedMarkFile::stored(folder).map_err(|error| error.to_string());
        let fleet = mark.as_ref().ok().and_then(|mark| mark.map(|mark| mark.fleet));
        let facts = fleet.map_or(Ok(()), |fleet| {
            FactMemory::load(folder, fleet).map(drop).map_err(|error| error.to_string())
        });
        [key, mark.map(drop), facts].into_iter().filter_map(Result::err).collect()
    }
}

/// Node that has joined its fleet, or will join once the store is reachable.
#[derive(Debug)]
pub struct EnteredFleet {
    settings: LedgerSettings,
    node: Arc<FleetNode>,
    bucket: Bucket,
    member: Option<FleetMember>,
    /// Known position of its chain in the store.
    stored: ChainPosition,
}

impl EnteredFleet {
    pub fn bucket(&self) -> &Bucket {
        &self.bucket
    }

    /// Settings for the exchange of facts; `None` without `cluster.key`. Blocks.
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

    /// Handle to this node.
    pub fn node(&self) -> &Arc<FleetNode> {
        &self.node
    }
}

/// Joins the fleet. After that, the log retains records that are not uploaded yet.
///
/// # Errors
///
/// [`JoinError`]. A former member starts even if the store is unavailable.
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
        Err(error @ JoinError::Store { .. }) if place::was_member(&settings.folder) => {
            peer_line!(warn, LinePeer::Part("fleet store"), %error, "starting without the fleet's store");
            node.gauges.failed(&error);
            let who = Applicant { bucket: &bucket, folder: &settings.folder, node: &settings.node };
            let stored = place::remembered(who, activity).await?;
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
    let member = place::join(who, activity).await?;
    let (fleet, node, stored) = (member.fleet, member.node.as_str(), member.mark.stored.seq);
    peer_line!(info, LinePeer::Part("fleet store"), %fleet, node, stored, creates = member.creates, "joined the fleet");
    activity.confirm(stored);
    Ok(member)
}

/// Ledger task of a running node.
#[derive(Debug)]
pub struct FleetLedger(BackgroundTask);

impl FleetLedger {
    /// Starts sealing and sending heartbeats; `vitals` provides the variable heartbeat fields.
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

    /// Stops the task. If `patient`, the remaining records are sealed and uploaded within a time limit; they must
    /// already be durable.
    pub async fn end(self, patient: bool) {
        let limit = if patient { END_LIMIT } else { Duration::ZERO };
        if !self.0.end_within(limit).await {
            peer_line!(
                warn,
                LinePeer::Part("fleet store"),
                "the rest is uploaded to the fleet's store at the next start"
            );
        }
    }
}

/// Joins if necessary, then seals.
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
                peer_line!(warn, LinePeer::Part("fleet store"), %error, "cannot reach the fleet's store");
                node.gauges.failed(&error);
            }
            // Records cannot be uploaded until an operator corrects this error.
            Err(error) => backlog.refused(error.to_string()),
        }
    };
    let planned = member.mark.planned;
    let keys = settings.config.key.as_ref();
    let peers = keys.map(|keys| {
        let own = PeerSender { node: node.name.clone(), boot: node.facts.boot };
        let nodes = (Arc::clone(&node.living), node.suspected.clone());
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
    let place = JoinedStore::of(member.fleet, &node.name, &member.verifier.to_string());
    let watch = StoreWatch::new(place.clone());
    let member = Arc::new(parking_lot::Mutex::new(member));
    let sealer = Sealer { activity, bucket, place, member, node, backlog, planned, in_hand: None };
    // The final heartbeat reports the final position.
    let (stops, stopping) = watch::channel(false);
    let seals = async {
        sealer.run(ending).await;
        stops.send_replace(true);
    };
    tokio::join!(seals, heartbeats.run(watch, stopping));
}

struct Sealer {
    activity: Activity,
    bucket: Bucket,
    place: JoinedStore,
    /// Used by one blocking thread at a time.
    member: Arc<parking_lot::Mutex<FleetMember>>,
    node: Arc<FleetNode>,
    backlog: Backlog,
    /// Last record of a segment whose upload the previous process left unfinished.
    planned: Option<u64>,
    in_hand: Option<SealedSegment>,
}

/// Reason why sealing failed.
#[derive(Debug, thiserror::Error)]
enum NotSealed {
    #[error(transparent)]
    Log(#[from] mcpproxy_activity::QueryError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{0}")]
    Segment(#[from] segment::SegmentError),
    #[error(
        "record {0} does not follow its predecessor in the store: the log was salvaged or has diverged; \
         restart this node to restore its sealed records"
    )]
    Fork(u64),
    #[error("cannot save the sealed position: {0}")]
    Mark(#[from] std::io::Error),
    #[error("a worker thread panicked")]
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
            // A log repaired at run time may have lost sealed records and would reuse their numbers.
            let (durable, stored) = (self.activity.durable_seq(), self.backlog.state.stored().seq);
            if durable < stored && self.node.gauges.failing().is_none() {
                self.node.gauges.failed(&NotSealed::Fork(durable + 1));
            }
            let (now, state) = (self.backlog.now(), &mut self.backlog.state);
            if *ending.borrow() {
                state.ends();
            }
            let act = state.act(now);
            let wait = match act {
                SealAct::Rest if *ending.borrow() => return,
                // An unavailable store is not awaited: the rest is uploaded after the next start.
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

    /// Seals the next segment of about `bytes` bytes and saves that its upload is in progress.
    async fn seal(&mut self, bytes: u64) {
        let (activity, member) = (self.activity.clone(), Arc::clone(&self.member));
        let (state, planned) = (&self.backlog.state, self.planned);
        let (stored, capacity) =
            (state.stored(), state.backlog().min(bytes) + state.record_bytes());
        let made =
            move || next_segment(&activity, &mut member.lock(), stored, planned, bytes, capacity);
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
                peer_line!(error, LinePeer::Part("fleet store"), %error, "cannot seal records for the fleet's store");
                self.node.gauges.failed(&error);
                state.not_sealed(now);
            }
        }
    }

    /// Uploads the segment in flight; once confirmed, the log may delete its records.
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
                self.backlog.state.uploaded(checkpoint);
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
                // If this fails, the next start finds the segment in the store.
                if let Ok(Err(error)) = tokio::task::spawn_blocking(noted).await {
                    peer_line!(warn, LinePeer::Part("fleet store"), %error, "cannot save the sealed position");
                }
            }
            Err(error) => {
                peer_line!(warn, LinePeer::Part("fleet store"), %error, key, "cannot upload a segment yet");
                self.node.gauges.failed(&error);
                let now = self.backlog.now();
                self.backlog.state.upload_failed(now);
            }
        }
    }
}

/// Seals the next segment of about `bytes` canonical bytes, with a buffer of `capacity`, and saves that its upload is in
/// progress. Also returns its canonical size.
fn next_segment(
    activity: &Activity,
    member: &mut FleetMember,
    stored: ChainPosition,
    planned: Option<u64>,
    bytes: u64,
    capacity: u64,
) -> Result<(SealedSegment, u64), NotSealed> {
    let view = activity.stored()?;
    let intake = SegmentIntake { planned, durable: activity.durable_seq(), bytes };
    let mut rows = RecordCollector::new(member.log).with_capacity(capacity as usize);
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

/// Uploads a segment and returns the stored checkpoint. The segment counts as uploaded once the store has confirmed
/// it twice and is the one that this node joined.
async fn put(
    (bucket, place): (&Bucket, &JoinedStore),
    key: &str,
    sealed: &SealedSegment,
    verifier: &VerifierKey,
    creates: bool,
) -> Result<CheckpointHash, BucketError> {
    let mut putting =
        SegmentUpload::new(creates, sealed.bytes.len() as u64, sealed.checkpoint.hash());
    loop {
        let bytes = || sealed.bytes.clone();
        let answer = match putting.ask() {
            UploadRequest::Create => match bucket.create(key, bytes()).await? {
                Creation::Made => UploadReply::Done,
                Creation::Exists => UploadReply::Exists,
            },
            UploadRequest::Replace => bucket.put(key, bytes()).await.map(|()| UploadReply::Done)?,
            UploadRequest::Place => UploadReply::Place(place.look(bucket).await?),
            UploadRequest::Compare => {
                let there = bucket.get(key).await?;
                let (sealed, verifier) = (sealed.clone(), verifier.clone());
                let compare = move || checkpoint_of_same(&there, &sealed, &verifier);
                UploadReply::There(tokio::task::spawn_blocking(compare).await.unwrap_or(None))
            }
            UploadRequest::Measure => UploadReply::Length(bucket.size(key).await?),
        };
        match putting.answered(answer) {
            Ok(UploadStep::Ask(next)) => putting = next,
            Ok(UploadStep::Stored(checkpoint)) => return Ok(checkpoint),
            Err(why) => return Err(BucketError::Failed(format!("{key} {why}"))),
        }
    }
}

/// Checkpoint of an equal segment, possibly written by another version; `None` for any other object.
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

/// Maximum time replies wait for the store, in milliseconds, before `activity.on_failure` applies. It must not exceed
/// the time that a reply waits for its record.
pub(crate) const REPLY_MS: u64 = 10_000;
/// Interval at which the log is notified of the backlog.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Maximum number of canonical bytes measured at a time, exceeded by at most one record.
const MEASURED_AT_ONCE: u64 = 64 << 20;

pub(crate) struct Backlog {
    pub(crate) state: SealState,
    activity: Activity,
    node: Arc<FleetNode>,
    /// Store location for display.
    store: String,
    /// Reason why the node cannot join without an operator; in that case, nothing is retained for the store.
    refused: Option<String>,
    base: Instant,
}

impl Backlog {
    /// Creates the backlog of a chain uploaded up to `stored`.
    pub(crate) fn new(
        limits: SealLimits,
        stored: ChainPosition,
        activity: Activity,
        node: Arc<FleetNode>,
        store: String,
    ) -> Self {
        let state = SealState::new(limits, stored);
        let mut backlog =
            Self { state, activity, node, store, refused: None, base: Instant::now() };
        let now = backlog.now();
        backlog.state.committed(backlog.activity.durable_seq(), now);
        backlog.report(now);
        backlog
    }

    /// Clock of [`SealState`].
    pub(crate) fn now(&self) -> u64 {
        self.base.elapsed().as_millis() as u64
    }

    /// Records that the node has joined, with its chain's position.
    pub(crate) fn placed(&mut self, stored: ChainPosition) {
        self.refused = None;
        self.node.gauges.reached();
        self.state.placed(stored);
        self.report(self.now());
    }

    /// Records that the node cannot join.
    pub(crate) fn refused(&mut self, why: String) {
        self.refused = Some(why);
        self.report(self.now());
    }

    /// Updates the backlog and notifies the log whether it may retain more.
    pub(crate) fn look(&mut self) {
        let now = self.now();
        self.state.committed(self.activity.durable_seq(), now);
        self.report(now);
    }

    /// Measures the backlog first, then updates it.
    pub(crate) async fn look_closely(&mut self) {
        let (activity, from) = (self.activity.clone(), self.state.measured_until() + 1);
        let until = activity.durable_seq();
        if until >= from {
            let measured = tokio::task::spawn_blocking(move || measure(&activity, from, until));
            match measured.await {
                Ok(Ok((until, bytes))) => self.state.measured(until, bytes),
                // Records that could not be measured are estimated.
                Ok(Err(error)) => tracing::debug!(%error, "cannot measure the backlog"),
                Err(error) => tracing::debug!(%error, "cannot measure the backlog"),
            }
        }
        self.look();
    }

    /// Awaits `work`, updating the backlog periodically.
    pub(crate) async fn during<T>(&mut self, work: impl Future<Output = T>) -> T {
        tokio::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            // `work` continues in the meantime.
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = self.look_closely() => {}
            }
        }
    }

    fn report(&self, now: u64) {
        let (stored, record_bytes) = (self.state.stored().seq, self.state.record_bytes());
        self.node.gauges.stands(stored, record_bytes, self.state.waits(now));
        let why = self.refused.clone().or_else(|| Some(self.words(self.state.overdue(now)?)));
        self.activity.suspend(why);
    }

    fn words(&self, overdue: Overdue) -> String {
        let (records, store) = (self.state.behind(), &self.store);
        match overdue {
            Overdue::Backlog => {
                format!("{records} records wait for {store}: more than cluster.backlog_bytes")
            }
            Overdue::Replies => {
                format!("{store} has accepted nothing for {} s", REPLY_MS / 1000)
            }
        }
    }
}

/// Measures the canonical bytes of records `from` to `until`; returns the last one measured. Blocks.
fn measure(activity: &Activity, from: u64, until: u64) -> Result<(u64, u64), QueryError> {
    let (mut last, mut bytes) = (from - 1, 0);
    activity.stored()?.chained_from(from, |record| {
        if record.seq > until || bytes >= MEASURED_AT_ONCE {
            return ControlFlow::Break(());
        }
        last = record.seq;
        bytes += record.canonical_bytes();
        ControlFlow::Continue(())
    })?;
    Ok((last, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcpproxy_activity::{Config, Draft, Source, Status, Text, Type, Writer};
    use tempfile::TempDir;

    use crate::chain::check::SegmentFacts;
    use crate::heartbeat::NodeVitals;

    const BUILD: ProgramBuild = ProgramBuild { version: "0", commit: "0" };

    /// Node with its log and its fleet's store.
    struct Node {
        folder: TempDir,
        activity: Activity,
        writer: Writer,
        bucket: Bucket,
        settings: LedgerSettings,
    }

    impl Node {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let store = folder.path().join("store");
            std::fs::create_dir(&store).unwrap();
            let log = folder.path().join("activity");
            let (activity, writer) = Activity::open(&log, Config::default()).unwrap();
            let store = format!("file://{}", store.display());
            let settings = LedgerSettings {
                config: ClusterConfig::default(),
                store: store.clone(),
                node: NodeName::parse("a").unwrap(),
                folder: folder.path().join("fleet"),
            };
            Self { folder, activity, writer, bucket: Bucket::open(&store).unwrap(), settings }
        }

        fn record(&self, count: usize) {
            for _ in 0..count {
                self.activity.note(Draft::new(Type::ToolCall, Source::Mcp, Status::Success));
            }
            self.activity.flush().unwrap();
        }

        async fn join(&self) -> FleetMember {
            join(&self.settings, &self.bucket, &self.activity).await.unwrap()
        }

        fn seal(
            &self,
            member: &mut FleetMember,
            planned: Option<u64>,
            bytes: u64,
        ) -> SealedSegment {
            let stored = member.mark.stored;
            next_segment(&self.activity, member, stored, planned, bytes, 0).unwrap().0
        }

        fn place(member: &FleetMember) -> JoinedStore {
            JoinedStore::of(member.fleet, &member.node, &member.verifier.to_string())
        }

        fn key(sealed: &SealedSegment) -> String {
            format!("{}/{}", segments_folder("a"), sealed.name)
        }

        fn end(self) {
            self.writer.close().unwrap();
            drop(self.folder);
        }
    }

    #[tokio::test]
    async fn interrupted_segment_is_sealed_again_byte_for_byte() {
        let node = Node::new();
        node.record(5);
        let mut member = node.join().await;
        let first = node.seal(&mut member, None, 1 << 20);
        assert_eq!((first.checkpoint.first, first.checkpoint.last), (1, 5));
        // The upload did not happen; the next process finds the planned segment, and more records.
        node.record(5);
        let mut member = node.join().await;
        assert_eq!(member.mark.planned, Some(5));
        let planned = member.mark.planned;
        // The planned segment is sealed even if it is larger than a new one would be.
        let again = node.seal(&mut member, planned, 1);
        assert_eq!((&again.name, &again.bytes), (&first.name, &first.bytes));
        // The segment was uploaded, but its position was not saved: the store has the segment.
        let into = (&node.bucket, &Node::place(&member));
        put(into, &Node::key(&first), &first, &member.verifier, true).await.unwrap();
        let mut member = node.join().await;
        assert_eq!((member.mark.planned, member.mark.stored.seq), (None, 5));
        assert_eq!(member.mark.stored.checkpoint, Some(first.checkpoint.hash()));
        let next = node.seal(&mut member, None, 1 << 20);
        assert_eq!((next.checkpoint.first, next.checkpoint.last), (6, 10));
        assert_eq!(next.checkpoint.previous, Some(first.checkpoint.hash()));
        node.end();
    }

    #[tokio::test]
    async fn diverged_log_is_not_sealed() {
        let node = Node::new();
        node.record(3);
        let mut member = node.join().await;
        let stored = ChainPosition { seq: 2, ..member.mark.stored };
        let sealed = next_segment(&node.activity, &mut member, stored, None, 1 << 20, 0);
        assert!(matches!(sealed, Err(NotSealed::Fork(3))), "{sealed:?}");
        node.end();
    }

    #[tokio::test]
    async fn upload_counts_if_the_same_segment_is_stored() {
        let node = Node::new();
        node.record(3);
        let mut member = node.join().await;
        let sealed = node.seal(&mut member, None, 1 << 20);
        let (key, place) = (Node::key(&sealed), Node::place(&member));
        let into = (&node.bucket, &place);
        for creates in [true, true, false] {
            let stored = put(into, &key, &sealed, &member.verifier, creates).await;
            assert_eq!(stored, Ok(sealed.checkpoint.hash()), "again after a lost reply");
        }
        let there = node.bucket.get(&key).await.unwrap();
        assert!(SegmentFacts::of(&there, &member.verifier).is_ok());
        let other = Node::new();
        other.record(3);
        let another = other.seal(&mut other.join().await, None, 1 << 20);
        // The stored object has the same checkpoint, but different data.
        let mut altered = sealed.bytes.to_vec();
        altered[40] ^= 1;
        for there in [Bytes::from_static(b"none"), another.bytes, altered.into()] {
            node.bucket.put(&key, there).await.unwrap();
            let refused = put(into, &key, &sealed, &member.verifier, true).await.unwrap_err();
            assert!(refused.to_string().contains("a different segment"), "{refused}");
        }
        node.end();
        other.end();
    }

    #[tokio::test]
    async fn upload_to_an_empty_swapped_store_does_not_count() {
        let node = Node::new();
        node.record(3);
        let mut member = node.join().await;
        let sealed = node.seal(&mut member, None, 1 << 20);
        let (key, place) = (Node::key(&sealed), Node::place(&member));
        let [store, aside] = ["store", "aside"].map(|name| node.folder.path().join(name));
        for creates in [true, false] {
            std::fs::rename(&store, &aside).unwrap();
            std::fs::create_dir(&store).unwrap();
            // The swapped store accepts and confirms the segment each time.
            for _ in 0..2 {
                let refused = put((&node.bucket, &place), &key, &sealed, &member.verifier, creates)
                    .await
                    .unwrap_err();
                assert!(refused.to_string().contains("fleet.json is missing"), "{refused}");
                assert!(store.join(&key).exists());
            }
            std::fs::remove_dir_all(&store).unwrap();
            std::fs::rename(&aside, &store).unwrap();
            assert_eq!(node.bucket.size(&key).await, Ok(None));
        }
        let stored = put((&node.bucket, &place), &key, &sealed, &member.verifier, true).await;
        assert_eq!(stored, Ok(sealed.checkpoint.hash()));
        node.end();
    }

    #[tokio::test]
    async fn backlog_is_reported_while_a_store_request_hangs() {
        let node = Node::new();
        node.record(20);
        let entered = enter(node.settings.clone(), BUILD, &node.activity).await.unwrap();
        let limits = SealLimits {
            flush_ms: 100,
            bytes: 1 << 20,
            catch_up: CATCH_UP,
            // Estimated by the default record size, the backlog is below this limit; when measured, it is above it.
            backlog_bytes: 30 * 512,
            replies_wait: false,
            reply_ms: REPLY_MS,
        };
        let large = || {
            let mut draft = Draft::new(Type::ToolCall, Source::Mcp, Status::Success);
            draft.set(Text::Error, &"x".repeat(2000));
            draft
        };
        for _ in 0..8 {
            node.activity.note(large());
        }
        node.activity.flush().unwrap();
        let (of, store) = (Arc::clone(entered.node()), "a store".to_owned());
        let mut backlog = Backlog::new(limits, entered.stored, node.activity.clone(), of, store);
        assert_eq!(node.activity.health().failed, None);
        let reported = async {
            loop {
                if let Some(why) = node.activity.health().failed {
                    return why;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let hangs = backlog.during(std::future::pending::<()>());
        let why = tokio::select! {
            why = reported => why,
            () = hangs => unreachable!("it hangs"),
            () = tokio::time::sleep(Duration::from_secs(30)) => panic!("nothing was reported"),
        };
        assert!(why.starts_with("28 records wait for a store: more"), "{why}");
        let lag = entered.node().ledger(&node.activity);
        assert!(lag.lag_records == 28 && lag.lag_bytes > 30 * 512, "{lag:?}");
        node.end();
    }

    #[tokio::test]
    async fn log_deletes_only_uploaded_records() {
        let node = Node::new();
        node.record(20);
        let entered = enter(node.settings.clone(), BUILD, &node.activity).await.unwrap();
        let few = mcpproxy_activity::Retention {
            days: 0,
            max_records: 5,
            max_size_mb: 0,
            min_age: std::time::Duration::ZERO,
        };
        node.activity.set_retention(few);
        let first = || {
            node.activity.prune().unwrap();
            node.activity.stored().unwrap().first()
        };
        assert_eq!(first(), 1, "nothing is uploaded");
        let (activity, vitals) = (node.activity.clone(), Arc::new(NodeVitals::default));
        let ledger = FleetLedger::start(entered, activity, vitals, &Handle::current());
        ledger.end(true).await;
        let stored = node.bucket.list(&segments_folder("a"), None).await.unwrap();
        assert_eq!(stored.len(), 1);
        assert_eq!(first(), 17);
        node.end();
    }
}
