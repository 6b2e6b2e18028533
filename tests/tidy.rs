//! Structure of the repository: seams, purity, headers, sizes, and forbidden words.
//!
//! Reads the sources as text and does not parse Rust. Layers are not checked here: each is a crate, and the compiler
//! enforces them. Every checker is tested on bad snippets below.

#[path = "tidy/circles.rs"]
mod circles;
#[path = "tidy/documents.rs"]
mod documents;
#[path = "tidy/idiom.rs"]
mod idiom;
#[path = "tidy/log_lines.rs"]
mod log_lines;
#[path = "tidy/predicates.rs"]
mod predicates;
#[path = "tidy/protocol.rs"]
mod protocol;
#[path = "tidy/requirements.rs"]
mod requirements;
#[path = "tidy/types.rs"]
mod types;

use std::fs;
use std::path::Path;

/// Crates that may be used in certain folders or files only.
const SEAMS: &[(&str, &[&str])] = &[
    ("simd_json", &["src/json/", "src/schema/"]),
    ("boon", &["src/schema/"]),
    ("jsonschema", &["src/schema/"]),
    ("rust_stemmers", &["src/catalog/search/thesaurus.rs"]),
    ("unicode_normalization", &["src/catalog/search/tokenizer.rs", "src/json/fold.rs"]),
    ("cedar_policy", &["src/policy/rules.rs", "src/policy/rules/"]),
    ("lsm_tree", &["src/activity/store/"]),
    ("fjall", &["src/activity/store.rs", "src/activity/store/", "src/catalog/persist.rs"]),
    ("object_store", &["src/fleet/bucket.rs", "src/fleet/bucket/"]),
    ("parquet", &["src/fleet/parquet_table.rs", "src/fleet/parquet_table/"]),
    ("x509_parser", &["src/runtime/io/tls.rs"]),
    ("hyper", HTTP),
    ("hyper_util", HTTP),
    ("rmcp", &["src/upstream/", "tests/"]),
    ("jsonwebtoken", &["src/policy/identity/"]),
    ("clap", &["src/cli/"]),
    ("icu_properties", &["src/runtime/hidden_text.rs"]),
    ("shlex", &["src/cli/terminal_safe.rs"]),
    ("toml_edit", &["src/cli/clients/file.rs"]),
    ("clap_complete", &["src/cli/"]),
    ("pulldown_cmark", &["src/cli/markdown.rs"]),
    // Not a crate: the type of an approved call, which only the approval queue creates.
    ("Approved", &["src/policy/approvals/", "src/policy/permit.rs", "src/policy/admission.rs"]),
];

const HTTP: &[&str] = &[
    "src/upstream/http.rs",
    "src/upstream/connection.rs",
    "src/downstream/http.rs",
    "src/downstream/body.rs",
    "src/admin/api/",
    "src/admin/api.rs",
    "src/server/connection.rs",
    "src/server/http2_connection.rs",
    "src/server/unread_body.rs",
    "src/runtime/io/http_client.rs",
];

/// Code that gets time and randomness as arguments, and neither waits nor logs.
const PURE: &[&str] = &[
    "src/policy/identity/jwt.rs",
    "src/json",
    "src/protocol/wire",
    "src/protocol/mcp",
    "src/runtime/nearest.rs",
    "src/runtime/hidden_text.rs",
    "src/runtime/io/http1",
    "src/runtime/io/buffer_pool.rs",
    "src/policy/tool",
    "src/policy/intent",
    "src/policy",
    "src/schema",
    "src/schema/output",
    "src/runtime/secrets",
    "src/activity/bytes.rs",
    "src/activity/codec.rs",
    "src/activity/gap.rs",
    "src/downstream/session_ticket.rs",
    "src/fleet/chain/check.rs",
    "src/fleet/chain/follow",
    "src/fleet/checkpoint.rs",
    "src/fleet/cluster_key.rs",
    "src/fleet/parquet_table",
    "src/fleet/config.rs",
    "src/fleet/facts/object.rs",
    "src/fleet/facts/reader.rs",
    "src/fleet/facts/selection.rs",
    "src/fleet/facts/set.rs",
    "src/fleet/failure_detector",
    "src/fleet/heartbeat.rs",
    "src/fleet/peer_wire.rs",
    "src/fleet/reading_plan.rs",
    "src/fleet/record_questions.rs",
    "src/fleet/sealing.rs",
    "src/fleet/segment.rs",
    "src/catalog/definition",
    "src/catalog/grade",
    "src/catalog/pins",
    "src/catalog/replacing.rs",
    "src/catalog/reviewing.rs",
    "src/catalog/scan",
    "src/catalog/search",
    "src/catalog/snapshot.rs",
    "src/activity/query.rs",
    "src/gateway/results/handle.rs",
    "src/gateway/results/parts.rs",
    "src/gateway/results/outline.rs",
    "src/activity/record",
    "src/activity/redact",
    "src/activity/segment.rs",
    "src/activity/show.rs",
    "src/activity/stats",
    "src/upstream/inbound",
    "src/upstream/pending.rs",
];

