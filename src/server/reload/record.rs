//! Activity records of reloads, and config problems as shown by REST. Neither contains potential secrets.

use serde_json::{Value, json};

use mcpproxy_activity::record::{Draft, MAX_METADATA_BYTES, Raw, Source, Status, Text, Type};
use mcpproxy_admin::api::config_handle::{
    ConfigComparison, ReloadRefused, ReloadTrigger, Reloaded, ShownProblem,
};
use mcpproxy_config::Config;
use mcpproxy_config::difference::ConfigDifference;
use mcpproxy_config::problem::{Problem, Severity};
use mcpproxy_config::rule_files;
use mcpproxy_config::rule_files::RULE_FILES;
use mcpproxy_config::written::ChangedKey;
use mcpproxy_policy::rules::RuleProblem;

/// Maximum size of the description of changed values in a record, in bytes.
const MAX_CHANGES_BYTES: usize = MAX_METADATA_BYTES / 2;
/// Maximum number of changes in a comparison.
const MAX_COMPARED: usize = 200;
/// Maximum size of each list of keys in a record, in bytes.
const MAX_KEYS_BYTES: usize = MAX_METADATA_BYTES / 8;

/// The record of an applied config.
pub(super) fn applied(
    trigger: ReloadTrigger,
    principal: &str,
    changes: &[ChangedKey],
    reloaded: &Reloaded,
) -> Draft {
    let (changes, left_out) = bounded(changes.iter().map(ChangedKey::shown), MAX_CHANGES_BYTES);
    let keys = |keys: &[String]| bounded(keys.iter().map(|key| json!(key)), MAX_KEYS_BYTES).0;
    let metadata = json!({
        "section": "config",
        "door": trigger.as_str(),
        "changes": changes,
        "changes_left_out": left_out,
        "applied": keys(&reloaded.applied),
        "needs_restart": keys(&reloaded.needs_restart),
    });
    draft(Status::Success, trigger, principal, "", &metadata)
}

/// The record of a rejected config.
pub(super) fn rejected(trigger: ReloadTrigger, principal: &str, refused: &ReloadRefused) -> Draft {
    let metadata = json!({
        "section": "config",
        "door": trigger.as_str(),
        "problems": refused.problems.len(),
    });
    draft(Status::Rejected, trigger, principal, &refused.cause(), &metadata)
}

/// Compares `next` with the config in force.
pub(super) fn compared(now: &Config, next: &Config, warnings: &[Problem]) -> ConfigComparison {
    let changes = now.written.changes(&next.written);
    let difference = ConfigDifference::between(now, next);
    ConfigComparison {
        left_out: changes.len().saturating_sub(MAX_COMPARED),
        changes: changes.iter().take(MAX_COMPARED).map(ChangedKey::shown).collect(),
        applied: difference.applied,
        needs_restart: difference.needs_restart,
        problems: warnings.iter().map(shown).collect(),
    }
}

fn draft(
    status: Status,
    trigger: ReloadTrigger,
    principal: &str,
    error: &str,
    metadata: &Value,
) -> Draft {
    let source = match trigger {
        ReloadTrigger::Api => Source::Api,
        ReloadTrigger::File | ReloadTrigger::Signal | ReloadTrigger::Fleet => Source::Internal,
    };
    let mut draft = Draft::new(Type::ConfigChange, source, status);
    draft.set(Text::Principal, principal);
    draft.set(Text::Error, error);
    draft.keep(Raw::Metadata, metadata.to_string().as_bytes(), MAX_METADATA_BYTES);
    draft
}

/// Returns the first `values` that fit into `left` bytes, and the number of omitted ones.
fn bounded(values: impl Iterator<Item = Value>, mut left: usize) -> (Vec<Value>, usize) {
    let (mut kept, mut left_out) = (Vec::new(), 0);
    for value in values {
        match left.checked_sub(value.to_string().len() + 1) {
            Some(rest) if left_out == 0 => {
                left = rest;
                kept.push(value);
            }
            Some(_) | None => left_out += 1,
        }
    }
    (kept, left_out)
}

pub(super) fn shown(problem: &Problem) -> ShownProblem {
    ShownProblem {
        severity: match problem.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        },
        key: problem.key.clone(),
        problem: problem.text.clone(),
        file: problem.file.as_ref().map(|file| file.display().to_string()),
        line: problem.place.map(|place| place.line),
        column: problem.place.map(|place| place.column),
    }
}

pub(super) fn wrong_rules(problems: &[RuleProblem]) -> ReloadRefused {
    let mut problems: Vec<_> = problems.iter().map(shown_rule).collect();
    // Errors are listed first.
    problems.sort_by_key(|problem| problem.severity != "error");
    ReloadRefused { problems }
}

/// Whether all problems are in rules files.
pub(super) fn is_of_rules(refused: &ReloadRefused) -> bool {
    refused.problems.iter().all(|problem| problem.key == RULE_FILES)
}

pub(super) fn shown_rule(problem: &RuleProblem) -> ShownProblem {
    shown(&rule_files::problem(problem))
}

/// A rejection with a single problem that concerns the whole file.
pub(super) fn whole(problem: impl Into<String>) -> ReloadRefused {
    let problem = ShownProblem {
        severity: "error",
        key: String::new(),
        problem: problem.into(),
        file: None,
        line: None,
        column: None,
    };
    ReloadRefused { problems: vec![problem] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcpproxy_config::{Flags, parse};

    #[test]
    fn bounded_list_counts_values_that_do_not_fit() {
        let values = |count: usize| (0..count).map(|at| json!(format!("value {at}")));
        assert_eq!(bounded(values(3), 1000).1, 0);
        let (kept, left_out) = bounded(values(1000), 100);
        assert!(!kept.is_empty() && kept.len() + left_out == 1000);
        assert!(json!(kept).to_string().len() <= 102);
    }

    #[test]
    fn cause_is_the_first_error_with_its_location_and_the_number_of_others() {
        let flags = Flags { data_dir: Some("/d".into()), ..Flags::default() };
        let text = "{\"unknown\": 1,\n\"tools_limit\": 0, \"listen\": 7}";
        let problems = parse(text, &|_| None, &flags).unwrap_err();
        let refused = ReloadRefused { problems: problems.iter().map(shown).collect() };
        let cause = refused.cause();
        assert!(cause.starts_with("line 2 column 16: tools_limit: must be"), "{cause}");
        assert!(cause.ends_with("(and 1 more)"), "{cause}");
    }
}
