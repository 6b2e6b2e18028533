//! What a node believes of the objects that lie in the store, and what of its own it has to put there. Pure.
//!
//! A node remembers the highest number that it has read of each other: an object with a lower one was put back, and is told
//! and passed over. What it once said stays known in any case, since sets only grow heavier. One that cannot be read, or is
//! not there any more, changes nothing either. What was read is read once more, as the read may have been older than the listing.
//!
//! What the node itself says waits for its own object alone; the others are read in turn (`fact_turns`), as many as a round
//! reads. All was read only once each object that lies there was asked for: where more lie there than are seen, it never is.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use super::fact_object::{FactObject, MAX_FACT_OBJECT_BYTES, NotFacts};
use super::fact_relay::FactRelays;
use super::fact_saying::{FactSaying, SaidFacts};
use super::fact_set::FactSet;
use super::fact_turns::{FactRank, FactTurns, ListedFacts};
use super::sealed_object::NotOpened;
use crate::fleet::config::NodeName;
use crate::fleet::strays::StrayObjects;

/// The folder of what the nodes say: one object for each, under its name. It is not in the nodes' folders, so that a rule that
/// removes old segments does not reach it.
pub(super) const SAID: &str = "facts/said";
/// Most nodes whose objects are read.
const MAX_NODES: usize = 4096;
/// Most objects that are listed: those of all nodes, and some that are no node's.
pub(super) const MAX_LISTED_FACTS: usize = MAX_NODES + 1024;
/// Most rounds in which an object that cannot be read is not asked for.
const MOST_RESTS: u32 = 15;
/// In so many rounds, behind the one in which an object was read, it is read once more: the read may have been older than the
/// listing, and what the listing says is another state no longer.
const LOOK_AGAIN: u32 = 8;
/// How often a store may have lost what it took before that is told.
const MAY_LOSE: u32 = 2;
/// After so many rounds a node says what it is to say again for others, though some of what others may say instead cannot be
/// read,
const SETTLED_AFTER: u64 = 8;
/// and after so many though some of that was not asked for yet: by then each had its turn, if it was there before.
const SETTLED_ANYWAY: u64 = 128;

/// Why an object is passed over, or what else is wrong about it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FactFault {
    /// It is too long to be read.
    #[error("it has {0} bytes, and is not read: more than {MAX_FACT_OBJECT_BYTES} there cannot be")]
    TooLong(u64),
    /// Objects stand under no node's name, or under those of more nodes than there can be.
    #[error("{0}")]
    StrayObjects(StrayObjects),
    /// There are too many.
    #[error(
        "more than {MAX_LISTED_FACTS} objects lie there, and the others are not seen ({0}): remove what is no node's; until then no new node starts"
    )]
    TooMany(StrayObjects),
    /// There are too many under names that a node can have.
    #[error(
        "more than {MAX_NODES} names of nodes stand there, and the objects of the others are not read ({0}): remove what is no node's; until then no new node starts"
    )]
    TooManyNodes(StrayObjects),
    /// It is not what the fleet has sealed.
    #[error(transparent)]
    Sealed(#[from] NotOpened),
    /// The store does not give it.
    #[error("it cannot be read: {0}")]
    Unread(String),
    /// It says nothing.
    #[error(transparent)]
    Contents(#[from] NotFacts),
    /// It was put back.
    #[error(
        "it is number {read} and number {known} was there before: it was replaced by an older one"
    )]
    Older {
        /// Its number.
        read: u64,
        /// The highest that was read.
        known: u64,
    },
    /// It was there.
    #[error("it was there, and is not any more")]
    Removed,
    /// Somebody else writes this node's object.
    #[error("another node writes under this node's name")]
    Twin,
    /// It is not kept.
    #[error("the store says that it takes it, and does not keep it")]
    Unkept,
    /// What it says is to be said again, and is not.
    #[error(
        "what that node has said is to be said again by this one, whose object has no room for it, and new nodes do not know it: keep the older cluster.key, and see which server lists ever other tools"
    )]
    NoRoom,
}

