//! One element of a list as clients see it, and the pages such lists are shown in.
//!
//! An element is the server's own JSON in which one member, the name or the URI, has another
//! value; not a byte beside it differs. Pure. Where the elements come from, and how the lists of
//! several servers become one, is not known here.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use serde::Deserialize;

use crate::json::span::Span;
use crate::wire::splice::Splice;

/// Most elements of one page. Many clients never ask for a second one.
pub const PAGE_ELEMENTS: usize = 1000;
/// Bytes after which a page is full.
pub const PAGE_BYTES: usize = 4 * 1024 * 1024;

/// An element of a list, under the name that clients know it by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The name or URI shown; lists are in its order.
    pub key: Box<str>,
    /// What its server calls it.
    pub own: Box<str>,
    json: Bytes,
}

impl Listed {
    /// `element` with `key` in the place of `own`, the name or URI, whose value stands `at` there.
    #[must_use]
    pub fn new(element: &str, at: Span, own: &str, key: String) -> Self {
        let json = with_string(element.as_bytes(), at, &key).into();
        Self { key: key.into(), own: own.into(), json }
    }

    /// An element that is kept as it was listed.
    #[must_use]
    pub fn stored(key: String, own: &str, json: &str) -> Self {
        Self { key: key.into(), own: own.into(), json: Bytes::copy_from_slice(json.as_bytes()) }
    }

    /// The element as it is listed.
    #[must_use]
    pub fn json(&self) -> &Bytes {
        &self.json
    }
}

/// `json` with the string `new` in place of the value that stands `at` that span of it.
#[must_use]
pub fn with_string(json: &[u8], at: Span, new: &str) -> Vec<u8> {
    at.replaced(json, serde_json::Value::from(new).to_string().as_bytes())
}

/// Where a page begins: after this key, or at the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Start(Option<Box<str>>);

/// A cursor that is none of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Invalid cursor")]
pub struct BadCursor;

#[derive(Deserialize)]
struct Params<'a> {
    #[serde(borrow)]
    cursor: Option<Cow<'a, str>>,
}

impl Start {
    /// Reads the cursor in a list request's params.
    ///
    /// # Errors
    /// [`BadCursor`], as the protocol asks (-32602).
    pub fn parse(params: &[u8]) -> Result<Self, BadCursor> {
        let params: Params<'_> = serde_json::from_slice(params).map_err(|_| BadCursor)?;
        let Some(cursor) = params.cursor else { return Ok(Self(None)) };
        let key = URL_SAFE_NO_PAD.decode(&*cursor).map_err(|_| BadCursor)?;
        Ok(Self(Some(String::from_utf8(key).map_err(|_| BadCursor)?.into())))
    }

    /// The elements of `sorted` from here on.
    #[must_use]
    pub fn rest<'a, T>(&self, sorted: &'a [T], key: impl Fn(&T) -> &str) -> &'a [T] {
        let Some(last) = &self.0 else { return sorted };
        let from = sorted.partition_point(|element| *key(element) <= **last);
        sorted.get(from..).unwrap_or_default()
    }
}

/// One page of a list: `{"tools":[…],"nextCursor":"…"}`, with `tools` for `member`, after what
/// stands `beside` them (`"key":value`, or nothing). The cursor is the last key, so that elements
/// that come or go between two pages shift nothing.
#[must_use]
pub fn page<'a>(beside: &str, member: &str, elements: impl Iterator<Item = &'a Listed>) -> Splice {
    const COMMA: Bytes = Bytes::from_static(b",");
    let mut elements = elements.peekable();
    let comma = if beside.is_empty() { "" } else { "," };
    let mut page = Splice::from(Bytes::from(format!("{{{beside}{comma}\"{member}\":[")));
    let mut count = 0;
    while let Some(element) = elements.next() {
        if count > 0 {
            page.push(COMMA);
        }
        page.push(element.json.clone());
        count += 1;
        if elements.peek().is_some() && (count == PAGE_ELEMENTS || page.len() >= PAGE_BYTES) {
            let cursor = URL_SAFE_NO_PAD.encode(element.key.as_bytes());
            page.push(Bytes::from(format!("],\"nextCursor\":\"{cursor}\"}}")));
            return page;
        }
    }
    page.push(Bytes::from_static(b"]}"));
    page
}

