//! The intent as it was stated: an object, flat strings, or both if they agree.
//!
//! Owns the forms and the words (FR-006..014). What could not be read is kept as it came, because
//! an invalid intent is recorded too (ACT-1). Knows no tool and no annotation.

use std::borrow::Cow;

use serde::Serialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};

use super::operation::Operation;
use super::settings::{Requirement, Settings};
use crate::json::members::{members, string};
use crate::tool::Sensitivity;

/// Most characters (Unicode scalar values) of a reason (FR-010).
pub const MAX_REASON_CHARS: usize = 1000;

/// Most characters of the caller's own word that an error repeats.
const MAX_ECHO_CHARS: usize = 64;

/// An intent that agrees with its call tool. Only [`Stated::check`] makes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intent<'a> {
    operation: Operation,
    sensitivity: Option<Sensitivity>,
    reason: Option<&'a str>,
}

impl<'a> Intent<'a> {
    /// What the call may do: as stated, and as its call tool has it.
    #[must_use]
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// How sensitive the data is that it touches, if stated.
    #[must_use]
    pub fn sensitivity(&self) -> Option<Sensitivity> {
        self.sensitivity
    }

    /// Why, if stated: at most [`MAX_REASON_CHARS`] characters.
    #[must_use]
    pub fn reason(&self) -> Option<&'a str> {
        self.reason
    }

    /// The same intent for another operation, as the JSON object that states it.
    #[must_use]
    pub fn stating(&self, operation: Operation) -> String {
        spelled(operation, self.sensitivity, self.reason)
    }
}

/// An intent as the JSON object that states it.
fn spelled(operation: Operation, sensitivity: Option<Sensitivity>, reason: Option<&str>) -> String {
    let mut members = Map::new();
    members.insert("operation_type".into(), json!(operation.as_str()));
    members.extend(sensitivity.map(|stated| ("data_sensitivity".into(), json!(stated))));
    members.extend(reason.map(|stated| ("reason".into(), json!(stated))));
    Value::Object(members).to_string()
}

/// Why an intent is refused. The texts are a contract.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each case is its text")]
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
#[expect(missing_docs, reason = "each is its name")]
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

    /// From `operation_type` or `intent_operation_type`, and so on.
    fn parse(key: &str) -> Option<Self> {
        let key = key.strip_prefix(FLAT_PREFIX).unwrap_or(key);
        Self::ALL.into_iter().find(|field| field.name() == key)
    }
}

/// The parameter that holds the intent as an object.
const OBJECT: &str = "intent";
/// What is not stated.
const NULL: &str = "null";
/// What the names of the flat parameters begin with.
const FLAT_PREFIX: &str = "intent_";

/// A parameter of a call tool: its name, and its value as JSON text that is known to be valid.
pub type Parameter<'a> = (Cow<'a, str>, &'a str);

/// An intent in whichever form it came. Its words are not checked yet: that is
/// [`Stated::check`].
#[derive(Clone, Debug)]
pub struct Stated<'a> {
    words: Result<Words<'a>, IntentError>,
    record: Option<String>,
}

/// The fields, merged over the forms, each as the agent spelled it.
#[derive(Clone, Debug, Default, Serialize)]
struct Words<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    operation_type: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_sensitivity: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<Cow<'a, str>>,
    /// An intent was stated, be it an empty one.
    #[serde(skip)]
    given: bool,
}

impl<'a> Stated<'a> {
    /// True for the parameters of a call tool that belong to the intent.
    #[must_use]
    pub fn is_parameter(name: &str) -> bool {
        name == OBJECT || (name.starts_with(FLAT_PREFIX) && Field::parse(name).is_some())
    }

