//! The words that somebody meant, by what they typed: keys of a config, names of tools, parameters. Pure.

/// Most characters of a word that are compared: whoever types more means nothing that is known.
const MAX_WORD_CHARS: usize = 256;

/// The one of `known` that is most like `word`, if one is like it at all: a third of its letters may be wrong,
/// or it is a part of the known one.
#[must_use]
pub fn nearest<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let word = folded(word)?;
    let nearest = known.into_iter().map(|known| (distance(&word, known), known)).min();
    let close = nearest.filter(|(distance, _)| *distance <= (word.len() / 3).max(1));
    close.map(|(_, known)| known)
}

/// The at most `count` of `known` that are most like `word`, the nearest first, however far they are: where
/// something has to be chosen, the nearest is where to begin.
#[must_use]
pub fn nearest_few<'k>(
    word: &str,
    known: impl IntoIterator<Item = &'k str>,
    count: usize,
) -> Vec<&'k str> {
    let Some(word) = folded(word) else { return Vec::new() };
    let mut near: Vec<_> = known.into_iter().map(|known| (distance(&word, known), known)).collect();
    near.sort_unstable();
    near.truncate(count);
    near.into_iter().map(|(_, known)| known).collect()
}

/// The word as it is compared; `None` if it is like nothing.
fn folded(word: &str) -> Option<String> {
    let fits = !word.is_empty() && word.chars().nth(MAX_WORD_CHARS).is_none();
    fits.then(|| word.to_lowercase())
}

fn distance(word: &str, known: &str) -> usize {
    if known.len() > 4 * MAX_WORD_CHARS {
        return usize::MAX;
    }
    let known = known.to_lowercase();
    // A part of a name plainly means it.
    if word.len() > 3 && known.contains(word) { 1 } else { strsim::osa_distance(&known, word) }
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
}
