//! The arguments of a call, judged by their tool's `inputSchema` before anything goes out (`input_validation`).
//!
//! Owns what is done about a verdict: arguments that no server could accept are refused in words from which an agent
//! can mend them (`advice`), and what is only doubtful goes out and is on record. Their bytes are never changed. The
//! judge and its bounds are those of answers; where there is no verdict to be had, the call goes on.

use std::pin::pin;
use std::slice;
use std::sync::Arc;

use bytes::Bytes;

use super::advice;
use super::recorded::OnRecord;
use super::refusal::RefusalKind;
use super::rejection::Rejection;
use crate::activity::record::{Decision, Policy, Status, Verdict as Decided};
use crate::intent::Intent;
use crate::output::Mode;
use crate::policy::{Access, Foreseen};
use crate::schema::compile::Schema;
use crate::schema::judge::{Judgement, Verdict};
use crate::schema::violation::Violation;
use crate::telemetry::call_metrics::Judged;
use crate::tool::{InputSchema, Tool, Trust};

impl OnRecord<'_> {
    /// Judges the arguments of a call before it is admitted, so that nobody is asked about one that cannot be accepted,
    /// and it takes no place under a limit. What cannot be judged at once, since its schema is still to be compiled or it
    /// takes too long for others to wait, comes back for [`judge_later`](Self::judge_later).
    ///
    /// # Errors
    /// Strict, and they have a place that no server could accept.
    pub(super) fn judge_at_once(
        &mut self,
        access: &Access,
        arguments: &Bytes,
        intent: Option<Intent<'_>>,
    ) -> Result<Option<Access>, Rejection> {
        let Some(tool) = access.tool() else { return Ok(None) };
        // Nothing that waits for an operator is read.
        if tool.input.policy.mode == Mode::Off || tool.trust == Trust::Withheld {
            return Ok(None);
        }
        let schema = match tool.input.schema() {
            Some(InputSchema::Compiled(schema)) => schema,
            Some(InputSchema::Unusable(_)) => return Ok(None),
            None => return Ok(Some(access.clone())),
        };
        let judged = self.worker.judge_quickly(schema, slice::from_ref(arguments));
        let Some(judgement) = judged else { return Ok(Some(access.clone())) };
        if let Some(violation) = self.violation(tool, schema, judgement) {
            self.misfit(access, arguments, intent, &violation)?;
        }
        Ok(None)
    }

    /// Judges them where that takes longer. The call has its place under the limits by then, and what waited for it
    /// has had its turn: calls keep the order in which they came.
    ///
    /// # Errors
    /// Strict, and they have a place that no server could accept; or the proxy is ending.
    pub(super) async fn judge_later(
        &mut self,
        access: &Access,
        arguments: &Bytes,
        intent: Option<Intent<'_>>,
    ) -> Result<(), Rejection> {
        let Some(tool) = access.tool() else { return Ok(()) };
        let judged = self.worker.ending.unless_cut(pin!(self.judged(tool, arguments))).await;
        let cut_off = || Rejection::cut_off(&tool.name.server, &tool.name.tool);
        match judged.ok_or_else(cut_off)? {
            Some(violation) => self.misfit(access, arguments, intent, &violation),
            None => Ok(()),
        }
    }

    /// What there is against arguments that nobody has sent; nothing is on record of it. `None` where they fit, are not
    /// judged, or the proxy is ending.
    pub(super) async fn foresee_misfits(
        &self,
        tool: &Arc<Tool>,
        arguments: &Bytes,
    ) -> Option<Violation> {
        if tool.input.policy.mode == Mode::Off {
            return None;
        }
        self.worker.ending.unless_cut(pin!(self.judged(tool, arguments))).await?
    }

    /// The judgement, however long it takes.
    async fn judged(&self, tool: &Arc<Tool>, arguments: &Bytes) -> Option<Violation> {
        let schema = self.input_schema(tool).await?;
        let judgement = match self.worker.judge_quickly(&schema, slice::from_ref(arguments)) {
            Some(judgement) => judgement,
            None => match self.worker.judge(&schema, vec![arguments.clone()]).await {
                Some(judgement) => judgement,
                None => {
                    self.worker.tally.judged(Judged::ArgumentsUnjudged);
                    return None;
                }
            },
        };
        self.violation(tool, &schema, judgement)
    }

    /// What a judgement has against the arguments; it is counted, and so is a disagreement of the engines.
    fn violation(&self, tool: &Tool, schema: &Schema, judgement: Judgement) -> Option<Violation> {
        if judgement.disagreement {
            tracing::warn!(tool = %tool.name, schema = %schema.hash(), "the engines disagree");
            self.worker.proxy.validation_pool.count_disagreement();
        }
        let (verdict, counted) = match judgement.verdict {
            Verdict::Conforms => (None, Judged::ArgumentsPassed),
            Verdict::Violates(violation) => (Some(violation), Judged::ArgumentsFailed),
        };
        self.worker.tally.judged(counted);
        verdict
    }

    /// The schema, compiled as long as the call's time lasts.
    async fn input_schema(&self, tool: &Arc<Tool>) -> Option<Arc<Schema>> {
        let proxy = &self.worker.proxy;
        let found = match tool.input.schema() {
            Some(found) => found.clone(),
            None => {
                let time = proxy.upstreams.get(&tool.name.server)?.call_timeout();
                proxy.catalog.input_schema(tool, self.record.began() + time).await?
            }
        };
        match found {
            InputSchema::Compiled(schema) => Some(schema),
            InputSchema::Unusable(_) => None,
        }
    }

    /// Decides about arguments that do not fit. A refusal by policy comes first, since nobody may learn the schema of a
    /// tool that is not for them.
    ///
    /// # Errors
    /// Strict, and they have a place that no server could accept.
    fn misfit(
        &mut self,
        access: &Access,
        arguments: &[u8],
        intent: Option<Intent<'_>>,
        violation: &Violation,
    ) -> Result<(), Rejection> {
        let Some(tool) = access.tool() else { return Ok(()) };
        if let Foreseen::Refused(_) = self.foresee(access.clone(), arguments, intent) {
            // Admission finds the same, and says so.
            return Ok(());
        }
        let mode = tool.input.policy.mode;
        let refused = refuses(tool, violation);
        let place = &violation.schema_path;
        tracing::warn!(tool = %tool.name, %place, refused, "the arguments do not fit their schema");
        let verdict = if refused { Decided::Blocked } else { Decided::Warning };
        let mut decision = Decision::new(verdict, Policy::InputValidation, violation.describe());
        decision.mode = mode.as_str();
        decision.instance_path = violation.instance_path.as_str().into();
        decision.schema_path = violation.schema_path.as_str().into();
        decision.guard = violation.reason.guard().unwrap_or_default();
        self.record.decide(decision);
        if !refused {
            return Ok(());
        }
        self.record.found(&self.worker.proxy.upstreams);
        let places = advice::places(tool, &violation.misfits);
        let text = advice::misfits(tool, &violation.misfits, &places);
        let help = advice::parts(tool, &violation.misfits);
        let rejection = Rejection::new(Status::Rejected, RefusalKind::Arguments, text);
        Err(rejection.helping(help))
    }
}

/// Whether a call goes no further for what its arguments violate.
pub(super) fn refuses(tool: &Tool, violation: &Violation) -> bool {
    tool.input.policy.mode == Mode::Strict && !violation.misfits.is_empty()
}
