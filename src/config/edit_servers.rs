//! Edits of the servers in a config text, under `mcpServers` (or VS Code's `servers`), as an object or an array.

use crate::edit::{EditRefused, EditedJson, WrittenValue};
use crate::file;
use crate::parse::VS_CODE;
use crate::problem::KeyPath;
use crate::servers::KEY;
use serde_json::{Map, Value};
use std::path::Path;
use thiserror::Error;

/// Maximum length of a new server's name, in characters.
const NAME_CHARS: usize = 64;
/// Maximum number of servers that are added at once.
const MAX_NEW: usize = 64;

/// View of the servers in a text.
#[derive(Clone, Copy, Debug)]
pub struct Servers<'e>(pub &'e EditedJson);

impl Servers<'_> {
    fn at(self) -> KeyPath {
        let key = if self.0.value().contains_key(KEY) { KEY } else { VS_CODE };
        KeyPath::root(if self.0.value().contains_key(key) { key } else { KEY })
    }

    /// Names and entries of all servers.
    pub fn all(self) -> Vec<(String, Value)> {
        match self.0.get(&self.at()) {
            Some(Value::Object(servers)) => {
                servers.iter().map(|(name, block)| (name.clone(), block.clone())).collect()
            }
            Some(Value::Array(servers)) => {
                let named =
                    |block: &Value| Some((block.get("name")?.as_str()?.to_owned(), block.clone()));
                servers.iter().filter_map(named).collect()
            }
            Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) | None => {
                Vec::new()
            }
        }
    }

    /// Path of a server's entry.
    pub fn find(self, name: &str) -> Option<KeyPath> {
        let at = self.at();
        match self.0.get(&at)? {
            Value::Object(servers) => servers.contains_key(name).then(|| at.key(name)),
            Value::Array(servers) => {
                let is_it = |block: &Value| block.get("name").and_then(Value::as_str) == Some(name);
                servers.iter().position(is_it).map(|index| at.element(index))
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
        }
    }

    /// Adds a server; the caller has checked that the name is free.
    pub fn add(self, name: &str, members: &[(String, Value)]) -> Result<EditedJson, EditRefused> {
        let (mut next, at) = (self.0.clone(), self.at());
        let mut written: Vec<(String, WrittenValue)> = Vec::new();
        let is_array = matches!(next.get(&at), Some(Value::Array(_)));
        if is_array {
            written.push(("name".to_owned(), Value::from(name).into()));
        }
        written.extend(members.iter().map(|(key, value)| (key.clone(), value.clone().into())));
        let written = WrittenValue::Members(written);
        match is_array {
            true => next.push(&at, &written)?,
            false => next.set(&at.key(name), &written)?,
        }
        Ok(next)
    }

    /// Removes a server by name; `None` if there is none.
    pub fn without(self, name: &str) -> Result<Option<EditedJson>, EditRefused> {
        let Some(at) = self.find(name) else { return Ok(None) };
        let mut next = self.0.clone();
        next.remove(&at)?;
        Ok(Some(next))
    }

    /// Declares the side effects of a server's tools in its `capabilities`; `None` if no server has this name.
    pub fn with_side_effects(
        self,
        name: &str,
        tools: &[(String, &str)],
    ) -> Result<Option<EditedJson>, EditRefused> {
        let Some(at) = self.find(name) else { return Ok(None) };
        let mut next = self.0.clone();
        for (tool, side_effect) in tools {
            let at = at.key("capabilities").key(tool).key("side_effect");
            next.set(&at, &Value::from(*side_effect).into())?;
        }
        Ok(Some(next))
    }

    /// Enables or disables a server by name; `None` if there is none. The text is unchanged if the server
    /// already has that state.
    pub fn switched(self, name: &str, on: bool) -> Result<Option<EditedJson>, EditRefused> {
        let Some(at) = self.find(name) else { return Ok(None) };
        let mut next = self.0.clone();
        let block = next.get(&at).and_then(Value::as_object).cloned().unwrap_or_default();
        let says = |key: &str, value: bool| block.get(key) == Some(&Value::Bool(value));
        // Keys with which other programs disable a server.
        for key in ["disabled", "quarantined"] {
            if on && says(key, true) {
                next.remove(&at.key(key))?;
            }
        }
        let is_on = is_enabled(next.get(&at).and_then(Value::as_object).unwrap_or(&Map::new()));
        if is_on != on {
            next.set(&at.key("enabled"), &Value::from(on).into())?;
        }
        Ok(Some(next))
    }
}

