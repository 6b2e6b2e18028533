//! The resources of a server whose changes clients want to be told of.
//!
//! A legacy server is asked for each of them, on each new connection again ([`super::resubscribe`]);
//! a modern one by the filter of a subscription ([`super::listen`]). Which client wants what is not
//! known here.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

/// Longest wait until a modern server's subscription stands.
const FOLLOW_LIMIT: Duration = Duration::from_secs(10);

/// By the URI that the server knows: the connection over which a legacy server was asked, 0 for
/// none.
pub(super) type WantedResources = BTreeMap<Arc<str>, u64>;

/// How a modern server tells of single resources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Followed {
    /// Not now: there is no subscription, or it is being opened.
    #[default]
    None,
    /// Of these, by a subscription that stands.
    These(Vec<Arc<str>>),
    /// It refuses to, on this connection.
    Refused,
}

/// What one server is to tell of.
#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    pub(super) wanted: watch::Sender<WantedResources>,
    /// Which of them a modern server's subscription holds.
    pub(super) followed: watch::Sender<Followed>,
}

impl Subscriptions {
    /// Adds a resource. `asked` is the connection over which the server was asked already, if it
    /// was.
    pub(super) fn add(&self, uri: &str, asked: Option<u64>) {
        self.wanted.send_if_modified(|wanted| match (wanted.get_mut(uri), asked) {
            (Some(known), Some(asked)) => {
                *known = asked;
                false
            }
            (Some(_), None) => false,
            (None, asked) => {
                wanted.insert(uri.into(), asked.unwrap_or_default());
                true
            }
        });
    }

    /// Adds a resource of a modern server and waits until its subscription holds that too, bounded
    /// by `FOLLOW_LIMIT`; false if it does not.
    pub(super) async fn add_and_wait(&self, uri: &str) -> bool {
        let mut followed = self.followed.subscribe();
        self.add(uri, None);
        let settled = followed.wait_for(|now| match now {
            Followed::None => false,
            Followed::These(uris) => uris.iter().any(|known| &**known == uri),
            Followed::Refused => true,
        });
        match tokio::time::timeout(FOLLOW_LIMIT, settled).await {
            Ok(Ok(now)) => *now != Followed::Refused,
            Ok(Err(_)) | Err(_) => false,
        }
    }

    pub(super) fn remove(&self, uri: &str) {
        self.wanted.send_if_modified(|wanted| wanted.remove(uri).is_some());
    }

    pub(super) fn uris(&self) -> Vec<Arc<str>> {
        self.wanted.borrow().keys().cloned().collect()
    }
}
