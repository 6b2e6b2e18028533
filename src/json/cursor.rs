//! A place in JSON text, and reading on from there: white space, strings, whole values.
//!
//! The one reader of these wherever text is looked at without a tape. It takes any bytes, and says of a
//! string what is unusual in it; what of that is refused, its users decide: `plain` takes only what
//! every parser reads alike, `members` what was checked before, the log's redaction anything.

use super::scan::{container_len, string_run};

/// A place in a text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TextCursor<'a> {
    text: &'a [u8],
    /// Not beyond the text's end.
    at: usize,
}

/// A string as it stands in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QuotedString<'a> {
    /// What stands between the quotation marks; up to the text's end if it is not closed.
    pub(crate) inner: &'a [u8],
    /// False if the text ends within the string.
    pub(crate) closed: bool,
    pub(crate) spelling: Spelling,
}

/// What a string is written with, from the simplest on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Spelling {
    /// It stands for what it is: no escape and no control character.
    Plain,
    /// Escapes of one character (`\n`), each of them one that JSON has.
    ShortEscapes,
    /// Escapes by number, escapes that JSON does not have, raw control characters.
    Other,
}

impl<'a> TextCursor<'a> {
    /// The beginning of `text`.
    pub(crate) fn new(text: &'a [u8]) -> Self {
        Self { text, at: 0 }
    }

    /// The place in `text` before byte `at`, or its end.
    pub(crate) fn at(text: &'a [u8], at: usize) -> Self {
        Self { text, at: at.min(text.len()) }
    }

    /// Bytes of the text before this place.
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    /// The text from here on.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.text.get(self.at..).unwrap_or_default()
    }

    /// True at the text's end.
    pub(crate) fn is_at_end(&self) -> bool {
        self.at == self.text.len()
    }

    /// The next byte; `None` at the end.
    pub(crate) fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    /// Goes on by `count` bytes, to the end at most.
    pub(crate) fn skip(&mut self, count: usize) {
        self.at = self.text.len().min(self.at + count);
    }

    /// Reads over `byte` if it is the next one; false if it is not.
    pub(crate) fn take(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    /// Reads over the white space of JSON.
    pub(crate) fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// Reads over a string; `None` if none begins here.
    pub(crate) fn string(&mut self) -> Option<QuotedString<'a>> {
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

    /// Reads over a value, which is not checked within, and gives its text; `None` if it does not end,
    /// or none begins here.
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
    fn a_string_is_as_it_stands_and_says_how_it_is_spelt() {
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
    fn a_value_ends_where_what_follows_begins() {
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
