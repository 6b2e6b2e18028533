//! What a node believes of the objects that lie in the store, and what of its own it has to put there. Pure.
//!
//! A node remembers the highest number that it has read of each other: an object with a lower one was put back, and is told
//! and passed over. What it once said stays known in any case, since sets only grow heavier. One that cannot be read, or is
//! not there any more, changes nothing either. What was read is read once more, as the read may have been older than the listing.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use super::fact_object::{FactObject, MAX_FACT_OBJECT_BYTES, NotFacts};
use super::fact_relay::FactRelays;
use super::fact_set::{FactSet, MAX_OWN_BYTES};
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
        "more than {MAX_LISTED_FACTS} objects lie there, and the others are not seen ({0}): remove what is no node's"
    )]
    TooMany(StrayObjects),
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
    /// What its own object in the store says.
    stored: Option<FactSet>,
    relays: FactRelays,
    /// What it has put last, and how often the store did not have it then.
    put: Option<FactSet>,
    unkept: u32,
    /// Whether it remembers nothing: then its own object is not somebody else's.
    fresh: bool,
}

impl FactReader {
    /// One that remembers these numbers; `fresh` if it remembers nothing at all.
    #[must_use]
    pub fn new(own: NodeName, numbers: BTreeMap<NodeName, u64>, fresh: bool) -> Self {
        let (looked, faults, unread) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let relays = FactRelays::new(own.clone());
        let (stored, put, unkept) = (None, None, 0);
        Self { own, numbers, looked, faults, unread, stored, relays, put, unkept, fresh }
    }

    /// The highest numbers that were read, to be remembered.
    #[must_use]
    pub fn numbers(&self) -> &BTreeMap<NodeName, u64> {
        &self.numbers
    }

    /// What is wrong, by the keys of the objects.
    #[must_use]
    pub fn faults(&self) -> &BTreeMap<String, FactFault> {
        &self.faults
    }

    /// Whether the store gave all that it listed, be it what a fleet writes or not.
    #[must_use]
    pub fn has_read_all(&self) -> bool {
        self.unread.is_empty()
    }

    /// The objects that are to be read, those of nodes that are known first. `listed` are all there are, unless `is_whole` is
    /// false: then it is not known of the others whether they are there.
    pub fn wanted(
        &mut self,
        listed: &[ListedFacts],
        is_whole: bool,
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
        named.sort_by_cached_key(|(node, _)| {
            (*node != self.own && !self.numbers.contains_key(node), node.clone())
        });
        for (node, _) in named.drain(named.len().min(MAX_NODES)..) {
            strays.add(node.as_str());
        }
        let there: BTreeSet<_> = named.iter().map(|(node, _)| node.clone()).collect();
        let keys: BTreeSet<_> = there.iter().map(object_key).collect();
        self.faults.retain(|key, _| keys.contains(key));
        match (is_whole, strays.is_empty()) {
            (false, _) => self.faults.insert(SAID.to_owned(), FactFault::TooMany(strays)),
            (true, false) => self.faults.insert(SAID.to_owned(), FactFault::StrayObjects(strays)),
            (true, true) => None,
        };
        let mut wanted = Vec::new();
        for (node, listed) in named {
            if listed.size > MAX_FACT_OBJECT_BYTES {
                self.faults.insert(listed.key.clone(), FactFault::TooLong(listed.size));
            } else if self.is_due(&node, listed) && !self.rests(&node, listed) {
                wanted.push((node, listed.clone()));
            }
        }
        if !is_whole {
            // What it puts depends on what it has put before a restart that it may not remember.
            if !there.contains(&self.own) {
                let (key, state) = (object_key(&self.own), "not listed".into());
                wanted.push((self.own.clone(), ListedFacts { key, size: 0, state }));
            }
            return wanted;
        }
        for node in self.numbers.keys().filter(|node| !there.contains(node)) {
            if *node == self.own {
                self.stored = None;
            } else {
                self.faults.insert(object_key(node), FactFault::Removed);
            }
        }
        self.looked.retain(|node, _| there.contains(node));
        self.unread.retain(|node, _| there.contains(node));
        wanted
    }

    /// The object of the node itself was asked for, and is not there.
    pub fn own_is_missing(&mut self) {
        self.stored = None;
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

    /// The object of another node in that state could not be read: that is asked for again, after ever more rounds.
    pub fn not_read(
        &mut self,
        node: &NodeName,
        listed: &ListedFacts,
        why: &impl std::fmt::Display,
    ) {
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
                    self.stored = None;
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
            self.stored = Some(object.facts.clone());
        } else if object.number < known {
            self.faults.insert(key, FactFault::Older { read: object.number, known });
            return false;
        }
        self.numbers.insert(node.clone(), object.number.max(known));
        set.merge(&object.facts)
    }

