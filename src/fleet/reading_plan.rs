//! Query planner: assigns every record of the fleet to one node to request it from. Pure.
//!
//! ```text
//! a log:   1 ─────── in an index ───────▶ L │ L+1 ── at its node, if alive ──▶
//! ```
//!
//! Index nodes have sealed records; later records are requested from their own node. Each log is divided at the last
//! record that the index reports, so that no record is requested or counted twice. Unavailable records are listed.

use std::collections::{BTreeMap, BTreeSet};

use crate::fleet_logs::{FleetCoverage, twins};
use crate::record_questions::{HeldLog, Holdings, LogRange};

/// State of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KnownState {
    /// The node is alive and can be asked.
    Alive,
    /// The node has stopped, with this last record.
    Stopped { last: u64 },
    /// The node is not known to be alive.
    Away,
}

/// Node of the fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KnownNode {
    pub name: String,
    pub state: KnownState,
}

/// Input of the planner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlanFacts<'a> {
    /// Logs available on this node.
    pub own: &'a Holdings,
    /// Logs available on other nodes that were asked, or their error.
    pub others: &'a [(String, Result<Holdings, String>)],
    /// Nodes of the fleet.
    pub nodes: &'a [KnownNode],
    /// Requested node by name or log id; `None` for all.
    pub wanted: Option<&'a str>,
}

/// Ranges to request from one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReadingShare {
    /// Node to ask; `None` for this one.
    pub at: Option<String>,
    pub ranges: Vec<LogRange>,
}

/// Plan of a query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReadingPlan {
    /// Shares by node, this node first.
    pub shares: Vec<ReadingShare>,
    /// Coverage if all nodes answer.
    pub coverage: FleetCoverage,
}

/// Plans a query.
pub(crate) fn plan(facts: PlanFacts<'_>) -> ReadingPlan {
    let PlanFacts { own, others, nodes, wanted } = facts;
    let answered = || others.iter().filter_map(|(at, logs)| Some((at, logs.as_ref().ok()?)));
    let copies_of = |name: &str| {
        let here = own.copies.iter().map(|held| (None, held));
        let there =
            answered().flat_map(|(at, logs)| logs.copies.iter().map(move |held| (Some(at), held)));
        let all = here.chain(there).filter(|(_, held)| held.node == name);
        all.collect::<Vec<(Option<&String>, &HeldLog)>>()
    };
    let all_held = || {
        let theirs = answered().flat_map(|(_, logs)| logs.copies.iter().chain([&logs.own]));
        own.copies.iter().chain([&own.own]).chain(theirs)
    };
    let is_meant = |name: &str| {
        wanted.is_none_or(|wanted| {
            wanted == name || all_held().any(|held| held.node == name && held.log == wanted)
        })
    };

    let mut names: BTreeSet<&str> = nodes.iter().map(|node| &*node.name).collect();
    names.extend(all_held().map(|held| &*held.node));
    let mut asked: BTreeMap<Option<&str>, Vec<LogRange>> = BTreeMap::new();
    let mut coverage = FleetCoverage::default();
    for name in names.into_iter().filter(|name| is_meant(name)) {
        if name == own.own.node {
            asked.entry(None).or_default().push(LogRange::all(name));
            coverage.nodes.push(name.to_owned());
            continue;
        }
        // A local copy is used unless another node has more.
        let base = copies_of(name).into_iter().reduce(|best, next| {
            let is_better = next.1.last > best.1.last && (best.0.is_some() || best.1.behind > 0);
            if is_better { next } else { best }
        });
        let last = base.map_or(0, |(_, held)| held.last);
        let mut lacks: Vec<String> =
            base.and_then(|(_, held)| held.lacks.clone()).into_iter().collect();
        let node = nodes.iter().find(|node| node.name == name);
        let state = node.map_or(KnownState::Away, |node| node.state);
        let mut is_asked = false;
        if let Some((at, _)) = base {
            let range = LogRange { node: name.to_owned(), after: 0, last };
            asked.entry(at.map(String::as_str)).or_default().push(range);
            is_asked = true;
        }
        match (state, others.iter().find(|(at, _)| at == name)) {
            (KnownState::Alive, Some((_, Err(why)))) => lacks.push(why.clone()),
            (KnownState::Alive, Some((_, Ok(logs)))) if is_asked && logs.own.last <= last => {}
            (KnownState::Alive, _) => {
                let range = LogRange { node: name.to_owned(), after: last, last: u64::MAX };
                asked.entry(Some(name)).or_default().push(range);
                is_asked = true;
            }
            (KnownState::Stopped { last: end }, _) if end <= last => {}
            (KnownState::Stopped { last: end }, _) => {
                let (first, which) = (last + 1, if is_asked { "" } else { "responding " });
                lacks.push(format!(
                    "stopped, and no {which}index node has its records {first} to {end}"
                ));
            }
            (KnownState::Away, _) if is_asked => {
                lacks.push("it is not alive: its unsealed records are missing".to_owned());
            }
            (KnownState::Away, _) => lacks
                .push("it is not alive, and no responding index node has its records".to_owned()),
        }
        if is_asked {
            coverage.nodes.push(name.to_owned());
        }
        if !lacks.is_empty() {
            coverage.missing.insert(name.to_owned(), lacks.join("; "));
        }
    }
    for (name, why) in twins(all_held().map(|held| (&*held.node, &*held.log))) {
        if is_meant(name) {
            coverage.lacks(name, &why);
        }
    }
    if let Some(wanted) = wanted.filter(|_| coverage.nodes.is_empty()) {
        let why = || "no such node in this fleet".to_owned();
        coverage.missing.entry(wanted.to_owned()).or_insert_with(why);
    }
    coverage.partial = !coverage.missing.is_empty();
    let share = |(at, ranges): (Option<&str>, Vec<LogRange>)| ReadingShare {
        at: at.map(str::to_owned),
        ranges,
    };
    ReadingPlan { shares: asked.into_iter().map(share).collect(), coverage }
}

