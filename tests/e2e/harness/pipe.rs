//! A client that starts `mcpproxy stdio` and speaks MCP over its pipes, line by line.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Process, Proxy, configure, mcpproxy};

pub(crate) struct Pipe {
    pub(crate) process: Process,
    pub(crate) folder: TempDir,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Pipe {
    /// Starts a process with `config`, without sending anything.
    pub(crate) fn open(config: Value) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = mcpproxy();
        command.arg("stdio").arg("--config").arg(configure(config, folder.path()));
        Self::spawn(&mut command, folder)
    }

    /// Starts a process that finds a running proxy, without sending anything.
    pub(crate) fn before(proxy: &Proxy) -> Self {
        Self::launch(&mut proxy.command(&["stdio"]))
    }

    /// Starts a process with `command`, without sending anything.
    pub(crate) fn launch(command: &mut Command) -> Self {
        Self::spawn(command, tempfile::tempdir().expect("a folder"))
    }

    fn spawn(command: &mut Command, folder: TempDir) -> Self {
        let log = std::fs::File::create(folder.path().join("log")).expect("a log");
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let mut process = Process::spawn(command);
        let input = process.0.stdin.take();
        let output = BufReader::new(process.0.stdout.take().expect("piped"));
        Self { process, folder, input, output }
    }

    /// Starts a process with `config`, and performs the handshake.
    pub(crate) fn start(config: Value) -> Self {
        let mut pipe = Self::open(config);
        pipe.greet();
        pipe
    }

    /// Performs the handshake.
    pub(crate) fn greet(&mut self) {
        let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": {"name": "e2e", "version": "1"}}});
        let answer: Value = serde_json::from_str(&self.ask(&hello.to_string())).expect("JSON");
        assert_eq!(answer["result"]["protocolVersion"], "2025-11-25");
        self.send(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Waits until the log contains `text`.
    pub(crate) fn assert_logged(&self, text: &str) {
        super::until_logged(text, || self.log());
    }

    pub(crate) fn send(&mut self, line: &str) {
        let input = self.input.as_mut().expect("the pipe is open");
        writeln!(input, "{line}").and_then(|()| input.flush()).expect("the proxy reads");
    }

    /// Reads a line, without its line break; `None` after the last one. Notifications about changes of the proxy's own
    /// tools are skipped: they are sent when a server connects, which may be before the handshake or after it.
    pub(crate) fn line(&mut self) -> Option<Vec<u8>> {
        loop {
            let mut line = Vec::new();
            let count = self.output.read_until(b'\n', &mut line).expect("the proxy writes");
            if !String::from_utf8_lossy(&line).contains("notifications/tools/list_changed") {
                return (count > 0)
                    .then(|| line.strip_suffix(b"\n").expect("a whole line").to_vec());
            }
        }
    }

    /// Writes a line and reads its answer.
    pub(crate) fn ask(&mut self, line: &str) -> String {
        self.send(line);
        String::from_utf8(self.answer()).expect("UTF-8")
    }

    /// The next line that is not a notification.
    fn answer(&mut self) -> Vec<u8> {
        loop {
            let line = self.line().expect("an answer");
            if !line.starts_with(br#"{"jsonrpc":"2.0","method":"notifications/"#) {
                return line;
            }
        }
    }

    /// Makes a read call. Returns the bytes of the response line.
    pub(crate) fn read_raw(&mut self, tool: &str, args: &Value) -> Vec<u8> {
        let arguments = json!({"name": tool, "args": args, "intent": {"operation_type": "read"}});
        let params = json!({"name": "call_tool_read", "arguments": arguments});
        let body = json!({"jsonrpc": "2.0", "id": "raw", "method": "tools/call", "params": params});
        self.send(&body.to_string());
        self.answer()
    }

    /// Closes the proxy's input. Returns the remaining lines of its output.
    pub(crate) fn close(&mut self) -> Vec<Vec<u8>> {
        self.input = None;
        std::iter::from_fn(|| self.line()).collect()
    }
}
