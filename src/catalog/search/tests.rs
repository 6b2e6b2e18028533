//! The ranking asked whole: which tools are found, which come first, and what has no answer.

use std::sync::Arc;

use serde_json::Value;

use super::samples::{QUERIES, TOOLS};
use super::{Index, Lexicon, Segment};
use crate::catalog::{Catalog, DiscoveredTool, ServerSettings, Settings, Snapshot};

fn found(name: &str, description: &str, parameters: &str) -> DiscoveredTool {
    let properties: serde_json::Map<String, Value> = parameters
        .split_whitespace()
        .map(|name| (name.into(), serde_json::json!({"type": "string"})))
        .collect();
    let json = serde_json::json!({
        "name": name,
        "description": description,
        "inputSchema": {"type": "object", "properties": properties},
    });
    DiscoveredTool::parse(&serde_json::value::to_raw_value(&json).unwrap()).unwrap()
}

fn snapshot(tools: &[(&str, &str, &str, &str)]) -> Arc<Snapshot> {
    let mut sets: std::collections::BTreeMap<&str, Vec<DiscoveredTool>> = Default::default();
    for (server, name, description, parameters) in tools {
        sets.entry(server).or_default().push(found(name, description, parameters));
    }
    let servers = sets.keys().map(|name| (Arc::from(*name), ServerSettings::default()));
    let catalog = Catalog::new(Settings { servers: servers.collect(), ..Settings::default() });
    for (server, set) in sets {
        catalog.replace_server(server, set);
    }
    catalog.load()
}

fn names(snapshot: &Snapshot, query: &str, limit: usize) -> Vec<String> {
    snapshot.search(query, limit).iter().map(|(tool, _)| tool.name.to_string()).collect()
}

/// Each query has its tool first.
fn each_finds_first(cases: &[(&str, &str)]) {
    let snapshot = snapshot(TOOLS);
    for (query, expected) in cases {
        assert_eq!(names(&snapshot, query, 1), [*expected], "{query}");
    }
}

