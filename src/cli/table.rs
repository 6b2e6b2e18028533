//! Tables for people, and the text of their cells.
//!
//! A table that has to fit cuts the one column of free text and leaves out columns, the least important first. One long cell
//! takes no other column's room: a name or a value that is longer than its share of the width is cut. Ids and states are
//! neither cut nor left out, and a row is one line. How wide a terminal is, and whether it has colours, is not asked here.

use std::borrow::Cow;
use std::fmt::Write as _;

use anstyle::Style;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::colours::{Colours, HEADER};
use super::paragraph::Paragraph;
use super::terminal_safe::clean;

/// Most characters of one table cell; `show` has the rest.
const CELL_CHARS: usize = 160;
/// Blanks between two columns.
const GAP: usize = 2;
/// Room that is made for the free text, if it needs as much, by leaving out other columns.
const FREE_WIDTH: usize = 24;
/// Room that names leave to the free text, if it needs as much.
const LEAST_FREE: usize = 12;
/// Hundredths of the width that a name may take where there is no room for all.
const NAME_SHARE: usize = 60;
/// The same of a column that may be left out.
const RANK_SHARE: usize = 25;
/// The least that is left of a name, where even that does not fit.
const MIN_NAME: usize = 4;

/// What becomes of a column where there is no room for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// It stays as it is: an id, or one of a few words of ours that say how something is.
    Whole,
    /// It stays, and is cut where it is longer than its share: what somebody named.
    Name,
    /// It is cut where it is longer than its share, and left out, those with the highest number first.
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
    view: TableView,
    left_out: Vec<String>,
}

