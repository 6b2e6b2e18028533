//! Approvals of calls held by this node: their REST representation, and the decisions on them. Requests come from this
//! node or are forwarded by other nodes of a fleet.
//!
//! The revocation of a standing approval is made durable for the whole fleet before the request succeeds, so that
//! neither a crash nor a full disk lets other nodes continue to apply it.

use std::borrow::Cow;

use bytes::Bytes;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use super::response::{ApiError, encode, rfc_3339};
use mcpproxy_activity::record::{Draft, MAX_METADATA_BYTES, Raw, Source, Status, Text, Type};
use mcpproxy_fleet::facts::FactKind;
use mcpproxy_gateway::proxy::Worker;
use mcpproxy_policy::approvals::{
    AnswerChannel, AnswerError, AnsweredApproval, Answerer, ApprovalAnswer, ApprovalExtent,
    ApprovalVerdict, AskedCall, Decided, ForHowLong, KnownApproval, Outcome, StandingApproval,
    WaitingView,
};

/// Maximum size of arguments in a list, in bytes; a single approval shows them completely.
const LISTED_BYTES: usize = 4096;

/// Calls waiting on this node, oldest first.
pub(super) fn waiting_here(worker: &Worker) -> Vec<ApprovalView> {
    let waiting = worker.proxy.approvals.waiting();
    waiting.iter().map(|view| ApprovalView::waiting(view, LISTED_BYTES).at(worker)).collect()
}

/// Returns an approval known to this node.
pub(super) fn one_here(worker: &Worker, id: &str) -> Result<Bytes, ApiError> {
    let approval = match worker.proxy.approvals.get(id) {
        Some(KnownApproval::Waiting(view)) => ApprovalView::waiting(&view, usize::MAX),
        Some(KnownApproval::Over(decided)) => ApprovalView::decided(&decided),
        None => return Err(ApiError::new(StatusCode::NOT_FOUND, AnswerError::NotFound)),
    };
    Ok(encode(&One { approval: approval.at(worker) }))
}

/// Decides on a waiting call of this node, or revokes a standing approval. The revocation is shared with the fleet
/// before this returns.
pub(super) async fn answer_here(
    worker: &Worker,
    id: &str,
    body: &[u8],
    by: Answerer,
) -> Result<Bytes, ApiError> {
    let request: AnswerRequest = serde_json::from_slice(body).map_err(ApiError::bad_body)?;
    let (verdict, seen) = request.read().map_err(ApiError::bad_request)?;
    let answered = worker.proxy.approvals.answer(id, ApprovalAnswer { verdict, by, seen });
    let AnsweredApproval { decided, revoked } =
        answered.map_err(|why| ApiError::new(status_of(&why), why))?;
    if let Some(approval) = revoked {
        worker.proxy.activity.note(revocation(&approval, &decided.outcome));
    }
    share_end(worker, decided.id.as_str()).await?;
    Ok(encode(&One { approval: ApprovalView::decided(&decided).at(worker) }))
}

/// Builds the record of a revoked standing approval, because no waiting call records the revocation.
fn revocation(approval: &StandingApproval, outcome: &Outcome) -> Draft {
    let by = outcome.by();
    let source = match by.map(|by| by.channel) {
        Some(AnswerChannel::Cli) => Source::Cli,
        Some(AnswerChannel::Api | AnswerChannel::Page | AnswerChannel::Elicitation) | None => {
            Source::Api
        }
    };
    let mut draft = Draft::new(Type::Approval, source, Status::Success);
    let (server, tool) = approval.access.split_once(':').unwrap_or((&approval.access, ""));
    draft.set(Text::Server, server);
    draft.set(Text::Tool, tool);
    draft.set(Text::Principal, &approval.principal);
    draft.set(Text::SessionId, approval.session.as_deref().unwrap_or_default());
    let metadata = json!({
        "approval": approval.of.as_str(), "state": "revoked",
        "by": by.map(|by| &by.principal), "door": by.map(|by| by.channel.as_str()),
        "node": by.and_then(|by| by.node.as_deref()),
    });
    draft.keep(Raw::Metadata, metadata.to_string().as_bytes(), MAX_METADATA_BYTES);
    draft.has_own_metadata = true;
    draft
}

fn status_of(why: &AnswerError) -> StatusCode {
    match why {
        AnswerError::NotFound => StatusCode::NOT_FOUND,
        AnswerError::Over { .. }
        | AnswerError::OtherCall(_)
        | AnswerError::NoSession(_)
        | AnswerError::TooLong
        | AnswerError::TooMany(_) => StatusCode::CONFLICT,
    }
}

/// A decision on an approval.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AnswerRequest {
    decision: Decision,
    /// With `approve`: makes the approval a standing one for all calls of the tool, regardless of the arguments. The
    /// value is `session` or a time like `1h`, at most 24 hours. If omitted, only this call is approved.
    #[serde(rename = "for")]
    #[schema(pattern = "^(session|[1-9][0-9]?[smh])$")]
    how_long: Option<String>,
    /// Digest of the call that was reviewed. The decision is rejected if the digest belongs to a different call.
    #[schema(pattern = "^[0-9a-f]{64}$")]
    digest: Option<String>,
}

