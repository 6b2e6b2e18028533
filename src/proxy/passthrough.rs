//! What upstreams offer beside tools: resources, templates, prompts, completions.
//!
//! Lists are ours, merged from those of the upstreams ([`list_cache`]) under names that lead back
//! ([`crate::catalog::exposed`]). Every other request goes to the upstream that its name or URI
//! leads to, with that server's own name or URI in its place, through the same `Exchange` as a
//! call; its answer comes back verbatim, and with it the URIs that the server writes in it.
//! A request that goes on is on record (ACT-1) as `internal_tool_call`, the method in the place of
//! the tool: `tool_call` stays what it is, a call of a tool. Lists are not: nothing leaves for them.

pub mod address;
pub mod list_cache;
pub mod notifications;
mod subscribers;
pub mod watch;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use serde_json::{Map, Value, json};

use self::address::{AddressedRequest, Target};
use crate::activity::record::{Raw, Status, Type};
use crate::catalog::exposed;
use crate::catalog::listing::{self, Start};
use crate::io::clock;
use crate::mcp::capabilities::{ClientCapabilities, ServerCapabilities};
use crate::mcp::jsonrpc::Code;
use crate::mcp::revisions::{Era, Revision};
use crate::output::{AnswerMember, Required};
use crate::proxy::Worker;
use crate::proxy::call::Caller;
use crate::proxy::call_record::{CallRecord, Rejection};
use crate::proxy::client::Client;
use crate::proxy::dispatch::{self, Caching, Peer, Reaction};
use crate::proxy::exchange::{Exchange, Subject};
use crate::proxy::params::progress_token;
use crate::proxy::relay::Relay;
use crate::proxy::reply::{Aborted, Piece, Refusal, RefusalKind, Reply, Running};
use crate::tool::ToolName;
use crate::upstream::{Answer, OutgoingRequest, Upstream};
use crate::wire::splice::Splice;

pub use crate::catalog::offered::List;

/// A request that goes on to one upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forward {
    /// `resources/read`
    Read,
    /// `resources/subscribe`
    Subscribe,
    /// `resources/unsubscribe`
    Unsubscribe,
    /// `prompts/get`
    Prompt,
    /// `completion/complete`
    Complete,
}

impl Forward {
    /// The method of it.
    #[must_use]
    pub const fn method(self) -> &'static str {
        match self {
            Self::Read => "resources/read",
            Self::Subscribe => "resources/subscribe",
            Self::Unsubscribe => "resources/unsubscribe",
            Self::Prompt => "prompts/get",
            Self::Complete => "completion/complete",
        }
    }

    /// What its result must say in the modern era.
    #[must_use]
    pub(super) fn required(self) -> Required {
        match self {
            Self::Read => Required::TypeAndCaching,
            Self::Subscribe | Self::Unsubscribe | Self::Prompt | Self::Complete => Required::Type,
        }
    }
}

