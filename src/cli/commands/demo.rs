//! `mcpproxy demo`: five calls with five different fates, and the record they leave.
//!
//! Only the upstream's behaviour is staged: the proxy is the one `serve` starts, the upstream a
//! child process reached by the ordinary code, the agent an MCP client on a loopback socket.

mod mcp_session;
mod upstream;

use std::fmt::Write as _;
use std::net::{Ipv4Addr, TcpListener};

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use self::mcp_session::McpSession;
use self::upstream::DemoServer;
use super::activity::{RowStyle, folded};
use crate::cli::args::Global;
use crate::cli::backend::{Backend, target};
use crate::cli::colours::Colours;
use crate::cli::error::CommandError;
use crate::cli::http_client::{HttpAnswer, HttpClient, Security};
use crate::cli::json_pointer::{list, text};
use crate::cli::table::{Column, Fit, TableView, draw};
use crate::cli::temporary_folder::TemporaryFolder;
use crate::cli::terminal_safe::clean;
use crate::cli::{load_config, logging, output, start_proxy};
use crate::config::{self, Flags};
use crate::server::{self, App};
use crate::upstream::reaper;

/// The width the demo is drawn for: what a newcomer's terminal has at least.
const WIDTH: u16 = 80;

/// How far a refusal is indented, and how wide its lines are.
const INDENT: &str = "     ";

/// What is to be done next.
const NEXT: &str = "\
Next: put it before your own servers.
  mcpproxy import                           take over those of your clients
  mcpproxy upstream add NAME -- COMMAND …   or add one
  mcpproxy serve                            run the proxy before them
  mcpproxy connect CLIENT                   tell your client where it is";

/// The demo server's name in the proxy's config.
pub(super) const SERVER: &str = "demo";

/// What became of a call, as far as the agent and the record can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// The server's own bytes came through, recorded as a read.
    Read,
    /// The server's own bytes came through, recorded as a write.
    Written,
    /// It never reached the server.
    Refused,
    /// The answer broke its schema and was not let in.
    Violation,
    /// The answer was too large and was cut off.
    Oversized,
}

/// One call of the demo.
struct Step {
    title: &'static str,
    variant: &'static str,
    operation: &'static str,
    tool: &'static str,
    arguments: Value,
    fate: Fate,
    moral: &'static str,
}

fn steps() -> [Step; 5] {
    [
        Step {
            title: "a read",
            variant: "call_tool_read",
            operation: "read",
            tool: "list_notes",
            arguments: json!({}),
            fate: Fate::Read,
            moral: "The answer kept its schema; the server's own bytes were forwarded.",
        },
        Step {
            title: "a write",
            variant: "call_tool_write",
            operation: "write",
            tool: "add_note",
            arguments: json!({"text": "buy milk"}),
            fate: Fate::Written,
            moral: "Stated as a write, made as a write, recorded as a write.",
        },
        Step {
            title: "a read that would delete",
            variant: "call_tool_read",
            operation: "read",
            tool: "wipe_notes",
            arguments: json!({}),
            fate: Fate::Refused,
            moral: "The server never saw this call.",
        },
        Step {
            title: "an answer that breaks its own schema",
            variant: "call_tool_read",
            operation: "read",
            tool: "read_sensor",
            arguments: json!({}),
            fate: Fate::Violation,
            moral: "The agent was told what is wrong, not what the answer said.",
        },
        Step {
            title: "an answer of 6 MiB",
            variant: "call_tool_read",
            operation: "read",
            tool: "export_all",
            arguments: json!({}),
            fate: Fate::Oversized,
            moral: "Stopped while the bytes came in, before anything parsed them.",
        },
    ]
}

/// Runs the demo's MCP server, until its stdin ends.
pub(super) fn serve_upstream() -> std::io::Result<()> {
    upstream::run()
}

/// Runs the demo: a proxy with a throw-away store, an upstream, five calls.
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
        .map_err(load_config::unusable)?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(CommandError::failed)?;
    let app = App::start(config, log.handles(), None)
        .map_err(|error| start_proxy::not_started(&error))?;
    let server = app.serve(listener, None).map_err(|error| start_proxy::not_started(&error))?;
    let client = HttpClient::new(server.address().clone(), Security::Plain, &key);
    let runtime = server::local_runtime().map_err(CommandError::failed)?;
    let story = runtime.block_on(tell(client));
    // Its connections, too: the server waits for open ones.
    drop(runtime);
    let closed = server.close().map_err(|error| start_proxy::store(&error));
    let story = story?;
    closed?;
    output::write(story.as_bytes())
}

