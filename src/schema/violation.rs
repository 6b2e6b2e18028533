//! Descriptions of a violation: detailed for the record, restricted for the agent.
//!
//! The agent receives (`requirements.md`, *verdicts*) the keyword, its place in the schema, types and limits, but
//! nothing from the document. The content of the document may be an attack and must not reach the agent through the
//! error.

use std::fmt::{self, Display, Write};

use boon::{ErrorKind, ValidationError};
use jsonschema::error::{TypeKind, ValidationErrorKind};

use super::declared::{CaseVariant, KeyConflict};
use super::misfit::Misfits;
use super::required::RequiredMembers;
use super::unusable::cut;
use mcpproxy_json::tape::TapeFault;

/// Maximum length of the agent's description, in bytes (`contracts.md`, *errors*).
pub(crate) const AGENT_MAX: usize = 500;

/// Maximum length of the description in the record, in bytes.
pub(crate) const RECORD_MAX: usize = 4096;

/// Maximum number of violations described in the record; further ones are only counted.
const SPELLED_OUT: usize = 8;

/// Maximum length of one path in the record, in bytes.
const PATH_MAX: usize = 1024;

/// Kind of a violation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ViolationReason {
    /// The document does not conform to the schema.
    Schema,
    /// The document is ambiguous to parsers.
    Document(TapeFault),
    /// The evaluation exceeded its steps: guard `time`.
    Steps,
    /// Schema and document nest deeper than the stack allows: also guard `time`, since no engine would finish.
    Nesting,
}

impl ViolationReason {
    /// Name in records and counters.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Schema => "schema",
            Self::Document(TapeFault::Empty) => "empty",
            Self::Document(TapeFault::ByteOrderMark) => "byte_order_mark",
            Self::Document(TapeFault::Utf8) => "invalid_utf8",
            Self::Document(TapeFault::ControlCharacter) => "control_character",
            Self::Document(TapeFault::LoneSurrogate) => "lone_surrogate",
            Self::Document(TapeFault::NumberOverflow) => "number_overflow",
            Self::Document(TapeFault::Trailing) => "trailing_bytes",
            Self::Document(TapeFault::Syntax) => "syntax",
            Self::Document(TapeFault::TooDeep) => "too_deep",
            Self::Document(TapeFault::DuplicateKey { .. }) => "duplicate_key",
            Self::Steps => "steps",
            Self::Nesting => "nesting",
        }
    }

    /// Exceeded guard, if any.
    pub fn guard(&self) -> Option<&'static str> {
        match self {
            Self::Schema => None,
            Self::Document(TapeFault::TooDeep) => Some("max_depth"),
            Self::Document(_) => None,
            Self::Steps | Self::Nesting => Some("time"),
        }
    }
}

/// Reason why a document was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Kind of the violation.
    pub reason: ViolationReason,
    /// JSON pointer into the document. Only for the record, because it contains names from the document.
    pub instance_path: String,
    /// JSON pointer into the schema, from its root or a URI.
    pub schema_path: String,
    /// Violated keyword; empty if there is none.
    pub keyword: String,
    /// Misfits; empty if none could be determined.
    pub misfits: Misfits,
    record: String,
    agent: String,
}

impl Violation {
    /// Description for the record, with values of the document. At most [`RECORD_MAX`] bytes.
    pub fn describe(&self) -> &str {
        &self.record
    }

    /// Description for the agent, without values and without names that are not in the schema. At most [`AGENT_MAX`] bytes, truncated at a
    /// character boundary.
    pub fn for_agent(&self) -> &str {
        &self.agent
    }

    pub(super) fn of_document(fault: TapeFault) -> Self {
        let mut record = Bounded::new(RECORD_MAX);
        let mut instance_path = String::new();
        let _ = write!(record, "the document {fault}");
        if let TapeFault::DuplicateKey { object, name } = &fault {
            let _ = write!(record, ": {name:?} in the object at {}", ShownPlace(object));
            instance_path = cut(object, PATH_MAX).to_owned();
        }
        Self {
            agent: format!("the document {fault}"),
            reason: ViolationReason::Document(fault),
            instance_path,
            schema_path: String::new(),
            keyword: String::new(),
            misfits: Misfits::default(),
            record: record.text,
        }
    }

