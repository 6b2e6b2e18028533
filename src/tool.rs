//! A tool of an upstream: its name, what its server claims (annotations), what may be relied on
//! (capability), and how its answers are judged.
//!
//! Pure values. Who discovers tools and who calls them is not known here.

use std::sync::{Arc, OnceLock};

use serde_json::value::RawValue;

use self::parameter_headers::ParameterHeaders;
use crate::output::{Mode, Policy, Treatment};
use crate::schema::compile::Schema;

mod capability;
pub mod example;
mod exposure;
mod input;
mod input_schema;
mod name;
pub mod parameter_headers;
pub mod result_limit;
mod rules;
mod sensitivity;
pub mod server_id;
pub mod signature;
pub mod summary;

pub use capability::{
    Annotations, Approval, Capability, CapabilityOverride, Idempotence, SideEffect, StatedBy,
};
pub use exposure::{Exposure, World};
pub use input::{Input, InputPolicy, InputSchema};
pub use name::ToolName;
pub use result_limit::ResultLimit;
pub use rules::{Pattern, Rules};
pub use sensitivity::{SensitiveHint, Sensitivity};

/// The declared output schema of a tool and what became of it.
#[derive(Clone, Debug)]
pub enum OutputSchema {
    /// None declared: nothing is judged (FR-A7).
    Absent,
    /// Compiled and ready.
    Compiled(Arc<Schema>),
    /// Declared, but it cannot be used; the reason is one line (FR-A9).
    Unusable(Arc<str>),
    /// Declared, and being compiled; the outcome is stored here. Calls whose answers are to be
    /// validated wait for it.
    Compiling(Arc<OnceLock<OutputSchema>>),
}

impl OutputSchema {
    /// Its present state: the outcome instead of [`Compiling`](Self::Compiling), once there is one.
    #[must_use]
    pub fn now(&self) -> &Self {
        match self {
            Self::Compiling(awaited) => awaited.get().unwrap_or(self),
            Self::Absent | Self::Compiled(_) | Self::Unusable(_) => self,
        }
    }
}

/// Whether what a server says of a tool may be relied on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// It is accepted.
    #[default]
    Given,
    /// An operator has to look at it first: no agent sees the tool, and none can call it.
    Withheld,
}

/// A tool in the catalog. Immutable; a new discovery makes a new one.
#[derive(Clone, Debug)]
pub struct Tool {
    /// Its full name.
    pub name: ToolName,
    /// `title`, if the server gave one.
    pub title: Option<Box<str>>,
    /// `description`, empty if the server gave none.
    pub description: Box<str>,
    /// `inputSchema`, the server's own bytes.
    pub input_schema: Box<RawValue>,
    /// `outputSchema`, the server's own bytes, if declared (FR-A1).
    pub output_schema: Option<Box<RawValue>>,
    /// `annotations`, the server's own bytes, if declared (FR-022).
    pub annotations_raw: Option<Box<RawValue>>,
    /// The hints read from `annotations_raw`.
    pub annotations: Annotations,
    /// The effective capability (CAP-2, CAP-3).
    pub capability: Capability,
    /// Who says that a call may be made once more, if it may.
    pub idempotence: Idempotence,
    /// Who stated the effective side effect.
    pub side_effect_by: StatedBy,
    /// What it deals in: sensitive data, the open world.
    pub exposure: Exposure,
    /// The schema its answers are judged by.
    pub schema: OutputSchema,
    /// How its answers are judged: mode and limits (FR-A4).
    pub policy: Policy,
    /// How the arguments of its calls are judged.
    pub input: Input,
    /// When an agent gets a part of its result, and reads the rest by a handle; `None`: never.
    pub result_limit: Option<ResultLimit>,
    /// Which of its parameters HTTP headers repeat; `None` if none, or if the schema says it in an
    /// invalid way.
    pub parameter_headers: Option<Arc<ParameterHeaders>>,
    /// Whether it may be called as it is defined.
    pub trust: Trust,
    /// Its signature, once somebody has asked for it by [`Tool::signature`]; empty where a tool is made.
    pub signature: OnceLock<Box<str>>,
}

impl Tool {
    /// A tool of which nothing is known but its name, and what follows from the annotations and the operator's words.
    #[must_use]
    pub fn named(
        name: ToolName,
        annotations: Annotations,
        rules: &Rules<CapabilityOverride>,
    ) -> Self {
        let (capability, side_effect_by) = Capability::effective(annotations, rules, &name.tool);
        let exposure = Exposure::effective(annotations, rules, &name.tool);
        let idempotence = Idempotence::effective(annotations, rules, &name.tool);
        Self {
            name,
            title: None,
            description: "".into(),
            input_schema: RawValue::from_string("{}".to_owned())
                .unwrap_or_else(|_| RawValue::NULL.to_owned()),
            output_schema: None,
            annotations_raw: None,
            annotations,
            capability,
            idempotence,
            side_effect_by,
            exposure,
            schema: OutputSchema::Absent,
            policy: Policy::default(),
            input: Input::default(),
            result_limit: None,
            trust: Trust::Given,
            parameter_headers: None,
            signature: OnceLock::new(),
        }
    }

    /// Its name and parameters in one line ([`signature::signature`]), made once.
    #[must_use]
    pub fn signature(&self) -> &str {
        self.signature
            .get_or_init(|| signature::signature(&self.name.tool, self.input_schema.get()).into())
    }

    /// The same tool, trusted so far. Of one that is not, nothing is read of its parameters: what it says must not reach
    /// agents in the text of an error either.
    #[must_use]
    pub fn trusted(&self, trust: Trust) -> Self {
        let parameter_headers = match trust {
            Trust::Given => ParameterHeaders::read(&self.input_schema).ok().flatten().map(Arc::new),
            Trust::Withheld => None,
        };
        Self { parameter_headers, trust, ..self.clone() }
    }

    /// How its answers are treated at present.
    #[must_use]
    pub fn treatment(&self) -> Treatment {
        match (self.schema.now(), self.policy.mode) {
            (OutputSchema::Absent | OutputSchema::Unusable(_), _) | (_, Mode::Off) => {
                Treatment::Forward
            }
            (OutputSchema::Compiled(_) | OutputSchema::Compiling(_), Mode::Warn) => {
                Treatment::ForwardAndJudge
            }
            (OutputSchema::Compiled(_) | OutputSchema::Compiling(_), Mode::Strict) => {
                Treatment::Hold
            }
        }
    }
}
