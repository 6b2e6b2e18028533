//! Terminal output: results on stdout (JSON, YAML or text), colors, progress, confirmation prompts and wrapped
//! paragraphs.
//!
//! This is the only place that writes to stdout; a reader that closes the pipe early (`| head`) does not cause an
//! error. `--color` controls colors; without it, the terminal and the usual variables do (`NO_COLOR`, `CLICOLOR`,
//! `CLICOLOR_FORCE`, `TERM=dumb`). JSON and YAML are never colored. The progress line goes to stderr, only at a
//! terminal.
//!
//! Text written by servers and agents may contain line breaks. A [`Paragraph`] indents continuation lines, so that this
//! text never starts at the left edge, where it could be mistaken for mcpproxy's own output.

use crate::args::{Format, Global};
use crate::error::CommandError;
pub(super) use crate::style::{
    ADDED, Colors, FAINT, HEADER, HIGHLIGHT, Paragraph, REMOVED, of_state,
};
use crate::table::{Cell, Column, TableView};
use crate::terminal_safe::line;
use crate::{hints, logging, table, terminal_safe};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;
use std::borrow::Cow;
use std::io;
use std::io::{BufRead as _, ErrorKind, IsTerminal as _, Write as _};
use std::ops::RangeInclusive;
use std::pin::pin;
use std::time::Duration;

/// Destination and format of results.
#[derive(Clone, Copy, Debug)]
pub(super) struct Output {
    /// Table, JSON or YAML format.
    pub(super) format: Format,
    /// Whether stdout is a terminal.
    pub(super) terminal: bool,
    /// Width and colors of tables.
    pub(super) view: TableView,
    /// Colors of previews and prompts, which go to stderr.
    pub(super) stderr_colors: Colors,
}

/// Accepted range of `COLUMNS`.
const WIDTHS: RangeInclusive<usize> = 20..=1000;

/// Width of output: `COLUMNS` if it is valid, else that of the terminal. `None` for a pipe, and for a terminal of unknown
/// size, which reports 0.
fn output_width(columns: Option<&str>, terminal: Option<usize>) -> Option<usize> {
    let requested = columns.and_then(|text| text.parse().ok()).filter(|it| WIDTHS.contains(it));
    requested.or_else(|| terminal.filter(|width| *width > 0))
}

impl Output {
    /// Reads the global flags; `--json` overrides `--output`.
    pub(super) fn new(global: &Global) -> Self {
        let format = if global.json { Format::Json } else { global.output };
        let stdout = std::io::stdout();
        let terminal = stdout.is_terminal();
        let size = terminal.then(|| terminal_size::terminal_size_of(&stdout)).flatten();
        let columns = std::env::var("COLUMNS").ok();
        let width = output_width(columns.as_deref(), size.map(|(width, _)| width.0.into()));
        let colors = Colors::of_stdout(global.color);
        let stderr_colors = Colors::of_stderr(global.color);
        Self { format, terminal, view: TableView { width, colors }, stderr_colors }
    }

    /// Prints a JSON text in the requested format; `text` renders it for the table format.
    pub(super) fn print(
        &self,
        json: &str,
        text: impl FnOnce(&Value) -> String,
    ) -> Result<(), CommandError> {
        match self.format {
            Format::Json if self.terminal => write(laid_out(&self.json(json)).as_bytes()),
            Format::Json => write(json.as_bytes()),
            Format::Yaml => write(self.yaml(&parse(json)?)?.as_bytes()),
            Format::Table => match text(&parse(json)?) {
                shown if shown.is_empty() => Ok(()),
                shown => write(shown.as_bytes()),
            },
        }
    }

    /// Text of a list without entries. A program counts rows, so in a pipe it goes to stderr and the result is empty.
    pub(super) fn none(&self, message: &str) -> String {
        if self.view.width.is_some() || self.terminal {
            return Paragraph::new(self.view.width).text(&hints::commands(message));
        }
        logging::print_line(message);
        String::new()
    }

