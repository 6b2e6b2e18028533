//! Tables for people, and the text of their cells.
//!
//! A table that has to fit leaves out columns, the least important first, and cuts the one column of free text.
//! No other cell is cut, no word and no id is broken, and a row is one line. How wide a terminal is, and
//! whether it has colours, is not asked here.

use std::borrow::Cow;
use std::fmt::Write as _;

use anstyle::Style;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::colours::{Colours, HEADER};
use super::terminal_safe::clean;

/// Most characters of one table cell; `show` has the rest.
const CELL_CHARS: usize = 160;
/// Blanks between two columns.
const GAP: usize = 2;
/// Room that is made for the free text, if it needs as much, by leaving out other columns.
const FREE_WIDTH: usize = 24;

/// What becomes of a column where there is no room for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// It stays as it is: it is what one copies.
    Whole,
    /// It is left out, those with the highest number first.
    Rank(u8),
    /// It is cut. A table has one such column at most.
    Free,
}

/// One column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Column {
    name: Cow<'static, str>,
    fit: Fit,
}

impl Column {
    pub(super) fn new(name: impl Into<Cow<'static, str>>, fit: Fit) -> Self {
        Self { name: name.into(), fit }
    }

    /// All of a table.
    pub(super) fn all<const N: usize>(columns: [(&'static str, Fit); N]) -> Vec<Self> {
        columns.into_iter().map(|(name, fit)| Self::new(name, fit)).collect()
    }
}

/// What stands in a column of a row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) text: String,
    pub(super) style: Style,
}

impl Cell {
    /// Coloured text.
    pub(super) fn styled(text: impl Into<String>, style: Style) -> Self {
        Self { text: text.into(), style }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::styled(text, Style::new())
    }
}

/// What a table is drawn for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TableView {
    /// Columns of the terminal; `None`: as wide as it needs.
    pub(super) width: Option<usize>,
    pub(super) colours: Colours,
}

/// Which columns of a table are shown, and how wide each is.
#[derive(Debug)]
pub(super) struct TableLayout {
    shown: Vec<Shown>,
    colours: Colours,
    left_out: Vec<String>,
}

/// A column that is shown.
#[derive(Debug)]
struct Shown {
    index: usize,
    name: String,
    width: usize,
    fit: Fit,
}

impl TableLayout {
    /// Chooses among columns that are as wide as `widths` says, of which `filled` have something to tell.
    pub(super) fn new(
        columns: &[Column],
        widths: &[usize],
        filled: &[bool],
        view: TableView,
    ) -> Self {
        let named = columns.iter().zip(widths.iter().copied()).enumerate();
        let mut shown: Vec<Shown> = named
            .map(|(index, (Column { name, fit }, width))| Shown {
                index,
                name: name.to_string(),
                width: width.max(name.width()),
                fit: *fit,
            })
            .collect();
        let mut left_out = Vec::new();
        if let Some(width) = view.width {
            while needed(&shown) > width {
                let is_empty = |it: &Shown| !filled.get(it.index).copied().unwrap_or_default();
                let rank = |it: &Shown| match it.fit {
                    Fit::Rank(rank) => Some((is_empty(it), rank)),
                    Fit::Whole | Fit::Free => None,
                };
                let ranks = shown.iter().enumerate().filter_map(|(at, it)| Some((rank(it)?, at)));
                let Some((_, at)) = ranks.max() else { break };
                left_out.push(shown.remove(at).name);
            }
            let others: usize = shown.iter().filter(|it| it.fit != Fit::Free).map(wide).sum();
            for free in shown.iter_mut().filter(|it| it.fit == Fit::Free) {
                free.width = free.width.min(width.saturating_sub(others));
            }
            // Where what one copies takes it all, nothing is left of the text.
            shown.retain(|it| it.fit != Fit::Free || it.width >= it.name.width());
        }
        Self { shown, colours: view.colours, left_out }
    }

    /// The line above the rows.
    pub(super) fn header(&self) -> String {
        self.joined(|it| (it.name.clone(), HEADER))
    }

