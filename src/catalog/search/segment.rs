//! The words of one server's tools, as far as they do not depend on any other's.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64;

use super::deprecation;
use super::lexicon::{Lexicon, WordKey, concept_key};
use super::spelling;
use super::thesaurus::{Concept, ConceptKind, ENGLISH, Effect};
use super::words::{Script, plain, words};
use crate::tool::{SideEffect, Tool};

/// A part of a tool's definition: what a word counts there, and how many words it usually has. In one that has more,
/// each counts less. A name says in two words what a description says in thirty.
struct Field {
    weight: f32,
    usual: f32,
    /// From 0, the length says nothing, to 1.
    by_length: f32,
}

const NAME: Field = Field { weight: 6.0, usual: 3.0, by_length: 0.6 };
const TITLE: Field = Field { weight: 1.5, usual: 3.0, by_length: 0.5 };
const FIRST_SENTENCE: Field = Field { weight: 3.0, usual: 8.0, by_length: 0.6 };
const DESCRIPTION: Field = Field { weight: 0.5, usual: 30.0, by_length: 0.7 };
const SERVER: Field = Field { weight: 2.0, usual: 1.0, by_length: 0.3 };
const PARAMETERS: Field = Field { weight: 0.5, usual: 5.0, by_length: 0.6 };
const PARAMETER_DESCRIPTIONS: Field = Field { weight: 0.4, usual: 40.0, by_length: 0.7 };

/// What a word counts in a tool that is all about it.
const PROMINENT: f32 = 4.0;

/// Words of a field that are looked at.
const MAX_FIELD_WORDS: usize = 1024;

/// How deep parameters are looked for in an input schema, and in how large a one.
const MAX_PARAMETER_DEPTH: usize = 3;
const MAX_SCHEMA_BYTES: usize = 1024 * 1024;

/// Words of a description in which a verb says what the tool does, where its name does not.
const VERB_WITHIN: usize = 2;

/// Letters that a word has at least for typing errors in it to be mended.
const MIN_SPELLED: usize = 4;

/// The words of a few tools: those of one server.
#[derive(Default)]
pub struct Segment {
    tools: Box<[Traits]>,
    /// What words and meanings are compared by, in order, and where their postings begin; one more of these.
    keys: Box<[WordKey]>,
    starts: Box<[u32]>,
    /// How many tools have it, those less that have it in a lesser place.
    having: Box<[f32]>,
    /// Which tool has a word, and what it counts there.
    postings: Box<[(u32, f32)]>,
    /// The words as they are written, one after another, and each of them.
    text: Box<str>,
    spelled: Box<[Spelled]>,
}

/// What else is known of a tool.
#[derive(Clone, Debug)]
pub(super) struct Traits {
    /// Its name, to be compared with a query; and the same as `server:tool`.
    pub(super) name: WordKey,
    pub(super) qualified_name: WordKey,
    /// What its name, or its description, says it does.
    pub(super) effect: Option<Effect>,
    /// Whether its annotations or the operator say that it destroys.
    pub(super) destroys: bool,
    pub(super) deprecated: bool,
    /// The verbs of its name, where one of them says what is meant.
    pub(super) verbs: Box<[WordKey]>,
}

/// A word as it is written.
#[derive(Clone, Copy)]
struct Spelled {
    letters: u32,
    from: u32,
    length: u32,
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Segment({} tools, {} words)", self.len(), self.spelled.len())
    }
}

