//! Colors of terminal output, and wrapped paragraphs of text.

use crate::terminal_safe::clean;
use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use clap::ColorChoice as ColorFlag;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Whether color sequences are emitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Colors {
    Plain,
    Styled,
}

/// Style of column names.
pub(super) const HEADER: Style = Style::new().bold();
const GOOD: Style = AnsiColor::Green.on_default();
const BAD: Style = AnsiColor::Red.on_default();
const ODD: Style = AnsiColor::Yellow.on_default();
/// Style of removed lines of a diff; the next one is that of added lines.
pub(super) const REMOVED: Style = BAD;
pub(super) const ADDED: Style = GOOD;
/// Style of suspicious characters.
pub(super) const HIGHLIGHT: Style = AnsiColor::Yellow.on_default().bold().invert();
/// Style of secondary text.
pub(super) const FAINT: Style = Style::new().dimmed();

impl Colors {
    /// Color choice for stdout.
    pub(super) fn of_stdout(requested: ColorFlag) -> Self {
        Self::of(requested, || AutoStream::choice(&std::io::stdout()))
    }

    /// Color choice for stderr.
    pub(super) fn of_stderr(requested: ColorFlag) -> Self {
        Self::of(requested, || AutoStream::choice(&std::io::stderr()))
    }

    fn of(requested: ColorFlag, stream: impl FnOnce() -> ColorChoice) -> Self {
        let on = match requested {
            ColorFlag::Always => true,
            ColorFlag::Never => false,
            ColorFlag::Auto => stream() != ColorChoice::Never,
        };
        if on { Self::Styled } else { Self::Plain }
    }

    /// Applies a style to a piece of text.
    pub(super) fn paint(self, text: &str, style: Style) -> String {
        match self {
            Self::Styled if style != Style::new() => format!("{style}{text}{style:#}"),
            Self::Styled | Self::Plain => text.to_owned(),
        }
    }
}

/// Style of a status, decision or state word.
pub(super) fn of_state(word: &str) -> Style {
    match word {
        "success" | "connected" | "approved" | "ok" | "allow" | "mended" | "living" => GOOD,
        "error" | "failed" | "rejected" | "blocked" | "denied" | "deny" | "wrong" | "FAILED"
        | "silent" => BAD,
        "warning" | "unknown" | "connecting" | "needs-login" | "throttled" | "waiting" | "odd"
        | "quarantined" => ODD,
        "disabled" | "not running" | "stopped" => FAINT,
        _ => Style::new(),
    }
}

/// Minimum width of text in columns, even on a narrower terminal.
const MIN_TEXT_WIDTH: usize = 10;
/// Indentation of a wrapped label.
const LABEL: usize = 4;
/// Replacement for a tab, because a tab's width depends on its position.
const TAB: &str = "    ";

/// Width and indentation of a block of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Paragraph {
    /// Terminal width in columns; `None` disables wrapping.
    width: Option<usize>,
    /// Columns before the text.
    indent: usize,
    /// Whether a path may exceed the width, so that it can be copied.
    keeps_paths: bool,
}

impl Paragraph {
    /// Creates a paragraph at the left edge, for mcpproxy's own text.
    pub(super) fn new(width: Option<usize>) -> Self {
        Self { width, indent: 0, keeps_paths: false }
    }

    /// Returns the same paragraph with a different indentation.
    pub(super) fn indented(self, indent: usize) -> Self {
        Self { indent, ..self }
    }

    /// Returns the same paragraph with paths and URLs in one piece: one that is too wide for the indented text is on a line of
    /// its own with less indentation, and may be wider than the terminal.
    pub(super) fn keeping_paths(self) -> Self {
        Self { keeps_paths: true, ..self }
    }

    /// Wraps a text that continues the current line. Does not end with a newline.
    pub(super) fn text(self, text: &str) -> String {
        let blanks = " ".repeat(self.indent);
        let text = clean(text).replace('\t', TAB);
        let lines = text.split('\n').flat_map(|line| match self.width {
            Some(width) => {
                let limit = width.saturating_sub(self.indent).max(MIN_TEXT_WIDTH);
                wrapped(line, limit, self.keeps_paths)
            }
            None => vec![line],
        });
        let mut drawn = String::with_capacity(text.len());
        for (at, line) in lines.map(str::trim_end).enumerate() {
            if at > 0 {
                drawn.push('\n');
                // A path that is too wide for its column may fit the terminal.
                let room = self.width.filter(|_| self.keeps_paths);
                let room = room.map(|it| it.saturating_sub(line.width()).max(LABEL));
                if !line.is_empty() {
                    drawn += room.and_then(|room| blanks.get(..room)).unwrap_or(&blanks);
                }
            }
            drawn += line;
        }
        drawn
    }

