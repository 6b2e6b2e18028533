//! A call that waits for a person (CAP-8): its client is kept awake and asked, and the wait and its end go on record.
//!
//! Who may answer, and what counts, is the room's ([`approvals`](crate::approvals)). A call that is dropped, because
//! its client has gone or has cancelled it, is withdrawn by that.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use jiff::Timestamp;
use serde_json::json;

use super::call_record::{CallRecord, Rejection};
use super::caller::{Caller, Channel};
use super::client::{ApprovalQuestion, Client, Question};
use super::params::progress_token;
use super::refusal::RefusalKind;
use super::reply::{Piece, Reply};
use super::shutdown::Ending;
use super::worker::Worker;
use crate::activity::record::{Draft, MAX_METADATA_BYTES, Raw, Status, Text, Type};
use crate::activity::{NotAdmitted, Slot};
use crate::approvals::{AskedCall, Entered, Extent, Outcome, WaitingApproval, shown};
use crate::intent::Operation;
use crate::mcp::revisions::Era;
use crate::policy::{Access, ApprovalDenial, Approved, NotApproved, PendingApproval};
use crate::tool::SideEffect;

/// How often a client that gave a progress token hears that its call still waits.
const PROGRESS_EVERY: Duration = Duration::from_secs(10);
/// After so much silence a client that takes an event stream, and gave no token, gets one, which then shows by itself
/// that it is alive. An answer that comes sooner is no stream.
const SILENCE: Duration = Duration::from_secs(5);
/// Most bytes of the arguments that the client's user is shown in an elicitation.
const MAX_SHOWN_BYTES: usize = 2048;

/// What is known of the call beside what it is bound to.
pub(super) struct WaitingCall<'a> {
    /// As they go to the server.
    pub(super) arguments: &'a [u8],
    /// Why, in the caller's words, or empty.
    pub(super) reason: &'a str,
    /// `_meta` of the request.
    pub(super) meta: Option<&'a Bytes>,
}

/// Waits until the call is approved.
///
/// # Errors
/// It is not: denied, too late, too many wait, or the log or the proxy does not go on.
pub(super) async fn wait(
    worker: &Worker,
    caller: &Caller,
    record: &mut CallRecord,
    pending: PendingApproval,
    call: WaitingCall<'_>,
) -> Result<Approved, Rejection> {
    let access = pending.access().clone();
    let settings = worker.settings();
    let room = &worker.proxy.approvals;
    if let Some((approved, of)) = room.standing_for(&pending, caller.session_id()) {
        record.add_metadata("approval", &json!(of.as_str()).to_string());
        return Ok(approved);
    }
    let reads = reader(caller, settings.approval.elicitation);
    let asks_itself = matches!(reads, Reads::AnswersToo(_));
    if let Err(why) = room.check(pending.principal(), asks_itself) {
        return Err(record.deny(&ApprovalDenial::new(&access, why).into()));
    }
    let begins = place(worker, record).await?;
    let ends = place(worker, record).await?;
    let began = Instant::now();
    let asked = asked(pending, caller, &call);
    let digest = asked.pending.digest();
    let question = question(&asked);
    let entered = WaitingApproval::enter(room, asked, settings.approval.timeout, asks_itself);
    let waiting = match entered {
        Ok(Entered::Waiting(waiting)) => waiting,
        Ok(Entered::Leave { approved, of }) => {
            record.add_metadata("approval", &json!(of.as_str()).to_string());
            return Ok(approved);
        }
        Err(why) => return Err(record.deny(&ApprovalDenial::new(&access, why).into())),
    };
    record.add_metadata("approval", &json!(waiting.id().as_str()).to_string());
    let mut waits = record.beside(Type::Approval);
    waits.started = unix_micros();
    waits.keep(Raw::Arguments, call.arguments, settings.max_payload_bytes);
    let until = Timestamp::try_from(waiting.until()).unwrap_or(Timestamp::UNIX_EPOCH);
    keep(
        &mut waits,
        &json!({
            "approval": waiting.id().as_str(), "state": "waiting", "digest": digest.to_string(),
            "until": format!("{until:.3}"),
        }),
    );
    drop(begins.submit(waits));
    let mut wait = Wait {
        waiting,
        ends: Some((ends, record.beside(Type::Approval))),
        began,
        ending: worker.ending.clone(),
        question: None,
    };
    wait.ask(&reads, caller, &question, record.reply()).await;
    let outcome = wait.outcome(&reads, &call, record.reply()).await;
    wait.end(&outcome);
    record.has_waited(began.elapsed());
    wait.take_back(record.reply()).await;
    let why = match outcome {
        Outcome::Approved { approved, .. } => return Ok(approved),
        Outcome::Denied { .. } => NotApproved::Denied,
        Outcome::TimedOut { after } => NotApproved::TimedOut(after),
        Outcome::Withdrawn | Outcome::Ending => NotApproved::Ending,
    };
    Err(record.deny(&ApprovalDenial::new(&access, why).into()))
}

