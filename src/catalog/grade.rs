//! Grades of definition changes, which depend on meaning rather than on spelling, and config section `catalog`, which
//! sets the action for each grade. Pure.
//!
//! | grade | when |
//! |---|---|
//! | same | only order and white space changed |
//! | text | text only: titles, descriptions, examples, icons, `_meta`, texts inside of schemas |
//! | narrowed | the input schema accepts a subset and has no new parameter; the output schema promises more; a hint is more cautious |
//! | widened | otherwise: the input schema accepts more or has a new parameter; the output schema promises less; an unknown keyword changed |
//! | loosened | a hint is less cautious; or the definition cannot be compared, so that this cannot be ruled out |
//!
//! Input and output schemas are compared in the same direction: *narrowed* means that every document the new schema
//! accepts was accepted by the old one ([`schemas`]). An input schema with a new parameter nevertheless counts as
//! widened: the old schema may have formally accepted the parameter, but did not ask for it.

pub mod schemas;

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use self::schemas::Relation;
use super::definition::ToolDefinition;

/// Change of one part of a definition.
#[derive(Clone, Debug, PartialEq)]
pub struct PartChange {
    /// The member: `description`, `inputSchema`, …
    pub part: &'static str,
    pub grade: Grade,
    /// Loosened hints, one phrase each; empty for other parts.
    pub why: Vec<String>,
}

/// Changed parts between two definitions of a tool; `None` stands for a definition that cannot be compared. Equivalent
/// parts are omitted.
pub(crate) fn compare(
    old: Option<&ToolDefinition>,
    new: Option<&ToolDefinition>,
) -> Vec<PartChange> {
    let (Some(old), Some(new)) = (old, new) else {
        let why = vec!["it cannot be compared with the one before".to_owned()];
        return vec![PartChange { part: "definition", grade: Grade::Loosened, why }];
    };
    let mut parts = Vec::new();
    let mut add = |part, grade, why| {
        if grade > Grade::Same {
            parts.push(PartChange { part, grade, why });
        }
    };
    let text = |differs: bool| if differs { Grade::Text } else { Grade::Same };
    add("title", text(old.title != new.title), Vec::new());
    add("description", text(old.description != new.description), Vec::new());
    add("inputSchema", input(&old.input, &new.input), Vec::new());
    add("outputSchema", output(old.output.as_ref(), new.output.as_ref()), Vec::new());
    let (grade, why) = compare_hints(&old.annotations, &new.annotations);
    add("annotations", grade, why);
    add("others", text(old.others != new.others), Vec::new());
    parts
}

/// Highest grade of all parts.
pub(crate) fn highest(parts: &[PartChange]) -> Grade {
    parts.iter().map(|part| part.grade).max().unwrap_or(Grade::Same)
}

fn input(old: &Value, new: &Value) -> Grade {
    match schemas::names_a_new_parameter(old, new) {
        true => Grade::Widened,
        false => schema(old, new),
    }
}

/// An absent schema accepts everything.
fn output(old: Option<&Value>, new: Option<&Value>) -> Grade {
    match (old, new) {
        (None, None) => Grade::Same,
        (None, Some(_)) => Grade::Narrowed,
        (Some(_), None) => Grade::Widened,
        (Some(old), Some(new)) => schema(old, new),
    }
}

fn schema(old: &Value, new: &Value) -> Grade {
    match schemas::compare(old, new) {
        Relation::Equal if old == new => Grade::Same,
        Relation::Equal => Grade::Text,
        Relation::Narrower => Grade::Narrowed,
        Relation::Wider => Grade::Widened,
    }
}

/// Grade of a change, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Grade {
    /// Equivalent definitions.
    Same,
    /// Only text for people and models changed.
    Text,
    /// Accepts less, or promises more.
    Narrowed,
    /// Accepts more or promises less, or the effect is unknown.
    Widened,
    /// A hint on which clients may rely is withdrawn.
    Loosened,
}

impl Grade {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Text => "text",
            Self::Narrowed => "narrowed",
            Self::Widened => "widened",
            Self::Loosened => "loosened",
        }
    }
}

impl fmt::Display for Grade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Action for a new or changed definition, in order of increasing caution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChangeAction {
    /// Accepted; noted in the record of the set.
    Accept,
    /// Accepted with a recorded warning.
    #[default]
    Warn,
    /// Neither shown nor callable until an operator approves it.
    Quarantine,
}

impl ChangeAction {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Accept => "accept",
            Self::Warn => "warn",
            Self::Quarantine => "quarantine",
        }
    }
}

/// Action for each [`Grade`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ChangeActions {
    pub text: ChangeAction,
    /// Accepts less, or promises more.
    pub narrowed: ChangeAction,
    /// Accepts more, or promises less; also a new tool of a known server.
    pub widened: ChangeAction,
    /// A hint is withdrawn.
    pub loosened: ChangeAction,
}

impl Default for ChangeActions {
    fn default() -> Self {
        Self {
            text: ChangeAction::Warn,
            narrowed: ChangeAction::Warn,
            widened: ChangeAction::Warn,
            loosened: ChangeAction::Quarantine,
        }
    }
}

