//! Arguments validated before a call is sent (`input_validation`), and refusals from which an agent can correct its call.

use serde_json::{Value, json};

use crate::approvals::answer;
use crate::approvals_modern::waiting;
use crate::harness::{
    API_KEY, Client, Proxy, ask_modern, error_text, free_port, stub_stdio, until, write_private,
};

/// Parameters of `added_issue`.
fn issue() -> Value {
    json!({
        "type": "object",
        "additionalProperties": false,
        "required": ["owner", "title"],
        "properties": {
            "owner": {"type": "string", "description": "Who owns the repository"},
            "title": {"type": "string", "minLength": 2},
            "labels": {"type": "array", "items": {"$ref": "#/$defs/label"}},
            "state": {"enum": ["open", "closed"]},
            "milestone": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "due": {"oneOf": [{"type": "string", "pattern": "^\\d{4}"}, {"$ref": "#/$defs/span"}]},
            "meta": {"type": "object", "properties": {"deep": {"type": "object",
                "properties": {"count": {"type": "integer"}}}}},
        },
        "$defs": {
            "label": {"type": "string"},
            "span": {"type": "object", "required": ["from"],
                "properties": {"from": {"type": "string"}, "to": {"type": "string"}}},
        },
    })
}

fn tool(name: &str, schema: Value) -> Value {
    json!({"name": name, "description": "for the test", "inputSchema": schema,
        "annotations": {"readOnlyHint": true}})
}

/// A proxy for a stub with `tools`, `received`, `read_item`, `delete_item` and `both_hints`.
fn proxy_of(tools: &Value, more: Value, of_server: &Value) -> Proxy {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tools.json");
    write_private(&file, &tools.to_string());
    let only = "received,read_item,delete_item,both_hints";
    let mut entry = stub_stdio(&["--only", only, "--tools", file.to_str().unwrap()]);
    entry.as_object_mut().unwrap().extend(of_server.as_object().unwrap().clone());
    let mut config = more;
    config["mcpServers"]["s"] = entry;
    Proxy::unready(config, folder).ready()
}

fn one_tool(schema: Value) -> Proxy {
    proxy_of(&json!([tool("added_issue", schema)]), json!({}), &json!({}))
}

const TOOL: &str = "s:added_issue";

/// Last request to the server.
fn received(client: &mut Client) -> String {
    client.read("s:received", json!({})).to_string()
}

fn help(result: &Value) -> &str {
    result["content"][1]["text"].as_str().unwrap_or_else(|| panic!("no help: {result}"))
}

// INP-2
#[test]
fn each_invalid_place_is_named_with_the_expected_form_and_the_call_is_not_sent() {
    let proxy = one_tool(issue());
    let mut client = proxy.client();
    let fine = json!({"owner": "ada", "title": "tea"});
    let with = |more: Value| {
        let mut arguments = fine.clone();
        arguments.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        arguments
    };
    client.read(TOOL, fine.clone());
    let before = received(&mut client);
    assert!(before.contains("tea"), "{before}");
    for (arguments, cause, part) in [
        (
            with(json!({"owner": 7})),
            "/owner: expected string (got number)",
            r#"Schema of /owner: {"type":"string","description":"Who owns the repository"}"#,
        ),
        (json!({"owner": "marker"}), "/title: missing (required)", "Schema of /title: {"),
        (
            with(json!({"lables": ["marker"]})),
            "/lables: unknown (did you mean 'labels'?)",
            "Known in (root): owner, title, labels, ",
        ),
        (
            with(json!({"labels": ["marker", 2, "b"]})),
            "/labels/1: expected string (got number)",
            r#"Schema of /labels/1: {"type":"string"}"#,
        ),
        (
            with(json!({"meta": {"deep": {"count": "marker"}}})),
            "/meta/deep/count: expected integer (got string)",
            r#"Schema of /meta/deep/count: {"type":"integer"}"#,
        ),
        (
            with(json!({"milestone": "marker"})),
            "/milestone: expected integer or null (got string)",
            "Schema of /milestone: {\"anyOf\":",
        ),
        (
            with(json!({"due": {"to": "marker"}})),
            "/due/from: missing (required)",
            "Schema of /due/from: {\"type\":\"string\"}",
        ),
    ] {
        let result = client.read(TOOL, arguments.clone());
        let text = error_text(&result);
        let expected = format!("Arguments of '{TOOL}' do not fit: {cause}");
        assert_eq!(text, expected, "{arguments}");
        assert!(help(&result).contains(part), "{part}: {result}");
        let last = received(&mut client);
        assert!(!last.contains("marker"), "{last}");
    }
    let many = json!({"owner": 1, "titel": 2, "labels": 3});
    let result = client.read(TOOL, many);
    for place in ["/owner: ", "/titel: unknown (did you mean 'title'?)", "/labels: ", "/title: "] {
        assert!(error_text(&result).contains(place), "{result}");
    }
}

