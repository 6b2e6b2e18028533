//! Settings over REST: a redacted view of the config file, and changes by JSON Merge Patch (RFC 7396). Pure.
//!
//! Only keys on the allow-list [`PATCHABLE`] can be changed, and only to and from values that are shown, so that the
//! right to change settings grants nothing else. Invariant: unlisted keys are refused, including new ones. The list
//! excludes keys that decide who is admitted, who may approve, which rules apply and what the log keeps; keys that
//! name files, programs and addresses; and secrets. `schema_tests` compares the list with the schema.

use crate::edit::{EditRefused, EditedJson};
use crate::edit_servers::Servers;
use crate::parse::{SCHEMA, VS_CODE};
use crate::problem::{KeyPath, PathStep};
use crate::servers;
use crate::written::Written;
use serde_json::{Map, Value};
use thiserror::Error;

/// Maximum number of values per patch; the text is parsed again for each.
pub const MAX_CHANGES: usize = 64;
/// Maximum nesting depth of a value, counted in keys.
const MAX_DEPTH: usize = 16;

/// Reason why a patch is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PatchRefused {
    /// The key is not on the allow-list.
    #[error("{0}: not a setting that can be changed here: {hint}", hint = instead(.0))]
    NotPatchable(KeyPath),
    /// The server is unknown.
    #[error("{0}: no such server in the config file: add it with 'mcpproxy upstream add'")]
    NoServer(KeyPath),
    /// The patch has more than [`MAX_CHANGES`] values.
    #[error("more than {MAX_CHANGES} values at once")]
    TooMany,
    /// The value is nested deeper than [`MAX_DEPTH`].
    #[error("a value is nested more than {MAX_DEPTH} keys deep")]
    TooDeep,
    /// The text cannot be edited.
    #[error("{0}")]
    Edit(#[from] EditRefused),
}

/// Hash that identifies a state of the text, as 64 hexadecimal digits.
pub fn digest(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex().to_string()
}

/// The settings in a text, without secrets.
pub fn settings(text: &str) -> Result<Value, PatchRefused> {
    let mut root = EditedJson::new(text)?.value().clone();
    root.remove(SCHEMA);
    if let (false, Some(named)) = (root.contains_key(servers::KEY), root.remove(VS_CODE)) {
        root.insert(servers::KEY.to_owned(), named);
    }
    Ok(Written::of(&root).shown())
}

/// Applies a merge patch to a text: null removes a key, an object is merged.
pub fn patched(text: &str, patch: &Map<String, Value>) -> Result<String, PatchRefused> {
    let mut changes = Vec::new();
    let edited = EditedJson::new(text)?;
    collect(&KeyPath::default(), patch, &mut changes)?;
    changes.into_iter().try_fold(edited, change).map(|edited| edited.text().to_owned())
}

/// Collects the single values of a patch.
fn collect<'p>(
    at: &KeyPath,
    patch: &'p Map<String, Value>,
    changes: &mut Vec<(KeyPath, &'p Value)>,
) -> Result<(), PatchRefused> {
    if at.0.len() >= MAX_DEPTH {
        return Err(PatchRefused::TooDeep);
    }
    for (key, value) in patch {
        match value {
            Value::Object(inner) if !inner.is_empty() => collect(&at.key(key), inner, changes)?,
            value if changes.len() < MAX_CHANGES => changes.push((at.key(key), value)),
            _ => return Err(PatchRefused::TooMany),
        }
    }
    Ok(())
}

fn change(
    mut text: EditedJson,
    (path, value): (KeyPath, &Value),
) -> Result<EditedJson, PatchRefused> {
    let found = written_at(&text, &path);
    let old = found.as_ref().and_then(|at| text.get(at));
    if !may_change(&path, old, value) {
        return Err(PatchRefused::NotPatchable(path));
    }
    let Some(at) = found else { return Err(PatchRefused::NoServer(path)) };
    match value {
        Value::Null => drop(text.remove(&at)?),
        // An empty object changes nothing.
        Value::Object(_) if old.is_none_or(Value::is_object) => {}
        value => text.set(&at, &value.clone().into())?,
    }
    Ok(text)
}

/// Path of a value as written: servers may be under another name, or in an array. `None` for an unknown server.
fn written_at(text: &EditedJson, path: &KeyPath) -> Option<KeyPath> {
    match path.0.as_slice() {
        [PathStep::Key(root), PathStep::Key(name), rest @ ..] if root == servers::KEY => {
            Some(Servers(text).find(name)?.join(rest.iter().cloned()))
        }
        _ => Some(path.clone()),
    }
}

