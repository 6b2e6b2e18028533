//! `describe_tool`: one tool whole, with an example of its call; given arguments, what would become of the call.
//!
//! Nothing is called, counted under a limit or asked of anybody: the policy is asked what it would say
//! ([`policy::foresee`]). Who may not see a tool is told what is told of tools that are not there.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::call_trace::CallTrace;
use super::caller::Caller;
use super::record_kind::RecordKind;
use super::recorded::{OnRecord, ReplySource, recorded};
use super::refusal::{FIND_TOOLS, RefusalKind};
use super::rejection::Rejection;
use super::render::{self, Caching, shown};
use super::reply::{Aborted, Reply};
use super::retrieve::Shown;
use super::tool_text;
use super::worker::Worker;
use super::{advice, arguments, call};
use crate::activity::record::{Raw, Status};
use crate::intent::{Operation, Stated};
use crate::json::members::{members, string};
use crate::mcp::revisions::Era;
use crate::policy::{self, Access, Denial, Foreseen, ToolAccess};
use crate::schema::violation::Violation;
use crate::tool::example::example;
use crate::tool::signature::on_one_line;
use crate::tool::{Approval, Tool, ToolName, Trust};

/// The tool's name.
pub const DESCRIBE_TOOL: &str = "describe_tool";

/// Why the arguments are refused. The caller's blame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each case is its text")]
pub enum DescribeError {
    #[error("arguments must be a JSON object")]
    NotAnObject,
    #[error("Unknown parameter '{0}': known are name, args, and operation")]
    Unknown(String),
    #[error("name is required: the tool, as server:tool")]
    NoName,
    #[error("name must be a string")]
    BadName,
    #[error("args must be a JSON object")]
    BadArgs,
    #[error("operation must be read, write, or destructive")]
    BadOperation,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Asked<'a> {
    name: Cow<'a, str>,
    /// The arguments of the call that is thought of.
    args: Option<&'a str>,
    /// What it would be called for.
    operation: Option<Operation>,
}

impl<'a> Asked<'a> {
    fn parse(raw: &'a [u8]) -> Result<Self, DescribeError> {
        use DescribeError as E;
        let raw = std::str::from_utf8(raw).map_err(|_| E::NotAnObject)?;
        let (mut name, mut args, mut operation) = (None, None, None);
        for member in members(raw).map_err(|_| E::NotAnObject)? {
            let (key, value) = member.map_err(|_| E::NotAnObject)?;
            match &*key {
                _ if value == "null" => {}
                "name" => name = Some(string(value).ok_or(E::BadName)?),
                "args" if value.starts_with('{') => args = Some(value),
                "args" => return Err(E::BadArgs),
                "operation" => {
                    let word = string(value).ok_or(E::BadOperation)?;
                    operation = Some(Operation::from_word(&word).ok_or(E::BadOperation)?);
                }
                _ => return Err(E::Unknown(key.chars().take(64).collect())),
            }
        }
        Ok(Self { name: name.ok_or(E::NoName)?, args, operation })
    }
}

/// Answers `describe_tool`, given its `raw` arguments and the request's `_meta`.
///
/// # Errors
/// None; the type is that of every call.
pub fn describe_tool(
    worker: Rc<Worker>,
    caller: Caller,
    raw: Bytes,
    meta: Option<&[u8]>,
    reply: Reply,
) -> impl Future<Output = Result<(), Aborted>> + use<> {
    let kind = RecordKind::OwnTool;
    let trace = CallTrace::begin(&worker, &caller, kind.method(), || meta);
    recorded(worker, caller, (kind, trace), reply, async move |on: OnRecord<'_>| {
        on.record.name("", DESCRIBE_TOOL);
        on.record.keep(Raw::Arguments, &raw);
        let asked = Asked::parse(&raw);
        let asked = asked.map_err(|error| Rejection::of_parameters(error.to_string()))?;
        let tool = find(&on, &asked.name).await?;
        if tool.trust == Trust::Withheld {
            return Err(on.record.deny(&Denial::Quarantined(tool.name.clone())).into());
        }
        let preflight = match asked {
            Asked { args: None, operation: None, .. } => None,
            Asked { .. } => {
                let violation = match asked.args {
                    Some(args) => on.foresee_misfits(&tool, &raw.slice_ref(args.as_bytes())).await,
                    None => None,
                };
                Some(Preflight::of(&on, &tool, &asked, violation.as_ref()))
            }
        };
        let result = described(&tool, preflight);
        let result = match on.caller.era() {
            Era::Legacy => result,
            Era::Modern => {
                let result = String::from_utf8_lossy(&result);
                render::own_result(Era::Modern, &result, Caching::No).into_owned().into()
            }
        };
        on.record.note_response(&result);
        Ok(ReplySource::Own(result))
    })
}

