//! OAuth protected resource metadata (RFC 9728) at `/.well-known/oauth-protected-resource`, and the `WWW-Authenticate` challenge
//! that names it. The metadata exists only if `auth.jwt` is configured.
//!
//! The external URL of this proxy is its audience if that is a URL, otherwise the `Host` of the request, which is
//! checked earlier.

use http::header::{HOST, HeaderMap};
use http::{HeaderValue, Response, StatusCode};
use serde::Serialize;
use utoipa::ToSchema;

use super::request::ApiRequest;
use super::response::{self, ApiError, encode};
use mcpproxy_downstream::authentication::Unauthenticated;
use mcpproxy_downstream::body::Body;
use mcpproxy_downstream::http::PATHS;
use mcpproxy_gateway::proxy::Worker;
use mcpproxy_policy::identity;

/// Path for the whole proxy.
pub(super) const PATH: &str = "/.well-known/oauth-protected-resource";
/// Path for `/mcp` (RFC 9728 §3.1).
pub(super) const OF_MCP: &str = "/.well-known/oauth-protected-resource/mcp";
/// Path for `/mcp/all`.
pub(super) const OF_ALL: &str = "/.well-known/oauth-protected-resource/mcp/all";

/// Authorization server of a resource, and how a token is sent to it.
#[derive(Serialize, ToSchema)]
pub(super) struct ResourceMetadata<'a> {
    /// URL of the protected resource.
    resource: String,
    /// Issuer of `auth.jwt`.
    #[schema(value_type = Vec<String>)]
    authorization_servers: [&'a str; 1],
    /// Tokens are sent in a header.
    #[schema(value_type = Vec<String>)]
    bearer_methods_supported: [&'a str; 1],
    /// Name of the resource.
    #[schema(value_type = String)]
    resource_name: &'a str,
}

/// Returns the metadata of the whole proxy (RFC 9728).
#[utoipa::path(
    get,
    path = PATH,
    tag = "health",
    operation_id = "getResourceMetadata",
    responses(
        (status = 200, description = "The metadata", body = ResourceMetadata<'_>),
        (status = 400, description = "A parameter is given"),
        (status = 404, description = "`auth.jwt` is not configured"),
    )
)]
pub(super) async fn answer(
    ApiRequest { worker, parts, id, query, .. }: ApiRequest<'_>,
) -> Result<Response<Body>, ApiError> {
    let query = query?;
    let credentials = worker.credentials();
    let jwt = credentials.jwt().ok_or_else(ApiError::no_such_path)?;
    query.finish()?;
    let of = parts.uri.path().strip_prefix(PATH).unwrap_or_default();
    let body = encode(&of_resource(jwt.settings(), &parts.headers, of));
    Ok(response::json(StatusCode::OK, Body::from(body), id))
}

/// Returns the metadata of `/mcp`.
#[utoipa::path(
    get,
    path = OF_MCP,
    tag = "health",
    operation_id = "getResourceMetadataOfMcp",
    responses(
        (status = 200, description = "The metadata", body = ResourceMetadata<'_>),
        (status = 400, description = "A parameter is given"),
        (status = 404, description = "`auth.jwt` is not configured"),
    )
)]
pub(super) async fn of_mcp(request: ApiRequest<'_>) -> Result<Response<Body>, ApiError> {
    answer(request).await
}

/// Returns the metadata of `/mcp/all`.
#[utoipa::path(
    get,
    path = OF_ALL,
    tag = "health",
    operation_id = "getResourceMetadataOfAll",
    responses(
        (status = 200, description = "The metadata", body = ResourceMetadata<'_>),
        (status = 400, description = "A parameter is given"),
        (status = 404, description = "`auth.jwt` is not configured"),
    )
)]
pub(super) async fn of_all(request: ApiRequest<'_>) -> Result<Response<Body>, ApiError> {
    answer(request).await
}

/// The `WWW-Authenticate` challenge of a 401 response to a request for `path` (RFC 9110 §11.6.1, RFC 6750 §3); with an
/// authorization server, it names the metadata (RFC 9728 §5.1).
pub(super) fn challenge(
    worker: &Worker,
    headers: &HeaderMap,
    path: &str,
    unproven: &Unauthenticated,
) -> Option<HeaderValue> {
    let credentials = worker.credentials();
    let metadata = credentials.jwt().map(|jwt| {
        let of = if PATHS.contains(&path) { path.trim_end_matches('/') } else { "" };
        format!("resource_metadata=\"{}{PATH}{of}\"", base(jwt.settings(), headers))
    });
    let error = match unproven {
        Unauthenticated::Missing
        | Unauthenticated::CertificateExpired
        | Unauthenticated::CertificateTakenBack => None,
        Unauthenticated::Several | Unauthenticated::InUrl => Some("error=\"invalid_request\""),
        Unauthenticated::Key | Unauthenticated::Token(_) => Some("error=\"invalid_token\""),
    };
    let parameters: Vec<&str> = metadata.as_deref().into_iter().chain(error).collect();
    HeaderValue::from_str(format!("Bearer {}", parameters.join(", ")).trim_end()).ok()
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

/// External scheme and authority of this proxy.
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
    use mcpproxy_policy::identity::{Algorithm, KeySource};

    #[test]
    fn rfc_9728_resource_is_the_audience_url_or_the_requested_host() {
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
