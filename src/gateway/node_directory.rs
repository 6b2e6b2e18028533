//! Directory of fleet nodes: locates state that is bound to one node. Inert without a fleet.
//!
//! The call path and sessions use this directory instead of the fleet itself. `downstream::placement` bases its
//! decisions on it.

use std::sync::Arc;

use mcpproxy_fleet::FleetNode;
use mcpproxy_fleet::config::NodeName;
use mcpproxy_fleet::failure_detector::{Membership, NodeState};
use mcpproxy_fleet::peers::Peers;
use mcpproxy_policy::approvals::ApprovalId;

pub use mcpproxy_fleet::node_state::NodeTag;
pub use mcpproxy_fleet::peer_wire::MAX_REQUEST_BYTES as MAX_FORWARDED_BYTES;

/// Handle to the fleet. The default handle belongs to no fleet and does nothing.
#[derive(Clone, Default)]
pub struct NodeDirectory(Option<Arc<FleetNode>>);

/// Location of state that one node holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whereabouts {
    /// This node, or a node that is not a member of the fleet.
    Here,
    /// The named node.
    On(Box<str>),
    /// A node without an advertised address.
    Unreachable,
    /// A node of unknown liveness: it or this node has just started, or the store is unavailable.
    NotKnown,
    /// A dead node.
    Gone,
}

/// The node that holds the call of an approval.
pub(crate) struct ApprovalHolder {
    pub(crate) node: Box<str>,
    pub(crate) is_here: bool,
}

impl NodeDirectory {
    pub fn new(node: Option<Arc<FleetNode>>) -> Self {
        Self(node)
    }

    /// This node's membership, if it is in a fleet.
    pub fn fleet_node(&self) -> Option<&Arc<FleetNode>> {
        self.0.as_ref()
    }

    /// Whether there is no fleet, so that this node holds all state.
    pub fn is_alone(&self) -> bool {
        self.0.is_none()
    }

    pub fn peers(&self) -> Option<&Arc<Peers>> {
        self.0.as_ref()?.peers()
    }

    /// This node's number, with which other nodes locate its state ([`NodeTag::number`]); 0 without a fleet or
    /// without `cluster.key`.
    pub(crate) fn own_number(&self) -> u32 {
        let node = self.0.as_ref().filter(|node| node.config.key.is_some());
        node.map_or(0, |node| NodeTag::of(&node.name).number() as u32)
    }

    /// Location of the node for whose tag `is_it` returns true.
    pub fn find(&self, is_it: impl Fn(NodeTag) -> bool) -> Whereabouts {
        match &self.0 {
            Some(fleet) if !is_it(NodeTag::of(&fleet.name)) => locate(&fleet.living(), is_it),
            Some(_) | None => Whereabouts::Here,
        }
    }

    /// The fleet node that holds the approval with this id.
    pub(crate) fn approval_holder(&self, id: &str) -> Option<ApprovalHolder> {
        let (fleet, mark) = (self.0.as_deref()?, ApprovalId::node_in(id)?);
        let is_it = |name: &NodeName| NodeTag::of(name).text() == mark;
        if is_it(&fleet.name) {
            return Some(ApprovalHolder { node: fleet.name.as_str().into(), is_here: true });
        }
        let living = fleet.living();
        let view = living.all().iter().find(|view| is_it(&view.name))?;
        Some(ApprovalHolder { node: view.name.as_str().into(), is_here: false })
    }

    /// Node that sends a principal's requests to servers with affinity, by rendezvous hashing over the reachable nodes;
    /// `None` if it is this node. Nodes with the same view of the fleet choose the same node.
    pub fn of_principal(&self, mark: [u8; 16]) -> Option<Box<str>> {
        let fleet = self.0.as_ref().filter(|fleet| fleet.peers().is_some())?;
        let living = fleet.living();
        let reachable = living.living().filter(|view| {
            view.heartbeat.as_ref().is_some_and(|heartbeat| heartbeat.advertise.is_some())
        });
        let key = blake3::hash(&mark);
        let weight = |name: &str| *blake3::keyed_hash(key.as_bytes(), name.as_bytes()).as_bytes();
        let highest = reachable.max_by_key(|view| weight(view.name.as_str()))?;
        (highest.name != fleet.name).then(|| highest.name.as_str().into())
    }

