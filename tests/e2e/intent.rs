//! Intent checks over MCP: permitted combinations of caller, tool and intent (FR-001..025, FR-042, CAP-1..5), and the records
//! of refusals.

use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::harness::{Client, Proxy, error_text, stub_stdio, until};

const WORDS: [&str; 3] = ["read", "write", "destructive"];

/// Tools of the stub, by their annotations.
const READ_ONLY: &str = "s:read_item";
const DESTRUCTIVE: &str = "s:delete_item";
const BOTH: &str = "s:both_hints";
const NEITHER: &str = "s:write_item";
const NONE: &str = "s:no_hints";

/// `operation_type: required`, the default.
fn required() -> &'static Proxy {
    static PROXY: OnceLock<Proxy> = OnceLock::new();
    PROXY.get_or_init(|| Proxy::for_all(json!({"mcpServers": {"s": stub_stdio(&[])}})))
}

fn inferred() -> &'static Proxy {
    static PROXY: OnceLock<Proxy> = OnceLock::new();
    PROXY.get_or_init(|| {
        Proxy::for_all(json!({
            "mcpServers": {"s": stub_stdio(&[])},
            "intent_declaration": {"operation_type": "inferred"},
        }))
    })
}

/// Text of a refusal; `None` if the call was answered.
fn refusal(result: &Value) -> Option<String> {
    match result.get("isError") {
        None => {
            assert_eq!(result["structuredContent"]["value"], 7, "{result}");
            None
        }
        Some(_) => Some(error_text(result).to_owned()),
    }
}

/// The three forms of an intent with this operation type.
fn forms(word: &str) -> [Value; 3] {
    [
        json!({"intent": {"operation_type": word}}),
        json!({"intent_operation_type": word}),
        json!({"intent": json!({"operation_type": word}).to_string()}),
    ]
}

fn with(mut arguments: Value, more: &Value) -> Value {
    let members = more.as_object().unwrap().clone();
    arguments.as_object_mut().unwrap().extend(members);
    arguments
}

#[test]
fn fr_006_to_020_intent_matrix_holds_in_both_settings_and_every_form() {
    let marked = |tool: &str| {
        Some(format!("Tool '{tool}' is marked destructive by server, use call_tool_destructive"))
    };
    let mut rows = Vec::new();
    for tool in [READ_ONLY, NEITHER, NONE] {
        rows.push(("read", "read", tool, None));
        rows.push(("write", "write", tool, None));
    }
    for tool in [DESTRUCTIVE, BOTH] {
        rows.push(("read", "read", tool, marked(tool)));
        rows.push(("write", "write", tool, marked(tool)));
    }
    for tool in [READ_ONLY, NEITHER, NONE, DESTRUCTIVE, BOTH] {
        rows.push(("destructive", "destructive", tool, None));
        for variant in WORDS {
            for stated in WORDS.into_iter().filter(|stated| *stated != variant) {
                let text = format!(
                    "Intent mismatch: tool is call_tool_{variant} but intent declares {stated}"
                );
                rows.push((variant, stated, tool, Some(text)));
            }
            let text =
                "Invalid intent.operation_type 'unknown': must be read, write, or destructive";
            rows.push((variant, "unknown", tool, Some(text.to_owned())));
        }
    }
    for (proxy, setting) in [(required(), "required"), (inferred(), "inferred")] {
        let mut client = proxy.client();
        for (variant, stated, tool, expected) in &rows {
            for intent in forms(stated) {
                let arguments = with(json!({"name": tool}), &intent);
                let result = client.tool(&format!("call_tool_{variant}"), arguments);
                assert_eq!(&refusal(&result), expected, "{setting} {variant} {tool} {intent}");
            }
        }
    }
}

