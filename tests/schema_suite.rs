//! The JSON-Schema-Test-Suite and a few additional cases, for both engines and for their combination (the judge).
//!
//! Each exception is listed with its reason, and the test fails if an exception passes. The additional cases are in
//! `tests/data/schema_suite` and always run. The suite is not part of this repository: `tools/schema-suite/run` puts it
//! under `target/schema-suite`; the variable `JSON_SCHEMA_TEST_SUITE` can name another folder. Without the suite its
//! tests check nothing and print a note; with `CI=true` they fail.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use mcpproxy_schema::bounds::Bounds;
use mcpproxy_schema::compile::{Engine, Remotes, Schema, Settings, Unusable, compile_with};
use mcpproxy_schema::judge::{JudgeScratch, Verdict};
use mcpproxy_schema::misfit::MisfitFault;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

/// Folder of the suite for a dialect, and the URI of the dialect.
const DRAFTS: [(&str, &str); 5] = [
    ("draft4", "http://json-schema.org/draft-04/schema#"),
    ("draft6", "http://json-schema.org/draft-06/schema#"),
    ("draft7", "http://json-schema.org/draft-07/schema#"),
    ("draft2019-09", "https://json-schema.org/draft/2019-09/schema"),
    ("draft2020-12", "https://json-schema.org/draft/2020-12/schema"),
];

/// Base URL of the remote documents of the suite.
const REMOTE: &str = "http://localhost:1234";

/// Source of a wrong verdict.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Who {
    Tape,
    Boon,
    Judge,
}

/// Verdict that is known to differ from that of the suite.
struct Exception {
    who: &'static [Who],
    drafts: &'static [&'static str],
    file: &'static str,
    case: &'static str,
    test: &'static str,
    reason: &'static str,
}

