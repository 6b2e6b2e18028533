//! Built-in tools: definitions for `tools/list`, and `read_result`.
//!
//! This module owns the texts that an agent reads before its first call (FR-025) and the input schemas by setting;
//! every word costs tokens in each conversation. The other tools run in [`retrieve`], [`describe`] and
//! [`super::call`]; [`overview`] describes the servers.
//!
//! `read_result` returns parts of a kept result to its owner. It is recorded like any call, with the handle
//! replaced by its id.

use std::fmt::Write as _;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use mcpproxy_activity::record::Raw;
use mcpproxy_policy::intent::{MAX_REASON_CHARS, Operation, Requirement};
use mcpproxy_policy::tool::Annotations;
use serde_json::{Value, json};

use self::describe::DESCRIBE_TOOL;
use self::retrieve::{Detail, MAX_LIMIT, RETRIEVE_TOOLS};
use super::client::Caller;
use super::kept_results;
use super::kept_results::READ_RESULT;
use super::recorded::{OnRecord, RecordedRequest};
use super::refusal::{Refusal, RefusalKind};
use super::reply::Running;
use super::worker::Worker;
use crate::results;
use crate::results::{MAX_PART_BYTES, PART_BYTES, PartQuery, ResultPart};

pub mod describe;
pub mod overview;
pub mod retrieve;

/// Result of `tools/list` as one line of JSON, with the call tools of these `operations`. `overview` describes the
/// servers, or is empty; `read_result` is listed if results are kept.
pub(crate) fn tools_list(
    operations: impl IntoIterator<Item = Operation>,
    requirement: Requirement,
    tools_limit: usize,
    overview: &str,
    keeps_results: bool,
) -> String {
    let calls = operations.into_iter().map(|variant| call_tool(variant, requirement));
    let finding = [retrieve_tools(tools_limit, overview), describe_tool()];
    let tools = finding.into_iter().chain(calls).chain(keeps_results.then(read_result_definition));
    let tools: Vec<Value> = tools.collect();
    json!({"tools": tools}).to_string()
}

/// Input schema of a call tool, also used to document a call elsewhere.
pub fn call_schema(variant: Operation, requirement: Requirement) -> Value {
    let mut tool = call_tool(variant, requirement);
    tool.get_mut("inputSchema").map(Value::take).unwrap_or_default()
}

fn annotations(variant: Operation) -> Annotations {
    let (read_only, destructive) = match variant {
        Operation::Read => (true, false),
        Operation::Write => (false, false),
        Operation::Destructive => (false, true),
    };
    Annotations {
        read_only_hint: Some(read_only),
        // This hint is meaningless for a read-only tool.
        destructive_hint: (!read_only).then_some(destructive),
        idempotent_hint: None,
        open_world_hint: Some(true),
        ..Annotations::default()
    }
}

/// Definition of `read_result`, annotated as the proxy's own data: the tool that produced the result declared the
/// exposure.
fn read_result_definition() -> Value {
    let mut tool = described();
    if let Some(members) = tool.as_object_mut() {
        members.insert("annotations".to_owned(), json!(own_annotations()));
    }
    tool
}

fn retrieve_tools(tools_limit: usize, overview: &str) -> Value {
    let mut description = String::from(
        "Search for tools across all upstream servers. Results include annotations \
         (readOnlyHint, destructiveHint) and recommended call_with variant. Use call_tool_read \
         for read-only operations, call_tool_write for modifications, call_tool_destructive for \
         deletions. Intent must match tool variant.",
    );
    if !overview.is_empty() {
        description.push(' ');
        description.push_str(overview);
    }
    json!({
        "name": RETRIEVE_TOOLS,
        "title": "Find tools",
        "description": description,
        "inputSchema": {
            "type": "object",
            "properties": {
                "query": {
                    "type": "string",
                    "description": "What you want to do, in plain words, or a tool's name.",
                },
                "limit": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": MAX_LIMIT,
                    "default": tools_limit,
                },
                "detail": {
                    "type": "string",
                    "enum": Detail::ALL.map(Detail::as_str),
                    "default": Detail::default().as_str(),
                },
            },
            "required": ["query"],
            "additionalProperties": false,
        },
        "outputSchema": {
            "type": "object",
            "properties": {
                "tools": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {
                            "name": {"type": "string"},
                            "signature": {"type": "string"},
                            "server": {"type": "string"},
                            "title": {"type": "string"},
                            "description": {"type": "string"},
                            "inputSchema": {"type": "object"},
                            "annotations": {"type": "object"},
                            "capability": capability_schema(),
                            "score": {"type": "number", "minimum": 0, "maximum": 1},
                            "call_with": call_with_schema(),
                        },
                        "required": ["name", "call_with"],
                    },
                },
                "query": {"type": "string"},
                "total": {"type": "integer", "minimum": 0},
                "usage_instructions": {"type": "string"},
            },
            "required": ["tools", "query", "total", "usage_instructions"],
        },
        "annotations": own_annotations(),
    })
}

