//! `/mcp/all`: every upstream tool under its own name, with the same checks and records as at `/mcp`.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::harness::{Client, HttpStub, Pipe, Proxy, error_text, stub_stdio, until};

/// A server name with characters that clients do not accept in names of tools.
const HOSTILE: &str = "é \"q\"__x";

fn listed(client: &mut Client) -> Vec<Value> {
    let list = client.ask("tools/list", json!({}));
    list["result"]["tools"].as_array().expect("a list").clone()
}

fn names(client: &mut Client) -> Vec<String> {
    listed(client).iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

fn call(client: &mut Client, name: &str, arguments: Value) -> Value {
    let answer = client.ask("tools/call", json!({"name": name, "arguments": arguments}));
    answer.get("result").unwrap_or_else(|| panic!("{answer}")).clone()
}

// PRO-3
#[test]
fn each_tool_is_listed_verbatim_except_its_name() {
    #[derive(Deserialize)]
    struct List<'a> {
        #[serde(borrow)]
        tools: Vec<&'a RawValue>,
    }
    #[derive(Deserialize)]
    struct Named<'a> {
        #[serde(borrow)]
        name: &'a RawValue,
    }
    let stub = HttpStub::shared();
    let proxy = Proxy::start(json!({"s": stub.entry()}));
    let theirs = stub.ask_raw("tools/list", "{}");
    let ours = proxy.direct_client().ask_raw("tools/list", "{}");
    let theirs: List<'_> = serde_json::from_slice(&theirs).unwrap();
    let ours: List<'_> = serde_json::from_slice(&ours).unwrap();
    // Output schemas that cannot be compiled are not listed (DEF-6).
    let unusable = ["uncompilable", "unknown_dialect", "remote_ref"];
    let is_unusable = |json: &str| unusable.iter().any(|name| json.contains(&format!("{name}\"")));
    let expected: BTreeSet<String> = theirs
        .tools
        .iter()
        .filter(|tool| !is_unusable(tool.get()))
        .map(|tool| {
            let named: Named<'_> = serde_json::from_str(tool.get()).unwrap();
            let at = named.name.get().as_ptr() as usize - tool.get().as_ptr() as usize;
            let (before, rest) = tool.get().split_at(at);
            format!("{before}\"s__{}", &rest[1..])
        })
        .collect();
    let (odd, shown): (BTreeSet<String>, BTreeSet<String>) =
        ours.tools.iter().map(|tool| tool.get().to_owned()).partition(|json| is_unusable(json));
    assert_eq!(shown, expected);
    assert_eq!(odd.len(), unusable.len(), "{odd:?}");
    assert!(odd.iter().all(|tool| !tool.contains("outputSchema")), "{odd:?}");
    assert!(expected.len() > 40);
}

