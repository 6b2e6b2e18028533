//! `mcpproxy activity show`: one record in full, with what was decided about it.

use std::fmt::Write as _;

use serde_json::Value;

use super::record_id;
use super::row::stored;
use crate::cli::args::Format;
use crate::cli::backend::{Backend, target};
use crate::cli::error::CommandError;
use crate::cli::json_pointer::{list, text};
use crate::cli::output::{Output, parse};
use crate::cli::terminal_safe::{clean, line};

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

/// Prints the record of an id, of a number, or the last.
pub(super) async fn run(id: &str, backend: &Backend, output: &Output) -> Result<(), CommandError> {
    let id = record_id::resolve(id, backend).await?;
    let record = backend.get(&target(&["activity", &id], &[])).await?;
    let related = match output.format {
        Format::Table => related(&parse(record.json()?)?, backend).await?,
        Format::Json | Format::Yaml => Vec::new(),
    };
    output.print(record.json()?, |data| show(data) + &beside(&related))
}

/// The decisions about a call, or the call that a decision is about.
async fn related(data: &Value, backend: &Backend) -> Result<Vec<Value>, CommandError> {
    let [id, kind, request, parent] = ["id", "type", "request_id", "parent_id"]
        .map(|member| text(data, &format!("/activity/{member}")));
    if kind == "policy_decision" {
        // The call may have been removed meanwhile.
        let call = match parent.is_empty() {
            true => return Ok(Vec::new()),
            false => backend.get(&target(&["activity", &parent], &[])).await,
        };
        let call = call.ok().map(|call| parse(call.json()?)).transpose()?;
        return Ok(call.and_then(|call| call.get("activity").cloned()).into_iter().collect());
    }
    if request.is_empty() {
        return Ok(Vec::new());
    }
    let query = [
        ("type", Some("policy_decision")),
        ("request_id", Some(&*request)),
        ("limit", Some("100")),
        ("exclude_payloads", Some("true")),
    ];
    let found = backend.get(&target(&["activity"], &query)).await?;
    let found = parse(found.json()?)?;
    let about = list(&found, "/activities").iter().filter(|it| text(it, "/parent_id") == id);
    Ok(about.rev().cloned().collect())
}

/// A line for each of them.
fn beside(related: &[Value]) -> String {
    let mut shown = String::new();
    for record in related {
        let [number, kind, status] = ["/seq", "/type", "/status"].map(|at| text(record, at));
        let [policy, why] = ["/metadata/policy", "/metadata/reason"].map(|at| text(record, at));
        let (label, told) = match &*kind {
            "policy_decision" => ("decision", format!("{status} by {policy}: {why}")),
            _ => {
                let [server, tool] = ["/server_name", "/tool_name"].map(|at| text(record, at));
                ("decided on", format!("{kind} {server}:{tool}, {status}"))
            }
        };
        let _ = writeln!(shown, "{label:<20} {} (activity show {number})", line(&told));
    }
    shown
}

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
