//! Sets as they arrive from servers: whose turn it is to make the next snapshot, to write to disk,
//! to compile.
//!
//! For each there are few threads, and what arrives meanwhile is done together: 200 servers that answer
//! at once are few snapshots and few waits for the disk, and not 200 threads with a heap each. No set waits for another's disk, nor for another's large schema, before its tools are shown.

use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use super::compiling::Late;
use super::turns::Turns;
use super::{Catalog, Change, ToolSet};
use crate::catalog::discovered::DiscoveredTool;
use crate::catalog::persist;

/// How long a server waits for its set to be on disk before it counts as discovered. The set is
/// written even so, when the disk answers.
const DISK_WAIT: Duration = Duration::from_secs(5);

/// What waits for what.
#[derive(Debug)]
pub(super) struct Arriving {
    sets: Arc<Turns<Vec<DiscoveredTool>, Taken>>,
    writes: Arc<Turns<Vec<DiscoveredTool>, Option<String>>>,
    /// Small schemas that were left for later are compiled by as many threads as there are cores, large
    /// ones by one.
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
}

impl Default for Arriving {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let threads = |count| Arc::new(Semaphore::new(count));
        let (small, large) = (threads(cores), threads(1));
        Self { sets: Arc::default(), writes: Arc::default(), small, large }
    }
}

/// A set whose tools are shown, and what is still to be done for it.
struct Taken {
    change: Change,
    late: Vec<Late>,
    tools: Vec<DiscoveredTool>,
}

impl Catalog {
    /// Makes `tools` the whole set of `server`, and writes it to disk if it is another than there.
    /// A server that is not configured changes nothing. The tools are there before this ends, which
    /// it does when every schema is compiled.
    ///
    /// # Errors
    /// Says in one line why the set was not taken up.
    pub async fn take_up(
        self: &Arc<Self>,
        server: &Arc<str>,
        tools: Vec<DiscoveredTool>,
    ) -> Result<Change, String> {
        let catalog = Arc::clone(self);
        let work = move |sets: Vec<_>| catalog.take_up_all(sets);
        let taken = self.arriving.sets.done(server, tools, work).await;
        let Taken { mut change, late, tools } =
            taken.map_err(|_| "its tools cannot be taken up".to_owned())?;
        if self.to_be_written(server) {
            change.disk = self.written(server, tools).await;
        }
        let (small, large) = late.into_iter().partition(Late::is_small);
        let change = self.compile_by(&self.arriving.small, server, small, change).await?;
        self.compile_by(&self.arriving.large, server, large, change).await
    }

    /// Shows the tools of some servers, in one snapshot.
    fn take_up_all(&self, sets: Vec<(Arc<str>, Vec<DiscoveredTool>)>) -> Vec<Taken> {
        let all: Vec<_> =
            sets.iter().map(|(server, tools)| (&**server, tools.as_slice())).collect();
        let (changes, late) = self.replace(&all, ToolSet::Discovered);
        // In the order of the sets.
        let (mut changes, mut late) = (changes.into_iter().peekable(), late.into_iter().peekable());
        let taken = sets.into_iter().map(|(server, tools)| {
            let change = changes.next_if(|(changed, _)| *changed == server);
            let change = change.map(|(_, change)| change).unwrap_or_default();
            let late = std::iter::from_fn(|| late.next_if(|late| late.tool.server == server));
            let late = late.collect();
            Taken { change, late, tools }
        });
        taken.collect()
    }

    /// Writes a set to disk; why it is not there, if it is not.
    async fn written(
        self: &Arc<Self>,
        server: &Arc<str>,
        tools: Vec<DiscoveredTool>,
    ) -> Option<String> {
        let catalog = Arc::clone(self);
        let work = move |sets: Vec<_>| catalog.write(&sets);
        let written = self.arriving.writes.done(server, tools, work);
        let path = || match &self.settings.folder {
            Some(folder) => persist::path(folder, server).display().to_string(),
            None => String::new(),
        };
        match tokio::time::timeout(DISK_WAIT, written).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Some(format!("{} was not written", path())),
            Err(_) => Some(format!("{} is not written yet, after {DISK_WAIT:?}", path())),
        }
    }

    /// Compiles what was left for later, when it is its turn.
    async fn compile_by(
        self: &Arc<Self>,
        turn: &Arc<Semaphore>,
        server: &Arc<str>,
        late: Vec<Late>,
        change: Change,
    ) -> Result<Change, String> {
        let failed =
            |error: &dyn std::fmt::Display| format!("its schemas cannot be compiled: {error}");
        if late.is_empty() {
            return Ok(change);
        }
        let turn = Arc::clone(turn).acquire_owned().await.map_err(|error| failed(&error))?;
        let (catalog, server) = (Arc::clone(self), Arc::clone(server));
        let compiled = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let mut changes = [(server, change)];
            catalog.compile(late, &mut changes);
            let [(_, change)] = changes;
            change
        });
        compiled.await.map_err(|error| failed(&error))
    }
}
