//! Where each record of the fleet is asked for: pure.
//!
//! ```text
//! a log:   1 ─────── in an index ───────▶ L │ L+1 ── at its node, if that lives ──▶
//! ```
//!
//! An index node knows what was sealed; what came after is asked of the node itself. Each log is divided at the last record that the
//! index said it has, so that no record is asked for twice, and what is counted is counted once. Whatever cannot be asked for is
//! named.

use std::collections::{BTreeMap, BTreeSet};

use super::fleet_logs::FleetCoverage;
use super::record_questions::{HeldLog, Holdings, LogRange};

/// How a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownState {
    /// It lives, and can be asked.
    Living,
    /// It said that it stops, and that this was its last record.
    Stopped {
        /// Its last record.
        last: u64,
    },
    /// It is not seen to live.
    Away,
}

/// A node of the fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownNode {
    /// Its name.
    pub name: String,
    /// How it is.
    pub state: KnownState,
}

/// What a plan is made of.
#[derive(Clone, Copy, Debug)]
pub struct PlanFacts<'a> {
    /// What this node has.
    pub own: &'a Holdings,
    /// What other nodes that were asked said that they have; or why they did not.
    pub others: &'a [(String, Result<Holdings, String>)],
    /// The nodes of the fleet.
    pub nodes: &'a [KnownNode],
    /// The one that is meant, by its name or the id of its log; `None`: all.
    pub wanted: Option<&'a str>,
}

/// What one node is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadingShare {
    /// The node; `None`: this one.
    pub at: Option<String>,
    /// Which records.
    pub ranges: Vec<LogRange>,
}

/// Where everything is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadingPlan {
    /// Who is asked, this node first.
    pub shares: Vec<ReadingShare>,
    /// What the answer covers, if all of them answer.
    pub coverage: FleetCoverage,
}

/// Divides what is asked among the nodes.
#[must_use]
pub fn plan(facts: PlanFacts<'_>) -> ReadingPlan {
    let PlanFacts { own, others, nodes, wanted } = facts;
    let said = || others.iter().filter_map(|(at, said)| Some((at, said.as_ref().ok()?)));
    let copies_of = |name: &str| {
        let here = own.copies.iter().map(|held| (None, held));
        let there =
            said().flat_map(|(at, said)| said.copies.iter().map(move |held| (Some(at), held)));
        let all = here.chain(there).filter(|(_, held)| held.node == name);
        all.collect::<Vec<(Option<&String>, &HeldLog)>>()
    };
    let all_held = || {
        let theirs = said().flat_map(|(_, said)| said.copies.iter().chain([&said.own]));
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
        // What is here is asked for here, unless another has more of it.
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
            (KnownState::Living, Some((_, Err(why)))) => lacks.push(why.clone()),
            (KnownState::Living, Some((_, Ok(said)))) if is_asked && said.own.last <= last => {}
            (KnownState::Living, _) => {
                let range = LogRange { node: name.to_owned(), after: last, last: u64::MAX };
                asked.entry(Some(name)).or_default().push(range);
                is_asked = true;
            }
            (KnownState::Stopped { last: end }, _) if end <= last => {}
            (KnownState::Stopped { last: end }, _) => {
                let (first, has) = (last + 1, if is_asked { "yet" } else { "that answers" });
                lacks.push(format!(
                    "it has stopped, and no index node has its records {first} to {end} {has}"
                ));
            }
            (KnownState::Away, _) if is_asked => {
                lacks.push("it does not live: what it had not sealed is not here".to_owned());
            }
            (KnownState::Away, _) => lacks.push(
                "it does not live, and no index node that answers has its records".to_owned(),
            ),
        }
        if is_asked {
            coverage.nodes.push(name.to_owned());
        }
        if !lacks.is_empty() {
            coverage.missing.insert(name.to_owned(), lacks.join("; "));
        }
    }
    if let Some(wanted) = wanted.filter(|_| coverage.nodes.is_empty()) {
        let why = || "there is no such node in this fleet".to_owned();
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

    use KnownState::{Away, Living, Stopped};

    #[test]
    fn what_an_index_has_is_asked_there_and_what_came_after_at_its_node() {
        let own = holdings("a", 9, &[]);
        let others = [("i".to_owned(), Ok(holdings("i", 30, &[("a", 5), ("b", 20), ("c", 7)])))];
        let nodes =
            known(&[("a", Living), ("b", Living), ("c", Stopped { last: 7 }), ("i", Living)]);
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
    fn each_log_is_asked_for_once_among_shards_that_have_each_other_s_logs() {
        let own = holdings("s1", 9, &[("s2", 50), ("x", 10)]);
        let others = [
            ("s2".to_owned(), Ok(holdings("s2", 60, &[("s1", 3), ("y", 11)]))),
            ("s3".to_owned(), Ok(holdings("s3", 7, &[("y", 12), ("x", 99)]))),
        ];
        let nodes = known(&[
            ("s1", Living),
            ("s2", Living),
            ("s3", Living),
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
    fn who_does_not_live_or_answer_is_named_and_what_another_has_of_it_is_asked() {
        let own = holdings("a", 9, &[]);
        let others = [
            ("i".to_owned(), Err("nothing within 3 s".to_owned())),
            ("j".to_owned(), Ok(holdings("j", 4, &[("b", 20), ("i", 8), ("d", 1)]))),
        ];
        let nodes = known(&[
            ("a", Living),
            ("b", Away),
            ("c", Away),
            ("d", Stopped { last: 3 }),
            ("i", Living),
            ("j", Living),
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
        assert_eq!(plan.coverage.missing["i"], "nothing within 3 s");
        assert!(plan.coverage.missing["d"].contains("2 to 3"));
        assert!(plan.coverage.missing["c"].contains("no index node"));
        assert!(plan.coverage.partial);
        assert_eq!(plan.coverage.nodes, ["a", "b", "d", "i", "j"]);
    }

    #[test]
    fn one_node_is_meant_by_its_name_or_its_log() {
        let own = holdings("a", 9, &[("b", 5)]);
        let nodes = known(&[("a", Living), ("b", Living), ("c", Living)]);
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
        assert_eq!(plan.coverage.missing["x"], "there is no such node in this fleet");
    }

    #[test]
    fn a_copy_here_that_is_behind_gives_way_to_one_that_has_more() {
        let mut own = holdings("a", 9, &[("b", 5)]);
        let others = [("i".to_owned(), Ok(holdings("i", 1, &[("b", 20)])))];
        let nodes = known(&[("a", Living), ("b", Away), ("i", Living)]);
        let at = |own: &Holdings| {
            let facts = PlanFacts { own, others: &others, nodes: &nodes, wanted: Some("b") };
            plan(facts).shares
        };
        assert_eq!(at(&own), [share(None, &[range("b", 0, 5)])]);
        own.copies[0].behind = 15;
        assert_eq!(at(&own), [share(Some("i"), &[range("b", 0, 20)])]);
    }
}
