//! Common parts of all REST responses: the envelope, JSON errors, and the request id (the client's own if it is valid,
//! otherwise a generated one).

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use jiff::Timestamp;
use serde::Serialize;
use ulid::Ulid;
use utoipa::ToSchema;
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::{RefOr, Schema};

use mcpproxy_downstream::body::Body;
use mcpproxy_protocol::wire::splice::Splice;
use mcpproxy_runtime::io::clock::wall_ms;

/// Bytes before the data of a success.
pub(super) const HEAD: Bytes = Bytes::from_static(br#"{"success":true,"data":"#);

/// Bytes after the data of a success.
pub(super) const TAIL: Bytes = Bytes::from_static(b"}");

/// A successful response.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes the envelope in OpenAPI; HEAD and TAIL write it")]
pub(super) struct Success<T> {
    /// Always true.
    #[schema(schema_with = always::<true>)]
    success: bool,
    data: T,
}

/// An error response.
#[derive(Serialize, ToSchema)]
#[schema(as = Error)]
pub(super) struct ErrorEnvelope<'a> {
    /// Always false.
    #[schema(schema_with = always::<false>)]
    success: bool,
    /// The error; for an invalid parameter, its name and the accepted values.
    #[schema(value_type = String)]
    error: &'a str,
    /// Same as the `X-Request-Id` header.
    #[schema(value_type = String)]
    request_id: &'a str,
}

fn always<const VALUE: bool>() -> RefOr<Schema> {
    ObjectBuilder::new().schema_type(Type::Boolean).enum_values(Some([VALUE])).into()
}

/// Status and text of an error response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ApiError {
    pub(super) status: StatusCode,
    /// Error text in one line.
    pub(super) message: String,
    /// Sent as `Retry-After`, in whole seconds.
    pub(super) retry_after: Option<Duration>,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, message: impl ToString) -> Self {
        Self { status, message: message.to_string(), retry_after: None }
    }

    /// 400: the request is invalid.
    pub(super) fn bad_request(message: impl ToString) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// 400: the request body is invalid.
    pub(super) fn bad_body(error: impl std::fmt::Display) -> Self {
        Self::bad_request(format!("Invalid request body: {error}"))
    }

    /// 500: this proxy failed.
    pub(super) fn internal(message: impl ToString) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    /// 404: the config does not have this server.
    pub(super) fn no_server(name: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, format!("There is no server '{name}'"))
    }

    /// 404: no route has this path.
    pub(super) fn no_such_path() -> Self {
        let message =
            "Not found: MCP is at /mcp, REST under /api/v1, described by /api/v1/openapi.json";
        Self::new(StatusCode::NOT_FOUND, message)
    }

    pub(super) fn response(&self, request_id: &str) -> Response<Body> {
        let mut response = error(self.status, &self.message, request_id);
        if let Some(after) = self.retry_after {
            response.headers_mut().insert(
                RETRY_AFTER,
                HeaderValue::from(after.as_secs() + u64::from(after.subsec_nanos() > 0)),
            );
        }
        response
    }
}

/// Wraps JSON, unchanged, in `{"success":true,"data":…}`.
pub(super) fn success(data: impl Into<Splice>, request_id: &str) -> Response<Body> {
    let mut body = data.into();
    body.push_front(HEAD);
    body.push(TAIL);
    json(StatusCode::OK, Body::from(body), request_id)
}

/// Builds `{"success":false,"error":…,"request_id":…}`.
pub(super) fn error(status: StatusCode, message: &str, request_id: &str) -> Response<Body> {
    let body = encode(&ErrorEnvelope { success: false, error: message, request_id });
    json(status, Body::from(body), request_id)
}

/// Serializes a response. It consists of texts, numbers and JSON that was validated on receipt, so it cannot fail.
pub(super) fn encode<T: Serialize>(value: &T) -> Bytes {
    serde_json::to_vec(value).unwrap_or_default().into()
}

/// Renders a time in RFC 3339 with `decimals` of the second; 1970 if it cannot be represented.
pub(super) fn rfc_3339(time: SystemTime, decimals: usize) -> String {
    format!("{:.decimals$}", Timestamp::try_from(time).unwrap_or_default())
}

/// Builds a 405 response with the accepted methods.
pub(super) fn wrong_method(allowed: &'static str, request_id: &str) -> Response<Body> {
    let message = format!("Method not allowed: use {allowed}");
    let mut response = error(StatusCode::METHOD_NOT_ALLOWED, &message, request_id);
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    response
}

/// Builds a response with a JSON body and the headers common to all responses.
pub(super) fn json(status: StatusCode, body: Body, request_id: &str) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Ok(id) = HeaderValue::from_str(request_id) {
        headers.insert(REQUEST_ID, id);
    }
    response
}

/// The header that names the request, in both directions.
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Maximum length of a request id accepted from a client.
const MAX_REQUEST_ID_BYTES: usize = 128;

/// Returns the client's request id if it is 1 to 128 letters, digits, `-`, `_`, `.` and `:`, otherwise a generated one.
pub(super) fn request_id(headers: &HeaderMap) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.:".contains(&b);
    let client_id = headers.get(&REQUEST_ID).and_then(|value| value.to_str().ok());
    match client_id {
        Some(id) if (1..=MAX_REQUEST_ID_BYTES).contains(&id.len()) && id.bytes().all(plain) => {
            id.to_owned()
        }
        Some(_) | None => fresh_request_id(),
    }
}

/// Generates a request id.
pub(super) fn fresh_request_id() -> String {
    let mut random = [0; 16];
    // Without random bytes the id still contains the time. It is not a secret.
    let _ = getrandom::fill(&mut random);
    Ulid::from_parts(wall_ms(), u128::from_ne_bytes(random)).to_string()
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    fn body(response: Response<Body>) -> Bytes {
        let body = response.into_body().collect();
        futures_util::FutureExt::now_or_never(body).unwrap().unwrap().to_bytes()
    }

    #[test]
    fn success_envelope_keeps_data_bytes() {
        let response = success(Bytes::from_static(br#"{ "a": 1.0 }"#), "r1");
        assert_eq!(response.headers()["x-request-id"], "r1");
        assert_eq!(body(response), r#"{"success":true,"data":{ "a": 1.0 }}"#);
    }

    #[test]
    fn errors_are_rendered_as_json() {
        let response = error(StatusCode::NOT_FOUND, "no \"x\"", "r1");
        assert_eq!(response.status(), StatusCode::NOT_FOUND);
        assert_eq!(body(response), r#"{"success":false,"error":"no \"x\"","request_id":"r1"}"#);
    }

    #[test]
    fn generated_ids_are_unique_and_alphanumeric() {
        let (one, other) = (fresh_request_id(), fresh_request_id());
        assert_ne!(one, other);
        assert!(one.len() == 26 && one.bytes().all(|b| b.is_ascii_alphanumeric()), "{one}");
    }

    #[test]
    fn valid_client_ids_are_kept_and_invalid_ones_replaced() {
        let id = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, value.parse().unwrap());
            request_id(&headers)
        };
        assert_eq!(id("abc-1.2_3:4"), "abc-1.2_3:4");
        for odd in ["", "a b", "a\"b", "é", &"x".repeat(MAX_REQUEST_ID_BYTES + 1)] {
            let given = id(odd);
            assert!(given != odd && given.len() == 26, "{odd}: {given}");
        }
        assert_eq!(request_id(&HeaderMap::new()).len(), 26);
    }
}
