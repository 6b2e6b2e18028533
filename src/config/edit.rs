//! Edits of a JSON text that preserve everything else byte for byte: order, layout, indentation, line ends and
//! comments. Pure.
//!
//! Used for our own config and for those of other programs. A change inserts, replaces or removes a part of the text;
//! the result is parsed again and only accepted if it has the intended value. Offsets exclude a byte order mark, as
//! in the parser.

use crate::document::ConfigDocument;
use crate::problem::{KeyPath, PathStep, Problem};
use jsonc_parser::ast::{Object, Value as Node};
use jsonc_parser::common::Ranged;
use serde_json::{Map, Value};
use std::ops::Range;

/// Reason why a text was not edited.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EditRefused {
    /// The text is not a JSON object.
    #[error("cannot be edited because it is invalid: {0}")]
    Unreadable(Box<Problem>),
    /// A value on the path is not an object.
    #[error("{0} is not an object: replace it with {{…}}, or remove it")]
    NoObject(KeyPath),
    /// The result would not have the intended value.
    #[error("{0} cannot be changed without changing its surroundings: edit the file by hand")]
    Unsure(KeyPath),
}

/// A text with its value.
#[derive(Clone, Debug)]
pub struct EditedJson {
    text: String,
    value: Map<String, Value>,
}

impl EditedJson {
    /// Parses a text; a blank one is an empty object.
    pub fn new(text: &str) -> Result<Self, EditRefused> {
        let mut problems = Vec::new();
        let (_, value) = ConfigDocument::parse(text, &mut problems);
        match problems.into_iter().next() {
            Some(problem) => Err(EditRefused::Unreadable(Box::new(problem))),
            None => Ok(Self { text: text.to_owned(), value }),
        }
    }

    /// The current text.
    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn value(&self) -> &Map<String, Value> {
        &self.value
    }

    /// The value at `path`.
    pub fn get(&self, path: &KeyPath) -> Option<&Value> {
        let (first, rest) = path.0.split_first()?;
        let PathStep::Key(first) = first else { return None };
        rest.iter().try_fold(self.value.get(first)?, |value, step| match step {
            PathStep::Key(key) => value.get(key),
            PathStep::Element(at) => value.get(at),
        })
    }

    /// Sets the value at `path`; missing objects on the way are created, and a new member is appended. After an error
    /// the text is unchanged.
    pub fn set(&mut self, path: &KeyPath, value: &WrittenValue) -> Result<(), EditRefused> {
        let (document, _) = ConfigDocument::parse(&self.text, &mut Vec::new());
        let next = set(&document, &self.text, &Layout::of(&document, &self.text), path, value)?;
        let mut expected = Value::Object(self.value.clone());
        put(&mut expected, &path.0, value.value());
        self.accept(next, &expected, path)
    }

    /// Appends an element to the array at `path`. After an error the text is unchanged.
    pub fn push(&mut self, path: &KeyPath, value: &WrittenValue) -> Result<(), EditRefused> {
        let (document, _) = ConfigDocument::parse(&self.text, &mut Vec::new());
        let layout = Layout::of(&document, &self.text);
        let next = push(&document, &self.text, &layout, path, value)?;
        let mut expected = Value::Object(self.value.clone());
        let length = self.get(path).and_then(Value::as_array).map_or(0, Vec::len);
        put(&mut expected, &path.element(length).0, value.value());
        self.accept(next, &expected, path)
    }

    /// Removes the value at `path` with its key; returns false if there is none. After an error the text is
    /// unchanged.
    pub fn remove(&mut self, path: &KeyPath) -> Result<bool, EditRefused> {
        if self.get(path).is_none() {
            return Ok(false);
        }
        let (document, _) = ConfigDocument::parse(&self.text, &mut Vec::new());
        let next =
            remove(&document, &self.text, path).ok_or_else(|| EditRefused::Unsure(path.clone()))?;
        let mut expected = Value::Object(self.value.clone());
        cut(&mut expected, &path.0);
        self.accept(next, &expected, path)?;
        Ok(true)
    }

    /// Accepts the new text if it has the intended value.
    fn accept(
        &mut self,
        next: String,
        expected: &Value,
        path: &KeyPath,
    ) -> Result<(), EditRefused> {
        let unsure = || EditRefused::Unsure(path.clone());
        let next = Self::new(&next).map_err(|_| unsure())?;
        if expected.as_object() != Some(&next.value) {
            return Err(unsure());
        }
        *self = next;
        Ok(())
    }
}

