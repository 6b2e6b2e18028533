//! Text of others, cut to a bound.

/// At most `limit` bytes of `text`, cut on a character boundary.
pub(super) fn cut(text: &str, limit: usize) -> &str {
    text.get(..text.floor_char_boundary(limit)).unwrap_or(text)
}
