//! Thesaurus of synonyms in several languages (`thesaurus.txt`), and the lexicon of word keys.
//!
//! Owns the table format and the lookup of concepts. Words are compared by stems. English takes precedence: an English
//! word is not looked up in other languages.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;

use rust_stemmers::{Algorithm, Stemmer};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::tokenizer::{self, Script, words};

const TABLE: &str = include_str!("thesaurus.txt");

/// Stemmers of the columns after the kind; `None` for a language without stemming.
const LANGUAGES: [Option<Algorithm>; 9] = [
    Some(Algorithm::English),
    Some(Algorithm::German),
    Some(Algorithm::Spanish),
    Some(Algorithm::French),
    Some(Algorithm::Portuguese),
    Some(Algorithm::Italian),
    Some(Algorithm::Russian),
    None,
    None,
];

/// Column of English, the language of most tools.
pub(super) const ENGLISH: usize = 0;

/// Maximum number of words of a phrase.
const MAX_PHRASE: usize = 4;
/// Maximum length of an unspaced word, in characters.
const MAX_UNSPACED: usize = 8;
/// Minimum number of letters of each half of a compound.
const SHORTEST_HALF: usize = 4;
/// Linking letters of German compounds.
const JOINTS: [&str; 5] = ["", "s", "n", "en", "es"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ConceptKind {
    /// Unspecific verb; ambiguous if it has no effect.
    Verb(Option<Effect>),
    /// Specific verb.
    Special(Effect),
    Thing,
}

/// Effect of a verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Effect {
    Read,
    Write,
    Destroy,
}

/// Concept number: its line in the table.
pub(super) type Concept = u16;

type StemmedLanguage = (Stemmer, HashMap<Box<str>, Vec<Concept>>);

/// Lookup structures of the table.
pub(super) struct Thesaurus {
    kinds: Vec<ConceptKind>,
    is_stop_word: Vec<HashSet<Box<str>>>,
    written: Vec<HashSet<Box<str>>>,
    /// Stems by language.
    stems: Vec<StemmedLanguage>,
    /// Phrases by space-joined words.
    phrases: HashMap<Box<str>, Vec<Concept>>,
    begin_phrases: HashSet<Box<str>>,
    /// Words in unspaced scripts.
    unspaced: HashMap<Box<str>, Vec<Concept>>,
    /// Spellings in spaced scripts.
    spellings: BTreeSet<Box<str>>,
}

