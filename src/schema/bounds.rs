//! What a schema can cost, worked out before anything is evaluated.
//!
//! Owns the graph of subschemas and the worst case over it: how often a value at some depth of a
//! document can be visited, and how deep the visits nest. Both engines recurse and neither can be
//! stopped from outside, so this is what keeps them within time and stack. Deliberately an upper
//! bound: it looks at no keyword that could end an evaluation early.

mod cost;
mod graph;
mod scopes;
mod walk;

pub use cost::Cost;
pub use graph::{Graph, Lost};
pub use walk::{MAX_PLACES, WalkLimits, follow};

/// Limits on one schema. Past any of them the schema is not used (FR-A9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of the schema's text.
    pub bytes: usize,
    /// Nesting of the schema's text.
    pub depth: usize,
    /// Subschemas, booleans included.
    pub subschemas: usize,
    /// Places that references lead to, all together.
    pub targets: usize,
    /// Subschemas to compile, each counted for each way that leads to its resource.
    pub compiled: u64,
    /// Subschemas to compile beyond which boon is not asked: its compiler looks each of them up
    /// among all, so that its time grows with their square.
    pub boon_subschemas: u64,
    /// Bytes of one regular expression.
    pub pattern_bytes: usize,
    /// Compiled size of all regular expressions together, in bytes.
    pub pattern_program: usize,
    /// Visits that one value can get from the schema: applicator branches multiplied along
    /// `$ref` paths, cycles counted once.
    pub expansion: u64,
    /// Visits to one value that may be open at once: both engines recurse.
    pub nesting: u64,
}

/// Visits that may be open at once, in whatever document: both engines recurse, and take up to
/// 4 KiB of stack for a visit. So judging fits a thread of 2 MiB.
pub const NESTING: u64 = 400;

impl Default for Bounds {
    fn default() -> Self {
        Self {
            bytes: 16 << 20,
            depth: 100,
            subschemas: 100_000,
            targets: 1_000_000,
            compiled: 200_000,
            boon_subschemas: 20_000,
            pattern_bytes: 4 << 10,
            pattern_program: 16 << 20,
            expansion: 10_000,
            nesting: NESTING / 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};
    use url::Url;

    use super::*;
    use crate::schema::bounds::cost::META_SCHEMA_VISITS;

    fn base() -> Url {
        Url::parse("json-schema:///").unwrap()
    }

    fn limits(subschemas: usize) -> WalkLimits {
        WalkLimits { subschemas, targets: 1000 }
    }

    fn expansion(schema: &Value) -> u64 {
        follow(schema, &base(), "$id", limits(10_000)).expansion()
    }

    #[test]
    fn branches_multiply_along_references() {
        assert_eq!(expansion(&json!(true)), 1);
        assert_eq!(expansion(&json!({"type": "string"})), 1);
        assert_eq!(expansion(&json!({"anyOf": [true, true, {"not": true}]})), 5);
        let chain = |n: usize| {
            let defs: Map<String, Value> = (0..n)
                .map(|i| {
                    let next = json!({"$ref": format!("#/$defs/d{}", i + 1)});
                    (format!("d{i}"), json!({"anyOf": [next.clone(), next]}))
                })
                .chain([(format!("d{n}"), json!({"type": "integer"}))])
                .collect();
            expansion(&json!({"$defs": defs, "$ref": "#/$defs/d0"}))
        };
        // Each level is visited, and both of its references are.
        assert_eq!(chain(1), 1 + 1 + 2 * 2);
        assert!(chain(20) > 1 << 20);
        assert!(chain(200) > 1 << 60);
    }

    #[test]
    fn a_reference_is_followed_by_pointer_id_and_anchor() {
        for reference in [
            "#/$defs/a",
            "#/$defs/%61",
            "#name",
            "other.json",
            "other.json#",
            "json-schema:///other.json",
        ] {
            let schema = json!({
                "$ref": reference,
                "$defs": {
                    "a": {"$anchor": "name", "anyOf": [true, true, true]},
                    "b": {"$id": "other.json", "anyOf": [true, true, true]},
                },
            });
            let graph = follow(&schema, &base(), "$id", limits(100));
            assert_eq!(graph.cost().visits(0), 5, "{reference}");
        }
    }

    #[test]
    fn what_leads_out_of_the_schema_has_a_price() {
        let schema = json!({"$ref": "https://json-schema.org/draft/2020-12/schema"});
        assert_eq!(expansion(&schema), META_SCHEMA_VISITS);
    }

    #[test]
    fn a_cycle_counts_once_and_one_that_branches_has_no_bound() {
        assert_eq!(expansion(&json!({"$ref": "#"})), 1);
        let ring = json!({"$ref": "#/$defs/a", "$defs": {
            "a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}});
        assert_eq!(expansion(&ring), 3);
        assert_eq!(expansion(&json!({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]})), u64::MAX);
        let circular = |schema| follow(&schema, &base(), "$id", limits(100)).is_circular();
        assert!(circular(ring));
        assert!(circular(json!({"allOf": [{"$ref": "#"}]})));
        assert!(!circular(json!({"properties": {"next": {"$ref": "#"}}})));
        // Found by the fuzz target `validate`: up to draft 7 the identifier means nothing here.
        assert!(circular(json!({"$ref": "#/$defs/b",
            "$defs": {"b": {"$id": "b.json", "$ref": "#/$defs/b"}}})));
    }

    #[test]
    fn a_recursive_schema_visits_each_value_once_per_alternative() {
        let list = json!({"properties": {"next": {"$ref": "#"}, "value": {"type": "integer"}}});
        let cost = follow(&list, &base(), "$id", limits(100)).cost();
        assert_eq!((cost.visits(0), cost.visits(1), cost.visits(100)), (1, 2, 2));
        assert_eq!((cost.nesting(0), cost.nesting(1), cost.nesting(100)), (1, 3, 201));
        let twice = json!({"anyOf": [
            {"properties": {"next": {"$ref": "#"}}}, {"properties": {"next": {"$ref": "#"}}}]});
        let cost = follow(&twice, &base(), "$id", limits(100)).cost();
        assert_eq!((cost.visits(0), cost.visits(1), cost.visits(2)), (3, 8, 16));
        assert!(cost.visits(100) > 1 << 60);
    }

    #[test]
    fn a_member_is_visited_by_one_property_but_by_every_pattern() {
        let schema = json!({
            "properties": {"a": true, "b": true},
            "patternProperties": {"x": true, "y": true},
            "additionalProperties": {"anyOf": [true, true]},
            "unevaluatedProperties": true,
        });
        assert_eq!(follow(&schema, &base(), "$id", limits(100)).cost().visits(1), 4);
    }

    #[test]
    fn subschemas_and_patterns_are_counted() {
        let schema = json!({"pattern": "a", "patternProperties": {"b": {"pattern": "c"}}});
        let graph = follow(&schema, &base(), "$id", limits(2));
        assert!(!graph.overflowed());
        let patterns: Vec<_> = graph.patterns().collect();
        assert_eq!(patterns, [("a", false), ("b", true), ("c", false)]);
        assert_eq!(graph.name_visits(), 1);
        let named = json!({"propertyNames": {"anyOf": [true, true]}});
        assert_eq!(follow(&named, &base(), "$id", limits(9)).name_visits(), 3);
        assert!(follow(&schema, &base(), "$id", limits(1)).overflowed());
    }
}
