//! Tables for people, fitted to a width.
//!
//! A table that is too wide truncates its free-text column and drops columns, starting with the least important. Names
//! and values are truncated to a share of the width, so that one long cell does not displace other columns; key columns
//! are truncated in the middle and dropped last. Ids and states are never truncated or dropped. A row is one line, and
//! text that needs more room is wrapped below it. Numbers are aligned to the right. Terminal width and colors are arguments.

use crate::output::{Colors, HEADER, Paragraph};
use crate::terminal_safe::clean;
use anstyle::Style;
use cut::{MIN_SERVER, cut_to, cut_tool, server_and_tool};
pub(super) use cut::{cut, cut_middle};
use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};
use std::fmt::Write as _;
use unicode_width::UnicodeWidthStr;

mod cut;

/// Maximum length of a table cell, in characters; `show` commands print the full value.
const CELL_CHARS: usize = 160;
/// Maximum length of a reason or description in output for a program, in characters.
pub(super) const PROGRAM_CHARS: usize = 4096;
/// Columns between two cells.
const GAP: usize = 2;
/// Width reserved for free text before droppable columns are kept, if the text needs that much.
const FREE_WIDTH: usize = 24;
/// Width that remains for free text next to names, if the text needs that much.
const MIN_FREE: usize = 12;
/// Percentage of the width that a name may take if the table does not fit.
const NAME_SHARE: usize = 60;
/// Percentage of the width that a droppable column may take if the table does not fit.
const RANK_SHARE: usize = 25;
/// Maximum width that [`Fit::Below`] text needs beside the other columns if it is cut.
const BESIDE_MAX: usize = 60;
/// Minimum width of a cell that is repeated below its row, while there is another column to drop.
const MIN_REPEATED: usize = 24;
/// Width of a text of several lines, which no terminal has.
const LINES: usize = u16::MAX as usize + 1;
/// Word for an empty cell in a pipe, where columns are separated by blanks.
const NO_TEXT: &str = "-";
/// Indentation of a line below its row.
const INDENT: usize = 4;
/// Minimum width of a truncated name.
const MIN_NAME: usize = 4;
/// Pairs of the width that remains for free text and the minimum width of a truncated key column.
const KEY_WIDTHS: [(usize, usize); 2] = [(FREE_WIDTH, 16), (MIN_FREE, 10)];
/// Percentage of the width that is reserved for the server and tool names of a column while a key column can be dropped.
const TOOL_SHARE: usize = 30;
/// Percentage of the width that these names may take while another column can be dropped.
const TOOL_WISH: usize = 50;

/// Treatment of a column if the table does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// Kept in full: an id or one of mcpproxy's own state words.
    Whole,
    /// Kept, and truncated to its share. For names chosen by a user.
    Name,
    /// Like [`Fit::Name`], but truncated in the middle, for names that may differ only at their end.
    Middle,
    /// Truncated to its share, and dropped in order of rank, highest first.
    Rank(u8),
    /// Truncated in the middle, and dropped in order of rank only if free text would lose its minimum width.
    Key(u8),
    /// Truncated. A table has at most one such column.
    Free,
    /// Like [`Fit::Free`], but if a text needs more room than the others leave, all texts are below their rows, wrapped, and
    /// the other columns have the whole width. A text of several lines is always below its row.
    Below,
}

/// Side on which the header and the cells of a column begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Align {
    Left,
    /// Right-aligned, for numbers: digits of equal value are then aligned.
    Right,
}

/// A column's header, treatment and alignment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Column {
    name: Cow<'static, str>,
    fit: Fit,
    align: Align,
    /// Whether the cells are `server:tool`.
    has_servers: bool,
    /// Whether a text below its row is cut to one line.
    is_cut: bool,
    /// Whether a key column is dropped rather than truncated.
    has_words: bool,
    /// Whether the note on dropped columns omits it.
    is_optional: bool,
    /// Whether a cell that is cut is also below its row, whole.
    is_repeated: bool,
}

impl Fit {
    /// Whether the column takes the width that the others leave.
    const fn is_free(self) -> bool {
        matches!(self, Self::Free | Self::Below)
    }

    /// Whether the column is kept and truncated to its share.
    const fn is_name(self) -> bool {
        matches!(self, Self::Name | Self::Middle)
    }
}

impl Column {
    /// A column of text, aligned to the left.
    pub(super) fn new(name: impl Into<Cow<'static, str>>, fit: Fit) -> Self {
        Self {
            name: name.into(),
            fit,
            align: Align::Left,
            has_servers: false,
            is_cut: false,
            has_words: false,
            is_optional: false,
            is_repeated: false,
        }
    }

    /// The header.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Cuts the text of the [`Fit::Below`] column to one line per row.
    pub(super) fn with_cut_text(mut columns: Vec<Self>) -> Vec<Self> {
        columns.iter_mut().for_each(|column| column.is_cut = true);
        columns
    }

