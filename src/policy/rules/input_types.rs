//! The types of arguments, as tools' input schemas say them, in so far as rules can ask for them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

use super::needs::Wanted;

/// References that are followed from one schema to the next.
const MAX_REFERENCES: usize = 8;
/// Levels of a schema that are looked at; what is deeper can be of any type.
const MAX_LEVELS: usize = 16;

/// What an argument must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum InputType {
    String,
    Long,
    Bool,
    Set(Box<InputType>),
    Record(InputMembers),
    /// The schema names no one type.
    Any,
}

/// A member of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InputMember {
    pub(super) value: InputType,
    pub(super) required: bool,
}

/// The members of an object, by name.
pub(super) type InputMembers = BTreeMap<Box<str>, InputMember>;

/// What is known of the tools that a rule can meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Completeness {
    /// All of them are known: what none of them has does not exist.
    All,
    /// There may be others.
    Some,
}

/// The wanted members of the arguments, over all `schemas`: the input schemas of the tools in question.
pub(super) fn members(wanted: &Wanted, schemas: &[&Value], known: Completeness) -> InputMembers {
    let objects: Vec<_> = schemas.iter().map(|schema| (*schema, *schema)).collect();
    of_objects(wanted, &objects, known, 0)
}

/// `objects` are schemas with the documents that their references are of.
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

/// An object of which no member is named may have any.
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

/// The words of `type`, without `null`; what `properties`, `enum` or `const` make of it where there is none.
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

/// What a schema refers to, within its own document.
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

/// The types that stand in turn for one that is not known.
pub(super) const GUESSES: [&str; 4] = ["String", "Long", "Bool", "Set<String>"];

/// How many values, at whatever depth, are of no known type.
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

/// Makes every member one that is always there.
pub(super) fn require(members: &mut InputMembers) {
    for member in members.values_mut() {
        member.required = true;
        if let InputType::Record(inner) = &mut member.value {
            require(inner);
        }
    }
}

/// The record as Cedar's schema language writes it. Each unknown type takes the next of `guesses`.
pub(super) fn written(
    members: &InputMembers,
    wanted: &Wanted,
    guesses: &mut dyn Iterator<Item = &'static str>,
) -> String {
    let mut text = String::from("{");
    for (name, member) in members {
        let optional = if member.required { "" } else { "?" };
        let value = write_type(member, wanted.members.get(name), guesses);
        // Infallible: a String takes everything.
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
            // What is asked for below it makes it a record, as sure of its members as it is of itself.
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
    fn a_schema_says_what_an_argument_is() {
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
    fn over_several_tools_only_what_they_agree_on_is_sure() {
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
