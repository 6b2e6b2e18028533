//! A tool that a query may be answered with: what it is worth, and what that says of it.

use std::cmp::Ordering;

use super::agreement::destroys;
use super::segment::Traits;
use super::thesaurus::Effect;

/// What a tool gains that the query names, as names are spelt; more than any words can add up to.
pub(super) const EXACT_NAME: f32 = 1000.0;

/// How much of the question some tool has at least, or else none is an answer.
const LEAST_COVERED: f32 = 0.3;

/// A tool that may be an answer; the best is the greatest, of equal ones the first.
pub(super) struct FoundTool<'a> {
    pub(super) at: usize,
    /// Above [`EXACT_NAME`]: the query names it.
    pub(super) score: f32,
    /// What of it the words alone are worth, whatever it is called.
    pub(super) by_words: f32,
    /// How much of the question's words it has, from 0 to 1.
    pub(super) covered: f32,
    pub(super) traits: &'a Traits,
}

impl FoundTool<'_> {
    pub(super) fn is_named(&self) -> bool {
        self.score >= EXACT_NAME
    }

    /// Whether it has so much of the question that there is an answer.
    pub(super) fn covers(&self) -> bool {
        self.covered >= LEAST_COVERED
    }

    /// Whether it destroys, where somebody only wants to see. What is named as reading is not kept back for a mark alone.
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
