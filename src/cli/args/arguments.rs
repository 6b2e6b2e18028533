//! A tool's arguments, from `--args` or from pairs `KEY=TEXT` and `KEY:=JSON`.

use serde_json::Value;
use serde_json::value::RawValue;
use std::io::Read;

/// Maximum size of arguments read from stdin or a file, in bytes.
const MAX_ARGUMENT_BYTES: u64 = 64 * 1024 * 1024;

/// A tool's arguments: a JSON object with its original bytes.
#[derive(Debug)]
pub(crate) struct Arguments(Box<RawValue>);

impl Arguments {
    /// Reads stdin for `-`, a file for `@FILE`; otherwise parses the text itself.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        match (text, text.strip_prefix('@')) {
            ("-", _) => from_reader("stdin", std::io::stdin().lock()),
            (_, Some(path)) => {
                let file = std::fs::File::open(path)
                    .map_err(|error| format!("cannot read --args @{path}: {error}"))?;
                from_reader(path, file)
            }
            (json, None) => Self::parse(json.to_owned()),
        }
    }

    /// Builds an object from pairs `KEY=TEXT` and `KEY:=JSON`, in this order. A text is converted to the type that
    /// the input schema has for its key.
    pub(crate) fn of_pairs(pairs: &[String], schema: &Value) -> Result<Self, String> {
        let mut members: Vec<(&str, String)> = Vec::with_capacity(pairs.len());
        for pair in pairs {
            let wrong = || format!("'{pair}' is neither KEY=TEXT nor KEY:=JSON");
            let (key, value) = pair.split_once('=').ok_or_else(wrong)?;
            let (key, value) = match key.strip_suffix(':') {
                Some(key) => {
                    let json = RawValue::from_string(value.to_owned());
                    (
                        key,
                        json.map_err(|error| {
                            format!("'{pair}' is not JSON: {error}; a text is written {key}=TEXT")
                        })?
                        .get()
                        .to_owned(),
                    )
                }
                None => {
                    (key, converted(value, schema.get("properties").and_then(|it| it.get(key))))
                }
            };
            if key.is_empty() {
                return Err(wrong());
            }
            if members.iter().any(|(earlier, _)| *earlier == key) {
                return Err(format!("'{key}' is given twice"));
            }
            members.push((key, value));
        }
        let members = members.iter();
        let members: Vec<_> =
            members.map(|(key, value)| format!("{}:{value}", Value::from(*key))).collect();
        Self::parse(format!("{{{}}}", members.join(",")))
    }

    fn parse(json: String) -> Result<Self, String> {
        let wrong = |why: &str| format!("--args is not a JSON object: {why}");
        let raw = RawValue::from_string(json).map_err(|error| wrong(&error.to_string()))?;
        match raw.get().trim_start().starts_with('{') {
            true => Ok(Self(raw)),
            false => Err(wrong("it must look like '{\"key\": \"value\"}'")),
        }
    }

    /// The original bytes.
    pub(crate) fn raw(&self) -> &RawValue {
        &self.0
    }
}

fn from_reader(name: &str, reader: impl Read) -> Result<Arguments, String> {
    let mut text = String::new();
    let read = reader.take(MAX_ARGUMENT_BYTES + 1).read_to_string(&mut text);
    match read.map_err(|error| format!("cannot read --args from {name}: {error}"))? as u64 {
        0..=MAX_ARGUMENT_BYTES => Arguments::parse(text),
        _ => Err(format!("--args from {name} is over {MAX_ARGUMENT_BYTES} bytes")),
    }
}

/// JSON of an argument given as text. The text is sent as it is if it is JSON of a type that the schema accepts, and as a
/// string otherwise, or if the schema accepts strings or does not state its types.
fn converted(text: &str, schema: Option<&Value>) -> String {
    let types = schema.and_then(accepted_types).unwrap_or_default();
    let is_accepted = |json: &&RawValue| {
        let names: &[&str] = match json.get().bytes().next() {
            Some(b'{') => &["object"],
            Some(b'[') => &["array"],
            Some(b't' | b'f') => &["boolean"],
            Some(b'n') => &["null"],
            Some(b'-' | b'0'..=b'9') => &["number", "integer"],
            _ => &[],
        };
        names.iter().any(|name| types.contains(name)) && !types.contains(&"string")
    };
    let json = serde_json::from_str::<&RawValue>(text).ok().filter(is_accepted);
    json.map_or_else(|| Value::from(text).to_string(), |json| json.get().to_owned())
}

