//! The parameters of a tool that HTTP headers repeat (MCP 2026-07-28 §Custom Headers from Tool
//! Parameters): which they are, and what a call says in them.
//!
//! Owns the rules for the annotation `x-mcp-header` of an input schema, read once when a tool is
//! discovered. [`crate::mcp::headers`] encodes and compares the values; sending and checking the
//! headers is left to the callers.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::value::RawValue;
use serde_json::{Map, Value};
use thiserror::Error;

use crate::json::members::{members, string};
use crate::mcp::headers::{Form, PARAM_PREFIX, decimal};
use crate::schema::SUBSCHEMA_KEYWORDS;

const ANNOTATION: &str = "x-mcp-header";

/// Keywords whose value is an object of schemas; `properties` is another matter.
const MAPS: [&str; 5] =
    ["$defs", "definitions", "patternProperties", "dependentSchemas", "dependencies"];

/// Which headers repeat which parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterHeaders {
    /// The headers' whole names, in lower case.
    headers: Box<[Box<str>]>,
    root: Place,
}

/// A place in the arguments, and what of it is repeated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Place {
    header: Option<usize>,
    inside: BTreeMap<Box<str>, Place>,
}

/// The value of a parameter, in the form in which a header repeats it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said<'a> {
    /// How a header's value is compared with it.
    pub form: Form,
    /// The text that the header must stand for.
    pub text: Cow<'a, str>,
}

/// Why the annotations of a schema are invalid, and with them the tool.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[expect(missing_docs, reason = "each case is its text")]
pub enum InvalidHeaderAnnotation {
    #[error("{ANNOTATION} cannot be looked for: {0}")]
    Unreadable(String),
    #[error(
        "{ANNOTATION} stands where only a property reached through properties alone may have it"
    )]
    Elsewhere,
    #[error("{ANNOTATION} must be a string that can be in a header's name")]
    NoToken,
    #[error("{ANNOTATION} {0} is on a parameter that is no integer, string or boolean")]
    Type(Box<str>),
    #[error("{ANNOTATION} {0} is there more than once")]
    Duplicate(Box<str>),
}

impl ParameterHeaders {
    /// Reads the annotations of an input schema; `None` if there are none.
    ///
    /// # Errors
    /// The first rule that one of them breaks.
    pub fn read(input_schema: &RawValue) -> Result<Option<Self>, InvalidHeaderAnnotation> {
        let text = input_schema.get();
        // A key may be spelt with escapes.
        if !text.contains(ANNOTATION) && !text.contains(r"\u") {
            return Ok(None);
        }
        let schema: Value = serde_json::from_str(text)
            .map_err(|error| InvalidHeaderAnnotation::Unreadable(error.to_string()))?;
        let mut headers = Vec::new();
        let root = place(&schema, At::Root, &mut headers)?;
        let found = Self { headers: headers.into(), root };
        Ok((!found.headers.is_empty()).then_some(found))
    }

    /// Each header and what it must repeat of the arguments of a call, raw JSON without a duplicate
    /// key; `None` where it must not be sent.
    pub fn of<'a>(
        &'a self,
        arguments: &'a str,
    ) -> impl Iterator<Item = (&'a str, Option<Said<'a>>)> {
        let mut said = vec![None; self.headers.len()];
        self.root.find(arguments, &mut said);
        self.headers.iter().map(|header| &**header).zip(said)
    }
}

impl Place {
    fn find<'a>(&self, object: &'a str, said: &mut [Option<Said<'a>>]) {
        let Ok(members) = members(object) else { return };
        for (key, value) in members.map_while(Result::ok) {
            let Some(place) = self.inside.get(&*key) else { continue };
            if let Some(slot) = place.header.and_then(|at| said.get_mut(at)) {
                *slot = Said::read(value);
            }
            if !place.inside.is_empty() && value.starts_with('{') {
                place.find(value, said);
            }
        }
    }
}

impl<'a> Said<'a> {
    /// Reads a raw value; `None` for `null`, and for values that no header can repeat.
    fn read(value: &'a str) -> Option<Self> {
        match value.as_bytes().first()? {
            b'"' => Some(Self { form: Form::Encodable, text: string(value)? }),
            b't' | b'f' => Some(Self { form: Form::Encodable, text: value.into() }),
            b'-' | b'0'..=b'9' => Some(Self { form: Form::Number, text: decimal(value) }),
            _ => None,
        }
    }
}

