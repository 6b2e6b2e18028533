//! The servers in the text of a config: under `mcpServers` (or VS Code's `servers`), as an object or
//! as an array. Pure.

use serde_json::{Map, Value};

use super::edited_json::EditedJson;
use super::layout::WrittenValue;
use super::refused::EditRefused;
use crate::config::key_aliases::VS_CODE;
use crate::config::problem::KeyPath;
use crate::config::servers::KEY;

/// Most characters of the name of a server that is added.
const NAME_CHARS: usize = 64;

/// The servers in one text.
#[derive(Clone, Copy, Debug)]
pub struct Servers<'e>(pub &'e EditedJson);

impl Servers<'_> {
    /// Where they stand.
    fn at(self) -> KeyPath {
        let key = if self.0.value().contains_key(KEY) { KEY } else { VS_CODE };
        KeyPath::root(if self.0.value().contains_key(key) { key } else { KEY })
    }

    /// Their names and blocks.
    #[must_use]
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

    /// Where the block of a server stands.
    #[must_use]
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

    /// The text with another server. Whether there is one of that name was looked at before.
    ///
    /// # Errors
    /// [`EditRefused`]
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

    /// The text without a server; `None` if there is none of that name.
    ///
    /// # Errors
    /// [`EditRefused`]
    pub fn without(self, name: &str) -> Result<Option<EditedJson>, EditRefused> {
        let Some(at) = self.find(name) else { return Ok(None) };
        let mut next = self.0.clone();
        next.remove(&at)?;
        Ok(Some(next))
    }

    /// The text with a server switched on or off; `None` if there is none of that name. One that is as
    /// it is meant to be stays as it is written.
    ///
    /// # Errors
    /// [`EditRefused`]
    pub fn switched(self, name: &str, on: bool) -> Result<Option<EditedJson>, EditRefused> {
        let Some(at) = self.find(name) else { return Ok(None) };
        let mut next = self.0.clone();
        let block = next.get(&at).and_then(Value::as_object).cloned().unwrap_or_default();
        let says = |key: &str, value: bool| block.get(key) == Some(&Value::Bool(value));
        // What other programs write for it counts as well.
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

/// Whether a block, as it is written, is of a server that is on.
fn is_enabled(block: &Map<String, Value>) -> bool {
    let is = |key: &str, value: bool| block.get(key) == Some(&Value::Bool(value));
    !is("enabled", false) && !is("disabled", true) && !is("quarantined", true)
}

/// Whether a server that is added may be called so. Names that are in a config may be others.
///
/// # Errors
/// What names are made of.
pub fn check_new_name(name: &str) -> Result<(), String> {
    let plain = |letter: char| letter.is_alphanumeric() || matches!(letter, '-' | '_' | '.' | ' ');
    let is_plain = name.chars().all(plain)
        && name.chars().next().is_some_and(char::is_alphanumeric)
        && !name.ends_with(' ')
        && name.chars().nth(NAME_CHARS).is_none();
    is_plain.then_some(()).ok_or_else(|| {
        format!(
            "a server's name is made of letters, digits, '-', '_', '.' and blanks, begins with a letter or \
             digit, and has at most {NAME_CHARS} characters"
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn members() -> Vec<(String, Value)> {
        vec![("command".into(), json!("npx")), ("args".into(), json!(["-y", "x"]))]
    }

    fn edited(text: &str) -> EditedJson {
        EditedJson::new(text).unwrap()
    }

    #[test]
    fn a_server_is_added_to_either_form() {
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
                assert_eq!(back.text(), text, "what was added goes without a trace");
            }
        }
    }

    #[test]
    fn a_server_is_switched_where_it_says_so() {
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
    fn names_that_are_added_are_plain() {
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
}
