//! Which paths there are, and which methods they take. Pure.
//!
//! `router` runs the handler of a [`Route`]; how the route is described stands at its handler. A test
//! below checks that every route is described, and nothing else.

use http::Method;

use super::proof;
use super::response::ApiError;

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
    Tools,
    Call,
    Tool,
    PolicyExplain,
    ActivityList,
    ActivitySummary,
    ActivityVerify,
    ActivityExport,
    ActivityRecord,
    Approvals,
    Approval,
}

/// Their paths. A segment in braces stands for any one; whole words are found before it.
const PATHS: [(&str, Route); 19] = [
    ("/healthz", Route::Health),
    ("/readyz", Route::Readiness),
    (proof::PATH, Route::Proof),
    ("/events", Route::Events),
    ("/api/v1/openapi.json", Route::OpenApi),
    ("/metrics", Route::Metrics),
    ("/api/v1/status", Route::Status),
    ("/api/v1/servers", Route::Servers),
    ("/api/v1/tools", Route::Tools),
    ("/api/v1/tools/call", Route::Call),
    ("/api/v1/tools/{name}", Route::Tool),
    ("/api/v1/policy/explain", Route::PolicyExplain),
    ("/api/v1/activity", Route::ActivityList),
    ("/api/v1/activity/summary", Route::ActivitySummary),
    ("/api/v1/activity/verify", Route::ActivityVerify),
    ("/api/v1/activity/export", Route::ActivityExport),
    ("/api/v1/activity/{id}", Route::ActivityRecord),
    ("/api/v1/approvals", Route::Approvals),
    ("/api/v1/approvals/{id}", Route::Approval),
];

/// Which methods a route takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Takes {
    Get,
    Post,
    Both,
}

impl Route {
    /// True if it takes the method.
    pub(super) fn allows(self, method: &Method) -> bool {
        let (get, post) = match self.takes() {
            Takes::Get => (true, false),
            Takes::Post => (false, true),
            Takes::Both => (true, true),
        };
        (get && matches!(*method, Method::GET | Method::HEAD)) || (post && *method == Method::POST)
    }

    /// The methods it takes, as `Allow` lists them.
    pub(super) fn allowed(self) -> &'static str {
        match self.takes() {
            Takes::Get => "GET, HEAD",
            Takes::Post => "POST",
            Takes::Both => "GET, HEAD, POST",
        }
    }

    fn takes(self) -> Takes {
        match self {
            Self::Call | Self::PolicyExplain => Takes::Post,
            Self::Approval => Takes::Both,
            Self::Health
            | Self::Metrics
            | Self::Readiness
            | Self::Proof
            | Self::Events
            | Self::OpenApi
            | Self::Status
            | Self::Servers
            | Self::Tools
            | Self::Tool
            | Self::ActivityList
            | Self::ActivitySummary
            | Self::ActivityVerify
            | Self::ActivityExport
            | Self::ActivityRecord
            | Self::Approvals => Takes::Get,
        }
    }
}

/// The route of a path, and the segment that its braces stand for, as it was sent.
pub(super) fn find(path: &str) -> Option<(Route, &str)> {
    PATHS.iter().find_map(|(template, route)| Some((*route, fits(template, path)?)))
}

/// True for paths that say nothing without the API key, not even whether they exist.
pub(super) fn needs_key(path: &str) -> bool {
    path == "/events" || path == "/metrics" || path == "/api" || path.starts_with("/api/")
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
    let Some((before, _)) = template.split_once('{') else {
        return (template == path).then_some("");
    };
    path.strip_prefix(before).filter(|segment| !segment.contains('/'))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::api::openapi;

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
            ("/healthz", Route::Health, ""),
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
        let free = [("/healthz", Route::Health), ("/readyz", Route::Readiness)];
        assert_eq!(open, [&free[0], &free[1], &("/proof", Route::Proof)]);
        assert!(needs_key("/api/v1/nowhere") && needs_key("/api"));
    }

    #[test]
    fn every_route_is_described_and_nothing_else() {
        let described = openapi::openapi();
        let mut methods = BTreeSet::new();
        for (path, item) in &described.paths.paths {
            let served = [("GET", &item.get), ("POST", &item.post)];
            methods.extend(served.iter().filter(|(_, it)| it.is_some()).map(|it| (&**path, it.0)));
            let others = [&item.put, &item.delete, &item.patch, &item.options, &item.trace];
            assert!(others.iter().all(|other| other.is_none()), "{path}");
        }
        let served = PATHS.iter().flat_map(|(path, route)| {
            let takes = [("GET", Method::GET), ("POST", Method::POST)];
            let takes = takes.into_iter().filter(|(_, method)| route.allows(method));
            takes.map(|(name, _)| (*path, name)).collect::<Vec<_>>()
        });
        assert_eq!(methods, served.collect());
    }
}
