//! Heartbeats at work: this node's is put, and those of all are listed and some of them read, until the node ends. Decides
//! nothing: who lives, whose is read, and for how long a put is waited for, is `living_nodes`', what a heartbeat is
//! `heartbeat`'s.
//!
//! Putting and reading wait for each other in nothing but the first put. One put and one round of readings are under way at a
//! time; a put that hangs is given up, and what a store that hangs for good has of those is bounded
//! (`living_nodes::OwnBeats`).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use tokio::sync::{Notify, watch};
use tokio::time::MissedTickBehavior;

use super::bucket::{Bucket, BucketError, ListedSome};
use super::checkpoint::origin;
use super::cluster_key::PurposeKeys;
use super::config::NodeName;
use super::fleet_node::{FleetNode, skew_words};
use super::heartbeat::{
    HEARTBEATS, Heartbeat, HeartbeatFault, HeartbeatOf, MAX_HEARTBEAT_BYTES, NodeVitals,
    heartbeat_key,
};
use super::joining::NodeClaim;
use super::line_budget::{LineBudget, LineLeave};
use super::living_nodes::{
    BeatRead, DEAD_AFTER_MS, LIST_EVERY_MS, MAX_LISTED_BEATS, NextBeat, NodeNews, NodeWatch,
    OwnBeats, PutEnd,
};
use super::node_key::NodeKey;
use super::own_place::PlaceWatch;
use super::sealed_mark::FleetId;
use super::signed_note::VerifierKey;
use super::strays::StrayObjects;
use crate::activity::Activity;
use crate::io::clock::wall_ms;

/// What a node says of itself that is another each time.
pub type VitalsOf = Arc<dyn Fn() -> NodeVitals + Send + Sync>;

/// Heartbeats that are read at the same time.
const READ_TOGETHER: usize = 16;
/// A round that takes longer is told to whoever asks who lives; it goes on.
const LATE_ROUND: Duration = Duration::from_secs(3);
/// Most time for one of them, so that one that hangs keeps none of the others from being seen: below [`LATE_ROUND`].
const BEAT_LIMIT: Duration = Duration::from_millis(2_500);
/// Most time for one round.
const ROUND_LIMIT: Duration = Duration::from_secs(30);
/// Most time for the last heartbeat.
const FAREWELL_LIMIT: Duration = Duration::from_secs(2);

/// What puts and reads them.
pub(super) struct Heartbeats {
    pub(super) node: Arc<FleetNode>,
    pub(super) bucket: Bucket,
    pub(super) fleet: FleetId,
    pub(super) key: NodeKey,
    pub(super) keys: Option<PurposeKeys>,
    pub(super) activity: Activity,
    pub(super) vitals: VitalsOf,
}

/// What one round has read: whose, and what.
type Round = Vec<(NodeName, Option<BeatRead>)>;

/// What the rounds go by.
struct Rounds {
    base: Instant,
    watch: NodeWatch,
    /// The claims of the nodes, as they were first read.
    claims: HashMap<NodeName, VerifierKey>,
    /// Lines about what is wrong with heartbeats.
    lines: LineBudget,
    /// Whether this is the store that the node has its place in.
    place: PlaceWatch,
}

/// How this node's own puts go, for who reads.
#[derive(Default)]
struct OwnPuts {
    /// When the last one was taken, in milliseconds after the start, and one; 0: never.
    taken_at: AtomicU64,
    /// The first one is over, whatever came of it.
    first: Notify,
}

impl Heartbeats {
    /// Until the node stops.
    pub(super) async fn run(self, place: PlaceWatch, stopping: watch::Receiver<bool>) {
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
        let (mut beats, mut failing) = (OwnBeats::default(), false);
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
                        tracing::warn!(%error, "the fleet cannot be told that this node lives");
                    }
                }
            }
            puts.first.notify_one();
        }
        let last = Heartbeat { stopping: true, ..self.beat(&beats.next_beat()) };
        if let Ok(Err(error)) = tokio::time::timeout(FAREWELL_LIMIT, self.put(&last)).await {
            tracing::debug!(%error, "the fleet was not told that this node stops");
        }
    }

    async fn read_all(&self, place: PlaceWatch, base: Instant, puts: &OwnPuts) {
        let (name, boot) = (self.node.name.clone(), self.node.facts.boot);
        let (claims, lines) = (HashMap::new(), LineBudget::default());
        let watch = NodeWatch::new(name, boot);
        let mut rounds = Rounds { base, watch, claims, lines, place };
        // Its own is looked for among the others.
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
                        self.away(format!("its store has not answered for {} s", LATE_ROUND.as_secs()));
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
                    rounds.tell(&name, &news);
                }
            }
            self.node.sees(rounds.watch.snapshot(None));
        }
    }

    /// Nobody can be judged: what is known stays, and is old.
    fn away(&self, why: String) {
        let known = self.node.living.load_full();
        if known.away.is_none() {
            tracing::warn!("the fleet's nodes are not seen, what is known of them is old: {why}");
        }
        self.node.sees(known.unseen(why));
    }

    /// Lists and reads once. A heartbeat that the store would not give is left out: that is not its node's silence.
    async fn round(&self, rounds: &mut Rounds, puts: &OwnPuts) -> Result<Round, BucketError> {
        let (own, began) = (&self.node.name, rounds.now());
        let ListedSome { objects, is_whole } =
            self.bucket.list_up_to(HEARTBEATS, MAX_LISTED_BEATS).await?;
        if !is_whole {
            // Of those that are not seen it is not known whether they live.
            return Err(BucketError::Failed(format!(
                "there are more than {MAX_LISTED_BEATS} objects in {HEARTBEATS}: remove what is no node's"
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
            rounds.tell(&name, &news);
        }
        let Rounds { watch, claims, .. } = rounds;
        claims.retain(|name, _| watch.knows(name));
        let read = watch.to_read(now, &self.node.doubted.take()).into_iter().map(|name| {
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
                    tracing::debug!(%error, node = name.as_str(), "a heartbeat was not read");
                }
            }
        }
        Ok(round)
    }

    /// Reads that of one node, which is verified by its claim as it was when it was first read: the one `known`, or the one
    /// that it answers.
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
            return Err(HeartbeatFault::Claim("it is that of another node or fleet".to_owned()));
        }
        Ok(verifier)
    }
}

impl Rounds {
    fn now(&self) -> u64 {
        self.base.elapsed().as_millis() as u64
    }

    fn tell(&mut self, name: &NodeName, news: &NodeNews) {
        let node = name.as_str();
        match news {
            NodeNews::Lives => tracing::info!(node, "a node of the fleet lives"),
            NodeNews::Stopped => tracing::info!(node, "a node of the fleet has stopped"),
            NodeNews::Silent => tracing::warn!(node, "a node of the fleet says nothing any more"),
            NodeNews::Skewed(skew) => {
                tracing::warn!(node, "of a node of the fleet: {}", skew_words(*skew));
            }
            NodeNews::Fault(fault) => {
                // Whoever can write into the store causes as many as he likes.
                let leave = self.lines.take(self.now());
                if leave != LineLeave::LeaveOut {
                    tracing::warn!(node, "of a node of the fleet: {fault}");
                }
                if leave == LineLeave::Last {
                    tracing::warn!(
                        "more such lines are left out for a minute: fleet status has them"
                    );
                }
            }
            NodeNews::Twice => {
                tracing::error!(
                    node,
                    "two processes use this node's name: end one, or give it another cluster.node"
                );
            }
        }
    }
}