/// An object that the store does not give.
#[derive(Clone, Debug)]
struct UnreadObject {
    state: Box<str>,
    /// How often it was asked for.
    times: u32,
    /// In so many rounds it is not asked for: each time may take as long as the store is waited for.
    rests: u32,
}

/// A state of an object that was looked at.
#[derive(Clone, Debug)]
struct LookedState {
    state: Box<str>,
    /// Rounds until it is looked at once more: at 1 it is due, at 0 it was done.
    again: u32,
}

/// What a node knows of the objects in the store.
#[derive(Clone, Debug)]
pub struct FactReader {
    own: NodeName,
    /// The highest numbers that were read, and of its own object the last that it has put.
    numbers: BTreeMap<NodeName, u64>,
    /// The states that were looked at.
    looked: BTreeMap<NodeName, LookedState>,
    faults: BTreeMap<String, FactFault>,
    /// Those that could not be read.
    unread: BTreeMap<NodeName, UnreadObject>,
    turns: FactTurns,
    /// Whether objects lie there that are not seen, or not read, for being too many.
    lacks_some: bool,
    /// Whether it is known what others say again, as far as it can be.
    is_settled: bool,
    /// What its own object in the store says.
    stored: Option<FactSet>,
    relays: FactRelays,
    /// Whose facts it is to say again, and has no room for.
    left_out: BTreeSet<NodeName>,
    /// What it has put last, and how often the store did not have it then.
    put: Option<FactSet>,
    unkept: u32,
    /// Whether it remembers nothing: then its own object is not somebody else's.
    fresh: bool,
    /// Counts the changes of what is to be remembered.
    remembered: u64,
    /// Counts the changes of what decides, beside the facts, what it says and whether the store does.
    sayings: u64,
}

impl FactReader {
    /// One that remembers these numbers, and that it has had to say again what these nodes said; `fresh` if it remembers nothing
    /// at all.
    #[must_use]
    pub fn new(
        own: NodeName,
        numbers: BTreeMap<NodeName, u64>,
        said_again: BTreeSet<NodeName>,
        fresh: bool,
    ) -> Self {
        Self {
            relays: FactRelays::new(own.clone(), said_again),
            own,
            numbers,
            looked: BTreeMap::new(),
            faults: BTreeMap::new(),
            unread: BTreeMap::new(),
            turns: FactTurns::default(),
            lacks_some: false,
            is_settled: false,
            stored: None,
            left_out: BTreeSet::new(),
            put: None,
            unkept: 0,
            fresh,
            remembered: 0,
            sayings: 0,
        }
    }

    /// The highest numbers that were read, to be remembered.
    #[must_use]
    pub fn numbers(&self) -> &BTreeMap<NodeName, u64> {
        &self.numbers
    }

    /// The nodes whose facts it has had to say again, to be remembered.
    #[must_use]
    pub fn said_again(&self) -> &BTreeSet<NodeName> {
        self.relays.remembered()
    }

    /// Counts the changes of these and the numbers.
    pub(super) fn remembered(&self) -> u64 {
        self.remembered
    }

    /// Counts the changes of what decides, beside the facts, what the node says and whether the store does.
    pub(super) fn sayings(&self) -> u64 {
        self.sayings
    }

    /// What is wrong, by the keys of the objects.
    #[must_use]
    pub fn faults(&self) -> &BTreeMap<String, FactFault> {
        &self.faults
    }

    /// The nodes whose facts it is to say again, has no room for, and no other node says either: [`FactFault::NoRoom`].
    pub fn left_out(&self) -> impl Iterator<Item = &NodeName> {
        self.left_out.iter().filter(|node| !self.relays.is_said_elsewhere(node))
    }

    /// Whether the store gave all that lies there, be it what a fleet writes or not.
    #[must_use]
    pub fn has_read_all(&self) -> bool {
        !self.lacks_some && self.unread.is_empty() && !self.is_behind()
    }

