//! Definitions of tools in a fleet: what is pinned, held or approved at one node is told to all, and what they say counts here,
//! by the hash of that very definition. What counts is `catalog::shared_pins`'.
//!
//! ```text
//! pins of this node ─▶ facts (each said once, by whoever is first) ─▶ SharedPins ─▶ catalog: held, released, approved here too
//! ```

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::definition_records::{held_elsewhere, known_elsewhere};
use crate::activity::Activity;
use crate::activity::record::{Draft, MAX_METADATA_BYTES, Raw, Source, Status, Text, Type};
use crate::catalog::approving::ApprovalTarget;
use crate::catalog::definition::DefinitionDigest;
use crate::catalog::shared_pins::{SharedPins, SharedVerdict};
use crate::catalog::{Catalog, Snapshot};
use crate::fleet::facts::{
    FactKind, FactRefused, FactSet, FactState, FleetFacts, MAX_OWN_BYTES, MemoryError, NodeName,
};
use crate::tool::ToolName;

/// The shortest time from one look to the next, however much changes.
const LEAST_PAUSE: Duration = Duration::from_millis(50);
/// Most bytes that this node has said when it says one more of what no person decides: the rest is for what people do.
const MAX_SAID_BYTES: usize = 12 << 20;
const _: () = assert!(MAX_SAID_BYTES + (4 << 20) <= MAX_OWN_BYTES);
/// Under which name it is told that it says no more.
const PART: &str = "pins of definitions";

/// Which facts say what of a definition.
const KINDS: [(FactKind, SharedVerdict); 3] = [
    (FactKind::Pinned, SharedVerdict::Pinned),
    (FactKind::Held, SharedVerdict::Held),
    (FactKind::Definition, SharedVerdict::Approved),
];

/// Keeps pins in step until it is aborted.
pub(super) async fn keep(catalog: Arc<Catalog>, activity: Activity, facts: FleetFacts) {
    let (mut changes, mut swaps) = (facts.changes(), catalog.swaps());
    let mut told: Option<Arc<Snapshot>> = None;
    let mut counts = SharedPins::default();
    loop {
        changes.mark_unchanged();
        swaps.mark_unchanged();
        let now = catalog.load();
        if !told.as_ref().is_some_and(|told| Arc::ptr_eq(told, &now)) {
            tell(&facts, Arc::clone(&now)).await;
            told = Some(now);
        }
        let next = of_fleet(&facts.facts());
        if next != counts {
            share(&catalog, &activity, next.clone()).await;
            counts = next;
        }
        take_over(&catalog, &activity, &facts, &catalog.load()).await;
        tokio::time::sleep(LEAST_PAUSE).await;
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            changed = swaps.changed() => if changed.is_err() { return },
        }
    }
}

