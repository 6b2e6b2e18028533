//! Replay of recorded requests against the rules in force and a new set. The caller reads the log: the command line
//! from an export, REST directly (`admin::api::policy`).
//!
//! A request is undecidable if a rule needs data that the log lacks: arguments that were cut, redacted or pruned,
//! session facts, or a removed tool.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::direct;
use mcpproxy_activity::record::Status;
use mcpproxy_activity::redact::REDACTED;
use mcpproxy_activity::{Filter, Type};
use mcpproxy_catalog::Snapshot;
use mcpproxy_policy::SessionFacts;
use mcpproxy_policy::intent::{Operation, Sensitivity};
use mcpproxy_policy::rules::{
    RuleAction, RuleInputs, RuleRequest, RuleSet, RuleTarget, Ruling, Subject,
};

/// Maximum number of pairs of tool and principal; further ones are counted together.
const MAX_PAIRS: usize = 10_000;
/// Maximum number of rules listed per pair.
const MAX_RULES_NAMED: usize = 20;
/// Maximum number of reasons why rules cannot be evaluated; further ones are counted together.
const MAX_ERRORS: usize = 20;
/// Label of further pairs and reasons.
const OTHERS: &str = "(others)";

/// Status of a request that was refused before it was sent.
const REJECTED: &str = Status::Rejected.as_str();
/// Text in each refusal by a rule.
const BY_A_RULE: &str = " is not allowed by rule '";

/// Record types of requests to servers.
pub const REPLAYED: [Type; 3] = [Type::ToolCall, Type::ResourceRead, Type::PromptGet];

/// Record that is not valid JSON.
#[derive(Debug, thiserror::Error)]
#[error("the log has a record that cannot be read: {0}")]
pub struct UnreadableRecord(serde_json::Error);

/// Record as exported.
#[derive(Deserialize)]
struct LoggedRequest<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    principal: Cow<'a, str>,
    #[serde(borrow)]
    server_name: Cow<'a, str>,
    #[serde(borrow)]
    tool_name: Cow<'a, str>,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
    #[serde(default)]
    arguments_truncated: bool,
    #[serde(borrow, default)]
    status: Cow<'a, str>,
    #[serde(borrow, default)]
    error_message: Cow<'a, str>,
    #[serde(borrow)]
    timestamp: Cow<'a, str>,
    #[serde(default)]
    intent: Option<Value>,
    #[serde(borrow, default)]
    metadata: LoggedMetadata<'a>,
}

#[derive(Default, Deserialize)]
struct LoggedMetadata<'a> {
    #[serde(borrow, default)]
    tool_variant: Cow<'a, str>,
    #[serde(borrow, default)]
    client_name: Cow<'a, str>,
    #[serde(default)]
    groups: Vec<Box<str>>,
    /// True if the request was answered by a question; the repeated call has its own record.
    #[serde(default)]
    input_required: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct ReplayCounts {
    /// Requests evaluated by both sets.
    pub calls: u64,
    /// Requests refused by the new rules only, except those refused for another reason when they were made.
    pub newly_refused: u64,
    /// Requests among the newly refused that are refused because a new rule cannot be evaluated.
    pub rule_errors: u64,
    /// Requests refused by the present rules only, except those refused for another reason when they were made.
    pub newly_allowed: u64,
    /// Requests for which the log lacks data that a rule needs.
    pub undecidable: u64,
    /// Rules with a different decision, at most 20.
    #[schema(value_type = Vec<String>)]
    pub rules: BTreeSet<Box<str>>,
}

impl ReplayCounts {
    fn note(&mut self, found: &Found) {
        self.calls += 1;
        let rules = match found {
            Found::Same => return,
            Found::Undecidable(_) => return self.undecidable += 1,
            Found::Refused(rules, error) => {
                self.newly_refused += 1;
                self.rule_errors += u64::from(error.is_some());
                rules
            }
            Found::Allowed(rules) => {
                self.newly_allowed += 1;
                rules
            }
        };
        for rule in rules {
            if self.rules.len() < MAX_RULES_NAMED {
                self.rules.insert(rule.clone());
            }
        }
    }
}

/// Counts of one tool and principal.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ReplayedPair<'a> {
    /// `server:tool`; `(others)` beyond the bound.
    #[schema(value_type = String)]
    tool: &'a str,
    #[schema(value_type = String)]
    principal: &'a str,
    #[serde(flatten)]
    counts: &'a ReplayCounts,
}

