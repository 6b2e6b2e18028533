//! The config as written, and the difference between two of them by key path. Pure.
//!
//! Differences are shown to people and kept in records, so they contain no secrets. For a potential secret, they show
//! only that it changed; for a server, only how it is used, not how it is reached. The complete config, which is not
//! recorded, also shows how a server is reached (CFG-8): command line and URL, masked like the activity log.

use crate::problem::{KeyPath, PathStep};
use crate::section_reader::KNOWN_KEYS;
use crate::servers;
use mcpproxy_activity::redact::{REDACTED, Redactor};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::fmt;

/// A config as written, with key names normalized. Redacted in `Debug`.
#[derive(Clone, Default, PartialEq)]
pub struct Written(Map<String, Value>);

/// A key with different values in two configs.
#[derive(Clone, Debug, PartialEq)]
pub struct ChangedKey {
    pub path: KeyPath,
    old: Option<Value>,
    new: Option<Value>,
}

/// Keys of a server that do not reveal how it is reached.
const PLAIN_OF_SERVERS: [&str; 15] = [
    "enabled",
    "protocol",
    "init_timeout",
    "call_timeout",
    "affinity",
    "protocol_era",
    "second_idle_timeout",
    "max_concurrent",
    "limits",
    "enabled_tools",
    "disabled_tools",
    "capabilities",
    "output_validation",
    "input_validation",
    "result_limit",
];
/// Substrings of key names outside servers that mark potential secrets.
const HIDDEN_WORDS: [&str; 10] = [
    "key",
    "secret",
    "token",
    "password",
    "credential",
    "url",
    "endpoint",
    "headers",
    "env",
    "webhook",
];
/// Section whose keys may be names of tools and principals.
const LIMITS: &str = "limits";
/// Placeholder for a redacted value.
const NOT_SHOWN: &str = "(not shown)";
/// Minimum length of a URL path segment that is masked if it looks random.
const RANDOM_SEGMENT_CHARS: usize = 16;
/// Maximum size of a shown value in bytes.
const MAX_SHOWN_BYTES: usize = 256;

impl fmt::Debug for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Written").field(&self.0.len()).finish_non_exhaustive()
    }
}

impl Written {
    /// Builds the value from the root object; servers, in either form, are indexed by name.
    pub(super) fn of(root: &Map<String, Value>) -> Self {
        let mut root = root.clone();
        if let Some(Value::Array(list)) = root.get(servers::KEY) {
            let name = |block: &Value| Some(block.get("name")?.as_str()?.to_owned());
            let named: Option<Map<_, _>> =
                list.iter().map(|block| Some((name(block)?, block.clone()))).collect();
            if let Some(named) = named {
                root.insert(servers::KEY.to_owned(), Value::Object(named));
            }
        }
        Self(root)
    }

    /// The redacted config.
    pub fn shown(&self) -> Value {
        let extra = self.0.get("activity").and_then(|activity| activity.get("redact_keys"));
        let extra: Vec<String> = extra.map(texts).unwrap_or_default();
        let extra: Vec<String> = extra.into_iter().filter(|key| !key.is_empty()).collect();
        Value::Object(shown_members(&KeyPath::default(), &self.0, &Redactor::new(&extra)))
    }

    /// Changes to `next`, in the order of the keys.
    pub fn changes(&self, next: &Self) -> Vec<ChangedKey> {
        let mut changes = Vec::new();
        between(&KeyPath::default(), &self.0, &next.0, &mut changes);
        changes
    }
}

fn between(
    at: &KeyPath,
    old: &Map<String, Value>,
    new: &Map<String, Value>,
    changes: &mut Vec<ChangedKey>,
) {
    let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    for key in keys {
        let path = at.key(key);
        match (old.get(key), new.get(key)) {
            (Some(Value::Object(old)), Some(Value::Object(new))) => {
                between(&path, old, new, changes);
            }
            (old, new) if old == new => {}
            (old, new) => {
                changes.push(ChangedKey { path, old: old.cloned(), new: new.cloned() });
            }
        }
    }
}

impl ChangedKey {
    /// The key, the kind of change, and the values unless redacted.
    pub fn shown(&self) -> Value {
        let change = match (&self.old, &self.new) {
            (None, _) => "added",
            (_, None) => "removed",
            (Some(_), Some(_)) => "changed",
        };
        let mut shown = json!({"key": self.path.to_string(), "change": change});
        let plain = |value: &Value| {
            let value = shown_value(&self.path, value)?;
            (value.to_string().len() <= MAX_SHOWN_BYTES).then_some(value)
        };
        if let Some(map) = shown.as_object_mut() {
            for (name, value) in [("old", &self.old), ("new", &self.new)] {
                if let Some(value) = value.as_ref().and_then(plain) {
                    map.insert(name.to_owned(), value);
                }
            }
        }
        shown
    }
}

