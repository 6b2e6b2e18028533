//! Arguments and result of a handler.

use std::rc::Rc;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use http::Response;
use http::request::Parts;

use super::query_parameters::{BadQuery, Query};
use super::response::{self, ApiError};
use crate::api::{ConnectionInfo, State};
use mcpproxy_downstream::body::Body;
use mcpproxy_gateway::proxy::Worker;
use mcpproxy_policy::Principal;

/// A request whose credential, path and method were already checked.
pub(super) struct ApiRequest<'a> {
    pub(super) state: &'a State,
    pub(super) worker: &'a Rc<Worker>,
    pub(super) connection: &'a ConnectionInfo,
    pub(super) principal: &'a Principal,
    pub(super) parts: &'a Parts,
    /// The path segment that matches the braces of the template, not decoded; empty if the template has no braces.
    pub(super) segment: &'a str,
    pub(super) id: &'a str,
    pub(super) query: Result<Query, BadQuery>,
    pub(super) body: RequestBody<'a>,
}

/// Reads a request body to its end, within its limits of size, time and memory.
pub(super) type RequestBody<'a> = LocalBoxFuture<'a, Result<Bytes, ApiError>>;

/// Runs the handler of an endpoint.
pub(super) type Handler =
    for<'a> fn(ApiRequest<'a>) -> LocalBoxFuture<'a, Result<Response<Body>, ApiError>>;

/// Reads the body of an endpoint without query parameters.
pub(super) async fn read_body(
    query: Result<Query, BadQuery>,
    body: RequestBody<'_>,
) -> Result<Bytes, ApiError> {
    query?.finish()?;
    body.await
}

/// Successful result of a handler.
pub(super) trait ApiReply {
    fn response(self, request_id: &str) -> Response<Body>;
}

/// JSON, which is wrapped in the envelope of a success.
impl ApiReply for Bytes {
    fn response(self, request_id: &str) -> Response<Body> {
        response::success(self, request_id)
    }
}

/// A complete response.
impl ApiReply for Response<Body> {
    fn response(self, _: &str) -> Response<Body> {
        self
    }
}
