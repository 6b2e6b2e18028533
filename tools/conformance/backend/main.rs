//! `conformance_backend`: an MCP server written with rmcp that offers the items required by the official conformance suite.
//!
//! `offers.json` has its lists and constant answers. This program adds what a table cannot express: notifications,
//! questions to the client, and lists that change. Tasks have a backend of their own (`../tasks_backend.py`).
//!
//! ```text
//! conformance_backend http  [--port N] [--era FAMILY]   streamable HTTP on 127.0.0.1/mcp; prints its port
//! conformance_backend stdio [--era FAMILY]              one JSON-RPC message per line
//! ```
//!
//! Like rmcp it speaks both protocol families; with `--era legacy` only the `initialize` one, with `--era modern` only
//! the other.
#![allow(
    clippy::indexing_slicing,
    clippy::expect_used,
    reason = "the offers are part of this program, and it is used in tests only"
)]
#![expect(deprecated, reason = "older revisions still have the features that the newest one drops")]

mod offers;
mod rounds;
mod skills;

use std::borrow::Cow;
use std::error::Error;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::{Parser, ValueEnum};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, ClientCapabilities, CompleteRequestParams,
    CompleteResult, CompletionInfo, ErrorData, GetPromptRequestParams, GetPromptResponse,
    GetSkillRequestParams, GetSkillResult, Implementation, InitializeResult, ListPromptsResult,
    ListResourceTemplatesResult, ListResourcesResult, ListSkillsResult, ListToolsResult,
    LoggingMessageNotificationParam, PaginatedRequestParams, ProgressNotificationParam,
    ProtocolVersion, ReadResourceDirectoryRequestParams, ReadResourceDirectoryResult,
    ReadResourceRequestParams, ReadResourceResponse, ServerCapabilities, ServerConfig,
    SetLevelRequestParams, SubscribeRequestParams, SubscriptionFilter, Tool,
    UnsubscribeRequestParams,
};
use rmcp::service::{
    NotificationContext, Peer, RequestContext, RoleServer, SubscriptionContext, SubscriptionSink,
};
use rmcp::transport::StreamableHttpServerConfig;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::tower::StreamableHttpService;
use rmcp::{ServerHandler, ServiceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use offers::{Offers, read};
use rounds::Seal;

type Context = RequestContext<RoleServer>;

/// Number of streams of a session that are ended.
const MAX_STREAMS: u64 = 64;
/// Time after which a client resumes an ended stream.
const RESUMED_AFTER: Duration = Duration::from_millis(100);
/// Time after which the call is answered, on the stream that resumes it.
const ANSWERED_AFTER: Duration = Duration::from_secs(1);
const LEGACY: [ProtocolVersion; 4] = [
    ProtocolVersion::V_2024_11_05,
    ProtocolVersion::V_2025_03_26,
    ProtocolVersion::V_2025_06_18,
    ProtocolVersion::V_2025_11_25,
];

#[derive(Parser)]
struct Arguments {
    transport: Transport,
    /// The port of `http`; 0 is any free one.
    #[arg(long, default_value_t = 0)]
    port: u16,
    #[arg(long, default_value = "both")]
    era: Era,
}

#[derive(Clone, Copy, ValueEnum)]
enum Transport {
    Http,
    Stdio,
}

#[derive(Clone, Copy, ValueEnum)]
enum Era {
    Both,
    Legacy,
    Modern,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let Arguments { transport, port, era } = Arguments::parse();
    let backend = Backend::new(era);
    match transport {
        Transport::Http => serve(backend, port).await,
        Transport::Stdio => {
            let streams = (tokio::io::stdin(), tokio::io::stdout());
            backend.serve(streams).await?.waiting().await?;
            Ok(())
        }
    }
}

async fn serve(backend: Backend, port: u16) -> Result<(), Box<dyn Error>> {
    let config = StreamableHttpServerConfig::default()
        .with_allowed_origins(["http://127.0.0.1:*", "http://localhost:*"]);
    let sessions = backend.0.sessions.clone();
    let service = StreamableHttpService::new(move || Ok(backend.clone()), sessions, config);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    println!("{}", listener.local_addr()?.port());
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let service = service.clone();
        let answer = service_fn(move |request| {
            let service = service.clone();
            async move { Ok::<_, std::convert::Infallible>(service.handle(request).await) }
        });
        // Errors of a connection are ignored here: its client notices them.
        tokio::spawn(
            http1::Builder::new()
                .timer(TokioTimer::new())
                .serve_connection(TokioIo::new(stream), answer),
        );
    }
}

