//! Ranked search over all tools by plain-language queries (FR-021).
//!
//! Full-text search over the tools: BM25 over stemmed words and a thesaurus, with spelling correction. The effect that
//! a query asks for (read, write, destroy) is compared with each tool's effect; tools that cover too little of a query
//! are not returned. Results by meaning (embeddings) are fused by rank (`ranking`, `vectors`). The crate deliberately
//! contains no embedding model.
//!
//! The words of one server's tools form a [`Segment`], built once per set and shared by snapshots, so that the cost of
//! a change does not grow with other servers' tools. Document frequencies over all tools are applied when a query is
//! answered, so that the ranking is the same as with a monolithic index.
//!
//! An [`Index`] holds the segments of all servers. A query is parsed and corrected (`query`), its words are scored
//! and candidates selected and ordered (`ranking`), and results by meaning are fused by rank (`ranking`).

#[cfg(test)]
pub(super) mod golden;
mod query;
mod ranking;
mod segment;
mod thesaurus;
mod tokenizer;
mod vectors;

use self::query::ParsedQuery;
use self::ranking::in_falling_order;

pub use segment::{Index, Segment};
pub use thesaurus::Lexicon;
pub use vectors::{MAX_DIMENSIONS, MAX_NEIGHBORS, Near, QueryMeaning, ToolVectors, UnitVector};

/// Raw score that maps to 0.5: about the score of one rare word in a name.
const HALF_SCORE: f32 = 5.0;

impl Index {
    /// Returns the tools named by `query` first, then those with enough of its words or meanings, best first, and
    /// deprecated ones last. Equal scores are in order of position. Scores are from 0 to 1 on a scale common to all
    /// queries.
    pub fn search(&self, query: &str) -> Vec<(usize, f32)> {
        self.search_shown(query, |_| true)
    }

    /// Searches only the tools that are `shown`, except that document frequencies count all tools. `shown` is called
    /// best match first, and only for matches or for tools that decide whether there is a result.
    pub(crate) fn search_shown(
        &self,
        query: &str,
        shown: impl FnMut(usize) -> bool,
    ) -> Vec<(usize, f32)> {
        self.answer(ParsedQuery::read(&self.lexicon, query), query, shown)
    }