fn describe_tool() -> Value {
    json!({
        "name": DESCRIBE_TOOL,
        "title": "Describe a tool",
        "description": "Describe one tool: description, schemas and an example call. With args, also \
            predict the outcome of a call without sending it: policy, approval and errors in \
            the arguments.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "description": "server:tool"},
                "args": {"type": "object"},
                "operation": {
                    "type": "string",
                    "enum": Operation::ALL.map(Operation::as_str),
                    "description": "Default: the operation of call_with.",
                },
            },
            "required": ["name"],
            "additionalProperties": false,
        },
        "outputSchema": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "server": {"type": "string"},
                "title": {"type": "string"},
                "description": {"type": "string"},
                "signature": {"type": "string"},
                "inputSchema": {"type": "object"},
                "outputSchema": {"type": "object"},
                "annotations": {"type": "object"},
                "capability": capability_schema(),
                "call_with": call_with_schema(),
                "example": {"type": "object"},
                "preflight": {
                    "type": "object",
                    "properties": {
                        "call_with": call_with_schema(),
                        "verdict": {"type": "string", "enum": ["allowed", "approval", "refused"]},
                        "reason": {"type": "string"},
                        "warnings": {"type": "array", "items": {"type": "string"}},
                        "argument_errors": {"type": "array", "items": {"type": "string"}},
                    },
                    "required": ["call_with", "verdict", "argument_errors"],
                },
            },
            "required": ["name", "signature", "inputSchema", "capability", "call_with", "example"],
        },
        "annotations": own_annotations(),
    })
}

/// Annotations of tools that only read the proxy's own data.
fn own_annotations() -> Annotations {
    Annotations { open_world_hint: Some(false), ..annotations(Operation::Read) }
}

fn call_with_schema() -> Value {
    json!({"type": "string", "enum": Operation::ALL.map(Operation::variant)})
}

fn capability_schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "side_effect": {"type": "string", "enum": ["none", "read", "write", "destructive"]},
            "parallel_safe": {"type": "boolean"},
            "approval": {"type": "string", "enum": ["auto", "suggest", "required"]},
            "idempotent": {"type": "boolean"},
        },
        "required": ["side_effect", "parallel_safe", "approval", "idempotent"],
    })
}

fn call_tool(variant: Operation, requirement: Requirement) -> Value {
    let word = variant.as_str();
    let (title, opening, last) = match variant {
        Operation::Read => (
            "Call a tool that reads",
            "Execute a read-only tool discovered via retrieve_tools. Use for operations that query \
             data without modifying state.",
            "Will be rejected if server marks tool as destructive.",
        ),
        Operation::Write => (
            "Call a tool that writes",
            "Execute a state-modifying tool discovered via retrieve_tools. Use for operations that \
             create or update resources.",
            "Will be rejected if server marks tool as destructive.",
        ),
        Operation::Destructive => (
            "Call a tool that destroys",
            "Execute a destructive tool discovered via retrieve_tools. Use for operations that \
             delete or permanently modify resources.",
            "Most permissive - allowed regardless of server annotations.",
        ),
    };
    let mut description = String::from(opening);
    let of_intent: &[&str] = match requirement {
        Requirement::Required => {
            // Infallible: writing to a String.
            let _ = write!(description, " Requires intent.operation_type='{word}'.");
            &["operation_type"]
        }
        Requirement::Inferred => &[],
    };
    description.push(' ');
    description.push_str(last);
    let operation_type = json!({"type": "string", "enum": [word]});
    let data_sensitivity =
        json!({"type": "string", "enum": ["public", "internal", "private", "unknown"]});
    let reason = json!({"type": "string", "maxLength": MAX_REASON_CHARS});
    let nested = match requirement {
        Requirement::Required => "Required, or intent_operation_type.",
        Requirement::Inferred => "Or intent_*.",
    };
    // Either form of the intent is accepted. An `anyOf` next to `properties` would express this, but clients of
    // several models cannot send such schemas; `required` names neither.
    json!({
        "name": variant.variant(),
        "title": title,
        "description": description,
        "inputSchema": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "description": "server:tool"},
                "args": {"type": "object"},
                "args_json": {
                    "type": "string",
                    "description": "args as a string",
                },
                "intent": {
                    "type": "object",
                    "description": nested,
                    "properties": {
                        "operation_type": operation_type,
                        "data_sensitivity": data_sensitivity,
                        "reason": reason,
                    },
                    "required": of_intent,
                    "additionalProperties": false,
                },
                "intent_operation_type": operation_type,
                "intent_data_sensitivity": data_sensitivity,
                "intent_reason": reason,
            },
            "required": ["name"],
            "additionalProperties": false,
        },
        "annotations": annotations(variant),
    })
}