    /// Does not report the column with this name as dropped: its cells are known without it.
    pub(super) fn with_optional(columns: Vec<Self>, name: &str) -> Vec<Self> {
        Self::marked(columns, name, |column| column.is_optional = true)
    }

    /// Aligns the columns with these names to the right, because they contain numbers.
    pub(super) fn with_numbers(mut columns: Vec<Self>, names: &[&str]) -> Vec<Self> {
        let numbers = columns.iter_mut().filter(|column| names.contains(&&*column.name));
        numbers.for_each(|column| column.align = Align::Right);
        columns
    }

    /// Marks the column with this name as one of `server:tool` cells.
    pub(super) fn with_servers(columns: Vec<Self>, name: &str) -> Vec<Self> {
        Self::marked(columns, name, |column| column.has_servers = true)
    }

    /// Keeps the cells of the key column with this name whole until it is dropped: they are words of mcpproxy.
    pub(super) fn with_words(columns: Vec<Self>, name: &str) -> Vec<Self> {
        Self::marked(columns, name, |column| column.has_words = true)
    }

    /// Repeats cells of the column with this name that are cut below their rows, whole.
    pub(super) fn with_repeated(columns: Vec<Self>, name: &str) -> Vec<Self> {
        Self::marked(columns, name, |column| column.is_repeated = true)
    }

    /// Keeps the column with this name.
    pub(super) fn with_whole(columns: Vec<Self>, name: &str) -> Vec<Self> {
        Self::marked(columns, name, |column| column.fit = Fit::Whole)
    }

    fn marked(mut columns: Vec<Self>, name: &str, mark: impl FnMut(&mut Self)) -> Vec<Self> {
        columns.iter_mut().filter(|column| column.name == name).for_each(mark);
        columns
    }

    /// Truncates a cell in the middle.
    fn cut_key(&self, text: &str, max: usize) -> String {
        if self.has_servers { cut_tool(text, max) } else { cut_middle(text, max) }
    }

    /// Builds the columns of a table.
    pub(super) fn all<const N: usize>(columns: [(&'static str, Fit); N]) -> Vec<Self> {
        columns.into_iter().map(|(name, fit)| Self::new(name, fit)).collect()
    }
}

/// Text and style of one cell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) text: String,
    pub(super) style: Style,
}

impl Cell {
    /// Styled text.
    pub(super) fn styled(text: impl Into<String>, style: Style) -> Self {
        Self { text: text.into(), style }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::styled(text, Style::new())
    }
}

/// Measures of the cells of a column.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CellWidths {
    /// Width of the longest cell; a column of empty cells is dropped first.
    pub(super) longest: usize,
    /// Minimum width while there is another column to drop.
    floor: usize,
}

impl CellWidths {
    /// Measures of cells that are not known yet.
    pub(super) const fn of_longest(longest: usize) -> Self {
        Self::new(longest, 0)
    }

    /// Measures of cells that are not known yet and should not be narrower than `floor`.
    pub(super) const fn new(longest: usize, floor: usize) -> Self {
        Self { longest, floor }
    }

    /// Measures the cells of a column of a table that is fitted to a width, if there is one. From the floor on,
    /// truncated server names keep [`MIN_SERVER`] columns beside their tools, and truncated cells differ if the cells
    /// do. For these, at most [`TOOL_SHARE`] and [`NAME_SHARE`] of the width are reserved.
    fn measure<'c>(
        column: &Column,
        cells: impl Iterator<Item = &'c str>,
        fitted_to: Option<usize>,
    ) -> Self {
        let cells: BTreeSet<&str> = cells.collect();
        let width_of = |text: &&str| if text.contains('\n') { LINES } else { text.width() };
        let longest = cells.iter().map(width_of).max().unwrap_or_default();
        let Some(width) = fitted_to.filter(|_| matches!(column.fit, Fit::Key(_))) else {
            return Self::of_longest(longest);
        };
        if column.has_words {
            return Self { longest, floor: longest };
        }
        let of_server = |text: &&str| {
            let (server, tool) = server_and_tool(text)?;
            Some(server.width().min(MIN_SERVER + 1) + 1 + tool.width())
        };
        let servers = cells.iter().filter_map(of_server).max().filter(|_| column.has_servers);
        let servers = servers.unwrap_or_default().min(width * TOOL_SHARE / 100);
        let are_distinct = |width: &usize| {
            let mut seen = HashSet::new();
            cells.iter().all(|text| seen.insert(column.cut_key(text, *width)))
        };
        let [_, (_, min)] = KEY_WIDTHS;
        let widest = longest.min(width * NAME_SHARE / 100);
        let distinct = (min..widest).rev().take_while(are_distinct).last().unwrap_or(widest);
        let beside = if column.is_repeated { longest.min(MIN_REPEATED) } else { 0 };
        Self { longest, floor: servers.max(distinct).max(beside) }
    }
}

