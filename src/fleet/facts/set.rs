//! Facts and their merge, a last-writer-wins map with tombstones and Lamport clocks. Pure.
//!
//! A fact has a kind and a name, and holds the last state that a node set: a value, or a tombstone. Of two states of
//! one fact the *heavier* one wins: a tombstone over any value, then the later stamp, then the greater text. This is
//! a total order and merging takes the maximum, so the result does not depend on order or repetition.
//!
//! A stamp is a Lamport clock and the node's name. Wall clocks are not involved, so a wrong clock undoes nothing. A
//! tombstone is final: to re-create an item, use another name.
//!
//! [`ConfigFact`] and [`ConfigRun`] are the facts about the config: which one the fleet runs, and which one a node
//! runs. The config itself is a separate object named by its hash.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::config::NodeName;

/// Maximum length of a fact's name in bytes.
pub const MAX_FACT_NAME_BYTES: usize = 1024;
/// Maximum length of a value in bytes.
pub const MAX_FACT_VALUE_BYTES: usize = 1 << 20;
/// Maximum total size of one node's names and values in bytes. Tombstones are always allowed.
pub const MAX_OWN_BYTES: usize = 16 << 20;
/// Bytes counted per fact besides its name and value.
const BYTES_BESIDE: usize = 64;
/// Maximum accepted logical time, so that a runaway clock leaves room for later times.
pub(crate) const MAX_CLOCK: u64 = 1 << 53;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FactKind {
    /// Agent token: name and creation time. Revocation ends it.
    Token,
    /// Config of the fleet, a single fact without a name.
    Config,
    /// Config that a node runs, named after the node.
    ConfigRun,
    /// Approved tool definition, named by server, tool and hash.
    Definition,
    /// Tool definition that some node accepted without approval; named like an approved one.
    Pinned,
    /// Tool definition that waits for approval at some node; named like an approved one.
    Held,
    /// Standing approval, named by its expiry and id. A denial ends it early.
    StandingApproval,
    /// Data seen by a principal within a period, named by period, principal and item.
    Seen,
}

impl FactKind {
    pub(crate) const ALL: [Self; 8] = [
        Self::Token,
        Self::Config,
        Self::ConfigRun,
        Self::Definition,
        Self::Pinned,
        Self::Held,
        Self::StandingApproval,
        Self::Seen,
    ];

    /// Name of the kind in objects.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::Config => "config",
            Self::ConfigRun => "config_run",
            Self::Definition => "approved",
            Self::Pinned => "pinned",
            Self::Held => "held",
            Self::StandingApproval => "leave",
            Self::Seen => "seen",
        }
    }

    /// Parses a name; `None` for one of a later version.
    pub(crate) fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word)
    }
}

/// Logical timestamp: clock, then author.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FactStamp {
    /// Lamport clock: greater than every clock the node had seen.
    pub clock: u64,
    pub node: NodeName,
}

/// State of a fact. `Ended` outweighs any value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FactState {
    /// The value, in the format of its kind.
    Holds(Box<str>),
    /// Tombstone: the fact has ended permanently.
    Ended,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// Logical timestamp.
    pub stamp: FactStamp,
    pub state: FactState,
}

impl Fact {
    /// The value, unless ended.
    pub fn value(&self) -> Option<&str> {
        match &self.state {
            FactState::Holds(value) => Some(value),
            FactState::Ended => None,
        }
    }

    /// Order that decides between two states of one fact.
    fn weight(&self) -> (bool, &FactStamp, &FactState) {
        (self.state == FactState::Ended, &self.stamp, &self.state)
    }
}

/// Size of a fact that counts toward the limit of its author.
fn bytes(name: &str, fact: &Fact) -> usize {
    name.len() + fact.value().map_or(0, str::len) + BYTES_BESIDE
}