#[test]
fn fr_006_to_013_missing_operation_type_is_refused_or_inferred() {
    let reason_only = [
        json!({"intent": {"reason": "because"}}),
        json!({"intent": {}}),
        json!({"intent": {"operation_type": null}}),
        json!({"intent_reason": "because"}),
        json!({"intent": "{\"reason\":\"because\"}"}),
        json!({"intent": {"intent_reason": "because"}}),
    ];
    let nothing = [json!({}), json!({"intent": null})];
    let mut client = required().client();
    for variant in WORDS {
        let tool = format!("call_tool_{variant}");
        for intent in &nothing {
            let result = client.tool(&tool, with(json!({"name": NONE}), intent));
            let expected = format!("intent parameter is required for call_tool_{variant}");
            assert_eq!(error_text(&result), expected, "{intent}");
        }
        for intent in &reason_only {
            let result = client.tool(&tool, with(json!({"name": NONE}), intent));
            assert_eq!(error_text(&result), "intent.operation_type is required", "{intent}");
        }
    }
    let mut client = inferred().client();
    for variant in WORDS {
        for intent in nothing.iter().chain(&reason_only) {
            let tool = format!("call_tool_{variant}");
            let result = client.tool(&tool, with(json!({"name": NONE}), intent));
            assert_eq!(refusal(&result), None, "{variant} {intent}");
        }
    }
    let records = client.records(inferred(), "type=tool_call&intent_type=destructive");
    assert_eq!(records.len(), 8, "an inferred type can be queried like a stated one");
}

#[test]
fn fr_015_inferred_operation_type_grants_no_access() {
    let mut client = inferred().client();
    let result = client.tool("call_tool_read", json!({"name": DESTRUCTIVE}));
    assert_eq!(
        error_text(&result),
        "Tool 's:delete_item' is marked destructive by server, use call_tool_destructive"
    );
}

#[test]
fn fr_009_fr_010_other_fields_of_the_intent_are_validated() {
    let long = "é".repeat(1000);
    let too_long = "é".repeat(1001);
    let sensitivity = |word: &str| {
        let known = "must be public, internal, private, or unknown";
        Some(format!("Invalid intent.data_sensitivity '{word}': {known}"))
    };
    let length = Some("intent.reason exceeds maximum length of 1000 characters".to_owned());
    let rows = [
        (json!({"data_sensitivity": "public"}), None),
        (json!({"data_sensitivity": "internal"}), None),
        (json!({"data_sensitivity": "private"}), None),
        (json!({"data_sensitivity": "unknown"}), None),
        (json!({"data_sensitivity": "secret"}), sensitivity("secret")),
        (json!({"data_sensitivity": "Public"}), sensitivity("Public")),
        (json!({"reason": ""}), None),
        (json!({"reason": long}), None),
        (json!({"reason": too_long}), length),
    ];
    for proxy in [required(), inferred()] {
        let mut client = proxy.client();
        for (fields, expected) in &rows {
            let object = with(json!({"operation_type": "read"}), fields);
            let mut flat = json!({"name": READ_ONLY, "intent_operation_type": "read"});
            for (field, value) in fields.as_object().unwrap() {
                flat[format!("intent_{field}")] = value.clone();
            }
            let arguments = json!({"name": READ_ONLY, "intent": object});
            assert_eq!(&refusal(&client.tool("call_tool_read", arguments)), expected, "{fields}");
            assert_eq!(&refusal(&client.tool("call_tool_read", flat)), expected, "{fields}");
        }
    }
}

#[test]
fn both_forms_at_once_must_agree_field_by_field() {
    let mut client = required().client();
    let object = json!({"operation_type": "read", "reason": "a"});
    for (flat, agrees) in [
        (json!({"intent_operation_type": "read"}), true),
        (json!({"intent_reason": "a"}), true),
        (json!({"intent_data_sensitivity": "public"}), true),
        (json!({"intent_operation_type": "write"}), false),
        (json!({"intent_reason": "b"}), false),
    ] {
        let arguments = with(json!({"name": READ_ONLY, "intent": object}), &flat);
        let result = client.tool("call_tool_read", arguments);
        assert_eq!(refusal(&result).is_none(), agrees, "{flat}: {result}");
    }
    let nested = json!({"intent_operation_type": "read", "intent_reason": "a"});
    let result = client.tool("call_tool_read", json!({"name": READ_ONLY, "intent": nested}));
    assert_eq!(refusal(&result), None, "an object that nests the flat names");
}

#[test]
fn unknown_fields_of_the_intent_are_refused_by_name() {
    for proxy in [required(), inferred()] {
        let mut client = proxy.client();
        for intent in [
            json!({"operation_type": "read", "operation_tpye": "write"}),
            json!({"operation_type": "read", "sensitivity": "private"}),
        ] {
            let name = intent.as_object().unwrap().keys().find(|k| *k != "operation_type").unwrap();
            let text = json!({"name": READ_ONLY, "intent": intent.to_string()});
            let object = json!({"name": READ_ONLY, "intent": intent});
            for arguments in [object, text] {
                let result = client.tool("call_tool_read", arguments);
                assert!(error_text(&result).contains(&format!("'{name}'")), "{result}");
            }
        }
        for intent in [json!(7), json!([]), json!("no object"), json!({"operation_type": 7})] {
            let arguments = json!({"name": READ_ONLY, "intent": intent});
            let result = client.tool("call_tool_read", arguments);
            assert!(error_text(&result).contains("intent"), "{intent}: {result}");
        }
    }
}

