//! `/api/v1/policy`: the rules in force. `POST …/explain`: the rules that decide a given call and the values they evaluate.
//! `POST …/replay`: evaluation of recorded calls under other rules. Nothing is called.
//!
//! The evaluation of a record is in `proxy::rule_replay`, which the command line also uses. A replay request covers one
//! page of the log. The export thread reads a portion and a blocking thread evaluates it, in turns, until the page's
//! limit of records or time is reached. The client resumes at `next_cursor` and adds up the counts.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use http::StatusCode;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::activity::{ask, micros};
use super::query_parameters::BadQuery;
use super::reader_limits::Purpose;
use super::request::{ApiRequest, read_body};
use super::response::{ApiError, Success, encode};
use super::{reader_limits, tokens};
use mcpproxy_activity::{Activity, Filter, Id, PORTION, QueryError};
use mcpproxy_gateway::proxy::rule_replay::{ReplayReport, RuleReplay, UnreadableRecord, replayed};
use mcpproxy_gateway::proxy::{Worker, dispatch};
use mcpproxy_policy::intent::{Operation, Sensitivity};
use mcpproxy_policy::rules::{
    Explained, KnownTools, PRINCIPALS, RuleAction, RuleOptions, RuleOutcome, RulePlace,
    RuleProblem, RuleRequest, RuleSet, RuleTarget, RuleText, RuleTrace, RulesDefault, Ruling,
    Subject, is_principal,
};
use mcpproxy_policy::tool::{Approval, Tool, ToolName, Trust};
use mcpproxy_policy::{ApprovalDemand, SessionFacts, token_denial};

/// Maximum number of groups in a request.
const MAX_GROUPS: usize = 1000;

/// Maximum number of rules shown.
const MAX_LISTED: usize = 1000;
/// Maximum displayed length of a rule's text, in bytes.
const MAX_LISTED_BYTES: usize = 4096;

/// The rules in force.
#[derive(Serialize, ToSchema)]
struct RulesInForce<'a> {
    /// `enforce`, `shadow`, or `none` if there are no rules.
    #[schema(value_type = String, pattern = "^(enforce|shadow|none)$")]
    mode: &'static str,
    /// Decision if no rule applies: `allow` or `deny`.
    #[schema(value_type = String, pattern = "^(allow|deny)$")]
    default: &'static str,
    /// In the order of the files, at most 1000.
    rules: Vec<RuleInForce<'a>>,
    /// Number of further rules.
    left_out: usize,
}

/// A policy rule in force.
#[derive(Serialize, ToSchema)]
struct RuleInForce<'a> {
    /// The rule's name.
    #[schema(value_type = String)]
    rule: &'a str,
    #[schema(value_type = String, pattern = "^(permit|forbid)$")]
    effect: &'static str,
    /// Message for the agent, or empty.
    #[schema(value_type = String)]
    message: &'a str,
    /// Whether a person can approve the call.
    asks_a_person: bool,
    /// File that contains it.
    #[schema(value_type = String)]
    file: &'a str,
    /// Line where it starts.
    line: usize,
    /// The rule's text, at most 4096 bytes.
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
pub(super) async fn in_force(
    ApiRequest { worker, query, .. }: ApiRequest<'_>,
) -> Result<Bytes, ApiError> {
    query?.finish()?;
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

/// The call to explain.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ExplainedCall {
    /// The calling principal: `anonymous`, `admin`, `token:NAME`, `jwt:SUBJECT`, `cert:NAME`.
    #[schema(max_length = 1024, pattern = "^(anonymous$|admin$|token:|jwt:|cert:)")]
    principal: String,
    /// The principal's groups.
    #[serde(default)]
    #[schema(value_type = Vec<String>, max_items = 1000)]
    groups: Vec<Box<str>>,
    /// The tool as `server:tool`.
    #[schema(pattern = "^[^:]+:[^\\n]+$")]
    tool: String,
    /// Operation of the call tool. If omitted, it is the one recommended for the tool. Rules see the greater of the two.
    #[serde(default)]
    #[schema(value_type = Option<CallAction>)]
    action: Option<Operation>,
    /// The tool's arguments.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    args: Option<Box<RawValue>>,
    /// The value of `intent.data_sensitivity`.
    #[serde(default)]
    #[schema(value_type = Option<DataSensitivity>)]
    sensitivity: Option<Sensitivity>,
    /// The value of `intent.reason`.
    #[serde(default)]
    #[schema(value_type = Option<String>, max_length = 1000)]
    reason: Option<String>,
    /// The client's own name.
    #[serde(default)]
    #[schema(value_type = Option<String>, max_length = 1024)]
    client: Option<String>,
}

