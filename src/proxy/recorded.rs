//! The one way to carry out a request: on record from its beginning to its end, under one tracing span.
//!
//! [`recorded`] makes room in the log, has the request worked on, and ends record and reply by what came of it. Every
//! request to a server is admitted and sent by [`OnRecord`], whatever it asks for: it waits there for its turn where
//! the limits have it wait, and is sent once more where CAP-7 allows it.

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tracing::field::Empty;
use tracing::{Instrument, Span};

use super::advice;
use super::approval::{self, RepeatedRequest, WaitingCall};
use super::call_record::CallRecord;
use super::call_trace::CallTrace;
use super::caller::Caller;
use super::client::Client;
use super::exchange::Exchange;
use super::keeping::Keeping;
use super::log_routing;
use super::params::progress_token;
use super::record_kind::RecordKind;
use super::refusal::{FIND_TOOLS, Refusal, RefusalKind};
use super::rejection::{Rejection, Stopped};
use super::relay::Relay;
use super::reply::{Aborted, Piece, Reply};
use super::session_facts::{FactsOf, Rise};
use super::settings::CurrentSettings;
use super::settling::{Again, settle};
use super::worker::Worker;
use crate::activity::record::Status;
use crate::intent::Intent;
use crate::io::clock;
use crate::mcp::message::SMALL_MESSAGE_BYTES;
use crate::mcp::trace_context::TraceContext;
use crate::output::AnswerMember;
use crate::policy::{
    self, Access, Admission, AdmissionRequest, ApprovalDenial, Approved, Denial, Foreseen, Leave,
    Mismatch, NotApproved, PendingApproval, Permit, Queued, ServerOutcome, SessionFacts,
    ToolAccess,
};
use crate::tool::{Tool, ToolName, Trust};
use crate::upstream::{Answer, CallError, CallExtras, Upstream};
use crate::wire::splice::Splice;

/// A request that is being worked on.
pub(super) struct OnRecord<'a> {
    pub(super) worker: &'a Rc<Worker>,
    pub(super) caller: &'a Caller,
    /// Who counts as the user of the servers that are asked.
    user: Option<&'a Arc<Client>>,
    pub(super) record: &'a mut CallRecord,
    /// What it is decided by, from its beginning to its end: a swap meanwhile does not touch it.
    pub(super) settings: CurrentSettings,
    /// What the session will have seen once the answer begins.
    rise: Option<Rise>,
}

/// What becomes of a request whose turn has come.
enum Turned {
    /// It goes out.
    Permit(Permit),
    /// A person has to be asked now.
    Asks(PendingApproval),
}

/// Where the reply to a request comes from, if it was not rejected.
#[expect(
    clippy::large_enum_variant,
    reason = "it is moved once, and a box would be an allocation a call"
)]
pub(super) enum ReplySource {
    /// A result of our own.
    Own(Bytes),
    /// A server answers.
    Server {
        /// What was permitted.
        permit: Permit,
        /// The answer on its way.
        answer: Answer,
        /// The client's own progress token, raw.
        token: Option<Bytes>,
        /// How it may be asked once more, should nothing come of it.
        again: Option<Box<Again>>,
        /// What the session will have seen once the answer begins.
        rise: Option<Rise>,
    },
}

