//! Rows of records in the tables of `activity list` and `watch`, and the records that share a row.

use crate::commands::activity::reason::{reason, reason_for_people};
use crate::format::{TimeStyle, Times, list, text};
use crate::output::{FAINT, Output, of_state};
use crate::table::{Cell, Column, Fit, cell, reason_cell, whole_cell};
use jiff::Timestamp;
use mcpproxy_activity::Id;
use serde_json::Value;
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

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
    /// Whether there is a column of types. Otherwise the type follows the tool, except in rows of tool calls.
    has_types: bool,
}

/// Minimum width of a table with a column of types, for people.
const MIN_WIDTH_WITH_TYPES: usize = 100;

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
            has_types: output.view.width.is_none_or(|width| width >= MIN_WIDTH_WITH_TYPES),
        }
    }

    /// For people, the time of day alone, since the rows are shown as they are recorded.
    pub(super) fn live(self) -> Self {
        match self.reader {
            Reader::Person => Self { times: self.times.clock(), ..self },
            Reader::Program => self,
        }
    }

    /// Creates a style with words, full ids, and times in UTC.
    pub(in crate::commands) fn plain() -> Self {
        let times = Times::new(Some(TimeStyle::Utc), false);
        Self { intents: Intents::Words, times, reader: Reader::Program, has_types: true }
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
                    ("TYPE", if has_one_type { Fit::Rank(9) } else { Fit::Key(6) }),
                    ("TOOL", Fit::Key(1)),
                    ("INTENT", Fit::Key(2)),
                    ("STATUS", Fit::Whole),
                    ("DURATION", Fit::Rank(8)),
                    ("PRINCIPAL", Fit::Key(5)),
                    ("REASON", Fit::Below),
                ]);
                columns.insert(1, Column::new(time, Fit::Whole));
                columns.retain(|column| self.has_types || column.name() != "TYPE");
                let columns = Column::with_servers(columns, "TOOL");
                let columns = Column::with_repeated(columns, "PRINCIPAL");
                let columns = Column::with_words(columns, "TYPE");
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
        let status = status_of_row(record);
        let time = stored(record).map(|time| match (self.reader, &self.times) {
            (Reader::Program, Times::Zone(..)) => self.times.exact(time),
            (_, _) => self.times.show(time),
        });
        let time = Cell::from(time.unwrap_or_default());
        let intent: Cell = self.intent(&operation).into();
        let outcome = Cell::styled(cell(&status), of_state(&status));
        let reason = self.reason(record, folded);
        match self.reader {
            Reader::Person => {
                let has_type = self.has_types || kind == "tool_call";
                let suffix = if has_type { String::new() } else { format!(" ({})", cell(&kind)) };
                let tool = match (tool.is_empty(), server.is_empty()) {
                    (true, true) => Cell::styled(format!("({})", cell(&kind)), FAINT),
                    (true, false) => Cell::styled(cell(&server) + &suffix, FAINT),
                    (false, _) => (cell(&full_name(record)) + &suffix).into(),
                };
                let mut cells = vec![
                    cell(&number).into(),
                    time,
                    tool,
                    intent,
                    outcome,
                    taken(record).into(),
                    cell(&principal).into(),
                    reason_cell(&reason).into(),
                ];
                if self.has_types {
                    cells.insert(2, cell(&kind).into());
                }
                cells
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
                whole_cell(&reason).into(),
            ],
        }
    }

    /// Reason of the outcome. For people, a tool shown in the row is not repeated, a rule or limit that refused the call
    /// comes first, and the state of an approval is named as such.
    fn reason(&self, record: &Value, folded: &[&Value]) -> String {
        match self.reader {
            Reader::Program => reason(record, folded),
            Reader::Person => {
                let names = [full_name(record), text(record, "/tool_name").into_owned()];
                let reason = reason_for_people(record, folded, &names);
                match &*text(record, "/type") {
                    // Otherwise the text says so.
                    "approval" if !["appro", "denied"].iter().any(|it| reason.starts_with(it)) => {
                        format!("approval: {reason}")
                    }
                    _ => reason,
                }
            }
        }
    }

    /// Operation type with icon (FR-034); unknown words are shown unchanged.
    fn intent<'a>(&self, operation: &'a str) -> Cow<'a, str> {
        match (operation, self.intents) {
            ("read", Intents::Icons) => "📖 read".into(),
            ("write", Intents::Icons) => "✏️ write".into(),
            ("destructive", Intents::Icons) => "🗑 destr".into(),
            // Room for the reason beside the other columns.
            ("destructive", Intents::Words) if self.reader == Reader::Person => "destr".into(),
            (other, Intents::Icons | Intents::Words) => cell(other).into(),
        }
    }
}

