//! `mcpproxy activity …`: dispatch, and the commands `list`, `summary` and `watch`.
//!
//! `watch` resumes an interrupted stream after the last received record, so that no record is skipped.

use crate::args::{ActivityCommand, ActivityList, Format, Global, RecordFilters};
use crate::backend::{Backend, Chunks, Needs, target};
pub(super) use crate::commands::activity::export::records_bar_of;
use crate::commands::activity::export::{Retries, filters, minimum_duration, times};
use crate::commands::activity::nothing_found::{nothing_found, wrong_name};
pub(super) use crate::commands::activity::row::{RowStyle, duration, folded};
use crate::commands::activity::row::{has_answered, status_of_row};
use crate::commands::activity::status_of_rows::StatusOfRows;
pub(super) use crate::commands::activity::verify::{salvage, unsound};
use crate::error::{CommandError, Exit};
use crate::format::{TimeStyle, Times, counted, list, text};
use crate::output::{Output, Paragraph};
use crate::table::{Cell, CellWidths, Column, PROGRAM_CHARS, TableLayout};
use crate::terminal_safe::line;
use crate::{backend, logging, output};
use futures_util::TryStreamExt;
use mcpproxy_protocol::wire::sse::{Decoder, Item};
use mcpproxy_server as server;
use serde_json::Value;
use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt::Write as _;
use std::time::Duration;

mod export;
mod nothing_found;
mod reason;
mod row;
mod show;
mod status_of_rows;
mod verify;

/// Runs an activity command.
pub(super) fn run(
    command: &ActivityCommand,
    global: &Global,
    output: &Output,
) -> Result<(), CommandError> {
    let needs = Needs::Activity;
    if let Some(folder) = global.data_dir.as_ref().filter(|folder| !folder.exists()) {
        let text = format!("data directory {} does not exist", folder.display());
        return Err(CommandError::new(Exit::Config, text));
    }
    match command {
        ActivityCommand::List(flags) => {
            let list = async |backend: &Backend| list_records(flags, backend, global, output).await;
            backend::with(global, needs, list)
        }
        ActivityCommand::Show { id, time } => backend::with(global, needs, async |backend| {
            show::show(id, *time, backend, output).await
        }),
        ActivityCommand::Summary { period } => backend::with(global, needs, async |backend| {
            let query = [("period", Some(period.as_str()))];
            let summary = backend.get(&target(&["activity", "summary"], &query)).await?;
            output.print(summary.json()?, |it| draw_summary(it, output.view.width))
        }),
        ActivityCommand::Export(flags) => {
            let format = flags.format().map_err(CommandError::usage)?;
            backend::with(global, needs, async |backend| {
                let records = export::run(flags, format, backend, output).await?;
                if records == Some(0) {
                    let text = flags.text.as_deref();
                    let message = nothing_found(&flags.filters, text, backend, global).await;
                    logging::print_line(message);
                }
                Ok(())
            })
        }
        ActivityCommand::Watch { filters, no_icons, time, node } => {
            backend::with(global, Needs::Running, async |backend| {
                let (style, node) = ((*no_icons, *time), node.as_deref());
                if let Some(hint) = wrong_name(filters, backend, global).await {
                    logging::print_line(format_args!("warning: {hint}"));
                }
                watch(backend, output, filters, style, node).await
            })
        }
        ActivityCommand::Verify(flags) => match (&flags.proof, &flags.store) {
            (Some(file), _) => verify::check(file, flags, output),
            (None, Some(store)) => verify::verify(store, flags, output),
            (None, None) if flags.keys.is_some() => {
                Err(CommandError::usage("--keys is for --store or a proof"))
            }
            (None, None) => verify::run(global, output),
        },
        ActivityCommand::Prove(flags) => verify::write(flags, global, output),
    }
}

