//! The protocol lifecycle with one server: initialize, notifications, the list of tools.
//!
//! rmcp leads the lifecycle over our own framing, as one more user of the connection. The list of
//! tools is read here and raw, since rmcp's model of a tool loses fields. How messages travel is
//! the business of [`super::stdio`] and [`super::session`].

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rmcp::model::{
    ClientCapabilities, ClientConfig, ElicitationCapability, Implementation, ProtocolVersion,
    RootsCapabilities, SamplingCapability, ServerCapabilities as RmcpCapabilities,
};
use rmcp::service::{
    ClientInitializeError, ClientLifecycleMode, RoleClient, RunningService, RxJsonRpcMessage,
    TxJsonRpcMessage, serve_client_with_lifecycle,
};
use rmcp::transport::Transport;
use rmcp::{ClientHandler, RoleClient as Role};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::mpsc;

use super::call::About;
use super::error::{Cause, Human};
use super::peer::Peer;
use super::probe::Start;
use super::request::Params;
use super::stdio::ChildLink;
use crate::catalog::discovered::DiscoveredTool;
use crate::mcp::capabilities::ServerCapabilities;
use crate::mcp::jsonrpc::Code;
use crate::mcp::revisions::Era;

/// Most pages of a list of tools.
const MAX_PAGES: usize = 1000;
/// Most tools of one server.
const MAX_TOOLS: usize = 20_000;
/// Most bytes of a list of tools, all its pages together.
pub(super) const MAX_LIST_BYTES: usize = 32 * 1024 * 1024;
/// Most bytes of one page's cursor, which is sent back.
const MAX_CURSOR_BYTES: usize = 64 * 1024;

/// A running lifecycle.
pub(super) type Service = RunningService<RoleClient, Handler>;

/// What rmcp is told of us. What a server says unasked never reaches it: see
/// [`super::inbound`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Handler;

impl ClientHandler for Handler {
    /// Everything is offered, since servers hide tools from a client that cannot be asked; what
    /// the client behind a call cannot do is refused when it is asked for.
    fn get_info(&self) -> ClientConfig {
        let us = Implementation::new(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"));
        let mut capabilities = ClientCapabilities::default();
        capabilities.sampling = Some(SamplingCapability::default());
        capabilities.elicitation = Some(ElicitationCapability::default());
        capabilities.roots = Some(RootsCapabilities::default());
        ClientConfig::new(capabilities, us)
            .with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
    }
}

/// What the handshake said.
#[derive(Clone, Debug, Default)]
pub(super) struct Greeting {
    pub(super) protocol_version: Option<Arc<str>>,
    /// Name and version of the server's implementation.
    pub(super) server_info: Option<Arc<str>>,
    pub(super) about: About,
}

/// Leads the handshake over a transport. The error is one line.
pub(super) async fn initialize<T>(
    peer: &Arc<Peer>,
    transport: T,
    limit: Duration,
    start: Start,
) -> Result<(Service, Greeting), String>
where
    T: Transport<Role> + 'static,
{
    let modern = || vec![ProtocolVersion::V_2026_07_28];
    let (mode, asked) = match start {
        Start::Probe => (
            ClientLifecycleMode::Auto {
                preferred_versions: modern(),
                legacy_version: Some(ProtocolVersion::LATEST_WITH_INITIALIZE),
            },
            "server/discover and initialize",
        ),
        Start::Known(Era::Legacy) => (ClientLifecycleMode::Initialize, "initialize"),
        Start::Known(Era::Modern) => {
            (ClientLifecycleMode::Discover { preferred_versions: modern() }, "server/discover")
        }
    };
    let serving = serve_client_with_lifecycle(Handler, transport, mode);
    let service = match tokio::time::timeout(limit, serving).await {
        Ok(Ok(service)) => service,
        Ok(Err(error)) => return Err(reason(peer, &error)),
        Err(_) => return Err(format!("no answer to {asked} within {}", Human(limit))),
    };
    let greeting = service.peer_info().map_or_else(Greeting::default, |info| Greeting {
        protocol_version: Some(peer.quote(info.protocol_version.as_str())),
        server_info: info
            .server_info
            .as_ref()
            .map(|it| peer.quote(format!("{} {}", it.name, it.version))),
        about: About {
            era: if info.protocol_version.has_initialize() { Era::Legacy } else { Era::Modern },
            offers: offers(&info.capabilities),
        },
    });
    Ok((service, greeting))
}

fn offers(capabilities: &RmcpCapabilities) -> ServerCapabilities {
    let resources = capabilities.resources.as_ref();
    ServerCapabilities {
        tools: capabilities.tools.is_some(),
        resources: resources.is_some(),
        resource_updates: resources.is_some_and(|it| it.subscribe == Some(true)),
        prompts: capabilities.prompts.is_some(),
        completions: capabilities.completions.is_some(),
        logging: capabilities.logging.is_some(),
    }
}

fn reason(peer: &Peer, error: &ClientInitializeError) -> String {
    let text = match error {
        ClientInitializeError::ConnectionClosed(_) => {
            "it closed the connection while being initialized".to_owned()
        }
        ClientInitializeError::TransportError { error, .. } => error.error.to_string(),
        ClientInitializeError::JsonRpcError(error) => {
            format!("it refused to be initialized: {}", error.message)
        }
        // What the server said instead may be long; the log has it.
        ClientInitializeError::ExpectedInitResponse(_)
        | ClientInitializeError::ExpectedInitResult(_) => {
            "it answered initialize with something else".to_owned()
        }
        // What it said to the probe is only why it was initialized.
        ClientInitializeError::LegacyFallbackFailed { fallback, .. } => {
            return reason(peer, fallback);
        }
        ClientInitializeError::NoCompatibleProtocolVersion { server_supported, .. } => format!(
            "it speaks none of the revisions that are known here, but {}",
            server_supported.iter().map(ProtocolVersion::as_str).collect::<Vec<_>>().join(", ")
        ),
        other => other.to_string(),
    };
    peer.quote(text).to_string()
}

/// The lifecycle's end of a child's pipes.
pub(super) struct PipeTransport {
    pub(super) link: Arc<ChildLink>,
    pub(super) inbox: mpsc::Receiver<Bytes>,
    pub(super) limit: Duration,
}

/// A message of the lifecycle could not be sent.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Unsent(pub(super) Cause);

impl Transport<Role> for PipeTransport {
    type Error = Unsent;

