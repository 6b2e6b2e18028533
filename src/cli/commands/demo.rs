//! `mcpproxy demo`: five sample calls, each with a different outcome, and the resulting activity log.
//!
//! Only the upstream's behavior is staged. The proxy is the one that `serve` starts, the upstream is a child process
//! reached by the ordinary code, and the agent is an MCP client over streamable HTTP on loopback. The upstream's code
//! is independent of the proxy, because it stands for a third-party server; two of its five tools misbehave on purpose.

use crate::args::Global;
use crate::backend::{Backend, target};
use crate::commands::activity::{RowStyle, folded};
use crate::error::CommandError;
use crate::format::{list, text};
use crate::http_client::{HttpClient, HttpResponse, RequestError, Security};
use crate::output::Colors;
use crate::start_proxy::TemporaryFolder;
use crate::table::{Column, Fit, TableView, cell, draw};
use crate::terminal_safe::clean;
use crate::{logging, output, start_proxy};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method};
use mcpproxy_config as config;
use mcpproxy_config::Flags;
use mcpproxy_protocol::mcp::headers::{PROTOCOL_VERSION, SESSION_ID};
use mcpproxy_protocol::mcp::jsonrpc::Code;
use mcpproxy_protocol::mcp::revisions::{LEGACY, Revision};
use mcpproxy_server as server;
use mcpproxy_server::App;
use mcpproxy_upstream::reaper;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::{BufRead, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

/// Output width: the minimum width of a newcomer's terminal.
const WIDTH: u16 = 80;

/// Indentation of wrapped text.
const INDENT: &str = "     ";

/// Heading of the log. No command is named, because the log is removed with the demo's folder.
const LOG: &str = "The resulting activity log, which is removed with the demo's temporary folder:";

/// Next steps after the demo.
const NEXT: &str = "\
Next: run it in front of your own servers.
  mcpproxy init                             create a config with an API key
  mcpproxy import                           import the servers of your clients
  mcpproxy upstream add NAME -- COMMAND …   or add one
  mcpproxy serve                            run the proxy in front of them
  mcpproxy connect CLIENT                   point your client to it";

/// The demo server's name in the proxy's config.
pub(super) const SERVER: &str = "demo";

/// Outcome of a call as seen by both the agent and the activity log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DemoOutcome {
    /// The server's bytes were forwarded, recorded as a read.
    Read,
    /// The server's bytes were forwarded, recorded as a write.
    Written,
    /// The call was refused before it reached the server.
    Refused,
    /// The result violated its schema and was blocked.
    Violation,
    /// The result exceeded the size limit and was cut off.
    Oversized,
}

/// One call of the demo.
struct Step {
    title: &'static str,
    variant: &'static str,
    operation: &'static str,
    tool: &'static str,
    arguments: Value,
    outcome: DemoOutcome,
    comment: &'static str,
}

fn steps() -> [Step; 5] {
    [
        Step {
            title: "a read",
            variant: "call_tool_read",
            operation: "read",
            tool: "list_notes",
            arguments: json!({}),
            outcome: DemoOutcome::Read,
            comment: "The result conforms to its schema; the server's own bytes were forwarded.",
        },
        Step {
            title: "a write",
            variant: "call_tool_write",
            operation: "write",
            tool: "add_note",
            arguments: json!({"text": "buy milk"}),
            outcome: DemoOutcome::Written,
            comment: "Declared as a write, executed as a write, recorded as a write.",
        },
        Step {
            title: "a read that would delete",
            variant: "call_tool_read",
            operation: "read",
            tool: "wipe_notes",
            arguments: json!({}),
            outcome: DemoOutcome::Refused,
            comment: "The server never saw this call.",
        },
        Step {
            title: "a result that violates its own schema",
            variant: "call_tool_read",
            operation: "read",
            tool: "read_sensor",
            arguments: json!({}),
            outcome: DemoOutcome::Violation,
            comment: "In strict mode the agent receives the violation, not the content.",
        },
        Step {
            title: "a result of 6 MiB",
            variant: "call_tool_read",
            operation: "read",
            tool: "export_all",
            arguments: json!({}),
            outcome: DemoOutcome::Oversized,
            comment: "Stopped while the bytes were arriving, before anything parsed them.",
        },
    ]
}