/// Where a schema stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Root,
    /// Reached from the root through `properties` alone.
    Property,
    Elsewhere,
}

/// Reads a schema, whose depth serde_json has bounded.
fn place(
    schema: &Value,
    at: At,
    headers: &mut Vec<Box<str>>,
) -> Result<Place, InvalidHeaderAnnotation> {
    let mut place = Place::default();
    let Value::Object(schema) = schema else { return Ok(place) };
    if let Some(name) = schema.get(ANNOTATION) {
        if at != At::Property {
            return Err(InvalidHeaderAnnotation::Elsewhere);
        }
        let header = header(name, schema, headers)?;
        place.header = Some(headers.len());
        headers.push(header);
    }
    let inside = if at == At::Elsewhere { At::Elsewhere } else { At::Property };
    for (keyword, value) in schema {
        match (keyword.as_str(), value) {
            ("properties", Value::Object(properties)) => {
                for (name, property) in properties {
                    let found = self::place(property, inside, headers)?;
                    if found != Place::default() {
                        place.inside.insert(name.as_str().into(), found);
                    }
                }
            }
            (map, Value::Object(schemas)) if MAPS.contains(&map) => {
                elsewhere(schemas.values(), headers)?;
            }
            (keyword, Value::Array(schemas)) if SUBSCHEMA_KEYWORDS.contains(&keyword) => {
                elsewhere(schemas.iter(), headers)?;
            }
            (keyword, schema) if SUBSCHEMA_KEYWORDS.contains(&keyword) => {
                elsewhere(std::iter::once(schema), headers)?;
            }
            // What else is there is no schema, a `$ref` is not followed.
            _ => {}
        }
    }
    Ok(place)
}

fn elsewhere<'a>(
    mut schemas: impl Iterator<Item = &'a Value>,
    headers: &mut Vec<Box<str>>,
) -> Result<(), InvalidHeaderAnnotation> {
    schemas.try_for_each(|schema| place(schema, At::Elsewhere, headers).map(|_| ()))
}

