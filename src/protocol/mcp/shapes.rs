//! Members of MCP messages, and the removal of all others.
//!
//! A case-insensitive server (Go's `encoding/json`) reads `Name` as `name`. Only the members that the method has in the sender's
//! revision (`table`) cross a hop; a case variant of one of them is refused. `arguments` of tools and prompts, texts, schemas and
//! the values of `_meta` are forwarded verbatim. Members of the extensions that are declared to
//! clients are in the table. Pure; callers report refusals and warnings.
//!
//! Every object is read and written once; values of unknown shape are copied verbatim.

mod table;

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::Bytes;
use thiserror::Error;

use crate::mcp::jsonrpc::Envelope;
use crate::mcp::revisions::Revision;
use mcpproxy_json::fold;
use mcpproxy_json::members::{Member, Members, members};

pub use self::table::{ENVELOPE, META_KEYS, REQUEST, TOOLS_CALL, error, params, result};
pub use self::table::{Known, MemberMatch, Shape, find};

/// Maximum number of removed members that are reported for one message.
const MAX_LEFT: usize = 8;
/// Maximum length of a reported member name in characters, path included.
pub const MAX_NAME_CHARS: usize = 128;
/// Number of free keys that are compared without an allocation.
const FEW_KEYS: usize = 16;

/// Whether the params of `method` have the named member.
pub fn knows(method: &str, revision: Revision, name: &str) -> bool {
    match params(method) {
        Some(Shape::Object(known)) => matches!(find(known, revision, name), MemberMatch::Known(_)),
        Some(Shape::Verbatim | Shape::Free(_) | Shape::Each(_)) | None => false,
    }
}

/// Reason why a message is not forwarded. The error is the sender's.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MemberRefused {
    /// A case variant of a member.
    #[error("'{name}' differs only by case from '{known}'")]
    Variant {
        /// Path and name, truncated.
        name: String,
        /// Path and name of the member that the variant may be taken for.
        known: String,
    },
    /// Duplicate member.
    #[error("duplicate member '{0}'")]
    Twice(String),
    /// Not an object, or truncated.
    #[error("it is not a JSON object")]
    NotAnObject,
}

impl MemberRefused {
    /// Refusal of `name`, a variant of `known`, in the object at `path`.
    pub fn variant(path: &str, name: &str, known: &str) -> Self {
        Self::Variant { name: joined(path, name), known: joined(path, known) }
    }
}

/// Names of removed members, at most [`MAX_LEFT`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Left(Vec<Box<str>>);

impl Left {
    /// Adds a name, unless [`MAX_LEFT`] are stored.
    pub fn push(&mut self, path: &str, name: &str) {
        if self.0.len() < MAX_LEFT {
            self.0.push(joined(path, name).into());
        }
    }

    /// Names with their paths.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|name| &**name)
    }
}

/// `path.name`, truncated because a sender's text becomes part of the proxy's message.
fn joined(path: &str, name: &str) -> String {
    let dot = if path.is_empty() { "" } else { "." };
    [path, dot, name].iter().flat_map(|part| part.chars()).take(MAX_NAME_CHARS).collect()
}

/// Edit of a forwarded message: path of a member, and its new value; `None` removes the member.
pub type Edit<'a> = (&'a str, Option<&'a str>);

/// Writes the object in `text` with only the members of `shape`, verbatim apart from `edits`. Nested objects of known
/// shape are filtered in the same way. `text` must be valid JSON.
pub fn sift(
    shape: Shape,
    revision: Revision,
    text: &str,
    edits: &[Edit<'_>],
    left: &mut Left,
) -> Result<String, MemberRefused> {
    if !text.trim_start().starts_with('{') {
        return Err(MemberRefused::NotAnObject);
    }
    let mut sieve = Sieve { revision, edits, left, out: String::with_capacity(text.len()) };
    sieve.value(shape, "", text)?;
    Ok(sieve.out)
}

/// Same as [`sift`], for the value of member `name`; a value of unknown shape is not copied.
pub fn sift_value<'a>(
    shape: Shape,
    revision: Revision,
    name: &str,
    text: &'a str,
    left: &mut Left,
) -> Result<Cow<'a, str>, MemberRefused> {
    if let Shape::Verbatim = shape {
        return Ok(Cow::Borrowed(text));
    }
    let mut sieve = Sieve { revision, edits: &[], left, out: String::with_capacity(text.len()) };
    sieve.value(shape, name, text)?;
    Ok(Cow::Owned(sieve.out))
}

