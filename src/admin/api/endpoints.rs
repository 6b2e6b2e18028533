//! Endpoint table of the REST interface.
//!
//! [`endpoints!`] lists the handlers by the clients that may use them. A handler's `utoipa::path` declares path,
//! method, parameters and responses; routes and the OpenAPI document are derived from it. [`complete`] adds the parts
//! that all operations share to the document.

use std::sync::LazyLock;

use bytes::Bytes;
use http::{Method, Response, StatusCode};
use utoipa::OpenApi as _;
use utoipa::openapi::path::{HttpMethod, Operation, Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, Http, HttpAuthScheme, SecurityRequirement, SecurityScheme,
};
use utoipa::openapi::{
    Components, Content, Header, HeaderBuilder, OpenApi, Ref, RefOr, Required, ResponseBuilder,
    Schema,
};

use super::request::{ApiReply as _, ApiRequest, Handler};
use super::response::{self, ApiError, ErrorEnvelope};
use super::{
    activity, approvals, call, config, events, export, fleet, metrics, page_session, policy, proof,
    resource_metadata, servers, status, tokens, tools,
};
use mcpproxy_downstream::authentication;
use mcpproxy_downstream::body::Body;
use mcpproxy_policy::Principal;

/// Clients that may use an endpoint. The admin may use all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// Everyone, without credentials.
    Public,
    /// Holders of a token, JWT or client certificate, and a page session.
    Agents,
    /// Holders of the API key or a page session.
    Admin,
    /// Holders of the API key only. Endpoints that create credentials are here, so that a page session cannot be turned
    /// into a longer-lived credential.
    ApiKey,
}

/// The endpoints of one path.
pub(super) struct Route {
    /// Template of the path. A segment in braces matches any one segment.
    path: String,
    /// The accepted methods, as the `Allow` header lists them.
    allowed: String,
    access: Access,
    /// Handlers with their methods, listed like `allowed`.
    handlers: Vec<(&'static str, Handler)>,
}

/// Defines [`ROUTES`] and the OpenAPI document from rows of `access: handlers;`. `utoipa::path` names the description of a
/// handler `__path_HANDLER`.
macro_rules! endpoints {
    ($($access:ident: $($module:ident :: $handler:ident),+;)+) => {
        /// Literal paths come before paths with braces, which may match the same requests.
        static ROUTES: LazyLock<Vec<Route>> = LazyLock::new(|| {
            let mut routes = Vec::new();
            pastey::paste! {
                $($(Route::add::<$module::[<__path_ $handler>]>(
                    &mut routes,
                    Access::$access,
                    |request| Box::pin(async move {
                        let id = request.id;
                        Ok($module::$handler(request).await?.response(id))
                    }),
                );)+)+
            }
            routes.sort_by_key(|route: &Route| route.path.contains('{'));
            routes
        });

        #[derive(utoipa::OpenApi)]
        #[openapi(
            info(title = "mcpproxy", description = "Activity, servers, tools and calls of a running mcpproxy. \
                A query parameter that is unknown, repeated, malformed, out of range or incompatible with \
                another is rejected with 400 and named in the error. `HEAD` answers like `GET`, without a body."),
            servers((url = "/")),
            paths($($($module::$handler),+),+),
            components(schemas(ErrorEnvelope)),
            tags(
                (name = "activity", description = "The log of calls and decisions"),
                (name = "tokens", description = "Agent tokens; require the API key"),
                (name = "tools", description = "The catalog, and calls"),
                (name = "approvals", description = "Calls waiting for approval"),
                (name = "policy", description = "The operator's rules"),
                (name = "page", description = "Browser login for the page at `/ui/`"),
                (name = "state", description = "State of the proxy and its servers"),
                (name = "health", description = "Probes and endpoints used before authentication; require no key"),
            ),
        )]
        struct Handlers;
    };
}