    /// Wraps a text on separate lines, all indented.
    pub(super) fn block(self, text: &str) -> String {
        format!("{:indent$}{}", "", self.text(text), indent = self.indent)
    }

    /// Renders a list entry: a label, and a text in its own column, or below the label if the label is too long.
    pub(super) fn labeled(self, label: &str, text: &str) -> String {
        match self.indent.checked_sub(label.width() + 1) {
            Some(blanks) => {
                format!("{label}{:blanks$} {}", "", self.text(text)).trim_end().to_owned()
            }
            // The label may also come from a server.
            None => format!("{}\n{}", self.indented(LABEL).text(label), self.block(text)),
        }
    }
}

/// Splits a line at `width_limit` columns: between words, or after a comma in text without blanks such as JSON, unless
/// that leaves more than half of a line empty and splits a word that does not fit a line either. If `keeps_paths` is set, a
/// path is not split.
fn wrapped(line: &str, width_limit: usize, keeps_paths: bool) -> Vec<&str> {
    let (mut lines, mut rest) = (Vec::new(), line);
    loop {
        let mut end = 0;
        let mut width = 0;
        let (mut blank, mut comma) = (None, None);
        // The loop examines only one line at a time, because the text may be very long.
        for (at, letter) in rest.char_indices() {
            width += letter.width().unwrap_or_default();
            if letter == ' ' {
                blank = Some(at);
            }
            // A blank beyond the end is not shown.
            if width > width_limit && letter != ' ' {
                break;
            }
            end = at + letter.len_utf8();
            if letter == ',' {
                comma = Some(end);
            }
        }
        if end == rest.len() {
            break;
        }
        let is_late = |at: &usize| rest.get(..*at).is_some_and(|it| it.width() * 2 >= width_limit);
        let path_end = if keeps_paths { end_before_or_after_path(rest, end) } else { None };
        // A word that fits a line is not split.
        let is_before_word = |at: &usize| {
            let next = rest.get(*at..).unwrap_or_default().trim_start_matches(' ');
            let word = next.split_inclusive([' ', ',']).next().unwrap_or_default().trim_end();
            word.len() <= MAX_WORD_BYTES && word.width() <= width_limit
        };
        let late_break = blank.filter(is_late).or(comma.filter(is_late));
        let early_break = || [blank, comma].into_iter().flatten().filter(is_before_word).max();
        let between = path_end.or(late_break).or_else(early_break);
        // A part has at least one character, regardless of its width.
        let first = rest.chars().next().map_or(0, char::len_utf8);
        let (before, after) = rest.split_at(between.unwrap_or(end).max(first));
        lines.push(before);
        rest = after.trim_start_matches(' ');
    }
    if !rest.is_empty() || lines.is_empty() {
        lines.push(rest);
    }
    lines
}

/// Maximum length of a word that is not split, in bytes.
const MAX_WORD_BYTES: usize = 256;

/// Maximum width of a path that is not split.
const MAX_PATH_WIDTH: usize = 1024;

