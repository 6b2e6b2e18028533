//! Measures the search over the golden set: `cargo run --example bench-search [-- OPTION…]`, from the project's folder.
//!
//! `--held-out` reports the held-out questions instead of the others, `--each` every question for which the right tool
//! was not first. `--embeddings URL` requests the vectors of tools and questions from that endpoint, like
//! `search.embeddings`. The `README.md` in this folder has the results and explains them. Nothing is timed:
//! `benches/search.rs` does that.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;

use mcpproxy_catalog::{Catalog, DiscoveredTool, ServerSettings, Settings, Snapshot};
use mcpproxy_policy::tool::{Tool, Trust};

use self::golden::{Golden, GoldenTool, Part};
use self::meaning::Meanings;

mod golden;
mod meaning;
mod measure;
mod report;

const FOLDER: &str = "tools/bench/search";

fn main() -> ExitCode {
    match measured() {
        Ok(report) => {
            println!("{report}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn measured() -> Result<String, String> {
    let (mut part, mut each, mut url) = (Part::Tuned, false, None);
    let mut options = std::env::args().skip(1);
    while let Some(option) = options.next() {
        match &*option {
            "--held-out" => part = Part::HeldOut,
            "--each" => each = true,
            "--embeddings" => url = Some(options.next().ok_or("--embeddings needs a URL")?),
            _ => return Err(format!("unknown option {option}")),
        }
    }
    let golden = Golden::read(FOLDER)?;
    let all: Vec<_> = golden.tools.iter().collect();
    let texts = golden.questions.iter().filter(|question| question.part == part);
    let questions: Vec<&str> = texts.map(|question| &*question.text).collect();
    let meanings = match url {
        Some(url) => Some(Meanings::ask(&url, snapshot(&all).tools(), &questions)?),
        None => None,
    };
    Ok(report::report(&golden, part, each, |tools| {
        let snapshot = snapshot(tools);
        let vectors = meanings.as_ref().map(|meanings| meanings.of_tools(snapshot.tools()));
        let meanings = meanings.as_ref();
        move |query: &str| {
            let asked = meanings.zip(vectors.clone());
            let meaning = asked.and_then(|(meanings, vectors)| meanings.asked(query, vectors));
            let given = |tool: &Arc<Tool>| tool.trust == Trust::Given;
            let found = snapshot.search_for(query, usize::MAX, meaning.as_ref(), given).tools;
            found.iter().map(|(tool, _)| tool.name.to_string()).collect()
        }
    }))
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
