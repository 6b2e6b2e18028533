//! `mcpproxy tools …`: searches and shows the catalog, and reviews changed definitions.
//!
//! Text written by servers is shown with hidden characters made visible. An approval names the digest of the text that
//! was shown.

use crate::args::ToolsCommand;
use crate::backend::{Backend, Data, target};
use crate::completion::{ADMIN, Vocabulary, suggesting, unknown_server};
use crate::error::{CommandError, Exit};
use crate::format::{list, text};
use crate::output::{ADDED, Colors, Output, Paragraph, REMOVED, of_state, parse, write};
use crate::table::{Cell, Column, Fit, cell, whole_cell};
use crate::terminal_safe::{argument, clean, joined, line, quoted};
use crate::{backend, hints, logging};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::{BufRead as _, IsTerminal as _, Write as _, stdin, stdout};

/// Printed if no definition awaits approval.
const NOTHING_PENDING: &str = "No changes are pending.\n";

/// Runs a tools command.
pub(super) async fn run(
    command: &ToolsCommand,
    backend: &Backend,
    output: &Output,
) -> Result<(), CommandError> {
    match command {
        ToolsCommand::Search { query, limit } => {
            let (query_text, limit) = (&query.join(" "), limit.to_string());
            let query = [("q", Some(query_text.as_str())), ("limit", Some(limit.as_str()))];
            let found = backend.get(&target(&["tools"], &query)).await?;
            let none = format!(
                "No tool matches '{}'. `mcpproxy tools list` lists all tools.",
                line(query_text)
            );
            output.print(found.json()?, |found| {
                let mut shown = table(found, &none, output);
                let (count, total) = (list(found, "/tools").len() as u64, found.pointer("/total"));
                let total = total.and_then(Value::as_u64).unwrap_or_default();
                if total > count && count > 0 {
                    let note = format!("({count} of {total} shown: use -n)");
                    match output.view.width {
                        Some(_) => shown += &format!("{note}\n"),
                        // A program reads only rows.
                        None => logging::print_line(note),
                    }
                }
                shown
            })
        }
        ToolsCommand::List { server } => {
            let query = [("server", server.as_deref())];
            let all = backend::fetch_all(backend, "tools", &query, u32::MAX).await;
            let name = server.as_deref().unwrap_or_default();
            let all = suggesting(all, backend, Vocabulary::Servers, name).await?;
            let mut none = "No tools found. `mcpproxy upstream list` shows each server with its number of tools.".to_owned();
            if list(&parse(&all)?, "/tools").is_empty()
                && let Some(name) = server
            {
                none = why_no_tools(name, backend).await?.unwrap_or(none);
            }
            output.print(&all, |all| table(all, &none, output))?;
            let all = parse(&all)?;
            note_hidden(backend, server.as_deref(), &all).await;
            if server.is_none() && matches!(backend, Backend::Remote(_)) {
                note_missing(backend, &all).await;
            }
            Ok(())
        }
        ToolsCommand::Show { name } => {
            let tool = backend.get(&target(&["tools", name], &[])).await;
            let tool: Data = suggesting(tool, backend, Vocabulary::Tools, name).await?;
            output.print(tool.json()?, |tool| show(tool, output.view.width))
        }
        // This command also needs the config file.
        ToolsCommand::Annotate { .. } => Ok(()),
        ToolsCommand::Diff { name } => diff(backend, output, name).await,
        ToolsCommand::Approve { name, digest } => {
            approve(backend, output, name, digest.as_deref()).await
        }
    }
}

/// Reason why no tool of a server is listed; `None` if it is connected.
///
/// # Errors
/// There is no such server.
async fn why_no_tools(name: &str, backend: &Backend) -> Result<Option<String>, CommandError> {
    let servers = parse(backend.get(&target(&["servers"], &[])).await?.json()?)?;
    let servers = list(&servers, "/servers");
    let Some(server) = servers.iter().find(|it| text(it, "/name") == name) else {
        let known: Vec<_> = servers.iter().map(|it| text(it, "/name")).collect();
        let text = unknown_server(name, known.iter().map(|name| &**name));
        return Err(CommandError::failed(text));
    };
    let (state, reason) = (text(server, "/state"), text(server, "/reason"));
    let reason = if reason.is_empty() { String::new() } else { format!(": {}", joined(&reason)) };
    let state = match &*state {
        "connected" => return Ok(None),
        "failed" => "has failed".to_owned(),
        state => format!("is {}", line(state)),
    };
    Ok(Some(format!("No tools found: server '{}' {state}{reason}", line(name))))
}

