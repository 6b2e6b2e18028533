//! Tracker of the objects and lists around a position in JSON text. It shows whether a value at the position is secret.
//! Pure.
//!
//! Recognizes names and values in sibling members, `{"name":"Authorization","value":…}` in either order,
//! pairs in lists, `["Authorization","…"]`, and argument lists, `["--password","…"]`. It does not check that
//! the text is JSON.

use super::json_fragment::{after_nested, span, split_space, split_string, unescape};
use super::keys::{Command, Keys, OptionValue, fold};

/// Maximum number of tracked levels; deeper ones are only counted.
const MAX_FRAMES: usize = 64;
/// Number of bytes after a value that are searched for its name.
const MAX_SIBLINGS: usize = 512;

/// Keys whose value names a sibling member.
const NAMES: &[&[u8]] = &[
    b"name",
    b"key",
    b"k",
    b"header",
    b"headername",
    b"field",
    b"variable",
    b"var",
    b"env",
    b"envvar",
    b"param",
    b"parameter",
    b"parameterkey",
    b"parametername",
    b"property",
    b"attribute",
    b"setting",
    b"option",
    b"label",
    b"type",
    b"id",
    b"selector",
    b"element",
    b"placeholder",
];
/// Keys whose value is named by a sibling member. The prefilter relies on their last word, `value` or `val`.
const VALUES: &[&[u8]] = &[b"value", b"val", b"stringvalue", b"rawvalue", b"parametervalue"];
/// Further keys of this kind. They count only after the name; before the name they are ordinary keys.
const VALUES_AFTER_NAME: &[&[u8]] = &[b"values", b"content", b"data", b"default", b"text", b"v"];
/// Keys whose list consists of names without values.
const LISTS_OF_NAMES: &[&[u8]] = &[
    b"required",
    b"enum",
    b"fields",
    b"columns",
    b"names",
    b"keys",
    b"properties",
    b"scopes",
    b"tags",
    b"redactkeys",
    b"headers",
    b"labels",
    b"types",
    b"only",
    b"except",
    b"exclude",
    b"include",
    b"order",
    b"mask",
    b"select",
];

/// Expectation for the next value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Pending {
    #[default]
    Any,
    /// The previous string names a secret; `first` is true if that string is the first of its list.
    Named { first: bool },
    /// The previous string is an option.
    Option(OptionValue),
}

/// An open object or list.
#[derive(Clone, Copy, Debug, Default)]
struct Frame {
    object: bool,
    /// Whether the list consists of names without values.
    names: bool,
    /// Whether the list contains a string.
    any: bool,
    /// Whether a member of the object named a secret.
    named: bool,
    /// Whether a member of the object named something else.
    other: bool,
    /// Whether the value of the current member is a name.
    at_name: bool,
    pending: Pending,
    command: Command,
}

/// Treatment of a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Take {
    /// Not secret as a whole, but the text inside it is scrubbed.
    No,
    /// Completely secret.
    All,
    /// Secret, except for this number of leading bytes.
    After(usize),
}

/// Meaning of a member's value according to its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Any,
    /// Named by a sibling member.
    Value {
        after_name: bool,
    },
}

/// Current position with all open objects and lists.
#[derive(Debug, Default)]
pub(super) struct JsonContext {
    top: Frame,
    below: Vec<Frame>,
    /// Number of open levels beyond [`MAX_FRAMES`].
    deeper: usize,
    /// Whether the last key holds a list of names.
    names: bool,
}

impl JsonContext {
    /// Processes text between strings and words.
    pub(super) fn pass(&mut self, gap: &[u8]) {
        for byte in gap {
            match byte {
                b'{' => self.open(true),
                // Parentheses may enclose the arguments of a function: `setenv("API_KEY", "…")`.
                b'[' | b'(' => self.open(false),
                b'}' | b']' | b')' => self.close(),
                b',' => self.top.at_name = false,
                // `>` ends a tag, and with it the tag's attributes.
                b'>' => self.top.named = false,
                _ => {}
            }
        }
    }

    fn open(&mut self, object: bool) {
        if self.below.len() >= MAX_FRAMES {
            self.deeper += 1;
            return;
        }
        let names = !object && self.names;
        self.below
            .push(std::mem::replace(&mut self.top, Frame { object, names, ..Frame::default() }));
        self.names = false;
    }

