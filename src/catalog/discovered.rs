//! One tool as its server listed it.
//!
//! Owns what a well-formed tool is; the server's own bytes are kept beside what was read from
//! them. What the operator says of the tool is added in `super::replacing`.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::exposed;
use super::listing::Listed;
use crate::json::span::Span;
use crate::tool::Annotations;
use crate::tool::parameter_headers::{InvalidHeaderAnnotation, ParameterHeaders};

/// Longest name of a tool, in bytes.
pub const MAX_NAME_BYTES: usize = 256;
/// What is kept of a title, and what of a description, in bytes: for search and for agents. Lists
/// under exposed names hold what the server wrote.
pub const MAX_TITLE_BYTES: usize = 1024;
/// See [`MAX_TITLE_BYTES`].
pub const MAX_DESCRIPTION_BYTES: usize = 16 * 1024;
/// Longest annotations, in bytes.
pub const MAX_ANNOTATIONS_BYTES: usize = 16 * 1024;
/// Largest element, in bytes: a schema as large as any that is compiled, and as much beside it.
pub const MAX_ELEMENT_BYTES: usize = 20 * 1024 * 1024;

/// One element of a `tools/list` answer.
#[derive(Clone, Debug)]
pub struct DiscoveredTool {
    /// The tool's name at its server.
    pub name: Box<str>,
    pub(super) title: Option<Box<str>>,
    pub(super) description: Box<str>,
    pub(super) input_schema: Box<RawValue>,
    pub(super) output_schema: Option<Box<RawValue>>,
    pub(super) annotations_raw: Option<Box<RawValue>>,
    pub(super) annotations: Annotations,
    /// Which parameters headers repeat. Whether what is invalid there matters depends on how its
    /// server is reached.
    pub(crate) parameter_headers: Result<Option<Arc<ParameterHeaders>>, InvalidHeaderAnnotation>,
    /// The whole element.
    pub(super) raw: Box<RawValue>,
    /// Where the value of `name` stands in it.
    name_at: Span,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Fields<'a> {
    #[serde(borrow)]
    name: &'a RawValue,
    title: Option<Box<str>>,
    description: Option<Box<str>>,
    input_schema: Box<RawValue>,
    output_schema: Option<Box<RawValue>>,
    annotations: Option<Box<RawValue>>,
}

impl DiscoveredTool {
    /// Reads one element of `tools`.
    ///
    /// # Errors
    /// Says what is wrong with it, in one line. Doubtful annotations are wrong too: a hint that
    /// cannot be read must not count as one that is absent (FR-020).
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
        if !fields.input_schema.get().starts_with('{') {
            return Err(format!("{name}: inputSchema is not an object"));
        }
        let annotations = match &fields.annotations {
            None => Annotations::default(),
            Some(raw) if raw.get().len() > MAX_ANNOTATIONS_BYTES => {
                return Err(format!(
                    "{name}: annotations: they are longer than {MAX_ANNOTATIONS_BYTES} bytes"
                ));
            }
            Some(raw) => serde_json::from_str(raw.get())
                .map_err(|error| format!("{name}: annotations: {error}"))?,
        };
        let parameter_headers =
            ParameterHeaders::read(&fields.input_schema).map(|found| found.map(Arc::new));
        Ok(Self {
            name,
            parameter_headers,
            title: fields.title.map(|title| cut(title, MAX_TITLE_BYTES)),
            description: cut(fields.description.unwrap_or_default(), MAX_DESCRIPTION_BYTES),
            input_schema: fields.input_schema,
            output_schema: fields.output_schema,
            annotations_raw: fields.annotations,
            annotations,
            raw: raw.to_owned(),
            name_at: Span::of(raw.get().as_bytes(), fields.name.get().as_bytes()),
        })
    }

    /// The tool as `/mcp/all` lists it: under its exposed name, all else as its server wrote it.
    #[must_use]
    pub fn listed(&self, server: &str) -> Listed {
        Listed::new(self.raw.get(), self.name_at, &self.name, exposed::name(server, &self.name))
    }
}

/// The beginning of a text that is longer than `limit` bytes, with a sign that it goes on.
fn cut(text: Box<str>, limit: usize) -> Box<str> {
    if text.len() <= limit {
        return text;
    }
    let start = text.get(..text.floor_char_boundary(limit)).unwrap_or_default();
    format!("{start}…").into()
}

#[cfg(test)]
mod tests {
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
    fn it_is_listed_as_its_server_wrote_it_but_for_the_name() {
        let json = r#"{"_meta":{"name":"t"},"n\u0061me" : "t\u0022" ,"icons":[ 1.0 ],"inputSchema":{"name":1}}"#;
        let listed = parse(json).unwrap().listed("s");
        let expected = json.replace(r#""t\u0022""#, &format!("\"{}\"", listed.key));
        assert_eq!(listed.json(), expected.as_bytes());
    }

    #[test]
    fn a_long_text_is_cut_for_us_and_listed_whole() {
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
    fn a_tool_that_outgrows_a_bound_says_which() {
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
    fn null_is_absent() {
        let tool = parse(r#"{"name":"t","inputSchema":{},"outputSchema":null,"annotations":null,"description":null}"#).unwrap();
        assert!(tool.output_schema.is_none() && tool.annotations_raw.is_none());
        assert_eq!(tool.annotations, Annotations::default());
    }

    #[test]
    fn a_malformed_tool_says_why() {
        for (json, why) in [
            ("7", "invalid type"),
            ("{}", "missing field `name`"),
            (r#"{"name":7,"inputSchema":{}}"#, "invalid type"),
            (r#"{"name":"","inputSchema":{}}"#, "name is empty"),
            (r#"{"name":"t"}"#, "missing field `inputSchema`"),
            (r#"{"name":"t","inputSchema":[]}"#, "t: inputSchema is not an object"),
            (
                r#"{"name":"t","inputSchema":{},"annotations":{"destructiveHint":"yes"}}"#,
                "t: annotations: ",
            ),
            (r#"{"name":"t","inputSchema":{},"annotations":[]}"#, "t: annotations: "),
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
