//! Verdict on one document. The accept-only pass is tried first. If it does not accept the document, the tape pass
//! decides, and if that does not accept the document either, boon decides.
//!
//! This module chooses the engine and sets the budgets of an evaluation. It is independent of modes and of the
//! consequences of a verdict.

use bytes::Bytes;
use serde_json::Value;
use simd_json::Node;

use super::accept::AcceptScratch;
pub use super::accept::ArrivingDocument;
use super::bounds::NESTING;
use super::compile::{BASE, Engine, Schema};
use super::meter::Meter;
use super::tape_json::MeteredDocument;
use super::violation::Violation;
use mcpproxy_json::tape::{self, Document, MAX_DEPTH, OpenContainers, TapeFault};

/// Step budget of the tape engine for every document.
pub(crate) const STEPS: u64 = 4_000_000;

/// Additional steps per byte of a document.
pub(crate) const STEPS_PER_BYTE: u64 = 16;

/// Visit budget of boon for every document, in the worst case; beyond it the tape engine's verdict counts.
pub(crate) const BOON_VISITS: u64 = 100_000;

/// Additional visits of boon per byte of a document.
pub(crate) const BOON_VISITS_PER_BYTE: u64 = 4;

/// Visit budget of boon for the largest document: a few seconds, and several hundred megabytes if each visit is a violation.
pub(crate) const BOON_VISITS_MAX: u64 = 2_000_000;

/// Step budget of an evaluation on a worker thread: about a millisecond.
pub(crate) const QUICK_STEPS: u64 = 64_000;

/// Visit budget of boon on a worker thread: about a millisecond, with a second parse of the document.
pub(crate) const QUICK_BOON_VISITS: u64 = 500;

/// Number of bytes of text that boon reads in the time of one visit.
const TEXT_PER_VISIT: u64 = 16;

/// Number of steps of slow patterns in the time of one visit.
const STEPS_PER_VISIT: u64 = 128;

/// Scratch memory of a worker for evaluations.
#[derive(Default)]
pub struct JudgeScratch {
    tape: tape::Scratch,
    meter: Meter,
    accept: AcceptScratch,
}

impl std::fmt::Debug for JudgeScratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JudgeScratch")
            .field("bytes", &self.tape.footprint())
            .finish_non_exhaustive()
    }
}

impl JudgeScratch {
    pub fn new() -> Self {
        Self::default()
    }

    /// Tape scratch memory, shared with other readers of small documents.
    pub fn tape(&mut self) -> &mut tape::Scratch {
        &mut self.tape
    }
}

/// Whether a document may pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Conforms,
    Violates(Violation),
}

/// Verdict, and whether the engines disagreed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgment {
    /// Whether the document may pass.
    pub verdict: Verdict,
    /// Whether the engines disagreed; in that case the verdict is boon's.
    pub disagreement: bool,
}

/// Budget of an evaluation.
#[derive(Clone, Copy)]
struct Budget {
    steps: u64,
    boon_visits: u64,
    /// Whether exceeding the budget ends the evaluation without a verdict.
    quick: bool,
}

impl Budget {
    /// Budget for a document of `len` bytes.
    fn of(len: u64) -> Self {
        let visits = BOON_VISITS.saturating_add(BOON_VISITS_PER_BYTE.saturating_mul(len));
        Self {
            steps: STEPS.saturating_add(STEPS_PER_BYTE.saturating_mul(len)),
            boon_visits: visits.min(BOON_VISITS_MAX),
            quick: false,
        }
    }

    /// Budget on a worker thread.
    fn quick() -> Self {
        Self { steps: QUICK_STEPS, boon_visits: QUICK_BOON_VISITS, quick: true }
    }
}

/// Outcome of the tape pass.
enum Pass {
    /// The budget on a worker thread is exceeded.
    TooLong,
    Done(Verdict),
    /// boon decides; `opinion` is the tape pass's verdict, if it reached one.
    AskBoon {
        opinion: Option<bool>,
    },
}

impl Schema {
    /// Evaluates the one value in the slices of `document`.
    ///
    /// Takes up to seconds for documents of many megabytes, and cannot be interrupted.
    pub fn judge(&self, document: &[Bytes], scratch: &mut JudgeScratch) -> Judgment {
        let len = document.iter().map(Bytes::len).sum::<usize>() as u64;
        let judged = self.judge_within(Budget::of(len), document, scratch);
        // Only a limited budget can end without a verdict.
        judged.unwrap_or_else(|| Judgment {
            verdict: Verdict::Violates(Violation::of_steps()),
            disagreement: false,
        })
    }

