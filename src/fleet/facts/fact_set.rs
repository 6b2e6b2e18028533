//! Facts, and how two sets of them become one. Pure.
//!
//! A fact stands under a kind and a name, and is what one node said last: a value, or that it has ended. Of two that stand
//! under the same name the *heavier* one counts: an end before any value, then the later stamp, then the greater text. That is
//! a total order, so merging is taking the maximum: in whatever order sets are merged, and however often, the same comes out.
//!
//! A stamp is a logical clock (one more than everything its node had seen) and the node's name. No clock on a wall takes part:
//! one that is wrong undoes nothing. Nothing undoes an end at all: what is to be there again stands under another name.

use std::collections::BTreeMap;

use thiserror::Error;

use crate::fleet::config::NodeName;

/// Most bytes of a fact's name.
pub const MAX_FACT_NAME_BYTES: usize = 1024;
/// Most bytes of a value.
pub const MAX_FACT_VALUE_BYTES: usize = 1 << 20;
/// Most bytes of the names and values that one node says at a time. Ends are always said.
pub const MAX_OWN_BYTES: usize = 16 << 20;
/// Bytes that a fact counts for beside its name and value.
const BYTES_BESIDE: usize = 64;
/// The latest time of a logical clock that is believed: one that ran away would leave no time after it.
pub(super) const MAX_CLOCK: u64 = 1 << 53;

/// What a fact is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FactKind {
    /// An agent token: its name and when it was made. It ends by being revoked.
    Token,
    /// Which config the fleet runs. One fact, without a name.
    Config,
    /// Which config a node runs; its name is the node's.
    ConfigRun,
    /// That a definition of a tool was approved; server, tool and hash are its name.
    Definition,
    /// That a definition of a tool was accepted at some node without being asked for; its name is as that of an approved one.
    Pinned,
    /// That a definition of a tool waits for an operator at some node; its name is as that of an approved one.
    Held,
    /// An approval of calls that stands for a while; when it ends and its id are its name. It ends before by being denied.
    Leave,
}

impl FactKind {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Token,
        Self::Config,
        Self::ConfigRun,
        Self::Definition,
        Self::Pinned,
        Self::Held,
        Self::Leave,
    ];

    /// Its word in an object.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::Config => "config",
            Self::ConfigRun => "config_run",
            Self::Definition => "approved",
            Self::Pinned => "pinned",
            Self::Held => "held",
            Self::Leave => "leave",
        }
    }

    /// That of a word; `None` for one of a later version.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word)
    }
}

/// When a fact was said, and by whom: later ones are greater.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FactStamp {
    /// The logical time: more than of everything the node had seen.
    pub clock: u64,
    /// The node.
    pub node: NodeName,
}

/// What is said of a name. An end is greater than any value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FactState {
    /// This, in the form of its kind.
    Holds(Box<str>),
    /// It is over, for good.
    Ended,
}

/// A fact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// When it was said.
    pub stamp: FactStamp,
    /// What.
    pub state: FactState,
}

impl Fact {
    /// The value, if it holds.
    #[must_use]
    pub fn value(&self) -> Option<&str> {
        match &self.state {
            FactState::Holds(value) => Some(value),
            FactState::Ended => None,
        }
    }

    /// What decides between two of one name.
    fn weight(&self) -> (bool, &FactStamp, &FactState) {
        (self.state == FactState::Ended, &self.stamp, &self.state)
    }
}

/// What a fact counts for in what its node says.
fn bytes(name: &str, fact: &Fact) -> usize {
    name.len() + fact.value().map_or(0, str::len) + BYTES_BESIDE
}

/// Why something cannot be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FactRefused {
    /// It has ended.
    #[error("it has ended for the whole fleet")]
    Ended,
    /// The name or the value is too long.
    #[error(
        "it is longer than {MAX_FACT_VALUE_BYTES} bytes, or its name than {MAX_FACT_NAME_BYTES}"
    )]
    TooLong,
    /// This node has said as much as it may.
    #[error(
        "this node shares {} MiB with its fleet already, the most that it may: do it at another node, and see which server lists ever other tools",
        MAX_OWN_BYTES >> 20
    )]
    Full,
    /// No time is left.
    #[error("the logical clock of the fleet has come to its end")]
    Clock,
}

