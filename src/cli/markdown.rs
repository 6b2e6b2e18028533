//! Markdown rendered for a terminal: wrapped paragraphs, lists with hanging indent, drawn tables.
//!
//! Supports what the guide uses. HTML is left out. Code blocks are indented and otherwise unchanged. A table that is too
//! wide becomes one block per row.

use crate::output::{Colors, HEADER, Paragraph};
use crate::table::TableView;
use pulldown_cmark::{Event, HeadingLevel, Options, Parser, Tag, TagEnd};
use unicode_width::UnicodeWidthStr;

/// Maximum width of text in columns, even on a wider terminal.
const MAX_WIDTH: usize = 100;
/// Width of text on a terminal of unknown size.
const DEFAULT_WIDTH: usize = 80;
/// Columns before a code block.
const CODE_INDENT: usize = 2;
/// Columns between two columns of a table.
const GAP: usize = 2;
/// Columns before the continuation lines of a row that is drawn as a block.
const BLOCK_INDENT: usize = 4;

/// Renders a document. `hint` returns the text to add after a link with this target, if any.
pub(super) fn render(
    markdown: &str,
    view: TableView,
    hint: impl Fn(&str) -> Option<String>,
) -> String {
    let width = view.width.unwrap_or(DEFAULT_WIDTH).min(MAX_WIDTH);
    let mut page = Page { width, colors: view.colors, ..Page::EMPTY };
    let (mut links, mut in_image) = (Vec::new(), false);
    for event in Parser::new_ext(markdown, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::Link { dest_url, .. }) => links.push(dest_url),
            Event::End(TagEnd::Link) => {
                let hint = links.pop().and_then(|target| hint(&target));
                page.text.extend(hint.map(|hint| format!(" [{hint}]")));
            }
            // The description of an image that a terminal does not show.
            Event::Start(Tag::Image { .. }) => in_image = true,
            Event::End(TagEnd::Image) => in_image = false,
            _ if in_image => {}
            event => page.add(event),
        }
    }
    page.drawn
}

/// State of a rendering.
struct Page {
    width: usize,
    colors: Colors,
    drawn: String,
    /// Text of the block that has not ended.
    text: String,
    /// Enclosing lists: the next number, if the items are numbered, and the width of the current marker.
    lists: Vec<(Option<u64>, usize)>,
    /// Marker of the list item whose text has not been drawn.
    marker: String,
    /// Rows of the table that has not ended, the header first.
    rows: Vec<Vec<String>>,
}

impl Page {
    #[rustfmt::skip]
    const EMPTY: Self = Self {
        width: DEFAULT_WIDTH, colors: Colors::Plain, drawn: String::new(), text: String::new(), lists: Vec::new(),
        marker: String::new(), rows: Vec::new(),
    };

    fn add(&mut self, event: Event<'_>) {
        match event {
            Event::Text(text) => self.text += &text,
            Event::Code(code) => self.text += &format!("`{code}`"),
            Event::SoftBreak => self.text.push(' '),
            Event::HardBreak => self.text.push('\n'),
            Event::Start(Tag::CodeBlock(_)) => self.end_paragraph(),
            Event::Start(Tag::List(first)) => {
                self.end_paragraph();
                if self.lists.is_empty() {
                    self.blank_line();
                }
                self.lists.push((first, 0));
            }
            Event::Start(Tag::Item) => {
                if let Some((number, width)) = self.lists.last_mut() {
                    self.marker = number.map_or_else(|| "- ".to_owned(), |it| format!("{it}. "));
                    *number = number.map(|it| it + 1);
                    *width = self.marker.width();
                }
            }
            Event::Start(Tag::TableHead | Tag::TableRow) => self.rows.push(Vec::new()),
            Event::End(TagEnd::Paragraph | TagEnd::Item) => self.end_paragraph(),
            Event::End(TagEnd::List(_)) => {
                self.lists.pop();
            }
            Event::End(TagEnd::Heading(level)) => self.end_heading(level),
            Event::End(TagEnd::CodeBlock) => self.end_code(),
            Event::End(TagEnd::TableCell) => {
                let cell = std::mem::take(&mut self.text);
                self.rows.last_mut().into_iter().for_each(|row| row.push(cell.clone()));
            }
            Event::End(TagEnd::Table) => self.end_table(),
            _ => {}
        }
    }

    /// Paragraph at the current indentation.
    fn paragraph(&self) -> Paragraph {
        Paragraph::new(Some(self.width)).indented(self.lists.iter().map(|(_, width)| width).sum())
    }

    /// Separates two blocks.
    fn blank_line(&mut self) {
        if !self.drawn.is_empty() && !self.drawn.ends_with("\n\n") {
            self.drawn.push('\n');
        }
    }

    /// Draws the text of a paragraph or list item, if there is any.
    fn end_paragraph(&mut self) {
        let text = std::mem::take(&mut self.text);
        if text.is_empty() {
            return;
        }
        if self.lists.is_empty() {
            self.blank_line();
        }
        let block = self.paragraph().block(&text);
        let marker = std::mem::take(&mut self.marker);
        let outer: usize = self.lists.iter().map(|(_, width)| width).sum::<usize>() - marker.len();
        let text = block.get(outer + marker.len()..).unwrap_or_default();
        self.drawn += &format!("{:outer$}{marker}{text}\n", "");
    }

