//! Exchange: carries an upstream's answer chunks through the inspector into the reply.
//!
//! The exchange owns the order of forwarding, validating and recording in each mode; inspector and schema decide
//! which answers are violations. At the end it releases the request's permits and reports to the circuit breaker. An
//! idempotent call is repeated once if its connection failed before anything arrived (CAP-7).

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::SystemTime;

use bytes::Bytes;
use mcpproxy_activity::record::{Decision, Status};
use mcpproxy_activity::{Durability, record};
use mcpproxy_catalog::exposed_uris::AnswerRewriter;
use mcpproxy_policy::sealed_state::{BoundRequest, MAX_SERVER_STATE_BYTES};
use mcpproxy_policy::tool::OutputSchema;
use mcpproxy_policy::{Access, BreakerChange, Permit, ResourceRequest, ServerOutcome};
use mcpproxy_protocol::mcp::capabilities::ClientCapabilities;
use mcpproxy_protocol::mcp::revisions::ProtocolFamily;
use mcpproxy_protocol::wire::splice::Splice;
use mcpproxy_runtime::io::clock;
use mcpproxy_runtime::io::line_budget::{LinePeer, peer_line};
use mcpproxy_schema::compile::Schema;
use mcpproxy_schema::judge::Verdict;
use mcpproxy_schema::output::{
    AnswerFault, AnswerMember, BareContent, Failure, Finding, InspectedMessage, Inspector, Mode,
    Policy, Required, StatePart, Treatment,
};
use mcpproxy_upstream::{AnswerPart, CallAttempt, CallError, PermittedCall};
use tracing::Instrument;

use self::input_rounds::{InputFault, InputRounds};
use super::held::bounds::PreparedHold;
use super::held::held_answer::AnswerStream;
use super::kept_results::{KEPT, KeepFailure, Keeping, NOT_KEPT};
use super::recorded::receipt::Departure;
use super::recorded::record::CallRecord;
use super::refusal::{Refusal, RefusalKind};
use super::relay::{ASKED_LIMIT, AnsweringServer, HeldQuestion, Relay, Step};
use super::reply::{Aborted, Piece, Reply};
use super::session_facts::Rise;
use super::shutdown::CUT_OFF;
use super::tasks::capability::TaskAnswer;
use super::worker::Worker;
use super::{memory_budget, render};
use crate::telemetry::call_metrics::Judged;

mod ask;
mod error_answer;
mod hold;
pub(super) mod input_rounds;
mod lost_stream;
mod retry;
mod task;
mod withheld_task;

pub(super) use retry::Retry;

/// Maximum number of bytes gathered for one write of a streamed answer.
const MAX_GATHERED_BYTES: usize = 256 * 1024;
/// Maximum number of answers to unknown ids before the expected one.
const MAX_FOREIGN: u32 = 16;
/// Member of `metadata` that names the member of an answer that was adapted to the client.
const ADAPTED: &str = "adapted";
/// Member of `metadata` of a call that was answered by a request for input.
const INPUT_REQUIRED: &str = "input_required";
/// Wrapper object around structured content that is not an object.
const WRAPPER_BEGIN: &[u8] = br#"{"result":"#;
const WRAPPER_END: &[u8] = b"}";

/// An answer in progress.
pub(super) struct Exchange {
    worker: Rc<Worker>,
    permit: Permit,
    /// `None` once the answer is complete, or closed by strict mode.
    answer: Option<AnswerStream>,
    inspector: Inspector,
    treatment: Treatment,
    call_record: CallRecord,
    relay: Relay,
    reply: Reply,
    /// Slices not forwarded yet: held by strict mode, or gathered for one write.
    waiting: Splice,
    /// This call's share of the memory for held bytes; unused without validation.
    share: Option<memory_budget::Share>,
    /// The result as received, as long as it may be kept on disk; during that time, none of it is forwarded.
    keeping: Option<Box<Keeping>>,
    /// Answers to unknown ids so far.
    foreign: u32,
    /// Prepared repetition of the call, as long as nothing has arrived from the server.
    retry: Option<Box<Retry>>,
    /// Prepared repetition with the client's input, as long as the result may ask for input. During that time, nothing
    /// is sent.
    rounds: Option<InputRounds>,
    /// Arguments of a call that can be held.
    holdable: Option<Bytes>,
    /// The server's question, if the call is to be held.
    held: Option<(HeldQuestion, Box<PreparedHold>)>,
    /// Facts to raise when the first part of the answer arrives.
    rise: Option<Rise>,
    rewriter: Option<Box<AnswerRewriter>>,
    /// Incomplete beginning of a `requestState`.
    open_state: Option<Vec<u8>>,
    /// Whether a byte of the answer was sent.
    begun: bool,
    /// Whether a guard's final verdict is among the record's decisions (warn).
    breached: bool,
    /// Part of the answer that may be about a task; it is not sent until that is known.
    tasks: Option<TaskAnswer>,
    /// Rest of an answer about a task, before and after the result of its call.
    envelope: Option<Box<(Splice, Splice)>>,
    task_failed: bool,
    /// The server's original bytes of `waiting`, if they differ and locations in them are needed.
    original: Option<Box<Splice>>,
}

