//! Parts of a kept result as original bytes: by JSON Pointer, by lines, by search; and the arguments of
//! `read_result` that select them. Pure functions.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::ops::{Range, RangeInclusive};

use mcpproxy_json::members::{elements, members, string};
use mcpproxy_json::pointer::{PointerFault, value_at};
use memchr::{memchr_iter, memmem};
use thiserror::Error;

use super::cut_before;
use super::handle::ResultHandle;
use super::outline::Readable;

/// Context on either side of a search hit, in bytes.
const EXCERPT_BYTES: usize = 100;
/// Maximum number of member names listed in the error for an unknown one.
const MAX_NAMES: usize = 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResultPart {
    /// Selected bytes; for a search, one line per hit.
    pub text: String,
    /// One line: the range, and how to continue.
    pub note: String,
}

/// Reason why the requested part does not exist, with the content found instead.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoPart {
    #[error("pointer must be empty or begin with a slash, like /content/0/text")]
    NoSlash,
    #[error("pointer: a ~ must be followed by 0 (for ~) or 1 (for /)")]
    Escape,
    #[error("Nothing is at this pointer: {0}")]
    Nothing(String),
    #[error("There is no line {first}: {of} has {lines}")]
    NoLine { first: u64, of: Cow<'static, str>, lines: u64 },
    #[error("offset {offset} is past the end: {of} has {bytes} bytes")]
    PastTheEnd { offset: u64, of: Cow<'static, str>, bytes: u64 },
}

/// Selects a part of `result`.
pub fn part(result: &str, query: &PartQuery) -> Result<ResultPart, NoPart> {
    let whole = Source::of(result, query)?;
    match &query.selection {
        Selection::All => window(&whole.text, 0..whole.text.len(), whole.is, query),
        Selection::Lines(first, last) => {
            let (range, is) = lines(&whole, *first, *last)?;
            window(&whole.text, range, is, query)
        }
        Selection::Search(words) => Ok(search(&whole, words, query)),
    }
}

/// Text to select from.
struct Source<'r> {
    text: Cow<'r, str>,
    is: Cow<'static, str>,
}

impl<'r> Source<'r> {
    /// A pointer alone selects the JSON value; lines and searches use the content of a string.
    fn of(result: &'r str, query: &PartQuery) -> Result<Self, NoPart> {
        let Some(pointer) = &query.pointer else {
            let Readable { text, is } = Readable::of(result);
            return Ok(Self { text, is: is.into() });
        };
        let value = value_at(result, pointer).map_err(|fault| no_value(fault, pointer))?;
        let text = match query.selection {
            Selection::All => Cow::Borrowed(value),
            Selection::Lines(..) | Selection::Search(_) => {
                string(value).unwrap_or(Cow::Borrowed(value))
            }
        };
        Ok(Self { text, is: "the value there".into() })
    }
}

fn no_value(fault: PointerFault<'_>, pointer: &str) -> NoPart {
    match fault {
        PointerFault::NoSlash => NoPart::NoSlash,
        PointerFault::Escape => NoPart::Escape,
        PointerFault::Nothing { found, value } => {
            let at = match pointer.get(..found) {
                Some("") | None => "the result",
                Some(at) => at,
            };
            NoPart::Nothing(format!("{at} is {}", described(value)))
        }
    }
}

fn described(value: &str) -> String {
    if let Ok(elements) = elements(value) {
        return format!("an array of {}", elements.map_while(Result::ok).count());
    }
    let Ok(of_object) = members(value) else { return "neither an object nor an array".into() };
    let names = of_object.map_while(Result::ok).map(|(name, _)| name);
    let names: Vec<String> =
        names.take(MAX_NAMES).map(|name| name.chars().take(40).collect()).collect();
    format!("an object, with the members {}", names.join(", "))
}

/// Byte range of the lines, and its description.
fn lines(
    whole: &Source<'_>,
    first: u64,
    last: Option<u64>,
) -> Result<(Range<usize>, Cow<'static, str>), NoPart> {
    let text = &whole.text;
    // A line ends after its line feed; the last one ends with the text.
    let ends = memchr_iter(b'\n', text.as_bytes()).map(|at| at + 1);
    let ends = ends.chain((!text.ends_with('\n')).then_some(text.len()));
    let (mut count, mut start, mut from, mut to) = (0_u64, 0, None, text.len());
    for end in ends {
        count += 1;
        if count == first {
            from = Some(start);
        }
        if Some(count) == last {
            to = end;
        }
        start = end;
    }
    let of = whole.is.clone();
    let from = from.ok_or(NoPart::NoLine { first, of, lines: count })?;
    let last = last.unwrap_or(count).min(count);
    Ok((from..to, format!("lines {first} to {last} of {count} of {}", whole.is).into()))
}

