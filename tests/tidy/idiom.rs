//! Plain English: words and phrases of the former house style that must not return to Markdown, comments, messages and names.
//!
//! `COVERED` lists the checked folders. To check another one: `TIDY_IDIOM=folder cargo test --test tidy idiom`.

use std::path::Path;

use super::walk;

/// Files and folders that are checked, Markdown and Rust alike.
const COVERED: &[&str] = &[
    "CHANGELOG.md",
    "README.md",
    "benches/",
    "fuzz/src/",
    "src/activity/",
    "src/admin/",
    "src/architecture.md",
    "src/cli/",
    "src/config/",
    "src/catalog/",
    "src/downstream/",
    "src/fleet/",
    "src/gateway/",
    "src/guide/",
    "src/json/",
    "src/lib.rs",
    "src/main.rs",
    "src/policy/",
    "src/protocol/",
    "src/reference/",
    "src/runtime/",
    "src/schema/",
    "src/server/",
    "src/upstream/",
    "tests/",
    "tools/",
];

/// This file, which contains all of the forbidden words.
const WORD_LIST: &str = "tests/tidy/idiom.rs";

/// Phrases forbidden in prose, and their replacements. Written in lower case, and matched as whole words.
const PHRASES: &[(&str, &str)] = &[
    ("told", "reported, notified, a status word"),
    ("wish", "request, command"),
    ("wishes", "requests, commands"),
    ("door", "entry point, channel, interface"),
    ("doors", "entry points, channels, interfaces"),
    ("the room", "the queue, the space"),
    ("rooms", "modules, queues"),
    ("floors", "layers"),
    ("the face", "downstream"),
    ("each face", "each transport"),
    ("era", "protocol family, revision"),
    ("eras", "protocol families, revisions"),
    ("mend", "repair, fix"),
    ("mends", "repairs, fixes"),
    ("mended", "repaired, fixed"),
    ("mending", "repair, correction"),
    ("anew", "again, rebuild, restart"),
    ("hungry", "starved"),
    ("doubted", "suspected"),
    ("heard", "received, observed"),
    ("hears", "receives"),
    ("goes on", "continues, is forwarded"),
    ("go on", "continue"),
    ("went on", "continued"),
    ("gone on with", "continued"),
    ("goes on record", "is recorded"),
    ("handed on", "forwarded"),
    ("hands on", "forwards"),
    ("let in", "accepted, admitted"),
    ("lets in", "admits"),
    ("let out", "sent"),
    ("beats", "overrides"),
    ("taken up", "resumed, applied"),
    ("who lives", "membership, living nodes"),
    ("became of", "the outcome"),
    ("comes of", "the result"),
    ("came of", "the result"),
    ("comes to nothing", "fails"),
    ("fates", "outcomes"),
    ("seldom", "rarely"),
    ("ever more", "increasingly"),
    ("one and the same", "the same"),
    ("in hand", "in progress"),
    ("its turn", "its permit, its slot"),
    ("their turn", "their permit, their slot"),
    ("of then", "at that time"),
    ("without a word", "silently"),
    ("in the place of", "instead of, in place of"),
    ("is another than", "differs from"),
    ("by hand of", "by"),
    ("the house", "the repository"),
    ("approvals that stand", "standing approvals"),
    ("approval that stands", "standing approval"),
    ("means it ill", "is hostile"),
    ("whoever", "anyone who, the client that, regardless of"),
    // British spelling.
    ("colour", "color"),
    ("colours", "colors"),
    ("behaviour", "behavior"),
    ("honoured", "honored"),
    ("favour", "favor"),
    ("neighbour", "neighbor"),
    ("neighbours", "neighbors"),
    ("organisation", "organization"),
    ("organisations", "organizations"),
    ("recognisable", "recognizable"),
    ("recognised", "recognized"),
    ("optimisation", "optimization"),
    ("optimised", "optimized"),
    ("normalised", "normalized"),
    ("serialised", "serialized"),
    ("initialised", "initialized"),
    ("licence", "license"),
    ("misspelt", "misspelled"),
    ("spelt", "spelled"),
    ("judgement", "verdict, evaluation"),
    ("catalogue", "catalog"),
    ("centre", "center"),
];

/// Words forbidden in names of functions.
const NAME_WORDS: &[&str] = &[
    "told", "wish", "wishes", "wished", "door", "doors", "mend", "mends", "mended", "anew",
    "hungry", "doubted", "eras", "nobody", "nobodys", "somebody", "whoever", "fates", "seldom",
];

