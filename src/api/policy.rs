//! `/api/v1/policy`: the rules in force; `POST …/explain`: which of them decide a call, and what each sees. Nothing is called.

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::query_parameters::Query;
use super::response::{ApiError, Success, encode};
use crate::intent::{Operation, Sensitivity};
use crate::policy::rules::{
    Explained, RuleAction, RuleOutcome, RuleRequest, RuleTarget, RulesDefault, Ruling, Saw, Subject,
};
use crate::policy::{ApprovalDemand, SessionFacts};
use crate::proxy::{Worker, incoming};
use crate::tool::{Tool, ToolName};

/// Most groups that are named.
const MAX_GROUPS: usize = 1000;

/// Most rules that are shown.
const MAX_LISTED: usize = 1000;
/// Most bytes of one rule's text that are shown.
const MAX_LISTED_BYTES: usize = 4096;

/// The rules in force.
#[derive(Serialize, ToSchema)]
struct RulesInForce<'a> {
    /// `enforce`, `shadow`, or `none` where there are no rules.
    #[schema(value_type = String, pattern = "^(enforce|shadow|none)$")]
    mode: &'static str,
    /// What is done where no rule fits: `allow` or `deny`.
    #[schema(value_type = String, pattern = "^(allow|deny)$")]
    default: &'static str,
    /// In the order of the files, at most 1000.
    rules: Vec<RuleInForce<'a>>,
    /// How many more there are.
    left_out: usize,
}

/// One rule as it is written.
#[derive(Serialize, ToSchema)]
struct RuleInForce<'a> {
    /// Its name.
    #[schema(value_type = String)]
    rule: &'a str,
    #[schema(value_type = String, pattern = "^(permit|forbid)$")]
    effect: &'static str,
    /// What the agent is told, or empty.
    #[schema(value_type = String)]
    message: &'a str,
    /// Whether a person can lift it: it asks for an approval.
    asks_a_person: bool,
    /// The file that it stands in.
    #[schema(value_type = String)]
    file: &'a str,
    /// Where it begins.
    line: usize,
    /// All of it, or its first 4096 bytes.
    #[schema(value_type = String)]
    text: &'a str,
}

/// Shows the rules in force.
#[utoipa::path(
    get,
    path = "/api/v1/policy",
    tag = "policy",
    operation_id = "getPolicy",
    responses((status = 200, description = "The rules", body = Success<RulesInForce<'_>>))
)]
pub(super) fn in_force(worker: &Worker, query: Query) -> Result<Bytes, ApiError> {
    query.finish()?;
    let settings = worker.settings();
    let Some(rules) = &settings.policy.rules else {
        return Ok(encode(&RulesInForce {
            mode: "none",
            default: "allow",
            rules: Vec::new(),
            left_out: 0,
        }));
    };
    let shown = rules.listed().take(MAX_LISTED).map(|rule| RuleInForce {
        rule: rule.name,
        effect: rule.effect,
        message: rule.message,
        asks_a_person: rule.approval == ApprovalDemand::Asked,
        file: rule.file,
        line: rule.line,
        text: rule.text.get(..rule.text.floor_char_boundary(MAX_LISTED_BYTES)).unwrap_or_default(),
    });
    let options = rules.options();
    Ok(encode(&RulesInForce {
        mode: options.mode.as_str(),
        default: match options.default {
            RulesDefault::Allow => "allow",
            RulesDefault::Deny => "deny",
        },
        rules: shown.collect(),
        left_out: rules.len().saturating_sub(MAX_LISTED),
    }))
}

/// The call that is asked about.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ExplainedCall {
    /// Who calls: `anonymous`, `admin`, `token:NAME`, `jwt:SUBJECT`, `cert:NAME`.
    #[schema(min_length = 1, max_length = 1024)]
    principal: String,
    /// The groups that the principal is in.
    #[serde(default)]
    #[schema(value_type = Vec<String>, max_items = 1000)]
    groups: Vec<Box<str>>,
    /// The tool as `server:tool`.
    #[schema(pattern = "^[^:]+:[^\\n]+$")]
    tool: String,
    /// By which call tool; what the tool is marked for where it is left out.
    #[serde(default)]
    #[schema(value_type = Option<CallAction>)]
    action: Option<Operation>,
    /// The tool's arguments.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    args: Option<Box<RawValue>>,
    /// `intent.data_sensitivity`
    #[serde(default)]
    #[schema(value_type = Option<DataSensitivity>)]
    sensitivity: Option<Sensitivity>,
    /// `intent.reason`
    #[serde(default)]
    #[schema(value_type = Option<String>, max_length = 1000)]
    reason: Option<String>,
    /// The client's own name.
    #[serde(default)]
    #[schema(value_type = Option<String>, max_length = 1024)]
    client: Option<String>,
}

/// What a call may do.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
#[expect(dead_code, reason = "only described")]
enum CallAction {
    Read,
    Write,
    Destructive,
}

/// How sensitive data is.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
#[expect(dead_code, reason = "only described")]
enum DataSensitivity {
    Public,
    Internal,
    Private,
    Unknown,
}

