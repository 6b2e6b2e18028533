//! Files that the config names. A fault in such a file is reported like a rejected config, for as long as it lasts. A
//! repaired file takes effect without a further request.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{
    API_KEY, Output, Proxy, Response, configure, error_text, mcpproxy, stub_stdio, until,
    write_private,
};

/// Time in which a rejected config is retried several times.
const SEVERAL_TRIES: Duration = Duration::from_secs(7);
const FORBIDS: &str =
    "@id(\"no\") forbid (principal, action, resource == Tool::\"s:read_item\");\n";
const BROKEN: &str = "permit (principal, action, resource);\npermit (principal action);\n";

/// A proxy for the stub. Its folder has a rule file with the content `rules`; the config names the file if `named`.
fn proxy(rules: &str, named: bool) -> Proxy {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("r.cedar"), rules).unwrap();
    let files = if named { json!(["r.cedar"]) } else { json!([]) };
    let servers = json!({"s": stub_stdio(&["--only", "read_item"])});
    Proxy::unready(json!({"mcpServers": servers, "policy": {"files": files}}), folder).ready()
}

fn rules(proxy: &Proxy) -> PathBuf {
    proxy.folder.path().join("r.cedar")
}

/// Replaces a file in one step, so that no partial file is read.
fn put(file: &Path, text: &str) {
    let new = file.with_extension("new");
    write_private(&new, text);
    fs::rename(new, file).unwrap();
}

fn put_rules(proxy: &Proxy, text: &str) {
    put(&rules(proxy), text);
}

fn ask(proxy: &Proxy) -> Response {
    proxy.request("POST", "/api/v1/config/reload", &[("X-API-Key", API_KEY)], b"")
}

fn edit(proxy: &Proxy, change: impl FnOnce(&mut Value)) {
    let file = proxy.folder.path().join("config.json");
    let mut config: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    change(&mut config);
    put(&file, &config.to_string());
}

/// Reported reason of a rejected config.
fn rejected(proxy: &Proxy) -> Option<String> {
    let rejected = proxy.api("config")["rejected"].clone();
    rejected["problems"][0]["problem"].as_str().map(str::to_owned)
}

fn wait_until_valid(proxy: &Proxy) {
    until("there is no fault", || rejected(proxy).is_none().then_some(()));
    assert_eq!(proxy.get("/readyz").json()["config"], json!({"state": "ok"}));
    assert_eq!(proxy.api("status")["faults"], json!([]));
}

fn changes(proxy: &Proxy, status: &str) -> Vec<Value> {
    proxy.activity(&format!("type=config_change&status={status}"))
}

fn is_refused(proxy: &Proxy) -> bool {
    let result = proxy.client().read("s:read_item", json!({}));
    let refused = result["isError"] == true;
    assert!(!refused || error_text(&result).contains("rule 'no'"), "{result}");
    refused
}

