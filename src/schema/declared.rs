//! Case variants of declared properties among the keys of arguments.
//!
//! A case-insensitive server reads `Path` as the property `path`, whereas the engines treat it as another member. One pass over the keys
//! clears nearly all arguments; only for the others are schema and arguments traversed in parallel. If the traversal cannot determine which
//! properties are declared, because a reference is not resolved here, a key is compared with all names of the schema.

use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};

use super::unusable::{MAX_NAME_BYTES, MAX_PLACE_BYTES, cut};
use mcpproxy_json::fold::{self, FoldedNames};
use mcpproxy_json::keys::{KeyEvent, KeyEvents};
use mcpproxy_json::pointer::token;

/// Maximum number of subschemas examined for one value.
const MAX_SUBSCHEMAS: usize = 256;
/// Maximum number of objects and arrays of the arguments examined, each counted once per subschema.
const MAX_STEPS: usize = 1 << 18;

/// Keywords whose subschemas apply to the same value.
const SAME_VALUE: [&str; 8] =
    ["allOf", "anyOf", "oneOf", "if", "then", "else", "dependentSchemas", "dependencies"];
/// Keywords whose subschemas apply to members without a declared property.
const OTHER_MEMBERS: [&str; 3] =
    ["additionalProperties", "unevaluatedProperties", "patternProperties"];
/// Keywords whose subschemas apply to elements.
const ELEMENTS: [&str; 5] =
    ["items", "prefixItems", "additionalItems", "unevaluatedItems", "contains"];
/// References whose target depends on the evaluation.
const DYNAMIC_REFERENCES: [&str; 2] = ["$dynamicRef", "$recursiveRef"];

/// Reasons why keys cannot be compared.
const TOO_MANY_SUBSCHEMAS: &str = "more than 256 subschemas apply to one value";
const TOO_MANY_STEPS: &str = "more than 262144 objects and arrays, each counted once per subschema";
const UNREADABLE: &str = "nested deeper than 127 levels, or values that not all parsers read alike";

/// Names of all properties that a schema declares, at any depth.
#[derive(Clone, Debug, Default)]
pub struct DeclaredNames(FoldedNames);

/// Reason why the keys of arguments are refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyConflict {
    Variant(CaseVariant),
    /// Some key may be a case variant but cannot be compared for this reason.
    Uncompared(&'static str),
}

/// A key that is a case variant of a declared property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaseVariant {
    /// JSON pointer to the member in the arguments, truncated to 512 bytes.
    pub place: String,
    /// The name that the schema declares, truncated to 128 bytes.
    pub declared: String,
}

impl DeclaredNames {
    /// Reads the schema `raw`.
    pub fn of(raw: &[u8]) -> Self {
        let mut names = FoldedNames::default();
        if let Ok(schema) = serde_json::from_slice::<Value>(raw) {
            collect(&schema, &mut names);
        }
        Self(names)
    }

    /// First key of the object `arguments`, at any depth, that is a case variant of a property declared for its object
    /// and is not a declared property itself. `raw` is the schema from which these names were read.
    pub fn conflict(&self, raw: &[u8], arguments: &[u8]) -> Option<KeyConflict> {
        let may_be = KeyEvents::new(arguments).any(|event| match event {
            KeyEvent::Key(key) => self.0.variant_of(fold::hash(&key), &key).is_some(),
            KeyEvent::Begin | KeyEvent::End => false,
        });
        // A declared name may be a variant of a property of another object.
        if !(may_be || self.0.has_variants_within()) {
            return None;
        }
        let root = serde_json::from_slice(raw).ok()?;
        let Ok(arguments) = serde_json::from_slice(arguments) else {
            return Some(KeyConflict::Uncompared(UNREADABLE));
        };
        let (has_resources, place) = (has_resources(&root), String::new());
        let mut search = Search { root: &root, names: &self.0, has_resources, steps: 0, place };
        search.value(&arguments, &Schemas { known: vec![&root], unresolved: false }).err()
    }
}

