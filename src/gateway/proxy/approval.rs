//! Wait of a call for its approval (CAP-8): keep-alive, question to the client, and the records of the wait and its end.
//!
//! [`approvals`](mcpproxy_policy::approvals) decides who may answer. Dropping the call, when its client disconnects
//! or cancels, withdraws the approval.
//!
//! A legacy client is asked in parallel to its call. A modern client is asked by the response to its request
//! ([`wait`] ends with [`Stopped::InputRequired`]; MCP 2026-07-28 §Multi Round-Trip Requests). The approval then
//! stays open, owned by the worker, until the client repeats the call ([`claim`]).

use std::fmt;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use jiff::Timestamp;
use mcpproxy_activity::record::{Draft, MAX_METADATA_BYTES, Raw, Status, Text, Type, with_member};
use mcpproxy_activity::{NotAdmitted, Slot};
use mcpproxy_json::members::{member, members, string};
use mcpproxy_policy::approvals::{
    Answerer, ApprovalExtent, ApprovalId, ApprovalVerdict, AskedCall, Covered, Entered,
    MAX_MEMBERS_BYTES, Outcome, Repeated, RepeatedWait, StateRead, UserResponse, WaitingApproval,
    approval_named_in, shown,
};
use mcpproxy_policy::intent::Operation;
use mcpproxy_policy::sealed_state::BoundRequest;
use mcpproxy_policy::tool::SideEffect;
use mcpproxy_policy::{Access, ApprovalDenial, Approved, NotApproved, PendingApproval};
use mcpproxy_protocol::mcp::meta::SERVER_KEY;
use mcpproxy_protocol::mcp::revisions::ProtocolFamily;
use mcpproxy_upstream::CallExtras;
use serde_json::{Value, json};

use super::client::{ApprovalQuestion, Caller, Channel, Client, Question};
use super::params::progress_token;
use super::recorded::record::{CallRecord, INPUTS, META, recorded_member};
use super::refusal::{Refusal, RefusalKind, Stopped};
use super::render;
use super::reply::{Piece, Reply};
use super::shutdown::Ending;
use super::worker::Worker;
use crate::node_directory::ApprovalHolder;

/// Interval of progress notifications for a waiting call.
const PROGRESS_EVERY: Duration = Duration::from_secs(10);
/// Silence after which a client without a progress token gets an event stream, if it accepts one; its keep-alive
/// shows that the call is alive.
const SILENCE: Duration = Duration::from_secs(5);
/// Maximum size of each of arguments, `_meta` and `inputResponses` in an elicitation, in bytes. The client's user is
/// not asked about larger ones.
const MAX_SHOWN_BYTES: usize = 2048;

/// Parts of the call that its [`PendingApproval`] holds only as a digest, or not at all.
pub(super) struct WaitingCall<'a> {
    /// Arguments as sent to the server.
    pub(super) arguments: &'a [u8],
    /// Members of `_meta` that are part of the question; may be empty.
    pub(super) meta: &'a str,
    /// The call's `inputResponses`; may be empty.
    pub(super) inputs: &'a str,
    /// The caller's reason; may be empty.
    pub(super) reason: &'a str,
    /// Members other than the arguments.
    pub(super) extras: &'a CallExtras,
}

/// Request state that a client presents with a request.
pub(super) enum PresentedState {
    None,
    Approval(RepeatedRequest),
    /// State of the server: the members to send, with the state as the server wrote it.
    Server(Bytes),
    /// State of a held call (PRO-42), which is taken over once the request is admitted.
    Held,
}

/// Call that its client repeats after being asked.
pub(super) struct RepeatedRequest {
    pub(super) id: ApprovalId,
    response: UserResponse,
}

