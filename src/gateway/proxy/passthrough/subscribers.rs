//! Table of the clients' resource subscriptions, reference-counted by resource.
//!
//! A server has one subscriber, whose subscription is shared by many clients and ends with the last of them. A
//! dropped [`ResourceSubscription`] leaves its URI to [`Subscribers::ended`], so that the server can be notified.
//!
//! A subscription that its client may no longer have is revoked ([`revocation`](super::revocation)). It has
//! then ended for all of its holders and is passed to [`Subscribers::revoked`] to be recorded.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mcpproxy_activity::record::Decision;
use mcpproxy_policy::{Principal, SessionFacts, StateAccount, StateCharge, StateFull};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

/// Memory charge of a subscription besides the copies of its URI: table entries here and at the server.
const BESIDE_URI_BYTES: usize = 1024;
/// Number of charged copies of a URI: the client's and the server's.
const COPIES: usize = 2;

/// Live subscriptions, and the number of subscribed clients by URI, as clients know it.
#[derive(Debug, Default)]
pub(crate) struct Subscribers {
    table: Mutex<Table>,
    ended: Notify,
    revoked: Notify,
    /// Number of revocations so far.
    revocations: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Table {
    /// Id of the next subscription.
    next: u64,
    live: BTreeMap<u64, (Arc<Subscriber>, StateCharge)>,
    clients: HashMap<Arc<str>, usize>,
    /// URIs without subscribers whose server is to be notified; charged until then.
    ended: BTreeMap<Arc<str>, StateCharge>,
    /// Revocations to be recorded; charged until then.
    revoked: Vec<Revocation>,
}

/// Subscriber to a resource, and how the subscription was admitted.
#[derive(Clone, Debug)]
pub(crate) struct Subscribing {
    pub(crate) principal: Principal,
    pub(crate) session_id: Arc<str>,
    pub(crate) client_name: Arc<str>,
    /// Facts of the client's session when it subscribed.
    pub(crate) facts: SessionFacts,
    /// Whether a person approved the subscription.
    pub(crate) is_approved: bool,
}

/// Subscription as evaluated by policy.
#[derive(Debug)]
pub(crate) struct Subscriber {
    id: u64,
    /// URI as the client knows it.
    pub(crate) uri: Arc<str>,
    pub(crate) of: Subscribing,
    revoked: AtomicBool,
}

/// Subscription ended by a policy decision.
#[derive(Debug)]
pub(crate) struct Revocation {
    pub(crate) subscriber: Arc<Subscriber>,
    pub(crate) decision: Decision,
    _charge: Option<StateCharge>,
}

/// One client's subscription to a resource.
#[derive(Debug)]
pub(crate) struct ResourceSubscription {
    subscriber: Arc<Subscriber>,
    all: Arc<Subscribers>,
}

impl Subscribers {
    /// Subscribes a client whose memory is charged to `account`.
    pub(crate) fn enter(
        self: &Arc<Self>,
        uri: &str,
        of: Subscribing,
        account: &Arc<StateAccount>,
    ) -> Result<ResourceSubscription, StateFull> {
        let charge = account.charge(COPIES * uri.len() + BESIDE_URI_BYTES)?;
        let mut table = self.table.lock();
        let uri = table.clients.get_key_value(uri).map_or_else(|| uri.into(), |it| it.0.clone());
        *table.clients.entry(Arc::clone(&uri)).or_default() += 1;
        let id = table.next;
        table.next += 1;
        let subscriber = Arc::new(Subscriber { id, uri, of, revoked: AtomicBool::new(false) });
        table.live.insert(id, (Arc::clone(&subscriber), charge));
        drop(table);
        Ok(ResourceSubscription { subscriber, all: Arc::clone(self) })
    }

    /// Whether any client is subscribed to the URI.
    pub(crate) fn any(&self, uri: &str) -> bool {
        self.table.lock().clients.contains_key(uri)
    }

    /// Runs `end` unless a client is subscribed to the URI. Excludes new subscriptions while `end` runs.
    pub(crate) fn unless_wanted(&self, uri: &str, end: impl FnOnce()) {
        let table = self.table.lock();
        if !table.clients.contains_key(uri) {
            end();
        }
    }

