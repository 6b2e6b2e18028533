//! Log lines that a peer can cause. In code driven by peers, each line must count against the budget of its peer.

use super::code;

/// Folders and files with code driven by peers. A name that ends with `_` is a prefix.
const DRIVEN_BY_PEERS: &[&str] = &[
    "src/upstream",
    "src/downstream",
    "src/gateway/proxy",
    "src/catalog",
    "src/fleet",
    "src/server/otlp_export",
    "src/server/fleet",
];

/// Lines without a budget: the file, the beginning of the line, and the reason why no peer can repeat it at will.
const UNBUDGETED: &[(&str, &str, &str)] = &[
    (
        "src/upstream/server_log.rs",
        "server = %self.name, log, stderr",
        "the report of the budget, paced",
    ),
    ("src/server/fleet/shared_facts.rs", "%error, \"starting with the local", "once, at the start"),
    ("src/server/fleet/shared_facts.rs", "Err(_) => tracing::warn!(", "once, at the start"),
    (
        "src/server/fleet/shared_facts.rs",
        "%error, \"cannot synchronize",
        "once in a round of this node",
    ),
    ("src/upstream/reaper.rs", "%error, \"no reaper", "once in the life of the process"),
    ("src/upstream/stderr_log.rs", "%error, \"the stderr of servers", "once, at the start"),
];

/// Lines of code driven by peers that log without `peer_line!`.
pub(super) fn unbudgeted_lines(path: &str, text: &str) -> Vec<String> {
    let is_driven = |folder: &str| {
        let rest = path.strip_prefix(folder);
        rest.is_some_and(|rest| rest.starts_with(['/', '.']))
    };
    if !DRIVEN_BY_PEERS.iter().any(|folder| is_driven(folder)) || path.contains("/tests") {
        return Vec::new();
    }
    let tests = text.find("#[cfg(test)]").unwrap_or(text.len());
    let text = text.get(..tests).unwrap_or_default();
    let is_allowed = |line: &str| {
        UNBUDGETED.iter().any(|(file, begin, _)| *file == path && line.contains(begin))
    };
    code(text)
        .filter(|(_, line)| {
            let logs = ["warn!", "error!", "info!", "event!"].iter().any(|name| {
                line.match_indices(name).any(|(at, _)| {
                    let before = line.get(..at).unwrap_or_default();
                    !before.ends_with(|last: char| last.is_alphanumeric() || last == '_')
                })
            });
            let imports = ["use tracing::{", "use tracing::warn", "use tracing::error", "use tracing::info"]
                .iter()
                .any(|begin| line.contains(begin));
            (logs || imports) && !is_allowed(line)
        })
        .map(|(at, _)| {
            format!("{path}:{at}: a peer can cause this line: log it by `peer_line!` (`io::line_budget`)")
        })
        .collect()
}

#[test]
fn unbudgeted_lines_that_peers_can_cause_are_reported() {
    for (path, line, bad) in [
        ("src/upstream/a.rs", "tracing::warn!(server, \"x\");", 1),
        ("src/upstream/lib.rs", "warn!(\"x\");", 1),
        ("src/downstream/a.rs", "tracing::error!(\"x\")", 1),
        ("src/gateway/proxy/a.rs", "tracing::warn!(\"x\")", 1),
        ("src/catalog/embeddings/a.rs", "tracing::warn!(\"x\")", 1),
        ("src/server/otlp_export.rs", "tracing::info!(\"x\")", 1),
        ("src/fleet/a/b.rs", "tracing::info!(\"x\")", 1),
        ("src/fleet/a/b.rs", "tracing::event!(Level::WARN, \"x\")", 1),
        ("src/fleet/a/b.rs", "use tracing::warn as debug;", 1),
        ("src/fleet/a/b.rs", "use tracing::{Level, warn};", 1),
        ("src/upstream/a.rs", "peer_line!(warn, peer, \"x\");", 0),
        ("src/upstream/a.rs", "tracing::debug!(\"x\");", 0),
        ("src/upstream/a.rs", "// no warn!(\"x\")", 0),
        ("src/upstream/a.rs", "bail_error!(x)", 0),
        ("src/upstream/a.rs", "#[cfg(test)]\nmod tests { fn x() { tracing::warn!(\"x\"); } }", 0),
        ("src/upstream/reaper.rs", "tracing::warn!(%error, \"no reaper can\");", 0),
        ("src/upstream/stdio.rs", "tracing::warn!(%error, \"no reaper can\");", 1),
        ("src/upstreams/a.rs", "tracing::warn!(\"x\");", 0),
        ("src/server/fleet.rs", "tracing::warn!(\"x\")", 1),
        ("src/server/fleet/config/a.rs", "tracing::warn!(\"x\")", 1),
        ("src/server/a.rs", "tracing::warn!(\"x\");", 0),
        ("src/server/fleets.rs", "tracing::warn!(\"x\");", 0),
    ] {
        assert_eq!(unbudgeted_lines(path, line).len(), bad, "{path}: {line}");
    }
}