/// Runs the demo's MCP server until its stdin ends.
pub(super) fn serve_upstream() -> std::io::Result<()> {
    serve_stdio()
}

/// Runs the demo: a proxy with a temporary data directory, an upstream, five calls.
pub(super) fn run(global: &Global) -> Result<(), CommandError> {
    let log = logging::start_quiet(global);
    let folder = TemporaryFolder::new("demo")?;
    let key = start_proxy::random_key()?
        .iter()
        .fold(String::new(), |key, byte| format!("{key}{byte:02x}"));
    let program = std::env::current_exe().map_err(CommandError::failed)?;
    let config = json!({
        "api_key": key,
        "output_validation": {"mode": "strict"},
        "mcpServers": {SERVER: {"command": program, "args": ["demo-upstream"]}},
    });
    let data_dir = Some(folder.path().to_owned());
    let flags = Flags { data_dir, reaper: reaper::this_program(), ..Flags::default() };
    let no_environment = |_: &str| None;
    let (config, _) = config::parse(&config.to_string(), &no_environment, &flags)
        .map_err(start_proxy::unusable)?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(CommandError::failed)?;
    let app = App::start(config, log.handles(), None)
        .map_err(|error| start_proxy::not_started(&error))?;
    let server = app.serve(listener, None).map_err(|error| start_proxy::not_started(&error))?;
    let client = HttpClient::new(server.address().clone(), Security::Plain, &key);
    let runtime = server::local_runtime().map_err(CommandError::failed)?;
    let report = runtime.block_on(run_calls(client));
    // The runtime closes its connections, for which the server would otherwise wait.
    drop(runtime);
    let closed = server.close().map_err(|error| start_proxy::store(&error));
    let report = report?;
    closed?;
    output::write(report.as_bytes())
}

/// Number of checks whether the demo server is connected.
const CHECKS: u32 = 200;
/// Time between two checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Waits until the demo server is connected, so that its start is not part of the first call's duration. A server that
/// is not connected in time makes the first call fail.
async fn until_connected(backend: &Backend) -> Result<(), CommandError> {
    for _ in 0..CHECKS {
        let servers = backend.get(&target(&["servers"], &[])).await?;
        let servers = output::parse(servers.json()?)?;
        if list(&servers, "/servers").iter().any(|server| text(server, "/state") == "connected") {
            break;
        }
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
    Ok(())
}

/// Makes the five calls against a running proxy and renders the report; fails if an outcome is unexpected.
pub(super) async fn run_calls(client: HttpClient) -> Result<String, CommandError> {
    let mut report = format!(
        "mcpproxy demo: five calls through the proxy, five different outcomes\n\n  \
         agent ──MCP over HTTP──▶ mcpproxy {} ──stdio──▶ demo server\n",
        client.authority()
    );
    let failed = |error| CommandError::failed(format!("the demo proxy failed: {error}"));
    let mut agent = McpSession::open(&client).await.map_err(failed)?;
    let backend = Backend::Remote(client);
    until_connected(&backend).await?;
    // Computes the expected bytes independently of the proxy.
    let mut server = DemoServer::new();
    let mut unexpected = Vec::new();
    for (index, step) in steps().iter().enumerate() {
        let arguments = json!({
            "name": format!("{SERVER}:{}", step.tool),
            "args": step.arguments,
            "intent": {"operation_type": step.operation, "reason": "mcpproxy demo"},
        });
        let response = agent.call(step.variant, &arguments).await.map_err(failed)?;
        let direct = match step.outcome {
            DemoOutcome::Refused => None,
            DemoOutcome::Read
            | DemoOutcome::Written
            | DemoOutcome::Violation
            | DemoOutcome::Oversized => server.call(step.tool, &step.arguments),
        };
        let reply = AgentReply::read(&response)?;
        let record = newest(&backend, step.tool).await?;
        let outcome = reply.outcome(direct.as_ref(), &record);
        draw_step(&mut report, index + 1, step, &reply, outcome);
        if outcome != Some(step.outcome) {
            unexpected.push(step.tool);
        }
    }
    draw_activity(&mut report, &backend).await?;
    match unexpected.as_slice() {
        [] => Ok(report),
        unexpected => {
            output::write(report.as_bytes())?;
            Err(CommandError::failed(format!("unexpected outcome: {}", unexpected.join(", "))))
        }
    }
}

/// The reply that the agent received.
#[derive(Debug)]
struct AgentReply {
    /// The tool result's original bytes.
    result: String,
    is_error: bool,
    /// First text block of the result.
    text: String,
}

impl AgentReply {
    fn read(response: &HttpResponse) -> Result<Self, CommandError> {
        #[derive(Deserialize)]
        struct CallReply<'a> {
            #[serde(borrow)]
            result: Option<&'a RawValue>,
        }
        let message: Option<CallReply<'_>> = serde_json::from_slice(&response.body).ok();
        let Some(result) = message.and_then(|message| message.result) else {
            let body = String::from_utf8_lossy(&response.body);
            return Err(CommandError::failed(format!(
                "unexpected response ({}): {body}",
                response.status
            )));
        };
        let value = output::parse(result.get())?;
        Ok(Self {
            result: result.get().to_owned(),
            is_error: value.get("isError") == Some(&Value::Bool(true)),
            text: text(&value, "/content/0/text").into_owned(),
        })
    }

    /// The outcome, if the reply and the record agree on it.
    fn outcome(&self, direct: Option<&Value>, record: &CallRecord) -> Option<DemoOutcome> {
        let forwarded = direct.map(Value::to_string).as_ref() == Some(&self.result);
        match (self.is_error, record.status.as_str()) {
            (false, "success") if forwarded => match record.operation.as_str() {
                "read" => Some(DemoOutcome::Read),
                "write" => Some(DemoOutcome::Written),
                _ => None,
            },
            (true, "rejected") => Some(DemoOutcome::Refused),
            (true, "blocked") if record.guard.is_empty() => Some(DemoOutcome::Violation),
            (true, "blocked") => Some(DemoOutcome::Oversized),
            _ => None,
        }
    }
}

