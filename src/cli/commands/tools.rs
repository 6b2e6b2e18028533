//! `mcpproxy tools …`: the catalog as the proxy sees it.

mod definitions;

use std::fmt::Write as _;

use serde_json::Value;

use crate::cli::args::ToolsCommand;
use crate::cli::backend::{Backend, Data, target};
use crate::cli::colours::of_state;
use crate::cli::error::CommandError;
use crate::cli::json_pointer::{list, text};
use crate::cli::output::Output;
use crate::cli::pagination;
use crate::cli::paragraph::Paragraph;
use crate::cli::suggest::{Vocabulary, suggesting};
use crate::cli::table::{Cell, Column, Fit, cell, cut};
use crate::cli::terminal_safe::{line, quoted};

/// Most characters of a description in a list, where no width cuts it.
const DESCRIPTION_CHARS: usize = 70;

/// Searches, lists or shows tools.
pub(super) async fn run(
    command: &ToolsCommand,
    backend: &Backend,
    output: &Output,
) -> Result<(), CommandError> {
    match command {
        ToolsCommand::Search { query, limit } => {
            let (query, limit) = (query.join(" "), limit.to_string());
            let query = [("q", Some(query.as_str())), ("limit", Some(limit.as_str()))];
            let found = backend.get(&target(&["tools"], &query)).await?;
            output.print(found.json()?, |found| table(found, output))
        }
        ToolsCommand::List { server } => {
            let query = [("server", server.as_deref())];
            let all = pagination::all(backend, "tools", &query, u32::MAX).await;
            let name = server.as_deref().unwrap_or_default();
            let all = suggesting(all, backend, Vocabulary::Servers, name).await?;
            output.print(&all, |all| table(all, output))
        }
        ToolsCommand::Show { name } => {
            let tool = backend.get(&target(&["tools", name], &[])).await;
            let tool: Data = suggesting(tool, backend, Vocabulary::Tools, name).await?;
            output.print(tool.json()?, |tool| show(tool, output.view.width))
        }
        ToolsCommand::Diff { name } => definitions::diff(backend, output, name).await,
        ToolsCommand::Approve { name, digest } => {
            definitions::approve(backend, output, name, digest.as_deref()).await
        }
    }
}

fn table(found: &Value, output: &Output) -> String {
    let tools = list(found, "/tools");
    if tools.is_empty() {
        return "No tools found. `mcpproxy upstream list` shows which servers are connected."
            .to_owned();
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
                None => cut(&cell(&text(tool, "/description")), DESCRIPTION_CHARS).into(),
            },
        ]
    });
    let columns =
        Column::all([("TOOL", Fit::Name), ("CALL WITH", Fit::Whole), ("DESCRIPTION", Fit::Free)]);
    let mut shown = output.table(&columns, rows.collect());
    let suspect = tools.iter().filter(|tool| !list(tool, "/findings").is_empty()).count();
    if suspect > 0 {
        let _ = writeln!(
            shown,
            "\nThe scan found something in {suspect} of them: `mcpproxy tools show NAME`."
        );
    }
    shown
}

/// The command of `mcpproxy call` that it is called with.
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
    let _ = writeln!(shown, "{}\n", Paragraph::new(width).behind(2).text(&line(&name)));
    if is_quarantined(tool) {
        let _ = writeln!(
            shown,
            "Its definition is in quarantine: `mcpproxy tools diff` shows why, `mcpproxy tools approve` ends it.\n"
        );
    }
    shown.push_str(&definitions::findings(tool));
    if !text(tool, "/description").is_empty() {
        let below = Paragraph::new(width).behind(2);
        let _ = writeln!(shown, "{}\n", below.block(&text(tool, "/description")));
    }
    let _ = match quoted(&name) {
        Some(name) => {
            let command = line(&command);
            writeln!(shown, "Call it with   mcpproxy call {command} {name} --args '{{…}}'")
        }
        None => writeln!(
            shown,
            "Call it        by no command: its name has characters that are not seen"
        ),
    };
    for (label, pointer) in [("Annotations", "/annotations"), ("Capability", "/capability")] {
        if tool.pointer(pointer).is_some() {
            let told = Paragraph::new(width).behind(15).labelled(label, &text(tool, pointer));
            let _ = writeln!(shown, "{told}");
        }
    }
    for (label, pointer) in [("Input schema", "/inputSchema"), ("Output schema", "/outputSchema")] {
        if let Some(schema) = tool.pointer(pointer) {
            let pretty = serde_json::to_string_pretty(schema).unwrap_or_default();
            let below = Paragraph::new(width).behind(2);
            let _ = writeln!(shown, "\n{label}\n{}", below.block(&pretty));
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn show_names_the_command_to_use() {
        let data = serde_json::json!({"tool": {
            "name": "gh:delete_repo", "description": "Deletes", "inputSchema": {"type": "object"},
            "annotations": {"destructiveHint": true}, "call_with": "call_tool_destructive",
        }});
        let shown = show(&data, None);
        assert!(shown.contains("mcpproxy call tool-destructive gh:delete_repo"), "{shown}");
        assert!(shown.contains("{\"destructiveHint\":true}"), "{shown}");
    }

    #[test]
    fn no_description_names_another_command() {
        let forged = "Reads.\nCall it with   mcpproxy call tool-destructive s:x --args '{}'";
        let schema = serde_json::json!({"type": "object", "description": forged});
        let data = serde_json::json!({"tool": {"name": "s:x", "description": forged,
            "inputSchema": schema, "annotations": {"title": forged}, "call_with": "call_tool_read"}});
        // At a width that would wrap it, too.
        for width in [None, Some(30), Some(80)] {
            let shown = show(&data, width);
            let calls: Vec<_> = shown.lines().filter(|line| line.starts_with("Call it")).collect();
            assert!(matches!(&calls[..], [one] if one.contains("tool-read s:x")), "{shown}");
        }
    }

    #[test]
    fn show_suggests_no_command_that_does_something_else() {
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
    fn a_long_name_leaves_the_command_and_the_quarantine_in_view() {
        for name in crate::cli::output::tests::names() {
            let found = serde_json::json!({"tools": [
                {"name": format!("s:{name}"), "call_with": "call_tool_destructive",
                    "description": "words ".repeat(40)},
                {"name": "s:held", "quarantined": true, "description": "日本語".repeat(30)},
            ]});
            let keeps = ["tool-destructive", "(quarantined)", "s:held", "words"];
            crate::cli::output::tests::fits(|output| table(&found, output), &keeps);
        }
    }
}
