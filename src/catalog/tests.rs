//! What replacing a set does, and what is there after a restart.

use super::*;
use crate::catalog::listing::Start;
use crate::output::Mode;
use crate::tool::{OutputSchema, SideEffect};

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
    let change = catalog.replace_server("b", vec![tool("x", ""), tool("w", ""), tool("x", more)]);
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

    let second = Catalog::new(with_folder(&[("s", r#"{"disabled_tools":["y"]}"#), ("new", "{}")]));
    let changes = second.restore();
    assert_eq!(changes.len(), 1);
    assert_eq!(names(&second.load()), ["s:x"], "the operator's words are today's");
    let schema = lookup(&second, "s:x").unwrap().output_schema.clone().unwrap();
    assert_eq!(schema.get(), r#"{"type": "object"}"#);
    let sets: Vec<_> = second.load().servers().map(|(name, set)| (name.to_string(), set)).collect();
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
    assert!(unusable(vec![tool("x", &described), tool("y", good)]).is_empty(), "the same schema");
    assert_eq!(unusable(vec![tool("x", bad), tool("y", bad)]), ["s:y"]);
    let worse = r#","outputSchema":{"type":8}"#;
    assert_eq!(unusable(vec![tool("x", worse), tool("y", bad)]), ["s:x"], "another schema");
}

#[test]
fn fr_a1_a_server_that_has_answered_is_not_set_back() {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings { folder: Some(folder.path().to_owned()), ..settings(&[("s", "{}")]) };
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
    let settings = Settings { folder: Some(folder.path().to_owned()), ..settings(&[("s", "{}")]) };
    let file = persist::path(folder.path(), "s");
    std::fs::write(&file, "nonsense").unwrap();
    let catalog = Catalog::new(settings);
    let changes = catalog.restore();
    let told = changes[0].1.disk.as_ref().unwrap();
    assert!(told.contains(&*file.to_string_lossy()), "{told}");
    assert!(catalog.replace_server("s", vec![tool("x", "")]).disk.is_none());
    assert_eq!(persist::read(folder.path(), "s").unwrap().unwrap().tools.len(), 1);
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
