//! Refusals from which an agent can mend its call: what is wrong in its arguments, and the call as it would be right.
//!
//! Owns the words, each of them bounded. Pure; what is refused, and why, is decided elsewhere. Nothing here may name a
//! tool that the caller is not shown, or quote what waits for an operator.

use std::fmt::Write as _;
use std::time::SystemTime;

use crate::intent::Operation;
use crate::json::members::members;
use crate::json::pointer::{token, value_at};
use crate::nearest::{Effort, nearest_few, nearest_within};
use crate::schema::misfit::{Misfit, MisfitFault, Misfits};
use crate::tool::Tool;
use crate::upstream::supervisor::{ServerState, Status};

/// Bytes of the line that says where arguments do not fit.
const MAX_MISFITS_BYTES: usize = 2048;

/// Bytes of one part of a schema that is shown.
const MAX_PART_BYTES: usize = 320;

/// Bytes of arguments that are spelled out in a call.
const MAX_ARGUMENTS_BYTES: usize = 1024;

/// Names that are listed where one is unknown.
const MAX_LISTED: usize = 20;

/// Names that an unknown one is compared with.
const MAX_COMPARED: usize = 1000;

/// Names that an unknown tool is answered with.
const NEAREST_TOOLS: usize = 3;

/// Where the arguments of `tool` do not fit, in one line ([contracts](crate::reference::contracts#errors)), of what
/// [`places`] says.
pub(super) fn misfits(tool: &Tool, found: &Misfits, places: &[String]) -> String {
    let mut text = format!("Arguments of '{}' do not fit: {}", tool.name, places.join("; "));
    let more = found.count - found.listed.len();
    cut(&mut text, MAX_MISFITS_BYTES);
    if more > 0 {
        // Writing into a string does not fail.
        let _ = write!(text, "; and {more} more");
    }
    text
}

/// Each place where the arguments of `tool` do not fit, and what is expected there. All of them together are compared with
/// known names as far as one [`Effort`] goes.
pub(super) fn places(tool: &Tool, found: &Misfits) -> Vec<String> {
    let (mut known, mut effort) = (KnownNames::default(), Effort::default());
    let told = |misfit: &Misfit| {
        format!("{}: {}", place(&misfit.place), wrong(tool, misfit, &mut known, &mut effort))
    };
    found.listed.iter().map(told).collect()
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
        MisfitFault::Alternatives => "fits none of the alternatives".to_owned(),
    }
}

/// The parts of the schema that they do not fit, a line for each.
pub(super) fn parts(tool: &Tool, found: &Misfits) -> String {
    let (mut lines, mut known): (Vec<String>, _) = (Vec::new(), KnownNames::default());
    for misfit in &found.listed {
        let line = match &misfit.fault {
            MisfitFault::Type { .. } | MisfitFault::Alternatives => part(tool, misfit, "")
                .map(|part| format!("Schema of {}: {part}", place(&misfit.place))),
            MisfitFault::Missing(name) => {
                part(tool, misfit, &format!("/properties/{}", token(name)))
                    .map(|part| format!("Schema of {}: {part}", place(&misfit.place)))
            }
            MisfitFault::Unknown(_) => Some(names(misfit, known.of(tool, misfit))),
        };
        lines.extend(line.filter(|line| !lines.contains(line)));
    }
    lines.join("\n")
}

/// The names that may stand where an unknown one does.
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

/// The names of the properties of objects, of the last one kept: unknown names often stand in one, and its schema may be
/// long.
#[derive(Default)]
struct KnownNames {
    /// Where its schema is.
    at: Option<String>,
    names: Vec<String>,
}

impl KnownNames {
    /// Those of the object that `misfit` is a member of.
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

/// The part of the schema at a place below that of `misfit`, in one line.
fn part(tool: &Tool, misfit: &Misfit, below: &str) -> Option<String> {
    let text = of_schema(tool, misfit, below)?;
    // What is cut off anyway is not looked at.
    let head = text.get(..text.floor_char_boundary(4 * MAX_PART_BYTES)).unwrap_or(text);
    let mut line = head.split_whitespace().collect::<Vec<_>>().join(" ");
    cut(&mut line, MAX_PART_BYTES);
    Some(line)
}

fn of_schema<'t>(tool: &'t Tool, misfit: &Misfit, below: &str) -> Option<&'t str> {
    let at = misfit.schema.as_deref()?;
    value_at(tool.input_schema.get(), &format!("{at}{below}")).ok()
}

/// A place in the arguments, in printable characters.
fn place(pointer: &str) -> String {
    match pointer {
        "" => "(root)".to_owned(),
        pointer => pointer.escape_debug().to_string(),
    }
}

/// The call of a tool by the variant for `operation`, with these arguments and an intent that is right for it.
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

/// The tools that an unknown name is most like, of those that the caller is shown: the same tool of another server
/// first.
pub(super) fn nearest_tools(name: &str, found: &[&Tool]) -> String {
    let (_, wanted) = name.split_once(':').unwrap_or(("", name));
    let names: Vec<_> = found.iter().map(|tool| tool.name.to_string()).collect();
    let same = found.iter().zip(&names).filter(|(tool, _)| *tool.name.tool == *wanted);
    let mut near: Vec<&str> = same.map(|(_, name)| name.as_str()).take(NEAREST_TOOLS).collect();
    let rest = names.iter().map(String::as_str).filter(|name| !near.contains(name));
    let more = nearest_few(name, rest, NEAREST_TOOLS - near.len());
    near.extend(more);
    told(&near)
}

