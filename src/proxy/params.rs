//! The parameters of `tools/call`, as slices of the request, and the headers that repeat some.
//!
//! Deliberately reads one object deep: what the arguments mean is the caller's business.

use std::borrow::Cow;

use bytes::Bytes;
use thiserror::Error;

use crate::json::members::{members, string};
use crate::mcp::capabilities::ClientCapabilities;
use crate::mcp::headers::{self, HeaderMismatch, PARAM_PREFIX};
use crate::mcp::message::Response;
use crate::mcp::revisions::Revision;
use crate::mcp::shapes::{self, Left, MemberMatch, MemberRefused};
use crate::tool::parameter_headers::ParameterHeaders;
use crate::upstream::CallExtras;

/// `params` of `tools/call`.
#[derive(Clone, Debug)]
pub struct CallParams<'a> {
    /// `name`
    pub name: Cow<'a, str>,
    /// `arguments`, raw; an empty object if there are none.
    pub arguments: Bytes,
    /// The rest: `_meta`, and members such as `inputResponses` and `requestState`.
    pub beside: CallExtras,
    /// What the method does not have by the client's revision, and stays behind.
    pub left: Left,
}

/// Why the params of a call cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
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
    #[error(transparent)]
    Refused(#[from] MemberRefused),
}

impl<'a> CallParams<'a> {
    /// Reads `params`, which were found to be valid JSON without a duplicate key, by the client's
    /// `revision`; `client_capabilities` is what can be asked of the client.
    ///
    /// # Errors
    /// [`Unreadable`].
    pub fn read(
        params: &'a Bytes,
        revision: Revision,
        client_capabilities: ClientCapabilities,
    ) -> Result<Self, Unreadable> {
        let text = std::str::from_utf8(params).map_err(|_| Unreadable::NotAnObject)?;
        let slice = |value: &str| params.slice_ref(value.as_bytes());
        let (mut name, mut meta, mut others) = (None, None, String::new());
        let mut left = Left::default();
        let mut arguments = Bytes::from_static(b"{}");
        for member in members(text).map_err(|_| Unreadable::NotAnObject)? {
            let (key, value) = member.map_err(|_| Unreadable::NotAnObject)?;
            match &*key {
                "name" => name = Some(string(value).ok_or(Unreadable::NameNotAString)?),
                "arguments" if value == "null" => {}
                "arguments" => arguments = slice(value),
                "_meta" if value == "null" => {}
                "_meta" if !value.starts_with('{') => return Err(Unreadable::MetaNotAnObject),
                "_meta" => {
                    shapes::check_free(shapes::META_KEYS, "_meta", value)?;
                    meta = Some(slice(value));
                }
                _ => push_member(revision, &key, value, &mut others, &mut left)?,
            }
        }
        let name = name.ok_or(Unreadable::NoName)?;
        Ok(Self {
            name,
            arguments,
            beside: CallExtras { meta, members: others.into(), client_capabilities, trace: None },
            left,
        })
    }
}

/// Any other member: `others` are those that go on, as raw JSON.
fn push_member(
    revision: Revision,
    name: &str,
    value: &str,
    others: &mut String,
    left: &mut Left,
) -> Result<(), MemberRefused> {
    match shapes::find(shapes::TOOLS_CALL, revision, name) {
        MemberMatch::Variant(known) => return Err(MemberRefused::variant("", name, known)),
        MemberMatch::Unknown => left.push("", name),
        MemberMatch::Known(shape) => {
            let comma = if others.is_empty() { "" } else { "," };
            let value = shapes::sift_value(shape, revision, name, value, left)?;
            others.extend([comma, "\"", name, "\":", &value]);
        }
    }
    Ok(())
}

/// What a client answered to `method`, as the member that is sent on: with what such an answer has
/// by the client's revision alone.
///
/// # Errors
/// [`MemberRefused`].
pub fn outcome(
    method: &str,
    revision: Revision,
    response: &Response,
    left: &mut Left,
) -> Result<Bytes, MemberRefused> {
    let text = std::str::from_utf8(&response.outcome).map_err(|_| MemberRefused::NotAnObject)?;
    for (member, shape) in [("result", shapes::result(method)), ("error", Some(shapes::error()))] {
        let value = text.strip_prefix(&*format!("\"{member}\":"));
        if let (Some(value), Some(shape)) = (value, shape) {
            let sent = shapes::sift_value(shape, revision, "", value, left)?;
            return Ok(format!("\"{member}\":{sent}").into());
        }
    }
    Ok(response.outcome.clone())
}

/// The headers of a request that repeat parameters of the tool it calls.
#[derive(Clone, Debug, Default)]
pub struct ParamHeaders(Vec<(Box<str>, Bytes)>);

