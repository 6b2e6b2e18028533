//! Record of a request in progress, written in every outcome (ACT-1, ACT-2), with the [receipt](super::receipt) of the answer.
//!
//! [`CallRecord`] owns the draft and its log slot, and submits the draft when the request ends or is dropped. It also
//! fills in the request's tracing span.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use blake3::Hasher;
use bytes::Bytes;
use mcpproxy_activity::Slot;
pub(crate) use mcpproxy_activity::record::META;
use mcpproxy_activity::record::{
    Decision, Draft, Entry, LateMember, MAX_METADATA_BYTES, Policy, Raw, Recording, Source, Status,
    Text, Type, Verdict, with_member,
};
use mcpproxy_policy::intent::Operation;
use mcpproxy_policy::tool::{ServerId, ToolName};
use mcpproxy_policy::{Access, Denial, Principal, Warning};
use mcpproxy_protocol::mcp::trace_context::PropagatedContext;
use mcpproxy_protocol::wire::splice::Splice;
use mcpproxy_runtime::io::clock;
use mcpproxy_runtime::io::line_budget::{LinePeer, peer_line};
use mcpproxy_schema::output::AnswerMember;
use mcpproxy_upstream::Upstream;
use mcpproxy_upstream::supervisor::Supervisor;
use tracing::Span;

use super::receipt::{Departure, Receipt};
use super::reported_error::reported_error;
use super::trace::{CallTrace, EndedCall};
use crate::proxy::client::Caller;
use crate::proxy::refusal;
use crate::proxy::refusal::{RecordKind, Refusal, RefusalKind, Stopped};
use crate::proxy::reply::{Piece, Reply};
use crate::proxy::shutdown::{CUT_OFF, Ending};
use crate::proxy::worker::Worker;
use crate::telemetry::call_metrics::CallDuration;
use crate::telemetry::call_span::SpanError;
use crate::telemetry::{Tally, TraceIds, call_metrics as calls};

/// Record of a request in progress; written when closed or dropped.
pub(crate) struct CallRecord {
    kind: RecordKind,
    span: Span,
    trace: CallTrace,
    /// Slot and record; `None` once submitted.
    record: Option<(Slot, Box<Entry>)>,
    kept: Kept,
    /// All arguments, if the record has only a part of them; `None` once the request is sent.
    arguments: Option<Bytes>,
    /// Receipt of the answer, if receipts are on.
    receipt: Option<Box<Receipt>>,
    /// Decision recorded if the call is dropped during validation of its answer.
    pub(crate) unjudged: Option<fn() -> Decision>,
    began: Instant,
    /// Time in queues and approval waits, which is not overhead.
    waited: Duration,
    /// Time in approval waits, which is not call time.
    waited_for_person: Duration,
    /// Start of a pending approval wait.
    asking_since: Option<Instant>,
    /// Time at which the request was sent.
    sent: Option<Instant>,
    /// Server that the request was sent to.
    server: Option<ServerId>,
    /// Server of an existing tool, or of a request other than a tool call; such calls are counted by name.
    found: Option<ServerId>,
    /// Server named by a call of a tool that it does not have.
    addressed: Option<ServerId>,
    /// Time at which the answer was complete or failed.
    pub(crate) answered: Option<Instant>,
    /// Number of times that a modern server asked a legacy client for input (PRO-37).
    pub(crate) input_rounds: u32,
    /// Reply, which shows whether a dropped call was canceled by its client.
    reply: Reply,
    /// Shows whether the call was cut off at shutdown.
    ending: Ending,
    tally: Tally,
}

/// Member of `metadata` with the number of input rounds ([`CallRecord::input_rounds`]).
const INPUT_ROUNDS: &str = "input_rounds";
/// Member of `metadata` with the reason why nobody received the answer.
const UNDELIVERED: &str = "undelivered";
/// Maximum size of group names in a record, in bytes.
const MAX_GROUPS_BYTES: usize = 2048;

/// Maximum size of a recorded `_meta` in bytes; a longer one is cut and kept as a string.
const MAX_META_BYTES: usize = 2048;

