//! Definitions of tools that an operator approved on one node, at all: what waits here and was approved elsewhere, by the hash of
//! that very definition, is approved here as well. What waits stays so in any other case.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::activity::Activity;
use crate::activity::record::{Draft, MAX_METADATA_BYTES, Raw, Source, Status, Text, Type};
use crate::catalog::approving::ApprovalTarget;
use crate::catalog::{Catalog, Snapshot};
use crate::fleet::facts::{Fact, FactKind, FactSet, FactState, FleetFacts};

/// How often it is looked whether the tools are others.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Keeps approvals in step until it is aborted.
pub(super) async fn keep(catalog: Arc<Catalog>, activity: Activity, facts: FleetFacts) {
    let mut changes = facts.changes();
    let mut seen: Option<Arc<Snapshot>> = None;
    loop {
        let now = catalog.load();
        let is_other = !seen.as_ref().is_some_and(|seen| Arc::ptr_eq(seen, &now));
        if is_other || changes.has_changed().unwrap_or(false) {
            changes.mark_unchanged();
            if is_other {
                tell(&facts, Arc::clone(&now)).await;
            }
            take_over(&catalog, &activity, &facts, &now).await;
            seen = Some(now);
        }
        tokio::select! {
            changed = changes.changed() => {
                if changed.is_err() {
                    return;
                }
                changes.mark_changed();
            }
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}

/// Tells the fleet what was approved here.
async fn tell(facts: &FleetFacts, now: Arc<Snapshot>) {
    let facts = facts.clone();
    let told = tokio::task::spawn_blocking(move || {
        let known = facts.facts();
        let approved: BTreeMap<_, _> = approved_here(&now)
            .filter(|name| known.get(FactKind::Definition, name).is_none())
            .map(|name| (name, facts.node().clone()))
            .collect();
        if approved.is_empty() {
            return Ok(());
        }
        facts.change(|set, _| {
            for (name, node) in approved {
                if let Err(why) = set.say(&node, FactKind::Definition, &name, "{}") {
                    tracing::warn!(name, %why, "an approval counts on this node alone");
                }
            }
        })
    });
    if let Ok(Err(error)) = told.await {
        tracing::error!(%error, "approvals cannot be remembered for the fleet");
    }
}

/// The names of the facts about what was approved here.
fn approved_here(now: &Snapshot) -> impl Iterator<Item = String> {
    now.approved().map(|(server, tool, digest)| format!("{server}:{tool}/{digest}"))
}

/// The node that approved what has this name, if one did.
fn approved_by<'a>(facts: &'a FactSet, name: &str) -> Option<&'a Fact> {
    let fact = facts.get(FactKind::Definition, name)?;
    (fact.state != FactState::Ended).then_some(fact)
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
        let name = format!("{}:{}/{digest}", tool.server, tool.tool);
        let Some(fact) = approved_by(&known, &name) else { continue };
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
