//! Text of a client's config: reads its servers, sets or removes one without changing the rest, and converts server
//! entries of other programs to mcpproxy's form. Pure: entries are treated as data, even if they contain shell syntax.

use mcpproxy_config::edit::{EditedJson, WrittenValue};
use mcpproxy_config::edit_servers::check_new_name;
use mcpproxy_config::problem::KeyPath;
use mcpproxy_config::servers::IGNORED;
use mcpproxy_upstream as upstream;
use mcpproxy_upstream::{ValuePart, value_parts};
use serde_json::{Map, Value};
use toml_edit::{DocumentMut, InlineTable, Item, Table};

/// Syntax of a client's config file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Syntax {
    /// JSON, with comments if the client allows them, and the key that holds the servers.
    Json(&'static str),
    /// TOML, and the table that holds the servers.
    Toml(&'static str),
}

/// Maximum number of projects in one file.
const MAX_PROJECTS: usize = 1000;

/// A parsed config text.
#[derive(Clone, Debug)]
pub(crate) enum ClientText {
    Json(EditedJson, KeyPath),
    Toml(Box<DocumentMut>, &'static str),
}

impl ClientText {
    /// Parses a text. The error message does not quote the text.
    pub(crate) fn read(text: &str, syntax: Syntax) -> Result<Self, String> {
        match syntax {
            Syntax::Json(key) => EditedJson::new(text)
                .map(|json| Self::Json(json, KeyPath::root(key)))
                .map_err(|error| error.to_string()),
            Syntax::Toml(key) => text
                .parse()
                .map(|document| Self::Toml(Box::new(document), key))
                .map_err(|error: toml_edit::TomlError| {
                    let line = error.span().map(|span| {
                        text.get(..span.start).unwrap_or_default().matches('\n').count() + 1
                    });
                    let line = line.map(|line| format!("line {line}: ")).unwrap_or_default();
                    let message = error.message().lines().next().unwrap_or_default();
                    format!("it cannot be read: {line}{message}")
                }),
        }
    }

    /// Servers by name.
    pub(crate) fn servers(&self) -> Result<Vec<(String, Value)>, String> {
        let found = match self {
            Self::Json(json, at) => json.get(at).cloned(),
            Self::Toml(document, key) => document.get(key).map(value),
        };
        match found {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(Value::Object(servers)) => Ok(servers.into_iter().collect()),
            Some(Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_)) => {
                Err("its server list is not an object".to_owned())
            }
        }
    }

    /// Servers of individual projects by project directory, as Claude Code stores them.
    pub(crate) fn of_projects(&self) -> Vec<(String, Vec<(String, Value)>)> {
        let Self::Json(json, _) = self else { return Vec::new() };
        let projects = json.get(&KeyPath::root("projects")).and_then(Value::as_object);
        let servers = |project: &Value| {
            Some(project.get("mcpServers")?.as_object()?.clone().into_iter().collect())
        };
        let found = projects.into_iter().flatten().take(MAX_PROJECTS);
        found.filter_map(|(name, project)| Some((name.clone(), servers(project)?))).collect()
    }

    /// One server by name.
    pub(crate) fn server(&self, name: &str) -> Option<Value> {
        let servers = self.servers().ok()?;
        servers.into_iter().find(|(known, _)| known == name).map(|(_, block)| block)
    }

    /// Adds or replaces a server.
    pub(crate) fn set(&mut self, name: &str, block: &WrittenValue) -> Result<(), String> {
        match self {
            Self::Json(json, at) => json.set(&at.key(name), block).map_err(|it| it.to_string()),
            Self::Toml(document, key) => {
                let mut parent = Table::new();
                parent.set_implicit(true);
                let servers = document.entry(key).or_insert(Item::Table(parent));
                let servers =
                    servers.as_table_like_mut().ok_or("its server list is not a table")?;
                let fresh = table(&block.value());
                match servers.get_mut(name).and_then(Item::as_table_mut) {
                    Some(there) => renew(there, fresh),
                    None => {
                        servers.insert(name, Item::Table(fresh));
                    }
                }
                Ok(())
            }
        }
    }

    /// Removes a server by name. Returns false if the server does not exist.
    pub(crate) fn remove(&mut self, name: &str) -> Result<bool, String> {
        match self {
            Self::Json(json, at) => json.remove(&at.key(name)).map_err(|error| error.to_string()),
            Self::Toml(document, key) => {
                let servers = document.get_mut(key).and_then(Item::as_table_like_mut);
                Ok(servers.is_some_and(|servers| servers.remove(name).is_some()))
            }
        }
    }

    /// The current text.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Json(json, _) => json.text().to_owned(),
            Self::Toml(document, _) => document.to_string(),
        }
    }
}

