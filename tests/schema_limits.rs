//! Limits of schema evaluation: stack, steps, and memory per evaluation.
//!
//! Uses the worst known schemas. Asserts outcomes and allocations, and deliberately no times.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use bytes::Bytes;
use mcpproxy_schema::compile::{Engine, Schema, Settings, Unusable, compile};
use mcpproxy_schema::judge::{JudgeScratch, Verdict};
use mcpproxy_schema::violation::ViolationReason;
use serde_json::{Map, Value, json};

const ENGINES: [Engine; 2] = [Engine::Tape, Engine::Boon];

fn usable(schema: &Value, engine: Engine) -> Schema {
    compile(schema.to_string().as_bytes(), &Settings { engine, assert_formats: false }).unwrap()
}

fn unusable(schema: &Value) -> Unusable {
    match compile(schema.to_string().as_bytes(), &Settings::default()) {
        Ok(_) => panic!("usable: {schema}"),
        Err(reason) => reason,
    }
}

/// Reason why `document` is refused; `None` if it conforms.
fn refusal(schema: &Schema, document: &str) -> Option<ViolationReason> {
    let document = [Bytes::copy_from_slice(document.as_bytes())];
    match schema.judge(&document, &mut JudgeScratch::new()).verdict {
        Verdict::Conforms => None,
        Verdict::Violates(violation) => Some(violation.reason),
    }
}

/// Chain of definitions, each an alternative of two references to the next, wrapped by `wrap`.
fn chain(length: usize, wrap: impl Fn(Value) -> Value) -> Value {
    let mut defs = Map::new();
    for at in 0..length {
        let next = || wrap(json!({ "$ref": format!("#/$defs/d{}", at + 1) }));
        defs.insert(format!("d{at}"), json!({ "anyOf": [next(), next()] }));
    }
    defs.insert(format!("d{length}"), json!({ "type": "integer" }));
    json!({ "$ref": "#/$defs/d0", "$defs": defs })
}

/// The reference `#n` can be resolved in two ways. One of them yields a cycle, which no specification defines, and the
/// other does not.
#[test]
fn cycle_behind_a_duplicate_name_is_unusable() {
    let schema = json!({ "$schema": "https://json-schema.org/draft/2019-09/schema",
        "$ref": "#n", "$defs": { "c": { "$anchor": "n", "not": { "const": 1.5 }, "$ref": "#" },
        "d": { "$dynamicAnchor": "n" } } });
    assert!(matches!(unusable(&schema), Unusable::Expansion { .. }));
}

#[test]
fn embedded_dialect_with_other_resource_names_is_unusable() {
    let inner =
        json!({ "$schema": "http://json-schema.org/draft-04/schema#", "id": "http://a.invalid/" });
    let mut schema = json!({ "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$ref": "#/$defs/a", "$defs": { "a": inner } });
    assert!(matches!(unusable(&schema), Unusable::MixedDialects(_)));
    // An unreferenced resource has no effect.
    schema["$ref"].take();
    schema["$ref"] = "#/$defs/b".into();
    schema["$defs"]["b"] = json!({ "type": "integer" });
    assert_eq!(refusal(&usable(&schema, Engine::Tape), "1"), None);
}

#[test]
fn reference_that_the_bounds_cannot_follow_is_unusable() {
    let meta = "https://json-schema.org/draft/2020-12/meta/core";
    let claimed = json!({ "$defs": { "a": { "$id": meta } }, "$ref": meta });
    assert!(matches!(unusable(&claimed), Unusable::Claimed(_)));
    for engine in ENGINES {
        assert_eq!(refusal(&usable(&json!({ "$ref": meta }), engine), "true"), None);
    }
}