    /// A row as a line.
    pub(super) fn line(&self, cells: &[Cell]) -> String {
        self.joined(|it| {
            let Cell { text, style } = cells.get(it.index).cloned().unwrap_or_default();
            match it.fit {
                Fit::Free => (cut(&text, it.width), style),
                Fit::Whole | Fit::Rank(_) => (text, style),
            }
        })
    }

    fn joined(&self, cell: impl Fn(&Shown) -> (String, Style)) -> String {
        let mut line = String::new();
        let mut blanks = 0;
        for shown in &self.shown {
            let (text, style) = cell(shown);
            let width = text.width();
            if width > 0 {
                line.extend(std::iter::repeat_n(' ', blanks));
                blanks = 0;
                match self.colours {
                    Colours::Styled if style != Style::new() => {
                        let _ = write!(line, "{style}{text}{style:#}");
                    }
                    Colours::Styled | Colours::Plain => line.push_str(&text),
                }
            }
            blanks += shown.width.saturating_sub(width) + GAP;
        }
        line
    }
}

/// A column with the gap behind it.
fn wide(shown: &Shown) -> usize {
    shown.width + GAP
}

/// What the columns need, with little room for the free text.
fn needed(shown: &[Shown]) -> usize {
    let of = |it: &Shown| match it.fit {
        Fit::Free => it.width.min(FREE_WIDTH.max(it.name.width())) + GAP,
        Fit::Whole | Fit::Rank(_) => wide(it),
    };
    shown.iter().map(of).sum::<usize>().saturating_sub(GAP)
}

/// The table itself. Cells are made by [`cell`].
pub(super) fn draw(columns: &[Column], rows: Vec<Vec<Cell>>, view: TableView) -> String {
    let mut widths = vec![0; columns.len()];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.text.width().max(*width);
        }
    }
    let filled: Vec<bool> = widths.iter().map(|width| *width > 0).collect();
    let layout = TableLayout::new(columns, &widths, &filled, view);
    let mut drawn = layout.header();
    drawn.push('\n');
    for row in rows {
        drawn.push_str(&layout.line(&row));
        drawn.push('\n');
    }
    if !layout.left_out.is_empty() {
        let told = format!("(no room for {}: -o json has all)", layout.left_out.join(", "));
        let _ = writeln!(drawn, "{}", cut(&told, view.width.unwrap_or(usize::MAX)));
    }
    drawn
}

/// What somebody wrote, as one line of a cell.
pub(super) fn cell(text: &str) -> String {
    let line = clean(text).split_whitespace().collect::<Vec<_>>().join(" ");
    cut(&line, CELL_CHARS)
}