/// Reason why a fact cannot be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FactRefused {
    #[error("ended for the whole fleet")]
    Ended,
    #[error("the value exceeds {MAX_FACT_VALUE_BYTES} bytes, or the name {MAX_FACT_NAME_BYTES}")]
    TooLong,
    /// This node's total size is exhausted.
    #[error(
        "this node already shares {} MiB with its fleet, the maximum: use another node, and check which server keeps listing new tools",
        MAX_OWN_BYTES >> 20
    )]
    Full,
    #[error("the fleet's logical clock is exhausted")]
    Clock,
}

/// Set of facts, one per kind and name.
#[derive(Clone, Debug, Default)]
pub struct FactSet {
    facts: BTreeMap<(FactKind, Box<str>), Fact>,
    /// Maximum clock ever seen.
    latest: u64,
    /// Total size per author in bytes.
    bytes_by_author: BTreeMap<NodeName, usize>,
    /// Change counter.
    changes: u64,
}

impl PartialEq for FactSet {
    fn eq(&self, other: &Self) -> bool {
        self.facts == other.facts
    }
}

impl Eq for FactSet {}

/// Counts facts visited by iteration, so that tests detect superlinear work.
#[cfg(any(test, debug_assertions))]
#[doc(hidden)]
pub mod scan_counter {
    use std::cell::Cell;

    thread_local!(static FACTS: Cell<u64> = const { Cell::new(0) });

    pub(crate) fn one<T>(fact: T) -> T {
        FACTS.set(FACTS.get() + 1);
        fact
    }

    /// Number of facts visited on this thread.
    pub fn count() -> u64 {
        FACTS.get()
    }
}

impl FactSet {
    /// Iterates over all facts, counted in tests.
    fn walk(&self) -> impl Iterator<Item = (&(FactKind, Box<str>), &Fact)> {
        let all = self.facts.iter();
        #[cfg(any(test, debug_assertions))]
        let all = all.map(scan_counter::one);
        all
    }

    /// Fact of this kind and name.
    pub fn get(&self, kind: FactKind, name: &str) -> Option<&Fact> {
        self.facts.get(&(kind, name.into()))
    }

    /// Facts of a kind in name order.
    pub fn of(&self, kind: FactKind) -> impl Iterator<Item = (&str, &Fact)> {
        let from = self.facts.range((kind, Box::default())..);
        #[cfg(any(test, debug_assertions))]
        let from = from.map(scan_counter::one);
        from.take_while(move |((of, _), _)| *of == kind).map(|((_, name), fact)| (&**name, fact))
    }

    pub fn iter(&self) -> impl Iterator<Item = (FactKind, &str, &Fact)> {
        self.walk().map(|((kind, name), fact)| (*kind, &**name, fact))
    }

    pub fn len(&self) -> usize {
        self.facts.len()
    }

    pub fn is_empty(&self) -> bool {
        self.facts.is_empty()
    }

    /// Change counter: equal values mean that the set is unchanged. Avoids iterating over all facts.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Authors of the current facts.
    pub(crate) fn authors(&self) -> impl Iterator<Item = &NodeName> {
        self.bytes_by_author.iter().filter(|(_, bytes)| **bytes > 0).map(|(node, _)| node)
    }

    /// Facts whose current state was set by `node`.
    pub fn authored_by(&self, node: &NodeName) -> Self {
        let mut own = Self::default();
        for ((kind, name), fact) in self.walk().filter(|(_, fact)| fact.stamp.node == *node) {
            own.merge_one(*kind, name, fact.clone());
        }
        own
    }

    /// Removes facts of a kind with names before `name`, including tombstones. Call this after they expired
    /// everywhere: a fact that another node still publishes returns until that node removes it, too. Returns true if
    /// any were removed.
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

    /// Total size of a node's names and values in bytes.
    pub fn bytes_of(&self, node: &NodeName) -> usize {
        self.bytes_by_author.get(node).copied().unwrap_or_default()
    }

