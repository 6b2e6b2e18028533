//! `stub`: a minimal MCP upstream for tests, which misbehaves on request.
//!
//! The tests, `tools/interop` and `tools/bench` run it behind the proxy, because a real server does not produce a
//! given fault on request. It shares no code with mcpproxy and validates nothing. It speaks the `initialize`
//! protocol family (2024-11-05 … 2025-11-25), and with `--both` also the modern one.
//!
//! ```text
//! stub stdio [FLAGS]            one JSON-RPC message per line on stdin and stdout
//! stub http  [FLAGS]            streamable HTTP on 127.0.0.1, any path; prints its port on one line
//!
//!   --port N             HTTP port (0: any free one)
//!   --answer json|sse    form of the answers to HTTP requests (json)
//!   --id first|last      position of the id in the envelope (first)
//!   --stateless          HTTP without Mcp-Session-Id
//!   --both               also speak 2026-07-28, in which the stub sends no requests to its client
//!   --page N             tools per page of tools/list (0: all on one)
//!   --malformed          tools/list also contains five malformed tools
//!   --only A,B,…         offer only these tools
//!   --tools FILE         also offer the tools of this JSON array, which is read for each list; those
//!                        whose names begin with `added_` can be called
//!   --own N              offer N tools that no other server has instead of the usual ones (`own.rs`);
//!                        over HTTP each path is a server of its own
//!   --restless           change a tool in each list; over stdio also continuously announce changes of
//!                        the tools, and with `--offers` of the other lists
//!   --offers             also offer resources, templates, prompts and completions (`offers.rs`)
//!   --many N             N more resources and prompts
//!   --behavior NAME      use this behavior (see below) …
//!   --on METHOD          … for requests of METHOD (tools/call)
//! ```
//!
//! The table in `tools.rs` lists the tools and their answers, the one in `behavior.rs` the behaviors, which concern
//! the transport. A behavior is selected by calling the tool of the same name, by the argument `behavior` of any
//! tool, or by the flag for every call. Every tool takes these arguments, all optional:
//!
//! | argument | |
//! |---|---|
//! | `size` | size in bytes of the results of tools with a variable size |
//! | `depth` | nesting of the result of `too_deep` |
//! | `behavior` | name of a behavior |
//! | `wait_ms` | time before the first byte of the answer |
//! | `chunk` | size in bytes of the pieces in which the answer is written (0: whole) |
//! | `pause_ms` | time between two pieces |
//! | `ask` | method of the request that the tool `ask` sends to its client |
//! | `with` | members that replace or extend those of that request |
//!
//! The tool `received` answers with the previous request, unchanged.

mod behavior;
mod http;
mod offers;
mod own;
mod questions;
mod stdio;
mod tools;

use std::borrow::Cow;
use std::collections::HashSet;
use std::env;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use behavior::Behavior;
use questions::Questions;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

const PROTOCOLS: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];
const NEWEST: &str = "2025-11-25";
const MODERN: &str = "2026-07-28";

fn main() -> ExitCode {
    let mut args = env::args().skip(1);
    let ended = match args.next().as_deref() {
        Some("stdio") => Options::parse(args).and_then(|o| stdio::run(&Stub::new(o))),
        Some("http") => Options::parse(args).and_then(|o| http::run(Stub::new(o))),
        Some(behavior::DEAF) => {
            thread::sleep(behavior::DEAF_LIFE);
            Ok(())
        }
        _ => Err(bad_usage("usage: stub stdio|http [FLAGS]; see the head of tools/stub/main.rs")),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stub: {error}");
            ExitCode::from(2)
        }
    }
}

fn bad_usage(message: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message.into())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    Json,
    Sse,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IdPlace {
    First,
    Last,
}

/// The parsed flags.
struct Options {
    port: u16,
    framing: Framing,
    id: IdPlace,
    sessions: bool,
    both: bool,
    page: usize,
    malformed: bool,
    only: Option<HashSet<String>>,
    tools: Option<String>,
    own: usize,
    restless: bool,
    offers: bool,
    many: usize,
    behavior: Option<Behavior>,
    on: String,
}

