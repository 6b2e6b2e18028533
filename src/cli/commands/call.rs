//! `mcpproxy call …`: one tool call with its intent, through the same door as an agent's.
//!
//! The command fills in the operation type (FR-030); whether it fits is not decided here.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::cli::args::{CallArgs, CallCommand, Format};
use crate::cli::backend::Backend;
use crate::cli::error::CommandError;
use crate::cli::json_pointer::{list, text};
use crate::cli::output::{self, Output};
use crate::cli::spinner;
use crate::cli::suggest::{self, Vocabulary, suggesting};
use crate::cli::terminal_safe::{clean, line};
use crate::cli::value_parsers::Arguments;
use crate::intent::Operation;

/// Printed where the result has nothing to show.
const NOTHING: &str = "(the tool answered with no content)";

/// Makes the call and prints its result; an `isError` result is printed and fails.
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
    let body = match request(variant, operation, args) {
        Ok(body) => body,
        Err(mut failure) => {
            // What was typed without its server may be known with it.
            if let (Err(_), Some(meant)) = (name(args), suggest::tool(backend, typed(args)).await) {
                failure.message += &format!("; did you mean {}?", line(&meant));
            }
            return Err(failure);
        }
    };
    let words = || format!("calling {}", typed(args));
    let call = spinner::during(words, backend.post("/api/v1/tools/call", body));
    let result = match args.timeout {
        None => call.await,
        Some(limit) => tokio::time::timeout(limit, call).await.map_err(|_| {
            let name = name(args).unwrap_or_default();
            CommandError::failed(format!("{name}: no answer within {limit:?} (--timeout)"))
        })?,
    };
    let result = suggesting(result, backend, Vocabulary::Tools, typed(args)).await;
    let result = result.map_err(|failure| match output.format {
        Format::Json => failure,
        Format::Yaml | Format::Table => in_words_of_the_shell(failure),
    })?;
    let json = result.json()?;
    match output.format {
        Format::Json => output::write(json.as_bytes())?,
        Format::Yaml | Format::Table => output.print(json, render)?,
    }
    match is_error(json) {
        true => Err(CommandError::failed("the tool answered with an error (isError)")),
        false => Ok(()),
    }
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

/// The REST body; the arguments keep their bytes.
fn request(variant: &str, operation: &str, args: &CallArgs) -> Result<String, CommandError> {
    let arguments = Arguments::read(&args.args).map_err(CommandError::usage)?;
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

/// The tool as it was typed.
fn typed(args: &CallArgs) -> &str {
    args.tool.as_deref().or(args.tool_name.as_deref()).unwrap_or_default()
}

/// A refusal names the call tool that an agent would use: here it is a command.
fn in_words_of_the_shell(mut failure: CommandError) -> CommandError {
    let advised = Operation::ALL
        .into_iter()
        .find(|it| failure.message.ends_with(&format!("use {}", it.variant())));
    if let Some(operation) = advised {
        failure.message += &format!(" (here: mcpproxy call tool-{})", operation.as_str());
    }
    failure
}

fn name(args: &CallArgs) -> Result<&str, CommandError> {
    let name = typed(args);
    match name.split_once(':') {
        Some((server, tool)) if !server.is_empty() && !tool.is_empty() => Ok(name),
        _ => Err(CommandError::usage(format!(
            "'{name}' is not SERVER:TOOL, like files:read_file; `mcpproxy tools list` names them"
        ))),
    }
}

fn is_error(json: &str) -> bool {
    #[derive(Deserialize)]
    struct Flag {
        #[serde(rename = "isError")]
        is_error: Option<bool>,
    }
    serde_json::from_str::<Flag>(json).is_ok_and(|flag| flag.is_error == Some(true))
}

/// A tool result for people: its text, what else there is by name, and the structured content
/// where no text carries it.
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
    let said = blocks.iter().any(|block| text(block, "/type") == "text");
    if let (false, Some(structured)) = (said, result.get("structuredContent")) {
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
    use clap::Parser;

    use super::*;
    use crate::cli::args::{Cli, Command};

    fn typed(words: &[&str]) -> CallArgs {
        let words = ["mcpproxy", "call", "tool-write"].iter().chain(words);
        match Cli::try_parse_from(words).unwrap().command {
            Command::Call(CallCommand::Write(args)) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn fr_030_the_command_fills_in_the_operation_type() {
        let args = typed(&["gh:new", "--args", "{\"n\": 1.0}", "--reason", "why \"so\""]);
        assert_eq!(
            request("call_tool_write", "write", &args).unwrap(),
            r#"{"tool_name":"call_tool_write","arguments":{"name":"gh:new","args":{"n": 1.0}},"intent":{"operation_type":"write","reason":"why \"so\""}}"#
        );
        let args = typed(&["gh:new", "--sensitivity", "private"]);
        let body = request("call_tool_write", "write", &args).unwrap();
        assert!(body.contains(r#""data_sensitivity":"private""#), "{body}");
    }

    #[test]
    fn a_name_without_a_server_is_bad_usage() {
        for bad in ["tool", ":tool", "server:"] {
            let failure = request("call_tool_write", "write", &typed(&[bad])).unwrap_err();
            assert_eq!(failure.exit, crate::cli::exit_code::Exit::Usage);
        }
    }

    #[test]
    fn a_result_is_shown_by_its_text() {
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
    fn an_error_result_is_told_from_a_good_one() {
        assert!(is_error(r#"{"content":[],"isError":true}"#));
        assert!(!is_error(r#"{"content":[],"isError":false}"#));
        assert!(!is_error(r#"{"content":[{"isError":true}]}"#));
    }
}
