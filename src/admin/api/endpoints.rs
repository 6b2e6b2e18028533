//! Endpoint table of the REST interface.
//!
//! A route is declared in one row of [`endpoints!`]: path, methods, access and handlers. Two more places name it: the handler,
//! which carries the description of its parameters and responses, and the dispatch in `router`. A test checks that the
//! table and the descriptions agree. [`complete`] adds to the document generated from both what all operations share.

use std::sync::LazyLock;

use bytes::Bytes;
use http::{Method, Response, StatusCode};
use utoipa::OpenApi as _;
use utoipa::openapi::path::{Operation, Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, Http, HttpAuthScheme, SecurityRequirement, SecurityScheme,
};
use utoipa::openapi::{
    Components, Content, Header, HeaderBuilder, OpenApi, Ref, RefOr, Required, ResponseBuilder,
    Schema,
};

use super::query_parameters::Query;
use super::response::{self, ApiError, ErrorEnvelope};
use super::{
    activity, approvals, call, config, events, export, fleet, metrics, page_session, policy, proof,
    resource_metadata, servers, status, tokens, tools,
};
use mcpproxy_gateway::downstream::authentication;
use mcpproxy_gateway::downstream::body::Body;
use mcpproxy_policy::Principal;

/// Clients that may use an endpoint. The admin may use all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// Everyone, without credentials.
    Public,
    /// Holders of a token, JWT or client certificate, and a page session.
    Agents,
    /// The API key or a page session.
    Admin,
    /// The API key alone. Endpoints that create credentials are here, so that a page session cannot be turned into a
    /// longer-lived credential.
    ApiKey,
}

/// A row of the endpoint table.
struct Endpoint {
    /// A segment in braces matches any one segment. Literal paths come before paths with braces that match them.
    path: &'static str,
    /// As the `Allow` header lists them.
    methods: &'static str,
    access: Access,
}

/// Defines [`Route`] and the OpenAPI document from rows of `route: path, methods, access, [handlers];`.
macro_rules! endpoints {
    ($($route:ident: $path:expr, $methods:literal, $access:ident,
        [$($module:ident :: $handler:ident),+];)+) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Route {
            $($route,)+
        }

        impl Route {
            const ALL: &[Self] = &[$(Self::$route),+];

            const fn endpoint(self) -> Endpoint {
                match self {
                    $(Self::$route => {
                        Endpoint { path: $path, methods: $methods, access: Access::$access }
                    })+
                }
            }
        }

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
    Health: "/healthz", "GET, HEAD", Public, [status::alive];
    Readiness: "/readyz", "GET, HEAD", Public, [status::ready];
    Proof: proof::PATH, "GET, HEAD", Public, [proof::answer];
    Events: "/events", "GET, HEAD", Admin, [events::events];
    Metrics: "/metrics", "GET, HEAD", ApiKey, [metrics::metrics];
    OpenApi: "/api/v1/openapi.json", "GET, HEAD", Agents, [self::document];
    Status: "/api/v1/status", "GET, HEAD", Admin, [status::status];
    Servers: "/api/v1/servers", "GET, HEAD", Admin, [servers::servers];
    ServerLogs: "/api/v1/servers/{name}/logs", "GET, HEAD", Admin, [servers::logs];
    ServerRestart: "/api/v1/servers/{name}/restart", "POST", Admin, [servers::restart];
    ServerEnable: "/api/v1/servers/{name}/enable", "POST", Admin, [servers::enable];
    ServerDisable: "/api/v1/servers/{name}/disable", "POST", Admin, [servers::disable];
    ServerLogin: "/api/v1/servers/{name}/login", "POST", Admin, [servers::log_in];
    Tools: "/api/v1/tools", "GET, HEAD", Agents, [tools::tools];
    Call: "/api/v1/tools/call", "POST", Agents, [call::call];
    Tool: "/api/v1/tools/{name}", "GET, HEAD", Agents, [tools::tool];
    ToolDiff: "/api/v1/tools/{name}/diff", "GET, HEAD", Admin, [tools::diff];
    ToolApprove: "/api/v1/tools/{name}/approve", "POST", Admin, [tools::approve];
    Policy: "/api/v1/policy", "GET, HEAD", Admin, [policy::in_force];
    PolicyExplain: "/api/v1/policy/explain", "POST", Admin, [policy::explain];
    PolicyReplay: "/api/v1/policy/replay", "POST", Admin, [policy::replay];
    ActivityList: "/api/v1/activity", "GET, HEAD", Agents, [activity::list];
    ActivitySummary: "/api/v1/activity/summary", "GET, HEAD", Admin, [activity::summary];
    ActivityVerify: "/api/v1/activity/verify", "GET, HEAD", Admin, [activity::verify];
    ActivityExport: "/api/v1/activity/export", "GET, HEAD", Admin, [export::export];
    ActivityRecord: "/api/v1/activity/{id}", "GET, HEAD", Agents, [activity::record];
    Approvals: "/api/v1/approvals", "GET, HEAD", Admin, [approvals::list];
    Approval: "/api/v1/approvals/{id}", "GET, HEAD, POST", Admin, [approvals::one, approvals::answer];
    Tokens: "/api/v1/tokens", "GET, HEAD, POST", ApiKey, [tokens::list, tokens::create];
    Token: "/api/v1/tokens/{name}", "DELETE", ApiKey, [tokens::revoke];
    TokenRotation: "/api/v1/tokens/{name}/rotate", "POST", ApiKey, [tokens::rotate];
    Config: "/api/v1/config", "GET, HEAD", Admin, [config::config];
    ConfigDifference: "/api/v1/config/difference", "GET, HEAD", Admin, [config::difference];
    ConfigReload: "/api/v1/config/reload", "POST", Admin, [config::reload];
    ConfigSettings: "/api/v1/config/settings", "GET, HEAD", Admin, [config::settings];
    ConfigPreview: "/api/v1/config/preview", "POST", Admin, [config::preview];
    ConfigChange: "/api/v1/config/change", "POST", Admin, [config::change];
    ConfigSchema: "/api/v1/config/schema.json", "GET, HEAD", Agents, [config::schema];
    Fleet: "/api/v1/fleet", "GET, HEAD", Admin, [fleet::fleet];
    FleetConfig: "/api/v1/fleet/config", "GET, HEAD, POST", ApiKey,
        [config::fleet_config, config::apply_fleet_config];
    FleetConfigRollback: "/api/v1/fleet/config/rollback", "POST", ApiKey, [config::roll_back_fleet_config];
    PageCodes: "/api/v1/page/codes", "POST", ApiKey, [page_session::code];
    PageSession: PAGE_SESSION, "POST, DELETE", Public, [page_session::open, page_session::close];
    ResourceMetadata: resource_metadata::PATH, "GET, HEAD", Public, [resource_metadata::answer];
    ResourceMetadataMcp: resource_metadata::OF_MCP, "GET, HEAD", Public, [resource_metadata::of_mcp];
    ResourceMetadataAll: resource_metadata::OF_ALL, "GET, HEAD", Public, [resource_metadata::of_all];
}

