//! What upstreams offer beside tools: resources, templates, prompts, completions.
//!
//! Lists are ours, merged from those of the upstreams ([`lists`]) under names that lead back
//! ([`crate::catalog::exposed`]). Every other request goes to the upstream that its name or URI
//! leads to, with that server's own name or URI in its place, through the same `Exchange` as a
//! call; its answer comes back verbatim, and with it the URIs that the server writes in it.
//! A request that goes on is on record (ACT-1) with a type of its own (a subscription is an `internal_tool_call`), the
//! method in the place of the tool. Lists are not: nothing leaves for them on a client's behalf.

pub mod address;
pub mod forward;
pub mod list_cache;
pub mod lists;
pub mod notifications;
mod subscribers;
pub mod watch;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use serde_json::{Map, Value, json};

use self::address::{AddressedRequest, Target};
use super::call_trace::CallTrace;
use super::caller::{Caller, Peer};
use super::client::Client;
use super::reaction::Reaction;
use super::record_kind::RecordKind;
use super::recorded::{OnRecord, ReplySource, recorded};
use super::refusal::RefusalKind;
use super::rejection::{Rejection, Stopped};
use super::render::{self, Caching, shown};
use super::reply::{Aborted, Piece, Reply, Running};
use super::worker::Worker;
use crate::activity::record::{Raw, Status};
use crate::catalog::exposed;
use crate::catalog::listing::{self, Start};
use crate::mcp::capabilities::{ClientCapabilities, ServerCapabilities};
use crate::mcp::jsonrpc::Code;
use crate::mcp::revisions::{Era, Revision};
use crate::mcp::trace_context::meta_of;
use crate::output::AnswerMember;
use crate::policy::{self, ResourceRequest};
use crate::upstream::{CallExtras, Upstream};

pub use self::forward::Forward;
pub use crate::catalog::offered::List;

/// The capabilities that the upstreams give us to offer, beside `tools` and `logging`. A server
/// that has not answered since the start may offer anything: a capability announced in vain leads to
/// an empty list, one that is missing is never asked for.
#[must_use]
pub fn capabilities(worker: &Worker) -> Map<String, Value> {
    let mut all = ServerCapabilities::default();
    for upstream in worker.proxy.upstreams.iter() {
        let (offers, unknown) = (upstream.offers(), !upstream.state().settled);
        all.resources |= offers.resources || unknown;
        all.resource_updates |= offers.resource_updates || unknown;
        all.prompts |= offers.prompts || unknown;
        all.completions |= offers.completions || unknown;
    }
    let resources = json!({"subscribe": all.resource_updates, "listChanged": true});
    let prompts = json!({"listChanged": true});
    let offered = [
        (all.resources, "resources", resources),
        (all.prompts, "prompts", prompts),
        (all.completions, "completions", json!({})),
    ];
    let offered = offered.into_iter().filter(|(offered, ..)| *offered);
    offered.map(|(_, name, value)| (name.to_owned(), value)).collect()
}

/// Answers a list.
#[must_use]
pub fn list(worker: &Rc<Worker>, peer: &Peer, id: &Bytes, list: List, params: &Bytes) -> Reaction {
    let start = match Start::parse(params) {
        Ok(start) => start,
        Err(bad) => return Reaction::error(id, Code::InvalidParams, &bad.to_string()),
    };
    let (worker, era, principal) = (Rc::clone(worker), peer.client.era, peer.principal.clone());
    let running = Running::new(|reply| async move {
        let sets = lists::all(&worker, list).await;
        let beside = render::own_members(era, Caching::Milliseconds(list_cache::FRESH_MS));
        let settings = worker.settings();
        let visible = policy::visible(&principal, &settings.policy);
        let elements = lists::merged(&sets, &start, |server, own| match list {
            List::Resources | List::Templates => visible.resource(server, own),
            List::Prompts => visible.prompt(server, own),
        });
        let page = listing::page(&beside, list.member(), elements.into_iter());
        reply.put(Piece::Whole(AnswerMember::Result, page));
        Ok(())
    });
    Reaction::Call { id: id.clone(), running }
}

/// Sends a request on to the upstream it names.
#[must_use]
pub fn forward(
    worker: &Rc<Worker>,
    peer: &Peer,
    id: Bytes,
    forward: Forward,
    params: Bytes,
) -> Reaction {
    let (worker, caller, client_capabilities) =
        (Rc::clone(worker), peer.caller(&id), peer.client_capabilities());
    let running = Running::new(|reply| {
        forwarded(worker, caller, forward, client_capabilities, params, reply)
    });
    Reaction::Call { id, running }
}

fn forwarded(
    worker: Rc<Worker>,
    caller: Caller,
    forward: Forward,
    client_capabilities: ClientCapabilities,
    params: Bytes,
    reply: Reply,
) -> impl Future<Output = Result<(), Aborted>> {
    let kind = RecordKind::Forward(forward);
    let trace = CallTrace::begin(&worker, &caller, kind.method(), || meta_of(&params));
    recorded(worker, caller, (kind, trace), reply, async move |on: OnRecord<'_>| {
        on.record.name("", forward.method());
        on.record.keep(Raw::Arguments, &params);
        send(on, forward, client_capabilities, &params).await
    })
}

