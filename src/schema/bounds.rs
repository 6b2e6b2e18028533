//! Static cost analysis: upper bound of an evaluation, computed when a schema is compiled.
//!
//! Builds the graph of subschemas and determines its worst case: the number of visits to a value at each depth of a document, and their
//! nesting. Both engines recurse and cannot be interrupted; this analysis bounds their time and stack. Keywords that could end an
//! evaluation early are ignored.
//!
//! The tape engine compiles a subschema once per path to its resource, since a dynamic reference depends on the path; these copies are
//! counted too. If resources refer to each other, each of them doubles the number of paths. Counting stops at a limit, which bounds its
//! time.

mod walk;

use std::collections::{HashMap, HashSet};

use serde_json::Value;
use url::Url;

use mcpproxy_json::tape::MAX_DEPTH;

pub use walk::{MAX_PLACES, WalkLimits, follow};

/// Limits on one schema. A schema that exceeds any of them is not used (FR-A9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Maximum size of the schema's text in bytes.
    pub bytes: usize,
    /// Maximum nesting of the schema's text.
    pub depth: usize,
    pub subschemas: usize,
    /// Maximum number of targets of references.
    pub targets: usize,
    /// Maximum number of subschemas to compile, each counted once per path to its resource.
    pub compiled: u64,
    /// Number of subschemas above which boon is not used: its compiler takes quadratic time.
    pub boon_subschemas: u64,
    /// Maximum length of a regular expression in bytes.
    pub pattern_bytes: usize,
    /// Maximum compiled size of all regular expressions together, in bytes.
    pub pattern_program: usize,
    /// Maximum number of visits to one value: applicator branches multiplied along `$ref` paths; cycles are counted once.
    pub expansion: u64,
    /// Maximum number of simultaneously open visits to one value: both engines recurse.
    pub nesting: u64,
}

/// Maximum number of simultaneously open visits in any document. Both engines recurse with up to 4 KiB of stack per visit, so an
/// evaluation fits a thread of 2 MiB.
pub(crate) const NESTING: u64 = 400;

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

/// Graph of the subschemas of one schema.
pub struct Graph<'a> {
    /// Nodes; the root is the first.
    subs: Vec<Sub>,
    /// Resource of each node.
    resources: Vec<usize>,
    patterns: Vec<(&'a str, bool)>,
    /// Number of patterns matched against each name of an object.
    named_patterns: u64,
    /// Node applied to each name of an object.
    names: Vec<usize>,
    reached: HashSet<*const Value>,
    overflowed: bool,
    scattered: bool,
    lost: Option<Lost>,
    crowded: bool,
}

/// Reference that resolves neither in the schema nor to a meta-schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lost {
    Outside(Url),
    /// The target does not exist in the schema.
    Nothing(String),
    /// A part of the schema has the name of a meta-schema.
    Claimed(String),
}

/// Edges of one subschema.
#[derive(Default)]
struct Sub {
    /// Subschemas that apply to the same value.
    here: Vec<usize>,
    /// Subschemas of which exactly one applies to a declared member.
    properties: Vec<usize>,
    /// Subschemas of patterns. Each of them may apply to a member as well.
    patterns: Vec<usize>,
    /// Subschemas for members that no property or pattern matches.
    rest: Vec<usize>,
    /// Subschemas that apply to every member in addition.
    members: Vec<usize>,
    /// Subschemas of which exactly one applies to an item.
    positions: Vec<usize>,
    /// Subschemas that apply to every item in addition.
    items: Vec<usize>,
    /// Whether a reference leads out of the schema.
    leaves: bool,
    /// Additional cost of a visit: comparison with the values of an `enum`.
    extra: u64,
}

impl Sub {
    /// All nodes applied to a member or an item.
    fn children(&self) -> impl Iterator<Item = usize> + '_ {
        [&self.properties, &self.patterns, &self.rest, &self.members, &self.positions, &self.items]
            .into_iter()
            .flatten()
            .copied()
    }
}

impl<'a> Graph<'a> {
    /// Subschemas that are reachable from the root.
    pub(crate) fn reached(&self) -> &HashSet<*const Value> {
        &self.reached
    }

    /// Whether a name has more than [`MAX_PLACES`] places.
    pub(crate) fn crowded(&self) -> bool {
        self.crowded
    }

    /// Reference that resolves neither in the schema nor to a meta-schema. Its cost is not bounded here.
    pub(crate) fn lost(&self) -> Option<&Lost> {
        self.lost.as_ref()
    }

    /// Whether references have more targets than the limit.
    pub(crate) fn scattered(&self) -> bool {
        self.scattered
    }

    /// Whether there are more subschemas than the limit.
    pub(crate) fn overflowed(&self) -> bool {
        self.overflowed
    }

    /// Regular expressions, each with a flag that states whether it may be matched against names of members.
    pub(crate) fn patterns(&self) -> impl Iterator<Item = (&'a str, bool)> {
        let of_strings = !self.names.is_empty();
        self.patterns.iter().map(move |&(pattern, of_names)| (pattern, of_names || of_strings))
    }
}

