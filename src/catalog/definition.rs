//! Tool definitions: reading one element of `tools/list`, its digest, and its parts for comparison. Pure.
//!
//! The name is not compared. A definition that is too large or ambiguous (duplicate keys) is distinguished from an
//! absent one, so that it never counts as unchanged.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::exposed;
use super::listing::{Listed, ToolListings, with_string};
use mcpproxy_json::members::{elements, members, string};
use mcpproxy_json::span::Span;
use mcpproxy_policy::tool::{Annotations, InvalidHeaderAnnotation, ParameterHeaders};

/// Maximum size of a definition that is compared semantically, in bytes; a larger definition always counts as different.
pub(crate) const MAX_COMPARED_BYTES: usize = 1024 * 1024;

const DIGEST_BYTES: usize = 16;

/// Digest of a listed definition. It identifies the definition that an operator reviewed and approves.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DefinitionDigest([u8; DIGEST_BYTES]);

impl DefinitionDigest {
    pub fn of(json: &[u8]) -> Self {
        Self::first(&blake3::hash(json))
    }

    /// Digest of several named definitions.
    pub(crate) fn of_all<'a>(named: impl Iterator<Item = (&'a str, Self)>) -> Self {
        let mut hasher = blake3::Hasher::new();
        for (name, digest) in named {
            // The length separates each name from the next one.
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

    /// Parses the output of [`fmt::Display`].
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

/// Parts of a definition.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ToolDefinition {
    /// Member `title`.
    pub title: Option<Value>,
    /// Member `description`.
    pub description: Option<Value>,
    /// Member `inputSchema`.
    pub input: Value,
    /// Member `outputSchema`, if it is declared.
    pub output: Option<Value>,
    /// Member `annotations`.
    pub annotations: Map<String, Value>,
    /// Other members, except the name.
    pub others: BTreeMap<String, Value>,
}

impl ToolDefinition {
    /// Parses a definition; `None` if it is too large, is not an object, or has duplicate keys, and therefore cannot be
    /// compared.
    pub(crate) fn parse(json: &str) -> Option<Self> {
        if json.len() > MAX_COMPARED_BYTES {
            return None;
        }
        let SingleKeyed(Value::Object(mut members)) = serde_json::from_str(json).ok()? else {
            return None;
        };
        // Null counts as absent, as at discovery.
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

/// JSON value without duplicate keys.
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
                return Err(A::Error::custom("duplicate key"));
            }
        }
        Ok(SingleKeyed(Value::Object(members)))
    }
}

/// Maximum length of a tool's name, in bytes.
pub(crate) const MAX_NAME_BYTES: usize = 256;
/// Maximum stored length of a title in bytes, for search and agents. Lists under exposed names keep the server's text.
pub(crate) const MAX_TITLE_BYTES: usize = 1024;
/// Maximum stored length of a description, in bytes.
pub(crate) const MAX_DESCRIPTION_BYTES: usize = 16 * 1024;
/// Maximum size of annotations, in bytes.
pub(crate) const MAX_ANNOTATIONS_BYTES: usize = 16 * 1024;
/// Maximum size of an element, in bytes: twice the size of the largest schema that is compiled.
pub(crate) const MAX_ELEMENT_BYTES: usize = 20 * 1024 * 1024;

/// One well-formed element of a `tools/list` result, with the server's own bytes.
#[derive(Clone, Debug)]
pub struct DiscoveredTool {
    pub name: Box<str>,
    pub(super) title: Option<Box<str>>,
    pub(super) description: Box<str>,
    pub(super) input_schema: Box<RawValue>,
    pub(super) output_schema: Option<Box<RawValue>>,
    pub(super) annotations_raw: Option<Box<RawValue>>,
    pub(super) annotations: Annotations,
    /// Parameter headers of the tool. Whether invalid headers matter depends on the transport.
    pub parameter_headers: Result<Option<Arc<ParameterHeaders>>, InvalidHeaderAnnotation>,
    /// Whether the tool's `visibility` excludes models.
    pub(super) is_app_only: bool,
    pub(super) raw: Box<RawValue>,
    /// Span of the value of `name`.
    name_at: Span,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Fields<'a> {
    #[serde(borrow)]
    name: &'a RawValue,
    #[serde(borrow)]
    title: Option<&'a RawValue>,
    #[serde(borrow)]
    description: Option<&'a RawValue>,
    input_schema: Option<Box<RawValue>>,
    output_schema: Option<Box<RawValue>>,
    annotations: Option<Box<RawValue>>,
}