    /// Waits for URIs whose last subscription was dropped or revoked; each is charged until its charge is dropped.
    pub(crate) async fn ended(&self) -> BTreeMap<Arc<str>, StateCharge> {
        loop {
            let ended = std::mem::take(&mut self.table.lock().ended);
            if !ended.is_empty() {
                return ended;
            }
            self.ended.notified().await;
        }
    }

    /// Up to `max` live subscriptions with ids above `after`, ordered by id, which is the order of creation.
    pub(crate) fn after(&self, after: Option<u64>, max: usize) -> Vec<Arc<Subscriber>> {
        let start = after.map_or(0, |id| id.saturating_add(1));
        let table = self.table.lock();
        table.live.range(start..).take(max).map(|(_, (of, _))| Arc::clone(of)).collect()
    }

    /// Ends a subscription because of a decision, at most once.
    pub(crate) fn revoke(&self, subscriber: &Arc<Subscriber>, decision: Decision) {
        let mut table = self.table.lock();
        let Some((_, charge)) = table.live.remove(&subscriber.id) else { return };
        subscriber.revoked.store(true, Ordering::Release);
        let charge = match table.leave(&subscriber.uri) {
            true => {
                table.ended.insert(Arc::clone(&subscriber.uri), charge);
                self.ended.notify_one();
                None
            }
            false => Some(charge),
        };
        let subscriber = Arc::clone(subscriber);
        table.revoked.push(Revocation { subscriber, decision, _charge: charge });
        drop(table);
        self.revoked.notify_one();
        self.revocations.send_modify(|count| *count += 1);
    }

    /// Waits for revocations; each is reported once.
    pub(crate) async fn revoked(&self) -> Vec<Revocation> {
        loop {
            let revoked = std::mem::take(&mut self.table.lock().revoked);
            if !revoked.is_empty() {
                return revoked;
            }
            self.revoked.notified().await;
        }
    }

    /// Receiver marked at each revocation.
    pub(crate) fn revocations(&self) -> watch::Receiver<u64> {
        self.revocations.subscribe()
    }
}

impl Table {
    /// Removes one client; true if it was the last.
    fn leave(&mut self, uri: &str) -> bool {
        let Some(clients) = self.clients.get_mut(uri) else { return false };
        *clients -= 1;
        let last = *clients == 0;
        if last {
            self.clients.remove(uri);
        }
        last
    }
}

impl Subscriber {
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn is_live(&self) -> bool {
        !self.revoked.load(Ordering::Acquire)
    }
}

impl ResourceSubscription {
    /// URI as the client knows it.
    pub(crate) fn uri(&self) -> &Arc<str> {
        &self.subscriber.uri
    }

    /// Subscriber, revoked or not.
    pub(crate) fn requested(&self) -> &Arc<Subscriber> {
        &self.subscriber
    }

    /// Subscriber, unless revoked.
    pub(crate) fn subscriber(&self) -> Option<&Arc<Subscriber>> {
        self.subscriber.is_live().then_some(&self.subscriber)
    }

