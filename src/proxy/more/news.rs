//! What upstreams tell of their lists and resources, on its way to whoever listens.
//!
//! Owns the translation: which change of a server is which change of ours, and under which URI
//! clients know a resource. Whom it is told, the faces decide.

use std::sync::Arc;

use tokio::sync::broadcast::error::RecvError;

use crate::catalog::exposed;
use crate::catalog::snapshot::Notice;
use crate::proxy::Proxy;
use crate::upstream::Upstream;

/// Follows every upstream for as long as it is polled.
pub async fn follow(proxy: Arc<Proxy>) {
    let upstreams = proxy.upstreams.iter().map(|upstream| one(upstream, &proxy));
    futures_util::future::join_all(upstreams).await;
}

async fn one(upstream: &Upstream, proxy: &Proxy) {
    let catalog = &proxy.catalog;
    let (mut changes, mut updates) = (upstream.changes(), upstream.updates());
    let mut known = *changes.borrow_and_update();
    let mut before = upstream.offers();
    loop {
        tokio::select! {
            changed = changes.changed() => {
                if changed.is_err() {
                    return;
                }
                let now = *changes.borrow_and_update();
                let offers = upstream.offers();
                // A server that comes and goes without any changes no list of ours.
                if now.resources != known.resources && (offers.resources || before.resources) {
                    catalog.notify(Notice::Resources);
                }
                if now.prompts != known.prompts && (offers.prompts || before.prompts) {
                    catalog.notify(Notice::Prompts);
                }
                (known, before) = (now, offers);
                // At each connection: whoever has gone without a word wants nothing any more.
                for uri in upstream.wanted() {
                    if !proxy.offers.subscribers.any(&exposed::uri(upstream.name(), &uri)) {
                        upstream.unwant(&uri);
                    }
                }
            }
            updated = updates.recv() => match updated {
                Ok(uri) => {
                    let uri = exposed::uri(upstream.name(), &uri);
                    catalog.notify(Notice::Updated(uri.into()));
                }
                Err(RecvError::Lagged(missed)) => {
                    let server = upstream.name();
                    tracing::warn!(%server, missed, "updates of resources were told to nobody");
                }
                Err(RecvError::Closed) => return,
            }
        }
    }
}
