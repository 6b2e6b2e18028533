//! Changes of tool definitions: the result of replacing a server's tool set, which is logged and recorded, and the
//! bounded diff against the accepted definition, which operators review. Pure.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::definition::ToolDefinition;
use super::grade::{self, ChangeAction, Grade};
use super::listing::ListNote;
use super::listing::Listed;
use super::pins::{PinEvent, compared};
use super::scan::ScanFinding;
use super::snapshot::Reviewed;
use mcpproxy_policy::tool::{Annotations, Capability, Tool, ToolName, Trust};

/// Result of replacing a server's tool set, which is logged and recorded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Change {
    /// Names of new tools.
    pub added: Vec<Arc<str>>,
    /// Names of removed tools.
    pub removed: Vec<Arc<str>>,
    /// Names of tools whose definition changed.
    pub changed: Vec<Arc<str>>,
    /// Differences of the changed tools.
    pub differences: Vec<Difference>,
    /// New or changed output schemas that are unusable, with the reason (FR-A9).
    pub unusable: Vec<(ToolName, Arc<str>)>,
    /// Notes on the listings of new and changed tools.
    pub noted: Vec<ListNote>,
    /// Tools listed under a name that is already taken. The first tool of a name is kept.
    pub duplicates: Vec<Box<str>>,
    /// Error that occurred while the stored set was written or read.
    pub disk: Option<String>,
    /// Pin events by tool name.
    pub pinned: Vec<(Arc<str>, PinEvent)>,
    /// New scan findings, of any server's tools.
    pub found: Vec<(ToolName, Vec<ScanFinding>)>,
    /// Treatment of tools seen for the first time.
    pub first_sight: FirstSight,
}

/// Knowledge about a server before its set arrives. It determines how the server's new tools are treated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FirstSight {
    /// Known server. Its new tools count as widened.
    #[default]
    Known,
    /// Server that was never seen before.
    NewServer(ChangeAction),
    /// Server whose pins are lost.
    Lost(ChangeAction),
}

impl Change {
    /// Whether nothing changed and nothing failed.
    pub fn is_empty(&self) -> bool {
        // `first_sight` alone is not a change.
        *self == Self { first_sight: self.first_sight, ..Self::default() }
    }

    /// Adds a later change of the same server.
    pub(crate) fn append(&mut self, later: Self) {
        self.added.extend(later.added);
        self.removed.extend(later.removed);
        self.changed.extend(later.changed);
        self.differences.extend(later.differences);
        self.unusable.extend(later.unusable);
        self.noted.extend(later.noted);
        self.duplicates.extend(later.duplicates);
        self.pinned.extend(later.pinned);
        self.found.extend(later.found);
        self.disk = later.disk.or(self.disk.take());
        self.first_sight = later.first_sight;
    }

    /// Whether the set of tools changed.
    #[must_use]
    pub fn tools_differ(&self) -> bool {
        !(self.added.is_empty() && self.removed.is_empty() && self.changed.is_empty())
    }
}

/// Maximum stored length of a value, in bytes.
const MAX_VALUE_BYTES: usize = 512;

/// Difference between two definitions of a tool. Hints and the capability derived from them come first: their change
/// matters most, because a server may withdraw a hint once it is trusted.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    pub tool: Arc<str>,
    /// Changed members: name, old and new value. Long texts are truncated.
    pub members: Vec<(&'static str, Value, Value)>,
    /// Number of leading members that are hints or derived capabilities.
    trusted: usize,
}

impl Difference {
    /// Compares a tool with its new definition.
    pub(crate) fn between(before: &Tool, now: &Tool) -> Self {
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

    /// Changed hints and capabilities in one line; `None` if unchanged.
    pub fn warning(&self) -> Option<String> {
        let trusted = self.members.get(..self.trusted).filter(|members| !members.is_empty())?;
        let mut line = "its server changed its statements about this tool: ".to_owned();
        for (at, (name, old, new)) in trusted.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            let shown = |value: &Value| match value {
                Value::Null => "absent".to_owned(),
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            let _ = write!(line, "{comma}{name} from {} to {}", shown(old), shown(new));
        }
        Some(line)
    }

    /// Members for a record: `[{"member":…,"old":…,"new":…}]`.
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

/// Truncates two texts. If they are long, the excerpts start a little before the first difference.
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

/// Maximum number of differing places per part.
const MAX_PLACES: usize = 200;
/// Maximum length of a value, in bytes; longer values start a little before the first difference.
const MAX_SHOWN_BYTES: usize = 16 * 1024;
/// Maximum size of all values of one tool, in bytes.
const MAX_DIFF_BYTES: usize = 256 * 1024;

/// Bounded difference between the accepted and the listed definition. Contains the server's own text: code that shows
/// it must escape it.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct DefinitionDiff {
    /// `server:tool`
    pub name: String,
    pub quarantined: bool,
    /// Digest of the listed definition.
    pub digest: String,
    /// Relation to the accepted definition.
    pub accepted: AcceptedAs,
    /// Grade of the change; absent if nothing changed or there is nothing to compare with.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub grade: Option<Grade>,
    /// Changed parts.
    pub parts: Vec<PartDiff>,
    /// Scan findings.
    pub findings: Vec<ScanFinding>,
}

/// Relation of a definition to the accepted one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum AcceptedAs {
    /// No definition was ever accepted.
    Never,
    /// A different definition is accepted.
    Another,
    /// A different definition is accepted, but its text is no longer stored.
    Forgotten,
    /// This definition is accepted.
    Same,
}