/// Finds the server, asks whether the request may go on, and sends it there; a result of our own where nothing is left
/// for the server to do.
async fn send(
    mut on: OnRecord<'_>,
    forward: Forward,
    client_capabilities: ClientCapabilities,
    params: &Bytes,
) -> Result<ReplySource, Stopped> {
    let unreadable = |text| Rejection::new(Status::Rejected, RefusalKind::Unreadable, text);
    let nothing = || Ok(ReplySource::Own(Bytes::from_static(b"{}")));
    let (worker, client) = (on.worker, on.caller.client.as_ref().map(|(client, _)| client));
    let revision = client.map_or(Revision::NEWEST, |client| client.revision());
    let request = AddressedRequest::read(forward, revision, params)
        .map_err(|error| unreadable(format!("Invalid params: {error}")))?;
    if let Some(client) = client {
        client.warn_of_dropped(&worker.proxy.dropped_members, forward.method(), &request.left);
    }
    let (upstream, own) = resolve(worker, request.target()).await.map_err(unreadable)?;
    on.record.name(upstream.name(), forward.method());
    let access = request.access(Arc::clone(upstream.name()), &own);
    let members = request.beside();
    let mut beside = CallExtras {
        meta: request.meta(params),
        members,
        client_capabilities,
        ..CallExtras::default()
    };
    let arguments = params.slice_ref(request.arguments());
    let permit = on.admit(access, &arguments, None, &mut beside).await?;
    if let (Some(client), Forward::Resource(asked)) = (client, forward) {
        let subscribers = &worker.proxy.list_cache.subscribers;
        let uri = || exposed::uri(upstream.name(), &own);
        match asked {
            ResourceRequest::Subscribe => {
                subscribers.enter(&uri(), client).map_err(|full| {
                    Rejection::new(Status::Rejected, RefusalKind::Failed, full.to_string())
                })?;
                if era_of(&upstream).await == Era::Modern {
                    follow(worker, &upstream, &own, client).await?;
                    return nothing();
                }
            }
            // Other clients share the subscription.
            ResourceRequest::Unsubscribe if !subscribers.leave(&uri(), client) => return nothing(),
            ResourceRequest::Unsubscribe => {
                upstream.unsubscribe(&own);
                if era_of(&upstream).await == Era::Modern {
                    return nothing();
                }
            }
            ResourceRequest::Read => {}
        }
    }
    let sent = request.params(&own, &beside.members);
    on.record.keep(Raw::Arguments, &sent);
    let beside = CallExtras { members: Bytes::new(), ..beside };
    let outcome = on.send(&upstream, permit, sent, beside).await?;
    if let (Forward::Resource(ResourceRequest::Subscribe), ReplySource::Server { answer, .. }) =
        (forward, &outcome)
    {
        upstream.subscribe(&own, Some(answer.generation()));
    }
    Ok(outcome)
}

/// Which era it is of, once that is known; bounded.
async fn era_of(upstream: &Upstream) -> Era {
    let _ = tokio::time::timeout(list_cache::LIST_WAIT, upstream.settled()).await;
    upstream.era()
}

/// Has a modern server tell of a resource: it knows no such request, but a subscription by filter
/// (MCP 2026-07-28 §Subscriptions), which is that of all clients.
async fn follow(
    worker: &Worker,
    upstream: &Upstream,
    own: &str,
    client: &Arc<Client>,
) -> Result<(), Rejection> {
    let server = upstream.name();
    let why = match upstream.reached(Instant::now() + list_cache::LIST_WAIT).await {
        Err(reason) => reason,
        Ok(()) if !upstream.offers().resource_updates => {
            format!("{server}: the server does not tell of changes of resources")
        }
        Ok(()) if upstream.subscribe_and_wait(own).await => return Ok(()),
        Ok(()) => format!("{server}: the server did not take the subscription"),
    };
    if worker.proxy.list_cache.subscribers.leave(&exposed::uri(server, own), client) {
        upstream.unsubscribe(own);
    }
    Err(Rejection::new(Status::Error, RefusalKind::Failed, why))
}

/// Where a name or URI leads: the upstream, and what that calls it. Whether there is such a thing,
/// the upstream knows best, so only a name that does not lead anywhere is refused here.
async fn resolve(worker: &Worker, target: &Target) -> Result<(Arc<Upstream>, String), String> {
    let upstreams = &worker.proxy.upstreams;
    if let Some((server, own)) = target.split()
        && let Some(upstream) = upstreams.get(&server)
    {
        return Ok((upstream, own.to_owned()));
    }
    let shown = shown(target.word());
    match target {
        Target::Prompt(name) => {
            // A name that was cut.
            for set in lists::all(worker, List::Prompts).await {
                if let Some(listed) = set.find(name)
                    && let Some(upstream) = upstreams.get(&set.server)
                {
                    return Ok((upstream, listed.own.to_string()));
                }
            }
            Err(format!("Prompt '{shown}' not found. Names are those of prompts/list."))
        }
        Target::Uri(uri) => match lists::of_uri(worker, uri).await {
            Some(upstream) => Ok((upstream, uri.clone())),
            None => Err(format!(
                "Resource '{shown}' not found. URIs are those of resources/list: mcpproxy://SERVER/URI."
            )),
        },
    }
}
