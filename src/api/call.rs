//! `POST /api/v1/tools/call`: the same call as over MCP, in REST's envelope (FR-A2).

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use http::header::USER_AGENT;
use http::{HeaderMap, Response, StatusCode};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::answer;
use crate::activity::record::Source;
use crate::downstream::body::{Body, Streamed};
use crate::intent::{NO_CALL_TOOL, Operation};
use crate::output::Member;
use crate::proxy::Worker;
use crate::proxy::call::{self, Caller};
use crate::proxy::dispatch;
use crate::proxy::reply::{Piece, Refusal, RefusalKind, Running};
use crate::upstream::Beside;
use crate::wire::splice::Splice;

/// The header by which the command line says who it is.
const SOURCE: &str = "x-mcpproxy-source";

/// Most bytes of an upstream's JSON-RPC error that are read for its message.
const MAX_ERROR_BYTES: usize = 64 * 1024;

/// Makes the call and wraps what comes of it.
pub(super) async fn call(
    worker: &Rc<Worker>,
    headers: &HeaderMap,
    request_id: &str,
    body: Bytes,
) -> Response<Body> {
    let caller = caller(headers, request_id);
    let ours = Rc::clone(worker);
    let running = match dispatch::check(worker, &body)
        .map_err(Unreadable::Body)
        .and_then(|()| Request::read(&body))
    {
        Ok(Request { variant, arguments }) => Running::new(|reply| {
            call::call(ours, caller, variant, arguments, Beside::default(), reply)
        }),
        Err(Unreadable::NoSuchTool { name, text }) => {
            let refusal = Refusal { kind: RefusalKind::Unknown, text };
            Running::new(|reply| call::unreadable(ours, caller, name.into(), refusal, reply))
        }
        Err(Unreadable::Body(text)) => {
            let refusal = Refusal { kind: RefusalKind::Unreadable, text };
            Running::new(|reply| call::unreadable(ours, caller, Arc::default(), refusal, reply))
        }
    };
    respond(worker, running, request_id).await
}

/// A request that can be read.
#[derive(Debug, PartialEq, Eq)]
struct Request {
    variant: Operation,
    /// What the variant is given: `arguments` with the intent inside.
    arguments: Bytes,
}

#[derive(Debug, PartialEq, Eq)]
enum Unreadable {
    NoSuchTool { name: String, text: String },
    Body(String),
}

impl Request {
    fn read(body: &[u8]) -> Result<Self, Unreadable> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Parts<'a> {
            #[serde(borrow)]
            tool_name: Cow<'a, str>,
            #[serde(borrow)]
            arguments: &'a RawValue,
            #[serde(borrow)]
            intent: Option<&'a RawValue>,
        }
        let parts: Parts<'_> = serde_json::from_slice(body)
            .map_err(|error| Unreadable::Body(format!("Invalid request body: {error}")))?;
        let variant = Operation::of_tool(&parts.tool_name).ok_or_else(|| {
            let name = dispatch::shown(&parts.tool_name);
            let text = match &*parts.tool_name {
                "call_tool" => NO_CALL_TOOL.to_owned(),
                _ => format!(
                    "Tool '{name}' not found: tool_name must be call_tool_read, \
                     call_tool_write, or call_tool_destructive"
                ),
            };
            Unreadable::NoSuchTool { name, text }
        })?;
        let arguments = parts.arguments.get();
        let Some(members) = arguments.strip_prefix('{') else {
            return Err(Unreadable::Body("Invalid arguments: must be a JSON object".to_owned()));
        };
        let arguments = match parts.intent {
            None => arguments.to_owned(),
            // In front of the other members; an intent among them too is a duplicate, and refused.
            Some(intent) => {
                let comma = if members.trim_start().starts_with('}') { "" } else { "," };
                format!(r#"{{"intent":{}{comma}{members}"#, intent.get())
            }
        };
        Ok(Self { variant, arguments: arguments.into() })
    }
}

fn caller(headers: &HeaderMap, request_id: &str) -> Caller {
    let source = match headers.get(SOURCE).map(http::HeaderValue::as_bytes) {
        Some(b"cli") => Source::Cli,
        Some(_) | None => Source::Api,
    };
    let client = headers.get(USER_AGENT).and_then(|name| name.to_str().ok()).unwrap_or_default();
    Caller {
        source,
        session_id: Arc::from(""),
        client_name: Arc::from(client),
        request_id: request_id.into(),
        client: None,
    }
}

