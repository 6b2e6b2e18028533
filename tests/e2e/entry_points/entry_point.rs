//! Entry points of the proxy: every way to send a request to a server. The same requests are sent through each.
//!
//! The expected outcomes are in the table of the parent module.

use std::process::Command;
use std::sync::Mutex;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{
    API_KEY, Client, Connection, Events, Output, Pipe, Proxy, Response, configure, mcpproxy,
};

const VERSION: &str = "2026-07-28";
/// Names of the requested items at each server.
pub(super) const TOOL: &str = "added_notes";
const RESOURCE: &str = "test://shared";
const OF_TEMPLATE: &str = "test://item/7";
const TEMPLATE: &str = "test://item/{id}{?q*}";
const PROMPT: &str = "greet";

/// Way in which a request reaches the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// `/mcp`, in a session of the initialize-based revisions.
    Session,
    /// `/mcp`, by the revision without sessions.
    Stateless,
    /// `/mcp/all`, in a session.
    AllSession,
    /// `/mcp/all`, without one.
    AllStateless,
    /// `/mcp/server/NAME`, in a session.
    OneSession,
    /// `/mcp/server/NAME`, without one.
    OneStateless,
    /// `mcpproxy stdio` with no proxy running, in both protocol families.
    Pipe,
    PipeStateless,
    /// `mcpproxy stdio` before a running proxy, in both protocol families.
    Bridge,
    BridgeStateless,
    /// `POST /api/v1/tools/call`
    Rest,
    /// `mcpproxy call` before a running proxy.
    Cli,
    /// `mcpproxy call` without a running proxy.
    CliAlone,
}

/// Kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asks {
    Tool,
    Resource,
    /// A resource that matches a template.
    OfTemplate,
    /// Subscription to a resource: by a request of its own, or without a session by an entry of a filter.
    Subscription,
    Prompt,
    PromptCompletion,
    TemplateCompletion,
}

impl Asks {
    const ALL: [Self; 7] = [
        Self::Tool,
        Self::Resource,
        Self::OfTemplate,
        Self::Subscription,
        Self::Prompt,
        Self::PromptCompletion,
        Self::TemplateCompletion,
    ];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EntryPoint {
    pub(super) way: Way,
    pub(super) asks: Asks,
}

/// Outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// Reason of the refusal, which is empty if the entry point has no text for it. `None` if the request was answered.
    pub(super) refused: Option<String>,
    /// The HTTP status, or the exit code of a command.
    pub(super) code: Option<i32>,
    pub(super) retry_after: Option<String>,
}

impl EntryPoint {
    pub(super) fn all() -> Vec<Self> {
        let message = [
            Way::Session,
            Way::Stateless,
            Way::AllSession,
            Way::AllStateless,
            Way::OneSession,
            Way::OneStateless,
            Way::Pipe,
            Way::PipeStateless,
            Way::Bridge,
            Way::BridgeStateless,
        ];
        let of = |way| Asks::ALL.map(|asks| Self { way, asks });
        let call = |way| Self { way, asks: Asks::Tool };
        let calls = [Way::Rest, Way::Cli, Way::CliAlone].map(call);
        message.into_iter().flat_map(of).chain(calls).collect()
    }

    /// Whether the request is answered by a separate proxy that has no other clients.
    pub(super) fn is_alone(self) -> bool {
        matches!(self.way, Way::Pipe | Way::PipeStateless | Way::CliAlone)
    }

    pub(super) fn is_pipe_alone(self) -> bool {
        matches!(self.way, Way::Pipe | Way::PipeStateless)
    }

    fn is_stateless(self) -> bool {
        use Way::{AllStateless, BridgeStateless, OneStateless, PipeStateless, Stateless};
        let way = self.way;
        matches!(way, Stateless | AllStateless | OneStateless | PipeStateless | BridgeStateless)
    }

    /// Whether the request is an entry of a filter, which has no answer of its own.
    pub(super) fn is_filter(self) -> bool {
        self.is_stateless() && self.asks == Asks::Subscription
    }

    pub(super) fn states_intent(self) -> bool {
        let own_name = matches!(self.way, Way::AllSession | Way::AllStateless) || self.is_of_one();
        self.asks == Asks::Tool && !own_name
    }

    /// Whether the endpoint serves a single server under its own names.
    pub(super) fn is_of_one(self) -> bool {
        matches!(self.way, Way::OneSession | Way::OneStateless)
    }

