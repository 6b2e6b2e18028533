//! Inputs that a condition reads, found in its syntax tree, and the types that input schemas give to its arguments.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

use mcpproxy_json::fold::FoldedNames;

/// Maximum depth of a condition's syntax tree; Cedar's parser has a much lower limit.
const MAX_NESTING: usize = 512;

/// Parts of an object that are read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    /// The whole value.
    pub(super) whole: bool,
    /// Members by name; a member that is neither whole nor has members is only tested for presence.
    pub(super) members: BTreeMap<Box<str>, Wanted>,
}

impl Wanted {
    /// Whether only presence is tested.
    pub(super) fn is_presence(&self) -> bool {
        !self.whole && self.members.is_empty()
    }

    fn mark(&mut self, path: &[String], whole: bool) {
        let mut at = self;
        for name in path {
            at = at.members.entry(name.as_str().into()).or_default();
        }
        at.whole |= whole;
    }

    /// Merges `other`.
    pub(super) fn add(&mut self, other: &Self) {
        self.whole |= other.whole;
        for (name, theirs) in &other.members {
            self.members.entry(name.clone()).or_default().add(theirs);
        }
    }

    /// Whether the value at `path`, or a part of it, is read.
    pub(super) fn covers(&self, path: &[Box<str>]) -> bool {
        let mut at = self;
        for name in path {
            if at.whole {
                return true;
            }
            match at.members.get(name) {
                Some(member) => at = member,
                None => return false,
            }
        }
        true
    }
}

/// Inputs that a condition reads besides principal, action and resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RuleNeeds {
    /// Parts of `context.args` that the condition reads.
    pub(super) args: Option<Wanted>,
    /// Names of argument members that the condition reads, at any depth. Contains additional names if the object that
    /// is read is known only at evaluation.
    pub(super) names: FoldedNames,
    /// Whether the condition reads `context.intent`.
    pub(super) intent: bool,
    /// Whether the condition reads `context.session`.
    pub(super) session: bool,
    /// Whether the condition reads `context.carries_out`.
    pub(super) carries_out: bool,
    /// Whether the condition reads `context.client`.
    pub(super) client: bool,
    /// Whether the condition reads `context.now`.
    pub(super) now: bool,
    /// Whether the condition reads `context.capability`, which the tool determines.
    pub(super) capability: bool,
    /// Every path below `context`, as written.
    pub(super) paths: Vec<Box<[String]>>,
    /// Reads of members that only calls have.
    call_members: CallMembers,
}

/// Members of `context` that only calls have.
const CALL_MEMBERS: [&str; 3] = ["args", "intent", "capability"];

/// Reads of [`CALL_MEMBERS`] by a condition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct CallMembers {
    /// Whether the condition reads one of these members.
    read: bool,
    /// Whether the condition itself distinguishes calls from other requests: it tests whether one of these members is
    /// present, reads the whole context, or names the action.
    distinguished: bool,
}

impl RuleNeeds {
    /// Reads the `conditions` of a rule's JSON form; `None` if nested too deep.
    pub(super) fn of(conditions: &Value) -> Option<Self> {
        let mut needs = Self::default();
        needs.visit(conditions, 0)?;
        needs.paths.sort();
        needs.paths.dedup();
        Some(needs)
    }

    /// Whether the result depends on more than principal, tool and action.
    pub(super) fn looks_at_request(&self) -> bool {
        self.args.is_some()
            || self.intent
            || self.session
            || self.carries_out
            || self.client
            || self.now
    }

    /// Whether the condition can be evaluated only for calls, because it reads members that other requests lack,
    /// without testing for them.
    pub(super) fn calls_only(&self) -> bool {
        self.call_members.read && !self.call_members.distinguished
    }

    /// Merges `other`, except the paths.
    pub(super) fn add(&mut self, other: &Self) {
        if let Some(theirs) = &other.args {
            self.args.get_or_insert_default().add(theirs);
        }
        self.names.merge(&other.names);
        self.intent |= other.intent;
        self.session |= other.session;
        self.carries_out |= other.carries_out;
        self.client |= other.client;
        self.now |= other.now;
        self.capability |= other.capability;
    }

