//! Notifications of changes: their form, and which of them a legacy client receives.
//!
//! Changes are noticed by the catalog and the upstreams.

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use crate::catalog::Notice;
use crate::proxy::caller::Endpoint;
use crate::proxy::client::Client;

/// A notification of a change.
pub(super) fn changed(what: &str, params: Option<Value>) -> Bytes {
    let method = format!("notifications/{what}");
    let mut message = json!({"jsonrpc": "2.0", "method": method});
    if let (Some(params), Some(members)) = (params, message.as_object_mut()) {
        members.insert("params".into(), params);
    }
    message.to_string().into()
}

/// The notification of a change for a legacy client; `None` if it receives none.
pub(super) fn legacy_notification(
    client: &Client,
    endpoint: Endpoint,
    notice: &Notice,
) -> Option<Bytes> {
    match notice {
        Notice::Tools | Notice::OwnTools => {
            changes_tools(endpoint, notice).then(|| changed("tools/list_changed", None))
        }
        Notice::Prompts => Some(changed("prompts/list_changed", None)),
        Notice::Resources => Some(changed("resources/list_changed", None)),
        Notice::Updated(uri) if client.is_subscribed(uri) => {
            Some(changed("resources/updated", Some(json!({"uri": uri}))))
        }
        Notice::Updated(_) => None,
    }
}

/// Whether a change is one of the tools that this endpoint lists: those of the servers at one, and at the other our own,
/// which are described anew.
pub(super) fn changes_tools(endpoint: Endpoint, notice: &Notice) -> bool {
    match (notice, endpoint) {
        (Notice::Tools, Endpoint::All) | (Notice::OwnTools, Endpoint::Search) => true,
        (Notice::Tools, Endpoint::Search)
        | (Notice::OwnTools, Endpoint::All)
        | (Notice::Prompts | Notice::Resources | Notice::Updated(_), _) => false,
    }
}

/// What to send when changes were missed: the notifications that name no resource.
pub(super) const MISSED: [Notice; 4] =
    [Notice::Tools, Notice::OwnTools, Notice::Prompts, Notice::Resources];

/// The next changes; at least one.
pub(super) async fn notices(receiver: &mut broadcast::Receiver<Notice>) -> Vec<Notice> {
    match receiver.recv().await {
        Ok(notice) => vec![notice],
        Err(RecvError::Lagged(_)) => MISSED.to_vec(),
        // The catalog lives as long as the server.
        Err(RecvError::Closed) => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::capabilities::ClientCapabilities;
    use crate::mcp::revisions::{Era, NEWEST_LEGACY};

    #[test]
    fn a_client_is_told_what_can_concern_it() {
        let none = ClientCapabilities::default();
        let client = Client::new("s".into(), "", NEWEST_LEGACY, Era::Legacy, none);
        let method = |endpoint, notice: &Notice| {
            let message: Value =
                serde_json::from_slice(&legacy_notification(&client, endpoint, notice)?).unwrap();
            Some(message["method"].as_str().unwrap().to_owned())
        };
        for (notice, search, all) in [
            (Notice::Tools, None, Some("notifications/tools/list_changed")),
            (Notice::OwnTools, Some("notifications/tools/list_changed"), None),
            (
                Notice::Prompts,
                Some("notifications/prompts/list_changed"),
                Some("notifications/prompts/list_changed"),
            ),
            (
                Notice::Resources,
                Some("notifications/resources/list_changed"),
                Some("notifications/resources/list_changed"),
            ),
            (Notice::Updated("a:x".into()), None, None),
        ] {
            assert_eq!(method(Endpoint::Search, &notice).as_deref(), search, "{notice:?}");
            assert_eq!(method(Endpoint::All, &notice).as_deref(), all, "{notice:?}");
        }
    }

    #[tokio::test]
    async fn who_is_behind_is_told_of_every_list() {
        let (sender, mut receiver) = broadcast::channel(1);
        sender.send(Notice::Tools).unwrap();
        assert_eq!(notices(&mut receiver).await, [Notice::Tools]);
        for _ in 0..2 {
            sender.send(Notice::Prompts).unwrap();
        }
        assert_eq!(notices(&mut receiver).await, MISSED);
        assert_eq!(notices(&mut receiver).await, [Notice::Prompts], "what is left comes too");
    }
}
