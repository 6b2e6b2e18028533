//! Tests of the comparison: a table of schemas, and generated schemas checked against the real validator.

use bytes::Bytes;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::json;

use super::{LISTS, SCHEMA, *};
use mcpproxy_schema::compile::{Schema, compile as compiled};
use mcpproxy_schema::judge::{JudgeScratch, Verdict};

#[test]
fn schemas_are_compared_by_their_accepted_values() {
    use Relation::{Equal, Narrower, Wider};
    let strings = || json!({"type": "string"});
    let object = |properties: Value, more: Value| {
        let mut schema = json!({"type": "object", "properties": properties});
        schema.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        schema
    };
    for (old, new, expected) in [
        // Schemas without any effect.
        (json!({}), json!(true), Equal),
        (json!(true), json!({"title": "x"}), Equal),
        (json!({"type": "string", "description": "x"}), json!({"type": "string"}), Equal),
        (json!({"default": 1}), json!({"default": 2}), Equal),
        (json!(false), json!({}), Wider),
        (json!({}), json!(false), Narrower),
        // Types and values.
        (json!({}), strings(), Narrower),
        (strings(), json!({}), Wider),
        (json!({"type": ["string", "null"]}), strings(), Narrower),
        (json!({"type": ["string", "null"]}), json!({"type": ["null", "string"]}), Equal),
        (strings(), json!({"type": ["string", "null"]}), Wider),
        (json!({"type": "number"}), json!({"type": "integer"}), Narrower),
        (json!({"type": "integer"}), json!({"type": "number"}), Wider),
        (json!({"type": "string"}), json!({"type": "strong"}), Wider),
        (strings(), json!({"enum": ["a"]}), Narrower),
        (strings(), json!({"enum": ["a", 1]}), Wider),
        (json!({"type": "string"}), json!({"type": "integer", "enum": [1.0]}), Wider),
        (json!({"enum": ["a", "b"]}), json!({"const": "a"}), Narrower),
        (json!({"enum": ["a", "b"]}), json!({"enum": ["b", "a"]}), Equal),
        (json!({"const": "a"}), json!({"enum": ["a", "b"]}), Wider),
        (json!({"enum": ["a"]}), json!({}), Wider),
        // Bounds.
        (json!({}), json!({"maximum": 5}), Narrower),
        (json!({"maximum": 5}), json!({"maximum": 4.5}), Narrower),
        (json!({"maximum": 5}), json!({"maximum": 6}), Wider),
        (json!({"minimum": 5}), json!({"minimum": 6}), Narrower),
        (json!({"minimum": 5}), json!({"minimum": 4}), Wider),
        (json!({"minLength": 1}), json!({}), Wider),
        (json!({"maxItems": 1}), json!({"maxItems": 0}), Narrower),
        (json!({"maximum": 5}), json!({"exclusiveMaximum": 5}), Wider),
        (json!({"maximum": 5, "exclusiveMaximum": true}), json!({"maximum": 5}), Wider),
        (json!({"multipleOf": 2}), json!({"multipleOf": 4}), Narrower),
        (json!({"multipleOf": 4}), json!({"multipleOf": 2}), Wider),
        (json!({"uniqueItems": false}), json!({}), Equal),
        (json!({}), json!({"uniqueItems": true}), Narrower),
        (json!({}), json!({"pattern": "a"}), Narrower),
        (json!({"pattern": "a"}), json!({"pattern": "aa"}), Wider),
        (json!({"pattern": "a"}), json!({}), Wider),
        (json!({}), json!({"format": "uri"}), Narrower),
        // Properties.
        (object(json!({}), json!({})), object(json!({"a": strings()}), json!({})), Narrower),
        (object(json!({"a": strings()}), json!({})), object(json!({}), json!({})), Wider),
        (
            object(json!({"a": strings()}), json!({"additionalProperties": false})),
            object(json!({}), json!({"additionalProperties": false})),
            Narrower,
        ),
        (
            object(json!({}), json!({"additionalProperties": false})),
            object(json!({"a": strings()}), json!({"additionalProperties": false})),
            Wider,
        ),
        (
            object(json!({}), json!({"additionalProperties": false})),
            object(json!({}), json!({})),
            Wider,
        ),
        (json!({"required": ["a", "b"]}), json!({"required": ["b", "a"]}), Equal),
        (json!({"required": ["a"]}), json!({"required": ["b", "a"]}), Narrower),
        (json!({"required": ["a"]}), json!({"required": []}), Wider),
        (
            json!({"patternProperties": {"^a": {}}, "additionalProperties": false}),
            json!({"additionalProperties": false}),
            Wider,
        ),
        (
            json!({"properties": {"a": strings()}}),
            json!({"patternProperties": {"^a": {}}, "additionalProperties": strings()}),
            Wider,
        ),
        (
            json!({"additionalProperties": false}),
            json!({"patternProperties": {"^a": {}}, "additionalProperties": false}),
            Wider,
        ),
        (json!({}), json!({"propertyNames": {"maxLength": 3}}), Narrower),
        (json!({"propertyNames": {"maxLength": 3}}), json!({}), Wider),
        // Items.
        (json!({"items": {}}), json!({"items": strings()}), Narrower),
        (json!({"items": strings()}), json!({}), Wider),
        (json!({"items": strings()}), json!({"prefixItems": [{}], "items": strings()}), Wider),
        (json!({"prefixItems": [{}]}), json!({"prefixItems": [strings()]}), Narrower),
        (json!({"items": [{}]}), json!({"items": [{}, {}]}), Wider),
        (json!({}), json!({"contains": strings()}), Narrower),
        (
            json!({"contains": strings(), "maxContains": 1}),
            json!({"contains": {"const": "a"}, "maxContains": 1}),
            Wider,
        ),
        // Combined schemas.
        (json!({"anyOf": [strings(), {"type": "null"}]}), json!({"anyOf": [strings()]}), Narrower),
        (json!({"anyOf": [strings()]}), json!({"anyOf": [strings(), {"type": "null"}]}), Wider),
        (json!({"anyOf": [strings()]}), json!({}), Wider),
        (json!({"allOf": [strings()]}), json!({"allOf": [{"maxLength": 1}, strings()]}), Narrower),
        (json!({"allOf": [strings(), {"maxLength": 1}]}), json!({"allOf": [strings()]}), Wider),
        (json!({"oneOf": [strings(), {"maxLength": 1}]}), json!({"oneOf": [strings()]}), Wider),
        (json!({}), json!({"oneOf": [strings()]}), Narrower),
        (json!({}), json!({"not": strings()}), Narrower),
        (json!({"not": {}}), json!({"not": strings()}), Wider),
        (json!({"not": strings()}), json!({"not": {"type": "string", "title": "x"}}), Equal),
        (
            json!({"if": strings(), "then": {"maxLength": 2}}),
            json!({"if": strings(), "then": {"maxLength": 1}}),
            Narrower,
        ),
        (json!({"if": strings(), "then": {}}), json!({"if": {}, "then": {}}), Wider),
        // References.
        (
            json!({"$ref": "#/$defs/a", "$defs": {"a": {}}}),
            json!({"$ref": "#/$defs/a", "$defs": {"a": strings()}}),
            Narrower,
        ),
        (
            json!({"not": {"$ref": "#/$defs/a"}, "$defs": {"a": {}}}),
            json!({"not": {"$ref": "#/$defs/a"}, "$defs": {"a": strings()}}),
            Wider,
        ),
        (
            json!({"$ref": "#/$defs/a", "$defs": {"a": strings()}}),
            json!({"$ref": "#/$defs/b", "$defs": {"a": strings(), "b": {}}}),
            Wider,
        ),
        // The reference leads to an annotation.
        (
            json!({"$ref": "#/default", "default": {"type": "string"}}),
            json!({"$ref": "#/default", "default": {}}),
            Wider,
        ),
        // A sibling ignored by older drafts.
        (strings(), json!({"type": "string", "$ref": "#/$defs/a", "$defs": {"a": {}}}), Wider),
        (json!({"$schema": "a"}), json!({"$schema": "b"}), Wider),
        (json!({"$id": "a", "title": "x"}), json!({"$id": "a"}), Wider),
        (
            json!({"unevaluatedItems": false}),
            json!({"items": true, "unevaluatedItems": false}),
            Wider,
        ),
        // Unknown keywords.
        (json!({}), json!({"x-own": 1}), Wider),
        (json!({"x-own": 1}), json!({}), Wider),
        (json!({"x-own": 1, "title": "a"}), json!({"x-own": 1}), Equal),
    ] {
        assert_eq!(compare(&old, &new), expected, "{old} -> {new}");
        assert_eq!(compare(&old, &old), Equal);
    }
}