/// Resolves the request state of a request for `access`. The state belongs to an approval, to a held call, or to the
/// server; a server's state is unsealed (PRO-31). `members` holds the members other than the arguments, raw JSON joined
/// by commas. Fails if the state was not issued to this principal (or, if it is a server's state, not for this
/// request), or if the approval is on another node.
pub(super) fn presented_state(
    worker: &Worker,
    caller: &Caller,
    record: &mut CallRecord,
    access: &Access,
    members: &[u8],
) -> Result<PresentedState, Refusal> {
    let refused = |why: &dyn fmt::Display| Err(Refusal::invalid_params(why));
    let RepeatMembers { state, response } = match RepeatMembers::read(members) {
        Ok(Some(presented)) => presented,
        Ok(None) => return Ok(PresentedState::None),
        Err(StateNotAString) => return refused(&"requestState must be a string"),
    };
    let mut elsewhere = |node: Box<str>| {
        Err(record.deny(&ApprovalDenial::new(access, NotApproved::Elsewhere { node }).into()))
    };
    let nodes = &worker.proxy.nodes;
    match worker.proxy.approvals.read_state(&state, &caller.principal) {
        StateRead::Foreign => {
            // The state was issued by a fleet node under another key.
            if let Some(ApprovalHolder { node, .. }) =
                approval_named_in(&state).and_then(|id| nodes.approval_holder(id))
            {
                return elsewhere(node);
            }
            let to = BoundRequest { principal: &caller.principal, access };
            match worker.proxy.approvals.open_state(&state, to, SystemTime::now()) {
                Ok(state) => Ok(PresentedState::Server(with_state(members, &state))),
                Err(why) => refused(&why),
            }
        }
        StateRead::Ours(id) => match nodes.approval_holder(id.as_str()) {
            Some(ApprovalHolder { node, is_here: false }) => elsewhere(node),
            Some(_) | None => Ok(PresentedState::Approval(RepeatedRequest { id, response })),
        },
        StateRead::Held(id) => match nodes.approval_holder(id.as_str()) {
            Some(ApprovalHolder { node, is_here: false }) => refused(&format_args!(
                "requestState belongs to a call held by node '{node}', which is unreachable; repeat the request"
            )),
            Some(_) | None => Ok(PresentedState::Held),
        },
        StateRead::Forged => refused(&"requestState was not given to this client"),
    }
}

/// Replaces the request state among the members by this raw one.
fn with_state(others: &[u8], state: &[u8]) -> Bytes {
    let text = format!("{{{}}}", String::from_utf8_lossy(others));
    let mut out = Vec::with_capacity(others.len() + state.len());
    for (name, value) in members(&text).ok().into_iter().flatten().map_while(Result::ok) {
        let value = if name == STATE { state } else { value.as_bytes() };
        let comma: &[u8] = if out.is_empty() { b"" } else { b"," };
        for part in [comma, b"\"", name.as_bytes(), b"\":", value] {
            out.extend_from_slice(part);
        }
    }
    out.into()
}

/// Waits until the call is approved. Stops if it is denied or times out, if too many calls wait, if the log or the
/// proxy fails, or if the client is asked by the response and must repeat the call.
pub(super) async fn wait(
    worker: &Rc<Worker>,
    caller: &Caller,
    record: &mut CallRecord,
    pending: PendingApproval,
    call: WaitingCall<'_>,
) -> Result<Approved, Stopped> {
    let access = pending.access().clone();
    let settings = worker.settings();
    let queue = &worker.proxy.approvals;
    if let Some(covered) = queue.standing_for(&pending, caller.session_id()) {
        return Ok(approved_before(record, covered));
    }
    // An elicitation must show the whole call. Longer calls are approved on the admin page or the command line.
    let longest = call.arguments.len().max(call.meta.len()).max(call.inputs.len());
    let is_shown_whole = longest <= MAX_SHOWN_BYTES;
    let reads = match settings.approval.may_elicit(&caller.principal) && is_shown_whole {
        true => asked_reader(worker, caller, &access, &call),
        false => reader(caller),
    };
    let asks_itself = matches!(reads, Reads::AnswersToo(_) | Reads::AnswersNext);
    if let Err(why) = queue.check(pending.principal(), asks_itself) {
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
            WaitingApproval::enter_repeated(queue, asked, timeout, call.extras.members.clone())
        }
        Reads::Nothing | Reads::Messages | Reads::AnswersToo(_) => {
            WaitingApproval::enter(queue, asked, timeout, asks_itself)
        }
    };
    let waiting = match entered {
        Ok(Entered::Waiting(waiting)) => waiting,
        Ok(Entered::Standing(covered)) => return Ok(approved_before(record, covered)),
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
    for (name, value) in [(META, call.meta), (INPUTS, call.inputs)] {
        if !value.is_empty() {
            let kept = waits.payload(Raw::Metadata).bytes;
            let metadata = with_member(kept, name, &recorded_member(value));
            waits.keep(Raw::Metadata, &metadata, MAX_METADATA_BYTES);
        }
    }
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
            // `adopt` has dropped the wait, which withdraws the approval.
            false => {
                let denial = ApprovalDenial::new(&access, NotApproved::Unavailable);
                record.deny(&denial.into()).into()
            }
        });
    }
    record.begin_wait_for_person(began);
    let (queue, id) = (Arc::clone(queue), wait.waiting.id().clone());
    record.reply().when_broken(move || queue.note_disconnected(&id));
    wait.ask(&reads, caller, &question, record.reply()).await;
    let outcome = wait.outcome(&reads, &call, record.reply()).await;
    wait.end(&outcome);
    record.end_wait_for_person(Instant::now());
    wait.take_back(record.reply()).await;
    record_answer(record, &outcome);
    approved(outcome).map_err(|why| record.deny(&ApprovalDenial::new(&access, why).into()).into())
}