/// Changed part of a definition.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct PartDiff {
    /// Member of the definition; `others` stands for all members that are not compared individually.
    #[schema(value_type = String)]
    pub part: &'static str,
    /// Grade of the change; absent if there is nothing to compare with.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub grade: Option<Grade>,
    /// Loosened hints.
    pub why: Vec<String>,
    /// Changed places.
    pub places: Vec<PlaceDiff>,
    /// Number of places omitted.
    pub left_out: usize,
}

/// Changed place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct PlaceDiff {
    /// Path in the part, joined with `/`; empty for the whole part.
    pub place: String,
    /// Accepted value: text as is, other values as JSON, truncated; absent if there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub old: Option<String>,
    /// Listed value.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub new: Option<String>,
}

impl DefinitionDiff {
    /// Difference between the accepted and the current definition of a tool.
    pub fn of(reviewed: &Reviewed<'_>) -> Self {
        let accepted = reviewed.pin.and_then(|pin| pin.accepted.as_ref());
        let old = accepted.and_then(|accepted| accepted.listed.as_ref());
        let stands = match accepted {
            None => AcceptedAs::Never,
            Some(accepted) if accepted.digest == reviewed.digest => AcceptedAs::Same,
            Some(_) if old.is_some() => AcceptedAs::Another,
            Some(_) => AcceptedAs::Forgotten,
        };
        let mut bytes_left = MAX_DIFF_BYTES;
        let parts = match (stands, old) {
            (AcceptedAs::Same, _) => Vec::new(),
            (AcceptedAs::Another, Some(old)) => parts(old, reviewed, &mut bytes_left),
            (AcceptedAs::Never | AcceptedAs::Forgotten | AcceptedAs::Another, _) => {
                whole(None, reviewed.listed, &mut bytes_left)
            }
        };
        let grade = match stands {
            AcceptedAs::Another => Some(grade::highest(&compared(old, reviewed.listed))),
            AcceptedAs::Forgotten => Some(Grade::Loosened),
            AcceptedAs::Never | AcceptedAs::Same => None,
        };
        Self {
            name: reviewed.tool.name.to_string(),
            quarantined: reviewed.tool.trust == Trust::Withheld,
            digest: reviewed.digest.to_string(),
            accepted: stands,
            grade,
            parts,
            findings: reviewed.findings().cloned().collect(),
        }
    }
}

fn parts(old: &Listed, reviewed: &Reviewed<'_>, bytes_left: &mut usize) -> Vec<PartDiff> {
    let changes = grade::compare(read(old).as_ref(), read(reviewed.listed).as_ref());
    let (Some(before), Some(now)) = (read(old), read(reviewed.listed)) else {
        return whole(Some(old), reviewed.listed, bytes_left);
    };
    let changes = changes.into_iter().map(|change| {
        let (before, now) = (member(&before, change.part), member(&now, change.part));
        let mut places = Places { places: Vec::new(), left_out: 0, bytes_left };
        places.add("", before.as_ref(), now.as_ref());
        let Places { places, left_out, .. } = places;
        PartDiff { part: change.part, grade: Some(change.grade), why: change.why, places, left_out }
    });
    changes.collect()
}

/// Diff of a whole definition, by parts if it can be parsed.
fn whole(old: Option<&Listed>, new: &Listed, bytes_left: &mut usize) -> Vec<PartDiff> {
    let of = |part, old: Option<&Value>, new: Option<&Value>, bytes_left: &mut usize| {
        let mut places = Places { places: Vec::new(), left_out: 0, bytes_left };
        places.leaf("", old, new);
        let Places { places, left_out, .. } = places;
        PartDiff { part, grade: None, why: Vec::new(), places, left_out }
    };
    match (old, read(new)) {
        (None, Some(now)) => {
            let there = |part: &'static str| Some((part, member(&now, part)?));
            let parts = PARTS.into_iter().filter_map(there);
            parts.map(|(part, value)| of(part, None, Some(&value), bytes_left)).collect()
        }
        (old, _) => {
            let text = |listed: &Listed| Value::from(String::from_utf8_lossy(listed.json()));
            let (old, new) = (old.map(text), text(new));
            vec![of("definition", old.as_ref(), Some(&new), bytes_left)]
        }
    }
}

/// Parts of a definition, as named by [`grade::compare`].
const PARTS: [&str; 6] =
    ["title", "description", "inputSchema", "outputSchema", "annotations", "others"];

fn read(listed: &Listed) -> Option<ToolDefinition> {
    ToolDefinition::parse(std::str::from_utf8(listed.json()).ok()?)
}

