//! Refused requests: reason, response, record and metric.
//!
//! [`Refusal`] is the only type for a request that ends without an upstream's answer; its [`RefusalKind`] decides
//! the JSON-RPC form, the HTTP status and the metric (`contracts.md`, *errors*). [`RecordKind`] is the kind of the
//! request's record. Pure types.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use mcpproxy_activity::record::{Decision, Policy, Status, Type, Verdict};
use mcpproxy_policy::tool::ToolName;
use mcpproxy_policy::{
    Denial, DenialKind, ResourceRequest, TOOLS_CALL, TaskRequest, TooManyRefusals,
};
use mcpproxy_protocol::mcp::jsonrpc::{self, Code};
use mcpproxy_protocol::mcp::revisions::ProtocolFamily;
use mcpproxy_upstream::CallError;
use thiserror::Error;

use super::params::Forward;
use super::render::helping_result;
use super::shutdown::CUT_OFF;
use crate::telemetry::call_metrics::{self as calls, Outcome};

pub use crate::telemetry::call_metrics::RefusalKind;

/// Request that ends without an upstream's answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{text}")]
pub struct Refusal {
    /// Status in the record.
    pub(super) status: Status,
    pub kind: RefusalKind,
    /// One line that names server, tool and limit.
    pub text: String,
    /// Advice in an agent's terms; may be empty. Not shown over REST.
    pub advice: Cow<'static, str>,
    /// Help to correct the call, sent as a separate content block, or after the text in an error; may be empty.
    pub help: String,
    pub retry_after: Option<Duration>,
    /// Whether the same request may succeed later.
    pub(super) may_pass: bool,
}

/// Advice for an unknown tool.
pub(super) const FIND_TOOLS: &str = "Use retrieve_tools to find tools.";

impl Refusal {
    pub fn new(status: Status, kind: RefusalKind, text: String) -> Self {
        let (advice, help) = (Cow::Borrowed(""), String::new());
        let may_pass = kind.may_pass();
        Self { status, kind, text, advice, help, retry_after: None, may_pass }
    }

    pub fn rejected(kind: RefusalKind, text: String) -> Self {
        Self::new(Status::Rejected, kind, text)
    }

    pub(super) fn failed(kind: RefusalKind, text: String) -> Self {
        Self::new(Status::Error, kind, text)
    }

    /// Refusal of a request that cannot be read, or that names something that does not exist.
    pub(super) fn unreadable(text: String) -> Self {
        Self::rejected(RefusalKind::Unreadable, text)
    }

    /// Refusal of a request whose params cannot be read.
    pub(super) fn invalid_params(problem: impl fmt::Display) -> Self {
        Self::unreadable(format!("Invalid params: {problem}"))
    }

    /// Refusal of wrong parameters for a built-in tool.
    pub(super) fn of_parameters(text: String) -> Self {
        Self::rejected(RefusalKind::Parameters, text)
    }

    pub(super) fn upstream(error: &CallError) -> Self {
        Self::failed(RefusalKind::Upstream, error.to_string())
    }

    pub(super) fn no_server(name: &str) -> Self {
        Self::failed(RefusalKind::Unknown, format!("Server '{name}' not found"))
    }

    /// Refusal of a tool that is unknown, or invisible to the caller.
    pub(super) fn no_tool(name: &ToolName) -> Self {
        Self::failed(RefusalKind::Unknown, format!("Tool '{name}' not found")).advising(FIND_TOOLS)
    }

    /// Refusal of a call that was cut off by the shutdown of the proxy.
    pub(super) fn cut_off(server: &str, operation: &str) -> Self {
        Self::failed(RefusalKind::Unavailable, format!("{server}: {operation}: {CUT_OFF}"))
    }

    /// Refusal for a principal that has used up its share of the activity log (ACT-6).
    pub(super) fn over_share(principal: &str, retry_after: Duration) -> Self {
        let seconds = retry_after.as_secs() + u64::from(retry_after.subsec_nanos() > 0);
        let text = format!(
            "the activity log is over its budget and '{principal}' has taken more than its share: retry in {seconds}s"
        );
        let retry_after = Some(retry_after);
        Self { retry_after, ..Self::rejected(RefusalKind::Throttled, text) }
    }

    /// Turns the refusal into that of a throttled principal (ACT-10).
    fn throttled(self, too_many: &TooManyRefusals) -> Self {
        Self {
            kind: RefusalKind::Throttled,
            text: format!("{}; {too_many}", self.text),
            help: String::new(),
            retry_after: Some(too_many.retry_after),
            ..self
        }
    }

    pub(crate) fn advising(self, advice: impl Into<Cow<'static, str>>) -> Self {
        Self { advice: advice.into(), ..self }
    }

    pub(super) fn helping(self, help: String) -> Self {
        Self { help, ..self }
    }

