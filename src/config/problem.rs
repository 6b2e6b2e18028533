//! What is wrong or odd about a config: the words for people, and where it stands in the file.

use std::fmt;
use std::path::{Path, PathBuf};

/// A position in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} column {}", self.line, self.column)
    }
}

/// One step from a value to one in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PathStep {
    Key(String),
    Element(usize),
}

/// Where a value stands, from the root: `mcpServers.github.args[0]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyPath(pub(super) Vec<PathStep>);

impl KeyPath {
    /// The path of a key of the root.
    #[must_use]
    pub fn root(key: &str) -> Self {
        Self::default().key(key)
    }

    /// The path of a key below this one.
    #[must_use]
    pub fn key(&self, key: &str) -> Self {
        self.join([PathStep::Key(key.to_owned())])
    }

    /// The path of an element below this one.
    pub(super) fn element(&self, at: usize) -> Self {
        self.join([PathStep::Element(at)])
    }

    /// This path and more steps.
    pub(super) fn join(&self, steps: impl IntoIterator<Item = PathStep>) -> Self {
        Self(self.0.iter().cloned().chain(steps).collect())
    }
}

impl fmt::Display for KeyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, step) in self.0.iter().enumerate() {
            match step {
                PathStep::Key(key) if at == 0 => f.write_str(key)?,
                PathStep::Key(key) => write!(f, ".{key}")?,
                PathStep::Element(element) => write!(f, "[{element}]")?,
            }
        }
        Ok(())
    }
}

/// How bad a problem is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The config cannot be used, or a server in it cannot.
    Error,
    /// Valid, but perhaps not what the operator intended.
    Warning,
}

/// Something that is wrong or odd. Its text is for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// How bad it is.
    pub severity: Severity,
    /// The file; `None` for flags and environment variables.
    pub file: Option<PathBuf>,
    /// Where in the file.
    pub place: Option<Place>,
    /// The key's path, the environment variable or the flag; empty for the file as a whole.
    pub key: String,
    /// What it is, with the key's name.
    pub text: String,
}

impl Problem {
    /// One about a file as a whole.
    pub(super) fn of_file(severity: Severity, file: &Path, text: String) -> Self {
        Self { severity, file: Some(file.to_owned()), place: None, key: String::new(), text }
    }

    /// An error about a key, a flag or an environment variable, outside of a file.
    pub(super) fn outside(key: &str, problem: impl fmt::Display) -> Self {
        let text = format!("{key}: {problem}");
        Self { severity: Severity::Error, file: None, place: None, key: key.to_owned(), text }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{}: ", file.display())?;
        }
        if let Some(place) = self.place {
            write!(f, "{place}: ")?;
        }
        f.write_str(&self.text)
    }
}

impl std::error::Error for Problem {}
