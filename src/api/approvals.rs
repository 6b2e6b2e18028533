//! `/api/v1/approvals…`: calls that wait for a person, and the answers to them (CAP-8). For the holder of the key alone.

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use serde::Serialize;
use utoipa::ToSchema;

use super::approvals_here::{
    AnswerRequest, ApprovalView, One, UnseenNode, answer_here, one_here, time, waiting_here,
};
use super::call::SOURCE;
use super::fleet_approvals::{self, Elsewhere};
use super::query_parameters::Query;
use super::response::{ApiError, Success, encode};
use super::routes;
use crate::approvals::{Answerer, Door, StandingLeave};
use crate::policy::Principal;
use crate::proxy::{Worker, incoming};

/// Lists the calls that wait, the oldest first, and the approvals that stand for a while; in a fleet those of all nodes.
#[utoipa::path(
    get,
    path = "/api/v1/approvals",
    tag = "approvals",
    operation_id = "listApprovals",
    responses(
        (status = 200, description = "All that wait and all that stand", body = Success<Approvals>),
        (status = 403, description = "Only the holder of the API key may see and answer them; or Host or Origin is not allowed"),
    )
)]
pub(super) async fn list(
    worker: &Worker,
    principal: &Principal,
    query: Query,
) -> Result<Bytes, ApiError> {
    query.finish()?;
    admin(principal)?;
    let (mut unseen, mut heard, mut left_out) = (None, None, None);
    let approvals = match fleet_approvals::gather(worker).await {
        Some(all) => {
            left_out = Some(all.left_out).filter(|more| *more > 0);
            unseen = Some(all.unseen);
            heard = Some(all.heard);
            all.approvals
        }
        None => waiting_here(worker),
    };
    let standing = worker.proxy.approvals.standing().iter().map(Standing::from).collect();
    Ok(encode(&Approvals { approvals, standing, unseen, heard, left_out }))
}

/// Shows one approval, with all arguments while it waits; for a while also one that is decided.
#[utoipa::path(
    get,
    path = "/api/v1/approvals/{id}",
    tag = "approvals",
    operation_id = "getApproval",
    params(("id" = String, Path, description = "The approval's id", pattern = "^[0-9a-z]{16}(-[0-9a-z]{7})?$")),
    responses(
        (status = 200, description = "The approval", body = Success<One>),
        (status = 403, description = "Only the holder of the API key may see and answer them; or Host or Origin is not allowed"),
        (status = 404, description = "There is no such approval, or none any more"),
        (status = 410, description = "The node of the fleet that held the call has stopped, or has said nothing for longer than a call waits: the call has ended"),
        (status = 502, description = "The node of the fleet that holds the call was asked and did not answer: it may have decided"),
        (status = 503, description = "The node of the fleet that holds the call cannot be reached, or says nothing any more"),
    )
)]
pub(super) async fn one(
    worker: &Worker,
    principal: &Principal,
    query: Query,
    segment: &str,
) -> Result<Bytes, ApiError> {
    query.finish()?;
    admin(principal)?;
    let id = routes::decoded(segment)?;
    let known = one_here(worker, &id);
    if let Err(ApiError { status: StatusCode::NOT_FOUND, .. }) = known
        && let Some(elsewhere) = Elsewhere::of(worker, &id)?
    {
        return elsewhere.one(&id).await;
    }
    known
}

