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
use crate::cli::paragraph::Paragraph;
use crate::cli::terminal_safe::line;
use crate::cli::times::{TimeStyle, Times};

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

/// Columns before the values.
const LABEL: usize = 21;

/// Prints the record of an id, of a number, or the last.
pub(super) async fn run(
    id: &str,
    time: Option<TimeStyle>,
    backend: &Backend,
    output: &Output,
) -> Result<(), CommandError> {
    let id = record_id::resolve(id, backend).await?;
    let record = backend.get(&target(&["activity", &id], &[])).await?;
    let related = match output.format {
        Format::Table => related(&parse(record.json()?)?, backend).await?,
        Format::Json | Format::Yaml => Vec::new(),
    };
    let times = Times::new(Some(time.unwrap_or(TimeStyle::Utc)), output.terminal);
    let width = output.view.width;
    output.print(record.json()?, |data| show(data, &times, width) + &beside(&related, width))
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
fn beside(related: &[Value], width: Option<usize>) -> String {
    let mut shown = String::new();
    let value = Paragraph::new(width).behind(LABEL);
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
        let told = format!("{} (activity show {number})", line(&told));
        let _ = writeln!(shown, "{}", value.labelled(label, &told));
    }
    shown
}

/// One record in full: a line per field, what is nested below its name. What others wrote goes on below itself.
pub(super) fn show(data: &Value, times: &Times, width: Option<usize>) -> String {
    let record = data.get("activity").unwrap_or(data);
    let mut shown = String::new();
    let mut record = record.clone();
    if let (Some(time), Some(members)) = (stored(&record), record.as_object_mut()) {
        if let Some(Value::String(began)) = members.remove("timestamp") {
            members.insert("began".to_owned(), times.exact_text(&began).into());
        }
        members.insert("stored".to_owned(), times.exact(time).into());
    }
    // How long an approval is waited for: the one time of ours within.
    if let Some(Value::String(until)) = record.pointer_mut("/metadata/until") {
        *until = times.exact_text(until);
    }
    let first = FIRST.iter().filter_map(|name| Some((*name, record.get(name)?)));
    let all = record.as_object().into_iter().flatten();
    let rest = all.map(|(name, value)| (name.as_str(), value));
    let values = Paragraph::new(width).behind(LABEL);
    for (name, value) in first.chain(rest.filter(|(name, _)| !FIRST.contains(name))) {
        field(&mut shown, name, value, (0, values));
    }
    shown
}

/// Deepest nesting that is spread over lines; below it JSON is shown.
const SHOWN_DEPTH: usize = 2;

fn field(shown: &mut String, name: &str, value: &Value, (depth, values): (usize, Paragraph)) {
    let label = format!("{:indent$}{}", "", line(name).replace('_', " "), indent = depth * 2);
    let _ = match value {
        Value::Null => return,
        Value::String(text) if text.is_empty() => return,
        Value::Object(members) if members.is_empty() => return,
        Value::Object(members) if depth < SHOWN_DEPTH => {
            let _ = writeln!(shown, "{label}");
            let within = (depth + 1, values);
            return members.iter().for_each(|(name, value)| field(shown, name, value, within));
        }
        Value::String(text) => writeln!(shown, "{}", values.labelled(&label, text)),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            writeln!(shown, "{}", values.labelled(&label, &value.to_string()))
        }
    };
}

#[cfg(test)]
mod tests {
    use super::super::row::tests::record;
    use super::*;

    fn utc(data: &Value) -> String {
        show(data, &Times::new(Some(TimeStyle::Utc), false), None)
    }

    #[test]
    fn fr_036_show_has_the_whole_intent() {
        let shown = utc(&serde_json::json!({"activity": record()}));
        assert!(shown.starts_with("id "), "{shown}");
        for part in ["operation type", "destructive", "clean up", "call_tool_destructive"] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        assert!(!shown.contains("error message"), "{shown}");
    }

    #[test]
    fn no_text_of_an_agent_draws_a_field() {
        let mut record = record();
        let forged = "clean up\nstatus               blocked\nid x";
        record["intent"]["reason"] = forged.into();
        record["arguments"] = serde_json::json!({forged: forged, "list": [forged]});
        record["error_message"] = forged.into();
        for width in [None, Some(40), Some(80)] {
            let times = Times::new(Some(TimeStyle::Utc), false);
            let shown = show(&serde_json::json!({"activity": record}), &times, width);
            for (field, count) in [("status ", 1), ("id ", 1)] {
                let lines = shown.lines().filter(|line| line.starts_with(field));
                assert_eq!(lines.count(), count, "{field} at {width:?}:\n{shown}");
            }
        }
        let decision = serde_json::json!({"seq": 7, "type": "policy_decision", "status": "blocked",
            "metadata": {"policy": "rules", "reason": forged}});
        assert_eq!(beside(&[decision], None).lines().count(), 1);
    }

    #[test]
    fn times_are_as_they_are_asked_for_and_those_of_a_payload_as_they_came() {
        let mut record = record();
        record["metadata"]["until"] = "2026-01-02T03:09:05Z".into();
        record["arguments"] = serde_json::json!({"until": "2026-01-02T03:09:05Z"});
        let shown = utc(&serde_json::json!({"activity": record}));
        assert!(shown.contains("began                2026-01-02T03:04:05.678Z\n"), "{shown}");
        assert!(shown.contains("  until              2026-01-02T03:09:05.000Z\n"), "{shown}");
        assert!(shown.contains("  until              2026-01-02T03:09:05Z\n"), "{shown}");
        let relative = Times::new(Some(TimeStyle::Relative), false);
        let shown = show(&serde_json::json!({"activity": record}), &relative, None);
        assert!(!shown.contains("2026-01-02T03:04"), "{shown}");
    }
}
