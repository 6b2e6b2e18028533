//! Fast accept-only check for small documents that all parsers read the same way.
//!
//! Nearly every request passes it; building a tape takes several times as long. Invariant: the tape accepts every document that
//! [`is_plain`] accepts (tested). A document that is not accepted may still be valid: the tape decides and names the fault.

use super::cursor::{Spelling, TextCursor};

/// Maximum length; for longer documents the vectorized tape is faster.
const MAX_BYTES: usize = 4096;
/// Maximum number of open containers.
const MAX_OPEN: usize = 16;
/// Maximum number of keys in the open objects together.
const MAX_KEYS: usize = 32;
/// Maximum number of digits on either side of the point; a number within this limit never overflows a double.
const MAX_DIGITS: usize = 15;

/// Returns true if `text` is certainly one JSON value in UTF-8, without a duplicate key and not nested deeper than
/// `max_depth`.
pub(super) fn is_plain(text: &[u8], max_depth: usize) -> bool {
    text.len() <= MAX_BYTES && std::str::from_utf8(text).is_ok() && read(text, max_depth).is_some()
}

#[derive(Clone, Copy, Default)]
struct Open {
    is_object: bool,
    /// Index of the container's first key among the keys of the open objects.
    first: usize,
}

/// Keys of the open objects, outermost first.
struct Keys<'a> {
    keys: [&'a [u8]; MAX_KEYS],
    count: usize,
}

impl<'a> Keys<'a> {
    /// Adds a key to the object whose keys begin at `first`; `None` if it is a duplicate.
    fn add(&mut self, first: usize, key: &'a [u8]) -> Option<()> {
        if self.keys.get(first..self.count)?.contains(&key) {
            return None;
        }
        *self.keys.get_mut(self.count)? = key;
        self.count += 1;
        Some(())
    }
}

fn read(text: &[u8], max_depth: usize) -> Option<()> {
    let mut open = [Open::default(); MAX_OPEN];
    let mut keys = Keys { keys: [&[]; MAX_KEYS], count: 0 };
    let mut depth = 0;
    let mut cursor = TextCursor::new(text);
    cursor.skip_space();
    loop {
        // A value begins.
        match cursor.peek()? {
            b'"' => {
                cursor.string().filter(|it| it.closed && it.spelling <= Spelling::ShortEscapes)?;
            }
            opener @ (b'{' | b'[') => {
                cursor.skip(1);
                cursor.skip_space();
                if depth == max_depth {
                    return None;
                }
                if matches!((opener, cursor.peek()?), (b'{', b'}') | (b'[', b']')) {
                    cursor.skip(1);
                } else {
                    let container = Open { is_object: opener == b'{', first: keys.count };
                    *open.get_mut(depth)? = container;
                    depth += 1;
                    next(&mut cursor, container, &mut keys)?;
                    continue;
                }
            }
            b't' => word(&mut cursor, b"true")?,
            b'f' => word(&mut cursor, b"false")?,
            b'n' => word(&mut cursor, b"null")?,
            _ => number(&mut cursor)?,
        }
        // The value has ended, and possibly its containers too.
        loop {
            cursor.skip_space();
            let Some(container) = depth.checked_sub(1).and_then(|inmost| open.get(inmost)) else {
                return cursor.is_at_end().then_some(());
            };
            match (cursor.peek()?, container.is_object) {
                (b',', _) => {
                    cursor.skip(1);
                    cursor.skip_space();
                    next(&mut cursor, *container, &mut keys)?;
                    break;
                }
                (b'}', true) | (b']', false) => {
                    keys.count = container.first;
                    depth -= 1;
                    cursor.skip(1);
                }
                _ => return None,
            }
        }
    }
}

/// Advances to the next value of the container; in an object, reads its key.
fn next<'a>(cursor: &mut TextCursor<'a>, container: Open, keys: &mut Keys<'a>) -> Option<()> {
    if !container.is_object {
        return Some(());
    }
    let name = cursor.string()?;
    // A key with an escape may equal another key.
    if !name.closed || name.spelling != Spelling::Plain {
        return None;
    }
    keys.add(container.first, name.inner)?;
    cursor.skip_space();
    if !cursor.take(b':') {
        return None;
    }
    cursor.skip_space();
    Some(())
}

fn word(cursor: &mut TextCursor<'_>, word: &[u8]) -> Option<()> {
    cursor.rest().starts_with(word).then(|| cursor.skip(word.len()))
}

/// Skips a number. A number with an exponent is not plain.
fn number(cursor: &mut TextCursor<'_>) -> Option<()> {
    cursor.take(b'-');
    let leads_with_zero = cursor.peek() == Some(b'0');
    let whole = digits(cursor)?;
    if leads_with_zero && whole > 1 {
        return None;
    }
    if cursor.take(b'.') {
        digits(cursor)?;
    }
    (!matches!(cursor.peek(), Some(b'e' | b'E'))).then_some(())
}

