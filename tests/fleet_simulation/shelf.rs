//! History of the store as readers may see it, so that listings and reads can be stale, and tampering with its objects.

use std::collections::BTreeMap;

use mcpproxy_fleet::chain::follow::{SeenObject, SeenPart};
use mcpproxy_fleet::segment::SegmentName;

use super::random::Random;
use super::store::Object;

/// Folder of the node's segments.
pub const FOLDER: &str = "nodes/a/segments";
/// Maximum age of a correct but stale listing or read. Less than the time after which a follower accepts an apparent
/// fault.
pub const MAX_LAG_MS: u64 = 4_500;

/// Content of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Segment as sealed, possibly under another name.
    Sealed(Object),
    /// Segment whose records were changed; its checkpoint has no valid signature.
    Altered(Object),
    /// Arbitrary bytes.
    Junk,
}

#[derive(Clone, Debug)]
struct Version {
    from: u64,
    /// Time of replacement or removal.
    until: u64,
    content: Content,
}

/// Past and present content of all keys.
#[derive(Clone, Debug, Default)]
pub struct Shelf {
    pub now: u64,
    keys: BTreeMap<String, Vec<Version>>,
    /// Content shown while another store is in place.
    instead: Option<Box<Self>>,
}

/// Segment name of a key.
pub fn name_of(key: &str) -> Option<SegmentName> {
    SegmentName::parse(key.strip_prefix(FOLDER)?.strip_prefix('/')?)
}

pub fn key_of(name: &SegmentName) -> String {
    format!("{FOLDER}/{name}")
}

impl Shelf {
    /// Replaces the store by an empty one.
    pub fn swap(&mut self) {
        self.instead = Some(Box::default());
    }

    /// Restores this store.
    pub fn come_back(&mut self) {
        self.instead = None;
    }

    /// True while another store is in place.
    pub fn is_away(&self) -> bool {
        self.instead.is_some()
    }

    /// Writes to the other store.
    pub fn put_instead(&mut self, key: String, content: Content) {
        if let Some(other) = &mut self.instead {
            other.now = self.now;
            other.put(key, content);
        }
    }

    pub fn put(&mut self, key: String, content: Content) {
        let now = self.now;
        let versions = self.keys.entry(key).or_default();
        if let Some(last) = versions.last_mut().filter(|last| last.until == u64::MAX) {
            if last.content == content {
                return;
            }
            last.until = now;
        }
        versions.push(Version { from: now, until: u64::MAX, content });
    }

    pub fn remove(&mut self, key: &str) {
        let last = self.keys.get_mut(key).and_then(|versions| versions.last_mut());
        if let Some(last) = last.filter(|last| last.until == u64::MAX) {
            last.until = self.now;
        }
    }

    /// Content of a key at a time.
    pub fn at(&self, key: &str, time: u64) -> Option<&Content> {
        if let Some(other) = &self.instead {
            return other.at(key, self.now);
        }
        let mut versions = self.keys.get(key)?.iter().rev();
        let version = versions.find(|it| it.from <= time && time < it.until)?;
        Some(&version.content)
    }

    /// Lists at most `most` objects after `after`. `when` returns the time from which the state of an object is taken.
    pub fn listing(&self, after: &str, most: usize, when: &mut dyn FnMut() -> u64) -> SeenPart {
        if let Some(other) = &self.instead {
            return other.listing(after, most, &mut || self.now);
        }
        let mut part = SeenPart::default();
        let behind = (std::ops::Bound::Excluded(after), std::ops::Bound::Unbounded);
        for (key, versions) in self.keys.range::<str, _>(behind) {
            let time = when();
            if !versions.iter().any(|it| it.from <= time && time < it.until) {
                continue;
            }
            let name = name_of(key);
            part.newest = name.as_ref().map_or(0, |name| name.last);
            if part.objects.len() < most {
                part.objects.push(SeenObject { key: key.clone(), name, size: 1000 });
            } else {
                part.more += 1;
            }
        }
        part
    }

    /// Current objects, and since when they exist without interruption.
    pub fn there(&self) -> impl Iterator<Item = (&str, &Content, u64)> {
        self.keys.iter().filter_map(|(key, versions)| {
            let last = versions.last().filter(|last| last.until == u64::MAX)?;
            let mut since = last.from;
            for before in versions.iter().rev().skip(1) {
                if before.until != since {
                    break;
                }
                since = before.from;
            }
            Some((&**key, &last.content, since))
        })
    }

    /// Current objects whose names claim records in a range, in key order.
    pub fn within(&self, first: u64, last: u64) -> Vec<(String, Content)> {
        if let Some(other) = &self.instead {
            return other.within(first, last);
        }
        let is_in = |key: &str| name_of(key).is_some_and(|it| first <= it.first && it.last <= last);
        let there = self.there().filter(|(key, ..)| is_in(key));
        there.map(|(key, content, _)| (key.to_owned(), content.clone())).collect()
    }

    /// Alters, swaps or adds an object.
    pub fn harm(&mut self, random: &mut Random) {
        if self.is_away() {
            return;
        }
        let keys: Vec<String> = self.there().map(|(key, ..)| key.to_owned()).collect();
        let one = |random: &mut Random| keys.get(random.below(keys.len() as u64) as usize).cloned();
        let Some(key) = one(random) else { return };
        let own = self.at(&key, self.now).cloned();
        let (key, content) = match (random.below(5), own) {
            (0 | 1, Some(Content::Sealed(object))) => (key, Content::Altered(object)),
            (2, _) => {
                let other = one(random).and_then(|other| self.at(&other, self.now).cloned());
                (key, other.unwrap_or(Content::Junk))
            }
            (3, _) => (format!("{FOLDER}/date=2026-01-01/notes.txt"), Content::Junk),
            (4, _) => {
                let first = random.between(1, 200);
                let last = first + random.below(100);
                let name = format!("{first:020}-{last:020}-0123456789abcdef.parquet");
                (format!("{FOLDER}/date=2026-01-0{}/{name}", random.between(1, 3)), Content::Junk)
            }
            _ => (key, Content::Junk),
        };
        self.put(key, content);
    }
}
