//! The objects and lists around a place in a JSON text, and what they say of a value there. Pure.
//!
//! It knows names and values that stand side by side, `{"name":"Authorization","value":…}` in
//! either order, `["Authorization","…"]`, and lists of arguments, `["--password","…"]`. It does
//! not check that a text is JSON.

use super::json_fragment::{after_nested, span, split_space, split_string, unescape};
use super::keys::{Keys, fold};
use super::options::{Command, OptionValue};

/// Objects and lists that lie deeper are counted only.
const MAX_FRAMES: usize = 64;
/// The name that belongs to a value is looked for in so many bytes after the value's beginning.
const MAX_SIBLINGS: usize = 512;

/// Keys whose value is the name of what stands beside it.
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
/// Keys whose value belongs to the name beside it. The prefilter relies on their last word, `value` or
/// `val`.
const VALUES: &[&[u8]] = &[b"value", b"val", b"stringvalue", b"rawvalue"];
/// The same, but only behind the name: before it they are ordinary.
const VALUES_BEHIND: &[&[u8]] = &[b"values", b"content", b"data", b"default", b"text"];
/// Keys whose list has names, and no values after them.
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

/// What stands where a value is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Pending {
    #[default]
    Any,
    /// The string before names a secret; the first of its list, or not.
    Named { first: bool },
    /// The string before is an option.
    Option(OptionValue),
}

/// An object or a list that is open.
#[derive(Clone, Copy, Debug, Default)]
struct Frame {
    object: bool,
    /// A list of names alone.
    names: bool,
    /// A list that has a string.
    any: bool,
    /// A member of the object named a secret.
    named: bool,
    /// A member of the object was a name of something else.
    other: bool,
    /// The member that is being read is a name.
    at_name: bool,
    pending: Pending,
    command: Command,
}

/// What is to be done with a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Take {
    /// It stays, or what of it does as a text.
    No,
    /// All of it is secret.
    All,
    /// All of it but the first bytes is secret.
    After(usize),
}

/// What a member's key says of its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Nothing.
    Any,
    /// It is what the name beside it names.
    Value { behind: bool },
}

/// The place that is being read, with all that is open around it.
#[derive(Debug, Default)]
pub(super) struct JsonContext {
    top: Frame,
    below: Vec<Frame>,
    /// Open objects and lists beyond [`MAX_FRAMES`].
    deeper: usize,
    /// The last key has a list of names.
    names: bool,
}

impl JsonContext {
    /// Takes up text between strings and words.
    pub(super) fn pass(&mut self, gap: &[u8]) {
        for byte in gap {
            match byte {
                b'{' => self.open(true),
                b'[' => self.open(false),
                b'}' | b']' => self.close(),
                b',' => self.top.at_name = false,
                // The end of a tag, with all its attributes.
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

    /// Takes up a key.
    pub(super) fn key(&mut self, key: &[u8]) -> Role {
        let folded = fold(key);
        let is = |words: &[&[u8]]| words.contains(&&*folded);
        self.top.at_name = is(NAMES);
        self.names = is(LISTS_OF_NAMES);
        let behind = is(VALUES_BEHIND);
        if behind || is(VALUES) { Role::Value { behind } } else { Role::Any }
    }

    /// True if the value of a member that is a value is secret; `text` begins with it.
    pub(super) fn names(&self, behind: bool, text: &[u8], cut: bool, keys: &Keys) -> bool {
        self.top.named
            || (!behind && self.top.object && !self.top.other && is_named_later(text, cut, keys))
    }

    /// Takes up an attribute that is a name, `key="…"`.
    pub(super) fn attribute(&mut self, content: &[u8], keys: &Keys) {
        self.top.named = keys.is_sensitive(content);
    }

    /// True if an attribute beside this one named a secret.
    pub(super) fn is_named(&self) -> bool {
        self.top.named
    }

    /// Takes up a string that is a value: `after` is what follows it, and the text was `cut` there
    /// or not. An `open` string goes on.
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

/// True for what may be a name in a list of names.
fn is_name(text: &[u8]) -> bool {
    text.iter().all(|byte| byte.is_ascii_alphabetic() || matches!(byte, b'_' | b'-'))
}

/// True if the object whose value `text` begins with names a secret soon after it, or may do so.
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
    // The object was closed: nothing names it.
    split_space(rest).1.first() != Some(&b'}') && unknown
}

fn after_value(text: &[u8]) -> &[u8] {
    match text.first() {
        Some(b'"') => split_string(text).2,
        Some(b'{' | b'[') => after_nested(text),
        _ => text.get(span(text, |byte| !matches!(byte, b',' | b'}' | b']'))..).unwrap_or_default(),
    }
}
