//! Text of several lines beside what it is about: it goes on below itself, never at the left edge.
//!
//! What servers and agents wrote has line breaks of its own. At the left edge stands what we say, so that no text of
//! others may begin there: it would pass for ours. Where there is a terminal, lines that are too long are wrapped.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::terminal_safe::clean;

/// The least room for text, however narrow the terminal is.
const MIN_ROOM: usize = 10;
/// Columns before the second line of a label.
const LABEL: usize = 4;
/// What is shown of a tab: how wide one is depends on where it stands.
const TAB: &str = "    ";

/// Where a text stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Paragraph {
    /// Columns of the terminal; `None`: nothing is wrapped.
    width: Option<usize>,
    /// Columns before the text.
    indent: usize,
}

impl Paragraph {
    /// At the left edge, for what is ours.
    pub(super) fn new(width: Option<usize>) -> Self {
        Self { width, indent: 0 }
    }

    /// Behind so many columns.
    pub(super) fn behind(self, indent: usize) -> Self {
        Self { indent, ..self }
    }

    /// A text whose first line stands behind what is written already. Without a line's end.
    pub(super) fn text(self, text: &str) -> String {
        let blanks = " ".repeat(self.indent);
        let text = clean(text).replace('\t', TAB);
        let lines = text.split('\n').flat_map(|line| match self.width {
            Some(width) => wrapped(line, width.saturating_sub(self.indent).max(MIN_ROOM)),
            None => vec![line],
        });
        let mut told = String::with_capacity(text.len());
        for (at, line) in lines.map(str::trim_end).enumerate() {
            if at > 0 {
                told.push('\n');
                if !line.is_empty() {
                    told += &blanks;
                }
            }
            told += line;
        }
        told
    }

    /// A text on lines of its own, all of them behind the indent.
    pub(super) fn block(self, text: &str) -> String {
        format!("{:indent$}{}", "", self.text(text), indent = self.indent)
    }

    /// A line of a list: its label, then a text in a column of its own; below the label where that is too long.
    pub(super) fn labelled(self, label: &str, text: &str) -> String {
        match self.indent.checked_sub(label.width() + 1) {
            Some(blanks) => {
                format!("{label}{:blanks$} {}", "", self.text(text)).trim_end().to_owned()
            }
            // The label may be of others as well.
            None => format!("{}\n{}", self.behind(LABEL).text(label), self.block(text)),
        }
    }
}

/// A line as lines of at most so many columns, broken between words, unless that would leave more than half of one empty.
fn wrapped(line: &str, room: usize) -> Vec<&str> {
    let (mut lines, mut rest) = (Vec::new(), line);
    loop {
        let mut end = 0;
        let mut width = 0;
        let mut blank = None;
        // What is beyond one line is not looked at for it: a line may be very long.
        for (at, letter) in rest.char_indices() {
            width += letter.width().unwrap_or_default();
            if letter == ' ' {
                blank = Some(at);
            }
            // A blank may stand beyond the end: it is not shown there.
            if width > room && letter != ' ' {
                break;
            }
            end = at + letter.len_utf8();
        }
        if end == rest.len() {
            break;
        }
        let between = blank.filter(|at| rest.get(..*at).is_some_and(|it| it.width() * 2 >= room));
        // One letter at least, however wide.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_text_begins_at_the_left_edge() {
        let forged = "clean up\nstatus               blocked\r\n\tx\n\nerror 0\u{2028}y";
        for width in [None, Some(20), Some(80)] {
            let told = Paragraph::new(width).behind(21).labelled("reason", forged);
            let mut lines = told.lines();
            assert!(lines.next().unwrap().starts_with("reason               clean"), "{told}");
            assert!(
                lines.all(|line| line.is_empty() || line.starts_with(&" ".repeat(21))),
                "{told}"
            );
            assert!(told.contains("blocked\\u{d}") || width == Some(20), "{told}");
        }
        let below = Paragraph::new(None).behind(6).labelled("a long label", "text");
        assert_eq!(below, "a long label\n      text");
        let block = Paragraph::new(None).behind(2).block("one\ntwo");
        assert_eq!(block, "  one\n  two");
    }

    #[test]
    fn lines_are_wrapped_between_words_and_a_long_word_is_broken() {
        for (text, room, lines) in [
            ("one two three", 7, &["one two", "three"][..]),
            ("one two three", 8, &["one two", "three"]),
            ("one two three", 100, &["one two three"]),
            ("a 0123456789", 6, &["a 0123", "456789"]),
            ("abc 0123456789", 6, &["abc", "012345", "6789"]),
            ("  indented code", 10, &["  indented", "code"]),
            ("日本語日本", 5, &["日本", "語日", "本"]),
            ("日", 1, &["日"]),
            ("", 5, &[""]),
            ("ends here   ", 9, &["ends here"]),
        ] {
            let wrapped: Vec<_> = wrapped(text, room).into_iter().map(str::trim_end).collect();
            assert_eq!(wrapped, lines, "{text} in {room}");
        }
    }

    #[test]
    fn no_line_is_longer_than_the_terminal() {
        let text = "words of several lengths, 日本語 too, and averyveryverylongwordthatdoesnotfit";
        for width in 24..100 {
            let told = Paragraph::new(Some(width)).behind(12).labelled("label", text);
            assert!(told.lines().all(|line| line.width() <= width), "{width}:\n{told}");
            let plain = |text: &str| {
                text.chars().filter(|it| *it != ' ' && *it != '\n').collect::<String>()
            };
            assert_eq!(plain(&told), format!("label{}", plain(text)), "nothing is lost");
        }
    }
}
