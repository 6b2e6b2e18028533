//! Progress bars on stderr, over records.

use indicatif::{ProgressBar, ProgressStyle};

/// A progress bar on stderr over so many records.
pub(in crate::cli) fn records_bar(total: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {human_pos}/{human_len} records {eta}");
    ProgressBar::new(total).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
