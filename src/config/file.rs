//! The config file on disk: where it is, who may read it, and the API key that is put into it.
//!
//! A key is made at the first start and written into the text as it stands: the operator's order,
//! indentation and odd spacing stay. What the text means is [`super::parse`]'s.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{ApiKey, Config, ConfigError, Flags, Warning, parse};
use crate::os::private;

/// Most bytes of a config file.
const MAX_FILE_BYTES: u64 = 16 * 1024 * 1024;

/// Random bytes of a key that we make; twice as many hex digits.
pub const API_KEY_BYTES: usize = 32;

/// Where the config is unless told otherwise.
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
    /// What is odd about it.
    pub warnings: Vec<Warning>,
    /// The text of the file; `None` without one.
    text: Option<String>,
}

impl Config {
    /// Reads the file at `path`, else at `MCPPROXY_CONFIG`, else the default one; without a file,
    /// the defaults. Changes nothing on disk.
    ///
    /// # Errors
    /// The file cannot be read, or [`parse`] says why it cannot be used.
    pub fn load(
        path: Option<&Path>,
        env: &impl Fn(&str) -> Option<String>,
        flags: &Flags,
    ) -> Result<Loaded, ConfigError> {
        let path = locate(path, env)?;
        let in_file = |problem: String| ConfigError::File { path: path.clone(), problem };
        let mut of_file = Vec::new();
        let text = match read(&path) {
            Ok((text, mode)) => {
                if mode & OTHERS != 0 {
                    let problem = format!(
                        "others may read or write it (mode {mode:03o}): chmod 600 it, it holds keys"
                    );
                    of_file.push(Warning::File { path: path.clone(), problem });
                }
                Some(text)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(in_file(format!("cannot be read: {error}"))),
        };
        let parsed = parse(text.as_deref().unwrap_or_default(), env, flags);
        let (config, warnings) = parsed.map_err(|error| match &error {
            ConfigError::At { path, .. } if !is_in_file(path) => error,
            ConfigError::At { .. } | ConfigError::Unreadable(_) | ConfigError::File { .. } => {
                in_file(error.to_string())
            }
        })?;
        of_file.extend(warnings);
        Ok(Loaded { config, path, warnings: of_file, text })
    }
}

impl Loaded {
    /// Makes sure that there is an API key: if there is none, one is made of `random` and written
    /// into the file, which is created if need be (0600, its folder 0700). Returns whether it was.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn ensure_api_key(&mut self, random: [u8; API_KEY_BYTES]) -> Result<bool, ConfigError> {
        if self.config.api_key.is_some() {
            return Ok(false);
        }
        let key: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let text = with_api_key(self.text.as_deref().unwrap_or_default(), &key);
        write(&self.path, &text).map_err(|error| ConfigError::File {
            path: self.path.clone(),
            problem: format!(
                "the new api_key cannot be written: {error} (or set MCPPROXY_API_KEY)"
            ),
        })?;
        self.text = Some(text);
        self.config.api_key = Some(ApiKey::new(key, "api_key")?);
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
) -> Result<PathBuf, ConfigError> {
    if let Some(path) = path {
        return Ok(path.to_owned());
    }
    let variable = env("MCPPROXY_CONFIG").filter(|path| !path.is_empty());
    let path = variable.as_deref().unwrap_or(DEFAULT_PATH);
    expand_home(Path::new(path), env).ok_or_else(|| {
        ConfigError::at(
            "--config",
            "HOME is not set, so the default file cannot be found: name one",
        )
    })
}

/// False for the paths of flags and environment variables, which no file is to blame for.
fn is_in_file(path: &str) -> bool {
    !path.starts_with("--") && !path.starts_with("MCPPROXY_")
}

/// `path` with a leading `~` replaced; `None` if that leads nowhere.
pub(super) fn expand_home(path: &Path, env: &impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    match path.strip_prefix("~") {
        Err(_) => Some(path.to_owned()),
        Ok(rest) => {
            let home = env("HOME").filter(|home| !home.is_empty())?;
            Some(Path::new(&home).join(rest))
        }
    }
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

/// `text`, the config as it stands, with `api_key` in it.
fn with_api_key(text: &str, key: &str) -> String {
    #[derive(Deserialize)]
    struct Present<'a> {
        #[serde(borrow)]
        api_key: Option<&'a RawValue>,
    }
    let member = format!("\"api_key\": \"{key}\"");
    let bare = text.strip_prefix('\u{feff}').unwrap_or(text);
    let present =
        serde_json::from_str::<Present<'_>>(bare).ok().and_then(|present| present.api_key);
    if let Some(value) = present {
        let at = value.get().as_ptr().addr() - text.as_ptr().addr();
        let (before, rest) = text.split_at(at);
        let after = rest.get(value.get().len()..).unwrap_or_default();
        return format!("{before}\"{key}\"{after}");
    }
    let Some((before, after)) = text.split_once('{') else {
        return format!("{{\n  {member}\n}}\n");
    };
    let first = after.trim_start();
    if first.starts_with('}') {
        return format!("{before}{{\n  {member}\n{first}");
    }
    // The white space before the first key is what stands before every key.
    let space = after.strip_suffix(first).unwrap_or_default();
    format!("{before}{{{space}{member},{}{first}", if space.is_empty() { " " } else { space })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    const KEY: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn no_env(_: &str) -> Option<String> {
        None
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
        ] {
            let written = with_api_key(text, KEY);
            assert_eq!(written, expected.replace("\"K\"", &format!("{KEY:?}")), "{text:?}");
            let value: Value =
                serde_json::from_str(written.trim_start_matches('\u{feff}')).unwrap();
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
        let load = |path: &Path| Config::load(Some(path), &no_env, &Flags::default()).unwrap_err();
        let error = load(folder.path()).to_string();
        assert!(error.starts_with(&*folder.path().to_string_lossy()), "{error}");
        let file = folder.path().join("c.json");
        fs::write(&file, "{\"listen\":").unwrap();
        let error = load(&file).to_string();
        assert!(error.contains("c.json: ") && error.contains("line 1 column 10"), "{error}");
        fs::write(&file, "{}").unwrap();
        let flags = Flags { listen: Some("x".into()), ..Flags::default() };
        let error = Config::load(Some(&file), &no_env, &flags).unwrap_err().to_string();
        assert!(error.starts_with("--listen: "), "{error}");
    }
}