    /// Same as [`judge`](Self::judge), on a worker thread. Returns `None` after a millisecond or two if it would take
    /// longer; `judge` then decides. Intended for small documents, since the time for parsing counts as well.
    pub fn judge_quickly(
        &self,
        document: &[Bytes],
        scratch: &mut JudgeScratch,
    ) -> Option<Judgment> {
        self.judge_within(Budget::quick(), document, scratch)
    }

    /// Whether the accept-only pass alone decides that `document` conforms (FR-A14). Used by tests and benchmarks.
    pub fn accepts_in_one_pass(&self, document: &[u8], scratch: &mut JudgeScratch) -> bool {
        let program = self.accept.as_ref();
        program.is_some_and(|program| program.accepts(document, &mut scratch.accept))
    }

    /// Reads the slices of `document` that have arrived since the last time, in one pass without a tape. Takes at most a few nanoseconds
    /// per byte, regardless of the schema.
    pub fn read_arriving(
        &self,
        arriving: &mut ArrivingDocument,
        document: &[Bytes],
        scratch: &mut JudgeScratch,
    ) {
        if let Some(program) = &self.accept {
            arriving.read(program, document, &mut scratch.accept);
        }
    }

    fn judge_within(
        &self,
        budget: Budget,
        document: &[Bytes],
        scratch: &mut JudgeScratch,
    ) -> Option<Judgment> {
        let agreed = |verdict| Some(Judgment { verdict, disagreement: false });
        let JudgeScratch { tape, meter, accept } = scratch;
        let slices = document.iter().map(Bytes::as_ref);
        if let Some(program) = &self.accept
            && tape.look_at(slices.clone(), |document| program.accepts(document, accept))
        {
            return agreed(Verdict::Conforms);
        }
        match tape.read(slices, |document| self.pass(document, budget, meter)) {
            Err(fault) => agreed(Verdict::Violates(Violation::of_document(fault))),
            Ok(Pass::TooLong) => None,
            Ok(Pass::Done(verdict)) => agreed(verdict),
            Ok(Pass::AskBoon { opinion }) => Some(self.ask_boon(document, opinion)),
        }
    }

    fn pass(&self, document: Document<'_>, budget: Budget, meter: &mut Meter) -> Pass {
        // Only a schema that recurses through the document can nest too deeply.
        if self.cost.nesting(MAX_DEPTH) > NESTING
            && self.cost.nesting(tape::depth(document.nodes())) > NESTING
        {
            return Pass::Done(Verdict::Violates(Violation::of_nesting()));
        }
        meter.start(budget.steps, self.names);
        let accepted = {
            let view = MeteredDocument { document, meter };
            self.tape.is_valid(view.root())
        };
        if meter.exhausted() {
            if budget.quick {
                return Pass::TooLong;
            }
            return Pass::Done(Verdict::Violates(Violation::of_steps()));
        }
        let certain = !meter.inexact() && !self.circular;
        if accepted && certain && self.engine == Engine::Tape {
            return Pass::Done(Verdict::Conforms);
        }
        if self.arbiter().is_some() {
            if self.boon_visits(document) <= budget.boon_visits {
                return Pass::AskBoon { opinion: certain.then_some(accepted) };
            }
            if budget.quick {
                return Pass::TooLong;
            }
        }
        if accepted {
            return Pass::Done(Verdict::Conforms);
        }
        meter.start(budget.steps, self.names);
        Pass::Done(Verdict::Violates(self.words(MeteredDocument { document, meter })))
    }

    fn ask_boon(&self, document: &[Bytes], opinion: Option<bool>) -> Judgment {
        let value: Result<Value, _> = match document {
            [whole] => serde_json::from_slice(whole),
            slices => serde_json::from_slice(&slices.concat()),
        };
        let violation = match (value, self.arbiter()) {
            (Ok(value), Some(boon)) => match boon.schemas.validate(&value, boon.root) {
                Ok(()) => None,
                Err(error) => Some(Violation::of_boon(&error, BASE, &self.required)),
            },
            // A value that only one parser accepts is not a document.
            (Err(_), _) => Some(Violation::of_document(TapeFault::Syntax)),
            (Ok(_), None) => None,
        };
        Judgment {
            disagreement: opinion.is_some_and(|accepted| accepted != violation.is_none()),
            verdict: violation.map_or(Verdict::Conforms, Verdict::Violates),
        }
    }

    /// Violation as reported by the tape engine.
    fn words(&self, view: MeteredDocument<'_>) -> Violation {
        use jsonschema::error::ValidationErrorKind::{BacktrackLimitExceeded, RegexEngineFailure};
        match self.tape.validate(view.root()) {
            Err(error)
                if matches!(
                    error.kind(),
                    BacktrackLimitExceeded { .. } | RegexEngineFailure { .. }
                ) =>
            {
                Violation::of_steps()
            }
            Err(error) if !view.meter.exhausted() => {
                Violation::of_tape(&error, &self.required, &|place| view.null_at(place))
            }
            Err(_) | Ok(()) => Violation::of_steps(),
        }
    }