/// Sets `value` at `steps`.
fn put(into: &mut Value, steps: &[PathStep], value: Value) {
    match (steps.split_first(), into) {
        (None, into) => *into = value,
        (Some((PathStep::Key(key), rest)), Value::Object(members)) => {
            let empty = || Value::Object(Map::new());
            put(members.entry(key).or_insert_with(empty), rest, value);
        }
        (Some((PathStep::Element(at), rest)), Value::Array(elements)) => {
            if *at == elements.len() {
                elements.push(Value::Null);
            }
            if let Some(element) = elements.get_mut(*at) {
                put(element, rest, value);
            }
        }
        (Some(_), _) => {}
    }
}

/// Removes the value at `steps`.
fn cut(from: &mut Value, steps: &[PathStep]) {
    match (steps, from) {
        ([PathStep::Key(key)], Value::Object(members)) => {
            members.remove(key);
        }
        ([PathStep::Element(at)], Value::Array(elements)) if *at < elements.len() => {
            elements.remove(*at);
        }
        ([PathStep::Key(key), rest @ ..], Value::Object(members)) => {
            members.get_mut(key).iter_mut().for_each(|value| cut(value, rest));
        }
        ([PathStep::Element(at), rest @ ..], Value::Array(elements)) => {
            elements.get_mut(*at).iter_mut().for_each(|value| cut(value, rest));
        }
        (_, _) => {}
    }
}

const MARK: char = '\u{feff}';

/// Byte ranges of an object or array and of its items.
struct Container {
    whole: Range<usize>,
    items: Vec<Range<usize>>,
}

impl Container {
    fn of_object(object: &Object<'_>) -> Self {
        let items = object.properties.iter().map(|it| it.start()..it.end());
        Self { whole: object.start()..object.end(), items: items.collect() }
    }

    fn of(node: &Node<'_>) -> Option<Self> {
        match node {
            Node::Object(object) => Some(Self::of_object(object)),
            Node::Array(array) => {
                let items = array.elements.iter().map(|it| it.start()..it.end());
                Some(Self { whole: array.start()..array.end(), items: items.collect() })
            }
            _ => None,
        }
    }

    /// Offset of the closing bracket.
    fn close(&self) -> usize {
        self.whole.end.saturating_sub(1)
    }
}

/// Sets `value` at `path`.
pub(super) fn set(
    document: &ConfigDocument<'_>,
    text: &str,
    layout: &Layout,
    path: &KeyPath,
    value: &WrittenValue,
) -> Result<String, EditRefused> {
    let bare = text.strip_prefix(MARK).unwrap_or(text);
    let unsure = || EditRefused::Unsure(path.clone());
    let Some(root) = document.root() else {
        // The text is empty, or contains only comments.
        let end = if bare.is_empty() || bare.ends_with('\n') { "" } else { layout.newline };
        let whole = layout.write(&nested(&path.0, value).ok_or_else(unsure)?, "");
        return Ok(format!("{text}{end}{whole}{}", layout.newline));
    };
    let mut container = Container::of_object(root);
    let mut node: Option<&Node<'_>> = None;
    for (depth, step) in path.0.iter().enumerate() {
        let found = match (step, node) {
            (PathStep::Key(key), None) => root.get(key).map(|it| &it.value),
            (PathStep::Key(key), Some(Node::Object(object))) => object.get(key).map(|it| &it.value),
            (PathStep::Element(at), Some(Node::Array(array))) => array.elements.get(*at),
            (PathStep::Key(_) | PathStep::Element(_), _) => {
                let on_the_way = path.0.get(..depth).unwrap_or_default();
                return Err(EditRefused::NoObject(KeyPath(on_the_way.to_vec())));
            }
        };
        let Some(found) = found else {
            let (PathStep::Key(key), rest) = (step, path.0.get(depth + 1..).unwrap_or_default())
            else {
                return Err(unsure());
            };
            let value = nested(rest, value).ok_or_else(unsure)?;
            return Ok(insert(text, layout, &container, Some(key), &value));
        };
        node = Some(found);
        if let Some(inner) = Container::of(found) {
            container = inner;
        }
    }
    let old = node.ok_or_else(unsure)?;
    let written = layout.write(value, indentation(bare, old.start()));
    Ok(replaced(text, &[(old.start()..old.end(), written)]))
}