/// Removes unknown members from a server's request or notification, replaces its `id` if one is given, and applies `edits` to its
/// params.
pub fn message(
    message: &[u8],
    revision: Revision,
    edits: &[Edit<'_>],
    id: Option<&str>,
    left: &mut Left,
) -> Result<Bytes, MemberRefused> {
    let text = std::str::from_utf8(message).map_err(|_| MemberRefused::NotAnObject)?;
    let envelope: Envelope<'_> =
        serde_json::from_str(text).map_err(|_| MemberRefused::NotAnObject)?;
    let method = envelope.method.as_deref().unwrap_or_default();
    let shape = params(method).unwrap_or(Shape::Object(&[]));
    let sent = envelope.params.map(|raw| sift(shape, revision, raw.get(), edits, left));
    let sent = sent.transpose()?;
    let mut edits = Vec::with_capacity(2);
    edits.extend(id.map(|id| ("id", Some(id))));
    edits.extend(sent.as_deref().map(|sent| ("params", Some(sent))));
    Ok(sift(REQUEST, revision, text, &edits, left)?.into())
}

struct Sieve<'a> {
    revision: Revision,
    edits: &'a [Edit<'a>],
    left: &'a mut Left,
    out: String,
}

impl Sieve<'_> {
    /// Writes a value; a value that is not an object is copied.
    fn value(&mut self, shape: Shape, path: &str, text: &str) -> Result<(), MemberRefused> {
        let is_object = text.trim_start().starts_with('{');
        match shape {
            Shape::Object(known) if is_object => self.object(known, path, text),
            Shape::Free(keys) if is_object => {
                check_free(keys, path, text)?;
                self.out.push_str(text);
                Ok(())
            }
            Shape::Each(known) if is_object => self.each(known, path, text),
            Shape::Verbatim | Shape::Object(_) | Shape::Free(_) | Shape::Each(_) => {
                self.out.push_str(text);
                Ok(())
            }
        }
    }

    fn object(
        &mut self,
        known: &'static [Known],
        path: &str,
        text: &str,
    ) -> Result<(), MemberRefused> {
        let mut seen = 0_u64;
        self.out.push('{');
        let start = self.out.len();
        for member in read(text)? {
            let (name, value) = member.map_err(|_| MemberRefused::NotAnObject)?;
            let shape = match find(known, self.revision, &name) {
                MemberMatch::Known(shape) => shape,
                MemberMatch::Variant(known) => {
                    return Err(MemberRefused::variant(path, &name, known));
                }
                MemberMatch::Unknown => {
                    self.left.push(path, &name);
                    continue;
                }
            };
            let place = known.iter().position(|it| it.name == name).unwrap_or_default();
            let bit = 1_u64.checked_shl(place as u32).unwrap_or_default();
            if seen & bit != 0 {
                return Err(MemberRefused::Twice(joined(path, &name)));
            }
            seen |= bit;
            self.member(start, shape, path, (name, value))?;
        }
        self.out.push('}');
        Ok(())
    }

    fn each(
        &mut self,
        known: &'static [Known],
        path: &str,
        text: &str,
    ) -> Result<(), MemberRefused> {
        check_free(&[], path, text)?;
        self.out.push('{');
        let start = self.out.len();
        for member in read(text)? {
            let member = member.map_err(|_| MemberRefused::NotAnObject)?;
            self.member(start, Shape::Object(known), path, member)?;
        }
        self.out.push('}');
        Ok(())
    }

    /// Writes a member, with its edit, to the object whose first member begins at `start`.
    fn member(
        &mut self,
        start: usize,
        shape: Shape,
        path: &str,
        (name, value): Member<'_>,
    ) -> Result<(), MemberRefused> {
        let within = joined(path, &name);
        let edit = self.edits.iter().find(|(path, _)| *path == within).map(|(_, edit)| *edit);
        let before = self.out.len();
        if before > start {
            self.out.push(',');
        }
        self.out.push_str(&serde_json::Value::from(&*name).to_string());
        self.out.push(':');
        let from = self.out.len();
        // A replaced value is checked as well.
        self.value(shape, &within, value)?;
        match edit {
            None => {}
            Some(Some(other)) => {
                self.out.truncate(from);
                self.out.push_str(other);
            }
            Some(None) => self.out.truncate(before),
        }
        Ok(())
    }
}

