//! How many of something, in words: `1 tool`, `2 tools`. Of things whose plural has an s.

use std::fmt::Display;

/// A number and what it counts.
pub(super) fn counted(number: impl Display, thing: &str) -> String {
    let number = number.to_string();
    let plural = if number == "1" { "" } else { "s" };
    format!("{number} {thing}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_one() {
        let shown = ["0", "1", "2", "11"].map(|number| counted(number, "tool"));
        assert_eq!(shown, ["0 tools", "1 tool", "2 tools", "11 tools"]);
        assert_eq!(counted(1_usize, "record"), "1 record");
    }
}
