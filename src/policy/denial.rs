//! Denials and warnings. Their texts are a contract.

use std::time::Duration;

use super::intent::{IntentError, Operation};
use super::request::Access;
use super::tool::{StatedBy, ToolName};

/// Reason why a request is denied. The agent reads its text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denial {
    /// The intent is missing, unreadable, or does not match the variant.
    #[error(transparent)]
    Intent(#[from] IntentError),
    /// The tool is marked as doing more than the variant allows (FR-015..018, CAP-5).
    #[error(transparent)]
    Gate(#[from] Mismatch),
    /// The tool is called through the read variant but not marked read-only, and `intent_declaration.unannotated` is
    /// `write` (FR-043).
    #[error("Tool '{0}' is not marked read-only, use call_tool_write")]
    Unannotated(ToolName),
    /// No person has approved the request (CAP-8).
    #[error(transparent)]
    Approval(#[from] ApprovalDenial),
    /// The request is outside the scope of the principal's token.
    #[error("Token '{token}' does not allow {access}: it is limited to {limit}")]
    Scope {
        token: Box<str>,
        /// Kind and name of the target.
        access: Box<str>,
        /// The part of the scope that excludes the request.
        limit: Box<str>,
    },
    /// The token was revoked or expired while the request waited.
    #[error("The token of {who} does not count any more: it was revoked, or has expired")]
    Lapsed { who: Box<str> },
    /// The tool's definition waits for an operator (pins, scan).
    #[error(
        "Tool '{0}' is quarantined and waits for approval by an operator: `mcpproxy tools diff {0}` shows \
         why, `mcpproxy tools approve {0}` accepts it"
    )]
    Quarantined(ToolName),
    #[error(transparent)]
    Rule(#[from] RuleDenial),
    /// The request exceeds a limit on concurrency, rate or failures.
    #[error(transparent)]
    Limit(#[from] LimitReached),
}

/// A request that needs an approval and has none (CAP-8).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{access}: {why}")]
pub struct ApprovalDenial {
    /// Kind and name of the target.
    pub access: Box<str>,
    pub why: NotApproved,
}

/// Reason why there is no approval.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotApproved {
    #[error("approval was denied")]
    Denied,
    #[error("approval timed out after {}", short(*.0))]
    TimedOut(Duration),
    /// The tool, its arguments or the rules have changed since the approval was requested.
    #[error("what was approved is not what is asked now")]
    Changed,
    /// The call was retried with a request state that was used, has expired or is unknown.
    #[error("its approval was used already, or is not known any more")]
    Spent,
    /// The call was retried, and its approval belongs to another node that cannot be reached.
    #[error("its approval belongs to node '{node}', which cannot be reached: repeat the call")]
    Elsewhere { node: Box<str> },
    /// The arguments are too long for a person to review.
    #[error("approval cannot be asked for arguments of more than {limit} bytes")]
    TooLong {
        /// Maximum size in bytes.
        limit: usize,
    },
    /// Keys of the arguments differ only by case from each other or from parameters of the tool, so the server may read
    /// a different value than the one shown.
    #[error(
        "approval cannot be asked for arguments with keys that differ only by case from each other, or from \
         parameters of the tool: write each as the tool's schema does"
    )]
    CaseVariants,
    /// The queue is full.
    #[error("approval cannot be asked for: {limit} calls wait for one already")]
    TooMany {
        /// Queue size.
        limit: usize,
    },
    /// Nobody can answer, because the proxy does not listen.
    #[error("approval is required, and nobody can be asked: no `mcpproxy serve` is running")]
    Nobody,
    /// A filter requested the call, and filters are answered immediately.
    #[error("a filter cannot wait for approval")]
    ByFilter,
    /// The proxy is shutting down.
    #[error("approval was not given before mcpproxy shut down")]
    Ending,
    /// The system provides no random bytes.
    #[error("approval is unavailable: the system returned no random bytes")]
    Unavailable,
}

impl ApprovalDenial {
    pub fn new(access: &Access, why: NotApproved) -> Self {
        let name = match access {
            Access::Tool(call) => format!("Tool '{}'", call.tool().name),
            Access::Resource { uri, .. } => format!("Resource '{uri}'"),
            Access::Prompt { server, name } => format!("Prompt '{server}:{name}'"),
            Access::Completion { server, .. } => format!("Completion of '{server}'"),
            Access::Method { server, method } => format!("Method '{method}' of '{server}'"),
            Access::Task(task) => format!("Task of tool '{}'", task.call().tool().name),
        };
        Self { access: name.into(), why }
    }
}

/// Formats a duration as in the config: `5m`, `1h30m`, and 90 seconds as `1m30s`.
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

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{access} is not allowed by rule '{rule}'{}{}", if message.is_empty() { "" } else { ": " }, message)]
pub struct RuleDenial {
    /// Kind and name of the target.
    pub access: Box<str>,
    pub rule: Box<str>,
    /// Message of the rule to the agent (`@message`), or empty.
    pub message: Box<str>,
    /// All rules that decided.
    pub rules: Vec<Box<str>>,
    pub approval: ApprovalDemand,
    /// Reason why the rule cannot be evaluated, if that is the cause of the denial.
    pub error: Option<Box<str>>,
}