/// Makes the five calls against a running proxy and tells the story; fails if a fate is another
/// than expected.
pub(super) async fn tell(client: HttpClient) -> Result<String, CommandError> {
    let mut story = format!(
        "mcpproxy demo: five calls through the proxy, five different fates\n\n  \
         agent ──MCP over HTTP──▶ mcpproxy {} ──stdio──▶ demo server\n",
        client.authority()
    );
    let lost = |error| CommandError::failed(format!("the demo lost its proxy: {error}"));
    let mut agent = McpSession::open(&client).await.map_err(lost)?;
    let backend = Backend::Remote(client);
    // What the server answers, computed beside the proxy: the bytes to compare with.
    let mut server = DemoServer::new();
    let mut odd = Vec::new();
    for (index, step) in steps().iter().enumerate() {
        let arguments = json!({
            "name": format!("{SERVER}:{}", step.tool),
            "args": step.arguments,
            "intent": {"operation_type": step.operation, "reason": "mcpproxy demo"},
        });
        let answer = agent.call(step.variant, &arguments).await.map_err(lost)?;
        let direct = match step.fate {
            Fate::Refused => None,
            Fate::Read | Fate::Written | Fate::Violation | Fate::Oversized => {
                server.call(step.tool, &step.arguments)
            }
        };
        let told = Told::read(&answer)?;
        let record = newest(&backend, step.tool).await?;
        let fate = told.fate(direct.as_ref(), &record);
        draw_step(&mut story, index + 1, step, &told, fate);
        if fate != Some(step.fate) {
            odd.push(step.tool);
        }
    }
    draw_activity(&mut story, &backend).await?;
    match odd.as_slice() {
        [] => Ok(story),
        odd => {
            output::write(story.as_bytes())?;
            Err(CommandError::failed(format!("not the expected fate: {}", odd.join(", "))))
        }
    }
}

/// What the agent was told.
#[derive(Debug)]
struct Told {
    /// The tool result's bytes.
    result: String,
    is_error: bool,
    /// Its first text block.
    text: String,
}

impl Told {
    fn read(answer: &HttpAnswer) -> Result<Self, CommandError> {
        #[derive(Deserialize)]
        struct CallReply<'a> {
            #[serde(borrow)]
            result: Option<&'a RawValue>,
        }
        let message: Option<CallReply<'_>> = serde_json::from_slice(&answer.body).ok();
        let Some(result) = message.and_then(|message| message.result) else {
            let body = String::from_utf8_lossy(&answer.body);
            return Err(CommandError::failed(format!(
                "not a tool result ({}): {body}",
                answer.status
            )));
        };
        let value = output::parse(result.get())?;
        Ok(Self {
            result: result.get().to_owned(),
            is_error: value.get("isError") == Some(&Value::Bool(true)),
            text: text(&value, "/content/0/text").into_owned(),
        })
    }

    /// The fate, if agent and record agree on it.
    fn fate(&self, direct: Option<&Value>, record: &Recorded) -> Option<Fate> {
        let forwarded = direct.map(Value::to_string).as_ref() == Some(&self.result);
        match (self.is_error, record.status.as_str()) {
            (false, "success") if forwarded => match record.operation.as_str() {
                "read" => Some(Fate::Read),
                "write" => Some(Fate::Written),
                _ => None,
            },
            (true, "rejected") => Some(Fate::Refused),
            (true, "blocked") if record.guard.is_empty() => Some(Fate::Violation),
            (true, "blocked") => Some(Fate::Oversized),
            _ => None,
        }
    }
}

/// What the activity log says of the newest call to a tool.
struct Recorded {
    status: String,
    operation: String,
    guard: String,
}

async fn newest(backend: &Backend, tool: &str) -> Result<Recorded, CommandError> {
    let records = backend.get(&target(&["activity"], &[("tool", Some(tool))])).await?;
    let records = output::parse(records.json()?)?;
    let field = |kind: &str, pointer: &str| {
        let mut records = list(&records, "/activities").iter();
        let record = records.find(|record| text(record, "/type") == kind);
        record.map(|record| text(record, pointer).into_owned()).unwrap_or_default()
    };
    Ok(Recorded {
        status: field("tool_call", "/status"),
        operation: field("tool_call", "/intent/operation_type"),
        guard: field("policy_decision", "/metadata/guard"),
    })
}

