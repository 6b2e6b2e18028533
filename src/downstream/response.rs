//! Whole answers to HTTP requests: JSON, plain text, or a status alone.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use http_body::Body as HttpBody;

use crate::downstream::body::Body;
use crate::mcp::jsonrpc::{self, Code};

/// The media type of a response that has no `Content-Type`. Nearly all are of this type, and a map of headers for
/// each costs more than writing the line.
pub const UNNAMED_TYPE: &str = "application/json";

/// A response of [`UNNAMED_TYPE`].
pub(super) fn json(status: StatusCode, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
}

/// Adds the `Content-Type` that is left out, for a server that writes only the headers that it is given.
pub fn name_type(response: &mut Response<Body>) {
    if !response.body().is_end_stream() && !response.headers().contains_key(CONTENT_TYPE) {
        let value = HeaderValue::from_static(UNNAMED_TYPE);
        response.headers_mut().insert(CONTENT_TYPE, value);
    }
}

pub(super) fn plain(status: StatusCode, text: &str) -> Response<Body> {
    let mut response = Response::new(Body::from(Bytes::from(format!("{text}\n"))));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    response
}

pub(super) fn status(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::Empty);
    *response.status_mut() = status;
    response
}

/// A JSON-RPC error about the message itself. `id` is raw.
pub(super) fn invalid_request(code: StatusCode, id: Option<&[u8]>, text: &str) -> Response<Body> {
    json(code, Body::from(jsonrpc::error(id, Code::InvalidRequest, text)))
}

pub(super) fn too_many_streams() -> Response<Body> {
    plain(StatusCode::TOO_MANY_REQUESTS, "too many event streams are open")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_of_an_answer_is_named_where_it_has_a_body_and_no_other() {
        let named = |mut response: Response<Body>| {
            name_type(&mut response);
            let value = response.headers().get(CONTENT_TYPE)?;
            Some(value.to_str().unwrap().to_owned())
        };
        let body = || Body::from(Bytes::from_static(b"{}"));
        assert_eq!(named(json(StatusCode::OK, body())).as_deref(), Some(UNNAMED_TYPE));
        assert_eq!(named(plain(StatusCode::OK, "text")).as_deref(), Some("text/plain"));
        assert_eq!(named(status(StatusCode::ACCEPTED)), None);
    }
}
