//! Reasons of outcomes, composed from a record and the decisions about it.
//!
//! For people, the rule, limit or token that refused a call comes first, so that a narrow column still shows its name, and the
//! text of a blocked result begins with its violation. The texts of refusals are a contract, and records keep them.
//! They contain names of tools and URIs that servers and agents chose. Therefore only a decision shows that a rule
//! refused, and a text that contains the words of a refusal twice is not changed.

use crate::format::{counted, list, text};
use serde_json::Value;
use std::fmt::Write as _;

/// Reason of the outcome: the record's own reason, the person who answered its approval, and the reasons of decisions
/// about it.
pub(super) fn reason(record: &Value, folded: &[&Value]) -> String {
    composed(record, folded, None)
}

/// Like [`reason`], but omits the tool with these `names` and puts the name of a rule or limit first.
pub(super) fn reason_for_people(record: &Value, folded: &[&Value], names: &[String]) -> String {
    composed(record, folded, Some(names))
}

/// Reason of the outcome; `names` are the names of the tool in a row for people.
fn composed(record: &Value, folded: &[&Value], names: Option<&[String]>) -> String {
    let (is_for_people, names) = (names.is_some(), names.unwrap_or_default());
    let mut own = own(record);
    let is_blocked = text(record, "/status") == "blocked";
    let (approvals, decisions): (Vec<&Value>, Vec<&Value>) =
        folded.iter().copied().partition(|it| text(it, "/type") == "approval");
    match record.pointer("/metadata/approval_answer") {
        Some(answer) => add_answer(&mut own, answer),
        // Recorded by an earlier version.
        None => {
            let answers = approvals.into_iter().filter_map(|it| it.get("metadata"));
            answers.for_each(|answer| add_answer(&mut own, answer));
        }
    }
    // Each reason comes with the status of its decision.
    let mut parts: Vec<_> = own.into_iter().map(|reason| (None, reason)).collect();
    let has_rule = is_by_rule(record) || decisions.iter().any(|it| is_by_rule(it));
    for decision in decisions {
        let why = text(decision, "/metadata/reason");
        let short = without_tool(&why, names);
        if let Some((_, reason)) = parts.iter_mut().find(|(_, it)| is_same_violation(decision, it))
        {
            if let Some(violation) =
                violation(reason, decision).filter(|_| is_for_people && is_blocked)
            {
                *reason = violation;
            }
            continue;
        }
        // A refusal usually contains the decision's reason.
        if short.is_empty() || !parts.iter().any(|(_, reason)| reason.contains(short)) {
            parts.push((Some(text(decision, "/status")), why.into_owned()));
        }
    }
    let is_refused = match &*text(record, "/type") {
        "approval" => false,
        "policy_decision" => true,
        _ => text(record, "/status") == "rejected",
    };
    // The decision is the reason why the agent got the answer that there is no such tool.
    let is_decided = parts.iter().any(|(status, _)| status.as_deref() == Some("blocked"));
    let is_answer =
        |(_, reason): &(Option<_>, String)| without_tool(reason, names).starts_with("not found");
    let is_hidden =
        is_for_people && is_refused && is_decided && parts.first().is_some_and(is_answer);
    if is_hidden {
        parts.remove(0);
    }
    let repeated = record.pointer("/metadata/repeated").and_then(Value::as_u64);
    let mut times = repeated.filter(|times| *times > 1).map(|times| format!("{times} times"));
    let mut shown = Vec::with_capacity(parts.len());
    for (status, reason) in &parts {
        // Otherwise the row has the status.
        let status =
            status.as_ref().filter(|status| !(is_for_people && is_refused && *status == "blocked"));
        // The text of a server's error was not written by mcpproxy.
        let is_ours = status.is_some() || is_refused;
        let subject = if is_ours { subject(reason, names) } else { "" };
        let reason = without_tool(reason, names).trim_end_matches([':', ' ']);
        let named = (is_ours && is_for_people).then(|| NamedReason::of(reason, has_rule, names));
        let named = named.flatten();
        let part = match (named, status) {
            (Some(named), status) => {
                let first = times.take_if(|_| shown.is_empty());
                let qualifiers: Vec<_> =
                    status.iter().map(|it| it.to_string()).chain(first).collect();
                named.text(&qualifiers)
            }
            (None, Some(status)) if is_for_people && reason == UNMARKED => {
                format!("{status}: not marked read-only")
            }
            (None, Some(status)) => format!("{status}: {subject}{reason}"),
            (None, None) if reason.starts_with(MISFITS_ALONE) => format!("arguments {reason}"),
            (None, None) => format!("{subject}{reason}"),
        };
        let part = part.trim_end_matches([':', ' ']).to_owned();
        if !part.is_empty() {
            shown.push(part);
        }
    }
    if is_hidden {
        shown.push("the agent got: not found".to_owned());
    }
    let shown = shown.join("; ");
    match times {
        Some(times) => format!("{times}: {shown}"),
        None => shown,
    }
}

