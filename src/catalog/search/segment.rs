//! Inverted index of one server's tools, and the index over all servers.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64;

use super::thesaurus::{Concept, ConceptKind, ENGLISH, Effect, Lexicon, WordKey, concept_key};
use super::tokenizer::{self, Script, plain, words};
use mcpproxy_policy::tool::{SideEffect, Tool};

/// A field of a tool's definition, with the weight of a word, the usual length, and length normalization, which makes
/// each word count less in longer fields.
struct Field {
    weight: f32,
    usual: f32,
    /// Strength of length normalization, 0 to 1.
    by_length: f32,
}

const NAME: Field = Field { weight: 6.0, usual: 3.0, by_length: 0.6 };
const TITLE: Field = Field { weight: 1.5, usual: 3.0, by_length: 0.5 };
const FIRST_SENTENCE: Field = Field { weight: 3.0, usual: 8.0, by_length: 0.6 };
const DESCRIPTION: Field = Field { weight: 0.5, usual: 30.0, by_length: 0.7 };
const SERVER: Field = Field { weight: 2.0, usual: 1.0, by_length: 0.3 };
const PARAMETERS: Field = Field { weight: 0.5, usual: 5.0, by_length: 0.6 };
const PARAMETER_DESCRIPTIONS: Field = Field { weight: 0.4, usual: 40.0, by_length: 0.7 };

/// Weight at which a word is considered the tool's main subject.
const PROMINENT: f32 = 4.0;

/// Maximum number of words indexed per field.
const MAX_FIELD_WORDS: usize = 1024;

/// Maximum depth and size of input schemas that are searched for parameters.
const MAX_PARAMETER_DEPTH: usize = 3;
const MAX_SCHEMA_BYTES: usize = 1024 * 1024;

/// Number of leading words of a description in which the tool's verb is looked for if the name does not contain it.
const VERB_WITHIN: usize = 2;

/// Minimum number of letters in a word that is offered as a correction.
const MIN_SPELLED: usize = 4;

/// Inverted index of one server's tools.
#[derive(Default)]
pub struct Segment {
    tools: Box<[Traits]>,
    /// Sorted keys of words and meanings, with the start of their postings; the last entry marks the end.
    keys: Box<[WordKey]>,
    starts: Box<[u32]>,
    /// Document frequency of each key, weighted by prominence.
    document_frequency: Box<[f32]>,
    /// Postings: tool and weight.
    postings: Box<[(u32, f32)]>,
    /// Spellings: the concatenated text and the positions in it.
    text: Box<str>,
    spelled: Box<[Spelled]>,
}

/// Other properties of a tool.
#[derive(Clone, Debug)]
pub(super) struct Traits {
    /// Keys of the tool's name and of `server:tool`, with which queries are compared.
    pub(super) name: WordKey,
    pub(super) qualified_name: WordKey,
    /// Effect stated by the tool's name or description.
    pub(super) effect: Option<Effect>,
    /// Whether annotations or the operator mark the tool destructive.
    pub(super) destroys: bool,
    pub(super) deprecated: bool,
    /// Verbs in the tool's name, if one of them is specific.
    pub(super) verbs: Box<[WordKey]>,
}

