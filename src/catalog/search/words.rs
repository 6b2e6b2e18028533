//! From texts to words, as they are compared: small, without accents, identifiers split. What a word means is not
//! known here.

use unicode_normalization::char::{decompose_canonical, decompose_compatible};

/// Bytes of a word that are looked at.
const MAX_WORD_BYTES: usize = 64;

/// How the words of a script are parted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Script {
    /// By blanks.
    Spaced,
    /// Not at all: Chinese, Japanese, Thai and their neighbours. A "word" is a run of characters.
    Unspaced,
}

/// The words of a text, as they are compared: small, without accents, identifiers split.
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

/// A character in small letters, without accent where it is Latin.
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

/// `snake_case`, `kebab-case`, `camelCase` and `HTTPCase` as separate words.
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

/// An identifier or a query as lower-case words.
pub(super) fn plain(text: &str) -> String {
    split_identifiers(text.trim()).to_lowercase()
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
    fn words_are_small_and_have_no_accents() {
        let only = |text: &str| words(text).into_iter().map(|(word, _)| word).collect::<Vec<_>>();
        assert_eq!(only("Größe ändern"), ["grosse", "andern"]);
        assert_eq!(only("l'écran e\u{301}té ÉTÉ"), ["l", "ecran", "ete", "ete"]);
        assert_eq!(only("ＡＢＣ 读取README文件"), ["abc", "读取", "readme", "文件"]);
        assert_eq!(only("\u{0}\u{1f5d1} \u{202e}"), Vec::<String>::new());
        let long = only(&"x".repeat(1000));
        assert!(long.iter().all(|word| word.len() <= MAX_WORD_BYTES), "{long:?}");
    }
}