/// Whether an entry, as written, is enabled.
fn is_enabled(block: &Map<String, Value>) -> bool {
    let is = |key: &str, value: bool| block.get(key) == Some(&Value::Bool(value));
    !is("enabled", false) && !is("disabled", true) && !is("quarantined", true)
}

/// Validates the name of a new server. Names already in a config may contain more characters.
pub fn check_new_name(name: &str) -> Result<(), String> {
    let plain = |letter: char| letter.is_alphanumeric() || matches!(letter, '-' | '_' | '.' | ' ');
    let is_plain = name.chars().all(plain)
        && name.chars().next().is_some_and(char::is_alphanumeric)
        && !name.ends_with(' ')
        && name.chars().nth(NAME_CHARS).is_none();
    is_plain.then_some(()).ok_or_else(|| {
        format!(
            "a server's name may contain letters, digits, '-', '_', '.' and spaces, must start with a letter or \
             digit, and has at most {NAME_CHARS} characters"
        )
    })
}

/// Reason why new servers are refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NotAdded {
    /// There are no servers to add, or more than [`MAX_NEW`].
    #[error("name 1 to {MAX_NEW} servers")]
    Count,
    /// The name cannot be used for a server.
    #[error("'{0}' cannot be used: {1}")]
    Name(String, String),
    /// The entry is not an object.
    #[error(
        "the entry of '{0}' must be an object, {{\"command\": …, \"args\": […]}} or {{\"url\": …}}"
    )]
    NoObject(String),
    /// The config already has a server with this name.
    #[error("the config already has a server '{0}': choose another name")]
    Exists(String),
    /// The text cannot be edited.
    #[error("{0}")]
    Edit(#[from] EditRefused),
}

impl NotAdded {
    /// Path of the server that is refused; empty if the refusal concerns all of them.
    pub fn at(&self) -> KeyPath {
        match self {
            Self::Name(name, _) | Self::NoObject(name) | Self::Exists(name) => {
                KeyPath::root(KEY).key(name)
            }
            Self::Count | Self::Edit(_) => KeyPath::default(),
        }
    }
}

/// Adds servers, by name, to a text. The entries are not validated.
pub fn with_new_servers(text: &str, new: &Map<String, Value>) -> Result<String, NotAdded> {
    if new.is_empty() || new.len() > MAX_NEW {
        return Err(NotAdded::Count);
    }
    let mut json = EditedJson::new(text)?;
    for (name, entry) in new {
        check_new_name(name).map_err(|why| NotAdded::Name(name.clone(), why))?;
        let Value::Object(entry) = entry else { return Err(NotAdded::NoObject(name.clone())) };
        if Servers(&json).find(name).is_some() {
            return Err(NotAdded::Exists(name.clone()));
        }
        let members: Vec<_> = entry.clone().into_iter().collect();
        json = Servers(&json).add(name, &members)?;
    }
    Ok(json.text().to_owned())
}

/// Reason why a server was not switched; the file is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NotSwitched {
    /// No server has this name.
    #[error("the config has no such server")]
    Unknown,
    /// The file cannot be read or changed, or the result is invalid.
    #[error("{0}")]
    Refused(String),
}

