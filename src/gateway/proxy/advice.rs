//! Help texts in refusals, from which an agent can correct its call: errors in the arguments, a valid example call,
//! and similar tool names.
//!
//! Every text is bounded, names only tools that the caller can see, and never quotes definitions that await review.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::SystemTime;

use mcpproxy_json::members::members;
use mcpproxy_json::pointer::{token, value_at};
use mcpproxy_policy as policy;
use mcpproxy_policy::intent::Operation;
use mcpproxy_policy::tool::{Tool, ToolName, Trust};
use mcpproxy_runtime::nearest::{Effort, nearest_few, nearest_within};
use mcpproxy_schema::misfit::{Misfit, MisfitFault, Misfits};
use mcpproxy_upstream::oauth::{how_to_log_in, says_needs_login as needs_login};
use mcpproxy_upstream::supervisor::{ServerState, Status};

use super::argument_validation::coercion;
use super::builtin::retrieve::MAX_RULED;
use super::client::Caller;
use super::settings::CurrentSettings;
use super::worker::Worker;

/// Maximum size of the line of argument errors, in bytes.
const MAX_MISFITS_BYTES: usize = 2048;

/// Maximum size of a quoted schema part, in bytes.
const MAX_PART_BYTES: usize = 320;

/// Maximum size of arguments quoted in an example call, in bytes.
const MAX_ARGUMENTS_BYTES: usize = 1024;

/// Maximum number of known names listed next to an unknown one.
const MAX_LISTED: usize = 20;

/// Maximum number of known names compared with an unknown one.
const MAX_COMPARED: usize = 1000;

/// Maximum number of similar tools listed for an unknown one.
const NEAREST_TOOLS: usize = 3;

/// One line on the argument errors of `tool` at [`places`] (`contracts.md`, *errors*).
pub(super) fn misfits(tool: &Tool, found: &Misfits, places: &[String]) -> String {
    let mut text = format!("Arguments of '{}' do not fit: {}", tool.name, places.join("; "));
    let more = found.count - found.listed.len();
    cut(&mut text, MAX_MISFITS_BYTES);
    if more > 0 {
        // Infallible: writing to a String.
        let _ = write!(text, "; and {more} more");
    }
    text
}

/// Describes each argument error of `tool` in `arguments` with the expected value. All comparisons with known names
/// share one [`Effort`].
pub(super) fn places(tool: &Tool, found: &Misfits, arguments: &[u8]) -> Vec<String> {
    let arguments = std::str::from_utf8(arguments).unwrap_or_default();
    let (mut known, mut effort) = (KnownNames::default(), Effort::default());
    let describe = |misfit: &Misfit| {
        let mut wrong = wrong(tool, misfit, &mut known, &mut effort);
        if let MisfitFault::Missing(name) = &misfit.fault {
            let others = undeclared_members(tool, found, misfit, arguments, &mut known);
            if let Some(near) = nearest_within(&mut effort, name, others.iter().map(|it| &**it)) {
                wrong = format!("missing (required; '{}' is not a parameter)", shown_name(near));
            }
        }
        match coercion::contained(arguments, misfit) {
            Some(kind) => format!(
                "{}: {wrong}; this string contains {kind}; send the {} itself",
                place(&misfit.place),
                kind.split_once(' ').map_or(kind, |(_, noun)| noun)
            ),
            None => format!("{}: {wrong}", place(&misfit.place)),
        }
    };
    found.listed.iter().map(describe).collect()
}

/// Undeclared members of the object that lacks a required one, except members with a misfit of their own. Empty if the
/// object's schema does not declare any member.
fn undeclared_members(
    tool: &Tool,
    found: &Misfits,
    misfit: &Misfit,
    arguments: &str,
    known: &mut KnownNames,
) -> Vec<String> {
    let object = misfit.place.rsplit_once('/').map_or("", |(object, _)| object);
    let mut declared: HashSet<&str> = known.of(tool, misfit).iter().map(String::as_str).collect();
    // These keywords may declare further members.
    let is_elsewhere = ["/allOf", "/anyOf", "/oneOf", "/patternProperties", "/$ref"]
        .into_iter()
        .any(|keyword| of_schema(tool, misfit, keyword).is_some());
    if declared.is_empty() || declared.len() >= MAX_COMPARED || is_elsewhere {
        return Vec::new();
    }
    declared.extend(found.listed.iter().filter_map(|misfit| match &misfit.fault {
        MisfitFault::Unknown(reported) => Some(reported.as_str()),
        _ => None,
    }));
    let given = value_at(arguments, object).ok().and_then(|object| members(object).ok());
    let given = given.into_iter().flatten().map_while(Result::ok).take(MAX_COMPARED);
    let given = given.map(|(name, _)| name).filter(|name| !declared.contains(&**name));
    given.map(|name| name.into_owned()).collect()
}