    fn uncount(&mut self, name: &str, fact: &Fact) {
        if let Some(total) = self.bytes_by_author.get_mut(&fact.stamp.node) {
            *total = total.saturating_sub(bytes(name, fact));
        }
    }

    /// Merges a fact; returns true if it outweighs the current one.
    pub fn merge_one(&mut self, kind: FactKind, name: &str, fact: Fact) -> bool {
        let at = (kind, Box::from(name));
        if self.facts.get(&at).is_some_and(|there| there.weight() >= fact.weight()) {
            return false;
        }
        self.latest = self.latest.max(fact.stamp.clock);
        *self.bytes_by_author.entry(fact.stamp.node.clone()).or_default() += bytes(name, &fact);
        if let Some(before) = self.facts.insert(at, fact) {
            self.uncount(name, &before);
        }
        self.changes += 1;
        true
    }

    /// Merges another set; returns true if anything changed.
    pub fn merge(&mut self, other: &Self) -> bool {
        let facts = other.iter();
        facts.fold(false, |any, (kind, name, fact)| self.merge_one(kind, name, fact.clone()) || any)
    }

    /// Sets a value on behalf of `node`; returns false if it is already set.
    pub fn set_value(
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

    /// Ends a fact on behalf of `node`; returns false if it does not exist or has ended.
    pub fn end(&mut self, node: &NodeName, kind: FactKind, name: &str) -> bool {
        let stands = self.get(kind, name).is_some_and(|fact| fact.state != FactState::Ended);
        stands && self.forbid(node, kind, name)
    }

    /// Ends a fact even if it does not exist yet, which blocks later values. Returns false if it has ended.
    pub fn forbid(&mut self, node: &NodeName, kind: FactKind, name: &str) -> bool {
        let has_ended = self.get(kind, name).is_some_and(|fact| fact.state == FactState::Ended);
        // A tombstone counts even if the clock is exhausted.
        let stamp = self.next_stamp(node);
        let stamp = stamp.unwrap_or(FactStamp { clock: MAX_CLOCK, node: node.clone() });
        !has_ended && self.merge_one(kind, name, Fact { stamp, state: FactState::Ended })
    }

    fn next_stamp(&self, node: &NodeName) -> Option<FactStamp> {
        let clock = Some(self.latest + 1).filter(|clock| *clock < MAX_CLOCK)?;
        Some(FactStamp { clock, node: node.clone() })
    }
}

/// Maximum number of former configs to roll back to.
const MAX_EARLIER: usize = 16;
/// Maximum number of config copies considered.
const MAX_COPIES: usize = 16;
/// Folder of config objects, with a subfolder per author.
pub const CONFIGS: &str = "facts/config";
/// Maximum length of a reason in characters.
const MAX_REASON_CHARS: usize = 500;

/// Current or former config of the fleet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigVersion {
    /// Number of applied configs.
    pub version: u64,
    /// Hash of the config.
    pub hash: String,
    /// Node that uploaded it.
    pub node: String,
    pub by: String,
    /// Upload time by that node's clock, in seconds since 1970; informational.
    pub at: u64,
}

impl ConfigVersion {
    /// Key of the object.
    pub fn key(&self) -> String {
        format!("{CONFIGS}/{}/{}", self.node, self.hash)
    }

    /// Key of a copy uploaded by `node`.
    pub fn copy_by(&self, node: &NodeName) -> String {
        Self { node: node.as_str().to_owned(), ..self.clone() }.key()
    }

    /// Keys of copies by other nodes among `keys`, the first few.
    pub fn copies<'a>(
        &'a self,
        keys: impl Iterator<Item = &'a str> + 'a,
    ) -> impl Iterator<Item = &'a str> + 'a {
        let is_it =
            move |key: &&str| key.rsplit('/').next() == Some(&*self.hash) && **key != self.key();
        keys.filter(is_it).take(MAX_COPIES)
    }

    /// True if its fields form a valid key.
    fn is_whole(&self) -> bool {
        let digit = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
        NodeName::parse(&self.node).is_some()
            && self.hash.len() == 64
            && self.hash.chars().all(digit)
    }
}

