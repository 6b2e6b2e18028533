//! A modern client's `subscriptions/listen`: which changes it is notified of.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use http::Response;
use serde_json::{Value, json};
use tokio::sync::{broadcast, watch};

use crate::catalog::Notice;
use crate::downstream::body::Body;
use crate::downstream::change_notifications::{changed, changes_tools, notices};
use crate::downstream::event_stream::{self, COMMENT};
use crate::downstream::response::too_many_streams;
use crate::downstream::session_table::Sessions;
use crate::identity::Identity;
use crate::mcp::jsonrpc;
use crate::mcp::meta::SUBSCRIPTION_KEY;
use crate::policy::Principal;
use crate::proxy::Worker;
use crate::proxy::caller::{Endpoint, Peer};
use crate::proxy::dispatch;
use crate::proxy::passthrough::watch::Watch;
use crate::proxy::reaction::NotificationFilter;
use crate::proxy::reply::Aborted;

/// Most resources that one `subscriptions/listen` may name.
const MAX_URIS: usize = 256;

/// A modern client's subscription, as a source of messages.
pub(super) struct Subscription {
    /// The raw id of the request, which names the subscription.
    id: Bytes,
    filter: NotificationFilter,
    endpoint: Endpoint,
    watch: Watch,
    receiver: broadcast::Receiver<Notice>,
    out: VecDeque<Bytes>,
    draining: watch::Receiver<bool>,
    over: bool,
    /// On whose behalf, and who says whether that still holds.
    principal: Principal,
    identity: Arc<Identity>,
}

impl Subscription {
    /// Subscribes to what of `filter` can be honoured here.
    pub(super) async fn new(
        worker: &Rc<Worker>,
        peer: &Peer,
        id: Bytes,
        filter: NotificationFilter,
        draining: watch::Receiver<bool>,
    ) -> Self {
        // It would keep the whole request for as long as it lasts.
        let id = Bytes::copy_from_slice(&id);
        let mut filter = honoured(filter, &dispatch::capabilities(worker));
        // Before the resources are watched: a change that is noticed at once must reach this subscription too.
        let receiver = worker.proxy.catalog.notices();
        let uris = std::mem::take(&mut filter.resource_subscriptions);
        let watch = Watch::begin(worker, peer, &id, uris).await;
        filter.resource_subscriptions = watch.uris().to_vec();
        let out = VecDeque::new();
        let principal = peer.principal.clone();
        let identity = Arc::clone(&worker.proxy.identity);
        let (over, endpoint) = (false, peer.endpoint);
        let mut this = Self {
            id,
            filter,
            endpoint,
            watch,
            receiver,
            out,
            draining,
            over,
            principal,
            identity,
        };
        let agreed = json!({"notifications": this.filter});
        let hello = this.message("subscriptions/acknowledged", agreed);
        this.out.push_back(hello);
        this
    }

    /// The next message, the acknowledgement first; after the response to the request itself,
    /// which comes when the server ends, `None`.
    pub(super) async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(message) = self.out.pop_front() {
                return Some(message);
            }
            if self.over {
                return None;
            }
            let notices = tokio::select! {
                biased;
                _ = self.draining.wait_for(|draining| *draining) => None,
                notices = notices(&mut self.receiver) => Some(notices),
            };
            let Some(notices) = notices else {
                self.over = true;
                return Some(self.farewell());
            };
            if !self.is_in_force() {
                return None;
            }
            let messages: Vec<_> =
                notices.iter().filter_map(|notice| self.notification(notice)).collect();
            self.out.extend(messages);
        }
    }

    /// False once its principal has lost its token: then it gets nothing more.
    fn is_in_force(&self) -> bool {
        self.identity.in_force(&self.principal, SystemTime::now())
    }

    fn notification(&self, notice: &Notice) -> Option<Bytes> {
        let (wanted, what, params) = match notice {
            Notice::Tools | Notice::OwnTools => {
                let ours = changes_tools(self.endpoint, notice);
                (ours && self.filter.tools_list_changed, "tools/list_changed", json!({}))
            }
            Notice::Prompts => {
                (self.filter.prompts_list_changed, "prompts/list_changed", json!({}))
            }
            Notice::Resources => {
                (self.filter.resources_list_changed, "resources/list_changed", json!({}))
            }
            Notice::Updated(uri) => {
                let wanted = self.watch.uris().iter().any(|it| **it == **uri);
                (wanted, "resources/updated", json!({"uri": uri}))
            }
        };
        wanted.then(|| self.message(what, params))
    }

    fn message(&self, what: &str, mut params: Value) -> Bytes {
        if let Some(members) = params.as_object_mut() {
            members.insert("_meta".into(), self.meta());
        }
        changed(what, Some(params))
    }

    /// The subscription's id for `_meta` (MCP 2026-07-28 §Receiving Notifications).
    fn meta(&self) -> Value {
        let id: Value = serde_json::from_slice(&self.id).unwrap_or_default();
        json!({ SUBSCRIPTION_KEY: id })
    }

    fn farewell(&self) -> Bytes {
        let result = json!({"resultType": "complete", "_meta": self.meta()});
        jsonrpc::response(&self.id, result.to_string().as_bytes())
    }
}

/// The filter without what this proxy has no notifications of.
fn honoured(mut filter: NotificationFilter, capabilities: &Value) -> NotificationFilter {
    let has = |path: &str| capabilities.pointer(path) == Some(&Value::Bool(true));
    filter.tools_list_changed &= has("/tools/listChanged");
    filter.prompts_list_changed &= has("/prompts/listChanged");
    filter.resources_list_changed &= has("/resources/listChanged");
    if !has("/resources/subscribe") {
        filter.resource_subscriptions.clear();
    }
    filter.resource_subscriptions.truncate(MAX_URIS);
    filter
}

/// A subscription over HTTP.
pub(super) fn subscribed(sessions: &Sessions, subscription: Subscription) -> Response<Body> {
    let Some(permits) = sessions.stream_permits(None) else { return too_many_streams() };
    let state = (subscription, permits);
    event_stream::response(state, async |(subscription, _)| -> Result<Option<Bytes>, Aborted> {
        let pause = event_stream::pause(&subscription.principal, SystemTime::now());
        Ok(tokio::select! {
            message = subscription.next() => message.as_ref().map(event_stream::event),
            () = tokio::time::sleep(pause) => subscription.is_in_force().then_some(COMMENT),
        })
    })
}
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_come_true_is_acknowledged() {
        let all = NotificationFilter {
            tools_list_changed: true,
            prompts_list_changed: true,
            resources_list_changed: true,
            resource_subscriptions: vec!["a:x".into()],
        };
        assert_eq!(
            honoured(all.clone(), &json!({"tools": {"listChanged": false}})),
            NotificationFilter::default()
        );
        let some = json!({"tools": {"listChanged": true}, "resources": {"subscribe": true}});
        let expected = NotificationFilter {
            prompts_list_changed: false,
            resources_list_changed: false,
            ..all
        };
        assert_eq!(honoured(expected.clone(), &some), expected);
    }
}