/// Applies `offset` and `limit` to a range of `text`; selects at least one character and cuts at character boundaries.
fn window(
    text: &str,
    range: Range<usize>,
    is: Cow<'static, str>,
    query: &PartQuery,
) -> Result<ResultPart, NoPart> {
    let selected = text.get(range).unwrap_or_default();
    let bytes = selected.len();
    let at = usize::try_from(query.offset).unwrap_or(usize::MAX);
    if at >= bytes && at > 0 {
        let (offset, bytes) = (query.offset, bytes as u64);
        return Err(NoPart::PastTheEnd { offset, of: is, bytes });
    }
    let from = cut_before(selected, at);
    let rest = selected.get(from..).unwrap_or_default();
    let limit = usize::try_from(query.limit).unwrap_or(usize::MAX);
    let one = rest.chars().next().map_or(0, char::len_utf8);
    let text = rest.get(..cut_before(rest, limit.max(one))).unwrap_or_default();
    let to = from + text.len();
    let next = match to < bytes {
        true => format!("next offset {to}"),
        false => "this is the end".to_owned(),
    };
    let note = format!("bytes {from} to {to} of {bytes} of {is}; {next}");
    Ok(ResultPart { text: text.to_owned(), note })
}

/// Searches for `words`, one line per hit.
fn search(whole: &Source<'_>, words: &str, query: &PartQuery) -> ResultPart {
    let text = &*whole.text;
    let (mut out, mut count, mut shown) = (String::new(), 0_u64, 0_u64);
    let (mut line, mut counted) = (1, 0);
    for at in memmem::find_iter(text.as_bytes(), words) {
        count += 1;
        if count <= query.offset || shown >= query.limit {
            continue;
        }
        shown += 1;
        let before = text.as_bytes().get(counted..at).unwrap_or_default();
        line += memchr_iter(b'\n', before).count();
        counted = at;
        // Infallible: writing to a String.
        let _ = writeln!(out, "line {line}, byte {at}: {}", excerpt(text, at, words.len()));
    }
    let matches = if count == 1 { "match" } else { "matches" };
    let next_offset = query.offset + shown;
    let next = match next_offset < count {
        true => format!("next offset {next_offset}"),
        false => "this is the end".to_owned(),
    };
    ResultPart { text: out, note: format!("{shown} of {count} {matches} in {}; {next}", whole.is) }
}

/// Context of a hit within its line.
fn excerpt(text: &str, at: usize, len: usize) -> &str {
    let start = cut_before(text, at.saturating_sub(EXCERPT_BYTES));
    let before = text.get(start..at).unwrap_or_default();
    let start = start + before.rfind('\n').map_or(0, |end| end + 1);
    let end = cut_before(text, at + len + EXCERPT_BYTES);
    let after = text.get(at + len..end).unwrap_or_default();
    let end = at + len + after.find('\n').unwrap_or(after.len());
    text.get(start..end).unwrap_or_default()
}

/// Default `limit`, in bytes.
pub const PART_BYTES: u64 = 8192;
/// Maximum `limit`, in bytes.
pub const MAX_PART_BYTES: u64 = 65_536;
/// Default `limit` of a search, in hits.
const PLACES: u64 = 20;
/// Maximum `limit` of a search, in hits.
const MAX_PLACES: u64 = 100;
/// Maximum size of a pointer in bytes.
const MAX_POINTER_BYTES: usize = 4096;
/// Maximum size of a search text in bytes.
const MAX_SEARCH_BYTES: usize = 256;

/// Arguments of `read_result`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartQuery {
    pub handle: ResultHandle,
    /// Location within the result; if absent, the text of the result.
    pub pointer: Option<String>,
    pub selection: Selection,
    /// Bytes to skip; for a search, hits.
    pub offset: u64,
    /// Maximum number of bytes; for a search, of hits.
    pub limit: u64,
}

/// Selection within a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    All,
    /// Range of line numbers, starting at 1; without an end, up to the last line.
    Lines(u64, Option<u64>),
    Search(String),
}