/// Newest call to a tool, as recorded in the activity log.
struct CallRecord {
    status: String,
    operation: String,
    guard: String,
}

async fn newest(backend: &Backend, tool: &str) -> Result<CallRecord, CommandError> {
    let records = backend.get(&target(&["activity"], &[("tool", Some(tool))])).await?;
    let records = output::parse(records.json()?)?;
    let field = |kind: &str, pointer: &str| {
        let mut records = list(&records, "/activities").iter();
        let record = records.find(|record| text(record, "/type") == kind);
        record.map(|record| text(record, pointer).into_owned()).unwrap_or_default()
    };
    Ok(CallRecord {
        status: field("tool_call", "/status"),
        operation: field("tool_call", "/intent/operation_type"),
        guard: field("policy_decision", "/metadata/guard"),
    })
}

fn draw_step(
    report: &mut String,
    number: usize,
    step: &Step,
    reply: &AgentReply,
    outcome: Option<DemoOutcome>,
) {
    let (sign, word) = match outcome {
        Some(DemoOutcome::Read) => ("✔", "read"),
        Some(DemoOutcome::Written) => ("✔", "written"),
        Some(DemoOutcome::Refused) => ("✘", "refused"),
        Some(DemoOutcome::Violation) => ("✘", "blocked: schema"),
        Some(DemoOutcome::Oversized) => ("✘", "blocked: size"),
        None => ("?", "unexpected"),
    };
    let _ = writeln!(report, "\n  {number}. {}", step.title);
    let _ = writeln!(report, "{INDENT}{} → {SERVER}:{}", step.variant, step.tool);
    let _ = writeln!(report, "{INDENT}{sign} {word}");
    let shown = reply.text.lines().collect::<Vec<_>>().join(" · ");
    wrap(report, &format!("“{}”", clean(&shown)));
    wrap(report, step.comment);
}

async fn draw_activity(report: &mut String, backend: &Backend) -> Result<(), CommandError> {
    let found = backend.get(&target(&["activity"], &[("server", Some(SERVER))])).await?;
    let found = output::parse(found.json()?)?;
    let _ = writeln!(report, "\n{LOG}\n");
    for line in activity_table(&found).lines() {
        let _ = writeln!(report, "  {line}");
    }
    let _ = writeln!(report, "\n{NEXT}");
    Ok(())
}

