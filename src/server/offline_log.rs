//! A proxy that only answers questions about a log that nobody has open.

use std::path::Path;

use super::app::App;
use super::start_error::StartError;
use crate::activity::Activity;
use crate::catalog;
use crate::config::{Config, RuleFiles};
use crate::embeddings::SearchSection;
use crate::telemetry::LogHandles;

impl App {
    /// Opens a proxy without upstreams that answers questions about the log, from a copy in
    /// `scratch`: nothing in the data folder changes.
    ///
    /// # Errors
    ///
    /// [`StartError`].
    pub fn read(mut config: Config, scratch: &Path, log: LogHandles) -> Result<Self, StartError> {
        config.servers.clear();
        config.rules = RuleFiles::default();
        config.search = SearchSection::default();
        let settings = config.settings()?;
        let opened = Activity::read(&config.activity_folder(), scratch, config.activity.clone())?;
        let catalog = catalog::Settings { folder: None, ..config.catalog() };
        Self::assemble(&config, settings, opened, (catalog, None), (log, None))
    }
}
