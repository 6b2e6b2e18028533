//! `/api/v1/approvals…`: calls waiting for approval, and the decisions on them (CAP-8). Restricted to the holder of the API key.
//!
//! In a fleet an approval id identifies the node that holds the call. A request to another node is forwarded to it in
//! one hop, and that node decides. Calls of a stopped node ended with it (410); if a node is unreachable, the state of
//! its calls is unknown (503).

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::call::SOURCE;
use super::local_approvals::{
    AnswerRequest, ApprovalView, One, UnseenNode, answer_here, one_here, waiting_here,
};
use super::query_parameters::decode_segment;
use super::request::ApiRequest;
use super::response::{ApiError, Success, encode, rfc_3339};
use mcpproxy_downstream::body::Body;
use mcpproxy_fleet::FleetNode;
use mcpproxy_fleet::failure_detector::{Membership, NodeState, NodeView};
use mcpproxy_fleet::node_state::NodeTag;
use mcpproxy_fleet::peer_wire::PeerRoute;
use mcpproxy_fleet::peers::{Hop, PeerError};
use mcpproxy_gateway::proxy::{Worker, dispatch};
use mcpproxy_policy::Principal;
use mcpproxy_policy::approvals::{
    AnswerChannel, Answerer, ApprovalId, MAX_TIMEOUT, StandingApproval,
};

/// Lists waiting calls, oldest first, and standing approvals; in a fleet, of all nodes.
#[utoipa::path(
    get,
    path = "/api/v1/approvals",
    tag = "approvals",
    operation_id = "listApprovals",
    responses(
        (status = 200, description = "Waiting calls and standing approvals", body = Success<Approvals>),
        (status = 403, description = "Only the holder of the API key may list and decide approvals; or Host or Origin is not allowed"),
    )
)]
pub(super) async fn list(
    ApiRequest { worker, principal, query, .. }: ApiRequest<'_>,
) -> Result<Bytes, ApiError> {
    query?.finish()?;
    admin(principal)?;
    let (mut unseen, mut answered, mut left_out) = (None, None, None);
    let approvals = match gather(worker).await {
        Some(all) => {
            left_out = Some(all.left_out).filter(|more| *more > 0);
            unseen = Some(all.unseen);
            answered = Some(all.answered);
            all.approvals
        }
        None => waiting_here(worker),
    };
    let standing = worker.proxy.approvals.standing().iter().map(Standing::from).collect();
    Ok(encode(&Approvals { approvals, standing, unseen, heard: answered, left_out }))
}

/// Shows an approval, with all arguments while the call waits. Decided approvals remain visible for some time.
#[utoipa::path(
    get,
    path = "/api/v1/approvals/{id}",
    tag = "approvals",
    operation_id = "getApproval",
    params(("id" = String, Path, description = "The approval's id", pattern = "^[0-9a-z]{16}(-[0-9a-z]{7})?$")),
    responses(
        (status = 200, description = "The approval", body = Success<One>),
        (status = 403, description = "Only the holder of the API key may list and decide approvals; or Host or Origin is not allowed"),
        (status = 404, description = "No such approval exists, or it is no longer kept"),
        (status = 410, description = "The node that held the call has stopped, or has sent no heartbeat for longer than a call can wait: the call has ended"),
        (status = 502, description = "The node that holds the call was asked and did not answer"),
        (status = 503, description = "The node that holds the call cannot be reached, or has sent no recent heartbeat"),
    )
)]
pub(super) async fn one(
    ApiRequest { worker, principal, segment, query, .. }: ApiRequest<'_>,
) -> Result<Bytes, ApiError> {
    query?.finish()?;
    admin(principal)?;
    let id = decode_segment(segment)?;
    let known = one_here(worker, &id);
    if let Err(ApiError { status: StatusCode::NOT_FOUND, .. }) = known
        && let Some(elsewhere) = Elsewhere::of(worker, &id)?
    {
        return elsewhere.one(&id).await;
    }
    known
}

