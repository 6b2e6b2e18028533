//! Iterators over the members of one object and over the elements of one array, as slices of its text.
//!
//! For text that `tape` has accepted as valid JSON: values are skipped, not read a second time. Other text does not cause a panic:
//! iteration stops with an error where the structure breaks, and faults inside a value are not detected.

use std::borrow::Cow;
use std::sync::LazyLock;

use memchr::memmem::Finder;
use thiserror::Error;

use super::cursor::{Spelling, TextCursor};

/// The text is not an object, or ends early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("it is not a JSON object")]
pub struct NotAnObject;

/// Member: unescaped name, value as written.
pub type Member<'a> = (Cow<'a, str>, &'a str);

/// Iterator over the members in order. Ends after an error.
#[derive(Clone, Debug)]
pub struct Members<'a> {
    text: &'a str,
    /// Offset of the next member; past the end once all members were read.
    at: usize,
    first: bool,
}

pub fn members(text: &str) -> Result<Members<'_>, NotAnObject> {
    let mut cursor = TextCursor::new(text.as_bytes());
    cursor.skip_space();
    match cursor.take(b'{') {
        true => Ok(Members { text, at: cursor.position(), first: true }),
        false => Err(NotAnObject),
    }
}

/// Raw value of the first member with this name; `None` also if the text before it is not an object.
pub fn member<'a>(object: &'a str, name: &str) -> Option<&'a str> {
    let mut members = members(object).ok()?.map_while(Result::ok);
    members.find(|(key, _)| key == name).map(|(_, value)| value)
}

/// Advances to the next member or element. Returns false if the text ends after `close`, `None` if the text is malformed.
fn advance(cursor: &mut TextCursor<'_>, close: u8, first: &mut bool) -> Option<bool> {
    cursor.skip_space();
    if cursor.take(close) {
        cursor.skip_space();
        return cursor.is_at_end().then_some(false);
    }
    if !std::mem::take(first) {
        if !cursor.take(b',') {
            return None;
        }
        cursor.skip_space();
    }
    Some(true)
}

/// Text of a JSON string; `None` if the value is not a valid string.
pub fn string(value: &str) -> Option<Cow<'_, str>> {
    let mut cursor = TextCursor::new(value.as_bytes());
    let string = cursor.string().filter(|string| string.closed && cursor.is_at_end())?;
    match string.spelling {
        Spelling::Plain => value.get(1..value.len() - 1).map(Cow::Borrowed),
        Spelling::ShortEscapes | Spelling::Other => {
            serde_json::from_str(value).ok().map(Cow::Owned)
        }
    }
}

/// Whether this JSON text, which may be truncated, has an escaped surrogate without its other half.
pub fn has_lone_surrogate(json: &[u8]) -> bool {
    static ESCAPED_UNIT: LazyLock<Finder<'_>> = LazyLock::new(|| Finder::new(b"\\u"));
    // Most escapes are of other kinds: JSON embedded in a string has one at each quote.
    if ESCAPED_UNIT.find(json).is_none() {
        return false;
    }
    let mut rest = json;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        let escape = rest.get(at..).unwrap_or_default();
        let unit = code_unit(escape);
        let after = escape.get(if unit.is_some() { 6 } else { 2 }..).unwrap_or_default();
        rest = match unit {
            Some(0xdc00..=0xdfff) => return true,
            Some(0xd800..=0xdbff) => match code_unit(after) {
                Some(0xdc00..=0xdfff) => after.get(6..).unwrap_or_default(),
                // The text may have been cut within the other half.
                None if after.len() < 6 && b"\\u".starts_with(after.get(..2).unwrap_or(after)) => {
                    return false;
                }
                Some(_) | None => return true,
            },
            Some(_) | None => after,
        };
    }
    false
}

/// UTF-16 code unit of an escape `\uXXXX` at the start.
fn code_unit(text: &[u8]) -> Option<u16> {
    let digits = text.strip_prefix(b"\\u")?.get(..4)?;
    let digits = std::str::from_utf8(digits).ok().filter(|it| !it.starts_with('+'))?;
    u16::from_str_radix(digits, 16).ok()
}