/// Operation of a call.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
#[expect(dead_code, reason = "describes the body in OpenAPI")]
enum CallAction {
    Read,
    Write,
    Destructive,
}

/// Sensitivity of data.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
#[expect(dead_code, reason = "describes the body in OpenAPI")]
enum DataSensitivity {
    Public,
    Internal,
    Private,
    Unknown,
}

/// Decision of the token's scope and of the rules.
#[derive(Serialize, ToSchema)]
struct Explanation {
    /// `allow` or `deny`.
    #[schema(value_type = String, pattern = "^(allow|deny)$")]
    decision: &'static str,
    /// Deciding rules; empty if the call is allowed by default, or denied by the token's scope.
    #[schema(value_type = Vec<String>)]
    decided_by: Vec<Box<str>>,
    /// Source of the decision: `token` if the token's scope excludes the call, `rules` if a rule decided, otherwise
    /// `default`.
    #[schema(value_type = String, pattern = "^(token|rules|default)$")]
    decider: &'static str,
    /// Action that the rules evaluate: the greater of the stated operation and the one recommended for the tool.
    #[schema(value_type = CallAction)]
    action: &'static str,
    /// Message for the agent if the call is denied. If it is allowed, a note on the principal, a required approval or
    /// the tool's quarantine; may be empty.
    text: String,
    /// `enforce`, `shadow`, or `none` if there are no rules.
    #[schema(value_type = String, pattern = "^(enforce|shadow|none)$")]
    mode: &'static str,
    /// The rules that apply to the call.
    rules: Vec<MetRule>,
    /// Rules about this principal and tool that do not apply, because they are for other actions.
    rules_for_other_actions: Vec<PlacedRule>,
}

/// A rule and its place.
#[derive(Serialize, ToSchema)]
struct PlacedRule {
    /// The rule's name.
    #[schema(value_type = String)]
    rule: Box<str>,
    #[schema(value_type = String, pattern = "^(permit|forbid)$")]
    effect: &'static str,
    /// File that contains it.
    #[schema(value_type = String)]
    file: Arc<str>,
    /// Line where it starts.
    line: usize,
}

impl From<RulePlace> for PlacedRule {
    fn from(RulePlace { rule, file, line, effect }: RulePlace) -> Self {
        Self { rule, effect, file, line }
    }
}

/// A rule that applies to the call.
#[derive(Serialize, ToSchema)]
struct MetRule {
    #[serde(flatten)]
    at: PlacedRule,
    /// Result of its condition.
    #[schema(value_type = String, pattern = "^(holds|does_not_hold|error)$")]
    outcome: &'static str,
    /// Evaluation error, or empty.
    error: String,
    /// Values that the rule evaluates.
    saw: Vec<SawValue>,
}

/// A value that a rule evaluates.
#[derive(Serialize, ToSchema)]
struct SawValue {
    /// Path as written in the rule.
    path: String,
    /// The value in Cedar syntax; null if it is absent or not available to rules.
    value: Option<String>,
}

impl From<RuleTrace> for MetRule {
    fn from(saw: RuleTrace) -> Self {
        let (outcome, error) = match saw.outcome {
            RuleOutcome::Holds => ("holds", String::new()),
            RuleOutcome::DoesNotHold => ("does_not_hold", String::new()),
            RuleOutcome::Errs(why) => ("error", why),
        };
        let value = |(path, value)| SawValue { path, value };
        Self { at: saw.at.into(), outcome, error, saw: saw.values.into_iter().map(value).collect() }
    }
}