/// Answers one approval. The first answer counts, by whatever door it comes, and at whichever node of a fleet: the node
/// that holds the call decides.
///
/// With `for` an approval stands: until then every call of the same tool by the same principal goes out, whatever its
/// arguments, as long as its server does not define the tool anew. A later `deny` of the same approval ends that.
#[utoipa::path(
    post,
    path = "/api/v1/approvals/{id}",
    tag = "approvals",
    operation_id = "answerApproval",
    params(("id" = String, Path, description = "The approval's id", pattern = "^[0-9a-z]{16}(-[0-9a-z]{7})?$")),
    request_body(content = AnswerRequest, description = "The answer. No key may stand twice."),
    responses(
        (status = 200, description = "The answer counts", body = Success<One>),
        (status = 400, description = "The body or the query cannot be understood"),
        (status = 403, description = "Only the holder of the API key may see and answer them; or Host or Origin is not allowed"),
        (status = 404, description = "There is no such approval, or none any more"),
        (status = 410, description = "The node of the fleet that held the call has stopped, or has said nothing for longer than a call waits: the call has ended"),
        (status = 502, description = "The node of the fleet that holds the call was asked and did not answer: it may have decided"),
        (status = 503, description = "The node of the fleet that holds the call cannot be reached, or says nothing any more: nothing has changed. Or an approval that stood is ended on this node, and the other nodes could not be told"),
        (status = 408, description = "The body did not come in time"),
        (status = 409, description = "It is decided already, or it is for another call than the one whose digest is given, or it cannot stand for so long"),
        (status = 413, description = "The body is too large"),
    )
)]
pub(super) async fn answer(
    worker: &Worker,
    principal: &Principal,
    (headers, query): (&HeaderMap, Query),
    segment: &str,
    body: &[u8],
) -> Result<Bytes, ApiError> {
    query.finish()?;
    admin(principal)?;
    let id = routes::decoded(segment)?;
    let unreadable = |text: String| ApiError::new(StatusCode::BAD_REQUEST, text);
    incoming::check(worker, body).map_err(unreadable)?;
    let by = Answerer::here(principal.id(), door(headers));
    let answered = answer_here(worker, &id, body, by.clone()).await;
    if let Err(ApiError { status: StatusCode::NOT_FOUND, .. }) = answered
        && let Some(elsewhere) = Elsewhere::of(worker, &id)?
    {
        return elsewhere.answer(&id, body, &by).await;
    }
    answered
}

/// Whoever asks for the approval of their own calls does not give it.
fn admin(principal: &Principal) -> Result<(), ApiError> {
    match principal {
        Principal::Admin => Ok(()),
        Principal::Anonymous
        | Principal::Token(_)
        | Principal::Subject(_)
        | Principal::Certificate(_) => {
            Err(ApiError::new(StatusCode::FORBIDDEN, "Approvals are for the holder of the API key"))
        }
    }
}

fn door(headers: &HeaderMap) -> Door {
    match headers.get(SOURCE).map(http::HeaderValue::as_bytes) {
        Some(b"cli") => Door::Cli,
        Some(b"page") => Door::Page,
        Some(_) | None => Door::Api,
    }
}

#[derive(Serialize, ToSchema)]
struct Approvals {
    approvals: Vec<ApprovalView>,
    /// Approvals that stand for a while.
    standing: Vec<Standing>,
    /// In a fleet: nodes that did not say what waits there, and those of which it is not known whether they live.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    unseen: Option<Vec<UnseenNode>>,
    /// In a fleet: nodes that have said what waits there.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    heard: Option<Vec<String>>,
    /// In a fleet: how many more wait than are listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    left_out: Option<usize>,
}

/// An approval that stands for a while.
#[derive(Serialize, ToSchema)]
#[schema(as = StandingApproval)]
struct Standing {
    /// The approval that it was given for; a `deny` of that ends it.
    id: String,
    access: String,
    /// The principal whose calls go out by it.
    principal: String,
    /// The session that it counts for, if not for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    session_id: Option<String>,
    /// Who gave it.
    by: String,
    #[schema(value_type = String)]
    door: &'static str,
    /// In a fleet: the node that they came to, where it is another than this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    by_node: Option<String>,
    #[schema(format = DateTime)]
    until: String,
}

impl From<&StandingLeave> for Standing {
    fn from(leave: &StandingLeave) -> Self {
        Self {
            id: leave.of.to_string(),
            access: leave.access.to_string(),
            principal: leave.principal.to_string(),
            session_id: leave.session.as_deref().map(str::to_owned),
            by: leave.by.principal.to_string(),
            door: leave.by.door.as_str(),
            by_node: leave.by.node.as_deref().map(str::to_owned),
            until: time(leave.until),
        }
    }
}