/// The server; the state that its sessions share is behind one `Arc`.
#[derive(Clone)]
struct Backend(Arc<Shared>);

struct Shared {
    era: Era,
    offers: Offers,
    seal: Seal,
    /// Whether the tool that can be added at run time is listed; the next field is the same for the prompt.
    more_tools: AtomicBool,
    more_prompts: AtomicBool,
    /// Sessions of legacy clients over HTTP.
    sessions: Arc<LocalSessionManager>,
    /// Receivers of a changed list: legacy clients and modern subscriptions.
    peers: Mutex<Vec<Peer<RoleServer>>>,
    sinks: Mutex<Vec<SubscriptionSink>>,
}

#[derive(Clone, Copy)]
enum List {
    Tools,
    Prompts,
}

impl Backend {
    fn new(era: Era) -> Self {
        Self(Arc::new(Shared {
            era,
            offers: Offers::read(),
            seal: Seal::new(),
            more_tools: AtomicBool::new(false),
            more_prompts: AtomicBool::new(false),
            sessions: Arc::default(),
            peers: Mutex::default(),
            sinks: Mutex::default(),
        }))
    }

    async fn change(&self, list: List) {
        let flag = match list {
            List::Tools => &self.0.more_tools,
            List::Prompts => &self.0.more_prompts,
        };
        flag.fetch_xor(true, Ordering::Relaxed);
        let mut peers = self.0.peers.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut sinks = self.0.sinks.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // A client that has disconnected is not notified.
        for peer in peers.drain(..) {
            drop(match list {
                List::Tools => peer.notify_tool_list_changed().await,
                List::Prompts => peer.notify_prompt_list_changed().await,
            });
        }
        for sink in sinks.drain(..) {
            drop(match list {
                List::Tools => sink.notify_tool_list_changed().await,
                List::Prompts => sink.notify_prompt_list_changed().await,
            });
        }
    }

    /// Ends the response streams in the session of a call; the client resumes them. rmcp numbers the streams and does
    /// not pass a tool the number of its own, so all of them are ended. Streams that have already ended cause no error.
    async fn end_streams(&self, context: &Context) {
        let head = context.extensions.get::<http::request::Parts>();
        let id = head.and_then(|head| head.headers.get("mcp-session-id")?.to_str().ok());
        let sessions = self.0.sessions.sessions.read().await;
        let Some(session) = id.and_then(|id| sessions.get(id)) else { return };
        for stream in 0..MAX_STREAMS {
            drop(session.close_sse_stream(stream, Some(RESUMED_AFTER)).await);
        }
        drop(sessions);
        // rmcp would lose an answer sent to an ended stream, so the answer waits until the stream is resumed.
        tokio::time::sleep(ANSWERED_AFTER).await;
    }

    /// Performs the side effect of a tool. Returns its answer if that is not a constant.
    async fn act(
        &self,
        request: &CallToolRequestParams,
        context: &Context,
    ) -> Result<Option<Value>, ErrorData> {
        let argument = |name: &str| {
            let value = request.arguments.as_ref().and_then(|all| all.get(name)?.as_str());
            value.unwrap_or_default().to_owned()
        };
        match &*request.name {
            "test_tool_with_logging" => {
                for text in
                    ["Tool execution started", "Tool processing data", "Tool execution completed"]
                {
                    log(context, json!({"level": "info", "data": text})).await;
                }
            }
            "test_logging_tool" => {
                if let Some(level) = context.meta.log_level() {
                    log(context, json!({"level": level, "data": "A level was set"})).await;
                }
            }
            "test_tool_with_progress" => {
                if let Some(token) = context.meta.get_progress_token() {
                    for progress in [0.0, 50.0, 100.0] {
                        let told = ProgressNotificationParam::new(token.clone(), progress);
                        let told = told.with_total(100.0).with_message("on its way");
                        // A failure is ignored: if the client has disconnected, sending the answer of the call fails
                        // too.
                        drop(context.peer.notify_progress(told).await);
                    }
                }
            }
            "test_reconnection" => self.end_streams(context).await,
            "test_trigger_tool_change" => self.change(List::Tools).await,
            "test_trigger_prompt_change" => self.change(List::Prompts).await,
            "test_missing_capability" => {
                let able = context.meta.client_capabilities().unwrap_or_default();
                if able.sampling.is_none() {
                    let needed = ClientCapabilities::builder().enable_sampling().build();
                    return Err(ErrorData::missing_required_client_capability(needed));
                }
            }
            "test_custom_header" => return Ok(Some(text(&argument("value")))),
            "test_sampling" => {
                let question = read(&json!({
                    "messages": [{
                        "role": "user", "content": {"type": "text", "text": argument("prompt")}
                    }],
                    "maxTokens": 100,
                }));
                let answer = context.peer.create_message(question).await;
                return Ok(Some(heard("LLM response", answer)));
            }
            name => {
                if let Some(form) = self.0.offers.forms.get(name) {
                    let message = argument("message");
                    let question = json!({
                        "mode": "form",
                        "message": if message.is_empty() { "Please fill this in" } else { &message },
                        "requestedSchema": form,
                    });
                    let answer = context.peer.create_elicitation(read(&question)).await;
                    return Ok(Some(heard("User response", answer)));
                }
            }
        }
        Ok(None)
    }
}

