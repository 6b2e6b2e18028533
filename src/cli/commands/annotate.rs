//! `mcpproxy tools annotate`: states the side effects of a server's unannotated tools in its `capabilities` (FR-043).

use crate::args::Global;
use crate::backend::{Needs, fetch_all};
use crate::commands::upstream;
use crate::completion::{Vocabulary, suggesting, unknown_server};
use crate::error::{CommandError, Exit};
use crate::format::{list, text};
use crate::output::{Output, Paragraph, parse};
use crate::terminal_safe::line;
use crate::{backend, running_proxy, start_proxy};
use mcpproxy_config::edit_servers::Servers;
use mcpproxy_policy::intent::Operation;
use mcpproxy_server as server;
use serde_json::{Value, json};
use std::io::{BufRead, IsTerminal as _, Write, stdin, stdout};

/// A tool's name at its server, and its side effect.
type Answer = (String, Operation);

/// Answers given as options.
pub(super) fn answers(
    read: Vec<String>,
    write: Vec<String>,
    destructive: Vec<String>,
) -> Vec<Answer> {
    let of = |tools: Vec<String>, operation| tools.into_iter().map(move |tool| (tool, operation));
    of(read, Operation::Read)
        .chain(of(write, Operation::Write))
        .chain(of(destructive, Operation::Destructive))
        .collect()
}

/// Writes `given`, or otherwise the user's answers, to the config file.
pub(super) fn run(
    name: &str,
    given: &[Answer],
    global: &Global,
    output: &Output,
) -> Result<(), CommandError> {
    if given.is_empty() && !(stdin().is_terminal() && stdout().is_terminal()) {
        let text = "annotating needs a terminal, or --read, --write and --destructive with the tools' names";
        return Err(CommandError::new(Exit::Usage, text));
    }
    let mut found = Value::Null;
    backend::with(global, Needs::Catalog, async |backend| {
        let query = [("server", Some(name)), ("unannotated", Some("true"))];
        let tools = fetch_all(backend, "tools", &query, u32::MAX).await;
        found = parse(&suggesting(tools, backend, Vocabulary::Servers, name).await?)?;
        Ok(())
    })?;
    let tools = list(&found, "/tools");
    let answers = match given {
        [] => ask(tools, &mut stdin().lock(), &mut stdout().lock(), output.view.width)?,
        given => {
            check(name, tools, given)?;
            given.to_vec()
        }
    };
    if answers.is_empty() {
        let response = json!({"server": name, "annotated": {}, "unannotated": tools.len()});
        return output.print(&response.to_string(), |_| match tools.is_empty() {
            true => format!("Every tool of '{}' is annotated.", line(name)),
            false => "Nothing was changed.".to_owned(),
        });
    }
    let loaded = start_proxy::load(global, None)?;
    let stated: Vec<_> =
        answers.iter().map(|(tool, operation)| (tool.clone(), operation.as_str())).collect();
    upstream::edit(&loaded, global, |json| {
        let servers = Servers(json);
        let next = servers.with_side_effects(name, &stated).map_err(|error| error.to_string())?;
        next.ok_or_else(|| {
            unknown_server(name, servers.all().iter().map(|(name, _)| name.as_str()))
        })
    })?;
    let runtime = server::local_runtime().map_err(CommandError::failed)?;
    let (reloaded, _) = runtime.block_on(running_proxy::reload(&loaded));
    let file = loaded.path.display().to_string();
    let annotated: serde_json::Map<_, _> =
        stated.iter().map(|(tool, word)| (tool.clone(), Value::from(*word))).collect();
    let left = tools.len().saturating_sub(answers.len());
    let response = json!({"server": name, "file": file, "annotated": annotated, "unannotated": left,
        "proxy": reloaded.json()});
    output.print(&response.to_string(), |_| {
        let rows = stated.iter().map(|(tool, word)| format!("  {}: {word}\n", line(tool)));
        let rows: String = rows.collect();
        format!("Wrote to {}:\n{rows}{}", line(&file), reloaded.message())
    })
}