/// Member of `metadata` with the `inputResponses` of the request.
pub(crate) const INPUTS: &str = "input_responses";

/// Request member as raw JSON for the record.
pub(crate) fn recorded_member(meta: &str) -> Cow<'_, str> {
    match meta.get(..meta.floor_char_boundary(MAX_META_BYTES)) {
        Some(head) if head.len() < meta.len() => {
            Cow::Owned(serde_json::json!({"bytes": meta.len(), "head": head}).to_string())
        }
        Some(_) | None => Cow::Borrowed(meta),
    }
}

/// `metadata` for a principal in these groups; surplus groups are counted.
fn groups_metadata(groups: &[Box<str>]) -> String {
    let mut free = MAX_GROUPS_BYTES;
    let fitting = groups.iter().take_while(|group| {
        let fits = group.len() < free;
        free = free.saturating_sub(group.len());
        fits
    });
    let kept: Vec<&str> = fitting.map(|group| &**group).collect();
    match groups.len() - kept.len() {
        0 => serde_json::json!({ "groups": kept }),
        left_out => serde_json::json!({ "groups": kept, "groups_left_out": left_out }),
    }
    .to_string()
}

/// Recording limits: bytes of the client's data, bytes of the answer, and receipts.
#[derive(Clone, Copy, Default)]
struct Kept {
    payload: usize,
    response: usize,
    receipts: bool,
}