    fn visit(&mut self, node: &Value, depth: usize) -> Option<()> {
        if depth > MAX_NESTING {
            return None;
        }
        match node {
            Value::Object(members) => {
                match members.get("Var").and_then(Value::as_str) {
                    Some("context") => {
                        self.mark(Vec::new(), true);
                        return Some(());
                    }
                    Some("action") => self.call_members.distinguished = true,
                    Some(_) | None => {}
                }
                for (operator, whole) in [(".", true), ("has", false)] {
                    let Some(operand) = members.get(operator) else { continue };
                    if let Some(path) = path(operand) {
                        self.mark(path, whole);
                        return Some(());
                    }
                    // The object is known only at evaluation, or this is an extended `has` (`has a.b`).
                    match operand.get("attr") {
                        Some(Value::String(name)) => self.names.insert(name),
                        Some(Value::Array(names)) => {
                            let names = names.iter().filter_map(Value::as_str);
                            names.for_each(|name| self.names.insert(name));
                        }
                        Some(_) | None => {}
                    }
                }
                // Arguments can be compared with a record literal, so its names count as read.
                if let Some(record) = members.get("Record").and_then(Value::as_object) {
                    record.keys().for_each(|name| self.names.insert(name));
                }
                // Literals contain no expression.
                let within = members.iter().filter(|(name, _)| *name != "Value");
                within.map(|(_, value)| value).try_for_each(|value| self.visit(value, depth + 1))
            }
            Value::Array(elements) => {
                elements.iter().try_for_each(|element| self.visit(element, depth + 1))
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Some(()),
        }
    }

    fn mark(&mut self, path: Vec<String>, whole: bool) {
        let (first, rest) = match path.split_first() {
            None => ("", &path[..]),
            Some((first, rest)) => (first.as_str(), rest),
        };
        let all = first.is_empty();
        let is_tested = rest.is_empty() && !whole;
        if all || (is_tested && CALL_MEMBERS.contains(&first)) {
            self.call_members.distinguished = true;
        } else if CALL_MEMBERS.contains(&first) {
            self.call_members.read = true;
        }
        if all || first == "args" {
            self.args.get_or_insert_default().mark(rest, whole);
            rest.iter().for_each(|name| self.names.insert(name));
        }
        self.intent |= all || first == "intent";
        self.session |= all || first == "session";
        self.carries_out |= all || first == "carries_out";
        self.client |= all || first == "client";
        self.now |= all || first == "now";
        self.capability |= all || first == "capability";
        self.paths.push(path.into());
    }
}

/// Path below `context` that `{"left": …, "attr": …}` denotes, if any.
fn path(operand: &Value) -> Option<Vec<String>> {
    let attribute = operand.get("attr").and_then(Value::as_str)?;
    let left = operand.get("left")?;
    let mut path = match left.get("Var").and_then(Value::as_str) {
        Some("context") => Vec::new(),
        Some(_) => return None,
        None => path(left.get(".")?)?,
    };
    path.push(attribute.to_owned());
    Some(path)
}

/// Maximum number of references followed in a chain.
const MAX_REFERENCES: usize = 8;
/// Maximum depth of a schema; deeper values have any type.
const MAX_LEVELS: usize = 16;

/// Type of an argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum InputType {
    String,
    Long,
    Bool,
    Set(Box<InputType>),
    Record(InputMembers),
    /// The schema does not state a single type.
    Any,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InputMember {
    pub(super) value: InputType,
    pub(super) required: bool,
}

/// Members of an object by name.
pub(super) type InputMembers = BTreeMap<Box<str>, InputMember>;

/// Whether all tools that a rule may apply to are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Completeness {
    /// All tools are known: a member that no tool has does not exist.
    All,
    /// Other tools may exist.
    Some,
}

/// Types of the read members, merged over all input `schemas`.
pub(super) fn members(wanted: &Wanted, schemas: &[&Value], known: Completeness) -> InputMembers {
    let objects: Vec<_> = schemas.iter().map(|schema| (*schema, *schema)).collect();
    of_objects(wanted, &objects, known, 0)
}

