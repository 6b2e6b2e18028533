//! Progress bars on stderr, over records.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use crate::cli::backend::{Backend, target};
use crate::cli::error::CommandError;
use crate::cli::output;

/// A progress bar on stderr over so many records.
pub(in crate::cli) fn records_bar(total: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {human_pos}/{human_len} records {eta}");
    ProgressBar::new(total).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// A bar as long as there are records that match, on a terminal; else one that is not seen.
pub(in crate::cli) async fn records_bar_of(
    backend: &Backend,
    filters: &[(&str, Option<&str>)],
) -> Result<ProgressBar, CommandError> {
    if !std::io::stderr().is_terminal() {
        return Ok(ProgressBar::hidden());
    }
    let mut query = filters.to_vec();
    query.extend(["with_total", "exclude_payloads"].map(|name| (name, Some("true"))));
    query.push(("limit", Some("1")));
    let page = backend.get(&target(&["activity"], &query)).await?;
    let page = output::parse(page.json()?)?;
    Ok(records_bar(page.pointer("/total").and_then(Value::as_u64).unwrap_or_default()))
}