/// Whether an approval lifts the denial (`@requires("approval")` on every rule that denies).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ApprovalDemand {
    /// Denied unconditionally.
    #[default]
    None,
    /// Denied unless approved.
    Asked,
}

/// A limit that a request exceeds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitReached {
    /// Limit on calls per minute.
    #[error("Too many calls to '{of}': limit {limit} per minute, retry in {}s", seconds(*retry_after))]
    Rate {
        of: Box<str>,
        limit: u32,
        /// Time until the next call is allowed.
        retry_after: Duration,
    },
    /// Limit on concurrent calls and on calls that wait for a slot.
    #[error("Too many calls to '{of}' at a time: limit {limit}, queue {queue}{}", without_slot(*waited))]
    Concurrency {
        of: Box<str>,
        /// Maximum number of concurrent calls.
        limit: usize,
        /// Maximum number of calls that may wait.
        queue: usize,
        /// Time waited without a slot; `None` if the queue was full.
        waited: Option<Duration>,
    },
    /// The server's circuit breaker is open.
    #[error("Server '{server}' is set aside after {failures} failures, next try in {}s", seconds(*retry_after))]
    Breaker {
        server: Box<str>,
        /// Number of consecutive failures.
        failures: u32,
        /// Time until the next probe.
        retry_after: Duration,
    },
}

impl LimitReached {
    /// Time until a retry may succeed, if known.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Rate { retry_after, .. } | Self::Breaker { retry_after, .. } => {
                Some(*retry_after)
            }
            Self::Concurrency { .. } => None,
        }
    }
}

/// A principal exceeded its rate of denials.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many requests of '{of}' are refused: limit {limit} per second, retry in {}s", seconds(*retry_after))]
pub struct TooManyRefusals {
    pub of: Box<str>,
    /// Maximum number of denials per second.
    pub limit: u32,
    /// Time until the next denial gets its own record.
    pub retry_after: Duration,
}

/// Whole seconds, rounded up, so that a retry is never too early.
fn seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

/// Suffix of the message that states the time waited for a slot.
fn without_slot(waited: Option<Duration>) -> String {
    let Some(waited) = waited else { return String::new() };
    let millis = waited.as_millis();
    match millis {
        0..1000 => format!("; none was free within {millis}ms"),
        _ => format!("; none was free within {}s", waited.as_secs()),
    }
}

impl Denial {
    /// Kind of the denial, from which each entry point derives its status.
    pub fn kind(&self) -> DenialKind {
        match self {
            Self::Intent(_) => DenialKind::Intent,
            Self::Gate(_) | Self::Unannotated(_) => DenialKind::Gate,
            Self::Approval(_) => DenialKind::Approval,
            Self::Scope { .. } | Self::Lapsed { .. } => DenialKind::Scope,
            Self::Quarantined(_) => DenialKind::Catalog,
            Self::Rule(_) => DenialKind::Rules,
            Self::Limit(_) => DenialKind::Limit,
        }
    }

    /// Names of the rules that decided, if any.
    pub fn rules(&self) -> &[Box<str>] {
        match self {
            Self::Rule(denial) => &denial.rules,
            _ => &[],
        }
    }

    /// Time until a retry may succeed, if known.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Limit(limit) => limit.retry_after(),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenialKind {
    /// Wrong input by the caller: REST 400.
    Intent,
    /// The tool is marked as doing more than the variant allows: REST 403.
    Gate,
    /// Not approved: REST 403.
    Approval,
    /// Outside the token's scope: REST 403.
    Scope,
    /// The tool's definition waits for an operator: REST 403.
    Catalog,
    /// The operator's rules: REST 403.
    Rules,
    /// A limit is exceeded: REST 429.
    Limit,
}

/// Warning about a request that is sent nevertheless. Its text appears in the log and the record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Warning {
    /// The annotation forbids the call, and `strict_server_validation` is off (FR-042).
    #[error("{0}; allowed, because strict_server_validation is false")]
    Mismatch(Mismatch),
    /// The read variant was used for a tool that is not marked read-only (FR-043).
    #[error(
        "Tool '{0}' is not marked read-only and was called by call_tool_read, call_tool_write is recommended"
    )]
    ReadOnUnannotated(ToolName),
    /// The write variant was used for a read-only tool.
    #[error("Tool '{tool}' is marked read-only by {by}, call_tool_read is sufficient")]
    WriteOnReadOnly {
        tool: ToolName,
        /// Origin of the read-only mark.
        by: StatedBy,
    },
    /// The rules deny the request, and `policy.mode` is `shadow`.
    #[error("{0}; allowed, because policy.mode is shadow")]
    Shadow(RuleDenial),
    /// The capability `approval: suggest` applies (CAP-8).
    #[error("Tool '{0}' suggests approval, and nobody was asked")]
    ApprovalSuggested(ToolName),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Tool '{tool}' is marked {} by {by}, use {}", needed.as_str(), needed.variant())]
pub struct Mismatch {
    pub tool: ToolName,
    /// Least privileged variant that may call the tool.
    pub needed: Operation,
    pub by: StatedBy,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cap_8_denial_texts_match_the_contract() {
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