impl ChangeActions {
    pub(crate) fn of(&self, grade: Grade) -> ChangeAction {
        match grade {
            Grade::Same => ChangeAction::Accept,
            Grade::Text => self.text,
            Grade::Narrowed => self.narrowed,
            Grade::Widened => self.widened,
            Grade::Loosened => self.loosened,
        }
    }
}

/// Action for scan findings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScanMode {
    Off,
    #[default]
    Warn,
    /// Reported, and tools with a medium or high finding are quarantined.
    Quarantine,
}

/// Config section `catalog`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ReviewSettings {
    /// Actions for a definition that differs from the pinned one.
    pub on_change: ChangeActions,
    /// Action for the tools of a new server.
    pub on_new_server: ChangeAction,
    pub scan: ScanMode,
}

impl Default for ReviewSettings {
    fn default() -> Self {
        Self {
            on_change: ChangeActions::default(),
            on_new_server: ChangeAction::Accept,
            scan: ScanMode::default(),
        }
    }
}

impl ReviewSettings {
    /// Whether these settings can quarantine a tool. If so, a tool whose earlier state is lost is quarantined again.
    pub(crate) fn quarantines(&self) -> bool {
        let ChangeActions { text, narrowed, widened, loosened } = self.on_change;
        let actions = [text, narrowed, widened, loosened, self.on_new_server];
        self.scan == ScanMode::Quarantine || actions.contains(&ChangeAction::Quarantine)
    }
}

/// Hints, with the caution of the values `[true, absent, false]`; greater is more cautious. An absent hint ranks
/// between the values if readers disagree about it: the protocol's default for an absent `destructiveHint` or
/// `openWorldHint` is true, this proxy's default is false.
const HINTS: [(&str, [u8; 3]); 4] = [
    ("destructiveHint", [2, 1, 0]),
    ("openWorldHint", [2, 1, 0]),
    ("readOnlyHint", [0, 1, 1]),
    ("idempotentHint", [0, 1, 1]),
];

/// Member that contains only text.
const TITLE: &str = "title";

/// Grade of a change of annotations, and the loosened hints, one phrase each. Changed unknown members count as widened.
pub(crate) fn compare_hints(
    old: &Map<String, Value>,
    new: &Map<String, Value>,
) -> (Grade, Vec<String>) {
    let mut grade = Grade::Same;
    let mut why = Vec::new();
    for (name, care) in HINTS {
        let (before, now) = (old.get(name), new.get(name));
        let (Some(was), Some(is)) = (caution(before, care), caution(now, care)) else {
            // The annotations were rejected at discovery, so their values are unknown.
            grade = grade.max(if before == now { Grade::Same } else { Grade::Loosened });
            continue;
        };
        if is < was {
            why.push(format!("{name} from {} to {}", shown(before), shown(now)));
            grade = Grade::Loosened;
        } else if is > was {
            grade = grade.max(Grade::Narrowed);
        } else if before != now {
            grade = grade.max(Grade::Text);
        }
    }
    if old.get(TITLE) != new.get(TITLE) {
        grade = grade.max(Grade::Text);
    }
    let known = |name: &str| name == TITLE || HINTS.iter().any(|(hint, _)| *hint == name);
    let others = old.keys().chain(new.keys()).filter(|name| !known(name));
    if others.into_iter().any(|name| old.get(name) != new.get(name)) {
        grade = grade.max(Grade::Widened);
    }
    (grade, why)
}

fn caution(value: Option<&Value>, [yes, absent, no]: [u8; 3]) -> Option<u8> {
    match value {
        Some(Value::Bool(true)) => Some(yes),
        Some(Value::Bool(false)) => Some(no),
        None | Some(Value::Null) => Some(absent),
        Some(Value::Number(_) | Value::String(_) | Value::Array(_) | Value::Object(_)) => None,
    }
}

