//! rmcp's own server as an independent peer, over pipes, in both eras.

use std::borrow::Cow;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, ErrorData, InitializeResult, ListToolsResult,
    PaginatedRequestParams, ProgressNotificationParam, ProtocolVersion, ServerCapabilities,
    ServerConfig,
};
use rmcp::service::{RequestContext, RoleServer};
use rmcp::{ServerHandler, ServiceExt};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::*;
use crate::io::deadline::Allowance;
use crate::upstream::error::Cause;
use crate::upstream::lifecycle::{self, PipeTransport};
use crate::upstream::probe::{Probed, Start};
use crate::upstream::request::{Fields, Params};
use crate::upstream::stdio::{self, ChildLink};

/// A server of these versions with one tool, which tells of its progress.
#[derive(Clone)]
struct Peer(&'static [ProtocolVersion]);

impl ServerHandler for Peer {
    fn get_info(&self) -> ServerConfig {
        InitializeResult::new(ServerCapabilities::builder().enable_tools().build())
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Borrowed(self.0)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tools = json!({"tools": [{"name": "t", "inputSchema": {"type": "object"}}]});
        Ok(serde_json::from_value(tools).unwrap())
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let token = context.meta.get_progress_token().unwrap();
        let told = ProgressNotificationParam::new(token, 1.0);
        context.peer.notify_progress(told).await.unwrap();
        let text = format!("{} {}", request.name, json!(request.arguments));
        let result = json!({"content": [{"type": "text", "text": text}]});
        Ok(CallToolResponse::Complete(serde_json::from_value(result).unwrap()))
    }
}

/// Connects to it over pipes, lists its tools and calls one; the version and the messages.
async fn talk(versions: &'static [ProtocolVersion], start: Start) -> (String, Vec<String>) {
    let (ours, theirs) = tokio::io::duplex(4096);
    let (read, write) = tokio::io::split(ours);
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let served = Peer(versions).serve(tokio::io::split(theirs)).await.unwrap();
        served.waiting().await.unwrap();
    });
    let (link, queue) = ChildLink::new(Arc::default(), Arc::default());
    let (out, inbox) = mpsc::channel(16);
    tasks.spawn(stdio::write(link.clone(), queue, write));
    let reader = link.clone();
    tasks.spawn(async move {
        stdio::read(reader, read, out, 1).await;
    });
    let pipe = PipeTransport { link: link.clone(), inbox, limit: PATIENCE };
    let transport = Probed::new(pipe, PATIENCE, Start::Probe, Arc::default());
    let (service, greeting) =
        lifecycle::initialize(&link.peer, transport, PATIENCE, start).await.unwrap();
    assert!(greeting.about.offers.tools);
    let era = greeting.about.era;

    let list = Params::of("tools/list", Bytes::from_static(b"{}"));
    let mut messages = collect(&link, &list, era).await.unwrap();
    let (arguments, members) = (Bytes::from_static(br#"{"n":1}"#), Bytes::new());
    let fields = Fields::Call { arguments, members, parameter_headers: None };
    let meta = Some(Bytes::from_static(br#"{"progressToken":"theirs"}"#));
    let call = Params { method: "tools/call", name: Some("t".into()), meta, trace: None, fields };
    messages.extend(collect(&link, &call, era).await.unwrap());
    drop(service);
    (greeting.protocol_version.unwrap().to_string(), messages)
}

async fn collect(link: &Arc<ChildLink>, params: &Params, era: Era) -> Result<Vec<String>, Cause> {
    let line = |id| params.line(id, era);
    let client_capabilities = Some(ClientCapabilities::default());
    let mut call =
        stdio::StdioCall::begin(link, line, Allowance::now(PATIENCE), client_capabilities)
            .await
            .map_err(|(cause, _)| cause)?;
    let (mut messages, mut message) = (Vec::new(), Vec::new());
    while let Some(part) = within(call.next()).await? {
        match part {
            AnswerPart::Data(data) => message.extend_from_slice(&data),
            AnswerPart::End => {
                messages.push(String::from_utf8(std::mem::take(&mut message)).unwrap());
            }
        }
    }
    Ok(messages)
}

#[tokio::test]
async fn rmcp_serves_us_in_both_eras() {
    const OLD: &[ProtocolVersion] = &[ProtocolVersion::V_2025_06_18];
    for (versions, start, expected) in [
        (ProtocolVersion::KNOWN_VERSIONS, Start::Probe, "2026-07-28"),
        (ProtocolVersion::KNOWN_VERSIONS, Start::Known(Era::Modern), "2026-07-28"),
        (ProtocolVersion::KNOWN_VERSIONS, Start::Known(Era::Legacy), "2025-11-25"),
        (OLD, Start::Probe, "2025-06-18"),
    ] {
        let (version, messages) = within(talk(versions, start)).await;
        assert_eq!(version, expected, "{start:?}");
        let [list, progress, result] = &messages[..] else { panic!("{messages:?}") };
        assert!(list.contains(r#""name":"t""#), "{list}");
        assert!(progress.contains("notifications/progress"), "{progress}");
        assert!(result.contains(r#"t {\"n\":1}"#), "{result}");
    }
}
