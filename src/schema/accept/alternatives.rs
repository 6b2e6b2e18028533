//! Conjunctions of subschemas as a list of alternatives, each a list of schema objects that must all hold.
//!
//! The branches of a `oneOf` are alternatives if it is certain that no value conforms to two of them: because of their types, of a tag (an
//! enumerated member), or of a required member that the other branch does not allow.

use std::collections::BTreeSet;
use std::ptr;

use boon::Draft;
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};

/// Maximum number of alternatives of one conjunction.
const MAX_ALTERNATIVES: usize = 64;

/// Maximum number of steps to find the alternatives: subschemas read, and pairs of branches compared.
const MAX_STEPS: usize = 4_000;

/// Maximum number of schema objects in one alternative.
const MAX_PARTS: usize = 64;

/// Maximum number of branches of a `oneOf`, which are compared in pairs.
const MAX_ONE_OF: usize = 32;

/// Alternatives of a conjunction.
#[derive(Default)]
pub(super) struct Alternatives<'a> {
    pub(super) found: Vec<Vec<&'a Keywords>>,
    /// Keywords because of which an alternative is missing.
    pub(super) gaps: Vec<&'static str>,
    /// Number of steps taken.
    pub(super) steps: usize,
}

/// Alternative under construction.
#[derive(Clone, Default)]
struct Partial<'a> {
    open: Vec<&'a Value>,
    parts: Vec<&'a Keywords>,
}

impl<'a> SchemaSource<'a> {
    /// Alternatives for a value to which all of `schemas` apply. If an alternative is missing, more documents remain
    /// undecided.
    pub(super) fn alternatives(self, schemas: &[&'a Value]) -> Alternatives<'a> {
        let mut all = Alternatives::default();
        let mut partials = vec![Partial { open: schemas.to_vec(), parts: Vec::new() }];
        while let Some(mut partial) = partials.pop() {
            all.steps += 1;
            let many = all.found.len() + partials.len() > MAX_ALTERNATIVES;
            if many || all.steps > MAX_STEPS || partial.parts.len() > MAX_PARTS {
                all.gaps.push("anyOf");
                return Alternatives { found: Vec::new(), ..all };
            }
            let Some(schema) = partial.open.pop() else {
                all.found.push(partial.parts);
                continue;
            };
            match schema {
                Value::Bool(true) => partials.push(partial),
                Value::Bool(false) => {}
                Value::Object(keywords) => self.add(keywords, partial, &mut partials, &mut all),
                Value::Null | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                    all.gaps.push("$ref");
                }
            }
        }
        all
    }

    /// Adds `keywords` to a conjunction, and pushes the results in reverse order.
    fn add(
        self,
        keywords: &'a Keywords,
        mut partial: Partial<'a>,
        partials: &mut Vec<Partial<'a>>,
        all: &mut Alternatives<'a>,
    ) {
        if partial.parts.iter().any(|part| ptr::eq(*part, keywords)) {
            return partials.push(partial);
        }
        if let Some(reference) = keywords.get("$ref") {
            let Some(target) = reference.as_str().and_then(|text| self.resolve(text)) else {
                return all.gaps.push("$ref");
            };
            partial.open.push(target);
            if self.ignores_beside_reference() {
                return partials.push(partial);
            }
        }
        partial.parts.push(keywords);
        partial.open.extend(keywords.get("allOf").and_then(Value::as_array).into_iter().flatten());
        let mut results = vec![partial];
        for choices in [self.any_of(keywords), self.one_of(keywords, all), self.condition(keywords)]
        {
            let Some(choices) = choices else { continue };
            if results.len().saturating_mul(choices.len()) > MAX_ALTERNATIVES {
                return all.gaps.push("anyOf");
            }
            let chosen = results.iter().flat_map(|partial| {
                choices.iter().map(|choice| {
                    let mut partial = partial.clone();
                    partial.open.extend(choice);
                    partial
                })
            });
            results = chosen.collect();
        }
        partials.extend(results.into_iter().rev());
    }

    fn any_of(self, keywords: &'a Keywords) -> Option<Vec<Vec<&'a Value>>> {
        let branches = keywords.get("anyOf")?.as_array()?;
        Some(branches.iter().map(|branch| vec![branch]).collect())
    }

    /// Branches of `oneOf` that exclude all others.
    fn one_of(
        self,
        keywords: &'a Keywords,
        all: &mut Alternatives<'a>,
    ) -> Option<Vec<Vec<&'a Value>>> {
        let branches = keywords.get("oneOf")?.as_array()?;
        if branches.len() > MAX_ONE_OF {
            all.gaps.push("oneOf");
            return Some(Vec::new());
        }
        all.steps += branches.len() * branches.len();
        let alone = |branch: &&'a Value| {
            let mut others = branches.iter().filter(|other| !ptr::eq(*other, *branch));
            others.all(|other| excludes(self, branch, other))
        };
        let certain: Vec<_> = branches.iter().filter(alone).map(|branch| vec![branch]).collect();
        if certain.len() < branches.len() {
            all.gaps.push("oneOf");
        }
        Some(certain)
    }