    /// Text with the advice.
    fn for_agents(&self) -> Cow<'_, str> {
        match &*self.advice {
            "" => Cow::Borrowed(&self.text),
            advice => Cow::Owned(format!("{}. {advice}", self.text)),
        }
    }

    /// MCP response to the request with this raw id. Unreadable parameters and mismatching headers yield a JSON-RPC
    /// error; all others a tool result, from which an agent can correct its call.
    pub fn mcp_response(&self, family: ProtocolFamily, id: &[u8]) -> Bytes {
        let text = self.for_agents();
        let error = |code| match self.help.as_str() {
            "" => jsonrpc::error(Some(id), code, &text),
            help => jsonrpc::error(Some(id), code, &format!("{text}. {help}")),
        };
        match self.kind {
            RefusalKind::Unreadable => error(Code::InvalidParams),
            RefusalKind::Headers => error(Code::HeaderMismatch),
            RefusalKind::Failed => error(Code::Internal),
            RefusalKind::Throttled => error(Code::Throttled),
            RefusalKind::Parameters
            | RefusalKind::Intent
            | RefusalKind::Gate
            | RefusalKind::Arguments
            | RefusalKind::Limited
            | RefusalKind::Unknown
            | RefusalKind::Upstream
            | RefusalKind::Unavailable => {
                jsonrpc::response(id, &helping_result(family, &text, &self.help))
            }
        }
    }
}

impl RefusalKind {
    /// Whether the reason may be temporary: limits, and unavailable servers or parts of the proxy.
    fn may_pass(self) -> bool {
        match self {
            Self::Limited
            | Self::Throttled
            | Self::Unknown
            | Self::Upstream
            | Self::Failed
            | Self::Unavailable => true,
            Self::Unreadable
            | Self::Parameters
            | Self::Headers
            | Self::Intent
            | Self::Gate
            | Self::Arguments => false,
        }
    }

    /// HTTP status of [`Refusal::mcp_response`].
    pub fn mcp_status(self) -> StatusCode {
        match self {
            Self::Headers => StatusCode::BAD_REQUEST,
            Self::Throttled => StatusCode::TOO_MANY_REQUESTS,
            _ => StatusCode::OK,
        }
    }