#[test]
fn fr_004_call_tool_is_refused_and_names_its_replacements() {
    let mut client = required().client();
    let message = client.tool("call_tool", json!({"name": READ_ONLY}));
    assert_eq!(
        message["error"]["message"],
        "Tool 'call_tool' not found. Use call_tool_read, call_tool_write, or call_tool_destructive with matching intent.operation_type. See retrieve_tools for annotations and recommendations."
    );
    assert_eq!(message["error"]["code"], -32602);
}

#[test]
fn act_1_calls_of_unknown_own_tools_and_unreadable_calls_are_recorded() {
    let mut client = required().client();
    client.tool("call_tool", json!({}));
    client.tool("delete_everything", json!({}));
    client.ask("tools/call", json!({"name": 7}));
    let records = client.records(required(), "type=tool_call&status=rejected");
    let named: Vec<_> = records.iter().map(|record| &record["tool_name"]).collect();
    assert_eq!(named, ["", "delete_everything", "call_tool"], "{records:?}");
    assert!(records.iter().all(|record| record["error_message"] != ""), "{records:?}");
}

#[test]
fn fr_005_unknown_servers_and_tools_are_recorded_and_named_in_the_result() {
    let mut client = required().client();
    for (tool, named) in
        [("nowhere:read_item", "'nowhere'"), ("s:no_such_tool", "'s:no_such_tool'")]
    {
        let result = client.read(tool, json!({}));
        let text = error_text(&result);
        assert!(text.contains(named) && text.contains("not found"), "{text}");
        let records = client.records(required(), "type=tool_call");
        assert_eq!(records[0]["status"], "error");
        // The record does not contain the advice for the agent.
        let (reported, advice) =
            text.split_at(text.find(". Use retrieve_tools").unwrap_or(text.len()));
        assert_eq!((&records[0]["error_message"], advice.is_empty()), (&json!(reported), false));
        let (server, name) = tool.split_once(':').unwrap();
        assert_eq!(
            (&records[0]["server_name"], &records[0]["tool_name"]),
            (&json!(server), &json!(name))
        );
    }
}

#[test]
fn fr_001_to_003_and_025_own_tools_are_described() {
    let opening = [
        (
            "retrieve_tools",
            "Search for tools across all upstream servers. Results include annotations (readOnlyHint, destructiveHint) and recommended call_with variant. Use call_tool_read for read-only operations, call_tool_write for modifications, call_tool_destructive for deletions. Intent must match tool variant.",
        ),
        (
            "call_tool_read",
            "Execute a read-only tool discovered via retrieve_tools. Use for operations that query data without modifying state. Requires intent.operation_type='read'. Will be rejected if server marks tool as destructive.",
        ),
        (
            "call_tool_write",
            "Execute a state-modifying tool discovered via retrieve_tools. Use for operations that create or update resources. Requires intent.operation_type='write'. Will be rejected if server marks tool as destructive.",
        ),
        (
            "call_tool_destructive",
            "Execute a destructive tool discovered via retrieve_tools. Use for operations that delete or permanently modify resources. Requires intent.operation_type='destructive'. Most permissive - allowed regardless of server annotations.",
        ),
    ];
    let list =
        |proxy: &Proxy| proxy.client().ask("tools/list", json!({}))["result"]["tools"].clone();
    let tools = list(required());
    let names: Vec<&str> =
        tools.as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    let [finding, calling @ ..] = opening.map(|(name, _)| name);
    assert_eq!(names, [&[finding, "describe_tool"][..], &calling].concat());
    let described = |name: &str| tools.as_array().unwrap().iter().find(|it| it["name"] == name);
    for (name, text) in opening {
        let tool = described(name).unwrap();
        assert!(tool["description"].as_str().unwrap().starts_with(text), "{tool}");
        let schema = tool["inputSchema"].to_string();
        assert!(!schema.contains("side_effect") && !schema.contains("parallel_safe"), "CAP-4");
    }
    let intent = |tools: &Value| tools[2]["inputSchema"]["properties"]["intent"].clone();
    assert_eq!(tools[2]["inputSchema"]["required"], json!(["name"]), "either form of the intent");
    assert_eq!(intent(&tools)["required"], json!(["operation_type"]));
    assert_eq!(tools[2]["annotations"]["readOnlyHint"], true);
    assert_eq!(tools[3]["annotations"]["readOnlyHint"], false);
    assert_eq!(tools[3]["annotations"]["destructiveHint"], false);
    assert_eq!(tools[4]["annotations"]["destructiveHint"], true);
    for call_tool in &tools.as_array().unwrap()[2..] {
        assert_eq!(call_tool["annotations"]["openWorldHint"], true);
        assert!(call_tool.get("outputSchema").is_none(), "it forwards another tool's result");
    }
    for finding in &tools.as_array().unwrap()[..2] {
        assert!(finding.get("outputSchema").is_some(), "{finding}");
        assert_eq!(finding["annotations"], json!({"readOnlyHint": true, "openWorldHint": false}));
    }
    let tools = list(inferred());
    assert_eq!(intent(&tools)["required"], json!([]), "the schema follows the setting");
    assert!(!tools[2]["description"].as_str().unwrap().contains("Requires"));
}

