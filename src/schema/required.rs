//! Which members the objects of a schema require, by the places of those objects: what is asked of each null that
//! stands where a value is meant. Kept beside the compiled forms, which do not tell it.

use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64;

use crate::json::pointer::token;

/// Applicators whose parts judge the same value as the schema they stand in.
const SAME_VALUE: [&str; 3] = ["anyOf", "oneOf", "allOf"];

/// The members that are required, as hashes of the object's place and the member's name: a collision lets a null be
/// taken for one that is missed, which is then judged as it is written.
#[derive(Debug, Default)]
pub(super) struct RequiredMembers(Box<[u64]>);

impl RequiredMembers {
    /// Those of every object in `schema`.
    pub(super) fn of(schema: &Value) -> Self {
        let mut found = Vec::new();
        collect(schema, &mut String::new(), &mut found);
        found.sort_unstable();
        found.dedup();
        Self(found.into())
    }

    /// Whether a null at `place` of a document, which the subschema at `schema` does not take, is the same as no member:
    /// one that need not be there. Many clients write those that are absent so, and servers take them so (MCP 2026-07-28
    /// §Custom Headers from Tool Parameters has null and absent alike).
    pub(super) fn may_lack(&self, place: &str, schema: Option<&str>) -> bool {
        let Some((_, name)) = place.rsplit_once('/') else { return false };
        // Where the member's schema stands elsewhere ($ref), the object's is known of the root alone.
        let within = schema.map(of_value).and_then(|at| {
            at.strip_suffix(name).and_then(|object| object.strip_suffix("/properties/"))
        });
        let object = within.or((place.len() == name.len() + 1).then_some(""));
        // An item of an array has a place, not a name.
        let is_item = object.is_none() && name.bytes().all(|byte| byte.is_ascii_digit());
        !is_item && !object.is_some_and(|object| self.has(object, name))
    }

    fn has(&self, object: &str, name: &str) -> bool {
        self.0.binary_search(&key(object, name)).is_ok()
    }
}

/// The schema of the value that a part of it judges.
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

fn key(object: &str, name: &str) -> u64 {
    // No name in a pointer has a slash.
    xxh3_64(format!("{object}/{name}").as_bytes())
}

/// Goes as deep as schemas are allowed to be.
fn collect(value: &Value, at: &mut String, found: &mut Vec<u64>) {
    let end = at.len();
    let mut below = |name: &str, value: &Value| {
        at.push('/');
        at.push_str(name);
        collect(value, at, found);
        at.truncate(end);
    };
    match value {
        Value::Object(members) => {
            members.iter().for_each(|(name, value)| below(&token(name), value));
            let required = members.get("required").and_then(Value::as_array);
            let names = required.into_iter().flatten().filter_map(Value::as_str);
            found.extend(names.map(|name| key(at, &token(name))));
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(place, item)| below(&place.to_string(), item));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_lacking_is_told_by_the_object_that_a_member_belongs_to() {
        let schema = serde_json::json!({
            "required": ["b", "x/y"],
            "properties": {"d": {"required": ["e"]}, "anyOf": {"required": ["0"]}},
            "$defs": {"n": {"required": ["m"]}},
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
            ("/f/0", Some("/properties/f/items"), false),
            ("", Some(""), false),
        ] {
            assert_eq!(required.may_lack(place, at), lacking, "{place} {at:?}");
        }
    }
}
