//! Text of others, made fit to be shown to a person who decides by it.

use std::fmt::Write as _;

use crate::hidden_text::is_hidden;

/// `text` with control characters, and those that are not seen or turn text around, as their numbers; cut after so
/// many bytes, with a mark.
#[must_use]
pub fn shown(text: &str, limit: usize) -> String {
    let head = text.get(..text.floor_char_boundary(limit)).unwrap_or(text);
    let mut shown = String::with_capacity(head.len());
    for char in head.chars() {
        if is_hidden(char) {
            let _ = write!(shown, "\\u{{{:x}}}", u32::from(char));
        } else {
            shown.push(char);
        }
    }
    if head.len() < text.len() {
        let _ = write!(shown, "… ({} of {} bytes)", head.len(), text.len());
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_seen_is_shown_and_what_is_long_is_cut() {
        assert_eq!(shown("a\u{202e}b\u{0}\n", 100), "a\\u{202e}b\\u{0}\\u{a}");
        assert_eq!(
            shown("a\u{3164}b\u{2800}", 100),
            "a\\u{3164}b\\u{2800}",
            "as on the command line"
        );
        assert_eq!(shown("{\"é\":1}", 100), "{\"é\":1}");
        assert_eq!(shown("ééé", 3), "é… (2 of 6 bytes)");
    }
}
