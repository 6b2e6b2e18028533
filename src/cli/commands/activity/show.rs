//! The full view of `activity show`, and lookup of a record by id, number or `last`.
//!
//! Ids share their first characters (the time) and their last ones (the log), so prefixes do not distinguish records;
//! the number (`seq`) is unique.

use crate::args::Format;
use crate::backend::{Backend, target};
use crate::commands::activity::reason::is_stated;
use crate::commands::activity::row::{
    approval, duration, folded, is_waiting, status_of_row, stored, taken,
};
use crate::completion::did_you_mean;
use crate::error::CommandError;
use crate::format::{TimeStyle, Times, list, text};
use crate::output::{Output, Paragraph, parse};
use crate::terminal_safe::line;
use jiff::{SignedDuration, Timestamp};
use mcpproxy_activity::Id;
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::fmt::Write as _;

/// Alias of the newest row of `activity list`.
const LAST: &str = "last";
/// Maximum number of digits of a record number (48 bits).
const DIGITS: usize = 15;
/// Number of records per page of the search.
const PAGE: u64 = 20;
/// Maximum number of pages examined. More than one may be needed, because numbers may be missing and records may arrive
/// during the search.
const TRIES: usize = 8;

/// Resolves an id, number or alias to a full id.
pub(super) async fn resolve(typed: &str, backend: &Backend) -> Result<String, CommandError> {
    if typed == LAST {
        let newest = page(backend, 0).await?;
        let newest = folded(&newest).first().map(|(record, _)| text(record, "/id").into_owned());
        return newest.ok_or_else(|| CommandError::failed("no activity yet"));
    }
    let is_number = typed.len() <= DIGITS && typed.bytes().all(|byte| byte.is_ascii_digit());
    match typed.parse() {
        Ok(number) if is_number => by_number(number, backend).await,
        Ok(_) | Err(_) if Id::parse(typed).is_some() => Ok(typed.to_owned()),
        Ok(_) | Err(_) => Err(CommandError::failed(no_id(typed))),
    }
}

/// Message for an argument that does not identify a record.
fn no_id(typed: &str) -> String {
    format!(
        "Activity not found: '{}'; expected `last`, a record number or a full id from `mcpproxy \
         activity list`{}",
        line(typed),
        did_you_mean(typed, [LAST].into_iter())
    )
}

async fn by_number(number: u64, backend: &Backend) -> Result<String, CommandError> {
    let mut offset = 0;
    for _ in 0..TRIES {
        let page = page(backend, offset).await?;
        match place(&page, number) {
            Place::Here(id) => return Ok(id),
            Place::Older(by) => offset = offset.saturating_add(by),
            Place::Newer(by) if offset > 0 => offset = offset.saturating_sub(by),
            Place::Newer(_) | Place::Nowhere => break,
        }
    }
    Err(CommandError::failed(format!(
        "no record {number}, or no longer retained: `mcpproxy activity list` shows the numbers"
    )))
}

/// Position of a record number relative to a page.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    Here(String),
    /// Further down the list: by this many records, or by fewer if numbers are missing.
    Older(u64),
    Newer(u64),
    /// Within the page's range, but missing from the log.
    Nowhere,
}

fn place(page: &Value, number: u64) -> Place {
    let records = list(page, "/activities");
    let number_of = |record: &Value| record.get("seq").and_then(Value::as_u64);
    let (Some(newest), Some(oldest)) =
        (records.first().and_then(number_of), records.last().and_then(number_of))
    else {
        return Place::Nowhere;
    };
    if let Some(found) = records.iter().find(|record| number_of(record) == Some(number)) {
        return Place::Here(text(found, "/id").into_owned());
    }
    match number {
        number if number > newest => Place::Newer(number - newest),
        // If numbers are missing this overshoots, and the next page corrects it.
        number if number < oldest => Place::Older(newest - number),
        _ => Place::Nowhere,
    }
}