/// Decides on an approval. The first decision counts, regardless of the interface or fleet node that receives it; the
/// node that holds the call decides.
///
/// With `for`, the approval becomes a standing one: during that time every call of the same tool by the same principal
/// is permitted, regardless of its arguments, unless the server changes the tool's definition. A later `deny` of the
/// same approval revokes it.
#[utoipa::path(
    post,
    path = "/api/v1/approvals/{id}",
    tag = "approvals",
    operation_id = "answerApproval",
    params(("id" = String, Path, description = "The approval's id", pattern = "^[0-9a-z]{16}(-[0-9a-z]{7})?$")),
    request_body(content = AnswerRequest, description = "The decision. Duplicate keys are rejected."),
    responses(
        (status = 200, description = "The decision was accepted", body = Success<One>),
        (status = 400, description = "The body or the query is invalid"),
        (status = 403, description = "Only the holder of the API key may list and decide approvals; or Host or Origin is not allowed"),
        (status = 404, description = "No such approval exists, or it is no longer kept"),
        (status = 410, description = "The node that held the call has stopped, or has sent no heartbeat for longer than a call can wait: the call has ended"),
        (status = 502, description = "The node that holds the call was asked and did not answer: it is unknown whether the decision was applied"),
        (status = 503, description = "The node that holds the call cannot be reached, or has sent no recent heartbeat: nothing has changed. Or a standing approval was revoked on this node, but could not be shared with the other nodes"),
        (status = 408, description = "The body was not received in time"),
        (status = 409, description = "It is already decided, the digest is that of another call, or the requested time is too long"),
        (status = 413, description = "The body is too large"),
    )
)]
pub(super) async fn answer(
    ApiRequest { worker, principal, parts, segment, query, body, .. }: ApiRequest<'_>,
) -> Result<Bytes, ApiError> {
    let (query, body) = (query?, body.await?);
    query.finish()?;
    admin(principal)?;
    let id = decode_segment(segment)?;
    dispatch::check(worker, &body).map_err(ApiError::bad_request)?;
    let by = Answerer::here(principal.id(), channel(&parts.headers));
    let answered = answer_here(worker, &id, &body, by.clone()).await;
    if let Err(ApiError { status: StatusCode::NOT_FOUND, .. }) = answered
        && let Some(elsewhere) = Elsewhere::of(worker, &id)?
    {
        return elsewhere.answer(&id, &body, &by).await;
    }
    answered
}

/// Rejects all principals except the admin, because callers must not approve their own calls.
fn admin(principal: &Principal) -> Result<(), ApiError> {
    match principal {
        Principal::Admin => Ok(()),
        Principal::Anonymous
        | Principal::Token(_)
        | Principal::Subject(_)
        | Principal::Certificate(_) => {
            Err(ApiError::new(StatusCode::FORBIDDEN, "Approvals require the API key"))
        }
    }
}

fn channel(headers: &HeaderMap) -> AnswerChannel {
    match headers.get(SOURCE).map(http::HeaderValue::as_bytes) {
        Some(b"cli") => AnswerChannel::Cli,
        Some(b"page") => AnswerChannel::Page,
        Some(_) | None => AnswerChannel::Api,
    }
}

#[derive(Serialize, ToSchema)]
struct Approvals {
    approvals: Vec<ApprovalView>,
    /// Standing approvals.
    standing: Vec<Standing>,
    /// In a fleet: nodes whose waiting calls are unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    unseen: Option<Vec<UnseenNode>>,
    /// In a fleet: nodes that reported their waiting calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    heard: Option<Vec<String>>,
    /// In a fleet: number of waiting calls beyond those listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    left_out: Option<usize>,
}

