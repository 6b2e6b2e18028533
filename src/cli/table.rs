//! Tables for people, and the text of their cells.

use comfy_table::{ColumnConstraint, ContentArrangement, Table, presets};

use super::terminal_safe::clean;

/// Most characters of one table cell; `show` has the rest.
const CELL_CHARS: usize = 160;

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
