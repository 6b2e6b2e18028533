//! An answer on its way: from an upstream's chunks, past the inspector, into the reply.
//!
//! Owns the order of forwarding, judging and recording in each mode. What a violation is, the
//! inspector and the schema say; who asked, and for what, was settled before.
//!
//! Size: receiving, holding, judging and recording are one order, which is to be read in one place.

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use tracing::Instrument;

use crate::activity::Durability;
use crate::activity::record::{self, Decision, Status};
use crate::io::clock;
use crate::mcp::revisions::Era;
use crate::output::{
    AnswerFault, AnswerMember, Failure, Finding, InspectedMessage, Inspector, Mode, Policy,
    Required, Treatment,
};
use crate::policy::{Access, Permit, ResourceRequest, ServerOutcome};
use crate::proxy::call_record::CallRecord;
use crate::proxy::keeping::{GoesOn, KEPT, Keeping, NOT_KEPT};
use crate::proxy::receipt::Departure;
use crate::proxy::refusal::{Refusal, RefusalKind};
use crate::proxy::relay::{Asked, Relay, Step};
use crate::proxy::reply::{Aborted, Piece, Reply};
use crate::proxy::session_facts::Rise;
use crate::proxy::settling::{Again, settle};
use crate::proxy::shutdown::CUT_OFF;
use crate::proxy::worker::Worker;
use crate::proxy::{memory_budget, render};
use crate::schema::compile::Schema;
use crate::schema::judge::Verdict;
use crate::telemetry::call_metrics::Judged;
use crate::tool::OutputSchema;
use crate::upstream::{Answer, AnswerPart, CallError};
use crate::wire::splice::Splice;

/// Bytes gathered before a streamed answer goes on although more is at hand.
const MAX_GATHERED_BYTES: usize = 256 * 1024;
/// Longest JSON-RPC error of a server, in bytes: it is looked through before it goes on.
const MAX_ERROR_BYTES: usize = 1024 * 1024;
/// Most answers to ids that nobody asked for before the one to ours.
const MAX_FOREIGN: u32 = 16;
/// How long a server that asked its client may take until it goes on: a person may have to answer.
const ASKED_LIMIT: Duration = Duration::from_secs(600);

/// An answer on its way from an upstream to a reply.
pub(super) struct Exchange {
    worker: Rc<Worker>,
    permit: Permit,
    /// `None` once the answer is whole, or strict has closed it.
    answer: Option<Answer>,
    inspector: Inspector,
    treatment: Treatment,
    call_record: CallRecord,
    relay: Relay,
    reply: Reply,
    /// Slices of the answer that have not gone on: held by strict, or gathered for one write.
    waiting: Splice,
    /// What this call has taken of the bytes that may be held, until it ends; none is held where
    /// nothing is judged.
    share: Option<memory_budget::Share>,
    /// The result as its server sends it, as long as it may have to be kept: then all of it waits.
    keeping: Option<Box<Keeping>>,
    /// Answers so far to ids that nobody asked for.
    foreign: u32,
    /// How it is asked once more, while nothing has come.
    again: Option<Box<Again>>,
    /// What the session will have seen, until something has come.
    rise: Option<Rise>,
    /// True once a byte of the answer has gone on.
    begun: bool,
    /// True once a guard's final word is in the record's decisions (warn).
    breached: bool,
}

