//! The one way to carry out a request: on record from its beginning to its end, under one tracing span.
//!
//! [`recorded`] makes room in the log, has the request worked on, and ends record and reply by what came of it. Every
//! request to a server is admitted and sent by [`OnRecord`], whatever it asks for: it waits there for its turn where
//! the limits have it wait, and is sent once more where CAP-7 allows it.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tracing::field::Empty;
use tracing::{Instrument, Span};

use super::approval::{self, WaitingCall};
use super::call_record::{CallRecord, RecordKind, Rejection};
use super::caller::Caller;
use super::client::Client;
use super::exchange::Exchange;
use super::log_routing;
use super::params::progress_token;
use super::refusal::Refusal;
use super::relay::Relay;
use super::reply::{Aborted, Piece, Reply};
use super::session_facts::{FactsOf, Rise};
use super::settling::{Again, settle};
use super::worker::Worker;
use crate::activity::record::Status;
use crate::intent::Intent;
use crate::io::clock;
use crate::output::AnswerMember;
use crate::policy::{
    self, Access, Admission, AdmissionRequest, ApprovalDenial, Denial, Leave, NotApproved,
    PendingApproval, Permit, Queued, ServerOutcome, SessionFacts, ToolAccess,
};
use crate::upstream::{Answer, CallError, CallExtras, Upstream};
use crate::wire::splice::Splice;

/// A request that is being worked on.
pub(super) struct OnRecord<'a> {
    pub(super) worker: &'a Worker,
    pub(super) caller: &'a Caller,
    /// Who counts as the user of the servers that are asked.
    user: Option<&'a Arc<Client>>,
    pub(super) record: &'a mut CallRecord,
    /// What the session will have seen once the answer begins.
    rise: Option<Rise>,
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

