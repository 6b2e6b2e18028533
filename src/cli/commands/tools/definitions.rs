//! `mcpproxy tools diff` and `tools approve`: what an operator is shown of a definition that waits, and the answer.
//!
//! What servers wrote is shown as text in which nothing is hidden. An approval names what was shown.

use std::fmt::Write as _;
use std::io::{BufRead as _, IsTerminal as _, Write as _, stdin, stdout};

use serde_json::{Value, json};

use crate::cli::backend::{Backend, Data, target};
use crate::cli::colours::{ADDED, Colours, REMOVED};
use crate::cli::error::CommandError;
use crate::cli::exit_code::Exit;
use crate::cli::json_pointer::{list, text};
use crate::cli::output::{Output, parse, write};
use crate::cli::suggest::{Vocabulary, suggesting};
use crate::cli::terminal_safe::{clean, line};

/// Shows what is another.
pub(super) async fn diff(
    backend: &Backend,
    output: &Output,
    name: &str,
) -> Result<(), CommandError> {
    let found = difference(backend, name).await?;
    output.print(found.json()?, |found| shown(found, output.view.colours))
}

async fn difference(backend: &Backend, name: &str) -> Result<Data, CommandError> {
    let found = backend.get(&target(&["tools", name, "diff"], &[])).await;
    suggesting(found, backend, Vocabulary::ToolsAndServers, name).await
}

/// Approves what was seen; shows it and asks, where it is not named.
pub(super) async fn approve(
    backend: &Backend,
    output: &Output,
    name: &str,
    digest: Option<&str>,
) -> Result<(), CommandError> {
    let seen = match digest {
        Some(digest) => digest.to_owned(),
        None => {
            let found = difference(backend, name).await?;
            ask(&parse(found.json()?)?, output.view.colours)?
        }
    };
    let body = json!({ "digest": seen }).to_string();
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
                "This will not outlast a restart: {}",
                line(&text(approved, "/not_saved"))
            );
        }
        shown
    })
}

/// Shows a difference and asks; what is approved.
fn ask(found: &Value, colours: Colours) -> Result<String, CommandError> {
    if !stdin().is_terminal() || !stdout().is_terminal() {
        let text =
            "say what you have seen: --digest DIGEST, which `mcpproxy tools diff NAME` shows";
        return Err(CommandError::new(Exit::Usage, text.to_owned()));
    }
    write(shown(found, colours).as_bytes())?;
    write(b"\nTrust this from now on? [y/N] ")?;
    stdout().flush().map_err(CommandError::failed)?;
    let mut answer = String::new();
    stdin().lock().read_line(&mut answer).map_err(CommandError::failed)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(text(found, "/digest").into_owned()),
        _ => Err(CommandError::failed("nothing was approved")),
    }
}

/// A difference as people read it.
fn shown(found: &Value, colours: Colours) -> String {
    let mut shown = String::new();
    let tools = list(found, "/tools");
    for tool in tools {
        of_tool(&mut shown, tool, colours);
    }
    if tools.is_empty() {
        shown.push_str("Nothing waits for approval.\n");
    }
    match found.get("left_out").and_then(Value::as_u64).unwrap_or_default() {
        0 => {}
        more => {
            let _ = writeln!(
                shown,
                "{more} more tools wait that are not shown: look at each by its name.\n"
            );
        }
    }
    if !tools.is_empty() {
        let _ = writeln!(shown, "Digest  {}", line(&text(found, "/digest")));
    }
    shown
}

fn of_tool(shown: &mut String, tool: &Value, colours: Colours) {
    let stands = match &*text(tool, "/accepted") {
        "never" => "no definition of it was ever accepted",
        "another" => "another definition is accepted",
        "forgotten" => "another definition was accepted, whose text is not known any more",
        "same" => "this definition is accepted",
        _ => "",
    };
    let quarantined = tool.get("quarantined").and_then(Value::as_bool).unwrap_or_default();
    let state = if quarantined { "in quarantine: " } else { "" };
    let grade = text(tool, "/grade");
    let grade = if grade.is_empty() { String::new() } else { format!(" ({})", line(&grade)) };
    let _ = writeln!(shown, "{}\n{state}{stands}{grade}\n", line(&text(tool, "/name")));
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
                    let _ = writeln!(shown, "  {}", colours.paint(&format!("{sign} {row}"), style));
                }
            }
        }
        match part.get("left_out").and_then(Value::as_u64).unwrap_or_default() {
            0 => {}
            more => {
                let _ = writeln!(shown, "  {more} more places are left out");
            }
        }
        shown.push('\n');
    }
}

/// What the scan found in a tool, a line each; nothing where there is nothing.
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

    fn found() -> Value {
        json!({"name": "s:x", "digest": "d1", "left_out": 0, "tools": [{
            "name": "s:x\u{200b}", "quarantined": true, "digest": "d1", "accepted": "another", "grade": "loosened",
            "findings": [{"rule": "order", "level": "high", "place": "description", "detail": "'a\u{202e}b'"}],
            "parts": [{"part": "description", "grade": "text", "why": [], "left_out": 3,
                "places": [{"place": "", "old": "one\ntwo", "new": "one\u{1b}[31m\nthree\u{e0041}"}]}],
        }]})
    }

    #[test]
    fn a_difference_is_readable_and_nothing_in_it_is_hidden() {
        let text = shown(&found(), Colours::Plain);
        let expected = "s:x\\u{200b}\nin quarantine: another definition is accepted (loosened)\n\n\
            ! order (high) in description: 'a\\u{202e}b'\n\n\
            description (text)\n  - one\n  - two\n  + one\\u{1b}[31m\n  + three\\u{e0041}\n  3 more places are left out\n\n\
            Digest  d1\n";
        assert_eq!(text, expected);
        let coloured = shown(&found(), Colours::Styled);
        assert!(coloured.contains("\u{1b}[31m- one\u{1b}[0m"), "{coloured}");
        assert!(coloured.contains("\u{1b}[32m+ one\\u{1b}[31m\u{1b}[0m"), "{coloured}");
    }

    #[test]
    fn where_nothing_waits_that_is_said() {
        let nothing = json!({"name": "s", "digest": "d", "tools": [], "left_out": 0});
        assert_eq!(shown(&nothing, Colours::Plain), "Nothing waits for approval.\n");
    }
}