/// Facts, one for each kind and name.
#[derive(Clone, Debug, Default)]
pub struct FactSet {
    facts: BTreeMap<(FactKind, Box<str>), Fact>,
    /// The latest time of all that was ever in it.
    latest: u64,
    /// Bytes of what each node says.
    said: BTreeMap<NodeName, usize>,
    /// Counts what was taken over and what was forgotten.
    changes: u64,
}

impl PartialEq for FactSet {
    fn eq(&self, other: &Self) -> bool {
        self.facts == other.facts
    }
}

impl Eq for FactSet {}

/// Facts that were gone through one after another, so that a test can tell what grows faster than what it is done for.
#[cfg(test)]
pub(crate) mod walked {
    use std::cell::Cell;

    thread_local!(static FACTS: Cell<u64> = const { Cell::new(0) });

    pub(in crate::fleet::facts) fn one<T>(fact: T) -> T {
        FACTS.set(FACTS.get() + 1);
        fact
    }

    /// How many on this thread.
    pub(crate) fn count() -> u64 {
        FACTS.get()
    }
}

impl FactSet {
    /// All, counted where it is tested.
    fn walk(&self) -> impl Iterator<Item = (&(FactKind, Box<str>), &Fact)> {
        let all = self.facts.iter();
        #[cfg(test)]
        let all = all.map(walked::one);
        all
    }

    /// The fact of a name.
    #[must_use]
    pub fn get(&self, kind: FactKind, name: &str) -> Option<&Fact> {
        self.facts.get(&(kind, name.into()))
    }

    /// The facts of a kind, in the order of their names.
    pub fn of(&self, kind: FactKind) -> impl Iterator<Item = (&str, &Fact)> {
        let from = self.facts.range((kind, Box::default())..);
        #[cfg(test)]
        let from = from.map(walked::one);
        from.take_while(move |((of, _), _)| *of == kind).map(|((_, name), fact)| (&**name, fact))
    }

    /// All facts.
    pub fn iter(&self) -> impl Iterator<Item = (FactKind, &str, &Fact)> {
        self.walk().map(|((kind, name), fact)| (*kind, &**name, fact))
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.facts.len()
    }

