//! Both engines on random schemas and documents, and on boundary numbers.
//!
//! Asserts that the verdict is the same for each engine setting, and that the accept-only pass accepts only documents that both
//! engines accept.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use bytes::Bytes;
use mcpproxy_json::tape;
use mcpproxy_schema::compile::{Engine, Settings, compile};
use mcpproxy_schema::judge::{JudgeScratch, Judgment, Verdict};
use proptest::prelude::*;
use serde_json::{Value, json};

fn judge(engine: Engine, schema: &str, document: &str) -> Judgment {
    let settings = Settings { engine, assert_formats: false };
    let schema = compile(schema.as_bytes(), &settings).unwrap();
    schema.judge(&[Bytes::copy_from_slice(document.as_bytes())], &mut JudgeScratch::new())
}

/// Judgments of both engines. Asserts that they agree.
fn agreed(schema: &str, document: &str) -> [Judgment; 2] {
    let both = [Engine::Tape, Engine::Boon].map(|engine| judge(engine, schema, document));
    let [tape, boon] = both.each_ref().map(|judgment| judgment.verdict == Verdict::Conforms);
    assert_eq!(tape, boon, "{schema} {document}");
    both
}

fn name() -> impl Strategy<Value = String> + Clone {
    prop::sample::select(vec!["a", "b", "c", "x1", "é"]).prop_map(str::to_owned)
}

