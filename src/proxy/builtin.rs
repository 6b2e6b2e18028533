//! Our own tools as `tools/list` shows them.
//!
//! Owns the texts an agent reads before its first call (FR-025), and the input schemas by setting.
//! What the tools do is in [`super::retrieve`] and [`super::call`].

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::read_result::{self, READ_RESULT};
use super::retrieve::{DETAILS, MAX_LIMIT, RETRIEVE_TOOLS};
use crate::intent::stated::MAX_REASON_CHARS;
use crate::intent::{Operation, Requirement};
use crate::tool::{Annotations, Capability};

/// The result of `tools/list`: one JSON object in one line. `read_result` is there where results are kept.
#[must_use]
pub fn tools_list(requirement: Requirement, tools_limit: usize, keeps_results: bool) -> String {
    let calls = Operation::ALL.map(|variant| call_tool(variant, requirement));
    let tools = [retrieve_tools(tools_limit)].into_iter().chain(calls);
    let tools: Vec<Value> = tools.chain(keeps_results.then(read_result)).collect();
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
        None if [RETRIEVE_TOOLS, READ_RESULT].contains(&name) => annotations(Operation::Read),
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
    let annotations = Annotations { open_world_hint: Some(false), ..annotations(Operation::Read) };
    if let Some(members) = tool.as_object_mut() {
        members.insert("annotations".to_owned(), json!(annotations));
    }
    tool
}

fn retrieve_tools(tools_limit: usize) -> Value {
    json!({
        "name": RETRIEVE_TOOLS,
        "title": "Find tools",
        "description": "Search for tools across all upstream servers. Results include annotations \
            (readOnlyHint, destructiveHint) and recommended call_with variant. Use call_tool_read \
            for read-only operations, call_tool_write for modifications, call_tool_destructive for \
            deletions. Intent must match tool variant.",
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
                    "description": "Most tools to return.",
                },
                "detail": {
                    "type": "string",
                    "enum": DETAILS,
                    "default": "full",
                    "description": "compact leaves out the input schemas.",
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
                            "name": {"type": "string", "description": "As call_tool_* takes it."},
                            "server": {"type": "string"},
                            "title": {"type": "string"},
                            "description": {"type": "string"},
                            "inputSchema": {"type": "object"},
                            "annotations": {"type": "object"},
                            "capability": {
                                "type": "object",
                                "properties": {
                                    "side_effect": {
                                        "type": "string",
                                        "enum": ["none", "read", "write", "destructive"],
                                    },
                                    "parallel_safe": {"type": "boolean"},
                                    "approval": {
                                        "type": "string",
                                        "enum": ["auto", "suggest", "required"],
                                    },
                                    "idempotent": {"type": "boolean"},
                                },
                                "required":
                                    ["side_effect", "parallel_safe", "approval", "idempotent"],
                            },
                            "score": {"type": "number", "minimum": 0, "maximum": 1},
                            "call_with": {
                                "type": "string",
                                "enum": Operation::ALL.map(Operation::variant),
                            },
                        },
                        "required":
                            ["name", "server", "description", "capability", "score", "call_with"],
                    },
                },
                "query": {"type": "string"},
                "total": {"type": "integer", "minimum": 0},
                "usage_instructions": {"type": "string"},
            },
            "required": ["tools", "query", "total", "usage_instructions"],
        },
        // Everything it reads is the proxy's own.
        "annotations": Annotations { open_world_hint: Some(false), ..annotations(Operation::Read) },
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
    let (required, of_intent): (&[&str], &[&str]) = match requirement {
        Requirement::Required => {
            // Infallible: a String takes everything.
            let _ = write!(description, " Requires intent.operation_type='{word}'.");
            (&["name", "intent"], &["operation_type"])
        }
        Requirement::Inferred => (&["name"], &[]),
    };
    description.push(' ');
    description.push_str(last);
    let operation_type = json!({
        "type": "string",
        "enum": Operation::ALL.map(Operation::as_str),
        "description": format!("What the call does. Must be '{word}' for this tool."),
    });
    let data_sensitivity = json!({
        "type": "string",
        "enum": ["public", "internal", "private", "unknown"],
        "description": "How sensitive the data is that the call touches.",
    });
    let reason = json!({
        "type": "string",
        "maxLength": MAX_REASON_CHARS,
        "description": "Why the call is made.",
    });
    json!({
        "name": variant.variant(),
        "title": title,
        "description": description,
        "inputSchema": {
            "type": "object",
            "properties": {
                "name": {
                    "type": "string",
                    "description": "The tool to call as server:tool, as retrieve_tools gives it.",
                },
                "args_json": {
                    "type": "string",
                    "description": "The tool's arguments: a JSON object, as a string. Use this or \
                        args.",
                },
                "args": {"type": "object", "description": "The tool's arguments, as an object."},
                "intent": {
                    "type": "object",
                    "description": "What you are about to do.",
                    "properties": {
                        "operation_type": operation_type,
                        "data_sensitivity": data_sensitivity,
                        "reason": reason,
                    },
                    "required": of_intent,
                    "additionalProperties": false,
                },
                "intent_operation_type": flat(operation_type),
                "intent_data_sensitivity": flat(data_sensitivity),
                "intent_reason": flat(reason),
            },
            "required": required,
            "additionalProperties": false,
        },
        "annotations": annotations(variant),
    })
}

