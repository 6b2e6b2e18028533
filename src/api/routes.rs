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
    ToolDiff,
    ToolApprove,
    ActivityList,
    ActivitySummary,
    ActivityVerify,
    ActivityExport,
    ActivityRecord,
}

/// Their paths. A segment in braces stands for any one; whole words are found before it.
const PATHS: [(&str, Route); 18] = [
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
    ("/api/v1/tools/{name}/diff", Route::ToolDiff),
    ("/api/v1/tools/{name}/approve", Route::ToolApprove),
    ("/api/v1/activity", Route::ActivityList),
    ("/api/v1/activity/summary", Route::ActivitySummary),
    ("/api/v1/activity/verify", Route::ActivityVerify),
    ("/api/v1/activity/export", Route::ActivityExport),
    ("/api/v1/activity/{id}", Route::ActivityRecord),
];

impl Route {
    /// True if it takes the method.
    pub(super) fn allows(self, method: &Method) -> bool {
        match self.posts() {
            true => *method == Method::POST,
            false => matches!(*method, Method::GET | Method::HEAD),
        }
    }

    /// The methods it takes, as `Allow` lists them.
    pub(super) fn allowed(self) -> &'static str {
        if self.posts() { "POST" } else { "GET, HEAD" }
    }

    fn posts(self) -> bool {
        matches!(self, Self::Call | Self::ToolApprove)
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
            ("/api/v1/tools/a:b/diff", Route::ToolDiff, "a:b"),
            ("/api/v1/tools/a/approve", Route::ToolApprove, "a"),
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
        let method = |route: &Route| if route.posts() { "POST" } else { "GET" };
        let served = PATHS.iter().map(|(path, route)| (*path, method(route)));
        assert_eq!(methods, served.collect());
    }
}
