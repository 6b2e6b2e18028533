//! What is wrong with a rule, and where it stands.

use std::fmt;
use std::sync::Arc;

/// What a problem follows from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// The text alone: it is wrong whatever tools there are.
    Text,
    /// The tools that are known: another catalog can make it right.
    Catalog,
}

/// One problem of one rule, or of a file of rules as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleProblem {
    /// The file as it was named.
    pub file: Arc<str>,
    /// From 1; 0 for the file as a whole.
    pub line: usize,
    /// From 1, in characters; 0 for the file as a whole.
    pub column: usize,
    /// What is wrong, in one line.
    pub text: String,
    /// What it follows from.
    pub basis: Basis,
}

impl RuleProblem {
    /// One of a file as a whole.
    #[must_use]
    pub fn of_file(file: &Arc<str>, text: impl Into<String>) -> Self {
        Self { file: Arc::clone(file), line: 0, column: 0, text: text.into(), basis: Basis::Text }
    }
}

impl fmt::Display for RuleProblem {
    /// `file:line:column: text`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file, self.text),
            line => write!(f, "{}:{line}:{}: {}", self.file, self.column, self.text),
        }
    }
}

impl std::error::Error for RuleProblem {}

/// A text of several lines in one.
pub(super) fn in_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