/// Prints the records that match the flags.
pub(super) async fn list_records(
    flags: &ActivityList,
    backend: &Backend,
    global: &Global,
    output: &Output,
) -> Result<(), CommandError> {
    let (since, until) = times(&flags.filters)?;
    let mut query = filters(&flags.filters, since.as_deref(), until.as_deref());
    let slower_than = minimum_duration(flags.slower_than);
    query.extend([("text", flags.text.as_deref()), ("min_duration_ms", slower_than.as_deref())]);
    match output.format {
        // The table does not have a payload column.
        Format::Table => query.push(("exclude_payloads", Some("true"))),
        Format::Json | Format::Yaml => {}
    }
    let style = RowStyle::of(output, flags.no_icons, flags.time);
    let by_status = StatusOfRows::of(&flags.filters.records);
    let found = match output.format {
        Format::Table => {
            let found = rows(flags.limit, async |records| {
                let found = backend::fetch_all(backend, "activity", &query, records).await?;
                match by_status {
                    Some(by_status) => by_status.of_calls(&found, backend).await,
                    None => Ok(found),
                }
            })
            .await?;
            let may_lack = |(key, value): &(&str, Option<&str>)| {
                value.is_some()
                    && ["type", "status", "intent_type", "text", "min_duration_ms"].contains(key)
            };
            match query.iter().any(may_lack) {
                true => with_related(&found, flags.limit, backend).await?,
                false => found,
            }
        }
        Format::Json | Format::Yaml => {
            backend::fetch_all(backend, "activity", &query, flags.limit).await?
        }
    };
    let filtered = query.iter().any(|(key, value)| *key != "exclude_payloads" && value.is_some());
    let none = match &flags.filters {
        _ if !filtered => "No activity is recorded yet.".to_owned(),
        _ if !list(&output::parse(&found)?, "/activities").is_empty() => String::new(),
        filters => nothing_found(filters, flags.text.as_deref(), backend, global).await,
    };
    let shape = (flags.limit, slower_than.is_some());
    output.print(&found, |found| table(found, shape, &none, output, &style))
}

/// Maximum number of records fetched for the rows of a table.
const MAX_RECORDS: u32 = 20_000;

/// Number of records fetched beyond the limit, because the approval of a call precedes the call.
const MARGIN: u32 = 10;

/// Fetches records until they make `limit` rows. Decisions and approvals about a listed call have no rows of their own.
async fn rows(
    limit: u32,
    fetch: impl AsyncFn(u32) -> Result<String, CommandError>,
) -> Result<String, CommandError> {
    let mut records = limit.saturating_add(MARGIN);
    loop {
        let found = fetch(records).await?;
        let parsed = output::parse(&found)?;
        let is_all = parsed.get("next_cursor").is_none() || records >= MAX_RECORDS;
        // If the last record is a decision, the next record is the call that it is about.
        let last = list(&parsed, "/activities").last();
        let ends_with_call = last.is_some_and(|last| text(last, "/type") != "policy_decision");
        if is_all || (ends_with_call && folded(&parsed).len() >= limit as usize) {
            return Ok(found);
        }
        records = records.saturating_mul(2).min(MAX_RECORDS);
    }
}

/// Adds the decisions and approvals about the first `limit` rows that the filters excluded, so that the reason of a row depends
/// neither on the filters nor on the limit.
async fn with_related(found: &str, limit: u32, backend: &Backend) -> Result<String, CommandError> {
    let mut found = output::parse(found)?;
    let records = list(&found, "/activities");
    let mut listed: HashSet<_> = records.iter().map(|it| text(it, "/id").into_owned()).collect();
    let mut related = Vec::new();
    for (record, _) in folded(&found).into_iter().take(limit as usize) {
        for about in show::about(record, backend).await? {
            if listed.insert(text(&about, "/id").into_owned()) {
                related.push(about);
            }
        }
    }
    if let Some(Value::Array(records)) = found.get_mut("activities") {
        records.append(&mut related);
    }
    Ok(found.to_string())
}

