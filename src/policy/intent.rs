//! Intent of a call: the operation, sensitivity and reason that the agent states, and the parameters of the call
//! tools.
//!
//! [`CallArguments::parse`] reads the parameters of a call tool, [`Stated`] holds the intent in any of its forms, and [`Stated::check`]
//! turns it into an [`Intent`] that agrees with the call tool, so that a bad intent is rejected before the tool is looked up. Whether the
//! call may be sent is decided by [`admit`](crate::admit). Pure.
//!
//! A stated intent is an object, flat strings, or both if they agree (FR-006..014). An unreadable intent is kept in its original form,
//! because invalid intents are recorded too (ACT-1).

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use mcpproxy_json::members::{members, string};
use mcpproxy_json::tape;
use mcpproxy_json::tape::{Scratch, TapeFault};
use mcpproxy_protocol::mcp::bounds;
use mcpproxy_protocol::mcp::bounds::{MAX_NAME_BYTES, OverLimit};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::tool::{Capability, SideEffect, ToolName};

pub use crate::tool::Sensitivity;

/// Response to `call_tool`, which does not exist (FR-004).
pub const NO_CALL_TOOL: &str = "Tool 'call_tool' not found. Use call_tool_read, call_tool_write, \
     or call_tool_destructive with matching intent.operation_type. See retrieve_tools for \
     annotations and recommendations.";

/// Parameter names, for the error that lists them.
const PARAMETERS: &str = "name, args_json, args, intent, and intent_operation_type, \
     intent_data_sensitivity, intent_reason";

/// Maximum number of intent parameters: the object next to the arguments, the object among them, and the flat ones.
const MAX_STATED: usize = 5;

/// Parameters of a call tool.
#[derive(Clone, Debug)]
pub struct CallArguments<'a> {
    /// The tool to call, as `server:tool`.
    pub name: Cow<'a, str>,
    /// Arguments for the tool: one JSON object, a slice of the request or the text of `args_json`, never
    /// re-serialized.
    pub arguments: Bytes,
    pub intent: Stated<'a>,
}

/// Reason why the parameters of a call tool are rejected. Reported as an error of the caller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
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
    #[error(transparent)]
    OverLimit(#[from] OverLimit),
    #[error("args and args_json cannot be combined: give one of them")]
    Both,
    #[error("args must be a JSON object")]
    ArgsNotAnObject,
    #[error("args_json must be a string that holds a JSON object")]
    ArgsJsonNotAnObject,
    #[error("args_json {0}")]
    ArgsJson(TapeFault),
}

impl ArgumentError {
    /// Whether the parameters are missing, or parsers may read them differently. In both cases no correction is
    /// suggested.
    pub fn is_malformed(&self) -> bool {
        matches!(self, Self::NotAnObject | Self::ArgsJson(TapeFault::DuplicateKey { .. }))
    }
}

impl<'a> CallArguments<'a> {
    /// Reads `raw`, one JSON object without duplicate keys. An `intent` next to it, as in the REST call, must agree with one inside.
    ///
    /// # Errors
    /// Any ambiguity, or an unknown parameter. A wrong *intent* is not an error here: see [`Stated::check`].
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
        bounds::within("name", &*name, MAX_NAME_BYTES)?;
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

    /// Best guess at parameters that [`parse`](Self::parse) rejects: the arguments may be under another key, or encoded as text. Used only
    /// for suggestions, never to call a tool. `None` if no tool is named.
    pub fn guess(raw: &'a Bytes) -> Option<Self> {
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

/// Returns `value` if it is an object, or the object that a string value encodes.
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
    pub fn tool(&self) -> ToolName {
        let (server, tool) = ToolName::split(&self.name).unwrap_or_default();
        ToolName { server: server.into(), tool: tool.into() }
    }
}

/// The object inside `args_json`. Duplicate keys are checked here, since the request's check does not reach into
/// strings.
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

/// Maximum length of a reason, in Unicode scalar values (FR-010).
pub const MAX_REASON_CHARS: usize = 1000;

/// Maximum length of a caller's value quoted in an error, in characters.
const MAX_ECHO_CHARS: usize = 64;

/// An intent that agrees with its call tool. Created only by [`Stated::check`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intent<'a> {
    operation: Operation,
    sensitivity: Option<Sensitivity>,
    reason: Option<&'a str>,
}