fn wrong(tool: &Tool, misfit: &Misfit, known: &mut KnownNames, effort: &mut Effort) -> String {
    match &misfit.fault {
        MisfitFault::Type { expected, got } => {
            let got = got.map(|got| format!(" (got {got})")).unwrap_or_default();
            format!("expected {}{got}", expected.join(" or "))
        }
        MisfitFault::Missing(_) => "missing (required)".to_owned(),
        MisfitFault::Unknown(name) => {
            let known = known.of(tool, misfit).iter().map(|known| &**known);
            let meant = nearest_within(effort, name, known);
            match meant {
                Some(meant) => format!("unknown (did you mean '{}'?)", meant.escape_debug()),
                None => "unknown (no such parameter)".to_owned(),
            }
        }
        MisfitFault::CaseVariant(declared) => {
            let declared = declared.escape_debug();
            format!("differs only by case from '{declared}': write '{declared}'")
        }
        MisfitFault::Uncompared(why) => format!(
            "a key may differ only by case from a parameter, and cannot be compared ({why}): write each key as the tool's schema does"
        ),
        MisfitFault::Alternatives => "fits none of the alternatives".to_owned(),
    }
}

/// Violated parts of the schema, one line each, and the setting that applies to strings that contain JSON.
pub(super) fn parts(tool: &Tool, found: &Misfits, arguments: &[u8]) -> String {
    let arguments = std::str::from_utf8(arguments).unwrap_or_default();
    let (mut lines, mut known): (Vec<String>, _) = (Vec::new(), KnownNames::default());
    for misfit in &found.listed {
        let line = match &misfit.fault {
            MisfitFault::Type { .. } | MisfitFault::Alternatives => part(tool, misfit, "")
                .map(|part| format!("Schema of {}: {part}", place(&misfit.place))),
            MisfitFault::Missing(name) => {
                part(tool, misfit, &format!("/properties/{}", token(name)))
                    .map(|part| format!("Schema of {}: {part}", place(&misfit.place)))
            }
            MisfitFault::CaseVariant(_) | MisfitFault::Uncompared(_) => None,
            MisfitFault::Unknown(_) => Some(names(misfit, known.of(tool, misfit))),
        };
        lines.extend(line.filter(|line| !lines.contains(line)));
    }
    if found.listed.iter().any(|misfit| coercion::contained(arguments, misfit).is_some()) {
        let mode = tool.input.policy.mode.as_str();
        lines.push(format!(
            "The operator's setting input_validation.mode is '{mode}'; with 'coerce' a string is sent as the JSON value it contains where the schema allows only that"
        ));
    }
    lines.join("\n")
}

/// Known names at the location of an unknown one.
fn names(misfit: &Misfit, known: &[String]) -> String {
    let object = misfit.place.rsplit_once('/').map_or("", |(object, _)| object);
    if known.is_empty() {
        return format!("Known in {}: none", place(object));
    }
    let listed: Vec<_> = known.iter().take(MAX_LISTED).map(|it| shown_name(it)).collect();
    let more = if known.len() > MAX_LISTED { ", …" } else { "" };
    format!("Known in {}: {}{more}", place(object), listed.join(", "))
}

fn shown_name(name: &str) -> String {
    let mut name = name.escape_debug().to_string();
    cut(&mut name, MAX_PART_BYTES / 4);
    name
}

/// Cache of the property names of the last visited object. Unknown names often share an object, whose schema may be
/// long.
#[derive(Default)]
struct KnownNames {
    /// Location of the object's schema.
    at: Option<String>,
    names: Vec<String>,
}

impl KnownNames {
    /// Property names of the object that `misfit` is a member of.
    fn of(&mut self, tool: &Tool, misfit: &Misfit) -> &[String] {
        if misfit.schema.is_none() || self.at != misfit.schema {
            let properties = of_schema(tool, misfit, "/properties");
            let properties = properties.and_then(|text| members(text).ok());
            let names = properties.into_iter().flatten().map_while(Result::ok);
            self.names = names.take(MAX_COMPARED).map(|(name, _)| name.into_owned()).collect();
            self.at.clone_from(&misfit.schema);
        }
        &self.names
    }
}

