//! The operator's rules, at every door: what they refuse, what they permit, what they hide, and how they change.

use std::path::Path;

use serde_json::{Value, json};

use crate::harness::{API_KEY, Client, Proxy, configure, error_text, mcpproxy, stub_stdio, until};

const RULES: &str = r#"
@id("no-deletes") @message("ask ann")
forbid (principal == Agent::"anonymous", action, resource == Tool::"s:delete_item");

@id("small")
forbid (principal, action in [Action::"read", Action::"write", Action::"destructive"],
        resource == Tool::"s:read_item")
when { context.args has size && context.args.size > 100 };

@id("known-words")
permit (principal, action in [Action::"read", Action::"write"], resource == Tool::"s:echo")
when { context.args has behaviour && context.args.behaviour == "known" };

@id("no-secret")
forbid (principal, action, resource == Resource::"s:test://shared");
"#;

/// A proxy before the stub, under these rules.
fn proxy(rules: &str, policy: Value) -> Proxy {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("rules.cedar"), rules).unwrap();
    let config = json!({"mcpServers": {"s": stub_stdio(&[])}, "policy": policy});
    Proxy::unready(config, folder).ready()
}

fn enforced(rules: &str) -> Proxy {
    // From the config file's folder.
    proxy(rules, json!({"files": ["rules.cedar"]}))
}