#[test]
fn multiplying_names_are_unusable() {
    // Each reference would be resolved once for each of the places with the same name.
    let same = json!({ "$dynamicAnchor": "a", "$dynamicRef": "#a" });
    let dynamic = json!({ "allOf": vec![same; 9_000] });
    let same = json!({ "$id": "http://a.invalid/", "items": { "$ref": "http://a.invalid/" } });
    let resources = json!({ "allOf": vec![same; 4_000] });
    let same = json!({ "$anchor": "a", "items": { "$ref": "#a" } });
    let anchors = json!({ "allOf": vec![same; 4_000] });
    for schema in [dynamic, resources, anchors] {
        assert!(matches!(unusable(&schema), Unusable::Names { .. }));
    }
    // The number of places to which references lead would double at each level.
    let mut nested = json!({});
    for at in 0..40 {
        nested = json!({ "$id": format!("a{at}/"), "$ref": "#", "items": nested });
    }
    nested["$schema"] = "http://json-schema.org/draft-07/schema#".into();
    assert!(matches!(unusable(&nested), Unusable::Names { .. }));
}

/// Stack size of the threads of the runtime. Without optimization, frames are several times as large.
const STACK: usize = if cfg!(debug_assertions) { 16 << 20 } else { 2 << 20 };

fn on_a_small_stack(run: impl FnOnce() + Send + 'static) {
    std::thread::Builder::new().stack_size(STACK).spawn(run).unwrap().join().unwrap();
}

#[test]
fn multiplying_alternatives_are_unusable() {
    assert!(matches!(unusable(&chain(20, |next| next)), Unusable::Expansion { .. }));
    assert!(matches!(unusable(&chain(200, |next| next)), Unusable::Expansion { .. }));
    let cycle = json!({ "anyOf": [{ "$ref": "#" }, { "$ref": "#" }] });
    assert!(matches!(unusable(&cycle), Unusable::Expansion { .. }));
}

/// Found by the fuzz target `validate`: keywords that have no meaning in the dialect of the schema were treated as
/// names, so the calculation of the bounds missed the targets of references.
#[test]
fn keywords_of_another_dialect_do_not_hide_alternatives() {
    let dialects = [
        ("http://json-schema.org/draft-04/schema#", "$id"),
        ("http://json-schema.org/draft-07/schema#", "id"),
        ("https://json-schema.org/draft/2019-09/schema", "id"),
        ("https://json-schema.org/draft/2020-12/schema", "id"),
    ];
    for (dialect, id) in dialects {
        let mut schema = chain(20, |next| next);
        schema["$schema"] = dialect.into();
        for (name, definition) in schema["$defs"].as_object_mut().unwrap() {
            definition[id] = format!("http://example.invalid/{name}").into();
        }
        assert!(matches!(unusable(&schema), Unusable::Expansion { .. }), "{dialect}");
    }
}

/// The same with a duplicate name: the engines may resolve it to another place than the calculation of the bounds.
#[test]
fn duplicate_name_does_not_hide_alternatives() {
    let mut defs = Map::new();
    for at in 0..20 {
        let next = json!({ "$ref": format!("#d{}", at + 1) });
        defs.insert(
            format!("a{at}"),
            json!({ "$anchor": format!("d{at}"), "anyOf": [next, next] }),
        );
        defs.insert(format!("b{at}"), json!({ "$dynamicAnchor": format!("d{at}") }));
    }
    defs.insert("a20".into(), json!({ "$anchor": "d20" }));
    let schema = json!({ "$schema": "https://json-schema.org/draft/2019-09/schema",
        "$ref": "#d0", "$defs": defs });
    assert!(matches!(unusable(&schema), Unusable::Expansion { .. }));
}

#[test]
fn alternatives_multiplied_by_the_document_are_stopped() {
    let schema = chain(25, |next| json!({ "properties": { "a": next }, "required": ["a"] }));
    let document = format!("{}\"x\"{}", "{\"a\":".repeat(25), "}".repeat(25));
    for engine in ENGINES {
        assert_eq!(
            refusal(&usable(&schema, engine), &document),
            Some(ViolationReason::Steps),
            "{engine:?}"
        );
    }
}

