//! What is wrong or odd about a config: the words for people, and where it stands in the file.
//!
//! Owns the collection, so that all problems are reported together. They are found by the parts
//! that read the keys.

use std::fmt;
use std::path::{Path, PathBuf};

use super::document::ConfigDocument;

/// Most problems of one config that are collected; what comes after them is most often the same.
pub(super) const MAX_PROBLEMS: usize = 200;

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
pub(super) enum Step {
    Key(String),
    Element(usize),
}

/// Where a value stands, from the root: `mcpServers.github.args[0]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyPath(pub(super) Vec<Step>);

impl KeyPath {
    /// The path of a key of the root.
    pub(super) fn root(key: &str) -> Self {
        Self::default().key(key)
    }

    /// The path of a key below this one.
    pub(super) fn key(&self, key: &str) -> Self {
        self.join([Step::Key(key.to_owned())])
    }

    /// The path of an element below this one.
    pub(super) fn element(&self, at: usize) -> Self {
        self.join([Step::Element(at)])
    }

    /// This path and more steps.
    pub(super) fn join(&self, steps: impl IntoIterator<Item = Step>) -> Self {
        Self(self.0.iter().cloned().chain(steps).collect())
    }
}

impl fmt::Display for KeyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, step) in self.0.iter().enumerate() {
            match step {
                Step::Key(key) if at == 0 => f.write_str(key)?,
                Step::Key(key) => write!(f, ".{key}")?,
                Step::Element(element) => write!(f, "[{element}]")?,
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

/// What was found so far in one document.
#[derive(Debug)]
pub(super) struct Findings<'t> {
    document: ConfigDocument<'t>,
    /// Paths as they are read, and as they are written in the file.
    renamed: Vec<(KeyPath, KeyPath)>,
    errors: Vec<KeyPath>,
    problems: Vec<Problem>,
}

impl<'t> Findings<'t> {
    pub(super) fn new(document: ConfigDocument<'t>, problems: Vec<Problem>) -> Self {
        Self { document, renamed: Vec::new(), errors: Vec::new(), problems }
    }

    /// From now on problems at `read` are reported at `written`, the key that is in the file.
    pub(super) fn rename(&mut self, read: KeyPath, written: KeyPath) {
        self.renamed.push((read, written));
    }

    /// The value at `path` is wrong.
    pub(super) fn error(&mut self, path: &KeyPath, problem: impl fmt::Display) {
        self.errors.push(path.clone());
        let written = self.written(path);
        let text = format!("{written}: {problem}");
        self.add(Severity::Error, &written, text);
    }

    /// The key at `path` is wrong, whatever its value.
    pub(super) fn wrong_key(&mut self, path: &KeyPath, problem: impl fmt::Display) {
        self.errors.push(path.clone());
        let written = self.written(path);
        let text = format!("{written}: {problem}");
        self.add_at_key(Severity::Error, &written, text);
    }

    /// Adds a warning about the value at `path`.
    pub(super) fn warn(&mut self, path: &KeyPath, problem: impl fmt::Display) {
        let written = self.written(path);
        let text = format!("{written}: {problem}");
        self.add(Severity::Warning, &written, text);
    }

    /// Adds a warning that the key at `path` is unknown.
    pub(super) fn unknown(&mut self, path: &KeyPath, nearest: Option<&str>) {
        let written = self.written(path);
        let meant = nearest.map(|key| format!(" (did you mean '{key}'?)")).unwrap_or_default();
        let text = format!("unknown key '{written}' is ignored{meant}");
        self.add_at_key(Severity::Warning, &written, text);
    }

    /// Something that stands in no file.
    pub(super) fn add_outside(&mut self, problem: Problem) {
        self.push(problem);
    }

    /// Whether anything at or below one of these keys of `path` is wrong.
    pub(super) fn is_wrong(&self, path: &KeyPath, keys: &[&str]) -> bool {
        keys.iter().map(|key| path.key(key)).any(|path| {
            self.errors.iter().any(|error| error.0.get(..path.0.len()) == Some(&path.0[..]))
        })
    }

    /// Whether an error was found.
    pub(super) fn any_error(&self) -> bool {
        self.problems.iter().any(|problem| problem.severity == Severity::Error)
    }

    /// Whether no more is to be looked for.
    pub(super) fn is_full(&self) -> bool {
        self.problems.len() >= MAX_PROBLEMS
    }

    /// Everything, in the order of the file; what stands in none comes first.
    pub(super) fn finish(mut self, file: Option<&Path>) -> Vec<Problem> {
        for problem in &mut self.problems {
            if problem.place.is_some() {
                problem.file = file.map(Path::to_owned);
            }
        }
        self.problems.sort_by_key(|problem| problem.place);
        self.problems
    }

    fn add(&mut self, severity: Severity, written: &KeyPath, text: String) {
        let place = Some(self.document.place(written));
        self.push(Problem { severity, file: None, place, key: written.to_string(), text });
    }

    fn add_at_key(&mut self, severity: Severity, written: &KeyPath, text: String) {
        let place = Some(self.document.key_place(written));
        self.push(Problem { severity, file: None, place, key: written.to_string(), text });
    }

    fn push(&mut self, problem: Problem) {
        if !self.is_full() {
            self.problems.push(problem);
        }
    }

    /// The path as it is written in the file.
    fn written(&self, path: &KeyPath) -> KeyPath {
        let mut path = path.clone();
        // A renamed key may stand below another.
        for (read, written) in self.renamed.iter().rev() {
            if let Some(rest) = path.0.strip_prefix(&read.0[..]) {
                path = written.join(rest.iter().cloned());
            }
        }
        path
    }
}
