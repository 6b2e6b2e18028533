//! Which paths there are, and which methods they take. Pure.
//!
//! What of them others than the admin may use is said here too. `router` runs the handler of a [`Route`]; how the route is described stands at its handler. A test
//! below checks that every route is described, and nothing else.

use http::Method;

use super::response::ApiError;
use super::{proof, resource_metadata};
use crate::policy::Principal;

/// What a request can be for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    Health,
    Readiness,
    Proof,
    Events,
    OpenApi,
    Metrics,
    Status,
    Servers,
    ServerLogs,
    ServerRestart,
    ServerEnable,
    ServerDisable,
    ServerLogin,
    Tools,
    Call,
    Tool,
    Policy,
    PolicyExplain,
    PolicyReplay,
    ToolDiff,
    ToolApprove,
    ActivityList,
    ActivitySummary,
    ActivityVerify,
    ActivityExport,
    ActivityRecord,
    Tokens,
    Token,
    TokenRotation,
    ResourceMetadata,
    Approvals,
    Approval,
    Config,
    ConfigDifference,
    ConfigReload,
    ConfigSettings,
    ConfigPreview,
    ConfigChange,
    FleetConfig,
    FleetConfigRollback,
    PageCodes,
    PageSession,
    ConfigSchema,
    Fleet,
}

/// Where a code or the key is exchanged, by who has nothing else yet.
const PAGE_SESSION: &str = "/api/v1/page/session";

/// Their paths. A segment in braces stands for any one; whole words are found before it.
const PATHS: [(&str, Route); 46] = [
    ("/healthz", Route::Health),
    ("/readyz", Route::Readiness),
    (proof::PATH, Route::Proof),
    ("/events", Route::Events),
    ("/api/v1/openapi.json", Route::OpenApi),
    ("/metrics", Route::Metrics),
    ("/api/v1/status", Route::Status),
    ("/api/v1/servers", Route::Servers),
    ("/api/v1/servers/{name}/logs", Route::ServerLogs),
    ("/api/v1/servers/{name}/restart", Route::ServerRestart),
    ("/api/v1/servers/{name}/enable", Route::ServerEnable),
    ("/api/v1/servers/{name}/disable", Route::ServerDisable),
    ("/api/v1/servers/{name}/login", Route::ServerLogin),
    ("/api/v1/tools", Route::Tools),
    ("/api/v1/tools/call", Route::Call),
    ("/api/v1/tools/{name}", Route::Tool),
    ("/api/v1/policy", Route::Policy),
    ("/api/v1/policy/explain", Route::PolicyExplain),
    ("/api/v1/policy/replay", Route::PolicyReplay),
    ("/api/v1/tools/{name}/diff", Route::ToolDiff),
    ("/api/v1/tools/{name}/approve", Route::ToolApprove),
    ("/api/v1/activity", Route::ActivityList),
    ("/api/v1/activity/summary", Route::ActivitySummary),
    ("/api/v1/activity/verify", Route::ActivityVerify),
    ("/api/v1/activity/export", Route::ActivityExport),
    ("/api/v1/activity/{id}", Route::ActivityRecord),
    ("/api/v1/tokens", Route::Tokens),
    ("/api/v1/tokens/{name}", Route::Token),
    ("/api/v1/tokens/{name}/rotate", Route::TokenRotation),
    (resource_metadata::PATH, Route::ResourceMetadata),
    (resource_metadata::OF_MCP, Route::ResourceMetadata),
    (resource_metadata::OF_ALL, Route::ResourceMetadata),
    ("/api/v1/approvals", Route::Approvals),
    ("/api/v1/approvals/{id}", Route::Approval),
    ("/api/v1/config", Route::Config),
    ("/api/v1/config/difference", Route::ConfigDifference),
    ("/api/v1/config/reload", Route::ConfigReload),
    ("/api/v1/config/settings", Route::ConfigSettings),
    ("/api/v1/config/preview", Route::ConfigPreview),
    ("/api/v1/config/change", Route::ConfigChange),
    ("/api/v1/fleet/config", Route::FleetConfig),
    ("/api/v1/fleet/config/rollback", Route::FleetConfigRollback),
    ("/api/v1/page/codes", Route::PageCodes),
    (PAGE_SESSION, Route::PageSession),
    ("/api/v1/config/schema.json", Route::ConfigSchema),
    ("/api/v1/fleet", Route::Fleet),
];