/// A field of the intent as a parameter of its own, for callers that cannot fill an object.
fn flat(mut field: Value) -> Value {
    if let Some(Value::String(description)) = field.get_mut("description") {
        description.push_str(" The same as in intent, for callers that cannot nest objects.");
    }
    field
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tool::SideEffect;

    fn listed(requirement: Requirement) -> Vec<Value> {
        let list: Value = serde_json::from_str(&tools_list(requirement, 15, false)).unwrap();
        list["tools"].as_array().unwrap().clone()
    }

    #[test]
    fn fr_001_to_004_three_call_tools_and_no_call_tool() {
        let names: Vec<_> =
            listed(Requirement::Required).iter().map(|tool| tool["name"].clone()).collect();
        assert_eq!(
            names,
            ["retrieve_tools", "call_tool_read", "call_tool_write", "call_tool_destructive"]
        );
    }

    #[test]
    fn read_result_is_listed_where_results_are_kept() {
        let list: Value =
            serde_json::from_str(&tools_list(Requirement::Required, 15, true)).unwrap();
        let tools = list["tools"].as_array().unwrap();
        assert_eq!(tools.len(), 5);
        let last = &tools[4];
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
        for (tool, text) in
            listed(Requirement::Required).iter().zip([retrieve, read, write, destructive])
        {
            assert!(tool["description"].as_str().unwrap().starts_with(text), "{tool}");
        }
        for (tool, word) in listed(Requirement::Inferred)[1..].iter().zip(Operation::ALL) {
            let text = tool["description"].as_str().unwrap();
            assert!(!text.contains("Requires"), "{text}");
            assert!(!text.contains("  ") && !text.contains(word.variant()), "{text}");
        }
    }

    #[test]
    fn fr_006_the_published_schema_follows_the_setting() {
        let [required, inferred] = [Requirement::Required, Requirement::Inferred].map(listed);
        assert_eq!(required[1]["inputSchema"]["required"], json!(["name", "intent"]));
        let intent = &required[1]["inputSchema"]["properties"]["intent"];
        assert_eq!(intent["required"], json!(["operation_type"]));
        assert_eq!(inferred[1]["inputSchema"]["required"], json!(["name"]));
        let intent = &inferred[1]["inputSchema"]["properties"]["intent"];
        assert_eq!(intent["required"], json!([]));
    }

    #[test]
    fn our_tools_are_annotated_and_declare_what_has_a_fixed_shape() {
        let tools = listed(Requirement::Required);
        let hints = |at: usize| &tools[at]["annotations"];
        assert_eq!(hints(1), &json!({"readOnlyHint": true, "openWorldHint": true}));
        assert_eq!(
            hints(2),
            &json!({"readOnlyHint": false, "destructiveHint": false, "openWorldHint": true})
        );
        assert_eq!(hints(3)["destructiveHint"], json!(true));
        let declared: Vec<_> =
            tools.iter().map(|tool| tool.get("outputSchema").is_some()).collect();
        assert_eq!(declared, [true, false, false, false]);
        for tool in &tools {
            let input = tool["inputSchema"].to_string();
            assert!(!input.contains("side_effect") && !input.contains("parallel_safe"), "CAP-4");
        }
    }

    #[test]
    fn cap_2_our_own_tools_carry_a_capability() {
        let side_effect = |name| capability(name).map(|capability| capability.side_effect);
        assert_eq!(side_effect("retrieve_tools"), Some(SideEffect::Read));
        assert_eq!(side_effect("read_result"), Some(SideEffect::Read));
        assert_eq!(side_effect("call_tool_read"), Some(SideEffect::Read));
        assert_eq!(side_effect("call_tool_write"), Some(SideEffect::Write));
        assert_eq!(side_effect("call_tool_destructive"), Some(SideEffect::Destructive));
        assert_eq!(side_effect("call_tool"), None);
    }
}
