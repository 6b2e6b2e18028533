//! Methods outside every protocol revision, at the endpoint of one server: forwarded verbatim.
//!
//! The request is admitted as [`Access::Method`], sent through the same `Exchange` as a call, and recorded with its
//! method as the tool. [`extensions`](mcpproxy_protocol::mcp::extensions) decides which names are forwarded.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use mcpproxy_json::members::members;
use mcpproxy_policy::Access;
use mcpproxy_protocol::mcp::shapes;
use mcpproxy_protocol::mcp::trace_context::meta_of;
use mcpproxy_upstream::CallExtras;

use super::client::Peer;
use super::params::check_progress_token;
use super::recorded::{OnRecord, RecordedRequest};
use super::refusal::{RecordKind, Refusal};
use super::reply::Reaction;
use super::worker::Worker;

pub mod merged;

/// Members of params that the proxy reads.
const META: &str = "_meta";
const BROUGHT: [&str; 2] = ["inputResponses", "requestState"];

/// Forwards a request to the endpoint's only `server`.
pub(crate) fn forward(
    worker: &Rc<Worker>,
    peer: &Peer,
    (id, server): (Bytes, &Arc<str>),
    method: &str,
    params: Bytes,
) -> Reaction {
    let (server, method) = (Arc::clone(server), Arc::<str>::from(method));
    let (caller, client_capabilities) = (peer.caller(&id), peer.client_capabilities());
    let request =
        RecordedRequest::begin(worker, caller, RecordKind::Extension, || meta_of(&params));
    let running = request.running(async move |mut on: OnRecord<'_>| {
        on.record.name(&server, &method);
        on.record.keep_arguments(&params);
        let read = ExtensionParams::read(&params).map_err(Refusal::invalid_params)?;
        let (meta, members) = (read.meta, read.brought);
        let mut extras = CallExtras { meta, members, client_capabilities, ..CallExtras::default() };
        // The content of the request is unknown, so it counts as data chosen by the client.
        on.set_offer(&server, true);
        let access = Access::Method { server, method };
        let mut arguments = read.others;
        let permit = on.admit(access, &mut arguments, None, &mut extras).await?;
        let sent = joined(&arguments, &extras.members);
        on.record.keep_arguments(&sent);
        Ok(on.send_recorded(permit, sent, CallExtras { members: Bytes::new(), ..extras }).await?)
    });
    Reaction::Call { id, running }
}

/// Params of a request, an object.
struct ExtensionParams {
    meta: Option<Bytes>,
    /// Members of a repeated request, raw JSON joined by commas.
    brought: Bytes,
    /// The other members, an object.
    others: Bytes,
}

impl ExtensionParams {
    fn read(params: &Bytes) -> Result<Self, String> {
        let no_object = || "params must be an object".to_owned();
        let text = std::str::from_utf8(params).map_err(|_| no_object())?;
        let known = &[META, BROUGHT[0], BROUGHT[1]];
        shapes::check_free(known, "", text).map_err(|refused| refused.to_string())?;
        let (mut meta, mut brought, mut others) = (None, String::new(), String::from("{"));
        for member in members(text).map_err(|_| no_object())? {
            let (name, value) = member.map_err(|_| no_object())?;
            match &*name {
                META if !value.starts_with('{') => return Err("_meta must be an object".to_owned()),
                META => {
                    shapes::check_free(shapes::META_KEYS, META, value)
                        .map_err(|refused| refused.to_string())?;
                    check_progress_token(Some(value)).map_err(|long| long.to_string())?;
                    meta = Some(params.slice_ref(value.as_bytes()));
                }
                name if BROUGHT.contains(&name) => push(&mut brought, 0, name, value),
                name => push(&mut others, 1, name, value),
            }
        }
        others.push('}');
        Ok(Self { meta, brought: brought.into(), others: others.into() })
    }
}

/// Appends a member to the object members that begin at `start`.
fn push(out: &mut String, start: usize, name: &str, value: &str) {
    let comma = if out.len() > start { "," } else { "" };
    out.extend([comma, &serde_json::Value::from(name).to_string(), ":", value]);
}

/// Adds members, raw JSON joined by commas, to an object.
fn joined(object: &Bytes, members: &Bytes) -> Bytes {
    match object.strip_prefix(b"{") {
        Some(rest) if !members.is_empty() => {
            let comma: &[u8] = if rest == b"}" { b"" } else { b"," };
            [b"{", &**members, comma, rest].concat().into()
        }
        Some(_) | None => object.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pro_41_params_are_split_and_joined_verbatim() {
        let raw = Bytes::from_static(
            br#"{ "b" : 1.0e5,"_meta":{"k":[ ]},"requestState":"\u0041","a":{"x" : [1, 2]}}"#,
        );
        let read = ExtensionParams::read(&raw).unwrap();
        assert_eq!(read.meta.unwrap(), r#"{"k":[ ]}"#);
        assert_eq!(read.others, r#"{"b":1.0e5,"a":{"x" : [1, 2]}}"#);
        assert_eq!(read.brought, r#""requestState":"\u0041""#);
        let sent = joined(&read.others, &read.brought);
        assert_eq!(sent, r#"{"requestState":"\u0041","b":1.0e5,"a":{"x" : [1, 2]}}"#);
        for (raw, why) in [
            ("[]", "it is not a JSON object"),
            (r#"{"_meta":7}"#, "_meta must be an object"),
            (r#"{"_Meta":{}}"#, "'_Meta' differs only by case from '_meta'"),
            (r#"{"a":1,"A":2}"#, "'A' differs only by case from 'a'"),
        ] {
            let refused = ExtensionParams::read(&Bytes::from_static(raw.as_bytes())).err();
            assert_eq!(refused.as_deref(), Some(why), "{raw}");
        }
    }
}
