//! Replication of standing approvals in a fleet: approvals given on this node are shared, those of other nodes apply here, and a revocation
//! on any node applies on all. They survive restarts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mcpproxy_fleet::facts::{Fact, FactKind, FactSet, FactState, FleetFacts, MemoryError};
use mcpproxy_policy::approvals::{ApprovalQueue, SharedApproval, SharedApprovalKey};
use mcpproxy_runtime::io::line_budget::{LinePeer, peer_line};

/// Key of the note that stores first-seen times. It has a time for each approval that would outlast its duration by
/// this node's clock.
const FIRST_SEEN: &str = "leaves";
/// Tolerated clock difference; within it, no first-seen time is stored.
const MAX_CLOCK_SKEW: Duration = Duration::from_secs(10);
/// Interval of removing expired approvals.
const CLEANUP_INTERVAL: Duration = Duration::from_secs(300);
/// Retry interval after a failed write.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Retention of an expired approval. Longer than the clock skew, and longer than a node that still publishes the approval may be offline.
const KEPT_FOR: Duration = Duration::from_secs(48 * 3600);

/// Synchronizes standing approvals with the fleet until aborted.
pub(super) async fn keep(queue: Arc<ApprovalQueue>, facts: FleetFacts) {
    let mut changes = facts.changes();
    loop {
        changes.mark_unchanged();
        let (at, of) = (Arc::clone(&queue), facts.clone());
        let pause = match tokio::task::spawn_blocking(move || step(&at, &of)).await {
            Ok(Ok(())) => CLEANUP_INTERVAL,
            Ok(Err(error)) => {
                peer_line!(error, LinePeer::Part("approvals"), %error, "standing approvals cannot be stored for the fleet");
                RETRY_INTERVAL
            }
            Err(_) => {
                peer_line!(
                    error,
                    LinePeer::Part("approvals"),
                    "synchronization of standing approvals with the fleet has stopped: it panicked"
                );
                return;
            }
        };
        tokio::select! {
            () = queue.standing_changed() => {}
            changed = changes.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Synchronizes the local approvals with the fleet. Blocks.
pub(super) fn step(queue: &ApprovalQueue, facts: &FleetFacts) -> Result<(), MemoryError> {
    let (standing, ended) = queue.shared_state();
    let known = facts.facts();
    let past = SharedApprovalKey::at(SystemTime::now() - KEPT_FOR);
    let is_new = |approval: &SharedApproval| {
        let key = approval.key();
        key > past && known.get(FactKind::StandingApproval, key.as_str()).is_none()
    };
    let unshared: Vec<_> = standing.into_iter().filter(is_new).collect();
    let is_old =
        known.of(FactKind::StandingApproval).next().is_some_and(|(name, _)| name < past.as_str());
    let (before, seen) = first_seen(facts, &known);
    if !unshared.is_empty() || !ended.is_empty() || is_old || seen != before {
        let node = facts.node().clone();
        facts.change(|set, notes| {
            note(&seen, notes);
            for approval in &unshared {
                let (key, text) = (approval.key(), approval.write(node.as_str()));
                if let Err(why) = set.set_value(&node, FactKind::StandingApproval, key.as_str(), &text) {
                    peer_line!(warn, LinePeer::Part("approvals"), approval = %approval.of, %why, "standing approval is valid on this node only");
                }
            }
            // Includes approvals known to be revoked whose revocation may not be stored yet.
            for key in &ended {
                set.forbid(&node, FactKind::StandingApproval, key.as_str());
            }
            set.forget_before(FactKind::StandingApproval, past.as_str());
        })?;
    }
    queue.mark_shared(&ended);
    apply(queue, &facts.facts(), &seen);
    Ok(())
}

/// Applies the fleet's approvals at startup, before anything is shared.
pub(crate) fn begin_with(queue: &ApprovalQueue, facts: &FleetFacts) {
    let known = facts.facts();
    let (_, seen) = first_seen(facts, &known);
    apply(queue, &known, &seen);
}

/// First-seen times by name, in milliseconds since 1970 by this node's clock.
type FirstSeen = BTreeMap<String, u64>;

/// Returns the stored first-seen times and those to store.
fn first_seen(facts: &FleetFacts, known: &FactSet) -> (FirstSeen, FirstSeen) {
    let before = facts.note(FIRST_SEEN);
    let before: FirstSeen =
        before.and_then(|it| serde_json::from_str(&it).ok()).unwrap_or_default();
    let now = SystemTime::now();
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let since = u64::try_from(since).unwrap_or(u64::MAX);
    let approvals = known.of(FactKind::StandingApproval).filter_map(|(name, fact)| {
        let at = before.get(name).copied();
        let approval = SharedApproval::read(name, fact.value()?)?;
        let is_ahead = approval.by_its_clock(now) > approval.time + MAX_CLOCK_SKEW;
        Some((name.to_owned(), at.or(is_ahead.then_some(since))?))
    });
    let seen = approvals.collect();
    (before, seen)
}

fn note(seen: &FirstSeen, notes: &mut BTreeMap<String, String>) {
    match serde_json::to_string(seen) {
        Ok(text) if !seen.is_empty() => notes.insert(FIRST_SEEN.to_owned(), text),
        Ok(_) | Err(_) => notes.remove(FIRST_SEEN),
    };
}

/// Applies the fleet's approvals to the local ones.
fn apply(queue: &ApprovalQueue, known: &FactSet, seen: &FirstSeen) {
    let of_fleet = known.of(FactKind::StandingApproval);
    let approvals = of_fleet.filter_map(|(name, fact)| {
        let received = seen.get(name).map(|at| UNIX_EPOCH + Duration::from_millis(*at));
        Some(SharedApproval { received, ..SharedApproval::read(name, fact.value()?)? })
    });
    let has_ended = |key: &SharedApprovalKey| {
        let fact = known.get(FactKind::StandingApproval, key.as_str());
        fact.is_some_and(|fact: &Fact| fact.state == FactState::Ended)
    };
    queue.adopt(approvals, has_ended);
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use mcpproxy_fleet::facts::{FactExchangeSettings, FactKeys, NodeName};
    use mcpproxy_fleet::node_state::FleetId;
    use mcpproxy_policy::approvals::{
        AnswerChannel, Answerer, ApprovalAnswer, ApprovalVerdict, QueueBounds,
    };

    use super::*;

    fn facts(folder: &Path) -> FleetFacts {
        let (fleet, node) = (FleetId([3; 16]), NodeName::parse("a").unwrap());
        let (folder, keys) = (folder.to_owned(), FactKeys::new([[9; 32]]));
        let settings = FactExchangeSettings { fleet, node, folder, keys, verifier: String::new() };
        FleetFacts::open(settings).unwrap()
    }

    #[test]
    fn revocation_is_shared_until_it_is_stored() {
        let dir = tempfile::tempdir().unwrap();
        let shared = facts(dir.path());
        let bounds = QueueBounds { waiting: 1, of_one: 1, bytes: 1 };
        let queue = ApprovalQueue::new(bounds, None).of_node("abc0123");
        let by = Answerer::here("admin", AnswerChannel::Api);
        let approval = SharedApproval {
            of: "0123456789abcdef-abc0123".into(),
            access: "s:t".into(),
            principal: "admin".into(),
            session: None,
            by: by.clone(),
            until: SystemTime::now() + Duration::from_secs(3600),
            time: Duration::from_secs(3600),
            received: None,
            subject: "x".into(),
        };
        queue.adopt([approval.clone()], |_| false);
        step(&queue, &shared).unwrap();
        let state = |facts: &FleetFacts| {
            let fact =
                facts.facts().get(FactKind::StandingApproval, approval.key().as_str()).cloned();
            fact.map(|fact| fact.state)
        };
        assert!(matches!(state(&facts(dir.path())), Some(FactState::Holds(_))));
        let blocked = dir.path().join("facts.json.new");
        std::fs::create_dir(&blocked).unwrap();
        let answer = ApprovalAnswer { verdict: ApprovalVerdict::Deny, by, seen: None };
        queue.answer(&approval.of, answer).unwrap();
        for _ in 0..2 {
            assert!(step(&queue, &shared).is_err());
            assert_eq!(queue.unshared_revocation(&approval.of), Some(approval.key()));
        }
        std::fs::remove_dir(&blocked).unwrap();
        step(&queue, &shared).unwrap();
        assert_eq!(queue.unshared_revocation(&approval.of), None);
        assert_eq!(state(&facts(dir.path())), Some(FactState::Ended));
        assert_eq!(queue.standing().len(), 0);
    }

    #[test]
    fn approval_of_a_node_with_a_fast_clock_keeps_its_remaining_time_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let hour = Duration::from_secs(3600);
        let approval = SharedApproval {
            of: "0123456789abcdef-abc0123".into(),
            access: "s:t".into(),
            principal: "admin".into(),
            session: None,
            by: Answerer::here("admin", AnswerChannel::Api),
            until: SystemTime::now() + 3 * hour,
            time: hour,
            received: None,
            subject: "x".into(),
        };
        let b = NodeName::parse("b").unwrap();
        let shared = facts(dir.path());
        let (key, text) = (approval.key(), approval.write("b"));
        shared
            .change(|set, _| set.set_value(&b, FactKind::StandingApproval, key.as_str(), &text))
            .unwrap()
            .unwrap();
        let bounds = QueueBounds { waiting: 1, of_one: 1, bytes: 1 };
        let stands_for = |facts: &FleetFacts| {
            let queue = ApprovalQueue::new(bounds, None).of_node("abc0123");
            step(&queue, facts).unwrap();
            let until = queue.standing().first().map(|approval| approval.until);
            until.map(|until| until.duration_since(SystemTime::now()).unwrap())
        };
        let first = stands_for(&shared).unwrap();
        assert!(first <= hour && first > hour / 2, "{first:?}");
        // The approval was first seen forty minutes ago.
        let mut noted: FirstSeen = serde_json::from_str(&shared.note(FIRST_SEEN).unwrap()).unwrap();
        *noted.get_mut(key.as_str()).unwrap() -= 40 * 60 * 1000;
        shared.change(|_, notes| note(&noted, notes)).unwrap();
        let again = facts(dir.path());
        let left = stands_for(&again).unwrap();
        assert!(left <= hour / 3, "{left:?}");
        // No first-seen time is stored for an ended approval.
        again.change(|set, _| set.end(&b, FactKind::StandingApproval, key.as_str())).unwrap();
        assert_eq!(stands_for(&again), None);
        assert_eq!(again.note(FIRST_SEEN), None);
    }
}
