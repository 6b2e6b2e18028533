//! What a call may do: read, write or destroy, and the call tool for each.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::tool::{Capability, SideEffect};

/// `intent.operation_type` (FR-007), and with it the variant of the call tool (FR-001..003).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// `call_tool_read`
    Read,
    /// `call_tool_write`
    Write,
    /// `call_tool_destructive`
    Destructive,
}

impl Operation {
    /// All of them, from least to most.
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Destructive];

    /// Its spelling in `intent.operation_type`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Destructive => "destructive",
        }
    }

    /// The operation that `word` states, if it is one.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|operation| operation.as_str() == word)
    }

    /// The call tool for it.
    #[must_use]
    pub const fn variant(self) -> &'static str {
        match self {
            Self::Read => "call_tool_read",
            Self::Write => "call_tool_write",
            Self::Destructive => "call_tool_destructive",
        }
    }

    /// The operation of the call tool with this name, if it is one.
    #[must_use]
    pub fn of_tool(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|operation| operation.variant() == name)
    }

    /// The variant to call a tool with: `call_with` in search results (FR-023, CAP-5).
    #[must_use]
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tool::{Annotations, CapabilityOverride, Rules};

    #[test]
    fn fr_023_call_with() {
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