#[cfg(test)]
mod tests {
    use bytes::Buf;

    use super::*;

    fn listed(key: &str, more: &str) -> Listed {
        let element = format!("{{ \"name\" :\n\"x\"{more}}}");
        let value = element.find("\"x\"").unwrap() as u64;
        Listed::new(&element, Span::new(value, value + 3), "x", key.to_owned())
    }

    fn shown(elements: &[Listed], start: &Start) -> (serde_json::Value, Start) {
        let mut page =
            page("\"ttlMs\":1", "tools", start.rest(elements, |element| &element.key).iter());
        let text = page.copy_to_bytes(page.remaining());
        let page: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let params = serde_json::json!({"cursor": page["nextCursor"]}).to_string();
        (page, Start::parse(params.as_bytes()).unwrap())
    }

    #[test]
    fn only_the_name_of_an_element_differs() {
        let element = listed("s__a\"\n", ",\"n\":1.0e5 , \"name \":1, \"x\":\"é\\u0041\"");
        let expected =
            "{ \"name\" :\n\"s__a\\\"\\n\",\"n\":1.0e5 , \"name \":1, \"x\":\"é\\u0041\"}";
        assert_eq!(element.json(), expected.as_bytes());
    }

    #[test]
    fn ten_thousand_elements_come_in_pages_and_each_once() {
        let elements: Vec<_> = (0..10_000).map(|i| listed(&format!("s__{i:05}"), "")).collect();
        let (mut start, mut names) = (Start::default(), Vec::new());
        for _ in 0..10 {
            let (page, next) = shown(&elements, &start);
            let tools = page["tools"].as_array().unwrap();
            assert_eq!(tools.len(), PAGE_ELEMENTS);
            names.extend(tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()));
            start = next;
        }
        assert_eq!(start, Start::default(), "the last page has no cursor");
        assert!(names.iter().eq(elements.iter().map(|element| &*element.key)));
    }

    #[test]
    fn a_page_is_bounded_in_bytes_and_never_empty() {
        let padding = format!(",\"x\":\"{}\"", "y".repeat(PAGE_BYTES));
        let elements = [listed("a", &padding), listed("b", &padding), listed("c", "")];
        let (page, start) = shown(&elements, &Start::default());
        assert_eq!(page["tools"].as_array().unwrap().len(), 1);
        let (page, start) = shown(&elements, &start);
        assert_eq!(page["tools"][0]["name"], "b");
        assert_eq!(shown(&elements, &start).0["tools"][0]["name"], "c");
        assert_eq!(shown(&[], &Start::default()).0, serde_json::json!({"ttlMs": 1, "tools": []}));
    }

    #[test]
    fn a_page_goes_on_where_the_last_ended_whatever_came_and_went() {
        let (a, b, c) = (listed("a", ""), listed("b", ""), listed("c", ""));
        let after_b = Start(Some("b".into()));
        let rest = |elements: &[Listed]| shown(elements, &after_b).0["tools"].clone();
        assert_eq!(rest(&[a.clone(), b, c.clone()])[0]["name"], "c");
        assert_eq!(rest(&[a, listed("aa", ""), c])[0]["name"], "c");
        assert_eq!(rest(&[]), serde_json::json!([]));
    }

    #[test]
    fn what_is_no_cursor_of_ours_is_refused() {
        assert_eq!(Start::parse(b"{}"), Ok(Start(None)));
        assert_eq!(Start::parse(br#"{"cursor":null,"_meta":{}}"#), Ok(Start(None)));
        for params in [r#"{"cursor":"%"}"#, r#"{"cursor":"_w"}"#, r#"{"cursor":7}"#, "[]", "7"] {
            assert_eq!(Start::parse(params.as_bytes()), Err(BadCursor), "{params}");
        }
    }
}
