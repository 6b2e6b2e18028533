//! Resources, resource templates, prompts and completions of upstreams.
//!
//! Lists are merged from those of the upstreams ([`lists`]) under exposed names ([`mcpproxy_catalog::exposed`]). Any
//! other request goes to the upstream that its exposed name or URI determines, with the server's own name or URI
//! instead, through the same `Exchange` as a call. The answer is forwarded verbatim, including the server's URIs.
//! Forwarded requests are recorded (ACT-1) with a type of their own (a subscription is an `internal_tool_call`) and
//! the method as the tool. Lists are not recorded, since nothing is sent on a client's behalf.

pub mod list_cache;
pub mod lists;
pub mod notifications;
pub mod revocation;
pub(crate) mod subscribers;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::client::Client;
use super::client::Peer;
use super::extension::merged::offers;
use super::held;
use super::params::{AddressedRequest, Target};
use super::recorded::{OnRecord, RecordedRequest, ReplySource};
use super::refusal::RecordKind;
use super::refusal::RefusalKind;
use super::refusal::{Refusal, Stopped};
use super::render;
use super::render::{Caching, shown};
use super::reply::{Piece, Reaction, Running};
use super::worker::Worker;
use mcpproxy_catalog::exposed;
use mcpproxy_catalog::exposed_uris::{AnswerRewriter, CONTENTS, DIRECTORY, SKILL_RESULT, UriPlace};
use mcpproxy_catalog::listing;
use mcpproxy_catalog::listing::{PageElement, Start};
use mcpproxy_policy as policy;
use mcpproxy_policy::ResourceRequest;
use mcpproxy_protocol::mcp::capabilities::{ClientCapabilities, ServerCapabilities};
use mcpproxy_protocol::mcp::jsonrpc::Code;
use mcpproxy_protocol::mcp::known_extensions::{Extension, TASKS_EXTENSION};
use mcpproxy_protocol::mcp::meta::EXTENSIONS;
use mcpproxy_protocol::mcp::revisions::{ProtocolFamily, Revision};
use mcpproxy_protocol::mcp::trace_context::meta_of;
use mcpproxy_schema::output::AnswerMember;
use mcpproxy_upstream::{CallExtras, SUBSCRIPTION_LIMIT, SubscriptionAnswer, Upstream};

pub use super::params::Forward;
pub use mcpproxy_catalog::listing::List;