/// Spelling of a word.
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
    pub fn of<'a>(lexicon: &Lexicon, tools: impl IntoIterator<Item = &'a Arc<Tool>>) -> Self {
        let mut words = Words { lexicon, known: HashMap::new() };
        let (mut traits, mut all) = (Vec::new(), Vec::new());
        for (at, tool) in (0u32..).zip(tools) {
            let document = ToolWords::of(tool, &mut words);
            traits.push(document.traits);
            all.extend(document.weights.into_iter().map(|(key, weight)| (key, at, weight)));
        }
        all.sort_unstable_by_key(|(key, at, _)| (*key, *at));
        let (mut keys, mut starts, mut document_frequency) = (Vec::new(), vec![0], Vec::new());
        let mut end = 0;
        for alike in all.chunk_by(|a, b| a.0 == b.0) {
            keys.extend(alike.first().map(|(key, ..)| *key));
            document_frequency.push(alike.iter().map(|(.., weight)| prominence(*weight)).sum());
            end += u32::try_from(alike.len()).unwrap_or(u32::MAX);
            starts.push(end);
        }
        let (text, spelled) = words.spelled();
        Self {
            tools: traits.into(),
            keys: keys.into(),
            starts: starts.into(),
            document_frequency: document_frequency.into(),
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

    /// Postings of a key: tool positions and weights.
    pub(super) fn postings(&self, key: WordKey) -> &[(u32, f32)] {
        let range = self.keys.binary_search(&key).ok().and_then(|at| {
            let start = *self.starts.get(at)? as usize;
            Some(start..*self.starts.get(at + 1)? as usize)
        });
        range.and_then(|range: Range<usize>| self.postings.get(range)).unwrap_or_default()
    }

    /// Document frequency of a key, weighted by prominence.
    pub(super) fn document_frequency(&self, key: WordKey) -> f32 {
        let at = self.keys.binary_search(&key).ok();
        at.and_then(|at| self.document_frequency.get(at)).copied().unwrap_or_default()
    }

    /// Words within `max` typing errors of `word`, with their number of errors.
    pub(super) fn near<'a>(
        &'a self,
        word: &'a str,
        max: usize,
    ) -> impl Iterator<Item = (usize, &'a str)> {
        let letters = tokenizer::letters(word);
        let length = word.len();
        let near = self.spelled.iter().filter(move |spelled| {
            tokenizer::could_be(letters, spelled.letters, max)
                && (spelled.length as usize).abs_diff(length) <= 2 * max
        });
        near.filter_map(move |spelled| {
            let (from, length) = (spelled.from as usize, spelled.length as usize);
            let known = self.text.get(from..from + length)?;
            Some((tokenizer::errors(word, known, max)?, known))
        })
    }
}

/// Indexed words of one tool.
struct ToolWords {
    weights: HashMap<WordKey, f32>,
    traits: Traits,
}

impl ToolWords {
    fn of(tool: &Tool, known: &mut Words<'_>) -> Self {
        let (first, rest) = first_sentence(&tool.description);
        let server = words(&tool.name.server);
        let mut name = words(&tool.name.tool);
        // A server's name does not distinguish its tools, so a name prefix equal to it is skipped.
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
            // Occurrences of the server name in texts are skipped as well.
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
            .any(tokenizer::is_marked),
            verbs,
        };
        Self { weights, traits }
    }
}

/// Prominence of a word in a tool, 0 to 1.
pub(super) fn prominence(weight: f32) -> f32 {
    (weight / PROMINENT).min(1.0)
}

/// Splits a description at the end of its first sentence or line.
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

/// Cache of word lookups during indexing, because servers share much vocabulary.
struct Words<'a> {
    lexicon: &'a Lexicon,
    known: HashMap<String, Arc<Meaning>>,
}

/// Lookup result of a word.
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

    /// Keys of words, and the number of significant words.
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

    /// Effect of the first verb.
    fn effect(&mut self, found: &[(String, Script)]) -> Option<Effect> {
        let lexicon = self.lexicon;
        found.iter().find_map(|(word, script)| {
            lexicon.thesaurus.effect(&self.look_up(word, *script).concepts)
        })
    }

    /// Verbs, if one of them is specific.
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

    /// Words offered as corrections.
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
                spelled.push(Spelled { letters: tokenizer::letters(&word), from, length });
                text.push_str(&word);
            }
        }
        (text.into(), spelled.into())
    }
}

/// Index over all segments of a snapshot. A tool's position is its place among the tools of all segments.
pub struct Index {
    pub(super) lexicon: Arc<Lexicon>,
    pub(super) segments: Box<[Arc<Segment>]>,
    pub(super) tools: usize,
}

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Index({} tools of {} servers)", self.tools, self.segments.len())
    }
}

impl Index {
    /// Creates an index over `segments`, in order.
    pub fn of(lexicon: Arc<Lexicon>, segments: impl IntoIterator<Item = Arc<Segment>>) -> Self {
        let segments: Box<[_]> = segments.into_iter().collect();
        let tools = segments.iter().map(|segment| segment.len()).sum();
        Self { lexicon, segments, tools }
    }

    pub(super) fn traits(&self, mut at: usize) -> Option<&Traits> {
        for segment in &self.segments {
            match at.checked_sub(segment.len()) {
                Some(rest) => at = rest,
                None => return segment.tools().nth(at),
            }
        }
        None
    }

    /// Document frequency over all segments, weighted by prominence.
    pub(super) fn document_frequency(&self, key: WordKey) -> f32 {
        self.segments.iter().map(|segment| segment.document_frequency(key)).sum()
    }
}