/// Decision on a waiting call.
#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = ApprovalDecision)]
enum Decision {
    Approve,
    Deny,
}

impl AnswerRequest {
    fn read(self) -> Result<(ApprovalVerdict, Option<Box<str>>), String> {
        let Self { decision, how_long, digest } = self;
        let is_digest = |text: &str| {
            text.len() == 64 && text.bytes().all(|it| matches!(it, b'0'..=b'9' | b'a'..=b'f'))
        };
        if digest.as_deref().is_some_and(|text| !is_digest(text)) {
            return Err("Invalid request body: digest must be 64 hexadecimal digits".to_owned());
        }
        let extent = match how_long.as_deref() {
            None => ApprovalExtent::Once,
            Some(text) => match ForHowLong::parse(text) {
                Some(ForHowLong::Time(time)) => ApprovalExtent::For(time),
                Some(ForHowLong::Session) => ApprovalExtent::Session,
                None => {
                    let text = "Invalid request body: for must be 'session' or a time like '1h'";
                    return Err(text.to_owned());
                }
            },
        };
        let verdict = match decision {
            Decision::Approve => ApprovalVerdict::Approve(extent),
            // `for` has no meaning here.
            Decision::Deny => ApprovalVerdict::Deny,
        };
        Ok((verdict, digest.map(String::into_boxed_str)))
    }
}

#[derive(Serialize, ToSchema)]
pub(super) struct One {
    approval: ApprovalView,
}

/// A call that waits for approval, or the decision on it.
#[derive(Default, Serialize, Deserialize, ToSchema)]
#[schema(as = CallApproval)]
pub(super) struct ApprovalView {
    id: String,
    /// `waiting`, `approved`, `denied`, `timed_out`, `withdrawn` (the client disconnected) or `ended` (the proxy stopped).
    #[schema(value_type = String)]
    state: Cow<'static, str>,
    /// `server:tool`, or another accessed item.
    access: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    call: Option<WaitingCall>,
    /// The principal that decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    by: Option<String>,
    /// The interface through which the decision came: `api`, `cli`, `page` or `elicitation`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    door: Option<Cow<'static, str>>,
    /// In a fleet: the node that received the decision, if a different node held the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    by_node: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime, nullable = false)]
    decided: Option<String>,
    /// In a fleet: the node that holds the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    node: Option<String>,
}

/// A call to be decided on.
#[derive(Serialize, Deserialize, ToSchema)]
struct WaitingCall {
    #[schema(value_type = String)]
    server_name: String,
    /// The tool without its server, or the MCP method.
    tool_name: String,
    /// `read`, `write` or `destructive`; empty if no tool is called.
    #[schema(value_type = String)]
    operation: Cow<'static, str>,
    /// Whether the call or the tool may be destructive.
    destructive: bool,
    /// The reason stated by the caller.
    reason: String,
    /// The arguments as JSON text.
    arguments: String,
    /// Size of all arguments in bytes.
    arguments_bytes: usize,
    /// The members of `_meta` that are forwarded to the server, as JSON; empty if there are none.
    #[serde(default)]
    meta: String,
    /// Size of all of `meta` in bytes.
    #[serde(default)]
    meta_bytes: usize,
    /// The request's `inputResponses`, as JSON; empty if there are none.
    #[serde(default)]
    inputs: String,
    /// Size of all of `inputs` in bytes.
    #[serde(default)]
    inputs_bytes: usize,
    /// Digest of the exact call.
    digest: String,
    /// The calling principal.
    principal: String,
    client_name: String,
    session_id: String,
    request_id: String,
    #[schema(format = DateTime)]
    since: String,
    /// Time at which the connection of the client broke; the call waits on, since the client may return.
    #[schema(format = DateTime)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    disconnected: Option<String>,
    /// Time at which the call is rejected if it is still waiting.
    #[schema(format = DateTime)]
    until: String,
}

impl ApprovalView {
    /// A waiting call, with at most `bytes` of its arguments, of its `_meta` and of its `inputResponses`.
    fn waiting(view: &WaitingView, bytes: usize) -> Self {
        let WaitingView { id, asked, since, until, disconnected } = view;
        let access = asked.pending.access();
        let AskedCall { arguments, meta, inputs, .. } = &**asked;
        let head =
            |text: &str| text.get(..text.floor_char_boundary(bytes)).unwrap_or(text).to_owned();
        let call = WaitingCall {
            server_name: access.server().to_string(),
            tool_name: access.label().to_owned(),
            operation: asked.operation.map_or("", |operation| operation.as_str()).into(),
            destructive: asked.destructive,
            reason: asked.reason.to_string(),
            arguments: head(arguments),
            arguments_bytes: arguments.len(),
            meta: head(meta),
            meta_bytes: meta.len(),
            inputs: head(inputs),
            inputs_bytes: inputs.len(),
            digest: asked.pending.digest().to_string(),
            principal: asked.pending.principal().id().to_owned(),
            client_name: asked.client.to_string(),
            session_id: asked.session.to_string(),
            request_id: asked.request_id.to_string(),
            since: rfc_3339(*since, 3),
            disconnected: disconnected.map(|at| rfc_3339(at, 3)),
            until: rfc_3339(*until, 3),
        };
        Self {
            id: id.to_string(),
            state: "waiting".into(),
            access: access.to_string(),
            call: Some(call),
            ..Self::default()
        }
    }

