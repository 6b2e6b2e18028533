//! `mcpproxy activity …`: what went through and what was decided, for people.

mod export;
mod lines;
mod resume;
mod summary;
mod verify;
mod watch;

use std::borrow::Cow;
use std::fmt::Write as _;

use jiff::Timestamp;
use serde_json::Value;

use super::args::{Activity, ActivityList, Filters, Format, Global};
use super::backend::{self, Backend, Needs, target};
use super::failure::Failure;
use super::output::{Output, cell, clean, list, text};
use super::{pages, parse};
use crate::activity::Id;

/// The columns of `activity list`. The time is when the record was stored, which is the order of
/// the list, whatever the clock did; in UTC, where no hour comes twice. When a call began is in
/// `activity show`.
const COLUMNS: [&str; 8] =
    ["ID", "TIME (UTC)", "TYPE", "SERVER", "TOOL", "INTENT", "STATUS", "DURATION"];

/// Terminals narrower than this get two lines for a record, so that no id is broken.
const WIDE: u16 = 110;

/// Whether the intent column shows icons (FR-034).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Intents {
    Icons,
    Words,
}

impl Intents {
    /// Icons are for people.
    fn on(output: &Output, no_icons: bool) -> Self {
        match output.terminal && !no_icons {
            true => Self::Icons,
            false => Self::Words,
        }
    }
}

/// Answers a question to the log.
pub(super) fn run(activity: &Activity, global: &Global, output: &Output) -> Result<(), Failure> {
    let ask = Needs::Activity;
    match activity {
        Activity::List(flags) => {
            backend::with(global, ask, async |backend| list_some(flags, backend, output).await)
        }
        Activity::Show { id } => backend::with(global, ask, async |backend| {
            let record = backend.get(&target(&["activity", id], &[])).await?;
            output.print(record.json()?, show)
        }),
        Activity::Summary { period } => backend::with(global, ask, async |backend| {
            let query = [("period", Some(period.as_str()))];
            let summary = backend.get(&target(&["activity", "summary"], &query)).await?;
            output.print(summary.json()?, summary::draw)
        }),
        Activity::Export(flags) => {
            backend::with(global, ask, async |backend| export::run(flags, backend, output).await)
        }
        Activity::Watch { no_icons } => {
            let intents = Intents::on(output, *no_icons);
            backend::with(global, Needs::Running, async |backend| {
                watch::run(backend, output, intents).await
            })
        }
        Activity::Verify => verify::run(global, output),
    }
}

async fn list_some(
    flags: &ActivityList,
    backend: &Backend,
    output: &Output,
) -> Result<(), Failure> {
    let (since, until) = times(&flags.filters)?;
    let mut query = filters(&flags.filters, since.as_deref(), until.as_deref());
    match output.format {
        // No column of the table shows a payload.
        Format::Table => query.push(("exclude_payloads", Some("true"))),
        Format::Json | Format::Yaml => {}
    }
    let found = pages::all(backend, "activity", &query, flags.limit).await?;
    let intents = Intents::on(output, flags.no_icons);
    output.print(&found, |found| table(found, output, intents))
}

/// `--since` and `--until` as RFC 3339.
fn times(flags: &Filters) -> Result<(Option<String>, Option<String>), Failure> {
    let now = Timestamp::now();
    let moment = |flag, time: &Option<String>| {
        let time = time.as_deref().map(|time| parse::moment(flag, time, now));
        time.transpose().map_err(Failure::usage)
    };
    Ok((moment("--since", &flags.since)?, moment("--until", &flags.until)?))
}

fn filters<'a>(
    flags: &'a Filters,
    since: Option<&'a str>,
    until: Option<&'a str>,
) -> Vec<(&'static str, Option<&'a str>)> {
    vec![
        ("type", flags.kind.as_deref()),
        ("server", flags.server.as_deref()),
        ("tool", flags.tool.as_deref()),
        ("status", flags.status.as_deref()),
        ("intent_type", flags.intent_type.as_deref()),
        ("session_id", flags.session.as_deref()),
        ("request_id", flags.request_id.as_deref()),
        ("principal", flags.principal.as_deref()),
        ("start_time", since),
        ("end_time", until),
    ]
}

fn table(found: &Value, output: &Output, intents: Intents) -> String {
    let records = list(found, "/activities");
    if records.is_empty() {
        return "No activity found. Filters combine; drop one to see more.".to_owned();
    }
    let rows = records.iter().map(|record| row(record, intents));
    let mut table = match output.width().is_some_and(|width| width < WIDE) {
        true => {
            let header = stacked(&COLUMNS.map(str::to_owned));
            let header: Vec<&str> = header.iter().map(String::as_str).collect();
            output.table(&header, rows.map(|row| stacked(&row)), &[0, 3, 4, 5])
        }
        false => output.table(&COLUMNS, rows, &[0, 1, 5, 6, 7]),
    };
    if found.get("next_cursor").is_some() {
        let _ = writeln!(table, "({} shown, there are more: -n shows more)", records.len());
    }
    table
}

