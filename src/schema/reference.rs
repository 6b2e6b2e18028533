//! References and identifiers as they are written, and as URIs.
//!
//! Generators write names into them that are no URI by their characters (`#/$defs/Page<Item>`),
//! and other validators take them. Owns how they become URIs that mean the same; deliberately
//! resolves nothing.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

/// Keywords whose string is a reference.
pub(super) const REFERENCES: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];

/// What may not stand in a path or query as it is (RFC 3986, appendix A).
const OUTSIDE: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'<')
    .add(b'>')
    .add(b'[')
    .add(b'\\')
    .add(b']')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// In a fragment no second number sign either.
const OUTSIDE_FRAGMENT: &AsciiSet = &OUTSIDE.add(b'#');

/// `reference` with everything percent-encoded that a URI reference cannot hold. What is encoded
/// stays as it is, so that a percent sign which encodes nothing becomes `%25`.
pub(super) fn encoded(reference: &str) -> Cow<'_, str> {
    let (head, fragment) = match reference.split_once('#') {
        Some((head, fragment)) => (head, Some(fragment)),
        None => (reference, None),
    };
    let (authority, path) = head.split_at(authority(head));
    let path = part(path, OUTSIDE);
    let fragment = fragment.map(|fragment| part(fragment, OUTSIDE_FRAGMENT));
    if matches!((&path, &fragment), (Cow::Borrowed(_), None | Some(Cow::Borrowed(_)))) {
        return Cow::Borrowed(reference);
    }
    let mark = if fragment.is_some() { "#" } else { "" };
    Cow::Owned(format!("{authority}{path}{mark}{}", fragment.unwrap_or_default()))
}

/// Where scheme and authority end, in which brackets are right.
fn authority(head: &str) -> usize {
    let Some(from) = head.find("//") else { return 0 };
    let scheme = head.get(..from).unwrap_or_default();
    if !(scheme.is_empty() || scheme.ends_with(':') && !scheme.contains('/')) {
        return 0;
    }
    let rest = head.get(from + 2..).unwrap_or_default();
    from + 2 + rest.find(['/', '?']).unwrap_or(rest.len())
}

fn part<'a>(text: &'a str, outside: &'static AsciiSet) -> Cow<'a, str> {
    if !text.contains('%') {
        return utf8_percent_encode(text, outside).into();
    }
    let mut pieces = text.split('%');
    let first = pieces.next().unwrap_or_default();
    let mut all = utf8_percent_encode(first, outside).to_string();
    for piece in pieces {
        let encodes =
            piece.as_bytes().get(..2).is_some_and(|two| two.iter().all(u8::is_ascii_hexdigit));
        all.push_str(if encodes { "%" } else { "%25" });
        all.extend(utf8_percent_encode(piece, outside));
    }
    if all == text { Cow::Borrowed(text) } else { Cow::Owned(all) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_uri_can_hold_is_encoded_and_nothing_else() {
        for (written, expected) in [
            ("#/$defs/Page<Item>", "#/$defs/Page%3CItem%3E"),
            ("#/definitions/A|B", "#/definitions/A%7CB"),
            ("#/definitions/List[int]", "#/definitions/List%5Bint%5D"),
            ("#/$defs/two words ", "#/$defs/two%20words%20"),
            ("#/$defs/Größe", "#/$defs/Gr%C3%B6%C3%9Fe"),
            ("#/$defs/100%", "#/$defs/100%25"),
            ("#/$defs/%7C%zz%", "#/$defs/%7C%25zz%25"),
            ("#/$defs/a#b", "#/$defs/a%23b"),
            ("Page<Item>#", "Page%3CItem%3E#"),
            ("http://[::1]:80/a[b]", "http://[::1]:80/a%5Bb%5D"),
            ("a//[b]", "a//%5Bb%5D"),
        ] {
            assert_eq!(encoded(written), expected);
        }
        for right in ["", "#", "#/$defs/a~1b~0c", "#/$defs/%E4", "a?b=c/d#e", "urn:x:y", "./a/../b"]
        {
            assert!(matches!(encoded(right), Cow::Borrowed(same) if same == right), "{right}");
        }
    }
}