/// Advice for keys that cannot be patched.
fn instead(path: &KeyPath) -> &'static str {
    match path.0.first() {
        Some(PathStep::Key(root)) if [servers::KEY, VS_CODE].contains(&root.as_str()) => {
            "edit the config file and run 'mcpproxy config reload', or use 'mcpproxy upstream'"
        }
        _ => "edit the config file and run 'mcpproxy config reload'",
    }
}

/// Wildcard for a name chosen by the operator: of a server, tool, pattern or principal.
const ANY_NAME: &str = "*";

/// Paths of the patchable keys; `*` stands for any name.
pub const PATCHABLE: &[&str] = &[
    "tools_limit",
    "stream_after",
    "keepalive",
    "offered_era",
    "intent_declaration.strict_server_validation",
    "intent_declaration.operation_type",
    "intent_declaration.unannotated",
    "limits.concurrent",
    "limits.queue",
    "limits.rate_per_minute",
    "limits.held_timeout",
    "limits.breaker.failures",
    "limits.breaker.open",
    "limits.tools.*.concurrent",
    "limits.tools.*.queue",
    "limits.tools.*.rate_per_minute",
    "limits.principals.*.concurrent",
    "limits.principals.*.queue",
    "limits.principals.*.rate_per_minute",
    "output_validation.mode",
    "output_validation.max_bytes",
    "output_validation.max_depth",
    "output_validation.missing_structured_content",
    "output_validation.max_held_bytes",
    "output_validation.assert_formats",
    "output_validation.max_held_total_bytes",
    "output_validation.held_share_bytes",
    "output_validation.engine",
    "input_validation.mode",
    "result_limit.bytes",
    "result_limit.keep",
    "result_limit.max_kept_bytes",
    "result_limit.max_kept",
    "search.embeddings.timeout",
    "search.embeddings.min_similarity",
    "approval.timeout",
    "catalog.on_change.text",
    "catalog.on_change.narrowed",
    "catalog.on_change.widened",
    "catalog.on_change.loosened",
    "catalog.on_new_server",
    "catalog.scan",
    "logging.level",
    "logging.format",
    "telemetry.max_series",
    "telemetry.logs",
    "telemetry.service_name",
    "telemetry.traces_ratio",
    "mcpServers.*.enabled",
    "mcpServers.*.protocol",
    "mcpServers.*.init_timeout",
    "mcpServers.*.call_timeout",
    "mcpServers.*.affinity",
    "mcpServers.*.protocol_era",
    "mcpServers.*.second_idle_timeout",
    "mcpServers.*.max_concurrent",
    "mcpServers.*.limits.concurrent",
    "mcpServers.*.limits.queue",
    "mcpServers.*.limits.rate_per_minute",
    "mcpServers.*.limits.breaker.failures",
    "mcpServers.*.limits.breaker.open",
    "mcpServers.*.enabled_tools",
    "mcpServers.*.disabled_tools",
    "mcpServers.*.capabilities.*.side_effect",
    "mcpServers.*.capabilities.*.parallel_safe",
    "mcpServers.*.capabilities.*.approval",
    "mcpServers.*.capabilities.*.idempotent",
    "mcpServers.*.capabilities.*.sensitivity",
    "mcpServers.*.capabilities.*.open_world",
    "mcpServers.*.output_validation.mode",
    "mcpServers.*.output_validation.max_bytes",
    "mcpServers.*.output_validation.max_depth",
    "mcpServers.*.output_validation.missing_structured_content",
    "mcpServers.*.output_validation.max_held_bytes",
    "mcpServers.*.output_validation.tools.*.mode",
    "mcpServers.*.output_validation.tools.*.max_bytes",
    "mcpServers.*.output_validation.tools.*.max_depth",
    "mcpServers.*.output_validation.tools.*.missing_structured_content",
    "mcpServers.*.output_validation.tools.*.max_held_bytes",
    "mcpServers.*.input_validation.mode",
    "mcpServers.*.input_validation.tools.*.mode",
    "mcpServers.*.result_limit.bytes",
    "mcpServers.*.result_limit.keep",
    "mcpServers.*.result_limit.tools.*.bytes",
    "mcpServers.*.result_limit.tools.*.keep",
    "activity.queue_records",
    "activity.queue_bytes",
];

/// Relation of a path to the allow-list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listed {
    /// A listed key.
    Key,
    /// A section with listed keys.
    Section,
    No,
}

/// Whether the value at `path`, currently `old`, may be set to `new` or removed (null). A section may be removed if
/// all of its keys are listed.
pub(super) fn may_change(path: &KeyPath, old: Option<&Value>, new: &Value) -> bool {
    match (listed(path), new) {
        (Listed::Key, _) => true,
        (Listed::Section, Value::Object(inner)) => inner.is_empty(),
        (Listed::Section, Value::Null) => old.is_none_or(|old| is_all_listed(path, old)),
        (Listed::Section, _) | (Listed::No, _) => false,
    }
}

