//! Conservative comparison of JSON schemas: determines whether one accepts less than another. Pure.
//!
//! [`Relation::Narrower`] means that every document the new schema accepts is accepted by the old one, in any dialect;
//! if that cannot be shown, the result is [`Relation::Wider`]. Annotations (`description`, `default`, …) are ignored.
//! Unless they are equal, these are not compared: `oneOf`, `not` and unevaluated keywords, changed patterns, and
//! references to other places.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use serde_json::{Map, Number, Value};

static ANYTHING: Value = Value::Bool(true);

/// Relation of `new` to `old`.
pub(crate) fn compare(old: &Value, new: &Value) -> Relation {
    if old == new {
        return Relation::Equal;
    }
    let mut words = Words::default();
    words.add(old, true);
    words.add(new, true);
    if words.opaque || old.get("$schema") != new.get("$schema") {
        return Relation::Wider;
    }
    match (Comparison { steps: 0 }).schemas(old, new) {
        Relation::Narrower if words.refers && words.turning => Relation::Wider,
        relation => relation,
    }
}

/// Kinds of keywords that occur anywhere in the schemas.
#[derive(Clone, Copy, Default)]
struct Words {
    refers: bool,
    opaque: bool,
    turning: bool,
}

impl Words {
    fn add(&mut self, value: &Value, is_schema: bool) {
        match value {
            Value::Object(members) => {
                for (name, value) in members {
                    let name = name.as_str();
                    if is_schema {
                        self.refers |= name == "$ref";
                        self.opaque |= OPAQUE.contains(&name);
                        self.opaque |= name == "$ref" && !is_plain(value);
                        self.turning |= TURNING.contains(&name);
                    }
                    // Property names are not keywords; their values are schemas.
                    self.add(value, !(is_schema && MAPS.contains(&name)));
                }
            }
            Value::Array(list) => list.iter().for_each(|value| self.add(value, true)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
}

/// Whether a reference points to the root or to a definition, which are compared. Other references may lead to annotations.
fn is_plain(reference: &Value) -> bool {
    let Value::String(reference) = reference else { return false };
    let prefixes = ["#/$defs/", "#/definitions/"];
    let named =
        |prefix| reference.strip_prefix(prefix).is_some_and(|name| !name.contains(['/', '~', '%']));
    reference == "#" || prefixes.into_iter().any(named)
}

struct Comparison {
    steps: u32,
}

impl Comparison {
    fn schemas(&mut self, old: &Value, new: &Value) -> Relation {
        use Relation::{Equal, Narrower, Wider};
        self.steps += 1;
        if self.steps > MAX_STEPS {
            return Wider;
        }
        if old == new {
            return Equal;
        }
        match (old, new) {
            (Value::Bool(true), Value::Object(now)) => {
                if has_only_annotations(now) {
                    Equal
                } else {
                    Narrower
                }
            }
            (Value::Object(before), Value::Bool(true)) => {
                if has_only_annotations(before) {
                    Equal
                } else {
                    Wider
                }
            }
            (_, Value::Bool(false)) => Narrower,
            (Value::Object(before), Value::Object(now)) => self.objects(before, now),
            // Here `true` replaces `false`, or a schema is malformed.
            (_, _) => Wider,
        }
    }

    fn objects(&mut self, before: &Map<String, Value>, now: &Map<String, Value>) -> Relation {
        let mut relation = values(before, now);
        relation = both(relation, bounds(before, now));
        relation = both(relation, self.properties(before, now));
        relation = both(relation, self.items(before, now));
        relation = both(relation, self.combined(before, now));
        relation = both(relation, self.conditions(before, now));
        relation = both(relation, self.definitions(before, now));
        let names: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
        for name in names {
            relation = both(relation, rest(name, before.get(name), now.get(name)));
            if relation == Relation::Wider {
                break;
            }
        }
        relation
    }

    /// Compares `properties`, `patternProperties` and `additionalProperties`, which depend on each other.
    fn properties(&mut self, before: &Map<String, Value>, now: &Map<String, Value>) -> Relation {
        let keywords = ["properties", "patternProperties", "additionalProperties", "propertyNames"];
        if keywords.iter().all(|name| before.get(*name) == now.get(*name)) {
            return Relation::Equal;
        }
        let (Some(old), Some(new)) = (Properties::of(before), Properties::of(now)) else {
            return Relation::Wider;
        };
        let mut relation = self.schemas(old.rest, new.rest);
        for (name, schema) in old.named {
            let of_the_rest = if new.patterns.is_empty() { new.rest } else { &ANYTHING };
            let theirs = new.named.get(name).unwrap_or(of_the_rest);
            relation = both(relation, self.schemas(schema, theirs));
        }
        let fresh = new.named.iter().filter(|(name, _)| !old.named.contains_key(*name));
        for (_, schema) in fresh {
            relation = both(relation, both(self.schemas(old.rest, schema), Relation::Narrower));
        }
        for (pattern, schema) in old.patterns {
            relation = both(
                relation,
                match new.patterns.get(pattern) {
                    Some(theirs) => self.schemas(schema, theirs),
                    None => Relation::Wider,
                },
            );
        }
        for (pattern, schema) in new.patterns {
            if !old.patterns.contains_key(pattern) {
                relation = both(relation, both(self.schemas(old.rest, schema), Relation::Narrower));
            }
        }
        both(relation, self.schemas(old.of_names, new.of_names))
    }

    /// Compares `items` and `prefixItems`. A list of a different length shifts the rest.
    fn items(&mut self, before: &Map<String, Value>, now: &Map<String, Value>) -> Relation {
        let mut relation = Relation::Equal;
        for keyword in ["prefixItems", "items"] {
            let (old, new) = (before.get(keyword), now.get(keyword));
            relation = both(
                relation,
                match (old, new) {
                    (Some(Value::Array(old)), Some(Value::Array(new)))
                        if old.len() == new.len() =>
                    {
                        self.pairs(old, new)
                    }
                    (Some(Value::Array(_)), _) | (_, Some(Value::Array(_))) => Relation::Wider,
                    (old, new) => self.schemas(old.unwrap_or(&ANYTHING), new.unwrap_or(&ANYTHING)),
                },
            );
        }
        let rest = self.members(before, now, "additionalItems");
        let relation = both(relation, rest);
        let counted = ["minContains", "maxContains"];
        let counts =
            counted.iter().any(|name| before.contains_key(*name) || now.contains_key(*name));
        let (old, new) = (before.get("contains"), now.get("contains"));
        both(
            relation,
            match (old, new) {
                (old, new) if old == new => Relation::Equal,
                (None, Some(_)) if !counts => Relation::Narrower,
                (Some(old), Some(new)) if !counts => self.schemas(old, new),
                (_, _) => Relation::Wider,
            },
        )
    }

    /// Compares one keyword's schemas; an absent schema accepts anything.
    fn members(
        &mut self,
        before: &Map<String, Value>,
        now: &Map<String, Value>,
        name: &str,
    ) -> Relation {
        self.schemas(before.get(name).unwrap_or(&ANYTHING), now.get(name).unwrap_or(&ANYTHING))
    }

    fn pairs(&mut self, old: &[Value], new: &[Value]) -> Relation {
        let pairs = old.iter().zip(new);
        pairs.fold(Relation::Equal, |relation, (old, new)| both(relation, self.schemas(old, new)))
    }

    /// Compares `allOf`, `anyOf`, `oneOf`.
    fn combined<'a>(
        &mut self,
        before: &'a Map<String, Value>,
        now: &'a Map<String, Value>,
    ) -> Relation {
        let list = |schema: Option<&'a Value>| match schema {
            None => Some(&[][..]),
            Some(value) => value.as_array().map(Vec::as_slice),
        };
        let mut relation = Relation::Equal;
        for name in ["allOf", "anyOf", "oneOf"] {
            if before.get(name) == now.get(name) {
                continue;
            }
            let (Some(old), Some(new)) = (list(before.get(name)), list(now.get(name))) else {
                return Relation::Wider;
            };
            let same = old.len() == new.len() && self.pairs(old, new) == Relation::Equal;
            let narrower = |relation| relation != Relation::Wider;
            let shown = match name {
                _ if same => Relation::Equal,
                // Each old branch is implied by a new one.
                "allOf" => match old
                    .iter()
                    .all(|old| new.iter().any(|new| narrower(self.schemas(old, new))))
                {
                    true => Relation::Narrower,
                    false => Relation::Wider,
                },
                // Each new branch implies an old one.
                "anyOf" if !new.is_empty() => {
                    match old.is_empty()
                        || new
                            .iter()
                            .all(|new| old.iter().any(|old| narrower(self.schemas(old, new))))
                    {
                        true => Relation::Narrower,
                        false => Relation::Wider,
                    }
                }
                _ if old.is_empty() => Relation::Narrower,
                _ => Relation::Wider,
            };
            relation = both(relation, shown);
        }
        relation
    }

    /// Compares `not`, and `if` with `then` and `else`.
    fn conditions(&mut self, before: &Map<String, Value>, now: &Map<String, Value>) -> Relation {
        let not = match (before.get("not"), now.get("not")) {
            (None, None) => Relation::Equal,
            (None, Some(_)) => Relation::Narrower,
            (Some(old), Some(new)) if self.schemas(old, new) == Relation::Equal => Relation::Equal,
            (Some(_), _) => Relation::Wider,
        };
        let conditions = match (before.get("if"), now.get("if")) {
            (None, None) => Relation::Equal,
            (None, Some(_)) => Relation::Narrower,
            (Some(old), Some(new)) if self.schemas(old, new) == Relation::Equal => {
                let then = self.members(before, now, "then");
                both(then, self.members(before, now, "else"))
            }
            (Some(_), _) => Relation::Wider,
        };
        both(not, conditions)
    }

    /// Compares referenced definitions. Removing a definition breaks the references to it.
    fn definitions(&mut self, before: &Map<String, Value>, now: &Map<String, Value>) -> Relation {
        let mut relation = Relation::Equal;
        for keyword in DEFINITIONS {
            let (old, new) = (before.get(keyword), now.get(keyword));
            let (old, new) = match (old, new) {
                (old, new) if old == new => continue,
                (Some(Value::Object(old)), Some(Value::Object(new))) => (old, new),
                // An added definition had no references.
                (None, Some(Value::Object(_))) => continue,
                (_, _) => return Relation::Wider,
            };
            for (name, old) in old {
                relation = both(
                    relation,
                    match new.get(name) {
                        Some(new) => self.schemas(old, new),
                        None => Relation::Wider,
                    },
                );
            }
        }
        relation
    }
}

/// Keywords about properties, with their defaults.
struct Properties<'a> {
    named: &'a Map<String, Value>,
    patterns: &'a Map<String, Value>,
    rest: &'a Value,
    of_names: &'a Value,
}

