//! Client side of a connection: HTTP/1.1 implemented for the tests, and MCP over it, with every byte kept.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use super::{PATIENCE, Proxy};

/// HTTP/1.1 connection.
pub(crate) struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    pub(crate) fn open(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("it connects");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.set_nodelay(true).expect("an option");
        Self { stream, buffer: Vec::new() }
    }

    pub(crate) fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) {
        let mut head = format!("{method} {path} HTTP/1.1\r\n");
        let given = |name: &str| headers.iter().any(|(key, _)| key.eq_ignore_ascii_case(name));
        if !given("host") {
            head += "Host: 127.0.0.1\r\n";
        }
        if method == "POST" && !given("content-type") {
            head += "Content-Type: application/json\r\n";
        }
        if !given("accept") {
            head += "Accept: application/json, text/event-stream\r\n";
        }
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        head += &format!("Content-Length: {}\r\n\r\n", body.len());
        self.raw(head.as_bytes());
        self.raw(body);
    }

    /// Writes bytes unchanged. It is no error here if the peer has already answered and closed the connection.
    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    pub(crate) fn response(&mut self) -> Response {
        let (status, headers) = self.head();
        let (mut body, mut whole) = (Vec::new(), true);
        let header = |name: &str| find(&headers, name);
        if header("transfer-encoding") == Some("chunked") {
            loop {
                match self.chunk() {
                    Some(chunk) if chunk.is_empty() => break,
                    Some(chunk) => body.extend(chunk),
                    None => {
                        whole = false;
                        break;
                    }
                }
            }
        } else if let Some(length) = header("content-length") {
            let length: usize = length.parse().expect("a length");
            while self.buffer.len() < length && self.fill() {}
            whole = self.buffer.len() >= length;
            body.extend(self.buffer.drain(..length.min(self.buffer.len())));
        }
        Response { status, headers, body, whole }
    }

    /// Reads a response's status and headers.
    pub(crate) fn head(&mut self) -> (u16, Vec<(String, String)>) {
        let end = loop {
            if let Some(at) = self.buffer.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                break at;
            }
            assert!(self.fill(), "the connection ended before a response's head");
        };
        let head = String::from_utf8(self.buffer.drain(..end + 4).collect()).expect("ASCII");
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok());
        let headers = lines.filter_map(|line| {
            let (name, value) = line.split_once(':')?;
            Some((name.to_ascii_lowercase(), value.trim().to_owned()))
        });
        (status.expect("a status"), headers.collect())
    }

    /// Reads one chunk of a chunked body, empty for the last; `None` if the connection ended.
    pub(crate) fn chunk(&mut self) -> Option<Vec<u8>> {
        let line = loop {
            if let Some(at) = self.buffer.windows(2).position(|bytes| bytes == b"\r\n") {
                break self.buffer.drain(..at + 2).collect::<Vec<u8>>();
            }
            if !self.fill() {
                return None;
            }
        };
        let size = std::str::from_utf8(&line).expect("ASCII").trim();
        let size = usize::from_str_radix(size, 16).expect("a chunk size");
        while self.buffer.len() < size + 2 {
            if !self.fill() {
                return None;
            }
        }
        let chunk = self.buffer.drain(..size).collect();
        self.buffer.drain(..2);
        Some(chunk)
    }

    /// Reads more bytes. Returns false once the peer has closed the connection.
    pub(crate) fn fill(&mut self) -> bool {
        let mut bytes = [0; 65536];
        match self.stream.read(&mut bytes) {
            Ok(0) => false,
            Ok(count) => {
                self.buffer.extend_from_slice(&bytes[..count]);
                true
            }
            Err(error) => {
                let is_reset = error.kind() == std::io::ErrorKind::ConnectionReset;
                assert!(is_reset, "reading failed: {error}");
                false
            }
        }
    }
}

fn find<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
}

pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// Whether the body is complete.
    pub(crate) whole: bool,
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        find(&self.headers, name)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }
}

/// Header of a client that does not accept event streams, so that every answer is one message.
const JSON_ONLY: (&str, &str) = ("Accept", "application/json");

/// An MCP client with one session, over one connection.
pub(crate) struct Client {
    pub(crate) session: String,
    pub(crate) connection: Connection,
    path: String,
    next_id: u64,
}

impl Client {
    pub(crate) fn open(port: u16) -> Self {
        Self::open_at(port, "/mcp")
    }

    pub(crate) fn open_at(port: u16, path: &str) -> Self {
        Self::open_with(port, path, &json!({}))
    }