    /// True if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.facts.is_empty()
    }

    /// Counts its changes: whoever has looked at it needs not look again while this is the same. Going through all facts to find
    /// that out takes as long as there are many.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// Who has said what is in it.
    pub(super) fn authors(&self) -> impl Iterator<Item = &NodeName> {
        self.said.iter().filter(|(_, bytes)| **bytes > 0).map(|(node, _)| node)
    }

    /// What `node` has said, as far as nobody has said otherwise since.
    #[must_use]
    pub fn said_by(&self, node: &NodeName) -> Self {
        let mut own = Self::default();
        for ((kind, name), fact) in self.walk().filter(|(_, fact)| fact.stamp.node == *node) {
            own.merge_one(*kind, name, fact.clone());
        }
        own
    }

    /// Forgets facts of a kind whose names are before `name`, ended or not: what they were about is long over everywhere. Who
    /// still says one is believed again until it forgets it as well. True if there were any.
    pub fn forget_before(&mut self, kind: FactKind, name: &str) -> bool {
        let past = self.of(kind).map(|(name, _)| name).take_while(|it| **it < *name);
        let past: Vec<Box<str>> = past.map(Box::from).collect();
        for name in &past {
            if let Some(fact) = self.facts.remove(&(kind, name.clone())) {
                self.uncount(name, &fact);
            }
        }
        self.changes += u64::from(!past.is_empty());
        !past.is_empty()
    }

    /// Bytes of names and values that a node says.
    #[must_use]
    pub fn bytes_of(&self, node: &NodeName) -> usize {
        self.said.get(node).copied().unwrap_or_default()
    }

    fn uncount(&mut self, name: &str, fact: &Fact) {
        if let Some(said) = self.said.get_mut(&fact.stamp.node) {
            *said = said.saturating_sub(bytes(name, fact));
        }
    }

    /// Takes a fact over if it is heavier than what is there; true if it was.
    pub fn merge_one(&mut self, kind: FactKind, name: &str, fact: Fact) -> bool {
        let at = (kind, Box::from(name));
        if self.facts.get(&at).is_some_and(|there| there.weight() >= fact.weight()) {
            return false;
        }
        self.latest = self.latest.max(fact.stamp.clock);
        *self.said.entry(fact.stamp.node.clone()).or_default() += bytes(name, &fact);
        if let Some(before) = self.facts.insert(at, fact) {
            self.uncount(name, &before);
        }
        self.changes += 1;
        true
    }

    /// Takes over what is heavier in `other`; true if anything was.
    pub fn merge(&mut self, other: &Self) -> bool {
        let facts = other.iter();
        facts.fold(false, |any, (kind, name, fact)| self.merge_one(kind, name, fact.clone()) || any)
    }

    /// Says a value in the name of `node`; false if it stands so already.
    ///
    /// # Errors
    ///
    /// [`FactRefused`]; nothing is said.
    pub fn say(
        &mut self,
        node: &NodeName,
        kind: FactKind,
        name: &str,
        value: &str,
    ) -> Result<bool, FactRefused> {
        if name.len() > MAX_FACT_NAME_BYTES || value.len() > MAX_FACT_VALUE_BYTES {
            return Err(FactRefused::TooLong);
        }
        match self.get(kind, name).map(|fact| &fact.state) {
            Some(FactState::Ended) => return Err(FactRefused::Ended),
            Some(FactState::Holds(there)) if **there == *value => return Ok(false),
            Some(FactState::Holds(_)) | None => {}
        }
        if self.bytes_of(node) + name.len() + value.len() + BYTES_BESIDE > MAX_OWN_BYTES {
            return Err(FactRefused::Full);
        }
        let stamp = self.next_stamp(node).ok_or(FactRefused::Clock)?;
        Ok(self.merge_one(kind, name, Fact { stamp, state: FactState::Holds(value.into()) }))
    }

    /// Ends what stands under a name, in the name of `node`; false if nothing does, or it has ended.
    pub fn end(&mut self, node: &NodeName, kind: FactKind, name: &str) -> bool {
        let stands = self.get(kind, name).is_some_and(|fact| fact.state != FactState::Ended);
        stands && self.forbid(node, kind, name)
    }

    /// The same, also where nothing stands: whoever says it later says it in vain. False if it has ended.
    pub fn forbid(&mut self, node: &NodeName, kind: FactKind, name: &str) -> bool {
        let has_ended = self.get(kind, name).is_some_and(|fact| fact.state == FactState::Ended);
        // An end counts without time, too.
        let stamp = self.next_stamp(node);
        let stamp = stamp.unwrap_or(FactStamp { clock: MAX_CLOCK, node: node.clone() });
        !has_ended && self.merge_one(kind, name, Fact { stamp, state: FactState::Ended })
    }

    fn next_stamp(&self, node: &NodeName) -> Option<FactStamp> {
        let clock = Some(self.latest + 1).filter(|clock| *clock < MAX_CLOCK)?;
        Some(FactStamp { clock, node: node.clone() })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(in crate::fleet::facts) fn node(name: &str) -> NodeName {
        NodeName::parse(name).unwrap()
    }

    /// What a node does with its set.
    #[derive(Clone, Debug)]
    enum Act {
        Say(FactKind, u8, u8),
        End(FactKind, u8),
        /// Reads what that node has said.
        Read(usize),
        /// Loses what it has not published, and reads its own again.
        Forget,
    }

    const NODES: usize = 3;

    fn acts() -> impl Strategy<Value = Vec<(usize, Act)>> {
        let kind = || prop::sample::select(FactKind::ALL.to_vec());
        let act = prop_oneof![
            4 => (kind(), 0..3_u8, 0..4_u8).prop_map(|(kind, name, value)| Act::Say(kind, name, value)),
            2 => (kind(), 0..3_u8).prop_map(|(kind, name)| Act::End(kind, name)),
            4 => (0..NODES).prop_map(Act::Read),
            1 => Just(Act::Forget),
        ];
        prop::collection::vec((0..NODES, act), 0..60)
    }

    fn facts() -> impl Strategy<Value = FactSet> {
        let kind = prop::sample::select(FactKind::ALL.to_vec());
        let fact = (kind, 0..3_u8, 1..6_u64, 0..NODES, prop::option::of(0..3_u8));
        prop::collection::vec(fact, 0..12).prop_map(|facts| {
            let mut set = FactSet::default();
            for (kind, name, clock, by, value) in facts {
                let stamp = FactStamp { clock, node: node(&format!("n{by}")) };
                let state = value
                    .map_or(FactState::Ended, |value| FactState::Holds(value.to_string().into()));
                set.merge_one(kind, &name.to_string(), Fact { stamp, state });
            }
            set
        })
    }

    fn merged(a: &FactSet, b: &FactSet) -> FactSet {
        let mut merged = a.clone();
        merged.merge(b);
        merged
    }

    proptest! {
        #[test]
        fn merging_is_commutative_associative_and_idempotent(a in facts(), b in facts(), c in facts()) {
            prop_assert_eq!(merged(&a, &b), merged(&b, &a));
            prop_assert_eq!(merged(&merged(&a, &b), &c), merged(&a, &merged(&b, &c)));
            prop_assert_eq!(merged(&a, &a), a.clone());
            // What an older one says again changes nothing.
            let ab = merged(&a, &b);
            prop_assert!(!ab.clone().merge(&a));
        }

        #[test]
        fn every_order_and_repetition_gives_the_same(
            sets in prop::collection::vec(facts(), 1..6),
            order in prop::collection::vec(0..6_usize, 0..20),
        ) {
            let all = sets.iter().fold(FactSet::default(), |all, set| merged(&all, set));
            let mut other = FactSet::default();
            for at in order {
                other.merge(&sets[at % sets.len()]);
            }
            for set in sets.iter().rev() {
                other.merge(set);
            }
            prop_assert_eq!(other, all);
        }

        #[test]
        fn nodes_that_have_read_each_other_agree_and_what_has_ended_never_holds(acts in acts()) {
            let names: Vec<_> = (0..NODES).map(|at| node(&format!("n{at}"))).collect();
            let mut nodes = vec![FactSet::default(); NODES];
            // The store has of each node what that has said and not lost.
            let mut store = nodes.clone();
            let mut ended = std::collections::BTreeSet::new();
            for (at, act) in acts {
                let set = &mut nodes[at];
                match act {
                    Act::Say(kind, name, value) => {
                        let _ = set.say(&names[at], kind, &name.to_string(), &value.to_string());
                        store[at] = set.said_by(&names[at]);
                    }
                    Act::End(kind, name) => {
                        if set.end(&names[at], kind, &name.to_string()) {
                            ended.insert((kind, name.to_string()));
                        }
                        store[at] = set.said_by(&names[at]);
                    }
                    Act::Read(of) => {
                        set.merge(&store[of]);
                    }
                    Act::Forget => *set = store[at].clone(),
                }
            }
            let all = store.iter().fold(FactSet::default(), |all, set| merged(&all, set));
            for (at, set) in nodes.iter_mut().enumerate() {
                for of in (0..NODES).map(|of| (of + at) % NODES) {
                    set.merge(&store[of]);
                }
            }
            for set in &nodes {
                prop_assert_eq!(set, &nodes[0]);
                for (kind, name) in &ended {
                    prop_assert_eq!(set.get(*kind, name).and_then(Fact::value), None);
                }
            }
            // Nothing but what somebody knows, and all of what is in the store.
            prop_assert_eq!(merged(&nodes[0], &all), nodes[0].clone());
        }
    }

    #[test]
    fn what_is_said_later_counts_and_what_has_ended_is_over() {
        let [a, b] = ["a", "b"].map(node);
        let mut ours = FactSet::default();
        assert_eq!(ours.say(&a, FactKind::Token, "t", "1"), Ok(true));
        assert_eq!(ours.say(&a, FactKind::Token, "t", "1"), Ok(false), "it stands so");
        let mut theirs = ours.clone();
        assert_eq!(theirs.say(&b, FactKind::Token, "t", "2"), Ok(true));
        assert!(ours.end(&a, FactKind::Token, "t") && !ours.end(&a, FactKind::Token, "t"));
        // At the same logical time, by a greater name; and much later.
        for _ in 0..3 {
            theirs.say(&b, FactKind::Config, "", &theirs.len().to_string()).unwrap();
            theirs.say(&b, FactKind::Token, "t", "3").unwrap();
            theirs.say(&b, FactKind::Token, "t", "4").unwrap();
        }
        ours.merge(&theirs);
        assert_eq!(ours.get(FactKind::Token, "t").unwrap().state, FactState::Ended);
        assert_eq!(ours.say(&a, FactKind::Token, "t", "5"), Err(FactRefused::Ended));
        // Who has read what was said says something later, whatever the names.
        ours.say(&a, FactKind::Config, "", "of a").unwrap();
        theirs.merge(&ours);
        assert_eq!(theirs.get(FactKind::Config, "").and_then(Fact::value), Some("of a"));
        assert!(!ours.end(&a, FactKind::Token, "other"));
        assert!(ours.forbid(&a, FactKind::Leave, "x") && !ours.forbid(&a, FactKind::Leave, "x"));
        assert_eq!(ours.say(&a, FactKind::Leave, "x", "1"), Err(FactRefused::Ended));
        assert_eq!(ours.of(FactKind::Token).count(), 1);
        assert_eq!(ours.said_by(&a).of(FactKind::Config).count(), 1);
    }

    #[test]
    fn each_change_is_counted_and_nothing_else_and_who_says_nothing_any_more_is_no_author() {
        let [a, b] = ["a", "b"].map(node);
        let mut set = FactSet::default();
        let mut last = set.changes();
        let mut has_changed =
            |set: &FactSet| set.changes() != std::mem::replace(&mut last, set.changes());
        set.say(&a, FactKind::Token, "t", "1").unwrap();
        assert!(has_changed(&set));
        let other = set.clone();
        assert!(!set.merge(&other) && !set.say(&a, FactKind::Token, "t", "1").unwrap());
        assert!(!set.forget_before(FactKind::Token, "t") && !set.end(&a, FactKind::Token, "u"));
        assert!(!has_changed(&set));
        assert!(set.end(&b, FactKind::Token, "t"));
        assert!(has_changed(&set));
        assert_eq!(set.authors().collect::<Vec<_>>(), [&b]);
        assert!(set.forget_before(FactKind::Token, "u"));
        assert!(has_changed(&set));
        assert_eq!(set.authors().count(), 0);
    }

    #[test]
    fn what_is_too_much_is_refused_and_an_end_is_not() {
        let a = node("a");
        let mut set = FactSet::default();
        let value = "x".repeat(MAX_FACT_VALUE_BYTES);
        let long = format!("{value}x");
        assert_eq!(set.say(&a, FactKind::Token, "t", &long), Err(FactRefused::TooLong));
        let name = "x".repeat(MAX_FACT_NAME_BYTES + 1);
        assert_eq!(set.say(&a, FactKind::Token, &name, "1"), Err(FactRefused::TooLong));
        let mut said = 0;
        while set.say(&a, FactKind::Token, &said.to_string(), &value).is_ok() {
            said += 1;
        }
        assert_eq!(said, MAX_OWN_BYTES / MAX_FACT_VALUE_BYTES - 1);
        assert_eq!(set.say(&a, FactKind::Token, "t", &value), Err(FactRefused::Full));
        assert!(set.end(&a, FactKind::Token, "0"));
        assert_eq!(set.say(&a, FactKind::Token, "t", &value), Ok(true));
        let stamp = FactStamp { clock: MAX_CLOCK, node: a.clone() };
        set.merge_one(FactKind::Config, "", Fact { stamp, state: FactState::Holds("".into()) });
        assert_eq!(set.say(&a, FactKind::Config, "", "1"), Err(FactRefused::Clock));
        assert!(set.end(&a, FactKind::Token, "1"));
    }
}
