//! Presentation of records: table rows, the full view of `activity show`, and lookup by id, number or `last`.
//!
//! Ids share their first characters (the time) and their last ones (the log), so prefixes do not distinguish records;
//! the number (`seq`) is unique.

use crate::args::Format;
use crate::backend::{Backend, target};
use crate::commands::activity::reason::{reason, reason_for_people};
use crate::completion::did_you_mean;
use crate::error::CommandError;
use crate::format::{TimeStyle, Times, list, text};
use crate::output::{FAINT, Output, Paragraph, of_state, parse};
use crate::table::{Cell, Column, Fit, cell};
use crate::terminal_safe::line;
use jiff::{SignedDuration, Timestamp};
use mcpproxy_activity::Id;
use serde_json::Value;
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

/// Format of the intent column (FR-034).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::commands) enum Intents {
    /// Icons, at a terminal.
    Icons,
    /// Words, in a pipe or with `--no-icons`.
    Words,
}

/// Consumer of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reader {
    /// A person at a terminal: ids are record numbers.
    Person,
    /// A program reading a pipe: ids are complete, and cells are independent of each other.
    Program,
}

/// Presentation of rows.
#[derive(Clone, Debug)]
pub(in crate::commands) struct RowStyle {
    intents: Intents,
    times: Times,
    reader: Reader,
}

impl RowStyle {
    /// Chooses icons at a terminal, unless declined.
    pub(super) fn of(output: &Output, no_icons: bool, times: Option<TimeStyle>) -> Self {
        Self {
            intents: match output.terminal && !no_icons {
                true => Intents::Icons,
                false => Intents::Words,
            },
            times: Times::new(times, output.terminal),
            reader: match output.view.width {
                Some(_) => Reader::Person,
                None => Reader::Program,
            },
        }
    }

    /// Creates a style with words, full ids, and times in UTC.
    pub(in crate::commands) fn plain() -> Self {
        let times = Times::new(Some(TimeStyle::Utc), false);
        Self { intents: Intents::Words, times, reader: Reader::Program }
    }

    /// Like [`RowStyle::plain`], but with the rows of a person at a terminal.
    pub(in crate::commands) fn plain_for_people() -> Self {
        Self { reader: Reader::Person, ..Self::plain() }
    }

    /// Columns of `activity list`. The time is the storage time of the record, which determines the order of the list;
    /// `activity show` has the start of the call. For people the tool includes the server, and a type that all records
    /// share (`has_one_type`) is the first column to be dropped.
    pub(super) fn columns(&self, has_one_type: bool) -> Vec<Column> {
        let time = self.times.header("AGE", "TIME");
        match self.reader {
            Reader::Person => {
                let mut columns = Column::all([
                    ("ID", Fit::Whole),
                    ("TYPE", Fit::Rank(if has_one_type { 9 } else { 6 })),
                    ("TOOL", Fit::Key(1)),
                    ("INTENT", Fit::Key(2)),
                    ("STATUS", Fit::Whole),
                    ("DURATION", Fit::Rank(8)),
                    ("PRINCIPAL", Fit::Key(5)),
                    ("REASON", Fit::Below),
                ]);
                columns.insert(1, Column::new(time, Fit::Key(3)));
                let columns = Column::with_servers(columns, "TOOL");
                Column::with_numbers(columns, &["ID", "DURATION"])
            }
            Reader::Program => {
                let mut columns = Column::all([
                    ("ID", Fit::Whole),
                    ("TYPE", Fit::Rank(6)),
                    ("SERVER", Fit::Rank(4)),
                    ("TOOL", Fit::Rank(1)),
                    ("INTENT", Fit::Rank(2)),
                    ("STATUS", Fit::Whole),
                    ("DURATION", Fit::Rank(8)),
                    ("PRINCIPAL", Fit::Rank(5)),
                    ("REASON", Fit::Free),
                ]);
                columns.insert(1, Column::new(time, Fit::Rank(3)));
                Column::with_numbers(columns, &["DURATION"])
            }
        }
    }