/// Result of a replay.
#[derive(Debug, Serialize, ToSchema)]
pub struct ReplayReport<'a> {
    total: &'a ReplayCounts,
    /// Reasons of undecidable requests, with counts.
    #[schema(value_type = std::collections::BTreeMap<String, u64>)]
    undecidable_because: &'a BTreeMap<&'static str, u64>,
    /// Reasons why new rules cannot be evaluated, as `rule 'NAME': why`, with counts; at most 20, and one for the others.
    #[schema(value_type = std::collections::BTreeMap<String, u64>)]
    rule_errors_because: &'a BTreeMap<String, u64>,
    /// Largest changes first; at most 10000, and one for the others.
    by_tool_and_principal: Vec<ReplayedPair<'a>>,
}

/// Result for one request.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Found {
    Same,
    /// Data that the log lacks.
    Undecidable(&'static str),
    /// The rules, and the reason if one of them cannot be evaluated.
    Refused(Vec<Box<str>>, Option<String>),
    Allowed(Vec<Box<str>>),
}

/// Both sets of rules, and the counts.
#[derive(Debug)]
pub struct RuleReplay {
    now: Arc<RuleSet>,
    new: Arc<RuleSet>,
    snapshot: Arc<Snapshot>,
    total: ReplayCounts,
    by_tool: BTreeMap<String, BTreeMap<String, ReplayCounts>>,
    pairs: usize,
    reasons: BTreeMap<&'static str, u64>,
    errors: BTreeMap<String, u64>,
}

impl RuleReplay {
    /// Empty replay. Tools are those of `snapshot`.
    pub fn new(now: Arc<RuleSet>, new: Arc<RuleSet>, snapshot: Arc<Snapshot>) -> Self {
        Self {
            now,
            new,
            snapshot,
            total: ReplayCounts::default(),
            by_tool: BTreeMap::new(),
            pairs: 0,
            reasons: BTreeMap::new(),
            errors: BTreeMap::new(),
        }
    }

    pub fn record(&mut self, line: &[u8]) -> Result<(), UnreadableRecord> {
        let line: LoggedRequest<'_> = serde_json::from_slice(line).map_err(UnreadableRecord)?;
        // The request was refused before its server was known.
        if line.server_name.is_empty() {
            return Ok(());
        }
        let Some(found) = self.found(&line) else { return Ok(()) };
        match &found {
            Found::Undecidable(why) => *self.reasons.entry(why).or_default() += 1,
            Found::Refused(_, Some(why)) => {
                let fits = self.errors.contains_key(why) || self.errors.len() < MAX_ERRORS;
                let why = if fits { why } else { OTHERS };
                *self.errors.entry(why.to_owned()).or_default() += 1;
            }
            Found::Same | Found::Refused(_, None) | Found::Allowed(_) => {}
        }
        self.total.note(&found);
        let full = format!("{}:{}", line.server_name, line.tool_name);
        let known = self.by_tool.get(&full).and_then(|all| all.get(&*line.principal)).is_some();
        let (tool, principal) = match known || self.pairs < MAX_PAIRS {
            true => (full, line.principal.into_owned()),
            false => (OTHERS.to_owned(), OTHERS.to_owned()),
        };
        self.pairs += usize::from(!known);
        self.by_tool.entry(tool).or_default().entry(principal).or_default().note(&found);
        Ok(())
    }

