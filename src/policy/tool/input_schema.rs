//! Partial reader of input schemas: the keywords that describe a value, for signatures and example arguments. Pure.
//!
//! Bounds how far references are followed. Does not validate. Builds no tree: a node consists of slices of the server's
//! text.

use std::borrow::Cow;
use std::cell::Cell;

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use mcpproxy_json::members::{elements, members, string};
use mcpproxy_json::pointer::value_at;

/// Maximum number of references followed in one schema.
const MAX_REFERENCES: usize = 32;
/// Maximum length of a chain of references and single-element `allOf`.
const MAX_CHAIN: usize = 8;
/// Maximum number of parts of a JSON Pointer.
const MAX_POINTER_PARTS: usize = 8;
/// Maximum number of properties read from an object.
pub(super) const MAX_PROPERTIES: usize = 256;
/// Maximum number of names read from `required`.
const MAX_REQUIRED: usize = 256;

/// A whole input schema and its remaining reference budget.
#[derive(Debug)]
pub(super) struct SchemaRoot<'a> {
    text: &'a str,
    references: Cell<usize>,
}

/// Keywords of one schema, as written.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SchemaNode<'a> {
    pub(super) kind: Option<&'a str>,
    pub(super) properties: Option<&'a str>,
    pub(super) required: Option<&'a str>,
    pub(super) additional: Option<&'a str>,
    pub(super) items: Option<&'a str>,
    pub(super) any_of: Option<&'a str>,
    all_of: Option<&'a str>,
    pub(super) choices: Option<&'a str>,
    pub(super) constant: Option<&'a str>,
    pub(super) default: Option<&'a str>,
    pub(super) examples: Option<&'a str>,
    pub(super) format: Option<&'a str>,
    pub(super) minimum: Option<&'a str>,
    pub(super) above: Option<&'a str>,
    pub(super) maximum: Option<&'a str>,
    pub(super) min_length: Option<&'a str>,
    pub(super) max_length: Option<&'a str>,
    pub(super) min_items: Option<&'a str>,
    pub(super) max_items: Option<&'a str>,
    reference: Option<&'a str>,
}

/// JSON Schema types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JsonType {
    String,
    Integer,
    Number,
    Boolean,
    Array,
    Object,
    Null,
}

impl JsonType {
    const ALL: [Self; 7] = [
        Self::String,
        Self::Integer,
        Self::Number,
        Self::Boolean,
        Self::Array,
        Self::Object,
        Self::Null,
    ];

    /// Spelling in `type`.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Boolean => "boolean",
            Self::Array => "array",
            Self::Object => "object",
            Self::Null => "null",
        }
    }

    fn parse(value: &str) -> Option<Self> {
        let word = string(value)?;
        Self::ALL.into_iter().find(|kind| kind.as_str() == word)
    }
}

impl<'a> SchemaRoot<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, references: Cell::new(MAX_REFERENCES) }
    }

    /// Keywords of the root schema.
    pub(super) fn node(&self) -> SchemaNode<'a> {
        self.resolve(self.text)
    }

    /// Keywords of the subschema `text`. Follows references within the root; keywords next to a reference are included.
    /// A non-object has no keywords.
    pub(super) fn resolve(&self, text: &'a str) -> SchemaNode<'a> {
        let mut node = SchemaNode::read(text);
        for _ in 0..MAX_CHAIN {
            let target = node.reference.take().and_then(|pointer| self.target(pointer));
            // If a reference has siblings, schema generators write it as an `allOf` that contains only the reference.
            let mut all_of = read_elements(node.all_of.take().unwrap_or_default());
            let Some(other) = target.or_else(|| all_of.next()) else { break };
            node = node.over(SchemaNode::read(other));
        }
        node
    }

    /// Target of a `$ref` by JSON Pointer within this schema (anchors are not followed).
    fn target(&self, reference: &str) -> Option<&'a str> {
        self.references.set(self.references.get().checked_sub(1)?);
        let reference = string(reference)?;
        let fragment = reference.strip_prefix('#')?;
        let pointer = percent_encoding::percent_decode_str(fragment).decode_utf8().ok()?;
        let parts = pointer.bytes().filter(|byte| *byte == b'/').count();
        (parts <= MAX_POINTER_PARTS).then(|| value_at(self.text, &pointer).ok()).flatten()
    }
}

