//! The words that somebody meant, by what they typed: keys of a config, names of tools, parameters. Pure.

/// Most characters of a word that is looked for: whoever types more means nothing that is known.
const MAX_WORD_CHARS: usize = 256;

/// Characters of two words that are compared: what is alike so far is meant.
const MAX_COMPARED_CHARS: usize = 64;

/// Bytes of a known word, above which it is like nothing.
const MAX_KNOWN_BYTES: usize = 4 * MAX_WORD_CHARS;

/// Cells of tables, a character of one word beside one of the other, that are filled in for one answer: a few
/// milliseconds, however many words are known and however long they are.
pub const MAX_CELLS: usize = 1 << 20;

/// What may still be compared for one answer, in cells.
#[derive(Debug)]
pub struct Effort(usize);

impl Default for Effort {
    fn default() -> Self {
        Self(MAX_CELLS)
    }
}

impl Effort {
    /// What is left of [`MAX_CELLS`].
    #[must_use]
    pub fn left(&self) -> usize {
        self.0
    }

    /// Whether so much is left; then it is spent.
    fn spend(&mut self, cells: usize) -> bool {
        let left = self.0.checked_sub(cells);
        self.0 = left.unwrap_or_default();
        left.is_some()
    }
}

/// The one of `known` that is most like `word`, if one is like it at all: a third of its letters may be wrong,
/// or it is a part of the known one.
#[must_use]
pub fn nearest<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    nearest_within(&mut Effort::default(), word, known)
}

/// The same, of those that there is still effort to compare with.
pub fn nearest_within<'k>(
    effort: &mut Effort,
    word: &str,
    known: impl IntoIterator<Item = &'k str>,
) -> Option<&'k str> {
    let word = Wanted::of(word)?;
    let most = (word.chars / 3).max(1);
    let distances = known.into_iter().filter_map(|known| {
        let distance = word.distance(known, Some(most), effort)?;
        (distance <= most).then_some((distance, known))
    });
    distances.min().map(|(_, known)| known)
}

/// The at most `count` of `known` that are most like `word`, the nearest first, however far they are: where
/// something has to be chosen, the nearest is where to begin. Of very many the first are compared.
#[must_use]
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

/// A word that somebody meant another by.
struct Wanted {
    /// Its beginning in small letters.
    text: String,
    /// Of the whole word.
    chars: usize,
}

impl Wanted {
    /// The word as it is compared; `None` if it is like nothing.
    fn of(word: &str) -> Option<Self> {
        let chars = word.chars().take(MAX_WORD_CHARS + 1).count();
        let fits = (1..=MAX_WORD_CHARS).contains(&chars);
        fits.then(|| Self { text: beginning(word), chars })
    }

    /// How far `known` is from it; `None` where it is not compared: it is longer or shorter by more than `most`, there is
    /// no effort left, or it is like nothing.
    fn distance(&self, known: &str, most: Option<usize>, effort: &mut Effort) -> Option<usize> {
        if known.len() > MAX_KNOWN_BYTES {
            return None;
        }
        let begins = beginning(known);
        // A part of a name plainly means it.
        if self.text.len() > 3 && self.chars <= MAX_COMPARED_CHARS && begins.contains(&self.text) {
            return Some(1);
        }
        let chars = known.chars().count();
        if most.is_some_and(|most| chars.abs_diff(self.chars) > most) {
            return None;
        }
        let cells = self.chars.min(MAX_COMPARED_CHARS) * chars.min(MAX_COMPARED_CHARS);
        effort.spend(cells).then(|| strsim::osa_distance(&begins, &self.text))
    }
}

/// What of a word is compared.
fn beginning(word: &str) -> String {
    word.chars().take(MAX_COMPARED_CHARS).flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_is_near() {
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
    fn the_nearest_few_are_in_order_and_bounded() {
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
    fn what_is_compared_is_bounded_however_many_and_long_the_words_are() {
        let known: Vec<String> =
            (0..1000).map(|at| format!("{at:04}{}", "ab".repeat(500))).collect();
        let word = format!("00{}", "cd".repeat(100));
        let mut effort = Effort::default();
        let names = || known.iter().map(String::as_str);
        assert_eq!(nearest_within(&mut effort, &word, names()), None);
        assert_eq!(effort.left(), MAX_CELLS, "their lengths alone say that none is meant");
        // Of one length: as far as the effort goes, and no further.
        let alike: Vec<String> =
            (0..1000).map(|at| format!("{at:04}{}", "ab".repeat(98))).collect();
        let table = MAX_COMPARED_CHARS * MAX_COMPARED_CHARS;
        for asked in 1..=8 {
            let names = alike.iter().map(String::as_str);
            let _ = nearest_within(&mut effort, &word, names);
            assert!(effort.left() <= MAX_CELLS.saturating_sub(asked * table), "{asked}");
        }
        assert_eq!(effort.left(), 0);
        // What was put first is compared, though it is found last.
        let near = nearest_few(&word, alike.iter().map(String::as_str), 3);
        assert_eq!(near.len(), 3);
        let common = "x".repeat(60);
        let (meant, other) = (format!("{common}_wanted"), format!("other_{common}"));
        let typed = format!("{common}_wantde");
        assert_eq!(nearest(&typed, [&*other, &*meant]), Some(&*meant));
    }
}