    /// The object of `node` that is taken next was opened by the key that is written by now, or by an older one; and says this.
    /// Its own by an older key does not count as put; what others have said by one is said again, if they do not do it.
    pub fn opened(&mut self, node: &NodeName, by_first: bool, object: &FactObject) {
        let authors: BTreeSet<_> =
            object.facts.iter().map(|(_, _, fact)| fact.stamp.node.clone()).collect();
        self.relays.read(node, by_first, authors.into_iter());
    }

    /// Whether it is no fault that the object of that key cannot be opened: what it says is said again.
    #[must_use]
    pub fn is_said_again(&self, key: &str) -> bool {
        let name = key.strip_prefix(SAID).and_then(|name| name.strip_prefix('/'));
        name.and_then(NodeName::parse).is_some_and(|node| self.relays.is_said_again(&node))
    }

    /// What the node says in `set`, and what it says again, as far as there is room.
    fn to_say(&self, set: &FactSet) -> FactSet {
        let mut said = set.said_by(&self.own);
        let mut room = MAX_OWN_BYTES;
        for node in self.relays.relayed() {
            let bytes = set.bytes_of(&node);
            if bytes <= room {
                room -= bytes;
                said.merge(&set.said_by(&node));
            }
        }
        said
    }

    /// What is to be put now, if the store does not say what the node says in `set`. To be asked when everything that was
    /// wanted is taken.
    pub fn to_put(&mut self, set: &FactSet) -> Option<FactObject> {
        let said = self.to_say(set);
        if self.stored.as_ref() == Some(&said) && self.relays.is_own_current() {
            (self.put, self.unkept) = (None, 0);
            return None;
        }
        if self.stored.is_none() && said.is_empty() {
            return None;
        }
        self.unkept = if self.put.as_ref() == Some(&said) { self.unkept + 1 } else { 0 };
        if self.unkept >= MAY_LOSE {
            self.faults.insert(object_key(&self.own), FactFault::Unkept);
        }
        let number = self.numbers.get(&self.own).copied().unwrap_or(0) + 1;
        self.numbers.insert(self.own.clone(), number);
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
        let said = self.to_say(set);
        let is_current = self.relays.is_own_current();
        self.stored.as_ref().map_or(said.is_empty(), |stored| *stored == said && is_current)
    }
}

/// The key of what a node says.
pub(super) fn object_key(node: &NodeName) -> String {
    format!("{SAID}/{}", node.as_str())
}

#[cfg(test)]
mod tests {
    use super::super::fact_set::tests::node;
    use super::super::fact_set::{Fact, FactKind};
    use super::*;

    fn listed(name: &str, state: u64) -> ListedFacts {
        ListedFacts { key: format!("{SAID}/{name}"), size: 10, state: state.to_string().into() }
    }

    fn token(set: &FactSet) -> Option<&str> {
        set.get(FactKind::Token, "t").and_then(Fact::value)
    }

    /// What a node says at two times: that there is a token, and that it is revoked.
    fn two_of_b() -> [FactObject; 2] {
        let b = node("b");
        let mut facts = FactSet::default();
        facts.say(&b, FactKind::Token, "t", "1").unwrap();
        let first = FactObject { number: 1, facts: facts.clone() };
        facts.end(&b, FactKind::Token, "t");
        [first, FactObject { number: 2, facts }]
    }

    fn reader() -> FactReader {
        FactReader::new(node("a"), BTreeMap::new(), true)
    }

    #[test]
    fn a_revocation_that_is_put_back_is_told_and_stays_after_a_restart() {
        let ([first, second], b) = (two_of_b(), node("b"));
        let (mut reader, mut set) = (reader(), FactSet::default());
        assert!(reader.take((&b, "1"), Ok(first.clone()), &mut set));
        assert_eq!(token(&set), Some("1"));
        assert!(reader.take((&b, "2"), Ok(second), &mut set));
        assert_eq!(token(&set), None);
        let mut again = FactReader::new(node("a"), reader.numbers().clone(), false);
        for reader in [&mut reader, &mut again] {
            assert!(!reader.take((&b, "3"), Ok(first.clone()), &mut set));
            let older = FactFault::Older { read: 1, known: 2 };
            assert_eq!(reader.faults().values().collect::<Vec<_>>(), [&older]);
            assert_eq!(token(&set), None);
        }
        // Even for who remembers the facts and not the numbers.
        let mut without = FactReader::new(node("a"), BTreeMap::new(), false);
        assert!(!without.take((&b, "3"), Ok(first), &mut set));
        assert_eq!(token(&set), None);
    }

