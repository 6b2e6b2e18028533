//! Error of a command: exit code and a one-line message with the next step.

use crate::hints;
use crate::terminal_safe::{self, joined, line};
use http::StatusCode;
use mcpproxy_config::problem::{Problem, Severity};
use std::fmt;
use std::io::{IsTerminal as _, Write as _};

/// Failure of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CommandError {
    /// The process's exit code.
    pub(super) exit: Exit,
    /// One line without a trailing period.
    pub(super) message: String,
    /// Id of the failed request, as in the log and in the activity.
    pub(super) request_id: Option<String>,
    /// HTTP status of the proxy's error response.
    pub(super) status: Option<StatusCode>,
    /// Config problems that caused the failure, printed one per line.
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

    /// Error for a second termination signal; `code` is the shell's exit code for this signal.
    pub(super) fn aborted(code: u8) -> Self {
        let interrupted = code == Exit::Interrupted as u8;
        let exit = if interrupted { Exit::Interrupted } else { Exit::Terminated };
        Self::new(exit, "second termination signal: aborted calls in flight")
    }

    /// Invalid command line.
    pub(super) fn usage(message: impl fmt::Display) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// Turns the proxy's refusal of invalid values, which came from the command line, into bad usage.
    pub(super) fn of_flags(self) -> Self {
        match self.status {
            Some(StatusCode::BAD_REQUEST) => Self { exit: Exit::Usage, ..self },
            Some(_) | None => self,
        }
    }

    /// Adds the id that the proxy did not find, and the command that lists the existing ids, if the status is 404.
    pub(super) fn naming(mut self, id: &str, listing: &str) -> Self {
        if self.status == Some(StatusCode::NOT_FOUND) {
            self.message = format!("{}: '{id}'; `{listing}` lists the ids", self.message);
        }
        self
    }

    /// Kind of the error for programs: that of the proxy's status if it is listed, else that of the exit code.
    fn code(&self) -> &'static str {
        let of_status = CODES_OF_STATUSES.iter().find(|(status, _)| self.status == Some(*status));
        match (of_status, self.exit) {
            (Some((_, code)), Exit::Failed) => code,
            (_, Exit::Failed) => "failed",
            (_, Exit::Usage) => "usage",
            (_, Exit::Unreachable) => "unreachable",
            (_, Exit::Store) => "store",
            (_, Exit::Config) => "config",
            (_, Exit::Incomplete) => "incomplete",
            (_, Exit::Interrupted | Exit::Terminated) => "aborted",
        }
    }

    /// Prints the error to stderr.
    pub(super) fn print(&self, json: bool) {
        let (mut stderr, line) = (std::io::stderr(), self.line(json));
        let for_terminal = json && stderr.is_terminal();
        let line = if for_terminal { terminal_safe::json(&line) } else { line.into() };
        // A closed stderr cannot be reported anywhere.
        let _ = writeln!(stderr, "{line}");
    }

    /// The line for stderr, or one line per config problem; a JSON object if results are JSON.
    pub(super) fn line(&self, json: bool) -> String {
        if !json && !self.problems.is_empty() {
            let lines = self.problems.iter().map(|problem| {
                let kind = severity(problem);
                format!("{kind}: {}", joined(&problem.to_string()))
            });
            return lines.collect::<Vec<_>>().join("\n");
        }
        if !json {
            return format!("error: {}", line(&hints::commands(&self.message)));
        }
        let mut error = serde_json::json!({
            "success": false, "error": self.message, "code": self.code(),
            "exit_code": self.exit as u8,
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

/// Words of the proxy's error statuses in JSON errors.
const CODES_OF_STATUSES: [(StatusCode, &str); 8] = [
    (StatusCode::BAD_REQUEST, "invalid"),
    (StatusCode::UNAUTHORIZED, "unauthorized"),
    (StatusCode::FORBIDDEN, "forbidden"),
    (StatusCode::NOT_FOUND, "not_found"),
    (StatusCode::CONFLICT, "conflict"),
    (StatusCode::UNPROCESSABLE_ENTITY, "invalid"),
    (StatusCode::TOO_MANY_REQUESTS, "too_many_requests"),
    (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
];

/// JSON form of a config problem.
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

/// Exit codes other than 0 (`contracts.md`, *command line*).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exit {
    /// The operation failed.
    Failed = 1,
    /// Bad usage.
    Usage = 2,
    /// mcpproxy is unreachable, or the port is in use.
    Unreachable = 3,
    /// The activity store is locked or damaged.
    Store = 4,
    /// The config is invalid.
    Config = 5,
    /// The result lacks records of some fleet nodes.
    Incomplete = 6,
    /// Second SIGINT: the shutdown was aborted.
    Interrupted = 130,
    /// Second SIGTERM: the shutdown was aborted.
    Terminated = 143,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_is_printed_on_one_line() {
        let failure = CommandError::new(Exit::Config, "bad\n  key 'x'\n\nat line 3\u{1b}[2J");
        assert_eq!(failure.line(false), "error: bad key 'x' at line 3\\u{1b}[2J");
        let json: serde_json::Value = serde_json::from_str(&failure.line(true)).unwrap();
        assert_eq!(json["exit_code"], 5);
        assert_eq!(json["success"], false);
        assert!(json.get("request_id").is_none());
    }

    #[test]
    fn json_errors_have_the_kind_of_their_status_or_exit_code() {
        for (exit, status, expected) in [
            (Exit::Failed, None, "failed"),
            (Exit::Failed, Some(StatusCode::NOT_FOUND), "not_found"),
            (Exit::Failed, Some(StatusCode::IM_A_TEAPOT), "failed"),
            (Exit::Usage, Some(StatusCode::BAD_REQUEST), "usage"),
            (Exit::Unreachable, None, "unreachable"),
            (Exit::Terminated, None, "aborted"),
        ] {
            let mut failure = CommandError::new(exit, "no");
            failure.status = status;
            let json: serde_json::Value = serde_json::from_str(&failure.line(true)).unwrap();
            assert_eq!(json["code"], expected, "{exit:?} {status:?}");
        }
    }

    #[test]
    fn error_for_an_unknown_id_names_the_command_that_lists_ids() {
        let mut failure = CommandError::failed("Approval not found");
        failure.status = Some(StatusCode::NOT_FOUND);
        let named = failure.clone().naming("zzzz", "mcpproxy approvals list");
        let expected = "Approval not found: 'zzzz'; `mcpproxy approvals list` lists the ids";
        assert_eq!(named.message, expected);
        failure.status = Some(StatusCode::CONFLICT);
        assert_eq!(failure.clone().naming("zzzz", "mcpproxy approvals list"), failure);
    }
}
