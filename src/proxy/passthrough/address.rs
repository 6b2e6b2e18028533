//! What a request is about: the name or URI in its params, and the same params under another,
//! without what the method does not have.
//!
//! Pure. Where a name leads is not known here.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use thiserror::Error;

use super::forward::Forward;
use crate::catalog::exposed;
use crate::json::members::{Member, members, string};
use crate::mcp::revisions::Revision;
use crate::mcp::shapes::{self, Left, MemberMatch, MemberRefused, Shape};
use crate::policy::{Access, Reference};

/// The hop's own member of every params object.
const META: &str = "_meta";
const ARGUMENTS: &str = "arguments";
/// What a client brings along to a request that it makes again (MCP 2026-07-28 §Multi Round-Trip Requests).
const BROUGHT: [&str; 2] = ["inputResponses", "requestState"];

/// The name or URI of a thing, as clients know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A resource's URI, or a template of URIs.
    Uri(String),
    /// A prompt's name.
    Prompt(String),
}

impl Target {
    /// The server and its own word, if the word itself says so.
    #[must_use]
    pub fn split(&self) -> Option<(Cow<'_, str>, &str)> {
        match self {
            Self::Uri(uri) => exposed::split_uri(uri),
            Self::Prompt(name) => {
                exposed::split_name(name).map(|(server, own)| (server.into(), own))
            }
        }
    }

    /// As the client wrote it.
    #[must_use]
    pub fn word(&self) -> &str {
        match self {
            Self::Uri(word) | Self::Prompt(word) => word,
        }
    }
}

/// A request's params, read.
pub struct AddressedRequest<'a> {
    text: &'a str,
    meta: Option<&'a str>,
    arguments: Option<&'a str>,
    /// As raw JSON, `"key":value` joined by commas.
    brought: String,
    revision: Revision,
    /// The path of the member that holds the target's word.
    path: &'static str,
    /// The path of a member that a reference of the other kind has.
    other: Option<&'static str>,
    target: Target,
    forward: Forward,
    /// What the method does not have, and stays behind.
    pub left: Left,
}

