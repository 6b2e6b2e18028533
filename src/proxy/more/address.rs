//! What a request is about: the name or URI in its params, and the same params under another.
//!
//! Pure. Where a name leads is not known here.

use std::borrow::Cow;

use bytes::Bytes;
use thiserror::Error;

use super::Forward;
use crate::catalog::{exposed, listing};
use crate::json::members::{Member, members, string};
use crate::json::span::Span;

/// The hop's own member of every params object.
const META: &str = "_meta";

/// The name or URI of a thing, as clients know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// A resource's URI, or a template of URIs.
    Uri(String),
    /// A prompt's name.
    Prompt(String),
}

impl Target {
    /// The server and its own word, if the word itself says so.
    pub(super) fn split(&self) -> Option<(Cow<'_, str>, &str)> {
        match self {
            Self::Uri(uri) => exposed::split_uri(uri),
            Self::Prompt(name) => {
                exposed::split_name(name).map(|(server, own)| (server.into(), own))
            }
        }
    }

    /// As the client wrote it.
    pub(super) fn word(&self) -> &str {
        match self {
            Self::Uri(word) | Self::Prompt(word) => word,
        }
    }
}

/// A request's params, read.
pub(super) struct Request<'a> {
    members: Vec<Member<'a>>,
    /// The member that holds the target's word, or the object around it.
    member: &'static str,
    /// Where the word stands in that member's value.
    at: Span,
    target: Target,
    forward: Forward,
}

/// Why params cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(super) enum Unreadable {
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
}

impl<'a> Request<'a> {
    /// Reads `params`, which are valid JSON and hold no key twice.
    pub(super) fn read(forward: Forward, params: &'a [u8]) -> Result<Self, Unreadable> {
        let text = std::str::from_utf8(params).map_err(|_| Unreadable::Params)?;
        let members = collect(text).ok_or(Unreadable::Params)?;
        if find(&members, META).is_some_and(|meta| !meta.starts_with('{')) {
            return Err(Unreadable::Meta);
        }
        let member = match forward {
            Forward::Read | Forward::Subscribe | Forward::Unsubscribe => "uri",
            Forward::Prompt => "name",
            Forward::Complete => "ref",
        };
        let value = find(&members, member).unwrap_or_default();
        let (word, name, target): (_, _, fn(String) -> Target) = match forward {
            Forward::Read | Forward::Subscribe | Forward::Unsubscribe => {
                (value, member, Target::Uri)
            }
            Forward::Prompt => (value, member, Target::Prompt),
            Forward::Complete => {
                let reference = collect(value).ok_or(Unreadable::Reference)?;
                let within = |name| find(&reference, name).unwrap_or_default();
                match string(within("type")).as_deref() {
                    Some("ref/prompt") => (within("name"), "ref.name", Target::Prompt),
                    Some("ref/resource") => (within("uri"), "ref.uri", Target::Uri),
                    Some(_) | None => return Err(Unreadable::Kind),
                }
            }
        };
        let own = string(word).ok_or(Unreadable::Word(name))?;
        let at = Span::of(value.as_bytes(), word.as_bytes());
        Ok(Self { members, member, at, target: target(own.into_owned()), forward })
    }

    pub(super) fn target(&self) -> &Target {
        &self.target
    }

