//! `mcpproxy config get`, `config set` and `config unset`: one key of the config file.

use crate::args::Global;
use crate::commands::upstream;
use crate::error::CommandError;
use crate::output::Output;
use crate::terminal_safe::line;
use crate::{logging, running_proxy, start_proxy};
use mcpproxy_config::edit::{EditedJson, WrittenValue};
use mcpproxy_config::file::MAX_FILE_BYTES;
use mcpproxy_config::problem::{KeyPath, Problem};
use mcpproxy_config::{CONFIG_SCHEMA, parse};
use mcpproxy_runtime::nearest::nearest;
use mcpproxy_runtime::os::edited_file;
use mcpproxy_server as server;
use serde_json::{Map, Value, json};
use std::cell::RefCell;

/// Prints the value that the config file states for a key.
pub(super) fn get(key: &str, global: &Global, output: &Output) -> Result<(), CommandError> {
    let loaded = start_proxy::load(global, None)?;
    let file = loaded.path.display().to_string();
    let read = edited_file::read::<String>(&loaded.path, MAX_FILE_BYTES);
    let text = read.map_err(|error| CommandError::failed(format!("{file}: {error}")))?;
    let text = text.map(|(text, _)| text).unwrap_or_default();
    let json = EditedJson::new(&text).map_err(CommandError::failed)?;
    match json.get(&path_of(key, json.value())) {
        Some(value) => {
            let result = json!({"key": key, "file": file, "value": value});
            output.print(&result.to_string(), |_| match value {
                Value::String(text) => line(text).into_owned(),
                value => line(&value.to_string()).into_owned(),
            })
        }
        None => Err(CommandError::failed(match similar_key(key) {
            Some(meant) => format!("'{key}' is not a key of the config: did you mean '{meant}'?"),
            None => format!(
                "{file} does not set '{key}', so its default applies: `mcpproxy config schema` has the defaults"
            ),
        })),
    }
}

/// Sets a key to `value`, or removes it if there is none, and makes a running proxy reload the file.
pub(super) fn change(
    key: &str,
    value: Option<&str>,
    global: &Global,
    output: &Output,
) -> Result<(), CommandError> {
    let (loaded, _log) = start_proxy::load_with_log(global)?;
    let flags = start_proxy::flags(global, None);
    let problems = |json: &EditedJson| parse(json.text(), &start_proxy::variable, &flags);
    let new_warnings = RefCell::new(Vec::new());
    let is_changed = upstream::edit(&loaded, global, |json| {
        let path = path_of(key, json.value());
        let known = problems(json).map(|(_, warnings)| texts(&warnings)).unwrap_or_default();
        let mut refused = None;
        for candidate in candidates(value) {
            let mut next = json.clone();
            match &candidate {
                Some(value) => next.set(&path, value),
                None => next.remove(&path).map(|_| ()),
            }
            .map_err(|error| error.to_string())?;
            match problems(&next) {
                Ok((_, warnings)) => {
                    let new = texts(&warnings).into_iter().filter(|it| !known.contains(it));
                    let new: Vec<String> = new.collect();
                    if let Some(unknown) = new.iter().find(|it| it.starts_with("unknown key ")) {
                        return Err(unknown.replace(" is ignored", ""));
                    }
                    new_warnings.replace(new);
                    return Ok(next);
                }
                // The editor reports the problems of the first one.
                Err(_) => refused = refused.or(Some(next)),
            }
        }
        Ok(refused.unwrap_or_else(|| json.clone()))
    })?;
    for warning in new_warnings.into_inner() {
        logging::print_line(format_args!("warning: {}", line(&warning)));
    }
    let file = loaded.path.display().to_string();
    let mut result = json!({"key": key, "file": file, "changed": is_changed});
    let (word, shown) = (line(key), line(&file));
    if !is_changed {
        return output.print(&result.to_string(), |_| match value {
            Some(_) => format!("'{word}' already has this value in {shown}."),
            None => format!("{shown} does not set '{word}'."),
        });
    }
    let runtime = server::local_runtime().map_err(CommandError::failed)?;
    let (reloaded, _) = runtime.block_on(running_proxy::reload(&loaded));
    if let Some(members) = result.as_object_mut() {
        members.insert("proxy".to_owned(), reloaded.json());
    }
    output.print(&result.to_string(), |_| {
        let done = match value {
            Some(_) => format!("Set '{word}' in {shown}."),
            None => format!("Removed '{word}' from {shown}: its default applies."),
        };
        format!("{done}\n{}", reloaded.message())
    })
}

