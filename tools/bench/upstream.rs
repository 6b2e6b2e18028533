//! A minimal MCP upstream for the benchmarks. Its answers are prepared at the start, so that a benchmark measures the proxy.
//!
//! ```text
//! bench_upstream http PORT [TOOLS]         streamable HTTP on 127.0.0.1 (0 picks a port)
//! bench_upstream http unix:PATH [TOOLS]    the same on a Unix socket
//! bench_upstream stdio                     one message per line
//! ```
//!
//! Tools: `plain_RESULT` (no output schema) and `typed_RESULT` (with one) for each of [`SIZES`] and each of [`shapes`],
//! `plain_100m`, made at its first call, and TOOLS more that nobody calls. A typed result of a size contains the same records as
//! text and as structuredContent. HTTP is limited to the features that the
//! benchmark's clients need: HTTP/1.1, `Content-Length`, keep-alive; JSON answers, and event streams at the path `/sse`.

#![expect(clippy::indexing_slicing, reason = "a test server: a panic ends the benchmark loudly")]

use std::error::Error;
use std::io::Write;
use std::sync::OnceLock;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, UnixListener};

/// Approximate sizes of a result, in bytes.
const SIZES: [(&str, usize); 5] =
    [("300b", 300), ("1k", 1024), ("10k", 10_800), ("1m", 1024 * 1024), ("13m", 13 * 1024 * 1024)];

/// Size of the result of `plain_100m`, in bytes.
const HUGE: usize = 100 * 1024 * 1024;

const ROWS: usize = 100;
const LEVELS: usize = 20;
const WIDE: usize = 8192;
const NUMBERS: usize = 10_000;

struct Tools {
    list: String,
    /// Tool name in quotes and the text of its `result`.
    results: Vec<(String, String)>,
    /// Result of `plain_100m`.
    huge: OnceLock<String>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let more = args.get(2).map_or(Ok(0), |count| count.parse())?;
    let tools: &'static Tools = Box::leak(Box::new(make_tools(more)));
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["http", address] | ["http", address, _] => serve_http(tools, address).await,
        ["stdio"] => serve_stdio(tools).await,
        _ => Err("usage: bench_upstream http PORT|unix:PATH [TOOLS] | stdio".into()),
    }
}

fn make_tools(more: usize) -> Tools {
    let mut tools = Tools { list: String::new(), results: Vec::new(), huge: OnceLock::new() };
    let mut list = vec![tool("plain_100m", "Plain.")];
    list.extend((0..more).map(|n| tool(&format!("more_{n}"), &format!("Finds item {n}."))));
    for (name, size) in SIZES {
        // A result carries its records twice (as text and as structured content), as real servers do.
        let mut items = Vec::new();
        let mut len = 60;
        while items.is_empty() || len < size / 2 {
            let item = record(items.len() + 1);
            // The text copy is escaped and therefore about a sixth longer.
            len += item.to_string().len() * 13 / 12 + 1;
            items.push(item);
        }
        let data = json!({"total": items.len(), "items": items});
        let typed =
            format!("{{\"content\":{},\"structuredContent\":{data}}}", text(&data.to_string()));
        tools.add(&mut list, name, [plain(size), typed], &records_schema());
    }
    for (name, data, schema) in shapes() {
        let result = format!(
            "{{\"content\":{},\"structuredContent\":{data}}}",
            text("as structured content")
        );
        tools.add(&mut list, name, [result.clone(), result], &schema);
    }
    let spelled = [SPELLED.to_owned(), SPELLED.to_owned()];
    tools.add(&mut list, "spelled", spelled, &json!({"type": "object"}));
    tools.list = json!({"tools": list}).to_string();
    tools
}

/// Result with spellings that a proxy changes if it parses and writes the answer again.
const SPELLED: &str = r#"{"content":[{"type":"text","text":"caf\u00e9 a\/b"}],"structuredContent":{"price":100.00,"id":12345678901234567891}}"#;

