//! How the next snapshot comes from the last: a server's discovered set becomes tools (filters,
//! capabilities, policies, schemas), and takes the place of the set before.
//!
//! Tools, words and schemas that did not change are taken over, so that a change costs what is new
//! of it, and one pointer for each other tool.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::change::Change;
use super::compiling::{Late, awaited, same_raw};
use super::difference::Difference;
use super::discovered::DiscoveredTool;
use super::search::{Index, Lexicon, Segment};
use super::settings::{ServerSettings, Settings};
use super::snapshot::{DirectTool, KnownServer, Snapshot, ToolSet};
use crate::output::Policy;
use crate::tool::{Capability, Exposure, OutputSchema, Tool, ToolName};

/// The next snapshot, and what is to be done about it.
pub(super) struct Replaced {
    pub(super) next: Snapshot,
    /// True if the tools are others than before.
    pub(super) differs: bool,
    /// What is another, by server, in the order of the sets.
    pub(super) changes: Vec<(Arc<str>, Change)>,
    /// What is still to be compiled, in the order of the sets.
    pub(super) late: Vec<Late>,
    /// Servers whose sets are to be written to disk.
    pub(super) unsaved: Vec<Arc<str>>,
}

/// Makes the next snapshot of `last`: each set replaces that of its server, if that is configured.
/// `ready` are the sets' schemas. What takes long to compile is left for later.
pub(super) fn replace(
    settings: &Settings,
    lexicon: &Arc<Lexicon>,
    last: &Snapshot,
    sets: &[(&str, &[DiscoveredTool])],
    ready: Vec<Vec<OutputSchema>>,
    origin: ToolSet,
) -> Replaced {
    let mut late = Vec::new();
    let mut unsaved = Vec::new();
    let mut servers = last.servers.clone();
    let (mut fresh, mut changes) = (Vec::new(), Vec::new());
    let mut differ = BTreeSet::new();
    for ((server, discovered), ready) in sets.iter().zip(ready) {
        let Some((server, of_server)) = settings.servers.get_key_value(*server) else {
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
        let policy = settings.policy;
        let (mut set, change) = next_set(server, of_server, policy, discovered, last, &mut late);
        let known = before.filter(|_| !change.tools_differ());
        let words = known.map(|known| Arc::clone(&known.words)).unwrap_or_else(|| {
            set.sort_by(|a, b| a.tool.name.cmp(&b.tool.name));
            Arc::new(Segment::of(lexicon, set.iter().map(|direct| &direct.tool)))
        });
        if change.tools_differ() {
            differ.insert(Arc::clone(server));
            fresh.extend(set);
        }
        if origin == ToolSet::Discovered
            && (change.tools_differ() || before.is_none_or(|known| known.set == ToolSet::Awaited))
        {
            unsaved.push(Arc::clone(server));
        }
        servers.insert(Arc::clone(server), KnownServer { set: origin, words });
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
            let mut tools: Vec<_> = direct.iter().map(|direct| Arc::clone(&direct.tool)).collect();
            tools.sort_by(|a, b| a.name.cmp(&b.name));
            direct
                .sort_by(|a, b| (&a.listed.key, &a.tool.name).cmp(&(&b.listed.key, &b.tool.name)));
            // Two hashes that are alike, which is not to be expected.
            direct.dedup_by(|a, b| a.listed.key == b.listed.key);
            let words = servers.values().map(|known| Arc::clone(&known.words));
            let index = Arc::new(Index::of(Arc::clone(lexicon), words));
            Snapshot { tools: tools.into(), direct: direct.into(), servers, index }
        }
    };
    Replaced { next, differs: !differ.is_empty(), changes, late, unsaved }
}

/// The tools of one server, those that did not change as they were, and what did change.
fn next_set<'a>(
    server: &Arc<str>,
    settings: &ServerSettings,
    policy: Policy,
    discovered: impl Iterator<Item = (&'a DiscoveredTool, OutputSchema)>,
    last: &Snapshot,
    late: &mut Vec<Late>,
) -> (Vec<DirectTool>, Change) {
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
        let tool = build(server, settings, policy, found, schema);
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
        tools.push(DirectTool { listed: Arc::new(listed), tool: Arc::new(tool) });
    }
    let gone = last.tools_of(server).iter().filter(|tool| !seen.contains(&*tool.name.tool));
    change.removed.extend(gone.map(|tool| Arc::clone(&tool.name.tool)));
    (tools, change)
}

fn build(
    server: &Arc<str>,
    settings: &ServerSettings,
    policy: Policy,
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
        exposure: Exposure::effective(found.annotations, &settings.capabilities, &found.name),
        schema,
        policy: settings.policy(policy, &found.name),
        parameter_headers: found.parameter_headers.clone().ok().flatten(),
    }
}
