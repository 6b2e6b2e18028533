//! Arguments that a tool could be called with, made of its input schema: a shape to fill in, not a promise. Pure.
//!
//! What must be given, with what the schema itself offers (constants, defaults, examples, choices), else with a value of
//! the right type. Patterns and conditions are not looked at: whether arguments fit is for whoever judges them.

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::input_schema::{JsonType, SchemaNode, SchemaRoot, read_elements};
use crate::json::members::string;

/// Most bytes of a value that is taken from the schema.
const MAX_OFFERED_BYTES: usize = 512;
/// How deep an example goes.
const MAX_DEPTH: usize = 6;
/// Most members of an object, and elements of an array.
const MAX_MEMBERS: usize = 24;
const MAX_ELEMENTS: usize = 4;
/// Most values in all of an example.
const MAX_VALUES: usize = 128;
/// Most characters that are made up for `minLength`.
const MAX_MADE_UP: usize = 256;

/// Arguments for a tool with this input schema.
#[must_use]
pub fn example(input_schema: &RawValue) -> Value {
    let root = SchemaRoot::new(input_schema.get());
    let mut sketch = Sketch { root: &root, left: MAX_VALUES };
    sketch.object(&root.node(), 0)
}

struct Sketch<'a> {
    root: &'a SchemaRoot<'a>,
    /// How many values may still be made.
    left: usize,
}

impl<'a> Sketch<'a> {
    fn value(&mut self, name: &str, node: &SchemaNode<'a>, depth: usize) -> Value {
        self.left = self.left.saturating_sub(1);
        if let Some(offered) = offered(node) {
            return offered;
        }
        if depth >= MAX_DEPTH || self.left == 0 {
            return Value::Null;
        }
        if let Some(any_of) = node.any_of {
            let mut nodes =
                read_elements(any_of).take(MAX_ELEMENTS).map(|schema| self.root.resolve(schema));
            let meant = nodes.find(|node| node.types() != [JsonType::Null]);
            return meant.map_or(Value::Null, |node| self.value(name, &node, depth + 1));
        }
        let types = node.types();
        let meant = types.iter().find(|kind| **kind != JsonType::Null).or(types.first());
        match meant.copied().unwrap_or(JsonType::String) {
            JsonType::String => text(name, node).into(),
            JsonType::Integer => number(node)
                .ceil()
                .clamp(-9e15, 9e15)
                .to_string()
                .parse::<i64>()
                .map_or(Value::Null, Value::from),
            JsonType::Number => Value::from(number(node)),
            JsonType::Boolean => Value::Bool(true),
            JsonType::Null => Value::Null,
            JsonType::Array => self.array(name, node, depth),
            JsonType::Object => self.object(node, depth),
        }
    }

    fn array(&mut self, name: &str, node: &SchemaNode<'a>, depth: usize) -> Value {
        let count = |keyword: Option<&str>| keyword.and_then(|value| value.parse::<usize>().ok());
        let most = count(node.max_items).unwrap_or(MAX_ELEMENTS).min(MAX_ELEMENTS);
        let wanted = count(node.min_items).unwrap_or(1).max(1).min(most);
        let item = self.root.resolve(node.items.unwrap_or("{}"));
        (0..wanted).map(|_| self.value(name, &item, depth + 1)).collect()
    }

    fn object(&mut self, node: &SchemaNode<'a>, depth: usize) -> Value {
        let required = node.required_names();
        let mut members = Map::new();
        for (name, schema) in node.properties() {
            if members.len() >= MAX_MEMBERS || self.left == 0 {
                break;
            }
            if required.contains(&name) {
                let node = self.root.resolve(schema);
                let value = self.value(&name, &node, depth + 1);
                members.insert(name.into_owned(), value);
            }
        }
        Value::Object(members)
    }
}

/// A value that the schema itself names.
fn offered(node: &SchemaNode<'_>) -> Option<Value> {
    let first = |list: Option<&'_ str>| {
        let first = read_elements(list?).find(|value| *value != "null")?;
        parsed(first)
    };
    let default = node.default.filter(|value| *value != "null");
    node.constant
        .and_then(parsed)
        .or_else(|| first(node.examples))
        .or_else(|| default.and_then(parsed))
        .or_else(|| first(node.choices))
}

fn parsed(value: &str) -> Option<Value> {
    (value.len() <= MAX_OFFERED_BYTES).then(|| serde_json::from_str(value).ok()).flatten()
}