// INP-2
#[test]
fn possibly_valid_arguments_are_sent_and_recorded() {
    let proxy = one_tool(issue());
    let mut client = proxy.client();
    let doubtful = [
        json!({"owner": "a", "title": "marker", "state": "ajar"}),
        json!({"owner": "marker", "title": "x"}),
        json!({"owner": "a", "title": "marker", "due": "tomorrow"}),
    ];
    for arguments in &doubtful {
        let result = client.read(TOOL, arguments.clone());
        assert_eq!(result.get("isError"), None, "{arguments}: {result}");
        let last = received(&mut client);
        assert!(last.contains("marker"), "{last}");
    }
    let fine = [
        json!({"owner": "a", "title": "bb", "milestone": null, "due": "2026"}),
        json!({"owner": "a", "title": "bb", "milestone": 1.0, "due": {"from": "x", "more": 1}}),
        json!({"owner": "a", "title": "bb", "labels": [], "meta": {"x": {}}}),
    ];
    for arguments in &fine {
        assert_eq!(client.read(TOOL, arguments.clone()).get("isError"), None, "{arguments}");
    }
    let decisions = client.records(&proxy, "type=policy_decision");
    assert_eq!(decisions.len(), doubtful.len(), "{decisions:?}");
    for decision in &decisions {
        let metadata = &decision["metadata"];
        assert_eq!(decision["status"], "warning");
        assert_eq!(
            (&metadata["policy"], &metadata["mode"]),
            (&json!("input_validation"), &json!("coerce"))
        );
    }
    let calls = client.records(&proxy, "type=tool_call&tool=added_issue");
    assert!(calls.iter().all(|call| call["status"] == "success"), "{calls:?}");
}

#[test]
fn any_number_of_nulls_for_optional_members_is_sent() {
    let mut properties: serde_json::Map<_, _> =
        (0..300).map(|at| (format!("option_{at}"), json!({"type": "string"}))).collect();
    properties.insert("zone".into(), json!({"type": "integer"}));
    let schema = json!({"type": "object", "properties": properties, "required": ["zone"]});
    let proxy = one_tool(schema);
    let mut client = proxy.client();
    for nulls in [9, 300] {
        let mut arguments: serde_json::Map<_, _> =
            (0..nulls).map(|at| (format!("option_{at}"), Value::Null)).collect();
        arguments.insert("zone".into(), json!(nulls));
        let result = client.read(TOOL, Value::Object(arguments.clone()));
        assert_eq!(result.get("isError"), None, "{nulls}: {result}");
        let args = Value::Object(arguments.clone());
        let foreseen = client.tool("describe_tool", json!({"name": TOOL, "args": args}));
        assert_eq!(foreseen["structuredContent"]["preflight"]["verdict"], "allowed", "{nulls}");
        // The invalid member comes after them.
        arguments.insert("zone".into(), json!("marker"));
        let result = client.read(TOOL, Value::Object(arguments));
        let place = "/zone: expected integer (got string)";
        assert_eq!(error_text(&result), format!("Arguments of '{TOOL}' do not fit: {place}"));
        assert!(received(&mut client).contains(&format!("{nulls}")));
    }
}