/// Result of `retrieve_tools` for `tool`.
fn found(client: &mut Client, tool: &str) -> Value {
    let query = tool.split_once(':').unwrap().1;
    let asked = json!({"query": query, "limit": 100, "detail": "full"});
    let result = client.tool("retrieve_tools", asked);
    let tools = result["structuredContent"]["tools"].as_array().unwrap().clone();
    tools.into_iter().find(|shown| shown["name"] == tool).unwrap_or_else(|| panic!("no {tool}"))
}

#[test]
fn fr_021_to_024_and_cap_1_cap_2_search_results_name_the_call() {
    let mut client = required().client();
    let result = client.tool("retrieve_tools", json!({"query": "delete item"}));
    let content = &result["structuredContent"];
    let text = result["content"][0]["text"].as_str().unwrap();
    assert!(text.starts_with("s:delete_item("), "{text}");
    assert_eq!(content["tools"][0]["name"], DESTRUCTIVE);
    assert_eq!(
        content["tools"].as_array().unwrap().len(),
        content["total"].as_u64().unwrap() as usize
    );
    assert!(!text.contains(" that fit."), "all of them are there: {text}");
    let one = client.tool("retrieve_tools", json!({"query": "delete item", "limit": 1}));
    let (of_one, total) = (&one["structuredContent"], &content["total"]);
    assert!(total.as_u64().unwrap() > 1, "{content}");
    assert_eq!((of_one["tools"].as_array().unwrap().len(), &of_one["total"]), (1, total));
    let text = one["content"][0]["text"].as_str().unwrap();
    assert!(text.contains(&format!("\n1 of {total} that fit.\n")), "{text}");
    assert_eq!(
        content["usage_instructions"],
        "Use call_tool_read for read-only operations, call_tool_write for modifications, call_tool_destructive for deletions. Intent must match tool variant."
    );
    for (tool, annotations, call_with, side_effect, idempotent) in [
        (READ_ONLY, json!({"readOnlyHint": true}), "call_tool_read", "read", true),
        (
            NEITHER,
            json!({"readOnlyHint": false, "destructiveHint": false}),
            "call_tool_write",
            "write",
            false,
        ),
        (
            DESTRUCTIVE,
            json!({"destructiveHint": true}),
            "call_tool_destructive",
            "destructive",
            false,
        ),
        (
            BOTH,
            json!({"readOnlyHint": true, "destructiveHint": true}),
            "call_tool_destructive",
            "destructive",
            false,
        ),
        (NONE, Value::Null, "call_tool_write", "write", false),
        (
            "s:upsert_item",
            json!({"readOnlyHint": false, "destructiveHint": false, "idempotentHint": true}),
            "call_tool_write",
            "write",
            true,
        ),
    ] {
        let shown = found(&mut client, tool);
        let capability = json!({"side_effect": side_effect, "parallel_safe": true,
            "approval": "auto", "idempotent": idempotent});
        assert_eq!(shown["annotations"], annotations, "{tool}");
        assert_eq!(shown["call_with"], call_with, "{tool}");
        assert_eq!(shown["capability"], capability, "{tool}");
        assert_eq!(shown["server"], "s");
        assert!(!shown["inputSchema"].to_string().contains("side_effect"), "CAP-4");
    }
}

