//! The stateless revision (MCP 2026-07-28): each request says itself who sends it and how.
//!
//! Owns what such a request must carry, in its body and in its headers, and the statuses of its
//! answers. Nothing is remembered that a request does not say again.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use crate::downstream::body::Body;
use crate::downstream::http::{PROTOCOL_VERSION, Post, json, plain, reply, status};
use crate::downstream::legacy;
use crate::downstream::listen::{self, Subscription};
use crate::json::members::string;
use crate::mcp::capabilities::ClientCapabilities;
use crate::mcp::headers::{self, Form, HeaderMismatch, METHOD, NAME};
use crate::mcp::jsonrpc::{self, Code};
use crate::mcp::meta::{CAPABILITIES_KEY, VERSION_KEY};
use crate::mcp::revisions::{Era, LEGACY, MODERN};
use crate::proxy::Worker;
use crate::proxy::caller::{Channel, Endpoint, Peer};
use crate::proxy::client::{Client, Level};
use crate::proxy::dispatch::{self, ClientInfo, supported};
use crate::proxy::incoming::{self, Incoming, Received};
use crate::proxy::params::ParamHeaders;
use crate::proxy::reaction::Reaction;
use crate::proxy::render;

/// What a client says of itself is remembered up to this size.
const MAX_KNOWN_BYTES: usize = 4096;

/// A client that spoke before on a connection: what it said, and who that is.
#[derive(Debug)]
pub(super) struct Known {
    said: Box<str>,
    client: Arc<Client>,
}

/// Why a request is refused before it is looked at.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refused {
    /// `_meta` lacks what it must hold, or holds something else there.
    #[error("Invalid params: {0}")]
    Meta(String),
    /// The headers do not say what the body says.
    #[error("Header mismatch: {0}")]
    Headers(#[from] HeaderMismatch),
    /// It speaks a revision that is not served so.
    #[error("Unsupported protocol version")]
    Version(String),
}

impl Refused {
    /// The whole error response.
    pub(super) fn answer(&self, worker: &Worker, id: Option<&[u8]>) -> Bytes {
        let text = self.to_string();
        match self {
            Self::Meta(_) => jsonrpc::error(id, Code::InvalidParams, &text),
            Self::Headers(_) => jsonrpc::error(id, Code::HeaderMismatch, &text),
            Self::Version(requested) => {
                let requested = render::shown(requested);
                let data = json!({"supported": supported(worker), "requested": requested});
                jsonrpc::error_with(id, Code::UnsupportedVersion, &text, &data)
            }
        }
    }
}

#[derive(Default, Deserialize)]
struct Params<'a> {
    #[serde(borrow, default, rename = "_meta")]
    meta: Meta<'a>,
    #[serde(borrow)]
    name: Option<&'a RawValue>,
    #[serde(borrow)]
    uri: Option<&'a RawValue>,
    #[serde(borrow, rename = "taskId")]
    task_id: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
struct Meta<'a> {
    #[serde(borrow, rename = "io.modelcontextprotocol/protocolVersion")]
    version: Option<&'a RawValue>,
    #[serde(borrow, rename = "io.modelcontextprotocol/clientCapabilities")]
    capabilities: Option<&'a RawValue>,
    #[serde(borrow, rename = "io.modelcontextprotocol/clientInfo")]
    info: Option<&'a RawValue>,
    #[serde(borrow, rename = "io.modelcontextprotocol/logLevel")]
    level: Option<&'a RawValue>,
}

fn text<'a>(raw: &'a RawValue) -> Option<Cow<'a, str>> {
    string(raw.get())
}

impl<'a> Params<'a> {
    fn read(received: &'a Received) -> Result<Self, Refused> {
        match &received.request.params {
            None => Ok(Self::default()),
            Some(raw) => {
                serde_json::from_slice(raw).map_err(|problem| Refused::Meta(problem.to_string()))
            }
        }
    }