/// Prints to stderr how many tools of all servers or of this one the rules hide from the list. A failure is ignored,
/// because the list is complete without this number.
async fn note_hidden(backend: &Backend, server: Option<&str>, all: &Value) {
    let part = if server.is_some() { "servers" } else { "status" };
    let found = backend.get(&target(&[part], &[])).await;
    let Ok(found) = found.and_then(|found| parse(found.json()?)) else { return };
    let counted = match server {
        None => Some(&found),
        Some(name) => list(&found, "/servers").iter().find(|it| text(it, "/name") == name),
    };
    let known = counted.and_then(|it| it.pointer("/tools")?.as_u64()).unwrap_or_default();
    let hidden = known.saturating_sub(list(all, "/tools").len() as u64);
    if hidden > 0 {
        let tools = if hidden == 1 { "tool is" } else { "tools are" };
        logging::print_line(format_args!(
            "{hidden} {tools} hidden by rules: `mcpproxy policy explain --as {ADMIN} --tool NAME` explains why"
        ));
    }
}

/// Prints to stderr which enabled servers are not connected and have no tools in the list. A failure is ignored, as by
/// [`note_hidden`].
async fn note_missing(backend: &Backend, all: &Value) {
    let found = backend.get(&target(&["servers"], &[])).await;
    let Ok(found) = found.and_then(|found| parse(found.json()?)) else { return };
    let has_tool = |server: &str| {
        let mut names = list(all, "/tools").iter().map(|tool| text(tool, "/name"));
        names.any(|name| name.split_once(':').is_some_and(|(of, _)| of == server))
    };
    for server in list(&found, "/servers") {
        let [name, state] = ["/name", "/state"].map(|at| text(server, at));
        if !matches!(&*state, "connected" | "disabled") && !has_tool(&name) {
            logging::print_line(format_args!(
                "the list has no tools of server '{}', whose state is {}: `mcpproxy doctor`",
                line(&name),
                line(&state)
            ));
        }
    }
}

/// Table of tools; `none` is shown if there are none.
fn table(found: &Value, none: &str, output: &Output) -> String {
    let tools = list(found, "/tools");
    if tools.is_empty() {
        return output.none(none);
    }
    let rows = tools.iter().map(|tool| {
        vec![
            cell(&text(tool, "/name")).into(),
            match is_quarantined(tool) {
                true => Cell::styled("(quarantined)", of_state("quarantined")),
                false => cell(&command(tool)).into(),
            },
            match output.view.width {
                Some(_) => cell(&text(tool, "/description")).into(),
                None => whole_cell(&text(tool, "/description")).into(),
            },
        ]
    });
    let columns = [("TOOL", Fit::Middle), ("CALL WITH", Fit::Whole), ("DESCRIPTION", Fit::Below)];
    // With whole descriptions the list would be too long to scan.
    let columns = Column::with_cut_text(Column::with_servers(Column::all(columns), "TOOL"));
    let mut shown = output.table(&columns, rows.collect());
    let suspect = tools.iter().filter(|tool| !list(tool, "/findings").is_empty()).count();
    if suspect > 0 {
        let note =
            format!("The scan has findings for {suspect} of them: `mcpproxy tools show NAME`.");
        let _ = writeln!(shown, "\n{}", hints::commands(&note));
    }
    shown
}

/// The subcommand of `mcpproxy call` for a tool.
fn command(tool: &Value) -> String {
    text(tool, "/call_with").replace("call_tool_", "tool-")
}

fn is_quarantined(tool: &Value) -> bool {
    tool.get("quarantined").and_then(Value::as_bool).unwrap_or_default()
}

