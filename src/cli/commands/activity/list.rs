//! `mcpproxy activity list`: the latest records as a table.

use std::fmt::Write as _;

use serde_json::Value;

use super::filters::{filters, times};
use super::row::{RowStyle, folded};
use crate::cli::args::{ActivityList, Format};
use crate::cli::backend::Backend;
use crate::cli::counted::counted;
use crate::cli::error::CommandError;
use crate::cli::json_pointer::list;
use crate::cli::output::Output;
use crate::cli::pagination;
use crate::cli::terminal_safe::line;

/// Prints the records that the flags mean.
pub(super) async fn run(
    flags: &ActivityList,
    backend: &Backend,
    output: &Output,
) -> Result<(), CommandError> {
    let (since, until) = times(&flags.filters)?;
    let mut query = filters(&flags.filters, since.as_deref(), until.as_deref());
    query.push(("text", flags.text.as_deref()));
    match output.format {
        // No column of the table shows a payload.
        Format::Table => query.push(("exclude_payloads", Some("true"))),
        Format::Json | Format::Yaml => {}
    }
    let found = pagination::all(backend, "activity", &query, flags.limit).await?;
    let style = RowStyle::of(output, flags.no_icons, flags.time);
    output.print(&found, |found| table(found, output, &style))
}

fn table(found: &Value, output: &Output, style: &RowStyle) -> String {
    let records = list(found, "/activities");
    if records.is_empty() {
        let none = "No activity found. Filters combine; drop one to see more.";
        let lacking = lacking(found);
        return if lacking.is_empty() { none.to_owned() } else { format!("{none}\n{lacking}") };
    }
    let rows = folded(found).into_iter().map(|(record, decisions)| style.row(record, &decisions));
    let mut table = output.table(&style.columns(), rows.collect());
    if found.get("next_cursor").is_some() {
        let _ = writeln!(
            table,
            "({}, there are more: -n shows more)",
            counted(records.len(), "record")
        );
    }
    table.push_str(&lacking(found));
    table
}

/// The nodes of a fleet of whose records not all are in an answer, and why: a line for each; none where nothing is missing.
pub(super) fn lacking(found: &Value) -> String {
    let missing = found.pointer("/fleet/missing").and_then(Value::as_object);
    let told = |(node, why): (&String, &Value)| {
        let why = why.as_str().unwrap_or_default();
        format!("not all of {}: {}\n", line(node), line(why))
    };
    missing.into_iter().flatten().map(told).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_leaves_status_and_reason_of_all_rows_in_view() {
        for name in crate::cli::output::tests::names() {
            let record = |seq: u64, tool: &str| {
                serde_json::json!({"id": "01KAJ2Z8Q4T5V6W7X8Y9Z0A1B2", "seq": seq, "type": "tool_call",
                    "server_name": tool, "tool_name": tool, "status": "rejected", "duration_ms": 0.4,
                    "intent": {"operation_type": tool},
                    "error_message": "Tool 'x' not found. Use retrieve_tools to find tools."})
            };
            let found =
                serde_json::json!({"activities": [record(4711, &name), record(4712, "read_file")]});
            let drawn = |output: &Output| table(&found, output, &RowStyle::of(output, false, None));
            let keeps = ["STATUS", "rejected", "4711", "TOOL", "read_file", "Tool 'x' not"];
            crate::cli::output::tests::fits(drawn, &keeps);
        }
    }
}