fn document() -> impl Strategy<Value = Value> + Clone {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-3_i64..4).prop_map(Value::from),
        prop::sample::select(vec![0.5, -0.0, 1.0, 2.5]).prop_map(Value::from),
        prop::sample::select(vec!["", "a", "aa", "ab", "é", "long text"]).prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::btree_map(name(), inner, 0..5)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn schema() -> impl Strategy<Value = Value> {
    let kinds = ["null", "boolean", "integer", "number", "string", "array", "object"];
    let leaf = prop_oneof![
        any::<bool>().prop_map(Value::from),
        prop::sample::select(kinds.to_vec()).prop_map(|kind| json!({ "type": kind })),
        prop::sample::subsequence(kinds.to_vec(), 1..4).prop_map(|kinds| json!({ "type": kinds })),
        document().prop_map(|value| json!({ "const": value })),
        prop::collection::vec(document(), 1..4).prop_map(|values| json!({ "enum": values })),
        (-2_i64..3).prop_map(|limit| json!({ "minimum": limit })),
        (-2_i64..3).prop_map(|limit| json!({ "exclusiveMaximum": limit })),
        (1_u64..4).prop_map(|by| json!({ "multipleOf": by })),
        (0_u64..4).prop_map(|limit| json!({ "maxLength": limit, "minItems": limit / 2 })),
        (0_u64..4).prop_map(|limit| json!({ "maxItems": limit, "minProperties": limit / 2 })),
        prop::sample::select(vec!["^a", "b$", "^a+$", "é", "^$"])
            .prop_map(|pattern| json!({ "pattern": pattern })),
        prop::collection::btree_set(name(), 0..3).prop_map(|names| json!({ "required": names })),
        Just(json!({ "uniqueItems": true })),
        (name(), name()).prop_map(|(a, b)| json!({ "dependentRequired": { a: [b] } })),
        Just(json!({ "$ref": "#/$defs/other" })),
    ];
    leaf.prop_recursive(4, 40, 4, |inner| {
        let list = prop::collection::vec(inner.clone(), 1..4);
        let map = prop::collection::btree_map(name(), inner.clone(), 1..4);
        prop_oneof![
            (prop::sample::select(vec!["allOf", "anyOf", "oneOf", "prefixItems"]), list)
                .prop_map(|(keyword, list)| json!({ keyword: list })),
            (prop::sample::select(vec!["properties", "dependentSchemas"]), map.clone())
                .prop_map(|(keyword, map)| json!({ keyword: map })),
            (map, inner.clone()).prop_map(|(map, rest)| {
                json!({ "properties": map, "additionalProperties": rest })
            }),
            inner.clone().prop_map(|inner| json!({ "patternProperties": { "^[a-x]": inner } })),
            (
                prop::sample::select(vec![
                    "not",
                    "items",
                    "contains",
                    "propertyNames",
                    "additionalProperties",
                    "unevaluatedItems",
                    "unevaluatedProperties",
                ]),
                inner.clone(),
            )
                .prop_map(|(keyword, inner)| json!({ keyword: inner })),
            (inner.clone(), inner.clone(), inner.clone())
                .prop_map(|(a, b, c)| json!({ "if": a, "then": b, "else": c })),
            (inner.clone(), inner.clone(), inner).prop_map(|(a, b, c)| {
                json!({ "allOf": [a, { "anyOf": [b, { "contains": true }] }],
                    "unevaluatedProperties": c, "unevaluatedItems": false })
            }),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn engines_agree_on_random_schemas(schema in schema(), other in schema(), document in document()) {
        // The definition `other` has no references.
        let other = other.to_string().replace("\"$ref\":\"#/$defs/other\"", "\"minLength\":1");
        let other: Value = serde_json::from_str(&other).unwrap();
        let root = json!({ "allOf": [schema], "$defs": { "other": other } }).to_string();
        let document = document.to_string();
        for judgment in agreed(&root, &document) {
            prop_assert!(!judgment.disagreement, "{root} {document}");
        }
    }

    #[test]
    fn engines_agree_on_boundary_numbers(limit in edge(), number in edge()) {
        for keyword in
            ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "const", "multipleOf"]
        {
            if keyword == "multipleOf" && limit.starts_with('-') {
                continue;
            }
            agreed(&format!("{{\"{keyword}\":{limit}}}"), &number);
        }
        agreed(&format!("{{\"enum\":[{limit},null]}}"), &number);
        agreed("{\"uniqueItems\":true}", &format!("[{limit},{number}]"));
        agreed("{\"type\":\"integer\"}", &number);
    }

    #[test]
    fn tape_reads_the_same_values_as_serde_json(text in "[\\[\\]{}:,\" 0-9a-f.eE+\\-\\\\untrls/\n]{0,40}") {
        let tape = tape::Scratch::new().read([text.as_bytes()], |_| ());
        let serde = serde_json::from_str::<Value>(&text);
        if !matches!(tape, Err(tape::TapeFault::DuplicateKey { .. })) {
            prop_assert_eq!(tape.is_ok(), serde.is_ok(), "{:?} {:?} {:?}", text, tape, serde);
        }
    }

    #[test]
    fn any_slicing_gives_the_same_verdict(document in document(), cuts in prop::collection::vec(0_usize..60, 0..4)) {
        let schema = compile(br#"{"type":"object","additionalProperties":{"type":"string"}}"#,
            &Settings::default()).unwrap();
        let document = Bytes::from(document.to_string());
        let whole = schema.judge(std::slice::from_ref(&document), &mut JudgeScratch::new());
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(document.len())).collect();
        cuts.extend([0, document.len()]);
        cuts.sort_unstable();
        let slices: Vec<Bytes> =
            cuts.windows(2).map(|pair| document.slice(pair[0]..pair[1])).collect();
        prop_assert_eq!(whole, schema.judge(&slices, &mut JudgeScratch::new()));
    }
}

/// Integers around the powers of two at which number types end, and nearby doubles.
fn edge() -> impl Strategy<Value = String> {
    let near = |power: u32| {
        (-2_i128..=2, any::<bool>()).prop_map(move |(off, negative)| {
            let value = (1_i128 << power) + off;
            (if negative { -value } else { value }).to_string()
        })
    };
    prop_oneof![
        near(53),
        near(54),
        near(63),
        near(64),
        near(65),
        prop::sample::select(vec!["9007199254740993.0", "1e16", "1.8446744073709552e19", "1e300"])
            .prop_map(str::to_owned),
        (1_i64..5).prop_map(|small| small.to_string()),
    ]
}

/// Deterministic choices for schemas and documents.
struct Choices(u64);

impl Choices {
    fn below(&mut self, bound: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }

    fn of<T: Clone>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())].clone()
    }

    fn is(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }
}

const NAMES: [&str; 7] = ["a", "b", "kind", "id", "a longer name of a member", "é", "x-1"];
const TEXTS: [&str; 9] = [
    "",
    "a",
    "b",
    "ab",
    "abc",
    "é",
    "with \"quotes\"",
    "two\nlines",
    "a text of some length, over sixteen bytes",
];
const NUMBERS: [&str; 14] = [
    "0",
    "1",
    "-1",
    "5",
    "10",
    "2.5",
    "-0.0",
    "0.30000000000000004",
    "1e2",
    "9007199254740992",
    "12345678901234567890",
    "100.00",
    "1.0",
    "3",
];