/// A standing approval.
#[derive(Serialize, ToSchema)]
#[schema(as = StandingApproval)]
struct Standing {
    /// Id of the approval that created it; a `deny` of this id revokes it.
    id: String,
    access: String,
    /// The principal whose calls it permits.
    principal: String,
    /// The session that it is limited to, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    session_id: Option<String>,
    /// The principal that gave it.
    by: String,
    #[schema(value_type = String)]
    door: &'static str,
    /// In a fleet: the node that received the decision, if it was a different node.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    by_node: Option<String>,
    #[schema(format = DateTime)]
    until: String,
}

impl From<&StandingApproval> for Standing {
    fn from(approval: &StandingApproval) -> Self {
        Self {
            id: approval.of.to_string(),
            access: approval.access.to_string(),
            principal: approval.principal.to_string(),
            session_id: approval.session.as_deref().map(str::to_owned),
            by: approval.by.principal.to_string(),
            door: approval.by.channel.as_str(),
            by_node: approval.by.node.as_deref().map(str::to_owned),
            until: rfc_3339(approval.until, 3),
        }
    }
}

/// Maximum number of nodes queried concurrently.
const ASKED_TOGETHER: usize = 16;
/// Timeout for the list of one node.
const LIST_LIMIT: Duration = Duration::from_secs(3);
/// Timeout for the lists of all nodes.
const GATHER_LIMIT: Duration = Duration::from_secs(10);
/// Timeout for one approval on another node. It exceeds the time allowed for connecting to the node and receiving its
/// first byte.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);
/// `Retry-After` while the membership of the fleet is unknown.
const ASK_AGAIN: Duration = Duration::from_secs(2);
/// Maximum number of calls in the list of a fleet.
const MAX_LISTED: usize = 4096;
/// Maximum size of a node's list in bytes.
const MAX_LIST_BYTES: usize = 16 << 20;
/// Maximum size of one approval with all its arguments in bytes; JSON escapes may expand a byte to six.
const MAX_ONE_BYTES: usize = 4 << 20;

/// Kind of request to the node that holds a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PeerApprovalAction {
    List,
    One,
    Answer,
}

/// Request to the node that holds a call.
#[derive(Serialize, Deserialize)]
struct PeerApprovalRequest<'a> {
    ask: PeerApprovalAction,
    #[serde(default)]
    id: String,
    /// The body of the REST request.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    answer: Option<&'a RawValue>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    by: Option<PeerAnswerer>,
}

impl PeerApprovalRequest<'_> {
    /// Creates a request without a decision.
    fn new(ask: PeerApprovalAction, id: &str) -> Self {
        Self { ask, id: id.to_owned(), answer: None, by: None }
    }
}

/// The person who decides, as authenticated by the node that received the request.
#[derive(Serialize, Deserialize)]
struct PeerAnswerer {
    principal: String,
    door: String,
}

#[derive(Serialize, Deserialize)]
struct Listed {
    approvals: Vec<ApprovalView>,
}

/// Waiting calls of all nodes that answered.
#[derive(Default)]
pub(super) struct Gathered {
    /// Waiting calls, oldest first, at most [`MAX_LISTED`].
    pub(super) approvals: Vec<ApprovalView>,
    /// Number of further waiting calls.
    pub(super) left_out: usize,
    pub(super) unseen: Vec<UnseenNode>,
    /// Nodes that reported their waiting calls, including this one.
    pub(super) answered: Vec<String>,
}

impl Gathered {
    fn add(&mut self, approvals: impl IntoIterator<Item = ApprovalView>) {
        self.approvals.extend(approvals);
        self.approvals.sort_by_cached_key(ApprovalView::since);
        self.left_out += self.approvals.len().saturating_sub(MAX_LISTED);
        self.approvals.truncate(MAX_LISTED);
    }

    fn add_unseen(&mut self, node: &str, why: String) {
        self.unseen.push(UnseenNode { node: node.to_owned(), why });
    }
}