/// Enables or disables `server` in the config file if `usable` accepts the new text; returns whether the file
/// changed. Blocks.
pub fn switch_server(
    path: &Path,
    server: &str,
    on: bool,
    usable: impl Fn(&str) -> Result<(), String>,
) -> Result<bool, NotSwitched> {
    let mut unknown = false;
    let edited = file::edit(path, |text| {
        let json = EditedJson::new(text).map_err(|error| error.to_string())?;
        let next = Servers(&json).switched(server, on).map_err(|error| error.to_string())?;
        let Some(next) = next else {
            unknown = true;
            return Err(NotSwitched::Unknown.to_string());
        };
        usable(next.text())?;
        let is_changed = next.text() != text;
        Ok((is_changed.then(|| next.text().to_owned()), is_changed))
    });
    match edited {
        Ok(changed) => Ok(changed),
        Err(_) if unknown => Err(NotSwitched::Unknown),
        Err(problem) => Err(NotSwitched::Refused(problem.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn with_new(text: &str, new: Value) -> Result<String, NotAdded> {
        let Value::Object(new) = new else { panic!() };
        with_new_servers(text, &new)
    }

    #[test]
    fn new_servers_are_added_together_or_not_at_all() {
        let text = r#"{"servers": {"a": {"command": "x"}}}"#;
        let added = with_new(text, json!({"b": {"url": "http://h"}, "c d": {"command": "y"}}));
        let expected = r#"{"servers": {"a": {"command": "x"}, "b": {"url": "http://h"}, "c d": {"command": "y"}}}"#;
        assert_eq!(added.as_deref(), Ok(expected));
        let listed = with_new(r#"{"mcpServers": []}"#, json!({"b": {"url": "http://h"}}));
        assert_eq!(listed.as_deref(), Ok(r#"{"mcpServers": [{"name": "b", "url": "http://h"}]}"#));
        let url = json!({"url": "u"});
        for (new, at, why) in [
            (json!({}), "", "name 1 to 64 servers"),
            (json!({"b": url, "a": url}), "mcpServers.a", "already has a server 'a'"),
            (json!({"b": "npx"}), "mcpServers.b", "must be an object"),
            (json!({"b:c": url}), "mcpServers.b:c", "must start with a letter"),
        ] {
            let refused = with_new(text, new.clone()).unwrap_err();
            assert_eq!(refused.at().to_string(), at, "{new}");
            assert!(refused.to_string().contains(why), "{refused}");
        }
        let many = (0..=MAX_NEW).map(|at| (format!("s{at}"), json!({}))).collect();
        assert_eq!(with_new(text, Value::Object(many)), Err(NotAdded::Count));
    }

    fn members() -> Vec<(String, Value)> {
        vec![("command".into(), json!("npx")), ("args".into(), json!(["-y", "x"]))]
    }

    fn edited(text: &str) -> EditedJson {
        EditedJson::new(text).unwrap()
    }

    #[test]
    fn server_is_added_to_object_and_array_form() {
        for (text, expected) in [
            (
                "",
                "{\n  \"mcpServers\": {\n    \"n\": {\n      \"command\": \"npx\",\n      \"args\": [\"-y\", \"x\"]\n    }\n  }\n}\n",
            ),
            (
                "{\"mcpServers\": {\"a\": {\"url\": \"http://h\"}}}",
                "{\"mcpServers\": {\"a\": {\"url\": \"http://h\"}, \"n\": {\"command\": \"npx\", \"args\": [\"-y\", \"x\"]}}}",
            ),
            (
                "{\"servers\": {}}",
                "{\"servers\": {\"n\": {\"command\": \"npx\", \"args\": [\"-y\", \"x\"]}}}",
            ),
            (
                "{\n  \"mcpServers\": [\n    {\"name\": \"a\", \"command\": \"x\"} // mine\n  ]\n}",
                "{\n  \"mcpServers\": [\n    {\"name\": \"a\", \"command\": \"x\"}, // mine\n    {\n      \"name\": \"n\",\n      \"command\": \"npx\",\n      \"args\": [\"-y\", \"x\"]\n    }\n  ]\n}",
            ),
        ] {
            let json = edited(text);
            let next = Servers(&json).add("n", &members()).unwrap();
            assert_eq!(next.text(), expected);
            assert!(Servers(&next).find("n").is_some());
            let back = Servers(&next).without("n").unwrap().unwrap();
            if !text.is_empty() {
                assert_eq!(back.text(), text, "an added server is removed without a trace");
            }
        }
    }

    #[test]
    fn server_is_switched_by_its_existing_key() {
        for (text, on, expected) in [
            (
                "{\"mcpServers\": {\"n\": {\"command\": \"x\"}}}",
                false,
                "{\"mcpServers\": {\"n\": {\"command\": \"x\", \"enabled\": false}}}",
            ),
            (
                "{\"mcpServers\": {\"n\": {\"enabled\": false /* off */}}}",
                true,
                "{\"mcpServers\": {\"n\": {\"enabled\": true /* off */}}}",
            ),
            (
                "{\"mcpServers\": {\"n\": {\"disabled\": true, \"command\": \"x\"}}}",
                true,
                "{\"mcpServers\": {\"n\": {\"command\": \"x\"}}}",
            ),
            (
                "{\"mcpServers\": [{\"name\": \"n\"}]}",
                false,
                "{\"mcpServers\": [{\"name\": \"n\", \"enabled\": false}]}",
            ),
            ("{\"mcpServers\": {\"n\": {}}}", true, "{\"mcpServers\": {\"n\": {}}}"),
        ] {
            let next = Servers(&edited(text)).switched("n", on).unwrap().unwrap();
            assert_eq!(next.text(), expected);
        }
        assert_eq!(Servers(&edited("{}")).switched("n", true).unwrap().map(|_| ()), None);
    }

    #[test]
    fn added_side_effects_keep_the_other_capabilities() {
        let tools = [("query".to_owned(), "read"), ("drop".to_owned(), "destructive")];
        for (text, expected) in [
            (
                r#"{"mcpServers": {"n": {"command": "x"}}}"#,
                r#"{"mcpServers": {"n": {"command": "x", "capabilities": {"query": {"side_effect": "read"}, "drop": {"side_effect": "destructive"}}}}}"#,
            ),
            (
                r#"{"servers": [{"name": "n", "capabilities": {"drop": {"approval": "required"}}}]}"#,
                r#"{"servers": [{"name": "n", "capabilities": {"drop": {"approval": "required", "side_effect": "destructive"}, "query": {"side_effect": "read"}}}]}"#,
            ),
        ] {
            let next = Servers(&edited(text)).with_side_effects("n", &tools).unwrap().unwrap();
            let expected: Value = serde_json::from_str(expected).unwrap();
            assert_eq!(Value::Object(next.value().clone()), expected, "{}", next.text());
        }
        let unknown = Servers(&edited("{}")).with_side_effects("n", &tools).unwrap();
        assert!(unknown.is_none());
    }

    #[test]
    fn new_server_names_are_restricted() {
        for good in ["a", "github", "my server", "näme-1_2.3", &"x".repeat(64)] {
            assert_eq!(check_new_name(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            "a:b",
            "../x",
            ".",
            "..",
            "a/b",
            "a\nb",
            "\u{202e}x",
            "-x",
            "x ",
            "a\u{0}",
            "$(rm)",
            "a;b",
            &"x".repeat(65),
        ] {
            assert!(check_new_name(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn server_is_switched_in_the_file_unless_the_result_is_invalid() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        let usable = |text: &str| match text.contains("tools_limit") {
            true => Err("tools_limit: is too much".to_owned()),
            false => Ok(()),
        };
        let switch = |server: &str, on| switch_server(&path, server, on, usable);
        let text = "{\n  // mine\n  \"mcpServers\": {\"s\": {\"command\": \"x\"}}\n}\n";
        std::fs::write(&path, text).unwrap();
        assert_eq!(switch("s", true), Ok(false));
        assert_eq!(switch("other", false), Err(NotSwitched::Unknown));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        assert_eq!(switch("s", false), Ok(true));
        let off = std::fs::read_to_string(&path).unwrap();
        assert_eq!(off, text.replace("\"x\"", "\"x\", \"enabled\": false"));
        let bad = off.replace("{\n", "{\n  \"tools_limit\": 0,\n");
        std::fs::write(&path, &bad).unwrap();
        let Err(NotSwitched::Refused(why)) = switch("s", true) else { panic!() };
        assert!(why.contains("tools_limit"), "{why}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), bad);
    }
}
