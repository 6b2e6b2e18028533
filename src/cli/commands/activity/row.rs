//! A record as a row: its columns and cells, as `list`, `watch` and the demo show them.

use std::borrow::Cow;

use jiff::Timestamp;
use serde_json::Value;

use super::reason::reason;
use crate::activity::Id;
use crate::cli::colours::{FAINT, of_state};
use crate::cli::json_pointer::{list, text};
use crate::cli::output::Output;
use crate::cli::table::{Cell, Column, Fit, cell};
use crate::cli::times::{TimeStyle, Times};

/// Whether the intent column shows icons (FR-034).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli::commands) enum Intents {
    /// For terminals.
    Icons,
    /// For pipes, and where `--no-icons` asks for it.
    Words,
}

/// Who reads the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reader {
    /// Somebody at a screen of so many columns: ids are the numbers of the records.
    Person,
    /// What reads a pipe: ids are whole, and no cell depends on another.
    Program,
}

/// How rows are shown.
#[derive(Clone, Debug)]
pub(in crate::cli::commands) struct RowStyle {
    intents: Intents,
    times: Times,
    reader: Reader,
}

impl RowStyle {
    /// Icons where people look at the output and have not refused them.
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

    /// Words, whole ids, and times in UTC.
    pub(in crate::cli::commands) fn plain() -> Self {
        let times = Times::new(Some(TimeStyle::Utc), false);
        Self { intents: Intents::Words, times, reader: Reader::Program }
    }

    /// The columns of `activity list`. The time is when the record was stored, which is the order of the list,
    /// whatever the clock did. When a call began is in `activity show`.
    pub(super) fn columns(&self) -> Vec<Column> {
        let time = Column::new(self.times.header("AGE", "TIME"), Fit::Rank(3));
        let mut columns = Column::all([
            ("ID", Fit::Whole),
            ("TYPE", Fit::Rank(6)),
            ("SERVER", Fit::Rank(4)),
            ("TOOL", Fit::Rank(1)),
            ("INTENT", Fit::Rank(7)),
            ("STATUS", Fit::Whole),
            ("DURATION", Fit::Rank(8)),
            ("REASON", Fit::Free),
        ]);
        columns.insert(1, time);
        columns
    }

    /// One record's cells, in the order of [`RowStyle::columns`]; `decisions` are those about it that are not shown as
    /// rows of their own.
    pub(in crate::cli::commands) fn row(&self, record: &Value, decisions: &[&Value]) -> Vec<Cell> {
        let status = text(record, "/status");
        let tool = text(record, "/tool_name");
        vec![
            match self.reader {
                Reader::Person => cell(&text(record, "/seq")).into(),
                Reader::Program => cell(&text(record, "/id")).into(),
            },
            stored(record).map(|time| self.times.show(time)).unwrap_or_default().into(),
            cell(&text(record, "/type")).into(),
            cell(&text(record, "/server_name")).into(),
            match (tool.is_empty(), self.reader) {
                (true, Reader::Person) => {
                    Cell::styled(format!("({})", cell(&text(record, "/type"))), FAINT)
                }
                (_, Reader::Person | Reader::Program) => cell(&tool).into(),
            },
            self.intent(&text(record, "/intent/operation_type")).into(),
            Cell::styled(cell(&status), of_state(&status)),
            taken(record).into(),
            cell(&self.reason(record, decisions)).into(),
        ]
    }

    /// Why it ended so; to people, of what no tool is named, about which server: its column is among the first that there
    /// is no room for.
    fn reason(&self, record: &Value, decisions: &[&Value]) -> String {
        let (server, reason) = (text(record, "/server_name"), reason(record, decisions));
        match self.reader {
            Reader::Person if text(record, "/tool_name").is_empty() && !server.is_empty() => {
                format!("{server}: {reason}").trim_end_matches([':', ' ']).to_owned()
            }
            Reader::Person | Reader::Program => reason,
        }
    }

