//! Whose objects are read in a round of the exchange, where more are to be read than one round reads: those of nodes that live
//! first, and with them some that wait for longest, whoever's they are. Pure.
//!
//! Whoever can write into the store can have any number of objects read, and any object again each round. So a round is bounded
//! in objects and bytes, no name that anybody can have made up comes before a node that lives, and each has its turn all the same.

use std::collections::{BTreeMap, BTreeSet};

use super::fact_object::MAX_FACT_OBJECT_BYTES;
use crate::fleet::config::NodeName;

/// Most objects of other nodes that are read in a round; the others have their turn in a later one.
pub(super) const MAX_ROUND_READS: usize = 64;
/// Most bytes of these, as they are listed.
const MAX_ROUND_BYTES: u64 = 256 << 20;
/// So many of these are those that wait for longest.
const READ_IN_TURN: usize = 16;
const BYTES_IN_TURN: u64 = 64 << 20;
// There is room for one of each, however long.
const _: () = assert!(BYTES_IN_TURN >= MAX_FACT_OBJECT_BYTES);
const _: () = assert!(MAX_ROUND_BYTES - BYTES_IN_TURN >= MAX_FACT_OBJECT_BYTES);

/// An object of what a node says, as it is listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedFacts {
    /// Its key.
    pub key: String,
    /// Its bytes.
    pub size: u64,
    /// What tells one state of it from another.
    pub state: Box<str>,
}

/// Whose object it is: those that are read sooner are less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FactRank {
    /// A node's that lives.
    Living,
    /// That of one that has said something before.
    Known,
    /// Anybody can have put it there.
    Strange,
    /// It was read as it is, and is looked at once more.
    Again,
}

/// What is to be read, and was.
#[derive(Clone, Debug, Default)]
pub(super) struct FactTurns {
    rounds: u64,
    /// In which round each was to be read first, or was read last, which is later than the first of the same round.
    last: BTreeMap<NodeName, (u64, bool)>,
    /// Those that are asked for in this round, and have not come.
    asked: BTreeSet<NodeName>,
    /// How many are to be read that were not, as they are, and are not in this round.
    waiting: usize,
}

impl FactTurns {
    /// A round begins, in which there are objects of these nodes. How many were before.
    pub(super) fn begins(&mut self, there: &BTreeSet<NodeName>) -> u64 {
        self.last.retain(|node, _| there.contains(node));
        self.rounds += 1;
        self.rounds - 1
    }

    /// Which of those that are to be read are read in this round.
    pub(super) fn pick(
        &mut self,
        mut due: Vec<(NodeName, ListedFacts)>,
        rank: impl Fn(&NodeName) -> FactRank,
    ) -> Vec<(NodeName, ListedFacts)> {
        let first_looks = |due: &[(NodeName, ListedFacts)]| {
            due.iter().filter(|(node, _)| rank(node) != FactRank::Again).count()
        };
        let all = first_looks(&due);
        for (node, _) in &due {
            self.last.entry(node.clone()).or_insert((self.rounds, false));
        }
        let turn = |node: &NodeName| self.last.get(node).copied();
        due.sort_by_cached_key(|(node, _)| (rank(node), turn(node), node.clone()));
        let first = fitting(&due, MAX_ROUND_READS - READ_IN_TURN, MAX_ROUND_BYTES - BYTES_IN_TURN);
        let mut rest = due.split_off(first);
        rest.sort_by_cached_key(|(node, _)| (turn(node), node.clone()));
        let bytes: u64 = due.iter().map(|(_, listed)| listed.size).sum();
        let more =
            fitting(&rest, MAX_ROUND_READS - due.len(), MAX_ROUND_BYTES.saturating_sub(bytes));
        rest.truncate(more);
        due.append(&mut rest);
        self.waiting = all - first_looks(&due);
        due
    }

    /// These are asked for in this round, and no others.
    pub(super) fn asks(
        &mut self,
        wanted: &[(NodeName, ListedFacts)],
        rank: impl Fn(&NodeName) -> FactRank,
    ) {
        let first_looks = wanted.iter().filter(|(node, _)| rank(node) != FactRank::Again);
        self.asked = first_looks.map(|(node, _)| node.clone()).collect();
    }

    /// What was asked for has come, or why it does not.
    pub(super) fn has_come(&mut self, node: &NodeName) {
        self.asked.remove(node);
        self.last.insert(node.clone(), (self.rounds, true));
    }

    /// It was not asked for after all, and keeps its turn.
    pub(super) fn not_asked(&mut self, node: &NodeName) {
        self.waiting += usize::from(self.asked.remove(node));
    }

    /// How many are still to be read for the first time as they are, in this round or a later one.
    pub(super) fn left(&self) -> usize {
        self.waiting + self.asked.len()
    }
}

