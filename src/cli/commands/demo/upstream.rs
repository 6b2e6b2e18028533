//! The demo's MCP server: five tools over stdio, two of which misbehave on purpose.
//!
//! Written plainly, with no code of the proxy: it stands for somebody else's server. It keeps its
//! notes in memory and touches nothing.

use std::io::{BufRead, Write};

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::mcp::jsonrpc::Code;
use crate::mcp::revisions::{LEGACY, Revision};

/// The revision answered to clients that ask for one we do not know.
const REVISION: &str = Revision::June2025.name();

/// Size of one exported row.
const ROW_BYTES: usize = 1024;

/// Rows of the export: 6 MiB in all, above the proxy's default bound of 5 MiB.
const ROWS: usize = 6 * 1024;

/// Answers one request per line until stdin ends.
pub(super) fn run() -> std::io::Result<()> {
    let mut server = DemoServer::new();
    let mut stdout = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        if let Some(answer) = server.message(&line?) {
            writeln!(stdout, "{answer}")?;
            stdout.flush()?;
        }
    }
    Ok(())
}

/// The server's state.
#[derive(Debug)]
pub(super) struct DemoServer {
    notes: Vec<String>,
}

#[derive(Deserialize)]
struct Request<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    method: String,
    #[serde(default)]
    params: Value,
}

impl DemoServer {
    pub(super) fn new() -> Self {
        Self { notes: vec!["water the plants".to_owned(), "call Ada".to_owned()] }
    }

    /// The answer to one message; notifications and what is not a request get none.
    fn message(&mut self, line: &str) -> Option<String> {
        let request: Request<'_> = serde_json::from_str(line).ok()?;
        let id = request.id?.get();
        let result = match request.method.as_str() {
            "initialize" => Some(initialize(&request.params)),
            "ping" => Some(json!({})),
            "tools/list" => Some(json!({"tools": tools()})),
            "tools/call" => {
                let name = request.params.get("name").and_then(Value::as_str).unwrap_or_default();
                self.call(name, request.params.get("arguments").unwrap_or(&Value::Null))
            }
            _ => None,
        };
        Some(match result {
            Some(result) => format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#),
            None => {
                let error = json!({"code": Code::MethodNotFound as i32, "message": "no such method or tool"});
                format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#)
            }
        })
    }

    /// The result of one tool; `None` if there is no such tool.
    pub(super) fn call(&mut self, tool: &str, arguments: &Value) -> Option<Value> {
        Some(match tool {
            "list_notes" => {
                result(&self.notes.join("\n"), &json!({"notes": self.notes, "source": "memory"}))
            }
            "add_note" => {
                let note = arguments.get("text").and_then(Value::as_str).unwrap_or_default();
                self.notes.push(note.to_owned());
                result("Noted.", &json!({"count": self.notes.len()}))
            }
            "wipe_notes" => {
                self.notes.clear();
                result("All notes are gone.", &json!({"count": 0}))
            }
            // Declares a number and answers a word.
            "read_sensor" => result("It is warm.", &json!({"celsius": "warm"})),
            // Answers more than anyone should take in.
            "export_all" => {
                let rows = vec!["x".repeat(ROW_BYTES); ROWS];
                result("Here is everything.", &json!({"rows": rows}))
            }
            _ => return None,
        })
    }
}

fn initialize(params: &Value) -> Value {
    let asked = params.get("protocolVersion").and_then(Value::as_str).unwrap_or(REVISION);
    let revision = if LEGACY.contains(&asked) { asked } else { REVISION };
    json!({
        "protocolVersion": revision,
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "mcpproxy-demo", "version": env!("CARGO_PKG_VERSION")},
    })
}

fn result(text: &str, structured: &Value) -> Value {
    json!({"content": [{"type": "text", "text": text}], "structuredContent": structured})
}

fn tools() -> Value {
    let object = |properties: Value| {
        let required: Vec<&String> =
            properties.as_object().into_iter().flat_map(|p| p.keys()).collect();
        json!({"type": "object", "properties": properties, "required": required})
    };
    let count = object(json!({"count": {"type": "integer", "minimum": 0}}));
    let strings = json!({"type": "array", "items": {"type": "string"}});
    json!([
        {
            "name": "list_notes",
            "description": "List all notes.",
            "inputSchema": {"type": "object"},
            "outputSchema": object(json!({"notes": strings})),
            "annotations": {"readOnlyHint": true},
        },
        {
            "name": "add_note",
            "description": "Add a note.",
            "inputSchema": object(json!({"text": {"type": "string"}})),
            "outputSchema": count,
            "annotations": {"readOnlyHint": false, "destructiveHint": false},
        },
        {
            "name": "wipe_notes",
            "description": "Delete every note for good.",
            "inputSchema": {"type": "object"},
            "outputSchema": count,
            "annotations": {"destructiveHint": true},
        },
        {
            "name": "read_sensor",
            "description": "Read the temperature (and break the promise of the output schema).",
            "inputSchema": {"type": "object"},
            "outputSchema": object(json!({"celsius": {"type": "number"}})),
            "annotations": {"readOnlyHint": true},
        },
        {
            "name": "export_all",
            "description": "Export everything: 6 MiB of it.",
            "inputSchema": {"type": "object"},
            "outputSchema": object(json!({"rows": strings})),
            "annotations": {"readOnlyHint": true},
        },
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(line: &str) -> Value {
        serde_json::from_str(&DemoServer::new().message(line).unwrap()).unwrap()
    }

    #[test]
    fn it_shakes_hands_and_keeps_ids() {
        let hello = answer(
            r#"{"jsonrpc":"2.0","id":"a-1","method":"initialize","params":{"protocolVersion":"2025-11-25"}}"#,
        );
        assert_eq!(hello["id"], "a-1");
        assert_eq!(hello["result"]["protocolVersion"], "2025-11-25");
        let unknown = answer(r#"{"jsonrpc":"2.0","id":7,"method":"server/discover"}"#);
        assert_eq!(unknown["error"]["code"], -32601);
        let silent = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        assert_eq!(DemoServer::new().message(silent), None);
        assert_eq!(DemoServer::new().message("not json"), None);
    }

    #[test]
    fn every_tool_answers_and_only_two_misbehave() {
        let mut server = DemoServer::new();
        let arguments = json!({"text": "buy milk"});
        for tool in tools().as_array().unwrap() {
            let name = tool["name"].as_str().unwrap();
            let result = server.call(name, &arguments).unwrap();
            let content = &result["structuredContent"];
            let schema = &tool["outputSchema"];
            let keeps_promise = match name {
                "read_sensor" => !content["celsius"].is_number(),
                "export_all" => content.to_string().len() > 5 * 1024 * 1024,
                _ => schema["required"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .all(|key| content.get(key.as_str().unwrap()).is_some()),
            };
            assert!(keeps_promise, "{name}: {content}");
        }
        assert!(server.call("nothing", &Value::Null).is_none());
    }
}
