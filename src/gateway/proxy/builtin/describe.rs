//! `describe_tool`: one complete tool definition with an example call, and a preflight for given arguments.
//!
//! The preflight does not send anything, count under a limit or ask anyone: it uses [`policy::forecast`]. An
//! invisible tool is reported like an unknown one.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use mcpproxy_activity::record::Raw;
use mcpproxy_json::members::{members, string};
use mcpproxy_policy as policy;
use mcpproxy_policy::intent::{Operation, Stated};
use mcpproxy_policy::tool::example;
use mcpproxy_policy::tool::signature::on_one_line;
use mcpproxy_policy::tool::{Approval, Tool, ToolName, Trust};
use mcpproxy_policy::{Access, Denial, Forecast, ToolAccess};
use mcpproxy_schema::violation::Violation;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::retrieve::Shown;
use crate::proxy::client::Caller;
use crate::proxy::recorded::{OnRecord, RecordedRequest};
use crate::proxy::refusal::{FIND_TOOLS, Refusal, RefusalKind};
use crate::proxy::render::shown;
use crate::proxy::reply::Running;
use crate::proxy::worker::Worker;
use crate::proxy::{advice, argument_validation, call, render};

pub(crate) const DESCRIBE_TOOL: &str = "describe_tool";

/// Reason for refusing the arguments; a client error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DescribeError {
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

#[derive(Clone, Debug, PartialEq, Eq)]
struct DescribeArguments<'a> {
    name: Cow<'a, str>,
    /// Arguments to preflight.
    args: Option<&'a str>,
    operation: Option<Operation>,
}

impl<'a> DescribeArguments<'a> {
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

/// Serves `describe_tool` with its `raw` arguments and the request's `_meta`.
pub(crate) fn describe_tool(
    worker: &Rc<Worker>,
    caller: Caller,
    raw: Bytes,
    meta: Option<&[u8]>,
) -> Running {
    let work = async move |on: &mut OnRecord<'_>| {
        on.record.keep(Raw::Arguments, &raw);
        let asked = DescribeArguments::parse(&raw);
        let asked = asked.map_err(|error| Refusal::of_parameters(error.to_string()))?;
        let tool = find(on, &asked.name).await?;
        if tool.trust == Trust::Withheld {
            return Err(on.record.deny(&Denial::Quarantined(tool.name.clone())).into());
        }
        let preflight = match asked {
            DescribeArguments { args: None, operation: None, .. } => None,
            DescribeArguments { .. } => {
                let violation = match asked.args {
                    Some(args) => on.foresee_misfits(&tool, &raw.slice_ref(args.as_bytes())).await,
                    None => None,
                };
                Some(Preflight::of(on, &tool, &asked, violation.as_ref()))
            }
        };
        Ok(described(&tool, preflight))
    };
    RecordedRequest::own_tool(worker, caller, DESCRIBE_TOOL, meta, work)
}

/// Finds the named tool, if the principal may see it.
async fn find(on: &OnRecord<'_>, name: &str) -> Result<Arc<Tool>, Refusal> {
    let found = match ToolName::parse(name) {
        Some(name) => call::find(on, &name).await.map(Some),
        None => Ok(None),
    };
    let visible = policy::visible(&on.caller.principal, &on.settings.policy);
    match found {
        Ok(Some(tool)) if visible.tool(&tool) && !tool.is_app_only => return Ok(tool),
        Err(stop) if stop.kind != RefusalKind::Unknown => return Err(stop),
        // These cases share one text, since an invisible tool must look like an unknown one.
        Ok(_) | Err(_) => {}
    }
    let text = format!("Tool '{}' not found", on_one_line(&shown(name)));
    let unknown = Refusal::failed(RefusalKind::Unknown, text);
    Err(call::nearest(on, name, unknown.advising(FIND_TOOLS)))
}

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

/// Example call through one of the call tools.
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

/// Forecast of a call.
#[derive(Clone, Debug, Serialize)]
struct Preflight {
    call_with: &'static str,
    /// `allowed`, `approval` (required) or `refused`.
    verdict: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
    /// Violations of the input schema.
    argument_errors: Vec<String>,
}