/// Entry point of a path into a resource, for counting subschemas.
struct Entry {
    /// Number of subschemas that can be reached without leaving the resource.
    size: u64,
    /// Entry points that follow this one.
    next: Vec<usize>,
}

impl Graph<'_> {
    /// Number of subschemas to compile, each counted once per path; any number above `limit` if there are more than `limit`.
    pub(crate) fn compiled(&self, limit: u64) -> u64 {
        let mut entries: HashMap<usize, Entry> = HashMap::new();
        let mut pending = vec![0];
        let mut looked_at = 0;
        while let Some(start) = pending.pop() {
            if entries.contains_key(&start) {
                continue;
            }
            let entry = self.entry(start);
            looked_at += entry.size;
            if looked_at > limit {
                return looked_at;
            }
            pending.extend(&entry.next);
            entries.insert(start, entry);
        }
        ways(&entries, limit)
    }

    /// Subschemas reached from `start` without leaving its resource, and the exits.
    fn entry(&self, start: usize) -> Entry {
        let resource = self.resources.get(start);
        let (mut seen, mut next) = (HashSet::from([start]), HashSet::new());
        let mut pending = vec![start];
        while let Some(at) = pending.pop() {
            let Some(sub) = self.subs.get(at) else { continue };
            for to in sub.here.iter().copied().chain(sub.children()) {
                if self.resources.get(to) != resource {
                    next.insert(to);
                } else if seen.insert(to) {
                    pending.push(to);
                }
            }
        }
        Entry { size: seen.len() as u64, next: next.into_iter().collect() }
    }
}

/// Number of subschemas on all simple paths from the root.
fn ways(entries: &HashMap<usize, Entry>, limit: u64) -> u64 {
    let size = |at| entries.get(&at).map_or(1, |entry| entry.size);
    let mut compiled = size(0);
    let (mut way, mut on_way) = (vec![(0, 0)], HashSet::from([0]));
    while let Some((at, edge)) = way.last_mut() {
        let next = entries.get(at).and_then(|entry| entry.next.get(*edge));
        *edge += 1;
        match next {
            Some(&to) if on_way.insert(to) => {
                compiled += size(to);
                way.push((to, 0));
            }
            Some(_) => {}
            None => {
                on_way.remove(at);
                way.pop();
            }
        }
        if compiled > limit {
            break;
        }
    }
    compiled
}

/// Worst case of a schema, by depth of the value in the document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cost {
    /// Maximum number of visits to one value at this depth.
    visits: Vec<u64>,
    /// Maximum number of simultaneously open visits at this depth.
    nesting: Vec<u64>,
    /// Costs by depth. Greater depths cost as much as the last entry.
    depths: usize,
}

impl Cost {
    /// Maximum number of visits to a value at `depth`.
    pub(crate) fn visits(&self, depth: usize) -> u64 {
        self.at(&self.visits, depth)
    }

    /// Maximum number of simultaneously open visits in a document of `depth`.
    pub(crate) fn nesting(&self, depth: usize) -> u64 {
        self.at(&self.nesting, depth)
    }

    fn at(&self, numbers: &[u64], depth: usize) -> u64 {
        let known = numbers.get(depth).or(numbers.last()).filter(|_| depth < self.depths);
        known.copied().unwrap_or(u64::MAX)
    }
}

/// Cost of a reference out of the schema. Such a reference can lead only to a standard meta-schema, whose vocabularies
/// do not share properties.
const META_SCHEMA_VISITS: u64 = 64;

/// Subschemas in topological order: each one comes after the subschemas that it applies to the same value.
struct Order {
    subs: Vec<usize>,
    /// Whether some of the subschemas form a cycle on the same value.
    circular: bool,
}

