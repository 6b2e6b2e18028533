//! Requests that can be held, and repeated requests that take over a held call (PRO-42); answers to the waiting server.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mcpproxy_json::members::{member, string};
use mcpproxy_policy::approvals::{ApprovalId, StateRead};
use mcpproxy_policy::{Access, Permit, Principal};
use mcpproxy_protocol::mcp::capabilities::ClientCapabilities;
use mcpproxy_protocol::mcp::jsonrpc::Code;
use mcpproxy_protocol::mcp::message;
use mcpproxy_protocol::mcp::revisions::{ProtocolFamily, Revision};
use mcpproxy_protocol::mcp::shapes::Left;
use serde_json::json;
use tokio::sync::oneshot;

use super::calls::{HeldRequest, NotTakenOver, QUESTION};
use super::held_answer::HeldAnswer;
use crate::proxy::client::Caller;
use crate::proxy::params;
use crate::proxy::worker::Worker;

/// Arguments to hold, if the client is modern and declared capabilities for server requests (PRO-42).
pub(crate) fn holdable(caller: &Caller, permit: &Permit, body: &Bytes) -> Option<Bytes> {
    let (client, _) = caller.client.as_ref()?;
    let can = client.family == ProtocolFamily::Modern
        && client.client_capabilities.requests() != ClientCapabilities::default()
        && permit.access().may_require_input();
    can.then(|| match permit.access().tool() {
        Some(_) => body.clone(),
        None => params::without_brought(body),
    })
}

/// Held call named in the `members` (raw JSON joined by commas) of a repeated request of `principal`.
pub(crate) fn named_in(
    worker: &Worker,
    principal: &Principal,
    members: &[u8],
) -> Option<ApprovalId> {
    if members.is_empty() {
        return None;
    }
    let text = format!("{{{}}}", std::str::from_utf8(members).ok()?);
    let state = member(&text, "requestState").and_then(string)?;
    match worker.proxy.approvals.read_state(&state, principal) {
        StateRead::Held(id) => Some(id),
        StateRead::Ours(_) | StateRead::Foreign | StateRead::Forged => None,
    }
}

/// Request that takes over a held call.
pub(crate) struct HeldCallRepeat<'a> {
    pub(crate) id: &'a ApprovalId,
    pub(crate) principal: &'a Principal,
    pub(crate) access: &'a Access,
    pub(crate) arguments: &'a [u8],
    /// Members other than the arguments, raw JSON joined by commas.
    pub(crate) members: &'a [u8],
}

/// Takes over a held call and forwards the client's answer to its server. A refused request leaves the call
/// unchanged, so that the client can correct it.
pub(crate) async fn take_over(
    worker: &Rc<Worker>,
    HeldCallRepeat { id, principal, access, arguments, members }: HeldCallRepeat<'_>,
    call_timeout: Duration,
) -> Result<Box<HeldAnswer>, NotTakenOver> {
    let held_calls = &worker.proxy.held_calls;
    let requested = HeldRequest::of(access);
    let (compared, method) = held_calls.read(id, |call| {
        if call.principal != *principal {
            return Err(NotTakenOver::Gone);
        }
        if call.request != requested {
            return Err(NotTakenOver::OtherRequest { request: call.request.clone() });
        }
        Ok((Arc::clone(&call.arguments), call.asked.method))
    })?;
    let differs = |argument| NotTakenOver::OtherArguments { argument };
    compared.check(arguments).map_err(differs)?;
    let result = answer(members, method)?;
    // An id is never reused, so this is the call that was read.
    let call = held_calls.take(id)?;
    let (taker, taken) = oneshot::channel();
    // Sending fails if the waiting task is ending.
    call.taker.send(taker).map_err(|_| NotTakenOver::Gone)?;
    let mut held = taken.await.map_err(|_| NotTakenOver::Gone)?;
    held.resumes();
    held.extend_wait(call_timeout);
    if held.is_awaited() {
        let to = (access.server(), held.generation());
        respond(worker, to, call.asked.raw_id, result).await;
    }
    Ok(held)
}

/// Raw member `result` for the server: the client's answer, reduced to the members of its method.
fn answer(members: &[u8], method: &'static str) -> Result<Bytes, NotTakenOver> {
    let text = format!("{{{}}}", String::from_utf8_lossy(members));
    let all = member(&text, "inputResponses").unwrap_or_default();
    let Some(result) = member(all, QUESTION).filter(|result| result.starts_with('{')) else {
        return Err(NotTakenOver::NoAnswer { method });
    };
    let response = message::Response { id: None, outcome: format!("\"result\":{result}").into() };
    // Members of later revisions were already removed from the request.
    params::outcome(method, Revision::NEWEST, &response, &mut Left::default())
        .map_err(|refused| NotTakenOver::BadAnswer { why: refused.to_string().into() })
}

/// Sends a `result` or `error` member to the server for its request.
pub(crate) async fn respond(
    worker: &Worker,
    (server, generation): (&Arc<str>, u64),
    raw_id: Bytes,
    outcome: Bytes,
) {
    if let Some(upstream) = worker.proxy.upstreams.connected_as(server, generation)
        && let Err(lost) = upstream.respond(generation, raw_id, outcome).await
    {
        // The call's own wait ends with an error.
        tracing::debug!(%server, %lost, "failed to send an answer to the server");
    }
}

/// Raw member `error` with this text.
pub(crate) fn error(code: Code, text: &str) -> Bytes {
    let error = json!({"code": code as i32, "message": text});
    format!("\"error\":{error}").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pro_42_answer_is_reduced_to_the_members_of_its_method() {
        let members = br#""requestState":"s","inputResponses":{"question":{"action":"accept","content":{"n":1.0},"roots":[]}}"#;
        let expected = r#""result":{"action":"accept","content":{"n":1.0}}"#;
        assert_eq!(answer(members, "elicitation/create").unwrap(), expected);
        assert_eq!(answer(members, "roots/list").unwrap(), r#""result":{"roots":[]}"#);
        for none in [&b""[..], br#""inputResponses":{"question":7}"#, br#""inputResponses":{}"#] {
            let refused = answer(none, "roots/list").unwrap_err();
            assert_eq!(refused, NotTakenOver::NoAnswer { method: "roots/list" });
        }
    }
}
