//! `mcpproxy activity list`: the latest records as a table.

use std::fmt::Write as _;

use serde_json::Value;

use super::filters::{filters, times};
use super::row::{COLUMNS, Intents, row};
use crate::cli::args::{ActivityList, Format};
use crate::cli::backend::Backend;
use crate::cli::error::CommandError;
use crate::cli::json_pointer::list;
use crate::cli::output::Output;
use crate::cli::pagination;

/// Terminals narrower than this get two lines for a record, so that no id is broken.
const WIDE: u16 = 110;

/// Prints the records that the flags mean.
pub(super) async fn run(
    flags: &ActivityList,
    backend: &Backend,
    output: &Output,
) -> Result<(), CommandError> {
    let (since, until) = times(&flags.filters)?;
    let mut query = filters(&flags.filters, since.as_deref(), until.as_deref());
    match output.format {
        // No column of the table shows a payload.
        Format::Table => query.push(("exclude_payloads", Some("true"))),
        Format::Json | Format::Yaml => {}
    }
    let found = pagination::all(backend, "activity", &query, flags.limit).await?;
    let intents = Intents::of(output, flags.no_icons);
    output.print(&found, |found| table(found, output, intents))
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

#[cfg(test)]
mod tests {
    use super::super::row::tests::record;
    use super::*;
    use crate::cli::table::draw;

    #[test]
    fn a_narrow_terminal_gets_whole_ids_and_words() {
        let header = stacked(&COLUMNS.map(str::to_owned));
        let header: Vec<&str> = header.iter().map(String::as_str).collect();
        let rows = vec![stacked(&row(&record(), Intents::Words))];
        let drawn = draw(&header, rows, &[0, 3, 4, 5], Some(80));
        assert!(drawn.lines().all(|line| line.chars().count() <= 80), "{drawn}");
        for whole in ["01KAJ2Z8Q4T5V6W7X8Y9Z0A1B2", "success", "DURATION", "delete_repo"] {
            assert!(drawn.contains(whole), "{whole}\n{drawn}");
        }
    }
}
