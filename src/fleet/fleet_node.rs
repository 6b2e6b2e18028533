//! Handle to this node of the fleet: liveness of other nodes, status of the ledger, and access to peers.
//!
//! [`FleetReadiness`] is the readiness of a node that has just started. Until the liveness of all nodes is
//! determined, requests for state on other nodes cannot be answered, and the node is not ready. If the store is
//! unavailable, the node serves alone after [`READINESS_LIMIT`].
//!
//! [`LedgerGauges`] are the ledger's counters, written by the ledger task and read by anyone.
//!
//! The heartbeat task uploads this node's heartbeat, lists those of all nodes and reads some, until shutdown. Decisions are
//! made by [`crate::failure_detector`] and [`crate::heartbeat`]. Uploads and reads are independent, except that reading
//! waits for the first upload. One upload and one round of reads are in flight at a time; hanging uploads are abandoned, and
//! their number is bounded ([`crate::heartbeat::HeartbeatSchedule`]).

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use futures_util::{StreamExt, stream};
use mcpproxy_activity::Activity;
use mcpproxy_runtime::io::clock::wall_ms;
use mcpproxy_runtime::io::line_budget::{LinePeer, peer_line};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::MissedTickBehavior;

use crate::bucket::{Bucket, BucketError, ListedSome};
use crate::chain::NamedChain;
use crate::chain::place::{NodeClaim, StoreWatch};
use crate::checkpoint::{VerifierKey, origin};
use crate::cluster_key::PurposeKeys;
use crate::config::{ClusterConfig, NodeName, StrayObjects};
use crate::facts::FleetFacts;
use crate::failure_detector::{
    BeatRead, FailureDetector, MAX_LISTED_BEATS, Membership, NodeEvent, NodeState, NodeView,
};
use crate::heartbeat::{
    BootId, DEAD_AFTER_MS, HEARTBEATS, Heartbeat, HeartbeatFault, HeartbeatOf, HeartbeatSchedule,
    LIST_EVERY_MS, LedgerStanding, MAX_HEARTBEAT_BYTES, NextBeat, NodeFacts, NodeVitals, PutEnd,
    heartbeat_key,
};
use crate::node_state::{FleetId, NodeKey};
use crate::peers::{Peers, SuspectedPeers};

/// Minimum age at which records that are not uploaded are reported: a slow upload is not a fault.
const LATE: Duration = Duration::from_secs(15);

/// Identity of the running build.
#[derive(Clone, Copy, Debug)]
pub struct ProgramBuild {
    pub version: &'static str,
    /// Commit of the build.
    pub commit: &'static str,
}

/// This node in its fleet.
#[derive(Debug)]
pub struct FleetNode {
    pub name: NodeName,
    pub config: ClusterConfig,
    /// Heartbeat fields that are constant.
    pub facts: NodeFacts,
    pub(crate) gauges: LedgerGauges,
    pub(crate) living: Arc<ArcSwap<Membership>>,
    pub(crate) suspected: SuspectedPeers,
    sight: ReadinessTracker,
    fleet: OnceLock<FleetId>,
    peers: OnceLock<Arc<Peers>>,
    shared: OnceLock<FleetFacts>,
    chains: ArcSwap<BTreeMap<String, NamedChain>>,
    /// Reason why chains are not scanned, other than an unavailable store.
    chains_unseen: Mutex<Option<String>>,
}

impl FleetNode {
    /// Creates a node that has not joined yet.
    pub(crate) fn new(
        name: NodeName,
        config: ClusterConfig,
        build: ProgramBuild,
    ) -> Result<Self, getrandom::Error> {
        let mut boot = [0; 16];
        getrandom::fill(&mut boot)?;
        let facts = NodeFacts {
            boot: BootId(boot),
            started_at: wall_ms(),
            version: build.version.to_owned(),
            commit: build.commit.to_owned(),
            advertise: config.advertise.as_ref().map(|url| url.as_str().to_owned()),
            index: config.index.to_string(),
        };
        Ok(Self {
            name,
            config,
            facts,
            gauges: LedgerGauges::default(),
            living: Arc::default(),
            suspected: SuspectedPeers::default(),
            sight: ReadinessTracker::default(),
            fleet: OnceLock::new(),
            peers: OnceLock::new(),
            shared: OnceLock::new(),
            chains: ArcSwap::default(),
            chains_unseen: Mutex::default(),
        })
    }

