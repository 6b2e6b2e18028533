//! Approvals that stand, on all nodes of a fleet: one that is given here is told, those of the others count here, and one that
//! is denied after all at any node ends at each. A node that starts again goes on with them.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::approvals::{Room, SharedLeave, SharedLeaveKey};
use crate::fleet::facts::{Fact, FactKind, FactSet, FactState, FleetFacts, MemoryError};

/// How often those that are over are forgotten.
const FORGET_EVERY: Duration = Duration::from_secs(300);
/// How soon it is tried again where it cannot be remembered.
const TRY_AGAIN: Duration = Duration::from_secs(5);
/// How long after its end one is remembered: longer than clocks are apart and nodes are away that still say it.
const KEPT_FOR: Duration = Duration::from_secs(48 * 3600);

/// Keeps them in step until it is aborted.
pub(super) async fn keep(room: Arc<Room>, facts: FleetFacts) {
    let mut changes = facts.changes();
    loop {
        changes.mark_unchanged();
        let (at, of) = (Arc::clone(&room), facts.clone());
        let pause = match tokio::task::spawn_blocking(move || step(&at, &of)).await {
            Ok(Ok(())) => FORGET_EVERY,
            Ok(Err(error)) => {
                tracing::error!(%error, "approvals that stand cannot be remembered for the fleet");
                TRY_AGAIN
            }
            Err(_) => {
                tracing::error!(
                    "approvals that stand are not kept in step with the fleet any more"
                );
                return;
            }
        };
        tokio::select! {
            () = room.leaves_changed() => {}
            changed = changes.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Brings the room and the fleet in step. Blocks.
pub(super) fn step(room: &Room, facts: &FleetFacts) -> Result<(), MemoryError> {
    let (standing, ended) = room.leaves();
    let known = facts.facts();
    let past = SharedLeaveKey::at(SystemTime::now() - KEPT_FOR);
    let is_new = |leave: &SharedLeave| {
        let key = leave.key();
        key > past && known.get(FactKind::Leave, key.as_str()).is_none()
    };
    let told: Vec<_> = standing.into_iter().filter(is_new).collect();
    let is_old = known.of(FactKind::Leave).next().is_some_and(|(name, _)| name < past.as_str());
    if !told.is_empty() || !ended.is_empty() || is_old {
        let node = facts.node().clone();
        facts.change(|set, _| {
            for leave in &told {
                let (key, text) = (leave.key(), leave.write(node.as_str()));
                if let Err(why) = set.say(&node, FactKind::Leave, key.as_str(), &text) {
                    tracing::warn!(approval = %leave.of, %why, "an approval that stands counts on this node alone");
                }
            }
            // Also those that are known to be over: it may not be remembered yet.
            for key in &ended {
                set.forbid(&node, FactKind::Leave, key.as_str());
            }
            set.forget_before(FactKind::Leave, past.as_str());
        })?;
    }
    room.leaves_told(&ended);
    begin_with(room, &facts.facts());
    Ok(())
}

/// What the fleet knows counts in the room.
pub(super) fn begin_with(room: &Room, known: &FactSet) {
    let of_fleet = known.of(FactKind::Leave);
    let leaves = of_fleet.filter_map(|(name, fact)| SharedLeave::read(name, fact.value()?));
    let has_ended = |key: &SharedLeaveKey| {
        let fact = known.get(FactKind::Leave, key.as_str());
        fact.is_some_and(|fact: &Fact| fact.state == FactState::Ended)
    };
    room.take_over(leaves, has_ended);
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::approvals::{Answerer, ApprovalAnswer, ApprovalVerdict, Door, RoomBounds};
    use crate::fleet::facts::{FactExchangeSettings, FactKeys, NodeName};
    use crate::fleet::sealed_mark::FleetId;

    fn facts(folder: &Path) -> FleetFacts {
        let (fleet, node) = (FleetId([3; 16]), NodeName::parse("a").unwrap());
        let (folder, keys) = (folder.to_owned(), FactKeys::new([[9; 32]]));
        let settings = FactExchangeSettings { fleet, node, folder, keys, verifier: String::new() };
        FleetFacts::open(settings).unwrap()
    }

    #[test]
    fn what_was_denied_after_all_is_told_until_it_is_remembered() {
        let dir = tempfile::tempdir().unwrap();
        let shared = facts(dir.path());
        let bounds = RoomBounds { waiting: 1, of_one: 1, bytes: 1 };
        let room = Room::new(bounds, None).of_node("abc0123");
        let by = Answerer::here("admin", Door::Api);
        let leave = SharedLeave {
            of: "0123456789abcdef-abc0123".into(),
            access: "s:t".into(),
            principal: "admin".into(),
            session: None,
            by: by.clone(),
            until: SystemTime::now() + Duration::from_secs(3600),
            subject: "x".into(),
        };
        room.take_over([leave.clone()], |_| false);
        step(&room, &shared).unwrap();
        let state = |facts: &FleetFacts| {
            let fact = facts.facts().get(FactKind::Leave, leave.key().as_str()).cloned();
            fact.map(|fact| fact.state)
        };
        assert!(matches!(state(&facts(dir.path())), Some(FactState::Holds(_))));
        let blocked = dir.path().join("facts.json.new");
        std::fs::create_dir(&blocked).unwrap();
        let answer = ApprovalAnswer { verdict: ApprovalVerdict::Deny, by, seen: None };
        room.answer(&leave.of, answer).unwrap();
        for _ in 0..2 {
            assert!(step(&room, &shared).is_err());
            assert_eq!(room.untold_end(&leave.of), Some(leave.key()));
        }
        std::fs::remove_dir(&blocked).unwrap();
        step(&room, &shared).unwrap();
        assert_eq!(room.untold_end(&leave.of), None);
        assert_eq!(state(&facts(dir.path())), Some(FactState::Ended));
        assert_eq!(room.standing().len(), 0);
    }
}
