//! Decides which fact objects in the store to read and accept, and when to upload this node's own. Pure.
//!
//! A node remembers the highest object number read from each other node: a lower one is a rollback, which is reported
//! and skipped. An unreadable or missing object changes nothing, and known facts stay known, because a merge never
//! lowers a fact's weight. An object is read once more some rounds later, because the read may have been older than the
//! listing.
//!
//! The upload depends on the node's own object only; others are read in turn (`selection`), up to a limit per round.
//! Reading is complete once every listed object was read. If there are more objects than can be listed, it is never
//! complete.
//!
//! [`ObjectAuthors`] composes this node's object: its own facts, then facts relayed for other nodes within the size
//! limit, measured in serialized form, because escaping can double the size. Beyond the limit, relayed facts are left
//! out author by author. The node's own facts are never left out, so a revocation is always uploaded. Composing the
//! object iterates over all facts of a snapshot.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use crate::config::{NodeName, StrayObjects};
use crate::facts::object::{
    BYTES_BESIDE_FACTS, FactObject, MAX_FACT_OBJECT_BYTES, MAX_FACT_TEXT_BYTES, NotFacts,
    NotOpened, written_bytes,
};
use crate::facts::selection::{FactRank, FactRelays, FactTurns, ListedFacts};
use crate::facts::set::FactSet;

/// Folder with one object per node, named after the node. It is outside the nodes' folders, so that an expiration
/// rule for old segments does not apply.
pub(crate) const SAID: &str = "facts/said";
/// Maximum number of nodes whose objects are read.
const MAX_NODES: usize = 4096;
/// Maximum number of listed objects: one per node, and some strays.
pub(crate) const MAX_LISTED_FACTS: usize = MAX_NODES + 1024;
/// Maximum number of rounds for which an unreadable object is skipped.
const MAX_RESTS: u32 = 15;
/// Number of rounds after which an object is read once more: the read may have been older than the listing.
const LOOK_AGAIN: u32 = 8;
/// Number of lost uploads after which a fault is reported.
const MAY_LOSE: u32 = 2;
/// Number of rounds after which a node relays facts although some other objects are unreadable.
const SETTLED_AFTER: u64 = 8;
/// Number of rounds after which a node relays facts even if some objects were not requested in time; by then, each
/// object was requested once.
const SETTLED_ANYWAY: u64 = 128;

/// Fault of a fact object or of the folder.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FactFault {
    #[error("not read: {0} bytes exceed the maximum of {MAX_FACT_OBJECT_BYTES}")]
    TooLong(u64),
    /// Objects that are not named after a node, or exceed [`MAX_NODES`].
    #[error("{0}")]
    StrayObjects(StrayObjects),
    #[error(
        "more than {MAX_LISTED_FACTS} objects exist, and the others are not listed ({0}): remove those that belong to no node; until then no new node starts"
    )]
    TooMany(StrayObjects),
    #[error(
        "more than {MAX_NODES} node names exist, and the objects of the others are not read ({0}): remove those that belong to no node; until then no new node starts"
    )]
    TooManyNodes(StrayObjects),
    #[error(transparent)]
    Sealed(#[from] NotOpened),
    #[error("cannot be read: {0}")]
    Unread(String),
    #[error(transparent)]
    Contents(#[from] NotFacts),
    /// Rollback: the store returned an object older than one read before.
    #[error("rolled back: object {read} is older than {known}, which was read before")]
    Older {
        read: u64,
        /// Highest number read.
        known: u64,
    },
    #[error("the object was removed")]
    Removed,
    /// Another process writes this node's object.
    #[error(
        "another node writes under this node's name, or data_dir/fleet/facts.json was restored from a backup; see `mcpproxy fleet status`"
    )]
    Twin,
    /// The store loses uploads.
    #[error("the store confirms uploads but loses them")]
    Unkept,
    /// Facts to be relayed do not fit.
    #[error(
        "this node has no room to relay that node's facts, and new nodes do not get them: keep the old cluster.key, and check which server keeps listing new tools"
    )]
    NoRoom,
}

/// Object that could not be read.
#[derive(Clone, Debug)]
struct UnreadObject {
    state: Box<str>,
    /// Number of attempts.
    times: u32,
    /// Number of rounds to skip it, because each attempt may take the full time limit.
    rests: u32,
}

/// Object state that was processed.
#[derive(Clone, Debug)]
struct LookedState {
    state: Box<str>,
    /// Number of rounds until the object is read once more: 1 if the read is due, 0 if it was done.
    again: u32,
}

