//! Construction of the graph from a schema's text: identifiers, anchors and references.
//!
//! Over-approximates: follows every keyword of every dialect, and each name to all of its places. Only the identifier keyword is that of
//! the dialect, since another one would resolve references wrongly. `const`, `enum`, `default` and `examples` hold values, in which names
//! have no meaning.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::{HashMap, HashSet};

use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};
use url::Url;

use super::{Graph, Lost, Sub};
use crate::form::{LocationKind, REFERENCES, encoded, location_kind};

/// Number of `enum` values whose comparison takes as long as a visit.
const ENUM_VALUES_PER_VISIT: u64 = 16;

/// Host of the meta-schemas. A schema must not claim a name on this host.
const META_SCHEMAS: &str = "json-schema.org";

/// Keywords of all dialects that name a place, in addition to the identifier.
const NAMES: [&str; 5] = ["$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor"];

/// Maximum number of base URIs of one place. A place has several if an identifier is next to a reference, which validators up to draft 7
/// treat differently.
const MAX_BASES: usize = 4;
/// Maximum number of places of one name.
pub const MAX_PLACES: usize = 64;

/// Base URIs of the references inside a value.
type Bases = Vec<Url>;

/// Value with the base URIs of its references.
type Place<'a> = (&'a Value, Bases);

/// Anchor in a resource.
type Anchor<'a> = (Url, Cow<'a, str>);

/// Subschema in the work list.
struct Pending<'a> {
    value: &'a Value,
    bases: Bases,
}

/// Targets of references within the schema.
struct Names<'a> {
    /// Keyword that identifies a resource.
    id: &'static str,
    /// Roots of each resource by its URI.
    resources: HashMap<Url, Vec<&'a Value>>,
    /// Places of each anchor, by resource URI and anchor.
    anchors: HashMap<Anchor<'a>, Vec<Place<'a>>>,
    /// Places of each dynamic anchor.
    dynamic: HashMap<&'a str, Vec<Place<'a>>>,
    /// Roots of recursive references.
    recursive: Vec<Place<'a>>,
    /// Values (of `const` and similar keywords) that contain names without a meaning.
    values: HashSet<*const Value>,
    /// Name on the meta-schemas' host that the schema claims.
    claimed: Option<&'a str>,
    /// Whether a name has more than [`MAX_PLACES`] places, or a place more than [`MAX_BASES`] base URIs.
    crowded: Cell<bool>,
}

struct Walk<'a> {
    names: Names<'a>,
    known: HashMap<*const Value, usize>,
    pending: Vec<Pending<'a>>,
    graph: Graph<'a>,
    limits: WalkLimits,
    /// Number of targets of references so far.
    targets: usize,
    /// Indices of resources, by base URI.
    resources: HashMap<Bases, usize>,
}

/// Limits of the traversal.
#[derive(Clone, Copy, Debug)]
pub struct WalkLimits {
    pub subschemas: usize,
    /// Maximum number of targets of references.
    pub targets: usize,
}

/// Builds the graph of `root` within `limits`. `id` is the keyword of its dialect that identifies a resource.
pub fn follow<'a>(root: &'a Value, base: &Url, id: &'static str, limits: WalkLimits) -> Graph<'a> {
    let mut names = Names {
        id,
        resources: HashMap::new(),
        anchors: HashMap::new(),
        dynamic: HashMap::new(),
        recursive: Vec::new(),
        values: HashSet::new(),
        claimed: None,
        crowded: Cell::new(false),
    };
    names.resources.insert(base.clone(), vec![root]);
    names.collect(root, std::slice::from_ref(base), LocationKind::Schema);
    let graph = Graph {
        subs: Vec::new(),
        resources: Vec::new(),
        patterns: Vec::new(),
        named_patterns: 0,
        names: Vec::new(),
        overflowed: false,
        scattered: false,
        reached: HashSet::new(),
        lost: names.claimed.map(|name| Lost::Claimed(name.to_owned())),
        crowded: names.crowded.get(),
    };
    let mut walk = Walk {
        names,
        known: HashMap::new(),
        pending: Vec::new(),
        graph,
        limits,
        targets: 0,
        resources: HashMap::new(),
    };
    walk.reach(root, std::slice::from_ref(base));
    let mut next = 0;
    while let Some(pending) = walk.pending.get(next) {
        let (value, bases) = (pending.value, pending.bases.clone());
        if let Value::Object(members) = value {
            let sub = walk.follow(members, &bases);
            if let Some(slot) = walk.graph.subs.get_mut(next) {
                *slot = sub;
            }
        }
        next += 1;
    }
    walk.graph.crowded |= walk.names.crowded.get();
    walk.graph.reached = walk.known.into_keys().collect();
    walk.graph
}

