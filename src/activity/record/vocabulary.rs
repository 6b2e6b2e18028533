//! The closed vocabularies of a record: each value has a word for JSON and filters, and a code on disk.
//! Pure.

use std::fmt;

use serde::ser::{Serialize, Serializer};
use utoipa::openapi::schema::{ObjectBuilder, Type as SchemaType};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

pub use crate::intent::Operation;

/// Makes an enum whose values have a name and a stable code on disk.
macro_rules! named {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $code:literal $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum $name { $($(#[$vdoc])* $variant = $code),+ }

        impl $name {
            /// Every value, in the order of the codes.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The name used in JSON, filters and tables.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }

            /// The code on disk.
            #[must_use]
            pub const fn code(self) -> u8 { self as u8 }

            /// The value of this code, if there is one.
            #[must_use]
            pub const fn from_code(code: u8) -> Option<Self> {
                match code { $($code => Some(Self::$variant),)+ _ => None }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.pad(self.as_str()) }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> { words(Self::ALL.iter().map(|it| it.as_str())) }
        }

        impl ToSchema for $name {}
    };
}

named! {
    /// What a record is about (`type` in JSON).
    Type {
        /// A call to a tool of an upstream server.
        ToolCall = 1 "tool_call",
        /// A decision about a call: something was blocked or warned about.
        PolicyDecision = 2 "policy_decision",
        /// A call to one of the proxy's own tools.
        InternalToolCall = 3 "internal_tool_call",
        /// An upstream server came, went or failed.
        ServerChange = 4 "server_change",
        /// The catalog changed, or one of its schemas cannot be used.
        CatalogChange = 5 "catalog_change",
        /// A person's approval was asked for.
        Approval = 6 "approval",
        /// The configuration changed.
        ConfigChange = 7 "config_change",
        /// Old records were removed.
        Retention = 8 "retention",
        /// The proxy started.
        SystemStart = 9 "system_start",
        /// The proxy stopped.
        SystemStop = 10 "system_stop",
        /// A resource of an upstream server was read.
        ResourceRead = 11 "resource_read",
        /// A prompt of an upstream server was asked for.
        PromptGet = 12 "prompt_get",
        /// An argument's completion was asked for.
        Completion = 13 "completion",
        /// A range of records is lost.
        Gap = 14 "gap",
    }
}

named! {
    /// The face that a call came in by.
    Source {
        /// An MCP client.
        Mcp = 1 "mcp",
        /// The command line.
        Cli = 2 "cli",
        /// The REST interface.
        Api = 3 "api",
        /// The proxy itself.
        Internal = 4 "internal",
    }
}

named! {
    /// How a call ended; of a decision, what it did.
    Status {
        /// The call was answered.
        Success = 1 "success",
        /// The call failed, upstream or on the way.
        Error = 2 "error",
        /// The answer was withheld from the client.
        Blocked = 3 "blocked",
        /// The call was not sent to the server.
        Rejected = 4 "rejected",
        /// A decision that let something pass with a warning.
        Warning = 5 "warning",
        /// The process ended after the call was sent and before its answer: the outcome is not known.
        Unknown = 6 "unknown",
    }
}

impl Operation {
    /// The code on disk.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Read => 1,
            Self::Write => 2,
            Self::Destructive => 3,
        }
    }

    /// The value of this code, if there is one.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|operation| operation.code() == code)
    }
}

impl PartialSchema for Operation {
    fn schema() -> RefOr<Schema> {
        words(Self::ALL.map(Self::as_str))
    }
}

impl ToSchema for Operation {}

named! {
    /// What a decision is based on.
    Policy {
        /// The answer's schema and bounds.
        OutputValidation = 1 "output_validation",
        /// The stated intent, compared with the tool's annotations.
        Intent = 2 "intent",
        /// The capability that the operator gave the tool.
        Capability = 3 "capability",
        /// What the principal's token was made for.
        Scope = 4 "scope",
        /// Pins and the scan of definitions.
        Catalog = 5 "catalog",
        /// The operator's rules.
        Rules = 6 "rules",
        /// Limits on how much, and how often.
        Limit = 7 "limit",
        /// A person's answer, or that none came.
        Approval = 8 "approval",
        /// The schema of the tool's arguments.
        InputValidation = 9 "input_validation",
    }
}

named! {
    /// What a decision did.
    Verdict {
        /// Something was stopped.
        Blocked = 3 "blocked",
        /// Something passed with a warning.
        Warning = 5 "warning",
    }
}

impl Verdict {
    /// The status of the decision's record.
    #[must_use]
    pub const fn status(self) -> Status {
        match self {
            Self::Blocked => Status::Blocked,
            Self::Warning => Status::Warning,
        }
    }
}

/// The OpenAPI description of a value that is one of these words.
pub(crate) fn words(words: impl IntoIterator<Item = &'static str>) -> RefOr<Schema> {
    ObjectBuilder::new().schema_type(SchemaType::String).enum_values(Some(words)).into()
}