impl Preflight {
    fn of(
        on: &OnRecord<'_>,
        tool: &Arc<Tool>,
        asked: &DescribeArguments<'_>,
        violation: Option<&Violation>,
    ) -> Self {
        let operation = asked.operation.unwrap_or(Operation::recommended(tool.capability));
        let arguments = asked.args.unwrap_or("{}");
        let word = Value::from(operation.as_str()).to_string();
        let stated = Stated::parse(&[("intent_operation_type".into(), &word)]);
        let forecast = match stated.check(operation, &on.settings.policy.intent) {
            Ok(intent) => {
                let access = Access::Tool(ToolAccess::declared(Arc::clone(tool), &intent));
                on.forecast(access, arguments.as_bytes(), Some(intent))
            }
            Err(error) => Forecast::Refused(error.into()),
        };
        let texts = |warnings: Vec<policy::Warning>| {
            warnings.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let misfits = violation.map(|violation| &violation.misfits);
        let places = misfits
            .map(|misfits| advice::places(tool, misfits, arguments.as_bytes()))
            .unwrap_or_default();
        let (verdict, reason, warnings) = match forecast {
            Forecast::Refused(denial) => ("refused", Some(denial.to_string()), Vec::new()),
            _ if let Some(violation) =
                violation.filter(|it| argument_validation::refuses(tool, it)) =>
            {
                let text = advice::misfits(tool, &violation.misfits, &places);
                ("refused", Some(text), Vec::new())
            }
            Forecast::Allowed { warnings } => ("allowed", None, texts(warnings)),
            Forecast::Asked { warnings } => ("approval", None, texts(warnings)),
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

    /// Writes the forecast as text.
    fn write_text(&self, text: &mut String) {
        let verdict = match (self.verdict, &self.reason) {
            (_, Some(reason)) => format!("would be refused: {}", on_one_line(reason)),
            ("approval", None) => "would wait for approval by a person".to_owned(),
            (_, None) => "would be sent".to_owned(),
        };
        // Infallible: writing to a String.
        let _ = writeln!(text, "Preflight: {} {verdict}", self.call_with);
        self.warnings.iter().for_each(|warning| render::indented(text, warning));
        for problem in &self.argument_errors {
            render::indented(text, &format!("arguments: {problem}"));
        }
    }
}

/// Tool result, structured and as text.
fn described(tool: &Tool, preflight: Option<Preflight>) -> Bytes {
    let operation = Operation::recommended(tool.capability);
    let example = ExampleCall::new(tool, operation, example(&tool.input_schema));
    let mut text = String::new();
    render::heading(&mut text, tool);
    render::indented(&mut text, &tool.description);
    render::json_line(&mut text, "inputSchema", &tool.input_schema);
    if let Some(output) = &tool.output_schema {
        render::json_line(&mut text, "outputSchema", output);
    }
    match tool.capability.approval {
        Approval::Auto => {}
        Approval::Suggest => render::indented(&mut text, "A person should approve a call."),
        Approval::Required => render::indented(&mut text, "A person has to approve each call."),
    }
    // Infallible: writing to a String.
    let _ =
        writeln!(text, "Example: {} {}", example.tool, on_one_line(&example.arguments.to_string()));
    if let Some(preflight) = &preflight {
        preflight.write_text(&mut text);
    }
    let content = Described {
        tool: Shown::of(tool, None),
        signature: tool.signature(),
        output_schema: tool.output_schema.as_deref(),
        example,
        preflight,
    };
    render::tool_result(&content, text.trim_end()).into()
}

#[cfg(test)]
mod tests {
    use mcpproxy_policy::tool::{Annotations, Rules};

    use super::*;

    #[test]
    fn invalid_arguments_are_refused() {
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
            assert_eq!(
                DescribeArguments::parse(arguments.as_bytes()).unwrap_err(),
                error,
                "{arguments}"
            );
        }
        let asked =
            DescribeArguments::parse(br#"{"name":"s:t","args":{"a":1},"operation":"write"}"#)
                .unwrap();
        let expected = DescribeArguments {
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
    fn example_is_a_valid_call() {
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