#[cfg(test)]
mod tests {
    use super::*;
    use KnownState::{Alive, Away, Stopped};

    fn held(node: &str, last: u64) -> HeldLog {
        HeldLog { node: node.into(), log: format!("log-{node}"), last, ..HeldLog::default() }
    }

    fn holdings(own: &str, last: u64, copies: &[(&str, u64)]) -> Holdings {
        let copies = copies.iter().map(|(node, last)| held(node, *last)).collect();
        Holdings { own: held(own, last), copies }
    }

    fn known(nodes: &[(&str, KnownState)]) -> Vec<KnownNode> {
        nodes
            .iter()
            .map(|(name, state)| KnownNode { name: (*name).into(), state: *state })
            .collect()
    }

    fn range(node: &str, after: u64, last: u64) -> LogRange {
        LogRange { node: node.into(), after, last }
    }

    fn share(at: Option<&str>, ranges: &[LogRange]) -> ReadingShare {
        ReadingShare { at: at.map(str::to_owned), ranges: ranges.to_vec() }
    }

    #[test]
    fn indexed_records_come_from_the_index_and_newer_ones_from_their_node() {
        let own = holdings("a", 9, &[]);
        let others = [("i".to_owned(), Ok(holdings("i", 30, &[("a", 5), ("b", 20), ("c", 7)])))];
        let nodes = known(&[("a", Alive), ("b", Alive), ("c", Stopped { last: 7 }), ("i", Alive)]);
        let plan = plan(PlanFacts { own: &own, others: &others, nodes: &nodes, wanted: None });
        assert_eq!(
            plan.shares,
            [
                share(None, &[range("a", 0, u64::MAX)]),
                share(Some("b"), &[range("b", 20, u64::MAX)]),
                share(Some("i"), &[range("b", 0, 20), range("c", 0, 7), range("i", 0, u64::MAX)]),
            ]
        );
        assert_eq!(plan.coverage.nodes, ["a", "b", "c", "i"]);
        assert!(!plan.coverage.partial && plan.coverage.missing.is_empty());
    }

    #[test]
    fn each_log_is_requested_once_among_overlapping_shards() {
        let own = holdings("s1", 9, &[("s2", 50), ("x", 10)]);
        let others = [
            ("s2".to_owned(), Ok(holdings("s2", 60, &[("s1", 3), ("y", 11)]))),
            ("s3".to_owned(), Ok(holdings("s3", 7, &[("y", 12), ("x", 99)]))),
        ];
        let nodes = known(&[
            ("s1", Alive),
            ("s2", Alive),
            ("s3", Alive),
            ("x", Stopped { last: 10 }),
            ("y", Stopped { last: 12 }),
        ]);
        let plan = plan(PlanFacts { own: &own, others: &others, nodes: &nodes, wanted: None });
        assert_eq!(
            plan.shares,
            [
                share(None, &[range("s1", 0, u64::MAX), range("s2", 0, 50), range("x", 0, 10)]),
                share(Some("s2"), &[range("s2", 50, u64::MAX)]),
                share(Some("s3"), &[range("s3", 0, u64::MAX), range("y", 0, 12)]),
            ]
        );
        assert!(!plan.coverage.partial);
    }