    pub(super) fn of_steps() -> Self {
        Self::of_guard(
            ViolationReason::Steps,
            "validating the document takes more steps than allowed",
        )
    }

    pub(super) fn of_nesting() -> Self {
        let text = "schema and document together nest deeper than is allowed";
        Self::of_guard(ViolationReason::Nesting, text)
    }

    fn of_guard(reason: ViolationReason, text: &str) -> Self {
        Self {
            reason,
            instance_path: String::new(),
            schema_path: String::new(),
            keyword: String::new(),
            misfits: Misfits::default(),
            record: text.to_owned(),
            agent: text.to_owned(),
        }
    }

    /// Violation of a key that is, or may be, a case variant of a declared property.
    pub fn of_key_conflict(conflict: KeyConflict) -> Self {
        let (place, text) = match &conflict {
            KeyConflict::Variant(CaseVariant { place, declared }) => {
                let text = format!("a key differs only by case from the property '{declared}'");
                (place.clone(), text)
            }
            KeyConflict::Uncompared(why) => {
                let text = "a key may differ only by case from a property, and cannot be compared";
                (String::new(), format!("{text}: {why}"))
            }
        };
        let mut record = Bounded::new(RECORD_MAX);
        let _ = write!(record, "at {}: {text}", ShownPlace(&place));
        Self {
            reason: ViolationReason::Schema,
            instance_path: place,
            schema_path: "/properties".to_owned(),
            keyword: "properties".to_owned(),
            misfits: Misfits::of_key_conflict(conflict),
            record: record.text,
            agent: cut(&text, AGENT_MAX).to_owned(),
        }
    }

    pub(super) fn of_boon(
        error: &ValidationError<'_, '_>,
        base: &str,
        required: &RequiredMembers,
    ) -> Self {
        let mut leaves = Leaves { shown: Vec::new(), count: 0 };
        leaves.collect(error);
        let first = leaves.shown.first().copied().unwrap_or(error);
        let keyword = keyword(&first.kind);
        let place = cut(first.schema_url.strip_prefix(base).unwrap_or(first.schema_url), PATH_MAX);
        let place = place.strip_prefix('#').unwrap_or(place);
        let schema_path = join(place, &keyword);

        let mut record = Bounded::new(RECORD_MAX);
        for (at, leaf) in leaves.shown.iter().enumerate() {
            let separator = if at > 0 { "; " } else { "" };
            let place = leaf.instance_location.to_string();
            let _ = write!(record, "{separator}at {}: {}", ShownPlace(&place), leaf.kind);
        }
        if leaves.count > leaves.shown.len() {
            let _ = write!(record, "; and {} more", leaves.count - leaves.shown.len());
        }

        let mut agent = Bounded::new(AGENT_MAX);
        let name = if keyword.is_empty() { "schema" } else { &keyword };
        let _ = write!(agent, "{name} at '{schema_path}'");
        let _ = boon_limit(&mut agent, &first.kind);

        let mut instance_path = Bounded::new(PATH_MAX);
        let _ = write!(instance_path, "{}", first.instance_location);
        Self {
            reason: ViolationReason::Schema,
            instance_path: instance_path.text,
            schema_path,
            keyword,
            misfits: Misfits::of_boon(error, base, required),
            record: record.text,
            agent: agent.text,
        }
    }