/// First words that make a doc comment a question, a free relative or a bare quantifier.
const OPENINGS: &[&str] =
    &["What ", "Which ", "Who ", "Whose ", "Most ", "All of ", "Says ", "Tells "];

/// Permitted uses: the file or folder, the text around the phrase, and the reason.
const ALLOWED: &[(&str, &str, &str)] = &[
    ("", "told apart", "distinguished"),
    ("", "the room for", "space"),
    ("", "doors open", "never a module"),
    ("src/activity/redact/table.rs", "licence key", "the name of a secret to redact"),
];

/// Piece of prose or a name, with its line number.
struct Piece {
    line: usize,
    kind: Kind,
    text: String,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    Prose,
    /// The first line of a doc comment.
    Opening,
    Name,
}

/// Problems of one file.
fn idiom(path: &str, text: &str) -> Vec<String> {
    let pieces = if path.ends_with(".md") { of_markdown(text) } else { of_rust(text) };
    let mut found = Vec::new();
    for piece in pieces {
        let text = piece.text.to_lowercase();
        let bad: Vec<String> = match piece.kind {
            Kind::Name => text
                .split('_')
                .filter(|word| NAME_WORDS.contains(word))
                .map(|word| format!("'{word}' in the name {}", piece.text))
                .collect(),
            Kind::Prose | Kind::Opening => {
                let opening = OPENINGS
                    .iter()
                    .filter(|begin| piece.kind == Kind::Opening && piece.text.starts_with(**begin))
                    .map(|begin| format!("a doc comment opens with '{}'", begin.trim()));
                let phrases = PHRASES.iter().filter(|(phrase, _)| has(path, &text, phrase));
                opening
                    .chain(phrases.map(|(phrase, instead)| format!("'{phrase}': write {instead}")))
                    .collect()
            }
        };
        found.extend(bad.into_iter().map(|bad| format!("{path}:{}: {bad}", piece.line)));
    }
    found
}

/// True if `text` has the phrase as whole words, in a use that is not permitted.
fn has(path: &str, text: &str, phrase: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == '\'' || c == '-';
    text.match_indices(phrase).any(|(at, _)| {
        let (before, after) = (text.get(..at), text.get(at + phrase.len()..));
        let before = before.and_then(|before| before.chars().next_back());
        let after = after.and_then(|after| after.chars().next());
        let is_whole = !before.is_some_and(is_word) && !after.is_some_and(is_word);
        let is_allowed = ALLOWED.iter().any(|(file, around, _)| {
            path.starts_with(file)
                && around.find(phrase).is_some_and(|offset| {
                    let from = at.checked_sub(offset);
                    from.is_some_and(|from| {
                        text.get(from..).is_some_and(|it| it.starts_with(around))
                    })
                })
        });
        is_whole && !is_allowed
    })
}

/// Prose of a page, without code blocks and code spans.
fn of_markdown(text: &str) -> Vec<Piece> {
    let mut in_block = false;
    let mut pieces = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        if text.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if !in_block {
            pieces.push(Piece { line, kind: Kind::Prose, text: without_code(text) });
        }
    }
    pieces
}

/// A line without its code spans.
fn without_code(text: &str) -> String {
    text.split('`').step_by(2).collect::<Vec<_>>().join("`")
}

/// Comments, string literals, and names of functions.
fn of_rust(text: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut is_in_doc = false;
    let mut in_block = false;
    for (line, text) in (1..).zip(text.lines()) {
        let code = text.trim_start();
        let doc = ["/// ", "//! "].iter().find_map(|begin| code.strip_prefix(begin));
        if let Some(doc) = doc {
            if doc.starts_with("```") {
                in_block = !in_block;
            } else if !in_block {
                let kind = if is_in_doc { Kind::Prose } else { Kind::Opening };
                pieces.push(Piece { line, kind, text: without_code(doc) });
            }
            is_in_doc = true;
            continue;
        }
        // An empty doc line does not end the comment.
        is_in_doc = matches!(code, "///" | "//!");
        in_block &= is_in_doc;
        if let Some(at) = code.find("fn ").filter(|at| code.get(..*at).is_some_and(is_signature)) {
            let name = code.get(at + 3..).unwrap_or_default();
            let end = name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len());
            let text = name.get(..end).unwrap_or_default().to_owned();
            pieces.push(Piece { line, kind: Kind::Name, text });
        }
        let (strings, comment) = of_line(code);
        let prose = strings.into_iter().filter(|text| text.contains(' ')).chain(comment);
        pieces.extend(prose.map(|text| Piece {
            line,
            kind: Kind::Prose,
            text: without_code(&text),
        }));
    }
    pieces
}

