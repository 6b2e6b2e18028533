//! Selects the objects to read in a round, and the nodes whose facts are relayed. Pure.
//!
//! [`FactTurns`] is a fair scheduler: alive nodes first, together with some of the longest waiting objects of all
//! authors. Anyone with write access to the store can add any number of objects and change them every round. So a
//! round is bounded in objects and bytes, no forged name precedes an alive node, and each object is eventually read.
//!
//! [`FactRelays`] selects other nodes' facts to include in this node's object, with their original stamps, so that they
//! survive key rotation. Facts of a node that is gone stay sealed with an old key that new nodes do not have. A node
//! that has the old key therefore relays them under the new one, which does not change their meaning, since merging
//! takes the maximum. Of several relaying nodes, only the one whose name sorts first continues, and all stop once the
//! author itself uses the new key.
//!
//! The set of relayed authors is remembered permanently: the object with the relayed facts may be removed or rolled
//! back, and once the old key is gone, no other object in the store has these facts. Authors relayed by another node
//! are skipped but not forgotten, as that object may disappear, too.

use std::collections::{BTreeMap, BTreeSet};

use crate::config::NodeName;
use crate::facts::object::MAX_FACT_OBJECT_BYTES;

/// Maximum number of other nodes' objects read per round.
pub(crate) const MAX_ROUND_READS: usize = 64;
/// Maximum total size of these objects in bytes, as listed.
const MAX_ROUND_BYTES: u64 = 256 << 20;
/// Number of these reads that are reserved for the longest waiting objects.
const READ_IN_TURN: usize = 16;
const BYTES_IN_TURN: u64 = 64 << 20;
// There is room for an object of maximum size in each group.
const _: () = assert!(BYTES_IN_TURN >= MAX_FACT_OBJECT_BYTES);
const _: () = assert!(MAX_ROUND_BYTES - BYTES_IN_TURN >= MAX_FACT_OBJECT_BYTES);

/// Listed fact object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedFacts {
    pub key: String,
    /// Size in bytes.
    pub size: u64,
    /// Version tag.
    pub state: Box<str>,
}

/// Priority of an object; lesser ranks are read first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FactRank {
    /// Object of an alive node.
    Alive,
    /// Object of a node whose facts were read before.
    Known,
    /// Object of an unknown node; anyone with write access may have added it.
    Strange,
    /// Unchanged object that is read once more.
    Again,
}

/// Fair scheduler of reads.
#[derive(Clone, Debug, Default)]
pub(crate) struct FactTurns {
    rounds: u64,
    /// Round in which each object was last read, or first became due. Within a round, an object that was read sorts
    /// after one that became due.
    last: BTreeMap<NodeName, (u64, bool)>,
    /// Objects requested in this round that have not arrived.
    asked: BTreeSet<NodeName>,
    /// Number of changed objects that are left for later rounds.
    waiting: usize,
}

impl FactTurns {
    /// Starts a round with objects of these nodes. Returns the number of earlier rounds.
    pub(crate) fn begins(&mut self, there: &BTreeSet<NodeName>) -> u64 {
        self.last.retain(|node, _| there.contains(node));
        self.rounds += 1;
        self.rounds - 1
    }

