//! `mcpproxy config get`, `config set` and `config unset`: one key of the config file.

use crate::args::Global;
use crate::clients::backup;
use crate::commands::policy::rule_problems;
use crate::commands::tool_names::StoredTools;
use crate::commands::upstream;
use crate::completion::unknown_server;
use crate::error::{CommandError, Exit};
use crate::output::{Output, confirm, declined};
use crate::running_proxy::ReloadReport;
use crate::terminal_safe::line;
use crate::{logging, running_proxy, start_proxy};
use mcpproxy_config::CONFIG_SCHEMA;
use mcpproxy_config::edit::{EditedJson, WrittenValue};
use mcpproxy_config::file::{Loaded, load_proposed, problems_of_new_server};
use mcpproxy_config::problem::{KeyPath, Problem, Severity};
use mcpproxy_runtime::nearest::nearest;
use mcpproxy_server as server;
use serde_json::{Map, Value, json};
use std::cell::RefCell;
use std::io::{IsTerminal as _, stdin};
use std::path::Path;

/// Prints the value that the config file states for a key.
pub(super) fn get(key: &str, global: &Global, output: &Output) -> Result<(), CommandError> {
    let loaded = start_proxy::load(global, None)?;
    let (file, json) = (loaded.path.display().to_string(), read(&loaded)?);
    match json.get(&path_of(key, json.value())) {
        Some(value) => {
            let result = json!({"key": key, "file": file, "value": value});
            output.print(&result.to_string(), |_| shown(value))
        }
        None => match default_of(key) {
            Some(value) => {
                let result = json!({"key": key, "file": file, "value": value, "is_default": true});
                let note = format!("({file} does not set it: this is the default)");
                output.print_value(&result.to_string(), (&shown(&value), &note), |value, note| {
                    format!("{value}  {}", line(note))
                })
            }
            None => Err(not_set(key, &file)),
        },
    }
}

/// The config file as it is.
fn read(loaded: &Loaded) -> Result<EditedJson, CommandError> {
    let text = backup::read(&loaded.path)?.unwrap_or_default();
    EditedJson::new(&text).map_err(CommandError::failed)
}

/// A value on one line; a text without quotes.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => line(text).into_owned(),
        value => line(&value.to_string()).into_owned(),
    }
}

/// Error for a key that the file does not set.
fn not_set(key: &str, file: &str) -> CommandError {
    CommandError::failed(match similar_key(key) {
        Some(meant) => format!("'{key}' is not a key of the config: did you mean '{meant}'?"),
        None => format!("{file} does not set '{key}'"),
    })
}

/// Part of the schema that describes a key; `None` for unknown keys and names of servers.
fn schema_of(key: &str) -> Option<Value> {
    let schema: Value = serde_json::from_str(CONFIG_SCHEMA).ok()?;
    let found = key.split('.').try_fold(&schema, |part, name| part.get("properties")?.get(name));
    found.cloned()
}

/// Default of a key in the schema.
fn default_of(key: &str) -> Option<Value> {
    schema_of(key)?.get("default").cloned()
}

/// Removes a key. At a terminal it asks before it removes an object.
pub(super) fn unset(
    key: &str,
    yes: bool,
    global: &Global,
    output: &Output,
) -> Result<(), CommandError> {
    let loaded = start_proxy::load(global, None)?;
    let json = read(&loaded)?;
    let value = json.get(&path_of(key, json.value()));
    if let Some(members) = value.and_then(Value::as_object).filter(|members| !members.is_empty()) {
        let members = members.keys().map(|name| line(name)).collect::<Vec<_>>().join(", ");
        let question = format!("Remove '{}' with {members}?", line(key));
        if !confirm("", &question, yes || !stdin().is_terminal())? {
            return declined();
        }
    }
    change(key, None, global, output)
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
    let checked = |json: &EditedJson| {
        let proposed = load_proposed(&loaded.path, json.text(), &start_proxy::variable, &flags)?;
        Ok::<_, Vec<Problem>>(all_problems(&proposed))
    };
    let new_problems = RefCell::new(Vec::new());
    let is_changed = upstream::edit(&loaded, global, |json| {
        let path = path_of(key, json.value());
        let known = texts(&checked(json).unwrap_or_default());
        let mut refused: Option<(EditedJson, bool)> = None;
        for candidate in candidates(value) {
            let mut next = json.clone();
            match &candidate {
                Some(value) => next.set(&path, value),
                None => next.remove(&path).map(|_| ()),
            }
            .map_err(|error| error.to_string())?;
            match checked(&next) {
                Ok(mut new) => {
                    new.retain(|problem| !known.contains(&problem.text));
                    let reason = new.iter().find_map(|it| reason_to_refuse(it, &loaded.path));
                    if let Some(reason) = reason.or_else(|| refused_server(json, &next)) {
                        return Err(reason);
                    }
                    new_problems.replace(new);
                    return Ok(next);
                }
                // The editor reports the problems of the one that is returned: the first, unless only its type is wrong.
                Err(problems) => {
                    let is_wrong_type = texts(&problems).iter().any(|it| it.contains(WRONG_TYPE));
                    if refused.as_ref().is_none_or(|(_, is_wrong)| *is_wrong && !is_wrong_type) {
                        refused = Some((next, is_wrong_type));
                    }
                }
            }
        }
        Ok(refused.map_or_else(|| json.clone(), |(next, _)| next))
    });
    let is_changed = is_changed.map_err(|error| naming_members(error, key))?;
    for problem in new_problems.into_inner() {
        logging::print_line(format_args!("warning: {}", line(&problem.text)));
    }
    let file = loaded.path.display().to_string();
    let mut result = json!({"key": key, "file": file, "changed": is_changed});
    let (word, shown) = (line(key), line(&file));
    if !is_changed && value.is_none() && similar_key(key).is_some() {
        return Err(not_set(key, &file));
    }
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
            None => {
                let default = default_of(key).map(|_| ": its default applies").unwrap_or_default();
                format!("Removed '{word}' from {shown}{default}.")
            }
        };
        format!("{done}\n{}", reloaded.message())
    })?;
    match reloaded {
        ReloadReport::Refused(_) => {
            let text = "the file was changed, but the running mcpproxy cannot use it";
            Err(CommandError::new(Exit::Config, text))
        }
        _ => Ok(()),
    }
}

