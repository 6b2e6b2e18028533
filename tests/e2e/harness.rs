//! Harness of the end-to-end tests: the real binary, the stub upstream, and a client that keeps every byte.
//!
//! Deliberately no MCP library and no HTTP library: a test must see the bytes on the wire.

mod authority;
mod certificates;
mod egress;
mod impostor;
mod issuer;
mod pipe;
pub(crate) mod protobuf;
mod recorder;
mod scripted;
mod secure;
mod sse;
mod upstream;
mod wire;

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) use authority::{Authority, Browser, UNGRANTABLE, Ways, browse};
pub(crate) use certificates::{CertificateAuthority, Curled, Pair, curl};
pub(crate) use egress::{EgressProxy, EgressWay};
pub(crate) use impostor::Impostor;
pub(crate) use issuer::{Issuer, Keys, unix_now};
pub(crate) use pipe::Pipe;
pub(crate) use recorder::{Received, Recorder, Reply};
pub(crate) use scripted::Scripted;
pub(crate) use secure::{
    END_HEADERS, END_STREAM, Http2, Secure, begin, field, frame, kind, request, secure,
    server_config,
};
pub(crate) use sse::Events;
pub(crate) use upstream::{
    HttpStub, modern_server, modern_server_stdio, server_of_both_families, stub, stub_stdio,
};
pub(crate) use wire::{Client, Connection, Response, ask_modern, error_text, raw_result};

/// Time limit of a wait on the slowest machine. A longer wait fails the test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) const API_KEY: &str = "end-to-end-key-of-more-than-32-characters";

/// Gives children the default disposition of SIGHUP, even if the tests run under `nohup`: `exec` resets a signal that
/// has a handler, and keeps an ignored one ignored.
static SIGHUP_HANDLED: LazyLock<()> = LazyLock::new(|| {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _context = runtime.enter();
    // The handler remains installed after the stream and the runtime are dropped.
    drop(tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup()).unwrap());
});

/// The binary under test: the one that was built with the tests, or that of `E2E_MCPPROXY`.
pub(crate) fn mcpproxy() -> Command {
    LazyLock::force(&SIGHUP_HANDLED);
    without_variables(Command::new(mcpproxy_path()))
}

fn mcpproxy_path() -> OsString {
    std::env::var_os("E2E_MCPPROXY").unwrap_or_else(|| env!("CARGO_BIN_EXE_mcpproxy").into())
}

fn without_variables(mut command: Command) -> Command {
    for name in ["CONFIG", "LISTEN", "API_KEY", "DATA_DIR", "OUTPUT"] {
        command.env_remove(format!("MCPPROXY_{name}"));
    }
    command
}

/// A child that is ended with the test.
pub(crate) struct Process(pub(crate) Child);

impl Process {
    pub(crate) fn spawn(command: &mut Command) -> Self {
        Self(command.spawn().expect("the program starts"))
    }

    /// Spawns a child that all tests share. The child ends with this process, even if this process is killed, and
    /// `folder` is then removed. For this purpose a shell waits on a pipe whose other end only this process holds.
    pub(crate) fn spawn_for_all(command: &Command, folder: &Path, log: Stdio) -> Self {
        const WATCH: &str =
            r#"folder=$1; shift; exec 3<&0; "$@" & read -r _ <&3; kill -9 $!; rm -rf "$folder""#;
        let mut shell = Command::new("sh");
        shell.args(["-c", WATCH, "sh"]).arg(folder);
        shell.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        Self(shell.spawn().expect("a shell starts"))
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.0.id().to_string();
        let done = Command::new("kill").args(["-s", name, &pid]).status().expect("kill runs");
        assert!(done.success());
    }

    /// Waits for the end. Returns the exit code, or `None` for a signal.
    pub(crate) fn wait(&mut self) -> Option<i32> {
        let ended = until("the process ends", || self.0.try_wait().expect("it can be waited for"));
        ended.code()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The shell of a shared child ends the child when its input closes.
        if self.0.stdin.take().is_none() {
            let _ = self.0.kill();
        }
        let _ = self.0.wait();
    }
}

