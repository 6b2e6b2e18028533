//! Required members of a schema's objects, by place, for the treatment of nulls. The compiled forms do not expose them.

use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use mcpproxy_json::pointer::token;

/// Applicators whose subschemas apply to the same value as their schema.
const SAME_VALUE: [&str; 3] = ["anyOf", "oneOf", ALL_OF];
/// Applicator whose subschemas must all hold.
const ALL_OF: &str = "allOf";

/// Required members, as hashes of the object's place and the member's name. After a collision, an optional null counts as required and is
/// validated as written.
#[derive(Debug, Default)]
pub(super) struct RequiredMembers(Box<[u64]>);

impl RequiredMembers {
    /// Required members of every object in `schema`.
    pub(super) fn of(schema: &Value) -> Self {
        let mut found = Vec::new();
        collect(schema, ROOT, &mut found);
        found.sort_unstable();
        found.dedup();
        Self(found.into())
    }

    /// Whether a null at `place` of a document, refused by the subschema at `schema`, counts as an absent optional member. Many clients
    /// write absent members as null, and servers accept this (MCP 2026-07-28 §Custom Headers from Tool Parameters treats both the same).
    pub(super) fn may_lack(&self, place: &str, schema: Option<&str>) -> bool {
        let Some((_, name)) = place.rsplit_once('/') else { return false };
        // If the member's schema is elsewhere (`$ref`), the object's schema is known only for the root.
        let within = schema.map(of_value).and_then(|at| {
            at.strip_suffix(name).and_then(|object| object.strip_suffix("/properties/"))
        });
        let object = within.or((place.len() == name.len() + 1).then_some(""));
        // An item of an array has an index, not a name.
        let is_item = object.is_none() && name.bytes().all(|byte| byte.is_ascii_digit());
        !is_item && !object.is_some_and(|object| self.has(object, name))
    }

    fn has(&self, object: &str, name: &str) -> bool {
        self.0.binary_search(&below(place(object), name)).is_ok()
    }
}

/// Pointer of the outermost schema that applies to the same value.
fn of_value(mut at: &str) -> &str {
    while let Some((list, _)) = at.rsplit_once('/').filter(|(_, place)| is_index(place))
        && let Some((schema, _)) = list.rsplit_once('/').filter(|(_, of)| SAME_VALUE.contains(of))
    {
        at = schema;
    }
    at
}

fn is_index(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Hash of the schema's root.
const ROOT: u64 = 0;

/// Hash of a name at a place, derived from the hash of its parent, so that a long name is hashed only once.
fn below(place: u64, name: &str) -> u64 {
    xxh3_64_with_seed(name.as_bytes(), place)
}

/// Hash of the place that a pointer refers to. A subschema of [`ALL_OF`] has the place of its schema.
fn place(pointer: &str) -> u64 {
    let mut tokens = pointer.split('/').skip(1).peekable();
    let mut place = ROOT;
    while let Some(token) = tokens.next() {
        if token == ALL_OF && tokens.next_if(|part| is_index(part)).is_some() {
            continue;
        }
        place = below(place, token);
    }
    place
}

/// Collects the required members. Recursion is bounded by the nesting of schemas.
fn collect(value: &Value, at: u64, found: &mut Vec<u64>) {
    match value {
        Value::Object(members) => {
            for (name, value) in members {
                match value {
                    Value::Array(parts) if name == ALL_OF => {
                        parts.iter().for_each(|part| collect(part, at, found));
                    }
                    _ => collect(value, below(at, &token(name)), found),
                }
            }
            let required = members.get("required").and_then(Value::as_array);
            let names = required.into_iter().flatten().filter_map(Value::as_str);
            found.extend(names.map(|name| below(at, &token(name))));
        }
        Value::Array(items) => {
            for (number, item) in items.iter().enumerate() {
                collect(item, below(at, &number.to_string()), found);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn optional_members_are_those_of_their_object() {
        let schema = serde_json::json!({
            "required": ["b", "x/y"],
            "properties": {"d": {"required": ["e"]}, "anyOf": {"required": ["0"]}},
            "$defs": {"n": {"required": ["m"]}},
            "allOf": [{"properties": {"b": {}, "s": {}}}, {"required": ["s"]}],
        });
        let required = RequiredMembers::of(&schema);
        for (place, at, lacking) in [
            ("/a", Some("/properties/a"), true),
            ("/b", Some("/properties/b"), false),
            ("/b", Some("/$defs/elsewhere"), false),
            ("/a", Some("/$defs/elsewhere"), true),
            ("/a", None, true),
            ("/b", Some("/properties/b/anyOf/1/oneOf/0"), false),
            ("/x~1y", Some("/properties/x~1y"), false),
            ("/d/e", Some("/properties/d/properties/e"), false),
            ("/d/e", Some("/properties/d/properties/e/anyOf/0"), false),
            ("/d/f", Some("/properties/d/properties/f"), true),
            ("/k/m", Some("/$defs/n/properties/m"), false),
            ("/anyOf/0", Some("/properties/anyOf/properties/0"), false),
            ("/b", Some("/allOf/0/properties/b"), false),
            ("/s", Some("/allOf/0/properties/s"), false),
            ("/t", Some("/allOf/0/properties/t"), true),
            ("/f/0", Some("/properties/f/items"), false),
            ("", Some(""), false),
        ] {
            assert_eq!(required.may_lack(place, at), lacking, "{place} {at:?}");
        }
    }

    /// Would take hours if the whole place were hashed for each name.
    #[test]
    fn long_name_above_many_required_members_is_hashed_once() {
        let long = "n".repeat(4 << 20);
        let schema = serde_json::json!({ &long: {"required": vec!["a"; 1 << 20]} });
        let required = RequiredMembers::of(&schema);
        assert_eq!(required.0.len(), 1);
        assert!(required.has(&format!("/{long}"), "a"));
    }
}
