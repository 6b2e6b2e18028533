//! The outline of a result: what stands where and how long it is, and how its text begins. Pure.
//!
//! It holds names of members as the server wrote them, and no value but the head; both are bounded.

use std::collections::VecDeque;
use std::fmt::Write as _;

use super::cut_before;
use super::readable::{Readable, member};
use crate::hidden_text::is_hidden;
use crate::json::elements::elements;
use crate::json::members::{members, string};
use crate::json::pointer;

/// Bytes of the head.
const HEAD_BYTES: usize = 1024;
/// Bytes of the map.
const MAP_BYTES: usize = 1536;
/// Objects and arrays that are looked into; each costs a look over its bytes.
const MAX_PLACES: usize = 32;
/// Longest pointer that is shown, in bytes.
const MAX_POINTER_BYTES: usize = 160;
/// Members of an object that are named, and looked into.
const MAX_MEMBERS: usize = 12;
/// Shorter strings are not worth a line.
const LONG_STRING_BYTES: usize = 256;

/// A result in short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outline {
    /// A line for each place: its JSON Pointer, and what is there.
    pub map: String,
    /// How its text begins, cut between two characters.
    pub head: String,
    /// What the head is the beginning of, in a few words.
    pub head_of: &'static str,
    /// Whether it has `structuredContent`.
    pub is_structured: bool,
}

impl Outline {
    /// The outline of a `result`; `None` if that is no complete tool result, which has to go on as it is: its client is
    /// to do something about it (MCP 2026-07-28 §ResultType).
    #[must_use]
    pub fn of(result: &str) -> Option<Self> {
        members(result).ok()?.find(Result::is_err).is_none().then_some(())?;
        let kind = member(result, "resultType").map(string);
        if kind.is_some_and(|kind| kind.as_deref() != Some("complete")) {
            return None;
        }
        let Readable { text, is } = Readable::of(result);
        let head = text.get(..cut_before(&text, HEAD_BYTES)).unwrap_or_default().to_owned();
        let is_structured = member(result, "structuredContent").is_some();
        Some(Self { map: map(result), head, head_of: is, is_structured })
    }
}

/// The places of `result`, those that hold others before what they hold.
fn map(result: &str) -> String {
    let mut map = String::new();
    let mut places = VecDeque::from([(String::new(), result)]);
    let mut left = MAX_PLACES;
    while let Some((at, value)) = places.pop_front() {
        let (Some(line), Some(rest)) = (line(&at, value), left.checked_sub(1)) else { continue };
        left = rest;
        if map.len() + line.len() > MAP_BYTES {
            map.push_str("…\n");
            return map;
        }
        map.push_str(&line);
        places.extend(below(&at, value));
    }
    if left == 0 {
        map.push_str("…\n");
    }
    map
}

/// What is said of the place `at`; `None` if nothing need be.
fn line(at: &str, value: &str) -> Option<String> {
    let bytes = value.len();
    let what = match value.bytes().next()? {
        b'{' => format!("object {{{}}}, {bytes} bytes", names(value)),
        b'[' => {
            let count = elements(value).ok()?.map_while(Result::ok).count();
            format!("array of {count}, {bytes} bytes")
        }
        b'"' if bytes >= LONG_STRING_BYTES => {
            // An escaped line end ends a line of what the string says.
            let lines = memchr::memmem::find_iter(value.as_bytes(), b"\\n").count() + 1;
            format!("string, {bytes} bytes, about {lines} lines")
        }
        _ => return None,
    };
    let at = if at.is_empty() { "(all)" } else { at };
    Some(format!("{at}: {what}\n"))
}

/// The names of an object's members, as far as they are shown.
fn names(object: &str) -> String {
    let (mut shown, mut more) = (String::new(), 0_usize);
    for (at, (name, _)) in members(object).into_iter().flatten().map_while(Result::ok).enumerate() {
        if at < MAX_MEMBERS && is_shown(&name) {
            let comma = if shown.is_empty() { "" } else { ", " };
            // Infallible: a String takes everything.
            let _ = write!(shown, "{comma}{name}");
        } else {
            more += 1;
        }
    }
    if more > 0 {
        let _ = write!(shown, " and {more} more");
    }
    shown
}

