//! A document and a schema as tools have them, in any size.

use serde_json::{Value, json};

/// The sizes that the budgets name: about 1 KB, 13 KB, 1.3 MB and 13 MB.
pub(crate) const SIZES: [(&str, usize); 4] =
    [("1KB", 4), ("13KB", 55), ("1.3MB", 5_500), ("13MB", 55_000)];

/// A list of `count` issues, about 240 bytes each.
pub(crate) fn document(count: usize) -> Vec<u8> {
    let items: Vec<Value> = (0..count)
        .map(|i| {
            json!({
                "id": 1_000_000 + i,
                "title": format!("Issue number {i}: the parser stops at the second line"),
                "state": if i % 3 == 0 { "closed" } else { "open" },
                "url": format!("https://example.com/projects/mcpproxy/issues/{i}"),
                "labels": ["bug", "help wanted"],
                "score": i as f64 * 0.25,
                "locked": i % 2 == 0,
                "user": { "login": format!("user{i}"), "email": format!("user{i}@example.com") },
            })
        })
        .collect();
    json!({ "total": count, "items": items }).to_string().into_bytes()
}

/// The schema of such a list.
pub(crate) fn schema() -> Value {
    json!({
        "type": "object",
        "required": ["total", "items"],
        "properties": {
            "total": { "type": "integer", "minimum": 0 },
            "items": { "type": "array", "items": {
                "type": "object",
                "required": ["id", "title", "state", "user"],
                "properties": {
                    "id": { "type": "integer", "minimum": 1 },
                    "title": { "type": "string", "minLength": 1, "maxLength": 256 },
                    "state": { "enum": ["open", "closed"] },
                    "url": { "type": "string", "pattern": "^https://" },
                    "labels": { "type": "array", "items": { "type": "string" } },
                    "score": { "type": "number" },
                    "locked": { "type": "boolean" },
                    "user": {
                        "type": "object",
                        "required": ["login"],
                        "properties": {
                            "login": { "type": "string" },
                            "email": { "type": "string" },
                        },
                        "additionalProperties": false,
                    },
                },
            } },
        },
    })
}
