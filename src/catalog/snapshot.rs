//! Immutable snapshot of all tools. It is read without a lock and shares unchanged parts with its predecessor.
//!
//! Built in `super::replacing`.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::definition::DefinitionDigest;
use super::exposed;
use super::listing::{ListNotes, Listed, PageElement, Start, ToolListings};
use super::pins::{Pin, PinHistory};
use super::scan::{ScanFinding, Scanned};
use super::search::{Index, Lexicon, QueryMeaning, Segment};
use mcpproxy_policy::rules::KnownTools;
use mcpproxy_policy::tool::{Tool, ToolName, Trust};
use mcpproxy_protocol::mcp::revisions::ProtocolFamily;

/// All tools at one moment.
#[derive(Debug)]
pub struct Snapshot {
    /// Tools ordered by name.
    pub(super) tools: Arc<[Arc<Tool>]>,
    /// The same tools, ordered by exposed name.
    pub(super) direct: Arc<[DirectTool]>,
    pub(super) servers: BTreeMap<Arc<str>, KnownServer>,
    pub(super) index: Arc<Index>,
}

/// State of a server.
#[derive(Clone, Debug)]
pub(super) struct KnownServer {
    pub(super) set: ToolSet,
    /// Search index of the server's tools.
    pub(super) words: Arc<Segment>,
    /// Pins of the server's tools.
    pub(super) pins: PinHistory,
    /// True if the stored set predates pins.
    pub(super) unpinned: bool,
}

impl KnownServer {
    /// Creates the state of a server that has not answered.
    pub(super) fn awaited() -> Self {
        let (words, pins) = (Arc::default(), PinHistory::New);
        Self { set: ToolSet::Awaited, words, pins, unpinned: false }
    }
}

/// A tool with its listing under `/mcp/all`.
#[derive(Clone, Debug)]
pub(super) struct DirectTool {
    pub(super) listed: Arc<Listed>,
    pub(super) listings: Arc<ToolListings>,
    pub(super) tool: Arc<Tool>,
    pub(super) review: Arc<Review>,
    /// Scan findings relative to other tools.
    pub(super) beside: Arc<[ScanFinding]>,
}

/// Review of an individual definition.
#[derive(Clone, Debug)]
pub(super) struct Review {
    pub(super) digest: DefinitionDigest,
    /// Confusable skeleton of the tool's name; empty if scanning is off.
    pub(super) look: Box<str>,
    pub(super) scanned: Scanned,
}

/// A tool's definition as reviewed by operators.
#[derive(Clone, Copy, Debug)]
pub struct Reviewed<'a> {
    pub tool: &'a Arc<Tool>,
    /// Listed definition.
    pub listed: &'a Arc<Listed>,
    /// Digest to which an approval is bound.
    pub digest: DefinitionDigest,
    pub pin: Option<&'a Pin>,
    by_itself: &'a [ScanFinding],
    beside: &'a [ScanFinding],
}

impl<'a> Reviewed<'a> {
    pub fn findings(&self) -> impl Iterator<Item = &'a ScanFinding> + use<'a> {
        self.by_itself.iter().chain(self.beside)
    }
}

impl DirectTool {
    pub(super) fn findings(&self) -> Vec<ScanFinding> {
        self.review.scanned.findings.iter().chain(&*self.beside).cloned().collect()
    }
}

/// Result of a search.
#[derive(Clone, Debug)]
pub struct FoundTools {
    /// Best matches in descending order, with scores from 0 to 1.
    pub tools: Vec<(Arc<Tool>, f32)>,
    /// Number of all matches.
    pub total: usize,
}

/// Source of a server's tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolSet {
    /// The tools are not known yet.
    Awaited,
    /// The tools come from disk and were not discovered since the start.
    Restored,
    Discovered,
}

impl Snapshot {
    /// Creates an empty snapshot in which each of `servers` is awaited.
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

    pub fn tool(&self, name: &ToolName) -> Option<&Arc<Tool>> {
        self.named(&name.server, &name.tool)
    }

    pub fn named(&self, server: &str, tool: &str) -> Option<&Arc<Tool>> {
        self.tools.get(self.position(server, tool)?)
    }

    /// Tools with the own name `own`, at most one per server, ordered by server.
    pub fn with_own_name<'a>(&'a self, own: &'a str) -> impl Iterator<Item = &'a Arc<Tool>> {
        self.servers.keys().filter_map(move |server| self.named(server, own))
    }

    fn position(&self, server: &str, tool: &str) -> Option<usize> {
        let order = |it: &Arc<Tool>| (*it.name.server).cmp(server).then((*it.name.tool).cmp(tool));
        self.tools.binary_search_by(order).ok()
    }

    /// All tools, ordered by name.
    pub fn tools(&self) -> &[Arc<Tool>] {
        &self.tools
    }

    /// All tools of a server, ordered by name.
    pub fn tools_of(&self, server: &str) -> &[Arc<Tool>] {
        let from = self.tools.partition_point(|tool| *tool.name.server < *server);
        let to = self.tools.partition_point(|tool| *tool.name.server <= *server);
        self.tools.get(from..to).unwrap_or_default()
    }

    /// The tool with this exposed name.
    pub fn direct(&self, exposed: &str) -> Option<&Arc<Tool>> {
        self.find_direct(exposed).map(|direct| &direct.tool)
    }