/// Collects the waiting calls of this node and of the other living nodes; `None` without a fleet.
pub(super) async fn gather(worker: &Worker) -> Option<Gathered> {
    let node = worker.proxy.nodes.fleet_node()?;
    let living = node.living();
    let mut gathered = Gathered { unseen: unseen(&living), ..Gathered::default() };
    gathered.add(waiting_here(worker));
    gathered.answered.push(node.name.as_str().to_owned());
    let others: Vec<_> = living.living().filter(|view| view.name != node.name).collect();
    let mut left: BTreeSet<&str> = others.iter().map(|view| view.name.as_str()).collect();
    let asked = others.iter().map(|view| async move {
        let name = view.name.as_str();
        let listed = tokio::time::timeout(LIST_LIMIT, listed(node, name)).await;
        let late = || format!("node '{name}' did not answer within {} s", LIST_LIMIT.as_secs());
        (name, listed.unwrap_or_else(|_| Err(late())))
    });
    let mut asked = stream::iter(asked).buffer_unordered(ASKED_TOGETHER);
    let until = tokio::time::Instant::now() + GATHER_LIMIT;
    while let Ok(Some((name, listed))) = tokio::time::timeout_at(until, asked.next()).await {
        left.remove(name);
        match listed {
            Ok(listed) => {
                gathered.add(listed.approvals.into_iter().map(|it| it.held_by(name)));
                gathered.answered.push(name.to_owned());
            }
            Err(why) => gathered.add_unseen(name, why),
        }
    }
    for name in left {
        let seconds = GATHER_LIMIT.as_secs();
        gathered
            .add_unseen(name, format!("node '{name}' did not answer within {seconds} s in total"));
    }
    Some(gathered)
}

/// Nodes that are not queried, but may hold calls.
fn unseen(living: &Membership) -> Vec<UnseenNode> {
    let mut unseen = Vec::new();
    if let Some(why) = living.undecided_reason().filter(|_| living.may_be_incomplete()) {
        unseen.push(UnseenNode { node: String::new(), why });
    }
    for view in living.all().iter().filter(|view| !view.is_self && !has_no_calls(view)) {
        let name = view.name.as_str();
        let why = match view.state {
            NodeState::Alive | NodeState::Stopped => continue,
            NodeState::Unknown => {
                format!("node '{name}' was not queried: its state is not known yet")
            }
            NodeState::Dead => {
                let seconds = view.silent_ms / 1000;
                format!("node '{name}' was not queried: no heartbeat for {seconds} s")
            }
        };
        unseen.push(UnseenNode { node: name.to_owned(), why });
    }
    unseen
}

/// Whether the node can no longer hold waiting calls, regardless of its state.
fn has_no_calls(view: &NodeView) -> bool {
    match view.state {
        NodeState::Alive => false,
        NodeState::Stopped => true,
        NodeState::Dead | NodeState::Unknown => {
            u128::from(view.silent_ms) > MAX_TIMEOUT.as_millis()
        }
    }
}

async fn listed(node: &FleetNode, name: &str) -> Result<Listed, String> {
    let request = PeerApprovalRequest::new(PeerApprovalAction::List, "");
    let (status, body) =
        ask(node, name, &request, MAX_LIST_BYTES).await.map_err(|it| it.to_string())?;
    if status != StatusCode::OK {
        return Err(format!("node '{name}' answered {}", status.as_u16()));
    }
    serde_json::from_slice(&body).map_err(|error| format!("node '{name}': {error}"))
}

async fn ask(
    node: &FleetNode,
    name: &str,
    request: &PeerApprovalRequest<'_>,
    limit: usize,
) -> Result<(StatusCode, Bytes), PeerError> {
    let none = || PeerError::NotAdvertised(node.name.as_str().to_owned());
    let peers = node.peers().ok_or_else(none)?;
    let answer = peers.request(name, PeerRoute::Approval, encode(request), Hop::First).await?;
    let status = answer.status();
    Ok((status, answer.into_body().whole(limit).await?))
}

/// The other node that holds a call, as stated by the call's id.
pub(super) struct Elsewhere<'a> {
    node: &'a FleetNode,
    holder: Box<str>,
}

