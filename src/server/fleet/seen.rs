//! Replication of principals' facts among the nodes of a fleet, while rules read `context.session`.
//!
//! A fact states what data a principal saw within a period of [`PERIOD_SECONDS`]. It is encoded entirely in the fact's name (period,
//! principal's mark, sensitivity and open world), so facts form a grow-only set: nodes with the same observation share one fact, a merge
//! never loses any, and expired ones sort first and can be dropped.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mcpproxy_fleet::facts::{Fact, FactKind, FleetFacts, MemoryError};
use mcpproxy_gateway::proxy::Proxy;
use mcpproxy_gateway::proxy::session_facts::{PrincipalFacts, SeenByPrincipal};
use mcpproxy_gateway::proxy::settings::SettingsSwap;
use mcpproxy_policy::intent::Sensitivity;
use mcpproxy_policy::{SessionFacts, WINDOW_SECONDS};
use mcpproxy_runtime::io::line_budget::{LinePeer, peer_line};

/// Length of a period in seconds. An active principal has a fact in each period.
const PERIOD_SECONDS: u64 = 600;
/// Time in seconds after which a fact is dropped: longer than its validity plus the expected clock skew.
const KEPT_SECONDS: u64 = 2 * WINDOW_SECONDS as u64;
/// Interval between steps while nothing changes.
const STEP_INTERVAL: Duration = Duration::from_secs(60);
/// Pause before a retry after the facts could not be stored.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Digits of a period in a name.
const PERIOD_DIGITS: usize = 12;
/// Name of this part in reported faults.
const PART: &str = "seen";

/// State of the replication.
pub(super) struct SeenSharing {
    principals: Arc<PrincipalFacts>,
    facts: FleetFacts,
    settings: SettingsSwap,
    taken: BTreeSet<Box<str>>,
}

impl SeenSharing {
    /// Starts the replication, after merging the fleet's existing facts.
    pub(super) fn begin(proxy: &Proxy, facts: &FleetFacts) -> Self {
        let (facts, settings) = (facts.clone(), proxy.settings.clone());
        let principals = Arc::clone(&proxy.principal_facts);
        let mut sharing = Self { principals, facts, settings, taken: BTreeSet::new() };
        sharing.take_over(SystemTime::now());
        sharing
    }

