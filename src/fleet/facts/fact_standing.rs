//! How the exchange of facts stands, and what is told of all that is wrong with it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::fact_reader::{FactFault, FactReader, SAID, object_key};
use super::sealed_object::NotOpened;

/// Most objects that are told to be passed over; of the others it is told how many they are.
pub(super) const MAX_FAULTS: usize = 64;
/// What was read longer ago than this is stale: revocations of other nodes may be missing.
const STALE: Duration = Duration::from_secs(20);

/// How the exchange stands.
#[derive(Clone, Debug, Default)]
pub struct FactStanding {
    /// Why the last round failed; `None` if it did not.
    pub failing: Option<String>,
    /// When the last one was done that did not.
    pub done: Option<Instant>,
    /// When the first was begun.
    pub began: Option<Instant>,
    /// What is wrong with objects, by their keys, or with all of them, by their folder.
    pub faults: BTreeMap<String, String>,
    /// True if the store says what this node says.
    pub published: bool,
    /// The nodes whose facts were read, and the numbers of their objects.
    pub nodes: BTreeMap<String, u64>,
}

impl FactStanding {
    /// For how long nothing could be read, where that is longer than it should be.
    #[must_use]
    pub fn stale(&self) -> Option<Duration> {
        let age = self.age()?;
        (age > STALE).then_some(age)
    }

    /// How long ago the last round was done that did not fail; `None` before the first was begun.
    #[must_use]
    pub fn age(&self) -> Option<Duration> {
        self.done.or(self.began).map(|at| at.elapsed())
    }
}

/// What is wrong with objects, by their keys: the first few, and how many more there are.
pub(super) fn told_faults(reader: &FactReader) -> BTreeMap<String, String> {
    // What cannot be opened any more, and is said by another node, is no fault.
    let is_fault = |(key, fault): &(&String, &FactFault)| {
        **fault != FactFault::Sealed(NotOpened::NotAuthentic) || !reader.is_said_again(key)
    };
    let of_objects = reader.faults().iter().filter(is_fault);
    let of_objects = of_objects.map(|(key, fault)| (key.clone(), fault));
    let no_room = FactFault::NoRoom;
    let left_out = reader.left_out().map(|node| (object_key(node), &no_room));
    let all: Vec<(String, &FactFault)> = of_objects.chain(left_out).collect();
    let rest = all.len().saturating_sub(MAX_FAULTS);
    let mut told = BTreeMap::new();
    for (key, fault) in all.into_iter().take(MAX_FAULTS) {
        tell(&mut told, key, &fault.to_string());
    }
    if rest > 0 {
        tell(&mut told, SAID.to_owned(), &format!("{rest} more objects are passed over"));
    }
    told
}

/// One more of what is wrong with an object.
fn tell(told: &mut BTreeMap<String, String>, key: String, fault: &str) {
    let told = told.entry(key).or_default();
    if !told.is_empty() {
        told.push_str("; ");
    }
    told.push_str(fault);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::fact_saying::SaidFacts;
    use super::super::fact_set::FactSet;
    use super::super::fact_set::tests::node;
    use super::super::fact_turns::ListedFacts;
    use super::*;

    #[test]
    fn each_author_for_whom_there_is_no_room_is_told_beside_what_else_is_wrong_with_its_object() {
        let mut reader = FactReader::new(node("a"), BTreeMap::new(), BTreeSet::new(), true);
        let [b, c] = ["b", "c"].map(node);
        let listed = ["b", "x"].map(|name| ListedFacts {
            key: format!("{SAID}/{name}"),
            size: 100 << 20,
            state: "1".into(),
        });
        reader.wanted(&listed, true, |_| false);
        let left_out = BTreeSet::from([b, c]);
        reader.puts_said(SaidFacts { facts: FactSet::default(), left_out });
        let told = told_faults(&reader);
        let no_room = FactFault::NoRoom.to_string();
        assert_eq!(told.len(), 3);
        assert_eq!(told["facts/said/c"], no_room);
        assert!(told["facts/said/b"].starts_with("it has 104857600 bytes"));
        assert!(told["facts/said/b"].ends_with(&format!("; {no_room}")));
        let left_out = (0..100).map(|at| node(&at.to_string())).collect();
        reader.puts_said(SaidFacts { facts: FactSet::default(), left_out });
        let told = told_faults(&reader);
        assert_eq!(told.len(), MAX_FAULTS + 1);
        assert_eq!(told[SAID], "38 more objects are passed over");
    }
}
