//! The config file: location, permissions, the generated API key, edits, and checks of this machine.
//!
//! An API key is generated at the first start and inserted into the text, which is otherwise unchanged. The machine
//! checks of `config check` (commands exist, variables are set, the data directory is writable, rules are valid) do
//! not change anything and neither start servers nor connect to them; at startup, unusable servers are skipped
//! instead.

use crate::CONFIG_SCHEMA;
use crate::Environment;
use crate::document::{ConfigDocument, Findings};
use crate::fleet_config::SharedConfig;
use crate::parse::{Flags, Parsed, expand_home, parse_all, wrong};
use crate::problem::{KeyPath, Problem, Severity};
use crate::sections::{ApiKey, TlsFiles, check_search_key};
use crate::servers::ServerEntry;
use crate::values::Config;
use crate::{rule_files, servers};
use jsonc_parser::common::Ranged;
use mcpproxy_runtime::os::bounded_file::{NamedPipes, PIPE_WAIT, Unreadable};
use mcpproxy_runtime::os::{bounded_file, edited_file};
use mcpproxy_upstream::Mistake;
use nix::unistd::{AccessFlags, access};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use std::{fmt, fs, io};

/// Maximum size of a config file in bytes.
pub const MAX_FILE_BYTES: u64 = 16 * 1024 * 1024;

/// Name of the JSON Schema file written next to the config for editors.
pub const SCHEMA_FILE: &str = "mcp_config.schema.json";

/// Random bytes of a generated key, written as hex digits.
pub const API_KEY_BYTES: usize = 32;

/// Default config file.
const DEFAULT_PATH: &str = "~/.mcpproxy/mcp_config.json";

/// Waits for the writer of a named pipe, such as a shell's `<(…)`. Only startup waits; a running proxy does not.
const AWAITED: NamedPipes = NamedPipes::Awaited(PIPE_WAIT);

/// Permission bits of other users.
const OTHERS: u32 = 0o077;

/// A config with its origin.
#[derive(Clone, Debug)]
pub struct Loaded {
    pub config: Config,
    /// Path of the file, which may not exist.
    pub path: PathBuf,
    pub warnings: Vec<Problem>,
    content: FileContent,
}

/// Content of a config file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileContent {
    NotThere,
    Blank,
    Text,
}

impl FileContent {
    fn of(text: Option<&str>) -> Self {
        match text.map(|text| text.trim_matches('\u{feff}').trim()) {
            None => Self::NotThere,
            Some("") => Self::Blank,
            Some(_) => Self::Text,
        }
    }
}

impl Config {
    /// Reads the file at `path`, or else at `MCPPROXY_CONFIG`, or else the default file. If that file does not exist,
    /// the defaults apply. Read-only. Fails with all problems.
    pub fn load(
        path: Option<&Path>,
        env: Environment<'_>,
        flags: &Flags,
    ) -> Result<Loaded, Vec<Problem>> {
        load(path, AWAITED, (env, flags), |_| {})
    }

    /// Like [`Self::load`], and checks that this machine has everything the config names; an unusable server is an
    /// error.
    pub fn check(
        path: Option<&Path>,
        env: Environment<'_>,
        flags: &Flags,
    ) -> Result<Loaded, Vec<Problem>> {
        load(path, AWAITED, (env, flags), |parsed| check_machine(parsed, env))
    }
}

