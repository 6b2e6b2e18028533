//! Floods of requests do not remove other records: calls stay recorded, refusals are counted, and other clients are not
//! delayed (ACT-6, ACT-10).

use serde_json::{Value, json};

use crate::harness::{
    API_KEY, Client, Connection, Proxy, Response, create_token, stub_stdio, write_private,
};

const CODE: i64 = -32000;

/// Client with a token that calls over REST.
struct Holder {
    connection: Connection,
    token: String,
}

impl Holder {
    fn new(proxy: &Proxy, name: &str) -> Self {
        Self { connection: Connection::open(proxy.port), token: create_token(proxy, &[name]) }
    }

    fn call(&mut self, operation: &str, tool: &str, args: Value) -> Response {
        let body = json!({"tool_name": format!("call_tool_{operation}"),
            "intent": {"operation_type": operation}, "arguments": {"name": tool, "args": args}});
        let headers = [("X-API-Key", &*self.token)];
        let body = body.to_string();
        self.connection.send("POST", "/api/v1/tools/call", &headers, body.as_bytes());
        self.connection.response()
    }
}

fn proxy(limits: Value) -> Proxy {
    Proxy::with(json!({
        "mcpServers": {"s": stub_stdio(&["--only", "read_item,delete_item"])},
        "activity": {"max_records": 200}, "limits": limits,
    }))
}