/// Problems of a config, of its rules, and of its settings of tools.
fn all_problems(loaded: &Loaded) -> Vec<Problem> {
    let config = &loaded.config;
    let of_tools = StoredTools::new(config).unmatched_settings();
    loaded.warnings.iter().cloned().chain(rule_problems(config)).chain(of_tools).collect()
}

/// Reason why a change of the file at `path` with this new problem is refused. A problem of a server affects this server alone.
fn reason_to_refuse(problem: &Problem, path: &Path) -> Option<String> {
    if problem.text.starts_with("unknown key ") {
        return Some(problem.text.replace(" is ignored", ""));
    }
    let is_of_server = problem.key.starts_with(SERVERS);
    // The place is that of a text that is not written, except in files of rules.
    (problem.severity == Severity::Error && !is_of_server).then(|| match &problem.file {
        Some(file) if file != path => problem.to_string(),
        _ => problem.text.clone(),
    })
}

/// Error for a server that the change would add, if it cannot run: a part of its entry alone, for a misspelled name.
fn refused_server(before: &EditedJson, after: &EditedJson) -> Option<String> {
    let servers = |json: &EditedJson| {
        json.value().get(SERVERS).and_then(Value::as_object).cloned().unwrap_or_default()
    };
    let known = servers(before);
    servers(after).iter().filter(|(name, _)| !known.contains_key(*name)).find_map(
        |(name, entry)| {
            let problems = problems_of_new_server(name, entry, &start_proxy::variable);
            let error = problems.into_iter().find(|it| it.severity == Severity::Error)?;
            Some(match entry.get("command").or_else(|| entry.get("url")) {
                Some(_) => error.text,
                None => unknown_server(name, known.keys().map(String::as_str)),
            })
        },
    )
}

/// Key of the servers.
const SERVERS: &str = "mcpServers";

/// Words of the problem of a value of the wrong type.
const WRONG_TYPE: &str = "invalid type: ";

/// Adds a key within the object to an error about a value in its place.
fn naming_members(error: CommandError, key: &str) -> CommandError {
    let schema = schema_of(key).filter(|_| error.message.contains("expected an object"));
    let members = schema.as_ref().and_then(|schema| schema.get("properties")?.as_object());
    match members.and_then(|members| members.keys().next()) {
        Some(first) => CommandError {
            message: format!("{}: set one of its keys, like '{key}.{first}'", error.message),
            ..error
        },
        None => error,
    }
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
    fn default_is_that_of_the_schema() {
        assert_eq!(default_of("tools_limit"), Some(json!(15)));
        assert_eq!(default_of("output_validation.mode"), Some(json!("warn")));
        for none in ["output_validation", "mcpServers.files", "nothing", "", "tools_limit.x"] {
            assert_eq!(default_of(none), None, "{none}");
        }
    }

    #[test]
    fn similar_key_is_a_root_key() {
        assert_eq!(similar_key("listn").as_deref(), Some("listen"));
        assert_eq!(similar_key("listen"), None);
        assert_eq!(similar_key("zzzzzzz"), None);
    }
}
