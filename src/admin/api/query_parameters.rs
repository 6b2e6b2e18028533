//! Strict parsing of query parameters: an unknown, repeated, malformed or out-of-range parameter is never clamped or
//! ignored, but causes an error that names it.

use std::fmt;
use std::ops::RangeInclusive;

use jiff::Timestamp;
use percent_encoding::percent_decode_str;

use super::response::ApiError;
use mcpproxy_downstream::authentication;

/// Maximum length of a value, in characters after decoding.
const MAX_VALUE_CHARS: usize = 1024;
/// Page size if none is given.
const DEFAULT_LIMIT: u64 = 50;
/// Maximum page size.
const MAX_LIMIT: u64 = 100;

/// The parameters of a request that the handler has not read yet.
#[derive(Debug)]
pub(super) struct Query {
    pairs: Vec<(String, String)>,
}

/// Error in a query; its text is the text of the 400 response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadQuery {
    #[error("Unknown query parameter '{0}'")]
    Unknown(String),
    #[error("Query parameter '{0}' is given more than once")]
    Twice(String),
    #[error("Query parameter '{0}' is not UTF-8 of at most {MAX_VALUE_CHARS} characters")]
    Unreadable(String),
    #[error("Invalid {name} '{value}': must be {expected}")]
    Invalid { name: &'static str, value: String, expected: String },
    #[error("Query parameters '{0}' and '{1}' cannot be combined")]
    Both(&'static str, &'static str),
    /// The start and the end of a range that ends before it starts.
    #[error("Query parameter '{0}' must not be after '{1}'")]
    After(&'static str, &'static str),
}

impl BadQuery {
    /// Error for a malformed cursor.
    pub(super) fn cursor(value: String) -> Self {
        let expected = "a next_cursor of an earlier answer".to_owned();
        Self::Invalid { name: "cursor", value, expected }
    }

    /// Error for an `after` that is not a record id.
    pub(super) fn after(value: String) -> Self {
        let expected = "the id of a record".to_owned();
        Self::Invalid { name: "after", value, expected }
    }
}

impl From<BadQuery> for ApiError {
    fn from(bad: BadQuery) -> Self {
        Self::bad_request(bad)
    }
}

impl Query {
    /// Splits and decodes the query, without `apikey`, which is checked earlier.
    pub(super) fn parse(raw: Option<&str>) -> Result<Self, BadQuery> {
        let mut pairs = Vec::<(String, String)>::new();
        for pair in raw.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (name, value) = match (decoded(name), decoded(value)) {
                (Some(name), Some(value)) => (name, value),
                (Some(name), None) => return Err(BadQuery::Unreadable(name)),
                (None, _) => return Err(BadQuery::Unreadable(name.to_owned())),
            };
            if pairs.iter().any(|(known, _)| *known == name) {
                return Err(BadQuery::Twice(name));
            }
            pairs.push((name, value));
        }
        pairs.retain(|(name, _)| name != authentication::QUERY_PARAMETER);
        Ok(Self { pairs })
    }

    /// Reads a non-empty text.
    pub(super) fn text(&mut self, name: &'static str) -> Result<Option<String>, BadQuery> {
        self.read(name, "a text that is not empty", |text| {
            (!text.is_empty()).then(|| text.to_owned())
        })
    }

    /// Reads an integer within the range.
    pub(super) fn number(
        &mut self,
        name: &'static str,
        range: RangeInclusive<u64>,
    ) -> Result<Option<u64>, BadQuery> {
        let expected = match (range.start(), range.end()) {
            (start, &u64::MAX) => format!("a whole number from {start} on"),
            (start, end) => format!("a whole number from {start} to {end}"),
        };
        self.read(name, expected, |text| {
            let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|number| digits && range.contains(number))
        })
    }

    /// Reads the page size `limit`; [`DEFAULT_LIMIT`] if absent.
    pub(super) fn limit(&mut self) -> Result<usize, BadQuery> {
        let limit = self.number("limit", 1..=MAX_LIMIT)?.unwrap_or(DEFAULT_LIMIT);
        Ok(usize::try_from(limit).unwrap_or(usize::MAX))
    }

    /// Reads `true` or `false`; false if absent.
    pub(super) fn flag(&mut self, name: &'static str) -> Result<bool, BadQuery> {
        Ok(self.choice(name)?.unwrap_or(false))
    }

    /// Reads `true` or `false`; `None` if absent.
    pub(super) fn choice(&mut self, name: &'static str) -> Result<Option<bool>, BadQuery> {
        self.read(name, "true or false", |text| text.parse().ok())
    }

    /// Reads an RFC 3339 time.
    pub(super) fn time(&mut self, name: &'static str) -> Result<Option<Timestamp>, BadQuery> {
        let expected = "a time in RFC 3339, like 2026-01-02T03:04:05Z (in a URL, + is %2B)";
        self.read(name, expected, |text| text.parse().ok())
    }

    /// Reads a comma-separated list of `known` words; empty if absent.
    pub(super) fn words<T: Copy + fmt::Display>(
        &mut self,
        name: &'static str,
        known: &[T],
    ) -> Result<Vec<T>, BadQuery> {
        let word = |word: &str| known.iter().copied().find(|value| value.to_string() == word);
        let words = self.read(name, one_of(known), |text| text.split(',').map(word).collect())?;
        Ok(words.unwrap_or_default())
    }

    /// Reads one of the `known` words.
    pub(super) fn word<T: Copy + fmt::Display>(
        &mut self,
        name: &'static str,
        known: &[T],
    ) -> Result<Option<T>, BadQuery> {
        self.read(name, one_of(known), |text| {
            known.iter().copied().find(|value| value.to_string() == text)
        })
    }

    /// Reads a parameter with `read`, which returns `None` for an invalid value.
    fn read<T>(
        &mut self,
        name: &'static str,
        expected: impl Into<String>,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, BadQuery> {
        let Some(index) = self.pairs.iter().position(|(known, _)| known == name) else {
            return Ok(None);
        };
        let (_, value) = self.pairs.swap_remove(index);
        match read(&value) {
            Some(parsed) => Ok(Some(parsed)),
            None => Err(BadQuery::Invalid { name, value, expected: expected.into() }),
        }
    }

    /// Returns an error if a parameter was not read.
    pub(super) fn finish(self) -> Result<(), BadQuery> {
        match self.pairs.into_iter().next() {
            None => Ok(()),
            Some((name, _)) => Err(BadQuery::Unknown(name)),
        }
    }
}