    /// Answers a parsed query.
    fn answer(
        &self,
        mut asked: ParsedQuery,
        query: &str,
        shown: impl FnMut(usize) -> bool,
    ) -> Vec<(usize, f32)> {
        let found = in_falling_order(self.by_words(&mut asked, query, shown));
        found.map(|(at, score)| (at, score / (score + HALF_SCORE))).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use proptest::prelude::*;
    use serde_json::value::RawValue;
    use serde_json::{Value, json};

    use super::golden::{QUERIES, TOOLS};
    use super::query::{MAX_QUERY_WORDS, ParsedQuery};
    use super::{Index, Lexicon, QueryMeaning, Segment, ToolVectors, UnitVector};
    use crate::{Catalog, DiscoveredTool, ServerSettings, Settings, Snapshot};
    use mcpproxy_policy::tool::{Annotations, Rules, Tool, ToolName};

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

    /// Asserts that each query finds its tool first.
    fn each_finds_first(cases: &[(&str, &str)]) {
        let snapshot = snapshot(TOOLS);
        for (query, expected) in cases {
            assert_eq!(names(&snapshot, query, 1), [*expected], "{query}");
        }
    }

    #[test]
    fn fr_021_everyday_words_find_the_right_tool() {
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
        assert!(
            3 * first >= 2 * QUERIES.len(),
            "the expected tool is first in only {first} of {} queries",
            QUERIES.len()
        );
    }

    #[test]
    fn segmented_index_ranks_like_a_monolithic_index() {
        let mut servers: Vec<&str> = TOOLS.iter().map(|(server, ..)| *server).collect();
        servers.dedup();
        let settings = servers.iter().map(|name| (Arc::from(*name), ServerSettings::default()));
        let catalog = Catalog::new(Settings { servers: settings.collect(), ..Settings::default() });
        let set = |server: &str, from: usize| {
            let of_server = TOOLS.iter().filter(|(known, ..)| *known == server);
            let found =
                of_server.map(|(_, name, about, parameters)| found(name, about, parameters));
            found.skip(from).collect::<Vec<_>>()
        };
        // Sets arrive in any order, shrink, disappear and return.
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
                let places = |(tool, score): &(Arc<mcpproxy_policy::tool::Tool>, f32)| {
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
    fn scores_descend_and_ties_keep_order() {
        let snapshot = snapshot(TOOLS);
        let found = snapshot.search("create a file in a directory", usize::MAX);
        assert!(found.iter().all(|(_, score)| (0.0..=1.0).contains(score) && *score > 0.0));
        assert!(found.windows(2).all(|pair| pair[0].1 >= pair[1].1));
        let twins = [("b", "same", "x", ""), ("a", "same", "x", ""), ("c", "same", "x", "")];
        assert_eq!(
            names(&super::tests::snapshot(&twins), "same", 9),
            ["a:same", "b:same", "c:same"]
        );
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
    fn read_query_does_not_rank_destructive_tools_first() {
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
    fn verb_within_a_tool_name_does_not_state_the_wanted_effect() {
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
    fn read_query_never_returns_only_destructive_tools() {
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
        // The name states that the tool reads, which outweighs its mark as destructive.
        let lists = catalog("list_absences");
        assert_eq!(names(&lists, "which absences are there?", 1), ["s:list_absences"]);
    }

    #[test]
    fn deprecated_tools_rank_last() {
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
            assert_eq!(found[0], "f:read_file", "a named tool is first: {name}");
            assert!(found.len() > 1, "alternatives are found as well: {found:?}");
        }
        let found = names(&snapshot, "read file", 9);
        let (first, last) = (found.first().unwrap(), found.last().unwrap());
        assert_eq!(
            (&**first, &**last),
            ("f:read_text_file", "f:read_file"),
            "plain words are no name"
        );
    }

    #[test]
    fn tool_about_deprecated_things_is_not_deprecated() {
        let snapshot = snapshot(&[
            ("p", "list_deprecated_apis", "Lists deprecated APIs of a package.", "package"),
            ("p", "list_packages", "Lists packages and their APIs", ""),
        ]);
        let found = names(&snapshot, "which APIs of the package are deprecated", 9);
        assert_eq!(found, ["p:list_deprecated_apis", "p:list_packages"]);
    }

    #[test]
    fn query_with_too_little_coverage_has_no_result() {
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
    fn unrelated_query_has_no_results() {
        let snapshot = snapshot(TOOLS);
        for query in ["", "  ", "*", "zxqv", "the", "\u{1f5d1}"] {
            assert!(names(&snapshot, query, 9).is_empty(), "{query}");
        }
        assert!(names(&super::tests::snapshot(&[]), "file", 9).is_empty());
        assert_eq!(names(&snapshot, &"file ".repeat(100_000), 2).len(), 2);
    }

    /// Server, name, description, and whether the tool is marked as destructive.
    type Row = (&'static str, &'static str, &'static str, bool);

    const OWN: [Row; 3] = [
        ("own", "delete_parcel", "Delete a parcel of a customer", true),
        ("own", "parcel_customer_history", "Parcel, customer, history: all of it is cleaned", true),
        ("own", "weigh", "How heavy something is that a customer sends", false),
    ];
    const HIDDEN: [Row; 4] = [
        (
            "hid",
            "get_parcel",
            "Get a parcel of a customer: where it is, its state and history",
            false,
        ),
        ("hid", "get_parcel_list", "Show the parcels of a customer", false),
        ("hid", "get_parcel_customer_history", "Show the parcel customer history", false),
        ("hid", "parcel", "Parcel", false),
    ];

    fn snapshot_of(rows: &[Row]) -> Arc<Snapshot> {
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

    /// Embedding of a query to which no tool is near.
    fn nothing_near(snapshot: &Snapshot) -> QueryMeaning {
        let tools = snapshot.tools().iter().cloned().map(|tool| (tool, &[0.0, 1.0][..]));
        let query = Arc::new(UnitVector::of(vec![1.0, 0.0]).unwrap());
        QueryMeaning { query, tools: Arc::new(ToolVectors::of(tools)), min: 0.25 }
    }

    /// Results of the server `own` by words alone, and results fused with an embedding to which no tool is near.
    fn own(snapshot: &Snapshot, query: &str) -> Vec<String> {
        let shown = |tool: &Arc<Tool>| *tool.name.server == *"own";
        let names = |meaning: Option<&QueryMeaning>| {
            let found = snapshot.search_for(query, 9, meaning, shown);
            assert_eq!(found.tools.len(), found.total);
            found.tools.iter().map(|(tool, _)| tool.name.tool.to_string()).collect::<Vec<_>>()
        };
        let by_words = names(None);
        assert_eq!(names(Some(&nothing_near(snapshot))), by_words, "{query}");
        by_words
    }

    #[test]
    fn hidden_tool_does_not_make_a_read_query_return_destructive_tools() {
        let (all, alone) = (snapshot_of(&[&OWN[..], &HIDDEN].concat()), snapshot_of(&OWN));
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
    fn hidden_tool_named_by_the_query_does_not_suppress_others() {
        let (all, alone) = (snapshot_of(&[&OWN[..], &HIDDEN].concat()), snapshot_of(&OWN));
        for query in ["parcel", "get_parcel_customer_history", "parcels of a customer"] {
            let found = own(&all, query);
            assert_eq!(found, own(&alone, query), "{query}");
            assert!(!found.is_empty(), "{query}");
        }
    }

    #[test]
    fn visibility_is_checked_best_first_and_once_per_tool() {
        let others: Vec<String> = (0..2000).map(|at| format!("tool_{at:04}")).collect();
        let others: Vec<Row> = others
            .into_iter()
            .map(|name| -> Row {
                ("own", name.leak(), "Handles something that parcels are in.", false)
            })
            .collect();
        let snapshot = snapshot_of(&[&others[..], &OWN, &HIDDEN].concat());
        for (query, shown) in
            [("parcel", true), ("get_parcel", true), ("show me the parcel", false)]
        {
            let mut asked = Vec::new();
            let found = snapshot.search_for(query, 5, None, |tool| {
                asked.push(tool.name.to_string());
                shown || *tool.name.server != *"hid"
            });
            let best: Vec<_> = found.tools.iter().map(|(tool, _)| tool.name.to_string()).collect();
            let first: Vec<_> = asked.iter().filter(|it| best.contains(it)).cloned().collect();
            assert_eq!(first, best, "{query}");
            let max = found.total + HIDDEN.len() + OWN.len();
            assert!(asked.len() <= max, "{query}: {} of {max}", asked.len());
            asked.sort_unstable();
            let all = asked.len();
            asked.dedup();
            assert_eq!(asked.len(), all, "{query}: no tool twice");
        }
    }

    fn tool(server: &str, name: &str, description: &str, schema: String) -> Arc<Tool> {
        Arc::new(Tool {
            description: description.into(),
            input_schema: RawValue::from_string(schema).unwrap(),
            ..Tool::named(
                ToolName { server: server.into(), tool: name.into() },
                Annotations::default(),
                &Rules::default(),
            )
        })
    }

    fn index(tools: &[Arc<Tool>]) -> Index {
        let lexicon = Arc::new(Lexicon::default());
        let segment = Segment::of(&lexicon, tools);
        Index::of(lexicon, [Arc::new(segment)])
    }

    fn samples() -> Vec<Arc<Tool>> {
        let tools = TOOLS.iter();
        tools.map(|(server, name, about, _)| tool(server, name, about, "{}".into())).collect()
    }

    /// A few words in each of twenty scripts.
    const SCRIPTS: [&str; 20] = [
        "delete a file",
        "удалить файл",
        "διαγραφή αρχείου",
        "حذف ملف",
        "מחק קובץ",
        "फ़ाइल हटाएं",
        "ফাইল মুছুন",
        "ਫਾਈਲ ਮਿਟਾਓ",
        "ફાઇલ કાઢી નાખો",
        "கோப்பை நீக்கு",
        "ఫైల్ తొలగించు",
        "ಫೈಲ್ ಅಳಿಸಿ",
        "ഫയൽ ഇല്ലാതാക്കുക",
        "ลบไฟล์",
        "ຄໍາວ່າລຶບໄຟລ໌",
        "ဖိုင်ဖျက်ပါ",
        "លុបឯកសារ",
        "删除文件",
        "ファイルを削除",
        "파일 삭제",
    ];

    #[test]
    fn megabyte_query_is_read_up_to_the_word_limit() {
        let index = index(&samples());
        let repeat = |text: &str| text.repeat(1024 * 1024 / text.len());
        let mut longest = 0;
        for text in [
            "file ",
            "x",
            "unbekannteswort ",
            "\u{0}\u{1b}[2J\u{7f}\u{85}\u{202e}",
            "文件夹",
            "'",
            "aB",
        ] {
            let query = repeat(text);
            longest = longest.max(ParsedQuery::read(&index.lexicon, &query).terms.len());
            assert!(index.search(&query).len() <= TOOLS.len());
        }
        let many: String = (0..100_000).map(|word| format!("word{word} ")).collect();
        longest = longest.max(ParsedQuery::read(&index.lexicon, &many).terms.len());
        let _ = index.search(&many);
        assert!((2..=MAX_QUERY_WORDS).contains(&longest), "{longest}");
    }

    #[test]
    fn queries_of_control_characters_have_no_results() {
        let index = index(&samples());
        let control: String = (0..0x20).chain(0x7f..0xa0).filter_map(char::from_u32).collect();
        for query in [&*control, "\u{feff}\u{200b}\u{200d}\u{2060}", "\u{e000}\u{10ffff}\u{fffd}"] {
            assert!(index.search(query).is_empty(), "{query:?}");
        }
        assert!(!index.search(&format!("{control} commit logs {control}")).is_empty());
    }

    #[test]
    fn every_script_is_searchable_and_thesaurus_scripts_are_understood() {
        let mut tools = samples();
        tools.push(tool("disk", "delete_file", "Delete a file", "{}".into()));
        for (at, text) in SCRIPTS.iter().enumerate() {
            tools.push(tool("scripts", &format!("tool_{at}"), text, "{}".into()));
        }
        let index = index(&tools);
        for (at, text) in SCRIPTS.iter().enumerate() {
            let found = index.search(text);
            let names: Vec<_> = found.iter().map(|(at, _)| &*tools[*at].name.tool).collect();
            let own = format!("tool_{at}");
            assert!(names.iter().take(8).any(|name| **name == *own), "{text}: {names:?}");
        }
        for text in ["удалить файл", "删除文件", "ファイルを削除"] {
            let found = index.search(text);
            let names: Vec<_> = found.iter().map(|(at, _)| &*tools[*at].name.tool).collect();
            assert!(names.iter().take(5).any(|name| **name == *"delete_file"), "{text}: {names:?}");
        }
    }

    #[test]
    fn empty_and_huge_texts_are_indexed() {
        let long = "Sends an invoice. ".to_owned() + &"lorem ipsum dolor ".repeat(6000);
        let deep = "{\"properties\":{\"a\":".repeat(100) + "{}" + &"}}".repeat(100);
        let many: String =
            (0..40_000).map(|at| format!(r#""p{at}":{{"type":"string"}},"#)).collect();
        let wide = format!(r#"{{"properties":{{{many}"last":{{}}}}}}"#);
        let huge = json!({"properties": {"a": {"description": "x".repeat(2 * 1024 * 1024)}}});
        let tools = [
            tool("s", "\u{1f5d1}", "", "{}".into()),
            tool("s", "send_invoice", &long, "{}".into()),
            tool("s", "deep", "", deep),
            tool("s", "wide", "", wide),
            tool("s", "huge", "", huge.to_string()),
            tool("s", "odd", "", r#"{"properties":[1],"items":7}"#.into()),
            tool("s", &"longName".repeat(32), "", "{}".into()),
        ];
        let index = index(&tools);
        let first = |query: &str| index.search(query).first().map(|(at, _)| *at);
        assert_eq!(first("send an invoice"), Some(1));
        for (at, name) in ["deep", "wide", "huge", "odd"].iter().enumerate() {
            assert_eq!(first(name), Some(at + 2), "{name}");
        }
    }

    #[test]
    fn search_handles_fifty_thousand_tools() {
        let lexicon = Arc::new(Lexicon::default());
        let mut segments = Vec::new();
        for server in 0..50 {
            let tools: Vec<_> = (0..1000)
                .map(|at| match server {
                    0..10 => tool("s", &format!("t{at}"), "Send a message", "{}".into()),
                    _ => tool("s", &format!("t{at}"), &format!("Word{server} of{at}"), "{}".into()),
                })
                .collect();
            segments.push(Arc::new(Segment::of(&lexicon, &tools)));
        }
        let index = Index::of(lexicon, segments);
        let found = index.search("send a message");
        assert_eq!(found.len(), 10_000, "only the matching tools are found");
        assert!(found.windows(2).all(|pair| pair[0].0 < pair[1].0), "in their order");
        assert_eq!(index.search("word42").len(), 1000);
        let _ = index.search(&"serach the mesages of folderx ".repeat(100));
    }

    proptest! {
        #[test]
        fn results_of_any_query_are_ordered(query in "\\PC{0,60}", words in proptest::collection::vec(
            prop::sample::select(vec!["delete", "show", "fiel", "отправить", "文件", "l'été", "Änderungen", "que", "that"]), 0..8,
        )) {
            static INDEX: std::sync::LazyLock<Index> = std::sync::LazyLock::new(|| index(&samples()));
            let index = &*INDEX;
            for query in [&*query, &words.join(" ")] {
                let found = index.search(query);
                prop_assert!(found.windows(2).all(|pair| pair[0].1 >= pair[1].1));
                prop_assert!(found.iter().all(|(_, score)| (0.0..=1.0).contains(score)));
                let mut places: Vec<_> = found.iter().map(|(at, _)| *at).collect();
                places.sort_unstable();
                places.dedup();
                prop_assert_eq!(places.len(), found.len(), "each tool is found once");
                prop_assert_eq!(&found, &index.search(query), "a repeated search has the same result");
            }
        }
    }
}
