//! `mcpproxy approvals …`: calls that wait for a person, and the answers to them.

use std::collections::HashSet;
use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::cli::args::ApprovalsCommand;
use crate::cli::backend::{Backend, target};
use crate::cli::error::CommandError;
use crate::cli::json_pointer::{list, text};
use crate::cli::output::{Output, parse};
use crate::cli::paragraph::Paragraph;
use crate::cli::table::{Cell, Column, Fit, cell};
use crate::cli::terminal_safe::line;
use crate::cli::times::Times;

/// What is seen of an id where it is short; more where two begin alike.
const SHORT: usize = 6;
/// The fewest characters by which an approval can be meant.
const MIN_SHORT: usize = 4;
/// Characters of a whole id, but for those of its node in a fleet.
const WHOLE: usize = 16;

/// The columns of the list, and where their values stand.
const COLUMNS: [((&str, Fit), &str); 6] = [
    (("ID", Fit::Whole), "/id"),
    ((UNTIL, Fit::Whole), "/call/until"),
    (("CALL", Fit::Name), "/access"),
    (("OPERATION", Fit::Rank(3)), "/call/operation"),
    (("PRINCIPAL", Fit::Rank(4)), "/call/principal"),
    (("ARGUMENTS", Fit::Free), "/call/arguments"),
];

/// The same of those that stand.
const STANDING: [((&str, Fit), &str); 5] = [
    (("ID", Fit::Whole), "/id"),
    ((UNTIL, Fit::Whole), "/until"),
    (("CALLS", Fit::Name), "/access"),
    (("PRINCIPAL", Fit::Rank(3)), "/principal"),
    (("SESSION", Fit::Rank(4)), "/session_id"),
];

/// The column of a point in time, whose zone its name says.
const UNTIL: &str = "UNTIL";

/// Runs one of the commands.
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
            let id = whole(id, backend).await?;
            let approval = backend.get(&target(&["approvals", &id], &[])).await?;
            output.print(approval.json()?, |approval| show(approval, output.view.width))
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
    let id = whole(id, backend).await?;
    let decided = backend.post(&target(&["approvals", &id], &[]), answer.to_string()).await?;
    output.print(decided.json()?, |data| {
        let approval = data.get("approval").unwrap_or(data);
        format!("{}: {}", line(&text(approval, "/access")), line(&text(approval, "/state")))
    })
}

/// The whole id of one that is typed by its beginning.
async fn whole(typed: &str, backend: &Backend) -> Result<String, CommandError> {
    if typed.len() >= WHOLE {
        return Ok(typed.to_owned());
    }
    let all = backend.get(&target(&["approvals"], &[])).await?;
    let all = parse(all.json()?)?;
    begins(typed, &ids(&all)).map_err(CommandError::failed)
}

/// The one id that begins so.
fn begins(typed: &str, ids: &[String]) -> Result<String, String> {
    let mut meant = ids.iter().filter(|id| id.starts_with(&typed.to_lowercase()));
    match (typed.len() >= MIN_SHORT, meant.next(), meant.next()) {
        (false, ..) => {
            Err(format!("'{typed}' is too short: write at least {MIN_SHORT} characters of the id"))
        }
        (true, Some(one), None) => Ok(one.clone()),
        (true, Some(one), Some(other)) => {
            Err(format!("several begin with '{typed}': {one}, {other}: write more of the id"))
        }
        // The proxy tells what it is that nobody knows.
        (true, None, _) => Ok(typed.to_owned()),
    }
}

/// The ids of all that wait or stand.
fn ids(all: &Value) -> Vec<String> {
    let both = list(all, "/approvals").iter().chain(list(all, "/standing"));
    both.map(|it| text(it, "/id").into_owned()).collect()
}

/// How many characters tell the ids apart.
fn distinct(ids: &[String]) -> usize {
    let unique = |length: &usize| {
        let mut seen = HashSet::new();
        ids.iter().all(|id| seen.insert(id.get(..*length).unwrap_or(id)))
    };
    (SHORT..WHOLE).find(unique).unwrap_or(WHOLE)
}

