//! Recorded requests: from the reserved log slot to the closed record, in one tracing span.
//!
//! [`RecordedRequest`] reserves the slot, runs the request, and closes record and reply by its outcome. Every request to a
//! server is admitted (`admit`) and sent (`send`, which repeats a call where CAP-7 allows it) by [`OnRecord`].

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use tracing::Instrument;
use tracing::Span;
use tracing::field::Empty;

use self::record::CallRecord;
use self::trace::CallTrace;
use super::client::Caller;
use super::client::Client;
use super::exchange::{Exchange, SentRequest};
use super::kept_results::Keeping;
use super::log_routing;
use super::refusal::{RecordKind, Refusal, Stopped};
use super::relay::Relay;
use super::render;
use super::render::Caching;
use super::reply::{Aborted, Piece, Reply, Running};
use super::session_facts::{FactsOf, Rise};
use super::settings::CurrentSettings;
use super::worker::Worker;
use mcpproxy_activity::record::{Recording, Status};
use mcpproxy_catalog::exposed_uris::AnswerRewriter;
use mcpproxy_policy::tool::{Exposure, World};
use mcpproxy_protocol::mcp::revisions::ProtocolFamily;
use mcpproxy_protocol::mcp::trace_context::TraceContext;
use mcpproxy_protocol::wire::splice::Splice;
use mcpproxy_runtime::io::clock;
use mcpproxy_schema::output::AnswerMember;

pub(super) mod admit;
pub(super) mod question;
pub(super) mod receipt;
pub(super) mod record;
mod reported_error;
mod send;
mod trace;

/// A recorded request in progress.
pub(super) struct OnRecord<'a> {
    pub(super) worker: &'a Rc<Worker>,
    pub(super) caller: &'a Caller,
    /// The client, counted as a user of the servers.
    user: Option<&'a Arc<Client>>,
    pub(super) record: &'a mut CallRecord,
    /// Settings of the request from its start to its end, regardless of reloads.
    pub(super) settings: CurrentSettings,
    /// Facts of session and principal.
    facts: FactsOf<'a>,
    /// Exposure of a request other than a tool call.
    offer: OfferExposure,
    /// Members of `_meta` that are part of an approval; may be empty.
    meta: Box<str>,
    /// The request's `inputResponses`, which are part of an approval; may be empty.
    inputs: Box<str>,
    /// Facts to raise when the answer begins.
    rise: Option<Rise>,
    rewriter: Option<Box<AnswerRewriter>>,
    /// The client's id of the task that the request is about.
    pub(super) task: Option<Box<str>>,
}

impl OnRecord<'_> {
    pub(super) fn rewrite(&mut self, rewriter: AnswerRewriter) {
        self.rewriter = Some(Box::new(rewriter));
    }
}

/// Exposure of a request for a resource, prompt or completion.
#[derive(Clone, Copy, Debug)]
pub(super) struct OfferExposure {
    /// Exposure of the request's answer.
    pub(super) exposure: Exposure,
    /// Whether the request sends data chosen by the client.
    pub(super) carries: bool,
}

impl OfferExposure {
    /// The most cautious value, until the server is known.
    const UNKNOWN: Self =
        Self { exposure: Exposure { sensitivity: None, world: World::Open }, carries: true };
}

/// Source of the reply to an admitted request.
#[expect(
    clippy::large_enum_variant,
    reason = "it is moved once, and a box would cost one allocation per call"
)]
pub(super) enum ReplySource {
    /// A result of the proxy.
    Own(Bytes),
    Server {
        sent: SentRequest,
        /// The client's raw progress token.
        token: Option<Bytes>,
        /// Facts to raise when the answer begins.
        rise: Option<Rise>,
    },
}

/// Frame of a recorded request: begins its trace, opens its record, runs it, and closes record and reply by its
/// outcome. Only this type opens records, and it closes all of them.
#[must_use = "a request is recorded only when it runs"]
pub(super) struct RecordedRequest {
    worker: Rc<Worker>,
    caller: Caller,
    kind: RecordKind,
    trace: CallTrace,
}