impl Options {
    fn parse(mut args: impl Iterator<Item = String>) -> io::Result<Self> {
        let mut options = Self {
            port: 0,
            framing: Framing::Json,
            id: IdPlace::First,
            sessions: true,
            both: false,
            page: 0,
            malformed: false,
            only: None,
            tools: None,
            own: 0,
            restless: false,
            offers: false,
            many: 0,
            behavior: None,
            on: "tools/call".to_owned(),
        };
        while let Some(flag) = args.next() {
            let mut value = || args.next().ok_or_else(|| bad_usage(format!("{flag} of what?")));
            let number =
                |text: String| text.parse().map_err(|_| bad_usage(format!("not a number: {text}")));
            match flag.as_str() {
                "--port" => {
                    options.port = u16::try_from(number(value()?)?)
                        .map_err(|_| bad_usage("a port is at most 65535"))?;
                }
                "--answer" => {
                    options.framing = match value()?.as_str() {
                        "json" => Framing::Json,
                        "sse" => Framing::Sse,
                        other => {
                            return Err(bad_usage(format!("--answer json or sse, not {other}")));
                        }
                    }
                }
                "--id" => {
                    options.id = match value()?.as_str() {
                        "first" => IdPlace::First,
                        "last" => IdPlace::Last,
                        other => return Err(bad_usage(format!("--id first or last, not {other}"))),
                    }
                }
                "--stateless" => options.sessions = false,
                "--both" => options.both = true,
                "--page" => options.page = number(value()?)?,
                "--malformed" => options.malformed = true,
                "--only" => options.only = Some(value()?.split(',').map(str::to_owned).collect()),
                "--tools" => options.tools = Some(value()?),
                "--own" => options.own = number(value()?)?,
                "--restless" => options.restless = true,
                "--offers" => options.offers = true,
                "--many" => options.many = number(value()?)?,
                "--behavior" => {
                    let name = value()?;
                    options.behavior = Some(
                        Behavior::named(&name)
                            .ok_or_else(|| bad_usage(format!("no behavior {name}")))?,
                    );
                }
                "--on" => options.on = value()?,
                _ => return Err(bad_usage(format!("unknown flag {flag}"))),
            }
        }
        Ok(options)
    }
}

/// State of one process, shared by both transports.
struct Stub {
    options: Options,
    counts: Counts,
    /// Non-zero once `drop_once` has dropped a connection.
    dropped: AtomicU64,
    sessions: Mutex<HashSet<String>>,
    questions: Questions,
    /// The previous request, unchanged.
    before: Mutex<String>,
}

/// The numbers that `stats` shows.
#[derive(Default)]
struct Counts {
    calls: AtomicU64,
    /// Requests for an item: calls except those of `stats`, and the requests in [`offers::ASKED`].
    asked: AtomicU64,
    canceled: AtomicU64,
    abandoned: AtomicU64,
    initialized: AtomicU64,
    lists: AtomicU64,
    added: AtomicU64,
    flipped: AtomicBool,
}

/// A JSON-RPC message, unchanged.
#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

impl Message<'_> {
    /// Whether it is a request of 2026-07-28.
    fn is_modern(&self) -> bool {
        let params = self.params.and_then(|raw| serde_json::from_str::<Value>(raw.get()).ok());
        let version = |params: Value| {
            params.get("_meta")?.get("io.modelcontextprotocol/protocolVersion").cloned()
        };
        params.and_then(version).is_some_and(|version| version == MODERN)
    }
}

#[derive(Deserialize)]
struct Call<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
    #[serde(borrow, rename = "_meta")]
    meta: Option<Meta<'a>>,
    #[serde(borrow, rename = "requestState")]
    state: Option<&'a RawValue>,
    #[serde(borrow, rename = "inputResponses")]
    inputs: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Meta<'a> {
    #[serde(borrow, rename = "progressToken")]
    progress: Option<&'a RawValue>,
}

/// The arguments that every tool takes.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Knobs {
    size: Option<usize>,
    depth: Option<usize>,
    behavior: Option<String>,
    wait_ms: Option<u64>,
    chunk: Option<usize>,
    pause_ms: Option<u64>,
    ask: Option<String>,
    with: Value,
}

/// The messages sent for a request, in order, and the way in which they are sent.
struct Reply {
    /// Notifications that precede the answer.
    before: Vec<Vec<u8>>,
    /// The JSON-RPC answer.
    answer: Vec<u8>,
    /// Id of the request in `before` to the client. The stub waits for its answer, which becomes part of `answer`.
    asks: Option<u64>,
    /// Notifications for all listeners.
    after: Vec<Vec<u8>>,
    behavior: Behavior,
    pace: Pace,
}

/// Pace at which an answer is written.
#[derive(Clone, Copy, Default)]
struct Pace {
    wait: Duration,
    chunk: usize,
    pause: Duration,
}

impl Pace {
    fn is_leisurely(self) -> bool {
        !self.wait.is_zero() || self.chunk > 0
    }

    fn write(self, out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
        if self.chunk == 0 {
            return out.write_all(bytes);
        }
        for piece in bytes.chunks(self.chunk) {
            out.write_all(piece)?;
            out.flush()?;
            thread::sleep(self.pause);
        }
        Ok(())
    }
}

impl Stub {
    fn new(options: Options) -> Self {
        Self {
            options,
            counts: Counts::default(),
            dropped: AtomicU64::new(0),
            sessions: Mutex::default(),
            questions: Questions::default(),
            before: Mutex::default(),
        }
    }

