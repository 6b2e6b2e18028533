//! Where a reader of a fleet's records is: how far it has come in the log of each node, as it is sent to it and comes back when
//! it goes on, at whatever node. Pure.
//!
//! ```text
//! place     since (;node=number)*            1763942400000;a=120;b=7
//! ```
//!
//! One record's id cannot say it: the nodes' records come as they are heard of, not in the order of time.

use std::collections::BTreeMap;
use std::fmt;

use super::config::NodeName;

/// Most bytes of a place as it is sent: a client keeps so much of an event's id. Of nodes that do not fit into it the records
/// come again.
pub const MAX_PLACE_BYTES: usize = 4_000;

/// How far a reader has come in the log of each node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchPlace {
    since: u64,
    after: BTreeMap<NodeName, u64>,
}

impl WatchPlace {
    /// At the records that were stored at this time, in milliseconds since 1970, on any node.
    #[must_use]
    pub fn since(since: u64) -> Self {
        Self { since, after: BTreeMap::new() }
    }

    /// Reads what [`fmt::Display`] writes; `None` for all else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() > MAX_PLACE_BYTES {
            return None;
        }
        let mut parts = text.split(';');
        let mut place = Self::since(number(parts.next()?)?);
        for part in parts {
            let (node, after) = part.split_once('=')?;
            let known = place.after.insert(NodeName::parse(node)?, number(after)?);
            if known.is_some() {
                return None;
            }
        }
        Some(place)
    }

    /// When the records begin of a node whose log it has not come into, in milliseconds since 1970.
    #[must_use]
    pub fn begins(&self) -> u64 {
        self.since
    }

    /// The number of the last record that was read of that node's log.
    #[must_use]
    pub fn after(&self, node: &str) -> Option<u64> {
        self.after.get(&NodeName::parse(node)?).copied()
    }

    /// The nodes whose logs it has come into.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeName> {
        self.after.keys()
    }

    /// It was read up to the record with this number; never back.
    pub fn moves(&mut self, node: &str, after: u64) {
        if let Some(node) = NodeName::parse(node) {
            let at = self.after.entry(node).or_default();
            *at = after.max(*at);
        }
    }

    /// That node's log is another than it was.
    pub fn forgets(&mut self, node: &str) {
        if let Some(node) = NodeName::parse(node) {
            self.after.remove(&node);
        }
    }
}

impl fmt::Display for WatchPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.since.to_string();
        for (node, after) in &self.after {
            let part = format!(";{}={after}", node.as_str());
            if text.len() + part.len() <= MAX_PLACE_BYTES {
                text += &part;
            }
        }
        f.write_str(&text)
    }
}

/// A number in the one way that it is written.
fn number(text: &str) -> Option<u64> {
    let number: u64 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_place_is_read_as_it_was_sent_and_nothing_else_is_one() {
        let mut place = WatchPlace::since(1_763_942_400_000);
        assert_eq!(WatchPlace::parse(&place.to_string()), Some(place.clone()));
        for (node, after) in [("b", 7), ("a", 120), ("a", 119), ("no node", 1)] {
            place.moves(node, after);
        }
        assert_eq!(place.to_string(), "1763942400000;a=120;b=7");
        assert_eq!(WatchPlace::parse("1763942400000;a=120;b=7"), Some(place.clone()));
        assert_eq!((place.after("a"), place.after("c")), (Some(120), None));
        place.forgets("a");
        assert_eq!((place.after("a"), place.begins()), (None, 1_763_942_400_000));
        for odd in [
            "",
            "1;",
            "1;a",
            "1;a=",
            "1;a=1;a=1",
            "01;a=1",
            "1;a=+1",
            "1;A=1",
            "1; a=1",
            "01ARZ3NDEKTSV4RRFFQ69G5FAV",
            &format!("1{}", ";a=1".repeat(2000)),
        ] {
            assert_eq!(WatchPlace::parse(odd), None, "{odd}");
        }
    }

    #[test]
    fn a_place_that_is_longer_than_any_that_is_sent_is_none() {
        let parts: String = (1000..1800).map(|at| format!(";n{at}={at}")).collect();
        let longest = format!("1{}", &parts[..MAX_PLACE_BYTES - MAX_PLACE_BYTES % 11]);
        assert!(WatchPlace::parse(&longest).is_some(), "{longest}");
        assert_eq!(WatchPlace::parse(&format!("1{parts}")), None);
    }

    #[test]
    fn what_does_not_fit_into_a_place_comes_again_and_nothing_is_left_out() {
        let mut place = WatchPlace::since(1);
        for at in 0..100 {
            place.moves(&format!("{}-{at}", "n".repeat(55)), u64::MAX);
        }
        let text = place.to_string();
        assert!(text.len() <= MAX_PLACE_BYTES && text.len() > MAX_PLACE_BYTES - 100);
        let read = WatchPlace::parse(&text).unwrap();
        assert!(read.nodes().count() > 40 && read.nodes().all(|it| place.after.contains_key(it)));
    }

    proptest! {
        #[test]
        fn any_text_is_a_place_that_is_written_the_same_or_none(text in "[0-9]{0,20}(;[ab]=[0-9]{1,3}){0,3}.?") {
            if let Some(place) = WatchPlace::parse(&text) {
                let again = WatchPlace::parse(&place.to_string());
                prop_assert_eq!(again, Some(place));
            }
        }
    }
}