#[test]
fn property_name_at_a_new_place_is_a_new_parameter() {
    let new = |old: Value, new: Value| names_a_new_parameter(&old, &new);
    let named = |name: &str| json!({"properties": {name: true}});
    assert!(!new(named("a"), named("a")));
    assert!(new(named("a"), named("b")));
    assert!(new(json!({}), json!({"items": named("a")})));
    assert!(new(json!({}), json!({"anyOf": [{}, named("a")]})));
    assert!(new(json!({}), json!({"$defs": {"x": named("a")}})));
    assert!(new(json!({}), json!({"dependentSchemas": {"x": named("a")}})));
    assert!(!new(json!({"anyOf": [named("a")]}), named("a")), "the same place");
    assert!(new(named("a/b"), json!({"properties": {"a": named("b")}})));
    // Values that only look like schemas.
    assert!(!new(json!({}), json!({"default": named("a"), "enum": [named("a")]})));
}

#[test]
fn huge_schema_is_compared_within_the_step_budget() {
    let many = |bound: u64| {
        let branches: Vec<_> = (0..2000).map(|at| json!({"maxLength": bound + at})).collect();
        json!({"anyOf": branches})
    };
    assert_eq!(compare(&many(1_000_000), &many(1)), Relation::Narrower);
    assert_eq!(compare(&many(1), &many(1_000_000)), Relation::Wider, "4 000 000 pairs");
}

