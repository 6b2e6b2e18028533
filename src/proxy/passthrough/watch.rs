//! The resources of one subscription of a modern client (MCP 2026-07-28
//! §Subscriptions): they are wanted of their servers as long as it lasts.

use std::sync::Arc;
use std::time::SystemTime;

use crate::catalog::exposed;
use crate::mcp::capabilities::ClientCapabilities;
use crate::mcp::revisions::Era;
use crate::policy::{
    self, Access, Admission, AdmissionRequest, Principal, ResourceRequest, SessionFacts, admit,
};
use crate::proxy::client::Client;
use crate::proxy::state::Proxy;
use crate::proxy::worker::Worker;

/// The resources of one subscription; none of them is wanted any more when this is dropped.
#[derive(Debug)]
pub struct Watch {
    proxy: Arc<Proxy>,
    /// Stands for the subscription among the subscribers.
    subscriber: Arc<Client>,
    uris: Vec<String>,
}

impl Watch {
    /// Begins to watch those of `uris` that lead to a server that tells of changes, and that `principal` may
    /// subscribe to.
    #[must_use]
    pub fn begin(worker: &Worker, principal: &Principal, uris: Vec<String>) -> Self {
        let settings = worker.settings();
        let subscriber = Client::new("".into(), "", "", Era::Modern, ClientCapabilities::default());
        let mut watch = Self {
            proxy: Arc::clone(&worker.proxy),
            subscriber: Arc::new(subscriber),
            uris: Vec::new(),
        };
        watch.uris =
            uris.into_iter().filter(|uri| watch.enter(principal, &settings.policy, uri)).collect();
        watch
    }

    /// What is watched, as the client knows it.
    #[must_use]
    pub fn uris(&self) -> &[String] {
        &self.uris
    }

    fn enter(&self, principal: &Principal, settings: &policy::Settings, uri: &str) -> bool {
        let Some((server, own)) = exposed::split_uri(uri) else { return false };
        let Some(upstream) = self.proxy.upstreams.get(&server) else { return false };
        let access = Access::Resource {
            server: Arc::clone(upstream.name()),
            uri: own.into(),
            request: ResourceRequest::Subscribe,
        };
        let request = AdmissionRequest {
            principal,
            access,
            arguments: b"",
            intent: None,
            client: "",
            session: SessionFacts::default(),
            now: SystemTime::now(),
        };
        match admit(request, settings) {
            // Nothing is sent whose answer would be waited for, so that it needs no place.
            Admission::Permit(_) | Admission::Queued(_) => {}
            // A filter of resources is no request that could wait for a person.
            Admission::Pending(_) | Admission::Denial(_) => return false,
        }
        let tells = upstream.offers().resource_updates || !upstream.state().settled;
        let entered =
            tells && self.proxy.list_cache.subscribers.enter(uri, &self.subscriber).is_ok();
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