impl Segment {
    /// Indexes `tools`.
    #[must_use]
    pub fn of<'a>(lexicon: &Lexicon, tools: impl IntoIterator<Item = &'a Arc<Tool>>) -> Self {
        let mut words = Words { lexicon, known: HashMap::new() };
        let (mut traits, mut all) = (Vec::new(), Vec::new());
        for (at, tool) in (0u32..).zip(tools) {
            let document = ToolWords::of(tool, &mut words);
            traits.push(document.traits);
            all.extend(document.weights.into_iter().map(|(key, weight)| (key, at, weight)));
        }
        all.sort_unstable_by_key(|(key, at, _)| (*key, *at));
        let (mut keys, mut starts, mut having) = (Vec::new(), vec![0], Vec::new());
        let mut end = 0;
        for alike in all.chunk_by(|a, b| a.0 == b.0) {
            keys.extend(alike.first().map(|(key, ..)| *key));
            having.push(alike.iter().map(|(.., weight)| prominence(*weight)).sum());
            end += u32::try_from(alike.len()).unwrap_or(u32::MAX);
            starts.push(end);
        }
        let (text, spelled) = words.spelled();
        Self {
            tools: traits.into(),
            keys: keys.into(),
            starts: starts.into(),
            having: having.into(),
            postings: all.into_iter().map(|(_, at, weight)| (at, weight)).collect(),
            text,
            spelled,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.tools.len()
    }

    pub(super) fn tools(&self) -> impl Iterator<Item = &Traits> {
        self.tools.iter()
    }

    /// The tools that have a word or a meaning, by their places, and what it counts there.
    pub(super) fn postings(&self, key: WordKey) -> &[(u32, f32)] {
        let range = self.keys.binary_search(&key).ok().and_then(|at| {
            let start = *self.starts.get(at)? as usize;
            Some(start..*self.starts.get(at + 1)? as usize)
        });
        range.and_then(|range: Range<usize>| self.postings.get(range)).unwrap_or_default()
    }

    /// How many tools have a word or a meaning, those less that have it in a lesser place.
    pub(super) fn having(&self, key: WordKey) -> f32 {
        let at = self.keys.binary_search(&key).ok();
        at.and_then(|at| self.having.get(at)).copied().unwrap_or_default()
    }

    /// Words that so few typing errors make of `word`, and how many.
    pub(super) fn near<'a>(
        &'a self,
        word: &'a str,
        most: usize,
    ) -> impl Iterator<Item = (usize, &'a str)> {
        let letters = spelling::letters(word);
        let length = word.len();
        let near = self.spelled.iter().filter(move |spelled| {
            spelling::could_be(letters, spelled.letters, most)
                && (spelled.length as usize).abs_diff(length) <= 2 * most
        });
        near.filter_map(move |spelled| {
            let (from, length) = (spelled.from as usize, spelled.length as usize);
            let known = self.text.get(from..from + length)?;
            Some((spelling::errors(word, known, most)?, known))
        })
    }
}

/// The words of one tool.
struct ToolWords {
    weights: HashMap<WordKey, f32>,
    traits: Traits,
}

impl ToolWords {
    fn of(tool: &Tool, known: &mut Words<'_>) -> Self {
        let (first, rest) = first_sentence(&tool.description);
        let server = words(&tool.name.server);
        let mut name = words(&tool.name.tool);
        // Many names begin with their server's, and many texts name it: that says nothing beside the other tools.
        let prefix = name.iter().take_while(|word| server.contains(word)).count();
        if prefix < name.len() {
            name.drain(..prefix);
        }
        let mut weights = HashMap::new();
        let mut add = |field: &Field, found: &[WordKey], length: usize| {
            let long = 1.0 - field.by_length + field.by_length * length as f32 / field.usual;
            for key in found {
                *weights.entry(*key).or_default() += field.weight / long;
            }
        };
        let effect = known.effect(&name).or_else(|| {
            let first: Vec<_> = words(first).into_iter().take(VERB_WITHIN).collect();
            known.effect(&first)
        });
        let verbs = known.verbs(&name);
        let (keys, length) = known.keys(&name);
        add(&NAME, &keys, length);
        let (keys, length) = known.keys(&server);
        add(&SERVER, &keys, length);
        for (field, text) in [
            (&TITLE, tool.title.as_deref().unwrap_or_default()),
            (&FIRST_SENTENCE, first),
            (&DESCRIPTION, rest),
        ] {
            // Of its server's name it says little that it is in its texts as well.
            let mut words = words(text);
            words.retain(|word| !server.contains(word) || name.contains(word));
            let (keys, length) = known.keys(&words);
            add(field, &keys, length);
        }
        let schema = Some(tool.input_schema.get()).filter(|text| text.len() <= MAX_SCHEMA_BYTES);
        if let Some(Ok(schema)) = schema.map(serde_json::from_str) {
            let (mut names, mut descriptions) = (Vec::new(), Vec::new());
            parameters(&schema, MAX_PARAMETER_DEPTH, &mut names, &mut descriptions);
            for (field, found) in [(&PARAMETERS, names), (&PARAMETER_DESCRIPTIONS, descriptions)] {
                let (keys, length) = known.keys(&found);
                add(field, &keys, length);
            }
        }
        let traits = Traits {
            name: xxh3_64(plain(&tool.name.tool).as_bytes()),
            qualified_name: xxh3_64(plain(&tool.name.to_string()).as_bytes()),
            effect,
            destroys: tool.capability.side_effect == SideEffect::Destructive,
            deprecated: [
                &*tool.name.tool,
                tool.title.as_deref().unwrap_or_default(),
                &tool.description,
            ]
            .into_iter()
            .any(deprecation::is_marked),
            verbs,
        };
        Self { weights, traits }
    }
}

/// How much a tool is about a word, from 0 to 1.
pub(super) fn prominence(weight: f32) -> f32 {
    (weight / PROMINENT).min(1.0)
}

