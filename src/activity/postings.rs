//! Finding segments through the index: which full segments may hold records that a filter means.
//!
//! Times are not indexed; `view` compares them with each segment's bounds.

use super::bytes::DecodeError;
use super::keys;
use super::query::{Filter, Term};
use super::segment::Bitmap;
use super::store::{Rows, Space, StoreError, StoreSnapshot};

/// Walks the index backwards: for each field asked for the postings of its values, in step.
pub(super) struct Postings {
    fields: Vec<Vec<PostingList>>,
    /// Where no field is asked for: every segment, down from here.
    all: Option<std::ops::Range<u64>>,
}

struct PostingList {
    rows: Rows,
    term: Term,
    current: Option<(u64, Bitmap)>,
}

impl Postings {
    /// Candidates from the segment `from` up to but not including `below`.
    pub(super) fn new(snapshot: &StoreSnapshot, filter: &Filter, from: u64, below: u64) -> Self {
        let open = |term: Term| PostingList {
            rows: snapshot.range(
                Space::Index,
                &keys::postings(term.bucket(), from),
                &keys::postings(term.bucket(), below),
            ),
            term,
            current: None,
        };
        let terms = filter.terms();
        let all = terms.is_empty().then_some(from..below);
        let fields = terms.into_iter().map(|terms| terms.into_iter().map(open).collect()).collect();
        let mut candidates = Self { fields, all };
        candidates.all = candidates.all.filter(|_| from < below);
        candidates
    }

    /// The next segment that may hold records, and which.
    pub(super) fn next(
        &mut self,
        snapshot: &StoreSnapshot,
    ) -> Result<Option<(u64, Bitmap)>, StoreError> {
        if self.fields.is_empty() {
            let next = self.all.as_mut().and_then(DoubleEndedIterator::next_back);
            return Ok(next.map(|number| (number, Bitmap::ALL)));
        }
        let mut target = u64::MAX;
        loop {
            let mut found = Bitmap::ALL;
            let mut lowest = target;
            for postings in &mut self.fields {
                let (mut highest, mut union) = (None, Bitmap::default());
                for posting in postings {
                    match posting.at_or_below(target, snapshot)? {
                        Some((number, bits)) if highest == Some(number) => union = union.or(bits),
                        Some((number, bits)) if highest < Some(number) => {
                            (highest, union) = (Some(number), bits);
                        }
                        Some(_) | None => {}
                    }
                }
                let Some(highest) = highest else { return Ok(None) };
                lowest = lowest.min(highest);
                found = found.and(union);
            }
            let agreed = lowest == target;
            target = lowest;
            if agreed {
                self.pass(target);
                if !found.is_empty() {
                    return Ok(Some((target, found)));
                }
                target = match target.checked_sub(1) {
                    Some(target) => target,
                    None => return Ok(None),
                };
            }
        }
    }

    /// Marks a segment as done.
    fn pass(&mut self, number: u64) {
        for posting in self.fields.iter_mut().flatten() {
            posting.current = posting.current.filter(|(at, _)| *at < number);
        }
    }
}

impl PostingList {
    /// The newest posting at or below a segment.
    fn at_or_below(
        &mut self,
        target: u64,
        snapshot: &StoreSnapshot,
    ) -> Result<Option<(u64, Bitmap)>, StoreError> {
        while self.current.is_none_or(|(number, _)| number > target) {
            let Some(row) = self.rows.next_back() else {
                self.current = None;
                return Ok(None);
            };
            let (key, value) = row?;
            let damaged = |error| snapshot.damaged(Space::Index, &key, error);
            let number = key.last_chunk().map(|bytes| u64::from_be_bytes(*bytes));
            let number = number.ok_or_else(|| damaged(DecodeError::Short))?;
            let found = Bitmap::find(&value, self.term).map_err(damaged)?;
            self.current = found.map(|found| (number, found));
        }
        Ok(self.current)
    }
}
