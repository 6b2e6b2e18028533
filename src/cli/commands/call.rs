//! `mcpproxy call …`: one tool call with its intent, through the same pipeline as an agent's.
//!
//! The command sets the operation type (FR-030); admission is decided by the proxy.

use crate::args::{Arguments, CallArgs, CallCommand, Format};
use crate::backend::{Backend, target};
use crate::completion::{Vocabulary, suggesting};
use crate::error::CommandError;
use crate::format::{list, text};
use crate::output::Output;
use crate::terminal_safe::{argument, clean, line};
use crate::{completion, logging, output};
use mcpproxy_policy::intent::Operation;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::cell::RefCell;
use std::fmt::Write as _;
use std::io;
use std::io::IsTerminal as _;

/// Clears the current line of a terminal.
const CLEAR_LINE: &str = "\r\u{1b}[K";
/// Printed for an empty result.
const NOTHING: &str = "(the tool returned no content)";

/// Makes the call and prints its result. An `isError` result is printed, and the command fails.
pub(super) async fn run(
    command: &CallCommand,
    backend: &Backend,
    output: &Output,
) -> Result<(), CommandError> {
    let (variant, operation, args) = match command {
        CallCommand::Read(args) => ("call_tool_read", "read", args),
        CallCommand::Write(args) => ("call_tool_write", "write", args),
        CallCommand::Destructive(args) => ("call_tool_destructive", "destructive", args),
    };
    let starting = || format!("starting {}", server(command));
    let started = output::during(starting, backend.started(server(command)));
    within(args, started).await?;
    let schema = input_schema(args, backend).await;
    let body = match request(variant, operation, args, &schema) {
        Ok(body) => body,
        Err(mut failure) => {
            // A name without its server may match a known tool.
            if let (Err(_), Some(meant)) =
                (name(args), completion::tool(backend, typed(args)).await)
            {
                failure.message += &format!("; did you mean {}?", line(&meant));
            }
            return Err(failure);
        }
    };
    let waiting = RefCell::new(None::<String>);
    let message = || match &*waiting.borrow() {
        None => format!("calling {}", typed(args)),
        Some(id) => format!("waiting for approval {id}"),
    };
    let waits = |id: &str| {
        // Replaces the progress line, which is redrawn below.
        let clear = if io::stderr().is_terminal() { CLEAR_LINE } else { "" };
        let id = line(id);
        logging::print_line(format_args!(
            "{clear}waiting for approval {id}; approve with `mcpproxy approvals approve {id}`"
        ));
        waiting.replace(Some(id.into_owned()));
    };
    let call = output::during(message, backend.post_call("/api/v1/tools/call", body, waits));
    let result = within(args, call).await?;
    let result = suggesting(result, backend, Vocabulary::Tools, typed(args)).await;
    let result = result.map_err(|failure| match backend {
        Backend::Local(_) => without_next_attempt(failure),
        Backend::Remote(_) => failure,
    });
    let result = result.map_err(|failure| match output.format {
        Format::Json => failure,
        Format::Yaml | Format::Table => with_command_hint(failure, args),
    })?;
    let json = result.json()?;
    match output.format {
        Format::Json => output::write(output.json(json).as_bytes())?,
        Format::Yaml | Format::Table => output.print(json, render)?,
    }
    match failure_of(json) {
        Some(failure) => Err(CommandError::failed(failure)),
        None => Ok(()),
    }
}

/// Waits for a part of a call, at most for its `--timeout`.
async fn within<T>(args: &CallArgs, part: impl Future<Output = T>) -> Result<T, CommandError> {
    let Some(limit) = args.timeout else { return Ok(part.await) };
    tokio::time::timeout(limit, part).await.map_err(|_| {
        let name = name(args).unwrap_or_default();
        CommandError::failed(format!("{name}: no response within {limit:?} (--timeout)"))
    })
}

#[derive(Serialize)]
struct Body<'a> {
    tool_name: &'a str,
    arguments: Inner<'a>,
    intent: Intent<'a>,
}

#[derive(Serialize)]
struct Inner<'a> {
    name: &'a str,
    args: &'a RawValue,
}

#[derive(Serialize)]
struct Intent<'a> {
    operation_type: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_sensitivity: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

