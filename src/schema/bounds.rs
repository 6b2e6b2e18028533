//! What a schema can cost, worked out before anything is evaluated.
//!
//! Owns the graph of subschemas and the worst case over it: how often a value at some depth of a
//! document can be visited, and how deep the visits nest. Both engines recurse and neither can be
//! stopped from outside, so this is what keeps them within time and stack. Deliberately an upper
//! bound: it looks at no keyword that could end an evaluation early.

use std::collections::HashSet;

use serde_json::Value;
use url::Url;

use crate::json::tape::MAX_DEPTH;

mod scopes;
mod walk;

pub use walk::{MAX_PLACES, WalkLimits};

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

/// The worst case of a schema, by depth of the value in the document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Most visits that one value at this depth can get.
    visits: Vec<u64>,
    /// Most visits that are open at the same time while a value at this depth is visited.
    nesting: Vec<u64>,
    /// Depths that are known. Those beyond the last number are as that: most schemas end early.
    depths: usize,
}

impl Cost {
    /// Most visits that a value at `depth` can get.
    #[must_use]
    pub fn visits(&self, depth: usize) -> u64 {
        self.at(&self.visits, depth)
    }

    /// Most visits open at once in a document of `depth`.
    #[must_use]
    pub fn nesting(&self, depth: usize) -> u64 {
        self.at(&self.nesting, depth)
    }

    fn at(&self, numbers: &[u64], depth: usize) -> u64 {
        let known = numbers.get(depth).or(numbers.last()).filter(|_| depth < self.depths);
        known.copied().unwrap_or(u64::MAX)
    }
}

/// What a reference that leaves the schema costs: it can only lead into a standard meta-schema,
/// whose vocabularies share no property.
const META_SCHEMA_VISITS: u64 = 64;

/// The subschemas of one schema, and where each leads.
pub struct Graph<'a> {
    subs: Vec<Sub>,
    /// The number of the resource that each of them belongs to.
    resources: Vec<usize>,
    patterns: Vec<(&'a str, bool)>,
    /// How many of the patterns are matched against each name of an object.
    named_patterns: u64,
    /// Applied to each name of an object.
    names: Vec<usize>,
    /// Every subschema.
    reached: HashSet<*const Value>,
    overflowed: bool,
    scattered: bool,
    lost: Option<Lost>,
    crowded: bool,
}

/// A reference that leads neither into the schema nor to a meta-schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lost {
    /// To another resource.
    Outside(Url),
    /// To a place of the schema that is not there.
    Nothing(String),
    /// Some place of the schema has a name of the meta-schemas.
    Claimed(String),
}

/// The subschemas in an order in which each comes after those it applies to the same value.
struct Order {
    subs: Vec<usize>,
    /// Some of them come back to themselves on the same value.
    circular: bool,
}

/// Where one subschema leads.
#[derive(Default)]
struct Sub {
    /// Applied to the same value.
    here: Vec<usize>,
    /// One of these is applied to a member.
    properties: Vec<usize>,
    /// All of these may be applied to a member as well.
    patterns: Vec<usize>,
    /// Applied to the members that no property or pattern names.
    rest: Vec<usize>,
    /// Applied to any member on top.
    members: Vec<usize>,
    /// One of these is applied to an item.
    positions: Vec<usize>,
    /// Applied to any item on top.
    items: Vec<usize>,
    /// Leads out of the schema.
    leaves: bool,
    /// What a visit costs on top: comparing with the values of an `enum`.
    extra: u64,
}

impl Sub {
    fn children(&self) -> impl Iterator<Item = usize> + '_ {
        [&self.properties, &self.patterns, &self.rest, &self.members, &self.positions, &self.items]
            .into_iter()
            .flatten()
            .copied()
    }
}

impl<'a> Graph<'a> {
    /// Follows `root` within `limits`. `id` is the keyword by which its dialect identifies a
    /// resource.
    #[must_use]
    pub fn new(root: &'a Value, base: &Url, id: &'static str, limits: WalkLimits) -> Self {
        walk::follow(root, base, id, limits)
    }

    /// Every subschema that can be reached from the root.
    #[must_use]
    pub fn reached(&self) -> &HashSet<*const Value> {
        &self.reached
    }

    /// True when a name stands in more than [`MAX_PLACES`] places.
    #[must_use]
    pub fn crowded(&self) -> bool {
        self.crowded
    }

    /// A reference that leads neither into the schema nor to a meta-schema. Whatever an engine
    /// makes of it, its cost is not bounded here.
    #[must_use]
    pub fn lost(&self) -> Option<&Lost> {
        self.lost.as_ref()
    }

