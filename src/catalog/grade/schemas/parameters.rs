//! Which parameters a schema names. Pure.

use std::collections::BTreeSet;

use serde_json::Value;

use super::keywords::{DEFINITIONS, LISTS, MAPS, MAX_STEPS, SCHEMA};

/// True if `new` names a property that `old` does not name at the same place.
#[must_use]
pub fn names_a_new_parameter(old: &Value, new: &Value) -> bool {
    let mut known = BTreeSet::new();
    let mut room = MAX_STEPS;
    names(old, "", &mut room, &mut |name| {
        known.insert(name);
    });
    let mut found = false;
    names(new, "", &mut room, &mut |name| found |= !known.contains(&name));
    // Too many to be looked at: one of them may be new.
    found || (room == 0 && old != new)
}

/// Tells the name of each property that a schema has, with those above it. Branches of combined schemas count as the
/// place that they are for.
fn names(schema: &Value, above: &str, room: &mut u32, tell: &mut impl FnMut(String)) {
    let Value::Object(members) = schema else { return };
    for (keyword, value) in members {
        *room = room.saturating_sub(1);
        if *room == 0 {
            return;
        }
        let keyword = keyword.as_str();
        match value {
            Value::Object(named) if keyword == "properties" => {
                for (name, schema) in named {
                    let place = format!("{above}/{}", name.replace('~', "~0").replace('/', "~1"));
                    names(schema, &place, room, tell);
                    tell(place);
                }
            }
            Value::Object(named) if DEFINITIONS.contains(&keyword) => {
                for (name, schema) in named {
                    names(schema, &format!("#{name}"), room, tell);
                }
            }
            Value::Object(named) if MAPS.contains(&keyword) => {
                named.values().for_each(|schema| names(schema, above, room, tell));
            }
            Value::Object(_) if SCHEMA.contains(&keyword) => {
                names(value, above, room, tell);
            }
            Value::Array(list) if LISTS.contains(&keyword) => {
                list.iter().for_each(|schema| names(schema, above, room, tell));
            }
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_)
            | Value::Object(_) => {}
        }
    }
}
