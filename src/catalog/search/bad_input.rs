//! Queries and tools that nobody means well with: a clear answer in bounded time and memory.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::json;
use serde_json::value::RawValue;

use super::asked::{MAX_QUERY_WORDS, ParsedQuery};
use super::samples::TOOLS;
use super::{Index, Lexicon, Segment};
use crate::tool::{Annotations, Rules, Tool, ToolName};

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

/// Of twenty scripts, each a few words.
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
fn a_query_of_a_megabyte_is_read_as_far_as_it_counts() {
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
fn queries_of_control_characters_find_nothing() {
    let index = index(&samples());
    let control: String = (0..0x20).chain(0x7f..0xa0).filter_map(char::from_u32).collect();
    for query in [&*control, "\u{feff}\u{200b}\u{200d}\u{2060}", "\u{e000}\u{10ffff}\u{fffd}"] {
        assert!(index.search(query).is_empty(), "{query:?}");
    }
    assert!(!index.search(&format!("{control} commit logs {control}")).is_empty());
}

#[test]
fn every_script_is_read_and_those_of_the_table_are_understood() {
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
fn tools_without_words_and_with_too_many_of_them_are_indexed() {
    let long = "Sends an invoice. ".to_owned() + &"lorem ipsum dolor ".repeat(6000);
    let deep = "{\"properties\":{\"a\":".repeat(100) + "{}" + &"}}".repeat(100);
    let many: String = (0..40_000).map(|at| format!(r#""p{at}":{{"type":"string"}},"#)).collect();
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
fn fifty_thousand_tools_of_which_ten_thousand_say_the_same_are_searched() {
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
    assert_eq!(found.len(), 10_000, "all that matches, and nothing else");
    assert!(found.windows(2).all(|pair| pair[0].0 < pair[1].0), "in their order");
    assert_eq!(index.search("word42").len(), 1000);
    let _ = index.search(&"serach the mesages of folderx ".repeat(100));
}

proptest! {
    #[test]
    fn any_query_is_answered_in_order(query in "\\PC{0,60}", words in proptest::collection::vec(
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
            prop_assert_eq!(places.len(), found.len(), "each tool once");
            prop_assert_eq!(&found, &index.search(query), "the same once more");
        }
    }
}
