//! The resources of one subscription of a modern client (MCP 2026-07-28
//! §Subscriptions): they are wanted of their servers as long as it lasts.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::json;

use crate::activity::record::Raw;
use crate::catalog::exposed;
use crate::mcp::capabilities::ClientCapabilities;
use crate::mcp::revisions::Era;
use crate::policy::{Access, ResourceRequest};
use crate::proxy::call_trace::CallTrace;
use crate::proxy::caller::Peer;
use crate::proxy::client::Client;
use crate::proxy::passthrough::Forward;
use crate::proxy::record_kind::RecordKind;
use crate::proxy::recorded::{OnRecord, ReplySource, recorded};
use crate::proxy::reply::Reply;
use crate::proxy::state::Proxy;
use crate::proxy::worker::Worker;
use crate::upstream::Upstream;

/// The resources of one subscription; none of them is wanted any more when this is dropped.
#[derive(Debug)]
pub struct Watch {
    proxy: Arc<Proxy>,
    /// Stands for the subscription among the subscribers.
    subscriber: Arc<Client>,
    uris: Vec<String>,
}

impl Watch {
    /// Begins to watch those of `uris` that lead to a server that tells of changes, and that the peer may subscribe to.
    /// Each of them that leads to a server is on record as a request of its own (ACT-1), under the raw `id` of the
    /// request that holds them.
    pub async fn begin(worker: &Rc<Worker>, peer: &Peer, id: &Bytes, uris: Vec<String>) -> Self {
        let subscriber = Client::new("".into(), "", "", Era::Modern, ClientCapabilities::default());
        let mut watch = Self {
            proxy: Arc::clone(&worker.proxy),
            subscriber: Arc::new(subscriber),
            uris: Vec::new(),
        };
        for uri in uris {
            if watch.enter(worker, peer, id, &uri).await {
                watch.uris.push(uri);
            }
        }
        watch
    }

    /// What is watched, as the client knows it.
    #[must_use]
    pub fn uris(&self) -> &[String] {
        &self.uris
    }

    async fn enter(&self, worker: &Rc<Worker>, peer: &Peer, id: &Bytes, uri: &str) -> bool {
        let Some((server, own)) = exposed::split_uri(uri) else { return false };
        let Some(upstream) = self.proxy.upstreams.get(&server) else { return false };
        let tells = upstream.offers().resource_updates || !upstream.state().settled;
        if !tells {
            return false;
        }
        let mut entered = false;
        let request = ResourceRequest::Subscribe;
        let kind = RecordKind::Forward(Forward::Resource(request));
        let work = async |on: OnRecord<'_>| {
            on.record.name(upstream.name(), request.method());
            on.record.keep(Raw::Arguments, json!({ "uri": uri }).to_string().as_bytes());
            let mut on = on;
            let server = Arc::clone(upstream.name());
            on.admit_at_once(Access::Resource { server, uri: own.into(), request })?;
            entered = self.subscribe(&upstream, uri, own);
            Ok(ReplySource::Own(Bytes::from_static(b"{}")))
        };
        // What is refused is left out of the acknowledgement, which is all the reply that there is.
        let caller = peer.caller(id);
        let trace = CallTrace::begin(worker, &caller, kind.method(), || None);
        let of = (kind, trace);
        let _ = recorded(Rc::clone(worker), caller, of, Reply::default(), work).await;
        entered
    }

    fn subscribe(&self, upstream: &Upstream, uri: &str, own: &str) -> bool {
        let entered = self.proxy.list_cache.subscribers.enter(uri, &self.subscriber).is_ok();
        if entered {
            upstream.subscribe(own, None);
        }
        entered
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        for uri in &self.uris {
            if self.proxy.list_cache.subscribers.leave(uri, &self.subscriber)
                && let Some((server, own)) = exposed::split_uri(uri)
                && let Some(upstream) = self.proxy.upstreams.get(&server)
            {
                upstream.unsubscribe(own);
            }
        }
    }
}
