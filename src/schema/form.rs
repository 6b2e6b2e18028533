//! What the engines are given of a schema: what counts, in a form that both take.
//!
//! Owns what stands where in a schema: subschemas, maps of them, and values that only look like
//! schemas. Leaves out what nothing leads to, so that nothing in there can make a schema unusable,
//! and writes references as URIs. Deliberately changes nothing that a document is judged by, and
//! nothing that an agent is shown.

use std::collections::HashSet;

use boon::Draft;
use serde_json::{Map, Value};

use super::formats;
use super::reference::{REFERENCES, encoded};

/// What stands at a place of a schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holds {
    /// A subschema, or a list of them.
    Schema,
    /// Subschemas by name.
    Schemas,
    /// A value: nothing in it is a keyword.
    Value,
    /// Whatever a keyword holds that no dialect has.
    Unknown,
}

/// Keywords that hold definitions by name.
const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

/// Keywords that hold other subschemas by name.
const SCHEMAS: [&str; 4] = ["properties", "patternProperties", "dependentSchemas", "dependencies"];

/// Keywords that hold values to compare with.
const COMPARED: [&str; 2] = ["const", "enum"];

/// Keywords that say nothing about a document.
const SILENT: [&str; 3] = ["default", "examples", "contentSchema"];

/// Keywords that hold a subschema, or a list of them.
pub const SUBSCHEMA_KEYWORDS: [&str; 16] = [
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "then",
    "else",
    "items",
    "prefixItems",
    "additionalItems",
    "unevaluatedItems",
    "contains",
    "additionalProperties",
    "unevaluatedProperties",
    "propertyNames",
    "contentSchema",
];

/// What of an object matters for what is in it, if it is no subschema itself.
const IDENTITY: [&str; 7] =
    ["$schema", "$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$ref"];

/// What the member `name` of an object holds that itself is what `kind` says.
pub(super) fn holds(kind: Holds, name: &str) -> Holds {
    let among = |names: &[&str]| names.contains(&name);
    match kind {
        Holds::Schema if among(&DEFINITIONS) || among(&SCHEMAS) => Holds::Schemas,
        Holds::Schema if among(&COMPARED) || among(&["default", "examples"]) => Holds::Value,
        Holds::Schema | Holds::Schemas if kind == Holds::Schemas || among(&SUBSCHEMA_KEYWORDS) => {
            Holds::Schema
        }
        Holds::Schema | Holds::Schemas | Holds::Unknown => Holds::Unknown,
        Holds::Value => Holds::Value,
    }
}

impl Holds {
    /// What the items of a list hold that stands here.
    pub(super) fn of_items(self) -> Self {
        match self {
            Self::Schemas => Self::Unknown,
            kind => kind,
        }
    }
}

/// A schema as the engines are given it.
pub(super) struct ReachedSchema {
    /// The schema.
    pub(super) schema: Value,
    /// Every `$schema` in it that is a keyword.
    pub(super) dialects: Vec<String>,
}

impl ReachedSchema {
    /// What of `schema` is among `reached` or leads there. `id` is the keyword by which its
    /// dialect identifies a resource. The nesting of schemas bounds the recursion.
    pub(super) fn of(schema: &Value, reached: &HashSet<*const Value>, id: &str) -> Self {
        let mut keep = Keep { reached, leading: HashSet::new(), id, dialects: Vec::new() };
        keep.lead(schema);
        let schema = keep.value(schema);
        Self { schema, dialects: keep.dialects }
    }
}

struct Keep<'a> {
    reached: &'a HashSet<*const Value>,
    /// What is reached, or holds what is.
    leading: HashSet<*const Value>,
    id: &'a str,
    dialects: Vec<String>,
}