/// Reason for refusing the arguments; a client error.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BadPartQuery {
    #[error("arguments must be a JSON object")]
    NotAnObject,
    #[error("Unknown parameter '{0}': known are handle, pointer, lines, search, offset, and limit")]
    Unknown(String),
    #[error("handle is required: it is in the answer that replaced the long result")]
    NoHandle,
    #[error("handle is invalid: it is kept_ and 32 hexadecimal digits, as in the answer")]
    BadHandle,
    #[error(
        "pointer must be a JSON Pointer of at most {MAX_POINTER_BYTES} bytes, like /content/0/text"
    )]
    BadPointer,
    #[error("lines must be a string like 10-20, 10- or 10, counted from 1")]
    BadLines,
    #[error("search must be a string of 1 to {MAX_SEARCH_BYTES} bytes")]
    BadSearch,
    #[error("lines and search cannot be combined: send one of them")]
    TwoSelections,
    #[error("offset must be a whole number from 0")]
    BadOffset,
    #[error("limit must be a whole number from 1 to {0}")]
    BadLimit(u64),
}

impl PartQuery {
    /// Parses the arguments: one JSON object without duplicate keys. `null` counts as absent.
    pub fn parse(raw: &[u8]) -> Result<Self, BadPartQuery> {
        use BadPartQuery as E;
        let raw = std::str::from_utf8(raw).map_err(|_| E::NotAnObject)?;
        let (mut handle, mut pointer, mut lines, mut search) = (None, None, None, None);
        let (mut offset, mut limit) = (0, None);
        for member in members(raw).map_err(|_| E::NotAnObject)? {
            let (name, value) = member.map_err(|_| E::NotAnObject)?;
            match &*name {
                _ if value == "null" => {}
                "handle" => {
                    let read = string(value).and_then(|text| ResultHandle::parse(&text));
                    handle = Some(read.ok_or(E::BadHandle)?);
                }
                "pointer" => {
                    let text = string(value).filter(|text| text.len() <= MAX_POINTER_BYTES);
                    pointer = Some(text.ok_or(E::BadPointer)?.into_owned());
                }
                "lines" => {
                    let read = string(value).and_then(|text| lines_of(&text));
                    lines = Some(read.ok_or(E::BadLines)?);
                }
                "search" => {
                    let fits = |text: &str| (1..=MAX_SEARCH_BYTES).contains(&text.len());
                    let text = string(value).filter(|text| fits(text)).ok_or(E::BadSearch)?;
                    search = Some(Selection::Search(text.into_owned()));
                }
                "offset" => offset = whole(value).ok_or(E::BadOffset)?,
                "limit" => limit = Some(whole(value)),
                _ => return Err(E::Unknown(name.chars().take(64).collect())),
            }
        }
        let selection = match (lines, search) {
            (Some(_), Some(_)) => return Err(E::TwoSelections),
            (lines, search) => lines.or(search).unwrap_or(Selection::All),
        };
        let (usual, bounds) = selection.limits();
        let limit = match limit {
            None => usual,
            Some(stated) => {
                stated.filter(|stated| bounds.contains(stated)).ok_or(E::BadLimit(*bounds.end()))?
            }
        };
        let handle = handle.ok_or(E::NoHandle)?;
        Ok(Self { handle, pointer, selection, offset, limit })
    }
}

impl Selection {
    /// Default `limit` and its bounds.
    fn limits(&self) -> (u64, RangeInclusive<u64>) {
        match self {
            Self::All | Self::Lines(..) => (PART_BYTES, 1..=MAX_PART_BYTES),
            Self::Search(_) => (PLACES, 1..=MAX_PLACES),
        }
    }
}

fn whole(value: &str) -> Option<u64> {
    serde_json::from_str(value).ok()
}

