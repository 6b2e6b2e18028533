//! The parameters of `tools/call`, as slices of the request.
//!
//! Deliberately reads one object deep: what the arguments are is the affair of whoever calls.

use std::borrow::Cow;

use bytes::Bytes;
use thiserror::Error;

use crate::json::members::{members, string};
use crate::upstream::{Beside, Takes};

/// `params` of `tools/call`.
#[derive(Clone, Debug)]
pub struct CallParams<'a> {
    /// `name`
    pub name: Cow<'a, str>,
    /// `arguments`, raw; an empty object if there are none.
    pub arguments: Bytes,
    /// The rest: `_meta`, and members such as `inputResponses` and `requestState`.
    pub beside: Beside,
}

/// Why the params of a call cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[expect(missing_docs, reason = "each case is its text")]
pub enum Unreadable {
    #[error("params must be an object")]
    NotAnObject,
    #[error("name is missing")]
    NoName,
    #[error("name must be a string")]
    NameNotAString,
    #[error("_meta must be an object")]
    MetaNotAnObject,
}

impl<'a> CallParams<'a> {
    /// Reads `params`, which were found to be valid JSON without a duplicate key; `takes` is what
    /// can be asked of the client.
    ///
    /// # Errors
    /// [`Unreadable`].
    pub fn read(params: &'a Bytes, takes: Takes) -> Result<Self, Unreadable> {
        let text = std::str::from_utf8(params).map_err(|_| Unreadable::NotAnObject)?;
        let slice = |value: &str| params.slice_ref(value.as_bytes());
        let (mut name, mut meta, mut others) = (None, None, String::new());
        let mut arguments = Bytes::from_static(b"{}");
        for member in members(text).map_err(|_| Unreadable::NotAnObject)? {
            let (key, value) = member.map_err(|_| Unreadable::NotAnObject)?;
            match &*key {
                "name" => name = Some(string(value).ok_or(Unreadable::NameNotAString)?),
                "arguments" if value == "null" => {}
                "arguments" => arguments = slice(value),
                "_meta" if value == "null" => {}
                "_meta" if !value.starts_with('{') => return Err(Unreadable::MetaNotAnObject),
                "_meta" => meta = Some(slice(value)),
                _ => push_member(&mut others, &key, value),
            }
        }
        let name = name.ok_or(Unreadable::NoName)?;
        Ok(Self { name, arguments, beside: Beside { meta, members: others.into(), takes } })
    }
}

fn push_member(out: &mut String, key: &str, value: &str) {
    if !out.is_empty() {
        out.push(',');
    }
    out.push_str(&serde_json::Value::from(key).to_string());
    out.push(':');
    out.push_str(value);
}

/// The raw `progressToken` of an `_meta`, a string or an integer.
#[must_use]
pub fn progress_token(meta: &Bytes) -> Option<Bytes> {
    let mut members = members(std::str::from_utf8(meta).ok()?).ok()?.map_while(Result::ok);
    let (_, raw) = members.find(|(key, _)| key == "progressToken")?;
    let fits = raw.starts_with(|first: char| matches!(first, '"' | '-' | '0'..='9'));
    fits.then(|| meta.slice_ref(raw.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(raw: &Bytes) -> CallParams<'_> {
        CallParams::read(raw, Takes::default()).unwrap()
    }

    #[test]
    fn what_is_read_are_slices_of_the_request() {
        let raw =
            Bytes::from_static(br#"{ "name":"x", "arguments": {"a" : 1.0}, "_meta":{"k":[ ]} }"#);
        let read = read(&raw);
        assert!(matches!(read.name, Cow::Borrowed("x")), "a plain name costs nothing");
        assert_eq!(read.arguments, r#"{"a" : 1.0}"#);
        assert!(raw.as_ptr_range().contains(&read.arguments.as_ptr()));
        assert_eq!(read.beside.meta.unwrap(), r#"{"k":[ ]}"#);
        assert_eq!(read.beside.members, "");
    }

    #[test]
    fn a_retry_keeps_what_it_brings_along() {
        let raw = Bytes::from_static(
            br#"{"requestState":"a\u0062","name":"x","inputResponses":{"q" : {}},"odd\"key":1.0}"#,
        );
        let read = read(&raw);
        assert_eq!(read.arguments, "{}");
        assert_eq!(
            read.beside.members,
            r#""requestState":"a\u0062","inputResponses":{"q" : {}},"odd\"key":1.0"#
        );
    }

    #[test]
    fn a_progress_token_is_a_string_or_an_integer() {
        let token = |meta: &'static str| progress_token(&Bytes::from_static(meta.as_bytes()));
        assert_eq!(token(r#"{"a":1,"progressToken": "p\u0031" }"#).unwrap(), r#""p\u0031""#);
        assert_eq!(token(r#"{"progressToken":-7}"#).unwrap(), "-7");
        for none in ["{}", r#"{"progressToken":{}}"#, r#"{"progressToken":null}"#, "[]"] {
            assert_eq!(token(none), None, "{none}");
        }
    }

    #[test]
    fn what_is_no_call_is_refused() {
        for raw in ["[]", "null", "{}", r#"{"name":7}"#, r#"{"name":"x","_meta":[]}"#, "{"] {
            assert!(
                CallParams::read(&Bytes::from_static(raw.as_bytes()), Takes::default()).is_err(),
                "{raw}"
            );
        }
    }
}