impl DiscoveredTool {
    /// Parses one element of `tools`. Optional members of a wrong type count as absent, but an unreadable hint gets its
    /// most cautious value ([`cautious_annotations`]). A missing input schema admits any arguments. The error is one
    /// line.
    pub fn parse(raw: &RawValue) -> Result<Self, String> {
        if raw.get().len() > MAX_ELEMENT_BYTES {
            return Err(format!("it is larger than {MAX_ELEMENT_BYTES} bytes"));
        }
        let fields: Fields<'_> =
            serde_json::from_str(raw.get()).map_err(|error| error.to_string())?;
        let name: Box<str> =
            serde_json::from_str(fields.name.get()).map_err(|error| format!("name: {error}"))?;
        if name.is_empty() {
            return Err("name is empty".into());
        }
        if name.len() > MAX_NAME_BYTES {
            return Err(format!("name is longer than {MAX_NAME_BYTES} bytes"));
        }
        if name.chars().any(char::is_control) {
            return Err("name holds control characters".into());
        }
        let input_schema = match fields.input_schema {
            Some(schema) => schema,
            None => serde_json::from_str("{}").map_err(|error| error.to_string())?,
        };
        let annotations = match &fields.annotations {
            None => Annotations::default(),
            Some(raw) if raw.get().len() > MAX_ANNOTATIONS_BYTES => {
                return Err(format!(
                    "{name}: annotations: they are longer than {MAX_ANNOTATIONS_BYTES} bytes"
                ));
            }
            Some(raw) => serde_json::from_str(raw.get())
                .or_else(|_| cautious_annotations(raw.get()))
                .map_err(|reason| format!("{name}: annotations: {reason}"))?,
        };
        let parameter_headers =
            ParameterHeaders::read(&input_schema).map(|found| found.map(Arc::new));
        let text = |value: Option<&RawValue>| {
            let text = value.and_then(|value| string(value.get()));
            text.map(|text| Box::<str>::from(&*text))
        };
        Ok(Self {
            name,
            parameter_headers,
            title: text(fields.title).map(|title| cut_text(title, MAX_TITLE_BYTES)),
            description: cut_text(
                text(fields.description).unwrap_or_default(),
                MAX_DESCRIPTION_BYTES,
            ),
            input_schema,
            output_schema: fields.output_schema,
            annotations_raw: fields.annotations,
            annotations,
            is_app_only: is_app_only(raw.get()),
            raw: raw.to_owned(),
            name_at: Span::of(raw.get().as_bytes(), fields.name.get().as_bytes()),
        })
    }

    /// Returns the definition under the exposed name, otherwise verbatim. Its JSON keeps the former spelling of the
    /// name, because stored pins and reviews contain it.
    pub(crate) fn listed(&self, server: &str) -> Listed {
        let (key, former) =
            (exposed::name(server, &self.name), exposed::former_name(server, &self.name));
        Listed::spelled(self.raw.get(), self.name_at, &self.name, key, &former)
    }

    /// Returns the listings of the definition `listed`, for `/mcp/all` and under the tool's own name.
    pub(crate) fn listings(&self, listed: &Listed) -> ToolListings {
        let json = with_string(self.raw.get().as_bytes(), self.name_at, &listed.key);
        let token = self.name_at.start as usize..self.name_at.end as usize;
        ToolListings::of(listed, json, self.raw.get().get(token).unwrap_or_default())
    }
}

/// Whether `_meta.ui.visibility` (SEP-1865) is a list without `model`. Any other value counts as the default, which
/// includes `model`.
fn is_app_only(definition: &str) -> bool {
    // If a member occurs several times, the last one counts, as in most parsers.
    let last = |object: &'_ str, name: &str| {
        let all = members(object).ok().into_iter().flatten().map_while(Result::ok);
        all.filter(|(key, _)| key == name).last().map(|(_, value)| value.to_owned())
    };
    let meta = last(definition, "_meta");
    let ui = meta.and_then(|meta| last(&meta, "ui"));
    let Some(visibility) = ui.and_then(|ui| last(&ui, "visibility")) else { return false };
    let Ok(users) = elements(&visibility) else { return false };
    !users.map_while(Result::ok).any(|user| string(user).is_some_and(|user| user == "model"))
}