fn lines_of(text: &str) -> Option<Selection> {
    let number = |text: &str| {
        let plain = !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit());
        text.parse::<u64>().ok().filter(|number| plain && *number > 0)
    };
    let (first, last) = match text.split_once('-') {
        None => (number(text)?, Some(number(text)?)),
        Some((first, "")) => (number(first)?, None),
        Some((first, last)) => (number(first)?, Some(number(last)?)),
    };
    (last.is_none_or(|last| last >= first)).then_some(Selection::Lines(first, last))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESULT: &str = r#"{"content":[{"type":"text","text":"one\ntwo é\nthree"}],"structuredContent":{"rows":[{"id": 1},{"id":2}],"a":"x\ny"}}"#;
    const HANDLE_MEMBER: &str = r#""handle":"kept_000102030405060708090a0b0c0d0e0f""#;

    fn ask(result: &str, more: &str) -> Result<(String, String), String> {
        let query = PartQuery::parse(format!("{{{HANDLE_MEMBER}{more}}}").as_bytes()).unwrap();
        let part = part(result, &query).map_err(|none| none.to_string())?;
        Ok((part.text, part.note))
    }

    #[test]
    fn result_parts_contain_the_original_bytes() {
        for (more, text, note) in [
            ("", "one\ntwo é\nthree", "bytes 0 to 16 of 16 of its text; this is the end"),
            (r#","limit":5"#, "one\nt", "bytes 0 to 5 of 16 of its text; next offset 5"),
            (r#","offset":5,"limit":4"#, "wo ", "bytes 5 to 8 of 16 of its text; next offset 8"),
            (r#","offset":8,"limit":1"#, "é", "bytes 8 to 10 of 16 of its text; next offset 10"),
            (r#","offset":9,"limit":3"#, "é\n", "bytes 8 to 11 of 16 of its text; next offset 11"),
            (
                r#","lines":"2""#,
                "two é\n",
                "bytes 0 to 7 of 7 of lines 2 to 2 of 3 of its text; this is the end",
            ),
            (
                r#","lines":"2-9""#,
                "two é\nthree",
                "bytes 0 to 12 of 12 of lines 2 to 3 of 3 of its text; this is the end",
            ),
            (
                r#","lines":"3-""#,
                "three",
                "bytes 0 to 5 of 5 of lines 3 to 3 of 3 of its text; this is the end",
            ),
            (
                r#","pointer":"/structuredContent/rows/0""#,
                r#"{"id": 1}"#,
                "bytes 0 to 9 of 9 of the value there; this is the end",
            ),
            (
                r#","pointer":"/structuredContent/a""#,
                r#""x\ny""#,
                "bytes 0 to 6 of 6 of the value there; this is the end",
            ),
            (
                r#","pointer":"/structuredContent/a","lines":"2""#,
                "y",
                "bytes 0 to 1 of 1 of lines 2 to 2 of 2 of the value there; this is the end",
            ),
            (
                r#","search":"t""#,
                "line 2, byte 4: two é\nline 3, byte 11: three\n",
                "2 of 2 matches in its text; this is the end",
            ),
            (
                r#","search":"t","limit":1"#,
                "line 2, byte 4: two é\n",
                "1 of 2 matches in its text; next offset 1",
            ),
            (
                r#","search":"t","offset":1"#,
                "line 3, byte 11: three\n",
                "1 of 2 matches in its text; this is the end",
            ),
            (r#","search":"T""#, "", "0 of 0 matches in its text; this is the end"),
            (
                r#","pointer":"/structuredContent","search":"\"id\":2""#,
                "line 1, byte 20: {\"rows\":[{\"id\": 1},{\"id\":2}],\"a\":\"x\\ny\"}\n",
                "1 of 1 match in the value there; this is the end",
            ),
        ] {
            assert_eq!(ask(RESULT, more), Ok((text.to_owned(), note.to_owned())), "{more}");
        }
        assert_eq!(ask(RESULT, r#","pointer":"""#).unwrap().0, RESULT);
    }

    #[test]
    fn error_for_a_missing_part_lists_what_exists() {
        for (more, expected) in [
            (r#","offset":16"#, "offset 16 is past the end: its text has 16 bytes"),
            (r#","lines":"4-5""#, "There is no line 4: its text has 3"),
            (
                r#","pointer":"content""#,
                "pointer must be empty or begin with a slash, like /content/0/text",
            ),
            (r#","pointer":"/~""#, "pointer: a ~ must be followed by 0 (for ~) or 1 (for /)"),
            (r#","pointer":"/content/7""#, "Nothing is at this pointer: /content is an array of 1"),
            (
                r#","pointer":"/x""#,
                "Nothing is at this pointer: the result is an object, with the members content, structuredContent",
            ),
            (
                r#","pointer":"/structuredContent/a/0""#,
                "Nothing is at this pointer: /structuredContent/a is neither an object nor an array",
            ),
        ] {
            assert_eq!(ask(RESULT, more), Err(expected.to_owned()), "{more}");
        }
    }

    #[test]
    fn excerpts_of_long_lines_are_bounded_at_character_boundaries() {
        let result = format!(
            r#"{{"content":[{{"type":"text","text":"{0}needle{0}"}}]}}"#,
            "é".repeat(100_000)
        );
        let (text, _) = ask(&result, r#","search":"needle""#).unwrap();
        let around = "é".repeat(50);
        assert_eq!(text, format!("line 1, byte 200000: {around}needle{around}\n"));
    }

    #[test]
    fn parts_of_any_size_add_up_to_the_result() {
        let content = "line of é and \u{1F600}\n".repeat(20);
        let result =
            serde_json::json!({"content": [{"type": "text", "text": content}]}).to_string();
        for (more, whole) in [("", content.as_str()), (r#","pointer":"""#, &result)] {
            for limit in [1, 2, 3, 7, 64, 10_000] {
                let (mut read, mut offset) = (String::new(), 0);
                loop {
                    let ask = ask(&result, &format!(r#"{more},"offset":{offset},"limit":{limit}"#));
                    let (text, note) = ask.unwrap();
                    read += &text;
                    match note.split_once("next offset ") {
                        Some((_, next)) => offset = next.parse().unwrap(),
                        None => break,
                    }
                }
                assert_eq!(read, whole, "{limit}");
            }
        }
    }

    const HANDLE: &str = "kept_000102030405060708090a0b0c0d0e0f";

    fn parse(more: &str) -> Result<PartQuery, BadPartQuery> {
        PartQuery::parse(format!(r#"{{"handle":"{HANDLE}"{more}}}"#).as_bytes())
    }

    #[test]
    fn arguments_are_parsed() {
        let query = |pointer: Option<&str>, selection, offset, limit| {
            let handle = ResultHandle::parse(HANDLE).unwrap();
            Ok(PartQuery { handle, pointer: pointer.map(Into::into), selection, offset, limit })
        };
        for (more, expected) in [
            ("", query(None, Selection::All, 0, PART_BYTES)),
            (
                r#","pointer":"/a","offset":7,"limit":9,"lines":null"#,
                query(Some("/a"), Selection::All, 7, 9),
            ),
            (r#","lines":"3-17""#, query(None, Selection::Lines(3, Some(17)), 0, PART_BYTES)),
            (r#","lines":"3-""#, query(None, Selection::Lines(3, None), 0, PART_BYTES)),
            (r#","lines":"3""#, query(None, Selection::Lines(3, Some(3)), 0, PART_BYTES)),
            (r#","search":"é\n""#, query(None, Selection::Search("é\n".into()), 0, PLACES)),
        ] {
            assert_eq!(parse(more), expected, "{more}");
        }
    }

    #[test]
    fn invalid_arguments_are_refused() {
        use BadPartQuery as E;
        let long = |key: &str, bytes| format!(r#","{key}":"{}""#, "a".repeat(bytes));
        for (more, error) in [
            (r#","handel":1"#, E::Unknown("handel".into())),
            (r#","pointer":7"#, E::BadPointer),
            (&long("pointer", MAX_POINTER_BYTES + 1), E::BadPointer),
            (r#","lines":7"#, E::BadLines),
            (r#","lines":"0""#, E::BadLines),
            (r#","lines":"+1""#, E::BadLines),
            (r#","lines":"2-1""#, E::BadLines),
            (r#","lines":"-3""#, E::BadLines),
            (r#","lines":"1-2-3""#, E::BadLines),
            (r#","lines":"99999999999999999999""#, E::BadLines),
            (r#","search":"""#, E::BadSearch),
            (&long("search", 1 << 20), E::BadSearch),
            (r#","search":"a","lines":"1""#, E::TwoSelections),
            (r#","offset":-1"#, E::BadOffset),
            (r#","offset":1.5"#, E::BadOffset),
            (r#","limit":0"#, E::BadLimit(MAX_PART_BYTES)),
            (r#","limit":65537"#, E::BadLimit(MAX_PART_BYTES)),
            (r#","limit":101,"search":"a""#, E::BadLimit(MAX_PLACES)),
            (r#","limit":"5""#, E::BadLimit(MAX_PART_BYTES)),
        ] {
            assert_eq!(parse(more), Err(error), "{}", more.get(..40).unwrap_or(more));
        }
        assert_eq!(PartQuery::parse(b"{}"), Err(E::NoHandle));
        assert_eq!(PartQuery::parse(br#"{"handle":"kept_1"}"#), Err(E::BadHandle));
        for broken in [&b"[]"[..], b"", b"{", b"\xff"] {
            assert_eq!(PartQuery::parse(broken), Err(E::NotAnObject));
        }
    }
}