/// Types that a schema accepts by `type`, or by those of its alternatives; `None` if it does not state them.
fn accepted_types(schema: &Value) -> Option<Vec<&str>> {
    match schema.get("type") {
        Some(Value::String(one)) => Some(vec![one]),
        Some(Value::Array(several)) => several.iter().map(Value::as_str).collect(),
        Some(_) => None,
        None => {
            let alternatives = schema.get("anyOf").or_else(|| schema.get("oneOf"))?;
            let types = alternatives.as_array()?.iter().map(accepted_types);
            Some(types.collect::<Option<Vec<_>>>()?.concat())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn arguments_keep_their_original_bytes() {
        let text = "{ \"n\": 1.10, \"big\": 123456789012345678901234567890 }";
        assert_eq!(Arguments::read(text).unwrap().raw().get(), text);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, text).unwrap();
        let typed = format!("@{}", file.path().display());
        assert_eq!(Arguments::read(&typed).unwrap().raw().get(), text);
    }

    #[test]
    fn fr_026_arguments_are_built_from_pairs() {
        let built = |pairs: &[&str]| {
            let pairs: Vec<_> = pairs.iter().map(|pair| (*pair).to_owned()).collect();
            Arguments::of_pairs(&pairs, &Value::Null)
                .map(|arguments| arguments.raw().get().to_owned())
        };
        assert_eq!(
            built(&["path=/tmp", "n:=1.10", "q=a=b \"c\"", "l:=[1, null]", "e="]).unwrap(),
            r#"{"path":"/tmp","n":1.10,"q":"a=b \"c\"","l":[1, null],"e":""}"#
        );
        for bad in
            [&["path"][..], &["=x"], &[":=1"], &["n:=x"], &["n:=1,\"m\":2"], &["a=1", "a:=2"]]
        {
            assert!(built(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn fr_005_arguments_must_be_an_object() {
        for bad in ["[1]", "1", "\"{}\"", "null", "{", "{} {}", "", "@/nonexistent/file"] {
            assert!(Arguments::read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn text_is_converted_to_the_types_of_the_schema() {
        let optional = json!({"anyOf": [{"type": "integer"}, {"type": "null"}]});
        for (schema, text, sent) in [
            (json!({"type": "number"}), "2", "2"),
            (json!({"type": "number"}), " -1.10e3 ", "-1.10e3"),
            (json!({"type": "integer"}), "123456789012345678901", "123456789012345678901"),
            (json!({"type": "boolean"}), "true", "true"),
            (json!({"type": "array"}), "[1, \"a\"]", "[1, \"a\"]"),
            (json!({"type": "object"}), "{\"a\": 1.0}", "{\"a\": 1.0}"),
            (json!({"type": ["integer", "null"]}), "null", "null"),
            (optional.clone(), "7", "7"),
            (optional, "null", "null"),
            // Text of another type stays a string, which the proxy refuses or coerces.
            (json!({"type": "number"}), "two", "\"two\""),
            (json!({"type": "number"}), "true", "\"true\""),
            (json!({"type": "number"}), "1 2", "\"1 2\""),
            (json!({"type": "number"}), "", "\"\""),
            (json!({"type": "boolean"}), "1", "\"1\""),
            (json!({"type": "object"}), "{", "\"{\""),
            // Strings are accepted.
            (json!({"type": "string"}), "2", "\"2\""),
            (json!({"type": ["string", "number"]}), "2", "\"2\""),
            (json!({"oneOf": [{"type": "number"}, {"type": "string"}]}), "2", "\"2\""),
            // The types are not known.
            (json!({}), "2", "\"2\""),
            (json!(true), "2", "\"2\""),
            (json!({"type": 1}), "2", "\"2\""),
            (json!({"$ref": "#/$defs/n"}), "2", "\"2\""),
            (json!({"anyOf": [{"type": "number"}, {"$ref": "#/$defs/s"}]}), "2", "\"2\""),
        ] {
            assert_eq!(converted(text, Some(&schema)), sent, "{schema} {text}");
        }
        let schema = json!({"properties": {"a": {"type": "number"}}});
        let pairs = ["a=2", "b=3", "c:=4"].map(str::to_owned);
        let arguments = Arguments::of_pairs(&pairs, &schema).unwrap();
        assert_eq!(arguments.raw().get(), r#"{"a":2,"b":"3","c":4}"#);
    }
}