    fn name() -> Cow<'static, str> {
        "stdio".into()
    }

    fn send(
        &mut self,
        item: TxJsonRpcMessage<Role>,
    ) -> impl Future<Output = Result<(), Unsent>> + Send + 'static {
        let (link, limit) = (self.link.clone(), self.limit);
        async move { link.send(encode(&item)?, limit).await.map_err(Unsent) }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<Role>> {
        loop {
            let message = self.inbox.recv().await?;
            if let Some(message) = decode(&self.link.peer, &message) {
                return Some(message);
            }
        }
    }

    async fn close(&mut self) -> Result<(), Unsent> {
        self.inbox.close();
        Ok(())
    }
}

/// A message of ours as JSON on one line.
pub(super) fn encode(item: &TxJsonRpcMessage<Role>) -> Result<Vec<u8>, Unsent> {
    serde_json::to_vec(item)
        .map_err(|error| Unsent(Cause::Unreadable { reason: error.to_string().into() }))
}

/// A message of the server for the lifecycle; what rmcp cannot read is left out.
pub(super) fn decode(peer: &Peer, message: &[u8]) -> Option<RxJsonRpcMessage<Role>> {
    match serde_json::from_slice(message) {
        Ok(message) => Some(message),
        Err(error) => {
            if peer.may_log() {
                let error = peer.quote(error.to_string());
                tracing::debug!(server = %peer.name, %error, "a message of the lifecycle cannot be read");
            }
            None
        }
    }
}

#[derive(Deserialize)]
struct Page<'a> {
    #[serde(borrow)]
    result: Option<List<'a>>,
    error: Option<RpcError>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct List<'a> {
    #[serde(borrow)]
    tools: Option<Vec<&'a RawValue>>,
    next_cursor: Option<String>,
}

#[derive(Deserialize)]
struct RpcError {
    code: i64,
    #[serde(default)]
    message: String,
}

/// Whether headers repeat parts of a request to a server: what its tools say of them counts there,
/// and nowhere else (MCP 2026-07-28 §Schema Extension).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Headers {
    Repeat,
    SayNothing,
}

