//! Whether the annotations of a tool ask for less care than before. Pure.
//!
//! A hint that is absent stands between its two values where it may mean either: readers that follow the protocol take
//! an absent `destructiveHint` or `openWorldHint` for true, our gate takes the first for false. What anybody may take
//! for looser is looser:
//!
//! | hint | from most careful to least |
//! |---|---|
//! | `destructiveHint`, `openWorldHint` | true, absent, false |
//! | `readOnlyHint`, `idempotentHint` | false and absent, true |
//!
//! A member of the annotations that is not known here is `widened` where it is another: it may mean something to others.

use serde_json::{Map, Value};

use super::kind::Grade;

/// A hint, and how careful its values are: those of `[true, absent, false]`, more is more careful.
const HINTS: [(&str, [u8; 3]); 4] = [
    ("destructiveHint", [2, 1, 0]),
    ("openWorldHint", [2, 1, 0]),
    ("readOnlyHint", [0, 1, 1]),
    ("idempotentHint", [0, 1, 1]),
];

/// The member that is words alone.
const TITLE: &str = "title";

/// The grade of a change of the annotations, and what is looser, one phrase each.
#[must_use]
pub fn compare(old: &Map<String, Value>, new: &Map<String, Value>) -> (Grade, Vec<String>) {
    let mut grade = Grade::Same;
    let mut why = Vec::new();
    for (name, care) in HINTS {
        let (before, now) = (old.get(name), new.get(name));
        let (Some(was), Some(is)) = (careful(before, care), careful(now, care)) else {
            // They were refused at discovery; whatever they are, they are not known.
            grade = grade.max(if before == now { Grade::Same } else { Grade::Loosened });
            continue;
        };
        if is < was {
            why.push(format!("{name} from {} to {}", said(before), said(now)));
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

fn careful(value: Option<&Value>, [yes, absent, no]: [u8; 3]) -> Option<u8> {
    match value {
        Some(Value::Bool(true)) => Some(yes),
        Some(Value::Bool(false)) => Some(no),
        None | Some(Value::Null) => Some(absent),
        Some(Value::Number(_) | Value::String(_) | Value::Array(_) | Value::Object(_)) => None,
    }
}

fn said(value: Option<&Value>) -> &'static str {
    match value {
        Some(Value::Bool(true)) => "true",
        Some(Value::Bool(false)) => "false",
        Some(_) | None => "absent",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_of_every_hint_has_its_grade() {
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
                    let (grade, why) = compare(&map(&hint(name, old)), &map(&hint(name, new)));
                    assert_eq!(grade, expected, "{name} {old} -> {new}");
                    let told = format!("{name} from {old} to {new}");
                    let told = if expected == Loosened { vec![told] } else { Vec::new() };
                    assert_eq!(why, told);
                }
            }
        }
    }

    #[test]
    fn what_is_not_known_is_widened_and_a_title_is_text() {
        let grade = |old: &str, new: &str| {
            let map = |json: &str| serde_json::from_str::<Map<String, Value>>(json).unwrap();
            compare(&map(old), &map(new)).0
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
