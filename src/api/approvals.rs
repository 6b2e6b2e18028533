//! `/api/v1/approvals…`: calls that wait for a person, and the answers to them (CAP-8). For the holder of the key alone.

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::call::SOURCE;
use super::query_parameters::Query;
use super::response::{ApiError, Success, encode};
use super::routes;
use crate::approvals::{
    Answerer, ApprovalAnswer, ApprovalVerdict, Decided, Door, Extent, ForHowLong, KnownApproval,
    NotAnswered, StandingLeave, WaitingView,
};
use crate::policy::Principal;
use crate::proxy::{Worker, incoming};

/// Bytes of the arguments in a list; one approval shows all.
const LISTED_BYTES: usize = 4096;

/// Lists the calls that wait, the oldest first, and the approvals that stand for a while.
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
pub(super) fn list(
    worker: &Worker,
    principal: &Principal,
    query: Query,
) -> Result<Bytes, ApiError> {
    query.finish()?;
    admin(principal)?;
    let room = &worker.proxy.approvals;
    let approvals =
        room.waiting().iter().map(|view| ApprovalView::waiting(view, LISTED_BYTES)).collect();
    let standing = room.standing().iter().map(Standing::from).collect();
    Ok(encode(&Approvals { approvals, standing }))
}

/// Shows one approval, with all arguments while it waits; for a while also one that is decided.
#[utoipa::path(
    get,
    path = "/api/v1/approvals/{id}",
    tag = "approvals",
    operation_id = "getApproval",
    params(("id" = String, Path, description = "The approval's id", pattern = "^[0-9a-z]{16}$")),
    responses(
        (status = 200, description = "The approval", body = Success<One>),
        (status = 403, description = "Only the holder of the API key may see and answer them; or Host or Origin is not allowed"),
        (status = 404, description = "There is no such approval, or none any more"),
    )
)]
pub(super) fn one(
    worker: &Worker,
    principal: &Principal,
    query: Query,
    segment: &str,
) -> Result<Bytes, ApiError> {
    query.finish()?;
    admin(principal)?;
    let id = routes::decoded(segment)?;
    let approval = match worker.proxy.approvals.get(&id) {
        Some(KnownApproval::Waiting(view)) => ApprovalView::waiting(&view, usize::MAX),
        Some(KnownApproval::Over(decided)) => ApprovalView::over(&decided),
        None => return Err(ApiError::new(StatusCode::NOT_FOUND, NotAnswered::NotFound)),
    };
    Ok(encode(&One { approval }))
}

/// Answers one approval. The first answer counts, by whatever door it comes.
///
/// With `for` an approval stands: until then every call of the same tool by the same principal goes out, whatever its
/// arguments, as long as its server does not define the tool anew. A later `deny` of the same approval ends that.
#[utoipa::path(
    post,
    path = "/api/v1/approvals/{id}",
    tag = "approvals",
    operation_id = "answerApproval",
    params(("id" = String, Path, description = "The approval's id", pattern = "^[0-9a-z]{16}$")),
    request_body(content = AnswerRequest, description = "The answer. No key may stand twice."),
    responses(
        (status = 200, description = "The answer counts", body = Success<One>),
        (status = 400, description = "The body or the query cannot be understood"),
        (status = 403, description = "Only the holder of the API key may see and answer them; or Host or Origin is not allowed"),
        (status = 404, description = "There is no such approval, or none any more"),
        (status = 408, description = "The body did not come in time"),
        (status = 409, description = "It is decided already, or it is for another call than the one whose digest is given, or it cannot stand for so long"),
        (status = 413, description = "The body is too large"),
    )
)]
pub(super) fn answer(
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
    let request: AnswerRequest = serde_json::from_slice(body)
        .map_err(|error| unreadable(format!("Invalid request body: {error}")))?;
    let (verdict, seen) = request.read().map_err(unreadable)?;
    let by = Answerer { principal: principal.id().into(), door: door(headers) };
    let answered = worker.proxy.approvals.answer(&id, ApprovalAnswer { verdict, by, seen });
    let decided = answered.map_err(|why| ApiError::new(status_of(&why), why))?;
    Ok(encode(&One { approval: ApprovalView::over(&decided) }))
}

fn status_of(why: &NotAnswered) -> StatusCode {
    match why {
        NotAnswered::NotFound => StatusCode::NOT_FOUND,
        NotAnswered::Over { .. }
        | NotAnswered::OtherCall(_)
        | NotAnswered::NoSession(_)
        | NotAnswered::TooLong
        | NotAnswered::TooMany(_) => StatusCode::CONFLICT,
    }
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

/// An answer.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct AnswerRequest {
    decision: Decision,
    /// With `approve`: for how long it counts for every call like it, whatever the arguments, `session` or a time
    /// like `1h`, at most 24 hours. Left out: for this call.
    #[serde(rename = "for")]
    #[schema(pattern = "^(session|[1-9][0-9]?[smh])$")]
    how_long: Option<String>,
    /// The digest of the call that was looked at: an approval of another is refused.
    #[schema(pattern = "^[0-9a-f]{64}$")]
    digest: Option<String>,
}

