//! Builds the next snapshot. Either a server's discovered set becomes tools (filters, capabilities, policies, schemas)
//! and replaces its previous set, or new settings are applied to the known tools.
//!
//! Unchanged tools, index segments and schemas are shared, so that a change costs only its new parts plus one pointer
//! for each other tool.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use super::change::{Change, Difference};
use super::compiling::{PendingSchema, awaited, same_raw};
use super::definition::DiscoveredTool;
use super::pins::{PinHistory, SharedPins};
use super::reviewing::{AffectedServer, IncomingSet, Reviews, judge, review};
use super::search::{Index, Lexicon, Segment};
use super::settings::{ServerSettings, Settings};
use super::snapshot::{DirectTool, KnownServer, Review, Snapshot, ToolSet};
use mcpproxy_policy::tool::{
    Capability, Exposure, Idempotence, Input, OutputSchema, Tool, ToolName, Trust,
};

/// The next snapshot and its follow-up work.
pub(super) struct Replaced {
    pub(super) next: Snapshot,
    /// Whether the tools changed.
    pub(super) differs: bool,
    /// Changes by server, in the order of the sets.
    pub(super) changes: Vec<(Arc<str>, Change)>,
    /// Deferred schemas, in the order of the sets.
    pub(super) late: Vec<PendingSchema>,
    /// Servers whose sets have to be written.
    pub(super) unsaved: Vec<Arc<str>>,
}

/// Builds the snapshot after `last`, in which each set replaces the previous set of its server, if the server is
/// configured. `ready` holds the sets' schemas, their reviews, and the rescanned servers. Slow schemas are deferred.
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
            // The server's set was discovered before the stored set was read from disk.
            continue;
        }
        let discovered = discovered.iter().zip(ready.into_iter().zip(reviews));
        let (tools, change) = next_set(server, of_server, settings, discovered, last, &mut late);
        let differs = change.tools_differ() || again.contains(server);
        let server = Arc::clone(server);
        taken.push(IncomingSet { server, tools, change, differs, pins: PinHistory::New });
    }
    let touched = judge((&settings.review, shared), last, &mut taken, origin);
    let (mut fresh, mut changes) = (Vec::new(), Vec::new());
    let mut differ = BTreeSet::new();
    for IncomingSet { server, mut tools, change, differs, pins } in taken {
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
    for AffectedServer { server, tools, pins } in touched {
        if let Some(known) = servers.get_mut(&server) {
            known.pins = pins;
        }
        let names: BTreeSet<_> = tools.iter().map(|direct| direct.tool.name.tool.clone()).collect();
        let of_server = last.direct.iter().filter(|direct| direct.tool.name.server == server);
        let kept = of_server.filter(|direct| !names.contains(&direct.tool.name.tool));
        fresh.extend(kept.cloned());
        fresh.extend(tools);
        differ.insert(server);
        // Pins are written together with sets.
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

/// Assembles a snapshot; `index` covers the tools in name order.
pub(super) fn assembled(
    mut direct: Vec<DirectTool>,
    servers: BTreeMap<Arc<str>, KnownServer>,
    index: Arc<Index>,
) -> Snapshot {
    let mut tools: Vec<_> = direct.iter().map(|direct| Arc::clone(&direct.tool)).collect();
    tools.sort_by(|a, b| a.name.cmp(&b.name));
    direct.sort_by(|a, b| (&a.listed.key, &a.tool.name).cmp(&(&b.listed.key, &b.tool.name)));
    // Equal keys are a hash collision of exposed names.
    direct.dedup_by(|a, b| a.listed.key == b.listed.key);
    Snapshot { tools: tools.into(), direct: direct.into(), servers, index }
}

/// Builds the tools of one server, with unchanged ones shared, and the changes.
fn next_set<'a>(
    server: &Arc<str>,
    settings: &ServerSettings,
    all: &Settings,
    discovered: impl Iterator<Item = (&'a DiscoveredTool, (OutputSchema, Option<Arc<Review>>))>,
    last: &Snapshot,
    late: &mut Vec<PendingSchema>,
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
        let listings = Arc::new(found.listings(&listed));
        // An unusable output schema is already reported in `unusable`.
        change.noted.extend(listings.note(&found.name, &OutputSchema::Absent));
        let (listed, tool, beside) = (Arc::new(listed), Arc::new(tool), Arc::default());
        tools.push(DirectTool { listed, listings, tool, review, beside });
    }
    let removed = last.tools_of(server).iter().filter(|tool| !seen.contains(&*tool.name.tool));
    change.removed.extend(removed.map(|tool| Arc::clone(&tool.name.tool)));
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
        is_app_only: found.is_app_only,
        trust: Trust::Given,
        signature: OnceLock::new(),
    }
}