/// Target of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TableView {
    /// Terminal width in columns; `None` if unlimited.
    pub(super) width: Option<usize>,
    pub(super) colors: Colors,
}

/// Chosen columns and their widths.
#[derive(Debug)]
pub(super) struct TableLayout {
    shown: Vec<Shown>,
    /// Column with a line of its own below each row.
    below: Option<Shown>,
    view: TableView,
    dropped: Vec<Cow<'static, str>>,
}

/// A column that is kept.
#[derive(Debug)]
struct Shown {
    index: usize,
    column: Column,
    /// Width of the longest cell.
    whole: usize,
    width: usize,
    /// Minimum width while there is another column to drop.
    floor: usize,
}

impl TableLayout {
    /// Chooses columns by the `widths` of their contents; empty columns are dropped first.
    pub(super) fn new(columns: &[Column], widths: &[CellWidths], view: TableView) -> Self {
        let named = columns.iter().zip(widths).enumerate();
        let mut shown: Vec<Shown> = named
            .map(|(index, (column, cells))| {
                let whole = cells.longest.max(column.name.width());
                Shown { index, column: column.clone(), whole, width: whole, floor: cells.floor }
            })
            .collect();
        let below = match (view.width, shown.iter().position(|it| it.column.fit == Fit::Below)) {
            (Some(width), Some(at)) if required_width(&shown, beside(&shown, at)) > width => {
                let column = shown.remove(at);
                Some(Shown { width: width.saturating_sub(INDENT), ..column })
            }
            _ => None,
        };
        let is_empty = |it: &Shown| widths.get(it.index).is_none_or(|cells| cells.longest == 0);
        let mut dropped = Vec::new();
        if let Some(width) = view.width {
            if required_width(&shown, FREE_WIDTH) > width {
                shown.iter_mut().for_each(|it| it.width = it.share_of(width));
            }
            drop_by_rank(&mut shown, &mut dropped, (width, FREE_WIDTH), |it| match it.column.fit {
                Fit::Rank(rank) => Some((is_empty(it), rank)),
                Fit::Key(rank) => is_empty(it).then_some((true, rank)),
                Fit::Whole | Fit::Name | Fit::Middle | Fit::Free | Fit::Below => None,
            });
            let narrow = |shown: &mut Vec<Shown>| {
                KEY_WIDTHS.iter().for_each(|(free, min)| narrow_keys(shown, (width, *free), *min));
            };
            narrow(&mut shown);
            let rank =
                |it: &Shown| if let Fit::Key(rank) = it.column.fit { Some(rank) } else { None };
            // Names are narrowed below their minimum widths rather than dropped, and the most important one even more.
            drop_by_rank(&mut shown, &mut dropped, (width, MIN_FREE), |it| {
                rank(it).filter(|_| it.column.has_words).map(|rank| (false, rank))
            });
            shown.iter_mut().for_each(|it| it.floor = 0);
            let [(_, wide), _] = KEY_WIDTHS;
            let fits = (width, MIN_FREE);
            narrow_keys(&mut shown, fits, wide);
            let first = shown.iter().filter_map(rank).min();
            drop_by_rank(&mut shown, &mut dropped, fits, |it| {
                rank(it).filter(|rank| Some(*rank) != first).map(|rank| (false, rank))
            });
            narrow(&mut shown);
            drop_by_rank(&mut shown, &mut dropped, fits, |it| Some((false, rank(it)?)));
            // A column that was dropped early may fit again after others were dropped, if no name is cut.
            let mut rest = Vec::new();
            while let Some(column) = dropped.pop() {
                let cut = shown.iter().filter(|it| matches!(it.column.fit, Fit::Key(_)));
                let cut: usize = cut.map(|it| it.whole - it.width).sum();
                match required_width(&shown, FREE_WIDTH) + cut + column.width + GAP <= width {
                    true => shown.push(column),
                    false => rest.push(column),
                }
            }
            dropped = rest;
            dropped.reverse();
            shown.sort_by_key(|it| it.index);
            distribute(&mut shown, width);
        }
        // An empty column is not missed.
        let is_missed = |it: &Shown| !it.column.is_optional && !is_empty(it);
        let dropped = dropped.into_iter().filter(is_missed).map(|it| it.column.name).collect();
        Self { shown, below, view, dropped }
    }

    /// Repeats the cells of columns of `server:tool` in which different cells look the same once cut.
    fn repeat_ambiguous(&mut self, rows: &[Vec<Cell>]) {
        for it in self.shown.iter_mut().filter(|it| it.column.has_servers) {
            let cells = rows.iter().filter_map(|row| row.get(it.index));
            let cells: HashSet<&str> = cells.map(|cell| cell.text.as_str()).collect();
            let cut: HashSet<_> =
                cells.iter().map(|text| it.column.cut_key(text, it.width)).collect();
            it.column.is_repeated |= cut.len() < cells.len();
        }
    }