impl<'a> Properties<'a> {
    fn of(schema: &'a Map<String, Value>) -> Option<Self> {
        static NONE: std::sync::LazyLock<Map<String, Value>> = std::sync::LazyLock::new(Map::new);
        let map = |name: &str| match schema.get(name) {
            None => Some(&*NONE),
            Some(value) => value.as_object(),
        };
        Some(Self {
            named: map("properties")?,
            patterns: map("patternProperties")?,
            rest: schema.get("additionalProperties").unwrap_or(&ANYTHING),
            of_names: schema.get("propertyNames").unwrap_or(&ANYTHING),
        })
    }
}

/// Whether a schema has only annotation keywords.
fn has_only_annotations(schema: &Map<String, Value>) -> bool {
    schema.keys().all(|name| WORDS.contains(&name.as_str()))
}

/// Compares a keyword on which no other keyword depends.
fn rest(name: &str, old: Option<&Value>, new: Option<&Value>) -> Relation {
    const ELSEWHERE: [&str; 22] = [
        "type",
        "enum",
        "const",
        "properties",
        "patternProperties",
        "additionalProperties",
        "propertyNames",
        "prefixItems",
        "items",
        "additionalItems",
        "contains",
        "allOf",
        "anyOf",
        "oneOf",
        "not",
        "if",
        "then",
        "else",
        "$defs",
        "definitions",
        "minContains",
        "maxContains",
    ];
    if old == new || WORDS.contains(&name) || is_bound(name) {
        return Relation::Equal;
    }
    let names = |value: Option<&Value>| match value {
        None => Some(BTreeSet::new()),
        Some(Value::Array(names)) => names
            .iter()
            .map(|name| name.as_str().map(str::to_owned))
            .collect::<Option<BTreeSet<_>>>(),
        Some(_) => None,
    };
    match name {
        "minContains" | "maxContains" => Relation::Wider,
        name if ELSEWHERE.contains(&name) => Relation::Equal,
        "required" => match (names(old), names(new)) {
            (Some(old), Some(new)) if old == new => Relation::Equal,
            (Some(old), Some(new)) if old.is_subset(&new) => Relation::Narrower,
            (_, _) => Relation::Wider,
        },
        "uniqueItems" => match (old, new) {
            (None, Some(Value::Bool(false))) | (Some(Value::Bool(false)), None) => Relation::Equal,
            (None | Some(Value::Bool(false)), Some(Value::Bool(true))) => Relation::Narrower,
            (_, _) => Relation::Wider,
        },
        "multipleOf" => match (old.and_then(Value::as_u64), new.and_then(Value::as_u64)) {
            (Some(old), Some(new)) if old > 0 && new > 0 && new % old == 0 => Relation::Narrower,
            _ if old.is_none() => Relation::Narrower,
            (_, _) => Relation::Wider,
        },
        // An added keyword narrows the schema, provided that validators assert the keyword at all.
        "pattern" | "format" | "dependentRequired" | "dependentSchemas" | "dependencies"
            if old.is_none() =>
        {
            Relation::Narrower
        }
        _ => Relation::Wider,
    }
}