    /// Marks the node as serving.
    pub(crate) fn begins(&self) {
        self.sight.begins();
    }

    /// Publishes a snapshot of all nodes.
    pub(crate) fn sees(&self, living: Membership) {
        self.sight.sees(&living);
        self.living.store(Arc::new(living));
    }

    /// Readiness since the start; `None` without `cluster.key`, because then no other node is queried.
    pub fn readiness(&self) -> Option<FleetReadiness> {
        self.config.key.as_ref().map(|_| self.sight.at(Instant::now()))
    }

    /// Marks the node as joined.
    pub(crate) fn joined(&self, fleet: FleetId, peers: Option<Peers>) {
        let _ = self.fleet.set(fleet);
        if let Some(peers) = peers {
            let _ = self.peers.set(Arc::new(peers));
        }
    }

    /// Fleet id; `None` before the node has joined.
    pub fn fleet(&self) -> Option<FleetId> {
        self.fleet.get().copied()
    }

    /// Client for peers; `None` without `cluster.key`, and before the node has joined.
    pub fn peers(&self) -> Option<&Arc<Peers>> {
        self.peers.get()
    }

    /// Attaches the shared facts.
    pub fn shares(&self, facts: FleetFacts) {
        let _ = self.shared.set(facts);
    }

    /// Shared facts; `None` without `cluster.key`.
    pub fn shared(&self) -> Option<&FleetFacts> {
        self.shared.get()
    }

    /// Summaries of the chains that this node does not follow, by node.
    pub fn chains(&self) -> Arc<BTreeMap<String, NamedChain>> {
        self.chains.load_full()
    }

    pub(crate) fn saw_chains(&self, chains: BTreeMap<String, NamedChain>) {
        self.chains.store(Arc::new(chains));
    }

    pub(crate) fn sees_no_chains(&self, why: Option<String>) {
        *self.chains_unseen.lock() = why;
    }

    /// Faults of the shared facts, one line each.
    fn fact_faults(&self) -> Vec<String> {
        let Some(facts) = self.shared() else { return Vec::new() };
        let standing = facts.standing();
        let mut faults: Vec<_> =
            standing.faults.iter().map(|(key, why)| format!("{key}: {why}")).collect();
        faults.extend(facts.reported_faults());
        if let Some(stale) = standing.stale() {
            let why = standing.failing.as_deref().unwrap_or("the store is slow");
            let seconds = stale.as_secs();
            faults.push(format!(
                "the fleet's shared facts were last read {seconds} s ago and may be stale: {why}"
            ));
        }
        faults
    }

    /// Latest snapshot of all nodes.
    pub fn living(&self) -> Arc<Membership> {
        self.living.load_full()
    }

    /// Status of this node's ledger.
    pub fn ledger(&self, activity: &Activity) -> LedgerStanding {
        let lost = activity.health().lost;
        LedgerStanding { lost, ..self.gauges.standing(activity.durable_seq()) }
    }

