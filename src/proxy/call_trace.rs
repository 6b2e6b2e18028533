//! A call's part of a trace: whose child it is, what its server is told, and what is exported of it when it ends.
//!
//! Whoever began the trace decides whether it is recorded; one that begins here is by its id (head sampling). A trace that
//! is not recorded is carried on all the same, so that the server does not begin one of its own. What `_meta` says counts
//! before what headers say, which are the HTTP request's (OpenTelemetry semantic conventions for MCP §Context
//! propagation).

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::caller::Caller;
use super::worker::Worker;
use crate::json::members::members;
use crate::mcp::trace_context::{MetaContext, PropagatedContext, TraceContext};
use crate::policy::{Access, TOOLS_CALL};
use crate::telemetry::SpanQueue;
use crate::telemetry::call_span::{CallSpan, SpanError, SpanTarget, UpstreamSpan, cut, plain_uri};

/// Whether a call is traced.
#[derive(Debug, Default)]
pub(super) enum CallTrace {
    /// Nobody asked for traces: whatever a request says goes on as it came.
    #[default]
    Off,
    /// It is part of a trace that is not recorded.
    Carried(Arc<PropagatedContext>),
    /// It is recorded.
    Recorded(Box<RecordedTrace>),
}

/// A call of a trace that is recorded.
#[derive(Debug)]
pub(super) struct RecordedTrace {
    /// The call's own span.
    pub(super) context: TraceContext,
    /// What its server is told: the span of what is sent.
    carried: Arc<PropagatedContext>,
    parent: Option<u64>,
    link: Option<TraceContext>,
    target: SpanTarget,
    error: Option<SpanError>,
    revision: &'static str,
    method: &'static str,
    queue: SpanQueue,
}

/// What the record of a call knows when it ends.
pub(super) struct EndedCall<'a> {
    /// Microseconds since 1970.
    pub(super) started: u64,
    pub(super) began: Instant,
    pub(super) now: Instant,
    /// When it went out, and when that was over.
    pub(super) upstream: Option<(Instant, Instant)>,
    pub(super) waited: Duration,
    pub(super) overhead_us: u64,
    /// Whether what was asked for was found.
    pub(super) known: bool,
    pub(super) server: &'a str,
    pub(super) tool: &'a str,
    pub(super) session: &'a str,
    pub(super) request_id: &'a str,
    pub(super) principal: &'a str,
    pub(super) client: &'a str,
    pub(super) variant: &'static str,
    pub(super) source: &'static str,
    pub(super) outcome: &'static str,
    /// Whether it failed, should nobody have said why.
    pub(super) failed: Option<SpanError>,
    pub(super) decisions: Vec<&'static str>,
}