/// Input schema of the called tool, needed for arguments given as text; null if it is not known.
async fn input_schema(args: &CallArgs, backend: &Backend) -> Value {
    let (false, Ok(name)) = (args.pairs.is_empty(), name(args)) else { return Value::Null };
    let tool = backend.get(&target(&["tools", name], &[])).await;
    let tool = tool.and_then(|tool| output::parse(tool.json()?)).unwrap_or_default();
    tool.pointer("/tool/inputSchema").cloned().unwrap_or_default()
}

/// Builds the REST body; arguments given as JSON keep their original bytes.
fn request(
    variant: &str,
    operation: &str,
    args: &CallArgs,
    schema: &Value,
) -> Result<String, CommandError> {
    let arguments = match &*args.pairs {
        [] => Arguments::read(&args.args),
        pairs => Arguments::of_pairs(pairs, schema),
    };
    let arguments = arguments.map_err(CommandError::usage)?;
    let body = Body {
        tool_name: variant,
        arguments: Inner { name: name(args)?, args: arguments.raw() },
        intent: Intent {
            operation_type: operation,
            data_sensitivity: args.sensitivity.as_deref(),
            reason: args.reason.as_deref(),
        },
    };
    serde_json::to_string(&body).map_err(CommandError::usage)
}

/// Returns the server that a call needs; empty if the name does not include one.
pub(super) fn server(command: &CallCommand) -> &str {
    let (CallCommand::Read(args) | CallCommand::Write(args) | CallCommand::Destructive(args)) =
        command;
    typed(args).split_once(':').map_or("", |(server, _)| server)
}

/// The tool name as given on the command line.
fn typed(args: &CallArgs) -> &str {
    args.tool.as_deref().or(args.tool_name.as_deref()).unwrap_or_default()
}

/// Adds the command that is the next step to a refusal: the one for the call tool that an agent would use, for a disabled
/// server, or for arguments that do not fit.
fn with_command_hint(mut failure: CommandError, args: &CallArgs) -> CommandError {
    let tool = typed(args);
    let advised = Operation::ALL
        .into_iter()
        .find(|it| failure.message.ends_with(&format!("use {}", it.variant())));
    let server = tool.split(':').next().unwrap_or_default();
    if let Some(operation) = advised {
        failure.message += &format!(" (here: mcpproxy call tool-{})", operation.as_str());
    } else if failure.message.ends_with(IS_DISABLED) {
        failure.message += &format!(": `mcpproxy upstream enable {}`", argument(server));
    } else if failure.message.contains(NOT_CONNECTED) {
        failure.message += "; `mcpproxy doctor` shows its last output and the next step";
    } else if failure.message.contains(DO_NOT_FIT) {
        let is_text = ["array", "object"]
            .iter()
            .any(|kind| failure.message.contains(&format!("expected {kind} (got string)")));
        if is_text && !args.pairs.is_empty() {
            failure.message += "; a list or an object is written as JSON, like KEY:='[\"a\"]'";
        }
        failure.message += &format!("; `mcpproxy tools show {}` shows its schema", argument(tool));
    }
    failure
}

/// Removes the announcement of a further connection attempt, before which this process ends.
fn without_next_attempt(mut failure: CommandError) -> CommandError {
    if let Some(at) = failure.message.find(NEXT_ATTEMPT) {
        failure.message.truncate(at);
    }
    failure
}

/// Beginning of the announcement of a further connection attempt.
const NEXT_ATTEMPT: &str = "; a connection was just attempted, ";

/// End of the refusal of a call to a disabled server.
const IS_DISABLED: &str = "the server is disabled";

/// Words of the failure of a call whose server is not connected.
const NOT_CONNECTED: &str = "the server is not connected: ";

/// Words of the refusal of arguments that violate the tool's schema.
const DO_NOT_FIT: &str = " do not fit: ";

fn name(args: &CallArgs) -> Result<&str, CommandError> {
    let name = typed(args);
    match name.split_once(':') {
        Some((server, tool)) if !server.is_empty() && !tool.is_empty() => Ok(name),
        _ => Err(CommandError::usage(format!(
            "'{name}' is not SERVER:TOOL, like files:read_file; `mcpproxy tools list` names them"
        ))),
    }
}

/// Beginning of the text that replaces a withheld result.
const WITHHELD: &str = "output schema validation failed: ";

