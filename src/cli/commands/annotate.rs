//! `mcpproxy tools annotate`: states the side effects of a server's unannotated tools in its `capabilities`, or corrects
//! an earlier statement (FR-043).

use crate::args::Global;
use crate::backend::{Needs, fetch_all, target};
use crate::commands::upstream;
use crate::completion::{Vocabulary, suggesting, unknown_server};
use crate::error::{CommandError, Exit};
use crate::format::{counted, list, text};
use crate::output::{Output, Paragraph, confirm, declined, parse};
use crate::terminal_safe::{argument, line};
use crate::{backend, hints, running_proxy, start_proxy};
use http::StatusCode;
use mcpproxy_config::edit::EditedJson;
use mcpproxy_config::edit_servers::Servers;
use mcpproxy_config::file::{self, Loaded};
use mcpproxy_policy::intent::Operation;
use mcpproxy_runtime::nearest::nearest;
use mcpproxy_server as server;
use serde_json::{Map, Value, json};
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
    let loaded = start_proxy::load(global, None)?;
    let is_configured = upstream::names(&loaded.config).any(|known| known == name);
    let (mut found, mut servers) = (Value::Null, Value::Null);
    backend::with(global, Needs::Catalog, async |backend| {
        let tools = fetch_all(backend, "tools", &[("server", Some(name))], u32::MAX).await;
        found = match suggesting(tools, backend, Vocabulary::Servers, name).await {
            // Without a running proxy only servers with stored tools are known.
            Err(failure) if is_configured && failure.status == Some(StatusCode::NOT_FOUND) => {
                Value::Null
            }
            tools => parse(&tools?)?,
        };
        servers = parse(backend.get(&target(&["servers"], &[])).await?.json()?)?;
        Ok(())
    })?;
    let state = list(&servers, "/servers").iter().find(|it| text(it, "/name") == name);
    let state = state.map(|it| text(it, "/state").into_owned());
    let stated_before = stated_by_operator(&loaded, name);
    let tools = list(&found, "/tools");
    // Without a running proxy the capabilities of the config are not part of the tools.
    let (unannotated, annotated): (Vec<_>, Vec<_>) = tools.iter().cloned().partition(|tool| {
        tool.pointer("/unannotated") == Some(&Value::Bool(true))
            && !stated_before.contains_key(&own_name(tool))
    });
    if tools.is_empty() && !is_configured && state.is_none() {
        let known = upstream::names(&loaded.config);
        return Err(CommandError::failed(unknown_server(name, known)));
    }
    if tools.is_empty() && state.as_deref() != Some(CONNECTED) {
        return Err(CommandError::failed(format!(
            "the tools of '{}' are not known, {}",
            line(name),
            recovery(name, state.as_deref())
        )));
    }
    let correctable = correctable(annotated, &stated_before);
    let answers = match given {
        [] if !(stdin().is_terminal() && stdout().is_terminal()) => {
            let text = "annotating needs a terminal, or --read, --write and --destructive with the tools' names";
            return Err(CommandError::new(Exit::Usage, text));
        }
        [] => ask(&unannotated, &mut stdin().lock(), &mut stdout().lock(), output.view.width)?,
        given => {
            check(name, &unannotated, &correctable, given)?;
            given.to_vec()
        }
    };
    if answers.is_empty() {
        let response = json!({"server": name, "annotated": {}, "unannotated": unannotated.len()});
        return output.print(&response.to_string(), |_| match unannotated.is_empty() {
            true => nothing_to_ask(name, tools.len(), !correctable.is_empty(), state.as_deref()),
            false => "Nothing was changed.".to_owned(),
        });
    }
    if given.is_empty() {
        let file = loaded.path.display().to_string();
        let change = change_of(name, &file, &answers, &stated_before);
        let shown = format!("Will write {change}") + &progress(answers.len(), unannotated.len());
        if !confirm(&shown, "Write this to the config file?", false)? {
            return declined();
        }
    }
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
    let is_answered = |tool: &&Value| answers.iter().any(|(name, _)| *name == own_name(tool));
    let left = unannotated.iter().filter(|tool| !is_answered(tool)).count();
    let response = json!({"server": name, "file": file, "annotated": annotated, "unannotated": left,
        "proxy": reloaded.json()});
    output.print(&response.to_string(), |_| {
        let change = change_of(name, &file, &answers, &stated_before);
        format!("Wrote {change}{}", reloaded.message())
    })
}

