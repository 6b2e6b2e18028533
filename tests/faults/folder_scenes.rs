//! Data folders for [`folder_sweep`](crate::folder_sweep), as nodes leave them: stopped and killed, alone and in a fleet,
//! small and with many tables. In addition to the log they hold the files that determine the authority of principals: agent
//! tokens, pins and stored tool sets, a login, and in a fleet the applied config with a rule, its facts and the node's key.
//!
//! A rule file named by the config is not part of the data folder: its operator edits it, and any valid content is
//! intended. In a fleet the rules are part of the stored config.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mcpproxy_activity::{Activity, Config, Draft, Raw, Source, Status, Text, Type, Writer};
use mcpproxy_runtime::os::{private, state_file};
use nix::unistd::{Whence, lseek};
use serde_json::{Value, json};

use crate::folder_sweep::{TIMEOUT, program};
use crate::proxy::{self, KEY};

const CLUSTER_KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
/// Records per batch written to the folders.
const BATCH: u64 = 200;
/// Number of records of the small and the large scenes, and the size of their responses in bytes.
const SMALL: (u64, usize) = (1500, 100);
const LARGE: (u64, usize) = (3300, 6000);
/// Access token of the login, and the only one that its server accepts.
const ACCESS_TOKEN: &str = "access-token-of-the-login";
/// Maximum size of a request to the server with a login, in bytes.
const MAX_REQUEST_BYTES: u64 = 64 * 1024;

/// MCP server over stdio with the tools `read` and `other`. Its argument replaces the annotations of `read`.
const SERVER: &str = r#"while read -r line; do
  id=${line#*'"id":'}; id=${id%%[,\}]*}
  case $line in
    *'"method":"initialize"'*) r='"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}';;
    *'"method":"tools/list"'*) r='"result":{"tools":[{"name":"read","inputSchema":{"type":"object"},"annotations":{'$1'}},{"name":"other","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}}]}';;
    *'"method":"tools/call"'*) r='"result":{"content":[]}';;
    *'"id":'*) r='"error":{"code":-32601,"message":"unknown method"}';;
    *) continue;;
  esac
  printf '{"jsonrpc":"2.0","id":%s,%s}\n' "$id" "$r"
done
"#;
/// Annotations of `read`: the first are accepted, the change to the second is held for approval.
const READ_ONLY: &str = r#""readOnlyHint":true"#;
const DESTRUCTIVE: &str = r#""readOnlyHint":false,"destructiveHint":true"#;
const RULE: &str = r#"@id("no") forbid (principal, action, resource == Tool::"s:other");"#;

/// A data folder as left by a node.
pub(crate) struct Scene {
    pub(crate) name: &'static str,
    /// Suffixes of the names of files that differ in the earlier state.
    pub(crate) older: &'static [&'static str],
    pub(crate) folder: tempfile::TempDir,
    /// An earlier state of the folder.
    pub(crate) earlier: tempfile::TempDir,
    config: Value,
    /// Agent tokens in the folder.
    pub(crate) tokens: Vec<String>,
}

impl Scene {
    /// The files of the scene, except locks and other files without state.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let root = self.folder.path();
        let mut found = Vec::new();
        let mut folders = vec![root.join("data")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                if path.is_dir() {
                    folders.push(path);
                } else if !name.ends_with("lock") && name != "address" {
                    found.push(path.strip_prefix(root).unwrap().to_owned());
                }
            }
        }
        found.sort();
        found
    }

    /// The earlier version of a file, if there is one that differs.
    pub(crate) fn older(&self, file: &Path) -> Option<PathBuf> {
        let older = self.earlier.path().join(file);
        let differs = older.exists() && written(&older) != written(&self.folder.path().join(file));
        differs.then_some(older)
    }

    /// Copies the folder; tables are hard links. Also returns the path of the config.
    pub(crate) fn copy(&self) -> (tempfile::TempDir, PathBuf) {
        let copy = tempfile::tempdir().unwrap();
        linked(self.folder.path(), copy.path());
        let path = written_config(&self.config, copy.path());
        (copy, path)
    }
}

/// Writes a config for the data in `folder`.
fn written_config(config: &Value, folder: &Path) -> PathBuf {
    let mut config = config.clone();
    config["data_dir"] = json!(folder.join("data"));
    if config["cluster"].is_object() {
        config["cluster"]["store"] = json!(format!("file://{}", folder.join("store").display()));
    }
    let path = folder.join("config.json");
    fs::write(&path, config.to_string()).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path
}