#[test]
fn fr_a3_direct_call_returns_the_servers_own_bytes() {
    let stub = HttpStub::shared();
    let proxy = Proxy::start(json!({"s": stub.entry()}));
    let mut client = proxy.direct_client();
    for tool in ["odd_spelling", "escaped_name", "huge_int", "violate", "plain"] {
        let params = format!(r#"{{"name":"s__{tool}"}}"#);
        let got = client.ask_raw("tools/call", &params);
        let sent = stub.direct(tool, &json!({}));
        assert_eq!(got.trim_ascii(), sent.trim_ascii(), "{tool}");
    }
    let arguments = r#"{"n": 1.0e5 ,"é":"\u0041"}"#;
    let params = format!(r#"{{"arguments":{arguments},"name":"s__echo"}}"#);
    let got = client.ask_raw("tools/call", &params);
    let got = String::from_utf8(got).unwrap();
    assert!(got.contains(arguments), "the arguments are forwarded unchanged: {got}");
}

#[test]
fn fr_a2_direct_call_is_validated_and_recorded_with_its_effective_intent() {
    let proxy = Proxy::with(json!({
        "mcpServers": {"s": {"command": crate::harness::stub(), "args": ["stdio"], "capabilities": {
            "echo": {"side_effect": "destructive"},
            "plain": {"approval": "required"},
            "no_hints": {"approval": "suggest"},
        }}},
        "output_validation": {"mode": "strict"},
        "approval": {"timeout": "1s"},
    }));
    let mut client = proxy.direct_client();
    let blocked = call(&mut client, "s__violate", json!({}));
    assert!(error_text(&blocked).starts_with("output schema validation failed: "));
    let refused = call(&mut client, "s__plain", json!({}));
    assert_eq!(error_text(&refused), "Tool 's:plain': approval timed out after 1s");
    for (tool, operation) in [
        ("read_item", "read"),
        ("upsert_item", "write"),
        ("no_hints", "write"),
        ("delete_item", "destructive"),
        ("both_hints", "destructive"),
        ("echo", "destructive"),
    ] {
        let result = call(&mut client, &format!("s__{tool}"), json!({}));
        assert_eq!(result.get("isError"), None, "{result}");
        let records =
            client.records(&proxy, &format!("tool={tool}&intent_type={operation}&type=tool_call"));
        let [record] = records.as_slice() else { panic!("{tool}: {records:?}") };
        assert_eq!(record["metadata"]["tool_variant"], "direct", "{record}");
        assert_eq!(record["metadata"]["operation"], operation, "{record}");
        assert_eq!((&record["status"], &record["server_name"]), (&json!("success"), &json!("s")));
    }
    let decisions = client.records(&proxy, "type=policy_decision");
    let summary: Vec<_> = decisions.iter().map(|d| (&d["tool_name"], &d["status"])).collect();
    let expected = [("no_hints", "warning"), ("plain", "blocked"), ("violate", "blocked")];
    assert_eq!(
        summary,
        expected.map(|(t, s)| (json!(t), json!(s))).iter().map(|(t, s)| (t, s)).collect::<Vec<_>>()
    );
    assert_eq!(client.records(&proxy, "type=tool_call&status=rejected").len(), 1);
}

#[test]
fn unknown_tool_is_a_protocol_error_and_recorded() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&[])}));
    let mut client = proxy.direct_client();
    let refused = |client: &mut Client, name: &str, arguments: Value| {
        let answer = client.ask("tools/call", json!({"name": name, "arguments": arguments}));
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
        answer["error"]["message"].as_str().unwrap().to_owned()
    };
    let unknown = ["s__no_such", "t__read_item", "read_itm", "call_tool_read", "", "__", "s__"];
    for name in unknown {
        let error = refused(&mut client, name, json!({}));
        let (text, near) = error.split_once(". Nearest tools: ").unwrap_or((&error, ""));
        assert_eq!(text, format!("Unknown tool: {name}"));
        assert_eq!(
            near.split(", ").filter(|name| name.starts_with("'s__")).count(),
            if name.is_empty() { 0 } else { 3 }
        );
        assert!(!name.ends_with("read_item") || near.contains("'s__read_item'"), "{near}");
    }
    let text = refused(&mut client, "s__echo", json!([1]));
    assert_eq!(text, "Invalid params: arguments must be an object");
    let records = client.records(&proxy, "type=tool_call&status=rejected");
    assert_eq!(records.len(), unknown.len() + 1);
    assert_eq!(records[records.len() - 1]["tool_name"], "s__no_such");
    let answer = client.ask("tools/list", json!({"cursor": "no such"}));
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
}

#[test]
fn two_endpoints_list_only_their_own_tools() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&["--only", "read_item"])}));
    let (mut search, mut direct) = (proxy.client(), proxy.direct_client());
    assert!(names(&mut search).iter().all(|name| !name.contains("__")));
    assert!(names(&mut direct).iter().all(|name| name.starts_with("s__")));
    let answer = search.ask("tools/call", json!({"name": "s__read_item"}));
    assert_eq!(answer["error"]["code"], -32602);
}

#[test]
fn names_of_hostile_servers_are_portable_and_unambiguous() {
    let servers = ["s", "s__x", "s_", HOSTILE];
    let only = ["--only", "read_item,echo"];
    let entries = servers.map(|name| (name.to_owned(), stub_stdio(&only)));
    let proxy = Proxy::start(Value::Object(entries.into_iter().collect()));
    let mut client = proxy.direct_client();
    let names = names(&mut client);
    let portable = |name: &String| {
        let fits = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
        name.len() <= 64 && name.chars().all(fits)
    };
    assert!(names.iter().all(portable), "{names:?}");
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{names:?}");
    for name in names.iter().filter(|name| name.contains("read_item")) {
        assert_eq!(call(&mut client, name, json!({}))["structuredContent"]["value"], 7);
    }
    let records = client.records(&proxy, "type=tool_call&tool=read_item");
    let called: BTreeSet<_> = records.iter().map(|r| r["server_name"].as_str().unwrap()).collect();
    assert_eq!(called, BTreeSet::from(servers));
}

#[test]
fn added_tool_is_listed() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&[])}));
    let mut client = proxy.direct_client();
    let before = listed(&mut client).len();
    call(&mut client, "s__add_tool", json!({}));
    until("the new tool is listed", || (listed(&mut client).len() == before + 1).then_some(()));
}

#[test]
fn first_list_waits_for_starting_servers() {
    let folder = tempfile::tempdir().unwrap();
    let config = json!({"mcpServers": {
        "s": stub_stdio(&["--only", "read_item"]),
        "gone": {"command": "/no/such/program"},
    }});
    let proxy = Proxy::unready(config, folder);
    let mut client = proxy.direct_client();
    assert!(names(&mut client).contains(&"s__read_item".to_owned()));
    // Over a pipe, the lists of other items are complete.
    let mut pipe = Pipe::start(json!({"mcpServers": {"s": stub_stdio(&["--offers"])}}));
    let list: Value =
        serde_json::from_str(&pipe.ask(r#"{"jsonrpc":"2.0","id":1,"method":"prompts/list"}"#))
            .unwrap();
    assert_eq!(list["result"]["prompts"].as_array().unwrap().len(), 3, "{list}");
}
