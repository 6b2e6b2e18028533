//! What is told of a reload: the record, and the problems as they are shown.
//!
//! Neither holds a value that may be a secret.

use serde_json::{Value, json};

use crate::activity::record::{Draft, MAX_METADATA_BYTES, Raw, Source, Status, Text, Type};
use crate::api::config_door::{
    ConfigComparison, ReloadDoor, ReloadRefused, Reloaded, ShownProblem,
};
use crate::config::Config;
use crate::config::difference::ConfigDifference;
use crate::config::problem::{Problem, Severity};
use crate::config::rule_files::RULE_FILES;
use crate::config::written::ChangedKey;
use crate::policy::rules::RuleProblem;

/// Bytes of a record that tell which values are another.
const MAX_CHANGES_BYTES: usize = MAX_METADATA_BYTES / 2;
/// Most values that a comparison shows.
const MAX_COMPARED: usize = 200;
/// Bytes of a record for each list of keys.
const MAX_KEYS_BYTES: usize = MAX_METADATA_BYTES / 8;

/// The record of a config that was taken over.
pub(super) fn applied(
    door: ReloadDoor,
    principal: &str,
    changes: &[ChangedKey],
    reloaded: &Reloaded,
) -> Draft {
    let (changes, left_out) = bounded(changes.iter().map(ChangedKey::shown), MAX_CHANGES_BYTES);
    let keys = |keys: &[String]| bounded(keys.iter().map(|key| json!(key)), MAX_KEYS_BYTES).0;
    let metadata = json!({
        "section": "config",
        "door": door.as_str(),
        "changes": changes,
        "changes_left_out": left_out,
        "applied": keys(&reloaded.applied),
        "needs_restart": keys(&reloaded.needs_restart),
    });
    draft(Status::Success, door, principal, "", &metadata)
}

/// The record of a config that was not.
pub(super) fn rejected(door: ReloadDoor, principal: &str, refused: &ReloadRefused) -> Draft {
    let metadata = json!({
        "section": "config",
        "door": door.as_str(),
        "problems": refused.problems.len(),
    });
    draft(Status::Rejected, door, principal, &refused.cause(), &metadata)
}

/// What `next`, as the file says it, changes of `now`.
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
    door: ReloadDoor,
    principal: &str,
    error: &str,
    metadata: &Value,
) -> Draft {
    let source = match door {
        ReloadDoor::Api => Source::Api,
        ReloadDoor::File | ReloadDoor::Signal | ReloadDoor::Fleet => Source::Internal,
    };
    let mut draft = Draft::new(Type::ConfigChange, source, status);
    draft.set(Text::Principal, principal);
    draft.set(Text::Error, error);
    draft.keep(Raw::Metadata, metadata.to_string().as_bytes(), MAX_METADATA_BYTES);
    draft
}

/// The first of `values`, as far as there is room, and for how many there is none.
fn bounded(values: impl Iterator<Item = Value>, mut room: usize) -> (Vec<Value>, usize) {
    let (mut kept, mut left_out) = (Vec::new(), 0);
    for value in values {
        match room.checked_sub(value.to_string().len() + 1) {
            Some(left) if left_out == 0 => {
                room = left;
                kept.push(value);
            }
            Some(_) | None => left_out += 1,
        }
    }
    (kept, left_out)
}

/// A problem of the config as it is shown.
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

/// What is wrong with files of rules.
pub(super) fn wrong_rules(problems: &[RuleProblem]) -> ReloadRefused {
    ReloadRefused { problems: problems.iter().map(shown_rule).collect() }
}

/// Whether all that is wrong is wrong with files of rules.
pub(super) fn is_of_rules(refused: &ReloadRefused) -> bool {
    refused.problems.iter().all(|problem| problem.key == RULE_FILES)
}

/// A problem of a file of rules.
fn shown_rule(problem: &RuleProblem) -> ShownProblem {
    let place = |at: usize| (problem.line > 0).then_some(at);
    ShownProblem {
        severity: "error",
        key: RULE_FILES.to_owned(),
        problem: problem.text.clone(),
        file: Some(problem.file.to_string()),
        line: place(problem.line),
        column: place(problem.column),
    }
}

/// Something that is wrong with the file as a whole.
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
    use crate::config::{Flags, parse};

    #[test]
    fn a_long_list_of_changes_has_room_and_the_rest_is_counted() {
        let values = |count: usize| (0..count).map(|at| json!(format!("value {at}")));
        assert_eq!(bounded(values(3), 1000).1, 0);
        let (kept, left_out) = bounded(values(1000), 100);
        assert!(!kept.is_empty() && kept.len() + left_out == 1000);
        assert!(json!(kept).to_string().len() <= 102);
    }

    #[test]
    fn the_cause_is_the_first_error_with_its_place_and_the_number_of_the_others() {
        let flags = Flags { data_dir: Some("/d".into()), ..Flags::default() };
        let text = "{\"unknown\": 1,\n\"tools_limit\": 0, \"listen\": 7}";
        let problems = parse(text, &|_| None, &flags).unwrap_err();
        let refused = ReloadRefused { problems: problems.iter().map(shown).collect() };
        let cause = refused.cause();
        assert!(cause.starts_with("line 2 column 16: tools_limit: must be"), "{cause}");
        assert!(cause.ends_with("(and 1 more)"), "{cause}");
    }
}
