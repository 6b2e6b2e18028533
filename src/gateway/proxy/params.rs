//! Parameters of `tools/call` and of requests about resources, prompts and completions, as slices of the request.
//! Pure functions.
//!
//! They parse one object level, replace a request's name or URI with the server's own, drop members unknown to the
//! method, and compare parameters with the headers that repeat them.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use mcpproxy_catalog::exposed;
use mcpproxy_json::members::{Member, member, members, string};
use mcpproxy_policy::tool::ParameterHeaders;
use mcpproxy_policy::{Access, COMPLETION_COMPLETE, PROMPTS_GET, Reference, ResourceRequest};
use mcpproxy_protocol::mcp::bounds::{
    MAX_NAME_BYTES, MAX_PROGRESS_TOKEN_BYTES, MAX_URI_BYTES, MAX_URI_PREFIX_BYTES, OverLimit,
};
use mcpproxy_protocol::mcp::capabilities::ClientCapabilities;
use mcpproxy_protocol::mcp::headers::{HeaderMismatch, PARAM_PREFIX};
use mcpproxy_protocol::mcp::message::Response;
use mcpproxy_protocol::mcp::meta::{
    CAPABILITIES_KEY, CLIENT_KEY, LOG_LEVEL_KEY, PROGRESS_KEY, VERSION_KEY,
};
use mcpproxy_protocol::mcp::revisions::Revision;
use mcpproxy_protocol::mcp::shapes::{Left, MemberMatch, MemberRefused, Shape};
use mcpproxy_protocol::mcp::{bounds, headers, shapes};
use mcpproxy_upstream::CallExtras;
use thiserror::Error;

/// Params of `tools/call`.
#[derive(Clone, Debug)]
pub struct CallParams<'a> {
    pub name: Cow<'a, str>,
    /// Raw `arguments`; an empty object if absent.
    pub arguments: Bytes,
    /// Other members: `_meta`, `inputResponses`, `requestState`.
    pub extras: CallExtras,
    /// Members that are dropped because the client's revision does not define them.
    pub left: Left,
}

/// Reason why the params of a call cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
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
    OverLimit(#[from] OverLimit),
    #[error(transparent)]
    Refused(#[from] MemberRefused),
}

impl<'a> CallParams<'a> {
    /// Parses `params`, which are valid JSON without duplicate keys, by the client's `revision`.
    /// `client_capabilities` limits the questions that the client can be asked.
    pub fn read(
        params: &'a Bytes,
        revision: Revision,
        client_capabilities: ClientCapabilities,
    ) -> Result<Self, Unreadable> {
        let text = std::str::from_utf8(params).map_err(|_| Unreadable::NotAnObject)?;
        let slice = |value: &str| params.slice_ref(value.as_bytes());
        let (mut name, mut meta, mut task, mut others) = (None, None, None, String::new());
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
                    check_progress_token(Some(value))?;
                    meta = Some(slice(value));
                }
                _ => {
                    let kept = push_member(revision, &key, value, &mut others, &mut left)?;
                    task = task.or(kept);
                }
            }
        }
        let name = name.ok_or(Unreadable::NoName)?;
        bounds::within("name", &*name, MAX_NAME_BYTES)?;
        Ok(Self {
            name,
            arguments,
            extras: CallExtras {
                meta,
                members: others.into(),
                client_capabilities,
                task,
                ..CallExtras::default()
            },
            left,
        })
    }
}

/// Member that asks for a task instead of a result (MCP 2025-11-25 §Tasks).
pub(super) const TASK: &str = "task";

/// Reduces a client's [`TASK`] to its `ttl`, if that is a whole number of milliseconds. Anything else could carry
/// data that is neither approved nor visible.
fn asked_task(value: &str) -> Bytes {
    let ttl = member(value, "ttl").and_then(|ttl| ttl.parse::<u64>().ok());
    ttl.map_or_else(|| "{}".into(), |ttl| format!("{{\"ttl\":{ttl}}}").into())
}