/// Types of the read members, merged over `objects`: schemas, each with its root document.
fn of_objects(
    wanted: &Wanted,
    objects: &[(&Value, &Value)],
    known: Completeness,
    level: usize,
) -> InputMembers {
    let mut found = BTreeMap::new();
    let every: Vec<Box<str>> = match wanted.whole {
        true => objects.iter().flat_map(|(schema, _)| names(schema)).collect(),
        false => Vec::new(),
    };
    for name in wanted.members.keys().chain(&every) {
        let whole = Wanted { whole: true, ..Wanted::default() };
        let below = wanted.members.get(name).filter(|_| !wanted.whole).unwrap_or(&whole);
        let mut types = Vec::new();
        let mut required = known == Completeness::All;
        for (schema, root) in objects {
            match schema.get("properties").and_then(|all| all.get(&**name)) {
                Some(property) => types.push(of_value(property, root, below, level + 1)),
                None if is_open(schema) => types.push(InputType::Any),
                None => {}
            }
            required &= is_required(schema, name);
        }
        let value = types.into_iter().reduce(merged);
        let value = match (value, known) {
            (Some(value), Completeness::All) => value,
            (Some(value), Completeness::Some) => merged(value, InputType::Any),
            (None, Completeness::Some) => InputType::Any,
            (None, Completeness::All) => continue,
        };
        found.insert(name.clone(), InputMember { value, required });
    }
    found
}

fn names(schema: &Value) -> Vec<Box<str>> {
    let properties = schema.get("properties").and_then(Value::as_object);
    properties.into_iter().flat_map(|all| all.keys().map(|name| name.as_str().into())).collect()
}

/// Whether the object schema names no members, so that it allows any.
fn is_open(schema: &Value) -> bool {
    schema.get("properties").is_none()
        && schema.get("additionalProperties") != Some(&Value::Bool(false))
}

fn is_required(schema: &Value, name: &str) -> bool {
    let required = schema.get("required").and_then(Value::as_array);
    required.is_some_and(|all| all.iter().any(|it| it.as_str() == Some(name)))
}

fn merged(a: InputType, b: InputType) -> InputType {
    if a == b { a } else { InputType::Any }
}

fn of_value(schema: &Value, root: &Value, wanted: &Wanted, level: usize) -> InputType {
    let Some(schema) = resolved(schema, root).filter(|_| level < MAX_LEVELS) else {
        return InputType::Any;
    };
    for word in ["anyOf", "oneOf", "allOf"] {
        let Some(all) = schema.get(word).and_then(Value::as_array) else { continue };
        let all = all.iter().filter(|one| one.get("type").and_then(Value::as_str) != Some("null"));
        let types = all.map(|one| of_value(one, root, wanted, level + 1));
        return types.reduce(merged).unwrap_or(InputType::Any);
    }
    match kinds(schema).as_slice() {
        ["string"] => InputType::String,
        ["boolean"] => InputType::Bool,
        ["integer" | "number"] | ["integer", "number"] | ["number", "integer"] => InputType::Long,
        ["array"] => match schema.get("items") {
            Some(items) if items.is_object() => {
                let whole = Wanted { whole: true, ..Wanted::default() };
                match of_value(items, root, &whole, level + 1) {
                    InputType::Any => InputType::Any,
                    element => InputType::Set(Box::new(element)),
                }
            }
            Some(_) | None => InputType::Any,
        },
        ["object"] if is_open(schema) => InputType::Any,
        ["object"] => {
            InputType::Record(of_objects(wanted, &[(schema, root)], Completeness::All, level + 1))
        }
        _ => InputType::Any,
    }
}

/// The values of `type` without `null`. If `type` is absent, `properties`, `enum` or `const` imply it.
fn kinds(schema: &Value) -> Vec<&str> {
    match schema.get("type") {
        Some(Value::String(word)) => return vec![word],
        Some(Value::Array(words)) => {
            let words = words.iter().filter_map(Value::as_str);
            return words.filter(|word| *word != "null").collect();
        }
        Some(_) => return Vec::new(),
        None => {}
    }
    if schema.get("properties").is_some() {
        return vec!["object"];
    }
    let values = match (schema.get("enum"), schema.get("const")) {
        (Some(Value::Array(values)), _) => values.as_slice(),
        (_, Some(value)) => std::slice::from_ref(value),
        (_, None) => &[],
    };
    let kind = |value: &Value| match value {
        Value::String(_) => "string",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::Array(_) => "array",
        Value::Object(_) | Value::Null => "",
    };
    let mut kinds: Vec<_> = values.iter().map(kind).collect();
    kinds.dedup();
    kinds
}

/// Resolves references within the document.
fn resolved<'a>(schema: &'a Value, root: &'a Value) -> Option<&'a Value> {
    let mut schema = schema;
    for _ in 0..MAX_REFERENCES {
        let Some(reference) = schema.get("$ref").and_then(Value::as_str) else {
            return Some(schema);
        };
        schema = root.pointer(reference.strip_prefix('#')?)?;
    }
    None
}

/// Types that are tried in turn for an unknown type.
pub(super) const GUESSES: [&str; 5] = ["String", "Long", "Bool", "Set<String>", "Set<Long>"];

