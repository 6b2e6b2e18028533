//! The record of a request while it runs: whatever happens to it, the record is written (ACT-1, ACT-2).
//!
//! Owns the draft and its place in the log, and hands it over when the request ends, also when nobody waits for it any
//! more. The tracing span of the request is filled in here as well.
//!
//! Size: whatever is learned of a request comes here, each thing by its own door; the doors are one line each.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tracing::Span;

use super::call_trace::{CallTrace, EndedCall};
use super::caller::Caller;
use super::counted;
use super::receipt::{Departure, Receipt};
use super::record_kind::RecordKind;
use super::refusal::{Refusal, RefusalKind};
use super::rejection::{Rejection, Stopped};
use super::reply::{Piece, Reply};
use super::shutdown::{CUT_OFF, Ending};
use super::worker::Worker;
use crate::activity::Slot;
use crate::activity::record::{
    Decision, Draft, Entry, LateMember, MAX_METADATA_BYTES, Policy, Raw, Source, Status, Text,
    Type, Verdict, with_member,
};
use crate::intent::Operation;
use crate::io::clock;
use crate::mcp::trace_context::PropagatedContext;
use crate::output::AnswerMember;
use crate::policy::{Access, Denial, DenialKind, Warning};
use crate::telemetry::Tally;
use crate::telemetry::call_metrics::{self as calls, Took};
use crate::telemetry::call_span::SpanError;
use crate::tool::ToolName;
use crate::tool::server_id::ServerId;
use crate::upstream::Upstream;
use crate::upstream::supervisor::Supervisor;
use crate::wire::splice::Splice;

/// The record of a request under way, which is written when this is closed or dropped.
pub(super) struct CallRecord {
    kind: RecordKind,
    span: Span,
    trace: CallTrace,
    /// The record and its place in the log; `None` once it is handed over.
    record: Option<(Slot, Box<Entry>)>,
    kept: Kept,
    /// Of the answer that comes, where records have one.
    receipt: Option<Box<Receipt>>,
    /// The decision that is recorded should the call be dropped now, while its answer is judged.
    pub(super) unjudged: Option<fn() -> Decision>,
    began: Instant,
    /// How long it has waited for a person or for its turn, which is nobody's work.
    waited: Duration,
    /// Of that for a person, which does not count as the call's time.
    waited_for_person: Duration,
    /// When the request went out.
    sent: Option<Instant>,
    /// The server it went to.
    server: Option<ServerId>,
    /// The server of a tool that was found, or that another request is for: such calls are counted by name.
    found: Option<ServerId>,
    /// When the answer had come, or failed to.
    pub(super) answered: Option<Instant>,
    /// Tells whether a call that is dropped was given up by its client.
    reply: Reply,
    /// Or cut off by us.
    ending: Ending,
    tally: Tally,
}

/// Most bytes of the names of groups in a record.
const MAX_GROUPS_BYTES: usize = 2048;

/// `metadata` of a record in the name of who is in these groups; those that are too many are counted.
fn groups_metadata(groups: &[Box<str>]) -> String {
    let mut room = MAX_GROUPS_BYTES;
    let fitting = groups.iter().take_while(|group| {
        let fits = group.len() < room;
        room = room.saturating_sub(group.len());
        fits
    });
    let kept: Vec<&str> = fitting.map(|group| &**group).collect();
    match groups.len() - kept.len() {
        0 => serde_json::json!({ "groups": kept }),
        left_out => serde_json::json!({ "groups": kept, "groups_left_out": left_out }),
    }
    .to_string()
}

/// What is kept of a call: bytes of what the client sent and of the answer, and whether a receipt.
#[derive(Clone, Copy, Default)]
struct Kept {
    payload: usize,
    response: usize,
    receipts: bool,
}