/// Converts TOML to JSON.
fn value(item: &Item) -> Value {
    match item {
        Item::None => Value::Null,
        Item::Value(it) => scalar(it),
        Item::Table(table) => {
            Value::Object(table.iter().map(|(key, item)| (key.to_owned(), value(item))).collect())
        }
        Item::ArrayOfTables(tables) => {
            tables.iter().map(|table| value(&Item::Table(table.clone()))).collect()
        }
    }
}

fn scalar(it: &toml_edit::Value) -> Value {
    match it {
        toml_edit::Value::String(text) => text.value().as_str().into(),
        toml_edit::Value::Integer(number) => (*number.value()).into(),
        toml_edit::Value::Float(number) => (*number.value()).into(),
        toml_edit::Value::Boolean(flag) => (*flag.value()).into(),
        toml_edit::Value::Datetime(time) => time.value().to_string().into(),
        toml_edit::Value::Array(elements) => elements.iter().map(scalar).collect(),
        toml_edit::Value::InlineTable(table) => {
            let members = table.iter().map(|(key, it)| (key.to_owned(), scalar(it)));
            Value::Object(members.collect::<Map<_, _>>())
        }
    }
}

/// Makes a table equal to `fresh`. Equal members keep their layout and comments.
fn renew(there: &mut Table, fresh: Table) {
    there.retain(|key, _| fresh.contains_key(key));
    for (key, item) in fresh {
        if there.get(&key).map(value) != Some(value(&item)) {
            there.insert(&key, item);
        }
    }
}

/// A server entry in TOML.
fn table(block: &Value) -> Table {
    let mut table = Table::new();
    for (key, value) in block.as_object().into_iter().flatten() {
        table.insert(key, Item::Value(toml(value)));
    }
    table
}

/// Converts JSON to TOML.
fn toml(value: &Value) -> toml_edit::Value {
    match value {
        Value::Object(members) => {
            let members = members.iter().map(|(key, value)| (key, toml(value)));
            members.collect::<InlineTable>().into()
        }
        Value::Array(elements) => elements.iter().map(toml).collect::<toml_edit::Array>().into(),
        Value::Bool(flag) => (*flag).into(),
        Value::String(text) => text.as_str().into(),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => whole.into(),
            (None, Some(real)) => real.into(),
            (None, None) => number.to_string().into(),
        },
        Value::Null => "".into(),
    }
}

/// Maximum length of a name, in characters.
const NAME_CHARS: usize = 64;

/// Members of an mcpproxy server entry, in the usual order.
pub(crate) type EntryMembers = Vec<(String, Value)>;

/// Converts a server name to one that mcpproxy accepts, if possible.
pub(crate) fn name(original: &str) -> Option<String> {
    let plain = |letter: char| letter.is_alphanumeric() || matches!(letter, '-' | '_' | '.' | ' ');
    let letters = original.chars().map(|letter| if plain(letter) { letter } else { '-' });
    let name: String = letters.skip_while(|it| !it.is_alphanumeric()).take(NAME_CHARS).collect();
    let name = name.trim_end_matches([' ', '-']).to_owned();
    check_new_name(&name).is_ok().then_some(name)
}

