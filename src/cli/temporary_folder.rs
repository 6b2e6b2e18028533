//! A folder for one command in the system's temporary folder, removed when the command ends, also when
//! it is interrupted.

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::mpsc;
use std::thread;

use super::error::CommandError;
use crate::os::private;
use crate::server;

/// The exit code of a command that SIGINT has ended, as shells give it.
const INTERRUPTED: i32 = 130;

/// A folder that only its owner can read.
#[derive(Debug)]
pub(super) struct TemporaryFolder(PathBuf);

impl TemporaryFolder {
    /// Makes one; `what` it is for is in its name.
    pub(super) fn new(what: &str) -> Result<Self, CommandError> {
        let folder = name(what)?;
        Self::create(folder)
    }

    fn create(folder: PathBuf) -> Result<Self, CommandError> {
        private::new_folder(&folder)
            .map_err(|error| CommandError::failed(format!("{}: {error}", folder.display())))?;
        Ok(Self(folder))
    }

    /// Makes one that SIGINT and SIGTERM remove, too, and end the process with that: for commands
    /// that have nothing else to end in order.
    pub(super) fn watched(what: &str) -> Result<Self, CommandError> {
        let folder = name(what)?;
        let (listens, listening) = mpsc::sync_channel(1);
        let removed = folder.clone();
        // It ends with the process.
        thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                let Ok(runtime) = server::local_runtime() else { return };
                let ended = runtime.block_on(async {
                    let mut ended = pin!(server::ended_by_signal());
                    // Polled once, it listens.
                    let first = futures_util::poll!(&mut ended);
                    let _ = listens.send(());
                    match first {
                        std::task::Poll::Ready(ended) => ended,
                        std::task::Poll::Pending => ended.await,
                    }
                });
                if ended.is_ok() {
                    let _ = std::fs::remove_dir_all(&removed);
                    std::process::exit(INTERRUPTED);
                }
            })
            .map_err(CommandError::failed)?;
        // Where no thread listens, the folder is left to the system.
        let _ = listening.recv();
        Self::create(folder)
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        // What cannot be removed is left to the system, which clears its temporary folder.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A name that nobody can have taken before us.
fn name(what: &str) -> Result<PathBuf, CommandError> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(CommandError::failed)?;
    let random = u64::from_ne_bytes(random);
    Ok(std::env::temp_dir().join(format!("mcpproxy-{what}-{random:016x}")))
}