/// Handles any other member; `others` collects the forwarded ones as raw JSON. Returns [`TASK`], which is sent only
/// to servers with tasks.
fn push_member(
    revision: Revision,
    name: &str,
    value: &str,
    others: &mut String,
    left: &mut Left,
) -> Result<Option<Bytes>, MemberRefused> {
    match shapes::find(shapes::TOOLS_CALL, revision, name) {
        MemberMatch::Variant(known) => return Err(MemberRefused::variant("", name, known)),
        MemberMatch::Known(shape) if name == TASK => {
            let value = shapes::sift_value(shape, revision, name, value, left)?;
            return Ok(Some(asked_task(&value)));
        }
        MemberMatch::Unknown => left.push("", name),
        MemberMatch::Known(shape) => {
            let comma = if others.is_empty() { "" } else { "," };
            let value = shapes::sift_value(shape, revision, name, value, left)?;
            others.extend([comma, "\"", name, "\":", &value]);
        }
    }
    Ok(None)
}

/// Member of a client's response to `method` to forward, reduced to the client's revision.
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

/// Request headers that repeat parameters of the called tool.
#[derive(Clone, Debug, Default)]
pub struct ParamHeaders(Vec<(Box<str>, Bytes)>);

impl ParamHeaders {
    /// Picks the parameter headers of a request, whose names are in lower case.
    pub fn pick<'a>(headers: impl Iterator<Item = (&'a str, &'a [u8])>) -> Self {
        let ours = headers.filter(|(name, _)| name.starts_with(PARAM_PREFIX));
        Self(ours.map(|(name, value)| (name.into(), Bytes::copy_from_slice(value))).collect())
    }

    /// Checks the headers against the arguments (MCP 2026-07-28 §Server Behavior for Custom Headers). Headers
    /// unknown to the tool are ignored.
    pub(crate) fn check(
        &self,
        parameter_headers: &ParameterHeaders,
        arguments: &[u8],
    ) -> Result<(), HeaderMismatch> {
        let arguments = std::str::from_utf8(arguments).unwrap_or_default();
        parameter_headers.of(arguments).try_for_each(|(header, expected)| {
            let lines = self.0.iter().filter(|(name, _)| **name == *header);
            let lines = lines.map(|(_, value)| &**value);
            let form = expected.as_ref().map_or(headers::Form::Encodable, |expected| expected.form);
            headers::agree(header, form, lines, expected.as_ref().map(|expected| &*expected.text))
        })
    }
}

/// Raw `progressToken` of a `_meta`: a string or an integer.
pub(crate) fn progress_token(meta: &Bytes) -> Option<Bytes> {
    let raw = raw_progress_token(std::str::from_utf8(meta).ok()?)?;
    Some(meta.slice_ref(raw.as_bytes()))
}

fn raw_progress_token(meta: &str) -> Option<&str> {
    let raw = member(meta, "progressToken")?;
    raw.starts_with(|first: char| matches!(first, '"' | '-' | '0'..='9')).then_some(raw)
}

/// Checks the length of a `_meta`'s progress token.
pub(super) fn check_progress_token(meta: Option<&str>) -> Result<(), OverLimit> {
    // A short `_meta` has no long token.
    let long = meta.filter(|meta| meta.len() > MAX_PROGRESS_TOKEN_BYTES);
    let token = long.and_then(raw_progress_token).unwrap_or_default();
    bounds::within("_meta.progressToken", token, MAX_PROGRESS_TOKEN_BYTES)
}

/// Member that every params object may have. It is forwarded separately from the other members.
const META: &str = "_meta";
const ARGUMENTS: &str = "arguments";
/// Keys of `_meta` that the proxy replaces, or that only declare client capabilities.
const OF_THE_HOP: [&str; 5] =
    [VERSION_KEY, CLIENT_KEY, CAPABILITIES_KEY, LOG_LEVEL_KEY, PROGRESS_KEY];
/// Members of a repeated request (MCP 2026-07-28 §Multi Round-Trip Requests).
const BROUGHT: [&str; 2] = ["inputResponses", "requestState"];

/// Member of a directory read that the client may choose freely.
const CURSOR: &str = "cursor";

/// Members of a completion with the user's input.
const COMPLETED: [&str; 2] = ["argument", "context"];

/// Name or URI as clients know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// URI or URI template of a resource.
    Uri(String),
    Prompt(String),
}

impl Target {
    /// Server and its own name, if the name determines them.
    pub(crate) fn split(&self) -> Option<(Cow<'_, str>, Cow<'_, str>)> {
        match self {
            Self::Uri(uri) => exposed::split_uri(uri),
            Self::Prompt(name) => {
                exposed::split_name(name).map(|(server, own)| (server.into(), own.into()))
            }
        }
    }

