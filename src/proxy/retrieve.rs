//! `retrieve_tools`: plain words in, the tools that fit and how to call them out (FR-021..024).
//!
//! Owns the shape of its result. What the servers wrote (input schemas, annotations) is embedded
//! as they wrote it. Pure: the snapshot comes in, bytes go out; how tools are ranked is not here.

use std::borrow::Cow;

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;
use utoipa::openapi::{RefOr, Schema};

use crate::activity::record::words;
use crate::catalog::Snapshot;
use crate::intent::Operation;
use crate::json::members::{members, string};
use crate::policy::Visibility;
use crate::tool::{Capability, Tool};

/// The tool's name.
pub const RETRIEVE_TOOLS: &str = "retrieve_tools";

/// What an agent is to do with what it found (FR-024); also the server's `instructions`.
pub const USAGE_INSTRUCTIONS: &str = "Use call_tool_read for read-only operations, \
     call_tool_write for modifications, call_tool_destructive for deletions. Intent must match \
     tool variant.";

/// The bounds of `limit`, and of `tools_limit` in the config: 1 to this.
pub const MAX_LIMIT: usize = 100;

/// Most bytes of a query.
pub const MAX_QUERY_BYTES: usize = 4096;

/// The words for `detail`.
pub(super) const DETAILS: [&str; 2] = ["compact", "full"];

/// Why the arguments are refused. The caller's blame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each case is its text")]
pub enum RetrieveError {
    #[error("arguments must be a JSON object")]
    NotAnObject,
    #[error("Unknown parameter '{0}': known are query, limit, and detail")]
    Unknown(String),
    #[error("query is required: what you want to do, in plain words")]
    NoQuery,
    #[error("query must be a string of at most {MAX_QUERY_BYTES} bytes")]
    BadQuery,
    #[error("limit must be a whole number from 1 to {MAX_LIMIT}")]
    BadLimit,
    #[error("detail must be compact or full")]
    BadDetail,
}

/// One tool as it is shown, here and over REST (FR-022, FR-023, CAP-4).
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Tool, description = "A tool of an upstream server.")]
pub struct Shown<'a> {
    /// `server:tool`
    pub name: String,
    /// The server's name in the config.
    #[schema(value_type = String)]
    pub server: &'a str,
    /// The server's title for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    pub title: Option<&'a str>,
    /// The server's description.
    #[schema(value_type = String)]
    pub description: &'a str,
    /// The server's own bytes; left out of a compact answer.
    #[serde(rename = "inputSchema", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>, nullable = false)]
    pub input_schema: Option<&'a RawValue>,
    /// The server's own bytes, if it gave any.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>, nullable = false)]
    pub annotations: Option<&'a RawValue>,
    /// What the engine relies on.
    pub capability: Capability,
    /// 0 to 1, in thousandths; absent where nothing was searched for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 0, maximum = 1)]
    pub score: Option<f32>,
    /// The variant to call it with.
    #[schema(schema_with = variants)]
    pub call_with: &'static str,
}

impl<'a> Shown<'a> {
    /// The whole of `tool`.
    #[must_use]
    pub fn of(tool: &'a Tool, score: Option<f32>) -> Self {
        Self {
            name: tool.name.to_string(),
            server: &tool.name.server,
            title: tool.title.as_deref(),
            description: &tool.description,
            input_schema: Some(&tool.input_schema),
            annotations: tool.annotations_raw.as_deref(),
            capability: tool.capability,
            score: score.map(|score| (score * 1000.0).round() / 1000.0),
            call_with: Operation::recommended(tool.capability).variant(),
        }
    }
}

/// The description of the name of a call tool.
fn variants() -> RefOr<Schema> {
    words(Operation::ALL.map(Operation::variant))
}

#[derive(Serialize)]
struct Found<'a> {
    tools: Vec<Shown<'a>>,
    query: &'a str,
    total: usize,
    usage_instructions: &'static str,
}