// RUL-3
#[test]
fn broken_rules_are_reported_with_rejected_configs_until_they_are_repaired() {
    let proxy = proxy(FORBIDS, true);
    put_rules(&proxy, BROKEN);
    // Detected by the periodic check, before a request.
    until("it is recorded", || changes(&proxy, "error").pop());
    let is_reported = |what: &str| {
        let answer = ask(&proxy);
        assert_eq!(answer.status, 422, "{what}: {}", answer.text());
        let problem = answer.json()["problems"][0].clone();
        assert!(problem["file"].as_str().unwrap().ends_with("r.cedar"), "{what}: {problem}");
        assert_eq!(problem["line"], 2, "{what}: {problem}");
        let standing = proxy.api("config")["rejected"].clone();
        assert_eq!(standing["problems"][0], problem, "{what}");
    };
    until("it is reported", || rejected(&proxy));
    let ready = proxy.get("/readyz").json();
    assert_eq!(ready["config"]["state"], "rejected", "{ready}");
    assert!(ready["config"]["reason"].as_str().unwrap().contains("r.cedar"), "{ready}");
    let faults = proxy.api("status")["faults"].clone();
    assert_eq!(faults[0]["part"], "config", "{faults}");
    assert!(faults[0]["cause"].as_str().unwrap().contains("r.cedar:2:"), "{faults}");
    let metrics = proxy.get("/metrics").text();
    assert!(
        metrics.lines().any(|line| line.starts_with("mcpproxy_config_rejected 1")),
        "{metrics}"
    );
    assert!(is_refused(&proxy), "those in force stay");
    // The fault is also reported for repeated requests, and after other changes.
    is_reported("asked for once");
    is_reported("asked for again");
    let file = proxy.folder.path().join("config.json");
    let (before, digest) =
        (fs::read(&file).unwrap(), proxy.api("config/settings")["digest"].clone());
    let change = json!({"digest": digest, "patch": {"tools_limit": 9}}).to_string();
    for action in ["preview", "change"] {
        let path = format!("/api/v1/config/{action}");
        let answer = proxy.request("POST", &path, &[("X-API-Key", API_KEY)], change.as_bytes());
        assert_eq!(answer.status, 422, "{}", answer.text());
        assert!(answer.text().contains("r.cedar"), "{}", answer.text());
    }
    assert_eq!(fs::read(&file).unwrap(), before, "a rejected change is not written");
    let output = proxy.cli(&["config", "reload"]);
    assert_eq!(output.code, Some(5), "{} {}", output.stdout, output.stderr);
    assert!(output.stderr.contains("r.cedar"), "{}", output.stderr);
    edit(&proxy, |config| config["tools_limit"] = json!(7));
    is_reported("with another config");
    assert!(is_refused(&proxy), "those in force stay");
    put_rules(&proxy, "");
    wait_until_valid(&proxy);
    assert!(!is_refused(&proxy), "the repaired ones are in force");
    until("the rest of the config is in force", || {
        changes(&proxy, "success").iter().find(|it| it.to_string().contains("tools_limit")).cloned()
    });
}

#[test]
fn rules_that_stay_broken_are_recorded_once() {
    let proxy = proxy(FORBIDS, true);
    put_rules(&proxy, BROKEN);
    until("it is reported", || rejected(&proxy));
    std::thread::sleep(SEVERAL_TRIES);
    assert_eq!(proxy.activity("type=config_change").len(), 1);
    proxy.assert_lines_logged(1, |line| line.contains("r.cedar"));
    // A different fault of the same file is reported.
    put_rules(&proxy, "forbid (principal, action,");
    until("it is reported", || rejected(&proxy).filter(|reason| reason.contains("not finished")));
    // With valid rules again, no fault is reported.
    put_rules(&proxy, FORBIDS);
    wait_until_valid(&proxy);
    assert!(is_refused(&proxy));
}

#[test]
fn rules_are_not_healthy_while_the_config_is_invalid() {
    let proxy = proxy("", true);
    let file = proxy.folder.path().join("config.json");
    let whole = fs::read_to_string(&file).unwrap();
    put(&file, "{");
    until("it is reported", || rejected(&proxy));
    // A change of the rules of the config in force still applies.
    put_rules(&proxy, FORBIDS);
    until("they are in force", || is_refused(&proxy).then_some(()));
    assert!(rejected(&proxy).is_some(), "the config is still wrong");
    assert_eq!(ask(&proxy).status, 422);
    put_rules(&proxy, BROKEN);
    until("it is recorded", || changes(&proxy, "error").pop());
    put(&file, &whole);
    until("the rules are the fault now", || {
        rejected(&proxy).filter(|reason| {
            !reason.contains("config.json") && ask(&proxy).text().contains("r.cedar")
        })
    });
    put_rules(&proxy, FORBIDS);
    wait_until_valid(&proxy);
}

#[test]
fn config_with_repaired_rules_is_applied_and_its_rejection_reported_once() {
    let proxy = proxy(BROKEN, false);
    edit(&proxy, |config| config["policy"]["files"] = json!(["r.cedar"]));
    until("it is reported", || rejected(&proxy));
    std::thread::sleep(SEVERAL_TRIES);
    assert_eq!(changes(&proxy, "rejected").len(), 1, "{}", proxy.log());
    proxy.assert_lines_logged(1, |line| line.contains("r.cedar"));
    // The current fault is reported, not the previous one.
    put_rules(&proxy, "forbid (principal, action,");
    until("it is reported", || rejected(&proxy).filter(|reason| reason.contains("not finished")));
    assert!(!is_refused(&proxy));
    put_rules(&proxy, FORBIDS);
    wait_until_valid(&proxy);
    assert!(is_refused(&proxy));
}