impl Tools {
    /// Adds the tools `plain_NAME` and `typed_NAME` with their results. Only `typed_NAME` has the schema.
    fn add(&mut self, list: &mut Vec<Value>, name: &str, results: [String; 2], schema: &Value) {
        let plain = tool(&format!("plain_{name}"), "Plain.");
        let mut typed = tool(&format!("typed_{name}"), "Typed.");
        typed["outputSchema"] = schema.clone();
        for (tool, result) in [plain, typed].into_iter().zip(results) {
            self.results.push((tool["name"].to_string(), result));
            list.push(tool);
        }
    }
}

fn tool(name: &str, description: &str) -> Value {
    let (input, hints) = (json!({"type": "object"}), json!({"readOnlyHint": true}));
    json!({"name": name, "description": description, "inputSchema": input, "annotations": hints})
}

fn plain(size: usize) -> String {
    format!("{{\"content\":{}}}", text(&"x".repeat(size - 45)))
}

fn text(text: &str) -> Value {
    json!([{"type": "text", "text": text}])
}

fn record(n: usize) -> Value {
    json!({
        "id": n, "title": format!("Issue number {n}: the \"frobnicator\" stalls"),
        "state": if n.is_multiple_of(3) {"closed"} else {"open"},
        "labels": ["bug", "needs-triage"], "score": (n % 100) as f64 / 100.0,
        "url": format!("https://example.invalid/issues/{n}"),
    })
}

fn records_schema() -> Value {
    json!({
        "type": "object", "required": ["items", "total"], "additionalProperties": false,
        "properties": {
            "total": {"type": "integer", "minimum": 0},
            "items": {"type": "array", "items": {
                "type": "object", "required": ["id", "title", "state", "labels", "score"],
                "properties": {
                    "id": {"type": "integer", "minimum": 1},
                    "title": {"type": "string", "minLength": 1, "maxLength": 200},
                    "state": {"enum": ["open", "closed"]},
                    "labels": {"type": "array", "items": {"type": "string"}, "maxItems": 10},
                    "score": {"type": "number", "minimum": 0, "maximum": 1},
                    "url": {"type": "string", "pattern": "^https://"}
                }
            }}
        }
    })
}

/// Results with structured content only: name, structured content, output schema.
fn shapes() -> [(&'static str, Value, Value); 4] {
    let rows: Vec<_> = (1..=ROWS)
        .map(|n| {
            json!({"id": n, "name": format!("item {n}"), "price": n as f64 / 8.0, "in_stock": n % 2 == 0,
                "category": (["a", "b", "c"][n % 3]), "note": "some words about it"})
        })
        .collect();
    let row = json!({
        "type": "object", "required": ["id", "name", "price"], "additionalProperties": false,
        "properties": {
            "id": {"type": "integer"}, "name": {"type": "string"}, "price": {"type": "number", "minimum": 0},
            "in_stock": {"type": "boolean"}, "category": {"enum": ["a", "b", "c"]}, "note": {"type": "string"}
        }
    });
    let mut node = json!({"name": "leaf", "size": 0});
    for level in 1..LEVELS {
        node = json!({"name": format!("level {level}"), "size": level, "children": [node]});
    }
    let tree = json!({
        "type": "object", "$ref": "#/$defs/node",
        "$defs": {"node": {
            "type": "object", "required": ["name", "size"],
            "properties": {
                "name": {"type": "string"}, "size": {"type": "integer"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}
            }
        }}
    });
    let values: Vec<_> = (0..NUMBERS).map(|n| (n as f64).sqrt() - 50.0).collect();
    let object = |name: &str, schema: Value| json!({"type": "object", "required": [name], "properties": {name: schema}});
    [
        ("rows", json!({"rows": rows}), object("rows", json!({"type": "array", "items": row}))),
        ("deep", node, tree),
        (
            "wide",
            json!({"text": "All work and no play. ".repeat(WIDE / 22)}),
            object("text", json!({"type": "string"})),
        ),
        (
            "numbers",
            json!({"values": values}),
            object("values", json!({"type": "array", "items": {"type": "number"}})),
        ),
    ]
}

/// Writes the answer to one message into `out`; false for a notification.
fn answer(tools: &Tools, message: &[u8], out: &mut Vec<u8>) -> bool {
    let text = String::from_utf8_lossy(message);
    let Some(id) = member(&text, "\"id\":") else { return false };
    let start = format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},");
    out.extend_from_slice(start.as_bytes());
    let method = member(&text, "\"method\":").unwrap_or_default();
    let result = match method {
        "\"initialize\"" => Some(
            r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"bench","version":"1"}}"#,
        ),
        "\"tools/list\"" => Some(tools.list.as_str()),
        "\"ping\"" => Some("{}"),
        "\"tools/call\"" => tools
            .results
            .iter()
            .find(|(name, _)| text.contains(name))
            .map(|(_, result)| result.as_str())
            .or_else(|| {
                text.contains("plain_100m").then(|| tools.huge.get_or_init(|| plain(HUGE)).as_str())
            }),
        _ => None,
    };
    match result {
        Some(result) => {
            out.extend_from_slice(b"\"result\":");
            out.extend_from_slice(result.as_bytes());
        }
        None => out.extend_from_slice(br#""error":{"code":-32601,"message":"not here"}"#),
    }
    out.push(b'}');
    true
}