impl ParamHeaders {
    /// Picks them out of a request's headers, given with their names in lower case.
    #[must_use]
    pub fn pick<'a>(headers: impl Iterator<Item = (&'a str, &'a [u8])>) -> Self {
        let ours = headers.filter(|(name, _)| name.starts_with(PARAM_PREFIX));
        Self(ours.map(|(name, value)| (name.into(), Bytes::copy_from_slice(value))).collect())
    }

    /// Whether they say what the arguments say (MCP 2026-07-28 §Server Behavior for Custom
    /// Headers). Those that the tool knows nothing of are nobody's business.
    ///
    /// # Errors
    /// The first disagreement.
    pub fn check(
        &self,
        parameter_headers: &ParameterHeaders,
        arguments: &[u8],
    ) -> Result<(), HeaderMismatch> {
        let arguments = std::str::from_utf8(arguments).unwrap_or_default();
        parameter_headers.of(arguments).try_for_each(|(header, said)| {
            let lines = self.0.iter().filter(|(name, _)| **name == *header);
            let lines = lines.map(|(_, value)| &**value);
            let form = said.as_ref().map_or(headers::Form::Encodable, |said| said.form);
            headers::agree(header, form, lines, said.as_ref().map(|said| &*said.text))
        })
    }
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
        CallParams::read(raw, Revision::July2026, ClientCapabilities::default()).unwrap()
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
    fn a_retry_keeps_what_it_brings_along_and_nothing_else() {
        let raw = Bytes::from_static(
            br#"{"requestState":"a\u0062","name":"x","inputResponses":{"q" : {"action":"accept","content":{ "N":1.0}}},"odd\"key":1.0,"task":{}}"#,
        );
        let read = read(&raw);
        assert_eq!(read.arguments, "{}");
        assert_eq!(
            read.beside.members,
            r#""requestState":"a\u0062","inputResponses":{"q":{"action":"accept","content":{ "N":1.0}}}"#
        );
        assert_eq!(read.left.names().collect::<Vec<_>>(), ["odd\"key", "task"]);
        let read =
            CallParams::read(&raw, Revision::November2025, ClientCapabilities::default()).unwrap();
        assert_eq!(read.beside.members, r#""task":{}"#);
    }

    #[test]
    fn what_only_case_tells_from_a_member_is_refused() {
        for (raw, name, known) in [
            (r#"{"name":"x","Name":"y"}"#, "Name", "name"),
            (r#"{"Arguments":{},"name":"x"}"#, "Arguments", "arguments"),
            (
                r#"{"name":"x","_meta":{"ProgressToken":1}}"#,
                "_meta.ProgressToken",
                "_meta.progressToken",
            ),
            (
                r#"{"name":"x","inputResponses":{"q":{"Action":1}}}"#,
                "inputResponses.q.Action",
                "inputResponses.q.action",
            ),
        ] {
            let raw = Bytes::from_static(raw.as_bytes());
            let refused = MemberRefused::Variant { name: name.into(), known: known.into() };
            for revision in [Revision::July2026, Revision::November2024] {
                // Of an earlier revision it stays behind whole.
                let read = CallParams::read(&raw, revision, ClientCapabilities::default());
                match (revision, name.starts_with("input")) {
                    (Revision::November2024, true) => assert!(read.is_ok()),
                    _ => assert_eq!(read.err(), Some(Unreadable::Refused(refused.clone()))),
                }
            }
        }
    }

    #[test]
    fn mcp_2026_headers_agree_with_the_parameters_they_repeat() {
        let schema = r#"{"properties":{"r":{"type":"string","x-mcp-header":"R"},
            "n":{"type":"integer","x-mcp-header":"N"}}}"#;
        let schema = serde_json::value::RawValue::from_string(schema.into()).unwrap();
        let parameter_headers = ParameterHeaders::read(&schema).unwrap().unwrap();
        let (r, n) = ("mcp-param-r", "mcp-param-n");
        for (headers, arguments, wrong) in [
            (&[(r, "a"), (n, "7")][..], r#"{"r":"a","n":7}"#, None),
            (&[(r, "=?base64?YQ==?="), (n, "7.0")], r#"{"r":"a","n":7}"#, None),
            (&[("mcp-param-x", "1"), ("x-r", "1")], "{}", None),
            (&[], r#"{"r":null,"n":null}"#, None),
            (&[(r, "YQ==")], r#"{"r":"a"}"#, Some("say different things")),
            (&[(r, "=?base64?YQ?=")], r#"{"r":"a"}"#, Some("cannot be read")),
            (&[(r, "a"), (r, "a")], r#"{"r":"a"}"#, Some("more than once")),
            (&[(n, "7")], r#"{"r":"a","n":7}"#, Some("mcp-param-r is missing")),
            (&[(n, "8")], r#"{"n":7}"#, Some("say different things")),
            (&[(n, "7")], r#"{"n":null}"#, Some("nothing in the body")),
        ] {
            let lines = headers.iter().map(|(name, value)| (*name, value.as_bytes()));
            let found = ParamHeaders::pick(lines).check(&parameter_headers, arguments.as_bytes());
            let said = found.err().map(|mismatch| mismatch.to_string()).unwrap_or_default();
            assert_eq!(said.is_empty(), wrong.is_none(), "{headers:?} {arguments}: {said}");
            assert!(said.contains(wrong.unwrap_or_default()), "{headers:?} {arguments}: {said}");
        }
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
            let raw = Bytes::from_static(raw.as_bytes());
            let read = CallParams::read(&raw, Revision::NEWEST, ClientCapabilities::default());
            assert!(read.is_err(), "{raw:?}");
        }
    }
}
