//! What a misspelt key was meant to be: the guess, and the names that it is made among.
//!
//! The list accepts nothing. Which keys there are is said by the fields of [`parse`](super::parse), of the
//! [`sections`](super::sections) and of the other parts' sections; a test compares them with the list.

use super::findings::Findings;
use super::problem::{KeyPath, PathStep};
use crate::nearest::nearest;

/// The names to guess among: all keys, of whatever section.
pub(super) const KNOWN_KEYS: &[&str] = &[
    "listen",
    "tls",
    "cert",
    "key",
    "client_ca",
    "ca",
    "data_dir",
    "api_key",
    "require_mcp_auth",
    "allowed_hosts",
    "allowed_origins",
    "mcpServers",
    "tools_limit",
    "offered_era",
    "intent_declaration",
    "policy",
    "presets",
    "limits",
    "concurrent",
    "queue",
    "rate_per_minute",
    "breaker",
    "failures",
    "open",
    "principals",
    "output_validation",
    "input_validation",
    "result_limit",
    "bytes",
    "keep",
    "max_kept_bytes",
    "max_kept",
    "search",
    "embeddings",
    "model",
    "min_similarity",
    "activity",
    "cluster",
    "store",
    "node",
    "advertise",
    "index",
    "flush",
    "segment_bytes",
    "backlog_bytes",
    "auth",
    "jwt",
    "audience",
    "jwks_url",
    "jwks_file",
    "algorithms",
    "groups_claim",
    "catalog",
    "on_change",
    "text",
    "narrowed",
    "widened",
    "loosened",
    "on_new_server",
    "scan",
    "logging",
    "telemetry",
    "max_series",
    "otlp_endpoint",
    "otlp_headers",
    "logs",
    "service_name",
    "traces_ratio",
    "timeout",
    "elicitation",
    "webhook",
    "secret",
    "policy",
    "files",
    "default",
    "presets",
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
    "receipts",
    "durability",
    "mark_reads",
    "on_failure",
    "redact_keys",
    "queue_records",
    "queue_bytes",
    "level",
    "format",
    "oauth",
    "client_id",
    "client_secret",
    "issuer",
    "client_metadata_url",
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
    "affinity",
    "enabled_tools",
    "disabled_tools",
    "capabilities",
    "max_concurrent",
    "side_effect",
    "parallel_safe",
    "approval",
    "idempotent",
    "sensitivity",
    "open_world",
    "tools",
];

/// Warns of the key at `path`, and names the known one that is most like it.
pub(super) fn unknown_key(path: &KeyPath, findings: &mut Findings<'_>) {
    let key = match path.0.last() {
        Some(PathStep::Key(key)) => key.as_str(),
        Some(PathStep::Element(_)) | None => "",
    };
    findings.unknown(path, nearest(key, KNOWN_KEYS.iter().copied()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::ServerSettings;
    use crate::config::keys_read::keys_of;
    use crate::config::parse::TopLevel;
    use crate::config::servers;
    use crate::upstream;

    #[test]
    fn every_key_that_is_read_can_be_guessed() {
        let paths =
            [keys_of::<TopLevel>(), keys_of::<upstream::Config>(), keys_of::<ServerSettings>()];
        let mut read: std::collections::BTreeSet<_> =
            paths.iter().flatten().flat_map(|path| path.iter().copied()).collect();
        read.insert(servers::KEY);
        // Another name for `protocol`, which is the one to tell of.
        read.remove("type");
        assert_eq!(read, KNOWN_KEYS.iter().copied().collect());
    }
}
