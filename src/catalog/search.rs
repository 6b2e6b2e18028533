//! The ranked index over all tools: plain words in, the tools that fit out (FR-021).
//!
//! BM25 over the fields of a tool (name, title, first sentence and rest of the description, parameters, server), each
//! with its weight. A word counts for itself, for what it means (`thesaurus.txt`, in several languages) and, where no
//! tool knows it, for the words that it may be misspelt from. What a question wants done is compared with what a tool
//! does. Tools that have too little of a question are no answer. Where somebody knows what tools mean, as vectors, what is
//! nearest to a query is fused with that by rank (`fusion`, `vectors`). Deliberately no embedding model, and nobody is
//! asked for vectors here.
//!
//! The words of one server's tools are a [`Segment`], made once for each set and shared by every
//! snapshot that holds it: what a change costs does not grow with the other servers' tools, but for
//! one value each. What depends on all tools, how rare a word is, is put in when a query is answered, so that the
//! ranking is that of an index built whole.
//!
//! Size: one ranking from the query to the order, beside the tests that ask it whole.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::fmt;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use self::asked::{Bearing, ParsedQuery, QueryTerm};
use self::fusion::{of_meaning, of_words};
use self::lexicon::{WordKey, concept_key};
use self::segment::Traits;
use self::thesaurus::{Concept, Effect};
use self::words::plain;

mod asked;
mod deprecation;
mod fusion;
mod lexicon;
mod segment;
mod spelling;
mod thesaurus;
mod vectors;
mod words;

#[cfg(test)]
mod bad_input;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod hidden;
#[cfg(test)]
pub(super) mod samples;

pub use lexicon::Lexicon;
pub use segment::Segment;
pub use vectors::{AskedMeaning, MAX_DIMENSIONS, MOST_NEAR, Near, ToolVectors, UnitVector};

/// BM25's saturation.
const K1: f32 = 2.0;

/// What a meaning of the query's word is worth: less where some tool uses the word itself.
const MEANING: f32 = 0.75;
const STAND_IN: f32 = 0.95;

/// What a word with one typing error is worth, and with more.
const MISSPELT: [f32; 2] = [0.9, 0.7];

/// What a verb is worth that any tool may have.
const VERB: f32 = 0.5;

/// Tools that are thought to be there and have none of the words: in a short catalog a word that all have says little,
/// but not nothing.
const OTHERS: f32 = 20.0;

/// What a word is worth that somebody is told, or that is to be remembered.
const TOLD: f32 = 0.3;

/// What a tool gains that the query names, as names are spelt; more than any words can add up to.
const EXACT_NAME: f32 = 1000.0;

/// How much more a tool is worth whose name is made of the query's words: that may be what is meant, and may be chance.
const CALLED: f32 = 1.5;

/// The raw score that becomes 0.5; about that of one rare word in a name.
const HALF_SCORE: f32 = 5.0;

/// Most words of a query that are taken for misspelt, and most words that one may be misspelt from.
const MAX_MENDED: usize = 6;
const MAX_NEAR: usize = 8;

/// How much of a score does not depend on how many of the question's words a tool has.
const UNCOVERED: f32 = 0.6;
/// How much of what a word weighs among those does not depend on how rare it is, and how much of what it weighs in a
/// tool not on how much the tool is about it.
const ALIKE: f32 = 0.6;
const WEAKLY: f32 = 0.3;
/// What a word that no tool knows weighs among them.
const UNKNOWN: f32 = 0.8;
/// How many of them some tool has at least, or else none is an answer.
const LEAST_COVERED: f32 = 0.3;
/// How much of a score is left to a tool that destroys, where nobody wants that.
const UNWANTED: f32 = 0.6;
/// How much of a score is left to a tool whose verb was not asked for.
const UNASKED: f32 = 0.8;
/// What a tool's score is at least, beside the best one's.
const LEAST_SHARE: f32 = 0.15;

