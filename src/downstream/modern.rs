//! The modern revision over HTTP (MCP 2026-07-28 §Transports): each request describes its sender, and its headers repeat
//! part of its body. There are no sessions, and clients send no responses.

use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};
use mcpproxy_protocol::mcp::capabilities::ClientCapabilities;
use mcpproxy_protocol::mcp::headers::{Form, HeaderMismatch};
use mcpproxy_protocol::mcp::jsonrpc::Code;
use mcpproxy_protocol::mcp::revisions::{MODERN, ProtocolFamily};
use mcpproxy_protocol::mcp::{headers, jsonrpc};

use super::body::{Body, json, plain, status};
use super::reply::reply;
use super::request::{ClientRefused, PROTOCOL_VERSION, Post, RequestParams};
use super::{listen, placement};
use mcpproxy_gateway::proxy::client::{Channel, Client, Endpoint, Peer};
use mcpproxy_gateway::proxy::dispatch::{Incoming, Received};
use mcpproxy_gateway::proxy::params::ParamHeaders;
use mcpproxy_gateway::proxy::refusal::{Refusal, RefusalKind};
use mcpproxy_gateway::proxy::reply::Reaction;
use mcpproxy_gateway::proxy::{call, dispatch};

/// Serves one message, whose text is `body`.
pub(super) async fn one(post: &Post<'_>, incoming: Incoming, body: Bytes) -> Response<Body> {
    match incoming {
        Incoming::Request(received) => request(post, received, body).await,
        Incoming::Response(_) => {
            let text = "Invalid Request: in this revision clients send no responses";
            refuse(jsonrpc::error(None, Code::InvalidRequest, text))
        }
    }
}

fn refuse(error: Bytes) -> Response<Body> {
    json(StatusCode::BAD_REQUEST, Body::from(error))
}

/// Serves one request, whose text is `body`.
async fn request(post: &Post<'_>, received: Received, body: Bytes) -> Response<Body> {
    let Some(id) = received.request.id.clone() else {
        // Notifications have no meaning over HTTP (MCP 2026-07-28 §Sending Messages).
        return status(StatusCode::ACCEPTED);
    };
    let client = match admit(post, &received) {
        Ok(client) => client,
        Err(refused) => {
            if let (ClientRefused::Headers(mismatch), "tools/call") =
                (&refused, &*received.request.method)
            {
                // This future is rare and large, so it is boxed to keep it out of every request's future.
                Box::pin(record_mismatch(post, &id, mismatch)).await;
            }
            return refuse(refused.answer(post.worker, Some(&id)));
        }
    };
    if let Some(answer) = placement::answer_modern_elsewhere(post, &received, &body).await {
        return answer;
    }
    // The call keeps the slices of the body that it needs.
    drop(body);
    let headers = post.head.headers.iter();
    let headers = headers.map(|(name, value)| (name.as_str(), value.as_bytes()));
    // Built-in tools have no parameters repeated in headers.
    let headers = (post.endpoint != Endpoint::Search).then(|| ParamHeaders::pick(headers));
    let (principal, channel) = (post.principal.clone(), post.channel);
    let (endpoint, trace) = (post.endpoint.clone(), post.trace());
    let peer = Peer { client, principal, endpoint, channel, headers, trace };
    match dispatch::dispatch(post.worker, &peer, received) {
        Reaction::Answer(answer) => json(StatusCode::OK, Body::from(answer)),
        Reaction::Error(Code::MethodNotFound, answer) => {
            json(StatusCode::NOT_FOUND, Body::from(answer))
        }
        Reaction::Error(Code::MissingCapability, answer) => {
            json(StatusCode::BAD_REQUEST, Body::from(answer))
        }
        Reaction::Error(_, answer) => json(StatusCode::OK, Body::from(answer)),
        // The call ends when the connection is closed.
        Reaction::Call { id, running } => {
            reply(post.worker, &id, ProtocolFamily::Modern, None, post.channel, running.into())
                .await
        }
        Reaction::Listen { .. } if post.channel == Channel::Answer => {
            plain(StatusCode::NOT_ACCEPTABLE, "Accept must include text/event-stream")
        }
        Reaction::Listen { id, filter } => {
            Box::pin(listen::subscribe(post.worker, post.sessions, &peer, id, filter)).await
        }
        Reaction::Noted | Reaction::Cancel(_) | Reaction::Initialize(_) => {
            status(StatusCode::ACCEPTED)
        }
    }
}

/// Records a tool call whose headers disagree with its body.
async fn record_mismatch(post: &Post<'_>, id: &Bytes, mismatch: &HeaderMismatch) {
    let peer = Peer {
        client: unknown_client(),
        principal: post.principal.clone(),
        endpoint: post.endpoint.clone(),
        channel: post.channel,
        headers: None,
        trace: post.trace(),
    };
    let refusal = Refusal::rejected(RefusalKind::Headers, format!("Header mismatch: {mismatch}"));
    // The refusal is sent even if it cannot be recorded.
    let _ = call::rejected(post.worker, peer.caller(id), String::new(), refusal).next().await;
}

/// Placeholder client of a request that is refused before its body is parsed.
fn unknown_client() -> Arc<Client> {
    let capabilities = ClientCapabilities::default();
    Arc::new(Client::new(Arc::from(""), "", MODERN, ProtocolFamily::Modern, capabilities))
}

/// The client of a request, if body and headers are valid and consistent.
fn admit(post: &Post<'_>, received: &Received) -> Result<Arc<Client>, ClientRefused> {
    if received.is_ambiguous() {
        // The request is refused because its body is ambiguous, so that headers cannot be compared with it.
        return Ok(unknown_client());
    }
    let params = RequestParams::read(&received.request)?;
    let version = params.version()?;
    let headers = &post.head.headers;
    let lines = headers.get_all(&PROTOCOL_VERSION).iter().map(|value| value.as_bytes());
    headers::agree(headers::PROTOCOL_VERSION, Form::Plain, lines, Some(&version)).map_err(
        |mismatch| match (mismatch, headers.get(&PROTOCOL_VERSION)) {
            (HeaderMismatch::Different(_), Some(stated)) => {
                HeaderMismatch::of_versions(stated.as_bytes(), &version)
            }
            (other, _) => other,
        },
    )?;
    let client = params.known(&mut post.connection.client.borrow_mut())?;
    params.agree(headers, &received.request.method)?;
    Ok(client)
}