impl Thesaurus {
    /// Parses the table. Malformed lines are skipped; a test fails on them.
    pub(super) fn new() -> Self {
        let stems = LANGUAGES.iter().flatten();
        let mut read = Self {
            kinds: Vec::new(),
            is_stop_word: vec![HashSet::new(); LANGUAGES.len()],
            written: vec![HashSet::new(); LANGUAGES.len()],
            stems: stems.map(|language| (Stemmer::create(*language), HashMap::new())).collect(),
            phrases: HashMap::new(),
            begin_phrases: HashSet::new(),
            unspaced: HashMap::new(),
            spellings: BTreeSet::new(),
        };
        for line in TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            read.line(line);
        }
        read
    }

    fn line(&mut self, line: &str) {
        let mut columns = line.split('|');
        let kind = match columns.next() {
            Some("v") => Some(ConceptKind::Verb(None)),
            Some("r") => Some(ConceptKind::Verb(Some(Effect::Read))),
            Some("w") => Some(ConceptKind::Verb(Some(Effect::Write))),
            Some("d") => Some(ConceptKind::Verb(Some(Effect::Destroy))),
            Some("R") => Some(ConceptKind::Special(Effect::Read)),
            Some("W") => Some(ConceptKind::Special(Effect::Write)),
            Some("D") => Some(ConceptKind::Special(Effect::Destroy)),
            Some("n") => Some(ConceptKind::Thing),
            Some(_) | None => None,
        };
        let Some(kind) = kind else {
            for (is_stop_word, column) in self.is_stop_word.iter_mut().zip(columns) {
                let all = column.split_whitespace().flat_map(words);
                is_stop_word.extend(all.map(|(word, _)| Box::from(word)));
            }
            return;
        };
        let concept = Concept::try_from(self.kinds.len()).unwrap_or(Concept::MAX);
        self.kinds.push(kind);
        for (language, column) in columns.enumerate() {
            for entry in column.split_whitespace() {
                self.entry(language, entry, concept);
            }
        }
    }

    fn entry(&mut self, language: usize, entry: &str, concept: Concept) {
        let split = words(entry);
        let known = match &*split {
            [] => return,
            [(word, Script::Unspaced)] => self.unspaced.entry((**word).into()).or_default(),
            [(word, Script::Spaced)] => {
                let Some((stemmer, stems)) = self.stems.get_mut(language) else { return };
                self.spellings.insert((**word).into());
                if let Some(written) = self.written.get_mut(language) {
                    written.insert((**word).into());
                }
                stems.entry(stemmer.stem(word).into()).or_default()
            }
            [(first, _), _, ..] => {
                self.begin_phrases.insert((**first).into());
                let phrase: Vec<_> = split.iter().map(|(word, _)| &**word).collect();
                self.phrases.entry(phrase.join(" ").into()).or_default()
            }
        };
        if !known.contains(&concept) {
            known.push(concept);
        }
    }

    pub(super) fn kind(&self, concept: Concept) -> Option<ConceptKind> {
        self.kinds.get(usize::from(concept)).copied()
    }

    /// Combined effect of concepts; `None` if one of them is ambiguous.
    pub(super) fn effect(&self, concepts: &[Concept]) -> Option<Effect> {
        let kinds = || concepts.iter().filter_map(|concept| self.kind(*concept));
        if kinds().any(|kind| kind == ConceptKind::Verb(None)) {
            return None;
        }
        let mut effects = kinds().filter_map(|kind| match kind {
            ConceptKind::Verb(effect) => effect,
            ConceptKind::Special(effect) => Some(effect),
            ConceptKind::Thing => None,
        });
        let first = effects.next()?;
        Some(if effects.any(|effect| effect == Effect::Destroy) { Effect::Destroy } else { first })
    }

    /// Whether all concepts are specific verbs.
    pub(super) fn special(&self, concepts: &[Concept]) -> bool {
        let special =
            |concept: &Concept| matches!(self.kind(*concept), Some(ConceptKind::Special(_)));
        !concepts.is_empty() && concepts.iter().all(special)
    }

    pub(super) fn concepts(&self) -> usize {
        self.kinds.len()
    }

    /// Whether a word is a stop word.
    pub(super) fn is_stop_word(&self, word: &str) -> bool {
        self.is_stop_word.iter().any(|is_stop_word| is_stop_word.contains(word))
    }

    /// English stem of a word.
    pub(super) fn stem(&self, word: &str) -> String {
        match self.stems.first() {
            Some((english, _)) => english.stem(word).into_owned(),
            None => word.to_owned(),
        }
    }

    /// Majority language of the words; English on a tie.
    pub(super) fn language<'a>(&self, words: impl Iterator<Item = &'a str> + Clone) -> usize {
        let mut best = (0, 0);
        for (language, (is_stop_word, written)) in
            self.is_stop_word.iter().zip(&self.written).enumerate()
        {
            let of = |word: &&str| is_stop_word.contains(*word) || written.contains(*word);
            let own = words.clone().filter(of).count();
            if own > best.0 {
                best = (own, language);
            }
        }
        best.1
    }

    /// Concepts of a word, looked up in the given language, then in English, then in any language.
    pub(super) fn meanings(&self, word: &str, language: usize) -> Vec<Concept> {
        let of = |(stemmer, stems): &StemmedLanguage| {
            stems.get(&*stemmer.stem(word)).cloned().unwrap_or_default()
        };
        let first = [language, ENGLISH].into_iter().filter_map(|at| self.stems.get(at)).map(of);
        let found = first.into_iter().find(|found| !found.is_empty());
        found.unwrap_or_else(|| {
            let found: BTreeSet<_> = self.stems.iter().flat_map(of).collect();
            found.into_iter().collect()
        })
    }

    /// Longest phrase at the beginning of `rest`: its length and concepts.
    pub(super) fn phrase(&self, rest: &[(String, Script)]) -> Option<(usize, &[Concept])> {
        let (first, _) = rest.first()?;
        if !self.begin_phrases.contains(&**first) {
            return None;
        }
        (2..=MAX_PHRASE).rev().find_map(|length| {
            let phrase: Vec<_> = rest.get(..length)?.iter().map(|(word, _)| &**word).collect();
            Some((length, self.phrases.get(&*phrase.join(" "))?.as_slice()))
        })
    }

    /// Splits a compound if both halves are known.
    pub(super) fn split_compound<'a>(
        &self,
        word: &'a str,
        language: usize,
    ) -> Option<(&'a str, &'a str)> {
        let means = |part: &str| {
            let stems = self.stems.get(language);
            part.len() >= SHORTEST_HALF
                && stems.is_some_and(|(stemmer, stems)| stems.contains_key(&*stemmer.stem(part)))
        };
        let ends = word.char_indices().map(|(at, _)| at).filter(|at| *at >= SHORTEST_HALF).rev();
        ends.filter_map(|at| word.split_at_checked(at)).find(|(first, second)| {
            let first = JOINTS.iter().filter_map(|joint| first.strip_suffix(joint));
            means(second) && first.into_iter().any(means)
        })
    }

    /// Segments an unspaced run by longest match.
    pub(super) fn unspaced(&self, run: &str) -> Vec<RunPart> {
        let chars: Vec<char> = run.chars().collect();
        let (mut found, mut at, mut unknown) = (Vec::new(), 0, String::new());
        while at < chars.len() {
            let longest = (1..=MAX_UNSPACED).rev().find_map(|length| {
                let word: String = chars.get(at..at + length)?.iter().collect();
                match self.unspaced.get(&*word) {
                    Some(meanings) => Some((length, meanings.clone())),
                    None => self.is_stop_word(&word).then_some((length, Vec::new())),
                }
            });
            match longest {
                Some((length, meanings)) => {
                    if !unknown.is_empty() {
                        found.push(RunPart::Unknown(std::mem::take(&mut unknown)));
                    }
                    if !meanings.is_empty() {
                        found.push(RunPart::Means(meanings));
                    }
                    at += length;
                }
                None => {
                    unknown.extend(chars.get(at));
                    at += 1;
                }
            }
        }
        if !unknown.is_empty() {
            found.push(RunPart::Unknown(unknown));
        }
        found
    }

    /// Distinct spellings, for spelling correction.
    pub(super) fn spellings(&self) -> impl Iterator<Item = &str> {
        self.spellings.iter().map(|word| &**word)
    }
}

