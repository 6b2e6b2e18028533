//! `/api/v1/openapi.json`: what the REST interface is, in OpenAPI 3.1, made from the handlers.
//!
//! What a handler takes and answers is said at the handler. Here is what they have in common: the
//! key, the request's id, and the refusals from in front of them.

use std::sync::LazyLock;

use bytes::Bytes;
use http::{Response, StatusCode};
use utoipa::openapi::path::{Operation, Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, Http, HttpAuthScheme, SecurityRequirement, SecurityScheme,
};
use utoipa::openapi::{
    Components, Content, Header, HeaderBuilder, OpenApi, Ref, RefOr, Required, ResponseBuilder,
    Schema,
};
use utoipa::{Modify, OpenApi as _};

use super::query_parameters::Query;
use super::resource_metadata;
use super::response::{self, ApiError, ErrorEnvelope};
use super::{
    activity, approvals, call, config, definitions, events, export, fleet, fleet_config, health,
    metrics, page_session, policy, policy_replay, proof, routes, server_login, servers, status,
    tokens, tools,
};
use crate::downstream::api_key;
use crate::downstream::body::Body;

/// Describes this interface.
#[utoipa::path(
    get,
    path = "/api/v1/openapi.json",
    tag = "state",
    operation_id = "getDescription",
    responses((status = 200, description = "This document", body = Object))
)]
pub(super) fn document(query: Query, id: &str) -> Result<Response<Body>, ApiError> {
    static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| response::encode(&openapi()));
    query.finish()?;
    Ok(response::json(StatusCode::OK, Body::from(DOCUMENT.clone()), id))
}

/// The whole description.
pub(super) fn openapi() -> OpenApi {
    Handlers::openapi()
}

#[derive(utoipa::OpenApi)]
#[openapi(
    info(title = "mcpproxy", description = "Activity, servers, tools and calls of a running mcpproxy. \
        A query parameter that is unknown, given twice, malformed or out of range, or does not go with \
        another, is refused with 400 and named. `HEAD` answers as `GET`, without the body."),
    servers((url = "/")),
    paths(
        activity::list, activity::record, activity::summary, activity::verify, export::export,
        events::events, approvals::list, approvals::one, approvals::answer, servers::servers,
        servers::logs, servers::restart, servers::enable, servers::disable, server_login::begin,
        tools::tools, tools::tool, call::call, config::standing,
        config::difference, config::reload, config::settings, config::preview, config::change, config::schema, fleet_config::standing, fleet_config::apply, fleet_config::roll_back, policy::in_force, policy::explain, policy_replay::replay, status::status, fleet::fleet, metrics::metrics,
        health::alive, health::ready, proof::answer, document,
        definitions::diff, definitions::approve,
        page_session::code, page_session::open, page_session::close,
        tokens::list, tokens::create, tokens::rotate, tokens::revoke,
        resource_metadata::answer, resource_metadata::of_mcp, resource_metadata::of_all,
    ),
    components(schemas(ErrorEnvelope)),
    tags(
        (name = "activity", description = "The log of calls and decisions"),
        (name = "tokens", description = "Agent tokens; these take the API key"),
        (name = "tools", description = "The catalog, and calls"),
        (name = "approvals", description = "Calls that wait for a person"),
        (name = "policy", description = "The operator's rules"),
        (name = "page", description = "How a browser logs in to the page at `/ui/`"),
        (name = "state", description = "How the proxy and its servers are"),
        (name = "health", description = "For probes, and before a key is sent; they need none"),
    ),
    modifiers(&Common),
)]
struct Handlers;

/// The ways to carry the key, by name.
const SCHEMES: [&str; 3] = ["header", "bearer", "query"];

/// What is refused before a handler is asked.
const REFUSALS: [(StatusCode, &str); 3] = [
    (StatusCode::BAD_REQUEST, "`Host` is missing, or it or `Origin` is given twice"),
    (StatusCode::FORBIDDEN, "`Host` or `Origin` is not allowed"),
    (StatusCode::METHOD_NOT_ALLOWED, "The path does not take this method"),
];

/// The same, where the key is asked for; there the query is read too.
const KEYED: [(StatusCode, &str); 2] = [
    (
        StatusCode::BAD_REQUEST,
        "A parameter is unknown, given twice, malformed or out of range, or two do not go together; \
         or `Host` is missing, or it or `Origin` is given twice",
    ),
    (StatusCode::UNAUTHORIZED, "The API key or token is missing, unknown or out of force"),
];

/// What all handlers have in common.
struct Common;

impl Modify for Common {
    fn modify(&self, openapi: &mut OpenApi) {
        let components = openapi.components.get_or_insert_with(Components::new);
        let [header, bearer, query] = SCHEMES;
        let key = |at| SecurityScheme::ApiKey(at);
        for (name, scheme) in [
            (header, key(ApiKey::Header(ApiKeyValue::new("X-API-Key")))),
            (bearer, SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer))),
            (query, key(ApiKey::Query(ApiKeyValue::new(api_key::QUERY_PARAMETER)))),
        ] {
            components.add_security_scheme(name, scheme);
        }
        for (path, item) in &mut openapi.paths.paths {
            for operation in [&mut item.get, &mut item.post, &mut item.delete].into_iter().flatten()
            {
                complete(operation, routes::needs_key(path));
            }
        }
    }
}

/// Adds to an operation what no handler says of itself.
fn complete(operation: &mut Operation, keyed: bool) {
    let empty: [&str; 0] = [];
    operation.security =
        keyed.then(|| SCHEMES.map(|name| SecurityRequirement::new(name, empty)).into());
    operation.parameters.get_or_insert_default().push(request_id().into());
    let responses = &mut operation.responses.responses;
    let of_the_keyed = if keyed { &KEYED[..] } else { &[] };
    for (status, text) in of_the_keyed.iter().chain(&REFUSALS) {
        let response = ResponseBuilder::new().description(*text).build();
        responses.entry(status.as_str().to_owned()).or_insert(RefOr::T(response));
    }
    for (status, response) in responses {
        let RefOr::T(response) = response else { continue };
        response.headers.insert("X-Request-Id".to_owned(), RefOr::T(header("The request's id")));
        if *status == *StatusCode::METHOD_NOT_ALLOWED.as_str() {
            response.headers.insert("Allow".to_owned(), RefOr::T(header("The methods it takes")));
        }
        if status.starts_with(['4', '5']) && response.content.is_empty() {
            let error = Content::new(Some(Ref::from_schema_name("Error")));
            response.content.insert("application/json".to_owned(), RefOr::T(error));
        }
    }
}

fn request_id() -> Parameter {
    ParameterBuilder::new()
        .name("X-Request-Id")
        .parameter_in(ParameterIn::Header)
        .required(Required::False)
        .description(Some(
            "An id for the request, of at most 128 letters, digits, `-`, `_`, `.` and `:`. Another \
             is given where it is none, or not such a one.",
        ))
        .schema(Some(text()))
        .build()
}

fn header(description: &str) -> Header {
    HeaderBuilder::new().schema(Some(text())).description(Some(description)).build()
}

fn text() -> Schema {
    ObjectBuilder::new().schema_type(Type::String).build().into()
}
