//! What servers and agents wrote, made safe to look at: what no reader sees is shown as its code
//! point, `\u{200b}`, and what is to be pasted into a shell is quoted.
//!
//! Control characters steer a terminal; which characters are not seen, or change how others are, says
//! [`hidden_text`](crate::hidden_text). JSON and YAML are for machines and keep every character. A
//! sequence of emoji shows its joiner and its variation selector, since the same two characters hide
//! text elsewhere.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io;

use crate::hidden_text::is_hidden;

/// Makes visible what is not. Newlines and tabs stay, by which a text could begin a line and pass for ours: this is for what
/// keeps texts from the left edge (paragraphs, cells, differences), and for what a tool answers.
pub(super) fn clean(text: &str) -> Cow<'_, str> {
    shown(text, |letter| is_hidden(letter) && !matches!(letter, '\n' | '\t'))
}

/// The same for what belongs on one line: newlines and tabs are shown as well.
pub(super) fn line(text: &str) -> Cow<'_, str> {
    shown(text, is_hidden)
}

/// A message of several lines on one: newlines and tabs are blanks.
pub(super) fn joined(text: &str) -> String {
    line(&text.replace(['\n', '\t'], " ")).into_owned()
}

/// An argument as a shell takes it, on one line. `None` for what no shell can be given as it is.
pub(super) fn quoted(argument: &str) -> Option<Cow<'_, str>> {
    let visible = !argument.contains(is_hidden);
    shlex::try_quote(argument).ok().filter(|_| visible)
}

fn shown(text: &str, hides: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&hides) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        match hides(letter) {
            true => {
                let _ = write!(out, "{}", letter.escape_unicode());
            }
            false => out.push(letter),
        }
    }
    Cow::Owned(out)
}

/// Lines of log for people: what is hidden in them is shown. The colours of the formatter stay,
/// which has escaped those of others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Visible<W>(pub(super) W);

impl<W: io::Write> io::Write for Visible<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A line comes in one piece; one of ASCII hides nothing that the formatter lets through.
        if bytes.is_ascii() {
            self.0.write_all(bytes)?;
        } else {
            let text = String::from_utf8_lossy(bytes);
            let text = shown(&text, |letter| !letter.is_ascii() && is_hidden(letter));
            self.0.write_all(text.as_bytes())?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn control_characters_are_disarmed() {
        assert_eq!(clean("a\u{1b}[31mb\u{7}"), "a\\u{1b}[31mb\\u{7}");
        assert_eq!(clean("safe\n\ttext é 📖 日本 עברית ไทย"), "safe\n\ttext é 📖 日本 עברית ไทย");
        assert_eq!(clean("\u{202e}gpj.exe"), "\\u{202e}gpj.exe");
        assert_eq!(line("two\nlines"), "two\\u{a}lines");
        assert_eq!(joined("two\n\tlines\r"), "two  lines\\u{d}");
    }

    #[test]
    fn what_is_not_seen_is_printed_as_its_number() {
        for letter in "\u{200b}\u{61c}\u{3164}\u{e0041}\u{115f}\u{1160}\u{ffa0}\u{ad}\u{fe0f}\u{200d}\u{2028}\u{2029}\u{feff}\u{e000}\u{85}\u{2800}\u{180e}\u{2066}\u{fff9}\u{1d173}\u{34f}".chars() {
            let text = format!("a{letter}b");
            assert_eq!(clean(&text), format!("a{}b", letter.escape_unicode()));
        }
    }

    #[test]
    fn arguments_are_quoted_for_the_shell() {
        for (argument, expected) in [
            ("gh:delete_repo", Some("gh:delete_repo")),
            ("s:a b", Some("'s:a b'")),
            ("s:x; rm -rf ~", Some("'s:x; rm -rf ~'")),
            ("s:$(id)", Some("'s:$(id)'")),
            ("s:a\u{200b}", None),
            ("s:a\nb", None),
            ("s:\0", None),
        ] {
            assert_eq!(quoted(argument).as_deref(), expected, "{argument:?}");
        }
        let name = "s:it's `x` $HOME \\ !";
        assert_eq!(shlex::split(&quoted(name).unwrap()).unwrap(), [name]);
    }

    #[test]
    fn log_lines_keep_their_colours_and_show_what_is_hidden() {
        let mut written = Vec::new();
        let line = "\u{1b}[33m WARN\u{1b}[0m tool=a\u{200b}b é\n";
        Visible(&mut written).write_all(line.as_bytes()).unwrap();
        assert_eq!(
            String::from_utf8(written).unwrap(),
            "\u{1b}[33m WARN\u{1b}[0m tool=a\\u{200b}b é\n"
        );
    }
}
