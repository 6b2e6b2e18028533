//! Listed items that do not conform to MCP: none of them removes an item of another server.
//!
//! The checker below is based on the schemas of MCP 2025-11-25 and 2026-07-28, and independent of the rules in the
//! proxy.

use serde_json::{Value, json};

use crate::harness::{Proxy, Received, Recorder, Reply, ask_modern, error_text, stub_stdio, until};

/// Values of every JSON type, to replace members of other types.
pub(crate) fn odd_values() -> Vec<Value> {
    vec![
        Value::Null,
        json!(true),
        json!(7),
        json!(-1.5),
        json!("x"),
        json!([]),
        json!([null]),
        json!({}),
        json!({"a": null}),
    ]
}

/// A copy of an item with this value at a member, or at a nested member (`a.b`).
pub(crate) fn with(item: &Value, member: &str, value: &Value) -> Value {
    let mut item = item.clone();
    match member.split_once('.') {
        None => item[member] = value.clone(),
        Some((outer, inner)) if item[outer].is_array() => item[outer][0][inner] = value.clone(),
        Some((outer, inner)) => item[outer][inner] = value.clone(),
    }
    item
}

/// Items of one list: a valid item with each of `members` replaced by each odd value, and `more`.
fn corpus(item: &Value, key: &str, members: &[&str], more: &[Value]) -> Vec<Value> {
    let odd = odd_values();
    let made = members.iter().flat_map(|member| odd.iter().map(|value| with(item, member, value)));
    let mut items: Vec<Value> = made.chain(more.iter().cloned()).collect();
    for (at, item) in items.iter_mut().enumerate() {
        if item.get(key).is_none_or(Value::is_string) {
            item[key] = json!(format!("odd:{at}"));
        }
    }
    items
}

fn icons() -> Value {
    json!([{"src": "data:,", "mimeType": "image/png", "sizes": ["any"], "theme": "dark"}])
}