    /// Result for a record; `None` if it is not a request subject to rules.
    fn found(&self, line: &LoggedRequest<'_>) -> Option<Found> {
        if line.metadata.input_required {
            return None;
        }
        let (server, own) = (&*line.server_name, &*line.tool_name);
        let arguments = line.arguments.map(|raw| raw.get().as_bytes()).unwrap_or_default();
        let named = |member: &str| -> Option<String> {
            let arguments: Value = serde_json::from_slice(arguments).ok()?;
            Some(arguments.get(member)?.as_str()?.to_owned())
        };
        let name;
        let (action, target) = match &*line.kind {
            "tool_call" => {
                let tool = self.snapshot.named(server, own);
                let action = match Operation::of_tool(&line.metadata.tool_variant) {
                    Some(operation) => operation,
                    None if line.metadata.tool_variant == direct::VARIANT => match tool {
                        Some(tool) => Operation::recommended(tool.capability),
                        None => return Some(Found::Undecidable("tool is gone")),
                    },
                    None => return None,
                };
                let target = match tool {
                    Some(tool) => RuleTarget::Tool(tool),
                    None => RuleTarget::NamedTool { server, tool: own },
                };
                (action.into(), target)
            }
            "resource_read" => match named("uri") {
                Some(uri) => {
                    name = uri;
                    (RuleAction::ReadResource, RuleTarget::Resource { server, uri: &name })
                }
                None => return Some(Found::Undecidable("arguments cut")),
            },
            "prompt_get" => match named("name") {
                Some(prompt) => {
                    name = prompt;
                    (RuleAction::GetPrompt, RuleTarget::Prompt { server, name: &name })
                }
                None => return Some(Found::Undecidable("arguments cut")),
            },
            _ => return None,
        };
        let stated = |member: &str| line.intent.as_ref().and_then(|intent| intent.get(member));
        let sensitivity = stated("data_sensitivity").cloned();
        let asked = RuleRequest {
            subject: Subject { id: &line.principal, groups: &line.metadata.groups },
            action,
            target,
            arguments: if arguments.is_empty() { b"{}" } else { arguments },
            sensitivity: sensitivity.and_then(|it| serde_json::from_value::<Sensitivity>(it).ok()),
            reason: stated("reason").and_then(Value::as_str).unwrap_or_default(),
            client: &line.metadata.client_name,
            session: SessionFacts::default(),
            // The record does not contain this value; see below.
            carries_out: false,
            now: line
                .timestamp
                .parse::<jiff::Timestamp>()
                .map_or(SystemTime::UNIX_EPOCH, Into::into),
        };
        let inputs = [&self.now, &self.new].map(|rules| rules.inputs_of(&asked));
        let any = |part: fn(&RuleInputs) -> bool| inputs.iter().any(part);
        if any(|inputs| inputs.arguments) {
            let why = match line.arguments {
                None => Some("arguments pruned"),
                Some(_) if line.arguments_truncated => Some("arguments cut"),
                Some(raw) if raw.get().contains(REDACTED) => Some("arguments redacted"),
                Some(_) => None,
            };
            if let Some(why) = why {
                return Some(Found::Undecidable(why));
            }
        }
        if any(|inputs| inputs.session) {
            return Some(Found::Undecidable("session not known"));
        }
        if any(|inputs| inputs.carries_out) && !matches!(target, RuleTarget::Tool(_)) {
            return Some(Found::Undecidable("request not known"));
        }
        if any(|inputs| inputs.capability) && matches!(target, RuleTarget::NamedTool { .. }) {
            return Some(Found::Undecidable("tool is gone"));
        }
        // The request was refused by scope, intent, a limit or a person. Rules cannot change that.
        let was_refused_otherwise =
            line.status == REJECTED && !line.error_message.contains(BY_A_RULE);
        Some(match (self.now.decide(&asked), self.new.decide(&asked)) {
            (Ruling::Permitted(_), Ruling::Refused(_))
            | (Ruling::Refused(_), Ruling::Permitted(_))
                if was_refused_otherwise =>
            {
                Found::Same
            }
            (Ruling::Permitted(_), Ruling::Refused(denial)) => {
                let error = denial.error.map(|why| format!("rule '{}': {why}", denial.rule));
                Found::Refused(denial.rules, error)
            }
            (Ruling::Refused(before), Ruling::Permitted(by)) => {
                Found::Allowed(if by.is_empty() { before.rules } else { by })
            }
            (Ruling::Permitted(_), Ruling::Permitted(_))
            | (Ruling::Refused(_), Ruling::Refused(_)) => Found::Same,
        })
    }

    pub fn rules(&self) -> usize {
        self.new.len()
    }

    pub fn report(&self) -> ReplayReport<'_> {
        let pairs = self.by_tool.iter().flat_map(|(tool, principals)| {
            principals.iter().map(|(principal, counts)| ReplayedPair { tool, principal, counts })
        });
        let mut pairs: Vec<_> = pairs.collect();
        pairs.sort_by_key(|ReplayedPair { tool, principal, counts }| {
            let changed = counts.newly_refused + counts.newly_allowed;
            (std::cmp::Reverse((changed, counts.undecidable)), *tool, *principal)
        });
        ReplayReport {
            total: &self.total,
            undecidable_because: &self.reasons,
            rule_errors_because: &self.errors,
            by_tool_and_principal: pairs,
        }
    }
}