/// A place in the log for one of the two records, taken before anybody is asked.
async fn place(worker: &Worker, record: &CallRecord) -> Result<Slot, Rejection> {
    worker.proxy.activity.reserve().await.map_err(|refused: NotAdmitted| {
        let kind = record.kind().refusal(RefusalKind::Unavailable);
        Rejection::new(Status::Rejected, kind, refused.to_string())
    })
}

/// What the client behind a call hears before its answer.
enum Reads<'a> {
    /// Nothing.
    Nothing,
    /// That it goes on.
    Messages,
    /// The same, and it can ask its user.
    AnswersToo(&'a Arc<Client>),
}

fn reader(caller: &Caller, elicitation: bool) -> Reads<'_> {
    match &caller.client {
        Some((client, Channel::Stream)) => match client.era {
            Era::Legacy if elicitation && client.client_capabilities.elicitation => {
                Reads::AnswersToo(client)
            }
            Era::Legacy | Era::Modern => Reads::Messages,
        },
        Some((_, Channel::Answer)) | None => Reads::Nothing,
    }
}

fn asked(pending: PendingApproval, caller: &Caller, call: &WaitingCall<'_>) -> AskedCall {
    let (operation, destructive) = match pending.access() {
        Access::Tool(tool) => {
            let operation = tool.operation();
            let side_effect = tool.tool().capability.side_effect;
            let destructive =
                operation == Operation::Destructive || side_effect == SideEffect::Destructive;
            (Some(operation), destructive)
        }
        Access::Resource { .. } | Access::Prompt { .. } | Access::Completion { .. } => {
            (None, false)
        }
    };
    AskedCall {
        pending,
        operation,
        destructive,
        reason: call.reason.into(),
        arguments: String::from_utf8_lossy(call.arguments).into(),
        session: caller.session_id().into(),
        client: caller.client_name().into(),
        request_id: String::from_utf8_lossy(&caller.request_id).into(),
    }
}

/// What the client's user is asked.
fn question(asked: &AskedCall) -> String {
    let AskedCall { pending, operation, reason, arguments, .. } = asked;
    let operation = operation.map_or("", Operation::as_str);
    let mut question = format!(
        "Allow this {operation} call of {}?\nArguments: {}",
        shown(&pending.access().to_string(), MAX_SHOWN_BYTES),
        shown(arguments, MAX_SHOWN_BYTES)
    );
    if !reason.is_empty() {
        question += "\nReason: ";
        question += &shown(reason, MAX_SHOWN_BYTES);
    }
    question
}

/// A wait under way. Dropped before its end, it is withdrawn, which is on record.
struct Wait {
    waiting: WaitingApproval,
    /// Where the record of its end goes, and what is known of it already.
    ends: Option<(Slot, Draft)>,
    began: Instant,
    ending: Ending,
    /// What the client was asked, and may not have answered.
    question: Option<(Arc<Client>, u64)>,
}

impl Wait {
    /// Asks the client itself, where it can be.
    async fn ask(&mut self, reads: &Reads<'_>, caller: &Caller, message: &str, reply: &Reply) {
        let Reads::AnswersToo(client) = reads else { return };
        let approval = ApprovalQuestion {
            id: self.waiting.id().as_str().into(),
            principal: caller.principal.id().into(),
        };
        let Some(id) = client.ask(Question::Approval(approval)) else { return };
        self.question = Some((Arc::clone(client), id));
        let request = json!({
            "jsonrpc": "2.0", "id": id, "method": "elicitation/create",
            "params": {"message": message, "requestedSchema": {"type": "object", "properties": {}}},
        });
        reply.send(Piece::Request(request.to_string().into())).await;
    }