    /// Ends the subscription because of its client's request, which itself notifies the server. If no other client
    /// has the subscription, runs `last` and returns true. Excludes new subscriptions while `last` runs.
    pub(crate) fn end(self, last: impl FnOnce()) -> bool {
        let mut table = self.all.table.lock();
        let charge = table.live.remove(&self.subscriber.id);
        let ended = charge.is_some() && table.leave(self.uri());
        if ended {
            last();
        }
        drop((table, charge));
        ended
    }
}

impl Drop for ResourceSubscription {
    fn drop(&mut self) {
        if !self.subscriber.is_live() {
            return;
        }
        let mut table = self.all.table.lock();
        let Some((_, charge)) = table.live.remove(&self.subscriber.id) else { return };
        if table.leave(self.uri()) {
            table.ended.insert(Arc::clone(self.uri()), charge);
            self.all.ended.notify_one();
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use mcpproxy_activity::record::{Policy, Verdict};
    use mcpproxy_policy::StateAccounts;

    use super::*;

    /// An anonymous client without a session.
    pub(crate) fn anyone() -> Subscribing {
        Subscribing {
            principal: Principal::Anonymous,
            session_id: Arc::default(),
            client_name: Arc::default(),
            facts: SessionFacts::default(),
            is_approved: false,
        }
    }

    fn account() -> Arc<StateAccount> {
        StateAccounts::default().of(&Principal::Anonymous)
    }

    fn forbidden() -> Decision {
        Decision::new(Verdict::Blocked, Policy::Rules, "forbidden")
    }

    #[tokio::test]
    async fn dropped_subscription_ends_with_its_last_client() {
        let (all, account) = (Arc::<Subscribers>::default(), account());
        let [first, second] = [(); 2].map(|()| all.enter("a:b", anyone(), &account).unwrap());
        drop(first);
        assert!(all.any("a:b"));
        all.unless_wanted("a:b", || panic!("a client has it"));
        drop(second);
        assert!(!all.any("a:b"));
        assert!(account.bytes() > 0, "its server was not notified yet");
        let ended = all.ended().await;
        assert_eq!(ended.keys().map(|uri| &**uri).collect::<Vec<_>>(), ["a:b"]);
        drop(ended);
        assert_eq!(account.bytes(), 0);
        let mut ended = false;
        all.unless_wanted("a:b", || ended = true);
        assert!(ended);
    }

    #[test]
    fn subscription_ended_by_its_client_is_reported_once() {
        let (all, account) = (Arc::<Subscribers>::default(), account());
        let [first, second] = [(); 2].map(|()| all.enter("a:b", anyone(), &account).unwrap());
        assert!(!first.end(|| panic!("another client has it")));
        let mut ended = false;
        assert!(second.end(|| ended = true) && ended);
        assert!(all.table.lock().ended.is_empty(), "the caller notifies the server");
        assert_eq!(account.bytes(), 0);
    }

    #[test]
    fn uris_are_charged_to_the_subscriber() {
        let (all, accounts) =
            (Arc::<Subscribers>::default(), StateAccounts::of_at_most(4096, 8192));
        let [ada, bob] = ["ada", "bob"].map(|name| accounts.of(&Principal::certificate(name)));
        let kept = all.enter(&"x".repeat(1500), anyone(), &ada).unwrap();
        assert_eq!(ada.bytes(), 2 * 1500 + BESIDE_URI_BYTES);
        assert_eq!(
            all.enter("y", anyone(), &ada).unwrap_err(),
            StateFull::OfPrincipal { limit: 4096 }
        );
        let others = all.enter("y", anyone(), &bob).unwrap();
        drop(kept);
        assert!(all.enter("z", anyone(), &ada).is_err(), "its server was not notified yet");
        let ended = all.table.lock().ended.pop_first();
        drop((ended, others));
        assert_eq!((ada.bytes(), all.any("x")), (0, false));
    }

    #[tokio::test]
    async fn rul_8_revoked_subscription_is_not_live_and_reported_once() {
        let (all, account) = (Arc::<Subscribers>::default(), account());
        let [first, second] = [(); 2].map(|()| all.enter("a:b", anyone(), &account).unwrap());
        let of = |subscription: &ResourceSubscription| {
            Arc::clone(subscription.subscriber().expect("it is live"))
        };
        let subscriber = of(&first);
        assert_eq!(all.after(None, 9).len(), 2);
        assert_eq!(all.after(Some(subscriber.id()), 9).len(), 1);
        for _ in 0..2 {
            all.revoke(&subscriber, forbidden());
        }
        assert!(first.subscriber().is_none() && second.subscriber().is_some());
        assert_eq!(all.revoked().await.len(), 1);
        assert!(all.any("a:b"), "the other client has it");
        assert!(!first.end(|| panic!("it has ended already")));
        all.revoke(&of(&second), forbidden());
        assert_eq!(all.ended().await.len(), 1, "its server is notified");
        drop(second);
        assert_eq!(all.revoked().await.len(), 1);
        assert_eq!((account.bytes(), all.any("a:b")), (0, false));
        assert!(all.table.lock().ended.is_empty(), "and only once");
    }
}