/// All records of a principal, oldest first.
fn records(proxy: &Proxy, principal: &str) -> Vec<Value> {
    let path = format!("/api/v1/activity/export?format=json&principal={principal}");
    let lines = proxy.request("GET", &path, &[("X-API-Key", API_KEY)], b"").text();
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Number of requests that these records of calls represent.
fn requests(records: &[Value]) -> u64 {
    let calls = records.iter().filter(|record| record["type"] == "tool_call");
    calls.map(|record| record["metadata"]["repeated"].as_u64().unwrap_or(1)).sum()
}

fn throttled(proxy: &Proxy) -> u64 {
    proxy.api("status")["calls"]["refusals"]["throttled"].as_u64().unwrap()
}

#[test]
fn act_6_flood_of_refused_calls_does_not_evict_records_or_delay_other_clients() {
    const FLOOD: u64 = 3000;
    let proxy = proxy(json!({"refusals_per_second": 1, "refusals_burst": 100}));
    let (mut agent, mut other) = (Holder::new(&proxy, "agent"), Holder::new(&proxy, "other"));
    assert_eq!(agent.call("destructive", "s:delete_item", json!({"id": 7})).status, 200);
    let done = proxy.activity("type=tool_call&status=success&principal=token:agent")[0].clone();
    let (mut answered, mut refused) = (0, 0);
    for number in 0..FLOOD {
        // No refusal is identical to an earlier one.
        let answer = agent.call("read", "s:no_such_tool", json!({"n": number}));
        match answer.status {
            404 => answered += 1,
            429 => {
                refused += 1;
                assert!(answer.header("retry-after").is_some());
                let text = answer.json()["error"].as_str().unwrap().to_owned();
                let of = "'token:agent' are refused: limit 1 per second, retry in ";
                assert!(
                    text.starts_with("Tool 's:no_such_tool' not found; ") && text.contains(of),
                    "{text}"
                );
            }
            status => panic!("{status}: {}", answer.text()),
        }
        if number % 100 == 0 {
            assert_eq!(other.call("read", "s:read_item", json!({"n": number})).status, 200);
        }
    }
    assert!(answered >= 100 && refused > FLOOD / 2, "{answered} {refused}");
    assert_eq!((answered + refused, throttled(&proxy)), (FLOOD, refused));
    // Its earlier record is kept, in a log limited to 200 records.
    let id = done["id"].as_str().unwrap();
    let still = proxy.api(&format!("activity/{id}"))["activity"].clone();
    assert_eq!((&still["tool_name"], &still["hash"]), (&json!("delete_item"), &done["hash"]));
    assert_eq!(proxy.api("activity/verify")["first"], 1);
    // Every refusal is recorded, in few records.
    let of_agent = records(&proxy, "token:agent");
    assert_eq!(requests(&of_agent), 1 + FLOOD);
    assert!((of_agent.len() as u64) < FLOOD, "{} records", of_agent.len());
    let counted = of_agent.iter().find(|it| it["metadata"]["tools"].is_object()).unwrap();
    assert!(counted["metadata"]["tools"]["s:no_such_tool"].as_u64() > Some(1), "{counted}");
    assert_eq!(requests(&records(&proxy, "token:other")), FLOOD / 100);
}

#[test]
fn act_6_flood_of_permitted_calls_is_slowed_above_its_share() {
    let proxy = proxy(json!({}));
    let (mut agent, mut other) = (Holder::new(&proxy, "agent"), Holder::new(&proxy, "other"));
    assert_eq!(other.call("read", "s:read_item", json!({})).status, 200);
    assert_eq!(agent.call("destructive", "s:delete_item", json!({})).status, 200);
    let mut made = 0;
    let refused = loop {
        let answer = agent.call("read", "s:read_item", json!({"n": made}));
        if answer.status != 200 {
            break answer;
        }
        made += 1;
        assert!(made < 20_000, "it is never slowed");
    };
    assert_eq!(refused.status, 429, "{}", refused.text());
    assert!(made >= 200, "{made}");
    assert!(refused.header("retry-after").is_some());
    let text = "the activity log is over its budget and 'token:agent' has taken more than its share: retry in 1s";
    assert_eq!(refused.json()["error"], text);
    for _ in 0..20 {
        assert_eq!(other.call("read", "s:read_item", json!({})).status, 200);
    }
    assert_eq!(requests(&records(&proxy, "token:agent")), made + 2);
    assert_eq!(requests(&records(&proxy, "token:other")), 21);
    assert_eq!(proxy.api("activity/verify")["first"], 1);
}

#[test]
fn act_10_identical_refusals_are_one_record_with_their_count_in_all_views() {
    const CALLS: u64 = 200;
    let proxy = proxy(json!({}));
    let mut client = proxy.client();
    for _ in 0..CALLS {
        client.call("read", "s:no_such_tool", json!({"same": true}));
    }
    let records = records(&proxy, "anonymous");
    assert_eq!(requests(&records), CALLS);
    assert!((records.len() as u64) < CALLS, "{} records", records.len());
    let repeated = proxy.activity("type=tool_call&principal=anonymous").into_iter();
    let repeated = repeated.max_by_key(|it| it["metadata"]["repeated"].as_u64()).unwrap();
    let count = repeated["metadata"]["repeated"].as_u64().unwrap();
    assert_eq!(repeated["arguments"], json!({"same": true}));
    assert!(repeated["metadata"]["until"].is_string(), "{repeated}");
    let listed = proxy.cli(&["activity", "list", "--type", "tool_call"]).stdout;
    assert!(
        listed.contains(&format!("{count} times: Tool 's:no_such_tool' not found")),
        "{listed}"
    );
    let shown = proxy.cli(&["activity", "show", repeated["id"].as_str().unwrap()]).stdout;
    assert!(shown.contains(&format!("repeated           {count}\n")), "{shown}");
    // A refusal in another session is not identical.
    let mut second = proxy.client();
    second.call("read", "s:no_such_tool", json!({"same": true}));
    let newest = &proxy.activity("type=tool_call&principal=anonymous")[0];
    assert_eq!(newest["metadata"]["repeated"], Value::Null, "{newest}");
}

#[test]
fn act_10_refusals_with_other_meta_or_arguments_are_recorded_one_by_one() {
    const CALLS: usize = 6;
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("rules.cedar");
    write_private(
        &rules,
        r#"@id("no") forbid(principal, action, resource == Tool::"s:read_item");"#,
    );
    let proxy = Proxy::with(json!({
        "mcpServers": {"s": stub_stdio(&["--only", "read_item"])},
        "activity": {"max_payload_bytes": 1024}, "policy": {"files": [rules]},
        "input_validation": {"mode": "off"},
    }));
    let mut client = proxy.client();
    let mut refused = |args: Value, meta: Value| {
        let arguments =
            json!({"name": "s:read_item", "args": args, "intent": {"operation_type": "read"}});
        let params = json!({"name": "call_tool_read", "arguments": arguments, "_meta": meta});
        let answer = client.ask("tools/call", params);
        assert!(answer.to_string().contains("rule 'no'"), "{answer}");
    };
    for n in 0..CALLS {
        refused(json!({"pad": "x".repeat(2000), "tail": n}), json!({}));
        refused(json!({}), json!({"example.com/target": format!("meta-{n}")}));
    }
    let records = proxy.activity("type=tool_call&principal=anonymous");
    assert_eq!(records.len(), 2 * CALLS, "{records:?}");
    for n in 0..CALLS {
        let meta = json!({"example.com/target": format!("meta-{n}")});
        assert!(records.iter().any(|it| it["metadata"]["_meta"] == meta), "{n}: {records:?}");
    }
}

#[test]
fn act_10_mcp_client_above_the_rate_gets_429_and_an_error_with_the_cause() {
    let proxy = proxy(json!({"refusals_per_second": 1, "refusals_burst": 1}));
    let mut client: Client = proxy.client();
    let call = |client: &mut Client, n: u64| {
        let params = json!({"name": "call_tool_read", "arguments": {
            "name": "s:no_such_tool", "args": {"n": n}, "intent": {"operation_type": "read"}}});
        let message =
            json!({"jsonrpc": "2.0", "id": 900 + n, "method": "tools/call", "params": params});
        client.post(message.to_string().as_bytes())
    };
    assert_eq!(call(&mut client, 0).status, 200, "the first refusal has its reason");
    // One more is admitted per second.
    let beyond =
        (1..1000).map(|n| call(&mut client, n)).find(|answer| answer.status != 200).unwrap();
    assert_eq!((beyond.status, beyond.header("retry-after")), (429, Some("1")));
    let body = beyond.json();
    assert_eq!(body["error"]["code"], CODE, "{body}");
    let text = body["error"]["message"].as_str().unwrap();
    assert!(
        text.contains("too many requests of 'anonymous' are refused: limit 1 per second"),
        "{text}"
    );
    // Permitted calls continue.
    assert_eq!(client.read("s:read_item", json!({}))["structuredContent"]["value"], 7);
}
