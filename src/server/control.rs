//! The control plane: the upstreams that are set going on it, and what happens to them as records.

use std::sync::Arc;

use tokio::runtime::Runtime;

use super::{audit_events, audit_log};
use crate::activity::Activity;
use crate::activity::redact::Redactor;
use crate::catalog::Catalog;
use crate::config::Config;
use crate::secrets::Secrets;
use crate::upstream::reaper::Reaper;
use crate::upstream::stderr_log::StderrLog;
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
    reaper.withhold(config.withheld_variables());
    let redactor = Redactor::new(&config.activity.redact_keys);
    let stderr = StderrLog::start(config.stderr_folder(), redactor);
    Supervisor::start(servers, reaper, catalog, secrets, stderr, noted, control.handle())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::config::{self, Flags};
    use crate::server::runtime;
    use crate::upstream::supervisor::Status;

    #[test]
    fn every_server_of_the_config_is_there_under_its_own_identity() {
        let folder = tempfile::tempdir().unwrap();
        let flags = Flags { data_dir: Some(folder.path().into()), ..Flags::default() };
        let text = r#"{"mcpServers": {
            "off": {"command": "x", "enabled": false},
            "gone": {"command": "/nowhere/to/be/found"}
        }}"#;
        let (config, _) = config::parse(text, &|_| None, &flags).unwrap();
        let (activity, writer) =
            Activity::open(&config.activity_folder(), config.activity.clone()).unwrap();
        let (control, catalog) =
            (runtime::control().unwrap(), Arc::new(Catalog::new(config.catalog())));
        let upstreams = supervise(&config, &catalog, &activity, &control);
        control.block_on(upstreams.get("gone").unwrap().settled());
        let states = upstreams.states();
        let told: Vec<_> = states.iter().map(|state| (&*state.name, state.status)).collect();
        assert_eq!(told, [("gone", Status::Failed), ("off", Status::Disabled)]);
        let ids = ["gone", "off", "neither"].map(|name| upstreams.id(name));
        assert!(ids[0].is_some() && ids[1].is_some() && ids[0] != ids[1] && ids[2].is_none());
        assert_eq!(ids[0], upstreams.get("gone").map(|upstream| upstream.id()));
        control.block_on(upstreams.shutdown(Instant::now() + Duration::from_secs(5)));
        writer.close().unwrap();
    }
}