/// How many of the first of them are no more than `most` and have no more bytes than `room`.
fn fitting(due: &[(NodeName, ListedFacts)], most: usize, room: u64) -> usize {
    let mut bytes = 0_u64;
    let fits = |(_, listed): &&(NodeName, ListedFacts)| {
        bytes = bytes.saturating_add(listed.size);
        bytes <= room
    };
    due.iter().take(most).take_while(fits).count()
}

#[cfg(test)]
mod tests {
    use super::super::fact_set::tests::node;
    use super::*;

    fn listed(name: &str, size: u64) -> (NodeName, ListedFacts) {
        (node(name), ListedFacts { key: name.to_owned(), size, state: "1".into() })
    }

    /// Those that live are called so, and so are strangers.
    fn rank(node: &NodeName) -> FactRank {
        match node.as_str().get(..1) {
            Some("l") => FactRank::Living,
            Some("s") => FactRank::Strange,
            Some("x") => FactRank::Again,
            Some(_) | None => FactRank::Known,
        }
    }

    /// A round in which these are to be read, and come.
    fn round(turns: &mut FactTurns, due: &[(NodeName, ListedFacts)]) -> Vec<String> {
        turns.begins(&due.iter().map(|(node, _)| node.clone()).collect());
        let picked = turns.pick(due.to_vec(), rank);
        turns.asks(&picked, rank);
        let first_looks = due.iter().filter(|(node, _)| rank(node) != FactRank::Again);
        assert_eq!(turns.left(), first_looks.count());
        for (node, _) in &picked {
            turns.has_come(node);
        }
        picked.into_iter().map(|(node, _)| node.as_str().to_owned()).collect()
    }

    #[test]
    fn those_that_live_come_first_and_each_has_its_turn_whatever_changes_all_the_time() {
        let names = (0..100).flat_map(|at| [format!("a{at:02}"), format!("s{at:02}")]);
        let mut due: Vec<_> = names.map(|name| listed(&name, 1)).collect();
        due.extend(["sz", "l1", "l2"].map(|name| listed(name, 1)));
        let mut turns = FactTurns::default();
        let (mut read, mut rounds) = (BTreeSet::new(), 0);
        while read.len() < due.len() {
            let picked = round(&mut turns, &due);
            assert_eq!(picked.len(), MAX_ROUND_READS);
            assert_eq!(picked[..2], ["l1", "l2"]);
            assert!(rounds > 0 || picked[2..48].iter().all(|name| name.starts_with('a')));
            read.extend(picked);
            rounds += 1;
            assert!(rounds <= 12, "{} of {}", read.len(), due.len());
        }
        // New names do not come before one that waits already.
        let mut turns = FactTurns::default();
        let waits = listed("sz", 1);
        for number in 0..2 {
            let mut due: Vec<_> =
                (0..200).map(|at| listed(&format!("s{number}{at:03}"), 1)).collect();
            due.push(waits.clone());
            let is_read = round(&mut turns, &due).contains(&"sz".to_owned());
            assert_eq!(is_read, number == 1);
        }
    }

    #[test]
    fn what_is_looked_at_once_more_keeps_nothing_that_was_never_read_waiting() {
        let mut turns = FactTurns::default();
        let mut unread: BTreeSet<_> = (0..1000).map(|at| format!("s{at:04}")).collect();
        let again: Vec<_> = (0..500).map(|at| listed(&format!("x{at:03}"), 1)).collect();
        for left in (0..1000_usize).rev().step_by(MAX_ROUND_READS - READ_IN_TURN) {
            let due = unread.iter().map(|name| listed(name, 1)).chain(again.clone());
            for name in round(&mut turns, &due.collect::<Vec<_>>()) {
                unread.remove(&name);
            }
            assert!(unread.len() <= left, "{} of at most {left}", unread.len());
        }
        assert_eq!(turns.left(), 0);
    }

    #[test]
    fn a_round_is_bounded_in_bytes_and_reads_something_of_each_in_any_case() {
        let most = MAX_FACT_OBJECT_BYTES;
        let names = (0..20).flat_map(|at| [format!("l{at:02}"), format!("s{at:02}")]);
        let due: Vec<_> = names.map(|name| listed(&name, most)).collect();
        let mut turns = FactTurns::default();
        let picked = round(&mut turns, &due);
        assert_eq!(picked.len() as u64, MAX_ROUND_BYTES / most);
        // Those that live are all read once before, as they wait for as long.
        let picked: Vec<_> = (0..2).flat_map(|_| round(&mut turns, &due)).collect();
        assert_eq!(picked.iter().filter(|name| name.starts_with('s')).count(), 2, "{picked:?}");
        // One that is not begun in time is still to be read.
        turns.begins(&BTreeSet::from([node("l00"), node("s00")]));
        let picked = turns.pick(vec![listed("l00", 1), listed("s00", 1)], rank);
        turns.asks(&picked, rank);
        assert_eq!(turns.left(), 2);
        turns.has_come(&node("l00"));
        turns.not_asked(&node("s00"));
        turns.not_asked(&node("s00"));
        assert_eq!(turns.left(), 1);
    }
}