impl CallRecord {
    /// Makes room for the record of a request before anything is sent (ACT-2). What is learned of the request is
    /// noted in `span` as well.
    pub(super) async fn open(
        worker: &Worker,
        caller: &Caller,
        reply: &Reply,
        (kind, span, trace): (RecordKind, Span, CallTrace),
    ) -> Result<Self, Refusal> {
        let began = clock::now();
        let slot = worker.proxy.activity.reserve().await.map_err(|refused| {
            worker.tally.refused(calls::Refusal::Unavailable);
            let kind = kind.refusal(RefusalKind::Unavailable);
            Refusal::new(kind, refused.to_string())
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
            receipt: None,
            unjudged: None,
            began,
            waited: Duration::ZERO,
            waited_for_person: Duration::ZERO,
            sent: None,
            server: None,
            found: None,
            answered: None,
            reply: reply.clone(),
            ending: ending.clone(),
            tally,
        }
    }

    /// What it is of.
    pub(super) fn kind(&self) -> RecordKind {
        self.kind
    }

    /// The span of the request, for what goes on without its task.
    pub(super) fn span(&self) -> &Span {
        &self.span
    }

    /// Notes in the trace what is asked for.
    pub(super) fn is_about(&mut self, access: &Access) {
        self.trace.is_about(access);
    }

    /// What its server is to be told of the trace.
    pub(super) fn carried(&self) -> Option<Arc<PropagatedContext>> {
        self.trace.carried()
    }

    /// Notes in the trace that the tool itself says that it failed.
    pub(super) fn tool_failed(&mut self) {
        self.trace.fails(SpanError::Tool);
    }

    /// Notes in the trace the JSON-RPC error that a server answered with.
    pub(super) fn failed_with(&mut self, error: &[u8]) {
        self.trace.fails_with(error);
    }

    /// From when on the call's time counts: when it began, less what it has waited for a person since.
    pub(super) fn began(&self) -> Instant {
        self.began + self.waited_for_person
    }

    /// The call has waited for a person for so long.
    pub(super) fn has_waited(&mut self, time: Duration) {
        self.waited += time;
        self.waited_for_person += time;
    }

    /// Where its reply leaves.
    pub(super) fn reply(&self) -> &Reply {
        &self.reply
    }

    /// Adds a member to the call's metadata; `value` is raw JSON.
    pub(super) fn add_metadata(&mut self, name: &str, value: &str) {
        let Some((_, entry)) = &mut self.record else { return };
        let metadata = with_member(entry.draft.payload(Raw::Metadata).bytes, name, value);
        entry.draft.keep(Raw::Metadata, &metadata, MAX_METADATA_BYTES);
    }

    fn add_late(&mut self, member: LateMember) {
        if let Some((_, entry)) = &mut self.record {
            entry.late = Some(member);
        }
    }

    /// A record about what happens to the call: of the same server, tool, session and request.
    pub(super) fn beside(&self, kind: Type) -> Draft {
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

    /// When the call began, by the clock on the wall.
    pub(super) fn time_of_day(&self) -> SystemTime {
        let started = self.record.as_ref().map_or(0, |(_, entry)| entry.draft.started);
        UNIX_EPOCH + Duration::from_micros(started)
    }

    /// The request goes out to that server at `now`.
    pub(super) fn sends(&mut self, upstream: &Upstream, now: Instant) {
        self.sent = Some(now);
        self.server = Some(upstream.id());
        self.found = self.server;
    }

    /// What is asked of the server that was named was found, though it is refused.
    pub(super) fn found(&mut self, upstreams: &Supervisor) {
        let server = self.record.as_ref().map(|(_, entry)| entry.draft.text(Text::Server));
        self.found = server.and_then(|server| upstreams.id(server));
    }

    /// Counts why the request has no answer of an upstream.
    pub(super) fn refused(&mut self, kind: RefusalKind) {
        let kind = counted::refusal(kind);
        self.tally.refused(kind);
        self.trace.fails(SpanError::Own(kind.as_str()));
    }

    /// Notes which tool is called, or what else.
    pub(super) fn name(&mut self, server: &str, tool: &str) {
        if !server.is_empty() {
            self.span.record("server", server).record("tool", tool);
        }
        if let Some((_, entry)) = &mut self.record {
            entry.draft.set(Text::Server, server);
            entry.draft.set(Text::Tool, tool);
        }
    }

    /// Notes the operation type that counts for filters.
    pub(super) fn operation(&mut self, operation: Option<Operation>) {
        if let Some((_, entry)) = &mut self.record {
            entry.draft.operation = operation;
        }
    }

    /// Copies what is kept of the arguments or the intent.
    pub(super) fn keep(&mut self, which: Raw, payload: &[u8]) {
        if let Some((_, entry)) = &mut self.record {
            entry.draft.keep(which, payload, self.kept.payload);
        }
    }

    /// Copies the head of the answer: a record pins no buffer of a result (ACT-2).
    pub(super) fn note_response(&mut self, slice: &Bytes) {
        if let Some((_, entry)) = &mut self.record {
            entry.draft.append(Raw::Response, slice, self.kept.response);
        }
    }

    /// Takes in a slice of a server's result; with an `ending` the last, whose last byte that takes the place of.
    pub(super) fn receive(&mut self, slice: &Bytes, ending: Option<&[u8]>) {
        self.note_response(slice);
        if self.kept.receipts {
            self.receipt.get_or_insert_default().take(slice, ending);
        }
    }

    /// The result came whole and goes on, which its receipt tells.
    pub(super) fn forwards(&mut self) {
        if let Some(receipt) = self.receipt.take() {
            self.add_late(receipt.forwarded());
        }
    }

    /// The client gets `delivered` in the place of the result, come whole or not.
    pub(super) fn replaces(&mut self, whole: bool, delivered: &[u8], why: Departure) {
        if let Some(receipt) = self.receipt.take() {
            self.add_late(receipt.replaced(whole, delivered, why));
        }
    }

    /// The request has waited so long for its turn (`queued_ms` in the record); it does not count as overhead.
    pub(super) fn waited(&mut self, waited: Duration) {
        self.waited += waited;
        self.add_metadata("queued_ms", &waited.as_millis().to_string());
    }

    /// Adds a decision about the call.
    pub(super) fn decide(&mut self, decision: Decision) {
        if let Some((_, entry)) = &mut self.record {
            self.tally.decided(counted::decision(&decision));
            entry.decisions.push(decision);
        }
    }

    /// Logs and records what is remarkable about a request that goes out (ACT-1).
    pub(super) fn warn(&mut self, server: &str, tool: &str, warnings: &[Warning]) {
        for warning in warnings {
            tracing::warn!(%server, %tool, "{warning}");
            let (policy, mode, rules) = match warning {
                Warning::Mismatch(_) | Warning::WriteOnReadOnly { .. } => {
                    (Policy::Intent, "", &[][..])
                }
                Warning::ApprovalSuggested(_) => (Policy::Capability, "", &[][..]),
                Warning::Shadow(denial) => (Policy::Rules, "shadow", &denial.rules[..]),
            };
            let decision = Decision::new(Verdict::Warning, policy, warning.to_string());
            self.decide(Decision { mode, rules: rules.to_vec(), ..decision });
        }
    }

    /// Notes the rules that permit the request, where any had to (ACT-1).
    pub(super) fn permitted_by(&mut self, rules: &[Box<str>]) {
        if rules.is_empty() {
            return;
        }
        self.add_metadata("rules", &serde_json::json!(rules).to_string());
    }

    /// Records a refusal by policy: the request rejected, and one decision (ACT-1).
    pub(super) fn deny(&mut self, denial: &Denial) -> Rejection {
        let text = denial.to_string();
        let (policy, kind) = match denial.kind() {
            DenialKind::Intent => (Policy::Intent, RefusalKind::Intent),
            DenialKind::Gate => (Policy::Intent, RefusalKind::Gate),
            DenialKind::Approval => (Policy::Approval, RefusalKind::Gate),
            DenialKind::Scope => (Policy::Scope, RefusalKind::Gate),
            DenialKind::Catalog => (Policy::Catalog, RefusalKind::Gate),
            DenialKind::Rules => (Policy::Rules, RefusalKind::Gate),
            DenialKind::Limit => (Policy::Limit, RefusalKind::Limited),
        };
        let mut decision = Decision::new(Verdict::Blocked, policy, text.as_str());
        decision.rules = denial.rules().to_vec();
        self.decide(decision);
        let mut rejection = Rejection::new(Status::Rejected, kind, text);
        rejection.refusal.retry_after = denial.retry_after();
        rejection
    }

    /// Marks the call, which is about to be sent to `tool`: should this process be killed meanwhile,
    /// it is on record as unknown (ACT-1).
    pub(super) async fn begin(&mut self, tool: &ToolName) -> Result<(), Rejection> {
        let Some((slot, entry)) = &mut self.record else { return Ok(()) };
        slot.begin(entry).await.map_err(|refused| {
            let text = format!("Tool '{tool}' was not called: {refused}");
            Rejection::new(Status::Rejected, RefusalKind::Unavailable, text)
        })
    }

    /// Whether the log is too far behind the replies for this one to leave before its record (ACT-3).
    pub(super) fn is_behind(&self) -> bool {
        self.record.as_ref().is_some_and(|(slot, _)| slot.is_behind(clock::now()))
    }

    /// The reply is leaving, its record comes a little later: queries wait for it (ACT-5).
    pub(super) fn replied(&mut self) {
        if let Some((slot, _)) = &mut self.record {
            slot.replied();
        }
    }

    /// The record takes longer. If the reply has left, the call's mark stands for it meanwhile.
    pub(super) fn record_is_late(&mut self) {
        if let Some((slot, entry)) = &mut self.record {
            slot.record_is_late(entry);
        }
    }

    /// Hands the record over, before the last piece of the reply. Waits for the disk as far as
    /// `activity.durability` asks for it (ACT-3).
    pub(super) async fn close(&mut self, status: Status, error: &str) {
        let Some((slot, entry)) = self.end(clock::now(), status, error) else { return };
        if let Err(lost) = slot.submit_before_reply(entry).await {
            // The call was sent, so it is answered (ACT-2); health counts what was lost.
            tracing::error!(%lost, "a call's record may be lost");
        }
    }

    /// Ends a request before an upstream has answered: the record, then the refusal.
    pub(super) async fn reject(mut self, rejection: Rejection) {
        let Rejection { status, mut refusal } = rejection;
        refusal.kind = self.kind.refusal(refusal.kind);
        self.refused(refusal.kind);
        self.close(status, &refusal.text).await;
        self.reply.put(Piece::Refused(refusal));
    }

    /// Ends a request by what its client is asked: the record, then the question.
    pub(super) async fn stop(mut self, stop: Stopped) {
        match stop {
            Stopped::Rejected(rejection) => self.reject(rejection).await,
            Stopped::InputRequired { result, why } => {
                self.close(Status::Rejected, &why).await;
                self.reply.put(Piece::Whole(AnswerMember::Result, Splice::from(result)));
            }
        }
    }

    /// Takes the record out, complete, of a call that ended at `now`.
    fn end(&mut self, now: Instant, status: Status, error: &str) -> Option<(Slot, Box<Entry>)> {
        let (slot, mut entry) = self.record.take()?;
        let total = now.duration_since(self.began);
        let upstream = match (self.sent, self.answered) {
            (Some(sent), Some(answered)) => Some(answered.duration_since(sent)),
            (Some(sent), None) => Some(now.duration_since(sent)),
            (None, _) => None,
        };
        let outcome = counted::outcome(status);
        self.tally.ended(self.server, outcome, Took { total, waited: self.waited, upstream });
        if let Some(server) = self.found {
            self.tally.tool(server, entry.draft.text(Text::Tool), entry.draft.variant, outcome);
        }
        self.span.record("outcome", status.as_str()).record("duration_us", micros(total));
        let draft = &mut entry.draft;
        draft.status = status;
        draft.set(Text::Error, error);
        draft.duration_us = micros(total);
        let others = upstream.unwrap_or_default() + self.waited;
        draft.overhead_us = micros(total.saturating_sub(others));
        self.export(now, &entry, status);
        Some((slot, entry))
    }

    /// Exports what the trace is told of the call.
    fn export(&mut self, now: Instant, entry: &Entry, status: Status) {
        if self.trace.recorded().is_none() {
            return;
        }
        let draft = &entry.draft;
        let failed = match status {
            Status::Error | Status::Unknown => Some(SpanError::Other),
            Status::Blocked => Some(SpanError::Own("output_blocked")),
            // Why, it was told; a question to its client is no failure.
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
                .map(|made| counted::decision(made).as_str())
                .collect(),
        });
    }
}

impl Drop for CallRecord {
    fn drop(&mut self) {
        if self.record.is_none() {
            return;
        }
        let (text, word) = match (self.reply.is_cancelled(), self.ending.is_cut()) {
            (true, _) => ("the client cancelled the call", "cancelled"),
            (false, true) => (CUT_OFF, "cut_off"),
            (false, false) => ("the client went away before the reply was complete", "client_gone"),
        };
        self.trace.fails(SpanError::Own(word));
        if let Some(decide) = self.unjudged.take() {
            self.tally.judged(calls::Judged::AnswerUnjudged);
            self.decide(decide());
        }
        if let Some((slot, entry)) = self.end(clock::now(), Status::Error, text) {
            // Nobody waits for the answer any more, so nobody waits for the disk either.
            drop(slot.submit(entry));
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::activity::{Activity, Config, Filter, Page, Writer};
    use crate::telemetry::call_metrics::Outcome;

    /// A record in a log of its own.
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
    async fn fr_a5_a_call_that_is_dropped_while_its_answer_is_judged_leaves_a_decision() {
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
    async fn a_call_that_is_dropped_says_by_whom() {
        for (cut, text) in [(true, "mcpproxy is shutting down"), (false, "the client went away")] {
            let (reply, ending) = (Reply::default(), Ending::default());
            let calls = calls::Calls::default();
            let (call_record, activity, writer, _folder) = open(&reply, &ending, &calls).await;
            if cut {
                ending.cut_off();
            }
            drop(call_record);
            activity.flush().unwrap();
            let records = activity.list(&Filter::default(), &Page::default()).unwrap().records;
            let told = &records[0].head.error;
            assert!(told.starts_with(text), "{told}");
            writer.close().unwrap();
        }
    }
}
