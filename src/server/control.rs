//! The control plane: the upstreams that are set going on it, and what happens to them as records.

use std::sync::Arc;

use tokio::runtime::Runtime;

use super::{audit_events, audit_log};
use crate::activity::Activity;
use crate::catalog::snapshot::Catalog;
use crate::config::Config;
use crate::secrets::Secrets;
use crate::upstream::reaper::Reaper;
use crate::upstream::supervisor::{Event, Supervisor};

/// Takes up the tools known from earlier, beside the upstreams (FR-A1).
pub(super) fn restore(catalog: &Arc<Catalog>, activity: &Activity, control: &Runtime) {
    let (catalog, log) = (Arc::clone(catalog), activity.clone());
    control.spawn_blocking(move || {
        for (server, change) in catalog.restore() {
            audit_log::put(&log, audit_events::catalog_changes(&server, &change));
        }
    });
}

/// Sets the upstreams going; what happens to them goes on record.
pub(super) fn supervise(
    config: &Config,
    catalog: &Arc<Catalog>,
    activity: &Activity,
    control: &Runtime,
) -> Supervisor {
    let log = activity.clone();
    let noted = move |event: Event| audit_log::put(&log, audit_events::entries(&event));
    let servers = config.servers.iter().map(|server| {
        let mut upstream = server.upstream.clone();
        upstream.data_dir = Some(config.data_dir.clone());
        (Arc::clone(&server.name), upstream)
    });
    let (servers, catalog) = (servers.collect(), Arc::clone(catalog));
    let secrets = Arc::new(Secrets::new(config.secrets()));
    let reaper = Reaper::new(config.reaper.clone());
    Supervisor::start(servers, reaper, catalog, secrets, noted, control.handle())
}