#[test]
fn reference_cycle_ends() {
    let recursive = json!({ "$recursiveAnchor": true, "$recursiveRef": "#",
        "$schema": "https://json-schema.org/draft/2019-09/schema" });
    let dynamic = json!({ "$dynamicAnchor": "a", "$dynamicRef": "#a" });
    let plain = json!({ "$ref": "#" });
    let ring = json!({ "$ref": "#/$defs/a", "$defs": {
        "a": { "$ref": "#/$defs/b" }, "b": { "$ref": "#/$defs/a" } } });
    for schema in [recursive, dynamic, plain, ring] {
        for engine in ENGINES {
            // Either verdict is acceptable; the evaluation must end.
            let _ = refusal(&usable(&schema, engine), "{\"a\":[1]}");
        }
    }
}

#[test]
fn long_chains_of_references_fit_a_small_stack_or_are_unusable() {
    on_a_small_stack(|| {
        let chain = |length: usize| {
            let link = |at| (format!("d{at}"), json!({ "$ref": format!("#/$defs/d{}", at + 1) }));
            let mut defs: Map<String, Value> = (0..length).map(link).collect();
            defs.insert(format!("d{length}"), json!({ "type": "integer" }));
            json!({ "$ref": "#/$defs/d0", "$defs": defs })
        };
        for engine in ENGINES {
            assert_eq!(refusal(&usable(&chain(190), engine), "1"), None);
            assert_eq!(
                refusal(&usable(&chain(190), engine), "\"x\""),
                Some(ViolationReason::Schema)
            );
        }
        assert!(matches!(unusable(&chain(210)), Unusable::Nesting { .. }));
        assert!(matches!(unusable(&chain(9_000)), Unusable::Nesting { .. }));
    });
}

