//! What the operator says of tools, by name or pattern; the most specific one wins.

use std::collections::BTreeMap;

use serde::Deserialize;

/// A tool's name, or a pattern in which `*` stands for any run of characters, none included.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "Box<str>")]
pub struct Pattern(Box<str>);

impl From<Box<str>> for Pattern {
    fn from(text: Box<str>) -> Self {
        Self(text)
    }
}

impl Pattern {
    /// The pattern as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// True if the whole of `name` fits.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        let mut pieces = self.0.split('*');
        let Some(mut rest) = pieces.next().and_then(|head| name.strip_prefix(head)) else {
            return false;
        };
        let Some(tail) = pieces.next_back() else { return rest.is_empty() };
        for piece in pieces {
            let Some((_, after)) = rest.split_once(piece) else { return false };
            rest = after;
        }
        rest.ends_with(tail)
    }

    /// Orders patterns from vague to exact: a name before every pattern, then the one with more
    /// letters; the text breaks ties, so that the order never depends on the file's.
    fn specificity(&self) -> (bool, usize, &str) {
        let stars = self.0.matches('*').count();
        (stars == 0, self.0.len() - stars, &self.0)
    }
}

/// What the operator says of tools, by name or pattern; in the config an object whose keys are
/// the patterns.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(from = "BTreeMap<Box<str>, T>", bound = "T: Deserialize<'de>")]
pub struct Rules<T>(Vec<(Pattern, T)>);

impl<T> Default for Rules<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> From<BTreeMap<Box<str>, T>> for Rules<T> {
    fn from(map: BTreeMap<Box<str>, T>) -> Self {
        let mut rules: Vec<_> = map.into_iter().map(|(key, rule)| (Pattern(key), rule)).collect();
        rules.sort_by(|(a, _), (b, _)| a.specificity().cmp(&b.specificity()));
        Self(rules)
    }
}

impl<T> Rules<T> {
    /// The rules that apply to the tool called `name`, the most specific one last.
    pub fn matching<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a T> {
        self.0.iter().filter(|(pattern, _)| pattern.matches(name)).map(|(_, rule)| rule)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Every pattern and its rule, the vaguest first.
    pub fn iter(&self) -> impl Iterator<Item = (&Pattern, &T)> {
        self.0.iter().map(|(pattern, rule)| (pattern, rule))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, name, fits) in [
            ("get", "get", true),
            ("get", "gets", false),
            ("get", "forget", false),
            ("get_*", "get_", true),
            ("get_*", "get_a", true),
            ("*", "", true),
            ("*_all", "drop_all", true),
            ("*_all", "drop_all_", false),
            ("a*b*c", "abc", true),
            ("a*b*c", "a__b__c", true),
            ("a*b*c", "acb", false),
            ("a*a", "a", false),
            ("**x", "xx", true),
            ("a*é*", "aé", true),
        ] {
            assert_eq!(Pattern::from(Box::from(pattern)).matches(name), fits, "{pattern} {name}");
        }
    }
}