/// Folders below those of [`PURE`] that are not pure, except for files that [`PURE`] lists.
const NOT_PURE: &[&str] = &["src/policy/approvals", "src/policy/identity"];

/// Names that pure code must not use.
const IMPURE: &[&str] = &[
    "tokio::",
    "tracing::",
    "std::fs",
    "std::net",
    "std::thread",
    "std::process",
    "Instant::now",
    "SystemTime::now",
    "getrandom",
];

/// Maximum number of lines of a file without a reason in its header (a line `//! Size: …`).
const MAX_LINES: usize = 1000;

/// Required and additionally allowed names at the top level.
const REQUIRED: &[&str] = &["Cargo.toml", "src", "benches", "fuzz", "tests", "tools", "README.md"];
const ALLOWED: &[&str] = &["Cargo.lock", "LICENSE", "CHANGELOG.md", "target"];

/// Marks of unfinished work. Spelled in parts, so that this file has none.
const UNFINISHED: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X:"),
    concat!("todo", "!("),
    concat!("unimplemented", "!("),
    concat!("dbg", "!("),
    concat!("#[ig", "nore"),
];

/// Paths and hosts of a development machine.
const PLACES: &[&str] = &[
    concat!("/wo", "rk/"),
    concat!("/ro", "ot/"),
    concat!("/Us", "ers/"),
    concat!(".cargo/", "registry"),
    concat!("arti", "factory"),
    concat!("registry.", "npmjs"),
    concat!("python", "hosted"),
];

/// Documents outside the repository; their content is in the reference.
const PAPERS: &[&str] = &[
    concat!("SPE", "C §"),
    concat!("CONTR", "ACTS"),
    concat!("DESI", "GN §"),
    concat!("FAC", "TS §"),
];

/// Hosts that a lock file may name.
const PUBLIC_HOSTS: &[&str] =
    &["github.com", concat!("registry.", "npmjs.org"), concat!("files.python", "hosted.org")];

#[test]
fn repository_files_pass_all_checks() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = top_level(&names(root));
    let mut seen = 0;
    for folder in ["src", "benches", "fuzz", "tests", "tools"] {
        walk(root, &root.join(folder), &mut |path, text| {
            seen += 1;
            found.extend(check(path, text).into_iter().map(|problem| format!("{path}: {problem}")));
        });
    }
    assert!(seen > 30, "only {seen} files were checked");
    assert!(found.is_empty(), "{} problems:\n{}", found.len(), found.join("\n"));
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Visits every text file below `folder`, except generated ones, with its path from `root`.
fn walk(root: &Path, folder: &Path, visit: &mut impl FnMut(&str, &str)) {
    const MADE: [&str; 7] =
        ["target", "node_modules", "__pycache__", "corpus", "artifacts", "coverage", ".venv"];
    for name in names(folder) {
        let path = folder.join(&name);
        if path.is_dir() {
            if !MADE.contains(&name.as_str()) {
                walk(root, &path, visit);
            }
        } else if let Ok(text) = fs::read_to_string(&path) {
            visit(&path.strip_prefix(root).unwrap_or(&path).to_string_lossy(), &text);
        }
    }
}

fn top_level(names: &[String]) -> Vec<String> {
    let has = |name: &&&str| names.iter().any(|there| there == **name);
    let missing =
        REQUIRED.iter().filter(|name| !has(name)).map(|name| format!("{name} is missing"));
    let foreign = names.iter().filter(|name| {
        !name.starts_with('.')
            && !REQUIRED.contains(&name.as_str())
            && !ALLOWED.contains(&name.as_str())
    });
    missing.chain(foreign.map(|name| format!("{name} does not belong at the top level"))).collect()
}

/// All problems of one file.
fn check(path: &str, text: &str) -> Vec<String> {
    if is_lock_file(path) {
        return foreign_hosts(text);
    }
    let mut found = marks(text);
    found.extend(requirements::citations(text));
    if path.ends_with(".rs") {
        // A fuzz target has only three lines; the header is in the file of its body.
        if !path.starts_with("fuzz/fuzz_targets/") {
            found.extend(header(text));
        }
        found.extend(size(text));
        found.extend(bare_allows(text));
        found.extend(seams(path, text));
        found.extend(purity(path, text));
        found.extend(unsafe_code(path, text));
        found.extend(log_lines::unbudgeted_lines(path, text));
    }
    found
}

