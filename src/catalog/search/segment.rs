//! The words of one server's tools, as far as they do not depend on any other's.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use serde_json::Value;

use super::lexicon::{Lexicon, plain, split_identifiers};
use crate::tool::Tool;

/// What one occurrence of a word counts, by where it stands. A name says in two words what a
/// description says in thirty.
const NAME: f32 = 4.0;
const TITLE: f32 = 2.0;
const DESCRIPTION: f32 = 1.0;
const SERVER: f32 = 1.0;
const PARAMETER: f32 = 0.7;
const PARAMETER_DESCRIPTION: f32 = 0.3;

/// How deep parameters are looked for in an input schema.
const MAX_PARAMETER_DEPTH: usize = 3;

/// The words of a few tools: those of one server.
#[derive(Default)]
pub struct Segment {
    /// Each tool's name as plain words.
    names: Box<[Box<str>]>,
    /// What all words of each tool count.
    lengths: Box<[f32]>,
    /// Which of the postings are a stem's.
    stems: HashMap<Box<str>, Range<u32>>,
    /// Which tool has a stem, and what it counts there.
    postings: Box<[(u32, f32)]>,
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Segment({} tools, {} stems)", self.len(), self.stems.len())
    }
}

impl Segment {
    /// Indexes `tools`.
    #[must_use]
    pub fn of<'a>(lexicon: &Lexicon, tools: impl IntoIterator<Item = &'a Arc<Tool>>) -> Self {
        let mut words = Words::new(lexicon);
        let (mut names, mut lengths, mut all) = (Vec::new(), Vec::new(), Vec::new());
        for (at, tool) in (0u32..).zip(tools) {
            let document = ToolWords::of(tool, &mut words);
            names.push(plain(&tool.name.tool).into());
            lengths.push(document.length);
            all.extend(document.weights.into_iter().map(|(stem, weight)| (stem, at, weight)));
        }
        all.sort_unstable_by_key(|(stem, at, _)| (*stem, *at));
        let mut ranges = vec![0..0; words.stems.len()];
        let mut from = 0;
        for alike in all.chunk_by(|a, b| a.0 == b.0) {
            let to = from + u32::try_from(alike.len()).unwrap_or(u32::MAX);
            if let Some(range) = alike.first().and_then(|(stem, ..)| ranges.get_mut(*stem as usize))
            {
                *range = from..to;
            }
            from = to;
        }
        let range = |id: u32| ranges.get(id as usize).cloned().unwrap_or_default();
        Self {
            names: names.into(),
            lengths: lengths.into(),
            stems: words.stems.into_iter().map(|(stem, id)| (stem, range(id))).collect(),
            postings: all.into_iter().map(|(_, at, weight)| (at, weight)).collect(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(|name| &**name)
    }

    pub(super) fn lengths(&self) -> impl Iterator<Item = f32> {
        self.lengths.iter().copied()
    }

    /// The tools that have a stem, by their places, and what it counts there.
    pub(super) fn postings(&self, stem: &str) -> &[(u32, f32)] {
        let range = self.stems.get(stem).map(|range| range.start as usize..range.end as usize);
        range.and_then(|range| self.postings.get(range)).unwrap_or_default()
    }
}

/// The words of one tool.
#[derive(Default)]
pub(super) struct ToolWords {
    /// By stem.
    pub(super) weights: HashMap<u32, f32>,
    pub(super) length: f32,
}

impl ToolWords {
    pub(super) fn of(tool: &Tool, words: &mut Words<'_>) -> Self {
        let mut document = Self::default();
        document.add(words, &tool.name.tool, NAME);
        document.add(words, tool.title.as_deref().unwrap_or_default(), TITLE);
        document.add(words, &tool.description, DESCRIPTION);
        document.add(words, &tool.name.server, SERVER);
        if let Ok(schema) = serde_json::from_str(tool.input_schema.get()) {
            document.add_parameters(words, &schema, MAX_PARAMETER_DEPTH);
        }
        document
    }

    fn add(&mut self, words: &mut Words<'_>, text: &str, weight: f32) {
        for word in split_identifiers(text).split_whitespace() {
            for stem in words.stems(word) {
                *self.weights.entry(*stem).or_default() += weight;
                self.length += weight;
            }
        }
    }

    fn add_parameters(&mut self, words: &mut Words<'_>, schema: &Value, depth: usize) {
        let Some(deeper) = depth.checked_sub(1) else { return };
        let properties = schema.get("properties").and_then(Value::as_object);
        for (name, property) in properties.into_iter().flatten() {
            self.add(words, name, PARAMETER);
            if let Some(Value::String(text)) = property.get("description") {
                self.add(words, text, PARAMETER_DESCRIPTION);
            }
            self.add_parameters(words, property, deeper);
        }
        if let Some(items) = schema.get("items") {
            self.add_parameters(words, items, deeper);
        }
    }
}

/// Words to stems, each word once: servers word their tools much alike.
pub(super) struct Words<'a> {
    lexicon: &'a Lexicon,
    known: HashMap<String, Box<[u32]>>,
    /// Every stem and its number, counted up from 0.
    pub(super) stems: HashMap<Box<str>, u32>,
}

impl<'a> Words<'a> {
    pub(super) fn new(lexicon: &'a Lexicon) -> Self {
        Self { lexicon, known: HashMap::new(), stems: HashMap::new() }
    }

    /// The stems of `word`.
    fn stems(&mut self, word: &str) -> &[u32] {
        if !self.known.contains_key(word) {
            let stems = self.lexicon.word(word).into_iter().map(|stem| {
                let next = u32::try_from(self.stems.len()).unwrap_or(u32::MAX);
                *self.stems.entry(stem.into()).or_insert(next)
            });
            let stems = stems.collect();
            self.known.insert(word.to_owned(), stems);
        }
        self.known.get(word).map(|stems| &**stems).unwrap_or_default()
    }
}