/// Parses annotations with hints that are not booleans. These hints get their most cautious value, because they must not
/// count as absent (FR-020). Fails on a duplicate hint.
fn cautious_annotations(json: &str) -> Result<Annotations, String> {
    let mut annotations = Annotations::default();
    let Ok(found) = members(json) else {
        annotations.read_only_hint = Some(false);
        annotations.destructive_hint = Some(true);
        annotations.idempotent_hint = Some(false);
        annotations.open_world_hint = Some(true);
        return Ok(annotations);
    };
    let mut seen = BTreeSet::new();
    let mut others = Map::new();
    for (name, value) in found.map_while(Result::ok) {
        let (hint, cautious) = match &*name {
            "readOnlyHint" => (&mut annotations.read_only_hint, false),
            "destructiveHint" => (&mut annotations.destructive_hint, true),
            "idempotentHint" => (&mut annotations.idempotent_hint, false),
            "openWorldHint" => (&mut annotations.open_world_hint, true),
            "privateHint" | "sensitiveHint" => {
                let value = serde_json::from_str(value).map_err(|error| error.to_string())?;
                others.insert(name.into_owned(), value);
                continue;
            }
            _ => continue,
        };
        *hint = match value {
            "true" => Some(true),
            "false" => Some(false),
            "null" => None,
            _ => Some(cautious),
        };
        if !seen.insert(name.clone()) {
            return Err(format!("duplicate field `{name}`"));
        }
    }
    let others: Annotations =
        serde_json::from_value(Value::Object(others)).map_err(|error| error.to_string())?;
    let Annotations { private_hint, sensitive_hint, .. } = others;
    Ok(Annotations { private_hint, sensitive_hint, ..annotations })
}

