//! Parsed queries: words and phrases with their meanings, the wanted effect (read, write, destroy), and correction of
//! misspelled words.

use std::collections::BTreeSet;

use super::segment::Index;
use super::thesaurus::{
    Concept, ConceptKind, Effect, Lexicon, RunPart, Thesaurus, WordKey, concept_key, pairs,
};
use super::tokenizer::{self, Script, words};

/// Maximum number of words of a query.
pub(super) const MAX_QUERY_WORDS: usize = 48;

/// Maximum number of terms up to which compounds are split.
const MAX_COMPOUNDS: usize = 16;

/// First words of a question.
const QUESTION: [&str; 18] = [
    "is", "are", "am", "was", "were", "has", "have", "had", "did", "does", "do", "ist", "sind",
    "hat", "habe", "est", "hay", "sono",
];

/// Words after "how" that turn the question into one about a state ("how is"), not about how to do something.
const BEING: [&str; 6] = ["is", "are", "am", "was", "were", "s"];

/// Conjunctions that introduce reported content or a relative clause. Such a clause does not request an action.
const THAT: [&str; 5] = ["that", "dass", "que", "che", "что"];

/// Articles and possessives. A word after one of them is a noun, even if it may be a verb elsewhere ("a link", "my copy").
const ARTICLES: [&str; 47] = [
    "a", "an", "the", "this", "these", "those", "my", "our", "your", "his", "her", "its", "their",
    "ein", "eine", "einen", "einem", "einer", "mein", "meine", "meinen", "meiner", "unser",
    "unsere", "el", "los", "las", "un", "una", "uno", "mi", "mis", "une", "mon", "ma", "mes", "um",
    "uma", "meu", "minha", "il", "gli", "mio", "mia", "du", "des", "del",
];

/// A search term: a word or phrase.
pub(super) struct QueryTerm {
    /// Spelling, for correction; `None` for phrases.
    pub(super) word: Option<String>,
    /// Keys of the term's own words, any of which matches.
    pub(super) own: Vec<WordKey>,
    pub(super) meanings: Vec<WordKey>,
    pub(super) bearing: Bearing,
    /// Weight; below 1 if the term was corrected.
    pub(super) worth: f32,
    /// Whether the term is in a clause that begins with "that".
    pub(super) reported: bool,
    /// Whether the term follows an article.
    named: bool,
}

impl QueryTerm {
    /// Effect wanted by this word. A word in a "that" clause wants no effect, and a word after an article can only want
    /// a read.
    pub(super) fn wants(&self, effect: Option<Effect>) -> Option<Effect> {
        effect.filter(|effect| !self.reported && (!self.named || *effect == Effect::Read))
    }
}

/// Specificity of a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bearing {
    /// A verb that many tools share.
    Verb,
    /// Specific.
    Thing,
    /// Part of unspaced text, ignored if it occurs in no tool.
    Part,
}

impl Bearing {
    /// Specificity of a word with these meanings.
    pub(super) fn of(thesaurus: &Thesaurus, meanings: &[Concept]) -> Self {
        let mut kinds = meanings.iter().filter_map(|concept| thesaurus.kind(*concept));
        match !meanings.is_empty() && kinds.all(|kind| matches!(kind, ConceptKind::Verb(_))) {
            true => Self::Verb,
            false => Self::Thing,
        }
    }
}

pub(super) struct ParsedQuery {
    pub(super) terms: Vec<QueryTerm>,
    pub(super) effect: Option<Effect>,
    /// State of the parser: whether the next word is in a "that" clause, and whether it follows an article.
    reported: bool,
    named: bool,
    /// Majority language of the query's words.
    pub(super) language: usize,
}