/// Reader of the fact objects, with their numbers, states and faults.
#[derive(Clone, Debug)]
pub struct FactReader {
    own: NodeName,
    /// Highest numbers read per node; for this node, last number uploaded.
    numbers: BTreeMap<NodeName, u64>,
    /// Processed object states.
    looked: BTreeMap<NodeName, LookedState>,
    faults: BTreeMap<String, FactFault>,
    /// Unreadable objects.
    unread: BTreeMap<NodeName, UnreadObject>,
    turns: FactTurns,
    /// True if some objects exceed a limit and are not listed or read.
    is_incomplete: bool,
    /// True once the facts that other nodes relay are known, as far as possible.
    is_settled: bool,
    /// Facts in this node's stored object.
    stored: Option<FactSet>,
    relays: FactRelays,
    /// Nodes whose facts do not fit and are not relayed.
    left_out: BTreeSet<NodeName>,
    /// Last upload, and how often the store lost it.
    put: Option<FactSet>,
    unkept: u32,
    /// True if nothing was remembered. In that case, the stored object under this node's name is not attributed to
    /// another process with the same name.
    fresh: bool,
    /// Change counter of the remembered state.
    remembered: u64,
    /// Change counter of upload inputs other than the facts.
    publication_changes: u64,
}

impl FactReader {
    /// Creates a reader with remembered numbers and relayed nodes; `fresh` is true if nothing was remembered.
    pub fn new(
        own: NodeName,
        numbers: BTreeMap<NodeName, u64>,
        relayed: BTreeSet<NodeName>,
        fresh: bool,
    ) -> Self {
        Self {
            relays: FactRelays::new(own.clone(), relayed),
            own,
            numbers,
            looked: BTreeMap::new(),
            faults: BTreeMap::new(),
            unread: BTreeMap::new(),
            turns: FactTurns::default(),
            is_incomplete: false,
            is_settled: false,
            stored: None,
            left_out: BTreeSet::new(),
            put: None,
            unkept: 0,
            fresh,
            remembered: 0,
            publication_changes: 0,
        }
    }

    /// Highest numbers read, to be remembered.
    pub fn numbers(&self) -> &BTreeMap<NodeName, u64> {
        &self.numbers
    }

    /// Nodes whose facts this node has relayed, to be remembered.
    pub fn relayed_authors(&self) -> &BTreeSet<NodeName> {
        self.relays.remembered()
    }

    /// Change counter of the relayed nodes and the numbers.
    pub(crate) fn remembered(&self) -> u64 {
        self.remembered
    }

    /// Change counter of upload inputs other than the facts.
    pub(crate) fn publication_changes(&self) -> u64 {
        self.publication_changes
    }

    /// Faults by object key.
    pub fn faults(&self) -> &BTreeMap<String, FactFault> {
        &self.faults
    }

    /// Nodes whose facts do not fit and that no other node relays: [`FactFault::NoRoom`].
    pub(crate) fn left_out(&self) -> impl Iterator<Item = &NodeName> {
        self.left_out.iter().filter(|node| !self.relays.is_uploaded_elsewhere(node))
    }

    /// True if all listed objects were read, valid or not.
    pub(crate) fn has_read_all(&self) -> bool {
        !self.is_incomplete && self.unread.is_empty() && !self.is_behind()
    }

    /// True if some listed objects were not requested yet.
    pub(crate) fn is_behind(&self) -> bool {
        self.turns.left() > 0
    }

    /// Reason why some objects were not read; `None` if all were.
    pub(crate) fn unread_reason(&self) -> Option<String> {
        if self.has_read_all() {
            return None;
        }
        let key = match self.is_incomplete {
            true => Some(SAID.to_owned()),
            false => self.unread.keys().next().map(object_key),
        };
        let fault = key.and_then(|key| self.faults.get(&key).map(|why| format!("{key}: {why}")));
        Some(fault.unwrap_or_else(|| {
            format!("{} of the objects in {SAID} are still to be read", self.turns.left())
        }))
    }