    /// Opens a session of a client with `capabilities`.
    pub(crate) fn open_with(port: u16, path: &str, capabilities: &Value) -> Self {
        let mut connection = Connection::open(port);
        let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": capabilities,
            "clientInfo": {"name": "e2e", "version": "1"}}});
        connection.send("POST", path, &[], hello.to_string().as_bytes());
        let response = connection.response();
        assert_eq!(response.status, 200, "{}", response.text());
        let session = response.header("mcp-session-id").expect("a session").to_owned();
        let path = path.to_owned();
        let mut client = Self { session, connection, path, next_id: 1 };
        let noted = client.post(br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
        assert_eq!(noted.status, 202);
        client
    }

    /// Posts a raw message.
    pub(crate) fn post(&mut self, body: &[u8]) -> Response {
        let headers = [JSON_ONLY, ("Mcp-Session-Id", self.session.as_str())];
        self.connection.send("POST", &self.path, &headers, body);
        self.connection.response()
    }

    /// Sends a request. Returns the parsed response message.
    pub(crate) fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.next_id;
        self.next_id += 1;
        let body = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        let response = self.post(body.to_string().as_bytes());
        assert_eq!(response.status, 200, "{}", response.text());
        let message = response.json();
        assert_eq!(message["id"], id);
        message
    }

    /// Sends a request. Returns the raw bytes of `result`, or of the whole message if it is an error.
    pub(crate) fn ask_raw(&mut self, method: &str, params: &str) -> Vec<u8> {
        let body =
            format!(r#"{{"jsonrpc":"2.0","id":"raw","method":"{method}","params":{params}}}"#);
        let response = self.post(body.as_bytes());
        assert_eq!(response.status, 200, "{}", response.text());
        match response.json().get("error") {
            Some(_) => response.body,
            None => raw_result(&response.body).to_vec(),
        }
    }

    /// Calls a tool of the proxy itself. Returns `result`, or the whole message if it is an error.
    pub(crate) fn tool(&mut self, name: &str, arguments: Value) -> Value {
        let mut message = self.ask("tools/call", json!({"name": name, "arguments": arguments}));
        match message.get_mut("result") {
            Some(result) => result.take(),
            None => message,
        }
    }

    /// Calls an upstream's tool by `call_tool_<operation>` with a matching intent.
    pub(crate) fn call(&mut self, operation: &str, tool: &str, args: Value) -> Value {
        let intent = json!({"operation_type": operation});
        let arguments = json!({"name": tool, "args": args, "intent": intent});
        self.tool(&format!("call_tool_{operation}"), arguments)
    }

    /// Records of this session, newest first, filtered by `query`.
    pub(crate) fn records(&self, proxy: &Proxy, query: &str) -> Vec<Value> {
        proxy.activity(&format!("session_id={}&{query}", self.session))
    }

    /// Calls an upstream's tool by `call_tool_read` with a matching intent.
    pub(crate) fn read(&mut self, tool: &str, args: Value) -> Value {
        self.call("read", tool, args)
    }

    /// Begins a call by `call_tool_read`. Its response can be read from `connection`.
    pub(crate) fn begin_read(&mut self, tool: &str, args: Value) {
        self.begin("read", tool, args);
    }

    /// Begins a call by any variant of the call tools.
    pub(crate) fn begin(&mut self, operation: &str, tool: &str, args: Value) {
        let arguments =
            json!({"name": tool, "args": args, "intent": {"operation_type": operation}});
        let params = json!({"name": format!("call_tool_{operation}"), "arguments": arguments});
        let body = json!({"jsonrpc": "2.0", "id": "raw", "method": "tools/call", "params": params});
        let headers = [JSON_ONLY, ("Mcp-Session-Id", self.session.as_str())];
        self.connection.send("POST", &self.path, &headers, body.to_string().as_bytes());
    }

    /// Makes a call by `call_tool_read`. Returns the raw response.
    pub(crate) fn read_raw(&mut self, tool: &str, args: Value) -> Response {
        self.begin_read(tool, args);
        self.connection.response()
    }
}

/// Sends a modern request with the headers of that family and those in `more`.
pub(crate) fn ask_modern(
    proxy: &Proxy,
    path: &str,
    method: &str,
    mut params: Value,
    more: &[(&str, &str)],
) -> Response {
    let version = "2026-07-28";
    let meta = &mut params["_meta"];
    meta["io.modelcontextprotocol/protocolVersion"] = version.into();
    meta["io.modelcontextprotocol/clientCapabilities"] = json!({});
    let body = json!({"jsonrpc": "2.0", "id": "raw", "method": method, "params": params});
    let mut headers = vec![("MCP-Protocol-Version", version), ("Mcp-Method", method)];
    // Requests of extension methods have no header `Mcp-Name`.
    let is_named = !["skills/get", "resources/directory/read"].contains(&method);
    let name = ["name", "uri"].iter().find_map(|key| body["params"][*key].as_str());
    let name = name.filter(|_| is_named);
    headers.extend(name.map(|name| ("Mcp-Name", name)));
    headers.extend(more);
    proxy.request("POST", path, &headers, body.to_string().as_bytes())
}

/// Raw bytes of `result` in a response with the proxy's envelope.
pub(crate) fn raw_result(message: &[u8]) -> &[u8] {
    const HEAD: &[u8] = br#"{"jsonrpc":"2.0","id":"raw","result":"#;
    let rest = message
        .strip_prefix(HEAD)
        .unwrap_or_else(|| panic!("not our envelope: {}", String::from_utf8_lossy(message)));
    rest.strip_suffix(b"}").expect("the envelope's end")
}

/// First text block of a tool result with `isError`.
pub(crate) fn error_text(result: &Value) -> &str {
    assert_eq!(result["isError"], true, "{result}");
    result["content"][0]["text"].as_str().expect("a text block")
}