/// Appends `value` to the array at `path`.
pub(super) fn push(
    document: &ConfigDocument<'_>,
    text: &str,
    layout: &Layout,
    path: &KeyPath,
    value: &WrittenValue,
) -> Result<String, EditRefused> {
    match document.node(path) {
        Some(array @ Node::Array(_)) => {
            let container = Container::of(array);
            let container = container.ok_or_else(|| EditRefused::Unsure(path.clone()))?;
            Ok(insert(text, layout, &container, None, value))
        }
        Some(_) | None => Err(EditRefused::NoObject(path.clone())),
    }
}

/// Removes the value at `path`.
pub(super) fn remove(document: &ConfigDocument<'_>, text: &str, path: &KeyPath) -> Option<String> {
    let bare = text.strip_prefix(MARK).unwrap_or(text);
    let (last, above) = path.0.split_last()?;
    let parent = KeyPath(above.to_vec());
    let node = document.node(&parent);
    let container = match (above, node) {
        ([], _) => Container::of_object(document.root()?),
        (_, node) => Container::of(node?)?,
    };
    let at = match last {
        PathStep::Element(at) => *at,
        PathStep::Key(key) => {
            let object = match (above, node) {
                ([], _) => document.root()?,
                (_, Some(Node::Object(object))) => object,
                (_, _) => return None,
            };
            object.properties.iter().position(|it| it.name.as_str() == key)?
        }
    };
    let item = container.items.get(at)?.clone();
    let next = container.items.get(at + 1).map_or(container.close(), |next| next.start);
    let comma = comma_between(bare, item.end, next);
    let mut cuts = Vec::new();
    let line = line_start(bare, item.start);
    let alone = bare.get(line..item.start)?.trim().is_empty();
    let end = comma.map_or(item.end, |comma| comma + 1);
    match alone.then(|| line_end(bare, end)).flatten() {
        Some(end) => cuts.push(line..end),
        // Another item follows on the line.
        None if comma.is_some() && at + 1 < container.items.len() => {
            let blanks =
                bare.get(end..)?.len() - bare.get(end..)?.trim_start_matches([' ', '\t']).len();
            let before = bare.get(..item.start)?;
            match line_end(bare, end) {
                // The item is the last one on its line: the line break is kept.
                Some(_) => cuts.push(before.trim_end_matches([' ', '\t']).len()..end),
                None => cuts.push(item.start..end + blanks),
            }
        }
        None if comma.is_some() => {
            let before = bare.get(..item.start)?;
            cuts.push(before.trim_end_matches([' ', '\t']).len()..end);
        }
        None => {
            // Removes the preceding comma and everything in between.
            let before = at.checked_sub(1).and_then(|before| container.items.get(before));
            let start = before.and_then(|before| comma_between(bare, before.end, item.start));
            cuts.push(start.unwrap_or(item.start)..item.end);
        }
    }
    let is_last = at + 1 == container.items.len();
    if is_last
        && comma.is_none()
        && let Some(before) = at.checked_sub(1).and_then(|before| container.items.get(before))
        && let Some(found) = comma_between(bare, before.end, item.start)
        && !cuts.iter().any(|cut| cut.contains(&found))
    {
        cuts.insert(0, found..found + 1);
    }
    let cuts: Vec<_> = cuts.into_iter().map(|cut| (cut, String::new())).collect();
    Some(replaced(text, &cuts))
}

/// Wraps `value` in an object for each of `steps`.
fn nested(steps: &[PathStep], value: &WrittenValue) -> Option<WrittenValue> {
    steps.iter().rev().try_fold(value.clone(), |value, step| match step {
        PathStep::Key(key) => Some(WrittenValue::Members(vec![(key.clone(), value)])),
        PathStep::Element(_) => None,
    })
}

