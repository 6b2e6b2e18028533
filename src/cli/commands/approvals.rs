//! `mcpproxy approvals …`: calls that wait for a person, and the answers to them.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::cli::args::ApprovalsCommand;
use crate::cli::backend::{Backend, target};
use crate::cli::error::CommandError;
use crate::cli::json_pointer::{list, text};
use crate::cli::output::Output;
use crate::cli::table::cell;
use crate::cli::terminal_safe::{clean, line};

/// The columns of the list, and where their values stand.
const COLUMNS: [(&str, &str); 6] = [
    ("ID", "/id"),
    ("UNTIL (UTC)", "/call/until"),
    ("CALL", "/access"),
    ("OPERATION", "/call/operation"),
    ("PRINCIPAL", "/call/principal"),
    ("ARGUMENTS", "/call/arguments"),
];

/// The same of those that stand.
const STANDING: [(&str, &str); 5] = [
    ("ID", "/id"),
    ("UNTIL (UTC)", "/until"),
    ("CALLS", "/access"),
    ("PRINCIPAL", "/principal"),
    ("SESSION", "/session_id"),
];

/// Runs one of the commands.
pub(super) async fn run(
    command: &ApprovalsCommand,
    backend: &Backend,
    output: &Output,
) -> Result<(), CommandError> {
    match command {
        ApprovalsCommand::List => {
            let all = backend.get(&target(&["approvals"], &[])).await?;
            output.print(all.json()?, |all| table(all, output))
        }
        ApprovalsCommand::Show { id } => {
            let approval = backend.get(&target(&["approvals", id], &[])).await?;
            output.print(approval.json()?, show)
        }
        ApprovalsCommand::Approve { id, how_long } => {
            let mut answer = json!({"decision": "approve"});
            if let (Some(how_long), Some(members)) = (how_long, answer.as_object_mut()) {
                members.insert("for".to_owned(), how_long.as_str().into());
            }
            answered(id, &answer, backend, output).await
        }
        ApprovalsCommand::Deny { id } => {
            answered(id, &json!({"decision": "deny"}), backend, output).await
        }
    }
}

async fn answered(
    id: &str,
    answer: &Value,
    backend: &Backend,
    output: &Output,
) -> Result<(), CommandError> {
    let decided = backend.post(&target(&["approvals", id], &[]), answer.to_string()).await?;
    output.print(decided.json()?, |data| {
        let approval = data.get("approval").unwrap_or(data);
        format!("{}: {}", line(&text(approval, "/access")), line(&text(approval, "/state")))
    })
}

fn table(all: &Value, output: &Output) -> String {
    let rows = |pointer: &str, columns: &[(&str, &str)]| -> Vec<Vec<String>> {
        let cells = |it: &Value| columns.iter().map(|(_, at)| cell(&text(it, at))).collect();
        list(all, pointer).iter().map(cells).collect()
    };
    let (waiting, standing) = (rows("/approvals", &COLUMNS), rows("/standing", &STANDING));
    let mut drawn = match waiting.is_empty() {
        true => "No call waits for approval.\n".to_owned(),
        false => output.table(&COLUMNS.map(|(name, _)| name), waiting, &[0]),
    };
    if !standing.is_empty() {
        drawn += "\nApprovals that stand (`approvals deny ID` ends one):\n";
        drawn += &output.table(&STANDING.map(|(name, _)| name), standing, &[0]);
    }
    drawn
}

fn show(data: &Value) -> String {
    let approval = data.get("approval").unwrap_or(data);
    let mut shown = String::new();
    for (label, pointer) in [
        ("Call", "/access"),
        ("State", "/state"),
        ("Answered by", "/by"),
        ("Answered over", "/door"),
        ("Decided", "/decided"),
        ("Operation", "/call/operation"),
        ("Destructive", "/call/destructive"),
        ("Principal", "/call/principal"),
        ("Client", "/call/client_name"),
        ("Session", "/call/session_id"),
        ("Request", "/call/request_id"),
        ("Since", "/call/since"),
        ("Until", "/call/until"),
        ("Reason", "/call/reason"),
        ("Digest", "/call/digest"),
    ] {
        let value = text(approval, pointer);
        if !value.is_empty() {
            let _ = writeln!(shown, "{label:<14} {}", line(&value));
        }
    }
    let arguments = text(approval, "/call/arguments");
    if !arguments.is_empty() {
        // As they are sent: another layout could read differently.
        let _ = writeln!(shown, "\nArguments\n{}", clean(&arguments));
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn show_has_what_is_to_be_judged_and_hides_nothing() {
        let data = json!({"approval": {"id": "x", "state": "waiting", "access": "gh:delete\u{202e}",
            "call": {"operation": "destructive", "arguments": "{\"a\":\"b\u{200b}\"}", "until": "2026"}}});
        let shown = show(&data);
        for part in ["gh:delete\\u{202e}", "destructive", "{\"a\":\"b\\u{200b}\"}", "waiting"] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
    }
}
