//! The ranking by words: what a whole question is worth in each tool.
//!
//! Adds up what each word is worth (`word_worth`), and weighs the sum by how much of the question the tool has, whether
//! it does what is wanted (`agreement`) and whether it is called like the question (`queried_name`).

use super::agreement::{agreement, is_unwanted};
use super::asked::{Bearing, ParsedQuery};
use super::found_tool::{EXACT_NAME, FoundTool};
use super::index::Index;
use super::queried_name::{NameFit, QueriedName};
use super::selection::{in_order, strong_enough};
use super::word_worth::OneWord;

/// What a verb is worth that any tool may have.
const VERB: f32 = 0.5;

/// What a word is worth that somebody is told, or that is to be remembered.
const TOLD: f32 = 0.3;

/// How much more a tool is worth whose name is made of the query's words: that may be what is meant, and may be chance.
const CALLED: f32 = 1.5;

/// How much of a score does not depend on how many of the question's words a tool has.
const UNCOVERED: f32 = 0.6;
/// How much of what a word weighs among those does not depend on how rare it is, and how much of what it weighs in a
/// tool not on how much the tool is about it.
const ALIKE: f32 = 0.6;
const WEAKLY: f32 = 0.3;
/// What a word that no tool knows weighs among them.
const UNKNOWN: f32 = 0.8;
/// How much of a score is left to a tool that destroys, where nobody wants that.
const UNWANTED: f32 = 0.6;
/// How much of a score is left to a tool whose verb was not asked for.
const UNASKED: f32 = 0.8;

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
    /// What is shown and has enough of the words, in order.
    pub(super) fn by_words(
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
                NameFit::ByWords | NameFit::AsSpelt => (score, 1.0),
            };
            let score = match named {
                NameFit::Not => score,
                NameFit::ByWords => score * CALLED,
                NameFit::AsSpelt => score + EXACT_NAME,
            };
            Some(FoundTool { at, score, by_words, covered, traits })
        });
        let tools: Vec<_> = tools.filter(|tool| tool.score > 0.0).collect();
        let found = strong_enough(tools, asked.effect, shown);
        in_order(found, |tool| is_unwanted(asked.effect, tool.traits))
    }
}