/// Fetches a page of records, newest first.
async fn page(backend: &Backend, offset: u64) -> Result<Value, CommandError> {
    let (limit, offset) = (PAGE.to_string(), offset.to_string());
    let query =
        [("limit", Some(&*limit)), ("offset", Some(&*offset)), ("exclude_payloads", Some("true"))];
    parse(backend.get(&target(&["activity"], &query)).await?.json()?)
}

/// Members shown first: the outcome and its reason. Decisions and approvals about the record follow them.
const OUTCOME: [&str; 2] = ["status", "reason"];

/// Members shown after the outcome, in this order.
const FIRST: [&str; 11] = [
    "tool",
    "type",
    "principal",
    "intent",
    "arguments",
    "response",
    "took",
    "began",
    "stored",
    "number",
    "id",
];

/// Members that only JSON and YAML have: they place the record in its log.
const OF_THE_LOG: [&str; 3] = ["node", "prev_hash", "hash"];
/// Line that refers to them.
const WHOLE_RECORD: &str = "(-o yaml shows the whole record, with the hashes of the log)";

/// Width of the label column.
const LABEL: usize = 21;

/// Prints a record selected by id, number or `last`.
pub(super) async fn show(
    id: &str,
    time: Option<TimeStyle>,
    backend: &Backend,
    output: &Output,
) -> Result<(), CommandError> {
    let id = resolve(id, backend).await?;
    let record = backend.get(&target(&["activity", &id], &[])).await;
    let record = record.map_err(|failure| failure.naming(&id, "mcpproxy activity list"))?;
    let related = match output.format {
        Format::Table => related(&parse(record.json()?)?, backend).await?,
        Format::Json | Format::Yaml => Vec::new(),
    };
    let times = Times::new(Some(time.unwrap_or(TimeStyle::Utc)), output.terminal);
    let width = output.view.width;
    output.print(record.json()?, |data| {
        output.with_notes("", render(data, &related, &times, width), WHOLE_RECORD)
    })
}

/// Decisions and approvals about a call, the call that a decision is about, or the answer to an approval that waited.
async fn related(data: &Value, backend: &Backend) -> Result<Vec<Value>, CommandError> {
    let record = data.get("activity").unwrap_or(data);
    let [kind, parent] = ["/type", "/parent_id"].map(|at| text(record, at));
    if kind == "policy_decision" {
        // The call may no longer be retained.
        let call = match parent.is_empty() {
            true => return Ok(Vec::new()),
            false => backend.get(&target(&["activity", &parent], &[])).await,
        };
        let call = call.ok().map(|call| parse(call.json()?)).transpose()?;
        return Ok(call.and_then(|call| call.get("activity").cloned()).into_iter().collect());
    }
    if kind == "approval" && is_waiting(record) {
        let until = text(record, "/metadata/until").parse().ok();
        let all = of_request(record, "approval", until, backend).await?;
        let is_answer = |other: &Value| !is_waiting(other) && approval(other) == approval(record);
        return Ok(all.into_iter().filter(is_answer).collect());
    }
    about(record, backend).await
}

/// Decisions and approvals about a call, oldest first; empty for other records.
pub(super) async fn about(call: &Value, backend: &Backend) -> Result<Vec<Value>, CommandError> {
    let [kind, id, request] = ["/type", "/id", "/request_id"].map(|at| text(call, at));
    if request.is_empty() || matches!(&*kind, "policy_decision" | "approval") {
        return Ok(Vec::new());
    }
    let mut found = of_request(call, "policy_decision,approval", stored(call), backend).await?;
    let of_call = approval(call);
    found.retain(|record| match &*text(record, "/type") {
        "policy_decision" => text(record, "/parent_id") == id,
        _ => !of_call.0.is_empty() && approval(record) == of_call,
    });
    Ok(found)
}

/// Time after the end of a call or of an approval within which the records about it are stored.
const STORED_WITHIN: SignedDuration = SignedDuration::from_secs(60);

