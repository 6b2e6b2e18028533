//! A value inside a JSON text, found by its JSON pointer (RFC 6901), as the slice that it is.
//!
//! For text that is known to be valid JSON. Builds nothing: what stands before the value is read over.

use super::cursor::TextCursor;
use super::members::members;

/// The text of the value at `pointer` in `text`; `None` if there is none. Of members with the same name, the first.
#[must_use]
pub fn resolve<'a>(text: &'a str, pointer: &str) -> Option<&'a str> {
    if pointer.is_empty() {
        return Some(text.trim_ascii());
    }
    let steps = pointer.strip_prefix('/')?.split('/');
    steps.into_iter().try_fold(text, |value, step| inside(value, &unescaped(step)))
}

/// One step of a JSON pointer, without its escapes.
#[must_use]
pub fn unescaped(step: &str) -> String {
    step.replace("~1", "/").replace("~0", "~")
}

/// A name as one step of a JSON pointer.
#[must_use]
pub fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// The member of that name, or the item of that number.
fn inside<'a>(value: &'a str, step: &str) -> Option<&'a str> {
    match members(value) {
        Ok(members) => {
            let mut members = members.map_while(Result::ok);
            members.find(|(name, _)| name == step).map(|(_, value)| value)
        }
        Err(_) => item(value, step.parse().ok()?),
    }
}

/// The item of that number in the array that `text` is.
fn item(text: &str, number: usize) -> Option<&str> {
    let mut cursor = TextCursor::new(text.as_bytes());
    cursor.skip_space();
    if !cursor.take(b'[') {
        return None;
    }
    for _ in 0..number {
        cursor.skip_space();
        cursor.value()?;
        cursor.skip_space();
        if !cursor.take(b',') {
            return None;
        }
    }
    cursor.skip_space();
    let start = cursor.position();
    cursor.value()?;
    text.get(start..cursor.position())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_found_as_it_stands() {
        let text = r#" {"a": {"x/y" : [1, {"~":"]"} ,[ 2 ]] ,"":3}, "\u0062":null} "#;
        for (pointer, found) in [
            ("", Some(text.trim())),
            ("/a/x~1y/0", Some("1")),
            ("/a/x~1y/1/~0", Some("\"]\"")),
            ("/a/x~1y/2", Some("[ 2 ]")),
            ("/a/x~1y/2/0", Some("2")),
            ("/a/", Some("3")),
            ("/b", Some("null")),
            ("/a/x~1y/3", None),
            ("/a/x~1y/-", None),
            ("/c", None),
            ("/b/x", None),
            ("a", None),
        ] {
            assert_eq!(resolve(text, pointer), found, "{pointer}");
        }
        assert_eq!(resolve("[]", "/0"), None);
        assert_eq!(resolve("7", "/0"), None);
        assert_eq!(unescaped(&escaped("~1/~")), "~1/~");
    }
}
