//! Which part of a kept result is asked for: the arguments of `read_result`. Pure.

use std::ops::RangeInclusive;

use thiserror::Error;

use super::handle::ResultHandle;
use crate::json::members::{members, string};

/// Bytes of a part, unless `limit` says otherwise.
pub const PART_BYTES: u64 = 8192;
/// Most bytes of a part.
pub const MAX_PART_BYTES: u64 = 65_536;
/// Places that a search tells, unless `limit` says otherwise.
const PLACES: u64 = 20;
/// Most places that a search tells at once.
const MAX_PLACES: u64 = 100;
/// Longest pointer, in bytes.
const MAX_POINTER_BYTES: usize = 4096;
/// Longest text to search for, in bytes.
const MAX_SEARCH_BYTES: usize = 256;

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartQuery {
    /// Of which result.
    pub handle: ResultHandle,
    /// Where in it; without, its text.
    pub pointer: Option<String>,
    /// What of that.
    pub selection: Selection,
    /// Bytes, of a search places, to leave out at the beginning.
    pub offset: u64,
    /// Most bytes, of a search places.
    pub limit: u64,
}

/// What of a value is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// All of it.
    All,
    /// These lines, from 1; without an end up to the last.
    Lines(u64, Option<u64>),
    /// Where this stands.
    Search(String),
}

/// Why the arguments are refused. The caller's blame.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[expect(missing_docs, reason = "each case is its text")]
pub enum BadPartQuery {
    #[error("arguments must be a JSON object")]
    NotAnObject,
    #[error("Unknown parameter '{0}': known are handle, pointer, lines, search, offset, and limit")]
    Unknown(String),
    #[error("handle is required: as the answer gave it that was too long")]
    NoHandle,
    #[error("handle is none: it is kept_ and 32 hexadecimal digits, as the answer gave it")]
    BadHandle,
    #[error(
        "pointer must be a JSON Pointer of at most {MAX_POINTER_BYTES} bytes, like /content/0/text"
    )]
    BadPointer,
    #[error("lines must be a string like 10-20, 10- or 10, counted from 1")]
    BadLines,
    #[error("search must be a string of 1 to {MAX_SEARCH_BYTES} bytes")]
    BadSearch,
    #[error("lines and search are two questions: ask one of them")]
    TwoSelections,
    #[error("offset must be a whole number from 0")]
    BadOffset,
    #[error("limit must be a whole number from 1 to {0}")]
    BadLimit(u64),
}

impl PartQuery {
    /// Reads the arguments: one JSON object without a duplicate key. A parameter that is `null` counts as absent.
    ///
    /// # Errors
    /// [`BadPartQuery`]
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
    /// The usual `limit`, and its bounds.
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

    const HANDLE: &str = "kept_000102030405060708090a0b0c0d0e0f";

    fn parse(more: &str) -> Result<PartQuery, BadPartQuery> {
        PartQuery::parse(format!(r#"{{"handle":"{HANDLE}"{more}}}"#).as_bytes())
    }

    #[test]
    fn what_is_asked_for_is_read() {
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
    fn what_cannot_be_read_is_refused() {
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