/// Converts a server entry to mcpproxy's form; the error names the unusable part.
pub(crate) fn members(original: &Value) -> Result<EntryMembers, String> {
    let block = original.as_object().ok_or("it is not an object")?;
    let mut members = EntryMembers::new();
    // Zed formerly nested the program and its settings one level deeper.
    let inner = block.get("command").and_then(Value::as_object);
    let found = |keys: &[&str]| {
        let of = |block: &Map<String, Value>| keys.iter().find_map(|key| block.get(*key)).cloned();
        inner.and_then(of).or_else(|| of(block)).filter(|value| !value.is_null())
    };
    let command = match inner {
        Some(inner) => inner.get("path").cloned(),
        None => block.get("command").cloned(),
    };
    let url = found(&["url", "serverUrl", "httpUrl"]);
    let mut put = |key: &str, value: Value| members.push((key.to_owned(), value));
    let empty = |value: &Value| {
        value.as_object().is_some_and(Map::is_empty) || value.as_array().is_some_and(Vec::is_empty)
    };
    match (command, url) {
        (Some(command), _) => {
            put("command", command);
            for key in ["args", "env", "cwd"] {
                if let Some(value) = found(&[key]).filter(|value| !empty(value)) {
                    put(key, if key == "env" { filled_in(value) } else { value });
                }
            }
        }
        (None, Some(url)) => {
            let known =
                |url: &str| ["https:", "http:", "unix:", "${"].iter().any(|it| url.starts_with(it));
            if !url.as_str().is_some_and(known) {
                return Err("its url scheme is not https, http or unix".to_owned());
            }
            put("url", filled_in(url));
            let headers = headers(&found)?;
            if !headers.is_empty() {
                put("headers", Value::Object(headers));
            }
        }
        (None, None) => return Err("it has neither a command nor a url".to_owned()),
    }
    let says = |key: &str, value: bool| block.get(key) == Some(&Value::Bool(value));
    let is_disabled = says("disabled", true) || says("enabled", false);
    let prompts = members.iter().any(|(_, value)| has_text(value, &|it| it.contains(PROMPT)));
    if is_disabled || prompts {
        members.push(("enabled".to_owned(), false.into()));
    }
    let entry = Value::Object(members.iter().cloned().collect());
    if entry.as_object().into_iter().flatten().any(|(_, value)| has_local_reference(value)) {
        return Err("it refers to a file, credential or keyring entry, which only mcpproxy would \
                    expand: add it by hand, with `mcpproxy upstream add`"
            .to_owned());
    }
    match serde_json::from_value::<upstream::Config>(entry) {
        Ok(_) => Ok(members),
        // The deserializer's message would quote the value.
        Err(_) => Err("its command, args, env, url or headers have an unexpected type".to_owned()),
    }
}

/// Start of a value for which VS Code asks its user.
pub(crate) const PROMPT: &str = "${input:";