/// All scenes, or those of the short form. The program of the MCP server is written into the folder `tools`.
pub(crate) fn all(tools: &Path, is_whole: bool) -> Vec<Scene> {
    let server = tools.join("server.sh");
    fs::write(&server, SERVER).unwrap();
    let servers = Servers { stdio: server, with_login: serve_with_login() };
    let servers = &servers;
    // Made one after the other, because each is copied while its log is open.
    let mut scenes = vec![killed("killed", SMALL), killed("with tables", LARGE)];
    let mut made: Vec<Box<dyn FnOnce() -> Scene + Send + '_>> = vec![
        Box::new(|| sealed("sealed", SMALL, servers)),
        Box::new(|| of_a_fleet("fleet", "-TERM", servers)),
    ];
    if is_whole {
        made.push(Box::new(|| sealed("large", LARGE, servers)));
        made.push(Box::new(|| of_a_fleet("killed fleet", "-KILL", servers)));
    }
    // Made in parallel, because they mostly wait for processes.
    std::thread::scope(|scope| {
        let made: Vec<_> = made.into_iter().map(|make| scope.spawn(make)).collect();
        scenes.extend(made.into_iter().map(|scene| scene.join().unwrap()));
    });
    scenes
}

/// MCP servers of the scenes.
struct Servers {
    stdio: PathBuf,
    with_login: String,
}

impl Servers {
    fn config(&self, annotations: &str) -> Value {
        json!({
            "s": {"command": "/bin/sh", "args": [self.stdio, annotations]},
            "login": {"url": self.with_login},
        })
    }

    /// Stores a login, whose time differs between the two halves.
    fn log_in(&self, folder: &Path, half: u64) {
        let url = &self.with_login;
        let grant = json!({
            "url": url, "resource": url, "client_id": "client", "access_token": ACCESS_TOKEN,
            "metadata": {"authorization_endpoint": url, "token_endpoint": url},
            "scopes": [], "received_at": 1 + half,
        });
        let oauth = folder.join("data/oauth");
        private::folder(&oauth).unwrap();
        state_file::write(&oauth.join("login.json"), grant.to_string().as_bytes()).unwrap();
    }
}

/// Starts an MCP server over HTTP that accepts [`ACCESS_TOKEN`] only. It ends with the process.
fn serve_with_login() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || answer(stream));
        }
    });
    url
}

/// Answers one request. An error ends the connection.
fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut reader = BufReader::new(stream.try_clone()?.take(MAX_REQUEST_BYTES));
    let (mut head, mut length) = (String::new(), 0);
    while reader.read_line(&mut head)? > 2 {
        let line = head.lines().next_back().unwrap_or_default().to_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    let mut body = Vec::new();
    reader.take(length).read_to_end(&mut body)?;
    let request: Value = serde_json::from_slice(&body).unwrap_or_default();
    let result = match request["method"].as_str() {
        Some("initialize") => {
            json!({"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
            "serverInfo": {"name": "login", "version": "1"}})
        }
        Some("tools/list") => json!({"tools": [{"name": "mine", "inputSchema": {"type": "object"},
            "annotations": {"readOnlyHint": true}}]}),
        _ => Value::Null,
    };
    let id = &request["id"];
    let (status, body) = match (head.starts_with("POST"), head.contains(ACCESS_TOKEN)) {
        (false, _) => ("405 Method Not Allowed", String::new()),
        (true, false) => ("401 Unauthorized\r\nWWW-Authenticate: Bearer", String::new()),
        (true, true) if id.is_null() => ("202 Accepted", String::new()),
        (true, true) if result.is_null() => {
            let error = json!({"code": -32601, "message": "unknown method"});
            ("200 OK", json!({"jsonrpc": "2.0", "id": id, "error": error}).to_string())
        }
        (true, true) => {
            ("200 OK", json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string())
        }
    };
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    )
}

