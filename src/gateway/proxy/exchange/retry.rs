//! Repetition of an idempotent call whose connection failed before anything arrived (CAP-7).

use bytes::Bytes;
use mcpproxy_policy::Permit;
use mcpproxy_policy::tool::Idempotence;
use mcpproxy_upstream::{Answer, CallAttempt, CallError, CallExtras, CallGuard, PermittedCall};

use crate::proxy::recorded::record::CallRecord;
use crate::proxy::worker::Worker;

/// Repetition of a call whose capability is declared idempotent.
pub(crate) struct Retry {
    body: Bytes,
    extras: CallExtras,
    idempotence: Idempotence,
}

impl Retry {
    pub(crate) fn of(permit: &Permit, body: &Bytes, extras: &CallExtras) -> Option<Box<Self>> {
        let tool = permit.access().called_tool();
        let idempotence = tool.map_or(Idempotence::No, |tool| tool.idempotence);
        match idempotence {
            Idempotence::No => None,
            Idempotence::Derived | Idempotence::Stated => {
                let (body, extras) = (body.clone(), extras.clone());
                Some(Box::new(Self { body, extras, idempotence }))
            }
        }
    }

    /// Whether the call may be repeated even if it may have crashed its server: only if declared idempotent. A
    /// read-only tool may still crash the server, and a fresh one would crash too.
    pub(super) fn may_end_its_server(&self) -> bool {
        match self.idempotence {
            Idempotence::Stated => true,
            Idempotence::Derived | Idempotence::No => false,
        }
    }

    /// Repeats the call under the same record within the remaining time. `failed` is the connection on which
    /// nothing arrived, if known.
    pub(crate) async fn send(
        self,
        worker: &Worker,
        guard: CallGuard,
        permit: &Permit,
        record: &mut CallRecord,
        failed: Option<u64>,
    ) -> Result<Answer, CallError> {
        record.add_metadata("retried", "true");
        let Self { body, extras, .. } = self;
        let (began, attempt) = (record.began(), CallAttempt::Retry(failed));
        let call = PermittedCall { permit, body, extras, began, attempt };
        guard.call(&worker.pool, call).await
    }
}