/// Result of applying new settings.
#[derive(Debug, Default)]
pub struct Reconfigured {
    /// Servers to be discovered again.
    pub ask_again: Vec<Arc<str>>,
    /// Changes from stored sets of new servers.
    pub known: Vec<(Arc<str>, Change)>,
}

/// Returns the next snapshot, whether its tools changed, and deferred schemas.
pub(super) fn reconfigured(
    lexicon: &Arc<super::search::Lexicon>,
    last: &Snapshot,
    before: &Settings,
    next: &Settings,
) -> (Snapshot, bool, Vec<PendingSchema>) {
    let (mut direct, mut late) = (Vec::with_capacity(last.direct.len()), Vec::new());
    let (mut lost, mut differs) = (BTreeSet::new(), false);
    for one in last.direct.iter() {
        let server = &one.tool.name.server;
        let Some(settings) = next.servers.get(server) else {
            differs = true;
            continue;
        };
        if !settings.offers(&one.tool.name.tool) {
            lost.insert(Arc::clone(server));
            differs = true;
            continue;
        }
        let same = before.servers.get(server) == Some(settings)
            && (before.policy, before.input, before.result_limit, before.schemas)
                == (next.policy, next.input, next.result_limit, next.schemas);
        if same {
            direct.push(one.clone());
            continue;
        }
        let tool = with_settings(&one.tool, settings, next, before.schemas != next.schemas);
        late.extend(awaited(&tool, false));
        differs |= tool.capability != one.tool.capability;
        direct.push(DirectTool { tool: Arc::new(tool), ..one.clone() });
    }
    let mut servers = BTreeMap::new();
    for server in next.servers.keys() {
        let known = last.servers.get(server).cloned().unwrap_or_else(KnownServer::awaited);
        let known = match lost.contains(server) {
            true => {
                let of_server = direct.iter().filter(|one| one.tool.name.server == *server);
                let mut tools: Vec<_> = of_server.map(|one| &one.tool).collect();
                tools.sort_by(|a, b| a.name.cmp(&b.name));
                let words = Arc::new(Segment::of(lexicon, tools));
                KnownServer { words, ..known }
            }
            false => known,
        };
        servers.insert(Arc::clone(server), known);
    }
    let words = servers.values().map(|known| Arc::clone(&known.words));
    let index = Arc::new(Index::of(Arc::clone(lexicon), words));
    (assembled(direct, servers, index), differs, late)
}

