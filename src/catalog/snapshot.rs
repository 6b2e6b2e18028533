//! The tools of one moment: immutable, read without a lock, and sharing with the snapshot before what
//! did not change.
//!
//! How one is made of the last is in `super::replacing`, which one is in force in
//! `super::published`.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::definition::DefinitionDigest;
use super::exposed;
use super::listing::{Listed, Start};
use super::pins::{Pin, PinHistory};
use super::scan::{ScanFinding, Scanned};
use super::search::{AskedMeaning, Index, Lexicon, Segment};
use crate::policy::rules::KnownTools;
use crate::tool::{Tool, ToolName, Trust};

/// All tools of one moment. What did not change is shared with the snapshot before.
#[derive(Debug)]
pub struct Snapshot {
    /// In the order of their names.
    pub(super) tools: Arc<[Arc<Tool>]>,
    /// The same tools in the order of their exposed names.
    pub(super) direct: Arc<[DirectTool]>,
    pub(super) servers: BTreeMap<Arc<str>, KnownServer>,
    pub(super) index: Arc<Index>,
}

/// What is known of a server.
#[derive(Clone, Debug)]
pub(super) struct KnownServer {
    pub(super) set: ToolSet,
    /// The words of its tools.
    pub(super) words: Arc<Segment>,
    /// What is pinned of its tools.
    pub(super) pins: PinHistory,
    /// Its set on disk is of a version that knew no pins.
    pub(super) unpinned: bool,
}

impl KnownServer {
    /// One of which nothing is known yet.
    pub(super) fn awaited() -> Self {
        let (words, pins) = (Arc::default(), PinHistory::New);
        Self { set: ToolSet::Awaited, words, pins, unpinned: false }
    }
}

/// A tool and how `/mcp/all` lists it.
#[derive(Clone, Debug)]
pub(super) struct DirectTool {
    pub(super) listed: Arc<Listed>,
    pub(super) tool: Arc<Tool>,
    pub(super) review: Arc<Review>,
    /// What the scan says of it beside the other tools.
    pub(super) beside: Arc<[ScanFinding]>,
}

/// What is to be known of a definition by itself.
#[derive(Clone, Debug)]
pub(super) struct Review {
    pub(super) digest: DefinitionDigest,
    /// What its name looks like; empty where nothing is scanned.
    pub(super) look: Box<str>,
    pub(super) scanned: Scanned,
}

/// What an operator may want to know of a tool's definition.
#[derive(Clone, Copy, Debug)]
pub struct Reviewed<'a> {
    /// The tool.
    pub tool: &'a Arc<Tool>,
    /// The definition as it is listed.
    pub listed: &'a Arc<Listed>,
    /// Its identity, which an approval is bound to.
    pub digest: DefinitionDigest,
    /// What is pinned of it.
    pub pin: Option<&'a Pin>,
    by_itself: &'a [ScanFinding],
    beside: &'a [ScanFinding],
}

impl<'a> Reviewed<'a> {
    /// What the scan says of it.
    pub fn findings(&self) -> impl Iterator<Item = &'a ScanFinding> + use<'a> {
        self.by_itself.iter().chain(self.beside)
    }
}

impl DirectTool {
    /// What the scan says of it.
    pub(super) fn findings(&self) -> Vec<ScanFinding> {
        self.review.scanned.findings.iter().chain(&*self.beside).cloned().collect()
    }
}