pub(crate) fn is_running(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
    state.is_some_and(|state| !"ZX".contains(state))
}

/// Children of a process, including ended ones for which it has not waited, without its reaper.
pub(crate) fn children_of(pid: u32) -> Vec<String> {
    let (_, children) = reaper_and_children(pid);
    children
}

/// Reaper of a process: it ends the children if the process is killed.
pub(crate) fn reaper_of(pid: u32) -> Option<String> {
    let (reaper, _) = reaper_and_children(pid);
    reaper
}

fn reaper_and_children(pid: u32) -> (Option<String>, Vec<String>) {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    let lists = tasks
        .flatten()
        .map(|task| std::fs::read_to_string(task.path().join("children")).unwrap_or_default());
    let lists: Vec<String> = lists.collect();
    let children = lists.iter().flat_map(|list| list.split_whitespace()).map(str::to_owned);
    let is_reaper = |child: &String| {
        let line = std::fs::read_to_string(format!("/proc/{child}/cmdline")).unwrap_or_default();
        line.contains("reap-children")
    };
    let (mut reapers, children): (Vec<String>, Vec<String>) = children.partition(is_reaper);
    (reapers.pop(), children)
}

/// Calls `ask` until it returns a value.
pub(crate) fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(start.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until a log contains `text`, and shows the log if it never does.
pub(crate) fn until_logged(text: &str, log: impl Fn() -> String) {
    let start = Instant::now();
    while !log().contains(text) {
        assert!(start.elapsed() < PATIENCE, "{text}: not logged within {PATIENCE:?}\n{}", log());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Lifetime of a process: until the end of one test, or of the whole run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Life {
    Test,
    Run,
}

/// A proxy under test, with its data folder.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    pub(crate) folder: TempDir,
    pub(crate) process: Process,
}

impl Proxy {
    /// Starts a proxy with `servers`, and waits until each was discovered or has failed.
    pub(crate) fn start(servers: Value) -> Self {
        Self::with(json!({"mcpServers": servers}))
    }

    /// Starts a proxy with `config`, in which `listen`, `data_dir` and `api_key` are filled in.
    pub(crate) fn with(config: Value) -> Self {
        Self::unready(config, tempfile::tempdir().expect("a folder")).ready()
    }

    /// A proxy that several tests share, and that lives for the whole run.
    pub(crate) fn for_all(config: Value) -> Self {
        Self::launch(config, tempfile::tempdir().expect("a folder"), Life::Run).ready()
    }

    /// Starts a proxy without waiting for its servers, in a folder that may have the data of an earlier run.
    pub(crate) fn unready(config: Value, folder: TempDir) -> Self {
        Self::launch(config, folder, Life::Test)
    }

    /// Starts a proxy from a shell that runs `before` first, such as `umask 000`, and waits until it is ready.
    pub(crate) fn under(before: &str, config: Value, folder: TempDir) -> Self {
        Self::unready_under(before, config, folder).ready()
    }

    pub(crate) fn unready_under(before: &str, config: Value, folder: TempDir) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{before}; exec \"$@\""), "sh"]).arg(mcpproxy_path());
        Self::launched(without_variables(command), config, folder, Life::Test)
    }

    /// Starts a proxy in a terminal created by `script`. The process of the result is `script`, the
    /// parent of the proxy; its end removes the terminal.
    pub(crate) fn in_terminal(config: Value, folder: TempDir) -> Self {
        let log = folder.path().join("log");
        let mut command = Command::new("sh");
        let run = r#"log=$1; shift; exec script -qec "exec $* 2>$log" /dev/null"#;
        command.args(["-c", run, "sh"]).arg(log).arg(mcpproxy_path());
        Self::launched(without_variables(command), config, folder, Life::Test).ready()
    }

    fn launch(config: Value, folder: TempDir, life: Life) -> Self {
        Self::launched(mcpproxy(), config, folder, life)
    }

    fn launched(command: Command, config: Value, folder: TempDir, life: Life) -> Self {
        let path = configure(config, folder.path());
        Self::of_file(command, &path, folder, life)
    }

    /// Proxy started by this command, for example with other variables. Does not wait until it is ready.
    pub(crate) fn by(command: Command, config: Value, folder: TempDir) -> Self {
        Self::launched(command, config, folder, Life::Test)
    }

    /// Proxy with the config file at `path`, unchanged, and the other files in `folder`.
    pub(crate) fn from_file(path: &Path, folder: TempDir) -> Self {
        Self::of_file(mcpproxy(), path, folder, Life::Test)
    }

    fn of_file(mut command: Command, path: &Path, folder: TempDir, life: Life) -> Self {
        let log = folder.path().join("log");
        command.arg("serve").arg("--config").arg(path).stdin(Stdio::null());
        let opened = std::fs::File::create(&log).expect("a log");
        let mut process = match life {
            Life::Test => Process::spawn(command.stdout(Stdio::piped()).stderr(opened)),
            Life::Run => Process::spawn_for_all(&command, folder.path(), opened.into()),
        };
        let mut line = String::new();
        let stdout = process.0.stdout.take().expect("piped");
        let _ = BufReader::new(stdout).read_line(&mut line);
        let port = line
            .strip_prefix("MCP at ")
            .and_then(|rest| Some(rest.split_once("://127.0.0.1:")?.1))
            .and_then(|rest| rest.split('/').next()?.parse().ok());
        let port = port.unwrap_or_else(|| {
            let log = std::fs::read_to_string(&log).unwrap_or_default();
            panic!("the proxy printed '{line}'; its log:\n{log}")
        });
        Self { port, folder, process }
    }

    /// Waits until every server was discovered or has failed.
    pub(crate) fn ready(self) -> Self {
        until("the proxy is ready", || (self.get("/readyz").status == 200).then_some(()));
        self
    }

    /// Ends the proxy. Returns its folder, for a restart.
    pub(crate) fn end(mut self) -> TempDir {
        self.process.signal("TERM");
        assert_eq!(self.process.wait(), Some(0), "a drained proxy exits with 0\n{}", self.log());
        std::mem::replace(&mut self.folder, tempfile::tempdir().expect("a folder"))
    }

    /// Kills the proxy without a clean shutdown. Returns its folder.
    pub(crate) fn killed(mut self) -> TempDir {
        self.process.signal("KILL");
        self.process.wait();
        std::mem::replace(&mut self.folder, tempfile::tempdir().expect("a folder"))
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Waits until the log contains `text`, because a line may be written later than the effect that it reports.
    pub(crate) fn assert_logged(&self, text: &str) {
        until_logged(text, || self.log());
    }

    /// Waits until `is_meant` holds for `count` lines of the log, and asserts that there are no more.
    pub(crate) fn assert_lines_logged(&self, count: usize, is_meant: impl Fn(&str) -> bool) {
        let meant = || self.log().lines().filter(|line| is_meant(line)).count();
        let found = until("enough lines are logged", || Some(meant()).filter(|it| *it >= count));
        assert_eq!(found, count, "{}", self.log());
    }

    pub(crate) fn get(&self, path: &str) -> Response {
        self.request("GET", path, &[("X-API-Key", API_KEY)], b"")
    }

    /// GET under `/api/v1`. Returns `data` of the response.
    pub(crate) fn api(&self, path: &str) -> Value {
        let response = self.get(&format!("/api/v1/{path}"));
        assert_eq!(response.status, 200, "{path}: {}", response.text());
        let body = response.json();
        assert_eq!(body["success"], true);
        body["data"].clone()
    }

    pub(crate) fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Response {
        let mut connection = Connection::open(self.port);
        connection.send(method, path, headers, body);
        connection.response()
    }

    /// Runs a command of the CLI against this proxy.
    pub(crate) fn cli(&self, args: &[&str]) -> Output {
        Output::of(&mut self.command(args))
    }

    /// A command of the CLI that finds this proxy.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let config = self.folder.path().join("config.json");
        let listen = format!("127.0.0.1:{}", self.port);
        let mut command = mcpproxy();
        // Commands in messages repeat flags, and not variables.
        command.env("MCPPROXY_CONFIG", config).env("MCPPROXY_LISTEN", listen).args(args);
        command
    }

    /// An initialized MCP client.
    pub(crate) fn client(&self) -> Client {
        Client::open(self.port)
    }

    /// Client that lists every upstream tool under its own name.
    pub(crate) fn direct_client(&self) -> Client {
        Client::open_at(self.port, "/mcp/all")
    }

    /// Records of the log, newest first, filtered by `query`, which may be empty.
    pub(crate) fn activity(&self, query: &str) -> Vec<Value> {
        let data = self.api(&format!("activity?limit=100&{query}"));
        data["activities"].as_array().expect("a list").clone()
    }
}

