//! A proxy that is opened to see whether its servers work: it listens nowhere, and its log and catalog
//! are thrown away.

use std::path::Path;

use super::app::App;
use super::start_error::StartError;
use crate::activity::Activity;
use crate::catalog;
use crate::config::{Config, RuleFiles};
use crate::embeddings::SearchSection;
use crate::telemetry::LogHandles;

impl App {
    /// Opens a proxy that starts its upstreams and keeps what it finds out in `scratch`. Logins are those
    /// of the data folder, where what servers say on stderr is kept as ever.
    ///
    /// # Errors
    ///
    /// [`StartError`].
    pub fn try_out(
        mut config: Config,
        scratch: &Path,
        handles: LogHandles,
    ) -> Result<Self, StartError> {
        config.rules = RuleFiles::default();
        config.search = SearchSection::default();
        let settings = config.settings()?;
        let log = Activity::open(&scratch.join("activity"), config.activity.clone())?;
        let catalog = catalog::Settings { folder: None, ..config.catalog() };
        Self::assemble(&config, settings, log, (catalog, None), (handles, None))
    }
}
