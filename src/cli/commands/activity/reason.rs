//! Why a record ended as it did, or what happened: the REASON of a row.

use serde_json::Value;

use crate::cli::counted::counted;
use crate::cli::json_pointer::{list, text};

/// Why it ended so: the record's own words, and those of the decisions about it.
pub(super) fn reason(record: &Value, decisions: &[&Value]) -> String {
    let mut told = own(record);
    for decision in decisions {
        let why = text(decision, "/metadata/reason");
        // A refusal says mostly what the decision says.
        if why.is_empty() || !told.iter().any(|told| told.contains(&*why)) {
            told.push(format!("{}: {why}", text(decision, "/status")));
        }
    }
    let told = told.iter().map(|told| told.trim_end_matches([':', ' ']));
    told.filter(|told| !told.is_empty()).collect::<Vec<_>>().join("; ")
}

/// What a record tells by itself.
fn own(record: &Value) -> Vec<String> {
    let [error, why] = ["/error_message", "/metadata/reason"].map(|at| text(record, at));
    let cause = if error.is_empty() { why } else { error }.into_owned();
    let word = |at: &str| text(record, at).replace('_', " ");
    match &*text(record, "/type") {
        "server_change" => vec![of_server(record, &cause)],
        "config_change" => of_config(record, cause),
        "catalog_change" => {
            let mut told = vec![cause];
            told.extend(["added", "changed", "removed", "duplicates"].into_iter().filter_map(
                |what| {
                    words(record, &format!("/metadata/{what}"))
                        .map(|names| format!("{what}: {names}"))
                },
            ));
            told
        }
        "approval" if cause.is_empty() => {
            let by = text(record, "/metadata/by");
            vec![match text(record, "/metadata/approval") == "definition" {
                true => "a definition was approved".to_owned(),
                false if by.is_empty() => word("/metadata/state"),
                false => format!("{} by {by}", word("/metadata/state")),
            }]
        }
        // Calls, decisions, and what has nothing to tell but its cause.
        _ => vec![cause],
    }
}

/// What became of a server, or of a login with it.
fn of_server(record: &Value, cause: &str) -> String {
    let [status, login, issuer] =
        ["/metadata/status", "/metadata/login", "/metadata/issuer"].map(|at| text(record, at));
    let tools = text(record, "/metadata/tools");
    match (&*login, &*status) {
        ("", "connected") if cause.is_empty() => format!("connected, {}", counted(&tools, "tool")),
        ("", "connected") => format!("connected, {}; {cause}", counted(&tools, "tool")),
        // One that worked before, since another has failed or is at its first attempt.
        ("", "connecting") if !cause.is_empty() => format!("lost, {cause}"),
        ("", status) => format!("{status}: {cause}"),
        ("granted", _) => format!("login granted by {issuer}"),
        (login, _) => format!("login {login}: {cause}"),
    }
}

/// Which keys are others, which token, or how many rules there are.
fn of_config(record: &Value, cause: String) -> Vec<String> {
    let mut told = vec![cause];
    for (keys, when) in
        [("/metadata/applied", "changed"), ("/metadata/needs_restart", "after a restart")]
    {
        told.extend(words(record, keys).map(|keys| format!("{when}: {keys}")));
    }
    let [change, name] = ["/metadata/change", "/metadata/name"].map(|at| text(record, at));
    if !change.is_empty() {
        told.push(format!("{} '{name}'", change.replace('_', " ")));
    }
    let rules = text(record, "/metadata/rules");
    if !rules.is_empty() {
        told.push(format!("{} in force", counted(&rules, "rule")));
    }
    told
}

/// The words of a list, if it has any.
fn words(record: &Value, at: &str) -> Option<String> {
    let words: Vec<_> = list(record, at).iter().filter_map(Value::as_str).collect();
    (!words.is_empty()).then(|| words.join(", "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_decision_tells_why_and_a_refusal_does_not_tell_it_twice() {
        let decision = |why: &str| json!({"status": "warning", "metadata": {"reason": why}});
        let (odd, strange, none) = (decision("odd"), decision("strange"), decision(""));
        let call = |why: &str| json!({"type": "tool_call", "error_message": why});
        for (call, decisions, told) in [
            (call("Tool 'x': odd"), vec![&odd], "Tool 'x': odd"),
            (call(""), vec![&odd, &strange], "warning: odd; warning: strange"),
            (call(""), vec![&none], "warning"),
            (call("gone"), vec![&none], "gone; warning"),
            (odd.clone(), vec![], "odd"),
            (call(""), vec![], ""),
        ] {
            assert_eq!(reason(&call, &decisions), told);
        }
    }

    #[test]
    fn what_happened_to_a_server_is_told() {
        for (error, metadata, told) in [
            ("", json!({"status": "connected", "tools": 1}), "connected, 1 tool"),
            (
                "",
                json!({"status": "connected", "tools": 2, "reason": "no scope"}),
                "connected, 2 tools; no scope",
            ),
            (
                "",
                json!({"status": "connecting", "tools": 2, "reason": "reconnecting: it ended"}),
                "lost, reconnecting: it ended",
            ),
            ("", json!({"status": "connecting", "tools": 2}), "connecting"),
            ("no such file", json!({"status": "failed", "tools": 0}), "failed: no such file"),
            (
                "",
                json!({"status": "disabled", "reason": "disabled in the config"}),
                "disabled: disabled in the config",
            ),
            ("", json!({"login": "began"}), "login began"),
            ("", json!({"login": "granted", "issuer": "https://i"}), "login granted by https://i"),
            ("refused", json!({"login": "failed"}), "login failed: refused"),
        ] {
            let record =
                json!({"type": "server_change", "error_message": error, "metadata": metadata});
            assert_eq!(reason(&record, &[]), told);
        }
    }

    #[test]
    fn what_changed_is_told() {
        let of = |kind: &str, error: &str, metadata: Value| {
            reason(&json!({"type": kind, "error_message": error, "metadata": metadata}), &[])
        };
        let config = |error, metadata| of("config_change", error, metadata);
        let keys = json!({"applied": ["limits", "mcpServers.a"], "needs_restart": ["listen"]});
        assert_eq!(config("", keys), "changed: limits, mcpServers.a; after a restart: listen");
        assert_eq!(config("line 2: no", json!({"problems": 1})), "line 2: no");
        assert_eq!(config("", json!({"section": "policy", "rules": 1})), "1 rule in force");
        let token = json!({"change": "token_created", "name": "ci"});
        assert_eq!(config("", token), "token created 'ci'");
        let tools = json!({"added": ["a", "b"], "changed": [], "removed": ["c"]});
        assert_eq!(of("catalog_change", "", tools), "added: a, b; removed: c");
        let approved = json!({"state": "approved", "by": "admin", "approval": "x"});
        assert_eq!(of("approval", "", approved), "approved by admin");
        assert_eq!(of("approval", "", json!({"state": "timed_out"})), "timed out");
        assert_eq!(
            of("approval", "", json!({"approval": "definition"})),
            "a definition was approved"
        );
    }
}
