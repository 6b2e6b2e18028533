//! A list longer than one page of REST, as one list.
//!
//! Items keep their bytes; only the list around them is made here.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::backend::{Backend, target};
use super::error::CommandError;

/// Most items in one page of REST.
const PAGE: u32 = 100;

/// Up to `most` items of `/api/v1/{name}`, as `{"<name>":[…]}` where `activity` lists
/// `activities`.
pub(super) async fn all(
    backend: &Backend,
    name: &str,
    query: &[(&str, Option<&str>)],
    most: u32,
) -> Result<String, CommandError> {
    let member = if name == "activity" { "activities" } else { name };
    let mut items = Vec::new();
    let (mut left, mut cursor) = (most, None::<String>);
    let mut fleet: Option<Box<RawValue>> = None;
    loop {
        let limit = left.min(PAGE).to_string();
        let mut query = query.to_vec();
        query.extend([("limit", Some(limit.as_str())), ("cursor", cursor.as_deref())]);
        let data = backend.get(&target(&[name], &query)).await?;
        let page = Page::read(data.json()?, member)?;
        left = left.saturating_sub(u32::try_from(page.items.len()).unwrap_or(u32::MAX));
        items.extend(page.items);
        // What one page lacks, the list lacks.
        fleet = match (fleet, page.fleet) {
            (Some(fleet), Some(_)) if is_partial(&fleet) => Some(fleet),
            (fleet, next) => next.or(fleet),
        };
        match page.next {
            // A cursor that repeats would be followed for ever.
            Some(next) if left > 0 && cursor.as_ref() != Some(&next) => cursor = Some(next),
            next => return Ok(join(member, &items, next, fleet.as_deref())),
        }
    }
}

struct Page {
    items: Vec<Box<RawValue>>,
    next: Option<String>,
    /// What the page covers, where there is a fleet.
    fleet: Option<Box<RawValue>>,
}

impl Page {
    fn read(json: &str, member: &str) -> Result<Self, CommandError> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Cursor {
            Text(String),
            None,
        }
        let wrong = |error| CommandError::failed(format!("the answer is not a page: {error}"));
        let mut members: HashMap<String, &RawValue> = serde_json::from_str(json).map_err(wrong)?;
        let items = members.remove(member).map_or("[]", RawValue::get);
        let next = members.remove("next_cursor").map_or("null", RawValue::get);
        let next = match serde_json::from_str(next).map_err(wrong)? {
            Cursor::Text(text) if !text.is_empty() => Some(text),
            Cursor::Text(_) | Cursor::None => None,
        };
        let fleet = members.remove("fleet").map(|fleet| fleet.to_owned());
        Ok(Self { items: serde_json::from_str(items).map_err(wrong)?, next, fleet })
    }
}

fn is_partial(fleet: &RawValue) -> bool {
    let fleet: serde_json::Value = serde_json::from_str(fleet.get()).unwrap_or_default();
    fleet.get("partial").and_then(serde_json::Value::as_bool) == Some(true)
}

fn join(
    member: &str,
    items: &[Box<RawValue>],
    next: Option<String>,
    fleet: Option<&RawValue>,
) -> String {
    let items: Vec<&str> = items.iter().map(|item| item.get()).collect();
    let next = next.map_or(String::new(), |next| {
        format!(",\"next_cursor\":{}", serde_json::Value::String(next))
    });
    let fleet = fleet.map_or(String::new(), |fleet| format!(",\"fleet\":{}", fleet.get()));
    format!("{{\"{member}\":[{}]{next}{fleet}}}", items.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_keep_their_bytes_and_the_cursor_goes_on() {
        let json = r#"{"tools":[{"a":1.0}, { "b" : 2 }],"next_cursor":"c1","limit":2}"#;
        let page = Page::read(json, "tools").unwrap();
        assert_eq!(page.next.as_deref(), Some("c1"));
        assert_eq!(
            join("tools", &page.items, page.next, None),
            r#"{"tools":[{"a":1.0},{ "b" : 2 }],"next_cursor":"c1"}"#
        );
        let partial = r#"{"tools":[],"fleet":{"partial": true}}"#;
        let page = Page::read(partial, "tools").unwrap();
        assert!(is_partial(page.fleet.as_deref().unwrap()));
        assert_eq!(join("tools", &page.items, page.next, page.fleet.as_deref()), partial);
        for last in [r#"{"tools":[]}"#, r#"{"tools":[],"next_cursor":null}"#] {
            assert_eq!(Page::read(last, "tools").unwrap().next, None);
        }
    }
}
