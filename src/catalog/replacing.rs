//! How the next snapshot comes from the last: a server's discovered set becomes tools (filters,
//! capabilities, policies, schemas), and takes the place of the set before.
//!
//! Tools, words and schemas that did not change are taken over, so that a change costs what is new
//! of it, and one pointer for each other tool.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use super::change::Change;
use super::compiling::{Late, awaited, same_raw};
use super::difference::Difference;
use super::discovered::DiscoveredTool;
use super::pins::PinHistory;
use super::reviewing::{Reviews, TakenSet, Touched, judge, review};
use super::search::{Index, Lexicon, Segment};
use super::settings::{ServerSettings, Settings};
use super::shared_pins::SharedPins;
use super::snapshot::{DirectTool, KnownServer, Review, Snapshot, ToolSet};
use crate::tool::{Capability, Exposure, Idempotence, Input, OutputSchema, Tool, ToolName, Trust};

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
/// `ready` are the sets' schemas, what is to be known of their definitions, and the
/// servers whose definitions were looked through again. What takes long to compile is left for later.
pub(super) fn replace(
    (settings, shared): (&Settings, &SharedPins),
    lexicon: &Arc<Lexicon>,
    last: &Snapshot,
    sets: &[(&str, &[DiscoveredTool])],
    (ready, reviews, again): (Vec<Vec<OutputSchema>>, Reviews, BTreeSet<Arc<str>>),
    origin: ToolSet,
) -> Replaced {
    let mut late = Vec::new();
    let mut unsaved = Vec::new();
    let mut servers = last.servers.clone();
    let mut taken = Vec::new();
    for (((server, discovered), ready), reviews) in sets.iter().zip(ready).zip(reviews) {
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
        let discovered = discovered.iter().zip(ready.into_iter().zip(reviews));
        let (tools, change) = next_set(server, of_server, settings, discovered, last, &mut late);
        let differs = change.tools_differ() || again.contains(server);
        let server = Arc::clone(server);
        taken.push(TakenSet { server, tools, change, differs, pins: PinHistory::New });
    }
    let touched = judge((&settings.review, shared), last, &mut taken, origin);
    let (mut fresh, mut changes) = (Vec::new(), Vec::new());
    let mut differ = BTreeSet::new();
    for TakenSet { server, mut tools, change, differs, pins } in taken {
        let before = servers.get(&server);
        let known = before.filter(|_| !change.tools_differ());
        let words = known.map(|known| Arc::clone(&known.words)).unwrap_or_else(|| {
            tools.sort_by(|a, b| a.tool.name.cmp(&b.tool.name));
            Arc::new(Segment::of(lexicon, tools.iter().map(|direct| &direct.tool)))
        });
        if differs {
            differ.insert(Arc::clone(&server));
            fresh.extend(tools);
        }
        let old = before.and_then(|known| known.pins.pins());
        let same_pins = old.zip(pins.pins()).is_some_and(|(old, new)| Arc::ptr_eq(old, new));
        let written = before
            .is_some_and(|known| known.set != ToolSet::Awaited && !known.unpinned && same_pins);
        let unpinned = before.is_some_and(|known| known.unpinned) && origin == ToolSet::Restored;
        if origin == ToolSet::Discovered && (change.tools_differ() || !written) {
            unsaved.push(Arc::clone(&server));
        }
        servers.insert(Arc::clone(&server), KnownServer { set: origin, words, pins, unpinned });
        changes.push((server, change));
    }
    for Touched { server, tools, pins } in touched {
        if let Some(known) = servers.get_mut(&server) {
            known.pins = pins;
        }
        let names: BTreeSet<_> = tools.iter().map(|direct| direct.tool.name.tool.clone()).collect();
        let of_server = last.direct.iter().filter(|direct| direct.tool.name.server == server);
        let kept = of_server.filter(|direct| !names.contains(&direct.tool.name.tool));
        fresh.extend(kept.cloned());
        fresh.extend(tools);
        differ.insert(server);
        // They are written with the sets.
        unsaved.extend(
            changes
                .first()
                .map(|(server, _)| Arc::clone(server))
                .filter(|server| origin == ToolSet::Discovered && !unsaved.contains(server)),
        );
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
            let direct = kept.cloned().chain(fresh).collect();
            let words = servers.values().map(|known| Arc::clone(&known.words));
            let index = Arc::new(Index::of(Arc::clone(lexicon), words));
            assembled(direct, servers, index)
        }
    };
    Replaced { next, differs: !differ.is_empty(), changes, late, unsaved }
}

