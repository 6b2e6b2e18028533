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
use crate::cli::terminal_safe::clean;

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
    let line = |(node, why): (&String, &Value)| {
        let why = why.as_str().unwrap_or_default();
        format!("not all of {}: {}\n", clean(node), clean(why))
    };
    missing.into_iter().flatten().map(line).collect()
}