    /// Alternatives of `if`. A value conforms to `if` and `then`, or to both `then` and `else` regardless of the
    /// condition.
    fn condition(self, keywords: &'a Keywords) -> Option<Vec<Vec<&'a Value>>> {
        let condition = keywords.get("if")?;
        let then = keywords.get("then");
        let both = then.into_iter().chain(keywords.get("else")).collect();
        Some(vec![std::iter::once(condition).chain(then).collect(), both])
    }
}

/// Maximum number of schema objects that `$ref` and `allOf` of one subschema lead to.
const MAX_COMPARED_PARTS: usize = 64;

/// Maximum number of enumerated values, and of required names, that are compared.
const MAX_COMPARED: usize = 128;

const NULL: u8 = 1;
const YES: u8 = 2;
const NO: u8 = 4;
const NUMBER: u8 = 8;
const TEXT: u8 = 16;
const ARRAY: u8 = 32;
const OBJECT: u8 = 64;
const ALL: u8 = 127;

/// Whether it is certain that each value that conforms to `a` violates `b`.
pub(super) fn excludes(source: SchemaSource<'_>, a: &Value, b: &Value) -> bool {
    let (Some(a), Some(b)) = (source.parts(a), source.parts(b)) else {
        // One of the schemas accepts nothing.
        return true;
    };
    let both = source.kinds(&a) & source.kinds(&b);
    let texts = || match (source.texts(&a), source.texts(&b)) {
        (Some(a), Some(b)) => a.is_disjoint(&b),
        _ => false,
    };
    both & (NULL | YES | NO | NUMBER | ARRAY) == 0
        && (both & TEXT == 0 || texts())
        && (both & OBJECT == 0 || source.excludes_objects(&a, &b))
}

impl<'a> SchemaSource<'a> {
    /// Schema objects that all apply to a value of `schema`, found by following `$ref` and `allOf`; `None` if the schema accepts nothing.
    fn parts(self, schema: &'a Value) -> Option<Vec<&'a Keywords>> {
        let mut open = vec![schema];
        let mut parts: Vec<&Keywords> = Vec::new();
        let mut steps = 0;
        while let Some(schema) = open.pop() {
            steps += 1;
            if steps > MAX_COMPARED_PARTS {
                break;
            }
            let keywords = match schema {
                Value::Bool(false) => return None,
                Value::Object(keywords) => keywords,
                _ => continue,
            };
            if parts.iter().any(|part| ptr::eq(*part, keywords)) {
                continue;
            }
            if let Some(reference) = keywords.get("$ref") {
                open.extend(reference.as_str().and_then(|text| self.resolve(text)));
                if self.ignores_beside_reference() {
                    continue;
                }
            }
            open.extend(keywords.get("allOf").and_then(Value::as_array).into_iter().flatten());
            parts.push(keywords);
        }
        Some(parts)
    }

    /// JSON types that a value may have, as a bit mask.
    fn kinds(self, parts: &[&Keywords]) -> u8 {
        let of_type = |name: &Value| match name.as_str() {
            Some("null") => NULL,
            Some("boolean") => YES | NO,
            Some("integer" | "number") => NUMBER,
            Some("string") => TEXT,
            Some("array") => ARRAY,
            Some("object") => OBJECT,
            _ => ALL,
        };
        let mut kinds = ALL;
        for part in parts {
            kinds &= match part.get("type") {
                Some(Value::Array(names)) => names.iter().fold(0, |all, name| all | of_type(name)),
                Some(name) => of_type(name),
                None => ALL,
            };
            for values in self.enumerations(part).filter(|values| values.len() <= MAX_COMPARED) {
                kinds &= values.iter().fold(0, |all, value| all | kind(value));
            }
        }
        kinds
    }

    /// Lists of values of `enum` and `const`.
    pub(super) fn enumerations(self, part: &'a Keywords) -> impl Iterator<Item = &'a [Value]> {
        let constant = part.get("const").filter(|_| self.version() >= 6);
        let listed = part.get("enum").and_then(Value::as_array).map(Vec::as_slice);
        listed.into_iter().chain(constant.map(std::slice::from_ref))
    }

    /// Strings that a value may be, if they are enumerated and nothing else is allowed.
    fn texts(self, parts: &[&'a Keywords]) -> Option<BTreeSet<&'a str>> {
        let mut lists = parts.iter().flat_map(|part| self.enumerations(part));
        lists.find_map(|values| {
            let few = values.len() <= MAX_COMPARED;
            few.then(|| values.iter().map(Value::as_str).collect()).flatten()
        })
    }

    fn excludes_objects(self, a: &[&'a Keywords], b: &[&'a Keywords]) -> bool {
        let tagged = || {
            required(a).any(|name| match (self.member(a, name), self.member(b, name)) {
                (Some(a), Some(b)) => a.is_disjoint(&b),
                _ => false,
            })
        };
        tagged() || required(b).any(|name| a.iter().any(|part| forbids(part, name)))
    }

    /// Strings that member `name` may be, if they are enumerated.
    fn member(self, parts: &[&'a Keywords], name: &str) -> Option<BTreeSet<&'a str>> {
        parts.iter().find_map(|part| {
            let schema = part.get("properties")?.get(name)?;
            self.texts(&self.parts(schema)?)
        })
    }
}

/// Whether an object with member `name` violates `part`.
fn forbids(part: &Keywords, name: &str) -> bool {
    let declared = part.get("properties").and_then(|properties| properties.get(name));
    match declared {
        Some(schema) => *schema == Value::Bool(false),
        None => {
            part.get("additionalProperties") == Some(&Value::Bool(false))
                && !part.contains_key("patternProperties")
        }
    }
}

fn required<'a>(parts: &[&'a Keywords]) -> impl Iterator<Item = &'a str> {
    let lists = parts.iter().filter_map(|part| part.get("required")?.as_array());
    lists.flatten().filter_map(Value::as_str).take(MAX_COMPARED)
}

fn kind(value: &Value) -> u8 {
    match value {
        Value::Null => NULL,
        Value::Bool(true) => YES,
        Value::Bool(false) => NO,
        Value::Number(_) => NUMBER,
        Value::String(_) => TEXT,
        Value::Array(_) => ARRAY,
        Value::Object(_) => OBJECT,
    }
}

/// Keywords of one schema object.
pub(super) type Keywords = Map<String, Value>;

/// Schema with a dialect, in which references are resolved.
#[derive(Clone, Copy)]
pub(super) struct SchemaSource<'a> {
    pub(super) root: &'a Value,
    pub(super) draft: Draft,
}

impl<'a> SchemaSource<'a> {
    /// Number of the dialect, ordered by age.
    pub(super) fn version(self) -> u8 {
        match self.draft {
            Draft::V4 => 4,
            Draft::V6 => 6,
            Draft::V7 => 7,
            Draft::V2019_09 => 8,
            _ => 9,
        }
    }

    /// Whether the keywords next to a reference are ignored.
    pub(super) fn ignores_beside_reference(self) -> bool {
        self.version() <= 7
    }

    /// Target of a `$ref` within the schema: a JSON pointer from its root.
    pub(super) fn resolve(self, reference: &str) -> Option<&'a Value> {
        let fragment = percent_decode_str(reference.strip_prefix('#')?).decode_utf8().ok()?;
        let mut value = self.root;
        let mut tokens = fragment.split('/');
        if tokens.next() != Some("") {
            return None;
        }
        for token in tokens {
            let token = token.replace("~1", "/").replace("~0", "~");
            value = match value {
                Value::Object(members) => members.get(&token)?,
                Value::Array(items) => items.get(token.parse::<usize>().ok()?)?,
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => return None,
            };
        }
        Some(value)
    }
}
