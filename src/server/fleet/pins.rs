//! Replication of definition pins in a fleet: definitions pinned, quarantined or approved on one node are shared by hash and apply on all.
//! The merge is in `catalog::pins`.
//!
//! ```text
//! pins of this node ─▶ facts (each published once, by the first node) ─▶ SharedPins ─▶ catalog: quarantined, released, approved
//! ```

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::audit_records::{held_elsewhere, known_elsewhere};
use mcpproxy_activity::Activity;
use mcpproxy_activity::record::{Draft, MAX_METADATA_BYTES, Raw, Source, Status, Text, Type};
use mcpproxy_catalog::definition::DefinitionDigest;
use mcpproxy_catalog::pin_decisions::ApprovalTarget;
use mcpproxy_catalog::pins::{SharedPins, SharedVerdict};
use mcpproxy_catalog::{Catalog, Snapshot};
use mcpproxy_fleet::facts::{
    FactKind, FactRefused, FactSet, FactState, FleetFacts, MAX_OWN_BYTES, MemoryError, NodeName,
};
use mcpproxy_policy::tool::ToolName;
use mcpproxy_runtime::io::line_budget::{LinePeer, peer_line};

/// Minimum interval between steps.
const MIN_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum size of shared state that automatic pins and quarantines may use, in bytes; the rest is reserved for decisions of people.
const MAX_AUTOMATIC_BYTES: usize = 12 << 20;
const _: () = assert!(MAX_AUTOMATIC_BYTES + (4 << 20) <= MAX_OWN_BYTES);
/// Name of this part in reported faults.
const PART: &str = "pins of definitions";

/// Verdicts by kind of fact.
const KINDS: [(FactKind, SharedVerdict); 3] = [
    (FactKind::Pinned, SharedVerdict::Pinned),
    (FactKind::Held, SharedVerdict::Held),
    (FactKind::Definition, SharedVerdict::Approved),
];

/// Synchronizes pins with the fleet until aborted.
pub(super) async fn keep(catalog: Arc<Catalog>, activity: Activity, facts: FleetFacts) {
    let (mut changes, mut swaps) = (facts.changes(), catalog.swaps());
    let mut published: Option<Arc<Snapshot>> = None;
    let mut applied = SharedPins::default();
    loop {
        changes.mark_unchanged();
        swaps.mark_unchanged();
        let now = catalog.load();
        if !published.as_ref().is_some_and(|published| Arc::ptr_eq(published, &now)) {
            publish(&facts, Arc::clone(&now)).await;
            published = Some(now);
        }
        let next = of_fleet(&facts.facts());
        if next != applied {
            apply(&catalog, &activity, next.clone()).await;
            applied = next;
        }
        apply_approvals(&catalog, &activity, &facts, &catalog.load()).await;
        tokio::time::sleep(MIN_INTERVAL).await;
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            changed = swaps.changed() => if changed.is_err() { return },
        }
    }
}

/// The fleet's verdicts on definitions.
pub(crate) fn of_fleet(facts: &FactSet) -> SharedPins {
    let mut pins = SharedPins::default();
    for (kind, verdict) in KINDS {
        for (name, _) in facts.of(kind).filter(|(_, fact)| fact.state != FactState::Ended) {
            let read = name.rsplit_once('/').and_then(|(tool, digest)| {
                Some((ToolName::parse(tool)?, DefinitionDigest::parse(digest)?))
            });
            if let Some((tool, digest)) = read {
                pins.add(&tool, digest, verdict);
            }
        }
    }
    pins
}

fn fact_name(tool: &ToolName, digest: DefinitionDigest) -> String {
    format!("{}:{}/{digest}", tool.server, tool.tool)
}

/// Facts about pins of this node that no node has published yet.
fn unpublished(now: &Snapshot, known: &FactSet) -> Vec<(FactKind, String)> {
    let of_fleet = of_fleet(known);
    let mut pending = Vec::new();
    for (server, tool, pin) in now.pins() {
        let tool = ToolName { server: Arc::clone(server), tool: Arc::clone(tool) };
        let mut add = |kind, digest| {
            let name = fact_name(&tool, digest);
            if known.get(kind, &name).is_none() {
                pending.push((kind, name));
            }
        };
        if let Some(accepted) = &pin.accepted {
            let kind = match accepted.by_operator {
                true => FactKind::Definition,
                false => FactKind::Pinned,
            };
            add(kind, accepted.digest);
        }
        // For a tool that only other nodes have accepted, the verdict of those nodes applies.
        if let Some(held) = pin.held.filter(|_| pin.accepted.is_some() || !of_fleet.knows(&tool)) {
            add(FactKind::Held, held);
        }
    }
    pending
}

/// Publishes as many facts as fit. Returns the number of the others.
fn publish_fitting(set: &mut FactSet, node: &NodeName, pending: Vec<(FactKind, String)>) -> usize {
    let mut left = 0;
    for (kind, name) in pending {
        let is_decided = !matches!(kind, FactKind::Pinned | FactKind::Held);
        let result = match is_decided || set.bytes_of(node) <= MAX_AUTOMATIC_BYTES {
            true => set.set_value(node, kind, &name, "{}"),
            false => Err(FactRefused::Full),
        };
        left += usize::from(result.is_err());
    }
    left
}