fn shown_members(
    at: &KeyPath,
    members: &Map<String, Value>,
    redactor: &Redactor,
) -> Map<String, Value> {
    let mut reach = match at.0.as_slice() {
        [PathStep::Key(root), PathStep::Key(_)] if root == servers::KEY => {
            shown_reach(members, redactor)
        }
        _ => Map::new(),
    };
    let shown = members.iter().map(|(key, value)| {
        let path = at.key(key);
        let shown = match (value, reach.remove(key)) {
            (_, Some(masked)) => masked,
            (Value::Object(inner), None) => Value::Object(shown_members(&path, inner, redactor)),
            (value, None) => shown_value(&path, value).unwrap_or_else(|| Value::from(NOT_SHOWN)),
        };
        (key.clone(), shown)
    });
    shown.collect()
}

/// Command, arguments and URL of a server, masked. Members that are not strings are omitted.
fn shown_reach(server: &Map<String, Value>, redactor: &Redactor) -> Map<String, Value> {
    let mut shown = Map::new();
    let args = server.get("args").filter(|args| args.is_array()).map(texts);
    if let Some(Value::String(command)) = server.get("command") {
        let words: Vec<&str> =
            [command].into_iter().chain(args.iter().flatten()).map(String::as_str).collect();
        if let Some((command, words)) =
            masked(&words, redactor).as_deref().and_then(<[String]>::split_first)
        {
            shown.insert("command".to_owned(), command.as_str().into());
            if args.is_some_and(|args| server.get("args") == Some(&json!(args))) {
                shown.insert("args".to_owned(), words.into());
            }
        }
    }
    if let Some(Value::String(url)) = server.get("url")
        && let Some([url]) = masked(&[url.as_str()], redactor).as_deref()
    {
        shown.insert("url".to_owned(), masked_path(url).into());
    }
    shown
}

/// Strings of a list.
fn texts(list: &Value) -> Vec<String> {
    let items = list.as_array().map(Vec::as_slice).unwrap_or_default();
    items.iter().filter_map(Value::as_str).map(ToOwned::to_owned).collect()
}

/// Masks the secrets in the words of a command line; `None` if masking changed the number of words.
fn masked(words: &[&str], redactor: &Redactor) -> Option<Vec<String>> {
    let text = json!(words).to_string();
    let masked: Vec<String> = serde_json::from_str(&redactor.text(&text, false)).ok()?;
    (masked.len() == words.len()).then_some(masked)
}

/// Returns a URL without the path segments that look random, because hosted servers put credentials there.
fn masked_path(url: &str) -> String {
    let path_end = url.find(['?', '#']).unwrap_or(url.len());
    let (path, rest) = url.split_at(path_end);
    let looks_random = |segment: &str| {
        segment.len() >= RANDOM_SEGMENT_CHARS
            && segment.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
            && segment.bytes().any(|byte| byte.is_ascii_alphabetic())
            && segment.bytes().filter(u8::is_ascii_digit).count() > 1
    };
    let mask = |segment| if looks_random(segment) { REDACTED } else { segment };
    let segments: Vec<&str> = path.split('/').map(mask).collect();
    segments.join("/") + rest
}

/// Whether `value` may be shown at `path`: not a secret, not a connection detail, and not under an unknown key.
#[cfg(test)]
pub(super) fn may_be_shown(path: &KeyPath, value: &Value) -> bool {
    shown_value(path, value).is_some()
}

/// The value at `path`, unless it may contain a secret.
fn shown_value(path: &KeyPath, value: &Value) -> Option<Value> {
    let mut names = path.0.iter().filter_map(|step| match step {
        PathStep::Key(key) => Some(key.as_str()),
        PathStep::Element(_) => None,
    });
    let root = names.next()?;
    if root == servers::KEY {
        // Whole servers are never shown.
        let (_, key) = (names.next()?, names.next()?);
        return PLAIN_OF_SERVERS.contains(&key).then(|| value.clone());
    }
    if root == LIMITS {
        // The names of tools and principals are the operator's own; the values are numbers and durations.
        return are_limits(names.next_back().unwrap_or(root), value).then(|| value.clone());
    }
    let says_secret =
        |name: &str| HIDDEN_WORDS.iter().any(|word| name.to_lowercase().contains(word));
    // Unknown keys are hidden, because a misspelled key may hold a secret.
    let hidden = |name: &str| says_secret(name) || !KNOWN_KEYS.contains(name);
    let last = names.next_back().unwrap_or(root);
    let named = [root, last].into_iter().any(hidden) || names.any(says_secret);
    (!named && !holds(value, &hidden)).then(|| value.clone())
}

