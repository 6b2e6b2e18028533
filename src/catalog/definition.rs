//! What a server says of one tool, read for comparing it with what it said before. Pure.
//!
//! Its name is not part of it: definitions of one tool are compared. What is too large to be compared, or can be read
//! in two ways (a key that stands twice), is told apart from what is absent, so that it never counts as unchanged.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Largest definition that is compared by its meaning, in bytes; a larger one is only ever another.
pub const MAX_COMPARED_BYTES: usize = 1024 * 1024;

/// Bytes of a digest.
const DIGEST_BYTES: usize = 16;

/// The identity of a definition as it is listed: what an operator has seen, and approves.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DefinitionDigest([u8; DIGEST_BYTES]);

impl DefinitionDigest {
    /// The digest of a definition's JSON.
    #[must_use]
    pub fn of(json: &[u8]) -> Self {
        Self::first(&blake3::hash(json))
    }

    /// The digest of several, each under its name.
    pub fn of_all<'a>(named: impl Iterator<Item = (&'a str, Self)>) -> Self {
        let mut hasher = blake3::Hasher::new();
        for (name, digest) in named {
            // The length keeps the names apart.
            hasher.update(&(name.len() as u64).to_le_bytes());
            hasher.update(name.as_bytes()).update(&digest.0);
        }
        Self::first(&hasher.finalize())
    }

    fn first(hash: &blake3::Hash) -> Self {
        let mut bytes = [0; DIGEST_BYTES];
        bytes.iter_mut().zip(hash.as_bytes()).for_each(|(ours, theirs)| *ours = *theirs);
        Self(bytes)
    }

    /// Reads what [`fmt::Display`] has written.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let value = u128::from_str_radix(text, 16).ok()?;
        let plain = text.len() == 2 * DIGEST_BYTES && !text.starts_with('+');
        plain.then(|| Self(value.to_be_bytes()))
    }
}

impl fmt::Display for DefinitionDigest {
    /// 32 hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for DefinitionDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The parts of a definition.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolDefinition {
    /// `title`
    pub title: Option<Value>,
    /// `description`
    pub description: Option<Value>,
    /// `inputSchema`
    pub input: Value,
    /// `outputSchema`, if it is declared.
    pub output: Option<Value>,
    /// `annotations`
    pub annotations: Map<String, Value>,
    /// All other members but the name.
    pub others: BTreeMap<String, Value>,
}

impl ToolDefinition {
    /// Reads the JSON of a definition; `None` for one that is too large, or that is no object whose keys stand once: it
    /// cannot be compared.
    #[must_use]
    pub fn parse(json: &str) -> Option<Self> {
        if json.len() > MAX_COMPARED_BYTES {
            return None;
        }
        let SingleKeyed(Value::Object(mut members)) = serde_json::from_str(json).ok()? else {
            return None;
        };
        // Null is absent, as at discovery.
        let mut take = |name: &str| members.remove(name).filter(|value| !value.is_null());
        take("name");
        let (title, description) = (take("title"), take("description"));
        let (input, output) = (take("inputSchema"), take("outputSchema"));
        let annotations = match take("annotations") {
            Some(Value::Object(annotations)) => annotations,
            Some(_) | None => Map::new(),
        };
        let others = members.into_iter().collect();
        Some(Self { title, description, input: input?, output, annotations, others })
    }
}

/// A value in which no object has a key twice.
struct SingleKeyed(Value);

impl<'de> Deserialize<'de> for SingleKeyed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Single)
    }
}

struct Single;

impl<'de> Visitor<'de> for Single {
    type Value = SingleKeyed;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<SingleKeyed, E> {
        Ok(SingleKeyed(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<SingleKeyed, E> {
        Ok(SingleKeyed(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<SingleKeyed, E> {
        Ok(SingleKeyed(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<SingleKeyed, E> {
        Ok(SingleKeyed(value.into()))
    }

    fn visit_str<E>(self, value: &str) -> Result<SingleKeyed, E> {
        Ok(SingleKeyed(value.into()))
    }

    fn visit_unit<E>(self) -> Result<SingleKeyed, E> {
        Ok(SingleKeyed(Value::Null))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<SingleKeyed, A::Error> {
        let mut list = Vec::new();
        while let Some(SingleKeyed(element)) = elements.next_element()? {
            list.push(element);
        }
        Ok(SingleKeyed(Value::Array(list)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<SingleKeyed, A::Error> {
        let mut members = Map::new();
        while let Some((key, SingleKeyed(value))) = entries.next_entry::<String, _>()? {
            if members.insert(key, value).is_some() {
                return Err(A::Error::custom("a key stands twice"));
            }
        }
        Ok(SingleKeyed(Value::Object(members)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_comes_back_as_it_was_and_nothing_else_is_one() {
        let digest = DefinitionDigest::of(b"{}");
        assert_eq!(DefinitionDigest::parse(&digest.to_string()), Some(digest));
        assert_ne!(digest, DefinitionDigest::of(b"{} "));
        let long = "0".repeat(33);
        for bad in ["", "0", &long, "+0000000000000000000000000000000", "g"] {
            assert_eq!(DefinitionDigest::parse(bad), None, "{bad}");
        }
        let other = DefinitionDigest::of(b"x");
        let all =
            |named: &[(&str, DefinitionDigest)]| DefinitionDigest::of_all(named.iter().copied());
        assert_ne!(all(&[("a", digest)]), all(&[("a", other)]));
        assert_ne!(all(&[("a", digest), ("b", other)]), all(&[("ab", digest)]));
    }

    #[test]
    fn what_cannot_be_compared_is_not_taken_for_what_is_absent() {
        let huge = format!(r#"{{"inputSchema":{{}},"x":"{}"}}"#, "y".repeat(MAX_COMPARED_BYTES));
        for odd in [
            huge.as_str(),
            "[]",
            "{",
            r#"{"inputSchema":{"a":1,"\u0061":1}}"#,
            r#"{"inputSchema":{},"a":1e999}"#,
            "{}",
        ] {
            assert_eq!(ToolDefinition::parse(odd), None);
        }
        let read = r#"{"name":"x","inputSchema":{},"outputSchema":null,"_meta":1}"#;
        let read = ToolDefinition::parse(read).unwrap();
        assert_eq!(read.output, None);
        assert_eq!(read.others.len(), 1);
    }
}
