//! The set of tools: immutable, swapped whole, read without a lock.
//!
//! Owns how a server's discovered set becomes tools (filters, capabilities, policies, schemas) and
//! how the next snapshot comes from the last. One server's set is replaced at a time; every call
//! reads the snapshot of its moment, never what the agent saw at discovery.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use arc_swap::ArcSwap;
use serde_json::value::RawValue;
use tokio::sync::{broadcast, watch};

use self::compiling::{Compiler, Late, awaited};
use super::difference::Difference;
use super::discovered::DiscoveredTool;
use super::listing::{Listed, Start};
use super::persist;
use super::search::Index;
use super::settings::{ServerSettings, Settings};
use crate::tool::{Capability, OutputSchema, Tool, ToolName};

pub mod compiling;

/// All tools of one moment.
#[derive(Debug)]
pub struct Snapshot {
    /// In the order of their names.
    tools: Vec<Arc<Tool>>,
    /// The same tools in the order of their exposed names.
    direct: Vec<Direct>,
    servers: BTreeMap<Arc<str>, ToolSet>,
    index: Index,
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
        self.servers.iter().map(|(name, set)| (name, *set))
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
    /// Held while the next snapshot is made from the last.
    writing: Mutex<()>,
    swaps: watch::Sender<()>,
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
        let servers = settings.servers.keys().map(|name| (Arc::clone(name), ToolSet::Awaited));
        let empty = Snapshot {
            servers: servers.collect(),
            tools: Vec::new(),
            direct: Vec::new(),
            index: Index::build(&[]),
        };
        Self {
            compiler: Compiler::new(settings.schemas),
            settings,
            current: ArcSwap::from_pointee(empty),
            writing: Mutex::new(()),
            swaps: watch::Sender::new(()),
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

    /// Tells whoever listens.
    pub fn notify(&self, notice: Notice) {
        // Nobody listens: nobody misses it.
        let _ = self.notices.send(notice);
    }

    /// Takes up the sets on disk (FR-A1); for each server that had one, or whose file cannot be
    /// used, what that changed. Blocks on the disk, and until every schema is compiled; the tools
    /// are there before that.
    pub fn restore(&self) -> Vec<(Arc<str>, Change)> {
        let Some(folder) = &self.settings.folder else { return Vec::new() };
        let mut sets = Vec::new();
        let mut changes = Vec::new();
        for server in self.settings.servers.keys() {
            match persist::read(folder, server) {
                Ok(None) => {}
                Ok(Some(tools)) => sets.push((&**server, tools)),
                Err(error) => {
                    let path = persist::path(folder, server);
                    let disk = Some(format!("{} {error}", path.display()));
                    changes.push((Arc::clone(server), Change { disk, ..Change::default() }));
                }
            }
        }
        let sets: Vec<_> = sets.iter().map(|(server, tools)| (*server, tools.as_slice())).collect();
        let (replaced, late) = self.replace(&sets, ToolSet::Restored);
        changes.extend(replaced);
        self.compile(late, &mut changes);
        changes
    }

    /// Makes `tools` the whole set of `server`, and writes it to disk if it is another than before.
    /// A server that is not configured changes nothing. Blocks on the disk, and until every schema
    /// is compiled; the tools are there before that.
    pub fn replace_server(&self, server: &str, tools: Vec<DiscoveredTool>) -> Change {
        let before = self.set_of(server);
        let (mut changes, late) = self.replace(&[(server, &tools)], ToolSet::Discovered);
        let Some((_, change)) = changes.first_mut() else { return Change::default() };
        let on_disk = matches!(before, Some(ToolSet::Restored | ToolSet::Discovered));
        if let Some(folder) = &self.settings.folder
            && (change.tools_differ() || !on_disk)
            && let Err(error) = persist::write(folder, server, &tools)
        {
            let path = persist::path(folder, server);
            change.disk = Some(format!("{} cannot be written: {error}", path.display()));
        }
        self.compile(late, &mut changes);
        changes.pop().map(|(_, change)| change).unwrap_or_default()
    }

    /// The tool of that name, as soon as its server's first set is there, from disk or from the
    /// server; `None` if that has no such tool, or is not there by `deadline`.
    pub async fn wait_for(&self, name: &ToolName, deadline: Instant) -> Option<Arc<Tool>> {
        let mut swaps = self.swaps.subscribe();
        let settled = async {
            loop {
                let snapshot = self.load();
                match snapshot.servers.get(&name.server) {
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

    fn set_of(&self, server: &str) -> Option<ToolSet> {
        self.current.load().servers.get(server).copied()
    }

    /// Makes the next snapshot: each set replaces that of its server, if that is configured. What
    /// takes long to compile is left for later.
    fn replace(
        &self,
        sets: &[(&str, &[DiscoveredTool])],
        origin: ToolSet,
    ) -> (Vec<(Arc<str>, Change)>, Vec<Late>) {
        // Before others have to wait.
        let ready: Vec<_> = sets.iter().map(|(server, set)| self.ready(server, set)).collect();
        let mut late = Vec::new();
        let _guard = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let last = self.load();
        let mut servers = last.servers.clone();
        let mut direct = last.direct.clone();
        let mut changes = Vec::new();
        for ((server, discovered), ready) in sets.iter().zip(ready) {
            let Some((server, settings)) = self.settings.servers.get_key_value(*server) else {
                continue;
            };
            if origin == ToolSet::Restored && servers.get(server) == Some(&ToolSet::Discovered) {
                // The server was faster than the disk.
                continue;
            }
            let discovered = discovered.iter().zip(ready);
            let (set, change) = self.next_set(server, settings, discovered, &last, &mut late);
            direct.retain(|direct| direct.tool.name.server != *server);
            direct.extend(set);
            servers.insert(Arc::clone(server), origin);
            changes.push((Arc::clone(server), change));
        }
        let mut tools: Vec<_> = direct.iter().map(|direct| Arc::clone(&direct.tool)).collect();
        tools.sort_by(|a, b| a.name.cmp(&b.name));
        direct.sort_by(|a, b| (&a.listed.key, &a.tool.name).cmp(&(&b.listed.key, &b.tool.name)));
        // Two hashes that are alike, which is not to be expected.
        direct.dedup_by(|a, b| a.listed.key == b.listed.key);
        let same = !changes.iter().any(|(_, change)| change.tools_differ());
        let index = if same { last.index.clone() } else { Index::build(&tools) };
        self.current.store(Arc::new(Snapshot { tools, direct, servers, index }));
        self.swaps.send_replace(());
        if !same {
            self.notify(Notice::Tools);
        }
        (changes, late)
    }

    /// The tools of one server, those that did not change as they were, and what did change.
    fn next_set<'a>(
        &self,
        server: &Arc<str>,
        settings: &ServerSettings,
        discovered: impl Iterator<Item = (&'a DiscoveredTool, OutputSchema)>,
        last: &Snapshot,
        late: &mut Vec<Late>,
    ) -> (Vec<Direct>, Change) {
        let mut change = Change::default();
        let mut seen = BTreeSet::new();
        let mut tools = Vec::new();
        for (found, schema) in discovered.filter(|(found, _)| settings.offers(&found.name)) {
            if !seen.insert(&*found.name) {
                change.duplicates.push(found.name.clone());
                continue;
            }
            let listed = found.listed(server);
            let same = last.find_direct(&listed.key).filter(|direct| *direct.listed == listed);
            if let Some(direct) = same {
                late.extend(awaited(&direct.tool, false));
                tools.push(direct.clone());
                continue;
            }
            let tool = self.build(server, settings, found, schema);
            let before = last.tool(&tool.name);
            let new =
                !before.is_some_and(|before| same_raw(&before.output_schema, &found.output_schema));
            late.extend(awaited(&tool, new));
            match before {
                Some(before) => {
                    change.changed.push(Arc::clone(&tool.name.tool));
                    change.differences.push(Difference::between(before, &tool));
                }
                None => change.added.push(Arc::clone(&tool.name.tool)),
            }
            if let OutputSchema::Unusable(reason) = &tool.schema
                && new
            {
                change.unusable.push((tool.name.clone(), Arc::clone(reason)));
            }
            tools.push(Direct { listed: Arc::new(listed), tool: Arc::new(tool) });
        }
        let gone = last.tools_of(server).iter().filter(|tool| !seen.contains(&*tool.name.tool));
        change.removed.extend(gone.map(|tool| Arc::clone(&tool.name.tool)));
        (tools, change)
    }

    fn build(
        &self,
        server: &Arc<str>,
        settings: &ServerSettings,
        found: &DiscoveredTool,
        schema: OutputSchema,
    ) -> Tool {
        let (capability, side_effect_by) =
            Capability::effective(found.annotations, &settings.capabilities, &found.name);
        Tool {
            name: ToolName { server: Arc::clone(server), tool: Arc::from(&*found.name) },
            title: found.title.clone(),
            description: found.description.clone(),
            input_schema: found.input_schema.clone(),
            output_schema: found.output_schema.clone(),
            annotations_raw: found.annotations_raw.clone(),
            annotations: found.annotations,
            capability,
            side_effect_by,
            schema,
            policy: settings.policy(self.settings.policy, &found.name),
            repeats: found.repeats.clone().ok().flatten(),
        }
    }
}

fn same_raw(a: &Option<Box<RawValue>>, b: &Option<Box<RawValue>>) -> bool {
    a.as_deref().map(RawValue::get) == b.as_deref().map(RawValue::get)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::exposed;
    use crate::output::Mode;
    use crate::tool::SideEffect;

    fn found(json: &str) -> DiscoveredTool {
        DiscoveredTool::parse(serde_json::from_str(json).unwrap()).unwrap()
    }

    fn tool(name: &str, more: &str) -> DiscoveredTool {
        found(&format!(r#"{{"name":"{name}","inputSchema":{{}}{more}}}"#))
    }

    fn settings(servers: &[(&str, &str)]) -> Settings {
        let parse = |json: &str| serde_json::from_str(json).unwrap();
        Settings {
            servers: servers.iter().map(|(name, json)| (Arc::from(*name), parse(json))).collect(),
            ..Settings::default()
        }
    }

    fn names(snapshot: &Snapshot) -> Vec<String> {
        snapshot.tools().iter().map(|tool| tool.name.to_string()).collect()
    }

    fn lookup(catalog: &Catalog, name: &str) -> Option<Arc<Tool>> {
        catalog.load().tool(&ToolName::parse(name).unwrap()).cloned()
    }

    #[test]
    fn a_servers_set_is_replaced_whole_and_no_others() {
        let catalog = Catalog::new(settings(&[("b", "{}"), ("a", "{}"), ("ab", "{}")]));
        catalog.replace_server("b", vec![tool("y", ""), tool("x", "")]);
        catalog.replace_server("ab", vec![tool("z", "")]);
        let old = catalog.load();
        let kept = lookup(&catalog, "b:x").unwrap();
        let more = r#","description":"new""#;
        let change =
            catalog.replace_server("b", vec![tool("x", ""), tool("w", ""), tool("x", more)]);
        assert_eq!((change.added, change.removed), (vec!["w".into()], vec!["y".into()]));
        assert_eq!(change.duplicates, [Box::from("x")]);
        assert_eq!(names(&catalog.load()), ["ab:z", "b:w", "b:x"]);
        assert_eq!(names(&old), ["ab:z", "b:x", "b:y"], "a snapshot never changes");
        assert!(Arc::ptr_eq(&kept, &lookup(&catalog, "b:x").unwrap()), "unchanged, so not rebuilt");
        let change = catalog.replace_server("b", vec![tool("x", more), tool("w", "")]);
        assert_eq!((&*change.changed, &*change.added), (&["x".into()][..], &[][..]));
        assert_eq!(change.differences[0].members, [("description", "".into(), "new".into())]);
        assert_eq!(change.differences[0].warning(), None, "words alone");
        assert_eq!(catalog.load().tools_of("b").len(), 2);
        assert!(catalog.load().tools_of("a").is_empty());
        catalog.replace_server("nobody", vec![tool("x", "")]);
        assert!(!catalog.load().server_known("nobody"));
    }

    #[test]
    fn every_tool_is_listed_under_its_exposed_name_too() {
        let catalog = Catalog::new(settings(&[("a", "{}"), ("a__b", "{}")]));
        catalog.replace_server("a", vec![tool("b__c", ""), tool("d", "")]);
        catalog.replace_server("a__b", vec![tool("c", "")]);
        let snapshot = catalog.load();
        let start = Start::default();
        let listed: Vec<_> = snapshot.listed(&start).collect();
        assert_eq!(listed.len(), 3);
        assert!(listed.is_sorted_by_key(|listed| &listed.key));
        let found = |name: &str| snapshot.direct(name).map(|tool| tool.name.to_string());
        assert_eq!(found("a__b__c").as_deref(), Some("a:b__c"));
        assert_eq!(found(&exposed::name("a__b", "c")).as_deref(), Some("a__b:c"));
        assert_eq!(found("a__x"), None);
        let change =
            catalog.replace_server("a", vec![tool("b__c", ""), tool("d", r#","_meta":{"v":2}"#)]);
        assert_eq!(change.changed, ["d".into()], "what /mcp/all shows of it is another");
        catalog.replace_server("a", vec![]);
        assert!(catalog.load().direct("a__b__c").is_none());
    }

    #[test]
    fn what_the_operator_says_is_in_the_tool() {
        let catalog = Catalog::new(settings(&[(
            "s",
            r#"{"disabled_tools": ["secret*"],
                "capabilities": {"x": {"side_effect": "destructive"}},
                "output_validation": {"mode": "strict"}}"#,
        )]));
        catalog.replace_server("s", vec![tool("x", ""), tool("secret_x", "")]);
        assert_eq!(names(&catalog.load()), ["s:x"]);
        let tool = lookup(&catalog, "s:x").unwrap();
        assert_eq!(tool.capability.side_effect, SideEffect::Destructive);
        assert_eq!(tool.policy.mode, Mode::Strict);
    }

    #[test]
    fn fr_a1_sets_are_there_again_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let with_folder =
            |servers| Settings { folder: Some(folder.path().to_owned()), ..settings(servers) };
        let first = Catalog::new(with_folder(&[("s", "{}"), ("gone", "{}")]));
        assert!(first.restore().is_empty());
        first.replace_server(
            "s",
            vec![tool("x", r#","outputSchema":{"type": "object"}"#), tool("y", "")],
        );
        first.replace_server("gone", vec![tool("x", "")]);

        let second =
            Catalog::new(with_folder(&[("s", r#"{"disabled_tools":["y"]}"#), ("new", "{}")]));
        let changes = second.restore();
        assert_eq!(changes.len(), 1);
        assert_eq!(names(&second.load()), ["s:x"], "the operator's words are today's");
        let schema = lookup(&second, "s:x").unwrap().output_schema.clone().unwrap();
        assert_eq!(schema.get(), r#"{"type": "object"}"#);
        let sets: Vec<_> =
            second.load().servers().map(|(name, set)| (name.to_string(), set)).collect();
        assert_eq!(sets, [("new".into(), ToolSet::Awaited), ("s".into(), ToolSet::Restored)]);

        second.replace_server("s", vec![]);
        let third = Catalog::new(with_folder(&[("s", "{}")]));
        third.restore();
        assert!(third.load().tools().is_empty(), "an empty set is a set");
        assert!(third.load().servers().any(|(_, set)| set == ToolSet::Restored));
    }

    #[test]
    fn fr_a9_a_schema_that_does_not_compile_is_told_once() {
        let catalog = Catalog::new(settings(&[("s", "{}")]));
        let (bad, good) = (r#","outputSchema":{"type":7}"#, r#","outputSchema":{"type":"object"}"#);
        let unusable = |tools| {
            let change = catalog.replace_server("s", tools);
            change.unusable.iter().map(|(name, _)| name.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(unusable(vec![tool("x", bad), tool("y", good)]), ["s:x"]);
        assert!(matches!(lookup(&catalog, "s:x").unwrap().schema, OutputSchema::Unusable(_)));
        assert!(matches!(lookup(&catalog, "s:y").unwrap().schema, OutputSchema::Compiled(_)));
        assert!(unusable(vec![tool("x", bad), tool("y", good)]).is_empty());
        let described = format!(r#"{bad},"description":"new""#);
        assert!(
            unusable(vec![tool("x", &described), tool("y", good)]).is_empty(),
            "the same schema"
        );
        assert_eq!(unusable(vec![tool("x", bad), tool("y", bad)]), ["s:y"]);
        let worse = r#","outputSchema":{"type":8}"#;
        assert_eq!(unusable(vec![tool("x", worse), tool("y", bad)]), ["s:x"], "another schema");
    }

    #[test]
    fn fr_a1_a_server_that_has_answered_is_not_set_back() {
        let folder = tempfile::tempdir().unwrap();
        let settings =
            Settings { folder: Some(folder.path().to_owned()), ..settings(&[("s", "{}")]) };
        Catalog::new(settings.clone()).replace_server("s", vec![tool("old", "")]);
        let on_disk = std::fs::read(persist::path(folder.path(), "s")).unwrap();
        let catalog = Catalog::new(settings);
        catalog.replace_server("s", vec![tool("new", "")]);
        std::fs::write(persist::path(folder.path(), "s"), on_disk).unwrap();
        assert!(catalog.restore().is_empty());
        assert_eq!(names(&catalog.load()), ["s:new"]);
    }

    #[test]
    fn a_damaged_file_is_told_and_left_behind() {
        let folder = tempfile::tempdir().unwrap();
        let settings =
            Settings { folder: Some(folder.path().to_owned()), ..settings(&[("s", "{}")]) };
        let file = persist::path(folder.path(), "s");
        std::fs::write(&file, "nonsense").unwrap();
        let catalog = Catalog::new(settings);
        let changes = catalog.restore();
        let told = changes[0].1.disk.as_ref().unwrap();
        assert!(told.contains(&*file.to_string_lossy()), "{told}");
        assert!(catalog.replace_server("s", vec![tool("x", "")]).disk.is_none());
        assert_eq!(persist::read(folder.path(), "s").unwrap().unwrap().len(), 1);
    }

    #[tokio::test]
    async fn fr_a1_a_call_waits_for_the_first_set_and_no_longer() {
        let catalog = Arc::new(Catalog::new(settings(&[("s", "{}"), ("mute", "{}")])));
        let name = |name| ToolName::parse(name).unwrap();
        let now = Instant::now();
        let in_an_hour = now + std::time::Duration::from_secs(3600);
        assert!(catalog.wait_for(&name("nobody:x"), in_an_hour).await.is_none());
        assert!(catalog.wait_for(&name("mute:x"), now).await.is_none());
        let waiting = tokio::spawn({
            let catalog = Arc::clone(&catalog);
            async move { catalog.wait_for(&name("s:x"), in_an_hour).await }
        });
        tokio::task::yield_now().await;
        catalog.replace_server("s", vec![tool("x", "")]);
        assert!(waiting.await.unwrap().is_some());
        assert!(catalog.wait_for(&name("s:y"), in_an_hour).await.is_none());
    }
}
