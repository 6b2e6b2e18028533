//! Where in a text a change is made: which bytes go, and which come. Pure.
//!
//! Offsets are those of the text without its byte order mark, as the parser counts them.

use std::ops::Range;

use jsonc_parser::ast::{Object, Value as Node};
use jsonc_parser::common::Ranged;
use serde_json::Value;

use super::layout::{Layout, WrittenValue, indentation};
use super::refused::EditRefused;
use crate::config::document::ConfigDocument;
use crate::config::problem::{KeyPath, PathStep};

const MARK: char = '\u{feff}';

/// What holds members or elements: where it stands, and they.
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
            Node::StringLit(_)
            | Node::NumberLit(_)
            | Node::BooleanLit(_)
            | Node::NullKeyword(_) => None,
        }
    }

    /// Where its closing bracket stands.
    fn close(&self) -> usize {
        self.whole.end.saturating_sub(1)
    }
}

/// The text with `value` at `path`.
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
        // Nothing, or comments alone.
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

/// The text with `value` behind the elements of the array at `path`.
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

/// The text without what is at `path`.
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
    let comma = comma(bare, item.end, next);
    let mut cuts = Vec::new();
    let line = line_start(bare, item.start);
    let alone = bare.get(line..item.start)?.trim().is_empty();
    let end = comma.map_or(item.end, |comma| comma + 1);
    match alone.then(|| line_end(bare, end)).flatten() {
        Some(end) => cuts.push(line..end),
        // Something else follows in the line.
        None if comma.is_some() && at + 1 < container.items.len() => {
            let blanks =
                bare.get(end..)?.len() - bare.get(end..)?.trim_start_matches([' ', '\t']).len();
            let before = bare.get(..item.start)?;
            match line_end(bare, end) {
                // The last of its line, whose break stays.
                Some(_) => cuts.push(before.trim_end_matches([' ', '\t']).len()..end),
                None => cuts.push(item.start..end + blanks),
            }
        }
        None if comma.is_some() => {
            let before = bare.get(..item.start)?;
            cuts.push(before.trim_end_matches([' ', '\t']).len()..end);
        }
        None => {
            // The comma before it goes, and what stands between them.
            let before = at.checked_sub(1).and_then(|before| container.items.get(before));
            let start = before.and_then(|before| self::comma(bare, before.end, item.start));
            cuts.push(start.unwrap_or(item.start)..item.end);
        }
    }
    let is_last = at + 1 == container.items.len();
    if is_last
        && comma.is_none()
        && let Some(before) = at.checked_sub(1).and_then(|before| container.items.get(before))
        && let Some(found) = self::comma(bare, before.end, item.start)
        && !cuts.iter().any(|cut| cut.contains(&found))
    {
        cuts.insert(0, found..found + 1);
    }
    let cuts: Vec<_> = cuts.into_iter().map(|cut| (cut, String::new())).collect();
    Some(replaced(text, &cuts))
}

/// `value` within an object for each of `steps`.
fn nested(steps: &[PathStep], value: &WrittenValue) -> Option<WrittenValue> {
    steps.iter().rev().try_fold(value.clone(), |value, step| match step {
        PathStep::Key(key) => Some(WrittenValue::Members(vec![(key.clone(), value)])),
        PathStep::Element(_) => None,
    })
}

/// The text with another item in a container, behind those that it has.
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
    let comma = comma(bare, last.end, container.close());
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
        // Behind the comments that share its line.
        let at = comments_end(bare, end, container.close());
        changes.push((at..at, format!("{newline}{base}{}{trailing}", write(layout, base))));
    } else {
        let line = Layout { is_one_line: true, ..layout.clone() };
        changes.push((end..end, format!(" {}{trailing}", write(&line, ""))));
    }
    replaced(text, &changes)
}

/// The text with some parts of it replaced, which are in order and apart.
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

/// The comma between `from` and `to`, where there is nothing else but space and comments.
fn comma(text: &str, from: usize, to: usize) -> Option<usize> {
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

/// The bytes of the comment that a text begins with; one that ends with its line is without its end.
fn comment(text: &str) -> usize {
    match text.strip_prefix("/*") {
        Some(rest) => rest.find("*/").map_or(text.len(), |end| end + 4),
        None => text.find(['\r', '\n']).unwrap_or(text.len()),
    }
}

/// The end of the comments that follow in the same line, at most until `to`.
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

/// Where the line of `at` begins.
fn line_start(text: &str, at: usize) -> usize {
    text.get(..at).and_then(|before| before.rfind('\n')).map_or(0, |end| end + 1)
}

/// The end of the line of `from`, its break included, if only space and comments stand there.
fn line_end(text: &str, from: usize) -> Option<usize> {
    let end = comments_end(text, from, text.len());
    let rest = text.get(end..)?;
    let blanks = rest.len() - rest.trim_start_matches([' ', '\t']).len();
    let rest = rest.get(blanks..)?;
    let newline = ["\r\n", "\n"].iter().find(|newline| rest.starts_with(**newline))?;
    Some(end + blanks + newline.len())
}