    /// A table with the text around it. A program reads only rows, so in a pipe the text goes to stderr.
    pub(super) fn with_notes(&self, before: &str, table: String, after: &str) -> String {
        if self.view.width.is_some() || self.terminal {
            return format!("{before}{table}{after}\n");
        }
        for note in [before, after] {
            note.lines().filter(|line| !line.is_empty()).for_each(logging::print_line);
        }
        table
    }

    /// Prints a value that a program may need alone: in a pipe stdout gets only `value`, and stderr the `note`. A person gets
    /// what `text` makes of both.
    pub(super) fn print_value(
        &self,
        json: &str,
        (value, note): (&str, &str),
        text: impl FnOnce(&str, &str) -> String,
    ) -> Result<(), CommandError> {
        match self.format {
            Format::Table if !self.terminal => {
                logging::print_line(note);
                write(format!("{value}\n").as_bytes())
            }
            Format::Json | Format::Yaml | Format::Table => self.print(json, |_| text(value, note)),
        }
    }

    /// Returns the JSON text to print. At a terminal, hidden characters are escaped.
    pub(super) fn json<'t>(&self, json: &'t str) -> Cow<'t, str> {
        if self.terminal { terminal_safe::json(json) } else { Cow::Borrowed(json) }
    }

    /// Serializes a value as YAML. At a terminal, hidden characters are escaped.
    pub(super) fn yaml(&self, value: &Value) -> Result<String, CommandError> {
        let written = match self.terminal {
            true => terminal_safe::yaml(value),
            false => serde_yaml_ng::to_string(value),
        };
        written.map_err(|error| CommandError::failed(format!("cannot write YAML: {error}")))
    }

    /// Draws a table for the width of the terminal or `COLUMNS`; the width is unlimited if neither is known.
    pub(super) fn table(&self, columns: &[Column], rows: Vec<Vec<Cell>>) -> String {
        table::draw(columns, rows, self.view)
    }
}

/// Maximum number of levels of laid out JSON that are indented.
const MAX_INDENT: usize = 32;

/// JSON with a line per member and element. Names, texts and numbers keep their spelling.
fn laid_out(json: &str) -> String {
    let mut shown = String::with_capacity(json.len() * 2);
    let (mut depth, mut is_text, mut is_escaped) = (0_usize, false, false);
    let line = |shown: &mut String, depth: usize| {
        shown.push('\n');
        shown.extend(std::iter::repeat_n("  ", depth.min(MAX_INDENT)));
    };
    for char in json.chars() {
        if is_text {
            shown.push(char);
            is_text = is_escaped || char != '"';
            is_escaped = !is_escaped && char == '\\';
            continue;
        }
        let opens = matches!(char, '{' | '[');
        match char {
            ' ' | '\n' | '\r' | '\t' => continue,
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                // An empty object or list stays on its line.
                if !shown.ends_with(['{', '[']) {
                    line(&mut shown, depth);
                }
            }
            _ if shown.ends_with(['{', '[']) || shown.ends_with(',') => line(&mut shown, depth),
            _ => {}
        }
        shown.push(char);
        depth += usize::from(opens);
        is_text = char == '"';
        if char == ':' {
            shown.push(' ');
        }
    }
    shown
}

/// Writes to stdout, ending with a newline. A closed pipe is not an error.
pub(super) fn write(bytes: &[u8]) -> Result<(), CommandError> {
    write_on(bytes).map(|_| ())
}

/// Like [`write`]; returns false if the reader has closed the pipe.
pub(super) fn write_on(bytes: &[u8]) -> Result<bool, CommandError> {
    let mut out = std::io::stdout().lock();
    let newline: &[u8] = if bytes.ends_with(b"\n") { b"" } else { b"\n" };
    let written =
        out.write_all(bytes).and_then(|()| out.write_all(newline)).and_then(|()| out.flush());
    match written {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(CommandError::failed(format!("cannot write to stdout: {error}")))
        }
        Ok(()) => Ok(true),
        Err(_) => Ok(false),
    }
}