/// The same of tools under names of their own.
pub(super) fn nearest_names<'a>(name: &str, shown: impl Iterator<Item = &'a str>) -> String {
    told(&nearest_few(name, shown.take(MAX_COMPARED), NEAREST_TOOLS))
}

fn told(near: &[&str]) -> String {
    if near.is_empty() {
        return String::new();
    }
    let near: Vec<_> = near.iter().map(|name| format!("'{}'", shown_name(name))).collect();
    format!("Nearest tools: {}", near.join(", "))
}

/// Since when a server is away, and what can be done meanwhile.
pub(super) fn away(state: &ServerState, now: SystemTime) -> String {
    let ServerState { name, status, since, .. } = state;
    let then = match status {
        Status::Connected => return String::new(),
        Status::Disabled => "only an operator can enable it",
        Status::Connecting => "try again in a few seconds",
        Status::Failed => "try again later",
    };
    let seconds = now.duration_since(*since).unwrap_or_default().as_secs();
    let since = jiff::Timestamp::try_from(*since).unwrap_or_default();
    let (status, since) = (status.as_str(), since.strftime("%Y-%m-%dT%H:%M:%SZ"));
    format!(
        "Server '{name}' is {status} since {since} ({seconds} s): {then}; tools of other servers can be used meanwhile"
    )
}

/// Cuts a text on a character, which is then seen.
fn cut(text: &mut String, limit: usize) {
    if text.len() > limit {
        text.truncate(text.floor_char_boundary(limit));
        text.push('…');
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use serde_json::value::RawValue;

    use super::*;
    use crate::schema::compile::{Settings, compile};
    use crate::schema::judge::{JudgeScratch, Verdict};
    use crate::tool::{Annotations, Rules, ToolName};
    use crate::upstream::supervisor::Transport;

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

    fn told(schema: &str, arguments: &str) -> (String, String) {
        let compiled = compile(schema.as_bytes(), &Settings::default()).unwrap();
        let document = [Bytes::copy_from_slice(arguments.as_bytes())];
        let Verdict::Violates(violation) =
            compiled.judge(&document, &mut JudgeScratch::new()).verdict
        else {
            panic!("it conforms")
        };
        let tool = tool("s:t", schema);
        let found = &violation.misfits;
        (misfits(&tool, found, &places(&tool, found)), parts(&tool, found))
    }

    #[test]
    fn each_wrong_place_is_named_with_what_is_expected_and_the_part_of_the_schema() {
        let (text, help) = told(SCHEMA, r#"{"lables": 1, "labels": ["a", 7]}"#);
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
        let (text, help) = told(SCHEMA, r#"{"owner": "a", "xyzzy": 1}"#);
        assert!(text.ends_with("/xyzzy: unknown (no such parameter)"), "{text}");
        assert_eq!(help, "Known in (root): owner, labels");
    }

    #[test]
    fn what_a_hostile_document_or_schema_makes_of_a_refusal_is_bounded_and_printable() {
        let names: Vec<_> = (0..5000).map(|at| format!("\"\\u202e\\n{at:0200}\":1")).collect();
        let (text, help) = told(SCHEMA, &format!("{{\"owner\":\"a\",{}}}", names.join(",")));
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
        let (_, help) = told(&schema, r#"{"x":1}"#);
        assert!(help.len() < 4096 && help.contains('…'), "{}", help.len());
    }

    #[test]
    fn the_names_of_each_object_are_its_own() {
        let schema = r#"{"additionalProperties":false,"properties":{"size":{},"deep":{
            "additionalProperties":false,"properties":{"colour":{}}}}}"#;
        let (text, help) = told(schema, r#"{"sise":1,"color":1,"deep":{"color":1,"sise":1}}"#);
        for expected in [
            "/sise: unknown (did you mean 'size'?)",
            "/color: unknown (no such parameter)",
            "/deep/color: unknown (did you mean 'colour'?)",
            "/deep/sise: unknown (no such parameter)",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        assert!(help.contains("Known in (root): size, deep"), "{help}");
        assert!(help.contains("Known in /deep: colour"), "{help}");
    }

    #[test]
    fn a_call_is_spelled_out_as_far_as_that_is_short() {
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
    fn three_tools_are_near() {
        let tools: Vec<_> = ["a:get_repo", "b:read_file", "b:read_dir", "c:raed_file", "d:x"]
            .map(|name| tool(name, "{}"))
            .into();
        let tools: Vec<_> = tools.iter().collect();
        let text = nearest_tools("b:raed_file", &tools);
        assert_eq!(text, "Nearest tools: 'c:raed_file', 'b:read_file', 'b:read_dir'");
        assert_eq!(nearest_tools("b:raed_file", &[]), "");
    }

    #[test]
    fn a_server_that_is_away_says_since_when() {
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
        let told = |status| away(&state(status), since + Duration::from_secs(90));
        let text = told(Status::Failed);
        let expected = "Server 's' is failed since 2026-01-01T00:00:00Z (90 s): try again later; ";
        assert!(text.starts_with(expected), "{text}");
        assert!(told(Status::Disabled).contains("only an operator can enable it"));
        assert_eq!(told(Status::Connected), "");
    }
}