    /// Runs until aborted.
    pub(super) async fn keep(mut self) {
        let (mut changes, principals) = (self.facts.changes(), Arc::clone(&self.principals));
        loop {
            changes.mark_unchanged();
            let stepped = tokio::task::spawn_blocking(move || {
                let stepped = self.step(SystemTime::now());
                (self, stepped)
            });
            let pause = match stepped.await {
                Ok((sharing, stepped)) => {
                    self = sharing;
                    match stepped {
                        Ok(()) => STEP_INTERVAL,
                        Err(error) => {
                            peer_line!(error, LinePeer::Part("shared facts"), %error, "facts of principals cannot be stored for the fleet");
                            RETRY_INTERVAL
                        }
                    }
                }
                Err(_) => {
                    peer_line!(
                        error,
                        LinePeer::Part("shared facts"),
                        "replication of principals' facts has stopped: it panicked"
                    );
                    return;
                }
            };
            tokio::select! {
                () = principals.risen() => {}
                changed = changes.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Merges new facts of the fleet and publishes those of this node. Blocks.
    fn step(&mut self, now: SystemTime) -> Result<(), MemoryError> {
        self.take_over(now);
        let known = self.facts.facts();
        let past = format!(
            "{:0PERIOD_DIGITS$}",
            (seconds(now).saturating_sub(KEPT_SECONDS)) / PERIOD_SECONDS
        );
        let is_old = known.of(FactKind::Seen).next().is_some_and(|(name, _)| *name < *past);
        let mut unshared: Vec<String> = Vec::new();
        if self.settings.reads_session_facts() {
            let names = self.principals.seen().into_iter().map(|seen| name_of(&seen, now));
            unshared.extend(names.filter(|name| known.get(FactKind::Seen, name).is_none()));
        }
        if unshared.is_empty() && !is_old {
            return Ok(());
        }
        let node = self.facts.node().clone();
        let refused = self.facts.change(|set, _| {
            set.forget_before(FactKind::Seen, &past);
            unshared.iter().find_map(|name| set.set_value(&node, FactKind::Seen, name, "{}").err())
        })?;
        let fault =
            refused.map(|why| format!("facts of principals apply on this node only: {why}"));
        self.facts.report_fault(PART, fault);
        self.taken.extend(unshared.into_iter().map(String::into_boxed_str));
        let kept = self.taken.split_off(past.as_str());
        self.taken = kept;
        Ok(())
    }

    /// Merges the fleet's facts that were not merged before.
    fn take_over(&mut self, now: SystemTime) {
        let known = self.facts.facts();
        let holds = |(name, fact): (&str, &Fact)| fact.value().map(|_| Box::from(name));
        let new: Vec<Box<str>> = known
            .of(FactKind::Seen)
            .filter_map(holds)
            .filter(|name| !self.taken.contains(name))
            .collect();
        for name in new {
            if let Some(seen) = read(&name, now) {
                self.principals.take_over(seen);
            }
            self.taken.insert(name);
        }
    }
}

/// Name of the fact for this observation.
fn name_of(seen: &SeenByPrincipal, now: SystemTime) -> String {
    let period = seconds(now).saturating_sub(u64::from(seen.idle_seconds)) / PERIOD_SECONDS;
    let mark: String = seen.mark.iter().map(|byte| format!("{byte:02x}")).collect();
    let rank = seen.facts.max_sensitivity.map_or(0, Sensitivity::rank);
    let open = u8::from(seen.facts.open_world_seen);
    format!("{period:0PERIOD_DIGITS$}/{mark}/{rank}{open}")
}

/// Parses a name; `None` if it is malformed or expired. A period in the future counts as the current one.
fn read(name: &str, now: SystemTime) -> Option<SeenByPrincipal> {
    let mut parts = name.split('/');
    let (period, mark, seen) = (parts.next()?, parts.next()?, parts.next()?);
    if period.len() != PERIOD_DIGITS || mark.len() != 32 || parts.next().is_some() {
        return None;
    }
    let mark = u128::from_str_radix(mark, 16).ok()?.to_be_bytes();
    let (rank, open) = match seen.as_bytes() {
        [rank, open] => (rank.checked_sub(b'0')?, open.checked_sub(b'0')?),
        _ => return None,
    };
    let facts = SessionFacts {
        max_sensitivity: Sensitivity::of_rank(rank),
        open_world_seen: open == 1,
        calls: 0,
    };
    // The last request may have come at the end of the period.
    let last = period.parse::<u64>().ok()?.checked_mul(PERIOD_SECONDS)? + (PERIOD_SECONDS - 1);
    let idle = u32::try_from(seconds(now).saturating_sub(last)).ok()?;
    (idle <= WINDOW_SECONDS).then_some(SeenByPrincipal { mark, facts, idle_seconds: idle })
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn seen(idle_seconds: u32) -> SeenByPrincipal {
        let facts = SessionFacts {
            max_sensitivity: Some(Sensitivity::Private),
            open_world_seen: true,
            calls: 0,
        };
        let mut mark = [0; 16];
        mark[15] = 0xab;
        SeenByPrincipal { mark, facts, idle_seconds }
    }

    #[test]
    fn fact_name_round_trips_until_it_expires() {
        let stated_at = 1_000_000 * PERIOD_SECONDS + 100;
        let name = name_of(&seen(0), at(stated_at));
        assert_eq!(name, "000001000000/000000000000000000000000000000ab/41");
        assert_eq!(name_of(&seen(50), at(stated_at)), name, "one fact for a period");
        assert_ne!(name_of(&seen(101), at(stated_at)), name);
        assert_eq!(read(&name, at(stated_at)), Some(seen(0)));
        let end = 1_000_001 * PERIOD_SECONDS - 1;
        assert_eq!(read(&name, at(end + 10)), Some(seen(10)));
        assert_eq!(read(&name, at(end + u64::from(WINDOW_SECONDS) + 1)), None);
        // Another node that publishes the same observation publishes the same fact.
        assert_eq!(name_of(&read(&name, at(end + 10)).unwrap(), at(end + 10)), name);
        assert_eq!(read(&name, at(stated_at - 100_000)), Some(seen(0)), "from a fast clock");
    }

    #[test]
    fn malformed_names_are_ignored() {
        let mark = "0".repeat(32);
        for name in [
            "",
            "000001000000",
            &format!("1000000/{mark}/41"),
            &format!("00000100000x/{mark}/41"),
            &format!("000001000000/{mark}/4"),
            &format!("000001000000/{mark}/411"),
            &format!("000001000000/{mark}/41/1"),
            &format!("000001000000/{}x/41", "0".repeat(31)),
            &format!("999999999999/{mark}\u{e9}/41"),
        ] {
            assert_eq!(read(name, at(1_000_000 * PERIOD_SECONDS)), None, "{name}");
        }
    }
}