fn is_lock_file(path: &str) -> bool {
    path.ends_with(".lock") || path.ends_with("-lock.json")
}

fn foreign_hosts(text: &str) -> Vec<String> {
    // The home page of a package is not checked.
    let fetched = |line: &&str| line.contains("resolved") || line.contains("source =");
    let public = |line: &&str| PUBLIC_HOSTS.iter().any(|host| line.contains(&format!("//{host}/")));
    let lines = text.lines().filter(fetched).filter(|line| line.contains("://"));
    let foreign = lines.filter(|line| !public(line));
    foreign.map(|line| format!("a host that is not public: {}", line.trim())).collect()
}

fn marks(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        for mark in UNFINISHED.iter().chain(PLACES).chain(PAPERS) {
            if line.contains(mark) {
                found.push(format!("line {number}: {mark}"));
            }
        }
    }
    found
}

fn header(text: &str) -> Option<String> {
    let first = text.lines().next().unwrap_or_default();
    let has_text = first.strip_prefix("//! ").is_some_and(|rest| !rest.trim().is_empty());
    (!has_text).then(|| "does not open with //! and its subject".to_owned())
}

fn size(text: &str) -> Option<String> {
    let lines = text.lines().count();
    let reason = text
        .lines()
        .take_while(|line| line.starts_with("//!"))
        .any(|line| line.strip_prefix("//! Size: ").is_some_and(|reason| !reason.is_empty()));
    (lines > MAX_LINES && !reason).then(|| format!("{lines} lines, and no reason (//! Size: …)"))
}

/// `allow` and `expect` attributes without a reason in the attribute or on the line above.
fn bare_allows(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let opens = ["#[allow(", "#![allow(", "#[expect(", "#![expect("];
        if !opens.iter().any(|open| code.starts_with(open)) {
            continue;
        }
        let rest = lines.get(at..).unwrap_or_default();
        let end = rest.iter().position(|line| line.trim_end().ends_with(")]")).unwrap_or(0);
        let attribute = rest.get(..=end).unwrap_or_default().concat();
        let above =
            at.checked_sub(1).and_then(|above| lines.get(above)).unwrap_or(&"").trim_start();
        let commented = above.starts_with("// ");
        if !attribute.contains("reason") && !attribute.contains("//") && !commented {
            found.push(format!("line {}: {code} without a reason", at + 1));
        }
    }
    found
}

/// Numbered lines of code, without comments and text that looks like a comment.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(text.lines()).map(|(number, line)| {
        let comment = line.trim_start().starts_with("//");
        let cut = line.find(" // ").unwrap_or(line.len());
        (number, if comment { "" } else { line.get(..cut).unwrap_or_default() })
    })
}

/// True if `line` uses the path `name::…`, as a whole word.
fn uses(line: &str, name: &str) -> bool {
    let path = format!("{name}::");
    line.match_indices(&path).any(|(at, _)| {
        let before = line.get(..at).and_then(|before| before.chars().next_back());
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':' || c == '"')
    })
}

