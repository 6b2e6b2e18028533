//! Two rankings made one by rank (reciprocal rank fusion): what the words find, and what is nearest in meaning.
//!
//! Scores of the two cannot be compared, places can. What was measured with other constants says
//! `tools/bench/search/README.md`.

use std::collections::BTreeMap;

use super::agreement::{destroys, is_unwanted};
use super::asked::ParsedQuery;
use super::found_tool::{EXACT_NAME, FoundTool};
use super::index::Index;
use super::selection::{in_falling_order, in_order};
use super::thesaurus::Effect;
use super::vectors::Near;

/// How little the first places count more than the next ones.
const EVEN: f32 = 5.0;

/// What a place by meaning counts, beside one by words.
const MEANING: f32 = 0.5;

/// The score of a tool that is the first by both.
const MOST: f32 = (1.0 + MEANING) / EVEN;

/// What a place among those that have the words is worth; the first is 0.
fn of_words(place: usize) -> f32 {
    1.0 / (EVEN + place as f32)
}

/// What a place among the nearest is worth.
fn of_meaning(place: usize) -> f32 {
    MEANING * of_words(place)
}

impl Index {
    /// The same as [`Index::search_shown`] where it is known which of the tools that are shown are nearest to what is
    /// meant: both rankings are fused. `near` are positions, the nearest first.
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
            is_unwanted(asked.effect, tool.traits)
                || asked.effect == Some(Effect::Write)
                    && destroys(tool.traits)
                    && first_by_words != Some(tool.at)
        };
        let found = in_falling_order(in_order(found, unwanted));
        found.map(|(at, score)| (at, (score / MOST).min(1.0))).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::catalog::search::{AskedMeaning, ToolVectors, UnitVector};
    use crate::catalog::{Catalog, DiscoveredTool, ServerSettings, Settings, Snapshot};
    use crate::tool::{Tool, Trust};

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

    /// A query to which the tools are as similar as said, and all others not.
    fn meaning(snapshot: &Snapshot, similar: &[(&str, f32)]) -> AskedMeaning {
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
        AskedMeaning {
            query: Arc::new(UnitVector::of(vec![1.0, 0.0]).unwrap()),
            tools: Arc::new(ToolVectors::of(known)),
            least: 0.25,
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
    fn a_place_by_words_counts_twice_one_by_meaning() {
        assert_eq!(of_words(0) + of_meaning(0), MOST);
        assert_eq!(of_words(3), 2.0 * of_meaning(3));
        assert!(of_words(0) < of_words(1) + of_meaning(0), "the second that is nearest is first");
        let near = [("pong", 0.9), ("zap", 0.5), ("ping", 0.24)];
        assert_eq!(found("wibble", &near, |_| true), ["pong", "zap"], "words find nothing");
        assert_eq!(found("wibble", &[], |_| true), [""; 0]);
    }

    #[test]
    fn the_rules_of_words_count_for_meaning_too() {
        let near = [("pong", 0.9), ("delete_repo", 0.8), ("old_read", 0.7)];
        let named = found("zap", &near, |_| true);
        assert_eq!(named[0], "zap", "who names it gets it: {named:?}");
        assert_eq!(named.last().unwrap(), "old_read", "what is deprecated comes last");
        let destroys = [("delete_repo", 0.9), ("get_repo", 0.3)];
        assert_eq!(found("show me what there is", &destroys, |_| true)[0], "get_repo");
        // The words ask for a change, and find another tool first.
        let both = [("delete_repo", 0.9)];
        assert_eq!(found("update the repository", &both, |_| true)[0], "get_repo");
        let only = [("delete_repo", 0.9)];
        assert_eq!(found("show me wibble", &only, |_| true), [""; 0]);
        assert_eq!(found("delete wibble", &only, |_| true)[0], "delete_repo");
    }

    #[test]
    fn what_is_not_shown_takes_no_place() {
        let near: Vec<_> = TOOLS.iter().map(|(name, _)| (*name, 0.9)).collect();
        assert_eq!(found("wibble", &near, |tool| &*tool.name.tool == "zap"), ["zap"]);
        assert_eq!(found("zap", &near, |tool| &*tool.name.tool != "zap").len(), 5);
        assert_eq!(found("wibble", &near, |tool| tool.trust == Trust::Withheld), [""; 0]);
    }

    #[test]
    fn vectors_of_a_moment_ago_are_of_the_tools_that_are_the_same() {
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
