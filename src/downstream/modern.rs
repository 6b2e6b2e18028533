//! The stateless revision over HTTP (MCP 2026-07-28): the answers to its requests, and their statuses.

use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};

use crate::downstream::body::Body;
use crate::downstream::client_connection::Post;
use crate::downstream::header_names::PROTOCOL_VERSION;
use crate::downstream::modern_client::{ClientRefused, RequestParams};
use crate::downstream::placing;
use crate::downstream::reply::reply;
use crate::downstream::response::{json, plain, status};
use crate::downstream::subscription::{self, Subscription};
use crate::mcp::capabilities::ClientCapabilities;
use crate::mcp::headers::{self, Form};
use crate::mcp::jsonrpc::{self, Code};
use crate::mcp::revisions::{Era, MODERN};
use crate::proxy::caller::Endpoint;
use crate::proxy::caller::{Channel, Peer};
use crate::proxy::client::Client;
use crate::proxy::dispatch;
use crate::proxy::incoming::{Incoming, Received};
use crate::proxy::params::ParamHeaders;
use crate::proxy::reaction::Reaction;

/// Answers one message.
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

/// Answers one request, whose text is `body`.
async fn request(post: &Post<'_>, received: Received, body: Bytes) -> Response<Body> {
    let Some(id) = received.request.id.clone() else {
        // None of them means anything over HTTP (MCP 2026-07-28 §Sending Messages).
        return status(StatusCode::ACCEPTED);
    };
    let client = match admit(post, &received) {
        Ok(client) => client,
        Err(refused) => return refuse(refused.answer(post.worker, Some(&id))),
    };
    if let Some(answer) = placing::answered_elsewhere(post, &received, &body).await {
        return answer;
    }
    // What is answered here keeps what it needs of it, as long as it does.
    drop(body);
    let headers = post.head.headers.iter();
    let headers = headers.map(|(name, value)| (name.as_str(), value.as_bytes()));
    // The proxy's own tools have no parameters that headers repeat.
    let headers = (post.endpoint == Endpoint::All).then(|| ParamHeaders::pick(headers));
    let (principal, channel) = (post.principal.clone(), post.channel);
    let (endpoint, trace) = (post.endpoint, post.trace());
    let peer = Peer { client, principal, endpoint, channel, headers, trace };
    match dispatch::dispatch(post.worker, &peer, received) {
        Reaction::Answer(answer) => json(StatusCode::OK, Body::from(answer)),
        Reaction::Error(Code::MethodNotFound, answer) => {
            json(StatusCode::NOT_FOUND, Body::from(answer))
        }
        Reaction::Error(_, answer) => json(StatusCode::OK, Body::from(answer)),
        // Closing the connection is what ends it.
        Reaction::Call { id, running } => {
            reply(post.worker, &id, Era::Modern, None, running.into()).await
        }
        Reaction::Listen { .. } if post.channel == Channel::Answer => {
            plain(StatusCode::NOT_ACCEPTABLE, "Accept must include text/event-stream")
        }
        Reaction::Listen { id, filter } => {
            let draining = post.sessions.draining();
            let subscription = Subscription::new(post.worker, &peer, id, filter, draining).await;
            subscription::subscribed(post.sessions, subscription)
        }
        Reaction::Noted | Reaction::Cancel(_) | Reaction::Initialize(_) => {
            status(StatusCode::ACCEPTED)
        }
    }
}

/// The client behind a request, if body and headers hold what they must and agree.
fn admit(post: &Post<'_>, received: &Received) -> Result<Arc<Client>, ClientRefused> {
    if received.is_doubtful() {
        // It is refused for its doubtful body; whether headers agree with that cannot be said.
        return Ok(Arc::new(Client::new(
            Arc::from(""),
            "",
            MODERN,
            Era::Modern,
            ClientCapabilities::default(),
        )));
    }
    let params = RequestParams::read(&received.request)?;
    let version = params.version()?;
    let headers = &post.head.headers;
    let lines = headers.get_all(&PROTOCOL_VERSION).iter().map(|value| value.as_bytes());
    headers::agree(headers::PROTOCOL_VERSION, Form::Plain, lines, Some(&version))?;
    let client = params.known(&mut post.connection.client.borrow_mut())?;
    params.agree(headers, &received.request.method)?;
    Ok(client)
}
