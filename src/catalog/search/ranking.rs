//! Ranking by words: scores each tool for a query (BM25 with coverage, effect agreement and name match), then selects
//! and orders the results.
//!
//! Results by meaning are added by reciprocal rank fusion of the ranking by words and the ranking by meaning, because
//! their scores are not comparable, but their ranks are. Measurements with other constants:
//! `tools/bench/search/README.md`.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};

use xxhash_rust::xxh3::xxh3_64;

use super::query::{Bearing, ParsedQuery, QueryTerm};
use super::segment::{Index, Traits, prominence};
use super::thesaurus::{Effect, WordKey};
use super::tokenizer::plain;
use super::vectors::Near;

/// Weight of an unspecific verb in a query.
const VERB: f32 = 0.5;

/// Weight of a word in a clause that begins with "that".
const REPORTED: f32 = 0.3;

/// Factor for a tool whose name consists of the query's words. It is small, because such a match may be coincidental.
const CALLED: f32 = 1.5;

/// Share of a score that is independent of coverage.
const UNCOVERED: f32 = 0.6;
/// Shares of a word's coverage weight: `ALIKE` does not depend on the rarity of the word, and `WEAKLY` does not depend
/// on its prominence in the tool.
const ALIKE: f32 = 0.6;
const WEAKLY: f32 = 0.3;
/// Coverage weight of an unknown word.
const UNKNOWN: f32 = 0.8;
/// Factor for an unwanted destructive tool.
const UNWANTED: f32 = 0.6;
/// Factor for a tool whose verb the query does not ask for.
const UNASKED: f32 = 0.8;

/// Score of a query for one tool.
#[derive(Clone, Copy, Default)]
struct Worth {
    score: f32,
    /// Coverage weight of the query's words that the tool has.
    covered: f32,
    /// Whether one of the words that the tool has is specific.
    meant: bool,
}

impl Index {
    /// Visible tools that have enough of the words, in order.
    pub(super) fn by_words(
        &self,
        asked: &mut ParsedQuery,
        query: &str,
        shown: impl FnMut(usize) -> bool,
    ) -> Vec<FoundTool<'_>> {
        self.correct_spelling(asked);
        let mut worth = vec![Worth::default(); self.tools];
        let mut word = WordScores { worth: vec![(0.0, 0.0); self.tools], tools: Vec::new() };
        let mut weights = 0.0;
        let only_verbs = asked.terms.iter().all(|term| term.bearing == Bearing::Verb);
        for term in &asked.terms {
            let rarity = self.score_term(term, &mut word);
            let bearing = match (term.reported, term.bearing) {
                (true, _) => REPORTED,
                (false, Bearing::Verb) => VERB,
                (false, Bearing::Thing | Bearing::Part) => 1.0,
            };
            let weight = match (word.tools.is_empty(), term.bearing) {
                (true, Bearing::Part | Bearing::Verb) => 0.0,
                (true, Bearing::Thing) => UNKNOWN * bearing,
                (false, _) => bearing * (ALIKE + (1.0 - ALIKE) * rarity / self.rarity(0.0)),
            };
            weights += weight;
            for (at, (of_word, about)) in word.take() {
                if let Some(worth) = worth.get_mut(at) {
                    worth.score += of_word * bearing;
                    worth.covered += weight * (WEAKLY + (1.0 - WEAKLY) * about.min(1.0));
                    worth.meant |= only_verbs || term.bearing != Bearing::Verb;
                }
            }
        }
        let name = QueriedName::of(query);
        let traits = self.segments.iter().flat_map(|segment| segment.tools());
        let tools = traits.zip(&worth).enumerate().filter_map(|(at, (traits, worth))| {
            let named = name.fits(traits);
            if !worth.meant && named == NameFit::Not {
                return None;
            }
            let covered = worth.covered / weights.max(f32::MIN_POSITIVE);
            let score = worth.score
                * (UNCOVERED + (1.0 - UNCOVERED) * covered)
                * agreement(asked.effect, traits)
                * if is_unwanted(asked.effect, traits) { UNWANTED } else { 1.0 }
                * if traits.verbs.is_empty() || asked.means(&traits.verbs) { 1.0 } else { UNASKED };
            let (by_words, covered) = match named {
                NameFit::Not => (score, covered),
                NameFit::ByWords | NameFit::AsSpelled => (score, 1.0),
            };
            let score = match named {
                NameFit::Not => score,
                NameFit::ByWords => score * CALLED,
                NameFit::AsSpelled => score + EXACT_NAME,
            };
            Some(FoundTool { at, score, by_words, covered, traits })
        });
        let tools: Vec<_> = tools.filter(|tool| tool.score > 0.0).collect();
        let found = strong_enough(tools, asked.effect, shown);
        in_order(found, |tool| is_unwanted(asked.effect, tool.traits))
    }
}

