//! One place of an input schema, read from its text: the keywords that say what a value looks like. Pure.
//!
//! Owns what both the signature and the example of a tool are made of, and the bounds on what is followed. It judges
//! nothing: whether arguments fit is the engines' to say. No tree is built; a place is slices of the server's text.

use std::borrow::Cow;
use std::cell::Cell;

use crate::json::elements::elements;
use crate::json::members::{members, string};
use crate::json::pointer::value_at;

/// Most references that are followed in one schema.
const MAX_REFERENCES: usize = 32;
/// Longest chain of references, and of `allOf` with one element.
const MAX_CHAIN: usize = 8;
/// Most parts of a JSON Pointer.
const MAX_POINTER_PARTS: usize = 8;
/// Most properties of an object that are looked at.
pub(super) const MAX_PROPERTIES: usize = 256;
/// Most names in `required` that are looked at.
const MAX_REQUIRED: usize = 256;

/// A whole input schema, and how much of it may still be followed.
#[derive(Debug)]
pub(super) struct SchemaRoot<'a> {
    text: &'a str,
    references: Cell<usize>,
}

/// What one schema says of a value; each keyword as it is written.
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

/// The types of JSON Schema.
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

    /// Its spelling in `type`.
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
    /// The schema that `text` is, a JSON value.
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, references: Cell::new(MAX_REFERENCES) }
    }

    /// What the whole schema says.
    pub(super) fn node(&self) -> SchemaNode<'a> {
        self.resolve(self.text)
    }

    /// What the schema `text`, a part of this one, says: references within it are followed, and what stands beside a
    /// reference counts too. A schema that is no object says nothing.
    pub(super) fn resolve(&self, text: &'a str) -> SchemaNode<'a> {
        let mut node = SchemaNode::read(text);
        for _ in 0..MAX_CHAIN {
            let target = node.reference.take().and_then(|pointer| self.target(pointer));
            // A schema generator writes a reference with something beside it as `allOf` of the one reference.
            let mut all_of = read_elements(node.all_of.take().unwrap_or_default());
            let Some(other) = target.or_else(|| all_of.next()) else { break };
            node = node.over(SchemaNode::read(other));
        }
        node
    }

    /// The part that a `$ref` names, if it is one of this schema by a pointer (an anchor is not followed).
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

    /// What this says, and where it says nothing, what `other` does.
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

    /// The types that it names, or, where it names none, the one that its keywords are about; empty for any.
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

    /// The names in `required`, at most 256.
    pub(super) fn required_names(&self) -> Vec<Cow<'a, str>> {
        let names = read_elements(self.required.unwrap_or_default()).filter_map(string);
        names.take(MAX_REQUIRED).collect()
    }

    /// The properties with their schemas, at most 256, in their order.
    pub(super) fn properties(&self) -> impl Iterator<Item = (Cow<'a, str>, &'a str)> + use<'a> {
        let all = members(self.properties.unwrap_or_default()).into_iter().flatten().flatten();
        all.take(MAX_PROPERTIES)
    }
}

/// The elements of an array, as far as they can be read; none of another value.
pub(super) fn read_elements(text: &str) -> impl Iterator<Item = &str> {
    elements(text).into_iter().flatten().map_while(Result::ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_followed_within_the_schema_and_no_further() {
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
        assert_eq!(followed, MAX_REFERENCES, "what is followed is bounded");
    }
}