/// Number of copies of a result in memory during a read: the file and the decoded text.
const COPIES: u64 = 2;

/// Text for a missing result, the same for every reason, so that guessing reveals nothing.
const NOT_THERE: &str = "No result is kept under this handle: it has expired, newer results needed the space, or it was \
                         not given to this session. Make the call again that returned it.";

/// Text for a missing result whose handle names a fleet node.
const NOT_THERE_IN_FLEET: &str = "No result is kept under this handle: it has expired, newer results needed the space, the \
                                  node that kept it is dead or unreachable, or it was not given to this session. Make \
                                  the call again that returned it.";

/// Serves `read_result` with its `raw` arguments and the request's `_meta`.
pub(crate) fn read_result(
    worker: &Rc<Worker>,
    caller: Caller,
    raw: Bytes,
    meta: Option<&[u8]>,
) -> Running {
    let work = async move |on: &mut OnRecord<'_>| {
        let arguments = String::from_utf8_lossy(&raw);
        on.record.keep(Raw::Arguments, results::without_handles(&arguments).as_bytes());
        let query = PartQuery::parse(&raw);
        let query = query.map_err(|bad| {
            // The name of an unknown parameter may be a handle, which must not be recorded.
            Refusal::of_parameters(results::without_handles(&bad.to_string()).into_owned())
        })?;
        let ResultPart { text, note } = part(on, query).await?;
        let blocks = [json!({"type": "text", "text": text}), json!({"type": "text", "text": note})];
        Ok(Bytes::from(json!({"content": blocks}).to_string()))
    };
    RecordedRequest::own_tool(worker, caller, READ_RESULT, meta, work)
}

/// Finds and reads the result.
async fn part(on: &OnRecord<'_>, query: PartQuery) -> Result<ResultPart, Refusal> {
    let (worker, caller) = (on.worker, on.caller);
    let refused = |text: String| Refusal::rejected(RefusalKind::Unknown, text);
    let failed = |text: String| Refusal::failed(RefusalKind::Unavailable, text);
    let proxy = &worker.proxy;
    let raise = |exposure| on.raise_facts(exposure);
    let kept = kept_results::find(&proxy.results, &query.handle, caller, raise);
    let not_there = if query.handle.node() == 0 { NOT_THERE } else { NOT_THERE_IN_FLEET };
    let kept = kept.ok_or_else(|| refused(not_there.to_owned()))?;
    let mut share = worker.settings().held.share(&kept.server);
    let grown = share.grow(kept.bytes.saturating_mul(COPIES)).await;
    grown.map_err(|full| failed(format!("The result cannot be read now: {full}")))?;
    let read = proxy.result_pool.run(move || {
        let _share = share;
        let text = Arc::clone(&kept).read()?;
        Ok::<_, std::io::Error>(results::part(&text, &query))
    });
    match read.await {
        Some(Ok(Ok(part))) => Ok(part),
        Some(Ok(Err(none))) => Err(refused(none.to_string())),
        Some(Err(error)) => Err(failed(format!("The kept result cannot be read: {error}"))),
        None => Err(failed("The kept result cannot be read".to_owned())),
    }
}

