//! The word that somebody meant, by what they typed. Pure.

/// The one of `known` that is most like `word`, if one is like it at all: a third of its letters may be wrong,
/// or it is a part of the known one.
#[must_use]
pub fn nearest<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let word = word.to_lowercase();
    let distance = |known: &str| {
        let known = known.to_lowercase();
        // A part of a name plainly means it.
        if word.len() > 3 && known.contains(&word) {
            1
        } else {
            strsim::osa_distance(&known, &word)
        }
    };
    let nearest = known.into_iter().map(|known| (distance(known), known)).min();
    let close = nearest.filter(|(distance, _)| *distance <= (word.len() / 3).max(1));
    close.map(|(_, known)| known).filter(|_| !word.is_empty())
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
}