fn table(
    found: &Value,
    (limit, by_duration): (u32, bool),
    none: &str,
    output: &Output,
    style: &RowStyle,
) -> String {
    let records = list(found, "/activities");
    if records.is_empty() {
        let lacking = lacking(found);
        let none = output.none(none);
        return if lacking.is_empty() { none } else { format!("{none}\n{lacking}") };
    }
    let mut rows = folded(found);
    let is_more = found.get("next_cursor").is_some() || rows.len() > limit as usize;
    rows.truncate(limit as usize);
    let count = rows.len();
    let types: HashSet<_> = rows.iter().map(|(record, _)| text(record, "/type")).collect();
    let columns = style.columns(types.len() == 1);
    let columns = match types.len() {
        1 => Column::with_optional(columns, "TYPE"),
        _ => columns,
    };
    let columns = if by_duration { Column::with_whole(columns, "DURATION") } else { columns };
    let rows = rows.into_iter().map(|(record, folded)| style.row(record, &folded)).collect();
    let (columns, rows) = match output.view.width {
        Some(_) => without_empty(columns, rows),
        None => (columns, rows),
    };
    let mut table = output.table(&columns, rows);
    if is_more {
        let note = format!("({} shown, more available: use -n)", counted(count, "row"));
        match output.view.width {
            Some(_) => table += &format!("{note}\n"),
            // A program reads only rows.
            None => logging::print_line(format_args!("{note}")),
        }
    }
    table.push_str(&lacking(found));
    table
}

/// Removes the columns without any text, such as the intents of changes of servers.
fn without_empty(columns: Vec<Column>, rows: Vec<Vec<Cell>>) -> (Vec<Column>, Vec<Vec<Cell>>) {
    let has_text =
        |at: usize| rows.iter().any(|row| row.get(at).is_some_and(|cell| !cell.text.is_empty()));
    let kept: Vec<_> = (0..columns.len()).filter(|at| has_text(*at)).collect();
    let of_kept = |row: Vec<Cell>| {
        let cells = row.into_iter().enumerate().filter(|(at, _)| kept.contains(at));
        cells.map(|(_, cell)| cell).collect()
    };
    let columns = columns.into_iter().enumerate().filter(|(at, _)| kept.contains(at));
    let columns = columns.map(|(_, column)| column).collect();
    (columns, rows.into_iter().map(of_kept).collect())
}

/// Returns one line per fleet node with missing records; empty if none are missing.
pub(super) fn lacking(found: &Value) -> String {
    let missing = found.pointer("/fleet/missing").and_then(Value::as_object);
    let note = |(node, why): (&String, &Value)| {
        let why = why.as_str().unwrap_or_default();
        format!("records of node {} are incomplete: {}\n", line(node), line(why))
    };
    missing.into_iter().flatten().map(note).collect()
}

/// Width of the label column.
const LABEL: usize = 13;

/// Renders a summary, one line per count.
pub(super) fn draw_summary(summary: &Value, width: Option<usize>) -> String {
    let mut shown = String::new();
    let times = Times::new(Some(TimeStyle::Utc), false);
    let beside = Paragraph::new(width).indented(LABEL);
    let mut row = |label: &str, text: &str| {
        let _ = writeln!(shown, "{}", beside.labeled(label, text));
    };
    let [start, end] = ["/start_time", "/end_time"].map(|at| times.show_text(&text(summary, at)));
    let (total, period) = (text(summary, "/total_count"), text(summary, "/period"));
    row("calls", &format!("{total} in {period} ({start} to {end} UTC)"));
    for status in ["success", "error", "rejected", "blocked", "unknown"] {
        row(status, &text(summary, &format!("/{status}_count")));
    }
    row("warnings", &text(summary, "/warning_count"));
    let count = |at: &str| summary.pointer(at).and_then(Value::as_u64).unwrap_or_default();
    let intents = ["read", "write", "destructive"]
        .map(|intent| (intent, count(&format!("/by_intent/{intent}"))));
    let stated: u64 = intents.iter().map(|(_, calls)| calls).sum();
    let none = Some(("none", count("/total_count").saturating_sub(stated)));
    let intents = intents.into_iter().chain(none.filter(|(_, calls)| *calls > 0));
    let intents = intents.map(|(intent, calls)| format!("{intent} {calls}"));
    row("intent", &intents.collect::<Vec<_>>().join(", "));
    let latency = ["p50", "p95", "p99"].map(|name| {
        let ms = summary.pointer(&format!("/latency_ms/{name}")).and_then(Value::as_f64);
        // Zero means that there were no calls.
        let took = ms.filter(|ms| *ms > 0.0).map_or_else(|| "-".to_owned(), duration);
        format!("{name} {took}")
    });
    row("latency", &latency.join(", "));
    for (label, at) in [("top servers", "/top_servers"), ("top tools", "/top_tools")] {
        let top = list(summary, at);
        let digits = top.iter().map(|it| text(it, "/count").len()).max().unwrap_or_default();
        for (it, label) in top.iter().zip(std::iter::once(label).chain(std::iter::repeat(""))) {
            let (name, calls) = (text(it, "/name"), text(it, "/count"));
            row(label, &format!("{calls:>digits$}  {}", line(&summarized_name(&name))));
        }
    }
    shown.push_str(&lacking(summary));
    shown
}