/// Status of the record. An approval that was not granted, such as one that still waits, does not count as a success.
pub(super) fn status(record: &Value) -> Cow<'_, str> {
    let (status, state) = (text(record, "/status"), text(record, "/metadata/state"));
    let is_approval = text(record, "/type") == "approval";
    if is_approval && status == "success" && state != "approved" { state } else { status }
}

/// Like [`status`], as rows show it: a decision about a call that was not sent has the status of its call. JSON keeps the
/// status of the decision, `blocked`.
pub(super) fn status_of_row(record: &Value) -> Cow<'_, str> {
    let [kind, policy] = ["/type", "/metadata/policy"].map(|at| text(record, at));
    match status(record) {
        status if kind != "policy_decision" || status != "blocked" => status,
        status if policy == "output_validation" => status,
        _ => "rejected".into(),
    }
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

/// Whether a record of an approval says that a call waits for it.
pub(super) fn is_waiting(record: &Value) -> bool {
    text(record, "/metadata/state") == "waiting"
}

/// Whether the first record is the answer to an approval that the second one, a call, waited for, so that they share a
/// row. If the client was asked for approval, its call ends before the approval does, so the outcome has a row of its own.
pub(super) fn has_answered(answer: &Value, call: &Value) -> bool {
    let is_answer = |record: &Value| text(record, "/type") == "approval" && !is_waiting(record);
    is_answer(answer)
        && text(call, "/type") != "approval"
        && call.pointer("/metadata/input_required").is_none()
        && approval(answer) == approval(call)
}

/// Approval and request of a record. A standing approval covers many calls, but its records are about the first of them.
pub(super) fn approval(record: &Value) -> (Cow<'_, str>, Cow<'_, str>) {
    (text(record, "/metadata/approval"), text(record, "/request_id"))
}

/// Storage time of a record, taken from its id.
pub(super) fn stored(record: &Value) -> Option<Timestamp> {
    let id = Id::parse(&text(record, "/id"))?;
    Timestamp::from_millisecond(i64::try_from(id.time_ms()).ok()?).ok()
}

/// Duration; empty for records that have no duration, such as decisions.
pub(super) fn taken(record: &Value) -> String {
    let ms = record.pointer("/duration_ms").and_then(Value::as_f64);
    ms.filter(|ms| *ms > 0.0).map(duration).unwrap_or_default()
}

/// Rounds milliseconds to a readable unit.
pub(in crate::commands) fn duration(ms: f64) -> String {
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
        assert_eq!((&*plain[0], &*plain[5]), ("01KAJ2Z8Q4T5V6W7X8Y9Z0A1B2", "destructive"));
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
    fn reason_is_complete_for_programs() {
        let mut record = record();
        let long = "word ".repeat(100);
        record["error_message"] = long.trim().into();
        let reason = |reader| texts(&styled(Intents::Words, reader), &record, &[]).pop().unwrap();
        assert_eq!(reason(Reader::Program), long.trim());
        assert!(reason(Reader::Person).ends_with("word…"), "{}", reason(Reader::Person));
    }

    #[test]
    fn rows_about_a_server_show_its_name() {
        let change =
            serde_json::json!({"id": "x", "type": "server_change", "server_name": "files"});
        let cells = texts(&styled(Intents::Words, Reader::Person), &change, &[]);
        assert_eq!((&*cells[3], &*cells[8]), ("files", ""));
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
            (
                "Arguments of 'github:delete_repo' do not fit: /a: text",
                "arguments do not fit: /a: text",
            ),
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
        assert_eq!(shown, "warning: the tool is not marked read-only");
        let unmarked = "is not marked read-only and was called by call_tool_read, call_tool_write \
                        is recommended";
        let decision_of =
            |reason: String| json!({"status": "warning", "metadata": {"reason": reason}});
        let whole = decision_of(format!("Tool 'github:delete_repo' {unmarked}"));
        let shown = reasons(Reader::Person, "", &[&whole]);
        assert_eq!(shown, "warning: not marked read-only");
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
}