// INP-6
#[test]
fn refusal_is_recorded_counted_and_reported_on_every_transport() {
    let proxy = one_tool(issue());
    let mut client = proxy.client();
    let text = format!("Arguments of '{TOOL}' do not fit: /title: missing (required)");
    let wrong = json!({"owner": "a"});
    assert_eq!(error_text(&client.read(TOOL, wrong.clone())), text);
    let calls = client.records(&proxy, "type=tool_call&tool=added_issue");
    assert_eq!(
        (&calls[0]["status"], &calls[0]["error_message"]),
        (&json!("rejected"), &json!(text))
    );
    let decisions = client.records(&proxy, "type=policy_decision");
    let [decision] = decisions.as_slice() else { panic!("{decisions:?}") };
    assert_eq!((&decision["status"], &decision["parent_id"]), (&json!("blocked"), &calls[0]["id"]));
    let metadata = &decision["metadata"];
    for (member, expected) in [
        ("policy", "input_validation"),
        ("decision", "blocked"),
        ("mode", "coerce"),
        ("schema_path", "/required"),
    ] {
        assert_eq!(metadata[member], expected, "{metadata}");
    }
    assert!(metadata["reason"].as_str().unwrap().contains("title"), "{metadata}");

    let body = json!({"tool_name": "call_tool_read", "intent": {"operation_type": "read"},
        "arguments": {"name": TOOL, "args": wrong}});
    let headers = [("X-API-Key", API_KEY)];
    let answer = proxy.request("POST", "/api/v1/tools/call", &headers, body.to_string().as_bytes());
    assert_eq!((answer.status, &answer.json()["error"]), (400, &json!(text)));
    let printed = proxy.cli(&["call", "tool-read", TOOL, "--args", &wrong.to_string()]);
    assert_eq!(printed.code, Some(1));
    assert!(printed.stderr.contains("/title: missing (required)"), "{}", printed.stderr);

    let calls = &proxy.api("status")["calls"];
    assert_eq!(calls["decisions"]["input_validation"], json!({"blocked": 3, "warning": 0}));
    assert_eq!(calls["refusals"]["arguments"], 3);
    let metrics = proxy.get("/metrics").text();
    let line = r#"mcpproxy_decisions_total{policy="input_validation",decision="blocked"} 3"#;
    assert!(metrics.contains(line), "{metrics}");
}

// INP-1
#[test]
fn off_and_warn_forward_the_call_and_the_most_specific_setting_applies() {
    let tools: Vec<_> = ["added_a", "added_b", "added_c"].map(|name| tool(name, issue())).into();
    let rules = json!({"input_validation": {"mode": "off", "tools": {
        "added_b": {"mode": "warn"}, "added_c": {"mode": "strict"}}}});
    let proxy = proxy_of(&json!(tools), json!({"input_validation": {"mode": "strict"}}), &rules);
    let mut client = proxy.client();
    let wrong = json!({"owner": 7});
    assert_eq!(client.read("s:added_a", wrong.clone()).get("isError"), None);
    assert!(client.records(&proxy, "type=policy_decision").is_empty());
    assert_eq!(client.read("s:added_b", wrong.clone()).get("isError"), None);
    let decisions = client.records(&proxy, "type=policy_decision");
    assert_eq!(
        (&decisions[0]["status"], &decisions[0]["metadata"]["mode"]),
        (&json!("warning"), &json!("warn"))
    );
    error_text(&client.read("s:added_c", wrong.clone()));

    let warn = proxy_of(&json!(tools), json!({"input_validation": {"mode": "warn"}}), &json!({}));
    let mut client = warn.client();
    assert_eq!(client.read("s:added_a", wrong).get("isError"), None);
    assert_eq!(client.records(&warn, "type=policy_decision&status=warning").len(), 1);
}

/// Schema of a tool that gets stringified arguments.
fn stringly() -> Value {
    json!({"type": "object", "additionalProperties": false, "properties": {
        "ids": {"type": "array", "items": {"type": "integer"}},
        "count": {"type": "integer"},
        "parent": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "text": {"type": "string"},
        "filter": {"type": "object", "properties": {"deep": {"type": "boolean"}}},
    }})
}