#[test]
fn schema_nested_to_its_bound_fits_a_small_stack() {
    on_a_small_stack(|| {
        for wrap in [
            (|inner| json!({ "not": inner })) as fn(Value) -> Value,
            |inner| json!({ "if": inner, "else": false }),
            |inner| json!({ "allOf": [inner] }),
            |inner| json!({ "properties": { "a": inner }, "unevaluatedProperties": false }),
            |inner| json!({ "items": inner, "unevaluatedItems": false }),
            |inner| json!({ "propertyNames": inner }),
        ] {
            let mut schema = json!({ "type": "integer" });
            while depth(&schema) < 98 {
                schema = wrap(schema);
            }
            for engine in ENGINES {
                let schema = usable(&schema, engine);
                let _ = refusal(&schema, "1");
                let _ = refusal(&schema, &format!("{}1{}", "{\"a\":".repeat(120), "}".repeat(120)));
                let _ = refusal(&schema, &format!("{}1{}", "[".repeat(120), "]".repeat(120)));
            }
            let deeper = wrap(wrap(wrap(schema)));
            assert!(matches!(unusable(&deeper), Unusable::TooDeep { .. }));
        }
    });
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or(0),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

#[test]
fn recursive_schema_over_the_deepest_document_fits_a_small_stack() {
    on_a_small_stack(|| {
        let schema = json!({ "$ref": "#/$defs/node", "$defs": { "node": {
            "allOf": [{ "anyOf": [
                { "type": "integer" },
                { "type": "object", "properties": { "a": { "$ref": "#/$defs/node" } },
                  "unevaluatedProperties": false },
            ] }] } } });
        let nest = |depth: usize, inner: &str| {
            format!("{}{inner}{}", "{\"a\":".repeat(depth), "}".repeat(depth))
        };
        for engine in ENGINES {
            let schema = usable(&schema, engine);
            for depth in [1, 64, 90] {
                assert_eq!(refusal(&schema, &nest(depth, "1")), None, "{depth}");
                assert_eq!(
                    refusal(&schema, &nest(depth, "\"x\"")),
                    Some(ViolationReason::Schema),
                    "{depth}"
                );
            }
            assert_eq!(refusal(&schema, &nest(120, "1")), Some(ViolationReason::Nesting));
            let too_deep = refusal(&schema, &nest(128, "1"));
            assert!(matches!(too_deep, Some(ViolationReason::Document(_))), "{too_deep:?}");
        }
    });
}

#[test]
fn combined_depth_of_schema_and_document_is_limited() {
    on_a_small_stack(|| {
        let mut next = json!({ "$ref": "#" });
        for _ in 0..20 {
            next = json!({ "allOf": [next] });
        }
        let schema = usable(&json!({ "additionalProperties": next }), Engine::Tape);
        let nest = |depth: usize| format!("{}1{}", "{\"a\":".repeat(depth), "}".repeat(depth));
        assert_eq!(refusal(&schema, &nest(10)), None);
        assert_eq!(refusal(&schema, &nest(100)), Some(ViolationReason::Nesting));
    });
}

#[test]
fn hostile_strings_do_not_stall_nested_quantifiers() {
    let hostile = format!("\"{}!\"", "a".repeat(100_000));
    for pattern in [
        "^(a+)+$",
        "(a|aa)+$",
        "^(a*)*b",
        "(.*a){20}$",
        "^(?=a)(a+)+$",
        "(?=.*x)(a|aa)+y",
        r"^(a+)\1+b$",
        "(?<=a)(a+)+$",
        "^(?:(?!b)a)+$",
    ] {
        for engine in ENGINES {
            let schema = usable(&json!({ "pattern": pattern }), engine);
            let reason = refusal(&schema, &hostile);
            assert!(
                matches!(reason, Some(ViolationReason::Schema | ViolationReason::Steps)),
                "{pattern}: {reason:?}"
            );
        }
    }
}

#[test]
fn hostile_names_do_not_stall_nested_quantifiers() {
    let schema = json!({ "patternProperties": { "(?=.*x)(a|aa)+y": false } });
    let document = format!("{{\"{}!\":1}}", "a".repeat(100_000));
    for engine in ENGINES {
        assert_eq!(refusal(&usable(&schema, engine), &document), Some(ViolationReason::Steps));
    }
}

#[test]
fn aborted_backtracking_yields_no_verdict() {
    let schema = usable(&json!({ "pattern": "^(a|aa)+(?<!b)$" }), Engine::Tape);
    assert_eq!(refusal(&schema, &format!("\"{}\"", "a".repeat(10))), None);
    let gives_up = refusal(&schema, &format!("\"{}!\"", "a".repeat(40)));
    assert_eq!(gives_up, Some(ViolationReason::Steps));
}

#[test]
fn items_with_equal_hashes_exhaust_the_steps() {
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
    let document = format!("[{}]", bracketings(10).join(","));
    for engine in ENGINES {
        let schema = usable(&json!({ "uniqueItems": true }), engine);
        assert_eq!(refusal(&schema, &document), Some(ViolationReason::Steps));
    }
}

/// Allocations of an evaluation after the first one.
fn allocations(schema: &Value, document: &str) -> u64 {
    let schema = usable(schema, Engine::Tape);
    let document = [Bytes::copy_from_slice(document.as_bytes())];
    let mut scratch = JudgeScratch::new();
    for _ in 0..3 {
        assert_eq!(schema.judge(&document, &mut scratch).verdict, Verdict::Conforms);
    }
    allocation_counter::measure(|| {
        let _ = schema.judge(&document, &mut scratch);
    })
    .count_total
}

#[test]
fn warm_evaluation_of_a_conforming_document_does_not_allocate() {
    let wide: Map<String, Value> = (0..100).map(|i| (format!("p{i}"), json!(i))).collect();
    let wide = Value::Object(wide).to_string();
    for (schema, document) in [
        (json!(true), "{\"a\":[1,\"x\\u00e9\",null]}"),
        (json!({ "type": "object" }), "{}"),
        (json!({ "type": ["integer", "null"] }), "1"),
        (json!({ "properties": { "a": { "type": "integer" } } }), "{\"a\":1,\"b\":2}"),
        (json!({ "properties": { "p7": { "type": "integer" } } }), &wide),
        (json!({ "required": ["a", "b"] }), "{\"a\":1,\"b\":2}"),
        (json!({ "required": ["p1", "p99"] }), &wide),
        (json!({ "items": { "type": "integer" } }), "[1,2,3]"),
        (
            json!({ "prefixItems": [{ "type": "integer" }], "items": { "type": "string" } }),
            "[1,\"a\"]",
        ),
        (json!({ "enum": ["a", 1, { "b": [1.5, null] }] }), "{\"b\":[1.5,null]}"),
        (json!({ "const": { "b": [1, "x"] } }), "{\"b\":[1,\"x\"]}"),
        (
            json!({ "minimum": 1, "maximum": 10, "exclusiveMinimum": 0, "exclusiveMaximum": 11 }),
            "3",
        ),
        (json!({ "multipleOf": 3 }), "9"),
        (json!({ "minLength": 1, "maxLength": 3 }), "\"é\\u00e9\""),
        (json!({ "minItems": 1, "maxItems": 3 }), "[1]"),
        (json!({ "minProperties": 1, "maxProperties": 3 }), "{\"a\":1}"),
        (json!({ "pattern": "^[^@]+@[^@]+$" }), "\"a@b\""),
        (json!({ "pattern": "^prefix" }), "\"prefixed\""),
        (json!({ "additionalProperties": false, "properties": { "a": true } }), "{\"a\":1}"),
        (json!({ "additionalProperties": { "type": "integer" } }), "{\"a\":1}"),
        (json!({ "patternProperties": { "^a": { "type": "integer" } } }), "{\"a\":1}"),
        (json!({ "allOf": [true, { "type": "integer" }] }), "1"),
        (json!({ "anyOf": [false, { "type": "integer" }] }), "1"),
        (json!({ "oneOf": [{ "type": "string" }, { "type": "integer" }] }), "1"),
        (json!({ "not": { "type": "string" } }), "1"),
        (json!({ "if": { "type": "string" }, "then": false, "else": true }), "1"),
        (json!({ "contains": { "type": "integer" } }), "[\"a\",1]"),
        (json!({ "dependentRequired": { "a": ["b"] } }), "{\"a\":1,\"b\":2}"),
        (json!({ "$ref": "#/$defs/a", "$defs": { "a": { "type": "integer" } } }), "1"),
        (json!({ "propertyNames": { "maxLength": 3 } }), "{\"a\":1}"),
    ] {
        assert_eq!(allocations(&schema, document), 0, "{schema}");
    }
}

/// Allocations for the remaining keywords, to detect changes.
#[test]
fn allocations_of_other_keywords_stay_within_their_bounds() {
    for (schema, document, most) in [
        (json!({ "uniqueItems": true }), "[1,2,3,4,5,6,7,8,9,10]", 0),
        (json!({ "unevaluatedProperties": false, "properties": { "a": true } }), "{\"a\":1}", 3),
        (json!({ "unevaluatedItems": false, "prefixItems": [true] }), "[1]", 3),
        (json!({ "properties": { "a": { "$ref": "#" } } }), "{\"a\":{\"a\":{}}}", 1),
    ] {
        let found = allocations(&schema, document);
        println!("{found} {schema}");
        assert!(found <= most, "{found} allocations: {schema}");
    }
}

/// Every occurrence of a pattern counts, since boon compiles each.
#[test]
fn number_of_occurrences_of_a_pattern_is_bounded() {
    let many = |pattern: &str, count: usize| {
        let places: Vec<Value> = (0..count).map(|_| json!({ "pattern": pattern })).collect();
        json!({ "anyOf": places })
    };
    usable(&many("^[a-z]+$", 2000), Engine::Tape);
    for (pattern, count) in [("^[a-z]+$", 9000), (r"^\p{L}{1,8}$", 500), ("a[ab]{500}[c-z]", 500)] {
        let found = unusable(&many(pattern, count));
        assert!(matches!(found, Unusable::PatternsTooLarge { .. }), "{pattern}: {found}");
    }
}

/// A short pattern with a huge automaton takes microseconds per byte in any linear engine.
#[test]
fn pattern_with_a_large_automaton_is_charged_for_its_states() {
    let text = |size: usize| format!("\"{}\"", "ab".repeat(size / 2));
    for schema in [
        json!({ "pattern": "a[ab]{500}[c-z]" }),
        json!({ "pattern": "(a[ab]{1,400}b){3}[c-z]" }),
        json!({ "allOf": [{ "pattern": "^a" }, { "pattern": "a[ab]{500}[c-z]" }] }),
        json!({ "not": { "pattern": "^(?=a)(a[ab]{1,400}b){3}[c-z]" } }),
    ] {
        for engine in ENGINES {
            let schema = usable(&schema, engine);
            assert_ne!(refusal(&schema, &text(600)), Some(ViolationReason::Steps));
            assert_eq!(refusal(&schema, &text(100_000)), Some(ViolationReason::Steps));
        }
    }
    for names in [
        json!({ "patternProperties": { "a[ab]{500}[c-z]": false } }),
        json!({ "propertyNames": { "not": { "pattern": "a[ab]{500}[c-z]" } } }),
    ] {
        for engine in ENGINES {
            let schema = usable(&names, engine);
            assert_eq!(refusal(&schema, &format!("{{{}:1}}", text(600))), None);
            let long = format!("{{{}:1}}", text(100_000));
            assert_eq!(refusal(&schema, &long), Some(ViolationReason::Steps));
        }
    }
}

#[test]
fn many_patterns_for_many_names_exhaust_the_steps() {
    let patterns: Map<String, Value> =
        (0..300).map(|i| (format!("^[a-z]*{i}$"), json!({ "type": "string" }))).collect();
    let alternatives: Vec<Value> =
        (0..900).map(|i| json!({ "pattern": format!("^{i}") })).collect();
    let members: Vec<String> = (0..40_000).map(|i| format!("\"name {i}\":1")).collect();
    let document = format!("{{{}}}", members.join(","));
    let few = format!("{{{}}}", members[..1500].join(","));
    assert_eq!(
        refusal(&usable(&json!({ "patternProperties": patterns }), Engine::Tape), &few),
        None
    );
    for schema in [
        json!({ "patternProperties": patterns }),
        json!({ "propertyNames": { "not": { "anyOf": alternatives } } }),
    ] {
        for engine in ENGINES {
            assert_eq!(refusal(&usable(&schema, engine), &document), Some(ViolationReason::Steps));
        }
    }
}

/// A quick evaluation aborts if it takes too long for a worker; otherwise its verdict is the same.
#[test]
fn quick_evaluation_gives_the_same_verdict_or_no_verdict() {
    let items = |item: &str, count: usize| format!("[{}]", vec![item; count].join(","));
    let multiplied = json!({ "items": chain(9, |next| next) });
    let multiplied: Value =
        serde_json::from_str(&multiplied.to_string().replace("#/$defs", "#/items/$defs")).unwrap();
    for (schema, document, quick) in [
        (json!({ "items": { "type": "integer" } }), items("1", 1000), true),
        // The first schema is evaluated in one pass (FR-A14); the second has a keyword that this pass does not support.
        (json!({ "items": { "type": "integer" } }), items("1", 40_000), true),
        (json!({ "items": { "type": "integer" }, "contains": true }), items("1", 40_000), false),
        (json!({ "items": { "type": "integer" } }), items("\"x\"", 100), true),
        (json!({ "items": { "type": "integer" } }), items("\"x\"", 2000), false),
        (multiplied.clone(), items("1", 100), true),
        (multiplied, items("\"x\"", 2), false),
        (json!({ "pattern": "(?=.*x)(a|aa)+y" }), format!("\"{}\"", "a".repeat(5000)), false),
    ] {
        let schema = usable(&schema, Engine::Tape);
        let document = [Bytes::from(document)];
        let mut scratch = JudgeScratch::new();
        let found = schema.judge_quickly(&document, &mut scratch);
        assert_eq!(found.is_some(), quick, "{schema:?} {} bytes", document[0].len());
        if let Some(found) = found {
            assert_eq!(found, schema.judge(&document, &mut scratch));
        }
    }
}

/// Look-ahead from the start of a name needs no backtracking, and is charged by bytes.
#[test]
fn thirty_thousand_names_under_look_ahead_are_evaluated() {
    let members = |value: &str| {
        let members: Vec<String> =
            (0..30_000).map(|at| format!("\"member-{at}\":{value}")).collect();
        format!("{{{}}}", members.join(","))
    };
    for pattern in [
        "^(?!x-)",
        "^(?!x-).*$",
        r"^(?!\$)[a-z0-9-]+$",
        "^(?=.*-)(?!x-|y-)[a-z]+-[0-9]+$",
        "^(?!(x|y)-)(member|other)-[0-9]+$",
    ] {
        let schema = json!({ "patternProperties": { pattern: { "type": "integer" } },
            "additionalProperties": false });
        let schema = usable(&schema, Engine::Tape);
        assert!(schema.judged_by_tape_alone());
        assert_eq!(refusal(&schema, &members("1")), None, "{pattern}");
        assert_eq!(refusal(&schema, &members("\"x\"")), Some(ViolationReason::Schema), "{pattern}");
        assert_eq!(refusal(&schema, "{\"x-$\":1}"), Some(ViolationReason::Schema), "{pattern}");
    }
}

/// The steps also bound the parts of a split pattern.
#[test]
fn hostile_names_under_look_ahead_exhaust_the_steps_or_are_quick() {
    let name = |size: usize| format!("{{\"{}!\":1}}", "a".repeat(size));
    let slow = "^(?=(a[ab]{1,400}b){3}[c-z])a";
    let schema = usable(&json!({ "patternProperties": { slow: false } }), Engine::Tape);
    assert_eq!(refusal(&schema, &name(100)), None);
    assert_eq!(refusal(&schema, &name(100_000)), Some(ViolationReason::Steps));
    for pattern in ["^(?=(a|aa)+$)(?!(a*)*b)(a+)+$", "^(?!.*(?:a|aa)+b)(?:a+)+$"] {
        let schema = usable(&json!({ "patternProperties": { pattern: false } }), Engine::Tape);
        assert_eq!(refusal(&schema, &name(100_000)), None, "{pattern}");
    }
}

/// An engine that distinguishes the paths to a resource compiles it once per path.
#[test]
fn resources_with_multiplying_paths_are_unusable() {
    let levels = |count: usize| {
        let mut defs = Map::new();
        for at in 0..count {
            for side in ["a", "b"] {
                let next = |side| json!({ "$ref": format!("{side}{}.json", at + 1) });
                defs.insert(
                    format!("{side}{at}"),
                    json!({ "$id": format!("{side}{at}.json"),
                    "properties": { "x": next("a"), "y": next("b") } }),
                );
            }
        }
        for side in ["a", "b"] {
            let last = json!({ "$id": format!("{side}{count}.json"), "type": "integer" });
            defs.insert(format!("{side}{count}"), last);
        }
        json!({ "$ref": "a0.json", "$defs": defs })
    };
    assert_eq!(refusal(&usable(&levels(8), Engine::Tape), "{\"x\":{\"y\":{}}}"), None);
    assert!(matches!(unusable(&levels(40)), Unusable::Ways { .. }));
}

/// The compiler of boon would take minutes for the largest schema. Therefore only the tape engine evaluates it, whose
/// verdicts are as exact.
#[test]
fn schema_with_very_many_subschemas_is_evaluated_only_by_the_tape() {
    let groups = |count: usize| {
        let fields = |_| json!({ "type": "string", "maxLength": 3 });
        let group = || {
            let fields: Map<_, _> = (0..49).map(|at| (format!("f{at}"), fields(at))).collect();
            json!({ "type": "object", "properties": fields })
        };
        let groups: Map<_, _> = (0..count).map(|at| (format!("g{at}"), group())).collect();
        json!({ "type": "object", "properties": groups })
    };
    for engine in ENGINES {
        let schema = usable(&groups(500), engine);
        assert!(schema.judged_by_tape_alone());
        assert_eq!(refusal(&schema, "{\"g499\":{\"f48\":\"abc\"}}"), None);
        let found = refusal(&schema, "{\"g499\":{\"f48\":\"abcd\"}}");
        assert_eq!(found, Some(ViolationReason::Schema));
    }
    assert!(!usable(&groups(2), Engine::Tape).judged_by_tape_alone());
}