    /// The reply to a message `message` to `server` with the raw text `written`; `None` for a notification.
    fn reply(&self, server: &str, message: &Message<'_>, written: &[u8]) -> Option<Reply> {
        if let (None, Some(id)) = (&message.method, message.id) {
            self.questions.answered(id, message.result.or(message.error));
            return None;
        }
        let method = message.method.as_deref().unwrap_or_default();
        let Some(id) = message.id else {
            if method == "notifications/cancelled" {
                self.counts.canceled.fetch_add(1, Ordering::Relaxed);
            }
            return None;
        };
        let written = String::from_utf8_lossy(written).trim_end().to_owned();
        let before = self.before.lock().map(|mut before| std::mem::replace(&mut *before, written));
        if offers::ASKED.contains(&method) {
            self.counts.asked.fetch_add(1, Ordering::Relaxed);
        }
        let mut reply = match method {
            "server/discover" if self.options.both => self.plain(id, &self.discover()),
            "logging/setLevel" => self.plain(id, &json!({})),
            "initialize" => self.plain(id, &self.initialize(message.params)),
            "ping" => self.plain(id, &json!({})),
            "tools/list" => self.plain(id, &self.list(server, message.params)),
            "tools/call" => self.call(id, message, &before.unwrap_or_default()),
            _ => {
                let offered = || offers::reply(self, method, id, message.params);
                let offered = self.options.offers.then(offered).flatten();
                offered.unwrap_or_else(|| {
                    self.fault(id, -32601, &format!("Method not found: {method}"))
                })
            }
        };
        match self.options.behavior {
            Some(flagged) if reply.behavior == Behavior::Normal && method == self.options.on => {
                reply.behavior = flagged;
                reply.pace = flagged.pace(reply.pace);
            }
            _ => {}
        }
        Some(reply)
    }

    fn initialize(&self, params: Option<&RawValue>) -> Value {
        self.counts.initialized.fetch_add(1, Ordering::Relaxed);
        let asked = params
            .and_then(|p| serde_json::from_str::<Value>(p.get()).ok())
            .and_then(|p| p.get("protocolVersion")?.as_str().map(str::to_owned))
            .unwrap_or_default();
        let agreed = PROTOCOLS.iter().copied().find(|known| *known == asked).unwrap_or(NEWEST);
        json!({
            "protocolVersion": agreed,
            "capabilities": self.capabilities(),
            "serverInfo": {"name": "stub", "version": "1"},
        })
    }

    fn discover(&self) -> Value {
        let versions: Vec<_> = [MODERN].into_iter().chain(PROTOCOLS).collect();
        json!({"supportedVersions": versions, "capabilities": self.capabilities(),
            "resultType": "complete"})
    }

    fn capabilities(&self) -> Value {
        if self.options.offers {
            offers::capabilities()
        } else {
            json!({"tools": {"listChanged": true}, "logging": {}})
        }
    }

    fn list(&self, server: &str, params: Option<&RawValue>) -> Value {
        let lists = self.counts.lists.fetch_add(1, Ordering::Relaxed);
        if self.options.own > 0 {
            return json!({ "tools": own::listed(server, self.options.own) });
        }
        let added = self.counts.added.load(Ordering::Relaxed);
        let flipped = self.counts.flipped.load(Ordering::Relaxed);
        let mut tools = tools::listed(self.options.only.as_ref(), added, flipped);
        let file = self.options.tools.as_ref().and_then(|file| std::fs::read(file).ok());
        let more: Option<Vec<Value>> = file.and_then(|text| serde_json::from_slice(&text).ok());
        tools.extend(more.unwrap_or_default());
        if self.options.malformed {
            // In the middle, so that there are valid tools before and after the malformed ones.
            tools.splice(tools.len() / 2..tools.len() / 2, tools::malformed());
        }
        if self.options.restless
            && let Some(tool) = tools.first_mut()
        {
            tool["description"] = format!("Not what it was {lists} lists ago").into();
        }
        if self.options.page == 0 {
            return json!({ "tools": tools });
        }
        let from = params
            .and_then(|p| serde_json::from_str::<Value>(p.get()).ok())
            .and_then(|p| p.get("cursor")?.as_str()?.parse::<usize>().ok())
            .unwrap_or(0);
        let upto = from.saturating_add(self.options.page);
        let page: Vec<Value> = tools.iter().skip(from).take(self.options.page).cloned().collect();
        if upto < tools.len() {
            json!({"tools": page, "nextCursor": upto.to_string()})
        } else {
            json!({ "tools": page })
        }
    }

