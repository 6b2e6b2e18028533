//! `mcpproxy man`: the manual pages, a page for each command, as packages install them.

use std::fs;
use std::path::Path;

use clap::CommandFactory;

use crate::cli::args::Cli;
use crate::cli::error::CommandError;

/// Writes the pages into a folder, which is made.
pub(super) fn run(folder: &Path) -> Result<(), CommandError> {
    let written =
        fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(Cli::command(), folder));
    written.map_err(|error| {
        CommandError::failed(format!(
            "cannot write the manual pages into {}: {error}",
            folder.display()
        ))
    })
}
