//! What a node's object says: all that the node itself does, and then, as far as there is room, what others have said that it
//! says again. Pure, and done of a set that others may look at meanwhile: it goes through all facts.
//!
//! Room is measured as it is written: text that is full of quotes takes up to twice as many bytes in the object, and one that is
//! too long is read by nobody. So what is said again is what is left out, whole authors of it, and never what the node itself
//! says: a revocation goes out whatever else there is.

use std::collections::{BTreeMap, BTreeSet};

use super::fact_object::{BYTES_BESIDE_FACTS, MAX_FACT_TEXT_BYTES, written_bytes};
use super::fact_set::FactSet;
use crate::fleet::config::NodeName;

/// Whose facts an object is to have.
#[derive(Clone, Debug)]
pub(super) struct FactSaying {
    /// The node's own.
    pub(super) own: NodeName,
    /// And these, said again.
    pub(super) again: BTreeSet<NodeName>,
}

/// What it has then.
#[derive(Clone, Debug)]
pub(super) struct SaidFacts {
    pub(super) facts: FactSet,
    /// Those for whose facts there was no room.
    pub(super) left_out: BTreeSet<NodeName>,
}

impl FactSaying {
    /// What it says of what is in `set`.
    pub(super) fn of(&self, set: &FactSet) -> SaidFacts {
        if self.again.is_empty() {
            return SaidFacts { facts: set.said_by(&self.own), left_out: BTreeSet::new() };
        }
        let mut bytes: BTreeMap<&NodeName, usize> = BTreeMap::new();
        for (kind, name, fact) in set.iter() {
            let author = &fact.stamp.node;
            if *author == self.own || self.again.contains(author) {
                *bytes.entry(author).or_default() += written_bytes(kind, name, fact, &self.own);
            }
        }
        let bytes_of = |author: &NodeName| bytes.get(author).copied().unwrap_or_default();
        let mut room = MAX_FACT_TEXT_BYTES.saturating_sub(BYTES_BESIDE_FACTS + bytes_of(&self.own));
        let (mut authors, mut left_out) = (BTreeSet::from([&self.own]), BTreeSet::new());
        for author in &self.again {
            match room.checked_sub(bytes_of(author)) {
                Some(rest) => {
                    room = rest;
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
        SaidFacts { facts, left_out }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fact_object::FactObject;
    use super::super::fact_set::tests::node;
    use super::super::fact_set::{FactKind, MAX_FACT_VALUE_BYTES, MAX_OWN_BYTES, walked};
    use super::*;

    /// Values as long as they may be, as many as a node may say.
    fn say(set: &mut FactSet, by: &NodeName, what: &str) {
        let value = what.repeat(MAX_FACT_VALUE_BYTES / what.len());
        for at in 0..MAX_OWN_BYTES / MAX_FACT_VALUE_BYTES - 1 {
            let name = format!("{}/{at}", by.as_str());
            assert_eq!(set.say(by, FactKind::Token, &name, &value), Ok(true));
        }
    }

    #[test]
    fn what_is_said_again_leaves_room_for_what_the_node_says_itself() {
        let [own, quoted, plain] = ["own", "gone-1", "gone-2"].map(node);
        let mut set = FactSet::default();
        say(&mut set, &own, "x");
        // As it is written it has nearly twice as many bytes as the bound of what one node says.
        say(&mut set, &quoted, "\"");
        for at in 0..1000 {
            set.say(&plain, FactKind::Leave, &at.to_string(), "{}").unwrap();
        }
        set.end(&own, FactKind::Token, "own/0");
        let again = BTreeSet::from([quoted.clone(), plain.clone()]);
        let before = walked::count();
        let said = FactSaying { own: own.clone(), again }.of(&set);
        assert!(walked::count() - before <= 2 * set.len() as u64, "however many are said again");
        assert_eq!(said.facts.said_by(&own), set.said_by(&own));
        assert_eq!(said.facts.said_by(&plain), set.said_by(&plain));
        assert_eq!(said.facts.said_by(&quoted).len(), 0);
        assert_eq!(said.left_out, BTreeSet::from([quoted.clone()]));
        let written = FactObject { number: u64::MAX, facts: said.facts }.write(&own);
        assert!(written.len() <= MAX_FACT_TEXT_BYTES, "{}", written.len());
        // Where there is room for all, all of it is said.
        let saying = FactSaying { own: plain.clone(), again: BTreeSet::from([quoted.clone()]) };
        let said = saying.of(&set);
        assert_eq!(said.left_out.len(), 0);
        assert_eq!(said.facts.said_by(&quoted).len(), set.said_by(&quoted).len());
        let written = FactObject { number: u64::MAX, facts: said.facts }.write(&plain);
        assert!(written.len() <= MAX_FACT_TEXT_BYTES, "{}", written.len());
    }
}