    /// HTTP status over REST, where the text is that of the error.
    pub fn rest_status(self) -> StatusCode {
        match self {
            Self::Unreadable
            | Self::Parameters
            | Self::Headers
            | Self::Intent
            | Self::Arguments => StatusCode::BAD_REQUEST,
            Self::Gate => StatusCode::FORBIDDEN,
            Self::Limited | Self::Throttled => StatusCode::TOO_MANY_REQUESTS,
            Self::Unknown => StatusCode::NOT_FOUND,
            Self::Upstream | Self::Failed => StatusCode::BAD_GATEWAY,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// Reason why a request stops before an upstream has answered.
pub(super) enum Stopped {
    Refused(Refusal),
    /// The client must answer a question and repeat the request (MCP 2026-07-28 §Multi Round-Trip Requests).
    InputRequired {
        /// Complete result that asks.
        result: Bytes,
        /// Error text of the record.
        why: String,
    },
    /// The client did not declare a capability that the request needs.
    Lacking {
        /// Complete JSON-RPC error.
        error: Bytes,
        /// Error text of the record.
        why: String,
    },
}

impl Stopped {
    /// Whether the stop counts against the principal. Unavailability of the proxy does not.
    pub(super) fn counts(&self) -> bool {
        match self {
            Self::Refused(refusal) => refusal.kind != RefusalKind::Unavailable,
            Self::InputRequired { .. } | Self::Lacking { .. } => true,
        }
    }

    /// Turns the stop into the refusal of a throttled principal (ACT-10).
    pub(super) fn throttled(self, too_many: &TooManyRefusals) -> Self {
        let refusal = match self {
            Self::Refused(refusal) => refusal,
            Self::InputRequired { why, .. } | Self::Lacking { why, .. } => {
                Refusal::rejected(RefusalKind::Throttled, why)
            }
        };
        Self::Refused(refusal.throttled(too_many))
    }
}

impl From<Refusal> for Stopped {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Outcome that the metrics count for a record's status.
pub(super) fn outcome(status: Status) -> Outcome {
    match status {
        Status::Success | Status::Warning => Outcome::Success,
        // `Unknown` is the status of a call that an earlier process left unfinished.
        Status::Error | Status::Unknown => Outcome::Error,
        Status::Blocked => Outcome::Blocked,
        Status::Rejected => Outcome::Rejected,
    }
}

/// Decision that records a denial, and the kind of refusal that reports it.
pub(super) fn decision_about(denial: &Denial) -> (Decision, RefusalKind) {
    let (policy, kind) = match denial.kind() {
        DenialKind::Intent => (Policy::Intent, RefusalKind::Intent),
        DenialKind::Gate => (Policy::Intent, RefusalKind::Gate),
        DenialKind::Approval => (Policy::Approval, RefusalKind::Gate),
        DenialKind::Scope => (Policy::Scope, RefusalKind::Gate),
        DenialKind::Catalog => (Policy::Catalog, RefusalKind::Gate),
        DenialKind::Rules => (Policy::Rules, RefusalKind::Gate),
        DenialKind::Limit => (Policy::Limit, RefusalKind::Limited),
    };
    let mut decision = Decision::new(Verdict::Blocked, policy, denial.to_string());
    decision.rules = denial.rules().to_vec();
    (decision, kind)
}

pub(super) fn decision(decision: &Decision) -> calls::Decision {
    match (decision.policy, decision.verdict) {
        (Policy::OutputValidation, Verdict::Blocked) => calls::Decision::OutputBlocked,
        (Policy::OutputValidation, Verdict::Warning) => calls::Decision::OutputWarned,
        (Policy::InputValidation, Verdict::Blocked) => calls::Decision::InputBlocked,
        (Policy::InputValidation, Verdict::Warning) => calls::Decision::InputWarned,
        (Policy::Intent, Verdict::Blocked) => calls::Decision::IntentBlocked,
        (Policy::Intent, Verdict::Warning) => calls::Decision::IntentWarned,
        (Policy::Capability, Verdict::Blocked) => calls::Decision::CapabilityBlocked,
        (Policy::Capability, Verdict::Warning) => calls::Decision::CapabilityWarned,
        (Policy::Scope, Verdict::Blocked | Verdict::Warning) => calls::Decision::ScopeBlocked,
        (Policy::Catalog, Verdict::Blocked) => calls::Decision::CatalogBlocked,
        (Policy::Catalog, Verdict::Warning) => calls::Decision::CatalogWarned,
        (Policy::Rules, Verdict::Blocked) => calls::Decision::RulesBlocked,
        (Policy::Rules, Verdict::Warning) => calls::Decision::RulesWarned,
        (Policy::Limit, Verdict::Blocked | Verdict::Warning) => calls::Decision::LimitBlocked,
        (Policy::Approval, Verdict::Blocked | Verdict::Warning) => calls::Decision::ApprovalBlocked,
    }
}

/// Kind of request that a record describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordKind {
    /// A tool call, or an attempt at one, with the call tool's name; empty if unknown.
    ToolCall(&'static str),
    /// A call of a built-in tool.
    OwnTool,
    /// A request for a resource, prompt or completion.
    Forward(Forward),
    /// A method that no revision defines.
    Extension,
    /// A request about a task.
    Task {
        request: TaskRequest,
        /// Whether the request arrived at the endpoint of the call tools.
        at_call_tools: bool,
    },
}

impl RecordKind {
    pub(super) fn record_type(self) -> Type {
        match self {
            Self::ToolCall(_) => Type::ToolCall,
            Self::Forward(Forward::Resource(ResourceRequest::Read)) => Type::ResourceRead,
            Self::Forward(Forward::Prompt) => Type::PromptGet,
            Self::Forward(Forward::Completion) => Type::Completion,
            Self::OwnTool
            | Self::Extension
            | Self::Task { .. }
            | Self::Forward(Forward::Resource(
                ResourceRequest::Subscribe
                | ResourceRequest::Unsubscribe
                | ResourceRequest::ReadDirectory
                | ResourceRequest::GetSkill,
            )) => Type::InternalToolCall,
        }
    }

    /// MCP method of the request.
    pub(super) fn method(self) -> &'static str {
        match self {
            Self::ToolCall(_) | Self::OwnTool => TOOLS_CALL,
            Self::Forward(forward) => forward.method(),
            // Value that OpenTelemetry's semantic conventions define for methods that they do not list.
            Self::Extension => "_OTHER",
            Self::Task { request, .. } => request.method(),
        }
    }

    /// `tool_variant` of the record.
    pub(super) fn variant(self) -> &'static str {
        match self {
            Self::ToolCall(variant) => variant,
            _ => "",
        }
    }

    /// Maps a refusal's kind to the one that the client receives. Tool calls keep it. Other requests keep only
    /// `Unreadable`, `Headers` and `Throttled`; the rest become `Failed`, since only a tool result can state the reason.
    pub(super) fn refusal_kind(self, kind: RefusalKind) -> RefusalKind {
        match (self, kind) {
            (Self::ToolCall(_) | Self::OwnTool, kind)
            | (
                Self::Forward(_) | Self::Extension | Self::Task { .. },
                kind @ (RefusalKind::Unreadable | RefusalKind::Headers | RefusalKind::Throttled),
            ) => kind,
            (
                Self::Forward(_) | Self::Extension | Self::Task { .. },
                RefusalKind::Parameters
                | RefusalKind::Intent
                | RefusalKind::Gate
                | RefusalKind::Arguments
                | RefusalKind::Limited
                | RefusalKind::Unknown
                | RefusalKind::Upstream
                | RefusalKind::Failed
                | RefusalKind::Unavailable,
            ) => RefusalKind::Failed,
        }
    }
}