    /// The operation type with its icon (FR-034); words nobody knows are shown as they were stated.
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

/// The records with the decisions about them, which are no rows of their own where what they decided is one.
pub(in crate::cli::commands) fn folded(found: &Value) -> Vec<(&Value, Vec<&Value>)> {
    let records = list(found, "/activities");
    let is_decision = |record: &Value| text(record, "/type") == "policy_decision";
    let ids: std::collections::HashSet<_> =
        records.iter().filter(|it| !is_decision(it)).map(|it| text(it, "/id")).collect();
    let mut about = std::collections::HashMap::<_, Vec<&Value>>::new();
    let mut rows = Vec::with_capacity(records.len());
    for record in records {
        let parent = text(record, "/parent_id");
        match is_decision(record) && ids.contains(&parent) {
            true => about.entry(parent).or_default().push(record),
            false => rows.push(record),
        }
    }
    let mut decisions = |record| about.remove(&text(record, "/id")).unwrap_or_default();
    rows.into_iter().map(|record| (record, decisions(record))).collect()
}

/// When a record was stored: its id says so.
pub(super) fn stored(record: &Value) -> Option<Timestamp> {
    let id = Id::parse(&text(record, "/id"))?;
    Timestamp::from_millisecond(i64::try_from(id.time_ms()).ok()?).ok()
}

/// How long it took; what takes no time, like a decision, shows none.
fn taken(record: &Value) -> String {
    let ms = record.pointer("/duration_ms").and_then(Value::as_f64);
    ms.filter(|ms| *ms > 0.0).map(duration).unwrap_or_default()
}

/// Milliseconds, rounded to what people read.
pub(super) fn duration(ms: f64) -> String {
    match ms {
        ms if ms < 0.095 => format!("{:.0}µs", ms * 1000.0),
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

    fn styled(intents: Intents, reader: Reader) -> RowStyle {
        RowStyle { intents, reader, ..RowStyle::plain() }
    }

    fn texts(style: &RowStyle, record: &Value, decisions: &[&Value]) -> Vec<String> {
        style.row(record, decisions).into_iter().map(|cell| cell.text).collect()
    }

    #[test]
    fn fr_034_a_row_carries_the_operation_type() {
        let people = styled(Intents::Icons, Reader::Person);
        let cells = texts(&people, &record(), &[]);
        assert_eq!(cells.len(), people.columns().len());
        assert_eq!(cells[..2], ["1", "11-21 02:12:56"]);
        assert_eq!((&*cells[5], &*cells[7], &*cells[8]), ("🗑 destr", "12ms", ""));
        let plain = texts(&RowStyle::plain(), &record(), &[]);
        assert_eq!((&*plain[0], &*plain[5]), ("01KAJ2Z8Q4T5V6W7X8Y9Z0A1B2", "destr"));
        let words = styled(Intents::Words, Reader::Person);
        for (word, icon) in [("read", "📖 read"), ("write", "✏️ write"), ("odd", "odd")] {
            assert_eq!(people.intent(word), icon);
            assert_eq!(words.intent(word), word);
        }
    }

    #[test]
    fn what_is_no_call_says_what_it_is_to_people() {
        let start =
            serde_json::json!({"id": "x", "seq": 3, "type": "system_start", "tool_name": ""});
        assert_eq!(
            texts(&styled(Intents::Words, Reader::Person), &start, &[])[4],
            "(system_start)"
        );
        assert_eq!(texts(&RowStyle::plain(), &start, &[])[4], "");
    }

    #[test]
    fn what_is_about_a_server_names_it() {
        let change =
            serde_json::json!({"id": "x", "type": "server_change", "server_name": "files"});
        let cells = texts(&styled(Intents::Words, Reader::Person), &change, &[]);
        assert_eq!((&*cells[4], &*cells[8]), ("(server_change)", "files"));
    }

    #[test]
    fn a_refusal_and_its_decision_are_one_row_with_the_reason() {
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
    fn durations() {
        for (ms, shown) in [(0.041, "41µs"), (0.41, "0.4ms"), (12.3, "12ms"), (1500.0, "1.5s")] {
            assert_eq!(duration(ms), shown);
        }
    }
}