    /// Objects to read in this round: this node's own first if due, then others up to the limit, alive and
    /// known nodes first. Unless `is_whole`, `listed` is truncated and unlisted objects may exist.
    pub fn wanted(
        &mut self,
        listed: &[ListedFacts],
        is_whole: bool,
        is_alive: impl Fn(&NodeName) -> bool,
    ) -> Vec<(NodeName, ListedFacts)> {
        let (mut named, mut strays) = (Vec::new(), StrayObjects::default());
        for listed in listed {
            let name = listed.key.strip_prefix(SAID).and_then(|name| name.strip_prefix('/'));
            match name.and_then(NodeName::parse) {
                Some(node) => named.push((node, listed)),
                None => strays.add(name.unwrap_or(&listed.key)),
            }
        }
        // Anyone with write access to the store can add any number of names, so the names of known nodes are always
        // considered.
        let numbers = &self.numbers;
        let rank = |node: &NodeName| match numbers.contains_key(node) {
            _ if is_alive(node) => FactRank::Alive,
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
                    self.publication_changes += u64::from(self.relays.lost(&node));
                }
            } else if self.is_due(&node, listed) && !self.rests(&node, listed) {
                let of = if is_own { &mut wanted } else { &mut due };
                of.push((node, listed.clone()));
            }
        }
        // This node's upload depends on its previous one, which it may not remember after a restart.
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

    /// Starts a round with objects of these nodes and with `strays`. If `is_whole`, there are no other objects.
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
        self.is_incomplete = !is_whole || are_cut;
        let keys: BTreeSet<_> = there.iter().map(object_key).collect();
        self.faults.retain(|key, _| keys.contains(key));
        let fault = match (is_whole, are_cut, strays.is_empty()) {
            (false, _, _) => Some(FactFault::TooMany(strays)),
            (true, true, _) => Some(FactFault::TooManyNodes(strays)),
            (true, false, false) => Some(FactFault::StrayObjects(strays)),
            (true, false, true) => None,
        };
        self.faults.extend(fault.map(|fault| (SAID.to_owned(), fault)));
        // An unlisted object may still exist. Names that never belonged to a node are dropped, because their number
        // is unlimited.
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
        self.publication_changes += u64::from(self.relays.retain(there));
    }

    /// Reports that this node's own object is missing or was not written by this node.
    pub(crate) fn own_is_missing(&mut self) {
        let was_there = self.stored.take().is_some() | self.relays.lost(&self.own);
        self.publication_changes += u64::from(was_there);
        self.turns.record_arrival(&self.own);
    }

    /// True if the object was processed in its current state.
    fn has_looked(&self, node: &NodeName, listed: &ListedFacts) -> bool {
        self.looked.get(node).is_some_and(|looked| looked.state == listed.state)
    }

    /// True if the object changed, or is due to be read once more.
    fn is_due(&mut self, node: &NodeName, listed: &ListedFacts) -> bool {
        match self.looked.get_mut(node).filter(|looked| looked.state == listed.state) {
            Some(looked) => {
                looked.again = if looked.again > 1 { looked.again - 1 } else { looked.again };
                looked.again == 1
            }
            None => true,
        }
    }

    /// True if an unreadable object is skipped in this round.
    fn rests(&mut self, node: &NodeName, listed: &ListedFacts) -> bool {
        let unread = self.unread.get_mut(node).filter(|unread| unread.state == listed.state);
        let Some(rests) = unread.map(|unread| &mut unread.rests).filter(|rests| **rests > 0) else {
            return false;
        };
        *rests -= 1;
        true
    }

    /// Reports that another node's object was not requested in time; it is read in a later round.
    pub(crate) fn record_not_requested(&mut self, node: &NodeName) {
        self.turns.record_not_requested(node);
    }

    /// Reports that another node's object could not be read; it is retried with backoff.
    pub fn not_read(
        &mut self,
        node: &NodeName,
        listed: &ListedFacts,
        why: &impl std::fmt::Display,
    ) {
        self.turns.record_arrival(node);
        let before = self.unread.get(node).filter(|unread| unread.state == listed.state);
        let times = before.map_or(0, |unread| unread.times) + 1;
        let rests = (1_u32 << (times - 1).min(8)).min(MAX_RESTS + 1) - 1;
        self.unread
            .insert(node.clone(), UnreadObject { state: listed.state.clone(), times, rests });
        self.faults.insert(listed.key.clone(), FactFault::Unread(why.to_string()));
    }

    /// Merges a node's object; returns true if `set` changed.
    pub fn take(
        &mut self,
        (node, state): (&NodeName, &str),
        read: Result<FactObject, FactFault>,
        set: &mut FactSet,
    ) -> bool {
        self.turns.record_arrival(node);
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
                    self.publication_changes += u64::from(self.relays.lost(node));
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
            self.publication_changes += 1;
        }
        is_other
    }

    /// Records an opened object of `node`, and whether the newest key opened it. This node's own object counts as
    /// uploaded only with the newest key. Facts of others under an old key are relayed unless their node uploads them
    /// again.
    pub(crate) fn opened(&mut self, node: &NodeName, by_first: bool, object: &FactObject) {
        let before = self.relays.remembered().len();
        let is_other = self.relays.read(node, by_first, object.facts.authors());
        self.publication_changes += u64::from(is_other);
        self.remembered += u64::from(self.relays.remembered().len() != before);
    }

    /// True if this object's facts are relayed, so that failing to open it is not a fault.
    pub(crate) fn is_relayed(&self, key: &str) -> bool {
        let name = key.strip_prefix(SAID).and_then(|name| name.strip_prefix('/'));
        name.and_then(NodeName::parse).is_some_and(|node| self.relays.is_relayed(&node))
    }

    /// Authors whose facts this node uploads. None are added until the relays of other nodes are known; otherwise each
    /// starting node would upload everything remembered and then remove it.
    pub(crate) fn object_authors(&self) -> ObjectAuthors {
        let again = self.relays.relayed(self.is_settled || self.has_read_all());
        ObjectAuthors { own: self.own.clone(), again }
    }

    /// Authors whose facts this node uploads once everything is known.
    pub(crate) fn all_object_authors(&self) -> ObjectAuthors {
        ObjectAuthors { own: self.own.clone(), again: self.relays.relayed(true) }
    }

    /// Object to upload now, unless the store has this node's facts of `set`. Call this after the node's own object
    /// was processed, if that object was wanted.
    pub fn to_put(&mut self, set: &FactSet) -> Option<FactObject> {
        let facts = self.object_authors().of(set);
        self.next_put(facts)
    }

    /// Object to upload now, for previously collected facts.
    pub(crate) fn next_put(&mut self, collected: ObjectFacts) -> Option<FactObject> {
        let ObjectFacts { facts, left_out } = collected;
        self.left_out = left_out;
        if self.is_stored(&facts) {
            (self.put, self.unkept) = (None, 0);
            return None;
        }
        self.unkept = if self.put.as_ref() == Some(&facts) { self.unkept + 1 } else { 0 };
        if self.unkept >= MAY_LOSE {
            self.faults.insert(object_key(&self.own), FactFault::Unkept);
        }
        let number = self.numbers.get(&self.own).copied().unwrap_or(0) + 1;
        self.numbers.insert(self.own.clone(), number);
        self.remembered += 1;
        Some(FactObject { number, facts })
    }

    /// Records a successful upload.
    pub fn record_upload(&mut self, object: &FactObject) {
        self.fresh = false;
        self.put = Some(object.facts.clone());
    }

    /// True if the store has this node's facts of `set`.
    pub fn is_uploaded(&self, set: &FactSet) -> bool {
        self.is_stored(&self.all_object_authors().of(set).facts)
    }

    /// True if the store has these facts, sealed with the newest key, or if there are none.
    pub(crate) fn is_stored(&self, facts: &FactSet) -> bool {
        let is_it = |stored: &FactSet| stored == facts && self.relays.is_own_current();
        self.stored.as_ref().map_or(facts.is_empty(), is_it)
    }
}

