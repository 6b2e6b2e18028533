//! The index built whole, as plainly as it can be: what the ranking is compared with.

use std::collections::HashMap;
use std::sync::Arc;

use super::lexicon::{Lexicon, plain};
use super::segment::{ToolWords, Words};
use super::{B, EXACT_NAME, HALF_SCORE, K1, MAX_QUERY_WORDS, STAND_IN, SYNONYM};
use crate::tool::Tool;

pub(super) struct WholeIndex<'a> {
    lexicon: &'a Lexicon,
    names: Vec<String>,
    /// For each stem, the tools that have it and what it is worth there, without its rarity.
    postings: HashMap<Box<str>, Vec<(u32, f32)>>,
}

impl<'a> WholeIndex<'a> {
    pub(super) fn build(lexicon: &'a Lexicon, tools: &[Arc<Tool>]) -> Self {
        let mut words = Words::new(lexicon);
        let documents: Vec<_> = tools.iter().map(|tool| ToolWords::of(tool, &mut words)).collect();
        let total: f32 = documents.iter().map(|document| document.length).sum();
        let average = (total / documents.len().max(1) as f32).max(1.0);
        let mut postings = vec![Vec::new(); words.stems.len()];
        for (at, document) in (0u32..).zip(documents) {
            let damping = K1 * (1.0 - B + B * document.length / average);
            for (stem, weight) in document.weights {
                postings[stem as usize].push((at, weight * (K1 + 1.0) / (weight + damping)));
            }
        }
        let mut list = |id: u32| std::mem::take(&mut postings[id as usize]);
        let postings = words.stems.into_iter().map(|(stem, id)| (stem, list(id))).collect();
        let names = tools.iter().map(|tool| plain(&tool.name.tool)).collect();
        Self { lexicon, names, postings }
    }

    pub(super) fn search(&self, query: &str) -> Vec<(usize, f32)> {
        let mut stems = self.lexicon.stems(query);
        stems.truncate(MAX_QUERY_WORDS);
        stems.sort_unstable();
        stems.dedup();
        let exact = plain(query);
        let name = |name: &String| if *name == exact { EXACT_NAME } else { 0.0 };
        let mut scores: Vec<f32> = self.names.iter().map(name).collect();
        for stem in &stems {
            for (at, score) in self.one_word(stem) {
                scores[at as usize] += score;
            }
        }
        let mut found: Vec<_> =
            scores.into_iter().enumerate().filter(|(_, score)| *score > 0.0).collect();
        found.sort_by(|(a, x), (b, y)| y.total_cmp(x).then(a.cmp(b)));
        found.into_iter().map(|(at, score)| (at, score / (score + HALF_SCORE))).collect()
    }

    fn one_word(&self, stem: &str) -> HashMap<u32, f32> {
        let own = self.postings.get(stem).map(|list| &**list).unwrap_or_default();
        let synonyms = self.lexicon.synonyms(stem);
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
