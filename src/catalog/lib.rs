//! Catalog: the known tools, their grades and pins, and the search for them.
//!
//! Discovery delivers the whole tool set of one server at a time; readers see one immutable [`Snapshot`]. [`Catalog`]
//! holds the state of a running proxy. Sets are applied (`replacing`), published, written to disk (`saving`) and
//! compiled (`compiling`); they do not wait for each other's disk writes or large schemas. The first definition of a
//! tool is pinned (`pins`); later ones are compared with it (`grade`), scanned (`scan`) and judged (`reviewing`). The
//! crate is independent of discovery and calls.

pub mod change;
pub mod compiling;
mod conform;
pub mod definition;
pub mod embeddings;
pub mod exposed;
pub mod exposed_uris;
pub mod grade;
pub mod listing;
pub mod persist;
pub mod pin_decisions;
pub mod pin_file;
pub mod pins;
mod portable;
pub mod replacing;
mod reviewing;
mod saving;
pub mod scan;
pub mod search;
pub mod settings;
pub mod snapshot;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZero;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, broadcast, watch};

use crate::compiling::{Compiler, PendingSchema};
use crate::pin_file::StoredPins;
use crate::pins::{PinHistory, ServerPins, SharedPins};
use crate::replacing::{Reconfigured, Replaced, reconfigured, replace};
use crate::saving::{BlockingWork, JobDropped, JobQueue, Panicked, Saving, UnsavedSet};
use crate::search::Lexicon;
use mcpproxy_policy::tool::{Exposure, InputSchema, OutputSchema, Rules, Tool, ToolName};
use mcpproxy_runtime::io::line_budget::{LinePeer, peer_line};

pub use change::Change;
pub use definition::DiscoveredTool;
pub use listing::{ListNote, ListNotes, NoteAction};
pub use settings::{PolicyOverride, ServerSettings, Settings};
pub use snapshot::{FoundTools, Reviewed, Snapshot, ToolSet};

/// Maximum number of notices buffered for a slow listener. Beyond this number, the oldest notices are dropped and the
/// listener lags.
const NOTICES: usize = 256;

/// Maximum number of a server's sets whose changes wait to be reported to a caller. Sets accumulate if the server
/// disconnects each time before its caller gets the changes.
const MAX_UNREPORTED: usize = 16;

/// The catalog of a running proxy.
#[derive(Debug)]
pub struct Catalog {
    settings: ArcSwap<Settings>,
    compiler: Compiler,
    lexicon: Arc<Lexicon>,
    published: Published,
    /// Held while the next snapshot is derived from the current one.
    writing: Mutex<()>,
    saving: Arc<Saving>,
    /// Servers whose stored sets and pins were read. The lock is held during the read, so that no set is reviewed
    /// before its pins are known.
    remembered: Mutex<BTreeSet<Arc<str>>>,
    /// Pins as stored. The lock is held while they are written.
    pins_on_disk: Mutex<BTreeMap<Arc<str>, Arc<ServerPins>>>,
    /// Sets waiting to be applied. They are batched, so that 200 servers that answer at the same time cause few
    /// snapshots and do not need 200 threads.
    arriving: Arc<JobQueue<Vec<DiscoveredTool>, TakenUp>>,
    /// Deferred small schemas are compiled by one thread per core, large ones by a single thread.
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
    threads: BlockingWork,
    /// Servers whose definitions are to be scanned again even if they are unchanged.
    unscanned: Mutex<BTreeSet<Arc<str>>>,
    /// Changes of published sets that their callers have not received yet.
    unreported: Mutex<BTreeMap<Arc<str>, Unreported>>,
    notices: broadcast::Sender<Notice>,
    /// Verdicts of other fleet nodes on definitions.
    shared: ArcSwap<SharedPins>,
}

/// Changes of a server's published sets that no caller has reported yet.
#[derive(Debug, Default)]
struct Unreported {
    /// Change of the newest set. Its caller may still report it.
    newest: Change,
    /// Changes of earlier sets, whose callers were dropped. A server has only one caller at a time.
    earlier: Option<Change>,
    /// Number of sets whose changes are included.
    sets: usize,
}

/// A published set and the work that remains for it.
struct TakenUp {
    change: Change,
    late: Vec<PendingSchema>,
    unsaved: Option<UnsavedSet>,
}

/// Changes and problems of the sets that were read, and schemas that are not compiled yet.
type ReadSets = (Vec<(Arc<str>, Change)>, Vec<PendingSchema>);