    /// Faults of the fleet that this node observes, one line each.
    pub fn faults(&self, activity: &Activity) -> Vec<String> {
        let mut faults = Vec::new();
        let ledger = self.ledger(activity);
        let late = LATE.max(self.config.flush * 3).as_millis() as u64;
        match self.gauges.failing() {
            Some(why) => faults.push(format!(
                "{} records wait for the fleet's store, the oldest for {} s: {why}",
                ledger.lag_records,
                ledger.lag_ms / 1000
            )),
            None if ledger.lag_ms > late => faults.push(format!(
                "{} records wait for the fleet's store, the oldest for {} s",
                ledger.lag_records,
                ledger.lag_ms / 1000
            )),
            None => {}
        }
        if self.fleet().is_none() {
            faults.push(
                "this node has not joined its fleet yet: the store is unreachable".to_owned(),
            );
        }
        let living = self.living.load();
        if let Some(away) = &living.away {
            faults.push(format!(
                "cannot observe the fleet's nodes, their last known states are kept: {away}"
            ));
        }
        if let Some(strays) = &living.strays {
            faults.push(format!("in the heartbeats folder of the fleet: {strays}"));
        }
        for node in living.all() {
            let name = node.name.as_str();
            if node.twice {
                faults.push(format!(
                    "two processes use the name of node '{name}': stop one, or set another cluster.node for it"
                ));
            }
            if let Some(fault) = &node.fault {
                faults.push(format!("node '{name}': {fault}"));
            }
            faults.extend(dead(node));
            if node.is_skewed() && node.state == NodeState::Alive {
                let skew = node.skew_ms.unwrap_or_default();
                faults.push(format!("node '{name}': {}", describe_skew(skew)));
            }
        }
        faults.extend(self.fact_faults());
        if let Some(why) = &*self.chains_unseen.lock() {
            faults.push(format!("cannot scan the segments of other nodes: {why}"));
        }
        let chains = self.chains.load();
        faults.extend(chains.iter().flat_map(|(node, chain)| chain.faults(node)));
        faults
    }
}

/// Describes a dead node: how long it has been silent, and which records are missing. `None` for other nodes and for
/// those whose heartbeat object an operator has removed.
fn dead(node: &NodeView) -> Option<String> {
    if node.is_self || !node.is_listed || node.state != NodeState::Dead {
        return None;
    }
    let name = node.name.as_str();
    let (seconds, next) = (
        node.silent_ms / 1000,
        format!("restart it, or remove {} if it is decommissioned", heartbeat_key(&node.name)),
    );
    let Some(heartbeat) = &node.heartbeat else {
        return Some(format!(
            "node '{name}' is dead: no heartbeat for {seconds} s; records that it had not sealed are missing; {next}"
        ));
    };
    let LedgerStanding { stored, committed, .. } = heartbeat.ledger;
    let missing = if committed > stored {
        format!(
            "its records {} to {committed} and all later ones are missing from the fleet's store, according to its last heartbeat",
            stored + 1
        )
    } else {
        format!("its records after {stored} are missing from the fleet's store")
    };
    Some(format!("node '{name}' is dead: no heartbeat for {seconds} s; {missing}; {next}"))
}

/// Describes a clock skew.
pub(crate) fn describe_skew(skew_ms: i64) -> String {
    let (seconds, side) =
        (skew_ms.unsigned_abs() / 1000, if skew_ms > 0 { "behind" } else { "ahead of" });
    format!("its clock is {seconds} s {side} this node's: correct one of them")
}

/// Maximum time a serving node stays not ready because the liveness of other nodes is undetermined. Longer than
/// [`DEAD_AFTER_MS`]. Reading more than about 350 heartbeats takes longer; then the node serves, and reports unread
/// nodes as unknown.
pub const READINESS_LIMIT: Duration = Duration::from_secs(10);

/// Readiness since the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FleetReadiness {
    /// All nodes were decided once.
    Seen,
    Awaited,
    /// Not all nodes were decided within [`READINESS_LIMIT`]; the node no longer waits.
    Unseen,
}

/// Tracks readiness: when the node began to serve, and whether all nodes were decided since.
#[derive(Debug, Default)]
pub(crate) struct ReadinessTracker {
    began: OnceLock<Instant>,
    seen: AtomicBool,
}

impl ReadinessTracker {
    /// Marks the node as serving.
    pub(crate) fn begins(&self) {
        let _ = self.began.set(Instant::now());
    }

    /// Updates from a snapshot. Once all nodes are decided the node stays ready, even if further nodes appear later.
    pub(crate) fn sees(&self, living: &Membership) {
        if living.undecided_reason().is_none() {
            self.seen.store(true, Ordering::Relaxed);
        }
    }

    /// Readiness at time `now`.
    pub(crate) fn at(&self, now: Instant) -> FleetReadiness {
        if self.seen.load(Ordering::Relaxed) {
            return FleetReadiness::Seen;
        }
        match self.began.get() {
            Some(began) if now.saturating_duration_since(*began) >= READINESS_LIMIT => {
                FleetReadiness::Unseen
            }
            Some(_) | None => FleetReadiness::Awaited,
        }
    }
}

