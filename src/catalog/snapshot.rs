//! The set of tools: immutable, swapped whole, read without a lock.
//!
//! Owns what a snapshot is and what the catalog of a running proxy is made of. How the next snapshot
//! comes from the last is in `replacing`, whose turn it is to make one in `arriving`. Every call
//! reads the snapshot of its moment, never what the agent saw at discovery.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use arc_swap::ArcSwap;
use tokio::sync::{Notify, broadcast, watch};

use self::arriving::Arriving;
use self::compiling::Compiler;
use super::difference::Difference;
use super::listing::{Listed, Start};
use super::search::{Index, Lexicon, Segment};
use super::settings::Settings;
use crate::tool::{Tool, ToolName};

mod arriving;
pub mod compiling;
mod replacing;
mod turns;

/// All tools of one moment. What did not change is shared with the snapshot before.
#[derive(Debug)]
pub struct Snapshot {
    /// In the order of their names.
    tools: Arc<[Arc<Tool>]>,
    /// The same tools in the order of their exposed names.
    direct: Arc<[Direct]>,
    servers: BTreeMap<Arc<str>, Known>,
    index: Arc<Index>,
}

/// What is known of a server.
#[derive(Clone, Debug)]
struct Known {
    set: ToolSet,
    /// The words of its tools.
    words: Arc<Segment>,
}

/// A tool and how `/mcp/all` lists it.
#[derive(Clone, Debug)]
struct Direct {
    listed: Arc<Listed>,
    tool: Arc<Tool>,
}

/// Where the tools of a server come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolSet {
    /// Nothing is known yet.
    Awaited,
    /// From disk; the server has not answered since the start.
    Restored,
    /// From the server.
    Discovered,
}

impl Snapshot {
    /// The tool of that name.
    #[must_use]
    pub fn tool(&self, name: &ToolName) -> Option<&Arc<Tool>> {
        self.named(&name.server, &name.tool)
    }

    /// The tool that `server` calls `tool`.
    #[must_use]
    pub fn named(&self, server: &str, tool: &str) -> Option<&Arc<Tool>> {
        let order = |it: &Arc<Tool>| (*it.name.server).cmp(server).then((*it.name.tool).cmp(tool));
        let at = self.tools.binary_search_by(order).ok()?;
        self.tools.get(at)
    }

    /// Every tool, in the order of their names.
    #[must_use]
    pub fn tools(&self) -> &[Arc<Tool>] {
        &self.tools
    }

    /// Every tool of one server, in the order of their names.
    #[must_use]
    pub fn tools_of(&self, server: &str) -> &[Arc<Tool>] {
        let from = self.tools.partition_point(|tool| *tool.name.server < *server);
        let to = self.tools.partition_point(|tool| *tool.name.server <= *server);
        self.tools.get(from..to).unwrap_or_default()
    }

    /// The tool that `/mcp/all` lists under that name.
    #[must_use]
    pub fn direct(&self, exposed: &str) -> Option<&Arc<Tool>> {
        self.find_direct(exposed).map(|direct| &direct.tool)
    }

    /// Every tool as `/mcp/all` lists it from `start` on, in the order of the exposed names.
    pub fn listed(&self, start: &Start) -> impl Iterator<Item = &Listed> {
        start.rest(&self.direct, |direct| &direct.listed.key).iter().map(|direct| &*direct.listed)
    }

    fn find_direct(&self, exposed: &str) -> Option<&Direct> {
        let at = self.direct.binary_search_by(|direct| (*direct.listed.key).cmp(exposed)).ok()?;
        self.direct.get(at)
    }

    /// Every configured server, and where its tools come from.
    pub fn servers(&self) -> impl Iterator<Item = (&Arc<str>, ToolSet)> {
        self.servers.iter().map(|(name, known)| (name, known.set))
    }

    /// True for a configured server.
    #[must_use]
    pub fn server_known(&self, server: &str) -> bool {
        self.servers.contains_key(server)
    }

    /// The tools that fit a plain-language query, best first, at most `limit`; each with a score
    /// from 0 to 1. Ties are in the order of names.
    #[must_use]
    pub fn search(&self, query: &str, limit: usize) -> Vec<(Arc<Tool>, f32)> {
        let found = self.index.search(query).into_iter();
        let found = found.filter_map(|(at, score)| Some((Arc::clone(self.tools.get(at)?), score)));
        found.take(limit).collect()
    }
}