/// Number of requests that these records represent: identical refusals share one (ACT-10).
pub(crate) fn requests_of(records: &[Value]) -> u64 {
    records.iter().map(|record| record["metadata"]["repeated"].as_u64().unwrap_or(1)).sum()
}

/// Writes a config into `folder`, with `listen`, `data_dir` and `api_key` filled in. Returns its path.
pub(crate) fn configure(mut config: Value, folder: &Path) -> PathBuf {
    let members = config.as_object_mut().expect("an object");
    members.entry("listen").or_insert_with(|| json!("127.0.0.1:0"));
    members.entry("data_dir").or_insert_with(|| json!(folder.join("data")));
    members.entry("api_key").or_insert_with(|| json!(API_KEY));
    let path = folder.join("config.json");
    write_private(&path, &config.to_string());
    path
}

pub(crate) fn write_private(path: &Path, text: &str) {
    use std::os::unix::fs::OpenOptionsExt;
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .expect("the file opens");
    file.write_all(text.as_bytes()).expect("it is written");
}

/// Output and exit code of a command.
pub(crate) struct Output {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Output {
    /// Runs a command to its end, with `input` on its stdin.
    pub(crate) fn given(command: &mut Command, input: &str) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the command runs");
        child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("it reads");
        child.wait_with_output().expect("the command ends").into()
    }

