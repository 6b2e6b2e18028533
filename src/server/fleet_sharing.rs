//! What a node shares with its fleet beside the log, at work: agent tokens, pins of definitions,
//! approvals that stand and the config are brought in step with the facts whenever either side changes. Does nothing of it itself: `fleet_tokens`, and `fleet::facts` for the store.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::fleet_config::FleetConfigTask;
use super::shared_facts::{SharedFacts, step_tokens};
use super::{fleet_leaves, fleet_pins};
use crate::approvals::Room;
use crate::fleet::facts::{FactExchange, FleetFacts};
use crate::identity::Identity;
use crate::proxy::Proxy;

/// How often it is looked whether the file of agent tokens was changed by another process.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Looks after what is shared while the node runs.
#[derive(Debug)]
pub(super) struct FleetSharing {
    facts: FleetFacts,
    identity: Arc<Identity>,
    exchange: FactExchange,
    tokens: JoinHandle<()>,
    config: JoinHandle<()>,
    pins: JoinHandle<()>,
    leaves: JoinHandle<()>,
    approvals: Arc<Room>,
}

impl FleetSharing {
    pub(super) fn start(config: FleetConfigTask, proxy: &Proxy, runtime: &Handle) -> Self {
        let SharedFacts { facts, bucket } = config.shared.clone();
        let identity = Arc::clone(&proxy.identity);
        let config = runtime.spawn(config.run());
        let (catalog, activity) = (Arc::clone(&proxy.catalog), proxy.activity.clone());
        let pins = runtime.spawn(fleet_pins::keep(catalog, activity, facts.clone()));
        let tokens = runtime.spawn(keep_tokens(Arc::clone(&identity), facts.clone()));
        let approvals = Arc::clone(&proxy.approvals);
        let leaves = runtime.spawn(fleet_leaves::keep(Arc::clone(&approvals), facts.clone()));
        let node = proxy.fleet.clone();
        let living = move || node.as_ref().map_or_else(Arc::default, |node| node.living());
        let exchange = FactExchange::start(facts.clone(), bucket, living, runtime);
        Self { facts, identity, exchange, tokens, config, pins, leaves, approvals }
    }

    /// Tells the fleet what is still to be told, within a bound if it is `patient`.
    pub(super) async fn end(self, patient: bool) {
        let Self { facts, identity, exchange, tokens, config, pins, leaves, approvals } = self;
        for task in [tokens, config, pins, leaves] {
            task.abort();
            let _ = task.await;
        }
        // The node may never start again: what was revoked or denied last is told now.
        let last = tokio::task::spawn_blocking(move || {
            step_tokens(&identity, &facts);
            if let Err(error) = fleet_leaves::step(&approvals, &facts) {
                tracing::error!(%error, "approvals that stand cannot be remembered for the fleet");
            }
        });
        let _ = last.await;
        exchange.end(patient).await;
    }
}

/// Keeps the tokens in step until it is aborted.
async fn keep_tokens(identity: Arc<Identity>, facts: FleetFacts) {
    let mut changes = facts.changes();
    let mut seen = None;
    loop {
        let (now, is_other) = (identity.token_stamp(), changes.has_changed().unwrap_or(false));
        if Some(now) != seen || is_other {
            changes.mark_unchanged();
            let (identity, facts) = (Arc::clone(&identity), facts.clone());
            let stepped = tokio::task::spawn_blocking(move || step_tokens(&identity, &facts));
            if stepped.await.is_err() {
                tracing::error!("the agent tokens are not kept in step with the fleet any more");
                return;
            }
            // A step that writes is followed by one that finds nothing to do.
            seen = Some(now);
        }
        tokio::select! {
            () = identity.tokens_changed() => {}
            changed = changes.changed() => {
                if changed.is_err() {
                    return;
                }
                changes.mark_changed();
            }
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}