async fn log(context: &Context, message: Value) {
    let message: LoggingMessageNotificationParam = read(&message);
    // A failure is ignored: if the client has disconnected, sending the answer of the call fails too.
    drop(context.peer.notify_logging_message(message).await);
}

/// A whole result. For older revisions rmcp omits the members that they do not have.
fn result<T: DeserializeOwned>(mut value: Value) -> T {
    value["resultType"] = "complete".into();
    read(&value)
}

fn text(text: &str) -> Value {
    json!({"content": [{"type": "text", "text": text}]})
}

/// The client's answer as a tool result.
fn heard<T: serde::Serialize, E: std::fmt::Display>(what: &str, answer: Result<T, E>) -> Value {
    match answer {
        Ok(answer) => {
            let answer = serde_json::to_string(&answer).expect("a model serializes");
            text(&format!("{what}: {answer}"))
        }
        Err(error) => {
            let mut failed = text(&format!("{what}: {error}"));
            failed["isError"] = true.into();
            failed
        }
    }
}

impl ServerHandler for Backend {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_completions()
            .enable_logging()
            .enable_prompts()
            .enable_prompts_list_changed()
            .enable_resources()
            .enable_resources_subscribe()
            .enable_resources_list_changed()
            .enable_skills_with_directory_read()
            .enable_tools()
            .enable_tool_list_changed()
            .build();
        InitializeResult::new(capabilities)
            .with_server_info(Implementation::new("conformance-backend", "1"))
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        match self.0.era {
            Era::Both => Cow::Borrowed(ProtocolVersion::KNOWN_VERSIONS),
            Era::Legacy => Cow::Borrowed(&LEGACY),
            Era::Modern => Cow::Borrowed(&[ProtocolVersion::V_2026_07_28]),
        }
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.0.offers.tools.iter().find(|tool| tool.name == name).cloned()
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: Context,
    ) -> Result<ListToolsResult, ErrorData> {
        let mut tools = self.0.offers.tools.clone();
        if self.0.more_tools.load(Ordering::Relaxed) {
            tools.push(read(&self.0.offers.changed["tool"]));
        }
        Ok(ListToolsResult::with_all_items(tools))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: Context,
    ) -> Result<CallToolResponse, ErrorData> {
        let Shared { offers, seal, .. } = &*self.0;
        if let Some(rounds) = offers.rounds.get(&*request.name) {
            let able = context.meta.client_capabilities().unwrap_or_default();
            let (answers, state) = (request.input_responses, request.request_state);
            return Ok(match rounds.next(seal, &able, answers.as_ref(), state.as_deref())? {
                Ok(done) => CallToolResponse::Complete(result(text(&done))),
                Err(more) => CallToolResponse::InputRequired(more),
            });
        }
        let made = self.act(&request, &context).await?;
        let Some(answer) = made.as_ref().or_else(|| offers.answers.get(&*request.name)) else {
            let unknown = format!("Unknown tool: {}", request.name);
            return Err(ErrorData::invalid_params(unknown, None));
        };
        Ok(CallToolResponse::Complete(result(answer.clone())))
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: Context,
    ) -> Result<ListPromptsResult, ErrorData> {
        let mut prompts = self.0.offers.prompts.clone();
        if self.0.more_prompts.load(Ordering::Relaxed) {
            prompts.push(read(&self.0.offers.changed["prompt"]));
        }
        Ok(ListPromptsResult::with_all_items(prompts))
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        context: Context,
    ) -> Result<GetPromptResponse, ErrorData> {
        let Shared { offers, seal, .. } = &*self.0;
        if let Some(rounds) = offers.rounds.get(&*request.name) {
            let able = context.meta.client_capabilities().unwrap_or_default();
            let (answers, state) = (request.input_responses, request.request_state);
            return Ok(match rounds.next(seal, &able, answers.as_ref(), state.as_deref())? {
                Ok(done) => GetPromptResponse::Complete(result(json!({
                    "messages": [{"role": "user", "content": {"type": "text", "text": done}}]
                }))),
                Err(more) => GetPromptResponse::InputRequired(more),
            });
        }
        let Some(messages) = offers.messages.get(&*request.name) else {
            let unknown = format!("Unknown prompt: {}", request.name);
            return Err(ErrorData::invalid_params(unknown, None));
        };
        let arguments = request.arguments.unwrap_or_default();
        let messages = offers::filled(messages, |name| arguments.get(name)?.as_str());
        Ok(GetPromptResponse::Complete(result(json!({"messages": messages}))))
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        _: Context,
    ) -> Result<CompleteResult, ErrorData> {
        let typed = request.argument.value;
        let values = ["paris", "park", "party"].into_iter().filter(|word| word.starts_with(&typed));
        let values = CompletionInfo::new(values.map(str::to_owned).collect());
        Ok(CompleteResult::new(values.map_err(|text| ErrorData::internal_error(text, None))?))
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: Context,
    ) -> Result<ListResourcesResult, ErrorData> {
        let skills = self.0.offers.skills();
        let skills = skills.resources();
        let resources = self.0.offers.resources.iter().cloned().chain(skills);
        Ok(ListResourcesResult::with_all_items(resources.collect()))
    }

    async fn list_skills(
        &self,
        _: Option<PaginatedRequestParams>,
        _: Context,
    ) -> Result<ListSkillsResult, ErrorData> {
        Ok(ListSkillsResult::with_all_items(self.0.offers.skills().entries(None)))
    }

    async fn get_skill(
        &self,
        request: GetSkillRequestParams,
        _: Context,
    ) -> Result<GetSkillResult, ErrorData> {
        let skill = self.0.offers.skills().entries(Some(&request.uri)).pop();
        let unknown = || ErrorData::invalid_params(format!("No skill: {}", request.uri), None);
        skill.map(GetSkillResult::new).ok_or_else(unknown)
    }

    async fn read_resource_directory(
        &self,
        request: ReadResourceDirectoryRequestParams,
        _: Context,
    ) -> Result<ReadResourceDirectoryResult, ErrorData> {
        let children = self.0.offers.skills().directory(&request.uri);
        let unknown = || ErrorData::invalid_params(format!("No directory: {}", request.uri), None);
        children.map(ListResourcesResult::with_all_items).ok_or_else(unknown)
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: Context,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(ListResourceTemplatesResult::with_all_items(self.0.offers.templates.clone()))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: Context,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let Some(contents) = self.0.offers.contents(&request.uri) else {
            let unknown = format!("Resource not found: {}", request.uri);
            let data = Some(json!({"uri": request.uri}));
            return Err(ErrorData::resource_not_found(unknown, data));
        };
        Ok(ReadResourceResponse::Complete(result(json!({"contents": [contents]}))))
    }

    async fn subscribe(&self, _: SubscribeRequestParams, _: Context) -> Result<(), ErrorData> {
        Ok(())
    }

    async fn unsubscribe(&self, _: UnsubscribeRequestParams, _: Context) -> Result<(), ErrorData> {
        Ok(())
    }

    async fn set_level(&self, _: SetLevelRequestParams, _: Context) -> Result<(), ErrorData> {
        Ok(())
    }

    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        self.0.peers.lock().unwrap_or_else(PoisonError::into_inner).push(context.peer);
    }

    fn accepted_subscription_filter(
        &self,
        asked: &SubscriptionFilter,
    ) -> Option<SubscriptionFilter> {
        Some(asked.supported_by(&self.get_info().capabilities))
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let sinks = || self.0.sinks.lock().unwrap_or_else(PoisonError::into_inner);
        sinks().push(context.sink().clone());
        context.cancelled().await;
        Ok(())
    }
}
