//! The table of offered items, `offers.json`, with the lists parsed into rmcp's types.

use std::collections::{BTreeMap, HashMap};

use rmcp::model::{Prompt, Resource, ResourceTemplate, Tool};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::rounds::Rounds;
use crate::skills::Skills;

const TABLE: &str = include_str!("offers.json");

/// The table. Maps such as `answers` and `messages` have the name of a tool, prompt or resource as the key.
#[derive(Deserialize)]
pub(crate) struct Offers {
    pub(crate) tools: Vec<Tool>,
    pub(crate) answers: HashMap<String, Value>,
    /// Schemas of the forms with which a tool asks the user.
    pub(crate) forms: HashMap<String, Value>,
    pub(crate) rounds: HashMap<String, Rounds>,
    pub(crate) prompts: Vec<Prompt>,
    /// Templates of messages, in which `{argument}` is replaced by the argument of that name.
    pub(crate) messages: HashMap<String, Value>,
    pub(crate) resources: Vec<Resource>,
    contents: HashMap<String, Value>,
    /// Files of skills, by path.
    skills: BTreeMap<String, String>,
    pub(crate) templates: Vec<ResourceTemplate>,
    /// Template of the contents of the only resource template, in which `{id}` is replaced.
    template: Value,
    /// The tool and the prompt that are added and removed at run time.
    pub(crate) changed: Value,
}

impl Offers {
    pub(crate) fn read() -> Self {
        serde_json::from_str(TABLE).expect("the table has this form")
    }

    pub(crate) fn skills(&self) -> Skills {
        Skills(self.skills.clone())
    }

    /// Content of a listed resource, or of one that matches the template.
    pub(crate) fn contents(&self, uri: &str) -> Option<Value> {
        if let Some(contents) = self.contents.get(uri) {
            return Some(contents.clone());
        }
        if let Some(contents) = self.skills().contents(uri) {
            return Some(contents);
        }
        let (before, after) = self.template["uri"].as_str()?.split_once("{id}")?;
        let id = uri.strip_prefix(before)?.strip_suffix(after)?;
        Some(filled(&self.template, |name| (name == "id").then_some(id)))
    }
}

/// A value of the table, converted to a type of rmcp.
pub(crate) fn read<T: DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).expect("the offers are of their types")
}

/// The value with each `{name}` in its strings replaced.
pub(crate) fn filled<'a>(value: &Value, named: impl Fn(&str) -> Option<&'a str> + Copy) -> Value {
    match value {
        Value::String(text) => {
            let mut parts = text.split('{');
            let mut made = parts.next().unwrap_or_default().to_owned();
            for part in parts {
                match part.split_once('}').and_then(|(name, rest)| Some((named(name)?, rest))) {
                    Some((argument, rest)) => made.extend([argument, rest]),
                    None => made.extend(["{", part]),
                }
            }
            Value::String(made)
        }
        Value::Array(values) => values.iter().map(|value| filled(value, named)).collect(),
        Value::Object(members) => {
            let members = members.iter().map(|(key, value)| (key.clone(), filled(value, named)));
            Value::Object(members.collect())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}