const NONE: i64 = i64::MIN;

#[derive(Debug)]
pub(crate) struct LedgerGauges {
    base: Instant,
    stored: AtomicU64,
    /// Average record size in bytes.
    record_bytes: AtomicU64,
    /// Commit time of the oldest record not uploaded, in milliseconds after `base`; [`NONE`] if there is
    /// none.
    since: AtomicI64,
    segments: AtomicU64,
    failures: AtomicU64,
    failing: Mutex<Option<String>>,
}

impl Default for LedgerGauges {
    fn default() -> Self {
        Self {
            base: Instant::now(),
            stored: AtomicU64::new(0),
            record_bytes: AtomicU64::new(0),
            since: AtomicI64::new(NONE),
            segments: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            failing: Mutex::new(None),
        }
    }
}

impl LedgerGauges {
    /// Sets the last uploaded record, the average record size in bytes, and the age of the oldest record not
    /// uploaded.
    pub(crate) fn stands(&self, stored: u64, record_bytes: u64, waits_ms: Option<u64>) {
        self.stored.store(stored, Ordering::Relaxed);
        self.record_bytes.store(record_bytes, Ordering::Relaxed);
        let since = waits_ms.map_or(NONE, |waits| self.now().saturating_sub_unsigned(waits));
        self.since.store(since, Ordering::Relaxed);
    }

    fn now(&self) -> i64 {
        i64::try_from(self.base.elapsed().as_millis()).unwrap_or(i64::MAX)
    }

    /// Counts an uploaded segment.
    pub(crate) fn put(&self) {
        self.segments.fetch_add(1, Ordering::Relaxed);
        *self.failing.lock() = None;
    }

    /// Clears the last failure: the store is available.
    pub(crate) fn reached(&self) {
        *self.failing.lock() = None;
    }

    /// Counts a failed attempt.
    pub(crate) fn failed(&self, why: &dyn std::fmt::Display) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        *self.failing.lock() = Some(why.to_string());
    }

    /// Reason of the last attempt's failure, if it failed.
    pub(crate) fn failing(&self) -> Option<String> {
        self.failing.lock().clone()
    }

    /// Status of the ledger, given the log's last record.
    pub(crate) fn standing(&self, committed: u64) -> LedgerStanding {
        let stored = self.stored.load(Ordering::Relaxed);
        let lag_records = committed.saturating_sub(stored);
        let since = Some(self.since.load(Ordering::Relaxed));
        let since = since.filter(|since| *since != NONE && lag_records > 0);
        let waits = since.map_or(0, |since| self.now().saturating_sub(since).max(0).unsigned_abs());
        LedgerStanding {
            stored,
            committed,
            lag_records,
            lag_bytes: lag_records.saturating_mul(self.record_bytes.load(Ordering::Relaxed)),
            lag_ms: waits,
            segments: self.segments.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
            lost: 0,
        }
    }
}

/// Provides the heartbeat fields that change each time.
pub(crate) type VitalsOf = Arc<dyn Fn() -> NodeVitals + Send + Sync>;

/// Number of concurrent reads.
const READ_TOGETHER: usize = 16;
/// Duration after which a round is reported as late. A late round continues.
const LATE_ROUND: Duration = Duration::from_secs(3);
/// Time limit of one read, below [`LATE_ROUND`], so that a hanging read does not delay the others.
const BEAT_LIMIT: Duration = Duration::from_millis(2_500);
/// Time limit of a round.
const ROUND_LIMIT: Duration = Duration::from_secs(30);
/// Time limit of the final heartbeat.
const FAREWELL_LIMIT: Duration = Duration::from_secs(2);

/// Heartbeat task.
pub(crate) struct Heartbeats {
    pub(crate) node: Arc<FleetNode>,
    pub(crate) bucket: Bucket,
    pub(crate) fleet: FleetId,
    pub(crate) key: NodeKey,
    pub(crate) keys: Option<PurposeKeys>,
    pub(crate) activity: Activity,
    pub(crate) vitals: VitalsOf,
}