/// The schema part below the location of `misfit`, on one line.
fn part(tool: &Tool, misfit: &Misfit, below: &str) -> Option<String> {
    let text = of_schema(tool, misfit, below)?;
    // The tail would be cut anyway.
    let head = text.get(..text.floor_char_boundary(4 * MAX_PART_BYTES)).unwrap_or(text);
    let mut line = head.split_whitespace().collect::<Vec<_>>().join(" ");
    cut(&mut line, MAX_PART_BYTES);
    Some(line)
}

fn of_schema<'t>(tool: &'t Tool, misfit: &Misfit, below: &str) -> Option<&'t str> {
    let at = misfit.schema.as_deref()?;
    value_at(tool.input_schema.get(), &format!("{at}{below}")).ok()
}

/// Location in the arguments, in printable characters.
fn place(pointer: &str) -> String {
    match pointer {
        "" => "(root)".to_owned(),
        pointer => pointer.escape_debug().to_string(),
    }
}

/// Example call of a tool through the variant for `operation`, with these arguments and a valid intent.
pub(super) fn call_again(
    operation: Operation,
    tool: &str,
    arguments: &[u8],
    intent: &str,
) -> String {
    let name = serde_json::Value::from(tool);
    let variant = operation.variant();
    match std::str::from_utf8(arguments).ok().filter(|text| text.len() <= MAX_ARGUMENTS_BYTES) {
        Some(arguments) => format!(
            r#"Call again with {variant}: {{"name":{name},"args":{arguments},"intent":{intent}}}"#
        ),
        None => format!(
            r#"Call again with {variant}: {{"name":{name},"args":…,"intent":{intent}}}, with the args of this call"#
        ),
    }
}

/// Visible tools most similar to an unknown name, the same tool on another server first.
pub(super) fn nearest_tools(name: &str, found: &[&Tool]) -> String {
    let (_, tool_name) = name.split_once(':').unwrap_or(("", name));
    let names: Vec<_> = found.iter().map(|tool| tool.name.to_string()).collect();
    let same = found.iter().zip(&names).filter(|(tool, _)| *tool.name.tool == *tool_name);
    let mut near: Vec<&str> = same.map(|(_, name)| name.as_str()).take(NEAREST_TOOLS).collect();
    let rest = names.iter().map(String::as_str).filter(|name| !near.contains(name));
    let more = nearest_few(name, rest, NEAREST_TOOLS - near.len());
    near.extend(more);
    nearest_list(&near)
}

/// Like [`nearest_tools`], but for tools under their own names.
pub(super) fn nearest_names<'a>(name: &str, shown: impl Iterator<Item = &'a str>) -> String {
    nearest_list(&nearest_few(name, shown.take(MAX_COMPARED), NEAREST_TOOLS))
}

fn nearest_list(near: &[&str]) -> String {
    if near.is_empty() {
        return String::new();
    }
    let near: Vec<_> = near.iter().map(|name| format!("'{}'", shown_name(name))).collect();
    format!("Nearest tools: {}", near.join(", "))
}

/// Text about an unavailable server: since when it is unavailable, and the alternatives.
pub(super) fn away(state: &ServerState, now: SystemTime) -> String {
    let ServerState { name, status, since, reason, .. } = state;
    let then = match status {
        Status::Connecting | Status::Failed | Status::NeedsLogin if needs_login(reason, name) => {
            return format!(
                "Server '{name}' needs a login: trying again does not help; its user has to {}. Tools of other servers can be used meanwhile",
                how_to_log_in(name)
            );
        }
        Status::Connected => return String::new(),
        Status::Disabled => "only an operator can enable it",
        Status::Connecting => "try again in a few seconds",
        Status::Failed | Status::NeedsLogin => "try again later",
        Status::Throttled => "it rate-limits requests, try again later",
    };
    let seconds = now.duration_since(*since).unwrap_or_default().as_secs();
    let since = jiff::Timestamp::try_from(*since).unwrap_or_default();
    let (status, since) = (status.as_str(), since.strftime("%Y-%m-%dT%H:%M:%SZ"));
    format!(
        "Server '{name}' is {status} since {since} ({seconds} s): {then}; tools of other servers can be used meanwhile"
    )
}

/// Cuts a text at a character boundary and marks the cut.
fn cut(text: &mut String, limit: usize) {
    if text.len() > limit {
        text.truncate(text.floor_char_boundary(limit));
        text.push('…');
    }
}

/// Maximum number of tools compared with the name, in search order.
const MAX_TOOLS: usize = 200;
/// Maximum length of the name used as a search query, in characters.
const MAX_NAME_CHARS: usize = 1024;

