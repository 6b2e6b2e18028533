//! The members of one object, one level deep, as slices of its text.
//!
//! For text that `tape` has read as valid JSON already: what a value holds is skipped, not read a
//! second time. Of other text it makes what it can, without a panic: it stops with an error where
//! the structure breaks, and lets pass what is wrong inside a value.

use std::borrow::Cow;

use thiserror::Error;

use super::scan::{container_len, string_run};

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
    let at = blank(text.as_bytes(), 0);
    match text.as_bytes().get(at) {
        Some(b'{') => Ok(Members { text, at: at + 1, first: true }),
        Some(_) | None => Err(NotAnObject),
    }
}

/// The text of a JSON string; `None` if the value is not one, or not a valid one.
#[must_use]
pub fn string(value: &str) -> Option<Cow<'_, str>> {
    let Quoted { end, plain } = quoted(value.as_bytes(), 0).filter(|it| it.end == value.len())?;
    match plain {
        true => value.get(1..end - 1).map(Cow::Borrowed),
        false => serde_json::from_str(value).ok().map(Cow::Owned),
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
        let bytes = self.text.as_bytes();
        let mut at = blank(bytes, self.at);
        match bytes.get(at) {
            Some(b'}') => {
                let rest = blank(bytes, at + 1);
                return if rest == bytes.len() { Ok(None) } else { Err(NotAnObject) };
            }
            Some(b',') if !self.first => at = blank(bytes, at + 1),
            Some(_) if self.first => {}
            Some(_) | None => return Err(NotAnObject),
        }
        self.first = false;
        let Quoted { end, plain } = quoted(bytes, at).ok_or(NotAnObject)?;
        let name = match plain {
            true => self.text.get(at + 1..end - 1).map(Cow::Borrowed),
            false => self.text.get(at..end).and_then(string),
        };
        let name = name.ok_or(NotAnObject)?;
        at = blank(bytes, end);
        if bytes.get(at) != Some(&b':') {
            return Err(NotAnObject);
        }
        at = blank(bytes, at + 1);
        let end = end_of_value(bytes, at).ok_or(NotAnObject)?;
        self.at = end;
        let value = self.text.get(at..end).ok_or(NotAnObject)?;
        Ok(Some((name, value)))
    }
}

/// Where the white space at `at` ends.
pub(super) fn blank(bytes: &[u8], mut at: usize) -> usize {
    while matches!(bytes.get(at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
        at += 1;
    }
    at
}

/// A string's place in the text.
struct Quoted {
    /// Behind its closing quote.
    end: usize,
    /// True if it stands there as it is: no escape, no control character.
    plain: bool,
}

/// Reads over the string that begins at `at`.
fn quoted(bytes: &[u8], mut at: usize) -> Option<Quoted> {
    if bytes.get(at) != Some(&b'"') {
        return None;
    }
    at += 1;
    let mut plain = true;
    loop {
        at += string_run(bytes.get(at..)?);
        match bytes.get(at)? {
            b'"' => return Some(Quoted { end: at + 1, plain }),
            b'\\' => at += 2,
            _ => at += 1,
        }
        plain = false;
    }
}

/// Where the value that begins at `at` ends.
fn end_of_value(bytes: &[u8], at: usize) -> Option<usize> {
    match bytes.get(at)? {
        b'"' => quoted(bytes, at).map(|quoted| quoted.end),
        b'{' | b'[' => Some(at + container_len(bytes.get(at..)?)?),
        b',' | b'}' | b']' | b':' => None,
        _ => {
            let ends =
                |byte: &u8| matches!(byte, b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r');
            Some(at + bytes.get(at..)?.iter().position(ends)?)
        }
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