impl<'a> Elsewhere<'a> {
    /// Finds the node that holds the call; `None` if it is this node or unknown. An error if the node has stopped or
    /// its state is unknown.
    pub(super) fn of(worker: &'a Worker, id: &str) -> Result<Option<Self>, ApiError> {
        let (Some(node), Some(mark)) = (worker.proxy.nodes.fleet_node(), ApprovalId::node_in(id))
        else {
            return Ok(None);
        };
        if NodeTag::of(&node.name).text() == mark {
            return Ok(None);
        }
        let living = node.living();
        let Some(view) = holder(&living, id, mark)? else { return Ok(None) };
        match view.state {
            NodeState::Alive => Ok(Some(Self { node, holder: view.name.as_str().into() })),
            NodeState::Dead | NodeState::Stopped | NodeState::Unknown => {
                Err(unreachable(id, view.name.as_str(), Some(view)))
            }
        }
    }

    pub(super) async fn one(&self, id: &str) -> Result<Bytes, ApiError> {
        self.asked(id, PeerApprovalRequest::new(PeerApprovalAction::One, id)).await
    }

    /// Forwards a decision; `body` is JSON.
    pub(super) async fn answer(
        &self,
        id: &str,
        body: &[u8],
        by: &Answerer,
    ) -> Result<Bytes, ApiError> {
        let answer = serde_json::from_slice(body).map_err(ApiError::bad_body)?;
        let Answerer { principal, channel, node: _ } = by;
        let by =
            PeerAnswerer { principal: principal.to_string(), door: channel.as_str().to_owned() };
        let request = PeerApprovalRequest {
            answer: Some(answer),
            by: Some(by),
            ..PeerApprovalRequest::new(PeerApprovalAction::Answer, id)
        };
        self.asked(id, request).await
    }

    async fn asked(&self, id: &str, request: PeerApprovalRequest<'_>) -> Result<Bytes, ApiError> {
        let Self { node, holder } = self;
        match in_time(holder, ANSWER_LIMIT, ask(node, holder, &request, MAX_ONE_BYTES)).await {
            Ok((StatusCode::OK, data)) => Ok(data),
            Ok((status, text)) => Err(ApiError::new(status, String::from_utf8_lossy(&text))),
            Err(PeerError::Gone(_)) => Err(unreachable(id, holder, node.living().get(holder))),
            Err(
                error @ (PeerError::NotAdvertised(_)
                | PeerError::Unreached { .. }
                | PeerError::SecondHop
                | PeerError::TooLong),
            ) => {
                let text = format!(
                    "Approval {id} is held by another node; the request was not processed: {error}"
                );
                Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, text))
            }
            Err(error @ (PeerError::Unanswered { .. } | PeerError::Unknown { .. })) => {
                let text = format!(
                    "Approval {id} is held by another node; it is unknown whether the decision was applied: {error}"
                );
                Err(ApiError::new(StatusCode::BAD_GATEWAY, text))
            }
        }
    }
}

/// Finds the node whose mark is in the id; `None` if no node has it. An error if the membership of the fleet is unknown.
fn holder<'a>(
    living: &'a Membership,
    id: &str,
    mark: &str,
) -> Result<Option<&'a NodeView>, ApiError> {
    let is_it = |view: &&NodeView| NodeTag::of(&view.name).text() == mark;
    let view = living.all().iter().find(is_it);
    match living.undecided_reason() {
        Some(why) if view.is_none() && living.may_be_incomplete() => {
            let text = format!(
                "Approval {id} is held by an unknown node, if at all; the request was not processed: {why}; retry here or on that node"
            );
            let mut error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, text);
            error.retry_after = Some(ASK_AGAIN);
            Err(error)
        }
        Some(_) | None => Ok(view),
    }
}