/// Name of a server, or of a tool as `server:tool`. Calls that were refused before they were read may have neither.
fn summarized_name(name: &str) -> Cow<'_, str> {
    match name.split_once(':') {
        None if name.is_empty() => "(none)".into(),
        Some(("", "")) => "(none)".into(),
        Some(("", tool)) => tool.into(),
        Some((server, "")) => format!("{server}:(none)").into(),
        None | Some((_, _)) => name.into(),
    }
}

/// Whether a record passes the filters. Types, servers, statuses and intents may be lists.
fn selects(filters: &RecordFilters, record: &Value) -> bool {
    let (server, tool) = filters.server_and_tool();
    let of_list = |at: &str, wanted: Option<&str>| {
        wanted.is_none_or(|wanted| wanted.split(',').any(|word| word == text(record, at)))
    };
    let exactly = |at: &str, wanted: Option<&str>| wanted.is_none_or(|it| it == text(record, at));
    of_list("/type", StatusOfRows::types(filters))
        && of_list("/server_name", server)
        && (of_list("/status", filters.status.as_deref())
            || (StatusOfRows::is_of_decisions(filters) && status_of_row(record) == "rejected"))
        && of_list("/intent/operation_type", filters.intent_type.as_deref())
        && exactly("/tool_name", tool)
        && exactly("/session_id", filters.session.as_deref())
        && exactly("/request_id", filters.request_id.as_deref())
        && exactly("/principal", filters.principal.as_deref())
}

/// Path of the event stream.
const EVENTS: &str = "/events";

/// Widths for people of the columns of [`RowStyle::columns`] in `watch`, which does not know the cells in advance, and the
/// widths that they keep while another column can be dropped.
const WIDTHS_FOR_PEOPLE: [(usize, usize); 9] =
    [(5, 0), (8, 0), (18, 0), (40, 24), (8, 0), (8, 0), (8, 0), (28, 16), (160, 0)];
/// Like [`WIDTHS_FOR_PEOPLE`], for programs. A longer cell shifts the rest of its row.
const WIDTHS_FOR_PROGRAMS: [usize; 10] = [26, 24, 18, 14, 22, 11, 8, 8, 20, PROGRAM_CHARS];

/// Time for which a row waits for the records that share it, which follow it at once.
const DECISION_WAIT: Duration = Duration::from_millis(100);

/// A record, and the decisions and the approval about it, which share its row.
struct HeldRow {
    record: Value,
    decisions: Vec<Value>,
    /// Whether the filters select the record, or a decision about it.
    is_selected: bool,
}

/// Presentation of records.
struct Lines<'a> {
    output: &'a Output,
    filters: &'a RecordFilters,
    style: RowStyle,
    layout: TableLayout,
}

