//! Cursor over JSON text: white space, strings, whole values.
//!
//! Shared by all code that examines text without a tape. Accepts any bytes and reports unusual string content; the
//! callers decide what to refuse. `plain` accepts only text that all parsers read the same way, `members` expects text
//! that was checked before, and redaction accepts any text.

use super::scan::{container_len, string_run};

/// Position in a text.
#[derive(Clone, Copy, Debug)]
pub struct TextCursor<'a> {
    text: &'a [u8],
    /// Never beyond the end of the text.
    at: usize,
}

/// String as written in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotedString<'a> {
    /// Bytes between the quotation marks; up to the end of the text if the string is not closed.
    pub inner: &'a [u8],
    /// Whether the closing quotation mark is present.
    pub closed: bool,
    /// Kinds of escapes in the string.
    pub spelling: Spelling,
}

/// Kinds of escapes in a string, ordered from the simplest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Spelling {
    /// No escape and no control character.
    Plain,
    /// Valid escapes of one character (`\n`).
    ShortEscapes,
    /// `\u` escapes, invalid escapes or raw control characters.
    Other,
}

impl<'a> TextCursor<'a> {
    /// Cursor at the start of `text`.
    pub fn new(text: &'a [u8]) -> Self {
        Self { text, at: 0 }
    }

    /// Cursor at offset `at` of `text`, clamped to its length.
    pub(crate) fn at(text: &'a [u8], at: usize) -> Self {
        Self { text, at: at.min(text.len()) }
    }

    /// Offset from the start of the text, in bytes.
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    /// Rest of the text.
    pub fn rest(&self) -> &'a [u8] {
        self.text.get(self.at..).unwrap_or_default()
    }

    /// Whether the cursor is at the end of the text.
    pub fn is_at_end(&self) -> bool {
        self.at == self.text.len()
    }

    /// The next byte; `None` at the end.
    pub fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    /// Advances by `count` bytes, at most to the end.
    pub fn skip(&mut self, count: usize) {
        self.at = self.text.len().min(self.at + count);
    }

    /// Skips `byte` if it is the next byte; returns whether it was.
    pub fn take(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    /// Skips JSON white space.
    pub fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// Reads a string; `None` if no string begins here.
    pub fn string(&mut self) -> Option<QuotedString<'a>> {
        if !self.take(b'"') {
            return None;
        }
        let start = self.at;
        let mut spelling = Spelling::Plain;
        loop {
            self.at += string_run(self.rest());
            let (step, found) = match self.peek() {
                Some(b'"') => {
                    let inner = self.text.get(start..self.at)?;
                    self.at += 1;
                    return Some(QuotedString { inner, closed: true, spelling });
                }
                Some(b'\\') => match self.text.get(self.at + 1) {
                    Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                        (2, Spelling::ShortEscapes)
                    }
                    Some(_) | None => (2, Spelling::Other),
                },
                Some(_) => (1, Spelling::Other),
                None => {
                    let inner = self.text.get(start..)?;
                    return Some(QuotedString { inner, closed: false, spelling });
                }
            };
            spelling = spelling.max(found);
            self.skip(step);
        }
    }

    /// Skips a value without checking its content, and returns its text; `None` if no value begins here or the value is
    /// incomplete.
    pub(crate) fn value(&mut self) -> Option<&'a [u8]> {
        let start = self.at;
        match self.peek()? {
            b'"' => {
                self.string().filter(|string| string.closed)?;
            }
            b'{' | b'[' => self.at += container_len(self.rest())?,
            b',' | b'}' | b']' | b':' => return None,
            _ => {
                let ends =
                    |byte: &u8| matches!(byte, b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r');
                self.at += self.rest().iter().position(ends)?;
            }
        }
        self.text.get(start..self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn string_is_returned_as_written_with_its_kind_of_escapes() {
        for (text, inner, closed, spelling, rest) in [
            ("\"\"x", "", true, Spelling::Plain, "x"),
            ("\"abcdefgh é\":", "abcdefgh é", true, Spelling::Plain, ":"),
            (r#""a\"\n"1"#, r#"a\"\n"#, true, Spelling::ShortEscapes, "1"),
            (r#""\n\u0061""#, r"\n\u0061", true, Spelling::Other, ""),
            (r#""\x\n""#, r"\x\n", true, Spelling::Other, ""),
            ("\"a\nb\"", "a\nb", true, Spelling::Other, ""),
            ("\"cut", "cut", false, Spelling::Plain, ""),
            (r#""cut\"#, r"cut\", false, Spelling::Other, ""),
            (r#""cut\""#, r#"cut\""#, false, Spelling::ShortEscapes, ""),
        ] {
            let mut cursor = TextCursor::new(text.as_bytes());
            let expected = QuotedString { inner: inner.as_bytes(), closed, spelling };
            assert_eq!(cursor.string(), Some(expected), "{text}");
            assert_eq!(cursor.rest(), rest.as_bytes(), "{text}");
        }
        assert_eq!(TextCursor::new(b"x\"\"").string(), None);
        assert_eq!(TextCursor::new(b"").string(), None);
    }

    #[test]
    fn scalar_value_ends_at_the_next_token() {
        for (text, value) in [
            (r#"{"a":"}"},1"#, Some(r#"{"a":"}"}"#)),
            ("[1] ", Some("[1]")),
            (r#""a,b","#, Some(r#""a,b""#)),
            ("-1.5e1\n", Some("-1.5e1")),
            ("true}", Some("true")),
            ("1", None),
            ("[1", None),
            ("\"a", None),
            (",", None),
            ("", None),
        ] {
            let found = TextCursor::new(text.as_bytes()).value();
            assert_eq!(found, value.map(str::as_bytes), "{text}");
        }
    }
}