fn draw_step(story: &mut String, number: usize, step: &Step, told: &Told, fate: Option<Fate>) {
    let (sign, word) = match fate {
        Some(Fate::Read) => ("✔", "read"),
        Some(Fate::Written) => ("✔", "written"),
        Some(Fate::Refused) => ("✘", "refused"),
        Some(Fate::Violation) => ("✘", "blocked: schema"),
        Some(Fate::Oversized) => ("✘", "blocked: size"),
        None => ("?", "unexpected"),
    };
    let _ = writeln!(story, "\n  {number}. {}", step.title);
    let _ = writeln!(story, "{INDENT}{} → {SERVER}:{}", step.variant, step.tool);
    let _ = writeln!(story, "{INDENT}{sign} {word}");
    let shown = told.text.lines().collect::<Vec<_>>().join(" · ");
    wrap(story, &format!("“{}”", clean(&shown)));
    wrap(story, step.moral);
}

async fn draw_activity(story: &mut String, backend: &Backend) -> Result<(), CommandError> {
    let found = backend.get(&target(&["activity"], &[("server", Some(SERVER))])).await?;
    let found = output::parse(found.json()?)?;
    let style = RowStyle::plain();
    // Oldest first, as the story went, and without what is the same in every row.
    let rows: Vec<_> = folded(&found)
        .into_iter()
        .filter(|(record, _)| text(record, "/type") == "tool_call")
        .map(|(record, decisions)| {
            let cells = style.row(record, &decisions);
            [4, 5, 6, 7, 8].map(|cell| cells.get(cell).cloned().unwrap_or_default()).to_vec()
        })
        .rev()
        .collect();
    let columns = Column::all([
        ("TOOL", Fit::Whole),
        ("INTENT", Fit::Rank(2)),
        ("STATUS", Fit::Whole),
        ("DURATION", Fit::Rank(1)),
        ("REASON", Fit::Free),
    ]);
    let view = TableView { width: Some(usize::from(WIDTH) - 2), colours: Colours::Plain };
    let table = draw(&columns, rows, view);
    let _ = writeln!(story, "\nThe activity they left (mcpproxy activity list):\n");
    for line in table.lines() {
        let _ = writeln!(story, "  {line}");
    }
    let _ = writeln!(story, "\n{NEXT}");
    Ok(())
}

/// Words on lines that fit, indented.
fn wrap(story: &mut String, text: &str) {
    let most = usize::from(WIDTH) - INDENT.len();
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > most {
            let _ = writeln!(story, "{INDENT}{line}");
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    let _ = writeln!(story, "{INDENT}{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(result: &Value) -> Told {
        let body = json!({"jsonrpc": "2.0", "id": 1, "result": result}).to_string();
        let headers = http::HeaderMap::new();
        let answer = HttpAnswer { status: http::StatusCode::OK, headers, body: body.into() };
        Told::read(&answer).unwrap()
    }

    #[test]
    fn a_fate_is_what_agent_and_record_agree_on() {
        let good = json!({"content": [{"type": "text", "text": "hi"}]});
        let bad = json!({"content": [{"type": "text", "text": "no"}], "isError": true});
        let fate =
            |result: &Value, direct: Option<&Value>, [status, operation, guard]: [&str; 3]| {
                let [status, operation, guard] = [status, operation, guard].map(str::to_owned);
                told(result).fate(direct, &Recorded { status, operation, guard })
            };
        let ours = Some(&good);
        assert_eq!(fate(&good, ours, ["success", "read", ""]), Some(Fate::Read));
        assert_eq!(fate(&good, ours, ["success", "write", ""]), Some(Fate::Written));
        assert_eq!(fate(&good, Some(&bad), ["success", "read", ""]), None, "other bytes");
        assert_eq!(fate(&good, ours, ["error", "read", ""]), None, "another record");
        assert_eq!(fate(&bad, None, ["rejected", "read", ""]), Some(Fate::Refused));
        assert_eq!(fate(&bad, ours, ["blocked", "read", ""]), Some(Fate::Violation));
        assert_eq!(fate(&bad, ours, ["blocked", "read", "bytes"]), Some(Fate::Oversized));
        assert_eq!(fate(&bad, Some(&bad), ["success", "read", ""]), None);
    }

    #[test]
    fn the_story_fits_80_columns() {
        let long = "output schema validation failed: ".repeat(6);
        let mut story = String::new();
        for (index, step) in steps().iter().enumerate() {
            let told = told(&json!({"content": [{"type": "text", "text": long}]}));
            draw_step(&mut story, index + 1, step, &told, Some(step.fate));
        }
        for line in story.lines().chain(NEXT.lines()) {
            assert!(line.chars().count() <= usize::from(WIDTH), "{line}");
        }
    }

    #[test]
    fn the_five_fates_differ() {
        let steps = steps();
        for (index, step) in steps.iter().enumerate() {
            let later = steps.get(index + 1..).unwrap_or_default();
            assert!(later.iter().all(|other| other.fate != step.fate), "{:?}", step.fate);
        }
    }
}