    /// Cells of one record, in the order of [`RowStyle::columns`]. `folded` are the decisions and approvals about the
    /// record that have no rows of their own.
    pub(in crate::commands) fn row(&self, record: &Value, folded: &[&Value]) -> Vec<Cell> {
        let [id, number, kind, server, tool, principal] =
            ["/id", "/seq", "/type", "/server_name", "/tool_name", "/principal"]
                .map(|at| text(record, at));
        // A call by a tool's own name states no intent, so the tool determines the operation.
        let [stated, derived] =
            ["/intent/operation_type", "/metadata/operation"].map(|at| text(record, at));
        let operation = if stated.is_empty() { derived } else { stated };
        let status = status(record);
        let time = Cell::from(stored(record).map(|time| self.times.show(time)).unwrap_or_default());
        let intent: Cell = self.intent(&operation).into();
        let outcome = Cell::styled(cell(&status), of_state(&status));
        let reason: Cell = cell(&self.reason(record, folded)).into();
        match self.reader {
            Reader::Person => {
                let tool = match tool.is_empty() {
                    true => Cell::styled(format!("({})", cell(&kind)), FAINT),
                    false => cell(&full_name(record)).into(),
                };
                vec![
                    cell(&number).into(),
                    time,
                    cell(&kind).into(),
                    tool,
                    intent,
                    outcome,
                    taken(record).into(),
                    cell(&principal).into(),
                    reason,
                ]
            }
            Reader::Program => vec![
                cell(&id).into(),
                time,
                cell(&kind).into(),
                cell(&server).into(),
                cell(&tool).into(),
                intent,
                outcome,
                taken(record).into(),
                cell(&principal).into(),
                reason,
            ],
        }
    }

    /// Reason of the outcome. For people, a row without a tool starts with the server, a tool shown in the row is not
    /// repeated, and a rule or limit that refused the call comes first.
    fn reason(&self, record: &Value, folded: &[&Value]) -> String {
        let [server, tool] = ["/server_name", "/tool_name"].map(|at| text(record, at));
        match self.reader {
            Reader::Program => reason(record, folded),
            Reader::Person if tool.is_empty() && !server.is_empty() => {
                let reason = reason(record, folded);
                format!("{server}: {reason}").trim_end_matches([':', ' ']).to_owned()
            }
            Reader::Person => {
                let names = [full_name(record), tool.into_owned()];
                reason_for_people(record, folded, &names)
            }
        }
    }

    /// Operation type with icon (FR-034); unknown words are shown unchanged.
    fn intent<'a>(&self, operation: &'a str) -> Cow<'a, str> {
        match (operation, self.intents) {
            ("read", Intents::Icons) => "📖 read".into(),
            ("write", Intents::Icons) => "✏️ write".into(),
            ("destructive", Intents::Icons) => "🗑 destr".into(),
            ("destructive", Intents::Words) => "destr".into(),
            (other, Intents::Icons | Intents::Words) => cell(other).into(),
        }
    }
}

/// Status of the record. An approval that was not granted, such as one that still waits, does not count as a success.
fn status(record: &Value) -> Cow<'_, str> {
    let (status, state) = (text(record, "/status"), text(record, "/metadata/state"));
    let is_approval = text(record, "/type") == "approval";
    if is_approval && status == "success" && state != "approved" { state } else { status }
}

/// The tool of a record as `server:tool`; only the tool if the record has no server.
fn full_name(record: &Value) -> String {
    let [server, tool] = ["/server_name", "/tool_name"].map(|at| text(record, at));
    if server.is_empty() { tool.into_owned() } else { format!("{server}:{tool}") }
}

/// Groups decisions and approvals with the calls that they are about, if the calls are in the list, else a request for
/// approval with its answer.
pub(in crate::commands) fn folded(found: &Value) -> Vec<(&Value, Vec<&Value>)> {
    let records = list(found, "/activities");
    let (mut ids, mut approved) = (HashSet::new(), HashMap::new());
    let mut answered = HashMap::new();
    let is_waiting = |record: &Value| text(record, "/metadata/state") == "waiting";
    for record in records {
        match &*text(record, "/type") {
            "approval" if !is_waiting(record) => {
                answered.insert(approval(record), text(record, "/id"));
                continue;
            }
            "policy_decision" | "approval" => continue,
            _ => {}
        }
        ids.insert(text(record, "/id"));
        // If the client was asked for approval, its call ends before the approval does, so the outcome has a row of its
        // own.
        if record.pointer("/metadata/input_required").is_none() {
            approved.insert(approval(record), text(record, "/id"));
        }
    }
    let mut about = HashMap::<_, Vec<&Value>>::new();
    let mut rows = Vec::with_capacity(records.len());
    for record in records {
        let call = match &*text(record, "/type") {
            "policy_decision" => ids.get(&text(record, "/parent_id")).cloned(),
            "approval" => {
                let key = approval(record);
                let answer = || answered.get(&key).filter(|_| is_waiting(record));
                approved.get(&key).or_else(answer).cloned()
            }
            _ => None,
        };
        match call {
            Some(call) => about.entry(call).or_default().push(record),
            None => rows.push(record),
        }
    }
    let mut folded = |record| about.remove(&text(record, "/id")).unwrap_or_default();
    rows.into_iter().map(|record| (record, folded(record))).collect()
}

