//! The text of a client's config: its servers are read, and one of them is set or removed; the rest stays
//! as it is written. Pure.

use serde_json::{Map, Value};
use toml_edit::{DocumentMut, InlineTable, Item, Table};

use super::Syntax;
use crate::config::edit::{EditedJson, WrittenValue};
use crate::config::problem::KeyPath;

/// Most projects of one file.
const MAX_PROJECTS: usize = 1000;

/// A text that could be read.
#[derive(Clone, Debug)]
pub(in crate::cli) enum ClientText {
    Json(EditedJson, KeyPath),
    Toml(Box<DocumentMut>, &'static str),
}

impl ClientText {
    /// Reads a text; the error is for people, and quotes nothing of it.
    pub(in crate::cli) fn read(text: &str, syntax: Syntax) -> Result<Self, String> {
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

    /// Its servers, by name.
    pub(in crate::cli) fn servers(&self) -> Result<Vec<(String, Value)>, String> {
        let found = match self {
            Self::Json(json, at) => json.get(at).cloned(),
            Self::Toml(document, key) => document.get(key).map(value),
        };
        match found {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(Value::Object(servers)) => Ok(servers.into_iter().collect()),
            Some(Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_)) => {
                Err("what stands where its servers should is no object".to_owned())
            }
        }
    }

    /// The servers of single projects, by the project's folder, as Claude Code keeps them beside those for all.
    pub(in crate::cli) fn of_projects(&self) -> Vec<(String, Vec<(String, Value)>)> {
        let Self::Json(json, _) = self else { return Vec::new() };
        let projects = json.get(&KeyPath::root("projects")).and_then(Value::as_object);
        let servers = |project: &Value| {
            Some(project.get("mcpServers")?.as_object()?.clone().into_iter().collect())
        };
        let found = projects.into_iter().flatten().take(MAX_PROJECTS);
        found.filter_map(|(name, project)| Some((name.clone(), servers(project)?))).collect()
    }

    /// One of them.
    pub(in crate::cli) fn server(&self, name: &str) -> Option<Value> {
        let servers = self.servers().ok()?;
        servers.into_iter().find(|(known, _)| known == name).map(|(_, block)| block)
    }

    /// Puts a server there, in the place of one of that name.
    pub(in crate::cli) fn set(&mut self, name: &str, block: &WrittenValue) -> Result<(), String> {
        match self {
            Self::Json(json, at) => json.set(&at.key(name), block).map_err(|it| it.to_string()),
            Self::Toml(document, key) => {
                let mut parent = Table::new();
                parent.set_implicit(true);
                let servers = document.entry(key).or_insert(Item::Table(parent));
                let servers = servers.as_table_like_mut().ok_or("its servers are no table")?;
                servers.insert(name, Item::Table(table(&block.value())));
                Ok(())
            }
        }
    }

    /// Takes a server out; false if there is none of that name.
    pub(in crate::cli) fn remove(&mut self, name: &str) -> Result<bool, String> {
        match self {
            Self::Json(json, at) => json.remove(&at.key(name)).map_err(|error| error.to_string()),
            Self::Toml(document, key) => {
                let servers = document.get_mut(key).and_then(Item::as_table_like_mut);
                Ok(servers.is_some_and(|servers| servers.remove(name).is_some()))
            }
        }
    }

    /// The text as it is now.
    pub(in crate::cli) fn text(&self) -> String {
        match self {
            Self::Json(json, _) => json.text().to_owned(),
            Self::Toml(document, _) => document.to_string(),
        }
    }
}

/// A value of TOML as one of JSON.
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

/// A server's block in TOML: strings, lists of them, and maps of them.
fn table(block: &Value) -> Table {
    let mut table = Table::new();
    for (key, value) in block.as_object().into_iter().flatten() {
        let written: toml_edit::Value = match value {
            Value::Object(members) => {
                let mut inline = InlineTable::new();
                for (key, value) in members {
                    inline.insert(key, value.as_str().unwrap_or_default().into());
                }
                inline.into()
            }
            Value::Array(elements) => {
                let texts = elements.iter().filter_map(Value::as_str);
                texts.collect::<toml_edit::Array>().into()
            }
            Value::Bool(flag) => (*flag).into(),
            Value::String(text) => text.as_str().into(),
            Value::Null | Value::Number(_) => value.to_string().into(),
        };
        table.insert(key, Item::Value(written));
    }
    table
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const TOML: &str = "# mine\nmodel = \"o\" # fast\n\n[mcp_servers.a]\ncommand = \"x\"\nargs = [\"-y\"]\nenv = { K = \"v\" }\n\n[projects.\"/p\"]\ntrust = true\n";

    #[test]
    fn toml_keeps_its_comments_and_gives_its_servers() {
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
    fn what_cannot_be_read_is_told_without_its_words() {
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
}