fn found(client: &mut Client, query: &str) -> Vec<String> {
    let found = client.tool("retrieve_tools", json!({"query": query, "limit": 100}));
    let tools = found["structuredContent"]["tools"].as_array().unwrap();
    tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

fn decision(proxy: &Proxy) -> Value {
    proxy.activity("type=policy_decision").first().expect("a decision").clone()
}

#[test]
fn act_1_a_rule_refuses_with_its_message_and_is_on_record() {
    let proxy = enforced(RULES);
    let mut client = proxy.client();
    let refused = client.call("destructive", "s:delete_item", json!({}));
    let text = "Tool 's:delete_item' is not allowed by rule 'no-deletes': ask ann";
    assert_eq!(error_text(&refused), text);
    let decided = decision(&proxy);
    assert_eq!(decided["status"], "blocked");
    for (member, value) in [
        ("decision", json!("blocked")),
        ("policy", json!("rules")),
        ("reason", json!(text)),
        ("rules", json!(["no-deletes"])),
    ] {
        assert_eq!(decided["metadata"][member], value, "{decided}");
    }
    let call = &proxy.activity("type=tool_call")[0];
    assert_eq!((&call["status"], &call["error_message"]), (&json!("rejected"), &json!(text)));
    // The same by the other doors; over REST it is the admin, whom the rule is not about.
    let mut direct = proxy.direct_client();
    let answer = direct.tool("s__delete_item", json!({}));
    assert_eq!(error_text(&answer), text);
    let body = json!({"tool_name": "call_tool_destructive", "arguments": {"name": "s:delete_item"},
        "intent": {"operation_type": "destructive"}});
    let rest = |body: &Value| {
        let key = [("X-API-Key", crate::harness::API_KEY)];
        proxy.request("POST", "/api/v1/tools/call", &key, body.to_string().as_bytes())
    };
    assert_eq!(rest(&body).status, 200);
    let body = json!({"tool_name": "call_tool_read", "intent": {"operation_type": "read"},
        "arguments": {"name": "s:read_item", "args": {"size": 101}}});
    let refused = rest(&body);
    assert_eq!(refused.status, 403, "{}", refused.text());
    assert!(refused.text().contains("rule 'small'"), "{}", refused.text());
}

#[test]
fn arguments_that_a_rule_cannot_be_shown_are_refused() {
    let proxy = enforced(RULES);
    let mut client = proxy.client();
    // The rules do not need it, so that they let it pass; the tool's schema does not, which is asked after them.
    let good = client.read("s:read_item", json!({"size": 3, "behaviour": 7}));
    let misfit = "Arguments of 's:read_item' do not fit: /behaviour: expected string";
    assert!(error_text(&good).starts_with(misfit), "{good}");
    for name in ["behaviour", "other"] {
        let good = client.read("s:read_item", json!({"size": 3, name: null}));
        assert_ne!(good["isError"], true, "{good}");
    }
    for (args, why) in [
        (json!({"size": 1.5}), "argument 'size' is a number that is not whole, or too large"),
        (json!({"size": null}), "argument 'size' is null"),
        (json!({"size": "3"}), "argument 'size' is of another type than the tool's schema says"),
        (json!({"size": 1, "Size": 1000}), "the arguments have two keys that differ only by case"),
        (json!({"x": [{"a": 1, "A": 2}]}), "the arguments have two keys that differ only by case"),
    ] {
        let refused = client.read("s:read_item", args);
        let text = format!(
            "Tool 's:read_item' is not allowed by rule 'small': it cannot be evaluated: {why}"
        );
        assert_eq!(error_text(&refused), text);
    }
}

#[test]
fn a_rule_is_told_which_client_asks() {
    let rules = r#"@id("not-by-this") forbid (principal, action == Action::"read", resource == Tool::"s:read_item")
        when { context.client == "CLIENT" };"#;
    for (client, refused) in [("e2e", true), ("other", false)] {
        let proxy = enforced(&rules.replace("CLIENT", client));
        let result = proxy.client().read("s:read_item", json!({}));
        assert_eq!(result["isError"] == true, refused, "{client}: {result}");
    }
}

#[test]
fn rules_that_permit_are_on_record() {
    let proxy = enforced(RULES);
    let mut client = proxy.client();
    client.read("s:echo", json!({"behaviour": "known"}));
    assert_eq!(proxy.activity("type=tool_call")[0]["metadata"]["rules"], json!(["known-words"]));
    client.read("s:echo", json!({"behaviour": "other"}));
    assert_eq!(proxy.activity("type=tool_call")[0]["metadata"].get("rules"), None);
}

#[test]
fn what_may_not_be_called_is_not_shown() {
    let proxy = enforced(RULES);
    let (mut client, mut direct) = (proxy.client(), proxy.direct_client());
    let names = found(&mut client, "item");
    assert!(names.contains(&"s:read_item".to_owned()), "what depends on arguments is shown");
    assert!(!names.contains(&"s:delete_item".to_owned()), "{names:?}");
    let list = direct.ask("tools/list", json!({}));
    let all = list["result"]["tools"].as_array().unwrap();
    let has = |name: &str| all.iter().any(|tool| tool["name"] == name);
    assert!(has("s__read_item") && !has("s__delete_item"));
    let list = direct.ask("resources/list", json!({}));
    assert!(!list.to_string().contains("mcpproxy://s/test://shared\""), "{list}");
    let read = direct.ask("resources/read", json!({"uri": "mcpproxy://s/test://shared"}));
    let text = "Resource 's:test://shared' is not allowed by rule 'no-secret'";
    assert!(read.to_string().contains(text), "{read}");
}

#[test]
fn where_nothing_is_permitted_nothing_is_shown_or_called() {
    let proxy = proxy("", json!({"files": ["rules.cedar"], "default": "deny"}));
    let mut client = proxy.client();
    assert_eq!(found(&mut client, "item"), [""; 0]);
    let refused = client.read("s:read_item", json!({}));
    let text = "Tool 's:read_item' is not allowed by rule 'default': no rule permits it";
    assert_eq!(error_text(&refused), text);
}

#[test]
fn in_shadow_rules_only_watch() {
    let proxy = proxy(RULES, json!({"files": ["rules.cedar"], "mode": "shadow"}));
    let mut client = proxy.client();
    let answer = client.call("destructive", "s:delete_item", json!({}));
    assert_ne!(answer["isError"], true, "{answer}");
    assert!(found(&mut client, "item").contains(&"s:delete_item".to_owned()));
    let metadata = decision(&proxy)["metadata"].clone();
    assert_eq!(
        (&metadata["decision"], &metadata["policy"], &metadata["mode"], &metadata["rules"]),
        (&json!("warning"), &json!("rules"), &json!("shadow"), &json!(["no-deletes"]))
    );
}

#[test]
fn rules_that_change_are_in_force_and_half_written_ones_are_not() {
    let proxy = enforced(RULES);
    let file = proxy.folder.path().join("rules.cedar");
    let mut client = proxy.client();
    std::fs::write(&file, "forbid (principal, action,").unwrap();
    let told =
        until("the refusal", || proxy.activity("type=config_change&status=error").first().cloned());
    let text = told["error_message"].as_str().unwrap();
    assert!(text.contains("rules.cedar:1:1: the rule is not finished"), "{text}");
    error_text(&client.call("destructive", "s:delete_item", json!({})));
    std::fs::write(&file, "forbid (principal, action, resource == Tool::\"s:gone\");").unwrap();
    until("the refusal of what can never match", || {
        let told = proxy.activity("type=config_change&status=error");
        told.first()?["error_message"].as_str()?.contains("no such tool").then_some(())
    });
    std::fs::write(&file, r#"@id("new") forbid (principal, action, resource == Tool::"s:echo");"#)
        .unwrap();
    until("the new rules", || {
        proxy.activity("type=config_change&status=success").first().map(drop)
    });
    let answer = client.call("destructive", "s:delete_item", json!({}));
    assert_ne!(answer["isError"], true, "{answer}");
    assert!(error_text(&client.read("s:echo", json!({}))).contains("rule 'new'"));
}

#[test]
fn rules_that_are_wrong_keep_it_from_starting() {
    let folder = tempfile::tempdir().unwrap();
    let config = json!({"policy": {"files": ["rules.cedar"]}, "mcpServers": {}});
    let path = configure(config, folder.path());
    let mut rules = "permit (principal, action, resource);\n".to_owned();
    let start = |text: &str| {
        std::fs::write(folder.path().join("rules.cedar"), text).unwrap();
        let done = mcpproxy().arg("serve").arg("--config").arg(&path).output().unwrap();
        (done.status.code(), String::from_utf8(done.stderr).unwrap())
    };
    let (code, said) = start(&format!("{rules}permit (principal action);"));
    assert!(code == Some(5) && said.contains("rules.cedar:2:19"), "{code:?} {said}");
    rules = rules.repeat(10 * 1024 * 1024 / rules.len());
    let (code, said) = start(&rules);
    assert!(code == Some(5) && said.contains("larger than 1048576 bytes"), "{code:?} {said}");
}

fn write(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn the_command_line_checks_tests_and_explains() {
    let proxy = enforced(RULES);
    let folder = proxy.folder.path();
    let checked = proxy.cli(&["policy", "check"]);
    assert_eq!((checked.code, &*checked.stdout), (Some(0), "ok: 4 rules in 1 file\n"));
    let bad = write(
        folder,
        "bad.cedar",
        "permit(principal, action, resource);\nforbid(principal, action == Action::\"read\", resource == Tool::\"s:echo\")\n  when { context.args.nothing == 1 };",
    );
    let checked = proxy.cli(&["policy", "check", &bad]);
    assert_eq!(checked.code, Some(1));
    assert!(checked.stdout.contains("bad.cedar:3:10"), "{}", checked.stdout);
    let cases = write(
        folder,
        "cases.yaml",
        "- {principal: anonymous, action: destructive, tool: 's:delete_item', expect: deny, rule: no-deletes}\n\
         - {principal: admin, action: read, tool: 's:read_item', args: {size: 5}, expect: allow}\n\
         - {name: odd, principal: admin, action: read, tool: 's:read_item', args: {size: 500}, expect: allow}\n",
    );
    let tested = proxy.cli(&["policy", "test", &cases, "-o", "json"]);
    assert_eq!(tested.code, Some(1), "{}", tested.stderr);
    let report = tested.json();
    assert_eq!((&report["passed"], &report["failed"]), (&json!(2), &json!(1)), "{report}");
    assert_eq!(report["cases"][2]["rules"], json!(["small"]));
    let explained = proxy.cli(&[
        "policy",
        "explain",
        "--as",
        "token:x",
        "--tool",
        "s:read_item",
        "--args",
        "{\"size\":500}",
        "-o",
        "json",
    ]);
    let told = explained.json();
    assert_eq!((&told["decision"], &told["decided_by"]), (&json!("deny"), &json!(["small"])));
    assert_eq!(
        told["rules"][0]["saw"],
        json!([{"path": "context.args.size", "value": "500"}]),
        "{told}"
    );
    let shown = proxy.cli(&["policy", "explain", "--as", "admin", "--tool", "s:echo"]);
    assert!(shown.stdout.starts_with("allow"), "{}", shown.stdout);
}

#[test]
fn new_rules_are_put_to_the_calls_in_the_log() {
    let proxy = enforced(RULES);
    let mut client = proxy.client();
    for size in [1, 60, 101] {
        client.read("s:read_item", json!({"size": size}));
    }
    client.read("s:read_item", json!({"size": 1, "password": "hunter2hunter2"}));
    client.call("destructive", "s:delete_item", json!({}));
    let new = write(
        proxy.folder.path(),
        "new.cedar",
        r#"@id("smaller") forbid (principal, action == Action::"read", resource == Tool::"s:read_item")
           when { context.args has size && context.args.size > 50 };"#,
    );
    let replayed = proxy.cli(&["policy", "replay", &new, "--since", "30d", "-o", "json"]);
    assert_eq!(replayed.code, Some(0), "{}", replayed.stderr);
    let report = replayed.json();
    assert_eq!(
        report["total"],
        json!({"calls": 5, "newly_refused": 1, "newly_allowed": 1, "undecidable": 1,
               "rules": ["no-deletes", "smaller"]}),
        "{report}"
    );
    assert_eq!(report["undecidable_because"], json!({"arguments redacted": 1}));
    let table = proxy.cli(&["policy", "replay", &new, "--since", "1h"]);
    assert!(table.stdout.contains("5 calls since"), "{}", table.stdout);
    // With no proxy running, a copy of its log says the same.
    let folder = proxy.end();
    let config = folder.path().join("config.json");
    let mut command = mcpproxy();
    command.arg("--config").arg(config).args(["policy", "replay", &new, "-o", "json"]);
    command.env("MCPPROXY_LISTEN", format!("127.0.0.1:{}", crate::harness::free_port()));
    let offline = crate::harness::Output::of(&mut command);
    assert_eq!(offline.json()["total"], report["total"], "{}", offline.stderr);
}

#[test]
fn rules_are_replayed_over_rest_in_pages_and_change_nothing() {
    let proxy = enforced(RULES);
    let mut client = proxy.client();
    for size in [1, 60, 101] {
        client.read("s:read_item", json!({"size": size}));
    }
    client.call("destructive", "s:delete_item", json!({}));
    let key = [("X-API-Key", API_KEY)];
    let post = |body: Value| {
        proxy.request("POST", "/api/v1/policy/replay", &key, body.to_string().as_bytes())
    };
    let new = r#"@id("smaller") forbid (principal, action == Action::"read", resource == Tool::"s:read_item")
        when { context.args has size && context.args.size > 50 };"#;
    let told = post(json!({"rules": new})).json()["data"].clone();
    assert_eq!(
        told["total"],
        json!({"calls": 4, "newly_refused": 1, "newly_allowed": 1, "undecidable": 0,
               "rules": ["no-deletes", "smaller"]}),
        "{told}"
    );
    assert_eq!((&told["rules"], told.get("next_cursor")), (&json!(1), None), "{told}");
    // Without any, those in force beside none.
    let told = post(json!({})).json()["data"].clone();
    assert_eq!(
        (&told["total"]["newly_refused"], &told["total"]["newly_allowed"]),
        (&json!(2), &json!(0)),
        "{told}"
    );
    // From a place, and from a time, on.
    let calls = proxy.activity("type=tool_call");
    assert_eq!(calls.len(), 4, "the calls were not made again");
    let after = post(json!({"rules": new, "cursor": calls[2]["id"]})).json()["data"].clone();
    assert_eq!(after["total"]["calls"], 2, "{after}");
    let late = post(json!({"rules": new, "start_time": "2999-01-01T00:00:00Z"})).json();
    assert_eq!(late["data"]["total"]["calls"], 0, "{late}");
    for (body, said) in [
        (json!({"rules": "forbid (principal"}), "rules:1:"),
        (
            json!({"rules": r#"forbid (principal, action, resource == Tool::"s:nothing");"#}),
            "s:nothing",
        ),
        (json!({"cursor": "x"}), "Invalid cursor 'x'"),
        (json!({"rulez": ""}), "rulez"),
    ] {
        let refused = post(body);
        assert_eq!(refused.status, 400, "{}", refused.text());
        assert!(refused.text().contains(said), "{}", refused.text());
    }
    let none = Proxy::start(json!({}));
    let refused = none.request("POST", "/api/v1/policy/replay", &key, b"{}");
    assert_eq!(refused.status, 400, "{}", refused.text());
    assert!(refused.text().contains("no rules in force"), "{}", refused.text());
}

#[test]
fn a_pipe_in_the_place_of_a_file_is_told_and_holds_up_no_reload() {
    let proxy = enforced(RULES);
    let rules = proxy.folder.path().join("rules.cedar");
    let reload = || proxy.request("POST", "/api/v1/config/reload", &[("X-API-Key", API_KEY)], b"");
    std::fs::remove_file(&rules).unwrap();
    nix::unistd::mkfifo(&rules, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let refused = reload();
    assert_eq!(refused.status, 422, "{}", refused.text());
    let told = refused.text();
    assert!(told.contains("rules.cedar") && told.contains("it is no file"), "{told}");
    std::fs::remove_file(&rules).unwrap();
    std::fs::write(&rules, RULES).unwrap();
    let taken = reload();
    assert_eq!(taken.status, 200, "{}", taken.text());
    let refused = proxy.client().call("destructive", "s:delete_item", json!({}));
    assert!(error_text(&refused).contains("'no-deletes'"), "{refused}");
}
