//! What a request is about: the name or URI in its params, and the same params under another.
//!
//! Pure. Where a name leads is not known here.

use std::borrow::Cow;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::Error as _;
use serde_json::value::RawValue;

use super::Forward;
use crate::catalog::{exposed, listing};
use crate::intent::arguments::Members;
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
    members: Members<'a>,
    /// The member that holds the target's word, or the object around it.
    member: &'static str,
    /// Where the word stands in that member's value.
    at: Span,
    target: Target,
    forward: Forward,
}

#[derive(Deserialize)]
struct Reference<'a> {
    #[serde(rename = "type")]
    kind: Box<str>,
    #[serde(borrow)]
    name: Option<&'a RawValue>,
    #[serde(borrow)]
    uri: Option<&'a RawValue>,
}

impl<'a> Request<'a> {
    /// Reads `params`, in which no key stands twice.
    pub(super) fn read(forward: Forward, params: &'a [u8]) -> Result<Self, serde_json::Error> {
        let members = Members::parse(params)?;
        let member = match forward {
            Forward::Read | Forward::Subscribe | Forward::Unsubscribe => "uri",
            Forward::Prompt => "name",
            Forward::Complete => "ref",
        };
        let find = |name: &'static str| {
            let found = members.iter().find(|(key, _)| *key == name).map(|(_, value)| value);
            found.ok_or_else(|| serde_json::Error::missing_field(name))
        };
        let value = find(member)?;
        if let Ok(meta) = find(META)
            && !meta.get().starts_with('{')
        {
            return Err(serde_json::Error::custom("_meta must be an object"));
        }
        let (word, target): (_, fn(String) -> Target) = match forward {
            Forward::Read | Forward::Subscribe | Forward::Unsubscribe => (value, Target::Uri),
            Forward::Prompt => (value, Target::Prompt),
            Forward::Complete => {
                let reference: Reference<'_> = serde_json::from_str(value.get())?;
                let (name, word, target): (_, _, fn(String) -> Target) = match &*reference.kind {
                    "ref/prompt" => ("ref.name", reference.name, Target::Prompt),
                    "ref/resource" => ("ref.uri", reference.uri, Target::Uri),
                    _ => {
                        let text = "ref.type must be ref/prompt or ref/resource";
                        return Err(serde_json::Error::custom(text));
                    }
                };
                (word.ok_or_else(|| serde_json::Error::missing_field(name))?, target)
            }
        };
        let at = Span::of(value.get().as_bytes(), word.get().as_bytes());
        let target = target(serde_json::from_str(word.get())?);
        Ok(Self { members, member, at, target, forward })
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
        for (key, value) in self.members.iter().filter(|(key, _)| *key != META) {
            if out.len() > 1 {
                out.push(b',');
            }
            out.extend_from_slice(serde_json::Value::from(key).to_string().as_bytes());
            out.push(b':');
            if key == self.member {
                out.extend(listing::with_string(value.get().as_bytes(), self.at, own));
            } else {
                out.extend_from_slice(value.get().as_bytes());
            }
        }
        out.push(b'}');
        out.into()
    }

    /// `_meta` as a slice of `params`, which this was read from.
    pub(super) fn meta(&self, params: &Bytes) -> Option<Bytes> {
        let (_, meta) = self.members.iter().find(|(key, _)| *key == META)?;
        Some(params.slice_ref(meta.get().as_bytes()))
    }
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
            (Forward::Read, "{}", "missing field `uri`"),
            (Forward::Read, "[]", "expected an object"),
            (Forward::Subscribe, r#"{"uri":7}"#, "invalid type"),
            (Forward::Prompt, r#"{"name":null}"#, "invalid type"),
            (Forward::Prompt, r#"{"name":"x","_meta":7}"#, "_meta must be an object"),
            (Forward::Complete, r#"{"ref":"x"}"#, "invalid type"),
            (Forward::Complete, r#"{"ref":{"type":"x","name":"y"}}"#, "ref.type must be"),
            (Forward::Complete, r#"{"ref":{"type":"ref/prompt","uri":"y"}}"#, "ref.name"),
            (Forward::Complete, r#"{"ref":{"type":"ref/resource"}}"#, "ref.uri"),
        ] {
            let error = Request::read(forward, params.as_bytes()).map(|_| ()).unwrap_err();
            assert!(error.to_string().contains(why), "{params}: {error}");
        }
    }
}
