//! Validation of a call's arguments against the tool's `inputSchema` (`input_validation`), before anything is sent.
//!
//! The validators and bounds are the same as for answers. Arguments that no server could accept are refused with a
//! correction (`advice`); other violations are sent and recorded. Bytes change only where a string contains the JSON
//! value that the schema requires (`coercion`). Without a verdict the call proceeds. A key that differs only by case
//! from a declared parameter is refused regardless of the schema, since the server may accept it as that parameter.

use std::pin::pin;
use std::slice;
use std::sync::Arc;

use bytes::Bytes;
use mcpproxy_activity::record::{Decision, Policy, Verdict as Decided};
use mcpproxy_policy::intent::Intent;
use mcpproxy_policy::tool::{InputMode, InputSchema, Tool, Trust};
use mcpproxy_policy::{Access, Forecast};
use mcpproxy_runtime::io::line_budget::{LinePeer, peer_line};
use mcpproxy_schema::compile::Schema;
use mcpproxy_schema::declared::KeyConflict;
use mcpproxy_schema::judge::{Judgment, Verdict};
use mcpproxy_schema::violation::Violation;

use super::recorded::OnRecord;
use super::recorded::admit::JudgedArguments;
use super::refusal::{Refusal, RefusalKind};
use super::{advice, worker};
use crate::telemetry::call_metrics::Judged;

pub(super) mod coercion;

/// Maximum number of rounds of coercion: a string may contain an array of strings that must be coerced too.
const MAX_COERCIONS: usize = 4;
/// Member of `metadata` with the arguments before coercion.
const ORIGINAL_ARGUMENTS: &str = "original_arguments";
/// Maximum size of recorded original arguments in bytes; of longer ones only the size is recorded.
const MAX_ORIGINAL_BYTES: usize = 16 * 1024;

