//! The ranked index over all tools: plain words in, the tools that fit out (FR-021).
//!
//! BM25 over name, title, description, parameters and server, each field with its weight (which is
//! why the scores are computed here), over the bm25 crate's stems, and with the synonyms a newcomer
//! uses for the verbs that tools are named after. Deliberately no embedding model.
//!
//! The words of one server's tools are a [`Segment`], made once for each set and shared by every
//! snapshot that holds it: what a change costs does not grow with the other servers' tools, but for
//! one number each. What depends on all tools, how rare a word is and how long an average tool, is
//! put in when a query is answered, so that the ranking is that of an index built whole.

use std::fmt;
use std::sync::Arc;

use self::lexicon::plain;

mod lexicon;
mod segment;
mod synonyms;

#[cfg(test)]
pub(super) mod samples;
#[cfg(test)]
mod whole;

pub use lexicon::Lexicon;
pub use segment::Segment;

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

/// Most words of a query that are looked up.
const MAX_QUERY_WORDS: usize = 64;

/// An index over one snapshot's tools.
pub struct Index {
    lexicon: Arc<Lexicon>,
    segments: Box<[Arc<Segment>]>,
    /// For each tool, how much less a word counts in it, by its length.
    dampings: Box<[f32]>,
}

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Index({} tools of {} servers)", self.dampings.len(), self.segments.len())
    }
}

impl Index {
    /// The index over the tools of all `segments`, in their order; a result is a position in them.
    #[must_use]
    pub fn of(lexicon: Arc<Lexicon>, segments: impl IntoIterator<Item = Arc<Segment>>) -> Self {
        let segments: Box<[_]> = segments.into_iter().collect();
        let lengths = || segments.iter().flat_map(|segment| segment.lengths());
        let total: f32 = lengths().sum();
        let average = (total / lengths().count().max(1) as f32).max(1.0);
        let dampings = lengths().map(|length| K1 * (1.0 - B + B * length / average)).collect();
        Self { lexicon, segments, dampings }
    }

    /// The tools called `query`, then those that share a word with it or a synonym of one, best
    /// first; equal scores in the order of positions. Scores are from 0 to 1, on one scale for all
    /// queries.
    #[must_use]
    pub fn search(&self, query: &str) -> Vec<(usize, f32)> {
        let mut stems = self.lexicon.stems(query);
        stems.truncate(MAX_QUERY_WORDS);
        stems.sort_unstable();
        stems.dedup();
        let exact = plain(query);
        let names = self.segments.iter().flat_map(|segment| segment.names());
        let mut scores: Vec<f32> = Vec::with_capacity(self.dampings.len());
        scores.extend(names.map(|name| if *name == *exact { EXACT_NAME } else { 0.0 }));
        let mut word = OneWord { worth: vec![0.0; self.dampings.len()], tools: Vec::new() };
        for stem in &stems {
            self.one_word(stem, &mut word);
            for (at, score) in word.take() {
                if let Some(sum) = scores.get_mut(at) {
                    *sum += score;
                }
            }
        }
        let mut found: Vec<_> =
            scores.into_iter().enumerate().filter(|(_, score)| *score > 0.0).collect();
        found.sort_by(|(a, x), (b, y)| y.total_cmp(x).then(a.cmp(b)));
        found.into_iter().map(|(at, score)| (at, score / (score + HALF_SCORE))).collect()
    }

    /// What one word of a query is worth in which tools. A tool that has the word and its synonyms
    /// means it once; a synonym is as rare as all its group together, or else the rarest one of
    /// `show`, `list`, `read` would outweigh the others.
    fn one_word(&self, stem: &str, word: &mut OneWord) {
        for synonym in self.lexicon.synonyms(stem) {
            for (at, worth) in self.postings(synonym) {
                word.is_worth(at, worth);
            }
        }
        let own = self.segments.iter().map(|segment| segment.postings(stem).len()).sum();
        let weight = if own == 0 { STAND_IN } else { SYNONYM };
        word.weigh(self.rarity(word.tools.len()) * weight);
        let rarity = self.rarity(own);
        for (at, worth) in self.postings(stem) {
            word.is_worth(at, worth * rarity);
        }
    }