/// Truncates a text with an ellipsis.
fn cut_text(text: Box<str>, limit: usize) -> Box<str> {
    if text.len() <= limit {
        return text;
    }
    let start = text.get(..text.floor_char_boundary(limit)).unwrap_or_default();
    format!("{start}…").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_round_trips_and_malformed_text_is_rejected() {
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
    fn incomparable_definition_differs_from_absent() {
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

#[cfg(test)]
mod discovered_tests {
    use super::*;

    fn parse(json: &str) -> Result<DiscoveredTool, String> {
        DiscoveredTool::parse(serde_json::from_str(json).unwrap())
    }

    #[test]
    fn fr_a1_the_servers_own_bytes_are_kept() {
        let json = r#"{"name":"t","x":1,"inputSchema": {"b" :1,"a":2},"outputSchema":{"type" : "object"},"annotations":{"readOnlyHint": true,"own":1.0}}"#;
        let tool = parse(json).unwrap();
        assert_eq!(tool.raw.get(), json);
        assert_eq!(tool.input_schema.get(), r#"{"b" :1,"a":2}"#);
        assert_eq!(tool.output_schema.unwrap().get(), r#"{"type" : "object"}"#);
        assert_eq!(tool.annotations_raw.unwrap().get(), r#"{"readOnlyHint": true,"own":1.0}"#);
        assert_eq!(tool.annotations.read_only_hint, Some(true));
    }

    #[test]
    fn pro_45_tool_is_app_only_if_its_visibility_is_a_list_without_model() {
        for (meta, expected) in [
            (r#"{"ui":{"visibility":["app"]}}"#, true),
            (r#"{"ui":{"visibility":[ ]}}"#, true),
            (r#"{"ui":{"visibility":["\u0061pp",7]}}"#, true),
            (r#"{"ui":{"visibility":["model"]},"ui":{"visibility":["app"]}}"#, true),
            (r#"{"ui":{"visibility":["app","mod\u0065l"]}}"#, false),
            (r#"{"ui":{"visibility":null}}"#, false),
            (r#"{"ui":{"visibility":"app"}}"#, false),
            (r#"{"ui":{"visibility":{"app":true}}}"#, false),
            (r#"{"ui":["visibility",["app"]]}"#, false),
            (r#"{"ui":null}"#, false),
            (r#"{"visibility":["app"]}"#, false),
            ("null", false),
            ("7", false),
        ] {
            let tool = format!(r#"{{"name":"t","inputSchema":{{}},"_meta":{meta}}}"#);
            assert_eq!(parse(&tool).unwrap().is_app_only, expected, "{meta}");
        }
        assert!(!parse(r#"{"name":"t","inputSchema":{}}"#).unwrap().is_app_only);
    }

    #[test]
    fn listing_is_verbatim_except_the_name() {
        let json = r#"{"_meta":{"name":"t"},"n\u0061me" : "t\u0022" ,"icons":[ 1.0 ],"inputSchema":{"name":1}}"#;
        let listed = parse(json).unwrap().listed("s");
        let expected = json.replace(r#""t\u0022""#, &format!("\"{}\"", listed.key));
        assert_eq!(listed.json(), expected.as_bytes());
    }

    #[test]
    fn long_text_is_truncated_internally_and_listed_whole() {
        let long = "ä".repeat(MAX_DESCRIPTION_BYTES);
        let json =
            format!(r#"{{"name":"t","title":"{long}","description":"{long}","inputSchema":{{}}}}"#);
        let tool = parse(&json).unwrap();
        assert_eq!(tool.title.unwrap().len(), MAX_TITLE_BYTES + "…".len());
        assert_eq!(tool.description.len(), MAX_DESCRIPTION_BYTES + "…".len());
        assert!(tool.description.ends_with("ä…"));
        assert_eq!(tool.raw.get(), json);
        let odd = format!(r#"{{"name":"t","description":"x{long}","inputSchema":{{}}}}"#);
        assert!(parse(&odd).unwrap().description.ends_with("ä…"));
    }

    #[test]
    fn oversized_tool_is_rejected_with_the_limit() {
        let named = |name: &str| format!(r#"{{"name":"{name}","inputSchema":{{}}}}"#);
        let noted = |length: usize| {
            let text = "x".repeat(length);
            format!(r#"{{"name":"t","inputSchema":{{}},"annotations":{{"title":"{text}"}}}}"#)
        };
        assert!(parse(&named(&"n".repeat(MAX_NAME_BYTES))).is_ok());
        assert!(parse(&noted(MAX_ANNOTATIONS_BYTES - 100)).is_ok());
        for (json, why) in [
            (named(&"n".repeat(MAX_NAME_BYTES + 1)), "name is longer than 256 bytes"),
            (named(r"a\u0007b"), "name holds control characters"),
            (named(r"a\nb"), "name holds control characters"),
            (named(r"a\u009bb"), "name holds control characters"),
            (noted(MAX_ANNOTATIONS_BYTES), "t: annotations: they are longer than 16384 bytes"),
            (named(&"n".repeat(MAX_ELEMENT_BYTES)), "it is larger than 20971520 bytes"),
        ] {
            assert_eq!(parse(&json).unwrap_err(), why);
        }
    }

    #[test]
    fn null_members_count_as_absent() {
        let tool = parse(r#"{"name":"t","inputSchema":{},"outputSchema":null,"annotations":null,"description":null}"#).unwrap();
        assert!(tool.output_schema.is_none() && tool.annotations_raw.is_none());
        assert_eq!(tool.annotations, Annotations::default());
    }

    #[test]
    fn def_6_unreadable_hint_has_its_most_cautious_value() {
        let hints = |annotations: &str| {
            let json = format!(r#"{{"name":"t","inputSchema":{{}},"annotations":{annotations}}}"#);
            let Annotations {
                read_only_hint,
                destructive_hint,
                idempotent_hint,
                open_world_hint,
                ..
            } = parse(&json).unwrap().annotations;
            [read_only_hint, destructive_hint, idempotent_hint, open_world_hint]
        };
        let cautious = [Some(false), Some(true), Some(false), Some(true)];
        for odd in ["[]", "7", r#""x""#, "true"] {
            assert_eq!(hints(odd), cautious, "{odd}");
        }
        let odd =
            r#"{"readOnlyHint":"true","destructiveHint":0,"idempotentHint":[],"openWorldHint":{}}"#;
        assert_eq!(hints(odd), cautious);
        let mixed = r#"{"readOnlyHint":true,"destructiveHint":null,"openWorldHint":"no"}"#;
        assert_eq!(hints(mixed), [Some(true), None, None, Some(true)]);
    }

    #[test]
    fn def_6_optional_member_of_a_wrong_type_is_dropped_alone() {
        let json = r#"{"name":"t","title":7,"description":["x"],"outputSchema":5}"#;
        let tool = parse(json).unwrap();
        assert_eq!((tool.title.as_deref(), &*tool.description), (None, ""));
        assert_eq!((tool.input_schema.get(), tool.raw.get()), ("{}", json));
        for schema in ["[]", "5", "true", r#""x""#] {
            let json = format!(r#"{{"name":"t","inputSchema":{schema}}}"#);
            assert_eq!(parse(&json).unwrap().input_schema.get(), schema);
        }
    }

    #[test]
    fn malformed_tool_is_rejected_with_the_reason() {
        for (json, why) in [
            ("7", "invalid type"),
            ("{}", "missing field `name`"),
            (r#"{"name":7,"inputSchema":{}}"#, "invalid type"),
            (r#"{"name":"","inputSchema":{}}"#, "name is empty"),
            (
                r#"{"name":"t","inputSchema":{},"annotations":{},"annotations":{}}"#,
                "duplicate field",
            ),
            (
                r#"{"name":"t","inputSchema":{},"annotations":{"readOnlyHint":true,"readOnlyHint":true}}"#,
                "duplicate field",
            ),
        ] {
            let error = parse(json).unwrap_err();
            assert!(error.contains(why), "{json}: {error}");
        }
    }
}