/// Part of an unspaced run.
pub(super) enum RunPart {
    Means(Vec<Concept>),
    Unknown(String),
}

/// Prefix of concept hashes, distinct from words.
const OF_CONCEPTS: u64 = 0x6d63_7074;

/// Key of a word or concept.
pub(super) type WordKey = u64;

/// Lexicon: stems, meanings and spellings.
pub struct Lexicon {
    pub(super) thesaurus: Thesaurus,
    /// Thesaurus words, for corrections.
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
        let spellings = spellings.map(|word| (tokenizer::letters(word), word.into())).collect();
        Self { thesaurus, spellings }
    }

    /// Keys of a tool's word; empty for a stop word.
    pub(super) fn keys(&self, word: &str, script: Script) -> Vec<WordKey> {
        match script {
            Script::Spaced if self.thesaurus.is_stop_word(word) => Vec::new(),
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

    pub(super) fn key(&self, word: &str) -> WordKey {
        xxh3_64(self.thesaurus.stem(word).as_bytes())
    }

    /// Thesaurus words within a maximum number of typing errors.
    pub(super) fn near<'a>(
        &'a self,
        word: &'a str,
        errors: usize,
    ) -> impl Iterator<Item = (usize, &'a str)> {
        let of_word = tokenizer::letters(word);
        let near = self.spellings.iter();
        let near = near.filter(move |(letters, _)| tokenizer::could_be(of_word, *letters, errors));
        near.filter_map(move |(_, known)| Some((tokenizer::errors(word, known, errors)?, &**known)))
    }
}

pub(super) fn concept_key(concept: Concept) -> WordKey {
    xxh3_64_with_seed(&concept.to_le_bytes(), OF_CONCEPTS)
}

/// Keys of an unspaced run: its character bigrams, or the character if there is only one.
pub(super) fn pairs(run: &str) -> Vec<WordKey> {
    let chars: Vec<char> = run.chars().collect();
    let pairs = chars.windows(2.min(chars.len().max(1)));
    pairs.map(|pair| xxh3_64(pair.iter().collect::<String>().as_bytes())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Thesaurus {
        /// The English words of a concept.
        pub(in crate::search) fn named(&self, concept: Concept) -> &'static str {
            let lines =
                TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with(['#', 'x']));
            let line = lines.into_iter().nth(usize::from(concept));
            line.and_then(|line| line.split('|').nth(1)).unwrap_or_default()
        }
    }

    #[test]
    fn every_thesaurus_line_parses() {
        let mut lines = TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        lines.clone().for_each(|line| {
            let columns: Vec<_> = line.split('|').collect();
            assert_eq!(columns.len(), 1 + LANGUAGES.len(), "{line}");
            assert!(["v", "r", "w", "d", "R", "W", "D", "n", "x"].contains(&columns[0]), "{line}");
            for entry in columns.iter().skip(1).flat_map(|column| column.split(' ')) {
                let words = words(entry).len();
                assert!((1..=MAX_PHRASE).contains(&words), "{entry} in {line}");
            }
        });
        assert_eq!(lines.next().and_then(|line| line.split('|').next()), Some("x"));
        assert!(Thesaurus::new().concepts() > 100);
    }

    #[test]
    fn words_are_looked_up_by_language() {
        let thesaurus = Thesaurus::new();
        let named = |word: &str, language: usize| {
            let meanings = thesaurus.meanings(word, language).into_iter();
            meanings.map(|concept| thesaurus.named(concept)).collect::<Vec<_>>()
        };
        let german = thesaurus.language(["welche", "termine", "habe", "ich"].into_iter());
        assert_eq!(german, 1);
        assert!(named("termine", german).iter().any(|words| words.starts_with("event")));
        assert!(named("termine", ENGLISH).iter().any(|words| words.starts_with("stop")));
        assert!(named("deletes", ENGLISH).iter().any(|words| words.starts_with("delete")));
        assert!(named("wibble", ENGLISH).is_empty());
        assert_eq!(thesaurus.language(std::iter::empty()), ENGLISH);
    }

    #[test]
    fn compounds_are_split() {
        let thesaurus = Thesaurus::new();
        assert_eq!(thesaurus.split_compound("dateiordner", 1), Some(("datei", "ordner")));
        assert_eq!(thesaurus.split_compound("wibblewobble", 1), None);
        assert_eq!(thesaurus.split_compound("", 1), None);
    }
}
