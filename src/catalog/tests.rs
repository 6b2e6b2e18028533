//! Tests of set replacement and of restarts.

use std::task::{Context, Waker};

use super::definition::DefinitionDigest;
use super::listing::{ElementJson, PageElement, Start};
use super::pin_decisions::{ApprovalRefused, ApprovalTarget};
use super::pins::PinEvent;
use super::*;
use mcpproxy_policy::tool::{InputMode, OutputSchema, SideEffect, Trust};
use mcpproxy_protocol::mcp::revisions::ProtocolFamily;
use mcpproxy_schema::output::Mode;

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
fn replacing_a_tool_set_affects_only_its_server() {
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
fn every_tool_is_listed_under_its_exposed_name() {
    let catalog = Catalog::new(settings(&[("a", "{}"), ("a__b", "{}")]));
    catalog.replace_server("a", vec![tool("b__c", ""), tool("d", "")]);
    catalog.replace_server("a__b", vec![tool("c", "")]);
    let snapshot = catalog.load();
    let start = Start::default();
    let listed: Vec<_> = snapshot.listed(&start, ProtocolFamily::Legacy, |_| true).collect();
    assert_eq!(listed.len(), 3);
    assert!(listed.is_sorted_by_key(|listed| &listed.key));
    let found = |name: &str| snapshot.direct(name).map(|tool| tool.name.to_string());
    assert_eq!(found("a__b__c").as_deref(), Some("a:b__c"));
    assert_eq!(found(&exposed::name("a__b", "c")).as_deref(), Some("a__b:c"));
    assert_eq!(found("a__x"), None);
    let change =
        catalog.replace_server("a", vec![tool("b__c", ""), tool("d", r#","_meta":{"v":2}"#)]);
    assert_eq!(change.changed, ["d".into()], "the tool's listing in /mcp/all changed");
    catalog.replace_server("a", vec![]);
    assert!(catalog.load().direct("a__b__c").is_none());
}

#[test]
fn operator_overrides_apply_to_the_tool() {
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
fn fr_a1_sets_survive_a_restart() {
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
    assert!(second.restore().is_empty(), "stored tools do not count as a change");
    assert_eq!(names(&second.load()), ["s:x"], "the current overrides apply");
    let schema = lookup(&second, "s:x").unwrap().output_schema.clone().unwrap();
    assert_eq!(schema.get(), r#"{"type": "object"}"#);
    let sets: Vec<_> = second.load().servers().map(|(name, set)| (name.to_string(), set)).collect();
    assert_eq!(sets, [("new".into(), ToolSet::Awaited), ("s".into(), ToolSet::Restored)]);

    second.replace_server("s", vec![]);
    let third = Catalog::new(with_folder(&[("s", "{}")]));
    third.restore();
    assert!(third.load().tools().is_empty(), "an empty set is stored like any other");
    assert!(third.load().servers().any(|(_, set)| set == ToolSet::Restored));
}

#[test]
fn fr_a9_unusable_schema_is_reported_once() {
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
fn fr_a1_restored_set_does_not_replace_a_discovered_one() {
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
fn damaged_file_is_reported_and_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings { folder: Some(folder.path().to_owned()), ..settings(&[("s", "{}")]) };
    let file = persist::path(folder.path(), "s");
    std::fs::write(&file, "nonsense").unwrap();
    let catalog = Catalog::new(settings);
    let changes = catalog.restore();
    let message = changes[0].1.disk.as_ref().unwrap();
    assert!(message.contains(&*file.to_string_lossy()), "{message}");
    assert!(catalog.replace_server("s", vec![tool("x", "")]).disk.is_none());
    assert_eq!(persist::read(folder.path(), "s").unwrap().unwrap().tools.len(), 1);
}

#[tokio::test]
async fn fr_a1_change_by_a_dropped_caller_is_reported_by_the_next_caller_or_at_close() {
    let catalog = Arc::new(Catalog::new(settings(&[("s", "{}")])));
    let (server, name): (Arc<str>, _) = ("s".into(), ToolName::parse("s:x").unwrap());
    let in_an_hour = Instant::now() + std::time::Duration::from_secs(3600);
    let added = |change: &Change| change.added.iter().map(|it| it.to_string()).collect::<Vec<_>>();
    let abandon = |tools: &[&str]| {
        // Nothing is published before the caller is dropped.
        let _held = catalog.writing.lock();
        let tools = tools.iter().map(|name| tool(name, "")).collect();
        let mut taking = Box::pin(catalog.take_up(&server, tools));
        let polled = taking.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending(), "{polled:?}");
    };
    abandon(&["x"]);
    assert!(catalog.wait_for(&name, in_an_hour).await.is_some());
    let next = catalog.take_up(&server, vec![tool("x", "")]).await.unwrap();
    assert_eq!(added(&next), ["x"], "the next caller gets the changes of both sets");
    let next = catalog.take_up(&server, vec![tool("x", "")]).await.unwrap();
    assert!(next.is_empty(), "once: {next:?}");
    abandon(&["x", "y"]);
    let rest = catalog.close(in_an_hour).await;
    let rest: Vec<_> = rest.iter().map(|(server, change)| (&**server, added(change))).collect();
    assert_eq!(rest, [("s", vec!["y".to_owned()])]);
}

#[tokio::test]
async fn fr_a1_call_waits_for_the_first_set() {
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

const DESTROYS: &str = r#","annotations":{"destructiveHint":true}"#;
const HARMLESS: &str = r#","annotations":{"readOnlyHint":true}"#;

fn trust(catalog: &Catalog, name: &str) -> Trust {
    lookup(catalog, name).unwrap().trust
}

#[test]
fn discovery_before_restore_is_judged_by_stored_pins() {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings { folder: Some(folder.path().to_owned()), ..settings(&[("s", "{}")]) };
    Catalog::new(settings.clone()).replace_server("s", vec![tool("x", DESTROYS)]);
    let catalog = Catalog::new(settings.clone());
    // Nothing was restored yet.
    catalog.replace_server("s", vec![tool("x", HARMLESS)]);
    assert_eq!(trust(&catalog, "s:x"), Trust::Withheld);
    assert!(catalog.restore().is_empty());
    // The next start loads the stored set with its held definitions.
    let catalog = Catalog::new(settings.clone());
    catalog.restore();
    assert_eq!(trust(&catalog, "s:x"), Trust::Withheld);
    // The set is lost, but the pins are not.
    std::fs::remove_file(persist::path(folder.path(), "s")).unwrap();
    let catalog = Catalog::new(settings);
    catalog.replace_server("s", vec![tool("x", HARMLESS), tool("y", "")]);
    assert_eq!((trust(&catalog, "s:x"), trust(&catalog, "s:y")), (Trust::Withheld, Trust::Given));
}

#[test]
fn crash_between_pins_and_set_does_not_release_tools() {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings { folder: Some(folder.path().to_owned()), ..settings(&[("s", "{}")]) };
    let catalog = Catalog::new(settings.clone());
    catalog.replace_server("s", vec![tool("x", DESTROYS)]);
    let set = std::fs::read(persist::path(folder.path(), "s")).unwrap();
    catalog.replace_server("s", vec![tool("x", HARMLESS)]);
    std::fs::write(persist::path(folder.path(), "s"), set).unwrap();
    let catalog = Catalog::new(settings);
    catalog.restore();
    assert_eq!(trust(&catalog, "s:x"), Trust::Given, "the older definition is the accepted one");
    catalog.replace_server("s", vec![tool("x", HARMLESS)]);
    assert_eq!(trust(&catalog, "s:x"), Trust::Withheld);
}

#[test]
fn stored_set_without_pins_is_pinned_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let mut settings =
        Settings { folder: Some(folder.path().to_owned()), ..settings(&[("s", "{}")]) };
    settings.review.on_new_server = grade::ChangeAction::Quarantine;
    let file = persist::path(folder.path(), "s");
    let first = Catalog::new(Settings { review: Default::default(), ..settings.clone() });
    first.replace_server("s", vec![tool("x", DESTROYS)]);
    let text = std::fs::read_to_string(&file).unwrap().replace(r#","pinned":true"#, "");
    std::fs::write(&file, text).unwrap();
    let pins = pin_file::path(folder.path(), "s");
    let copy = mcpproxy_runtime::os::state_file::copy_path(&pins);
    std::fs::remove_file(&pins).unwrap();
    std::fs::remove_file(&copy).unwrap();
    let catalog = Catalog::new(settings.clone());
    let changes = catalog.restore();
    assert!(changes.iter().all(|(_, change)| change.disk.is_none()), "{changes:?}");
    assert_eq!(trust(&catalog, "s:x"), Trust::Given);
    catalog.replace_server("s", vec![tool("x", DESTROYS)]);
    assert!(
        persist::read(folder.path(), "s").unwrap().unwrap().pinned,
        "the stored set now requires pins"
    );
    std::fs::write(&pins, "damaged").unwrap();
    let reader = Catalog::new(settings.clone());
    assert_eq!(reader.read_stored().len(), 1);
    assert_eq!(trust(&reader, "s:x"), Trust::Given);
    assert_eq!(std::fs::read(&pins).unwrap(), b"damaged", "a reader leaves the file as it is");
    let catalog = Catalog::new(settings.clone());
    let message = catalog.restore().remove(0).1.disk.unwrap();
    assert!(message.contains("the last good copy is in force"), "{message}");
    assert_eq!(trust(&catalog, "s:x"), Trust::Given);
    assert_ne!(std::fs::read(&pins).unwrap(), b"damaged", "the file is written again");
    std::fs::remove_file(&pins).unwrap();
    std::fs::remove_file(&copy).unwrap();
    let catalog = Catalog::new(settings);
    let message = catalog.restore().remove(0).1.disk.unwrap();
    assert!(message.contains("is lost"), "{message}");
    assert_eq!(trust(&catalog, "s:x"), Trust::Withheld);
}

#[tokio::test]
async fn approval_covers_only_the_reviewed_definition() {
    let catalog = Arc::new(Catalog::new(settings(&[("s", "{}")])));
    catalog.replace_server("s", vec![tool("x", DESTROYS), tool("y", DESTROYS), tool("z", "")]);
    catalog.replace_server("s", vec![tool("x", HARMLESS), tool("y", HARMLESS), tool("z", "")]);
    let found: Vec<_> =
        catalog.load().search("x", 10).iter().map(|(tool, _)| tool.name.to_string()).collect();
    assert_eq!(found, Vec::<String>::new());
    let given = |tool: &Arc<Tool>| tool.trust == Trust::Given;
    let listed: Vec<_> = catalog
        .load()
        .listed(&Start::default(), ProtocolFamily::Legacy, given)
        .map(|it| it.key.to_owned())
        .collect();
    assert_eq!(listed, ["s__z"]);
    let named = |name: &str| ApprovalTarget::named(&catalog.load(), name).unwrap();
    let seen = |target: &ApprovalTarget| target.digest(&target.tools(&catalog.load()));
    let (one, all) = (named("s:x"), named("s"));
    let before = seen(&all);
    let wrong = catalog.approve(one.clone(), DefinitionDigest::of(b"")).await;
    assert_eq!(wrong, Err(ApprovalRefused::Changed("s:x".into())));
    catalog.approve(one.clone(), seen(&one)).await.unwrap();
    assert_eq!((trust(&catalog, "s:x"), trust(&catalog, "s:y")), (Trust::Given, Trust::Withheld));
    assert_eq!(
        catalog.approve(all.clone(), before).await,
        Err(ApprovalRefused::Changed("s".into()))
    );
    let approved = catalog.approve(all.clone(), seen(&all)).await.unwrap();
    assert_eq!(approved.tools[0].0.to_string(), "s:y");
    assert_eq!(approved.tools.len(), 1);
    let again = catalog.approve(all.clone(), seen(&all)).await;
    assert_eq!(again, Err(ApprovalRefused::NothingWaits("s".into())));
    // An unchanged definition stays approved.
    let change =
        catalog.replace_server("s", vec![tool("x", HARMLESS), tool("y", HARMLESS), tool("z", "")]);
    assert!(change.is_empty(), "{change:?}");
    assert_eq!(trust(&catalog, "s:y"), Trust::Given);
    assert_eq!(catalog.load().listed(&Start::default(), ProtocolFamily::Legacy, given).count(), 3);
}

#[test]
fn def_6_digests_are_over_the_servers_own_definition_and_listings_conform() {
    let catalog = Catalog::new(settings(&[("s", "{}")]));
    let own = r#"{"name":"a.b","title":null,"inputSchema":{},"outputSchema":{"type":"array"}}"#;
    let change = catalog.replace_server("s", vec![found(own)]);
    let snapshot = catalog.load();
    let reviewed = snapshot.reviewed(&ToolName::parse("s:a.b").unwrap()).unwrap();
    let pinned = own.replace("a.b", "s__a.b");
    assert_eq!(reviewed.digest, DefinitionDigest::of(pinned.as_bytes()));
    let listed = |family| {
        let start = Start::default();
        exposed_json(&snapshot.listed(&start, family, |_| true).next().unwrap())
    };
    let name = exposed::name("s", "a.b");
    assert_eq!(
        listed(ProtocolFamily::Modern),
        format!(
            r#"{{"name":"{name}","inputSchema":{{"type":"object"}},"outputSchema":{{"type":"array"}}}}"#
        )
    );
    assert!(listed(ProtocolFamily::Legacy).contains(r#""required":["result"]"#));
    let notes = snapshot.list_notes().remove(&Arc::<str>::from("s")).unwrap();
    assert_eq!((notes.repaired, notes.omitted), (1, 0));
    assert_eq!(change.noted, notes.notes, "a new definition is noted");
    let again = catalog.replace_server("s", vec![found(own)]);
    assert!(again.is_empty(), "an unchanged definition is not noted: {again:?}");
}

/// The JSON of an element under its exposed name.
fn exposed_json(element: &PageElement<'_>) -> String {
    let ElementJson::Stored(json) = element.json else { panic!("{element:?}") };
    String::from_utf8(json.to_vec()).unwrap()
}

#[test]
fn def_6_output_schema_that_cannot_be_compiled_is_not_listed() {
    let catalog = Catalog::new(settings(&[("s", "{}")]));
    let schema = r##"{"type":"object","properties":{"a":{"$ref":"#/nowhere"}}}"##;
    catalog.replace_server("s", vec![tool("x", &format!(r#","outputSchema":{schema}"#))]);
    let snapshot = catalog.load();
    for family in [ProtocolFamily::Legacy, ProtocolFamily::Modern] {
        let start = Start::default();
        let listed = snapshot.listed(&start, family, |_| true).next().unwrap();
        let json = exposed_json(&listed);
        assert_eq!(json, r#"{"name":"s__x","inputSchema":{"type":"object"}}"#);
    }
    let notes = snapshot.list_notes().remove(&Arc::<str>::from("s")).unwrap();
    assert!(notes.notes[0].reason.contains("outputSchema is not listed"), "{notes:?}");
}

#[test]
fn imitation_is_reported_in_any_order() {
    let imitation = "s\u{435}nd_mail";
    for first in ["a", "b"] {
        let catalog = Catalog::new(settings(&[("a", "{}"), ("b", "{}")]));
        let set = |server: &str| match server {
            "a" => vec![tool("send_mail", "")],
            _ => vec![tool(imitation, "")],
        };
        let other = if first == "a" { "b" } else { "a" };
        let mut found = catalog.replace_server(first, set(first)).found;
        found.extend(catalog.replace_server(other, set(other)).found);
        let last = &found.last().unwrap();
        assert_eq!(last.0.to_string(), format!("b:{imitation}"));
        assert!(last.1.iter().any(|it| it.detail == "looks like 'a:send_mail'"), "{last:?}");
        assert!(found.iter().all(|(name, _)| *name.server == *"b"));
        // The findings are reported once.
        assert!(catalog.replace_server("a", set("a")).found.is_empty());
        assert!(catalog.replace_server("b", set("b")).found.is_empty());
    }
}

#[test]
fn flapping_definition_never_changes_the_accepted_one() {
    let catalog = Catalog::new(settings(&[("s", "{}")]));
    catalog.replace_server("s", vec![tool("x", DESTROYS)]);
    for at in 0..50 {
        let held = format!(r#"{HARMLESS},"description":"{at}""#);
        let change = catalog.replace_server("s", vec![tool("x", &held)]);
        assert!(matches!(change.pinned.as_slice(), [(_, PinEvent::Changed { .. })]), "{change:?}");
        assert_eq!(trust(&catalog, "s:x"), Trust::Withheld);
    }
    let change = catalog.replace_server("s", vec![tool("x", DESTROYS)]);
    assert_eq!(change.pinned[0].1, PinEvent::Restored);
    assert_eq!(trust(&catalog, "s:x"), Trust::Given);
}

#[tokio::test]
async fn input_schema_is_compiled_lazily_and_shared_by_versions() {
    let before = settings(&[("s", "{}")]);
    let catalog = Arc::new(Catalog::new(before.clone()));
    let in_an_hour = Instant::now() + std::time::Duration::from_secs(3600);
    let find = || lookup(&catalog, "s:x").unwrap();
    let compiled = |tool: &Tool| match tool.input.schema() {
        Some(InputSchema::Compiled(schema)) => Some(Arc::clone(schema)),
        Some(InputSchema::Unusable(_)) | None => None,
    };
    catalog.replace_server("s", vec![tool("x", "")]);
    assert!(find().input.schema().is_none(), "no call has used the tool yet");
    let first = catalog.input_schema(&find(), in_an_hour).await;
    assert!(matches!(first, Some(InputSchema::Compiled(_))));
    let first = compiled(&find()).unwrap();
    catalog.replace_server("s", vec![tool("x", r#","description":"new""#)]);
    assert!(Arc::ptr_eq(&first, &compiled(&find()).unwrap()), "the schema is unchanged");
    let mut next = before.clone();
    next.input.mode = InputMode::Off;
    catalog.reconfigure(next.clone());
    assert_eq!(find().input.policy.mode, InputMode::Off);
    assert!(Arc::ptr_eq(&first, &compiled(&find()).unwrap()));
    next.schemas.engine = mcpproxy_schema::compile::Engine::Boon;
    catalog.reconfigure(next);
    assert!(find().input.schema().is_none(), "the schema is compiled again for another engine");
    catalog
        .replace_server("s", vec![found(r#"{"name":"x","inputSchema":{"type":"no such type"}}"#)]);
    let wrong = catalog.input_schema(&find(), in_an_hour).await;
    assert!(matches!(wrong, Some(InputSchema::Unusable(_))), "{wrong:?}");
}
