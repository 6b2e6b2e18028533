//! Policy of open resource subscriptions (RUL-8): a subscription that would no longer be admitted is revoked.
//!
//! Subscriptions are re-evaluated in the background whenever the settings are replaced ([`follow`]), and before
//! each update is delivered ([`receives`]), since rules may also depend on the time and on facts of the session. A
//! subscription that needs an approval stays if a person approved it.

use std::sync::Arc;
use std::time::SystemTime;

use mcpproxy_activity::record::{
    Draft, MAX_METADATA_BYTES, Raw, Source, Status, Text, Type, decision_metadata,
};
use mcpproxy_catalog::exposed;
use mcpproxy_policy as policy;
use mcpproxy_policy::{
    Access, AdmissionRequest, ApprovalDenial, Denial, Forecast, NotApproved, Principal,
    ResourceRequest, SessionFacts,
};
use mcpproxy_runtime::io::line_budget::{LinePeer, peer_line};

use super::subscribers::{Revocation, Subscriber};
use crate::proxy::client::Client;
use crate::proxy::refusal;
use crate::proxy::worker::Proxy;

/// Subscriptions re-evaluated before yielding to other tasks.
const BATCH: usize = 64;

/// Re-evaluates subscriptions after each change and records revoked ones, for as long as it is polled.
pub(super) async fn follow(proxy: &Proxy) {
    tokio::join!(ask_again(proxy), record(proxy));
}

/// Re-evaluates all subscriptions whenever the settings are replaced.
async fn ask_again(proxy: &Proxy) {
    let subscribers = &proxy.list_cache.subscribers;
    let mut replacements = proxy.settings.replacements();
    while replacements.changed().await.is_ok() {
        let mut last = None;
        loop {
            let batch = subscribers.after(last, BATCH);
            let Some(end) = batch.last() else { break };
            last = Some(end.id());
            for subscriber in &batch {
                let of = &subscriber.of;
                revoke_if_denied(proxy, subscriber, &of.principal, of.facts);
            }
            tokio::task::yield_now().await;
        }
    }
}

/// Whether the client may be notified of updates of a resource now: it is subscribed and `principal` may read it.
/// If not, the subscription ends.
pub fn receives(proxy: &Proxy, client: &Client, principal: &Principal, uri: &str) -> bool {
    client.subscriber(uri).is_some_and(|subscriber| {
        !revoke_if_denied(proxy, &subscriber, principal, client.facts.get())
    })
}

/// Revokes a subscription that `principal`, with these session facts, may not have now; true if revoked.
pub(crate) fn revoke_if_denied(
    proxy: &Proxy,
    subscriber: &Arc<Subscriber>,
    principal: &Principal,
    facts: SessionFacts,
) -> bool {
    let Some(denial) = denial(proxy, subscriber, principal, facts) else { return false };
    let (decision, _) = refusal::decision_about(&denial);
    proxy.list_cache.subscribers.revoke(subscriber, decision);
    true
}

/// Reason why the subscription would not be admitted now.
pub(crate) fn denial(
    proxy: &Proxy,
    subscriber: &Subscriber,
    principal: &Principal,
    facts: SessionFacts,
) -> Option<Denial> {
    let access = access(subscriber)?;
    let request = AdmissionRequest {
        principal,
        access: access.clone(),
        arguments: b"",
        meta: b"",
        inputs: b"",
        intent: None,
        client: &subscriber.of.client_name,
        session: facts.joined(proxy.principal_facts.peek(principal)),
        // An update sends nothing to the server.
        carries_out: false,
        now: SystemTime::now(),
    };
    match policy::forecast(&request, &proxy.settings.latest().policy) {
        Forecast::Allowed { .. } => None,
        Forecast::Refused(denial) => Some(denial),
        Forecast::Asked { .. } if subscriber.of.is_approved => None,
        Forecast::Asked { .. } => Some(ApprovalDenial::new(&access, NotApproved::Changed).into()),
    }
}

/// Refusal of a subscription that was revoked before it was confirmed.
pub(crate) fn of_revoked(subscriber: &Subscriber) -> Option<Denial> {
    let access = access(subscriber).filter(|_| !subscriber.is_live())?;
    Some(ApprovalDenial::new(&access, NotApproved::Changed).into())
}

fn access(subscriber: &Subscriber) -> Option<Access> {
    // URIs of subscriptions name their servers.
    let (server, own) = exposed::split_uri(&subscriber.uri)?;
    let server = (&*server).into();
    Some(Access::Resource { server, uri: (&*own).into(), request: ResourceRequest::Subscribe })
}

/// Logs and records revoked subscriptions. Waits while the log has no capacity.
async fn record(proxy: &Proxy) {
    loop {
        for revocation in proxy.list_cache.subscribers.revoked().await {
            let Revocation { subscriber, decision, .. } = &revocation;
            let (who, uri) = (subscriber.of.principal.id(), &subscriber.uri);
            peer_line!(
                warn,
                LinePeer::Client(who),
                principal = who,
                %uri,
                reason = %decision.reason,
                "resource subscription revoked"
            );
            let mut draft = Draft::new(Type::PolicyDecision, Source::Internal, Status::Blocked);
            let since =
                SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            draft.started = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
            // As in records of decisions about calls, all metadata comes from the proxy.
            draft.has_own_metadata = true;
            draft.set(Text::Principal, who);
            let server = exposed::split_uri(uri).map(|(server, _)| server.into_owned());
            draft.set(Text::Server, &server.unwrap_or_default());
            draft.set(Text::Tool, ResourceRequest::Subscribe.method());
            draft.set(Text::SessionId, &subscriber.of.session_id);
            draft.set(Text::ClientName, &subscriber.of.client_name);
            let limit = proxy.settings.latest().max_payload_bytes;
            let arguments = serde_json::json!({ "uri": &**uri }).to_string();
            draft.keep(Raw::Arguments, arguments.as_bytes(), limit);
            draft.keep(Raw::Metadata, &decision_metadata(decision), MAX_METADATA_BYTES);
            match proxy.activity.reserve().await {
                Ok(slot) => drop(slot.submit(draft)),
                Err(lost) => {
                    peer_line!(error, LinePeer::Part("activity"), %lost, "the record of a revoked subscription is lost");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use mcpproxy_activity::record::{Decision, Policy, Verdict};
    use mcpproxy_policy::StateAccounts;

    use super::super::subscribers::Subscribers;
    use super::super::subscribers::tests::anyone;
    use super::*;

    #[test]
    fn rul_8_subscription_revoked_before_it_is_confirmed_is_refused() {
        let all = Arc::<Subscribers>::default();
        let account = StateAccounts::default().of(&Principal::Anonymous);
        let subscription =
            all.enter(&mcpproxy_catalog::exposed::uri("files", "a:b"), anyone(), &account).unwrap();
        assert!(of_revoked(subscription.requested()).is_none());
        let decision = Decision::new(Verdict::Blocked, Policy::Rules, "forbidden");
        all.revoke(subscription.requested(), decision);
        assert!(of_revoked(subscription.requested()).is_some());
    }
}
