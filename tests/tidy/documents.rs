//! Existence of the names in documents: paths and link targets in the pages, and constants and types in the page of
//! bounds.

use std::path::Path;

use super::walk;

/// Pages whose paths are checked, and for each the folder to which paths may be relative, in addition to the root.
const PAGES: &[(&str, &str)] = &[
    ("README.md", ""),
    ("benches/README.md", ""),
    ("src/architecture.md", "src"),
    ("src/guide/", ""),
    ("src/reference/", ""),
    ("tools/fleet/README.md", "tools/fleet"),
    ("tools/bench/search/README.md", "tools/bench/search"),
    ("tools/bench/tasks/README.md", "tools/bench/tasks"),
];

/// Page with checked constants and types.
const BOUNDS: &str = include_str!("../../src/reference/bounds.md");

/// Code spans of a page, outside of blocks.
fn spans(text: &str) -> Vec<&str> {
    let mut in_block = false;
    let mut found = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if !in_block {
            found.extend(line.split('`').skip(1).step_by(2));
        }
    }
    found
}

/// True for the path of a file or folder of the repository.
fn is_path(span: &str) -> bool {
    let is_below =
        ["src/", "tests/", "tools/", "benches/", "fuzz/"].iter().any(|at| span.starts_with(at));
    let is_source = span.contains('/') && span.ends_with(".rs");
    let is_plain = span.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
    // Methods of MCP and routes of REST are not paths.
    (is_below || is_source)
        && is_plain
        && !["tools/call", "tools/list", "tools/list_changed"].contains(&span)
}

/// Paths in a page that do not exist.
fn lost_paths(root: &Path, base: &str, text: &str) -> Vec<String> {
    let exists = |span: &str| root.join(span).exists() || root.join(base).join(span).exists();
    spans(text)
        .into_iter()
        .filter(|span| is_path(span) && !exists(span))
        .map(str::to_owned)
        .collect()
}

/// Prose of a page: its lines outside of code blocks, without code spans.
fn prose(text: &str) -> String {
    let mut in_block = false;
    let mut prose = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if !in_block {
            prose.extend(line.split('`').step_by(2));
        }
        prose.push('\n');
    }
    prose
}

/// Targets of the links and images of a page.
fn link_targets(text: &str) -> Vec<String> {
    let prose = prose(text);
    let ends = prose.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    ends.map(|(target, _)| target.to_owned()).collect()
}

/// Anchors of a page: the ids that GitHub derives from its headings, and explicit ids.
fn anchors(text: &str) -> Vec<String> {
    let mut in_block = false;
    let mut found = Vec::new();
    for line in text.lines() {
        in_block ^= line.trim_start().starts_with("```");
        if in_block {
            continue;
        }
        found.extend(
            line.split("<a id=\"")
                .skip(1)
                .filter_map(|rest| rest.split('"').next())
                .map(str::to_owned),
        );
        if line.starts_with('#') {
            let heading = line.trim_start_matches('#').trim().to_lowercase();
            let kept = heading.chars().filter(|c| c.is_alphanumeric() || "-_ ".contains(*c));
            found.push(kept.map(|c| if c == ' ' { '-' } else { c }).collect());
        }
    }
    found
}

/// Links in a page whose file or anchor does not exist. `page` is its path relative to the root.
fn lost_links(root: &Path, page: &str, text: &str) -> Vec<String> {
    let folder = root.join(page).parent().map(Path::to_owned).unwrap_or_default();
    let is_lost = |target: &String| {
        let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
        let linked = if file.is_empty() { root.join(page) } else { folder.join(file) };
        if anchor.is_empty() {
            return !linked.exists();
        }
        let linked = match file {
            "" => text.to_owned(),
            _ => std::fs::read_to_string(linked).unwrap_or_default(),
        };
        !anchors(&linked).iter().any(|it| it == anchor)
    };
    let targets = link_targets(text).into_iter().filter(|target| !target.contains("://"));
    targets.filter(is_lost).collect()
}

/// Last segment of `a::b::NAME`, if it is the name of a constant or a type.
fn item(span: &str) -> Option<&str> {
    let name = span.rsplit("::").next()?;
    let is_item = name.len() > 3
        && name.starts_with(|c: char| c.is_ascii_uppercase())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    (is_item
        && (span.contains("::") || name.contains('_') || name.contains(|c: char| c.is_lowercase())))
    .then_some(name)
}

#[test]
fn pages_name_paths_and_link_targets_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    let mut visit = |page: &str, base: &str, text: &str| {
        let lost = lost_paths(root, base, text).into_iter().chain(lost_links(root, page, text));
        found.extend(lost.map(|name| format!("{page}: {name} does not exist")));
    };
    for (page, base) in PAGES {
        if page.ends_with('/') {
            walk(root, &root.join(page), &mut |path, text| {
                if path.ends_with(".md") {
                    visit(path, base, text);
                }
            });
        } else {
            visit(page, base, &std::fs::read_to_string(root.join(page)).unwrap_or_default());
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn bounds_name_items_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut sources = String::new();
    walk(root, &root.join("src"), &mut |path, text| {
        if path.ends_with(".rs") {
            sources.push_str(text);
        }
    });
    let is_declared = |name: &str| {
        ["const", "static", "struct", "enum", "type"].iter().any(|word| {
            [':', ' ', '<', '(', ';']
                .iter()
                .any(|end| sources.contains(&format!("{word} {name}{end}")))
        })
    };
    let names: Vec<&str> = spans(BOUNDS).into_iter().filter_map(item).collect();
    assert!(names.len() > 50, "only {} names were found", names.len());
    let lost: Vec<&str> = names.into_iter().filter(|name| !is_declared(name)).collect();
    assert!(lost.is_empty(), "not in the sources: {lost:?}");
}

#[test]
fn paths_and_items_are_found_in_code_spans() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (text, bad) in [
        ("see `src/lib.rs` and `tests/tidy.rs`", 0),
        ("see `src/nothing.rs`", 1),
        ("see `cli/nothing.rs`, `guide/calls.md`", 1),
        ("```sh\n`src/nothing.rs`\n```", 0),
        ("the method `tools/call`, the route `tools/{name}`", 0),
        ("`tools/schema-suite/run`, `tools/nothing`", 1),
    ] {
        assert_eq!(lost_paths(root, "src", text).len(), bad, "{text}");
    }
    for (span, name) in [
        ("a::MAX_X", Some("MAX_X")),
        ("MAX_X", Some("MAX_X")),
        ("StateCharge", Some("StateCharge")),
        ("limits.queue", None),
        ("Retry-After", None),
        ("GET", None),
    ] {
        assert_eq!(item(span), name, "{span}");
    }
}

#[test]
fn links_need_an_existing_file_and_anchor() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (text, bad) in [
        ("[a](policy.md), [b](https://h/x), [c](../architecture.md)", 0),
        ("[a](polcy.md)", 1),
        ("[a](crate::guide::policy)", 1),
        ("[a](policy.md#approving-calls)", 0),
        ("[a](policy.md#no-such-heading)", 1),
        ("# Over TLS, *again*\n[a](#over-tls-again)", 0),
        ("# One\n[a](#two)", 1),
        ("| <a id=\"fr-020\"></a>FR-020 |\n[a](#fr-020)", 0),
        ("```sh\n# One\n```\n[a](#one)", 1),
        ("```sh\n[a](nothing.md)\n``` \n`[a](nothing.md)`", 0),
    ] {
        assert_eq!(lost_links(root, "src/guide/calls.md", text).len(), bad, "{text}");
    }
}