/// Early end of an answer.
enum Broken {
    /// Missing or incomplete answer, with the outcome to report to the circuit breaker, if any.
    Upstream(String, Option<ServerOutcome>),
    Blocked(Failure),
    /// A server asked for input that the client did not declare: the JSON-RPC error for the client, and its text.
    Unable(Bytes, String),
    /// The call is held for its client's input.
    Held,
    /// The answer was cut off at shutdown.
    CutOff,
}

impl From<InputFault> for Broken {
    fn from(fault: InputFault) -> Self {
        Self::Upstream(fault.to_string(), Some(ServerOutcome::Answered))
    }
}

impl From<AnswerFault> for Broken {
    fn from(fault: AnswerFault) -> Self {
        Self::Upstream(fault.to_string(), Some(ServerOutcome::Failed))
    }
}

impl From<CallError> for Broken {
    fn from(error: CallError) -> Self {
        let outcome = error.cause.blames_server().then_some(ServerOutcome::Failed);
        Self::Upstream(error.cause.to_string(), outcome)
    }
}

impl Exchange {
    pub(super) fn new(
        worker: Rc<Worker>,
        SentRequest { permit, answer, holdable, retry, rewriter, tasks }: SentRequest,
        call_record: CallRecord,
        relay: Relay,
        reply: Reply,
        (rise, keeping): (Option<Rise>, Option<Box<Keeping>>),
    ) -> Self {
        // An answer about a task is parsed before its result is validated.
        let judged = permit.access().called_tool();
        let treatment = judged.map_or(Treatment::Forward, |tool| tool.treatment());
        let policy = policy(&permit);
        let hash_key = worker.proxy.hash_key;
        let inspector = Inspector::new(treatment, &policy, answer.id(), hash_key);
        let waiting = Splice::new();
        let held = if judged.is_none() && tasks.is_some() { Treatment::Hold } else { treatment };
        let share = share(&worker, &permit, held);
        Self {
            worker,
            permit,
            answer: Some(answer),
            inspector,
            treatment,
            call_record,
            relay,
            reply,
            waiting,
            share,
            keeping,
            foreign: 0,
            retry,
            rounds: None,
            holdable,
            held: None,
            rise,
            rewriter,
            open_state: None,
            begun: false,
            breached: false,
            tasks,
            envelope: None,
            task_failed: false,
            original: None,
        }
    }

    /// Runs the exchange. Fails with [`Aborted`] if the answer breaks off after its first byte was sent.
    #[expect(clippy::manual_async_fn, reason = "an async fn would keep `self` twice")]
    pub(super) fn run(mut self) -> impl Future<Output = Result<(), Aborted>> {
        async move {
            let ending = self.worker.ending.clone();
            let received =
                ending.unless_cut(pin!(self.receive())).await.unwrap_or(Err(Broken::CutOff));
            let now = clock::now();
            self.call_record.answered = Some(now);
            self.relay.note_use(now);
            if received.is_err() {
                self.withdraw_task();
            }
            match received {
                Ok(member) => {
                    if let Some(answer) = self.answer.take() {
                        answer.finish();
                    }
                    settle(&mut self.permit, Some(ServerOutcome::Answered));
                    let status = self.status(member);
                    if status == Status::Error && member == AnswerMember::Result {
                        self.call_record.tool_failed();
                    }
                    if member == AnswerMember::Error
                        && let Some(result) = self.repair_error()
                    {
                        self.call_record.add_metadata(INPUT_REQUIRED, "true");
                        self.call_record.close(Status::Success, "").await;
                        self.reply.put(Piece::Whole(AnswerMember::Result, Splice::from(result)));
                        return Ok(());
                    }
                    let is_result = member == AnswerMember::Result;
                    let judged = is_result && self.treatment == Treatment::ForwardAndJudge;
                    let outgrown = self.keeping.take().filter(|keeping| keeping.is_outgrown());
                    match outgrown.filter(|_| is_result && status == Status::Success) {
                        Some(keeping) => Box::pin(self.keep_back(*keeping, status)).await,
                        None if judged => Box::pin(self.reply_and_judge(status)).await,
                        None => self.finish(member, status).await,
                    }
                    Ok(())
                }
                Err(Broken::Blocked(failure)) => {
                    Box::pin(self.block(&failure, false)).await;
                    Ok(())
                }
                Err(Broken::Unable(error, text)) => {
                    settle(&mut self.permit, Some(ServerOutcome::Answered));
                    self.call_record.close(Status::Error, &text).await;
                    self.reply.put(Piece::Whole(AnswerMember::Error, Splice::from(error)));
                    Ok(())
                }
                Err(Broken::Upstream(cause, outcome)) => {
                    settle(&mut self.permit, outcome);
                    Box::pin(self.fail(&cause, RefusalKind::Upstream)).await
                }
                Err(Broken::Held) => Box::pin(self.hold_for_input()).await,
                Err(Broken::CutOff) => Box::pin(self.fail(CUT_OFF, RefusalKind::Unavailable)).await,
            }
        }
    }

