//! A range of bytes inside one message, resolved against the `Bytes` that hold it.
//!
//! Spans are offsets from the message's first byte, so they survive any chunking.
//! They deliberately hold no bytes and no borrow.

use bytes::Bytes;

/// A half-open byte range `[start, end)`, counted from the first byte of one message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Span {
    /// Offset of the first byte.
    pub start: u64,
    /// Offset one past the last byte; never less than `start`.
    pub end: u64,
}

impl Span {
    /// The span from `start` to `end`; an inverted pair becomes an empty span at `start`.
    #[must_use]
    pub fn new(start: u64, end: u64) -> Self {
        Self { start, end: end.max(start) }
    }

    /// Where `part`, a slice of `whole`, stands in it; empty at the start when it is none.
    #[must_use]
    pub fn of(whole: &[u8], part: &[u8]) -> Self {
        let start = (part.as_ptr() as usize).wrapping_sub(whole.as_ptr() as usize);
        match start.checked_add(part.len()) {
            Some(end) if end <= whole.len() => Self::new(start as u64, end as u64),
            Some(_) | None => Self::default(),
        }
    }

    /// `whole` with other bytes in place of this span of it.
    #[must_use]
    pub fn replaced(self, whole: &[u8], by: &[u8]) -> Vec<u8> {
        let before = whole.get(..self.start as usize).unwrap_or_default();
        let after = whole.get(self.end as usize..).unwrap_or_default();
        [before, by, after].concat()
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(self) -> u64 {
        self.end - self.start
    }

    /// True when the span covers no byte.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// The part of this span that lies inside `chunk`, whose first byte stands at offset `base`
    /// of the message. Shares the chunk's buffer; empty when they do not meet.
    #[must_use]
    pub fn within(self, chunk: &Bytes, base: u64) -> Bytes {
        let len = chunk.len() as u64;
        let from = self.start.saturating_sub(base).min(len);
        let to = self.end.saturating_sub(base).min(len);
        if from >= to { Bytes::new() } else { chunk.slice(from as usize..to as usize) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_found_in_whatever_chunks_the_message_came_in() {
        let message = Bytes::from_static(b"0123456789");
        let span = Span::new(3, 7);
        for size in 1..=message.len() {
            let mut found = Vec::new();
            for base in (0..message.len()).step_by(size) {
                let chunk = message.slice(base..message.len().min(base + size));
                let part = span.within(&chunk, base as u64);
                assert!(part.is_empty() || chunk.as_ptr_range().contains(&part.as_ptr()));
                found.extend(part);
            }
            assert_eq!(found, b"3456", "chunks of {size}");
        }
    }

    #[test]
    fn a_part_is_found_by_where_it_lies() {
        let whole = b"0101";
        assert_eq!(Span::of(whole, &whole[2..4]), Span::new(2, 4));
        assert_eq!(Span::new(1, 3).replaced(whole, b"x"), b"0x1");
        assert_eq!(Span::of(&whole[..2], &whole[2..]), Span::default());
        assert_eq!(Span::of(&whole[2..], &whole[..2]), Span::default());
    }

    #[test]
    fn an_inverted_span_is_empty() {
        assert_eq!(Span::new(5, 2), Span { start: 5, end: 5 });
        assert!(Span::new(5, 2).is_empty());
        assert_eq!(Span::new(2, 5).len(), 3);
    }
}