/// The folder of a stopped node. The earlier state has half of the records, one token less, and the first
/// definitions of the tools.
fn sealed(name: &'static str, (records, bytes): (u64, usize), servers: &Servers) -> Scene {
    let folder = tempfile::tempdir().unwrap();
    let mut tokens = Vec::new();
    let mut run = |half: u64, annotations| {
        let (activity, writer) = open(folder.path());
        fill(&activity, half * records / 2, records / 2, bytes);
        writer.close().unwrap();
        drop(activity);
        servers.log_in(folder.path(), half);
        let config = config(json!({"mcpServers": servers.config(annotations)}));
        let path = written_config(&config, folder.path());
        let mut command = Command::new(program());
        command.args(["token", "create", ["ci", "dev"][half as usize], "--config"]).arg(&path);
        tokens.push(secret(&command.output().unwrap()));
        let (node, address) = started(&path);
        until("the servers are ready", || {
            let servers = get(&address, "/api/v1/servers")["servers"].clone();
            let mut all = servers.as_array().unwrap().iter();
            all.all(|server| {
                let quarantined = u64::from(half == 1 && server["name"] == "s");
                server["state"] == "connected" && server["quarantined"] == quarantined
            })
        });
        stop(node, "-TERM");
        config
    };
    run(0, DESTRUCTIVE);
    let earlier = snapshot(folder.path());
    let config = run(1, READ_ONLY);
    let older = &[
        "activity/head",
        "activity/seal",
        "activity/tables",
        "keyspaces/1/current",
        "data/tokens.json",
        "tokens.json.last-good",
        ".pins",
        ".pins.last-good",
        ".tools",
        "oauth/login.json",
        "oauth/login.json.last-good",
    ];
    Scene { name, older, folder, earlier, config, tokens }
}

/// A log whose process was killed: a copy of its files while it was open.
fn killed(name: &'static str, (records, bytes): (u64, usize)) -> Scene {
    let folder = tempfile::tempdir().unwrap();
    let (activity, writer) = open(folder.path());
    fill(&activity, 0, records / 2, bytes);
    let earlier = snapshot(folder.path());
    fill(&activity, records / 2, records - records / 2, bytes);
    let copy = snapshot(folder.path());
    writer.close().unwrap();
    let config = config(json!({}));
    let older = &[".jnl", "activity/head"];
    Scene { name, older, folder: copy, earlier, config, tokens: Vec::new() }
}

/// The folder of a fleet node that was ended by `signal`, with its object store. The earlier state has half of the
/// records, one token less, and an earlier version of the shared config, without the login.
fn of_a_fleet(name: &'static str, signal: &str, servers: &Servers) -> Scene {
    let (records, bytes) = SMALL;
    let folder = tempfile::tempdir().unwrap();
    let cluster = json!({"store": "", "node": "a", "flush": "100ms", "key": CLUSTER_KEY});
    let config = config(json!({"cluster": cluster}));
    fs::create_dir(folder.path().join("store")).unwrap();
    let path = written_config(&config, folder.path());
    let mut tokens = Vec::new();
    let mut run = |half: u64, signal| {
        let (activity, writer) = open(folder.path());
        fill(&activity, half * records / 2, records / 2, bytes);
        writer.close().unwrap();
        drop(activity);
        let (node, address) = started(&path);
        let cli = |args: &[&str]| {
            let mut command = Command::new(program());
            command.args(args).arg("--config").arg(&path);
            let output = command.output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            output
        };
        tokens.push(secret(&cli(&["token", "create", ["ci", "dev"][half as usize]])));
        let mut of_half = servers.config([DESTRUCTIVE, READ_ONLY][half as usize]);
        if half == 0 {
            of_half.as_object_mut().unwrap().remove("login");
        } else {
            servers.log_in(folder.path(), half);
        }
        let shared = folder.path().join("fleet.json");
        fs::write(folder.path().join("r.cedar"), RULE).unwrap();
        let text = json!({"mcpServers": of_half, "policy": {"files": ["r.cedar"]}});
        fs::write(&shared, text.to_string()).unwrap();
        cli(&["fleet", "apply", shared.to_str().unwrap()]);
        until("the shared config runs", || {
            let running = get(&address, "/api/v1/servers")["servers"].clone();
            let running = running.as_array().unwrap();
            running.len() == of_half.as_object().unwrap().len()
                && running.iter().all(|server| server["state"] == "connected")
        });
        for name in ["fleet.json", "r.cedar"] {
            fs::remove_file(folder.path().join(name)).unwrap();
        }
        until("everything is uploaded", || {
            let fleet = get(&address, "/api/v1/fleet");
            fleet["ledger"]["stored"].as_u64() >= Some((half + 1) * records / 2)
        });
        stop(node, signal);
    };
    run(0, "-TERM");
    let earlier = snapshot(folder.path());
    run(1, signal);
    let older = &[
        "activity/head",
        "keyspaces/1/current",
        "data/tokens.json",
        ".pins",
        ".tools",
        "fleet/config.json",
        "fleet/facts.json",
        "fleet/sealed",
    ];
    Scene { name, older, folder, earlier, config, tokens }
}

