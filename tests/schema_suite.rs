//! The JSON-Schema-Test-Suite through both engines and through the whole judgement.
//!
//! Owns the list of exceptions: each with its reason, and the test fails when one of them starts
//! to pass. The data is not part of this repository; it is found beside the checkout or through
//! `JSON_SCHEMA_TEST_SUITE`.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use mcpproxy::schema::bounds::Bounds;
use mcpproxy::schema::compile::{Engine, Remotes, Schema, Settings, Unusable, compile_with};
use mcpproxy::schema::judge::{Scratch, Verdict};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

/// The suite's folder, its name for the dialect, and the dialect's URI.
const DRAFTS: [(&str, &str); 5] = [
    ("draft4", "http://json-schema.org/draft-04/schema#"),
    ("draft6", "http://json-schema.org/draft-06/schema#"),
    ("draft7", "http://json-schema.org/draft-07/schema#"),
    ("draft2019-09", "https://json-schema.org/draft/2019-09/schema"),
    ("draft2020-12", "https://json-schema.org/draft/2020-12/schema"),
];

/// Who gave a wrong verdict.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Who {
    Tape,
    Boon,
    Judge,
}

/// A verdict that is known to differ from the suite's.
struct Exception {
    who: &'static [Who],
    drafts: &'static [&'static str],
    file: &'static str,
    case: &'static str,
    test: &'static str,
    reason: &'static str,
}

/// All of them are among the optional tests.
const EXCEPTIONS: &[Exception] = &[
    Exception {
        who: &[Who::Tape, Who::Boon, Who::Judge],
        drafts: &["draft4", "draft6", "draft7", "draft2019-09", "draft2020-12"],
        file: "optional/float-overflow.json",
        case: "all integers are multiples of 0.5, if overflow is handled",
        test: "valid if optional overflow handling is implemented",
        reason: "1e308 / 0.5 overflows in boon, to which the tape leaves what is beyond 2^53",
    },
    Exception {
        who: &[Who::Tape, Who::Boon, Who::Judge],
        drafts: &["draft4"],
        file: "optional/zeroTerminatedFloats.json",
        case: "some languages do not distinguish between different types of numeric value",
        test: "a float is not an integer even without fractional part",
        reason: "1.0 is an integer in draft 4 as in all later ones; the tape keeps no spelling",
    },
    Exception {
        who: &[Who::Tape, Who::Boon, Who::Judge],
        drafts: &["draft7"],
        file: "optional/content.json",
        case: "validation of string-encoded content based on media type",
        test: "an invalid JSON document",
        reason: "contentMediaType is an annotation, as from 2019-09 on",
    },
    Exception {
        who: &[Who::Tape, Who::Boon, Who::Judge],
        drafts: &["draft7"],
        file: "optional/content.json",
        case: "validation of binary string-encoding",
        test: "an invalid base64 string (% is not a valid character)",
        reason: "contentEncoding is an annotation, as from 2019-09 on",
    },
    Exception {
        who: &[Who::Tape, Who::Boon, Who::Judge],
        drafts: &["draft7"],
        file: "optional/content.json",
        case: "validation of binary-encoded media type documents",
        test: "a validly-encoded invalid JSON document",
        reason: "contentMediaType is an annotation, as from 2019-09 on",
    },
    Exception {
        who: &[Who::Tape, Who::Boon, Who::Judge],
        drafts: &["draft7"],
        file: "optional/content.json",
        case: "validation of binary-encoded media type documents",
        test: "an invalid base64 string that is valid JSON",
        reason: "contentEncoding is an annotation, as from 2019-09 on",
    },
];

#[derive(Deserialize)]
struct Case {
    description: String,
    schema: Box<RawValue>,
    tests: Vec<Test>,
}

#[derive(Deserialize)]
struct Test {
    description: String,
    data: Box<RawValue>,
    valid: bool,
}

#[derive(Default)]
struct Tally {
    passed: usize,
    failed: usize,
    excepted: usize,
}