impl OnRecord<'_> {
    /// Validates the arguments of a call before admission, so that an unacceptable call does not take a slot under a
    /// limit and does not ask for approval.
    pub(super) fn judge_at_once(&self, access: &Access, arguments: &Bytes) -> JudgedArguments {
        let Some(tool) = access.called_tool() else { return JudgedArguments::Settled };
        // Definitions that await review are not read.
        if tool.input.policy.mode == InputMode::Off || tool.trust == Trust::Withheld {
            return JudgedArguments::Settled;
        }
        let schema = match tool.input.schema() {
            Some(InputSchema::Compiled(schema)) => Some(schema),
            Some(InputSchema::Unusable(_)) => None,
            None => return JudgedArguments::Later(access.clone()),
        };
        if worker::is_large(slice::from_ref(arguments)) {
            return JudgedArguments::Later(access.clone());
        }
        let judged = match schema {
            Some(schema) => {
                let judged = self.worker.judge_quickly(schema, slice::from_ref(arguments));
                let Some(judgment) = judged else { return JudgedArguments::Later(access.clone()) };
                self.violation(tool, schema, judgment)
            }
            None => None,
        };
        match or_key_conflict(judged, || tool.key_conflict(arguments)) {
            Some(violation) => JudgedArguments::Violate(Box::new(violation)),
            None => JudgedArguments::Settled,
        }
    }

    /// Validates arguments whose validation was postponed until after admission. The call already holds its slot under
    /// the limits, so that calls keep their order of arrival. Returns the coerced arguments, if any. Fails if no server
    /// could accept the arguments, unless the mode is `warn`, or at shutdown.
    pub(super) async fn judge_later(
        &mut self,
        access: &Access,
        arguments: &Bytes,
        intent: Option<Intent<'_>>,
    ) -> Result<Option<Bytes>, Refusal> {
        let Some(tool) = access.called_tool() else { return Ok(None) };
        let judged = self.worker.ending.unless_cut(pin!(self.judged(tool, arguments))).await;
        let cut_off = || Refusal::cut_off(&tool.name.server, &tool.name.tool);
        match judged.ok_or_else(cut_off)? {
            Some(violation) => self.coerced_or_refused(access, arguments, intent, &violation).await,
            None => Ok(None),
        }
    }

    /// Coerces arguments before a decision, if needed; does not report violations.
    pub(super) async fn coerced_later(
        &mut self,
        access: &Access,
        arguments: &Bytes,
    ) -> Option<Bytes> {
        let tool =
            access.called_tool().filter(|tool| tool.input.policy.mode == InputMode::Coerce)?;
        let judged = self.worker.ending.unless_cut(pin!(self.judged(tool, arguments))).await?;
        let violation = judged?;
        let coerced = self.coerced(tool, arguments, &violation).await?;
        self.note_coercion(tool, arguments, &coerced, &violation);
        Some(coerced)
    }

    /// Handles nonconforming arguments: returns them coerced if the mode is `coerce` and coercion makes them
    /// acceptable; otherwise may refuse them.
    pub(super) async fn coerced_or_refused(
        &mut self,
        access: &Access,
        arguments: &Bytes,
        intent: Option<Intent<'_>>,
        violation: &Violation,
    ) -> Result<Option<Bytes>, Refusal> {
        if let Some(tool) = access.called_tool()
            && let Some(coerced) = self.coerced(tool, arguments, violation).await
        {
            self.note_coercion(tool, arguments, &coerced, violation);
            return Ok(Some(coerced));
        }
        self.misfit(access, arguments, intent, violation)?;
        Ok(None)
    }

    /// Replaces strings in the arguments by the JSON values that they contain; `None` if a misfit remains.
    async fn coerced(
        &self,
        tool: &Arc<Tool>,
        arguments: &Bytes,
        violation: &Violation,
    ) -> Option<Bytes> {
        if tool.input.policy.mode != InputMode::Coerce {
            return None;
        }
        let (mut arguments, mut violation) = (arguments.clone(), violation.clone());
        for _ in 0..MAX_COERCIONS {
            if violation.misfits.is_empty() {
                // Violations without misfits do not prevent sending in any mode.
                return Some(arguments);
            }
            arguments = {
                let mut scratch = self.worker.scratch.borrow_mut();
                coercion::coerced(&arguments, &violation.misfits, scratch.tape())?
            };
            let judged = self.worker.ending.unless_cut(pin!(self.judged(tool, &arguments))).await?;
            match judged {
                Some(next) => violation = next,
                None => return Some(arguments),
            }
        }
        None
    }

    /// Records that the arguments were coerced, and the original ones.
    fn note_coercion(
        &mut self,
        tool: &Tool,
        original: &Bytes,
        coerced: &Bytes,
        violation: &Violation,
    ) {
        self.record.keep_arguments(coerced);
        let text = std::str::from_utf8(original).ok();
        let text = text.filter(|text| text.len() <= MAX_ORIGINAL_BYTES);
        let kept = text.map_or_else(|| format!(r#"{{"bytes":{}}}"#, original.len()), str::to_owned);
        self.record.add_metadata(ORIGINAL_ARGUMENTS, &kept);
        let place = &violation.schema_path;
        let caller = LinePeer::Client(self.caller.principal.id());
        peer_line!(info, caller, tool = %tool.name, %place, "strings in the arguments are sent as the JSON values they contain");
        let reason = format!("coerced: {}", violation.describe());
        self.record.decide(input_decision(Decided::Warning, InputMode::Coerce, violation, &reason));
    }

    /// Violation by arguments that are not sent; it is not recorded. `None` if the arguments conform, would be
    /// coerced or are not validated, and at shutdown.
    pub(super) async fn foresee_misfits(
        &self,
        tool: &Arc<Tool>,
        arguments: &Bytes,
    ) -> Option<Violation> {
        if tool.input.policy.mode == InputMode::Off {
            return None;
        }
        let judged = self.worker.ending.unless_cut(pin!(self.judged(tool, arguments))).await?;
        match judged {
            Some(violation) if self.coerced(tool, arguments, &violation).await.is_none() => {
                Some(violation)
            }
            Some(_) | None => None,
        }
    }

    /// Validates without a time limit.
    async fn judged(&self, tool: &Arc<Tool>, arguments: &Bytes) -> Option<Violation> {
        let violation = match self.input_schema(tool).await {
            Some(schema) => self.judged_by(tool, &schema, arguments).await,
            None => None,
        };
        if !worker::is_large(slice::from_ref(arguments)) {
            return or_key_conflict(violation, || tool.key_conflict(arguments));
        }
        let (of, document) = (Arc::clone(tool), arguments.clone());
        let pool = &self.worker.proxy.validation_pool;
        let found = pool.run(true, move |_| of.key_conflict(&document)).await;
        or_key_conflict(violation, || found.flatten())
    }

    async fn judged_by(
        &self,
        tool: &Tool,
        schema: &Arc<Schema>,
        arguments: &Bytes,
    ) -> Option<Violation> {
        let judgment = match self.worker.judge_quickly(schema, slice::from_ref(arguments)) {
            Some(judgment) => judgment,
            None => match self.worker.judge(schema, vec![arguments.clone()]).await {
                Some(judgment) => judgment,
                None => {
                    self.worker.tally.judged(Judged::ArgumentsUnjudged);
                    return None;
                }
            },
        };
        self.violation(tool, schema, judgment)
    }

    /// Violation found by a verdict. Counts the verdict, and a disagreement between the two engines.
    fn violation(&self, tool: &Tool, schema: &Schema, judgment: Judgment) -> Option<Violation> {
        if judgment.disagreement {
            let caller = LinePeer::Client(self.caller.principal.id());
            peer_line!(warn, caller, tool = %tool.name, schema = %schema.hash(), "the engines disagree");
            self.worker.proxy.validation_pool.count_disagreement();
        }
        let (verdict, counted) = match judgment.verdict {
            Verdict::Conforms => (None, Judged::ArgumentsPassed),
            Verdict::Violates(violation) => (Some(violation), Judged::ArgumentsFailed),
        };
        self.worker.tally.judged(counted);
        verdict
    }

    /// Compiles the schema within the call's timeout.
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

    /// Handles nonconforming arguments. A denial takes precedence, since a tool's schema must not be revealed out
    /// of scope. Fails in strict mode if no server could accept the arguments.
    fn misfit(
        &mut self,
        access: &Access,
        arguments: &[u8],
        intent: Option<Intent<'_>>,
        violation: &Violation,
    ) -> Result<(), Refusal> {
        let Some(tool) = access.called_tool() else { return Ok(()) };
        if let Forecast::Refused(_) = self.forecast(access.clone(), arguments, intent) {
            // Admission reports the refusal.
            return Ok(());
        }
        let mode = tool.input.policy.mode;
        let refused = refuses(tool, violation);
        let place = &violation.schema_path;
        let caller = LinePeer::Client(self.caller.principal.id());
        peer_line!(warn, caller, tool = %tool.name, %place, refused, "the arguments do not fit their schema");
        let verdict = if refused { Decided::Blocked } else { Decided::Warning };
        // A decision and the refusal that it explains have the same words.
        let text = match violation.misfits.is_empty() {
            true => violation.describe().to_owned(),
            false => {
                let places = advice::places(tool, &violation.misfits, arguments);
                advice::misfits(tool, &violation.misfits, &places)
            }
        };
        self.record.decide(input_decision(verdict, mode, violation, &text));
        if !refused {
            return Ok(());
        }
        self.record.found(&self.worker.proxy.upstreams);
        let help = advice::parts(tool, &violation.misfits, arguments);
        let refusal = Refusal::rejected(RefusalKind::Arguments, text);
        Err(refusal.helping(help))
    }
}

/// Decision about arguments that do not match their schema.
fn input_decision(
    verdict: Decided,
    mode: InputMode,
    violation: &Violation,
    reason: &str,
) -> Decision {
    let mut decision = Decision::new(verdict, Policy::InputValidation, reason);
    decision.mode = mode.as_str();
    decision.instance_path = violation.instance_path.as_str().into();
    decision.schema_path = violation.schema_path.as_str().into();
    decision.guard = violation.reason.guard().unwrap_or_default();
    decision
}

/// Violation to report: the engines' violation if it has misfits; otherwise the key conflict, if there is one;
/// otherwise the engines' violation without misfits, if any.
fn or_key_conflict(
    judged: Option<Violation>,
    conflict: impl FnOnce() -> Option<KeyConflict>,
) -> Option<Violation> {
    match judged {
        Some(violation) if !violation.misfits.is_empty() => Some(violation),
        other => conflict().map(Violation::of_key_conflict).or(other),
    }
}

/// Whether the violation is a reason to refuse the call.
pub(super) fn refuses(tool: &Tool, violation: &Violation) -> bool {
    tool.input.policy.mode.refuses() && !violation.misfits.is_empty()
}
