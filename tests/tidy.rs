//! The house keeps its shape: floors, seams, headers, sizes, and what must not be in a file.
//!
//! Reads the sources as text, simply: it does not parse Rust, and a line that tries to fool it can.
//! Every checker is tried on bad snippets below, so that none of them is blind.
//!
//! Size: the tables of floors and seams, and each checker beside the snippets that it is tried on.

#[path = "tidy/circles.rs"]
mod circles;
#[path = "tidy/protocol.rs"]
mod protocol;
#[path = "tidy/types.rs"]
mod types;

use std::fs;
use std::path::Path;

/// The modules of each floor, lowest first. A file may use its own module and lower floors.
const FLOORS: &[&[&str]] = &[
    &["json", "wire", "mcp", "io", "os", "nearest", "hidden_text", "guide", "reference"],
    &["tool", "intent", "policy", "schema", "output", "secrets"],
    &["catalog", "activity", "approvals", "telemetry", "identity", "results", "fleet"],
    &["upstream", "embeddings"],
    &["proxy"],
    &["downstream", "api", "page"],
    &["config", "server"],
    &["cli"],
];

/// The few that may look sideways, and why.
const SIDEWAYS: &[(&str, &str)] = &[
    ("mcp", "json"),        // a message's members are read as slices of its text
    ("io", "mcp"),          // an answer's head keeps the session's id
    ("io", "wire"),         // lines are read as they are framed
    ("io", "os"),           // files of certificates are read with bounds
    ("tool", "schema"),     // a tool holds its compiled schema
    ("tool", "output"),     // and the policy for its answers
    ("intent", "tool"),     // a call tool names a tool, whose capability recommends an operation
    ("policy", "intent"),   // admission compares the intent
    ("policy", "tool"),     // with the tool
    ("policy", "output"),   // its tests build one
    ("output", "schema"),   // a verdict holds a violation
    ("fleet", "activity"),  // what is sealed is what the log has committed
    ("api", "downstream"),  // both are HTTP: bodies and guards are shared
    ("page", "downstream"), // the same
    ("server", "config"),   // the server is made of the config
];

/// Crates that are used behind one folder or file only.
const SEAMS: &[(&str, &[&str])] = &[
    ("simd_json", &["src/json/", "src/schema/"]),
    ("boon", &["src/schema/"]),
    ("jsonschema", &["src/schema/"]),
    ("rust_stemmers", &["src/catalog/search/thesaurus.rs"]),
    ("unicode_normalization", &["src/catalog/search/words.rs"]),
    ("cedar_policy", &["src/policy/rules/"]),
    ("fjall", &["src/activity/store.rs", "src/activity/store/", "src/catalog/persist.rs"]),
    ("object_store", &["src/fleet/bucket.rs", "src/fleet/bucket/"]),
    ("parquet", &["src/fleet/columns.rs", "src/fleet/columns/"]),
    ("reqwest", &["src/fleet/bucket/client.rs"]),
    ("x509_parser", &["src/io/tls/certificate.rs"]),
    ("hyper", HTTP),
    ("hyper_util", HTTP),
    ("rmcp", &["src/upstream/", "tests/"]),
    ("jsonwebtoken", &["src/identity/"]),
    ("clap", &["src/cli/", "src/cli.rs"]),
    ("icu_properties", &["src/hidden_text.rs"]),
    ("shlex", &["src/cli/terminal_safe.rs"]),
    ("toml_edit", &["src/cli/clients/file.rs"]),
    ("clap_complete", &["src/cli/", "src/cli.rs"]),
    // Not a crate: the word that a call is approved, which only the room says.
    ("Approved", &["src/approvals/", "src/policy/approval.rs", "src/policy/admission.rs"]),
];

const HTTP: &[&str] = &[
    "src/upstream/http.rs",
    "src/upstream/connection.rs",
    "src/downstream/http.rs",
    "src/downstream/body.rs",
    "src/api/",
    "src/api.rs",
    "src/server/connection.rs",
    "src/server/http2_connection.rs",
    "src/server/unread_body.rs",
    "src/server/outgoing_http.rs",
    "src/cli/http_client.rs",
    "src/cli/identity.rs",
    "src/upstream/oauth/client.rs",
    "src/fleet/peers.rs",
];