/// Table of the calls, oldest first, without the columns that are the same in every row.
fn activity_table(found: &Value) -> String {
    let style = RowStyle::plain_for_people();
    let rows: Vec<_> = folded(found)
        .into_iter()
        .filter(|(record, _)| text(record, "/type") == "tool_call")
        .map(|(record, decisions)| {
            let mut cells = style.row(record, &decisions);
            // All tools are those of the demo server.
            if let Some(tool) = cells.get_mut(3) {
                *tool = cell(&text(record, "/tool_name")).into();
            }
            [3, 4, 5, 6, 8].map(|at| cells.get(at).cloned().unwrap_or_default()).to_vec()
        })
        .rev()
        .collect();
    let columns = Column::all([
        ("TOOL", Fit::Whole),
        ("INTENT", Fit::Rank(2)),
        ("STATUS", Fit::Whole),
        ("DURATION", Fit::Rank(1)),
        ("REASON", Fit::Below),
    ]);
    let columns = Column::with_numbers(columns, &["DURATION"]);
    let view = TableView { width: Some(usize::from(WIDTH) - 2), colors: Colors::Plain };
    draw(&columns, rows, view)
}

/// Wraps and indents text.
fn wrap(report: &mut String, text: &str) {
    let max_width = usize::from(WIDTH) - INDENT.len();
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > max_width {
            let _ = writeln!(report, "{INDENT}{line}");
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    let _ = writeln!(report, "{INDENT}{line}");
}

/// Protocol revision used by the demo.
const MCP_REVISION: &str = Revision::June2025.name();

/// An open MCP session.
#[derive(Debug)]
pub(super) struct McpSession {
    client: HttpClient,
    headers: HeaderMap,
    /// Id of the last request.
    last_id: u64,
}

impl McpSession {
    /// Performs the `initialize` handshake in the way an agent does, without the API key.
    pub(super) async fn open(server: &HttpClient) -> Result<Self, RequestError> {
        let headers = HeaderMap::from_iter([
            (CONTENT_TYPE, HeaderValue::from_static("application/json")),
            (ACCEPT, HeaderValue::from_static("application/json, text/event-stream")),
        ]);
        let mut session = Self { client: server.without_key(), headers, last_id: 0 };
        session.headers.insert(PROTOCOL_VERSION, HeaderValue::from_static(MCP_REVISION));
        let client = serde_json::json!({
            "protocolVersion": MCP_REVISION, "capabilities": {},
            "clientInfo": {"name": "mcpproxy-demo", "version": env!("CARGO_PKG_VERSION")},
        });
        let response = session.request("initialize", &client).await?;
        if let Some(id) = response.headers.get(SESSION_ID) {
            session.headers.insert(SESSION_ID, id.clone());
        }
        let ready = serde_json::json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        session.post(ready.to_string()).await?;
        Ok(session)
    }

    /// Sends a `tools/call`; the response body is the original JSON-RPC message.
    pub(super) async fn call(
        &mut self,
        tool: &str,
        arguments: &serde_json::Value,
    ) -> Result<HttpResponse, RequestError> {
        let params = serde_json::json!({"name": tool, "arguments": arguments});
        self.request("tools/call", &params).await
    }

    async fn request(
        &mut self,
        method: &str,
        params: &serde_json::Value,
    ) -> Result<HttpResponse, RequestError> {
        self.last_id += 1;
        let message = serde_json::json!({
            "jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params,
        });
        self.post(message.to_string()).await
    }

    async fn post(&self, message: String) -> Result<HttpResponse, RequestError> {
        let headers = self.headers.clone();
        self.client.send(Method::POST, "/mcp", headers, message.into()).await?.buffered().await
    }
}

/// Revision offered to clients that request an unknown revision.
const REVISION: &str = Revision::June2025.name();

/// Size of one exported row in bytes.
const ROW_BYTES: usize = 1024;

/// Number of exported rows: 6 MiB in total, which exceeds the proxy's default limit of 5 MiB.
const ROWS: usize = 6 * 1024;

/// Answers one request per line until stdin ends.
pub(super) fn serve_stdio() -> std::io::Result<()> {
    let mut server = DemoServer::new();
    let mut stdout = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        if let Some(response) = server.message(&line?) {
            writeln!(stdout, "{response}")?;
            stdout.flush()?;
        }
    }
    Ok(())
}

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

    /// Responds to a message; `None` for notifications and invalid requests.
    fn message(&mut self, line: &str) -> Option<String> {
        let request: Request<'_> = serde_json::from_str(line).ok()?;
        let id = request.id?.get();
        let result = match request.method.as_str() {
            "initialize" => Some(initialize_result(&request.params)),
            "ping" => Some(json!({})),
            "tools/list" => Some(json!({"tools": demo_tools()})),
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

    /// Result of a tool call; `None` if the tool does not exist.
    pub(super) fn call(&mut self, tool: &str, arguments: &Value) -> Option<Value> {
        Some(match tool {
            "list_notes" => tool_result(
                &self.notes.join("\n"),
                &json!({"notes": self.notes, "source": "memory"}),
            ),
            "add_note" => {
                let note = arguments.get("text").and_then(Value::as_str).unwrap_or_default();
                self.notes.push(note.to_owned());
                tool_result("Noted.", &json!({"count": self.notes.len()}))
            }
            "wipe_notes" => {
                self.notes.clear();
                tool_result("All notes are gone.", &json!({"count": 0}))
            }
            // The tool declares a number but returns a string.
            "read_sensor" => tool_result("It is warm.", &json!({"celsius": "warm"})),
            // The result exceeds the size limit.
            "export_all" => {
                let rows = vec!["x".repeat(ROW_BYTES); ROWS];
                tool_result("Here is everything.", &json!({"rows": rows}))
            }
            _ => return None,
        })
    }
}

fn initialize_result(params: &Value) -> Value {
    let asked = params.get("protocolVersion").and_then(Value::as_str).unwrap_or(REVISION);
    let revision = if LEGACY.contains(&asked) { asked } else { REVISION };
    json!({
        "protocolVersion": revision,
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "mcpproxy-demo", "version": env!("CARGO_PKG_VERSION")},
    })
}