#[test]
fn cap_3_cap_5_operator_settings_override_the_servers_annotations() {
    let mut s = stub_stdio(&[]);
    s["capabilities"] = json!({
        "*": {"side_effect": "write"},
        "read_*": {"side_effect": "destructive"},
        "delete_item": {"side_effect": "read"},
        "both_hints": {"side_effect": "none"},
        "plain": {"approval": "required"},
        "no_hints": {"parallel_safe": true},
    });
    let approval = json!({"timeout": "1s"});
    let proxy = Proxy::with(json!({"mcpServers": {"s": s}, "approval": approval}));
    let mut client = proxy.client();
    let marked = |tool: &str, word: &str| {
        Some(format!("Tool '{tool}' is marked {word} by operator, use call_tool_{word}"))
    };
    let approval = Some("Tool 's:plain': approval timed out after 1s".to_owned());
    for (variant, tool, expected) in [
        ("read", READ_ONLY, marked(READ_ONLY, "destructive")),
        ("write", READ_ONLY, marked(READ_ONLY, "destructive")),
        ("destructive", READ_ONLY, None),
        ("read", DESTRUCTIVE, None),
        ("write", DESTRUCTIVE, None),
        ("read", BOTH, None),
        ("read", NEITHER, marked(NEITHER, "write")),
        ("write", NEITHER, None),
        ("read", "s:plain", marked("s:plain", "write")),
        ("write", "s:plain", approval),
        ("read", NONE, marked(NONE, "write")),
    ] {
        let result = client.call(variant, tool, json!({}));
        assert_eq!(refusal(&result), expected, "{variant} {tool}");
    }
    let shown = found(&mut client, DESTRUCTIVE);
    assert_eq!(shown["annotations"], json!({"destructiveHint": true}), "both are shown");
    assert_eq!(shown["capability"]["side_effect"], "read");
    assert_eq!(shown["call_with"], "call_tool_read");
    assert_eq!(found(&mut client, READ_ONLY)["call_with"], "call_tool_destructive");
}

// FR-041
#[test]
fn fr_042_without_strict_validation_a_mismatch_is_warned_about_and_sent() {
    let mut s = stub_stdio(&[]);
    s["capabilities"] = json!({"read_item": {"side_effect": "destructive"}});
    let proxy = Proxy::with(json!({
        "mcpServers": {"s": s},
        "intent_declaration": {"strict_server_validation": false},
    }));
    let mut client = proxy.client();
    assert_eq!(refusal(&client.call("read", DESTRUCTIVE, json!({}))), None);
    let records = client.records(&proxy, "");
    assert_eq!(records.len(), 2, "{records:?}");
    let [decision, call] = [&records[0], &records[1]];
    assert_eq!((&call["type"], &call["status"]), (&json!("tool_call"), &json!("success")));
    assert_eq!(
        (&decision["type"], &decision["status"]),
        (&json!("policy_decision"), &json!("warning"))
    );
    assert_eq!(decision["parent_id"], call["id"]);
    assert_eq!(decision["metadata"]["policy"], "intent");
    proxy.assert_logged("marked destructive by server");

    let result = client.call("read", READ_ONLY, json!({}));
    assert!(
        error_text(&result).contains("by operator"),
        "a marking by the operator is no claim of the server"
    );
    let arguments = json!({"name": NONE, "intent": {"operation_type": "write"}});
    let result = client.tool("call_tool_read", arguments);
    assert!(
        error_text(&result).starts_with("Intent mismatch"),
        "variant and intent are still compared"
    );
}

