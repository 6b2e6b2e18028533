//! A call that waits for a person (CAP-8): its client is kept awake and asked, and the wait and its end go on record.
//!
//! Who may answer, and what counts, is the room's ([`approvals`](crate::approvals)). A call that is dropped, because
//! its client has gone or has cancelled it, is withdrawn by that.
//!
//! A client of the initialize-based revisions is asked beside its call. One of the stateless revision is asked by the
//! answer to its request ([`wait`] ends with [`Stopped::InputRequired`]), which is over then; the approval stays open in
//! the hands of the worker, and the client makes the call again ([`claim`]).

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use jiff::Timestamp;
use serde_json::json;

use super::call_record::CallRecord;
use super::caller::{Caller, Channel};
use super::client::{ApprovalQuestion, Client, Question};
use super::input_required::{self, Brought};
use super::params::progress_token;
use super::refusal::RefusalKind;
use super::rejection::{Rejection, Stopped};
use super::reply::{Piece, Reply};
use super::shutdown::Ending;
use super::worker::Worker;
use crate::activity::record::{Draft, MAX_METADATA_BYTES, Raw, Status, Text, Type};
use crate::activity::{NotAdmitted, Slot};
use crate::approvals::{
    ApprovalId, ApprovalVerdict, AskedCall, Entered, Extent, MAX_BESIDE_BYTES, Outcome, Repeated,
    RepeatedWait, StateRead, UserSaid, WaitingApproval, approval_named_in, shown,
};
use crate::fleet::config::NodeName;
use crate::fleet::sealed_mark::NodeTag;
use crate::intent::Operation;
use crate::mcp::revisions::Era;
use crate::policy::{
    Access, ApprovalDenial, Approved, NotApproved, PendingApproval, ResourceRequest,
};
use crate::tool::SideEffect;
use crate::upstream::CallExtras;

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
    /// What stands beside them in the request.
    pub(super) beside: &'a CallExtras,
}

/// A call that its client makes again, since it was asked.
pub(super) struct RepeatedRequest {
    pub(super) id: ApprovalId,
    said: UserSaid,
}

/// The approval that a request for `access` is made again for, if its request state is one of ours. `beside`: the members
/// beside its arguments, raw JSON joined by commas.
///
/// # Errors
/// The state was never given to this principal; or its approval is another node's of the fleet, and this one is asked.
pub(super) fn repeated_request(
    worker: &Worker,
    caller: &Caller,
    record: &mut CallRecord,
    access: &Access,
    beside: &[u8],
) -> Result<Option<RepeatedRequest>, Rejection> {
    let Some(Brought { state, said }) = Brought::read(beside) else { return Ok(None) };
    let mut elsewhere = |node: Box<str>| {
        Err(record.deny(&ApprovalDenial::new(access, NotApproved::Elsewhere { node }).into()))
    };
    match worker.proxy.approvals.read_state(&state, &caller.principal) {
        // One that a node of this fleet has made under another key: no server is to see it.
        StateRead::Foreign => match approval_named_in(&state).and_then(|id| holder(worker, id)) {
            Some(Holder { node, .. }) => elsewhere(node),
            None => Ok(None),
        },
        StateRead::Ours(id) => match holder(worker, id.as_str()) {
            Some(Holder { node, is_here: false }) => elsewhere(node),
            Some(_) | None => Ok(Some(RepeatedRequest { id, said })),
        },
        StateRead::Forged => {
            let text = "Invalid params: requestState was not given to this client".to_owned();
            Err(Rejection::new(Status::Rejected, RefusalKind::Unreadable, text))
        }
    }
}

/// The node that holds a call.
struct Holder {
    node: Box<str>,
    is_here: bool,
}

/// The node of the fleet that holds the call of that approval, as its id says.
fn holder(worker: &Worker, id: &str) -> Option<Holder> {
    let (fleet, mark) = (worker.proxy.fleet.as_deref()?, ApprovalId::node_in(id)?);
    let is_it = |name: &NodeName| NodeTag::of(name).text() == mark;
    if is_it(&fleet.name) {
        return Some(Holder { node: fleet.name.as_str().into(), is_here: true });
    }
    let living = fleet.living();
    let view = living.all().iter().find(|view| is_it(&view.name))?;
    Some(Holder { node: view.name.as_str().into(), is_here: false })
}