/// BM25 saturation.
const K1: f32 = 2.0;

/// Weight of a word's meaning: `MEANING` if a tool uses the word itself, otherwise `STAND_IN`.
const MEANING: f32 = 0.75;
const STAND_IN: f32 = 0.95;

/// Number of virtual tools without any words. They ensure that a common word still counts a little in a small catalog.
const OTHERS: f32 = 20.0;

/// Scores of one word by tool.
pub(super) struct WordScores {
    /// Score and prominence per tool; mostly 0.
    pub(super) worth: Vec<(f32, f32)>,
    /// Tools with a nonzero score.
    pub(super) tools: Vec<usize>,
}

impl WordScores {
    /// Raises the score (more than 0) and prominence in a tool.
    fn raise(&mut self, tool: usize, worth: f32, about: f32) {
        let Some(best) = self.worth.get_mut(tool) else { return };
        if best.0 == 0.0 {
            self.tools.push(tool);
        }
        *best = (best.0.max(worth), best.1.max(about));
    }

    /// Drains the scores.
    pub(super) fn take(&mut self) -> impl Iterator<Item = (usize, (f32, f32))> {
        let worth = &mut self.worth;
        self.tools.drain(..).filter_map(|tool| Some((tool, std::mem::take(worth.get_mut(tool)?))))
    }
}

impl Index {
    /// Scores one query term in all tools and returns its rarity. A tool that has both the word and its meaning gets
    /// the better score.
    pub(super) fn score_term(&self, term: &QueryTerm, word: &mut WordScores) -> f32 {
        let known =
            term.worth >= 1.0 && term.own.iter().any(|key| self.document_frequency(*key) > 0.0);
        let meaning = if known { MEANING } else { STAND_IN };
        let mut rarest: f32 = 0.0;
        for key in &term.own {
            rarest = rarest.max(self.add(*key, term.worth, word));
        }
        for key in &term.meanings {
            let rarity = self.add(*key, term.worth * meaning, word);
            if !known {
                rarest = rarest.max(rarity);
            }
        }
        rarest
    }

    /// Scores one key and returns its rarity.
    fn add(&self, key: WordKey, weight: f32, word: &mut WordScores) -> f32 {
        let with = self.document_frequency(key);
        if with <= 0.0 {
            return 0.0;
        }
        let rarity = self.rarity(with);
        for (at, worth, prominence) in self.postings(key) {
            word.raise(at, worth * rarity * weight, prominence * weight);
        }
        rarity
    }

    /// Postings of a key over all segments with saturated weights, without rarity.
    fn postings(&self, key: WordKey) -> impl Iterator<Item = (usize, f32, f32)> {
        let mut first = 0;
        self.segments.iter().flat_map(move |segment| {
            let from = first;
            first += segment.len();
            let postings = segment.postings(key).iter();
            postings.map(move |(at, weight)| {
                let worth = weight * (K1 + 1.0) / (weight + K1);
                (from + *at as usize, worth, prominence(*weight))
            })
        })
    }

    /// Inverse document frequency.
    pub(super) fn rarity(&self, having: f32) -> f32 {
        let others = (self.tools as f32 + OTHERS - having).max(0.0);
        (1.0 + (others + 0.5) / (having + 0.5)).ln()
    }
}

/// Score bonus of a tool named exactly by the query; exceeds any word score.
pub(super) const EXACT_NAME: f32 = 1000.0;

/// Minimum coverage that at least one result must have.
const MIN_COVERED: f32 = 0.3;

/// A candidate; ordered by score, then by position.
pub(super) struct FoundTool<'a> {
    pub(super) at: usize,
    /// Score of the tool. It is at least [`EXACT_NAME`] if the query names the tool.
    pub(super) score: f32,
    /// Part of the score from words alone.
    pub(super) by_words: f32,
    /// Coverage of the query, 0 to 1.
    pub(super) covered: f32,
    pub(super) traits: &'a Traits,
}

impl FoundTool<'_> {
    pub(super) fn is_named(&self) -> bool {
        self.score >= EXACT_NAME
    }

    /// Whether the tool's coverage suffices for a result.
    pub(super) fn covers(&self) -> bool {
        self.covered >= MIN_COVERED
    }

    /// Whether the tool is destructive while the query asks only to read. If the tool's name indicates reading, a mark
    /// as destructive does not count.
    pub(super) fn is_forbidden(&self, effect: Option<Effect>) -> bool {
        !self.is_named()
            && effect == Some(Effect::Read)
            && self.traits.effect != Some(Effect::Read)
            && destroys(self.traits)
    }
}