    /// What the header `Mcp-Name` repeats, when the target is called `own`.
    pub(super) fn header<'b>(&self, own: &'b str) -> Option<&'b str> {
        match self.forward {
            Forward::Read | Forward::Subscribe | Forward::Unsubscribe | Forward::Prompt => {
                Some(own)
            }
            Forward::Complete => None,
        }
    }

    /// The params with `own` in the place of the target's word, and without `_meta`. All else is
    /// as the client wrote it.
    pub(super) fn params(&self, own: &str) -> Bytes {
        let mut out = vec![b'{'];
        for (key, value) in self.members.iter().filter(|(key, _)| key != META) {
            if out.len() > 1 {
                out.push(b',');
            }
            out.extend_from_slice(serde_json::Value::from(&**key).to_string().as_bytes());
            out.push(b':');
            if key == self.member {
                out.extend(listing::with_string(value.as_bytes(), self.at, own));
            } else {
                out.extend_from_slice(value.as_bytes());
            }
        }
        out.push(b'}');
        out.into()
    }

    /// `_meta` as a slice of `params`, which this was read from.
    pub(super) fn meta(&self, params: &Bytes) -> Option<Bytes> {
        Some(params.slice_ref(find(&self.members, META)?.as_bytes()))
    }
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

    #[test]
    fn only_the_word_is_replaced_and_meta_is_apart() {
        for (forward, params, target, own, expected) in [
            (
                Forward::Read,
                r#"{ "x":1.0e5 ,"_meta":{"a":[ ]},"uri" : "mcpproxy://s/a\u0062:c", "requestState":"\u0041"}"#,
                Target::Uri("mcpproxy://s/ab:c".into()),
                "ab:\"\n",
                r#"{"x":1.0e5,"uri":"ab:\"\n","requestState":"\u0041"}"#,
            ),
            (
                Forward::Prompt,
                r#"{"name":"s__p","arguments":{"name" : "s__p"}}"#,
                Target::Prompt("s__p".into()),
                "p",
                r#"{"name":"p","arguments":{"name" : "s__p"}}"#,
            ),
            (
                Forward::Complete,
                r#"{"argument":{"name":"n","value":""},"ref":{ "name":"s__p", "type":"ref/prompt","title":1.0},"context":{}}"#,
                Target::Prompt("s__p".into()),
                "p",
                r#"{"argument":{"name":"n","value":""},"ref":{ "name":"p", "type":"ref/prompt","title":1.0},"context":{}}"#,
            ),
            (
                Forward::Complete,
                r#"{"ref":{"type":"ref/resource","uri":"mcpproxy://s/a:{b}","name":"x"}}"#,
                Target::Uri("mcpproxy://s/a:{b}".into()),
                "a:{b}",
                r#"{"ref":{"type":"ref/resource","uri":"a:{b}","name":"x"}}"#,
            ),
        ] {
            let params = Bytes::from_static(params.as_bytes());
            let request = Request::read(forward, &params).unwrap();
            assert_eq!(*request.target(), target);
            assert_eq!(request.params(own), expected);
            let meta = (forward == Forward::Read).then_some(r#"{"a":[ ]}"#);
            assert_eq!(request.meta(&params).as_deref(), meta.map(str::as_bytes));
            assert_eq!(request.header(own).is_none(), forward == Forward::Complete);
        }
    }

    #[test]
    fn what_names_nothing_is_refused() {
        for (forward, params, why) in [
            (Forward::Read, "{}", Unreadable::Word("uri")),
            (Forward::Read, "[]", Unreadable::Params),
            (Forward::Subscribe, r#"{"uri":7}"#, Unreadable::Word("uri")),
            (Forward::Prompt, r#"{"name":null}"#, Unreadable::Word("name")),
            (Forward::Prompt, r#"{"name":"x","_meta":7}"#, Unreadable::Meta),
            (Forward::Complete, "{}", Unreadable::Reference),
            (Forward::Complete, r#"{"ref":"x"}"#, Unreadable::Reference),
            (Forward::Complete, r#"{"ref":{"type":"x","name":"y"}}"#, Unreadable::Kind),
            (
                Forward::Complete,
                r#"{"ref":{"type":"ref/prompt","uri":"y"}}"#,
                Unreadable::Word("ref.name"),
            ),
            (Forward::Complete, r#"{"ref":{"type":"ref/resource"}}"#, Unreadable::Word("ref.uri")),
        ] {
            let error = Request::read(forward, params.as_bytes()).map(|_| ()).unwrap_err();
            assert_eq!(error, why, "{params}");
        }
    }
}
