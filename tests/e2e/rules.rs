//! Operator rules at every entry point: denials, permissions, hidden items, and changes of the rules.

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
when { context.args has behavior && context.args.behavior == "known" };

@id("no-secret")
forbid (principal, action, resource == Resource::"s:test://shared");
"#;

/// A proxy for the stub, with these rules.
fn proxy(rules: &str, policy: Value) -> Proxy {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("rules.cedar"), rules).unwrap();
    let config = json!({"mcpServers": {"s": stub_stdio(&[])}, "policy": policy});
    Proxy::unready(config, folder).ready()
}

fn enforced(rules: &str) -> Proxy {
    // The path is relative to the folder of the config file.
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

// RUL-1
#[test]
fn act_1_rule_refuses_with_its_message_and_is_recorded() {
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
    // The same at the other entry points. REST calls are made by the admin, to whom this rule does not apply.
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
fn arguments_that_cannot_be_presented_to_a_rule_are_refused() {
    let proxy = enforced(RULES);
    let mut client = proxy.client();
    // The rules do not read this argument and permit the call. The schema, which is evaluated next, refuses it.
    let good = client.read("s:read_item", json!({"size": 3, "behavior": 7}));
    let misfit = "Arguments of 's:read_item' do not fit: /behavior: expected string";
    assert!(error_text(&good).starts_with(misfit), "{good}");
    for name in ["behavior", "other"] {
        let good = client.read("s:read_item", json!({"size": 3, name: null}));
        assert_ne!(good["isError"], true, "{good}");
    }
    // The rule reads the coerced number, which is also sent (INP-8).
    assert_ne!(client.read("s:read_item", json!({"size": "3"}))["isError"], true);
    let refused = client.read("s:read_item", json!({"size": "1000"}));
    assert!(error_text(&refused).contains("rule 'small'"), "{refused}");
    for (args, why) in [
        (json!({"size": 1.5}), "argument 'size' is a number that is not whole, or too large"),
        (json!({"size": null}), "argument 'size' is null"),
        (json!({"size": "many"}), "argument 'size' is of another type than the tool's schema says"),
        (
            json!({"size": 1, "Size": 1000}),
            "a key of the arguments differs only by case from 'size', which the rule reads: write 'size'",
        ),
        (json!({"x": [{"a": 1, "A": 2}]}), "the arguments have two keys that differ only by case"),
    ] {
        let refused = client.read("s:read_item", args);
        let text = format!(
            "Tool 's:read_item' is not allowed by rule 'small': it cannot be evaluated: {why}"
        );
        assert_eq!(error_text(&refused), text);
    }
}

const VARIANT_RULES: &str = r#"
@id("no-etc")
forbid (principal, action in [Action::"read", Action::"write", Action::"destructive"],
        resource == Tool::"s:added_file")
when { context.args has path && context.args.path like "/etc/*" };

@id("no-drop")
forbid (principal, action in [Action::"read", Action::"write", Action::"destructive"],
        resource == Tool::"s:added_file")
when { principal != Agent::"token:x" && context.args has task && context.args.task == "drop" };

@id("no-who")
forbid (principal, action, resource in Server::"s")
when { context has args && context.args has who && context.args.who == "x" };

@id("no-shared")
forbid (principal, action == Action::"read_resource", resource == Resource::"s:test://shared");

@id("no-greet")
forbid (principal, action == Action::"get_prompt", resource == Prompt::"s:greet")
when { context.client == "nobody" };
"#;

/// A proxy with these rules for a stub with the tool `added_file`. Arguments are not validated against the schema of
/// the tool.
fn before_added_file() -> Proxy {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("rules.cedar"), VARIANT_RULES).unwrap();
    let tools = json!([{"name": "added_file", "annotations": {"readOnlyHint": true}, "inputSchema": {
        "type": "object", "properties": {"path": {"type": "string"}, "task": {"type": "string"},
            "options": {"type": "object"}, "list": {"type": "array"}}}},
        {"name": "added_any", "inputSchema": {"type": "object"}}]);
    let file = write(folder.path(), "tools.json", &tools.to_string());
    let server = stub_stdio(&["--offers", "--only", "received", "--tools", &file]);
    let config = json!({"mcpServers": {"s": server}, "policy": {"files": ["rules.cedar"]},
        "input_validation": {"mode": "off"}});
    Proxy::unready(config, folder).ready()
}

fn variant_of(name: &str, rule: &str) -> String {
    format!(
        "Tool 's:added_file' is not allowed by rule '{rule}': it cannot be evaluated: a key of the \
         arguments differs only by case from '{name}', which the rule reads: write '{name}'"
    )
}

// RUL-2
#[test]
fn key_that_a_server_may_read_as_one_of_a_rule_is_refused() {
    let proxy = before_added_file();
    let mut client = proxy.client();
    for (args, name, rule) in [
        (r#"{"Path":"/etc/passwd"}"#, "path", "no-etc"),
        (r#"{"\u0050ath":"/etc/passwd"}"#, "path", "no-etc"),
        (r#"{"path":"/tmp/x","options":{"PATH":"/etc/passwd"}}"#, "path", "no-etc"),
        (r#"{"list":[[{"pAth":"/etc/passwd"}]]}"#, "path", "no-etc"),
        ("{\"ta\u{17f}k\":\"drop\"}", "task", "no-drop"),
        ("{\"tas\u{212a}\":\"drop\"}", "task", "no-drop"),
        (r#"{"tas\u212a":"drop"}"#, "task", "no-drop"),
        ("{\"\u{ff50}ath\":\"/etc/passwd\"}", "path", "no-etc"),
    ] {
        let arguments = format!(
            r#"{{"name":"s:added_file","args":{args},"intent":{{"operation_type":"read"}}}}"#
        );
        let params = format!(r#"{{"name":"call_tool_read","arguments":{arguments}}}"#);
        let result: Value = serde_json::from_slice(&client.ask_raw("tools/call", &params)).unwrap();
        assert_eq!(error_text(&result), variant_of(name, rule), "{args}");
    }
    let answer = proxy.direct_client().tool("s__added_file", json!({"Path": "/etc/passwd"}));
    assert_eq!(error_text(&answer), variant_of("path", "no-etc"));
    let received = client.read("s:received", json!({"Path": "no rule reads this argument"}));
    assert!(!received.to_string().contains("passwd"), "nothing was sent: {received}");
    for good in [json!({"path": "/tmp/x"}), json!({"path": "/tmp/x", "other": {"a": "Path"}})] {
        let answer = client.read("s:added_file", good);
        assert_ne!(answer["isError"], true, "{answer}");
    }
}

// RUL-2
#[test]
fn other_spelling_of_a_resource_or_prompt_that_a_rule_names_is_refused() {
    let proxy = before_added_file();
    let mut client = proxy.client();
    for uri in [
        "TEST://shared",
        "test://Shared",
        "test://%73hared",
        "test://shared/",
        "test://shared/a/..",
        "test://shared?x",
        "test://shared#x",
    ] {
        let read = client.ask("resources/read", json!({"uri": format!("mcpproxy://s/{uri}")}));
        let text = format!(
            "Resource 's:{uri}' is not allowed by rule 'no-shared': it cannot be evaluated: the URI is \
             another spelling of 'test://shared', which the rule names: write 'test://shared'"
        );
        assert!(read["error"]["message"].as_str().unwrap_or_default().contains(&text), "{read}");
    }
    let read = client.ask("resources/read", json!({"uri": "mcpproxy://s/test://shared2"}));
    assert!(!read.to_string().contains("no-shared"), "{read}");
    let got = client.ask("prompts/get", json!({"name": "s__Greet"}));
    let text = "the name differs only by case from 'greet', which the rule names: write 'greet'";
    assert!(got["error"]["message"].as_str().unwrap_or_default().contains(text), "{got}");
    let got = client.ask("prompts/get", json!({"name": "s__greet", "arguments": {}}));
    assert!(got["result"].is_object(), "{got}");
}

#[test]
fn argument_of_a_prompt_is_read_like_one_of_a_tool() {
    let proxy = before_added_file();
    let mut client = proxy.client();
    let mut error = |args: Value| {
        let got = client.ask("prompts/get", json!({"name": "s__greet", "arguments": args}));
        got["error"]["message"].as_str().unwrap_or_default().to_owned()
    };
    let variant = "a key of the arguments differs only by case from 'who', which the rule reads";
    assert!(error(json!({"Who": "x"})).contains(variant));
    assert!(error(json!({"who": "x"})).contains("is not allowed by rule 'no-who'"));
    assert!(!error(json!({"who": "y"})).contains("rule"));
}

#[test]
fn explanation_names_the_key_that_a_rule_reads() {
    let proxy = before_added_file();
    let why = "a key of the arguments differs only by case from 'path', which the rule reads: write 'path'";
    let args = r#"{"options":{"Path":"/etc/passwd"}}"#;
    let explain = ["policy", "explain", "--as", "admin", "--tool", "s:added_file", "--args", args];
    let printed = proxy.cli(&[&explain[..], &["-o", "json"]].concat()).json();
    assert_eq!(
        (&printed["decision"], &printed["decided_by"]),
        (&json!("deny"), &json!(["no-etc"]))
    );
    assert_eq!(printed["text"], variant_of("path", "no-etc"));
    assert_eq!(
        [
            &printed["rules"][0]["outcome"],
            &printed["rules"][0]["error"],
            &printed["rules"][1]["outcome"]
        ],
        [&json!("error"), &json!(why), &json!("does_not_hold")],
        "{printed}"
    );
    let shown = proxy.cli(&explain);
    assert!(shown.stdout.contains(why), "{}", shown.stdout);
    let body = json!({"principal": "admin", "tool": "s:added_file", "args": {"Path": "x"}});
    let key = [("X-API-Key", API_KEY)];
    let path = "/api/v1/policy/explain";
    let answer = proxy.request("POST", path, &key, body.to_string().as_bytes()).json();
    assert_eq!(answer["data"]["rules"][0]["error"], why, "{answer}");
}

#[test]
fn rule_can_test_the_name_of_the_client() {
    let rules = r#"@id("not-by-this") forbid (principal, action == Action::"read", resource == Tool::"s:read_item")
        when { context.client == "CLIENT" };"#;
    for (client, refused) in [("e2e", true), ("other", false)] {
        let proxy = enforced(&rules.replace("CLIENT", client));
        let result = proxy.client().read("s:read_item", json!({}));
        assert_eq!(result["isError"] == true, refused, "{client}: {result}");
    }
}

#[test]
fn permitting_rules_are_recorded() {
    let proxy = enforced(RULES);
    let mut client = proxy.client();
    client.read("s:echo", json!({"behavior": "known"}));
    assert_eq!(proxy.activity("type=tool_call")[0]["metadata"]["rules"], json!(["known-words"]));
    client.read("s:echo", json!({"behavior": "other"}));
    assert_eq!(proxy.activity("type=tool_call")[0]["metadata"].get("rules"), None);
}

// RUL-5
#[test]
fn forbidden_items_are_hidden() {
    let proxy = enforced(RULES);
    let (mut client, mut direct) = (proxy.client(), proxy.direct_client());
    let names = found(&mut client, "item");
    assert!(names.contains(&"s:read_item".to_owned()), "a tool with a rule on arguments is shown");
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
fn rul_5_tool_hidden_by_a_rule_is_refused_like_a_missing_one() {
    let proxy = enforced(
        r#"@id("reads-only")
        forbid (principal, action in [Action::"write", Action::"destructive"], resource);"#,
    );
    let mut client = proxy.client();
    for (variant, text) in [
        ("read", "Tool 's:TOOL' not found. Use retrieve_tools to find tools."),
        ("write", "Tool 's:TOOL' is not allowed by rule 'reads-only'"),
    ] {
        for tool in ["write_item", "delete_item", "nothing"] {
            let refused = client.call(variant, &format!("s:{tool}"), json!({}));
            assert_eq!(error_text(&refused), text.replace("TOOL", tool), "{variant}");
        }
    }
    // The operator reads the rule in the record of a call that the agent believes to name no tool.
    let _ = client.call("read", "s:delete_item", json!({}));
    let metadata = decision(&proxy)["metadata"].clone();
    assert_eq!(
        (&metadata["policy"], &metadata["rules"]),
        (&json!("rules"), &json!(["reads-only"])),
        "{metadata}"
    );
}

#[test]
fn principal_without_a_permission_sees_and_calls_no_tools() {
    let proxy = proxy("", json!({"files": ["rules.cedar"], "default": "deny"}));
    let mut client = proxy.client();
    assert_eq!(found(&mut client, "item"), [""; 0]);
    let refused = client.read("s:read_item", json!({}));
    let text = "Tool 's:read_item' is not allowed by rule 'default': no rule permits it";
    assert_eq!(error_text(&refused), text);
}

// RUL-4
#[test]
fn shadow_rules_only_report() {
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

// RUL-3
#[test]
fn changed_rules_take_effect_and_half_written_ones_do_not() {
    let proxy = enforced(RULES);
    let file = proxy.folder.path().join("rules.cedar");
    let mut client = proxy.client();
    std::fs::write(&file, "forbid (principal, action,").unwrap();
    let recorded =
        until("the refusal", || proxy.activity("type=config_change&status=error").first().cloned());
    let text = recorded["error_message"].as_str().unwrap();
    assert!(text.contains("rules.cedar:1:1: the rule is not finished"), "{text}");
    error_text(&client.call("destructive", "s:delete_item", json!({})));
    let misfit = r#"forbid (principal, action == Action::"read", resource == Tool::"s:echo")
        when { context.args.nothing == 1 };"#;
    std::fs::write(&file, misfit).unwrap();
    until("the refusal of a rule that does not match the tool", || {
        let recorded = proxy.activity("type=config_change&status=error");
        recorded.first()?["error_message"].as_str()?.contains("nothing").then_some(())
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

// RUL-3
#[test]
fn invalid_rules_prevent_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let config = json!({"policy": {"files": ["rules.cedar"]}, "mcpServers": {}});
    let path = configure(config, folder.path());
    let mut rules = "permit (principal, action, resource);\n".to_owned();
    let start = |text: &str| {
        std::fs::write(folder.path().join("rules.cedar"), text).unwrap();
        let done = mcpproxy().arg("serve").arg("--config").arg(&path).output().unwrap();
        (done.status.code(), String::from_utf8(done.stderr).unwrap())
    };
    let (code, log) = start(&format!("{rules}permit (principal action);"));
    assert!(code == Some(5) && log.contains("rules.cedar:2:19"), "{code:?} {log}");
    rules = rules.repeat(10 * 1024 * 1024 / rules.len());
    let (code, log) = start(&rules);
    assert!(code == Some(5) && log.contains("larger than 1048576 bytes"), "{code:?} {log}");
}

/// Causes of the faults of the rules in force.
fn rule_faults(proxy: &Proxy) -> Vec<String> {
    let status = proxy.api("status");
    let faults = status["faults"].as_array().unwrap().iter().filter(|it| it["part"] == "rules");
    faults.map(|fault| fault["cause"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn rul_9_rule_that_names_unknown_items_is_in_force_and_reported_until_it_is_corrected() {
    let unmet = r#"forbid (principal, action, resource == Tool::"gone:bad");"#;
    let proxy = enforced(&format!("{unmet}\n{RULES}"));
    let file = proxy.folder.path().join("rules.cedar");
    let fault = until("the warning", || rule_faults(&proxy).first().cloned());
    let reason = r#"Tool::"gone:bad" can never be met: there is no such server"#;
    let place = format!("{}:1:46: {reason}", file.display());
    assert!(fault.starts_with(&place) && fault.contains("mcpproxy policy check"), "{fault}");
    assert_eq!(proxy.api("config")["rejected"], Value::Null);
    error_text(&proxy.client().call("destructive", "s:delete_item", json!({})));
    let findings = || {
        let doctor = proxy.cli(&["doctor", "--json"]).json();
        let found = doctor["findings"].as_array().unwrap().clone().into_iter();
        found.filter(|it| it["text"].to_string().contains("can never be met")).collect::<Vec<_>>()
    };
    let status = proxy.cli(&["status"]);
    assert!(status.stdout.contains(reason), "{}", status.stdout);
    let found = findings();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((&found[0]["check"], &found[0]["outcome"]), (&json!("config"), &json!("warning")));
    assert_eq!(found[0]["mend"], format!("${{EDITOR:-vi}} {}", file.display()));
    let checked = proxy.cli(&["policy", "check"]);
    assert_eq!(checked.code, Some(1));
    assert!(checked.stdout.contains(reason), "{}", checked.stdout);
    let last = "1 problem: the rules are valid, but name servers, tools or tokens that do not";
    assert!(checked.stderr.contains(last), "{}", checked.stderr);
    let checked = proxy.cli(&["config", "check"]);
    assert_eq!(checked.code, Some(0), "{}", checked.stderr);
    assert!(checked.stdout.contains(reason), "{}", checked.stdout);
    // Only the running proxy knows the tools. The other, valid rule of the file applies.
    let misspelled = r#"forbid (principal, action, resource == Tool::"s:delete_itme");"#;
    let echo = r#"@id("no-echo") forbid (principal, action, resource == Tool::"s:echo");"#;
    std::fs::write(&file, format!("{misspelled}\n{echo}")).unwrap();
    until("the new rules", || {
        error_text_of(&proxy.client().read("s:echo", json!({}))).filter(|it| it.contains("no-echo"))
    });
    let fault = until("the warning", || rule_faults(&proxy).pop().filter(|it| it.contains("tool")));
    let reason = r#"the server has no such tool (did you mean "delete_item"?)"#;
    assert!(fault.contains(reason), "{fault}");
    let recorded = &proxy.activity("type=config_change&status=success")[0];
    assert_eq!(recorded["metadata"], json!({"section": "policy", "rules": 2, "warnings": 1}));
    let found = findings();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(
        (&found[0]["check"], &found[0]["mend"]),
        (&json!("rules"), &json!("mcpproxy policy check"))
    );
    std::fs::write(&file, RULES).unwrap();
    until("no warning", || rule_faults(&proxy).is_empty().then_some(()));
}

/// Text of a failed call; `None` if it succeeded.
fn error_text_of(result: &Value) -> Option<String> {
    (result["isError"] == true).then(|| error_text(result).to_owned())
}

#[test]
fn cli_tools_list_counts_tools_hidden_by_rules() {
    let proxy = enforced(r#"forbid (principal, action, resource == Tool::"s:delete_item");"#);
    let listed = proxy.cli(&["tools", "list"]);
    assert!(!listed.stdout.contains("s:delete_item"), "{}", listed.stdout);
    assert!(listed.stderr.contains("1 tool is hidden by rules"), "{}", listed.stderr);
    let hidden = proxy.cli(&["tools", "show", "s:delete_item"]);
    let advice = "Tool 's:delete_item' is hidden by rules: `mcpproxy policy explain --as admin --tool s:delete_item`";
    assert!(hidden.code == Some(1) && hidden.stderr.contains(advice), "{}", hidden.stderr);
    let absent = proxy.cli(&["tools", "show", "s:nosuch"]);
    assert!(absent.stderr.contains("not found"), "{}", absent.stderr);
    let listed = enforced(RULES).cli(&["tools", "list"]);
    assert!(!listed.stderr.contains("hidden"), "{}", listed.stderr);
}

fn write(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

// RUL-6
#[test]
fn command_line_checks_tests_and_explains_rules() {
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
    let answer = explained.json();
    assert_eq!((&answer["decision"], &answer["decided_by"]), (&json!("deny"), &json!(["small"])));
    assert_eq!(
        answer["rules"][0]["saw"],
        json!([{"path": "context.args.size", "value": "500"}]),
        "{answer}"
    );
    assert_eq!((&answer["decider"], &answer["action"]), (&json!("rules"), &json!("read")));
    let explain = |name: &str, more: &[&str]| {
        let words = ["policy", "explain", "--as", name, "--tool", "s:echo"];
        proxy.cli(&[&words[..], more].concat()).stdout
    };
    assert!(explain("admin", &[]).starts_with("allow"));
    let other = explain("admin", &["--action", "destructive"]);
    assert!(other.contains("\nrules for other actions only: known-words ("), "{other}");
    let nobody = proxy.cli(&["policy", "explain", "--as", "ci", "--tool", "s:echo"]);
    assert_eq!(nobody.code, Some(2), "{}", nobody.stdout);
    assert!(
        nobody.stderr.contains("principals are anonymous, admin, token:NAME"),
        "{}",
        nobody.stderr
    );
    // The scope of a token is evaluated before the rules.
    assert!(explain("token:ci", &[]).contains("there is no token 'ci'"));
    proxy.cli(&["token", "create", "ci", "--server", "s", "--operation", "read"]);
    let unknown = proxy.cli(&["policy", "explain", "--as", "token:cj", "--tool", "s:echo"]);
    let text = "error: there is no token 'cj': did you mean ci?\n";
    assert_eq!((unknown.code, &*unknown.stderr), (Some(1), text));
    assert!(explain("token:ci", &["--action", "read"]).starts_with("allow"));
    let denied = explain("token:ci", &["--action", "write"]);
    assert!(denied.starts_with("deny: Token 'ci' does not allow tool 's:echo'"), "{denied}");
    assert!(denied.contains("\naction: write\n"), "{denied}");
    let denied = explain("token:ci", &["--action", "write", "-o", "json"]);
    assert!(denied.contains(r#""decider":"token""#), "{denied}");
}

#[test]
fn new_rules_are_replayed_against_the_log() {
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
        json!({"calls": 5, "newly_refused": 1, "rule_errors": 0, "newly_allowed": 1, "undecidable": 1,
               "rules": ["no-deletes", "smaller"]}),
        "{report}"
    );
    assert_eq!(report["undecidable_because"], json!({"arguments redacted": 1}));
    let table = proxy.cli(&["policy", "replay", &new, "--since", "1h"]);
    assert!(table.stderr.contains("5 calls since"), "{}", table.stderr);
    assert_eq!(table.stdout.lines().count(), 3, "only rows: {}", table.stdout);
    // Without a running proxy the command reads a copy of the log, with the same result.
    let folder = proxy.end();
    let config = folder.path().join("config.json");
    let mut command = mcpproxy();
    command.arg("--config").arg(config).args(["policy", "replay", &new, "-o", "json"]);
    command.env("MCPPROXY_LISTEN", format!("127.0.0.1:{}", crate::harness::free_port()));
    let offline = crate::harness::Output::of(&mut command);
    assert_eq!(offline.json()["total"], report["total"], "{}", offline.stderr);
}

#[test]
fn rules_are_replayed_over_rest_in_pages_without_taking_effect() {
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
    let answer = post(json!({"rules": new})).json()["data"].clone();
    assert_eq!(
        answer["total"],
        json!({"calls": 4, "newly_refused": 1, "rule_errors": 0, "newly_allowed": 1,
               "undecidable": 0, "rules": ["no-deletes", "smaller"]}),
        "{answer}"
    );
    assert_eq!((&answer["rules"], answer.get("next_cursor")), (&json!(1), None), "{answer}");
    // Without new rules, the rules in force are compared with an empty set.
    let answer = post(json!({})).json()["data"].clone();
    assert_eq!(
        (&answer["total"]["newly_refused"], &answer["total"]["newly_allowed"]),
        (&json!(2), &json!(0)),
        "{answer}"
    );
    // A replay that starts from a cursor, and one that starts at a time.
    let calls = proxy.activity("type=tool_call");
    assert_eq!(calls.len(), 4, "the calls were not repeated");
    let after = post(json!({"rules": new, "cursor": calls[2]["id"]})).json()["data"].clone();
    assert_eq!(after["total"]["calls"], 2, "{after}");
    let late = post(json!({"rules": new, "start_time": "2999-01-01T00:00:00Z"})).json();
    assert_eq!(late["data"]["total"]["calls"], 0, "{late}");
    for (body, reason) in [
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
        assert!(refused.text().contains(reason), "{}", refused.text());
    }
    let none = Proxy::start(json!({}));
    let refused = none.request("POST", "/api/v1/policy/replay", &key, b"{}");
    assert_eq!(refused.status, 400, "{}", refused.text());
    assert!(refused.text().contains("no rules in force"), "{}", refused.text());
}

#[test]
fn pipe_instead_of_a_rule_file_is_reported_and_does_not_delay_reloads() {
    let proxy = enforced(RULES);
    let rules = proxy.folder.path().join("rules.cedar");
    let reload = || proxy.request("POST", "/api/v1/config/reload", &[("X-API-Key", API_KEY)], b"");
    std::fs::remove_file(&rules).unwrap();
    nix::unistd::mkfifo(&rules, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let refused = reload();
    assert_eq!(refused.status, 422, "{}", refused.text());
    let error = refused.text();
    assert!(error.contains("rules.cedar") && error.contains("not a regular file"), "{error}");
    std::fs::remove_file(&rules).unwrap();
    std::fs::write(&rules, RULES).unwrap();
    let reloaded = reload();
    assert_eq!(reloaded.status, 200, "{}", reloaded.text());
    let refused = proxy.client().call("destructive", "s:delete_item", json!({}));
    assert!(error_text(&refused).contains("'no-deletes'"), "{refused}");
}
