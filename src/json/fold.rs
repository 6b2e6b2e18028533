//! Names that differ only by case: what a reader that ignores case takes for the same.
//!
//! Such readers exist among MCP servers (Go's `encoding/json`). They do not agree on what case is,
//! so this takes the widest reading: Unicode's full case folding, through upper and lower case, and
//! both of Turkish's letters i. Two names that any of them takes for one are one here.

/// Whether the two are one name to a reader that ignores case. Equal ones are.
#[must_use]
pub fn same(a: &str, b: &str) -> bool {
    if a.eq_ignore_ascii_case(b) {
        return true;
    }
    !(a.is_ascii() && b.is_ascii()) && folded(a).eq(folded(b))
}

/// Whether `name` is another name than `known` but to a reader that ignores case.
#[must_use]
pub fn is_variant(name: &str, known: &str) -> bool {
    name != known && same(name, known)
}

/// The characters that stand for the name whatever its case.
pub fn folded(name: &str) -> impl Iterator<Item = char> {
    name.chars().map(undotted).flat_map(char::to_lowercase).flat_map(upper_and_back)
}

/// What differs in one case only becomes the same: `ſ` and `s` have one upper case, `K` and `k` one
/// lower case, and the upper case of `ß` and `ﬁ` is two letters.
fn upper_and_back(c: char) -> impl Iterator<Item = char> {
    c.to_uppercase().flat_map(char::to_lowercase)
}

/// The lower case of `İ` is an i to some readers, and an i with a dot of its own to others.
fn undotted(c: char) -> char {
    if c == '\u{130}' { 'i' } else { c }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_any_reader_may_take_for_one_are_one() {
        for (name, known) in [
            ("name", "name"),
            ("Name", "name"),
            ("NAME", "name"),
            ("argument\u{17f}", "arguments"),
            ("ta\u{17f}\u{212a}", "task"),
            ("progre\u{df}Token", "progressToken"),
            ("PROGRE\u{1e9e}TOKEN", "progressToken"),
            ("re\u{17f}ult", "result"),
            ("\u{fb06}ructuredContent", "structuredContent"),
            ("\u{fb05}ructuredContent", "structuredContent"),
            ("con\u{fb01}g", "config"),
            ("ur\u{130}", "uri"),
            ("ur\u{131}", "uri"),
            ("\u{130}sError", "isError"),
            ("\u{3a3}\u{3c2}", "\u{3c3}\u{3c3}"),
        ] {
            assert!(same(name, known) && same(known, name), "{name} {known}");
            assert_eq!(is_variant(name, known), name != known, "{name} {known}");
        }
        for (name, other) in [
            ("name", "names"),
            ("n\u{e4}me", "name"),
            ("name\u{200b}", "name"),
            ("", "name"),
            ("na_me", "name"),
            ("\u{430}", "a"),
        ] {
            assert!(!same(name, other) && !is_variant(name, other), "{name} {other}");
        }
    }

    #[test]
    fn every_character_folds_as_its_own_cases_do() {
        for c in ('\0'..=char::MAX).filter(|c| *c != '\u{130}') {
            let name = c.to_string();
            assert!(same(&name, &name.to_lowercase()), "{c:?}");
            assert!(same(&name, &name.to_uppercase()), "{c:?}");
        }
    }
}
