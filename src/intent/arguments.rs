//! The arguments of a call tool: which upstream tool, what to hand it, and the intent (FR-005).
//!
//! What goes to the upstream tool is a slice of the request or the text of `args_json`, never
//! written anew. Reads one object deep; the arguments themselves are not looked into beyond what
//! makes them one JSON object that no two parsers read differently.

use std::borrow::Cow;

use bytes::Bytes;

use super::stated::{Stated, echo};
use crate::json::members::{members, string};
use crate::json::tape::{self, Scratch, TapeFault};
use crate::tool::ToolName;

/// The names of the parameters, for the error that lists them.
const PARAMETERS: &str = "name, args_json, args, intent, and intent_operation_type, \
     intent_data_sensitivity, intent_reason";

/// Parameters of the intent: as an object, beside the arguments and among them, and flat.
const MAX_STATED: usize = 5;

/// What a call tool was given.
#[derive(Clone, Debug)]
pub struct CallArguments<'a> {
    /// The tool to call, as `server:tool`.
    pub name: Cow<'a, str>,
    /// One JSON object: what to hand it.
    pub arguments: Bytes,
    /// The intent, as stated.
    pub intent: Stated<'a>,
}

/// Why the parameters of a call tool cannot be read. The caller's blame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each case is its text")]
pub enum ArgumentError {
    #[error("arguments must be a JSON object")]
    NotAnObject,
    #[error("Unknown parameter '{0}': known are {PARAMETERS}")]
    Unknown(String),
    #[error("name is required: the tool to call, as server:tool")]
    NoName,
    #[error("name must be a string")]
    NameNotAString,
    #[error("Invalid name '{0}': must be server:tool, as retrieve_tools gives it")]
    BadName(String),
    #[error("args and args_json exclude each other: give one")]
    Both,
    #[error("args must be a JSON object")]
    ArgsNotAnObject,
    #[error("args_json must be a string that holds a JSON object")]
    ArgsJsonNotAnObject,
    #[error("args_json {0}")]
    ArgsJson(TapeFault),
}

impl ArgumentError {
    /// Whether there are no parameters, or two parsers would read others: no request that anybody could mend.
    #[must_use]
    pub fn is_malformed(&self) -> bool {
        matches!(self, Self::NotAnObject | Self::ArgsJson(TapeFault::DuplicateKey { .. }))
    }
}

impl<'a> CallArguments<'a> {
    /// Reads `raw`, one JSON object in which the caller has found no duplicate key. An `intent` that
    /// stands beside it, as in the REST call, must agree with one inside.
    ///
    /// # Errors
    /// Whatever cannot be understood without a doubt, an unknown parameter included. A wrong
    /// *intent* is no error here: see [`Stated::check`].
    pub fn parse(
        raw: &'a Bytes,
        intent: Option<&'a str>,
        scratch: &mut Scratch,
    ) -> Result<Self, ArgumentError> {
        let text = std::str::from_utf8(raw).map_err(|_| ArgumentError::NotAnObject)?;
        let (mut name, mut args, mut args_json) = (None, None, None);
        let mut stated = Vec::with_capacity(MAX_STATED);
        stated.extend(intent.map(|value| (Cow::Borrowed("intent"), value)));
        for member in members(text).map_err(|_| ArgumentError::NotAnObject)? {
            let (key, value) = member.map_err(|_| ArgumentError::NotAnObject)?;
            let given = (value != "null").then_some(value);
            match &*key {
                "name" => name = given,
                "args" => args = given,
                "args_json" => args_json = given,
                _ if Stated::is_parameter(&key) => stated.push((key, value)),
                _ => return Err(ArgumentError::Unknown(echo(&key))),
            }
        }
        let name =
            string(name.ok_or(ArgumentError::NoName)?).ok_or(ArgumentError::NameNotAString)?;
        let arguments = match (args, args_json) {
            (Some(_), Some(_)) => return Err(ArgumentError::Both),
            (None, None) => Bytes::from_static(b"{}"),
            (Some(value), None) if is_object(value) => raw.slice_ref(value.as_bytes()),
            (Some(_), None) => return Err(ArgumentError::ArgsNotAnObject),
            (None, Some(value)) => unquote(value, scratch)?,
        };
        if ToolName::split(&name).is_none() {
            return Err(ArgumentError::BadName(echo(&name)));
        }
        Ok(Self { name, arguments, intent: Stated::parse(&stated) })
    }