impl Catalog {
    /// Creates an empty catalog in which every configured server is awaited.
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
            unreported: Mutex::default(),
            arriving: Arc::default(),
            small: Arc::new(Semaphore::new(cores)),
            large: Arc::new(Semaphore::new(1)),
            threads: BlockingWork::default(),
            notices: broadcast::Sender::new(NOTICES),
            shared: ArcSwap::default(),
        }
    }

    /// Exposure of a server's resources, prompts and completions according to the operator's `capabilities`.
    pub fn exposure_of_offers(&self, server: &str) -> Exposure {
        let settings = self.settings.load();
        let rules = settings.servers.get(server).map(|it| Exposure::of_offers(&it.capabilities));
        rules.unwrap_or_else(|| Exposure::of_offers(&Rules::default()))
    }

    /// Current snapshot.
    pub fn load(&self) -> Arc<Snapshot> {
        self.published.load()
    }

    /// Receiver of notices for clients.
    pub fn notices(&self) -> broadcast::Receiver<Notice> {
        self.notices.subscribe()
    }

    pub fn notify(&self, notice: Notice) {
        // Without listeners a notice is dropped.
        let _ = self.notices.send(notice);
    }

    /// Receiver marked whenever the snapshot may have changed.
    pub fn swaps(&self) -> watch::Receiver<()> {
        self.published.swaps()
    }

    /// Marks the set of tools as changed because a server reported a change, even if its definitions are the same.
    pub fn report_changed(&self) {
        self.published.changed.notify_one();
    }

    /// Waits for the next change of the set of tools since the last wait.
    pub async fn changed(&self) {
        self.published.changed().await;
    }

    /// Waits for a tool until its server's first set is available, from disk or discovery; `None` if it does not
    /// exist or `deadline` passes.
    pub async fn wait_for(&self, name: &ToolName, deadline: Instant) -> Option<Arc<Tool>> {
        self.published.wait_for(name, deadline).await
    }

    /// Waits until the output schema of `tool` is compiled; false if `deadline` passes.
    pub async fn compiled(&self, tool: &Tool, deadline: Instant) -> bool {
        self.published.compiled(tool, deadline).await
    }

    /// Compiles the input schema of `tool` at first use; `None` if `deadline` passes.
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
        // The semaphores are never closed.
        let turn = Arc::clone(turns).acquire_owned().await.ok()?;
        let (catalog, tool) = (Arc::clone(self), Arc::clone(tool));
        let compiled = self.threads.run(move || {
            let _turn = turn;
            let compile = || catalog.compiler.input(&tool.input_schema);
            let (schema, new) = tool.input.compiled(compile);
            if let (InputSchema::Unusable(reason), true) = (schema, new) {
                // The reason is logged here, because the caller may have been dropped and no later call reports it.
                peer_line!(warn, LinePeer::Server(&tool.name.server), tool = %tool.name, %reason, "the input schema cannot be used");
            }
            schema.clone()
        });
        compiled.await.ok()
    }

    /// Loads the stored sets (FR-A1). Returns files that cannot be used, new findings and changes of pins. The tools
    /// themselves do not count as a change, because they were added when the sets were stored. Blocks on the disk and
    /// until every schema is compiled; tools are available before that.
    pub fn restore(&self) -> Vec<(Arc<str>, Change)> {
        self.after_reading(self.remember(&self.configured()))
    }

    /// Like [`Self::restore`], but leaves damaged files as they are, so that the next start of the proxy reports them.
    pub fn read_stored(&self) -> Vec<(Arc<str>, Change)> {
        self.after_reading(self.read(&self.configured()))
    }

    fn configured(&self) -> Vec<Arc<str>> {
        self.settings.load().servers.keys().cloned().collect()
    }

    /// Compiles the schemas of sets that were read, and keeps the changes that [`Self::restore`] returns.
    fn after_reading(&self, read: ReadSets) -> Vec<(Arc<str>, Change)> {
        let (mut changes, late) = read;
        self.compile(late, &mut changes);
        for (_, change) in &mut changes {
            let Change { disk, found, pinned, first_sight, .. } = std::mem::take(change);
            *change = Change { disk, found, pinned, first_sight, ..Change::default() };
        }
        changes.retain(|(_, change)| !change.is_empty());
        changes
    }

    /// Loads the stored pins and sets of those `servers` that were not loaded yet, and writes damaged pins again.
    fn remember(&self, servers: &[Arc<str>]) -> ReadSets {
        let (mut changes, late) = self.read(servers);
        if let (Some(problem), Some((_, change))) = (self.write_pins(), changes.first_mut()) {
            change.disk.get_or_insert(problem);
        }
        (changes, late)
    }

    /// Loads the stored pins and sets of those `servers` that were not loaded yet.
    fn read(&self, servers: &[Arc<str>]) -> ReadSets {
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
                Ok(Some(StoredPins { pins, damage })) => {
                    let pins = Arc::new(pins);
                    match damage {
                        // The pins differ from the stored file, so the file is rewritten below.
                        Some(why) => problems.push(self.restored(server, &why)),
                        None => {
                            let mut on_disk = self.pins_on_disk.lock();
                            on_disk.insert(Arc::clone(server), Arc::clone(&pins));
                        }
                    }
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
            match changes.iter_mut().find(|(changes_of, _)| *changes_of == server) {
                Some((_, changes_of)) => {
                    *changes_of = Change { disk: changes_of.disk.take(), ..change }
                }
                None => changes.push((server, change)),
            }
        }
        (changes, late)
    }

    /// Message about a server whose pins cannot be read.
    fn lost(&self, server: &str, why: &str) -> String {
        let folder = self.saving.folder().unwrap_or(Path::new(""));
        let path = pin_file::path(folder, server);
        let follows = match self.settings.load().review.quarantines() {
            true => "its tools wait for approval, since their earlier state is unknown",
            false => "its tools are pinned again",
        };
        format!("the pin file of the server's tools ({}) {why}: {follows}", path.display())
    }

    /// Message about a server whose pins come from the backup copy.
    fn restored(&self, server: &str, why: &str) -> String {
        let folder = self.saving.folder().unwrap_or(Path::new(""));
        let path = pin_file::path(folder, server);
        format!(
            "the pins of the server's tools ({}) {why}: the last good copy is in force",
            path.display()
        )
    }

    /// Adopts stored pins of servers that have not answered yet.
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

    /// Writes changed pins and returns the error, if any. Blocks on the disk.
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

    /// Writes pins, then sets, so that a stored set always has its pins. Blocks on the disk.
    fn write(&self, sets: Vec<(Arc<str>, UnsavedSet)>) -> Vec<Option<String>> {
        match self.write_pins() {
            None => self.saving.write(sets),
            problem => vec![problem; sets.len()],
        }
    }

    /// Replaces the whole set of `server` and writes it to disk if it changed. Does nothing for an unknown server.
    /// Blocks on the disk and until every schema is compiled; tools are available before that.
    pub fn replace_server(&self, server: &str, tools: Vec<DiscoveredTool>) -> Change {
        let (changes_of, _) = self.remember(&[Arc::from(server)]);
        let (mut changes, late) = self.replace(&[(server, &tools)], ToolSet::Discovered);
        let Some((server, change)) = changes.first_mut() else { return Change::default() };
        add_problems(changes_of, server, change);
        if let Some(set) = self.saving.unsaved(server, tools) {
            let problem = self.write(vec![(Arc::clone(server), set)]).pop().flatten();
            change.disk = problem.or(change.disk.take());
        }
        self.compile(late, &mut changes);
        changes.pop().map(|(_, change)| change).unwrap_or_default()
    }

    /// Async form of [`Self::replace_server`]. Tools are published first; the future completes when every schema is
    /// compiled. Work continues if the future is dropped. The error is the reason, in one line, why the set was not
    /// applied.
    pub async fn take_up(
        self: &Arc<Self>,
        server: &Arc<str>,
        tools: Vec<DiscoveredTool>,
    ) -> Result<Change, String> {
        let catalog = Arc::clone(self);
        let work = move |sets: Vec<_>| catalog.show(sets);
        let taken = self.arriving.done(&self.threads, server, tools, work).await;
        let TakenUp { mut change, late, unsaved } =
            taken.map_err(|JobDropped| "its tools cannot be applied".to_owned())?;
        if let Some(set) = unsaved {
            let catalog = Arc::clone(self);
            let write = move |sets| catalog.write(sets);
            let problem = self.saving.save(&self.threads, server, set, write).await;
            change.disk = problem.or(change.disk.take());
        }
        let (small, large) = late.into_iter().partition(PendingSchema::is_small);
        let change = self.compile_by(&self.small, server, small, change).await?;
        let change = self.compile_by(&self.large, server, large, change).await?;
        let earlier = self.unreported.lock().remove(server).and_then(|it| it.earlier);
        Ok(match earlier {
            Some(mut earlier) => {
                earlier.append(change);
                earlier
            }
            None => change,
        })
    }

    /// Waits for all started work (sets, writes, schemas), at most until `deadline`. Returns the changes that no caller
    /// has received.
    pub async fn close(&self, deadline: Instant) -> Vec<(Arc<str>, Change)> {
        // Remaining work ends with the process.
        let _ = tokio::time::timeout_at(deadline.into(), self.threads.ended()).await;
        let unreported = std::mem::take(&mut *self.unreported.lock());
        let all = unreported.into_iter().map(|(server, Unreported { newest, earlier, .. })| {
            let mut change = earlier.unwrap_or_default();
            change.append(newest);
            (server, change)
        });
        all.collect()
    }

    /// Keeps the change of a published set until the caller of [`Self::take_up`] gets it. If that caller is dropped
    /// first, the next caller gets the changes of both sets.
    fn report_later(&self, server: &Arc<str>, change: &Change) {
        let mut unreported = self.unreported.lock();
        let Unreported { newest, earlier, sets } =
            unreported.entry(Arc::clone(server)).or_default();
        let last = std::mem::replace(newest, change.clone());
        if *sets > 0 && *sets <= MAX_UNREPORTED {
            earlier.get_or_insert_default().append(last);
        }
        *sets += 1;
    }

    /// Publishes the sets of several servers in one snapshot.
    fn show(&self, sets: Vec<(Arc<str>, Vec<DiscoveredTool>)>) -> Vec<TakenUp> {
        let servers: Vec<_> = sets.iter().map(|(server, _)| Arc::clone(server)).collect();
        let (mut changes_of, _) = self.remember(&servers);
        let all: Vec<_> =
            sets.iter().map(|(server, tools)| (&**server, tools.as_slice())).collect();
        let (changes, late) = self.replace(&all, ToolSet::Discovered);
        // Both lists are in the order of the sets.
        let (mut changes, mut late) = (changes.into_iter().peekable(), late.into_iter().peekable());
        let taken = sets.into_iter().map(|(server, tools)| {
            let change = changes.next_if(|(changed, _)| *changed == server);
            let mut change = change.map(|(_, change)| change).unwrap_or_default();
            let of_server =
                changes_of.extract_if(.., |(changes_of, _)| *changes_of == server).collect();
            add_problems(of_server, &server, &mut change);
            self.report_later(&server, &change);
            let late = std::iter::from_fn(|| late.next_if(|late| late.tool.server == server));
            let late = late.collect();
            TakenUp { change, late, unsaved: self.saving.unsaved(&server, tools) }
        });
        taken.collect()
    }

    /// Publishes the next snapshot, in which each set replaces the previous set of its server, if configured. Slow
    /// schemas are deferred.
    fn replace(
        &self,
        sets: &[(&str, &[DiscoveredTool])],
        origin: ToolSet,
    ) -> (Vec<(Arc<str>, Change)>, Vec<PendingSchema>) {
        let (settings, ready, _writing) = loop {
            // The reviews and schemas are prepared before the lock is taken, because this is slow.
            let (settings, last) = (self.settings.load_full(), self.load());
            let again = self.unscanned.lock().clone();
            let reviews = reviewing::reviews(&settings.review, &last, sets, &again);
            let ready = (self.compiler.ready(&last, sets), reviews, again);
            let writing = self.writing.lock();
            // If the settings changed in the meantime, which is rare, the work is repeated.
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
        unsaved.iter().for_each(|server| self.saving.mark_outdated(server));
        self.published.swap(next, differs);
        (changes, late)
    }

    /// Compiles deferred schemas on this thread.
    fn compile(&self, late: Vec<PendingSchema>, changes: &mut [(Arc<str>, Change)]) {
        self.compiler.compile(late, changes, || self.published.schema_settled());
    }

    /// Compiles deferred schemas once a permit is available.
    async fn compile_by(
        self: &Arc<Self>,
        turn: &Arc<Semaphore>,
        server: &Arc<str>,
        late: Vec<PendingSchema>,
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
        compiled.await.map_err(|Panicked| "compiling its schemas failed".to_owned())
    }
}