    /// Whether some of what was listed was not asked for yet.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.turns.left() > 0
    }

    /// Why not all was read; `None` where it was.
    #[must_use]
    pub fn unheard(&self) -> Option<String> {
        if self.has_read_all() {
            return None;
        }
        let key = match self.lacks_some {
            true => Some(SAID.to_owned()),
            false => self.unread.keys().next().map(object_key),
        };
        let fault = key.and_then(|key| self.faults.get(&key).map(|why| format!("{key}: {why}")));
        Some(fault.unwrap_or_else(|| {
            format!("{} of the objects in {SAID} are still to be read", self.turns.left())
        }))
    }

    /// The objects that are read in this round: the node's own first, if it is to be, and then as many as are read in a round,
    /// those of nodes that live and of such that are known first. `listed` are all there are, unless `is_whole` is false: then
    /// it is not known of the others whether they are there.
    pub fn wanted(
        &mut self,
        listed: &[ListedFacts],
        is_whole: bool,
        lives: impl Fn(&NodeName) -> bool,
    ) -> Vec<(NodeName, ListedFacts)> {
        let (mut named, mut strays) = (Vec::new(), StrayObjects::default());
        for listed in listed {
            let name = listed.key.strip_prefix(SAID).and_then(|name| name.strip_prefix('/'));
            match name.and_then(NodeName::parse) {
                Some(node) => named.push((node, listed)),
                None => strays.add(name.unwrap_or(&listed.key)),
            }
        }
        // Whoever can write there can put any number of names; those that are known are read whatever they are.
        let numbers = &self.numbers;
        let rank = |node: &NodeName| match numbers.contains_key(node) {
            _ if lives(node) => FactRank::Living,
            true => FactRank::Known,
            false => FactRank::Strange,
        };
        named.sort_by_cached_key(|(node, _)| (*node != self.own, rank(node), node.clone()));
        let are_cut = named.len() > MAX_NODES;
        for (node, _) in named.drain(named.len().min(MAX_NODES)..) {
            strays.add(node.as_str());
        }
        let ranks: BTreeMap<_, _> =
            named.iter().map(|(node, _)| (node.clone(), rank(node))).collect();
        let there: BTreeSet<_> = ranks.keys().cloned().collect();
        self.begins(&there, is_whole, are_cut, strays);
        let (mut wanted, mut due) = (Vec::new(), Vec::new());
        for (node, listed) in named {
            let is_own = node == self.own;
            if listed.size > MAX_FACT_OBJECT_BYTES {
                self.faults.insert(listed.key.clone(), FactFault::TooLong(listed.size));
                if is_own {
                    self.own_is_missing();
                } else {
                    self.sayings += u64::from(self.relays.lost(&node));
                }
            } else if self.is_due(&node, listed) && !self.rests(&node, listed) {
                let of = if is_own { &mut wanted } else { &mut due };
                of.push((node, listed.clone()));
            }
        }
        // What it puts depends on what it has put before a restart that it may not remember.
        if !is_whole && !there.contains(&self.own) {
            let (key, state) = (object_key(&self.own), "not listed".into());
            wanted.push((self.own.clone(), ListedFacts { key, size: 0, state }));
        }
        let seen = wanted.iter().chain(&due).filter(|(node, listed)| self.has_looked(node, listed));
        let seen: BTreeSet<_> = seen.map(|(node, _)| node.clone()).collect();
        let rank = |node: &NodeName| match ranks.get(node) {
            _ if seen.contains(node) => FactRank::Again,
            Some(rank) => *rank,
            None => FactRank::Strange,
        };
        wanted.extend(self.turns.pick(due, rank));
        self.turns.asks(&wanted, rank);
        wanted
    }

    /// A round begins, in which objects of these nodes are there, and no others if `is_whole`, but for `strays`.
    fn begins(
        &mut self,
        there: &BTreeSet<NodeName>,
        is_whole: bool,
        are_cut: bool,
        strays: StrayObjects,
    ) {
        let has_read_all = self.has_read_all();
        let before = self.turns.begins(there);
        self.is_settled |= before > 0 && has_read_all
            || before >= SETTLED_AFTER && !self.is_behind()
            || before >= SETTLED_ANYWAY;
        self.lacks_some = !is_whole || are_cut;
        let keys: BTreeSet<_> = there.iter().map(object_key).collect();
        self.faults.retain(|key, _| keys.contains(key));
        let fault = match (is_whole, are_cut, strays.is_empty()) {
            (false, _, _) => Some(FactFault::TooMany(strays)),
            (true, true, _) => Some(FactFault::TooManyNodes(strays)),
            (true, false, false) => Some(FactFault::StrayObjects(strays)),
            (true, false, true) => None,
        };
        self.faults.extend(fault.map(|fault| (SAID.to_owned(), fault)));
        // Of one that is not listed it may not be known whether it is there; names that were never a node's may be any number.
        let numbers = &self.numbers;
        let stays =
            |node: &NodeName| there.contains(node) || !is_whole && numbers.contains_key(node);
        self.looked.retain(|node, _| stays(node));
        self.unread.retain(|node, _| stays(node));
        if !is_whole {
            return;
        }
        let removed = self.numbers.keys().filter(|node| !there.contains(*node));
        let removed: Vec<_> = removed.filter(|node| **node != self.own).map(object_key).collect();
        self.faults.extend(removed.into_iter().map(|key| (key, FactFault::Removed)));
        if !there.contains(&self.own) {
            self.own_is_missing();
        }
        self.sayings += u64::from(self.relays.retain(there));
    }

    /// The object of the node itself is not there, or is none that it has written.
    pub fn own_is_missing(&mut self) {
        let was_there = self.stored.take().is_some() | self.relays.lost(&self.own);
        self.sayings += u64::from(was_there);
        self.turns.has_come(&self.own);
    }

    /// Whether an object was read in the state that it is in.
    fn has_looked(&self, node: &NodeName, listed: &ListedFacts) -> bool {
        self.looked.get(node).is_some_and(|looked| looked.state == listed.state)
    }

    /// Whether an object is to be looked at: it is in another state than when it was, or it is time to look once more.
    fn is_due(&mut self, node: &NodeName, listed: &ListedFacts) -> bool {
        match self.looked.get_mut(node).filter(|looked| looked.state == listed.state) {
            Some(looked) => {
                looked.again = if looked.again > 1 { looked.again - 1 } else { looked.again };
                looked.again == 1
            }
            None => true,
        }
    }

    /// Whether an object that could not be read is not asked for in this round, either.
    fn rests(&mut self, node: &NodeName, listed: &ListedFacts) -> bool {
        let unread = self.unread.get_mut(node).filter(|unread| unread.state == listed.state);
        let Some(rests) = unread.map(|unread| &mut unread.rests).filter(|rests| **rests > 0) else {
            return false;
        };
        *rests -= 1;
        true
    }

    /// The object of another node was not asked for after all, for want of time: it is in a later round.
    pub(super) fn not_asked(&mut self, node: &NodeName) {
        self.turns.not_asked(node);
    }

    /// The object of another node in that state could not be read: that is asked for again, after ever more rounds.
    pub fn not_read(
        &mut self,
        node: &NodeName,
        listed: &ListedFacts,
        why: &impl std::fmt::Display,
    ) {
        self.turns.has_come(node);
        let before = self.unread.get(node).filter(|unread| unread.state == listed.state);
        let times = before.map_or(0, |unread| unread.times) + 1;
        let rests = (1_u32 << (times - 1).min(8)).min(MOST_RESTS + 1) - 1;
        self.unread
            .insert(node.clone(), UnreadObject { state: listed.state.clone(), times, rests });
        self.faults.insert(listed.key.clone(), FactFault::Unread(why.to_string()));
    }

    /// Takes over what was read of a node's object in that state; true if `set` is another now.
    pub fn take(
        &mut self,
        (node, state): (&NodeName, &str),
        read: Result<FactObject, FactFault>,
        set: &mut FactSet,
    ) -> bool {
        self.turns.has_come(node);
        let before = self.looked.get(node);
        let is_again = before.is_some_and(|looked| *looked.state == *state && looked.again <= 1);
        let again = if is_again { 0 } else { LOOK_AGAIN };
        self.looked.insert(node.clone(), LookedState { state: state.into(), again });
        self.unread.remove(node);
        let (key, is_own) = (object_key(node), *node == self.own);
        self.faults.remove(&key);
        let object = match read {
            Ok(object) => object,
            Err(fault) => {
                self.faults.insert(key, fault);
                if is_own {
                    self.own_is_missing();
                } else {
                    self.sayings += u64::from(self.relays.lost(node));
                }
                return false;
            }
        };
        let known = self.numbers.get(node).copied().unwrap_or(0);
        if is_own {
            if object.number > known && !self.fresh {
                self.faults.insert(key, FactFault::Twin);
            }
            self.fresh = false;
        } else if object.number < known {
            self.faults.insert(key, FactFault::Older { read: object.number, known });
            return false;
        }
        let number = object.number.max(known);
        if self.numbers.insert(node.clone(), number) != Some(number) {
            self.remembered += 1;
        }
        let is_other = set.merge(&object.facts);
        if is_own && self.stored.as_ref() != Some(&object.facts) {
            self.stored = Some(object.facts);
            self.sayings += 1;
        }
        is_other
    }

    /// The object of `node` that is taken next was opened by the key that is written by now, or by an older one; and says this.
    /// Its own by an older key does not count as put; what others have said by one is said again, if they do not do it.
    pub fn opened(&mut self, node: &NodeName, by_first: bool, object: &FactObject) {
        let before = self.relays.remembered().len();
        let is_other = self.relays.read(node, by_first, object.facts.authors());
        self.sayings += u64::from(is_other);
        self.remembered += u64::from(self.relays.remembered().len() != before);
    }

    /// Whether it is no fault that the object of that key cannot be opened: what it says is said again.
    #[must_use]
    pub fn is_said_again(&self, key: &str) -> bool {
        let name = key.strip_prefix(SAID).and_then(|name| name.strip_prefix('/'));
        name.and_then(NodeName::parse).is_some_and(|node| self.relays.is_said_again(&node))
    }

    /// Whose facts the node's object is to have. Before it is known what the others say again it says no more than it did: each
    /// that starts would put what all of them remember, and take it back.
    pub(super) fn saying(&self) -> FactSaying {
        let again = self.relays.relayed(self.is_settled || self.has_read_all());
        FactSaying { own: self.own.clone(), again }
    }

    /// The same once all is known.
    pub(super) fn whole_saying(&self) -> FactSaying {
        FactSaying { own: self.own.clone(), again: self.relays.relayed(true) }
    }

    /// What is to be put now, if the store does not say what the node says in `set`. To be asked when its own object is taken,
    /// if that was wanted.
    pub fn to_put(&mut self, set: &FactSet) -> Option<FactObject> {
        let said = self.saying().of(set);
        self.puts_said(said)
    }

    /// The same, where that was gathered before.
    pub(super) fn puts_said(&mut self, said: SaidFacts) -> Option<FactObject> {
        let SaidFacts { facts: said, left_out } = said;
        self.left_out = left_out;
        if self.is_stored(&said) {
            (self.put, self.unkept) = (None, 0);
            return None;
        }
        self.unkept = if self.put.as_ref() == Some(&said) { self.unkept + 1 } else { 0 };
        if self.unkept >= MAY_LOSE {
            self.faults.insert(object_key(&self.own), FactFault::Unkept);
        }
        let number = self.numbers.get(&self.own).copied().unwrap_or(0) + 1;
        self.numbers.insert(self.own.clone(), number);
        self.remembered += 1;
        Some(FactObject { number, facts: said })
    }

    /// The store said that it has taken this.
    pub fn has_put(&mut self, object: &FactObject) {
        self.fresh = false;
        self.put = Some(object.facts.clone());
    }

    /// True if the store says what the node says in `set`.
    #[must_use]
    pub fn says(&self, set: &FactSet) -> bool {
        self.is_stored(&self.whole_saying().of(set).facts)
    }

    /// Whether the store says that, by the newest key. Where there is nothing to say, nothing has to be there.
    pub(super) fn is_stored(&self, said: &FactSet) -> bool {
        let is_it = |stored: &FactSet| stored == said && self.relays.is_own_current();
        self.stored.as_ref().map_or(said.is_empty(), is_it)
    }
}

/// The key of what a node says.
pub(super) fn object_key(node: &NodeName) -> String {
    format!("{SAID}/{}", node.as_str())
}

#[cfg(test)]
mod tests;