    /// Selects the objects to read in this round.
    pub(crate) fn pick(
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

    /// Records exactly these objects as requested in this round.
    pub(crate) fn asks(
        &mut self,
        wanted: &[(NodeName, ListedFacts)],
        rank: impl Fn(&NodeName) -> FactRank,
    ) {
        let first_looks = wanted.iter().filter(|(node, _)| rank(node) != FactRank::Again);
        self.asked = first_looks.map(|(node, _)| node.clone()).collect();
    }

    /// Records that a requested object arrived or failed.
    pub(crate) fn record_arrival(&mut self, node: &NodeName) {
        self.asked.remove(node);
        self.last.insert(node.clone(), (self.rounds, true));
    }

    /// Records that a selected object was not requested; it keeps its position.
    pub(crate) fn record_not_requested(&mut self, node: &NodeName) {
        self.waiting += usize::from(self.asked.remove(node));
    }

    /// Number of changed objects still to be read, in this round or later.
    pub(crate) fn left(&self) -> usize {
        self.waiting + self.asked.len()
    }
}

/// Number of leading objects within the limits of `max` objects and `max_bytes` bytes.
fn fitting(due: &[(NodeName, ListedFacts)], max: usize, max_bytes: u64) -> usize {
    let mut bytes = 0_u64;
    let fits = |(_, listed): &&(NodeName, ListedFacts)| {
        bytes = bytes.saturating_add(listed.size);
        bytes <= max_bytes
    };
    due.iter().take(max).take_while(fits).count()
}

/// Maximum number of remembered relayed authors; equal to the maximum number of nodes whose objects are read.
const MAX_REMEMBERED: usize = 4096;

/// Authors in an object, and whether it uses the newest key.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ReadObject {
    by_first: bool,
    authors: BTreeSet<NodeName>,
}

/// State of relaying facts of other nodes.
#[derive(Clone, Debug)]
pub(crate) struct FactRelays {
    own: NodeName,
    /// Last opened object per node that still exists.
    objects: BTreeMap<NodeName, ReadObject>,
    /// Authors whose facts this node has relayed.
    remembered: BTreeSet<NodeName>,
}

impl FactRelays {
    pub(crate) fn new(own: NodeName, remembered: BTreeSet<NodeName>) -> Self {
        Self { own, objects: BTreeMap::new(), remembered }
    }

    /// Authors to be remembered.
    pub(crate) fn remembered(&self) -> &BTreeSet<NodeName> {
        &self.remembered
    }