    /// Expected `type`, `tool_name` and `source` of the record.
    pub(super) fn record(self) -> [&'static str; 3] {
        let source = match self.way {
            Way::Rest => "api",
            Way::Cli | Way::CliAlone => "cli",
            _ => "mcp",
        };
        let [kind, name] = match self.asks {
            Asks::Tool => ["tool_call", TOOL],
            Asks::Resource | Asks::OfTemplate => ["resource_read", "resources/read"],
            Asks::Subscription => ["internal_tool_call", "resources/subscribe"],
            Asks::Prompt => ["prompt_get", "prompts/get"],
            Asks::PromptCompletion | Asks::TemplateCompletion => {
                ["completion", "completion/complete"]
            }
        };
        [kind, name, source]
    }

    /// Names of the requested item as they appear in refusals by rules, by scope, and because of missing approval.
    pub(super) fn names(self) -> [String; 3] {
        let uri = match self.asks {
            Asks::OfTemplate => OF_TEMPLATE,
            Asks::TemplateCompletion => TEMPLATE,
            _ => RESOURCE,
        };
        let completion = "Completion of 's'".to_owned();
        let resource = format!("Resource 's:{uri}'");
        let prompt = format!("Prompt 's:{PROMPT}'");
        match self.asks {
            Asks::Tool => {
                let tool = format!("Tool 's:{TOOL}'");
                [tool.clone(), format!("tool 's:{TOOL}'"), tool]
            }
            Asks::Resource | Asks::OfTemplate | Asks::Subscription => {
                [resource, format!("resource '{uri}' of 's'"), format!("Resource '{uri}'")]
            }
            Asks::Prompt => [prompt.clone(), format!("prompt '{PROMPT}' of 's'"), prompt],
            Asks::PromptCompletion => {
                [prompt, format!("completions for prompt '{PROMPT}' of 's'"), completion]
            }
            Asks::TemplateCompletion => {
                [resource, format!("completions for resource '{uri}' of 's'"), completion]
            }
        }
    }

    /// Method and params of the message.
    fn message(self, server: &str, operation: &str, args: &Value) -> (&'static str, Value) {
        let address = |own: &str| match self.is_of_one() {
            true => own.to_owned(),
            false => format!("mcpproxy://{server}/{own}"),
        };
        let name = |own: &str| match self.is_of_one() {
            true => own.to_owned(),
            false => format!("{server}__{own}"),
        };
        let uri = |own: &str| json!({"uri": address(own)});
        let complete = |reference: Value| {
            let argument = json!({"name": "who", "value": ""});
            ("completion/complete", json!({"ref": reference, "argument": argument}))
        };
        match self.asks {
            Asks::Tool if self.states_intent() => ("tools/call", {
                let arguments = call_arguments(server, operation, args);
                json!({"name": "call_tool_read", "arguments": arguments})
            }),
            Asks::Tool => ("tools/call", json!({"name": name(TOOL), "arguments": args})),
            Asks::Resource => ("resources/read", uri(RESOURCE)),
            Asks::OfTemplate => ("resources/read", uri(OF_TEMPLATE)),
            Asks::Subscription if self.is_stateless() => ("subscriptions/listen", {
                let uris = [address(RESOURCE)];
                json!({"notifications": {"resourceSubscriptions": uris}})
            }),
            Asks::Subscription => ("resources/subscribe", uri(RESOURCE)),
            Asks::Prompt => ("prompts/get", json!({"name": name(PROMPT)})),
            Asks::PromptCompletion => complete(json!({"type": "ref/prompt", "name": name(PROMPT)})),
            Asks::TemplateCompletion => {
                complete(json!({"type": "ref/resource", "uri": address(TEMPLATE)}))
            }
        }
    }
}

fn call_arguments(server: &str, operation: &str, args: &Value) -> Value {
    let intent = json!({"operation_type": operation});
    json!({"name": format!("{server}:{TOOL}"), "args": args, "intent": intent})
}

fn meta() -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": VERSION,
        "io.modelcontextprotocol/clientInfo": {"name": "door", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    })
}

/// The proxies that together have all entry points.
pub(super) struct Proxies {
    pub(super) proxy: Proxy,
    /// Token sent with every HTTP request, if present.
    pub(super) token: Option<String>,
    /// Operation stated by the intents of calls to `s`; every call uses `call_tool_read`.
    pub(super) states: &'static str,
    pipe: Mutex<Pipe>,
    bridge: Mutex<Pipe>,
    /// Folder with the config and data of commands that run without a proxy.
    pub(super) alone: TempDir,
}

