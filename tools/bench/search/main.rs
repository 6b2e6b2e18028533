//! Measures the search over the golden set: `cargo run --example bench-search [-- OPTION…]`, from the project's folder.
//!
//! `--held-out` shows the questions kept aside instead of the others, `--each` every question that missed its tool.
//! Figures and how to read them: the `README.md` here. Nothing is timed: `benches/search.rs` does that.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::sync::Arc;

use mcpproxy::catalog::{Catalog, DiscoveredTool, ServerSettings, Settings, Snapshot};

use self::golden::{Golden, GoldenTool, Part};

mod golden;
mod measure;
mod report;

const FOLDER: &str = "tools/bench/search";

fn main() -> ExitCode {
    let options: BTreeSet<String> = std::env::args().skip(1).collect();
    let part = if options.contains("--held-out") { Part::HeldOut } else { Part::Tuned };
    let golden = match Golden::read(FOLDER) {
        Ok(golden) => golden,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let report = report::report(&golden, part, options.contains("--each"), |tools| {
        let snapshot = snapshot(tools);
        move |query: &str| names(&snapshot, query)
    });
    println!("{report}");
    ExitCode::SUCCESS
}

fn snapshot(tools: &[&GoldenTool]) -> Arc<Snapshot> {
    let mut sets: BTreeMap<&str, Vec<DiscoveredTool>> = BTreeMap::new();
    for tool in tools {
        match DiscoveredTool::parse(&tool.json) {
            Ok(found) => sets.entry(&tool.server).or_default().push(found),
            Err(error) => eprintln!("{}: {error}", tool.name),
        }
    }
    let servers = sets.keys().map(|name| (Arc::from(*name), ServerSettings::default()));
    let catalog = Catalog::new(Settings { servers: servers.collect(), ..Settings::default() });
    for (server, set) in sets {
        catalog.replace_server(server, set);
    }
    catalog.load()
}

fn names(snapshot: &Snapshot, query: &str) -> Vec<String> {
    let found = snapshot.search(query, usize::MAX);
    found.iter().map(|(tool, _)| tool.name.to_string()).collect()
}