fn show(data: &Value, width: Option<usize>) -> String {
    let tool = data.get("tool").unwrap_or(data);
    let mut shown = String::new();
    let name = text(tool, "/name");
    let command = command(tool);
    let _ = writeln!(shown, "{}\n", Paragraph::new(width).indented(2).text(&line(&name)));
    if is_quarantined(tool) {
        let named = argument(&name);
        let note = format!(
            "Its definition is in quarantine: `mcpproxy tools diff {named}` shows why, `mcpproxy tools approve {named}` accepts it."
        );
        let _ = writeln!(shown, "{}\n", hints::commands(&note));
    }
    shown.push_str(&findings(tool));
    if !text(tool, "/description").is_empty() {
        let below = Paragraph::new(width).indented(2);
        let _ = writeln!(shown, "{}\n", below.block(&text(tool, "/description")));
    }
    let _ = match quoted(&name) {
        Some(name) => {
            let call = format!("mcpproxy call {} {name} --args '{{…}}'", line(&command));
            writeln!(shown, "Call it with   {}", hints::commands(&call))
        }
        None => writeln!(
            shown,
            "Call it        not possible from a shell: its name has hidden characters"
        ),
    };
    for (label, pointer) in [("Annotations", "/annotations"), ("Capability", "/capability")] {
        if let Some(members) = tool.pointer(pointer).and_then(Value::as_object) {
            let members = members.keys().map(|name| {
                format!("{} {}", line(name), line(&text(tool, &format!("{pointer}/{name}"))))
            });
            let members = members.collect::<Vec<_>>().join(", ");
            let row = Paragraph::new(width).indented(15).labeled(label, &members);
            let _ = writeln!(shown, "{row}");
        }
    }
    for (label, pointer) in [("Input schema", "/inputSchema"), ("Output schema", "/outputSchema")] {
        if let Some(schema) = tool.pointer(pointer) {
            let pretty = serde_json::to_string_pretty(schema).unwrap_or_default();
            // Not wrapped, so that it can be copied as JSON.
            let below = Paragraph::new(None).indented(2);
            let _ = writeln!(shown, "\n{label}\n{}", below.block(&pretty));
        }
    }
    shown
}

/// Shows the pending changes of a tool or server.
pub(super) async fn diff(
    backend: &Backend,
    output: &Output,
    name: &str,
) -> Result<(), CommandError> {
    let found = difference(backend, name).await?;
    output.print(found.json()?, |found| {
        let mut shown = shown(found, output.view.colors);
        if list(found, "/tools").iter().any(is_quarantined) {
            let name = argument(name);
            let command = format!("mcpproxy tools approve {name}");
            let _ = writeln!(shown, "Accept  {}", hints::commands(&command));
        }
        shown
    })
}

async fn difference(backend: &Backend, name: &str) -> Result<Data, CommandError> {
    let found = backend.get(&target(&["tools", name, "diff"], &[])).await;
    suggesting(found, backend, Vocabulary::ToolsAndServers, name).await
}

/// Approves the definition with this digest. If the digest is omitted, shows the changes and asks.
pub(super) async fn approve(
    backend: &Backend,
    output: &Output,
    name: &str,
    digest: Option<&str>,
) -> Result<(), CommandError> {
    let digest = match digest {
        Some(digest) => digest.to_owned(),
        None => {
            let found = parse(difference(backend, name).await?.json()?)?;
            if !list(&found, "/tools").iter().any(is_quarantined) {
                let nothing = json!({ "approved": [] }).to_string();
                return output.print(&nothing, |_| NOTHING_PENDING.to_owned());
            }
            ask(&found, output.view.colors)?
        }
    };
    let body = json!({ "digest": digest }).to_string();
    let approved = backend.post(&target(&["tools", name, "approve"], &[]), body).await;
    let approved = suggesting(approved, backend, Vocabulary::ToolsAndServers, name).await?;
    output.print(approved.json()?, |approved| {
        let names: Vec<_> = list(approved, "/approved")
            .iter()
            .map(|name| line(&text(name, "")).into_owned())
            .collect();
        let mut shown = format!("Approved: {}\n", names.join(", "));
        if approved.get("not_saved").is_some() {
            let _ = writeln!(
                shown,
                "The approval could not be saved and ends with a restart: {}",
                line(&text(approved, "/not_saved"))
            );
        }
        shown
    })
}