/// Result of a round: each node, with the result of reading its heartbeat.
type Round = Vec<(NodeName, Option<BeatRead>)>;

/// State across rounds.
struct Rounds {
    base: Instant,
    watch: FailureDetector,
    /// Verifier keys of the nodes' claims, as first read.
    claims: HashMap<NodeName, VerifierKey>,
    /// Checks that the store is the one that was joined.
    place: StoreWatch,
}

/// Status of this node's uploads, shared with the reader.
#[derive(Default)]
struct OwnPuts {
    /// Time of the last successful upload in milliseconds after the start, plus one; 0 for never.
    taken_at: AtomicU64,
    /// Notified when the first upload has ended.
    first: Notify,
}

impl Heartbeats {
    /// Runs until the node stops.
    pub(crate) async fn run(self, place: StoreWatch, stopping: watch::Receiver<bool>) {
        let (base, puts) = (Instant::now(), OwnPuts::default());
        tokio::join!(self.put_all(base, &puts, stopping.clone()), async {
            let mut stopping = stopping;
            tokio::select! {
                () = self.read_all(place, base, &puts) => {}
                _ = stopping.wait_for(|stops| *stops) => {}
            }
        });
    }

    fn beat(&self, next: &NextBeat) -> Heartbeat {
        let ledger = self.node.ledger(&self.activity);
        let (facts, given_up) = (&self.node.facts, next.given_up.clone());
        let beat = Heartbeat::of(facts, next.number, wall_ms(), (self.vitals)(), ledger);
        Heartbeat { given_up, ..beat }
    }

    async fn put(&self, heartbeat: &Heartbeat) -> Result<(), BucketError> {
        let of = HeartbeatOf { fleet: self.fleet, node: &self.node.name };
        let bytes = of.seal(heartbeat, &self.key, self.keys.as_ref());
        self.bucket.put(&heartbeat_key(&self.node.name), bytes).await
    }