/// Has a request worked on by `work`, and sees what comes of it through: the one place that opens a record, and from
/// which all of them are closed.
///
/// # Errors
/// [`Aborted`] when the answer broke off after its first byte had gone on.
pub(super) fn recorded<W>(
    worker: Rc<Worker>,
    caller: Caller,
    kind: RecordKind,
    reply: Reply,
    work: W,
) -> impl Future<Output = Result<(), Aborted>>
where
    W: AsyncFnOnce(OnRecord<'_>) -> Result<ReplySource, Rejection>,
{
    let span = span(&caller, kind);
    let of = span.clone();
    let carried_out = async move {
        let mut record = match CallRecord::open(&worker, kind, &caller, &reply, of).await {
            Ok(record) => record,
            Err(refusal) => {
                reply.put(Piece::Refused(refusal));
                return Ok(());
            }
        };
        // What comes from no client counts as one of its own, as long as it takes.
        let anonymous = caller.client.is_none().then(log_routing::anonymous);
        let user = caller.client.as_ref().map(|(client, _)| &**client).or(anonymous.as_ref());
        let on =
            OnRecord { worker: &worker, caller: &caller, user, record: &mut record, rise: None };
        match work(on).await {
            Ok(ReplySource::Server { permit, answer, token, again, rise }) => {
                let relay = Relay::new(caller.client, token);
                let asked = (permit, answer, again);
                let ended = Exchange::new(worker, asked, record, relay, reply, rise).run().await;
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
            Err(rejection) => {
                record.reject(rejection).await;
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
    recorded(worker, caller, kind, reply, async move |on: OnRecord<'_>| {
        on.record.name("", &tool);
        Err(Rejection { status: Status::Rejected, refusal })
    })
}

/// The span of a request. Off by default, and then it costs the look at one word; no payload is ever in it.
fn span(caller: &Caller, kind: RecordKind) -> Span {
    tracing::debug_span!(
        "call",
        request_id = &*String::from_utf8_lossy(&caller.request_id),
        session_id = caller.session_id(),
        principal = caller.principal.id(),
        variant = kind.variant(),
        server = Empty,
        tool = Empty,
        outcome = Empty,
        duration_us = Empty,
    )
}

impl<'a> OnRecord<'a> {
    /// Asks whether the request may have `access`; what is remarkable about it, or refuses it, is on record.
    /// `arguments` are those that go to the server, `meta` what the client said beside them. Where a person has to
    /// approve, they are waited for (CAP-8).
    pub(super) async fn admit(
        &mut self,
        access: Access,
        arguments: &[u8],
        intent: Option<Intent<'_>>,
        meta: Option<&Bytes>,
    ) -> Result<Permit, Rejection> {
        let permit = match self.decide(access, arguments, intent, self.record.time_of_day()) {
            Admission::Permit(permit) => permit,
            Admission::Queued(queued) => Box::pin(self.turn(queued)).await?,
            Admission::Denial(denial) => {
                self.record.found(&self.worker.proxy.upstreams);
                return Err(self.record.deny(&denial));
            }
            // Rare and large: it is no part of each call's memory.
            Admission::Pending(pending) => {
                self.record.found(&self.worker.proxy.upstreams);
                Box::pin(self.approved(pending, arguments, intent, meta)).await?
            }
        };
        let access = permit.access();
        self.record.warn(access.server(), access.label(), permit.warnings());
        self.record.permitted_by(permit.rules());
        let (facts, session) = self.facts();
        facts.permitted(intent.and_then(|intent| intent.sensitivity()));
        self.rise = access.tool().and_then(|tool| facts.rise(session, tool.exposure));
        Ok(permit)
    }

    fn decide(
        &self,
        access: Access,
        arguments: &[u8],
        intent: Option<Intent<'_>>,
        now: SystemTime,
    ) -> Admission {
        let settings = self.worker.settings();
        let request = AdmissionRequest {
            principal: &self.caller.principal,
            access,
            arguments,
            intent,
            client: self.caller.client_name(),
            session: self.facts().1,
            now,
        };
        policy::admit(request, &settings.policy)
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
        meta: Option<&Bytes>,
    ) -> Result<Permit, Rejection> {
        let access = pending.access().clone();
        let reason = intent.and_then(|intent| intent.reason()).unwrap_or_default();
        let call = WaitingCall { arguments, reason, meta };
        let approved = approval::wait(self.worker, self.caller, self.record, pending, call).await?;
        let changed =
            |access: &Access| Denial::from(ApprovalDenial::new(access, NotApproved::Changed));
        let now = match &access {
            Access::Tool(call) => {
                let tool = self.worker.proxy.catalog.load().tool(&call.tool().name).cloned();
                let Some(tool) = tool else { return Err(self.record.deny(&changed(&access))) };
                Access::Tool(match intent {
                    Some(intent) => ToolAccess::declared(tool, &intent),
                    None => ToolAccess::direct(tool),
                })
            }
            Access::Resource { .. } | Access::Prompt { .. } | Access::Completion { .. } => access,
        };
        let leave = match self.decide(now, arguments, intent, SystemTime::now()) {
            // It needs none any more.
            Admission::Permit(permit) => Ok(Leave::Permit(permit)),
            Admission::Queued(queued) => Ok(Leave::Queued(queued)),
            Admission::Pending(pending) => {
                pending.permitted_by(&approved, &self.worker.settings().policy)
            }
            Admission::Denial(denial) => Err(denial),
        };
        match leave {
            Ok(Leave::Permit(permit)) => Ok(permit),
            Ok(Leave::Queued(queued)) => self.turn(queued).await,
            Err(denial) => Err(self.record.deny(&denial)),
        }
    }

    /// Waits for the turn of a request, as long as its time lasts. One that is dropped meanwhile leaves its queue.
    async fn turn(&mut self, mut queued: Box<Queued>) -> Result<Permit, Rejection> {
        let asked = clock::now();
        let upstream = self.worker.proxy.upstreams.get(queued.access().server());
        let time = upstream.map_or(Duration::ZERO, |upstream| upstream.call_timeout());
        let until = self.record.began() + time;
        let coming = tokio::time::timeout_at(until.into(), queued.come());
        let come = self.worker.ending.unless_cut(coming).await;
        let waited = clock::now().saturating_duration_since(asked);
        self.record.waited(waited);
        match come {
            Some(Ok(Ok(permit))) => Ok(permit),
            Some(Ok(Err(denial))) => Err(self.record.deny(&denial)),
            Some(Err(_)) => Err(self.record.deny(&queued.late(waited))),
            None => {
                let access = queued.access();
                Err(Rejection::cut_off(access.server(), access.label()))
            }
        }
    }

    /// Sends what was permitted, with `body` as [`Upstream::call`] takes it.
    pub(super) async fn send(
        self,
        upstream: &Arc<Upstream>,
        mut permit: Permit,
        body: Bytes,
        beside: CallExtras,
    ) -> Result<ReplySource, Rejection> {
        let Self { worker, user, record, rise, .. } = self;
        let now = clock::now();
        record.sends(upstream, now);
        if let Some(user) = user {
            worker.proxy.log_routing.enter(upstream, user, now);
        }
        let token = beside.meta.as_ref().and_then(progress_token);
        let mut again = Again::of(&permit, &body, &beside);
        let answer = upstream.call(&worker.pool, &permit, body, beside, record.began());
        let mut answer = worker.ending.unless_cut(answer).await;
        if let Some(Err(CallError { cause, .. })) = &answer
            && cause.is_broken_connection()
            && let Some(again) = again.take()
        {
            let asked = Box::pin(again.ask(worker, upstream, &permit, record, None));
            answer = worker.ending.unless_cut(asked).await;
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
                Err(Rejection::upstream(&error))
            }
        }
    }
}