    /// The header line.
    pub(super) fn header(&self) -> String {
        self.joined(|it| (it.column.name.to_string(), HEADER))
    }

    /// One row as a line, and the lines below it.
    pub(super) fn line(&self, cells: &[Cell]) -> String {
        let mut line = self.joined(|it| {
            let Cell { text, style } = cells.get(it.index).cloned().unwrap_or_default();
            match (it.column.fit, self.view.width) {
                // A pipe has a word for each column.
                (_, None) if text.is_empty() => (NO_TEXT.to_owned(), style),
                (Fit::Below, None) => (text.replace('\n', "; "), style),
                (Fit::Free | Fit::Below, _) | (Fit::Name | Fit::Rank(_), Some(_)) => {
                    (cut(&text, it.width), style)
                }
                (Fit::Middle | Fit::Key(_), Some(_)) => (it.column.cut_key(&text, it.width), style),
                // Output to a pipe is not truncated.
                (Fit::Name | Fit::Middle | Fit::Rank(_) | Fit::Key(_), None) | (Fit::Whole, _) => {
                    (text, style)
                }
            }
        });
        let below = self.below_of(cells);
        if !below.is_empty() {
            // Past the number of a record.
            let first = self.shown.first().filter(|it| it.column.align == Align::Right);
            let indent = first.map_or(0, |it| it.width + 1).max(INDENT);
            let paragraph = Paragraph::new(self.view.width).indented(indent);
            let _ = write!(line, "\n{}", paragraph.block(&below));
        }
        line
    }

    /// Text below a row: cells that are cut with the names of their columns, and the text that needs more room.
    fn below_of(&self, cells: &[Cell]) -> String {
        let cell_of = |it: &Shown| cells.get(it.index).map_or("", |cell| cell.text.as_str());
        let is_cut = |it: &&Shown| it.column.is_repeated && cell_of(it).width() > it.width;
        let said: Vec<_> = self.below.iter().map(cell_of).collect();
        // The reason may name it, without its kind.
        let is_said = |it: &&Shown| {
            let name = cell_of(it).rsplit(':').next().unwrap_or_default();
            !it.column.has_servers && said.iter().any(|text| text.contains(name))
        };
        let repeated = self.shown.iter().filter(is_cut).filter(|it| !is_said(it));
        let repeated = repeated.filter(|_| self.view.width.is_some());
        let parts = self.below.iter().chain(repeated).filter_map(|it| {
            let text = Some(cell_of(it)).filter(|text| !text.is_empty())?;
            Some(match &it.column {
                column if column.fit != Fit::Below => {
                    format!("{} {text}", column.name.to_lowercase())
                }
                column if column.is_cut => cut_to(text, it.width, it.width * 3 / 4),
                _ => text.to_owned(),
            })
        });
        let parts: Vec<_> = parts.collect();
        parts.join(if parts.iter().any(|part| part.contains('\n')) { "\n" } else { "; " })
    }

    /// A line that names the columns without room, if there are any.
    pub(super) fn note(&self) -> String {
        let note = format!("(no room for {}: -o json has all)", self.dropped.join(", "));
        match self.dropped.is_empty() {
            true => String::new(),
            false => format!("{}\n", Paragraph::new(self.view.width).text(&note)),
        }
    }

    fn joined(&self, cell: impl Fn(&Shown) -> (String, Style)) -> String {
        let mut line = String::new();
        let mut blanks = 0;
        for shown in &self.shown {
            let (text, style) = cell(shown);
            let width = text.width();
            let padding = shown.width.saturating_sub(width);
            let (before, after) = match shown.column.align {
                Align::Left => (0, padding),
                Align::Right => (padding, 0),
            };
            blanks += before;
            if width > 0 {
                line.extend(std::iter::repeat_n(' ', blanks));
                blanks = 0;
                match self.view.colors {
                    Colors::Styled if style != Style::new() => {
                        let _ = write!(line, "{style}{text}{style:#}");
                    }
                    Colors::Styled | Colors::Plain => line.push_str(&text),
                }
            }
            blanks += after + GAP;
        }
        line
    }
}

impl Shown {
    /// Width granted to the column if the table does not fit.
    fn share_of(&self, width: usize) -> usize {
        match self.column.fit {
            Fit::Name | Fit::Middle => self.capped(width * NAME_SHARE / 100),
            Fit::Key(_) if self.column.has_servers => {
                self.capped(self.floor.max(width * TOOL_WISH / 100))
            }
            Fit::Rank(_) | Fit::Key(_) => self.capped(self.floor.max(width * RANK_SHARE / 100)),
            Fit::Whole | Fit::Free | Fit::Below => self.whole,
        }
    }