/// Documents of all types, small enough to meet the generated bounds.
fn documents() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-3i64..7).prop_map(Value::from),
        select(vec![1.0, 1.5, 2.0]).prop_map(Value::from),
        "[ab]{0,4}".prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(select(vec!["a", "b", "ab", "c"]), inner, 0..4)
                .prop_map(|members| json!(members)),
        ]
    })
}

/// Schemas with every keyword that is compared.
fn schemas() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(Value::from),
        Just(json!({})),
        Just(json!({"$ref": "#/$defs/d"})),
        select(vec!["string", "integer", "number", "object", "array", "null"])
            .prop_map(|of| json!({"type": of})),
        prop::collection::vec(documents(), 1..4).prop_map(|values| json!({"enum": values})),
        documents().prop_map(|value| json!({"const": value})),
        (select(vec!["maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum"]), -2i64..5)
            .prop_map(|(name, bound)| json!({name: bound})),
        (
            select(vec![
                "maxLength",
                "minLength",
                "maxItems",
                "minItems",
                "maxProperties",
                "minProperties",
                "multipleOf",
            ]),
            1u64..4
        )
            .prop_map(|(name, bound)| json!({name: bound})),
        any::<bool>().prop_map(|unique| json!({"uniqueItems": unique})),
        select(vec!["^a", "b$"]).prop_map(|pattern| json!({"pattern": pattern})),
        prop::collection::vec(select(vec!["a", "b", "c"]), 0..3).prop_map(|mut names| {
            names.sort_unstable();
            names.dedup();
            json!({"required": names})
        }),
    ];
    let merged = |parts: Vec<Value>| {
        let mut whole = Map::new();
        for part in parts {
            if let Value::Object(part) = part {
                whole.extend(part);
            }
        }
        Value::Object(whole)
    };
    leaf.prop_recursive(3, 24, 4, move |inner| {
        let one = (
            select(vec![
                "items",
                "contains",
                "not",
                "additionalProperties",
                "propertyNames",
                "if",
                "then",
                "else",
                "unevaluatedProperties",
                "additionalItems",
            ]),
            inner.clone(),
        );
        let list = (
            select(vec!["anyOf", "allOf", "oneOf", "prefixItems"]),
            prop::collection::vec(inner.clone(), 1..3),
        );
        let named = |names: Vec<&'static str>| {
            prop::collection::btree_map(select(names), inner.clone(), 0..3)
        };
        prop::collection::vec(
            prop_oneof![
                one.prop_map(|(name, schema)| json!({name: schema})),
                list.prop_map(|(name, schemas)| json!({name: schemas})),
                named(vec!["a", "b", "ab"]).prop_map(|of| json!({"properties": of})),
                named(vec!["^a", "b$"]).prop_map(|of| json!({"patternProperties": of})),
                named(vec!["a", "b"]).prop_map(|of| json!({"dependentSchemas": of})),
                named(vec!["d", "e"]).prop_map(|of| json!({"$defs": of})),
                inner.clone(),
            ],
            1..4,
        )
        .prop_map(merged)
    })
}