impl<'a> SchemaNode<'a> {
    fn read(text: &'a str) -> Self {
        let mut node = Self::default();
        for (name, value) in members(text).into_iter().flatten().flatten() {
            let keyword = match &*name {
                "type" => &mut node.kind,
                "properties" => &mut node.properties,
                "required" => &mut node.required,
                "additionalProperties" => &mut node.additional,
                "items" => &mut node.items,
                "anyOf" | "oneOf" => &mut node.any_of,
                "allOf" => &mut node.all_of,
                "enum" => &mut node.choices,
                "const" => &mut node.constant,
                "default" => &mut node.default,
                "examples" => &mut node.examples,
                "format" => &mut node.format,
                "minimum" => &mut node.minimum,
                "exclusiveMinimum" => &mut node.above,
                "maximum" => &mut node.maximum,
                "minLength" => &mut node.min_length,
                "maxLength" => &mut node.max_length,
                "minItems" => &mut node.min_items,
                "maxItems" => &mut node.max_items,
                "$ref" => &mut node.reference,
                _ => continue,
            };
            *keyword = Some(value);
        }
        node
    }

    /// Keywords of this node; missing ones are taken from `other`.
    fn over(self, other: Self) -> Self {
        Self {
            kind: self.kind.or(other.kind),
            properties: self.properties.or(other.properties),
            required: self.required.or(other.required),
            additional: self.additional.or(other.additional),
            items: self.items.or(other.items),
            any_of: self.any_of.or(other.any_of),
            all_of: self.all_of.or(other.all_of),
            choices: self.choices.or(other.choices),
            constant: self.constant.or(other.constant),
            default: self.default.or(other.default),
            examples: self.examples.or(other.examples),
            format: self.format.or(other.format),
            minimum: self.minimum.or(other.minimum),
            above: self.above.or(other.above),
            maximum: self.maximum.or(other.maximum),
            min_length: self.min_length.or(other.min_length),
            max_length: self.max_length.or(other.max_length),
            min_items: self.min_items.or(other.min_items),
            max_items: self.max_items.or(other.max_items),
            reference: self.reference.or(other.reference),
        }
    }

    /// Stated types, otherwise the type implied by other keywords; empty if any type is allowed.
    pub(super) fn types(&self) -> Vec<JsonType> {
        if let Some(kind) = self.kind {
            let several = read_elements(kind).take(JsonType::ALL.len()).filter_map(JsonType::parse);
            return JsonType::parse(kind).into_iter().chain(several).collect();
        }
        match (self.properties, self.items) {
            (Some(_), _) => vec![JsonType::Object],
            (None, Some(_)) => vec![JsonType::Array],
            (None, None) => Vec::new(),
        }
    }

    /// Names in `required`, at most [`MAX_REQUIRED`].
    pub(super) fn required_names(&self) -> Vec<Cow<'a, str>> {
        let names = read_elements(self.required.unwrap_or_default()).filter_map(string);
        names.take(MAX_REQUIRED).collect()
    }

    /// Properties with their schemas, in order, at most [`MAX_PROPERTIES`].
    pub(super) fn properties(&self) -> impl Iterator<Item = (Cow<'a, str>, &'a str)> + use<'a> {
        let all = members(self.properties.unwrap_or_default()).into_iter().flatten().flatten();
        all.take(MAX_PROPERTIES)
    }
}

/// Elements of an array up to the first that does not parse; any other value yields none.
pub(super) fn read_elements(text: &str) -> impl Iterator<Item = &str> {
    elements(text).into_iter().flatten().map_while(Result::ok)
}

/// Maximum size of a value copied from the schema, in bytes.
const MAX_OFFERED_BYTES: usize = 512;
/// Maximum depth of an example.
const MAX_DEPTH: usize = 6;
/// Maximum number of members of an object.
const MAX_MEMBERS: usize = 24;
const MAX_ELEMENTS: usize = 4;
/// Maximum number of values in an example.
const MAX_VALUES: usize = 128;
/// Maximum number of characters generated for `minLength`.
const MAX_MADE_UP: usize = 256;

