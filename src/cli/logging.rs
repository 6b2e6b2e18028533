//! Logging to stderr, as text for people or JSON for machines, and direct lines on stderr. stdout is reserved for
//! results.
//!
//! In text, a value that could be mistaken for another field or line is quoted ([`QuotedFields`]). Colors follow
//! `--color` and the usual variables, as they do for results. Errors of stderr itself are ignored.

use crate::args::Global;
use crate::hints;
use crate::style::Colors;
use crate::terminal_safe;
use crate::terminal_safe::Visible;
use anstyle::Style;
use clap::ColorChoice;
use mcpproxy_config::LogFormat;
use mcpproxy_gateway::telemetry::{LogFilter, LogHandles, LogLines, LogTap};
use mcpproxy_runtime::hidden_text::is_hidden;
use mcpproxy_upstream::TALKATIVE;
use std::fmt::{Debug, Display};
use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsFd;
use std::time::Duration;
use std::{fmt, io};
use tracing::field::{Field, Visit};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Maximum time that a command waits at its end for stderr to be read.
const FINISH_LIMIT: Duration = Duration::from_secs(1);

/// The log of a command; flushed on drop.
#[derive(Debug)]
pub(super) struct Log(LogHandles);

impl Log {
    /// Handles for the parts that read or change the log.
    pub(super) fn handles(&self) -> LogHandles {
        self.0.clone()
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.0.lines.finish(FINISH_LIMIT);
    }
}

/// Starts logging at `level`. A second start in one process has no effect.
pub(super) fn start(level: &str, format: LogFormat, color: ColorChoice) -> Log {
    // `TALKATIVE` logs messages of servers and login codes, so only its errors are shown, at any level.
    let filter = LogFilter::new(level, &[TALKATIVE]);
    // If stderr or the writer thread is unavailable, nothing is logged, and lines are counted as dropped.
    let lines = stderr().and_then(LogLines::to).unwrap_or_default();
    let writer = lines.clone();
    let is_colored = Colors::of_stderr(color) == Colors::Styled;
    let shown = tracing_subscriber::fmt::layer().with_target(false).with_ansi(is_colored);
    let tap = LogTap::default();
    let log = tracing_subscriber::registry().with(filter.clone()).with(tap.clone());
    // This fails only if a subscriber is already set, which then stays in place.
    let _ = match format {
        LogFormat::Text => {
            let shown = shown.fmt_fields(QuotedFields);
            log.with(shown.with_writer(move || Visible(writer.clone()))).try_init()
        }
        LogFormat::Json => log.with(shown.with_writer(move || writer.clone()).json()).try_init(),
    };
    Log(LogHandles { lines, filter, tap })
}

/// Starts logging for a command that prints results: at `--log-level`, by default errors only, as text.
pub(super) fn start_quiet(global: &Global) -> Log {
    start(global.log_level.as_deref().unwrap_or("error"), LogFormat::Text, global.color)
}

/// Returns stderr without the standard library's lock, so that a blocked reader does not block other writers.
fn stderr() -> io::Result<File> {
    Ok(io::stderr().as_fd().try_clone_to_owned()?.into())
}

/// Prints a line of mcpproxy's own to stderr.
pub(super) fn print_line(line: impl Display) {
    let _ = writeln!(io::stderr(), "{}", hints::commands(&line.to_string()));
}

/// Formatter of `name=value` fields that prevents forged fields, lines and colors: a value that is not a plain word
/// is quoted and escaped. The message is unquoted but kept on one line.
#[derive(Clone, Copy, Debug)]
struct QuotedFields;

/// Writes the fields of one event or span.
struct FieldWriter<'w> {
    writer: Writer<'w>,
    is_first: bool,
    result: fmt::Result,
}

impl<'w> FormatFields<'w> for QuotedFields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'w>, fields: R) -> fmt::Result {
        let mut fields_writer = FieldWriter { writer, is_first: true, result: Ok(()) };
        fields.record(&mut fields_writer);
        fields_writer.result
    }
}