/// Records of these types with the request of `record`, from its begin until shortly after `end`, oldest first.
async fn of_request(
    record: &Value,
    types: &str,
    end: Option<Timestamp>,
    backend: &Backend,
) -> Result<Vec<Value>, CommandError> {
    let [request, session, began, node] =
        ["/request_id", "/session_id", "/timestamp", "/node_name"].map(|at| text(record, at));
    let end = end.and_then(|end| end.checked_add(STORED_WITHIN).ok());
    let end = end.map(|end| end.to_string());
    let query = [
        ("type", Some(types)),
        ("request_id", Some(&*request)),
        // Other sessions use the same request ids.
        ("session_id", Some(&*session).filter(|session| !session.is_empty())),
        // A call's node records all of them, so the other nodes of a fleet are not asked.
        ("node", Some(&*node).filter(|node| !node.is_empty())),
        ("start_time", end.as_ref().map(|_| &*began)),
        ("end_time", end.as_deref()),
        ("limit", Some("100")),
        ("exclude_payloads", Some("true")),
    ];
    let found = parse(backend.get(&target(&["activity"], &query)).await?.json()?)?;
    Ok(list(&found, "/activities").iter().rev().cloned().collect())
}

/// One line per related record. A decision does not repeat the `reason` of its call.
fn beside(related: &[Value], reason: &str, width: Option<usize>) -> String {
    let mut shown = String::new();
    let value = Paragraph::new(width).indented(LABEL).keeping_paths();
    // A request for approval is part of its answer.
    let answered: Vec<_> = related
        .iter()
        .filter(|it| !is_waiting(it))
        .map(approval)
        .filter(|it| !it.0.is_empty())
        .collect();
    let is_shown = |record: &&Value| !is_waiting(record) || !answered.contains(&approval(record));
    for record in related.iter().filter(is_shown) {
        let [number, kind, status] = ["/seq", "/type", "/status"].map(|at| text(record, at));
        let [policy, why] = ["/metadata/policy", "/metadata/reason"].map(|at| text(record, at));
        let (label, summary) = match &*kind {
            "policy_decision" => {
                let why = match is_stated(record, reason) {
                    true => String::new(),
                    false => format!(": {why}"),
                };
                ("decision", format!("{} by {policy}{why}", status_of_row(record)))
            }
            "approval" => ("approval", answer(record)),
            _ => {
                let [server, tool] = ["/server_name", "/tool_name"].map(|at| text(record, at));
                ("decided on", format!("{kind} {server}:{tool}, {status}"))
            }
        };
        let summary = format!("{} (activity show {number})", line(&summary));
        let _ = writeln!(shown, "{}", value.labeled(label, &summary));
    }
    shown
}

/// Describes one record of an approval: its state, the person who answered, and the wait.
fn answer(record: &Value) -> String {
    let [state, by, over] =
        ["/metadata/state", "/metadata/by", "/metadata/door"].map(|at| text(record, at));
    let mut shown = state.replace('_', " ");
    if !by.is_empty() {
        let _ = write!(shown, " by {by} over {over}");
    }
    let waited = taken(record);
    if !waited.is_empty() {
        let _ = write!(shown, " after {waited}");
    }
    shown
}

