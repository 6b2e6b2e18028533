//! `POST /api/v1/tools/call`: the same call as over MCP, in the REST envelope (FR-A2).

use std::borrow::Cow;
use std::rc::Rc;

use bytes::{Buf, Bytes};
use http::header::USER_AGENT;
use http::{HeaderMap, Response, StatusCode};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::request::{ApiRequest, read_body};
use super::response::{self, ApiError, Success};
use mcpproxy_activity::record::Source;
use mcpproxy_downstream::body::{Body, Streamed};
use mcpproxy_gateway::proxy::call::{self, CallToolInput};
use mcpproxy_gateway::proxy::client::Caller;
use mcpproxy_gateway::proxy::refusal::{Refusal, RefusalKind};
use mcpproxy_gateway::proxy::reply::{Piece, Running};
use mcpproxy_gateway::proxy::{Worker, builtin, dispatch, render};
use mcpproxy_policy::Principal;
use mcpproxy_policy::intent::{NO_CALL_TOOL, Operation, Requirement};
use mcpproxy_protocol::mcp::trace_context::PropagatedContext;
use mcpproxy_protocol::wire::splice::Splice;
use mcpproxy_schema::output::AnswerMember;
use mcpproxy_upstream::CallExtras;

/// Header that identifies the command line.
pub const SOURCE: &str = "x-mcpproxy-source";

/// Maximum number of bytes of an upstream's JSON-RPC error that are read for its message.
const MAX_ERROR_BYTES: usize = 64 * 1024;

/// Calls a tool of an upstream server.
///
/// The call works as over MCP: the stated intent is checked, the result validated, the outcome recorded. `data` is the
/// tool result verbatim; a failed tool and a blocked result are results with `isError`.
#[utoipa::path(
    post,
    path = "/api/v1/tools/call",
    tag = "tools",
    operation_id = "callTool",
    request_body(content = Parts, description = "The call tool, its arguments and the intent. Duplicate keys are rejected."),
    responses(
        (status = 200, description = "The tool's result", body = Success<ToolResult>),
        (status = 400, description = "The body, the intent or the query is invalid"),
        (status = 403, description = "The tool's annotations or capability do not allow this call tool, or Host or Origin is not allowed"),
        (status = 404, description = "There is no such call tool, server or tool"),
        (status = 408, description = "The body was not received in time"),
        (status = 413, description = "The body is too large"),
        (status = 500, description = "Internal error of the proxy"),
        (status = 502, description = "The upstream server failed, or returned a JSON-RPC error"),
        (status = 503, description = "The call cannot be recorded, so it is not made; or it was aborted because mcpproxy is shutting down"),
    )
)]
pub(super) async fn call(
    ApiRequest { worker, principal, parts, id, query, body, .. }: ApiRequest<'_>,
) -> Result<Response<Body>, ApiError> {
    let body = read_body(query, body).await?;
    let headers = &parts.headers;
    let mut caller = caller(principal.clone(), headers, id);
    if worker.settings().traces.is_some() {
        caller.trace = PropagatedContext::of_headers(headers).map(Box::new);
    }
    let running = match dispatch::check(worker, &body)
        .map_err(Unreadable::Body)
        .and_then(|()| Request::read(&body))
    {
        Ok(Request { variant, given }) => {
            call::call(worker, caller, variant, given, CallExtras::default())
        }
        Err(Unreadable::NoSuchTool { name, text }) => {
            let refusal = Refusal::rejected(RefusalKind::Unknown, text);
            call::rejected(worker, caller, name, refusal)
        }
        Err(Unreadable::Body(text)) => {
            let refusal = Refusal::rejected(RefusalKind::Unreadable, text);
            call::rejected(worker, caller, String::new(), refusal)
        }
    };
    Ok(respond(worker, running, id).await)
}

/// The verbatim tool result: `content`, `structuredContent`, `isError` and other members.
#[derive(ToSchema)]
#[schema(value_type = Object)]
struct ToolResult(());

/// The body of a request.
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