    async fn put_all(&self, base: Instant, puts: &OwnPuts, mut stopping: watch::Receiver<bool>) {
        let (mut beats, mut failing) = (HeartbeatSchedule::default(), false);
        loop {
            let pause = beats.pause_ms(getrandom::u64().unwrap_or_default());
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(pause)) => {}
                _ = stopping.wait_for(|stops| *stops) => break,
            }
            let (next, began) = (beats.next_beat(), Instant::now());
            let (beat, limit) = (self.beat(&next), Duration::from_millis(next.limit_ms));
            let put = tokio::select! {
                put = tokio::time::timeout(limit, self.put(&beat)) => put,
                _ = stopping.wait_for(|stops| *stops) => break,
            };
            let put = put.unwrap_or(Err(BucketError::Late(limit)));
            beats.ended(match &put {
                Ok(()) => PutEnd::Taken { ms: began.elapsed().as_millis() as u64 },
                Err(BucketError::Late(_)) => PutEnd::Late,
                Err(_) => PutEnd::Failed,
            });
            match put {
                Ok(()) => {
                    let now = base.elapsed().as_millis() as u64 + 1;
                    puts.taken_at.store(now, Ordering::Relaxed);
                    failing = false;
                }
                Err(error) => {
                    if !std::mem::replace(&mut failing, true) {
                        peer_line!(warn, LinePeer::Part("fleet store"), %error, "cannot upload this node's heartbeat");
                    }
                }
            }
            puts.first.notify_one();
        }
        let last = Heartbeat { stopping: true, ..self.beat(&beats.next_beat()) };
        if let Ok(Err(error)) = tokio::time::timeout(FAREWELL_LIMIT, self.put(&last)).await {
            tracing::debug!(%error, "cannot upload the final heartbeat");
        }
    }

    async fn read_all(&self, place: StoreWatch, base: Instant, puts: &OwnPuts) {
        let (name, boot) = (self.node.name.clone(), self.node.facts.boot);
        let claims = HashMap::new();
        let watch = FailureDetector::new(name, boot);
        let mut rounds = Rounds { base, watch, claims, place };
        // Waits for the first upload, because a round expects to find this node's own heartbeat.
        let _ = tokio::time::timeout(LATE_ROUND, puts.first.notified()).await;
        let mut ticks = tokio::time::interval(Duration::from_millis(LIST_EVERY_MS));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let read = {
                let round = tokio::time::timeout(ROUND_LIMIT, self.round(&mut rounds, puts));
                let mut round = std::pin::pin!(round);
                tokio::select! {
                    read = round.as_mut() => read,
                    () = tokio::time::sleep(LATE_ROUND) => {
                        self.away(format!("the store has not answered for {} s", LATE_ROUND.as_secs()));
                        round.await
                    }
                }
            };
            let read = match read.unwrap_or(Err(BucketError::Late(ROUND_LIMIT))) {
                Ok(read) => read,
                Err(error) => {
                    self.away(error.to_string());
                    continue;
                }
            };
            let at = (rounds.now(), wall_ms());
            for (name, read) in read {
                for news in rounds.watch.read(&name, read, at) {
                    rounds.report(&name, &news);
                }
            }
            self.node.sees(rounds.watch.snapshot(None));
        }
    }

    /// Publishes that the store is unavailable; known states are kept.
    fn away(&self, why: String) {
        let known = self.node.living.load_full();
        if known.away.is_none() {
            peer_line!(
                warn,
                LinePeer::Part("fleet store"),
                "cannot observe the fleet's nodes, their last known states are kept: {why}"
            );
        }
        self.node.sees(known.unseen(why));
    }

    /// Lists and reads once. A heartbeat that the store does not return is omitted, because this does not prove that the
    /// node is silent.
    async fn round(&self, rounds: &mut Rounds, puts: &OwnPuts) -> Result<Round, BucketError> {
        let (own, began) = (&self.node.name, rounds.now());
        let ListedSome { objects, is_whole } =
            self.bucket.list_up_to(HEARTBEATS, MAX_LISTED_BEATS).await?;
        if !is_whole {
            // Unlisted nodes cannot be judged.
            return Err(BucketError::Failed(format!(
                "there are more than {MAX_LISTED_BEATS} objects in {HEARTBEATS}: remove those that belong to no node"
            )));
        }
        let (mut beats, mut strays) = (Vec::new(), StrayObjects::default());
        for object in objects {
            let name = object.key.strip_prefix(HEARTBEATS).and_then(|it| it.strip_prefix('/'));
            match name.and_then(NodeName::parse) {
                Some(name) => beats.push((name, object.state)),
                None => strays.add(name.unwrap_or(&object.key)),
            }
        }
        let names: Vec<_> = beats.iter().map(|(name, _)| name.as_str().to_owned()).collect();
        rounds.place.check(&self.bucket, &names).await?;
        if !beats.iter().any(|(name, _)| name == own) {
            return Err(BucketError::Missing(heartbeat_key(own)));
        }
        let taken = puts.taken_at.load(Ordering::Relaxed);
        let trusted = taken > 0 && began.saturating_sub(taken) < DEAD_AFTER_MS / 2;
        let now = rounds.now();
        for (name, news) in rounds.watch.listed(beats, strays, now, trusted) {
            rounds.report(&name, &news);
        }
        let Rounds { watch, claims, .. } = rounds;
        claims.retain(|name, _| watch.knows(name));
        let read = watch.due_reads(now, &self.node.suspected.take()).into_iter().map(|name| {
            let known = claims.get(&name).cloned();
            async move {
                let read = tokio::time::timeout(BEAT_LIMIT, self.read(&name, known)).await;
                (name, read.unwrap_or(Err(BucketError::Late(BEAT_LIMIT))))
            }
        });
        let read: Vec<_> = read.collect();
        let mut read = stream::iter(read).buffer_unordered(READ_TOGETHER);
        let mut round = Vec::new();
        while let Some((name, read)) = read.next().await {
            match read {
                Ok((beat, verifier)) => {
                    claims.extend(verifier.map(|it| (name.clone(), it)));
                    round.push((name, beat));
                }
                Err(error) => {
                    tracing::debug!(%error, node = name.as_str(), "cannot read a heartbeat");
                }
            }
        }
        Ok(round)
    }

    /// Reads one node's heartbeat, verified with the key `known`, or with the key in the node's claim. Returns the
    /// key used.
    async fn read(
        &self,
        name: &NodeName,
        known: Option<VerifierKey>,
    ) -> Result<(Option<BeatRead>, Option<VerifierKey>), BucketError> {
        let key = heartbeat_key(name);
        let bytes = match self.bucket.get_up_to(&key, MAX_HEARTBEAT_BYTES).await {
            Ok(bytes) => bytes,
            Err(BucketError::Missing(_)) => return Ok((None, known)),
            Err(BucketError::TooLong(_)) => {
                return Ok((Some(Err(HeartbeatFault::TooLong)), known));
            }
            Err(error) => return Err(error),
        };
        let verifier = match known {
            Some(known) => Ok(known),
            None => self.verifier(name).await,
        };
        Ok(match verifier {
            Ok(verifier) => {
                let of = HeartbeatOf { fleet: self.fleet, node: name };
                (Some(of.open(&bytes, &verifier, self.keys.as_ref())), Some(verifier))
            }
            Err(fault) => (Some(Err(fault)), None),
        })
    }

    async fn verifier(&self, name: &NodeName) -> Result<VerifierKey, HeartbeatFault> {
        let claim = NodeClaim::fetch(&self.bucket, name.as_str()).await;
        let claim = claim.map_err(|error| HeartbeatFault::Claim(error.to_string()))?;
        let claim = claim.map_err(|fault| HeartbeatFault::Claim(fault.to_string()))?;
        let verifier = claim.verifier().map_err(HeartbeatFault::Claim)?;
        if verifier.name() != origin(&self.fleet.to_string(), name.as_str()) {
            return Err(HeartbeatFault::Claim("belongs to another node or fleet".to_owned()));
        }
        Ok(verifier)
    }
}