/// A column that is shown.
#[derive(Debug)]
struct Shown {
    index: usize,
    name: String,
    /// What its longest cell needs.
    whole: usize,
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
            .map(|(index, (Column { name, fit }, width))| {
                let width = width.max(name.width());
                Shown { index, name: name.to_string(), whole: width, width, fit: *fit }
            })
            .collect();
        let is_empty = |it: &Shown| !filled.get(it.index).copied().unwrap_or_default();
        let mut left_out = Vec::new();
        if let Some(width) = view.width {
            if needed(&shown, FREE_WIDTH) > width {
                shown.iter_mut().for_each(|it| it.width = it.share_of(width));
            }
            while needed(&shown, FREE_WIDTH) > width {
                let ranks = shown.iter().enumerate().filter_map(|(at, it)| match it.fit {
                    Fit::Rank(rank) => Some(((is_empty(it), rank), at)),
                    Fit::Whole | Fit::Name | Fit::Free => None,
                });
                let Some((_, at)) = ranks.max() else { break };
                left_out.push(shown.remove(at));
            }
            // What was left out before a wider one may fit beside what is left.
            let mut rest = Vec::new();
            while let Some(column) = left_out.pop() {
                match needed(&shown, FREE_WIDTH) + column.width + GAP <= width {
                    true => shown.push(column),
                    false => rest.push(column),
                }
            }
            left_out = rest;
            left_out.reverse();
            shown.sort_by_key(|it| it.index);
            give(&mut shown, width);
        }
        let left_out = left_out.into_iter().map(|it| it.name).collect();
        Self { shown, view, left_out }
    }

    /// The line above the rows.
    pub(super) fn header(&self) -> String {
        self.joined(|it| (it.name.clone(), HEADER))
    }

    /// A row as a line.
    pub(super) fn line(&self, cells: &[Cell]) -> String {
        self.joined(|it| {
            let Cell { text, style } = cells.get(it.index).cloned().unwrap_or_default();
            match (it.fit, self.view.width) {
                (Fit::Free, _) | (Fit::Name | Fit::Rank(_), Some(_)) => {
                    (cut(&text, it.width), style)
                }
                // Who reads a pipe wants all of it.
                (Fit::Name | Fit::Rank(_), None) | (Fit::Whole, _) => (text, style),
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
                match self.view.colours {
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

impl Shown {
    /// What it may take of a width that is too little for all.
    fn share_of(&self, width: usize) -> usize {
        match self.fit {
            Fit::Name => self.at_most(width * NAME_SHARE / 100),
            Fit::Rank(_) => self.at_most(width * RANK_SHARE / 100),
            Fit::Whole | Fit::Free => self.whole,
        }
    }

    fn at_most(&self, share: usize) -> usize {
        self.whole.min(share.max(self.name.width()))
    }
}

/// Gives the columns that are shown the room that there is: the free text what the others leave, and what that does not need
/// to names, then to the others.
fn give(shown: &mut Vec<Shown>, width: usize) {
    while needed(shown, LEAST_FREE) > width {
        let names = shown.iter_mut().filter(|it| it.fit == Fit::Name && it.width > MIN_NAME);
        let Some(widest) = names.max_by_key(|it| it.width) else { break };
        widest.width -= 1;
    }
    shown.iter_mut().filter(|it| it.fit == Fit::Free).for_each(|it| it.width = 0);
    let turn = |fit: Fit| match fit {
        Fit::Free => 0,
        Fit::Name => 1,
        Fit::Rank(_) | Fit::Whole => 2,
    };
    for now in 0..=2 {
        // Where what one copies takes it all, nothing is left of the text.
        shown.retain(|it| now == 0 || it.fit != Fit::Free || it.width >= it.name.width());
        for at in 0..shown.len() {
            let left = width.saturating_sub(taken(shown));
            let Some(column) = shown.get_mut(at).filter(|it| turn(it.fit) == now) else { continue };
            let gap = if column.width == 0 { GAP } else { 0 };
            column.width = column.whole.min(column.width + left.saturating_sub(gap));
        }
    }
}

/// What the columns take as they are.
fn taken(shown: &[Shown]) -> usize {
    let widths = shown.iter().map(|it| it.width).filter(|width| *width > 0);
    widths.map(|width| width + GAP).sum::<usize>().saturating_sub(GAP)
}

/// What the columns need, with so much room for the free text.
fn needed(shown: &[Shown], free: usize) -> usize {
    let of = |it: &Shown| match it.fit {
        Fit::Free => it.width.min(free.max(it.name.width())) + GAP,
        Fit::Whole | Fit::Name | Fit::Rank(_) => it.width + GAP,
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
        drawn += &Paragraph::new(view.width).text(&told);
        drawn.push('\n');
    }
    drawn
}

/// What somebody wrote, as one line of a cell.
pub(super) fn cell(text: &str) -> String {
    let line = clean(text).split_whitespace().collect::<Vec<_>>().join(" ");
    cut(&line, CELL_CHARS)
}

/// At most `most` columns of a terminal, with an ellipsis where something is missing; cut between two words, unless that
/// would leave more than half of the room empty.
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
        && words.width() * 2 >= most
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

    /// A table like that of the activity, with a long cell at times.
    fn calls(tool: &str) -> (Vec<Column>, Vec<Vec<Cell>>) {
        let columns = Column::all([
            ("ID", Fit::Whole),
            ("TIME (UTC)", Fit::Rank(3)),
            ("TYPE", Fit::Rank(6)),
            ("SERVER", Fit::Rank(4)),
            ("TOOL", Fit::Rank(1)),
            ("STATUS", Fit::Whole),
            ("REASON", Fit::Free),
        ]);
        let row = |id: &str, tool: &str| {
            let why = "not by the rules that are in force here";
            [id, "11-24 15:41:58", "tool_call", "files", tool, "rejected", why]
                .map(Cell::from)
                .to_vec()
        };
        (columns, vec![row("1", "read"), row("2", tool)])
    }

    #[test]
    fn a_long_name_is_cut_and_takes_no_column_with_it() {
        let names = |tool: &str, width| {
            let (columns, rows) = calls(tool);
            let drawn = draw(&columns, rows, view(width));
            assert!(drawn.lines().all(|line| line.width() <= width), "{width}:\n{drawn}");
            let at = drawn.lines().next().unwrap().find("STATUS").unwrap();
            for row in drawn.lines().skip(1).take(2) {
                // By columns of the terminal, whatever the letters.
                let (mut width, mut rest) = (0, row.chars());
                while width < at {
                    width += rest.next().and_then(|it| it.width()).unwrap();
                }
                assert!(rest.as_str().starts_with("rejected"), "{width}:\n{drawn}");
            }
            drawn.lines().next().unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
        };
        for tool in ["read_file".to_owned(), "x".repeat(120), "日本".repeat(60)] {
            let server = if tool.len() > 20 { "" } else { "SERVER " };
            let expected = format!("ID TIME (UTC) {server}TOOL STATUS REASON");
            assert_eq!(names(&tool, 80), expected, "{tool}");
            assert_eq!(names(&tool, 120), "ID TIME (UTC) TYPE SERVER TOOL STATUS REASON", "{tool}");
            assert_eq!(names(&tool, 200), "ID TIME (UTC) TYPE SERVER TOOL STATUS REASON", "{tool}");
            assert_eq!(names(&tool, 20), "ID STATUS REASON", "{tool}");
        }
    }

    #[test]
    fn a_state_stays_beside_a_name_of_any_length() {
        let columns =
            Column::all([("NAME", Fit::Name), ("STATE", Fit::Whole), ("REASON", Fit::Free)]);
        for (length, width, whole) in
            [(45, 80, true), (45, 40, false), (200, 80, false), (200, 20, false), (9, 20, false)]
        {
            let name = "n".repeat(length);
            let rows = vec![vec![Cell::from(name.as_str()), "connected".into(), "why".into()]];
            let drawn = draw(&columns, rows, view(width));
            assert!(drawn.lines().all(|line| line.width() <= width), "{width}:\n{drawn}");
            assert!(drawn.contains(" connected"), "{drawn}");
            assert_eq!(drawn.contains(&name), whole || length < 10, "{drawn}");
            assert_eq!(drawn.contains('…'), !whole && length > 9, "{drawn}");
        }
        // Nothing is cut in a pipe.
        let rows = vec![vec![Cell::from("n".repeat(200)), "connected".into(), "why".into()]];
        assert!(draw(&columns, rows, view(0)).contains(&"n".repeat(200)));
    }

    #[test]
    fn what_fits_beside_a_column_that_does_not_is_put_back() {
        let columns = Column::all([
            ("ID", Fit::Whole),
            ("B", Fit::Rank(1)),
            ("A LONG NAME", Fit::Rank(2)),
            ("D", Fit::Rank(3)),
        ]);
        let rows = vec![vec!["0123456789".into(), "b".into(), "c".into(), "d".into()]];
        let drawn = draw(&columns, rows, view(20));
        assert!(drawn.starts_with("ID          B  D\n"), "{drawn}");
        assert!(drawn.ends_with("(no room for A LONG\nNAME: -o json has\nall)\n"), "{drawn}");
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
    fn a_word_is_broken_only_where_more_than_half_of_the_room_would_be_empty() {
        for (most, shown) in [
            (19, "its answers cannot…"),
            (18, "its answers…"),
            (17, "its answers…"),
            (10, "its answe…"),
            (4, "its…"),
            (3, "it…"),
        ] {
            assert_eq!(cut("its answers cannot be", most), shown, "{most}");
        }
        let path = "command /a/long/path/that/is/one/word/to/us was not found";
        assert_eq!(cut(path, 30), "command /a/long/path/that/is/…");
    }
}