#[test]
fn fr_043_read_of_an_unannotated_tool_is_warned_about_until_it_is_annotated() {
    let proxy = Proxy::with(json!({
        "mcpServers": {"s": stub_stdio(&["--only", "read_item,write_item,no_hints,plain"])},
    }));
    let mut client = proxy.client();
    assert_eq!(refusal(&client.call("read", READ_ONLY, json!({}))), None);
    assert_eq!(client.records(&proxy, "").len(), 1, "an annotated tool costs no record");
    assert_eq!(refusal(&client.call("read", NONE, json!({}))), None);
    let decision = &client.records(&proxy, "")[0];
    assert_eq!(
        (&decision["type"], &decision["status"], &decision["metadata"]["policy"]),
        (&json!("policy_decision"), &json!("warning"), &json!("intent"))
    );
    let warned = format!(
        "Tool '{NONE}' is not marked read-only and was called by call_tool_read, call_tool_write is recommended"
    );
    assert_eq!(decision["metadata"]["reason"], warned);
    let warnings = proxy.cli(&["activity", "list", "--status", "warning"]).stdout;
    let [_, row] = warnings.lines().collect::<Vec<_>>()[..] else { panic!("one row: {warnings}") };
    let shown =
        ["tool_call", "no_hints", "success", "warning: Tool 's:no_hints' is not marked read-only"];
    assert!(shown.iter().all(|word| row.contains(word)), "the warned call: {row}");
    let both = ["activity", "list", "--status", "success,warning", "--tool", "no_hints"];
    let both = proxy.cli(&both).stdout;
    assert_eq!(both.lines().count(), 2, "header, and the call once: {both}");

    let doctor = proxy.cli(&["doctor"]).stdout;
    let finding = "s: 3 tools marked neither read-only nor destructive: no_hints, plain, write_item; a read of them is \
         sent with a warning";
    assert!(doctor.contains(finding), "{doctor}");
    assert!(doctor.contains("mcpproxy tools annotate s"), "{doctor}");
    let asked = proxy.cli(&["tools", "annotate", "s"]);
    assert!(asked.code == Some(2) && asked.stderr.contains("--read"), "{}", asked.stderr);
    let written = proxy.cli(&[
        "tools",
        "annotate",
        "s",
        "--read",
        "no_hints",
        "--write",
        "plain,write_item",
        "--json",
    ]);
    assert_eq!(written.code, Some(0), "{}", written.stderr);
    let annotated = json!({"no_hints": "read", "plain": "write", "write_item": "write"});
    assert_eq!(written.json()["annotated"], annotated, "{}", written.stdout);
    let doctor = proxy.cli(&["doctor"]).stdout;
    assert!(!doctor.contains("marked neither"), "{doctor}");
    let before = client.records(&proxy, "").len();
    assert_eq!(refusal(&client.call("read", NONE, json!({}))), None);
    assert_eq!(client.records(&proxy, "").len(), before + 1, "no warning any more");
    let result = client.call("read", "s:plain", json!({}));
    assert!(error_text(&result).contains("is marked write by operator"), "{result}");

    // An answer can be corrected; an annotation of the server cannot.
    let corrected = proxy.cli(&["tools", "annotate", "s", "--read", "plain"]);
    assert!(corrected.stdout.contains("  plain: write → read"), "{}", corrected.stdout);
    assert_eq!(refusal(&client.call("read", "s:plain", json!({}))), None);
    let hinted = proxy.cli(&["tools", "annotate", "s", "--write", "read_item"]);
    let words = "'read_item' cannot be annotated: it is no tool of 's', or the server annotates it itself; tools without annotations: none; annotated in the config: no_hints, plain";
    assert!(hinted.code == Some(1) && hinted.stderr.contains(words), "{}", hinted.stderr);
}

#[test]
fn fr_043_annotate_reports_a_server_whose_tools_are_not_known() {
    let failing = json!({"command": "sh", "args": ["-c", "exit 1"]});
    let proxy = Proxy::with(json!({"mcpServers": {"broken": failing}}));
    let state = || proxy.api("servers")["servers"][0]["state"] == "failed";
    until("the server has failed", || state().then_some(()));
    let asked = proxy.cli(&["tools", "annotate", "broken", "--read", "x"]);
    let words = "the tools of 'broken' are not known, the server is failed: `mcpproxy upstream restart broken`";
    assert!(asked.code == Some(1) && asked.stderr.contains(words), "{}", asked.stderr);
}

#[test]
fn fr_043_unannotated_write_refuses_the_read_variant() {
    let proxy = Proxy::with(json!({
        "mcpServers": {"s": stub_stdio(&[])},
        "intent_declaration": {"unannotated": "write", "strict_server_validation": false},
    }));
    let mut client = proxy.client();
    let result = client.call("read", NONE, json!({}));
    assert_eq!(
        error_text(&result),
        format!("Tool '{NONE}' is not marked read-only, use call_tool_write")
    );
    let again = result["content"][1]["text"].as_str().unwrap();
    assert!(again.starts_with("Call again with call_tool_write"), "{again}");
    assert_eq!(refusal(&client.call("write", NONE, json!({}))), None);
    let command = proxy.cli(&["call", "tool-read", NONE]);
    let hint = "(here: mcpproxy call tool-write)";
    assert!(command.code == Some(1) && command.stderr.contains(hint), "{}", command.stderr);
}

