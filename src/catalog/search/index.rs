//! All tools' words as one: the segments of the servers, one after another, and what is known over all of them.
//!
//! A tool's position is its place among the tools of all segments. What a word is worth is not here (`word_worth`).

use std::fmt;
use std::sync::Arc;

use super::lexicon::{Lexicon, WordKey};
use super::segment::{Segment, Traits};

/// An index over one snapshot's tools.
pub struct Index {
    pub(super) lexicon: Arc<Lexicon>,
    pub(super) segments: Box<[Arc<Segment>]>,
    pub(super) tools: usize,
}

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Index({} tools of {} servers)", self.tools, self.segments.len())
    }
}

impl Index {
    /// The index over the tools of all `segments`, in their order; a result is a position in them.
    #[must_use]
    pub fn of(lexicon: Arc<Lexicon>, segments: impl IntoIterator<Item = Arc<Segment>>) -> Self {
        let segments: Box<[_]> = segments.into_iter().collect();
        let tools = segments.iter().map(|segment| segment.len()).sum();
        Self { lexicon, segments, tools }
    }

    pub(super) fn traits(&self, mut at: usize) -> Option<&Traits> {
        for segment in &self.segments {
            match at.checked_sub(segment.len()) {
                Some(rest) => at = rest,
                None => return segment.tools().nth(at),
            }
        }
        None
    }

    /// How many tools have a word, those less that have it in a lesser place.
    pub(super) fn having(&self, key: WordKey) -> f32 {
        self.segments.iter().map(|segment| segment.having(key)).sum()
    }
}