/// Parses a JSON response for rendering.
pub(super) fn parse(json: &str) -> Result<Value, CommandError> {
    serde_json::from_str(json).map_err(|error| {
        CommandError::failed(format!("cannot parse the proxy's response: {error}"))
    })
}

/// Delay before the spinner appears.
const AFTER: Duration = Duration::from_millis(250);
/// Interval between spinner updates.
const STEP: Duration = Duration::from_millis(100);

/// Awaits `work` and shows `message` on stderr while waiting, if stderr is a terminal.
pub(super) async fn during<T>(message: impl Fn() -> String, work: impl Future<Output = T>) -> T {
    if !std::io::stderr().is_terminal() {
        return work.await;
    }
    let mut work = pin!(work);
    tokio::select! {
        biased;
        done = &mut work => return done,
        () = tokio::time::sleep(AFTER) => {}
    }
    let bar = ProgressBar::new_spinner();
    let style = ProgressStyle::with_template("{spinner} {wide_msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    loop {
        bar.set_message(line(&message()).into_owned());
        bar.tick();
        tokio::select! {
            biased;
            done = &mut work => {
                bar.finish_and_clear();
                return done;
            }
            () = tokio::time::sleep(STEP) => {}
        }
    }
}

/// Maximum size of an answer in bytes.
const ANSWER_BYTES: u64 = 1024;

/// Shows a preview, which may be empty, and asks for confirmation. `yes` skips the question; without `yes`, a missing terminal is an error.
pub(super) fn confirm(shown: &str, question: &str, yes: bool) -> Result<bool, CommandError> {
    let answer = ask(shown, &format!("{question} [y/N]"), yes)?;
    Ok(answer.is_none_or(|answer| is_yes(&answer)))
}

/// Maximum number of times that the same question is asked.
const MAX_QUESTIONS: usize = 3;

/// Shows a preview of numbered items and asks which to choose: all, or some by their numbers, starting at 1. Returns
/// their indexes; `yes` means all. A missing terminal is an error.
pub(super) fn choose(
    shown: &str,
    question: &str,
    count: usize,
    yes: bool,
) -> Result<Vec<usize>, CommandError> {
    let options = if count == 1 { "[y/N]" } else { "[y/N, or numbers such as 1,3-5]" };
    let (mut shown, mut question) = (shown, format!("{question} {options}"));
    for _ in 0..MAX_QUESTIONS {
        let Some(answer) = ask(shown, &question, yes)? else { return Ok((0..count).collect()) };
        match numbers(&answer, count) {
            _ if is_yes(&answer) => return Ok((0..count).collect()),
            Some(chosen) => return Ok(chosen),
            None if answer.contains(|char: char| char.is_ascii_digit()) => {}
            None => return Ok(Vec::new()),
        }
        (shown, question) =
            ("", format!("The numbers go from 1 to {count}, such as 1,3-5. Which? {options}"));
    }
    Err(CommandError::usage(format!("the numbers go from 1 to {count}, such as 1,3-5")))
}

/// Parses a list of numbers and ranges from 1 to `count` into indexes, in order; `None` if the text is not such a list.
fn numbers(text: &str, count: usize) -> Option<Vec<usize>> {
    let mut chosen = vec![false; count];
    for part in text.split([',', ' ']).filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if first > last {
            return None;
        }
        chosen.get_mut(first.checked_sub(1)?..last)?.fill(true);
    }
    let chosen = chosen.into_iter().enumerate();
    Some(chosen.filter_map(|(at, is_chosen)| is_chosen.then_some(at)).collect())
}

fn is_yes(answer: &str) -> bool {
    matches!(answer.to_lowercase().as_str(), "y" | "yes")
}

