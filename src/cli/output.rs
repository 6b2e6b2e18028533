//! Results on stdout: JSON as it came, YAML, or text for people.
//!
//! The one place that writes to stdout, where a reader that left early (`| head`) is no error.

use std::io::{ErrorKind, IsTerminal, Write};

use serde_json::Value;

use super::args::{Format, Global};
use super::error::CommandError;
use super::table;

/// Where and how results are printed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Output {
    /// Table, JSON or YAML.
    pub(super) format: Format,
    /// True when people look at it.
    pub(super) terminal: bool,
}

impl Output {
    /// As the flags say; `--json` beats `--output`.
    pub(super) fn new(global: &Global) -> Self {
        let format = if global.json { Format::Json } else { global.output };
        Self { format, terminal: std::io::stdout().is_terminal() }
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

    /// The terminal's columns, where there is one.
    pub(super) fn width(&self) -> Option<u16> {
        comfy_table::Table::new().width().filter(|_| self.terminal)
    }

    /// A table as wide as the terminal, or as wide as it needs where there is none. The columns
    /// in `whole` are never broken: they are what one copies.
    pub(super) fn table(
        &self,
        header: &[&str],
        rows: impl IntoIterator<Item = Vec<String>>,
        whole: &[usize],
    ) -> String {
        table::draw(header, rows, whole, self.width())
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
