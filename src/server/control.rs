//! The control plane: its runtime, the upstreams that are set going on it, and what happens to them
//! as records.

use std::io;
use std::sync::Arc;

use tokio::runtime::{Builder, Runtime};

use super::{audit_events, audit_log, cores};
use crate::activity::Activity;
use crate::catalog::Catalog;
use crate::config::Config;
use crate::secrets::Secrets;
use crate::upstream::reaper::Reaper;
use crate::upstream::supervisor::{Event, Supervisor};

/// Threads for what blocks, beside one for each core, on which large answers are judged: logins and
/// sets of tools on disk, compiling. Hundreds of servers at once would be hundreds of heaps, and no
/// faster.
const BLOCKING_THREADS: usize = 8;

/// The control plane's runtime.
///
/// # Errors
///
/// When the system gives no thread or no event queue.
pub(super) fn runtime() -> io::Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(1)
        .max_blocking_threads(BLOCKING_THREADS + cores())
        .thread_name("control")
        .enable_all()
        .build()
}

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