fn seams(path: &str, text: &str) -> Vec<String> {
    if !path.starts_with("src/") {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (number, line) in code(text) {
        for (name, homes) in SEAMS {
            if uses(line, name) && !homes.iter().any(|home| path.starts_with(home)) {
                found
                    .push(format!("line {number}: {name} is used outside of {}", homes.join(", ")));
            }
        }
    }
    found
}

fn first_word(text: &str) -> Option<&str> {
    let text = text.trim_start();
    let end = text.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(text.len());
    text.get(..end).filter(|word| !word.is_empty())
}

fn purity(path: &str, text: &str) -> Vec<String> {
    let depth = |list: &[&str]| {
        list.iter().filter(|begin| path.starts_with(**begin)).map(|begin| begin.len()).max()
    };
    if depth(PURE) <= depth(NOT_PURE) {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (number, line) in code(text) {
        for word in IMPURE {
            if line.contains(word) {
                found.push(format!("line {number}: {word} in pure code"));
            }
        }
    }
    found
}

fn unsafe_code(path: &str, text: &str) -> Vec<String> {
    if path.starts_with("src/json/scan/") {
        return Vec::new();
    }
    let block = ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"];
    code(text)
        .filter(|(_, line)| block.iter().any(|block| line.contains(block)) && !line.contains('"'))
        .map(|(number, _)| format!("line {number}: unsafe outside of src/json/scan/"))
        .collect()
}

#[cfg(test)]
mod checkers {
    //! Each checker reports its own kind of problem only.

    use super::*;

    const HEAD: &str = "//! Owns something.\n";

    fn problems(path: &str, body: &str) -> usize {
        check(path, &format!("{HEAD}{body}\n")).len()
    }

    #[test]
    fn crate_use_outside_its_seam_is_reported() {
        for (path, line, bad) in [
            ("src/schema/judge.rs", "use boon::Compiler;", 0),
            ("src/catalog/snapshot.rs", "use boon::Compiler;", 1),
            ("src/catalog/snapshot.rs", "fn baboon::x()", 0),
            ("src/activity/writer.rs", "fjall::Keyspace::open()", 1),
            ("src/gateway/proxy/call.rs", "use hyper::body::Body;", 1),
            ("src/downstream/http.rs", "use hyper::body::Body;", 0),
            ("src/gateway/proxy/call.rs", "use crate::hyper::x;", 0),
            ("src/server/lib.rs", "use clap::Parser;", 1),
            ("tests/e2e/main.rs", "use hyper::body::Body;", 0),
        ] {
            assert_eq!(problems(path, line), bad, "{path}: {line}");
        }
    }

    #[test]
    fn impure_calls_in_pure_code_and_unsafe_outside_scan_are_reported() {
        for (path, line, bad) in [
            ("src/json/tape.rs", "let now = std::time::Instant::now();", 1),
            ("src/policy/intent.rs", "tracing::warn!(\"x\");", 1),
            ("src/catalog/saving.rs", "let now = std::time::Instant::now();", 0),
            ("src/json/tape.rs", "let x = unsafe { y() };", 1),
            ("src/json/scan/avx.rs", "let x = unsafe { y() };", 0),
        ] {
            assert_eq!(problems(path, line), bad, "{path}: {line}");
        }
    }

    #[test]
    fn missing_headers_and_long_files_are_reported() {
        let path = "benches/scan.rs";
        assert_eq!(check(path, "//! Measures.\nfn main() {}\n").len(), 0);
        for text in ["", "fn main() {}", "//!\n", "// Measures.\n", "/// Measures.\n"] {
            assert_eq!(check(path, text).len(), 1, "{text:?}");
        }
        let long = "\n".repeat(MAX_LINES);
        assert_eq!(check(path, &format!("//! Measures.\n{long}")).len(), 1);
        assert_eq!(check(path, &format!("//! Measures.\n//! Size: a table.\n{long}")).len(), 0);
        assert_eq!(check(path, &format!("//! Measures.\n{long}//! Size: late.\n")).len(), 1);
    }

    #[test]
    fn unfinished_work_and_allowances_without_reason_are_reported() {
        let path = "src/cli/args.rs";
        for mark in UNFINISHED.iter().chain(PLACES).chain(PAPERS) {
            assert_eq!(problems(path, &format!("// {mark}")), 1, "{mark}");
            assert_eq!(check("tools/interop/run.py", mark).len(), 1, "{mark}");
        }
        for (lines, bad) in [
            ("#[allow(dead_code)]", 1),
            ("#![allow(dead_code)]", 1),
            ("    #[expect(dead_code)]", 1),
            ("/// Documented.\n#[allow(dead_code)]", 1),
            ("// The macro makes more than is used.\n#[allow(dead_code)]", 0),
            ("#[expect(dead_code, reason = \"later\")]", 0),
            ("#[expect(\n    dead_code,\n    reason = \"later\"\n)]", 0),
            ("#[expect(\n    dead_code,\n)]", 1),
        ] {
            assert_eq!(problems(path, lines), bad, "{lines}");
        }
    }

    #[test]
    fn top_level_names_are_required_or_allowed() {
        let with = |more: &[&str]| {
            let names = REQUIRED.iter().chain(ALLOWED).chain(more);
            top_level(&names.map(ToString::to_string).collect::<Vec<_>>())
        };
        assert!(with(&[".gitignore", ".ci"]).is_empty());
        assert_eq!(with(&["examples"]), ["examples does not belong at the top level"]);
        assert_eq!(top_level(&[]).len(), REQUIRED.len());
    }

    #[test]
    fn private_hosts_in_lock_files_are_reported() {
        let host = PUBLIC_HOSTS[1];
        let line = |host: &str| format!("  \"resolved\": \"https://{host}/x/-/x-1.tgz\",\n");
        assert!(check("tools/package-lock.json", &line(host)).is_empty());
        assert_eq!(check("tools/package-lock.json", &line("10.0.0.1:4873")).len(), 1);
        assert_eq!(
            check("fuzz/Cargo.lock", "source = \"registry+https://mirror/index\"\n").len(),
            1
        );
    }
}
