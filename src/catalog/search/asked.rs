//! What a query asks for: its words and phrases with what they mean, and whether something is to be seen, changed or
//! destroyed.

use super::lexicon::{Lexicon, WordKey, concept_key, pairs};
use super::thesaurus::{Concept, ConceptKind, Effect, RunPart, Thesaurus};
use super::words::{Script, words};

/// Most words of a query that are looked up.
pub(super) const MAX_QUERY_WORDS: usize = 48;

/// After so many words none is taken apart any more.
const MAX_COMPOUNDS: usize = 16;

/// Words that a question begins with.
const QUESTION: [&str; 18] = [
    "is", "are", "am", "was", "were", "has", "have", "had", "did", "does", "do", "ist", "sind",
    "hat", "habe", "est", "hay", "sono",
];

/// Words after which comes what is told or to be remembered.
const THAT: [&str; 5] = ["that", "dass", "que", "che", "что"];

/// One word or phrase that is looked for.
pub(super) struct QueryTerm {
    /// As it was written, for typing errors; none for phrases.
    pub(super) word: Option<String>,
    /// What its own words are compared by: any of them.
    pub(super) own: Vec<WordKey>,
    /// What it means.
    pub(super) meanings: Vec<WordKey>,
    pub(super) bearing: Bearing,
    /// What its words are worth: less than 1 where they are guessed.
    pub(super) worth: f32,
    /// Whether it is what somebody is told, or what is to be remembered: after a "that".
    pub(super) told: bool,
}

/// How much a term says of what is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bearing {
    /// Little: many tools do that.
    Verb,
    /// It says what is meant.
    Thing,
    /// Nothing, if no tool knows it: a part of a run in a script without blanks.
    Part,
}

impl Bearing {
    /// That of a word with these meanings.
    pub(super) fn of(thesaurus: &Thesaurus, meanings: &[Concept]) -> Self {
        let mut kinds = meanings.iter().filter_map(|concept| thesaurus.kind(*concept));
        match !meanings.is_empty() && kinds.all(|kind| matches!(kind, ConceptKind::Verb(_))) {
            true => Self::Verb,
            false => Self::Thing,
        }
    }
}

/// A query that was read.
pub(super) struct ParsedQuery {
    pub(super) terms: Vec<QueryTerm>,
    pub(super) effect: Option<Effect>,
    /// Whether a "that" was read.
    told: bool,
    /// Of most of its words.
    pub(super) language: usize,
}

impl ParsedQuery {
    /// Reads a query. Of more words than are looked up the first count.
    pub(super) fn read(lexicon: &Lexicon, query: &str) -> Self {
        let mut all = words(query);
        all.truncate(4 * MAX_QUERY_WORDS);
        let language = lexicon.thesaurus.language(all.iter().map(|(word, _)| &**word));
        let mut asked = Self { terms: Vec::new(), effect: None, told: false, language };
        if all.first().is_some_and(|(word, _)| QUESTION.contains(&&**word)) {
            asked.effect = Some(Effect::Read);
        }
        let mut rest = &*all;
        while let Some(((word, script), after)) = rest.split_first()
            && asked.terms.len() < MAX_QUERY_WORDS
        {
            asked.told |= !asked.terms.is_empty() && THAT.contains(&&**word);
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
        }
        asked
    }

    /// Whether one of its words means one of these.
    pub(super) fn means(&self, meanings: &[WordKey]) -> bool {
        let asked = |meaning| self.terms.iter().any(|term| term.meanings.contains(meaning));
        meanings.iter().any(asked)
    }

    /// A phrase at the beginning of `rest`; what comes after it.
    fn phrase<'a>(
        &mut self,
        lexicon: &Lexicon,
        rest: &'a [(String, Script)],
    ) -> Option<&'a [(String, Script)]> {
        let (length, meanings) = lexicon.thesaurus.phrase(rest)?;
        let (phrase, after) = rest.split_at_checked(length)?;
        let said = phrase.iter().filter(|(word, _)| !lexicon.thesaurus.silent(word));
        let own = said.map(|(word, _)| lexicon.key(word)).collect();
        self.term(lexicon, None, own, meanings);
        Some(after)
    }

    fn word(&mut self, lexicon: &Lexicon, word: &str) {
        if lexicon.thesaurus.silent(word)
            || word.chars().nth(1).is_none()
            || word.chars().all(char::is_numeric)
        {
            return;
        }
        let meanings = lexicon.thesaurus.meanings(word, self.language);
        if meanings.is_empty()
            && self.terms.len() < MAX_COMPOUNDS
            && let Some((first, second)) = lexicon.thesaurus.halves(word, self.language)
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
                    let (own, told) = (pairs(&part), self.told);
                    self.terms.push(QueryTerm {
                        word: None,
                        own,
                        meanings: Vec::new(),
                        bearing,
                        worth: 1.0,
                        told,
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
        self.effect = self.effect.or_else(|| lexicon.thesaurus.effect(meanings));
        let bearing = Bearing::of(&lexicon.thesaurus, meanings);
        let meanings: Vec<WordKey> = meanings.iter().copied().map(concept_key).collect();
        let known = |term: &QueryTerm| term.own == own && term.meanings == meanings;
        if !self.terms.iter().any(known) {
            let told = self.told;
            self.terms.push(QueryTerm { word, own, meanings, bearing, worth: 1.0, told });
        }
    }
}
