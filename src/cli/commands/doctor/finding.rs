//! One thing that was looked at.

use std::time::Duration;

use serde_json::{Value, json};

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DiagnosisKind {
    Fine,
    /// It may be meant so.
    Odd,
    Wrong,
    /// It was wrong, and is not any more.
    Mended,
}

/// One thing that was looked at.
#[derive(Clone, Debug)]
pub(super) struct Diagnosis {
    pub(super) outcome: DiagnosisKind,
    /// What was looked at, in a word.
    pub(super) check: &'static str,
    pub(super) text: String,
    /// The command that mends it, or what else does.
    pub(super) mend: String,
    pub(super) took: Option<Duration>,
}

impl Diagnosis {
    pub(super) fn new(
        outcome: DiagnosisKind,
        check: &'static str,
        text: impl Into<String>,
    ) -> Self {
        Self { outcome, check, text: text.into(), mend: String::new(), took: None }
    }

    pub(super) fn fine(check: &'static str, text: impl Into<String>) -> Self {
        Self::new(DiagnosisKind::Fine, check, text)
    }

    pub(super) fn wrong(
        check: &'static str,
        text: impl Into<String>,
        mend: impl Into<String>,
    ) -> Self {
        Self { mend: mend.into(), ..Self::new(DiagnosisKind::Wrong, check, text) }
    }

    /// For programs.
    pub(super) fn json(&self) -> Value {
        let outcome = match self.outcome {
            DiagnosisKind::Fine => "ok",
            DiagnosisKind::Odd => "warning",
            DiagnosisKind::Wrong => "wrong",
            DiagnosisKind::Mended => "mended",
        };
        let took = self.took.map(|took| u64::try_from(took.as_millis()).unwrap_or(u64::MAX));
        json!({
            "outcome": outcome, "check": self.check, "text": self.text, "mend": self.mend,
            "took_ms": took,
        })
    }
}
