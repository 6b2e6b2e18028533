//! The members of one object, one level deep, as slices of its text.
//!
//! For text that `tape` has read as valid JSON already: what a value holds is skipped, not read a
//! second time. Of other text it makes what it can, without a panic: it stops with an error where
//! the structure breaks, and lets pass what is wrong inside a value.

use std::borrow::Cow;

use thiserror::Error;

use super::cursor::{Spelling, TextCursor};

/// The text is no object, or breaks off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("it is not a JSON object")]
pub struct NotAnObject;

/// One member: its name unescaped, its value as written.
pub type Member<'a> = (Cow<'a, str>, &'a str);

/// The members in their order; after an error there are no more.
#[derive(Clone, Debug)]
pub struct Members<'a> {
    text: &'a str,
    /// Where to go on; past the end when all was read.
    at: usize,
    first: bool,
}

/// Begins to read the object that `text` is.
///
/// # Errors
/// When it is something else.
pub fn members(text: &str) -> Result<Members<'_>, NotAnObject> {
    let mut cursor = TextCursor::new(text.as_bytes());
    cursor.skip_space();
    match cursor.take(b'{') {
        true => Ok(Members { text, at: cursor.position(), first: true }),
        false => Err(NotAnObject),
    }
}

/// The text of a JSON string; `None` if the value is not one, or not a valid one.
#[must_use]
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
        cursor.skip_space();
        match cursor.peek() {
            Some(b'}') => {
                cursor.skip(1);
                cursor.skip_space();
                return if cursor.is_at_end() { Ok(None) } else { Err(NotAnObject) };
            }
            Some(b',') if !self.first => {
                cursor.skip(1);
                cursor.skip_space();
            }
            Some(_) if self.first => {}
            Some(_) | None => return Err(NotAnObject),
        }
        self.first = false;
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn read(text: &str) -> Result<Vec<(String, String)>, NotAnObject> {
        members(text)?.map(|it| it.map(|(name, value)| (name.into(), value.into()))).collect()
    }

    #[test]
    fn values_are_the_text_as_written() {
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
    fn what_breaks_off_or_is_no_object_is_an_error() {
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
    fn a_string_without_escapes_is_a_slice() {
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

    proptest! {
        #[test]
        fn a_string_is_what_serde_json_takes_it_for(
            text in r#""([ a-cé]{0,40}|[\\"\x00-\x1f a-cnu0-9é]{0,60})""#,
        ) {
            let expected = serde_json::from_str::<String>(&text).ok();
            prop_assert_eq!(string(&text).map(Cow::into_owned), expected);
        }

        #[test]
        fn it_reads_what_serde_json_reads(value in value(), pretty: bool) {
            let text = if pretty { format!("{value:#}") } else { value.to_string() };
            let Value::Object(expected) = &value else {
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
            prop_assert_eq!(&found, expected);
        }

        #[test]
        fn it_never_panics(text in "[{}\\[\\]\":,\\\\ a1\u{7f}é]{0,40}") {
            if let Ok(members) = members(&text) {
                prop_assert!(members.count() <= text.len());
            }
        }
    }
}