impl<'a> Iterator for Members<'a> {
    type Item = Result<Member<'a>, NotAnObject>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at > self.text.len() {
            return None;
        }
        let next = self.read();
        if !matches!(next, Ok(Some(_))) {
            self.at = usize::MAX;
        }
        next.transpose()
    }
}

impl<'a> Members<'a> {
    fn read(&mut self) -> Result<Option<Member<'a>>, NotAnObject> {
        let mut cursor = TextCursor::at(self.text.as_bytes(), self.at);
        if !advance(&mut cursor, b'}', &mut self.first).ok_or(NotAnObject)? {
            return Ok(None);
        }
        let start = cursor.position();
        let name = cursor.string().filter(|name| name.closed).ok_or(NotAnObject)?;
        let end = cursor.position();
        let name = match name.spelling {
            Spelling::Plain => self.text.get(start + 1..end - 1).map(Cow::Borrowed),
            Spelling::ShortEscapes | Spelling::Other => self.text.get(start..end).and_then(string),
        };
        let name = name.ok_or(NotAnObject)?;
        cursor.skip_space();
        if !cursor.take(b':') {
            return Err(NotAnObject);
        }
        cursor.skip_space();
        let start = cursor.position();
        cursor.value().ok_or(NotAnObject)?;
        self.at = cursor.position();
        let value = self.text.get(start..self.at).ok_or(NotAnObject)?;
        Ok(Some((name, value)))
    }
}

/// The text is not an array, or ends early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("it is not a JSON array")]
pub struct NotAnArray;

/// Iterator over the elements in order. Ends after an error.
#[derive(Clone, Debug)]
pub struct ArrayElements<'a> {
    text: &'a str,
    /// Offset of the next element; past the end once all elements were read.
    at: usize,
    first: bool,
}

pub fn elements(text: &str) -> Result<ArrayElements<'_>, NotAnArray> {
    let mut cursor = TextCursor::new(text.as_bytes());
    cursor.skip_space();
    match cursor.take(b'[') {
        true => Ok(ArrayElements { text, at: cursor.position(), first: true }),
        false => Err(NotAnArray),
    }
}

impl<'a> Iterator for ArrayElements<'a> {
    type Item = Result<&'a str, NotAnArray>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at > self.text.len() {
            return None;
        }
        let next = self.read();
        if !matches!(next, Ok(Some(_))) {
            self.at = usize::MAX;
        }
        next.transpose()
    }
}

impl<'a> ArrayElements<'a> {
    fn read(&mut self) -> Result<Option<&'a str>, NotAnArray> {
        let mut cursor = TextCursor::at(self.text.as_bytes(), self.at);
        if !advance(&mut cursor, b']', &mut self.first).ok_or(NotAnArray)? {
            return Ok(None);
        }
        let start = cursor.position();
        cursor.value().ok_or(NotAnArray)?;
        self.at = cursor.position();
        self.text.get(start..self.at).map(Some).ok_or(NotAnArray)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn read(text: &str) -> Result<Vec<(String, String)>, NotAnObject> {
        members(text)?.map(|it| it.map(|(name, value)| (name.into(), value.into()))).collect()
    }