/// Path at which a page code or the API key is exchanged for a session.
const PAGE_SESSION: &str = "/api/v1/page/session";

impl Route {
    pub(super) fn allows(self, method: &Method) -> bool {
        self.allowed().split(", ").any(|allowed| allowed == method.as_str())
    }

    /// The accepted methods, as the `Allow` header lists them.
    pub(super) fn allowed(self) -> &'static str {
        self.endpoint().methods
    }

    pub(super) fn is_open_to(self, principal: &Principal) -> bool {
        match (self.endpoint().access, principal) {
            (_, Principal::Admin) | (Access::Public, _) => true,
            (
                Access::Agents,
                Principal::Token(_) | Principal::Subject(_) | Principal::Certificate(_),
            ) => true,
            (Access::Agents | Access::Admin | Access::ApiKey, _) => false,
        }
    }

    /// Whether a page session is accepted as the admin's.
    pub(super) fn is_open_to_page(self) -> bool {
        matches!(self.endpoint().access, Access::Agents | Access::Admin)
    }

    /// Whether the response is streamed and therefore bound to the lifetime of its credential.
    pub(super) fn is_stream(self) -> bool {
        matches!(self, Self::Events | Self::ActivityExport)
    }
}

/// Returns the route of a path and its segment in braces, not decoded; empty if the path has no braces.
pub(super) fn find(path: &str) -> Option<(Route, &str)> {
    Route::ALL.iter().find_map(|route| Some((*route, segment(route.endpoint().path, path)?)))
}

/// Whether the path reveals nothing without a credential, not even whether it exists.
pub(super) fn needs_key(path: &str) -> bool {
    path != PAGE_SESSION
        && (path == "/events" || path == "/metrics" || path == "/api" || path.starts_with("/api/"))
}