/// Example arguments for a tool: required members, with values from the schema (constants, defaults, examples,
/// choices) or of the right type. Patterns and conditions are ignored, so the result may not validate.
pub fn example(input_schema: &RawValue) -> Value {
    let root = SchemaRoot::new(input_schema.get());
    let mut sketch = Sketch { root: &root, left: MAX_VALUES };
    sketch.object(&root.node(), 0)
}

struct Sketch<'a> {
    root: &'a SchemaRoot<'a>,
    /// Remaining value budget.
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
            let non_null = nodes.find(|node| node.types() != [JsonType::Null]);
            return non_null.map_or(Value::Null, |node| self.value(name, &node, depth + 1));
        }
        let types = node.types();
        let non_null = types.iter().find(|kind| **kind != JsonType::Null).or(types.first());
        match non_null.copied().unwrap_or(JsonType::String) {
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
        let max = count(node.max_items).unwrap_or(MAX_ELEMENTS).min(MAX_ELEMENTS);
        let wanted = count(node.min_items).unwrap_or(1).max(1).min(max);
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

/// A value given by the schema.
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

/// A placeholder `<name>`, or a value of the stated format.
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
    let min = count(node.min_length).unwrap_or(0).min(MAX_MADE_UP);
    let max = count(node.max_length).unwrap_or(usize::MAX);
    let padding = min.saturating_sub(text.chars().count());
    text.chars().chain(std::iter::repeat_n('x', padding)).take(max).collect()
}

fn number(node: &SchemaNode<'_>) -> f64 {
    let bound = |keyword: Option<&str>| keyword.and_then(|value| value.parse::<f64>().ok());
    let above = bound(node.above).map(|above| above + 1.0);
    let min = bound(node.minimum).into_iter().chain(above).fold(f64::MIN, f64::max);
    let max = bound(node.maximum).unwrap_or(f64::MAX);
    1.0_f64.max(min).min(max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_followed_only_within_the_schema() {
        let text = r##"{"$defs":{"a~b":{"type":"integer"},"list":[{"type":"null"}],"loop":{"$ref":"#/$defs/loop"}}}"##;
        let kind = |schema: &str| {
            let schema = schema.to_owned().leak();
            SchemaRoot::new(text).resolve(schema).kind
        };
        assert_eq!(kind(r##"{"$ref":"#/$defs/a~0b"}"##), Some("\"integer\""));
        assert_eq!(kind(r##"{"$ref":"#/%24defs/list/0"}"##), Some("\"null\""));
        assert_eq!(kind(r##"{"allOf":[{"$ref":"#/$defs/a~0b"}]}"##), Some("\"integer\""));
        assert_eq!(kind(r##"{"type":"string","$ref":"#/$defs/a~0b"}"##), Some("\"string\""));
        for nowhere in ["#/$defs/loop", "#/none", "#name", "https://x/y", "#/$defs/list/9"] {
            assert_eq!(kind(&format!(r#"{{"$ref":"{nowhere}"}}"#)), None, "{nowhere}");
        }
        let root = SchemaRoot::new(text);
        let integer = r##"{"$ref":"#/$defs/a~0b"}"##;
        let followed = (0..100).filter(|_| root.resolve(integer).kind.is_some()).count();
        assert_eq!(followed, MAX_REFERENCES, "followed references are bounded");
    }
}

#[cfg(test)]
mod example_tests {
    use serde_json::json;

    use super::*;
    use mcpproxy_schema::compile::compile;
    use mcpproxy_schema::judge::{JudgeScratch, Verdict};

    fn of(schema: &Value) -> Value {
        example(&serde_json::value::to_raw_value(schema).unwrap())
    }

    fn property(schema: Value) -> Value {
        json!({"$defs": {"Color": {"enum": ["red", "blue"]}}, "type": "object", "properties": {"p": schema}, "required": ["p"]})
    }

    #[test]
    fn example_validates_against_its_schema() {
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
    fn example_of_a_looping_wide_or_odd_schema_is_bounded() {
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
