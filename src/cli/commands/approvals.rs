//! `mcpproxy approvals …`: lists, shows and decides pending calls.

use crate::args::ApprovalsCommand;
use crate::backend::{Backend, target};
use crate::error::CommandError;
use crate::format::{Times, counted, list, text};
use crate::output::{Output, Paragraph, parse};
use crate::table::{Cell, Column, Fit, cell, whole_cell, wrapped_cell};
use crate::terminal_safe::line;
use crate::{hints, logging};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::fmt::Write as _;

/// Minimum length of a shortened id, in characters; longer if two ids share a prefix.
const SHORT: usize = 6;
/// Minimum length of an id prefix, in characters.
const MIN_SHORT: usize = 4;
/// Characters of a full id, without the node suffix of a fleet.
const FULL_ID_CHARS: usize = 16;

/// Columns of pending calls with the JSON pointers of their values.
const COLUMNS: [((&str, Fit), &str); 6] = [
    (("ID", Fit::Whole), "/id"),
    ((UNTIL, Fit::Whole), "/call/until"),
    (("CALL", Fit::Middle), "/access"),
    (("OPERATION", Fit::Whole), "/call/operation"),
    (("PRINCIPAL", Fit::Middle), "/call/principal"),
    // Kept, because they decide the answer.
    ((ARGUMENTS, Fit::Below), "/call/arguments"),
];

/// Column of the agent's reason, for programs. People get it after the arguments, so that it cannot hide them or pass for
/// them.
const REASON: ((&str, Fit), &str) = (("REASON", Fit::Rank(9)), "/call/reason");

/// Columns of standing approvals.
const STANDING: [((&str, Fit), &str); 5] = [
    (("ID", Fit::Whole), "/id"),
    ((UNTIL, Fit::Whole), "/until"),
    (("CALLS", Fit::Middle), "/access"),
    (("PRINCIPAL", Fit::Middle), "/principal"),
    (("SESSION", Fit::Rank(4)), "/session_id"),
];

/// Header of the column with the arguments.
const ARGUMENTS: &str = "ARGUMENTS";
/// Header of a time column; the zone is added.
const UNTIL: &str = "UNTIL";
/// Command that lists the ids.
const LISTING: &str = "mcpproxy approvals list";

/// Runs an approvals command.
pub(super) async fn run(
    command: &ApprovalsCommand,
    backend: &Backend,
    output: &Output,
) -> Result<(), CommandError> {
    match command {
        ApprovalsCommand::List { time } => {
            let all = backend.get(&target(&["approvals"], &[])).await?;
            let times = Times::new(*time, output.terminal);
            output.print(all.json()?, |all| table(all, output, &times))
        }
        ApprovalsCommand::Show { id } => {
            let id = full_id(id, backend).await?;
            let approval = backend.get(&target(&["approvals", &id], &[])).await;
            let approval = approval.map_err(|failure| failure.naming(&id, LISTING))?;
            output.print(approval.json()?, |approval| show(approval, output.view.width))
        }
        ApprovalsCommand::Approve { id, how_long } => {
            let mut decision = json!({"decision": "approve"});
            if let (Some(how_long), Some(members)) = (how_long, decision.as_object_mut()) {
                members.insert("for".to_owned(), how_long.as_str().into());
            }
            let scope = match how_long.as_deref() {
                None => " once".to_owned(),
                Some("session") => " for its session".to_owned(),
                Some(how_long) => format!(" for {how_long}"),
            };
            decide(id, &decision, &scope, backend, output).await
        }
        ApprovalsCommand::Deny { id } => {
            decide(id, &json!({"decision": "deny"}), "", backend, output).await
        }
    }
}

async fn decide(
    id: &str,
    decision: &Value,
    scope: &str,
    backend: &Backend,
    output: &Output,
) -> Result<(), CommandError> {
    let id = full_id(id, backend).await?;
    // The answer to the decision lacks the call. A standing approval has none, and a failure is that of the decision.
    let pending = backend.get(&target(&["approvals", &id], &[])).await.ok();
    let pending = pending.and_then(|it| parse(it.json().ok()?).ok()).unwrap_or_default();
    let decided = backend.post(&target(&["approvals", &id], &[]), decision.to_string()).await;
    let decided = decided.map_err(|failure| failure.naming(&id, LISTING))?;
    output.print(decided.json()?, |data| {
        decision_line(data, pending.get("approval").unwrap_or(&pending), scope, output.view.width)
    })
}