    /// Violation as reported by the tape engine if only this engine is used. Without values, because its errors are created without them.
    pub(super) fn of_tape(
        error: &jsonschema::ValidationError<'_>,
        required: &RequiredMembers,
        null_at: &dyn Fn(&str) -> bool,
    ) -> Self {
        let keyword = error.kind().keyword().to_owned();
        let schema_path = cut(error.schema_path().as_str(), PATH_MAX).to_owned();
        let instance_path = cut(error.instance_path().as_str(), PATH_MAX).to_owned();
        let mut agent = Bounded::new(AGENT_MAX);
        let _ = write!(agent, "{keyword} at '{schema_path}'");
        let _ = tape_limit(&mut agent, error.kind());
        let mut record = Bounded::new(RECORD_MAX);
        let _ = write!(record, "at {}: {}", ShownPlace(&instance_path), agent.text);
        let _ = tape_names(&mut record, error.kind());
        Self {
            reason: ViolationReason::Schema,
            instance_path,
            schema_path,
            keyword,
            misfits: Misfits::of_tape(error, required, null_at),
            record: record.text,
            agent: agent.text,
        }
    }
}

/// JSON pointer in a message; the empty one is the root.
struct ShownPlace<'p>(&'p str);

impl Display for ShownPlace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            "" => f.write_str("the root"),
            place => write!(f, "'{place}'"),
        }
    }
}

impl Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.record)
    }
}

/// Innermost violations: the first few, and the total number.
struct Leaves<'e, 's, 'v> {
    shown: Vec<&'e ValidationError<'s, 'v>>,
    count: usize,
}

impl<'e, 's, 'v> Leaves<'e, 's, 'v> {
    /// Collects the innermost violations. Failed alternatives are reported as one violation, since the intended one is unknown.
    fn collect(&mut self, error: &'e ValidationError<'s, 'v>) {
        let own = match error.kind {
            ErrorKind::AnyOf | ErrorKind::OneOf(_) | ErrorKind::PropertyName { .. } => true,
            ErrorKind::Contains | ErrorKind::MinContains { .. } => true,
            _ => error.causes.is_empty(),
        };
        if own {
            self.count += 1;
            if self.shown.len() < SPELLED_OUT {
                self.shown.push(error);
            }
        } else {
            error.causes.iter().for_each(|cause| self.collect(cause));
        }
    }
}

fn keyword(kind: &ErrorKind<'_, '_>) -> String {
    match kind {
        // boon reports this keyword in the singular, as `additionalProperty`.
        ErrorKind::AdditionalProperties { .. } => "additionalProperties".to_owned(),
        kind => kind.keyword_path().map_or(String::new(), |path| path.keyword.to_owned()),
    }
}

fn join(place: &str, keyword: &str) -> String {
    if keyword.is_empty() { place.to_owned() } else { format!("{place}/{keyword}") }
}

/// Types and limits stated by the schema.
fn boon_limit(to: &mut Bounded, kind: &ErrorKind<'_, '_>) -> fmt::Result {
    match kind {
        ErrorKind::Type { got, want } => {
            let want: Vec<String> = want.iter().map(|name| name.to_string()).collect();
            write!(to, ": expected {}, got {got}", want.join(" or "))
        }
        ErrorKind::Required { want } => {
            write!(to, ": missing")?;
            want.iter().try_for_each(|name| write!(to, " {name:?}"))
        }
        ErrorKind::Dependency { missing, .. } | ErrorKind::DependentRequired { missing, .. } => {
            write!(to, ": missing")?;
            missing.iter().try_for_each(|name| write!(to, " {name:?}"))
        }
        ErrorKind::Format { want, .. } => write!(to, ": {want}"),
        ErrorKind::MinProperties { want, .. }
        | ErrorKind::MaxProperties { want, .. }
        | ErrorKind::MinItems { want, .. }
        | ErrorKind::MaxItems { want, .. }
        | ErrorKind::MinContains { want, .. }
        | ErrorKind::MaxContains { want, .. }
        | ErrorKind::MinLength { want, .. }
        | ErrorKind::MaxLength { want, .. } => write!(to, ": limit {want}"),
        ErrorKind::Minimum { want, .. }
        | ErrorKind::Maximum { want, .. }
        | ErrorKind::ExclusiveMinimum { want, .. }
        | ErrorKind::ExclusiveMaximum { want, .. }
        | ErrorKind::MultipleOf { want, .. } => write!(to, ": limit {want}"),
        ErrorKind::ContentEncoding { want, .. } | ErrorKind::ContentMediaType { want, .. } => {
            write!(to, ": {want}")
        }
        ErrorKind::OneOf(Some(_)) => write!(to, ": more than one alternative matches"),
        ErrorKind::OneOf(None) | ErrorKind::AnyOf => write!(to, ": no alternative matches"),
        ErrorKind::FalseSchema => write!(to, ": nothing is allowed here"),
        _ => Ok(()),
    }
}