impl Lines<'_> {
    /// Text to print after an event. A row of a table is held until it is known whether a decision about it follows.
    fn event(&self, data: &[u8], held: &mut Option<HeldRow>) -> Result<String, CommandError> {
        let json = std::str::from_utf8(data).map_err(CommandError::failed)?;
        let record = output::parse(json)?;
        let is_selected = selects(self.filters, &record);
        match self.output.format {
            Format::Json | Format::Yaml if !is_selected => Ok(String::new()),
            Format::Json => Ok(self.output.json(json).into_owned()),
            Format::Yaml => Ok(format!("---\n{}", self.output.yaml(&record)?)),
            Format::Table => Ok(self.of_table(record, is_selected, held)),
        }
    }

    /// Rows to print after a record. `is_selected`: it passes the filters.
    fn of_table(&self, record: Value, is_selected: bool, held: &mut Option<HeldRow>) -> String {
        let by_status = StatusOfRows::of(self.filters);
        let is_selected = is_selected && by_status.is_none_or(|it| it.shows(&record));
        let is_decision = text(&record, "/type") == "policy_decision";
        if let Some(row) = held
            && is_decision
            && text(&record, "/parent_id") == text(&row.record, "/id")
        {
            row.is_selected |= is_selected;
            row.decisions.push(record);
            return String::new();
        }
        let mut row = HeldRow { record, decisions: Vec::new(), is_selected };
        if let Some(answer) = held.take_if(|answer| has_answered(&answer.record, &row.record)) {
            row.is_selected |= answer.is_selected;
            row.decisions.push(answer.record);
        }
        // A warning about an unselected call may follow, which selects it.
        if !row.is_selected && !by_status.is_some_and(|it| it.warned) {
            return String::new();
        }
        self.row(held.replace(row))
    }

    fn row(&self, held: Option<HeldRow>) -> String {
        let Some(HeldRow { record, decisions, is_selected: true }) = held else {
            return String::new();
        };
        self.layout.line(&self.style.row(&record, &decisions.iter().collect::<Vec<_>>()))
    }
}

/// Reason why a stream ended.
enum End {
    /// The reader of stdout is gone.
    Unread,
    /// The stream ended or was interrupted.
    Over,
}

/// Prints records until the user, the reader of stdout or the proxy ends it.
pub(super) async fn watch(
    backend: &Backend,
    output: &Output,
    filters: &RecordFilters,
    (no_icons, time): (bool, Option<TimeStyle>),
    node: Option<&str>,
) -> Result<(), CommandError> {
    // Records are shown as they arrive, so ages would be meaningless.
    let time = time.or_else(|| output.terminal.then_some(TimeStyle::Local));
    let style = RowStyle::of(output, no_icons, time).live();
    let widths = match output.view.width {
        Some(_) => WIDTHS_FOR_PEOPLE.map(|(width, least)| CellWidths::new(width, least)).to_vec(),
        None => WIDTHS_FOR_PROGRAMS.map(CellWidths::of_longest).to_vec(),
    };
    // The tools are not known in advance, so a cut one may not tell them apart.
    let columns = Column::with_repeated(style.columns(true), "TOOL");
    let layout = TableLayout::new(&columns, &widths, output.view);
    let lines = Lines { output, filters, style, layout };
    let events = events(node);
    let watch = async {
        let mut chunks = backend.stream(&events, None).await?.chunks;
        let header = format!("{}{}", lines.layout.note(), lines.layout.header());
        if output.format == Format::Table && !output::write_on(header.as_bytes())? {
            return Ok(());
        }
        let (mut retries, mut last) = (Retries::default(), String::new());
        loop {
            match follow(chunks, &lines, &mut last, &mut retries).await? {
                End::Unread => return Ok(()),
                End::Over => {}
            }
            chunks = resume(backend, &events, &last, &mut retries).await?;
        }
    };
    tokio::select! {
        ended = server::ended_by_signal() => ended.map_err(CommandError::failed),
        watched = watch => watched,
    }
}

/// Target of the event stream of all nodes, or of one node.
fn events(node: Option<&str>) -> String {
    target(&[], &[("node", node)]).replacen("/api/v1", EVENTS, 1)
}

/// Resumes the stream after the record `last`.
async fn resume(
    backend: &Backend,
    events: &str,
    last: &str,
    retries: &mut Retries,
) -> Result<Chunks, CommandError> {
    let mut why = CommandError::failed("the event stream keeps ending");
    loop {
        retries.next(why).await?;
        let after = Some(last).filter(|last| !last.is_empty());
        match backend.stream(events, after).await {
            Ok(response) => return Ok(response.chunks),
            Err(failure) if failure.exit == Exit::Unreachable => {
                let text = "the proxy has terminated";
                return Err(CommandError::new(Exit::Unreachable, text));
            }
            Err(failure) => why = failure,
        }
    }
}