impl Proxies {
    pub(super) fn new(config: &Value) -> Self {
        let proxy = Proxy::with(config.clone());
        let pipe = Pipe::start(config.clone());
        let mut bridge = Pipe::before(&proxy);
        bridge.greet();
        let alone = tempfile::tempdir().unwrap();
        configure(config.clone(), alone.path());
        let (pipe, bridge) = (Mutex::new(pipe), Mutex::new(bridge));
        Self { proxy, token: None, states: "read", pipe, bridge, alone }
    }

    /// Begins calls to `s` that are never answered: one over the pipe, and one at the shared proxy. The latter lasts
    /// until the returned client is dropped.
    pub(super) fn occupy(&self) -> Client {
        let never = json!({"behavior": "never"});
        let mut client = self.proxy.client();
        client.begin("read", &format!("s:{TOOL}"), never.clone());
        let params =
            json!({"name": "call_tool_read", "arguments": call_arguments("s", "read", &never)});
        let body =
            json!({"jsonrpc": "2.0", "id": "never", "method": "tools/call", "params": params});
        self.pipe.lock().unwrap().send(&body.to_string());
        client
    }

    /// Closes the pipes, and cancels the call in progress.
    pub(super) fn close_pipes(&self) {
        let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled",
            "params": {"requestId": "never"}});
        for pipe in [&self.pipe, &self.bridge] {
            let mut pipe = pipe.lock().unwrap();
            pipe.send(&cancel.to_string());
            pipe.close();
            assert_eq!(pipe.process.wait(), Some(0), "{}", pipe.log());
        }
    }

    /// Records of the proxy behind the pipe, which has ended, and of commands that run without a proxy.
    pub(super) fn records_alone(&self, query: &[&str]) -> Vec<Value> {
        let pipe = self.pipe.lock().unwrap();
        let folders = [pipe.folder.path(), self.alone.path()];
        let listed = folders.map(|folder| {
            let mut command = mcpproxy();
            command.env("MCPPROXY_CONFIG", folder.join("config.json"));
            command.args(["activity", "list", "--json", "--limit", "100"]).args(query);
            let output = Output::of(&mut command);
            assert_eq!(output.code, Some(0), "{}", output.stderr);
            output.json()["activities"].as_array().unwrap().clone()
        });
        listed.into_iter().flatten().collect()
    }

    /// Sends a request to a server through an entry point.
    pub(super) fn ask(&self, entry_point: EntryPoint, server: &str) -> Answer {
        self.ask_with(entry_point, server, &json!({}))
    }

    /// Sends a request to a server through an entry point, with `args` for a tool.
    pub(super) fn ask_with(&self, entry_point: EntryPoint, server: &str, args: &Value) -> Answer {
        let operation = if server == "s" { self.states } else { "read" };
        let (method, mut params) = entry_point.message(server, operation, args);
        if entry_point.is_stateless() {
            params["_meta"] = meta();
        }
        match entry_point.way {
            Way::Session => self.in_session("/mcp", method, &params),
            Way::AllSession => self.in_session("/mcp/all", method, &params),
            Way::Stateless => self.stateless("/mcp", method, &params),
            Way::AllStateless => self.stateless("/mcp/all", method, &params),
            Way::OneSession => self.in_session(&format!("/mcp/server/{server}"), method, &params),
            Way::OneStateless => self.stateless(&format!("/mcp/server/{server}"), method, &params),
            Way::Pipe | Way::PipeStateless => {
                piped(&mut self.pipe.lock().unwrap(), method, &params)
            }
            Way::Bridge | Way::BridgeStateless => {
                piped(&mut self.bridge.lock().unwrap(), method, &params)
            }
            Way::Rest => self.rest(call_arguments(server, operation, args)),
            Way::Cli => commanded(self.proxy.command(&[]).args(call(server, args))),
            Way::CliAlone => {
                let mut command = mcpproxy();
                command.env("MCPPROXY_CONFIG", self.alone.path().join("config.json"));
                commanded(command.args(call(server, args)))
            }
        }
    }

    fn bearer(&self) -> Option<String> {
        self.token.as_ref().map(|token| format!("Bearer {token}"))
    }

    fn in_session(&self, path: &str, method: &str, params: &Value) -> Answer {
        let mut connection = Connection::open(self.proxy.port);
        let bearer = self.bearer();
        let mut headers = vec![("Accept", "application/json")];
        headers.extend(bearer.as_deref().map(|bearer| ("Authorization", bearer)));
        let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": {"name": "door", "version": "1"}}});
        connection.send("POST", path, &headers, hello.to_string().as_bytes());
        let response = connection.response();
        assert_eq!(response.status, 200, "{}", response.text());
        let session = response.header("mcp-session-id").unwrap().to_owned();
        headers.push(("Mcp-Session-Id", &session));
        connection.send("POST", path, &headers, request(method, params).as_bytes());
        answered(&connection.response())
    }

    fn stateless(&self, path: &str, method: &str, params: &Value) -> Answer {
        let bearer = self.bearer();
        let mut headers = vec![("MCP-Protocol-Version", VERSION), ("Mcp-Method", method)];
        headers.extend(bearer.as_deref().map(|bearer| ("Authorization", bearer)));
        let named = matches!(method, "tools/call" | "prompts/get" | "resources/read");
        let name = ["name", "uri"].iter().find_map(|key| params[*key].as_str());
        headers.extend(name.filter(|_| named).map(|name| ("Mcp-Name", name)));
        let mut connection = Connection::open(self.proxy.port);
        if method == "subscriptions/listen" {
            connection.send("POST", path, &headers, request(method, params).as_bytes());
            return acknowledged(&Events::of(connection).message());
        }
        headers.push(("Accept", "application/json"));
        connection.send("POST", path, &headers, request(method, params).as_bytes());
        answered(&connection.response())
    }

    fn rest(&self, mut arguments: Value) -> Answer {
        let intent = arguments.as_object_mut().unwrap().remove("intent");
        let body = json!({"tool_name": "call_tool_read", "arguments": arguments, "intent": intent});
        let key = self.token.as_deref().unwrap_or(API_KEY);
        let headers = [("X-API-Key", key)];
        let path = "/api/v1/tools/call";
        let response = self.proxy.request("POST", path, &headers, body.to_string().as_bytes());
        let answer = response.json();
        Answer {
            refused: answer["error"].as_str().map(str::to_owned),
            code: Some(response.status.into()),
            retry_after: response.header("retry-after").map(str::to_owned),
        }
    }
}