/// The first sentence, or line, of a description, and what comes after it.
fn first_sentence(text: &str) -> (&str, &str) {
    let text = text.trim_start();
    let line = text.find('\n').unwrap_or(text.len());
    let sentence = text.find(". ").map_or(text.len(), |at| at + 1);
    let other = text.find('。').map_or(text.len(), |at| at + '。'.len_utf8());
    text.split_at_checked(line.min(sentence).min(other)).unwrap_or((text, ""))
}

fn parameters(
    schema: &Value,
    depth: usize,
    names: &mut Vec<(String, Script)>,
    descriptions: &mut Vec<(String, Script)>,
) {
    let Some(deeper) = depth.checked_sub(1) else { return };
    let properties = schema.get("properties").and_then(Value::as_object);
    for (name, property) in properties.into_iter().flatten() {
        if names.len() >= MAX_FIELD_WORDS || descriptions.len() >= MAX_FIELD_WORDS {
            return;
        }
        names.extend(words(name));
        if let Some(Value::String(text)) = property.get("description") {
            descriptions.extend(words(text));
        }
        parameters(property, deeper, names, descriptions);
    }
    if let Some(items) = schema.get("items") {
        parameters(items, deeper, names, descriptions);
    }
}

/// What words mean and are compared by, each word looked up once: servers word their tools much alike.
struct Words<'a> {
    lexicon: &'a Lexicon,
    known: HashMap<String, Arc<Meaning>>,
}

/// What is known of a word.
struct Meaning {
    script: Script,
    keys: Box<[WordKey]>,
    concepts: Box<[Concept]>,
}

impl Words<'_> {
    fn look_up(&mut self, word: &str, script: Script) -> Arc<Meaning> {
        if let Some(known) = self.known.get(word) {
            return Arc::clone(known);
        }
        let keys = self.lexicon.keys(word, script).into();
        let concepts = self.lexicon.thesaurus.meanings(word, ENGLISH).into();
        let meaning = Arc::new(Meaning { script, keys, concepts });
        self.known.insert(word.to_owned(), Arc::clone(&meaning));
        meaning
    }

    /// What the words are compared by, and how many of them say something.
    fn keys(&mut self, found: &[(String, Script)]) -> (Vec<WordKey>, usize) {
        let (mut keys, mut length) = (Vec::new(), 0);
        let found = found.get(..MAX_FIELD_WORDS).unwrap_or(found);
        for (at, (word, script)) in found.iter().enumerate() {
            let phrase = found.get(at..).and_then(|rest| self.lexicon.thesaurus.phrase(rest));
            let meanings = phrase.into_iter().flat_map(|(_, meanings)| meanings);
            keys.extend(meanings.copied().map(concept_key));
            let known = self.look_up(word, *script);
            keys.extend(known.keys.iter());
            length += match script {
                Script::Spaced => usize::from(!known.keys.is_empty()),
                Script::Unspaced => known.keys.len(),
            };
        }
        (keys, length)
    }

    /// What the first verb among words does.
    fn effect(&mut self, found: &[(String, Script)]) -> Option<Effect> {
        let lexicon = self.lexicon;
        found.iter().find_map(|(word, script)| {
            lexicon.thesaurus.effect(&self.look_up(word, *script).concepts)
        })
    }

    /// The verbs among words, if one of them says what is meant.
    fn verbs(&mut self, found: &[(String, Script)]) -> Box<[WordKey]> {
        let lexicon = self.lexicon;
        let thesaurus = &lexicon.thesaurus;
        let (mut verbs, mut special) = (Vec::new(), false);
        for (word, script) in found {
            let meaning = self.look_up(word, *script);
            special |= thesaurus.special(&meaning.concepts);
            let verb = |concept: &Concept| {
                thesaurus.kind(*concept).is_some_and(|kind| kind != ConceptKind::Thing)
            };
            verbs.extend(meaning.concepts.iter().copied().filter(verb).map(concept_key));
        }
        if special { verbs.into() } else { Box::default() }
    }

    /// The words that typing errors may be in.
    fn spelled(self) -> (Box<str>, Box<[Spelled]>) {
        let (mut text, mut spelled) = (String::new(), Vec::new());
        for (word, meaning) in self.known {
            let letters = word.chars().count() >= MIN_SPELLED && !word.contains(char::is_numeric);
            let from = u32::try_from(text.len());
            if let (Ok(from), Ok(length)) = (from, u32::try_from(word.len()))
                && letters
                && meaning.script == Script::Spaced
                && !meaning.keys.is_empty()
            {
                spelled.push(Spelled { letters: spelling::letters(&word), from, length });
                text.push_str(&word);
            }
        }
        (text.into(), spelled.into())
    }
}
