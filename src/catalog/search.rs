//! The ranked index over all tools: plain words in, the tools that fit out (FR-021).
//!
//! BM25 over name, title, description, parameters and server, each field with its weight (which is
//! why the scores are computed here), over the bm25 crate's stems, and with the synonyms a newcomer
//! uses for the verbs that tools are named after. Deliberately no embedding model: the index is
//! rebuilt whole in milliseconds whenever a set of tools changes.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use bm25::{DefaultTokenizer, Language, Tokenizer as _};
use serde_json::Value;

use super::synonyms::SYNONYMS;
use crate::tool::Tool;

#[cfg(test)]
mod samples;

/// What one occurrence of a word counts, by where it stands. A name says in two words what a
/// description says in thirty.
const NAME: f32 = 4.0;
const TITLE: f32 = 2.0;
const DESCRIPTION: f32 = 1.0;
const SERVER: f32 = 1.0;
const PARAMETER: f32 = 0.7;
const PARAMETER_DESCRIPTION: f32 = 0.3;

/// BM25's saturation and length normalisation.
const K1: f32 = 1.2;
const B: f32 = 0.6;

/// What a synonym of the query's word is worth: less where some tool uses the word itself.
const SYNONYM: f32 = 0.5;
const STAND_IN: f32 = 0.9;

/// What a tool gains whose name the query is; more than any words can add up to.
const EXACT_NAME: f32 = 1000.0;

/// The raw score that becomes 0.5; about that of one rare word in a name.
const HALF_SCORE: f32 = 5.0;

/// How deep parameters are looked for in an input schema.
const MAX_PARAMETER_DEPTH: usize = 3;

/// Most words of a query that are looked up.
const MAX_QUERY_WORDS: usize = 64;

/// An index over one snapshot's tools. Cheap to clone.
#[derive(Clone)]
pub struct Index(Arc<Inner>);

struct Inner {
    tokenizer: DefaultTokenizer,
    /// Each tool's name as plain words.
    names: Box<[Box<str>]>,
    /// For each stem, the tools that have it and what it is worth there, without its rarity.
    postings: HashMap<Box<str>, Box<[(u32, f32)]>>,
    /// For each stem, the others of its groups.
    synonyms: HashMap<String, Vec<String>>,
}

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Index({} tools, {} stems)", self.0.names.len(), self.0.postings.len())
    }
}

impl Index {
    /// Indexes `tools`; a result is a position in it.
    #[must_use]
    pub fn build(tools: &[Arc<Tool>]) -> Self {
        let mut words = Words::new();
        let documents: Vec<_> = tools.iter().map(|tool| Document::of(tool, &mut words)).collect();
        let total: f32 = documents.iter().map(|document| document.length).sum();
        let average = (total / documents.len().max(1) as f32).max(1.0);
        let mut postings = vec![Vec::new(); words.stems.len()];
        for (at, document) in (0u32..).zip(documents) {
            let damping = K1 * (1.0 - B + B * document.length / average);
            for (stem, weight) in document.weights {
                if let Some(list) = postings.get_mut(stem as usize) {
                    list.push((at, weight * (K1 + 1.0) / (weight + damping)));
                }
            }
        }
        let Words { tokenizer, stems, .. } = words;
        let mut list =
            |id: u32| postings.get_mut(id as usize).map(std::mem::take).unwrap_or_default();
        let postings = stems.into_iter().map(|(stem, id)| (stem, list(id).into())).collect();
        let synonyms = synonyms(&tokenizer);
        let names = tools.iter().map(|tool| plain(&tool.name.tool).into()).collect();
        Self(Arc::new(Inner { tokenizer, names, postings, synonyms }))
    }

    /// The tools called `query`, then those that share a word with it or a synonym of one, best
    /// first; equal scores in the order of positions. Scores are from 0 to 1, on one scale for all
    /// queries.
    #[must_use]
    pub fn search(&self, query: &str) -> Vec<(usize, f32)> {
        let mut stems = stems_of(&self.0.tokenizer, query);
        stems.truncate(MAX_QUERY_WORDS);
        stems.sort_unstable();
        stems.dedup();
        let exact = plain(query);
        let mut scores: Vec<f32> = Vec::with_capacity(self.0.names.len());
        scores.extend(self.0.names.iter().map(|name| match **name == *exact {
            true => EXACT_NAME,
            false => 0.0,
        }));
        for stem in &stems {
            for (at, score) in self.0.one_word(stem) {
                if let Some(sum) = scores.get_mut(at as usize) {
                    *sum += score;
                }
            }
        }
        let mut found: Vec<_> =
            scores.into_iter().enumerate().filter(|(_, score)| *score > 0.0).collect();
        found.sort_by(|(a, x), (b, y)| y.total_cmp(x).then(a.cmp(b)));
        found.into_iter().map(|(at, score)| (at, score / (score + HALF_SCORE))).collect()
    }
}