impl<'a> Intent<'a> {
    /// The stated operation, equal to that of the call tool.
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// Stated sensitivity of the data.
    pub fn sensitivity(&self) -> Option<Sensitivity> {
        self.sensitivity
    }

    /// Stated reason, at most [`MAX_REASON_CHARS`] characters.
    pub fn reason(&self) -> Option<&'a str> {
        self.reason
    }

    /// JSON object that states the same intent for another operation.
    pub fn stating(&self, operation: Operation) -> String {
        spelled(operation, self.sensitivity, self.reason)
    }
}

/// JSON object that states an intent.
fn spelled(operation: Operation, sensitivity: Option<Sensitivity>, reason: Option<&str>) -> String {
    let mut members = Map::new();
    members.insert("operation_type".into(), json!(operation.as_str()));
    members.extend(sensitivity.map(|stated| ("data_sensitivity".into(), json!(stated))));
    members.extend(reason.map(|stated| ("reason".into(), json!(stated))));
    Value::Object(members).to_string()
}

/// Reason why an intent is rejected. The texts are a contract.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IntentError {
    #[error("Intent mismatch: tool is {} but intent declares {}", variant.variant(), stated.as_str())]
    Mismatch { variant: Operation, stated: Operation },
    #[error("intent parameter is required for {}", .0.variant())]
    Missing(Operation),
    #[error("intent.operation_type is required")]
    MissingOperation,
    #[error("Invalid intent.operation_type '{0}': must be read, write, or destructive")]
    UnknownOperation(String),
    #[error("Invalid intent.data_sensitivity '{0}': must be public, internal, private, or unknown")]
    UnknownSensitivity(String),
    #[error("intent.reason exceeds maximum length of {MAX_REASON_CHARS} characters")]
    LongReason,
    #[error("intent must be an object with operation_type, data_sensitivity, and reason")]
    NotAnObject,
    #[error("intent.{} must be a string", .0.name())]
    NotAString(Field),
    #[error(
        "Unknown field '{0}' in intent: known are operation_type, data_sensitivity, and reason"
    )]
    UnknownField(String),
    #[error("intent.{} is stated twice, differently", .0.name())]
    Disagreement(Field),
}

/// The fields of an intent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    OperationType,
    DataSensitivity,
    Reason,
}

impl Field {
    const ALL: [Self; 3] = [Self::OperationType, Self::DataSensitivity, Self::Reason];

    fn name(self) -> &'static str {
        match self {
            Self::OperationType => "operation_type",
            Self::DataSensitivity => "data_sensitivity",
            Self::Reason => "reason",
        }
    }

    /// Parses `operation_type` or `intent_operation_type`, and so on.
    fn parse(key: &str) -> Option<Self> {
        let key = key.strip_prefix(FLAT_PREFIX).unwrap_or(key);
        Self::ALL.into_iter().find(|field| field.name() == key)
    }
}

/// Parameter that holds the intent as an object.
const OBJECT: &str = "intent";
/// JSON null, which counts as not stated.
const NULL: &str = "null";
const FLAT_PREFIX: &str = "intent_";

/// Name and valid JSON value of a call tool's parameter.
pub(crate) type Parameter<'a> = (Cow<'a, str>, &'a str);

/// An unchecked intent in any of its forms; see [`Stated::check`].
#[derive(Clone, Debug)]
pub struct Stated<'a> {
    words: Result<Words<'a>, IntentError>,
    record: Option<String>,
}

/// Fields merged from all forms, as the agent spelled them.
#[derive(Clone, Debug, Default, Serialize)]
struct Words<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    operation_type: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_sensitivity: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<Cow<'a, str>>,
    /// Whether an intent was stated, even an empty one.
    #[serde(skip)]
    given: bool,
}

impl<'a> Stated<'a> {
    /// Whether a parameter of a call tool belongs to the intent.
    pub(crate) fn is_parameter(name: &str) -> bool {
        name == OBJECT || (name.starts_with(FLAT_PREFIX) && Field::parse(name).is_some())
    }