/// The tool of that name, if the principal may see it.
async fn find(on: &OnRecord<'_>, name: &str) -> Result<Arc<Tool>, Rejection> {
    let found = match ToolName::parse(name) {
        Some(name) => call::find(on, &name).await.map(Some),
        None => Ok(None),
    };
    let visible = policy::visible(&on.caller.principal, &on.settings.policy);
    match found {
        Ok(Some(tool)) if visible.tool(&tool) => return Ok(tool),
        Err(stop) if stop.refusal.kind != RefusalKind::Unknown => return Err(stop),
        // The same words for all of them: what is not shown is not there.
        Ok(_) | Err(_) => {}
    }
    let text = format!("Tool '{}' not found", on_one_line(&shown(name)));
    let mut unknown = Rejection::new(Status::Error, RefusalKind::Unknown, text);
    unknown.refusal = unknown.refusal.advising(FIND_TOOLS);
    Err(call::nearest(on, name, unknown))
}

/// The tool whole.
#[derive(Serialize)]
struct Described<'a> {
    #[serde(flatten)]
    tool: Shown<'a>,
    signature: &'a str,
    #[serde(rename = "outputSchema", skip_serializing_if = "Option::is_none")]
    output_schema: Option<&'a RawValue>,
    example: ExampleCall,
    #[serde(skip_serializing_if = "Option::is_none")]
    preflight: Option<Preflight>,
}

/// A call of a tool, by one of the call tools: what an agent would send.
#[derive(Clone, Debug, Serialize)]
struct ExampleCall {
    tool: &'static str,
    arguments: Value,
}

impl ExampleCall {
    fn new(tool: &Tool, operation: Operation, args: Value) -> Self {
        let arguments = json!({
            "name": tool.name.to_string(),
            "args": args,
            "intent": {"operation_type": operation.as_str()},
        });
        Self { tool: operation.variant(), arguments }
    }
}

/// What would become of a call.
#[derive(Clone, Debug, Serialize)]
struct Preflight {
    /// By which call tool.
    call_with: &'static str,
    /// `allowed`, `approval` (a person is asked first) or `refused`.
    verdict: &'static str,
    /// Why it would be refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// What would be remarkable about it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
    /// Where the arguments do not fit the input schema.
    argument_errors: Vec<String>,
}