#[test]
fn inp_8_string_is_sent_as_the_json_value_that_it_contains() {
    let proxy = one_tool(stringly());
    let mut client = proxy.client();
    let stringified = [
        (
            json!({"ids": "[\"1\", 2]", "text": "marker [1]"}),
            json!({"ids": [1, 2], "text": "marker [1]"}),
        ),
        (json!({"count": "5", "text": "7"}), json!({"count": 5, "text": "7"})),
        (json!({"parent": "null", "count": " 3\n"}), json!({"parent": null, "count": 3})),
        (json!({"filter": "{\"deep\": true}"}), json!({"filter": {"deep": true}})),
        (json!({"filter": {"deep": "false"}}), json!({"filter": {"deep": false}})),
    ];
    for (given, sent) in &stringified {
        let foreseen = client.tool("describe_tool", json!({"name": TOOL, "args": given}));
        assert_eq!(foreseen["structuredContent"]["preflight"]["verdict"], "allowed", "{foreseen}");
        let result = client.read(TOOL, given.clone());
        assert_eq!(result.get("isError"), None, "{given}: {result}");
        let records = client.records(&proxy, "type=tool_call&tool=added_issue");
        assert_eq!(&records[0]["arguments"], sent, "{records:?}");
        assert_eq!(&records[0]["metadata"]["original_arguments"], given, "{records:?}");
        let last = received(&mut client).replace(['\\', ' '], "");
        let sent = sent.to_string().replace(' ', "");
        assert!(last.contains(&sent), "{sent}: {last}");
    }
    let decisions = client.records(&proxy, "type=policy_decision&status=warning");
    assert_eq!(decisions.len(), stringified.len(), "{decisions:?}");
    assert_eq!(decisions[0]["metadata"]["mode"], "coerce");
}

#[test]
fn inp_8_string_that_is_not_coerced_is_refused_with_the_kind_of_its_content() {
    let sent_itself =
        "/ids: expected array (got string); this string contains an array; send the array itself";
    let proxy = one_tool(stringly());
    let mut client = proxy.client();
    for (arguments, places, names_setting) in [
        (json!({"ids": "[1", "count": 1}), "/ids: expected array (got string)", false),
        (
            json!({"ids": "{}"}),
            "/ids: expected array (got string); this string contains an object; send the object itself",
            true,
        ),
        (json!({"ids": "[1]", "more": "x"}), sent_itself, true),
    ] {
        let result = client.read(TOOL, arguments);
        assert!(error_text(&result).contains(places), "{result}");
        assert_eq!(
            help(&result).contains("input_validation.mode is 'coerce'"),
            names_setting,
            "{result}"
        );
    }
    let tools = json!([tool("added_issue", stringly())]);
    let strict = proxy_of(&tools, json!({"input_validation": {"mode": "strict"}}), &json!({}));
    let mut client = strict.client();
    let result = client.read(TOOL, json!({"ids": "[1]"}));
    assert_eq!(error_text(&result), format!("Arguments of '{TOOL}' do not fit: {sent_itself}"));
    assert!(help(&result).contains("input_validation.mode is 'strict'"), "{result}");
}

#[test]
fn inp_8_rules_see_the_coerced_arguments_even_on_the_first_call() {
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("rules.cedar");
    write_private(
        &rules,
        r#"@id("few") forbid (principal, action, resource == Tool::"s:added_issue")
            when { context has args && context.args has count && context.args.count > 3 };"#,
    );
    let policy = json!({"policy": {"files": [rules.to_str().unwrap()]}});
    let proxy = proxy_of(&json!([tool("added_issue", stringly())]), policy, &json!({}));
    let mut client = proxy.client();
    // The first call compiles the schema. Its arguments are therefore validated only after a first decision, in which
    // the rule fails because of the string.
    for count in ["3", "2"] {
        let result = client.read(TOOL, json!({ "count": count }));
        assert_eq!(result.get("isError"), None, "{result}");
    }
    let refused = client.read(TOOL, json!({"count": "5"}));
    let expected = format!("Tool '{TOOL}' is not allowed by rule 'few'");
    assert_eq!(error_text(&refused), expected);
}

