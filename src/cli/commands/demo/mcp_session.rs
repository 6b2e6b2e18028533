//! The demo's agent: one MCP session over streamable HTTP.

use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method};

use crate::cli::http_client::{HttpAnswer, HttpClient, RequestError};
use crate::mcp::headers::{PROTOCOL_VERSION, SESSION_ID};
use crate::mcp::revisions::Revision;

/// The protocol revision that the demo speaks.
const MCP_REVISION: &str = Revision::June2025.name();

/// A session that was opened.
#[derive(Debug)]
pub(super) struct McpSession {
    client: HttpClient,
    headers: HeaderMap,
    /// The id of the last request.
    last_id: u64,
}

impl McpSession {
    /// Connects and does the `initialize` handshake, as an agent does: without the API key.
    pub(super) async fn open(server: &HttpClient) -> Result<Self, RequestError> {
        let headers = HeaderMap::from_iter([
            (CONTENT_TYPE, HeaderValue::from_static("application/json")),
            (ACCEPT, HeaderValue::from_static("application/json, text/event-stream")),
        ]);
        let mut session = Self { client: server.without_key(), headers, last_id: 0 };
        session.headers.insert(PROTOCOL_VERSION, HeaderValue::from_static(MCP_REVISION));
        let client = serde_json::json!({
            "protocolVersion": MCP_REVISION, "capabilities": {},
            "clientInfo": {"name": "mcpproxy-demo", "version": env!("CARGO_PKG_VERSION")},
        });
        let answer = session.request("initialize", &client).await?;
        if let Some(id) = answer.headers.get(SESSION_ID) {
            session.headers.insert(SESSION_ID, id.clone());
        }
        let ready = serde_json::json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        session.post(ready.to_string()).await?;
        Ok(session)
    }

    /// One `tools/call`; the answer's body is the JSON-RPC message as it came.
    pub(super) async fn call(
        &mut self,
        tool: &str,
        arguments: &serde_json::Value,
    ) -> Result<HttpAnswer, RequestError> {
        let params = serde_json::json!({"name": tool, "arguments": arguments});
        self.request("tools/call", &params).await
    }

    async fn request(
        &mut self,
        method: &str,
        params: &serde_json::Value,
    ) -> Result<HttpAnswer, RequestError> {
        self.last_id += 1;
        let message = serde_json::json!({
            "jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params,
        });
        self.post(message.to_string()).await
    }

    async fn post(&self, message: String) -> Result<HttpAnswer, RequestError> {
        let headers = self.headers.clone();
        self.client.send(Method::POST, "/mcp", headers, message.into()).await?.whole().await
    }
}