/// Waits until the call is approved.
///
/// # Errors
/// It is not: denied, too late, too many wait, or the log or the proxy does not go on. Or its client is asked by the
/// answer, and makes it again.
pub(super) async fn wait(
    worker: &Rc<Worker>,
    caller: &Caller,
    record: &mut CallRecord,
    pending: PendingApproval,
    call: WaitingCall<'_>,
) -> Result<Approved, Stopped> {
    let access = pending.access().clone();
    let settings = worker.settings();
    let room = &worker.proxy.approvals;
    if let Some((approved, of)) = room.standing_for(&pending, caller.session_id()) {
        record.add_metadata("approval", &json!(of.as_str()).to_string());
        return Ok(approved);
    }
    let reads = match settings.approval.elicitation {
        true => asked_reader(worker, caller, &access, &call),
        false => reader(caller),
    };
    let asks_itself = matches!(reads, Reads::AnswersToo(_) | Reads::AnswersNext);
    if let Err(why) = room.check(pending.principal(), asks_itself) {
        return Err(record.deny(&ApprovalDenial::new(&access, why).into()).into());
    }
    let begins = place(worker, record).await?;
    let ends = place(worker, record).await?;
    let began = Instant::now();
    let asked = asked(pending, caller, &call);
    let digest = asked.pending.digest();
    let question = question(&asked);
    let timeout = settings.approval.timeout;
    let entered = match reads {
        Reads::AnswersNext => {
            WaitingApproval::enter_repeated(room, asked, timeout, call.beside.members.clone())
        }
        Reads::Nothing | Reads::Messages | Reads::AnswersToo(_) => {
            WaitingApproval::enter(room, asked, timeout, asks_itself)
        }
    };
    let waiting = match entered {
        Ok(Entered::Waiting(waiting)) => waiting,
        Ok(Entered::Leave { approved, of }) => {
            record.add_metadata("approval", &json!(of.as_str()).to_string());
            return Ok(approved);
        }
        Err(why) => return Err(record.deny(&ApprovalDenial::new(&access, why).into()).into()),
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
    if let Reads::AnswersNext = reads {
        let id = wait.waiting.id().clone();
        return Err(match worker.adopt(wait.unattended()) {
            true => ask_by_answer(worker, caller, record, &id, &question),
            // It is dropped, and with that withdrawn.
            false => {
                let denial = ApprovalDenial::new(&access, NotApproved::Unavailable);
                record.deny(&denial.into()).into()
            }
        });
    }
    wait.ask(&reads, caller, &question, record.reply()).await;
    let outcome = wait.outcome(&reads, &call, record.reply()).await;
    wait.end(&outcome);
    record.has_waited(began.elapsed());
    wait.take_back(record.reply()).await;
    approved(outcome).map_err(|why| record.deny(&ApprovalDenial::new(&access, why).into()).into())
}

/// A call is made again: what its client's user said counts, if it is the first answer; where that is none, another
/// door is waited for. With what stood beside the arguments of the first request.
///
/// # Errors
/// As of [`wait`]; or its approval is not there any more, or is for another call.
pub(super) async fn claim(
    worker: &Rc<Worker>,
    caller: &Caller,
    record: &mut CallRecord,
    pending: PendingApproval,
    RepeatedRequest { id, said }: RepeatedRequest,
    call: WaitingCall<'_>,
) -> Result<(Approved, Bytes), Stopped> {
    record.add_metadata("approval", &json!(id.as_str()).to_string());
    let access = pending.access().clone();
    let claimed = RepeatedWait::enter(&worker.proxy.approvals, &id, &pending, said);
    let (outcome, beside) = match claimed {
        Ok(Repeated::Over { outcome, beside }) => (outcome, beside),
        Ok(Repeated::AskAgain) => {
            let question = question(&asked(pending, caller, &call));
            return Err(ask_by_answer(worker, caller, record, &id, &question));
        }
        Ok(Repeated::Waits(mut wait)) => {
            let (began, beside) = (Instant::now(), wait.beside());
            let reads = reader(caller);
            let ending = &worker.ending;
            let outcome = awake(wait.outcome(), &reads, &call, &id, ending, record.reply()).await;
            record.has_waited(began.elapsed());
            (outcome.unwrap_or(Outcome::Ending), beside)
        }
        Err(why) => return Err(record.deny(&ApprovalDenial::new(&access, why).into()).into()),
    };
    let outcome = match said {
        // Somebody else was first; but what its own user does not want is not sent.
        UserSaid::Verdict(ApprovalVerdict::Deny) => Err(NotApproved::Denied),
        UserSaid::Verdict(ApprovalVerdict::Approve(_)) | UserSaid::Missing | UserSaid::Nothing => {
            approved(outcome)
        }
    };
    let denied = |why| record.deny(&ApprovalDenial::new(&access, why).into()).into();
    outcome.map(|approved| (approved, beside)).map_err(denied)
}

/// What an end of a wait means for the call.
fn approved(outcome: Outcome) -> Result<Approved, NotApproved> {
    match outcome {
        Outcome::Approved { approved, .. } => Ok(approved),
        Outcome::Denied { .. } => Err(NotApproved::Denied),
        Outcome::TimedOut { after } => Err(NotApproved::TimedOut(after)),
        Outcome::Withdrawn | Outcome::Ending => Err(NotApproved::Ending),
    }
}

/// The end of a request whose client is asked, and makes it again.
fn ask_by_answer(
    worker: &Worker,
    caller: &Caller,
    record: &mut CallRecord,
    id: &ApprovalId,
    question: &str,
) -> Stopped {
    record.add_metadata("input_required", "true");
    let state = worker.proxy.approvals.request_state(id, &caller.principal).unwrap_or_default();
    Stopped::InputRequired {
        result: input_required::result(question, &state),
        why: format!("waits for approval {id}: the client was asked, and makes the call again"),
    }
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
    /// Nothing; but it can ask its user after the answer, and make the call again.
    AnswersNext,
}

/// Of a client that is not asked.
fn reader(caller: &Caller) -> Reads<'static> {
    match &caller.client {
        Some((_, Channel::Stream)) => Reads::Messages,
        Some((_, Channel::Answer)) | None => Reads::Nothing,
    }
}