/// Config of the fleet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigFact {
    #[serde(flatten)]
    pub now: ConfigVersion,
    /// Former configs, the latest first.
    pub earlier: Vec<ConfigVersion>,
}

impl ConfigFact {
    /// Current config fact; `None` if there is none.
    pub fn of(facts: &FactSet) -> Option<Self> {
        let fact = facts.get(FactKind::Config, "").and_then(Fact::value)?;
        let read: Self = serde_json::from_str(fact).ok()?;
        (read.now.is_whole() && read.earlier.iter().all(ConfigVersion::is_whole)).then_some(read)
    }

    /// Successor of `before` with the config `hash` uploaded by `node`.
    pub fn applied(before: Option<Self>, hash: String, node: &NodeName, by: &str, at: u64) -> Self {
        let version = before.as_ref().map_or(0, |before| before.now.version) + 1;
        let earlier =
            before.into_iter().flat_map(|Self { now, earlier }| [now].into_iter().chain(earlier));
        let (node, by) = (node.as_str().to_owned(), by.to_owned());
        let now = ConfigVersion { version, hash, node, by, at };
        Self { now, earlier: earlier.take(MAX_EARLIER).collect() }
    }

    /// New version with the previous config; `None` if there is none.
    pub fn rolled_back(self, by: &str, at: u64) -> Option<Self> {
        let mut earlier = self.earlier.into_iter();
        let before = earlier.next()?;
        let version = self.now.version + 1;
        let now = ConfigVersion { version, by: by.to_owned(), at, ..before };
        Some(Self { now, earlier: earlier.collect() })
    }

    pub fn value(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Outcome of the fleet's config on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConfigRunState {
    Running,
    /// The config was rejected; the node keeps its previous config.
    Refused,
}

/// Config that a node runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigRun {
    /// Version last processed.
    pub version: u64,
    /// Hash of that version.
    pub hash: String,
    /// Outcome of applying that version.
    pub state: ConfigRunState,
    /// Reason for rejecting it; empty otherwise.
    pub reason: String,
    /// Config keys that take effect at the next start.
    pub needs_restart: Vec<String>,
}

impl ConfigRun {
    /// Describes the outcome of a version.
    pub fn of(version: &ConfigVersion, refused: Option<&str>, needs_restart: &[String]) -> Self {
        let state = match refused {
            None => ConfigRunState::Running,
            Some(_) => ConfigRunState::Refused,
        };
        Self {
            version: version.version,
            hash: version.hash.clone(),
            state,
            reason: refused.unwrap_or_default().chars().take(MAX_REASON_CHARS).collect(),
            needs_restart: needs_restart.to_vec(),
        }
    }

    /// Config runs of all nodes, by name.
    pub fn all(facts: &FactSet) -> Vec<(String, Self)> {
        // A node only reports about itself.
        let own = |(name, fact): &(&str, &Fact)| fact.stamp.node.as_str() == *name;
        let runs = facts.of(FactKind::ConfigRun).filter(own);
        runs.filter_map(|(node, fact)| {
            Some((node.to_owned(), serde_json::from_str(fact.value()?).ok()?))
        })
        .collect()
    }

