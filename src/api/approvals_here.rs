//! Calls that wait for a person on this node, as they are shown, and the answers to them as they are read: for whoever asks
//! here, and for other nodes of a fleet.

use std::borrow::Cow;

use bytes::Bytes;
use http::StatusCode;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use super::ended_leaves::tell_end;
use super::response::{ApiError, encode};
use crate::activity::record::{Draft, MAX_METADATA_BYTES, Raw, Source, Status, Text, Type};
use crate::approvals::{
    AnsweredApproval, Answerer, ApprovalAnswer, ApprovalVerdict, Decided, Door, Extent, ForHowLong,
    KnownApproval, NotAnswered, Outcome, StandingLeave, WaitingView,
};
use crate::proxy::Worker;

/// Bytes of the arguments in a list; one approval shows all.
const LISTED_BYTES: usize = 4096;

/// The calls that wait on this node, the oldest first.
pub(super) fn waiting_here(worker: &Worker) -> Vec<ApprovalView> {
    let waiting = worker.proxy.approvals.waiting();
    waiting.iter().map(|view| ApprovalView::waiting(view, LISTED_BYTES).at(worker)).collect()
}

/// An approval that this node knows.
pub(super) fn one_here(worker: &Worker, id: &str) -> Result<Bytes, ApiError> {
    let approval = match worker.proxy.approvals.get(id) {
        Some(KnownApproval::Waiting(view)) => ApprovalView::waiting(&view, usize::MAX),
        Some(KnownApproval::Over(decided)) => ApprovalView::over(&decided),
        None => return Err(ApiError::new(StatusCode::NOT_FOUND, NotAnswered::NotFound)),
    };
    Ok(encode(&One { approval: approval.at(worker) }))
}

/// Answers an approval of a call that waits on this node, or one that stands: the fleet knows that such a one is over before
/// whoever denies it.
pub(super) async fn answer_here(
    worker: &Worker,
    id: &str,
    body: &[u8],
    by: Answerer,
) -> Result<Bytes, ApiError> {
    let unreadable = |text: String| ApiError::new(StatusCode::BAD_REQUEST, text);
    let request: AnswerRequest = serde_json::from_slice(body)
        .map_err(|error| unreadable(format!("Invalid request body: {error}")))?;
    let (verdict, seen) = request.read().map_err(unreadable)?;
    let answered = worker.proxy.approvals.answer(id, ApprovalAnswer { verdict, by, seen });
    let AnsweredApproval { decided, revoked } =
        answered.map_err(|why| ApiError::new(status_of(&why), why))?;
    if let Some(leave) = revoked {
        worker.proxy.activity.note(revocation(&leave, &decided.outcome));
    }
    tell_end(worker, decided.id.as_str()).await?;
    Ok(encode(&One { approval: ApprovalView::over(&decided).at(worker) }))
}

/// The record of an approval that stood and was taken back: no call waits any more that would leave one.
fn revocation(leave: &StandingLeave, outcome: &Outcome) -> Draft {
    let by = outcome.by();
    let source = match by.map(|by| by.door) {
        Some(Door::Cli) => Source::Cli,
        Some(Door::Api | Door::Page | Door::Elicitation) | None => Source::Api,
    };
    let mut draft = Draft::new(Type::Approval, source, Status::Success);
    let (server, tool) = leave.access.split_once(':').unwrap_or((&leave.access, ""));
    draft.set(Text::Server, server);
    draft.set(Text::Tool, tool);
    draft.set(Text::Principal, &leave.principal);
    draft.set(Text::SessionId, leave.session.as_deref().unwrap_or_default());
    let told = json!({
        "approval": leave.of.as_str(), "state": "revoked",
        "by": by.map(|by| &by.principal), "door": by.map(|by| by.door.as_str()),
        "node": by.and_then(|by| by.node.as_deref()),
    });
    draft.keep(Raw::Metadata, told.to_string().as_bytes(), MAX_METADATA_BYTES);
    draft
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

/// An answer.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AnswerRequest {
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
pub(super) struct One {
    approval: ApprovalView,
}

/// A call that waits for a person, or its answer.
#[derive(Default, Serialize, Deserialize, ToSchema)]
#[schema(as = CallApproval)]
pub(super) struct ApprovalView {
    id: String,
    /// `waiting`, `approved`, `denied`, `timed_out`, `withdrawn` (the client has gone) or `ended` (the proxy has).
    #[schema(value_type = String)]
    state: Cow<'static, str>,
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
    door: Option<Cow<'static, str>>,
    /// In a fleet: the node that they came to, where the call waited on another.
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

/// What a person has to judge.
#[derive(Serialize, Deserialize, ToSchema)]
struct WaitingCall {
    #[schema(value_type = String)]
    server_name: String,
    /// The tool without its server, or the method.
    tool_name: String,
    /// `read`, `write` or `destructive`; empty where no tool is called.
    #[schema(value_type = String)]
    operation: Cow<'static, str>,
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
            operation: asked.operation.map_or("", |operation| operation.as_str()).into(),
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
            state: "waiting".into(),
            access: access.to_string(),
            call: Some(call),
            ..Self::default()
        }
    }

    fn over(decided: &Decided) -> Self {
        let Decided { id, access, outcome, at } = decided;
        Self {
            id: id.to_string(),
            state: outcome.as_str().into(),
            access: access.to_string(),
            call: None,
            by: outcome.by().map(|by| by.principal.to_string()),
            door: outcome.by().map(|by| by.door.as_str().into()),
            by_node: outcome.by().and_then(|by| by.node.as_deref()).map(str::to_owned),
            decided: Some(time(*at)),
            node: None,
        }
    }

    /// One that waits since then.
    #[cfg(test)]
    pub(super) fn of_since(since: &str) -> Self {
        let call = serde_json::json!({
            "server_name": "", "tool_name": "", "operation": "", "destructive": false, "reason": "",
            "arguments": "", "arguments_bytes": 0, "digest": "", "principal": "", "client_name": "",
            "session_id": "", "request_id": "", "since": since, "until": "",
        });
        Self { call: serde_json::from_value(call).ok(), ..Self::default() }
    }

    /// Since when it waits, by the clock of its node.
    pub(super) fn since(&self) -> Option<String> {
        self.call.as_ref().map(|call| call.since.clone())
    }

    /// The same of a call that this node holds, or held.
    fn at(self, worker: &Worker) -> Self {
        let node = worker.proxy.fleet.as_ref().map(|node| node.name.as_str().to_owned());
        Self { node, ..self }
    }

    /// The same as another node has told it, which says nothing of a third.
    pub(super) fn told_by(self, node: &str) -> Self {
        Self { node: Some(node.to_owned()), ..self }
    }
}

/// A node of which it is not known what waits there.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct UnseenNode {
    /// Its name; empty where it is not known which nodes there are.
    pub(super) node: String,
    /// Why not.
    pub(super) why: String,
}

pub(super) fn time(time: std::time::SystemTime) -> String {
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
