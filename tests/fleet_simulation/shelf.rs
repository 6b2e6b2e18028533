//! What who reads the store may be shown: each key's contents and since when, so that a listing or a read can be older than
//! the store is; and what a stranger does to it.

use std::collections::BTreeMap;

use mcpproxy::fleet::following::{SeenObject, SeenPart};
use mcpproxy::fleet::segment::SegmentName;

use super::random::Random;
use super::store::Object;

/// The folder of the node's segments.
pub const FOLDER: &str = "nodes/a/segments";
/// A listing or a read is older than this by nobody's fault: less than what looks wrong is given to settle.
pub const MAX_LAG_MS: u64 = 4_500;

/// What lies under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A segment as its node sealed it, perhaps under the name of another.
    Sealed(Object),
    /// One whose records were changed: what it says of itself is not signed.
    Altered(Object),
    /// Bytes.
    Junk,
}

#[derive(Clone, Debug)]
struct Version {
    from: u64,
    /// When it was replaced or removed.
    until: u64,
    content: Content,
}

/// What lies under all keys, and did.
#[derive(Clone, Debug, Default)]
pub struct Shelf {
    pub now: u64,
    keys: BTreeMap<String, Vec<Version>>,
}

/// The name of the segment that a key says.
pub fn name_of(key: &str) -> Option<SegmentName> {
    SegmentName::parse(key.strip_prefix(FOLDER)?.strip_prefix('/')?)
}

pub fn key_of(name: &SegmentName) -> String {
    format!("{FOLDER}/{name}")
}

impl Shelf {
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

    /// What was under a key at that time.
    pub fn at(&self, key: &str, time: u64) -> Option<&Content> {
        let mut versions = self.keys.get(key)?.iter().rev();
        let version = versions.find(|it| it.from <= time && time < it.until)?;
        Some(&version.content)
    }

    /// What is after `after`, at most `most` of it; `when` is the time as which the next object is looked at.
    pub fn listing(&self, after: &str, most: usize, mut when: impl FnMut() -> u64) -> SeenPart {
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

    /// What is there now, and since when without a break.
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

    /// A stranger changes, swaps or brings something.
    pub fn harm(&mut self, random: &mut Random) {
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
