//! From words to what is compared: the same for every index.
//!
//! A word is compared by a hash of its stem, and by one of each concept that it means (`super::thesaurus`), so that an
//! index holds no words but those by which typing errors are mended.

use std::fmt;

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::spelling;
use super::thesaurus::{Concept, ENGLISH, RunPart, Thesaurus};
use super::words::Script;

/// What hashes of concepts begin with, so that they are no word's.
const OF_CONCEPTS: u64 = 0x6d63_7074;

/// What a word, or what it means, is compared by.
pub(super) type WordKey = u64;

/// Stems, meanings and spellings of words.
pub struct Lexicon {
    pub(super) thesaurus: Thesaurus,
    /// The words of the thesaurus, for typing errors.
    spellings: Vec<(u32, Box<str>)>,
}

impl fmt::Debug for Lexicon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lexicon({} concepts)", self.thesaurus.concepts())
    }
}

impl Default for Lexicon {
    fn default() -> Self {
        Self::of(Thesaurus::new())
    }
}

impl Lexicon {
    pub(super) fn of(thesaurus: Thesaurus) -> Self {
        let spellings = thesaurus.spellings();
        let spellings = spellings.map(|word| (spelling::letters(word), word.into())).collect();
        Self { thesaurus, spellings }
    }

    /// What a word of a tool is compared by: none for one that says nothing.
    pub(super) fn keys(&self, word: &str, script: Script) -> Vec<WordKey> {
        match script {
            Script::Spaced if self.thesaurus.silent(word) => Vec::new(),
            Script::Spaced => {
                let meanings = self.thesaurus.meanings(word, ENGLISH).into_iter().map(concept_key);
                std::iter::once(self.key(word)).chain(meanings).collect()
            }
            Script::Unspaced => {
                let found = self.thesaurus.unspaced(word).into_iter();
                let means = found.flat_map(|found| match found {
                    RunPart::Means(concepts) => concepts,
                    RunPart::Unknown(_) => Vec::new(),
                });
                pairs(word).into_iter().chain(means.map(concept_key)).collect()
            }
        }
    }

    /// What a word is compared by, whatever it means.
    pub(super) fn key(&self, word: &str) -> WordKey {
        xxh3_64(self.thesaurus.stem(word).as_bytes())
    }

    /// The words of the thesaurus that are so near to one.
    pub(super) fn near<'a>(
        &'a self,
        word: &'a str,
        errors: usize,
    ) -> impl Iterator<Item = (usize, &'a str)> {
        let of_word = spelling::letters(word);
        let near = self.spellings.iter();
        let near = near.filter(move |(letters, _)| spelling::could_be(of_word, *letters, errors));
        near.filter_map(move |(_, known)| Some((spelling::errors(word, known, errors)?, &**known)))
    }
}

/// What a concept is compared by.
pub(super) fn concept_key(concept: Concept) -> WordKey {
    xxh3_64_with_seed(&concept.to_le_bytes(), OF_CONCEPTS)
}

/// What a run without blanks is compared by: its pairs of characters, or the only one.
pub(super) fn pairs(run: &str) -> Vec<WordKey> {
    let chars: Vec<char> = run.chars().collect();
    let pairs = chars.windows(2.min(chars.len().max(1)));
    pairs.map(|pair| xxh3_64(pair.iter().collect::<String>().as_bytes())).collect()
}
