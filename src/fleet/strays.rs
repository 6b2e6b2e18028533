//! What lies in a folder of the store under names that are no node's: counted, and a few of them named. Pure. Whoever can write
//! into the store can put as many as he likes there: what is kept and shown of them is bounded.

use std::fmt;

/// Most that are named.
const MAX_NAMED: usize = 10;
/// Most characters of a name that are shown.
const MAX_SHOWN: usize = 80;

/// Names that are no node's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StrayObjects {
    count: usize,
    named: Vec<String>,
}

impl StrayObjects {
    /// One more.
    pub fn add(&mut self, name: &str) {
        self.count += 1;
        if self.named.len() < MAX_NAMED {
            self.named.push(visible(name, MAX_SHOWN));
        }
    }

    /// There are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl fmt::Display for StrayObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.count {
            1 => f.write_str("one thing there is no node's: ")?,
            count => write!(f, "{count} things there are no node's: ")?,
        }
        f.write_str(&self.named.join(", "))?;
        match self.count.saturating_sub(self.named.len()) {
            0 => Ok(()),
            rest => write!(f, " and {rest} more"),
        }
    }
}

/// The first `most` characters of what somebody has called something, so that each is seen.
pub(super) fn visible(name: &str, most: usize) -> String {
    let mut shown: String = name.chars().take(most).flat_map(char::escape_debug).collect();
    if name.chars().nth(most).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_many_there_are_a_few_are_named_and_all_are_counted() {
        let mut strays = StrayObjects::default();
        assert!(strays.is_empty());
        strays.add("a\n\u{1b}b");
        assert_eq!(strays.to_string(), "one thing there is no node's: a\\n\\u{1b}b");
        for at in 0..200_000 {
            strays.add(&format!("{at:06}{}", "é".repeat(900)));
        }
        let told = strays.to_string();
        assert!(told.starts_with("200001 things there are no node's: a\\n"), "{told}");
        assert!(told.ends_with("… and 199991 more") && told.len() < 2000, "{told}");
    }
}