    /// What was probably meant by parameters that [`parse`](Self::parse) refuses: the arguments may stand under another
    /// key, or as text. To be shown to who wrote them, never to be called. `None` where no tool is named.
    #[must_use]
    pub fn guessed(raw: &'a Bytes) -> Option<Self> {
        let text = std::str::from_utf8(raw).ok()?;
        let (mut name, mut arguments) = (None, None);
        let mut stated = Vec::with_capacity(MAX_STATED);
        for member in members(text).ok()? {
            let (key, value) = member.ok()?;
            match &*key {
                "name" | "tool" | "tool_name" => name = name.or_else(|| string(value)),
                "args" | "args_json" | "arguments" | "input" | "parameters" | "params" => {
                    arguments = arguments.or_else(|| object(raw, value));
                }
                _ if Stated::is_parameter(&key) => stated.push((key, value)),
                _ => {}
            }
        }
        let arguments = arguments.unwrap_or_else(|| Bytes::from_static(b"{}"));
        Some(Self { name: name?, arguments, intent: Stated::parse(&stated) })
    }
}

/// The object that this is, or that its text holds.
fn object(raw: &Bytes, value: &str) -> Option<Bytes> {
    if is_object(value) {
        return Some(raw.slice_ref(value.as_bytes()));
    }
    let text = string(value).filter(|text| is_object(text.trim_start()))?;
    serde_json::from_str::<serde::de::IgnoredAny>(&text).ok()?;
    Some(Bytes::from(text.into_owned()))
}

impl CallArguments<'_> {
    /// The tool to call.
    #[must_use]
    pub fn tool(&self) -> ToolName {
        let (server, tool) = ToolName::split(&self.name).unwrap_or_default();
        ToolName { server: server.into(), tool: tool.into() }
    }
}

/// The object inside `args_json`. The request's own strictness does not reach into a string, so it
/// is applied here.
fn unquote(value: &str, scratch: &mut Scratch) -> Result<Bytes, ArgumentError> {
    let text = string(value).ok_or(ArgumentError::ArgsJsonNotAnObject)?;
    if !is_object(text.trim_start()) {
        return Err(ArgumentError::ArgsJsonNotAnObject);
    }
    tape::check_unique(text.as_bytes(), tape::MAX_DEPTH, scratch)
        .map_err(ArgumentError::ArgsJson)?;
    Ok(Bytes::from(text.into_owned()))
}