/// What replacing a server's set did; for log and record.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Change {
    /// Names of tools that are new.
    pub added: Vec<Arc<str>>,
    /// Names of tools that are gone.
    pub removed: Vec<Arc<str>>,
    /// Names of tools whose definition is another.
    pub changed: Vec<Arc<str>>,
    /// What is another about each of them.
    pub differences: Vec<Difference>,
    /// Output schemas, new or changed, that cannot be used, and why (FR-A9).
    pub unusable: Vec<(ToolName, Arc<str>)>,
    /// Tools that were listed again under a name that was taken; the first counts.
    pub duplicates: Vec<Box<str>>,
    /// Why the set was not written to disk, or not read from it.
    pub disk: Option<String>,
}

impl Change {
    /// True if there is nothing to tell.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn tools_differ(&self) -> bool {
        !(self.added.is_empty() && self.removed.is_empty() && self.changed.is_empty())
    }
}

/// The catalog of a running proxy.
#[derive(Debug)]
pub struct Catalog {
    settings: Settings,
    compiler: Compiler,
    current: ArcSwap<Snapshot>,
    lexicon: Arc<Lexicon>,
    /// Held while the next snapshot is made from the last.
    writing: Mutex<()>,
    /// Servers whose sets on disk are not those that are known.
    unwritten: Mutex<BTreeSet<Arc<str>>>,
    arriving: Arriving,
    swaps: watch::Sender<()>,
    /// The set of tools is another than when clients were last told.
    changed: Notify,
    notices: broadcast::Sender<Notice>,
}

/// Notices kept for a listener that is behind; one further behind is told so.
const NOTICES: usize = 256;

/// Something that clients may want to be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The set of tools is another.
    Tools,
    /// The set of prompts is another.
    Prompts,
    /// The set of resources or templates is another.
    Resources,
    /// The resource of that URI, as clients know it, has changed.
    Updated(Arc<str>),
}

impl Catalog {
    /// An empty catalog: every configured server is awaited.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let lexicon = Arc::new(Lexicon::default());
        let awaited = Known { set: ToolSet::Awaited, words: Arc::default() };
        let servers = settings.servers.keys().map(|name| (Arc::clone(name), awaited.clone()));
        let empty = Snapshot {
            servers: servers.collect(),
            tools: Arc::default(),
            direct: Arc::default(),
            index: Arc::new(Index::of(Arc::clone(&lexicon), [])),
        };
        Self {
            compiler: Compiler::new(settings.schemas),
            settings,
            current: ArcSwap::from_pointee(empty),
            lexicon,
            writing: Mutex::new(()),
            unwritten: Mutex::default(),
            arriving: Arriving::default(),
            swaps: watch::Sender::new(()),
            changed: Notify::new(),
            notices: broadcast::Sender::new(NOTICES),
        }
    }

    /// The snapshot of this moment.
    #[must_use]
    pub fn load(&self) -> Arc<Snapshot> {
        self.current.load_full()
    }

    /// What clients may want to be told, from now on.
    #[must_use]
    pub fn notices(&self) -> broadcast::Receiver<Notice> {
        self.notices.subscribe()
    }

    /// Waits until the set of tools is another than when this was last waited for: whoever waits
    /// decides when clients are told.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Tells whoever listens.
    pub fn notify(&self, notice: Notice) {
        // Nobody listens: nobody misses it.
        let _ = self.notices.send(notice);
    }

    /// The tool of that name, as soon as its server's first set is there, from disk or from the
    /// server; `None` if that has no such tool, or is not there by `deadline`.
    pub async fn wait_for(&self, name: &ToolName, deadline: Instant) -> Option<Arc<Tool>> {
        let mut swaps = self.swaps.subscribe();
        let settled = async {
            loop {
                let snapshot = self.load();
                match snapshot.servers.get(&name.server).map(|known| known.set) {
                    Some(ToolSet::Restored | ToolSet::Discovered) => {
                        return snapshot.tool(name).cloned();
                    }
                    None => return None,
                    Some(ToolSet::Awaited) => swaps.changed().await.ok()?,
                }
            }
        };
        tokio::time::timeout_at(deadline.into(), settled).await.ok().flatten()
    }
}

#[cfg(test)]
mod tests;