impl Graph<'_> {
    /// Maximum number of visits of the schema, or any part of it, to a single value; `u64::MAX` if branching cycles make it unbounded.
    pub(crate) fn expansion(&self) -> u64 {
        let Some(order) = self.order() else { return u64::MAX };
        let mut visits = vec![0; self.subs.len()];
        for at in order.subs {
            self.visit_here(at, &mut visits);
        }
        visits.into_iter().max().unwrap_or(0)
    }

    /// Maximum number of visits and matches for one name of an object.
    pub(crate) fn name_visits(&self) -> u64 {
        let Some(order) = self.order() else { return u64::MAX };
        let mut visits = vec![0; self.subs.len()];
        for at in order.subs {
            self.visit_here(at, &mut visits);
        }
        let names = self.names.iter().map(|&sub| get(&visits, sub));
        names.fold(self.named_patterns, u64::saturating_add)
    }

    /// Whether a reference may be cyclic on the same value. The specifications do not define its meaning, so one engine has to decide.
    pub(crate) fn is_circular(&self) -> bool {
        self.order().is_none_or(|order| order.circular)
    }

    /// Worst case for documents of every depth.
    pub(crate) fn cost(&self) -> Cost {
        let count = self.subs.len();
        let mut cost = Cost { visits: Vec::new(), nesting: Vec::new(), depths: 0 };
        let Some(Order { subs: order, .. }) = self.order() else { return cost };
        let (mut visits, mut nesting) = (vec![0; count], vec![0; count]);
        for &at in &order {
            self.visit_here(at, &mut visits);
            let deepest = self.max_here(at, &nesting);
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
                let deepest = open.max(self.max_here(at, &open_below));
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

    fn max_here(&self, at: usize, of: &[u64]) -> u64 {
        self.here(at).iter().map(|&next| get(of, next)).max().unwrap_or(0)
    }

    /// Topological order of the subschemas. A simple cycle is cut at its closing edge. `None` for a branching cycle, whose number of paths
    /// has no useful bound.
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
                            // The search starts at the end, to find the cycle without the path that leads to it.
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
    use serde_json::{Map, Value, json};
    use url::Url;

    use super::META_SCHEMA_VISITS;
    use super::*;

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
    fn branch_counts_are_multiplied_along_references() {
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
        // Each level is visited, and so is each of its two references.
        assert_eq!(chain(1), 1 + 1 + 2 * 2);
        assert!(chain(20) > 1 << 20);
        assert!(chain(200) > 1 << 60);
    }

    #[test]
    fn references_resolve_by_pointer_id_and_anchor() {
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
    fn reference_to_a_meta_schema_has_a_fixed_cost() {
        let schema = json!({"$ref": "https://json-schema.org/draft/2020-12/schema"});
        assert_eq!(expansion(&schema), META_SCHEMA_VISITS);
    }

    #[test]
    fn simple_cycle_counts_once_and_a_branching_one_is_unbounded() {
        assert_eq!(expansion(&json!({"$ref": "#"})), 1);
        let ring = json!({"$ref": "#/$defs/a", "$defs": {
            "a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}});
        assert_eq!(expansion(&ring), 3);
        assert_eq!(expansion(&json!({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]})), u64::MAX);
        let circular = |schema| follow(&schema, &base(), "$id", limits(100)).is_circular();
        assert!(circular(ring));
        assert!(circular(json!({"allOf": [{"$ref": "#"}]})));
        assert!(!circular(json!({"properties": {"next": {"$ref": "#"}}})));
        // Found by the fuzz target `validate`: up to draft 7, an identifier next to a reference has no meaning.
        assert!(circular(json!({"$ref": "#/$defs/b",
            "$defs": {"b": {"$id": "b.json", "$ref": "#/$defs/b"}}})));
    }

    #[test]
    fn recursive_alternatives_multiply_the_visits_per_level() {
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
    fn member_is_visited_by_one_property_and_every_pattern() {
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

#[cfg(test)]
mod scopes_tests {
    use serde_json::{Value, json};
    use url::Url;

    use super::walk::{WalkLimits, follow};

    fn compiled(schema: &Value) -> u64 {
        let base = Url::parse("json-schema:///").unwrap();
        let limits = WalkLimits { subschemas: 10_000, targets: 10_000 };
        follow(schema, &base, "$id", limits).compiled(100_000)
    }

    #[test]
    fn resource_counts_once_per_path() {
        let plain = json!({"properties": {"a": {"$ref": "#/$defs/x"}, "b": {"$ref": "#/$defs/x"}},
            "$defs": {"x": {"items": true}}});
        assert_eq!(compiled(&plain), 5);
        // The count consists of the root, two references to it, and three paths to the last resource.
        let ways = json!({"properties": {"a": {"$ref": "a"}, "b": {"$ref": "b"}, "c": {"$ref": "c"}},
            "$defs": {
                "a": {"$id": "a", "items": {"$ref": "c"}},
                "b": {"$id": "b", "items": {"$ref": "c"}},
                "c": {"$id": "c", "items": true}}});
        assert_eq!(compiled(&ways), 4 + 2 + 2 + 3 * 2);
        let cycle = json!({"$id": "a", "items": {"$ref": "b"},
            "$defs": {"b": {"$id": "b", "items": {"$ref": "a"}}}});
        assert_eq!(compiled(&cycle), 4);
    }

    #[test]
    fn schema_counting_stops_at_the_limit() {
        let clique = |size: usize| {
            let refs = |_: usize| -> Value {
                (0..size).map(|to| (format!("p{to}"), json!({"$ref": format!("r{to}")}))).collect()
            };
            let defs: Value = (0..size)
                .map(|at| {
                    (format!("r{at}"), json!({"$id": format!("r{at}"), "properties": refs(at)}))
                })
                .collect();
            compiled(&json!({"$ref": "r0", "$defs": defs}))
        };
        assert!(clique(5) < 1000);
        assert!(clique(60) > 100_000);
    }
}
