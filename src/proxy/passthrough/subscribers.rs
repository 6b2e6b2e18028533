//! Which clients are subscribed to which resource.
//!
//! A server knows one subscriber, us, whose subscription many clients share: it ends with the last
//! of them. A client that goes away takes its own with it; what its server tells after that is told
//! to nobody.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::proxy::client::Client;

/// Most resources that are subscribed to at once, over all clients.
const MAX_RESOURCES: usize = 100_000;

/// The clients by the URI they know.
#[derive(Debug, Default)]
pub(super) struct Subscribers(Mutex<HashMap<Box<str>, Vec<Weak<Client>>>>);

/// No room for another subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many resources are subscribed to")]
pub(super) struct TooManySubscriptions;

impl Subscribers {
    /// Enters a client, once.
    pub(super) fn enter(
        &self,
        uri: &str,
        client: &Arc<Client>,
    ) -> Result<(), TooManySubscriptions> {
        let mut resources = self.0.lock();
        if resources.len() >= MAX_RESOURCES && !resources.contains_key(uri) {
            resources.retain(|uri, clients| !only_living(uri, clients).is_empty());
            if resources.len() >= MAX_RESOURCES {
                return Err(TooManySubscriptions);
            }
        }
        if !client.subscribe(uri) {
            return Err(TooManySubscriptions);
        }
        let clients = only_living(uri, resources.entry(uri.into()).or_default());
        if !clients.iter().any(|other| std::ptr::eq(other.as_ptr(), &raw const **client)) {
            clients.push(Arc::downgrade(client));
        }
        Ok(())
    }

    /// Whether any client is subscribed to it.
    pub(super) fn any(&self, uri: &str) -> bool {
        let mut resources = self.0.lock();
        let any = resources.get_mut(uri).is_some_and(|left| !only_living(uri, left).is_empty());
        if !any {
            resources.remove(uri);
        }
        any
    }

    /// Takes a client away; true if nobody is left.
    pub(super) fn leave(&self, uri: &str, client: &Client) -> bool {
        client.unsubscribe(uri);
        let mut resources = self.0.lock();
        let last = resources.get_mut(uri).is_none_or(|left| only_living(uri, left).is_empty());
        if last {
            resources.remove(uri);
        }
        last
    }
}

fn only_living<'a>(uri: &str, clients: &'a mut Vec<Weak<Client>>) -> &'a mut Vec<Weak<Client>> {
    clients.retain(|client| client.upgrade().is_some_and(|client| client.is_subscribed(uri)));
    clients
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subscription_ends_with_its_last_client() {
        let (all, first, second) = (Subscribers::default(), Client::of_test(), Client::of_test());
        assert!(all.leave("a:b", &first), "nobody had it");
        for client in [&first, &first, &second] {
            all.enter("a:b", client).unwrap();
        }
        assert!(!all.leave("a:b", &first));
        assert!(!first.is_subscribed("a:b") && second.is_subscribed("a:b"));
        assert!(all.any("a:b"));
        drop(second);
        assert!(!all.any("a:b"), "the other one has gone");
        assert!(all.leave("a:b", &first), "the other one has gone");
    }

    #[test]
    fn a_client_has_so_many_and_no_more() {
        let (all, client) = (Subscribers::default(), Client::of_test());
        let full = (0..MAX_RESOURCES).find(|n| all.enter(&n.to_string(), &client).is_err());
        let full = full.expect("a client's own limit is lower").to_string();
        assert!(!client.is_subscribed(&full));
        assert!(all.leave("0", &client));
        all.enter(&full, &client).unwrap();
    }
}