endpoints! {
    Public:
        status::alive, status::ready, proof::answer, page_session::open, page_session::close,
        resource_metadata::answer, resource_metadata::of_mcp, resource_metadata::of_all;
    Agents:
        self::document, tools::tools, call::call, tools::tool, activity::list, activity::record, config::schema;
    Admin:
        events::events, status::status, fleet::fleet,
        servers::servers, servers::logs, servers::restart, servers::enable, servers::disable, servers::log_in,
        tools::diff, tools::approve, tokens::principals, tokens::principal, policy::in_force, policy::explain, policy::replay,
        activity::summary, activity::verify, export::export, approvals::list, approvals::one, approvals::answer,
        config::config, config::difference, config::reload, config::settings, config::preview, config::change;
    ApiKey:
        metrics::metrics, tokens::list, tokens::create, tokens::revoke, tokens::rotate, page_session::code,
        config::add_servers, config::remove_server,
        config::fleet_config, config::apply_fleet_config, config::roll_back_fleet_config;
}

impl Route {
    /// Adds the handler that `P` describes.
    fn add<P: utoipa::Path>(routes: &mut Vec<Self>, access: Access, handler: Handler) {
        let methods = match P::methods().as_slice() {
            [HttpMethod::Get] => "GET, HEAD",
            [HttpMethod::Post] => "POST",
            [HttpMethod::Delete] => "DELETE",
            // A test forbids other methods.
            _ => return,
        };
        let path = P::path();
        match routes.iter_mut().find(|route| route.path == path && route.access == access) {
            Some(route) => {
                route.allowed.extend([", ", methods]);
                route.handlers.push((methods, handler));
            }
            None => {
                let (allowed, handlers) = (methods.to_owned(), vec![(methods, handler)]);
                routes.push(Self { path, allowed, access, handlers });
            }
        }
    }

    /// The handler for a method; `None` if the path does not accept it.
    pub(super) fn handler(&self, method: &Method) -> Option<Handler> {
        let accepts =
            |methods: &str| methods.split(", ").any(|accepted| accepted == method.as_str());
        self.handlers.iter().find(|(methods, _)| accepts(methods)).map(|(_, handler)| *handler)
    }

    /// The accepted methods, as the `Allow` header lists them.
    pub(super) fn allowed(&self) -> &str {
        &self.allowed
    }

    pub(super) fn is_open_to(&self, principal: &Principal) -> bool {
        match (self.access, principal) {
            (_, Principal::Admin) | (Access::Public, _) => true,
            (
                Access::Agents,
                Principal::Token(_) | Principal::Subject(_) | Principal::Certificate(_),
            ) => true,
            (Access::Agents | Access::Admin | Access::ApiKey, _) => false,
        }
    }

    /// Whether a page session is accepted as the admin's.
    pub(super) fn is_open_to_page(&self) -> bool {
        matches!(self.access, Access::Agents | Access::Admin)
    }
}

/// Returns the route of a path and the segment that matches its braces, not decoded; empty if the path has no braces.
pub(super) fn find(path: &str) -> Option<(&'static Route, &str)> {
    ROUTES.iter().find_map(|route| Some((route, segment(&route.path, path)?)))
}

/// Whether the path must not reveal anything without a credential, not even its existence.
pub(super) fn needs_key(path: &str) -> bool {
    match find(path) {
        Some((route, _)) => route.access != Access::Public,
        None => path == "/api" || path.starts_with("/api/"),
    }
}

/// The segment that matches the braces of `template`, empty if the template has no braces; `None` if the path does not
/// match.
fn segment<'a>(template: &str, path: &'a str) -> Option<&'a str> {
    let Some((before, rest)) = template.split_once('{') else {
        return (template == path).then_some("");
    };
    let (_, after) = rest.split_once('}')?;
    let segment = path.strip_prefix(before)?.strip_suffix(after)?;
    (!segment.contains('/')).then_some(segment)
}

/// Returns the OpenAPI description of this interface.
#[utoipa::path(
    get,
    path = "/api/v1/openapi.json",
    tag = "state",
    operation_id = "getDescription",
    responses((status = 200, description = "This document", body = Object))
)]
pub(super) async fn document(
    ApiRequest { query, id, .. }: ApiRequest<'_>,
) -> Result<Response<Body>, ApiError> {
    static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| {
        let mut document = Handlers::openapi();
        complete(&mut document);
        response::encode(&document)
    });
    query?.finish()?;
    Ok(response::json(StatusCode::OK, Body::from(DOCUMENT.clone()), id))
}

/// Names of the security schemes.
const SCHEMES: [&str; 3] = ["header", "bearer", "query"];

