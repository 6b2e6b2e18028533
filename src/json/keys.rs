//! Iterator over the keys of a JSON text at every depth; detection of keys of one object that differ only by case.
//!
//! Expects valid JSON. Other text yields an arbitrary but bounded result, without a panic. Not recursive.

use std::borrow::Cow;

use memchr::memchr3;

use super::cursor::{Spelling, TextCursor};
use super::fold;

/// Maximum number of hashes that are compared pairwise; more are sorted.
const FEW_KEYS: usize = 16;

/// Key, or start or end of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyEvent<'a> {
    Begin,
    /// A key of the innermost open object, unescaped.
    Key(Cow<'a, str>),
    /// The innermost open object ends.
    End,
}

/// Iterator over the keys of a text.
#[derive(Clone, Debug)]
pub struct KeyEvents<'a>(TextCursor<'a>);

impl<'a> KeyEvents<'a> {
    pub fn new(text: &'a [u8]) -> Self {
        Self(TextCursor::new(text))
    }
}

impl<'a> Iterator for KeyEvents<'a> {
    type Item = KeyEvent<'a>;

    fn next(&mut self) -> Option<KeyEvent<'a>> {
        let cursor = &mut self.0;
        loop {
            let rest = cursor.rest();
            cursor.skip(memchr3(b'"', b'{', b'}', rest)?);
            if cursor.take(b'{') {
                return Some(KeyEvent::Begin);
            }
            if cursor.take(b'}') {
                return Some(KeyEvent::End);
            }
            let (start, string) = (cursor.rest(), cursor.string()?);
            let quoted = start.get(..start.len() - cursor.rest().len()).unwrap_or_default();
            cursor.skip_space();
            if cursor.peek() == Some(b':') {
                return Some(KeyEvent::Key(match string.spelling {
                    Spelling::Plain => String::from_utf8_lossy(string.inner),
                    Spelling::ShortEscapes | Spelling::Other => serde_json::from_slice(quoted)
                        .map_or_else(|_| String::from_utf8_lossy(string.inner), Cow::Owned),
                }));
            }
        }
    }
}

/// Whether a case-insensitive reader treats two keys of one object, at any depth, as [equal](fold::same).
pub fn has_case_twins(text: &[u8]) -> bool {
    let (mut open, mut keys) = (Vec::new(), Vec::new());
    for event in KeyEvents::new(text) {
        match event {
            KeyEvent::Begin => open.push(keys.len()),
            KeyEvent::Key(key) => keys.push(fold::hash(&key)),
            KeyEvent::End => {
                let first = open.pop().unwrap_or_default();
                if keys.get_mut(first..).is_some_and(has_equal) {
                    return true;
                }
                keys.truncate(first);
            }
        }
    }
    false
}

/// Whether the slice has two equal hashes. May reorder it.
pub fn has_equal(hashes: &mut [u64]) -> bool {
    if hashes.len() <= FEW_KEYS {
        let mut rest = &*hashes;
        while let Some((first, others)) = rest.split_first() {
            if others.contains(first) {
                return true;
            }
            rest = others;
        }
        return false;
    }
    hashes.sort_unstable();
    hashes.windows(2).any(|pair| matches!(pair, [a, b] if a == b))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn keys(text: &str) -> Vec<String> {
        let key = |event| match event {
            KeyEvent::Key(key) => Some(key.into_owned()),
            KeyEvent::Begin | KeyEvent::End => None,
        };
        KeyEvents::new(text.as_bytes()).filter_map(key).collect()
    }

    #[test]
    fn keys_are_found_at_every_depth_and_values_are_skipped() {
        let text = r#" { "a" : "b:" , "\u0063\n" :[{"{":1,"e":{}} , "f"],"g\"":"}" }"#;
        assert_eq!(keys(text), ["a", "c\n", "{", "e", "g\""]);
        for text in ["", "1", "[]", r#""a""#, r#"["a","b"]"#, "{", "{\"a", "\""] {
            assert_eq!(keys(text), [""; 0], "{text}");
        }
    }

    #[test]
    fn case_variants_count_within_one_object() {
        let many: String = (0..40).map(|at| format!("\"key{at}\":1,")).collect();
        for text in [
            r#"{"path":1,"Path":2}"#.to_owned(),
            r#"{"x":[{"y":{"a":1,"b":2,"A":3}}]}"#.to_owned(),
            "{\"\\u0061\":1,\"A\":{\"b\":1}}".to_owned(),
            "{\"s\":1,\"\u{17f}\":2}".to_owned(),
            format!("{{{many}\"KEY7\":2}}"),
        ] {
            assert!(has_case_twins(text.as_bytes()), "{text}");
        }
        for text in [
            r#"{"a":{"x":1},"b":{"X":1},"X":2}"#.to_owned(),
            r#"{"a":"A","b":["B"]}"#.to_owned(),
            format!("{{{many}\"other\":2}}"),
        ] {
            assert!(!has_case_twins(text.as_bytes()), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn keys_equal_those_of_serde_json(text in "[{}\\[\\]\":,\\\\ ab1u0n]{0,40}") {
            let found = keys(&text);
            if let Ok(value) = serde_json::from_str::<Value>(&text) {
                fn count(value: &Value) -> usize {
                    match value {
                        Value::Object(all) => all.len() + all.values().map(count).sum::<usize>(),
                        Value::Array(all) => all.iter().map(count).sum(),
                        _ => 0,
                    }
                }
                // serde_json keeps one of two equal keys.
                proptest::prop_assert!(found.len() >= count(&value), "{text}");
            }
        }
    }
}
