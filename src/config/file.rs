//! The config file on disk: where it is, who may read it, and the API key that is put into it.
//!
//! A key is made at the first start and written into the text as it stands: the operator's order,
//! indentation and odd spacing stay. What the text means is `parse`'s.

use std::convert::Infallible;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use jsonc_parser::common::Ranged;

use super::check;
use super::document::ConfigDocument;
use super::fleet_config::SharedConfig;
use super::parse::{Flags, Parsed, expand_home, parse_all};
use super::problem::{Problem, Severity};
use super::sections::ApiKey;
use super::tls::TlsFiles;
use super::values::Config;
use crate::os::bounded_file::{self, NamedPipes, PIPE_WAIT, Unreadable};
use crate::os::edited_file;
use crate::reference::CONFIG_SCHEMA;

/// Most bytes of a config file.
pub const MAX_FILE_BYTES: u64 = 16 * 1024 * 1024;

/// The name of the schema that editors complete a config by; it lies beside the config.
pub const SCHEMA_FILE: &str = "mcp_config.schema.json";

/// Random bytes of a key that we make; twice as many hex digits.
pub const API_KEY_BYTES: usize = 32;

/// The config file when neither flag nor environment names one.
const DEFAULT_PATH: &str = "~/.mcpproxy/mcp_config.json";

/// A shell's `<(…)` is read where whoever named it waits; not by a proxy that runs.
const AWAITED: NamedPipes = NamedPipes::Awaited(PIPE_WAIT);

/// Rights that others than the owner have.
const OTHERS: u32 = 0o077;

/// A config and where it came from.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// What it says.
    pub config: Config,
    /// The file, there or not.
    pub path: PathBuf,
    /// Its warnings.
    pub warnings: Vec<Problem>,
    content: FileContent,
}

/// What a file was found to hold.
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
    /// Reads the file at `path`, else at `MCPPROXY_CONFIG`, else the default one; without a file,
    /// the defaults. Changes nothing on disk.
    ///
    /// # Errors
    /// The file cannot be read, or everything that keeps it from being used, with the warnings.
    pub fn load(
        path: Option<&Path>,
        env: &impl Fn(&str) -> Option<String>,
        flags: &Flags,
    ) -> Result<Loaded, Vec<Problem>> {
        load(path, AWAITED, (env, flags), |_| {})
    }

    /// The same, and checks that this machine has what the config names: a server that cannot run is
    /// an error, too.
    ///
    /// # Errors
    /// Those of [`Self::load`], and everything that is missing.
    pub fn check(
        path: Option<&Path>,
        env: &impl Fn(&str) -> Option<String>,
        flags: &Flags,
    ) -> Result<Loaded, Vec<Problem>> {
        load(path, AWAITED, (env, flags), |parsed| check::check_machine(parsed, env))
    }
}