/// Words of the warning about a read of a tool without annotations, after the tool. `activity show` has all of it.
const UNMARKED: &str =
    "is not marked read-only and was called by call_tool_read, call_tool_write is recommended";
/// Words of the refusal of arguments, after the tool.
const MISFITS: &str = "' do not fit: ";
/// Beginning of the refusal of arguments without its tool.
const MISFITS_ALONE: &str = "do not fit: ";
/// Beginning of the refusal of a result.
const BLOCKED: &str = "output schema validation failed: ";

/// Whether the decision is about the violation that this reason of its call describes in other words.
fn is_same_violation(decision: &Value, reason: &str) -> bool {
    let [status, policy] = ["/status", "/metadata/policy"].map(|at| text(decision, at));
    status == "blocked"
        && match &*policy {
            "input_validation" => reason.starts_with("Arguments of '") && reason.contains(MISFITS),
            "output_validation" => reason.starts_with(BLOCKED),
            _ => false,
        }
}

/// Whether the reason of its call states what this decision is about.
pub(super) fn is_stated(decision: &Value, reason: &str) -> bool {
    let why = text(decision, "/metadata/reason");
    (!why.is_empty() && reason.contains(&*why)) || is_same_violation(decision, reason)
}

/// Short form of the text of a blocked result: the exceeded limit, or the place in the result and its violation. `None`
/// for the text of another refusal.
fn violation(reason: &str, decision: &Value) -> Option<String> {
    let described = reason.strip_prefix(BLOCKED)?;
    let [guard, place, schema_path] =
        ["/metadata/guard", "/metadata/instance_path", "/metadata/schema_path"]
            .map(|at| text(decision, at));
    let limit = || described.rsplit_once(&*guard).map(|(_, limit)| limit.trim());
    let keyword = || described.strip_suffix(&format!(" at '{schema_path}'"));
    let place = if place.is_empty() { "(root)" } else { &*place };
    Some(match &*guard {
        "max_bytes" | "max_held_bytes" => format!("size: over {} bytes ({guard})", limit()?),
        "max_depth" => format!("depth: over {} levels ({guard})", limit()?),
        "" if schema_path.is_empty() => described.to_owned(),
        "" => match described.split_once(&format!(" at '{schema_path}': ")) {
            Some((_, expected)) => format!("schema: {place}: {expected}"),
            None => format!("schema: {place}: {}", keyword().unwrap_or(described)),
        },
        _ => described.to_owned(),
    })
}

/// Whether the decision was made by a rule.
fn is_by_rule(decision: &Value) -> bool {
    text(decision, "/metadata/policy") == "rules"
}

/// Adds the person who approved or denied a call to its reasons. Any other end of a wait, such as a timeout, is already
/// among them.
fn add_answer(reasons: &mut Vec<String>, answer: &Value) {
    let [state, by] = ["/state", "/by"].map(|at| text(answer, at));
    match &*state {
        "approved" if !by.is_empty() => {
            let is_standing = answer.pointer("/standing") == Some(&Value::Bool(true));
            let how = if is_standing { " (standing approval)" } else { "" };
            reasons.push(format!("approved by {by}{how}"));
        }
        "denied" if !by.is_empty() => {
            let denied = |it: &&mut String| it.ends_with("approval was denied");
            if let Some(reason) = reasons.iter_mut().find(denied) {
                let _ = write!(reason, " by {by}");
            }
        }
        _ => {}
    }
}

