//! Target `results`: the outline of a kept result, and its requested parts.
//!
//! Input: the arguments of `read_result` on the first line, then the result. The outline is bounded. A part is a piece
//! of the requested value, at most as long as requested. Each note on how to continue leads to a later part, until the
//! end is reached.

use mcpproxy_gateway::results::{
    MAX_PART_BYTES, Outline, PartQuery, ResultHandle, Selection, part, without_handles,
};
use serde_json::Value;

/// More than the maximum size of an outline with its head.
const MAX_OUTLINE_BYTES: usize = 4096;

pub fn run(data: &[u8]) {
    let (first, result) = match data.iter().position(|byte| *byte == b'\n') {
        Some(at) => (&data[..at], &data[at + 1..]),
        None => (data, &data[..0]),
    };
    if let Ok(text) = std::str::from_utf8(first) {
        without(text);
    }
    let Ok(result) = std::str::from_utf8(result) else { return };
    if let Some(outline) = Outline::of(result) {
        assert!(outline.map.len() + outline.head.len() < MAX_OUTLINE_BYTES, "{outline:?}");
        assert!(!outline.map.chars().any(|c| c.is_control() && c != '\n'), "{outline:?}");
    }
    let Ok(query) = PartQuery::parse(first) else { return };
    parts(result, query);
}

/// Asserts that no handle is left in a text shown to others, nor in its JSON strings, and that other text is unchanged.
fn without(text: &str) {
    let hidden = without_handles(text);
    if !text.contains('\\') {
        assert_eq!(hidden.len(), text.len() + handles(text));
    }
    assert_eq!(handles(&hidden), 0, "{hidden}");
    match (serde_json::from_str(text), serde_json::from_str(&hidden)) {
        (Ok::<Value, _>(_), Ok(told)) => assert_eq!(handles_in(&told), 0, "{hidden}"),
        (Ok(_), Err(error)) => panic!("{error}: {hidden}"),
        (Err(_), _) => {}
    }
}

fn handles(text: &str) -> usize {
    let is_handle = |at: usize| text.get(at..at + 37).and_then(ResultHandle::parse).is_some();
    text.match_indices("kept_").filter(|(at, _)| is_handle(*at)).count()
}

/// Number of handles in the strings and names of a value.
fn handles_in(value: &Value) -> usize {
    match value {
        Value::String(text) => handles(text),
        Value::Array(items) => items.iter().map(handles_in).sum(),
        Value::Object(members) => {
            members.iter().map(|(name, value)| handles(name) + handles_in(value)).sum()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

fn parts(result: &str, mut query: PartQuery) {
    let is_search = matches!(query.selection, Selection::Search(_));
    for _ in 0..100 {
        let Ok(found) = part(result, &query) else { return };
        // A part has at least one character, of up to 4 bytes, even if the limit is smaller.
        let most = if is_search { MAX_PART_BYTES } else { query.limit.max(4) };
        assert!(found.text.len() as u64 <= most, "{} of {most}", found.text.len());
        if query.pointer.is_some() && query.selection == Selection::All {
            assert!(result.contains(&found.text), "it is not there: {}", found.text);
        }
        let Some((_, next)) = found.note.split_once("next offset ") else { return };
        let next: u64 = next.parse().expect("a number");
        assert!(next > query.offset, "{} leads to {next}", query.offset);
        query.offset = next;
    }
}