/// Continues a repeated call. The user's answer counts if no other channel has answered before. Without an answer, the
/// call waits for an approval from another channel. The returned members are those of the first request. Stops for the
/// same reasons as [`wait`], and also if the approval has ended or belongs to another call.
pub(super) async fn claim(
    worker: &Rc<Worker>,
    caller: &Caller,
    record: &mut CallRecord,
    pending: PendingApproval,
    RepeatedRequest { id, response }: RepeatedRequest,
    call: WaitingCall<'_>,
) -> Result<(Approved, Bytes), Stopped> {
    record.add_metadata("approval", &json!(id.as_str()).to_string());
    let access = pending.access().clone();
    let claimed = RepeatedWait::enter(&worker.proxy.approvals, &id, &pending, response);
    let (outcome, members) = match claimed {
        Ok(Repeated::Over { outcome, members }) => (outcome, members),
        Ok(Repeated::AskAgain) => {
            let question = question(&asked(pending, caller, &call));
            return Err(ask_by_answer(worker, caller, record, &id, &question));
        }
        Ok(Repeated::Waits(mut wait)) => {
            let members = wait.members();
            record.begin_wait_for_person(Instant::now());
            let reads = reader(caller);
            let ending = &worker.ending;
            let outcome = awake(wait.outcome(), &reads, &call, &id, ending, record.reply()).await;
            record.end_wait_for_person(Instant::now());
            (outcome.unwrap_or(Outcome::Ending), members)
        }
        Err(why) => return Err(record.deny(&ApprovalDenial::new(&access, why).into()).into()),
    };
    let is_overruled = matches!(
        (&response, &outcome),
        (UserResponse::Verdict(ApprovalVerdict::Deny), Outcome::Approved { .. })
    );
    if !is_overruled {
        record_answer(record, &outcome);
    }
    let outcome = match response {
        // Another channel answered first, but a call that its own user denies is not sent.
        UserResponse::Verdict(ApprovalVerdict::Deny) => Err(NotApproved::Denied),
        UserResponse::Verdict(ApprovalVerdict::Approve(_))
        | UserResponse::Missing
        | UserResponse::Nothing => approved(outcome),
    };
    let denied = |why| record.deny(&ApprovalDenial::new(&access, why).into()).into();
    outcome.map(|approved| (approved, members)).map_err(denied)
}

/// Records the standing approval that covers the call, and who granted it.
fn approved_before(record: &mut CallRecord, Covered { approved, of, by }: Covered) -> Approved {
    record.add_metadata("approval", &json!(of.as_str()).to_string());
    let mut answer = answer("approved", &by);
    if let Some(members) = answer.as_object_mut() {
        // Tells the call apart from the one that the person saw.
        members.insert("standing".into(), true.into());
    }
    record.add_metadata("approval_answer", &answer.to_string());
    approved
}

/// Records who answered, if somebody did, in the record of the call.
fn record_answer(record: &mut CallRecord, outcome: &Outcome) {
    if let Some(by) = outcome.by() {
        record.add_metadata("approval_answer", &answer(outcome.as_str(), by).to_string());
    }
}

/// Members of a record that tell an answer and who gave it.
fn answer(state: &str, by: &Answerer) -> Value {
    let mut answer = json!({
        "state": state, "by": by.principal.as_ref(), "door": by.channel.as_str(),
    });
    if let (Some(node), Some(members)) = (by.node.as_deref(), answer.as_object_mut()) {
        members.insert("node".into(), node.into());
    }
    answer
}