    /// Merges the parameters that belong to the intent, `intent` and `intent_*`, given by name.
    /// A `null` counts as not stated. Never fails: errors are reported by `check`.
    #[must_use]
    pub fn parse(parameters: &[Parameter<'a>]) -> Self {
        let words = Words::parse(parameters);
        let record = match &words {
            Ok(words) if !words.given => None,
            Ok(words) => serde_json::to_string(words).ok(),
            Err(_) => Some(as_given(parameters)),
        };
        Self { words, record }
    }

    /// What the agent stated, as JSON for the record: the three fields where they could be read,
    /// else the parameters as they came. `None` if nothing was stated.
    #[must_use]
    pub fn record(&self) -> Option<&str> {
        self.record.as_deref()
    }

    /// The stated operation type, if it is one. Right or wrong for the variant.
    #[must_use]
    pub fn operation(&self) -> Option<Operation> {
        self.words.as_ref().ok()?.operation_type.as_deref().and_then(Operation::from_word)
    }

    /// The intent as it would be right for `operation`, as the JSON object that states it: with what of the stated one
    /// can be kept.
    #[must_use]
    pub fn mended(&self, operation: Operation) -> String {
        let Ok(words) = &self.words else { return spelled(operation, None, None) };
        let sensitivity = words.data_sensitivity.as_deref().and_then(Sensitivity::from_word);
        let short = |reason: &&str| reason.chars().count() <= MAX_REASON_CHARS;
        spelled(operation, sensitivity, words.reason.as_deref().filter(short))
    }

    /// The first of the two keys: the intent is well-formed and agrees with the variant.
    ///
    /// # Errors
    /// The first thing that is wrong with it.
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
        // A string that holds the object: models do that. Its text was not parsed as JSON with the
        // request, so that it may still be malformed.
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

    /// Stores a field's `word`: the decoded `value`, if that is a string.
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

/// The parameters as they came: a lone `intent` as its value, otherwise by name.
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

/// `word`, cut so that an error repeats little of what it refuses.
pub(super) fn echo(word: &str) -> String {
    match word.char_indices().nth(MAX_ECHO_CHARS) {
        None => word.to_owned(),
        Some((cut, _)) => format!("{}…", word.get(..cut).unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUIRED: Settings =
        Settings { strict_server_validation: true, operation_type: Requirement::Required };
    const INFERRED: Settings =
        Settings { strict_server_validation: true, operation_type: Requirement::Inferred };

    /// The intent parameters of a call, given as one JSON object.
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
    fn a_mended_intent_is_right_and_keeps_what_it_can() {
        let long = format!(r#"{{"intent":{{"reason":"{}"}}}}"#, "x".repeat(MAX_REASON_CHARS + 1));
        for (json, mended) in [
            ("{}", r#"{"operation_type":"write"}"#),
            (
                r#"{"intent":{"operation_type":"raed","data_sensitivity":"private","reason":"\"r\""}}"#,
                r#"{"operation_type":"write","data_sensitivity":"private","reason":"\"r\""}"#,
            ),
            (r#"{"intent_data_sensitivity":"secret"}"#, r#"{"operation_type":"write"}"#),
            (r#"{"intent":7}"#, r#"{"operation_type":"write"}"#),
            (&long, r#"{"operation_type":"write"}"#),
        ] {
            let found = stated(json).mended(Operation::Write);
            let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
            assert_eq!(value(&found), value(mended), "{json}");
            let again = format!(r#"{{"intent":{found}}}"#);
            assert_eq!(text(&again, Operation::Write, &REQUIRED), "ok write");
        }
    }

    #[test]
    fn fr_006_every_form_states_the_same() {
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
    fn fr_013_a_missing_operation_type() {
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
    fn fr_007_to_010_bad_words_are_refused_in_both_settings() {
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
    fn forms_that_disagree_or_are_no_object_are_refused() {
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
    fn errors_repeat_little_of_what_they_refuse() {
        let long = format!(r#"{{"intent_operation_type":"{}"}}"#, "ü".repeat(5000));
        assert!(text(&long, Operation::Read, &REQUIRED).chars().count() < 150);
    }
}