/// Message for a result with `isError`; `None` for any other result.
fn failure_of(json: &str) -> Option<&'static str> {
    let result: Value = serde_json::from_str(json).ok()?;
    let is_error = result.pointer("/isError") == Some(&Value::Bool(true));
    is_error.then(|| match text(&result, "/content/0/text").starts_with(WITHHELD) {
        true => "mcpproxy withheld the result: `mcpproxy activity show last` shows the violation",
        false => "the tool returned an error (isError)",
    })
}

/// Renders a tool result: text, placeholders for other blocks, and the structured content if there is no text.
fn render(result: &Value) -> String {
    let mut shown = String::new();
    let blocks = list(result, "/content");
    for block in blocks {
        let line = match text(block, "/type").as_ref() {
            "text" => text(block, "/text").into_owned(),
            "resource" => format!("[resource {}]", text(block, "/resource/uri")),
            "resource_link" => format!("[resource {}]", text(block, "/uri")),
            other => {
                let size = text(block, "/data").len();
                format!("[{other} {}, {size} bytes of base64]", text(block, "/mimeType"))
            }
        };
        let _ = writeln!(shown, "{}", clean(&line));
    }
    let has_text = blocks.iter().any(|block| text(block, "/type") == "text");
    if let (false, Some(structured)) = (has_text, result.get("structuredContent")) {
        let pretty = serde_json::to_string_pretty(structured).unwrap_or_default();
        let _ = writeln!(shown, "{}", clean(&pretty));
    }
    match shown.is_empty() {
        true => NOTHING.to_owned(),
        false => shown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;

    fn typed(words: &[&str]) -> CallArgs {
        let words = ["mcpproxy", "call", "tool-write"].iter().chain(words);
        match Cli::try_parse_from(words).unwrap().command {
            Command::Call(CallCommand::Write(args)) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn fr_030_command_sets_the_operation_type() {
        let args = typed(&["gh:new", "--args", "{\"n\": 1.0}", "--reason", "why \"so\""]);
        assert_eq!(
            request("call_tool_write", "write", &args, &Value::Null).unwrap(),
            r#"{"tool_name":"call_tool_write","arguments":{"name":"gh:new","args":{"n": 1.0}},"intent":{"operation_type":"write","reason":"why \"so\""}}"#
        );
        let args = typed(&["gh:new", "--sensitivity", "private"]);
        let body = request("call_tool_write", "write", &args, &Value::Null).unwrap();
        assert!(body.contains(r#""data_sensitivity":"private""#), "{body}");
    }

    #[test]
    fn tool_name_without_server_is_a_usage_error() {
        for bad in ["tool", ":tool", "server:"] {
            let failure =
                request("call_tool_write", "write", &typed(&[bad]), &Value::Null).unwrap_err();
            assert_eq!(failure.exit, crate::error::Exit::Usage);
        }
    }

    #[test]
    fn result_is_rendered_as_text() {
        let result = serde_json::json!({
            "content": [
                {"type": "text", "text": "hello\u{1b}[2J"},
                {"type": "image", "mimeType": "image/png", "data": "AAAA"},
            ],
            "structuredContent": {"x": 1},
        });
        assert_eq!(render(&result), "hello\\u{1b}[2J\n[image image/png, 4 bytes of base64]\n");
        let result = serde_json::json!({"content": [], "structuredContent": {"x": 1}});
        assert_eq!(render(&result), "{\n  \"x\": 1\n}\n");
        assert_eq!(render(&serde_json::json!({"content": []})), NOTHING);
    }

    #[test]
    fn next_attempt_of_a_process_that_ends_is_not_announced() {
        let failure = |text: &str| without_next_attempt(CommandError::failed(text)).message;
        let attempt = "s: the server is not connected: no; a connection was just attempted, the next attempt is in 2s";
        assert_eq!(failure(attempt), "s: the server is not connected: no");
        assert_eq!(failure("Tool 's:x' not found"), "Tool 's:x' not found");
    }

    #[test]
    fn error_results_are_detected() {
        let failure = |json: &str| failure_of(json).unwrap_or_default();
        assert!(failure(r#"{"content":[],"isError":true}"#).starts_with("the tool returned"));
        assert_eq!(failure(r#"{"content":[],"isError":false}"#), "");
        assert_eq!(failure(r#"{"content":[{"isError":true}]}"#), "");
        let withheld = r#"{"content":[{"type":"text","text":"output schema validation failed: x"}],"isError":true}"#;
        assert!(failure(withheld).starts_with("mcpproxy withheld the result"));
    }
}
