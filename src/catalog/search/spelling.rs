//! Typing errors: which known words are near to one that nobody knows.

/// Letters below which a word is not looked at: too many others are near.
const SHORTEST: usize = 4;
/// Letters from which two errors are looked for instead of one.
const TWO_ERRORS: usize = 8;
/// Letters up to which another letter is another word, and no error.
const SHORT: usize = 4;
/// Letters from which a word is too long to be one.
const LONGEST: usize = 32;

/// What a word is made of, to tell quickly that two are far from each other: a bit for each letter.
pub(super) fn letters(word: &str) -> u32 {
    word.bytes().fold(0, |letters, byte| letters | 1 << (byte % 32))
}

/// How many typing errors a word may have.
pub(super) fn allowed(word: &str) -> Option<usize> {
    let length = word.chars().count();
    (SHORTEST..LONGEST).contains(&length).then_some(if length < TWO_ERRORS { 1 } else { 2 })
}

/// Whether so many errors could make one of two words of the other, by their letters alone.
pub(super) fn could_be(one: u32, other: u32, errors: usize) -> bool {
    (one & !other).count_ones() as usize <= errors && (other & !one).count_ones() as usize <= errors
}

/// The typing errors between two words, if there are at most `most`: letters that are missing, too many, another, or
/// changed places with their neighbour.
pub(super) fn errors(one: &str, other: &str, most: usize) -> Option<usize> {
    let lengths = (one.chars().count(), other.chars().count());
    if lengths.0.abs_diff(lengths.1) > most || lengths.0.max(lengths.1) >= LONGEST {
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
    // Three rows of the table of distances: the one being made, the last, and the one before.
    let mut last: Vec<usize> = (0..=other.len()).collect();
    let mut before: Vec<usize> = Vec::new();
    for (at, letter) in one.iter().enumerate() {
        let mut row = vec![at + 1];
        for (place, theirs) in other.iter().enumerate() {
            let cell = |row: &[usize], at: usize| row.get(at).copied().unwrap_or(usize::MAX / 2);
            let mut least = (cell(&last, place) + usize::from(letter != theirs))
                .min(cell(&last, place + 1) + 1)
                .min(cell(&row, place) + 1);
            let swapped = at > 0
                && place > 0
                && one.get(at - 1) == Some(theirs)
                && other.get(place - 1) == Some(letter);
            if swapped {
                least = least.min(cell(&before, place - 1) + 1);
            }
            row.push(least);
        }
        if row.iter().min().is_some_and(|least| *least > most) {
            return None;
        }
        before = std::mem::replace(&mut last, row);
    }
    last.last().copied().filter(|errors| *errors <= most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn errors_are_counted() {
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
        fn what_letters_rule_out_is_far(one in "[a-e]{0,9}", other in "[a-e]{0,9}", most in 0usize..3) {
            let near = errors(&one, &other, most);
            prop_assert_eq!(near, errors(&other, &one, most), "the same from both sides");
            if near.is_some() {
                prop_assert!(could_be(letters(&one), letters(&other), most));
            }
            prop_assert_eq!(errors(&one, &one, most), (one.len() < LONGEST).then_some(0));
        }

        #[test]
        fn any_words_can_be_compared(one in "\\PC{0,40}", other in "\\PC{0,40}") {
            let _ = (errors(&one, &other, 2), letters(&one), allowed(&one));
        }
    }
}