/// States what was decided about which call.
fn decision_line(decided: &Value, pending: &Value, scope: &str, width: Option<usize>) -> String {
    let approval = decided.get("approval").unwrap_or(decided);
    let [access, state] = ["/access", "/state"].map(|at| text(approval, at));
    let [principal, arguments] =
        ["/call/principal", "/call/arguments"].map(|at| cell(&text(pending, at)));
    let shown = match principal.is_empty() {
        // No call waits for it: it is a standing approval.
        true if state == "denied" => format!("{}: revoked", line(&access)),
        true => format!("{}: {}", line(&access), line(&state)),
        // A standing approval permits more than the call that waited.
        false if text(approval, "/state") == "approved" && scope.starts_with(" for ") => format!(
            "{}{scope}: every call of {} by {principal}, with any arguments",
            line(&state),
            line(&access)
        ),
        false => format!("{}{scope} for {principal}: {} {arguments}", line(&state), line(&access)),
    };
    Paragraph::new(width).indented(2).text(shown.trim_end())
}

/// Completes an id prefix.
async fn full_id(typed: &str, backend: &Backend) -> Result<String, CommandError> {
    if typed.len() >= FULL_ID_CHARS {
        return Ok(typed.to_owned());
    }
    let all = backend.get(&target(&["approvals"], &[])).await?;
    let all = parse(all.json()?)?;
    complete_prefix(typed, &ids(&all)).map_err(CommandError::failed)
}

/// The single id with this prefix.
fn complete_prefix(typed: &str, ids: &[String]) -> Result<String, String> {
    let mut matches = ids.iter().filter(|id| id.starts_with(&typed.to_lowercase()));
    match (typed.len() >= MIN_SHORT, matches.next(), matches.next()) {
        (false, ..) => {
            Err(format!("'{typed}' is too short: give at least {MIN_SHORT} characters of the id"))
        }
        (true, Some(one), None) => Ok(one.clone()),
        (true, Some(one), Some(other)) => {
            Err(format!("'{typed}' is ambiguous: {one}, {other}; give more characters of the id"))
        }
        // The proxy reports an unknown id.
        (true, None, _) => Ok(typed.to_owned()),
    }
}

/// Ids of all pending calls and standing approvals.
fn ids(all: &Value) -> Vec<String> {
    let both = list(all, "/approvals").iter().chain(list(all, "/standing"));
    both.map(|it| text(it, "/id").into_owned()).collect()
}

/// Prefix length that makes all ids unique.
fn unique_prefix_length(ids: &[String]) -> usize {
    let unique = |length: &usize| {
        let mut seen = HashSet::new();
        ids.iter().all(|id| seen.insert(id.get(..*length).unwrap_or(id)))
    };
    (SHORT..FULL_ID_CHARS).find(unique).unwrap_or(FULL_ID_CHARS)
}

