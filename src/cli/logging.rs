//! Where logs go: stderr, as text for people or JSON for machines. stdout belongs to results.
//!
//! Also whatever else is written to stderr. Errors of stderr itself are ignored.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, IsTerminal, Write as _};
use std::os::fd::AsFd;
use std::time::Duration;

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use super::args::Global;
use super::terminal_safe::Visible;
use crate::config::LogFormat;
use crate::telemetry::{LogFilter, LogHandles, LogLines, LogTap};
use crate::upstream::TALKATIVE;

/// Most time that the end of a command waits for stderr to be read.
const FINISH_LIMIT: Duration = Duration::from_secs(1);

/// The log of a command; dropped, it is written to its end.
#[derive(Debug)]
pub(super) struct Log(LogHandles);

impl Log {
    /// What others tell of it, or change.
    pub(super) fn handles(&self) -> LogHandles {
        self.0.clone()
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.0.lines.finish(FINISH_LIMIT);
    }
}

/// Starts logging at `level`. A second start in one process changes nothing.
pub(super) fn start(level: &str, format: LogFormat) -> Log {
    // `TALKATIVE` logs messages of servers and codes of logins: of those, only errors are shown, at
    // any level.
    let filter = LogFilter::new(level, &[TALKATIVE]);
    // Without a thread or a stderr there is no log, and what it would say is counted.
    let lines = stderr().and_then(LogLines::to).unwrap_or_default();
    let writer = lines.clone();
    let shown =
        tracing_subscriber::fmt::layer().with_target(false).with_ansi(io::stderr().is_terminal());
    let tap = LogTap::default();
    let log = tracing_subscriber::registry().with(filter.clone()).with(tap.clone());
    // It fails only if a subscriber is set already, which then stays in place.
    let _ = match format {
        LogFormat::Text => log.with(shown.with_writer(move || Visible(writer.clone()))).try_init(),
        LogFormat::Json => log.with(shown.with_writer(move || writer.clone()).json()).try_init(),
    };
    Log(LogHandles { lines, filter, tap })
}

/// Starts the log of a command that prints results: at `--log-level`, else errors alone, as text.
pub(super) fn start_quiet(global: &Global) -> Log {
    start(global.log_level.as_deref().unwrap_or("error"), LogFormat::Text)
}

/// stderr without the lock of the standard library: who waits for its reader must not keep others
/// from it.
fn stderr() -> io::Result<File> {
    Ok(io::stderr().as_fd().try_clone_to_owned()?.into())
}

/// Says a line on stderr.
pub(super) fn say(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}