    fn status(&self, member: AnswerMember) -> Status {
        match member {
            AnswerMember::Result if self.inspector.is_error() || self.task_failed => Status::Error,
            AnswerMember::Result => Status::Success,
            AnswerMember::Error => Status::Error,
        }
    }

    /// Receives the answer and forwards the parts that may be forwarded.
    async fn receive(&mut self) -> Result<AnswerMember, Broken> {
        loop {
            let part = match self.next_part().await {
                Ok(part) => part,
                Err(error) => {
                    Box::pin(self.retry_call(error)).await?;
                    continue;
                }
            };
            self.mark_answered();
            self.retry = None;
            if let Some(call) = self.answer.as_mut().and_then(AnswerStream::take_repeatable) {
                self.rounds.get_or_insert_with(|| InputRounds::of(call));
            }
            let chunk = match part {
                Some(AnswerPart::Data(chunk)) => chunk,
                Some(AnswerPart::Interrupted) => {
                    Box::pin(self.interrupted()).await;
                    continue;
                }
                Some(AnswerPart::End) => match self.end_message()? {
                    InspectedMessage::Answer(member) => {
                        match self.rounds.take().filter(|rounds| rounds.is_asked()) {
                            Some(rounds) => Box::pin(self.repeat_with_input(rounds)).await?,
                            None => {
                                if member == AnswerMember::Result {
                                    self.read_task()?;
                                }
                                return Ok(member);
                            }
                        }
                        continue;
                    }
                    InspectedMessage::Notification(parts) => {
                        self.relay(&joined(parts)).await;
                        match self.held {
                            Some(_) => return Err(Broken::Held),
                            None => continue,
                        }
                    }
                    InspectedMessage::Foreign => {
                        self.foreign()?;
                        continue;
                    }
                },
                None => {
                    let ended = self.answer.as_ref().map(AnswerStream::without_response);
                    return Err(ended.map_or(Broken::from(AnswerFault::Empty), Broken::from));
                }
            };
            let slice = self.inspector.feed(&chunk).map_err(|fault| self.faulty(fault))?;
            if slice.is_empty() {
                continue;
            }
            if self.inspector.member() == Some(AnswerMember::Error) {
                self.gather_error(slice)?;
                continue;
            }
            if let Some(TaskAnswer::About(_)) = self.tasks {
                self.gather(slice).await?;
                continue;
            }
            let ending = self.inspector.ending(required(&self.permit, self.relay.family()));
            let adapted = match self.relay.is_for_legacy_client() {
                true => self.wrapped(&slice),
                false => {
                    let sealed = self.sealed(&slice, ending);
                    sealed.map_err(|broken| self.ended_by(&slice, broken))?
                }
            };
            let adapted = self.exposed(&slice, ending, adapted);
            self.call_record.receive(&slice, ending, adapted.as_ref());
            self.evaluate_arrived();
            match self.treatment {
                Treatment::Forward => {}
                Treatment::ForwardAndJudge => self.note_breach(),
                Treatment::Hold => {
                    let held = self.hold(&slice).await;
                    held.map_err(|broken| self.ended_by(&slice, broken))?;
                }
            }
            self.keep_original(&slice, adapted.is_some());
            self.note_for_keeping(&slice);
            // Only the server's own bytes are recorded and validated.
            match (adapted, ending) {
                (Some(adapted), _) => self.waiting.append(adapted),
                (None, None) => self.waiting.push(slice),
                (None, Some(ending)) => self.waiting.push_ending(slice, ending),
            }
            if self.rounds.is_some() && !self.may_ask()? {
                self.rounds = None;
            }
            if self.tasks.is_some() && !self.may_be_task()? {
                self.tasks = None;
            }
        }
    }

    /// Whether the arriving result may ask for input, which requires a modern connection. The server may have been
    /// replaced by one of the other family while the request waited, or before it was repeated.
    fn may_ask(&mut self) -> Result<bool, InputFault> {
        let family = self.answer.as_ref().map(AnswerStream::family);
        match &mut self.rounds {
            Some(rounds) if family == Some(ProtocolFamily::Modern) => {
                rounds.may_ask(&self.inspector, self.original.as_deref().unwrap_or(&self.waiting))
            }
            Some(_) | None => Ok(false),
        }
    }

