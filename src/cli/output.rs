//! Results on stdout: JSON as it came, YAML, or text for people.
//!
//! The one place that writes to stdout, where a reader that left early (`| head`) is no error.

use std::io::{ErrorKind, IsTerminal, Write};
use std::ops::RangeInclusive;

use serde_json::Value;

use super::args::{Format, Global};
use super::colours::Colours;
use super::error::CommandError;
use super::table::{self, Cell, Column, TableView};

/// Where and how results are printed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Output {
    /// Table, JSON or YAML.
    pub(super) format: Format,
    /// True when people look at it.
    pub(super) terminal: bool,
    /// How tables are drawn.
    pub(super) view: TableView,
}

/// The narrowest and the widest that `COLUMNS` can ask for.
const WIDTHS: RangeInclusive<usize> = 20..=1000;

impl Output {
    /// As the flags say; `--json` beats `--output`.
    pub(super) fn new(global: &Global) -> Self {
        let format = if global.json { Format::Json } else { global.output };
        let stdout = std::io::stdout();
        let terminal = stdout.is_terminal();
        let asked = std::env::var("COLUMNS").ok();
        let width = match terminal {
            true => terminal_size::terminal_size_of(&stdout).map(|(width, _)| width.0.into()),
            false => asked.and_then(|text| text.parse().ok()).filter(|it| WIDTHS.contains(it)),
        };
        // A terminal of which nothing is known says 0.
        let width = width.filter(|width| *width > 0);
        let colours = Colours::of_stdout(global.color);
        Self { format, terminal, view: TableView { width, colours } }
    }

    /// Prints one JSON text in the format asked for; `text` makes of it what people read.
    pub(super) fn print(
        &self,
        json: &str,
        text: impl FnOnce(&Value) -> String,
    ) -> Result<(), CommandError> {
        match self.format {
            Format::Json => write(json.as_bytes()),
            Format::Yaml => {
                let value = parse(json)?;
                let yaml = serde_yaml_ng::to_string(&value)
                    .map_err(|error| CommandError::failed(format!("cannot write YAML: {error}")))?;
                write(yaml.as_bytes())
            }
            Format::Table => write(text(&parse(json)?).as_bytes()),
        }
    }

    /// A table as wide as the terminal or `COLUMNS`, or as wide as it needs where there is neither.
    pub(super) fn table(&self, columns: &[Column], rows: Vec<Vec<Cell>>) -> String {
        table::draw(columns, rows, self.view)
    }
}

/// Writes to stdout, with a newline at the end. A closed pipe is the reader's choice.
pub(super) fn write(bytes: &[u8]) -> Result<(), CommandError> {
    write_on(bytes).map(|_| ())
}

/// The same; false if the reader has gone.
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

/// A JSON text as a tree, for drawing only.
pub(super) fn parse(json: &str) -> Result<Value, CommandError> {
    serde_json::from_str(json)
        .map_err(|error| CommandError::failed(format!("the answer cannot be shown: {error}")))
}

#[cfg(test)]
pub(super) mod tests {
    use unicode_width::UnicodeWidthStr as _;

    use super::*;

    /// A name that is as long as one of a tool can be, in narrow letters and in wide ones, and one of everyday.
    pub(in crate::cli) fn names() -> [String; 4] {
        ["files".to_owned(), "n".repeat(45), "x".repeat(120), "\u{65e5}\u{672c}".repeat(60)]
    }

    /// Holds what is drawn to the widths of terminals; in each it says what it `keeps`.
    pub(in crate::cli) fn fits(draw: impl Fn(&Output) -> String, keeps: &[&str]) {
        for width in [80, 100, 120, 200] {
            let view = TableView { width: Some(width), colours: Colours::Plain };
            let drawn = draw(&Output { format: Format::Table, terminal: true, view });
            for line in drawn.lines() {
                assert!(line.width() <= width, "{} of {width}: {line}", line.width());
            }
            for kept in keeps {
                assert!(drawn.contains(kept), "{kept} in {width}:\n{drawn}");
            }
        }
    }
}
