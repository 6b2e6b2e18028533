//! Target `arguments`: rules see arguments only if they are one JSON object in which no two keys differ by case alone.
//!
//! Input: the arguments.

use mcpproxy_json::fold;
use mcpproxy_policy::rules::{MAX_DEPTH, MAX_ELEMENTS, MAX_STRING_BYTES, readable};
use serde_json::Value;

pub fn run(data: &[u8]) {
    let shown = readable(data);
    let Ok(value) = serde_json::from_slice::<Value>(data) else {
        assert!(!shown, "text that is not JSON was accepted");
        return;
    };
    // A refused text may have two equal keys, of which `value` has only one; written again it is then shorter.
    if shown {
        assert!(value.is_object() && mappable(&value, 0));
    } else if value.is_object() {
        let again = value.to_string();
        assert!(again.len() < data.len() || !mappable(&value, 0) || !readable(again.as_bytes()));
    }
}

/// The reference's verdict on a value, computed from the document tree.
fn mappable(value: &Value, depth: usize) -> bool {
    if depth >= MAX_DEPTH && (value.is_array() || value.is_object()) {
        return false;
    }
    match value {
        Value::Null => false,
        Value::Bool(_) => true,
        Value::Number(number) => number.is_i64(),
        Value::String(text) => text.len() <= MAX_STRING_BYTES,
        Value::Array(elements) => {
            elements.len() <= MAX_ELEMENTS
                && elements.iter().all(|element| mappable(element, depth + 1))
                && elements.windows(2).all(|pair| kind(&pair[0]) == kind(&pair[1]))
        }
        Value::Object(members) => {
            let names: Vec<&String> = members.keys().collect();
            let twins = names
                .iter()
                .enumerate()
                .any(|(at, name)| names[at + 1..].iter().any(|other| fold::same(name, other)));
            members.len() <= MAX_ELEMENTS
                && !twins
                && members.values().all(|member| mappable(member, depth + 1))
        }
    }
}

fn kind(value: &Value) -> u8 {
    match value {
        Value::Null => 0,
        Value::Bool(_) => 1,
        Value::Number(_) => 2,
        Value::String(_) => 3,
        Value::Array(_) => 4,
        Value::Object(_) => 5,
    }
}