impl Visit for FieldWriter<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Skips source location fields of the `log` crate.
        if self.result.is_err() || field.name().starts_with("log.") {
            return;
        }
        let blank = if std::mem::take(&mut self.is_first) { "" } else { " " };
        let (value, name) = (format!("{value:?}"), field.name());
        self.result = match name {
            "message" => write!(self.writer, "{blank}{}", terminal_safe::line(&value)),
            name => {
                let name = name.strip_prefix("r#").unwrap_or(name);
                let (bold, faint) = match self.writer.has_ansi_escapes() {
                    true => (Style::new().italic(), Style::new().dimmed()),
                    false => (Style::new(), Style::new()),
                };
                write!(self.writer, "{blank}{bold}{name}{bold:#}{faint}={faint:#}")
                    .and_then(|()| write_value(&mut self.writer, &value))
            }
        };
    }
}

/// Writes a plain word or an already quoted value unchanged, and any other value in quotes.
fn write_value(out: &mut impl fmt::Write, value: &str) -> fmt::Result {
    if is_plain(value) || is_quoted(value) {
        return out.write_str(value);
    }
    out.write_char('"')?;
    for letter in value.chars() {
        match letter {
            '"' | '\\' => write!(out, "\\{letter}")?,
            '\n' | '\r' | '\t' => write!(out, "{}", letter.escape_default())?,
            letter if is_hidden(letter) => write!(out, "{}", letter.escape_unicode())?,
            letter => out.write_char(letter)?,
        }
    }
    out.write_char('"')
}

/// Whether a value is a single word without characters that separate fields and spans.
fn is_plain(value: &str) -> bool {
    let is_mark = |letter: char| letter.is_whitespace() || "=\"\\'`{},;".contains(letter);
    !value.is_empty() && !value.contains(|letter| is_mark(letter) || is_hidden(letter))
}

/// Whether a value is a single double-quoted string, as `Debug` writes it.
fn is_quoted(value: &str) -> bool {
    let Some(inner) = value.strip_prefix('"').and_then(|it| it.strip_suffix('"')) else {
        return false;
    };
    let mut is_escaped = false;
    let is_whole = inner.chars().all(|letter| {
        let is_inside = is_escaped || letter != '"';
        is_escaped = letter == '\\' && !is_escaped;
        is_inside && !is_hidden(letter)
    });
    is_whole && !is_escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use std::sync::Arc;

    /// Writer that captures its input.
    #[derive(Clone, Default)]
    struct CapturedLog(Arc<Mutex<Vec<u8>>>);

    impl io::Write for CapturedLog {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(log: impl FnOnce()) -> String {
        let kept = CapturedLog::default();
        let writer = kept.clone();
        let shown =
            tracing_subscriber::fmt::layer().with_target(false).with_ansi(false).without_time();
        let shown = shown.fmt_fields(QuotedFields).with_writer(move || Visible(writer.clone()));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(shown), log);
        let bytes = kept.0.lock().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn log_values_cannot_forge_fields_or_lines() {
        let forged = "x\n2026-01-01 ERROR gone principal=admin \u{1b}[2J\u{202e}";
        let line = logged(|| tracing::warn!(server = %forged, count = 3, "failed"));
        let expected = r#" WARN failed server="x\n2026-01-01 ERROR gone principal=admin \u{1b}[2J\u{202e}" count=3"#;
        assert_eq!(line, format!("{expected}\n"));
        for forged in [
            "a b=c",
            "a=b",
            "a\" b=\"c",
            "\"a\" b=\"c\"",
            "\"a\\\"",
            "\\",
            "",
            "a}: b{c",
            "it's",
            "\u{85}",
        ] {
            let line = logged(|| tracing::warn!(server = %forged, last = 1, "m"));
            let value =
                line.strip_prefix(" WARN m server=").unwrap().strip_suffix(" last=1\n").unwrap();
            assert!(is_quoted(value), "{forged:?}: {line}");
        }
    }

    #[test]
    fn plain_words_and_debug_strings_are_not_quoted_again() {
        let line = logged(|| {
            let span = tracing::info_span!("call", server = %"github", tool = "a b");
            let _in = span.enter();
            tracing::info!(url = %"http://h:1/x?y#z", name = "a \"b\"", took = ?std::time::Duration::from_millis(5), ok = true, "done: a b");
        });
        let expected = r#" INFO call{server=github tool="a b"}: done: a b url=http://h:1/x?y#z name="a \"b\"" took=5ms ok=true"#;
        assert_eq!(line, format!("{expected}\n"));
    }
}
