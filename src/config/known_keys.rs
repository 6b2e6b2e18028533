//! The names of all keys of the file, and the guess at what a misspelt one was meant to be.

use super::findings::Findings;
use super::problem::{KeyPath, PathStep};

/// All keys, of whatever section.
pub(super) const KNOWN_KEYS: &[&str] = &[
    "listen",
    "data_dir",
    "api_key",
    "require_mcp_auth",
    "allowed_hosts",
    "allowed_origins",
    "mcpServers",
    "tools_limit",
    "offered_era",
    "intent_declaration",
    "output_validation",
    "activity",
    "logging",
    "strict_server_validation",
    "operation_type",
    "mode",
    "max_bytes",
    "max_depth",
    "missing_structured_content",
    "assert_formats",
    "max_held_bytes",
    "max_held_total_bytes",
    "held_share_bytes",
    "engine",
    "retention_days",
    "max_records",
    "max_size_mb",
    "max_payload_bytes",
    "max_response_bytes",
    "durability",
    "on_failure",
    "redact_keys",
    "queue_records",
    "queue_bytes",
    "level",
    "format",
    "oauth",
    "client_id",
    "client_secret",
    "scopes",
    "command",
    "args",
    "env",
    "cwd",
    "url",
    "headers",
    "enabled",
    "protocol",
    "init_timeout",
    "call_timeout",
    "enabled_tools",
    "disabled_tools",
    "capabilities",
    "max_concurrent",
    "side_effect",
    "parallel_safe",
    "approval",
    "idempotent",
    "tools",
];

/// Warns of the key at `path`, and names the known one that is most like it.
pub(super) fn unknown_key(path: &KeyPath, findings: &mut Findings<'_>) {
    let key = match path.0.last() {
        Some(PathStep::Key(key)) => key.to_lowercase(),
        Some(PathStep::Element(_)) | None => String::new(),
    };
    let distance = |known: &str| {
        let known = known.to_lowercase();
        // A part of a name plainly means it.
        if key.len() > 3 && known.contains(&key) { 1 } else { strsim::osa_distance(&known, &key) }
    };
    let nearest = KNOWN_KEYS.iter().map(|known| (distance(known), *known)).min();
    let close = nearest.filter(|(distance, _)| *distance <= (key.len() / 3).max(1));
    findings.unknown(path, close.map(|(_, known)| known));
}