impl Keep<'_> {
    fn lead(&mut self, value: &Value) -> bool {
        let mut leads = self.reached.contains(&std::ptr::from_ref(value));
        match value {
            Value::Object(members) => {
                for member in members.values() {
                    leads |= self.lead(member);
                }
            }
            Value::Array(items) => {
                for item in items {
                    leads |= self.lead(item);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
        if leads {
            self.leading.insert(std::ptr::from_ref(value));
        }
        leads
    }

    fn leads(&self, value: &Value) -> bool {
        self.leading.contains(&std::ptr::from_ref(value))
    }

    /// A value that leads to a subschema, or is one.
    fn value(&mut self, value: &Value) -> Value {
        match value {
            Value::Object(members) if self.reached.contains(&std::ptr::from_ref(value)) => {
                let kept = members.iter().filter_map(|(keyword, member)| {
                    Some((keyword.clone(), self.keyword(keyword, member)?))
                });
                Value::Object(kept.collect())
            }
            Value::Object(members) => Value::Object(self.those_that_lead(members)),
            Value::Array(items) => {
                // Those that do not lead keep their places.
                let kept = items.iter().map(|item| {
                    if self.leads(item) { self.value(item) } else { Value::Object(Map::new()) }
                });
                Value::Array(kept.collect())
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
        }
    }

    fn those_that_lead(&mut self, members: &Map<String, Value>) -> Map<String, Value> {
        let mut kept = Map::new();
        for (name, member) in members {
            if self.leads(member) {
                kept.insert(name.clone(), self.value(member));
            } else if IDENTITY.contains(&name.as_str()) {
                kept.insert(name.clone(), self.plain(name, member));
            }
        }
        kept
    }

    /// What becomes of a keyword of a subschema.
    fn keyword(&mut self, keyword: &str, member: &Value) -> Option<Value> {
        if COMPARED.contains(&keyword) {
            return Some(member.clone());
        }
        let leads = self.leads(member);
        Some(match member {
            Value::Object(_) | Value::Array(_) if SILENT.contains(&keyword) && !leads => {
                return None;
            }
            Value::Object(members) if DEFINITIONS.contains(&keyword) => {
                Value::Object(self.those_that_lead(members))
            }
            Value::Object(members) if SCHEMAS.contains(&keyword) => {
                let kept = members.iter().map(|(name, member)| (name.clone(), self.each(member)));
                Value::Object(kept.collect())
            }
            Value::Array(items) if leads => {
                Value::Array(items.iter().map(|item| self.each(item)).collect())
            }
            _ if leads => self.value(member),
            _ => self.plain(keyword, member),
        })
    }

    fn each(&mut self, member: &Value) -> Value {
        if self.leads(member) { self.value(member) } else { member.clone() }
    }

    fn plain(&mut self, keyword: &str, member: &Value) -> Value {
        match member {
            Value::String(text) if keyword == "$schema" => {
                self.dialects.push(text.clone());
                member.clone()
            }
            Value::String(text) if keyword == self.id || REFERENCES.contains(&keyword) => {
                Value::String(encoded(text).into_owned())
            }
            _ => member.clone(),
        }
    }
}

/// Keywords that came with drafts 6 and 7, which boon follows beside a reference.
const BESIDE_REFERENCE: [&str; 10] = [
    "const",
    "contains",
    "propertyNames",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "if",
    "then",
    "else",
    "contentEncoding",
    "contentMediaType",
];

/// Takes out of a schema what boon would not take or takes for something else: patterns beyond
/// it, the one format that it does not let be defined, and a keyword of another dialect. Leaves
/// alone what only looks like a keyword. The nesting of schemas bounds the recursion.
pub(super) fn prepare(schema: &mut Value, draft: Draft, beyond_boon: &HashSet<&str>) {
    let members = match schema {
        Value::Object(members) => members,
        Value::Array(items) => {
            return items.iter_mut().for_each(|item| prepare(item, draft, beyond_boon));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => return,
    };
    let own = members.get("$schema").and_then(Value::as_str).and_then(Draft::from_url);
    let draft = own.unwrap_or(draft);
    if let Some(format) = members.get_mut("format").filter(|name| *name == "regex") {
        *format = formats::REGEX.into();
    }
    let known = members.get("pattern").and_then(Value::as_str);
    if known.is_some_and(|pattern| beyond_boon.contains(pattern)) {
        members.remove("pattern");
    }
    if draft == Draft::V2020_12 {
        members.remove("$recursiveRef");
    }
    if matches!(draft, Draft::V6 | Draft::V7) && members.get("$ref").is_some_and(Value::is_string) {
        // What stands beside a reference means nothing there; boon knows it of draft 4 alone.
        members.retain(|keyword, _| !BESIDE_REFERENCE.contains(&keyword.as_str()));
    }
    if let Some(Value::Object(named)) = members.get_mut("patternProperties") {
        named.retain(|pattern, _| !beyond_boon.contains(pattern.as_str()));
    }
    for (keyword, member) in members {
        match (keyword.as_str(), member) {
            ("const" | "enum" | "default" | "examples", _) => {}
            (
                "properties" | "patternProperties" | "dependentSchemas" | "dependencies" | "$defs"
                | "definitions",
                Value::Object(named),
            ) => named.values_mut().for_each(|schema| prepare(schema, draft, beyond_boon)),
            (_, member) => prepare(member, draft, beyond_boon),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_only_looks_like_a_keyword_is_left_to_boon_as_it_is() {
        for value in [
            json!({ "const": { "format": "regex", "pattern": "(?!a)" } }),
            json!({ "enum": [{ "$recursiveRef": "#" }], "not": { "pattern": "(?!a)" } }),
            json!({ "properties": { "$recursiveRef": { "const": { "pattern": "(?!a)" } } } }),
        ] {
            let mut prepared = value.clone();
            prepare(&mut prepared, Draft::V2020_12, &HashSet::from(["(?!a)"]));
            if let Some(not) = prepared.get_mut("not") {
                assert_eq!(*not, json!({}));
                *not = json!({ "pattern": "(?!a)" });
            }
            assert_eq!(prepared, value);
        }
    }
}
