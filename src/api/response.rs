//! What every REST response has in common: the envelope, the request's id, JSON errors. Pure.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::{RefOr, Schema};

use super::query_parameters::BadQuery;
use super::request_id::REQUEST_ID;
use crate::downstream::body::Body;
use crate::wire::splice::Splice;

/// What stands before the data of a success.
pub(super) const HEAD: Bytes = Bytes::from_static(br#"{"success":true,"data":"#);

/// What stands after it.
pub(super) const TAIL: Bytes = Bytes::from_static(b"}");

/// A success, and its data.
#[derive(ToSchema)]
#[expect(dead_code, reason = "only described: the wrapping is HEAD and TAIL")]
pub(super) struct Success<T> {
    /// Always true.
    #[schema(schema_with = always::<true>)]
    success: bool,
    data: T,
}

/// Why there is no data.
#[derive(Serialize, ToSchema)]
#[schema(as = Error)]
pub(super) struct ErrorEnvelope<'a> {
    /// Always false.
    #[schema(schema_with = always::<false>)]
    success: bool,
    /// What is wrong; of a bad parameter, its name and what is allowed.
    #[schema(value_type = String)]
    error: &'a str,
    /// The same as in `X-Request-Id`.
    #[schema(value_type = String)]
    request_id: &'a str,
}

fn always<const VALUE: bool>() -> RefOr<Schema> {
    ObjectBuilder::new().schema_type(Type::Boolean).enum_values(Some([VALUE])).into()
}

/// Why a request gets no data: the status and text of its error response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ApiError {
    pub(super) status: StatusCode,
    /// One line for the client.
    pub(super) message: String,
    /// Sent as `Retry-After`, in whole seconds.
    pub(super) retry_after: Option<Duration>,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, message: impl ToString) -> Self {
        Self { status, message: message.to_string(), retry_after: None }
    }

    /// 404: the config has no such server.
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

impl From<BadQuery> for ApiError {
    fn from(bad: BadQuery) -> Self {
        Self::new(StatusCode::BAD_REQUEST, bad)
    }
}

/// `{"success":true,"data":…}` around JSON that is taken as it is.
pub(super) fn success(data: impl Into<Splice>, request_id: &str) -> Response<Body> {
    let mut body = data.into();
    body.push_front(HEAD);
    body.push(TAIL);
    json(StatusCode::OK, Body::from(body), request_id)
}

/// `{"success":false,"error":…,"request_id":…}`.
#[must_use]
pub(super) fn error(status: StatusCode, message: &str, request_id: &str) -> Response<Body> {
    let body = encode(&ErrorEnvelope { success: false, error: message, request_id });
    json(status, Body::from(body), request_id)
}

/// The JSON of an answer. It is made of texts, numbers, and JSON that was checked when it came in:
/// nothing in it can fail to be JSON.
pub(super) fn encode<T: Serialize>(value: &T) -> Bytes {
    serde_json::to_vec(value).unwrap_or_default().into()
}

/// 405, with the methods that the path takes.
pub(super) fn wrong_method(allowed: &'static str, request_id: &str) -> Response<Body> {
    let message = format!("Method not allowed: use {allowed}");
    let mut response = error(StatusCode::METHOD_NOT_ALLOWED, &message, request_id);
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    response
}

/// A response with any JSON body, and the headers that every response has.
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

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    fn body(response: Response<Body>) -> Bytes {
        let body = response.into_body().collect();
        futures_util::FutureExt::now_or_never(body).unwrap().unwrap().to_bytes()
    }

    #[test]
    fn data_keeps_its_bytes() {
        let response = success(Bytes::from_static(br#"{ "a": 1.0 }"#), "r1");
        assert_eq!(response.headers()["x-request-id"], "r1");
        assert_eq!(body(response), r#"{"success":true,"data":{ "a": 1.0 }}"#);
    }

    #[test]
    fn errors_are_json() {
        let response = error(StatusCode::NOT_FOUND, "no \"x\"", "r1");
        assert_eq!(response.status(), StatusCode::NOT_FOUND);
        assert_eq!(body(response), r#"{"success":false,"error":"no \"x\"","request_id":"r1"}"#);
    }
}