fn is_all_listed(path: &KeyPath, value: &Value) -> bool {
    match (listed(path), value) {
        (Listed::Key, _) => true,
        (Listed::Section, Value::Object(inner)) => {
            inner.iter().all(|(key, value)| is_all_listed(&path.key(key), value))
        }
        (Listed::Section | Listed::No, _) => false,
    }
}

fn listed(path: &KeyPath) -> Listed {
    let mut listed = Listed::No;
    for pattern in PATCHABLE {
        let mut words = pattern.split('.');
        let fits = path.0.iter().all(|step| match (step, words.next()) {
            (PathStep::Key(key), Some(word)) => word == ANY_NAME || word == key,
            (PathStep::Key(_), None) | (PathStep::Element(_), _) => false,
        });
        match (fits, words.next()) {
            (true, None) => return Listed::Key,
            (true, Some(_)) => listed = Listed::Section,
            (false, _) => {}
        }
    }
    listed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::written::may_be_shown;
    use serde_json::json;

    fn patch(text: &str, patch: Value) -> Result<String, PatchRefused> {
        let Value::Object(patch) = patch else { panic!() };
        patched(text, &patch)
    }

    #[test]
    fn values_are_patched_in_place() {
        let text = "{\n  // mine\n  \"tools_limit\": 5, // few\n  \"limits\": {\"concurrent\": 3, \"queue\": 9}\n}\n";
        for (change, expected) in [
            (json!({"tools_limit": 7}), text.replace('5', "7")),
            (json!({"tools_limit": 5, "limits": {}}), text.to_owned()),
            (json!({"limits": {"queue": null}}), text.replace(", \"queue\": 9", "")),
            (json!({"limits": {"concurrent": 4}}), text.replace('3', "4")),
            (json!({"limits": {"rate_per_minute": null}}), text.to_owned()),
            (
                json!({"catalog": {"scan": "off"}}),
                text.replace("9}\n", "9},\n  \"catalog\": {\n    \"scan\": \"off\"\n  }\n"),
            ),
        ] {
            assert_eq!(patch(text, change.clone()).as_ref(), Ok(&expected), "{change}");
        }
    }

    #[test]
    fn server_is_patched_in_every_form() {
        for text in [
            r#"{"mcpServers": {"a.b": {"command": "x"}}}"#,
            r#"{"servers": {"a.b": {"command": "x"}}}"#,
            r#"{"mcpServers": [{"name": "a.b", "command": "x"}]}"#,
        ] {
            let shown = settings(text).unwrap();
            assert_eq!(shown["mcpServers"]["a.b"]["command"], "x", "{text}");
            let change = json!({"mcpServers": {"a.b": {"max_concurrent": 2}}});
            let expected = text.replace("\"x\"", "\"x\", \"max_concurrent\": 2");
            assert_eq!(patch(text, change), Ok(expected));
        }
    }

    #[test]
    fn unlisted_keys_are_refused_with_advice() {
        let text = r#"{"api_key": "k", "approval": {"webhook": {"url": "u", "secret": "s"}}, "limits": {"queue": 3},
            "search": {"embeddings": {"url": "http://h", "timeout": "1s"}}, "output_validation": {"other": 1},
            "servers": {"a": {"command": "x"}}, "mcpServers": {"a": {"command": "x", "env": {"T": "v"}}}}"#;
        for (change, key) in [
            (json!({"mcpServers": {"a": {"command": "sh"}}}), "mcpServers.a.command"),
            (json!({"mcpServers": {"a": {"args": ["x"]}}}), "mcpServers.a.args"),
            (json!({"mcpServers": {"a": {"env": {"T": "w"}}}}), "mcpServers.a.env.T"),
            (json!({"mcpServers": {"a": null}}), "mcpServers.a"),
            (json!({"mcpServers": {"new": {"url": "http://h"}}}), "mcpServers.new.url"),
            (json!({"mcpServers": null}), "mcpServers"),
            (json!({"mcpServers": []}), "mcpServers"),
            (json!({"servers": {"a": {"command": "sh"}}}), "servers.a.command"),
            (json!({"servers": {"a": {"max_concurrent": 2}}}), "servers.a.max_concurrent"),
            (json!({"approval": null}), "approval"),
            (json!({"approval": {"webhook": {"url": "http://h"}}}), "approval.webhook.url"),
            (json!({"approval": {"elicitation": true}}), "approval.elicitation"),
            (json!({"search": null}), "search"),
            (json!({"search": {"embeddings": null}}), "search.embeddings"),
            (json!({"output_validation": null}), "output_validation"),
            (json!({"limits": 3}), "limits"),
            (json!({"limits": []}), "limits"),
            (json!({"tools_limit": {"in": 1}}), "tools_limit.in"),
            (json!({"telemetry": {"otlp_endpoint": "http://h"}}), "telemetry.otlp_endpoint"),
            (json!({"..": {"x": 1}}), "...x"),
            (json!({"tools_limti": 1}), "tools_limti"),
            (json!({"$schema": "x"}), "$schema"),
            (json!({"api_key": "other"}), "api_key"),
            (json!({"auth": {"jwt": {"jwks_file": "mine"}}}), "auth.jwt.jwks_file"),
            (json!({"auth": null}), "auth"),
            (json!({"require_mcp_auth": false}), "require_mcp_auth"),
            (json!({"tls": {"client_ca": "mine"}}), "tls.client_ca"),
            (json!({"allowed_hosts": ["evil.example"]}), "allowed_hosts"),
            (json!({"allowed_origins": ["https://evil.example"]}), "allowed_origins"),
            (json!({"listen": "0.0.0.0:80"}), "listen"),
            (json!({"data_dir": "/tmp"}), "data_dir"),
            (json!({"cluster": {"store": "file:///tmp"}}), "cluster.store"),
            (json!({"cluster": {"flush": "1h"}}), "cluster.flush"),
            (json!({"policy": {"files": []}}), "policy.files"),
            (json!({"activity": {"max_records": 1}}), "activity.max_records"),
        ] {
            let refused = patch(text, change.clone()).unwrap_err();
            assert!(matches!(refused, PatchRefused::NotPatchable(_)), "{change}: {refused:?}");
            let message = refused.to_string();
            assert!(message.starts_with(&format!("{key}: not a setting")), "{message}");
            assert!(message.contains("'mcpproxy config reload'"), "{message}");
        }
    }

    #[test]
    fn every_patchable_value_is_shown_whatever_its_operator_named_it() {
        for path in PATCHABLE {
            let steps = path.split('.').map(|step| if step == "*" { "a:get_secret" } else { step });
            let path = KeyPath(steps.map(|step| PathStep::Key(step.to_owned())).collect());
            assert!(may_be_shown(&path, &json!(1)), "{path}");
        }
    }

    #[test]
    fn patches_of_unknown_servers_are_refused() {
        let text = r#"{"servers": {"a": {"command": "x"}}, "limits": {"queue": 3}}"#;
        let absent = patch(text, json!({"mcpServers": {"b": {"enabled": false}}}));
        assert!(matches!(absent, Err(PatchRefused::NoServer(_))), "{absent:?}");
        // A second list of servers would replace the first.
        assert_eq!(patch(text, json!({"mcpServers": {}})).as_deref(), Ok(text));
        let removed = patch(text, json!({"limits": null}));
        assert_eq!(removed.as_deref(), Ok(r#"{"servers": {"a": {"command": "x"}}}"#));
    }

    #[test]
    fn secrets_are_redacted_under_any_name() {
        let server = json!({"command": "x", "args": ["--token", "s3cret"], "env": {"A": "s3cret"},
            "headers": {"limits": "s3cret"}, "url": "http://a:s3cret@b", "disabled_tools": ["plain"]});
        let root = json!({"api_key": "s3cret", "servers": {"n": server}, "inputs": [{"default": "s3cret"}],
            "activity_redact": "s3cret", "mcp": {"servers": {"n": server}}, "$schema": "s3cret"});
        let shown = settings(&root.to_string()).unwrap();
        assert!(!shown.to_string().contains("s3cret"), "{shown}");
        assert!(shown.to_string().contains("plain"), "{shown}");
        let both = json!({"servers": {"n": server}, "mcpServers": {"n": server}}).to_string();
        assert!(!settings(&both).unwrap().to_string().contains("s3cret"));
        let list = json!({"mcpServers": [server, "s3cret"]}).to_string();
        assert!(!settings(&list).unwrap().to_string().contains("s3cret"));
    }

    #[test]
    fn patch_size_is_bounded() {
        let wide = (0..=MAX_CHANGES).map(|at| (format!("k{at}"), json!(1))).collect();
        assert_eq!(patched("{}", &wide), Err(PatchRefused::TooMany));
        let deep = (0..MAX_DEPTH).fold(json!(1), |value, _| json!({"limits": value}));
        assert_eq!(patch("{}", json!({"limits": deep})), Err(PatchRefused::TooDeep));
        let unreadable = patch("{", json!({"tools_limit": 1})).unwrap_err();
        assert!(unreadable.to_string().contains("line 1 column"), "{unreadable}");
        let no_object = patch(r#"{"limits": 3}"#, json!({"limits": {"queue": 1}}));
        assert!(matches!(no_object, Err(PatchRefused::Edit(EditRefused::NoObject(_)))));
    }
}