    /// Names of at most `max` other living nodes.
    pub fn others(&self, max: usize) -> Vec<Box<str>> {
        let Some(fleet) = &self.0 else { return Vec::new() };
        let living = fleet.living();
        let others = living.living().filter(|view| view.name != fleet.name);
        others.take(max).map(|view| view.name.as_str().into()).collect()
    }
}

impl std::fmt::Debug for NodeDirectory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("NodeDirectory").field(&self.0.is_some()).finish()
    }
}

fn locate(living: &Membership, is_it: impl Fn(NodeTag) -> bool) -> Whereabouts {
    match living.all().iter().find(|view| is_it(NodeTag::of(&view.name))) {
        None if living.may_be_incomplete() => Whereabouts::NotKnown,
        None => Whereabouts::Here,
        Some(view) if view.state == NodeState::Alive => {
            let advertised =
                view.heartbeat.as_ref().and_then(|heartbeat| heartbeat.advertise.as_ref());
            match advertised {
                Some(_) => Whereabouts::On(view.name.as_str().into()),
                None => Whereabouts::Unreachable,
            }
        }
        Some(view) if view.is_undecided() => Whereabouts::NotKnown,
        Some(_) => Whereabouts::Gone,
    }
}

#[cfg(test)]
mod tests {
    use mcpproxy_fleet::failure_detector::FailureDetector;
    use mcpproxy_fleet::heartbeat::{BootId, Heartbeat, LedgerStanding, NodeFacts, NodeVitals};

    use super::*;

    fn heartbeat(beat: u64) -> Heartbeat {
        let facts = NodeFacts {
            boot: BootId([1; 16]),
            started_at: 1,
            version: "1.2.3".into(),
            commit: "abc".into(),
            advertise: Some("http://127.0.0.1:1".into()),
            index: "false".into(),
        };
        let vitals = NodeVitals { config: "c".into(), sessions: 3 };
        Heartbeat::of(&facts, beat, 0, vitals, LedgerStanding::default())
    }

    #[test]
    fn only_a_dead_node_counts_as_gone() {
        let [own, a] = ["me", "a"].map(|name| NodeName::parse(name).unwrap());
        let is_a = |tag| tag == NodeTag::of(&a);
        let of = |living: &Membership| locate(living, is_a);
        let away = || "the store is away".to_owned();
        assert_eq!(of(&Membership::default()), Whereabouts::NotKnown, "no heartbeat was read");
        assert_eq!(of(&Membership::default().unseen(away())), Whereabouts::NotKnown);
        let mut watch = FailureDetector::new(own, BootId([9; 16]));
        assert_eq!(of(&watch.snapshot(None)), Whereabouts::Here, "unknown node");
        assert_eq!(of(&watch.snapshot(Some(away()))), Whereabouts::NotKnown, "it may be new");
        watch.listed([(a.clone(), "".into())], Default::default(), 0, false);
        assert_eq!(of(&watch.snapshot(None)), Whereabouts::NotKnown, "its heartbeat was not read");
        let changed = |number, change: fn(&mut Heartbeat)| {
            let mut heartbeat = heartbeat(number);
            change(&mut heartbeat);
            heartbeat
        };
        let mut read = |heartbeat: Heartbeat, now| {
            let listed = (a.clone(), heartbeat.beat.to_string().into());
            watch.listed([listed], Default::default(), now, true);
            watch.read(&a, Some(Ok(heartbeat)), (now, 0));
            watch.snapshot(None)
        };
        assert_eq!(of(&read(heartbeat(1), 0)), Whereabouts::NotKnown, "the heartbeat may be old");
        let living = read(heartbeat(2), 1000);
        assert_eq!(of(&living), Whereabouts::On("a".into()));
        assert_eq!(of(&living.unseen(away())), Whereabouts::On("a".into()));
        assert_eq!(
            of(&read(changed(3, |heartbeat| heartbeat.advertise = None), 2000)),
            Whereabouts::Unreachable
        );
        let silent = (1..=mcpproxy_fleet::heartbeat::DEAD_AFTER_MS / 1000)
            .map(|at| read(heartbeat(3), 2000 + at * 1000));
        assert_eq!(of(&silent.last().unwrap()), Whereabouts::Gone);
        let stopped = changed(4, |heartbeat| heartbeat.stopping = true);
        assert_eq!(of(&read(stopped, 60_000)), Whereabouts::Gone);
    }
}