#[test]
fn config_whose_value_appears_later_is_applied() {
    let proxy = proxy("", false);
    let secret = proxy.folder.path().join("secret");
    let webhook = json!({"url": "http://127.0.0.1:9/hook", "secret": format!("${{file:{}}}", secret.display())});
    edit(&proxy, |config| config["approval"] = json!({"webhook": webhook}));
    until("it is reported", || rejected(&proxy));
    put(&secret, "0123456789abcdef0123456789abcdef\n");
    wait_until_valid(&proxy);
    let change = until("it is recorded", || changes(&proxy, "success").first().cloned());
    assert_eq!(change["metadata"]["applied"], json!(["approval"]));
}

/// Runs a command with a config that names the rule file `r.cedar`.
fn with_rules(folder: &Path, args: &[&str]) -> Output {
    let path = configure(json!({"mcpServers": {}, "policy": {"files": ["r.cedar"]}}), folder);
    Output::of(mcpproxy().arg("-c").arg(path).args(args))
}

#[test]
fn config_check_and_doctor_read_the_rules_of_the_config() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("r.cedar");
    let look = |reason: &str| {
        let check = with_rules(folder.path(), &["config", "check"]);
        assert_eq!(check.code, Some(5), "{} {}", check.stdout, check.stderr);
        assert!(check.stderr.contains(&format!("{}{reason}", file.display())), "{}", check.stderr);
        let doctor = with_rules(folder.path(), &["doctor", "--json"]);
        assert_eq!(doctor.code, Some(1), "{}", doctor.stderr);
        let findings = doctor.json()["findings"].clone();
        let of_rules =
            findings.as_array().unwrap().iter().find(|it| it["text"].to_string().contains(reason));
        let of_rules = of_rules.unwrap_or_else(|| panic!("{findings}"));
        assert_eq!((&of_rules["check"], &of_rules["outcome"]), (&json!("config"), &json!("wrong")));
        assert_eq!(of_rules["mend"], format!("${{EDITOR:-vi}} {}", file.display()));
    };
    look(": cannot be read: No such file");
    fs::write(&file, BROKEN).unwrap();
    look(":2:19: ");
    fs::write(&file, FORBIDS.replace("(principal", "(principal == User::\"x\"")).unwrap();
    look(":1:");
    fs::write(&file, FORBIDS.replace("s:", "none:")).unwrap();
    let check = with_rules(folder.path(), &["config", "check"]);
    assert_eq!(
        (check.code, check.stdout.lines().last()),
        (Some(0), Some("ok, with warnings")),
        "{} {}",
        check.stdout,
        check.stderr
    );
    fs::write(&file, "permit (principal, action, resource);").unwrap();
    let check = with_rules(folder.path(), &["config", "check"]);
    assert_eq!(
        (check.code, check.stdout.lines().last()),
        (Some(0), Some("ok")),
        "{}",
        check.stdout
    );
}

#[test]
fn doctor_reports_a_config_that_the_running_proxy_has_not_applied() {
    let proxy = proxy("", true);
    let about = |doctor: &Output| {
        let findings = doctor.json()["findings"].as_array().unwrap().clone();
        findings.into_iter().filter(|it| it["check"] == "running").collect::<Vec<_>>()
    };
    let well = proxy.cli(&["doctor", "--json"]);
    assert!(about(&well).iter().all(|it| it["outcome"] == "ok"), "{}", well.stdout);
    // The rules do not fit the tools, as the running proxy and the check of the files both find.
    let misfit = r#"forbid (principal, action == Action::"read", resource == Tool::"s:read_item")
        when { context.args.nothing == 1 };"#;
    put_rules(&proxy, misfit);
    until("it is reported", || rejected(&proxy));
    let checked = proxy.cli(&["config", "check"]);
    assert_eq!(checked.code, Some(5), "{}", checked.stdout);
    assert!(checked.stderr.contains("nothing"), "{}", checked.stderr);
    let doctor = proxy.cli(&["doctor", "--json"]);
    assert_eq!(doctor.code, Some(1), "{}", doctor.stdout);
    let reported = about(&doctor);
    assert_eq!(reported.len(), 1, "{}", doctor.stdout);
    assert_eq!(reported[0]["outcome"], "wrong");
    assert!(reported[0]["text"].as_str().unwrap().contains("nothing"), "{reported:?}");
    assert_eq!(reported[0]["mend"], format!("${{EDITOR:-vi}} {}", rules(&proxy).display()));
}