impl<'a> Names<'a> {
    /// Collects the names in `value`, a place of the given kind.
    fn collect(&mut self, value: &'a Value, bases: &[Url], kind: LocationKind) {
        match value {
            Value::Object(members) => {
                let bases = match kind {
                    LocationKind::Schema | LocationKind::Unknown => {
                        self.enter(value, members, bases)
                    }
                    LocationKind::Schemas | LocationKind::Value => bases.to_vec(),
                };
                for (name, member) in members {
                    match location_kind(kind, name) {
                        LocationKind::Value if self.names_something(member) => {
                            self.values.insert(std::ptr::from_ref(member));
                        }
                        LocationKind::Value => {}
                        kind => self.collect(member, &bases, kind),
                    }
                }
            }
            Value::Array(items) => {
                items.iter().for_each(|item| self.collect(item, bases, kind.of_items()));
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    /// Whether `value` contains a member that would be a name in a schema.
    fn names_something(&self, value: &Value) -> bool {
        match value {
            Value::Object(members) => members.iter().any(|(name, member)| {
                name == self.id || NAMES.contains(&name.as_str()) || self.names_something(member)
            }),
            Value::Array(items) => items.iter().any(|item| self.names_something(item)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
        }
    }

    fn enter(&mut self, value: &'a Value, members: &'a Map<String, Value>, bases: &[Url]) -> Bases {
        let text = |name| members.get(name).and_then(Value::as_str);
        for base in self.own_bases(members, bases) {
            if base.host_str() == Some(META_SCHEMAS) {
                self.claimed = self.claimed.or(text(self.id));
            }
            put(&self.crowded, self.resources.entry(base).or_default(), value);
        }
        let bases = self.rebase(members, bases);
        let fragment = |name| {
            let fragment = text(name).and_then(|id| id.strip_prefix('#'))?;
            percent_decode_str(fragment).decode_utf8().ok()
        };
        let plain = |name| text(name).map(Cow::Borrowed);
        let anchors = [plain("$anchor"), plain("$dynamicAnchor"), fragment("$id"), fragment("id")];
        for anchor in anchors.into_iter().flatten() {
            for base in &bases {
                let places = self.anchors.entry((base.clone(), anchor.clone())).or_default();
                put(&self.crowded, places, (value, bases.clone()));
            }
        }
        if let Some(anchor) = text("$dynamicAnchor") {
            let places = self.dynamic.entry(anchor).or_default();
            put(&self.crowded, places, (value, bases.clone()));
        }
        if members.get("$recursiveAnchor") == Some(&Value::Bool(true)) {
            put(&self.crowded, &mut self.recursive, (value, bases.clone()));
        }
        bases
    }

    /// Targets of `reference`.
    fn resolve(&self, reference: &str, base: &Url) -> Result<Vec<Place<'a>>, Lost> {
        let nothing = || Lost::Nothing(reference.to_owned());
        let Ok(mut target) = base.join(&encoded(reference)) else { return Err(nothing()) };
        let fragment = target.fragment().unwrap_or_default().to_owned();
        let Ok(fragment) = percent_decode_str(&fragment).decode_utf8() else {
            return Err(nothing());
        };
        let whole = target.clone();
        target.set_fragment(None);
        let Some(resources) = self.resources.get(&target) else {
            return Err(Lost::Outside(whole));
        };
        let found = if fragment.is_empty() || fragment.starts_with('/') {
            let from = |&resource| self.point(resource, &fragment, vec![target.clone()]);
            resources.iter().filter_map(from).collect()
        } else {
            self.anchors.get(&(target, fragment)).cloned().unwrap_or_default()
        };
        if found.is_empty() { Err(nothing()) } else { Ok(found) }
    }

    /// Target of a JSON pointer.
    fn point(&self, mut value: &'a Value, pointer: &str, mut bases: Bases) -> Option<Place<'a>> {
        for token in pointer.split('/').skip(1) {
            let token = token.replace("~1", "/").replace("~0", "~");
            value = match value {
                Value::Object(members) => members.get(&token)?,
                Value::Array(items) => items.get(token.parse::<usize>().ok()?)?,
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => return None,
            };
            if self.values.contains(&std::ptr::from_ref(value)) {
                return None;
            }
            if let Value::Object(members) = value {
                bases = self.rebase(members, &bases);
            }
        }
        Some((value, bases))
    }

    /// Base URIs that an object declares, which make it a resource.
    fn own_bases(&self, members: &Map<String, Value>, bases: &[Url]) -> Bases {
        let id = members.get(self.id).and_then(Value::as_str).filter(|id| !id.starts_with('#'));
        let id = id.map(encoded);
        let joined = bases.iter().filter_map(|base| base.join(id.as_deref()?).ok());
        joined
            .map(|mut base| {
                base.set_fragment(None);
                base
            })
            .collect()
    }

    /// Base URIs inside an object.
    fn rebase(&self, members: &Map<String, Value>, bases: &[Url]) -> Bases {
        let mut own = self.own_bases(members, bases);
        if own.is_empty() || members.get("$ref").is_some_and(Value::is_string) {
            for base in bases {
                if !own.contains(base) {
                    own.push(base.clone());
                }
            }
        }
        if own.len() > MAX_BASES {
            self.crowded.set(true);
            own.truncate(MAX_BASES);
        }
        own
    }
}

fn put<T>(crowded: &Cell<bool>, places: &mut Vec<T>, place: T) {
    if places.len() < MAX_PLACES {
        places.push(place);
    } else {
        crowded.set(true);
    }
}

impl<'a> Walk<'a> {
    /// Index of the subschema at `value`; adds a new one to the work list.
    fn reach(&mut self, value: &'a Value, bases: &[Url]) -> usize {
        let next = self.graph.subs.len();
        let at = *self.known.entry(std::ptr::from_ref(value)).or_insert(next);
        if at == next {
            if next >= self.limits.subschemas {
                self.graph.overflowed = true;
                self.known.remove(&std::ptr::from_ref(value));
                return 0;
            }
            self.graph.subs.push(Sub::default());
            let bases = match value {
                Value::Object(members) => self.names.rebase(members, bases),
                _ => bases.to_vec(),
            };
            let next = self.resources.len();
            let resource = *self.resources.entry(bases.clone()).or_insert(next);
            self.graph.resources.push(resource);
            self.pending.push(Pending { value, bases });
        }
        at
    }

    fn one(&mut self, members: &'a Map<String, Value>, name: &str, bases: &[Url]) -> Vec<usize> {
        match members.get(name) {
            Some(value @ (Value::Object(_) | Value::Bool(_))) => {
                vec![self.reach(value, bases)]
            }
            Some(Value::Array(_) | Value::Null | Value::Number(_) | Value::String(_)) | None => {
                Vec::new()
            }
        }
    }

    fn list(&mut self, members: &'a Map<String, Value>, name: &str, bases: &[Url]) -> Vec<usize> {
        let items = members.get(name).and_then(Value::as_array);
        items.into_iter().flatten().map(|item| self.reach(item, bases)).collect()
    }

    fn map(&mut self, members: &'a Map<String, Value>, name: &str, bases: &[Url]) -> Vec<usize> {
        let map = members.get(name).and_then(Value::as_object);
        let schemas = map.into_iter().flat_map(Map::values).filter(|value| !value.is_array());
        schemas.map(|value| self.reach(value, bases)).collect()
    }

    fn follow(&mut self, members: &'a Map<String, Value>, bases: &[Url]) -> Sub {
        let mut sub = Sub::default();
        for name in ["allOf", "anyOf", "oneOf"] {
            sub.here.extend(self.list(members, name, bases));
        }
        for name in ["not", "if", "then", "else"] {
            sub.here.extend(self.one(members, name, bases));
        }
        for name in ["dependentSchemas", "dependencies"] {
            sub.here.extend(self.map(members, name, bases));
        }
        for name in REFERENCES {
            if let Some(reference) = members.get(name).and_then(Value::as_str) {
                self.refer(name, reference, bases, &mut sub);
            }
        }
        sub.properties = self.map(members, "properties", bases);
        sub.patterns = self.map(members, "patternProperties", bases);
        sub.rest = self.one(members, "additionalProperties", bases);
        for name in ["propertyNames", "unevaluatedProperties"] {
            sub.members.extend(self.one(members, name, bases));
        }
        let names = self.one(members, "propertyNames", bases);
        self.graph.names.extend(names);
        for name in ["items", "prefixItems"] {
            sub.positions.extend(self.list(members, name, bases));
        }
        for name in ["items", "additionalItems"] {
            sub.positions.extend(self.one(members, name, bases));
        }
        for name in ["contains", "unevaluatedItems"] {
            sub.items.extend(self.one(members, name, bases));
        }
        sub.extra = members.get("enum").map_or(0, size) / ENUM_VALUES_PER_VISIT;
        let pattern = members.get("pattern").and_then(Value::as_str);
        self.graph.patterns.extend(pattern.map(|pattern| (pattern, false)));
        let named = members.get("patternProperties").and_then(Value::as_object);
        let of_names = named.into_iter().flat_map(Map::keys);
        self.graph.patterns.extend(of_names.map(|pattern| (pattern.as_str(), true)));
        // Engines iterate over the names once per pattern, or only once if the other members are checked as well.
        let at_once = ["additionalProperties", "unevaluatedProperties"];
        let at_once = at_once.iter().any(|name| members.contains_key(*name));
        let count = named.map_or(0, |named| named.len() as u64);
        self.graph.named_patterns += if at_once { count } else { count.min(1) };
        sub
    }

    fn refer(&mut self, keyword: &str, reference: &'a str, bases: &[Url], sub: &mut Sub) {
        let mut targets = Vec::new();
        let mut lost = None;
        for base in bases {
            match self.names.resolve(reference, base) {
                Ok(found) => targets.extend(found),
                Err(reason) => lost = lost.or(Some(reason)),
            }
        }
        if let Some(lost) = lost.filter(|_| targets.is_empty()) {
            sub.leaves = true;
            let meta_schema =
                matches!(&lost, Lost::Outside(url) if url.host_str() == Some(META_SCHEMAS));
            if !meta_schema {
                self.graph.lost.get_or_insert(lost);
            }
        }
        if keyword == "$dynamicRef" {
            let anchor = reference.rsplit_once('#').map_or("", |(_, anchor)| anchor);
            targets.extend(self.names.dynamic.get(anchor).into_iter().flatten().cloned());
        } else if keyword == "$recursiveRef" {
            targets.extend(self.names.recursive.iter().cloned());
        }
        self.targets += targets.len();
        if self.targets > self.limits.targets {
            self.graph.scattered = true;
            return;
        }
        for (value, bases) in targets {
            let target = self.reach(value, &bases);
            if !sub.here.contains(&target) {
                sub.here.push(target);
            }
        }
    }
}

/// Number of values within a value, including the value itself.
fn size(value: &Value) -> u64 {
    match value {
        Value::Array(items) => 1 + items.iter().map(size).sum::<u64>(),
        Value::Object(members) => 1 + members.values().map(size).sum::<u64>(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 1,
    }
}