/// A schema, and a variant with some places changed.
fn pairs() -> impl Strategy<Value = (Value, Value)> {
    let patches =
        prop::collection::vec((any::<prop::sample::Index>(), schemas(), any::<bool>()), 0..3);
    (schemas(), patches).prop_map(|(old, patches)| {
        let mut new = old.clone();
        for (at, patch, whole) in patches {
            let count = places(&mut new, &mut |_| {});
            let at = at.index(count);
            let mut seen = 0;
            places(&mut new, &mut |place| {
                if seen == at {
                    match (&mut *place, &patch) {
                        (Value::Object(there), Value::Object(more)) if !whole => {
                            there.extend(more.clone());
                        }
                        (there, _) => *there = patch.clone(),
                    }
                }
                seen += 1;
            });
        }
        (old, new)
    })
}

/// Visits each subschema. Returns their number.
fn places(schema: &mut Value, visit: &mut impl FnMut(&mut Value)) -> usize {
    let mut count = 1;
    if let Value::Object(members) = schema {
        for (keyword, value) in members {
            let keyword = keyword.as_str();
            match value {
                Value::Object(named) if MAPS.contains(&keyword) => {
                    for schema in named.values_mut() {
                        count += places(schema, visit);
                    }
                }
                Value::Array(list) if LISTS.contains(&keyword) => {
                    for schema in list {
                        count += places(schema, visit);
                    }
                }
                value if SCHEMA.contains(&keyword) => count += places(value, visit),
                _ => {}
            }
        }
    }
    visit(schema);
    count
}

fn accepts(schema: &Schema, document: &Value, scratch: &mut JudgeScratch) -> bool {
    schema.judge(&[Bytes::from(document.to_string())], scratch).verdict == Verdict::Conforms
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, max_shrink_iters: 2000, ..ProptestConfig::default() })]

    /// Every document that a narrower schema accepts is accepted by the old one; equal schemas accept each other's
    /// documents.
    #[test]
    fn narrower_schema_never_accepts_more(
        (old, new) in pairs(),
        documents in prop::collection::vec(documents(), 24),
    ) {
        let relation = compare(&old, &new);
        let settings = Default::default();
        let (Ok(before), Ok(now)) =
            (compiled(old.to_string().as_bytes(), &settings), compiled(new.to_string().as_bytes(), &settings))
        else {
            return Ok(());
        };
        let mut scratch = JudgeScratch::new();
        for document in &documents {
            let (was, is) =
                (accepts(&before, document, &mut scratch), accepts(&now, document, &mut scratch));
            let agrees = match relation {
                Relation::Equal => was == is,
                Relation::Narrower => was || !is,
                Relation::Wider => true,
            };
            prop_assert!(agrees, "{old} -> {new} is {relation:?}, but {document}: {was}, {is}");
        }
    }
}
