//! Record of a server's question to a client during a call, and of the client's answer (ACT-13).
//!
//! The record is opened before the question is sent, so that nothing is asked while the log has no capacity. It is
//! written when the question is answered, withdrawn by its server, or void because its call or session has ended. An
//! open question may wait for a person, so it is charged to the principal's account and does not hold log capacity
//! that calls need.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mcpproxy_activity::record::{Draft, MAX_METADATA_BYTES, Raw, Status, Text, Type};
use mcpproxy_activity::{Activity, NotAdmitted};
use mcpproxy_json::members::{member, string};
use mcpproxy_policy::{StateAccount, StateCharge, StateFull};
use serde_json::json;
use thiserror::Error;

/// Method of the questions whose answers have an `action`.
const ELICITATION: &str = "elicitation/create";

/// Memory charge of an open question besides its params: names and table entries.
const BESIDE_PARAMS_BYTES: usize = 3 * 1024;

/// Reason why a question cannot be recorded and is therefore not sent to the client.
#[derive(Debug, Error)]
pub(crate) enum NotRecorded {
    #[error("the client is not asked: {0}")]
    Log(#[from] NotAdmitted),
    #[error("the client is not asked: {0}")]
    State(#[from] StateFull),
    #[error(
        "the client is not asked: the activity log is over its budget and '{principal}' has taken more than its share"
    )]
    OverShare { principal: Box<str> },
}

/// Maximum recorded sizes of questions and answers in bytes, equal to those of arguments and results.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordedSizes {
    pub(crate) question: usize,
    pub(crate) answer: usize,
}

pub(crate) struct QuestionRecord {
    activity: Activity,
    /// `None` once submitted.
    record: Option<(Box<Draft>, StateCharge)>,
    /// Tool or method of the call.
    call: Box<str>,
    sizes: RecordedSizes,
    /// Time at which the question was sent; `None` if it was not.
    asked: Option<Instant>,
}

impl fmt::Debug for QuestionRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuestionRecord").field("asked", &self.asked).finish_non_exhaustive()
    }
}

impl QuestionRecord {
    /// Opens the record of a question of at most `bytes` during a call; `about` has the call's texts, and `call` is
    /// its tool or method. Waits while the log has no capacity.
    pub(crate) async fn open(
        (activity, account): (&Activity, &Arc<StateAccount>),
        about: Draft,
        call: &str,
        (bytes, sizes): (usize, RecordedSizes),
    ) -> Result<Self, NotRecorded> {
        let principal = about.text(Text::Principal);
        if activity.within_share(principal).is_err() {
            return Err(NotRecorded::OverShare { principal: principal.into() });
        }
        let charge = account.charge(bytes.min(sizes.question) + BESIDE_PARAMS_BYTES)?;
        drop(activity.reserve().await?);
        let mut draft = Box::new(about);
        draft.kind = Type::ServerQuestion;
        // The question is not an operation of its own.
        draft.operation = None;
        let (activity, record) = (activity.clone(), Some((draft, charge)));
        Ok(Self { activity, record, call: call.into(), sizes, asked: None })
    }

    /// Notes that `message`, a request of method `method`, is sent to the client now.
    pub(crate) fn asks(&mut self, method: &str, message: &[u8]) {
        let Some((draft, _)) = &mut self.record else { return };
        self.asked = Some(Instant::now());
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        draft.started = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
        draft.set(Text::Tool, method);
        let params = std::str::from_utf8(message).ok().and_then(|text| member(text, "params"));
        draft.keep(Raw::Arguments, params.unwrap_or("{}").as_bytes(), self.sizes.question);
    }

    /// Writes the record with the client's answer: its member `result` or `error`.
    pub(crate) fn answered(mut self, outcome: &[u8]) {
        let text = std::str::from_utf8(outcome).unwrap_or_default();
        if let Some(result) = text.strip_prefix("\"result\":") {
            let action = member(result, "action").and_then(string);
            let action = match action.as_deref().filter(|_| self.is_elicitation()) {
                Some("accept") => "accept",
                Some("decline") => "decline",
                Some("cancel") => "cancel",
                Some(_) | None => "answer",
            };
            return self.end(Status::Success, action, "", result);
        }
        let error = text.strip_prefix("\"error\":").unwrap_or_default();
        let message = member(error, "message").and_then(string).unwrap_or_default();
        self.end(Status::Error, "error", &format!("the client answered: {message}"), error);
    }

    /// Writes the record of a question withdrawn by its server.
    pub(crate) fn withdrawn(mut self) {
        self.end(Status::Error, "withdrawn", "the server withdrew its question", "");
    }

    fn is_elicitation(&self) -> bool {
        self.record.as_ref().is_some_and(|(draft, _)| draft.text(Text::Tool) == ELICITATION)
    }

    fn end(&mut self, status: Status, action: &str, error: &str, answer: &str) {
        let Some((mut draft, _charge)) = self.record.take() else { return };
        let Some(asked) = self.asked else { return };
        let took: Duration = asked.elapsed();
        draft.duration_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        draft.status = status;
        draft.set(Text::Error, error);
        draft.keep(Raw::Response, answer.as_bytes(), self.sizes.answer);
        let metadata = json!({"action": action, "call": self.call}).to_string();
        draft.keep(Raw::Metadata, metadata.as_bytes(), MAX_METADATA_BYTES);
        self.activity.note(*draft);
    }
}

impl Drop for QuestionRecord {
    /// Writes the record of a question without an answer.
    fn drop(&mut self) {
        self.end(Status::Error, "unanswered", "its call ended before the client answered", "");
    }
}