/// Shows a preview and asks a question; `None` if `yes` skips it.
fn ask(shown: &str, question: &str, yes: bool) -> Result<Option<String>, CommandError> {
    if !yes && !io::stdin().is_terminal() {
        let words = "confirmation needs a terminal: pass --yes, or --dry-run for a preview";
        return Err(CommandError::usage(words));
    }
    // stdout is reserved for the result.
    let mut stderr = io::stderr();
    if !shown.is_empty() {
        let _ = writeln!(stderr, "{}", shown.trim_end());
    }
    if yes {
        return Ok(None);
    }
    let _ = write!(stderr, "{question} ");
    let _ = stderr.flush();
    let mut answer = String::new();
    let mut stdin = io::Read::take(io::stdin().lock(), ANSWER_BYTES);
    stdin.read_line(&mut answer).map_err(CommandError::failed)?;
    Ok(Some(answer.trim().to_owned()))
}

/// Reports a declined confirmation.
pub(super) fn declined() -> Result<(), CommandError> {
    write(b"Nothing was changed.")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    #[test]
    fn json_is_laid_out_and_keeps_its_spelling() {
        let json = r#"{"a":1.0,"b": [ ],"c":[{"d":"x,{\"y\":[1]} \\"},2e5],"e":{}}"#;
        let shown = laid_out(json);
        let expected = [
            "{",
            r#"  "a": 1.0,"#,
            r#"  "b": [],"#,
            r#"  "c": ["#,
            "    {",
            r#"      "d": "x,{\"y\":[1]} \\""#,
            "    },",
            "    2e5",
            "  ],",
            r#"  "e": {}"#,
            "}",
        ];
        assert_eq!(shown.lines().collect::<Vec<_>>(), expected);
        let parsed = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        assert_eq!(parsed(&shown), parsed(json));
        assert!(laid_out(&"[".repeat(100_000)).len() < 100_000 * (2 + 2 * MAX_INDENT));
    }
    use unicode_width::UnicodeWidthStr;

    #[test]
    fn valid_columns_variable_sets_the_width_also_at_a_terminal() {
        for (columns, terminal, width) in [
            (Some("100"), None, Some(100)),
            (Some("100"), Some(0), Some(100)),
            (Some("100"), Some(80), Some(100)),
            (None, Some(80), Some(80)),
            (Some("wide"), Some(80), Some(80)),
            (Some("19"), Some(80), Some(80)),
            (Some("0"), None, None),
            (None, Some(0), None),
            (None, None, None),
        ] {
            assert_eq!(output_width(columns, terminal), width, "{columns:?} {terminal:?}");
        }
    }

    #[test]
    fn numbers_choose_items_and_anything_else_is_refused() {
        for (text, chosen) in [
            ("1", Some(vec![0])),
            ("3,1", Some(vec![0, 2])),
            ("2-4 4", Some(vec![1, 2, 3])),
            ("1-1,", Some(vec![0])),
            ("", Some(vec![])),
            ("0", None),
            ("5", None),
            ("3-5", None),
            ("3-2", None),
            ("1-18446744073709551615", None),
            ("99999999999999999999", None),
            ("-1", None),
            ("1-", None),
            ("one", None),
        ] {
            assert_eq!(numbers(text, 4), chosen, "{text}");
        }
    }

    /// Server names of different lengths: usual, long, maximum, and maximum with double-width letters.
    pub(crate) fn names() -> [String; 4] {
        ["files".to_owned(), "n".repeat(45), "x".repeat(120), "\u{65e5}\u{672c}".repeat(60)]
    }

    /// Asserts that the drawn text fits common terminal widths and contains each text in `keeps`.
    pub(crate) fn fits(draw: impl Fn(&Output) -> String, keeps: &[&str]) {
        for width in [80, 100, 120, 200] {
            let view = TableView { width: Some(width), colors: Colors::Plain };
            let drawn = draw(&Output {
                format: Format::Table,
                terminal: true,
                view,
                stderr_colors: Colors::Plain,
            });
            for line in drawn.lines() {
                assert!(line.width() <= width, "{} of {width}: {line}", line.width());
            }
            for kept in keeps {
                assert!(drawn.contains(kept), "{kept} in {width}:\n{drawn}");
            }
        }
    }
}