async fn follow(
    mut chunks: Chunks,
    lines: &Lines<'_>,
    last: &mut String,
    retries: &mut Retries,
) -> Result<End, CommandError> {
    let (mut decoder, mut data) = (Decoder::new(), Vec::new());
    let (mut is_established, mut held) = (false, None);
    loop {
        let wait = if held.is_some() { DECISION_WAIT } else { Duration::MAX };
        let chunk = match tokio::time::timeout(wait, chunks.try_next()).await {
            Ok(Ok(Some(chunk))) => chunk,
            // An interrupted stream is resumed like a stream that ended.
            Ok(Ok(None) | Err(_)) => break,
            Err(_) => {
                if !print(&lines.row(held.take()))? {
                    return Ok(End::Unread);
                }
                continue;
            }
        };
        if std::mem::replace(&mut is_established, true) {
            retries.reset();
        }
        decoder.push(chunk);
        while let Some(item) = decoder.next_item().map_err(CommandError::failed)? {
            match item {
                Item::Data(bytes) => data.extend_from_slice(&bytes),
                Item::End => {
                    let data = std::mem::take(&mut data);
                    match decoder.event() {
                        b"activity" => {
                            let shown = lines.event(&data, &mut held)?;
                            if !print(&shown)? {
                                return Ok(End::Unread);
                            }
                        }
                        // Other events carry messages of the proxy.
                        other => logging::print_line(format_args!(
                            "{}: {}",
                            line(&String::from_utf8_lossy(other)),
                            line(&String::from_utf8_lossy(&data))
                        )),
                    }
                }
            }
        }
        if !decoder.last_id().is_empty() {
            *last = String::from_utf8_lossy(decoder.last_id()).into_owned();
        }
    }
    let shown = lines.row(held.take());
    Ok(if print(&shown)? { End::Over } else { End::Unread })
}