/// Reads the whole list of tools. `fetch` sends one request and returns the response's bytes, at
/// most as many as it is told. A malformed tool is left out with a warning that names it; the rest
/// is kept. Of a list that outgrows [`MAX_LIST_BYTES`], [`MAX_TOOLS`] or [`MAX_PAGES`] the pages
/// and tools before are kept; of one whose first page does, nothing.
pub(super) async fn discover<F>(
    peer: &Peer,
    greeting: &Greeting,
    headers: Headers,
    fetch: impl Fn(Params, usize) -> F,
) -> Result<Vec<DiscoveredTool>, String>
where
    F: Future<Output = Result<Vec<u8>, Cause>>,
{
    let told = |reason: &str| {
        if peer.may_log() {
            tracing::warn!(server = %peer.name, reason, "a server's list of tools is not read whole");
        }
    };
    let mut tools = Vec::new();
    let mut room = MAX_LIST_BYTES;
    let mut cursors = HashSet::new();
    let mut params = "{}".to_owned();
    for _ in 0..MAX_PAGES {
        let request = Params::of("tools/list", params.into());
        let page = match fetch(request, room).await {
            Err(Cause::TooLong { .. }) if room < MAX_LIST_BYTES => {
                told(&format!("it is longer than {MAX_LIST_BYTES} bytes"));
                return Ok(tools);
            }
            page => page.map_err(|cause| format!("tools/list: {cause}"))?,
        };
        room = room.saturating_sub(page.len());
        let page: Page<'_> = serde_json::from_slice(&page).map_err(|error| {
            format!("its answer to tools/list cannot be read: {}", peer.quote(error.to_string()))
        })?;
        let list = match (page.result, page.error) {
            (Some(list), _) => list,
            (None, Some(error))
                if error.code == Code::MethodNotFound as i64 || !greeting.about.offers.tools =>
            {
                return Ok(Vec::new());
            }
            (None, Some(error)) => {
                let words = peer.quote(error.message);
                return Err(format!("it refused tools/list: {words}"));
            }
            (None, None) => return Err("its answer to tools/list holds no result".to_owned()),
        };
        for raw in list.tools.unwrap_or_default() {
            match DiscoveredTool::parse(raw) {
                Ok(_) if tools.len() >= MAX_TOOLS => {
                    told(&format!("it has more than {MAX_TOOLS} tools"));
                    return Ok(tools);
                }
                Ok(DiscoveredTool { name, parameter_headers: Err(reason), .. })
                    if headers == Headers::Repeat =>
                {
                    left_out(peer, &peer.quote(name.as_bytes()), &reason.to_string());
                }
                Ok(tool) => tools.push(tool),
                Err(reason) => {
                    left_out(peer, &tool_name(peer, raw), &reason);
                }
            }
        }
        let Some(cursor) = list.next_cursor else { return Ok(tools) };
        if cursor.len() > MAX_CURSOR_BYTES {
            told(&format!("a cursor is longer than {MAX_CURSOR_BYTES} bytes"));
            return Ok(tools);
        }
        params = serde_json::json!({ "cursor": cursor }).to_string();
        if !cursors.insert(cursor) {
            told("it goes round in circles");
            return Ok(tools);
        }
    }
    told(&format!("it has more than {MAX_PAGES} pages"));
    Ok(tools)
}

fn left_out(peer: &Peer, tool: &str, reason: &str) {
    if peer.may_log() {
        let reason = peer.quote(reason);
        tracing::warn!(server = %peer.name, tool, %reason, "a malformed tool is left out");
    }
}