/// Relation of a schema to the previous one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Relation {
    /// Both accept the same documents.
    Equal,
    /// The new schema accepts a subset.
    Narrower,
    /// The new schema accepts more, or the relation is unknown.
    Wider,
}

/// Combines the relations of parts: the wider relation counts.
pub(super) fn both(a: Relation, b: Relation) -> Relation {
    a.max(b)
}

/// Maximum number of compared subschema pairs or keywords; beyond that the relation is unknown.
pub(super) const MAX_STEPS: u32 = 200_000;

/// Annotation keywords.
pub(super) const WORDS: [&str; 8] = [
    "title",
    "description",
    "default",
    "examples",
    "$comment",
    "deprecated",
    "readOnly",
    "writeOnly",
];

/// Keywords that name locations, change the meaning of keywords, or depend on neighbors. Schemas with them are either
/// literally equal, or their relation is unknown.
pub(super) const OPAQUE: [&str; 10] = [
    "$id",
    "id",
    "$anchor",
    "$dynamicAnchor",
    "$dynamicRef",
    "$recursiveAnchor",
    "$recursiveRef",
    "$vocabulary",
    "unevaluatedProperties",
    "unevaluatedItems",
];

/// Keywords that invert the relation of their subschemas. If they are combined with references to narrower schemas, the
/// relation is unknown.
pub(super) const TURNING: [&str; 5] = ["not", "if", "oneOf", "minContains", "maxContains"];