impl ParsedQuery {
    /// Parses a query; words beyond the limit are ignored.
    pub(super) fn read(lexicon: &Lexicon, query: &str) -> Self {
        let mut all = words(query);
        all.truncate(4 * MAX_QUERY_WORDS);
        let language = lexicon.thesaurus.language(all.iter().map(|(word, _)| &**word));
        let (terms, effect) = (Vec::new(), None);
        let mut asked = Self { terms, effect, reported: false, named: false, language };
        let word = |at: usize| all.get(at).map_or("", |(word, _)| &**word);
        if QUESTION.contains(&word(0)) || (word(0) == "how" && BEING.contains(&word(1))) {
            asked.effect = Some(Effect::Read);
        }
        let mut rest = &*all;
        while let Some(((word, script), after)) = rest.split_first()
            && asked.terms.len() < MAX_QUERY_WORDS
        {
            asked.reported |= !asked.terms.is_empty() && THAT.contains(&&**word);
            rest = match asked.phrase(lexicon, rest) {
                Some(after) => after,
                None => {
                    match script {
                        Script::Spaced => asked.word(lexicon, word),
                        Script::Unspaced => asked.run(lexicon, word),
                    }
                    after
                }
            };
            asked.named = ARTICLES.contains(&&**word);
        }
        asked
    }

    /// Whether any term has any of these meanings.
    pub(super) fn means(&self, meanings: &[WordKey]) -> bool {
        let asked = |meaning| self.terms.iter().any(|term| term.meanings.contains(meaning));
        meanings.iter().any(asked)
    }

    /// Adds a phrase at the beginning of `rest`; returns the remainder.
    fn phrase<'a>(
        &mut self,
        lexicon: &Lexicon,
        rest: &'a [(String, Script)],
    ) -> Option<&'a [(String, Script)]> {
        let (length, meanings) = lexicon.thesaurus.phrase(rest)?;
        let (phrase, after) = rest.split_at_checked(length)?;
        let words = phrase.iter().filter(|(word, _)| !lexicon.thesaurus.is_stop_word(word));
        let own = words.map(|(word, _)| lexicon.key(word)).collect();
        self.term(lexicon, None, own, meanings);
        Some(after)
    }

    fn word(&mut self, lexicon: &Lexicon, word: &str) {
        if lexicon.thesaurus.is_stop_word(word)
            || word.chars().nth(1).is_none()
            || word.chars().all(char::is_numeric)
        {
            return;
        }
        let meanings = lexicon.thesaurus.meanings(word, self.language);
        if meanings.is_empty()
            && self.terms.len() < MAX_COMPOUNDS
            && let Some((first, second)) = lexicon.thesaurus.split_compound(word, self.language)
        {
            for half in [first, second] {
                let meanings = lexicon.thesaurus.meanings(half, self.language);
                self.term(lexicon, None, vec![lexicon.key(half)], &meanings);
            }
            return;
        }
        self.term(lexicon, Some(word.to_owned()), vec![lexicon.key(word)], &meanings);
    }

    fn run(&mut self, lexicon: &Lexicon, run: &str) {
        for found in lexicon.thesaurus.unspaced(run) {
            match found {
                RunPart::Means(meanings) => self.term(lexicon, None, Vec::new(), &meanings),
                RunPart::Unknown(part) => {
                    let bearing = match part.chars().nth(1) {
                        Some(_) => Bearing::Thing,
                        None => Bearing::Part,
                    };
                    let (own, reported, named) = (pairs(&part), self.reported, self.named);
                    self.terms.push(QueryTerm {
                        word: None,
                        own,
                        meanings: Vec::new(),
                        bearing,
                        worth: 1.0,
                        reported,
                        named,
                    });
                }
            }
        }
    }

    fn term(
        &mut self,
        lexicon: &Lexicon,
        word: Option<String>,
        own: Vec<WordKey>,
        meanings: &[Concept],
    ) {
        let effect = lexicon.thesaurus.effect(meanings);
        let bearing = Bearing::of(&lexicon.thesaurus, meanings);
        let meanings: Vec<WordKey> = meanings.iter().copied().map(concept_key).collect();
        let (reported, named) = (self.reported, self.named);
        let term = QueryTerm { word, own, meanings, bearing, worth: 1.0, reported, named };
        self.effect = self.effect.or_else(|| term.wants(effect));
        let known = |known: &QueryTerm| known.own == term.own && known.meanings == term.meanings;
        if !self.terms.iter().any(known) {
            self.terms.push(term);
        }
    }
}

/// Weights of a word with one typing error, and of a word with several.
const CORRECTED_WEIGHT: [f32; 2] = [0.9, 0.7];

/// Maximum number of corrected words per query.
const MAX_CORRECTED: usize = 6;
const MAX_NEAR: usize = 8;