#[test]
fn act_1_needless_write_is_allowed_and_warned_about_once() {
    let mut client = required().client();
    assert_eq!(refusal(&client.call("write", READ_ONLY, json!({}))), None);
    let records = client.records(required(), "");
    let kinds: Vec<_> = records.iter().map(|r| (r["type"].clone(), r["status"].clone())).collect();
    assert_eq!(
        kinds,
        [(json!("policy_decision"), json!("warning")), (json!("tool_call"), json!("success"))]
    );
    assert_eq!(records[0]["metadata"]["policy"], "intent");
}

#[test]
fn act_1_fr_031_refused_calls_are_recorded_with_the_intent_as_stated() {
    let full = json!({"operation_type": "read", "data_sensitivity": "private", "reason": "why"});
    let rows = [
        ("call_tool_read", json!({"intent": full}), full.clone()),
        (
            "call_tool_write",
            json!({"intent_operation_type": "read", "intent_reason": "why"}),
            json!({"operation_type": "read", "reason": "why"}),
        ),
        (
            "call_tool_read",
            json!({"intent": {"operation_type": "unknown"}}),
            json!({"operation_type": "unknown"}),
        ),
        (
            "call_tool_read",
            json!({"intent": {"operation_type": "read", "odd": [1]}}),
            json!({"operation_type": "read", "odd": [1]}),
        ),
        ("call_tool_read", json!({}), Value::Null),
    ];
    for (variant, intent, stated) in rows {
        let mut client = required().client();
        let arguments = with(json!({"name": DESTRUCTIVE, "args": {"size": 1}}), &intent);
        let result = client.tool(variant, arguments);
        let text = error_text(&result).to_owned();
        let records = client.records(required(), "");
        assert_eq!(records.len(), 2, "{intent}: {records:?}");
        let [decision, call] = [&records[0], &records[1]];
        assert_eq!((&call["type"], &call["status"]), (&json!("tool_call"), &json!("rejected")));
        assert_eq!(call["error_message"], text);
        assert_eq!(call["arguments"], json!({"size": 1}));
        assert_eq!(call["metadata"]["tool_variant"], variant);
        assert_eq!(call["metadata"]["client_name"], "e2e");
        assert_eq!(decision["type"], "policy_decision");
        assert_eq!(decision["status"], "blocked");
        assert_eq!(decision["parent_id"], call["id"]);
        assert_eq!(decision["metadata"]["decision"], "blocked");
        assert_eq!(decision["metadata"]["policy"], "intent");
        assert_eq!(decision["metadata"]["reason"], text);
        for record in [call, decision] {
            assert_eq!(record.get("intent").cloned().unwrap_or_default(), stated, "{record}");
            assert_eq!(record["server_name"], "s");
            assert_eq!(record["tool_name"], "delete_item");
            assert_eq!(record["session_id"], client.session.as_str());
            assert_eq!(record["request_id"], call["request_id"]);
        }
    }
}

#[test]
fn fr_031_to_033_whole_intent_of_a_call_is_stored_and_queried_by_operation_type() {
    let mut client = required().client();
    let stated = json!({"operation_type": "write", "data_sensitivity": "internal", "reason": "r"});
    let arguments = json!({"name": NEITHER, "args_json": "{\"size\": 1.0}", "intent": stated});
    assert_eq!(refusal(&client.tool("call_tool_write", arguments)), None);
    assert_eq!(client.records(required(), "intent_type=read").len(), 0);
    let records = client.records(required(), "intent_type=write");
    assert_eq!(records.len(), 1);
    let id = records[0]["id"].as_str().unwrap();
    let shown = required().api(&format!("activity/{id}"))["activity"].clone();
    assert_eq!(shown["intent"], stated);
    assert_eq!(shown["metadata"]["intent"], stated);
    assert_eq!(shown["metadata"]["tool_variant"], "call_tool_write");
    assert_eq!(shown["arguments"], json!({"size": 1.0}));
    assert_eq!(shown["status"], "success");
    assert_eq!(shown["source"], "mcp");
}
