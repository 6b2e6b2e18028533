//! Tokenizer, edit distance and deprecation marks. Words are in lower case and without accents, and identifiers are split.

use unicode_normalization::char::{decompose_canonical, decompose_compatible};

/// Maximum length of a word, in bytes.
const MAX_WORD_BYTES: usize = 64;

/// Word separation of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Script {
    Spaced,
    /// No separation: Chinese, Japanese, Thai and others. A "word" is a run of characters.
    Unspaced,
}

/// Tokenizes a text.
pub(super) fn words(text: &str) -> Vec<(String, Script)> {
    let mut found = Vec::new();
    let apart = split_identifiers(text);
    for part in apart.split(|c: char| c.is_whitespace() || c == '\'') {
        let mut word = String::new();
        let mut script = Script::Spaced;
        for c in part.chars() {
            let own = script_of(c);
            if own != script || word.len() >= MAX_WORD_BYTES {
                if !word.is_empty() {
                    found.push((std::mem::take(&mut word), script));
                }
                script = own;
            }
            fold(c, &mut word);
        }
        if !word.is_empty() {
            found.push((word, script));
        }
    }
    found
}

fn script_of(c: char) -> Script {
    match c {
        '\u{0e00}'..='\u{0eff}'
        | '\u{1000}'..='\u{109f}'
        | '\u{1780}'..='\u{17ff}'
        | '\u{2e80}'..='\u{9fff}'
        | '\u{f900}'..='\u{faff}'
        | '\u{ff66}'..='\u{ff9f}'
        | '\u{20000}'..='\u{3ffff}' => Script::Unspaced,
        _ => Script::Spaced,
    }
}

/// Folds a character to lower case and, if it is Latin, removes its accent.
fn fold(c: char, word: &mut String) {
    match c {
        'a'..='z' | '0'..='9' => word.push(c),
        'A'..='Z' => word.push(c.to_ascii_lowercase()),
        'ß' | 'ẞ' => word.push_str("ss"),
        'æ' | 'Æ' => word.push_str("ae"),
        'œ' | 'Œ' => word.push_str("oe"),
        'ø' | 'Ø' => word.push('o'),
        'ł' | 'Ł' => word.push('l'),
        'ё' | 'Ё' => word.push('е'),
        '\u{300}'..='\u{36f}' => {}
        '\u{c0}'..='\u{24f}' | '\u{1e00}'..='\u{1eff}' => decompose_canonical(c, |part| {
            if !('\u{300}'..='\u{36f}').contains(&part) {
                word.extend(part.to_lowercase());
            }
        }),
        '\u{ff00}'..='\u{ffef}' => {
            decompose_compatible(c, |part| word.extend(part.to_lowercase()));
        }
        _ => word.extend(c.to_lowercase()),
    }
}

/// Splits `snake_case`, `kebab-case`, `camelCase` and `HTTPCase` into words.
pub(super) fn split_identifiers(text: &str) -> String {
    let mut split = String::with_capacity(text.len() + text.len() / 8);
    let mut before = ' ';
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let hump = c.is_uppercase()
            && (before.is_lowercase()
                || before.is_numeric()
                || (before.is_uppercase() && chars.peek().is_some_and(|next| next.is_lowercase())));
        if hump {
            split.push(' ');
        }
        let kept = c.is_alphanumeric() || c == '\'' || ('\u{300}'..='\u{36f}').contains(&c);
        split.push(if kept { c } else { ' ' });
        before = c;
    }
    split
}

/// Returns the lower-case words of an identifier or query.
pub(super) fn plain(text: &str) -> String {
    split_identifiers(text.trim()).to_lowercase()
}

/// Minimum number of letters in a corrected word. Shorter words are similar to too many other words.
const SHORTEST: usize = 4;
/// Number of letters at which two errors are allowed.
const TWO_ERRORS: usize = 8;
/// Number of letters up to which only transpositions count as errors.
const SHORT: usize = 4;
/// Number of letters at which a word is no longer corrected.
const LONGEST: usize = 32;

/// Bit mask of a word's letters, to exclude distant words quickly.
pub(super) fn letters(word: &str) -> u32 {
    word.bytes().fold(0, |letters, byte| letters | 1 << (byte % 32))
}

/// Number of typing errors allowed in a word.
pub(super) fn allowed(word: &str) -> Option<usize> {
    let length = word.chars().count();
    (SHORTEST..LONGEST).contains(&length).then_some(if length < TWO_ERRORS { 1 } else { 2 })
}

/// Whether the letter masks allow this number of errors.
pub(super) fn could_be(one: u32, other: u32, errors: usize) -> bool {
    (one & !other).count_ones() as usize <= errors && (other & !one).count_ones() as usize <= errors
}