impl Index {
    /// Replaces unknown words by similar words of tools and the thesaurus.
    pub(super) fn correct_spelling(&self, asked: &mut ParsedQuery) {
        let language = asked.language;
        let unknown = asked.terms.iter_mut().filter_map(|term| {
            let max = tokenizer::allowed(term.word.as_deref()?)?;
            let is_known = !term.meanings.is_empty()
                || term.own.iter().any(|key| self.document_frequency(*key) > 0.0);
            let misspelled = term.word.take_if(|_| !is_known)?;
            Some((misspelled, max, term))
        });
        for (misspelled, max, term) in unknown.take(MAX_CORRECTED) {
            let Some((errors, near)) = self.near(&misspelled, max) else { continue };
            let thesaurus = &self.lexicon.thesaurus;
            let meanings: BTreeSet<Concept> =
                near.iter().flat_map(|word| thesaurus.meanings(word, language)).collect();
            let meanings: Vec<_> = meanings.into_iter().collect();
            asked.effect = asked.effect.or_else(|| term.wants(thesaurus.effect(&meanings)));
            term.own = near.iter().map(|word| self.lexicon.key(word)).collect();
            term.bearing = Bearing::of(thesaurus, &meanings);
            term.meanings = meanings.into_iter().map(concept_key).collect();
            term.worth =
                CORRECTED_WEIGHT.get(errors.saturating_sub(1)).copied().unwrap_or_default();
        }
    }

    /// Known words with the fewest typing errors, and the number of errors. They begin with the same letter as the
    /// misspelled word, or with its second letter if the first two are swapped.
    fn near(&self, misspelled: &str, max: usize) -> Option<(usize, Vec<String>)> {
        let mut letters = misspelled.chars();
        let (first, second) = (letters.next(), letters.next());
        let segments = self.segments.iter().flat_map(|segment| segment.near(misspelled, max));
        let near = segments.chain(self.lexicon.near(misspelled, max));
        let begins = |(_, word): &(usize, &str)| {
            let mut letters = word.chars();
            let own = (letters.next(), letters.next());
            own.0 == first || own == (second, first)
        };
        let near: BTreeSet<(usize, &str)> = near.filter(begins).collect();
        let (errors, _) = *near.first()?;
        let min = near.into_iter().take_while(|found| found.0 == errors);
        Some((errors, min.map(|(_, word)| word.to_owned()).take(MAX_NEAR).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wanted_effect_is_not_read_from_a_that_clause() {
        let lexicon = Lexicon::default();
        let effect = |query: &str| ParsedQuery::read(&lexicon, query).effect;
        for (query, expected) in [
            ("an address that I can send to my friends", None),
            ("una dirección que puedo enviar", None),
            ("show the letters that I deleted", Some(Effect::Read)),
            ("delete the letters that I have read", Some(Effect::Destroy)),
            ("remember that she deletes letters", Some(Effect::Write)),
            // Only stop words precede the verb.
            ("I want that you delete the letters", Some(Effect::Destroy)),
        ] {
            assert_eq!(effect(query), expected, "{query}");
        }
    }

    #[test]
    fn word_after_an_article_states_no_effect() {
        let lexicon = Lexicon::default();
        let effect = |query: &str| ParsedQuery::read(&lexicon, query).effect;
        for (query, expected) in [
            ("the upload of yesterday", None),
            ("upload of yesterday", Some(Effect::Write)),
            ("my deleted mails", None),
            ("deleted mails", Some(Effect::Destroy)),
            ("make a copy", Some(Effect::Write)),
            ("erase the copy", Some(Effect::Destroy)),
            ("a list of all copies", Some(Effect::Read)),
            ("eine Kopie", None),
        ] {
            assert_eq!(effect(query), expected, "{query}");
        }
    }

    #[test]
    fn question_about_state_prefers_a_read() {
        let lexicon = Lexicon::default();
        let effect = |query: &str| ParsedQuery::read(&lexicon, query).effect;
        for (query, expected) in [
            ("how are my shared files", Some(Effect::Read)),
            ("how's the merge", Some(Effect::Read)),
            ("how do I merge two branches", Some(Effect::Write)),
            ("how to share a file", Some(Effect::Write)),
        ] {
            assert_eq!(effect(query), expected, "{query}");
        }
    }
}