fn member(definition: &ToolDefinition, part: &str) -> Option<Value> {
    let ToolDefinition { title, description, input, output, annotations, others } = definition;
    match part {
        "title" => title.clone(),
        "description" => description.clone(),
        "inputSchema" => Some(input.clone()),
        "outputSchema" => output.clone(),
        "annotations" => (!annotations.is_empty()).then(|| Value::Object(annotations.clone())),
        _ => (!others.is_empty()).then(|| Value::Object(others.clone().into_iter().collect())),
    }
}

struct Places<'a> {
    places: Vec<PlaceDiff>,
    left_out: usize,
    bytes_left: &'a mut usize,
}

impl Places<'_> {
    fn add(&mut self, place: &str, old: Option<&Value>, new: Option<&Value>) {
        match (old, new) {
            (old, new) if old == new => {}
            (Some(Value::Object(before)), Some(Value::Object(now))) => {
                let names: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
                for name in names {
                    self.add(&below(place, name), before.get(name), now.get(name));
                }
            }
            (Some(Value::Array(before)), Some(Value::Array(now))) if before.len() == now.len() => {
                for (at, (before, now)) in before.iter().zip(now).enumerate() {
                    self.add(&below(place, &at.to_string()), Some(before), Some(now));
                }
            }
            (old, new) => self.leaf(place, old, new),
        }
    }

    fn leaf(&mut self, place: &str, old: Option<&Value>, new: Option<&Value>) {
        let text = |value: &Value| match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let (old, new) = cut_texts(old.map(text), new.map(text));
        let length = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let takes = place.len() + length(&old) + length(&new);
        match self.bytes_left.checked_sub(takes).filter(|_| self.places.len() < MAX_PLACES) {
            Some(left) => {
                *self.bytes_left = left;
                self.places.push(PlaceDiff { place: place.to_owned(), old, new });
            }
            None => self.left_out += 1,
        }
    }
}

fn below(place: &str, name: &str) -> String {
    if place.is_empty() { name.to_owned() } else { format!("{place}/{name}") }
}

/// Truncates two texts. If they are long, the excerpts start a little before the first difference.
fn cut_texts(old: Option<String>, new: Option<String>) -> (Option<String>, Option<String>) {
    const BEFORE: usize = 64;
    let (a, b) = (old.as_deref().unwrap_or_default(), new.as_deref().unwrap_or_default());
    if a.len().max(b.len()) <= MAX_SHOWN_BYTES {
        return (old, new);
    }
    let same = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    let kept = |text: &str| {
        let from = text.floor_char_boundary(same.saturating_sub(BEFORE));
        let to = text.floor_char_boundary(from.saturating_add(MAX_SHOWN_BYTES));
        let head = if from > 0 { "…" } else { "" };
        let tail = if to < text.len() { "…" } else { "" };
        format!("{head}{}{tail}", text.get(from..to).unwrap_or_default())
    };
    (old.as_deref().map(kept), new.as_deref().map(kept))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_truncated_at_the_first_difference() {
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

#[cfg(test)]
mod definition_diff_tests {
    use serde_json::json;

    use super::*;

    fn places(old: Value, new: Value) -> (Vec<PlaceDiff>, usize) {
        let mut bytes_left = MAX_DIFF_BYTES;
        let mut places = Places { places: Vec::new(), left_out: 0, bytes_left: &mut bytes_left };
        places.add("", Some(&old), Some(&new));
        (places.places, places.left_out)
    }

    #[test]
    fn diff_lists_each_changed_place() {
        let (found, left_out) = places(
            json!({"properties": {"a": {"type": "string"}, "b": {}}, "required": ["a"]}),
            json!({"properties": {"a": {"type": "number"}, "c": true}, "required": ["b"]}),
        );
        let lines: Vec<_> =
            found.iter().map(|it| (&*it.place, it.old.as_deref(), it.new.as_deref())).collect();
        let expected = [
            ("properties/a/type", Some("string"), Some("number")),
            ("properties/b", Some("{}"), None),
            ("properties/c", None, Some("true")),
            ("required/0", Some("a"), Some("b")),
        ];
        assert_eq!((lines.as_slice(), left_out), (&expected[..], 0));
    }

    #[test]
    fn huge_diffs_are_bounded_and_omissions_counted() {
        let many =
            |word: &str| (0..10_000).map(|at| (format!("k{at}"), json!(word))).collect::<Value>();
        let (found, left_out) = places(many("a"), many("b"));
        assert_eq!((found.len(), left_out), (MAX_PLACES, 10_000 - MAX_PLACES));
        let long = |word: &str| {
            (0..100).map(|at| (format!("k{at}"), json!(word.repeat(100_000)))).collect::<Value>()
        };
        let (found, left_out) = places(long("é"), long("e"));
        let bytes = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let total: usize = found.iter().map(|it| bytes(&it.old) + bytes(&it.new)).sum();
        assert!(total <= MAX_DIFF_BYTES && left_out > 0 && !found.is_empty(), "{total} {left_out}");
    }
}