    pub fn value(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(in crate::facts) fn node(name: &str) -> NodeName {
        NodeName::parse(name).unwrap()
    }

    /// Action of a simulated node.
    #[derive(Clone, Debug)]
    enum Act {
        Say(FactKind, u8, u8),
        End(FactKind, u8),
        /// The node reads another node's facts.
        Read(usize),
        /// The node loses unpublished facts and re-reads its own.
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
        fn merge_is_commutative_associative_and_idempotent(a in facts(), b in facts(), c in facts()) {
            prop_assert_eq!(merged(&a, &b), merged(&b, &a));
            prop_assert_eq!(merged(&merged(&a, &b), &c), merged(&a, &merged(&b, &c)));
            prop_assert_eq!(merged(&a, &a), a.clone());
            // An older set changes nothing.
            let ab = merged(&a, &b);
            prop_assert!(!ab.clone().merge(&a));
        }

        #[test]
        fn merge_order_and_repetition_do_not_matter(
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
        fn nodes_converge_and_ended_facts_stay_ended(acts in acts()) {
            let names: Vec<_> = (0..NODES).map(|at| node(&format!("n{at}"))).collect();
            let mut nodes = vec![FactSet::default(); NODES];
            // The store has each node's published facts.
            let mut store = nodes.clone();
            let mut ended = std::collections::BTreeSet::new();
            for (at, act) in acts {
                let set = &mut nodes[at];
                match act {
                    Act::Say(kind, name, value) => {
                        let _ = set.set_value(&names[at], kind, &name.to_string(), &value.to_string());
                        store[at] = set.authored_by(&names[at]);
                    }
                    Act::End(kind, name) => {
                        if set.end(&names[at], kind, &name.to_string()) {
                            ended.insert((kind, name.to_string()));
                        }
                        store[at] = set.authored_by(&names[at]);
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
            // The set holds exactly the facts that some node or the store has.
            prop_assert_eq!(merged(&nodes[0], &all), nodes[0].clone());
        }
    }

    #[test]
    fn later_value_wins_and_ended_fact_stays_ended() {
        let [a, b] = ["a", "b"].map(node);
        let mut ours = FactSet::default();
        assert_eq!(ours.set_value(&a, FactKind::Token, "t", "1"), Ok(true));
        assert_eq!(ours.set_value(&a, FactKind::Token, "t", "1"), Ok(false), "already set");
        let mut theirs = ours.clone();
        assert_eq!(theirs.set_value(&b, FactKind::Token, "t", "2"), Ok(true));
        assert!(ours.end(&a, FactKind::Token, "t") && !ours.end(&a, FactKind::Token, "t"));
        // The other node sets values with a greater node name at the same logical time, and then much later.
        for _ in 0..3 {
            theirs.set_value(&b, FactKind::Config, "", &theirs.len().to_string()).unwrap();
            theirs.set_value(&b, FactKind::Token, "t", "3").unwrap();
            theirs.set_value(&b, FactKind::Token, "t", "4").unwrap();
        }
        ours.merge(&theirs);
        assert_eq!(ours.get(FactKind::Token, "t").unwrap().state, FactState::Ended);
        assert_eq!(ours.set_value(&a, FactKind::Token, "t", "5"), Err(FactRefused::Ended));
        // After reading another node's fact, a new value is later, regardless of the node names.
        ours.set_value(&a, FactKind::Config, "", "of a").unwrap();
        theirs.merge(&ours);
        assert_eq!(theirs.get(FactKind::Config, "").and_then(Fact::value), Some("of a"));
        assert!(!ours.end(&a, FactKind::Token, "other"));
        assert!(
            ours.forbid(&a, FactKind::StandingApproval, "x")
                && !ours.forbid(&a, FactKind::StandingApproval, "x")
        );
        assert_eq!(
            ours.set_value(&a, FactKind::StandingApproval, "x", "1"),
            Err(FactRefused::Ended)
        );
        assert_eq!(ours.of(FactKind::Token).count(), 1);
        assert_eq!(ours.authored_by(&a).of(FactKind::Config).count(), 1);
    }

    #[test]
    fn change_counter_and_authors_follow_the_set() {
        let [a, b] = ["a", "b"].map(node);
        let mut set = FactSet::default();
        let mut last = set.changes();
        let mut has_changed =
            |set: &FactSet| set.changes() != std::mem::replace(&mut last, set.changes());
        set.set_value(&a, FactKind::Token, "t", "1").unwrap();
        assert!(has_changed(&set));
        let other = set.clone();
        assert!(!set.merge(&other) && !set.set_value(&a, FactKind::Token, "t", "1").unwrap());
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
    fn oversized_values_are_rejected_but_tombstones_are_not() {
        let a = node("a");
        let mut set = FactSet::default();
        let value = "x".repeat(MAX_FACT_VALUE_BYTES);
        let long = format!("{value}x");
        assert_eq!(set.set_value(&a, FactKind::Token, "t", &long), Err(FactRefused::TooLong));
        let name = "x".repeat(MAX_FACT_NAME_BYTES + 1);
        assert_eq!(set.set_value(&a, FactKind::Token, &name, "1"), Err(FactRefused::TooLong));
        let mut count = 0;
        while set.set_value(&a, FactKind::Token, &count.to_string(), &value).is_ok() {
            count += 1;
        }
        assert_eq!(count, MAX_OWN_BYTES / MAX_FACT_VALUE_BYTES - 1);
        assert_eq!(set.set_value(&a, FactKind::Token, "t", &value), Err(FactRefused::Full));
        assert!(set.end(&a, FactKind::Token, "0"));
        assert_eq!(set.set_value(&a, FactKind::Token, "t", &value), Ok(true));
        let stamp = FactStamp { clock: MAX_CLOCK, node: a.clone() };
        set.merge_one(FactKind::Config, "", Fact { stamp, state: FactState::Holds("".into()) });
        assert_eq!(set.set_value(&a, FactKind::Config, "", "1"), Err(FactRefused::Clock));
        assert!(set.end(&a, FactKind::Token, "1"));
    }

    fn hash(digit: char) -> String {
        std::iter::repeat_n(digit, 64).collect()
    }

    #[test]
    fn config_rolls_back_one_version_at_a_time() {
        let a = node("a");
        let mut fact = None;
        for digit in ['1', '2', '3'] {
            fact = Some(ConfigFact::applied(fact, hash(digit), &a, "admin", 5));
        }
        let fact = fact.unwrap();
        assert_eq!((fact.now.version, &fact.now.hash), (3, &hash('3')));
        let back = fact.rolled_back("admin", 6).unwrap();
        assert_eq!((back.now.version, &back.now.hash), (4, &hash('2')));
        let back = back.rolled_back("admin", 7).unwrap();
        assert_eq!((back.now.version, &back.now.hash), (5, &hash('1')));
        assert_eq!(back.clone().rolled_back("admin", 8), None);
        let mut long = back;
        for _ in 0..30 {
            long = ConfigFact::applied(Some(long), hash('4'), &a, "admin", 9);
        }
        assert_eq!(long.earlier.len(), MAX_EARLIER);
        let mut facts = FactSet::default();
        facts.set_value(&a, FactKind::Config, "", &long.value()).unwrap();
        assert_eq!(ConfigFact::of(&facts), Some(long.clone()));
        assert_eq!(long.now.key(), format!("facts/config/a/{}", hash('4')));
    }

    #[test]
    fn path_traversal_and_reports_about_others_are_ignored() {
        let [a, b] = ["a", "b"].map(node);
        let mut facts = FactSet::default();
        let mut fact = ConfigFact::applied(None, hash('1'), &a, "admin", 5);
        fact.now.hash = "../../x".into();
        facts.set_value(&a, FactKind::Config, "", &fact.value()).unwrap();
        assert_eq!(ConfigFact::of(&facts), None);
        let version = ConfigFact::applied(None, hash('1'), &a, "admin", 5).now;
        let run = ConfigRun::of(&version, None, &[]);
        facts.set_value(&a, FactKind::ConfigRun, "b", &run.value()).unwrap();
        facts.set_value(&b, FactKind::ConfigRun, "c", &run.value()).unwrap();
        facts.set_value(&a, FactKind::ConfigRun, "a", &run.value()).unwrap();
        assert_eq!(ConfigRun::all(&facts), [("a".to_owned(), run)]);
    }
}