/// At most `most` columns of a terminal, with an ellipsis where something is missing; cut between two words, unless the
/// first alone is too long.
pub(super) fn cut(text: &str, most: usize) -> String {
    if text.width() <= most {
        return text.to_owned();
    }
    let (mut kept, mut width) = (String::new(), 0);
    let mut next = None;
    for letter in text.chars() {
        width += letter.width().unwrap_or_default();
        if width >= most {
            next = Some(letter);
            break;
        }
        kept.push(letter);
    }
    if next.is_some_and(|next| !next.is_whitespace())
        && let Some((words, _)) = kept.rsplit_once(char::is_whitespace)
    {
        kept.truncate(words.len());
    }
    kept.truncate(kept.trim_end().len());
    if most > 0 {
        kept.push('…');
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "01KAJ2Z8Q4T5V6W7X8Y9Z0A1B2";

    fn view(width: usize) -> TableView {
        TableView { width: (width > 0).then_some(width), colours: Colours::Plain }
    }

    fn servers() -> (Vec<Column>, Vec<Vec<Cell>>) {
        let columns = Column::all([
            ("NAME", Fit::Whole),
            ("STATE", Fit::Rank(1)),
            ("TOOLS", Fit::Rank(2)),
            ("NOTE", Fit::Rank(1)),
            ("REASON", Fit::Free),
        ]);
        let row = |name: &str, reason: &str| {
            ["", "connected", "12", "", ""]
                .into_iter()
                .enumerate()
                .map(|(at, text)| match at {
                    0 => Cell::from(name),
                    4 => Cell::from(reason),
                    _ => Cell::from(text),
                })
                .collect()
        };
        (columns, vec![row("files", ""), row("a-server", &"the reason is long ".repeat(5))])
    }

    #[test]
    fn a_table_fits_its_width_and_keeps_ids_and_words_whole() {
        for width in [30, 40, 60, 80, 100, 200] {
            let columns = Column::all([("ID", Fit::Whole), ("TEXT", Fit::Free)]);
            let rows = vec![vec![ID.into(), "word ".repeat(30).into()]];
            let drawn = draw(&columns, rows, view(width));
            assert!(drawn.lines().all(|line| line.width() <= width), "{width}:\n{drawn}");
            assert!(drawn.contains(ID), "{drawn}");
            assert_eq!(drawn.lines().count(), 2, "a row is a line: {drawn}");
        }
    }

    #[test]
    fn the_least_important_column_goes_first_and_before_it_what_is_empty() {
        let names = |width| {
            let (columns, rows) = servers();
            let drawn = draw(&columns, rows, view(width));
            assert!(width == 0 || drawn.lines().all(|line| line.width() <= width), "{drawn}");
            drawn.lines().next().unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(names(0), "NAME STATE TOOLS NOTE REASON");
        assert_eq!(names(200), "NAME STATE TOOLS NOTE REASON");
        assert_eq!(names(55), "NAME STATE TOOLS REASON");
        assert_eq!(names(50), "NAME STATE REASON");
        assert_eq!(names(36), "NAME REASON");
        assert_eq!(names(12), "NAME");
    }

    #[test]
    fn what_was_left_out_is_named() {
        let (columns, rows) = servers();
        let drawn = draw(&columns, rows, view(50));
        assert!(drawn.ends_with("(no room for NOTE, TOOLS: -o json has all)\n"), "{drawn}");
    }

    #[test]
    fn off_the_terminal_a_row_is_a_line_and_nothing_is_left_out() {
        let columns = Column::all([("A", Fit::Rank(9)), ("B", Fit::Free)]);
        let rows = vec![vec![cell("a").into(), cell(&"one\ntwo ".repeat(8)).into()]];
        let drawn = draw(&columns, rows, view(0));
        assert_eq!(drawn.lines().count(), 2, "{drawn}");
        assert!(drawn.contains("one two one two"), "{drawn}");
    }

    #[test]
    fn wide_letters_count_as_the_terminal_shows_them() {
        let columns = Column::all([("A", Fit::Whole), ("B", Fit::Free)]);
        let rows =
            vec![vec!["日本".into(), "語語語語語語語語語語".into()], vec!["ab".into(), "x".into()]];
        let drawn = draw(&columns, rows, view(16));
        assert!(drawn.lines().all(|line| line.width() <= 16), "{drawn}");
        assert!(drawn.lines().any(|line| line == "ab    x"), "{drawn}");
    }

    #[test]
    fn colours_take_no_room() {
        let columns = Column::all([("A", Fit::Whole), ("B", Fit::Whole)]);
        let red = crate::cli::colours::of_state("failed");
        let rows = vec![vec![Cell::styled("x", red), "y".into()]];
        let view = TableView { width: Some(10), colours: Colours::Styled };
        let drawn = draw(&columns, rows, view);
        assert_eq!(drawn.lines().nth(1), Some("\u{1b}[31mx\u{1b}[0m  y"));
    }

    #[test]
    fn long_cells_are_cut_on_a_character() {
        assert_eq!(cut("ééé", 2), "é…");
        assert_eq!(cut("éé", 2), "éé");
        assert_eq!(cut("日本語", 4), "日…");
        assert_eq!(cut("ab", 0), "");
    }

    #[test]
    fn no_word_is_broken_but_one_that_is_too_long_by_itself() {
        for (most, shown) in [
            (19, "its answers cannot…"),
            (18, "its answers…"),
            (17, "its answers…"),
            (4, "its…"),
            (3, "it…"),
        ] {
            assert_eq!(cut("its answers cannot be", most), shown, "{most}");
        }
    }
}