/// Answers a call of `retrieve_tools`: the result, as one JSON object. `raw` is a JSON object in
/// which the caller has found no duplicate key; `tools_limit` counts where it states no limit. Only what is `visible`
/// is found.
///
/// # Errors
/// What is wrong with the arguments.
pub fn retrieve(
    raw: &[u8],
    snapshot: &Snapshot,
    tools_limit: usize,
    visible: Visibility<'_>,
) -> Result<Bytes, RetrieveError> {
    let arguments = Arguments::parse(raw, tools_limit)?;
    let found = match visible.is_all() {
        true => snapshot.search(&arguments.query, arguments.limit),
        false => {
            let mut found = snapshot.search(&arguments.query, snapshot.tools().len());
            // Each is asked about until enough are there.
            let mut shown = 0;
            found.retain(|(tool, _)| {
                let shows = shown < arguments.limit && visible.tool(tool);
                shown += usize::from(shows);
                shows
            });
            found
        }
    };
    let shown = found.iter().map(|(tool, score)| Shown {
        input_schema: (!arguments.compact).then_some(&tool.input_schema),
        ..Shown::of(tool, Some(*score))
    });
    let tools: Vec<_> = shown.collect();
    let content = Found {
        total: tools.len(),
        tools,
        query: &arguments.query,
        usage_instructions: USAGE_INSTRUCTIONS,
    };
    Ok(result(&content).unwrap_or_default().into())
}

/// The tool result that says `content` twice, as structured content and as text
/// ([contracts](crate::reference::contracts#mcp-tools)). No value of ours makes it fail.
fn result(content: &Found<'_>) -> serde_json::Result<Vec<u8>> {
    let structured = serde_json::to_string(content)?;
    let text = serde_json::to_string(&structured)?;
    Ok(format!(
        r#"{{"content":[{{"type":"text","text":{text}}}],"structuredContent":{structured}}}"#
    )
    .into_bytes())
}

struct Arguments<'a> {
    query: Cow<'a, str>,
    limit: usize,
    compact: bool,
}

impl<'a> Arguments<'a> {
    fn parse(raw: &'a [u8], tools_limit: usize) -> Result<Self, RetrieveError> {
        let raw = std::str::from_utf8(raw).map_err(|_| RetrieveError::NotAnObject)?;
        let (mut query, mut limit, mut compact) = (None, tools_limit, false);
        for member in members(raw).map_err(|_| RetrieveError::NotAnObject)? {
            let (name, value) = member.map_err(|_| RetrieveError::NotAnObject)?;
            match &*name {
                _ if value == "null" => {}
                "query" => query = Some(string(value).ok_or(RetrieveError::BadQuery)?),
                "limit" => {
                    limit = serde_json::from_str(value)
                        .ok()
                        .filter(|limit| (1..=MAX_LIMIT).contains(limit))
                        .ok_or(RetrieveError::BadLimit)?;
                }
                "detail" => {
                    compact = match string(value).as_deref() {
                        Some("compact") => true,
                        Some("full") => false,
                        Some(_) | None => return Err(RetrieveError::BadDetail),
                    };
                }
                _ => return Err(RetrieveError::Unknown(name.chars().take(64).collect())),
            }
        }
        let query = query.filter(|query| !query.trim().is_empty());
        let query = query.ok_or(RetrieveError::NoQuery)?;
        if query.len() > MAX_QUERY_BYTES {
            return Err(RetrieveError::BadQuery);
        }
        Ok(Self { query, limit, compact })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{Catalog, DiscoveredTool, ServerSettings, Settings};
    use crate::intent::Requirement;
    use crate::proxy::builtin;
    use crate::schema::compile::compile;
    use crate::schema::judge::{JudgeScratch, Verdict};
    use serde_json::{Value, json};
    use std::sync::Arc;

    const DELETE: &str = r#"{"name":"delete_repo","title":"Delete","description":"Deletes a repository","inputSchema": {"z" :1.0,"a":{}},"annotations":{"destructiveHint": true,"own":1}}"#;
    const GET: &str = r#"{"name":"get_repo","description":"Gets a repository","inputSchema":{}}"#;

    fn all() -> Visibility<'static> {
        Visibility::default()
    }

    fn snapshot(settings: &str) -> Arc<Snapshot> {
        let settings: ServerSettings = serde_json::from_str(settings).unwrap();
        let catalog = Catalog::new(Settings {
            servers: [("github".into(), settings)].into(),
            ..Settings::default()
        });
        let parse = |json| DiscoveredTool::parse(serde_json::from_str(json).unwrap()).unwrap();
        catalog.replace_server("github", vec![parse(DELETE), parse(GET)]);
        catalog.load()
    }

    fn ask(arguments: &str, settings: &str) -> (String, Value) {
        let raw = retrieve(arguments.as_bytes(), &snapshot(settings), 15, all()).unwrap();
        let text = String::from_utf8(raw.to_vec()).unwrap();
        let value: Value = serde_json::from_str(&text).unwrap();
        (text, value)
    }