    /// Merges `intent` and `intent_*` parameters. A `null` counts as not stated. Never fails: `check` reports the errors.
    pub fn parse(parameters: &[Parameter<'a>]) -> Self {
        let words = Words::parse(parameters);
        let record = match &words {
            Ok(words) if !words.given => None,
            Ok(words) => serde_json::to_string(words).ok(),
            Err(_) => Some(as_given(parameters)),
        };
        Self { words, record }
    }

    /// Stated intent as JSON for the record: the three fields if readable, otherwise the raw parameters. `None` if no intent was stated.
    pub fn record(&self) -> Option<&str> {
        self.record.as_deref()
    }

    /// The stated operation type if it is valid, even if it does not fit the variant.
    pub fn operation(&self) -> Option<Operation> {
        self.words.as_ref().ok()?.operation_type.as_deref().and_then(Operation::from_word)
    }

    /// JSON object of a valid intent for `operation` that keeps the usable parts of the stated one.
    pub fn corrected(&self, operation: Operation) -> String {
        let Ok(words) = &self.words else { return spelled(operation, None, None) };
        let sensitivity = words.data_sensitivity.as_deref().and_then(Sensitivity::from_word);
        let short = |reason: &&str| reason.chars().count() <= MAX_REASON_CHARS;
        spelled(operation, sensitivity, words.reason.as_deref().filter(short))
    }

    /// Checks that the intent is well-formed and agrees with the variant.
    ///
    /// # Errors
    /// The first violation.
    pub fn check(
        &self,
        variant: Operation,
        settings: &Settings,
    ) -> Result<Intent<'_>, IntentError> {
        let words = self.words.as_ref().map_err(Clone::clone)?;
        let stated = match (&words.operation_type, settings.operation_type) {
            (Some(word), Requirement::Required | Requirement::Inferred) => {
                Operation::from_word(word)
                    .ok_or_else(|| IntentError::UnknownOperation(echo(word)))?
            }
            (None, Requirement::Inferred) => variant,
            (None, Requirement::Required) if words.given => {
                return Err(IntentError::MissingOperation);
            }
            (None, Requirement::Required) => return Err(IntentError::Missing(variant)),
        };
        let sensitivity = match &words.data_sensitivity {
            None => None,
            Some(word) => Some(
                Sensitivity::from_word(word)
                    .ok_or_else(|| IntentError::UnknownSensitivity(echo(word)))?,
            ),
        };
        if words.reason.as_ref().is_some_and(|text| text.chars().count() > MAX_REASON_CHARS) {
            return Err(IntentError::LongReason);
        }
        if stated != variant {
            return Err(IntentError::Mismatch { variant, stated });
        }
        Ok(Intent { operation: stated, sensitivity, reason: words.reason.as_deref() })
    }
}

