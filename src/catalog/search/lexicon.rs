//! From words to stems, and from stems to their synonyms: the same for every index.

use std::collections::HashMap;
use std::fmt;

use bm25::{DefaultTokenizer, Language, Tokenizer as _};

use super::synonyms::SYNONYMS;

/// The stems of words, and which of them mean much the same.
pub struct Lexicon {
    tokenizer: DefaultTokenizer,
    /// For each stem, the others of its groups.
    synonyms: HashMap<String, Vec<String>>,
}

impl fmt::Debug for Lexicon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lexicon({} stems with synonyms)", self.synonyms.len())
    }
}

impl Default for Lexicon {
    fn default() -> Self {
        let tokenizer = DefaultTokenizer::new(Language::English);
        let mut lexicon = Self { tokenizer, synonyms: HashMap::new() };
        for group in SYNONYMS {
            let stems = lexicon.stems(&group.join(" "));
            for stem in &stems {
                let others = stems.iter().filter(|other| *other != stem).cloned();
                lexicon.synonyms.entry(stem.clone()).or_default().extend(others);
            }
        }
        lexicon
    }
}

impl Lexicon {
    /// The stems that mean much the same as `stem`.
    pub(super) fn synonyms(&self, stem: &str) -> impl Iterator<Item = &String> {
        self.synonyms.get(stem).into_iter().flatten()
    }

    /// The stems of a text.
    pub(super) fn stems(&self, text: &str) -> Vec<String> {
        split_identifiers(text).split_whitespace().flat_map(|word| self.word(word)).collect()
    }

    /// The stems of one word: none for a stop word, several where it is written in another script.
    pub(super) fn word(&self, word: &str) -> Vec<String> {
        self.tokenizer.tokenize(word)
    }
}

/// `snake_case`, `kebab-case`, `camelCase` and `HTTPCase` as separate words.
pub(super) fn split_identifiers(text: &str) -> String {
    let mut split = String::with_capacity(text.len() + text.len() / 8);
    let mut before = ' ';
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let hump = c.is_uppercase()
            && (before.is_lowercase()
                || before.is_numeric()
                || (before.is_uppercase() && chars.peek().is_some_and(|next| next.is_lowercase())));
        if hump {
            split.push(' ');
        }
        split.push(if c.is_alphanumeric() || c == '\'' { c } else { ' ' });
        before = c;
    }
    split
}

/// An identifier or a query as lower-case words.
pub(super) fn plain(text: &str) -> String {
    split_identifiers(text.trim()).to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_split() {
        for (text, split) in [
            ("deleteRepo", "delete Repo"),
            ("delete_repo-now", "delete repo now"),
            ("HTTPServer", "HTTP Server"),
            ("parseURL", "parse URL"),
            ("file2Text", "file2 Text"),
        ] {
            assert_eq!(split_identifiers(text), split);
        }
    }
}
