//! Another config for the tools there are: what the operator says of them changes at once, without asking their servers.
//!
//! A tool that is not on offer any more goes, one that stays is built anew of its own words, and a server that has gone
//! takes its tools with it. Tools that come back, and definitions that are to be looked through in another way, need the
//! server's whole list: its servers are to be asked for it again, and say so here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Catalog;
use super::change::Change;
use super::compiling::{Late, awaited};
use super::replacing::assembled;
use super::search::{Index, Segment};
use super::settings::{ServerSettings, Settings};
use super::snapshot::{DirectTool, KnownServer, Snapshot};
use crate::tool::{Capability, Exposure, Input, OutputSchema, Tool};

/// What another config leads to.
#[derive(Debug, Default)]
pub struct Reconfigured {
    /// Servers whose lists are to be asked for again.
    pub ask_again: Vec<Arc<str>>,
    /// What was known from earlier of servers that are new.
    pub known: Vec<(Arc<str>, Change)>,
}

impl Catalog {
    /// Puts other settings in force; their folder is that of the start. Blocks on the disk, and until every schema is
    /// compiled that is to be compiled anew; all else is in force before that. To be called by one task alone.
    pub fn reconfigure(&self, next: Settings) -> Reconfigured {
        let before = self.settings.load_full();
        let next = Arc::new(Settings { folder: before.folder.clone(), ..next });
        let late = {
            let _writing = self.writing.lock();
            let last = self.load();
            let (snapshot, differs, late) = retuned(&self.lexicon, &last, &before, &next);
            self.compiler.set(next.schemas);
            self.settings.store(Arc::clone(&next));
            self.published.swap(snapshot, differs);
            late
        };
        let gone: Vec<_> =
            before.servers.keys().filter(|server| !next.servers.contains_key(*server)).collect();
        if !gone.is_empty() {
            let (mut remembered, mut pins) = (self.remembered.lock(), self.pins_on_disk.lock());
            for server in gone {
                remembered.remove(server);
                pins.remove(server);
            }
        }
        let fresh: Vec<_> = next.servers.keys().cloned().collect();
        let (mut known, more) = self.remember(&fresh);
        let late = late.into_iter().chain(more).collect();
        let ask_again = self.to_ask(&before, &next);
        self.compile(late, &mut known);
        Reconfigured { ask_again, known }
    }

    /// The servers whose lists say more now than what was kept of them.
    fn to_ask(&self, before: &Settings, next: &Settings) -> Vec<Arc<str>> {
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

/// The next snapshot, whether its tools are others than before, and what is to be compiled.
fn retuned(
    lexicon: &Arc<super::search::Lexicon>,
    last: &Snapshot,
    before: &Settings,
    next: &Settings,
) -> (Snapshot, bool, Vec<Late>) {
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
        let tool = tuned(&one.tool, settings, next, before.schemas != next.schemas);
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

/// The same tool under other settings.
fn tuned(tool: &Tool, server: &ServerSettings, all: &Settings, other_schemas: bool) -> Tool {
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
    use crate::catalog::DiscoveredTool;
    use crate::catalog::on_change::ScanMode;
    use crate::output::{Mode, Policy};
    use crate::tool::ToolName;

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
    fn what_is_not_on_offer_any_more_goes_at_once_and_what_comes_back_is_asked_for() {
        let catalog = Catalog::new(settings(&[("a", "{}"), ("b", "{}")]));
        catalog.replace_server("a", set(&["one", "two"]));
        catalog.replace_server("b", set(&["three"]));
        assert_eq!(names(&catalog), ["a:one", "a:two", "b:three"]);
        let narrowed = settings(&[("a", r#"{"disabled_tools": ["one"]}"#), ("b", "{}")]);
        let asked = catalog.reconfigure(narrowed).ask_again;
        assert_eq!(asked, ["a".into()]);
        assert_eq!(names(&catalog), ["a:two", "b:three"]);
        assert_eq!(found(&catalog, "one"), [""; 0]);
        assert_eq!(found(&catalog, "three"), ["b:three"], "the index has the tools' places");
        let asked = catalog.reconfigure(settings(&[("a", "{}"), ("b", "{}")])).ask_again;
        assert_eq!(asked, ["a".into()]);
        catalog.replace_server("a", set(&["one", "two"]));
        assert_eq!(names(&catalog), ["a:one", "a:two", "b:three"]);
    }

    #[test]
    fn a_server_that_goes_takes_its_tools_and_one_that_comes_is_awaited() {
        let catalog = Catalog::new(settings(&[("a", "{}"), ("b", "{}")]));
        catalog.replace_server("a", set(&["one"]));
        catalog.replace_server("b", set(&["two"]));
        let changed = catalog.reconfigure(settings(&[("b", "{}"), ("c", "{}")]));
        assert!(changed.ask_again.is_empty());
        assert_eq!(names(&catalog), ["b:two"]);
        assert_eq!(found(&catalog, "two"), ["b:two"]);
        assert!(catalog.load().set_of("a").is_none() && catalog.load().set_of("c").is_some());
        assert!(catalog.replace_server("a", set(&["one"])).is_empty(), "it comes too late");
        catalog.replace_server("c", set(&["three"]));
        assert_eq!(names(&catalog), ["b:two", "c:three"]);
    }

    #[test]
    fn what_the_operator_says_of_a_tool_counts_without_asking_its_server() {
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
        assert!(!Arc::ptr_eq(old, new), "it is compiled under the other settings");
        // Nothing is another: nothing is built anew.
        catalog.reconfigure(next.clone());
        assert!(Arc::ptr_eq(&now, &tool()));
        // The server says the same as before: it keeps what the operator says.
        catalog.replace_server("a", set(&["one"]));
        assert_eq!(tool().policy.max_depth, 7);
    }

    #[test]
    fn definitions_that_are_to_be_scanned_are_looked_through_again() {
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
        assert!(change.changed.is_empty(), "its definition is the same");
    }
}
