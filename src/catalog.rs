//! The catalog: which tools exist, what they may do, how they are found.
//!
//! Tools come in as an upstream's discovery found them, one server's whole set at a time, and go
//! out as one immutable [`Snapshot`]. [`Catalog`] is what a running proxy has of it: sets are taken up
//! (`replacing`), put in force (`published`), written to disk (`saving`) and compiled (`compiling`), none
//! waiting for another's disk or large schema. What a server said of a tool at first is pinned (`pins`); what it says
//! later is compared with that (`grade`), looked through (`scan`) and judged (`reviewing`). Who discovers and who calls is not known here.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZero;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, broadcast, watch};

use self::blocking::{BlockingWork, Panicked};
use self::compiling::{Compiler, Late};
use self::pins::{PinHistory, ServerPins};
use self::published::Published;
use self::replacing::{Replaced, replace};
use self::saving::{Saving, UnsavedSet};
use self::search::Lexicon;
use self::shared_pins::SharedPins;
use self::turns::{Turns, Undone};
use crate::tool::{InputSchema, Tool, ToolName};

pub mod approving;
mod blocking;
pub mod change;
pub mod compiling;
pub mod definition;
pub mod definition_diff;
pub mod difference;
pub mod discovered;
pub mod exposed;
pub mod grade;
mod hashed_file;
pub mod listing;
pub mod notice;
pub mod offered;
pub mod on_change;
pub mod persist;
pub mod pin_file;
pub mod pins;
mod published;
pub mod reconfiguring;
mod replacing;
pub mod result_limits;
mod reviewing;
mod saving;
pub mod scan;
pub mod search;
pub mod settings;
pub mod shared_pins;
pub mod sharing;
pub mod snapshot;
mod turns;

pub use change::Change;
pub use discovered::DiscoveredTool;
pub use notice::Notice;
pub use settings::{PolicyOverride, ServerSettings, Settings};
pub use snapshot::{FoundTools, Reviewed, Snapshot, ToolSet};

/// Notices kept for a listener that is behind; one further behind learns that it missed some.
const NOTICES: usize = 256;

/// The catalog of a running proxy.
#[derive(Debug)]
pub struct Catalog {
    settings: ArcSwap<Settings>,
    compiler: Compiler,
    lexicon: Arc<Lexicon>,
    published: Published,
    /// Held while the next snapshot is made from the last.
    writing: Mutex<()>,
    saving: Arc<Saving>,
    /// The servers whose sets and pins on disk were read. Locked while that is done: no set is judged before it is known
    /// what was pinned.
    remembered: Mutex<BTreeSet<Arc<str>>>,
    /// The pins that are on disk. Locked while they are written.
    pins_on_disk: Mutex<BTreeMap<Arc<str>, Arc<ServerPins>>>,
    /// Sets that wait to be taken up: 200 servers that answer at once are few snapshots, and not 200
    /// threads with a heap each.
    arriving: Arc<Turns<Vec<DiscoveredTool>, Taken>>,
    /// Small schemas that were left for later are compiled by as many threads as there are cores,
    /// large ones by one.
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
    threads: BlockingWork,
    /// Servers whose definitions are to be looked through again, also where they are the same.
    unscanned: Mutex<BTreeSet<Arc<str>>>,
    notices: broadcast::Sender<Notice>,
    /// What other nodes of a fleet say of definitions.
    shared: ArcSwap<SharedPins>,
}

/// A set whose tools are shown, and what is still to be done for it.
struct Taken {
    change: Change,
    late: Vec<Late>,
    unsaved: Option<UnsavedSet>,
}