/// Reloads a file: unlike at startup, a missing or empty file is an error.
pub fn load_again(
    path: &Path,
    env: Environment<'_>,
    flags: &Flags,
) -> Result<Loaded, Vec<Problem>> {
    const MISSING: &str = "no longer exists";
    let wrong = |text: &str| Err(vec![Problem::of_file(Severity::Error, path, text.to_owned())]);
    match fs::metadata(path) {
        Ok(found) if found.is_file() => {}
        Ok(_) => return wrong("is not a regular file"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return wrong(MISSING),
        Err(error) => return wrong(&format!("cannot be read: {error}")),
    }
    let loaded = load(Some(path), NamedPipes::Refused, (env, flags), |_| {})?;
    match loaded.content {
        FileContent::NotThere => wrong(MISSING),
        // The writer has probably just truncated the file.
        FileContent::Blank => wrong("is empty: write {} for the defaults"),
        FileContent::Text => Ok(loaded),
    }
}

fn load(
    path: Option<&Path>,
    pipes: NamedPipes,
    (env, flags): (Environment<'_>, &Flags),
    check: impl FnOnce(&mut Parsed<'_>),
) -> Result<Loaded, Vec<Problem>> {
    let path = locate(path, env).map_err(|problem| vec![problem])?;
    let mut of_file = Vec::new();
    let text = match read(&path, pipes) {
        Ok((text, mode)) => {
            if mode & OTHERS != 0 {
                let text = format!(
                    "the file may contain keys and is accessible to others (mode {mode:03o}): chmod 600 it"
                );
                of_file.push(Problem::of_file(Severity::Warning, &path, text));
            }
            Some(text)
        }
        Err(error) if error.is_absent() => None,
        Err(error) => {
            let text = format!("cannot be read: {error}");
            return Err(vec![Problem::of_file(Severity::Error, &path, text)]);
        }
    };
    load_text(path, text.as_deref(), of_file, (env, flags), check)
}

/// Validates `text` as a proposed content of the file at `path`.
pub fn load_proposed(
    path: &Path,
    text: &str,
    env: Environment<'_>,
    flags: &Flags,
) -> Result<Loaded, Vec<Problem>> {
    load_text(path.to_owned(), Some(text), Vec::new(), (env, flags), |_| {})
}

/// Validates a proposed fleet config together with the node's own file.
pub fn load_shared(
    path: &Path,
    shared: &SharedConfig,
    env: Environment<'_>,
    flags: &Flags,
) -> Result<Loaded, Vec<Problem>> {
    let text = text(path).map_err(|problem| vec![problem])?;
    let data_dir = data_dir_in(&text, env, flags);
    load_over(path.to_owned(), &text, (shared, &data_dir), (env, flags), |_| {})
}

fn load_text(
    path: PathBuf,
    text: Option<&str>,
    of_file: Vec<Problem>,
    (env, flags): (Environment<'_>, &Flags),
    check: impl FnOnce(&mut Parsed<'_>),
) -> Result<Loaded, Vec<Problem>> {
    let own = text.unwrap_or_default();
    let parsed = parse_all(own, env, flags);
    let config = &parsed.config;
    if config.cluster.membership().is_some() && config.cluster.key.is_some() {
        let data_dir = config.data_dir.clone();
        if let Some(shared) = SharedConfig::kept(&data_dir).map_err(|problem| vec![problem])? {
            return load_over(path, own, (&shared, &data_dir), (env, flags), check);
        }
    }
    finish(parsed, (path, None), of_file, FileContent::of(text), env, check)
}

/// Combines a node's own text with its fleet's config.
fn load_over(
    path: PathBuf,
    own: &str,
    (shared, data_dir): (&SharedConfig, &Path),
    (env, flags): (Environment<'_>, &Flags),
    check: impl FnOnce(&mut Parsed<'_>),
) -> Result<Loaded, Vec<Problem>> {
    let (text, kept) = shared.text_over(own, data_dir);
    let mut parsed = parse_all(&text, env, flags);
    parsed.config.fleet_config = Some(shared.hash().into());
    parsed.config.rules.shared = shared.files().to_vec();
    let content = FileContent::of(Some(own));
    finish(parsed, (path, Some(kept)), Vec::new(), content, env, check)
}

/// Final steps of loading; `reported` is the file that problems refer to, if it is not `path`.
fn finish(
    mut parsed: Parsed<'_>,
    (path, reported): (PathBuf, Option<PathBuf>),
    mut of_file: Vec<Problem>,
    content: FileContent,
    env: Environment<'_>,
    check: impl FnOnce(&mut Parsed<'_>),
) -> Result<Loaded, Vec<Problem>> {
    resolve_relative_paths(path.parent().unwrap_or(Path::new("")), &mut parsed.config, env);
    check(&mut parsed);
    match parsed.finish(Some(reported.as_deref().unwrap_or(&path))) {
        Ok((config, warnings)) => {
            of_file.extend(warnings);
            Ok(Loaded { config, path, warnings: of_file, content })
        }
        Err(problems) => {
            of_file.extend(problems);
            Err(of_file)
        }
    }
}

/// Resolves relative paths of files named in the config.
fn resolve_relative_paths(folder: &Path, config: &mut Config, env: Environment<'_>) {
    let of_tls = config.tls.iter_mut().flat_map(TlsFiles::paths);
    for file in config.rules.files.iter_mut().chain(of_tls) {
        *file = folder.join(&*file);
    }
    let home = expand_home(Path::new("~"), env);
    for tls in config.servers.iter_mut().filter_map(|server| server.upstream.tls.as_mut()) {
        tls.resolve_paths(folder, home.as_deref());
    }
}

impl Loaded {
    /// Ensures that there is an API key: generates one from `random` and writes it into the file, which is created if
    /// necessary (0600, its directory 0700). Returns whether it was generated.
    pub fn ensure_api_key(&mut self, random: [u8; API_KEY_BYTES]) -> Result<bool, Problem> {
        if self.config.api_key.is_some() {
            return Ok(false);
        }
        let made: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let written = edited_file::edit(&self.path, MAX_FILE_BYTES, |text| {
            let text = text.unwrap_or_default();
            // Another process may have generated one in the meantime.
            let there = api_key_in(text);
            let next = there.is_none().then(|| with_api_key(text, &made));
            Ok::<_, Infallible>((next, there))
        });
        let there = written.map_err(|error| {
            let text = format!(
                "cannot write the generated api_key: {error}; MCPPROXY_API_KEY can be set instead"
            );
            Problem::of_file(Severity::Error, &self.path, text)
        })?;
        let is_ours = there.is_none();
        let key = ApiKey::new(there.unwrap_or(made));
        self.config.api_key = Some(key.map_err(|problem| Problem::outside("api_key", problem))?);
        Ok(is_ours)
    }
}

/// Edits the config file. `change` returns the new text (`None`: unchanged) and a result for the caller; it may be
/// called more than once.
pub fn edit<T, E: fmt::Display>(
    path: &Path,
    mut change: impl FnMut(&str) -> Result<(Option<String>, T), E>,
) -> Result<T, Problem> {
    let edited = edited_file::edit(path, MAX_FILE_BYTES, |text| change(text.unwrap_or_default()));
    edited.map_err(|error| Problem::of_file(Severity::Error, path, format!("not changed: {error}")))
}

/// Writes the current JSON Schema next to the config.
pub fn put_schema(path: &Path) -> Result<PathBuf, Problem> {
    let schema = path.with_file_name(SCHEMA_FILE);
    let next = || Ok::<_, Infallible>((Some(CONFIG_SCHEMA.to_owned()), ()));
    edited_file::edit(&schema, MAX_FILE_BYTES, |_| next()).map_err(|error| {
        Problem::of_file(Severity::Error, &schema, format!("not written: {error}"))
    })?;
    Ok(schema)
}

/// The text of a file; empty if it does not exist.
pub fn text(path: &Path) -> Result<String, Problem> {
    match edited_file::read::<Infallible>(path, MAX_FILE_BYTES) {
        Ok(found) => Ok(found.map(|(text, _)| text).unwrap_or_default()),
        Err(error) => {
            let problem = format!("cannot be read: {error}");
            Err(Problem::of_file(Severity::Error, path, problem))
        }
    }
}

/// Path of the file that [`Config::load`] reads.
pub fn locate(path: Option<&Path>, env: Environment<'_>) -> Result<PathBuf, Problem> {
    if let Some(path) = path {
        return Ok(path.to_owned());
    }
    let variable = env("MCPPROXY_CONFIG").filter(|path| !path.is_empty());
    let path = variable.as_deref().unwrap_or(DEFAULT_PATH);
    expand_home(Path::new(path), env).ok_or_else(|| {
        Problem::outside(
            "--config",
            "HOME is not set, so the default file cannot be located: name a file",
        )
    })
}

/// Text and permission bits of a file.
fn read(path: &Path, pipes: NamedPipes) -> Result<(String, u32), Unreadable> {
    let (bytes, metadata) = bounded_file::read(path, MAX_FILE_BYTES, pipes)?;
    #[cfg(unix)]
    let mode = std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o777;
    #[cfg(not(unix))]
    let mode = 0;
    Ok((bounded_file::text(bytes)?, mode))
}

/// Data directory of a possibly invalid config text, with environment and flags applied.
pub fn data_dir_in(text: &str, env: Environment<'_>, flags: &Flags) -> PathBuf {
    let (_, root) = ConfigDocument::parse(text, &mut Vec::new());
    let named = match root.get("data_dir") {
        None => top_level_text(text, "data_dir"),
        Some(_) => None,
    };
    let named = named.map(|named| json!({"data_dir": named}).to_string());
    parse_all(named.as_deref().unwrap_or(text), env, flags).config.data_dir
}

/// Non-empty API key in a possibly invalid config text.
pub fn api_key_in(text: &str) -> Option<String> {
    let (_, root) = ConfigDocument::parse(text, &mut Vec::new());
    let key = root.get("api_key").map(|key| key.as_str().map(str::to_owned));
    key.unwrap_or_else(|| top_level_text(text, "api_key")).filter(|key| !key.is_empty())
}

/// Value of a top-level key of a config text with a syntax error, if the value is a string.
fn top_level_text(text: &str, key: &str) -> Option<String> {
    let (mut rest, mut depth) = (text, 0_usize);
    // Whether the string that follows is the value.
    let mut is_value = false;
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '"' => string_length(rest),
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => rest.find("*/").map_or(rest.len(), |end| end + 2),
            _ => first.len_utf8(),
        };
        let (token, after) = rest.split_at_checked(length)?;
        match first {
            '"' if is_value => return serde_json::from_str(token).ok(),
            '{' | '[' => depth += 1,
            '}' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        let is_key = || serde_json::from_str::<String>(token).is_ok_and(|named| named == key);
        is_value = match first {
            '"' => depth == 1 && after.trim_start().starts_with(':') && is_key(),
            _ => is_value && (first.is_whitespace() || matches!(first, ':' | '/')),
        };
        rest = after;
    }
    None
}

/// Length in bytes of the JSON string at the beginning of a text; the whole text if it is not closed.
fn string_length(text: &str) -> usize {
    let mut is_escaped = true; // the opening quotation mark
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Inserts `api_key` into a config text; order, layout and comments are kept.
fn with_api_key(text: &str, key: &str) -> String {
    let member = format!("\"api_key\": \"{key}\"");
    let bare = text.strip_prefix('\u{feff}').unwrap_or(text);
    let (document, _) = ConfigDocument::parse(text, &mut Vec::new());
    let split =
        |at: usize| text.split_at_checked(text.len() - bare.len() + at).unwrap_or((text, ""));
    let Some(root) = document.root() else {
        // The text contains at most comments.
        let end = if bare.is_empty() || bare.ends_with('\n') { "" } else { "\n" };
        return format!("{text}{end}{{\n  {member}\n}}\n");
    };
    if let Some(present) = root.get("api_key") {
        let (before, _) = split(present.value.start());
        let (_, after) = split(present.value.end());
        return format!("{before}\"{key}\"{after}");
    }
    let (before, after) = split(behind_brace(bare, root.start() + 1));
    let first = after.trim_start();
    if root.properties.is_empty() {
        return format!(
            "{before}\n  {member}\n{}",
            if first.starts_with('}') { first } else { after.trim_start_matches(['\r', '\n']) }
        );
    }
    // The white space before the first key is also used before the new key.
    let space = after.strip_suffix(first).unwrap_or_default();
    format!("{before}{space}{member},{}{first}", if space.is_empty() { " " } else { space })
}

/// Offset for a first key: after the comments on the line of the opening brace.
fn behind_brace(text: &str, mut at: usize) -> usize {
    loop {
        let rest = text.get(at..).unwrap_or_default();
        let comment = rest.trim_start_matches([' ', '\t']);
        let length = match (comment.strip_prefix("//"), comment.strip_prefix("/*")) {
            (Some(comment), _) => comment.find(['\r', '\n']),
            (_, Some(comment)) => comment.find("*/").map(|end| end + 2),
            (None, None) => None,
        };
        let Some(length) = length else { return at };
        at += rest.len() - comment.len() + 2 + length;
        if comment.starts_with("//") {
            return at;
        }
    }
}

/// Adds problems of this machine. Those of a disabled server are warnings.
pub(super) fn check_machine(parsed: &mut Parsed<'_>, env: Environment<'_>) {
    let Parsed { config, findings, data_dir_key } = parsed;
    check_rules(config, findings);
    let Config { servers, data_dir, tls, telemetry, search: section, .. } = config;
    for server in servers {
        check_server(server, env, findings);
    }
    for problem in tls.iter().flat_map(|tls| tls.problems(SystemTime::now())) {
        findings.error(&KeyPath::root("tls").key(problem.key.as_str()), &problem);
    }
    telemetry.check_machine(env, findings);
    check_search_key(section, env, findings);
    if !data_dir.as_os_str().is_empty()
        && let Some(problem) = unusable(data_dir)
    {
        wrong(findings, data_dir_key, problem);
    }
}

/// Problems of a server entry that is not in the config yet, each with its key within the entry.
pub fn check_new_server(name: &str, entry: &Value, env: Environment<'_>) -> Vec<String> {
    let within = KeyPath::root(servers::KEY).key(name).to_string();
    let within_entry = |problem: Problem| {
        let text = problem.text.strip_prefix(&within)?;
        Some(text.trim_start_matches(['.', ':', ' ']).to_owned())
    };
    problems_of_new_server(name, entry, env).into_iter().filter_map(within_entry).collect()
}

/// Problems of a server entry that is not in the config yet, such as a command that does not exist.
pub fn problems_of_new_server(name: &str, entry: &Value, env: Environment<'_>) -> Vec<Problem> {
    let text = json!({servers::KEY: {name: entry}}).to_string();
    let mut parsed = parse_all(&text, env, &Flags::default());
    let Parsed { config, findings, .. } = &mut parsed;
    for server in &config.servers {
        check_server(server, env, findings);
    }
    parsed.findings.finish(None)
}

fn check_server(server: &ServerEntry, env: Environment<'_>, findings: &mut Findings<'_>) {
    // An invalid key counts as absent; do not report it as missing as well.
    let half_read = findings.is_wrong(&server.at, &["command", "url", "protocol"]);
    for Mistake { keys, problem, is_form } in server.upstream.mistakes(env) {
        if is_form && half_read {
            continue;
        }
        let path = keys.iter().fold(server.at.clone(), |path, key| path.key(key));
        match server.upstream.enabled {
            true => findings.error(&path, problem),
            false => findings.warn(&path, format_args!("{problem} (the server is disabled)")),
        }
    }
    for problem in server.upstream.exposed_files(env) {
        findings.warn(&server.at, problem);
    }
    for (keys, problem) in server.upstream.oddities() {
        findings.warn(&keys.iter().fold(server.at.clone(), |path, key| path.key(key)), problem);
    }
}

/// Problems of the rule files, without knowledge of tools, as at startup.
fn check_rules(config: &Config, findings: &mut Findings<'_>) {
    // Rules may refer to servers that could not be read.
    if findings.is_wrong(&KeyPath::default(), &[servers::KEY]) {
        return;
    }
    let loaded = rule_files::load(&config.rules, &rule_files::servers(config));
    let problems = loaded.map_or_else(|problems| problems, |loaded| loaded.warnings);
    problems.iter().for_each(|problem| findings.add_outside(rule_files::problem(problem)));
}

/// Reason why a directory, created if missing, is not writable.
fn unusable(folder: &Path) -> Option<String> {
    for there in folder.ancestors() {
        let there = if there.as_os_str().is_empty() { Path::new(".") } else { there };
        let shown = there.display();
        match there.metadata() {
            Ok(it) if !it.is_dir() => {
                return Some(format!("{shown} is not a directory: choose another"));
            }
            Ok(_) => {
                let refused = access(there, AccessFlags::W_OK | AccessFlags::X_OK).err();
                let refused = refused.map(|error| {
                    format!("{shown} is not writable ({}): choose another", error.desc())
                });
                return refused.or_else(|| not_created(there));
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            Err(error) => return Some(format!("{shown} is not usable: {error}")),
        }
    }
    None
}

/// Reason why no folder can be created in `folder`. Creates one as a test, and removes it. File systems like `/proc`
/// reject new folders regardless of permissions.
fn not_created(folder: &Path) -> Option<String> {
    let probe = folder.join(format!(".mcpproxy-check-{}", std::process::id()));
    match fs::create_dir(&probe) {
        Ok(()) => {
            let _ = fs::remove_dir(&probe);
            None
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => None,
        Err(error) => {
            let shown = folder.display();
            Some(format!("nothing can be created in {shown} ({error}): choose another"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn key_and_data_folder_are_found_in_a_text_with_a_syntax_error() {
        let text = r#"{
            // "api_key": "comment",
            "search": {"embeddings": {"api_key": "inner"}},
            "note": "\"api_key\": \"x\"", /* "api_key": "y" */
            "listen": "127.0.0.1:1" "data_dir": "/else\u0077here",
            "api_key": "k\"1"
        "#;
        assert_eq!(api_key_in(text).as_deref(), Some("k\"1"));
        let folder = data_dir_in(text, &|_| None, &Flags::default());
        assert_eq!(folder, Path::new("/elsewhere"));
        for text in [
            r#"{"api_key": {"x": "inner"}, "a" "b"}"#,
            r#"{"api_key": 1 "b"}"#,
            r#"{"api_key"#,
            r#"{"a" "api_key": "unclosed"#,
            r#"{"a" "api_key": """#,
            "",
        ] {
            assert_eq!(api_key_in(text), None, "{text}");
        }
        assert_eq!(api_key_in(r#"{"api_key": "k"}"#).as_deref(), Some("k"));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn cfg_1_folder_that_cannot_be_created_is_not_usable() {
        let problem = unusable(Path::new("/proc/mcpproxy/data")).unwrap();
        assert!(problem.contains("/proc") && problem.ends_with("choose another"), "{problem}");
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(unusable(&folder.path().join("a/b")), None);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left behind");
    }

    fn home(name: &str) -> Option<String> {
        (name == "HOME").then(|| "/".to_owned())
    }

    #[test]
    fn api_key_is_inserted_without_changing_the_rest() {
        for (text, expected) in [
            ("", "{\n  \"api_key\": \"K\"\n}\n"),
            ("{}", "{\n  \"api_key\": \"K\"\n}"),
            ("{ }\n", "{\n  \"api_key\": \"K\"\n}\n"),
            ("{\"a\": 1}", "{\"api_key\": \"K\", \"a\": 1}"),
            (
                "{\n\t\"z\" : 1,\n\t\"a\":2\n}\n",
                "{\n\t\"api_key\": \"K\",\n\t\"z\" : 1,\n\t\"a\":2\n}\n",
            ),
            (
                "\u{feff}{\r\n    \"a\": 1 }",
                "\u{feff}{\r\n    \"api_key\": \"K\",\r\n    \"a\": 1 }",
            ),
            (
                "{\"a\": 1, \"api_key\" : \"\" , \"b\": 2}",
                "{\"a\": 1, \"api_key\" : \"K\" , \"b\": 2}",
            ),
            // Comments and trailing commas are kept.
            (
                "// {\n{\n  // a's\n  \"a\": 1, // one\n}\n",
                "// {\n{\n  \"api_key\": \"K\",\n  // a's\n  \"a\": 1, // one\n}\n",
            ),
            (
                "{ // mine\n  // a's\n  \"a\": 1,\n}",
                "{ // mine\n  \"api_key\": \"K\",\n  // a's\n  \"a\": 1,\n}",
            ),
            ("{ /* mine */ \"a\": 1}", "{ /* mine */ \"api_key\": \"K\", \"a\": 1}"),
            ("{\n  // none\n}\n", "{\n  \"api_key\": \"K\"\n  // none\n}\n"),
            ("{ // none\n}", "{ // none\n  \"api_key\": \"K\"\n}"),
            ("// none", "// none\n{\n  \"api_key\": \"K\"\n}\n"),
            (
                "{\"a\": 1, // \"api_key\": \"x\"\n\"api_key\": /* k */ \"\",}",
                "{\"a\": 1, // \"api_key\": \"x\"\n\"api_key\": /* k */ \"K\",}",
            ),
        ] {
            let written = with_api_key(text, KEY);
            assert_eq!(written, expected.replace("\"K\"", &format!("{KEY:?}")), "{text:?}");
            let (_, value) = ConfigDocument::parse(&written, &mut Vec::new());
            assert_eq!(value["api_key"], KEY);
        }
    }

    #[cfg(unix)]
    #[test]
    fn api_key_is_generated_once() {
        use std::os::unix::fs::PermissionsExt;
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let home = tempfile::tempdir().unwrap();
        let env = |name: &str| (name == "HOME").then(|| home.path().to_string_lossy().into_owned());
        let mut first = Config::load(None, &env, &Flags::default()).unwrap();
        assert_eq!(first.path, home.path().join(".mcpproxy/mcp_config.json"));
        assert!(first.config.api_key.is_none() && !first.path.exists(), "loading writes nothing");
        assert_eq!(first.ensure_api_key([0xab; API_KEY_BYTES]), Ok(true));
        assert_eq!(mode(&first.path), 0o600);
        assert_eq!(mode(first.path.parent().unwrap()), 0o700);
        let mut second = Config::load(None, &env, &Flags::default()).unwrap();
        assert_eq!(second.ensure_api_key([0; API_KEY_BYTES]), Ok(false));
        assert_eq!(second.config.api_key.unwrap().expose(), "ab".repeat(32));
        assert!(second.warnings.is_empty());

        fs::set_permissions(&second.path, fs::Permissions::from_mode(0o644)).unwrap();
        let third = Config::load(None, &env, &Flags::default()).unwrap();
        let [warning] = third.warnings.as_slice() else { panic!("{:?}", third.warnings) };
        assert!(warning.to_string().contains("mode 644"), "{warning}");
    }

    #[cfg(unix)]
    #[test]
    fn symlink_is_preserved() {
        let folder = tempfile::tempdir().unwrap();
        let (real, link) = (folder.path().join("real"), folder.path().join("link"));
        fs::write(&real, "{}").unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let env = |name: &str| (name == "HOME").then(|| "/".to_owned());
        let mut loaded = Config::load(Some(&link), &env, &Flags::default()).unwrap();
        loaded.ensure_api_key([1; API_KEY_BYTES]).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert!(fs::read_to_string(&real).unwrap().contains("api_key"));
    }

    #[test]
    fn error_names_the_file_or_flag_at_fault() {
        let folder = tempfile::tempdir().unwrap();
        let load = |path: &Path| {
            let problems = Config::load(Some(path), &home, &Flags::default()).unwrap_err();
            problems.into_iter().map(|it| it.to_string()).next_back().unwrap()
        };
        let error = load(folder.path());
        assert!(error.starts_with(&*folder.path().to_string_lossy()), "{error}");
        let file = folder.path().join("c.json");
        fs::write(&file, "{\"listen\":").unwrap();
        let error = load(&file);
        assert!(error.contains("c.json:1:11: "), "{error}");
        fs::write(&file, "{}").unwrap();
        let flags = Flags { listen: Some("x".into()), ..Flags::default() };
        let errors = Config::load(Some(&file), &home, &flags).unwrap_err();
        let error = errors.last().unwrap().to_string();
        assert!(error.starts_with("--listen: "), "{error}");
    }

    #[test]
    fn missing_directory_is_usable_unless_its_parent_is_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert_eq!(unusable(folder.path()), None);
        assert_eq!(unusable(&folder.path().join("a/b")), None);
        assert_eq!(unusable(Path::new("a-folder-that-is-not-there")), None);
        for below in [file.clone(), file.join("a"), file.join("a/b")] {
            let problem = unusable(&below).unwrap();
            assert!(problem.contains("file is not a directory"), "{problem}");
        }
        assert!(!folder.path().join("a").exists(), "the check creates nothing");
    }
}