/// Turns a reply into an answer: whole if it is there at once, else streamed.
async fn respond(worker: &Rc<Worker>, mut running: Running, request_id: &str) -> Response<Body> {
    loop {
        let Some(Ok(piece)) = running.next().await else {
            return internal("no reply", request_id);
        };
        match piece {
            // There is no place for it in a plain answer.
            Piece::Notification(_) | Piece::Request(_) => {}
            Piece::Whole(Member::Result, result) => {
                worker.defer(running);
                return answer::success(result, request_id);
            }
            Piece::Begin(Member::Result) => {
                let streamed = Streamed::new(running.into(), answer::HEAD, answer::TAIL);
                return answer::json(StatusCode::OK, Body::Call(Box::new(streamed)), request_id);
            }
            Piece::Whole(Member::Error, error) => {
                worker.defer(running);
                return upstream_error(error, request_id);
            }
            Piece::Begin(Member::Error) => {
                return match gather(&mut running).await {
                    Some(error) => upstream_error(error, request_id),
                    None => internal("the upstream's error broke off", request_id),
                };
            }
            Piece::Data(_) => return internal("no head", request_id),
            Piece::Refused(refusal) => {
                worker.defer(running);
                return answer::error(status(refusal.kind), &refusal.text, request_id);
            }
        }
    }
}

/// The rest of a value that came in pieces; `None` if it broke off.
async fn gather(running: &mut Running) -> Option<Splice> {
    let mut whole = Splice::new();
    while let Some(piece) = running.next().await {
        match piece {
            Ok(Piece::Data(data)) if whole.len() < MAX_ERROR_BYTES => whole.extend(data),
            Ok(_) => {}
            Err(_) => return None,
        }
    }
    Some(whole)
}

/// An upstream's JSON-RPC error: 502 with its message.
fn upstream_error(mut error: Splice, request_id: &str) -> Response<Body> {
    #[derive(Deserialize)]
    struct Message {
        message: String,
    }
    let error = error.copy_to_bytes(error.len());
    let text = match serde_json::from_slice::<Message>(&error) {
        Ok(Message { message }) => message,
        Err(_) => String::from_utf8_lossy(&error).into_owned(),
    };
    answer::error(StatusCode::BAD_GATEWAY, &text, request_id)
}

fn internal(what: &str, request_id: &str) -> Response<Body> {
    let text = format!("Internal error: {what}");
    answer::error(StatusCode::INTERNAL_SERVER_ERROR, &text, request_id)
}

fn status(kind: RefusalKind) -> StatusCode {
    match kind {
        RefusalKind::Unreadable | RefusalKind::Intent => StatusCode::BAD_REQUEST,
        RefusalKind::Gate => StatusCode::FORBIDDEN,
        RefusalKind::Unknown => StatusCode::NOT_FOUND,
        RefusalKind::Upstream | RefusalKind::Failed => StatusCode::BAD_GATEWAY,
        RefusalKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<(Operation, String), Unreadable> {
        Request::read(body.as_bytes())
            .map(|r| (r.variant, String::from_utf8(r.arguments.to_vec()).unwrap()))
    }

    #[test]
    fn the_intent_joins_the_arguments_and_their_bytes_stay() {
        let body = r#"{"tool_name":"call_tool_read","arguments":{ "name":"a:b", "args":{"n":1.0} },"intent":{"operation_type":"read"}}"#;
        let (variant, arguments) = read(body).unwrap();
        assert_eq!(variant, Operation::Read);
        assert_eq!(
            arguments,
            r#"{"intent":{"operation_type":"read"}, "name":"a:b", "args":{"n":1.0} }"#
        );
        let (_, arguments) =
            read(r#"{"tool_name":"call_tool_write","arguments":{ },"intent":{}}"#).unwrap();
        assert_eq!(arguments, r#"{"intent":{} }"#);
        let (_, arguments) =
            read(r#"{"tool_name":"call_tool_write","arguments":{"a":1}}"#).unwrap();
        assert_eq!(arguments, r#"{"a":1}"#);
    }

    #[test]
    fn fr_004_the_legacy_tool_is_told_where_to_go() {
        let body = r#"{"tool_name":"call_tool","arguments":{}}"#;
        let refused =
            Unreadable::NoSuchTool { name: "call_tool".to_owned(), text: NO_CALL_TOOL.to_owned() };
        assert_eq!(read(body), Err(refused));
        let body = r#"{"tool_name":"retrieve_tools","arguments":{}}"#;
        assert!(matches!(read(body), Err(Unreadable::NoSuchTool { .. })));
    }

    #[test]
    fn unreadable_bodies_are_named() {
        for body in [
            "",
            "[]",
            "{}",
            r#"{"tool_name":"call_tool_read"}"#,
            r#"{"tool_name":"call_tool_read","arguments":[]}"#,
            r#"{"tool_name":"call_tool_read","arguments":{},"arguments":{}}"#,
            r#"{"tool_name":"call_tool_read","tool_n\u0061me":"call_tool_write","arguments":{}}"#,
            r#"{"tool_name":"call_tool_read","arguments":{},"extra":1}"#,
        ] {
            assert!(matches!(read(body), Err(Unreadable::Body(_))), "{body}");
        }
    }
}
