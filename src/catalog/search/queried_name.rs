//! Whether a query is a tool's name: as names are spelt, or by its words.

use xxhash_rust::xxh3::xxh3_64;

use super::lexicon::WordKey;
use super::segment::Traits;
use super::words::plain;

/// What a query may be the name of.
pub(super) struct QueriedName {
    /// Its words.
    words: WordKey,
    /// Whether it is spelt as names are, not as a text.
    is_identifier: bool,
    /// Whether it may be `server:tool`.
    is_qualified: bool,
}

/// Whether a query names a tool.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum NameFit {
    Not,
    /// Its words are those of the name.
    ByWords,
    /// It is spelt as a name, which nobody does by chance.
    AsSpelt,
}

impl QueriedName {
    pub(super) fn of(query: &str) -> Self {
        Self {
            words: xxh3_64(plain(query).as_bytes()),
            is_identifier: !query.trim().contains(char::is_whitespace),
            is_qualified: query.contains(':'),
        }
    }

    pub(super) fn fits(&self, traits: &Traits) -> NameFit {
        if traits.name == self.words {
            return if self.is_identifier { NameFit::AsSpelt } else { NameFit::ByWords };
        }
        match self.is_qualified && traits.qualified_name == self.words {
            true => NameFit::AsSpelt,
            false => NameFit::Not,
        }
    }
}