/// Checks that each tool is unannotated and named only once.
fn check(server: &str, tools: &[Value], given: &[Answer]) -> Result<(), CommandError> {
    for (at, (tool, _)) in given.iter().enumerate() {
        let full = format!("{server}:{tool}");
        if !tools.iter().any(|it| text(it, "/name") == full) {
            let known: Vec<_> = tools.iter().map(|it| line(&own_name(it)).into_owned()).collect();
            return Err(CommandError::failed(format!(
                "'{}' is not an unannotated tool of '{}': {}",
                line(tool),
                line(server),
                match known.is_empty() {
                    true => {
                        "it has none, as far as its tools are known (`mcpproxy upstream list`)"
                            .to_owned()
                    }
                    false => known.join(", "),
                }
            )));
        }
        if given.iter().take(at).any(|(earlier, _)| earlier == tool) {
            return Err(CommandError::usage(format!("'{}' is named twice", line(tool))));
        }
    }
    Ok(())
}

/// The tool's name at its server.
fn own_name(tool: &Value) -> String {
    let name = text(tool, "/name");
    name.split_once(':').map(|(_, own)| own).unwrap_or_default().to_owned()
}

/// Shows each tool on `out` and reads its side effect from `input`.
fn ask(
    tools: &[Value],
    input: &mut dyn BufRead,
    out: &mut dyn Write,
    width: Option<usize>,
) -> Result<Vec<Answer>, CommandError> {
    let mut show = |text: &str| {
        let shown = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        shown.map_err(CommandError::failed)
    };
    let below = Paragraph::new(width).indented(2);
    let mut answers = Vec::new();
    for (number, tool) in tools.iter().enumerate() {
        let head =
            format!("\n{} ({} of {})\n", line(&text(tool, "/name")), number + 1, tools.len());
        show(&head)?;
        let description = text(tool, "/description");
        if !description.is_empty() {
            show(&format!("{}\n", below.block(&description)))?;
        }
        loop {
            show("[r]ead, [w]rite, [d]estructive, [s]kip, [q]uit? ")?;
            let mut typed = String::new();
            let is_end = input.read_line(&mut typed).map_err(CommandError::failed)? == 0;
            let operation = match typed.trim() {
                "r" | "read" => Operation::Read,
                "w" | "write" => Operation::Write,
                "d" | "destructive" => Operation::Destructive,
                "s" | "skip" => break,
                "q" | "quit" => return Ok(answers),
                _ if is_end => return Ok(answers),
                _ => continue,
            };
            answers.push((own_name(tool), operation));
            break;
        }
    }
    Ok(answers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tools() -> Vec<Value> {
        ["query", "drop", "put"].map(|name| json!({"name": format!("s:{name}")})).to_vec()
    }

    #[test]
    fn fr_043_user_is_asked_about_each_tool_until_the_input_ends() {
        let answers =
            |typed: &str| ask(&tools(), &mut typed.as_bytes(), &mut Vec::new(), None).unwrap();
        let read = ("query".to_owned(), Operation::Read);
        let destructive = ("drop".to_owned(), Operation::Destructive);
        let put = ("put".to_owned(), Operation::Write);
        assert_eq!(answers("r\nx\ndestructive\nw\n"), [read.clone(), destructive, put.clone()]);
        assert_eq!(answers("read\ns\nwrite\n"), [read.clone(), put]);
        assert_eq!(answers("r\nq\n"), std::slice::from_ref(&read));
        assert_eq!(answers("r\n"), [read]);
    }

    #[test]
    fn fr_043_only_unannotated_tools_can_be_named_and_each_only_once() {
        let given = |read: &[&str], write: &[&str]| {
            let owned = |names: &[&str]| names.iter().map(|it| (*it).to_owned()).collect();
            let given = answers(owned(read), owned(write), Vec::new());
            check("s", &tools(), &given).map_err(|error| error.message)
        };
        assert_eq!(given(&["query"], &["put", "drop"]), Ok(()));
        let unknown = given(&["other"], &[]).unwrap_err();
        assert_eq!(unknown, "'other' is not an unannotated tool of 's': query, drop, put");
        assert_eq!(given(&["query"], &["query"]), Err("'query' is named twice".to_owned()));
    }
}