impl Preflight {
    fn of(
        on: &OnRecord<'_>,
        tool: &Arc<Tool>,
        asked: &Asked<'_>,
        violation: Option<&Violation>,
    ) -> Self {
        let operation = asked.operation.unwrap_or(Operation::recommended(tool.capability));
        let arguments = asked.args.unwrap_or("{}");
        let word = Value::from(operation.as_str()).to_string();
        let stated = Stated::parse(&[("intent_operation_type".into(), &word)]);
        let foreseen = match stated.check(operation, &on.settings.policy.intent) {
            Ok(intent) => {
                let access = Access::Tool(ToolAccess::declared(Arc::clone(tool), &intent));
                on.foresee(access, arguments.as_bytes(), Some(intent))
            }
            Err(error) => Foreseen::Refused(error.into()),
        };
        let told = |warnings: Vec<policy::Warning>| {
            warnings.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let misfits = violation.map(|violation| &violation.misfits);
        let places = misfits.map(|misfits| advice::places(tool, misfits)).unwrap_or_default();
        let (verdict, reason, warnings) = match foreseen {
            Foreseen::Refused(denial) => ("refused", Some(denial.to_string()), Vec::new()),
            _ if let Some(violation) = violation.filter(|it| arguments::refuses(tool, it)) => {
                let text = advice::misfits(tool, &violation.misfits, &places);
                ("refused", Some(text), Vec::new())
            }
            Foreseen::Allowed { warnings } => ("allowed", None, told(warnings)),
            Foreseen::Asked { warnings } => ("approval", None, told(warnings)),
        };
        let argument_errors = match violation {
            Some(violation) if violation.misfits.is_empty() => {
                vec![violation.describe().to_string()]
            }
            Some(_) | None => places,
        };
        let call_with = operation.variant();
        Self { call_with, verdict, reason, warnings, argument_errors }
    }

    /// The same in words.
    fn tell(&self, text: &mut String) {
        let verdict = match (self.verdict, &self.reason) {
            (_, Some(reason)) => format!("would be refused: {}", on_one_line(reason)),
            ("approval", None) => "waits until a person has approved it".to_owned(),
            (_, None) => "would go out".to_owned(),
        };
        // Infallible: a String takes everything.
        let _ = writeln!(text, "Preflight: {} {verdict}", self.call_with);
        self.warnings.iter().for_each(|warning| tool_text::indented(text, warning));
        for problem in &self.argument_errors {
            tool_text::indented(text, &format!("arguments: {problem}"));
        }
    }
}

/// The result, in both forms.
fn described(tool: &Tool, preflight: Option<Preflight>) -> Bytes {
    let operation = Operation::recommended(tool.capability);
    let example = ExampleCall::new(tool, operation, example(&tool.input_schema));
    let mut text = String::new();
    tool_text::heading(&mut text, tool);
    tool_text::indented(&mut text, &tool.description);
    tool_text::json_line(&mut text, "inputSchema", &tool.input_schema);
    if let Some(output) = &tool.output_schema {
        tool_text::json_line(&mut text, "outputSchema", output);
    }
    match tool.capability.approval {
        Approval::Auto => {}
        Approval::Suggest => tool_text::indented(&mut text, "A person should approve a call."),
        Approval::Required => tool_text::indented(&mut text, "A person has to approve each call."),
    }
    // Infallible: a String takes everything.
    let _ =
        writeln!(text, "Example: {} {}", example.tool, on_one_line(&example.arguments.to_string()));
    if let Some(preflight) = &preflight {
        preflight.tell(&mut text);
    }
    let content = Described {
        tool: Shown::of(tool, None),
        signature: tool.signature(),
        output_schema: tool.output_schema.as_deref(),
        example,
        preflight,
    };
    tool_text::tool_result(&content, text.trim_end()).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tool::{Annotations, Rules};

    #[test]
    fn what_cannot_be_read_is_refused() {
        use DescribeError as E;
        for (arguments, error) in [
            ("[]", E::NotAnObject),
            ("{}", E::NoName),
            (r#"{"name":null}"#, E::NoName),
            (r#"{"name":7}"#, E::BadName),
            (r#"{"name":"s:t","args":"{}"}"#, E::BadArgs),
            (r#"{"name":"s:t","operation":"delete"}"#, E::BadOperation),
            (r#"{"name":"s:t","argz":{}}"#, E::Unknown("argz".into())),
        ] {
            assert_eq!(Asked::parse(arguments.as_bytes()).unwrap_err(), error, "{arguments}");
        }
        let asked = Asked::parse(br#"{"name":"s:t","args":{"a":1},"operation":"write"}"#).unwrap();
        let expected = Asked {
            name: "s:t".into(),
            args: Some(r#"{"a":1}"#),
            operation: Some(Operation::Write),
        };
        assert_eq!(asked, expected);
    }

    fn tool(schema: &str) -> Tool {
        let name = ToolName::parse("s:t").unwrap();
        let input_schema = RawValue::from_string(schema.to_owned()).unwrap();
        Tool { input_schema, ..Tool::named(name, Annotations::default(), &Rules::default()) }
    }

    #[test]
    fn the_example_is_a_call_as_it_would_be_sent() {
        let tool = tool(r#"{"properties":{"a":{"type":"integer"}},"required":["a"]}"#);
        let result: Value = serde_json::from_slice(&described(&tool, None)).unwrap();
        let example = &result["structuredContent"]["example"];
        let arguments =
            json!({"name": "s:t", "args": {"a": 1}, "intent": {"operation_type": "write"}});
        assert_eq!(*example, json!({"tool": "call_tool_write", "arguments": arguments}));
        let text = result["content"][0]["text"].as_str().unwrap();
        assert!(text.ends_with(&format!("Example: call_tool_write {arguments}")), "{text}");
        assert!(result["structuredContent"].get("preflight").is_none());
    }
}