/// Number of values of unknown type, at any depth.
pub(super) fn unknown(members: &InputMembers, wanted: &Wanted) -> usize {
    fn of(value: &InputType, wanted: Option<&Wanted>) -> usize {
        match value {
            InputType::String | InputType::Long | InputType::Bool => 0,
            InputType::Set(element) => of(element, None),
            InputType::Record(members) => {
                let none = Wanted::default();
                unknown(members, wanted.unwrap_or(&none))
            }
            InputType::Any => match wanted.filter(|wanted| !wanted.members.is_empty()) {
                None => 1,
                Some(wanted) => {
                    wanted.members.values().map(|below| of(&InputType::Any, Some(below))).sum()
                }
            },
        }
    }
    members.iter().map(|(name, member)| of(&member.value, wanted.members.get(name))).sum()
}

/// Writes the record type in Cedar's schema language. Each unknown type takes the next of `guesses`.
pub(super) fn written(
    members: &InputMembers,
    wanted: &Wanted,
    guesses: &mut dyn Iterator<Item = &'static str>,
) -> String {
    let mut text = String::from("{");
    for (name, member) in members {
        let optional = if member.required { "" } else { "?" };
        let value = write_type(member, wanted.members.get(name), guesses);
        // Writing to a `String` cannot fail.
        let _ = write!(text, "{name:?}{optional}: {value}, ");
    }
    text.push('}');
    text
}