    fn call(&self, id: &RawValue, message: &Message<'_>, before: &str) -> Reply {
        self.counts.calls.fetch_add(1, Ordering::Relaxed);
        let Some(call) =
            message.params.and_then(|p| serde_json::from_str::<Call<'_>>(p.get()).ok())
        else {
            return self.fault(id, -32602, "unreadable params");
        };
        if call.name != "stats" {
            self.counts.asked.fetch_add(1, Ordering::Relaxed);
        }
        let arguments = call.arguments.map_or("{}", RawValue::get);
        let knobs: Knobs = serde_json::from_str(arguments).unwrap_or_default();
        if call.name == "ask" && message.is_modern() {
            return self.fault(id, -32021, "the client lacks a capability");
        }
        let result = match call.name.as_ref() {
            "stats" => self.stats(),
            "received" => {
                let text = [json!({"type": "text", "text": before})];
                json!({ "content": text }).to_string().into_bytes()
            }
            "rpc_error" => {
                let answer = self.envelope(id, "error", tools::RPC_ERROR.as_bytes());
                return Reply { answer, ..self.plain(id, &Value::Null) };
            }
            name => match tools::answer(name, &knobs, arguments) {
                Some(result) => result,
                None => return self.fault(id, -32602, &format!("Unknown tool: {name}")),
            },
        };
        let behavior = match &knobs.behavior {
            Some(name) => Behavior::named(name),
            None => Behavior::named(&call.name),
        };
        let behavior = behavior.unwrap_or(Behavior::Normal);
        let mut reply = Reply {
            before: Vec::new(),
            answer: self.envelope(id, "result", &result),
            asks: None,
            after: Vec::new(),
            behavior,
            pace: behavior.pace(Pace {
                wait: Duration::from_millis(knobs.wait_ms.unwrap_or(0)),
                chunk: knobs.chunk.unwrap_or(0),
                pause: Duration::from_millis(knobs.pause_ms.unwrap_or(0)),
            }),
        };
        if call.name == "ask" {
            let (number, request) = self.questions.ask(knobs.ask.as_deref(), &knobs.with);
            reply.before = vec![request];
            reply.asks = Some(number);
            // The placeholder is replaced by the client's answer.
            reply.answer = self.envelope(id, "result", questions::PLACEHOLDER.as_bytes());
        }
        if call.name == "needs_input" {
            let result = questions::input_required(call.state, call.inputs);
            reply.answer = self.envelope(id, "result", result.as_bytes());
        }
        if call.name == "notify" {
            reply.before = tools::notifications(call.meta.and_then(|m| m.progress));
        }
        if call.name == "add_tool" {
            self.counts.added.fetch_add(1, Ordering::Relaxed);
            reply.after = vec![tools::LIST_CHANGED.as_bytes().to_vec()];
        }
        if call.name == tools::FLIP {
            self.counts.flipped.store(true, Ordering::Relaxed);
            reply.after = vec![tools::LIST_CHANGED.as_bytes().to_vec()];
        }
        if call.name == "forget_session"
            && let Ok(mut sessions) = self.sessions.lock()
        {
            sessions.clear();
        }
        reply
    }

    fn stats(&self) -> Vec<u8> {
        let counts = &self.counts;
        let stats = json!({
            "calls": counts.calls.load(Ordering::Relaxed),
            "asked": counts.asked.load(Ordering::Relaxed),
            "cancelled": counts.canceled.load(Ordering::Relaxed),
            "abandoned": counts.abandoned.load(Ordering::Relaxed),
            "initialized": counts.initialized.load(Ordering::Relaxed),
            "lists": counts.lists.load(Ordering::Relaxed),
            "sessions": self.sessions.lock().map_or(0, |sessions| sessions.len()),
        });
        let text = [json!({"type": "text", "text": stats.to_string()})];
        json!({"content": text, "structuredContent": stats}).to_string().into_bytes()
    }

    fn plain(&self, id: &RawValue, result: &Value) -> Reply {
        Reply {
            before: Vec::new(),
            answer: self.envelope(id, "result", result.to_string().as_bytes()),
            asks: None,
            after: Vec::new(),
            behavior: Behavior::Normal,
            pace: Pace::default(),
        }
    }

    fn fault(&self, id: &RawValue, code: i32, message: &str) -> Reply {
        let error = json!({"code": code, "message": message}).to_string();
        Reply {
            answer: self.envelope(id, "error", error.as_bytes()),
            ..self.plain(id, &Value::Null)
        }
    }

    fn envelope(&self, id: &RawValue, member: &str, body: &[u8]) -> Vec<u8> {
        let (head, tail) = match self.options.id {
            IdPlace::First => {
                (format!(r#"{{"jsonrpc":"2.0","id":{},"{member}":"#, id.get()), "}".to_owned())
            }
            IdPlace::Last => {
                (format!(r#"{{"{member}":"#), format!(r#","jsonrpc":"2.0","id":{}}}"#, id.get()))
            }
        };
        [head.as_bytes(), body, tail.as_bytes()].concat()
    }
}