    /// Listings of the `shown` tools for clients of `family`, starting at `start`, ordered by exposed name. Tools
    /// without a conforming listing are left out.
    pub fn listed(
        &self,
        start: &Start,
        family: ProtocolFamily,
        shown: impl Fn(&Arc<Tool>) -> bool,
    ) -> impl Iterator<Item = PageElement<'_>> {
        let rest = start.rest(&self.direct, |direct| &direct.listed.key).iter();
        let shown = rest.filter(move |direct| shown(&direct.tool));
        shown.filter_map(move |direct| {
            let DirectTool { listings, listed, tool, .. } = direct;
            let of = (&tool.name.server, &**listed);
            let json = listings.exposed_json(family, of, &tool.schema)?;
            Some(PageElement { key: &listed.key, json })
        })
    }

    /// Listings of one server's tools, under their own names.
    pub fn listed_of(
        &self,
        server: &str,
        start: &Start,
        family: ProtocolFamily,
        shown: impl Fn(&Arc<Tool>) -> bool,
    ) -> impl Iterator<Item = PageElement<'_>> {
        let rest = start.rest(&self.direct, |direct| &direct.listed.key).iter();
        let shown =
            rest.filter(move |direct| *direct.tool.name.server == *server && shown(&direct.tool));
        shown.filter_map(move |direct| {
            let DirectTool { listings, listed, tool, .. } = direct;
            let json = listings.own_json(family, listed, &tool.schema)?;
            Some(PageElement { key: &listed.key, json })
        })
    }

    /// Notes on the tools of each server whose listing was repaired or left out.
    pub fn list_notes(&self) -> BTreeMap<&Arc<str>, ListNotes> {
        let mut notes = BTreeMap::<_, ListNotes>::new();
        for DirectTool { listings, tool, .. } in self.direct.iter() {
            if let Some(note) = listings.note(&tool.name.tool, &tool.schema) {
                notes.entry(&tool.name.server).or_default().add(note);
            }
        }
        notes
    }

    /// Review data of a tool.
    pub fn reviewed(&self, name: &ToolName) -> Option<Reviewed<'_>> {
        let direct = self.find_direct(&exposed::name(&name.server, &name.tool))?;
        (direct.tool.name == *name).then(|| self.reviewed_direct(direct))
    }

    /// Review data of a server's quarantined tools, ordered by name.
    pub fn quarantined(&self, server: &str) -> Vec<Reviewed<'_>> {
        let held = self.tools_of(server).iter().filter(|tool| tool.trust == Trust::Withheld);
        held.filter_map(|tool| self.reviewed(&tool.name)).collect()
    }

    /// All pins with server and tool.
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

    /// Listings with their tools, starting at `start`.
    pub fn direct_tools(&self, start: &Start) -> impl Iterator<Item = (&Listed, &Arc<Tool>)> {
        let rest = start.rest(&self.direct, |direct| &direct.listed.key);
        rest.iter().map(|direct| (&*direct.listed, &direct.tool))
    }

    pub(super) fn find_direct(&self, exposed: &str) -> Option<&DirectTool> {
        let at = self.direct.binary_search_by(|direct| (*direct.listed.key).cmp(exposed)).ok()?;
        self.direct.get(at)
    }

    /// All configured servers and the source of their tools.
    pub fn servers(&self) -> impl Iterator<Item = (&Arc<str>, ToolSet)> {
        self.servers.iter().map(|(name, known)| (name, known.set))
    }

    /// Tools for checking rules, supplemented by servers without known tools.
    pub fn known_tools(&self, servers: &KnownTools) -> KnownTools {
        let mut known = servers.servers.clone();
        for (server, set) in self.servers() {
            let tools = match set {
                ToolSet::Awaited => None,
                ToolSet::Restored | ToolSet::Discovered => Some(self.tools_of(server).to_vec()),
            };
            known.insert(Arc::clone(server), tools);
        }
        KnownTools { servers: known, tokens: servers.tokens.clone() }
    }

    /// Source of a server's tools; `None` if the server is not configured.
    pub(crate) fn set_of(&self, server: &str) -> Option<ToolSet> {
        self.servers.get(server).map(|known| known.set)
    }

    /// Whether the server is configured.
    pub fn server_known(&self, server: &str) -> bool {
        self.servers.contains_key(server)
    }

    /// Searches the tools that agents may see. Returns at most `limit` results, best first, with scores from 0 to 1;
    /// ties are ordered by name.
    #[cfg(test)]
    pub(crate) fn search(&self, query: &str, limit: usize) -> Vec<(Arc<Tool>, f32)> {
        self.search_for(query, limit, None, |tool| tool.trust == Trust::Given).tools
    }

    /// Searches the tools accepted by `shown`, which is called in descending order of score and at most twice per tool.
    /// Hidden tools affect neither the count nor the ranking. If the meaning of the query is given, similar tools are
    /// found too.
    pub fn search_for(
        &self,
        query: &str,
        limit: usize,
        meaning: Option<&QueryMeaning>,
        mut shown: impl FnMut(&Arc<Tool>) -> bool,
    ) -> FoundTools {
        let Some(QueryMeaning { query: vector, tools, min }) = meaning else {
            let shown = |at| self.tools.get(at).is_some_and(&mut shown);
            return self.best(&self.index.search_shown(query, shown), limit);
        };
        let near = tools.nearest(vector, *min, |tool| {
            let at = self.position(&tool.name.server, &tool.name.tool)?;
            let known = self.tools.get(at)?;
            // The vectors may belong to an earlier snapshot.
            let same = Arc::ptr_eq(known, tool) || known.description == tool.description;
            (same && shown(known)).then_some(at)
        });
        let shown = |at| self.tools.get(at).is_some_and(&mut shown);
        self.best(&self.index.search_with(query, &near, shown), limit)
    }

    /// Best results by position.
    fn best(&self, found: &[(usize, f32)], limit: usize) -> FoundTools {
        let best = found.iter().take(limit);
        let tools = best.filter_map(|(at, score)| Some((Arc::clone(self.tools.get(*at)?), *score)));
        FoundTools { tools: tools.collect(), total: found.len() }
    }
}