    fn version(&self) -> Result<Cow<'a, str>, Refused> {
        self.meta.version.and_then(text).ok_or_else(|| missing(VERSION_KEY))
    }

    /// The client that speaks, if it says all that it must.
    fn client(&self) -> Result<Client, Refused> {
        let version = self.version()?;
        if version != MODERN {
            return Err(Refused::Version(version.into_owned()));
        }
        let declared = self.meta.capabilities.and_then(|raw| {
            serde_json::from_str::<ClientCapabilities>(raw.get())
                .ok()
                .filter(|_| raw.get().starts_with('{'))
        });
        let client_capabilities = declared.ok_or_else(|| missing(CAPABILITIES_KEY))?;
        let info =
            self.meta.info.and_then(|raw| serde_json::from_str::<ClientInfo>(raw.get()).ok());
        let name = info.map(|info| info.name).unwrap_or_default();
        let client = Client::new(Arc::from(""), &name, MODERN, Era::Modern, client_capabilities);
        if let Some(level) = self.meta.level {
            let level: Level = serde_json::from_str(level.get())
                .map_err(|_| Refused::Meta("no such log level".to_owned()))?;
            client.set_level(level);
        }
        Ok(client)
    }

    /// The same, remembering the last one.
    fn known(&self, known: &mut Option<Known>) -> Result<Arc<Client>, Refused> {
        let said = [self.meta.version, self.meta.capabilities, self.meta.info, self.meta.level];
        let parts = || said.iter().map(|part| part.map_or("", RawValue::get));
        let length: usize = parts().map(|part| part.len() + 1).sum();
        if length > MAX_KNOWN_BYTES {
            return self.client().map(Arc::new);
        }
        let same = |known: &Known| {
            let mut rest = &*known.said;
            let mut next = |part: &str| {
                rest.strip_prefix(part)
                    .and_then(|left| left.strip_prefix('\0'))
                    .map(|left| rest = left)
            };
            parts().all(|part| next(part).is_some()) && rest.is_empty()
        };
        if let Some(known) = known.as_ref().filter(|known| same(known)) {
            return Ok(Arc::clone(&known.client));
        }
        let client = Arc::new(self.client()?);
        let said = parts().flat_map(|part| [part, "\0"]).collect::<String>().into_boxed_str();
        *known = Some(Known { said, client: Arc::clone(&client) });
        Ok(client)
    }

    /// Whether the headers repeat what the body says (MCP 2026-07-28 §Server Validation).
    fn agree(&self, headers: &HeaderMap, method: &str) -> Result<(), Refused> {
        let lines = |name: &'static str| headers.get_all(name).iter().map(|value| value.as_bytes());
        headers::agree(METHOD, Form::Plain, lines(METHOD), Some(method))?;
        let member = match headers::name_member(method) {
            Some("name") => self.name,
            Some("uri") => self.uri,
            Some(_) => self.task_id,
            None => None,
        };
        let name = member.and_then(text);
        headers::agree(NAME, Form::Encodable, lines(NAME), name.as_deref())?;
        Ok(())
    }
}

fn missing(key: &str) -> Refused {
    Refused::Meta(format!("_meta must hold {key}"))
}

/// The client behind a request without headers, as it comes over pipes; `None` if it speaks of no
/// revision in its `_meta`, so that it is of the other era.
pub(super) fn piped(received: &Received) -> Option<Result<Client, Refused>> {
    let method = &*received.request.method;
    match Params::read(received) {
        Ok(params) if params.meta.version.is_some() || is_modern_method(method) => {
            Some(params.client())
        }
        Ok(_) => None,
        Err(refused) => is_modern_method(method).then_some(Err(refused)),
    }
}

fn is_modern_method(method: &str) -> bool {
    matches!(method, "server/discover" | "subscriptions/listen")
}