/// Capabilities of the upstreams for clients of this family, besides `tools` and `logging`. A server that has not
/// answered since the start counts as having all: a false capability yields an empty list, while a missing one is
/// never used.
pub(crate) fn capabilities(worker: &Worker, family: ProtocolFamily) -> Map<String, Value> {
    let mut all = ServerCapabilities::default();
    for upstream in worker.proxy.upstreams.iter() {
        let (offers, unknown) = (upstream.offers(), !upstream.is_settled());
        all.resources |= offers.resources || unknown;
        all.resource_updates |= upstream.reports_updates_to(family) || unknown;
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

/// Members of `capabilities` that the proxy serves itself. [Tasks](super::tasks::capability) are declared separately.
const SERVED: [&str; 6] = ["tools", "resources", "prompts", "completions", "logging", "tasks"];

/// Capabilities of one server for clients of this family: those that the proxy serves in its own form, all others as
/// declared by the server.
pub(crate) fn capabilities_of(upstream: &Upstream, family: ProtocolFamily) -> Map<String, Value> {
    let (offers, introduced) = (upstream.offers(), upstream.introduced());
    let others = introduced.capabilities.iter();
    let others = others.filter(|(name, _)| !SERVED.contains(&name.as_str()));
    let mut all: Map<_, _> = others.map(|(name, value)| (name.clone(), value.clone())).collect();
    if let Some(Value::Object(extensions)) = all.get_mut(EXTENSIONS) {
        extensions.remove(TASKS_EXTENSION);
    }
    let subscribe = upstream.reports_updates_to(family);
    let resources = json!({"subscribe": subscribe, "listChanged": true});
    let served = [
        (offers.tools, "tools", json!({"listChanged": true})),
        (offers.resources, "resources", resources),
        (offers.prompts, "prompts", json!({"listChanged": true})),
        (offers.completions, "completions", json!({})),
        (offers.logging, "logging", json!({})),
    ];
    let served = served.into_iter().filter(|(offered, ..)| *offered);
    all.extend(served.map(|(_, name, value)| (name.to_owned(), value)));
    all
}

pub(crate) fn list(
    worker: &Rc<Worker>,
    peer: &Peer,
    id: &Bytes,
    list: List,
    params: &Bytes,
) -> Reaction {
    let start = match Start::parse(params) {
        Ok(start) => start,
        Err(bad) => return Reaction::error(id, Code::InvalidParams, &bad.to_string()),
    };
    let (worker, family, principal) =
        (Rc::clone(worker), peer.client.family, peer.principal.clone());
    let only = peer.endpoint.server().cloned();
    let running = Running::new(|reply| async move {
        let sets = match &only {
            None => lists::all(&worker, list).await,
            Some(server) => lists::of_server(&worker, server, list).await,
        };
        let own_members = render::own_members(family, Caching::Milliseconds(list_cache::FRESH_MS));
        let settings = worker.settings();
        let visible = policy::visible(&principal, &settings.policy);
        let elements = lists::merged(&sets, &start, |server, own| match list {
            List::Resources | List::Templates | List::Skills => visible.resource(server, own),
            List::Prompts => visible.prompt(server, own),
        });
        let elements = elements.into_iter().map(|listed| match only {
            None => PageElement::from(listed),
            Some(_) => listed.own_element(list),
        });
        let page = listing::page(&own_members, list.member(), elements);
        reply.put(Piece::Whole(AnswerMember::Result, page));
        Ok(())
    });
    Reaction::Call { id: id.clone(), running }
}

/// Forwards a request to the upstream it names.
pub(crate) fn forward(
    worker: &Rc<Worker>,
    peer: &Peer,
    id: Bytes,
    forward: Forward,
    params: Bytes,
) -> Reaction {
    let (only, client_capabilities) = (peer.endpoint.server().cloned(), peer.client_capabilities());
    let (caller, kind) = (peer.caller(&id), RecordKind::Forward(forward));
    let request = RecordedRequest::begin(worker, caller, kind, || meta_of(&params));
    let running = request.running(async move |on: OnRecord<'_>| {
        on.record.name("", forward.method());
        on.record.keep_arguments(&params);
        send(on, forward, only.as_deref(), client_capabilities, &params).await
    });
    Reaction::Call { id, running }
}

/// Finds the server, asks for admission and sends the request; answers the request directly if the server is not
/// needed.
async fn send(
    mut on: OnRecord<'_>,
    forward: Forward,
    only: Option<&str>,
    client_capabilities: ClientCapabilities,
    params: &Bytes,
) -> Result<ReplySource, Stopped> {
    let nothing = || Ok(ReplySource::Own(Bytes::from_static(b"{}")));
    let (worker, client) = (on.worker, on.caller.client.as_ref().map(|(client, _)| client));
    let revision = client.map_or(Revision::NEWEST, |client| client.revision());
    let request =
        AddressedRequest::read(forward, revision, params).map_err(Refusal::invalid_params)?;
    if let Some(client) = client {
        client.warn_of_dropped(&worker.proxy.dropped_members, forward.method(), &request.left);
    }
    let (upstream, own) = match resolve(worker, only, request.target()).await {
        Ok(found) => found,
        Err(text) => {
            // Scope and rules apply to an unknown server as they do to a known one.
            let named = request.target().split().filter(|_| only.is_none());
            if let Some((server, own)) = named {
                let access = request.access(Arc::from(&*server), &own);
                if let Some(denial) = on.refused_by_name(access, b"", None) {
                    return Err(on.record.deny(&denial).into());
                }
            }
            return Err(Refusal::unreadable(text).into());
        }
    };
    on.record.name(upstream.name(), forward.method());
    let access = request.access(Arc::clone(upstream.name()), &own);
    let members = request.members();
    let mut extras = CallExtras {
        meta: request.meta(params),
        members,
        client_capabilities,
        ..CallExtras::default()
    };
    let mut arguments = request.arguments(params);
    let is_listed = |list| worker.proxy.list_cache.has(upstream.name(), list, &own);
    // A trace context of the HTTP request is forwarded like one in `_meta`.
    let carries_more = request.carries_more() || on.caller.trace.is_some();
    let carries = match forward {
        // A listed URI or name was chosen by the server, not by the client.
        Forward::Resource(_) => carries_more || !is_listed(List::Resources),
        Forward::Prompt => carries_more || !is_listed(List::Prompts),
        Forward::Completion => true,
    };
    on.set_offer(upstream.name(), carries);
    let permit = on.admit(access, &mut arguments, None, &mut extras).await?;
    if only.is_none() && is_of_skills(forward) && !offers(&upstream, Extension::Skills) {
        let shown = shown(request.target().word());
        let text = format!("'{shown}' belongs to a server without skills");
        return Err(Refusal::unreadable(text).into());
    }
    // The client's new subscription, if this request adds one.
    let mut fresh: Option<(Arc<Client>, String)> = None;
    // Keeps the connection open while the request runs.
    let held_open;
    if let (Some(client), Forward::Resource(asked)) = (client, forward) {
        let subscribers = &worker.proxy.list_cache.subscribers;
        let uri = || exposed::uri(upstream.name(), &own);
        match asked {
            ResourceRequest::Subscribe => {
                let uri = uri();
                if !client.is_subscribed(&uri) {
                    let account = worker.proxy.state_accounts.of(&on.caller.principal);
                    let refused = Refusal::unreadable;
                    let subscribing =
                        on.subscribing(client, request.access(Arc::clone(upstream.name()), &own));
                    let subscription = subscribers.enter(&uri, subscribing, &account);
                    let subscription = subscription.map_err(|full| refused(full.to_string()))?;
                    on.confirm(&subscription)?;
                    client.subscribe(subscription).map_err(|why| refused(why.to_string()))?;
                    fresh = Some((Arc::clone(client), uri));
                }
                if family_of(&upstream).await == ProtocolFamily::Modern {
                    let until = Instant::now() + list_cache::LIST_WAIT;
                    held_open = upstream.legacy_subscriptions(until).await;
                    if held_open.is_none() {
                        follow(&on, &upstream, &own, fresh).await?;
                        return nothing();
                    }
                }
            }
            ResourceRequest::Unsubscribe => {
                let uri = uri();
                let last = match client.unsubscribe(&uri) {
                    Some(subscription) => subscription.end(|| upstream.unsubscribed(&own)),
                    // The server may have a subscription that the proxy does not know.
                    None => !subscribers.any(&uri),
                };
                // Other clients share the subscription.
                let is_modern = family_of(&upstream).await == ProtocolFamily::Modern;
                if !last || (is_modern && !upstream.holds_legacy_subscriptions()) {
                    return nothing();
                }
            }
            ResourceRequest::Read | ResourceRequest::ReadDirectory | ResourceRequest::GetSkill => {}
        }
    }
    if let (None, Target::Uri(asked)) = (only, request.target()) {
        let exposed = exposed_places(forward, &own);
        on.rewrite(AnswerRewriter::new(exposed, upstream.name(), &own, asked));
    }
    let principal = &on.caller.principal;
    let (sent, extras) = match held::repeats::named_in(worker, principal, &extras.members) {
        // The members of the repeated request concern the held request, so they are not sent as params.
        Some(_) => (request.params(&own, b""), extras),
        None => {
            let sent = request.params(&own, &extras.members);
            (sent, CallExtras { members: Bytes::new(), ..extras })
        }
    };
    on.record.keep_arguments(&sent);
    let outcome = on.send_recorded(permit, sent, extras).await.inspect_err(|_| {
        // The server was not asked.
        if let Some((client, uri)) = fresh {
            drop(client.unsubscribe(&uri));
        }
    })?;
    if let (Forward::Resource(ResourceRequest::Subscribe), ReplySource::Server { sent, .. }) =
        (forward, &outcome)
    {
        upstream.subscribe(&own, Some(sent.answer.generation()));
    }
    Ok(outcome)
}

/// Whether the request is a skill request (SEP-2640).
fn is_of_skills(forward: Forward) -> bool {
    match forward {
        Forward::Resource(ResourceRequest::ReadDirectory | ResourceRequest::GetSkill) => true,
        Forward::Resource(_) | Forward::Prompt | Forward::Completion => false,
    }
}

/// Locations of exposed URIs in the result of a request for the server's `own` URI.
fn exposed_places(forward: Forward, own: &str) -> Option<&'static UriPlace> {
    match forward {
        Forward::Resource(ResourceRequest::Read) => exposed::keeps_scheme(own).then_some(&CONTENTS),
        Forward::Resource(ResourceRequest::ReadDirectory) => Some(&DIRECTORY),
        Forward::Resource(ResourceRequest::GetSkill) => Some(&SKILL_RESULT),
        Forward::Resource(ResourceRequest::Subscribe | ResourceRequest::Unsubscribe)
        | Forward::Prompt
        | Forward::Completion => None,
    }
}

