//! Redirects of a server's own requests.
//!
//! Only 307 and 308 are followed, which keep method and body. They are followed only within the origin or from http to
//! https on the same host, since a request carries the operator's headers and the session. Servers that mount an
//! application below a path redirect `/mcp` to `/mcp/` in this way.

use url::Url;

use crate::endpoint::{Endpoint, ServerPlace, TlsSource};
use crate::error::Cause;

/// Whether a status is a redirect that may be followed.
pub(super) fn keeps_method(status: u16) -> bool {
    matches!(status, 307 | 308)
}

/// Endpoint to which a redirect from `endpoint` leads. Fails with the cause if the redirect is not followed.
pub(super) async fn next_endpoint(
    endpoint: &Endpoint,
    status: u16,
    location: &[u8],
) -> Result<Endpoint, Cause> {
    let refused = |why| Err(refusal(endpoint, status, location, why));
    let Some(url) = target(endpoint, location) else {
        return refused("it is not a URL; set url to the endpoint itself");
    };
    let next = match step(endpoint, &url) {
        None => return refused("it has another origin; set url to it if that origin is trusted"),
        Some(Step::Path) => endpoint.with_path(&url),
        Some(Step::Https(tls)) => {
            // Reads certificates at the first call.
            let (from, url) = (endpoint.clone(), url.to_string());
            let parse =
                move || Endpoint::parse(&url, &from.server_log, &from.egress, move || tls());
            let parsed = tokio::task::spawn_blocking(parse).await;
            parsed.map_err(|error| error.to_string()).flatten()
        }
    };
    next.or_else(|_| refused("its target cannot be used; set url to it"))
}

/// Allowed difference between an endpoint and its redirect target.
enum Step {
    /// The target has the same origin.
    Path,
    /// The target is on the same host, with TLS.
    Https(TlsSource),
}

/// Difference between an endpoint and a redirect target; `None` if the redirect may not be followed.
fn step(from: &Endpoint, to: &Url) -> Option<Step> {
    if !to.username().is_empty() || to.password().is_some() {
        return None;
    }
    let origin = origin(from)?;
    if to.origin() == origin.origin() {
        return Some(Step::Path);
    }
    let upgrade = origin.scheme() == "http" && to.scheme() == "https" && to.host() == origin.host();
    let web = matches!(from.place, ServerPlace::Host(..));
    from.upgrade.clone().filter(|_| upgrade && web).map(Step::Https)
}

/// Absolute URL of a `Location`.
fn target(from: &Endpoint, location: &[u8]) -> Option<Url> {
    let base = origin(from)?.join(&from.path.to_string()).ok()?;
    base.join(std::str::from_utf8(location).ok()?).ok()
}

fn origin(of: &Endpoint) -> Option<Url> {
    let scheme = if of.tls.is_some() { "https" } else { "http" };
    Url::parse(&format!("{scheme}://{}/", of.host_header.to_str().ok()?)).ok()
}

/// Cause for a redirect that is not followed. Contains the target without credentials, query and fragment; a target that
/// does not parse as a URL is quoted as it is.
pub(super) fn refusal(from: &Endpoint, status: u16, location: &[u8], why: &'static str) -> Cause {
    let location = match target(from, location) {
        Some(mut url) => {
            let _ = (url.set_username(""), url.set_password(None));
            url.set_query(None);
            url.set_fragment(None);
            from.server_log.quote(url.as_str())
        }
        None => from.server_log.quote(location),
    };
    Cause::Redirect { status, location, why }
}
