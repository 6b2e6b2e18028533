//! Parts of a kept result, as the bytes that stand there: by JSON Pointer, by lines, by search. Pure.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::ops::Range;

use memchr::memchr_iter;
use memchr::memmem;
use thiserror::Error;

use super::cut_before;
use super::query::{PartQuery, Selection};
use super::readable::Readable;
use crate::json::elements::elements;
use crate::json::members::{members, string};
use crate::json::pointer::{PointerFault, value_at};

/// Bytes shown on either side of what was searched for.
const EXCERPT_BYTES: usize = 100;
/// Names of members that are told where another one was asked for.
const MAX_NAMES: usize = 20;

/// A part of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResultPart {
    /// What stands there; of a search a line for each place.
    pub text: String,
    /// Which part it is, and how to go on: one line.
    pub note: String,
}

/// Why there is no such part. What is there instead is told.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[expect(missing_docs, reason = "each case is its text")]
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

/// The part of `result` that is asked for.
///
/// # Errors
/// [`NoPart`]
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

/// What is selected from.
struct Source<'r> {
    text: Cow<'r, str>,
    is: Cow<'static, str>,
}

impl<'r> Source<'r> {
    /// A pointer alone asks for the JSON as it stands. Lines and places are those of what a string says.
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

/// The bytes of those lines, and what they are.
fn lines(
    whole: &Source<'_>,
    first: u64,
    last: Option<u64>,
) -> Result<(Range<usize>, Cow<'static, str>), NoPart> {
    let text = &whole.text;
    // Where a line ends: behind its line end, the last one with the text.
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

/// What `offset` and `limit` leave of a range of `text`, at least one character; both are cut between two.
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

/// The places where `words` stand, a line for each.
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
        // Infallible: a String takes everything.
        let _ = writeln!(out, "line {line}, byte {at}: {}", excerpt(text, at, words.len()));
    }
    let places = if count == 1 { "place" } else { "places" };
    let told = query.offset + shown;
    let next = match told < count {
        true => format!("next offset {told}"),
        false => "this is the end".to_owned(),
    };
    ResultPart { text: out, note: format!("{shown} of {count} {places} in {}; {next}", whole.is) }
}

/// What stands around a place, within its line.
fn excerpt(text: &str, at: usize, len: usize) -> &str {
    let start = cut_before(text, at.saturating_sub(EXCERPT_BYTES));
    let before = text.get(start..at).unwrap_or_default();
    let start = start + before.rfind('\n').map_or(0, |end| end + 1);
    let end = cut_before(text, at + len + EXCERPT_BYTES);
    let after = text.get(at + len..end).unwrap_or_default();
    let end = at + len + after.find('\n').unwrap_or(after.len());
    text.get(start..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESULT: &str = r#"{"content":[{"type":"text","text":"one\ntwo é\nthree"}],"structuredContent":{"rows":[{"id": 1},{"id":2}],"a":"x\ny"}}"#;
    const HANDLE: &str = r#""handle":"kept_000102030405060708090a0b0c0d0e0f""#;

    fn ask(result: &str, more: &str) -> Result<(String, String), String> {
        let query = PartQuery::parse(format!("{{{HANDLE}{more}}}").as_bytes()).unwrap();
        let part = part(result, &query).map_err(|none| none.to_string())?;
        Ok((part.text, part.note))
    }

    #[test]
    fn parts_are_the_bytes_that_stand_there() {
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
                "2 of 2 places in its text; this is the end",
            ),
            (
                r#","search":"t","limit":1"#,
                "line 2, byte 4: two é\n",
                "1 of 2 places in its text; next offset 1",
            ),
            (
                r#","search":"t","offset":1"#,
                "line 3, byte 11: three\n",
                "1 of 2 places in its text; this is the end",
            ),
            (r#","search":"T""#, "", "0 of 0 places in its text; this is the end"),
            (
                r#","pointer":"/structuredContent","search":"\"id\":2""#,
                "line 1, byte 20: {\"rows\":[{\"id\": 1},{\"id\":2}],\"a\":\"x\\ny\"}\n",
                "1 of 1 place in the value there; this is the end",
            ),
        ] {
            assert_eq!(ask(RESULT, more), Ok((text.to_owned(), note.to_owned())), "{more}");
        }
        assert_eq!(ask(RESULT, r#","pointer":"""#).unwrap().0, RESULT);
    }

    #[test]
    fn what_is_not_there_is_told_with_what_is() {
        for (more, told) in [
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
            assert_eq!(ask(RESULT, more), Err(told.to_owned()), "{more}");
        }
    }

    #[test]
    fn excerpts_of_a_long_line_are_bounded_and_lie_between_characters() {
        let result = format!(
            r#"{{"content":[{{"type":"text","text":"{0}needle{0}"}}]}}"#,
            "é".repeat(100_000)
        );
        let (text, _) = ask(&result, r#","search":"needle""#).unwrap();
        let around = "é".repeat(50);
        assert_eq!(text, format!("line 1, byte 200000: {around}needle{around}\n"));
    }

    #[test]
    fn whatever_the_size_of_the_parts_together_they_are_the_whole() {
        let said = "line of é and \u{1F600}\n".repeat(20);
        let result = serde_json::json!({"content": [{"type": "text", "text": said}]}).to_string();
        for (more, whole) in [("", said.as_str()), (r#","pointer":"""#, &result)] {
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
}