/// Has a request worked on by `work`, as part of `trace`, and sees what comes of it through: the one place that opens a record, and from
/// which all of them are closed.
///
/// # Errors
/// [`Aborted`] when the answer broke off after its first byte had gone on.
pub(super) fn recorded<W>(
    worker: Rc<Worker>,
    caller: Caller,
    (kind, trace): (RecordKind, CallTrace),
    reply: Reply,
    work: W,
) -> impl Future<Output = Result<(), Aborted>>
where
    W: AsyncFnOnce(OnRecord<'_>) -> Result<ReplySource, Stopped>,
{
    let span = span(&caller, kind, trace.recorded());
    let of = (kind, span.clone(), trace);
    let carried_out = async move {
        let mut record = match CallRecord::open(&worker, &caller, &reply, of).await {
            Ok(record) => record,
            Err(refusal) => {
                reply.put(Piece::Refused(refusal));
                return Ok(());
            }
        };
        // What comes from no client counts as one of its own, as long as it takes.
        let anonymous = caller.client.is_none().then(log_routing::anonymous);
        let user = caller.client.as_ref().map(|(client, _)| &**client).or(anonymous.as_ref());
        let on = OnRecord {
            worker: &worker,
            caller: &caller,
            user,
            record: &mut record,
            settings: worker.settings(),
            rise: None,
        };
        match work(on).await {
            Ok(ReplySource::Server { permit, answer, token, again, rise }) => {
                let keeping = Keeping::of(&worker, &caller, kind, &permit);
                let relay = Relay::new(caller.client, token);
                let asked = (permit, answer, again);
                let exchange = Exchange::new(worker, asked, record, relay, reply, (rise, keeping));
                let ended = exchange.run().await;
                if let Some(anonymous) = anonymous {
                    anonymous.was_active(clock::lately());
                }
                ended
            }
            Ok(ReplySource::Own(result)) => {
                record.close(Status::Success, "").await;
                reply.put(Piece::Whole(AnswerMember::Result, Splice::from(result)));
                Ok(())
            }
            Err(stop) => {
                record.stop(stop).await;
                Ok(())
            }
        }
    };
    carried_out.instrument(span)
}

/// Records a request that is refused before it is looked at, as a call of `tool`, empty if that is not known.
///
/// # Errors
/// None; the type is that of every request.
pub fn rejected(
    worker: Rc<Worker>,
    caller: Caller,
    tool: String,
    refusal: Refusal,
    reply: Reply,
) -> impl Future<Output = Result<(), Aborted>> {
    let kind = RecordKind::ToolCall("");
    let trace = CallTrace::begin(&worker, &caller, kind.method(), || None);
    recorded(worker, caller, (kind, trace), reply, async move |on: OnRecord<'_>| {
        on.record.name("", &tool);
        Err(Rejection { status: Status::Rejected, refusal }.into())
    })
}

/// The span of a request in the log. Off by default, and then it costs the look at one word; no payload is ever in it. A
/// call of a trace that is recorded has one at any level, so that each line that is logged in it names the trace.
fn span(caller: &Caller, kind: RecordKind, trace: Option<TraceContext>) -> Span {
    macro_rules! call {
        ($level:ident $(, $name:ident = $value:expr)*) => {
            tracing::$level!(
                "call",
                $($name = $value,)*
                request_id = &*String::from_utf8_lossy(&caller.request_id),
                session_id = caller.session_id(),
                principal = caller.principal.id(),
                variant = kind.variant(),
                server = Empty,
                tool = Empty,
                outcome = Empty,
                duration_us = Empty,
            )
        };
    }
    match trace {
        None => call!(debug_span),
        Some(TraceContext { trace_id, span_id, .. }) => call!(
            error_span,
            trace_id = format_args!("{trace_id:032x}"),
            span_id = format_args!("{span_id:016x}")
        ),
    }
}

impl<'a> OnRecord<'a> {
    /// Asks whether the request may have `access`; what is remarkable about it, or refuses it, is on record.
    /// `arguments` are those that go to the server, which a
    /// tool's schema judges before a person is asked, `beside` what the client said with them. Where a person has to
    /// approve, they are waited for (CAP-8); in a request that is made again then, `beside` becomes what it was in the
    /// first one.
    pub(super) async fn admit(
        &mut self,
        access: Access,
        arguments: &Bytes,
        intent: Option<Intent<'_>>,
        beside: &mut CallExtras,
    ) -> Result<Permit, Stopped> {
        let unjudged = self.judge_at_once(&access, arguments, intent)?;
        let repeated = match beside.members.is_empty() {
            true => None,
            false => {
                let (worker, caller, record) = (self.worker, self.caller, &mut *self.record);
                approval::repeated_request(worker, caller, record, &access, &beside.members)?
            }
        };
        let permit = match self.decide(access, arguments, intent, self.record.time_of_day()) {
            Admission::Permit(permit) => {
                self.judge_rest(unjudged, arguments, intent).await?;
                self.release(repeated.as_ref(), permit.access(), beside)?;
                permit
            }
            Admission::Queued(queued) => {
                self.release(repeated.as_ref(), queued.access(), beside)?;
                let turned = Box::pin(self.turn(queued, arguments, intent, None)).await?;
                // When its turn has come: who waits for something else meanwhile is in no queue.
                self.judge_rest(unjudged, arguments, intent).await?;
                match turned {
                    Turned::Permit(permit) => permit,
                    Turned::Asks(pending) => {
                        Box::pin(self.approved(pending, arguments, intent, beside, None)).await?
                    }
                }
            }
            Admission::Denial(denial) => {
                let help = help(&denial, arguments, intent, |tool| self.shows(tool));
                return Err(self.denied(&denial).helping(help).into());
            }
            // Rare and large: it is no part of each call's memory.
            Admission::Pending(pending) => {
                self.judge_rest(unjudged, arguments, intent).await?;
                self.record.found(&self.worker.proxy.upstreams);
                Box::pin(self.approved(pending, arguments, intent, beside, repeated)).await?
            }
        };
        self.permitted(&permit, intent);
        Ok(permit)
    }

