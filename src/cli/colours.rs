//! Colours: whether there are any, and what each word is shown in.
//!
//! `--color` decides, else the terminal and the variables that everyone knows (`NO_COLOR`, `CLICOLOR`,
//! `CLICOLOR_FORCE`, `TERM=dumb`). JSON and YAML have none.

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use clap::ColorChoice as Asked;

/// Whether colours are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Colours {
    Plain,
    Styled,
}

/// The names of columns.
pub(super) const HEADER: Style = Style::new().bold();
const GOOD: Style = AnsiColor::Green.on_default();
const BAD: Style = AnsiColor::Red.on_default();
const ODD: Style = AnsiColor::Yellow.on_default();
/// A line that is no more, and one that is new.
pub(super) const REMOVED: Style = BAD;
pub(super) const ADDED: Style = GOOD;
/// What counts less.
pub(super) const FAINT: Style = Style::new().dimmed();

impl Colours {
    /// On stdout, as `--color` asks.
    pub(super) fn of_stdout(asked: Asked) -> Self {
        let on = match asked {
            Asked::Always => true,
            Asked::Never => false,
            Asked::Auto => AutoStream::choice(&std::io::stdout()) != ColorChoice::Never,
        };
        if on { Self::Styled } else { Self::Plain }
    }

    /// A piece of text in a style.
    pub(super) fn paint(self, text: &str, style: Style) -> String {
        match self {
            Self::Styled if style != Style::new() => format!("{style}{text}{style:#}"),
            Self::Styled | Self::Plain => text.to_owned(),
        }
    }
}

/// What a status, a decision or a state is shown in.
pub(super) fn of_state(word: &str) -> Style {
    match word {
        "success" | "connected" | "approved" | "ok" | "allow" | "mended" | "living" => GOOD,
        "error" | "failed" | "rejected" | "blocked" | "denied" | "deny" | "wrong" | "FAILED"
        | "silent" => BAD,
        "warning" | "unknown" | "connecting" | "waiting" | "odd" | "quarantined" => ODD,
        "disabled" | "not running" | "stopped" => FAINT,
        _ => Style::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_counts_and_words_nobody_knows_have_no_colour() {
        assert_eq!(Colours::of_stdout(Asked::Always), Colours::Styled);
        assert_eq!(Colours::of_stdout(Asked::Never), Colours::Plain);
        assert_eq!(Colours::Plain.paint("x", BAD), "x");
        assert_eq!(Colours::Styled.paint("x", BAD), "\u{1b}[31mx\u{1b}[0m");
        assert_eq!(Colours::Styled.paint("x", of_state("whatever")), "x");
    }
}
