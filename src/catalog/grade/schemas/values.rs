//! What a schema says of a value as a whole: `type`, `enum` and `const`. Pure.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::relation::{Relation, both};

/// How the values that `now` allows relate to those that `before` did.
pub(super) fn values(before: &Map<String, Value>, now: &Map<String, Value>) -> Relation {
    let keywords = ["type", "enum", "const"];
    if keywords.iter().all(|name| before.get(*name) == now.get(*name)) {
        return Relation::Equal;
    }
    let (Some(old_types), Some(new_types)) = (types(before), types(now)) else {
        return Relation::Wider;
    };
    let (Some(old), Some(new)) = (listed(before), listed(now)) else { return Relation::Wider };
    let kept = match (&old, &new) {
        (None, None) => Relation::Equal,
        (None, Some(_)) => Relation::Narrower,
        (Some(_), None) => Relation::Wider,
        (Some(old), Some(new)) => match new.iter().all(|value| old.contains(value)) {
            true if old.iter().all(|value| new.contains(value)) => Relation::Equal,
            true => Relation::Narrower,
            false => Relation::Wider,
        },
    };
    let same = old_types == new_types;
    // Values that are listed have the types that they have.
    let new_types = match &new {
        Some(listed) if !same => listed.iter().map(|value| type_of(value)).collect(),
        Some(_) | None => new_types,
    };
    let types = match same || new_types.iter().all(|of| fits(of, &old_types)) {
        true if same => Relation::Equal,
        true => Relation::Narrower,
        false => Relation::Wider,
    };
    both(kept, types)
}

const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];

fn fits(of: &str, types: &BTreeSet<&str>) -> bool {
    types.contains(of) || (of == "integer" && types.contains("number"))
}

fn types(schema: &Map<String, Value>) -> Option<BTreeSet<&str>> {
    let known = |name: &Value| TYPES.into_iter().find(|known| name == *known);
    match schema.get("type") {
        None => Some(TYPES.into()),
        Some(Value::Array(names)) => names.iter().map(known).collect(),
        Some(name) => Some([known(name)?].into()),
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// The values that `enum` or `const` allow; `None` in it where neither stands.
#[expect(clippy::option_option, reason = "not readable, or not there")]
fn listed(schema: &Map<String, Value>) -> Option<Option<Vec<&Value>>> {
    let of_enum = match schema.get("enum") {
        None => None,
        Some(Value::Array(values)) => Some(values.iter().collect::<Vec<_>>()),
        Some(_) => return None,
    };
    match (of_enum, schema.get("const")) {
        (listed, None) => Some(listed),
        (None, Some(value)) => Some(Some(vec![value])),
        // Which of them are alike is for numbers not as easy as it looks.
        (Some(_), Some(_)) => None,
    }
}