/// The schema of each call tool is the same as over MCP, except that the intent is next to the arguments and optional
/// members may be null.
impl PartialSchema for Parts<'_> {
    fn schema() -> RefOr<Schema> {
        let requests = Operation::ALL.map(|variant| {
            let schema = builtin::call_schema(variant, Requirement::Required);
            let property = |path: &str| schema.pointer(path).cloned().unwrap_or_default();
            let name = with(
                property("/properties/name"),
                json!({"pattern": "^[^:]+:[^\n]+$", "format": "server-tool"}),
            );
            let args_json = property("/properties/args_json");
            let arguments = [
                ("args", nullable(property("/properties/args"))),
                ("args_json", nullable(with(args_json, json!({"format": "json-object"})))),
            ];
            let arguments = arguments.map(|(key, value)| {
                json!({
                    "type": "object",
                    "properties": {"name": name, key: value},
                    "required": ["name"],
                    "additionalProperties": false,
                })
            });
            let stated = |name: &str| property(&format!("/properties/intent/properties/{name}"));
            let operation = with(stated("operation_type"), json!({"enum": [variant.as_str()]}));
            let fields = json!({
                "operation_type": operation,
                "data_sensitivity": nullable(stated("data_sensitivity")),
                "reason": nullable(stated("reason")),
            });
            json!({
                "type": "object",
                "properties": {
                    "tool_name": {"type": "string", "enum": [variant.variant()]},
                    "arguments": {"anyOf": arguments},
                    "intent": with(property("/properties/intent"), json!({"properties": fields})),
                },
                "required": ["tool_name", "arguments", "intent"],
                "additionalProperties": false,
            })
        });
        serde_json::from_value(json!({"oneOf": requests})).unwrap_or_default()
    }
}

/// Replaces or adds members of a schema.
fn with(mut schema: Value, members: Value) -> Value {
    if let (Value::Object(schema), Value::Object(members)) = (&mut schema, members) {
        schema.extend(members);
    }
    schema
}

/// Extends a schema to accept null.
fn nullable(mut schema: Value) -> Value {
    if let Some(kind) = schema.get_mut("type") {
        *kind = json!([kind, "null"]);
    }
    if let Some(Value::Array(words)) = schema.get_mut("enum") {
        words.push(Value::Null);
    }
    schema
}

impl ToSchema for Parts<'_> {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("CallRequest")
    }
}

/// A parsed request.
#[derive(Debug)]
struct Request {
    variant: Operation,
    given: CallToolInput,
}

#[derive(Debug, PartialEq, Eq)]
enum Unreadable {
    NoSuchTool { name: String, text: String },
    Body(String),
}

impl Request {
    fn read(body: &Bytes) -> Result<Self, Unreadable> {
        let parts: Parts<'_> = serde_json::from_slice(body)
            .map_err(|error| Unreadable::Body(format!("Invalid request body: {error}")))?;
        let variant = Operation::of_tool(&parts.tool_name).ok_or_else(|| {
            let name = render::shown(&parts.tool_name);
            let text = match &*parts.tool_name {
                "call_tool" => NO_CALL_TOOL.to_owned(),
                _ => format!(
                    "Tool '{name}' not found: tool_name must be call_tool_read, \
                     call_tool_write, or call_tool_destructive"
                ),
            };
            Unreadable::NoSuchTool { name, text }
        })?;
        let arguments = body.slice_ref(parts.arguments.get().as_bytes());
        Ok(Self {
            variant,
            given: CallToolInput { arguments, intent: parts.intent.map(RawValue::to_owned) },
        })
    }
}

/// Returns the interface through which a request arrived.
pub(super) fn source(headers: &HeaderMap) -> Source {
    match headers.get(SOURCE).map(http::HeaderValue::as_bytes) {
        Some(b"cli") => Source::Cli,
        Some(_) | None => Source::Api,
    }
}

fn caller(principal: Principal, headers: &HeaderMap, request_id: &str) -> Caller {
    let source = source(headers);
    let client = headers.get(USER_AGENT).and_then(|name| name.to_str().ok()).unwrap_or_default();
    Caller {
        source,
        principal,
        request_id: Bytes::copy_from_slice(request_id.as_bytes()),
        name: client.into(),
        client: None,
        extensions: false,
        trace: None,
    }
}