impl Rounds {
    fn now(&self) -> u64 {
        self.base.elapsed().as_millis() as u64
    }

    fn report(&mut self, name: &NodeName, news: &NodeEvent) {
        let node = name.as_str();
        match news {
            NodeEvent::Lives => {
                peer_line!(info, LinePeer::Node(node), node, "node is alive")
            }
            NodeEvent::Stopped => {
                peer_line!(info, LinePeer::Node(node), node, "node has stopped")
            }
            NodeEvent::Dead => {
                peer_line!(warn, LinePeer::Node(node), node, "node is dead: no heartbeat")
            }
            NodeEvent::Skewed(skew) => {
                peer_line!(warn, LinePeer::Node(node), node, "node: {}", describe_skew(*skew));
            }
            NodeEvent::Fault(fault) => {
                // Anyone who can write to the store can add any number of names.
                let peer = LinePeer::Part("heartbeats");
                peer_line!(warn, peer, node, "node: {fault}");
            }
            NodeEvent::Twice => {
                peer_line!(
                    error,
                    LinePeer::Node(node),
                    node,
                    "two processes use this node's name: stop one, or set another cluster.node for it"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::StrayObjects;
    use crate::failure_detector::FailureDetector;
    use crate::heartbeat::DEAD_AFTER_MS;
    use crate::heartbeat::tests::example;

    fn node(state: NodeState) -> NodeView {
        NodeView {
            name: NodeName::parse("b").unwrap(),
            is_self: false,
            state,
            heartbeat: None,
            skew_ms: None,
            silent_ms: 90_000,
            fault: None,
            twice: false,
            is_listed: true,
        }
    }

    #[test]
    fn dead_node_is_a_fault_until_its_heartbeat_is_removed() {
        let reported = dead(&node(NodeState::Dead)).unwrap();
        assert!(reported.starts_with("node 'b' is dead: no heartbeat for 90 s; "), "{reported}");
        assert!(reported.contains("remove heartbeats/b if it is decommissioned"), "{reported}");
        for state in [NodeState::Alive, NodeState::Stopped, NodeState::Unknown] {
            assert_eq!(dead(&node(state)), None);
        }
        let removed = NodeView { is_listed: false, ..node(NodeState::Dead) };
        assert_eq!(dead(&removed), None);
        assert_eq!(dead(&NodeView { is_self: true, ..node(NodeState::Dead) }), None);
    }

    fn name(text: &str) -> NodeName {
        NodeName::parse(text).unwrap()
    }

    #[test]
    fn readiness_wait_is_bounded_and_readiness_is_final() {
        let sight = ReadinessTracker::default();
        let now = Instant::now();
        assert_eq!(sight.at(now + 2 * READINESS_LIMIT), FleetReadiness::Awaited, "not serving yet");
        sight.begins();
        let began = *sight.began.get().unwrap();
        assert_eq!(sight.at(began), FleetReadiness::Awaited);
        sight.begins();
        assert_eq!(sight.at(began + READINESS_LIMIT), FleetReadiness::Unseen);

        let mut watch = FailureDetector::new(name("me"), BootId([9; 16]));
        watch.there_are([name("a")]);
        sight.sees(&Membership::default());
        sight.sees(&watch.snapshot(None));
        assert_eq!(sight.at(began), FleetReadiness::Awaited, "a was not read");
        watch.sees(&name("a"), Some(Ok(example(1, 1, 0))), (0, 0), true);
        sight.sees(&watch.snapshot(None));
        assert_eq!(sight.at(began), FleetReadiness::Awaited, "it may be old");
        watch.sees(&name("a"), Some(Ok(example(1, 2, 0))), (800, 0), true);
        sight.sees(&watch.snapshot(Some("the store is away".to_owned())));
        assert_eq!(sight.at(began), FleetReadiness::Awaited, "outdated");
        sight.sees(&watch.snapshot(None));
        assert_eq!(sight.at(began + READINESS_LIMIT), FleetReadiness::Seen);
        watch.there_are([name("a"), name("b")]);
        sight.sees(&watch.snapshot(None));
        assert_eq!(sight.at(began + READINESS_LIMIT), FleetReadiness::Seen, "b appeared later");
    }

    #[test]
    fn unreadable_node_is_awaited_while_its_object_changes() {
        let sight = ReadinessTracker::default();
        sight.begins();
        let began = *sight.began.get().unwrap();
        let mut watch = FailureDetector::new(name("me"), BootId([9; 16]));
        let mut list = |at: u64, state: u64| {
            let there = [(name("a"), state.to_string().into())];
            watch.listed(there, StrayObjects::default(), at * 1000, true);
            sight.sees(&watch.snapshot(None));
            sight.at(began)
        };
        for at in 0..60 {
            assert_eq!(list(at, at), FleetReadiness::Awaited, "after {at} s");
        }
        for at in 60..59 + DEAD_AFTER_MS / 1000 {
            assert_eq!(list(at, 59), FleetReadiness::Awaited, "after {at} s");
        }
        assert_eq!(list(59 + DEAD_AFTER_MS / 1000, 59), FleetReadiness::Seen, "dead");
    }

    #[test]
    fn node_without_heartbeat_is_awaited_as_long_as_a_silent_one() {
        let mut watch = FailureDetector::new(name("me"), BootId([9; 16]));
        watch.there_are([name("a")]);
        let undecided = |watch: &FailureDetector| watch.snapshot(None).undecided_reason().is_some();
        for at in 0..DEAD_AFTER_MS / 1000 {
            watch.sees(&name("a"), None, (at * 1000, 0), true);
            assert!(undecided(&watch), "after {at} s");
        }
        watch.sees(&name("a"), None, (DEAD_AFTER_MS, 0), true);
        assert!(!undecided(&watch));
    }

    #[test]
    fn lag_counts_the_records_that_are_not_uploaded() {
        let gauges = LedgerGauges::default();
        gauges.stands(10, 300, Some(5000));
        let standing = gauges.standing(14);
        assert_eq!((standing.lag_records, standing.lag_bytes), (4, 1200));
        assert!(standing.lag_ms >= 5000);
        assert_eq!(gauges.standing(10).lag_ms, 0, "nothing waits");
        gauges.failed(&"away");
        assert_eq!((gauges.failing(), gauges.standing(14).failures), (Some("away".into()), 1));
        gauges.put();
        gauges.stands(14, 300, None);
        let standing = gauges.standing(14);
        assert_eq!((gauges.failing(), standing.segments, standing.lag_ms), (None, 1, 0));
    }
}