    fn capped(&self, share: usize) -> usize {
        self.whole.min(share.max(self.column.name.width()))
    }
}

/// Width that the text of the column at this place needs beside the others.
fn beside(shown: &[Shown], at: usize) -> usize {
    shown.get(at).map_or(0, |it| if it.column.is_cut { it.whole.min(BESIDE_MAX) } else { it.whole })
}

/// Moves columns to `dropped`, highest rank first, until the others and `free` columns of free text fit `width`. A
/// column without a rank is kept.
fn drop_by_rank(
    shown: &mut Vec<Shown>,
    dropped: &mut Vec<Shown>,
    (width, free): (usize, usize),
    rank: impl Fn(&Shown) -> Option<(bool, u8)>,
) {
    while required_width(shown, free) > width {
        let ranks = shown.iter().enumerate().filter_map(|(at, it)| Some((rank(it)?, at)));
        let Some((_, at)) = ranks.max() else { break };
        dropped.push(shown.remove(at));
    }
}

/// Narrows key columns down to `min` or their floor, the widest first, until everything fits `width` together with `free` columns of
/// free text.
fn narrow_keys(shown: &mut [Shown], (width, free): (usize, usize), min: usize) {
    while required_width(shown, free) > width {
        let keys = shown.iter_mut().filter(|it| matches!(it.column.fit, Fit::Key(_)));
        let narrowable = keys.filter(|it| it.width > min.max(it.floor).max(it.column.name.width()));
        let widest = narrowable.max_by_key(|it| it.width);
        let Some(widest) = widest else { break };
        widest.width -= 1;
    }
}

/// Distributes the available width. The remainder goes to free text; the part that free text does not need goes to
/// names, then to the other columns.
fn distribute(shown: &mut Vec<Shown>, width: usize) {
    while required_width(shown, MIN_FREE) > width {
        let names = shown.iter_mut().filter(|it| it.column.fit.is_name() && it.width > MIN_NAME);
        let Some(widest) = names.max_by_key(|it| it.width) else { break };
        widest.width -= 1;
    }
    shown.iter_mut().filter(|it| it.column.fit.is_free()).for_each(|it| it.width = 0);
    let priority = |fit: Fit| match fit {
        Fit::Free | Fit::Below => 0,
        Fit::Name | Fit::Middle | Fit::Key(_) => 1,
        Fit::Rank(_) | Fit::Whole => 2,
    };
    for now in 0..=2 {
        // If the full-width columns take everything, free text is dropped.
        shown.retain(|it| {
            now == 0 || !it.column.fit.is_free() || it.width >= it.column.name.width()
        });
        for at in 0..shown.len() {
            let left = width.saturating_sub(total_width(shown));
            let Some(column) = shown.get_mut(at).filter(|it| priority(it.column.fit) == now) else {
                continue;
            };
            let gap = if column.width == 0 { GAP } else { 0 };
            column.width = column.whole.min(column.width + left.saturating_sub(gap));
        }
    }
}

/// Current total width of the columns.
fn total_width(shown: &[Shown]) -> usize {
    let widths = shown.iter().map(|it| it.width).filter(|width| *width > 0);
    widths.map(|width| width + GAP).sum::<usize>().saturating_sub(GAP)
}

/// Minimum total width of the columns, with `free` columns of free text.
fn required_width(shown: &[Shown], free: usize) -> usize {
    let of = |it: &Shown| match it.column.fit {
        Fit::Free | Fit::Below => it.width.min(free.max(it.column.name.width())) + GAP,
        Fit::Whole | Fit::Name | Fit::Middle | Fit::Rank(_) | Fit::Key(_) => it.width + GAP,
    };
    shown.iter().map(of).sum::<usize>().saturating_sub(GAP)
}

/// Draws a table. Cells are made by [`cell`].
pub(super) fn draw(columns: &[Column], rows: Vec<Vec<Cell>>, view: TableView) -> String {
    let widths = columns.iter().enumerate().map(|(at, column)| {
        let cells = rows.iter().filter_map(|row| row.get(at));
        CellWidths::measure(column, cells.map(|cell| cell.text.as_str()), view.width)
    });
    let mut layout = TableLayout::new(columns, &widths.collect::<Vec<_>>(), view);
    if view.width.is_some() {
        layout.repeat_ambiguous(&rows);
    }
    let mut drawn = layout.header();
    drawn.push('\n');
    for row in rows {
        drawn.push_str(&layout.line(&row));
        drawn.push('\n');
    }
    drawn + &layout.note()
}

/// Maximum length of a cell in a column of wrapped text, in characters.
const WRAPPED_CHARS: usize = 400;

/// Like [`cell`], for a column of wrapped text.
pub(super) fn wrapped_cell(text: &str) -> String {
    cut(&one_line(text), WRAPPED_CHARS)
}