/// State of a server whose tools are known.
const CONNECTED: &str = "connected";

/// Reason why the tools of a server are not known or out of date, and the command that helps. Without a running proxy
/// the state is unknown.
fn recovery(name: &str, state: Option<&str>) -> String {
    let word = argument(name);
    match state {
        None => {
            "no mcpproxy is running: `mcpproxy serve` starts the server and reads them".to_owned()
        }
        Some("disabled") => {
            format!("the server is disabled: `mcpproxy upstream enable {word}`")
        }
        Some("needs-login") => {
            format!("the server needs a login: `mcpproxy upstream login {word}`")
        }
        Some(state) => {
            format!("the server is {}: `mcpproxy upstream restart {word}`", line(state))
        }
    }
}

/// Message if no tool of a server is unannotated.
fn nothing_to_ask(name: &str, tools: usize, may_correct: bool, state: Option<&str>) -> String {
    let shown = line(name);
    let word = argument(name);
    let message = match state {
        Some(CONNECTED) if tools == 0 => format!("'{shown}' has no tools."),
        Some(CONNECTED) if may_correct => format!(
            "Every tool of '{shown}' is annotated. To correct an answer: mcpproxy tools annotate {word} --write TOOL"
        ),
        Some(CONNECTED) => format!(
            "Every tool of '{shown}' is annotated by the server. `capabilities` in the config overrides a wrong annotation."
        ),
        state => format!(
            "Every known tool of '{shown}' is annotated, but there may be more: {}",
            recovery(name, state)
        ),
    };
    hints::commands(&message).into_owned()
}

/// Side effects that the config states for single tools of a server. Empty if the file cannot be read again.
fn stated_by_operator(loaded: &Loaded, server: &str) -> Map<String, Value> {
    let text = file::text(&loaded.path).ok();
    let json = text.and_then(|text| EditedJson::new(&text).ok());
    let servers = json.map(|json| Servers(&json).all()).unwrap_or_default();
    let block = servers.into_iter().find(|(name, _)| name == server).map(|(_, block)| block);
    let capabilities = block.as_ref().and_then(|it| it.get("capabilities")?.as_object().cloned());
    let stated = capabilities.unwrap_or_default().into_iter();
    stated.filter_map(|(tool, it)| Some((tool, it.get("side_effect")?.clone()))).collect()
}

/// Annotated tools whose side effect the operator has stated, for the tool itself or by a pattern.
fn correctable(annotated: Vec<Value>, stated: &Map<String, Value>) -> Vec<Value> {
    let hints = ["/annotations/readOnlyHint", "/annotations/destructiveHint"];
    let is_unmarked = |tool: &Value| hints.iter().all(|at| text(tool, at).is_empty());
    let mut tools = annotated;
    tools.retain(|tool| stated.contains_key(&own_name(tool)) || is_unmarked(tool));
    tools
}

/// The change of the config file, one line for each tool.
fn change_of(server: &str, file: &str, answers: &[Answer], before: &Map<String, Value>) -> String {
    let rows = answers.iter().map(|(tool, operation)| {
        let earlier =
            before.get(tool).and_then(Value::as_str).filter(|it| *it != operation.as_str());
        let earlier = earlier.map(|it| format!("{} → ", line(it))).unwrap_or_default();
        format!("  {}: {earlier}{}\n", line(tool), operation.as_str())
    });
    let rows: String = rows.collect();
    format!("capabilities of '{}' to {}:\n{rows}", line(server), line(file))
}

/// Line that states how many tools were answered, if not all of them.
fn progress(answered: usize, asked: usize) -> String {
    match answered < asked {
        true => format!(
            "{answered} of {} answered; the others stay unannotated\n",
            counted(asked, "tool")
        ),
        false => String::new(),
    }
}