/// A name that is short, and cannot pass for a line of ours.
fn is_shown(name: &str) -> bool {
    name.len() <= 40 && !name.contains(is_hidden)
}

/// The places directly below: members, or the first element for all of them.
fn below<'r>(at: &str, value: &'r str) -> Vec<(String, &'r str)> {
    let place = |name: &str| format!("{at}/{}", pointer::token(name));
    let found: Vec<(String, &str)> = match elements(value) {
        Ok(mut elements) => {
            elements.next().into_iter().flatten().map(|first| (place("0"), first)).collect()
        }
        Err(_) => {
            let members = members(value).into_iter().flatten().map_while(Result::ok);
            let shown = members.take(MAX_MEMBERS).filter(|(name, _)| is_shown(name));
            shown.map(|(name, value)| (place(&name), value)).collect()
        }
    };
    found.into_iter().filter(|(at, _)| at.len() <= MAX_POINTER_BYTES).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_says_what_stands_where_and_how_long_it_is() {
        let text = "x".repeat(300) + "\\ny\\n";
        let result = format!(
            r#"{{"content":[{{"type":"text","text":"{text}"}},7],"structuredContent":{{"a/b":[[1,2,3]],"n":1}}}}"#
        );
        let outline = Outline::of(&result).unwrap();
        assert_eq!(
            outline.map,
            format!(
                "(all): object {{content, structuredContent}}, {} bytes\n\
                 /content: array of 2, {} bytes\n\
                 /structuredContent: object {{a/b, n}}, 23 bytes\n\
                 /content/0: object {{type, text}}, {} bytes\n\
                 /structuredContent/a~1b: array of 1, 9 bytes\n\
                 /content/0/text: string, {} bytes, about 3 lines\n\
                 /structuredContent/a~1b/0: array of 3, 7 bytes\n",
                result.len(),
                text.len() + 2 + 27,
                text.len() + 2 + 23,
                text.len() + 2,
            )
        );
        assert_eq!(outline.head, "x".repeat(300) + "\ny\n");
        assert_eq!((outline.head_of, outline.is_structured), ("its text", true));
    }

    #[test]
    fn what_is_large_deep_or_odd_is_bounded() {
        let many: Vec<_> = (0..5000).map(|at| format!("\"k{at}\":{{\"x\":[{at}]}}")).collect();
        let breaks = r#""a\nb":[],"\u2028/structuredContent: array of 3":[],"a\u202eb":[]"#;
        let long = format!("{{\"{}\":{{}},{breaks}}}", "k".repeat(200));
        let deep = "[".repeat(100_000) + &"]".repeat(100_000);
        for value in [format!("{{{}}}", many.join(",")), long, deep] {
            let result = format!(r#"{{"structuredContent":{value}}}"#);
            let outline = Outline::of(&result).unwrap();
            assert!(outline.map.len() <= MAP_BYTES + 4, "{}", outline.map);
            assert!(outline.head.len() <= HEAD_BYTES, "{}", outline.head);
            let lines: Vec<&str> = outline.map.lines().collect();
            assert!(lines.iter().all(|line| line.starts_with(['(', '/', '…'])), "{lines:?}");
            let hidden = outline.map.find(|letter| letter != '\n' && is_hidden(letter));
            assert_eq!(hidden, None, "{lines:?}");
        }
    }

    #[test]
    fn a_head_ends_between_two_characters() {
        let result = format!(r#"{{"content":[{{"type":"text","text":"a{}"}}]}}"#, "é".repeat(2000));
        let head = Outline::of(&result).unwrap().head;
        assert_eq!(head, format!("a{}", "é".repeat(511)));
    }

    #[test]
    fn only_complete_results_have_an_outline() {
        for (result, has) in [
            (r#"{"content":[]}"#, true),
            (r#"{"content":[],"resultType":"complete"}"#, true),
            (r#"{"resultType":"input_required","inputRequests":{}}"#, false),
            (r#"{"content":[],"resultType":7}"#, false),
            ("[]", false),
            ("{", false),
            (r#"{"content":[]"#, false),
            (r#"{"content":[],}"#, false),
            ("", false),
        ] {
            assert_eq!(Outline::of(result).is_some(), has, "{result}");
        }
    }
}