    fn close(&mut self) {
        match self.deeper {
            0 => self.top = self.below.pop().unwrap_or_default(),
            _ => self.deeper -= 1,
        }
    }

    /// Processes a key.
    pub(super) fn key(&mut self, key: &[u8]) -> Role {
        let folded = fold(key);
        let is = |words: &[&[u8]]| words.contains(&&*folded);
        self.top.at_name = is(NAMES);
        self.names = is(LISTS_OF_NAMES);
        let after_name = is(VALUES_AFTER_NAME);
        if after_name || is(VALUES) { Role::Value { after_name } } else { Role::Any }
    }

    /// Whether the value of a member such as `value` is secret; `text` starts with it.
    pub(super) fn is_named_secret(
        &self,
        after_name: bool,
        text: &[u8],
        cut: bool,
        keys: &Keys,
    ) -> bool {
        self.top.named
            || (!after_name
                && self.top.object
                && !self.top.other
                && is_named_later(text, cut, keys))
    }

    /// Processes an attribute that is a name, `key="…"`.
    pub(super) fn attribute(&mut self, content: &[u8], keys: &Keys) {
        self.top.named = keys.is_sensitive(content);
    }

    /// Whether a sibling attribute named a secret.
    pub(super) fn is_named(&self) -> bool {
        self.top.named
    }

    /// Processes a string value. `after` is the text after it, which may have been `cut`; an `open` string
    /// continues beyond the cut.
    pub(super) fn value(
        &mut self,
        content: &[u8],
        (after, cut): (&[u8], bool),
        open: bool,
        keys: &Keys,
    ) -> Take {
        let top = &mut self.top;
        if top.object {
            if std::mem::take(&mut top.at_name) {
                let sensitive = keys.is_sensitive(content);
                top.named |= sensitive;
                top.other |= !sensitive;
            }
            return Take::No;
        }
        let first = !std::mem::replace(&mut top.any, true);
        let takes = match top.pending {
            Pending::Any => false,
            Pending::Option(next) => next.takes(content, open),
            Pending::Named { first } => {
                let next = split_space(after).1;
                let pair = first && (next.first() == Some(&b']') || (cut && next.is_empty()));
                pair || open || !is_name(content)
            }
        };
        if takes {
            top.pending = Pending::Any;
            return Take::All;
        }
        let mut take = Take::No;
        top.pending = Pending::Any;
        if content.first() == Some(&b'-') {
            match top.command.next(content, keys) {
                OptionValue::Attached(stays) => take = Take::After(stays),
                next => top.pending = Pending::Option(next),
            }
        } else if !top.names && !self.below.is_empty() && keys.is_sensitive(content) {
            top.pending = Pending::Named { first };
        }
        if content.len() < 64 {
            top.command.add(content);
        }
        take
    }
}

/// Whether a text could be a name in a list of names.
fn is_name(text: &[u8]) -> bool {
    text.iter().all(|byte| byte.is_ascii_alphabetic() || matches!(byte, b'_' | b'-'))
}

/// Whether the object whose value starts at `text` names a secret soon after the value, or may name one.
fn is_named_later(text: &[u8], cut: bool, keys: &Keys) -> bool {
    let window = text.get(..MAX_SIBLINGS).unwrap_or(text);
    let whole = window.len() == text.len();
    // The name may have been cut off.
    let unknown = whole && cut;
    let mut rest = after_value(window);
    while let Some((b',', members)) = split_space(rest).1.split_first() {
        let members = split_space(members).1;
        if members.first() != Some(&b'"') {
            break;
        }
        let (key, _, after) = split_string(members);
        let Some((b':', value)) = split_space(after).1.split_first() else { break };
        let value = split_space(value).1;
        if value.first() == Some(&b'"') && NAMES.contains(&&*fold(&unescape(key))) {
            let (name, closed, _) = split_string(value);
            return keys.is_sensitive(&unescape(name)) || (unknown && !closed);
        }
        rest = after_value(value);
    }
    // An object that is closed here does not name the value.
    split_space(rest).1.first() != Some(&b'}') && unknown
}

fn after_value(text: &[u8]) -> &[u8] {
    match text.first() {
        Some(b'"') => split_string(text).2,
        Some(b'{' | b'[') => after_nested(text),
        _ => text.get(span(text, |byte| !matches!(byte, b',' | b'}' | b']'))..).unwrap_or_default(),
    }
}