/// An index over one snapshot's tools.
pub struct Index {
    lexicon: Arc<Lexicon>,
    segments: Box<[Arc<Segment>]>,
    tools: usize,
}

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Index({} tools of {} servers)", self.tools, self.segments.len())
    }
}

/// A tool that may be an answer; the best is the greatest, of equal ones the first.
struct FoundTool<'a> {
    at: usize,
    /// Above [`EXACT_NAME`]: the query names it.
    score: f32,
    /// What of it the words alone are worth, whatever it is called.
    by_words: f32,
    /// How much of the question's words it has, from 0 to 1.
    covered: f32,
    traits: &'a Traits,
}

impl FoundTool<'_> {
    fn is_named(&self) -> bool {
        self.score >= EXACT_NAME
    }

    /// Whether it has so much of the question that there is an answer.
    fn covers(&self) -> bool {
        self.covered >= LEAST_COVERED
    }

    /// Whether it destroys, where somebody only wants to see. What is named as reading is not kept back for a mark alone.
    fn is_forbidden(&self, effect: Option<Effect>) -> bool {
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

/// What a question is worth in one tool.
#[derive(Clone, Copy, Default)]
struct Worth {
    score: f32,
    /// What the words weigh that the tool has.
    covered: f32,
    /// Whether one of them says what is meant.
    meant: bool,
}

impl Index {
    /// The index over the tools of all `segments`, in their order; a result is a position in them.
    #[must_use]
    pub fn of(lexicon: Arc<Lexicon>, segments: impl IntoIterator<Item = Arc<Segment>>) -> Self {
        let segments: Box<[_]> = segments.into_iter().collect();
        let tools = segments.iter().map(|segment| segment.len()).sum();
        Self { lexicon, segments, tools }
    }

    /// The tools that `query` names, then those that have enough of its words, or of what they mean, best
    /// first; those that are deprecated last; equal scores in the order of positions. Scores are from 0 to 1, on one scale for all
    /// queries. None where no tool has what is asked for.
    #[must_use]
    pub fn search(&self, query: &str) -> Vec<(usize, f32)> {
        self.search_shown(query, |_| true)
    }

    /// The same as if there were only the tools that are `shown`, but for which words are known, and how rare they are: that counts over
    /// all. Whether one is shown is
    /// asked of the best first, and of those alone that are found or would decide whether there is an answer.
    #[must_use]
    pub fn search_shown(&self, query: &str, shown: impl FnMut(usize) -> bool) -> Vec<(usize, f32)> {
        self.answer(ParsedQuery::read(&self.lexicon, query), query, shown)
    }

    /// The same where it is known which of the tools that are shown are nearest to what is meant: both rankings are
    /// fused. `near` are positions, the nearest first.
    #[must_use]
    pub fn search_with(
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
        // None that destroys becomes the first by meaning alone, where the words do not ask for that.
        let unwanted = |tool: &FoundTool<'_>| {
            self.unwanted(asked.effect, tool.traits)
                || asked.effect == Some(Effect::Write)
                    && destroys(tool.traits)
                    && first_by_words != Some(tool.at)
        };
        let found = in_falling_order(in_order(found, unwanted));
        found.map(|(at, score)| (at, (score / fusion::MOST).min(1.0))).collect()
    }

    fn traits(&self, mut at: usize) -> Option<&Traits> {
        for segment in &self.segments {
            match at.checked_sub(segment.len()) {
                Some(rest) => at = rest,
                None => return segment.tools().nth(at),
            }
        }
        None
    }

    /// The same of a query that was read.
    fn answer(
        &self,
        mut asked: ParsedQuery,
        query: &str,
        shown: impl FnMut(usize) -> bool,
    ) -> Vec<(usize, f32)> {
        let found = in_falling_order(self.by_words(&mut asked, query, shown));
        found.map(|(at, score)| (at, score / (score + HALF_SCORE))).collect()
    }

    /// What is shown and has enough of the words, in order.
    fn by_words(
        &self,
        asked: &mut ParsedQuery,
        query: &str,
        shown: impl FnMut(usize) -> bool,
    ) -> Vec<FoundTool<'_>> {
        self.mend(asked);
        let mut worth = vec![Worth::default(); self.tools];
        let mut word = OneWord { worth: vec![(0.0, 0.0); self.tools], tools: Vec::new() };
        let mut weights = 0.0;
        let only_verbs = asked.terms.iter().all(|term| term.bearing == Bearing::Verb);
        for term in &asked.terms {
            let rarity = self.one_word(term, &mut word);
            let bearing = match (term.told, term.bearing) {
                (true, _) => TOLD,
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
            if !worth.meant && named == Named::Not {
                return None;
            }
            let covered = worth.covered / weights.max(f32::MIN_POSITIVE);
            let score = worth.score
                * (UNCOVERED + (1.0 - UNCOVERED) * covered)
                * agreement(asked.effect, traits)
                * if self.unwanted(asked.effect, traits) { UNWANTED } else { 1.0 }
                * if traits.verbs.is_empty() || asked.means(&traits.verbs) { 1.0 } else { UNASKED };
            let (by_words, covered) = match named {
                Named::Not => (score, covered),
                Named::ByWords | Named::AsSpelt => (score, 1.0),
            };
            let score = match named {
                Named::Not => score,
                Named::ByWords => score * CALLED,
                Named::AsSpelt => score + EXACT_NAME,
            };
            Some(FoundTool { at, score, by_words, covered, traits })
        });
        let tools: Vec<_> = tools.filter(|tool| tool.score > 0.0).collect();
        let found = strong_enough(tools, asked.effect, shown);
        in_order(found, |tool| self.unwanted(asked.effect, tool.traits))
    }

    /// Whether a tool destroys, and the question only wants to see.
    fn unwanted(&self, effect: Option<Effect>, traits: &Traits) -> bool {
        matches!(effect, None | Some(Effect::Read)) && destroys(traits)
    }

    /// What one word of a query is worth in which tools, and how rare it is. A tool that has the word and what it means
    /// means it once.
    fn one_word(&self, term: &QueryTerm, word: &mut OneWord) -> f32 {
        let known = term.worth >= 1.0 && term.own.iter().any(|key| self.having(*key) > 0.0);
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

    /// Takes words that nobody knows for those that they may be misspelt from.
    fn mend(&self, asked: &mut ParsedQuery) {
        let language = asked.language;
        let unknown = asked.terms.iter_mut().filter(|term| {
            term.meanings.is_empty() && term.own.iter().all(|key| self.having(*key) <= 0.0)
        });
        for term in unknown.take(MAX_MENDED) {
            let Some(misspelt) = term.word.take() else { continue };
            let Some((errors, near)) = self.near(&misspelt) else { continue };
            let thesaurus = &self.lexicon.thesaurus;
            let meanings: BTreeSet<Concept> =
                near.iter().flat_map(|word| thesaurus.meanings(word, language)).collect();
            let meanings: Vec<_> = meanings.into_iter().collect();
            asked.effect = asked.effect.or_else(|| term.wants(thesaurus.effect(&meanings)));
            term.own = near.iter().map(|word| self.lexicon.key(word)).collect();
            term.bearing = Bearing::of(thesaurus, &meanings);
            term.meanings = meanings.into_iter().map(concept_key).collect();
            term.worth = MISSPELT.get(errors.saturating_sub(1)).copied().unwrap_or_default();
        }
    }

    /// The words that one may be misspelt from, and by how many errors: those with the fewest. They begin as it does, or
    /// with its second letter, where the two changed places.
    fn near(&self, misspelt: &str) -> Option<(usize, Vec<String>)> {
        let most = spelling::allowed(misspelt)?;
        let mut letters = misspelt.chars();
        let (first, second) = (letters.next(), letters.next());
        let segments = self.segments.iter().flat_map(|segment| segment.near(misspelt, most));
        let near = segments.chain(self.lexicon.near(misspelt, most));
        let begins = |(_, word): &(usize, &str)| {
            let mut letters = word.chars();
            let own = (letters.next(), letters.next());
            own.0 == first || own == (second, first)
        };
        let near: BTreeSet<(usize, &str)> = near.filter(begins).collect();
        let (errors, _) = *near.first()?;
        let least = near.into_iter().take_while(|found| found.0 == errors);
        Some((errors, least.map(|(_, word)| word.to_owned()).take(MAX_NEAR).collect()))
    }

    /// Counts what a word or a meaning is worth; how rare it is.
    fn add(&self, key: WordKey, weight: f32, word: &mut OneWord) -> f32 {
        let with = self.having(key);
        if with <= 0.0 {
            return 0.0;
        }
        let rarity = self.rarity(with);
        for (at, worth, prominence) in self.postings(key) {
            word.is_worth(at, worth * rarity * weight, prominence * weight);
        }
        rarity
    }

    /// How many tools have a word, those less that have it in a lesser place.
    fn having(&self, key: WordKey) -> f32 {
        self.segments.iter().map(|segment| segment.having(key)).sum()
    }

    /// The tools that have a word, and what it is worth there, without its rarity.
    fn postings(&self, key: WordKey) -> impl Iterator<Item = (usize, f32, f32)> {
        let mut first = 0;
        self.segments.iter().flat_map(move |segment| {
            let from = first;
            first += segment.len();
            let postings = segment.postings(key).iter();
            postings.map(move |(at, weight)| {
                let worth = weight * (K1 + 1.0) / (weight + K1);
                (from + *at as usize, worth, segment::prominence(*weight))
            })
        })
    }

    /// How rare a word is that so many tools have.
    fn rarity(&self, having: f32) -> f32 {
        let others = (self.tools as f32 + OTHERS - having).max(0.0);
        (1.0 + (others + 0.5) / (having + 0.5)).ln()
    }
}