    /// True when references lead to more places than asked for.
    #[must_use]
    pub fn scattered(&self) -> bool {
        self.scattered
    }

    /// True when there were more subschemas than asked for.
    #[must_use]
    pub fn overflowed(&self) -> bool {
        self.overflowed
    }

    /// Every regular expression, and whether it may be matched against names of members.
    pub fn patterns(&self) -> impl Iterator<Item = (&'a str, bool)> {
        let of_strings = !self.names.is_empty();
        self.patterns.iter().map(move |&(pattern, of_names)| (pattern, of_names || of_strings))
    }

    /// Most visits that the schema, or any part of it, can pay to a single value; `u64::MAX`
    /// where branching cycles leave no bound.
    #[must_use]
    pub fn expansion(&self) -> u64 {
        let Some(order) = self.order() else { return u64::MAX };
        let mut visits = vec![0; self.subs.len()];
        for at in order.subs {
            self.visit_here(at, &mut visits);
        }
        visits.into_iter().max().unwrap_or(0)
    }

    /// Most visits and matches that the schema pays to one name of an object.
    #[must_use]
    pub fn name_visits(&self) -> u64 {
        let Some(order) = self.order() else { return u64::MAX };
        let mut visits = vec![0; self.subs.len()];
        for at in order.subs {
            self.visit_here(at, &mut visits);
        }
        let names = self.names.iter().map(|&sub| get(&visits, sub));
        names.fold(self.named_patterns, u64::saturating_add)
    }

    /// True when a reference may come back to itself on the same value. What that means no
    /// specification says, so that one engine has to decide it.
    #[must_use]
    pub fn is_circular(&self) -> bool {
        self.order().is_none_or(|order| order.circular)
    }

    /// The worst case for documents of every depth.
    #[must_use]
    pub fn cost(&self) -> Cost {
        let count = self.subs.len();
        let mut cost = Cost { visits: Vec::new(), nesting: Vec::new(), depths: 0 };
        let Some(Order { subs: order, .. }) = self.order() else { return cost };
        let (mut visits, mut nesting) = (vec![0; count], vec![0; count]);
        for &at in &order {
            self.visit_here(at, &mut visits);
            let deepest = self.most(at, &nesting);
            set(&mut nesting, at, deepest + 1 + self.leaving(at));
        }
        cost.visits.push(get(&visits, 0));
        cost.nesting.push(get(&nesting, 0));
        cost.depths = 1 + MAX_DEPTH;
        for _ in 0..MAX_DEPTH {
            let (above, mut below) = (visits, vec![0; count]);
            let (open_above, mut open_below) = (nesting, vec![0; count]);
            for &at in &order {
                let Some(sub) = self.subs.get(at) else { continue };
                let child = self.visit_child(sub, &above);
                let all = self.all(at, &below).saturating_add(child);
                set(&mut below, at, all);
                let open = sub.children().map(|c| get(&open_above, c)).max().unwrap_or(0);
                let deepest = open.max(self.most(at, &open_below));
                let leaving = self.leaving(at);
                set(
                    &mut open_below,
                    at,
                    if deepest + leaving > 0 { deepest + 1 + leaving } else { 0 },
                );
            }
            let settled = below == above && open_below == open_above;
            (visits, nesting) = (below, open_below);
            let deepest = get(&nesting, 0).max(cost.nesting.last().copied().unwrap_or(0));
            cost.visits.push(get(&visits, 0));
            cost.nesting.push(deepest);
            if settled {
                break;
            }
        }
        cost.visits.shrink_to_fit();
        cost.nesting.shrink_to_fit();
        cost
    }

    fn visit_here(&self, at: usize, visits: &mut [u64]) {
        let extra = self.subs.get(at).map_or(0, |sub| sub.extra);
        let own = extra + if self.leaving(at) > 0 { META_SCHEMA_VISITS } else { 1 };
        let all = self.all(at, visits).saturating_add(own);
        set(visits, at, all);
    }

    fn visit_child(&self, sub: &Sub, above: &[u64]) -> u64 {
        let sum = |subs: &[usize]| {
            subs.iter().fold(0_u64, |sum, &sub| sum.saturating_add(get(above, sub)))
        };
        let max = |subs: &[usize]| subs.iter().map(|&sub| get(above, sub)).max().unwrap_or(0);
        let member = max(&sub.properties)
            .saturating_add(sum(&sub.patterns))
            .max(sum(&sub.rest))
            .saturating_add(sum(&sub.members));
        let item = max(&sub.positions).saturating_add(sum(&sub.items));
        let own = if sub.leaves { META_SCHEMA_VISITS } else { 0 };
        member.max(item).saturating_add(own)
    }