    /// Waits for the end, and keeps the client awake.
    async fn outcome(
        &mut self,
        reads: &Reads<'_>,
        call: &WaitingCall<'_>,
        reply: &Reply,
    ) -> Outcome {
        let token = call.meta.and_then(progress_token);
        let token = token.as_deref().and_then(|raw| std::str::from_utf8(raw).ok());
        let mut said = 0_u32;
        loop {
            let pause = match (reads, token, said) {
                (Reads::Messages | Reads::AnswersToo(_), Some(_), 0) => Some(Duration::ZERO),
                (Reads::Messages | Reads::AnswersToo(_), Some(_), _) => Some(PROGRESS_EVERY),
                (Reads::Messages, None, 0) => Some(SILENCE),
                // It is a stream by now, which shows by itself that it is alive.
                (Reads::Messages | Reads::AnswersToo(_), None, _) | (Reads::Nothing, ..) => None,
            };
            let speaks = async {
                match pause {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                outcome = self.ending.unless_cut(self.waiting.outcome()) => {
                    return outcome.unwrap_or_else(|| self.abandon());
                }
                () = speaks => {}
            }
            said = said.saturating_add(1);
            reply
                .send(match token {
                    Some(token) => {
                        Piece::Notification(progress(token, said, self.waiting.id().as_str()))
                    }
                    None => Piece::Alive,
                })
                .await;
        }
    }

    fn abandon(&mut self) -> Outcome {
        match self.waiting.abandon() {
            Outcome::Withdrawn if self.ending.is_cut() => Outcome::Ending,
            outcome => outcome,
        }
    }

    /// Puts the end on record.
    fn end(&mut self, outcome: &Outcome) {
        let Some((place, mut draft)) = self.ends.take() else { return };
        draft.status = match outcome {
            Outcome::Approved { .. } => Status::Success,
            Outcome::Denied { .. } | Outcome::TimedOut { .. } => Status::Rejected,
            Outcome::Withdrawn | Outcome::Ending => Status::Error,
        };
        draft.started = unix_micros();
        draft.duration_us = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        draft.set(
            Text::Error,
            match outcome {
                Outcome::Approved { .. } => "",
                Outcome::Denied { .. } => "approval was denied",
                Outcome::TimedOut { .. } => "nobody answered in time",
                Outcome::Withdrawn => "the client went away before anybody answered",
                Outcome::Ending => "mcpproxy shut down before anybody answered",
            },
        );
        let mut metadata =
            json!({"approval": self.waiting.id().as_str(), "state": outcome.as_str()});
        if let (Some(by), Some(members)) = (outcome.by(), metadata.as_object_mut()) {
            members.insert("by".into(), by.principal.as_ref().into());
            members.insert("door".into(), by.door.as_str().into());
        }
        if let (Outcome::Approved { extent, .. }, Some(members)) =
            (outcome, metadata.as_object_mut())
        {
            let counts = match extent {
                Extent::Once => "once".to_owned(),
                Extent::Session => "session".to_owned(),
                Extent::For(time) => format!("{}s", time.as_secs()),
            };
            members.insert("for".into(), counts.into());
        }
        keep(&mut draft, &metadata);
        // The call's own record is waited for where that is asked for; this one is handed over before it.
        drop(place.submit(draft));
    }

    /// Tells the client that what it was asked is of no use any more, if it has not answered.
    async fn take_back(&mut self, reply: &Reply) {
        let Some((client, id)) = self.question.take() else { return };
        if client.answered(id).is_some() {
            let cancelled = json!({
                "jsonrpc": "2.0", "method": "notifications/cancelled",
                "params": {"requestId": id, "reason": "it is decided"},
            });
            reply.send(Piece::Notification(cancelled.to_string().into())).await;
        }
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        if let Some((client, id)) = self.question.take() {
            client.answered(id);
        }
        if self.ends.is_some() {
            let outcome = self.abandon();
            self.end(&outcome);
        }
    }
}

fn progress(token: &str, said: u32, id: &str) -> Bytes {
    let message = json!(format!("waits for approval {id}"));
    let progress = format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":{said},"message":{message}}}}}"#
    );
    progress.into()
}

fn keep(draft: &mut Draft, metadata: &serde_json::Value) {
    draft.keep(Raw::Metadata, metadata.to_string().as_bytes(), MAX_METADATA_BYTES);
}

fn unix_micros() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