/// What a query may be the name of.
struct QueriedName {
    /// Its words.
    words: WordKey,
    /// Whether it is spelt as names are, not as a text.
    is_identifier: bool,
    /// Whether it may be `server:tool`.
    is_qualified: bool,
}

/// Whether a query names a tool.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Named {
    Not,
    /// Its words are those of the name.
    ByWords,
    /// It is spelt as a name, which nobody does by chance.
    AsSpelt,
}

impl QueriedName {
    fn of(query: &str) -> Self {
        Self {
            words: xxh3_64(plain(query).as_bytes()),
            is_identifier: !query.trim().contains(char::is_whitespace),
            is_qualified: query.contains(':'),
        }
    }

    fn fits(&self, traits: &Traits) -> Named {
        if traits.name == self.words {
            return if self.is_identifier { Named::AsSpelt } else { Named::ByWords };
        }
        match self.is_qualified && traits.qualified_name == self.words {
            true => Named::AsSpelt,
            false => Named::Not,
        }
    }
}

/// Of the tools that are `shown` the best, and what is not much worse; none where they have too little of the question, or
/// somebody only wants to see and all of them destroy. The best is asked about first, so that what is hidden decides
/// nothing, and what is weak only where it would decide: it may be what is wanted.
fn strong_enough<'a>(
    tools: Vec<FoundTool<'a>>,
    effect: Option<Effect>,
    mut shown: impl FnMut(usize) -> bool,
) -> Vec<FoundTool<'a>> {
    let (mut covers, mut allowed, mut least) = (false, false, 0.0);
    let mut found: Vec<FoundTool<'a>> = Vec::new();
    if !tools.iter().any(FoundTool::covers) {
        return found;
    }
    let mut tools = BinaryHeap::from(tools);
    while let Some(tool) = tools.pop() {
        let weak = tool.by_words < least && !tool.is_named();
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
        // One that is called like the query comes before what has more of its words.
        least = least.max(tool.by_words * LEAST_SHARE);
        if !weak {
            found.push(tool);
        }
    }
    match covers && allowed {
        true => found,
        false => Vec::new(),
    }
}