/// Outcome of a wait, for the call.
fn approved(outcome: Outcome) -> Result<Approved, NotApproved> {
    match outcome {
        Outcome::Approved { approved, .. } => Ok(approved),
        Outcome::Denied { .. } => Err(NotApproved::Denied),
        Outcome::TimedOut { after } => Err(NotApproved::TimedOut(after)),
        Outcome::Withdrawn | Outcome::Ending => Err(NotApproved::Ending),
    }
}

/// Ends a request with an `InputRequired` result that asks its client for approval; the client then repeats the call.
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
        result: result(question, &state),
        why: format!("waits for approval {id}: the client was asked, and makes the call again"),
    }
}

/// Reserves a log slot for the record of the wait or of its end, before anyone is asked.
async fn place(worker: &Worker, record: &CallRecord) -> Result<Slot, Refusal> {
    worker.proxy.activity.reserve().await.map_err(|refused: NotAdmitted| {
        let kind = record.kind().refusal_kind(RefusalKind::Unavailable);
        Refusal::rejected(kind, refused.to_string())
    })
}

/// Messages that the client accepts before its response.
enum Reads<'a> {
    Nothing,
    Messages,
    /// Progress, and questions to its user.
    AnswersToo(&'a Arc<Client>),
    /// Nothing, but the client can ask its user after the response and repeat the call.
    AnswersNext,
}

/// Messages accepted by a client that is not asked.
fn reader(caller: &Caller) -> Reads<'static> {
    match &caller.client {
        Some((_, Channel::Stream)) => Reads::Messages,
        Some((_, Channel::Answer)) | None => Reads::Nothing,
    }
}

/// Messages accepted by a client; the client is asked if it can ask its user.
fn asked_reader<'a>(
    worker: &Worker,
    caller: &'a Caller,
    access: &Access,
    call: &WaitingCall<'_>,
) -> Reads<'a> {
    match &caller.client {
        Some((client, channel)) if client.client_capabilities.elicitation_forms => {
            match (client.family, channel) {
                (ProtocolFamily::Legacy, Channel::Stream) => Reads::AnswersToo(client),
                (ProtocolFamily::Modern, _)
                    if access.may_require_input()
                        && call.extras.members.len() <= MAX_MEMBERS_BYTES
                        && worker.proxy.approvals.makes_states()
                        && worker.may_defer() =>
                {
                    Reads::AnswersNext
                }
                (ProtocolFamily::Legacy, Channel::Answer) | (ProtocolFamily::Modern, _) => {
                    reader(caller)
                }
            }
        }
        Some(_) | None => reader(caller),
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
        Access::Resource { .. }
        | Access::Prompt { .. }
        | Access::Completion { .. }
        | Access::Method { .. }
        | Access::Task(_) => (None, false),
    };
    AskedCall {
        pending,
        operation,
        destructive,
        reason: call.reason.into(),
        arguments: String::from_utf8_lossy(call.arguments).into(),
        meta: call.meta.into(),
        inputs: call.inputs.into(),
        session: caller.session_id().into(),
        client: caller.client_name().into(),
        request_id: String::from_utf8_lossy(&caller.request_id).into(),
    }
}

/// Question to the client's user.
fn question(asked: &AskedCall) -> String {
    let AskedCall { pending, operation, reason, arguments, meta, inputs, .. } = asked;
    let operation = operation.map_or("", Operation::as_str);
    let mut question = format!(
        "Allow this {operation} call of {}?\nArguments: {}",
        shown(&pending.access().to_string(), MAX_SHOWN_BYTES),
        shown(arguments, MAX_SHOWN_BYTES)
    );
    for (title, text) in [("_meta", meta), ("inputResponses", inputs), ("Reason", reason)] {
        if !text.is_empty() {
            question += &format!("\n{title}: {}", shown(text, MAX_SHOWN_BYTES));
        }
    }
    question
}

/// A pending wait. Dropping it withdraws the approval and records the withdrawal.
struct Wait {
    waiting: WaitingApproval,
    /// Slot and draft of the record of the wait's end.
    ends: Option<(Slot, Draft)>,
    began: Instant,
    ending: Ending,
    question: Option<(Arc<Client>, u64)>,
}

impl Wait {
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

    /// Waits for the approval's outcome while sending progress notifications or keep-alives.
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

    /// Waits for the outcome of an approval whose request has ended, and records the outcome.
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