/// Yes or no.
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
            None => Extent::Once,
            Some(text) => match ForHowLong::parse(text) {
                Some(ForHowLong::Time(time)) => Extent::For(time),
                Some(ForHowLong::Session) => Extent::Session,
                None => {
                    let text = "Invalid request body: for must be 'session' or a time like '1h'";
                    return Err(text.to_owned());
                }
            },
        };
        let verdict = match decision {
            Decision::Approve => ApprovalVerdict::Approve(extent),
            // For how long it is not approved, nobody needs to say.
            Decision::Deny => ApprovalVerdict::Deny,
        };
        Ok((verdict, digest.map(String::into_boxed_str)))
    }
}

#[derive(Serialize, ToSchema)]
struct Approvals {
    approvals: Vec<ApprovalView>,
    /// Approvals that stand for a while.
    standing: Vec<Standing>,
}

#[derive(Serialize, ToSchema)]
struct One {
    approval: ApprovalView,
}

/// A call that waits for a person, or its answer.
#[derive(Default, Serialize, ToSchema)]
#[schema(as = CallApproval)]
struct ApprovalView {
    id: String,
    /// `waiting`, `approved`, `denied`, `timed_out`, `withdrawn` (the client has gone) or `ended` (the proxy has).
    #[schema(value_type = String)]
    state: &'static str,
    /// `server:tool`, or what else is asked.
    access: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    call: Option<WaitingCall>,
    /// The principal that answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    by: Option<String>,
    /// The way that the answer came: `api`, `cli`, `page` or `elicitation`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    door: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime, nullable = false)]
    decided: Option<String>,
}

/// What a person has to judge.
#[derive(Serialize, ToSchema)]
struct WaitingCall {
    #[schema(value_type = String)]
    server_name: String,
    /// The tool without its server, or the method.
    tool_name: String,
    /// `read`, `write` or `destructive`; empty where no tool is called.
    #[schema(value_type = String)]
    operation: &'static str,
    /// The call, or the tool, may destroy something.
    destructive: bool,
    /// Why, in the caller's words.
    reason: String,
    /// The text of the arguments, as JSON.
    arguments: String,
    /// Of all arguments.
    arguments_bytes: usize,
    /// What stands for the exact call.
    digest: String,
    /// On whose behalf it is made.
    principal: String,
    client_name: String,
    session_id: String,
    request_id: String,
    #[schema(format = DateTime)]
    since: String,
    /// When it is refused at the latest.
    #[schema(format = DateTime)]
    until: String,
}

impl ApprovalView {
    /// One that waits, with so many bytes of its arguments.
    fn waiting(view: &WaitingView, bytes: usize) -> Self {
        let WaitingView { id, asked, since, until } = view;
        let access = asked.pending.access();
        let arguments = &asked.arguments;
        let head = arguments.get(..arguments.floor_char_boundary(bytes)).unwrap_or(arguments);
        let call = WaitingCall {
            server_name: access.server().to_string(),
            tool_name: access.label().to_owned(),
            operation: asked.operation.map_or("", |operation| operation.as_str()),
            destructive: asked.destructive,
            reason: asked.reason.to_string(),
            arguments: head.to_owned(),
            arguments_bytes: arguments.len(),
            digest: asked.pending.digest().to_string(),
            principal: asked.pending.principal().id().to_owned(),
            client_name: asked.client.to_string(),
            session_id: asked.session.to_string(),
            request_id: asked.request_id.to_string(),
            since: time(*since),
            until: time(*until),
        };
        Self {
            id: id.to_string(),
            state: "waiting",
            access: access.to_string(),
            call: Some(call),
            ..Self::default()
        }
    }

    fn over(decided: &Decided) -> Self {
        let Decided { id, access, outcome, at } = decided;
        Self {
            id: id.to_string(),
            state: outcome.as_str(),
            access: access.to_string(),
            call: None,
            by: outcome.by().map(|by| by.principal.to_string()),
            door: outcome.by().map(|by| by.door.as_str()),
            decided: Some(time(*at)),
        }
    }
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
            until: time(leave.until),
        }
    }
}

fn time(time: std::time::SystemTime) -> String {
    format!("{:.3}", Timestamp::try_from(time).unwrap_or(Timestamp::UNIX_EPOCH))
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
    fn an_answer_is_read_and_what_is_wrong_is_named() {
        let hour = Extent::For(Duration::from_secs(3600));
        for (body, verdict) in [
            (r#"{"decision":"approve"}"#, ApprovalVerdict::Approve(Extent::Once)),
            (r#"{"decision":"approve","for":null}"#, ApprovalVerdict::Approve(Extent::Once)),
            (r#"{"decision":"approve","for":"1h"}"#, ApprovalVerdict::Approve(hour)),
            (
                r#"{"decision":"approve","for":"session"}"#,
                ApprovalVerdict::Approve(Extent::Session),
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