    #[test]
    fn dead_or_failing_nodes_are_listed_and_read_from_copies() {
        let own = holdings("a", 9, &[]);
        let others = [
            ("i".to_owned(), Err("no response within 3 s".to_owned())),
            ("j".to_owned(), Ok(holdings("j", 4, &[("b", 20), ("i", 8), ("d", 1)]))),
        ];
        let nodes = known(&[
            ("a", Alive),
            ("b", Away),
            ("c", Away),
            ("d", Stopped { last: 3 }),
            ("i", Alive),
            ("j", Alive),
        ]);
        let plan = plan(PlanFacts { own: &own, others: &others, nodes: &nodes, wanted: None });
        assert_eq!(
            plan.shares,
            [
                share(None, &[range("a", 0, u64::MAX)]),
                share(
                    Some("j"),
                    &[
                        range("b", 0, 20),
                        range("d", 0, 1),
                        range("i", 0, 8),
                        range("j", 0, u64::MAX)
                    ]
                ),
            ]
        );
        let missing: Vec<_> = plan.coverage.missing.keys().map(String::as_str).collect();
        assert_eq!(missing, ["b", "c", "d", "i"]);
        assert_eq!(plan.coverage.missing["i"], "no response within 3 s");
        assert!(plan.coverage.missing["d"].contains("2 to 3"));
        assert!(plan.coverage.missing["c"].contains("no responding index node"));
        assert!(plan.coverage.partial);
        assert_eq!(plan.coverage.nodes, ["a", "b", "d", "i", "j"]);
    }

    #[test]
    fn nodes_claiming_the_same_log_are_listed_as_missing() {
        let mut twin = held("b2", 40);
        twin.log = "log-b".into();
        let mut own = holdings("a", 9, &[("b", 20)]);
        own.copies.push(twin);
        let nodes =
            known(&[("a", Alive), ("b", Stopped { last: 20 }), ("b2", Stopped { last: 40 })]);
        let missing = |wanted| {
            let facts = PlanFacts { own: &own, others: &[], nodes: &nodes, wanted };
            let coverage = plan(facts).coverage;
            assert_eq!(coverage.partial, !coverage.missing.is_empty());
            coverage.missing
        };
        let all = missing(None);
        assert_eq!(all.keys().collect::<Vec<_>>(), ["b", "b2"]);
        assert!(all["b"].contains("b and b2 have the same log log-b"), "{all:?}");
        assert!(missing(Some("a")).is_empty());
    }

    #[test]
    fn node_is_selected_by_name_or_log_id() {
        let own = holdings("a", 9, &[("b", 5)]);
        let nodes = known(&[("a", Alive), ("b", Alive), ("c", Alive)]);
        for wanted in ["b", "log-b"] {
            let facts = PlanFacts { own: &own, others: &[], nodes: &nodes, wanted: Some(wanted) };
            let plan = plan(facts);
            assert_eq!(
                plan.shares,
                [share(None, &[range("b", 0, 5)]), share(Some("b"), &[range("b", 5, u64::MAX)])]
            );
            assert_eq!(plan.coverage.nodes, ["b"]);
        }
        let plan = plan(PlanFacts { own: &own, others: &[], nodes: &nodes, wanted: Some("x") });
        assert_eq!((plan.shares.len(), plan.coverage.nodes.len()), (0, 0));
        assert_eq!(plan.coverage.missing["x"], "no such node in this fleet");
    }

    #[test]
    fn more_complete_remote_copy_is_preferred() {
        let mut own = holdings("a", 9, &[("b", 5)]);
        let others = [("i".to_owned(), Ok(holdings("i", 1, &[("b", 20)])))];
        let nodes = known(&[("a", Alive), ("b", Away), ("i", Alive)]);
        let at = |own: &Holdings| {
            let facts = PlanFacts { own, others: &others, nodes: &nodes, wanted: Some("b") };
            plan(facts).shares
        };
        assert_eq!(at(&own), [share(None, &[range("b", 0, 5)])]);
        own.copies[0].behind = 15;
        assert_eq!(at(&own), [share(Some("i"), &[range("b", 0, 20)])]);
    }
}