#[test]
fn every_draft_passes_through_both_engines() {
    let Some(root) = suite() else { return };
    let remotes = remotes(&root.join("remotes"));
    let listed: Vec<_> = EXCEPTIONS
        .iter()
        .flat_map(|e| {
            e.drafts.iter().flat_map(move |draft| e.who.iter().map(move |who| (who, draft, e)))
        })
        .map(|(who, draft, e)| (*who, *draft, e.file, e.case, e.test))
        .collect();
    let mut excepted: BTreeSet<_> = listed.iter().copied().collect();
    assert_eq!(excepted.len(), listed.len(), "an exception is listed twice");
    assert!(EXCEPTIONS.iter().all(|e| !e.reason.is_empty() && e.file.starts_with("optional/")));
    let mut table: BTreeMap<(usize, &str, Who), Tally> = BTreeMap::new();
    let mut failures = Vec::new();
    for (at, (draft, dialect)) in DRAFTS.into_iter().enumerate() {
        let folder = root.join("tests").join(draft);
        for path in files(&folder) {
            let name = path.strip_prefix(&folder).unwrap().to_str().unwrap().to_owned();
            let section = match name.as_str() {
                name if name.starts_with("optional/format") => "format",
                name if name.starts_with("optional/") => "optional",
                _ => "required",
            };
            let text = fs::read_to_string(&path).unwrap();
            let cases: Vec<Case> = serde_json::from_str(&text).unwrap();
            for case in &cases {
                let schema = with_dialect(case.schema.get(), dialect);
                let compiled = [Engine::Tape, Engine::Boon].map(|engine| {
                    let settings = Settings { engine, assert_formats: section == "format" };
                    compile_with(schema.as_bytes(), &settings, &Bounds::default(), &remotes)
                });
                for test in &case.tests {
                    for (who, valid) in verdicts(&compiled, test.data.get()) {
                        let tally = table.entry((at, section, who)).or_default();
                        let known = excepted
                            .iter()
                            .find(|e| {
                                (e.0, e.1, e.2) == (who, draft, name.as_str())
                                    && (e.3, e.4) == (&*case.description, &*test.description)
                            })
                            .copied();
                        if valid == Ok(test.valid) {
                            tally.passed += 1;
                        } else if let Some(known) = known {
                            tally.excepted += 1;
                            excepted.remove(&known);
                        } else {
                            tally.failed += 1;
                            failures.push(format!(
                                "{who:?} {draft} {name}: {:?}: {:?}: {valid:?}",
                                case.description, test.description
                            ));
                        }
                    }
                }
            }
        }
    }
    print(&table);
    failures.iter().for_each(|failure| println!("{failure}"));
    assert!(failures.is_empty(), "{} verdicts differ from the suite's", failures.len());
    assert!(excepted.is_empty(), "listed as exceptions, but right or gone: {excepted:?}");
}

/// What each engine and the whole judgement say; an unusable schema is what it says instead.
fn verdicts(
    compiled: &[Result<Schema, Unusable>; 2],
    data: &str,
) -> [(Who, Result<bool, String>); 3] {
    let judge = |schema: &Result<Schema, Unusable>| match schema {
        Ok(schema) => {
            let document = [Bytes::copy_from_slice(data.as_bytes())];
            let judgement = schema.judge(&document, &mut Scratch::new());
            Ok((judgement.verdict == Verdict::Conforms, judgement.disagreement))
        }
        Err(reason) => Err(reason.to_string()),
    };
    let [tape_first, boon_first] = compiled;
    let both = judge(boon_first);
    let boon_was_asked = boon_first.as_ref().is_ok_and(|schema| !schema.judged_by_tape_alone());
    let boon = both.clone().and_then(|(valid, _)| {
        if boon_was_asked { Ok(valid) } else { Err("boon cannot compile it".to_owned()) }
    });
    let tape = both.map(|(valid, disagreement)| valid != disagreement);
    let whole = judge(tape_first).map(|(valid, _)| valid);
    [(Who::Tape, tape), (Who::Boon, boon), (Who::Judge, whole)]
}

fn print(table: &BTreeMap<(usize, &str, Who), Tally>) {
    println!(
        "{:14}{:10}{:7}{:>7}{:>7}{:>10}",
        "draft", "tests", "engine", "passed", "failed", "excepted"
    );
    for ((draft, section, who), tally) in table {
        println!(
            "{:14}{section:10}{:7}{:>7}{:>7}{:>10}",
            DRAFTS[*draft].0,
            format!("{who:?}"),
            tally.passed,
            tally.failed,
            tally.excepted
        );
    }
}

/// The suite's folder. Where it is nowhere the test is skipped, but not where `CI=true`.
fn suite() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/json-schema-test-suite");
    let found = std::env::var_os("JSON_SCHEMA_TEST_SUITE").map_or(beside, PathBuf::from);
    if found.join("tests").is_dir() {
        return Some(found);
    }
    let missing = format!("JSON-Schema-Test-Suite is not at {}", found.display());
    assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "{missing}");
    println!("skipped: {missing}; set JSON_SCHEMA_TEST_SUITE");
    None
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|extension| extension == "json") {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn remotes(folder: &Path) -> Remotes {
    let mut documents = HashMap::new();
    for path in files(folder) {
        let name = path.strip_prefix(folder).unwrap().to_str().unwrap().replace('\\', "/");
        let value: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        documents.insert(format!("http://localhost:1234/{name}"), value);
    }
    Remotes(Arc::new(documents))
}

/// Older drafts' schemas do not name their dialect in the suite.
fn with_dialect(schema: &str, dialect: &str) -> String {
    let value: Value = serde_json::from_str(schema).unwrap();
    match value {
        Value::Object(members) if !members.contains_key("$schema") => {
            let comma = if members.is_empty() { "" } else { "," };
            let rest = schema.trim_start().strip_prefix('{').unwrap();
            format!("{{\"$schema\":{dialect:?}{comma}{rest}")
        }
        _ => schema.to_owned(),
    }
}