impl Route {
    /// True if it takes the method.
    pub(super) fn allows(self, method: &Method) -> bool {
        self.allowed().split(", ").any(|allowed| allowed == method.as_str())
    }

    /// The methods it takes, as `Allow` lists them.
    pub(super) fn allowed(self) -> &'static str {
        match self {
            Self::Call
            | Self::TokenRotation
            | Self::PolicyExplain
            | Self::PolicyReplay
            | Self::ToolApprove
            | Self::ServerRestart
            | Self::ServerEnable
            | Self::ServerDisable
            | Self::ServerLogin
            | Self::ConfigReload
            | Self::ConfigPreview
            | Self::ConfigChange
            | Self::FleetConfigRollback
            | Self::PageCodes => "POST",
            Self::Token => "DELETE",
            Self::PageSession => "POST, DELETE",
            Self::Tokens | Self::Approval | Self::FleetConfig => "GET, HEAD, POST",
            Self::Health
            | Self::Readiness
            | Self::Proof
            | Self::Events
            | Self::OpenApi
            | Self::Status
            | Self::Servers
            | Self::ServerLogs
            | Self::Tools
            | Self::Tool
            | Self::ActivityList
            | Self::ActivitySummary
            | Self::ActivityVerify
            | Self::ActivityExport
            | Self::ActivityRecord
            | Self::ToolDiff
            | Self::Approvals
            | Self::Config
            | Self::ConfigDifference
            | Self::ConfigSettings
            | Self::Policy
            | Self::ConfigSchema
            | Self::Fleet
            | Self::Metrics
            | Self::ResourceMetadata => "GET, HEAD",
        }
    }

    /// True if `principal` may use it. Who is not the admin may call tools, see those that it may call, and read its
    /// own records; all else is the operator's.
    pub(super) fn is_open_to(self, principal: &Principal) -> bool {
        match (self, principal) {
            (_, Principal::Admin)
            | (
                Self::Health
                | Self::Readiness
                | Self::Proof
                | Self::ResourceMetadata
                | Self::PageSession,
                _,
            ) => true,
            (
                Self::OpenApi
                | Self::ConfigSchema
                | Self::Tools
                | Self::Tool
                | Self::Call
                | Self::ActivityList
                | Self::ActivityRecord,
                Principal::Token(_) | Principal::Subject(_) | Principal::Certificate(_),
            ) => true,
            (
                _,
                Principal::Anonymous
                | Principal::Token(_)
                | Principal::Subject(_)
                | Principal::Certificate(_),
            ) => false,
        }
    }
}

impl Route {
    /// True if a session of the page counts for it. What makes credentials takes the key itself, so that nobody gets more
    /// of a session than the session; and what is no affair of the page, nothing of it.
    pub(super) fn is_open_to_page(self) -> bool {
        match self {
            Self::Tokens
            | Self::Token
            | Self::TokenRotation
            | Self::FleetConfig
            | Self::FleetConfigRollback
            | Self::PageCodes
            | Self::PageSession
            | Self::Health
            | Self::Readiness
            | Self::Proof
            | Self::ResourceMetadata
            | Self::Metrics => false,
            Self::Events
            | Self::OpenApi
            | Self::Status
            | Self::Servers
            | Self::ServerLogs
            | Self::ServerRestart
            | Self::ServerEnable
            | Self::ServerDisable
            | Self::ServerLogin
            | Self::Tools
            | Self::Call
            | Self::Tool
            | Self::PolicyExplain
            | Self::PolicyReplay
            | Self::ToolDiff
            | Self::ToolApprove
            | Self::ActivityList
            | Self::ActivitySummary
            | Self::ActivityVerify
            | Self::ActivityExport
            | Self::ActivityRecord
            | Self::Approvals
            | Self::Approval
            | Self::Config
            | Self::ConfigDifference
            | Self::ConfigReload
            | Self::ConfigSettings
            | Self::ConfigPreview
            | Self::ConfigChange
            | Self::ConfigSchema
            | Self::Fleet
            | Self::Policy => true,
        }
    }
}

/// The route of a path, and the segment that its braces stand for, as it was sent.
pub(super) fn find(path: &str) -> Option<(Route, &str)> {
    PATHS.iter().find_map(|(template, route)| Some((*route, fits(template, path)?)))
}