/// Filter for the records that a replay reads.
pub fn replayed() -> Filter {
    Filter { kinds: REPLAYED.to_vec(), ..Filter::default() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use mcpproxy_catalog::{Catalog, Settings};
    use mcpproxy_policy::rules::{RuleOptions, RuleText};

    fn rules(text: &str) -> RuleSet {
        let text = RuleText { file: "r".into(), text: text.to_owned() };
        RuleSet::load(&[text], RuleOptions::default(), None).unwrap()
    }

    fn replay(now: &str, new: &str, lines: &[Value]) -> Value {
        let snapshot = Catalog::new(Settings::default()).load();
        let mut replay = RuleReplay::new(rules(now).into(), rules(new).into(), snapshot);
        for line in lines {
            replay.record(line.to_string().as_bytes()).unwrap();
        }
        serde_json::to_value(replay.report()).unwrap()
    }

    fn call(principal: &str, tool: &str, arguments: Value) -> Value {
        json!({
            "type": "tool_call", "principal": principal, "server_name": "s", "tool_name": tool,
            "arguments": arguments, "timestamp": "2026-01-01T00:00:00.000Z",
            "metadata": {"tool_variant": "call_tool_write"},
        })
    }

    const BY_PATH: &str = r#"@id("etc") forbid(principal, action == Action::"write", resource == Tool::"s:put")
        when { context.args.path like "/etc/*" };"#;

    #[test]
    fn changed_decisions_are_counted_by_tool_and_principal() {
        let lines = [
            call("token:a", "put", json!({"path": "/etc/x"})),
            call("token:a", "put", json!({"path": "/tmp/x"})),
            call("token:b", "get", json!({})),
            json!({"type": "tool_call", "principal": "x", "server_name": "", "tool_name": "",
                   "timestamp": "", "metadata": {}}),
            json!({"type": "tool_call", "principal": "x", "server_name": "s", "tool_name": "put",
                   "timestamp": "", "metadata": {"tool_variant": "call_tool_write",
                   "input_required": true}}),
        ];
        let mut out_of_scope = call("token:a", "put", json!({"path": "/etc/x"}));
        out_of_scope["status"] = json!("rejected");
        let lines = [&lines[..], &[out_of_scope]].concat();
        let old = r#"@id("no b") forbid(principal == Agent::"token:b", action, resource);"#;
        let report = replay(old, BY_PATH, &lines);
        assert_eq!(
            report["total"],
            json!({"calls": 4, "newly_refused": 1, "rule_errors": 0, "newly_allowed": 1,
                   "undecidable": 0, "rules": ["etc", "no b"]})
        );
        let first = &report["by_tool_and_principal"][0];
        assert_eq!((&first["tool"], &first["principal"]), (&json!("s:get"), &json!("token:b")));
        assert_eq!(report["by_tool_and_principal"][1]["calls"], 3);
    }

    #[test]
    fn refusals_because_a_rule_cannot_be_evaluated_are_counted_with_their_reasons() {
        let sized = |size: Value| call("token:a", "put", json!({"size": size}));
        let lines = [sized(json!(9)), sized(json!(0.5)), sized(json!(1)), sized(json!("x"))];
        let rule = r#"@id("big") forbid(principal, action == Action::"write", resource == Tool::"s:put")
            when { context.args.size > 5 };"#;
        let report = replay("", rule, &lines);
        let (total, reasons) =
            (&report["total"], report["rule_errors_because"].as_object().unwrap());
        assert_eq!(
            (&total["newly_refused"], &total["rule_errors"]),
            (&json!(3), &json!(2)),
            "{report}"
        );
        assert_eq!(report["by_tool_and_principal"][0]["rule_errors"], 2);
        assert_eq!(reasons.len(), 2, "{report}");
        assert!(reasons.keys().all(|why| why.starts_with("rule 'big': ")), "{report}");
        // The reasons are bounded, and no call is left out.
        let many = (0..30).map(|at| format!(
            r#"@id("r{at}") forbid(principal == Agent::"token:p{at}", action == Action::"write", resource) when {{ context.args.size > 5 }};"#
        ));
        let lines: Vec<_> =
            (0..30).map(|at| call(&format!("token:p{at}"), "put", json!({"size": "x"}))).collect();
        let report = replay("", &many.collect::<String>(), &lines);
        let reasons = report["rule_errors_because"].as_object().unwrap();
        assert_eq!((reasons.len(), &reasons[OTHERS]), (MAX_ERRORS + 1, &json!(10)), "{report}");
    }

    #[test]
    fn request_with_missing_data_is_undecidable_in_a_replay() {
        let mut cut = call("a", "put", json!("{\"path\":\"/et"));
        cut["arguments_truncated"] = json!(true);
        let mut pruned = call("a", "put", json!({}));
        pruned.as_object_mut().unwrap().remove("arguments");
        let redacted = call("a", "put", json!({"path": "/x", "token": REDACTED}));
        let other = call("a", "other", json!({"token": REDACTED}));
        let lines = [cut, pruned, redacted, other];
        let report = replay("", BY_PATH, &lines);
        assert_eq!(report["total"]["undecidable"], 3, "{report}");
        assert_eq!(
            report["undecidable_because"],
            json!({"arguments cut": 1, "arguments pruned": 1, "arguments redacted": 1})
        );
        let session = r#"forbid(principal, action == Action::"write", resource)
            when { context.session.calls > 1 };"#;
        let report = replay("", session, &[call("a", "put", json!({}))]);
        assert_eq!(report["undecidable_because"], json!({"session not known": 1}));
        let capability = r#"forbid(principal, action == Action::"write", resource)
            when { context.capability.open_world };"#;
        let report = replay("", capability, &[call("a", "put", json!({}))]);
        assert_eq!(report["undecidable_because"], json!({"tool is gone": 1}));
    }
}