    fn end(&mut self, outcome: &Outcome) {
        let Some((place, mut draft)) = self.ends.take() else { return };
        draft.status = match outcome {
            Outcome::Approved { .. } => Status::Success,
            Outcome::Denied { .. }
            | Outcome::TimedOut { .. }
            | Outcome::Withdrawn
            | Outcome::Ending => Status::Rejected,
        };
        draft.started = unix_micros();
        draft.duration_us = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        draft.set(
            Text::Error,
            match outcome {
                Outcome::Approved { .. } => "",
                Outcome::Denied { .. } => "approval was denied",
                Outcome::TimedOut { .. } => "nobody answered in time",
                Outcome::Withdrawn => "the client disconnected before anybody answered",
                Outcome::Ending => "mcpproxy shut down before anybody answered",
            },
        );
        let mut metadata = match outcome.by() {
            Some(by) => answer(outcome.as_str(), by),
            None => json!({"state": outcome.as_str()}),
        };
        if let Some(members) = metadata.as_object_mut() {
            members.insert("approval".into(), self.waiting.id().as_str().into());
        }
        if let (Outcome::Approved { extent, .. }, Some(members)) =
            (outcome, metadata.as_object_mut())
        {
            let counts = match extent {
                ApprovalExtent::Once => "once".to_owned(),
                ApprovalExtent::Session => "session".to_owned(),
                ApprovalExtent::For(time) => format!("{}s", time.as_secs()),
            };
            members.insert("for".into(), counts.into());
        }
        keep(&mut draft, &metadata);
        draft.has_own_metadata = true;
        // Submission is not awaited: the call's own record follows and provides the durability.
        drop(place.submit(draft));
    }

    /// Cancels the open question to the client.
    async fn take_back(&mut self, reply: &Reply) {
        let Some((client, id)) = self.question.take() else { return };
        if client.answered(id).is_some() {
            let canceled = json!({
                "jsonrpc": "2.0", "method": "notifications/cancelled",
                "params": {"requestId": id, "reason": "the approval was already decided"},
            });
            reply.send(Piece::Notification(canceled.to_string().into())).await;
        }
    }
}