/// True for paths that say nothing without the API key, not even whether they exist.
pub(super) fn needs_key(path: &str) -> bool {
    path != PAGE_SESSION
        && (path == "/events" || path == "/metrics" || path == "/api" || path.starts_with("/api/"))
}

/// A path segment, percent-decoded.
///
/// # Errors
///
/// 404 if it is not UTF-8: nothing has such a name.
pub(super) fn decoded(segment: &str) -> Result<String, ApiError> {
    let decoded = percent_encoding::percent_decode_str(segment).decode_utf8();
    decoded.map(String::from).map_err(|_| ApiError::no_such_path())
}

/// The segment in braces, empty where the template has none; `None` for another path.
fn fits<'a>(template: &str, path: &'a str) -> Option<&'a str> {
    let braces =
        template.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?.1)));
    let Some((before, after)) = braces else {
        return (template == path).then_some("");
    };
    let segment = path.strip_prefix(before)?.strip_suffix(after)?;
    (!segment.contains('/')).then_some(segment)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use super::*;
    use crate::api::openapi;
    use crate::policy::{AgentToken, JwtSubject, Scope};

    #[test]
    fn paths_lead_where_the_contract_says() {
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
    fn only_health_and_proofs_are_told_without_the_key() {
        let open: Vec<_> = PATHS.iter().filter(|(path, _)| !needs_key(path)).collect();
        let free = [
            ("/healthz", Route::Health),
            ("/readyz", Route::Readiness),
            ("/proof", Route::Proof),
            (resource_metadata::PATH, Route::ResourceMetadata),
            (resource_metadata::OF_MCP, Route::ResourceMetadata),
            (resource_metadata::OF_ALL, Route::ResourceMetadata),
            (PAGE_SESSION, Route::PageSession),
        ];
        assert_eq!(open, free.iter().collect::<Vec<_>>());
        assert!(needs_key("/api/v1/nowhere") && needs_key("/api"));
    }

    #[test]
    fn every_route_is_described_and_nothing_else() {
        let described = openapi::openapi();
        let mut methods = BTreeSet::new();
        for (path, item) in &described.paths.paths {
            let served = [("GET", &item.get), ("POST", &item.post), ("DELETE", &item.delete)];
            methods.extend(served.iter().filter(|(_, it)| it.is_some()).map(|it| (&**path, it.0)));
            let others = [&item.put, &item.patch, &item.options, &item.trace];
            assert!(others.iter().all(|other| other.is_none()), "{path}");
        }
        let served = PATHS.iter().flat_map(|(path, route)| {
            let allowed = route.allowed().split(", ").filter(|method| *method != "HEAD");
            allowed.map(|method| (*path, method))
        });
        assert_eq!(methods, served.collect());
    }

    #[test]
    fn a_session_of_the_page_makes_no_credentials() {
        let closed =
            PATHS.iter().filter(|(path, route)| needs_key(path) && !route.is_open_to_page());
        let expected = [
            "/metrics",
            "/api/v1/tokens",
            "/api/v1/tokens/{name}",
            "/api/v1/tokens/{name}/rotate",
            // What runs on all nodes, with servers and secrets.
            "/api/v1/fleet/config",
            "/api/v1/fleet/config/rollback",
            "/api/v1/page/codes",
        ];
        assert_eq!(closed.map(|(path, _)| *path).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_token_is_no_admin() {
        let token = Principal::Token(Arc::new(AgentToken::new("ci", 0, Scope::default())));
        let subject = Principal::Subject(Arc::new(JwtSubject::new(
            "ada",
            Vec::new(),
            std::time::SystemTime::UNIX_EPOCH,
        )));
        let open = |principal: &Principal| {
            let open = PATHS.iter().filter(|(_, route)| route.is_open_to(principal));
            open.map(|(path, _)| *path).filter(|path| needs_key(path)).collect::<Vec<_>>()
        };
        let theirs = [
            "/api/v1/openapi.json",
            "/api/v1/tools",
            "/api/v1/tools/call",
            "/api/v1/tools/{name}",
            "/api/v1/activity",
            "/api/v1/activity/{id}",
            "/api/v1/config/schema.json",
        ];
        assert_eq!(open(&token), theirs);
        assert_eq!(open(&subject), theirs);
        assert!(open(&Principal::Anonymous).is_empty());
        assert!(PATHS.iter().all(|(_, route)| route.is_open_to(&Principal::Admin)));
    }
}
