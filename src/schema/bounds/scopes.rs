//! How often the tape engine compiles a subschema: once for each way that leads to its resource.
//!
//! A dynamic reference means something else by each way, so that engine keeps what it compiles
//! apart by way. With resources that refer to each other in turn, ways double at each. Owns the
//! count of them; deliberately gives it up at a limit, so that counting takes no longer than that.

use std::collections::{HashMap, HashSet};

use super::graph::Graph;

/// Where a way enters a resource.
struct Entry {
    /// Subschemas that are reached from here without leaving the resource.
    size: u64,
    /// Where ways go on to.
    next: Vec<usize>,
}

impl Graph<'_> {
    /// The number of subschemas to compile, each counted once for each path that leads to it; any
    /// number above `limit` if there are more than that.
    #[must_use]
    pub fn compiled(&self, limit: u64) -> u64 {
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

    /// What can be reached from `start` without leaving its resource, and where it is left.
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

/// What is compiled on all ways from the root that enter nowhere twice.
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use url::Url;

    use super::super::walk::{WalkLimits, follow};

    fn compiled(schema: &Value) -> u64 {
        let base = Url::parse("json-schema:///").unwrap();
        let limits = WalkLimits { subschemas: 10_000, targets: 10_000 };
        follow(schema, &base, "$id", limits).compiled(100_000)
    }

    #[test]
    fn a_resource_counts_once_for_each_way_that_leads_there() {
        let plain = json!({"properties": {"a": {"$ref": "#/$defs/x"}, "b": {"$ref": "#/$defs/x"}},
            "$defs": {"x": {"items": true}}});
        assert_eq!(compiled(&plain), 5);
        // The root, two references to it in a place each, and three ways to the last resource.
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
    fn counting_ends_where_ways_multiply() {
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
