//! The problems found in one config, collected so that all of them are reported together.
//!
//! They are found by the parts that read the keys; here each gets its place in the file, also where a key
//! was written under another name than it is read by.

use std::fmt;
use std::path::Path;

use super::document::ConfigDocument;
use super::problem::{KeyPath, Problem, Severity};

/// Most problems of one config that are collected; what comes after them is most often the same.
pub(super) const MAX_PROBLEMS: usize = 200;

/// The problems found so far in one document.
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

    /// Adds a problem of a flag, an environment variable, or another file, which it names.
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

    /// Whether [`MAX_PROBLEMS`] are collected, so that the search can stop.
    pub(super) fn is_full(&self) -> bool {
        self.problems.len() >= MAX_PROBLEMS
    }

    /// All problems in the order of the file; those of no file come first, those of files that it names last.
    pub(super) fn finish(mut self, file: Option<&Path>) -> Vec<Problem> {
        self.problems.sort_by_key(|problem| (problem.file.is_some(), problem.place));
        for problem in &mut self.problems {
            if problem.place.is_some() && problem.file.is_none() {
                problem.file = file.map(Path::to_owned);
            }
        }
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
