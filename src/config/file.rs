//! The config file on disk: where it is, who may read it, and the API key that is put into it.
//!
//! A key is made at the first start and written into the text as it stands: the operator's order,
//! indentation and odd spacing stay. What the text means is `parse`'s.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use jsonc_parser::common::Ranged;

use super::check;
use super::document::ConfigDocument;
use super::parse::{Flags, Parsed, expand_home, parse_all};
use super::problem::{Problem, Severity};
use super::sections::ApiKey;
use super::values::Config;
use crate::os::private;

/// Most bytes of a config file.
const MAX_FILE_BYTES: u64 = 16 * 1024 * 1024;

/// Random bytes of a key that we make; twice as many hex digits.
pub const API_KEY_BYTES: usize = 32;

/// The config file when neither flag nor environment names one.
const DEFAULT_PATH: &str = "~/.mcpproxy/mcp_config.json";

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
    /// The text of the file; `None` without one.
    text: Option<String>,
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
        load(path, env, flags, |_| {})
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
        load(path, env, flags, |parsed| check::check_machine(parsed, env))
    }
}

fn load(
    path: Option<&Path>,
    env: &impl Fn(&str) -> Option<String>,
    flags: &Flags,
    check: impl FnOnce(&mut Parsed<'_>),
) -> Result<Loaded, Vec<Problem>> {
    let path = locate(path, env).map_err(|problem| vec![problem])?;
    let mut of_file = Vec::new();
    let text = match read(&path) {
        Ok((text, mode)) => {
            if mode & OTHERS != 0 {
                let text = format!(
                    "others may read or write it (mode {mode:03o}): chmod 600 it, it holds keys"
                );
                of_file.push(Problem::of_file(Severity::Warning, &path, text));
            }
            Some(text)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => {
            let text = format!("cannot be read: {error}");
            return Err(vec![Problem::of_file(Severity::Error, &path, text)]);
        }
    };
    let mut parsed = parse_all(text.as_deref().unwrap_or_default(), env, flags);
    check(&mut parsed);
    match parsed.finish(Some(&path)) {
        Ok((mut config, warnings)) => {
            let folder = path.parent().unwrap_or(Path::new(""));
            for file in &mut config.rules.files {
                *file = folder.join(&*file);
            }
            of_file.extend(warnings);
            Ok(Loaded { config, path, warnings: of_file, text })
        }
        Err(problems) => {
            of_file.extend(problems);
            Err(of_file)
        }
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
        let key: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let text = with_api_key(self.text.as_deref().unwrap_or_default(), &key);
        write(&self.path, &text).map_err(|error| {
            let text =
                format!("the new api_key cannot be written: {error} (or set MCPPROXY_API_KEY)");
            Problem::of_file(Severity::Error, &self.path, text)
        })?;
        self.text = Some(text);
        let key = ApiKey::new(key).map_err(|problem| Problem::outside("api_key", problem))?;
        self.config.api_key = Some(key);
        Ok(true)
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

fn read(path: &Path) -> io::Result<(String, u32)> {
    let metadata = fs::metadata(path)?;
    if metadata.len() > MAX_FILE_BYTES {
        return Err(io::Error::other(format!("larger than {MAX_FILE_BYTES} bytes")));
    }
    #[cfg(unix)]
    let mode = std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o777;
    #[cfg(not(unix))]
    let mode = 0;
    Ok((fs::read_to_string(path)?, mode))
}

/// Replaces the file whole, for the owner alone. A link stays one.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if let Some(folder) = target.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        private::folder(folder)?;
    }
    let mut temporary = target.clone().into_os_string();
    temporary.push(".new");
    let mut file = private::create(Path::new(&temporary))?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&temporary, &target)
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