/// Key of a node's object.
pub(crate) fn object_key(node: &NodeName) -> String {
    format!("{SAID}/{}", node.as_str())
}

/// Authors of the facts that an object contains.
#[derive(Clone, Debug)]
pub(crate) struct ObjectAuthors {
    pub(crate) own: NodeName,
    /// Authors whose facts are relayed.
    pub(crate) again: BTreeSet<NodeName>,
}

#[derive(Clone, Debug)]
pub(crate) struct ObjectFacts {
    pub(crate) facts: FactSet,
    /// Authors whose facts do not fit.
    pub(crate) left_out: BTreeSet<NodeName>,
}

impl ObjectAuthors {
    /// Selects the facts of `set` to upload.
    pub(crate) fn of(&self, set: &FactSet) -> ObjectFacts {
        if self.again.is_empty() {
            return ObjectFacts { facts: set.authored_by(&self.own), left_out: BTreeSet::new() };
        }
        let mut bytes: BTreeMap<&NodeName, usize> = BTreeMap::new();
        for (kind, name, fact) in set.iter() {
            let author = &fact.stamp.node;
            if *author == self.own || self.again.contains(author) {
                *bytes.entry(author).or_default() += written_bytes(kind, name, fact, &self.own);
            }
        }
        let bytes_of = |author: &NodeName| bytes.get(author).copied().unwrap_or_default();
        let mut remaining =
            MAX_FACT_TEXT_BYTES.saturating_sub(BYTES_BESIDE_FACTS + bytes_of(&self.own));
        let (mut authors, mut left_out) = (BTreeSet::from([&self.own]), BTreeSet::new());
        for author in &self.again {
            match remaining.checked_sub(bytes_of(author)) {
                Some(rest) => {
                    remaining = rest;
                    authors.insert(author);
                }
                None => {
                    left_out.insert(author.clone());
                }
            }
        }
        let mut facts = FactSet::default();
        for (kind, name, fact) in set.iter() {
            if authors.contains(&fact.stamp.node) {
                facts.merge_one(kind, name, fact.clone());
            }
        }
        ObjectFacts { facts, left_out }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::selection::MAX_ROUND_READS;
    use crate::facts::set::tests::node;
    use crate::facts::set::{Fact, FactKind, MAX_FACT_VALUE_BYTES, MAX_OWN_BYTES, scan_counter};

    /// Sets as many values of maximum length as the node's limit allows.
    fn set_value(set: &mut FactSet, by: &NodeName, what: &str) {
        let value = what.repeat(MAX_FACT_VALUE_BYTES / what.len());
        for at in 0..MAX_OWN_BYTES / MAX_FACT_VALUE_BYTES - 1 {
            let name = format!("{}/{at}", by.as_str());
            assert_eq!(set.set_value(by, FactKind::Token, &name, &value), Ok(true));
        }
    }

    #[test]
    fn relayed_facts_leave_space_for_own_facts() {
        let [own, quoted, plain] = ["own", "gone-1", "gone-2"].map(node);
        let mut set = FactSet::default();
        set_value(&mut set, &own, "x");
        // In serialized form, these values take nearly twice the limit for one node.
        set_value(&mut set, &quoted, "\"");
        for at in 0..1000 {
            set.set_value(&plain, FactKind::StandingApproval, &at.to_string(), "{}").unwrap();
        }
        set.end(&own, FactKind::Token, "own/0");
        let again = BTreeSet::from([quoted.clone(), plain.clone()]);
        let before = scan_counter::count();
        let composed = ObjectAuthors { own: own.clone(), again }.of(&set);
        assert!(
            scan_counter::count() - before <= 2 * set.len() as u64,
            "however many authors are relayed"
        );
        assert_eq!(composed.facts.authored_by(&own), set.authored_by(&own));
        assert_eq!(composed.facts.authored_by(&plain), set.authored_by(&plain));
        assert_eq!(composed.facts.authored_by(&quoted).len(), 0);
        assert_eq!(composed.left_out, BTreeSet::from([quoted.clone()]));
        let written = FactObject { number: u64::MAX, facts: composed.facts }.write(&own);
        assert!(written.len() <= MAX_FACT_TEXT_BYTES, "{}", written.len());
        // If the size limit permits, the facts of all authors are included.
        let object_authors =
            ObjectAuthors { own: plain.clone(), again: BTreeSet::from([quoted.clone()]) };
        let composed = object_authors.of(&set);
        assert_eq!(composed.left_out.len(), 0);
        assert_eq!(composed.facts.authored_by(&quoted).len(), set.authored_by(&quoted).len());
        let written = FactObject { number: u64::MAX, facts: composed.facts }.write(&plain);
        assert!(written.len() <= MAX_FACT_TEXT_BYTES, "{}", written.len());
    }

    fn listed(name: &str, state: u64) -> ListedFacts {
        ListedFacts { key: format!("{SAID}/{name}"), size: 10, state: state.to_string().into() }
    }

    /// Liveness is unknown: no node counts as alive.
    fn none_alive(_: &NodeName) -> bool {
        false
    }

    fn token(set: &FactSet) -> Option<&str> {
        set.get(FactKind::Token, "t").and_then(Fact::value)
    }

    /// Two states of node `b`: a token exists, then it is revoked.
    fn two_of_b() -> [FactObject; 2] {
        let b = node("b");
        let mut facts = FactSet::default();
        facts.set_value(&b, FactKind::Token, "t", "1").unwrap();
        let first = FactObject { number: 1, facts: facts.clone() };
        facts.end(&b, FactKind::Token, "t");
        [first, FactObject { number: 2, facts }]
    }

    fn reader() -> FactReader {
        FactReader::new(node("a"), BTreeMap::new(), BTreeSet::new(), true)
    }

    #[test]
    fn rolled_back_revocation_is_reported_and_survives_restart() {
        let ([first, second], b) = (two_of_b(), node("b"));
        let (mut reader, mut set) = (reader(), FactSet::default());
        assert!(reader.take((&b, "1"), Ok(first.clone()), &mut set));
        assert_eq!(token(&set), Some("1"));
        assert!(reader.take((&b, "2"), Ok(second), &mut set));
        assert_eq!(token(&set), None);
        let mut again =
            FactReader::new(node("a"), reader.numbers().clone(), BTreeSet::new(), false);
        for reader in [&mut reader, &mut again] {
            assert!(!reader.take((&b, "3"), Ok(first.clone()), &mut set));
            let older = FactFault::Older { read: 1, known: 2 };
            assert_eq!(reader.faults().values().collect::<Vec<_>>(), [&older]);
            assert_eq!(token(&set), None);
        }
        // The same holds if only the facts are remembered, not the numbers.
        let mut without = FactReader::new(node("a"), BTreeMap::new(), BTreeSet::new(), false);
        assert!(!without.take((&b, "3"), Ok(first), &mut set));
        assert_eq!(token(&set), None);
    }

    #[test]
    fn unchanged_object_is_not_reread_and_an_unreadable_object_has_no_effect() {
        let ([first, _], b) = (two_of_b(), node("b"));
        let (mut reader, mut set) = (reader(), FactSet::default());
        let wanted = reader.wanted(&[listed("b", 1)], true, none_alive);
        assert_eq!(wanted, [(b.clone(), listed("b", 1))]);
        reader.take((&b, "1"), Ok(first), &mut set);
        assert_eq!(reader.wanted(&[listed("b", 1)], true, none_alive), []);
        assert_eq!(reader.wanted(&[listed("b", 2)], true, none_alive).len(), 1);
        for fault in [NotOpened::NotAuthentic, NotOpened::OtherFleet, NotOpened::Foreign] {
            assert!(!reader.take((&b, "2"), Err(fault.into()), &mut set));
            assert_eq!(reader.faults()["facts/said/b"], FactFault::Sealed(fault));
        }
        let huge = ListedFacts { size: 100 << 20, ..listed("b", 3) };
        let foreign = listed("b/c", 1);
        assert_eq!(reader.wanted(&[huge, foreign], true, none_alive), []);
        assert_eq!(reader.faults()["facts/said/b"], FactFault::TooLong(100 << 20));
        assert_eq!(reader.faults()[SAID].to_string(), "one stray object: b/c");
        assert_eq!(reader.wanted(&[], true, none_alive), []);
        assert_eq!(reader.faults()["facts/said/b"], FactFault::Removed);
        assert_eq!(token(&set), Some("1"));
    }

    #[test]
    fn stray_objects_are_one_fault_and_do_not_hide_known_nodes() {
        let ([first, _], b) = (two_of_b(), node("b"));
        let (mut reader, mut set) = (reader(), FactSet::default());
        reader.wanted(&[listed("b", 1)], true, none_alive);
        reader.take((&b, "1"), Ok(first), &mut set);
        let mut foreign: Vec<_> = (0..300).map(|at| listed(&format!("X{at:03}"), 1)).collect();
        assert_eq!(reader.wanted(&foreign, true, none_alive), []);
        assert_eq!(reader.faults().len(), 2, "the strays, and the removed object");
        let reported = reader.faults()[SAID].to_string();
        assert!(reported.starts_with("300 stray objects: X000, X001"), "{reported}");
        assert_eq!(reader.faults()["facts/said/b"], FactFault::Removed);
        // The listing also has the maximum number of names, all of which sort before the known nodes.
        foreign.extend((0..MAX_NODES).map(|at| listed(&format!("0{at}"), 1)));
        foreign.push(listed("a", 1));
        foreign.push(listed("b", 2));
        let wanted = reader.wanted(&foreign, true, none_alive);
        let names: Vec<_> = wanted.iter().map(|(node, _)| node.as_str()).take(3).collect();
        assert_eq!((names, wanted.len()), (vec!["a", "b", "00"], MAX_ROUND_READS + 1));
        let reported = reader.faults()[SAID].to_string();
        assert!(reported.starts_with("more than 4096 node names exist"), "{reported}");
        assert!(reported.contains("(302 stray objects: X000, "), "{reported}");
        // An alive node is known even if its object was not read yet.
        let is_alive = |node: &NodeName| node.as_str() == "z";
        foreign.push(listed("z", 1));
        let wanted = reader.wanted(&foreign, true, is_alive);
        let names: Vec<_> = wanted.iter().map(|(node, _)| node.as_str()).take(3).collect();
        assert_eq!(names, ["a", "z", "b"]);
        // In a truncated listing nothing counts as removed, and this node's own object is still requested.
        foreign.truncate(300);
        let wanted = reader.wanted(&foreign, false, none_alive);
        assert_eq!(wanted.iter().map(|(node, _)| node.as_str()).collect::<Vec<_>>(), ["a"]);
        let reported: Vec<_> = reader.faults().values().map(ToString::to_string).collect();
        assert!(
            reported.len() == 1 && reported[0].starts_with("more than 5120 objects"),
            "{reported:?}"
        );
        assert_eq!(reader.wanted(&foreign, false, none_alive).len(), 1, "each time");
    }

    #[test]
    fn read_is_complete_unless_limits_omitted_an_object() {
        let (mut reader, mut set) = (reader(), FactSet::default());
        let empty = FactObject { number: 1, facts: FactSet::default() };
        let many = (0..MAX_ROUND_READS + 2).map(|at| listed(&format!("n{at:02}"), 1));
        let many: Vec<_> = many.collect();
        let first = reader.wanted(&many, true, none_alive);
        assert_eq!(first.len(), MAX_ROUND_READS);
        for (node, listed) in &first[1..] {
            reader.take((node, &listed.state), Ok(empty.clone()), &mut set);
        }
        // One of the selected objects could not be requested in time.
        reader.record_not_requested(&first[0].0);
        assert!(!reader.has_read_all() && reader.is_behind());
        let why = reader.unread_reason();
        assert_eq!(why.as_deref(), Some("3 of the objects in facts/said are still to be read"));
        let rest = reader.wanted(&many, true, none_alive);
        assert_eq!(rest.len(), 3);
        for (node, listed) in &rest[1..] {
            reader.take((node, &listed.state), Ok(empty.clone()), &mut set);
        }
        // One of the remaining objects is unreadable.
        reader.not_read(&rest[0].0, &rest[0].1, &"it hangs");
        assert!(!reader.has_read_all() && !reader.is_behind());
        assert!(reader.unread_reason().unwrap().ends_with(": cannot be read: it hangs"));
        for (node, listed) in reader.wanted(&many, true, none_alive) {
            reader.take((&node, &listed.state), Ok(empty.clone()), &mut set);
        }
        assert!(reader.has_read_all() && reader.unread_reason().is_none());
        // There are more objects than can be listed, or than there can be nodes.
        assert_eq!(reader.wanted(&many, false, none_alive).len(), 1);
        reader.own_is_missing();
        let why = reader.unread_reason().unwrap();
        assert!(!reader.has_read_all() && why.contains("more than 5120 objects exist"), "{why}");
        let names: Vec<_> = (0..=MAX_NODES).map(|at| listed(&at.to_string(), 1)).collect();
        reader.wanted(&names, true, none_alive);
        let why = reader.unread_reason().unwrap();
        assert!(why.contains("more than 4096 node names") && why.contains("remove those"), "{why}");
        // The surplus objects are removed.
        for _ in 0..2 {
            for (node, listed) in reader.wanted(&many, true, none_alive) {
                reader.take((&node, &listed.state), Ok(empty.clone()), &mut set);
            }
        }
        assert!(reader.has_read_all());
    }

    #[test]
    fn read_older_than_its_listing_is_repeated() {
        let ([first, second], b) = (two_of_b(), node("b"));
        let (mut reader, mut set) = (reader(), FactSet::default());
        // The listing shows the second object, the read still returns the first.
        assert_eq!(reader.wanted(&[listed("b", 2)], true, none_alive).len(), 1);
        reader.take((&b, "2"), Ok(first), &mut set);
        assert_eq!(token(&set), Some("1"));
        let mut asked = Vec::new();
        for round in 1..40 {
            if !reader.wanted(&[listed("b", 2)], true, none_alive).is_empty() {
                reader.take((&b, "2"), Ok(second.clone()), &mut set);
                asked.push(round);
            }
        }
        assert_eq!((asked, token(&set)), (vec![LOOK_AGAIN - 1], None));
    }

    #[test]
    fn unreadable_object_is_retried_with_backoff_until_it_changes() {
        let ([first, _], b) = (two_of_b(), node("b"));
        let (mut reader, mut set) = (reader(), FactSet::default());
        let mut asked = Vec::new();
        for round in 0..80 {
            for (node, listed) in reader.wanted(&[listed("b", 1)], true, none_alive) {
                reader.not_read(&node, &listed, &"it hangs");
                asked.push(round);
            }
            assert_eq!(reader.faults()["facts/said/b"].to_string(), "cannot be read: it hangs");
        }
        assert_eq!(asked, [0, 1, 3, 7, 15, 31, 47, 63, 79]);
        assert_eq!(reader.wanted(&[listed("b", 2)], true, none_alive).len(), 1, "it changed");
        assert!(reader.take((&b, "2"), Ok(first), &mut set));
        assert!(reader.faults().is_empty());
        assert_eq!(reader.wanted(&[listed("b", 3)], true, none_alive).len(), 1);
    }

    #[test]
    fn facts_are_uploaded_until_the_store_has_them() {
        let a = node("a");
        let (mut reader, mut set) = (reader(), FactSet::default());
        reader.wanted(&[], true, none_alive);
        assert_eq!(reader.to_put(&set), None, "nothing to upload");
        set.set_value(&a, FactKind::Token, "t", "1").unwrap();
        assert!(!reader.is_uploaded(&set));
        let object = reader.to_put(&set).unwrap();
        assert_eq!(object.number, 1);
        reader.record_upload(&object);
        reader.wanted(&[listed("a", 1)], true, none_alive);
        reader.take((&a, "1"), Ok(object.clone()), &mut set);
        assert!(
            reader.is_uploaded(&set) && reader.to_put(&set).is_none() && reader.faults().is_empty()
        );
        // Another object is stored under this node's name, and it is too large to read.
        let huge = ListedFacts { size: 100 << 20, ..listed("a", 2) };
        reader.wanted(&[huge], true, none_alive);
        assert!(!reader.is_uploaded(&set));
        reader.take((&a, "1"), Ok(object.clone()), &mut set);
        assert!(reader.is_uploaded(&set) && reader.to_put(&set).is_none());
        // The object was removed, and the store loses uploads.
        for number in 2..=4 {
            reader.wanted(&[], true, none_alive);
            let again = reader.to_put(&set).unwrap();
            assert_eq!((again.number, &again.facts), (number, &object.facts));
            reader.record_upload(&again);
        }
        assert_eq!(reader.faults()["facts/said/a"], FactFault::Unkept);
        // The object was rolled back to an older one with different facts.
        reader.wanted(&[listed("a", 5)], true, none_alive);
        let older = FactObject { number: 1, facts: FactSet::default() };
        reader.take((&a, "5"), Ok(older), &mut set);
        assert_eq!(reader.to_put(&set).unwrap().number, 5);
    }

    #[test]
    fn duplicate_node_is_reported_but_lost_memory_is_not() {
        let a = node("a");
        let mut facts = FactSet::default();
        facts.set_value(&a, FactKind::Token, "t", "1").unwrap();
        let theirs = FactObject { number: 9, facts };
        let (mut forgot, mut set) = (reader(), FactSet::default());
        assert!(forgot.take((&a, "1"), Ok(theirs.clone()), &mut set));
        assert!(forgot.faults().is_empty() && forgot.to_put(&set).is_none());
        set.set_value(&a, FactKind::Token, "u", "1").unwrap();
        assert_eq!(forgot.to_put(&set).unwrap().number, 10);
        let mut knows = FactReader::new(a.clone(), [(a.clone(), 3)].into(), BTreeSet::new(), false);
        knows.take((&a, "1"), Ok(theirs), &mut FactSet::default());
        assert_eq!(knows.faults()["facts/said/a"], FactFault::Twin);
    }

    #[test]
    fn facts_sealed_with_an_old_key_are_uploaded_again_and_relayed_for_absent_nodes() {
        let ([_, gone], [a, b]) = (two_of_b(), ["a", "b"].map(node));
        let (mut reader, mut set) = (reader(), FactSet::default());
        set.set_value(&a, FactKind::Token, "u", "1").unwrap();
        let own = FactObject { number: 1, facts: set.clone() };
        reader.opened(&a, false, &own);
        reader.take((&a, "1"), Ok(own), &mut set);
        reader.opened(&b, false, &gone);
        reader.take((&b, "1"), Ok(gone.clone()), &mut set);
        assert!(!reader.is_uploaded(&set) && !reader.is_relayed("facts/said/b"));
        let put = reader.to_put(&set).unwrap();
        assert_eq!(put.facts.authored_by(&b), gone.facts);
        // A new node that has only the new key reads the object.
        let read = FactObject::read(&put.write(&a), &a).unwrap();
        assert_eq!(read, put);
        let mut new = FactReader::new(node("c"), BTreeMap::new(), BTreeSet::new(), true);
        let mut known = FactSet::default();
        new.opened(&a, true, &read);
        new.take((&a, "2"), Ok(read), &mut known);
        assert_eq!((token(&known), known.authored_by(&b)), (None, gone.facts.clone()));
        assert!(new.is_relayed("facts/said/b") && !new.is_relayed("facts/said/a"));
        assert_eq!(new.to_put(&known), None);
        // The object is uploaded; then the absent node itself returns.
        reader.record_upload(&put);
        reader.opened(&a, true, &put);
        reader.take((&a, "2"), Ok(put), &mut set);
        assert!(reader.is_uploaded(&set) && reader.to_put(&set).is_none());
        reader.opened(&b, true, &gone);
        assert_eq!(reader.to_put(&set).unwrap().facts.authored_by(&b).len(), 0);
    }

    #[test]
    fn relayed_facts_survive_loss_of_own_object_and_restart() {
        let ([_, gone], [a, b, c]) = (two_of_b(), ["a", "b", "c"].map(node));
        let (mut reader, mut set) = (reader(), FactSet::default());
        set.set_value(&a, FactKind::Token, "u", "1").unwrap();
        let own = FactObject { number: 1, facts: set.clone() };
        reader.opened(&b, false, &gone);
        reader.take((&b, "1"), Ok(gone.clone()), &mut set);
        assert_eq!(reader.to_put(&set).unwrap().facts.authored_by(&b), gone.facts);
        let (numbers, relayed) = (reader.numbers().clone(), reader.relayed_authors().clone());
        let start = || FactReader::new(a.clone(), numbers.clone(), relayed.clone(), false);
        let says = |put: Option<FactObject>| put.map(|put| put.facts.authored_by(&b) == gone.facts);
        // The restarted node has only the new key, and its stored object uses the old one.
        let mut again = start();
        assert_eq!(again.wanted(&[listed("a", 1), listed("c", 1)], true, none_alive).len(), 2);
        again.take((&a, "1"), Err(NotOpened::NotAuthentic.into()), &mut set);
        // Its own facts are uploaded before the relays of other nodes are known.
        assert_eq!(says(again.to_put(&set)), Some(false));
        let nothing = FactObject { number: 1, facts: FactSet::default() };
        again.opened(&c, true, &nothing);
        again.take((&c, "1"), Ok(nothing), &mut set);
        assert_eq!(says(again.to_put(&set)), Some(true));
        // An older object with the new key is restored.
        again.opened(&a, true, &own);
        again.take((&a, "2"), Ok(own), &mut set);
        assert_eq!(says(again.to_put(&set)), Some(true));
        assert!(!again.is_relayed("facts/said/b"), "not in the store yet");
        // If not everything is readable, facts are relayed after some rounds.
        let mut again = start();
        for round in 0..=SETTLED_AFTER {
            for (node, listed) in again.wanted(&[listed("c", 1)], true, none_alive) {
                again.not_read(&node, &listed, &"it hangs");
            }
            assert_eq!(says(again.to_put(&set)), Some(round == SETTLED_AFTER), "{round}");
        }
    }

    #[test]
    fn authors_without_space_are_reported_unless_relayed_elsewhere() {
        let [b, gone] = ["b", "gone"].map(node);
        let mut reader = reader();
        let (facts, left_out) = (FactSet::default(), BTreeSet::from([gone.clone()]));
        assert_eq!(reader.next_put(ObjectFacts { facts, left_out }), None);
        assert_eq!(reader.left_out().collect::<Vec<_>>(), [&gone]);
        let mut facts = FactSet::default();
        facts.set_value(&gone, FactKind::Token, "t", "1").unwrap();
        reader.opened(&b, true, &FactObject { number: 1, facts });
        assert_eq!(reader.left_out().count(), 0);
    }
}