/// The raw scalar after `key`. This simple search suffices for the messages of a proxy.
fn member<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let rest = text[text.find(key)? + key.len()..].trim_start();
    rest.split([',', '}']).next().map(str::trim_end)
}

async fn serve_http(tools: &'static Tools, address: &str) -> Result<(), Box<dyn Error>> {
    if let Some(path) = address.strip_prefix("unix:") {
        let listener = UnixListener::bind(path)?;
        println!("{path}");
        std::io::stdout().flush()?;
        loop {
            let (socket, _) = listener.accept().await?;
            tokio::spawn(connection(tools, socket));
        }
    }
    let listener = TcpListener::bind(("127.0.0.1", address.parse()?)).await?;
    println!("{}", listener.local_addr()?.port());
    std::io::stdout().flush()?;
    loop {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        tokio::spawn(connection(tools, socket));
    }
}

/// Serves a connection until the client closes it.
async fn connection(
    tools: &Tools,
    mut socket: impl AsyncRead + AsyncWrite + Unpin,
) -> std::io::Result<()> {
    let (mut input, mut body, mut output) = (Vec::with_capacity(8192), Vec::new(), Vec::new());
    loop {
        let (head, length) = loop {
            if let Some(end) = find(&input, b"\r\n\r\n") {
                let length = content_length(&input[..end]);
                if input.len() >= end + 4 + length {
                    break (end + 4, length);
                }
            }
            if socket.read_buf(&mut input).await? == 0 {
                return Ok(());
            }
        };
        body.clear();
        let is_stream = input.starts_with(b"POST /sse");
        if is_stream {
            body.extend_from_slice(b"event: message\ndata: ");
        }
        let answered = answer(tools, &input[head..head + length], &mut body);
        let post = input.starts_with(b"POST");
        input.drain(..head + length);
        output.clear();
        if answered {
            let kind = if is_stream { "text/event-stream" } else { "application/json" };
            if is_stream {
                body.extend_from_slice(b"\n\n");
            }
            let length = body.len();
            write!(
                output,
                "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n"
            )?;
            output.extend_from_slice(&body);
        } else if post {
            output.extend_from_slice(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n");
        } else {
            output
                .extend_from_slice(b"HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\n\r\n");
        }
        socket.write_all(&output).await?;
    }
}

fn content_length(head: &[u8]) -> usize {
    let head = String::from_utf8_lossy(head).to_ascii_lowercase();
    head.lines()
        .find_map(|line| line.strip_prefix("content-length:"))
        .and_then(|value| value.trim().parse().ok())
        .unwrap_or(0)
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

async fn serve_stdio(tools: &Tools) -> Result<(), Box<dyn Error>> {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let mut stdout = tokio::io::stdout();
    let mut out = Vec::new();
    while let Some(line) = lines.next_line().await? {
        out.clear();
        if answer(tools, line.as_bytes(), &mut out) {
            out.push(b'\n');
            stdout.write_all(&out).await?;
            stdout.flush().await?;
        }
    }
    Ok(())
}