/// Awaits a node's response with a timeout. A node that did not respond completely may still have processed the request.
async fn in_time<T>(
    holder: &str,
    limit: Duration,
    asked: impl Future<Output = Result<T, PeerError>>,
) -> Result<T, PeerError> {
    let late = || PeerError::Unanswered {
        node: holder.to_owned(),
        why: format!("no complete response within {} s", limit.as_secs()),
    };
    tokio::time::timeout(limit, asked).await.unwrap_or_else(|_| Err(late()))
}

/// Error if the node that holds a call cannot be queried: it is dead, or its state is unknown.
fn unreachable(id: &str, holder: &str, view: Option<&NodeView>) -> ApiError {
    let (status, why) = match view {
        Some(view) if !has_no_calls(view) => {
            let known = match view.state {
                NodeState::Unknown => "whose state is not known yet".to_owned(),
                NodeState::Alive | NodeState::Dead | NodeState::Stopped => {
                    format!("which has sent no heartbeat for {} s", view.silent_ms / 1000)
                }
            };
            let why = format!(
                "is held by node '{holder}', {known}; the request was not processed; retry here or on that node"
            );
            (StatusCode::SERVICE_UNAVAILABLE, why)
        }
        Some(_) | None => {
            let why = format!("has ended: it was held by node '{holder}', which is dead");
            (StatusCode::GONE, why)
        }
    };
    ApiError::new(status, format!("Approval {id} {why}"))
}

/// Answers the request of the authenticated node `from`.
pub async fn answer_node(worker: &Worker, from: &str, request: &[u8]) -> Response<Body> {
    let answered = match serde_json::from_slice::<PeerApprovalRequest<'_>>(request) {
        Ok(request) => perform(worker, from, &request).await,
        Err(error) => Err(ApiError::bad_request(error)),
    };
    let (status, body) = match answered {
        Ok(data) => (StatusCode::OK, data),
        Err(error) => (error.status, error.message.into()),
    };
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

async fn perform(
    worker: &Worker,
    from: &str,
    request: &PeerApprovalRequest<'_>,
) -> Result<Bytes, ApiError> {
    let PeerApprovalRequest { ask, id, answer, by } = request;
    match ask {
        PeerApprovalAction::List => Ok(encode(&Listed { approvals: waiting_here(worker) })),
        PeerApprovalAction::One => one_here(worker, id),
        PeerApprovalAction::Answer => {
            let by = by.as_ref().and_then(|by| {
                let (principal, node) = (by.principal.as_str().into(), Some(from.into()));
                Some(Answerer { principal, channel: AnswerChannel::of_word(&by.door)?, node })
            });
            let (Some(answer), Some(by)) = (answer, by) else {
                return Err(ApiError::bad_request("the request lacks `answer` or `by`"));
            };
            answer_here(worker, id, answer.get().as_bytes(), by).await
        }
    }
}

#[cfg(test)]
mod tests {
    use mcpproxy_fleet::config::NodeName;
    use mcpproxy_fleet::failure_detector::FailureDetector;
    use mcpproxy_fleet::heartbeat::BootId;

    use super::*;

    #[test]
    fn peer_request_round_trips_verbatim() {
        let answer = r#"{"decision": "approve"}"#;
        let by = PeerAnswerer { principal: "admin".into(), door: "cli".into() };
        let raw = serde_json::from_str(answer).unwrap();
        let (ask, id) = (PeerApprovalAction::Answer, "x".to_owned());
        let sent = encode(&PeerApprovalRequest { ask, id, answer: Some(raw), by: Some(by) });
        let read: PeerApprovalRequest<'_> = serde_json::from_slice(&sent).unwrap();
        assert_eq!((read.ask, &*read.id, read.answer.unwrap().get()), (ask, "x", answer));
        assert_eq!(read.by.map(|by| (by.principal, by.door)), Some(("admin".into(), "cli".into())));
        let min: PeerApprovalRequest<'_> = serde_json::from_str(r#"{"ask":"list"}"#).unwrap();
        assert!(min.ask == PeerApprovalAction::List && min.answer.is_none() && min.by.is_none());
        assert!(
            serde_json::from_str::<PeerApprovalRequest<'_>>(r#"{"ask":"everything"}"#).is_err()
        );
    }

