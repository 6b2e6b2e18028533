//! What the outcome of a request leads to beside its reply: what it occupied is given back, its server's breaker is told,
//! and a call that may be made twice is made once more where nothing came of it (CAP-7).

use std::sync::Arc;

use bytes::Bytes;

use super::call_record::CallRecord;
use super::worker::Worker;
use crate::policy::{BreakerChange, Permit, ServerOutcome};
use crate::tool::Idempotence;
use crate::upstream::{Answer, CallError, CallExtras, Upstream};

/// How a call that its tool's capability calls idempotent is made once more.
pub(super) struct Again {
    body: Bytes,
    beside: CallExtras,
    idempotence: Idempotence,
}

impl Again {
    /// What is needed for it, of a call that may be made twice.
    pub(super) fn of(permit: &Permit, body: &Bytes, beside: &CallExtras) -> Option<Self> {
        let idempotence = permit.access().tool().map_or(Idempotence::No, |tool| tool.idempotence);
        match idempotence {
            Idempotence::No => None,
            Idempotence::Derived | Idempotence::Stated => {
                Some(Self { body: body.clone(), beside: beside.clone(), idempotence })
            }
        }
    }

    /// Whether it may be made although its server may have ended by it: only where somebody says that it is idempotent.
    /// That a tool only reads says nothing of what reading does to its server, and a fresh one would end as well.
    pub(super) fn may_end_its_server(&self) -> bool {
        match self.idempotence {
            Idempotence::Stated => true,
            Idempotence::Derived | Idempotence::No => false,
        }
    }

    /// Makes it, under the same record and in what is left of its time. `failed` is the connection over which nothing
    /// came, where that is known.
    pub(super) async fn ask(
        self,
        worker: &Worker,
        upstream: &Arc<Upstream>,
        permit: &Permit,
        record: &mut CallRecord,
        failed: Option<u64>,
    ) -> Result<Answer, CallError> {
        record.add_metadata("retried", "true");
        let Self { body, beside, .. } = self;
        let time = (record.began(), failed);
        upstream.call_again(&worker.pool, permit, body, beside, time).await
    }
}

/// Gives back what a request occupied, and logs what its outcome has changed.
pub(super) fn settle(permit: &mut Permit, outcome: Option<ServerOutcome>) {
    let change = permit.settle(outcome);
    let server = permit.access().server();
    match change {
        None => {}
        Some(BreakerChange::Opened { failures, open }) => {
            tracing::warn!(%server, failures, ?open, "a server that fails all the time is set aside");
        }
        Some(BreakerChange::Closed) => tracing::info!(%server, "a server is used again"),
    }
}