/// Keywords whose value is a schema.
pub(super) const SCHEMA: [&str; 12] = [
    "additionalProperties",
    "additionalItems",
    "items",
    "contains",
    "propertyNames",
    "not",
    "if",
    "then",
    "else",
    "unevaluatedProperties",
    "unevaluatedItems",
    "contentSchema",
];

/// Keywords whose value is a list of schemas.
pub(super) const LISTS: [&str; 5] = ["allOf", "anyOf", "oneOf", "prefixItems", "items"];

/// Keywords whose value is an object of schemas.
pub(super) const MAPS: [&str; 6] =
    ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"];

/// Keywords that hold referenced definitions.
pub(super) const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

/// Bounds, each with the side (smaller or larger values) that is narrower.
const BOUNDS: [(&str, Side); 10] = [
    ("maximum", Side::AtMost),
    ("maxLength", Side::AtMost),
    ("maxItems", Side::AtMost),
    ("maxProperties", Side::AtMost),
    ("minimum", Side::AtLeast),
    ("minLength", Side::AtLeast),
    ("minItems", Side::AtLeast),
    ("minProperties", Side::AtLeast),
    // In draft 4, these keywords are booleans, which are compared literally.
    ("exclusiveMaximum", Side::AtMost),
    ("exclusiveMinimum", Side::AtLeast),
];

/// Whether a keyword is a bound.
pub(super) fn is_bound(name: &str) -> bool {
    BOUNDS.iter().any(|(bound, _)| *bound == name)
}

#[derive(Clone, Copy)]
enum Side {
    AtMost,
    AtLeast,
}

pub(super) fn bounds(before: &Map<String, Value>, now: &Map<String, Value>) -> Relation {
    let mut relation = Relation::Equal;
    for (name, side) in BOUNDS {
        let shown = match (before.get(name), now.get(name)) {
            (old, new) if old == new => Relation::Equal,
            (None, Some(Value::Number(_))) => Relation::Narrower,
            (Some(Value::Number(old)), Some(Value::Number(new))) => {
                let (min, max) = match side {
                    Side::AtMost => (new, old),
                    Side::AtLeast => (old, new),
                };
                if is_at_most(min, max) { Relation::Narrower } else { Relation::Wider }
            }
            (_, _) => Relation::Wider,
        };
        relation = both(relation, shown);
    }
    relation
}

/// Whether `a` is at most `b`. False if this is unknown, which is the case for large integers compared with fractions.
fn is_at_most(a: &Number, b: &Number) -> bool {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let whole = |number: &Number| {
        number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from))
    };
    match (whole(a), whole(b)) {
        (Some(a), Some(b)) => a <= b,
        (_, _) => match (a.as_f64(), b.as_f64()) {
            (Some(a), Some(b)) => a <= b && a.abs() < EXACT && b.abs() < EXACT,
            (_, _) => false,
        },
    }
}