/// Tool definition without annotations.
pub(super) fn described() -> Value {
    json!({
        "name": READ_RESULT,
        "title": "Read a long result",
        "description": "Read parts of a result that was too long to be returned whole, by the handle in its answer. \
            Returns the tool's original bytes. Without pointer, reads the result's text.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "handle": {"type": "string", "description": "As given in the answer: kept_…"},
                "pointer": {
                    "type": "string",
                    "description": "A JSON Pointer into the result, like /structuredContent/rows/0: reads the JSON there. \
                        With lines or search, a string there is decoded first.",
                },
                "lines": {
                    "type": "string",
                    "pattern": "^[0-9]+(-[0-9]*)?$",
                    "description": "Line numbers from 1: 10-20, 10- or 10.",
                },
                "search": {
                    "type": "string",
                    "description": "Text to find, case-sensitive. Returns the places that contain it.",
                },
                "offset": {
                    "type": "integer",
                    "minimum": 0,
                    "default": 0,
                    "description": "Bytes to skip (with search: places). To continue, send the next offset from an answer.",
                },
                "limit": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": MAX_PART_BYTES,
                    "default": PART_BYTES,
                    "description": "Maximum bytes to return (with search: places, at most 100, 20 by default).",
                },
            },
            "required": ["handle"],
            "additionalProperties": false,
        },
    })
}

#[cfg(test)]
mod tests {
    use mcpproxy_policy::tool::{Capability, SideEffect};
    use mcpproxy_schema::compile::compile;
    use mcpproxy_schema::judge::{JudgeScratch, Verdict};

    use super::*;

    fn listed(requirement: Requirement) -> Vec<Value> {
        let list = tools_list(Operation::ALL, requirement, 15, "", false);
        let list: Value = serde_json::from_str(&list).unwrap();
        list["tools"].as_array().unwrap().clone()
    }

    #[test]
    fn fr_001_to_004_three_call_tools_and_no_call_tool() {
        let names: Vec<_> =
            listed(Requirement::Required).iter().map(|tool| tool["name"].clone()).collect();
        assert_eq!(
            names,
            [
                "retrieve_tools",
                "describe_tool",
                "call_tool_read",
                "call_tool_write",
                "call_tool_destructive"
            ]
        );
    }

    #[test]
    fn read_result_is_listed_if_results_are_kept() {
        let list = tools_list(Operation::ALL, Requirement::Required, 15, "", true);
        let list: Value = serde_json::from_str(&list).unwrap();
        let tools = list["tools"].as_array().unwrap();
        assert_eq!(tools.len(), 6);
        let last = &tools[5];
        assert_eq!(last["name"], "read_result");
        assert_eq!(last["annotations"], json!({"readOnlyHint": true, "openWorldHint": false}));
        let parameters: Vec<_> =
            last["inputSchema"]["properties"].as_object().unwrap().keys().collect();
        assert_eq!(parameters, ["handle", "pointer", "lines", "search", "offset", "limit"]);
    }

    #[test]
    fn fr_025_descriptions_state_the_purpose_of_each_variant() {
        let read = "Execute a read-only tool discovered via retrieve_tools. Use for operations that query data without modifying state. Requires intent.operation_type='read'. Will be rejected if server marks tool as destructive.";
        let write = "Execute a state-modifying tool discovered via retrieve_tools. Use for operations that create or update resources. Requires intent.operation_type='write'. Will be rejected if server marks tool as destructive.";
        let destructive = "Execute a destructive tool discovered via retrieve_tools. Use for operations that delete or permanently modify resources. Requires intent.operation_type='destructive'. Most permissive - allowed regardless of server annotations.";
        let retrieve = "Search for tools across all upstream servers. Results include annotations (readOnlyHint, destructiveHint) and recommended call_with variant. Use call_tool_read for read-only operations, call_tool_write for modifications, call_tool_destructive for deletions. Intent must match tool variant.";
        let mut required = listed(Requirement::Required);
        required.retain(|tool| tool["name"] != DESCRIBE_TOOL);
        for (tool, text) in required.iter().zip([retrieve, read, write, destructive]) {
            assert!(tool["description"].as_str().unwrap().starts_with(text), "{tool}");
        }
        for (tool, word) in listed(Requirement::Inferred)[2..].iter().zip(Operation::ALL) {
            let text = tool["description"].as_str().unwrap();
            assert!(!text.contains("Requires"), "{text}");
            assert!(!text.contains("  ") && !text.contains(word.variant()), "{text}");
        }
    }

    #[test]
    fn fr_006_published_schema_follows_the_setting() {
        let [required, inferred] = [Requirement::Required, Requirement::Inferred].map(listed);
        let intent = |tools: &[Value]| tools[2]["inputSchema"]["properties"]["intent"].clone();
        assert_eq!(intent(&required)["required"], json!(["operation_type"]));
        assert!(intent(&required)["description"].as_str().unwrap().starts_with("Required"));
        assert_eq!(intent(&inferred)["required"], json!([]));
        assert!(!intent(&inferred)["description"].as_str().unwrap().contains("Required"));
        for tools in [required, inferred] {
            assert_eq!(tools[2]["inputSchema"]["required"], json!(["name"]));
        }
    }