/// Appends an item to a container.
fn insert(
    text: &str,
    layout: &Layout,
    container: &Container,
    key: Option<&String>,
    value: &WrittenValue,
) -> String {
    let bare = text.strip_prefix(MARK).unwrap_or(text);
    let write = |layout: &Layout, base: &str| {
        let written = layout.write(value, base);
        match key {
            Some(key) => format!("{}: {written}", Value::from(key.as_str())),
            None => written,
        }
    };
    let Layout { newline, indent, is_one_line } = layout;
    let between = |from: usize, to: usize| bare.get(from..to).unwrap_or_default();
    let Some(last) = container.items.last() else {
        let inside = between(container.whole.start + 1, container.close());
        let kept = inside.trim_end().len() + container.whole.start + 1;
        let base = indentation(bare, container.whole.start).to_owned();
        let written = match *is_one_line && inside.trim().is_empty() {
            true => write(layout, ""),
            false => {
                let inner = format!("{base}{indent}");
                format!("{newline}{inner}{}{newline}{base}", write(layout, &inner))
            }
        };
        return replaced(text, &[(kept..container.close(), written)]);
    };
    let comma = comma_between(bare, last.end, container.close());
    let ends_with_comma = comma.is_some();
    let on_lines = container
        .items
        .iter()
        .any(|item| between(line_start(bare, item.start), item.start).trim().is_empty());
    let mut changes = Vec::new();
    if !ends_with_comma {
        changes.push((last.end..last.end, ",".to_owned()));
    }
    let end = comma.map_or(last.end, |comma| comma + 1);
    let trailing = if ends_with_comma { "," } else { "" };
    if on_lines && !is_one_line {
        let base = indentation(bare, last.start);
        // The new item is inserted after the comments on the same line.
        let at = comments_end(bare, end, container.close());
        changes.push((at..at, format!("{newline}{base}{}{trailing}", write(layout, base))));
    } else {
        let line = Layout { is_one_line: true, ..layout.clone() };
        changes.push((end..end, format!(" {}{trailing}", write(&line, ""))));
    }
    replaced(text, &changes)
}

/// Replaces parts of a text; the ranges are ordered and disjoint.
fn replaced(text: &str, changes: &[(Range<usize>, String)]) -> String {
    let bare = text.strip_prefix(MARK).unwrap_or(text);
    let mut out = text.get(..text.len() - bare.len()).unwrap_or_default().to_owned();
    let mut from = 0;
    for (range, with) in changes {
        out.push_str(bare.get(from..range.start).unwrap_or_default());
        out.push_str(with);
        from = range.end;
    }
    out.push_str(bare.get(from..).unwrap_or_default());
    out
}

/// Position of the comma between `from` and `to`, where there is otherwise only white space and comments.
fn comma_between(text: &str, from: usize, to: usize) -> Option<usize> {
    let mut at = from;
    while at < to {
        let rest = text.get(at..to)?;
        match rest.as_bytes() {
            [b',', ..] => return Some(at),
            [b'/', ..] => at += comment(rest),
            [_, ..] => at += rest.chars().next().map_or(1, char::len_utf8),
            [] => return None,
        }
    }
    None
}

/// Length of the comment at the start of a text, without the line end of a line comment.
fn comment(text: &str) -> usize {
    match text.strip_prefix("/*") {
        Some(rest) => rest.find("*/").map_or(text.len(), |end| end + 4),
        None => text.find(['\r', '\n']).unwrap_or(text.len()),
    }
}

/// End of the comments that follow on the same line, at most `to`.
fn comments_end(text: &str, from: usize, to: usize) -> usize {
    let (mut end, mut at) = (from, from);
    while at < to {
        let rest = text.get(at..to).unwrap_or_default();
        match rest.as_bytes() {
            [b' ' | b'\t', ..] => at += 1,
            [b'/', ..] => {
                let length = comment(rest);
                if rest.get(..length).is_some_and(|comment| comment.contains('\n')) {
                    return end;
                }
                at += length;
                end = at;
            }
            _ => return end,
        }
    }
    end
}

/// Start of the line of `at`.
fn line_start(text: &str, at: usize) -> usize {
    text.get(..at).and_then(|before| before.rfind('\n')).map_or(0, |end| end + 1)
}

/// End of the line of `from` including its break, if only space and comments follow.
fn line_end(text: &str, from: usize) -> Option<usize> {
    let end = comments_end(text, from, text.len());
    let rest = text.get(end..)?;
    let blanks = rest.len() - rest.trim_start_matches([' ', '\t']).len();
    let rest = rest.get(blanks..)?;
    let newline = ["\r\n", "\n"].iter().find(|newline| rest.starts_with(**newline))?;
    Some(end + blanks + newline.len())
}