/// The capabilities that the upstreams give us to offer, beside `tools` and `logging`. A server
/// that has not answered since the start may offer anything: a client that was told too much finds
/// an empty list, one that was told too little never looks.
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
        Err(bad) => return dispatch::error(id, Code::InvalidParams, &bad.to_string()),
    };
    let (worker, era) = (Rc::clone(worker), peer.client.era);
    let running = Running::new(|reply| async move {
        let sets = list_cache::all(&worker, list).await;
        let beside = dispatch::own_members(era, Caching::Milliseconds(list_cache::FRESH_MS));
        let elements = list_cache::merged(&sets, &start);
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
        (Rc::clone(worker), dispatch::caller(peer, &id), peer.client_capabilities());
    let running = Running::new(|reply| {
        forwarded(worker, caller, forward, client_capabilities, params, reply)
    });
    Reaction::Call { id, running }
}

async fn forwarded(
    worker: Rc<Worker>,
    caller: Caller,
    forward: Forward,
    client_capabilities: ClientCapabilities,
    params: Bytes,
    reply: Reply,
) -> Result<(), Aborted> {
    let mut call_record =
        match CallRecord::open(&worker, Type::InternalToolCall, &caller, "", &reply).await {
            Ok(call_record) => call_record,
            Err(refusal) => {
                let refusal = Refusal { kind: RefusalKind::Failed, ..refusal };
                reply.put(Piece::Refused(refusal));
                return Ok(());
            }
        };
    call_record.name("", forward.method());
    call_record.keep(Raw::Arguments, &params);
    let client = caller.client;
    let subscriber = client.as_ref().map(|(client, _)| client);
    match send(&worker, &mut call_record, forward, client_capabilities, &params, subscriber).await {
        Ok(None) => {
            call_record.close(Status::Success, "").await;
            let nothing = Bytes::from_static(b"{}");
            reply.put(Piece::Whole(AnswerMember::Result, Splice::from(nothing)));
            Ok(())
        }
        Ok(Some((server, answer, token))) => {
            let name = ToolName { server, tool: forward.method().into() };
            let subject = Subject::Other(forward, name);
            let relay = Relay::new(client, token);
            Exchange::new(worker, subject, answer, call_record, relay, reply).run().await
        }
        Err(stop) => {
            call_record.stop(stop).await;
            Ok(())
        }
    }
}

/// The server, its answer on its way, and the client's own progress token; `None` where nothing is
/// left for the upstream to do.
async fn send(
    worker: &Worker,
    call_record: &mut CallRecord,
    forward: Forward,
    client_capabilities: ClientCapabilities,
    params: &Bytes,
    subscriber: Option<&Arc<Client>>,
) -> Result<Option<(Arc<str>, Answer, Option<Bytes>)>, Rejection> {
    let unreadable = |text| Rejection::new(Status::Rejected, RefusalKind::Unreadable, text);
    let revision = subscriber.map_or(Revision::NEWEST, |client| client.revision());
    let request = AddressedRequest::read(forward, revision, params)
        .map_err(|error| unreadable(format!("Invalid params: {error}")))?;
    if let Some(client) = subscriber {
        worker.proxy.dropped_members.of_client(client, forward.method(), &request.left);
    }
    let (upstream, own) = resolve(worker, request.target()).await.map_err(unreadable)?;
    call_record.name(upstream.name(), forward.method());
    if let Some(client) = subscriber {
        let subscribers = &worker.proxy.list_cache.subscribers;
        let uri = || exposed::uri(upstream.name(), &own);
        match forward {
            Forward::Subscribe => {
                subscribers.enter(&uri(), client).map_err(|full| {
                    Rejection::new(Status::Rejected, RefusalKind::Failed, full.to_string())
                })?;
                if era_of(upstream).await == Era::Modern {
                    return follow(worker, upstream, &own, client).await.map(|()| None);
                }
            }
            // Other clients share the subscription.
            Forward::Unsubscribe if !subscribers.leave(&uri(), client) => return Ok(None),
            Forward::Unsubscribe => {
                upstream.unsubscribe(&own);
                if era_of(upstream).await == Era::Modern {
                    return Ok(None);
                }
            }
            Forward::Read | Forward::Prompt | Forward::Complete => {}
        }
    }
    let sent = request.params(&own);
    call_record.keep(Raw::Arguments, &sent);
    let ask = OutgoingRequest {
        method: forward.method(),
        name: request.header(&own),
        params: sent,
        meta: request.meta(params),
        client_capabilities,
    };
    let token = ask.meta.as_ref().and_then(progress_token);
    let now = clock::now();
    call_record.sends(upstream, now);
    if let Some(client) = subscriber {
        worker.proxy.log_routing.enter(upstream, client, now);
    }
    let asked =
        worker.ending.unless_cut(upstream.ask(&worker.pool, ask, call_record.began())).await;
    let cut = || Rejection::cut_off(upstream.name(), forward.method(), RefusalKind::Failed);
    match asked.ok_or_else(cut)? {
        Ok(answer) => {
            if forward == Forward::Subscribe {
                upstream.subscribe(&own, Some(answer.generation()));
            }
            Ok(Some((Arc::clone(upstream.name()), answer, token)))
        }
        Err(error) => {
            call_record.answered = Some(clock::now());
            Err(Rejection::new(Status::Error, RefusalKind::Failed, error.to_string()))
        }
    }
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
async fn resolve<'a>(
    worker: &'a Worker,
    target: &Target,
) -> Result<(&'a Arc<Upstream>, String), String> {
    let upstreams = &worker.proxy.upstreams;
    if let Some((server, own)) = target.split()
        && let Some(upstream) = upstreams.get(&server)
    {
        return Ok((upstream, own.to_owned()));
    }
    let shown = dispatch::shown(target.word());
    match target {
        Target::Prompt(name) => {
            // A name that was cut.
            for set in list_cache::all(worker, List::Prompts).await {
                if let Some(listed) = set.find(name)
                    && let Some(upstream) = upstreams.get(&set.server)
                {
                    return Ok((upstream, listed.own.to_string()));
                }
            }
            Err(format!("Prompt '{shown}' not found. Names are those of prompts/list."))
        }
        Target::Uri(uri) => match list_cache::of_uri(worker, uri).await {
            Some(upstream) => Ok((upstream, uri.clone())),
            None => Err(format!(
                "Resource '{shown}' not found. URIs are those of resources/list: mcpproxy://SERVER/URI."
            )),
        },
    }
}