/// Whether any string within a JSON value satisfies `holds`.
pub(crate) fn has_text(value: &Value, holds: &dyn Fn(&str) -> bool) -> bool {
    match value {
        Value::String(text) => holds(text),
        Value::Array(items) => items.iter().any(|item| has_text(item, holds)),
        Value::Object(members) => members.values().any(|member| has_text(member, holds)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Keys that [`members`] converts for a server that is a command.
const COMMAND_KEYS: &[&str] = &["command", "args", "env", "cwd"];
/// Keys that [`members`] converts for a server at a URL.
#[rustfmt::skip]
const URL_KEYS: &[&str] = &[
    "url", "serverUrl", "httpUrl", "headers", "http_headers", "env_http_headers", "bearer_token_env_var",
];
/// Keys that are converted for both, or that the other keys imply.
const COMMON_KEYS: &[&str] =
    &["enabled", "source", "type", "transport", "transportType", "protocol"];

/// Members of an entry that its converted `members` do not have, and that may have an effect in the other program.
/// Presentation and empty values are left out.
pub(crate) fn not_imported<'o>(
    original: &'o Value,
    members: &EntryMembers,
) -> impl Iterator<Item = (&'o String, &'o Value)> {
    let is_command = members.iter().any(|(key, _)| key == "command");
    let keys = if is_command { COMMAND_KEYS } else { URL_KEYS };
    let block = original.as_object().into_iter().flatten();
    block.filter(move |(key, value)| {
        let is_known = [keys, COMMON_KEYS, &IGNORED].iter().any(|it| it.contains(&key.as_str()));
        let is_empty = match value {
            Value::Null | Value::Bool(false) => true,
            Value::Array(items) => items.is_empty(),
            Value::Object(members) => members.is_empty(),
            Value::Bool(true) | Value::Number(_) | Value::String(_) => false,
        };
        !is_known && !is_empty
    })
}

/// Whether a key belongs to the other kind of server than the one that was converted.
pub(crate) fn is_of_other_kind(key: &str) -> bool {
    COMMAND_KEYS.contains(&key) || URL_KEYS.contains(&key)
}

/// Whether a key determines how a server is reached, or whether, in any client. The others are settings of its user.
pub(crate) fn is_connection_key(key: &str) -> bool {
    is_of_other_kind(key) || COMMON_KEYS.contains(&key) || matches!(key, "disabled" | "env_vars")
}

/// Headers, including those that Codex reads from environment variables.
fn headers(found: &impl Fn(&[&str]) -> Option<Value>) -> Result<Map<String, Value>, String> {
    let object = |keys: &[&str]| match found(keys) {
        None => Ok(Map::new()),
        Some(Value::Object(members)) => Ok(members),
        Some(_) => Err(format!("its {} are not an object", keys.join(" or "))),
    };
    let mut headers = object(&["headers", "http_headers"])?;
    headers.values_mut().for_each(|value| *value = filled_in(value.take()));
    for (name, variable) in object(&["env_http_headers"])? {
        if let Some(variable) = variable.as_str() {
            headers.insert(name, format!("${{env:{variable}}}").into());
        }
    }
    if let Some(Value::String(variable)) = found(&["bearer_token_env_var"]) {
        headers.insert("Authorization".to_owned(), format!("Bearer ${{env:{variable}}}").into());
    }
    Ok(headers)
}

/// Whether mcpproxy would expand a value from a local secret and send it to the server's author, while the other
/// program treats it as plain text.
fn has_local_reference(value: &Value) -> bool {
    has_text(value, &|text| value_parts(text).iter().any(|it| matches!(it, ValuePart::Kept(_))))
}

/// Rewrites `${NAME}`, which some programs expand from the environment, to `${env:NAME}`.
fn filled_in(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(variables(&text)),
        Value::Object(members) => {
            members.into_iter().map(|(key, value)| (key, filled_in(value))).collect()
        }
        other @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_)) => other,
    }
}