#[test]
fn inp_8_approval_is_asked_for_the_coerced_arguments() {
    let server = json!({"capabilities": {"added_issue": {"approval": "required"}}});
    let proxy = proxy_of(&json!([tool("added_issue", stringly())]), json!({}), &server);
    let mut client = proxy.client();
    // The first call compiles the schema. It is therefore validated only after a first decision, which requires
    // approval.
    for _ in 0..2 {
        client.begin_read(TOOL, json!({"ids": "[1]"}));
        let asked = until("the call waits", || waiting(&proxy).first().cloned());
        assert_eq!(asked["call"]["arguments"], r#"{"ids":[1]}"#, "{asked}");
        let approve = json!({"decision": "approve", "digest": asked["call"]["digest"]});
        let answered = answer(&proxy, asked["id"].as_str().unwrap(), &approve);
        assert_eq!(answered.status, 200, "{}", answered.text());
        let called = client.connection.response().json();
        assert_eq!(called["result"].get("isError"), None, "{called}");
    }
    let last = proxy.activity("type=tool_call&tool=added_issue")[0].clone();
    assert_eq!(last["arguments"], json!({"ids": [1]}), "{last}");
}

// INP-3
#[test]
fn key_that_differs_from_a_parameter_only_by_case_is_refused_or_warned_about() {
    let schema = json!({"type": "object", "properties": {"path": {"type": "string"}, "Mode": {},
        "env": {"type": "object", "additionalProperties": {"type": "string"}},
        "files": {"type": "array", "items": {"properties": {"name": {"type": "string"}}}},
        "a_pad": {"type": "array", "items": {}}}});
    let proxy = one_tool(schema.clone());
    let mut client = proxy.client();
    for (args, place, name) in [
        (json!({"Path": "/etc/passwd"}), "/Path", "path"),
        (json!({"path": "/tmp/x", "PATH": "/etc/passwd"}), "/PATH", "path"),
        (json!({"mode": 1}), "/mode", "Mode"),
        (json!({"files": [{"name": "a"}, {"na\u{4d}e": "b"}]}), "/files/1/naMe", "name"),
        (json!({"\u{ff50}ath": "x"}), "/\u{ff50}ath", "path"),
    ] {
        let refused = client.read(TOOL, args);
        let text = format!(
            "Arguments of '{TOOL}' do not fit: {place}: differs only by case from '{name}': write '{name}'"
        );
        assert_eq!(error_text(&refused), text);
    }
    let padded =
        |element: Value| json!({"a_pad": vec![element; 300_000], "files": [{"Name": "b"}]});
    let refused = client.read(TOOL, padded(json!(0)));
    let text = error_text(&refused);
    assert!(
        text.ends_with("/files/0/Name: differs only by case from 'name': write 'name'"),
        "{text}"
    );
    let refused = client.read(TOOL, padded(json!([])));
    let text = error_text(&refused);
    let bound = "(root): a key may differ only by case from a parameter, and cannot be compared (more than 262144 objects";
    assert!(text.contains(bound), "{text}");
    // Keys of an object whose member names the schema does not declare.
    let good = client.read(TOOL, json!({"path": "x", "env": {"PATH": "/bin", "Name": "y"}}));
    assert_ne!(good["isError"], true, "{good}");
    let decision = &client.records(&proxy, "type=policy_decision")[0];
    assert_eq!(decision["metadata"]["policy"], "input_validation", "{decision}");

    let tools = json!([tool("added_issue", schema)]);
    let warn = proxy_of(&tools, json!({"input_validation": {"mode": "warn"}}), &json!({}));
    let mut client = warn.client();
    assert_ne!(client.read(TOOL, json!({"Path": "x"}))["isError"], true);
    let records = client.records(&warn, "type=policy_decision&status=warning");
    assert_eq!(records.len(), 1, "{records:?}");
}

// INP-4
#[test]
fn unusable_input_schema_does_not_block_calls_and_is_warned_about_once() {
    let wrong = [
        json!({"type": "no such type"}),
        json!({"$schema": "urn:example:no-such-dialect", "type": "object"}),
        json!({"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/x.json"}}}),
        json!({"type": "object", "properties": {"a": {"pattern": "("}}}),
    ];
    let names = ["added_1", "added_2", "added_3", "added_4"];
    let tools: Vec<_> = names.iter().zip(wrong).map(|(name, it)| tool(name, it)).collect();
    let proxy = proxy_of(&json!(tools), json!({}), &json!({}));
    let mut client = proxy.client();
    for _ in 0..3 {
        for name in names {
            let result = client.read(&format!("s:{name}"), json!({"a": 7}));
            assert_eq!(result.get("isError"), None, "{name}: {result}");
        }
    }
    for name in names {
        proxy.assert_lines_logged(1, |line| {
            line.contains("the input schema cannot be used") && line.contains(&format!("s:{name}"))
        });
    }
}