impl Ord for FoundTool<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.at.cmp(&self.at))
    }
}

impl PartialOrd for FoundTool<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for FoundTool<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for FoundTool<'_> {}

/// Factor for the agreement of a tool's effect with the wanted effect.
pub(super) fn agreement(wanted: Option<Effect>, traits: &Traits) -> f32 {
    match (wanted, traits.effect) {
        (_, None) => 0.9,
        (None, Some(Effect::Destroy)) => 0.5,
        (None, Some(Effect::Read | Effect::Write)) => 1.0,
        (Some(Effect::Read), Some(Effect::Read)) => 1.0,
        (Some(Effect::Read), Some(Effect::Write)) => 0.75,
        (Some(Effect::Read | Effect::Write), Some(Effect::Destroy)) => 0.3,
        (Some(Effect::Write), Some(Effect::Write)) => 1.0,
        (Some(Effect::Write), Some(Effect::Read)) => 0.7,
        (Some(Effect::Destroy), Some(Effect::Destroy)) => 1.0,
        (Some(Effect::Destroy), Some(Effect::Write)) => 0.7,
        (Some(Effect::Destroy), Some(Effect::Read)) => 0.5,
    }
}

pub(super) fn destroys(traits: &Traits) -> bool {
    traits.destroys || traits.effect == Some(Effect::Destroy)
}

/// Whether a tool is destructive while the query does not ask for that.
pub(super) fn is_unwanted(effect: Option<Effect>, traits: &Traits) -> bool {
    matches!(effect, None | Some(Effect::Read)) && destroys(traits)
}

/// A query as a possible tool name.
pub(super) struct QueriedName {
    words: WordKey,
    /// Whether the query is spelled as an identifier.
    is_identifier: bool,
    /// Whether the query may be `server:tool`.
    is_qualified: bool,
}

/// Match of a query with a tool name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum NameFit {
    Not,
    /// Consists of the same words.
    ByWords,
    /// Spelled as the name.
    AsSpelled,
}

impl QueriedName {
    pub(super) fn of(query: &str) -> Self {
        Self {
            words: xxh3_64(plain(query).as_bytes()),
            is_identifier: !query.trim().contains(char::is_whitespace),
            is_qualified: query.contains(':'),
        }
    }

    pub(super) fn fits(&self, traits: &Traits) -> NameFit {
        if traits.name == self.words {
            return if self.is_identifier { NameFit::AsSpelled } else { NameFit::ByWords };
        }
        match self.is_qualified && traits.qualified_name == self.words {
            true => NameFit::AsSpelled,
            false => NameFit::Not,
        }
    }
}

/// Minimum score relative to the best score.
const MIN_SHARE: f32 = 0.15;

/// Selects the visible tools with competitive scores. Selects none if coverage is too low, or if the query asks only to
/// read and all tools are destructive. The visibility of tools is checked from the best match on, and that of weak
/// tools only if they would decide, so that hidden tools have no influence.
pub(super) fn strong_enough<'a>(
    tools: Vec<FoundTool<'a>>,
    effect: Option<Effect>,
    mut shown: impl FnMut(usize) -> bool,
) -> Vec<FoundTool<'a>> {
    let (mut covers, mut allowed, mut min) = (false, false, 0.0);
    let mut found: Vec<FoundTool<'a>> = Vec::new();
    if !tools.iter().any(FoundTool::covers) {
        return found;
    }
    let mut tools = BinaryHeap::from(tools);
    while let Some(tool) = tools.pop() {
        let weak = tool.by_words < min && !tool.is_named();
        if weak && covers && allowed {
            break;
        }
        let (is_covering, is_allowed) = (tool.covers(), !tool.is_forbidden(effect));
        let decides = (is_covering && !covers) || (is_allowed && !allowed);
        if (weak && !decides) || !shown(tool.at) {
            continue;
        }
        covers |= is_covering;
        allowed |= is_allowed;
        // The threshold ignores bonuses for names.
        min = min.max(tool.by_words * MIN_SHARE);
        if !weak {
            found.push(tool);
        }
    }
    match covers && allowed {
        true => found,
        false => Vec::new(),
    }
}