/// Protocol family of a server once known; waits up to a limit.
async fn family_of(upstream: &Upstream) -> ProtocolFamily {
    let _ = tokio::time::timeout(list_cache::LIST_WAIT, upstream.settled()).await;
    upstream.family()
}

/// Subscribes to a resource at a modern server, which has subscription filters instead of this request (MCP 2026-07-28
/// §Subscriptions). All clients share the subscription. `fresh` is the client's new subscription, which ends if this fails.
async fn follow(
    on: &OnRecord<'_>,
    upstream: &Upstream,
    own: &str,
    fresh: Option<(Arc<Client>, String)>,
) -> Result<(), Refusal> {
    let (worker, server) = (on.worker, upstream.name());
    let why = match upstream.reached(Instant::now() + list_cache::LIST_WAIT).await {
        Err(reason) => {
            // The reason may quote the server.
            on.raise_facts(worker.proxy.catalog.exposure_of_offers(server));
            reason
        }
        Ok(()) if !upstream.offers().resource_updates => {
            format!("{server}: the server does not notify of resource changes")
        }
        Ok(()) => {
            upstream.subscribe(own, None);
            let deadline = tokio::time::Instant::now() + SUBSCRIPTION_LIMIT;
            if upstream.subscription_answer(own, deadline).await == SubscriptionAnswer::Confirmed {
                return Ok(());
            }
            format!("{server}: the server did not accept the subscription")
        }
    };
    if let Some((client, uri)) = fresh {
        drop(client.unsubscribe(&uri));
    }
    Err(Refusal::failed(RefusalKind::Failed, why))
}

/// Resolves a name or URI to the upstream and its own name. Refuses only unresolvable names; the upstream decides
/// whether the target exists.
async fn resolve(
    worker: &Worker,
    only: Option<&str>,
    target: &Target,
) -> Result<(Arc<Upstream>, String), String> {
    let upstreams = &worker.proxy.upstreams;
    if let Some(server) = only {
        let upstream =
            upstreams.get(server).ok_or_else(|| format!("Server '{server}' not found"))?;
        return Ok((upstream, target.word().to_owned()));
    }
    if let Some((server, own)) = target.split()
        && let Some(upstream) = upstreams.get(&server)
    {
        return Ok((upstream, own.into_owned()));
    }
    let shown = shown(target.word());
    match target {
        Target::Prompt(name) => {
            // The name may be a shortened form, which is found in the lists.
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