/// What the fleet says of definitions.
pub(super) fn of_fleet(facts: &FactSet) -> SharedPins {
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

/// What this node has to say of its pins that nobody has said yet.
fn unsaid(now: &Snapshot, known: &FactSet) -> Vec<(FactKind, String)> {
    let of_fleet = of_fleet(known);
    let mut unsaid = Vec::new();
    for (server, tool, pin) in now.pins() {
        let tool = ToolName { server: Arc::clone(server), tool: Arc::clone(tool) };
        let mut say = |kind, digest| {
            let name = fact_name(&tool, digest);
            if known.get(kind, &name).is_none() {
                unsaid.push((kind, name));
            }
        };
        if let Some(accepted) = &pin.accepted {
            let kind = match accepted.by_operator {
                true => FactKind::Definition,
                false => FactKind::Pinned,
            };
            say(kind, accepted.digest);
        }
        // A tool that the others know better than this node does: what they say of it counts.
        if let Some(held) = pin.held.filter(|_| pin.accepted.is_some() || !of_fleet.knows(&tool)) {
            say(FactKind::Held, held);
        }
    }
    unsaid
}

/// Says these, as far as there is room; how many are left.
fn say(set: &mut FactSet, node: &NodeName, unsaid: Vec<(FactKind, String)>) -> usize {
    let mut left = 0;
    for (kind, name) in unsaid {
        let is_decided = !matches!(kind, FactKind::Pinned | FactKind::Held);
        let said = match is_decided || set.bytes_of(node) <= MAX_SAID_BYTES {
            true => set.say(node, kind, &name, "{}"),
            false => Err(FactRefused::Full),
        };
        left += usize::from(said.is_err());
    }
    left
}

/// Tells the fleet what is pinned here.
async fn tell(facts: &FleetFacts, now: Arc<Snapshot>) {
    let facts = facts.clone();
    let told = tokio::task::spawn_blocking(move || {
        let unsaid = unsaid(&now, &facts.facts());
        if unsaid.is_empty() {
            facts.tell_fault(PART, None);
            return Ok::<_, MemoryError>(());
        }
        let node = facts.node().clone();
        let left = facts.change(|set, _| say(set, &node, unsaid))?;
        let why = format!(
            "{left} pins and quarantines of definitions count on this node alone: it shares {} MiB of them, and the rest is for what people decide; see which server lists ever other tools",
            MAX_SAID_BYTES >> 20
        );
        facts.tell_fault(PART, Some(why).filter(|_| left > 0));
        Ok(())
    });
    if let Ok(Err(error)) = told.await {
        tracing::error!(%error, "pins of definitions cannot be remembered for the fleet");
    }
}

/// What the fleet says counts for what is listed here.
async fn share(catalog: &Arc<Catalog>, activity: &Activity, pins: SharedPins) {
    let of = Arc::clone(catalog);
    let Ok(effect) = tokio::task::spawn_blocking(move || of.share(pins)).await else {
        tracing::error!("what the fleet says of definitions cannot be taken over");
        return;
    };
    if let Some(error) = effect.disk {
        tracing::warn!(error, "what the fleet says of definitions does not outlast a restart");
    }
    for (tool, _) in effect.withheld {
        activity.note(held_elsewhere(&tool.server, &tool.tool));
    }
    for (tool, _) in effect.released {
        activity.note(known_elsewhere(&tool.server, &tool.tool));
    }
}

/// Approves what waits here and was approved elsewhere.
async fn take_over(
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
        // It may have changed since: then it is looked at again.
        let Ok(approved) = catalog.approve(ApprovalTarget::OneTool(tool.clone()), digest).await
        else {
            continue;
        };
        if let Some(error) = approved.disk {
            tracing::warn!(error, "an approval of the fleet does not outlast a restart");
        }
        let mut draft = Draft::new(Type::Approval, Source::Internal, Status::Success);
        draft.set(Text::Server, &tool.server);
        draft.set(Text::Tool, &tool.tool);
        let node = fact.stamp.node.as_str();
        let told = json!({"approval": "definition", "digest": digest.to_string(), "node": node});
        draft.keep(Raw::Metadata, told.to_string().as_bytes(), MAX_METADATA_BYTES);
        activity.note(draft);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn however_many_definitions_are_held_there_is_room_for_what_people_decide() {
        let node = NodeName::parse("a").unwrap();
        let mut set = FactSet::default();
        // A server whose tools have long names, and ever other definitions.
        let name = |at: usize| format!("s:{at:0>900}/{}", DefinitionDigest::of(&at.to_le_bytes()));
        for kind in [FactKind::Held, FactKind::Pinned] {
            let all: Vec<_> = (0..20_000).map(|at| (kind, name(at))).collect();
            assert!(say(&mut set, &node, all) > 0, "{kind:?}");
        }
        for token in 0..3 {
            let said = set.say(&node, FactKind::Token, &token.to_string(), &"x".repeat(1 << 20));
            assert_eq!(said, Ok(true), "{token}");
        }
        assert_eq!(say(&mut set, &node, vec![(FactKind::Definition, name(1))]), 0);
    }

    proptest! {
        #[test]
        fn all_that_have_read_each_other_judge_the_same_whatever_they_read_first(
            said in prop::collection::vec((0..3_usize, 0..2_u8, 0..2_u8, 0..3_usize), 0..16),
            reads in prop::collection::vec((0..3_usize, 0..3_usize), 0..12),
        ) {
            let nodes = ["a", "b", "c"].map(|name| NodeName::parse(name).unwrap());
            let mut sets = vec![FactSet::default(); 3];
            let read = |sets: &mut Vec<FactSet>, at: usize, of: usize| {
                let object = sets[of].said_by(&nodes[of]);
                sets[at].merge(&object);
            };
            let mut reads = reads.into_iter();
            for (at, tool, digest, kind) in &said {
                let tool = ToolName { server: "s".into(), tool: tool.to_string().into() };
                let name = fact_name(&tool, DefinitionDigest::of(&[*digest]));
                sets[*at].say(&nodes[*at], KINDS[*kind].0, &name, "{}").unwrap();
                if let Some((at, of)) = reads.next() {
                    read(&mut sets, at, of);
                }
            }
            for at in 0..3 {
                // Each in another order.
                for of in [at + 1, at + 2, at] {
                    read(&mut sets, at, of % 3);
                }
            }
            let pins = of_fleet(&sets[0]);
            for set in &sets {
                prop_assert_eq!(&of_fleet(set), &pins);
            }
            for (_, tool, digest, kind) in said {
                let tool = ToolName { server: "s".into(), tool: tool.to_string().into() };
                let verdict = pins.verdict(&tool, DefinitionDigest::of(&[digest]));
                prop_assert!(verdict >= Some(KINDS[kind].1), "{:?}", verdict);
            }
        }
    }
}
