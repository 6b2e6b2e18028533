//! `mcpproxy policy replay`: the log's calls put to new rules beside those in force, with a progress bar.

use std::path::PathBuf;

use futures_util::TryStreamExt;
use indicatif::ProgressBar;
use jiff::Timestamp;
use serde_json::Value;

use super::inputs::{chosen, loaded, seen_tools};
use crate::cli::args::Global;
use crate::cli::backend::{self, Backend, Needs, target};
use crate::cli::commands::activity::records_bar_of;
use crate::cli::counted::counted;
use crate::cli::error::CommandError;
use crate::cli::json_pointer::{list, text};
use crate::cli::output::Output;
use crate::cli::paragraph::Paragraph;
use crate::cli::table::{Cell, Column, Fit, cell};
use crate::cli::{load_config, value_parsers};
use crate::proxy::rule_replay::{REPLAYED, RuleReplay, UnreadableRecord};

/// What is counted, in the order of the columns.
const COUNTED: [&str; 4] = ["calls", "newly_refused", "newly_allowed", "undecidable"];
/// Most bytes of one record.
const MAX_LINE_BYTES: usize = 64 * 1024 * 1024;
/// Rows of a table; JSON has all.
const MAX_ROWS: usize = 50;

pub(super) fn run(
    files: &[PathBuf],
    since: &str,
    global: &Global,
    output: &Output,
) -> Result<(), CommandError> {
    let config = load_config::load(global, None)?.config;
    let (catalog, known) = seen_tools(&config);
    let new = loaded(&chosen(files, &config), &known)?;
    let now = loaded(&config.rules, &known)?;
    let since = moment(since)?;
    let types = REPLAYED.map(|kind| kind.to_string()).join(",");
    let mut replay = RuleReplay::new(now.into(), new.into(), catalog.load());
    backend::with(global, Needs::Activity, async |backend| {
        let query = [("type", Some(types.as_str())), ("start_time", Some(since.as_str()))];
        let bar = records_bar_of(backend, &query).await?;
        read(backend, &query, &bar, &mut replay).await?;
        bar.finish_and_clear();
        let mut report = serde_json::to_value(replay.report()).map_err(CommandError::failed)?;
        if let Some(members) = report.as_object_mut() {
            members.insert("since".to_owned(), since.as_str().into());
        }
        output.print(&report.to_string(), |report| draw(report, output))
    })
}

/// `--since`, also in days.
fn moment(text: &str) -> Result<String, CommandError> {
    let days = text.strip_suffix('d').and_then(|days| days.parse::<u32>().ok());
    let hours = days.map(|days| format!("{}h", u64::from(days) * 24));
    let text = hours.as_deref().unwrap_or(text);
    value_parsers::moment("--since", text, Timestamp::now()).map_err(CommandError::usage)
}

/// Puts every record that the query means to both sets of rules.
async fn read(
    backend: &Backend,
    query: &[(&str, Option<&str>)],
    bar: &ProgressBar,
    replay: &mut RuleReplay,
) -> Result<(), CommandError> {
    let mut wanted = query.to_vec();
    wanted.push(("format", Some("json")));
    let unreadable = |error: UnreadableRecord| CommandError::failed(error);
    let mut chunks = backend.stream(&target(&["activity", "export"], &wanted), None).await?;
    let mut rest: Vec<u8> = Vec::new();
    while let Some(chunk) = chunks.try_next().await? {
        let mut chunk = &*chunk;
        while let Some(at) = memchr::memchr(b'\n', chunk) {
            let (line, after) = chunk.split_at(at);
            chunk = after.get(1..).unwrap_or_default();
            if rest.is_empty() {
                replay.record(line).map_err(unreadable)?;
            } else {
                rest.extend_from_slice(line);
                replay.record(&rest).map_err(unreadable)?;
                rest.clear();
            }
            bar.inc(1);
        }
        if rest.len() + chunk.len() > MAX_LINE_BYTES {
            return Err(CommandError::failed("the log has a record that is too long to be read"));
        }
        rest.extend_from_slice(chunk);
    }
    match rest.is_empty() {
        true => Ok(()),
        false => Err(CommandError::failed("the log broke off within a record: try again")),
    }
}

fn draw(report: &Value, output: &Output) -> String {
    let all = list(report, "/by_tool_and_principal");
    let rows = all.iter().take(MAX_ROWS).map(|row| {
        let mut cells: Vec<Cell> =
            vec![cell(&text(row, "/tool")).into(), cell(&text(row, "/principal")).into()];
        cells.extend(COUNTED.map(|name| text(row, &format!("/{name}")).into_owned().into()));
        let rules: Vec<_> = list(row, "/rules").iter().filter_map(Value::as_str).collect();
        cells.push(cell(&rules.join(", ")).into());
        cells
    });
    let columns = Column::all([
        ("TOOL", Fit::Name),
        ("PRINCIPAL", Fit::Rank(4)),
        ("CALLS", Fit::Rank(3)),
        ("NEWLY REFUSED", Fit::Whole),
        ("NEWLY ALLOWED", Fit::Rank(2)),
        ("UNDECIDABLE", Fit::Rank(5)),
        ("RULES", Fit::Free),
    ]);
    let table = output.table(&columns, rows.collect());
    let more = match all.len().saturating_sub(MAX_ROWS) {
        0 => String::new(),
        more => format!("… and {more} more (-o json has all)\n"),
    };
    let [calls, refused, allowed, undecidable] =
        COUNTED.map(|name| text(report, &format!("/total/{name}")));
    let total = format!(
        "{} since {}: {refused} newly refused, {allowed} newly allowed, {undecidable} undecidable",
        counted(calls, "call"),
        text(report, "/since")
    );
    format!("{table}{more}{}\n", Paragraph::new(output.view.width).text(&total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_leaves_the_counts_in_view() {
        for name in crate::cli::output::tests::names() {
            let report = serde_json::json!({"since": "2026-01-02", "total": {}, "by_tool_and_principal": [
                {"tool": name, "principal": name, "calls": 9, "newly_refused": 4, "rules": [name]},
            ]});
            crate::cli::output::tests::fits(|output| draw(&report, output), &["NEWLY REFUSED"]);
        }
    }
}