    fn end_heading(&mut self, level: HeadingLevel) {
        self.blank_line();
        let text = self.paragraph().text(&std::mem::take(&mut self.text));
        for line in text.lines() {
            self.drawn += &format!("{}\n", self.colors.paint(line, HEADER));
        }
        let rule = match level {
            HeadingLevel::H1 => "=",
            HeadingLevel::H2 => "-",
            _ => "",
        };
        if self.colors == Colors::Plain && !rule.is_empty() {
            self.drawn += &format!("{}\n", rule.repeat(text.width().min(self.width)));
        }
    }

    fn end_code(&mut self) {
        self.blank_line();
        let indent = CODE_INDENT + self.lists.iter().map(|(_, width)| width).sum::<usize>();
        for line in std::mem::take(&mut self.text).lines() {
            self.drawn += format!("{:indent$}{line}", "").trim_end();
            self.drawn.push('\n');
        }
        self.blank_line();
    }

    fn end_table(&mut self) {
        let rows = std::mem::take(&mut self.rows);
        let Some((head, body)) = rows.split_first() else { return };
        self.blank_line();
        let cells = |column: usize| rows.iter().filter_map(move |row| row.get(column));
        let widths = (0..head.len()).map(|at| cells(at).map(|it| it.width()).max().unwrap_or(0));
        let widths: Vec<usize> = widths.collect();
        let total = widths.iter().map(|width| width + GAP).sum::<usize>().saturating_sub(GAP);
        let before_last = total - widths.last().unwrap_or(&0);
        // The last column wraps, unless the others leave too little space for it.
        if total <= self.width || before_last * 2 <= self.width {
            let last = Paragraph::new(Some(self.width)).indented(before_last);
            let draw = |row: &[String]| {
                let (text, before) = row.split_last().map_or(("", row), |(it, row)| (&**it, row));
                let padded = before.iter().zip(&widths).map(|(cell, width)| {
                    format!("{cell}{:blanks$}", "", blanks = width + GAP - cell.width())
                });
                last.labeled(padded.collect::<String>().trim_end(), text)
            };
            for line in draw(head).lines() {
                self.drawn += &format!("{}\n", self.colors.paint(line, HEADER));
            }
            self.drawn += &format!("{}\n", "─".repeat(total.min(self.width)));
            body.iter().for_each(|row| self.drawn += &format!("{}\n", draw(row)));
            return;
        }
        let paragraph = Paragraph::new(Some(self.width)).indented(BLOCK_INDENT);
        for row in body {
            match row.as_slice() {
                [term, text] => {
                    self.drawn += &format!("{}\n", paragraph.text(&format!("{term}: {text}")));
                }
                row => {
                    self.blank_line();
                    for (at, (name, cell)) in head.iter().zip(row).enumerate() {
                        let drawn = match at {
                            0 => self.colors.paint(&paragraph.text(cell), HEADER),
                            _ if cell.is_empty() => continue,
                            _ => format!("  {}", paragraph.text(&format!("{name}: {cell}"))),
                        };
                        self.drawn += &format!("{drawn}\n");
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(markdown: &str, width: usize, colors: Colors) -> String {
        let hint = |target: &str| target.strip_suffix(".md").map(|page| format!("see {page}"));
        render(markdown, TableView { width: Some(width), colors }, hint)
    }

    #[test]
    fn blocks_are_drawn_as_text() {
        for (markdown, drawn) in [
            ("# A *b*\n\none\ntwo", "A b\n===\n\none two\n"),
            ("see [a](a.md), [b](#b)", "see a [see a], b\n"),
            ("![what it shows](a.svg)\n\nb", "b\n"),
            ("x `y` **z**<br>\n\n<table>", "x `y` z\n"),
            (
                "p\n\n- one two three four\n  - five\n- six",
                "p\n\n- one two three\n  four\n  - five\n- six\n",
            ),
            ("9. a\n10. b\n\nc", "9. a\n10. b\n\nc\n"),
            (
                "a\n\n```sh\nb  \\\n  c | d e f g h i j k\n```\nl",
                "a\n\n  b  \\\n    c | d e f g h i j k\n\nl\n",
            ),
            ("|a|b|\n|---|---|\n|`x\\|y`|z|", "a      b\n────────\n`x|y`  z\n"),
            (
                "|a|b|\n|-|-|\n|x|one two three four|",
                "a  b\n────────────────\nx  one two three\n   four\n",
            ),
            ("|a|b|\n|-|-|\n|one two three|four five|", "one two\n    three: four\n    five\n"),
            ("|a|b|c|\n|-|-|-|\n|one two|four five||", "one two\n  b: four five\n"),
        ] {
            assert_eq!(rendered(markdown, 16, Colors::Plain), drawn, "{markdown}");
        }
    }

    #[test]
    fn headings_are_bold_if_colors_are_on() {
        assert_eq!(rendered("## A", 80, Colors::Styled), "\u{1b}[1mA\u{1b}[0m\n");
    }
}