/// The header that a property's annotation names.
fn header(
    name: &Value,
    property: &Map<String, Value>,
    taken: &[Box<str>],
) -> Result<Box<str>, InvalidHeaderAnnotation> {
    let name = name.as_str().ok_or(InvalidHeaderAnnotation::NoToken)?;
    let in_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || !name.bytes().all(in_token) {
        return Err(InvalidHeaderAnnotation::NoToken);
    }
    let kind = property.get("type").and_then(Value::as_str);
    if !matches!(kind, Some("integer" | "string" | "boolean")) {
        return Err(InvalidHeaderAnnotation::Type(name.into()));
    }
    let header = format!("{PARAM_PREFIX}{}", name.to_ascii_lowercase()).into_boxed_str();
    if taken.contains(&header) {
        return Err(InvalidHeaderAnnotation::Duplicate(name.into()));
    }
    Ok(header)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(schema: Value) -> Result<Option<ParameterHeaders>, InvalidHeaderAnnotation> {
        ParameterHeaders::read(&serde_json::value::to_raw_value(&schema).unwrap())
    }

    fn with(property: Value) -> Value {
        json!({"type": "object", "properties": {"p": property}})
    }

    fn said(
        parameter_headers: &ParameterHeaders,
        arguments: &str,
    ) -> Vec<(String, Option<(Form, String)>)> {
        let owned = |said: Said<'_>| (said.form, said.text.into_owned());
        parameter_headers
            .of(arguments)
            .map(|(header, it)| (header.to_owned(), it.map(owned)))
            .collect()
    }

    #[test]
    fn a_schema_without_annotations_repeats_nothing() {
        for schema in [
            json!({}),
            json!({"description": "x-mcp-header"}),
            with(json!({"type": "string", "description": "\u{1}"})),
            // Names and data, no annotations.
            with(json!({"properties": {"x-mcp-header": {"type": "string"}}})),
            with(json!({"default": {"x-mcp-header": "A"}, "enum": [{"x-mcp-header": "A"}]})),
        ] {
            assert_eq!(read(schema.clone()), Ok(None), "{schema}");
        }
    }

    #[test]
    fn mcp_2026_invalid_annotations_say_why() {
        let note = json!({"type": "string", "x-mcp-header": "A"});
        for (schema, why) in [
            (with(json!({"type": "string", "x-mcp-header": ""})), "must be a string"),
            (with(json!({"type": "string", "x-mcp-header": 7})), "must be a string"),
            (with(json!({"type": "string", "x-mcp-header": "My Region"})), "must be a string"),
            (with(json!({"type": "string", "x-mcp-header": "a:b"})), "must be a string"),
            (with(json!({"type": "string", "x-mcp-header": "R\u{e9}gion"})), "must be a string"),
            (with(json!({"type": "string", "x-mcp-header": "a\r\nb"})), "must be a string"),
            (with(json!({"type": "number", "x-mcp-header": "A"})), "A is on a parameter"),
            (with(json!({"type": "object", "x-mcp-header": "A"})), "A is on a parameter"),
            (with(json!({"type": ["string", "null"], "x-mcp-header": "A"})), "A is on a parameter"),
            (with(json!({"x-mcp-header": "A"})), "A is on a parameter"),
            (json!({"x-mcp-header": "A", "type": "string"}), "stands where"),
            (with(json!({"items": note})), "stands where"),
            (with(json!({"anyOf": [{}, note]})), "stands where"),
            (json!({"if": {"properties": {"p": note}}}), "stands where"),
            (json!({"$defs": {"d": note}}), "stands where"),
            (json!({"patternProperties": {"^p": note}}), "stands where"),
            (
                json!({"properties": {"p": note, "q": {"properties": {"r":
                    {"type": "integer", "x-mcp-header": "a"}}}}}),
                "a is there more than once",
            ),
        ] {
            let error = read(schema.clone()).expect_err(&schema.to_string()).to_string();
            assert!(error.contains(why), "{schema}: {error}");
        }
        let deep = format!("{}1{}", "{\"x-mcp-header\":".repeat(200), "}".repeat(200));
        let error = ParameterHeaders::read(&RawValue::from_string(deep).unwrap()).unwrap_err();
        assert!(error.to_string().contains("cannot be looked for"), "{error}");
    }

    #[test]
    fn mcp_2026_each_header_says_what_its_parameter_says() {
        let schema = r#"{"properties":{
            "region":{"type":"string","x-mcp\u002dheader":"Region"},
            "n":{"type":"integer","x-mcp-header":"N"},
            "in":{"properties":{"flag":{"type":"boolean","x-mcp-header":"In.Flag"}}},
            "free":{"type":"string"}}}"#;
        let parameter_headers =
            ParameterHeaders::read(&RawValue::from_string(schema.into()).unwrap());
        let parameter_headers = parameter_headers.unwrap().unwrap();
        let (name, number) = (Form::Encodable, Form::Number);
        for (arguments, region, n, flag) in [
            ("{}", None, None, None),
            (
                r#"{"region":"a","n":7,"in":{"flag":true},"free":"b"}"#,
                Some((name, "a")),
                Some((number, "7")),
                Some((name, "true")),
            ),
            (
                r#"{"r\u0065gion" : "\u00e9\n" , "n" : 42.0 , "in" : { "x" : [] , "flag" : false } }"#,
                Some((name, "é\n")),
                Some((number, "42")),
                Some((name, "false")),
            ),
            (r#"{"region":null,"n":null,"in":null}"#, None, None, None),
            (r#"{"region":{"a":1},"n":[7],"in":"flag"}"#, None, None, None),
            (r#"{"flag":true,"in":[{"flag":true}]}"#, None, None, None),
            (r#"{"region":"","n":-1e2}"#, Some((name, "")), Some((number, "-100")), None),
        ] {
            let found: BTreeMap<_, _> = said(&parameter_headers, arguments).into_iter().collect();
            let expected = [("region", region), ("n", n), ("in.flag", flag)];
            let expected: BTreeMap<_, _> = expected
                .map(|(header, it)| {
                    (format!("mcp-param-{header}"), it.map(|(form, text)| (form, text.to_owned())))
                })
                .into();
            assert_eq!(found, expected, "{arguments}");
        }
    }
}