/// Waits for the approval's outcome while sending progress notifications or keep-alives; `None` if the proxy shuts
/// down first.
async fn awake(
    outcome: impl Future<Output = Outcome>,
    reads: &Reads<'_>,
    call: &WaitingCall<'_>,
    id: &ApprovalId,
    ending: &Ending,
    reply: &Reply,
) -> Option<Outcome> {
    let token = call.extras.meta.as_ref().and_then(progress_token);
    let token = token.as_deref().and_then(|raw| std::str::from_utf8(raw).ok());
    let mut outcome = pin!(outcome);
    let mut count = 0_u32;
    loop {
        let pause = match (reads, token, count) {
            (Reads::Messages | Reads::AnswersToo(_), Some(_), 0) => Some(Duration::ZERO),
            (Reads::Messages | Reads::AnswersToo(_), Some(_), _) => Some(PROGRESS_EVERY),
            (Reads::Messages, None, 0) => Some(SILENCE),
            // The reply is already a stream, with its own keep-alive.
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
        count = count.saturating_add(1);
        let piece = match token {
            Some(token) => Piece::Notification(progress(token, count, id.as_str())),
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

fn progress(token: &str, count: u32, id: &str) -> Bytes {
    let message = json!(format!("waits for approval {id}"));
    let progress = format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":{count},"message":{message}}}}}"#
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

/// Key of the only question.
const QUESTION: &str = "approval";

/// Result that asks for an approval: `message` is for the client's user, `state` is returned unchanged.
pub(super) fn result(message: &str, state: &str) -> Bytes {
    let question = json!({
        "method": "elicitation/create",
        "params": {
            "mode": "form", "message": message,
            "requestedSchema": {"type": "object", "properties": {}},
        },
    });
    let result = json!({
        "resultType": "input_required",
        "inputRequests": {QUESTION: question},
        "requestState": state,
        "_meta": {SERVER_KEY: render::server_info()},
    });
    result.to_string().into()
}

/// Member with the request state.
const STATE: &str = "requestState";

/// Request state that is neither a string nor null.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct StateNotAString;

/// Members that a client adds when it repeats a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RepeatMembers {
    pub(super) state: String,
    /// The client's answer to the question, if the state is valid.
    pub(super) response: UserResponse,
}

/// The `inputResponses` among the members other than the arguments, raw JSON; empty if missing.
pub(super) fn input_responses(members: &[u8]) -> Box<str> {
    let text = format!("{{{}}}", std::str::from_utf8(members).unwrap_or_default());
    member(&text, "inputResponses").filter(|it| *it != "null").unwrap_or_default().into()
}

impl RepeatMembers {
    /// Parses the members other than the arguments, raw JSON `"key":value` joined by commas; `None` without a request
    /// state.
    pub(super) fn read(members: &[u8]) -> Result<Option<Self>, StateNotAString> {
        let text = format!("{{{}}}", std::str::from_utf8(members).unwrap_or_default());
        let Some(state) = member(&text, STATE).filter(|state| *state != "null") else {
            return Ok(None);
        };
        let state = string(state).ok_or(StateNotAString)?.into_owned();
        let response = member(&text, "inputResponses").map_or(UserResponse::Missing, user_response);
        Ok(Some(Self { state, response }))
    }
}

/// The `action` of the answer. An unknown action does not count as an answer.
fn user_response(responses: &str) -> UserResponse {
    let Some(answer) = member(responses, QUESTION) else { return UserResponse::Missing };
    match member(answer, "action").and_then(string).as_deref().map(verdict) {
        Some(Some(verdict)) => UserResponse::Verdict(verdict),
        Some(None) | None => UserResponse::Nothing,
    }
}

/// Verdict of an elicitation's `action`.
pub(super) fn verdict(action: &str) -> Option<ApprovalVerdict> {
    match action {
        "accept" => Some(ApprovalVerdict::Approve(ApprovalExtent::Once)),
        "decline" => Some(ApprovalVerdict::Deny),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cap_8_members_of_a_repeated_request_are_parsed() {
        let approve = UserResponse::Verdict(ApprovalVerdict::Approve(ApprovalExtent::Once));
        for (responses, response) in [
            (r#","inputResponses":{"approval":{"action":"accept","content":{}}}"#, approve),
            (
                r#","inputResponses":{"approval":{"action":"decline"}}"#,
                UserResponse::Verdict(ApprovalVerdict::Deny),
            ),
            (
                r#","inputResponses":{"x":{"action":"accept"},"approval":{"action":"cancel"}}"#,
                UserResponse::Nothing,
            ),
            (r#","inputResponses":{"approval":{"action":7}}"#, UserResponse::Nothing),
            (r#","inputResponses":{"approval":"accept"}"#, UserResponse::Nothing),
            (r#","inputResponses":{"approval":null}"#, UserResponse::Nothing),
            (r#","inputResponses":{"other":{"action":"accept"}}"#, UserResponse::Missing),
            (r#","inputResponses":{}"#, UserResponse::Missing),
            (r#","inputResponses":7"#, UserResponse::Missing),
            ("", UserResponse::Missing),
        ] {
            let members = format!(r#""requestState":"a\u0062"{responses}"#);
            let brought = RepeatMembers { state: "ab".into(), response };
            assert_eq!(RepeatMembers::read(members.as_bytes()), Ok(Some(brought)), "{members}");
        }
        for none in ["", r#""requestState":null"#, r#""task":{}"#, r#""inputResponses":{}"#] {
            assert_eq!(RepeatMembers::read(none.as_bytes()), Ok(None), "{none}");
        }
        for wrong in [r#""requestState":7"#, r#""requestState":{"a":1}"#] {
            assert_eq!(RepeatMembers::read(wrong.as_bytes()), Err(StateNotAString), "{wrong}");
        }
    }

    #[test]
    fn pro_31_request_state_is_replaced_and_other_members_stay() {
        let state = br#""\u00e9""#;
        for (members, expected) in [
            (r#""requestState":"sealed""#, r#""requestState":"\u00e9""#),
            (
                r#""inputResponses":{"requestState": 1.0},"requestState":"sealed""#,
                r#""inputResponses":{"requestState": 1.0},"requestState":"\u00e9""#,
            ),
        ] {
            assert_eq!(with_state(members.as_bytes(), state), expected, "{members}");
        }
    }

    #[test]
    fn cap_8_question_is_a_form_without_fields() {
        let result = result("Allow?", "state");
        let result: serde_json::Value = serde_json::from_slice(&result).unwrap();
        assert_eq!(
            (&result["resultType"], &result["requestState"]),
            (&json!("input_required"), &json!("state"))
        );
        let question = &result["inputRequests"][QUESTION];
        assert_eq!(
            (&question["method"], &question["params"]["mode"]),
            (&json!("elicitation/create"), &json!("form"))
        );
        assert_eq!(question["params"]["requestedSchema"]["type"], "object");
    }
}