/// Builds the response from a reply: in one piece if the reply is already complete, otherwise streamed.
async fn respond(worker: &Rc<Worker>, mut running: Running, request_id: &str) -> Response<Body> {
    loop {
        let Some(Ok(piece)) = running.next().await else {
            return internal("no reply", request_id);
        };
        match piece {
            // These pieces cannot be represented in a plain response.
            Piece::Notification(_) | Piece::Request(_) | Piece::Alive => {}
            Piece::Whole(AnswerMember::Result, result) => {
                worker.defer(running);
                return response::success(result, request_id);
            }
            Piece::Begin(AnswerMember::Result) => {
                let streamed = Streamed::new(running.into(), response::HEAD, response::TAIL);
                return response::json(StatusCode::OK, Body::Call(Box::new(streamed)), request_id);
            }
            Piece::Whole(AnswerMember::Error, error) => {
                worker.defer(running);
                return upstream_error(error, request_id);
            }
            Piece::Begin(AnswerMember::Error) => {
                return match gather(&mut running).await {
                    Some(error) => upstream_error(error, request_id),
                    None => internal("the upstream's error was truncated", request_id),
                };
            }
            Piece::Data(_) => return internal("no head", request_id),
            Piece::Refused(refusal) => {
                worker.defer(running);
                let mut error = ApiError::new(refusal.kind.rest_status(), refusal.text);
                error.retry_after = refusal.retry_after;
                return error.response(request_id);
            }
        }
    }
}

/// Collects the rest of a value that arrives in pieces; `None` if it is truncated.
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

/// Maps an upstream's JSON-RPC error to 502 with its message.
fn upstream_error(mut error: Splice, request_id: &str) -> Response<Body> {
    #[derive(Deserialize)]
    struct ErrorBody {
        message: String,
    }
    let error = error.copy_to_bytes(error.len());
    let text = match serde_json::from_slice::<ErrorBody>(&error) {
        Ok(ErrorBody { message }) => message,
        Err(_) => String::from_utf8_lossy(&error).into_owned(),
    };
    response::error(StatusCode::BAD_GATEWAY, &text, request_id)
}

fn internal(what: &str, request_id: &str) -> Response<Body> {
    let text = format!("Internal error: {what}");
    response::error(StatusCode::INTERNAL_SERVER_ERROR, &text, request_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<(Operation, CallToolInput), Unreadable> {
        let body = Bytes::copy_from_slice(body.as_bytes());
        Request::read(&body).map(|request| (request.variant, request.given))
    }

    #[test]
    fn arguments_and_intent_keep_their_bytes() {
        let body = r#"{"tool_name":"call_tool_read","arguments":{ "name":"a:b", "args":{"n":1.0} },"intent":{"operation_type" :"read"}}"#;
        let (variant, given) = read(body).unwrap();
        assert_eq!(variant, Operation::Read);
        assert_eq!(given.arguments, r#"{ "name":"a:b", "args":{"n":1.0} }"#);
        assert_eq!(given.intent.unwrap().get(), r#"{"operation_type" :"read"}"#);
        for none in ["", r#","intent":null"#] {
            let body = format!(r#"{{"tool_name":"call_tool_write","arguments":{{"a":1}}{none}}}"#);
            let (_, given) = read(&body).unwrap();
            assert_eq!((&*given.arguments, given.intent.is_some()), (&br#"{"a":1}"#[..], false));
        }
    }

    #[test]
    fn fr_004_legacy_call_tool_is_refused_with_a_hint() {
        let body = r#"{"tool_name":"call_tool","arguments":{}}"#;
        let refused =
            Unreadable::NoSuchTool { name: "call_tool".to_owned(), text: NO_CALL_TOOL.to_owned() };
        assert_eq!(read(body).unwrap_err(), refused);
        let body = r#"{"tool_name":"retrieve_tools","arguments":{}}"#;
        assert!(matches!(read(body), Err(Unreadable::NoSuchTool { .. })));
    }

    #[test]
    fn malformed_bodies_are_rejected() {
        for body in [
            "",
            "[]",
            "{}",
            r#"{"tool_name":"call_tool_read"}"#,
            r#"{"tool_name":"call_tool_read","arguments":{},"arguments":{}}"#,
            r#"{"tool_name":"call_tool_read","tool_n\u0061me":"call_tool_write","arguments":{}}"#,
            r#"{"tool_name":"call_tool_read","arguments":{},"extra":1}"#,
        ] {
            assert!(matches!(read(body), Err(Unreadable::Body(_))), "{body}");
        }
    }
}