/// Returns the tool under new settings.
fn with_settings(
    tool: &Tool,
    server: &ServerSettings,
    all: &Settings,
    other_schemas: bool,
) -> Tool {
    let name = &tool.name.tool;
    let (capability, side_effect_by) =
        Capability::effective(tool.annotations, &server.capabilities, name);
    let schema = match (&tool.output_schema, other_schemas) {
        (Some(_), true) => OutputSchema::Compiling(Arc::default()),
        (Some(_), false) | (None, _) => tool.schema.now().clone(),
    };
    let input = server.input(all.input, name);
    Tool {
        capability,
        side_effect_by,
        exposure: Exposure::effective(tool.annotations, &server.capabilities, name),
        policy: server.policy(all.policy, name),
        input: match other_schemas {
            true => Input::new(input),
            false => tool.input.under(input),
        },
        result_limit: server.result_limit.of(all.result_limit, name).limits(),
        schema,
        ..tool.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Catalog;
    use crate::DiscoveredTool;
    use crate::grade::ScanMode;
    use mcpproxy_policy::tool::ToolName;
    use mcpproxy_schema::output::{Mode, Policy};

    fn settings(servers: &[(&str, &str)]) -> Settings {
        let servers = servers.iter().map(|(name, json)| {
            (Arc::from(*name), serde_json::from_str::<ServerSettings>(json).unwrap())
        });
        Settings { servers: servers.collect(), ..Settings::default() }
    }

    fn set(names: &[&str]) -> Vec<DiscoveredTool> {
        let tool = |name: &&str| {
            let json = format!(
                r#"{{"name":"{name}","description":"words of {name}","inputSchema":{{}},"outputSchema":{{"type":"object"}}}}"#
            );
            DiscoveredTool::parse(serde_json::from_str(&json).unwrap()).unwrap()
        };
        names.iter().map(tool).collect()
    }

    fn names(catalog: &Catalog) -> Vec<String> {
        catalog.load().tools().iter().map(|tool| tool.name.to_string()).collect()
    }

    fn found(catalog: &Catalog, query: &str) -> Vec<String> {
        let found = catalog.load().search(query, 10);
        found.into_iter().map(|(tool, _)| tool.name.to_string()).collect()
    }

    #[test]
    fn removed_tools_vanish_and_returning_tools_need_discovery() {
        let catalog = Catalog::new(settings(&[("a", "{}"), ("b", "{}")]));
        catalog.replace_server("a", set(&["one", "two"]));
        catalog.replace_server("b", set(&["three"]));
        assert_eq!(names(&catalog), ["a:one", "a:two", "b:three"]);
        let narrowed = settings(&[("a", r#"{"disabled_tools": ["one"]}"#), ("b", "{}")]);
        let asked = catalog.reconfigure(narrowed).ask_again;
        assert_eq!(asked, ["a".into()]);
        assert_eq!(names(&catalog), ["a:two", "b:three"]);
        assert_eq!(found(&catalog, "one"), [""; 0]);
        assert_eq!(found(&catalog, "three"), ["b:three"], "the index has the tools' new positions");
        let asked = catalog.reconfigure(settings(&[("a", "{}"), ("b", "{}")])).ask_again;
        assert_eq!(asked, ["a".into()]);
        catalog.replace_server("a", set(&["one", "two"]));
        assert_eq!(names(&catalog), ["a:one", "a:two", "b:three"]);
    }

    #[test]
    fn removed_server_loses_its_tools_and_added_one_is_awaited() {
        let catalog = Catalog::new(settings(&[("a", "{}"), ("b", "{}")]));
        catalog.replace_server("a", set(&["one"]));
        catalog.replace_server("b", set(&["two"]));
        let changed = catalog.reconfigure(settings(&[("b", "{}"), ("c", "{}")]));
        assert!(changed.ask_again.is_empty());
        assert_eq!(names(&catalog), ["b:two"]);
        assert_eq!(found(&catalog, "two"), ["b:two"]);
        assert!(catalog.load().set_of("a").is_none() && catalog.load().set_of("c").is_some());
        assert!(
            catalog.replace_server("a", set(&["one"])).is_empty(),
            "the server was already removed"
        );
        catalog.replace_server("c", set(&["three"]));
        assert_eq!(names(&catalog), ["b:two", "c:three"]);
    }

    #[test]
    fn operator_overrides_apply_without_discovery() {
        let catalog = Catalog::new(settings(&[("a", "{}")]));
        catalog.replace_server("a", set(&["one"]));
        let tool = || Arc::clone(catalog.load().tool(&ToolName::parse("a:one").unwrap()).unwrap());
        let first = tool();
        let mut next = settings(&[(
            "a",
            r#"{"capabilities": {"one": {"side_effect": "destructive"}}, "output_validation": {"max_depth": 7}}"#,
        )]);
        next.policy = Policy { mode: Mode::Strict, ..Policy::default() };
        next.schemas.assert_formats = true;
        assert!(catalog.reconfigure(next.clone()).ask_again.is_empty());
        let now = tool();
        assert_ne!(now.capability, first.capability);
        assert_eq!((now.policy.mode, now.policy.max_depth), (Mode::Strict, 7));
        let (OutputSchema::Compiled(old), OutputSchema::Compiled(new)) =
            (first.schema.now(), now.schema.now())
        else {
            panic!("{now:?}")
        };
        assert!(!Arc::ptr_eq(old, new), "the schema is compiled again under the new settings");
        // Nothing changed, so nothing is rebuilt.
        catalog.reconfigure(next.clone());
        assert!(Arc::ptr_eq(&now, &tool()));
        // An unchanged definition keeps its operator overrides.
        catalog.replace_server("a", set(&["one"]));
        assert_eq!(tool().policy.max_depth, 7);
    }

    #[test]
    fn changed_scan_settings_rescan_definitions() {
        let mut off = settings(&[("a", "{}")]);
        off.review.scan = ScanMode::Off;
        let catalog = Catalog::new(off.clone());
        let hidden = || {
            let json = "{\"name\":\"one\",\"description\":\"a\u{e0041}\u{e0042}\u{e0043}b\",\"inputSchema\":{}}";
            vec![DiscoveredTool::parse(serde_json::from_str(json).unwrap()).unwrap()]
        };
        catalog.replace_server("a", hidden());
        let name = ToolName::parse("a:one").unwrap();
        let findings =
            || catalog.load().reviewed(&name).map_or(0, |reviewed| reviewed.findings().count());
        assert_eq!(findings(), 0);
        let warn = Settings { review: Default::default(), ..off };
        assert_eq!(catalog.reconfigure(warn).ask_again, ["a".into()]);
        let change = catalog.replace_server("a", hidden());
        assert!(findings() > 0 && !change.found.is_empty(), "{change:?}");
        assert!(change.changed.is_empty(), "the definition is unchanged");
    }
}