/// What the rules say.
#[derive(Serialize, ToSchema)]
struct Explanation {
    /// `allow` or `deny`.
    #[schema(value_type = String, pattern = "^(allow|deny)$")]
    decision: &'static str,
    /// The rules that decide; none where nothing but the default allows it.
    #[schema(value_type = Vec<String>)]
    decided_by: Vec<Box<str>>,
    /// What the agent is told of a refusal, or empty.
    text: String,
    /// `enforce`, `shadow`, or `none` where there are no rules.
    #[schema(value_type = String, pattern = "^(enforce|shadow|none)$")]
    mode: &'static str,
    /// The rules that the call meets.
    rules: Vec<MetRule>,
}

/// A rule that the call meets.
#[derive(Serialize, ToSchema)]
struct MetRule {
    /// Its name.
    #[schema(value_type = String)]
    rule: Box<str>,
    #[schema(value_type = String, pattern = "^(permit|forbid)$")]
    effect: &'static str,
    /// What its condition came to.
    #[schema(value_type = String, pattern = "^(holds|fails|error)$")]
    outcome: &'static str,
    /// Why it cannot be told, or empty.
    error: String,
    /// The file that it stands in.
    #[schema(value_type = String)]
    file: Arc<str>,
    /// Where it begins.
    line: usize,
    /// What it looks at.
    saw: Vec<SawValue>,
}

/// Something that a rule looks at.
#[derive(Serialize, ToSchema)]
struct SawValue {
    /// As the rule writes it.
    path: String,
    /// In Cedar's spelling; null for what is not there, or cannot be shown to rules.
    value: Option<String>,
}

impl From<Saw> for MetRule {
    fn from(saw: Saw) -> Self {
        let (outcome, error) = match saw.outcome {
            RuleOutcome::Holds => ("holds", String::new()),
            RuleOutcome::Fails => ("fails", String::new()),
            RuleOutcome::Errs(why) => ("error", why),
        };
        let value = |(path, value)| SawValue { path, value };
        Self {
            rule: saw.rule,
            effect: saw.effect,
            outcome,
            error,
            file: saw.file,
            line: saw.line,
            saw: saw.values.into_iter().map(value).collect(),
        }
    }
}

/// Explains which rules decide a call, and what each of them sees. Nothing is called, and nothing recorded.
#[utoipa::path(
    post,
    path = "/api/v1/policy/explain",
    tag = "policy",
    operation_id = "explainPolicy",
    request_body(content = ExplainedCall, description = "The call. No key may stand twice in any object."),
    responses(
        (status = 200, description = "What the rules say", body = Success<Explanation>),
        (status = 400, description = "The body or the query cannot be understood"),
        (status = 404, description = "There is no such tool"),
        (status = 408, description = "The body did not come in time"),
        (status = 413, description = "The body is too large"),
    )
)]
pub(super) fn explain(worker: &Worker, body: &Bytes) -> Result<Bytes, ApiError> {
    let bad = |text: String| ApiError::new(StatusCode::BAD_REQUEST, text);
    incoming::check(worker, body).map_err(bad)?;
    let asked: ExplainedCall = serde_json::from_slice(body)
        .map_err(|error| bad(format!("The body is no call: {error}")))?;
    if asked.principal.is_empty() || asked.groups.len() > MAX_GROUPS {
        return Err(bad("principal must be named, with at most 1000 groups".to_owned()));
    }
    let arguments = asked.args.as_deref().map_or("{}", RawValue::get);
    if !arguments.starts_with('{') {
        return Err(bad("args must be an object".to_owned()));
    }
    let tool = ToolName::parse(&asked.tool)
        .and_then(|name| worker.proxy.catalog.load().tool(&name).cloned())
        .ok_or_else(|| {
            ApiError::new(StatusCode::NOT_FOUND, format!("Tool '{}' not found", asked.tool))
        })?;
    let settings = worker.settings();
    let Some(rules) = &settings.policy.rules else {
        let ruling = Ruling::Permitted(Vec::new());
        return Ok(encode(&told(Explained { ruling, rules: Vec::new() }, "none")));
    };
    let explained = rules.explain(&request(&asked, &tool, arguments));
    let mode = rules.options().mode.as_str();
    Ok(encode(&told(explained, mode)))
}

fn request<'a>(
    asked: &'a ExplainedCall,
    tool: &'a Arc<Tool>,
    arguments: &'a str,
) -> RuleRequest<'a> {
    let operation = asked.action.unwrap_or(Operation::recommended(tool.capability));
    RuleRequest {
        subject: Subject { id: &asked.principal, groups: &asked.groups },
        action: RuleAction::from(operation),
        target: RuleTarget::Tool(tool),
        arguments: arguments.as_bytes(),
        sensitivity: asked.sensitivity,
        reason: asked.reason.as_deref().unwrap_or_default(),
        client: asked.client.as_deref().unwrap_or_default(),
        session: SessionFacts::default(),
        now: SystemTime::now(),
    }
}

fn told(explained: Explained, mode: &'static str) -> Explanation {
    let (decision, decided_by, text) = match explained.ruling {
        Ruling::Permitted(by) => ("allow", by, String::new()),
        Ruling::Refused(denial) => ("deny", denial.rules.clone(), denial.to_string()),
    };
    let rules = explained.rules.into_iter().map(MetRule::from).collect();
    Explanation { decision, decided_by, text, mode, rules }
}
