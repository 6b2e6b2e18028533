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
//! An [`Index`] holds the segments of all servers (`index`). What is asked is read (`asked`), typing errors in it are mended
//! (`mending`), and each of its words is weighed in each tool (`word_worth`). What a tool is worth by all of them
//! (`by_words`) depends on whether its name is asked for (`queried_name`) and on what it does (`agreement`); of the tools
//! that are found so (`found_tool`) the answer is chosen and put in order (`selection`).

use self::asked::ParsedQuery;
use self::selection::in_falling_order;

mod agreement;
mod asked;
mod by_words;
mod deprecation;
mod found_tool;
mod fusion;
mod index;
mod lexicon;
mod mending;
mod queried_name;
mod segment;
mod selection;
mod spelling;
mod thesaurus;
mod vectors;
mod word_worth;
mod words;

#[cfg(test)]
mod bad_input;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod hidden;
#[cfg(test)]
pub(super) mod samples;
#[cfg(test)]
mod tests;

pub use index::Index;
pub use lexicon::Lexicon;
pub use segment::Segment;
pub use vectors::{AskedMeaning, MAX_DIMENSIONS, MOST_NEAR, Near, ToolVectors, UnitVector};

/// The raw score that becomes 0.5; about that of one rare word in a name.
const HALF_SCORE: f32 = 5.0;

impl Index {
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
}