fn is_object(value: &str) -> bool {
    value.starts_with('{')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<CallArguments<'static>, ArgumentError> {
        // What is read borrows the request; a test need not give it back.
        let raw = Box::leak(Box::new(Bytes::copy_from_slice(json.as_bytes())));
        CallArguments::parse(raw, None, &mut Scratch::new())
    }

    fn arguments(json: &str) -> String {
        String::from_utf8(parse(json).unwrap().arguments.to_vec()).unwrap()
    }

    #[test]
    fn fr_005_args_are_the_requests_own_bytes() {
        let raw = Bytes::from_static(br#"{"args": {"b" : 1.0, "a":[1e2]} ,"name":"s:t"}"#);
        let call = CallArguments::parse(&raw, None, &mut Scratch::new()).unwrap();
        assert_eq!(&call.arguments[..], br#"{"b" : 1.0, "a":[1e2]}"#);
        assert!(raw.as_ptr_range().contains(&call.arguments.as_ptr()), "copied");
        assert_eq!(call.tool().to_string(), "s:t");
    }

    #[test]
    fn fr_005_args_json_is_the_text_it_holds() {
        let given = r#"{"name":"s:t","args_json":" {\"b\":\"\\u00e9\", \"a\":1.0}\n"}"#;
        assert_eq!(arguments(given), " {\"b\":\"\\u00e9\", \"a\":1.0}\n");
        assert_eq!(arguments(r#"{"name":"s:t"}"#), "{}");
        assert_eq!(arguments(r#"{"name":"s:t","args":null,"args_json":null}"#), "{}");
        assert_eq!(arguments(r#"{"n\u0061me":"s:t","args":{}}"#), "{}");
    }

    #[test]
    fn fr_005_what_cannot_be_read_is_refused() {
        use ArgumentError as E;
        let duplicate = |object: &str| {
            E::ArgsJson(TapeFault::DuplicateKey { object: object.into(), name: "a".into() })
        };
        for (json, error) in [
            ("[]", E::NotAnObject),
            ("null", E::NotAnObject),
            ("{", E::NotAnObject),
            ("{}", E::NoName),
            (r#"{"name":7}"#, E::NameNotAString),
            (r#"{"name":"delete_repo"}"#, E::BadName("delete_repo".into())),
            (r#"{"name":"s:t","arguments":{}}"#, E::Unknown("arguments".into())),
            (r#"{"name":"s:t","intent_reasons":""}"#, E::Unknown("intent_reasons".into())),
            (r#"{"name":"s:t","args":{},"args_json":"{}"}"#, E::Both),
            (r#"{"name":"s:t","args":"{}"}"#, E::ArgsNotAnObject),
            (r#"{"name":"s:t","args":[]}"#, E::ArgsNotAnObject),
            (r#"{"name":"s:t","args_json":{}}"#, E::ArgsJsonNotAnObject),
            (r#"{"name":"s:t","args_json":""}"#, E::ArgsJsonNotAnObject),
            (r#"{"name":"s:t","args_json":"[]"}"#, E::ArgsJsonNotAnObject),
            (r#"{"name":"s:t","args_json":"{} {}"}"#, E::ArgsJson(TapeFault::Trailing)),
            (r#"{"name":"s:t","args_json":"{\"a\":\ud800}"}"#, E::ArgsJsonNotAnObject),
            (r#"{"name":"s:t","args_json":"{\"a\":1,\"\\u0061\":1}"}"#, duplicate("")),
            (r#"{"name":"s:t","args_json":"{\"x\":[{\"a\":1,\"a\":1}]}"}"#, duplicate("/x/0")),
        ] {
            assert_eq!(parse(json).unwrap_err(), error, "{json}");
        }
    }

    #[test]
    fn what_was_probably_meant_is_told_of_what_is_refused() {
        for (json, name, arguments) in [
            (r#"{"name":"s:t","arguments":{"a":1}}"#, "s:t", r#"{"a":1}"#),
            (r#"{"tool":"s:t","args":"{\"a\":1}"}"#, "s:t", r#"{"a":1}"#),
            (r#"{"name":"t","args":{},"args_json":"{\"a\":1}"}"#, "t", "{}"),
            (r#"{"name":"s:t","args":[1],"input":"{a}"}"#, "s:t", "{}"),
        ] {
            let raw = Bytes::from(json);
            let meant = CallArguments::guessed(&raw).unwrap();
            assert_eq!((&*meant.name, &*meant.arguments), (name, arguments.as_bytes()), "{json}");
        }
        for none in ["{}", r#"{"name":7}"#, "[]", "{"] {
            assert!(CallArguments::guessed(&Bytes::from(none)).is_none(), "{none}");
        }
    }

    #[test]
    fn an_intent_beside_the_arguments_must_agree_with_one_inside() {
        let outer = r#"{"operation_type":"read"}"#;
        let record = |inner: &str| {
            let raw = Bytes::copy_from_slice(inner.as_bytes());
            let call = CallArguments::parse(&raw, Some(outer), &mut Scratch::new()).unwrap();
            call.intent.operation().map(|operation| operation.as_str())
        };
        assert_eq!(record(r#"{"name":"s:t"}"#), Some("read"));
        assert_eq!(record(r#"{"name":"s:t","intent":{"operation_type":"read"}}"#), Some("read"));
        assert_eq!(record(r#"{"name":"s:t","intent":{"operation_type":"write"}}"#), None);
    }
}