fn request(method: &str, params: &Value) -> String {
    json!({"jsonrpc": "2.0", "id": "door", "method": method, "params": params}).to_string()
}

fn answered(response: &Response) -> Answer {
    Answer { code: Some(response.status.into()), ..message_answered(&response.json()) }
}

/// Outcome of a JSON-RPC response: a refusal is an error, or a result with `isError`.
fn message_answered(message: &Value) -> Answer {
    let refused = match (&message["error"]["message"], &message["result"]["isError"]) {
        (Value::String(text), _) => Some(text.clone()),
        (_, Value::Bool(true)) => {
            Some(message["result"]["content"][0]["text"].as_str().unwrap().to_owned())
        }
        _ => {
            assert!(message["result"].is_object(), "{message}");
            None
        }
    };
    Answer { refused, code: None, retry_after: None }
}

/// Outcome for the single resource of a filter: it is refused if the acknowledgment omits it.
fn acknowledged(hello: &Value) -> Answer {
    assert_eq!(hello["method"], "notifications/subscriptions/acknowledged", "{hello}");
    let uris = &hello["params"]["notifications"]["resourceSubscriptions"];
    let refused = uris.as_array().is_none_or(Vec::is_empty).then(String::new);
    Answer { refused, code: None, retry_after: None }
}

fn piped(pipe: &mut Pipe, method: &str, params: &Value) -> Answer {
    pipe.send(&request(method, params));
    loop {
        let line = pipe.line().expect("an answer");
        let message: Value = serde_json::from_slice(&line).unwrap();
        if message["method"] == "notifications/subscriptions/acknowledged" {
            return acknowledged(&message);
        }
        if message["id"] == "door" {
            return message_answered(&message);
        }
    }
}

fn call(server: &str, args: &Value) -> [String; 5] {
    let tool = format!("{server}:{TOOL}");
    ["call".into(), "tool-read".into(), tool, "--args".into(), args.to_string()]
}

fn commanded(command: &mut Command) -> Answer {
    let output = Output::of(command);
    let refused = output.stderr.lines().find_map(|line| line.strip_prefix("error: "));
    assert_eq!(refused.is_some(), output.code != Some(0), "{}", output.stderr);
    Answer { refused: refused.map(str::to_owned), code: output.code, retry_after: None }
}
