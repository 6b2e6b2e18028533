//! Endpoint of one server, `/mcp/server/NAME`, and the servers that a principal may reach there.
//!
//! `NAME` is one percent-encoded path segment. An unknown server, a disabled one, and one hidden from the principal
//! get the same response, so that the path does not reveal names.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use mcpproxy_policy::Principal;
use percent_encoding::percent_decode_str;

use mcpproxy_gateway::proxy::Worker;
use mcpproxy_gateway::proxy::client::Endpoint;
use mcpproxy_gateway::proxy::extension::merged::may_know;
use mcpproxy_gateway::proxy::passthrough::list_cache::LIST_WAIT;

/// Beginning of the path.
pub(super) const PREFIX: &str = "/mcp/server/";
/// Response to a request for a server that the principal cannot reach.
pub(super) const NOT_FOUND: &str = "no such MCP server";
/// Maximum length of a name in the path, as written.
pub(crate) const MAX_NAME_BYTES: usize = 3 * 1024;

/// Parses the name in a path. `None` for other paths, `Some(None)` for an invalid name.
pub(super) fn name(path: &str) -> Option<Option<Cow<'_, str>>> {
    let segment = path.strip_prefix(PREFIX)?;
    // Some clients append a slash.
    let segment = segment.strip_suffix('/').unwrap_or(segment);
    if segment.is_empty() || segment.len() > MAX_NAME_BYTES || segment.contains('/') {
        return Some(None);
    }
    Some(percent_decode_str(segment).decode_utf8().ok())
}

/// Finds a server by name, if the principal may see it. Waits up to [`LIST_WAIT`] for a server that has not yet
/// answered, because its tools and capabilities are unknown until then.
pub(super) async fn find(
    worker: &Worker,
    name: Option<&str>,
    principal: &Principal,
) -> Option<Arc<str>> {
    let upstream = worker.proxy.upstreams.get(name?).filter(|upstream| !upstream.is_disabled())?;
    let _ = tokio::time::timeout(LIST_WAIT, upstream.settled()).await;
    let server = upstream.name();
    may_know(worker, principal, server).then(|| Arc::clone(server))
}

/// Prepares the answer to `initialize`: determines whether the server reports resource changes only to legacy clients.
/// Waits up to a limit.
pub(super) async fn prepare(worker: &Worker, endpoint: &Endpoint) {
    let server = endpoint.server();
    if let Some(upstream) = server.and_then(|server| worker.proxy.upstreams.get(server)) {
        upstream.learn_legacy_updates(Instant::now() + LIST_WAIT).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pro_41_name_is_one_decoded_segment() {
        let long = format!("/mcp/server/{}", "x".repeat(10 * 1024));
        for (path, expected) in [
            ("/mcp/server/a", Some(Some("a"))),
            ("/mcp/server/a/", Some(Some("a"))),
            ("/mcp/server/a%2Fb%20c", Some(Some("a/b c"))),
            ("/mcp/server/%2e%2e", Some(Some(".."))),
            ("/mcp/server/..", Some(Some(".."))),
            ("/mcp/server/%", Some(Some("%"))),
            ("/mcp/server/%ff", Some(None)),
            ("/mcp/server/", Some(None)),
            ("/mcp/server//", Some(None)),
            ("/mcp/server/a/b", Some(None)),
            ("/mcp/server/../all", Some(None)),
            ("/mcp/server", None),
            ("/mcp/servers/a", None),
            ("/mcp/all", None),
            (&*long, Some(None)),
        ] {
            let found = name(path);
            let found = found.as_ref().map(|name| name.as_deref());
            assert_eq!(found, expected, "{path}");
        }
    }
}
