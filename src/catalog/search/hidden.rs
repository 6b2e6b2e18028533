//! Tools that are not shown to whoever asks: they are no answer, and decide nothing about the others.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;

use super::{AskedMeaning, ToolVectors, UnitVector};
use crate::catalog::{Catalog, DiscoveredTool, ServerSettings, Settings, Snapshot};
use crate::tool::Tool;

/// Server, name, description, and whether it is marked as destroying.
type Row = (&'static str, &'static str, &'static str, bool);

const OWN: [Row; 3] = [
    ("own", "delete_parcel", "Delete a parcel of a customer", true),
    ("own", "parcel_customer_history", "Parcel, customer, history: all of it is cleaned", true),
    ("own", "weigh", "How heavy something is that a customer sends", false),
];
const HIDDEN: [Row; 4] = [
    ("hid", "get_parcel", "Get a parcel of a customer: where it is, its state and history", false),
    ("hid", "get_parcel_list", "Show the parcels of a customer", false),
    ("hid", "get_parcel_customer_history", "Show the parcel customer history", false),
    ("hid", "parcel", "Parcel", false),
];

fn snapshot(rows: &[Row]) -> Arc<Snapshot> {
    let mut sets: BTreeMap<&str, Vec<DiscoveredTool>> = BTreeMap::new();
    for (server, name, description, destroys) in rows {
        let tool = json!({"name": name, "description": description, "inputSchema": {},
            "annotations": {"destructiveHint": destroys}});
        let raw = serde_json::value::to_raw_value(&tool).unwrap();
        sets.entry(server).or_default().push(DiscoveredTool::parse(&raw).unwrap());
    }
    let servers = sets.keys().map(|name| (Arc::from(*name), ServerSettings::default()));
    let catalog = Catalog::new(Settings { servers: servers.collect(), ..Settings::default() });
    for (server, set) in sets {
        catalog.replace_server(server, set);
    }
    catalog.load()
}

/// That nothing is near to a query, which is known.
fn nothing_near(snapshot: &Snapshot) -> AskedMeaning {
    let tools = snapshot.tools().iter().cloned().map(|tool| (tool, &[0.0, 1.0][..]));
    let query = Arc::new(UnitVector::of(vec![1.0, 0.0]).unwrap());
    AskedMeaning { query, tools: Arc::new(ToolVectors::of(tools)), least: 0.25 }
}

/// What is found of the server `own`, by words alone and fused with what nothing is near to.
fn own(snapshot: &Snapshot, query: &str) -> Vec<String> {
    let shown = |tool: &Arc<Tool>| *tool.name.server == *"own";
    let names = |meaning: Option<&AskedMeaning>| {
        let found = snapshot.search_for(query, 9, meaning, shown);
        assert_eq!(found.tools.len(), found.total);
        found.tools.iter().map(|(tool, _)| tool.name.tool.to_string()).collect::<Vec<_>>()
    };
    let by_words = names(None);
    assert_eq!(names(Some(&nothing_near(snapshot))), by_words, "{query}");
    by_words
}

#[test]
fn a_hidden_tool_lets_nothing_that_destroys_answer_who_wants_to_see() {
    let (all, alone) = (snapshot(&[&OWN[..], &HIDDEN].concat()), snapshot(&OWN));
    for query in [
        "show me the parcel",
        "where is my parcel",
        "show me the parcel customer history",
        "which parcel customer history is there",
        "show the parcel of a customer",
        "which parcels do I have",
    ] {
        let found = own(&all, query);
        assert_eq!(found, own(&alone, query), "{query}");
        assert!(found.first().is_none_or(|first| first == "weigh"), "{query}: {found:?}");
    }
}

#[test]
fn a_hidden_tool_that_the_query_is_called_keeps_no_other_back() {
    let (all, alone) = (snapshot(&[&OWN[..], &HIDDEN].concat()), snapshot(&OWN));
    for query in ["parcel", "get_parcel_customer_history", "parcels of a customer"] {
        let found = own(&all, query);
        assert_eq!(found, own(&alone, query), "{query}");
        assert!(!found.is_empty(), "{query}");
    }
}

#[test]
fn the_best_are_asked_about_first_and_each_once() {
    let others: Vec<String> = (0..2000).map(|at| format!("tool_{at:04}")).collect();
    let others: Vec<Row> = others
        .into_iter()
        .map(|name| -> Row {
            ("own", name.leak(), "Handles something that parcels are in.", false)
        })
        .collect();
    let snapshot = snapshot(&[&others[..], &OWN, &HIDDEN].concat());
    for (query, shown) in [("parcel", true), ("get_parcel", true), ("show me the parcel", false)] {
        let mut asked = Vec::new();
        let found = snapshot.search_for(query, 5, None, |tool| {
            asked.push(tool.name.to_string());
            shown || *tool.name.server != *"hid"
        });
        let best: Vec<_> = found.tools.iter().map(|(tool, _)| tool.name.to_string()).collect();
        let first: Vec<_> = asked.iter().filter(|it| best.contains(it)).cloned().collect();
        assert_eq!(first, best, "{query}");
        let most = found.total + HIDDEN.len() + OWN.len();
        assert!(asked.len() <= most, "{query}: {} of {most}", asked.len());
        asked.sort_unstable();
        let all = asked.len();
        asked.dedup();
        assert_eq!(asked.len(), all, "{query}: no tool twice");
    }
}
