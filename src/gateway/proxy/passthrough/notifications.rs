//! Change notifications of upstreams for lists and resources, and the resource subscriptions of modern clients.
//!
//! This module maps a server's changes to the proxy's lists and the clients' URIs, and paces notifications: a list
//! that changes constantly is forwarded less and less often ([`Pace`]), and changes of several servers are merged.
//! Downstream selects the receivers.
//!
//! [`Watch`] holds the resources of one subscription (MCP 2026-07-28 §Subscriptions).

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use mcpproxy_activity::record::Raw;
use mcpproxy_catalog::{Notice, exposed};
use mcpproxy_policy::{Access, Principal, ResourceRequest, SessionFacts};
use mcpproxy_runtime::io::line_budget::peer_line;
use mcpproxy_upstream::{Pace, SUBSCRIPTION_LIMIT, SubscriptionAnswer, Upstream};

use serde_json::json;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Notify, watch};

use super::subscribers::ResourceSubscription;
use super::{Forward, List, revocation};
use crate::proxy::client::Peer;
use crate::proxy::recorded::{OnRecord, RecordedRequest, ReplySource};
use crate::proxy::refusal::{RecordKind, Refusal};
use crate::proxy::reply::Reply;
use crate::proxy::worker::{Proxy, Worker};

/// Minimum interval between notifications of a list; changes in between are merged.
const GATHER: Duration = Duration::from_millis(100);

/// Changed lists that clients have not been notified of.
#[derive(Default)]
struct Changed {
    resources: Notify,
    prompts: Notify,
}

/// Follows all current and future upstreams for as long as it is polled.
pub async fn follow(proxy: Arc<Proxy>) {
    let changed = Changed::default();
    tokio::join!(
        each(&proxy, &changed),
        notify_of_tools(&proxy),
        notify(&proxy, Notice::Resources, || changed.resources.notified()),
        notify(&proxy, Notice::Prompts, || changed.prompts.notified()),
        unsubscribe(&proxy),
        revocation::follow(&proxy),
    );
}

/// Cancels subscriptions at servers whose last client ended its session or disconnected.
async fn unsubscribe(proxy: &Proxy) {
    loop {
        for (uri, _charged) in proxy.list_cache.subscribers.ended().await {
            if let Some((server, own)) = exposed::split_uri(&uri)
                && let Some(upstream) = proxy.upstreams.get(&server)
            {
                let subscribers = &proxy.list_cache.subscribers;
                subscribers.unless_wanted(&uri, || upstream.unsubscribe(&own));
            }
        }
    }
}

/// Follows each upstream while it is configured.
async fn each(proxy: &Proxy, changed: &Changed) {
    let mut swaps = proxy.upstreams.swaps();
    let mut followed = BTreeSet::new();
    let mut following = FuturesUnordered::new();
    loop {
        swaps.borrow_and_update();
        for upstream in proxy.upstreams.iter() {
            if followed.insert(upstream.key()) {
                following.push(async move {
                    tokio::select! {
                        () = one(&upstream, proxy, changed) => {}
                        () = upstream.retired() => changed.leaves(&upstream),
                    }
                    upstream.key()
                });
            }
        }
        tokio::select! {
            swapped = swaps.changed() => {
                if swapped.is_err() {
                    return;
                }
            }
            Some(ended) = following.next() => {
                // An upstream that ended but is still configured stays in the set.
                if proxy.upstreams.iter().all(|upstream| upstream.key() != ended) {
                    followed.remove(&ended);
                }
            }
        }
    }
}

impl Changed {
    /// Marks the lists of a removed server as changed.
    fn leaves(&self, upstream: &Upstream) {
        let offers = upstream.offers();
        if offers.resources {
            self.resources.notify_one();
        }
        if offers.prompts {
            self.prompts.notify_one();
        }
    }
}

/// Notifies clients whenever a list changes.
async fn notify<F: Future<Output = ()>>(proxy: &Proxy, notice: Notice, changed: impl Fn() -> F) {
    loop {
        changed().await;
        proxy.catalog.notify(notice.clone());
        tokio::time::sleep(GATHER).await;
    }
}

/// Notifies clients of changed tools, and of changed built-in ones if the overview of the servers differs.
async fn notify_of_tools(proxy: &Proxy) {
    let mut last = proxy.overview.of(&proxy.catalog.load());
    loop {
        proxy.catalog.changed().await;
        proxy.catalog.notify(Notice::Tools);
        let now = proxy.overview.of(&proxy.catalog.load());
        if *now != *last {
            proxy.catalog.notify(Notice::OwnTools);
        }
        last = now;
        tokio::time::sleep(GATHER).await;
    }
}

