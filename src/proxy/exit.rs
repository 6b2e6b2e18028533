//! The one way out of a call: whatever happens to it, its record is written (ACT-1, ACT-2).
//!
//! Owns the draft of the record while the call runs, and hands it to the log when the call ends,
//! also when nobody waits for it any more.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;

use crate::activity::Slot;
use crate::activity::record::{
    Decision, Draft, Entry, Payload, Policy, Source, Status, Type, Verdict,
};
use crate::intent::{Denial, DenialKind};
use crate::proxy::Worker;
use crate::proxy::call::Caller;
use crate::proxy::reply::{Piece, Refusal, RefusalKind, Reply};
use crate::upstream::CallError;

/// Why a call ends before an upstream has answered.
pub(super) struct Stop {
    pub(super) status: Status,
    pub(super) refusal: Refusal,
}

impl Stop {
    pub(super) fn new(status: Status, kind: RefusalKind, text: String) -> Self {
        Self { status, refusal: Refusal { kind, text } }
    }

    pub(super) fn upstream(error: &CallError) -> Self {
        Self::new(Status::Error, RefusalKind::Upstream, error.to_string())
    }
}

/// The one way out of a call: whatever happens to it, its record is written.
pub(super) struct Exit {
    slot: Option<Slot>,
    pub(super) draft: Draft,
    pub(super) decisions: Vec<Decision>,
    /// The decision that is recorded should the call be dropped now, while its answer is judged.
    pub(super) unjudged: Option<fn() -> Decision>,
    began: Instant,
    /// When the request went out.
    pub(super) sent: Option<Instant>,
    /// When the answer had come, or failed to.
    pub(super) answered: Option<Instant>,
    head: Vec<u8>,
    head_limit: usize,
    response_bytes: u64,
    /// Tells whether a call that is dropped was given up by its client.
    reply: Reply,
}

impl Exit {
    /// Makes room for the call's record before anything is sent (ACT-2).
    pub(super) async fn open(
        worker: &Worker,
        kind: Type,
        caller: Caller,
        variant: &'static str,
        reply: &Reply,
    ) -> Result<Self, Refusal> {
        let began = Instant::now();
        let slot = worker.proxy.activity.reserve().await.map_err(|refused| Refusal {
            kind: RefusalKind::Unavailable,
            text: refused.to_string(),
        })?;
        let mut draft = Draft::new(kind, caller.source, Status::Error);
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        draft.started = u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX);
        draft.session_id = caller.session_id;
        draft.client_name = caller.client_name;
        draft.request_id = caller.request_id;
        draft.variant = variant;
        Ok(Self::with(slot, draft, began, worker.proxy.max_response_bytes, reply))
    }

    fn with(slot: Slot, draft: Draft, began: Instant, head_limit: usize, reply: &Reply) -> Self {
        Self {
            slot: Some(slot),
            draft,
            decisions: Vec::new(),
            unjudged: None,
            began,
            sent: None,
            answered: None,
            head: Vec::new(),
            head_limit,
            response_bytes: 0,
            reply: reply.clone(),
        }
    }

    /// Copies the head of the answer: a record pins no buffer of a result (ACT-2).
    pub(super) fn note_response(&mut self, slice: &Bytes) {
        self.response_bytes += slice.len() as u64;
        let room = self.head_limit.saturating_sub(self.head.len());
        if room > 0 {
            self.head.extend_from_slice(slice.get(..room).unwrap_or(slice));
        }
    }

    /// Records a refusal by the gate: the call rejected, and one decision (ACT-1).
    pub(super) fn deny(&mut self, denial: &Denial) -> Stop {
        let text = denial.to_string();
        let (policy, kind) = match denial.kind() {
            DenialKind::Intent => (Policy::Intent, RefusalKind::Intent),
            DenialKind::Gate => (Policy::Intent, RefusalKind::Gate),
            DenialKind::Approval => (Policy::Capability, RefusalKind::Gate),
        };
        self.decisions.push(Decision::new(Verdict::Blocked, policy, text.as_str()));
        Stop::new(Status::Rejected, kind, text)
    }

    /// Waits while the disk is too far behind the replies (ACT-3).
    pub(super) async fn clear_to_reply(&self) {
        if let Some(slot) = &self.slot {
            slot.clear_to_reply().await;
        }
    }

    /// The reply is leaving, its record comes a little later: queries wait for it (ACT-5).
    pub(super) fn replied(&mut self) {
        if let Some(slot) = &mut self.slot {
            slot.replied();
        }
    }

    /// Hands the record over, before the last piece of the reply. Waits for the disk as far as
    /// `activity.durability` asks for it (ACT-3).
    pub(super) async fn close(&mut self, status: Status, error: &str) {
        // The slot stays while we wait: a call dropped meanwhile still leaves its record.
        self.clear_to_reply().await;
        let Some(slot) = self.slot.take() else { return };
        let entry = self.entry(status, error);
        if let Some(durable) = slot.submit(entry)
            && let Err(lost) = durable.wait().await
        {
            // The call was sent, so it is answered (ACT-2); health counts what was lost.
            tracing::error!(%lost, "a call's record may be lost");
        }
    }

    /// Ends a call before an upstream has answered: the record, then the refusal.
    pub(super) async fn stop(mut self, stop: Stop) {
        self.close(stop.status, &stop.refusal.text).await;
        self.reply.put(Piece::Refused(stop.refusal));
    }

    fn entry(&mut self, status: Status, error: &str) -> Entry {
        let total = self.began.elapsed();
        let upstream = match (self.sent, self.answered) {
            (Some(sent), Some(answered)) => answered.duration_since(sent),
            (Some(sent), None) => sent.elapsed(),
            (None, _) => Duration::ZERO,
        };
        let mut draft =
            std::mem::replace(&mut self.draft, Draft::new(Type::ToolCall, Source::Mcp, status));
        draft.status = status;
        draft.error = error.into();
        draft.duration_us = micros(total);
        draft.overhead_us = micros(total.saturating_sub(upstream));
        let head = std::mem::take(&mut self.head).into_boxed_slice();
        draft.response = Payload::from_head(head, self.response_bytes);
        Entry { draft, decisions: std::mem::take(&mut self.decisions) }
    }
}

impl Drop for Exit {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            let text = match self.reply.is_cancelled() {
                true => "the client cancelled the call",
                false => "the client went away before the reply was complete",
            };
            self.decisions.extend(self.unjudged.take().map(|decide| decide()));
            // Nobody waits for the answer any more, so nobody waits for the disk either.
            drop(slot.submit(self.entry(Status::Error, text)));
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::activity::{Activity, Config, query::Filter};

    #[tokio::test]
    async fn fr_a5_a_call_that_is_dropped_while_its_answer_is_judged_leaves_a_decision() {
        for judging in [true, false] {
            let folder = tempfile::tempdir().unwrap();
            let (activity, writer) = Activity::open(folder.path(), Config::default()).unwrap();
            let slot = activity.reserve().await.unwrap();
            let draft = Draft::new(Type::ToolCall, Source::Mcp, Status::Error);
            let mut exit = Exit::with(slot, draft, Instant::now(), 0, &Reply::default());
            let unjudged =
                || Decision::new(Verdict::Warning, Policy::OutputValidation, "not judged");
            exit.unjudged = judging.then_some(unjudged);
            drop(exit);
            activity.flush().unwrap();
            let records = activity.count(&Filter::default()).unwrap();
            assert_eq!(records, 1 + u64::from(judging));
            writer.close().unwrap();
        }
    }
}