/// Shows the changes and asks for approval. Returns the digest.
fn ask(found: &Value, colors: Colors) -> Result<String, CommandError> {
    if !stdin().is_terminal() || !stdout().is_terminal() {
        let text = "approval needs a terminal, or --digest DIGEST as printed by `mcpproxy tools diff NAME`";
        return Err(CommandError::new(Exit::Usage, text.to_owned()));
    }
    write(shown(found, colors).as_bytes())?;
    write(b"\nApprove this definition? [y/N] ")?;
    stdout().flush().map_err(CommandError::failed)?;
    let mut answer = String::new();
    stdin().lock().read_line(&mut answer).map_err(CommandError::failed)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(text(found, "/digest").into_owned()),
        _ => Err(CommandError::failed("not approved")),
    }
}

/// Renders pending changes.
fn shown(found: &Value, colors: Colors) -> String {
    let mut shown = String::new();
    let tools = list(found, "/tools");
    for tool in tools {
        draw_tool(&mut shown, tool, colors);
    }
    if tools.is_empty() {
        shown.push_str(NOTHING_PENDING);
    }
    match found.get("left_out").and_then(Value::as_u64).unwrap_or_default() {
        0 => {}
        more => {
            let _ = writeln!(shown, "{more} more tools are not shown: review them by name.\n");
        }
    }
    if !tools.is_empty() {
        // That of a server covers all of its tools, and approves all of them.
        let of = if text(found, "/name").contains(':') { "" } else { " of all" };
        let _ = writeln!(shown, "Digest{of}  {}", line(&text(found, "/digest")));
    }
    shown
}

fn draw_tool(shown: &mut String, tool: &Value, colors: Colors) {
    let accepted = match &*text(tool, "/accepted") {
        "never" => "no definition was ever accepted",
        "another" => "another definition is accepted",
        "forgotten" => "another definition was accepted, its text is no longer stored",
        "same" => "this definition is accepted",
        _ => "",
    };
    let state = if is_quarantined(tool) { "in quarantine: " } else { "" };
    let grade = text(tool, "/grade");
    let grade = if grade.is_empty() { String::new() } else { format!(" ({})", line(&grade)) };
    let _ = writeln!(shown, "{}\n{state}{accepted}{grade}\n", line(&text(tool, "/name")));
    shown.push_str(&findings(tool));
    for part in list(tool, "/parts") {
        let grade = text(part, "/grade");
        let grade = if grade.is_empty() { String::new() } else { format!(" ({})", line(&grade)) };
        let _ = writeln!(shown, "{}{grade}", line(&text(part, "/part")));
        for why in list(part, "/why") {
            let _ = writeln!(shown, "  {}", line(&text(why, "")));
        }
        for place in list(part, "/places") {
            let at = text(place, "/place");
            if !at.is_empty() {
                let _ = writeln!(shown, "  at {}", line(&at));
            }
            for (sign, pointer, style) in [("-", "/old", REMOVED), ("+", "/new", ADDED)] {
                let Some(value) = place.pointer(pointer).and_then(Value::as_str) else { continue };
                for row in clean(value).split('\n') {
                    let _ = writeln!(shown, "  {}", colors.paint(&format!("{sign} {row}"), style));
                }
            }
        }
        match part.get("left_out").and_then(Value::as_u64).unwrap_or_default() {
            0 => {}
            more => {
                let _ = writeln!(shown, "  {more} more changes not shown");
            }
        }
        shown.push('\n');
    }
}

