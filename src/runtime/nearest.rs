//! Fuzzy matching: the known word that is most similar to a mistyped one (config keys, tool names, parameters). Pure.

/// Maximum length of a word to look up, in characters. A longer word has no similar words.
const MAX_WORD_CHARS: usize = 256;

/// Number of characters of each word that are compared.
const MAX_COMPARED_CHARS: usize = 64;

/// Maximum length of a known word, in bytes. A longer word is never similar.
const MAX_KNOWN_BYTES: usize = 4 * MAX_WORD_CHARS;

/// Maximum number of table cells (one character of one word against one of the other) computed for one lookup: a few
/// milliseconds, regardless of the number and length of the known words.
pub(crate) const MAX_CELLS: usize = 1 << 20;

/// Remaining budget of one lookup, in cells.
#[derive(Debug)]
pub struct Effort(usize);

impl Default for Effort {
    fn default() -> Self {
        Self(MAX_CELLS)
    }
}

impl Effort {
    /// The unspent part of [`MAX_CELLS`].
    #[cfg(test)]
    pub(crate) fn left(&self) -> usize {
        self.0
    }

    /// Spends `cells` of the budget. Returns false if fewer are left, and then the rest is used up.
    fn spend(&mut self, cells: usize) -> bool {
        let left = self.0.checked_sub(cells);
        self.0 = left.unwrap_or_default();
        left.is_some()
    }
}

/// The most similar of the `known` words, if any is similar enough: up to a third of the letters may be wrong, or
/// `word` is a part of the known word.
pub fn nearest<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    nearest_within(&mut Effort::default(), word, known)
}

/// Same as [`nearest`], within a budget shared by several lookups.
pub fn nearest_within<'k>(
    effort: &mut Effort,
    word: &str,
    known: impl IntoIterator<Item = &'k str>,
) -> Option<&'k str> {
    let word = Wanted::of(word)?;
    let max = (word.chars / 3).max(1);
    let distances = known.into_iter().filter_map(|known| {
        let distance = word.distance(known, Some(max), effort)?;
        (distance <= max).then_some((distance, known))
    });
    distances.min_by_key(|found| word.rank(*found)).map(|(_, known)| known)
}

/// At most `count` of the `known` words, most similar first, without a limit on the distance: candidates for a choice
/// that has to be made. If there are very many words, only the first are compared.
pub fn nearest_few<'k>(
    word: &str,
    known: impl IntoIterator<Item = &'k str>,
    count: usize,
) -> Vec<&'k str> {
    let Some(word) = Wanted::of(word) else { return Vec::new() };
    let mut effort = Effort::default();
    let distances = known.into_iter().filter_map(|known| {
        let distance = word.distance(known, None, &mut effort)?;
        Some((distance, known))
    });
    let mut near: Vec<_> = distances.collect();
    near.sort_unstable();
    near.truncate(count);
    near.into_iter().map(|(_, known)| known).collect()
}

/// A word to look up.
struct Wanted {
    /// The compared part in lowercase.
    text: String,
    /// Length of the whole word.
    chars: usize,
}

impl Wanted {
    /// Prepares a word; `None` if it is too long to be similar to anything.
    fn of(word: &str) -> Option<Self> {
        let chars = word.chars().take(MAX_WORD_CHARS + 1).count();
        let fits = (1..=MAX_WORD_CHARS).contains(&chars);
        fits.then(|| Self { text: beginning(word), chars })
    }