    fn end_message(&mut self) -> Result<InspectedMessage, Broken> {
        self.inspector.end().map_err(|fault| self.faulty(fault))
    }

    /// Asks the client for the input that the server requests, and repeats the request with it (PRO-37).
    async fn repeat_with_input(&mut self, mut rounds: InputRounds) -> Result<(), Broken> {
        if let Some(answer) = self.answer.take() {
            answer.finish();
        }
        let question = joined(std::mem::take(&mut self.waiting).into_iter().collect());
        self.original = None;
        self.call_record.discard_response();
        self.share = share(&self.worker, &self.permit, self.treatment);
        let server = Arc::clone(self.permit.access().server());
        if let Some(keeping) = &mut self.keeping {
            keeping.restart(&self.worker, &server);
        }
        let asked = input_rounds::read(&self.worker, &question)?;
        rounds.begin()?;
        self.call_record.input_rounds = rounds.count();
        let lacking = asked.lacking(self.relay.client_capabilities());
        if lacking != ClientCapabilities::default() {
            let access = self.permit.access();
            let declared = self.relay.legacy_client().map(|client| client.client_capabilities);
            let why = input_rounds::refusal(lacking, declared.unwrap_or_default());
            let text = format!("{server}: {}: {why}", access.label());
            return Err(Broken::Unable(input_rounds::missing(lacking, &text), text));
        }
        let mut records = Vec::with_capacity(asked.count());
        for _ in 0..asked.count() {
            let record = self.question_record(question.len()).await;
            records.push(record.map_err(|why| InputFault::NotRecorded(why.to_string()))?);
        }
        let from = (&*self.worker.proxy.dropped_members, &server);
        let (relay, reply) = (&mut self.relay, &self.reply);
        let members = asked.answered(relay, reply, from, (records, ASKED_LIMIT)).await?;
        let Some(guard) = self.worker.proxy.upstreams.enter(&server) else {
            let text = "the server was removed while the client was asked".to_owned();
            return Err(Broken::Upstream(text, None));
        };
        let (body, extras) = rounds.repeated(members, &self.permit);
        let (began, attempt) = (clock::now(), CallAttempt::First);
        let call = PermittedCall { permit: &self.permit, body, extras, began, attempt };
        let answer = guard.call(&self.worker.pool, call).await?;
        let hash_key = self.worker.proxy.hash_key;
        self.inspector =
            Inspector::new(self.treatment, &policy(&self.permit), answer.id(), hash_key);
        self.rounds = Some(rounds);
        self.tasks = TaskAnswer::of(None, self.permit.access(), &answer, false);
        self.answer = Some(answer.into());
        if let Some(rewriter) = self.rewriter.as_mut().and_then(|it| it.result.as_mut()) {
            rewriter.restart();
        }
        Ok(())
    }