/// Reads a file that was read before: one that is not there any more, is no file, or is empty, is an error now.
///
/// # Errors
/// Those of [`Config::load`], and these.
pub fn load_again(
    path: &Path,
    env: &impl Fn(&str) -> Option<String>,
    flags: &Flags,
) -> Result<Loaded, Vec<Problem>> {
    const AWAY: &str = "is not there any more";
    let wrong = |text: &str| Err(vec![Problem::of_file(Severity::Error, path, text.to_owned())]);
    match fs::metadata(path) {
        Ok(found) if found.is_file() => {}
        Ok(_) => return wrong("is no file"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return wrong(AWAY),
        Err(error) => return wrong(&format!("cannot be read: {error}")),
    }
    let loaded = load(Some(path), NamedPipes::Refused, (env, flags), |_| {})?;
    match loaded.content {
        FileContent::NotThere => wrong(AWAY),
        // Whoever writes it has most often only begun.
        FileContent::Blank => wrong("is empty: write {} for the defaults"),
        FileContent::Text => Ok(loaded),
    }
}

fn load<E: Fn(&str) -> Option<String>>(
    path: Option<&Path>,
    pipes: NamedPipes,
    (env, flags): (&E, &Flags),
    check: impl FnOnce(&mut Parsed<'_>),
) -> Result<Loaded, Vec<Problem>> {
    let path = locate(path, env).map_err(|problem| vec![problem])?;
    let mut of_file = Vec::new();
    let text = match read(&path, pipes) {
        Ok((text, mode)) => {
            if mode & OTHERS != 0 {
                let text = format!(
                    "others may read or write it (mode {mode:03o}): chmod 600 it, it holds keys"
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

/// Reads what the file at `path` says if `text` is what it holds.
///
/// # Errors
/// Everything that keeps it from being used, with the warnings.
pub fn load_proposed(
    path: &Path,
    text: &str,
    env: &impl Fn(&str) -> Option<String>,
    flags: &Flags,
) -> Result<Loaded, Vec<Problem>> {
    load_text(path.to_owned(), Some(text), Vec::new(), (env, flags), |_| {})
}

/// Reads what the file at `path` says, read as [`load_again`] does, together with a config that a fleet would share.
///
/// # Errors
/// Everything that keeps it from being used, with the warnings.
pub fn load_shared(
    path: &Path,
    shared: &SharedConfig,
    env: &impl Fn(&str) -> Option<String>,
    flags: &Flags,
) -> Result<Loaded, Vec<Problem>> {
    let text = text(path).map_err(|problem| vec![problem])?;
    let data_dir = data_dir_in(&text, env, flags);
    load_over(path.to_owned(), &text, (shared, &data_dir), (env, flags), |_| {})
}

fn load_text<E: Fn(&str) -> Option<String>>(
    path: PathBuf,
    text: Option<&str>,
    of_file: Vec<Problem>,
    (env, flags): (&E, &Flags),
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

/// What a node's own text and the config of its fleet come to.
fn load_over<E: Fn(&str) -> Option<String>>(
    path: PathBuf,
    own: &str,
    (shared, data_dir): (&SharedConfig, &Path),
    (env, flags): (&E, &Flags),
    check: impl FnOnce(&mut Parsed<'_>),
) -> Result<Loaded, Vec<Problem>> {
    let (text, kept) = shared.text_over(own, data_dir);
    let mut parsed = parse_all(&text, env, flags);
    parsed.config.fleet_config = Some(shared.hash().into());
    let content = FileContent::of(Some(own));
    finish(parsed, (path, Some(kept)), Vec::new(), content, env, check)
}

/// The end of reading: `told` is the file that problems are told of, if it is another than `path`.
fn finish(
    mut parsed: Parsed<'_>,
    (path, told): (PathBuf, Option<PathBuf>),
    mut of_file: Vec<Problem>,
    content: FileContent,
    env: &impl Fn(&str) -> Option<String>,
    check: impl FnOnce(&mut Parsed<'_>),
) -> Result<Loaded, Vec<Problem>> {
    lie_in(path.parent().unwrap_or(Path::new("")), &mut parsed.config, env);
    check(&mut parsed);
    match parsed.finish(Some(told.as_deref().unwrap_or(&path))) {
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

/// Files that the config names are from its own `folder`, where they are not whole paths.
fn lie_in(folder: &Path, config: &mut Config, env: &impl Fn(&str) -> Option<String>) {
    let of_tls = config.tls.iter_mut().flat_map(TlsFiles::paths);
    for file in config.rules.files.iter_mut().chain(of_tls) {
        *file = folder.join(&*file);
    }
    let home = expand_home(Path::new("~"), env);
    for tls in config.servers.iter_mut().filter_map(|server| server.upstream.tls.as_mut()) {
        tls.lie_in(folder, home.as_deref());
    }
}

impl Loaded {
    /// Makes sure that there is an API key: if there is none, one is made of `random` and written
    /// into the file, which is created if need be (0600, its folder 0700). Returns whether it was.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn ensure_api_key(&mut self, random: [u8; API_KEY_BYTES]) -> Result<bool, Problem> {
        if self.config.api_key.is_some() {
            return Ok(false);
        }
        let made: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let written = edited_file::edit(&self.path, MAX_FILE_BYTES, |text| {
            let text = text.unwrap_or_default();
            // Another process may have made one meanwhile.
            let there = api_key_in(text);
            let next = there.is_none().then(|| with_api_key(text, &made));
            Ok::<_, Infallible>((next, there))
        });
        let there = written.map_err(|error| {
            let text =
                format!("the new api_key cannot be written: {error} (or set MCPPROXY_API_KEY)");
            Problem::of_file(Severity::Error, &self.path, text)
        })?;
        let is_ours = there.is_none();
        let key = ApiKey::new(there.unwrap_or(made));
        self.config.api_key = Some(key.map_err(|problem| Problem::outside("api_key", problem))?);
        Ok(is_ours)
    }
}

/// Changes the text of the config file at `path` by `change`, which answers the next text (`None`: it
/// stays) beside what the caller wants to know, and may be asked more than once.
///
/// # Errors
/// The file cannot be read or written, or what `change` says against it.
pub fn edit<T, E: fmt::Display>(
    path: &Path,
    mut change: impl FnMut(&str) -> Result<(Option<String>, T), E>,
) -> Result<T, Problem> {
    let edited = edited_file::edit(path, MAX_FILE_BYTES, |text| change(text.unwrap_or_default()));
    edited.map_err(|error| {
        Problem::of_file(Severity::Error, path, format!("it was not changed: {error}"))
    })
}

/// Puts the schema that editors complete the config at `path` by beside it, in the place of an older one.
///
/// # Errors
/// It cannot be written.
pub fn put_schema(path: &Path) -> Result<PathBuf, Problem> {
    let schema = path.with_file_name(SCHEMA_FILE);
    let next = || Ok::<_, Infallible>((Some(CONFIG_SCHEMA.to_owned()), ()));
    edited_file::edit(&schema, MAX_FILE_BYTES, |_| next()).map_err(|error| {
        Problem::of_file(Severity::Error, &schema, format!("it was not written: {error}"))
    })?;
    Ok(schema)
}

/// The text of the file at `path`; empty where there is none.
///
/// # Errors
/// It cannot be read, is too large or no text.
pub fn text(path: &Path) -> Result<String, Problem> {
    match edited_file::read::<Infallible>(path, MAX_FILE_BYTES) {
        Ok(found) => Ok(found.map(|(text, _)| text).unwrap_or_default()),
        Err(error) => {
            let problem = format!("cannot be read: {error}");
            Err(Problem::of_file(Severity::Error, path, problem))
        }
    }
}

/// The file that [`Config::load`] reads.
///
/// # Errors
/// `~` leads nowhere.
pub fn locate(
    path: Option<&Path>,
    env: &impl Fn(&str) -> Option<String>,
) -> Result<PathBuf, Problem> {
    if let Some(path) = path {
        return Ok(path.to_owned());
    }
    let variable = env("MCPPROXY_CONFIG").filter(|path| !path.is_empty());
    let path = variable.as_deref().unwrap_or(DEFAULT_PATH);
    expand_home(Path::new(path), env).ok_or_else(|| {
        Problem::outside(
            "--config",
            "HOME is not set, so the default file cannot be found: name one",
        )
    })
}

/// The text of a file, and its rights.
fn read(path: &Path, pipes: NamedPipes) -> Result<(String, u32), Unreadable> {
    let (bytes, metadata) = bounded_file::read(path, MAX_FILE_BYTES, pipes)?;
    #[cfg(unix)]
    let mode = std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o777;
    #[cfg(not(unix))]
    let mode = 0;
    Ok((bounded_file::text(bytes)?, mode))
}

/// The folder of data by a text, also one that cannot be used: what the environment and flags say counts before it.
#[must_use]
pub fn data_dir_in(text: &str, env: &impl Fn(&str) -> Option<String>, flags: &Flags) -> PathBuf {
    parse_all(text, env, flags).config.data_dir
}

/// The key that a text has, if it is not empty; also that of a config which cannot be used.
#[must_use]
pub fn api_key_in(text: &str) -> Option<String> {
    let (_, root) = ConfigDocument::parse(text, &mut Vec::new());
    root.get("api_key")?.as_str().filter(|key| !key.is_empty()).map(str::to_owned)
}

/// `text`, the config as it stands, with `api_key` in it: order, layout and comments stay.
fn with_api_key(text: &str, key: &str) -> String {
    let member = format!("\"api_key\": \"{key}\"");
    let bare = text.strip_prefix('\u{feff}').unwrap_or(text);
    let (document, _) = ConfigDocument::parse(text, &mut Vec::new());
    let split =
        |at: usize| text.split_at_checked(text.len() - bare.len() + at).unwrap_or((text, ""));
    let Some(root) = document.root() else {
        // Comments alone.
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
    // The white space before the first key is what stands before every key.
    let space = after.strip_suffix(first).unwrap_or_default();
    format!("{before}{space}{member},{}{first}", if space.is_empty() { " " } else { space })
}

/// Where a first key can stand: behind the comments that share the line of the brace before `at`.
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

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn home(name: &str) -> Option<String> {
        (name == "HOME").then(|| "/".to_owned())
    }

    #[test]
    fn a_key_is_put_into_the_text_as_it_stands() {
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
            // Comments and trailing commas stay where they are.
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
    fn a_key_is_made_at_the_first_start_and_kept() {
        use std::os::unix::fs::PermissionsExt;
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let home = tempfile::tempdir().unwrap();
        let env = |name: &str| (name == "HOME").then(|| home.path().to_string_lossy().into_owned());
        let mut first = Config::load(None, &env, &Flags::default()).unwrap();
        assert_eq!(first.path, home.path().join(".mcpproxy/mcp_config.json"));
        assert!(first.config.api_key.is_none() && !first.path.exists(), "reading writes nothing");
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
    fn a_link_stays_a_link() {
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
    fn a_file_that_cannot_be_read_is_named() {
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
        assert!(error.contains("c.json: ") && error.contains("line 1 column 11"), "{error}");
        fs::write(&file, "{}").unwrap();
        let flags = Flags { listen: Some("x".into()), ..Flags::default() };
        let errors = Config::load(Some(&file), &home, &flags).unwrap_err();
        let error = errors.last().unwrap().to_string();
        assert!(error.starts_with("--listen: "), "{error}");
    }
}