fn destroys(traits: &Traits) -> bool {
    traits.destroys || traits.effect == Some(Effect::Destroy)
}

/// Best first, what is deprecated last, and first none that is unwanted there, if there is another. Who names a tool wants
/// it.
fn in_order<'a>(
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

/// Positions and scores that fall, also where a tool is put last for what it does.
fn in_falling_order(found: Vec<FoundTool<'_>>) -> impl Iterator<Item = (usize, f32)> {
    let mut lowest = f32::MAX;
    found.into_iter().map(move |tool| {
        lowest = lowest.min(tool.score);
        (tool.at, lowest)
    })
}

/// How much of a score is left to a tool that does something else than the question wants.
fn agreement(wanted: Option<Effect>, traits: &Traits) -> f32 {
    let does = match (traits.effect, traits.destroys) {
        (Some(Effect::Destroy), _) => Some(Effect::Destroy),
        (effect, _) => effect,
    };
    match (wanted, does) {
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

/// What one word is worth, by tool.
struct OneWord {
    /// For each tool; 0 for most.
    worth: Vec<(f32, f32)>,
    /// Those for which it is not.
    tools: Vec<usize>,
}

impl OneWord {
    /// It is worth that in a tool, if it was not worth more, and as much is the tool about it. What is given is more than 0.
    fn is_worth(&mut self, tool: usize, worth: f32, about: f32) {
        let Some(best) = self.worth.get_mut(tool) else { return };
        if best.0 == 0.0 {
            self.tools.push(tool);
        }
        *best = (best.0.max(worth), best.1.max(about));
    }

    /// What it is worth; afterwards nothing.
    fn take(&mut self) -> impl Iterator<Item = (usize, (f32, f32))> {
        let worth = &mut self.worth;
        self.tools.drain(..).filter_map(|tool| Some((tool, std::mem::take(worth.get_mut(tool)?))))
    }
}

#[cfg(test)]
mod tests {
    use super::samples::{QUERIES, TOOLS};
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
        let (lexicon, mut compared) = (Arc::new(Lexicon::default()), 0);
        for round in 0..3 * servers.len() {
            let (server, from) = change(round);
            catalog.replace_server(server, set(server, from));
            let snapshot = catalog.load();
            let whole = Segment::of(&lexicon, snapshot.tools());
            let whole = Index::of(Arc::clone(&lexicon), [Arc::new(whole)]);
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
    fn typing_errors_find_the_tool() {
        let snapshot = snapshot(TOOLS);
        for (query, expected) in [
            ("creat a direcotry", "filesystem:create_directory"),
            ("mrege a pull reqest", "github:merge_pull_request"),
            ("serach repositries", "github:search_repositories"),
            ("curent time in a timezome", "time:get_current_time"),
        ] {
            assert_eq!(names(&snapshot, query, 1), [expected], "{query}");
        }
    }

    #[test]
    fn words_of_other_languages_find_the_tool() {
        let snapshot = snapshot(TOOLS);
        for (query, expected) in [
            ("Ein Verzeichnis anlegen", "filesystem:create_directory"),
            ("eliminar un repositorio", "github:delete_repo"),
            ("déplacer un fichier", "filesystem:move_file"),
            ("удалить репозиторий", "github:delete_repo"),
            ("删除仓库", "github:delete_repo"),
            ("フォルダを作成する", "filesystem:create_directory"),
        ] {
            assert_eq!(names(&snapshot, query, 1), [expected], "{query}");
        }
    }

    #[test]
    fn who_wants_to_see_is_not_shown_what_destroys_first() {
        let tools = [
            ("github", "delete_repo", "Delete a repository", "owner repo"),
            ("github", "get_file_contents", "Get the contents of a file of a repository", "path"),
        ];
        let snapshot = super::tests::snapshot(&tools);
        assert_eq!(names(&snapshot, "show me my repository", 1), ["github:get_file_contents"]);
        assert_eq!(names(&snapshot, "delete my repository", 1), ["github:delete_repo"]);
        let alone = super::tests::snapshot(tools.get(..1).unwrap());
        assert!(names(&alone, "which repositories do I have?", 1).is_empty());
        assert_eq!(names(&alone, "delete_repo", 1), ["github:delete_repo"]);
    }

    #[test]
    fn a_verb_of_what_is_meant_is_not_what_is_wanted() {
        let snapshot = snapshot(&[
            ("drive", "remove_share", "Removes the share of a document", "document"),
            ("drive", "get_document", "Gets a text", "document"),
        ]);
        let query = "a document that I can share";
        assert_eq!(names(&snapshot, query, 1), ["drive:get_document"]);
        assert_eq!(names(&snapshot, "my share of a document", 1), ["drive:get_document"]);
        assert_eq!(names(&snapshot, "take away the share", 1), ["drive:remove_share"]);
    }

    #[test]
    fn who_wants_to_see_is_not_answered_by_marks_that_destroy_alone() {
        let catalog = |name: &str| {
            let servers = [("s".into(), ServerSettings::default())].into();
            let catalog = Catalog::new(Settings { servers, ..Settings::default() });
            let json = serde_json::json!({"name": name, "description": "Absences of a team",
                "inputSchema": {}, "annotations": {"destructiveHint": true}});
            let raw = serde_json::value::to_raw_value(&json).unwrap();
            catalog.replace_server("s", vec![DiscoveredTool::parse(&raw).unwrap()]);
            catalog.load()
        };
        let manages = catalog("manage_absences");
        assert!(names(&manages, "which absences are there?", 1).is_empty());
        assert_eq!(names(&manages, "change the absences", 1), ["s:manage_absences"]);
        assert_eq!(names(&manages, "absences of the team", 1), ["s:manage_absences"]);
        // A mark that its name contradicts.
        let lists = catalog("list_absences");
        assert_eq!(names(&lists, "which absences are there?", 1), ["s:list_absences"]);
    }

    #[test]
    fn what_is_deprecated_comes_last() {
        let tools = [
            ("f", "read_file", "Read a file. DEPRECATED: use read_text_file instead.", "path"),
            ("f", "read_text_file", "Read a file as text", "path"),
            ("f", "file_size", "How large a file is, in bytes", "path"),
        ];
        let snapshot = super::tests::snapshot(&tools);
        let found = snapshot.search("read a file for me", usize::MAX);
        assert_eq!(&*found.last().unwrap().0.name.tool, "read_file");
        assert!(found.windows(2).all(|pair| pair[0].1 >= pair[1].1));
        for name in ["read_file", "f:read_file", " readFile "] {
            let found = names(&snapshot, name, 9);
            assert_eq!(found[0], "f:read_file", "who names it gets it: {name}");
            assert!(found.len() > 1, "and what may be used instead: {found:?}");
        }
        let found = names(&snapshot, "read file", 9);
        let (first, last) = (found.first().unwrap(), found.last().unwrap());
        assert_eq!(
            (&**first, &**last),
            ("f:read_text_file", "f:read_file"),
            "plain words are no name"
        );
    }

    #[test]
    fn a_tool_that_has_to_do_with_what_is_deprecated_is_not_deprecated() {
        let snapshot = snapshot(&[
            ("p", "list_deprecated_apis", "Lists deprecated APIs of a package.", "package"),
            ("p", "list_packages", "Lists packages and their APIs", ""),
        ]);
        let found = names(&snapshot, "which APIs of the package are deprecated", 9);
        assert_eq!(found, ["p:list_deprecated_apis", "p:list_packages"]);
    }

    #[test]
    fn a_question_of_which_too_little_is_known_has_no_answer() {
        let snapshot = snapshot(TOOLS);
        for query in [
            "order a pizza with extra cheese",
            "turn the kitchen lights on",
            "Wie wird das Wetter?",
            "播放音乐",
            "株価を教えて",
        ] {
            assert!(names(&snapshot, query, 9).is_empty(), "{query}");
        }
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
