//! Where logs go: stderr, as text for people or JSON for machines. stdout belongs to results.
//!
//! Also whatever else is written to stderr. Errors of stderr itself are ignored.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, IsTerminal, Write as _};
use std::os::fd::AsFd;
use std::time::Duration;

use tracing_subscriber::EnvFilter;

use super::args::Global;
use super::terminal_safe::Visible;
use crate::config::LogFormat;
use crate::telemetry::LogLines;
use crate::upstream::TALKATIVE;

/// Most time that the end of a command waits for stderr to be read.
const FINISH_LIMIT: Duration = Duration::from_secs(1);

/// The log of a command; dropped, it is written to its end.
#[derive(Debug)]
pub(super) struct Log(LogLines);

impl Log {
    /// Where its lines go.
    pub(super) fn lines(&self) -> LogLines {
        self.0.clone()
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.0.finish(FINISH_LIMIT);
    }
}

/// Starts logging at `level`. A second start in one process changes nothing.
pub(super) fn start(level: &str, format: LogFormat) -> Log {
    // Libraries log warnings alone, unless more detail was asked for.
    let libraries = if matches!(level, "debug" | "trace") { "info" } else { "warn" };
    // `TALKATIVE` logs messages of servers and codes of logins: of those, only errors are shown, at
    // any level.
    let filter = EnvFilter::new(format!("{libraries},mcpproxy={level},{TALKATIVE}=error"));
    // Without a thread or a stderr there is no log, and what it would say is counted.
    let lines = stderr().and_then(LogLines::to).unwrap_or_default();
    let writer = lines.clone();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false)
        .with_ansi(io::stderr().is_terminal());
    // It fails only if a subscriber is set already, which then stays in place.
    let _ = match format {
        LogFormat::Text => builder.with_writer(move || Visible(writer.clone())).try_init(),
        LogFormat::Json => builder.with_writer(move || writer.clone()).json().try_init(),
    };
    Log(lines)
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