/// Merges further changes of the same server.
fn add_problems(changes_of: Vec<(Arc<str>, Change)>, server: &Arc<str>, change: &mut Change) {
    for (of, mut changes_of) in changes_of {
        if of == *server {
            change.disk = changes_of.disk.or(change.disk.take());
            change.found.append(&mut changes_of.found);
            changes_of.pinned.append(&mut change.pinned);
            change.pinned = changes_of.pinned;
        }
    }
}

/// Notice for clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The set of tools changed.
    Tools,
    /// The proxy's own tools or their descriptions changed.
    OwnTools,
    /// The set of prompts changed.
    Prompts,
    /// The set of resources or templates changed.
    Resources,
    /// The resource with this exposed URI changed.
    Updated(Arc<str>),
}

/// Published snapshot. It is replaced atomically, read without a lock, and can be awaited.
#[derive(Debug)]
struct Published {
    current: ArcSwap<Snapshot>,
    /// Marked when the snapshot changes or one of its schemas is compiled.
    swaps: watch::Sender<()>,
    /// Notified when the set of tools changed.
    changed: Notify,
}

impl Published {
    fn new(first: Snapshot) -> Self {
        Self {
            current: ArcSwap::from_pointee(first),
            swaps: watch::Sender::new(()),
            changed: Notify::new(),
        }
    }

