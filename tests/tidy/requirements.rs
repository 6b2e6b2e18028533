//! Requirement ids: each cited id has a row in the requirements, and each row is cited by a test.

use std::collections::BTreeSet;
use std::path::Path;

use super::walk;

/// Page with an anchor for each id.
const REQUIREMENTS: &str = include_str!("../../src/reference/requirements.md");

/// Prefixes of the ids.
const PREFIXES: &[&str] = &[
    "FR", "CAP", "ACT", "SC", "SF", "APR", "LIM", "SES", "RUL", "DEF", "INP", "RES", "EMB", "PRO",
    "BND", "ID", "NET", "CFG", "API", "PAGE", "CLI", "TEL", "FLT", "PAR", "SEC",
];

/// Cited ids without a row.
pub(super) fn citations(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        for id in cited(line) {
            if !REQUIREMENTS.contains(&format!("<a id=\"{id}\"></a>")) {
                found.push(format!("line {number}: {id} is not in the requirements"));
            }
        }
    }
    found
}

/// Ids cited in a line, in the form of anchors: of `FR-008`, of each id in `FR-A2..A12`, of `fn cap_3_some_test`.
fn cited(line: &str) -> Vec<String> {
    let mut ids = Vec::new();
    for prefix in PREFIXES {
        let word = format!("{prefix}-");
        for (at, _) in line.match_indices(&word) {
            let before = line.get(..at).and_then(|before| before.chars().next_back());
            let rest = line.get(at + word.len()..).unwrap_or_default();
            if before.is_some_and(|c| c.is_alphanumeric() || c == '-' || c == '_') {
                continue;
            }
            let Some((series, first, rest)) = numbered(rest, 'A') else { continue };
            let last = rest.strip_prefix("..").and_then(|rest| numbered(rest, 'A'));
            add_series(&mut ids, prefix, series, first, last.map(|(_, last, _)| last));
        }
    }
    for (at, _) in line.match_indices("fn ") {
        let name = line.get(at + 3..).unwrap_or_default();
        let end = name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len());
        ids.extend(ids_of_name(name.get(..end).unwrap_or_default()));
    }
    ids
}

/// Ids at the beginning of a test name: `fr_001_to_003_and_025_…`, `fr_029_fr_030_…`.
fn ids_of_name(name: &str) -> Vec<String> {
    let words: Vec<&str> = name.split('_').collect();
    let word = |at: usize| words.get(at).copied().unwrap_or_default();
    let (mut ids, mut prefix, mut at) = (Vec::new(), "", 0);
    loop {
        if word(at) == "and" && !prefix.is_empty() {
            at += 1;
        }
        if let Some(known) = PREFIXES.iter().find(|known| known.to_lowercase() == word(at)) {
            prefix = known;
            at += 1;
        }
        let Some((series, first, "")) = numbered(word(at), 'a') else { break };
        if prefix.is_empty() {
            break;
        }
        at += 1;
        let last = numbered(word(at + 1), 'a').filter(|_| word(at) == "to");
        add_series(&mut ids, prefix, series, first, last.map(|(_, last, _)| last));
        at += if last.is_some() { 2 } else { 0 };
    }
    ids
}

fn add_series(ids: &mut Vec<String>, prefix: &str, series: &str, first: &str, last: Option<&str>) {
    let from: u32 = first.parse().unwrap_or(0);
    for number in from..=last.and_then(|last| last.parse().ok()).unwrap_or(from) {
        ids.push(format!("{prefix}-{series}{number:0width$}", width = first.len()).to_lowercase());
    }
}

/// Splits a text into the series (a letter, or nothing), the digits, and the rest.
fn numbered(text: &str, series: char) -> Option<(&str, &str, &str)> {
    let (series, rest) = text.split_at(usize::from(text.starts_with(series)));
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (digits, rest) = rest.split_at(end);
    (!digits.is_empty()).then_some((series, digits, rest))
}

/// Ids of all rows.
fn rows(requirements: &str) -> BTreeSet<String> {
    requirements
        .split("<a id=\"")
        .skip(1)
        .filter_map(|rest| rest.split_once('"').map(|(id, _)| id.to_owned()))
        .collect()
}

/// The tests in a file: all of a file with tests or benchmarks, otherwise the text after `#[cfg(test)]`.
fn tests_of<'a>(path: &str, text: &'a str) -> &'a str {
    if !path.ends_with(".rs") || path.starts_with("tests/tidy") {
        return "";
    }
    let is_all_tests = path.starts_with("tests/")
        || path.starts_with("benches/")
        || path.contains("/tests/")
        || path.ends_with("tests.rs");
    let from = if is_all_tests { Some(0) } else { text.find("#[cfg(test)]") };
    from.and_then(|from| text.get(from..)).unwrap_or_default()
}

#[test]
fn every_requirement_is_named_by_a_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut missing = rows(REQUIREMENTS);
    assert!(missing.len() > 100, "only {} rows were found", missing.len());
    for folder in ["src", "tests", "benches"] {
        walk(root, &root.join(folder), &mut |path, text| {
            for line in tests_of(path, text).lines() {
                for id in cited(line) {
                    missing.remove(&id);
                }
            }
        });
    }
    assert!(missing.is_empty(), "no test names {missing:?}");
}

#[test]
fn cited_ids_are_found_in_comments_and_test_names() {
    for (line, ids) in [
        ("// FR-017, and (ACT-4)", &["fr-017", "act-4"][..]),
        ("// FR-008..010", &["fr-008", "fr-009", "fr-010"]),
        ("// FR-A9..A11", &["fr-a9", "fr-a10", "fr-a11"]),
        ("async fn fr_a5_once() {", &["fr-a5"]),
        ("fn cap_3_and_more() {", &["cap-3"]),
        ("fn fr_001_to_003_and_025_the_tools()", &["fr-001", "fr-002", "fr-003", "fr-025"]),
        ("fn fr_029_fr_030_the_intent()", &["fr-029", "fr-030"]),
        ("fn fr_021_to_022_and_cap_1_cap_2_x()", &["fr-021", "fr-022", "cap-1", "cap-2"]),
        ("fn mcp_2026_x() fn a_fr_017() fn fr_()", &[]),
        ("// DISC-1, FR-…, x-FR-1, FR-A", &[]),
    ] {
        assert_eq!(cited(line), ids, "{line}");
    }
    for (id, bad) in [("007", 0), ("007..009", 0), ("999", 1), ("A98..A99", 2)] {
        assert_eq!(citations(&format!("// FR-{id}")).len(), bad, "{id}");
    }
    assert_eq!(citations(concat!("fn act", "_99_x() {}")).len(), 1);
}

#[test]
fn tests_are_distinguished_from_code() {
    for (path, found) in [
        ("tests/e2e/a.rs", "// FR-001\n#[cfg(test)]\n"),
        ("src/a/tests.rs", "// FR-001\n#[cfg(test)]\n"),
        ("src/a.rs", "#[cfg(test)]\n"),
        ("tests/tidy/a.rs", ""),
        ("tests/a.md", ""),
    ] {
        assert_eq!(tests_of(path, "// FR-001\n#[cfg(test)]\n"), found, "{path}");
    }
    assert_eq!(
        rows("| <a id=\"fr-1\"></a><a id=\"fr-2\"></a>"),
        ["fr-1".into(), "fr-2".into()].into()
    );
}