/// Of a client that is asked if it can ask its user.
fn asked_reader<'a>(
    worker: &Worker,
    caller: &'a Caller,
    access: &Access,
    call: &WaitingCall<'_>,
) -> Reads<'a> {
    match &caller.client {
        Some((client, channel)) if client.client_capabilities.elicitation_forms => {
            match (client.era, channel) {
                (Era::Legacy, Channel::Stream) => Reads::AnswersToo(client),
                (Era::Modern, _)
                    if may_be_made_again(access)
                        && call.beside.members.len() <= MAX_BESIDE_BYTES
                        && worker.proxy.approvals.makes_states()
                        && worker.may_defer() =>
                {
                    Reads::AnswersNext
                }
                (Era::Legacy, Channel::Answer) | (Era::Modern, _) => reader(caller),
            }
        }
        Some(_) | None => reader(caller),
    }
}

/// Requests that may be answered by a question (MCP 2026-07-28 §Supported Requests).
fn may_be_made_again(access: &Access) -> bool {
    match access {
        Access::Tool(_) | Access::Prompt { .. } => true,
        Access::Resource { request, .. } => match request {
            ResourceRequest::Read => true,
            ResourceRequest::Subscribe | ResourceRequest::Unsubscribe => false,
        },
        Access::Completion { .. } => false,
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
        let id = self.waiting.id().clone();
        let outcome = awake(self.waiting.outcome(), reads, call, &id, &self.ending, reply).await;
        outcome.unwrap_or_else(|| self.abandon())
    }

    /// Waits for the end of an approval whose request is over, and puts it on record.
    async fn unattended(mut self) {
        let outcome = self.ending.unless_cut(pin!(self.waiting.outcome())).await;
        let outcome = outcome.unwrap_or_else(|| self.abandon());
        self.end(&outcome);
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
            if let Some(node) = by.node.as_deref() {
                members.insert("node".into(), node.into());
            }
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

/// Waits for the end of a wait, and keeps the client awake meanwhile; `None` if the proxy ends first.
async fn awake(
    outcome: impl Future<Output = Outcome>,
    reads: &Reads<'_>,
    call: &WaitingCall<'_>,
    id: &ApprovalId,
    ending: &Ending,
    reply: &Reply,
) -> Option<Outcome> {
    let token = call.beside.meta.as_ref().and_then(progress_token);
    let token = token.as_deref().and_then(|raw| std::str::from_utf8(raw).ok());
    let mut outcome = pin!(outcome);
    let mut said = 0_u32;
    loop {
        let pause = match (reads, token, said) {
            (Reads::Messages | Reads::AnswersToo(_), Some(_), 0) => Some(Duration::ZERO),
            (Reads::Messages | Reads::AnswersToo(_), Some(_), _) => Some(PROGRESS_EVERY),
            (Reads::Messages, None, 0) => Some(SILENCE),
            // It is a stream by now, which shows by itself that it is alive.
            (Reads::Messages | Reads::AnswersToo(_), None, _)
            | (Reads::Nothing | Reads::AnswersNext, ..) => None,
        };
        let speaks = async {
            match pause {
                Some(pause) => tokio::time::sleep(pause).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            outcome = ending.unless_cut(outcome.as_mut()) => return outcome,
            () = speaks => {}
        }
        said = said.saturating_add(1);
        let piece = match token {
            Some(token) => Piece::Notification(progress(token, said, id.as_str())),
            None => Piece::Alive,
        };
        reply.send(piece).await;
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