    fn here(&self, at: usize) -> &[usize] {
        self.subs.get(at).map_or(&[], |sub| &sub.here)
    }

    fn leaving(&self, at: usize) -> u64 {
        const META_SCHEMA_NESTING: u64 = 8;
        if self.subs.get(at).is_some_and(|sub| sub.leaves) { META_SCHEMA_NESTING } else { 0 }
    }

    fn all(&self, at: usize, of: &[u64]) -> u64 {
        self.here(at).iter().fold(0, |sum, &next| sum.saturating_add(get(of, next)))
    }

    fn most(&self, at: usize, of: &[u64]) -> u64 {
        self.here(at).iter().map(|&next| get(of, next)).max().unwrap_or(0)
    }

    /// A simple cycle is cut where it closes. None when a cycle branches: the number of ways
    /// around it has no useful bound.
    fn order(&self) -> Option<Order> {
        #[derive(Clone, Copy, PartialEq)]
        enum Mark {
            New,
            Open,
            Done,
        }
        let mut marks = vec![Mark::New; self.subs.len()];
        let mut order = Order { subs: Vec::with_capacity(self.subs.len()), circular: false };
        for start in 0..self.subs.len() {
            let mut path = vec![(start, 0)];
            while let Some((at, edge)) = path.last_mut() {
                let at = *at;
                let mark = marks.get_mut(at)?;
                if *edge == 0 {
                    if *mark != Mark::New {
                        path.pop();
                        continue;
                    }
                    *mark = Mark::Open;
                }
                if let Some(&next) = self.here(at).get(*edge) {
                    *edge += 1;
                    match marks.get(next)? {
                        Mark::New => path.push((next, 0)),
                        Mark::Done => {}
                        Mark::Open => {
                            order.circular = true;
                            // From the end: the cycle, not what leads to it.
                            let from = path.iter().rposition(|(sub, _)| *sub == next)?;
                            let ways = path.iter().skip(from).map(|(sub, _)| self.here(*sub).len());
                            if ways.max() > Some(1) {
                                return None;
                            }
                        }
                    }
                } else {
                    set(&mut marks, at, Mark::Done);
                    order.subs.push(at);
                    path.pop();
                }
            }
        }
        Some(order)
    }
}

fn get(of: &[u64], at: usize) -> u64 {
    of.get(at).copied().unwrap_or(0)
}

fn set<T>(of: &mut [T], at: usize, to: T) {
    if let Some(slot) = of.get_mut(at) {
        *slot = to;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;

    fn base() -> Url {
        Url::parse("json-schema:///").unwrap()
    }

    fn limits(subschemas: usize) -> WalkLimits {
        WalkLimits { subschemas, targets: 1000 }
    }

    fn expansion(schema: &Value) -> u64 {
        Graph::new(schema, &base(), "$id", limits(10_000)).expansion()
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
            let graph = Graph::new(&schema, &base(), "$id", limits(100));
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
        let circular = |schema| Graph::new(&schema, &base(), "$id", limits(100)).is_circular();
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
        let cost = Graph::new(&list, &base(), "$id", limits(100)).cost();
        assert_eq!((cost.visits(0), cost.visits(1), cost.visits(100)), (1, 2, 2));
        assert_eq!((cost.nesting(0), cost.nesting(1), cost.nesting(100)), (1, 3, 201));
        let twice = json!({"anyOf": [
            {"properties": {"next": {"$ref": "#"}}}, {"properties": {"next": {"$ref": "#"}}}]});
        let cost = Graph::new(&twice, &base(), "$id", limits(100)).cost();
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
        assert_eq!(Graph::new(&schema, &base(), "$id", limits(100)).cost().visits(1), 4);
    }

    #[test]
    fn subschemas_and_patterns_are_counted() {
        let schema = json!({"pattern": "a", "patternProperties": {"b": {"pattern": "c"}}});
        let graph = Graph::new(&schema, &base(), "$id", limits(2));
        assert!(!graph.overflowed());
        let patterns: Vec<_> = graph.patterns().collect();
        assert_eq!(patterns, [("a", false), ("b", true), ("c", false)]);
        assert_eq!(graph.name_visits(), 1);
        let named = json!({"propertyNames": {"anyOf": [true, true]}});
        assert_eq!(Graph::new(&named, &base(), "$id", limits(9)).name_visits(), 3);
        assert!(Graph::new(&schema, &base(), "$id", limits(1)).overflowed());
    }
}
