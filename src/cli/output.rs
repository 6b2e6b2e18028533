//! How results look: tables that fit the terminal, JSON as it came, YAML; icons for people only.
//!
//! Also the one place that writes to stdout, where a reader that left early (`| head`) is no
//! error. What servers and agents wrote is made safe to look at in [`super::terminal_safe`].

use std::borrow::Cow;
use std::io::{ErrorKind, IsTerminal, Write};

use comfy_table::{ColumnConstraint, ContentArrangement, Table, presets};
use serde_json::Value;

use super::args::{Format, Global};
use super::error::CommandError;
pub(super) use super::terminal_safe::clean;

/// Most characters of one table cell; the rest is for `show`.
const CELL_CHARS: usize = 160;

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

    /// Prints one JSON text in the format asked for; `table` draws it for people.
    pub(super) fn print(
        &self,
        json: &str,
        table: impl FnOnce(&Value) -> String,
    ) -> Result<(), CommandError> {
        match self.format {
            Format::Json => write(json.as_bytes()),
            Format::Yaml => {
                let value = parse(json)?;
                let yaml = serde_yaml_ng::to_string(&value)
                    .map_err(|error| CommandError::failed(format!("cannot write YAML: {error}")))?;
                write(yaml.as_bytes())
            }
            Format::Table => write(table(&parse(json)?).as_bytes()),
        }
    }

    /// The terminal's columns, where there is one.
    pub(super) fn width(&self) -> Option<u16> {
        Table::new().width().filter(|_| self.terminal)
    }

    /// A table as wide as the terminal, or as wide as it needs where there is none. The columns
    /// in `whole` are never broken: they are what one copies.
    pub(super) fn table(
        &self,
        header: &[&str],
        rows: impl IntoIterator<Item = Vec<String>>,
        whole: &[usize],
    ) -> String {
        draw(header, rows, whole, self.width())
    }
}

/// The table itself, fit into `width` if there is one. Cells are made by [`cell`]; a line end in
/// one is meant.
pub(super) fn draw(
    header: &[&str],
    rows: impl IntoIterator<Item = Vec<String>>,
    whole: &[usize],
    width: Option<u16>,
) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header).add_rows(rows);
    table.set_content_arrangement(ContentArrangement::Disabled);
    if let Some(width) = width {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if whole.contains(&index) {
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
    let mut text = table.trim_fmt();
    text.push('\n');
    text
}

/// Writes to stdout, with a newline at the end. A closed pipe is the reader's choice.
pub(super) fn write(bytes: &[u8]) -> Result<(), CommandError> {
    write_on(bytes).map(|_| ())
}

/// The same; says whether anybody still reads.
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

/// The text at a JSON pointer: strings as they are, other values as JSON, nothing as "".
pub(super) fn text<'a>(value: &'a Value, pointer: &str) -> Cow<'a, str> {
    match value.pointer(pointer) {
        None | Some(Value::Null) => Cow::Borrowed(""),
        Some(Value::String(text)) => Cow::Borrowed(text),
        Some(other) => Cow::Owned(other.to_string()),
    }
}

/// The array at a JSON pointer, or none.
pub(super) fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// What somebody wrote, as one line of a cell.
pub(super) fn cell(text: &str) -> String {
    let line = clean(text).split_whitespace().collect::<Vec<_>>().join(" ");
    cut(&line, CELL_CHARS)
}

/// At most `most` characters, with an ellipsis where something is missing.
pub(super) fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_owned(),
        Some(_) => text.chars().take(most.saturating_sub(1)).chain(['…']).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_fits_its_width_and_keeps_ids_whole() {
        let id = "01KAJ2Z8Q4T5V6W7X8Y9Z0A1B2".to_owned();
        let rows = vec![vec![id.clone(), "word ".repeat(30)]];
        let drawn = draw(&["ID", "TEXT"], rows, &[0], Some(60));
        assert!(drawn.lines().all(|line| line.chars().count() <= 60), "{drawn}");
        assert!(drawn.contains(&id), "{drawn}");
    }

    #[test]
    fn off_the_terminal_a_row_is_a_line() {
        let rows = vec![vec![cell("a"), cell(&"one\ntwo ".repeat(8))]];
        let drawn = draw(&["A", "B"], rows, &[], None);
        assert_eq!(drawn.lines().count(), 2, "{drawn}");
    }

    #[test]
    fn long_cells_are_cut_on_a_character() {
        assert_eq!(cut("ééé", 2), "é…");
        assert_eq!(cut("éé", 2), "éé");
    }
}
