//! Approvals that stand, on all nodes of a fleet: one that is given here is told, those of the others count here, and one that
//! is denied after all at any node ends at each. A node that starts again goes on with them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::approvals::{Room, SharedLeave, SharedLeaveKey};
use crate::fleet::facts::{Fact, FactKind, FactSet, FactState, FleetFacts, MemoryError};

/// The note of when those were heard of first that end later, by the clock of this node, than they were given for.
const HEARD: &str = "leaves";
/// How far clocks are apart by nobody's fault: nothing is noted for that.
const CLOCKS_APART: Duration = Duration::from_secs(10);
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
    let (before, heard) = heard(facts, &known);
    if !told.is_empty() || !ended.is_empty() || is_old || heard != before {
        let node = facts.node().clone();
        facts.change(|set, notes| {
            note(&heard, notes);
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
    take_over(room, &facts.facts(), &heard);
    Ok(())
}

/// What the fleet knows counts in the room, before anything is told.
pub(super) fn begin_with(room: &Room, facts: &FleetFacts) {
    let known = facts.facts();
    let (_, heard) = heard(facts, &known);
    take_over(room, &known, &heard);
}

/// When leaves were heard of first, by their names: milliseconds since 1970 by the clock of this node.
type Heard = BTreeMap<String, u64>;

/// What is noted, and what is to be: of those that stand and end later than they were given for, by this clock.
fn heard(facts: &FleetFacts, known: &FactSet) -> (Heard, Heard) {
    let before = facts.note(HEARD);
    let before: Heard = before.and_then(|it| serde_json::from_str(&it).ok()).unwrap_or_default();
    let now = SystemTime::now();
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let since = u64::try_from(since).unwrap_or(u64::MAX);
    let leaves = known.of(FactKind::Leave).filter_map(|(name, fact)| {
        let at = before.get(name).copied();
        let leave = SharedLeave::read(name, fact.value()?)?;
        let is_ahead = leave.by_its_clock(now) > leave.time + CLOCKS_APART;
        Some((name.to_owned(), at.or(is_ahead.then_some(since))?))
    });
    let heard = leaves.collect();
    (before, heard)
}

fn note(heard: &Heard, notes: &mut BTreeMap<String, String>) {
    match serde_json::to_string(heard) {
        Ok(text) if !heard.is_empty() => notes.insert(HEARD.to_owned(), text),
        Ok(_) | Err(_) => notes.remove(HEARD),
    };
}

/// What the fleet knows counts in the room.
fn take_over(room: &Room, known: &FactSet, heard: &Heard) {
    let of_fleet = known.of(FactKind::Leave);
    let leaves = of_fleet.filter_map(|(name, fact)| {
        let heard = heard.get(name).map(|at| UNIX_EPOCH + Duration::from_millis(*at));
        Some(SharedLeave { heard, ..SharedLeave::read(name, fact.value()?)? })
    });
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
            time: Duration::from_secs(3600),
            heard: None,
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

    #[test]
    fn what_a_node_gave_whose_clock_is_ahead_goes_on_after_a_restart_where_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let hour = Duration::from_secs(3600);
        let leave = SharedLeave {
            of: "0123456789abcdef-abc0123".into(),
            access: "s:t".into(),
            principal: "admin".into(),
            session: None,
            by: Answerer::here("admin", Door::Api),
            until: SystemTime::now() + 3 * hour,
            time: hour,
            heard: None,
            subject: "x".into(),
        };
        let b = NodeName::parse("b").unwrap();
        let shared = facts(dir.path());
        let (key, text) = (leave.key(), leave.write("b"));
        shared.change(|set, _| set.say(&b, FactKind::Leave, key.as_str(), &text)).unwrap().unwrap();
        let bounds = RoomBounds { waiting: 1, of_one: 1, bytes: 1 };
        let stands_for = |facts: &FleetFacts| {
            let room = Room::new(bounds, None).of_node("abc0123");
            step(&room, facts).unwrap();
            let until = room.standing().first().map(|leave| leave.until);
            until.map(|until| until.duration_since(SystemTime::now()).unwrap())
        };
        let first = stands_for(&shared).unwrap();
        assert!(first <= hour && first > hour / 2, "{first:?}");
        // It was heard of forty minutes ago.
        let mut noted: Heard = serde_json::from_str(&shared.note(HEARD).unwrap()).unwrap();
        *noted.get_mut(key.as_str()).unwrap() -= 40 * 60 * 1000;
        shared.change(|_, notes| note(&noted, notes)).unwrap();
        let again = facts(dir.path());
        let left = stands_for(&again).unwrap();
        assert!(left <= hour / 3, "{left:?}");
        // Nothing is noted of one that is over.
        again.change(|set, _| set.end(&b, FactKind::Leave, key.as_str())).unwrap();
        assert_eq!(stands_for(&again), None);
        assert_eq!(again.note(HEARD), None);
    }
}