/// The name of a tool that is otherwise unreadable, for the warning.
fn tool_name(peer: &Peer, raw: &RawValue) -> Arc<str> {
    #[derive(Deserialize)]
    struct Named {
        name: String,
    }
    serde_json::from_str::<Named>(raw.get())
        .map_or_else(|_| "(no name)".into(), |named| peer.quote(named.name))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::super::request::Fields;
    use super::*;

    /// Discovers from given pages; returns names or the error, and the params that were asked.
    async fn discovered(pages: &[&str]) -> (Result<Vec<String>, String>, Vec<String>) {
        discovered_by(Headers::SayNothing, pages).await
    }

    async fn discovered_by(
        headers: Headers,
        pages: &[&str],
    ) -> (Result<Vec<String>, String>, Vec<String>) {
        let asked = Mutex::new(Vec::new());
        let greeting = Greeting {
            about: About {
                offers: ServerCapabilities { tools: true, ..ServerCapabilities::default() },
                ..About::default()
            },
            ..Greeting::default()
        };
        let tools = discover(&Peer::default(), &greeting, headers, |params, room| {
            let mut asked = asked.lock().unwrap();
            let page = pages[asked.len().min(pages.len() - 1)].as_bytes().to_vec();
            asked.push(String::from_utf8(object(&params)).unwrap());
            async move {
                match page.len() <= room {
                    true => Ok(page),
                    false => Err(Cause::TooLong { limit: room }),
                }
            }
        })
        .await;
        let names = tools.map(|tools| tools.iter().map(|tool| tool.name.to_string()).collect());
        (names, asked.into_inner().unwrap())
    }

    fn object(params: &Params) -> Vec<u8> {
        match &params.fields {
            Fields::Object(object) => object.to_vec(),
            Fields::Call { .. } => panic!("no call is made"),
        }
    }

    #[tokio::test]
    async fn a_paged_list_is_read_to_its_end() {
        let (names, asked) = discovered(&[
            r#"{"id":1,"result":{"tools":[{"name":"a","inputSchema":{}}],"nextCursor":"p\"2"}}"#,
            r#"{"result":{"nextCursor":null,"tools":[{"name":"b","inputSchema":{}}]},"id":2}"#,
        ])
        .await;
        assert_eq!(names.unwrap(), ["a", "b"]);
        assert_eq!(asked, ["{}", r#"{"cursor":"p\"2"}"#]);
    }

    #[tokio::test]
    async fn a_list_is_bounded_over_all_its_pages() {
        const PAGE: usize = 3 * 1024 * 1024;
        let asked = std::cell::Cell::new(0);
        let filler = "x".repeat(PAGE);
        let peer = Peer::default();
        let greeting = Greeting::default();
        let tools = discover(&peer, &greeting, Headers::SayNothing, |_, room| {
            asked.set(asked.get() + 1);
            let page = format!(
                r#"{{"result":{{"x":"{filler}","tools":[{{"name":"t{n}","inputSchema":{{}}}}],"nextCursor":"{n}"}}}}"#,
                n = asked.get()
            );
            async move {
                match page.len() <= room {
                    true => Ok(page.into_bytes()),
                    false => Err(Cause::TooLong { limit: room }),
                }
            }
        });
        assert_eq!(tools.await.unwrap().len(), MAX_LIST_BYTES / PAGE, "the pages before are kept");
        assert_eq!(asked.get(), MAX_LIST_BYTES / PAGE + 1);
    }

    #[tokio::test]
    async fn mcp_2026_a_tool_with_invalid_headers_is_left_out_where_headers_are_sent() {
        let page = r#"{"result":{"tools":[
            {"name":"a","inputSchema":{"properties":{"p":{"type":"string","x-mcp-header":"P"}}}},
            {"name":"b","inputSchema":{"properties":{"p":{"type":"number","x-mcp-header":"P"}}}},
            {"name":"c","inputSchema":{}}]}}"#;
        for (headers, expected) in
            [(Headers::Repeat, &["a", "c"][..]), (Headers::SayNothing, &["a", "b", "c"])]
        {
            assert_eq!(discovered_by(headers, &[page]).await.0.unwrap(), expected, "{headers:?}");
        }
    }

    #[tokio::test]
    async fn a_malformed_tool_is_left_out_and_the_rest_kept() {
        let (names, _) = discovered(&[
            r#"{"result":{"tools":[{"name":"a","inputSchema":{}},{"name":"b"},7,{"name":"c","inputSchema":{}}]}}"#,
        ])
        .await;
        assert_eq!(names.unwrap(), ["a", "c"]);
    }

    #[tokio::test]
    async fn a_list_that_goes_round_in_circles_ends() {
        let (names, asked) = discovered(&[
            r#"{"result":{"tools":[{"name":"a","inputSchema":{}}],"nextCursor":"x"}}"#,
        ])
        .await;
        assert_eq!((names.unwrap().len(), asked.len()), (2, 2));
    }

    #[tokio::test]
    async fn a_refusal_is_an_error_and_a_missing_method_is_no_tools() {
        let (names, _) = discovered(&[r#"{"error":{"code":-32000,"message":"not\nnow"}}"#]).await;
        assert_eq!(names.unwrap_err(), "it refused tools/list: not now");
        let (names, _) = discovered(&[r#"{"error":{"code":-32601,"message":"?"}}"#]).await;
        assert_eq!(names.unwrap(), Vec::<String>::new());
        let (names, _) = discovered(&["{}"]).await;
        assert_eq!(names.unwrap_err(), "its answer to tools/list holds no result");
    }
}