/// Formats words as `a, b, or c`.
fn one_of<T: fmt::Display>(known: &[T]) -> String {
    match known {
        [one, other] => format!("{one} or {other}"),
        [first @ .., last] if !first.is_empty() => {
            let first: Vec<String> = first.iter().map(ToString::to_string).collect();
            format!("{}, or {last}", first.join(", "))
        }
        all => all.iter().map(ToString::to_string).collect(),
    }
}

/// Percent-decodes a path segment; 404 if it is not UTF-8, because names are always UTF-8.
pub(super) fn decode_segment(segment: &str) -> Result<String, ApiError> {
    let decoded = percent_decode_str(segment).decode_utf8();
    decoded.map(String::from).map_err(|_| ApiError::no_such_path())
}

/// Decodes a name or value of the query, in which `+` is a space; `None` if it is not UTF-8 or is too long.
fn decoded(text: &str) -> Option<String> {
    let text = text.replace('+', " ");
    let text = percent_decode_str(&text).decode_utf8().ok()?;
    (text.chars().nth(MAX_VALUE_CHARS).is_none()).then(|| text.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(raw: &str) -> Query {
        Query::parse(Some(raw)).unwrap()
    }

    fn error<T: fmt::Debug>(result: Result<T, BadQuery>) -> String {
        result.unwrap_err().to_string()
    }

    #[test]
    fn values_are_decoded() {
        let mut query = query("q=a+b%20c%26d%C3%BC&limit=7&apikey=k");
        assert_eq!(query.text("q").unwrap().as_deref(), Some("a b c&dü"));
        assert_eq!(query.number("limit", 1..=100).unwrap(), Some(7));
        assert_eq!(query.number("offset", 0..=u64::MAX).unwrap(), None);
        assert_eq!(query.finish(), Ok(()));
    }

    #[test]
    fn fr_040_errors_name_the_parameter() {
        assert_eq!(error(query("limt=3").finish()), "Unknown query parameter 'limt'");
        assert_eq!(
            error(Query::parse(Some("a=1&%61=2"))),
            "Query parameter 'a' is given more than once"
        );
        assert_eq!(
            error(Query::parse(Some("a=%ff"))),
            "Query parameter 'a' is not UTF-8 of at most 1024 characters"
        );
        for bad in ["0", "101", "-1", "+1", "1.5", "abc", "", "18446744073709551616"] {
            let bad = bad.replace('+', "%2B");
            let error = error(query(&format!("limit={bad}")).number("limit", 1..=100));
            let shown = bad.replace("%2B", "+");
            assert_eq!(
                error,
                format!("Invalid limit '{shown}': must be a whole number from 1 to 100")
            );
        }
        assert_eq!(
            error(query("exclude_payloads=yes").flag("exclude_payloads")),
            "Invalid exclude_payloads 'yes': must be true or false"
        );
        for bad in ["yesterday", "2026-01-02", "2026-13-01T00:00:00Z", "1735689600"] {
            let error = error(query(&format!("start_time={bad}")).time("start_time"));
            assert!(error.starts_with(&format!("Invalid start_time '{bad}'")), "{error}");
        }
        assert_eq!(error(query("q=").text("q")), "Invalid q '': must be a text that is not empty");
    }

    #[test]
    fn words_outside_the_accepted_list_are_rejected() {
        let words = ["read", "write", "destructive"];
        let mut good = query("intent_type=write,read");
        assert_eq!(good.words("intent_type", &words).unwrap(), ["write", "read"]);
        assert_eq!(
            error(query("intent_type=read,").words("intent_type", &words)),
            "Invalid intent_type 'read,': must be read, write, or destructive"
        );
        let formats = ["json", "csv"];
        assert_eq!(query("format=csv").word("format", &formats).unwrap(), Some("csv"));
        assert_eq!(
            error(query("format=json,csv").word("format", &formats)),
            "Invalid format 'json,csv': must be json or csv"
        );
    }
}