/// Renders a record and the lines of `related` records: the outcome first, one line per field, nested members below
/// their name, untrusted text indented.
pub(super) fn render(
    data: &Value,
    related: &[Value],
    times: &Times,
    width: Option<usize>,
) -> String {
    let record = data.get("activity").unwrap_or(data);
    let mut shown = String::new();
    let mut record = record.clone();
    if let (Some(time), Some(members)) = (stored(&record), record.as_object_mut()) {
        if let Some(Value::String(began)) = members.remove("timestamp") {
            members.insert("began".to_owned(), times.exact_text(&began).into());
        }
        members.insert("stored".to_owned(), times.exact(time).into());
    }
    let reason = text(&record, "/error_message").into_owned();
    let (outcome, took) = (status_of_row(&record).into_owned(), time_taken(&record));
    if let Some(members) = record.as_object_mut() {
        members.insert("status".to_owned(), outcome.into());
        members.insert("took".to_owned(), took.into());
        // A decision has its reason in the metadata.
        let why = members.get_mut("metadata").and_then(Value::as_object_mut);
        let why = why.filter(|_| reason.is_empty()).and_then(|it| it.remove("reason"));
        members.insert("reason".to_owned(), why.unwrap_or_else(|| reason.as_str().into()));
        members.remove("error_message");
        if let Some(number) = members.remove("seq") {
            members.insert("number".to_owned(), number);
        }
        name_tool(members);
        let is_of_the_log = |name: &str| OF_THE_LOG.contains(&name);
        members.retain(|name, value| {
            !is_of_the_log(name)
                && !["duration_ms", "overhead_us"].contains(&name.as_str())
                && (name != "response_truncated" || *value == Value::Bool(true))
                && (name != "response_bytes" || value.as_u64() != Some(0))
        });
    }
    // The metadata repeat the intent as it was sent.
    if record.pointer("/metadata/intent") == record.get("intent")
        && let Some(metadata) = record.get_mut("metadata").and_then(Value::as_object_mut)
    {
        metadata.remove("intent");
    }
    // The deadline of an approval is the only timestamp in the metadata that mcpproxy writes itself.
    if let Some(Value::String(until)) = record.pointer_mut("/metadata/until") {
        *until = times.exact_text(until);
    }
    if let Some(Value::String(response)) = record.get_mut("response") {
        *response = without_base64(response);
    }
    let all = record.as_object().into_iter().flatten();
    let mut members: Vec<_> = all.map(|(name, value)| (name.as_str(), value)).collect();
    let position = |names: &[&str], name: &str| names.iter().position(|it| *it == name);
    members.sort_by_key(|(name, _)| {
        let outcome = position(&OUTCOME, name).unwrap_or(OUTCOME.len());
        (outcome, position(&FIRST, name).unwrap_or(FIRST.len()))
    });
    let values = Paragraph::new(width).indented(LABEL).keeping_paths();
    let outcome = members.iter().take_while(|(name, _)| OUTCOME.contains(name)).count();
    let others = members.split_off(outcome);
    for (name, value) in members {
        field(&mut shown, (name, Names::Ours), value, (0, values));
    }
    shown += &beside(related, &reason, width);
    let values = Paragraph::new(width).indented(LABEL);
    for (name, value) in others {
        field(&mut shown, (name, Names::Ours), value, (0, values));
    }
    shown
}

/// Joins the names of server and tool, as other commands take them.
fn name_tool(members: &mut Map<String, Value>) {
    let name = |name: &str| members.get(name).and_then(Value::as_str).unwrap_or_default();
    let (server, tool) = (name("server_name"), name("tool_name"));
    if server.is_empty() || tool.is_empty() {
        return;
    }
    let full = format!("{server}:{tool}");
    members.retain(|name, _| name != "server_name" && name != "tool_name");
    members.insert("tool".to_owned(), full.into());
}

/// Duration of a call, and the part of it that mcpproxy took if the call was sent.
fn time_taken(record: &Value) -> String {
    let whole = taken(record);
    let number = |at: &str| record.pointer(at).and_then(Value::as_f64);
    match (number("/duration_ms"), number("/overhead_us")) {
        (Some(ms), Some(overhead)) if overhead > 0.0 && overhead / 1000.0 + 0.001 < ms => {
            format!("{whole}, of which {} in mcpproxy", duration(overhead / 1000.0))
        }
        _ => whole,
    }
}

/// Minimum length of base64 data that is not shown.
const BASE64_CHARS: usize = 100;

/// Replaces the base64 data of images, audio and resources in a response by its size. The response may be truncated
/// JSON.
fn without_base64(response: &str) -> String {
    let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=-_".contains(&byte);
    let (mut key, mut between) = ("", "");
    let last = response.matches('"').count();
    let parts = response.split('"').enumerate().map(|(at, part)| {
        let is_data = matches!(key, "data" | "blob") && between.trim() == ":";
        (key, between) = (between, part);
        match is_data && part.len() >= BASE64_CHARS && part.bytes().all(is_base64) {
            true if at == last => format!("[base64, cut after {} bytes]", part.len()).into(),
            true => format!("[{} bytes of base64]", part.len()).into(),
            false => Cow::from(part),
        }
    });
    parts.collect::<Vec<_>>().join("\"")
}