/// Relation of the allowed values.
pub(super) fn values(before: &Map<String, Value>, now: &Map<String, Value>) -> Relation {
    let keywords = ["type", "enum", "const"];
    if keywords.iter().all(|name| before.get(*name) == now.get(*name)) {
        return Relation::Equal;
    }
    let (Some(old_types), Some(new_types)) = (types(before), types(now)) else {
        return Relation::Wider;
    };
    let (Some(old), Some(new)) = (listed(before), listed(now)) else { return Relation::Wider };
    let kept = match (&old, &new) {
        (None, None) => Relation::Equal,
        (None, Some(_)) => Relation::Narrower,
        (Some(_), None) => Relation::Wider,
        (Some(old), Some(new)) => match new.iter().all(|value| old.contains(value)) {
            true if old.iter().all(|value| new.contains(value)) => Relation::Equal,
            true => Relation::Narrower,
            false => Relation::Wider,
        },
    };
    let same = old_types == new_types;
    // Enumerated values imply their types.
    let new_types = match &new {
        Some(listed) if !same => listed.iter().map(|value| type_of(value)).collect(),
        Some(_) | None => new_types,
    };
    let types = match same || new_types.iter().all(|of| fits(of, &old_types)) {
        true if same => Relation::Equal,
        true => Relation::Narrower,
        false => Relation::Wider,
    };
    both(kept, types)
}

const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];

fn fits(of: &str, types: &BTreeSet<&str>) -> bool {
    types.contains(of) || (of == "integer" && types.contains("number"))
}

fn types(schema: &Map<String, Value>) -> Option<BTreeSet<&str>> {
    let known = |name: &Value| TYPES.into_iter().find(|known| name == *known);
    match schema.get("type") {
        None => Some(TYPES.into()),
        Some(Value::Array(names)) => names.iter().map(known).collect(),
        Some(name) => Some([known(name)?].into()),
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Values allowed by `enum` or `const`. The inner value is `None` if neither is present.
#[expect(clippy::option_option, reason = "None: unreadable; Some(None): absent")]
fn listed(schema: &Map<String, Value>) -> Option<Option<Vec<&Value>>> {
    let of_enum = match schema.get("enum") {
        None => None,
        Some(Value::Array(values)) => Some(values.iter().collect::<Vec<_>>()),
        Some(_) => return None,
    };
    match (of_enum, schema.get("const")) {
        (listed, None) => Some(listed),
        (None, Some(value)) => Some(Some(vec![value])),
        // The values of both keywords are not intersected, because the equality of numbers is hard to determine.
        (Some(_), Some(_)) => None,
    }
}

/// Whether `new` names a property that `old` does not name at the same place.
pub(crate) fn names_a_new_parameter(old: &Value, new: &Value) -> bool {
    let mut known = BTreeSet::new();
    let mut steps_left = MAX_STEPS;
    names(old, "", &mut steps_left, &mut |name| {
        known.insert(name);
    });
    let mut found = false;
    names(new, "", &mut steps_left, &mut |name| found |= !known.contains(&name));
    // If the step budget is exhausted, one of the remaining properties may be new.
    found || (steps_left == 0 && old != new)
}

/// Calls `visit` with the path of each property. Branches of combined schemas count as the place they apply to.
fn names(schema: &Value, above: &str, steps_left: &mut u32, visit: &mut impl FnMut(String)) {
    let Value::Object(members) = schema else { return };
    for (keyword, value) in members {
        *steps_left = steps_left.saturating_sub(1);
        if *steps_left == 0 {
            return;
        }
        let keyword = keyword.as_str();
        match value {
            Value::Object(named) if keyword == "properties" => {
                for (name, schema) in named {
                    let place = format!("{above}/{}", name.replace('~', "~0").replace('/', "~1"));
                    names(schema, &place, steps_left, visit);
                    visit(place);
                }
            }
            Value::Object(named) if DEFINITIONS.contains(&keyword) => {
                for (name, schema) in named {
                    names(schema, &format!("#{name}"), steps_left, visit);
                }
            }
            Value::Object(named) if MAPS.contains(&keyword) => {
                named.values().for_each(|schema| names(schema, above, steps_left, visit));
            }
            Value::Object(_) if SCHEMA.contains(&keyword) => {
                names(value, above, steps_left, visit);
            }
            Value::Array(list) if LISTS.contains(&keyword) => {
                list.iter().for_each(|schema| names(schema, above, steps_left, visit));
            }
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_)
            | Value::Object(_) => {}
        }
    }
}
