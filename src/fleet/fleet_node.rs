//! A node of a fleet, as the rest of the program sees it: who lives, how the ledger stands, and the way to other nodes.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use super::chain_names::NamedChain;
use super::config::{ClusterConfig, NodeName};
use super::doubted_nodes::DoubtedNodes;
use super::facts::FleetFacts;
use super::fleet_sight::{FleetSight, SightSinceStart};
use super::heartbeat::{BootId, LedgerStanding, NodeFacts};
use super::ledger_gauges::LedgerGauges;
use super::living_nodes::LivingNodes;
use super::peers::Peers;
use super::sealed_mark::FleetId;
use crate::activity::Activity;
use crate::io::clock::wall_ms;

/// The least that a record may wait for the store without a word of it: a slow put is no fault.
const LATE: Duration = Duration::from_secs(15);

/// Which program this is.
#[derive(Clone, Copy, Debug)]
pub struct ProgramBuild {
    /// Its version.
    pub version: &'static str,
    /// The commit it was built of.
    pub commit: &'static str,
}

/// This node of its fleet.
#[derive(Debug)]
pub struct FleetNode {
    /// Its name.
    pub name: NodeName,
    /// `cluster`
    pub config: ClusterConfig,
    /// What it says of itself that stays the same.
    pub facts: NodeFacts,
    pub(super) gauges: LedgerGauges,
    pub(super) living: Arc<ArcSwap<LivingNodes>>,
    pub(super) doubted: DoubtedNodes,
    sight: SightSinceStart,
    fleet: OnceLock<FleetId>,
    peers: OnceLock<Arc<Peers>>,
    shared: OnceLock<FleetFacts>,
    chains: ArcSwap<BTreeMap<String, NamedChain>>,
    /// Why chains are not looked at, beside that the store is away.
    chains_unseen: Mutex<Option<String>>,
}

impl FleetNode {
    /// A node that has just started, and has no place yet.
    ///
    /// # Errors
    ///
    /// The system gives no randomness.
    pub(super) fn new(
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
            doubted: DoubtedNodes::default(),
            sight: SightSinceStart::default(),
            fleet: OnceLock::new(),
            peers: OnceLock::new(),
            shared: OnceLock::new(),
            chains: ArcSwap::default(),
            chains_unseen: Mutex::default(),
        })
    }

    /// It serves from now on.
    pub(super) fn begins(&self) {
        self.sight.begins();
    }

    /// Who lives is judged so now.
    pub(super) fn sees(&self, living: LivingNodes) {
        self.sight.sees(&living);
        self.living.store(Arc::new(living));
    }

    /// Whether it was seen since the start who lives; `None` without `cluster.key`, where no other node is asked for anything.
    #[must_use]
    pub fn sight(&self) -> Option<FleetSight> {
        self.config.key.as_ref().map(|_| self.sight.at(Instant::now()))
    }

    /// It has its place.
    pub(super) fn joined(&self, fleet: FleetId, peers: Option<Peers>) {
        let _ = self.fleet.set(fleet);
        if let Some(peers) = peers {
            let _ = self.peers.set(Arc::new(peers));
        }
    }

    /// The fleet; `None` before the node has its place.
    #[must_use]
    pub fn fleet(&self) -> Option<FleetId> {
        self.fleet.get().copied()
    }

    /// The way to other nodes; `None` without `cluster.key`, and before the node has its place.
    #[must_use]
    pub fn peers(&self) -> Option<&Arc<Peers>> {
        self.peers.get()
    }

    /// It shares these with its fleet.
    pub fn shares(&self, facts: FleetFacts) {
        let _ = self.shared.set(facts);
    }

    /// What it shares with its fleet beside the log; `None` without `cluster.key`.
    #[must_use]
    pub fn shared(&self) -> Option<&FleetFacts> {
        self.shared.get()
    }

    /// What the names of the segments in the store say of the chains that this node does not follow, by their nodes.
    #[must_use]
    pub fn chains(&self) -> Arc<BTreeMap<String, NamedChain>> {
        self.chains.load_full()
    }

    pub(super) fn saw_chains(&self, chains: BTreeMap<String, NamedChain>) {
        self.chains.store(Arc::new(chains));
    }

    pub(super) fn sees_no_chains(&self, why: Option<String>) {
        *self.chains_unseen.lock() = why;
    }

    /// What is wrong with what the fleet shares beside the log, a line for each.
    fn fact_faults(&self) -> Vec<String> {
        let Some(facts) = self.shared() else { return Vec::new() };
        let standing = facts.standing();
        let mut faults: Vec<_> =
            standing.faults.iter().map(|(key, why)| format!("{key}: {why}")).collect();
        faults.extend(facts.told_faults());
        if let Some(stale) = standing.stale() {
            let why = standing.failing.as_deref().unwrap_or("the store is slow");
            let seconds = stale.as_secs();
            faults.push(format!(
                "what the fleet shares was read {seconds} s ago, and is as it was then: {why}"
            ));
        }
        faults
    }

    /// Who lives, as it was judged last.
    #[must_use]
    pub fn living(&self) -> Arc<LivingNodes> {
        self.living.load_full()
    }

    /// How the ledger of this node stands.
    #[must_use]
    pub fn ledger(&self, activity: &Activity) -> LedgerStanding {
        let lost = activity.health().lost;
        LedgerStanding { lost, ..self.gauges.standing(activity.durable_seq()) }
    }

    /// What is wrong with the fleet, as far as this node sees it; each in one line.
    #[must_use]
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
                "this node has no place in its fleet yet: its store is not reached".to_owned(),
            );
        }
        let living = self.living.load();
        if let Some(away) = &living.away {
            faults.push(format!(
                "the fleet's nodes are not seen, what is known of them is old: {away}"
            ));
        }
        if let Some(strays) = &living.strays {
            faults.push(format!("among the heartbeats of the fleet: {strays}"));
        }
        for node in living.all() {
            let name = node.name.as_str();
            if node.twice {
                faults.push(format!(
                    "two processes use the name of node '{name}': end one, or give it another cluster.node"
                ));
            }
            if let Some(fault) = &node.fault {
                faults.push(format!("node '{name}': {fault}"));
            }
            if node.is_skewed() && node.state == super::living_nodes::NodeState::Living {
                let skew = node.skew_ms.unwrap_or_default();
                faults.push(format!("node '{name}': {}", skew_words(skew)));
            }
        }
        faults.extend(self.fact_faults());
        if let Some(why) = &*self.chains_unseen.lock() {
            faults.push(format!("the segments of other nodes are not looked at: {why}"));
        }
        let chains = self.chains.load();
        faults.extend(chains.iter().flat_map(|(node, chain)| chain.faults(node)));
        faults
    }
}

/// How far clocks are apart, in words.
#[must_use]
pub fn skew_words(skew_ms: i64) -> String {
    let (seconds, side) =
        (skew_ms.unsigned_abs() / 1000, if skew_ms > 0 { "behind" } else { "ahead of" });
    format!("its clock is {seconds} s {side} this node's: set one of them")
}
