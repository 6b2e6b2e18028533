//! Whether one JSON schema accepts less than another. Pure.
//!
//! The question is decided from the schemas alone, cautiously: [`Relation::Narrower`] means that every document which the
//! new schema accepts is accepted by the old one too, whatever dialect both are of; where that cannot be shown the answer
//! is [`Relation::Wider`]. Words for people (`description`, `default`, …) say nothing about documents. Deliberately not
//! attempted: `oneOf`, `not` and the unevaluated keywords beyond being the same, patterns that are another, references
//! that lead elsewhere.

mod bounds;
mod keywords;
mod parameters;
mod relation;
mod values;

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use self::bounds::{bounds, is_bound};
use self::keywords::{DEFINITIONS, MAPS, MAX_STEPS, OPAQUE, TURNING, WORDS};
pub use self::parameters::names_a_new_parameter;
pub use self::relation::Relation;
use self::relation::both;
use self::values::values;

static ANYTHING: Value = Value::Bool(true);

/// How `new` relates to `old`.
#[must_use]
pub fn compare(old: &Value, new: &Value) -> Relation {
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

/// Which keywords of a kind stand anywhere in schemas.
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
                    // The names of properties are no keywords; what stands under them is a schema.
                    self.add(value, !(is_schema && MAPS.contains(&name)));
                }
            }
            Value::Array(list) => list.iter().for_each(|value| self.add(value, true)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
}

/// True for a reference to the whole schema, or to one of its definitions: what stands there is compared. Another may
/// lead to where only words are expected.
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
                if says_nothing(now) {
                    Equal
                } else {
                    Narrower
                }
            }
            (Value::Object(before), Value::Bool(true)) => {
                if says_nothing(before) {
                    Equal
                } else {
                    Wider
                }
            }
            (_, Value::Bool(false)) => Narrower,
            (Value::Object(before), Value::Object(now)) => self.objects(before, now),
            // Anything for nothing, or what is no schema.
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

    /// `properties`, `patternProperties` and `additionalProperties`, which count on one another.
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

    /// `items` and what stands before them. A list that is longer or shorter shifts what the rest is.
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

    /// One schema in each of two; anything where it is absent.
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

    /// `allOf`, `anyOf`, `oneOf`.
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
                // Each branch that there was is kept by one of the new.
                "allOf" => match old
                    .iter()
                    .all(|old| new.iter().any(|new| narrower(self.schemas(old, new))))
                {
                    true => Relation::Narrower,
                    false => Relation::Wider,
                },
                // Each branch that there is was there.
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

    /// `not`, and `if` with what depends on it.
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

    /// What is referred to: a definition that is gone is not there for those who refer to it.
    fn definitions(&mut self, before: &Map<String, Value>, now: &Map<String, Value>) -> Relation {
        let mut relation = Relation::Equal;
        for keyword in DEFINITIONS {
            let (old, new) = (before.get(keyword), now.get(keyword));
            let (old, new) = match (old, new) {
                (old, new) if old == new => continue,
                (Some(Value::Object(old)), Some(Value::Object(new))) => (old, new),
                // Nobody refers to what was not there.
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

/// The keywords about properties, with what they mean where they are absent.
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

/// True for a schema that only has words.
fn says_nothing(schema: &Map<String, Value>) -> bool {
    schema.keys().all(|name| WORDS.contains(&name.as_str()))
}

/// A keyword that none of the others looks at.
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
        // What is asked for in addition asks for more, as far as it is asserted at all.
        "pattern" | "format" | "dependentRequired" | "dependentSchemas" | "dependencies"
            if old.is_none() =>
        {
            Relation::Narrower
        }
        _ => Relation::Wider,
    }
}

#[cfg(test)]
mod tests;
