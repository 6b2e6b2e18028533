//! Compilation of a normalized schema for the accept-only evaluator.
//!
//! A keyword without a rule drops the rules of the JSON types that it applies to, so that values of these
//! types are left to the tape pass.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use boon::Draft;
use serde_json::{Map, Value};

use mcpproxy_json::tape::MAX_DEPTH;

use super::alternatives::{Keywords, SchemaSource};
use super::number::NumberRule;
use super::rules::{
    ANYTHING, AcceptNode, AcceptNodeId, AcceptProgram, ArrayRule, MAX_NAME_PATTERNS, MAX_NAMES,
    MemberRule, NOTHING, ObjectRule, TextRule,
};
use crate::bounds::{Cost, NESTING};
use crate::dialect::identifier;
use crate::pattern::{CompiledPattern, PatternCache};
use crate::settings::SchemaHash;

/// Maximum number of nodes of a program.
const MAX_NODES: usize = 10_000;

/// Maximum number of steps of the compilation: schema objects read, and names and values in them.
const MAX_STEPS: usize = 1_000_000;

/// Number of compilation steps that one step of the search for alternatives costs.
const STEPS_PER_ALTERNATIVE: usize = 4;

/// Maximum number of item positions with their own subschema.
const MAX_PREFIX: usize = 64;

/// Inputs of the compilation.
pub(crate) struct AcceptBuilder<'a> {
    /// Normalized schema.
    pub(crate) form: &'a Value,
    pub(crate) draft: Draft,
    pub(crate) schema: SchemaHash,
    pub(crate) assert_formats: bool,
    pub(crate) patterns: &'a PatternCache,
    pub(crate) cost: &'a Cost,
}

/// Conjunction of distinct subschemas, without those that accept everything.
type Conjunction<'a> = Vec<&'a Value>;

struct Graph<'a> {
    source: SchemaSource<'a>,
    assert_formats: bool,
    patterns: &'a PatternCache,
    nodes: Vec<AcceptNode>,
    known: HashMap<Vec<*const Value>, AcceptNodeId>,
    pending: Vec<(AcceptNodeId, Conjunction<'a>)>,
    guesses: usize,
    steps: usize,
    gaps: BTreeSet<&'static str>,
}

impl AcceptBuilder<'_> {
    /// Compiled program, if it accepts any document, and the keywords in the schema that it does not cover.
    pub(crate) fn build(&self) -> (Option<AcceptProgram>, BTreeSet<&'static str>) {
        let source = SchemaSource { root: self.form, draft: self.draft };
        let mut graph = Graph {
            source,
            assert_formats: self.assert_formats,
            patterns: self.patterns,
            nodes: vec![AcceptNode::default(), AcceptNode::anything()],
            known: HashMap::new(),
            pending: Vec::new(),
            guesses: 1,
            steps: 0,
            gaps: BTreeSet::new(),
        };
        if names_resources(self.form, identifier(self.draft), true) {
            return (None, BTreeSet::from(["$id"]));
        }
        let root = graph.node(vec![self.form]);
        while let Some((id, schemas)) = graph.pending.pop() {
            let node = graph.filled(&schemas);
            if graph.nodes.len() > MAX_NODES || graph.steps > MAX_STEPS {
                return (None, BTreeSet::from(["size"]));
            }
            if let Some(slot) = graph.nodes.get_mut(id as usize) {
                *slot = node;
            }
        }
        let max_depth = (0..=MAX_DEPTH).rev().find(|depth| self.cost.nesting(*depth) <= NESTING);
        let program = AcceptProgram {
            nodes: graph.nodes.into(),
            root,
            guesses: graph.guesses,
            max_depth: max_depth.unwrap_or_default(),
            schema: self.schema,
        };
        let accepts = max_depth.is_some()
            && program.nodes.get(root as usize).is_some_and(|node| !node.is_empty());
        (accepts.then_some(program), graph.gaps)
    }
}

