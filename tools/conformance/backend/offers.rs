//! The table of what is offered, `offers.json`, read into rmcp's types where it is listed.

use std::collections::{BTreeMap, HashMap};

use rmcp::model::{Prompt, Resource, ResourceTemplate, Tool};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::rounds::Rounds;
use crate::skills::Skills;

const TABLE: &str = include_str!("offers.json");

/// The table; `answers`, `messages` and the like are by tool's, prompt's or resource's name.
#[derive(Deserialize)]
pub(crate) struct Offers {
    pub(crate) tools: Vec<Tool>,
    pub(crate) answers: HashMap<String, Value>,
    /// Schemas of what a tool asks the user.
    pub(crate) forms: HashMap<String, Value>,
    pub(crate) rounds: HashMap<String, Rounds>,
    pub(crate) prompts: Vec<Prompt>,
    /// With `{argument}` where an argument goes.
    pub(crate) messages: HashMap<String, Value>,
    pub(crate) resources: Vec<Resource>,
    contents: HashMap<String, Value>,
    /// Files of skills, by path.
    skills: BTreeMap<String, String>,
    pub(crate) templates: Vec<ResourceTemplate>,
    /// Contents of the only template, with `{id}`.
    template: Value,
    /// The tool and the prompt that come and go.
    pub(crate) changed: Value,
}

impl Offers {
    pub(crate) fn read() -> Self {
        serde_json::from_str(TABLE).expect("the table has this form")
    }

    pub(crate) fn skills(&self) -> Skills {
        Skills(self.skills.clone())
    }

    /// Content of a resource, or of one of the template's.
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

/// A value of the table as one of rmcp's types.
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