    /// Rank of a word by similarity. Of equally distant words, those that begin like this word come first, then those of
    /// similar length.
    fn rank<'k>(&self, (distance, known): (usize, &'k str)) -> (usize, bool, usize, &'k str) {
        let begins = beginning(known).starts_with(&self.text);
        (distance, !begins, known.chars().count().abs_diff(self.chars), known)
    }

    /// Edit distance to `known`; `None` if they were not compared: the lengths differ by more than `max`, the budget is
    /// spent, or the word is too long.
    fn distance(&self, known: &str, max: Option<usize>, effort: &mut Effort) -> Option<usize> {
        if known.len() > MAX_KNOWN_BYTES {
            return None;
        }
        let begins = beginning(known);
        // A word that is a part of a name is taken to mean that name.
        if self.text.len() > 3 && self.chars <= MAX_COMPARED_CHARS && begins.contains(&self.text) {
            return Some(1);
        }
        let chars = known.chars().count();
        if max.is_some_and(|max| chars.abs_diff(self.chars) > max) {
            return None;
        }
        let cells = self.chars.min(MAX_COMPARED_CHARS) * chars.min(MAX_COMPARED_CHARS);
        effort.spend(cells).then(|| strsim::osa_distance(&begins, &self.text))
    }
}

/// The compared part of a word.
fn beginning(word: &str) -> String {
    word.chars().take(MAX_COMPARED_CHARS).flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_word_is_found_and_a_dissimilar_word_is_not() {
        let known = ["listen", "logging", "data_dir"];
        for (word, meant) in [
            ("lisen", Some("listen")),
            ("LOGGING", Some("logging")),
            ("data", Some("data_dir")),
            ("xyz", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, known), meant, "{word}");
        }
    }

    #[test]
    fn part_of_several_words_means_the_one_that_begins_with_it_or_is_shortest() {
        for (word, known, expected) in [
            ("tool_cal", &["internal_tool_call", "tool_call"][..], "tool_call"),
            ("retention", &["min_retention", "retention_days"], "retention_days"),
            ("repo", &["delete_repository", "get_repo"], "get_repo"),
        ] {
            assert_eq!(nearest(word, known.iter().copied()), Some(expected), "{word}");
        }
    }

    #[test]
    fn nearest_words_are_sorted_by_distance_and_bounded_in_number() {
        let known = ["get_repo", "delete_repo", "get_issue", "list_issues"];
        assert_eq!(nearest_few("get_repos", known, 2), ["get_repo", "delete_repo"]);
        assert_eq!(nearest_few("issue", known, 9).len(), 4);
        assert_eq!(nearest_few("", known, 3), [""; 0]);
        let (long, far) = ("x".repeat(MAX_WORD_CHARS + 1), "y".repeat(2000));
        assert_eq!(nearest_few(&long, known, 3), [""; 0]);
        assert_eq!(nearest(&long, known), None);
        assert_eq!(nearest_few("a", ["ab", &far], 1), ["ab"]);
    }

    #[test]
    fn comparison_of_many_long_words_is_bounded() {
        let known: Vec<String> =
            (0..1000).map(|at| format!("{at:04}{}", "ab".repeat(500))).collect();
        let word = format!("00{}", "cd".repeat(100));
        let mut effort = Effort::default();
        let names = || known.iter().map(String::as_str);
        assert_eq!(nearest_within(&mut effort, &word, names()), None);
        assert_eq!(effort.left(), MAX_CELLS, "the lengths alone rule all of them out");
        // Words of equal length are compared until the budget is spent.
        let alike: Vec<String> =
            (0..1000).map(|at| format!("{at:04}{}", "ab".repeat(98))).collect();
        let table = MAX_COMPARED_CHARS * MAX_COMPARED_CHARS;
        for asked in 1..=8 {
            let names = alike.iter().map(String::as_str);
            let _ = nearest_within(&mut effort, &word, names);
            assert!(effort.left() <= MAX_CELLS.saturating_sub(asked * table), "{asked}");
        }
        assert_eq!(effort.left(), 0);
        // The first word is compared although the closest one is at the end.
        let near = nearest_few(&word, alike.iter().map(String::as_str), 3);
        assert_eq!(near.len(), 3);
        let common = "x".repeat(60);
        let (meant, other) = (format!("{common}_wanted"), format!("other_{common}"));
        let typed = format!("{common}_wantde");
        assert_eq!(nearest(&typed, [&*other, &*meant]), Some(&*meant));
    }
}