fn variables(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        out.push_str(before);
        let name = after.split('}').next().unwrap_or_default();
        let is_name = name.len() < after.len()
            && !name.is_empty()
            && name.chars().all(|it| it.is_ascii_alphanumeric() || it == '_');
        out.push_str(if is_name { "${env:" } else { "${" });
        rest = after;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const TOML: &str = "# mine\nmodel = \"o\" # fast\n\n[mcp_servers.a]\ncommand = \"x\"\nargs = [\"-y\"]\nenv = { K = \"v\" }\n\n[projects.\"/p\"]\ntrust = true\n";

    #[test]
    fn toml_edits_keep_comments() {
        let mut text = ClientText::read(TOML, Syntax::Toml("mcp_servers")).unwrap();
        let a = json!({"command": "x", "args": ["-y"], "env": {"K": "v"}});
        assert_eq!(text.servers().unwrap(), [("a".to_owned(), a)]);
        let block = json!({"url": "http://h/mcp", "http_headers": {"X-API-Key": "k"}});
        text.set("mcpproxy", &block.clone().into()).unwrap();
        let written = text.text();
        for line in TOML.lines() {
            assert!(written.contains(line), "{line} is not in {written}");
        }
        let read = ClientText::read(&written, Syntax::Toml("mcp_servers")).unwrap();
        assert_eq!(read.server("mcpproxy"), Some(block));
        assert_eq!(text.remove("mcpproxy"), Ok(true));
        assert_eq!((text.text().as_str(), text.remove("mcpproxy")), (TOML, Ok(false)));
        let mut empty = ClientText::read("", Syntax::Toml("mcp_servers")).unwrap();
        empty.set("m", &json!({"url": "u"}).into()).unwrap();
        assert_eq!(empty.text(), "[mcp_servers.m]\nurl = \"u\"\n");
    }

    #[test]
    fn parse_errors_do_not_quote_the_text() {
        for (text, syntax) in [
            ("a = s3cr3t-token", Syntax::Toml("m")),
            ("{\"k\": s3cr3t-token}", Syntax::Json("m")),
            ("{\"k\": \"s3cr3t-token", Syntax::Json("m")),
            ("[a\nb = \"s3cr3t-token\"", Syntax::Toml("m")),
        ] {
            let error = ClientText::read(text, syntax).unwrap_err();
            assert!(error.contains("line 1") && !error.contains("s3cr3t"), "{error}");
        }
        for (text, syntax) in [("m = 7", Syntax::Toml("m")), ("{\"m\": []}", Syntax::Json("m"))] {
            assert!(ClientText::read(text, syntax).unwrap().servers().is_err());
        }
    }

    fn read(block: Value) -> Result<Value, String> {
        members(&block).map(|members| Value::Object(members.into_iter().collect()))
    }

    #[test]
    fn every_programs_entry_form_is_converted() {
        for (original, ours) in [
            (
                json!({"command": "npx", "args": ["-y"], "env": {}}),
                json!({"command": "npx", "args": ["-y"]}),
            ),
            (
                json!({"type": "http", "url": "http://h", "headers": {"A": "Bearer ${TOKEN}"}}),
                json!({"url": "http://h", "headers": {"A": "Bearer ${env:TOKEN}"}}),
            ),
            (
                json!({"serverUrl": "http://h", "disabled": true}),
                json!({"url": "http://h", "enabled": false}),
            ),
            (
                json!({"source": "custom", "command": {"path": "x", "args": ["a"], "env": {"K": "v"}}}),
                json!({"command": "x", "args": ["a"], "env": {"K": "v"}}),
            ),
            (json!({"source": "custom", "command": "x", "args": []}), json!({"command": "x"})),
            (
                json!({"url": "http://h", "bearer_token_env_var": "T", "http_headers": {"A": "b"}, "env_http_headers": {"C": "D"}}),
                json!({"url": "http://h", "headers": {"A": "b", "C": "${env:D}", "Authorization": "Bearer ${env:T}"}}),
            ),
            (
                json!({"command": "x; rm -rf / $(id)", "args": ["`id`"]}),
                json!({"command": "x; rm -rf / $(id)", "args": ["`id`"]}),
            ),
        ] {
            assert_eq!(read(original), Ok(ours));
        }
        for bad in [
            json!(7),
            json!({}),
            json!({"command": 7}),
            json!({"command": "x", "args": "y"}),
            json!({"command": "x", "env": {"K": 7}}),
            json!({"url": "u", "headers": []}),
            json!({"command": {}}),
            json!({"command": "x", "env": {"K": "a ${file:~/.ssh/id_rsa}"}}),
            json!({"url": "https://h/${credential:c}"}),
            json!({"url": "https://h", "headers": {"A": "${keyring:s/u}"}}),
        ] {
            assert!(read(bad.clone()).is_err(), "{bad}");
        }
    }

    #[test]
    fn names_are_sanitized() {
        for (original, ours) in [
            ("github", Some("github")),
            ("microsoft/playwright-mcp", Some("microsoft-playwright-mcp")),
            ("../../etc/passwd", Some("etc-passwd")),
            ("a:b", Some("a-b")),
            ("a\u{1b}[31m\nb", Some("a--31m-b")),
            ("\u{202e}x", Some("x")),
            ("..", None),
            ("", None),
            ("\0", None),
        ] {
            assert_eq!(name(original).as_deref(), ours, "{original:?}");
        }
        assert_eq!(name(&"x".repeat(1000)).unwrap().len(), 64);
    }

    #[test]
    fn variables_are_rewritten_to_env_references() {
        assert_eq!(variables("a${B}c${env:D}${E"), "a${env:B}c${env:D}${E");
    }
}