/// Explains which rules decide a call, and which values each rule evaluates. Nothing is called or recorded.
#[utoipa::path(
    post,
    path = "/api/v1/policy/explain",
    tag = "policy",
    operation_id = "explainPolicy",
    request_body(content = ExplainedCall, description = "The call. Duplicate keys are rejected."),
    responses(
        (status = 200, description = "The decision of the rules", body = Success<Explanation>),
        (status = 400, description = "The body or the query is invalid"),
        (status = 404, description = "There is no such tool"),
        (status = 408, description = "The body was not received in time"),
        (status = 413, description = "The body is too large"),
    )
)]
pub(super) async fn explain(
    ApiRequest { worker, query, body, .. }: ApiRequest<'_>,
) -> Result<Bytes, ApiError> {
    let body = read_body(query, body).await?;
    dispatch::check(worker, &body).map_err(ApiError::bad_request)?;
    let asked: ExplainedCall = serde_json::from_slice(&body).map_err(ApiError::bad_body)?;
    if asked.principal.is_empty() || asked.groups.len() > MAX_GROUPS {
        return Err(ApiError::bad_request("principal is required, with at most 1000 groups"));
    }
    if !is_principal(&asked.principal) {
        let text = format!("Invalid principal '{}': principals are {PRINCIPALS}", asked.principal);
        return Err(ApiError::bad_request(text));
    }
    let arguments = asked.args.as_deref().map_or("{}", RawValue::get);
    if !arguments.starts_with('{') {
        return Err(ApiError::bad_request("args must be an object"));
    }
    let tool = ToolName::parse(&asked.tool)
        .and_then(|name| worker.proxy.catalog.load().tool(&name).cloned())
        .ok_or_else(|| {
            ApiError::new(StatusCode::NOT_FOUND, format!("Tool '{}' not found", asked.tool))
        })?;
    let of_token = token_outcome(worker, &asked, &tool).await?;
    let settings = worker.settings();
    let call = request(&asked, &tool, arguments);
    let (explained, mode) = match &settings.policy.rules {
        None => {
            let explained = Explained {
                ruling: Ruling::Permitted(Vec::new()),
                action: call.with_effective_action().action,
                rules: Vec::new(),
                rules_for_other_actions: Vec::new(),
            };
            (explained, "none")
        }
        Some(rules) => (rules.explain(&call), rules.options().mode.as_str()),
    };
    let mut explanation = explanation(explained, mode);
    match of_token {
        Some(TokenOutcome::Denied(text)) => {
            (explanation.decision, explanation.decider) = ("deny", "token");
            (explanation.decided_by, explanation.text) = (Vec::new(), text);
        }
        Some(TokenOutcome::Unknown(text)) if explanation.text.is_empty() => explanation.text = text,
        Some(TokenOutcome::Unknown(_)) | None => {}
    }
    if explanation.decision == "allow" && explanation.text.is_empty() {
        explanation.text = note_on_allowed_call(&tool).to_owned();
    }
    Ok(encode(&explanation))
}

/// Note on an allowed call of a tool that is in quarantine or waits for a person; empty for other tools.
fn note_on_allowed_call(tool: &Tool) -> &'static str {
    match (tool.trust, tool.capability.approval) {
        (Trust::Withheld, _) => {
            "the rules allow it, but the tool's definition is in quarantine, and its calls are refused"
        }
        (Trust::Given, Approval::Required) => {
            "after a person's approval, which the tool's capabilities require, or by a standing approval"
        }
        (Trust::Given, Approval::Auto | Approval::Suggest) => "",
    }
}

/// Effect of the principal's token on a call.
enum TokenOutcome {
    /// The token's scope does not include the call. Holds the message for the agent.
    Denied(String),
    /// The token does not exist. Holds a note for the reader.
    Unknown(String),
}