    #[test]
    fn fr_005_published_schema_accepts_what_the_parser_accepts() {
        for (at, variant) in (2..).zip(Operation::ALL) {
            let word = variant.as_str();
            let schema = listed(Requirement::Required)[at]["inputSchema"].to_string();
            let schema = compile(schema.as_bytes(), &Default::default()).unwrap();
            for (arguments, fits) in [
                (json!({"name": "s:t", "intent": {"operation_type": word}}), true),
                (json!({"name": "s:t", "args": {"a": 1}, "intent_operation_type": word}), true),
                (
                    json!({"name": "s:t", "args_json": "{}", "intent_operation_type": word, "intent_reason": "r", "intent_data_sensitivity": "public"}),
                    true,
                ),
                (json!({"name": "s:t", "intent_operation_type": "delete"}), false),
                (json!({"name": "s:t", "intent": {"operation_type": word, "why": ""}}), false),
                (json!({"intent": {"operation_type": word}}), false),
                (json!({"name": "s:t", "args": [], "intent_operation_type": word}), false),
                (json!({"name": "s:t", "arguments": {}}), false),
            ] {
                let raw = bytes::Bytes::from(arguments.to_string());
                let judged = schema.judge(std::slice::from_ref(&raw), &mut JudgeScratch::new());
                assert_eq!(judged.verdict == Verdict::Conforms, fits, "{arguments}");
                let mut scratch = mcpproxy_json::tape::Scratch::new();
                let read = mcpproxy_policy::intent::CallArguments::parse(&raw, None, &mut scratch);
                let settings = mcpproxy_policy::intent::Settings::default();
                let accepted = read.is_ok_and(|read| read.intent.check(variant, &settings).is_ok());
                assert_eq!(accepted, fits, "{arguments}");
            }
            let listed = &listed(Requirement::Required)[at]["inputSchema"]["properties"];
            let types = [
                &listed["intent"]["properties"]["operation_type"],
                &listed["intent_operation_type"],
            ];
            assert!(types.iter().all(|it| it["enum"] == json!([word])), "one operation type only");
        }
    }

    #[test]
    fn retrieve_tools_description_lists_the_servers() {
        let list = tools_list(
            Operation::ALL,
            Requirement::Required,
            15,
            "Connected servers: github (issue).",
            false,
        );
        let list: Value = serde_json::from_str(&list).unwrap();
        let description = list["tools"][0]["description"].as_str().unwrap();
        assert!(
            description.ends_with("variant. Connected servers: github (issue)."),
            "{description}"
        );
    }

    #[test]
    fn builtin_tools_have_annotations_and_output_schemas() {
        let tools = listed(Requirement::Required);
        let hints = |at: usize| &tools[at]["annotations"];
        assert_eq!(hints(1), &json!({"readOnlyHint": true, "openWorldHint": false}));
        assert_eq!(hints(2), &json!({"readOnlyHint": true, "openWorldHint": true}));
        assert_eq!(
            hints(3),
            &json!({"readOnlyHint": false, "destructiveHint": false, "openWorldHint": true})
        );
        assert_eq!(hints(4)["destructiveHint"], json!(true));
        let declared: Vec<_> =
            tools.iter().map(|tool| tool.get("outputSchema").is_some()).collect();
        assert_eq!(declared, [true, true, false, false, false]);
        for tool in &tools {
            let input = tool["inputSchema"].to_string();
            assert!(!input.contains("side_effect") && !input.contains("parallel_safe"), "CAP-4");
        }
    }

    #[test]
    fn cap_2_builtin_tools_carry_a_capability() {
        let listed: Value =
            serde_json::from_str(&tools_list(Operation::ALL, Requirement::default(), 5, "", true))
                .unwrap();
        let found: Vec<(&str, SideEffect)> = listed["tools"]
            .as_array()
            .unwrap()
            .iter()
            .map(|tool| {
                let annotations = serde_json::from_value(tool["annotations"].clone()).unwrap();
                (tool["name"].as_str().unwrap(), Capability::derive(annotations).side_effect)
            })
            .collect();
        let expected = [
            ("retrieve_tools", SideEffect::Read),
            ("describe_tool", SideEffect::Read),
            ("call_tool_read", SideEffect::Read),
            ("call_tool_write", SideEffect::Write),
            ("call_tool_destructive", SideEffect::Destructive),
            ("read_result", SideEffect::Read),
        ];
        assert_eq!(found, expected);
    }
}
