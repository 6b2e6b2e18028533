//! What is another about a tool that its server lists anew: each member, with both values. Pure.
//!
//! A server may say at first that a tool destroys, and no longer say so once it is trusted. What
//! its hints said, and what the gate makes of them, is therefore told apart from the rest. Who is
//! told, and how, is not decided here.

use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::tool::{Annotations, Capability, Tool};

/// Bytes that are kept of a value.
const MAX_VALUE_BYTES: usize = 512;

/// What is another about one tool.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The tool's name at its server.
    pub tool: Arc<str>,
    /// Each member that is another: its name, the value before, the value now. Long texts are cut.
    pub members: Vec<(&'static str, Value, Value)>,
    /// The number of the first members that are hints, or what the gate makes of them.
    trusted: usize,
}

impl Difference {
    /// What differs between a tool and what its server now says of it.
    #[must_use]
    pub fn between(before: &Tool, now: &Tool) -> Self {
        let mut members: Vec<_> = hints(before.annotations)
            .into_iter()
            .zip(hints(now.annotations))
            .chain(facts(before.capability).into_iter().zip(facts(now.capability)))
            .map(|((name, old), (_, new))| (name, old, new))
            .filter(|(_, old, new)| old != new)
            .collect();
        let trusted = members.len();
        let raw = |raw: &Option<Box<RawValue>>| raw.as_deref().map(|raw| raw.get().to_owned());
        let texts = [
            (
                "title",
                before.title.as_deref().map(str::to_owned),
                now.title.as_deref().map(str::to_owned),
            ),
            (
                "description",
                Some(before.description.to_string()),
                Some(now.description.to_string()),
            ),
            (
                "inputSchema",
                Some(before.input_schema.get().to_owned()),
                Some(now.input_schema.get().to_owned()),
            ),
            ("outputSchema", raw(&before.output_schema), raw(&now.output_schema)),
            ("annotations", raw(&before.annotations_raw), raw(&now.annotations_raw)),
        ];
        let texts = texts.into_iter().filter(|(_, old, new)| old != new);
        members.extend(texts.map(|(name, old, new)| {
            let (old, new) = cut(old.as_deref(), new.as_deref());
            (name, old, new)
        }));
        Self { tool: Arc::clone(&now.name.tool), members, trusted }
    }

    /// The hints that were changed, and what the gate makes of them, in one line; `None` if what
    /// is relied on is as it was.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        let trusted = self.members.get(..self.trusted).filter(|members| !members.is_empty())?;
        let mut line = "its server changed what it says of this tool: ".to_owned();
        for (at, (name, old, new)) in trusted.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            let said = |value: &Value| match value {
                Value::Null => "absent".to_owned(),
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            let _ = write!(line, "{comma}{name} from {} to {}", said(old), said(new));
        }
        Some(line)
    }

    /// The members for a record: `[{"member":…,"old":…,"new":…}]`.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let member = |(name, old, new): &(&str, Value, Value)| json!({ "member": name, "old": old, "new": new });
        self.members.iter().map(member).collect()
    }
}

fn hints(annotations: Annotations) -> [(&'static str, Value); 4] {
    [
        ("destructiveHint", annotations.destructive_hint.into()),
        ("readOnlyHint", annotations.read_only_hint.into()),
        ("idempotentHint", annotations.idempotent_hint.into()),
        ("openWorldHint", annotations.open_world_hint.into()),
    ]
}

fn facts(capability: Capability) -> [(&'static str, Value); 4] {
    let word = |value: serde_json::Result<Value>| value.unwrap_or_default();
    [
        ("side_effect", word(serde_json::to_value(capability.side_effect))),
        ("parallel_safe", capability.parallel_safe.into()),
        ("approval", word(serde_json::to_value(capability.approval))),
        ("idempotent", capability.idempotent.into()),
    ]
}

/// As much of two texts as is kept: of long ones, from a little before where they part.
fn cut(old: Option<&str>, new: Option<&str>) -> (Value, Value) {
    const BEFORE: usize = 32;
    let (a, b) = (old.unwrap_or_default(), new.unwrap_or_default());
    let same = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    let long = a.len().max(b.len()) > MAX_VALUE_BYTES;
    let from = if long { same.saturating_sub(BEFORE) } else { 0 };
    let kept = |text: &str| {
        let from = text.floor_char_boundary(from);
        let to = text.floor_char_boundary(from + MAX_VALUE_BYTES);
        let (head, tail) =
            (if from > 0 { "…" } else { "" }, if to < text.len() { "…" } else { "" });
        format!("{head}{}{tail}", text.get(from..to).unwrap_or_default())
    };
    (old.map(kept).into(), new.map(kept).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_where_they_part() {
        let same = "é".repeat(2000);
        let (old, new) = cut(Some(&format!("{same}safe")), Some(&format!("{same}evil")));
        let (old, new) = (old.as_str().unwrap(), new.as_str().unwrap());
        assert!(old.ends_with("safe") && new.ends_with("evil"), "{old} {new}");
        assert!(old.starts_with('…') && old.len() < MAX_VALUE_BYTES);
        let (old, new) = cut(Some(""), Some(&same));
        assert_eq!(old, "");
        assert!(new.as_str().unwrap().len() <= MAX_VALUE_BYTES + '…'.len_utf8());
        assert_eq!(cut(None, Some("x")), (Value::Null, "x".into()));
    }
}