/// Code that is handed time and randomness, and neither waits nor logs.
const PURE: &[&str] = &[
    "src/identity/agent_secret.rs",
    "src/identity/change.rs",
    "src/identity/jwt.rs",
    "src/identity/key_set.rs",
    "src/identity/signature.rs",
    "src/json",
    "src/wire",
    "src/mcp",
    "src/nearest.rs",
    "src/hidden_text.rs",
    "src/io/http1",
    "src/io/buffer_pool.rs",
    "src/tool",
    "src/intent",
    "src/policy",
    "src/schema",
    "src/output",
    "src/secrets",
    "src/activity/bytes.rs",
    "src/activity/codec.rs",
    "src/activity/gap.rs",
    "src/downstream/ended_sessions.rs",
    "src/downstream/session_ticket.rs",
    "src/fleet/chain_check",
    "src/fleet/chain_place.rs",
    "src/fleet/cluster_key.rs",
    "src/fleet/checkpoint.rs",
    "src/fleet/columns",
    "src/fleet/facts/config_fact.rs",
    "src/fleet/facts/fact_object.rs",
    "src/fleet/facts/fact_reader",
    "src/fleet/facts/fact_relay.rs",
    "src/fleet/facts/fact_saying.rs",
    "src/fleet/facts/fact_turns.rs",
    "src/fleet/facts/fact_set.rs",
    "src/fleet/facts/sealed_object.rs",
    "src/fleet/following",
    "src/fleet/hash_tree.rs",
    "src/fleet/heartbeat.rs",
    "src/fleet/line_budget.rs",
    "src/fleet/living_nodes",
    "src/fleet/peer_wire.rs",
    "src/fleet/putting.rs",
    "src/fleet/record_rows.rs",
    "src/fleet/sealed_id.rs",
    "src/fleet/sealing.rs",
    "src/fleet/segment.rs",
    "src/fleet/signed_note.rs",
    "src/fleet/strays.rs",
    "src/fleet/watch_place.rs",
    "src/catalog/definition",
    "src/catalog/grade",
    "src/catalog/pins",
    "src/catalog/replacing.rs",
    "src/catalog/reviewing.rs",
    "src/catalog/scan",
    "src/catalog/search",
    "src/catalog/snapshot.rs",
    "src/activity/query.rs",
    "src/results/handle.rs",
    "src/results/parts.rs",
    "src/results/query.rs",
    "src/results/readable.rs",
    "src/results/shape.rs",
    "src/activity/record",
    "src/activity/redact",
    "src/activity/segment.rs",
    "src/activity/show.rs",
    "src/activity/stats",
    "src/activity/text_search.rs",
    "src/upstream/inbound",
    "src/upstream/pending.rs",
];

/// What pure code does not use.
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

/// Most lines of a file whose header gives no reason (a line `//! Size: …`).
const MAX_LINES: usize = 600;

/// The top level: what must be there, and what may be.
const REQUIRED: &[&str] = &["Cargo.toml", "src", "benches", "fuzz", "tests", "tools", "README.md"];
const ALLOWED: &[&str] = &["Cargo.lock", "LICENSE", "CHANGELOG.md", "target"];

/// Marks of unfinished work. Spelled apart, so that this file is not one.
const UNFINISHED: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X:"),
    concat!("todo", "!("),
    concat!("unimplemented", "!("),
    concat!("dbg", "!("),
    concat!("#[ig", "nore"),
];

/// Paths and hosts of the machine that something was made on.
const PLACES: &[&str] = &[
    concat!("/wo", "rk/"),
    concat!("/ro", "ot/"),
    concat!("/Us", "ers/"),
    concat!(".cargo/", "registry"),
    concat!("arti", "factory"),
    concat!("registry.", "npmjs"),
    concat!("python", "hosted"),
];

/// Papers that are not in the repository: what they said is in the reference.
const PAPERS: &[&str] = &[
    concat!("SPE", "C §"),
    concat!("CONTR", "ACTS"),
    concat!("DESI", "GN §"),
    concat!("FAC", "TS §"),
];

/// Where each id that a comment or a test's name cites has an anchor.
const REQUIREMENTS: &str = include_str!("../src/reference/requirements.md");

/// What those ids begin with.
const CITED: &[&str] = &["FR", "CAP", "ACT", "SC"];

/// Hosts that a lock file may name.
const PUBLIC_HOSTS: &[&str] =
    &["github.com", concat!("registry.", "npmjs.org"), concat!("files.python", "hosted.org")];

#[test]
fn the_house_is_tidy() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = top_level(&names(root));
    let mut seen = 0;
    for folder in ["src", "benches", "fuzz", "tests", "tools"] {
        walk(root, &root.join(folder), &mut |path, text| {
            seen += 1;
            found.extend(check(path, text).into_iter().map(|problem| format!("{path}: {problem}")));
        });
    }
    assert!(seen > 30, "only {seen} files were looked at");
    assert!(found.is_empty(), "{} problems:\n{}", found.len(), found.join("\n"));
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Every text file below `folder` that we wrote, with its path from `root`.
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