    pub(crate) fn of(command: &mut Command) -> Self {
        command.stdin(Stdio::null()).output().expect("the command runs").into()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {}", self.stdout))
    }
}

impl From<std::process::Output> for Output {
    fn from(output: std::process::Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).expect("UTF-8"),
            stderr: String::from_utf8(output.stderr).expect("UTF-8"),
        }
    }
}

/// Creates an agent token on the command line, with `args` after `token create`. Returns its secret.
pub(crate) fn create_token(proxy: &Proxy, args: &[&str]) -> String {
    let output = proxy.cli(&[&["token", "create"], args, &["--json"]].concat());
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    output.json()["token"].as_str().unwrap().to_owned()
}

/// Message of a read call without arguments.
pub(crate) fn read_call(id: &str, tool: &str) -> Value {
    let arguments = json!({"name": tool, "args": {}, "intent": {"operation_type": "read"}});
    let params = json!({"name": "call_tool_read", "arguments": arguments});
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})
}

/// A free loopback port that the system assigns to no other socket before or after this test listens on it. It is below
/// the range from which systems choose ports (RFC 6335 §6: from 49152; Linux: from 32768).
pub(crate) fn free_port() -> u16 {
    const FIRST: u32 = 10_240;
    const COUNT: u32 = 20_480;
    /// Number of ports given out by this process. Other processes begin with a different port.
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    let tried = (0..COUNT).map(|_| {
        let given = GIVEN.fetch_add(1, Ordering::Relaxed);
        let port = FIRST + std::process::id().wrapping_mul(97).wrapping_add(given) % COUNT;
        u16::try_from(port).expect("a port")
    });
    let mut free = tried.filter(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    free.next().expect("a port that nobody listens on")
}
