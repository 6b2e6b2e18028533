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

/// Words after a "how" by which is asked how something is, not how it is done.
const BEING: [&str; 6] = ["is", "are", "am", "was", "were", "s"];

/// Words after which comes what is told or to be remembered, or which of many is meant: nothing that is to be done.
const THAT: [&str; 5] = ["that", "dass", "que", "che", "что"];

/// Words after which comes the name of a thing, though it may be a verb elsewhere: "a link", "my copy".
const ARTICLES: [&str; 47] = [
    "a", "an", "the", "this", "these", "those", "my", "our", "your", "his", "her", "its", "their",
    "ein", "eine", "einen", "einem", "einer", "mein", "meine", "meinen", "meiner", "unser",
    "unsere", "el", "los", "las", "un", "una", "uno", "mi", "mis", "une", "mon", "ma", "mes", "um",
    "uma", "meu", "minha", "il", "gli", "mio", "mia", "du", "des", "del",
];

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
    /// Whether it is the name of a thing: after an article.
    named: bool,
}

impl QueryTerm {
    /// What is to be done, if this word does that: nothing where it only tells which thing is meant, and of the name of a
    /// thing no more than to see it.
    pub(super) fn wants(&self, effect: Option<Effect>) -> Option<Effect> {
        effect.filter(|effect| !self.told && (!self.named || *effect == Effect::Read))
    }
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
    /// Whether a "that" was read, and whether an article just now.
    told: bool,
    named: bool,
    /// Of most of its words.
    pub(super) language: usize,
}

impl ParsedQuery {
    /// Reads a query. Of more words than are looked up the first count.
    pub(super) fn read(lexicon: &Lexicon, query: &str) -> Self {
        let mut all = words(query);
        all.truncate(4 * MAX_QUERY_WORDS);
        let language = lexicon.thesaurus.language(all.iter().map(|(word, _)| &**word));
        let (terms, effect) = (Vec::new(), None);
        let mut asked = Self { terms, effect, told: false, named: false, language };
        let word = |at: usize| all.get(at).map_or("", |(word, _)| &**word);
        if QUESTION.contains(&word(0)) || (word(0) == "how" && BEING.contains(&word(1))) {
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
            asked.named = ARTICLES.contains(&&**word);
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
                    let (own, told, named) = (pairs(&part), self.told, self.named);
                    self.terms.push(QueryTerm {
                        word: None,
                        own,
                        meanings: Vec::new(),
                        bearing,
                        worth: 1.0,
                        told,
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
        let (told, named) = (self.told, self.named);
        let term = QueryTerm { word, own, meanings, bearing, worth: 1.0, told, named };
        self.effect = self.effect.or_else(|| term.wants(effect));
        let known = |known: &QueryTerm| known.own == term.own && known.meanings == term.meanings;
        if !self.terms.iter().any(known) {
            self.terms.push(term);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_to_be_done_stands_before_a_that() {
        let lexicon = Lexicon::default();
        let effect = |query: &str| ParsedQuery::read(&lexicon, query).effect;
        for (query, expected) in [
            ("an address that I can send to my friends", None),
            ("una dirección que puedo enviar", None),
            ("show the letters that I deleted", Some(Effect::Read)),
            ("delete the letters that I have read", Some(Effect::Destroy)),
            ("remember that she deletes letters", Some(Effect::Write)),
            // Before it stands nothing that says anything.
            ("I want that you delete the letters", Some(Effect::Destroy)),
        ] {
            assert_eq!(effect(query), expected, "{query}");
        }
    }

    #[test]
    fn after_an_article_comes_a_thing() {
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
    fn who_asks_how_something_is_wants_to_see() {
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