/// Checks the scope of the principal's token before the rules, as is done for a call.
async fn token_outcome(
    worker: &Worker,
    asked: &ExplainedCall,
    tool: &Tool,
) -> Result<Option<TokenOutcome>, ApiError> {
    let Some(name) = asked.principal.strip_prefix("token:") else { return Ok(None) };
    let stored = tokens::stored(worker).await?;
    let Some(token) = stored.iter().find(|token| *token.name == *name) else {
        let text = format!(
            "there is no token '{name}', so only the rules were evaluated; its calls get a 401"
        );
        return Ok(Some(TokenOutcome::Unknown(text)));
    };
    let operation = asked.action.unwrap_or(Operation::recommended(tool.capability));
    let denial = token_denial(name, &token.scope(), tool, operation);
    Ok(denial.map(|denial| TokenOutcome::Denied(denial.to_string())))
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
        carries_out: false,
        now: SystemTime::now(),
    }
}

fn explanation(explained: Explained, mode: &'static str) -> Explanation {
    let (decision, decided_by, text) = match explained.ruling {
        Ruling::Permitted(by) => ("allow", by, String::new()),
        Ruling::Refused(denial) => ("deny", denial.rules.clone(), denial.to_string()),
    };
    let other_actions = explained.rules_for_other_actions.into_iter().map(PlacedRule::from);
    Explanation {
        decision,
        decider: if decided_by.is_empty() { "default" } else { "rules" },
        decided_by,
        action: explained.action.as_str(),
        text,
        mode,
        rules: explained.rules.into_iter().map(MetRule::from).collect(),
        rules_for_other_actions: other_actions.collect(),
    }
}

/// Approximate maximum number of records per page of a replay. The last portion may exceed it.
const MAX_RECORDS: u64 = 50_000;
/// Time after which a page of a replay starts no further portion.
const MAX_TIME: Duration = Duration::from_secs(5);
/// File name in problems of submitted rules.
const FILE: &str = "rules";

/// Rules and calls of a replay.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReplayRequest {
    /// Rules in Cedar to compare with the rules in force. If omitted, the rules in force, including those in shadow
    /// mode, are compared with no rules.
    #[serde(default)]
    #[schema(max_length = 1_048_576)]
    rules: Option<String>,
    /// Calls that started at this time or later.
    #[serde(default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    start_time: Option<Timestamp>,
    /// `next_cursor` of the previous page.
    #[serde(default)]
    #[schema(pattern = "^[0-7][0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{25}$")]
    cursor: Option<String>,
}

/// Result of a page of a replay.
#[derive(Serialize, ToSchema)]
struct ReplayedPage<'a> {
    /// Number of evaluated rules.
    rules: usize,
    /// Number of records examined for this page.
    read: u64,
    /// `cursor` of the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    next_cursor: Option<String>,
    #[serde(flatten)]
    #[schema(inline)]
    report: ReplayReport<'a>,
}

/// Evaluates recorded calls under other rules and compares the decisions with those of the rules in force, oldest call
/// first, for about 50000 records or 5 seconds per page. Nothing is called or changed.
#[utoipa::path(
    post,
    path = "/api/v1/policy/replay",
    tag = "policy",
    operation_id = "replayPolicy",
    request_body(content = ReplayRequest, description = "The rules, and where to start. Duplicate keys are rejected."),
    responses(
        (status = 200, description = "The changed decisions", body = Success<ReplayedPage<'_>>),
        (status = 400, description = "The body, the query or the rules are invalid, or there are no rules"),
        (status = 408, description = "The body was not received in time"),
        (status = 413, description = "The body is too large"),
        (status = 500, description = "The log cannot be read"),
        (status = 503, description = "Too many readers of the log, or pending records were not stored in time",
            headers(("Retry-After" = u64, description = "Seconds; if there are too many readers"))),
    )
)]
pub(super) async fn replay(
    ApiRequest { state, worker, connection, query, body, .. }: ApiRequest<'_>,
) -> Result<Bytes, ApiError> {
    let body = read_body(query, body).await?;
    dispatch::check(worker, &body).map_err(ApiError::bad_request)?;
    // Serde would accept an array instead of an object.
    let read = serde_json::from_slice(&body).map(Value::Object);
    let asked: ReplayRequest = read.and_then(serde_json::from_value).map_err(ApiError::bad_body)?;
    let begins = match asked.cursor {
        None => 0,
        Some(text) => Id::parse(&text).ok_or_else(|| BadQuery::cursor(text))?.seq(),
    };
    let _slot = state.readers.enter(Purpose::Export, connection.source)?;
    let filter = Filter { since: asked.start_time.map(micros), ..replayed() };
    let replay = load_rules(worker, asked.rules).await?;
    let rules = replay.rules();
    let activity = worker.proxy.activity.clone();
    let view = ask(worker, Activity::view).await?;
    let (node, seq, last) = (view.node(), begins.max(view.first() - 1), view.next() - 1);
    // The view would keep removed records on disk during the scan.
    drop(view);
    let mut walk = LogWalk { activity, filter, replay, seq, last, read: 0 };
    let deadline = Instant::now() + MAX_TIME;
    while walk.seq < walk.last && walk.read < MAX_RECORDS && Instant::now() < deadline {
        walk = walk.portion().await?;
    }
    // The cursor is a position between two records, valid even if either is removed.
    let next_cursor = (walk.seq < walk.last).then(|| Id::new(0, walk.seq, node).to_string());
    Ok(encode(&ReplayedPage { rules, read: walk.read, next_cursor, report: walk.replay.report() }))
}