impl CallRecord {
    /// Reserves a log slot before anything is sent (ACT-2). Request data is also added to `span`.
    pub(super) async fn open(
        worker: &Worker,
        caller: &Caller,
        reply: &Reply,
        (kind, span, trace): (RecordKind, Span, CallTrace),
    ) -> Result<Self, Refusal> {
        let began = clock::now();
        let slot = worker.proxy.activity.reserve().await.map_err(|refused| {
            worker.tally.refused(RefusalKind::Unavailable);
            let kind = kind.refusal_kind(RefusalKind::Unavailable);
            Refusal::rejected(kind, refused.to_string())
        })?;
        let mut entry: Box<Entry> =
            Draft::new(kind.record_type(), caller.source, Status::Error).into();
        let draft = &mut entry.draft;
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        draft.started = u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX);
        draft.set(Text::Principal, caller.principal.id());
        let groups = caller.principal.groups();
        if !groups.is_empty() {
            let metadata = groups_metadata(groups);
            draft.keep(Raw::Metadata, metadata.as_bytes(), metadata.len());
        }
        draft.set(Text::SessionId, caller.session_id());
        draft.set(Text::ClientName, caller.client_name());
        draft.set(Text::RequestId, &String::from_utf8_lossy(&caller.request_id));
        draft.variant = kind.variant();
        let settings = worker.settings();
        let kept = Kept {
            payload: settings.max_payload_bytes,
            response: settings.max_response_bytes,
            receipts: settings.receipts,
        };
        let ends = (reply, &worker.ending);
        let of = (kind, span, trace);
        let mut record = Self::with((slot, entry), of, began, kept, ends, worker.tally.clone());
        if let Some(of) = record.trace.recorded() {
            record.add_metadata("trace_id", &format!("\"{:032x}\"", of.trace_id));
        }
        Ok(record)
    }

    fn with(
        record: (Slot, Box<Entry>),
        (kind, span, trace): (RecordKind, Span, CallTrace),
        began: Instant,
        kept: Kept,
        (reply, ending): (&Reply, &Ending),
        tally: Tally,
    ) -> Self {
        tally.began();
        Self {
            kind,
            span,
            trace,
            record: Some(record),
            kept,
            arguments: None,
            receipt: None,
            unjudged: None,
            began,
            waited: Duration::ZERO,
            waited_for_person: Duration::ZERO,
            asking_since: None,
            sent: None,
            server: None,
            found: None,
            addressed: None,
            answered: None,
            input_rounds: 0,
            reply: reply.clone(),
            ending: ending.clone(),
            tally,
        }
    }

    pub(crate) fn kind(&self) -> RecordKind {
        self.kind
    }

    /// Span for work that continues without the request's task.
    pub(crate) fn span(&self) -> &Span {
        &self.span
    }

    pub(crate) fn set_target(&mut self, access: &Access) {
        self.trace.set_target(access);
    }

    /// Trace context to be sent to the server.
    pub(crate) fn carried(&self) -> Option<Arc<PropagatedContext>> {
        self.trace.carried()
    }

    /// Replaces, in the request to the server, the client's trace by one of the proxy's own, and records the new
    /// identifier.
    pub(crate) fn restart_trace(&mut self, ids: &TraceIds) {
        if let Some(trace_id) = self.trace.restart(ids) {
            self.add_metadata("upstream_trace_id", &format!("\"{trace_id:032x}\""));
        }
    }

    /// Marks the trace as failed by a tool error.
    pub(crate) fn tool_failed(&mut self) {
        self.trace.fails(SpanError::Tool);
    }

    /// Marks the trace as failed by a server's JSON-RPC error.
    pub(crate) fn failed_with(&mut self, error: &[u8]) {
        self.trace.fails_with(error);
    }

    /// Start of the call time: when the call began, plus its approval waits.
    pub(crate) fn began(&self) -> Instant {
        self.began + self.waited_for_person
    }

    /// Starts an approval wait, which is counted neither as overhead nor as latency.
    pub(crate) fn begin_wait_for_person(&mut self, since: Instant) {
        self.asking_since = Some(since);
    }

    /// Ends the wait for a person.
    pub(crate) fn end_wait_for_person(&mut self, now: Instant) {
        let Some(since) = self.asking_since.take() else { return };
        let time = now.saturating_duration_since(since);
        self.waited += time;
        self.waited_for_person += time;
    }

    pub(crate) fn reply(&self) -> &Reply {
        &self.reply
    }

    /// Adds a member to the metadata; `value` is raw JSON.
    pub(crate) fn add_metadata(&mut self, name: &str, value: &str) {
        let Some((_, entry)) = &mut self.record else { return };
        let metadata = with_member(entry.draft.payload(Raw::Metadata).bytes, name, value);
        entry.draft.keep(Raw::Metadata, &metadata, MAX_METADATA_BYTES);
    }

    /// Adds a request member other than the arguments, [`META`] or [`INPUTS`], to the metadata.
    pub(crate) fn keep_member(&mut self, name: &str, value: &str) {
        self.add_metadata(name, &recorded_member(value));
    }

    fn add_late(&mut self, member: LateMember) {
        if let Some((_, entry)) = &mut self.record {
            entry.late = Some(member);
        }
    }

    /// Draft of a record about the call: same server, tool, session and request.
    pub(crate) fn beside(&self, kind: Type) -> Draft {
        let Some((_, entry)) = &self.record else {
            return Draft::new(kind, Source::Internal, Status::Error);
        };
        let of = &entry.draft;
        let mut draft = Draft::new(kind, of.source, Status::Success);
        draft.operation = of.operation;
        for text in Text::ABOUT_CALL {
            draft.set(text, of.text(text));
        }
        draft
    }

    /// Wall-clock time at which the call began.
    pub(crate) fn time_of_day(&self) -> SystemTime {
        let started = self.record.as_ref().map_or(0, |(_, entry)| entry.draft.started);
        UNIX_EPOCH + Duration::from_micros(started)
    }

    /// Notes that the request is sent to this server at `now`.
    pub(crate) fn sends(&mut self, upstream: &Upstream, now: Instant) {
        self.sent = Some(now);
        self.arguments = None;
        self.server = Some(upstream.id());
        self.found = self.server;
    }

    /// Notes that the named target exists, even if the request is refused.
    pub(crate) fn found(&mut self, upstreams: &Supervisor) {
        self.found = self.named_server(upstreams);
    }

    /// Counts the request by its server only: the server does not have such a tool.
    pub(crate) fn addressed(&mut self, upstreams: &Supervisor) {
        self.addressed = self.named_server(upstreams);
    }

    fn named_server(&self, upstreams: &Supervisor) -> Option<ServerId> {
        let (_, entry) = self.record.as_ref()?;
        upstreams.id(entry.draft.text(Text::Server))
    }

    pub(crate) fn was_sent(&self) -> bool {
        self.sent.is_some()
    }

    /// Sets whether a refused request is recorded individually.
    pub(crate) fn recorded_as(&mut self, recording: Recording) {
        let Some((_, entry)) = &mut self.record else { return };
        entry.recording = recording;
        if let (Recording::Refusal, Some(arguments)) = (recording, &self.arguments) {
            entry.draft.whole_arguments = Some(Box::new(*blake3::hash(arguments).as_bytes()));
        }
    }

    /// Counts the reason of a refusal.
    pub(crate) fn refused(&mut self, kind: RefusalKind) {
        self.tally.refused(kind);
        self.trace.fails(SpanError::Own(kind.as_str()));
    }

    /// Sets the server and the tool or method.
    pub(crate) fn name(&mut self, server: &str, tool: &str) {
        if !server.is_empty() {
            self.span.record("server", server).record("tool", tool);
        }
        if let Some((_, entry)) = &mut self.record {
            entry.draft.set(Text::Server, server);
            entry.draft.set(Text::Tool, tool);
        }
    }

    /// Sets the effective operation type.
    pub(crate) fn operation(&mut self, operation: Option<Operation>) {
        if let Some((_, entry)) = &mut self.record {
            entry.draft.operation = operation;
        }
    }

    /// Copies the recorded part of arguments or intent.
    pub(crate) fn keep(&mut self, which: Raw, payload: &[u8]) {
        if let Some((_, entry)) = &mut self.record {
            entry.draft.keep(which, payload, self.kept.payload);
        }
    }

    /// Copies the recorded part of the arguments. If the request is refused, the rest distinguishes it from other
    /// refused requests.
    pub(crate) fn keep_arguments(&mut self, arguments: &Bytes) {
        self.keep(Raw::Arguments, arguments);
        self.arguments = (arguments.len() > self.kept.payload).then(|| arguments.clone());
    }

    /// Copies the head of the answer: a record pins no buffer of a result (ACT-2).
    pub(crate) fn note_response(&mut self, slice: &Bytes) {
        if let Some((_, entry)) = &mut self.record {
            entry.draft.append(Raw::Response, slice, self.kept.response);
        }
    }

    /// Adds a slice of a server's result to the record and the receipt; see [`Self::note_receipt`].
    pub(crate) fn receive(
        &mut self,
        slice: &Bytes,
        ending: Option<&[u8]>,
        adapted: Option<&Splice>,
    ) {
        self.note_response(slice);
        self.note_receipt(slice, ending, adapted);
    }

    /// Adds a slice of a server's result to the receipt. In the last slice, `ending` replaces the last byte.
    /// `adapted` is delivered instead of the slice.
    pub(crate) fn note_receipt(
        &mut self,
        slice: &Bytes,
        ending: Option<&[u8]>,
        adapted: Option<&Splice>,
    ) {
        if self.kept.receipts {
            let receipt = self.receipt.get_or_insert_default();
            receipt.adapt(slice, ending, adapted);
            receipt.take(slice, ending);
        }
    }

    /// Discards the result so far: it was a question that the proxy itself puts to the client.
    pub(crate) fn discard_response(&mut self) {
        self.receipt = None;
        if let Some((_, entry)) = &mut self.record {
            entry.draft.keep(Raw::Response, b"", self.kept.response);
        }
    }

    /// Completes the receipt of a forwarded result.
    pub(crate) fn forwards(&mut self) {
        if let Some(receipt) = self.receipt.take() {
            self.add_late(receipt.forwarded());
        }
    }

    /// Completes the receipt of a result that was replaced by `delivered`.
    pub(crate) fn replaces(&mut self, whole: bool, delivered: &Splice, why: Departure) {
        if let Some(receipt) = self.receipt.take() {
            let mut hashed = Hasher::new();
            for part in delivered.slices() {
                hashed.update(part);
            }
            self.add_late(receipt.replaced(whole, hashed.finalize(), why));
        }
    }

    /// Adds time spent queued (`queued_ms` in the record), which is not overhead.
    pub(crate) fn waited(&mut self, waited: Duration) {
        self.waited += waited;
        self.add_metadata("queued_ms", &waited.as_millis().to_string());
    }

    /// Whether the rest of the answer can be delivered; if not, records the reason (the connection broke).
    pub(crate) fn delivers(&mut self, rest: &Splice) -> bool {
        let Some(why) = self.reply.undelivered(rest) else { return true };
        self.add_metadata(UNDELIVERED, &serde_json::json!(why).to_string());
        false
    }

    /// Adds a decision about the call.
    pub(crate) fn decide(&mut self, decision: Decision) {
        if let Some((_, entry)) = &mut self.record {
            self.tally.decided(refusal::decision(&decision));
            entry.decisions.push(decision);
        }
    }

    /// Logs and records warnings about a request that is sent (ACT-1).
    pub(crate) fn warn(
        &mut self,
        caller: &Principal,
        (server, tool): (&str, &str),
        warnings: &[Warning],
    ) {
        for warning in warnings {
            peer_line!(warn, LinePeer::Client(caller.id()), %server, %tool, "{warning}");
            let (policy, mode, rules) = match warning {
                Warning::Mismatch(_)
                | Warning::ReadOnUnannotated(_)
                | Warning::WriteOnReadOnly { .. } => (Policy::Intent, "", &[][..]),
                Warning::ApprovalSuggested(_) => (Policy::Capability, "", &[][..]),
                Warning::Shadow(denial) => (Policy::Rules, "shadow", &denial.rules[..]),
            };
            let decision = Decision::new(Verdict::Warning, policy, warning.to_string());
            self.decide(Decision { mode, rules: rules.to_vec(), ..decision });
        }
    }

    /// Records the rules that permitted the request (ACT-1).
    pub(crate) fn permitted_by(&mut self, rules: &[Box<str>]) {
        if rules.is_empty() {
            return;
        }
        self.add_metadata("rules", &serde_json::json!(rules).to_string());
    }

    /// Records a denial: marks the request as rejected, and adds one decision (ACT-1).
    pub(crate) fn deny(&mut self, denial: &Denial) -> Refusal {
        let (decision, kind) = refusal::decision_about(denial);
        self.decide(decision);
        let mut refusal = Refusal::rejected(kind, denial.to_string());
        refusal.retry_after = denial.retry_after();
        refusal
    }

    /// Writes a marker before the call is sent to `tool`: if this process is killed during the call, the call is
    /// recorded as unknown (ACT-1).
    pub(crate) async fn begin(&mut self, tool: &ToolName) -> Result<(), Refusal> {
        let Some((slot, entry)) = &mut self.record else { return Ok(()) };
        slot.begin(entry).await.map_err(|refused| {
            let text = format!("Tool '{tool}' was not called: {refused}");
            Refusal::rejected(RefusalKind::Unavailable, text)
        })
    }

    /// Whether this reply must wait for its record because the log lags behind (ACT-3).
    pub(crate) fn is_behind(&self) -> bool {
        self.record.as_ref().is_some_and(|(slot, _)| slot.is_behind(clock::now()))
    }

    /// Marks the reply as sent before its record, which queries wait for (ACT-5).
    pub(crate) fn replied(&mut self) {
        if let Some((slot, _)) = &mut self.record {
            slot.replied();
        }
    }

    /// Marks the record as late: its in-flight mark then stands for a reply that was already sent.
    pub(crate) fn record_is_late(&mut self) {
        if let Some((slot, entry)) = &mut self.record {
            slot.record_is_late(entry);
        }
    }

    /// Submits the record before the last piece of the reply. Waits for the disk as `activity.durability` requires
    /// (ACT-3).
    pub(crate) async fn close(&mut self, status: Status, error: &str) {
        let Some((slot, entry)) = self.end(clock::now(), status, error) else { return };
        if let Err(lost) = slot.submit_before_reply(entry).await {
            // The call was sent, so it is answered (ACT-2); the health check counts the loss.
            peer_line!(error, LinePeer::Part("activity"), %lost, "a call's record may be lost");
        }
    }

    /// Ends a request without an upstream's answer: first the record, then the refusal.
    pub(crate) async fn refuse(mut self, mut refusal: Refusal) {
        let status = refusal.status;
        refusal.kind = self.kind.refusal_kind(refusal.kind);
        self.refused(refusal.kind);
        self.close(status, &refusal.text).await;
        self.reply.put(Piece::Refused(refusal));
    }

    /// Ends a stopped request: first the record, then the refusal or the question.
    pub(crate) async fn stop(mut self, stop: Stopped) {
        match stop {
            Stopped::Refused(refusal) => self.refuse(refusal).await,
            Stopped::InputRequired { result, why } => {
                self.close(Status::Rejected, &why).await;
                self.reply.put(Piece::Whole(AnswerMember::Result, Splice::from(result)));
            }
            Stopped::Lacking { error, why } => {
                self.close(Status::Rejected, &why).await;
                self.reply.put(Piece::Whole(AnswerMember::Error, Splice::from(error)));
            }
        }
    }

    /// Takes the completed record of a call that ended at `now`.
    fn end(&mut self, now: Instant, status: Status, error: &str) -> Option<(Slot, Box<Entry>)> {
        // The client may have disconnected during an approval wait.
        self.end_wait_for_person(now);
        if !self.waited_for_person.is_zero() {
            let waited = self.waited_for_person.as_millis().to_string();
            self.add_metadata("approval_wait_ms", &waited);
        }
        if self.input_rounds > 0 {
            let rounds = self.input_rounds.to_string();
            self.add_metadata(INPUT_ROUNDS, &rounds);
        }
        let (slot, mut entry) = self.record.take()?;
        let total = now.duration_since(self.began).saturating_sub(self.waited_for_person);
        let waited = self.waited.saturating_sub(self.waited_for_person);
        let upstream = match (self.sent, self.answered) {
            (Some(sent), Some(answered)) => Some(answered.duration_since(sent)),
            (Some(sent), None) => Some(now.duration_since(sent)),
            (None, _) => None,
        };
        let outcome = refusal::outcome(status);
        self.tally.ended(self.server, outcome, CallDuration { total, waited, upstream });
        if let Some(server) = self.found.or(self.addressed).filter(|_| self.server.is_none()) {
            self.tally.not_sent(server, outcome);
        }
        if let Some(server) = self.found {
            // The client chooses an extension's method, which must not create a metrics series.
            let tool = match self.kind {
                RecordKind::Extension => self.kind.method(),
                _ => entry.draft.text(Text::Tool),
            };
            self.tally.tool(server, tool, entry.draft.variant, outcome);
        }
        self.span.record("outcome", status.as_str()).record("duration_us", micros(total));
        let draft = &mut entry.draft;
        draft.status = status;
        let reported = (status == Status::Error && error.is_empty())
            .then(|| reported_error(draft.payload(Raw::Response).bytes))
            .flatten();
        draft.set(Text::Error, reported.as_deref().unwrap_or(error));
        draft.duration_us = micros(total);
        let others = upstream.unwrap_or_default() + waited;
        draft.overhead_us = micros(total.saturating_sub(others));
        self.export(now, &entry, status);
        Some((slot, entry))
    }

    /// Exports the call's trace.
    fn export(&mut self, now: Instant, entry: &Entry, status: Status) {
        if self.trace.recorded().is_none() {
            return;
        }
        let draft = &entry.draft;
        let failed = match status {
            Status::Error | Status::Unknown => Some(SpanError::Other),
            Status::Blocked => Some(SpanError::Own("output_blocked")),
            // The error was noted before; a question to the client is not a failure.
            Status::Success | Status::Warning | Status::Rejected => None,
        };
        std::mem::take(&mut self.trace).end(EndedCall {
            started: draft.started,
            began: self.began,
            now,
            upstream: self.sent.map(|sent| (sent, self.answered.unwrap_or(now))),
            waited: self.waited,
            overhead_us: draft.overhead_us,
            known: self.found.is_some() || self.kind == RecordKind::OwnTool,
            server: draft.text(Text::Server),
            tool: draft.text(Text::Tool),
            session: draft.text(Text::SessionId),
            request_id: draft.text(Text::RequestId),
            principal: draft.text(Text::Principal),
            client: draft.text(Text::ClientName),
            variant: draft.variant,
            source: draft.source.as_str(),
            outcome: status.as_str(),
            failed,
            decisions: entry
                .decisions
                .iter()
                .map(|made| refusal::decision(made).as_str())
                .collect(),
        });
    }
}