/// Prints rows, if there are any, and returns whether stdout is still read.
fn print(rows: &str) -> Result<bool, CommandError> {
    Ok(rows.is_empty() || output::write_on(rows.as_bytes())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_table_keeps_status_and_reason_beside_long_names() {
        for name in crate::output::tests::names() {
            let record = |seq: u64, tool: &str| {
                serde_json::json!({"id": "01KAJ2Z8Q4T5V6W7X8Y9Z0A1B2", "seq": seq, "type": "tool_call",
                    "server_name": tool, "tool_name": tool, "status": "rejected", "duration_ms": 0.4,
                    "intent": {"operation_type": tool},
                    "error_message": "Tool 'x' not found. Use retrieve_tools to find tools."})
            };
            let found =
                serde_json::json!({"activities": [record(4711, &name), record(4712, "read_file")]});
            let drawn = |output: &Output| {
                table(&found, (100, false), "", output, &RowStyle::of(output, false, None))
            };
            let keeps = ["STATUS", "rejected", "4711", "TOOL", "read_file", "Tool 'x' not"];
            crate::output::tests::fits(drawn, &keeps);
        }
    }

    #[test]
    fn type_follows_the_tool_in_a_narrow_table() {
        let shown = |second: &str, tool: &str, width: usize| {
            let record = |kind: &str| {
                serde_json::json!({"id": "01KAJ2Z8Q4T5V6W7X8Y9Z0A1B2", "seq": 4711, "type": kind,
                    "server_name": "claude-clock", "tool_name": tool, "status": "success",
                    "duration_ms": 12.0, "principal": "anonymous", "intent": {"operation_type": "read"}})
            };
            let found = serde_json::json!({"activities": [record("tool_call"), record(second)]});
            let view = crate::table::TableView {
                width: Some(width),
                colors: crate::output::Colors::Plain,
            };
            let output =
                Output { format: Format::Table, terminal: true, view, stderr_colors: view.colors };
            table(&found, (100, false), "", &output, &RowStyle::of(&output, true, None))
        };
        let same = shown("tool_call", "get_current_time", 80);
        assert!(!same.contains("TYPE") && same.contains("DURATION"), "{same}");
        assert!(same.contains("claude-clock:get_current_time "), "{same}");
        let different = shown("resource_read", "now", 80);
        assert!(!different.contains("TYPE"), "{different}");
        assert!(different.contains("claude-clock:now (resource_read)"), "{different}");
        let wide = shown("resource_read", "now", 100);
        assert!(wide.lines().next().unwrap().contains("TYPE"), "{wide}");
        assert!(wide.contains(" resource_read "), "{wide}");
    }

    #[test]
    fn act_7_time_and_principal_stay_beside_a_long_tool() {
        let record = serde_json::json!({"id": "01KAJ2Z8Q4T5V6W7X8Y9Z0A1B2", "seq": 147, "type": "tool_call",
            "server_name": "everything", "tool_name": "trigger-long-running-operation", "status": "success",
            "duration_ms": 12.0, "principal": "token:ops", "intent": {"operation_type": "destructive"}});
        let view =
            crate::table::TableView { width: Some(80), colors: crate::output::Colors::Plain };
        let output =
            Output { format: Format::Table, terminal: true, view, stderr_colors: view.colors };
        let found = serde_json::json!({"activities": [record]});
        let style = RowStyle::of(&output, false, Some(TimeStyle::Utc));
        let shown = table(&found, (100, false), "", &output, &style);
        for part in ["11-21 02:12:56", "token:ops", "destr", "success"] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
    }

    #[tokio::test]
    async fn act_7_decisions_are_folded_before_the_limit_applies() {
        let all: Vec<Value> = (0..20_u64)
            .flat_map(|call| {
                let decision = serde_json::json!({"id": format!("d{call}"), "seq": 100 - 2 * call,
                    "type": "policy_decision", "parent_id": format!("c{call}")});
                let call = serde_json::json!({"id": format!("c{call}"), "seq": 99 - 2 * call, "type": "tool_call",
                    "tool_name": format!("tool{call}"), "status": "success"});
                [decision, call]
            })
            .collect();
        let fetch = async |records: u32| {
            let some: Vec<_> = all.iter().take(records as usize).collect();
            let mut page = serde_json::json!({"activities": some});
            if some.len() < all.len() {
                page["next_cursor"] = "x".into();
            }
            Ok(page.to_string())
        };
        for (limit, expected) in [(4, 4), (1, 1), (30, 20)] {
            let found = output::parse(&rows(limit, &fetch).await.unwrap()).unwrap();
            let view =
                crate::table::TableView { width: None, colors: crate::output::Colors::Plain };
            let output =
                Output { format: Format::Table, terminal: false, view, stderr_colors: view.colors };
            let shown =
                table(&found, (limit, false), "", &output, &RowStyle::of(&output, true, None));
            assert_eq!(shown.matches("tool_call").count(), expected, "-n {limit}: {shown}");
        }
    }

    /// Passes a table of watched records that match the status to `test`.
    fn watching(status: &str, test: impl FnOnce(&Lines<'_>)) {
        let output = Output {
            format: Format::Table,
            terminal: true,
            view: crate::table::TableView { width: None, colors: crate::output::Colors::Plain },
            stderr_colors: crate::output::Colors::Plain,
        };
        let style = RowStyle::of(&output, true, Some(TimeStyle::Utc));
        let widths: Vec<_> = WIDTHS_FOR_PROGRAMS.map(CellWidths::of_longest).to_vec();
        let layout = TableLayout::new(&style.columns(true), &widths, output.view);
        let filters = RecordFilters { status: Some(status.to_owned()), ..Default::default() };
        test(&Lines { output: &output, filters: &filters, style, layout });
    }

    fn call(id: &str, status: &str) -> Value {
        serde_json::json!({"id": id, "type": "tool_call", "status": status})
    }

    fn decision(of: &str, status: &str) -> Value {
        serde_json::json!({"id": "d", "type": "policy_decision", "parent_id": of,
            "status": status, "metadata": {"reason": "of-the-rules"}})
    }

    #[test]
    fn watched_call_and_the_decision_about_it_share_a_row() {
        watching("success,warning", |lines| {
            assert!(!selects(lines.filters, &call("r", "rejected")));
            assert!(selects(lines.filters, &call("x", "success")));
            let mut held = None;
            let mut add =
                |record: Value| lines.event(record.to_string().as_bytes(), &mut held).unwrap();
            assert_eq!(add(call("first", "success")), "");
            assert_eq!(add(decision("first", "warning")), "");
            let row = add(call("second", "success"));
            assert!(row.contains("first") && row.contains("warning: of-the-rules"), "{row}");
            let row = add(decision("of-another", "warning"));
            assert!(row.contains("second") && !row.contains("of-the-rules"), "{row}");
            let row = lines.row(held.take());
            assert!(row.contains("policy_decision") && row.contains("of-the-rules"), "{row}");
        });
    }

    #[test]
    fn watched_call_shares_the_row_of_the_answer_to_its_approval() {
        let about = |id: &str, kind: &str, state: &str, of: &str| {
            serde_json::json!({"id": id, "type": kind, "request_id": "7", "status": "rejected",
                "error_message": "withdrawn", "metadata": {"approval": of, "state": state}})
        };
        watching("rejected", |lines| {
            let mut held = None;
            let mut add =
                |record: Value| lines.event(record.to_string().as_bytes(), &mut held).unwrap();
            assert_eq!(add(about("answer", "approval", "withdrawn", "a")), "");
            assert_eq!(add(about("its-call", "tool_call", "", "a")), "", "one row");
            let row = add(about("other-answer", "approval", "withdrawn", "b"));
            assert!(row.contains("its-call") && !row.contains("answer"), "{row}");
            let row = add(about("another-call", "tool_call", "", "c"));
            assert!(row.contains("other-answer"), "{row}");
        });
    }

    #[test]
    fn watched_rows_are_selected_by_the_status_that_they_show() {
        for (status, of_call, of_decision, shown) in [
            ("warning", "success", "warning", true),
            ("warning", "rejected", "blocked", false),
            ("blocked", "rejected", "blocked", false),
            ("blocked", "blocked", "blocked", true),
            ("rejected", "rejected", "blocked", true),
        ] {
            watching(status, |lines| {
                let mut held = None;
                for record in [call("first", of_call), decision("first", of_decision)] {
                    let row = lines.event(record.to_string().as_bytes(), &mut held).unwrap();
                    assert_eq!(row, "", "{status}: {record}");
                }
                let row = lines.row(held.take());
                assert_eq!(row.contains("of-the-rules"), shown, "{status}, {of_call}: {row}");
            });
        }
    }

    #[test]
    fn act_7_summary_shows_all_counts() {
        let shown = draw_summary(
            &serde_json::json!({
                "period": "1h", "total_count": 21, "success_count": 11, "error_count": 1,
                "blocked_count": 2, "warning_count": 3, "rejected_count": 7, "unknown_count": 0,
                "by_intent": {"read": 11, "write": 8, "destructive": 1},
                "top_servers": [{"name": "git\u{1b}hub", "count": 20}, {"name": "", "count": 1}],
                "top_tools": [{"name": "s:t", "count": 4}, {"name": ":", "count": 3}, {"name": ":t", "count": 2},
                    {"name": "s:", "count": 1}],
                "latency_ms": {"p50": 0.5, "p95": 12.0, "p99": 1500.0},
                "start_time": "2026-01-02T03:00:00.000Z", "end_time": "2026-01-02T04:00:00.000Z",
            }),
            None,
        );
        assert_eq!(
            shown,
            "calls        21 in 1h (01-02 03:00:00 to 01-02 04:00:00 UTC)\n\
             success      11\nerror        1\nrejected     7\nblocked      2\nunknown      0\nwarnings     3\n\
             intent       read 11, write 8, destructive 1, none 1\n\
             latency      p50 0.5ms, p95 12ms, p99 1.5s\n\
             top servers  20  git\\u{1b}hub\n              1  (none)\n\
             top tools    4  s:t\n             3  (none)\n             2  t\n             1  s:(none)\n"
        );
    }

    #[test]
    fn summary_escapes_names_and_fits_the_terminal() {
        let named = |name: String| serde_json::json!({"name": name, "count": 2});
        let tools: Vec<_> =
            (0..5).map(|at| named(format!("x{at}\nerror        {}", "0".repeat(40)))).collect();
        let summary = serde_json::json!({"top_servers": [], "top_tools": tools});
        for width in [None, Some(40), Some(80)] {
            let shown = draw_summary(&summary, width);
            assert_eq!(shown.lines().filter(|it| it.starts_with("error")).count(), 1, "{shown}");
            assert!(shown.contains("x0\\u{a}error"), "{shown}");
            let fits = |line: &str| width.is_none_or(|width| line.len() <= width);
            assert!(shown.lines().all(fits), "{width:?}: {shown}");
        }
    }
}