    /// Checks the length; `path` is the member's location.
    fn check(&self, path: &'static str) -> Result<(), OverLimit> {
        match self {
            Self::Uri(uri) => {
                let own = exposed::split_uri(uri).map_or(Cow::Borrowed(&**uri), |(_, own)| own);
                bounds::within(path, &*own, MAX_URI_BYTES)
            }
            Self::Prompt(name) => bounds::within(path, name, MAX_NAME_BYTES),
        }
    }

    /// The name or URI as the client wrote it.
    pub(crate) fn word(&self) -> &str {
        match self {
            Self::Uri(word) | Self::Prompt(word) => word,
        }
    }
}

/// Parsed params of a request about a resource, prompt or completion.
pub struct AddressedRequest<'a> {
    text: &'a str,
    meta: Option<&'a str>,
    arguments: Option<&'a str>,
    /// Members of a completion besides its target, as one raw object.
    input: Option<String>,
    /// Raw JSON, `"key":value` joined by commas.
    brought: String,
    revision: Revision,
    /// Path of the member with the name or URI.
    path: &'static str,
    /// Path of the corresponding member of the other reference type.
    other: Option<&'static str>,
    target: Target,
    forward: Forward,
    /// Members that are dropped because the method does not define them.
    pub left: Left,
}

/// Reason why params cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum UnreadableAddress {
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
    OverLimit(#[from] OverLimit),
    #[error(transparent)]
    Refused(#[from] MemberRefused),
}

impl<'a> AddressedRequest<'a> {
    /// Parses `params`, which are valid JSON without duplicate keys, by the client's `revision`.
    pub fn read(
        forward: Forward,
        revision: Revision,
        params: &'a [u8],
    ) -> Result<Self, UnreadableAddress> {
        let text = std::str::from_utf8(params).map_err(|_| UnreadableAddress::Params)?;
        let members = collect(text).ok_or(UnreadableAddress::Params)?;
        let (meta, arguments) = (find(&members, META), find(&members, ARGUMENTS));
        if meta.is_some_and(|meta| !meta.starts_with('{')) {
            return Err(UnreadableAddress::Meta);
        }
        let mut left = Left::default();
        shapes::sift(shape(forward), revision, text, &[], &mut left)?;
        let (word, path, other, target): (_, _, _, fn(String) -> Target) = match forward {
            Forward::Resource(_) => (find(&members, "uri"), "uri", None, Target::Uri),
            Forward::Prompt => (find(&members, "name"), "name", None, Target::Prompt),
            Forward::Completion => {
                let reference = collect(find(&members, "ref").unwrap_or_default());
                let reference = reference.ok_or(UnreadableAddress::Reference)?;
                let within = |name| find(&reference, name);
                let kind = string(within("type").unwrap_or_default());
                let (name, uri) = (within("name"), within("uri"));
                match kind.as_deref() {
                    Some("ref/prompt") => {
                        (name, "ref.name", uri.map(|_| "ref.uri"), Target::Prompt)
                    }
                    Some("ref/resource") => (uri, "ref.uri", name.map(|_| "ref.name"), Target::Uri),
                    Some(_) | None => return Err(UnreadableAddress::Kind),
                }
            }
        };
        if let Some(other) = other {
            left.push("", other);
        }
        let own = string(word.unwrap_or_default()).ok_or(UnreadableAddress::Word(path))?;
        let limit = match forward {
            Forward::Prompt => MAX_NAME_BYTES,
            Forward::Resource(_) | Forward::Completion => MAX_URI_PREFIX_BYTES + MAX_URI_BYTES,
        };
        // The length is checked before the name is parsed.
        if own.len() > limit {
            return Err(OverLimit { what: path, limit: limit.min(MAX_URI_BYTES) }.into());
        }
        let target = target(own.into_owned());
        target.check(path)?;
        check_progress_token(meta)?;
        let brought = brought(forward, revision, &members)?;
        let input = match forward {
            Forward::Completion => {
                let input = COMPLETED.map(|name| (name, find(&members, name)));
                let input = input.into_iter().filter_map(|(name, value)| Some((name, value?)));
                let input: Vec<_> =
                    input.map(|(name, value)| format!("\"{name}\":{value}")).collect();
                Some(format!("{{{}}}", input.join(",")))
            }
            Forward::Resource(ResourceRequest::ReadDirectory) => {
                let cursor = find(&members, CURSOR).filter(|cursor| *cursor != "null");
                if cursor.is_some_and(|cursor| string(cursor).is_none()) {
                    return Err(UnreadableAddress::Word(CURSOR));
                }
                cursor.map(|cursor| format!("{{\"{CURSOR}\":{cursor}}}"))
            }
            Forward::Resource(_) | Forward::Prompt => None,
        };
        Ok(Self {
            text,
            meta,
            arguments,
            input,
            brought,
            revision,
            path,
            other,
            target,
            forward,
            left,
        })
    }

    pub(crate) fn target(&self) -> &Target {
        &self.target
    }

    /// Access to `server`, where the target is called `own`.
    pub(crate) fn access(&self, server: Arc<str>, own: &str) -> Access {
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

    /// Whether the request carries client-chosen data besides the target: arguments, members of a repeated request, or
    /// keys of `_meta` other than [`OF_THE_HOP`].
    pub(crate) fn carries_more(&self) -> bool {
        let names = |object: &'a str| {
            let all = members(object).ok().into_iter().flatten();
            all.map(|member| member.map_or(Cow::Borrowed(""), |(name, _)| name))
        };
        let is_foreign = |name: Cow<'_, str>| !OF_THE_HOP.contains(&&*name);
        !self.brought.is_empty()
            || self.input.is_some()
            || self.arguments.is_some_and(|arguments| {
                !arguments.starts_with('{') || names(arguments).next().is_some()
            })
            || self.meta.is_some_and(|meta| names(meta).any(is_foreign))
    }

    /// Raw arguments of a prompt, or the input of a completion or directory read as one object; empty if absent.
    /// `params` must be the parsed ones.
    pub(crate) fn arguments(&self, params: &Bytes) -> Bytes {
        match &self.input {
            Some(input) => Bytes::copy_from_slice(input.as_bytes()),
            None => params.slice_ref(self.arguments.unwrap_or_default().as_bytes()),
        }
    }

    /// Members of a repeated request (`inputResponses`, `requestState`), as raw JSON `"key":value` joined by commas;
    /// may be empty.
    pub fn members(&self) -> Bytes {
        Bytes::copy_from_slice(self.brought.as_bytes())
    }

    /// Params with `own` as the target, `members` as those of a repeated request, and without `_meta`. All other
    /// members of the method are unchanged.
    pub fn params(&self, own: &str, members: &[u8]) -> Bytes {
        let own = serde_json::Value::from(own).to_string();
        let other = self.other.unwrap_or(META);
        let [responses, state] = BROUGHT;
        let same = self.brought.as_bytes() == members;
        let edits = [
            (META, None),
            (self.path, Some(&*own)),
            (other, None),
            (responses, None),
            (state, None),
        ];
        let edits = if same { &edits[..3] } else { &edits };
        // The params were parsed successfully before.
        let sent = shapes::sift(
            shape(self.forward),
            self.revision,
            self.text,
            edits,
            &mut Left::default(),
        );
        let sent = sent.unwrap_or_else(|_| "{}".to_owned());
        match (same, sent.strip_prefix('{')) {
            (false, Some(rest)) if !members.is_empty() => {
                let comma: &[u8] = if rest.starts_with('}') { b"" } else { b"," };
                [b"{", members, comma, rest.as_bytes()].concat().into()
            }
            (true | false, _) => sent.into(),
        }
    }

    /// `_meta` as a slice of `params`, which must be the parsed ones.
    pub fn meta(&self, params: &Bytes) -> Option<Bytes> {
        Some(params.slice_ref(self.meta?.as_bytes()))
    }
}

/// Params of the method.
fn shape(forward: Forward) -> Shape {
    shapes::params(forward.method()).unwrap_or(Shape::Object(&[]))
}

/// Members of a repeated request; empty if the method has none.
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

/// Params of a forwarded request without the members of a repeated request.
pub(super) fn without_brought(params: &Bytes) -> Bytes {
    let all = std::str::from_utf8(params).ok().and_then(collect);
    let is_brought = |(name, _): &Member<'_>| BROUGHT.contains(&&**name);
    let Some(all) = all.filter(|all| all.iter().any(is_brought)) else { return params.clone() };
    let mut out = String::from("{");
    for (name, value) in all.iter().filter(|member| !is_brought(member)) {
        let comma = if out.len() > 1 { "," } else { "" };
        let name = serde_json::Value::from(&**name).to_string();
        out.extend([comma, &name, ":", value]);
    }
    out.push('}');
    out.into()
}

/// Members of an object.
fn collect(text: &str) -> Option<Vec<Member<'_>>> {
    members(text).ok()?.collect::<Result<_, _>>().ok()
}