/// The segment that matches the braces of `template`, empty if it has none; `None` if the path does not match.
fn segment<'a>(template: &str, path: &'a str) -> Option<&'a str> {
    let braces =
        template.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?.1)));
    let Some((before, after)) = braces else {
        return (template == path).then_some("");
    };
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
pub(super) fn document(query: Query, id: &str) -> Result<Response<Body>, ApiError> {
    static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| {
        let mut document = Handlers::openapi();
        complete(&mut document, needs_key);
        response::encode(&document)
    });
    query.finish()?;
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

/// Completes a document with the security schemes, headers and errors that all handlers share. `needs_key` decides whether a
/// path requires a key.
pub(super) fn complete(document: &mut OpenApi, needs_key: impl Fn(&str) -> bool) {
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

    fn paths_where(accepted: impl Fn(Route, &'static str) -> bool) -> Vec<&'static str> {
        let rows = Route::ALL.iter().map(|route| (*route, route.endpoint().path));
        rows.filter(|(route, path)| accepted(*route, path)).map(|(_, path)| path).collect()
    }

    #[test]
    fn paths_resolve_to_routes_and_segments() {
        for (path, route, segment) in [
            ("/api/v1/activity", Route::ActivityList, ""),
            ("/api/v1/activity/summary", Route::ActivitySummary, ""),
            ("/api/v1/activity/01X", Route::ActivityRecord, "01X"),
            ("/api/v1/activity/", Route::ActivityRecord, ""),
            ("/api/v1/tools/call", Route::Call, ""),
            ("/api/v1/tools/a:b", Route::Tool, "a:b"),
            ("/api/v1/approvals", Route::Approvals, ""),
            ("/api/v1/approvals/0123456789abcdef", Route::Approval, "0123456789abcdef"),
            ("/api/v1/tools/a:b/diff", Route::ToolDiff, "a:b"),
            ("/api/v1/tools/a/approve", Route::ToolApprove, "a"),
            ("/healthz", Route::Health, ""),
            ("/api/v1/tokens/ci", Route::Token, "ci"),
            ("/api/v1/tokens/ci/rotate", Route::TokenRotation, "ci"),
        ] {
            assert_eq!(find(path), Some((route, segment)), "{path}");
        }
        for unknown in ["", "/", "/api/v1", "/api/v1/activity/a/b", "/api/v1/tool", "/events/"] {
            assert_eq!(find(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn only_public_endpoints_answer_without_a_key() {
        let open = paths_where(|_, path| !needs_key(path));
        let expected = [
            "/healthz",
            "/readyz",
            "/proof",
            PAGE_SESSION,
            resource_metadata::PATH,
            resource_metadata::OF_MCP,
            resource_metadata::OF_ALL,
        ];
        assert_eq!(open, expected);
        assert_eq!(open, paths_where(|route, _| route.endpoint().access == Access::Public));
        assert!(needs_key("/api/v1/nowhere") && needs_key("/api"));
    }

    #[test]
    fn table_and_descriptions_agree_on_paths_and_methods() {
        let described = Handlers::openapi();
        let mut methods = BTreeSet::new();
        for (path, item) in &described.paths.paths {
            let served = [("GET", &item.get), ("POST", &item.post), ("DELETE", &item.delete)];
            methods.extend(served.iter().filter(|(_, it)| it.is_some()).map(|it| (&**path, it.0)));
            let others = [&item.put, &item.patch, &item.options, &item.trace];
            assert!(others.iter().all(|other| other.is_none()), "{path}");
        }
        let served = Route::ALL.iter().flat_map(|route| {
            let Endpoint { path, methods, .. } = route.endpoint();
            methods.split(", ").filter(|method| *method != "HEAD").map(move |method| (path, method))
        });
        assert_eq!(methods, served.collect());
    }

    #[test]
    fn page_session_is_refused_where_credentials_are_created() {
        let closed = paths_where(|route, path| needs_key(path) && !route.is_open_to_page());
        let expected = [
            "/metrics",
            "/api/v1/tokens",
            "/api/v1/tokens/{name}",
            "/api/v1/tokens/{name}/rotate",
            // The config of all nodes, with servers and secrets.
            "/api/v1/fleet/config",
            "/api/v1/fleet/config/rollback",
            "/api/v1/page/codes",
        ];
        assert_eq!(closed, expected);
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
            paths_where(|route, path| needs_key(path) && route.is_open_to(principal))
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
        assert_eq!(open(&token), expected);
        assert_eq!(open(&subject), expected);
        assert!(open(&Principal::Anonymous).is_empty());
        assert!(Route::ALL.iter().all(|route| route.is_open_to(&Principal::Admin)));
    }
}