fn table(all: &Value, output: &Output, times: &Times) -> String {
    let shown_of_id = output.view.width.map_or(usize::MAX, |_| distinct(&ids(all)));
    let rows = |pointer: &str, columns: &[((&'static str, Fit), &str)]| -> Vec<Vec<Cell>> {
        let cell_of = |it: &Value, (name, at): (&str, &str)| {
            let told = text(it, at);
            match name {
                "ID" => cell(told.get(..shown_of_id).unwrap_or(&told)).into(),
                UNTIL => times.show_text(&told).into(),
                _ => Cell::from(cell(&told)),
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
    let (waiting, standing) = (rows("/approvals", &COLUMNS), rows("/standing", &STANDING));
    let mut drawn = match waiting.is_empty() {
        true => "No call waits for approval.\n".to_owned(),
        false => output.table(&columns(&COLUMNS), waiting),
    };
    for unseen in list(all, "/unseen") {
        let _ = writeln!(drawn, "Not seen: {}", line(&text(unseen, "/why")));
    }
    if !standing.is_empty() {
        drawn += "\nApprovals that stand (`approvals deny ID` ends one):\n";
        drawn += &output.table(&columns(&STANDING), standing);
    }
    drawn
}

fn show(data: &Value, width: Option<usize>) -> String {
    let approval = data.get("approval").unwrap_or(data);
    let mut shown = String::new();
    let values = Paragraph::new(width).behind(15);
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
        ("Until", "/call/until"),
        ("Reason", "/call/reason"),
        ("Digest", "/call/digest"),
    ] {
        let value = text(approval, pointer);
        if !value.is_empty() {
            let _ = writeln!(shown, "{}", values.labelled(label, &line(&value)));
        }
    }
    let arguments = text(approval, "/call/arguments");
    if !arguments.is_empty() {
        // As they are sent: another layout could read differently. But no line of them passes for one of ours.
        let below = Paragraph::new(width).behind(2);
        let _ = writeln!(shown, "\nArguments\n{}", below.block(&arguments));
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_approval_is_meant_by_the_beginning_of_its_id_alone() {
        let ids = ["5r8x0q2mzk7w1ahd", "5r8x0qzzzzzzzzzz", "aaaa000000000000"].map(str::to_owned);
        assert_eq!(begins("aaaa", &ids), Ok(ids[2].clone()));
        assert_eq!(begins("5R8X0Q2", &ids), Ok(ids[0].clone()));
        assert_eq!(begins("zzzz", &ids), Ok("zzzz".to_owned()));
        let several = begins("5r8x", &ids).unwrap_err();
        assert!(several.contains(&ids[0]) && several.contains(&ids[1]), "{several}");
        assert!(begins("5r8", &ids).unwrap_err().contains("at least 4"));
        assert!(begins("", &ids).is_err());
        assert_eq!((distinct(&ids), distinct(&ids[1..])), (7, 6));
    }

    #[test]
    fn show_has_what_is_to_be_judged_and_hides_nothing() {
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
    fn a_long_name_leaves_what_is_asked_for_and_by_whom_it_is_answered_in_view() {
        for name in crate::cli::output::tests::names() {
            let call = json!({"operation": "destructive", "principal": "token:ci",
                "until": "2026-01-02T03:04:05Z", "arguments": "{\"path\":\"/tmp\"}"});
            let all = json!({
                "approvals": [{"id": "5r8x0q2mzk7w1ahd", "access": format!("{name}:delete"), "call": call}],
                "standing": [{"id": "aaaa000000000000", "access": format!("{name}:delete"),
                    "principal": "token:ci", "until": "2026-01-02T03:04:05Z", "session_id": "s"}],
            });
            let times = Times::new(Some(crate::cli::times::TimeStyle::Utc), false);
            let keeps = ["5r8x0q ", "aaaa00 ", "01-02 03:04:05", "CALL ", "ARGUMENTS"];
            crate::cli::output::tests::fits(|output| table(&all, output, &times), &keeps);
        }
    }
}
