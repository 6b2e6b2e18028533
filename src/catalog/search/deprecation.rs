//! Whether a tool is said to be deprecated, or only has to do with things that are.

/// Characters of a text that are looked at.
const LOOKED_AT: usize = 200;

const DEPRECATED: &str = "deprecated";

/// What goes on after the word where it is said of the tool: "Deprecated since 2.0", "Deprecated, use another".
const GOES_ON: [&str; 7] = ["use", "since", "in", "as", "and", "please", "by"];

/// What stands before it where it is said of something: "This tool is deprecated".
const SAID: [&str; 4] = ["is", "been", "now", "was"];

/// What a sentence begins with that says it of the tool: "whether it is deprecated" is no such one.
const SUBJECTS: [&str; 6] = ["this", "it", "the", "tool", "note", "warning"];

/// What says of the rest of its sentence that it is so: "Note that this tool is deprecated".
const NOTES: [&str; 2] = ["note", "warning"];

/// What stands before it where it is asked, or said of something else: "The tool tells which API is deprecated".
const ASKED: [&str; 5] = ["whether", "if", "which", "that", "what"];

/// Whether a name, title or description has a mark that the tool is not to be used any more: at the beginning of the text
/// or of a sentence, in brackets, or as a statement.
pub(super) fn is_marked(text: &str) -> bool {
    let end = text.char_indices().nth(LOOKED_AT).map_or(text.len(), |(at, _)| at);
    let start = text.get(..end).unwrap_or(text);
    // Of ASCII letters alone, so that every place is the same in both.
    let small = start.to_ascii_lowercase();
    small.match_indices(DEPRECATED).any(|(at, _)| {
        let (before, rest) = small.split_at_checked(at).unwrap_or_default();
        let after = rest.get(DEPRECATED.len()..).unwrap_or_default();
        let written = start.get(at..at + DEPRECATED.len()).unwrap_or_default();
        is_mark(before, written, after)
    })
}

fn is_mark(before: &str, written: &str, after: &str) -> bool {
    let sentence = before.rsplit(['.', '!', '?', ':', '\n', '(', '[']).next().unwrap_or_default();
    let mut words = sentence.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    let Some(first) = words.next() else {
        // It begins what it stands in: as a mark, not as a word of it ("Deprecated packages by name").
        let next = after.trim_start_matches([' ', '_', '-']);
        let word: String = next.chars().take_while(|c| c.is_alphanumeric()).collect();
        let shouted = written.chars().all(|c| c.is_ascii_uppercase());
        return shouted || word.is_empty() || GOES_ON.contains(&&*word);
    };
    let mut asks = words.clone().skip(usize::from(NOTES.contains(&first)));
    let last = words.next_back().unwrap_or(first);
    SAID.contains(&last) && SUBJECTS.contains(&first) && !asks.any(|word| ASKED.contains(&word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_told_from_a_word() {
        for text in [
            "DEPRECATED: use read_text_file instead.",
            "Deprecated. Use another.",
            "deprecated",
            "[Deprecated] Reads a file",
            "Reads a file (deprecated)",
            "Read File (Deprecated)",
            "Read a file. DEPRECATED: use read_text_file instead.",
            "Reads a file.\n**Deprecated** since 2.0",
            "Reads it. Deprecated, use get_repo",
            "Deprecated in favor of x",
            "This tool is deprecated.",
            "Reads. It is now deprecated",
            "Reads. The endpoint has been deprecated",
            "DEPRECATED read a file",
            "Deprecated - use another",
            "Note that this tool is deprecated.",
        ] {
            assert!(is_marked(text), "{text}");
        }
        for text in [
            "",
            "list_deprecated_apis",
            "Lists deprecated APIs of a package.",
            "Deprecated packages, by name",
            "deprecated_apis",
            "Checks whether a package is deprecated",
            "Removes what was deprecated",
            "This tool checks whether an npm package is deprecated.",
            "Tool to check if a dependency is deprecated",
            "It tells which version was deprecated.",
            "deprecated-packages",
            "Finds out which calls are deprecated.",
            "Shows undeprecated things",
        ] {
            assert!(!is_marked(text), "{text}");
        }
        let late = format!("{}. DEPRECATED", "é".repeat(LOOKED_AT));
        assert!(!is_marked(&late));
    }
}
