//! One section from its JSON value: where an error stands, and which keys nobody knows.

use std::fmt;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{ConfigError, Warning};

/// Reads one section; keys that it does not know become warnings.
pub(super) fn read<T: DeserializeOwned>(
    value: &Value,
    at: &str,
    warnings: &mut Vec<Warning>,
) -> Result<T, ConfigError> {
    let (section, unknown) = read_quietly(value, at)?;
    let prefix = if at.is_empty() { String::new() } else { format!("{at}.") };
    warnings.extend(unknown.into_iter().map(|key| unknown_key(format!("{prefix}{key}"))));
    Ok(section)
}

/// Reads one section; also returns the paths, within it, of keys that it does not know.
pub(super) fn read_quietly<T: DeserializeOwned>(
    value: &Value,
    at: &str,
) -> Result<(T, Vec<String>), ConfigError> {
    let mut unknown = Vec::new();
    let mut track = serde_path_to_error::Track::new();
    let tracked = serde_path_to_error::Deserializer::new(value, &mut track);
    let section = serde_ignored::deserialize(tracked, |path| unknown.push(path.to_string()));
    let section = section.map_err(|error| {
        let path = match (at, track.path().to_string().as_str()) {
            (at, ".") => at.to_owned(),
            ("", path) => path.to_owned(),
            (at, path) => format!("{at}.{path}"),
        };
        ConfigError::at(&path, error)
    })?;
    Ok((section, unknown))
}

/// Keys of the file, wherever they stand: for the guess at what an unknown one was meant to be.
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

/// The warning about the key at `path`.
pub(super) fn unknown_key(path: String) -> Warning {
    let key = path.rsplit('.').next().unwrap_or(&path).to_lowercase();
    let distance = |known: &str| {
        let known = known.to_lowercase();
        // `servers` is three letters from nothing, and yet plainly `mcpServers`.
        if key.len() > 3 && known.contains(&key) { 1 } else { strsim::osa_distance(&known, &key) }
    };
    let nearest = KNOWN_KEYS.iter().map(|known| (distance(known), *known)).min();
    let close = nearest.filter(|(distance, _)| *distance <= (key.len() / 3).max(1));
    Warning::UnknownKey { path, nearest: close.map(|(_, known)| known.to_owned()) }
}

/// `value` if it is within its bounds.
pub(super) fn within<T: PartialOrd + fmt::Display, E: serde::de::Error>(
    value: T,
    bounds: &std::ops::RangeInclusive<T>,
) -> Result<T, E> {
    if bounds.contains(&value) {
        return Ok(value);
    }
    Err(E::custom(format_args!("must be {} to {}, is {value}", bounds.start(), bounds.end())))
}