/// How an answer ends early.
enum Broken {
    /// There is no answer, or not all of it; what that says about the server, if anything.
    Upstream(String, Option<ServerOutcome>),
    /// Strict refuses it.
    Blocked(Failure),
    /// The proxy is ending.
    CutOff,
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
        (permit, answer, again): (Permit, Answer, Option<Box<Again>>),
        call_record: CallRecord,
        relay: Relay,
        reply: Reply,
        (rise, keeping): (Option<Rise>, Option<Box<Keeping>>),
    ) -> Self {
        let treatment = permit.access().tool().map_or(Treatment::Forward, |tool| tool.treatment());
        let policy = policy(&permit);
        let hash_key = worker.proxy.hash_key;
        let inspector = Inspector::new(treatment, &policy, answer.id(), hash_key);
        let waiting = Splice::new();
        let share = match treatment {
            Treatment::Forward => None,
            Treatment::ForwardAndJudge => {
                Some(worker.settings().judging_budget.share(permit.access().server()))
            }
            Treatment::Hold => Some(worker.settings().held.share(permit.access().server())),
        };
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
            again,
            rise,
            begun: false,
            breached: false,
        }
    }

    /// Sees the answer through.
    ///
    /// # Errors
    ///
    /// [`Aborted`] when it broke off after its first byte had gone on.
    #[expect(clippy::manual_async_fn, reason = "an async fn would keep `self` twice")]
    pub(super) fn run(mut self) -> impl Future<Output = Result<(), Aborted>> {
        async move {
            let ending = self.worker.ending.clone();
            let received =
                ending.unless_cut(pin!(self.receive())).await.unwrap_or(Err(Broken::CutOff));
            let now = clock::now();
            self.call_record.answered = Some(now);
            self.relay.was_active(now);
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
                    if member == AnswerMember::Error {
                        self.mask_error();
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
                Err(Broken::Upstream(cause, outcome)) => {
                    settle(&mut self.permit, outcome);
                    Box::pin(self.fail(&cause, RefusalKind::Upstream)).await
                }
                Err(Broken::CutOff) => Box::pin(self.fail(CUT_OFF, RefusalKind::Unavailable)).await,
            }
        }
    }

    fn status(&self, member: AnswerMember) -> Status {
        match member {
            AnswerMember::Result if self.inspector.is_error() => Status::Error,
            AnswerMember::Result => Status::Success,
            AnswerMember::Error => Status::Error,
        }
    }

    /// Takes the answer in, sending on what may go on, until it is whole.
    async fn receive(&mut self) -> Result<AnswerMember, Broken> {
        loop {
            let part = match self.next_part().await {
                Ok(part) => part,
                Err(error) => {
                    Box::pin(self.ask_again(error)).await?;
                    continue;
                }
            };
            if let Some(rise) = self.rise.take() {
                rise.answered();
            }
            self.again = None;
            let chunk = match part {
                Some(AnswerPart::Data(chunk)) => chunk,
                Some(AnswerPart::End) => match self.inspector.end()? {
                    InspectedMessage::Answer(member) => return Ok(member),
                    InspectedMessage::Notification(parts) => {
                        self.relay(&joined(parts)).await;
                        continue;
                    }
                    InspectedMessage::Foreign => {
                        self.foreign()?;
                        continue;
                    }
                },
                None => {
                    let ended = self.answer.as_ref().map(Answer::without_response);
                    return Err(ended.map_or(Broken::from(AnswerFault::Empty), Broken::from));
                }
            };
            let slice = self.inspector.feed(&chunk)?;
            if slice.is_empty() {
                continue;
            }
            if self.inspector.member() == Some(AnswerMember::Error) {
                self.gather_error(slice)?;
                continue;
            }
            let ending = self.inspector.ending(required(&self.permit, self.relay.era()));
            self.call_record.receive(&slice, ending);
            match self.treatment {
                Treatment::Forward => {}
                Treatment::ForwardAndJudge => self.note_breach(),
                Treatment::Hold => self.hold(&slice).await?,
            }
            self.note_for_keeping(&slice);
            // What is on record and what is judged is the server's alone.
            match ending {
                None => self.waiting.push(slice),
                Some(ending) => self.waiting.push_ending(slice, ending),
            }
        }
    }

    /// A part of a JSON-RPC error: it waits until it is whole, since it may hold a secret.
    fn gather_error(&mut self, slice: Bytes) -> Result<(), Broken> {
        if self.waiting.len() + slice.len() > MAX_ERROR_BYTES {
            let text = format!("answered with an error of more than {MAX_ERROR_BYTES} bytes");
            return Err(Broken::Upstream(text, Some(ServerOutcome::Answered)));
        }
        self.waiting.push(slice);
        Ok(())
    }

    /// A JSON-RPC error is the server's words, not a tool's result: it goes on as it came, but for
    /// the values that the config holds as secret.
    fn mask_error(&mut self) {
        let parts: Vec<Bytes> = std::mem::take(&mut self.waiting).into_iter().collect();
        let mut error = joined(parts);
        if let Some(masked) = self.worker.proxy.upstreams.masked(&error) {
            error = masked;
        }
        self.call_record.note_response(&error);
        self.call_record.failed_with(&error);
        self.waiting = Splice::from(error);
    }

    /// An answer came under an id that nobody asked for.
    fn foreign(&mut self) -> Result<(), Broken> {
        let name = self.permit.access();
        let upstream = self.worker.proxy.upstreams.get(name.server());
        if upstream.is_none_or(|upstream| upstream.may_log()) {
            tracing::warn!(tool = %name, "an answer to an id nobody asked for");
        }
        if let Some(answer) = &mut self.answer {
            answer.distrust();
        }
        self.foreign += 1;
        match self.foreign > MAX_FOREIGN {
            true => Err(Broken::from(AnswerFault::ForeignId)),
            false => Ok(()),
        }
    }

    /// Hands on what came before the answer.
    async fn relay(&mut self, message: &Bytes) {
        let Some(answer) = &self.answer else { return };
        let (id, generation) = (answer.id(), answer.generation());
        let server = self.permit.access().server();
        let asked = Asked { server, generation, told: &self.worker.proxy.dropped_members };
        match self.relay.take(message, id, &asked) {
            Step::Tell(piece) => {
                if let (Piece::Request(_), Some(answer)) = (&piece, &mut self.answer) {
                    answer.wait_longer(ASKED_LIMIT);
                }
                self.reply.send(piece).await;
            }
            Step::Respond(raw_id, payload) => {
                let upstreams = &self.worker.proxy.upstreams;
                if let Some(upstream) = upstreams.connected_as(server, generation)
                    && let Err(lost) = upstream.respond(generation, raw_id, payload).await
                {
                    tracing::debug!(%server, %lost, "a refusal did not reach the server");
                }
            }
            Step::Drop => {}
        }
    }

    /// Asks once more where nothing has come and the connection is to blame (CAP-7).
    async fn ask_again(&mut self, error: CallError) -> Result<(), Broken> {
        let unheard = self.answer.as_ref().is_some_and(Answer::is_unheard);
        if !(unheard && error.cause.is_broken_connection()) {
            return Err(error.into());
        }
        let upstream = self.worker.proxy.upstreams.enter(self.permit.access().server());
        let ended = self.answer.as_ref().is_some_and(Answer::may_have_ended_server);
        let again = self.again.take().filter(|again| !ended || again.may_end_its_server());
        let (Some(again), Some(upstream)) = (again, upstream) else {
            return Err(error.into());
        };
        let failed = self.answer.take().map(|answer| answer.generation());
        let record = &mut self.call_record;
        let answer = again.ask(&self.worker, &upstream, &self.permit, record, failed).await?;
        let hash_key = self.worker.proxy.hash_key;
        let policy = policy(&self.permit);
        self.inspector = Inspector::new(self.treatment, &policy, answer.id(), hash_key);
        self.answer = Some(answer);
        Ok(())
    }

    /// The upstream's next part. What waits to go on does so while nothing is at hand.
    async fn next_part(&mut self) -> Result<Option<AnswerPart>, CallError> {
        let goes_on = self.treatment != Treatment::Hold
            && self.keeping.is_none()
            && self.inspector.member() != Some(AnswerMember::Error);
        if goes_on && !self.waiting.is_empty() {
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

    /// Sends on what waits.
    async fn send_on(&mut self) {
        let Some(member) = self.inspector.member() else { return };
        if !self.begun {
            self.begun = true;
            self.reply.send(Piece::Begin(member)).await;
        }
        self.reply.send(Piece::Data(std::mem::take(&mut self.waiting))).await;
    }

    /// Strict: accounts for a slice that waits, and stops at the first certain breach.
    async fn hold(&mut self, slice: &Bytes) -> Result<(), Broken> {
        let limit = policy(&self.permit).max_held_bytes;
        if (self.waiting.len() + slice.len()) as u64 > limit {
            return Err(Broken::Blocked(Failure::held(limit)));
        }
        if let Some(failure) = self.inspector.breach() {
            return Err(Broken::Blocked(failure));
        }
        // The handle counts as well: an answer may come in very small pieces.
        let Some(share) = &mut self.share else { return Ok(()) };
        let grown = share.grow((slice.len() + size_of::<Bytes>()) as u64).await;
        grown.map_err(|full| Broken::Upstream(full.to_string(), None))
    }

    /// A slice of a result that may have to be kept. What is too much to hold goes on instead.
    fn note_for_keeping(&mut self, slice: &Bytes) {
        let Some(keeping) = &mut self.keeping else { return };
        let held = self.treatment == Treatment::Hold;
        if let Err(why) = keeping.take(slice, held, policy(&self.permit).max_held_bytes) {
            self.keeping = None;
            self.goes_on(&why);
        }
    }

    /// A result goes on whole though it is, or may be, longer than its limit.
    fn goes_on(&mut self, why: &GoesOn) {
        tracing::warn!(tool = %self.permit.access(), %why, "a long result goes on whole");
        self.call_record.add_metadata(NOT_KEPT, &serde_json::json!(why.to_string()).to_string());
    }

    /// The result is whole, and longer than its client is to have it: it is judged, kept, and told of in short.
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
            Some(tool) => keeping.keep(&self.worker, &tool.name).await,
            None => return,
        };
        match kept {
            Ok(kept) => {
                self.call_record.add_metadata(KEPT, &kept.metadata);
                self.call_record.replaces(true, &kept.short, Departure::Kept);
                self.waiting = Splice::from(kept.short);
            }
            Err(why) => {
                self.goes_on(&why);
                self.call_record.forwards();
            }
        }
        self.call_record.close(status, "").await;
        self.reply.put(Piece::Whole(AnswerMember::Result, std::mem::take(&mut self.waiting)));
    }

    /// The answer is whole: strict judges a result; then it is recorded, and sent on.
    async fn finish(&mut self, member: AnswerMember, status: Status) {
        if self.treatment == Treatment::Hold
            && member == AnswerMember::Result
            && let Some(failure) = self.verdict().await
        {
            Box::pin(self.block(&failure, true)).await;
            return;
        }
        self.call_record.forwards();
        self.call_record.close(status, "").await;
        if self.begun {
            self.send_rest().await;
        } else {
            self.reply.put(Piece::Whole(member, std::mem::take(&mut self.waiting)));
        }
    }

    /// Warn: the bytes go on, and the schema is asked beside them (FR-A11). From here on the
    /// judgement is the worker's, so that a client who goes away loses no decision: nothing is
    /// waited for before it is. A query that arrives after the reply waits for the record (ACT-5).
    /// The record comes first unless durability is `grouped`, while the disk is behind, and where
    /// there is no room for the document: then its client cannot ask for more before it is judged.
    async fn reply_and_judge(mut self, status: Status) {
        let worker = Rc::clone(&self.worker);
        let reply = self.reply.clone();
        let rest = std::mem::take(&mut self.waiting);
        let last = match self.begun {
            true => (!rest.is_empty()).then(|| Piece::Data(rest)),
            false => Some(Piece::Whole(AnswerMember::Result, rest)),
        };
        let durable_first = match worker.proxy.activity.config().durability {
            Durability::BeforeReply | Durability::BeforeSend | Durability::Fleet => true,
            Durability::Grouped => false,
        };
        self.call_record.forwards();
        let room = self.keeps_document();
        let record_first = durable_first || !room || self.call_record.is_behind();
        if !record_first {
            self.call_record.replied();
        }
        let span = self.call_record.span().clone();
        let judging = async move {
            self.judge_for_the_record().await;
            self.call_record.close(status, "").await;
        };
        if room || worker.may_defer() {
            let judged = worker.keep(judging.instrument(span));
            if record_first {
                // Its failure would be the record's, which leaves by its own exit.
                let _ = judged.await;
            }
        } else {
            judging.await;
        }
        if let Some(last) = last {
            reply.put(last);
        }
    }

    /// Warn: a guard's breach is final ([verdicts](crate::reference::requirements#verdicts)), also
    /// if the rest never comes or nobody waits for it any more.
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

    /// Takes room for the document that is kept to be judged after the reply.
    fn keeps_document(&mut self) -> bool {
        let bytes: usize = self.inspector.document().iter().map(Bytes::len).sum();
        self.share.as_mut().is_none_or(|share| share.try_grow(bytes as u64))
    }

    async fn send_rest(&mut self) {
        if !self.waiting.is_empty() {
            self.send_on().await;
        }
    }

    /// What stands against the whole result, if anything does. It is counted.
    async fn verdict(&mut self) -> Option<Failure> {
        let (verdict, counted) = self.judge().await;
        self.worker.tally.judged(counted);
        verdict
    }

    async fn judge(&mut self) -> (Option<Failure>, Judged) {
        match self.inspector.finding(policy(&self.permit).missing) {
            Finding::Passes => (None, Judged::AnswerUnasked),
            Finding::Fails(failure) => (Some(failure), Judged::AnswerFailed),
            Finding::AskTheSchema => {
                let unjudged = || (Some(Failure::unjudged()), Judged::AnswerUnjudged);
                let Some(schema) = schema(&self.permit) else { return unjudged() };
                let document = self.inspector.take_document();
                let judged = match self.worker.judge_quickly(schema, &document) {
                    Some(judgement) => Some(judgement),
                    None => {
                        self.call_record.record_is_late();
                        self.worker.judge(schema, document).await
                    }
                };
                let Some(judgement) = judged else { return unjudged() };
                if judgement.disagreement {
                    let hash = schema.hash();
                    tracing::warn!(tool = %self.permit.access(), schema = %hash, "the engines disagree");
                    self.worker.proxy.validation_pool.count_disagreement();
                }
                match judgement.verdict {
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
            tracing::warn!(tool = %name, %place, "the answer violates its schema");
            self.call_record.decide(decision(record::Verdict::Warning, Mode::Warn, &failure));
        }
    }

    /// Strict mode blocks the answer, come whole or not: the upstream's is closed, the client gets the reason.
    async fn block(&mut self, failure: &Failure, whole: bool) {
        tracing::warn!(tool = %self.permit.access(), place = %failure.schema_path, "the answer was blocked");
        drop(self.answer.take());
        settle(&mut self.permit, Some(ServerOutcome::Answered));
        let text = failure.agent_text();
        self.call_record.decide(decision(record::Verdict::Blocked, Mode::Strict, failure));
        let result = render::error_result(self.relay.era(), &text);
        self.call_record.replaces(whole, &result, Departure::Blocked);
        self.call_record.close(Status::Blocked, &text).await;
        self.reply.put(Piece::Whole(AnswerMember::Result, Splice::from(result)));
    }

    /// The upstream failed in the middle of its answer, or we do not wait for the rest.
    async fn fail(&mut self, cause: &str, kind: RefusalKind) -> Result<(), Aborted> {
        let access = self.permit.access();
        let text = format!("{}: {}: {cause}", access.server(), access.label());
        let kind = self.call_record.kind().refusal(kind);
        if !self.begun {
            self.call_record.refused(kind);
        }
        self.call_record.close(Status::Error, &text).await;
        if self.begun {
            return Err(Aborted(text));
        }
        self.reply.put(Piece::Refused(Refusal::new(kind, text)));
        Ok(())
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
        // A notification that came in pieces: small (`MAX_OUTSIDE_BYTES`), and handed on whole.
        Err(parts) => parts.concat().into(),
    }
}

/// How its answer is bounded and judged.
fn policy(permit: &Permit) -> Policy {
    permit.access().tool().map(|tool| tool.policy).unwrap_or_default()
}

/// What its answer is judged by, if by anything.
fn schema(permit: &Permit) -> Option<&Arc<Schema>> {
    match permit.access().tool()?.schema.now() {
        OutputSchema::Compiled(schema) => Some(schema),
        OutputSchema::Absent | OutputSchema::Unusable(_) | OutputSchema::Compiling(_) => None,
    }
}

/// What its result must say to a client of this era.
fn required(permit: &Permit, era: Era) -> Required {
    match (era, permit.access()) {
        (Era::Legacy, _) => Required::Nothing,
        (Era::Modern, Access::Resource { request: ResourceRequest::Read, .. }) => {
            Required::TypeAndCaching
        }
        (
            Era::Modern,
            Access::Tool(_)
            | Access::Resource {
                request: ResourceRequest::Subscribe | ResourceRequest::Unsubscribe,
                ..
            }
            | Access::Prompt { .. }
            | Access::Completion { .. },
        ) => Required::Type,
    }
}