/// Approval and request of a record. A standing approval covers many calls, but its records are about the first of them.
fn approval(record: &Value) -> (Cow<'_, str>, Cow<'_, str>) {
    (text(record, "/metadata/approval"), text(record, "/request_id"))
}

/// Storage time of a record, taken from its id.
pub(super) fn stored(record: &Value) -> Option<Timestamp> {
    let id = Id::parse(&text(record, "/id"))?;
    Timestamp::from_millisecond(i64::try_from(id.time_ms()).ok()?).ok()
}

/// Duration; empty for records that have no duration, such as decisions.
fn taken(record: &Value) -> String {
    let ms = record.pointer("/duration_ms").and_then(Value::as_f64);
    ms.filter(|ms| *ms > 0.0).map(duration).unwrap_or_default()
}

/// Rounds milliseconds to a readable unit.
pub(super) fn duration(ms: f64) -> String {
    match ms {
        ms if ms < 0.095 => format!("{:.0}µs", ms * 1000.0),
        ms if ms < 10.0 => format!("{ms:.1}ms"),
        ms if ms < 1000.0 => format!("{ms:.0}ms"),
        ms => format!("{:.1}s", ms / 1000.0),
    }
}

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
    Err(CommandError::failed(format!("no record {number}, or no longer retained")))
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

/// Members shown first, in this order.
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

/// Members shown last, in this order, unless they are true.
const AT_END: [&str; 5] = ["response_truncated", "node", "seq", "prev_hash", "hash"];

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
    output.print(record.json()?, |data| render(data, &times, width) + &beside(&related, width))
}

/// Decisions and approvals about a call, or the call that a decision is about.
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
    about(record, backend).await
}

/// Time after a call's end within which its decisions and approvals are stored.
const STORED_WITHIN: SignedDuration = SignedDuration::from_secs(60);

/// Decisions and approvals about a call, oldest first; empty for other records.
pub(super) async fn about(call: &Value, backend: &Backend) -> Result<Vec<Value>, CommandError> {
    let [kind, id, request, session, began, node] =
        ["/type", "/id", "/request_id", "/session_id", "/timestamp", "/node_name"]
            .map(|at| text(call, at));
    if request.is_empty() || matches!(&*kind, "policy_decision" | "approval") {
        return Ok(Vec::new());
    }
    // Other sessions use the same request ids.
    let end = stored(call).and_then(|stored| stored.checked_add(STORED_WITHIN).ok());
    let end = end.map(|end| end.to_string());
    let query = [
        ("type", Some("policy_decision,approval")),
        ("request_id", Some(&*request)),
        ("session_id", Some(&*session).filter(|session| !session.is_empty())),
        // A call's node records all of them, so the other nodes of a fleet are not asked.
        ("node", Some(&*node).filter(|node| !node.is_empty())),
        ("start_time", end.as_ref().map(|_| &*began)),
        ("end_time", end.as_deref()),
        ("limit", Some("100")),
        ("exclude_payloads", Some("true")),
    ];
    let found = backend.get(&target(&["activity"], &query)).await?;
    let found = parse(found.json()?)?;
    let of_call = approval(call);
    let is_about = |record: &&Value| match &*text(record, "/type") {
        "policy_decision" => text(record, "/parent_id") == id,
        _ => !of_call.0.is_empty() && approval(record) == of_call,
    };
    Ok(list(&found, "/activities").iter().filter(is_about).rev().cloned().collect())
}