/// Where to split a line if `end` is within a path: before the path, or after it if the line begins with it. `None` if
/// there is no path, or if it is too long.
fn end_before_or_after_path(line: &str, end: usize) -> Option<usize> {
    let (before, after) = line.split_at_checked(end)?;
    let start = before.rfind(' ').map_or(0, |blank| blank + 1);
    let stop = after.find(' ').map_or(line.len(), |blank| end + blank);
    let path = line.get(start..stop)?;
    let is_path = path.contains('/') && path.width() <= MAX_PATH_WIDTH;
    let is_first = || line.get(..start).is_none_or(|it| it.trim_start().is_empty());
    match is_path && start < end && end < stop {
        true if is_first() => Some(stop),
        true => Some(start - 1),
        false => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_is_kept_in_one_piece() {
        for (text, width_limit, lines) in [
            (
                "at /usr/lib/python3/mcp.py line 3",
                20,
                &["at", "/usr/lib/python3/mcp.py", "line 3"][..],
            ),
            ("/usr/lib/python3/mcp.py", 10, &["/usr/lib/python3/mcp.py"]),
            ("  /usr/lib/python3/mcp.py x", 10, &["  /usr/lib/python3/mcp.py", "x"]),
            ("one two /a/b", 12, &["one two /a/b"]),
            ("one two three", 7, &["one two", "three"]),
            ("a 0123456789", 6, &["a 0123", "456789"]),
        ] {
            let wrapped: Vec<_> =
                wrapped(text, width_limit, true).into_iter().map(str::trim_end).collect();
            assert_eq!(wrapped, lines, "{text} in {width_limit}");
        }
        let long = format!("/{}", "x".repeat(2 * MAX_PATH_WIDTH));
        assert!(wrapped(&long, 80, true).iter().all(|line| line.len() <= 80));
    }

    #[test]
    fn color_flag_is_obeyed_and_unknown_states_are_unstyled() {
        assert_eq!(Colors::of_stdout(ColorFlag::Always), Colors::Styled);
        assert_eq!(Colors::of_stdout(ColorFlag::Never), Colors::Plain);
        assert_eq!(Colors::Plain.paint("x", BAD), "x");
        assert_eq!(Colors::Styled.paint("x", BAD), "\u{1b}[31mx\u{1b}[0m");
        assert_eq!(Colors::Styled.paint("x", of_state("whatever")), "x");
    }

    #[test]
    fn continuation_lines_are_indented() {
        let forged = "clean up\nstatus               blocked\r\n\tx\n\nerror 0\u{2028}y";
        for width in [None, Some(20), Some(80)] {
            let drawn = Paragraph::new(width).indented(21).labeled("reason", forged);
            let mut lines = drawn.lines();
            assert!(lines.next().unwrap().starts_with("reason               clean"), "{drawn}");
            assert!(
                lines.all(|line| line.is_empty() || line.starts_with(&" ".repeat(21))),
                "{drawn}"
            );
            assert!(drawn.contains("blocked\\u{d}") || width == Some(20), "{drawn}");
        }
        let below = Paragraph::new(None).indented(6).labeled("a long label", "text");
        assert_eq!(below, "a long label\n      text");
        let block = Paragraph::new(None).indented(2).block("one\ntwo");
        assert_eq!(block, "  one\n  two");
    }

    #[test]
    fn lines_wrap_between_words_and_long_words_are_split() {
        for (text, width_limit, lines) in [
            ("one two three", 7, &["one two", "three"][..]),
            ("one two three", 8, &["one two", "three"]),
            ("one two three", 100, &["one two three"]),
            ("a 0123456789", 6, &["a 0123", "456789"]),
            ("abc 0123456789", 6, &["abc", "012345", "6789"]),
            ("tool everything:long 1", 16, &["tool", "everything:long", "1"]),
            ("  indented code", 10, &["  indented", "code"]),
            ("{\"a\":true,\"open\":false}", 14, &["{\"a\":true,", "\"open\":false}"]),
            ("{\"a\":[1,22,333]}", 12, &["{\"a\":[1,22,", "333]}"]),
            ("a,0123456789", 6, &["a,0123", "456789"]),
            (r#"{"a":1,"b":"0123456789"}"#, 18, &[r#"{"a":1,"#, r#""b":"0123456789"}"#]),
            ("one two,three", 10, &["one two,", "three"]),
            ("one two three,x", 14, &["one two", "three,x"]),
            ("日本語日本", 5, &["日本", "語日", "本"]),
            ("日", 1, &["日"]),
            ("", 5, &[""]),
            ("ends here   ", 9, &["ends here"]),
        ] {
            let wrapped: Vec<_> =
                wrapped(text, width_limit, false).into_iter().map(str::trim_end).collect();
            assert_eq!(wrapped, lines, "{text} in {width_limit}");
        }
    }

    #[test]
    fn lines_fit_the_terminal_width() {
        let text = "words of several lengths, 日本語 too, and averyveryverylongwordthatdoesnotfit";
        for width in 24..100 {
            let drawn = Paragraph::new(Some(width)).indented(12).labeled("label", text);
            assert!(drawn.lines().all(|line| line.width() <= width), "{width}:\n{drawn}");
            let plain = |text: &str| {
                text.chars().filter(|it| *it != ' ' && *it != '\n').collect::<String>()
            };
            assert_eq!(plain(&drawn), format!("label{}", plain(text)), "no characters are lost");
        }
    }
}