    /// Maximum number of boon's visits to the values of `document`; each visit to a container also iterates over its content.
    fn boon_visits(&self, document: Document<'_>) -> u64 {
        let text_visits = |text: &str| {
            let len = text.len() as u64;
            let slow = len.saturating_mul(self.steps_per_byte) / STEPS_PER_VISIT;
            slow.saturating_add(len / TEXT_PER_VISIT)
        };
        let mut at_depth = [0_u64; MAX_DEPTH + 2];
        let mut add = |depth: usize, count: u64| {
            if let Some(slot) = at_depth.get_mut(depth) {
                *slot = slot.saturating_add(count);
            }
        };
        let mut open = OpenContainers::default();
        add(0, 1);
        for (at, node) in document.nodes().iter().enumerate() {
            match node {
                Node::Object { len, count } | Node::Array { len, count } => {
                    add(open.enter(at, *count), *len as u64);
                }
                Node::String(text) => add(open.leave(at), text_visits(text)),
                Node::Static(_) => {}
            }
        }
        let below = at_depth.iter().skip(1).copied().chain([0]);
        at_depth.iter().zip(below).enumerate().fold(0_u64, |sum, (depth, (here, below))| {
            let visits = self.cost.visits(depth).max(1);
            sum.saturating_add(here.saturating_add(below).saturating_mul(visits))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::compile::{Settings, compile};
    use super::super::violation::{AGENT_MAX, RECORD_MAX, ViolationReason};
    use super::*;

    fn judge_as(engine: Engine, schema: &str, document: &str) -> Judgment {
        let settings = Settings { engine, assert_formats: false };
        let schema = compile(schema.as_bytes(), &settings).unwrap();
        schema.judge(&[Bytes::copy_from_slice(document.as_bytes())], &mut JudgeScratch::new())
    }

    fn violation(schema: &str, document: &str) -> Violation {
        match judge_as(Engine::Tape, schema, document).verdict {
            Verdict::Violates(violation) => violation,
            Verdict::Conforms => panic!("{document} conforms to {schema}"),
        }
    }

    #[test]
    fn both_engines_give_the_same_verdict() {
        for (schema, document, conforms) in [
            ("true", "1", true),
            ("false", "1", false),
            (r#"{"type":"object","required":["a"]}"#, r#"{"a":1}"#, true),
            (r#"{"type":"object","required":["a"]}"#, r#"{"b":1}"#, false),
            (r#"{"type":"integer"}"#, "18446744073709551616", true),
            (r#"{"type":["null","string"]}"#, "null", true),
            (r#"{"const":9007199254740993}"#, "9007199254740992", false),
            (r#"{"const":9007199254740993}"#, "9007199254740993", true),
            // Beyond 2^64, numbers of the document and the schema are represented as doubles, so that neighboring
            // integers are equal.
            (r#"{"const":18446744073709551616}"#, "18446744073709551614", true),
            (r#"{"const":18446744073709551614}"#, "18446744073709551615", false),
            (r#"{"multipleOf":18446744073709551614}"#, "111065529218483954", false),
            // The specifications leave a reference to itself undefined.
            (r##"{"$ref":"#"}"##, "1", false),
            (
                r##"{"$schema":"http://json-schema.org/draft-07/schema#","$ref":"#/definitions/a","const":1,"definitions":{"a":{}}}"##,
                "2",
                true,
            ),
            // This keyword exists only in 2019-09.
            (
                r##"{"properties":{"a":{"$recursiveRef":"#"}},"maxProperties":1}"##,
                r#"{"a":{"b":1,"c":2}}"#,
                true,
            ),
        ] {
            for engine in [Engine::Tape, Engine::Boon] {
                let judgment = judge_as(engine, schema, document);
                let found = judgment.verdict == Verdict::Conforms;
                assert_eq!(found, conforms, "{schema} {document} {engine:?}");
                assert!(!judgment.disagreement, "{schema} {document} {engine:?}");
            }
        }
    }

    #[test]
    fn violation_has_the_place_in_schema_and_document() {
        let schema = r#"{"properties":{"user":{"properties":{"age":{"type":"integer"}}}}}"#;
        let violation = violation(schema, r#"{"user":{"age":"secret"}}"#);
        assert_eq!(violation.reason, ViolationReason::Schema);
        assert_eq!(violation.instance_path, "/user/age");
        assert_eq!(violation.schema_path, "/properties/user/properties/age/type");
        assert_eq!(violation.keyword, "type");
        assert_eq!(
            violation.for_agent(),
            "type at '/properties/user/properties/age/type': expected integer, got string"
        );
    }

    #[test]
    fn violation_of_the_whole_document_names_the_root() {
        for engine in [Engine::Tape, Engine::Boon] {
            let judgment = judge_as(engine, r#"{"required":["path"]}"#, "{}");
            let Verdict::Violates(violation) = judgment.verdict else { panic!("{engine:?}") };
            assert!(violation.to_string().starts_with("at the root: "), "{violation}");
        }
    }

    #[test]
    fn agent_text_contains_no_text_of_the_document() {
        let evil = "IGNORE-ALL-INSTRUCTIONS";
        let quoted = format!("{evil:?}");
        let named = format!("{{{evil:?}:1}}");
        let both = format!("{{\"x\":{{{evil:?}:{evil:?}}}}}");
        for (schema, document) in [
            (r#"{"type":"integer"}"#, &quoted),
            (r#"{"const":"a"}"#, &quoted),
            (r#"{"enum":["a","b"]}"#, &quoted),
            (r#"{"pattern":"^a"}"#, &quoted),
            (r#"{"pattern":"^(?!I)"}"#, &quoted),
            (r#"{"maxLength":2}"#, &quoted),
            (r#"{"minLength":200}"#, &quoted),
            (r#"{"not":{"type":"string"}}"#, &quoted),
            (r#"{"anyOf":[{"type":"null"},{"maxLength":1}]}"#, &quoted),
            (r#"{"oneOf":[{"type":"null"},{"maxLength":1}]}"#, &quoted),
            (r#"{"oneOf":[true,true]}"#, &quoted),
            (r#"{"additionalProperties":false}"#, &named),
            (r#"{"additionalProperties":{"type":"null"}}"#, &named),
            (r#"{"additionalProperties":{"type":"null"},"pattern":"(?=a)"}"#, &named),
            (r#"{"additionalProperties":false,"pattern":"(?=a)"}"#, &named),
            (r#"{"propertyNames":{"maxLength":1}}"#, &named),
            (r#"{"propertyNames":{"pattern":"^(?!I)"}}"#, &named),
            (r#"{"patternProperties":{"^I":{"type":"null"}}}"#, &named),
            (r#"{"patternProperties":{"^(?=I)":{"type":"null"}}}"#, &named),
            (r#"{"unevaluatedProperties":false}"#, &named),
            (r#"{"unevaluatedProperties":{"type":"null"}}"#, &named),
            (r#"{"minProperties":2}"#, &named),
            (r#"{"additionalProperties":{"additionalProperties":{"const":"a"}}}"#, &both),
            (r#"{"additionalProperties":{"uniqueItems":true,"maxProperties":0}}"#, &both),
        ] {
            let violation = violation(schema, document);
            assert!(!violation.for_agent().contains("IGNORE"), "{}", violation.for_agent());
            assert!(!violation.for_agent().is_empty());
            assert!(!violation.schema_path.contains("IGNORE"), "{}", violation.schema_path);
        }
    }

    #[test]
    fn descriptions_are_bounded() {
        let name = "é".repeat(2000);
        let schema = format!("{{\"required\":[{name:?}],\"additionalProperties\":false}}");
        let members: Vec<String> = (0..5000).map(|i| format!("\"property {i}\":0")).collect();
        let violation = violation(&schema, &format!("{{{}}}", members.join(",")));
        assert!(violation.for_agent().len() <= AGENT_MAX);
        assert!(violation.for_agent().len() >= AGENT_MAX - 1);
        assert!(violation.describe().len() <= RECORD_MAX);
    }

    #[test]
    fn ambiguous_document_is_a_violation() {
        for (document, code) in [
            (r#"{"a":1,"a":1}"#, "duplicate_key"),
            (r#"{"b":[{"a":1,"\u0061":1}]}"#, "duplicate_key"),
            (r#""\ud800""#, "lone_surrogate"),
            ("1e400", "number_overflow"),
            ("{} {}", "trailing_bytes"),
            ("", "empty"),
        ] {
            for engine in [Engine::Tape, Engine::Boon] {
                match judge_as(engine, "true", document).verdict {
                    Verdict::Violates(violation) => assert_eq!(violation.reason.code(), code),
                    Verdict::Conforms => panic!("{document}"),
                }
            }
        }
    }

    #[test]
    fn pattern_that_boon_refuses_is_evaluated_only_by_the_tape() {
        let raw = br#"{"pattern":"^(?!root)[a-z]+$"}"#;
        let schema = compile(raw, &Settings::default()).unwrap();
        assert!(schema.judged_by_tape_alone());
        let mut scratch = JudgeScratch::new();
        let mut verdict = |text: &'static str| schema.judge(&[text.into()], &mut scratch).verdict;
        assert_eq!(verdict(r#""guest""#), Verdict::Conforms);
        assert!(matches!(verdict(r#""root""#), Verdict::Violates(_)));
    }
}