/// Everything that is wrong with one file.
fn check(path: &str, text: &str) -> Vec<String> {
    if is_lock_file(path) {
        return foreign_hosts(text);
    }
    let mut found = marks(text);
    found.extend(citations(text));
    if path.ends_with(".rs") {
        // A fuzz target is three lines around a body that has a header.
        if !path.starts_with("fuzz/fuzz_targets/") {
            found.extend(header(text));
        }
        found.extend(size(text));
        found.extend(bare_allows(text));
        found.extend(seams(path, text));
        found.extend(floors(path, text));
        found.extend(purity(path, text));
        found.extend(unsafe_code(path, text));
    }
    found
}

fn is_lock_file(path: &str) -> bool {
    path.ends_with(".lock") || path.ends_with("-lock.json")
}

fn foreign_hosts(text: &str) -> Vec<String> {
    // What a package names as its home page is its own affair.
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

/// Ids that are cited and are no requirement.
fn citations(text: &str) -> Vec<String> {
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

/// The ids in a line, as anchors: those of `FR-008`, of each in `FR-A2..A12`, of `fn cap_3_some_test`.
fn cited(line: &str) -> Vec<String> {
    let mut ids = Vec::new();
    for prefix in CITED {
        let (word, name) = (format!("{prefix}-"), format!("fn {}_", prefix.to_lowercase()));
        for (at, _) in line.match_indices(&word) {
            let before = line.get(..at).and_then(|before| before.chars().next_back());
            let rest = line.get(at + word.len()..).unwrap_or_default();
            if before.is_some_and(|c| c.is_alphanumeric() || c == '-' || c == '_') {
                continue;
            }
            let Some((series, first, rest)) = numbered(rest, 'A') else { continue };
            let last = rest.strip_prefix("..").and_then(|rest| numbered(rest, 'A'));
            let (from, to) = (first.parse().unwrap_or(0), last.map(|(_, last, _)| last.parse()));
            for number in from..=to.and_then(Result::ok).unwrap_or(from) {
                let number: u32 = number;
                let id = format!("{prefix}-{series}{number:0width$}", width = first.len());
                ids.push(id.to_lowercase());
            }
        }
        for (at, _) in line.match_indices(&name) {
            let rest = line.get(at + name.len()..).unwrap_or_default();
            ids.extend(
                numbered(rest, 'a')
                    .map(|(series, number, _)| format!("{prefix}-{series}{number}").to_lowercase()),
            );
        }
    }
    ids
}

/// The series (a letter, or nothing), the digits, and what follows them.
fn numbered(text: &str, series: char) -> Option<(&str, &str, &str)> {
    let (series, rest) = text.split_at(usize::from(text.starts_with(series)));
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (digits, rest) = rest.split_at(end);
    (!digits.is_empty()).then_some((series, digits, rest))
}

fn header(text: &str) -> Option<String> {
    let first = text.lines().next().unwrap_or_default();
    let said = first.strip_prefix("//! ").is_some_and(|rest| !rest.trim().is_empty());
    (!said).then(|| "does not open with //! and what it owns".to_owned())
}

fn size(text: &str) -> Option<String> {
    let lines = text.lines().count();
    let reason = text
        .lines()
        .take_while(|line| line.starts_with("//!"))
        .any(|line| line.strip_prefix("//! Size: ").is_some_and(|reason| !reason.is_empty()));
    (lines > MAX_LINES && !reason).then(|| format!("{lines} lines, and no reason (//! Size: …)"))
}

/// `allow` and `expect` attributes that do not say why, in themselves or just above.
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

/// The lines of code, numbered: without comments, and without what looks like one.
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

fn floor(module: &str) -> Option<usize> {
    FLOORS.iter().position(|floor| floor.contains(&module))
}

fn floors(path: &str, text: &str) -> Vec<String> {
    let Some(rest) = path.strip_prefix("src/") else { return Vec::new() };
    let own = rest.split(['/', '.']).next().unwrap_or_default();
    if matches!(own, "main" | "lib") {
        return Vec::new();
    }
    let Some(own_floor) = floor(own) else { return vec![format!("{own} is on no floor")] };
    let mut found = Vec::new();
    for (number, line) in code(text) {
        for used in crate_modules(line) {
            let lower = floor(used).is_some_and(|floor| floor < own_floor);
            if !(lower || used == own || SIDEWAYS.contains(&(own, used))) {
                found.push(format!("line {number}: {own} uses {used}, which is not below it"));
            }
        }
    }
    found
}

/// The modules of ours that a line names: `crate::a`, `crate::{a, b::c}`, `mcpproxy::a`.
fn crate_modules(line: &str) -> Vec<&str> {
    let mut modules = Vec::new();
    for root in ["crate::", "mcpproxy::"] {
        for (at, _) in line.match_indices(root) {
            let rest = line.get(at + root.len()..).unwrap_or_default();
            match rest.strip_prefix('{') {
                Some(group) => modules.extend(group.split(',').filter_map(first_word)),
                None => modules.extend(first_word(rest)),
            }
        }
    }
    modules
}

fn first_word(text: &str) -> Option<&str> {
    let text = text.trim_start();
    let end = text.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(text.len());
    text.get(..end).filter(|word| !word.is_empty())
}

fn purity(path: &str, text: &str) -> Vec<String> {
    if !PURE.iter().any(|pure| path.starts_with(pure)) {
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
    //! Each checker sees what it is for, and nothing else.

    use super::*;

    const HEAD: &str = "//! Owns something.\n";

    fn problems(path: &str, body: &str) -> usize {
        check(path, &format!("{HEAD}{body}\n")).len()
    }

    #[test]
    fn floors_are_kept() {
        for (path, line, bad) in [
            ("src/json/scan.rs", "use crate::json::span::Span;", 0),
            ("src/json/scan.rs", "use crate::wire::sse;", 1),
            ("src/mcp/shapes.rs", "use crate::io::clock;", 1),
            ("src/downstream/http.rs", "use crate::server::X;", 1),
            ("src/json/scan.rs", "use crate::tool::Tool;", 1),
            ("src/tool.rs", "use crate::json::span::Span;", 0),
            ("src/tool.rs", "use crate::output::Policy;", 0),
            ("src/tool.rs", "use crate::intent::Permit;", 1),
            ("src/catalog/search.rs", "use crate::activity::record;", 1),
            ("src/upstream/http.rs", "let x = crate::proxy::call::go();", 1),
            ("src/upstream/http.rs", "pub(crate) use crate::{catalog, cli};", 1),
            ("src/upstream/http.rs", "// crate::proxy is above", 0),
            ("src/cli/args.rs", "use crate::server;", 0),
            ("src/main.rs", "mcpproxy::cli::run()", 0),
            ("src/attic.rs", "", 1),
            ("tests/e2e/main.rs", "use mcpproxy::server;", 0),
        ] {
            assert_eq!(problems(path, line), bad, "{path}: {line}");
        }
    }

    #[test]
    fn seams_are_kept() {
        for (path, line, bad) in [
            ("src/schema/judge.rs", "use boon::Compiler;", 0),
            ("src/catalog/snapshot.rs", "use boon::Compiler;", 1),
            ("src/catalog/snapshot.rs", "fn baboon::x()", 0),
            ("src/activity/writer.rs", "fjall::Keyspace::open()", 1),
            ("src/proxy/call.rs", "use hyper::body::Body;", 1),
            ("src/downstream/http.rs", "use hyper::body::Body;", 0),
            ("src/proxy/call.rs", "use crate::hyper::x;", 1),
            ("src/server.rs", "use clap::Parser;", 1),
            ("tests/e2e/main.rs", "use hyper::body::Body;", 0),
        ] {
            assert_eq!(problems(path, line), bad, "{path}: {line}");
        }
    }

    #[test]
    fn pure_code_is_pure_and_unsafe_is_at_home() {
        for (path, line, bad) in [
            ("src/json/tape.rs", "let now = std::time::Instant::now();", 1),
            ("src/intent/stated.rs", "tracing::warn!(\"x\");", 1),
            ("src/catalog/saving.rs", "tracing::warn!(\"x\");", 0),
            ("src/json/tape.rs", "let x = unsafe { y() };", 1),
            ("src/json/scan/avx2.rs", "let x = unsafe { y() };", 0),
        ] {
            assert_eq!(problems(path, line), bad, "{path}: {line}");
        }
    }

    #[test]
    fn files_say_what_they_own_and_stay_small() {
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
    fn nothing_is_unfinished_or_allowed_without_a_reason() {
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
    fn what_is_cited_is_a_requirement() {
        for (line, ids) in [
            ("// FR-017, and (ACT-4)", &["fr-017", "act-4"][..]),
            ("// FR-008..010", &["fr-008", "fr-009", "fr-010"]),
            ("// FR-A9..A11", &["fr-a9", "fr-a10", "fr-a11"]),
            ("async fn fr_a5_once() {", &["fr-a5"]),
            ("fn cap_3_and_more() {", &["cap-3"]),
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
    fn the_top_level_is_the_cards() {
        let with = |more: &[&str]| {
            let names = REQUIRED.iter().chain(ALLOWED).chain(more);
            top_level(&names.map(ToString::to_string).collect::<Vec<_>>())
        };
        assert!(with(&[".gitignore", ".ci"]).is_empty());
        assert_eq!(with(&["examples"]), ["examples does not belong at the top level"]);
        assert_eq!(top_level(&[]).len(), REQUIRED.len());
    }

    #[test]
    fn lock_files_name_public_hosts_only() {
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