/// Adds all declared names. Over-approximates: a property may itself be called `properties`, and with `propertyNames`, every `enum` may
/// list names.
fn collect(schema: &Value, names: &mut FoldedNames) {
    let lists_names = any_object(schema, &mut |members| members.contains_key("propertyNames"));
    any_object(schema, &mut |members| {
        let properties = members.get("properties").and_then(Value::as_object);
        properties.into_iter().flat_map(|it| it.keys()).for_each(|name| names.insert(name));
        strings(members.get("required")).for_each(|name| names.insert(name));
        if lists_names {
            listed(members).for_each(|name| names.insert(name));
        }
        false
    });
}

/// Whether `is` returns true for some object within the value.
fn any_object(value: &Value, is: &mut impl FnMut(&Map<String, Value>) -> bool) -> bool {
    match value {
        Value::Object(members) => {
            is(members) || members.values().any(|value| any_object(value, is))
        }
        Value::Array(elements) => elements.iter().any(|value| any_object(value, is)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// Strings of an array.
fn strings(list: Option<&Value>) -> impl Iterator<Item = &str> {
    list.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

/// Strings that the schema of a string allows.
fn listed(schema: &Map<String, Value>) -> impl Iterator<Item = &str> {
    strings(schema.get("enum")).chain(schema.get("const").and_then(Value::as_str))
}

/// Whether a subschema has its own identifier, so that references in it may not start at the root.
fn has_resources(root: &Value) -> bool {
    let dialect = root.get("$schema").and_then(Value::as_str).unwrap_or_default();
    let keyword = if dialect.contains("draft-04") { "id" } else { "$id" };
    let mut ids = 0;
    any_object(root, &mut |members| {
        ids += usize::from(members.get(keyword).is_some_and(Value::is_string));
        false
    });
    ids > usize::from(root.get(keyword).is_some_and(Value::is_string))
}

/// Subschemas that apply to a value.
struct Schemas<'s> {
    known: Vec<&'s Value>,
    /// Whether others may apply, because a reference is not resolved.
    unresolved: bool,
}

/// Parallel traversal of arguments and schema.
struct Search<'s> {
    root: &'s Value,
    names: &'s FoldedNames,
    /// Whether subschemas have their own identifiers.
    has_resources: bool,
    steps: usize,
    place: String,
}

impl<'s> Search<'s> {
    fn value(&mut self, value: &Value, schemas: &Schemas<'s>) -> Result<(), KeyConflict> {
        if !is_container(value) || (schemas.known.is_empty() && !schemas.unresolved) {
            return Ok(());
        }
        let schemas = self.of_value(schemas)?;
        self.step(1 + schemas.known.len())?;
        match value {
            Value::Object(members) => {
                members.iter().try_for_each(|(name, value)| self.member(name, value, &schemas))
            }
            Value::Array(elements) => {
                let of_elements = schemas.below(&ELEMENTS);
                let containers = elements.iter().enumerate().filter(|(_, it)| is_container(it));
                let mut each = containers.map(|(at, value)| {
                    self.within(&at.to_string(), |search| search.value(value, &of_elements))
                });
                each.try_for_each(|found| found)
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
        }
    }

    fn step(&mut self, steps: usize) -> Result<(), KeyConflict> {
        self.steps += steps;
        match self.steps > MAX_STEPS {
            true => Err(KeyConflict::Uncompared(TOO_MANY_STEPS)),
            false => Ok(()),
        }
    }

    fn member(
        &mut self,
        name: &str,
        value: &Value,
        schemas: &Schemas<'s>,
    ) -> Result<(), KeyConflict> {
        let properties = schemas.known.iter().filter_map(|it| it.get("properties")?.as_object());
        let exact: Vec<_> = properties.filter_map(|it| it.get(name)).collect();
        if exact.is_empty()
            && let Some(declared) = self.variant(name, schemas)?
        {
            let declared = cut(declared, MAX_NAME_BYTES).to_owned();
            let place = format!("{}/{}", self.place, token(name));
            let place = cut(&place, MAX_PLACE_BYTES).to_owned();
            return Err(KeyConflict::Variant(CaseVariant { place, declared }));
        }
        let schemas = match exact.is_empty() {
            true => schemas.below(&OTHER_MEMBERS),
            false => Schemas { known: exact, ..*schemas },
        };
        self.within(name, |search| search.value(value, &schemas))
    }

    /// The declared name of which `name` is a variant. `name` itself is not declared.
    fn variant(
        &mut self,
        name: &str,
        schemas: &Schemas<'s>,
    ) -> Result<Option<&'s str>, KeyConflict> {
        let Some(other) = self.names.other_spelling(name) else { return Ok(None) };
        let of_names =
            self.of_value(&Schemas { unresolved: false, ..schemas.below(&["propertyNames"]) })?;
        self.step(schemas.known.len() + of_names.known.len())?;
        let properties = schemas.known.iter().filter_map(|it| it.get("properties")?.as_object());
        let required = schemas.known.iter().flat_map(|it| strings(it.get("required")));
        let listed = of_names.known.iter().filter_map(|it| it.as_object()).flat_map(listed);
        let properties = properties.flat_map(|it| it.keys().map(String::as_str));
        let mut variant = None;
        for declared in properties.chain(required).chain(listed) {
            if declared == name {
                return Ok(None);
            }
            if fold::same(name, declared) {
                variant.get_or_insert(declared);
            }
        }
        let is_unresolved = schemas.unresolved || of_names.unresolved;
        Ok(variant.or(is_unresolved.then_some(other)))
    }

    /// Runs `look` with `name` appended to the place.
    fn within<T>(&mut self, name: &str, look: impl FnOnce(&mut Self) -> T) -> T {
        let before = self.place.len();
        self.place.push('/');
        self.place.push_str(&token(name));
        let found = look(self);
        self.place.truncate(before);
        found
    }

    /// The schemas, and the subschemas that they apply to the same value.
    fn of_value(&self, schemas: &Schemas<'s>) -> Result<Schemas<'s>, KeyConflict> {
        let mut all = Schemas { known: Vec::new(), ..*schemas };
        let mut open = schemas.known.clone();
        while let Some(schema) = open.pop() {
            if all.known.iter().any(|known| std::ptr::eq(*known, schema)) {
                continue;
            }
            if all.known.len() >= MAX_SUBSCHEMAS {
                return Err(KeyConflict::Uncompared(TOO_MANY_SUBSCHEMAS));
            }
            all.known.push(schema);
            open.extend(below(&[schema], &SAME_VALUE));
            if let Some(reference) = schema.get("$ref") {
                let resolved = self.resolved(reference);
                all.unresolved |= resolved.is_none();
                open.extend(resolved);
            }
            all.unresolved |= DYNAMIC_REFERENCES.iter().any(|it| schema.get(it).is_some());
        }
        Ok(all)
    }

    /// Target of a reference that is a JSON pointer; `None` for any other.
    fn resolved(&self, reference: &Value) -> Option<&'s Value> {
        let pointer = reference.as_str()?.strip_prefix('#')?;
        let pointer = percent_decode_str(pointer).decode_utf8().ok()?;
        self.root.pointer(&pointer).filter(|_| !self.has_resources)
    }
}

impl<'s> Schemas<'s> {
    /// Subschemas under the keywords, which apply to parts of the value.
    fn below(&self, keywords: &[&str]) -> Self {
        Self { known: below(&self.known, keywords), ..*self }
    }
}

fn is_container(value: &Value) -> bool {
    value.is_object() || value.is_array()
}

/// Subschemas under the keywords: a single subschema, or those in an array or an object.
fn below<'s>(schemas: &[&'s Value], keywords: &[&str]) -> Vec<&'s Value> {
    let mut found = Vec::new();
    for (schema, keyword) in
        schemas.iter().flat_map(|schema| keywords.iter().map(move |keyword| (schema, keyword)))
    {
        match (schema.get(keyword), *keyword) {
            (
                Some(Value::Object(named)),
                "dependentSchemas" | "dependencies" | "patternProperties",
            ) => {
                found.extend(named.values());
            }
            (Some(Value::Array(several)), _) => found.extend(several),
            (Some(one @ Value::Object(_)), _) => found.push(one),
            (Some(_) | None, _) => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEMA: &str = r##"{"type": "object", "$defs": {"node": {"properties": {
            "name": {}, "next": {"$ref": "#/$defs/node"}}}},
        "properties": {"path": {"type": "string"}, "URL": {}, "url": {}, "task": {},
            "env": {"type": "object", "additionalProperties": {"type": "string"}},
            "list": {"type": "array", "items": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}},
            "tree": {"allOf": [{"$ref": "#/$defs/node"}]},
            "map": {"additionalProperties": {"properties": {"key": {}}}}}}"##;

    fn variant(arguments: &str) -> Option<(String, String)> {
        let names = DeclaredNames::of(SCHEMA.as_bytes());
        let found = names.conflict(SCHEMA.as_bytes(), arguments.as_bytes())?;
        let KeyConflict::Variant(CaseVariant { place, declared }) = found else {
            panic!("{found:?}")
        };
        Some((place, declared))
    }

    fn conflict(schema: &str, arguments: &str) -> Option<KeyConflict> {
        DeclaredNames::of(schema.as_bytes()).conflict(schema.as_bytes(), arguments.as_bytes())
    }

    fn is_variant(schema: &str, arguments: &str) -> bool {
        matches!(conflict(schema, arguments), Some(KeyConflict::Variant(_)))
    }

    #[test]
    fn arguments_padded_beyond_the_step_limit_are_refused_if_a_variant_is_possible() {
        let schema = r#"{"properties":{"a":{"items":{}},"o":{"properties":{"cmd":{}}}}}"#;
        let padded = |element: &str, twin: &str| {
            let elements = vec![element; MAX_STEPS + 1].join(",");
            format!(r#"{{"a":[{elements}],"o":{{"{twin}":1}}}}"#)
        };
        assert!(is_variant(schema, &padded("0", "Cmd")));
        let refused = Some(KeyConflict::Uncompared(TOO_MANY_STEPS));
        assert_eq!(conflict(schema, &padded("[]", "Cmd")), refused);
        assert_eq!(conflict(schema, &padded("[]", "cmd")), None);
        assert!(TOO_MANY_STEPS.contains(&MAX_STEPS.to_string()));
        assert!(TOO_MANY_SUBSCHEMAS.contains(&MAX_SUBSCHEMAS.to_string()));

        let many = vec![r#"{"x":1}"#; MAX_SUBSCHEMAS].join(",");
        let schema = format!(r#"{{"anyOf":[{{"properties":{{"cmd":{{}}}}}},{many}]}}"#);
        let refused = Some(KeyConflict::Uncompared(TOO_MANY_SUBSCHEMAS));
        assert_eq!(conflict(&schema, r#"{"Cmd":1}"#), refused);
        assert_eq!(conflict(&schema, r#"{"cmd":1}"#), None);
    }

    #[test]
    fn arguments_that_some_parsers_cannot_read_are_refused_if_a_variant_is_possible() {
        let schema = r#"{"properties":{"o":{"properties":{"cmd":{}}}}}"#;
        let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
        for odd in ["1e999", r#""\ud800""#, &deep] {
            let arguments = |key: &str| format!(r#"{{"odd":{odd},"o":{{"{key}":1}}}}"#);
            let refused = Some(KeyConflict::Uncompared(UNREADABLE));
            assert_eq!(conflict(schema, &arguments("Cmd")), refused, "{odd}");
            assert_eq!(conflict(schema, &arguments("cmd")), None, "{odd}");
        }
    }

    #[test]
    fn variant_of_a_property_of_its_object_is_found_at_any_depth() {
        for (arguments, place, declared) in [
            (r#"{"Path":1}"#, "/Path", "path"),
            ("{\"\\u0050ath\":1}", "/Path", "path"),
            (r#"{"path":1,"PATH":2}"#, "/PATH", "path"),
            ("{\"ta\u{17f}\u{212a}\":1}", "/ta\u{17f}\u{212a}", "task"),
            (r#"{"Url":1}"#, "/Url", "URL"),
            (r#"{"list":[{"name":1},{"Name":2}]}"#, "/list/1/Name", "name"),
            (r#"{"tree":{"next":{"next":{"NAME":1}}}}"#, "/tree/next/next/NAME", "name"),
            (r#"{"map":{"any":{"Key":1}}}"#, "/map/any/Key", "key"),
        ] {
            let expected = Some((place.to_owned(), declared.to_owned()));
            assert_eq!(variant(arguments), expected, "{arguments}");
        }
    }

    #[test]
    fn declared_or_unrelated_key_is_not_a_variant() {
        for arguments in [
            r#"{"path":1,"URL":2,"url":3}"#,
            r#"{"env":{"PATH":"/bin","Name":"x","URL":""}}"#,
            r#"{"other":{"Path":1}}"#,
            r#"{"list":[{"name":"Path"},null,{"Path":1}]}"#,
            r#"{"map":{"Path":{"key":1}}}"#,
            "{}",
        ] {
            assert_eq!(variant(arguments), None, "{arguments}");
        }
        assert!(conflict("true", r#"{"Path":1}"#).is_none());
    }

    #[test]
    fn name_declared_in_another_object_is_a_variant() {
        let schema = r#"{"properties":{"path":{},"o":{"properties":{"Path":{}}}}}"#;
        assert!(is_variant(schema, r#"{"Path":1}"#));
        assert!(is_variant(schema, r#"{"o":{"path":1}}"#));
        assert!(!is_variant(schema, r#"{"path":1,"o":{"Path":1}}"#));
    }

    #[test]
    fn variant_behind_any_reference_is_found() {
        for schema in [
            r##"{"$defs":{"p":{"$anchor":"A",P}},"properties":{"o":{"$ref":"#A"}}}"##,
            r##"{"$defs":{"p":{"$dynamicAnchor":"D",P}},"properties":{"o":{"$dynamicRef":"#D"}}}"##,
            r##"{"$id":"http://x/r","$defs":{"p":{"$id":"http://x/p",P}},"properties":{"o":{"$ref":"http://x/p"}}}"##,
            r##"{"properties":{"o":{"$id":"http://x/o","$ref":"#/$defs/p","$defs":{"p":{P}}}},"$defs":{"p":{"x":1}}}"##,
            r##"{"$schema":"http://json-schema.org/draft-04/schema#","properties":{"o":{"id":"http://x/o","$ref":"#/d","d":{P}}},"d":{}}"##,
            r##"{"$defs":{"p q":{P}},"properties":{"o":{"$ref":"#/%24defs/p%20q"}}}"##,
            r##"{"$ref":"#A","$defs":{"r":{"$anchor":"A","properties":{"o":{P}}}}}"##,
            r#"{"properties":{"o":{"dependencies":{"z":{P},"y":["z"]}}}}"#,
            r#"{"properties":{"o":{"propertyNames":{"enum":["cmd","x"]}}}}"#,
            r##"{"$defs":{"n":{"const":"cmd"}},"properties":{"o":{"propertyNames":{"$ref":"#/$defs/n"}}}}"##,
            r#"{"properties":{"o":{"required":["cmd"]}}}"#,
        ] {
            let schema = schema.replace('P', r#""properties":{"cmd":{}}"#);
            assert!(is_variant(&schema, r#"{"o":{"Cmd":1}}"#), "{schema}");
            assert_eq!(
                conflict(&schema, r#"{"o":{"cmd":1,"other":{"Other":1}}}"#),
                None,
                "{schema}"
            );
        }
        // If the schema of a value is known, its keys are compared only with the names of that schema.
        let schema = r##"{"$defs":{"p":{"$anchor":"A","properties":{"cmd":{}}}},
            "properties":{"o":{"$ref":"#A"},"free":{"examples":[{"id":"x","$ref":"#A"}]}}}"##;
        assert_eq!(conflict(schema, r#"{"free":{"Cmd":1},"o":{"cmd":1}}"#), None);
        assert!(is_variant(schema, r#"{"o":{"deeper":[{"Cmd":1}]}}"#));
    }

    #[test]
    fn cyclic_references_terminate() {
        let schema = r##"{"$ref":"#","allOf":[{"$ref":"#"}],"properties":{"a":{"$ref":"#"}}}"##;
        let deep = format!("{}{{\"A\":1}}{}", "{\"a\":".repeat(100), "}".repeat(100));
        assert!(is_variant(schema, &deep));
    }
}
