//! What one node says, as it is written: into its object in the store, and, of all nodes, into the memory. Pure.

use std::io;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::fact_set::{
    Fact, FactKind, FactSet, FactStamp, FactState, MAX_CLOCK, MAX_FACT_NAME_BYTES,
    MAX_FACT_VALUE_BYTES,
};
use super::sealed_object::SEAL_BYTES;
use crate::fleet::config::NodeName;

/// Most bytes of an object.
pub const MAX_FACT_OBJECT_BYTES: u64 = 32 << 20;
/// Most bytes of its text: sealed it is longer, and nobody reads one that is too long then.
pub(super) const MAX_FACT_TEXT_BYTES: usize = MAX_FACT_OBJECT_BYTES as usize - SEAL_BYTES;
/// Bytes of the text that are none of its facts': the form, the number, and what is around them.
pub(super) const BYTES_BESIDE_FACTS: usize = 64;
/// The version of the form.
const FORMAT: u32 = 1;

/// A fact as it is written. What a later version adds is passed over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WrittenFact {
    kind: Box<str>,
    name: Box<str>,
    clock: u64,
    /// None has ended.
    value: Option<Box<str>>,
    /// Which node has said it, where that is another one than the object's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    by: Option<Box<str>>,
}

impl WrittenFact {
    pub(super) fn of(kind: FactKind, name: &str, fact: &Fact) -> Self {
        let (kind, value) = (kind.as_str().into(), fact.value().map(Box::from));
        Self { kind, name: name.into(), clock: fact.stamp.clock, value, by: None }
    }

    /// The same in the object of `node`.
    fn of_object(kind: FactKind, name: &str, fact: &Fact, node: &NodeName) -> Self {
        let by = (fact.stamp.node != *node).then(|| fact.stamp.node.as_str().into());
        Self { by, ..Self::of(kind, name, fact) }
    }

    /// Adds it to a set as what `node` says, or whom it names; one of a kind that is not known says nothing.
    pub(super) fn add(self, node: &NodeName, set: &mut FactSet) -> Result<(), NotFacts> {
        let Self { kind, name, clock, value, by } = self;
        let by = by.map(|by| NodeName::parse(&by).ok_or(NotFacts::Bounds)).transpose()?;
        let node = by.unwrap_or_else(|| node.clone());
        let Some(kind) = FactKind::from_word(&kind) else { return Ok(()) };
        let length = value.as_ref().map_or(0, |value| value.len());
        if clock > MAX_CLOCK || name.len() > MAX_FACT_NAME_BYTES || length > MAX_FACT_VALUE_BYTES {
            return Err(NotFacts::Bounds);
        }
        let state = value.map_or(FactState::Ended, FactState::Holds);
        set.merge_one(kind, &name, Fact { stamp: FactStamp { clock, node }, state });
        Ok(())
    }
}

/// Bytes that a fact takes in the object of `node`, as it is written there, with what stands before the next one.
pub(super) fn written_bytes(kind: FactKind, name: &str, fact: &Fact, node: &NodeName) -> usize {
    let mut counted = CountedBytes(1);
    // Counting does not fail.
    let _ = serde_json::to_writer(&mut counted, &WrittenFact::of_object(kind, name, fact, node));
    counted.0
}

/// How many bytes would have been written.
struct CountedBytes(usize);

impl io::Write for CountedBytes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What a node says at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FactObject {
    /// Counts what it has put: an object with a lower number is an older one.
    pub number: u64,
    /// The facts: the node's, and those of nodes that it says again.
    pub facts: FactSet,
}

/// Why an object says nothing.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NotFacts {
    /// It cannot be read.
    #[error("it cannot be read: {0}")]
    Text(String),
    /// It was written by a later version.
    #[error("it has unknown format {0}")]
    Format(u32),
    /// A name, value or clock in it is beyond its bound.
    #[error("something in it is beyond its bound")]
    Bounds,
}

#[derive(Serialize, Deserialize)]
struct Contents {
    format: u32,
    number: u64,
    facts: Vec<WrittenFact>,
}

impl FactObject {
    /// As `node` writes it, before it is sealed.
    #[must_use]
    pub fn write(&self, node: &NodeName) -> Vec<u8> {
        let written = |(kind, name, fact): (FactKind, &str, &Fact)| {
            WrittenFact::of_object(kind, name, fact, node)
        };
        let facts = self.facts.iter().map(written);
        let contents = Contents { format: FORMAT, number: self.number, facts: facts.collect() };
        serde_json::to_vec(&contents).unwrap_or_default()
    }

