//! Case-insensitive comparison of names, as lenient as the most lenient JSON reader.
//!
//! Some MCP servers match member names without regard to case (Go's `encoding/json`), and they differ in their rules.
//! Names are equal here if any such reader treats them as equal: Unicode full case folding through upper and lower
//! case, both Turkish letters `İ` and `ı`, and compatibility decomposition (NFKD; Swift compares by canonical
//! equivalence). ASCII names take a fast path.

use std::collections::{BTreeMap, BTreeSet};

use unicode_normalization::UnicodeNormalization;
use xxhash_rust::xxh3::xxh3_64;

/// Maximum length of a name that is folded without an allocation, in bytes.
const SHORT_NAME: usize = 64;

/// Whether some case-insensitive reader treats the two names as equal. True for identical names.
pub fn same(a: &str, b: &str) -> bool {
    if a.eq_ignore_ascii_case(b) {
        return true;
    }
    !(a.is_ascii() && b.is_ascii()) && folded(a).eq(folded(b))
}

/// Whether `name` differs from `known`, but some case-insensitive reader treats them as equal.
pub fn is_variant(name: &str, known: &str) -> bool {
    name != known && same(name, known)
}

/// Case-folded characters of the name.
pub fn folded(name: &str) -> impl Iterator<Item = char> {
    let decomposed = name.chars().map(undotted).nfkd();
    decomposed.flat_map(char::to_lowercase).flat_map(upper_and_back).nfkd()
}

/// Hash of [`folded`]: equal for names that are the [`same`].
pub fn hash(name: &str) -> u64 {
    if !name.is_ascii() {
        return xxh3_64(folded(name).collect::<String>().as_bytes());
    }
    let mut short = [0; SHORT_NAME];
    match short.get_mut(..name.len()) {
        Some(short) => {
            short.copy_from_slice(name.as_bytes());
            short.make_ascii_lowercase();
            xxh3_64(short)
        }
        None => xxh3_64(name.to_ascii_lowercase().as_bytes()),
    }
}

/// Set of names, indexed by [`hash`] so that a case variant of a name is found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoldedNames(BTreeMap<u64, Spellings>);

/// Names of a set that are equal by [`same`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Spellings {
    names: BTreeSet<Box<str>>,
    /// Names that are in every merged set with any of `names`.
    in_all: BTreeSet<Box<str>>,
}

impl FoldedNames {
    pub fn insert(&mut self, name: &str) {
        let known = self.0.entry(hash(name)).or_default();
        known.names.insert(name.into());
        known.in_all.insert(name.into());
    }

    /// Merges another set: a key is then a variant if it is a variant in either set.
    pub fn merge(&mut self, other: &Self) {
        for (hash, theirs) in &other.0 {
            match self.0.get_mut(hash) {
                Some(ours) => {
                    ours.names.extend(theirs.names.iter().cloned());
                    ours.in_all.retain(|name| theirs.in_all.contains(name));
                }
                None => drop(self.0.insert(*hash, theirs.clone())),
            }
        }
    }

    /// Whether exactly this name is in the set.
    pub fn contains(&self, name: &str) -> bool {
        self.0.get(&hash(name)).is_some_and(|known| known.names.contains(name))
    }

    /// Whether two names of the set are variants of each other.
    pub fn has_variants_within(&self) -> bool {
        self.0.values().any(|known| known.names.len() > 1)
    }

    /// Name in the set of which `key` is a variant, whether or not `key` itself is in the set.
    pub fn other_spelling(&self, key: &str) -> Option<&str> {
        let known = self.0.get(&hash(key))?;
        known.names.iter().map(|name| &**name).find(|name| *name != key)
    }

    /// The name of which `key` is a variant, given the [`hash`] of `key`. `None` if `key` itself is in the set, or in
    /// every merged set that has a variant of it.
    pub fn variant_of(&self, hash: u64, key: &str) -> Option<&str> {
        let known = self.0.get(&hash).filter(|known| !known.in_all.contains(key))?;
        known.names.iter().map(|name| &**name).find(|name| *name != key)
    }
}

/// Folds by upper case and then lower case: `ſ` and `s` have the same upper case, `K` and `k` the same lower case, and
/// the upper case of `ß` and `ﬁ` has two letters.
fn upper_and_back(c: char) -> impl Iterator<Item = char> {
    c.to_uppercase().flat_map(char::to_lowercase)
}

/// Maps `İ` to `i`: some readers lower it to `i`, others to `i` with a combining dot.
fn undotted(c: char) -> char {
    if c == '\u{130}' { 'i' } else { c }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_any_parser_treats_as_equal_are_equal() {
        for (name, known) in [
            ("name", "name"),
            ("Name", "name"),
            ("NAME", "name"),
            ("argument\u{17f}", "arguments"),
            ("ta\u{17f}\u{212a}", "task"),
            ("progre\u{df}Token", "progressToken"),
            ("PROGRE\u{1e9e}TOKEN", "progressToken"),
            ("re\u{17f}ult", "result"),
            ("\u{fb06}ructuredContent", "structuredContent"),
            ("\u{fb05}ructuredContent", "structuredContent"),
            ("con\u{fb01}g", "config"),
            ("ur\u{130}", "uri"),
            ("ur\u{131}", "uri"),
            ("\u{130}sError", "isError"),
            ("\u{3a3}\u{3c2}", "\u{3c3}\u{3c3}"),
            ("\u{ff50}\u{ff21}th", "path"),
            ("cafe\u{301}", "CAF\u{c9}"),
            ("\u{212b}", "\u{e5}"),
        ] {
            assert!(same(name, known) && same(known, name), "{name} {known}");
            assert_eq!(hash(name), hash(known), "{name} {known}");
            assert_eq!(is_variant(name, known), name != known, "{name} {known}");
        }
        for (name, other) in [
            ("name", "names"),
            ("n\u{e4}me", "name"),
            ("name\u{200b}", "name"),
            ("", "name"),
            ("na_me", "name"),
            ("\u{430}", "a"),
        ] {
            assert!(!same(name, other) && !is_variant(name, other), "{name} {other}");
            assert_ne!(hash(name), hash(other), "{name} {other}");
        }
    }

    #[test]
    fn merged_sets_accept_only_names_that_every_set_accepts() {
        let set = |names: &[&str]| {
            let mut set = FoldedNames::default();
            names.iter().for_each(|name| set.insert(name));
            set
        };
        let variant = |set: &FoldedNames, key| set.variant_of(hash(key), key).map(str::to_owned);
        let both = set(&["path", "Path", "other"]);
        assert_eq!(variant(&both, "Path"), None);
        let mut merged = both.clone();
        merged.merge(&set(&["path"]));
        assert_eq!(variant(&merged, "path"), None);
        assert_eq!(variant(&merged, "Path").as_deref(), Some("path"));
        assert_eq!(variant(&merged, "Other").as_deref(), Some("other"));
        assert_eq!(variant(&merged, "other"), None);
        merged.merge(&set(&["Path"]));
        assert_eq!(variant(&merged, "path").as_deref(), Some("Path"));
        assert!(merged.contains("path") && merged.has_variants_within());
        let spellings = ["path", "other", "Other"].map(|key| merged.other_spelling(key));
        assert_eq!(spellings, [Some("Path"), None, Some("other")]);
    }

    #[test]
    fn every_character_folds_like_its_upper_and_lower_case() {
        for c in ('\0'..=char::MAX).filter(|c| *c != '\u{130}') {
            let name = c.to_string();
            assert!(same(&name, &name.to_lowercase()), "{c:?}");
            assert!(same(&name, &name.to_uppercase()), "{c:?}");
        }
    }
}