    /// Records an opened object of `node`, whether it uses the newest key, and its authors. Returns true if
    /// this changed anything.
    pub(crate) fn read<'a>(
        &mut self,
        node: &NodeName,
        by_first: bool,
        authors: impl Iterator<Item = &'a NodeName>,
    ) -> bool {
        let authors: BTreeSet<_> = authors.cloned().chain([node.clone()]).collect();
        if *node == self.own || !by_first {
            // Authors in this node's own object are kept, because the object that was read may be a rollback.
            for author in authors.iter().filter(|author| **author != self.own) {
                if self.remembered.len() < MAX_REMEMBERED {
                    self.remembered.insert(author.clone());
                }
            }
        }
        let read = ReadObject { by_first, authors };
        let is_other = self.objects.get(node) != Some(&read);
        if is_other {
            self.objects.insert(node.clone(), read);
        }
        is_other
    }

    /// Records that the object of `node` is missing or invalid. Returns true if it was valid before.
    pub(crate) fn lost(&mut self, node: &NodeName) -> bool {
        self.objects.remove(node).is_some()
    }

    /// Keeps only objects of these nodes. Returns true if any were dropped.
    pub(crate) fn retain(&mut self, there: &BTreeSet<NodeName>) -> bool {
        let before = self.objects.len();
        self.objects.retain(|node, _| there.contains(node));
        self.objects.len() != before
    }

    /// True if this node's own object uses the newest key, as far as is known.
    pub(crate) fn is_own_current(&self) -> bool {
        self.objects.get(&self.own).is_none_or(|own| own.by_first)
    }

    /// Authors that this node relays. Unless `others_are_read`, the relays of other nodes are not known yet: the authors
    /// in this node's own stored object are kept, and none are added.
    pub(crate) fn relayed(&self, others_are_read: bool) -> BTreeSet<NodeName> {
        let own = self.objects.get(&self.own);
        let makes_progress =
            |author: &NodeName| own.is_some_and(|own| own.authors.contains(author));
        let all = self.remembered.iter().filter(|author| others_are_read || makes_progress(author));
        all.filter(|author| !self.is_left_to_another(author)).cloned().collect()
    }

    fn is_left_to_another(&self, author: &NodeName) -> bool {
        self.carriers(author).any(|node| node == author || *node < self.own)
    }

    /// Other nodes whose objects with the newest key contain facts of an author.
    fn carriers<'a>(&'a self, author: &'a NodeName) -> impl Iterator<Item = &'a NodeName> {
        let is_other =
            move |(node, it): &(&NodeName, &ReadObject)| **node != self.own && it.by_first;
        let others = self.objects.iter().filter(is_other);
        others.filter(move |(_, it)| it.authors.contains(author)).map(|(node, _)| node)
    }

    /// True if the author or another node has uploaded the author's facts with the newest key.
    pub(crate) fn is_uploaded_elsewhere(&self, author: &NodeName) -> bool {
        self.carriers(author).next().is_some()
    }

    /// True if the author's facts are relayed, so that its own object need not be opened.
    pub(crate) fn is_relayed(&self, author: &NodeName) -> bool {
        let own = self.objects.get(&self.own);
        own.is_some_and(|own| *author != self.own && own.authors.contains(author))
            || self.carriers(author).any(|node| node != author)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::set::tests::node;

    fn listed(name: &str, size: u64) -> (NodeName, ListedFacts) {
        (node(name), ListedFacts { key: name.to_owned(), size, state: "1".into() })
    }

    /// Nodes with these name prefixes are alive or unknown.
    fn rank(node: &NodeName) -> FactRank {
        match node.as_str().get(..1) {
            Some("l") => FactRank::Alive,
            Some("s") => FactRank::Strange,
            Some("x") => FactRank::Again,
            Some(_) | None => FactRank::Known,
        }
    }

    /// Runs a round with these due objects, all of which arrive.
    fn round(turns: &mut FactTurns, due: &[(NodeName, ListedFacts)]) -> Vec<String> {
        turns.begins(&due.iter().map(|(node, _)| node.clone()).collect());
        let picked = turns.pick(due.to_vec(), rank);
        turns.asks(&picked, rank);
        let first_looks = due.iter().filter(|(node, _)| rank(node) != FactRank::Again);
        assert_eq!(turns.left(), first_looks.count());
        for (node, _) in &picked {
            turns.record_arrival(node);
        }
        picked.into_iter().map(|(node, _)| node.as_str().to_owned()).collect()
    }

    #[test]
    fn alive_nodes_are_read_first_and_every_object_is_read_eventually() {
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
        // New names do not precede one that is already waiting.
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
    fn rereading_objects_does_not_delay_unread_objects() {
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
    fn round_is_bounded_in_bytes_and_reads_from_each_group() {
        let max = MAX_FACT_OBJECT_BYTES;
        let names = (0..20).flat_map(|at| [format!("l{at:02}"), format!("s{at:02}")]);
        let due: Vec<_> = names.map(|name| listed(&name, max)).collect();
        let mut turns = FactTurns::default();
        let picked = round(&mut turns, &due);
        assert_eq!(picked.len() as u64, MAX_ROUND_BYTES / max);
        // All alive nodes are read once first, because they have waited just as long.
        let picked: Vec<_> = (0..2).flat_map(|_| round(&mut turns, &due)).collect();
        assert_eq!(picked.iter().filter(|name| name.starts_with('s')).count(), 2, "{picked:?}");
        // An object not requested in time is still due.
        turns.begins(&BTreeSet::from([node("l00"), node("s00")]));
        let picked = turns.pick(vec![listed("l00", 1), listed("s00", 1)], rank);
        turns.asks(&picked, rank);
        assert_eq!(turns.left(), 2);
        turns.record_arrival(&node("l00"));
        turns.record_not_requested(&node("s00"));
        turns.record_not_requested(&node("s00"));
        assert_eq!(turns.left(), 1);
    }

    fn relays(own: &NodeName, remembered: &[&NodeName]) -> FactRelays {
        FactRelays::new(own.clone(), remembered.iter().map(|node| (*node).clone()).collect())
    }

    fn read(relays: &mut FactRelays, node: &NodeName, by_first: bool, of: &[&NodeName]) -> bool {
        relays.read(node, by_first, of.iter().copied())
    }

    fn relayed(relays: &FactRelays) -> Vec<NodeName> {
        relays.relayed(true).into_iter().collect()
    }

    #[test]
    fn one_node_relays_facts_with_an_old_key_until_the_author_returns() {
        let [a, b, c, gone] = ["a", "b", "c", "gone"].map(node);
        let mut relays = relays(&b, &[]);
        read(&mut relays, &b, false, &[]);
        read(&mut relays, &gone, false, &[]);
        read(&mut relays, &c, true, &[]);
        assert_eq!(relayed(&relays), std::slice::from_ref(&gone));
        assert!(!relays.is_relayed(&gone));
        // This node relays the facts, then also a node whose name sorts later, then one whose name sorts earlier.
        read(&mut relays, &b, true, &[&gone]);
        read(&mut relays, &c, true, &[&gone]);
        assert_eq!(relayed(&relays), std::slice::from_ref(&gone));
        assert!(relays.is_relayed(&gone));
        read(&mut relays, &a, true, &[&gone]);
        assert_eq!(relayed(&relays), []);
        // After the next key rotation, the relaying node is gone, too.
        read(&mut relays, &c, false, &[]);
        read(&mut relays, &a, false, &[&gone]);
        assert_eq!(relayed(&relays), [a.clone(), c.clone(), gone.clone()]);
        read(&mut relays, &gone, true, &[]);
        assert_eq!(relayed(&relays), [a, c]);
        // A restarted node with only the newest key finds the author in its own object.
        let mut again = self::relays(&b, &[]);
        read(&mut again, &b, true, &[&gone]);
        assert_eq!(relayed(&again), std::slice::from_ref(&gone));
        assert!(again.is_relayed(&gone) && !again.is_relayed(&b));
    }

    #[test]
    fn relayed_authors_are_kept_despite_rollback_or_loss_of_other_relays() {
        let [a, b, gone] = ["a", "b", "gone"].map(node);
        let mut relays = relays(&b, &[]);
        assert!(read(&mut relays, &b, true, &[&gone]) && !read(&mut relays, &b, true, &[&gone]));
        // An older object is restored, then removed.
        assert!(read(&mut relays, &b, true, &[]));
        assert_eq!(relayed(&relays), std::slice::from_ref(&gone));
        assert!(!relays.is_relayed(&gone), "not in the store");
        assert!(relays.lost(&b) && !relays.lost(&b));
        assert_eq!(relayed(&relays), std::slice::from_ref(&gone));
        // The same holds for a node that starts now. It relays nothing until it is certain that no other node relays
        // the facts.
        let remembered: Vec<_> = relays.remembered().iter().collect();
        let mut again = self::relays(&b, &remembered);
        assert_eq!(again.relayed(false).len(), 0);
        assert_eq!(relayed(&again), std::slice::from_ref(&gone));
        // Another node relays the facts until that node is gone as well.
        read(&mut again, &a, true, &[&gone]);
        assert_eq!(relayed(&again), []);
        assert!(again.is_uploaded_elsewhere(&gone));
        assert!(again.retain(&[b.clone()].into()) && !again.retain(&[b].into()));
        assert_eq!(relayed(&again), [gone]);
    }

    #[test]
    fn remembered_authors_are_bounded() {
        let own = node("own");
        let mut relays = relays(&own, &[]);
        for at in 0..MAX_REMEMBERED + 10 {
            read(&mut relays, &node(&at.to_string()), false, &[]);
        }
        assert_eq!(relays.remembered().len(), MAX_REMEMBERED);
    }
}