    fn decided(decided: &Decided) -> Self {
        let Decided { id, access, outcome, at } = decided;
        Self {
            id: id.to_string(),
            state: outcome.as_str().into(),
            access: access.to_string(),
            call: None,
            by: outcome.by().map(|by| by.principal.to_string()),
            door: outcome.by().map(|by| by.channel.as_str().into()),
            by_node: outcome.by().and_then(|by| by.node.as_deref()).map(str::to_owned),
            decided: Some(rfc_3339(*at, 3)),
            node: None,
        }
    }

    /// A call waiting since this time.
    #[cfg(test)]
    pub(super) fn of_since(since: &str) -> Self {
        let call = serde_json::json!({
            "server_name": "", "tool_name": "", "operation": "", "destructive": false, "reason": "",
            "arguments": "", "arguments_bytes": 0, "digest": "", "principal": "", "client_name": "",
            "session_id": "", "request_id": "", "since": since, "until": "",
        });
        Self { call: serde_json::from_value(call).ok(), ..Self::default() }
    }

    /// Start of the wait, by the clock of the node that holds the call.
    pub(super) fn since(&self) -> Option<String> {
        self.call.as_ref().map(|call| call.since.clone())
    }

    /// Sets the node to this one.
    fn at(self, worker: &Worker) -> Self {
        let node = worker.proxy.nodes.fleet_node().map(|node| node.name.as_str().to_owned());
        Self { node, ..self }
    }

    /// Sets the node to the one that reported the call.
    pub(super) fn held_by(self, node: &str) -> Self {
        Self { node: Some(node.to_owned()), ..self }
    }
}

/// A node whose waiting calls are unknown.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct UnseenNode {
    /// The node's name; empty if the membership of the fleet is unknown.
    pub(super) node: String,
    /// Reason why its waiting calls are unknown.
    pub(super) why: String,
}

/// Shares the revocation of a standing approval with the fleet, unless it is already shared. 503 if the revocation
/// cannot be made durable; it then applies only to this node.
pub(super) async fn share_end(worker: &Worker, id: &str) -> Result<(), ApiError> {
    let approvals = &worker.proxy.approvals;
    let Some(key) = approvals.unshared_revocation(id) else { return Ok(()) };
    let Some(facts) = worker.proxy.nodes.fleet_node().and_then(|node| node.shared()).cloned()
    else {
        // There is no fleet.
        approvals.mark_shared(&[key]);
        return Ok(());
    };
    let shared = tokio::task::spawn_blocking(move || {
        let node = facts.node().clone();
        facts.change(|set, _| set.forbid(&node, FactKind::StandingApproval, key.as_str())).map(drop)
    });
    let why = match shared.await {
        // The replication task notices that the revocation is shared.
        Ok(Ok(())) => return Ok(()),
        Ok(Err(error)) => error.to_string(),
        Err(error) => error.to_string(),
    };
    let text = format!(
        "Approval {id} is revoked on this node, but could not be shared with the other nodes: {why}; deny it again"
    );
    Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, text))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn read(body: &str) -> Result<ApprovalVerdict, String> {
        let request: AnswerRequest = serde_json::from_str(body).map_err(|it| it.to_string())?;
        request.read().map(|(verdict, _)| verdict)
    }

    #[test]
    fn decision_is_parsed_and_errors_name_the_member() {
        let hour = ApprovalExtent::For(Duration::from_secs(3600));
        for (body, verdict) in [
            (r#"{"decision":"approve"}"#, ApprovalVerdict::Approve(ApprovalExtent::Once)),
            (
                r#"{"decision":"approve","for":null}"#,
                ApprovalVerdict::Approve(ApprovalExtent::Once),
            ),
            (r#"{"decision":"approve","for":"1h"}"#, ApprovalVerdict::Approve(hour)),
            (
                r#"{"decision":"approve","for":"session"}"#,
                ApprovalVerdict::Approve(ApprovalExtent::Session),
            ),
            (r#"{"decision":"deny"}"#, ApprovalVerdict::Deny),
        ] {
            assert_eq!(read(body), Ok(verdict), "{body}");
        }
        for (body, named) in [
            ("{}", "decision"),
            (r#"{"decision":"maybe"}"#, "maybe"),
            (r#"{"decision":"approve","for":"ever"}"#, "for must be"),
            (r#"{"decision":"approve","digest":"x"}"#, "digest"),
            (r#"{"decision":"approve","fro":"1h"}"#, "fro"),
        ] {
            let wrong = read(body).unwrap_err();
            assert!(wrong.contains(named), "{body}: {wrong}");
        }
    }
}
