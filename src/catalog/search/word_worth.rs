//! What one word of a query is worth in which tools: BM25.
//!
//! A word is worth the more, the rarer it is over all tools and the more it counts in one (`segment`). A tool that has
//! it and what it means counts once, by whichever is worth more.

use super::asked::QueryTerm;
use super::index::Index;
use super::lexicon::WordKey;
use super::segment::prominence;

/// BM25's saturation.
const K1: f32 = 2.0;

/// What a meaning of the query's word is worth: less where some tool uses the word itself.
const MEANING: f32 = 0.75;
const STAND_IN: f32 = 0.95;

/// Tools that are thought to be there and have none of the words: in a short catalog a word that all have says little,
/// but not nothing.
const OTHERS: f32 = 20.0;

/// What one word is worth, by tool.
pub(super) struct OneWord {
    /// For each tool; 0 for most.
    pub(super) worth: Vec<(f32, f32)>,
    /// Those for which it is not.
    pub(super) tools: Vec<usize>,
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
    pub(super) fn take(&mut self) -> impl Iterator<Item = (usize, (f32, f32))> {
        let worth = &mut self.worth;
        self.tools.drain(..).filter_map(|tool| Some((tool, std::mem::take(worth.get_mut(tool)?))))
    }
}

impl Index {
    /// What one word of a query is worth in which tools, and how rare it is. A tool that has the word and what it means
    /// means it once.
    pub(super) fn one_word(&self, term: &QueryTerm, word: &mut OneWord) -> f32 {
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

    /// The tools that have a word, and what it is worth there, without its rarity.
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

    /// How rare a word is that so many tools have.
    pub(super) fn rarity(&self, having: f32) -> f32 {
        let others = (self.tools as f32 + OTHERS - having).max(0.0);
        (1.0 + (others + 0.5) / (having + 0.5)).ln()
    }
}