fn tool_result(text: &str, structured: &Value) -> Value {
    json!({"content": [{"type": "text", "text": text}], "structuredContent": structured})
}

fn demo_tools() -> Value {
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
            "description": "Read the temperature (in violation of the output schema).",
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

    fn reply(result: &Value) -> AgentReply {
        let body = json!({"jsonrpc": "2.0", "id": 1, "result": result}).to_string();
        let headers = http::HeaderMap::new();
        let response = HttpResponse { status: http::StatusCode::OK, headers, body: body.into() };
        AgentReply::read(&response).unwrap()
    }

    #[test]
    fn outcome_is_valid_only_if_reply_and_record_agree() {
        let good = json!({"content": [{"type": "text", "text": "hi"}]});
        let bad = json!({"content": [{"type": "text", "text": "no"}], "isError": true});
        let outcome =
            |result: &Value, direct: Option<&Value>, [status, operation, guard]: [&str; 3]| {
                let [status, operation, guard] = [status, operation, guard].map(str::to_owned);
                reply(result).outcome(direct, &CallRecord { status, operation, guard })
            };
        let ours = Some(&good);
        assert_eq!(outcome(&good, ours, ["success", "read", ""]), Some(DemoOutcome::Read));
        assert_eq!(outcome(&good, ours, ["success", "write", ""]), Some(DemoOutcome::Written));
        assert_eq!(outcome(&good, Some(&bad), ["success", "read", ""]), None, "other bytes");
        assert_eq!(outcome(&good, ours, ["error", "read", ""]), None, "another record");
        assert_eq!(outcome(&bad, None, ["rejected", "read", ""]), Some(DemoOutcome::Refused));
        assert_eq!(outcome(&bad, ours, ["blocked", "read", ""]), Some(DemoOutcome::Violation));
        assert_eq!(outcome(&bad, ours, ["blocked", "read", "bytes"]), Some(DemoOutcome::Oversized));
        assert_eq!(outcome(&bad, Some(&bad), ["success", "read", ""]), None);
    }

    #[test]
    fn demo_report_fits_80_columns() {
        let long = "output schema validation failed: ".repeat(6);
        let mut report = String::new();
        for (index, step) in steps().iter().enumerate() {
            let reply = reply(&json!({"content": [{"type": "text", "text": long}]}));
            draw_step(&mut report, index + 1, step, &reply, Some(step.outcome));
        }
        for line in report.lines().chain(NEXT.lines()) {
            assert!(line.chars().count() <= usize::from(WIDTH), "{line}");
        }
    }

    #[test]
    fn reasons_of_the_demo_table_are_complete() {
        let decision = |call: &str, guard: &str, place: &str, schema_path: &str| {
            json!({"id": format!("d{call}"), "type": "policy_decision", "parent_id": call, "status": "blocked",
                "metadata": {"policy": "output_validation", "reason": "at '/celsius': want number, but got string",
                    "guard": guard, "instance_path": place, "schema_path": schema_path}})
        };
        let call = |id: &str, tool: &str, status: &str, why: &str| {
            json!({"id": id, "type": "tool_call", "server_name": SERVER, "tool_name": tool, "status": status,
                "error_message": why, "duration_ms": 90, "metadata": {"operation": "read"}})
        };
        let failed = "output schema validation failed:";
        let found = json!({"activities": [
            decision("3", "max_bytes", "", ""),
            call("3", "export_all", "blocked", &format!("{failed} structuredContent is larger than max_bytes 5242880")),
            decision("2", "", "/celsius", "/properties/celsius/type"),
            call("2", "read_sensor", "blocked",
                &format!("{failed} type at '/properties/celsius/type': expected number, got string")),
            call("1", "wipe_notes", "rejected",
                "Tool 'demo:wipe_notes' is marked destructive by server, use call_tool_destructive"),
        ]});
        let table = activity_table(&found);
        let expected = "\
TOOL         INTENT  STATUS    DURATION
wipe_notes   read    rejected      90ms
    the tool is marked destructive by server, use call_tool_destructive
read_sensor  read    blocked       90ms
    schema: /celsius: expected number, got string
export_all   read    blocked       90ms
    size: over 5242880 bytes (max_bytes)
";
        assert_eq!(table, expected);
    }

    #[test]
    fn five_outcomes_of_the_demo_differ() {
        let steps = steps();
        for (index, step) in steps.iter().enumerate() {
            let later = steps.get(index + 1..).unwrap_or_default();
            assert!(later.iter().all(|other| other.outcome != step.outcome), "{:?}", step.outcome);
        }
    }

    fn response(line: &str) -> Value {
        serde_json::from_str(&DemoServer::new().message(line).unwrap()).unwrap()
    }

    #[test]
    fn initialize_succeeds_and_ids_are_kept() {
        let hello = response(
            r#"{"jsonrpc":"2.0","id":"a-1","method":"initialize","params":{"protocolVersion":"2025-11-25"}}"#,
        );
        assert_eq!(hello["id"], "a-1");
        assert_eq!(hello["result"]["protocolVersion"], "2025-11-25");
        let unknown = response(r#"{"jsonrpc":"2.0","id":7,"method":"server/discover"}"#);
        assert_eq!(unknown["error"]["code"], -32601);
        let silent = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        assert_eq!(DemoServer::new().message(silent), None);
        assert_eq!(DemoServer::new().message("not json"), None);
    }

    #[test]
    fn every_demo_tool_answers_and_two_tools_misbehave() {
        let mut server = DemoServer::new();
        let arguments = json!({"text": "buy milk"});
        for tool in demo_tools().as_array().unwrap() {
            let name = tool["name"].as_str().unwrap();
            let result = server.call(name, &arguments).unwrap();
            let content = &result["structuredContent"];
            let schema = &tool["outputSchema"];
            let behaves_as_designed = match name {
                "read_sensor" => !content["celsius"].is_number(),
                "export_all" => content.to_string().len() > 5 * 1024 * 1024,
                _ => schema["required"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .all(|key| content.get(key.as_str().unwrap()).is_some()),
            };
            assert!(behaves_as_designed, "{name}: {content}");
        }
        assert!(server.call("nothing", &Value::Null).is_none());
    }
}
