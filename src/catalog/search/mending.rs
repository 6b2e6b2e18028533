//! Words of a query that nobody knows, taken for those that they may be misspelt from.
//!
//! The words of the tools and of the thesaurus are looked through; which of them are near is `spelling`'s to say.

use std::collections::BTreeSet;

use super::asked::{Bearing, ParsedQuery};
use super::index::Index;
use super::lexicon::concept_key;
use super::spelling;
use super::thesaurus::Concept;

/// What a word with one typing error is worth, and with more.
const MISSPELT: [f32; 2] = [0.9, 0.7];

/// Most words of a query that are taken for misspelt, and most words that one may be misspelt from.
const MAX_MENDED: usize = 6;
const MAX_NEAR: usize = 8;

impl Index {
    /// Takes words that nobody knows for those that they may be misspelt from.
    pub(super) fn mend(&self, asked: &mut ParsedQuery) {
        let language = asked.language;
        let unknown = asked.terms.iter_mut().filter_map(|term| {
            let most = spelling::allowed(term.word.as_deref()?)?;
            let is_known =
                !term.meanings.is_empty() || term.own.iter().any(|key| self.having(*key) > 0.0);
            let misspelt = term.word.take_if(|_| !is_known)?;
            Some((misspelt, most, term))
        });
        for (misspelt, most, term) in unknown.take(MAX_MENDED) {
            let Some((errors, near)) = self.near(&misspelt, most) else { continue };
            let thesaurus = &self.lexicon.thesaurus;
            let meanings: BTreeSet<Concept> =
                near.iter().flat_map(|word| thesaurus.meanings(word, language)).collect();
            let meanings: Vec<_> = meanings.into_iter().collect();
            asked.effect = asked.effect.or_else(|| term.wants(thesaurus.effect(&meanings)));
            term.own = near.iter().map(|word| self.lexicon.key(word)).collect();
            term.bearing = Bearing::of(thesaurus, &meanings);
            term.meanings = meanings.into_iter().map(concept_key).collect();
            term.worth = MISSPELT.get(errors.saturating_sub(1)).copied().unwrap_or_default();
        }
    }

    /// The words that one may be misspelt from by at most so many errors, and by how many: those with the fewest. They
    /// begin as it does, or with its second letter, where the two changed places.
    fn near(&self, misspelt: &str, most: usize) -> Option<(usize, Vec<String>)> {
        let mut letters = misspelt.chars();
        let (first, second) = (letters.next(), letters.next());
        let segments = self.segments.iter().flat_map(|segment| segment.near(misspelt, most));
        let near = segments.chain(self.lexicon.near(misspelt, most));
        let begins = |(_, word): &(usize, &str)| {
            let mut letters = word.chars();
            let own = (letters.next(), letters.next());
            own.0 == first || own == (second, first)
        };
        let near: BTreeSet<(usize, &str)> = near.filter(begins).collect();
        let (errors, _) = *near.first()?;
        let least = near.into_iter().take_while(|found| found.0 == errors);
        Some((errors, least.map(|(_, word)| word.to_owned()).take(MAX_NEAR).collect()))
    }
}
