//! The config as it is written, and what is another between two of them, by the paths of the keys. Pure.
//!
//! A difference is told to people and kept in records, so it shows no secret: of what may be one it says only that it is
//! another. Of a server that is only what says how it is used, not how it is reached.

use std::collections::BTreeSet;
use std::fmt;

use serde_json::{Map, Value, json};

use super::misspelt_keys::KNOWN_KEYS;
use super::problem::{KeyPath, PathStep};
use super::servers;

/// A config as it is written, under our names of the keys. `Debug` shows none of it.
#[derive(Clone, Default, PartialEq)]
pub struct Written(Map<String, Value>);

/// A value that is another.
#[derive(Clone, Debug, PartialEq)]
pub struct ChangedKey {
    /// Where it stands.
    pub path: KeyPath,
    old: Option<Value>,
    new: Option<Value>,
}

/// Keys of a server whose values say nothing of how it is reached.
const PLAIN_OF_SERVERS: [&str; 13] = [
    "enabled",
    "protocol",
    "init_timeout",
    "call_timeout",
    "affinity",
    "max_concurrent",
    "limits",
    "enabled_tools",
    "disabled_tools",
    "capabilities",
    "output_validation",
    "input_validation",
    "result_limit",
];
/// A key elsewhere that holds one of these words is that of a secret, or of what may hold one.
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
/// What stands for a value that is not shown.
const NOT_SHOWN: &str = "(not shown)";
/// Longest value that is shown.
const MAX_SHOWN_BYTES: usize = 256;

impl fmt::Debug for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Written").field(&self.0.len()).finish_non_exhaustive()
    }
}

impl Written {
    /// What stands under the root; servers by their names, in whichever form they are written.
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

    /// All of it as it is shown: what may be a secret, or says how a server is reached, is not.
    #[must_use]
    pub fn shown(&self) -> Value {
        Value::Object(shown_members(&KeyPath::default(), &self.0))
    }

