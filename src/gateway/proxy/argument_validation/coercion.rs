//! Coercion of stringified arguments: models send `"[\"a\"]"` for an array and `"5"` for an integer. Pure function.
//!
//! A string at the location of a misfit can be read as another JSON value in exactly one way, if it is one JSON text.
//! The caller validates the result, so that a reading counts only where the schema requires it.

use bytes::Bytes;

use mcpproxy_json::members::string;
use mcpproxy_json::pointer::value_at;
use mcpproxy_json::span::Span;
use mcpproxy_json::tape;
use mcpproxy_schema::misfit::{Misfit, MisfitFault, Misfits};

/// Maximum depth of a value within a string.
const MAX_DEPTH: usize = 64;

/// Replaces the string at each listed misfit by the JSON value that it contains; `None` if a misfit has no such
/// string.
pub(crate) fn coerced(
    arguments: &Bytes,
    misfits: &Misfits,
    scratch: &mut tape::Scratch,
) -> Option<Bytes> {
    let mut text = std::str::from_utf8(arguments).ok()?.to_owned();
    for misfit in &misfits.listed {
        let value = written(&text, misfit)?;
        let inner = string(value)?;
        let inner = inner.trim_matches(is_space);
        kind_of(inner)?;
        tape::check_unique(inner.as_bytes(), MAX_DEPTH, scratch).ok()?;
        let at = Span::of(text.as_bytes(), value.as_bytes());
        text = String::from_utf8(at.replaced(text.as_bytes(), inner.as_bytes())).ok()?;
    }
    (!misfits.listed.is_empty()).then(|| text.into())
}

/// Kind (with its article) of the JSON value in the string at a misfit; `None` if there is no such string.
pub(crate) fn contained(arguments: &str, misfit: &Misfit) -> Option<&'static str> {
    let inner = string(written(arguments, misfit)?)?;
    let inner = inner.trim_matches(is_space);
    let kind = kind_of(inner)?;
    serde_json::from_str::<serde::de::IgnoredAny>(inner).ok()?;
    Some(kind)
}

/// JSON white space.
fn is_space(char: char) -> bool {
    matches!(char, ' ' | '\t' | '\n' | '\r')
}

/// String at a location where another type is required.
fn written<'a>(arguments: &'a str, misfit: &Misfit) -> Option<&'a str> {
    if !matches!(misfit.fault, MisfitFault::Type { .. } | MisfitFault::Alternatives) {
        return None;
    }
    let value = value_at(arguments, &misfit.place).ok()?;
    value.starts_with('"').then_some(value)
}

/// Kind of a JSON text by its first character; `None` for a string.
fn kind_of(text: &str) -> Option<&'static str> {
    match text.as_bytes().first()? {
        b'{' => Some("an object"),
        b'[' => Some("an array"),
        b't' | b'f' => Some("a boolean"),
        b'n' => Some("a null"),
        b'-' | b'0'..=b'9' => Some("a number"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn misfits(faults: &[(&str, MisfitFault)]) -> Misfits {
        let misfit = |(place, fault): &(&str, MisfitFault)| Misfit {
            place: (*place).to_owned(),
            schema: None,
            fault: fault.clone(),
        };
        Misfits { listed: faults.iter().map(misfit).collect(), count: faults.len() }
    }

    fn other_type() -> MisfitFault {
        MisfitFault::Type { expected: vec!["array"], got: Some("string") }
    }

    fn sent(arguments: &str, places: &[&str]) -> Option<String> {
        let faults: Vec<_> = places.iter().map(|place| (*place, other_type())).collect();
        let coerced = coerced(
            &Bytes::copy_from_slice(arguments.as_bytes()),
            &misfits(&faults),
            &mut tape::Scratch::new(),
        );
        coerced.map(|it| String::from_utf8(it.to_vec()).unwrap())
    }

    #[test]
    fn inp_8_string_becomes_the_one_json_value_it_contains() {
        for (arguments, places, expected) in [
            (r#"{"a":"[\"u1\"]","b":1.0}"#, &["/a"][..], r#"{"a":["u1"],"b":1.0}"#),
            (r#"{"a":"5"}"#, &["/a"], r#"{"a":5}"#),
            (r#"{"a":"null"}"#, &["/a"], r#"{"a":null}"#),
            (r#"{"a":" true\n"}"#, &["/a"], r#"{"a":true}"#),
            (r#"{"a":"{\"b\":1.50e3}"}"#, &["/a"], r#"{"a":{"b":1.50e3}}"#),
            (r#"{ "a" : ["1","x","-2"] }"#, &["/a/0", "/a/2"], r#"{ "a" : [1,"x",-2] }"#),
            (r#"{"a/b":{"c~":"\u005b\u005d"}}"#, &["/a~1b/c~0"], r#"{"a/b":{"c~":[]}}"#),
        ] {
            assert_eq!(sent(arguments, places).as_deref(), Some(expected), "{arguments}");
        }
    }

    #[test]
    fn inp_8_string_with_no_unique_reading_is_not_coerced() {
        for inner in [
            "",
            " ",
            "five",
            "True",
            "[1",
            "[1]]",
            "1 2",
            "01",
            "NaN",
            "1e999",
            r#"\"x\""#,
            r#"{\"a\":1,\"a\":2}"#,
            r#"[\"\\ud800\"]"#,
            "'x'",
        ] {
            assert_eq!(sent(&format!(r#"{{"a":"{inner}"}}"#), &["/a"]), None, "{inner}");
        }
        let deep =
            format!(r#"{{"a":"{}{}"}}"#, "[".repeat(MAX_DEPTH + 1), "]".repeat(MAX_DEPTH + 1));
        assert_eq!(sent(&deep, &["/a"]), None);
        assert_eq!(sent(r#"{"a":5}"#, &["/a"]), None, "not a string");
        assert_eq!(sent(r#"{"a":"5"}"#, &["/b"]), None, "no such place");
        assert_eq!(sent(r#"{"a":"5","b":"x"}"#, &["/a", "/b"]), None, "only one of two");
        let missing = misfits(&[("/b", MisfitFault::Missing("b".to_owned()))]);
        let arguments = Bytes::from_static(br#"{"a":"5"}"#);
        assert_eq!(coerced(&arguments, &missing, &mut tape::Scratch::new()), None);
    }

    #[test]
    fn inp_8_kind_of_the_contained_value_is_named() {
        let arguments = r#"{"a":"[1]","b":"{}","c":"x","d":"7","e":"[1"}"#;
        let kind = |place: &str| {
            contained(
                arguments,
                &Misfit { place: place.to_owned(), schema: None, fault: other_type() },
            )
        };
        let found = ["/a", "/b", "/c", "/d", "/e", "/f"].map(kind);
        let expected = [Some("an array"), Some("an object"), None, Some("a number"), None, None];
        assert_eq!(found, expected);
    }
}