    #[test]
    fn fr_021_to_024_each_tool_says_how_to_call_it() {
        let (raw, value) = ask(r#"{"query":"remove a repository"}"#, "{}");
        let structured = &value["structuredContent"];
        let text = value["content"][0]["text"].as_str().unwrap();
        assert!(raw.ends_with(&format!(r#""structuredContent":{text}}}"#)), "the same as text");
        assert!(raw.contains(r#""inputSchema":{"z" :1.0,"a":{}}"#), "the server's own bytes");
        assert!(raw.contains(r#""annotations":{"destructiveHint": true,"own":1}"#));
        let first = &structured["tools"][0];
        assert_eq!(first["name"], "github:delete_repo");
        assert_eq!(first["server"], "github");
        assert_eq!(first["description"], "Deletes a repository");
        assert_eq!(first["call_with"], "call_tool_destructive");
        assert_eq!(
            first["capability"],
            json!({"side_effect": "destructive", "parallel_safe": true, "approval": "auto", "idempotent": false})
        );
        let second = &structured["tools"][1];
        assert_eq!(second["call_with"], "call_tool_write");
        assert!(second.get("annotations").is_none());
        assert_eq!(
            (&structured["total"], &structured["query"]),
            (&json!(2), &json!("remove a repository"))
        );
        assert_eq!(structured["usage_instructions"], USAGE_INSTRUCTIONS);
    }

    #[test]
    fn cap_3_an_override_and_the_annotation_are_both_shown() {
        let (_, value) = ask(
            r#"{"query":"delete_repo","limit":1}"#,
            r#"{"capabilities":{"delete_repo":{"side_effect":"read"}}}"#,
        );
        let tools = &value["structuredContent"]["tools"];
        assert_eq!(tools.as_array().unwrap().len(), 1);
        assert_eq!(tools[0]["annotations"]["destructiveHint"], true);
        assert_eq!(tools[0]["capability"]["side_effect"], "read");
        assert_eq!(tools[0]["call_with"], "call_tool_read");
    }

    #[test]
    fn compact_leaves_out_the_input_schemas() {
        let (raw, _) = ask(r#"{"query":"repository","detail":"compact"}"#, "{}");
        assert!(!raw.contains("inputSchema") && raw.contains("destructiveHint"));
    }

    #[test]
    fn the_result_is_as_declared() {
        let list: Value =
            serde_json::from_str(&builtin::tools_list(Requirement::Required, 15, false)).unwrap();
        let declared = list["tools"][0]["outputSchema"].to_string();
        let schema = compile(declared.as_bytes(), &Default::default()).unwrap();
        for query in ["repository", "nothing at all like it"] {
            for detail in DETAILS {
                let arguments = json!({"query": query, "detail": detail}).to_string();
                let (_, value) = ask(&arguments, "{}");
                let content = Bytes::from(value["structuredContent"].to_string());
                let judgement = schema.judge(&[content], &mut JudgeScratch::new());
                assert_eq!(judgement.verdict, Verdict::Conforms, "{value}");
            }
        }
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        use RetrieveError as E;
        let long = format!(r#"{{"query":"{}"}}"#, "a".repeat(MAX_QUERY_BYTES + 1));
        for (arguments, error) in [
            ("[]", E::NotAnObject),
            ("{}", E::NoQuery),
            (r#"{"query":null}"#, E::NoQuery),
            (r#"{"query":"  "}"#, E::NoQuery),
            (r#"{"query":7}"#, E::BadQuery),
            (&long, E::BadQuery),
            (r#"{"query":"x","limit":0}"#, E::BadLimit),
            (r#"{"query":"x","limit":101}"#, E::BadLimit),
            (r#"{"query":"x","limit":1.5}"#, E::BadLimit),
            (r#"{"query":"x","limit":"5"}"#, E::BadLimit),
            (r#"{"query":"x","detail":"all"}"#, E::BadDetail),
            (r#"{"query":"x","qurey":"y"}"#, E::Unknown("qurey".into())),
        ] {
            let got = retrieve(arguments.as_bytes(), &snapshot("{}"), 15, all()).unwrap_err();
            assert_eq!(got, error, "{arguments}");
        }
        assert!(retrieve(br#"{"query":"x","limit":100}"#, &snapshot("{}"), 15, all()).is_ok());
    }
}
