//! Why a command failed: the exit code, and one line that says what to do next.

use std::fmt;

use http::StatusCode;

use super::exit_code::Exit;
use super::terminal_safe::{joined, line};
use crate::config::problem::{Problem, Severity};

/// Why a command failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CommandError {
    /// The process's exit code.
    pub(super) exit: Exit,
    /// One line.
    pub(super) message: String,
    /// The request that failed, to be found in log and activity.
    pub(super) request_id: Option<String>,
    /// What the proxy answered, where it is one that fails.
    pub(super) status: Option<StatusCode>,
    /// What is wrong with the config, where that is why: each has its own line then.
    pub(super) problems: Vec<Problem>,
}

impl CommandError {
    pub(super) fn new(exit: Exit, message: impl fmt::Display) -> Self {
        let lines = message.to_string();
        let words: Vec<&str> = lines.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
        Self {
            exit,
            message: words.join(" "),
            request_id: None,
            status: None,
            problems: Vec::new(),
        }
    }

    /// The operation failed.
    pub(super) fn failed(message: impl fmt::Display) -> Self {
        Self::new(Exit::Failed, message)
    }

    /// A second signal has cut off what the first let finish; `code` is what a shell makes of it.
    pub(super) fn hurried(code: u8) -> Self {
        let interrupted = code == Exit::Interrupted as u8;
        let exit = if interrupted { Exit::Interrupted } else { Exit::Terminated };
        Self::new(exit, "told twice to end: calls in flight were cut off")
    }

    /// The command was typed wrongly.
    pub(super) fn usage(message: impl fmt::Display) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// The line for stderr, or a line for each problem: JSON where results are JSON.
    pub(super) fn line(&self, json: bool) -> String {
        if !json && !self.problems.is_empty() {
            let lines = self.problems.iter().map(|problem| {
                let kind = severity(problem);
                format!("{kind}: {}", joined(&problem.to_string()))
            });
            return lines.collect::<Vec<_>>().join("\n");
        }
        if !json {
            return format!("error: {}", line(&self.message));
        }
        let mut error = serde_json::json!({
            "success": false, "error": self.message, "exit_code": self.exit as u8,
        });
        if let (Some(map), Some(id)) = (error.as_object_mut(), &self.request_id) {
            map.insert("request_id".to_owned(), id.as_str().into());
        }
        if let (Some(map), false) = (error.as_object_mut(), self.problems.is_empty()) {
            let problems = self.problems.iter().map(problem_json).collect();
            map.insert("problems".to_owned(), problems);
        }
        error.to_string()
    }
}

/// A problem of the config, for programs.
pub(super) fn problem_json(problem: &Problem) -> serde_json::Value {
    let mut shown = serde_json::Map::new();
    shown.insert("severity".to_owned(), severity(problem).into());
    shown.insert("key".to_owned(), problem.key.as_str().into());
    shown.insert("problem".to_owned(), problem.text.as_str().into());
    if let Some(file) = &problem.file {
        shown.insert("file".to_owned(), file.display().to_string().into());
    }
    if let Some(place) = problem.place {
        shown.insert("line".to_owned(), place.line.into());
        shown.insert("column".to_owned(), place.column.into());
    }
    shown.into()
}

fn severity(problem: &Problem) -> &'static str {
    match problem.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_one_line() {
        let failure = CommandError::new(Exit::Config, "bad\n  key 'x'\n\nat line 3\u{1b}[2J");
        assert_eq!(failure.line(false), "error: bad key 'x' at line 3\\u{1b}[2J");
        let json: serde_json::Value = serde_json::from_str(&failure.line(true)).unwrap();
        assert_eq!(json["exit_code"], 5);
        assert_eq!(json["success"], false);
        assert!(json.get("request_id").is_none());
    }
}
