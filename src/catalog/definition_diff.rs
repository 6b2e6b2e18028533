//! The difference between the definition that is pinned and the one that a server lists, for an operator to read. Pure.
//!
//! Bounded however large the definitions are: so many places, so many bytes of each and in all; what is left out is
//! counted. It holds a server's own words, suspect ones among them: whoever shows it makes them safe to look at.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::definition::ToolDefinition;
use super::grade::{self, Grade};
use super::listing::Listed;
use super::pins::compared;
use super::scan::ScanFinding;
use super::snapshot::Reviewed;
use crate::tool::Trust;

/// Most places of one part.
const MAX_PLACES: usize = 200;
/// Most bytes of a value: of longer ones, from a little before where they part.
const MAX_SHOWN_BYTES: usize = 16 * 1024;
/// Most bytes of all values of one tool.
const MAX_DIFF_BYTES: usize = 256 * 1024;

/// What is another about a tool's definition.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct DefinitionDiff {
    /// `server:tool`
    pub name: String,
    /// Whether it waits for approval.
    pub quarantined: bool,
    /// The identity of the definition that its server lists.
    pub digest: String,
    /// How it stands to what is accepted.
    pub accepted: AcceptedAs,
    /// How grave the change is; absent where there is none, or nothing to compare with.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub grade: Option<Grade>,
    /// The parts that are another.
    pub parts: Vec<PartDiff>,
    /// What the scan says of it.
    pub findings: Vec<ScanFinding>,
}

/// How a definition stands to what is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum AcceptedAs {
    /// No definition of the tool ever was.
    Never,
    /// Another was.
    Another,
    /// Another was, whose text is not known any more.
    Forgotten,
    /// This one is.
    Same,
}

/// What is another about one part.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct PartDiff {
    /// The member of the definition; `others` are all that are not compared one by one.
    #[schema(value_type = String)]
    pub part: &'static str,
    /// How grave that is; absent where there is nothing to compare with.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub grade: Option<Grade>,
    /// Which hints are looser.
    pub why: Vec<String>,
    /// The places that are another.
    pub places: Vec<PlaceDiff>,
    /// Places for which there was no room.
    pub left_out: usize,
}

/// One place that is another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct PlaceDiff {
    /// Where in the part: names with `/` between them, empty for the whole.
    pub place: String,
    /// What is accepted: a text as it is, any other value as JSON; absent where nothing was. Long ones are cut.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub old: Option<String>,
    /// What its server lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub new: Option<String>,
}

impl DefinitionDiff {
    /// The difference of a tool.
    #[must_use]
    pub fn of(reviewed: &Reviewed<'_>) -> Self {
        let accepted = reviewed.pin.and_then(|pin| pin.accepted.as_ref());
        let old = accepted.and_then(|accepted| accepted.listed.as_ref());
        let stands = match accepted {
            None => AcceptedAs::Never,
            Some(accepted) if accepted.digest == reviewed.digest => AcceptedAs::Same,
            Some(_) if old.is_some() => AcceptedAs::Another,
            Some(_) => AcceptedAs::Forgotten,
        };
        let mut room = MAX_DIFF_BYTES;
        let parts = match (stands, old) {
            (AcceptedAs::Same, _) => Vec::new(),
            (AcceptedAs::Another, Some(old)) => parts(old, reviewed, &mut room),
            (AcceptedAs::Never | AcceptedAs::Forgotten | AcceptedAs::Another, _) => {
                whole(None, reviewed.listed, &mut room)
            }
        };
        let grade = match stands {
            AcceptedAs::Another => Some(grade::gravest(&compared(old, reviewed.listed))),
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

fn parts(old: &Listed, reviewed: &Reviewed<'_>, room: &mut usize) -> Vec<PartDiff> {
    let changes = grade::compare(read(old).as_ref(), read(reviewed.listed).as_ref());
    let (Some(before), Some(now)) = (read(old), read(reviewed.listed)) else {
        return whole(Some(old), reviewed.listed, room);
    };
    let changes = changes.into_iter().map(|change| {
        let (before, now) = (member(&before, change.part), member(&now, change.part));
        let mut places = Places { places: Vec::new(), left_out: 0, room };
        places.add("", before.as_ref(), now.as_ref());
        let Places { places, left_out, .. } = places;
        PartDiff { part: change.part, grade: Some(change.grade), why: change.why, places, left_out }
    });
    changes.collect()
}

/// All of a definition, part by part where that can be told.
fn whole(old: Option<&Listed>, new: &Listed, room: &mut usize) -> Vec<PartDiff> {
    let of = |part, old: Option<&Value>, new: Option<&Value>, room: &mut usize| {
        let mut places = Places { places: Vec::new(), left_out: 0, room };
        places.leaf("", old, new);
        let Places { places, left_out, .. } = places;
        PartDiff { part, grade: None, why: Vec::new(), places, left_out }
    };
    match (old, read(new)) {
        (None, Some(now)) => {
            let there = |part: &'static str| Some((part, member(&now, part)?));
            let parts = PARTS.into_iter().filter_map(there);
            parts.map(|(part, value)| of(part, None, Some(&value), room)).collect()
        }
        (old, _) => {
            let text = |listed: &Listed| Value::from(String::from_utf8_lossy(listed.json()));
            let (old, new) = (old.map(text), text(new));
            vec![of("definition", old.as_ref(), Some(&new), room)]
        }
    }
}

/// The parts of a definition, as [`grade::compare`] names them.
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
    room: &'a mut usize,
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
        let (old, new) = cut(old.map(text), new.map(text));
        let length = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let takes = place.len() + length(&old) + length(&new);
        match self.room.checked_sub(takes).filter(|_| self.places.len() < MAX_PLACES) {
            Some(left) => {
                *self.room = left;
                self.places.push(PlaceDiff { place: place.to_owned(), old, new });
            }
            None => self.left_out += 1,
        }
    }
}

fn below(place: &str, name: &str) -> String {
    if place.is_empty() { name.to_owned() } else { format!("{place}/{name}") }
}

/// As much of two texts as is shown: of long ones, from a little before where they part.
fn cut(old: Option<String>, new: Option<String>) -> (Option<String>, Option<String>) {
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
    use serde_json::json;

    use super::*;

    fn places(old: Value, new: Value) -> (Vec<PlaceDiff>, usize) {
        let mut room = MAX_DIFF_BYTES;
        let mut places = Places { places: Vec::new(), left_out: 0, room: &mut room };
        places.add("", Some(&old), Some(&new));
        (places.places, places.left_out)
    }

    #[test]
    fn each_place_that_is_another_is_told() {
        let (found, left_out) = places(
            json!({"properties": {"a": {"type": "string"}, "b": {}}, "required": ["a"]}),
            json!({"properties": {"a": {"type": "number"}, "c": true}, "required": ["b"]}),
        );
        let told: Vec<_> =
            found.iter().map(|it| (&*it.place, it.old.as_deref(), it.new.as_deref())).collect();
        let expected = [
            ("properties/a/type", Some("string"), Some("number")),
            ("properties/b", Some("{}"), None),
            ("properties/c", None, Some("true")),
            ("required/0", Some("a"), Some("b")),
        ];
        assert_eq!((told.as_slice(), left_out), (&expected[..], 0));
    }

    #[test]
    fn huge_differences_are_bounded_and_what_is_left_out_is_counted() {
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
