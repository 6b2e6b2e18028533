//! What a call hands over for the log: its draft, and the decisions about it. Pure.

use super::{Draft, LateMember, Policy, Verdict};

/// One decision about a call. Principal, server, tool, session, request and intent are those of its
/// call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Blocked, or warned.
    pub verdict: Verdict,
    /// What it is based on.
    pub policy: Policy,
    /// The mode in force (`warn`, `strict`, …), or empty.
    pub mode: &'static str,
    /// The reason in full, as the operator reads it.
    pub reason: Box<str>,
    /// Where in the document, as a JSON pointer, or empty.
    pub instance_path: Box<str>,
    /// Where in the schema, or empty.
    pub schema_path: Box<str>,
    /// The guard that was breached (`bytes`, `depth`, `time`, …), or empty.
    pub guard: &'static str,
    /// The rules that decided; empty where none did.
    pub rules: Vec<Box<str>>,
}

impl Decision {
    /// A decision with only its reason.
    #[must_use]
    pub fn new(verdict: Verdict, policy: Policy, reason: impl Into<Box<str>>) -> Self {
        Self {
            verdict,
            policy,
            mode: "",
            reason: reason.into(),
            instance_path: Box::default(),
            schema_path: Box::default(),
            guard: "",
            rules: Vec::new(),
        }
    }
}

/// A call and the decisions about it: written as one atomic batch, the call first (ACT-4).
#[derive(Clone, Debug)]
pub struct Entry {
    /// The call, or whatever else happened.
    pub draft: Draft,
    /// The decisions about it; empty for most.
    pub decisions: Vec<Decision>,
    /// What is added to the metadata of a call when it is written.
    pub late: Option<LateMember>,
}

impl From<Draft> for Entry {
    fn from(draft: Draft) -> Self {
        Self { draft, decisions: Vec::new(), late: None }
    }
}

impl From<Draft> for Box<Entry> {
    fn from(draft: Draft) -> Self {
        Self::new(draft.into())
    }
}

/// The decision's own metadata, as the JSON object that is stored.
#[must_use]
pub fn decision_metadata(decision: &Decision) -> Vec<u8> {
    let mut fields = serde_json::Map::new();
    let mut put = |key: &str, text: &str| {
        if !text.is_empty() {
            fields.insert(key.into(), text.into());
        }
    };
    put("decision", decision.verdict.as_str());
    put("policy", decision.policy.as_str());
    put("mode", decision.mode);
    put("reason", &decision.reason);
    put("instance_path", &decision.instance_path);
    put("schema_path", &decision.schema_path);
    put("guard", decision.guard);
    if !decision.rules.is_empty() {
        fields.insert("rules".into(), decision.rules.iter().map(|id| &**id).collect());
    }
    serde_json::Value::Object(fields).to_string().into_bytes()
}
