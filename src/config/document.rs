//! The text of a config file as one JSON object.
//!
//! Owns strictness: exactly one object, no key twice anywhere, since of two server blocks under one
//! name either could be the one that was meant. Knows no key's meaning but that of `mcpServers`,
//! for its message.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::ConfigError;

/// Reads `text`; a blank one is an empty object.
///
/// # Errors
/// The first problem, with line and column.
pub(super) fn parse(text: &str) -> Result<Map<String, Value>, ConfigError> {
    // Some editors put a byte order mark there.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.trim().is_empty() {
        return Ok(Map::new());
    }
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let read = Node { path: "" }.deserialize(&mut deserializer);
    let read = read.and_then(|value| deserializer.end().map(|()| value));
    match read {
        Ok(Value::Object(root)) => Ok(root),
        Ok(_) => Err(ConfigError::Unreadable(
            "the config must be a JSON object at line 1 column 1".into(),
        )),
        Err(error) => {
            let line = text.lines().nth(error.line().saturating_sub(1)).unwrap_or_default();
            let comment = line.trim_start().starts_with("//") || line.contains("/*");
            let hint = if comment { " (comments are not JSON)" } else { "" };
            Err(ConfigError::Unreadable(format!("{error}{hint}")))
        }
    }
}

/// One value and where it stands.
struct Node<'p> {
    path: &'p str,
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut elements = Vec::new();
        while let Some(element) = seq.next_element_seed(Node { path: self.path })? {
            elements.push(element);
        }
        Ok(Value::Array(elements))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut members = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let path =
                if self.path.is_empty() { key.clone() } else { format!("{}.{key}", self.path) };
            if members.contains_key(&key) {
                return Err(A::Error::custom(match self.path {
                    "mcpServers" => format!("mcpServers: duplicate server name '{key}'"),
                    _ => format!("duplicate key '{path}'"),
                }));
            }
            let value = map.next_value_seed(Node { path: &path })?;
            members.insert(key, value);
        }
        Ok(Value::Object(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_named_with_line_and_column() {
        for (text, parts) in [
            ("{\n  \"listen\": x\n}", vec!["line 2 column 13"]),
            ("{\n  // here\n  \"a\": 1}", vec!["line 2 column 3", "comments are not JSON"]),
            ("{\"a\": 1,}", vec!["trailing comma at line 1 column 9"]),
            ("{\"a\": 1} {}", vec!["trailing characters at line 1 column 10"]),
            ("{\"a\": {\"b\": 1,\n\"b\": 2}}", vec!["duplicate key 'a.b' at line 2 column"]),
            (
                "{\"mcpServers\": {\"s\": {},\n\"\\u0073\": {}}}",
                vec!["mcpServers: duplicate server name 's' at line 2"],
            ),
            ("[]", vec!["must be a JSON object"]),
            ("{\"a\"", vec!["line 1 column 4"]),
        ] {
            let error = parse(text).unwrap_err().to_string();
            for part in parts {
                assert!(error.contains(part), "{text}: {error}");
            }
        }
    }

    #[test]
    fn a_blank_file_is_an_empty_config() {
        for text in ["", " \n", "\u{feff}", "{}", "\u{feff}{}"] {
            assert_eq!(parse(text), Ok(Map::new()), "{text:?}");
        }
    }

    #[test]
    fn values_are_read_as_they_are() {
        let text = r#"{"a":[1,-1,1.5,true,null,"s",{"b":{}}]}"#;
        assert_eq!(Value::Object(parse(text).unwrap()).to_string(), text);
    }
}
