//! How grave a change of a tool's definition is, by what it means and not by how it is written. Pure.
//!
//! | grade | when |
//! |---|---|
//! | same | nothing but order and white space is another |
//! | text | words alone: titles, descriptions, examples, icons, `_meta`, texts inside of schemas |
//! | narrowed | the input schema accepts nothing that it did not accept before, and no parameter is new; the output schema promises more; a hint is more careful |
//! | widened | all else: the input schema accepts more, or names a parameter that is new; the output schema promises less; a keyword that is not known is another |
//! | loosened | a hint asks for less care than before ([`hints`]); or the definition cannot be compared at all, so that this cannot be ruled out |
//!
//! Input and output schemas are compared in the same direction: *narrowed* says that each document which the new
//! schema accepts was accepted by the old one ([`schemas`]). An input schema that names a new parameter is widened all
//! the same: formally such a parameter may have been accepted, but nobody was asked for it. What is done about a grade
//! is not decided here.

use serde_json::Value;

use self::schemas::Relation;
use super::definition::ToolDefinition;

pub mod hints;
mod kind;
pub mod schemas;

pub use kind::Grade;

/// The change of one part of a definition.
#[derive(Clone, Debug, PartialEq)]
pub struct PartChange {
    /// The member: `description`, `inputSchema`, …
    pub part: &'static str,
    /// How grave it is.
    pub grade: Grade,
    /// The hints that are looser, one phrase each; empty for other parts.
    pub why: Vec<String>,
}

/// What is another between two definitions of one tool, part by part. Parts that mean the same are left out. `None` is a
/// definition that cannot be compared.
#[must_use]
pub fn compare(old: Option<&ToolDefinition>, new: Option<&ToolDefinition>) -> Vec<PartChange> {
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
    let (grade, why) = hints::compare(&old.annotations, &new.annotations);
    add("annotations", grade, why);
    add("others", text(old.others != new.others), Vec::new());
    parts
}

/// The grade of the whole: that of its gravest part.
#[must_use]
pub fn gravest(parts: &[PartChange]) -> Grade {
    parts.iter().map(|part| part.grade).max().unwrap_or(Grade::Same)
}

fn input(old: &Value, new: &Value) -> Grade {
    match schemas::names_a_new_parameter(old, new) {
        true => Grade::Widened,
        false => schema(old, new),
    }
}

/// None declared: everything is accepted.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn grade(old: &str, new: &str) -> Grade {
        let definition = |more: &str| ToolDefinition::parse(&format!(r#"{{"name":"t"{more}}}"#));
        gravest(&compare(definition(old).as_ref(), definition(new).as_ref()))
    }

    #[test]
    fn a_change_is_graded_by_what_it_means() {
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
            // Formally narrower: but a parameter that nobody knew is asked for.
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
            // Two readings of one name: nothing is sure.
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
    fn the_gravest_part_counts() {
        let (old, new) = (
            r#","inputSchema":{},"annotations":{"destructiveHint":true}"#,
            r#","inputSchema":{"required":["a"]},"description":"x","annotations":{"destructiveHint":false}"#,
        );
        assert_eq!(grade(old, new), Grade::Loosened);
        assert!(Grade::Loosened > Grade::Widened && Grade::Widened > Grade::Narrowed);
    }
}