#[test]
fn arguments_are_validated_with_a_megabyte_schema_and_with_huge_arguments() {
    let properties: serde_json::Map<_, _> = (0..6000)
        .map(|at| {
            (format!("parameter_{at}"), json!({"type": "integer", "description": "x".repeat(120)}))
        })
        .collect();
    let schema = json!({"type": "object", "additionalProperties": false, "properties": properties});
    assert!(schema.to_string().len() > 1_000_000);
    let list = json!({"type": "object", "properties": {"list": {"items": {"type": "integer"}}}});
    let tools = json!([tool("added_issue", schema), tool("added_list", list)]);
    let proxy = proxy_of(&tools, json!({}), &json!({}));
    let mut client = proxy.client();
    assert_eq!(client.read(TOOL, json!({"parameter_77": 1})).get("isError"), None);
    let result = client.read(TOOL, json!({"parameter_77": "a", "parametre_5999": 1}));
    let text = error_text(&result);
    assert!(text.contains("/parameter_77: expected integer (got string)"), "{text}");
    assert!(text.contains("/parametre_5999: unknown (did you mean 'parameter_"), "{text}");
    assert!(result.to_string().len() < 10_000);

    let many = json!({"list": vec![7; 200_000]});
    assert_eq!(client.read("s:added_list", many.clone()).get("isError"), None);
    let mut wrong = many;
    wrong["list"][199_999] = json!("a");
    let text = client.read("s:added_list", wrong);
    assert!(error_text(&text).contains("/list/199999: expected integer (got string)"), "{text}");
    let all = client.read("s:added_list", json!({"list": vec!["a"; 50_000]}));
    assert!(error_text(&all).len() < 3000, "{all}");
}

// INP-7
#[test]
fn hostile_names_do_not_appear_in_messages() {
    let proxy = one_tool(issue());
    let mut client = proxy.client();
    let names = ["\u{202e}evil\n\u{1b}[31m", "a/b~c", "", &"x".repeat(5000), "__proto__"];
    for name in names {
        let result = client.read(TOOL, json!({"owner": "a", "title": "bb", name: 1}));
        let text = error_text(&result);
        assert!(text.contains("unknown"), "{text}");
        assert!(!text.contains(['\n', '\u{1b}', '\u{202e}']) && text.len() < 600, "{text}");
    }
}