/// Reasons stated by the record itself.
fn own(record: &Value) -> Vec<String> {
    let [error, why] = ["/error_message", "/metadata/reason"].map(|at| text(record, at));
    let cause = if error.is_empty() { why } else { error }.into_owned();
    let word = |at: &str| text(record, at).replace('_', " ");
    match &*text(record, "/type") {
        "server_change" => vec![of_server(record, &cause)],
        "config_change" => of_config(record, cause),
        "catalog_change" => {
            let mut parts = vec![cause];
            parts.extend(["added", "changed", "removed", "duplicates"].into_iter().filter_map(
                |what| {
                    words(record, &format!("/metadata/{what}"))
                        .map(|names| format!("{what}: {names}"))
                },
            ));
            parts
        }
        "approval" if cause.is_empty() => {
            let by = text(record, "/metadata/by");
            vec![match text(record, "/metadata/approval") == "definition" {
                true => "a definition was approved".to_owned(),
                // The status says that it waits.
                false if by.is_empty() && text(record, "/metadata/state") == "waiting" => {
                    format!("id {}", text(record, "/metadata/approval"))
                }
                false if by.is_empty() => word("/metadata/state"),
                false => format!("{} by {by}", word("/metadata/state")),
            }]
        }
        "approval" => {
            let by = text(record, "/metadata/by");
            vec![if by.is_empty() { cause } else { format!("{cause} by {by}") }]
        }
        // Calls, decisions, and records without details.
        _ => vec![cause],
    }
}

/// Describes the change of a server's state or login.
fn of_server(record: &Value, cause: &str) -> String {
    let [status, login, issuer] =
        ["/metadata/status", "/metadata/login", "/metadata/issuer"].map(|at| text(record, at));
    let tools = text(record, "/metadata/tools");
    match (&*login, &*status) {
        ("", "connected") if cause.is_empty() => format!("connected, {}", counted(&tools, "tool")),
        ("", "connected") => format!("connected, {}; {cause}", counted(&tools, "tool")),
        // The server was connected before, so the connection was lost.
        ("", "connecting") if !cause.is_empty() => format!("lost, {cause}"),
        // The cause says so.
        ("", "needs-login") if !cause.is_empty() => cause.to_owned(),
        ("", status) => format!("{status}: {cause}"),
        ("granted", _) => format!("login granted by {issuer}"),
        (login, _) => format!("login {login}: {cause}"),
    }
}

/// Describes changed config keys, a token, or the number of rules. A rejected change is marked as such, because lists of
/// refused calls contain it.
fn of_config(record: &Value, cause: String) -> Vec<String> {
    let is_rejected = text(record, "/status") == "rejected" && !cause.is_empty();
    let mut parts = vec![if is_rejected { format!("change not in force: {cause}") } else { cause }];
    for (keys, when) in
        [("/metadata/applied", "changed"), ("/metadata/needs_restart", "after a restart")]
    {
        parts.extend(words(record, keys).map(|keys| format!("{when}: {keys}")));
    }
    if parts.iter().all(String::is_empty) {
        // Neither applied nor pending, as if a pending change is taken back.
        let keys = list(record, "/metadata/changes").iter().map(|change| text(change, "/key"));
        let keys: Vec<_> = keys.filter(|key| !key.is_empty()).collect();
        if !keys.is_empty() {
            parts.push(format!("changed in the file: {}", keys.join(", ")));
        }
    }
    let [change, name] = ["/metadata/change", "/metadata/name"].map(|at| text(record, at));
    if !change.is_empty() {
        parts.push(format!("{} '{name}'", change.replace('_', " ")));
    }
    let rules = text(record, "/metadata/rules");
    if !rules.is_empty() {
        parts.push(format!("{} in force", counted(&rules, "rule")));
        let warnings = text(record, "/metadata/warnings");
        if !matches!(&*warnings, "" | "0") {
            parts.push(counted(&warnings, "warning"));
        }
    }
    parts
}

/// Joins a list of words; `None` if it is empty.
fn words(record: &Value, at: &str) -> Option<String> {
    let words: Vec<_> = list(record, at).iter().filter_map(Value::as_str).collect();
    (!words.is_empty()).then(|| words.join(", "))
}

/// Subject of a reason that begins with a verb once [`without_tool`] has removed the tool.
fn subject(reason: &str, names: &[String]) -> &'static str {
    let rest = without_tool(reason, names);
    if rest.len() < reason.len() && rest.starts_with("is ") { "the tool " } else { "" }
}

/// Removes the beginning of a reason that repeats one of the tool's names, such as `Tool 'server:tool' `.
fn without_tool<'r>(reason: &'r str, names: &[String]) -> &'r str {
    let after = |start: &str, name: &String| {
        let rest = reason.strip_prefix(start)?.strip_prefix(name.as_str())?;
        rest.strip_prefix("' ").or_else(|| rest.strip_prefix("': "))
    };
    let starts = ["Tool '", "Arguments of '"];
    starts
        .iter()
        .find_map(|start| names.iter().find_map(|name| after(start, name)))
        .unwrap_or(reason)
}