/// Help text with the nearest tools; empty if there are none.
pub(super) fn nearest_shown_tools(
    worker: &Worker,
    caller: &Caller,
    settings: &CurrentSettings,
    name: &str,
) -> String {
    let snapshot = worker.proxy.catalog.load();
    let visible = policy::visible(&caller.principal, &settings.policy);
    let mut may_see = visible.first_tools(MAX_RULED);
    let mut shown =
        |tool: &Arc<Tool>| tool.trust == Trust::Given && !tool.is_app_only && may_see(tool);
    let (server, words) = ToolName::split(name).unwrap_or(("", name));
    let words: String = words.chars().take(MAX_NAME_CHARS).collect();
    let found = snapshot.search_for(&words, MAX_TOOLS, None, &mut shown).tools;
    // The tools of the named server, and all tools if they are few, regardless of their names.
    let others = snapshot.tools_of(server).iter().chain(snapshot.tools());
    let others = others.filter(|tool| shown(tool)).take(MAX_TOOLS);
    let mut tools: Vec<&Tool> = Vec::new();
    for tool in found.iter().map(|(tool, _)| tool).chain(others) {
        if !tools.iter().any(|known| std::ptr::eq(*known, &**tool)) {
            tools.push(tool);
        }
    }
    nearest_tools(name, &tools)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use mcpproxy_policy::tool::{Annotations, Rules, ToolName};
    use mcpproxy_schema::compile::{Settings, compile};
    use mcpproxy_schema::judge::{JudgeScratch, Verdict};
    use mcpproxy_upstream::supervisor::Transport;
    use serde_json::value::RawValue;

    use super::*;

    const SCHEMA: &str = r##"{"type": "object", "additionalProperties": false, "required": ["owner"],
        "properties": {"owner": {"type": "string", "description": "Who"}, "labels": {"type": "array", "items": {"$ref": "#/$defs/label"}}},
        "$defs": {"label": {"type":
            "string"}}}"##;

    fn tool(name: &str, schema: &str) -> Tool {
        let name = ToolName::parse(name).unwrap();
        let mut tool = Tool::named(name, Annotations::default(), &Rules::default());
        tool.input_schema = RawValue::from_string(schema.to_owned()).unwrap();
        tool
    }

    fn explain(schema: &str, arguments: &str) -> (String, String) {
        let compiled = compile(schema.as_bytes(), &Settings::default()).unwrap();
        let document = [Bytes::copy_from_slice(arguments.as_bytes())];
        let Verdict::Violates(violation) =
            compiled.judge(&document, &mut JudgeScratch::new()).verdict
        else {
            panic!("it conforms")
        };
        let tool = tool("s:t", schema);
        let found = &violation.misfits;
        let arguments = arguments.as_bytes();
        (misfits(&tool, found, &places(&tool, found, arguments)), parts(&tool, found, arguments))
    }

    #[test]
    fn each_argument_error_lists_location_expectation_and_schema_part() {
        let (text, help) = explain(SCHEMA, r#"{"lables": 1, "labels": ["a", 7]}"#);
        assert!(text.starts_with("Arguments of 's:t' do not fit: "), "{text}");
        for expected in [
            "/owner: missing (required)",
            "/labels/1: expected string (got number)",
            "/lables: unknown (did you mean 'labels'?)",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        for expected in [
            r#"Schema of /owner: {"type": "string", "description": "Who"}"#,
            r#"Schema of /labels/1: {"type": "string"}"#,
            "Known in (root): owner, labels",
        ] {
            assert!(help.contains(expected), "{expected}: {help}");
        }
        let open = r#"{"required":["repo_path"],"properties":{"repo_path":{},"ref":{}}}"#;
        let (text, _) = explain(open, r#"{"ref": "main", "repopath": "/tmp", "xyzzy": 1}"#);
        let expected = "/repo_path: missing (required; 'repopath' is not a parameter)";
        assert!(text.ends_with(expected), "{text}");
        let also = r#"{"required":["repo_path"],"properties":{"repo_path":{},"ref":{}},"patternProperties":{"^repo":{}}}"#;
        let (text, _) = explain(also, r#"{"repopath": "/tmp"}"#);
        assert!(text.ends_with("/repo_path: missing (required)"), "{text}");
        let (text, _) = explain(open, r#"{"ref": "main", "xyzzy": 1}"#);
        assert!(text.ends_with("/repo_path: missing (required)"), "{text}");
        let (text, help) = explain(SCHEMA, r#"{"owner": "a", "xyzzy": 1}"#);
        assert!(text.ends_with("/xyzzy: unknown (no such parameter)"), "{text}");
        assert_eq!(help, "Known in (root): owner, labels");
    }

    #[test]
    fn refusal_of_hostile_input_is_bounded_and_printable() {
        let names: Vec<_> = (0..5000).map(|at| format!("\"\\u202e\\n{at:0200}\":1")).collect();
        let (text, help) = explain(SCHEMA, &format!("{{\"owner\":\"a\",{}}}", names.join(",")));
        assert!(text.len() < MAX_MISFITS_BYTES + 100 && help.len() < 1000, "{text}");
        assert!(text.contains("and 4992 more"), "{text}");
        assert!(!text.contains(['\n', '\u{202e}']), "{text}");
        let many: Vec<_> = (0..2000)
            .map(|at| format!("\"{at:0300}\":{{\"description\":\"{at:01000}\"}}"))
            .collect();
        let schema = format!(
            r#"{{"additionalProperties":false,"required":["{:0300}"],"properties":{{{}}}}}"#,
            1,
            many.join(",")
        );
        let (_, help) = explain(&schema, r#"{"x":1}"#);
        assert!(help.len() < 4096 && help.contains('…'), "{}", help.len());
    }

    #[test]
    fn known_names_are_those_of_the_same_object() {
        let schema = r#"{"additionalProperties":false,"properties":{"size":{},"deep":{
            "additionalProperties":false,"properties":{"color":{}}}}}"#;
        let (text, help) = explain(schema, r#"{"sise":1,"colr":1,"deep":{"colr":1,"sise":1}}"#);
        for expected in [
            "/sise: unknown (did you mean 'size'?)",
            "/colr: unknown (no such parameter)",
            "/deep/colr: unknown (did you mean 'color'?)",
            "/deep/sise: unknown (no such parameter)",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        assert!(help.contains("Known in (root): size, deep"), "{help}");
        assert!(help.contains("Known in /deep: color"), "{help}");
    }

    #[test]
    fn example_call_quotes_only_short_arguments() {
        let intent = r#"{"operation_type":"destructive"}"#;
        let text = call_again(Operation::Destructive, "s:\"t", br#"{"a": 1}"#, intent);
        let call = text.strip_prefix("Call again with call_tool_destructive: ").unwrap();
        let call: serde_json::Value = serde_json::from_str(call).unwrap();
        assert_eq!(call["name"], "s:\"t");
        assert_eq!(
            (&call["args"]["a"], &call["intent"]["operation_type"]),
            (&1.into(), &"destructive".into())
        );
        let long = format!("{{\"a\":\"{}\"}}", "x".repeat(MAX_ARGUMENTS_BYTES));
        let text = call_again(Operation::Read, "s:t", long.as_bytes(), intent);
        assert!(text.len() < 200 && text.contains("with the args of this call"), "{text}");
    }

    #[test]
    fn at_most_three_similar_tools_are_listed() {
        let tools: Vec<_> = ["a:get_repo", "b:read_file", "b:read_dir", "c:raed_file", "d:x"]
            .map(|name| tool(name, "{}"))
            .into();
        let tools: Vec<_> = tools.iter().collect();
        let text = nearest_tools("b:raed_file", &tools);
        assert_eq!(text, "Nearest tools: 'c:raed_file', 'b:read_file', 'b:read_dir'");
        assert_eq!(nearest_tools("b:raed_file", &[]), "");
    }

    #[test]
    fn unavailable_server_reports_since_when() {
        let since = SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600);
        let state = |status| ServerState {
            name: "s".into(),
            transport: Transport::Stdio,
            status,
            reason: "".into(),
            tools: 0,
            since,
            protocol_version: None,
            server_info: None,
            settled: true,
        };
        let explain = |status| away(&state(status), since + Duration::from_secs(90));
        let text = explain(Status::Failed);
        let expected = "Server 's' is failed since 2026-01-01T00:00:00Z (90 s): try again later; ";
        assert!(text.starts_with(expected), "{text}");
        assert!(explain(Status::Disabled).contains("only an operator can enable it"));
        assert_eq!(explain(Status::Connected), "");
        // PRO-10
        let reason = "needs login: run mcpproxy upstream login s".into();
        let text = away(&ServerState { reason, ..state(Status::Failed) }, since);
        assert!(text.contains("run mcpproxy upstream login s"), "{text}");
        assert!(!text.contains("try again later"), "{text}");
    }
}