/// Orders results: best first, deprecated ones last, and if possible no unwanted tool first. A named tool is always wanted.
pub(super) fn in_order<'a>(
    mut found: Vec<FoundTool<'a>>,
    unwanted: impl Fn(&FoundTool<'a>) -> bool,
) -> Vec<FoundTool<'a>> {
    let last = |tool: &FoundTool<'_>| !tool.is_named() && tool.traits.deprecated;
    found.sort_by(|a, b| {
        last(a).cmp(&last(b)).then(b.score.total_cmp(&a.score)).then(a.at.cmp(&b.at))
    });
    let unwanted = |tool: &FoundTool<'a>| !tool.is_named() && unwanted(tool);
    if found.first().is_some_and(unwanted)
        && let Some(other) = found.iter().position(|tool| !unwanted(tool))
        && let Some(first) = found.get_mut(..=other)
    {
        first.rotate_right(1);
    }
    found
}

/// Positions with descending scores, even for tools that were moved down.
pub(super) fn in_falling_order(found: Vec<FoundTool<'_>>) -> impl Iterator<Item = (usize, f32)> {
    let mut lowest = f32::MAX;
    found.into_iter().map(move |tool| {
        lowest = lowest.min(tool.score);
        (tool.at, lowest)
    })
}

/// Rank offset: larger values flatten the difference between ranks.
const EVEN: f32 = 5.0;

/// Weight of a rank by meaning.
const MEANING_WEIGHT: f32 = 0.5;

/// Score of a tool that is first in both rankings.
const MAX_SCORE: f32 = (1.0 + MEANING_WEIGHT) / EVEN;

/// Score for a rank by words; ranks are counted from 0.
fn of_words(place: usize) -> f32 {
    1.0 / (EVEN + place as f32)
}

/// Score for a rank by meaning; ranks are counted from 0.
fn of_meaning(place: usize) -> f32 {
    MEANING_WEIGHT * of_words(place)
}

impl Index {
    /// Combines [`Index::search_shown`] with `near`, the positions of the visible tools that are nearest in meaning,
    /// nearest first.
    pub(crate) fn search_with(
        &self,
        query: &str,
        near: &[Near],
        shown: impl FnMut(usize) -> bool,
    ) -> Vec<(usize, f32)> {
        let mut asked = ParsedQuery::read(&self.lexicon, query);
        let mut found = self.by_words(&mut asked, query, shown);
        let first_by_words = found.first().map(|tool| tool.at);
        let mut nearest: BTreeMap<usize, f32> =
            near.iter().enumerate().map(|(place, near)| (near.at, of_meaning(place))).collect();
        for (place, tool) in found.iter_mut().enumerate() {
            let named = if tool.is_named() { EXACT_NAME } else { 0.0 };
            let meaning = nearest.remove(&tool.at).unwrap_or_default();
            tool.score = named + of_words(place) + meaning;
        }
        let others = nearest.into_iter();
        found.extend(others.filter_map(|(at, score)| {
            Some(FoundTool { at, score, by_words: 0.0, covered: 0.0, traits: self.traits(at)? })
        }));
        if found.iter().all(|tool| tool.is_forbidden(asked.effect)) {
            return Vec::new();
        }
        // A destructive tool is not ranked first by meaning alone unless the words ask for it.
        let unwanted = |tool: &FoundTool<'_>| {
            is_unwanted(asked.effect, tool.traits)
                || asked.effect == Some(Effect::Write)
                    && destroys(tool.traits)
                    && first_by_words != Some(tool.at)
        };
        let found = in_falling_order(in_order(found, unwanted));
        found.map(|(at, score)| (at, (score / MAX_SCORE).min(1.0))).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::search::{QueryMeaning, ToolVectors, UnitVector};
    use crate::{Catalog, DiscoveredTool, ServerSettings, Settings, Snapshot};
    use mcpproxy_policy::tool::{Tool, Trust};

    const TOOLS: [(&str, &str); 6] = [
        ("delete_repo", "Delete a repository"),
        ("get_repo", "Get a repository"),
        ("old_read", "Reads it. DEPRECATED: use get_repo instead."),
        ("ping", "Pings."),
        ("pong", "Pongs."),
        ("zap", "Zaps."),
    ];

    fn snapshot() -> Arc<Snapshot> {
        let servers = [("s".into(), ServerSettings::default())].into();
        let catalog = Catalog::new(Settings { servers, ..Settings::default() });
        let found = TOOLS.map(|(name, description)| {
            let tool = json!({"name": name, "description": description, "inputSchema": {}});
            DiscoveredTool::parse(&serde_json::value::to_raw_value(&tool).unwrap()).unwrap()
        });
        catalog.replace_server("s", found.to_vec());
        catalog.load()
    }

