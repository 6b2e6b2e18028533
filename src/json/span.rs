//! Byte range inside one message. Offsets count from the message's first byte, so a span is independent of the chunking; it holds neither
//! bytes nor a borrow.

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
    pub fn new(start: u64, end: u64) -> Self {
        Self { start, end: end.max(start) }
    }

    /// Span of `part`, a slice of `whole`; an empty span at the start if `part` is not a slice of `whole`.
    pub fn of(whole: &[u8], part: &[u8]) -> Self {
        let start = (part.as_ptr() as usize).wrapping_sub(whole.as_ptr() as usize);
        match start.checked_add(part.len()) {
            Some(end) if end <= whole.len() => Self::new(start as u64, end as u64),
            Some(_) | None => Self::default(),
        }
    }

    /// Copy of `whole` with this span replaced by other bytes.
    pub fn replaced(self, whole: &[u8], by: &[u8]) -> Vec<u8> {
        let before = whole.get(..self.start as usize).unwrap_or_default();
        let after = whole.get(self.end as usize..).unwrap_or_default();
        [before, by, after].concat()
    }

    /// Length in bytes.
    pub fn len(self) -> u64 {
        self.end - self.start
    }

    /// Whether the span covers no byte.
    pub fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// Part of this span inside `chunk`, whose first byte has offset `base` in the message. Shares the chunk's buffer; empty if they
    /// do not overlap.
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
    fn span_is_resolved_in_any_chunking() {
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
    fn span_of_a_slice_is_its_position() {
        let whole = b"0101";
        assert_eq!(Span::of(whole, &whole[2..4]), Span::new(2, 4));
        assert_eq!(Span::new(1, 3).replaced(whole, b"x"), b"0x1");
        assert_eq!(Span::of(&whole[..2], &whole[2..]), Span::default());
        assert_eq!(Span::of(&whole[2..], &whole[..2]), Span::default());
    }

    #[test]
    fn inverted_span_is_empty() {
        assert_eq!(Span::new(5, 2), Span { start: 5, end: 5 });
        assert!(Span::new(5, 2).is_empty());
        assert_eq!(Span::new(2, 5).len(), 3);
    }
}