/// Exceptions, all for optional tests.
const EXCEPTIONS: &[Exception] = &[
    Exception {
        who: &[Who::Tape, Who::Boon, Who::Judge],
        drafts: &["draft4", "draft6", "draft7", "draft2019-09", "draft2020-12"],
        file: "optional/float-overflow.json",
        case: "all integers are multiples of 0.5, if overflow is handled",
        test: "valid if optional overflow handling is implemented",
        reason: "1e308 / 0.5 overflows in boon, which also evaluates numbers beyond 2^53 for the tape engine",
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

/// Files of the suite for keywords whose violation no server can accept. Arguments with such a violation are refused.
const CERTAIN: [&str; 2] = ["type.json", "required.json"];

/// Files of the suite for keywords whose violation a server may accept.
const DOUBTFUL: [&str; 14] = [
    "enum.json",
    "const.json",
    "pattern.json",
    "minimum.json",
    "maximum.json",
    "exclusiveMinimum.json",
    "exclusiveMaximum.json",
    "multipleOf.json",
    "minLength.json",
    "maxLength.json",
    "minItems.json",
    "maxItems.json",
    "uniqueItems.json",
    "minProperties.json",
];

/// Checks that violations of the keywords in [`CERTAIN`], and only these, count as unacceptable for every server.
fn misfits(name: &str, schema: &Schema, data: &str) -> Result<(), String> {
    let document = [Bytes::copy_from_slice(data.as_bytes())];
    let Verdict::Violates(violation) = schema.judge(&document, &mut JudgeScratch::new()).verdict
    else {
        return Ok(());
    };
    let certain = !violation.misfits.is_empty();
    let mut faults = violation.misfits.listed.iter().map(|misfit| &misfit.fault);
    // In one case for `enum` a required member is missing as well.
    let missing = faults.all(|fault| matches!(fault, MisfitFault::Missing(_)));
    let doubtful = DOUBTFUL.contains(&name) && !(name == "enum.json" && missing);
    match (CERTAIN.contains(&name), doubtful) {
        (true, _) if !certain => Err("might be accepted".to_owned()),
        (_, true) if certain => Err(format!("cannot be accepted: {:?}", violation.misfits)),
        _ => Ok(()),
    }
}

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

/// Counts and failures of a run of the cases.
#[derive(Default)]
struct Run {
    table: BTreeMap<(&'static str, Who), Tally>,
    failures: Vec<String>,
    /// Exceptions that occurred.
    met: BTreeSet<Known>,
    /// Number of documents that conform according to boon, and number of those accepted by the accept-only pass.
    conforming: usize,
    accepted: usize,
}

/// Exception for one draft and one source of verdicts.
type Known = (Who, &'static str, &'static str, &'static str, &'static str);

/// Defines the tests of each draft; the number is its index in [`DRAFTS`].
macro_rules! drafts {
    ($($name:ident: $at:literal),*) => {
        $(mod $name {
            #[test]
            fn own_schema_cases_pass() {
                super::own_cases($at);
            }

            #[test]
            fn json_schema_test_suite_passes() {
                super::whole_draft(super::DRAFTS[$at]);
            }
        })*
    };
}

drafts!(draft4: 0, draft6: 1, draft7: 2, draft2019_09: 3, draft2020_12: 4);

/// Runs the additional cases of each folder up to that of the draft: cases of a draft apply to later ones.
fn own_cases(last: usize) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/schema_suite");
    let mut run = Run::default();
    let (draft, _) = DRAFTS[last];
    for (folder, _) in DRAFTS.into_iter().take(last + 1) {
        let folder = root.join(folder);
        for path in folder.is_dir().then(|| files(&folder)).into_iter().flatten() {
            run.file(&path, &root, DRAFTS[last], &Remotes::default());
        }
    }
    assert!(run.table.values().all(|tally| tally.passed + tally.failed > 20), "few cases");
    run.finish(draft);
}

fn whole_draft(draft: (&'static str, &'static str)) {
    let root = match suite() {
        Ok(root) => root,
        Err(absent) => {
            let required = std::env::var_os("CI").is_some_and(|ci| ci == "true");
            assert!(!required, "{absent}");
            println!("{absent}: {} is not checked", draft.0);
            return;
        }
    };
    assert!(EXCEPTIONS.iter().all(|e| !e.reason.is_empty() && e.file.starts_with("optional/")));
    let remotes = remotes(&root.join("remotes"));
    let folder = root.join("tests").join(draft.0);
    let mut run = Run::default();
    for path in files(&folder) {
        run.file(&path, &folder, draft, &remotes);
    }
    let listed: Vec<_> = exceptions().filter(|known| known.1 == draft.0).collect();
    let expected: BTreeSet<_> = listed.iter().copied().collect();
    assert_eq!(expected.len(), listed.len(), "an exception is listed twice");
    let idle: Vec<_> = expected.difference(&run.met).collect();
    assert!(idle.is_empty(), "listed as exceptions, but passing or missing: {idle:?}");
    run.finish(draft.0);
}

fn exceptions() -> impl Iterator<Item = Known> {
    EXCEPTIONS.iter().flat_map(|e| {
        let drafts = e.drafts.iter();
        drafts.flat_map(move |draft| e.who.iter().map(|who| (*who, *draft, e.file, e.case, e.test)))
    })
}

impl Run {
    fn file(
        &mut self,
        path: &Path,
        folder: &Path,
        (draft, dialect): (&'static str, &'static str),
        remotes: &Remotes,
    ) {
        let name = path.strip_prefix(folder).unwrap().to_str().unwrap();
        let section = match name {
            name if name.starts_with("optional/format") => "format",
            name if name.starts_with("optional/") => "optional",
            _ => "required",
        };
        let text = fs::read_to_string(path).unwrap();
        let cases: Vec<Case> = serde_json::from_str(&text).unwrap();
        let none = Remotes::default();
        for case in &cases {
            let schema = with_dialect(case.schema.get(), dialect);
            let remotes = if schema.contains(REMOTE) { remotes } else { &none };
            let compiled = [Engine::Tape, Engine::Boon].map(|engine| {
                let settings = Settings { engine, assert_formats: section == "format" };
                compile_with(schema.as_bytes(), &settings, &Bounds::default(), remotes)
            });
            for test in &case.tests {
                for schema in compiled.iter().flatten() {
                    if let Err(why) = misfits(name, schema, test.data.get()) {
                        let (case, test) = (&case.description, &test.description);
                        self.failures.push(format!("{draft} {name}: {case:?}: {test:?}: {why}"));
                    }
                }
                if let [Ok(tape_first), Ok(boon_first)] = &compiled {
                    let accepted = one_pass(tape_first, test.data.get());
                    let conforms = judged(boon_first, test.data.get()).0;
                    self.conforming += usize::from(conforms);
                    self.accepted += usize::from(accepted);
                    if accepted && !conforms {
                        let (case, test) = (&case.description, &test.description);
                        self.failures.push(format!(
                            "accepted in one pass, refused by boon: {draft} {name}: {case:?}: {test:?}"
                        ));
                    }
                }
                for (who, valid) in verdicts(&compiled, test.data.get()) {
                    let tally = self.table.entry((section, who)).or_default();
                    let known = exceptions().find(|known| {
                        *known == (who, draft, name, &*case.description, &*test.description)
                    });
                    if valid == Ok(test.valid) {
                        tally.passed += 1;
                    } else if let Some(known) = known {
                        tally.excepted += 1;
                        self.met.insert(known);
                    } else {
                        tally.failed += 1;
                        self.failures.push(format!(
                            "{who:?} {draft} {name}: {:?}: {:?}: {valid:?}",
                            case.description, test.description
                        ));
                    }
                }
            }
        }
    }

    /// Prints the counts at once, and fails if a verdict is wrong.
    fn finish(self, draft: &str) {
        let rows = self.table.iter().map(|((section, who), tally)| {
            let Tally { passed, failed, excepted } = tally;
            format!(
                "{draft:14}{section:10}{who:7}{passed:>6} passed{failed:>6} failed{excepted:>6} excepted\n",
                who = format!("{who:?}")
            )
        });
        let Self { conforming, accepted, .. } = self;
        let share =
            format!("{draft:14}{accepted} of {conforming} conforming accepted in one pass\n");
        print!("{}{share}", rows.collect::<String>());
        assert!(self.failures.is_empty(), "{}", self.failures.join("\n"));
    }
}

/// Whether the accept-only pass accepts `data` (FR-A14).
fn one_pass(schema: &Schema, data: &str) -> bool {
    schema.accepts_in_one_pass(data.as_bytes(), &mut JudgeScratch::new())
}

/// Whether `data` conforms, and whether the engines disagree.
fn judged(schema: &Schema, data: &str) -> (bool, bool) {
    let document = [Bytes::copy_from_slice(data.as_bytes())];
    let judgment = schema.judge(&document, &mut JudgeScratch::new());
    (judgment.verdict == Verdict::Conforms, judgment.disagreement)
}

/// Verdicts of each engine and of the judge, or the error of an unusable schema.
fn verdicts(
    compiled: &[Result<Schema, Unusable>; 2],
    data: &str,
) -> [(Who, Result<bool, String>); 3] {
    let judge = |schema: &Result<Schema, Unusable>| match schema {
        Ok(schema) => Ok(judged(schema, data)),
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

/// Folder of the suite, or a message with the missing path.
fn suite() -> Result<PathBuf, String> {
    let fetched = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/schema-suite");
    let found = std::env::var_os("JSON_SCHEMA_TEST_SUITE").map_or(fetched, PathBuf::from);
    if found.join("tests").is_dir() && found.join("remotes").is_dir() {
        return Ok(found);
    }
    let place = found.display();
    Err(format!("the JSON-Schema-Test-Suite is not at {place} (tools/schema-suite/run fetches it)"))
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
        documents.insert(format!("{REMOTE}/{name}"), value);
    }
    Remotes(Arc::new(documents))
}

/// Adds the dialect to a schema that does not name it: the suite omits it in schemas of older drafts.
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