/// Why params cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[expect(missing_docs, reason = "each case is its text")]
pub enum Unreadable {
    #[error("params must be an object")]
    Params,
    #[error("_meta must be an object")]
    Meta,
    #[error("ref must be an object")]
    Reference,
    #[error("ref.type must be ref/prompt or ref/resource")]
    Kind,
    #[error("{0} must be a string")]
    Word(&'static str),
    #[error(transparent)]
    Refused(#[from] MemberRefused),
}

impl<'a> AddressedRequest<'a> {
    /// Reads `params`, which are valid JSON and hold no key twice, by the client's `revision`.
    ///
    /// # Errors
    /// [`Unreadable`].
    pub fn read(
        forward: Forward,
        revision: Revision,
        params: &'a [u8],
    ) -> Result<Self, Unreadable> {
        let text = std::str::from_utf8(params).map_err(|_| Unreadable::Params)?;
        let members = collect(text).ok_or(Unreadable::Params)?;
        let (meta, arguments) = (find(&members, META), find(&members, ARGUMENTS));
        if meta.is_some_and(|meta| !meta.starts_with('{')) {
            return Err(Unreadable::Meta);
        }
        let mut left = Left::default();
        shapes::sift(shape(forward), revision, text, &[], &mut left)?;
        let (word, path, other, target): (_, _, _, fn(String) -> Target) = match forward {
            Forward::Resource(_) => (find(&members, "uri"), "uri", None, Target::Uri),
            Forward::Prompt => (find(&members, "name"), "name", None, Target::Prompt),
            Forward::Completion => {
                let reference = collect(find(&members, "ref").unwrap_or_default());
                let reference = reference.ok_or(Unreadable::Reference)?;
                let within = |name| find(&reference, name);
                let kind = string(within("type").unwrap_or_default());
                let (name, uri) = (within("name"), within("uri"));
                match kind.as_deref() {
                    Some("ref/prompt") => {
                        (name, "ref.name", uri.map(|_| "ref.uri"), Target::Prompt)
                    }
                    Some("ref/resource") => (uri, "ref.uri", name.map(|_| "ref.name"), Target::Uri),
                    Some(_) | None => return Err(Unreadable::Kind),
                }
            }
        };
        if let Some(other) = other {
            left.push("", other);
        }
        let own = string(word.unwrap_or_default()).ok_or(Unreadable::Word(path))?;
        let target = target(own.into_owned());
        let brought = brought(forward, revision, &members)?;
        Ok(Self { text, meta, arguments, brought, revision, path, other, target, forward, left })
    }

    /// What it names.
    #[must_use]
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// What is asked of `server`, which calls the target `own`.
    #[must_use]
    pub fn access(&self, server: Arc<str>, own: &str) -> Access {
        let own = own.into();
        match (self.forward, &self.target) {
            (Forward::Resource(request), _) => Access::Resource { server, uri: own, request },
            (Forward::Prompt, _) => Access::Prompt { server, name: own },
            (Forward::Completion, Target::Prompt(_)) => {
                Access::Completion { server, of: Reference::Prompt(own) }
            }
            (Forward::Completion, Target::Uri(_)) => {
                Access::Completion { server, of: Reference::Resource(own) }
            }
        }
    }

    /// The arguments of a prompt, raw; empty where there are none.
    #[must_use]
    pub fn arguments(&self) -> &'a [u8] {
        self.arguments.unwrap_or_default().as_bytes()
    }

    /// What it brings along from an earlier round, as raw JSON `"key":value` joined by commas, or nothing.
    #[must_use]
    pub fn beside(&self) -> Bytes {
        Bytes::copy_from_slice(self.brought.as_bytes())
    }

    /// The params with `own` in the place of the target's word, `beside` in that of what it brings along, and without
    /// `_meta`. All else that the method has is as the client wrote it.
    #[must_use]
    pub fn params(&self, own: &str, beside: &[u8]) -> Bytes {
        let own = serde_json::Value::from(own).to_string();
        let other = self.other.unwrap_or(META);
        let [responses, state] = BROUGHT;
        let same = self.brought.as_bytes() == beside;
        let edits = [
            (META, None),
            (self.path, Some(&*own)),
            (other, None),
            (responses, None),
            (state, None),
        ];
        let edits = if same { &edits[..3] } else { &edits };
        // It was read before, and found good.
        let sent = shapes::sift(
            shape(self.forward),
            self.revision,
            self.text,
            edits,
            &mut Left::default(),
        );
        let sent = sent.unwrap_or_else(|_| "{}".to_owned());
        match (same, sent.strip_prefix('{')) {
            (false, Some(rest)) if !beside.is_empty() => {
                let comma: &[u8] = if rest.starts_with('}') { b"" } else { b"," };
                [b"{", beside, comma, rest.as_bytes()].concat().into()
            }
            (true | false, _) => sent.into(),
        }
    }

    /// `_meta` as a slice of `params`, which this was read from.
    #[must_use]
    pub fn meta(&self, params: &Bytes) -> Option<Bytes> {
        Some(params.slice_ref(self.meta?.as_bytes()))
    }
}

/// What the params of the method hold.
fn shape(forward: Forward) -> Shape {
    shapes::params(forward.method()).unwrap_or(Shape::Object(&[]))
}

/// What a request brings along from an earlier round; nothing where its method has no such members.
fn brought(
    forward: Forward,
    revision: Revision,
    all: &[Member<'_>],
) -> Result<String, MemberRefused> {
    let mut out = String::new();
    let Shape::Object(known) = shape(forward) else { return Ok(out) };
    for (name, value) in all.iter().filter(|(name, _)| BROUGHT.contains(&&**name)) {
        if let MemberMatch::Known(shape) = shapes::find(known, revision, name) {
            let value = shapes::sift_value(shape, revision, name, value, &mut Left::default())?;
            let comma = if out.is_empty() { "" } else { "," };
            out.extend([comma, "\"", name, "\":", &*value]);
        }
    }
    Ok(out)
}

/// The members of the object that `text` is.
fn collect(text: &str) -> Option<Vec<Member<'_>>> {
    members(text).ok()?.collect::<Result<_, _>>().ok()
}

fn find<'a>(members: &[Member<'a>], name: &str) -> Option<&'a str> {
    members.iter().find(|(key, _)| key == name).map(|(_, value)| *value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::ResourceRequest;

    const READ: Forward = Forward::Resource(ResourceRequest::Read);
    const SUBSCRIBE: Forward = Forward::Resource(ResourceRequest::Subscribe);

    #[test]
    fn only_the_word_is_replaced_and_meta_is_apart() {
        for (forward, params, target, own, expected) in [
            (
                READ,
                r#"{ "x":1.0e5 ,"_meta":{"a":[ ]},"uri" : "mcpproxy://s/a\u0062:c", "requestState":"\u0041"}"#,
                Target::Uri("mcpproxy://s/ab:c".into()),
                "ab:\"\n",
                r#"{"uri":"ab:\"\n","requestState":"\u0041"}"#,
            ),
            (
                Forward::Prompt,
                r#"{"name":"s__p","arguments":{"name" : "s__p"}}"#,
                Target::Prompt("s__p".into()),
                "p",
                r#"{"name":"p","arguments":{"name" : "s__p"}}"#,
            ),
            (
                Forward::Completion,
                r#"{"argument":{"name":"n","value":""},"ref":{ "name":"s__p", "type":"ref/prompt","title":1.0,"uri":"x:y"},"context":{}}"#,
                Target::Prompt("s__p".into()),
                "p",
                r#"{"argument":{"name":"n","value":""},"ref":{"name":"p","type":"ref/prompt","title":1.0},"context":{}}"#,
            ),
            (
                Forward::Completion,
                r#"{"ref":{"type":"ref/resource","uri":"mcpproxy://s/a:{b}","name":"x"}}"#,
                Target::Uri("mcpproxy://s/a:{b}".into()),
                "a:{b}",
                r#"{"ref":{"type":"ref/resource","uri":"a:{b}"}}"#,
            ),
        ] {
            let params = Bytes::from_static(params.as_bytes());
            let request = AddressedRequest::read(forward, Revision::NEWEST, &params).unwrap();
            assert_eq!(*request.target(), target);
            assert_eq!(request.params(own, &request.beside()), expected);
            let meta = (forward == READ).then_some(r#"{"a":[ ]}"#);
            assert_eq!(request.meta(&params).as_deref(), meta.map(str::as_bytes));
            let access = request.access("srv".into(), own);
            assert_eq!((access.method(), &**access.server()), (forward.method(), "srv"));
            let named = match access {
                Access::Resource { uri, .. } => Target::Uri(uri.into()),
                Access::Prompt { name, .. } => Target::Prompt(name.into()),
                Access::Completion { of: Reference::Prompt(name), .. } => {
                    Target::Prompt(name.into())
                }
                Access::Completion { of: Reference::Resource(uri), .. } => Target::Uri(uri.into()),
                Access::Tool(_) => panic!("no tool is called"),
            };
            let renamed = match target {
                Target::Uri(_) => Target::Uri(own.to_owned()),
                Target::Prompt(_) => Target::Prompt(own.to_owned()),
            };
            assert_eq!(named, renamed, "as its server calls it");
        }
    }

    #[test]
    fn what_names_nothing_is_refused() {
        for (forward, params, why) in [
            (READ, "{}", Unreadable::Word("uri")),
            (READ, "[]", Unreadable::Params),
            (SUBSCRIBE, r#"{"uri":7}"#, Unreadable::Word("uri")),
            (Forward::Prompt, r#"{"name":null}"#, Unreadable::Word("name")),
            (Forward::Prompt, r#"{"name":"x","_meta":7}"#, Unreadable::Meta),
            (Forward::Completion, "{}", Unreadable::Reference),
            (Forward::Completion, r#"{"ref":"x"}"#, Unreadable::Reference),
            (Forward::Completion, r#"{"ref":{"type":"x","name":"y"}}"#, Unreadable::Kind),
            (
                Forward::Completion,
                r#"{"ref":{"type":"ref/prompt","uri":"y"}}"#,
                Unreadable::Word("ref.name"),
            ),
            (
                Forward::Completion,
                r#"{"ref":{"type":"ref/resource"}}"#,
                Unreadable::Word("ref.uri"),
            ),
            (
                Forward::Completion,
                r#"{"ref":{"type":"ref/prompt","name":"x","Name":"y"}}"#,
                Unreadable::Refused(MemberRefused::variant("ref", "Name", "name")),
            ),
            (
                READ,
                r#"{"uri":"x","\u0055RI":"y"}"#,
                Unreadable::Refused(MemberRefused::variant("", "URI", "uri")),
            ),
        ] {
            let error = AddressedRequest::read(forward, Revision::NEWEST, params.as_bytes())
                .map(|_| ())
                .unwrap_err();
            assert_eq!(error, why, "{params}");
        }
    }
}
