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
use crate::policy::{self, Access};
use crate::schema::compile::Schema;
use crate::schema::judge::{Judgement, Verdict};
use crate::schema::violation::Violation;
use crate::tool::{InputSchema, Tool, Trust};

impl OnRecord<'_> {
    /// Judges the arguments of a call of a tool, before it is admitted: nobody is asked about a call, and no place under
    /// a limit is taken by one, that cannot be accepted. A refusal by policy comes first all the same, since it must
    /// not tell the schema of a tool to whom it is not for.
    ///
    /// # Errors
    /// Strict, and they have a place that no server could accept.
    pub(super) async fn judge_arguments(
        &mut self,
        access: &Access,
        arguments: &Bytes,
        intent: Option<Intent<'_>>,
    ) -> Result<(), Rejection> {
        let Some(tool) = access.tool() else { return Ok(()) };
        // Nothing that waits for an operator is read.
        if tool.input.policy.mode == Mode::Off || tool.trust == Trust::Withheld {
            return Ok(());
        }
        let judged = match tool.input.schema() {
            Some(InputSchema::Unusable(_)) => return Ok(()),
            Some(InputSchema::Compiled(schema)) => {
                self.worker.judge_quickly(schema, slice::from_ref(arguments))
            }
            None => None,
        };
        if let Some(Judgement { verdict: Verdict::Conforms, disagreement: false }) = judged {
            return Ok(());
        }
        // Seldom, and large: it is no part of each call's memory.
        let violation = Box::pin(self.judge_further(tool, arguments, judged)).await?;
        match violation {
            Some(violation) => self.misfit(access, tool, arguments, intent, &violation),
            None => Ok(()),
        }
    }

    /// What stands against the arguments, where that takes longer, or the schema is still to be compiled.
    async fn judge_further(
        &self,
        tool: &Arc<Tool>,
        arguments: &Bytes,
        judged: Option<Judgement>,
    ) -> Result<Option<Violation>, Rejection> {
        let judging = async {
            let schema = self.input_schema(tool).await?;
            let judgement = match judged
                .or_else(|| self.worker.judge_quickly(&schema, slice::from_ref(arguments)))
            {
                Some(judgement) => judgement,
                None => self.worker.judge(&schema, vec![arguments.clone()]).await?,
            };
            Some((schema, judgement))
        };
        let name = &tool.name;
        let judged = self.worker.ending.unless_cut(pin!(judging)).await;
        let judged = judged.ok_or_else(|| Rejection::cut_off(&name.server, &name.tool))?;
        let Some((schema, Judgement { verdict, disagreement })) = judged else { return Ok(None) };
        if disagreement {
            tracing::warn!(tool = %name, schema = %schema.hash(), "the engines disagree");
            self.worker.proxy.validation_pool.count_disagreement();
        }
        Ok(match verdict {
            Verdict::Conforms => None,
            Verdict::Violates(violation) => Some(violation),
        })
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

    /// Decides about arguments that do not fit.
    fn misfit(
        &mut self,
        access: &Access,
        tool: &Tool,
        arguments: &Bytes,
        intent: Option<Intent<'_>>,
        violation: &Violation,
    ) -> Result<(), Rejection> {
        let request = self.request(access.clone(), arguments, intent, self.record.time_of_day());
        if policy::refuses(&request, &self.settings.policy) {
            // Admission finds the same, and says so.
            return Ok(());
        }
        let mode = tool.input.policy.mode;
        let refused = mode == Mode::Strict && !violation.misfits.is_empty();
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
        let text = advice::misfits(tool, &violation.misfits);
        let help = advice::parts(tool, &violation.misfits);
        let rejection = Rejection::new(Status::Rejected, RefusalKind::Arguments, text);
        Err(rejection.helping(help))
    }
}