    fn load(&self) -> Arc<Snapshot> {
        self.current.load_full()
    }

    /// Publishes `next`. `differs` means that its tools changed.
    fn swap(&self, next: Snapshot, differs: bool) {
        self.current.store(Arc::new(next));
        self.swaps.send_replace(());
        if differs {
            self.changed.notify_one();
        }
    }

    /// Marks that a schema of the current snapshot is compiled or unusable.
    fn schema_settled(&self) {
        self.swaps.send_replace(());
    }

    /// Marked when the snapshot changes or one of its schemas is compiled.
    fn swaps(&self) -> watch::Receiver<()> {
        self.swaps.subscribe()
    }

    /// Waits for the next change of the set of tools.
    async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Waits for the first set of the tool's server and returns the tool; `None` if the set lacks it or `deadline` passes.
    async fn wait_for(&self, name: &ToolName, deadline: Instant) -> Option<Arc<Tool>> {
        let mut swaps = self.swaps.subscribe();
        let settled = async {
            loop {
                let snapshot = self.load();
                match snapshot.set_of(&name.server)? {
                    ToolSet::Restored | ToolSet::Discovered => {
                        return snapshot.tool(name).cloned();
                    }
                    ToolSet::Awaited => swaps.changed().await.ok()?,
                }
            }
        };
        tokio::time::timeout_at(deadline.into(), settled).await.ok().flatten()
    }

