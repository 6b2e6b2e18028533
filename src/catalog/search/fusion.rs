//! Two rankings made one by rank (reciprocal rank fusion): what the words find, and what is nearest in meaning.
//!
//! Scores of the two cannot be compared, places can. What was measured with other constants says
//! `tools/bench/search/README.md`.

/// How little the first places count more than the next ones.
const EVEN: f32 = 5.0;

/// What a place by meaning counts, beside one by words.
const MEANING: f32 = 0.5;

/// The score of a tool that is the first by both.
pub(super) const MOST: f32 = (1.0 + MEANING) / (EVEN + 1.0);

/// What a place among those that have the words is worth; the first is 0.
pub(super) fn of_words(place: usize) -> f32 {
    1.0 / (EVEN + 1.0 + place as f32)
}

/// What a place among the nearest is worth.
pub(super) fn of_meaning(place: usize) -> f32 {
    MEANING * of_words(place)
}
