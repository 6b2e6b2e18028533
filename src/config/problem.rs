//! Problems of a config: severity, key path, position in the file, and message.

use std::fmt;
use std::path::{Path, PathBuf};

/// Position in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Line number, starting at 1.
    pub line: usize,
    /// Column number in characters, starting at 1.
    pub column: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} column {}", self.line, self.column)
    }
}

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PathStep {
    Key(String),
    Element(usize),
}

/// Path of a value from the root: `mcpServers.github.args[0]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyPath(pub(super) Vec<PathStep>);

impl KeyPath {
    /// Path of a root key.
    pub fn root(key: &str) -> Self {
        Self::default().key(key)
    }

    /// Path of a key below this one.
    pub fn key(&self, key: &str) -> Self {
        self.join([PathStep::Key(key.to_owned())])
    }

    /// Path of an array element below this one.
    pub(super) fn element(&self, at: usize) -> Self {
        self.join([PathStep::Element(at)])
    }

    /// Appends steps.
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

/// Severity of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The config, or a server in it, is unusable.
    Error,
    /// The config is valid, but perhaps unintended.
    Warning,
}

/// Checks that a value is within its bounds, for `deserialize_with` functions.
pub(super) fn within<T: PartialOrd + fmt::Display, E: serde::de::Error>(
    value: T,
    bounds: &std::ops::RangeInclusive<T>,
) -> Result<T, E> {
    if bounds.contains(&value) {
        return Ok(value);
    }
    Err(E::custom(format_args!("must be {} to {}, is {value}", bounds.start(), bounds.end())))
}

/// A problem of a config; the text is for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub severity: Severity,
    /// The file; `None` for flags and environment variables.
    pub file: Option<PathBuf>,
    /// Position in the file.
    pub place: Option<Place>,
    /// Key path, environment variable or flag; empty for the file as a whole.
    pub key: String,
    /// Message, including the key.
    pub text: String,
}

impl Problem {
    /// Problem of a file as a whole.
    pub(super) fn of_file(severity: Severity, file: &Path, text: String) -> Self {
        Self { severity, file: Some(file.to_owned()), place: None, key: String::new(), text }
    }

    /// Error of a key, flag or environment variable outside a file.
    pub(super) fn outside(key: &str, problem: impl fmt::Display) -> Self {
        let text = format!("{key}: {problem}");
        Self { severity: Severity::Error, file: None, place: None, key: key.to_owned(), text }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.file, self.place) {
            (Some(file), Some(Place { line, column })) => {
                write!(f, "{}:{line}:{column}: ", file.display())?;
            }
            (Some(file), None) => write!(f, "{}: ", file.display())?,
            (None, Some(place)) => write!(f, "{place}: ")?,
            (None, None) => {}
        }
        f.write_str(&self.text)
    }
}

impl std::error::Error for Problem {}