fn find<'a>(members: &[Member<'a>], name: &str) -> Option<&'a str> {
    members.iter().find(|(key, _)| key == name).map(|(_, value)| *value)
}

/// Request that is forwarded to one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forward {
    /// Request about a resource, a directory or a skill.
    Resource(ResourceRequest),
    Prompt,
    Completion,
}

impl Forward {
    pub const fn method(self) -> &'static str {
        match self {
            Self::Resource(request) => request.method(),
            Self::Prompt => PROMPTS_GET,
            Self::Completion => COMPLETION_COMPLETE,
        }
    }
}

#[cfg(test)]
mod tests {
    use mcpproxy_policy::ResourceRequest;

    use super::*;

    fn read(raw: &Bytes) -> CallParams<'_> {
        CallParams::read(raw, Revision::July2026, ClientCapabilities::default()).unwrap()
    }

    #[test]
    fn parsed_params_are_slices_of_the_request() {
        let raw =
            Bytes::from_static(br#"{ "name":"x", "arguments": {"a" : 1.0}, "_meta":{"k":[ ]} }"#);
        let read = read(&raw);
        assert!(matches!(read.name, Cow::Borrowed("x")), "a plain name is borrowed");
        assert_eq!(read.arguments, r#"{"a" : 1.0}"#);
        assert!(raw.as_ptr_range().contains(&read.arguments.as_ptr()));
        assert_eq!(read.extras.meta.unwrap(), r#"{"k":[ ]}"#);
        assert_eq!(read.extras.members, "");
    }

    #[test]
    fn repeated_request_keeps_only_its_members() {
        let raw = Bytes::from_static(
            br#"{"requestState":"a\u0062","name":"x","inputResponses":{"q" : {"action":"accept","content":{ "N":1.0}}},"odd\"key":1.0,"task":{}}"#,
        );
        let read = read(&raw);
        assert_eq!(read.arguments, "{}");
        assert_eq!(
            read.extras.members,
            r#""requestState":"a\u0062","inputResponses":{"q":{"action":"accept","content":{ "N":1.0}}}"#
        );
        assert_eq!(read.left.names().collect::<Vec<_>>(), ["odd\"key", "task"]);
        let read =
            CallParams::read(&raw, Revision::November2025, ClientCapabilities::default()).unwrap();
        assert_eq!(read.extras.members, "");
        assert_eq!(
            read.extras.task.as_deref(),
            Some(&b"{}"[..]),
            "only a server with tasks gets it"
        );
    }

    #[test]
    fn member_that_differs_only_by_case_is_refused() {
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
                // In an earlier revision, the member is dropped completely.
                let read = CallParams::read(&raw, revision, ClientCapabilities::default());
                match (revision, name.starts_with("input")) {
                    (Revision::November2024, true) => assert!(read.is_ok()),
                    _ => assert_eq!(read.err(), Some(Unreadable::Refused(refused.clone()))),
                }
            }
        }
    }

    #[test]
    fn mcp_2026_headers_must_match_parameters() {
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
            (&[(r, "YQ==")], r#"{"r":"a"}"#, Some("differs from the body")),
            (&[(r, "=?base64?YQ?=")], r#"{"r":"a"}"#, Some("cannot be read")),
            (&[(r, "a"), (r, "a")], r#"{"r":"a"}"#, Some("more than once")),
            (&[(n, "7")], r#"{"r":"a","n":7}"#, Some("mcp-param-r is missing")),
            (&[(n, "8")], r#"{"n":7}"#, Some("differs from the body")),
            (&[(n, "7")], r#"{"n":null}"#, Some("no counterpart in the body")),
        ] {
            let lines = headers.iter().map(|(name, value)| (*name, value.as_bytes()));
            let found = ParamHeaders::pick(lines).check(&parameter_headers, arguments.as_bytes());
            let message = found.err().map(|mismatch| mismatch.to_string()).unwrap_or_default();
            assert_eq!(message.is_empty(), wrong.is_none(), "{headers:?} {arguments}: {message}");
            assert!(
                message.contains(wrong.unwrap_or_default()),
                "{headers:?} {arguments}: {message}"
            );
        }
    }

    #[test]
    fn progress_token_is_a_string_or_an_integer() {
        let token = |meta: &'static str| progress_token(&Bytes::from_static(meta.as_bytes()));
        assert_eq!(token(r#"{"a":1,"progressToken": "p\u0031" }"#).unwrap(), r#""p\u0031""#);
        assert_eq!(token(r#"{"progressToken":-7}"#).unwrap(), "-7");
        for none in ["{}", r#"{"progressToken":{}}"#, r#"{"progressToken":null}"#, "[]"] {
            assert_eq!(token(none), None, "{none}");
        }
    }

    #[test]
    fn name_or_token_over_its_limit_is_refused() {
        let read = |name: usize, token: usize| {
            let (name, token) = ("n".repeat(name), "1".repeat(token));
            let raw = format!(r#"{{"name":"{name}","_meta":{{"progressToken":{token}}}}}"#);
            CallParams::read(&raw.into(), Revision::NEWEST, ClientCapabilities::default())
                .map(|_| ())
                .map_err(|refused| refused.to_string())
        };
        assert_eq!(read(MAX_NAME_BYTES, MAX_PROGRESS_TOKEN_BYTES), Ok(()));
        let too_long = read(MAX_NAME_BYTES + 1, 1).unwrap_err();
        assert_eq!(too_long, "name is longer than 1024 bytes");
        let too_long = read(1, MAX_PROGRESS_TOKEN_BYTES + 1).unwrap_err();
        assert_eq!(too_long, "_meta.progressToken is longer than 256 bytes");
    }

    #[test]
    fn invalid_call_params_are_refused() {
        for raw in ["[]", "null", "{}", r#"{"name":7}"#, r#"{"name":"x","_meta":[]}"#, "{"] {
            let raw = Bytes::from_static(raw.as_bytes());
            let read = CallParams::read(&raw, Revision::NEWEST, ClientCapabilities::default());
            assert!(read.is_err(), "{raw:?}");
        }
    }

    const READ: Forward = Forward::Resource(ResourceRequest::Read);
    const SUBSCRIBE: Forward = Forward::Resource(ResourceRequest::Subscribe);

    #[test]
    fn params_keep_all_members_except_target_and_meta() {
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
            assert_eq!(request.params(own, &request.members()), expected);
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
                Access::Tool(_) | Access::Method { .. } | Access::Task(_) => {
                    panic!("none of them is requested")
                }
            };
            let renamed = match target {
                Target::Uri(_) => Target::Uri(own.to_owned()),
                Target::Prompt(_) => Target::Prompt(own.to_owned()),
            };
            assert_eq!(named, renamed, "the server's own name");
        }
    }

    #[test]
    fn apr_1_cursor_of_a_directory_read_is_part_of_the_approval() {
        const DIRECTORY: Forward = Forward::Resource(ResourceRequest::ReadDirectory);
        for (params, arguments) in [
            (r#"{"uri":"skill://s/x","cursor":"a"}"#, r#"{"cursor":"a"}"#),
            (r#"{"uri":"skill://s/x"}"#, ""),
            (r#"{"uri":"skill://s/x","cursor":null}"#, ""),
        ] {
            let params = Bytes::from_static(params.as_bytes());
            let request = AddressedRequest::read(DIRECTORY, Revision::NEWEST, &params).unwrap();
            assert_eq!(request.arguments(&params), arguments);
            assert_eq!(request.carries_more(), !arguments.is_empty());
        }
        let params = Bytes::from_static(br#"{"uri":"skill://s/x","cursor":{"a":1}}"#);
        assert!(AddressedRequest::read(DIRECTORY, Revision::NEWEST, &params).is_err());
    }

    #[test]
    fn client_data_besides_the_target_is_detected() {
        for (forward, params, carries) in [
            (READ, r#"{"uri":"x:y"}"#, false),
            (READ, r#"{"uri":"x:y","_meta":{"progressToken":1}}"#, false),
            (READ, r#"{"uri":"x:y","_meta":{"note":"secret"}}"#, true),
            (READ, r#"{"uri":"x:y","requestState":"secret"}"#, true),
            (Forward::Prompt, r#"{"name":"p"}"#, false),
            (Forward::Prompt, r#"{"name":"p","arguments":{ }}"#, false),
            (Forward::Prompt, r#"{"name":"p","arguments":{"a":"secret"}}"#, true),
        ] {
            let request = AddressedRequest::read(forward, Revision::NEWEST, params.as_bytes());
            assert_eq!(request.unwrap().carries_more(), carries, "{params}");
        }
    }

    #[test]
    fn uri_or_name_over_its_limit_is_refused() {
        let read = |forward: Forward, params: String| {
            AddressedRequest::read(forward, Revision::NEWEST, params.as_bytes()).map(|_| ())
        };
        let (uri, name) = ("x".repeat(MAX_URI_BYTES), "x".repeat(MAX_NAME_BYTES));
        let too_long = |what, limit| Err(UnreadableAddress::OverLimit(OverLimit { what, limit }));
        for forward in [READ, SUBSCRIBE] {
            for prefix in ["", "mcpproxy://s/"] {
                let fits = format!(r#"{{"uri":"{prefix}{uri}"}}"#);
                assert_eq!(read(forward, fits), Ok(()));
                for more in [1, 8 << 20] {
                    let more = "x".repeat(more);
                    let longer = format!(r#"{{"uri":"{prefix}{uri}{more}"}}"#);
                    assert_eq!(read(forward, longer), too_long("uri", MAX_URI_BYTES));
                }
            }
        }
        assert_eq!(read(Forward::Prompt, format!(r#"{{"name":"{name}"}}"#)), Ok(()));
        let longer = format!(r#"{{"name":"{name}x"}}"#);
        assert_eq!(read(Forward::Prompt, longer), too_long("name", MAX_NAME_BYTES));
        for (kind, member, path, limit) in [
            ("ref/prompt", format!(r#""name":"{name}x""#), "ref.name", MAX_NAME_BYTES),
            ("ref/resource", format!(r#""uri":"{uri}x""#), "ref.uri", MAX_URI_BYTES),
        ] {
            let params = format!(r#"{{"ref":{{"type":"{kind}",{member}}}}}"#);
            assert_eq!(read(Forward::Completion, params), too_long(path, limit));
        }
    }

    #[test]
    fn params_without_a_target_are_refused() {
        for (forward, params, why) in [
            (READ, "{}", UnreadableAddress::Word("uri")),
            (READ, "[]", UnreadableAddress::Params),
            (SUBSCRIBE, r#"{"uri":7}"#, UnreadableAddress::Word("uri")),
            (Forward::Prompt, r#"{"name":null}"#, UnreadableAddress::Word("name")),
            (Forward::Prompt, r#"{"name":"x","_meta":7}"#, UnreadableAddress::Meta),
            (Forward::Completion, "{}", UnreadableAddress::Reference),
            (Forward::Completion, r#"{"ref":"x"}"#, UnreadableAddress::Reference),
            (Forward::Completion, r#"{"ref":{"type":"x","name":"y"}}"#, UnreadableAddress::Kind),
            (
                Forward::Completion,
                r#"{"ref":{"type":"ref/prompt","uri":"y"}}"#,
                UnreadableAddress::Word("ref.name"),
            ),
            (
                Forward::Completion,
                r#"{"ref":{"type":"ref/resource"}}"#,
                UnreadableAddress::Word("ref.uri"),
            ),
            (
                Forward::Completion,
                r#"{"ref":{"type":"ref/prompt","name":"x","Name":"y"}}"#,
                UnreadableAddress::Refused(MemberRefused::variant("ref", "Name", "name")),
            ),
            (
                READ,
                r#"{"uri":"x","\u0055RI":"y"}"#,
                UnreadableAddress::Refused(MemberRefused::variant("", "URI", "uri")),
            ),
        ] {
            let error = AddressedRequest::read(forward, Revision::NEWEST, params.as_bytes())
                .map(|_| ())
                .unwrap_err();
            assert_eq!(error, why, "{params}");
        }
    }
}