/// Starts a proxy. Returns its address as well.
fn started(config: &Path) -> (Child, String) {
    let mut command = Command::new(program());
    command.args(["serve", "--config"]).arg(config).stdin(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let address = proxy::address(child.stdout.take().unwrap()).unwrap();
    (child, address)
}

fn stop(mut node: Child, signal: &str) {
    let _ = Command::new("kill").args([signal, &node.id().to_string()]).status();
    let status = node.wait().unwrap();
    assert!(status.success() || signal == "-KILL", "{status}");
}

/// Secret printed by `token create`.
fn secret(output: &std::process::Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let secret = text.split_whitespace().find(|word| word.starts_with("mcpp_"));
    secret.unwrap_or_else(|| panic!("{text}{}", String::from_utf8_lossy(&output.stderr))).to_owned()
}

fn get(address: &str, path: &str) -> Value {
    proxy::get(address, path).unwrap().1["data"].clone()
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !is_so() {
        assert!(Instant::now() < deadline, "not within {TIMEOUT:?}: {what}");
        std::thread::park_timeout(Duration::from_millis(50));
    }
}

fn snapshot(folder: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    copied(folder, copy.path());
    copy
}

/// Copies a folder recursively. Files in `tables` are hard-linked, since they are never modified in place; sparse files
/// stay sparse.
fn linked(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            fs::create_dir(&target).unwrap();
            fs::set_permissions(&target, fs::metadata(&path).unwrap().permissions()).unwrap();
            linked(&path, &target);
        } else if from.ends_with("tables") {
            fs::hard_link(path, target).unwrap();
        } else {
            copied_file(&path, &target);
        }
    }
}

/// Copies a file with its permissions. Zeros at the end, with which journals are preallocated, become a hole.
fn copied_file(from: &Path, to: &Path) {
    fs::write(to, written(from)).unwrap();
    let (file, found) = (fs::File::options().write(true).open(to), fs::metadata(from).unwrap());
    let file = file.unwrap();
    file.set_len(found.len()).unwrap();
    file.set_permissions(found.permissions()).unwrap();
}

/// Contents of a file without the zeros at its end.
pub(crate) fn written(path: &Path) -> Vec<u8> {
    let file = fs::File::open(path).unwrap();
    let (mut end, mut bytes) = (0, Vec::new());
    while let Ok(data) = lseek(&file, end, Whence::SeekData) {
        end = lseek(&file, data, Whence::SeekHole).unwrap();
    }
    lseek(&file, 0, Whence::SeekSet).unwrap();
    file.take(end.unsigned_abs()).read_to_end(&mut bytes).unwrap();
    bytes.truncate(bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
    bytes
}

fn copied(from: &Path, to: &Path) {
    let status =
        Command::new("cp").args(["-a", "--sparse=always"]).arg(from.join(".")).arg(to).status();
    assert!(status.unwrap().success());
}

fn config(more: Value) -> Value {
    let mut config = json!({"listen": "127.0.0.1:0", "api_key": KEY, "mcpServers": {}});
    for (key, value) in more.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

fn draft(n: u64, bytes: usize) -> Draft {
    let mut draft = Draft::new(Type::ToolCall, Source::Mcp, Status::Success);
    draft.set(Text::Tool, "tool");
    draft.set(Text::RequestId, &n.to_string());
    // Not compressible, so that tables are as large as their contents.
    let seed = scrambled(n);
    let text: String =
        (0..bytes / 16).map(|i| format!("{:016x}", seed.wrapping_mul(2 * i as u64 + 1))).collect();
    draft.keep(Raw::Response, text.as_bytes(), bytes);
    draft
}

/// A pseudorandom number derived from `n`.
fn scrambled(n: u64) -> u64 {
    let mut x = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn open(folder: &Path) -> (Activity, Writer) {
    let data = folder.join("data");
    fs::create_dir_all(&data).unwrap();
    fs::set_permissions(&data, fs::Permissions::from_mode(0o700)).unwrap();
    Activity::open(&data.join("activity"), Config::default()).unwrap()
}

/// Writes records in batches, each durable before the next.
fn fill(activity: &Activity, from: u64, records: u64, bytes: usize) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    for n in from..from + records {
        drop(runtime.block_on(activity.reserve()).unwrap().submit(draft(n, bytes)));
        if n % BATCH == 0 {
            activity.flush().unwrap();
        }
    }
    activity.flush().unwrap();
}
