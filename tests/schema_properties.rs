//! The two engines on schemas and documents made up at random, and on numbers at the edges.
//!
//! Owns agreement: whatever the engine setting, the verdict is the same.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use bytes::Bytes;
use mcpproxy::json::tape;
use mcpproxy::schema::compile::{Engine, Settings, compile};
use mcpproxy::schema::judge::{JudgeScratch, Judgement, Verdict};
use proptest::prelude::*;
use serde_json::{Value, json};

fn judge(engine: Engine, schema: &str, document: &str) -> Judgement {
    let settings = Settings { engine, assert_formats: false };
    let schema = compile(schema.as_bytes(), &settings).unwrap();
    schema.judge(&[Bytes::copy_from_slice(document.as_bytes())], &mut JudgeScratch::new())
}

/// Both judgements, and that they agree.
fn agreed(schema: &str, document: &str) -> [Judgement; 2] {
    let both = [Engine::Tape, Engine::Boon].map(|engine| judge(engine, schema, document));
    let [tape, boon] = both.each_ref().map(|judgement| judgement.verdict == Verdict::Conforms);
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
    fn the_engines_agree(schema in schema(), other in schema(), document in document()) {
        // What `other` refers to is itself free of references.
        let other = other.to_string().replace("\"$ref\":\"#/$defs/other\"", "\"minLength\":1");
        let other: Value = serde_json::from_str(&other).unwrap();
        let root = json!({ "allOf": [schema], "$defs": { "other": other } }).to_string();
        let document = document.to_string();
        for judgement in agreed(&root, &document) {
            prop_assert!(!judgement.disagreement, "{root} {document}");
        }
    }

    #[test]
    fn the_engines_agree_on_numbers_at_the_edges(limit in edge(), number in edge()) {
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
    fn the_tape_reads_what_serde_json_reads(text in "[\\[\\]{}:,\" 0-9a-f.eE+\\-\\\\untrls/\n]{0,40}") {
        let tape = tape::Scratch::new().read([text.as_bytes()], |_| ());
        let serde = serde_json::from_str::<Value>(&text);
        if !matches!(tape, Err(tape::TapeFault::DuplicateKey { .. })) {
            prop_assert_eq!(tape.is_ok(), serde.is_ok(), "{:?} {:?} {:?}", text, tape, serde);
        }
    }

    #[test]
    fn any_slicing_gives_the_same_judgement(document in document(), cuts in prop::collection::vec(0_usize..60, 0..4)) {
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

/// Integers around the powers of two where number types end, and doubles beside them.
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
