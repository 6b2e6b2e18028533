//! Where an MCP client logs in: `/.well-known/oauth-protected-resource` (RFC 9728), and the challenge of a 401 that names
//! it. Both are there where JWTs are awaited (`auth.jwt`), and only there.
//!
//! What this proxy is called from outside is its audience where that is a URL; else what the request called it, which the
//! check of `Host` has let pass.

use http::header::{HOST, HeaderMap};
use http::{HeaderValue, Response, StatusCode};
use serde::Serialize;
use utoipa::ToSchema;

use super::query_parameters::Query;
use super::response::{self, ApiError, encode};
use crate::downstream::api_key::Unproven;
use crate::downstream::body::Body;
use crate::downstream::http::PATHS;
use crate::identity;
use crate::proxy::Worker;

/// The path of the whole proxy's.
pub(super) const PATH: &str = "/.well-known/oauth-protected-resource";
/// The path of that of `/mcp` (RFC 9728 §3.1).
pub(super) const OF_MCP: &str = "/.well-known/oauth-protected-resource/mcp";
/// The path of that of `/mcp/all`.
pub(super) const OF_ALL: &str = "/.well-known/oauth-protected-resource/mcp/all";

/// Where to log in, for whom, and how a token is sent.
#[derive(Serialize, ToSchema)]
pub(super) struct ResourceMetadata<'a> {
    /// The URL of what is protected.
    resource: String,
    /// The issuer of `auth.jwt`.
    #[schema(value_type = Vec<String>)]
    authorization_servers: [&'a str; 1],
    /// A token is sent as a header.
    #[schema(value_type = Vec<String>)]
    bearer_methods_supported: [&'a str; 1],
    /// What it is.
    #[schema(value_type = String)]
    resource_name: &'a str,
}

/// Says where to log in (RFC 9728).
#[utoipa::path(
    get,
    path = "/.well-known/oauth-protected-resource",
    tag = "health",
    operation_id = "getResourceMetadata",
    responses(
        (status = 200, description = "Where to log in", body = ResourceMetadata<'_>),
        (status = 400, description = "A parameter is given"),
        (status = 404, description = "There is no `auth.jwt`"),
    )
)]
pub(super) fn answer(
    worker: &Worker,
    headers: &HeaderMap,
    path: &str,
    query: Query,
    id: &str,
) -> Result<Response<Body>, ApiError> {
    let credentials = worker.credentials();
    let jwt = credentials.jwt().ok_or_else(ApiError::no_such_path)?;
    query.finish()?;
    let of = path.strip_prefix(PATH).unwrap_or_default();
    let body = encode(&of_resource(jwt.settings(), headers, of));
    Ok(response::json(StatusCode::OK, Body::from(body), id))
}

/// Says where to log in for `/mcp`.
#[utoipa::path(
    get,
    path = "/.well-known/oauth-protected-resource/mcp",
    tag = "health",
    operation_id = "getResourceMetadataOfMcp",
    responses(
        (status = 200, description = "Where to log in", body = ResourceMetadata<'_>),
        (status = 400, description = "A parameter is given"),
        (status = 404, description = "There is no `auth.jwt`"),
    )
)]
#[expect(dead_code, reason = "only described: `answer` answers")]
pub(super) fn of_mcp() {}

/// Says where to log in for `/mcp/all`.
#[utoipa::path(
    get,
    path = "/.well-known/oauth-protected-resource/mcp/all",
    tag = "health",
    operation_id = "getResourceMetadataOfAll",
    responses(
        (status = 200, description = "Where to log in", body = ResourceMetadata<'_>),
        (status = 400, description = "A parameter is given"),
        (status = 404, description = "There is no `auth.jwt`"),
    )
)]
#[expect(dead_code, reason = "only described: `answer` answers")]
pub(super) fn of_all() {}

/// What a 401 says of where to log in (RFC 9728 §5.1), for a request to `path`.
pub(super) fn challenge(
    worker: &Worker,
    headers: &HeaderMap,
    path: &str,
    unproven: &Unproven,
) -> Option<HeaderValue> {
    let credentials = worker.credentials();
    let base = base(credentials.jwt()?.settings(), headers);
    let of = if PATHS.contains(&path) { path } else { "" };
    let error = match unproven {
        Unproven::Missing | Unproven::CertificateExpired | Unproven::CertificateTakenBack => "",
        Unproven::Several | Unproven::InUrl => ", error=\"invalid_request\"",
        Unproven::Key | Unproven::Token(_) => ", error=\"invalid_token\"",
    };
    HeaderValue::from_str(&format!("Bearer resource_metadata=\"{base}{PATH}{of}\"{error}")).ok()
}

fn of_resource<'a>(
    settings: &'a identity::Settings,
    headers: &HeaderMap,
    of: &str,
) -> ResourceMetadata<'a> {
    let resource = match url_of(&settings.audience) {
        Some(_) => settings.audience.to_string(),
        None => format!("{}{of}", base(settings, headers)),
    };
    ResourceMetadata {
        resource,
        authorization_servers: [&settings.issuer],
        bearer_methods_supported: ["header"],
        resource_name: "mcpproxy",
    }
}

/// Scheme and authority of this proxy, as clients know it.
fn base(settings: &identity::Settings, headers: &HeaderMap) -> String {
    match url_of(&settings.audience) {
        Some(url) => url.origin().ascii_serialization(),
        None => {
            let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
            format!("http://{host}")
        }
    }
}

fn url_of(audience: &str) -> Option<url::Url> {
    let url = url::Url::parse(audience).ok()?;
    matches!(url.scheme(), "http" | "https").then_some(url)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{Algorithm, KeySource};

    #[test]
    fn rfc_9728_what_is_protected_is_the_audience_or_what_the_client_calls_it() {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_static("localhost:8080"));
        for (audience, of, resource, at) in [
            ("mcp", "/mcp", "http://localhost:8080/mcp", "http://localhost:8080"),
            ("mcp", "", "http://localhost:8080", "http://localhost:8080"),
            ("urn:proxy", "", "http://localhost:8080", "http://localhost:8080"),
            ("https://p.example/mcp", "/mcp/all", "https://p.example/mcp", "https://p.example"),
        ] {
            let settings = identity::Settings {
                issuer: "https://issuer.example".into(),
                audience: audience.into(),
                keys: KeySource::File("keys".into()),
                algorithms: vec![Algorithm::Es256],
                groups_claim: "groups".into(),
            };
            assert_eq!(of_resource(&settings, &headers, of).resource, resource);
            assert_eq!(base(&settings, &headers), at);
        }
    }
}
