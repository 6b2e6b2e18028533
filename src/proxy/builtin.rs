//! Our own tools as `tools/list` shows them.
//!
//! Owns the texts an agent reads before its first call (FR-025), and the input schemas by setting: each word of them
//! costs every conversation. What the tools do is in [`super::retrieve`], [`super::describe`] and [`super::call`]; what
//! is said of the servers is [`super::overview`]'s.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::describe::DESCRIBE_TOOL;
use super::keeping::READ_RESULT;
use super::read_result;
use super::retrieve::{Detail, MAX_LIMIT, RETRIEVE_TOOLS};
use crate::intent::stated::MAX_REASON_CHARS;
use crate::intent::{Operation, Requirement};
use crate::tool::{Annotations, Capability};

/// The result of `tools/list`: one JSON object in one line. `overview` is what is said of the servers, or empty;
/// `read_result` is there where results are kept.
#[must_use]
pub fn tools_list(
    requirement: Requirement,
    tools_limit: usize,
    overview: &str,
    keeps_results: bool,
) -> String {
    let calls = Operation::ALL.map(|variant| call_tool(variant, requirement));
    let finding = [retrieve_tools(tools_limit, overview), describe_tool()];
    let tools = finding.into_iter().chain(calls).chain(keeps_results.then(read_result));
    let tools: Vec<Value> = tools.collect();
    json!({"tools": tools}).to_string()
}

/// The input schema of the call tool of `variant`, for where else a call is described.
#[must_use]
pub fn call_schema(variant: Operation, requirement: Requirement) -> Value {
    let mut tool = call_tool(variant, requirement);
    tool.get_mut("inputSchema").map(Value::take).unwrap_or_default()
}

/// The capability of one of our own tools (CAP-2), for where capabilities are shown.
#[must_use]
pub fn capability(name: &str) -> Option<Capability> {
    let annotations = match Operation::of_tool(name) {
        Some(variant) => annotations(variant),
        None if [RETRIEVE_TOOLS, DESCRIBE_TOOL, READ_RESULT].contains(&name) => {
            annotations(Operation::Read)
        }
        None => return None,
    };
    Some(Capability::derive(annotations))
}

fn annotations(variant: Operation) -> Annotations {
    let (read_only, destructive) = match variant {
        Operation::Read => (true, false),
        Operation::Write => (false, false),
        Operation::Destructive => (false, true),
    };
    Annotations {
        read_only_hint: Some(read_only),
        // Of a tool that only reads, the other hint says nothing.
        destructive_hint: (!read_only).then_some(destructive),
        idempotent_hint: None,
        open_world_hint: Some(true),
        ..Annotations::default()
    }
}

/// What it reads was read by another tool, which said so then.
fn read_result() -> Value {
    let mut tool = read_result::described();
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
        "description": "One tool whole: description, schemas and an example call. With args it \
            says what a call with them would come to, without calling: policy, approval and what \
            is wrong with the arguments.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "description": "server:tool"},
                "args": {"type": "object"},
                "operation": {
                    "type": "string",
                    "enum": Operation::ALL.map(Operation::as_str),
                    "description": "Default: that of call_with.",
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

/// Of the tools that only tell of others: everything they read is the proxy's own.
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
            // Infallible: a String takes everything.
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
    // Either form of the intent will do. A schema could say so by an `anyOf` beside `properties`, which clients of more
    // than one model cannot send; so that `required` names neither.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::compile::compile;
    use crate::schema::judge::{JudgeScratch, Verdict};
    use crate::tool::SideEffect;

    fn listed(requirement: Requirement) -> Vec<Value> {
        let list = tools_list(requirement, 15, "", false);
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
    fn read_result_is_listed_where_results_are_kept() {
        let list = tools_list(Requirement::Required, 15, "", true);
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
    fn fr_025_the_descriptions_say_which_variant_is_for_what() {
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
    fn fr_006_the_published_schema_follows_the_setting() {
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
    fn fr_005_what_the_published_schema_lets_pass_is_what_is_accepted() {
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
                let mut scratch = crate::json::tape::Scratch::new();
                let read = crate::intent::CallArguments::parse(&raw, None, &mut scratch);
                let settings = crate::intent::Settings::default();
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
    fn the_servers_are_named_where_an_agent_searches() {
        let list =
            tools_list(Requirement::Required, 15, "Connected servers: github (issue).", false);
        let list: Value = serde_json::from_str(&list).unwrap();
        let description = list["tools"][0]["description"].as_str().unwrap();
        assert!(
            description.ends_with("variant. Connected servers: github (issue)."),
            "{description}"
        );
    }

    #[test]
    fn our_tools_are_annotated_and_declare_what_has_a_fixed_shape() {
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
    fn cap_2_our_own_tools_carry_a_capability() {
        let side_effect = |name| capability(name).map(|capability| capability.side_effect);
        assert_eq!(side_effect("retrieve_tools"), Some(SideEffect::Read));
        assert_eq!(side_effect("describe_tool"), Some(SideEffect::Read));
        assert_eq!(side_effect("read_result"), Some(SideEffect::Read));
        assert_eq!(side_effect("call_tool_read"), Some(SideEffect::Read));
        assert_eq!(side_effect("call_tool_write"), Some(SideEffect::Write));
        assert_eq!(side_effect("call_tool_destructive"), Some(SideEffect::Destructive));
        assert_eq!(side_effect("call_tool"), None);
    }
}
