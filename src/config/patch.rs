//! Settings of the config's file, shown without secrets, and changed by a JSON Merge Patch (RFC 7396) that keeps the
//! rest as it is written. Pure.
//!
//! What is not shown is not changed either: a secret, how a server is reached. Nor is what says who is let in. So
//! nobody who may change settings gets more by it than that.

use serde_json::{Map, Value};
use thiserror::Error;

use super::edit::{EditRefused, EditedJson, Servers};
use super::key_aliases::{SCHEMA, VS_CODE};
use super::problem::{KeyPath, PathStep};
use super::servers;
use super::written::{Written, may_be_shown};

/// Most values that one patch changes: the text is read anew for each.
pub const MAX_CHANGES: usize = 64;
/// Most keys on the way to a value.
const MAX_DEPTH: usize = 16;
/// Keys of the root that say who is let in.
const WHO_IS_LET_IN: [&str; 4] = ["api_key", "auth", "require_mcp_auth", "tls"];

/// Why a text is not changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PatchRefused {
    /// Its value is not shown, or not known.
    #[error(
        "{0}: is not changed here, as its value is not shown here or the key is unknown: change it in the file, a \
         server by 'mcpproxy upstream'"
    )]
    NotShown(KeyPath),
    /// It says who is let in.
    #[error("{0}: says who is let in, and is not changed here: change it in the file")]
    LetsIn(KeyPath),
    /// More than [`MAX_CHANGES`].
    #[error("more than {MAX_CHANGES} values at once")]
    TooMany,
    /// More keys on the way than there are in any config.
    #[error("a value lies more than {MAX_DEPTH} keys deep")]
    TooDeep,
    /// The text does not take it.
    #[error("{0}")]
    Edit(#[from] EditRefused),
}

/// What tells one state of a text from another, as 64 hexadecimal digits.
#[must_use]
pub fn digest(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex().to_string()
}

/// What a text says, without what may be a secret or says how a server is reached.
///
/// # Errors
/// It cannot be read.
pub fn settings(text: &str) -> Result<Value, PatchRefused> {
    let mut root = EditedJson::new(text)?.value().clone();
    root.remove(SCHEMA);
    if let (false, Some(named)) = (root.contains_key(servers::KEY), root.remove(VS_CODE)) {
        root.insert(servers::KEY.to_owned(), named);
    }
    Ok(Written::of(&root).shown())
}

/// The text with what `patch` says otherwise: null takes a key out, an object goes into the one that is there.
///
/// # Errors
/// [`PatchRefused`]
pub fn patched(text: &str, patch: &Map<String, Value>) -> Result<String, PatchRefused> {
    let mut changes = Vec::new();
    let edited = EditedJson::new(text)?;
    collect(&KeyPath::default(), patch, &mut changes)?;
    changes.into_iter().try_fold(edited, change).map(|edited| edited.text().to_owned())
}

/// The single values that a patch is about.
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
    if let Some(PathStep::Key(root)) = path.0.first()
        && WHO_IS_LET_IN.contains(&root.as_str())
    {
        return Err(PatchRefused::LetsIn(path));
    }
    let at = written_at(&text, &path);
    let is_shown = |value: &Value| may_be_shown(&path, value);
    if !is_shown(value) || !text.get(&at).is_none_or(is_shown) {
        return Err(PatchRefused::NotShown(path));
    }
    match value {
        Value::Null => drop(text.remove(&at)?),
        // There is nothing in it to be put into the one that is there.
        Value::Object(_) if text.get(&at).is_some_and(Value::is_object) => {}
        value => text.set(&at, &value.clone().into())?,
    }
    Ok(text)
}

/// Where the value at `path` stands: servers may be under another name, or in a list.
fn written_at(text: &EditedJson, path: &KeyPath) -> KeyPath {
    match path.0.as_slice() {
        [PathStep::Key(root), PathStep::Key(name), rest @ ..] if root == servers::KEY => {
            let server = Servers(text).find(name);
            server.map_or_else(|| path.clone(), |server| server.join(rest.iter().cloned()))
        }
        _ => path.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn patch(text: &str, patch: Value) -> Result<String, PatchRefused> {
        let Value::Object(patch) = patch else { panic!() };
        patched(text, &patch)
    }

    #[test]
    fn values_are_changed_where_they_stand_and_the_rest_stays() {
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
    fn a_server_is_found_in_whichever_form_it_is_written() {
        for text in [
            r#"{"mcpServers": {"a.b": {"command": "x"}}}"#,
            r#"{"servers": {"a.b": {"command": "x"}}}"#,
            r#"{"mcpServers": [{"name": "a.b", "command": "x"}]}"#,
        ] {
            let shown = settings(text).unwrap();
            assert_eq!(shown["mcpServers"]["a.b"]["command"], "(not shown)", "{text}");
            let change = json!({"mcpServers": {"a.b": {"max_concurrent": 2}}});
            let expected = text.replace("\"x\"", "\"x\", \"max_concurrent\": 2");
            assert_eq!(patch(text, change), Ok(expected));
        }
    }

    #[test]
    fn what_is_not_shown_and_who_is_let_in_is_not_changed() {
        let text = r#"{"api_key": "k", "approval": {"webhook": {"url": "u", "secret": "s"}},
            "servers": {"a": {"command": "x"}}, "mcpServers": {"a": {"command": "x", "env": {"T": "v"}}}}"#;
        let not_shown = [
            json!({"mcpServers": {"a": {"command": "sh"}}}),
            json!({"mcpServers": {"a": {"args": ["x"]}}}),
            json!({"mcpServers": {"a": {"env": {"T": "w"}}}}),
            json!({"mcpServers": {"a": null}}),
            json!({"mcpServers": {"new": {"url": "http://h"}}}),
            json!({"mcpServers": null}),
            json!({"mcpServers": []}),
            json!({"servers": {"a": {"command": "sh"}}}),
            json!({"servers": {"a": {"max_concurrent": 2}}}),
            json!({"servers": {"a": {"limits": {"concurrent": 2}}}}),
            json!({"approval": null}),
            json!({"approval": {"webhook": {"url": "http://h"}}}),
            json!({"telemetry": {"otlp_endpoint": "http://h"}}),
            json!({"..": {"x": 1}}),
            json!({"tools_limti": 1}),
            json!({"$schema": "x"}),
        ];
        for change in not_shown {
            let refused = patch(text, change.clone());
            assert!(matches!(refused, Err(PatchRefused::NotShown(_))), "{change}: {refused:?}");
        }
        for change in [
            json!({"api_key": "other"}),
            json!({"auth": {"jwt": {"jwks_file": "mine"}}}),
            json!({"auth": null}),
            json!({"require_mcp_auth": false}),
            json!({"tls": {"client_ca": "mine"}}),
        ] {
            let refused = patch(text, change.clone());
            assert!(matches!(refused, Err(PatchRefused::LetsIn(_))), "{change}: {refused:?}");
        }
    }

    #[test]
    fn no_secret_is_shown_under_any_name() {
        let server = json!({"command": "s3cret", "args": ["s3cret"], "env": {"A": "s3cret"},
            "headers": {"limits": "s3cret"}, "url": "s3cret", "disabled_tools": ["plain"]});
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
    fn a_patch_is_bounded() {
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