    /// Waits until the output schema of `tool` is compiled; false if `deadline` passes first.
    async fn compiled(&self, tool: &Tool, deadline: Instant) -> bool {
        let mut swaps = self.swaps.subscribe();
        let compiled = async {
            while matches!(tool.schema.now(), OutputSchema::Compiling(_)) {
                if swaps.changed().await.is_err() {
                    return false;
                }
            }
            true
        };
        tokio::time::timeout_at(deadline.into(), compiled).await.unwrap_or(false)
    }
}

impl Catalog {
    /// Applies new settings; the folder stays the one set at startup. Tools that are no longer offered are removed,
    /// others are rebuilt, and removed servers are dropped. Returning tools and changed scan settings need a new
    /// discovery. Blocks on the disk and until changed schemas are compiled; everything else is in force before that.
    /// Called by a single task.
    pub fn reconfigure(&self, next: Settings) -> Reconfigured {
        let before = self.settings.load_full();
        let next = Arc::new(Settings { folder: before.folder.clone(), ..next });
        let late = {
            let _writing = self.writing.lock();
            let last = self.load();
            let (snapshot, differs, late) = reconfigured(&self.lexicon, &last, &before, &next);
            self.compiler.set(next.schemas);
            self.settings.store(Arc::clone(&next));
            self.published.swap(snapshot, differs);
            late
        };
        let removed: Vec<_> =
            before.servers.keys().filter(|server| !next.servers.contains_key(*server)).collect();
        if !removed.is_empty() {
            let (mut remembered, mut pins) = (self.remembered.lock(), self.pins_on_disk.lock());
            for server in removed {
                remembered.remove(server);
                pins.remove(server);
            }
        }
        let fresh: Vec<_> = next.servers.keys().cloned().collect();
        let (mut known, more) = self.remember(&fresh);
        let late = late.into_iter().chain(more).collect();
        let ask_again = self.to_rediscover(&before, &next);
        self.compile(late, &mut known);
        Reconfigured { ask_again, known }
    }

    /// Servers that have to be discovered again.
    fn to_rediscover(&self, before: &Settings, next: &Settings) -> Vec<Arc<str>> {
        let scan = before.review.scan != next.review.scan;
        let asked = next.servers.iter().filter(|(server, now)| {
            let offered = |settings: &ServerSettings| {
                (settings.enabled_tools.clone(), settings.disabled_tools.clone())
            };
            let earlier = before.servers.get(*server);
            earlier.is_some_and(|earlier| scan || offered(earlier) != offered(now))
        });
        let asked: Vec<_> = asked.map(|(server, _)| Arc::clone(server)).collect();
        if scan {
            self.unscanned.lock().extend(asked.iter().cloned());
        }
        asked
    }
}
