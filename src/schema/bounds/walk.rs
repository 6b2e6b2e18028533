//! From a schema's text to its graph: where each subschema leads.
//!
//! Owns identifiers, anchors and references. Deliberately follows every keyword in every dialect:
//! what it sees too much only makes the bound higher.

use std::collections::HashMap;

use serde_json::{Map, Value};
use url::Url;

use super::{Graph, Sub};

/// Values of an `enum` that take as long to compare with as a visit.
const ENUM_VALUES_PER_VISIT: u64 = 16;

/// A subschema still to be looked at.
struct Pending<'a> {
    value: &'a Value,
    base: Url,
}

/// Places of the schema that a reference can name.
struct Names<'a> {
    /// Resource URI → where it starts.
    resources: HashMap<Url, &'a Value>,
    /// Resource URI and anchor → where it stands.
    anchors: HashMap<(Url, &'a str), (&'a Value, Url)>,
    /// Dynamic anchor → all places that have it.
    dynamic: HashMap<&'a str, Vec<(&'a Value, Url)>>,
    /// Roots of recursive references.
    recursive: Vec<(&'a Value, Url)>,
    /// Where references lead too when an identifier stands beside one, which up to draft 7 means
    /// nothing: from the root.
    beside: Option<Url>,
}

struct Walk<'a> {
    names: Names<'a>,
    known: HashMap<*const Value, usize>,
    pending: Vec<Pending<'a>>,
    graph: Graph<'a>,
    limit: usize,
}

/// The graph of `root`, at most `limit` subschemas of it.
pub(super) fn follow<'a>(root: &'a Value, base: &Url, limit: usize) -> Graph<'a> {
    let mut names = Names {
        resources: HashMap::new(),
        anchors: HashMap::new(),
        dynamic: HashMap::new(),
        recursive: Vec::new(),
        beside: None,
    };
    names.resources.insert(base.clone(), root);
    let beside = names.collect(root, base);
    names.beside = beside.then(|| base.clone());
    let graph = Graph {
        subs: Vec::new(),
        patterns: Vec::new(),
        named_patterns: 0,
        names: Vec::new(),
        overflowed: false,
    };
    let mut walk = Walk { names, known: HashMap::new(), pending: Vec::new(), graph, limit };
    walk.reach(root, base.clone());
    let mut next = 0;
    while let Some(pending) = walk.pending.get(next) {
        let (value, base) = (pending.value, pending.base.clone());
        if let Value::Object(members) = value {
            let sub = walk.follow(members, &base);
            if let Some(slot) = walk.graph.subs.get_mut(next) {
                *slot = sub;
            }
        }
        next += 1;
    }
    walk.graph
}

impl<'a> Names<'a> {
    /// True when an identifier stands beside a reference somewhere.
    fn collect(&mut self, value: &'a Value, base: &Url) -> bool {
        match value {
            Value::Object(members) => {
                let base = &self.enter(value, members, base);
                let has = |name| members.get(name).is_some_and(Value::is_string);
                let beside = has("$ref") && (has("$id") || has("id"));
                members.values().fold(beside, |any, member| self.collect(member, base) || any)
            }
            Value::Array(items) => {
                let mut any = false;
                for item in items {
                    any |= self.collect(item, base);
                }
                any
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
        }
    }

    fn enter(&mut self, value: &'a Value, members: &'a Map<String, Value>, base: &Url) -> Url {
        let text = |name| members.get(name).and_then(Value::as_str);
        let base = rebase(members, base);
        if base.1 {
            self.resources.insert(base.0.clone(), value);
        }
        let base = base.0;
        let fragment_id = text("$id").or(text("id")).and_then(|id| id.strip_prefix('#'));
        for anchor in [text("$anchor"), text("$dynamicAnchor"), fragment_id].into_iter().flatten() {
            self.anchors.insert((base.clone(), anchor), (value, base.clone()));
        }
        if let Some(anchor) = text("$dynamicAnchor") {
            self.dynamic.entry(anchor).or_default().push((value, base.clone()));
        }
        if members.get("$recursiveAnchor") == Some(&Value::Bool(true)) {
            self.recursive.push((value, base.clone()));
        }
        base
    }

    /// Where `reference` leads; nowhere when it leaves the schema.
    fn resolve(&self, reference: &str, base: &Url) -> Option<(&'a Value, Url)> {
        let mut target = base.join(reference).ok()?;
        let fragment = target.fragment().unwrap_or_default().to_owned();
        target.set_fragment(None);
        let resource = *self.resources.get(&target)?;
        let fragment = percent_encoding::percent_decode_str(&fragment).decode_utf8().ok()?;
        if !fragment.is_empty() && !fragment.starts_with('/') {
            return self.anchors.get(&(target, fragment.as_ref())).cloned();
        }
        let (mut value, mut base) = (resource, target);
        for token in fragment.split('/').skip(1) {
            let token = token.replace("~1", "/").replace("~0", "~");
            value = match value {
                Value::Object(members) => members.get(&token)?,
                Value::Array(items) => items.get(token.parse::<usize>().ok()?)?,
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => return None,
            };
            if let Value::Object(members) = value {
                base = rebase(members, &base).0;
            }
        }
        Some((value, base))
    }
}

/// The base URI inside an object, and whether the object is a resource of its own.
fn rebase(members: &Map<String, Value>, base: &Url) -> (Url, bool) {
    let id = members.get("$id").or(members.get("id")).and_then(Value::as_str);
    let joined = id.filter(|id| !id.starts_with('#')).and_then(|id| base.join(id).ok());
    match joined {
        Some(mut joined) => {
            joined.set_fragment(None);
            (joined, true)
        }
        None => (base.clone(), false),
    }
}

impl<'a> Walk<'a> {
    /// The number of the subschema at `value`, which is looked at later if it is new.
    fn reach(&mut self, value: &'a Value, base: Url) -> usize {
        let next = self.graph.subs.len();
        let at = *self.known.entry(std::ptr::from_ref(value)).or_insert(next);
        if at == next {
            if next >= self.limit {
                self.graph.overflowed = true;
                self.known.remove(&std::ptr::from_ref(value));
                return 0;
            }
            self.graph.subs.push(Sub::default());
            let base = match value {
                Value::Object(members) => rebase(members, &base).0,
                _ => base,
            };
            self.pending.push(Pending { value, base });
        }
        at
    }