#[test]
fn fr_021_a_newcomers_words_find_the_right_tool() {
    let snapshot = snapshot(TOOLS);
    let mut missed = Vec::new();
    let mut first = 0;
    for (query, expected) in QUERIES {
        let top = names(&snapshot, query, 3);
        first += usize::from(top.first().is_some_and(|name| name == expected));
        if !top.iter().any(|name| name == expected) {
            missed.push(format!("{query}: {top:?}, expected {expected}"));
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
    assert!(3 * first >= 2 * QUERIES.len(), "only {first} of {} at once", QUERIES.len());
}

#[test]
fn an_index_of_segments_ranks_as_one_built_whole_after_every_change() {
    let mut servers: Vec<&str> = TOOLS.iter().map(|(server, ..)| *server).collect();
    servers.dedup();
    let settings = servers.iter().map(|name| (Arc::from(*name), ServerSettings::default()));
    let catalog = Catalog::new(Settings { servers: settings.collect(), ..Settings::default() });
    let set = |server: &str, from: usize| {
        let of_server = TOOLS.iter().filter(|(known, ..)| *known == server);
        let found = of_server.map(|(_, name, about, parameters)| found(name, about, parameters));
        found.skip(from).collect::<Vec<_>>()
    };
    // Sets come in no order, shrink, go and come back.
    let change = |round: usize| {
        let server = servers[round * 7 % servers.len()];
        (server, if round % 5 == 4 { usize::MAX } else { round % 3 })
    };
    let queries = QUERIES.iter().map(|(query, _)| *query);
    let queries: Vec<_> = queries.chain(TOOLS.iter().map(|(_, name, ..)| *name)).collect();
    let (lexicon, mut compared) = (Arc::new(Lexicon::default()), 0);
    for round in 0..3 * servers.len() {
        let (server, from) = change(round);
        catalog.replace_server(server, set(server, from));
        let snapshot = catalog.load();
        let whole = Segment::of(&lexicon, snapshot.tools());
        let whole = Index::of(Arc::clone(&lexicon), [Arc::new(whole)]);
        for query in &queries {
            let expected: Vec<_> = whole.search(query);
            let found = snapshot.search(query, usize::MAX);
            let places = |(tool, score): &(Arc<crate::tool::Tool>, f32)| {
                let at = snapshot.tools().iter().position(|known| Arc::ptr_eq(known, tool));
                (at.unwrap(), *score)
            };
            assert_eq!(found.iter().map(places).collect::<Vec<_>>(), expected, "{query}");
            compared += expected.len();
        }
    }
    assert!(compared > 1000, "{compared}");
}

#[test]
fn every_tool_is_found_by_its_own_name() {
    let snapshot = snapshot(TOOLS);
    for (server, name, _, _) in TOOLS {
        assert_eq!(names(&snapshot, name, 1), [format!("{server}:{name}")], "{name}");
    }
}

#[test]
fn scores_fall_from_1_to_0_and_ties_are_in_order() {
    let snapshot = snapshot(TOOLS);
    let found = snapshot.search("create a file in a directory", usize::MAX);
    assert!(found.iter().all(|(_, score)| (0.0..=1.0).contains(score) && *score > 0.0));
    assert!(found.windows(2).all(|pair| pair[0].1 >= pair[1].1));
    let twins = [("b", "same", "x", ""), ("a", "same", "x", ""), ("c", "same", "x", "")];
    assert_eq!(names(&super::tests::snapshot(&twins), "same", 9), ["a:same", "b:same", "c:same"]);
}

#[test]
fn typing_errors_find_the_tool() {
    each_finds_first(&[
        ("creat a direcotry", "filesystem:create_directory"),
        ("mrege a pull reqest", "github:merge_pull_request"),
        ("serach repositries", "github:search_repositories"),
        ("curent time in a timezome", "time:get_current_time"),
        ("xq qj vq zj wq jx qz mrege a pull reqest", "github:merge_pull_request"),
    ]);
}

#[test]
fn words_of_other_languages_find_the_tool() {
    each_finds_first(&[
        ("Ein Verzeichnis anlegen", "filesystem:create_directory"),
        ("eliminar un repositorio", "github:delete_repo"),
        ("déplacer un fichier", "filesystem:move_file"),
        ("удалить репозиторий", "github:delete_repo"),
        ("删除仓库", "github:delete_repo"),
        ("フォルダを作成する", "filesystem:create_directory"),
    ]);
}

#[test]
fn who_wants_to_see_is_not_shown_what_destroys_first() {
    let tools = [
        ("github", "delete_repo", "Delete a repository", "owner repo"),
        ("github", "get_file_contents", "Get the contents of a file of a repository", "path"),
    ];
    let snapshot = super::tests::snapshot(&tools);
    assert_eq!(names(&snapshot, "show me my repository", 1), ["github:get_file_contents"]);
    assert_eq!(names(&snapshot, "delete my repository", 1), ["github:delete_repo"]);
    let alone = super::tests::snapshot(tools.get(..1).unwrap());
    assert!(names(&alone, "which repositories do I have?", 1).is_empty());
    assert_eq!(names(&alone, "delete_repo", 1), ["github:delete_repo"]);
}

#[test]
fn a_verb_of_what_is_meant_is_not_what_is_wanted() {
    let snapshot = snapshot(&[
        ("drive", "remove_share", "Removes the share of a document", "document"),
        ("drive", "get_document", "Gets a text", "document"),
    ]);
    let query = "a document that I can share";
    assert_eq!(names(&snapshot, query, 1), ["drive:get_document"]);
    assert_eq!(names(&snapshot, "my share of a document", 1), ["drive:get_document"]);
    assert_eq!(names(&snapshot, "take away the share", 1), ["drive:remove_share"]);
}

#[test]
fn who_wants_to_see_is_not_answered_by_marks_that_destroy_alone() {
    let catalog = |name: &str| {
        let servers = [("s".into(), ServerSettings::default())].into();
        let catalog = Catalog::new(Settings { servers, ..Settings::default() });
        let json = serde_json::json!({"name": name, "description": "Absences of a team",
            "inputSchema": {}, "annotations": {"destructiveHint": true}});
        let raw = serde_json::value::to_raw_value(&json).unwrap();
        catalog.replace_server("s", vec![DiscoveredTool::parse(&raw).unwrap()]);
        catalog.load()
    };
    let manages = catalog("manage_absences");
    assert!(names(&manages, "which absences are there?", 1).is_empty());
    assert_eq!(names(&manages, "change the absences", 1), ["s:manage_absences"]);
    assert_eq!(names(&manages, "absences of the team", 1), ["s:manage_absences"]);
    // A mark that its name contradicts.
    let lists = catalog("list_absences");
    assert_eq!(names(&lists, "which absences are there?", 1), ["s:list_absences"]);
}

#[test]
fn what_is_deprecated_comes_last() {
    let tools = [
        ("f", "read_file", "Read a file. DEPRECATED: use read_text_file instead.", "path"),
        ("f", "read_text_file", "Read a file as text", "path"),
        ("f", "file_size", "How large a file is, in bytes", "path"),
    ];
    let snapshot = super::tests::snapshot(&tools);
    let found = snapshot.search("read a file for me", usize::MAX);
    assert_eq!(&*found.last().unwrap().0.name.tool, "read_file");
    assert!(found.windows(2).all(|pair| pair[0].1 >= pair[1].1));
    for name in ["read_file", "f:read_file", " readFile "] {
        let found = names(&snapshot, name, 9);
        assert_eq!(found[0], "f:read_file", "who names it gets it: {name}");
        assert!(found.len() > 1, "and what may be used instead: {found:?}");
    }
    let found = names(&snapshot, "read file", 9);
    let (first, last) = (found.first().unwrap(), found.last().unwrap());
    assert_eq!((&**first, &**last), ("f:read_text_file", "f:read_file"), "plain words are no name");
}

#[test]
fn a_tool_that_has_to_do_with_what_is_deprecated_is_not_deprecated() {
    let snapshot = snapshot(&[
        ("p", "list_deprecated_apis", "Lists deprecated APIs of a package.", "package"),
        ("p", "list_packages", "Lists packages and their APIs", ""),
    ]);
    let found = names(&snapshot, "which APIs of the package are deprecated", 9);
    assert_eq!(found, ["p:list_deprecated_apis", "p:list_packages"]);
}

#[test]
fn a_question_of_which_too_little_is_known_has_no_answer() {
    let snapshot = snapshot(TOOLS);
    for query in [
        "order a pizza with extra cheese",
        "turn the kitchen lights on",
        "Wie wird das Wetter?",
        "播放音乐",
        "株価を教えて",
    ] {
        assert!(names(&snapshot, query, 9).is_empty(), "{query}");
    }
}

#[test]
fn nothing_in_common_finds_nothing() {
    let snapshot = snapshot(TOOLS);
    for query in ["", "  ", "*", "zxqv", "the", "\u{1f5d1}"] {
        assert!(names(&snapshot, query, 9).is_empty(), "{query}");
    }
    assert!(names(&super::tests::snapshot(&[]), "file", 9).is_empty());
    assert_eq!(names(&snapshot, &"file ".repeat(100_000), 2).len(), 2);
}