/// Checks that each tool is unannotated, or was annotated by the operator, and named only once.
fn check(
    server: &str,
    unannotated: &[Value],
    correctable: &[Value],
    given: &[Answer],
) -> Result<(), CommandError> {
    for (at, (tool, _)) in given.iter().enumerate() {
        let full = format!("{server}:{tool}");
        let mut tools = unannotated.iter().chain(correctable);
        if !tools.any(|it| text(it, "/name") == full) {
            let names = |tools: &[Value]| {
                let names: Vec<_> =
                    tools.iter().map(|it| line(&own_name(it)).into_owned()).collect();
                if names.is_empty() { "none".to_owned() } else { names.join(", ") }
            };
            let known: Vec<_> = unannotated.iter().chain(correctable).map(own_name).collect();
            let meant = match nearest(tool, known.iter().map(String::as_str)) {
                Some(meant) => format!(" (did you mean '{}'?)", line(meant)),
                None => String::new(),
            };
            return Err(CommandError::failed(format!(
                "'{}' cannot be annotated{meant}: it is no tool of '{}', or the server annotates it itself; \
                 tools without annotations: {}; annotated in the config: {}",
                line(tool),
                line(server),
                names(unannotated),
                names(correctable)
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
    fn fr_043_only_tools_that_the_server_does_not_annotate_can_be_named_and_each_only_once() {
        let stated = Map::from_iter([("wipe".to_owned(), json!("write"))]);
        let hinted = json!({"name": "s:hinted", "annotations": {"readOnlyHint": false}});
        let annotated = vec![
            hinted.clone(),
            json!({"name": "s:wipe", "annotations": {"readOnlyHint": true}}),
            json!({"name": "s:by_pattern", "annotations": {"title": "t"}}),
        ];
        let correctable = correctable(annotated, &stated);
        let given = |read: &[&str], write: &[&str]| {
            let owned = |names: &[&str]| names.iter().map(|it| (*it).to_owned()).collect();
            let given = answers(owned(read), owned(write), Vec::new());
            check("s", &tools(), &correctable, &given).map_err(|error| error.message)
        };
        assert_eq!(given(&["query", "wipe"], &["put", "drop", "by_pattern"]), Ok(()));
        for unknown in ["other", "hinted"] {
            let expected = format!(
                "'{unknown}' cannot be annotated: it is no tool of 's', or the server annotates it itself; \
                 tools without annotations: query, drop, put; annotated in the config: wipe, by_pattern"
            );
            assert_eq!(given(&[unknown], &[]), Err(expected));
        }
        assert_eq!(given(&["query"], &["query"]), Err("'query' is named twice".to_owned()));
    }

    #[test]
    fn fr_043_change_shows_a_corrected_answer_beside_the_earlier_one() {
        let given = answers(vec!["query".to_owned()], Vec::new(), vec!["wipe".to_owned()]);
        let before = Map::from_iter([("wipe".to_owned(), json!("write"))]);
        let shown = change_of("s", "c.json", &given, &before);
        let expected =
            "capabilities of 's' to c.json:\n  query: read\n  wipe: write → destructive\n";
        assert_eq!(shown, expected);
    }

    #[test]
    fn fr_043_server_without_known_tools_is_reported_with_the_command_that_helps() {
        for (state, command) in [
            (Some("failed"), "the server is failed: `mcpproxy upstream restart 'a b'`"),
            (Some("connecting"), "the server is connecting: `mcpproxy upstream restart 'a b'`"),
            (Some("disabled"), "the server is disabled: `mcpproxy upstream enable 'a b'`"),
            (Some("needs-login"), "the server needs a login: `mcpproxy upstream login 'a b'`"),
            (None, "no mcpproxy is running: `mcpproxy serve` starts the server and reads them"),
        ] {
            assert_eq!(recovery("a b", state), command);
            assert!(nothing_to_ask("a b", 3, true, state).ends_with(command), "{state:?}");
        }
        assert_eq!(nothing_to_ask("s", 0, true, Some(CONNECTED)), "'s' has no tools.");
        let whole = nothing_to_ask("s", 3, true, Some(CONNECTED));
        assert!(whole.ends_with(
            "is annotated. To correct an answer: mcpproxy tools annotate s --write TOOL"
        ));
        let by_server = nothing_to_ask("s", 3, false, Some(CONNECTED));
        assert!(
            by_server.contains("by the server") && !by_server.contains("--write"),
            "{by_server}"
        );
    }
}