/// A text of the right form: `<name>`, or one of its format.
fn text(name: &str, node: &SchemaNode<'_>) -> String {
    let format = node.format.and_then(string);
    let text = match format.as_deref() {
        Some("date-time") => "2026-01-31T12:00:00Z".to_owned(),
        Some("date") => "2026-01-31".to_owned(),
        Some("time") => "12:00:00Z".to_owned(),
        Some("email") => "ada@example.com".to_owned(),
        Some("uri" | "url") => "https://example.com/".to_owned(),
        Some("uuid") => "00000000-0000-4000-8000-000000000000".to_owned(),
        Some(_) | None => format!("<{}>", name.chars().take(64).collect::<String>()),
    };
    let count = |keyword: Option<&str>| keyword.and_then(|value| value.parse::<usize>().ok());
    let least = count(node.min_length).unwrap_or(0).min(MAX_MADE_UP);
    let most = count(node.max_length).unwrap_or(usize::MAX);
    let padding = least.saturating_sub(text.chars().count());
    text.chars().chain(std::iter::repeat_n('x', padding)).take(most).collect()
}

/// A number within the bounds.
fn number(node: &SchemaNode<'_>) -> f64 {
    let bound = |keyword: Option<&str>| keyword.and_then(|value| value.parse::<f64>().ok());
    let above = bound(node.above).map(|above| above + 1.0);
    let least = bound(node.minimum).into_iter().chain(above).fold(f64::MIN, f64::max);
    let most = bound(node.maximum).unwrap_or(f64::MAX);
    1.0_f64.max(least).min(most)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::schema::compile::compile;
    use crate::schema::judge::{JudgeScratch, Verdict};

    fn of(schema: &Value) -> Value {
        example(&serde_json::value::to_raw_value(schema).unwrap())
    }

    fn property(schema: Value) -> Value {
        json!({"$defs": {"Color": {"enum": ["red", "blue"]}}, "type": "object", "properties": {"p": schema}, "required": ["p"]})
    }

    #[test]
    fn an_example_fits_the_schema_that_it_is_made_of() {
        for (schema, made) in [
            (json!({"type": "string"}), json!("<p>")),
            (json!({"type": "string", "minLength": 5}), json!("<p>xx")),
            (json!({"type": "string", "maxLength": 2}), json!("<p")),
            (json!({"type": "string", "format": "date-time"}), json!("2026-01-31T12:00:00Z")),
            (json!({"type": "integer"}), json!(1)),
            (json!({"type": "integer", "minimum": 7.5}), json!(8)),
            (json!({"type": "integer", "maximum": -3}), json!(-3)),
            (json!({"type": "number", "exclusiveMinimum": 2}), json!(3.0)),
            (json!({"type": ["null", "boolean"]}), json!(true)),
            (json!({"enum": ["a", "b"]}), json!("a")),
            (json!({"const": [1]}), json!([1])),
            (json!({"type": "string", "default": "d"}), json!("d")),
            (json!({"type": "string", "examples": ["e"], "default": "d"}), json!("e")),
            (json!({"anyOf": [{"type": "null"}, {"type": "integer"}]}), json!(1)),
            (
                json!({"type": "array", "items": {"$ref": "#/$defs/Color"}, "minItems": 2}),
                json!(["red", "red"]),
            ),
            (json!({"type": "array", "maxItems": 0}), json!([])),
            (
                json!({"properties": {"a": {}, "b": {"type": "boolean"}}, "required": ["b"]}),
                json!({"b": true}),
            ),
            (json!({"type": "null"}), Value::Null),
        ] {
            let whole = property(schema);
            let made_of = of(&whole);
            assert_eq!(made_of, json!({"p": made}), "{whole}");
            let compiled = compile(whole.to_string().as_bytes(), &Default::default()).unwrap();
            let judged = compiled.judge(&[made_of.to_string().into()], &mut JudgeScratch::new());
            assert_eq!(judged.verdict, Verdict::Conforms, "{whole}: {made_of}");
        }
    }

    #[test]
    fn what_loops_or_is_wide_or_odd_ends() {
        let tree = json!({"$defs": {"Tree": {"properties": {"l": {"$ref": "#/$defs/Tree"}, "r": {"$ref": "#/$defs/Tree"}}, "required": ["l", "r"]}}, "$ref": "#/$defs/Tree"});
        assert!(of(&tree).to_string().len() < 4096);
        let names: Vec<_> = (0..300).map(|n| format!("p{n}")).collect();
        let wide: Map<_, _> = names.iter().map(|name| (name.clone(), json!({}))).collect();
        let made = of(&json!({"properties": wide, "required": names}));
        assert_eq!(made.as_object().unwrap().len(), MAX_MEMBERS);
        let huge = of(&property(
            json!({"type": "string", "minLength": 1_000_000_000, "default": "y".repeat(9999)}),
        ));
        assert!(huge.to_string().len() < 1024);
        for odd in [
            json!({"required": 7}),
            json!({"properties": []}),
            json!({"properties": {"p": 7}, "required": ["p"]}),
        ] {
            of(&odd);
        }
    }
}
