//! Literals of revisions and headers, and comparisons of revisions, are permitted in `src/protocol/mcp` only.

use std::path::Path;

use super::{code, walk};

/// Literals with names in `mcp::revisions` and `mcp::headers`.
const PROTOCOL_WORDS: &[&str] = &[
    "2024-11-05",
    "2025-03-26",
    "2025-06-18",
    "2025-11-25",
    "2026-07-28",
    "\"mcp-session-id",
    "\"mcp-protocol-version",
    "\"mcp-method",
    "\"mcp-name",
    "\"mcp-param-",
    "\"last-event-id",
    // Differences between revisions are methods of `Revision`.
    "== Revision::",
    "!= Revision::",
    "< Revision::",
    ">= Revision::",
];

/// Literals of revisions and headers outside of their module. Tests may contain them.
fn protocol_words(path: &str, text: &str) -> Vec<String> {
    let is_for_tests = path.contains("/tests/") || path.ends_with("/tests.rs");
    if !path.starts_with("src/") || path.starts_with("src/protocol/mcp") || is_for_tests {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (number, line) in code(text).take_while(|(_, line)| !line.starts_with("#[cfg(test)]")) {
        for word in PROTOCOL_WORDS.iter().filter(|word| line.contains(**word)) {
            found.push(format!("line {number}: {word} may be spelled in src/protocol/mcp/ only"));
        }
    }
    found
}

#[test]
fn protocol_literals_are_written_only_in_their_module() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    walk(root, &root.join("src"), &mut |path, text| {
        if path.ends_with(".rs") {
            let words = protocol_words(path, text).into_iter();
            found.extend(words.map(|problem| format!("{path}: {problem}")));
        }
    });
    assert!(found.is_empty(), "{} problems:\n{}", found.len(), found.join("\n"));
}

#[test]
fn protocol_literals_outside_their_module_are_reported() {
    for (path, line, bad) in [
        ("src/downstream/legacy.rs", "const BATCHES: &str = \"2025-03-26\";", 1),
        ("src/downstream/legacy.rs", "headers.get(\"mcp-session-id\")", 1),
        ("src/downstream/legacy.rs", "// MCP 2025-03-26 has batches", 0),
        ("src/downstream/legacy.rs", "#[cfg(test)]\nconst OLD: &str = \"2025-03-26\";", 0),
        ("src/upstream/tests/families.rs", "const OLD: &str = \"2025-03-26\";", 0),
        ("src/protocol/mcp/revisions.rs", "const OLD: &str = \"2025-03-26\";", 0),
        ("tests/e2e/main.rs", "const OLD: &str = \"2025-03-26\";", 0),
    ] {
        assert_eq!(protocol_words(path, line).len(), bad, "{path}: {line}");
    }
}