/// Number of names and values in the keywords of a schema object, including the object itself.
fn size(part: &Keywords) -> usize {
    let sizes = part.values().map(|value| match value {
        Value::Array(items) => 1 + items.len(),
        Value::Object(members) => 1 + members.len(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 1,
    });
    1 + sizes.sum::<usize>()
}

/// Whether a subschema identifies a resource or changes the dialect, so that references are not pointers from the root. Recursion is
/// bounded by the nesting of schemas.
fn names_resources(value: &Value, id: &str, is_root: bool) -> bool {
    match value {
        Value::Object(members) => {
            let names = |keyword: &str| members.get(keyword).is_some_and(Value::is_string);
            !is_root && (names(id) || names("$schema"))
                || members.values().any(|member| names_resources(member, id, false))
        }
        Value::Array(items) => items.iter().any(|item| names_resources(item, id, false)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// Rules for one alternative, while its keywords are read.
struct Shape<'a> {
    null: bool,
    booleans: bool,
    number: Option<NumberRule>,
    text: Option<TextRule>,
    array: Option<ArrayRule>,
    /// Limits of the number of members.
    object: Option<(usize, usize)>,
    /// Enumerated values.
    values: Option<Vec<&'a Value>>,
}

impl<'a> Graph<'a> {
    /// Node for a value to which all of `schemas` apply.
    fn node(&mut self, mut schemas: Conjunction<'a>) -> AcceptNodeId {
        if schemas.iter().any(|schema| **schema == Value::Bool(false)) {
            return NOTHING;
        }
        schemas.retain(|schema| match schema {
            Value::Object(keywords) => !keywords.is_empty(),
            schema => **schema != Value::Bool(true),
        });
        schemas.sort_unstable_by_key(|schema| std::ptr::from_ref::<Value>(schema));
        schemas.dedup_by_key(|schema| std::ptr::from_ref::<Value>(schema));
        if schemas.is_empty() {
            return ANYTHING;
        }
        let key = schemas.iter().map(|schema| std::ptr::from_ref::<Value>(schema)).collect();
        let next = AcceptNodeId::try_from(self.nodes.len()).unwrap_or(NOTHING);
        let id = *self.known.entry(key).or_insert(next);
        if id == next {
            self.nodes.push(AcceptNode::default());
            self.pending.push((id, schemas));
        }
        id
    }

    fn filled(&mut self, schemas: &[&'a Value]) -> AcceptNode {
        let alternatives = self.source.alternatives(schemas);
        self.gaps.extend(alternatives.gaps);
        self.steps += alternatives.steps * STEPS_PER_ALTERNATIVE;
        self.steps += alternatives.found.iter().flatten().map(|part| size(part)).sum::<usize>();
        if self.steps > MAX_STEPS {
            return AcceptNode::default();
        }
        let mut node = AcceptNode::default();
        let (mut numbers, mut texts) = (Vec::new(), Vec::new());
        let (mut arrays, mut objects) = (Vec::new(), Vec::new());
        for parts in &alternatives.found {
            let Some(shape) = self.shape(parts) else { continue };
            let has =
                |value: &Value| shape.values.as_ref().is_none_or(|values| values.contains(&value));
            node.null |= shape.null && has(&Value::Null);
            node.yes |= shape.booleans && has(&Value::Bool(true));
            node.no |= shape.booleans && has(&Value::Bool(false));
            numbers.extend(shape.number);
            texts.extend(shape.text);
            arrays.extend(shape.array);
            if let Some((min, max)) = shape.object {
                objects.extend(self.object(parts, min, max));
            }
        }
        node.numbers = numbers.into();
        node.texts = merged(texts).into();
        node.free_text = node.texts.iter().any(|text| text.free);
        node.text_conditions = node.texts.iter().map(TextRule::conditions).sum();
        node.arrays = arrays.into();
        node.objects = objects.into();
        node
    }

    /// Rules of all keywords except those of members. `None` if a keyword that applies to every type has no rule.
    fn shape(&mut self, parts: &[&'a Keywords]) -> Option<Shape<'a>> {
        let mut shape = Shape {
            null: true,
            booleans: true,
            number: Some(NumberRule::default()),
            text: Some(TextRule::default()),
            array: self.array(parts),
            object: Some((0, usize::MAX)),
            values: None,
        };
        for part in parts {
            for (keyword, value) in part.iter() {
                if !shape.read(keyword, value, part, self) {
                    return None;
                }
            }
        }
        shape.enumerate();
        Some(shape)
    }

    fn array(&mut self, parts: &[&'a Keywords]) -> Option<ArrayRule> {
        let mut lists = Vec::new();
        for part in parts {
            let (prefix, rest): (&[Value], _) = match (part.get("prefixItems"), part.get("items")) {
                (Some(Value::Array(prefix)), items) if self.source.version() >= 9 => {
                    (prefix, items)
                }
                (None, Some(Value::Array(prefix))) if self.source.version() < 9 => {
                    (prefix, part.get("additionalItems"))
                }
                (None, items @ (None | Some(Value::Object(_) | Value::Bool(_)))) => (&[], items),
                (Some(_), _) | (_, Some(_)) => {
                    self.gaps.insert("prefixItems");
                    return None;
                }
            };
            lists.push((prefix, rest));
        }
        let len = lists.iter().map(|(prefix, _)| prefix.len()).max().unwrap_or_default();
        if len > MAX_PREFIX {
            self.gaps.insert("prefixItems");
            return None;
        }
        let mut at = |index: usize| {
            let of_part =
                |(prefix, rest): &(&'a [Value], Option<&'a Value>)| prefix.get(index).or(*rest);
            self.node(lists.iter().filter_map(of_part).collect())
        };
        Some(ArrayRule {
            prefix: (0..len).map(&mut at).collect(),
            rest: at(len),
            min: 0,
            max: usize::MAX,
            unique: false,
        })
    }

    fn object(&mut self, parts: &[&'a Keywords], min: usize, max: usize) -> Option<ObjectRule> {
        let lists = parts.iter().filter_map(|part| part.get("required")?.as_array());
        let required: BTreeSet<&str> = lists.flatten().filter_map(Value::as_str).collect();
        let declared = parts.iter().filter_map(|part| part.get("properties")?.as_object());
        let names: BTreeSet<&str> = declared
            .flat_map(Map::keys)
            .map(String::as_str)
            .chain(required.iter().copied())
            .collect();
        if names.len() > MAX_NAMES || names.iter().any(|name| name.bytes().any(is_escaped)) {
            self.gaps.insert("properties");
            return None;
        }
        let members = parts.iter().map(|part| self.members_of(part)).collect::<Option<Vec<_>>>()?;
        let patterns: BTreeSet<&str> =
            members.iter().flat_map(|part| &part.patterns).map(|(pattern, ..)| *pattern).collect();
        if patterns.len() > MAX_NAME_PATTERNS {
            self.gaps.insert("patternProperties");
            return None;
        }
        let rules = names.iter().enumerate().map(|(at, name)| {
            let schemas = members.iter().flat_map(|part| {
                part.schemas(Some(name), &|_, compiled| {
                    compiled.matches(name.as_bytes()) == Some(true)
                })
            });
            MemberRule::new(name, 1 << at, self.node(schemas.collect()))
        });
        let rules = rules.collect();
        let masks = 0..1_usize << patterns.len();
        let rest = masks.map(|mask| {
            let schemas = members.iter().flat_map(|part| {
                part.schemas(None, &|pattern, _| {
                    patterns
                        .iter()
                        .position(|known| *known == pattern)
                        .is_some_and(|at| mask >> at & 1 == 1)
                })
            });
            self.node(schemas.collect())
        });
        let rest = rest.collect();
        let of_names: Conjunction<'a> =
            parts.iter().filter_map(|part| part.get("propertyNames")).collect();
        let named = (!of_names.is_empty()).then(|| self.node(of_names));
        let compiled = patterns.iter().map(|pattern| self.patterns.get(pattern).ok());
        let first_guess = self.guesses;
        self.guesses += 1 + names.len();
        let bits = names.iter().enumerate().filter(|(_, name)| required.contains(*name));
        Some(ObjectRule {
            names: rules,
            required: bits.fold(0, |mask, (at, _)| mask | 1 << at),
            patterns: compiled.collect::<Option<_>>()?,
            rest,
            named,
            min,
            max,
            first_guess,
        })
    }

    /// Subschemas for members in one schema object; `None` if a pattern needs an engine.
    fn members_of(&mut self, part: &'a Keywords) -> Option<MemberSchemas<'a>> {
        let patterns = part.get("patternProperties").and_then(Value::as_object);
        let patterns = patterns.into_iter().flatten().map(|(pattern, schema)| {
            let compiled = self.patterns.get(pattern).ok().filter(|it| it.is_quick())?;
            Some((pattern.as_str(), compiled, schema))
        });
        let patterns = patterns.collect::<Option<Vec<_>>>();
        if patterns.is_none() {
            self.gaps.insert("patternProperties");
        }
        Some(MemberSchemas {
            properties: part.get("properties").and_then(Value::as_object),
            patterns: patterns?,
            rest: part.get("additionalProperties"),
        })
    }
}

/// Subschemas for members in one schema object.
struct MemberSchemas<'a> {
    properties: Option<&'a Keywords>,
    patterns: Vec<(&'a str, Arc<CompiledPattern>, &'a Value)>,
    rest: Option<&'a Value>,
}

impl<'a> MemberSchemas<'a> {
    /// Subschemas for a declared `name`, or for another name that matches the patterns for which `matches` returns true.
    fn schemas(
        &self,
        name: Option<&str>,
        matches: &dyn Fn(&str, &CompiledPattern) -> bool,
    ) -> Vec<&'a Value> {
        let declared = name.and_then(|name| self.properties?.get(name));
        let matching =
            self.patterns.iter().filter(|(pattern, compiled, _)| matches(pattern, compiled));
        let found: Vec<_> =
            declared.into_iter().chain(matching.map(|(.., schema)| *schema)).collect();
        if found.is_empty() { self.rest.into_iter().collect() } else { found }
    }
}

impl<'a> Shape<'a> {
    /// Reads a keyword of `part`; returns false if it applies to every type and has no rule.
    fn read(
        &mut self,
        keyword: &str,
        value: &'a Value,
        part: &'a Keywords,
        graph: &mut Graph<'a>,
    ) -> bool {
        let version = graph.source.version();
        let handled = match keyword {
            "type" => self.read_type(value),
            "enum" | "const" => version >= 6 || keyword == "enum",
            // The module `alternatives` reads these keywords.
            "$ref" | "allOf" | "anyOf" | "oneOf" => true,
            "if" => version >= 7,
            "not" | "$dynamicRef" | "$recursiveRef" => false,
            _ => {
                if !self.read_of_type(keyword, value, part, graph) {
                    self.drop_type(keyword);
                    graph.gaps.extend(GAPS.iter().find(|gap| **gap == keyword));
                }
                return true;
            }
        };
        if !handled {
            graph.gaps.extend(GAPS.iter().find(|gap| **gap == keyword));
            return false;
        }
        if matches!(keyword, "enum" | "const") {
            let listed: Vec<&Value> = match value {
                Value::Array(values) if keyword == "enum" => values.iter().collect(),
                value => vec![value],
            };
            self.values = Some(match self.values.take() {
                Some(before) => before.into_iter().filter(|value| listed.contains(value)).collect(),
                None => listed,
            });
        }
        true
    }

    fn read_type(&mut self, value: &Value) -> bool {
        let names: Vec<&str> = match value {
            Value::String(name) => vec![name],
            Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
            _ => return false,
        };
        let has = |name: &str| names.contains(&name);
        self.null &= has("null");
        self.booleans &= has("boolean");
        match &mut self.number {
            Some(number) if has("integer") && !has("number") => number.integer = true,
            Some(_) if has("number") => {}
            number => *number = None,
        }
        self.text.take_if(|_| !has("string"));
        self.array.take_if(|_| !has("array"));
        self.object.take_if(|_| !has("object"));
        true
    }

    /// Reads a keyword about one type; returns false if it has no rule.
    fn read_of_type(
        &mut self,
        keyword: &str,
        value: &Value,
        part: &Keywords,
        graph: &Graph<'a>,
    ) -> bool {
        let version = graph.source.version();
        let count = || value.as_u64().and_then(|count| usize::try_from(count).ok());
        match keyword {
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => {
                match (&mut self.number, value.as_f64()) {
                    (None, _) => true,
                    // Draft 4 has booleans next to the limits.
                    (Some(_), None) => version < 6 && *value == Value::Bool(false),
                    (Some(_), Some(_)) if version < 6 && keyword.starts_with("exclusive") => false,
                    (Some(number), Some(limit)) => {
                        number.limit(keyword, limit);
                        true
                    }
                }
            }
            "multipleOf" => match (&mut self.number, value.as_u64()) {
                (None, _) => true,
                (Some(number), Some(divisor)) => number.divide(divisor),
                (Some(_), None) => false,
            },
            "minLength" | "maxLength" => match (&mut self.text, count()) {
                (None, _) => true,
                (Some(text), Some(count)) => {
                    text.free = false;
                    if keyword == "minLength" {
                        text.min = text.min.max(count);
                    } else {
                        text.max = text.max.min(count);
                    }
                    true
                }
                (Some(_), None) => false,
            },
            "pattern" => {
                let compiled = value.as_str().and_then(|pattern| graph.patterns.get(pattern).ok());
                let quick = compiled.filter(|pattern| pattern.is_quick());
                match (&mut self.text, quick) {
                    (None, _) => true,
                    (Some(text), Some(pattern)) => {
                        text.free = false;
                        let patterns = std::mem::take(&mut text.patterns).into_vec();
                        text.patterns = patterns.into_iter().chain([pattern]).collect();
                        true
                    }
                    (Some(_), None) => false,
                }
            }
            "format" => self.text.is_none() || !graph.assert_formats,
            "minItems" | "maxItems" => match (&mut self.array, count()) {
                (None, _) => true,
                (Some(array), Some(count)) if keyword == "minItems" => {
                    array.min = array.min.max(count);
                    true
                }
                (Some(array), Some(count)) => {
                    array.max = array.max.min(count);
                    true
                }
                (Some(_), None) => false,
            },
            "uniqueItems" => {
                if let Some(array) = &mut self.array {
                    array.unique |= *value != Value::Bool(false);
                }
                true
            }
            "prefixItems" => version >= 9 || self.array.is_none(),
            "additionalItems" => version < 9 || self.array.is_none(),
            "contains" | "minContains" | "maxContains" | "unevaluatedItems" => self.array.is_none(),
            "minProperties" | "maxProperties" => match (&mut self.object, count()) {
                (None, _) => true,
                (Some((min, _)), Some(count)) if keyword == "minProperties" => {
                    *min = (*min).max(count);
                    true
                }
                (Some((_, max)), Some(count)) => {
                    *max = (*max).min(count);
                    true
                }
                (Some(_), None) => false,
            },
            "propertyNames" => version >= 6 || self.object.is_none(),
            "dependencies" | "dependentRequired" | "dependentSchemas" | "unevaluatedProperties" => {
                self.object.is_none()
            }
            "then" | "else" => part.contains_key("if") || version >= 7,
            // The other keywords are read by `array` and `object`, are annotations, or have no meaning.
            _ => true,
        }
    }

    /// Drops the rule for the type to which `keyword` applies.
    fn drop_type(&mut self, keyword: &str) {
        match keyword {
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf" => {
                self.number = None;
            }
            "minLength" | "maxLength" | "pattern" | "format" => self.text = None,
            "minItems" | "maxItems" | "prefixItems" | "additionalItems" | "contains"
            | "minContains" | "maxContains" | "unevaluatedItems" => self.array = None,
            _ => self.object = None,
        }
    }

    /// Restricts the rules to the enumerated values. Enumerated arrays and objects have no rule.
    fn enumerate(&mut self) {
        let Some(values) = &self.values else { return };
        (self.array, self.object) = (None, None);
        if let Some(number) = &mut self.number {
            let doubles = values.iter().filter_map(|value| value.as_f64());
            // Negative zeros are replaced by zeros, because they would be sorted differently.
            let doubles = doubles.filter(|value| value.abs() < super::number::EXACT);
            let mut exact: Vec<f64> = doubles.map(|value| value + 0.0).collect();
            exact.sort_by(f64::total_cmp);
            number.compared = true;
            number.one_of = Some(exact.into());
        }
        self.number
            .take_if(|number| number.one_of.as_ref().is_some_and(|values| values.is_empty()));
        if let Some(text) = &mut self.text {
            let texts: BTreeSet<&str> = values.iter().filter_map(|value| value.as_str()).collect();
            text.free = false;
            text.one_of = Some(texts.into_iter().map(Box::from).collect());
        }
        self.text.take_if(|text| text.one_of.as_ref().is_some_and(|texts| texts.is_empty()));
    }
}

/// Keywords that may have no rule.
const GAPS: [&str; 31] = [
    "const",
    "if",
    "not",
    "$dynamicRef",
    "$recursiveRef",
    "type",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "minItems",
    "maxItems",
    "uniqueItems",
    "prefixItems",
    "additionalItems",
    "contains",
    "minContains",
    "maxContains",
    "unevaluatedItems",
    "minProperties",
    "maxProperties",
    "propertyNames",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedProperties",
];

/// String rules for alternatives: a single rule if one has no conditions; enumerations are merged into one.
fn merged(texts: Vec<TextRule>) -> Vec<TextRule> {
    if texts.iter().any(|text| text.free) {
        return vec![TextRule::default()];
    }
    let (enumerations, mut others): (Vec<_>, Vec<_>) =
        texts.into_iter().partition(TextRule::is_enumeration);
    let values: BTreeSet<Box<str>> =
        enumerations.into_iter().filter_map(|text| text.one_of).flatten().collect();
    if !values.is_empty() {
        let one_of = Some(values.into_iter().collect());
        others.insert(0, TextRule { free: false, one_of, ..TextRule::default() });
    }
    others
}

/// Whether a character in a name must be escaped.
fn is_escaped(byte: u8) -> bool {
    byte < b' ' || byte == b'"' || byte == b'\\'
}
