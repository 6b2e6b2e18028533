//! Text search in records over REST and the command line: pages, and the principal's own records only.

use serde_json::{Value, json};

use crate::harness::{API_KEY, Proxy, stub_stdio};

fn called(proxy: &Proxy) {
    let mut client = proxy.client();
    for number in 0..7 {
        client.read("s:read_item", json!({"id": format!("Item \"{number}\" of Straße")}));
        client.call("write", "s:write_item", json!({"id": number}));
    }
}

fn found(proxy: &Proxy, query: &str) -> Value {
    proxy.api(&format!("activity?{query}"))
}

#[test]
fn act_5_text_search_matches_anywhere_in_a_record_and_pages_return_each_match_once() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&[])}));
    called(&proxy);
    let all = found(&proxy, "text=item+%223%22+of&type=tool_call");
    assert_eq!(all["activities"].as_array().unwrap().len(), 1, "{all}");
    assert_eq!(all["activities"][0]["arguments"]["id"], "Item \"3\" of Straße");
    assert_eq!(all["searched"], 14, "{all}");
    assert_eq!(all.get("next_cursor"), None);
    let bare = found(&proxy, "text=item+%223%22+of&type=tool_call&exclude_payloads=true");
    assert_eq!(bare["activities"].as_array().unwrap().len(), 1, "searched, and not shown");
    assert_eq!(bare["activities"][0].get("arguments"), None);
    // The pages contain each of the seven records once, newest first.
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = found(&proxy, &format!("text=STRA%C3%9FE&type=tool_call&limit=2{cursor}"));
        let records = page["activities"].as_array().unwrap().clone();
        assert!(records.len() <= 2, "{page}");
        seen.extend(records.iter().map(|it| it["seq"].as_u64().unwrap()));
        let Some(next) = page["next_cursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(seen.len(), 7, "{seen:?}");
    assert!(seen.is_sorted_by(|one, other| one > other), "{seen:?}");
    assert_eq!(found(&proxy, "text=nowhere+to+be+found")["activities"], json!([]));
    let named = found(&proxy, "text=S:Read_Item&type=tool_call");
    assert_eq!(named["activities"].as_array().unwrap().len(), 7, "{named}");
    proxy.client().read("s:echo", json!({"wait_ms": 300}));
    let slow = found(&proxy, "min_duration_ms=300");
    let [call] = &slow["activities"].as_array().unwrap()[..] else { panic!("{slow}") };
    assert_eq!((&call["tool_name"], slow.get("next_cursor")), (&json!("echo"), None));
    let listed = proxy.cli(&["activity", "list", "--slower-than", "300ms"]);
    assert_eq!(listed.stdout.lines().count(), 2, "{}", listed.stdout);
    let exported = proxy.get("/api/v1/activity/export?min_duration_ms=300");
    assert_eq!(exported.text().lines().count(), 1, "{}", exported.text());
    for (query, expected) in [
        ("text=a&offset=1", "'text' and 'offset'"),
        ("text=a&with_total=true", "'text' and 'with_total'"),
        ("min_duration_ms=1&offset=1", "'min_duration_ms' and 'offset'"),
        ("min_duration_ms=0", "min_duration_ms"),
        ("text=", "Invalid text ''"),
    ] {
        let refused = proxy.get(&format!("/api/v1/activity?{query}"));
        assert_eq!(refused.status, 400, "{query}");
        assert!(refused.text().contains(expected), "{}", refused.text());
    }
    for (format, lines) in [("json", 1), ("csv", 2)] {
        let of = |text: &str| format!("activity/export?type=tool_call&format={format}&text={text}");
        let exported = proxy.get(&format!("/api/v1/{}", of("item+%223%22+of")));
        assert_eq!(exported.text().lines().count(), lines, "{}", exported.text());
        assert!(exported.text().contains("Straße"), "{}", exported.text());
        let none = proxy.get(&format!("/api/v1/{}", of("nowhere+to+be+found")));
        assert_eq!(none.text().lines().count(), lines - 1, "{}", none.text());
    }
    let table = |name: &str, more: &[&str]| {
        let file = proxy.folder.path().join(name);
        let export = ["activity", "export", "--file", file.to_str().unwrap()];
        let exported = proxy.cli(&[&export[..], more].concat());
        assert_eq!(exported.code, Some(0), "{}", exported.stderr);
        std::fs::read(file).unwrap()
    };
    let (found, all) =
        (table("found.parquet", &["--text", "item \"3\" of"]), table("all.parquet", &[]));
    assert!(found.starts_with(b"PAR1") && found.ends_with(b"PAR1"));
    assert!(found.len() < all.len(), "{} of {} bytes", found.len(), all.len());
    let listed = proxy.cli(&["activity", "list", "--text", "item \"3\" OF", "-o", "json"]);
    let listed = listed.json();
    let listed = listed["activities"].as_array().unwrap();
    assert!(!listed.is_empty() && listed.iter().all(|it| it.to_string().contains("\\\"3\\\"")));
}

