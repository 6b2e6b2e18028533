//! `mcpproxy activity show`: one record in full.

use std::fmt::Write as _;

use serde_json::Value;

use super::row::stored;
use crate::cli::terminal_safe::clean;

/// The members that are shown first, in this order; the rest follows.
const FIRST: [&str; 12] = [
    "id",
    "type",
    "began",
    "stored",
    "server_name",
    "tool_name",
    "principal",
    "status",
    "error_message",
    "intent",
    "arguments",
    "metadata",
];

/// One record in full: a line per field, what is nested below its name.
pub(super) fn show(data: &Value) -> String {
    let record = data.get("activity").unwrap_or(data);
    let mut shown = String::new();
    let mut record = record.clone();
    if let (Some(time), Some(members)) = (stored(&record), record.as_object_mut()) {
        if let Some(began) = members.remove("timestamp") {
            members.insert("began".to_owned(), began);
        }
        members.insert("stored".to_owned(), format!("{time:.3}").into());
    }
    let first = FIRST.iter().filter_map(|name| Some((*name, record.get(name)?)));
    let all = record.as_object().into_iter().flatten();
    let rest = all.map(|(name, value)| (name.as_str(), value));
    for (name, value) in first.chain(rest.filter(|(name, _)| !FIRST.contains(name))) {
        field(&mut shown, name, value, 0);
    }
    shown
}

/// Deepest nesting that is spread over lines; below it JSON is shown.
const SHOWN_DEPTH: usize = 2;

fn field(shown: &mut String, name: &str, value: &Value, depth: usize) {
    let (indent, width) = (depth * 2, 20_usize.saturating_sub(depth * 2));
    let label = clean(name).replace('_', " ");
    match value {
        Value::Null => {}
        Value::String(text) if text.is_empty() => {}
        Value::Object(members) if members.is_empty() => {}
        Value::Object(members) if depth < SHOWN_DEPTH => {
            let _ = writeln!(shown, "{:indent$}{label}", "");
            for (name, value) in members {
                field(shown, name, value, depth + 1);
            }
        }
        Value::String(text) => {
            let text = clean(text);
            let _ = writeln!(shown, "{:indent$}{label:<width$} {text}", "");
        }
        other => {
            let text = other.to_string();
            let _ = writeln!(shown, "{:indent$}{label:<width$} {}", "", clean(&text));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::row::tests::record;
    use super::*;

    #[test]
    fn fr_036_show_has_the_whole_intent() {
        let shown = show(&serde_json::json!({"activity": record()}));
        assert!(shown.starts_with("id "), "{shown}");
        for part in ["operation type", "destructive", "clean up", "call_tool_destructive"] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        assert!(!shown.contains("error message"), "{shown}");
    }
}