impl CallTrace {
    /// The part of a call that begins, of a request by that `method`. `meta` is asked for the request's `_meta` where traces are wanted.
    pub(super) fn begin<'a>(
        worker: &Worker,
        caller: &Caller,
        method: &'static str,
        meta: impl FnOnce() -> Option<&'a [u8]>,
    ) -> Self {
        let Some(sampling) = worker.settings().traces else { return Self::Off };
        let in_meta = meta().map(MetaContext::of).unwrap_or_default();
        let in_head = caller.trace.as_deref();
        let of_head = || in_head.and_then(|head| head.baggage.clone());
        let baggage = in_meta.baggage.or_else(of_head);
        let (parent, link) = match (&in_meta.context, in_head) {
            (Some(parent), Some(head)) if parent.context != head.context => {
                (Some(parent), Some(head.context))
            }
            (Some(parent), _) => (Some(parent), None),
            (None, parent) => (parent, None),
        };
        let [span_id, sent_as] = worker.trace_ids.spans();
        let context = match parent {
            Some(parent) => TraceContext { span_id, ..parent.context },
            None => {
                let trace_id = worker.trace_ids.trace();
                TraceContext { trace_id, span_id, sampled: sampling.takes(trace_id) }
            }
        };
        let state = parent.and_then(|parent| parent.state.clone());
        if !context.sampled {
            // A span that nobody records is nobody's parent.
            let context = parent.map_or(context, |parent| parent.context);
            return Self::Carried(Arc::new(PropagatedContext { context, state, baggage }));
        }
        let sent = TraceContext { span_id: sent_as, ..context };
        let client = caller.client.as_ref().map(|(client, _)| client);
        Self::Recorded(Box::new(RecordedTrace {
            context,
            carried: Arc::new(PropagatedContext { context: sent, state, baggage }),
            parent: parent.map(|parent| parent.context.span_id),
            link,
            target: SpanTarget::None,
            error: None,
            revision: client.map_or("", |client| client.revision().name()),
            method,
            queue: worker.proxy.spans.clone(),
        }))
    }

    /// What the server of the call is to be told.
    pub(super) fn carried(&self) -> Option<Arc<PropagatedContext>> {
        match self {
            Self::Off => None,
            Self::Carried(carried) => Some(Arc::clone(carried)),
            Self::Recorded(trace) => Some(Arc::clone(&trace.carried)),
        }
    }

    /// The call's span, if it is recorded.
    pub(super) fn recorded(&self) -> Option<TraceContext> {
        match self {
            Self::Off | Self::Carried(_) => None,
            Self::Recorded(trace) => Some(trace.context),
        }
    }

    /// Notes what is asked for.
    pub(super) fn is_about(&mut self, access: &Access) {
        let Self::Recorded(trace) = self else { return };
        trace.target = match access {
            Access::Tool(call) => SpanTarget::Tool(cut(&call.tool().name.tool)),
            Access::Prompt { name, .. } => SpanTarget::Prompt(cut(name)),
            Access::Resource { uri, .. } => SpanTarget::Resource(plain_uri(uri)),
            Access::Completion { .. } => SpanTarget::None,
        };
    }

    /// Notes why it fails.
    pub(super) fn fails(&mut self, error: SpanError) {
        if let Self::Recorded(trace) = self {
            trace.error = Some(error);
        }
    }

    /// Notes the JSON-RPC error of a server.
    pub(super) fn fails_with(&mut self, error: &[u8]) {
        if let Self::Recorded(trace) = self {
            trace.error = Some(code(error).map_or(SpanError::Other, SpanError::Code));
        }
    }

    /// Exports the call, if it is recorded.
    pub(super) fn end(self, call: EndedCall<'_>) {
        let Self::Recorded(trace) = self else { return };
        let RecordedTrace { context, carried, parent, link, target, error, revision, .. } = *trace;
        let started = call.started.saturating_mul(1000);
        let at = |moment: Instant| {
            let since = moment.saturating_duration_since(call.began).as_nanos();
            started.saturating_add(u64::try_from(since).unwrap_or(u64::MAX))
        };
        let target = match target {
            // It was not permitted, or is one of ours.
            SpanTarget::None if trace.method == TOOLS_CALL => SpanTarget::Tool(cut(call.tool)),
            target => target,
        };
        let span_id = carried.context.span_id;
        trace.queue.put(Box::new(CallSpan {
            context,
            parent,
            link,
            state: carried.state.clone(),
            started,
            ended: at(call.now),
            upstream: call.upstream.map(|(sent, answered)| UpstreamSpan {
                span_id,
                started: at(sent),
                ended: at(answered),
            }),
            method: trace.method,
            target,
            known: call.known,
            server: cut(call.server),
            variant: call.variant,
            source: call.source,
            session: cut(call.session),
            request_id: cut(call.request_id),
            principal: cut(call.principal),
            client: cut(call.client),
            revision,
            outcome: call.outcome,
            error: error.or(call.failed),
            decisions: call.decisions,
            overhead_us: call.overhead_us,
            waited_us: u64::try_from(call.waited.as_micros()).unwrap_or(u64::MAX),
        }));
    }
}

/// `code` of a JSON-RPC error.
fn code(error: &[u8]) -> Option<i64> {
    let mut members = members(std::str::from_utf8(error).ok()?).ok()?.map_while(Result::ok);
    members.find(|(name, _)| name == "code")?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_of_an_error_is_read_wherever_it_stands() {
        assert_eq!(code(br#"{"message":"x","code":-32602}"#), Some(-32602));
        for none in [&br#"{"message":"x"}"#[..], br#"{"code":"x"}"#, b"[]", b"\xff"] {
            assert_eq!(code(none), None);
        }
    }
}