    /// Reads what `node` has written.
    ///
    /// # Errors
    ///
    /// [`NotFacts`].
    pub fn read(text: &[u8], node: &NodeName) -> Result<Self, NotFacts> {
        let Contents { format, number, facts } =
            serde_json::from_slice(text).map_err(|error| NotFacts::Text(error.to_string()))?;
        if format != FORMAT {
            return Err(NotFacts::Format(format));
        }
        if number > MAX_CLOCK {
            return Err(NotFacts::Bounds);
        }
        let mut set = FactSet::default();
        for fact in facts {
            fact.add(node, &mut set)?;
        }
        Ok(Self { number, facts: set })
    }
}

#[cfg(test)]
mod tests {
    use super::super::fact_set::tests::node;
    use super::*;

    #[test]
    fn what_is_written_is_read_and_belongs_to_who_wrote_it() {
        let a = node("a");
        let mut facts = FactSet::default();
        facts.say(&a, FactKind::Token, "t", "{\"a\":1}").unwrap();
        facts.say(&a, FactKind::Token, "u", "2").unwrap();
        facts.end(&a, FactKind::Token, "u");
        let object = FactObject { number: 7, facts };
        assert_eq!(FactObject::read(&object.write(&a), &a), Ok(object.clone()));
        let as_b = FactObject::read(&object.write(&a), &node("b")).unwrap();
        assert_eq!(as_b.facts.said_by(&a).len(), 0);
        // What another says again stays that of who has said it.
        let again = FactObject::read(&object.write(&node("b")), &node("b"));
        assert_eq!(again, Ok(object.clone()));
        let odd = String::from_utf8(object.write(&node("b"))).unwrap();
        let odd = odd.replace("\"by\":\"a\"", "\"by\":\"../a\"");
        assert_eq!(FactObject::read(odd.as_bytes(), &node("b")), Err(NotFacts::Bounds));
    }

    #[test]
    fn as_many_bytes_are_counted_as_are_written() {
        let [a, b] = ["a", "b"].map(node);
        let mut facts = FactSet::default();
        for (at, value) in ["", "{\"a\":\"\\\\\"}", "\u{0}\u{1}", "é"].into_iter().enumerate() {
            let by = if at % 2 == 0 { &a } else { &b };
            facts.say(by, FactKind::Token, &format!("\"{at}\n"), value).unwrap();
        }
        facts.end(&b, FactKind::Token, "\"0\n");
        let number = u64::MAX;
        let counted = facts.iter().map(|(kind, name, fact)| written_bytes(kind, name, fact, &a));
        let counted: usize = counted.sum();
        let written = FactObject { number, facts: facts.clone() }.write(&a).len();
        let beside = FactObject { number, facts: FactSet::default() }.write(&a).len();
        // Behind the last one nothing stands.
        assert_eq!(written, beside + counted - 1);
        assert!(beside <= BYTES_BESIDE_FACTS);
    }

    #[test]
    fn what_is_beyond_its_bounds_or_of_a_later_version_is_told() {
        let a = node("a");
        let read = |text: &str| FactObject::read(text.as_bytes(), &a);
        let fact = |clock: u64, name: &str| {
            format!(
                r#"{{"format":1,"number":1,"facts":[{{"kind":"token","name":"{name}","clock":{clock},"value":null}}]}}"#
            )
        };
        assert_eq!(read(&fact(1, "t")).unwrap().facts.len(), 1);
        assert_eq!(read(&fact(u64::MAX, "t")), Err(NotFacts::Bounds));
        assert_eq!(read(&fact(1, &"x".repeat(MAX_FACT_NAME_BYTES + 1))), Err(NotFacts::Bounds));
        assert_eq!(read(r#"{"format":2,"number":1,"facts":[]}"#), Err(NotFacts::Format(2)));
        for text in ["", "{}", "[]", r#"{"format":1,"number":-1,"facts":[]}"#] {
            assert!(matches!(read(text), Err(NotFacts::Text(_))), "{text}");
        }
        let later = fact(1, "t").replace("\"token\"", "\"of a later version\"");
        assert!(read(&later).unwrap().facts.is_empty());
    }
}