/// Words before a rule's name in the text of a refusal.
const BY_RULE: &str = "is not allowed by rule '";
/// Words before a limit's name.
const TOO_MANY: &str = "Too many calls to '";

/// Words after a token's name in the text of a refusal.
const NO_SCOPE: &str = "' does not allow ";
/// Words before the part of a token's scope that excludes a request.
const LIMITED: &str = ": it is limited to ";

/// Parsed text of a refusal.
#[derive(Debug, PartialEq, Eq)]
struct NamedReason<'r> {
    /// Name of the rule, of the limited object, or of the token.
    name: &'r str,
    kind: &'static str,
    /// The rest of the text, which may be empty.
    rest: String,
}

impl<'r> NamedReason<'r> {
    /// Parses the text of a refusal; `None` if no rule, limit or token scope decided. The text alone does not show that a
    /// rule decided. The tool with these `names` is omitted.
    fn of(reason: &'r str, is_by_rule: bool, names: &[String]) -> Option<Self> {
        let by_rule = is_by_rule.then(|| by_rule(reason)).flatten();
        by_rule.or_else(|| by_limit(reason)).or_else(|| by_scope(reason, names))
    }

    /// Returns the text with the name first. Qualifiers follow the kind: a status, or the number of refusals.
    fn text(&self, qualifiers: &[String]) -> String {
        let Self { name, kind, rest } = self;
        let qualifiers: String = qualifiers.iter().map(|it| format!(", {it}")).collect();
        format!("{name} ({kind}{qualifiers}): {rest}").trim_end_matches([':', ' ']).to_owned()
    }
}

/// Parses a text such as `Resource 's:URI' is not allowed by rule 'NAME': MESSAGE`.
fn by_rule(reason: &str) -> Option<NamedReason<'_>> {
    let (access, rest) = reason.split_once(BY_RULE)?;
    if !access.is_empty() && rest.contains(BY_RULE) {
        return None;
    }
    let ends = rest.match_indices('\'').map(|(at, _)| rest.split_at(at));
    let (name, message) =
        ends.filter_map(|(name, after)| Some((name, after.strip_prefix('\'')?))).find(
            |(_, after)| after.is_empty() || [": ", "; "].iter().any(|it| after.starts_with(it)),
        )?;
    let parts = [access, message.trim_start_matches([':', ';'])].map(str::trim);
    let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    Some(NamedReason { name, kind: "rule", rest: parts.join(": ") })
}

/// Parses a text such as `Too many calls to 'NAME': limit 60 per minute, retry in 12s`.
fn by_limit(reason: &str) -> Option<NamedReason<'_>> {
    let of = reason.strip_prefix(TOO_MANY)?;
    let (name, rest) = match of.split_once("' at a time: limit ") {
        Some((name, limit)) => {
            let (limit, more) = limit.split_once(',').unwrap_or((limit, ""));
            let comma = if more.is_empty() { "" } else { "," };
            (name, format!("{limit} at a time{comma}{more}"))
        }
        None => of.split_once("': limit ").map(|(name, limit)| (name, limit.to_owned()))?,
    };
    Some(NamedReason { name, kind: "limit", rest })
}