/// Errors returned before the handler runs.
const REFUSALS: [(StatusCode, &str); 3] = [
    (StatusCode::BAD_REQUEST, "`Host` is missing, or `Host` or `Origin` is repeated"),
    (StatusCode::FORBIDDEN, "`Host` or `Origin` is not allowed"),
    (StatusCode::METHOD_NOT_ALLOWED, "The path does not accept this method"),
];

/// Further errors of endpoints that need a key and read the query.
const KEYED: [(StatusCode, &str); 2] = [
    (
        StatusCode::BAD_REQUEST,
        "A parameter is unknown, repeated, malformed or out of range, or two are incompatible; \
         or `Host` is missing, or `Host` or `Origin` is repeated",
    ),
    (StatusCode::UNAUTHORIZED, "The API key or token is missing, unknown or no longer valid"),
];

/// Completes a document with the security schemes, headers and errors that all handlers share.
fn complete(document: &mut OpenApi) {
    let components = document.components.get_or_insert_with(Components::new);
    let [header, bearer, query] = SCHEMES;
    let key = |at| SecurityScheme::ApiKey(at);
    for (name, scheme) in [
        (header, key(ApiKey::Header(ApiKeyValue::new("X-API-Key")))),
        (bearer, SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer))),
        (query, key(ApiKey::Query(ApiKeyValue::new(authentication::QUERY_PARAMETER)))),
    ] {
        components.add_security_scheme(name, scheme);
    }
    for (path, item) in &mut document.paths.paths {
        for operation in [&mut item.get, &mut item.post, &mut item.delete].into_iter().flatten() {
            complete_operation(operation, needs_key(path));
        }
    }
}

