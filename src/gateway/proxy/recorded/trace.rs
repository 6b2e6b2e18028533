//! Trace context of a call: its parent, the context sent to the server, and the span exported at its end.
//!
//! The originator of a trace decides whether it is recorded; a new trace is head-sampled by its id. An unsampled
//! trace is propagated as well, so that the server does not begin its own. `_meta` takes precedence over headers,
//! which belong to the HTTP request (OpenTelemetry semantic conventions for MCP §Context propagation).

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::proxy::client::Caller;
use crate::proxy::worker::Worker;
use crate::telemetry::call_span::{CallSpan, SpanError, SpanTarget, UpstreamSpan, cut, plain_uri};
use crate::telemetry::{SpanQueue, TraceIds};
use mcpproxy_json::members::member;
use mcpproxy_policy::{Access, TOOLS_CALL};
use mcpproxy_protocol::mcp::trace_context::{MetaContext, PropagatedContext, TraceContext};

/// Tracing state of a call.
#[derive(Debug, Default)]
pub(super) enum CallTrace {
    /// Tracing is off: trace context is forwarded as received.
    #[default]
    Off,
    /// The call is part of an unsampled trace.
    Carried {
        carried: Arc<PropagatedContext>,
        /// Whether the client chose the trace.
        is_foreign: bool,
    },
    Recorded(Box<RecordedTrace>),
}

/// A call in a sampled trace.
#[derive(Debug)]
pub(super) struct RecordedTrace {
    /// Context of the call's own span.
    pub(super) context: TraceContext,
    /// Context sent to the server: that of the client span.
    carried: Arc<PropagatedContext>,
    parent: Option<u64>,
    link: Option<TraceContext>,
    target: SpanTarget,
    error: Option<SpanError>,
    revision: &'static str,
    method: &'static str,
    queue: SpanQueue,
}

/// Data from the call's record at its end.
pub(super) struct EndedCall<'a> {
    pub(super) started: u64,
    pub(super) began: Instant,
    pub(super) now: Instant,
    /// Start and end of the upstream request.
    pub(super) upstream: Option<(Instant, Instant)>,
    pub(super) waited: Duration,
    pub(super) overhead_us: u64,
    /// Whether the target exists.
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
    /// Error, unless a more specific one was noted.
    pub(super) failed: Option<SpanError>,
    pub(super) decisions: Vec<&'static str>,
}

impl CallTrace {
    /// Begins the trace of a call with method `method`. `meta` is called only if tracing is on.
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
            // An unrecorded span cannot be a parent.
            let context = parent.map_or(context, |parent| parent.context);
            let carried = Arc::new(PropagatedContext { context, state, baggage });
            return Self::Carried { carried, is_foreign: parent.is_some() };
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

    /// Context to be sent to the server.
    pub(super) fn carried(&self) -> Option<Arc<PropagatedContext>> {
        match self {
            Self::Off => None,
            Self::Carried { carried, .. } => Some(Arc::clone(carried)),
            Self::Recorded(trace) => Some(Arc::clone(&trace.carried)),
        }
    }

    /// Replaces, in the request to the server, a trace chosen by the client by one of the proxy's own, because the
    /// client's identifier and vendor data would reach the server unreviewed (APR-1). Returns the new identifier.
    pub(super) fn restart(&mut self, ids: &TraceIds) -> Option<u128> {
        let (carried, is_foreign) = match self {
            Self::Off => return None,
            Self::Carried { carried, is_foreign } => (carried, *is_foreign),
            Self::Recorded(trace) => (&mut trace.carried, trace.parent.is_some()),
        };
        if !is_foreign {
            return None;
        }
        let [span_id, _] = ids.spans();
        let context = TraceContext { trace_id: ids.trace(), span_id, ..carried.context };
        let baggage = carried.baggage.clone();
        *carried = Arc::new(PropagatedContext { context, state: None, baggage });
        Some(context.trace_id)
    }

    /// Context of the call's span, if it is recorded.
    pub(super) fn recorded(&self) -> Option<TraceContext> {
        match self {
            Self::Off | Self::Carried { .. } => None,
            Self::Recorded(trace) => Some(trace.context),
        }
    }

    pub(super) fn set_target(&mut self, access: &Access) {
        let Self::Recorded(trace) = self else { return };
        trace.target = match access {
            Access::Tool(call) => SpanTarget::Tool(cut(&call.tool().name.tool)),
            Access::Prompt { name, .. } => SpanTarget::Prompt(cut(name)),
            Access::Resource { uri, .. } => SpanTarget::Resource(plain_uri(uri)),
            Access::Task(task) => SpanTarget::Tool(cut(&task.call().tool().name.tool)),
            Access::Completion { .. } | Access::Method { .. } => SpanTarget::None,
        };
    }

    pub(super) fn fails(&mut self, error: SpanError) {
        if let Self::Recorded(trace) = self {
            trace.error = Some(error);
        }
    }

    /// Sets the error from a server's JSON-RPC error.
    pub(super) fn fails_with(&mut self, error: &[u8]) {
        if let Self::Recorded(trace) = self {
            trace.error = Some(code(error).map_or(SpanError::Other, SpanError::Code));
        }
    }

    /// Exports the call's span, if it is recorded.
    pub(super) fn end(self, call: EndedCall<'_>) {
        let Self::Recorded(trace) = self else { return };
        let RecordedTrace { context, carried, parent, link, target, error, revision, .. } = *trace;
        let started = call.started.saturating_mul(1000);
        let at = |moment: Instant| {
            let since = moment.saturating_duration_since(call.began).as_nanos();
            started.saturating_add(u64::try_from(since).unwrap_or(u64::MAX))
        };
        let target = match target {
            // The call was not permitted, or is for a built-in tool.
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
    member(std::str::from_utf8(error).ok()?, "code")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_code_is_found_at_any_position() {
        assert_eq!(code(br#"{"message":"x","code":-32602}"#), Some(-32602));
        for none in [&br#"{"message":"x"}"#[..], br#"{"code":"x"}"#, b"[]", b"\xff"] {
            assert_eq!(code(none), None);
        }
    }
}
