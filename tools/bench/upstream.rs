//! A minimal MCP upstream for the benchmarks: it answers from bytes made at start, so that what is
//! measured is the proxy.
//!
//! ```text
//! bench_upstream http PORT      streamable HTTP, JSON answers, on 127.0.0.1 (0 picks a port)
//! bench_upstream stdio          one message a line
//! ```
//!
//! Tools: `plain_SIZE` (no output schema) and `typed_SIZE` (with one) for each of [`SIZES`]; a
//! typed result holds the same records as text and as structuredContent. HTTP is as narrow as the
//! benchmark's clients need: HTTP/1.1, `Content-Length`, keep-alive.

#![expect(clippy::indexing_slicing, reason = "a test server: a panic ends the benchmark loudly")]

use std::error::Error;
use std::io::Write;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// Approximate sizes of a result, in bytes.
const SIZES: [(&str, usize); 4] =
    [("1k", 1024), ("10k", 10_800), ("1m", 1024 * 1024), ("13m", 13 * 1024 * 1024)];

struct Tools {
    list: String,
    /// Tool name and the text of its `result`.
    results: Vec<(String, String)>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let tools: &'static Tools = Box::leak(Box::new(make_tools()));
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["http", port] => serve_http(tools, port.parse()?).await,
        ["stdio"] => serve_stdio(tools).await,
        _ => Err("usage: bench_upstream http PORT | stdio".into()),
    }
}

fn make_tools() -> Tools {
    let mut results = Vec::new();
    let mut list = Vec::new();
    let schema = serde_json::json!({
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
    });
    for (name, size) in SIZES {
        // A result carries its records twice (text and structured), as real servers do.
        let mut items = Vec::new();
        let mut len = 60;
        while len < size / 2 {
            let n = items.len() + 1;
            let item = serde_json::json!({
                "id": n, "title": format!("Issue number {n}: the \"frobnicator\" stalls"),
                "state": if n % 3 == 0 {"closed"} else {"open"},
                "labels": ["bug", "needs-triage"], "score": (n % 100) as f64 / 100.0,
                "url": format!("https://example.invalid/issues/{n}"),
            });
            // The text copy is escaped, so it is about a sixth longer.
            len += item.to_string().len() * 13 / 12 + 1;
            items.push(item);
        }
        let data = serde_json::json!({"total": items.len(), "items": items});
        let text = serde_json::json!([{"type": "text", "text": data.to_string()}]);
        results.push((
            format!("typed_{name}"),
            format!("{{\"content\":{text},\"structuredContent\":{data}}}"),
        ));
        let text = serde_json::json!([{"type": "text", "text": "x".repeat(size - 45)}]);
        results.push((format!("plain_{name}"), format!("{{\"content\":{text}}}")));
        let input = serde_json::json!({"type": "object"});
        let hints = serde_json::json!({"readOnlyHint": true});
        list.push(serde_json::json!({"name": format!("plain_{name}"), "description": "Plain.",
            "inputSchema": input, "annotations": hints}));
        list.push(serde_json::json!({"name": format!("typed_{name}"), "description": "Typed.",
            "inputSchema": input, "annotations": hints, "outputSchema": schema}));
    }
    Tools { list: serde_json::json!({"tools": list}).to_string(), results }
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
            .find(|(name, _)| text.contains(&format!("\"{name}\"")))
            .map(|(_, result)| result.as_str()),
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

/// The raw scalar after `key`: enough for the messages a proxy sends.
fn member<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let rest = text[text.find(key)? + key.len()..].trim_start();
    rest.split([',', '}']).next().map(str::trim_end)
}

async fn serve_http(tools: &'static Tools, port: u16) -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("{}", listener.local_addr()?.port());
    std::io::stdout().flush()?;
    loop {
        let (socket, _) = listener.accept().await?;
        tokio::spawn(async move {
            // A client that goes away ends its connection, nothing else.
            let _ = connection(tools, socket).await;
        });
    }
}

async fn connection(tools: &Tools, mut socket: TcpStream) -> std::io::Result<()> {
    socket.set_nodelay(true)?;
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
        let answered = answer(tools, &input[head..head + length], &mut body);
        let post = input.starts_with(b"POST");
        input.drain(..head + length);
        output.clear();
        if answered {
            write!(
                output,
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                body.len()
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