// INP-1
#[test]
fn bytes_of_arguments_are_never_changed() {
    let proxy = one_tool(issue());
    let mut client = proxy.client();
    let spelled = r#"{ "title" :"t\u0065a\/" ,"owner":"\u00e9é","meta":{"deep":{ "count":7.0e0 }, "x":[ 1.50 ,-0 ]}}"#;
    for arguments in [
        format!(r#"{{"name":"{TOOL}","args":{spelled},"intent":{{"operation_type":"read"}}}}"#),
        json!({"name": TOOL, "args_json": spelled, "intent": {"operation_type": "read"}})
            .to_string(),
    ] {
        let params = format!(r#"{{"name":"call_tool_read","arguments":{arguments}}}"#);
        let result = client.ask_raw("tools/call", &params);
        assert!(!String::from_utf8_lossy(&result).contains("isError"));
        let last = client.read("s:received", json!({}));
        let last = last["content"][0]["text"].as_str().unwrap();
        assert!(last.contains(&format!(r#""arguments":{spelled}"#)), "{last}");
    }
}

#[test]
fn verdicts_are_equal_in_both_protocol_families_and_at_the_direct_endpoint() {
    let proxy = one_tool(issue());
    let wrong = json!({"owner": "a"});
    let text = format!("Arguments of '{TOOL}' do not fit: /title: missing (required)");
    let direct = proxy
        .direct_client()
        .ask("tools/call", json!({"name": "s__added_issue", "arguments": wrong}));
    assert_eq!(error_text(&direct["result"]), text);
    let params = json!({"name": "call_tool_read", "arguments": {"name": TOOL, "args": wrong,
        "intent": {"operation_type": "read"}}});
    for (path, params) in
        [("/mcp", params), ("/mcp/all", json!({"name": "s__added_issue", "arguments": wrong}))]
    {
        let answer = ask_modern(&proxy, path, "tools/call", params, &[]);
        assert_eq!(answer.status, 200, "{}", answer.text());
        let result = &answer.json()["result"];
        assert_eq!((error_text(result), &result["resultType"]), (&*text, &json!("complete")));
        assert!(help(result).contains("Schema of /title: "), "{result}");
    }
}

// INP-5
#[test]
fn caller_without_access_to_a_tool_gets_no_details_of_its_schema() {
    let proxy = proxy_of(&json!([tool("added_issue", issue())]), json!({}), &json!({}));
    let made = proxy.cli(&["token", "create", "ci", "--tool", "none", "--json"]);
    let token = made.json()["token"].as_str().unwrap().to_owned();
    let call = |name: &str, args: Value| {
        let body = json!({"tool_name": "call_tool_read", "intent": {"operation_type": "read"},
            "arguments": {"name": name, "args": args}});
        let headers = [("X-API-Key", token.as_str())];
        let answer =
            proxy.request("POST", "/api/v1/tools/call", &headers, body.to_string().as_bytes());
        answer.json()["error"].as_str().unwrap().to_owned()
    };
    let scope = format!("Token 'ci' does not allow tool '{TOOL}': it is limited to tool 'none'");
    assert_eq!(call(TOOL, json!({"secret": 1})), scope);
    // Once the schema is compiled, the arguments could be validated before admission; the message must be the same.
    error_text(&proxy.client().read(TOOL, json!({})));
    assert_eq!(call(TOOL, json!({"secret": 1})), scope);
    let decisions = proxy.activity("type=policy_decision&principal=token:ci");
    assert_eq!(decisions.len(), 2);
    assert!(decisions.iter().all(|it| it["metadata"]["policy"] == "scope"), "{decisions:?}");
}

// INP-5
#[test]
fn unacceptable_arguments_neither_request_approval_nor_take_a_slot() {
    let server = json!({"capabilities": {"added_asks": {"approval": "required"}},
        "limits": {"rate_per_minute": 2}});
    let tools = json!([tool("added_asks", issue()), tool("added_issue", issue())]);
    let proxy = proxy_of(&tools, json!({}), &server);
    let mut client = proxy.client();
    // The first call of each tool compiles its schema, and occupies a slot meanwhile.
    for tool in ["s:added_asks", "s:added_asks", TOOL, TOOL, TOOL, TOOL] {
        let result = client.read(tool, json!({}));
        assert!(error_text(&result).starts_with("Arguments of "), "{result}");
    }
    assert!(proxy.api("approvals")["approvals"].as_array().unwrap().is_empty());
    let fine = json!({"owner": "a", "title": "bb"});
    assert_eq!(
        client.read(TOOL, fine).get("isError"),
        None,
        "one of two calls a minute is still there"
    );
}

/// The corrected call that a refusal contains: the variant, and the arguments.
fn spelled_out(result: &Value) -> (String, Value) {
    let (variant, call) =
        help(result).strip_prefix("Call again with ").unwrap().split_once(": ").unwrap();
    (variant.to_owned(), serde_json::from_str(call).unwrap())
}

// INP-7
#[test]
fn refused_intent_or_variant_is_answered_with_the_correct_call() {
    let proxy = one_tool(issue());
    let mut client = proxy.client();
    let destructive = "s:delete_item";
    for (variant, tool, intent, right) in [
        ("read", destructive, json!({"operation_type": "read", "reason": "r"}), "destructive"),
        ("write", destructive, json!({"operation_type": "write"}), "destructive"),
        ("read", destructive, Value::Null, "destructive"),
        ("write", "s:read_item", Value::Null, "read"),
        ("read", "s:read_item", json!({"operation_type": "write"}), "read"),
        ("read", "s:read_item", json!({"operation_type": "see", "data_sensitivity": "x"}), "read"),
        (
            "read",
            "s:read_item",
            json!({"reason": "x".repeat(1001), "operation_type": "read"}),
            "read",
        ),
        ("read", "s:read_item", json!(7), "read"),
        ("read", "s:read_item", json!({"why": 1}), "read"),
        ("write", "s:no_such", Value::Null, "write"),
    ] {
        let mut arguments = json!({"name": tool, "args": {"size": 3}});
        if !intent.is_null() {
            arguments["intent"] = intent.clone();
        }
        let refused = client.tool(&format!("call_tool_{variant}"), arguments);
        error_text(&refused);
        let (again, call) = spelled_out(&refused);
        assert_eq!(again, format!("call_tool_{right}"), "{variant} {tool} {intent}");
        assert_eq!((&call["name"], &call["args"]["size"]), (&json!(tool), &json!(3)));
        let kept = intent["reason"].as_str().filter(|reason| reason.len() < 1000);
        assert_eq!(call["intent"]["reason"].as_str(), kept);
        if tool != "s:no_such" {
            let result = client.tool(&again, call);
            assert_eq!(result.get("isError"), None, "{result}");
        }
    }
}

#[test]
fn unknown_tool_is_answered_with_the_three_nearest_visible_to_the_caller() {
    let names = ["added_issue", "added_issues", "added_isue_list", "added_other"];
    let tools: Vec<_> = names.map(|name| tool(name, json!({"type": "object"}))).into();
    let proxy = proxy_of(&json!(tools), json!({}), &json!({}));
    let mut client = proxy.client();
    let result = client.read("s:added_isue", json!({}));
    assert_eq!(
        error_text(&result),
        "Tool 's:added_isue' not found. Use retrieve_tools to find tools."
    );
    let expected = "Nearest tools: 's:added_issue', 's:added_isue_list', 's:added_issues'";
    assert_eq!(help(&result), expected);
    let result = client.read("t:added_other", json!({}));
    assert!(error_text(&result).starts_with("Server 't' not found"), "{result}");
    assert!(help(&result).starts_with("Nearest tools: 's:added_other', "), "{result}");
    let long = client.read(&format!("s:{}", "é".repeat(2000)), json!({}));
    error_text(&long);

    let made = proxy.cli(&["token", "create", "ci", "--tool", "s:added_other", "--json"]);
    let token = format!("Bearer {}", made.json()["token"].as_str().unwrap());
    let params = json!({"name": "call_tool_read", "arguments": {"name": "s:added_isue",
        "intent": {"operation_type": "read"}}});
    let headers = [("Authorization", token.as_str())];
    let answer = ask_modern(&proxy, "/mcp", "tools/call", params, &headers);
    let result = &answer.json()["result"];
    assert!(error_text(result).ends_with(": it is limited to tool 's:added_other'"), "{result}");
    assert_eq!(result["content"][1], Value::Null, "a similar name would not help: {result}");
}

#[test]
fn failed_server_is_reported_with_the_time_of_its_failure() {
    let url = format!("http://127.0.0.1:{}/mcp", free_port());
    let servers = json!({"gone": {"url": url}, "off": {"command": "x", "enabled": false}});
    let proxy = Proxy::with(json!({"mcpServers": servers}));
    let mut client = proxy.client();
    until("it has failed", || {
        let result = client.read("gone:x", json!({}));
        let text = error_text(&result).to_owned();
        let help = result["content"][1]["text"].as_str().unwrap_or_default().to_owned();
        let reported = help.starts_with("Server 'gone' is failed since 20") && help.contains("Z (");
        assert!(text.starts_with("gone: "), "{text}");
        reported.then_some(())
    });
}
