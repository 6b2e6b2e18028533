//! How the next snapshot comes from the last: a server's discovered set becomes tools (filters,
//! capabilities, policies, schemas), and takes the place of the set before.
//!
//! Tools, words and schemas that did not change are taken over, so that a change costs what is new
//! of it, and one pointer for each other tool. Blocks: whose thread it is, [`super::arriving`] knows.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};

use serde_json::value::RawValue;

use super::compiling::{Late, awaited};
use super::{Catalog, Change, Direct, Known, Snapshot, ToolSet};
use crate::catalog::difference::Difference;
use crate::catalog::discovered::DiscoveredTool;
use crate::catalog::persist;
use crate::catalog::search::{Index, Segment};
use crate::catalog::settings::ServerSettings;
use crate::tool::{Capability, OutputSchema, Tool, ToolName};

impl Catalog {
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
        let (mut changes, late) = self.replace(&[(server, &tools)], ToolSet::Discovered);
        let Some((server, change)) = changes.first_mut() else { return Change::default() };
        if self.to_be_written(server) {
            change.disk = self.write(&[(Arc::clone(server), tools)]).pop().flatten();
        }
        self.compile(late, &mut changes);
        changes.pop().map(|(_, change)| change).unwrap_or_default()
    }

    /// True if the set of `server` that is known is not on disk, and should be.
    pub(super) fn to_be_written(&self, server: &str) -> bool {
        let unwritten = self.unwritten.lock().unwrap_or_else(PoisonError::into_inner);
        self.settings.folder.is_some() && unwritten.contains(server)
    }

    /// Writes sets to disk; for each why it is not there, if it is not. Blocks on the disk.
    pub(super) fn write(&self, sets: &[(Arc<str>, Vec<DiscoveredTool>)]) -> Vec<Option<String>> {
        let Some(folder) = &self.settings.folder else { return vec![None; sets.len()] };
        let written = persist::write_all(folder, sets);
        let mut unwritten = self.unwritten.lock().unwrap_or_else(PoisonError::into_inner);
        let outcomes = sets.iter().zip(written);
        let outcomes = outcomes.map(|((server, _), written)| match written {
            Ok(()) => {
                unwritten.remove(server);
                None
            }
            Err(error) => {
                let path = persist::path(folder, server);
                Some(format!("{} cannot be written: {error}", path.display()))
            }
        });
        outcomes.collect()
    }

    /// Makes the next snapshot: each set replaces that of its server, if that is configured. What
    /// takes long to compile is left for later.
    pub(super) fn replace(
        &self,
        sets: &[(&str, &[DiscoveredTool])],
        origin: ToolSet,
    ) -> (Vec<(Arc<str>, Change)>, Vec<Late>) {
        // Before others have to wait.
        let ready = self.ready(sets);
        let mut late = Vec::new();
        let _guard = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let last = self.load();
        let mut servers = last.servers.clone();
        let (mut fresh, mut changes) = (Vec::new(), Vec::new());
        let mut differ = BTreeSet::new();
        for ((server, discovered), ready) in sets.iter().zip(ready) {
            let Some((server, settings)) = self.settings.servers.get_key_value(*server) else {
                continue;
            };
            let before = servers.get(server);
            if origin == ToolSet::Restored
                && before.is_some_and(|known| known.set == ToolSet::Discovered)
            {
                // The server was faster than the disk.
                continue;
            }
            let discovered = discovered.iter().zip(ready);
            let (mut set, change) = self.next_set(server, settings, discovered, &last, &mut late);
            let known = before.filter(|_| !change.tools_differ());
            let words = known.map(|known| Arc::clone(&known.words)).unwrap_or_else(|| {
                set.sort_by(|a, b| a.tool.name.cmp(&b.tool.name));
                Arc::new(Segment::of(&self.lexicon, set.iter().map(|direct| &direct.tool)))
            });
            if change.tools_differ() {
                differ.insert(Arc::clone(server));
                fresh.extend(set);
            }
            if origin == ToolSet::Discovered
                && (change.tools_differ()
                    || before.is_none_or(|known| known.set == ToolSet::Awaited))
            {
                let mut unwritten = self.unwritten.lock().unwrap_or_else(PoisonError::into_inner);
                unwritten.insert(Arc::clone(server));
            }
            servers.insert(Arc::clone(server), Known { set: origin, words });
            changes.push((Arc::clone(server), change));
        }
        let next = match differ.is_empty() {
            true => Snapshot {
                tools: Arc::clone(&last.tools),
                direct: Arc::clone(&last.direct),
                index: Arc::clone(&last.index),
                servers,
            },
            false => {
                let kept = last.direct.iter();
                let kept = kept.filter(|direct| !differ.contains(&direct.tool.name.server));
                let mut direct: Vec<_> = kept.cloned().chain(fresh).collect();
                let mut tools: Vec<_> =
                    direct.iter().map(|direct| Arc::clone(&direct.tool)).collect();
                tools.sort_by(|a, b| a.name.cmp(&b.name));
                direct.sort_by(|a, b| {
                    (&a.listed.key, &a.tool.name).cmp(&(&b.listed.key, &b.tool.name))
                });
                // Two hashes that are alike, which is not to be expected.
                direct.dedup_by(|a, b| a.listed.key == b.listed.key);
                let words = servers.values().map(|known| Arc::clone(&known.words));
                let index = Arc::new(Index::of(Arc::clone(&self.lexicon), words));
                Snapshot { tools: tools.into(), direct: direct.into(), servers, index }
            }
        };
        self.current.store(Arc::new(next));
        self.swaps.send_replace(());
        if !differ.is_empty() {
            self.changed.notify_one();
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
            parameter_headers: found.parameter_headers.clone().ok().flatten(),
        }
    }
}

pub(super) fn same_raw(a: &Option<Box<RawValue>>, b: &Option<Box<RawValue>>) -> bool {
    a.as_deref().map(RawValue::get) == b.as_deref().map(RawValue::get)
}
