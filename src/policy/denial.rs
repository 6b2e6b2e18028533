//! Why a request does not go out, and what is remarkable about one that does. The texts are a contract.

use std::time::Duration;

use crate::intent::{IntentError, Operation};
use crate::tool::{StatedBy, ToolName};

/// Why a request is refused. Its text is what the agent reads.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denial {
    /// The intent is missing, unreadable, or does not match the variant.
    #[error(transparent)]
    Intent(#[from] IntentError),
    /// The tool is marked as doing more than the variant allows (FR-015..018, CAP-5).
    #[error(transparent)]
    Gate(#[from] Mismatch),
    /// The tool waits for a person (CAP-8).
    #[error("Tool '{0}' requires approval, which this version cannot ask for")]
    Approval(ToolName),
    /// The principal's token was not made for this.
    #[error("Token '{token}' does not allow {access}")]
    Scope {
        /// The token's name.
        token: Box<str>,
        /// What was asked, by kind and name.
        access: Box<str>,
    },
    /// The tool, or a change of it, waits for an operator (pins, scan).
    #[error("Tool '{0}' is quarantined and waits for approval by an operator")]
    Quarantined(ToolName),
    /// A rule forbids it, or none allows it.
    #[error(transparent)]
    Rule(#[from] RuleDenial),
    /// Too much at a time, or too often; later it may go.
    #[error(transparent)]
    Limit(#[from] LimitReached),
}

/// A rule that refuses a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{access} is not allowed by rule '{rule}'{}{}", if message.is_empty() { "" } else { ": " }, message)]
pub struct RuleDenial {
    /// What was asked, by kind and name.
    pub access: Box<str>,
    /// The first of the rules that decided.
    pub rule: Box<str>,
    /// What the rule has to say to the agent (`@message`), or empty.
    pub message: Box<str>,
    /// All rules that decided.
    pub rules: Vec<Box<str>>,
    /// Whether a person may let it pass all the same.
    pub lifted_by: LiftedBy,
}

/// What lifts a rule's refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LiftedBy {
    /// Nothing.
    Nothing,
    /// A person's approval.
    Approval,
}

/// A limit that a request has run into.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitReached {
    /// Calls in a minute.
    #[error("Too many calls to '{of}': limit {limit} per minute, retry in {}s", seconds(*retry_after))]
    Rate {
        /// What is limited.
        of: Box<str>,
        /// Calls a minute.
        limit: u32,
        /// When the next may go.
        retry_after: Duration,
    },
    /// Calls at a time, and those that wait.
    #[error("Too many calls to '{of}' at a time: limit {limit}, queue {queue}{}", vain(*waited))]
    Concurrency {
        /// What is limited.
        of: Box<str>,
        /// Calls at a time.
        limit: usize,
        /// Calls that may wait.
        queue: usize,
        /// How long it waited for a place in vain; `None` where the queue was full.
        waited: Option<Duration>,
    },
    /// The server fails all the time.
    #[error("Server '{server}' is set aside after {failures} failures, next try in {}s", seconds(*retry_after))]
    Breaker {
        /// The server's name.
        server: Box<str>,
        /// How often it failed in a row.
        failures: u32,
        /// When it is tried again.
        retry_after: Duration,
    },
}

impl LimitReached {
    /// When it may be worth trying again, where that is known.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Rate { retry_after, .. } | Self::Breaker { retry_after, .. } => {
                Some(*retry_after)
            }
            Self::Concurrency { .. } => None,
        }
    }
}

/// Whole seconds, rounded up: whoever waits so long comes not too early.
fn seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

/// What is told of a wait for a place.
fn vain(waited: Option<Duration>) -> String {
    let Some(waited) = waited else { return String::new() };
    let millis = waited.as_millis();
    match millis {
        0..1000 => format!("; none was free within {millis}ms"),
        _ => format!("; none was free within {}s", waited.as_secs()),
    }
}

impl Denial {
    /// What was wrong; each face answers it in its own way.
    #[must_use]
    pub fn kind(&self) -> DenialKind {
        match self {
            Self::Intent(_) => DenialKind::Intent,
            Self::Gate(_) => DenialKind::Gate,
            Self::Approval(_) => DenialKind::Approval,
            Self::Scope { .. } => DenialKind::Scope,
            Self::Quarantined(_) => DenialKind::Catalog,
            Self::Rule(_) => DenialKind::Rules,
            Self::Limit(_) => DenialKind::Limit,
        }
    }

    /// The rules that decided, where rules did.
    #[must_use]
    pub fn rules(&self) -> &[Box<str>] {
        match self {
            Self::Rule(denial) => &denial.rules,
            Self::Intent(_)
            | Self::Gate(_)
            | Self::Approval(_)
            | Self::Scope { .. }
            | Self::Quarantined(_)
            | Self::Limit(_) => &[],
        }
    }

    /// When it may be worth trying again, where that is known.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Limit(limit) => limit.retry_after(),
            Self::Intent(_)
            | Self::Gate(_)
            | Self::Approval(_)
            | Self::Scope { .. }
            | Self::Quarantined(_)
            | Self::Rule(_) => None,
        }
    }
}

/// The kinds of [`Denial`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenialKind {
    /// The caller's words: REST 400.
    Intent,
    /// The tool's marking: REST 403.
    Gate,
    /// A person is missing: REST 403.
    Approval,
    /// The principal's token: REST 403.
    Scope,
    /// A definition that an operator has to look at: REST 403.
    Catalog,
    /// The operator's rules: REST 403.
    Rules,
    /// Too much, or too often: REST 429.
    Limit,
}

/// What is remarkable about a request that goes out all the same. Its text is for log and record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Warning {
    /// The server's annotation forbids it, and `strict_server_validation` is off (FR-042).
    #[error("{0}; allowed, because strict_server_validation is false")]
    Mismatch(Mismatch),
    /// The write variant on a tool that only reads.
    #[error("Tool '{tool}' is marked read-only by {by}, call_tool_read would do")]
    WriteOnReadOnly {
        /// The tool called.
        tool: ToolName,
        /// Who says that it only reads.
        by: StatedBy,
    },
    /// `approval: suggest` (CAP-8).
    #[error("Tool '{0}' suggests approval, and nobody was asked")]
    ApprovalSuggested(ToolName),
}

/// A tool does more than the variant it was called by allows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Tool '{tool}' is marked {} by {by}, use {}", needed.as_str(), needed.variant())]
pub struct Mismatch {
    /// The tool called.
    pub tool: ToolName,
    /// The least variant that may call it.
    pub needed: Operation,
    /// Who marked it.
    pub by: StatedBy,
}