fn write_type(
    member: &InputMember,
    wanted: Option<&Wanted>,
    guesses: &mut dyn Iterator<Item = &'static str>,
) -> String {
    let none = Wanted::default();
    match &member.value {
        InputType::String => "String".to_owned(),
        InputType::Long => "Long".to_owned(),
        InputType::Bool => "Bool".to_owned(),
        InputType::Set(element) => {
            let element = InputMember { value: (**element).clone(), required: true };
            format!("Set<{}>", write_type(&element, None, guesses))
        }
        InputType::Record(members) => written(members, wanted.unwrap_or(&none), guesses),
        InputType::Any => match wanted.filter(|wanted| !wanted.members.is_empty()) {
            None => guesses.next().unwrap_or("String").to_owned(),
            // A member whose own members are read is a record. Its members are required if it is required itself.
            Some(wanted) => {
                let any = InputMember { value: InputType::Any, required: member.required };
                let members = wanted.members.keys().map(|name| (name.clone(), any.clone()));
                written(&members.collect(), wanted, guesses)
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use cedar_policy::Policy;

    use super::*;

    fn needs(condition: &str) -> RuleNeeds {
        let text = format!("permit(principal, action, resource) when {{ {condition} }};");
        let json = Policy::parse(None, text).unwrap().to_json().unwrap();
        RuleNeeds::of(&json["conditions"]).unwrap()
    }

    #[test]
    fn condition_that_reads_call_members_without_has_applies_only_to_calls() {
        for (condition, expected) in [
            ("context.args.a == 1", true),
            ("context.args has a && context.args.a == 1", true),
            ("context.intent.reason == \"\" && context.client == \"x\"", true),
            ("context.args == {}", true),
            ("context has args && context.args has a", false),
            ("context has intent || context.args has a", false),
            ("action == Action::\"list\" || context.args.a == 1", false),
            ("context == {} || context.args.a == 1", false),
            ("context.client == \"x\"", false),
        ] {
            assert_eq!(needs(condition).calls_only(), expected, "{condition}");
        }
    }

    #[test]
    fn only_named_arguments_are_read() {
        let found = needs(
            r#"context.args has a && context.args.a.b == "context" && context.args["x y"] > 1
               && [context.args.l].contains(3) && context.capability.open_world"#,
        );
        let args = found.args.clone().unwrap();
        let names: Vec<_> = args.members.keys().map(|name| &**name).collect();
        assert_eq!(names, ["a", "l", "x y"]);
        assert!(!args.whole && args.members["l"].whole && !args.members["a"].whole);
        assert!(args.members["a"].members["b"].whole);
        assert!(found.capability && !found.intent && !found.session && !found.now);
        assert!(found.looks_at_request());
        let path = |names: &[&str]| names.iter().map(|it| (*it).into()).collect::<Vec<Box<str>>>();
        assert!(args.covers(&path(&["a"])) && args.covers(&path(&["l", "deeper"])));
        assert!(!args.covers(&path(&["b"])));
    }

    #[test]
    fn presence_test_does_not_read_the_value() {
        let args = needs("context.args has force").args.unwrap();
        assert!(args.members["force"].is_presence());
        assert!(!needs("context.capability.open_world").looks_at_request());
        assert!(!needs(r#"principal == Agent::"context""#).looks_at_request());
    }

    #[test]
    fn names_of_arguments_are_read_in_every_form() {
        for (condition, names) in [
            ("context.args has a && context.args.b.c == 1", &["a", "b", "c"][..]),
            (r#"context.args["x y"].z"#, &["x y", "z"]),
            ("context.args has a.b", &["a", "b"]),
            ("context.args == {d: {e: 1}}", &["d", "e"]),
            ("(if context.args has f then context.args else context.args.g).h", &["f", "g", "h"]),
            ("[{i: 1}].contains(context.args)", &["i"]),
        ] {
            let found = needs(condition).names;
            assert!(names.iter().all(|name| found.contains(name)), "{condition}: {found:?}");
        }
        let found = needs("context.client == \"a\" && context.intent.reason == \"b\"").names;
        assert_eq!(found, FoldedNames::default());
    }

    #[test]
    fn condition_on_the_whole_context_reads_every_attribute() {
        let found = needs("context == {a: 1}");
        assert!(found.args.unwrap().whole && found.intent && found.session && found.now);
    }
}

#[cfg(test)]
mod input_types_tests {
    use serde_json::json;

    use super::*;

    fn wanted(names: &[&str]) -> Wanted {
        let whole = Wanted { whole: true, ..Wanted::default() };
        Wanted {
            whole: false,
            members: names.iter().map(|name| ((*name).into(), whole.clone())).collect(),
        }
    }

    fn text(schema: &Value, names: &[&str]) -> String {
        let (wanted, mut guesses) = (wanted(names), ["Bool"].into_iter().cycle());
        written(&members(&wanted, &[schema], Completeness::All), &wanted, &mut guesses)
    }

    #[test]
    fn argument_types_follow_the_schema() {
        let schema = json!({
            "type": "object", "required": ["s"],
            "$defs": {"p": {"type": ["string", "null"]}},
            "properties": {
                "s": {"type": "string"}, "n": {"type": "number"}, "b": {"type": "boolean"},
                "l": {"type": "array", "items": {"type": "string"}},
                "r": {"$ref": "#/$defs/p"}, "circle": {"$ref": "#/properties/circle"},
                "o": {"type": "object", "properties": {"x-y": {"type": "integer"}}},
                "u": {"type": ["string", "array"]}, "e": {"enum": ["a", "b"]},
                "a": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                "free": {"type": "object"},
            },
        });
        for (name, expected) in [
            ("s", "{\"s\": String, }"),
            ("n", "{\"n\"?: Long, }"),
            ("b", "{\"b\"?: Bool, }"),
            ("l", "{\"l\"?: Set<String>, }"),
            ("r", "{\"r\"?: String, }"),
            ("circle", "{\"circle\"?: Bool, }"),
            ("o", "{\"o\"?: {\"x-y\"?: Long, }, }"),
            ("u", "{\"u\"?: Bool, }"),
            ("e", "{\"e\"?: String, }"),
            ("a", "{\"a\"?: Long, }"),
            ("free", "{\"free\"?: Bool, }"),
            ("missing", "{}"),
        ] {
            assert_eq!(text(&schema, &[name]), expected, "{name}");
        }
        assert_eq!(text(&json!({}), &["x"]), "{\"x\"?: Bool, }", "an open schema has anything");
    }

    #[test]
    fn types_over_several_tools_must_agree() {
        let a = json!({"required": ["p", "q"], "properties": {"p": {"type": "string"}, "q": {"type": "string"}}});
        let b = json!({"required": ["p"], "properties": {"p": {"type": "string"}, "q": {"type": "integer"}}});
        let wanted = wanted(&["p", "q", "z"]);
        let found = members(&wanted, &[&a, &b], Completeness::All);
        assert_eq!(found["p"], InputMember { value: InputType::String, required: true });
        assert_eq!(found["q"], InputMember { value: InputType::Any, required: false });
        assert!(!found.contains_key("z") && unknown(&found, &wanted) == 1);
        let found = members(&wanted, &[&a], Completeness::Some);
        assert_eq!(found["z"], InputMember { value: InputType::Any, required: false });
        assert_eq!(found["p"].value, InputType::Any, "another tool may have another");
    }
}