/// Answers a POST whose headers do not tell its era.
pub(super) async fn post_of_either_era(post: &Post<'_>, body: Bytes) -> Response<Body> {
    let incoming = match incoming::read(post.worker, &body) {
        Ok(incoming) => incoming,
        Err(error) => return json(StatusCode::BAD_REQUEST, Body::from(error)),
    };
    match incoming {
        Incoming::Request(received) if is_modern(post, &received) => request(post, received).await,
        incoming => legacy::one(post, incoming).await,
    }
}

/// Whether a request outside of any session, whose headers do not say so, is of this era.
fn is_modern(post: &Post<'_>, received: &Received) -> bool {
    let method = &*received.request.method;
    if method == "initialize" || received.request.id.is_none() {
        return false;
    }
    let version = post.head.headers.get(&PROTOCOL_VERSION);
    let unknown = version
        .is_some_and(|version| !LEGACY.iter().any(|known| known.as_bytes() == version.as_bytes()));
    let said = Params::read(received).is_ok_and(|params| params.meta.version.is_some());
    unknown || said || is_modern_method(method)
}

/// Whether it opens a session. What says in `_meta` that it is of this era calls a method that there
/// is not.
fn is_initialize(received: &Received) -> bool {
    &*received.request.method == "initialize"
        && Params::read(received).map_or(true, |params| params.meta.version.is_none())
}

/// Answers a POST whose headers say that it is of this era.
pub(super) async fn post(post: &Post<'_>, body: Bytes) -> Response<Body> {
    match incoming::read(post.worker, &body) {
        Ok(Incoming::Request(received)) if is_initialize(&received) => {
            // It is what it is, whatever revision its header names.
            legacy::one(post, Incoming::Request(received)).await
        }
        Ok(Incoming::Request(received)) => request(post, received).await,
        Ok(Incoming::Response(_)) => {
            let text = "Invalid Request: in this revision clients send no responses";
            refuse(jsonrpc::error(None, Code::InvalidRequest, text))
        }
        Err(error) => refuse(error),
    }
}

fn refuse(error: Bytes) -> Response<Body> {
    json(StatusCode::BAD_REQUEST, Body::from(error))
}

async fn request(post: &Post<'_>, received: Received) -> Response<Body> {
    let Some(id) = received.request.id.clone() else {
        // None of them means anything over HTTP (MCP 2026-07-28 §Sending Messages).
        return status(StatusCode::ACCEPTED);
    };
    let client = match admit(post, &received) {
        Ok(client) => client,
        Err(refused) => return refuse(refused.answer(post.worker, Some(&id))),
    };
    let headers = post.head.headers.iter();
    let headers = headers.map(|(name, value)| (name.as_str(), value.as_bytes()));
    // The tools of ours have no parameters that headers repeat.
    let headers = (post.endpoint == Endpoint::All).then(|| ParamHeaders::pick(headers));
    let (principal, channel) = (post.principal.clone(), post.channel);
    let peer = Peer { client, principal, endpoint: post.endpoint, channel, headers };
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
            let subscription = Subscription::new(post.worker, &peer, id, filter, draining);
            listen::subscribed(post.sessions, subscription)
        }
        Reaction::Noted | Reaction::Cancel(_) | Reaction::Initialize(_) => {
            status(StatusCode::ACCEPTED)
        }
    }
}

/// The client behind a request, if body and headers say what they must and the same.
fn admit(post: &Post<'_>, received: &Received) -> Result<Arc<Client>, Refused> {
    if received.is_doubtful() {
        // It is refused for that; two readings of its headers' counterparts are of no use.
        return Ok(Arc::new(Client::new(
            Arc::from(""),
            "",
            MODERN,
            Era::Modern,
            ClientCapabilities::default(),
        )));
    }
    let params = Params::read(received)?;
    let version = params.version()?;
    let headers = &post.head.headers;
    let lines = headers.get_all(&PROTOCOL_VERSION).iter().map(|value| value.as_bytes());
    headers::agree(headers::PROTOCOL_VERSION, Form::Plain, lines, Some(&version))?;
    let client = params.known(&mut post.connection.client.borrow_mut())?;
    params.agree(headers, &received.request.method)?;
    Ok(client)
}
