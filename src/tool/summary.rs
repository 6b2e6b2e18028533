//! The first sentence of a description, on one line: what a tool is for, at a glance. Pure.

use super::signature::on_one_line;

/// Most bytes of a summary.
pub const MAX_SUMMARY_BYTES: usize = 240;

/// Letters after which a full stop ends no sentence: `e.g.`, `i.e.`, initials.
const SHORTEST_WORD: usize = 2;

/// The first sentence of `description`, cut where it is long; markup of headings and lists before it is left out.
#[must_use]
pub fn first_sentence(description: &str) -> String {
    let start = description.trim_start_matches(|letter: char| {
        letter.is_whitespace() || letter.is_control() || "#*-=_>`".contains(letter)
    });
    // Enough to find its end: white space may be folded.
    let start = start.get(..start.floor_char_boundary(4 * MAX_SUMMARY_BYTES)).unwrap_or_default();
    let paragraph = start.split("\n\n").next().unwrap_or_default();
    let words: Vec<_> = paragraph.split_whitespace().collect();
    let mut sentence = String::new();
    for word in words {
        if !sentence.is_empty() {
            sentence.push(' ');
        }
        sentence.push_str(word);
        if ends_sentence(word) || sentence.len() > MAX_SUMMARY_BYTES {
            break;
        }
    }
    let mut clean = on_one_line(&sentence);
    if clean.len() > MAX_SUMMARY_BYTES {
        clean.truncate(clean.floor_char_boundary(MAX_SUMMARY_BYTES - '…'.len_utf8()));
        clean.push('…');
    }
    clean
}

fn ends_sentence(word: &str) -> bool {
    let word = word.trim_end_matches(['"', '\'', ')', '`', '*']);
    if word.ends_with(['!', '?', '。', '！', '？']) {
        return true;
    }
    let before = word.strip_suffix('.').unwrap_or_default();
    before.chars().count() >= SHORTEST_WORD && !before.contains('.') || before.contains(['/', '_'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_sentence_is_found() {
        for (description, summary) in [
            ("", ""),
            ("Deletes a repository", "Deletes a repository"),
            ("Reads a file.  Fails if\nit is missing.", "Reads a file."),
            ("Reads e.g. a file of v1.2. Then more.", "Reads e.g. a file of v1.2. Then more."),
            ("# Reads\n  it all\n\nArgs:\n  x", "Reads it all"),
            ("**Finds** (anything.) And more", "Finds** (anything.)"),
            ("何でも検索します。 二番目", "何でも検索します。"),
            ("Really? Yes.", "Really?"),
            ("\u{1b}[31mRed\u{2028}line. x", "[31mRed line."),
        ] {
            assert_eq!(first_sentence(description), summary, "{description}");
        }
        let long = first_sentence(&"wörd ".repeat(100_000));
        assert!(long.len() <= MAX_SUMMARY_BYTES && long.ends_with('…'), "{long}");
        let odd = first_sentence(&"\u{202e}".repeat(1000));
        assert!(odd.len() <= MAX_SUMMARY_BYTES && !odd.contains('\u{202e}'), "{odd}");
    }
}