fn odd_tools() -> Vec<Value> {
    let tool = json!({
        "name": "t", "title": "T", "description": "d", "icons": icons(), "_meta": {},
        "inputSchema": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
        "outputSchema": {"type": "object", "properties": {"b": {}}, "required": []},
        "annotations": {"title": "x", "readOnlyHint": true}, "execution": {"taskSupport": "optional"},
    });
    let members = [
        "title",
        "description",
        "icons",
        "_meta",
        "inputSchema",
        "outputSchema",
        "annotations",
        "execution",
        "annotations.title",
        "annotations.readOnlyHint",
        "annotations.destructiveHint",
        "annotations.openWorldHint",
        "execution.taskSupport",
        "icons.src",
        "icons.sizes",
        "icons.theme",
        "inputSchema.type",
        "inputSchema.properties",
        "inputSchema.required",
        "inputSchema.$schema",
        "outputSchema.type",
        "outputSchema.properties",
        "outputSchema.required",
    ];
    let schemas = [
        json!({"anyOf": [{"type": "object"}]}),
        json!({"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}}),
        json!({"type": "array", "items": {"type": "string"}}),
        json!({"type": ["object", "null"]}),
        json!({"type": "object", "properties": {"a": true}}),
        json!({"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}),
        json!({"type": "object", "properties": {"a": {"minimum": 1, "exclusiveMinimum": true}}}),
        json!({"$schema": "http://json-schema.org/draft-04/schema#", "type": "object"}),
        json!({"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}}),
        json!({"type": "object", "properties": {"a": {"pattern": "(?i)a"}}}),
        json!({"type": "object", "properties": {"a": {"nullable": true}}}),
        json!({"type": "object", "properties": {"a": {"enum": []}}}),
        json!({"type": "object", "$id": "http://a/b"}),
    ];
    let places = ["inputSchema", "outputSchema"];
    let more = schemas.iter().flat_map(|schema| places.map(|at| with(&tool, at, schema)));
    corpus(&tool, "name", &members, &more.collect::<Vec<_>>())
}

fn odd_offers(key: &str) -> Vec<Value> {
    let mut item =
        json!({"name": "n", "title": "T", "description": "d", "icons": icons(), "_meta": {}});
    let mut members = vec!["title", "description", "icons", "_meta", "icons.src", "icons.sizes"];
    match key {
        "name" => {
            item["arguments"] = json!([{"name": "a", "description": "x", "required": true}]);
            members.extend([
                "arguments",
                "arguments.name",
                "arguments.description",
                "arguments.required",
            ]);
        }
        uri => {
            item[uri] = json!("x:y");
            item["mimeType"] = json!("text/plain");
            item["annotations"] = json!({"audience": ["user"]});
            members.extend(["name", "mimeType", "annotations", "annotations.audience"]);
            members.extend(["annotations.priority", "annotations.lastModified", "size"]);
        }
    }
    corpus(&item, key, &members, &[])
}

/// A legacy server over HTTP with these lists.
fn server(lists: Vec<(&'static str, &'static str, Value)>) -> Recorder {
    Recorder::start(move |_, request: &Received| {
        let Ok(message) = serde_json::from_slice::<Value>(&request.body) else {
            return Reply::Http("405 Method Not Allowed", "", Vec::new());
        };
        let method = message["method"].as_str().unwrap_or_default();
        let listed = lists.iter().find(|(known, ..)| *known == method);
        let result = match (method, listed) {
            ("initialize", _) => json!({
                "protocolVersion": "2025-11-25", "serverInfo": {"name": "odd", "version": "1"},
                "capabilities": {"tools": {}, "resources": {}, "prompts": {}},
            }),
            (_, Some((_, member, items))) => json!({ *member: items }),
            ("tools/call", _) => json!({"content": [], "structuredContent": ["called", 1.50]}),
            _ if message.get("id").is_none() => {
                return Reply::Http("202 Accepted", "", Vec::new());
            }
            _ => {
                let error = json!({"code": -32601, "message": "unknown"});
                let answer = json!({"jsonrpc": "2.0", "id": message["id"], "error": error});
                return json_reply(&answer);
            }
        };
        json_reply(&json!({"jsonrpc": "2.0", "id": message["id"], "result": result}))
    })
}

fn json_reply(answer: &Value) -> Reply {
    Reply::Http("200 OK", "Content-Type: application/json\r\n", answer.to_string().into())
}

fn entry(server: &Recorder) -> Value {
    json!({"url": format!("http://127.0.0.1:{}/mcp", server.port), "protocol": "http"})
}

/// Whether a member is absent or valid.
fn optional(object: &Value, member: &str, is_valid: impl Fn(&Value) -> bool) -> bool {
    object.get(member).is_none_or(is_valid)
}

fn all(value: &Value, is_valid: impl Fn(&Value) -> bool) -> bool {
    value.as_array().is_some_and(|all| all.iter().all(is_valid))
}

fn is_icon(icon: &Value) -> bool {
    icon["src"].is_string()
        && optional(icon, "mimeType", Value::is_string)
        && optional(icon, "sizes", |sizes| all(sizes, Value::is_string))
        && optional(icon, "theme", |theme| theme == "light" || theme == "dark")
}

fn is_named(item: &Value) -> bool {
    item["name"].is_string()
        && ["title", "description"].iter().all(|it| optional(item, it, Value::is_string))
        && optional(item, "icons", |icons| all(icons, is_icon))
        && optional(item, "_meta", Value::is_object)
}

fn is_object_schema(schema: &Value, is_modern: bool) -> bool {
    let is_schema = |it: &Value| it.is_object() || (is_modern && it.is_boolean());
    schema["type"] == "object"
        && optional(schema, "properties", |it| {
            it.as_object().is_some_and(|all| all.values().all(is_schema))
        })
        && optional(schema, "required", |names| all(names, Value::is_string))
        && optional(schema, "$schema", Value::is_string)
}

fn is_tool(tool: &Value, is_modern: bool) -> bool {
    let hints = ["readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"];
    is_named(tool)
        && is_object_schema(&tool["inputSchema"], is_modern)
        && optional(tool, "outputSchema", |schema| {
            let compiles = jsonschema::validator_for(schema).is_ok();
            // Schemas that the validator of the TypeScript SDK refuses or misinterprets.
            let text = schema.to_string();
            let refused = ["(?i)", "nullable", r#""enum":[]"#, "$id", r##""#/properties/a""##];
            let compiles = compiles && !refused.iter().any(|part| text.contains(part));
            schema.is_object() && compiles && (is_modern || is_object_schema(schema, false))
        })
        && optional(tool, "annotations", |it| {
            it.is_object()
                && optional(it, "title", Value::is_string)
                && hints.iter().all(|hint| optional(it, hint, Value::is_boolean))
        })
        && optional(tool, "execution", |it| {
            it.is_object()
                && optional(it, "taskSupport", |word| {
                    ["forbidden", "optional", "required"].iter().any(|known| word == known)
                })
        })
}

fn is_offer(item: &Value, key: &str) -> bool {
    is_named(item)
        && item[key].is_string()
        && optional(item, "mimeType", Value::is_string)
        // Only resources have a size; templates have none.
        && (key != "uri" || optional(item, "size", |size| size.is_u64() || size.is_i64()))
        && optional(item, "annotations", |it| {
            it.is_object()
                && optional(it, "audience", |who| all(who, |it| it == "user" || it == "assistant"))
                && optional(it, "priority", |it| {
                    it.as_f64().is_some_and(|number| (0.0..=1.0).contains(&number))
                })
                && optional(it, "lastModified", |it| it.as_str().is_some_and(|it| it.len() > 15))
        })
        && optional(item, "arguments", |it| {
            all(it, |it| {
                it["name"].is_string()
                    && optional(it, "description", Value::is_string)
                    && optional(it, "required", Value::is_boolean)
            })
        })
}

/// All pages of a list.
pub(crate) fn list(mut ask: impl FnMut(Value) -> Value, member: &str) -> Vec<Value> {
    let (mut items, mut params) = (Vec::new(), json!({}));
    loop {
        let answer = ask(params);
        let page = &answer["result"];
        let listed = page[member].as_array().unwrap_or_else(|| panic!("no list: {answer}"));
        items.extend(listed.iter().cloned());
        match page.get("nextCursor") {
            Some(cursor) => params = json!({ "cursor": cursor }),
            None => return items,
        }
    }
}

const LISTS: [(&str, &str, &str); 4] = [
    ("tools/list", "tools", "name"),
    ("resources/list", "resources", "uri"),
    ("resources/templates/list", "resourceTemplates", "uriTemplate"),
    ("prompts/list", "prompts", "name"),
];

#[test]
fn def_6_irregular_items_do_not_remove_other_items_from_any_list() {
    let [tools, resources, templates, prompts] =
        [odd_tools(), odd_offers("uri"), odd_offers("uriTemplate"), odd_offers("name")];
    let sizes = [&tools, &resources, &templates, &prompts].map(Vec::len);
    assert!(sizes.iter().sum::<usize>() >= 400, "{sizes:?}");
    let odd = server(vec![
        ("tools/list", "tools", json!(tools)),
        ("resources/list", "resources", json!(resources)),
        ("resources/templates/list", "resourceTemplates", json!(templates)),
        ("prompts/list", "prompts", json!(prompts)),
    ]);
    let proxy = Proxy::with(json!({
        "mcpServers": {"odd": entry(&odd), "good": stub_stdio(&["--offers"])},
    }));
    let mut clients = [proxy.client(), proxy.direct_client()];
    for (path, client) in ["/mcp", "/mcp/all"].into_iter().zip(&mut clients) {
        for (method, member, key) in LISTS {
            if path == "/mcp" && method == "tools/list" {
                continue;
            }
            let legacy = list(|params| client.ask(method, params), member);
            let modern =
                list(|params| ask_modern(&proxy, path, method, params, &[]).json(), member);
            for (listed, is_modern) in [(legacy, false), (modern, true)] {
                let is_odd = |item: &&Value| {
                    let key = item[key].as_str().unwrap();
                    key.starts_with("odd__") || key.starts_with("mcpproxy://odd/")
                };
                let odd = listed.iter().filter(is_odd).count();
                let good = listed.len() - odd;
                let at = format!("{method} at {path}, modern: {is_modern}");
                assert!(good >= 1, "{at}: the healthy server's items are there: {good}");
                let most = sizes[LISTS.iter().position(|it| it.0 == method).unwrap()];
                assert!(odd > most / 2, "{at}: {odd} of {most}");
                for item in &listed {
                    let conforms = match method {
                        "tools/list" => is_tool(item, is_modern),
                        _ => is_offer(item, key),
                    };
                    assert!(conforms, "{at}: {item}");
                }
            }
        }
    }
    let servers = proxy.api("servers");
    let odd = servers["servers"].as_array().unwrap().iter().find(|it| it["name"] == "odd").unwrap();
    let found = &odd["nonconforming"];
    assert!(
        found["repaired"].as_u64() > Some(200) && found["omitted"].as_u64() > Some(10),
        "{found}"
    );
    assert_eq!(found["notes"].as_array().unwrap().len(), 32, "the notes are bounded");
}

/// A conforming tool, and one tool for each kind of repair and omission.
fn few_tools() -> Vec<Value> {
    vec![
        json!({"name": "fine", "inputSchema": {"type": "object"}}),
        json!({"name": "no.title", "title": null, "inputSchema": {"type": "object"}}),
        json!({"name": "array", "inputSchema": {"type": "array"}}),
        json!({"name": "many", "inputSchema": {"type": "object"},
            "outputSchema": {"type": "array", "items": {"$ref": "#/$defs/a"}, "$defs": {"a": {}}}}),
        json!({"name": "", "inputSchema": {"type": "object"}}),
    ]
}

#[test]
fn def_6_omitted_tool_is_callable_and_each_note_is_shown_to_operators() {
    let odd = server(vec![
        ("tools/list", "tools", json!(few_tools())),
        ("prompts/list", "prompts", Value::Null),
    ]);
    let proxy = Proxy::start(json!({"odd": entry(&odd)}));
    let mut client = proxy.direct_client();
    let names: Vec<_> = list(|params| client.ask("tools/list", params), "tools")
        .iter()
        .map(|tool| tool["name"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(names.len(), 3, "{names:?}");
    assert!(names.contains(&"odd__fine".to_owned()), "{names:?}");
    // DEF-7
    let portable = |char: char| char.is_ascii_alphanumeric() || "_-".contains(char);
    let mapped = names.iter().find(|name| name.starts_with("odd__no_title_")).unwrap();
    assert!(names.iter().all(|name| name.len() <= 64 && name.chars().all(portable)), "{names:?}");
    for name in [mapped, "odd__no.title"] {
        let answer = client.ask("tools/call", json!({"name": name, "arguments": {}}));
        assert_eq!(answer["result"]["structuredContent"], json!({"result": ["called", 1.5]}));
    }
    let called = proxy.client().call("write", "odd:array", json!({"a": 1}));
    assert_eq!(called.get("isError"), None, "{called}");
    assert_eq!(list(|params| client.ask("prompts/list", params), "prompts"), [Value::Null; 0]);
    let notes = proxy.api("servers")["servers"][0]["nonconforming"].clone();
    let shown: Vec<_> = notes["notes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|note| {
            let [list, item, action, reason] = ["list", "item", "action", "reason"]
                .map(|member| note[member].as_str().unwrap().to_owned());
            format!("{list} {item}: {action}: {reason}")
        })
        .collect();
    let expected = [
        "tools/list array: omitted: inputSchema.type excludes objects, but arguments are always an object; callable with the call tools only",
        "tools/list many: repaired: for legacy clients: outputSchema has no object root: its values are wrapped",
        "tools/list no.title: repaired: title is null",
        "tools/list (no name): omitted: name is empty",
        "prompts/list : omitted: the result has no array 'prompts'",
    ];
    for line in expected {
        let is_there = shown.iter().any(|shown| {
            shown == line || (line.contains("(no name)") && shown.ends_with("name is empty"))
        });
        assert!(is_there, "{line}: {shown:#?}");
    }
    assert_eq!((&notes["repaired"], &notes["omitted"]), (&json!(2), &json!(3)));
    let text = |args: &[&str]| proxy.cli(args).stdout;
    assert!(text(&["upstream", "list"]).contains("title is null"));
    assert!(text(&["status"]).contains("2 list items repaired, 3 left out"));
    assert!(text(&["doctor"]).contains("2 list items repaired, 3 left out"));
    proxy.assert_logged("title is null");
    proxy.assert_logged("name is empty");
}

#[test]
fn def_6_result_is_validated_against_a_schema_that_is_not_listed() {
    let tool = |name: &str, pattern: &str| {
        json!({"name": name, "inputSchema": {"type": "object"},
            "outputSchema": {"type": "array", "items": {"pattern": pattern}}})
    };
    // Every tool of this server answers ["called", 1.50].
    let tools = json!([tool("fits", "(?i)^CALL"), tool("violates", "(?i)^X")]);
    let odd = server(vec![("tools/list", "tools", tools)]);
    let proxy = Proxy::with(json!({
        "mcpServers": {"odd": entry(&odd)}, "output_validation": {"mode": "strict"},
    }));
    let mut client = proxy.direct_client();
    let listed = list(|params| client.ask("tools/list", params), "tools");
    assert_eq!(listed.len(), 2, "{listed:?}");
    assert!(listed.iter().all(|tool| tool.get("outputSchema").is_none()), "{listed:?}");
    let mut client = proxy.client();
    assert_eq!(client.call("write", "odd:fits", json!({})).get("isError"), None);
    let refused = client.call("write", "odd:violates", json!({}));
    assert!(error_text(&refused).starts_with("output schema validation failed: "), "{refused}");
}

#[test]
fn def_6_list_of_tools_that_is_null_is_empty_and_noted() {
    let odd = server(vec![("tools/list", "tools", Value::Null)]);
    let proxy = Proxy::start(json!({"odd": entry(&odd)}));
    let shown = proxy.api("servers")["servers"][0].clone();
    assert_eq!((&shown["state"], &shown["tools"]), (&json!("connected"), &json!(0)), "{shown}");
    let note = &shown["nonconforming"]["notes"][0];
    assert_eq!(note["reason"], "the result has no array 'tools'", "{shown}");
}

#[test]
fn fr_a13_content_that_is_not_an_object_is_wrapped_only_for_legacy_clients() {
    let odd = server(vec![("tools/list", "tools", json!(few_tools()))]);
    let proxy = Proxy::with(json!({
        "mcpServers": {"odd": entry(&odd)}, "activity": {"receipts": true},
    }));
    let mut client = proxy.direct_client();
    let params = r#"{"name":"odd__many","arguments":{}}"#;
    let legacy = client.ask_raw("tools/call", params);
    let legacy = String::from_utf8(legacy).unwrap();
    assert!(legacy.contains(r#""structuredContent":{"result":["called",1.5]}"#), "{legacy}");
    let listed = list(|params| client.ask("tools/list", params), "tools");
    let many = listed.iter().find(|tool| tool["name"] == "odd__many").unwrap();
    let schema = jsonschema::validator_for(&many["outputSchema"]).unwrap();
    assert!(
        schema.is_valid(&json!({"result": ["called"]})) && !schema.is_valid(&json!(["called"]))
    );
    let params = json!({"name": "odd__many", "arguments": {}});
    let modern = ask_modern(&proxy, "/mcp/all", "tools/call", params, &[]).json();
    assert_eq!(modern["result"]["structuredContent"], json!(["called", 1.5]));
    let records = until("the records", || {
        let records = proxy.activity("type=tool_call&tool=many");
        (records.len() == 2).then_some(records)
    });
    let adapted: Vec<_> =
        records.iter().filter(|record| record["metadata"].get("adapted").is_some()).collect();
    let [record] = adapted.as_slice() else { panic!("{records:?}") };
    assert_eq!(record["metadata"]["adapted"], "structuredContent");
    let receipt = &record["metadata"]["receipt"];
    assert_eq!(receipt["why"], "adapted");
    let result = legacy.trim();
    let delivered = blake3::hash(result.as_bytes()).to_hex().to_string();
    assert_eq!(receipt["delivered"], delivered, "{result}");
}
