//! What an approval is bound to: a BLAKE3 digest over the exact call (CAP-8).
//!
//! It covers who asks, what of which server, by which operation, the hash of the tool's definition, the version of
//! the rules, and the arguments in a canonical form: members are sorted by their names, names and strings are
//! unescaped, space between tokens is left out; everything else, the spelling of numbers among it, counts as it was
//! written. So two spellings of one call are one, and one altered byte of a value is another call. Every part is
//! preceded by its length, so that no two calls run together.

use std::fmt;

use blake3::Hasher;
use serde_json::value::RawValue;

use super::access::{Access, Reference};
use super::request::AdmissionRequest;
use crate::json::members::{members, string};
use crate::tool::Tool;

/// Longest arguments that somebody is asked to approve, in bytes.
pub const MAX_ARGUMENTS_BYTES: usize = 256 * 1024;
/// Deepest nesting that is put into canonical form; requests are refused before they are as deep. What lies deeper
/// counts as it was written.
const MAX_DEPTH: usize = 128;

/// What stands for one exact call.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CallDigest(blake3::Hash);

/// What stands for calls of one kind: the same, whatever the arguments and the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KindDigest(blake3::Hash);

impl fmt::Display for KindDigest {
    /// 64 hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.to_hex())
    }
}

/// What stands for a tool as its server defines it now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DefinitionHash(blake3::Hash);

/// The arguments are longer than [`MAX_ARGUMENTS_BYTES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ArgumentsTooLong {
    pub(super) limit: usize,
}

impl fmt::Display for CallDigest {
    /// 64 hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.to_hex())
    }
}

impl fmt::Debug for CallDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CallDigest({self})")
    }
}

/// The hash of what a server says of a tool; of anything else there is nothing but its name.
pub(super) fn definition(access: &Access) -> DefinitionHash {
    let mut hasher = Hasher::new_derive_key("mcpproxy 2026-11 approval: definition of a tool");
    if let Some(tool) = access.tool() {
        let Tool { title, description, input_schema, output_schema, annotations_raw, .. } = &**tool;
        let raw = |it: &Option<Box<RawValue>>| it.as_deref().map(|it| it.get().to_owned());
        optional(&mut hasher, title.as_deref());
        part(&mut hasher, description.as_bytes());
        part(&mut hasher, input_schema.get().as_bytes());
        optional(&mut hasher, raw(output_schema).as_deref());
        optional(&mut hasher, raw(annotations_raw).as_deref());
    }
    DefinitionHash(hasher.finalize())
}

/// What stands for all requests on behalf of the one called `principal` for `access`: one tool by one operation, one
/// resource, one prompt.
pub(super) fn kind(
    principal: &str,
    access: &Access,
    DefinitionHash(definition): DefinitionHash,
) -> KindDigest {
    let mut hasher = Hasher::new_derive_key("mcpproxy 2026-11 approval: calls of one kind");
    asked(&mut hasher, principal, access);
    part(&mut hasher, definition.as_bytes());
    KindDigest(hasher.finalize())
}

/// The digest of a request for `access`.
///
/// # Errors
/// [`ArgumentsTooLong`].
pub(super) fn of(
    request: &AdmissionRequest<'_>,
    access: &Access,
    DefinitionHash(definition): DefinitionHash,
    rules_version: &[u8; 32],
) -> Result<CallDigest, ArgumentsTooLong> {
    if request.arguments.len() > MAX_ARGUMENTS_BYTES {
        return Err(ArgumentsTooLong { limit: MAX_ARGUMENTS_BYTES });
    }
    let mut hasher = Hasher::new_derive_key("mcpproxy 2026-11 approval: one call");
    asked(&mut hasher, request.principal.id(), access);
    part(&mut hasher, definition.as_bytes());
    part(&mut hasher, rules_version);
    match std::str::from_utf8(request.arguments) {
        Ok(text) => value(&mut hasher, text.trim_ascii(), 0),
        Err(_) => as_written(&mut hasher, request.arguments),
    }
    Ok(CallDigest(hasher.finalize()))
}