/// Reason of a call whose client disconnected before a person answered.
const DISCONNECTED_WAITING: &str =
    "the client disconnected while the call waited for approval: it was not sent";

impl Drop for CallRecord {
    fn drop(&mut self) {
        if self.record.is_none() {
            return;
        }
        // A call that its server never saw is no error of that server.
        let is_unsent = self.found.is_some() && !self.was_sent();
        let given_up = self.reply.given_up();
        let (text, word) = match (&given_up, self.reply.is_canceled(), self.ending.is_cut()) {
            (Some(why), ..) => (&**why, "client_gone"),
            (None, true, _) => ("the client cancelled the call", "cancelled"),
            (None, false, true) => (CUT_OFF, "cut_off"),
            (None, false, false) if self.asking_since.is_some() => {
                (DISCONNECTED_WAITING, "client_gone")
            }
            (None, false, false) if is_unsent => {
                ("the client disconnected before the call was sent", "client_gone")
            }
            (None, false, false) => {
                ("the client disconnected before the reply was complete", "client_gone")
            }
        };
        self.trace.fails(SpanError::Own(word));
        if let Some(decide) = self.unjudged.take() {
            self.tally.judged(calls::Judged::AnswerUnjudged);
            self.decide(decide());
        }
        let status = if is_unsent { Status::Rejected } else { Status::Error };
        if let Some((slot, entry)) = self.end(clock::now(), status, text) {
            // The client no longer waits for the answer, so nothing waits for the disk.
            drop(slot.submit(entry));
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use mcpproxy_activity::{Activity, Config, Filter, Page, Writer};
    use serde_json::Value;

    use super::*;
    use crate::telemetry::call_metrics::Outcome;

    /// Opens a record in a log of its own.
    async fn open(
        reply: &Reply,
        ending: &Ending,
        calls: &calls::Calls,
    ) -> (CallRecord, Activity, Writer, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let (activity, writer) = Activity::open(folder.path(), Config::default()).unwrap();
        let slot = activity.reserve().await.unwrap();
        let draft = Draft::new(Type::ToolCall, Source::Mcp, Status::Error);
        let kept = Kept::default();
        let of = (RecordKind::ToolCall(""), Span::none(), CallTrace::Off);
        let record = (slot, draft.into());
        let call_record =
            CallRecord::with(record, of, Instant::now(), kept, (reply, ending), calls.tally());
        (call_record, activity, writer, folder)
    }

    #[tokio::test]
    async fn fr_a5_call_dropped_during_validation_records_a_decision() {
        for judging in [true, false] {
            let (reply, ending) = (Reply::default(), Ending::default());
            let calls = calls::Calls::default();
            let (mut call_record, activity, writer, _folder) = open(&reply, &ending, &calls).await;
            let unjudged =
                || Decision::new(Verdict::Warning, Policy::OutputValidation, "not judged");
            call_record.unjudged = judging.then_some(unjudged);
            assert_eq!(calls.read().in_flight(), 1);
            drop(call_record);
            let totals = calls.read();
            assert_eq!((totals.in_flight(), totals.all.of(Outcome::Error)), (0, 1));
            let decided = totals.decided(calls::Decision::OutputWarned);
            assert_eq!(decided, u64::from(judging));
            activity.flush().unwrap();
            let records = activity.count(&Filter::default()).unwrap();
            assert_eq!(records, 1 + u64::from(judging));
            writer.close().unwrap();
        }
    }

    #[tokio::test]
    async fn cap_8_wait_for_approval_does_not_count_as_latency() {
        for (answered, latency_s) in [(true, 2), (false, 1)] {
            let (reply, ending) = (Reply::default(), Ending::default());
            let calls = calls::Calls::default();
            let (mut call_record, _activity, writer, _folder) = open(&reply, &ending, &calls).await;
            let at = |seconds| call_record.began + Duration::from_secs(seconds);
            let [asked, answer, ends] = [at(1), at(194), at(195)];
            call_record.begin_wait_for_person(asked);
            if answered {
                call_record.end_wait_for_person(answer);
            }
            let (slot, entry) = call_record.end(ends, Status::Error, "").unwrap();
            assert_eq!(entry.draft.duration_us, latency_s * 1_000_000);
            assert_eq!(entry.draft.overhead_us, latency_s * 1_000_000);
            let metadata = entry.draft.payload(Raw::Metadata).bytes;
            let metadata: Value = serde_json::from_slice(metadata).unwrap();
            assert_eq!(metadata["approval_wait_ms"], (195 - latency_s) * 1000);
            drop(slot.submit(entry));
            writer.close().unwrap();
        }
    }

    #[tokio::test]
    async fn undeliverable_answer_is_recorded() {
        let running = crate::proxy::reply::Running::new(|reply| async move {
            let (ending, calls) = (Ending::default(), calls::Calls::default());
            let (mut call_record, activity, writer, _folder) = open(&reply, &ending, &calls).await;
            call_record.delivers(&Splice::from(Bytes::from_static(b"{}")));
            call_record.close(Status::Success, "").await;
            activity.flush().unwrap();
            let records = activity.list(&Filter::default(), &Page::default()).unwrap().records;
            let record = activity.get(records[0].id).unwrap().expect("it is there");
            let metadata = record.body.metadata().expect("it has some");
            let metadata: serde_json::Value = serde_json::from_slice(metadata.bytes()).unwrap();
            assert_eq!(metadata["undelivered"], "no room for 2 bytes");
            writer.close().unwrap();
            Ok(())
        });
        running.answers_to(|rest| Err(format!("no room for {} bytes", rest.len())));
        running.rest().unwrap().await.unwrap();
    }

    #[tokio::test]
    async fn dropped_call_records_the_cause() {
        for (cut, text) in [(true, "mcpproxy is shutting down"), (false, "the client disconnected")]
        {
            let (reply, ending) = (Reply::default(), Ending::default());
            let calls = calls::Calls::default();
            let (call_record, activity, writer, _folder) = open(&reply, &ending, &calls).await;
            if cut {
                ending.cut_off();
            }
            drop(call_record);
            activity.flush().unwrap();
            let records = activity.list(&Filter::default(), &Page::default()).unwrap().records;
            let shown = &records[0].head.error;
            assert!(shown.starts_with(text), "{shown}");
            writer.close().unwrap();
        }
    }

    #[tokio::test]
    async fn call_dropped_before_it_was_sent_is_no_error_of_its_server() {
        for (sent, status) in [(false, Outcome::Rejected), (true, Outcome::Error)] {
            let (reply, ending) = (Reply::default(), Ending::default());
            let calls = calls::Calls::default();
            let (mut call_record, activity, writer, _folder) = open(&reply, &ending, &calls).await;
            let server = mcpproxy_policy::tool::ServerIds::default().assign(&"s".into());
            call_record.found = Some(server);
            if sent {
                call_record.sent = Some(call_record.began);
                call_record.server = Some(server);
            }
            drop(call_record);
            assert_eq!(calls.read().all.of(status), 1, "sent: {sent}");
            activity.flush().unwrap();
            let records = activity.list(&Filter::default(), &Page::default()).unwrap().records;
            assert_eq!(refusal::outcome(records[0].head.status), status, "sent: {sent}");
            writer.close().unwrap();
        }
    }
}