    /// Adapts a slice with a part of structured content that is not an object for a legacy client: revisions up to
    /// 2025-11-25 require an object, so the value is wrapped as `{"result": VALUE}`.
    fn wrapped(&mut self, slice: &Bytes) -> Option<Splice> {
        self.permit.access().tool()?;
        let BareContent { begin, end } = self.inspector.bare_content(slice);
        if begin.is_none() && end.is_none() {
            return None;
        }
        let mut adapted = Splice::new();
        let begin_at = begin.unwrap_or(0).min(slice.len());
        let end_at = end.unwrap_or(slice.len()).clamp(begin_at, slice.len());
        adapted.push(slice.slice(..begin_at));
        if begin.is_some() {
            self.call_record.add_metadata(ADAPTED, r#""structuredContent""#);
            adapted.push(Bytes::from_static(WRAPPER_BEGIN));
        }
        adapted.push(slice.slice(begin_at..end_at));
        if end.is_some() {
            adapted.push(Bytes::from_static(WRAPPER_END));
        }
        adapted.push(slice.slice(end_at..));
        Some(adapted)
    }

    /// Seals the server's request state (PRO-31), if part of it is in the slice, and applies the `ending` of the
    /// result. An incomplete state is held back.
    fn sealed(
        &mut self,
        slice: &Bytes,
        ending: Option<&'static [u8]>,
    ) -> Result<Option<Splice>, Broken> {
        let Some(StatePart { bytes, ends }) = self.inspector.request_state(slice) else {
            return Ok(None);
        };
        if bytes.is_empty() && self.open_state.is_none() {
            return Ok(None);
        }
        let mut state = self.open_state.take().unwrap_or_default();
        let part = slice.slice(bytes.clone());
        if state.len() + part.len() > MAX_SERVER_STATE_BYTES {
            let text = format!("sent a requestState of more than {MAX_SERVER_STATE_BYTES} bytes");
            return Err(Broken::Upstream(text, Some(ServerOutcome::Answered)));
        }
        state.extend_from_slice(&part);
        let mut sealed = Splice::new();
        sealed.push(slice.slice(..bytes.start));
        match ends {
            true => sealed.push(self.seal(state)?),
            false => self.open_state = Some(state),
        }
        let rest = slice.slice(bytes.end..);
        match ending {
            Some(ending) => sealed.push_ending(rest, ending),
            None => sealed.push(rest),
        }
        Ok(Some(sealed))
    }

    /// Rewrites URIs in the slice, or in its `adapted` form, to exposed ones; an incomplete URI is held back.
    fn exposed(
        &mut self,
        slice: &Bytes,
        ending: Option<&'static [u8]>,
        adapted: Option<Splice>,
    ) -> Option<Splice> {
        let rewriter = self.rewriter.as_mut().and_then(|it| it.result.as_mut());
        let Some(rewriter) = rewriter else { return adapted };
        let whole = adapted.unwrap_or_else(|| {
            let mut whole = Splice::new();
            match ending {
                None => whole.push(slice.clone()),
                Some(ending) => whole.push_ending(slice.clone(), ending),
            }
            whole
        });
        let (mut exposed, before) = (Splice::new(), rewriter.has_changed());
        whole.into_iter().for_each(|part| rewriter.feed(&part, &mut exposed));
        if rewriter.has_changed() && !before {
            self.call_record.add_metadata(ADAPTED, r#""uri""#);
        }
        Some(exposed)
    }

    /// Seals a state for the principal that made this request; null is not a state.
    fn seal(&mut self, state: Vec<u8>) -> Result<Bytes, Broken> {
        if state == b"null" {
            return Ok(state.into());
        }
        // The state of a task is sealed for the call that created the task.
        let access = match self.permit.access() {
            Access::Task(of) => &Access::Tool(of.call().clone()),
            access => access,
        };
        let to = BoundRequest { principal: self.permit.principal(), access };
        let sealed = self.worker.proxy.approvals.seal_state(&state, to, SystemTime::now());
        let Some(sealed) = sealed else {
            let text =
                "its requestState cannot be sealed: the system provides no random bytes".to_owned();
            return Err(Broken::Upstream(text, None));
        };
        self.call_record.add_metadata(ADAPTED, r#""requestState""#);
        // The sealed state needs no escaping.
        Ok(format!("\"{sealed}\"").into())
    }

    /// Applies the pending raise of facts: server content reaches the client.
    fn mark_answered(&mut self) {
        if let Some(rise) = self.rise.take() {
            rise.answered(&self.worker.proxy.principal_facts);
        }
    }

    /// Counts an answer with an unknown id.
    fn foreign(&mut self) -> Result<(), Broken> {
        let name = self.permit.access();
        let server = LinePeer::Server(name.server());
        peer_line!(warn, server, tool = %name, "answer with an unknown id");
        if let Some(answer) = &mut self.answer {
            answer.distrust();
        }
        self.foreign += 1;
        match self.foreign > MAX_FOREIGN {
            true => Err(Broken::from(AnswerFault::ForeignId)),
            false => Ok(()),
        }
    }

    /// Relays a message that precedes the answer.
    async fn relay(&mut self, message: &Bytes) {
        let (message, related_to) = self.related(message);
        let message = &message;
        let Some(answer) = &self.answer else { return };
        let (id, generation) = (answer.id(), answer.generation());
        let server = self.permit.access().server();
        let log_filter = &*self.worker.proxy.dropped_members;
        let related_to = related_to.as_deref();
        let asked = AnsweringServer { server, generation, log_filter, related_to };
        match self.relay.take(message, id, &asked) {
            Step::Forward(piece) => self.reply.send(piece).await,
            // This future is rare, so it is boxed to keep it out of every call's future.
            Step::Ask(question) => Box::pin(self.ask(question, generation)).await,
            Step::Respond(raw_id, payload) => self.respond(generation, raw_id, payload).await,
            Step::Hold(question) => Box::pin(self.begin_hold(question)).await,
            // The message may report a change of the server's lists or resources, which concerns all clients.
            Step::Drop => {
                if let Some(answer) = &self.answer {
                    answer.observe(message).await;
                }
            }
        }
    }

    /// Next part from the upstream. Sends the gathered bytes while none is available.
    async fn next_part(&mut self) -> Result<Option<AnswerPart>, CallError> {
        let may_forward = self.treatment != Treatment::Hold
            && self.keeping.is_none()
            && self.rounds.is_none()
            && self.tasks.is_none()
            && self.inspector.member() != Some(AnswerMember::Error);
        if may_forward && !self.waiting.is_empty() {
            let at_hand = match &mut self.answer {
                Some(answer) => futures_util::poll!(pin!(answer.next())),
                None => return Ok(None),
            };
            if at_hand.is_pending() || self.waiting.len() >= MAX_GATHERED_BYTES {
                self.send_on().await;
            }
            if let Poll::Ready(part) = at_hand {
                return part;
            }
        }
        match &mut self.answer {
            Some(answer) => answer.next().await,
            None => Ok(None),
        }
    }

    async fn send_on(&mut self) {
        let Some(member) = self.inspector.member() else { return };
        if !self.begun {
            self.begun = true;
            self.reply.send(Piece::Begin(member)).await;
        }
        self.reply.send(Piece::Data(std::mem::take(&mut self.waiting))).await;
    }

    /// Accounts for a held slice in strict mode, and fails at the first certain violation.
    async fn hold(&mut self, slice: &Bytes) -> Result<(), Broken> {
        let limit = policy(&self.permit).max_held_bytes;
        if (self.waiting.len() + slice.len()) as u64 > limit {
            return Err(Broken::Blocked(Failure::held(limit)));
        }
        if let Some(failure) = self.inspector.breach() {
            return Err(Broken::Blocked(failure));
        }
        // The `Bytes` value of the slice counts as well, since an answer may arrive in very small pieces.
        let Some(share) = &mut self.share else { return Ok(()) };
        let grown = share.grow((slice.len() + size_of::<Bytes>()) as u64).await;
        grown.map_err(|full| Broken::Upstream(full.to_string(), None))
    }

    /// Collects a slice of a result that may be kept. Beyond the limit the result is forwarded instead.
    fn note_for_keeping(&mut self, slice: &Bytes) {
        let Some(keeping) = &mut self.keeping else { return };
        let held = self.treatment == Treatment::Hold;
        if let Err(why) = keeping.take(slice, held, policy(&self.permit).max_held_bytes) {
            self.keeping = None;
            self.forward_long_result(&why);
        }
    }

    /// Forwards a result that is, or may be, longer than its limit.
    fn forward_long_result(&mut self, why: &KeepFailure) {
        let server = LinePeer::Server(self.permit.access().server());
        peer_line!(warn, server, tool = %self.permit.access(), %why, "long result forwarded whole");
        self.call_record.add_metadata(NOT_KEPT, &serde_json::json!(why.to_string()).to_string());
    }

    /// Keeps a complete result that exceeds its limit: validates it, stores it, and replies with an outline.
    async fn keep_back(mut self, keeping: Keeping, status: Status) {
        match self.treatment {
            Treatment::Forward => {}
            Treatment::ForwardAndJudge => self.judge_for_the_record().await,
            Treatment::Hold => {
                if let Some(failure) = self.verdict().await {
                    self.block(&failure, true).await;
                    return;
                }
            }
        }
        let kept = match self.permit.access().tool() {
            Some(tool) => keeping.keep(&self.worker, tool).await,
            None => return,
        };
        match kept {
            Ok(kept) => {
                self.call_record.add_metadata(KEPT, &kept.metadata);
                self.waiting = Splice::from(kept.short);
                let result = self.take_result();
                self.call_record.replaces(true, &result, Departure::Kept);
                self.waiting = result;
            }
            Err(why) => {
                self.forward_long_result(&why);
                self.call_record.forwards();
                self.waiting = self.take_result();
            }
        }
        self.call_record.delivers(&self.waiting);
        self.call_record.close(status, "").await;
        let result = std::mem::take(&mut self.waiting);
        self.reply.put(Piece::Whole(AnswerMember::Result, result));
    }

    /// Takes the waiting result, inside the envelope of an answer about its task.
    fn take_result(&mut self) -> Splice {
        let result = std::mem::take(&mut self.waiting);
        self.enveloped(result)
    }

    /// Completes the answer: strict mode validates a result; then the answer is recorded and sent.
    async fn finish(&mut self, member: AnswerMember, status: Status) {
        if self.treatment == Treatment::Hold
            && member == AnswerMember::Result
            && let Some(failure) = self.verdict().await
        {
            Box::pin(self.block(&failure, true)).await;
            return;
        }
        self.call_record.forwards();
        if !self.call_record.delivers(&self.waiting) {
            self.withdraw_task();
        }
        self.call_record.close(status, "").await;
        // The client gets the created task.
        self.tasks = None;
        if self.begun {
            self.send_rest().await;
        } else {
            let value = self.take_result();
            self.reply.put(Piece::Whole(member, value));
        }
    }

    /// Forwards the bytes in `warn` mode, and validates the document in parallel (FR-A11). The worker owns the
    /// validation, so that no decision is lost if the client disconnects. A query after the reply waits for the record
    /// (ACT-5). If durability is `grouped`, the record is written before the reply only if the disk lags, or if there
    /// is no memory for the document, so that the client cannot send further requests before the validation. With any
    /// other durability, the record is always written before the reply.
    async fn reply_and_judge(mut self, status: Status) {
        let worker = Rc::clone(&self.worker);
        let reply = self.reply.clone();
        self.call_record.delivers(&self.waiting);
        let rest = self.take_result();
        let last = match self.begun {
            true => (!rest.is_empty()).then(|| Piece::Data(rest)),
            false => Some(Piece::Whole(AnswerMember::Result, rest)),
        };
        let durable_first = match worker.proxy.activity.config().durability {
            Durability::BeforeReply | Durability::BeforeSend | Durability::Fleet => true,
            Durability::Grouped => false,
        };
        self.call_record.forwards();
        let has_memory = self.inspector.has_conforming_document() || self.keeps_document();
        let record_first = durable_first || !has_memory || self.call_record.is_behind();
        if !record_first {
            self.call_record.replied();
        }
        let span = self.call_record.span().clone();
        let judging = async move {
            self.judge_for_the_record().await;
            self.call_record.close(status, "").await;
        };
        if has_memory || worker.may_defer() {
            let judged = worker.keep(judging.instrument(span));
            if record_first {
                // The outcome is ignored: a failure is in the record, which is written separately.
                let _ = judged.await;
            }
        } else {
            judging.await;
        }
        if let Some(last) = last {
            reply.put(last);
        }
    }

    /// Evaluates a long `structuredContent` as it arrives, so that no further pass is needed at its end.
    fn evaluate_arrived(&mut self) {
        if self.treatment != Treatment::Forward
            && let Some(schema) = schema(&self.permit)
        {
            self.inspector.evaluate_arrived(schema, &mut self.worker.scratch.borrow_mut());
        }
    }

    /// Records a guard's violation in `warn` mode. The violation is final (`requirements.md`, *verdicts*), even if
    /// the rest of the answer never arrives or has no receiver.
    fn note_breach(&mut self) {
        if !self.breached
            && let Some(breach) = self.inspector.breach()
        {
            self.breached = true;
            self.worker.tally.judged(Judged::AnswerFailed);
            self.record_warning(Some(breach));
        }
    }

    async fn judge_for_the_record(&mut self) {
        if self.breached {
            return;
        }
        self.call_record.unjudged =
            Some(|| decision(record::Verdict::Warning, Mode::Warn, &Failure::given_up()));
        let verdict = self.verdict().await;
        self.call_record.unjudged = None;
        self.record_warning(verdict);
    }

    /// Reserves memory for the document that is validated after the reply; false if there is none.
    fn keeps_document(&mut self) -> bool {
        let bytes: usize = self.inspector.document().iter().map(Bytes::len).sum();
        self.share.as_mut().is_none_or(|share| share.try_grow(bytes as u64))
    }

    async fn send_rest(&mut self) {
        if !self.waiting.is_empty() {
            self.send_on().await;
        }
    }

    /// Verdict on the complete result, counted.
    async fn verdict(&mut self) -> Option<Failure> {
        let (verdict, counted) = self.judge().await;
        self.worker.tally.judged(counted);
        verdict
    }

    async fn judge(&mut self) -> (Option<Failure>, Judged) {
        match self.inspector.finding(policy(&self.permit).missing) {
            Finding::Passes => (None, Judged::AnswerUnasked),
            Finding::Fails(failure) => (Some(failure), Judged::AnswerFailed),
            Finding::AskTheSchema if self.inspector.has_conforming_document() => {
                (None, Judged::AnswerPassed)
            }
            Finding::AskTheSchema => {
                let unjudged = || (Some(Failure::unjudged()), Judged::AnswerUnjudged);
                let Some(schema) = schema(&self.permit) else { return unjudged() };
                let document = self.inspector.take_document();
                let judged = match self.worker.judge_quickly(schema, &document) {
                    Some(judgment) => Some(judgment),
                    None => {
                        self.call_record.record_is_late();
                        self.worker.judge(schema, document).await
                    }
                };
                let Some(judgment) = judged else { return unjudged() };
                if judgment.disagreement {
                    let hash = schema.hash();
                    let server = LinePeer::Server(self.permit.access().server());
                    peer_line!(warn, server, tool = %self.permit.access(), schema = %hash, "the engines disagree");
                    self.worker.proxy.validation_pool.count_disagreement();
                }
                match judgment.verdict {
                    Verdict::Conforms => (None, Judged::AnswerPassed),
                    Verdict::Violates(violation) => {
                        (Some(Failure::schema(&violation)), Judged::AnswerFailed)
                    }
                }
            }
        }
    }

    fn record_warning(&mut self, verdict: Option<Failure>) {
        if let Some(failure) = verdict {
            let name = self.permit.access();
            let place = &failure.schema_path;
            peer_line!(warn, LinePeer::Server(name.server()), tool = %name, %place, "the answer violates its schema");
            self.call_record.decide(decision(record::Verdict::Warning, Mode::Warn, &failure));
        }
    }

    /// Blocks the answer in strict mode, complete or not: closes the upstream's response and sends the reason.
    async fn block(&mut self, failure: &Failure, whole: bool) {
        let server = LinePeer::Server(self.permit.access().server());
        peer_line!(warn, server, tool = %self.permit.access(), place = %failure.schema_path, "the answer was blocked");
        drop(self.answer.take());
        settle(&mut self.permit, Some(ServerOutcome::Answered));
        let text = failure.agent_text();
        self.call_record.decide(decision(record::Verdict::Blocked, Mode::Strict, failure));
        let result = render::error_result(self.relay.family(), &text);
        let result = self.enveloped(Splice::from(result));
        self.call_record.replaces(whole, &result, Departure::Blocked);
        self.call_record.close(Status::Blocked, &text).await;
        self.reply.put(Piece::Whole(AnswerMember::Result, result));
    }

    /// Ends an answer that failed midway or was cut off.
    async fn fail(&mut self, cause: &str, kind: RefusalKind) -> Result<(), Aborted> {
        let access = self.permit.access();
        let text = format!("{}: {}: {cause}", access.server(), access.label());
        let kind = self.call_record.kind().refusal_kind(kind);
        if !self.begun {
            self.call_record.refused(kind);
        }
        self.call_record.close(Status::Error, &text).await;
        if self.begun {
            return Err(Aborted(text));
        }
        self.reply.put(Piece::Refused(Refusal::failed(kind, text)));
        Ok(())
    }
}

pub(super) struct SentRequest {
    pub(super) permit: Permit,
    pub(super) answer: AnswerStream,
    /// Arguments of a call that can be held for its client's input.
    pub(super) holdable: Option<Bytes>,
    /// Prepared repetition for a failure.
    pub(super) retry: Option<Box<Retry>>,
    pub(super) rewriter: Option<Box<AnswerRewriter>>,
    /// Part of the call's answer that may be about a task.
    pub(super) tasks: Option<TaskAnswer>,
}

/// This call's share of the memory for held bytes.
fn share(worker: &Worker, permit: &Permit, treatment: Treatment) -> Option<memory_budget::Share> {
    let server = permit.access().server();
    match treatment {
        Treatment::Forward => None,
        Treatment::ForwardAndJudge => Some(worker.settings().judging_budget.share(server)),
        Treatment::Hold => Some(worker.settings().held.share(server)),
    }
}

fn decision(verdict: record::Verdict, mode: Mode, failure: &Failure) -> Decision {
    let mut decision =
        Decision::new(verdict, record::Policy::OutputValidation, failure.reason.as_str());
    decision.mode = mode.as_str();
    decision.instance_path = failure.instance_path.as_str().into();
    decision.schema_path = failure.schema_path.as_str().into();
    decision.guard = failure.guard.unwrap_or_default();
    decision
}

fn joined(parts: Vec<Bytes>) -> Bytes {
    match <[Bytes; 1]>::try_from(parts) {
        Ok([only]) => only,
        // A notification that arrived in pieces is joined: it is small (`MAX_OUTSIDE_BYTES`) and is forwarded in one
        // piece.
        Err(parts) => parts.concat().into(),
    }
}

/// Limits and validation mode of the answer.
fn policy(permit: &Permit) -> Policy {
    permit.access().tool().map(|tool| tool.policy).unwrap_or_default()
}

/// Output schema of the answer, if compiled.
fn schema(permit: &Permit) -> Option<&Arc<Schema>> {
    match permit.access().tool()?.schema.now() {
        OutputSchema::Compiled(schema) => Some(schema),
        OutputSchema::Absent | OutputSchema::Unusable(_) | OutputSchema::Compiling(_) => None,
    }
}

/// Members that the client's revision requires in the result.
fn required(permit: &Permit, family: ProtocolFamily) -> Required {
    match (family, permit.access()) {
        (ProtocolFamily::Legacy, _) => Required::Nothing,
        (
            ProtocolFamily::Modern,
            Access::Resource {
                request:
                    ResourceRequest::Read | ResourceRequest::ReadDirectory | ResourceRequest::GetSkill,
                ..
            },
        ) => Required::TypeAndCaching,
        (
            ProtocolFamily::Modern,
            Access::Tool(_)
            | Access::Resource {
                request: ResourceRequest::Subscribe | ResourceRequest::Unsubscribe,
                ..
            }
            | Access::Prompt { .. }
            | Access::Completion { .. }
            | Access::Method { .. }
            | Access::Task(_),
        ) => Required::Type,
    }
}

/// Releases the request's permits and logs a changed breaker state.
pub(super) fn settle(permit: &mut Permit, outcome: Option<ServerOutcome>) {
    let change = permit.settle(outcome);
    let server = permit.access().server();
    match change {
        None => {}
        Some(BreakerChange::Opened { failures, open }) => {
            peer_line!(warn, LinePeer::Server(server), %server, failures, ?open, "circuit breaker opened");
        }
        Some(BreakerChange::Closed) => {
            peer_line!(info, LinePeer::Server(server), %server, "circuit breaker closed");
        }
    }
}