/// Takes in who asks what of which server.
fn asked(hasher: &mut Hasher, principal: &str, access: &Access) {
    part(hasher, principal.as_bytes());
    part(hasher, access.method().as_bytes());
    part(hasher, access.server().as_bytes());
    match access {
        Access::Tool(call) => {
            part(hasher, call.tool().name.tool.as_bytes());
            part(hasher, call.operation().as_str().as_bytes());
        }
        Access::Resource { uri, request, .. } => {
            part(hasher, uri.as_bytes());
            part(hasher, request.method().as_bytes());
        }
        Access::Prompt { name, .. } => part(hasher, name.as_bytes()),
        Access::Completion { of: Reference::Prompt(name), .. } => {
            part(hasher, b"prompt");
            part(hasher, name.as_bytes());
        }
        Access::Completion { of: Reference::Resource(uri), .. } => {
            part(hasher, b"resource");
            part(hasher, uri.as_bytes());
        }
    }
}

/// Takes a value in, in canonical form.
fn value(hasher: &mut Hasher, text: &str, depth: usize) {
    let canonical = depth < MAX_DEPTH
        && match text.as_bytes().first() {
            Some(b'{') => object(hasher, text, depth).is_some(),
            Some(b'[') => array(hasher, text, depth).is_some(),
            Some(b'"') => string(text).map(|it| tagged(hasher, b's', it.as_bytes())).is_some(),
            Some(_) | None => false,
        };
    if !canonical {
        as_written(hasher, text.as_bytes());
    }
}

/// Takes in nothing, and says so, if `text` is no object.
fn object(hasher: &mut Hasher, text: &str, depth: usize) -> Option<()> {
    let mut all: Vec<_> = members(text).ok()?.collect::<Result<_, _>>().ok()?;
    all.sort_by(|(a, _), (b, _)| a.as_bytes().cmp(b.as_bytes()));
    tagged(hasher, b'o', &(all.len() as u64).to_le_bytes());
    for (name, inner) in all {
        part(hasher, name.as_bytes());
        value(hasher, inner, depth + 1);
    }
    Some(())
}

fn array(hasher: &mut Hasher, text: &str, depth: usize) -> Option<()> {
    let all: Vec<&RawValue> = serde_json::from_str(text).ok()?;
    tagged(hasher, b'a', &(all.len() as u64).to_le_bytes());
    for inner in all {
        value(hasher, inner.get(), depth + 1);
    }
    Some(())
}

fn as_written(hasher: &mut Hasher, bytes: &[u8]) {
    tagged(hasher, b'w', bytes);
}

fn tagged(hasher: &mut Hasher, tag: u8, bytes: &[u8]) {
    hasher.update(&[tag]);
    part(hasher, bytes);
}

fn optional(hasher: &mut Hasher, text: Option<&str>) {
    match text {
        Some(text) => tagged(hasher, b'+', text.as_bytes()),
        None => tagged(hasher, b'-', b""),
    }
}