impl RecordedRequest {
    /// Begins the trace of the request with the `_meta` of its params, which is read only if tracing is on.
    #[inline]
    pub(super) fn begin<'m>(
        worker: &Rc<Worker>,
        caller: Caller,
        kind: RecordKind,
        meta: impl FnOnce() -> Option<&'m [u8]>,
    ) -> Self {
        let trace = CallTrace::begin(worker, &caller, kind.method(), meta);
        Self { worker: Rc::clone(worker), caller, kind, trace }
    }

    /// Runs the request with `work` as a call in progress.
    #[inline]
    pub(super) fn running<W>(self, work: W) -> Running
    where
        W: AsyncFnOnce(OnRecord<'_>) -> Result<ReplySource, Stopped> + 'static,
    {
        Running::new(|reply| self.run(reply, work))
    }

    /// Runs a built-in tool. `work` returns its result in the legacy form.
    pub(super) fn own_tool<W>(
        worker: &Rc<Worker>,
        caller: Caller,
        tool: &'static str,
        meta: Option<&[u8]>,
        work: W,
    ) -> Running
    where
        W: AsyncFnOnce(&mut OnRecord<'_>) -> Result<Bytes, Stopped> + 'static,
    {
        let request = Self::begin(worker, caller, RecordKind::OwnTool, || meta);
        request.running(async move |mut on: OnRecord<'_>| {
            on.record.name("", tool);
            let mut result = work(&mut on).await?;
            if on.caller.family() == ProtocolFamily::Modern {
                let legacy = String::from_utf8_lossy(&result);
                let modern = render::own_result(ProtocolFamily::Modern, &legacy, Caching::No);
                result = modern.into_owned().into();
            }
            on.record.note_response(&result);
            Ok(ReplySource::Own(result))
        })
    }

    /// Runs the request with `work`. [`Aborted`] if the answer breaks off after its first byte was sent.
    #[inline]
    pub(super) fn run<W>(self, reply: Reply, work: W) -> impl Future<Output = Result<(), Aborted>>
    where
        W: AsyncFnOnce(OnRecord<'_>) -> Result<ReplySource, Stopped>,
    {
        let Self { worker, caller, kind, trace } = self;
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
            if !caller.is_proxy()
                && let Err(retry_after) = worker.proxy.activity.within_share(caller.principal.id())
            {
                record.recorded_as(Recording::Counted);
                record.stop(Refusal::over_share(caller.principal.id(), retry_after).into()).await;
                return Ok(());
            }
            // A caller without a client temporarily counts as a client of its own.
            let anonymous = caller.client.is_none().then(log_routing::anonymous);
            let user = caller.client.as_ref().map(|(client, _)| &**client).or(anonymous.as_ref());
            let on = OnRecord {
                worker: &worker,
                caller: &caller,
                user,
                record: &mut record,
                settings: worker.settings(),
                facts: FactsOf::caller(&caller, &worker.proxy.principal_facts, &worker.facts),
                offer: OfferExposure::UNKNOWN,
                meta: Box::default(),
                inputs: Box::default(),
                rise: None,
                rewriter: None,
                task: None,
            };
            match work(on).await {
                Ok(ReplySource::Server { sent, token, rise }) => {
                    let keeping = Keeping::of(&worker, &caller, kind, &sent.permit);
                    let relay = Relay::new(caller.client, token)
                        .holding(sent.holdable.is_some())
                        .taking_extensions(caller.extensions);
                    let exchange =
                        Exchange::new(worker, sent, record, relay, reply, (rise, keeping));
                    let ended = exchange.run().await;
                    if let Some(anonymous) = anonymous {
                        anonymous.note_use(clock::lately());
                    }
                    ended
                }
                Ok(ReplySource::Own(result)) => {
                    record.close(Status::Success, "").await;
                    reply.put(Piece::Whole(AnswerMember::Result, Splice::from(result)));
                    Ok(())
                }
                Err(stop) => {
                    let stop = counted(&worker, &caller, &mut record, stop);
                    record.stop(stop).await;
                    Ok(())
                }
            }
        };
        carried_out.instrument(span)
    }
}

/// Counts a request that did not reach a server against its principal's rate of refusals. Beyond the rate the client
/// gets a throttling error, and the request is recorded in summary (ACT-10).
fn counted(worker: &Worker, caller: &Caller, record: &mut CallRecord, stop: Stopped) -> Stopped {
    if record.was_sent() || !stop.counts() || caller.is_proxy() {
        return stop;
    }
    match worker.settings().policy.limits.refuse(&caller.principal) {
        Ok(()) => {
            record.recorded_as(Recording::Refusal);
            stop
        }
        Err(too_many) => {
            record.recorded_as(Recording::Counted);
            stop.throttled(&too_many)
        }
    }
}

/// Records a request that was refused before it was parsed, as a call of `tool`, which is empty if unknown.
pub fn rejected(worker: &Rc<Worker>, caller: Caller, tool: String, refusal: Refusal) -> Running {
    let request = RecordedRequest::begin(worker, caller, RecordKind::ToolCall(""), || None);
    request.running(async move |on: OnRecord<'_>| {
        on.record.name("", &tool);
        Err(refusal.into())
    })
}

/// Tracing span of a request; never contains a payload. A disabled span costs one atomic load. A sampled call has a
/// span at any level, so that log lines within carry its trace.
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