/// Skips digits and returns their count; `None` if there are none or more than `MAX_DIGITS`.
fn digits(cursor: &mut TextCursor<'_>) -> Option<usize> {
    let count = cursor.rest().iter().take_while(|byte| byte.is_ascii_digit()).count();
    cursor.skip(count);
    (1..=MAX_DIGITS).contains(&count).then_some(count)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tape::{Scratch, depth};
    use super::*;

    const DEPTH: usize = 5;

    /// Parts of documents, valid and invalid.
    const PIECES: &[&str] = &[
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"a\"",
        "\"b\"",
        "\"\\u0061\"",
        "\"a\":",
        "\"b\":",
        "\"é\":",
        "\"a\\n\"",
        "\"\\x\"",
        "\"\u{1}\"",
        "\"\\ud800\"",
        "\"",
        "\\",
        "0",
        "-0",
        "01",
        "1.5",
        "1.",
        "1e5",
        "-",
        "123456789012345678",
        "true",
        "fals",
        "null",
        "nullx",
        " ",
        "\n",
        "\u{a0}",
        "[]",
        "{}",
        "[[[[[",
        "]]]]]",
        "{\"a\":[{\"a\":1,\"b\":{}}]}",
        "\u{feff}",
    ];

    const KEYS: &[&str] = &["\"a\"", "\"b\"", "\"c\"", "\"\\u0061\"", "\"é\"", "\"\""];
    const VALUES: &[&str] = &[
        "{\"a\":{\"a\":1},\"b\":[]}",
        "[[[{}]]]",
        "[[[[1]]]]",
        "{\"x\":1,\"x\":2}",
        "\"a\\n\"",
        "\"\\ud800\"",
        "-1.5",
        "1e400",
        "01",
        "true",
        "null",
        " 0 ",
        "123456789012345.5",
    ];

    fn is_read(text: &[u8]) -> bool {
        let read = Scratch::new().read([text], |document| depth(document.nodes()));
        read.is_ok_and(|found| found <= DEPTH)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn documents_that_are_plain_are_accepted_by_the_tape(
            values in proptest::collection::vec(proptest::sample::select(VALUES), 0..6),
            keys in proptest::collection::vec(proptest::sample::select(KEYS), 6),
            is_object: bool,
            puts_in: bool,
            wrong in proptest::sample::select(PIECES),
            places in proptest::array::uniform2(any::<proptest::sample::Index>()),
        ) {
            let members = keys.iter().zip(&values).map(|(key, value)| match is_object {
                true => format!("{key}:{value}"),
                false => (*value).to_owned(),
            });
            let inside = members.collect::<Vec<_>>().join(",");
            let right = if is_object { format!("{{{inside}}}") } else { format!("[{inside}]") };
            let right = right.into_bytes();
            prop_assert!(!is_plain(&right, DEPTH) || is_read(&right));
            // Replaces a part, or inserts one.
            let mut places = places.map(|place| place.index(right.len() + 1));
            places.sort_unstable();
            let [from, to] = places;
            let to = if puts_in { from } else { to };
            let text = [&right[..from], wrong.as_bytes(), &right[to..]].concat();
            prop_assert!(!is_plain(&text, DEPTH) || is_read(&text));
        }

        #[test]
        fn serializer_output_is_plain(
            keys in proptest::collection::btree_set("[a-zé ]{0,12}", 0..20),
            pretty: bool,
        ) {
            let object: serde_json::Map<_, _> = keys
                .into_iter()
                .map(|key| (key.clone(), serde_json::json!([{ key: -1.5 }, "a\"\\\n/", true, []])))
                .collect();
            let value = serde_json::Value::from(object);
            let text = if pretty { format!("{value:#}") } else { value.to_string() };
            prop_assert!(is_plain(text.as_bytes(), 3) || text.len() > MAX_BYTES);
        }
    }

    #[test]
    fn ambiguous_documents_are_not_plain() {
        let deep = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(is_plain(deep(DEPTH).as_bytes(), DEPTH));
        assert!(is_plain(br#"[{"a":1},{"a":{"a":2}},[]]"#, DEPTH));
        for text in [
            "",
            " ",
            "{}{}",
            "[1,]",
            "{\"a\":1,}",
            "{\"a\" 1}",
            "{\"a\":1,\"b\":{\"a\":1},\"a\":2}",
            "{\"a\":1,\"\\u0061\":2}",
            "[1}",
            "\"a\nb\"",
            "\"a",
            "-",
            "1.e1",
            "+1",
            &deep(DEPTH + 1),
            &deep(MAX_OPEN + 1),
            &format!("[{}0]", "0,".repeat(MAX_BYTES)),
        ] {
            assert!(!is_plain(text.as_bytes(), DEPTH), "{text}");
        }
        assert!(!is_plain(b"\"\xFF\"", DEPTH));
    }
}