/// Notification pacing of one list of a server.
#[derive(Default)]
struct PacedList {
    pace: Pace,
    due: Option<tokio::time::Instant>,
}

impl PacedList {
    /// Records a change; true if the operator should be warned of constant changes.
    fn changed(&mut self, now: Instant) -> bool {
        if self.due.is_some() {
            return false;
        }
        let look = self.pace.changed(now);
        let after = if look.calm { Duration::ZERO } else { look.after };
        self.due = Some((now + after).into());
        look.warn
    }

    /// Completes when clients are due to be notified; never if nothing is pending.
    async fn due(&mut self) {
        match self.due {
            Some(due) => tokio::time::sleep_until(due).await,
            None => std::future::pending().await,
        }
        self.due = None;
    }
}

/// Warns of a server whose lists change too often, if `is_logged`.
fn warn_restless(upstream: &Upstream, which: &'static str, is_logged: bool) {
    if is_logged {
        let server = upstream.name();
        peer_line!(warn, upstream, %server, "list of {which} changes too often; notifications to clients are throttled");
    }
}

async fn one(upstream: &Upstream, proxy: &Proxy, lists: &Changed) {
    let (mut changes, mut updates) = (upstream.changes(), upstream.updates());
    let mut tasks = upstream.changed_tasks();
    let mut known = *changes.borrow_and_update();
    let mut before = upstream.offers();
    let (mut resources, mut prompts) = (PacedList::default(), PacedList::default());
    loop {
        tokio::select! {
            () = resources.due() => lists.resources.notify_one(),
            () = prompts.due() => lists.prompts.notify_one(),
            changed = changes.changed() => {
                if changed.is_err() {
                    return;
                }
                let now = *changes.borrow_and_update();
                let offers = upstream.offers();
                // A reconnecting server without this list changes nothing.
                if now.resources != known.resources && (offers.resources || before.resources) {
                    warn_restless(upstream, "resources", resources.changed(Instant::now()));
                }
                if now.prompts != known.prompts && (offers.prompts || before.prompts) {
                    warn_restless(upstream, "prompts", prompts.changed(Instant::now()));
                }
                (known, before) = (now, offers);
                // This check is made at each connection, because clients may have dropped subscriptions in the
                // meantime.
                for uri in upstream.subscriptions() {
                    let known = exposed::uri(upstream.name(), &uri);
                    let subscribers = &proxy.list_cache.subscribers;
                    subscribers.unless_wanted(&known, || upstream.unsubscribe(&uri));
                }
            }
            updated = updates.recv() => match updated {
                Ok(uri) => {
                    let uri = exposed::uri(upstream.name(), &uri);
                    proxy.catalog.notify(Notice::Updated(uri.into()));
                }
                Err(RecvError::Lagged(missed)) => {
                    let server = upstream.name();
                    peer_line!(warn, upstream, %server, missed, "dropped resource update notifications: receiver lagged");
                }
                Err(RecvError::Closed) => return,
            },
            changed = tasks.recv() => match changed {
                Ok(task) => proxy.known_tasks.changed(upstream.name(), &task, Instant::now()),
                // Clients cannot rely on task notifications.
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            },
        }
    }
}

/// Resources of one subscription; unsubscribed on drop.
#[derive(Debug)]
pub struct Watch {
    proxy: Arc<Proxy>,
    principal: Principal,
    resources: Vec<ResourceSubscription>,
    revocations: watch::Receiver<u64>,
}

impl Watch {
    /// Watches those of `uris` that belong to a server with change notifications and that the peer may subscribe
    /// to. Each URI that belongs to a server is recorded as a request (ACT-1) under the subscription's raw `id`.
    pub async fn begin(worker: &Rc<Worker>, peer: &Peer, id: &Bytes, uris: Vec<String>) -> Self {
        let proxy = Arc::clone(&worker.proxy);
        let revocations = proxy.list_cache.subscribers.revocations();
        let principal = peer.principal.clone();
        let mut watch = Self { proxy, principal, resources: Vec::new(), revocations };
        for uri in uris {
            if !watch.has(&uri)
                && let Some(subscription) = watch.enter(worker, peer, id, &uri).await
            {
                watch.resources.push(subscription);
            }
        }
        watch.answered().await;
        watch
    }