/// A snapshot of these tools, whose words `index` has in the order of their names.
pub(super) fn assembled(
    mut direct: Vec<DirectTool>,
    servers: BTreeMap<Arc<str>, KnownServer>,
    index: Arc<Index>,
) -> Snapshot {
    let mut tools: Vec<_> = direct.iter().map(|direct| Arc::clone(&direct.tool)).collect();
    tools.sort_by(|a, b| a.name.cmp(&b.name));
    direct.sort_by(|a, b| (&a.listed.key, &a.tool.name).cmp(&(&b.listed.key, &b.tool.name)));
    // Two hashes that are alike, which is not to be expected.
    direct.dedup_by(|a, b| a.listed.key == b.listed.key);
    Snapshot { tools: tools.into(), direct: direct.into(), servers, index }
}

/// The tools of one server, those that did not change as they were, and what did change.
fn next_set<'a>(
    server: &Arc<str>,
    settings: &ServerSettings,
    all: &Settings,
    discovered: impl Iterator<Item = (&'a DiscoveredTool, (OutputSchema, Option<Arc<Review>>))>,
    last: &Snapshot,
    late: &mut Vec<Late>,
) -> (Vec<DirectTool>, Change) {
    let mut change = Change::default();
    let mut seen = BTreeSet::new();
    let mut tools = Vec::new();
    for (found, (schema, reviewed)) in discovered.filter(|(found, _)| settings.offers(&found.name))
    {
        if !seen.insert(&*found.name) {
            change.duplicates.push(found.name.clone());
            continue;
        }
        let listed = found.listed(server);
        let same = last.find_direct(&listed.key).filter(|direct| *direct.listed == listed);
        if let Some(direct) = same {
            late.extend(awaited(&direct.tool, false));
            let review = reviewed.unwrap_or_else(|| Arc::clone(&direct.review));
            tools.push(DirectTool { review, ..direct.clone() });
            continue;
        }
        let mut tool = build(server, settings, all, found, schema);
        let before = last.tool(&tool.name);
        if let Some(before) = before
            && before.input_schema.get() == tool.input_schema.get()
        {
            tool.input = before.input.under(tool.input.policy);
        }
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
        let review = reviewed.unwrap_or_else(|| Arc::new(review(&all.review, found, &listed)));
        let (listed, tool, beside) = (Arc::new(listed), Arc::new(tool), Arc::default());
        tools.push(DirectTool { listed, tool, review, beside });
    }
    let gone = last.tools_of(server).iter().filter(|tool| !seen.contains(&*tool.name.tool));
    change.removed.extend(gone.map(|tool| Arc::clone(&tool.name.tool)));
    (tools, change)
}

fn build(
    server: &Arc<str>,
    settings: &ServerSettings,
    all: &Settings,
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
        idempotence: Idempotence::effective(found.annotations, &settings.capabilities, &found.name),
        side_effect_by,
        exposure: Exposure::effective(found.annotations, &settings.capabilities, &found.name),
        schema,
        policy: settings.policy(all.policy, &found.name),
        input: Input::new(settings.input(all.input, &found.name)),
        result_limit: settings.result_limit.of(all.result_limit, &found.name).limits(),
        parameter_headers: found.parameter_headers.clone().ok().flatten(),
        trust: Trust::Given,
        signature: OnceLock::new(),
    }
}