    #[tokio::test]
    async fn incomplete_response_of_a_peer_is_an_error() {
        let never = std::future::pending::<Result<Bytes, PeerError>>();
        let late = in_time("a", Duration::ZERO, never).await.unwrap_err();
        assert!(matches!(late, PeerError::Unanswered { .. }), "{late}");
        assert_eq!(in_time("a", ANSWER_LIMIT, async { Ok(7) }).await, Ok(7));
    }

    fn view(state: NodeState, silent: Duration) -> NodeView {
        NodeView {
            name: NodeName::parse("a").unwrap(),
            is_self: false,
            state,
            heartbeat: None,
            skew_ms: None,
            silent_ms: silent.as_millis() as u64,
            fault: None,
            twice: false,
            is_listed: true,
        }
    }

    #[test]
    fn call_counts_as_ended_only_if_it_can_no_longer_be_waiting() {
        let long = MAX_TIMEOUT + Duration::from_secs(1);
        for (state, silent, status, words) in [
            (NodeState::Stopped, Duration::ZERO, 410, "which is dead"),
            (NodeState::Dead, long, 410, "which is dead"),
            (NodeState::Dead, Duration::from_secs(7), 503, "has sent no heartbeat for 7 s"),
            (NodeState::Unknown, Duration::ZERO, 503, "whose state is not known yet"),
        ] {
            let error = unreachable("x", "a", Some(&view(state, silent)));
            assert_eq!(error.status.as_u16(), status, "{state:?}");
            assert!(error.message.contains(words), "{}", error.message);
        }
        assert_eq!(unreachable("x", "a", None).status.as_u16(), 410);
    }

    #[test]
    fn unknown_membership_makes_calls_unavailable_and_lists_incomplete() {
        let [own, a] = ["me", "a"].map(|name| NodeName::parse(name).unwrap());
        let mark = NodeTag::of(&a).text();
        let found = |living: &Membership| {
            let found = holder(living, "x", &mark).map(|view| view.map(|it| it.state));
            found.map_err(|error| (error.status.as_u16(), error.retry_after.is_some()))
        };
        let mut watch = FailureDetector::new(own, BootId([9; 16]));
        let none = Membership::default();
        for (living, words) in [
            (none.clone(), "not determined yet"),
            (none.unseen("no way there".to_owned()), "no way there"),
            (watch.snapshot(Some("no way there".to_owned())), "no way there"),
        ] {
            assert_eq!(found(&living), Err((503, true)));
            assert!(holder(&living, "x", &mark).unwrap_err().message.contains(words));
            let unseen = unseen(&living);
            assert!(unseen.len() == 1 && unseen[0].why.contains(words), "{unseen:?}");
        }
        assert_eq!(
            (found(&watch.snapshot(None)), unseen(&watch.snapshot(None)).len()),
            (Ok(None), 0)
        );
        watch.listed([(a.clone(), "".into())], Default::default(), 0, false);
        let listed = watch.snapshot(None);
        assert_eq!((found(&listed), unseen(&listed).len()), (Ok(Some(NodeState::Unknown)), 1));
    }

    #[test]
    fn long_lists_omit_and_count_the_newest_calls() {
        let listed = |from: usize, to: usize| {
            (from..to).map(|at| {
                let since = format!("{at:05}");
                ApprovalView::of_since(&since)
            })
        };
        let mut gathered = Gathered::default();
        gathered.add(listed(4000, 8000));
        gathered.add(listed(0, 4000));
        assert_eq!((gathered.approvals.len(), gathered.left_out), (MAX_LISTED, 8000 - MAX_LISTED));
        assert_eq!(gathered.approvals[0].since().unwrap(), "00000");
        assert_eq!(gathered.approvals[MAX_LISTED - 1].since().unwrap(), "04095");
    }
}