fn table(all: &Value, output: &Output, times: &Times) -> String {
    let for_people = output.view.width.is_some();
    let id_chars = output.view.width.map_or(usize::MAX, |_| unique_prefix_length(&ids(all)));
    let rows = |pointer: &str, columns: &[((&'static str, Fit), &str)]| -> Vec<Vec<Cell>> {
        let cell_of = |it: &Value, (name, at): (&str, &str)| {
            let value = text(it, at);
            match name {
                "ID" => cell(value.get(..id_chars).unwrap_or(&value)).into(),
                UNTIL if for_people => times.show_text(&value).into(),
                UNTIL => times.exact_text(&value).into(),
                ARGUMENTS if for_people => match text(it, "/call/reason") {
                    reason if reason.is_empty() => {
                        format!("arguments {}", wrapped_cell(&value)).into()
                    }
                    reason => {
                        format!("arguments {}\nreason {}", wrapped_cell(&value), cell(&reason))
                            .into()
                    }
                },
                _ if for_people => Cell::from(cell(&value)),
                _ => Cell::from(whole_cell(&value)),
            }
        };
        let cells =
            |it: &Value| columns.iter().map(|((name, _), at)| cell_of(it, (name, at))).collect();
        list(all, pointer).iter().map(cells).collect()
    };
    let columns = |columns: &[((&'static str, Fit), &str)]| -> Vec<Column> {
        let named = columns.iter().map(|((name, fit), _)| match *name {
            UNTIL => Column::new(times.header(UNTIL, UNTIL), *fit),
            name => Column::new(name, *fit),
        });
        named.collect()
    };
    let mut shown = COLUMNS.to_vec();
    shown.extend((!for_people).then_some(REASON));
    let (pending, standing) = (rows("/approvals", &shown), rows("/standing", &STANDING));
    let mut drawn = match pending.is_empty() {
        true if for_people => "No pending calls.\n".to_owned(),
        true => output.none("No pending calls."),
        false => {
            let columns = Column::with_servers(columns(&shown), "CALL");
            let columns = Column::with_repeated(columns, "PRINCIPAL");
            let is_cut = |row: &Vec<Cell>| row.last().is_some_and(|it| it.text.contains('…'));
            let note = match for_people && pending.iter().any(is_cut) {
                true => {
                    hints::commands("(`mcpproxy approvals show ID` shows all of the arguments)\n")
                        .into_owned()
                }
                false => String::new(),
            };
            output.table(&columns, pending) + &note
        }
    };
    for waiting in list(all, "/approvals") {
        let since = text(waiting, "/call/disconnected");
        if !since.is_empty() {
            let id = text(waiting, "/id");
            let id = line(id.get(..id_chars).unwrap_or(&id)).into_owned();
            let since = times.show_text(&since);
            let _ = writeln!(
                drawn,
                "{id}: its client is disconnected ({since}); if approved, the call is made all the same"
            );
        }
    }
    for unseen in list(all, "/unseen") {
        let _ = writeln!(drawn, "Not included: {}", line(&text(unseen, "/why")));
    }
    if !standing.is_empty() && !for_people {
        // A program that denies each listed id must not revoke these.
        let note = counted(standing.len(), "standing approval");
        logging::print_line(format_args!("{note} not listed: -o json has all"));
    } else if !standing.is_empty() {
        drawn += "\nStanding approvals, for any arguments (`approvals deny ID` revokes one):\n";
        drawn += &output.table(&columns(&STANDING), standing);
    }
    drawn
}

fn show(data: &Value, width: Option<usize>) -> String {
    let approval = data.get("approval").unwrap_or(data);
    let mut shown = String::new();
    let values = Paragraph::new(width).indented(15);
    for (label, pointer) in [
        ("Call", "/access"),
        ("State", "/state"),
        ("Node", "/node"),
        ("Answered by", "/by"),
        ("Answered over", "/door"),
        ("Answered at", "/by_node"),
        ("Decided", "/decided"),
        ("Operation", "/call/operation"),
        ("Destructive", "/call/destructive"),
        ("Principal", "/call/principal"),
        ("Client", "/call/client_name"),
        ("Session", "/call/session_id"),
        ("Request", "/call/request_id"),
        ("Since", "/call/since"),
        ("Disconnected", "/call/disconnected"),
        ("Until", "/call/until"),
        ("Reason", "/call/reason"),
        ("Digest", "/call/digest"),
    ] {
        let value = text(approval, pointer);
        if !value.is_empty() {
            let _ = writeln!(shown, "{}", values.labeled(label, &line(&value)));
        }
    }
    for (title, pointer) in [
        ("Arguments", "/call/arguments"),
        ("_meta", "/call/meta"),
        ("inputResponses", "/call/inputs"),
    ] {
        let value = text(approval, pointer);
        if !value.is_empty() {
            // The original layout is kept, because a different layout could change how the text is understood. The text
            // is indented, so that none of its lines can be mistaken for mcpproxy's own.
            let below = Paragraph::new(width).indented(2);
            let _ = writeln!(shown, "\n{title}\n{}", below.block(&value));
        }
    }
    if approval.get("call").is_none() {
        let id = line(&text(approval, "/id")).into_owned();
        let _ = writeln!(
            shown,
            "\nThe call and its arguments are in the log: {}",
            hints::commands(&format!("mcpproxy activity list --text {id}"))
        );
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn approval_is_selected_by_a_unique_id_prefix() {
        let ids = ["5r8x0q2mzk7w1ahd", "5r8x0qzzzzzzzzzz", "aaaa000000000000"].map(str::to_owned);
        assert_eq!(complete_prefix("aaaa", &ids), Ok(ids[2].clone()));
        assert_eq!(complete_prefix("5R8X0Q2", &ids), Ok(ids[0].clone()));
        assert_eq!(complete_prefix("zzzz", &ids), Ok("zzzz".to_owned()));
        let several = complete_prefix("5r8x", &ids).unwrap_err();
        assert!(several.contains(&ids[0]) && several.contains(&ids[1]), "{several}");
        assert!(complete_prefix("5r8", &ids).unwrap_err().contains("at least 4"));
        assert!(complete_prefix("", &ids).is_err());
        assert_eq!((unique_prefix_length(&ids), unique_prefix_length(&ids[1..])), (7, 6));
    }

    #[test]
    fn cli_3_decision_names_the_call_its_principal_and_its_arguments() {
        let decided = json!({"approval": {"access": "memory:delete", "state": "approved"}});
        let pending = json!({"call": {"principal": "token:ops",
            "arguments": "{\"entityNames\":\n [\"X\"]}"}});
        let shown = |scope: &str, width| decision_line(&decided, &pending, scope, width);
        let once = "approved once for token:ops: memory:delete {\"entityNames\": [\"X\"]}";
        assert_eq!(shown(" once", None), once);
        let wrapped = "approved once for token:ops:\n  memory:delete {\"entityNames\": [\"X\"]}";
        assert_eq!(shown(" once", Some(40)), wrapped);
        let standing =
            "approved for 1h: every call of memory:delete by token:ops, with any arguments";
        assert_eq!(shown(" for 1h", None), standing);
        let standing = decision_line(&decided, &Value::Null, "", None);
        assert_eq!(standing, "memory:delete: approved");
    }

    #[test]
    fn cli_3_decided_approval_names_the_command_that_finds_its_call() {
        let decided = json!({"approval": {"id": "5r8x0q2mzk7w1ahd", "state": "approved"}});
        let command = "mcpproxy activity list --text 5r8x0q2mzk7w1ahd";
        assert!(show(&decided, Some(80)).trim_end().ends_with(command));
        let pending = json!({"approval": {"id": "x", "state": "waiting", "call": {}}});
        assert!(!show(&pending, None).contains("activity list"));
    }

    #[test]
    fn cli_2_approval_list_keeps_operation_reason_and_arguments() {
        let call = json!({"operation": "destructive", "principal": "token:ops", "until": "2026-01-02T03:04:05Z",
            "reason": "clean up the obsolete entity X of the test run",
            "arguments": "{\"entityNames\":[\"X\",\"Y\",\"Z\",\"and some more of them\"]}"});
        let all = json!({"approvals": [
            {"id": "5r8x0q2mzk7w1ahd", "access": "memory:delete_entities", "call": call}]});
        let times = Times::Relative("2026-01-02T03:00:00Z".parse().unwrap());
        let keeps = ["memory:delete_entities", "token:ops", "destructive"];
        let why = "{\"entityNames\":[\"X\",\"Y\",\"Z\",";
        let keeps = [&keeps[..], &[why]].concat();
        crate::output::tests::fits(|output| table(&all, output, &times), &keeps);
    }

    #[test]
    fn show_contains_all_call_details_with_hidden_characters_visible() {
        let data = json!({"approval": {"id": "x", "state": "waiting", "access": "gh:delete\u{202e}",
            "call": {"operation": "destructive", "arguments": "{\"a\":\"b\u{200b}\"}", "until": "2026"}}});
        let shown = show(&data, None);
        for part in ["gh:delete\\u{202e}", "destructive", "{\"a\":\"b\\u{200b}\"}", "waiting"] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        let data = json!({"approval": {"access": "gh:x\nState          approved", "state": "waiting",
            "call": {"reason": "a\nState          approved", "arguments": "{\n\"a\":1,\nState\n}"}}});
        for width in [None, Some(30)] {
            let shown = show(&data, width);
            let states = shown.lines().filter(|line| line.starts_with("State"));
            assert_eq!(states.collect::<Vec<_>>(), ["State          waiting"], "{shown}");
        }
    }

    #[test]
    fn approval_list_keeps_id_and_deadline_beside_long_names() {
        for name in crate::output::tests::names() {
            let call = json!({"operation": "destructive", "principal": "token:ci",
                "until": "2026-01-02T03:04:05Z", "arguments": "{\"path\":\"/tmp\"}"});
            let all = json!({
                "approvals": [{"id": "5r8x0q2mzk7w1ahd", "access": format!("{name}:delete"), "call": call}],
                "standing": [{"id": "aaaa000000000000", "access": format!("{name}:delete"),
                    "principal": "token:ci", "until": "2026-01-02T03:04:05Z", "session_id": "s"}],
            });
            let times = Times::new(Some(crate::format::TimeStyle::Utc), false);
            let keeps = ["5r8x0q ", "aaaa00 ", "01-02 03:04:05", "CALL ", "/tmp"];
            crate::output::tests::fits(|output| table(&all, output, &times), &keeps);
        }
    }
}
