//! What a request is bound to in a fleet: a kept result that is on one node, or a server that keeps something between the
//! calls of a session (`affinity`). Read before the request is dispatched, so that it can be passed on as it came.
//!
//! Reads no more than that. What cannot be read, or leads nowhere, is bound to nothing, and is refused where it came to.

use std::borrow::Cow;

use super::caller::Endpoint;
use super::incoming::Received;
use super::keeping::READ_RESULT;
use super::passthrough::address::{AddressedRequest, Target};
use super::passthrough::{Forward, List, lists};
use super::worker::Worker;
use crate::approvals::{ApprovalId, StateRead};
use crate::catalog::exposed;
use crate::intent::Operation;
use crate::json::members::{members, string};
use crate::mcp::revisions::Revision;
use crate::policy::{Principal, ResourceRequest};
use crate::results::ResultHandle;
use crate::tool::ToolName;

/// What a request is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoundTo {
    /// Nothing: any node answers it.
    Nothing,
    /// What a server keeps for its client's session.
    Session,
    /// A result that the node of that number keeps.
    Node(u32),
}

/// What a request at that endpoint is bound to. Asks servers for their lists where a URI alone does not say whose it is,
/// each as long as a list is waited for.
pub async fn bound_to(worker: &Worker, endpoint: Endpoint, received: &Received) -> BoundTo {
    let request = &received.request;
    let (Some(params), false) = (&request.params, received.is_doubtful()) else {
        return BoundTo::Nothing;
    };
    let forward = match &*request.method {
        "tools/call" => return of_call(worker, endpoint, params),
        "prompts/get" => Forward::Prompt,
        "completion/complete" => Forward::Completion,
        "resources/read" => Forward::Resource(ResourceRequest::Read),
        "resources/subscribe" => Forward::Resource(ResourceRequest::Subscribe),
        "resources/unsubscribe" => Forward::Resource(ResourceRequest::Unsubscribe),
        _ => return BoundTo::Nothing,
    };
    if worker.settings().session_servers.is_empty() {
        return BoundTo::Nothing;
    }
    match AddressedRequest::read(forward, Revision::NEWEST, params) {
        Ok(addressed) => of_target(worker, addressed.target()).await,
        Err(_) => BoundTo::Nothing,
    }
}

/// The approval that a request of `principal` is made again for, as its request state says, if any node of the fleet has made
/// that.
#[must_use]
pub fn approval_brought(
    worker: &Worker,
    principal: &Principal,
    received: &Received,
) -> Option<ApprovalId> {
    let (Some(params), false) = (&received.request.params, received.is_doubtful()) else {
        return None;
    };
    let state = member(std::str::from_utf8(params).ok()?, "requestState").and_then(string)?;
    match worker.proxy.approvals.read_state(&state, principal) {
        StateRead::Ours(id) => Some(id),
        StateRead::Foreign | StateRead::Forged => None,
    }
}

async fn of_target(worker: &Worker, target: &Target) -> BoundTo {
    if let Some((server, _)) = target.split() {
        return of_server(worker, &server);
    }
    match target {
        Target::Prompt(name) => {
            let sets = lists::all(worker, List::Prompts).await;
            let set = sets.into_iter().find(|set| set.find(name).is_some());
            set.map_or(BoundTo::Nothing, |set| of_server(worker, &set.server))
        }
        Target::Uri(uri) => {
            let upstream = lists::of_uri(worker, uri).await;
            upstream.map_or(BoundTo::Nothing, |upstream| of_server(worker, upstream.name()))
        }
    }
}

fn of_server(worker: &Worker, server: &str) -> BoundTo {
    match worker.settings().session_servers.contains(server) {
        true => BoundTo::Session,
        false => BoundTo::Nothing,
    }
}

fn of_call(worker: &Worker, endpoint: Endpoint, params: &[u8]) -> BoundTo {
    let Ok(params) = std::str::from_utf8(params) else { return BoundTo::Nothing };
    let [name, arguments] = ["name", "arguments"].map(|key| member(params, key));
    let Some(name) = name.and_then(string) else { return BoundTo::Nothing };
    let within = |key| arguments.and_then(|arguments| member(arguments, key)).and_then(string);
    let server: Cow<'_, str> = match endpoint {
        Endpoint::Search if name == READ_RESULT => {
            let handle = within("handle").and_then(|handle| ResultHandle::parse(&handle));
            return match handle.map_or(0, |handle| handle.node()) {
                0 => BoundTo::Nothing,
                node => BoundTo::Node(node),
            };
        }
        _ if worker.settings().session_servers.is_empty() => return BoundTo::Nothing,
        Endpoint::Search if Operation::of_tool(&name).is_some() => {
            let Some(tool) = within("name") else { return BoundTo::Nothing };
            let server = ToolName::split(&tool).map(|(server, _)| server.to_owned());
            server.unwrap_or_default().into()
        }
        Endpoint::Search => return BoundTo::Nothing,
        Endpoint::All => {
            let catalog = worker.proxy.catalog.load();
            let known = catalog.direct(&name).map(|tool| tool.name.server.to_string());
            let named = || exposed::split_name(&name).map(|(server, _)| server.to_owned());
            known.or_else(named).unwrap_or_default().into()
        }
    };
    of_server(worker, &server)
}

/// That member of an object, as it stands.
fn member<'a>(object: &'a str, key: &str) -> Option<&'a str> {
    let mut members = members(object).ok()?.map_while(Result::ok);
    members.find(|(name, _)| name == key).map(|(_, value)| value)
}