/// Loads and checks the rules.
async fn load_rules(worker: &Worker, given: Option<String>) -> Result<RuleReplay, ApiError> {
    let snapshot = worker.proxy.catalog.load();
    let in_force = worker.settings().policy.rules.clone();
    let options = in_force.as_ref().map(|rules| rules.options()).unwrap_or_default();
    let servers = worker.proxy.upstreams.iter().map(|it| (Arc::clone(it.name()), None)).collect();
    let known = snapshot.known_tools(&KnownTools { servers, tokens: Vec::new() });
    let read = tokio::task::spawn_blocking(move || {
        let none = || RuleSet::load(&[], RuleOptions::default(), None).map(Arc::new);
        let before = in_force.clone().map_or_else(none, Ok)?;
        Ok::<_, Vec<RuleProblem>>(match given {
            Some(text) => {
                let text = RuleText { file: FILE.into(), text };
                (before, Some(Arc::new(RuleSet::load(&[text], options, Some(&known))?)))
            }
            None => (none()?, in_force),
        })
    });
    let read = read.await.map_err(ApiError::internal)?;
    let (now, new) = read.map_err(|problems| refused(&problems))?;
    let Some(new) = new else {
        let text = "There are no rules in force, and `rules` is missing";
        return Err(ApiError::bad_request(text));
    };
    Ok(RuleReplay::new(now, new, snapshot))
}

/// Error for invalid rules, with the first problem and the number of further ones.
fn refused(problems: &[RuleProblem]) -> ApiError {
    let first = problems.iter().find(|it| it.is_error()).or(problems.first());
    let first = first.map(ToString::to_string).unwrap_or_default();
    let more = match problems.len().saturating_sub(1) {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    ApiError::bad_request(format!("{first}{more}"))
}

/// Scan of the log.
struct LogWalk {
    activity: Activity,
    filter: Filter,
    replay: RuleReplay,
    /// Number of the last examined record.
    seq: u64,
    /// Number of the last record to examine.
    last: u64,
    /// Number of examined records.
    read: u64,
}

impl LogWalk {
    /// Evaluates the next portion of records.
    async fn portion(mut self) -> Result<Self, ApiError> {
        let (activity, filter) = (self.activity.clone(), self.filter.clone());
        let (seq, last) = (self.seq, self.last);
        let read = activity.run_on_reader(move |activity| {
            let view = activity.stored()?.up_to(last);
            Ok::<_, QueryError>(view.since(seq, &filter, PORTION)?)
        });
        let (records, seq) = read.await??;
        self.read += seq.saturating_sub(self.seq);
        self.seq = seq;
        let judged = tokio::task::spawn_blocking(move || {
            let mut line = Vec::new();
            for record in &records {
                line.clear();
                reader_limits::one_line(record, &mut line);
                self.replay.record(&line)?;
            }
            Ok::<_, UnreadableRecord>(self)
        });
        judged.await.map_err(ApiError::internal)?.map_err(ApiError::internal)
    }
}