fn part(hasher: &mut Hasher, bytes: &[u8]) {
    hasher.update(&(bytes.len() as u64).to_le_bytes());
    hasher.update(bytes);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::SystemTime;

    use super::*;
    use crate::policy::{Principal, ResourceRequest, SessionFacts};

    fn digest_of(
        principal: &Principal,
        name: &str,
        arguments: &[u8],
        rules_version: u8,
    ) -> Result<CallDigest, ArgumentsTooLong> {
        let access = Access::Prompt { server: Arc::from("s"), name: name.into() };
        let request = AdmissionRequest {
            principal,
            access: access.clone(),
            arguments,
            intent: None,
            client: "",
            session: SessionFacts::default(),
            now: SystemTime::UNIX_EPOCH,
        };
        of(&request, &access, definition(&access), &[rules_version; 32])
    }

    fn digest(arguments: &str) -> CallDigest {
        digest_of(&Principal::Admin, "p", arguments.as_bytes(), 0).unwrap()
    }

    #[test]
    fn cap_8_two_spellings_of_one_call_are_one() {
        for (one, other) in [
            (
                r#"{"a":1,"b":[1,{"c":"x","d":null}]}"#,
                r#"{ "b" : [1, {"d":null,"c":"x"} ], "a":1 }"#,
            ),
            (r#"{"é":"ü/"}"#, "{\"\\u00e9\":\"\\u00fc\\/\"}"),
            (r#"{"a":"\n"}"#, r#"{"a":"\u000a"}"#),
            ("{}", "  { } "),
        ] {
            assert_eq!(digest(one), digest(other), "{one} {other}");
        }
    }

    #[test]
    fn cap_8_one_altered_byte_of_a_value_is_another_call() {
        let whole = r#"{"path":"/tmp/x","n":10,"deep":[[{"k":true}],"]"],"e":"","s":[1,2]}"#;
        let original = digest(whole);
        for at in 0..whole.len() {
            let mut altered = whole.as_bytes().to_vec();
            altered[at] ^= 1;
            let altered = digest_of(&Principal::Admin, "p", &altered, 0).unwrap();
            assert_ne!(altered, original, "byte {at}");
        }
        for (one, other) in [
            ("{\"a\":1}", "{\"a\":1.0}"),
            ("{\"a\":1}", "{\"a\":\"1\"}"),
            ("{\"a\":[1,2]}", "{\"a\":[2,1]}"),
            ("{\"a\":[[1],2]}", "{\"a\":[[1,2]]}"),
            ("{\"a\":{\"b\":1}}", "{\"a\":{},\"b\":1}"),
            ("{\"a\":\"\",\"b\":\"x\"}", "{\"a\":\"x\",\"b\":\"\"}"),
            ("{\"a\":null}", "{}"),
            ("{}", ""),
        ] {
            assert_ne!(digest(one), digest(other), "{one} {other}");
        }
    }

    #[test]
    fn cap_8_who_asks_what_and_under_which_rules_counts() {
        let of = |principal, name, rules| digest_of(&principal, name, b"{}", rules).unwrap();
        let original = of(Principal::Admin, "p", 0);
        assert_eq!(original, of(Principal::Admin, "p", 0));
        assert_ne!(original, of(Principal::Anonymous, "p", 0));
        assert_ne!(original, of(Principal::Admin, "q", 0));
        assert_ne!(original, of(Principal::Admin, "p", 1));
    }

    #[test]
    fn cap_8_requests_of_one_kind_are_for_one_thing_done_in_one_way() {
        let resource = |uri: &str, request| Access::Resource {
            server: Arc::from("s"),
            uri: uri.into(),
            request,
        };
        let prompt = |name: &str| Access::Prompt { server: Arc::from("s"), name: name.into() };
        let all = [
            resource("a", ResourceRequest::Read),
            resource("b", ResourceRequest::Read),
            resource("a", ResourceRequest::Subscribe),
            prompt("a"),
            prompt("b"),
        ];
        for (one, first) in all.iter().enumerate() {
            for (other, second) in all.iter().enumerate() {
                let kinds = [first, second].map(|it| kind("admin", it, definition(it)));
                assert_eq!(kinds[0] == kinds[1], one == other, "{first:?} {second:?}");
            }
            let others = kind("anonymous", first, definition(first));
            assert!(others != kind("admin", first, definition(first)), "{first:?}");
        }
    }

    #[test]
    fn arguments_that_nobody_could_judge_have_no_digest() {
        let long = format!("{{\"a\":\"{}\"}}", "x".repeat(MAX_ARGUMENTS_BYTES));
        let refused = digest_of(&Principal::Admin, "p", long.as_bytes(), 0);
        assert_eq!(refused, Err(ArgumentsTooLong { limit: MAX_ARGUMENTS_BYTES }));
        let deep = format!("{{\"a\":{}1{}}}", "[".repeat(1000), "]".repeat(1000));
        assert_eq!(digest(&deep), digest(&deep));
    }
}