/// One record's cells, in the order of [`COLUMNS`].
pub(super) fn row(record: &Value, intents: Intents) -> Vec<String> {
    vec![
        cell(&text(record, "/id")),
        stored(record).as_ref().map(moment).unwrap_or_default(),
        cell(&text(record, "/type")),
        cell(&text(record, "/server_name")),
        cell(&text(record, "/tool_name")),
        cell(&intent(&text(record, "/intent/operation_type"), intents)),
        cell(&text(record, "/status")),
        taken(record),
    ]
}

/// The cells of [`COLUMNS`] in two lines: the time below the id, the tool below its server.
fn stacked(cells: &[String]) -> Vec<String> {
    match cells {
        [id, time, kind, server, tool, rest @ ..] => {
            let kind = kind.replacen('_', "_\n", 1);
            let two = [format!("{id}\n{time}"), kind, format!("{server}\n{tool}")];
            two.into_iter().chain(rest.iter().cloned()).collect()
        }
        other => other.to_vec(),
    }
}

/// The operation type with its icon (FR-034); words nobody knows are shown as they were stated.
fn intent(operation: &str, intents: Intents) -> Cow<'_, str> {
    match (operation, intents) {
        ("read", Intents::Icons) => "📖 read".into(),
        ("write", Intents::Icons) => "✏️ write".into(),
        ("destructive", Intents::Icons) => "🗑 destr".into(),
        ("destructive", Intents::Words) => "destr".into(),
        (other, Intents::Icons | Intents::Words) => other.into(),
    }
}

/// When a record was stored: its id says so.
fn stored(record: &Value) -> Option<Timestamp> {
    let id = Id::parse(&text(record, "/id"))?;
    Timestamp::from_millisecond(i64::try_from(id.time_ms()).ok()?).ok()
}

/// Month to second in UTC: retention makes the year known.
fn moment(time: &Timestamp) -> String {
    time.strftime("%m-%d %H:%M:%S").to_string()
}

/// The same of a timestamp in JSON.
fn time(timestamp: &str) -> String {
    timestamp.parse().as_ref().map_or_else(|_| cell(timestamp), moment)
}

/// How long it took; what takes no time, like a decision, shows none.
fn taken(record: &Value) -> String {
    let ms = record.pointer("/duration_ms").and_then(Value::as_f64);
    ms.filter(|ms| *ms > 0.0).map(duration).unwrap_or_default()
}

fn duration(ms: f64) -> String {
    match ms {
        ms if ms < 10.0 => format!("{ms:.1}ms"),
        ms if ms < 1000.0 => format!("{ms:.0}ms"),
        ms => format!("{:.1}s", ms / 1000.0),
    }
}

/// What of a record is shown first, in this order; the rest follows.
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
fn show(data: &Value) -> String {
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
    use super::*;

    fn record() -> Value {
        serde_json::json!({
            "id": "01KAJ2Z8Q4T5V6W7X8Y9Z0A1B2", "seq": 1, "type": "tool_call",
            "server_name": "github", "tool_name": "delete_repo", "status": "success",
            "error_message": "", "duration_ms": 12.304, "timestamp": "2026-01-02T03:04:05.678Z",
            "intent": {"operation_type": "destructive", "reason": "clean up"},
            "metadata": {"tool_variant": "call_tool_destructive"},
        })
    }

    #[test]
    fn fr_034_a_row_carries_the_operation_type() {
        let cells = row(&record(), Intents::Icons);
        assert_eq!(cells.len(), COLUMNS.len());
        assert_eq!(cells[1], "11-21 02:12:56");
        assert_eq!(cells[5], "🗑 destr");
        assert_eq!(cells[7], "12ms");
        assert_eq!(row(&record(), Intents::Words)[5], "destr");
        for (word, icon) in [("read", "📖 read"), ("write", "✏️ write"), ("odd", "odd")] {
            assert_eq!(intent(word, Intents::Icons), icon);
            assert_eq!(intent(word, Intents::Words), word);
        }
    }

    #[test]
    fn a_narrow_terminal_gets_whole_ids_and_words() {
        let header = stacked(&COLUMNS.map(str::to_owned));
        let header: Vec<&str> = header.iter().map(String::as_str).collect();
        let rows = vec![stacked(&row(&record(), Intents::Words))];
        let drawn = crate::cli::output::draw(&header, rows, &[0, 3, 4, 5], Some(80));
        assert!(drawn.lines().all(|line| line.chars().count() <= 80), "{drawn}");
        for whole in ["01KAJ2Z8Q4T5V6W7X8Y9Z0A1B2", "success", "DURATION", "delete_repo"] {
            assert!(drawn.contains(whole), "{whole}\n{drawn}");
        }
    }

    #[test]
    fn fr_036_show_has_the_whole_intent() {
        let shown = show(&serde_json::json!({"activity": record()}));
        assert!(shown.starts_with("id "), "{shown}");
        for part in ["operation type", "destructive", "clean up", "call_tool_destructive"] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        assert!(!shown.contains("error message"), "{shown}");
    }

    #[test]
    fn durations() {
        for (ms, shown) in [(0.41, "0.4ms"), (12.3, "12ms"), (1500.0, "1.5s")] {
            assert_eq!(duration(ms), shown);
        }
    }
}