    /// The tools that have a stem, and what it is worth there, without its rarity.
    fn postings(&self, stem: &str) -> impl Iterator<Item = (usize, f32)> {
        let mut first = 0;
        self.segments.iter().flat_map(move |segment| {
            let from = first;
            first += segment.len();
            segment.postings(stem).iter().filter_map(move |(at, weight)| {
                let at = from + *at as usize;
                let damping = self.dampings.get(at)?;
                Some((at, weight * (K1 + 1.0) / (weight + damping)))
            })
        })
    }

    fn rarity(&self, tools_with: usize) -> f32 {
        let (all, with) = (self.dampings.len() as f32, tools_with as f32);
        (1.0 + (all - with + 0.5) / (with + 0.5)).ln()
    }
}

/// What one word is worth, by tool.
struct OneWord {
    /// For each tool; 0 for most.
    worth: Vec<f32>,
    /// Those for which it is not.
    tools: Vec<usize>,
}

impl OneWord {
    /// It is worth that in a tool, if it was not worth more. What is given is more than 0.
    fn is_worth(&mut self, tool: usize, worth: f32) {
        let Some(best) = self.worth.get_mut(tool) else { return };
        if *best == 0.0 {
            self.tools.push(tool);
        }
        *best = best.max(worth);
    }

    fn weigh(&mut self, weight: f32) {
        for tool in &self.tools {
            if let Some(worth) = self.worth.get_mut(*tool) {
                *worth *= weight;
            }
        }
    }

    /// What it is worth; afterwards nothing.
    fn take(&mut self) -> impl Iterator<Item = (usize, f32)> {
        let worth = &mut self.worth;
        self.tools.drain(..).filter_map(|tool| Some((tool, std::mem::take(worth.get_mut(tool)?))))
    }
}

#[cfg(test)]
mod tests {
    use super::samples::{QUERIES, TOOLS};
    use super::whole::WholeIndex;
    use super::*;
    use crate::catalog::{Catalog, DiscoveredTool, ServerSettings, Settings, Snapshot};
    use serde_json::Value;

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
    fn an_index_of_segments_ranks_as_one_built_whole_after_every_change() {
        let mut servers: Vec<&str> = TOOLS.iter().map(|(server, ..)| *server).collect();
        servers.dedup();
        let settings = servers.iter().map(|name| (Arc::from(*name), ServerSettings::default()));
        let catalog = Catalog::new(Settings { servers: settings.collect(), ..Settings::default() });
        let set = |server: &str, from: usize| {
            let of_server = TOOLS.iter().filter(|(known, ..)| *known == server);
            let found =
                of_server.map(|(_, name, about, parameters)| found(name, about, parameters));
            found.skip(from).collect::<Vec<_>>()
        };
        // Sets come in no order, shrink, go and come back.
        let change = |round: usize| {
            let server = servers[round * 7 % servers.len()];
            (server, if round % 5 == 4 { usize::MAX } else { round % 3 })
        };
        let queries = QUERIES.iter().map(|(query, _)| *query);
        let queries: Vec<_> = queries.chain(TOOLS.iter().map(|(_, name, ..)| *name)).collect();
        let (lexicon, mut compared) = (Lexicon::default(), 0);
        for round in 0..3 * servers.len() {
            let (server, from) = change(round);
            catalog.replace_server(server, set(server, from));
            let snapshot = catalog.load();
            let whole = WholeIndex::build(&lexicon, snapshot.tools());
            for query in &queries {
                let expected: Vec<_> = whole.search(query);
                let found = snapshot.search(query, usize::MAX);
                let places = |(tool, score): &(Arc<crate::tool::Tool>, f32)| {
                    let at = snapshot.tools().iter().position(|known| Arc::ptr_eq(known, tool));
                    (at.unwrap(), *score)
                };
                assert_eq!(found.iter().map(places).collect::<Vec<_>>(), expected, "{query}");
                compared += expected.len();
            }
        }
        assert!(compared > 1000, "{compared}");
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
}