impl<'a> Words<'a> {
    fn parse(parameters: &[Parameter<'a>]) -> Result<Self, IntentError> {
        let mut words = Self::default();
        for (name, value) in parameters {
            if name == OBJECT {
                words.put_object(value)?;
            } else {
                words.put(name, string(value), value)?;
            }
        }
        Ok(words)
    }

    fn put_object(&mut self, value: &'a str) -> Result<(), IntentError> {
        if value == NULL {
            return Ok(());
        }
        // Models also send the object as a string. Its text may be malformed JSON.
        if let Some(text) = string(value) {
            serde_json::from_str::<IgnoredAny>(&text).map_err(|_| IntentError::NotAnObject)?;
            for member in members(&text).map_err(|_| IntentError::NotAnObject)? {
                let (key, value) = member.map_err(|_| IntentError::NotAnObject)?;
                let word = string(value).map(|word| word.into_owned().into());
                self.put(&key, word, value)?;
            }
        } else {
            for member in members(value).map_err(|_| IntentError::NotAnObject)? {
                let (key, value) = member.map_err(|_| IntentError::NotAnObject)?;
                self.put(&key, string(value), value)?;
            }
        }
        self.given = true;
        Ok(())
    }

    /// Stores a field: `word` is its decoded string, `value` its raw JSON.
    fn put(
        &mut self,
        key: &str,
        word: Option<Cow<'a, str>>,
        value: &str,
    ) -> Result<(), IntentError> {
        let field = Field::parse(key).ok_or_else(|| IntentError::UnknownField(echo(key)))?;
        if value == NULL {
            return Ok(());
        }
        let word = word.ok_or(IntentError::NotAString(field))?;
        let slot = match field {
            Field::OperationType => &mut self.operation_type,
            Field::DataSensitivity => &mut self.data_sensitivity,
            Field::Reason => &mut self.reason,
        };
        if slot.as_ref().is_some_and(|earlier| *earlier != word) {
            return Err(IntentError::Disagreement(field));
        }
        *slot = Some(word);
        self.given = true;
        Ok(())
    }
}

/// The raw parameters: the value of `intent` if there is no other parameter, otherwise an object keyed by parameter
/// name.
fn as_given(parameters: &[Parameter<'_>]) -> String {
    if let [(name, value)] = parameters
        && name == OBJECT
    {
        return (*value).to_owned();
    }
    let members: Vec<String> =
        parameters.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
    format!("{{{}}}", members.join(","))
}

/// `word`, truncated for an error message.
fn echo(word: &str) -> String {
    match word.char_indices().nth(MAX_ECHO_CHARS) {
        None => word.to_owned(),
        Some((cut, _)) => format!("{}…", word.get(..cut).unwrap_or_default()),
    }
}

/// Operation of a call: `intent.operation_type` (FR-007) and the variant of the call tool (FR-001..003), ordered from
/// least to most severe.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize, ToSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// Operation of `call_tool_read`.
    Read,
    /// Operation of `call_tool_write`.
    Write,
    /// Operation of `call_tool_destructive`.
    Destructive,
}

impl Operation {
    /// All operations, from least to most severe.
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Destructive];

    /// Spelling in `intent.operation_type`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Destructive => "destructive",
        }
    }

    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|operation| operation.as_str() == word)
    }

    /// Code in stored records.
    pub const fn code(self) -> u8 {
        match self {
            Self::Read => 1,
            Self::Write => 2,
            Self::Destructive => 3,
        }
    }

    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|operation| operation.code() == code)
    }

    /// Name of the call tool.
    pub const fn variant(self) -> &'static str {
        match self {
            Self::Read => "call_tool_read",
            Self::Write => "call_tool_write",
            Self::Destructive => "call_tool_destructive",
        }
    }

    /// Operation of the call tool with this name.
    pub fn of_tool(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|operation| operation.variant() == name)
    }

    /// Recommended variant for a tool: `call_with` in search results (FR-023, CAP-5).
    pub const fn recommended(capability: Capability) -> Self {
        match capability.side_effect {
            SideEffect::None | SideEffect::Read => Self::Read,
            SideEffect::Write => Self::Write,
            SideEffect::Destructive => Self::Destructive,
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The config section `intent_declaration`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Settings {
    /// If false, calls that a server's annotations forbid are sent with a warning (FR-042). Operator overrides in
    /// `capabilities` are enforced in any case.
    pub strict_server_validation: bool,
    /// Whether the operation type must be stated.
    pub operation_type: Requirement,
    /// Treatment of reads of tools that are not marked read-only.
    pub unannotated: Unannotated,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            strict_server_validation: true,
            operation_type: Requirement::Required,
            unannotated: Unannotated::Warn,
        }
    }
}

/// Treatment of a read of a tool that neither its server's annotations nor the operator's capabilities mark read-only
/// or destructive. `call_with` recommends the write variant for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Unannotated {
    /// The read is sent (FR-020).
    Allow,
    /// The read is sent, and a warning is logged and recorded.
    #[default]
    Warn,
    /// The tool counts as a write: the read is refused.
    Write,
}

/// Whether an intent must state its operation type. A stated type must match the variant in either case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Requirement {
    /// The operation type is required and must match the variant.
    #[default]
    Required,
    /// If absent, the type is taken from the variant.
    Inferred,
}

#[cfg(test)]
mod operation_tests {
    use crate::intent::*;
    use crate::tool::{Annotations, CapabilityOverride, Rules};