/// Adds the common parts to an operation.
fn complete_operation(operation: &mut Operation, keyed: bool) {
    let empty: [&str; 0] = [];
    operation.security =
        keyed.then(|| SCHEMES.map(|name| SecurityRequirement::new(name, empty)).into());
    operation.parameters.get_or_insert_default().push(request_id().into());
    let responses = &mut operation.responses.responses;
    let with_key = if keyed { &KEYED[..] } else { &[] };
    for (status, text) in with_key.iter().chain(&REFUSALS) {
        let response = ResponseBuilder::new().description(*text).build();
        responses.entry(status.as_str().to_owned()).or_insert(RefOr::T(response));
    }
    for (status, response) in responses {
        let RefOr::T(response) = response else { continue };
        response.headers.insert("X-Request-Id".to_owned(), RefOr::T(header("The request's id")));
        if *status == *StatusCode::METHOD_NOT_ALLOWED.as_str() {
            response.headers.insert("Allow".to_owned(), RefOr::T(header("The accepted methods")));
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
            "Request id of at most 128 letters, digits, `-`, `_`, `.` and `:`. A missing or invalid \
             id is replaced by a generated one.",
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use super::*;
    use mcpproxy_policy::{AgentToken, JwtSubject, Scope};

    fn paths_where(accepted: impl Fn(&Route) -> bool) -> BTreeSet<&'static str> {
        ROUTES.iter().filter(|route| accepted(route)).map(|route| &*route.path).collect()
    }

    #[test]
    fn paths_resolve_to_routes_and_segments() {
        for (path, template, segment) in [
            ("/api/v1/activity", "/api/v1/activity", ""),
            ("/api/v1/activity/summary", "/api/v1/activity/summary", ""),
            ("/api/v1/activity/01X", "/api/v1/activity/{id}", "01X"),
            ("/api/v1/activity/", "/api/v1/activity/{id}", ""),
            ("/api/v1/tools/call", "/api/v1/tools/call", ""),
            ("/api/v1/tools/a:b", "/api/v1/tools/{name}", "a:b"),
            ("/api/v1/tools/{name}", "/api/v1/tools/{name}", "{name}"),
            ("/api/v1/tools/a:b/diff", "/api/v1/tools/{name}/diff", "a:b"),
            ("/healthz", "/healthz", ""),
            ("/api/v1/tokens/ci", "/api/v1/tokens/{name}", "ci"),
            ("/api/v1/tokens/ci/rotate", "/api/v1/tokens/{name}/rotate", "ci"),
        ] {
            let found = find(path).map(|(route, segment)| (&*route.path, segment));
            assert_eq!(found, Some((template, segment)), "{path}");
        }
        for unknown in ["", "/", "/api/v1", "/api/v1/activity/a/b", "/api/v1/tool", "/events/"] {
            assert!(find(unknown).is_none(), "{unknown}");
        }
    }

    #[test]
    fn only_public_endpoints_answer_without_a_key() {
        let open = paths_where(|route| !needs_key(&route.path));
        let expected = [
            "/healthz",
            "/readyz",
            "/proof",
            "/api/v1/page/session",
            resource_metadata::PATH,
            resource_metadata::OF_MCP,
            resource_metadata::OF_ALL,
        ];
        assert_eq!(open, expected.into());
        assert!(needs_key("/api/v1/nowhere") && needs_key("/api"));
    }

    #[test]
    fn each_described_operation_is_served_once() {
        let described = Handlers::openapi().paths.paths;
        let mut operations = Vec::new();
        for (path, item) in &described {
            let served = [("DELETE", &item.delete), ("GET, HEAD", &item.get), ("POST", &item.post)];
            operations.extend(served.iter().filter(|it| it.1.is_some()).map(|it| (&**path, it.0)));
            let others = [&item.put, &item.patch, &item.options, &item.trace];
            assert!(others.iter().all(|other| other.is_none()), "{path}");
        }
        let mut served: Vec<_> = ROUTES
            .iter()
            .flat_map(|route| route.handlers.iter().map(|(methods, _)| (&*route.path, *methods)))
            .collect();
        served.sort_unstable();
        assert_eq!(served, operations);
        assert_eq!(ROUTES.len(), described.len(), "all handlers of a path have the same access");
    }

    #[test]
    fn allowed_methods_of_a_path_are_those_of_its_handlers() {
        for (path, allowed) in [
            ("/api/v1/tools", "GET, HEAD"),
            ("/api/v1/tools/call", "POST"),
            ("/api/v1/approvals/x", "GET, HEAD, POST"),
            ("/api/v1/page/session", "POST, DELETE"),
        ] {
            let (route, _) = find(path).unwrap();
            assert_eq!(route.allowed(), allowed, "{path}");
            for method in [Method::GET, Method::HEAD, Method::POST, Method::DELETE, Method::PUT] {
                let is_allowed = allowed.split(", ").any(|it| it == method.as_str());
                assert_eq!(route.handler(&method).is_some(), is_allowed, "{method} {path}");
            }
        }
    }

    #[test]
    fn page_session_is_refused_where_credentials_are_created() {
        let closed = paths_where(|route| needs_key(&route.path) && !route.is_open_to_page());
        let expected = [
            "/metrics",
            "/api/v1/tokens",
            "/api/v1/tokens/{name}",
            "/api/v1/tokens/{name}/rotate",
            // A server may be a program.
            "/api/v1/config/servers",
            "/api/v1/config/servers/{name}",
            // The config of all nodes contains servers and secrets.
            "/api/v1/fleet/config",
            "/api/v1/fleet/config/rollback",
            "/api/v1/page/codes",
        ];
        assert_eq!(closed, expected.into());
    }

    #[test]
    fn tokens_and_subjects_have_fewer_rights_than_the_admin() {
        let token = Principal::Token(Arc::new(AgentToken::new("ci", 0, Scope::default())));
        let subject = Principal::Subject(Arc::new(JwtSubject::new(
            "ada",
            Vec::new(),
            std::time::SystemTime::UNIX_EPOCH,
        )));
        let open = |principal: &Principal| {
            paths_where(|route| needs_key(&route.path) && route.is_open_to(principal))
        };
        let expected = [
            "/api/v1/openapi.json",
            "/api/v1/tools",
            "/api/v1/tools/call",
            "/api/v1/tools/{name}",
            "/api/v1/activity",
            "/api/v1/activity/{id}",
            "/api/v1/config/schema.json",
        ];
        assert_eq!(open(&token), expected.into());
        assert_eq!(open(&subject), expected.into());
        assert!(open(&Principal::Anonymous).is_empty());
        assert!(ROUTES.iter().all(|route| route.is_open_to(&Principal::Admin)));
    }
}