fn read(text: &str) -> Result<Members<'_>, MemberRefused> {
    members(text).map_err(|_| MemberRefused::NotAnObject)
}

/// Checks that no key of an object with free keys is a variant of one of `keys` or of another key.
pub fn check_free(keys: &[&str], path: &str, text: &str) -> Result<(), MemberRefused> {
    let mut few: [Cow<'_, str>; FEW_KEYS] = Default::default();
    let (mut count, mut ascii) = (0, true);
    for member in read(text)? {
        let (name, _) = member.map_err(|_| MemberRefused::NotAnObject)?;
        ascii &= name.is_ascii();
        let same = if ascii { str::eq_ignore_ascii_case } else { fold::same };
        if let Some(known) = keys.iter().find(|known| **known != name && same(known, &name)) {
            return Err(MemberRefused::variant(path, &name, known));
        }
        if let Some(earlier) = few.iter().take(count).find(|earlier| same(earlier, &name)) {
            return Err(twin(path, &name, earlier));
        }
        let Some(slot) = few.get_mut(count) else { return check_many(keys, path, text) };
        *slot = name;
        count += 1;
    }
    Ok(())
}

/// Same as [`check_free`], for many keys.
fn check_many(keys: &[&str], path: &str, text: &str) -> Result<(), MemberRefused> {
    let mut seen = BTreeMap::new();
    for member in read(text)? {
        let (name, _) = member.map_err(|_| MemberRefused::NotAnObject)?;
        if let Some(known) = keys.iter().find(|known| fold::is_variant(&name, known)) {
            return Err(MemberRefused::variant(path, &name, known));
        }
        let folded: String = fold::folded(&name).collect();
        if let Some(earlier) = seen.insert(folded, name.clone()) {
            return Err(twin(path, &name, &earlier));
        }
    }
    Ok(())
}

fn twin(path: &str, name: &str, earlier: &str) -> MemberRefused {
    match name == earlier {
        true => MemberRefused::Twice(joined(path, name)),
        false => MemberRefused::variant(path, name, earlier),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEWEST: Revision = Revision::NEWEST;

    fn read_by(
        shape: Shape,
        revision: Revision,
        text: &str,
    ) -> Result<(String, Vec<String>), String> {
        let mut left = Left::default();
        let sent = sift(shape, revision, text, &[], &mut left);
        let left = left.names().map(str::to_owned).collect();
        sent.map(|sent| (sent, left)).map_err(|refused| refused.to_string())
    }

    fn call(revision: Revision, text: &str) -> Result<(String, Vec<String>), String> {
        read_by(params("tools/call").unwrap(), revision, text)
    }

    #[test]
    fn unknown_members_are_removed() {
        let text = r#" { "x":1 ,"n\u0061me" : "a","arguments":{ "Name" :1.0,"\u0061":2}, "task":{"ttl":1e3,"y":2} } "#;
        let (sent, left) = call(Revision::November2025, text).unwrap();
        assert_eq!(
            sent,
            r#"{"name":"a","arguments":{ "Name" :1.0,"\u0061":2},"task":{"ttl":1e3}}"#
        );
        assert_eq!(left, ["x", "task.y"]);
        let (sent, left) = call(Revision::June2025, text).unwrap();
        assert_eq!(sent, r#"{"name":"a","arguments":{ "Name" :1.0,"\u0061":2}}"#);
        assert_eq!(left, ["x", "task"], "a member of another revision");
        let many: Vec<_> = (0..100).map(|n| format!("\"{n}{}\":1", "x".repeat(1000))).collect();
        let (sent, left) = call(NEWEST, &format!("{{{}}}", many.join(","))).unwrap();
        assert_eq!((sent.as_str(), left.len()), ("{}", MAX_LEFT));
        assert!(left.iter().all(|name| name.len() == MAX_NAME_CHARS));
    }

    #[test]
    fn variants_are_refused_at_every_known_level() {
        for (method, text, refused) in [
            ("tools/call", r#"{"name":"a","Name":"b"}"#, "'Name' differs only by case from 'name'"),
            ("tools/call", r#"{"Name":"b"}"#, "'Name' differs only by case from 'name'"),
            ("tools/call", r#"{"n\u0041me":"b"}"#, "'nAme' differs only by case from 'name'"),
            ("tools/call", r#"{"TASK":1}"#, "'TASK' differs only by case from 'task'"),
            ("tools/call", r#"{"Meta":1,"_Meta":{}}"#, "'_Meta' differs only by case from '_meta'"),
            (
                "tools/call",
                r#"{"_meta":{"progressTo\u212aen":1}}"#,
                "'_meta.progressTo\u{212a}en' differs only by case from '_meta.progressToken'",
            ),
            (
                "tools/call",
                r#"{"_meta":{"a/b":1,"A/B":1}}"#,
                "'_meta.A/B' differs only by case from '_meta.a/b'",
            ),
            (
                "prompts/get",
                r#"{"inputResponses":{"q":{"Content":1}}}"#,
                "'inputResponses.q.Content' differs only by case from 'inputResponses.q.content'",
            ),
            (
                "completion/complete",
                r#"{"context":{"Arguments":{}}}"#,
                "'context.Arguments' differs only by case from 'context.arguments'",
            ),
            ("tools/call", r#"{"name":"a","n\u0061me":"b"}"#, "duplicate member 'name'"),
            ("tools/call", r#"{"_meta":{"a":1,"\u0061":1}}"#, "duplicate member '_meta.a'"),
            ("tools/call", "[]", "it is not a JSON object"),
            ("tools/call", r#"{"a\ud800":1}"#, "it is not a JSON object"),
        ] {
            let read = read_by(params(method).unwrap(), NEWEST, text);
            assert_eq!(read, Err(refused.to_owned()), "{text}");
        }
        // These values are not objects, so they have no members that could be ambiguous.
        for text in [r#"{"_meta":[]}"#, r#"{"inputResponses":7}"#, r#"{"name":{"Name":1}}"#] {
            assert_eq!(call(NEWEST, text), Ok((text.to_owned(), vec![])));
        }
    }

    #[test]
    fn variants_among_any_number_of_free_keys_are_refused() {
        let keys = |count: usize| (0..count).map(|n| format!("\"k{n}\":1")).collect::<Vec<_>>();
        for count in [1, FEW_KEYS - 1, FEW_KEYS, FEW_KEYS + 1, 5000] {
            let text = |more: &str| format!("{{{},{more}}}", keys(count).join(","));
            assert_eq!(check_free(&["known"], "", &text(r#""known":1"#)), Ok(()));
            for (more, name, known) in
                [(r#""K0":1"#, "K0", "k0"), (r#""\u212anown":1"#, "\u{212a}nown", "known")]
            {
                let refused = MemberRefused::variant("", name, known);
                assert_eq!(check_free(&["known"], "", &text(more)), Err(refused), "{count}");
            }
        }
    }

    #[test]
    fn edits_apply_at_their_path() {
        let text = r#"{"ref":{"name":"a","uri":1,"type":"t"},"argument":{"name":"a"},"_meta":{}}"#;
        let edits = [("ref.name", Some("\"b\"")), ("ref.uri", None), ("_meta", None)];
        let shape = params("completion/complete").unwrap();
        let mut left = Left::default();
        let sent = sift(shape, NEWEST, text, &edits, &mut left).unwrap();
        assert_eq!(sent, r#"{"ref":{"name":"b","type":"t"},"argument":{"name":"a"}}"#);
        assert_eq!(left, Left::default(), "an edited member is not a removed one");
        let wrong = r#"{"_meta":{"ProgressToken":1}}"#;
        assert!(
            sift(shape, NEWEST, wrong, &edits, &mut left).is_err(),
            "a replaced value is checked"
        );
    }
}
