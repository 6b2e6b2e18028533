//! A record as a row: its columns and cells, as `list`, `watch` and the demo show them.

use std::borrow::Cow;

use jiff::Timestamp;
use serde_json::Value;

use crate::activity::Id;
use crate::cli::json_pointer::text;
use crate::cli::output::Output;
use crate::cli::table::cell;

/// The columns of `activity list`. The time is when the record was stored, which is the order of
/// the list, whatever the clock did; in UTC, where no hour comes twice. When a call began is in
/// `activity show`.
pub(super) const COLUMNS: [&str; 8] =
    ["ID", "TIME (UTC)", "TYPE", "SERVER", "TOOL", "INTENT", "STATUS", "DURATION"];

/// Whether the intent column shows icons (FR-034).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli::commands) enum Intents {
    /// For terminals.
    Icons,
    /// For pipes, and where `--no-icons` asks for it.
    Words,
}

impl Intents {
    /// Icons where people look at the output and have not refused them.
    pub(super) fn of(output: &Output, no_icons: bool) -> Self {
        match output.terminal && !no_icons {
            true => Self::Icons,
            false => Self::Words,
        }
    }
}

/// One record's cells, in the order of [`COLUMNS`].
pub(in crate::cli::commands) fn row(record: &Value, intents: Intents) -> Vec<String> {
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
pub(super) fn stored(record: &Value) -> Option<Timestamp> {
    let id = Id::parse(&text(record, "/id"))?;
    Timestamp::from_millisecond(i64::try_from(id.time_ms()).ok()?).ok()
}

/// Month to second in UTC: retention makes the year known.
fn moment(time: &Timestamp) -> String {
    time.strftime("%m-%d %H:%M:%S").to_string()
}

/// The same of a timestamp in JSON.
pub(super) fn time(timestamp: &str) -> String {
    timestamp.parse().as_ref().map_or_else(|_| cell(timestamp), moment)
}

/// How long it took; what takes no time, like a decision, shows none.
fn taken(record: &Value) -> String {
    let ms = record.pointer("/duration_ms").and_then(Value::as_f64);
    ms.filter(|ms| *ms > 0.0).map(duration).unwrap_or_default()
}

/// Milliseconds, rounded to what people read.
pub(super) fn duration(ms: f64) -> String {
    match ms {
        ms if ms < 10.0 => format!("{ms:.1}ms"),
        ms if ms < 1000.0 => format!("{ms:.0}ms"),
        ms => format!("{:.1}s", ms / 1000.0),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn record() -> Value {
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
    fn durations() {
        for (ms, shown) in [(0.41, "0.4ms"), (12.3, "12ms"), (1500.0, "1.5s")] {
            assert_eq!(duration(ms), shown);
        }
    }
}