/// Maximum length of a reason in a list of many, in characters.
const REASON_CHARS: usize = 240;

/// Like [`cell`], for a reason.
pub(super) fn reason_cell(text: &str) -> String {
    cut(&one_line(text), REASON_CHARS)
}

/// Formats untrusted text as one line of a cell.
pub(super) fn cell(text: &str) -> String {
    cut(&one_line(text), CELL_CHARS)
}

/// Like [`cell`], for a program: only a text of extreme length is cut.
pub(super) fn whole_cell(text: &str) -> String {
    cut(&one_line(text), PROGRAM_CHARS)
}

fn one_line(text: &str) -> String {
    clean(text).split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use unicode_width::UnicodeWidthChar;

    const ID: &str = "01KAJ2Z8Q4T5V6W7X8Y9Z0A1B2";

    fn view(width: usize) -> TableView {
        TableView { width: (width > 0).then_some(width), colors: Colors::Plain }
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
    fn table_fits_its_width_and_keeps_ids_whole() {
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
    fn empty_columns_are_dropped_first_then_by_rank() {
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

    /// A table of ranked columns with a long cell.
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
    fn long_name_is_truncated_without_displacing_columns() {
        let names = |tool: &str, width| {
            let (columns, rows) = calls(tool);
            let drawn = draw(&columns, rows, view(width));
            assert!(drawn.lines().all(|line| line.width() <= width), "{width}:\n{drawn}");
            let at = drawn.lines().next().unwrap().find("STATUS").unwrap();
            for row in drawn.lines().skip(1).take(2) {
                // Widths are in terminal columns, independent of the letters' bytes.
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
    fn key_columns_are_the_last_to_be_narrowed_or_dropped() {
        let columns = Column::all([
            ("ID", Fit::Whole),
            ("TYPE", Fit::Rank(6)),
            ("TOOL", Fit::Key(1)),
            ("PRINCIPAL", Fit::Key(5)),
            ("STATUS", Fit::Whole),
            ("REASON", Fit::Free),
        ]);
        let drawn = |principal: &str, width| {
            let why = "is marked destructive by server, use call_tool_destructive";
            let cells =
                ["1", "tool_call", "knowledge-base:delete_entities", principal, "rejected", why];
            draw(&columns, vec![cells.map(Cell::from).to_vec()], view(width))
        };
        for (width, header, row) in [
            (
                80,
                "ID  TOOL                 PRINCIPAL            STATUS    REASON",
                "1   kn…:delete_entities  token:res…assistant  rejected  is marked destructive…",
            ),
            (
                64,
                "ID  TOOL              PRINCIPAL         STATUS    REASON",
                "1   knowled…entities  token:r…ssistant  rejected  is marked…",
            ),
            (44, "ID  TOOL        STATUS    REASON", "1   know…ities  rejected  is marked…"),
            (30, "ID  STATUS    REASON", "1   rejected  is marked…"),
        ] {
            let shown = drawn("token:research-assistant", width);
            assert!(shown.lines().all(|line| line.width() <= width), "{width}:\n{shown}");
            assert!(shown.starts_with(&format!("{header}\n{row}\n")), "{width}:\n{shown}");
        }
        // A column without content is dropped first.
        let empty = drawn("", 64);
        assert!(!empty.lines().next().unwrap().contains("PRINCIPAL"), "{empty}");
        assert!(drawn("token:ci", 0).contains("knowledge-base:delete_entities"), "not in a pipe");
    }

    /// A table of calls with the longest optional columns.
    fn tool_calls(tools: &[&str], type_rank: u8) -> (Vec<Column>, Vec<Vec<Cell>>) {
        let columns = Column::all([
            ("ID", Fit::Whole),
            ("AGE", Fit::Key(3)),
            ("TYPE", Fit::Rank(type_rank)),
            ("TOOL", Fit::Key(1)),
            ("INTENT", Fit::Key(2)),
            ("STATUS", Fit::Whole),
            ("DURATION", Fit::Rank(8)),
            ("PRINCIPAL", Fit::Key(5)),
            ("REASON", Fit::Below),
        ]);
        let row = |tool: &&str| {
            ["1", "2m", "tool_call", tool, "read", "success", "12ms", "anonymous", ""]
                .map(Cell::from)
                .to_vec()
        };
        (Column::with_servers(columns, "TOOL"), tools.iter().map(row).collect())
    }

    #[test]
    fn server_name_is_not_cut_while_another_column_can_be_dropped() {
        let tools = ["claude-clock:get_current_time", "time-server-2:get_current_time"];
        for (width, type_rank, dropped) in
            [(80, 9, &["TYPE"][..]), (66, 9, &["TYPE", "DURATION"]), (50, 6, &["PRINCIPAL"])]
        {
            let (columns, rows) = tool_calls(&tools, type_rank);
            let drawn = draw(&columns, rows, view(width));
            assert!(drawn.lines().all(|line| line.width() <= width), "{width}:\n{drawn}");
            let header = drawn.lines().next().unwrap();
            for name in dropped {
                assert!(!header.contains(name), "{width}: {name}\n{drawn}");
            }
            for server in ["claude-c", "time-ser"] {
                assert!(drawn.contains(server), "{width}: {server}\n{drawn}");
            }
        }
        let (columns, rows) = tool_calls(&tools, 9);
        let drawn = draw(&columns, rows, view(80));
        for tool in tools {
            assert!(drawn.contains(tool), "{drawn}");
        }
        assert!(drawn.lines().next().unwrap().contains("DURATION"), "{drawn}");
    }

    #[test]
    fn different_names_stay_different() {
        let tools = ["metrics-prod-eu:query", "metrics-prod-us:query", "metrics-prod-ap:query"];
        for width in [50, 60, 80] {
            let (columns, rows) = tool_calls(&tools, 6);
            let drawn = draw(&columns, rows, view(width));
            let rows: HashSet<&str> = drawn.lines().skip(1).take(tools.len()).collect();
            assert_eq!(rows.len(), tools.len(), "{width}:\n{drawn}");
        }
    }

    #[test]
    fn state_is_kept_beside_a_name_of_any_length() {
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
        // Output to a pipe is not truncated.
        let rows = vec![vec![Cell::from("n".repeat(200)), "connected".into(), "why".into()]];
        assert!(draw(&columns, rows, view(0)).contains(&"n".repeat(200)));
    }

    #[test]
    fn dropped_column_returns_if_it_still_fits() {
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
    fn dropped_columns_with_content_are_named() {
        let (columns, rows) = servers();
        let drawn = draw(&columns, rows, view(50));
        assert!(drawn.ends_with("(no room for TOOLS: -o json has all)\n"), "{drawn}");
    }

    #[test]
    fn table_without_a_terminal_has_complete_single_line_rows() {
        let columns = Column::all([("A", Fit::Rank(9)), ("B", Fit::Free)]);
        let rows = vec![vec![cell("a").into(), cell(&"one\ntwo ".repeat(8)).into()]];
        let drawn = draw(&columns, rows, view(0));
        assert_eq!(drawn.lines().count(), 2, "{drawn}");
        assert!(drawn.contains("one two one two"), "{drawn}");
    }

    #[test]
    fn double_width_letters_count_twice() {
        let columns = Column::all([("A", Fit::Whole), ("B", Fit::Free)]);
        let rows =
            vec![vec!["日本".into(), "語語語語語語語語語語".into()], vec!["ab".into(), "x".into()]];
        let drawn = draw(&columns, rows, view(16));
        assert!(drawn.lines().all(|line| line.width() <= 16), "{drawn}");
        assert!(drawn.lines().any(|line| line == "ab    x"), "{drawn}");
    }

    #[test]
    fn numbers_are_aligned_to_the_right_with_their_header() {
        let columns = Column::all([
            ("ID", Fit::Whole),
            ("NAME", Fit::Whole),
            ("CALLS", Fit::Rank(1)),
            ("TIME", Fit::Rank(2)),
            ("REASON", Fit::Free),
        ]);
        let columns = Column::with_numbers(columns, &["ID", "CALLS", "TIME"]);
        let rows = vec![
            ["9", "a", "7", "12ms", "x"].map(Cell::from).to_vec(),
            ["1234", "long name", "", "1.5s", ""].map(Cell::from).to_vec(),
            ["10", "日本", "123456", "", "y"].map(Cell::from).to_vec(),
        ];
        let (header, first) =
            ("  ID  NAME        CALLS  TIME  REASON", "   9  a               7  12ms  x");
        let empty = ["1234  long name          1.5s", "  10  日本       123456        y"];
        let words = ["1234  long name       -  1.5s  -", "  10  日本       123456     -  y"];
        for (width, [second, third]) in [(80, empty), (0, words)] {
            let drawn = draw(&columns, rows.clone(), view(width));
            assert_eq!(drawn.lines().collect::<Vec<_>>(), [header, first, second, third]);
        }
    }

    #[test]
    fn long_reason_gets_a_line_of_its_own_below_a_row_that_would_be_cut() {
        let columns =
            Column::all([("TOOL", Fit::Key(1)), ("STATUS", Fit::Whole), ("REASON", Fit::Below)]);
        let rows = vec![
            ["files:list_directory", "rejected", "Token 'reader' is limited to operation 'read'"]
                .map(Cell::from)
                .to_vec(),
            ["s:t", "success", ""].map(Cell::from).to_vec(),
        ];
        let drawn = |width| draw(&columns, rows.clone(), view(width));
        let below = [
            "TOOL                  STATUS",
            "files:list_directory  rejected",
            "    Token 'reader' is limited to operation 'read'",
            "s:t                   success",
        ];
        assert_eq!(drawn(60).lines().collect::<Vec<_>>(), below);
        let wrapped = drawn(40);
        assert!(wrapped.contains("\n    Token 'reader' is limited to\n    operation 'read'\ns:t"));
        let cut = draw(&Column::with_cut_text(columns.clone()), rows.clone(), view(40));
        assert_eq!(cut.lines().nth(2), Some("    Token 'reader' is limited to…"));
        let beside =
            "files:list_directory  rejected  Token 'reader' is limited to operation 'read'";
        for width in [80, 0] {
            assert_eq!(drawn(width).lines().nth(1), Some(beside), "{width}");
        }
    }

    #[test]
    fn principal_that_is_cut_is_repeated_below_its_row() {
        let columns = Column::all([
            ("ID", Fit::Whole),
            ("TOOL", Fit::Key(1)),
            ("DURATION", Fit::Rank(8)),
            ("PRINCIPAL", Fit::Key(5)),
            ("REASON", Fit::Below),
        ]);
        let columns = Column::with_repeated(Column::with_servers(columns, "TOOL"), "PRINCIPAL");
        let row = |tool: &str, reason: &str| {
            ["1", tool, "12ms", "token:nightly-reporting-of-all", reason].map(Cell::from).to_vec()
        };
        let drawn = |rows: Vec<Vec<Cell>>| draw(&columns, rows, view(50));
        let beside = draw(&columns, vec![row("files:list", "no (rule)")], view(60));
        assert!(beside.starts_with("ID  TOOL        DURATION  PRINCIPAL\n"), "{beside}");
        assert!(beside.contains("  token:nightly-reporting-of-all\n    no (rule)\n"), "{beside}");
        let long = drawn(vec![row("notes-of-the-whole-company:list", "no"), row("s:t", "")]);
        let lines: Vec<_> = long.lines().collect();
        assert!(lines[0].starts_with("ID  TOOL ") && lines[0].ends_with("  PRINCIPAL"), "{long}");
        assert!(lines[1].contains(":list  ") && lines[1].ends_with("-of-all"), "{long}");
        assert!(lines[1].matches('…').count() == 2 && lines[1].width() <= 50, "{long}");
        let principal = "principal token:nightly-reporting-of-all";
        assert_eq!(lines[2], format!("    no; {principal}"));
        assert_eq!(lines[4], format!("    {principal}"));
        assert_eq!(lines[5], "(no room for DURATION: -o json has all)");
        // So are tools that look the same.
        let tool = |number: u8| format!("notes-of-the-{number}-company:list");
        let same = drawn(vec![row(&tool(1), ""), row(&tool(2), "")]);
        assert!(same.contains("    tool notes-of-the-2-company:list; principal\n"), "{same}");
        // Cells may not be known in advance.
        let widths = [2, 30, 8, 30, 160].map(|longest| CellWidths::new(longest, longest.min(12)));
        let layout = TableLayout::new(&columns, &widths, view(40));
        let line = layout.line(&row("files:list", "no (rule)"));
        let (first, below) = line.split_once('\n').unwrap();
        assert!(first.starts_with("1   files:list  ") && first.ends_with("of-all"), "{first}");
        assert_eq!(below, "    no (rule); principal\n    token:nightly-reporting-of-all");
    }

    #[test]
    fn text_of_several_lines_is_below_its_row_and_one_line_in_a_pipe() {
        let columns = Column::all([("ID", Fit::Whole), ("ARGUMENTS", Fit::Below)]);
        let rows = || vec![vec![Cell::from("a1"), Cell::from("arguments {}\nreason why")]];
        let drawn = draw(&columns, rows(), view(80));
        assert_eq!(drawn, "ID\na1\n    arguments {}\n    reason why\n");
        assert_eq!(
            draw(&columns, rows(), view(0)),
            "ID  ARGUMENTS\na1  arguments {}; reason why\n"
        );
    }

    #[test]
    fn colors_do_not_affect_alignment() {
        let columns = Column::all([("A", Fit::Whole), ("B", Fit::Whole)]);
        let red = crate::output::of_state("failed");
        let rows = vec![vec![Cell::styled("x", red), "y".into()]];
        let view = TableView { width: Some(10), colors: Colors::Styled };
        let drawn = draw(&columns, rows, view);
        assert_eq!(drawn.lines().nth(1), Some("\u{1b}[31mx\u{1b}[0m  y"));
        let columns = Column::with_numbers(Column::all([("ABC", Fit::Whole)]), &["ABC"]);
        let drawn = draw(&columns, vec![vec![Cell::styled("1", red)]], view);
        assert_eq!(drawn.lines().nth(1), Some("  \u{1b}[31m1\u{1b}[0m"));
    }
}
