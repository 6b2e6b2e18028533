//! The first objects of a listing, so many and no more, in whatever order they come; and how many there are behind them. Pure.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use super::{ListedObject, ListedPart};

/// The first objects of a listing, while it comes.
#[derive(Default)]
pub(super) struct KeptPart {
    most: usize,
    count: u64,
    /// What is not behind this key is left out.
    after: String,
    kept: BTreeMap<String, ListedObject>,
    more: u64,
    last: Option<String>,
    /// An object came whose key is before that of another one: the first ones are known when all have come.
    is_unordered: bool,
}

impl KeptPart {
    /// The first `most` behind a key. How many there are behind them is counted up to `count`, and at least that there are some.
    pub(super) fn behind(after: &str, most: usize, count: u64) -> Self {
        Self { most, count: count.max(1), after: after.to_owned(), ..Self::default() }
    }

    /// The same of a listing in no order: all of it is to be looked at.
    pub(super) fn in_no_order(self) -> Self {
        Self { is_unordered: true, ..self }
    }

    /// One more; breaks off when enough is known.
    pub(super) fn add(&mut self, object: ListedObject) -> ControlFlow<()> {
        if object.key <= self.after {
            return ControlFlow::Continue(());
        }
        if self.last.as_ref().is_none_or(|last| *last < object.key) {
            self.last = Some(object.key.clone());
        } else {
            self.is_unordered = true;
        }
        if !self.is_unordered && self.kept.len() >= self.most {
            self.more += 1;
            return match self.more < self.count {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            };
        }
        self.kept.insert(object.key.clone(), object);
        if self.kept.len() > self.most {
            self.kept.pop_last();
            self.more += 1;
        }
        ControlFlow::Continue(())
    }

    /// Whether all that was asked for is before this key, and more than that.
    pub(super) fn is_full_before(&self, key: &str) -> bool {
        let last = self.kept.last_key_value().map(|(last, _)| last.as_str());
        self.more > 0 && last.is_some_and(|last| last < key)
    }

    /// What was kept.
    pub(super) fn listed(self) -> ListedPart {
        let objects = self.kept.into_values().collect();
        ListedPart { objects, more: self.more, last: self.last }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(key: &str) -> ListedObject {
        ListedObject { key: key.to_owned(), size: 1, state: "".into() }
    }

    /// What was kept, how many more there are, the last, and how many were looked at.
    fn part(keys: &[&str], most: usize, count: u64) -> (Vec<String>, u64, Option<String>, usize) {
        let mut part = KeptPart::behind("", most, count);
        let mut seen = 0;
        for key in keys {
            seen += 1;
            if part.add(object(key)).is_break() {
                break;
            }
        }
        let ListedPart { objects, more, last } = part.listed();
        (objects.into_iter().map(|object| object.key).collect(), more, last, seen)
    }

    #[test]
    fn a_listing_ends_behind_what_was_asked_for_and_what_is_counted() {
        let all = ["a", "b", "c", "d", "e", "f"];
        let kept = vec!["a".to_owned(), "b".to_owned()];
        assert_eq!(part(&all, 2, 1), (kept.clone(), 1, Some("c".into()), 3));
        assert_eq!(part(&all, 2, 3), (kept.clone(), 3, Some("e".into()), 5));
        assert_eq!(part(&all, 2, 100), (kept.clone(), 4, Some("f".into()), 6));
        assert_eq!(part(&all[..2], 2, 1), (kept.clone(), 0, Some("b".into()), 2));
        // In another order all have to be looked at.
        let other = ["e", "f", "a", "d", "b", "c"];
        assert_eq!(part(&other, 3, 2).0, ["a", "b", "c"]);
        assert_eq!(part(&other, 3, 2).1, 3);
    }

    #[test]
    fn of_a_listing_in_no_order_the_first_behind_a_key_are_kept() {
        let mut part = KeptPart::behind("c", 2, 1).in_no_order();
        for key in ["f", "a", "d", "c", "e", "b", "g"] {
            assert!(part.add(object(key)).is_continue(), "{key}");
        }
        assert!(part.is_full_before("f") && !part.is_full_before("e"));
        let ListedPart { objects, more, last } = part.listed();
        let keys: Vec<_> = objects.iter().map(|object| &*object.key).collect();
        assert_eq!((keys, more, last.as_deref()), (vec!["d", "e"], 2, Some("g")));
    }
}