    #[test]
    fn fr_023_call_with_follows_the_effective_capability() {
        for (annotations, rules, variant) in [
            (r#"{"readOnlyHint":true}"#, "{}", "call_tool_read"),
            (r#"{"destructiveHint":true}"#, "{}", "call_tool_destructive"),
            (r#"{"readOnlyHint":true,"destructiveHint":true}"#, "{}", "call_tool_destructive"),
            (r#"{"readOnlyHint":false,"destructiveHint":false}"#, "{}", "call_tool_write"),
            ("{}", "{}", "call_tool_write"),
            (r#"{"destructiveHint":true}"#, r#"{"*":{"side_effect":"none"}}"#, "call_tool_read"),
            ("{}", r#"{"*":{"side_effect":"destructive"}}"#, "call_tool_destructive"),
        ] {
            let stated: Annotations = serde_json::from_str(annotations).unwrap();
            let overrides: Rules<CapabilityOverride> = serde_json::from_str(rules).unwrap();
            let (capability, _) = Capability::effective(stated, &overrides, "delete_repo");
            let operation = Operation::recommended(capability);
            assert_eq!(operation.variant(), variant, "{annotations} {rules}");
            assert_eq!(Operation::of_tool(variant), Some(operation));
        }
        assert_eq!(Operation::of_tool("call_tool"), None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<CallArguments<'static>, ArgumentError> {
        // The parsed values borrow the request, so the test leaks it.
        let raw = Box::leak(Box::new(Bytes::copy_from_slice(json.as_bytes())));
        CallArguments::parse(raw, None, &mut Scratch::new())
    }

    fn arguments(json: &str) -> String {
        String::from_utf8(parse(json).unwrap().arguments.to_vec()).unwrap()
    }

    #[test]
    fn fr_005_args_are_a_slice_of_the_request() {
        let raw = Bytes::from_static(br#"{"args": {"b" : 1.0, "a":[1e2]} ,"name":"s:t"}"#);
        let call = CallArguments::parse(&raw, None, &mut Scratch::new()).unwrap();
        assert_eq!(&call.arguments[..], br#"{"b" : 1.0, "a":[1e2]}"#);
        assert!(raw.as_ptr_range().contains(&call.arguments.as_ptr()), "copied");
        assert_eq!(call.tool().to_string(), "s:t");
    }

    #[test]
    fn fr_005_args_json_is_unquoted() {
        let given = r#"{"name":"s:t","args_json":" {\"b\":\"\\u00e9\", \"a\":1.0}\n"}"#;
        assert_eq!(arguments(given), " {\"b\":\"\\u00e9\", \"a\":1.0}\n");
        assert_eq!(arguments(r#"{"name":"s:t"}"#), "{}");
        assert_eq!(arguments(r#"{"name":"s:t","args":null,"args_json":null}"#), "{}");
        assert_eq!(arguments(r#"{"n\u0061me":"s:t","args":{}}"#), "{}");
    }

    #[test]
    fn fr_005_unreadable_parameters_are_rejected() {
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
    fn rejected_parameters_yield_a_guess() {
        for (json, name, arguments) in [
            (r#"{"name":"s:t","arguments":{"a":1}}"#, "s:t", r#"{"a":1}"#),
            (r#"{"tool":"s:t","args":"{\"a\":1}"}"#, "s:t", r#"{"a":1}"#),
            (r#"{"name":"t","args":{},"args_json":"{\"a\":1}"}"#, "t", "{}"),
            (r#"{"name":"s:t","args":[1],"input":"{a}"}"#, "s:t", "{}"),
        ] {
            let raw = Bytes::from(json);
            let meant = CallArguments::guess(&raw).unwrap();
            assert_eq!((&*meant.name, &*meant.arguments), (name, arguments.as_bytes()), "{json}");
        }
        for none in ["{}", r#"{"name":7}"#, "[]", "{"] {
            assert!(CallArguments::guess(&Bytes::from(none)).is_none(), "{none}");
        }
    }

    #[test]
    fn intent_beside_the_arguments_must_agree_with_one_inside() {
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

    const REQUIRED: Settings = Settings {
        strict_server_validation: true,
        operation_type: Requirement::Required,
        unannotated: Unannotated::Warn,
    };
    const INFERRED: Settings = Settings {
        strict_server_validation: true,
        operation_type: Requirement::Inferred,
        unannotated: Unannotated::Warn,
    };

    /// Parses the intent parameters of a call from one JSON object.
    fn stated(json: &str) -> Stated<'_> {
        let members: Result<Vec<_>, _> = members(json).unwrap().collect();
        Stated::parse(&members.unwrap())
    }

    fn text(json: &str, variant: Operation, settings: &Settings) -> String {
        match stated(json).check(variant, settings) {
            Ok(intent) => format!("ok {}", intent.operation.as_str()),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn corrected_intent_is_valid_and_keeps_usable_parts() {
        let long = format!(r#"{{"intent":{{"reason":"{}"}}}}"#, "x".repeat(MAX_REASON_CHARS + 1));
        for (json, corrected) in [
            ("{}", r#"{"operation_type":"write"}"#),
            (
                r#"{"intent":{"operation_type":"raed","data_sensitivity":"private","reason":"\"r\""}}"#,
                r#"{"operation_type":"write","data_sensitivity":"private","reason":"\"r\""}"#,
            ),
            (r#"{"intent_data_sensitivity":"secret"}"#, r#"{"operation_type":"write"}"#),
            (r#"{"intent":7}"#, r#"{"operation_type":"write"}"#),
            (&long, r#"{"operation_type":"write"}"#),
        ] {
            let found = stated(json).corrected(Operation::Write);
            let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
            assert_eq!(value(&found), value(corrected), "{json}");
            let again = format!(r#"{{"intent":{found}}}"#);
            assert_eq!(text(&again, Operation::Write, &REQUIRED), "ok write");
        }
    }

    #[test]
    fn fr_006_all_forms_are_equivalent() {
        for json in [
            r#"{"intent":{"operation_type":"read","data_sensitivity":"private","reason":"r"}}"#,
            r#"{"intent_operation_type":"read","intent_data_sensitivity":"private","intent_reason":"r"}"#,
            r#"{"intent":"{\"operation_type\":\"read\",\"data_sensitivity\":\"private\",\"reason\":\"r\"}"}"#,
            r#"{"intent":{"intent_operation_type":"read","intent_data_sensitivity":"private","intent_reason":"r"}}"#,
            r#"{"intent":{"operation_type":"read","reason":"r"},"intent_data_sensitivity":"private"}"#,
            r#"{"intent_reason":"r","intent":{"operation_type":"read","data_sensitivity":"private","reason":"\u0072"}}"#,
            r#"{"intent":{"operation_typ\u0065":"read","data_sensitivity":"private","reason":"r"},"intent_reason":null}"#,
        ] {
            let stated = stated(json);
            let expected = Intent {
                operation: Operation::Read,
                sensitivity: Some(Sensitivity::Private),
                reason: Some("r"),
            };
            assert_eq!(stated.check(Operation::Read, &REQUIRED), Ok(expected), "{json}");
            assert_eq!(stated.operation(), Some(Operation::Read));
            assert_eq!(
                stated.record(),
                Some(r#"{"operation_type":"read","data_sensitivity":"private","reason":"r"}"#),
                "{json}"
            );
        }
    }

    #[test]
    fn fr_013_missing_operation_type_is_refused_or_inferred() {
        for json in [r#"{}"#, r#"{"intent":null}"#, r#"{"intent_reason":null}"#] {
            let required = text(json, Operation::Read, &REQUIRED);
            assert_eq!(required, "intent parameter is required for call_tool_read", "{json}");
            assert_eq!(text(json, Operation::Read, &INFERRED), "ok read");
            assert!(stated(json).record().is_none());
        }
        for json in [
            r#"{"intent":{}}"#,
            r#"{"intent":"{}"}"#,
            r#"{"intent":{"reason":"r"}}"#,
            r#"{"intent":{"operation_type":null}}"#,
            r#"{"intent_reason":"r"}"#,
        ] {
            let required = text(json, Operation::Write, &REQUIRED);
            assert_eq!(required, "intent.operation_type is required", "{json}");
            assert_eq!(text(json, Operation::Write, &INFERRED), "ok write");
        }
    }

    #[test]
    fn fr_007_to_010_invalid_values_are_rejected_in_both_settings() {
        let long = "é".repeat(1001);
        for (object, expected) in [
            (
                r#""operation_type":"unknown""#,
                "Invalid intent.operation_type 'unknown': must be read, write, or destructive",
            ),
            (
                r#""operation_type":"""#,
                "Invalid intent.operation_type '': must be read, write, or destructive",
            ),
            (
                r#""operation_type":"Read""#,
                "Invalid intent.operation_type 'Read': must be read, write, or destructive",
            ),
            (
                r#""operation_type":"read","data_sensitivity":"secret""#,
                "Invalid intent.data_sensitivity 'secret': must be public, internal, private, or unknown",
            ),
            (
                r#""operation_type":"write""#,
                "Intent mismatch: tool is call_tool_read but intent declares write",
            ),
            (
                r#""operation_type":"destructive""#,
                "Intent mismatch: tool is call_tool_read but intent declares destructive",
            ),
            (r#""operation_type":true"#, "intent.operation_type must be a string"),
            (
                r#""operation_type":"read","reasn":"r""#,
                "Unknown field 'reasn' in intent: known are operation_type, data_sensitivity, and reason",
            ),
            (
                r#""operation_type":"read","operation_type":"write""#,
                "intent.operation_type is stated twice, differently",
            ),
            (
                r#""operation_type":"read","intent_operation_type":"write""#,
                "intent.operation_type is stated twice, differently",
            ),
            (
                &format!(r#""operation_type":"read","reason":"{long}""#),
                "intent.reason exceeds maximum length of 1000 characters",
            ),
        ] {
            let as_object = format!(r#"{{"intent":{{{object}}}}}"#);
            let as_string = format!(r#"{{"intent":{:?}}}"#, format!("{{{object}}}"));
            for settings in [&REQUIRED, &INFERRED] {
                assert_eq!(text(&as_object, Operation::Read, settings), expected);
                assert_eq!(text(&as_string, Operation::Read, settings), expected);
            }
        }
        let fits =
            format!(r#"{{"intent_operation_type":"read","intent_reason":"{}"}}"#, "é".repeat(1000));
        assert_eq!(text(&fits, Operation::Read, &REQUIRED), "ok read");
    }

    #[test]
    fn contradicting_or_non_object_intents_are_rejected() {
        let both = r#"{"intent":{"operation_type":"read"},"intent_operation_type":"write"}"#;
        assert_eq!(
            text(both, Operation::Read, &INFERRED),
            "intent.operation_type is stated twice, differently"
        );
        for json in [
            r#"{"intent":"read"}"#,
            r#"{"intent":7}"#,
            r#"{"intent":[]}"#,
            r#"{"intent":"\"{}\""}"#,
        ] {
            assert_eq!(
                text(json, Operation::Read, &INFERRED),
                "intent must be an object with operation_type, data_sensitivity, and reason"
            );
        }
    }

    #[test]
    fn act_1_an_invalid_intent_is_recorded_as_stated() {
        for (json, record) in [
            (r#"{"intent":{"operation_type":"wirte"}}"#, r#"{"operation_type":"wirte"}"#),
            (r#"{"intent_operation_type":"wirte"}"#, r#"{"operation_type":"wirte"}"#),
            (r#"{"intent":{"reasn": 1.0}}"#, r#"{"reasn": 1.0}"#),
            (r#"{"intent":"read"}"#, r#""read""#),
            (
                r#"{"intent":{"reason":"a"},"intent_reason":"b"}"#,
                r#"{"intent":{"reason":"a"},"intent_reason":"b"}"#,
            ),
        ] {
            assert_eq!(stated(json).record(), Some(record), "{json}");
        }
    }

    #[test]
    fn errors_truncate_the_rejected_value() {
        let long = format!(r#"{{"intent_operation_type":"{}"}}"#, "ü".repeat(5000));
        assert!(text(&long, Operation::Read, &REQUIRED).chars().count() < 150);
    }
}
