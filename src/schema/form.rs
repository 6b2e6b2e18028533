//! Normalized form of a schema for both engines.
//!
//! Defines where a schema has subschemas, maps of subschemas, and values that only look like schemas. Drops unreachable parts, so that they
//! cannot make a schema unusable, and writes references as URIs. Neither the meaning of the schema nor the schema that agents see is
//! changed.
//!
//! Generators write references that are not valid URIs (`#/$defs/Page<Item>`), and other validators accept them: they
//! are encoded, which does not change the meaning of the schema.

use std::borrow::Cow;
use std::collections::HashSet;

use boon::Draft;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use serde_json::{Map, Value};

use crate::dialect;

/// Kind of content at a location in a schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LocationKind {
    /// A subschema, or a list of subschemas.
    Schema,
    /// An object whose members are subschemas.
    Schemas,
    /// A value without keywords.
    Value,
    /// Content of an unknown keyword.
    Unknown,
}

/// Keywords that hold definitions by name.
const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

/// Keywords that hold other subschemas by name.
const SCHEMAS: [&str; 4] = ["properties", "patternProperties", "dependentSchemas", "dependencies"];

/// Keywords that hold values to compare with.
const COMPARED: [&str; 2] = ["const", "enum"];

/// Keywords that do not affect validation.
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

/// Keywords that are kept in an object that is not a subschema but contains one: identity, dialect and reference.
const IDENTITY: [&str; 7] =
    ["$schema", "$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$ref"];

/// Content of member `name` of an object of the given kind.
pub(super) fn location_kind(kind: LocationKind, name: &str) -> LocationKind {
    let among = |names: &[&str]| names.contains(&name);
    match kind {
        LocationKind::Schema if among(&DEFINITIONS) || among(&SCHEMAS) => LocationKind::Schemas,
        LocationKind::Schema if among(&COMPARED) || among(&["default", "examples"]) => {
            LocationKind::Value
        }
        LocationKind::Schema | LocationKind::Schemas
            if kind == LocationKind::Schemas || among(&SUBSCHEMA_KEYWORDS) =>
        {
            LocationKind::Schema
        }
        LocationKind::Schema | LocationKind::Schemas | LocationKind::Unknown => {
            LocationKind::Unknown
        }
        LocationKind::Value => LocationKind::Value,
    }
}

impl LocationKind {
    /// Content of the items of a list at this location.
    pub(super) fn of_items(self) -> Self {
        match self {
            Self::Schemas => Self::Unknown,
            kind => kind,
        }
    }
}

/// Normalized schema.
pub(super) struct ReachedSchema {
    pub(super) schema: Value,
    /// All `$schema` keywords in the schema.
    pub(super) dialects: Vec<String>,
}

impl ReachedSchema {
    /// Reduces `schema` to the `reached` subschemas and their parents. `id` is the keyword of its dialect that identifies a resource.
    /// Recursion is bounded by the nesting of schemas.
    pub(super) fn of(schema: &Value, reached: &HashSet<*const Value>, id: &str) -> Self {
        let mut keep = Keep { reached, leading: HashSet::new(), id, dialects: Vec::new() };
        keep.lead(schema);
        let schema = keep.value(schema);
        Self { schema, dialects: keep.dialects }
    }
}

struct Keep<'a> {
    reached: &'a HashSet<*const Value>,
    /// Values that are reached, and values that contain a reached value.
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

    /// Reduces a value that is a subschema or contains one.
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
                // Items without subschemas keep their positions.
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

    /// Normalizes a keyword of a subschema.
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

/// Keywords of drafts 6 and 7 that boon applies next to a reference.
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

/// Removes from a schema the parts that boon refuses or misreads: unsupported patterns, the one format that cannot be redefined, and a
/// keyword of another dialect. Values that only look like keywords are unchanged. Recursion is bounded by the nesting of schemas.
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
        *format = dialect::REGEX.into();
    }
    let known = members.get("pattern").and_then(Value::as_str);
    if known.is_some_and(|pattern| beyond_boon.contains(pattern)) {
        members.remove("pattern");
    }
    if draft == Draft::V2020_12 {
        members.remove("$recursiveRef");
    }
    if matches!(draft, Draft::V6 | Draft::V7) && members.get("$ref").is_some_and(Value::is_string) {
        // Keywords next to a reference are ignored; boon does so only in draft 4.
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

/// Keywords whose string is a reference.
pub(super) const REFERENCES: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];