/// The tools that fit a query.
#[derive(Clone, Debug)]
pub struct FoundTools {
    /// The best of them, best first; each with a score from 0 to 1.
    pub tools: Vec<(Arc<Tool>, f32)>,
    /// How many there are.
    pub total: usize,
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
    /// No tools yet: each of `servers` is awaited.
    pub(super) fn awaiting<'a>(
        servers: impl Iterator<Item = &'a Arc<str>>,
        lexicon: &Arc<Lexicon>,
    ) -> Self {
        let awaited = KnownServer::awaited();
        Self {
            servers: servers.map(|name| (Arc::clone(name), awaited.clone())).collect(),
            tools: Arc::default(),
            direct: Arc::default(),
            index: Arc::new(Index::of(Arc::clone(lexicon), [])),
        }
    }

    /// The tool of that name.
    #[must_use]
    pub fn tool(&self, name: &ToolName) -> Option<&Arc<Tool>> {
        self.named(&name.server, &name.tool)
    }

    /// The tool that `server` calls `tool`.
    #[must_use]
    pub fn named(&self, server: &str, tool: &str) -> Option<&Arc<Tool>> {
        self.tools.get(self.position(server, tool)?)
    }

    fn position(&self, server: &str, tool: &str) -> Option<usize> {
        let order = |it: &Arc<Tool>| (*it.name.server).cmp(server).then((*it.name.tool).cmp(tool));
        self.tools.binary_search_by(order).ok()
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

    /// Every tool as `/mcp/all` lists it from `start` on, in the order of the exposed names; without those in
    /// quarantine.
    pub fn listed(&self, start: &Start) -> impl Iterator<Item = &Listed> {
        let rest = start.rest(&self.direct, |direct| &direct.listed.key).iter();
        let shown = rest.filter(|direct| direct.tool.trust == Trust::Given);
        shown.map(|direct| &*direct.listed)
    }

    /// What is to be known of a tool's definition.
    #[must_use]
    pub fn reviewed(&self, name: &ToolName) -> Option<Reviewed<'_>> {
        let direct = self.find_direct(&exposed::name(&name.server, &name.tool))?;
        (direct.tool.name == *name).then(|| self.reviewed_direct(direct))
    }

    /// The same of each tool of a server that waits for an operator, in the order of their names.
    #[must_use]
    pub fn quarantined(&self, server: &str) -> Vec<Reviewed<'_>> {
        let held = self.tools_of(server).iter().filter(|tool| tool.trust == Trust::Withheld);
        held.filter_map(|tool| self.reviewed(&tool.name)).collect()
    }

    /// What is pinned, with servers and tools.
    pub fn pins(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<str>, &Pin)> {
        let pins =
            self.servers.iter().filter_map(|(server, known)| Some((server, known.pins.pins()?)));
        let pins = pins.flat_map(|(server, pins)| pins.0.iter().map(move |pin| (server, pin)));
        pins.map(|(server, (tool, pin))| (server, tool, pin))
    }

    fn reviewed_direct<'a>(&'a self, direct: &'a DirectTool) -> Reviewed<'a> {
        let known = self.servers.get(&direct.tool.name.server);
        let pins = known.and_then(|known| known.pins.pins());
        Reviewed {
            tool: &direct.tool,
            listed: &direct.listed,
            digest: direct.review.digest,
            pin: pins.and_then(|pins| pins.get(&direct.tool.name.tool)),
            by_itself: &direct.review.scanned.findings,
            beside: &direct.beside,
        }
    }

    /// The same, each with its tool.
    pub fn direct_tools(&self, start: &Start) -> impl Iterator<Item = (&Listed, &Arc<Tool>)> {
        let rest = start.rest(&self.direct, |direct| &direct.listed.key);
        rest.iter().map(|direct| (&*direct.listed, &direct.tool))
    }

    pub(super) fn find_direct(&self, exposed: &str) -> Option<&DirectTool> {
        let at = self.direct.binary_search_by(|direct| (*direct.listed.key).cmp(exposed)).ok()?;
        self.direct.get(at)
    }

    /// Every configured server, and where its tools come from.
    pub fn servers(&self) -> impl Iterator<Item = (&Arc<str>, ToolSet)> {
        self.servers.iter().map(|(name, known)| (name, known.set))
    }

    /// The tools that rules are checked before, beside servers of which none are known.
    #[must_use]
    pub fn known_tools(&self, servers: &KnownTools) -> KnownTools {
        let mut known = servers.servers.clone();
        for (server, set) in self.servers() {
            let tools = match set {
                ToolSet::Awaited => None,
                ToolSet::Restored | ToolSet::Discovered => Some(self.tools_of(server).to_vec()),
            };
            known.insert(Arc::clone(server), tools);
        }
        KnownTools { servers: known }
    }

    /// Where the tools of `server` come from; `None` if it is not configured.
    #[must_use]
    pub fn set_of(&self, server: &str) -> Option<ToolSet> {
        self.servers.get(server).map(|known| known.set)
    }

    /// True for a configured server.
    #[must_use]
    pub fn server_known(&self, server: &str) -> bool {
        self.servers.contains_key(server)
    }

    /// The tools that fit a plain-language query, best first, at most `limit`; each with a score
    /// from 0 to 1. Ties are in the order of names. Without those in quarantine: this is for agents.
    #[must_use]
    pub fn search(&self, query: &str, limit: usize) -> Vec<(Arc<Tool>, f32)> {
        self.search_for(query, limit, None, |tool| tool.trust == Trust::Given).tools
    }

    /// The same of the tools that are `shown`, in quarantine or not, and how many there are of them: what is not shown
    /// neither takes a place nor changes one. Where it is known what the query means, tools that are near to that are
    /// found too. Whether a tool is shown is asked of the best first, of some only, of one twice at most.
    pub fn search_for(
        &self,
        query: &str,
        limit: usize,
        meaning: Option<&AskedMeaning>,
        mut shown: impl FnMut(&Arc<Tool>) -> bool,
    ) -> FoundTools {
        let Some(AskedMeaning { query: vector, tools, least }) = meaning else {
            let shown = |at| self.tools.get(at).is_some_and(&mut shown);
            return self.best(&self.index.search_shown(query, shown), limit);
        };
        let near = tools.nearest(vector, *least, |tool| {
            let at = self.position(&tool.name.server, &tool.name.tool)?;
            let known = self.tools.get(at)?;
            // The vectors may be of tools of a moment ago.
            let same = Arc::ptr_eq(known, tool) || known.description == tool.description;
            (same && shown(known)).then_some(at)
        });
        let shown = |at| self.tools.get(at).is_some_and(&mut shown);
        self.best(&self.index.search_with(query, &near, shown), limit)
    }

    /// The first of what was found by position.
    fn best(&self, found: &[(usize, f32)], limit: usize) -> FoundTools {
        let best = found.iter().take(limit);
        let tools = best.filter_map(|(at, score)| Some((Arc::clone(self.tools.get(*at)?), *score)));
        FoundTools { tools: tools.collect(), total: found.len() }
    }
}
