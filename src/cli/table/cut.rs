//! Truncation of names and texts to a width in terminal columns.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Minimum width of a server name in `server:tool` while there is another column to drop.
pub(super) const MIN_SERVER: usize = 8;
/// Minimum width of the tool in a truncated `server:tool` with the server name beside it.
const MIN_TOOL: usize = 8;

/// Truncates to `max` terminal columns, with an ellipsis. The cut is between two words, unless that leaves more than
/// half of the width empty.
pub(crate) fn cut(text: &str, max: usize) -> String {
    cut_to(text, max, max.div_ceil(2))
}

/// Like [`cut`], but the cut is between two words only if at least `min` columns remain.
pub(super) fn cut_to(text: &str, max: usize, min: usize) -> String {
    if text.width() <= max {
        return text.to_owned();
    }
    let (mut kept, mut width) = (String::new(), 0);
    let mut next = None;
    for letter in text.chars() {
        width += letter.width().unwrap_or_default();
        if width >= max {
            next = Some(letter);
            break;
        }
        kept.push(letter);
    }
    if next.is_some_and(|next| !next.is_whitespace())
        && let Some((words, _)) = kept.rsplit_once(char::is_whitespace)
        && words.width() >= min
    {
        kept.truncate(words.len());
    }
    kept.truncate(kept.trim_end().len());
    if max > 0 {
        kept.push('…');
    }
    kept
}

/// Splits `server:tool` at its only colon; `None` for other texts.
pub(super) fn server_and_tool(text: &str) -> Option<(&str, &str)> {
    text.split_once(':').filter(|(_, tool)| !tool.contains(':'))
}

/// Truncates to `max` terminal columns, with an ellipsis in the middle. A name after the only colon, as in
/// `server:tool`, is kept whole if it fits.
pub(crate) fn cut_middle(text: &str, max: usize) -> String {
    if text.width() <= max {
        return text.to_owned();
    }
    let Some(kept) = max.checked_sub(1) else { return String::new() };
    let end = kept - kept_start(text, kept);
    let start = fitting(text.chars(), kept - end);
    let end: String = fitting(text.chars().rev(), end).chars().rev().collect();
    format!("{start}…{end}")
}

/// Width of the start of a text of which `kept` columns remain.
fn kept_start(text: &str, kept: usize) -> usize {
    let name = server_and_tool(text).map_or(0, |(_, tool)| 1 + tool.width());
    let end = if name < kept { name.max(kept.div_ceil(2)) } else { kept.div_ceil(2) };
    kept - end
}

/// Like [`cut_middle`], but if that left less than [`MIN_SERVER`] columns of the server in `server:tool`, the server
/// keeps them and the tool is truncated, too, unless less than [`MIN_TOOL`] columns would remain for it.
pub(super) fn cut_tool(text: &str, max: usize) -> String {
    let start = kept_start(text, max.saturating_sub(1));
    let is_short = |server: &str| server.width().min(MIN_SERVER) > start;
    let parts = server_and_tool(text).filter(|(server, _)| text.width() > max && is_short(server));
    let Some((server, tool)) = parts else { return cut_middle(text, max) };
    // One of the names stays whole if there is room.
    let server = match server.width() * 2 <= max {
        true => server.to_owned(),
        false => cut(server, MIN_SERVER + 1),
    };
    match max.checked_sub(server.width() + 1) {
        Some(left) if left >= MIN_TOOL => format!("{server}:{}", cut_middle(tool, left)),
        Some(_) | None => cut_middle(text, max),
    }
}

/// Returns the first letters, as many as fit into `max` terminal columns.
fn fitting(letters: impl Iterator<Item = char>, max: usize) -> String {
    let mut width = 0;
    let fits = |letter: &char| {
        width += letter.width().unwrap_or_default();
        width <= max
    };
    letters.take_while(fits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncation_in_the_middle_keeps_the_name_after_a_prefix() {
        for (text, max, shown) in [
            ("files:list_directory", 20, "files:list_directory"),
            ("files:list_directory", 19, "fil…:list_directory"),
            ("files:list_directory", 17, "f…:list_directory"),
            ("files:list_directory", 16, "files:l…irectory"),
            ("0123456789", 6, "01…789"),
            ("jwt:https://login.example/ann", 20, "jwt:https…xample/ann"),
            ("日本語日本語", 8, "日…本語"),
            ("ab", 1, "…"),
            ("ab", 0, ""),
        ] {
            let cut = cut_middle(text, max);
            assert!(cut.width() <= max, "{text} in {max}: {cut}");
            assert_eq!(cut, shown, "{text} in {max}");
        }
        for (text, max, shown) in [
            ("files:list_directory", 19, "files:list_d…ectory"),
            ("files:list_directory", 17, "files:list_…ctory"),
            ("files:list_directory", 12, "files…ectory"),
            ("knowledge-base:delete_entities", 25, "knowledg…:delete_entities"),
            ("knowledge-base:delete_entities", 20, "knowledg…:dele…ities"),
            ("knowledge-base:delete_entities", 17, "knowledg…entities"),
            ("files:read", 10, "files:read"),
            ("a:b", 0, ""),
        ] {
            let cut = cut_tool(text, max);
            assert!(cut.width() <= max, "{text} in {max}: {cut}");
            assert_eq!(cut, shown, "{text} in {max}");
        }
    }

    #[test]
    fn truncation_respects_character_boundaries() {
        assert_eq!(cut("ééé", 2), "é…");
        assert_eq!(cut("éé", 2), "éé");
        assert_eq!(cut("日本語", 4), "日…");
        assert_eq!(cut("ab", 0), "");
    }

    #[test]
    fn truncation_prefers_word_boundaries() {
        for (max, shown) in [
            (19, "its answers cannot…"),
            (18, "its answers…"),
            (17, "its answers…"),
            (10, "its answe…"),
            (4, "its…"),
            (3, "it…"),
        ] {
            assert_eq!(cut("its answers cannot be", max), shown, "{max}");
        }
        let path = "command /a/long/path/that/is/one/word/to/us was not found";
        assert_eq!(cut(path, 30), "command /a/long/path/that/is/…");
    }
}