/// Values that a typed text may mean, in the order in which they are tried: the JSON, then the text itself. `None` stands
/// for no value.
fn candidates(typed: Option<&str>) -> Vec<Option<WrittenValue>> {
    let Some(typed) = typed else { return vec![None] };
    let json = serde_json::from_str::<Value>(typed).ok();
    let values = json.into_iter().chain([Value::from(typed)]);
    values.map(|value| Some(value.into())).collect()
}

fn texts(problems: &[Problem]) -> Vec<String> {
    problems.iter().map(|problem| problem.text.clone()).collect()
}

/// Path of a key with dots. A name with dots that is in the file counts as one step, like that of a server.
fn path_of(key: &str, root: &Map<String, Value>) -> KeyPath {
    let (mut path, mut members, mut rest) = (KeyPath::default(), Some(root), key);
    loop {
        let ends = |name: &&String| {
            rest.strip_prefix(name.as_str()).is_some_and(|it| it.is_empty() || it.starts_with('.'))
        };
        let known = members.into_iter().flat_map(Map::keys).filter(ends);
        let first = known.map(String::as_str).max_by_key(|name| name.len());
        let step = first.or_else(|| rest.split('.').next()).unwrap_or_default();
        path = path.key(step);
        let Some(next) = rest.get(step.len() + 1..) else { return path };
        members = members.and_then(|it| it.get(step)).and_then(Value::as_object);
        rest = next;
    }
}

/// Root key that a word with no root key of this name probably means.
fn similar_key(key: &str) -> Option<String> {
    let schema: Value = serde_json::from_str(CONFIG_SCHEMA).ok()?;
    let known = schema.get("properties")?.as_object()?;
    let root = key.split('.').next().unwrap_or_default();
    if known.contains_key(root) {
        return None;
    }
    nearest(root, known.keys().map(String::as_str)).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_with_dots_is_split_at_names_in_the_file() {
        let file = r#"{"mcpServers": {"a.b": {"timeout": "1s"}, "a": {"b": 1}}, "limits": 5}"#;
        let json = EditedJson::new(file).unwrap();
        for (key, expected) in [
            ("mcpServers.a.b.timeout", Some(json!("1s"))),
            ("mcpServers.a.b", Some(json!({"timeout": "1s"}))),
            ("limits", Some(json!(5))),
            ("limits.x", None),
            ("mcpServers.c.timeout", None),
            ("", None),
            (".", None),
        ] {
            let path = path_of(key, json.value());
            assert_eq!(json.get(&path), expected.as_ref(), "{key}");
            assert_eq!(path.to_string(), key);
        }
    }

    #[test]
    fn typed_text_means_json_or_itself() {
        let values = |typed| {
            let all = candidates(Some(typed)).into_iter();
            all.map(|value| value.unwrap().value()).collect::<Vec<_>>()
        };
        assert_eq!(values("30"), [json!(30), json!("30")]);
        assert_eq!(values("30s"), [json!("30s")]);
        assert_eq!(values("[\"a\"]"), [json!(["a"]), json!("[\"a\"]")]);
    }

    #[test]
    fn similar_key_is_a_root_key() {
        assert_eq!(similar_key("listn").as_deref(), Some("listen"));
        assert_eq!(similar_key("listen"), None);
        assert_eq!(similar_key("zzzzzzz"), None);
    }
}
