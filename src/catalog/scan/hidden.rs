//! Characters that nobody sees: which of them stand in a text, and how suspect that is. Pure.
//!
//! What people write is left alone: joiners between the letters of scripts that need them and between emoji, the
//! variation selector after an emoji, the tags of a flag, the marks of scripts that run from right to left (low).

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::finding::FindingLevel;

/// Tags of the longest flag of a part of a country.
const FLAG_TAGS: usize = 6;
/// Most kinds of characters that are named.
const MAX_NAMED: usize = 8;

/// How suspect the hidden characters of a text are, and which they are; `None` where there are none to tell of.
#[must_use]
pub fn hidden(text: &str) -> Option<(FindingLevel, String)> {
    // Almost every text is of these.
    if text
        .bytes()
        .all(|byte| byte.is_ascii() && (byte >= b' ' && byte != 0x7f || b"\n\r\t".contains(&byte)))
    {
        return None;
    }
    let mut found = BTreeMap::<char, usize>::new();
    let mut level = FindingLevel::Low;
    let (mut before, mut tags_left) = (None, 0);
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        // England's flag is a black one, five tags and the one that ends it; more would carry words behind it.
        let flag = is_tag(letter) && tags_left > 0;
        tags_left = match letter {
            '\u{1f3f4}' => FLAG_TAGS,
            '\u{e007f}' => 0,
            _ if flag => tags_left - 1,
            _ => 0,
        };
        if let Some(suspect) = suspect(before, letter, letters.peek().copied(), flag) {
            level = level.max(suspect);
            *found.entry(letter).or_default() += 1;
        }
        before = Some(letter);
    }
    if found.is_empty() {
        return None;
    }
    let mut told = String::new();
    for (letter, count) in found.iter().take(MAX_NAMED) {
        let comma = if told.is_empty() { "" } else { ", " };
        let _ = write!(told, "{comma}U+{:04X} × {count}", u32::from(*letter));
    }
    if found.len() > MAX_NAMED {
        let _ = write!(told, " and {} more", found.len() - MAX_NAMED);
    }
    Some((level, told))
}

fn is_tag(letter: char) -> bool {
    matches!(letter, '\u{e0000}'..='\u{e007f}')
}

fn is_selector(letter: char) -> bool {
    matches!(letter, '\u{fe00}'..='\u{fe0f}' | '\u{e0100}'..='\u{e01ef}')
}

fn suspect(
    before: Option<char>,
    letter: char,
    after: Option<char>,
    flag: bool,
) -> Option<FindingLevel> {
    use FindingLevel::{High, Low, Medium};
    let beside =
        |neighbour: Option<char>| neighbour.is_some_and(|it| !it.is_ascii() && !is_selector(it));
    match letter {
        '\u{e0000}'..='\u{e007f}' => (!flag).then_some(High),
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => Some(High),
        '\u{200e}' | '\u{200f}' | '\u{61c}' | '\u{ad}' | '\u{34f}' => Some(Low),
        '\u{200c}' | '\u{200d}' => {
            let joins = (beside(before) || before == Some('\u{fe0f}')) && beside(after);
            (!joins).then_some(Medium)
        }
        // One after an ideograph chooses its form; a row of them carries bytes.
        '\u{e0100}'..='\u{e01ef}' => match before {
            Some('\u{3400}'..='\u{9fff}' | '\u{20000}'..='\u{3ffff}') => None,
            Some(_) | None => Some(High),
        },
        '\u{fe00}'..='\u{fe0f}' => match before {
            Some(before) if is_selector(before) => Some(High),
            Some('0'..='9' | '#' | '*') => None,
            Some(before) if !before.is_ascii() => None,
            Some(_) | None => Some(Medium),
        },
        '\u{200b}'
        | '\u{2060}'..='\u{206f}'
        | '\u{feff}'
        | '\u{180b}'..='\u{180f}'
        | '\u{115f}'
        | '\u{1160}'
        | '\u{3164}'
        | '\u{ffa0}'
        | '\u{2800}'
        | '\u{1d173}'..='\u{1d17a}'
        | '\u{fff0}'..='\u{fffb}'
        | '\u{e0080}'..='\u{e00ff}'
        | '\u{e01f0}'..='\u{e0fff}' => Some(Medium),
        '\n' | '\r' | '\t' => None,
        letter if letter.is_control() => Some(Medium),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_write_is_left_alone() {
        for text in [
            "",
            "plain\n\ttext",
            "café, naïve, Ελληνικά, 日本語, العربية, हिन्दी",
            "क्\u{200d}ष می\u{200c}خواهم",
            "👩\u{200d}💻 ❤\u{fe0f} 1\u{fe0f}\u{20e3} 🏳\u{fe0f}\u{200d}🌈",
            "🏴\u{e0067}\u{e0062}\u{e0065}\u{e006e}\u{e0067}\u{e007f}",
            "葛\u{e0100}",
            "– — … “” → ✓",
        ] {
            assert_eq!(hidden(text), None, "{text:?}");
        }
    }

    #[test]
    fn what_nobody_sees_is_told_with_its_level() {
        use FindingLevel::{High, Low, Medium};
        for (text, level, told) in [
            ("a\u{e0041}\u{e0042}", High, "U+E0041 × 1, U+E0042 × 1"),
            // Behind a flag, and in the place of one.
            (
                "🏴\u{e0067}\u{e0062}\u{e0065}\u{e006e}\u{e0067}\u{e007f}\u{e0041}",
                High,
                "U+E0041 × 1",
            ),
            (
                "🏴\u{e0061}\u{e0061}\u{e0061}\u{e0061}\u{e0061}\u{e0061}\u{e0062}",
                High,
                "U+E0062 × 1",
            ),
            ("a\u{202e}b\u{202c}", High, "U+202C × 1, U+202E × 1"),
            ("a\u{2066}b", High, "U+2066 × 1"),
            ("a\u{200b}b\u{200b}", Medium, "U+200B × 2"),
            ("a\u{200d}b", Medium, "U+200D × 1"),
            ("\u{200d}", Medium, "U+200D × 1"),
            ("a\u{fe0f}b", Medium, "U+FE0F × 1"),
            ("😀\u{fe01}\u{fe02}", High, "U+FE02 × 1"),
            ("😀\u{e0101}", High, "U+E0101 × 1"),
            ("a\u{feff}", Medium, "U+FEFF × 1"),
            ("a\u{1b}[31m", Medium, "U+001B × 1"),
            ("a\u{9b}31m", Medium, "U+009B × 1"),
            ("soft\u{ad}hyphen \u{200f}", Low, "U+00AD × 1, U+200F × 1"),
            ("\u{3164}", Medium, "U+3164 × 1"),
        ] {
            assert_eq!(hidden(text), Some((level, told.to_owned())), "{text:?}");
        }
        let many: String = ('\u{e0020}'..'\u{e0040}').collect();
        assert!(hidden(&many).unwrap().1.ends_with(" and 24 more"));
    }
}