fn tape_limit(to: &mut Bounded, kind: &ValidationErrorKind) -> fmt::Result {
    use ValidationErrorKind as Kind;
    match kind {
        Kind::Type { kind: TypeKind::Single(want) } => write!(to, ": expected {want}"),
        Kind::Type { kind: TypeKind::Multiple(want) } => {
            let want: Vec<&str> = want.iter().map(jsonschema::JsonType::as_str).collect();
            write!(to, ": expected {}", want.join(" or "))
        }
        Kind::Required { property } => write!(to, ": missing {property}"),
        Kind::Format { format } => write!(to, ": {format}"),
        Kind::MaxItems { limit }
        | Kind::MaxLength { limit }
        | Kind::MaxProperties { limit }
        | Kind::MinItems { limit }
        | Kind::MinLength { limit }
        | Kind::MinProperties { limit } => write!(to, ": limit {limit}"),
        Kind::ExclusiveMaximum { limit }
        | Kind::ExclusiveMinimum { limit }
        | Kind::Maximum { limit }
        | Kind::Minimum { limit } => write!(to, ": limit {limit}"),
        Kind::MultipleOf { multiple_of } => write!(to, ": limit {multiple_of}"),
        Kind::OneOfMultipleValid { .. } => write!(to, ": more than one alternative matches"),
        Kind::AnyOf { .. } | Kind::OneOfNotValid { .. } => write!(to, ": no alternative matches"),
        Kind::FalseSchema => write!(to, ": nothing is allowed here"),
        _ => Ok(()),
    }
}

/// Names from the document, for the record.
fn tape_names(to: &mut Bounded, kind: &ValidationErrorKind) -> fmt::Result {
    use ValidationErrorKind as Kind;
    match kind {
        Kind::AdditionalProperties { unexpected } | Kind::UnevaluatedProperties { unexpected } => {
            unexpected.iter().try_for_each(|name| write!(to, " {name:?}"))
        }
        _ => Ok(()),
    }
}

/// Text that is truncated at a limit.
struct Bounded {
    text: String,
    limit: usize,
}

impl Bounded {
    fn new(limit: usize) -> Self {
        Self { text: String::new(), limit }
    }
}

impl Write for Bounded {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        let remaining = self.limit - self.text.len();
        self.text.push_str(cut(more, remaining));
        if more.len() > remaining { Err(fmt::Error) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounded_text_is_truncated_at_a_character_boundary() {
        let mut text = Bounded::new(5);
        assert_eq!(write!(text, "äöü"), Err(fmt::Error));
        assert_eq!(text.text, "äö");
        assert_eq!(write!(text, "x"), Ok(()));
        assert_eq!(text.text, "äöx");
        assert_eq!(write!(text, "y"), Err(fmt::Error));
        assert_eq!(text.text, "äöx");
    }

    #[test]
    fn duplicate_key_is_named_only_in_the_record() {
        let fault = TapeFault::DuplicateKey { object: "/a".into(), name: "evil".into() };
        let violation = Violation::of_document(fault);
        assert!(violation.describe().contains("evil"));
        assert_eq!(violation.for_agent(), "the document has a duplicate key");
    }
}