/// Origin of the member names of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Names {
    /// Names chosen by mcpproxy, shown as words.
    Ours,
    /// Other names, shown unchanged.
    Foreign,
}

/// Maximum nesting that is expanded into lines; deeper values are shown as JSON.
const SHOWN_DEPTH: usize = 2;

/// Whether a text looks like a JSON number, `true`, `false` or `null`.
fn is_like_a_literal(text: &str) -> bool {
    let parsed = serde_json::from_str(text);
    parsed.is_ok_and(|it| matches!(it, Value::Null | Value::Bool(_) | Value::Number(_)))
}

fn field(
    shown: &mut String,
    (name, names): (&str, Names),
    value: &Value,
    (depth, values): (usize, Paragraph),
) {
    let words = match names {
        Names::Ours if name == "door" => "via".to_owned(),
        Names::Ours => line(name).replace('_', " "),
        Names::Foreign => line(name).into_owned(),
    };
    let label = format!("{:indent$}{words}", "", indent = depth * 2);
    let _ = match value {
        Value::Null => return,
        Value::String(text) if text.is_empty() => return,
        Value::Object(members) if members.is_empty() => return,
        Value::Object(members) if depth < SHOWN_DEPTH => {
            let _ = writeln!(shown, "{label}");
            let within = (depth + 1, values);
            let names = match (names, name) {
                (Names::Ours, "intent" | "metadata") => Names::Ours,
                (Names::Ours | Names::Foreign, _) => Names::Foreign,
            };
            let member = |(name, value): (&String, &Value)| {
                let names = if name.starts_with('_') { Names::Foreign } else { names };
                field(shown, (name, names), value, within);
            };
            return members.iter().for_each(member);
        }
        // Tells an argument that is a text from a number.
        Value::String(text) if names == Names::Foreign && is_like_a_literal(text) => {
            writeln!(shown, "{}", values.labeled(&label, &value.to_string()))
        }
        Value::String(text) => writeln!(shown, "{}", values.labeled(&label, text)),
        Value::Array(items) if items.iter().any(Value::is_object) => {
            let _ = writeln!(shown, "{label}");
            let within = format!("{:indent$}-", "", indent = (depth + 1) * 2);
            let item =
                |item: &Value| writeln!(shown, "{}", values.labeled(&within, &item.to_string()));
            return items.iter().map(item).for_each(drop);
        }
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            writeln!(shown, "{}", values.labeled(&label, &value.to_string()))
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::activity::row::tests::record;
    use serde_json::json;

    #[test]
    fn act_7_show_keeps_names_of_arguments() {
        let mut record = record();
        record["arguments"] = json!({"repo_path": "/x", "deep": {"a_b": 1}});
        record["metadata"]["_meta"] = json!({"a_key": 1});
        let times = Times::new(Some(TimeStyle::Utc), false);
        let whole = render(&record, &[], &times, None);
        for row in ["  repo_path", "    a_b", "  _meta", "    a_key", "  tool variant", "tool   "] {
            assert!(whole.lines().any(|line| line.starts_with(row)), "{row}: {whole}");
        }
        assert!(!whole.contains("repo path"), "{whole}");
    }

    #[test]
    fn cli_2_show_tells_texts_and_lists_of_arguments_from_other_values() {
        let mut record = record();
        record["arguments"] = json!({"text": "4711", "number": 1, "word": "x", "list": [{"a": 1}]});
        let shown = utc(&record);
        let row = |start: &str| shown.lines().find(|line| line.trim_start().starts_with(start));
        for (start, end) in
            [("text", " \"4711\""), ("number", " 1"), ("word", " x"), ("- ", "{\"a\":1}")]
        {
            assert!(row(start).is_some_and(|line| line.ends_with(end)), "{start}: {shown}");
        }
    }

    #[test]
    fn unknown_id_explains_valid_forms() {
        let message = no_id("lastt");
        assert!(message.starts_with("Activity not found: 'lastt'; "), "{message}");
        assert!(message.ends_with("list`: did you mean last?"), "{message}");
        assert!(no_id("x7").ends_with("a full id from `mcpproxy activity list`"));
    }

    #[test]
    fn record_number_is_located_from_any_page() {
        let page = |numbers: &[u64]| {
            let records =
                numbers.iter().map(|seq| serde_json::json!({"seq": seq, "id": seq.to_string()}));
            serde_json::json!({"activities": records.collect::<Vec<_>>()})
        };
        let here = page(&[9, 8, 6, 5]);
        assert_eq!(place(&here, 8), Place::Here("8".into()));
        assert_eq!(place(&here, 7), Place::Nowhere);
        assert_eq!(place(&here, 2), Place::Older(7));
        assert_eq!(place(&here, 11), Place::Newer(2));
        assert_eq!(place(&page(&[]), 1), Place::Nowhere);
    }

    fn utc(data: &Value) -> String {
        render(data, &[], &Times::new(Some(TimeStyle::Utc), false), None)
    }

    #[test]
    fn fr_036_show_contains_the_full_intent() {
        let shown = utc(&serde_json::json!({"activity": record()}));
        assert!(shown.starts_with("status "), "{shown}");
        for part in ["operation type", "destructive", "clean up", "call_tool_destructive"] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        assert!(!shown.lines().any(|line| line.starts_with("reason")), "{shown}");
    }

    #[test]
    fn show_begins_with_the_outcome_its_decisions_and_its_approval() {
        let decision = json!({"seq": 7, "type": "policy_decision", "status": "blocked",
            "metadata": {"policy": "rules", "reason": "not by rule 'no'"}});
        let mut record = record();
        (record["status"], record["error_message"]) = ("rejected".into(), "not allowed".into());
        let times = Times::new(Some(TimeStyle::Utc), false);
        let shown = render(&record, &[decision], &times, None);
        let labels: Vec<_> = shown.lines().take(4).map(|line| line[..LABEL].trim()).collect();
        assert_eq!(labels, ["status", "reason", "decision", "tool"], "{shown}");
        let waiting =
            json!({"type": "approval", "status": "success", "metadata": {"state": "waiting"}});
        assert!(utc(&waiting).starts_with("status               waiting\n"), "{}", utc(&waiting));
    }

    #[test]
    fn decision_does_not_repeat_the_reason_of_its_call() {
        let decision = |policy: &str, why: &str| {
            json!({"seq": 7, "type": "policy_decision", "status": "blocked",
                "metadata": {"policy": policy, "reason": why}})
        };
        let misfit = "Arguments of 's:t' do not fit: /b: missing (required)";
        for (policy, why, reason, is_repeated) in [
            (
                "rules",
                "Tool 's:t' is not allowed by rule 'r'",
                "Tool 's:t' is not allowed by rule 'r'",
                true,
            ),
            ("input_validation", "at the root: missing properties 'b'", misfit, true),
            ("rules", "Tool 's:t' is not allowed by rule 'r'", "Tool 's:t' not found", false),
            ("rules", "", "", false),
        ] {
            let shown = beside(&[decision(policy, why)], reason, None);
            let why = if is_repeated || why.is_empty() { "" } else { why };
            assert!(shown.contains(why), "{shown}");
            assert_eq!(shown.contains("rule 'r'"), why.contains("rule 'r'"), "{shown}");
            assert!(shown.contains(&format!("rejected by {policy}")), "{shown}");
        }
    }

    #[test]
    fn show_leaves_the_place_in_the_log_to_json() {
        let mut record = record();
        for (name, value) in [
            ("node", json!("n")),
            ("hash", json!("ab")),
            ("source", json!("cli")),
            ("response_truncated", json!(false)),
            ("response_bytes", json!(0)),
            ("overhead_us", json!(304)),
        ] {
            record[name] = value;
        }
        let labels = |record: &Value| {
            let shown = utc(record);
            let labels = shown.lines().filter(|line| !line.starts_with(' '));
            labels.map(|line| line.split("  ").next().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let expected = [
            "status",
            "tool",
            "type",
            "principal",
            "intent",
            "took",
            "began",
            "stored",
            "number",
            "id",
            "metadata",
            "source",
        ];
        assert_eq!(labels(&record), expected);
        assert!(utc(&record).contains(" 12ms, of which 0.3ms in mcpproxy\n"), "{}", utc(&record));
        record["response_truncated"] = true.into();
        assert!(labels(&record).contains(&"response truncated".to_owned()));
        record["overhead_us"] = 12304.into();
        assert!(utc(&record).contains(" 12ms\n"), "{}", utc(&record));
    }

    #[test]
    fn show_replaces_base64_data_by_its_size() {
        let data = "iVBORw0KGgo/+AAAA".repeat(100);
        let image =
            |data: &str| format!(r#"{{"type":"image","data": "{data}","mimeType":"image/png"}}"#);
        let text = format!(r#"{{"type":"text","text":"\"data\":\"{data}\""}}"#);
        let response = |data: &str| format!(r#"{{"content":[{text},{}]}}"#, image(data));
        let placeholder = "[1700 bytes of base64]";
        assert_eq!(without_base64(&response(&data)), response(placeholder));
        let blob = format!(r#"{{"contents":[{{"uri":"x:y","blob":"{data}"#);
        let expected = r#"{"contents":[{"uri":"x:y","blob":"[base64, cut after 1700 bytes]"#;
        assert_eq!(without_base64(&blob), expected);
        for unchanged in [response("short"), response(&"two words ".repeat(20)), text.clone()] {
            assert_eq!(without_base64(&unchanged), unchanged);
        }
        let mut record = record();
        record["response"] = response(&data).into();
        assert!(utc(&record).contains(placeholder));
    }

    #[test]
    fn agent_text_cannot_forge_fields() {
        let mut record = record();
        let forged = "clean up\nstatus               blocked\nid x";
        record["intent"]["reason"] = forged.into();
        record["arguments"] = serde_json::json!({forged: forged, "list": [forged]});
        record["error_message"] = forged.into();
        for width in [None, Some(40), Some(80)] {
            let times = Times::new(Some(TimeStyle::Utc), false);
            let shown = render(&serde_json::json!({"activity": record}), &[], &times, width);
            for (field, count) in [("status ", 1), ("id ", 1)] {
                let lines = shown.lines().filter(|line| line.starts_with(field));
                assert_eq!(lines.count(), count, "{field} at {width:?}:\n{shown}");
            }
        }
        let decision = serde_json::json!({"seq": 7, "type": "policy_decision", "status": "blocked",
            "metadata": {"policy": "rules", "reason": forged}});
        assert_eq!(beside(&[decision], "", None).lines().count(), 1);
    }

    #[test]
    fn times_follow_the_flag_and_payload_times_are_unchanged() {
        let mut record = record();
        record["metadata"]["until"] = "2026-01-02T03:09:05Z".into();
        record["arguments"] = serde_json::json!({"until": "2026-01-02T03:09:05Z"});
        let shown = utc(&serde_json::json!({"activity": record}));
        assert!(shown.contains("began                2026-01-02T03:04:05.678Z\n"), "{shown}");
        assert!(shown.contains("  until              2026-01-02T03:09:05.000Z\n"), "{shown}");
        assert!(shown.contains("  until              2026-01-02T03:09:05Z\n"), "{shown}");
        let relative = Times::new(Some(TimeStyle::Relative), false);
        let shown = render(&serde_json::json!({"activity": record}), &[], &relative, None);
        assert!(!shown.contains("2026-01-02T03:04"), "{shown}");
    }
}
