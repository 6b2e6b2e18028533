//! The resources of a server whose changes clients want to be told of, and how the server knows.
//!
//! A legacy server is asked for each of them, on each new connection again; a modern one by the
//! filter of a subscription ([`super::listen`]). Which client wants what is not known here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::call::{Carrier, Upstream};
use super::connect::fetch;
use super::request::Params;
use crate::mcp::revisions::Era;

/// Most bytes of a server's answer, in which nothing is.
const MAX_BYTES: usize = 64 * 1024;
/// Longest wait until a modern server's subscription stands.
const FOLLOW_LIMIT: Duration = Duration::from_secs(10);

/// By the URI that the server knows: the connection over which a legacy server was asked, 0 for
/// none.
pub(super) type Subscriptions = BTreeMap<Arc<str>, u64>;

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

impl Upstream {
    /// Wants a resource of a modern server and waits until its subscription holds that too, bounded
    /// by `FOLLOW_LIMIT`; false if it does not.
    pub async fn subscribe_and_wait(&self, uri: &str) -> bool {
        let mut followed = self.followed.subscribe();
        self.subscribe(uri, None);
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

    /// The server is to tell of this resource's changes, also after the next connection. `asked`
    /// is the connection over which it was asked already, if it was.
    pub fn subscribe(&self, uri: &str, asked: Option<u64>) {
        self.subscriptions.send_if_modified(|subscriptions| {
            match (subscriptions.get_mut(uri), asked) {
                (Some(known), Some(asked)) => {
                    *known = asked;
                    false
                }
                (Some(_), None) => false,
                (None, asked) => {
                    subscriptions.insert(uri.into(), asked.unwrap_or_default());
                    true
                }
            }
        });
    }

    /// Nobody wants to be told of it any more.
    pub fn unsubscribe(&self, uri: &str) {
        self.subscriptions.send_if_modified(|subscriptions| subscriptions.remove(uri).is_some());
    }

    /// What is wanted.
    #[must_use]
    pub fn subscriptions(&self) -> Vec<Arc<str>> {
        self.subscriptions.borrow().keys().cloned().collect()
    }
}

/// Keeps a legacy server's subscriptions to what is wanted, on one connection.
pub(super) async fn keep(upstream: Arc<Upstream>, generation: u64, limit: Duration) {
    let mut changed = upstream.subscriptions.subscribe();
    let mut asked = BTreeSet::new();
    loop {
        let (missing, gone) = {
            let subscriptions = changed.borrow_and_update();
            let missing = subscriptions.iter().filter(|(_, over)| **over != generation);
            let missing: Vec<_> = missing.map(|(uri, over)| (Arc::clone(uri), *over)).collect();
            let gone = |uri: &&Arc<str>| !subscriptions.contains_key(*uri);
            (missing, asked.iter().filter(gone).cloned().collect::<Vec<_>>())
        };
        for uri in gone {
            asked.remove(&uri);
            tell(&upstream, "resources/unsubscribe", generation, &uri, limit).await;
        }
        for (uri, before) in missing {
            upstream.subscriptions.send_if_modified(|subscriptions| {
                if let Some(over) = subscriptions.get_mut(&uri) {
                    *over = generation;
                }
                false
            });
            tell(&upstream, "resources/subscribe", generation, &uri, limit).await;
            if before != 0 {
                // What it was while there was no connection, nobody knows.
                upstream.server_events.updated(&uri);
            }
            asked.insert(uri);
        }
        if changed.changed().await.is_err() {
            return;
        }
    }
}

async fn tell(
    upstream: &Upstream,
    method: &'static str,
    generation: u64,
    uri: &str,
    limit: Duration,
) {
    let carrier: Carrier = match upstream.live.load().as_deref() {
        Some(live) if live.generation == generation => live.link.clone(),
        Some(_) | None => return,
    };
    let params = Params::of(method, json!({"uri": uri}).to_string().into());
    if let Err(cause) = fetch(&carrier, params, Era::Legacy, limit, MAX_BYTES).await
        && upstream.peer.may_log()
    {
        tracing::debug!(server = %upstream.name, method, %cause, "a server could not be told");
    }
}