fn number(choices: &mut Choices) -> Value {
    serde_json::from_str(choices.of(&NUMBERS)).unwrap()
}

/// Schema of keywords that servers use, with some that the accept-only pass does not cover.
fn common_schema(choices: &mut Choices, level: usize) -> Value {
    let sub = |choices: &mut Choices| common_schema(choices, level + 1);
    let scalars = if level > 3 { 8 } else { 19 };
    match choices.below(scalars) {
        0 => json!({ "type": "integer", "minimum": choices.below(3), "maximum": 12 }),
        1 => json!({ "type": "number", "exclusiveMaximum": number(choices), "minimum": -1 }),
        2 => {
            json!({ "type": "string", "minLength": choices.below(3), "maxLength": choices.below(20) + 2 })
        }
        3 => {
            json!({ "type": "string", "pattern": choices.of(&["^a", "b$", "^[a-c]*$", "é", "^$", "^(?!b)a"]) })
        }
        4 => {
            json!({ "enum": [choices.of(&TEXTS), number(choices), null, choices.of(&TEXTS), true] })
        }
        5 => json!({ "const": choices.of(&TEXTS) }),
        6 => {
            json!({ "type": [choices.of(&["integer", "boolean", "array"]), "string", "null"], "format": "date" })
        }
        7 => {
            json!({ "type": choices.of(&["null", "boolean", "number", "string", "object", "array"]) })
        }
        8 => {
            json!({ "type": "array", "items": sub(choices), "minItems": choices.below(2), "maxItems": choices.below(6) + 1 })
        }
        9 => json!({ "prefixItems": [sub(choices), sub(choices)], "items": sub(choices) }),
        10 => json!({ "type": "array", "uniqueItems": true, "items": sub(choices) }),
        11 => json!({ "anyOf": [sub(choices), sub(choices)] }),
        12 => json!({ "allOf": [sub(choices), sub(choices)] }),
        13 => {
            let branch = |choices: &mut Choices, tag: Value| json!({ "type": "object", "required": ["kind"], "properties": { "kind": tag, "a": sub(choices) } });
            let text = choices.of(&TEXTS);
            json!({ "oneOf": [branch(choices, json!({ "const": "a" })),
                branch(choices, json!({ "enum": [text, "b"] })), { "type": choices.of(&["null", "object"]) }] })
        }
        14 => json!({ "$ref": "#/$defs/other", "description": "" }),
        15 => match choices.below(5) {
            0 => json!({ "not": sub(choices) }),
            1 => json!({ "if": sub(choices), "then": sub(choices), "else": sub(choices) }),
            2 => json!({ "contains": sub(choices), "multipleOf": choices.below(3) + 1 }),
            3 => json!({ "dependentRequired": { "a": ["b"] }, "minProperties": 1 }),
            _ => json!({ "oneOf": [sub(choices), sub(choices)] }),
        },
        _ => {
            let mut schema = json!({ "type": "object" });
            for _ in 0..choices.below(5) {
                schema["properties"][choices.of(&NAMES)] = sub(choices);
            }
            if choices.is(2) {
                schema["required"] = json!([choices.of(&NAMES)]);
            }
            match choices.below(5) {
                0 => schema["additionalProperties"] = false.into(),
                1 => schema["additionalProperties"] = sub(choices),
                2 => {
                    schema["patternProperties"] = json!({ "^x": sub(choices), "^a": sub(choices) })
                }
                3 => schema["propertyNames"] = json!({ "maxLength": choices.below(30) }),
                _ => {}
            }
            schema
        }
    }
}