/// Damerau-Levenshtein distance (insertions, deletions, substitutions, transpositions of neighbors), if at most
/// `max_errors`.
pub(super) fn errors(one: &str, other: &str, max_errors: usize) -> Option<usize> {
    let lengths = (one.chars().count(), other.chars().count());
    if lengths.0.abs_diff(lengths.1) > max_errors || lengths.0.max(lengths.1) >= LONGEST {
        return None;
    }
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    if lengths.0 == lengths.1 && lengths.0 <= SHORT {
        let sorted = |letters: &[char]| {
            let mut letters = letters.to_vec();
            letters.sort_unstable();
            letters
        };
        if sorted(&one) != sorted(&other) {
            return None;
        }
    }
    // The last three rows of the distance table.
    let mut last: Vec<usize> = (0..=other.len()).collect();
    let mut before: Vec<usize> = Vec::new();
    for (at, letter) in one.iter().enumerate() {
        let mut row = vec![at + 1];
        for (place, theirs) in other.iter().enumerate() {
            let cell = |row: &[usize], at: usize| row.get(at).copied().unwrap_or(usize::MAX / 2);
            let mut min = (cell(&last, place) + usize::from(letter != theirs))
                .min(cell(&last, place + 1) + 1)
                .min(cell(&row, place) + 1);
            let swapped = at > 0
                && place > 0
                && one.get(at - 1) == Some(theirs)
                && other.get(place - 1) == Some(letter);
            if swapped {
                min = min.min(cell(&before, place - 1) + 1);
            }
            row.push(min);
        }
        if row.iter().min().is_some_and(|min| *min > max_errors) {
            return None;
        }
        before = std::mem::replace(&mut last, row);
    }
    last.last().copied().filter(|errors| *errors <= max_errors)
}

/// Maximum number of characters that are examined.
const LOOKED_AT: usize = 200;

const DEPRECATED: &str = "deprecated";

/// Words after "deprecated" that relate it to the tool: "Deprecated since 2.0", "Deprecated, use another".
const GOES_ON: [&str; 7] = ["use", "since", "in", "as", "and", "please", "by"];

/// Words before "deprecated" that relate it to the tool: "This tool is deprecated".
const SAID: [&str; 4] = ["is", "been", "now", "was"];

/// Sentence beginnings that relate "deprecated" to the tool, unlike "whether it is deprecated".
const SUBJECTS: [&str; 6] = ["this", "it", "the", "tool", "note", "warning"];

/// Introductions that assert the rest of the sentence: "Note that this tool is deprecated".
const NOTES: [&str; 2] = ["note", "warning"];

/// Words before "deprecated" that ask or refer to something else: "The tool tells which API is deprecated".
const ASKED: [&str; 5] = ["whether", "if", "which", "that", "what"];

/// Whether a text marks its tool as deprecated: at the beginning of the text or of a sentence, in brackets, or in a
/// statement.
pub(super) fn is_marked(text: &str) -> bool {
    let end = text.char_indices().nth(LOOKED_AT).map_or(text.len(), |(at, _)| at);
    let start = text.get(..end).unwrap_or(text);
    // Conversion to ASCII lower case keeps byte positions.
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
        // The word is a mark at the beginning of its sentence, and not an adjective ("Deprecated packages by name").
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
    fn identifiers_are_split() {
        for (text, split) in [
            ("deleteRepo", "delete Repo"),
            ("delete_repo-now", "delete repo now"),
            ("HTTPServer", "HTTP Server"),
            ("parseURL", "parse URL"),
            ("file2Text", "file2 Text"),
        ] {
            assert_eq!(split_identifiers(text), split);
        }
    }

    #[test]
    fn words_are_lower_case_without_accents() {
        let only = |text: &str| words(text).into_iter().map(|(word, _)| word).collect::<Vec<_>>();
        assert_eq!(only("Größe ändern"), ["grosse", "andern"]);
        assert_eq!(only("l'écran e\u{301}té ÉTÉ"), ["l", "ecran", "ete", "ete"]);
        assert_eq!(only("ＡＢＣ 读取README文件"), ["abc", "读取", "readme", "文件"]);
        assert_eq!(only("\u{0}\u{1f5d1} \u{202e}"), Vec::<String>::new());
        let long = only(&"x".repeat(1000));
        assert!(long.iter().all(|word| word.len() <= MAX_WORD_BYTES), "{long:?}");
    }
}

#[cfg(test)]
mod spelling_tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn edit_distance_counts_errors() {
        for (one, other, expected) in [
            ("directory", "directory", Some(0)),
            ("direcotry", "directory", Some(1)),
            ("repositry", "repository", Some(1)),
            ("serach", "search", Some(1)),
            ("emial", "email", Some(1)),
            ("colections", "collections", Some(1)),
            ("slak", "slack", Some(1)),
            ("casa", "case", None),
            ("abcd", "dcba", None),
            ("", "abc", None),
        ] {
            assert_eq!(errors(one, other, 2), expected, "{one} {other}");
        }
    }

    proptest! {
        #[test]
        fn letter_masks_exclude_distant_words(one in "[a-e]{0,9}", other in "[a-e]{0,9}", max_errors in 0usize..3) {
            let near = errors(&one, &other, max_errors);
            prop_assert_eq!(near, errors(&other, &one, max_errors), "the distance is symmetric");
            if near.is_some() {
                prop_assert!(could_be(letters(&one), letters(&other), max_errors));
            }
            prop_assert_eq!(errors(&one, &one, max_errors), (one.len() < LONGEST).then_some(0));
        }

        #[test]
        fn edit_distance_accepts_any_words(one in "\\PC{0,40}", other in "\\PC{0,40}") {
            let _ = (errors(&one, &other, 2), letters(&one), allowed(&one));
        }
    }
}

#[cfg(test)]
mod deprecation_tests {
    use super::*;

    #[test]
    fn deprecation_mark_differs_from_plain_mention() {
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
