//! A proxy that only answers questions about a log that nobody has open.

use std::path::Path;

use super::app::{App, StartError};
use crate::activity::Activity;
use crate::catalog;
use crate::config::Config;
use crate::downstream::host_check::HostCheck;
use crate::telemetry::Lines;

impl App {
    /// Opens a proxy without upstreams that answers questions about the log, from a copy in
    /// `scratch`: nothing in the data folder changes.
    ///
    /// # Errors
    ///
    /// [`StartError`].
    pub fn read(mut config: Config, scratch: &Path, lines: Lines) -> Result<Self, StartError> {
        config.servers.clear();
        let host_check = HostCheck::new(&config.allowed_hosts, &config.allowed_origins)?;
        let log = Activity::read(&config.activity_folder(), scratch, config.activity.clone())?;
        let catalog = catalog::Settings { folder: None, ..config.catalog() };
        Self::assemble(config, host_check, log, catalog, lines)
    }
}