/// Characters that must be encoded in a path or query (RFC 3986, appendix A).
const OUTSIDE: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'<')
    .add(b'>')
    .add(b'[')
    .add(b'\\')
    .add(b']')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// Characters that must be encoded in a fragment, including a second number sign.
const OUTSIDE_FRAGMENT: &AsciiSet = &OUTSIDE.add(b'#');

/// Percent-encodes the characters of `reference` that a URI reference cannot contain. Encoded characters are unchanged; a percent sign that
/// is not part of an encoding becomes `%25`.
pub(super) fn encoded(reference: &str) -> Cow<'_, str> {
    let (head, fragment) = match reference.split_once('#') {
        Some((head, fragment)) => (head, Some(fragment)),
        None => (reference, None),
    };
    let (authority, path) = head.split_at(authority(head));
    let path = part(path, OUTSIDE);
    let fragment = fragment.map(|fragment| part(fragment, OUTSIDE_FRAGMENT));
    if matches!((&path, &fragment), (Cow::Borrowed(_), None | Some(Cow::Borrowed(_)))) {
        return Cow::Borrowed(reference);
    }
    let mark = if fragment.is_some() { "#" } else { "" };
    Cow::Owned(format!("{authority}{path}{mark}{}", fragment.unwrap_or_default()))
}

/// End of scheme and authority, in which brackets are valid.
fn authority(head: &str) -> usize {
    let Some(from) = head.find("//") else { return 0 };
    let scheme = head.get(..from).unwrap_or_default();
    if !(scheme.is_empty() || scheme.ends_with(':') && !scheme.contains('/')) {
        return 0;
    }
    let rest = head.get(from + 2..).unwrap_or_default();
    from + 2 + rest.find(['/', '?']).unwrap_or(rest.len())
}

fn part<'a>(text: &'a str, outside: &'static AsciiSet) -> Cow<'a, str> {
    if !text.contains('%') {
        return utf8_percent_encode(text, outside).into();
    }
    let mut pieces = text.split('%');
    let first = pieces.next().unwrap_or_default();
    let mut all = utf8_percent_encode(first, outside).to_string();
    for piece in pieces {
        let encodes =
            piece.as_bytes().get(..2).is_some_and(|two| two.iter().all(u8::is_ascii_hexdigit));
        all.push_str(if encodes { "%" } else { "%25" });
        all.extend(utf8_percent_encode(piece, outside));
    }
    if all == text { Cow::Borrowed(text) } else { Cow::Owned(all) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_that_look_like_keywords_are_unchanged_for_boon() {
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

#[cfg(test)]
mod reference_tests {
    use super::*;

    #[test]
    fn only_invalid_uri_characters_are_encoded() {
        for (written, expected) in [
            ("#/$defs/Page<Item>", "#/$defs/Page%3CItem%3E"),
            ("#/definitions/A|B", "#/definitions/A%7CB"),
            ("#/definitions/List[int]", "#/definitions/List%5Bint%5D"),
            ("#/$defs/two words ", "#/$defs/two%20words%20"),
            ("#/$defs/Größe", "#/$defs/Gr%C3%B6%C3%9Fe"),
            ("#/$defs/100%", "#/$defs/100%25"),
            ("#/$defs/%7C%zz%", "#/$defs/%7C%25zz%25"),
            ("#/$defs/a#b", "#/$defs/a%23b"),
            ("Page<Item>#", "Page%3CItem%3E#"),
            ("http://[::1]:80/a[b]", "http://[::1]:80/a%5Bb%5D"),
            ("a//[b]", "a//%5Bb%5D"),
        ] {
            assert_eq!(encoded(written), expected);
        }
        for right in ["", "#", "#/$defs/a~1b~0c", "#/$defs/%E4", "a?b=c/d#e", "urn:x:y", "./a/../b"]
        {
            assert!(matches!(encoded(right), Cow::Borrowed(same) if same == right), "{right}");
        }
    }
}