fn shown(value: Option<&Value>) -> &'static str {
    match value {
        Some(Value::Bool(true)) => "true",
        Some(Value::Bool(false)) => "false",
        Some(_) | None => "absent",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grade(old: &str, new: &str) -> Grade {
        let definition = |more: &str| ToolDefinition::parse(&format!(r#"{{"name":"t"{more}}}"#));
        highest(&compare(definition(old).as_ref(), definition(new).as_ref()))
    }

    #[test]
    fn change_is_graded_by_meaning() {
        const IN: &str = r#","inputSchema":{"type":"object","properties":{"a":{"type":"string"}}}"#;
        for (old, new, expected) in [
            (IN, IN, Grade::Same),
            (
                IN,
                r#", "inputSchema" : {"properties":{"a":{"type":"string"}},"type":"object"}"#,
                Grade::Same,
            ),
            (r#","inputSchema":{}"#, r#","inputSchema":{},"description":"x""#, Grade::Text),
            (r#","inputSchema":{}"#, r#","inputSchema":{},"title":"x""#, Grade::Text),
            (r#","inputSchema":{}"#, r#","inputSchema":{},"_meta":{"v":1}"#, Grade::Text),
            (r#","inputSchema":{}"#, r#","inputSchema":{"description":"x"}"#, Grade::Text),
            (r#","inputSchema":{}"#, r#","inputSchema":{"required":["a"]}"#, Grade::Narrowed),
            (r#","inputSchema":{"required":["a"]}"#, r#","inputSchema":{}"#, Grade::Widened),
            // The schema is formally narrower, but has a new parameter.
            (
                r#","inputSchema":{}"#,
                r#","inputSchema":{"properties":{"notes":{"type":"string"}}}"#,
                Grade::Widened,
            ),
            (
                IN,
                r#","inputSchema":{"type":"object","properties":{"a":{"type":"string","properties":{"b":{}}}}}"#,
                Grade::Widened,
            ),
            (
                r#","inputSchema":{}"#,
                r#","inputSchema":{},"outputSchema":{"type":"object"}"#,
                Grade::Narrowed,
            ),
            (
                r#","inputSchema":{},"outputSchema":{"type":"object"}"#,
                r#","inputSchema":{}"#,
                Grade::Widened,
            ),
            (
                r#","inputSchema":{},"outputSchema":{}"#,
                r#","inputSchema":{},"outputSchema":{"properties":{"a":{"type":"string"}}}"#,
                Grade::Narrowed,
            ),
            (
                r#","inputSchema":{},"annotations":{"destructiveHint":true}"#,
                r#","inputSchema":{},"annotations":{}"#,
                Grade::Loosened,
            ),
            (
                r#","inputSchema":{},"annotations":{"destructiveHint":true}"#,
                r#","inputSchema":{},"annotations":{"destructiveHint":true,"title":"x"}"#,
                Grade::Text,
            ),
            // The definition is ambiguous because of a duplicate key.
            (
                r#","inputSchema":{"type":"string"}"#,
                r#","inputSchema":{"type":"string","type":"string"}"#,
                Grade::Loosened,
            ),
        ] {
            assert_eq!(grade(old, new), expected, "{old} -> {new}");
        }
    }

    #[test]
    fn highest_grade_of_several_changes_counts() {
        let (old, new) = (
            r#","inputSchema":{},"annotations":{"destructiveHint":true}"#,
            r#","inputSchema":{"required":["a"]},"description":"x","annotations":{"destructiveHint":false}"#,
        );
        assert_eq!(grade(old, new), Grade::Loosened);
        assert!(Grade::Loosened > Grade::Widened && Grade::Widened > Grade::Narrowed);
    }
}

#[cfg(test)]
mod hints_tests {
    use super::*;

    #[test]
    fn every_change_of_a_hint_has_its_grade() {
        let map = |json: &str| serde_json::from_str::<Map<String, Value>>(json).unwrap();
        let hint = |name: &str, value: &str| match value {
            "absent" => "{}".to_owned(),
            value => format!(r#"{{"{name}":{value}}}"#),
        };
        use Grade::{Loosened, Narrowed, Text};
        for (names, steps) in [
            (
                ["destructiveHint", "openWorldHint"],
                [
                    ("true", "absent", Loosened),
                    ("true", "false", Loosened),
                    ("absent", "false", Loosened),
                    ("absent", "true", Narrowed),
                    ("false", "absent", Narrowed),
                    ("false", "true", Narrowed),
                ],
            ),
            (
                ["readOnlyHint", "idempotentHint"],
                [
                    ("absent", "true", Loosened),
                    ("false", "true", Loosened),
                    ("true", "absent", Narrowed),
                    ("true", "false", Narrowed),
                    ("absent", "false", Text),
                    ("false", "absent", Text),
                ],
            ),
        ] {
            for name in names {
                for (old, new, expected) in steps {
                    let (grade, why) =
                        compare_hints(&map(&hint(name, old)), &map(&hint(name, new)));
                    assert_eq!(grade, expected, "{name} {old} -> {new}");
                    let message = format!("{name} from {old} to {new}");
                    let message = if expected == Loosened { vec![message] } else { Vec::new() };
                    assert_eq!(why, message);
                }
            }
        }
    }

    #[test]
    fn unknown_annotation_has_grade_widened_and_title_has_grade_text() {
        let grade = |old: &str, new: &str| {
            let map = |json: &str| serde_json::from_str::<Map<String, Value>>(json).unwrap();
            compare_hints(&map(old), &map(new)).0
        };
        assert_eq!(grade("{}", r#"{"title":"x"}"#), Grade::Text);
        assert_eq!(grade("{}", r#"{"sensitiveHint":true}"#), Grade::Widened);
        assert_eq!(grade(r#"{"sensitiveHint":true}"#, "{}"), Grade::Widened);
        assert_eq!(grade("{}", r#"{"readOnlyHint":null}"#), Grade::Text);
        assert_eq!(grade("{}", r#"{"readOnlyHint":"yes"}"#), Grade::Loosened);
        assert_eq!(
            grade(r#"{"x":1,"readOnlyHint":true}"#, r#"{"readOnlyHint":true,"x":1}"#),
            Grade::Same
        );
    }
}
