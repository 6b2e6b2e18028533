//! Known extensions at the merged endpoints (`/mcp`, `/mcp/all`): the union over all servers that a principal may know of.

use mcpproxy_catalog::listing::List;
use mcpproxy_policy as policy;
use mcpproxy_policy::Principal;
use mcpproxy_protocol::mcp::known_extensions::{Extension, MergedExtensions};
use mcpproxy_upstream::Upstream;
use serde_json::Value;

use crate::proxy::worker::Worker;

/// Maximum number of tools, resources, templates and prompts, each, for which rules are evaluated to decide whether a
/// principal may know of a server.
pub(crate) const MAX_RULED: usize = 16;

/// Whether the principal may see something of the server.
pub fn may_know(worker: &Worker, principal: &Principal, server: &str) -> bool {
    let settings = worker.settings();
    let visible = policy::visible(principal, &settings.policy);
    visible.is_all()
        || visible.server(server, worker.proxy.catalog.load().tools_of(server), MAX_RULED)
        || worker.proxy.list_cache.has_shown(server, MAX_RULED, |list, own| match list {
            List::Resources | List::Templates | List::Skills => visible.resource(server, own),
            List::Prompts => visible.prompt(server, own),
        })
}

/// Whether a server that the principal may know of declares the extension, or may declare it since it has not
/// answered since the start.
pub(crate) fn is_shown(worker: &Worker, principal: &Principal, extension: Extension) -> bool {
    worker.proxy.upstreams.iter().any(|upstream| {
        (offers(&upstream, extension) || !upstream.is_settled())
            && may_know(worker, principal, upstream.name())
    })
}

/// Whether the server declares the extension.
pub(crate) fn offers(upstream: &Upstream, extension: Extension) -> bool {
    MergedExtensions::has(&upstream.introduced().capabilities, extension)
}

/// Member `extensions` of the capabilities; `None` if no server declares a known extension. A server that has not
/// answered since the start counts as declaring all extensions: clients ask only once, and an unsupported declaration
/// does no harm.
pub(crate) fn declared(worker: &Worker, principal: &Principal) -> Option<Value> {
    let mut merged = MergedExtensions::default();
    for upstream in worker.proxy.upstreams.iter() {
        let introduced = upstream.introduced();
        let is_unknown = !upstream.is_settled();
        if !is_unknown && !MergedExtensions::has_any(&introduced.capabilities)
            || !may_know(worker, principal, upstream.name())
        {
            continue;
        }
        match is_unknown {
            true => merged.add_all(),
            false => merged.add(&introduced.capabilities),
        }
    }
    merged.into_value()
}