    #[test]
    fn values_are_verbatim_slices() {
        let text =
            r#" { "a" : {"x":[1,"}"] , "y":{}} ,"b\u0063": "q\"]" , "":[[{}],"{"],"n":-1.50e1 } "#;
        let expected = [
            ("a", r#"{"x":[1,"}"] , "y":{}}"#),
            ("bc", r#""q\"]""#),
            ("", r#"[[{}],"{"]"#),
            ("n", "-1.50e1"),
        ];
        assert_eq!(read(text).unwrap(), expected.map(|(n, v)| (n.to_owned(), v.to_owned())));
        assert_eq!(read("{}").unwrap(), []);
        assert_eq!(read("{ }\n").unwrap(), []);
    }

    #[test]
    fn truncated_object_or_other_value_is_an_error() {
        for text in [
            "",
            "null",
            "[]",
            "\"{}\"",
            "{",
            "{\"a\"",
            "{\"a\":",
            "{\"a\":1",
            "{\"a\":1,",
            "{\"a\":1,}",
            "{,}",
            "{\"a\":1 \"b\":2}",
            "{\"a\":\"",
            "{\"a\":\"\\",
            "{\"a\":{]",
            "{a:1}",
            "{\"a\":}",
            "{}x",
            "{\"a\\ud800\":1}",
            "{\"a\":1}}",
            "{\"a\":1,,\"b\":2}",
        ] {
            assert_eq!(read(text), Err(NotAnObject), "{text}");
        }
    }

    #[test]
    fn string_without_escapes_is_borrowed() {
        assert!(matches!(string("\"plain é\""), Some(Cow::Borrowed("plain é"))));
        assert_eq!(string(r#""a\n\u0062""#).unwrap(), "a\nb");
        for not in ["\"", "", "7", "\"a\nb\"", r#""\ud800""#, r#""a"b""#, "null"] {
            assert_eq!(string(not), None, "{not}");
        }
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            "[\\\\\"\\[\\]{}:, a-cé\u{1}]{0,8}|[\\\\\"a-z]{30,80}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[\\\\\"{}\\[\\]a-c]{0,4}", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    #[test]
    fn lone_surrogate_is_found_among_other_escapes() {
        for (json, is_lone) in [
            (r#""\ud800""#, true),
            (r#""a\\\uD800 b""#, true),
            (r#""\udc00""#, true),
            (r#""\ud83d\ud83d\ude00""#, true),
            (r#""\ud800\n""#, true),
            (r#""\ud800\u0041""#, true),
            (r#""\ud83d\ude00""#, false),
            (r#""\\ud800 \u00e9\n""#, false),
            (r#""\ud83d"#, false),
            (r#""\ud83d\"#, false),
            (r#""\ud83d\ude"#, false),
            (r#""\ud83dx"#, true),
            ("", false),
            ("\\", false),
        ] {
            assert_eq!(has_lone_surrogate(json.as_bytes()), is_lone, "{json}");
        }
    }

    proptest! {
        #[test]
        fn strings_equal_those_of_serde_json(
            text in r#""([ a-cé]{0,40}|[\\"\x00-\x1f a-cnu0-9é]{0,60})""#,
        ) {
            let expected = serde_json::from_str::<String>(&text).ok();
            prop_assert_eq!(string(&text).map(Cow::into_owned), expected);
        }

        #[test]
        fn members_equal_those_of_serde_json(value in value(), pretty: bool) {
            let text = if pretty { format!("{value:#}") } else { value.to_string() };
            // Parsed from the text, because a float that is printed and parsed may differ in its last bit.
            let Value::Object(expected) = serde_json::from_str(&text).unwrap() else {
                prop_assert_eq!(read(&text), Err(NotAnObject));
                return Ok(());
            };
            let mut found = serde_json::Map::new();
            for (name, raw) in read(&text).unwrap() {
                let parsed: Value = serde_json::from_str(&raw).unwrap();
                if let Value::String(text) = &parsed {
                    prop_assert_eq!(string(&raw).unwrap(), text.as_str());
                }
                found.insert(name, parsed);
            }
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn arbitrary_text_does_not_panic(text in "[{}\\[\\]\":,\\\\ a1\u{7f}é]{0,40}") {
            if let Ok(members) = members(&text) {
                prop_assert!(members.count() <= text.len());
            }
        }
    }
}

#[cfg(test)]
mod elements_tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<&str>, NotAnArray> {
        elements(text)?.collect()
    }

    #[test]
    fn values_are_verbatim_slices() {
        let text = " [ {\"a\":[1,\"]\"]} ,[ ],\"x,]\" , -1.50e1,null ] ";
        let expected = [r#"{"a":[1,"]"]}"#, "[ ]", "\"x,]\"", "-1.50e1", "null"];
        assert_eq!(read(text).unwrap(), expected);
        for empty in ["[]", "[ ]", " [\n]\t"] {
            assert_eq!(read(empty).unwrap(), [""; 0]);
        }
    }

    #[test]
    fn truncated_array_or_other_value_is_an_error() {
        for text in ["", "{}", "1", "[", "[1", "[1,", "[1,]", "[,1]", "[1 2]", "[1]x", "[\"a]"] {
            assert_eq!(read(text), Err(NotAnArray), "{text}");
        }
    }
}