/// True for the words before `fn` in a signature.
fn is_signature(before: &str) -> bool {
    before.split_whitespace().all(|word| {
        ["pub", "const", "async", "unsafe", "extern"].contains(&word) || word.starts_with("pub(")
    })
}

/// String literals of a line, and its comment. Of a literal that spans several lines, only parts with both quotes on
/// one line are found.
fn of_line(code: &str) -> (Vec<String>, Option<String>) {
    let mut strings = Vec::new();
    let mut rest = code;
    loop {
        let quote =
            rest.find('"').filter(|at| !rest.get(..*at).is_some_and(|it| it.ends_with('\'')));
        let comment = rest.find("//");
        match (quote, comment) {
            (Some(at), comment) if comment.is_none_or(|comment| at < comment) => {
                let inner = rest.get(at + 1..).unwrap_or_default();
                let end = end_of_literal(inner);
                strings.push(inner.get(..end).unwrap_or_default().to_owned());
                rest = inner.get(end + 1..).unwrap_or_default();
            }
            (_, Some(at)) => return (strings, rest.get(at + 2..).map(str::to_owned)),
            _ => return (strings, None),
        }
    }
}

fn end_of_literal(inner: &str) -> usize {
    let mut is_escaped = false;
    for (at, c) in inner.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return at,
            _ => {}
        }
    }
    inner.len()
}

/// Problems below one path.
fn found_below(folder: &str) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = root.join(folder);
    let mut found = Vec::new();
    if path.is_file() {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        found.extend(idiom(folder, &text));
    } else {
        walk(root, &path, &mut |path, text| {
            if path != WORD_LIST && (path.ends_with(".md") || path.ends_with(".rs")) {
                found.extend(idiom(path, text));
            }
        });
    }
    found
}

#[test]
fn covered_folders_contain_no_forbidden_idiom() {
    let more = std::env::var("TIDY_IDIOM").unwrap_or_default();
    let more = more.split(',').filter(|folder| !folder.is_empty());
    let found: Vec<String> = COVERED.iter().copied().chain(more).flat_map(found_below).collect();
    assert!(found.is_empty(), "{} problems:\n{}", found.len(), found.join("\n"));
}

#[test]
fn covered_folders_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for folder in COVERED {
        assert!(root.join(folder).exists(), "{folder}");
    }
}

#[test]
fn idiom_is_found_in_prose_messages_and_names() {
    for (path, text, bad) in [
        ("a.md", "Clients are told of it.", 1),
        ("a.md", "Told once, and mended.", 2),
        ("a.md", "They can be told apart.", 0),
        ("a.md", "The member `told` and `door`.", 0),
        ("a.md", "```sh\nmcpproxy told\n```\nfine", 0),
        ("a.md", "Retold, an untold outdoor era-like story", 0),
        ("a.rs", "//! Which nodes live.", 1),
        ("a.rs", "//! Failure detector.\n//!\n//! Which nodes count is configured.", 0),
        ("a.rs", "/// Token bucket per upstream.\nfn a() {}", 0),
        ("a.rs", "/// Most bytes of a value.\nconst A: u8 = 1;", 1),
        ("a.rs", "/// Max bytes of a value.\n/// Most clients send less.", 0),
        ("a.rs", "let a = \"clients are told\";", 1),
        ("a.rs", "let a = \"told\";", 0),
        ("a.rs", "let a = \"no // told \\\" here\"; // fine", 1),
        ("a.rs", "let a = 1; // goes on", 1),
        ("a.rs", "fn a_client_is_told() {", 1),
        ("a.rs", "pub(crate) async fn door() {", 1),
        ("a.rs", "let told = 1;", 0),
        ("a.rs", "let quote = '\"'; // told", 1),
        ("a.rs", "//! ```text\n//! Which is told\n//! ```", 0),
    ] {
        assert_eq!(idiom(path, text).len(), bad, "{path}: {text}");
    }
}