/// Whether all values in `value`, which has this name, have known keys.
fn are_limits(name: &str, value: &Value) -> bool {
    match value {
        Value::Object(map) => map.iter().all(|(name, value)| are_limits(name, value)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            KNOWN_KEYS.contains(name)
        }
    }
}

/// Whether `value` contains a key that is `hidden`.
fn holds(value: &Value, hidden: &impl Fn(&str) -> bool) -> bool {
    match value {
        Value::Object(map) => map.iter().any(|(name, value)| hidden(name) || holds(value, hidden)),
        Value::Array(list) => list.iter().any(|value| holds(value, hidden)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(value: Value) -> Written {
        let Value::Object(root) = value else { panic!() };
        Written::of(&root)
    }

    #[test]
    fn added_limits_are_shown_and_unknown_keys_in_them_are_hidden() {
        let shown = |new: Value| {
            let changes = written(json!({})).changes(&written(json!({"limits": new})));
            changes.iter().map(ChangedKey::shown).collect::<Vec<_>>()
        };
        for limits in [
            json!({"tools": {"files:read_file": {"rate_per_minute": 3}}}),
            json!({"principals": {"token:ci": {"concurrent": 2}}, "queue": 9}),
        ] {
            assert_eq!(
                shown(limits.clone()),
                [json!({"key": "limits", "change": "added", "new": limits})]
            );
        }
        let hidden = [json!({"key": "limits", "change": "added"})];
        assert_eq!(shown(json!({"tools": {"files:read_file": {"pasword": "s3cret"}}})), hidden);
        assert_eq!(shown(json!({"pasword": "s3cret"})), hidden);
    }

    /// Applies changes to `root`.
    fn apply(root: &Map<String, Value>, changes: &[ChangedKey]) -> Map<String, Value> {
        let mut root = Value::Object(root.clone());
        for ChangedKey { path, new, .. } in changes {
            let mut at = &mut root;
            let (last, before) = path.0.split_last().unwrap();
            for step in before {
                let PathStep::Key(key) = step else { panic!() };
                at = at.get_mut(key).unwrap();
            }
            let (PathStep::Key(last), Value::Object(map)) = (last, at) else { panic!() };
            match new {
                Some(new) => map.insert(last.clone(), new.clone()),
                None => map.remove(last),
            };
        }
        let Value::Object(root) = root else { panic!() };
        root
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (0..4_u8).prop_map(Value::from),
            "[ab]{0,2}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::btree_map("[a-d]", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    fn root() -> impl Strategy<Value = Map<String, Value>> {
        prop::collection::btree_map("[a-d]", value(), 0..4)
            .prop_map(|map| map.into_iter().collect())
    }

    proptest! {
        #[test]
        fn changes_transform_one_config_into_the_other(a in root(), b in root()) {
            let (from, to) = (Written(a.clone()), Written(b.clone()));
            let changes = from.changes(&to);
            prop_assert_eq!(apply(&a, &changes), b);
            prop_assert_eq!(changes.is_empty(), from == to);
        }
    }

    #[test]
    fn object_and_array_forms_are_equal() {
        let object = written(json!({"mcpServers": {"a": {"command": "x", "name": "a"}}}));
        let array = written(json!({"mcpServers": [{"command": "x", "name": "a"}]}));
        assert!(object.changes(&array).is_empty());
    }

    #[test]
    fn changed_secrets_are_reported_without_values() {
        let secret = "s3cret-value";
        let config = |value: &str, limit: u8| {
            written(json!({
                "api_key": value, "tools_limit": limit, "allowed_hosts": ["a.example"],
                "auth": {"jwt": {"issuer": "i", "jwks_url": value}},
                "approval": {"timeout": "5m", "webhook": {"url": value, "secret": value}},
                "cluster": {"store": {"access_key": value}},
                "mcpServers": {
                    "s": {"command": value, "args": [value], "env": {"TOKEN": value},
                        "headers": {"H": value}, "url": value, "proxy": value, "oauth": {"client_secret": value},
                        "cwd": value, "call_timeout": format!("{limit}s")},
                },
            }))
        };
        let changes = config("s3cret-value-0", 1).changes(&config("s3cret-value-1", 2));
        let shown: Vec<Value> = changes.iter().map(ChangedKey::shown).collect();
        assert!(!json!(shown).to_string().contains(secret), "{shown:?}");
        assert_eq!(shown.len(), 15);
        let of = |key: &str| shown.iter().find(|it| it["key"] == key).unwrap();
        assert_eq!(
            of("mcpServers.s.env.TOKEN"),
            &json!({"key": "mcpServers.s.env.TOKEN", "change": "changed"})
        );
        assert_eq!(of("api_key"), &json!({"key": "api_key", "change": "changed"}));
        let limit = json!({"key": "tools_limit", "change": "changed", "old": 1, "new": 2});
        assert_eq!(of("tools_limit"), &limit);
        assert_eq!(of("mcpServers.s.call_timeout")["new"], "2s");
        // Added and removed sections and servers.
        let changes = written(json!({})).changes(&config(secret, 1));
        let shown = json!(changes.iter().map(ChangedKey::shown).collect::<Vec<_>>());
        assert!(!shown.to_string().contains(secret), "{shown}");
        assert!(!format!("{:?}", config(secret, 1)).contains(secret));
        let mut whole = config(secret, 1).shown();
        for key in ["command", "args", "url"] {
            whole["mcpServers"]["s"].as_object_mut().unwrap().remove(key);
        }
        assert!(!whole.to_string().contains(secret), "{whole}");
        assert_eq!((&whole["api_key"], &whole["tools_limit"]), (&json!("(not shown)"), &json!(1)));
        let server = &whole["mcpServers"]["s"];
        assert_eq!(server["env"], json!({"TOKEN": "(not shown)"}));
        assert_eq!(server["call_timeout"], "1s");
        let list = written(json!({"mcpServers": [{"command": secret, "name": 7}, secret]}));
        assert!(!list.shown().to_string().contains(secret), "{}", list.shown());
    }

    /// Requirement CFG-8.
    #[test]
    fn command_line_and_url_are_shown_without_their_secrets() {
        for (server, expected) in [
            (
                json!({"command": "npx", "args": ["-y", "@modelcontextprotocol/server-memory@2026.1"]}),
                json!({"command": "npx", "args": ["-y", "@modelcontextprotocol/server-memory@2026.1"]}),
            ),
            (
                json!({"command": "serve", "args": ["--api-key", "hunter2", "--house=plain", "--own=mine"]}),
                json!({"command": "serve", "args": ["--api-key", REDACTED, "--house=plain", format!("--own={REDACTED}")]}),
            ),
            (
                json!({"command": "docker", "args": ["run", "-e", "GITHUB_TOKEN=hunter2", "image"]}),
                json!({"command": "docker", "args": ["run", "-e", format!("GITHUB_TOKEN={REDACTED}"), "image"]}),
            ),
            (
                json!({"url": "https://mcp.example.com/v1/servers/mcp?team=blue&token=hunter2"}),
                json!({"url": format!("https://mcp.example.com/v1/servers/mcp?team=blue&token={REDACTED}")}),
            ),
            (
                json!({"url": "https://mcp.example.com/s/N2Q5ZTBhOTgtYzE0/mcp"}),
                json!({"url": format!("https://mcp.example.com/s/{REDACTED}/mcp")}),
            ),
            (
                json!({"command": 7, "args": ["hunter2", 7], "url": ["hunter2"]}),
                json!({"command": NOT_SHOWN, "args": NOT_SHOWN, "url": NOT_SHOWN}),
            ),
            (
                json!({"command": "serve", "args": [{"token": "hunter2"}], "env": {"A": "hunter2"}}),
                json!({"command": "serve", "args": NOT_SHOWN, "env": {"A": NOT_SHOWN}}),
            ),
        ] {
            let config = json!({"activity": {"redact_keys": ["own"]}, "mcpServers": {"s": server}});
            assert_eq!(written(config).shown()["mcpServers"]["s"], expected, "{server}");
        }
    }

    #[test]
    fn values_of_unknown_keys_are_redacted() {
        let config = |value: &str| {
            written(json!({"api_kye": value, "pasword": {"a": value}, "auth": {"sercet": value},
                "tools_limit": 1, "limits": {"principals": {"token:ci": {"concurrent": value.len()}}}}))
        };
        let changes = config("s3cr3t").changes(&config("s3cr3t-2"));
        let shown: Vec<Value> = changes.iter().map(ChangedKey::shown).collect();
        assert!(shown.len() == 4 && !json!(shown).to_string().contains("s3cr3t"), "{shown:?}");
        let added = written(json!({})).changes(&config("s3cr3t"));
        let shown = json!(added.iter().map(ChangedKey::shown).collect::<Vec<_>>()).to_string();
        assert!(!shown.contains("s3cr3t") && shown.contains(r#""new":1"#), "{shown}");
    }

    #[test]
    fn long_values_are_omitted() {
        let hosts = |letter: &str| written(json!({"allowed_hosts": [letter.repeat(300)]}));
        let shown = hosts("a").changes(&hosts("b"))[0].shown();
        assert_eq!(shown, json!({"key": "allowed_hosts", "change": "changed"}));
    }
}