impl Catalog {
    /// An empty catalog: every configured server is awaited.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let lexicon = Arc::new(Lexicon::default());
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        Self {
            compiler: Compiler::new(settings.schemas),
            published: Published::new(Snapshot::awaiting(settings.servers.keys(), &lexicon)),
            lexicon,
            writing: Mutex::new(()),
            saving: Arc::new(Saving::new(settings.folder.clone())),
            remembered: Mutex::default(),
            pins_on_disk: Mutex::default(),
            settings: ArcSwap::from_pointee(settings),
            unscanned: Mutex::default(),
            arriving: Arc::default(),
            small: Arc::new(Semaphore::new(cores)),
            large: Arc::new(Semaphore::new(1)),
            threads: BlockingWork::default(),
            notices: broadcast::Sender::new(NOTICES),
            shared: ArcSwap::default(),
        }
    }

    /// The snapshot of this moment.
    #[must_use]
    pub fn load(&self) -> Arc<Snapshot> {
        self.published.load()
    }

    /// What clients may want to be told, from now on.
    #[must_use]
    pub fn notices(&self) -> broadcast::Receiver<Notice> {
        self.notices.subscribe()
    }

    /// Tells whoever listens.
    pub fn notify(&self, notice: Notice) {
        // Nobody listens: nobody misses it.
        let _ = self.notices.send(notice);
    }

    /// Marked whenever there may be another snapshot.
    #[must_use]
    pub fn swaps(&self) -> watch::Receiver<()> {
        self.published.swaps()
    }

    /// Waits until the set of tools is another than when this was last waited for: whoever waits
    /// decides when clients are told.
    pub async fn changed(&self) {
        self.published.changed().await;
    }

    /// The tool of that name, as soon as its server's first set is there, from disk or from the
    /// server; `None` if that has no such tool, or is not there by `deadline`.
    pub async fn wait_for(&self, name: &ToolName, deadline: Instant) -> Option<Arc<Tool>> {
        self.published.wait_for(name, deadline).await
    }

    /// Waits until the output schema of `tool` is compiled; false if it is not by `deadline`.
    pub async fn compiled(&self, tool: &Tool, deadline: Instant) -> bool {
        self.published.compiled(tool, deadline).await
    }

    /// What becomes of the input schema of `tool`, which is compiled when it is first asked for; `None` where that has
    /// not come to an end by `deadline`.
    pub async fn input_schema(
        self: &Arc<Self>,
        tool: &Arc<Tool>,
        deadline: Instant,
    ) -> Option<InputSchema> {
        let compiled = self.compile_input(tool);
        tokio::time::timeout_at(deadline.into(), compiled).await.ok().flatten()
    }

    async fn compile_input(self: &Arc<Self>, tool: &Arc<Tool>) -> Option<InputSchema> {
        let turns = if compiling::is_small(&tool.input_schema) { &self.small } else { &self.large };
        // The turns are never closed, so one always comes.
        let turn = Arc::clone(turns).acquire_owned().await.ok()?;
        let (catalog, tool) = (Arc::clone(self), Arc::clone(tool));
        let compiled = self.threads.run(move || {
            let _turn = turn;
            let compile = || catalog.compiler.input(&tool.input_schema);
            let (schema, new) = tool.input.compiled(compile);
            if let (InputSchema::Unusable(reason), true) = (schema, new) {
                // Here, since whoever asked may have gone, and nobody finds it out again.
                tracing::warn!(tool = %tool.name, %reason, "the input schema cannot be used");
            }
            schema.clone()
        });
        compiled.await.ok()
    }

    /// Takes up the sets on disk (FR-A1); for each server that had one, or whose file cannot be
    /// used, what that changed. Blocks on the disk, and until every schema is compiled; the tools
    /// are there before that.
    pub fn restore(&self) -> Vec<(Arc<str>, Change)> {
        let servers: Vec<_> = self.settings.load().servers.keys().cloned().collect();
        let (mut changes, late) = self.remember(&servers);
        self.compile(late, &mut changes);
        changes
    }

    /// Takes up what is on disk of those of `servers` that it was not yet done for: their pins, and their sets.
    fn remember(&self, servers: &[Arc<str>]) -> (Vec<(Arc<str>, Change)>, Vec<Late>) {
        let Some(folder) = self.saving.folder() else { return Default::default() };
        let mut remembered = self.remembered.lock();
        let (mut sets, mut changes) = (Vec::new(), Vec::new());
        let mut histories = BTreeMap::new();
        for server in servers {
            let configured = self.settings.load().servers.contains_key(server);
            if !configured || !remembered.insert(Arc::clone(server)) {
                continue;
            }
            let mut problems = Vec::new();
            let set = persist::read(folder, server);
            let unpinned = matches!(&set, Ok(Some(set)) if !set.pinned);
            let pins = match pin_file::read(folder, server) {
                Ok(Some(pins)) => {
                    let pins = Arc::new(pins);
                    self.pins_on_disk.lock().insert(Arc::clone(server), Arc::clone(&pins));
                    PinHistory::Known(pins)
                }
                Ok(None) if unpinned || matches!(&set, Ok(None)) => PinHistory::New,
                Ok(None) => {
                    problems.push(self.lost(server, "is lost"));
                    PinHistory::Lost
                }
                Err(error) => {
                    problems.push(self.lost(server, &error.to_string()));
                    PinHistory::Lost
                }
            };
            histories.insert(Arc::clone(server), (pins, unpinned));
            match set {
                Ok(None) => {}
                Ok(Some(set)) => sets.push((Arc::clone(server), set.tools)),
                Err(error) => {
                    let path = persist::path(folder, server);
                    problems.push(format!("{} {error}", path.display()));
                }
            }
            if !problems.is_empty() {
                let disk = Some(problems.join("; "));
                changes.push((Arc::clone(server), Change { disk, ..Change::default() }));
            }
        }
        if histories.is_empty() {
            return Default::default();
        }
        self.adopt(histories);
        let sets: Vec<_> =
            sets.iter().map(|(server, tools)| (&**server, tools.as_slice())).collect();
        let (replaced, late) = self.replace(&sets, ToolSet::Restored);
        for (server, change) in replaced {
            match changes.iter_mut().find(|(told, _)| *told == server) {
                Some((_, told)) => *told = Change { disk: told.disk.take(), ..change },
                None => changes.push((server, change)),
            }
        }
        if let (Some(problem), Some((_, change))) = (self.write_pins(), changes.first_mut()) {
            change.disk.get_or_insert(problem);
        }
        (changes, late)
    }

    /// What is told of a server whose pins cannot be read.
    fn lost(&self, server: &str, why: &str) -> String {
        let folder = self.saving.folder().unwrap_or(Path::new(""));
        let path = pin_file::path(folder, server);
        let follows = match self.settings.load().review.quarantines() {
            true => "its tools wait for approval, since it is not known which of them did",
            false => "its tools are pinned anew",
        };
        format!("what was pinned of the server's tools ({}) {why}: {follows}", path.display())
    }

    /// Notes what was pinned of servers before, unless they have answered already.
    fn adopt(&self, histories: BTreeMap<Arc<str>, (PinHistory, bool)>) {
        let _writing = self.writing.lock();
        let last = self.load();
        let mut servers = last.servers.clone();
        for (server, (pins, unpinned)) in histories {
            if let Some(known) = servers.get_mut(&server) {
                (known.pins, known.unpinned) = (pins, unpinned);
            }
        }
        let (tools, direct) = (Arc::clone(&last.tools), Arc::clone(&last.direct));
        let index = Arc::clone(&last.index);
        self.published.swap(Snapshot { tools, direct, servers, index }, false);
    }

    /// Writes the pins that are others than on disk; why not, where that fails. Blocks on the disk.
    fn write_pins(&self) -> Option<String> {
        let folder = self.saving.folder()?;
        let mut on_disk = self.pins_on_disk.lock();
        let mut problem = None;
        for (server, known) in &self.load().servers {
            let Some(pins) = known.pins.pins() else { continue };
            if on_disk.get(server).is_some_and(|there| Arc::ptr_eq(there, pins)) {
                continue;
            }
            match pin_file::write(folder, server, pins) {
                Ok(()) => {
                    on_disk.insert(Arc::clone(server), Arc::clone(pins));
                }
                Err(error) => {
                    let path = pin_file::path(folder, server);
                    problem = Some(format!("{} cannot be written: {error}", path.display()));
                }
            }
        }
        problem
    }

    /// Writes pins, then sets: a set on disk has its pins beside it. Blocks on the disk.
    fn write(&self, sets: Vec<(Arc<str>, UnsavedSet)>) -> Vec<Option<String>> {
        match self.write_pins() {
            None => self.saving.write(sets),
            problem => vec![problem; sets.len()],
        }
    }

    /// Makes `tools` the whole set of `server`, and writes it to disk if it is another than before.
    /// A server that is not configured changes nothing. Blocks on the disk, and until every schema
    /// is compiled; the tools are there before that.
    pub fn replace_server(&self, server: &str, tools: Vec<DiscoveredTool>) -> Change {
        let (told, _) = self.remember(&[Arc::from(server)]);
        let (mut changes, late) = self.replace(&[(server, &tools)], ToolSet::Discovered);
        let Some((server, change)) = changes.first_mut() else { return Change::default() };
        add_problems(told, server, change);
        if let Some(set) = self.saving.unsaved(server, tools) {
            let problem = self.write(vec![(Arc::clone(server), set)]).pop().flatten();
            change.disk = problem.or(change.disk.take());
        }
        self.compile(late, &mut changes);
        changes.pop().map(|(_, change)| change).unwrap_or_default()
    }

    /// Makes `tools` the whole set of `server`, and writes it to disk if it is another than there.
    /// A server that is not configured changes nothing. The tools are there before this ends, which
    /// it does when every schema is compiled. What was begun is done even if this is dropped.
    ///
    /// # Errors
    /// Says in one line why the set was not taken up.
    pub async fn take_up(
        self: &Arc<Self>,
        server: &Arc<str>,
        tools: Vec<DiscoveredTool>,
    ) -> Result<Change, String> {
        let catalog = Arc::clone(self);
        let work = move |sets: Vec<_>| catalog.show(sets);
        let taken = self.arriving.done(&self.threads, server, tools, work).await;
        let Taken { mut change, late, unsaved } =
            taken.map_err(|Undone| "its tools cannot be taken up".to_owned())?;
        if let Some(set) = unsaved {
            let catalog = Arc::clone(self);
            let write = move |sets| catalog.write(sets);
            let problem = self.saving.save(&self.threads, server, set, write).await;
            change.disk = problem.or(change.disk.take());
        }
        let (small, large) = late.into_iter().partition(Late::is_small);
        let change = self.compile_by(&self.small, server, small, change).await?;
        self.compile_by(&self.large, server, large, change).await
    }

    /// Waits until what was begun has ended, whoever asked for it: sets that are taken up or written,
    /// schemas that are compiled. At most until `deadline`.
    pub async fn close(&self, deadline: Instant) {
        // What has not ended by then ends with the process.
        let _ = tokio::time::timeout_at(deadline.into(), self.threads.ended()).await;
    }

    /// Shows the tools of some servers, in one snapshot.
    fn show(&self, sets: Vec<(Arc<str>, Vec<DiscoveredTool>)>) -> Vec<Taken> {
        let servers: Vec<_> = sets.iter().map(|(server, _)| Arc::clone(server)).collect();
        let (mut told, _) = self.remember(&servers);
        let all: Vec<_> =
            sets.iter().map(|(server, tools)| (&**server, tools.as_slice())).collect();
        let (changes, late) = self.replace(&all, ToolSet::Discovered);
        // In the order of the sets.
        let (mut changes, mut late) = (changes.into_iter().peekable(), late.into_iter().peekable());
        let taken = sets.into_iter().map(|(server, tools)| {
            let change = changes.next_if(|(changed, _)| *changed == server);
            let mut change = change.map(|(_, change)| change).unwrap_or_default();
            let of_server = told.extract_if(.., |(told, _)| *told == server).collect();
            add_problems(of_server, &server, &mut change);
            let late = std::iter::from_fn(|| late.next_if(|late| late.tool.server == server));
            let late = late.collect();
            Taken { change, late, unsaved: self.saving.unsaved(&server, tools) }
        });
        taken.collect()
    }

    /// Puts the next snapshot in force: each set replaces that of its server, if that is configured.
    /// What takes long to compile is left for later.
    fn replace(
        &self,
        sets: &[(&str, &[DiscoveredTool])],
        origin: ToolSet,
    ) -> (Vec<(Arc<str>, Change)>, Vec<Late>) {
        let (settings, ready, _writing) = loop {
            // Before others have to wait.
            let (settings, last) = (self.settings.load_full(), self.load());
            let again = self.unscanned.lock().clone();
            let reviews = reviewing::reviews(&settings.review, &last, sets, &again);
            let ready = (self.compiler.ready(&last, sets), reviews, again);
            let writing = self.writing.lock();
            // Seldom: they were changed meanwhile.
            if Arc::ptr_eq(&settings, &self.settings.load()) {
                break (settings, ready, writing);
            }
        };
        let last = self.load();
        let Replaced { next, differs, changes, late, unsaved } =
            replace((&settings, &self.shared.load()), &self.lexicon, &last, sets, ready, origin);
        if origin == ToolSet::Discovered {
            self.unscanned.lock().retain(|server| sets.iter().all(|(set, _)| **set != **server));
        }
        unsaved.iter().for_each(|server| self.saving.is_newer(server));
        self.published.swap(next, differs);
        (changes, late)
    }

    /// Compiles what was left for later, on this thread.
    fn compile(&self, late: Vec<Late>, changes: &mut [(Arc<str>, Change)]) {
        self.compiler.compile(late, changes, || self.published.schema_settled());
    }

    /// Compiles what was left for later, when it is its turn.
    async fn compile_by(
        self: &Arc<Self>,
        turn: &Arc<Semaphore>,
        server: &Arc<str>,
        late: Vec<Late>,
        change: Change,
    ) -> Result<Change, String> {
        if late.is_empty() {
            return Ok(change);
        }
        let turn = Arc::clone(turn).acquire_owned().await.map_err(|error| error.to_string())?;
        let (catalog, server) = (Arc::clone(self), Arc::clone(server));
        let compiled = self.threads.run(move || {
            let _turn = turn;
            let mut changes = [(server, change)];
            catalog.compile(late, &mut changes);
            let [(_, change)] = changes;
            change
        });
        compiled.await.map_err(|Panicked| "its schemas cannot be compiled".to_owned())
    }
}

/// Adds to a change what else there is to tell of its server.
fn add_problems(told: Vec<(Arc<str>, Change)>, server: &Arc<str>, change: &mut Change) {
    for (of, mut told) in told {
        if of == *server {
            change.disk = told.disk.or(change.disk.take());
            change.found.append(&mut told.found);
            told.pinned.append(&mut change.pinned);
            change.pinned = told.pinned;
        }
    }
}

#[cfg(test)]
mod tests;