/// Default indentation.
const INDENT: &str = "  ";
/// Maximum length of a list on one line, in characters.
const SHORT_LIST: usize = 100;

/// A value to write, with an explicit order of members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WrittenValue {
    /// Any value, with its members in the order of the map.
    Value(Value),
    Members(Vec<(String, WrittenValue)>),
}

impl From<Value> for WrittenValue {
    fn from(value: Value) -> Self {
        Self::Value(value)
    }
}

impl WrittenValue {
    /// The value without the order of members.
    pub fn value(&self) -> Value {
        match self {
            Self::Value(value) => value.clone(),
            Self::Members(members) => {
                let members = members.iter().map(|(key, value)| (key.clone(), value.value()));
                Value::Object(members.collect::<Map<_, _>>())
            }
        }
    }
}

/// Formatting of a text.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    /// Line break.
    pub(super) newline: &'static str,
    /// Indentation of one level.
    pub(super) indent: String,
    /// Whether the whole text is on one line; new values are then added to that line.
    pub(super) is_one_line: bool,
}

impl Layout {
    pub(super) fn of(document: &ConfigDocument<'_>, text: &str) -> Self {
        let bare = text.trim_start_matches('\u{feff}');
        let first = document.root().and_then(|root| root.properties.first());
        let indent = first.map(|first| indentation(bare, first.start())).unwrap_or_default();
        Self {
            newline: if text.contains("\r\n") { "\r\n" } else { "\n" },
            indent: if indent.is_empty() { INDENT } else { indent }.to_owned(),
            is_one_line: first.is_some() && !text.trim().contains('\n'),
        }
    }

    /// Formats a value for a line with the indentation `base`.
    pub(super) fn write(&self, value: &WrittenValue, base: &str) -> String {
        match value {
            WrittenValue::Members(members) if members.is_empty() => "{}".to_owned(),
            WrittenValue::Members(members) => {
                let inner = format!("{base}{}", self.indent);
                let members = members.iter().map(|(key, value)| {
                    format!("{}: {}", Value::from(key.as_str()), self.write(value, &inner))
                });
                self.enclose(['{', '}'], members.collect(), base)
            }
            WrittenValue::Value(Value::Object(members)) => {
                let member = |(key, value): (&String, &Value)| (key.clone(), value.clone().into());
                self.write(&WrittenValue::Members(members.iter().map(member).collect()), base)
            }
            WrittenValue::Value(Value::Array(elements)) => {
                let inner = format!("{base}{}", self.indent);
                let texts = elements.iter().map(|it| self.write(&it.clone().into(), &inner));
                let texts: Vec<_> = texts.collect();
                let plain = elements.iter().all(|it| !it.is_object() && !it.is_array());
                let line = format!("[{}]", texts.join(", "));
                match plain && line.chars().count() <= SHORT_LIST {
                    true => line,
                    false => self.enclose(['[', ']'], texts, base),
                }
            }
            WrittenValue::Value(scalar) => scalar.to_string(),
        }
    }

    fn enclose(&self, [open, close]: [char; 2], parts: Vec<String>, base: &str) -> String {
        let Self { newline, indent, is_one_line } = self;
        match is_one_line {
            true => format!("{open}{}{close}", parts.join(", ")),
            false => {
                let parts = parts.join(&format!(",{newline}{base}{indent}"));
                format!("{open}{newline}{base}{indent}{parts}{newline}{base}{close}")
            }
        }
    }
}

/// A member formatted for display.
pub fn rendered(name: &str, members: &[(String, Value)]) -> String {
    let layout = Layout { newline: "\n", indent: INDENT.to_owned(), is_one_line: false };
    let members = members.iter().map(|(key, value)| (key.clone(), value.clone().into()));
    let written = layout.write(&WrittenValue::Members(members.collect()), "");
    format!("{}: {written}", Value::from(name))
}