    /// Judges the arguments of a call that could not be judged at once.
    async fn judge_rest(
        &mut self,
        unjudged: Option<Access>,
        arguments: &Bytes,
        intent: Option<Intent<'_>>,
    ) -> Result<(), Rejection> {
        match unjudged {
            // Seldom, and large: it is no part of each call's memory.
            Some(access) => Box::pin(self.judge_later(&access, arguments, intent)).await,
            None => Ok(()),
        }
    }

    /// Admits what is answered at once, waits for nobody, and has no arguments; nothing is sent for it whose
    /// answer would be waited for, so that it needs no place under the limits.
    pub(super) fn admit_at_once(&mut self, access: Access) -> Result<(), Rejection> {
        match self.decide(access, b"", None, self.record.time_of_day()) {
            Admission::Permit(permit) => {
                self.permitted(&permit, None);
                Ok(())
            }
            Admission::Queued(_) => Ok(()),
            Admission::Denial(denial) => Err(self.denied(&denial)),
            Admission::Pending(pending) => {
                let denial = ApprovalDenial::new(pending.access(), NotApproved::ByFilter);
                Err(self.denied(&denial.into()))
            }
        }
    }

    /// Whether the tool is one that the caller may know of, and call.
    fn shows(&self, tool: &ToolName) -> bool {
        let snapshot = self.worker.proxy.catalog.load();
        let visible = policy::visible(&self.caller.principal, &self.settings.policy);
        let shown = |tool: &Arc<Tool>| tool.trust == Trust::Given && visible.tool(tool);
        snapshot.tool(tool).is_some_and(shown)
    }

    fn denied(&mut self, denial: &Denial) -> Rejection {
        self.record.found(&self.worker.proxy.upstreams);
        self.record.deny(denial)
    }

    /// Notes what goes out.
    fn permitted(&mut self, permit: &Permit, intent: Option<Intent<'_>>) {
        let access = permit.access();
        self.record.is_about(access);
        self.record.warn(access.server(), access.label(), permit.warnings());
        self.record.permitted_by(permit.rules());
        let (facts, session) = self.facts();
        facts.permitted(intent.and_then(|intent| intent.sensitivity()));
        self.rise = access.tool().and_then(|tool| facts.rise(session, tool.exposure));
    }

    /// A request that was made again for an approval, and needs none any more: it goes out as it was.
    fn release(
        &mut self,
        repeated: Option<&RepeatedRequest>,
        access: &Access,
        beside: &mut CallExtras,
    ) -> Result<(), Rejection> {
        let Some(RepeatedRequest { id, .. }) = repeated else { return Ok(()) };
        let released = self.worker.proxy.approvals.release(id);
        beside.members =
            released.map_err(|why| self.record.deny(&ApprovalDenial::new(access, why).into()))?;
        Ok(())
    }

    fn decide(
        &self,
        access: Access,
        arguments: &[u8],
        intent: Option<Intent<'_>>,
        now: SystemTime,
    ) -> Admission {
        policy::admit(self.request(access, arguments, intent, now), &self.settings.policy)
    }

    /// What would be decided about it; nothing is on record of that.
    pub(super) fn foresee(
        &self,
        access: Access,
        arguments: &[u8],
        intent: Option<Intent<'_>>,
    ) -> Foreseen {
        let request = self.request(access, arguments, intent, self.record.time_of_day());
        policy::foresee(&request, &self.settings.policy)
    }