/// Parses a text such as `Token 'NAME' does not allow tool 's:t': it is limited to server 'other'`.
fn by_scope<'r>(reason: &'r str, names: &[String]) -> Option<NamedReason<'r>> {
    let (name, rest) = reason.strip_prefix("Token '")?.split_once(NO_SCOPE)?;
    // A URI may contain the words as well.
    let (access, limit) = rest.split_once(LIMITED).filter(|(_, limit)| !limit.contains(LIMITED))?;
    let limit = format!("limited to {}", limit.replace('\'', ""));
    let is_of_row = names.iter().any(|name| access == format!("tool '{name}'"));
    let rest = if is_of_row { limit } else { format!("{access}: {limit}") };
    Some(NamedReason { name, kind: "token", rest })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn decision_reason_is_not_repeated() {
        let decision = |why: &str| json!({"status": "warning", "metadata": {"reason": why}});
        let (odd, strange, none) = (decision("odd"), decision("strange"), decision(""));
        let call = |why: &str| json!({"type": "tool_call", "error_message": why});
        for (call, decisions, expected) in [
            (call("Tool 'x': odd"), vec![&odd], "Tool 'x': odd"),
            (call(""), vec![&odd, &strange], "warning: odd; warning: strange"),
            (call(""), vec![&none], "warning"),
            (call("gone"), vec![&none], "gone; warning"),
            (odd.clone(), vec![], "odd"),
            (
                json!({"type": "tool_call", "error_message": "no", "metadata": {"repeated": 9}}),
                vec![],
                "9 times: no",
            ),
            (call(""), vec![], ""),
        ] {
            assert_eq!(reason(&call, &decisions), expected);
        }
    }

    #[test]
    fn rows_of_decisions_name_the_rule_and_rows_of_approvals_nothing() {
        let shown = |kind: &str, status: &str, why: &str| {
            let record = json!({"type": kind, "status": status,
                "metadata": {"policy": "rules", "reason": why}});
            reason_for_people(&record, &[], &["s:t".to_owned()])
        };
        let refused = "Tool 's:t' is not allowed by rule 'no-deletes': ask ann";
        let expected = "no-deletes (rule): ask ann";
        assert_eq!(shown("tool_call", "rejected", refused), expected);
        assert_eq!(shown("policy_decision", "blocked", refused), expected);
        let denied = "approval was denied";
        assert_eq!(shown("approval", "rejected", denied), denied);
    }

    #[test]
    fn reason_of_a_hidden_tool_is_the_decision_and_not_what_the_agent_got() {
        let call = json!({"type": "tool_call", "status": "rejected",
            "error_message": "Tool 's:t' not found. Use retrieve_tools to find tools."});
        let decision = json!({"type": "policy_decision", "status": "blocked", "metadata": {"policy": "scope",
            "reason": "Token 'reader' does not allow tool 's:t': it is limited to operation 'read'"}});
        let shown = reason_for_people(&call, &[&decision], &["s:t".to_owned()]);
        let expected = "reader (token): limited to operation read; the agent got: not found";
        assert_eq!(shown, expected);
        // Without a decision the tool does not exist.
        let shown = reason_for_people(&call, &[], &["s:t".to_owned()]);
        assert!(shown.starts_with("not found"), "{shown}");
    }

    #[test]
    fn violation_is_stated_once() {
        let decision = |policy: &str, why: &str| {
            json!({"type": "policy_decision", "status": "blocked",
                "metadata": {"policy": policy, "reason": why, "instance_path": "/head"}})
        };
        let call = |status: &str, why: &str| json!({"type": "tool_call", "status": status, "error_message": why});
        let misfit = "Arguments of 's:t' do not fit: /head: expected number (got string)";
        let judged = decision("input_validation", "at '/head': want number, but got string");
        let refused = call("rejected", misfit);
        assert_eq!(reason(&refused, &[&judged]), misfit);
        let shown = reason_for_people(&refused, &[&judged], &["s:t".to_owned()]);
        assert_eq!(shown, "arguments do not fit: /head: expected number (got string)");
        // The decision about the arguments was not the reason.
        let warned = json!({"type": "policy_decision", "status": "warning",
            "metadata": {"policy": "input_validation", "reason": "at '/head': odd"}});
        let shown = reason(&call("error", "no such file"), &[&warned]);
        assert_eq!(shown, "no such file; warning: at '/head': odd");
        let shown = reason(&refused, &[&decision("rules", "not by the rules")]);
        assert_eq!(shown, format!("{misfit}; blocked: not by the rules"));
    }

    #[test]
    fn reason_of_a_blocked_result_begins_with_the_violation() {
        let celsius = ("/celsius", "/properties/celsius/type", "");
        let at_root = ("", "/additionalProperties", "");
        for (described, (place, schema_path, guard), expected) in [
            (
                "type at '/properties/celsius/type': expected number, got string",
                celsius,
                "schema: /celsius: expected number, got string",
            ),
            (
                "additionalProperties at '/additionalProperties'",
                at_root,
                "schema: (root): additionalProperties",
            ),
            (
                "structuredContent is larger than max_bytes 5242880",
                ("", "", "max_bytes"),
                "size: over 5242880 bytes (max_bytes)",
            ),
            (
                "structuredContent nests deeper than max_depth 64",
                ("", "", "max_depth"),
                "depth: over 64 levels (max_depth)",
            ),
            (
                "structuredContent is missing, and the tool declares a schema",
                ("", "", ""),
                "structuredContent is missing, and the tool declares a schema",
            ),
        ] {
            let decision = json!({"type": "policy_decision", "status": "blocked", "metadata": {
                "policy": "output_validation", "reason": "at '/celsius': want number, but got string",
                "instance_path": place, "schema_path": schema_path, "guard": guard,
            }});
            let text = format!("{BLOCKED}{described}");
            let call = |status: &str| json!({"type": "tool_call", "status": status, "error_message": text});
            let blocked = call("blocked");
            assert_eq!(reason_for_people(&blocked, &[&decision], &[]), expected);
            assert_eq!(reason(&blocked, &[&decision]), text, "unchanged for programs");
            // A server's error may contain the words of a blocked result.
            assert_eq!(reason_for_people(&call("error"), &[], &[]), text);
        }
    }

    #[test]
    fn server_changes_are_described() {
        for (error, metadata, expected) in [
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
            assert_eq!(reason(&record, &[]), expected);
        }
    }

    #[test]
    fn config_and_catalog_changes_are_described() {
        let of = |kind: &str, error: &str, metadata: Value| {
            reason(&json!({"type": kind, "error_message": error, "metadata": metadata}), &[])
        };
        let config = |error, metadata| of("config_change", error, metadata);
        let keys = json!({"applied": ["limits", "mcpServers.a"], "needs_restart": ["listen"]});
        assert_eq!(config("", keys), "changed: limits, mcpServers.a; after a restart: listen");
        assert_eq!(config("line 2: no", json!({"problems": 1})), "line 2: no");
        let rejected =
            json!({"type": "config_change", "status": "rejected", "error_message": "line 2: no"});
        assert_eq!(reason(&rejected, &[]), "change not in force: line 2: no");
        assert_eq!(config("", json!({"section": "policy", "rules": 1})), "1 rule in force");
        let warned = json!({"section": "policy", "rules": 2, "warnings": 1});
        assert_eq!(config("", warned), "2 rules in force; 1 warning");
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

    #[test]
    fn reason_begins_with_the_rule_or_limit() {
        for (reason, expected) in [
            ("is not allowed by rule 'no-deletes'", Some("no-deletes (rule)")),
            ("is not allowed by rule 'no-deletes': ask ann", Some("no-deletes (rule): ask ann")),
            ("is not allowed by rule 'ann's': no: never", Some("ann's (rule): no: never")),
            (
                "is not allowed by rule 'r'; allowed, because policy.mode is shadow",
                Some("r (rule): allowed, because policy.mode is shadow"),
            ),
            (
                "Resource 's:file:///x' is not allowed by rule 'no-x': ask ann",
                Some("no-x (rule): Resource 's:file:///x': ask ann"),
            ),
            (
                "Too many calls to 'token:ci': limit 60 per minute, retry in 12s",
                Some("token:ci (limit): 60 per minute, retry in 12s"),
            ),
            (
                "Too many calls to 'all servers' at a time: limit 4, queue 16; none was free within 2m",
                Some("all servers (limit): 4 at a time, queue 16; none was free within 2m"),
            ),
            ("Too many calls to 's' at a time: limit 4", Some("s (limit): 4 at a time")),
            (
                "Token 'reader2' does not allow tool 's:t': it is limited to servers 'memory', 'web' and 3 more",
                Some("reader2 (token): limited to servers memory, web and 3 more"),
            ),
            (
                "Token 'ci' does not allow resource 'f:1' of 's': it is limited to operation 'write'",
                Some("ci (token): resource 'f:1' of 's': limited to operation write"),
            ),
            (
                "Token 'ci' does not allow resource 'x: it is limited to y' of 's': it is limited to server 'a'",
                None,
            ),
            ("approval was denied", None),
            ("Too many calls to nobody", None),
            ("Token 'ci' does not allow much", None),
            ("is not allowed by rule 'unfinished", None),
        ] {
            let named =
                NamedReason::of(reason, true, &["s:t".to_owned()]).map(|named| named.text(&[]));
            assert_eq!(named.as_deref(), expected, "{reason}");
        }
        let named = NamedReason::of("is not allowed by rule 'r': why", true, &[]).unwrap();
        let qualifiers = ["warning".to_owned(), "9 times".to_owned()];
        assert_eq!(named.text(&qualifiers), "r (rule, warning, 9 times): why");
    }

    #[test]
    fn name_in_a_uri_is_not_shown_as_the_rule() {
        let forged =
            "Resource 's:x' is not allowed by rule 'fake': ' is not allowed by rule 'no-x'";
        assert_eq!(NamedReason::of(forged, true, &[]), None);
        // The tool's name was already removed, so the rule's name follows.
        let quoting = "is not allowed by rule 'no-x': it is not allowed by rule 'fake'";
        let named = NamedReason::of(quoting, true, &[]).map(|named| named.name);
        assert_eq!(named, Some("no-x"));
    }
}