#[test]
fn act_5_text_search_with_a_token_skips_records_of_other_principals() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&[])}));
    called(&proxy);
    let made = proxy.cli(&["token", "create", "ci", "-o", "json"]).json();
    let token = made["token"].as_str().unwrap();
    let as_token = |path: &str| proxy.request("GET", path, &[("X-API-Key", token)], b"");
    let theirs = as_token("/api/v1/activity?text=Stra%C3%9Fe");
    assert_eq!(theirs.json()["data"]["activities"], json!([]), "{}", theirs.text());
    let key = [("X-API-Key", API_KEY)];
    let ours = proxy.request("GET", "/api/v1/activity?text=Stra%C3%9Fe", &key, b"");
    assert!(!ours.json()["data"]["activities"].as_array().unwrap().is_empty());
}

#[test]
fn cli_2_reasons_of_rows_do_not_depend_on_the_limit_or_the_filters() {
    let mut server = stub_stdio(&[]);
    server["capabilities"] = json!({"no_hints": {"approval": "required"}});
    let proxy = Proxy::with(json!({"mcpServers": {"s": server}, "approval": {"timeout": "1s"}}));
    let key = [("X-API-Key", API_KEY)];
    let body = br#"{"name": "ci", "operations": ["read"]}"#;
    let token = proxy.request("POST", "/api/v1/tokens", &key, body).json()["data"]["token"].clone();
    let key = [("X-API-Key", token.as_str().unwrap())];
    // Equal calls would share a record.
    let operations = ["read", "write", "destructive"];
    for (operation, tool) in operations.iter().flat_map(|it| [(it, "delete"), (it, "write")]) {
        let arguments = json!({"name": format!("s:{tool}_item"), "args": {},
            "intent": {"operation_type": operation}});
        let body = json!({"tool_name": format!("call_tool_{operation}"), "arguments": arguments});
        let refused =
            proxy.request("POST", "/api/v1/tools/call", &key, body.to_string().as_bytes());
        assert_ne!(refused.status, 200, "{}", refused.text());
    }
    // Nobody approves it. Its approval has no row of its own.
    proxy.client().call("write", "s:no_hints", json!({}));
    let rows = |more: &[&str]| {
        let listed = proxy.cli(&[&["activity", "list"][..], more].concat());
        // The widths of columns depend on the rows.
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        listed.stdout.lines().skip(1).map(words).collect::<Vec<_>>()
    };
    let all = rows(&["--type", "tool_call,policy_decision"]);
    assert_eq!(all.len(), 7, "{all:?}");
    assert!(all.iter().any(|row| row.contains("not found; blocked: ")), "{all:?}");
    for filter in [&["--status", "refused"][..], &["--type", "tool_call"], &[]] {
        for limit in ["1", "2", "3", "4", "5", "6", "7"] {
            let shown = rows(&[filter, &["-n", limit]].concat());
            let calls: Vec<_> = shown.iter().filter(|row| row.contains("tool_call")).collect();
            assert_eq!(
                calls,
                all.iter().take(calls.len()).collect::<Vec<_>>(),
                "{filter:?} {limit}"
            );
        }
    }
}
