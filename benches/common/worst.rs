//! Worst-case schemas and documents: alternatives that multiply, patterns without a small automaton, items with equal
//! hashes, and large numbers of errors.

use serde_json::{Map, Value, json};

/// Name, schema and document of each case; the documents are small if `quick`.
pub(crate) fn cases(quick: bool) -> Vec<(&'static str, Value, String)> {
    let size = if quick { 1 << 10 } else { 5 << 20 };
    let text = |unit: &str, size: usize| format!("\"{}!\"", unit.repeat(size / unit.len()));
    let items = |item: &str, size: usize| {
        let mut list = item.to_owned();
        while list.len() < size {
            list.push(',');
            list.push_str(item);
        }
        format!("[{list}]")
    };
    let nested = |depth: usize, inner: &str| {
        format!("{}{inner}{}", "{\"a\":".repeat(depth), "}".repeat(depth))
    };
    let mut cases = vec![
        ("nothing to check", json!(true), items("0", size)),
        (
            "an integer each, all of them texts",
            json!({"items": {"type": "integer"}}),
            items("\"\"", size),
        ),
        ("alternatives multiply to the bound", chain(12, |next| next), "\"x\"".into()),
        ("the same for each item", for_items(chain(11, |next| next)), items("\"x\"", size)),
        ("the same for 2000 items", for_items(chain(9, |next| next)), items("\"x\"", 8000)),
        (
            "alternatives multiply by depth",
            chain(25, |next| json!({"properties": {"a": next}, "required": ["a"]})),
            nested(25, "\"x\""),
        ),
        (
            "unique items",
            json!({"uniqueItems": true}),
            format!("[{}]", (0..size / 7).map(|i| i.to_string()).collect::<Vec<_>>().join(",")),
        ),
        (
            "unique items that collide",
            json!({"uniqueItems": true}),
            format!("[{}]", bracketings(if quick { 5 } else { 11 }).join(",")),
        ),
        (
            "enum of 10000",
            json!({"items": {"enum": (0..10_000).map(|i| format!("value {i:06}")).collect::<Vec<_>>()}}),
            items("\"value 009999\"", size),
        ),
        ("unevaluated, nested", unevaluated(20), nested(60, "1")),
        ("nested quantifiers", json!({"pattern": "^(a+)+$"}), text("a", size)),
        ("counted, no small automaton", json!({"pattern": "a[ab]{500}[c-z]"}), text("ab", size)),
        ("the same, short text", json!({"pattern": "a[ab]{500}[c-z]"}), text("ab", 10_000)),
        ("counted twice", json!({"pattern": "(a[ab]{1,400}b){3}[c-z]"}), text("aab", 10_000)),
        ("counted, overlapping", json!({"pattern": "(.*a){20}$"}), text("a", size)),
        ("words", json!({"pattern": "^(\\w+\\s?)+$"}), text("word ", size)),
        ("words, counted", json!({"pattern": "(\\w{1,30}\\s?){1,20}$"}), text("wörd ", size)),
        ("look-around", json!({"pattern": "(?=.*x)(a|aa)+y"}), text("a", size)),
        ("back-reference", json!({"pattern": "^(a+)\\1+b$"}), text("a", 1 << 10)),
        ("names against 200 patterns", many_patterns(200), wide(size)),
        ("the same for 1500 names", many_patterns(200), wide(24_000)),
    ];
    if quick {
        cases.truncate(12);
    }
    cases
}

/// A chain of definitions. Each consists of two alternatives, both of which refer to the next definition.
fn chain(length: usize, wrap: impl Fn(Value) -> Value) -> Value {
    let mut defs = Map::new();
    for at in 0..length {
        let next = || wrap(json!({ "$ref": format!("#/$defs/d{}", at + 1) }));
        defs.insert(format!("d{at}"), json!({ "anyOf": [next(), next()] }));
    }
    defs.insert(format!("d{length}"), json!({ "type": "integer" }));
    json!({ "$ref": "#/$defs/d0", "$defs": defs })
}

/// Changes the schema so that the chain applies to each item instead of the whole document.
fn for_items(mut chain: Value) -> Value {
    if let Some(members) = chain.as_object_mut() {
        let first = members.remove("$ref");
        members.insert("items".into(), json!({ "$ref": first }));
    }
    chain
}

/// Nested arrays that differ only in their brackets: every way to combine the leaves in pairs.
fn bracketings(leaves: usize) -> Vec<String> {
    if leaves == 1 {
        return vec!["1".to_owned()];
    }
    (1..leaves)
        .flat_map(|left| {
            let rights = bracketings(leaves - left);
            bracketings(left).into_iter().flat_map(move |left| {
                rights.clone().into_iter().map(move |right| format!("[{left},{right}]"))
            })
        })
        .collect()
}

fn unevaluated(levels: usize) -> Value {
    let mut inner = json!({ "$ref": "#" });
    for _ in 0..levels {
        inner = json!({ "allOf": [inner], "unevaluatedProperties": false });
    }
    json!({ "properties": { "a": inner } })
}

fn many_patterns(count: usize) -> Value {
    let patterns: Map<String, Value> =
        (0..count).map(|i| (format!("^[a-z]*{i}$"), json!({ "type": "string" }))).collect();
    json!({ "patternProperties": patterns })
}

/// An object of about `size` bytes.
fn wide(size: usize) -> String {
    let members: Vec<String> = (0..size / 16).map(|i| format!("\"name{i:06}\":1")).collect();
    format!("{{{}}}", members.join(","))
}