/// Publishes the pins of this node.
async fn publish(facts: &FleetFacts, now: Arc<Snapshot>) {
    let facts = facts.clone();
    let published = tokio::task::spawn_blocking(move || {
        let pending = unpublished(&now, &facts.facts());
        if pending.is_empty() {
            facts.report_fault(PART, None);
            return Ok::<_, MemoryError>(());
        }
        let node = facts.node().clone();
        let left = facts.change(|set, _| publish_fitting(set, &node, pending))?;
        let why = format!(
            "{left} pins and quarantines of definitions apply on this node only: at most {} MiB of them are shared; find the server whose tool list keeps changing",
            MAX_AUTOMATIC_BYTES >> 20
        );
        facts.report_fault(PART, Some(why).filter(|_| left > 0));
        Ok(())
    });
    if let Ok(Err(error)) = published.await {
        peer_line!(error, LinePeer::Part("shared pins"), %error, "definition pins cannot be stored for the fleet");
    }
}

/// Applies the fleet's verdicts to the catalog.
async fn apply(catalog: &Arc<Catalog>, activity: &Activity, pins: SharedPins) {
    let of = Arc::clone(catalog);
    let Ok(effect) = tokio::task::spawn_blocking(move || of.share(pins)).await else {
        peer_line!(
            error,
            LinePeer::Part("shared pins"),
            "applying the fleet's verdicts on definitions failed unexpectedly"
        );
        return;
    };
    if let Some(error) = effect.disk {
        peer_line!(
            warn,
            LinePeer::Part("shared pins"),
            error,
            "the fleet's verdicts on definitions will not survive a restart"
        );
    }
    for (tool, _) in effect.withheld {
        activity.note(held_elsewhere(&tool.server, &tool.tool));
    }
    for (tool, _) in effect.released {
        activity.note(known_elsewhere(&tool.server, &tool.tool));
    }
}

/// Approves quarantined definitions that were approved on another node.
async fn apply_approvals(
    catalog: &Arc<Catalog>,
    activity: &Activity,
    facts: &FleetFacts,
    now: &Snapshot,
) {
    let known = facts.facts();
    let servers = now.servers().map(|(server, _)| server);
    let waits = servers.flat_map(|server| now.quarantined(server));
    let waits: Vec<_> = waits.map(|it| (it.tool.name.clone(), it.digest)).collect();
    for (tool, digest) in waits {
        let fact = known.get(FactKind::Definition, &fact_name(&tool, digest));
        let Some(fact) = fact.filter(|fact| fact.state != FactState::Ended) else { continue };
        // The definition may have changed in the meantime; in that case, the next step handles it.
        let Ok(approved) = catalog.approve(ApprovalTarget::OneTool(tool.clone()), digest).await
        else {
            continue;
        };
        if let Some(error) = approved.disk {
            peer_line!(
                warn,
                LinePeer::Part("shared pins"),
                error,
                "an approval from the fleet will not survive a restart"
            );
        }
        let mut draft = Draft::new(Type::Approval, Source::Internal, Status::Success);
        draft.set(Text::Server, &tool.server);
        draft.set(Text::Tool, &tool.tool);
        let node = fact.stamp.node.as_str();
        let metadata =
            json!({"approval": "definition", "digest": digest.to_string(), "node": node});
        draft.keep(Raw::Metadata, metadata.to_string().as_bytes(), MAX_METADATA_BYTES);
        activity.note(draft);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn automatic_facts_leave_space_for_decisions_of_people() {
        let node = NodeName::parse("a").unwrap();
        let mut set = FactSet::default();
        // A server with long tool names and changing definitions.
        let name = |at: usize| format!("s:{at:0>900}/{}", DefinitionDigest::of(&at.to_le_bytes()));
        for kind in [FactKind::Held, FactKind::Pinned] {
            let all: Vec<_> = (0..20_000).map(|at| (kind, name(at))).collect();
            assert!(publish_fitting(&mut set, &node, all) > 0, "{kind:?}");
        }
        for token in 0..3 {
            let result =
                set.set_value(&node, FactKind::Token, &token.to_string(), &"x".repeat(1 << 20));
            assert_eq!(result, Ok(true), "{token}");
        }
        assert_eq!(publish_fitting(&mut set, &node, vec![(FactKind::Definition, name(1))]), 0);
    }

    proptest! {
        #[test]
        fn merge_order_does_not_affect_the_result(
            published in prop::collection::vec((0..3_usize, 0..2_u8, 0..2_u8, 0..3_usize), 0..16),
            reads in prop::collection::vec((0..3_usize, 0..3_usize), 0..12),
        ) {
            let nodes = ["a", "b", "c"].map(|name| NodeName::parse(name).unwrap());
            let mut sets = vec![FactSet::default(); 3];
            let read = |sets: &mut Vec<FactSet>, at: usize, of: usize| {
                let object = sets[of].authored_by(&nodes[of]);
                sets[at].merge(&object);
            };
            let mut reads = reads.into_iter();
            for (at, tool, digest, kind) in &published {
                let tool = ToolName { server: "s".into(), tool: tool.to_string().into() };
                let name = fact_name(&tool, DefinitionDigest::of(&[*digest]));
                sets[*at].set_value(&nodes[*at], KINDS[*kind].0, &name, "{}").unwrap();
                if let Some((at, of)) = reads.next() {
                    read(&mut sets, at, of);
                }
            }
            for at in 0..3 {
                // Each node uses a different order.
                for of in [at + 1, at + 2, at] {
                    read(&mut sets, at, of % 3);
                }
            }
            let pins = of_fleet(&sets[0]);
            for set in &sets {
                prop_assert_eq!(&of_fleet(set), &pins);
            }
            for (_, tool, digest, kind) in published {
                let tool = ToolName { server: "s".into(), tool: tool.to_string().into() };
                let verdict = pins.verdict(&tool, DefinitionDigest::of(&[digest]));
                prop_assert!(verdict >= Some(KINDS[kind].1), "{:?}", verdict);
            }
        }
    }
}