    #[test]
    fn what_is_as_it_was_is_not_read_again_and_what_cannot_be_read_changes_nothing() {
        let ([first, _], b) = (two_of_b(), node("b"));
        let (mut reader, mut set) = (reader(), FactSet::default());
        let wanted = reader.wanted(&[listed("b", 1)], true);
        assert_eq!(wanted, [(b.clone(), listed("b", 1))]);
        reader.take((&b, "1"), Ok(first), &mut set);
        assert_eq!(reader.wanted(&[listed("b", 1)], true), []);
        assert_eq!(reader.wanted(&[listed("b", 2)], true).len(), 1);
        for fault in [NotOpened::NotAuthentic, NotOpened::OtherFleet, NotOpened::Foreign] {
            assert!(!reader.take((&b, "2"), Err(fault.into()), &mut set));
            assert_eq!(reader.faults()["facts/said/b"], FactFault::Sealed(fault));
        }
        let huge = ListedFacts { size: 100 << 20, ..listed("b", 3) };
        let foreign = listed("b/c", 1);
        assert_eq!(reader.wanted(&[huge, foreign], true), []);
        assert_eq!(reader.faults()["facts/said/b"], FactFault::TooLong(100 << 20));
        assert_eq!(reader.faults()[SAID].to_string(), "one thing there is no node's: b/c");
        assert_eq!(reader.wanted(&[], true), []);
        assert_eq!(reader.faults()["facts/said/b"], FactFault::Removed);
        assert_eq!(token(&set), Some("1"));
    }

    #[test]
    fn what_is_no_node_s_is_one_fault_and_hides_no_node_that_is_known() {
        let ([first, _], b) = (two_of_b(), node("b"));
        let (mut reader, mut set) = (reader(), FactSet::default());
        reader.wanted(&[listed("b", 1)], true);
        reader.take((&b, "1"), Ok(first), &mut set);
        let mut foreign: Vec<_> = (0..300).map(|at| listed(&format!("X{at:03}"), 1)).collect();
        assert_eq!(reader.wanted(&foreign, true), []);
        assert_eq!(reader.faults().len(), 2, "all of them, and that one was removed");
        let told = reader.faults()[SAID].to_string();
        assert!(told.starts_with("300 things there are no node's: X000, X001"), "{told}");
        assert_eq!(reader.faults()["facts/said/b"], FactFault::Removed);
        // As many as can be, all of them before those that are known.
        foreign.extend((0..MAX_NODES).map(|at| listed(&format!("0{at}"), 1)));
        foreign.push(listed("a", 1));
        foreign.push(listed("b", 2));
        let wanted = reader.wanted(&foreign, true);
        let names: Vec<_> = wanted.iter().map(|(node, _)| node.as_str()).take(3).collect();
        assert_eq!((names, wanted.len()), (vec!["a", "b", "00"], MAX_NODES));
        assert!(reader.faults()[SAID].to_string().starts_with("302 things"));
        // Where it is cut, nobody was removed, and the node's own is asked for all the same.
        foreign.truncate(300);
        let wanted = reader.wanted(&foreign, false);
        assert_eq!(wanted.iter().map(|(node, _)| node.as_str()).collect::<Vec<_>>(), ["a"]);
        let told: Vec<_> = reader.faults().values().map(ToString::to_string).collect();
        assert!(told.len() == 1 && told[0].starts_with("more than 5120 objects"), "{told:?}");
        assert_eq!(reader.wanted(&foreign, false).len(), 1, "each time");
    }

    #[test]
    fn a_read_that_was_older_than_the_listing_is_done_once_more() {
        let ([first, second], b) = (two_of_b(), node("b"));
        let (mut reader, mut set) = (reader(), FactSet::default());
        // The listing has the second one already, the read not.
        assert_eq!(reader.wanted(&[listed("b", 2)], true).len(), 1);
        reader.take((&b, "2"), Ok(first), &mut set);
        assert_eq!(token(&set), Some("1"));
        let mut asked = Vec::new();
        for round in 1..40 {
            if !reader.wanted(&[listed("b", 2)], true).is_empty() {
                reader.take((&b, "2"), Ok(second.clone()), &mut set);
                asked.push(round);
            }
        }
        assert_eq!((asked, token(&set)), (vec![LOOK_AGAIN - 1], None));
    }

