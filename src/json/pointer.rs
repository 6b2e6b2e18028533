//! JSON Pointer (RFC 6901) look-up in JSON text; yields the value's bytes.

use super::members::{elements, members};

/// Reason why a pointer resolves to no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PointerFault<'t> {
    /// The pointer is neither empty nor begins with a slash.
    NoSlash,
    /// A `~` is not followed by `0` or `1`.
    Escape,
    /// Only a prefix of the pointer resolves.
    Nothing {
        /// Length of that prefix, in bytes.
        found: usize,
        value: &'t str,
    },
}

/// Resolves `pointer` in `text`. Of several members with the same name, the last one counts, as in most JSON readers.
pub fn value_at<'t>(text: &'t str, pointer: &str) -> Result<&'t str, PointerFault<'t>> {
    if !pointer.is_empty() && !pointer.starts_with('/') {
        return Err(PointerFault::NoSlash);
    }
    let tokens: Option<Vec<(String, usize)>> = tokens(pointer).collect();
    let mut value = text.trim_matches([' ', '\t', '\n', '\r']);
    let mut found = 0;
    for (token, end) in tokens.ok_or(PointerFault::Escape)? {
        value = below(value, &token).ok_or(PointerFault::Nothing { found, value })?;
        found = end;
    }
    Ok(value)
}

/// Escapes a name for a pointer.
pub fn token(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// Reference tokens of a pointer; `None` if it is malformed.
pub fn names(pointer: &str) -> impl Iterator<Item = Option<String>> {
    tokens(pointer).map(|token| token.map(|(name, _)| name))
}

/// Reference tokens of a pointer, each with its end offset.
fn tokens(pointer: &str) -> impl Iterator<Item = Option<(String, usize)>> {
    let mut end = 0;
    pointer.split('/').skip(1).map(move |token| {
        end += 1 + token.len();
        Some((unescaped(token)?, end))
    })
}

fn unescaped(token: &str) -> Option<String> {
    let mut parts = token.split('~');
    let mut name = parts.next()?.to_owned();
    for part in parts {
        let rest = part.strip_prefix('0').map(|rest| ('~', rest));
        let (stands_for, rest) = rest.or(part.strip_prefix('1').map(|rest| ('/', rest)))?;
        name.push(stands_for);
        name.push_str(rest);
    }
    Some(name)
}

fn below<'t>(value: &'t str, token: &str) -> Option<&'t str> {
    if value.starts_with('[') {
        let is_index =
            token == "0" || token.bytes().next().is_some_and(|b| (b'1'..=b'9').contains(&b));
        let at: usize = token.parse().ok().filter(|_| is_index)?;
        return elements(value).ok()?.map_while(Result::ok).nth(at);
    }
    let named = members(value).ok()?.map_while(Result::ok).filter(|(name, _)| name == token);
    named.last().map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    #[test]
    fn rfc_6901_examples_resolve() {
        let text = r#" {"foo": ["bar", "baz"], "": 0, "a/b": 1, "c%d": 2, "e^f": 3, "g|h": 4, "i\\j": 5, "k\"l": 6, " ": 7, "m~n": 8, "foo2":{"x":1,"x": 2 }} "#;
        for (pointer, value) in [
            ("", text.trim()),
            ("/foo", r#"["bar", "baz"]"#),
            ("/foo/0", "\"bar\""),
            ("/foo/1", "\"baz\""),
            ("/", "0"),
            ("/a~1b", "1"),
            ("/c%d", "2"),
            ("/i\\j", "5"),
            ("/k\"l", "6"),
            ("/ ", "7"),
            ("/m~0n", "8"),
            ("/foo2/x", "2"),
        ] {
            assert_eq!(value_at(text, pointer), Ok(value), "{pointer}");
        }
    }

    #[test]
    fn unresolved_pointer_reports_its_resolved_prefix() {
        let text = r#"{"a":[1,{"b":"c"}]}"#;
        let nothing = |found, value| Err(PointerFault::Nothing { found, value });
        for (pointer, expected) in [
            ("a", Err(PointerFault::NoSlash)),
            ("/a~", Err(PointerFault::Escape)),
            ("/~2", Err(PointerFault::Escape)),
            ("/x", nothing(0, text)),
            ("/a/2", nothing(2, r#"[1,{"b":"c"}]"#)),
            ("/a/01", nothing(2, r#"[1,{"b":"c"}]"#)),
            ("/a/-", nothing(2, r#"[1,{"b":"c"}]"#)),
            ("/a/+1", nothing(2, r#"[1,{"b":"c"}]"#)),
            ("/a/1/b/0", nothing(6, "\"c\"")),
            ("/a/99999999999999999999999", nothing(2, r#"[1,{"b":"c"}]"#)),
        ] {
            assert_eq!(value_at(text, pointer), expected, "{pointer}");
        }
        for broken in ["", "{", "[1", "{\"a\":", "x"] {
            assert!(value_at(broken, "/a").is_err(), "{broken}");
        }
    }

    proptest! {
        /// Differential test against serde_json's pointers, with keys that need escapes.
        #[test]
        fn resolution_equals_that_of_serde_json(
            keys in prop::collection::vec("[a/~0-2\"é]{0,3}", 1..4),
            pointer in "(/[a/~0-2\"é]{0,3}){0,3}",
        ) {
            let mut value = Value::from("end");
            for key in &keys {
                value = serde_json::json!({key.as_str(): [value, 7]});
            }
            let text = value.to_string();
            let ours = value_at(&text, &pointer).ok().map(|found| serde_json::from_str::<Value>(found).unwrap());
            // serde_json accepts escapes that RFC 6901 calls an error.
            prop_assume!(!matches!(value_at(&text, &pointer), Err(PointerFault::Escape)));
            prop_assert_eq!(ours.as_ref(), value.pointer(&pointer));
        }
    }
}