impl Inner {
    /// What one word of a query is worth in which tools. A tool that has the word and its synonyms
    /// means it once; a synonym is as rare as all its group together, or else the rarest one of
    /// `show`, `list`, `read` would outweigh the others.
    fn one_word(&self, stem: &str) -> HashMap<u32, f32> {
        let own = self.postings.get(stem).map(|list| &**list).unwrap_or_default();
        let synonyms = self.synonyms.get(stem).into_iter().flatten();
        let mut scores: HashMap<u32, f32> = HashMap::new();
        for (at, worth) in synonyms.filter_map(|synonym| self.postings.get(&**synonym)).flatten() {
            let best = scores.entry(*at).or_default();
            *best = best.max(*worth);
        }
        let rarity = self.rarity(scores.len());
        let weight = if own.is_empty() { STAND_IN } else { SYNONYM };
        scores.values_mut().for_each(|worth| *worth *= rarity * weight);
        let rarity = self.rarity(own.len());
        for (at, worth) in own {
            let best = scores.entry(*at).or_default();
            *best = best.max(worth * rarity);
        }
        scores
    }

    fn rarity(&self, tools_with: usize) -> f32 {
        let (all, with) = (self.names.len() as f32, tools_with as f32);
        (1.0 + (all - with + 0.5) / (with + 0.5)).ln()
    }
}

/// The words of one tool.
#[derive(Default)]
struct Document {
    /// By stem.
    weights: HashMap<u32, f32>,
    length: f32,
}

