//! Keeps a legacy server's subscriptions to resources to what clients want: asked for over each new
//! connection again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::handle::Upstream;
use super::request::Params;
use crate::mcp::revisions::Era;

/// Most bytes of a server's answer, in which nothing is.
const MAX_BYTES: usize = 64 * 1024;

/// Keeps a legacy server's subscriptions to what is wanted, on one connection.
pub(super) async fn keep(upstream: Arc<Upstream>, generation: u64, limit: Duration) {
    let mut changed = upstream.subscriptions.wanted.subscribe();
    let mut asked = BTreeSet::new();
    loop {
        let (missing, gone) = {
            let wanted = changed.borrow_and_update();
            let missing = wanted.iter().filter(|(_, over)| **over != generation);
            let missing: Vec<_> = missing.map(|(uri, over)| (Arc::clone(uri), *over)).collect();
            let gone = |uri: &&Arc<str>| !wanted.contains_key(*uri);
            (missing, asked.iter().filter(gone).cloned().collect::<Vec<_>>())
        };
        for uri in gone {
            asked.remove(&uri);
            tell(&upstream, "resources/unsubscribe", generation, &uri, limit).await;
        }
        for (uri, before) in missing {
            upstream.subscriptions.wanted.send_if_modified(|wanted| {
                if let Some(over) = wanted.get_mut(&uri) {
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
    let live = upstream.state.live().filter(|live| live.generation == generation);
    let Some(live) = live else { return };
    let params = Params::of(method, json!({"uri": uri}).to_string().into());
    if let Err(cause) = live.link.fetch(params, Era::Legacy, limit, MAX_BYTES).await
        && upstream.peer.may_log()
    {
        tracing::debug!(server = %upstream.name, method, %cause, "a server could not be told");
    }
}