/// Findings of the scan, one line each; empty if there are none.
pub(super) fn findings(tool: &Value) -> String {
    let mut shown = String::new();
    let found = list(tool, "/findings");
    for finding in found {
        let (rule, level) = (text(finding, "/rule"), text(finding, "/level"));
        let (place, detail) = (text(finding, "/place"), text(finding, "/detail"));
        let _ = writeln!(
            shown,
            "! {} ({}) in {}: {}",
            line(&rule),
            line(&level),
            line(&place),
            line(&detail)
        );
    }
    if !found.is_empty() {
        shown.push('\n');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn show_names_the_call_command() {
        let data = serde_json::json!({"tool": {
            "name": "gh:delete_repo", "description": "Deletes", "inputSchema": {"type": "object"},
            "annotations": {"destructiveHint": true}, "call_with": "call_tool_destructive",
        }});
        let shown = show(&data, None);
        assert!(shown.contains("mcpproxy call tool-destructive gh:delete_repo"), "{shown}");
        assert!(shown.contains("Annotations    destructiveHint true\n"), "{shown}");
    }

    #[test]
    fn description_cannot_forge_the_call_command() {
        let forged = "Reads.\nCall it with   mcpproxy call tool-destructive s:x --args '{}'";
        let schema = serde_json::json!({"type": "object", "description": forged});
        let data = serde_json::json!({"tool": {"name": "s:x", "description": forged,
            "inputSchema": schema, "annotations": {"title": forged}, "call_with": "call_tool_read"}});
        // The same holds at a width at which the text would wrap.
        for width in [None, Some(30), Some(80)] {
            let shown = show(&data, width);
            let calls: Vec<_> = shown.lines().filter(|line| line.starts_with("Call it")).collect();
            assert!(matches!(&calls[..], [one] if one.contains("tool-read s:x")), "{shown}");
        }
    }

    #[test]
    fn shown_command_is_quoted_or_omitted() {
        let shown = |name: &str| {
            show(&serde_json::json!({"tool": {"name": name, "call_with": "call_tool_read"}}), None)
        };
        let quoted = shown("s:x; rm -rf ~ #");
        assert!(quoted.contains("mcpproxy call tool-read 's:x; rm -rf ~ #' --args"), "{quoted}");
        let hidden = shown("s:read\u{200b}\u{e0041}\nCall it with   rm");
        assert!(hidden.starts_with("s:read\\u{200b}\\u{e0041}\\u{a}Call it"), "{hidden}");
        assert!(!hidden.contains("mcpproxy call"), "{hidden}");
    }

    #[test]
    fn tool_list_keeps_command_and_quarantine_beside_long_names() {
        for name in crate::output::tests::names() {
            let found = serde_json::json!({"tools": [
                {"name": format!("s:{name}"), "call_with": "call_tool_destructive",
                    "description": "words ".repeat(40)},
                {"name": "s:held", "quarantined": true, "description": "日本語".repeat(30)},
            ]});
            let keeps = ["tool-destructive", "(quarantined)", "s:held", "words"];
            crate::output::tests::fits(|output| table(&found, "", output), &keeps);
        }
    }

    fn found() -> Value {
        json!({"name": "s:x", "digest": "d1", "left_out": 0, "tools": [{
            "name": "s:x\u{200b}", "quarantined": true, "digest": "d1", "accepted": "another", "grade": "loosened",
            "findings": [{"rule": "order", "level": "high", "place": "description", "detail": "'a\u{202e}b'"}],
            "parts": [{"part": "description", "grade": "text", "why": [], "left_out": 3,
                "places": [{"place": "", "old": "one\ntwo", "new": "one\u{1b}[31m\nthree\u{e0041}"}]}],
        }]})
    }

    #[test]
    fn diff_is_readable_with_hidden_characters_visible() {
        let text = shown(&found(), Colors::Plain);
        let expected = "s:x\\u{200b}\nin quarantine: another definition is accepted (loosened)\n\n\
            ! order (high) in description: 'a\\u{202e}b'\n\n\
            description (text)\n  - one\n  - two\n  + one\\u{1b}[31m\n  + three\\u{e0041}\n  3 more changes not shown\n\n\
            Digest  d1\n";
        assert_eq!(text, expected);
        let colored = shown(&found(), Colors::Styled);
        assert!(colored.contains("\u{1b}[31m- one\u{1b}[0m"), "{colored}");
        assert!(colored.contains("\u{1b}[32m+ one\\u{1b}[31m\u{1b}[0m"), "{colored}");
    }

    #[test]
    fn empty_diff_states_that_it_is_empty() {
        let nothing = json!({"name": "s", "digest": "d", "tools": [], "left_out": 0});
        assert_eq!(shown(&nothing, Colors::Plain), "No changes are pending.\n");
    }
}