    /// Waits for the servers' answers, so that no change after the acknowledgment is missed, and ends refused
    /// subscriptions. A disconnected server is asked later; the resource then counts as changed.
    async fn answered(&mut self) {
        let deadline = tokio::time::Instant::now() + SUBSCRIPTION_LIMIT;
        let mut refused = Vec::new();
        for (place, resource) in self.resources.iter().enumerate() {
            let Some((server, own)) = exposed::split_uri(resource.uri()) else { continue };
            let Some(upstream) = self.proxy.upstreams.get(&server) else { continue };
            let answers = upstream.is_connected() && upstream.offers().resource_updates;
            if answers
                && upstream.subscription_answer(&own, deadline).await == SubscriptionAnswer::Refused
            {
                refused.push(place);
            }
        }
        refused.into_iter().rev().for_each(|place| drop(self.resources.remove(place)));
    }

    /// Watched URIs as the client knows them, without revoked ones.
    pub fn live_uris(&self) -> impl Iterator<Item = &str> {
        let live = self.resources.iter().filter(|resource| resource.subscriber().is_some());
        live.map(|resource| &**resource.uri())
    }

    fn has(&self, uri: &str) -> bool {
        self.resources.iter().any(|resource| **resource.uri() == *uri)
    }

    /// Whether its client may be notified of updates of this resource now. If not, the subscription ends.
    pub fn receives(&self, uri: &str) -> bool {
        let watched = self.resources.iter().find(|resource| **resource.uri() == *uri);
        watched.and_then(ResourceSubscription::subscriber).is_some_and(|subscriber| {
            // A modern client has no session.
            let facts = SessionFacts::default();
            !revocation::revoke_if_denied(&self.proxy, subscriber, &self.principal, facts)
        })
    }

    /// Waits until the watch's last resource is revoked; waits forever if the watch has no resources.
    pub async fn emptied(&mut self) {
        while self.resources.iter().any(|resource| resource.subscriber().is_some()) {
            if self.revocations.changed().await.is_err() {
                break;
            }
        }
        if self.resources.is_empty() {
            std::future::pending().await
        }
    }

    async fn enter(
        &self,
        worker: &Rc<Worker>,
        peer: &Peer,
        id: &Bytes,
        uri: &str,
    ) -> Option<ResourceSubscription> {
        let (server, own) = exposed::split_uri(uri)?;
        let upstream = self.proxy.upstreams.get(&server)?;
        let notifies = upstream.offers().resource_updates || !upstream.is_settled();
        if !notifies {
            return None;
        }
        let mut entered = None;
        let request = ResourceRequest::Subscribe;
        let kind = RecordKind::Forward(Forward::Resource(request));
        let work = async |mut on: OnRecord<'_>| {
            on.record.name(upstream.name(), request.method());
            on.record.keep(Raw::Arguments, json!({ "uri": uri }).to_string().as_bytes());
            let server = Arc::clone(upstream.name());
            let is_listed = self.proxy.list_cache.has(&server, List::Resources, &own);
            on.set_offer(&server, !is_listed);
            let access = Access::Resource { server, uri: (&*own).into(), request };
            on.admit_at_once(access.clone())?;
            let account = self.proxy.state_accounts.of(&on.caller.principal);
            let subscribing = on.subscribing(&peer.client, access);
            let subscribers = &self.proxy.list_cache.subscribers;
            let subscription = subscribers.enter(uri, subscribing, &account);
            let subscription =
                subscription.map_err(|full| Refusal::unreadable(full.to_string()))?;
            on.confirm(&subscription)?;
            entered = Some(subscription);
            upstream.subscribe(&own, None);
            Ok(ReplySource::Own(Bytes::from_static(b"{}")))
        };
        // A refused URI is missing from the acknowledgement, which is the only reply.
        let request = RecordedRequest::begin(worker, peer.caller(id), kind, || None);
        let _ = request.run(Reply::default(), work).await;
        entered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notifications_of_a_constantly_changing_list_become_increasingly_rare() {
        let (mut list, start) = (PacedList::default(), Instant::now());
        let (mut now, mut notified, mut restless) = (start, Vec::new(), 0);
        for _ in 0..10 {
            restless += usize::from(list.changed(now));
            let due = list.due;
            assert!(!list.changed(now), "changes while one is due are merged");
            assert_eq!(list.due, due);
            now = list.due.take().expect("clients must be notified of the change").into_std();
            notified.push((now - start).as_millis());
        }
        let waits: Vec<_> = notified.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(notified[0], 0, "the first notification is immediate");
        assert_eq!(waits[..7], [500, 1000, 2000, 4000, 8000, 16_000, 30_000]);
        assert!(waits[7..].iter().all(|wait| *wait == 30_000), "{waits:?}");
        assert_eq!(restless, 1);
    }
}
