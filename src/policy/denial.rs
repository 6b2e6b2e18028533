//! Why a request does not go out, and what is remarkable about one that does. The texts are a contract.

use std::time::Duration;

use super::access::Access;
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
    /// A person did not agree (CAP-8).
    #[error(transparent)]
    Approval(#[from] ApprovalDenial),
    /// The principal's token was not made for this.
    #[error("Token '{token}' does not allow {access}")]
    Scope {
        /// The token's name.
        token: Box<str>,
        /// What was asked, by kind and name.
        access: Box<str>,
    },
    /// Its token was revoked, or has expired, while the request waited.
    #[error("The token of {who} does not count any more: it was revoked, or has expired")]
    Lapsed {
        /// The principal's id.
        who: Box<str>,
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

/// What needs a person's approval, and does not have it (CAP-8).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{access}: {why}")]
pub struct ApprovalDenial {
    /// What was asked, by kind and name.
    pub access: Box<str>,
    /// Why there is no approval.
    pub why: NotApproved,
}

/// Why there is no approval.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotApproved {
    /// Somebody said no.
    #[error("approval was denied")]
    Denied,
    /// Nobody said anything in time.
    #[error("approval timed out after {}", short(*.0))]
    TimedOut(Duration),
    /// It is not what was approved: its tool, its arguments or the rules are others.
    #[error("what was approved is not what is asked now")]
    Changed,
    /// It is made again under a state that was used already, has ended, or is not known any more.
    #[error("its approval was used already, or is not known any more")]
    Spent,
    /// It is made again, and its approval is another node's of the fleet, which is not asked.
    #[error(
        "its approval was asked for at node '{node}', which cannot be asked: make the call anew"
    )]
    Elsewhere {
        /// The node.
        node: Box<str>,
    },
    /// Nobody can judge so much.
    #[error("approval cannot be asked for arguments of more than {limit} bytes")]
    TooLong {
        /// Most bytes.
        limit: usize,
    },
    /// So many wait already.
    #[error("approval cannot be asked for: {limit} calls wait for one already")]
    TooMany {
        /// Most that may wait.
        limit: usize,
    },
    /// There is no door by which anybody could answer.
    #[error("approval is required, and nobody can be asked: no `mcpproxy serve` is running")]
    Nobody,
    /// It is one of a filter, which is answered at once.
    #[error("approval cannot be waited for by a filter")]
    ByFilter,
    /// The proxy is ending.
    #[error("approval was not given before mcpproxy shut down")]
    Ending,
    /// The system gives no randomness.
    #[error("approval cannot be asked for now")]
    Unavailable,
}

impl ApprovalDenial {
    /// That `access` is not approved.
    #[must_use]
    pub fn new(access: &Access, why: NotApproved) -> Self {
        let name = match access {
            Access::Tool(call) => format!("Tool '{}'", call.tool().name),
            Access::Resource { uri, .. } => format!("Resource '{uri}'"),
            Access::Prompt { server, name } => format!("Prompt '{server}:{name}'"),
            Access::Completion { server, .. } => format!("Completion of '{server}'"),
        };
        Self { access: name.into(), why }
    }
}

/// A duration as it is written in the config: `5m`, `1h30m`, `90s` as `1m30s`.
fn short(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let parts = [(seconds / 3600, "h"), (seconds / 60 % 60, "m"), (seconds % 60, "s")];
    let parts = parts.into_iter().chain([(u64::from(duration.subsec_millis()), "ms")]);
    let text: String = parts
        .filter(|(count, _)| *count > 0)
        .map(|(count, unit)| format!("{count}{unit}"))
        .collect();
    if text.is_empty() { "0s".to_owned() } else { text }
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
    /// Whether a person's approval would lift it.
    pub approval: ApprovalDemand,
}

/// Whether the rules that refuse a request leave it to a person (`@requires("approval")` on each of them).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ApprovalDemand {
    /// They refuse, whoever agrees.
    #[default]
    None,
    /// They refuse unless somebody agrees.
    Asked,
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
            Self::Scope { .. } | Self::Lapsed { .. } => DenialKind::Scope,
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
            | Self::Lapsed { .. }
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
            | Self::Lapsed { .. }
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
    /// The rules refuse it, and only watch (`policy.mode` shadow).
    #[error("{0}; allowed, because policy.mode is shadow")]
    Shadow(RuleDenial),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cap_8_the_texts_are_the_contracts() {
        let denied = |why| ApprovalDenial { access: "Tool 'X'".into(), why }.to_string();
        assert_eq!(denied(NotApproved::Denied), "Tool 'X': approval was denied");
        for (seconds, text) in [(300, "5m"), (90, "1m30s"), (7200, "2h"), (1, "1s"), (0, "0s")] {
            let timed_out = denied(NotApproved::TimedOut(Duration::from_secs(seconds)));
            assert_eq!(timed_out, format!("Tool 'X': approval timed out after {text}"));
        }
        let short = denied(NotApproved::TimedOut(Duration::from_millis(250)));
        assert!(short.ends_with("after 250ms"), "{short}");
    }
}