    /// A query whose embedding has these similarities to the named tools, and none to any other tool.
    fn meaning(snapshot: &Snapshot, similar: &[(&str, f32)]) -> QueryMeaning {
        let vectors: Vec<_> = snapshot
            .tools()
            .iter()
            .map(|tool| {
                let of_tool = similar.iter().find(|(name, _)| **name == *tool.name.tool);
                let cosine = of_tool.map_or(0.0, |(_, cosine)| *cosine);
                vec![cosine, (1.0 - cosine * cosine).sqrt()]
            })
            .collect();
        let known = snapshot.tools().iter().cloned().zip(vectors.iter().map(Vec::as_slice));
        QueryMeaning {
            query: Arc::new(UnitVector::of(vec![1.0, 0.0]).unwrap()),
            tools: Arc::new(ToolVectors::of(known)),
            min: 0.25,
        }
    }

    fn found(query: &str, similar: &[(&str, f32)], shown: impl Fn(&Tool) -> bool) -> Vec<String> {
        let snapshot = snapshot();
        let meaning = meaning(&snapshot, similar);
        let found = snapshot.search_for(query, 9, Some(&meaning), |tool| shown(tool)).tools;
        assert!(found.windows(2).all(|pair| pair[0].1 >= pair[1].1), "{found:?}");
        assert!(found.iter().all(|(_, score)| *score > 0.0 && *score <= 1.0), "{found:?}");
        found.iter().map(|(tool, _)| tool.name.tool.to_string()).collect()
    }

    #[test]
    fn rank_by_words_has_twice_the_weight_of_rank_by_meaning() {
        assert_eq!(of_words(0) + of_meaning(0), MAX_SCORE);
        assert_eq!(of_words(3), 2.0 * of_meaning(3));
        assert!(of_words(0) < of_words(1) + of_meaning(0), "second by words, first by meaning");
        let near = [("pong", 0.9), ("zap", 0.5), ("ping", 0.24)];
        assert_eq!(found("wibble", &near, |_| true), ["pong", "zap"], "no tool is found by words");
        assert_eq!(found("wibble", &[], |_| true), [""; 0]);
    }

    #[test]
    fn results_by_meaning_follow_the_rules_for_words() {
        let near = [("pong", 0.9), ("delete_repo", 0.8), ("old_read", 0.7)];
        let named = found("zap", &near, |_| true);
        assert_eq!(named[0], "zap", "a named tool is first: {named:?}");
        assert_eq!(named.last().unwrap(), "old_read", "deprecated tools come last");
        let destroys = [("delete_repo", 0.9), ("get_repo", 0.3)];
        assert_eq!(found("show me what there is", &destroys, |_| true)[0], "get_repo");
        // The words ask for a change, and rank a different tool first.
        let both = [("delete_repo", 0.9)];
        assert_eq!(found("update the repository", &both, |_| true)[0], "get_repo");
        let only = [("delete_repo", 0.9)];
        assert_eq!(found("show me wibble", &only, |_| true), [""; 0]);
        assert_eq!(found("delete wibble", &only, |_| true)[0], "delete_repo");
    }

    #[test]
    fn hidden_tools_do_not_take_slots_in_results() {
        let near: Vec<_> = TOOLS.iter().map(|(name, _)| (*name, 0.9)).collect();
        assert_eq!(found("wibble", &near, |tool| &*tool.name.tool == "zap"), ["zap"]);
        assert_eq!(found("zap", &near, |tool| &*tool.name.tool != "zap").len(), 5);
        assert_eq!(found("wibble", &near, |tool| tool.trust == Trust::Withheld), [""; 0]);
    }

    #[test]
    fn stale_vectors_match_unchanged_tools() {
        let (now, before) = (snapshot(), snapshot());
        let meaning = meaning(&before, &[("pong", 0.9)]);
        let found = now.search_for("wibble", 9, Some(&meaning), |_| true).tools;
        assert_eq!(&*found[0].0.name.tool, "pong");
        assert!(Arc::ptr_eq(&found[0].0, now.named("s", "pong").unwrap()));
        let servers = [("s".into(), ServerSettings::default())].into();
        let other = Catalog::new(Settings { servers, ..Settings::default() });
        let tool = json!({"name": "pong", "description": "Another.", "inputSchema": {}});
        let tool = serde_json::value::to_raw_value(&tool).unwrap();
        other.replace_server("s", vec![DiscoveredTool::parse(&tool).unwrap()]);
        assert!(other.load().search_for("wibble", 9, Some(&meaning), |_| true).tools.is_empty());
    }
}