impl Document {
    fn of(tool: &Tool, words: &mut Words) -> Self {
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

    fn add(&mut self, words: &mut Words, text: &str, weight: f32) {
        for word in split_identifiers(text).split_whitespace() {
            for stem in words.stems(word) {
                *self.weights.entry(*stem).or_default() += weight;
                self.length += weight;
            }
        }
    }

    fn add_parameters(&mut self, words: &mut Words, schema: &Value, depth: usize) {
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
struct Words {
    tokenizer: DefaultTokenizer,
    known: HashMap<String, Box<[u32]>>,
    /// Every stem and its number, counted up from 0.
    stems: HashMap<Box<str>, u32>,
}

impl Words {
    fn new() -> Self {
        let tokenizer = DefaultTokenizer::new(Language::English);
        Self { tokenizer, known: HashMap::new(), stems: HashMap::new() }
    }

    /// The stems of `word`: none for a stop word, several where it is written in another script.
    fn stems(&mut self, word: &str) -> &[u32] {
        if !self.known.contains_key(word) {
            let stems = self.tokenizer.tokenize(word).into_iter().map(|stem| {
                let next = u32::try_from(self.stems.len()).unwrap_or(u32::MAX);
                *self.stems.entry(stem.into()).or_insert(next)
            });
            let stems = stems.collect();
            self.known.insert(word.to_owned(), stems);
        }
        self.known.get(word).map(|stems| &**stems).unwrap_or_default()
    }
}

fn stems_of(tokenizer: &DefaultTokenizer, text: &str) -> Vec<String> {
    split_identifiers(text).split_whitespace().flat_map(|word| tokenizer.tokenize(word)).collect()
}

/// `snake_case`, `kebab-case`, `camelCase` and `HTTPCase` as separate words.
fn split_identifiers(text: &str) -> String {
    let mut split = String::with_capacity(text.len() + text.len() / 8);
    let mut before = ' ';
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let hump = c.is_uppercase()
            && (before.is_lowercase()
                || before.is_numeric()
                || (before.is_uppercase() && chars.peek().is_some_and(|next| next.is_lowercase())));
        if hump {
            split.push(' ');
        }
        split.push(if c.is_alphanumeric() || c == '\'' { c } else { ' ' });
        before = c;
    }
    split
}

/// An identifier or a query as lower-case words.
fn plain(text: &str) -> String {
    split_identifiers(text.trim()).to_lowercase()
}

fn synonyms(tokenizer: &DefaultTokenizer) -> HashMap<String, Vec<String>> {
    let mut synonyms: HashMap<String, Vec<String>> = HashMap::new();
    for group in SYNONYMS {
        let stems = stems_of(tokenizer, &group.join(" "));
        for stem in &stems {
            let others = stems.iter().filter(|other| *other != stem).cloned();
            synonyms.entry(stem.clone()).or_default().extend(others);
        }
    }
    synonyms
}

#[cfg(test)]
mod tests {
    use super::samples::{QUERIES, TOOLS};
    use super::*;
    use crate::catalog::{Catalog, DiscoveredTool, ServerSettings, Settings, Snapshot};

    fn found(name: &str, description: &str, parameters: &str) -> DiscoveredTool {
        let properties: serde_json::Map<String, Value> = parameters
            .split_whitespace()
            .map(|name| (name.into(), serde_json::json!({"type": "string"})))
            .collect();
        let json = serde_json::json!({
            "name": name,
            "description": description,
            "inputSchema": {"type": "object", "properties": properties},
        });
        DiscoveredTool::parse(&serde_json::value::to_raw_value(&json).unwrap()).unwrap()
    }

    fn snapshot(tools: &[(&str, &str, &str, &str)]) -> Arc<Snapshot> {
        let mut sets: std::collections::BTreeMap<&str, Vec<DiscoveredTool>> = Default::default();
        for (server, name, description, parameters) in tools {
            sets.entry(server).or_default().push(found(name, description, parameters));
        }
        let servers = sets.keys().map(|name| (Arc::from(*name), ServerSettings::default()));
        let catalog = Catalog::new(Settings { servers: servers.collect(), ..Settings::default() });
        for (server, set) in sets {
            catalog.replace_server(server, set);
        }
        catalog.load()
    }

    fn names(snapshot: &Snapshot, query: &str, limit: usize) -> Vec<String> {
        snapshot.search(query, limit).iter().map(|(tool, _)| tool.name.to_string()).collect()
    }

    #[test]
    fn fr_021_a_newcomers_words_find_the_right_tool() {
        let snapshot = snapshot(TOOLS);
        let mut missed = Vec::new();
        let mut first = 0;
        for (query, expected) in QUERIES {
            let top = names(&snapshot, query, 3);
            first += usize::from(top.first().is_some_and(|name| name == expected));
            if !top.iter().any(|name| name == expected) {
                missed.push(format!("{query}: {top:?}, expected {expected}"));
            }
        }
        assert!(missed.is_empty(), "{missed:#?}");
        assert!(3 * first >= 2 * QUERIES.len(), "only {first} of {} at once", QUERIES.len());
    }

    #[test]
    fn every_tool_is_found_by_its_own_name() {
        let snapshot = snapshot(TOOLS);
        for (server, name, _, _) in TOOLS {
            assert_eq!(names(&snapshot, name, 1), [format!("{server}:{name}")], "{name}");
        }
    }

    #[test]
    fn scores_fall_from_1_to_0_and_ties_are_in_order() {
        let snapshot = snapshot(TOOLS);
        let found = snapshot.search("create a file in a directory", usize::MAX);
        assert!(found.iter().all(|(_, score)| (0.0..=1.0).contains(score) && *score > 0.0));
        assert!(found.windows(2).all(|pair| pair[0].1 >= pair[1].1));
        let twins = [("b", "same", "x", ""), ("a", "same", "x", ""), ("c", "same", "x", "")];
        assert_eq!(
            names(&super::tests::snapshot(&twins), "same", 9),
            ["a:same", "b:same", "c:same"]
        );
    }

    #[test]
    fn nothing_in_common_finds_nothing() {
        let snapshot = snapshot(TOOLS);
        for query in ["", "  ", "*", "zxqv", "the", "\u{1f5d1}"] {
            assert!(names(&snapshot, query, 9).is_empty(), "{query}");
        }
        assert!(names(&super::tests::snapshot(&[]), "file", 9).is_empty());
        assert_eq!(names(&snapshot, &"file ".repeat(100_000), 2).len(), 2);
    }

    #[test]
    fn identifiers_are_split() {
        for (text, split) in [
            ("deleteRepo", "delete Repo"),
            ("delete_repo-now", "delete repo now"),
            ("HTTPServer", "HTTP Server"),
            ("parseURL", "parse URL"),
            ("file2Text", "file2 Text"),
        ] {
            assert_eq!(split_identifiers(text), split);
        }
    }
}