/// One line per related record.
fn beside(related: &[Value], width: Option<usize>) -> String {
    let mut shown = String::new();
    let value = Paragraph::new(width).indented(LABEL);
    for record in related {
        let [number, kind, status] = ["/seq", "/type", "/status"].map(|at| text(record, at));
        let [policy, why] = ["/metadata/policy", "/metadata/reason"].map(|at| text(record, at));
        let (label, summary) = match &*kind {
            "policy_decision" => ("decision", format!("{status} by {policy}: {why}")),
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

/// Renders a record: one line per field, nested members below their name, untrusted text indented.
pub(super) fn render(data: &Value, times: &Times, width: Option<usize>) -> String {
    let record = data.get("activity").unwrap_or(data);
    let mut shown = String::new();
    let mut record = record.clone();
    if let (Some(time), Some(members)) = (stored(&record), record.as_object_mut()) {
        if let Some(Value::String(began)) = members.remove("timestamp") {
            members.insert("began".to_owned(), times.exact_text(&began).into());
        }
        members.insert("stored".to_owned(), times.exact(time).into());
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
    members.sort_by_key(|(name, value)| {
        let last = position(&AT_END, name).filter(|_| **value != Value::Bool(true));
        (last, position(&FIRST, name).unwrap_or(FIRST.len()))
    });
    let values = Paragraph::new(width).indented(LABEL);
    for (name, value) in members {
        // Hashes are omitted if the terminal is too narrow for one.
        if width.is_none_or(|width| width >= LABEL + HASH) || !HASHES.contains(&name) {
            field(&mut shown, (name, Names::Ours), value, (0, values));
        }
    }
    shown
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

/// Members that are hashes, and the width of one.
const HASHES: [&str; 2] = ["prev_hash", "hash"];
const HASH: usize = 64;

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

fn field(
    shown: &mut String,
    (name, names): (&str, Names),
    value: &Value,
    (depth, values): (usize, Paragraph),
) {
    let words = match names {
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
        Value::String(text) => writeln!(shown, "{}", values.labeled(&label, text)),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            writeln!(shown, "{}", values.labeled(&label, &value.to_string()))
        }
    };
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use serde_json::json;

    pub(in crate::commands::activity) fn record() -> Value {
        serde_json::json!({
            "id": "01KAJ2Z8Q4T5V6W7X8Y9Z0A1B2", "seq": 1, "type": "tool_call",
            "server_name": "github", "tool_name": "delete_repo", "status": "success",
            "error_message": "", "principal": "token:ops", "duration_ms": 12.304, "timestamp": "2026-01-02T03:04:05.678Z",
            "intent": {"operation_type": "destructive", "reason": "clean up"},
            "metadata": {"tool_variant": "call_tool_destructive"},
        })
    }

    fn styled(intents: Intents, reader: Reader) -> RowStyle {
        RowStyle { intents, reader, ..RowStyle::plain() }
    }

    fn texts(style: &RowStyle, record: &Value, decisions: &[&Value]) -> Vec<String> {
        style.row(record, decisions).into_iter().map(|cell| cell.text).collect()
    }

    #[test]
    fn fr_034_row_shows_the_operation_type() {
        let people = styled(Intents::Icons, Reader::Person);
        let cells = texts(&people, &record(), &[]);
        assert_eq!(cells.len(), people.columns(false).len());
        assert_eq!(cells[..2], ["1", "11-21 02:12:56"]);
        let [tool, intent, took, principal] = [3, 4, 6, 7].map(|at| &*cells[at]);
        assert_eq!((tool, intent), ("github:delete_repo", "🗑 destr"));
        assert_eq!((took, principal), ("12ms", "token:ops"));
        let plain = texts(&RowStyle::plain(), &record(), &[]);
        assert_eq!((&*plain[0], &*plain[5]), ("01KAJ2Z8Q4T5V6W7X8Y9Z0A1B2", "destr"));
        let mut direct = record();
        direct["intent"].take();
        direct["metadata"] = json!({"tool_variant": "direct", "operation": "write"});
        assert_eq!(texts(&people, &direct, &[])[4], "✏️ write");
        let words = styled(Intents::Words, Reader::Person);
        for (word, icon) in [("read", "📖 read"), ("write", "✏️ write"), ("odd", "odd")] {
            assert_eq!(people.intent(word), icon);
            assert_eq!(words.intent(word), word);
        }
    }

    #[test]
    fn act_7_show_keeps_names_of_arguments_and_omits_hashes_where_they_do_not_fit() {
        let mut record = record();
        record["arguments"] = json!({"repo_path": "/x", "deep": {"a_b": 1}});
        record["metadata"]["_meta"] = json!({"a_key": 1});
        record["hash"] = json!("5f".repeat(32));
        let times = Times::new(Some(TimeStyle::Utc), false);
        let whole = render(&record, &times, None);
        for row in [
            "  repo_path",
            "    a_b",
            "  _meta",
            "    a_key",
            "  tool variant",
            "server name",
            "hash",
        ] {
            assert!(whole.lines().any(|line| line.starts_with(row)), "{row}: {whole}");
        }
        assert!(!whole.contains("repo path"), "{whole}");
        let narrow = render(&record, &times, Some(80));
        assert!(!narrow.lines().any(|line| line.starts_with("hash")), "{narrow}");
    }

    #[test]
    fn rows_without_tool_show_their_type() {
        let start =
            serde_json::json!({"id": "x", "seq": 3, "type": "system_start", "tool_name": ""});
        assert_eq!(
            texts(&styled(Intents::Words, Reader::Person), &start, &[])[3],
            "(system_start)"
        );
        assert_eq!(texts(&RowStyle::plain(), &start, &[])[4], "");
    }

    #[test]
    fn rows_about_a_server_show_its_name() {
        let change =
            serde_json::json!({"id": "x", "type": "server_change", "server_name": "files"});
        let cells = texts(&styled(Intents::Words, Reader::Person), &change, &[]);
        assert_eq!((&*cells[3], &*cells[8]), ("(server_change)", "files"));
    }

    #[test]
    fn reason_for_people_omits_the_tool_of_its_row() {
        let reasons = |reader, error: &str, decisions: &[&Value]| {
            let mut record = record();
            record["error_message"] = error.into();
            texts(&styled(Intents::Words, reader), &record, decisions).pop().unwrap()
        };
        for (error, shown) in [
            (
                "Tool 'github:delete_repo' is marked destructive by server",
                "is marked destructive by server",
            ),
            ("Tool 'github:delete_repo': approval was denied", "approval was denied"),
            ("Arguments of 'github:delete_repo' do not fit: /a: text", "do not fit: /a: text"),
            ("Tool 'delete_repo' not found", "not found"),
            ("Tool 'github:delete_repos' not found", "Tool 'github:delete_repos' not found"),
            ("Tool 'files:delete_repo' not found", "Tool 'files:delete_repo' not found"),
            ("no such Tool 'github:delete_repo' here", "no such Tool 'github:delete_repo' here"),
        ] {
            assert_eq!(reasons(Reader::Person, error, &[]), shown);
            assert_eq!(reasons(Reader::Program, error, &[]), error, "unchanged for programs");
        }
        // The reason of a related decision is shortened as well, and not repeated.
        let decision = json!({"status": "warning",
            "metadata": {"reason": "Tool 'github:delete_repo' is not marked read-only"}});
        let shown = reasons(Reader::Person, "", &[&decision, &decision]);
        assert_eq!(shown, "warning: is not marked read-only");
        let error = "Tool 'github:delete_repo' is not marked read-only, use call_tool_write";
        let shown = reasons(Reader::Person, error, &[&decision]);
        assert_eq!(shown, "is not marked read-only, use call_tool_write");
    }

    #[test]
    fn reason_for_people_begins_with_the_rule_or_limit() {
        let reasons = |reader, record: &Value, decisions: &[&Value]| {
            texts(&styled(Intents::Words, reader), record, decisions).pop().unwrap()
        };
        let refused = |why: &str| {
            let mut record = record();
            record["status"] = "rejected".into();
            record["error_message"] = why.into();
            record
        };
        let (denial, limit) = (
            "Tool 'github:delete_repo' is not allowed by rule 'no-deletes': ask ann",
            "Too many calls to 'token:ops': limit 60 per minute, retry in 12s",
        );
        let decision = |status: &str, why: &str| json!({"status": status, "metadata": {"policy": "rules", "reason": why}});
        let (blocked, warned) = (
            decision("blocked", denial),
            decision("warning", &format!("{denial}; allowed, because policy.mode is shadow")),
        );
        let mut many = refused(denial);
        many["metadata"]["repeated"] = 9.into();
        for (record, decisions, expected) in [
            (refused(denial), vec![&blocked], "no-deletes (rule): ask ann"),
            (many, vec![&blocked], "no-deletes (rule, 9 times): ask ann"),
            (refused(limit), vec![], "token:ops (limit): 60 per minute, retry in 12s"),
            (
                record(),
                vec![&warned],
                "no-deletes (rule, warning): ask ann; allowed, because policy.mode is shadow",
            ),
        ] {
            assert_eq!(reasons(Reader::Person, &record, &decisions), expected);
            let whole = reasons(Reader::Program, &record, &decisions);
            assert!(whole.contains(denial) || whole == limit, "unchanged for programs: {whole}");
        }
        // The name of a tool contains the words of a refusal.
        let forged = refused("Tool 'x:y is not allowed by rule 'mine': ask bob' not found");
        let shown = reasons(Reader::Person, &forged, &[]);
        assert_eq!(shown, "Tool 'x:y is not allowed by rule 'mine': ask bob' not found");
        // The error of a server contains the words of a refusal.
        let mut error = refused(denial);
        error["status"] = "error".into();
        assert_eq!(
            reasons(Reader::Person, &error, &[]),
            "is not allowed by rule 'no-deletes': ask ann"
        );
    }

    #[test]
    fn refusal_and_decision_share_one_row() {
        let decision = |id: &str, parent: &str, why: &str| {
            serde_json::json!({"id": id, "type": "policy_decision", "parent_id": parent,
                "status": "warning", "metadata": {"reason": why}})
        };
        let call = |id: &str, why: &str| {
            serde_json::json!({"id": id, "type": "tool_call", "status": "rejected",
                "error_message": why, "parent_id": ""})
        };
        let found = serde_json::json!({"activities": [
            decision("4", "3", "not by rule 'no'"), call("3", "Tool 'x': not by rule 'no'"),
            decision("2", "1", "of an older call"),
            decision("6", "5", "odd"), decision("7", "5", "strange"), call("5", ""),
        ]});
        let rows: Vec<_> = folded(&found)
            .into_iter()
            .map(|(record, decisions)| (text(record, "/id"), reason(record, &decisions)))
            .collect();
        let expected = [
            ("3", "Tool 'x': not by rule 'no'"),
            ("2", "of an older call"),
            ("5", "warning: odd; warning: strange"),
        ];
        assert_eq!(rows, expected.map(|(id, why)| (id.into(), why.to_owned())));
    }

    #[test]
    fn approval_and_its_call_share_one_row() {
        let approval = |id: &str, request: &str, state: &str| {
            json!({"id": id, "type": "approval", "request_id": request,
                "metadata": {"approval": "a", "state": state, "by": "token:ann"}})
        };
        let call = |id: &str, request: &str, why: &str| {
            json!({"id": id, "type": "tool_call", "request_id": request, "status": "rejected",
                "error_message": why, "metadata": {"approval": "a"}})
        };
        let denied = "Tool 'x': approval was denied";
        for (first, state, expected) in [
            (denied, "denied", "Tool 'x': approval was denied by token:ann"),
            ("", "approved", "approved by token:ann"),
            ("no such file", "approved", "no such file; approved by token:ann"),
            (
                "Tool 'x': approval timed out after 5m",
                "timed_out",
                "Tool 'x': approval timed out after 5m",
            ),
        ] {
            let decision = json!({"id": "d", "type": "policy_decision", "parent_id": "3",
                "status": "blocked", "metadata": {"reason": first}});
            // A later call of a standing approval, and a call that still waits, have rows of their own.
            let mut records = vec![call("5", "second", ""), approval("w", "other", "waiting")];
            records.extend((state != "approved").then_some(decision));
            records.extend([call("3", "first", first), approval("2", "first", state)]);
            records.push(approval("1", "first", "waiting"));
            let found = json!({"activities": records});
            let rows: Vec<_> = folded(&found)
                .into_iter()
                .map(|(record, folded)| (text(record, "/id"), reason(record, &folded)))
                .collect();
            assert_eq!(rows.len(), 3, "{rows:?}");
            assert_eq!(rows[0], ("5".into(), String::new()), "{rows:?}");
            assert_eq!(rows[1], ("w".into(), "waiting by token:ann".to_owned()), "{rows:?}");
            assert_eq!(rows[2], ("3".into(), expected.to_owned()), "{rows:?}");
        }
    }

    #[test]
    fn call_tells_who_answered_without_the_record_of_its_approval() {
        let call = json!({"id": "3", "type": "tool_call", "request_id": "first", "status": "success",
            "metadata": {"approval": "a", "approval_answer": {"state": "approved", "by": "token:ann"}}});
        let approval = json!({"id": "2", "type": "approval", "request_id": "first",
            "metadata": {"approval": "a", "state": "approved", "by": "token:ann"}});
        for records in [json!([call, approval]), json!([call])] {
            let found = json!({"activities": records});
            let [(record, folded)] = &folded(&found)[..] else { panic!("one row") };
            assert_eq!(reason(record, folded), "approved by token:ann");
        }
    }

    #[test]
    fn request_for_approval_shares_the_row_of_its_answer() {
        let record = |id: &str, request: &str, state: &str| {
            json!({"id": id, "type": "approval", "request_id": request,
                "metadata": {"approval": "a", "state": state, "by": "ann"}})
        };
        let found = json!({"activities": [
            record("4", "8", "waiting"), record("3", "7", "revoked"), record("2", "7", "approved"),
            record("1", "7", "waiting"),
        ]});
        let rows: Vec<_> =
            folded(&found).into_iter().map(|(record, _)| text(record, "/id")).collect();
        assert_eq!(rows, ["4", "3", "2"]);
    }

    #[test]
    fn approval_recorded_after_its_call_has_its_own_row() {
        let found = json!({"activities": [
            {"id": "3", "type": "approval", "request_id": "7", "metadata": {"approval": "a", "state": "timed_out"}},
            {"id": "2", "type": "tool_call", "request_id": "7", "status": "rejected",
                "error_message": "waits for approval a", "metadata": {"approval": "a", "input_required": true}},
        ]});
        let rows: Vec<_> = folded(&found)
            .into_iter()
            .map(|(record, folded)| (text(record, "/id"), reason(record, &folded)))
            .collect();
        let expected = [("3", "timed out"), ("2", "waits for approval a")];
        assert_eq!(rows, expected.map(|(id, why)| (id.into(), why.to_owned())));
    }

    #[test]
    fn durations_are_rounded() {
        for (ms, shown) in [(0.041, "41µs"), (0.41, "0.4ms"), (12.3, "12ms"), (1500.0, "1.5s")] {
            assert_eq!(duration(ms), shown);
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
        render(data, &Times::new(Some(TimeStyle::Utc), false), None)
    }

    #[test]
    fn fr_036_show_contains_the_full_intent() {
        let shown = utc(&serde_json::json!({"activity": record()}));
        assert!(shown.starts_with("id "), "{shown}");
        for part in ["operation type", "destructive", "clean up", "call_tool_destructive"] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        assert!(!shown.contains("error message"), "{shown}");
    }

    #[test]
    fn show_ends_with_the_place_in_the_log() {
        let mut record = record();
        for (name, value) in [
            ("node", json!("n")),
            ("hash", json!("ab")),
            ("source", json!("cli")),
            ("response_truncated", json!(false)),
        ] {
            record[name] = value;
        }
        let labels = |record: &Value| {
            let shown = utc(record);
            let labels = shown.lines().filter(|line| !line.starts_with(' '));
            labels.map(|line| line.split("  ").next().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let all = labels(&record);
        let (facts, last) = all.split_at(all.len() - 4);
        assert_eq!(last, ["response truncated", "node", "seq", "hash"]);
        assert_eq!((&*facts[0], &*facts[facts.len() - 1]), ("id", "source"));
        record["response_truncated"] = true.into();
        let all = labels(&record);
        let at = |label: &str| all.iter().position(|it| it == label);
        assert!(at("response truncated") < at("source"), "{all:?}");
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
            let shown = render(&serde_json::json!({"activity": record}), &times, width);
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
    fn times_follow_the_flag_and_payload_times_are_unchanged() {
        let mut record = record();
        record["metadata"]["until"] = "2026-01-02T03:09:05Z".into();
        record["arguments"] = serde_json::json!({"until": "2026-01-02T03:09:05Z"});
        let shown = utc(&serde_json::json!({"activity": record}));
        assert!(shown.contains("began                2026-01-02T03:04:05.678Z\n"), "{shown}");
        assert!(shown.contains("  until              2026-01-02T03:09:05.000Z\n"), "{shown}");
        assert!(shown.contains("  until              2026-01-02T03:09:05Z\n"), "{shown}");
        let relative = Times::new(Some(TimeStyle::Relative), false);
        let shown = render(&serde_json::json!({"activity": record}), &relative, None);
        assert!(!shown.contains("2026-01-02T03:04"), "{shown}");
    }
}