    fn one(&mut self, members: &'a Map<String, Value>, name: &str, base: &Url) -> Vec<usize> {
        match members.get(name) {
            Some(value @ (Value::Object(_) | Value::Bool(_))) => {
                vec![self.reach(value, base.clone())]
            }
            Some(Value::Array(_) | Value::Null | Value::Number(_) | Value::String(_)) | None => {
                Vec::new()
            }
        }
    }

    fn list(&mut self, members: &'a Map<String, Value>, name: &str, base: &Url) -> Vec<usize> {
        let items = members.get(name).and_then(Value::as_array);
        items.into_iter().flatten().map(|item| self.reach(item, base.clone())).collect()
    }

    fn map(&mut self, members: &'a Map<String, Value>, name: &str, base: &Url) -> Vec<usize> {
        let map = members.get(name).and_then(Value::as_object);
        let schemas = map.into_iter().flat_map(Map::values).filter(|value| !value.is_array());
        schemas.map(|value| self.reach(value, base.clone())).collect()
    }

    fn follow(&mut self, members: &'a Map<String, Value>, base: &Url) -> Sub {
        let mut sub = Sub::default();
        for name in ["allOf", "anyOf", "oneOf"] {
            sub.here.extend(self.list(members, name, base));
        }
        for name in ["not", "if", "then", "else"] {
            sub.here.extend(self.one(members, name, base));
        }
        for name in ["dependentSchemas", "dependencies"] {
            sub.here.extend(self.map(members, name, base));
        }
        for name in ["$ref", "$dynamicRef", "$recursiveRef"] {
            if let Some(reference) = members.get(name).and_then(Value::as_str) {
                self.refer(name, reference, base, &mut sub);
            }
        }
        sub.properties = self.map(members, "properties", base);
        sub.patterns = self.map(members, "patternProperties", base);
        sub.rest = self.one(members, "additionalProperties", base);
        for name in ["propertyNames", "unevaluatedProperties"] {
            sub.members.extend(self.one(members, name, base));
        }
        let names = self.one(members, "propertyNames", base);
        self.graph.names.extend(names);
        for name in ["items", "prefixItems"] {
            sub.positions.extend(self.list(members, name, base));
        }
        for name in ["items", "additionalItems"] {
            sub.positions.extend(self.one(members, name, base));
        }
        for name in ["contains", "unevaluatedItems"] {
            sub.items.extend(self.one(members, name, base));
        }
        sub.extra = members.get("enum").map_or(0, size) / ENUM_VALUES_PER_VISIT;
        self.graph.patterns.extend(members.get("pattern").and_then(Value::as_str));
        let named = members.get("patternProperties").and_then(Value::as_object);
        self.graph.patterns.extend(named.into_iter().flat_map(Map::keys).map(String::as_str));
        // Engines go over the names once for each pattern, or once for all of them where the rest
        // is checked as well.
        let at_once = ["additionalProperties", "unevaluatedProperties"];
        let at_once = at_once.iter().any(|name| members.contains_key(*name));
        let count = named.map_or(0, |named| named.len() as u64);
        self.graph.named_patterns += if at_once { count } else { count.min(1) };
        sub
    }

    fn refer(&mut self, keyword: &str, reference: &'a str, base: &Url, sub: &mut Sub) {
        let first = self.names.resolve(reference, base);
        let mut targets: Vec<_> = first.into_iter().collect();
        if keyword == "$dynamicRef" {
            let anchor = reference.rsplit_once('#').map_or("", |(_, anchor)| anchor);
            targets.extend(self.names.dynamic.get(anchor).into_iter().flatten().cloned());
        } else if keyword == "$recursiveRef" {
            targets.extend(self.names.recursive.iter().cloned());
        }
        if let Some(root) = &self.names.beside {
            targets.extend(self.names.resolve(reference, root));
        }
        sub.leaves |= targets.is_empty();
        for (value, base) in targets {
            let target = self.reach(value, base);
            if !sub.here.contains(&target) {
                sub.here.push(target);
            }
        }
    }
}

/// How many values a value is made of.
fn size(value: &Value) -> u64 {
    match value {
        Value::Array(items) => 1 + items.iter().map(size).sum::<u64>(),
        Value::Object(members) => 1 + members.values().map(size).sum::<u64>(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 1,
    }
}
