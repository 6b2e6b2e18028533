//! Which words mean much the same when somebody looks for a tool, in several languages: the table `thesaurus.txt`.
//!
//! Owns the form of the table and how a word finds its concepts; what a concept is worth is not here. Words of a
//! language are compared by their stems, English ones first: what an English word means is not looked for elsewhere.

use std::collections::{BTreeSet, HashMap, HashSet};

use rust_stemmers::{Algorithm, Stemmer};

use super::words::{Script, words};

/// The table.
const TABLE: &str = include_str!("thesaurus.txt");

/// The languages of its columns after the kind; none for those without stems.
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

/// The place of the language that tools are mostly worded in.
pub(super) const ENGLISH: usize = 0;

/// Words in the longest phrase that is looked for.
const MAX_PHRASE: usize = 4;
/// Characters of the longest word of a script without blanks.
const MAX_UNSPACED: usize = 8;
/// Letters that both halves of a compound have at least.
const SHORTEST_HALF: usize = 4;
/// What stands between the halves of German compounds.
const JOINTS: [&str; 5] = ["", "s", "n", "en", "es"];

/// What a concept is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ConceptKind {
    /// A verb that any tool may have; one without effect may mean several.
    Verb(Option<Effect>),
    /// A verb that says what is meant.
    Special(Effect),
    /// A thing.
    Thing,
}

/// What a verb does to what it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Effect {
    Read,
    Write,
    Destroy,
}

/// The number of a concept: its place in the table.
pub(super) type Concept = u16;

/// A language's stemmer, and its concepts by stem.
type StemmedLanguage = (Stemmer, HashMap<Box<str>, Vec<Concept>>);

/// The table, ready for looking up.
pub(super) struct Thesaurus {
    kinds: Vec<ConceptKind>,
    /// For each language.
    silent: Vec<HashSet<Box<str>>>,
    written: Vec<HashSet<Box<str>>>,
    /// For each language that has stems.
    stems: Vec<StemmedLanguage>,
    /// By words that a blank parts.
    phrases: HashMap<Box<str>, Vec<Concept>>,
    begin_phrases: HashSet<Box<str>>,
    /// Of scripts without blanks.
    unspaced: HashMap<Box<str>, Vec<Concept>>,
    /// Words of scripts with blanks, as they are written.
    spellings: BTreeSet<Box<str>>,
}

impl Thesaurus {
    /// Reads the table. What it does not understand it leaves out; a test fails on such a line.
    pub(super) fn new() -> Self {
        let stems = LANGUAGES.iter().flatten();
        let mut read = Self {
            kinds: Vec::new(),
            silent: vec![HashSet::new(); LANGUAGES.len()],
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
            for (silent, column) in self.silent.iter_mut().zip(columns) {
                let all = column.split_whitespace().flat_map(words);
                silent.extend(all.map(|(word, _)| Box::from(word)));
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

    /// What concepts do together: nothing certain where one of them may mean several.
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

    /// Whether these concepts are a verb that says what is meant, and nothing else.
    pub(super) fn special(&self, concepts: &[Concept]) -> bool {
        let special =
            |concept: &Concept| matches!(self.kind(*concept), Some(ConceptKind::Special(_)));
        !concepts.is_empty() && concepts.iter().all(special)
    }

    pub(super) fn concepts(&self) -> usize {
        self.kinds.len()
    }

    /// Whether a word says nothing: it is not looked for.
    pub(super) fn silent(&self, word: &str) -> bool {
        self.silent.iter().any(|silent| silent.contains(word))
    }

    /// The stem of a word, by which it is compared with others: the English one.
    pub(super) fn stem(&self, word: &str) -> String {
        match self.stems.first() {
            Some((english, _)) => english.stem(word).into_owned(),
            None => word.to_owned(),
        }
    }

    /// The language that most of the words are of; English where others have no more.
    pub(super) fn language<'a>(&self, words: impl Iterator<Item = &'a str> + Clone) -> usize {
        let mut best = (0, 0);
        for (language, (silent, written)) in self.silent.iter().zip(&self.written).enumerate() {
            let of = |word: &&str| silent.contains(*word) || written.contains(*word);
            let own = words.clone().filter(of).count();
            if own > best.0 {
                best = (own, language);
            }
        }
        best.1
    }

    /// What a word means: in that language, in English, or else in any.
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

    /// The longest phrase that some words begin with: how many of them it has, and what it means.
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

    /// The halves of a compound, if both mean something.
    pub(super) fn halves<'a>(&self, word: &'a str, language: usize) -> Option<(&'a str, &'a str)> {
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

    /// The words in a run of a script without blanks, the longest first: what they mean, and none for what is not known.
    pub(super) fn unspaced(&self, run: &str) -> Vec<RunPart> {
        let chars: Vec<char> = run.chars().collect();
        let (mut found, mut at, mut unknown) = (Vec::new(), 0, String::new());
        while at < chars.len() {
            let longest = (1..=MAX_UNSPACED).rev().find_map(|length| {
                let word: String = chars.get(at..at + length)?.iter().collect();
                match self.unspaced.get(&*word) {
                    Some(meanings) => Some((length, meanings.clone())),
                    None => self.silent(&word).then_some((length, Vec::new())),
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

    /// The words that the table has in scripts with blanks, each once: for typing errors.
    pub(super) fn spellings(&self) -> impl Iterator<Item = &str> {
        self.spellings.iter().map(|word| &**word)
    }
}

/// A part of a run without blanks.
pub(super) enum RunPart {
    Means(Vec<Concept>),
    Unknown(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Thesaurus {
        /// The English words of a concept.
        pub(in crate::catalog::search) fn named(&self, concept: Concept) -> &'static str {
            let lines =
                TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with(['#', 'x']));
            let line = lines.into_iter().nth(usize::from(concept));
            line.and_then(|line| line.split('|').nth(1)).unwrap_or_default()
        }
    }

    #[test]
    fn the_table_is_understood() {
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
    fn words_mean_what_they_mean_in_their_language() {
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
    fn compounds_are_taken_apart() {
        let thesaurus = Thesaurus::new();
        assert_eq!(thesaurus.halves("dateiordner", 1), Some(("datei", "ordner")));
        assert_eq!(thesaurus.halves("wibblewobble", 1), None);
        assert_eq!(thesaurus.halves("", 1), None);
    }
}