/// Document that often conforms to `schema`.
fn conforming(schema: &Value, root: &Value, choices: &mut Choices, level: usize) -> Value {
    let kinds = ["null", "boolean", "integer", "number", "string", "array", "object"];
    let scalars = if level > 5 { 5 } else { 7 };
    if choices.is(30) || level > 8 {
        let values = [Value::Null, true.into(), choices.of(&TEXTS).into(), number(choices)];
        return choices.of(&values);
    }
    for keyword in ["anyOf", "oneOf", "allOf"] {
        if let Some(branches) = schema[keyword].as_array() {
            return conforming(&choices.of(branches), root, choices, level + 1);
        }
    }
    if schema.get("$ref").is_some() {
        return conforming(&root["$defs"]["other"], root, choices, level + 1);
    }
    if let Some(value) = schema.get("const") {
        return value.clone();
    }
    if let Some(values) = schema["enum"].as_array() {
        return choices.of(values);
    }
    let kind = match &schema["type"] {
        Value::String(kind) => kind.clone(),
        Value::Array(kinds) => choices.of(kinds).as_str().unwrap().to_owned(),
        _ if schema.get("prefixItems").is_some() => "array".to_owned(),
        _ => kinds[choices.below(scalars)].to_owned(),
    };
    match kind.as_str() {
        "null" => Value::Null,
        "boolean" => choices.is(2).into(),
        "integer" => choices.below(14).into(),
        "number" => number(choices),
        "string" => choices.of(&TEXTS).into(),
        "array" => {
            let items = (0..choices.below(5)).map(|at| {
                let item = schema["prefixItems"].get(at).unwrap_or(&schema["items"]);
                conforming(item, root, choices, level + 1)
            });
            items.collect()
        }
        _ => {
            let mut members = serde_json::Map::new();
            let declared = schema["properties"].as_object().into_iter().flatten();
            for (name, schema) in declared {
                if !choices.is(4) {
                    members.insert(name.clone(), conforming(schema, root, choices, level + 1));
                }
            }
            if let Some(name) = schema["required"][0].as_str() {
                let value = conforming(&schema["properties"][name], root, choices, level + 1);
                members.entry(name.to_owned()).or_insert(value);
            }
            if choices.is(2) && schema["additionalProperties"] != json!(false) {
                let value = conforming(&schema["additionalProperties"], root, choices, level + 1);
                members.entry(choices.of(&NAMES).to_owned()).or_insert(value);
            }
            members.into()
        }
    }
}

/// Text of `document` with up to two changed, added or removed pieces.
fn damaged(document: &Value, choices: &mut Choices) -> Vec<u8> {
    const PIECES: [&str; 20] = [
        "", "{", "}", "[", "]", ",", ":", "\"", "\\", "\\u0061", "0", ".5", "e9", "-", "null", " ",
        "\n", "\u{1}", "\"a\":1,", "\u{e9}",
    ];
    let text = if choices.is(3) { format!("{document:#}") } else { document.to_string() };
    let mut text = text.into_bytes();
    for _ in 0..choices.below(6).saturating_sub(3) {
        let at = choices.below(text.len() + 1);
        let to = (at + choices.below(3)).min(text.len());
        text.splice(at..to, choices.of(&PIECES).bytes());
    }
    text
}

#[test]
fn fr_a14_document_accepted_in_one_pass_conforms_for_both_engines() {
    const PER_SCHEMA: u64 = 40;
    let schemas = std::env::var("ACCEPT_SCHEMAS").map_or(400, |count| count.parse().unwrap());
    let first = std::env::var("ACCEPT_FIRST").map_or(0, |first| first.parse().unwrap());
    let (mut accepted, mut valid) = (0, 0);
    for seed in first..first + schemas {
        let mut choices = Choices(seed);
        let other = common_schema(&mut choices, 2);
        let root =
            json!({ "allOf": [common_schema(&mut choices, 0)], "$defs": { "other": other } });
        let raw = root.to_string();
        let by_engine = [Engine::Tape, Engine::Boon]
            .map(|engine| compile(raw.as_bytes(), &Settings { engine, assert_formats: false }));
        let [Ok(tape), Ok(boon)] = by_engine else { continue };
        let mut scratch = JudgeScratch::new();
        for _ in 0..PER_SCHEMA {
            let document = conforming(&root, &root, &mut choices, 0);
            let document = Bytes::from(damaged(&document, &mut choices));
            let judgment = boon.judge(std::slice::from_ref(&document), &mut scratch);
            let conforms = judgment.verdict == Verdict::Conforms;
            valid += u32::from(conforms);
            if tape.accepts_in_one_pass(&document, &mut scratch) {
                let shown = String::from_utf8_lossy(&document);
                assert!(conforms && !judgment.disagreement, "seed {seed}: {raw} {shown}");
                accepted += 1;
            }
        }
    }
    println!("{accepted} of {valid} conforming documents accepted in one pass");
    assert!(accepted > valid / 2, "{accepted} of {valid}");
}