    #[test]
    fn what_cannot_be_read_is_asked_for_again_ever_less_often_until_it_is_another() {
        let ([first, _], b) = (two_of_b(), node("b"));
        let (mut reader, mut set) = (reader(), FactSet::default());
        let mut asked = Vec::new();
        for round in 0..80 {
            for (node, listed) in reader.wanted(&[listed("b", 1)], true) {
                reader.not_read(&node, &listed, &"it hangs");
                asked.push(round);
            }
            assert_eq!(reader.faults()["facts/said/b"].to_string(), "it cannot be read: it hangs");
        }
        assert_eq!(asked, [0, 1, 3, 7, 15, 31, 47, 63, 79]);
        assert_eq!(reader.wanted(&[listed("b", 2)], true).len(), 1, "it is another");
        assert!(reader.take((&b, "2"), Ok(first), &mut set));
        assert!(reader.faults().is_empty());
        assert_eq!(reader.wanted(&[listed("b", 3)], true).len(), 1);
    }

    #[test]
    fn what_the_store_does_not_say_is_put_until_it_does() {
        let a = node("a");
        let (mut reader, mut set) = (reader(), FactSet::default());
        reader.wanted(&[], true);
        assert_eq!(reader.to_put(&set), None, "there is nothing to say");
        set.say(&a, FactKind::Token, "t", "1").unwrap();
        assert!(!reader.says(&set));
        let object = reader.to_put(&set).unwrap();
        assert_eq!(object.number, 1);
        reader.has_put(&object);
        reader.wanted(&[listed("a", 1)], true);
        reader.take((&a, "1"), Ok(object.clone()), &mut set);
        assert!(reader.says(&set) && reader.to_put(&set).is_none() && reader.faults().is_empty());
        // It was removed, and the store forgets what it takes.
        for number in 2..=4 {
            reader.wanted(&[], true);
            let again = reader.to_put(&set).unwrap();
            assert_eq!((again.number, &again.facts), (number, &object.facts));
            reader.has_put(&again);
        }
        assert_eq!(reader.faults()["facts/said/a"], FactFault::Unkept);
        // It was put back to an older one, which says something else.
        reader.wanted(&[listed("a", 5)], true);
        let older = FactObject { number: 1, facts: FactSet::default() };
        reader.take((&a, "5"), Ok(older), &mut set);
        assert_eq!(reader.to_put(&set).unwrap().number, 5);
    }

    #[test]
    fn a_node_of_the_same_name_is_told_and_a_lost_memory_is_none() {
        let a = node("a");
        let mut facts = FactSet::default();
        facts.say(&a, FactKind::Token, "t", "1").unwrap();
        let theirs = FactObject { number: 9, facts };
        let (mut forgot, mut set) = (reader(), FactSet::default());
        assert!(forgot.take((&a, "1"), Ok(theirs.clone()), &mut set));
        assert!(forgot.faults().is_empty() && forgot.to_put(&set).is_none());
        set.say(&a, FactKind::Token, "u", "1").unwrap();
        assert_eq!(forgot.to_put(&set).unwrap().number, 10);
        let mut knows = FactReader::new(a.clone(), [(a.clone(), 3)].into(), false);
        knows.take((&a, "1"), Ok(theirs), &mut FactSet::default());
        assert_eq!(knows.faults()["facts/said/a"], FactFault::Twin);
    }

    #[test]
    fn what_is_sealed_by_an_older_key_is_put_again_and_that_of_who_is_gone_as_well() {
        let ([_, gone], [a, b]) = (two_of_b(), ["a", "b"].map(node));
        let (mut reader, mut set) = (reader(), FactSet::default());
        set.say(&a, FactKind::Token, "u", "1").unwrap();
        let own = FactObject { number: 1, facts: set.clone() };
        reader.opened(&a, false, &own);
        reader.take((&a, "1"), Ok(own), &mut set);
        reader.opened(&b, false, &gone);
        reader.take((&b, "1"), Ok(gone.clone()), &mut set);
        assert!(!reader.says(&set) && !reader.is_said_again("facts/said/b"));
        let put = reader.to_put(&set).unwrap();
        assert_eq!(put.facts.said_by(&b), gone.facts);
        // As a new node reads it, with the newer key alone.
        let read = FactObject::read(&put.write(&a), &a).unwrap();
        assert_eq!(read, put);
        let mut new = FactReader::new(node("c"), BTreeMap::new(), true);
        let mut known = FactSet::default();
        new.opened(&a, true, &read);
        new.take((&a, "2"), Ok(read), &mut known);
        assert_eq!((token(&known), known.said_by(&b)), (None, gone.facts.clone()));
        assert!(new.is_said_again("facts/said/b") && !new.is_said_again("facts/said/a"));
        assert_eq!(new.to_put(&known), None);
        // It is there, and the node itself comes back.
        reader.has_put(&put);
        reader.opened(&a, true, &put);
        reader.take((&a, "2"), Ok(put), &mut set);
        assert!(reader.says(&set) && reader.to_put(&set).is_none());
        reader.opened(&b, true, &gone);
        assert_eq!(reader.to_put(&set).unwrap().facts.said_by(&b).len(), 0);
    }
}