    fn request<'r>(
        &'r self,
        access: Access,
        arguments: &'r [u8],
        intent: Option<Intent<'r>>,
        now: SystemTime,
    ) -> AdmissionRequest<'r> {
        AdmissionRequest {
            principal: &self.caller.principal,
            access,
            arguments,
            intent,
            client: self.caller.client_name(),
            session: self.facts().1,
            now,
        }
    }

    /// What the session has seen, and where that is kept.
    fn facts(&self) -> (FactsOf<'a>, SessionFacts) {
        let (worker, caller) = (self.worker, self.caller);
        FactsOf::caller(caller, &worker.proxy.session_facts, &worker.facts)
    }

    /// Waits until a call is approved, and then asks once more: the tool, the rules and the principal may be others
    /// now. Only what was approved goes out.
    async fn approved(
        &mut self,
        pending: PendingApproval,
        arguments: &[u8],
        intent: Option<Intent<'_>>,
        beside: &mut CallExtras,
        repeated: Option<RepeatedRequest>,
    ) -> Result<Permit, Stopped> {
        let access = pending.access().clone();
        let reason = intent.and_then(|intent| intent.reason()).unwrap_or_default();
        let call = WaitingCall { arguments, reason, beside };
        let (worker, caller) = (self.worker, self.caller);
        let approved = match repeated {
            None => approval::wait(worker, caller, self.record, pending, call).await?,
            Some(repeated) => {
                let (approved, first) =
                    approval::claim(worker, caller, self.record, pending, repeated, call).await?;
                beside.members = first;
                approved
            }
        };
        self.still_there()?;
        // A person may have taken their time.
        self.settings = self.worker.settings();
        let changed = Denial::from(ApprovalDenial::new(&access, NotApproved::Changed));
        let Some(now) = self.as_it_is(access, intent) else {
            return Err(self.record.deny(&changed).into());
        };
        let leave = match self.decide(now, arguments, intent, SystemTime::now()) {
            // It needs none any more.
            Admission::Permit(permit) => Ok(Leave::Permit(permit)),
            Admission::Queued(queued) => Ok(Leave::Queued(queued)),
            Admission::Pending(pending) => pending.permitted_by(&approved, &self.settings.policy),
            Admission::Denial(denial) => Err(denial),
        };
        match leave {
            Ok(Leave::Permit(permit)) => Ok(permit),
            Ok(Leave::Queued(queued)) => {
                match self.turn(queued, arguments, intent, Some(&approved)).await? {
                    Turned::Permit(permit) => Ok(permit),
                    // Somebody has agreed, but not to that.
                    Turned::Asks(_) => Err(self.record.deny(&changed).into()),
                }
            }
            Err(denial) => Err(self.record.deny(&denial).into()),
        }
    }

    /// What is asked, with its tool as the catalog has it now; `None` if that is gone.
    fn as_it_is(&self, access: Access, intent: Option<Intent<'_>>) -> Option<Access> {
        Some(match access {
            Access::Tool(call) => {
                let tool = self.worker.proxy.catalog.load().tool(&call.tool().name).cloned()?;
                Access::Tool(match intent {
                    Some(intent) => ToolAccess::declared(tool, &intent),
                    None => ToolAccess::direct(tool),
                })
            }
            Access::Resource { .. } | Access::Prompt { .. } | Access::Completion { .. } => access,
        })
    }

    /// Whether the principal still is one, after a wait.
    fn still_there(&mut self) -> Result<(), Rejection> {
        let principal = &self.caller.principal;
        match self.worker.proxy.identity.in_force(principal, SystemTime::now()) {
            true => Ok(()),
            false => Err(self.record.deny(&Denial::Lapsed { who: principal.id().into() })),
        }
    }

    /// Waits for the turn of a request, as long as its time lasts, and then asks once more: its principal, the tool and the
    /// rules may be others now. One that is dropped meanwhile leaves its queue; one that does not go out gives its place
    /// back.
    async fn turn(
        &mut self,
        mut queued: Box<Queued>,
        arguments: &[u8],
        intent: Option<Intent<'_>>,
        approved: Option<&Approved>,
    ) -> Result<Turned, Rejection> {
        let asked = clock::now();
        let upstream = self.worker.proxy.upstreams.get(queued.access().server());
        let time = upstream.map_or(Duration::ZERO, |upstream| upstream.call_timeout());
        let until = self.record.began() + time;
        let coming = tokio::time::timeout_at(until.into(), queued.come());
        let come = self.worker.ending.unless_cut(pin!(coming)).await;
        let waited = clock::now().saturating_duration_since(asked);
        self.record.waited(waited);
        let came = match come {
            Some(Ok(Ok(permit))) => permit,
            Some(Ok(Err(denial))) => return Err(self.record.deny(&denial)),
            Some(Err(_)) => return Err(self.record.deny(&queued.late(waited))),
            None => {
                let access = queued.access();
                return Err(Rejection::cut_off(access.server(), access.label()));
            }
        };
        self.record.found(&self.worker.proxy.upstreams);
        self.still_there()?;
        let access = came.access().clone();
        let Some(access) = self.as_it_is(access, intent) else {
            let text = format!("Tool '{}' not found", came.access());
            let refusal = Refusal::new(RefusalKind::Unknown, text).advising(FIND_TOOLS);
            return Err(Rejection { status: Status::Error, refusal });
        };
        let settings = self.worker.settings();
        let request = self.request(access, arguments, intent, SystemTime::now());
        match policy::admit_again(request, came, approved, &settings.policy) {
            Admission::Permit(permit) => Ok(Turned::Permit(permit)),
            Admission::Pending(pending) => Ok(Turned::Asks(pending)),
            Admission::Denial(denial) => Err(self.record.deny(&denial)),
            // It has had its turn: nobody sends it back.
            Admission::Queued(queued) => Err(self.record.deny(&queued.late(waited))),
        }
    }

    /// Sends what was permitted, with `body` as [`Upstream::call`] takes it.
    pub(super) async fn send(
        self,
        upstream: &Arc<Upstream>,
        mut permit: Permit,
        body: Bytes,
        mut beside: CallExtras,
    ) -> Result<ReplySource, Rejection> {
        let Self { worker, user, record, rise, .. } = self;
        beside.trace = record.carried();
        // The one in force now: it does not end before this call has.
        let Some(upstream) = worker.proxy.upstreams.enter(upstream.name()) else {
            return Err(Rejection::no_server(upstream.name()));
        };
        let now = clock::now();
        record.sends(&upstream, now);
        if let Some(user) = user {
            worker.proxy.log_routing.enter(&upstream, user, now);
        }
        let token = beside.meta.as_ref().and_then(progress_token);
        // It is kept until the answer ends, which long arguments are not.
        let token = token.map(|token| match body.len() > SMALL_MESSAGE_BYTES {
            true => Bytes::copy_from_slice(&token),
            false => token,
        });
        let mut again = Again::of(&permit, &body, &beside);
        let mut answer = worker
            .ending
            .unless_cut(pin!(upstream.call(&worker.pool, &permit, body, beside, record.began())))
            .await;
        if let Some(Err(CallError { cause, .. })) = &answer
            && cause.is_broken_connection()
            && let Some(again) = again.take()
        {
            let mut asked = Box::pin(again.ask(worker, &upstream, &permit, record, None));
            answer = worker.ending.unless_cut(asked.as_mut()).await;
        }
        match answer {
            None => Err(Rejection::cut_off(upstream.name(), permit.access().label())),
            Some(Ok(answer)) => {
                Ok(ReplySource::Server { permit, answer, token, again: again.map(Box::new), rise })
            }
            Some(Err(error)) => {
                settle(&mut permit, error.cause.blames_server().then_some(ServerOutcome::Failed));
                let now = clock::now();
                record.answered = Some(now);
                if let Some(user) = user {
                    user.was_active(now);
                }
                let help = advice::away(&upstream.state(), SystemTime::now());
                Err(Rejection::upstream(&error).helping(help))
            }
        }
    }
}

/// The call as the gate would let it pass; empty where no other call would do, and of a tool that is not `shown` to the
/// caller, who could not make it.
fn help(
    denial: &Denial,
    arguments: &[u8],
    intent: Option<Intent<'_>>,
    shown: impl Fn(&ToolName) -> bool,
) -> String {
    match (denial, intent) {
        (Denial::Gate(Mismatch { tool, needed, by: _ }), Some(intent)) if shown(tool) => {
            let intent = intent.stating(*needed);
            advice::call_again(*needed, &tool.to_string(), arguments, &intent)
        }
        (
            Denial::Gate(_)
            | Denial::Intent(_)
            | Denial::Approval(_)
            | Denial::Scope { .. }
            | Denial::Lapsed { .. }
            | Denial::Quarantined(_)
            | Denial::Rule(_)
            | Denial::Limit(_),
            _,
        ) => String::new(),
    }
}