    /// What is another in `next`, in the order of the keys.
    #[must_use]
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
    /// As it is shown: the key, what became of it, and the values as far as they are no secret.
    #[must_use]
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

fn shown_members(at: &KeyPath, members: &Map<String, Value>) -> Map<String, Value> {
    let shown = members.iter().map(|(key, value)| {
        let path = at.key(key);
        let shown = match value {
            Value::Object(inner) => Value::Object(shown_members(&path, inner)),
            value => shown_value(&path, value).unwrap_or_else(|| Value::from(NOT_SHOWN)),
        };
        (key.clone(), shown)
    });
    shown.collect()
}

/// Whether `value` may be shown at `path`: neither is a secret, nor says how a server is reached, nor is unknown.
pub(super) fn may_be_shown(path: &KeyPath, value: &Value) -> bool {
    shown_value(path, value).is_some()
}

/// The value at `path`, if nothing in it may be a secret.
fn shown_value(path: &KeyPath, value: &Value) -> Option<Value> {
    let mut names = path.0.iter().filter_map(|step| match step {
        PathStep::Key(key) => Some(key.as_str()),
        PathStep::Element(_) => None,
    });
    let root = names.next()?;
    if root == servers::KEY {
        // A whole server is not shown.
        let (_, key) = (names.next()?, names.next()?);
        return PLAIN_OF_SERVERS.contains(&key).then(|| value.clone());
    }
    let says_secret =
        |name: &str| HIDDEN_WORDS.iter().any(|word| name.to_lowercase().contains(word));
    // A misspelt key may be meant for a secret.
    let hidden = |name: &str| says_secret(name) || !KNOWN_KEYS.contains(&name);
    let last = names.next_back().unwrap_or(root);
    let named = [root, last].into_iter().any(hidden) || names.any(says_secret);
    (!named && !holds(value, &hidden)).then(|| value.clone())
}

/// Whether a key in `value` is one of those.
fn holds(value: &Value, hidden: &impl Fn(&str) -> bool) -> bool {
    match value {
        Value::Object(map) => map.iter().any(|(name, value)| hidden(name) || holds(value, hidden)),
        Value::Array(list) => list.iter().any(|value| holds(value, hidden)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(value: Value) -> Written {
        let Value::Object(root) = value else { panic!() };
        Written::of(&root)
    }

    /// `root` with the changes made.
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
        fn what_changed_between_two_makes_one_of_the_other(a in root(), b in root()) {
            let (from, to) = (Written(a.clone()), Written(b.clone()));
            let changes = from.changes(&to);
            prop_assert_eq!(apply(&a, &changes), b);
            prop_assert_eq!(changes.is_empty(), from == to);
        }
    }

    #[test]
    fn both_forms_of_servers_are_one() {
        let object = written(json!({"mcpServers": {"a": {"command": "x", "name": "a"}}}));
        let array = written(json!({"mcpServers": [{"command": "x", "name": "a"}]}));
        assert!(object.changes(&array).is_empty());
    }

    #[test]
    fn no_secret_is_shown_only_that_it_is_another() {
        let secret = "s3cret-value";
        let config = |value: &str, limit: u8| {
            written(json!({
                "api_key": value, "tools_limit": limit, "allowed_hosts": ["a.example"],
                "auth": {"jwt": {"issuer": "i", "jwks_url": value}},
                "approval": {"timeout": "5m", "webhook": {"url": value, "secret": value}},
                "cluster": {"store": {"access_key": value}},
                "mcpServers": {
                    "s": {"command": value, "args": [value], "env": {"TOKEN": value},
                        "headers": {"H": value}, "url": value, "oauth": {"client_secret": value},
                        "cwd": value, "call_timeout": format!("{limit}s")},
                },
            }))
        };
        let changes = config("s3cret-value-0", 1).changes(&config("s3cret-value-1", 2));
        let shown: Vec<Value> = changes.iter().map(ChangedKey::shown).collect();
        assert!(!json!(shown).to_string().contains(secret), "{shown:?}");
        assert_eq!(shown.len(), 14);
        let of = |key: &str| shown.iter().find(|it| it["key"] == key).unwrap();
        assert_eq!(
            of("mcpServers.s.env.TOKEN"),
            &json!({"key": "mcpServers.s.env.TOKEN", "change": "changed"})
        );
        assert_eq!(of("api_key"), &json!({"key": "api_key", "change": "changed"}));
        let limit = json!({"key": "tools_limit", "change": "changed", "old": 1, "new": 2});
        assert_eq!(of("tools_limit"), &limit);
        assert_eq!(of("mcpServers.s.call_timeout")["new"], "2s");
        // Whole sections and servers that come or go.
        let changes = written(json!({})).changes(&config(secret, 1));
        let shown = json!(changes.iter().map(ChangedKey::shown).collect::<Vec<_>>());
        assert!(!shown.to_string().contains(secret), "{shown}");
        assert!(!format!("{:?}", config(secret, 1)).contains(secret));
        let whole = config(secret, 1).shown();
        assert!(!whole.to_string().contains(secret), "{whole}");
        assert_eq!((&whole["api_key"], &whole["tools_limit"]), (&json!("(not shown)"), &json!(1)));
        let server = &whole["mcpServers"]["s"];
        assert_eq!(server["env"], json!({"TOKEN": "(not shown)"}));
        assert_eq!(
            (&server["args"], &server["call_timeout"]),
            (&json!("(not shown)"), &json!("1s"))
        );
        let list = written(json!({"mcpServers": [{"command": secret, "name": 7}, secret]}));
        assert!(!list.shown().to_string().contains(secret), "{}", list.shown());
    }

    #[test]
    fn the_value_of_a_key_that_is_not_known_is_not_shown() {
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
    fn a_long_value_is_not_shown() {
        let hosts = |letter: &str| written(json!({"allowed_hosts": [letter.repeat(300)]}));
        let shown = hosts("a").changes(&hosts("b"))[0].shown();
        assert_eq!(shown, json!({"key": "allowed_hosts", "change": "changed"}));
    }
}