/// Leading white space of the line of `at`.
pub(super) fn indentation(text: &str, at: usize) -> &str {
    let before = text.get(..at).unwrap_or_default();
    let line = before.rfind('\n').map_or(0, |end| end + 1);
    let line = before.get(line..).unwrap_or_default();
    line.get(..line.len() - line.trim_start().len()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn path(dotted: &str) -> KeyPath {
        dotted.split('.').fold(KeyPath::default(), |path, step| match step.parse() {
            Ok(at) => path.element(at),
            Err(_) => path.key(step),
        })
    }

    #[track_caller]
    fn set(text: &str, at: &str, value: Value, expected: &str) {
        let mut edited = EditedJson::new(text).unwrap();
        edited.set(&path(at), &value.into()).unwrap();
        assert_eq!(edited.text(), expected, "{text:?}");
    }

    #[track_caller]
    fn removed(text: &str, at: &str, expected: &str) {
        let mut edited = EditedJson::new(text).unwrap();
        assert!(edited.remove(&path(at)).unwrap(), "{text:?}");
        assert_eq!(edited.text(), expected, "{text:?}");
    }

    #[test]
    fn new_member_is_appended_in_the_existing_layout() {
        set("", "a", json!(1), "{\n  \"a\": 1\n}\n");
        set("{}", "a", json!(1), "{\n  \"a\": 1\n}");
        set("// none\n", "a", json!(1), "// none\n{\n  \"a\": 1\n}\n");
        set("{\n  // none\n}\n", "a", json!(1), "{\n  // none\n  \"a\": 1\n}\n");
        set("{\"a\":1}", "b", json!(2), "{\"a\":1, \"b\": 2}");
        set("{\"a\": 1,}", "b", json!(2), "{\"a\": 1, \"b\": 2,}");
        set(
            "{\n\t\"a\": 1\n}\n",
            "b",
            json!({"c": [1, 2]}),
            "{\n\t\"a\": 1,\n\t\"b\": {\n\t\t\"c\": [1, 2]\n\t}\n}\n",
        );
        set(
            "{\r\n    \"a\": 1\r\n}",
            "b.c",
            json!("x"),
            "{\r\n    \"a\": 1,\r\n    \"b\": {\r\n        \"c\": \"x\"\r\n    }\r\n}",
        );
        set(
            "\u{feff}{\n  \"a\": {}\n}",
            "a.b",
            json!(2),
            "\u{feff}{\n  \"a\": {\n    \"b\": 2\n  }\n}",
        );
        // Comments after the last member belong to it.
        set(
            "{\n  \"a\": 1 // one\n  // end\n}",
            "b",
            json!(2),
            "{\n  \"a\": 1, // one\n  \"b\": 2\n  // end\n}",
        );
        set("{\n  \"a\": 1, // one\n}", "b", json!(2), "{\n  \"a\": 1, // one\n  \"b\": 2,\n}");
        set(
            "{\n  \"a\": 1 /* x, */ , /* y */\n}",
            "b",
            json!(2),
            "{\n  \"a\": 1 /* x, */ , /* y */\n  \"b\": 2,\n}",
        );
        set("{\"a\": {}}", "a.b", json!({"c": {}}), "{\"a\": {\"b\": {\"c\": {}}}}");
        set("{ \"a\": 1 // one\n}", "b", json!(2), "{ \"a\": 1, \"b\": 2 // one\n}");
    }

    #[test]
    fn value_is_replaced_in_place() {
        set("{\"a\" : /* x */ 1 , \"b\":2}", "a", json!(true), "{\"a\" : /* x */ true , \"b\":2}");
        set(
            "{\n  \"a\": {\n    \"b\": [1,\n 2]\n  }\n}",
            "a.b",
            json!({"c": 1}),
            "{\n  \"a\": {\n    \"b\": {\n      \"c\": 1\n    }\n  }\n}",
        );
        set(
            "{\"a\": [{\"b\": 1}, {\"b\": 2}]}",
            "a.1.b",
            json!("é\n"),
            "{\"a\": [{\"b\": 1}, {\"b\": \"é\\n\"}]}",
        );
    }

    #[test]
    fn member_is_removed_with_its_line_and_comma() {
        let lines = "{\n  \"a\": 1, // one\n  // two's\n  \"b\": 2,\n  \"c\": 3\n}\n";
        removed(lines, "a", "{\n  // two's\n  \"b\": 2,\n  \"c\": 3\n}\n");
        removed(lines, "b", "{\n  \"a\": 1, // one\n  // two's\n  \"c\": 3\n}\n");
        removed(lines, "c", "{\n  \"a\": 1, // one\n  // two's\n  \"b\": 2\n}\n");
        removed("{\r\n  \"a\": 1,\r\n  \"b\": 2,\r\n}", "b", "{\r\n  \"a\": 1,\r\n}");
        removed("{\"a\": 1, \"b\": 2, \"c\": 3}", "a", "{\"b\": 2, \"c\": 3}");
        removed("{\"a\": 1, \"b\": 2, \"c\": 3}", "b", "{\"a\": 1, \"c\": 3}");
        removed("{\"a\": 1, \"b\": 2, \"c\": 3}", "c", "{\"a\": 1, \"b\": 2}");
        removed("{\"a\": 1 /* x */, /* y */ \"b\": 2}", "b", "{\"a\": 1 /* x */}");
        removed("{\n  \"a\": {\n    \"b\": 1\n  }\n}", "a.b", "{\n  \"a\": {\n  }\n}");
        removed("{\"a\": 1}", "a", "{}");
        removed("{\n  \"a\": 1, \"b\": 2,\n  \"c\": 3\n}", "a", "{\n  \"b\": 2,\n  \"c\": 3\n}");
        removed("{\n  \"a\": 1, \"b\": 2,\n  \"c\": 3\n}", "b", "{\n  \"a\": 1,\n  \"c\": 3\n}");
        removed("{\"l\": [1, 2, 3]}", "l.1", "{\"l\": [1, 3]}");
        removed("{\"l\": [\n  {},\n  {}\n]}", "l.1", "{\"l\": [\n  {}\n]}");
        let mut edited = EditedJson::new(lines).unwrap();
        assert_eq!((edited.remove(&path("z")), edited.text()), (Ok(false), lines));
    }

    #[test]
    fn element_is_appended() {
        for (text, expected) in [
            ("{\"l\": []}", "{\"l\": [7]}"),
            ("{\"l\": [1]}", "{\"l\": [1, 7]}"),
            ("{\n  \"l\": [\n    1\n  ]\n}", "{\n  \"l\": [\n    1,\n    7\n  ]\n}"),
        ] {
            let mut edited = EditedJson::new(text).unwrap();
            edited.push(&path("l"), &json!(7).into()).unwrap();
            assert_eq!(edited.text(), expected);
        }
    }

    #[test]
    fn members_can_be_removed_and_restored_in_any_layout() {
        let texts = [
            "{\"a\":{\"x\":1},\"b\":[1,2],\"c\":\"s\"}",
            "{\n  \"a\": {\n    \"x\": 1\n  },\n  \"b\": [\n    1,\n    2\n  ],\n  \"c\": \"s\",\n}\n",
            "{ // top\n  \"a\": { \"x\": 1 }, \"b\": [1, /* , */ 2] // both\n  /* pre */, \"c\": \"s,}\" // last\n  // end\n}",
            "{\r\n\t\"a\":{\"x\":1}\r\n\t,\"b\":[1,2]\r\n\t,\"c\":\"s\"\r\n}",
        ];
        for text in texts {
            for at in ["a", "b", "c", "a.x", "b.0", "b.1"] {
                let mut edited = EditedJson::new(text).unwrap();
                let value = edited.get(&path(at)).unwrap().clone();
                assert_eq!(edited.remove(&path(at)), Ok(true), "{at} of {text:?}");
                if !at.starts_with("b.") {
                    edited.set(&path(at), &value.into()).unwrap();
                    assert_eq!(edited.value(), EditedJson::new(text).unwrap().value());
                }
            }
        }
    }

    #[test]
    fn invalid_texts_and_non_objects_are_unchanged() {
        for text in ["{", "[]", "{\"a\": 1, \"a\": 2}", "{\"a\": 1} x"] {
            let refused = EditedJson::new(text).unwrap_err();
            assert!(refused.to_string().contains("line 1 column"), "{refused}");
        }
        let mut edited = EditedJson::new("{\"a\": 1}").unwrap();
        let refused = edited.set(&path("a.b"), &json!(1).into()).unwrap_err();
        assert_eq!(refused, EditRefused::NoObject(path("a")));
        assert_eq!(edited.text(), "{\"a\": 1}");
    }
}
