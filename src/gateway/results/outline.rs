//! Outline of a result: a map of its structure with sizes, and the beginning of its text. Pure functions.
//!
//! An outline contains member names as the server wrote them, and no values except in the head; both are bounded.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt::Write as _;

use mcpproxy_json::members::{elements, members, string};
use mcpproxy_json::pointer;
use mcpproxy_runtime::hidden_text::is_hidden;

use super::cut_before;

/// Maximum size of the head in bytes.
const HEAD_BYTES: usize = 1024;
/// Maximum size of the map in bytes.
const MAP_BYTES: usize = 1536;
/// Maximum number of objects and arrays that are scanned.
const MAX_PLACES: usize = 32;
/// Maximum size of a displayed pointer in bytes.
const MAX_POINTER_BYTES: usize = 160;
/// Maximum number of members of an object that are listed and scanned.
const MAX_MEMBERS: usize = 12;
/// Minimum size of a string that gets a line.
const LONG_STRING_BYTES: usize = 256;

/// Summary of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outline {
    /// One line per location: its JSON Pointer and a description.
    pub map: String,
    /// Beginning of the text, cut at a character boundary.
    pub head: String,
    /// Source of the head, for display.
    pub head_of: &'static str,
    /// Whether the result has `structuredContent`.
    pub is_structured: bool,
}

impl Outline {
    /// Outline of a `result`; `None` if it is not a complete tool result and must be forwarded verbatim (MCP
    /// 2026-07-28 §ResultType).
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

/// Map of `result`, breadth first.
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

/// Line for the location `at`; `None` if the value is too small.
fn line(at: &str, value: &str) -> Option<String> {
    let bytes = value.len();
    let what = match value.bytes().next()? {
        b'{' => format!("object {{{}}}, {bytes} bytes", names(value)),
        b'[' => {
            let count = elements(value).ok()?.map_while(Result::ok).count();
            format!("array of {count}, {bytes} bytes")
        }
        b'"' if bytes >= LONG_STRING_BYTES => {
            // An escaped line feed ends a line of the string.
            let lines = memchr::memmem::find_iter(value.as_bytes(), b"\\n").count() + 1;
            format!("string, {bytes} bytes, about {lines} lines")
        }
        _ => return None,
    };
    let at = if at.is_empty() { "(all)" } else { at };
    Some(format!("{at}: {what}\n"))
}

/// Displayed member names of an object.
fn names(object: &str) -> String {
    let (mut shown, mut more) = (String::new(), 0_usize);
    for (at, (name, _)) in members(object).into_iter().flatten().map_while(Result::ok).enumerate() {
        if at < MAX_MEMBERS && is_shown(&name) {
            let comma = if shown.is_empty() { "" } else { ", " };
            // Infallible: writing to a String.
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

/// Whether a name is short and free of hidden characters.
fn is_shown(name: &str) -> bool {
    name.len() <= 40 && !name.contains(is_hidden)
}

/// Child locations: the members of an object, or the first element of an array, which represents all of its elements.
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

/// Readable text of a result.
#[derive(Debug)]
pub(super) struct Readable<'r> {
    pub(super) text: Cow<'r, str>,
    /// Source text, for display.
    pub(super) is: &'static str,
}

impl<'r> Readable<'r> {
    /// Text blocks of `result`, each beginning a line; its JSON if there are none.
    pub(super) fn of(result: &'r str) -> Self {
        let mut blocks = text_blocks(result);
        let text = match (blocks.next(), blocks.next()) {
            (None, _) => Cow::default(),
            (Some(only), None) => only,
            (Some(first), Some(second)) => {
                let mut text = first.into_owned();
                for block in [second].into_iter().chain(blocks) {
                    if !text.is_empty() && !text.ends_with('\n') {
                        text.push('\n');
                    }
                    text.push_str(&block);
                }
                Cow::Owned(text)
            }
        };
        match text.is_empty() {
            true => Self { text: Cow::Borrowed(result), is: "its JSON" },
            false => Self { text, is: "its text" },
        }
    }
}

/// Texts of the text blocks in the `content` of `result`.
fn text_blocks(result: &str) -> impl Iterator<Item = Cow<'_, str>> {
    let content = member(result, "content").and_then(|content| elements(content).ok());
    let blocks = content.into_iter().flatten().map_while(Result::ok);
    blocks.filter_map(|block| {
        let is_text = member(block, "type").and_then(string).as_deref() == Some("text");
        member(block, "text").filter(|_| is_text).and_then(string)
    })
}

/// Value of the named member; the last of duplicates.
pub(super) fn member<'r>(object: &'r str, name: &str) -> Option<&'r str> {
    let named = members(object).ok()?.map_while(Result::ok).filter(|(it, _)| it == name);
    named.last().map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn map_lists_locations_with_kind_and_size() {
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
    fn outline_of_large_deep_or_odd_results_is_bounded() {
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
    fn head_ends_at_a_character_boundary() {
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

    #[test]
    fn text_blocks_are_joined_and_json_is_used_if_there_are_none() {
        for (result, text, is) in [
            (r#"{"content":[{"type":"text","text":"a\nb"}]}"#, "a\nb", "its text"),
            (
                r#"{"content":[{"type":"text","text":"a"},{"type":"image","text":"no"},{"text":"b\n","type":"text"},{"type":"text","text":"c"}]}"#,
                "a\nb\nc",
                "its text",
            ),
            (r#"{"content":[],"structuredContent":{"a":1}}"#, "", "its JSON"),
            (r#"{"content":[{"type":"text","text":""}]}"#, "", "its JSON"),
            (r#"{"content":7}"#, "", "its JSON"),
            ("[", "", "its JSON"),
        ] {
            let read = Readable::of(result);
            let expected = if text.is_empty() { result } else { text };
            assert_eq!((&*read.text, read.is), (expected, is), "{result}");
        }
    }
}
