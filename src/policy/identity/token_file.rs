//! Token file: `tokens.json` in the data folder. Only its owner can read it, and it does not contain the secrets.
//!
//! A state file with a checksum and a backup copy ([`state_file`]). A change holds a separate lock file, so that
//! processes do not overwrite each other's changes. Functions block.
//!
//! [`TokenChange`] creates, rotates and revokes tokens. Pure.

use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{fs, io};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use mcpproxy_runtime::os::bounded_file::Unreadable;
use mcpproxy_runtime::os::state_file::StateFileError;
use mcpproxy_runtime::os::{private, state_file};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

use crate::intent::Operation;

/// Maximum number of tokens at a time.
pub const MAX_TOKENS: usize = 10_000;
const MAX_FILE_BYTES: u64 = 64 * 1024 * 1024;
/// Format version.
const VERSION: u32 = 1;
/// Latest expiry of a token, in seconds since 1970.
const MAX_EXPIRES: u64 = 1_000_000_000_000;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredToken {
    /// Unique name of the token.
    pub name: Box<str>,
    #[serde(serialize_with = "to_hex", deserialize_with = "from_hex")]
    pub hash: [u8; 32],
    /// Servers of the scope: [`Scope::servers`](crate::Scope::servers).
    pub servers: Vec<Box<str>>,
    /// Tools of the scope: [`Scope::tools`](crate::Scope::tools).
    pub tools: Vec<Box<str>>,
    /// Operations of the scope: [`Scope::operations`](crate::Scope::operations).
    pub operations: Vec<Operation>,
    /// Creation time in microseconds since 1970.
    pub created: u64,
    /// Expiry in seconds since 1970; `None` for never.
    pub expires: Option<u64>,
}

impl StoredToken {
    /// Whether this token stores `secret` and has not expired at `now`.
    pub fn is_of(&self, secret: &str, now: SystemTime) -> bool {
        let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        hash_of(secret.as_bytes()) == Some(self.hash) && self.expires.is_none_or(|end| since < end)
    }
}

/// Reason why the tokens cannot be read or written.
#[derive(Debug, Error)]
pub enum TokenFileError {
    #[error("{} can be read or written by users other than its owner (mode {mode:03o}): chmod 600 it", file.display())]
    Open { file: PathBuf, mode: u32 },
    /// The file is missing while its backup copy exists.
    #[error("{} is missing, although its backup copy exists; {recovery}", file.display())]
    Missing {
        file: PathBuf,
        /// Advice to restore the file or to remove it for good.
        recovery: String,
    },
    #[error("{} cannot be used: {reason}; {recovery}", file.display())]
    Broken {
        file: PathBuf,
        reason: String,
        /// Advice to restore the file.
        recovery: String,
    },
    /// I/O error.
    #[error("{}: {error}", file.display())]
    Io { file: PathBuf, error: io::Error },
}

/// Identifies a file's state without reading the file. Includes the permissions, so that a file is read again once they
/// are repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStamp {
    inode: u64,
    bytes: u64,
    /// Modification and change time, seconds and nanoseconds.
    written: (i64, i64),
    changed: (i64, i64),
}

/// Stamp of a file; `None` if it does not exist.
pub fn file_stamp(file: &Path) -> Option<FileStamp> {
    let found = fs::metadata(file).ok()?;
    Some(FileStamp {
        inode: found.ino(),
        bytes: found.len(),
        written: (found.mtime(), found.mtime_nsec()),
        changed: (found.ctime(), found.ctime_nsec()),
    })
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    version: u32,
    tokens: Vec<StoredToken>,
}

/// Token file of a data folder.
#[derive(Clone, Debug)]
pub struct TokenFile {
    file: PathBuf,
}

/// Lock on the token file, released when dropped.
#[derive(Debug)]
pub(super) struct TokenLock(#[expect(dead_code, reason = "it is held, not used")] File);

impl TokenFile {
    pub fn new(data_dir: &Path) -> Self {
        Self { file: data_dir.join("tokens.json") }
    }

    /// Current stamp; `None` if there is no file.
    pub(crate) fn stamp(&self) -> Option<FileStamp> {
        file_stamp(&self.file)
    }

    /// Whether the file is missing while its backup copy exists.
    pub(super) fn is_missing(&self) -> bool {
        !self.file.exists() && state_file::copy_path(&self.file).exists()
    }

    /// Stored tokens ordered by name; empty if there is no file.
    pub fn load(&self) -> Result<Vec<StoredToken>, TokenFileError> {
        Ok(self.load_present()?.unwrap_or_default())
    }

    /// Stored tokens; `None` if there is no file.
    pub(super) fn load_present(&self) -> Result<Option<Vec<StoredToken>>, TokenFileError> {
        if let Some(mode) = private::wider(&self.file) {
            return Err(TokenFileError::Open { file: self.file.clone(), mode });
        }
        match state_file::read(&self.file, MAX_FILE_BYTES) {
            Ok(None) => Ok(None),
            Ok(Some(text)) => read_stored(&text).map(Some).map_err(|reason| self.broken(reason)),
            Err(StateFileError::Unreadable(Unreadable::Io(error))) => Err(self.io(error)),
            Err(StateFileError::Missing) => {
                let file = self.file.clone();
                let copy = state_file::copy_path(&file);
                let recovery = format!(
                    "{}; or, to have no tokens, remove {}",
                    self.recovery(),
                    copy.display()
                );
                Err(TokenFileError::Missing { file, recovery })
            }
            Err(error) => Err(self.broken(error.to_string())),
        }
    }

    /// Replaces the stored tokens. The caller holds the lock.
    pub(super) fn save(&self, tokens: Vec<StoredToken>) -> Result<(), TokenFileError> {
        let text = write_stored(tokens).map_err(|error| self.io(error))?;
        state_file::write(&self.file, &text).map_err(|error| self.io(error))
    }

    /// Takes the lock. Blocks.
    pub(super) fn lock(&self) -> Result<TokenLock, TokenFileError> {
        let lock = || {
            private::folder(self.folder())?;
            let mut options = private::options();
            let file = options
                .write(true)
                .create(true)
                .truncate(false)
                .open(self.file.with_extension("lock"))?;
            file.lock()?;
            Ok(file)
        };
        lock().map(TokenLock).map_err(|error| self.io(error))
    }

    fn folder(&self) -> &Path {
        self.file.parent().unwrap_or(Path::new("."))
    }

    fn broken(&self, reason: String) -> TokenFileError {
        TokenFileError::Broken { file: self.file.clone(), reason, recovery: self.recovery() }
    }

    fn recovery(&self) -> String {
        let is_sound = |text: &[u8]| read_stored(text).is_ok();
        let otherwise = "no valid copy exists: remove it and its copy, and create the tokens again";
        state_file::recovery(&self.file, is_sound, MAX_FILE_BYTES, otherwise)
    }

    fn io(&self, error: io::Error) -> TokenFileError {
        TokenFileError::Io { file: self.file.clone(), error }
    }
}

/// Parses and checks the contents of a token file. Pure.
pub fn read_stored(text: &[u8]) -> Result<Vec<StoredToken>, String> {
    let Contents { version, tokens } =
        serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if version != VERSION {
        return Err(format!("its version is {version}"));
    }
    if tokens.len() > MAX_TOKENS {
        return Err(format!("it holds more than {MAX_TOKENS} tokens"));
    }
    let mut names = HashSet::new();
    if let Some(twice) = tokens.iter().find(|token| !names.insert(&token.name)) {
        return Err(format!("token '{}' occurs twice", twice.name));
    }
    let never = |token: &&StoredToken| token.expires.is_some_and(|seconds| seconds > MAX_EXPIRES);
    if let Some(token) = tokens.iter().find(never) {
        return Err(format!("token '{}' has an expiry out of range", token.name));
    }
    Ok(tokens)
}

/// Writes the contents that [`read_stored`] reads. Pure.
pub fn write_stored(tokens: Vec<StoredToken>) -> io::Result<Vec<u8>> {
    let contents = Contents { version: VERSION, tokens };
    serde_json::to_vec_pretty(&contents).map_err(io::Error::other)
}

fn to_hex<S: Serializer>(hash: &[u8; 32], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&blake3::Hash::from_bytes(*hash).to_hex())
}

fn from_hex<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[u8; 32], D::Error> {
    let text = String::deserialize(deserializer)?;
    let hash = blake3::Hash::from_hex(&text).map_err(serde::de::Error::custom)?;
    Ok(*hash.as_bytes())
}

/// Prefix of every agent token, for people and secret scanners.
pub const PREFIX: &str = "mcpp_";
const SECRET_BYTES: usize = 32;
/// Number of bytes of a token: 32 random bytes are 43 base64 characters.
const TOKEN_BYTES: usize = PREFIX.len() + 43;

/// An agent token: 256 random bits with a prefix, shown once and stored as its BLAKE3 hash. A slow hash is unnecessary,
/// since the secret cannot be guessed. `Debug` does not show it.
pub struct AgentSecret(String);

impl std::fmt::Debug for AgentSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AgentSecret(…)")
    }
}

impl AgentSecret {
    /// Token made from random bytes.
    pub fn new(random: [u8; SECRET_BYTES]) -> Self {
        Self(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(random)))
    }

    pub fn expose(&self) -> &str {
        &self.0
    }

    /// The stored hash.
    pub fn hash(&self) -> [u8; 32] {
        *blake3::hash(self.0.as_bytes()).as_bytes()
    }
}

/// Hash of a presented token; `None` if it does not have the shape of a token.
pub(super) fn hash_of(token: &[u8]) -> Option<[u8; 32]> {
    let formed = token.len() == TOKEN_BYTES && token.starts_with(PREFIX.as_bytes());
    formed.then(|| *blake3::hash(token).as_bytes())
}

#[cfg(test)]
mod agent_secret_tests {
    use super::*;

    #[test]
    fn token_has_256_bits_and_debug_hides_it() {
        let secret = AgentSecret::new([0xa5; SECRET_BYTES]);
        assert!(secret.expose().starts_with("mcpp_") && secret.expose().len() == TOKEN_BYTES);
        assert_eq!(hash_of(secret.expose().as_bytes()), Some(secret.hash()));
        assert_ne!(AgentSecret::new([0; SECRET_BYTES]).hash(), secret.hash());
        assert_eq!(format!("{secret:?}"), "AgentSecret(…)");
        for bad in ["", "mcpp_", &secret.expose()[1..], &format!("{}x", secret.expose())] {
            assert_eq!(hash_of(bad.as_bytes()), None, "{bad}");
        }
    }
}

/// Maximum length of a name, in characters.
const MAX_NAME_CHARS: usize = 64;
/// Maximum number of servers, and of patterns, of one token.
const MAX_LIST: usize = 256;
/// Maximum length of a server's name or a pattern, in characters.
const MAX_ENTRY_CHARS: usize = 256;
/// Maximum lifetime of a token: 10 years.
const MAX_LIFETIME: Duration = Duration::from_secs(10 * 366 * 24 * 60 * 60);

/// A token to create; an empty list sets no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewAgentToken {
    /// Name of letters, digits, `-`, `_` and `.`; records show `token:NAME`.
    pub name: String,
    /// Servers it may be used for, by their names in the config.
    #[serde(default)]
    pub servers: Vec<String>,
    /// Tools it may be used for: `server:tool`, or the tool's own name, with `*` for any run of characters.
    #[serde(default)]
    pub tools: Vec<String>,
    /// Operations it may be used for.
    #[serde(default)]
    pub operations: Vec<Operation>,
    /// Lifetime in seconds; unlimited if absent.
    #[serde(default, deserialize_with = "whole_seconds", skip_serializing_if = "Option::is_none")]
    pub expires_in: Option<u64>,
}

#[derive(Debug)]
pub enum TokenChange {
    Create(NewAgentToken),
    /// Gives the token a new secret; the old one stops working.
    Rotate(String),
    /// Revokes the token.
    Revoke(String),
}

/// Result of a change.
#[derive(Debug)]
pub enum TokenChanged {
    /// Created or rotated.
    Made(MadeToken),
    /// The token was revoked.
    Revoked(String),
}

/// A new secret, shown once because it is not stored.
#[derive(Debug)]
pub struct MadeToken {
    pub name: String,
    pub secret: AgentSecret,
    /// Expiry in seconds since 1970; `None`: never.
    pub expires: Option<u64>,
}

/// Reason why a change failed.
#[derive(Debug, Error)]
pub enum TokenChangeError {
    #[error(
        "Invalid token name '{0}': must be 1 to {MAX_NAME_CHARS} letters, digits, '-', '_' and '.', and begin with \
         a letter or digit"
    )]
    Name(String),
    /// Beginning of the name, and its length in characters.
    #[error("Invalid token name '{0}…': has {1} characters, and may have {MAX_NAME_CHARS} at most")]
    LongName(String, usize),
    #[error(
        "Invalid {0}: at most {MAX_LIST} of at most {MAX_ENTRY_CHARS} characters each, none of them empty"
    )]
    List(&'static str),
    #[error("Invalid expires_in: must be from 1 second to 10 years")]
    Expires,
    #[error("Token '{0}' exists already: rotate it for a new secret, or revoke it")]
    Exists(String),
    #[error("Token '{0}' not found")]
    Missing(String),
    #[error("There are {MAX_TOKENS} tokens already, the maximum")]
    Full,
    #[error(transparent)]
    File(#[from] TokenFileError),
}

impl TokenChangeError {
    /// Whether the values of the change are invalid, whatever tokens there are.
    pub fn is_about_input(&self) -> bool {
        matches!(self, Self::Name(_) | Self::LongName(..) | Self::List(_) | Self::Expires)
    }
}

impl TokenChange {
    /// Applies the change to `tokens`, which stay unchanged on error.
    pub(super) fn apply(
        self,
        tokens: &mut Vec<StoredToken>,
        random: [u8; 32],
        now: SystemTime,
    ) -> Result<TokenChanged, TokenChangeError> {
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let named = |tokens: &[StoredToken], name: &str| {
            tokens.iter().position(|token| *token.name == *name)
        };
        match self {
            Self::Create(new) => {
                new.check()?;
                if named(tokens, &new.name).is_some() {
                    return Err(TokenChangeError::Exists(new.name));
                }
                if tokens.len() >= MAX_TOKENS {
                    return Err(TokenChangeError::Full);
                }
                let secret = AgentSecret::new(random);
                let texts = |list: Vec<String>| list.into_iter().map(Into::into).collect();
                let expires = new.expires_in.map(|seconds| since.as_secs().saturating_add(seconds));
                let kept = StoredToken {
                    name: new.name.as_str().into(),
                    hash: secret.hash(),
                    servers: texts(new.servers),
                    tools: texts(new.tools),
                    operations: new.operations,
                    created: u64::try_from(since.as_micros()).unwrap_or(u64::MAX),
                    expires,
                };
                let at = tokens.partition_point(|token| *token.name < *kept.name);
                tokens.insert(at, kept);
                Ok(TokenChanged::Made(MadeToken { name: new.name, secret, expires }))
            }
            Self::Rotate(name) => {
                let at = named(tokens, &name);
                let Some(token) = at.and_then(|at| tokens.get_mut(at)) else {
                    return Err(TokenChangeError::Missing(name));
                };
                let secret = AgentSecret::new(random);
                token.hash = secret.hash();
                Ok(TokenChanged::Made(MadeToken { name, secret, expires: token.expires }))
            }
            Self::Revoke(name) => {
                let Some(at) = named(tokens, &name) else {
                    return Err(TokenChangeError::Missing(name));
                };
                tokens.remove(at);
                Ok(TokenChanged::Revoked(name))
            }
        }
    }
}

impl NewAgentToken {
    fn check(&self) -> Result<(), TokenChangeError> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let begins = self.name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        if !begins || self.name.len() > MAX_NAME_CHARS || !self.name.bytes().all(plain) {
            let chars = self.name.chars().count();
            let name = self.name.chars().take(MAX_NAME_CHARS).collect();
            return Err(match chars > MAX_NAME_CHARS {
                true => TokenChangeError::LongName(name, chars),
                false => TokenChangeError::Name(name),
            });
        }
        for (name, list) in [("servers", &self.servers), ("tools", &self.tools)] {
            let fits = |entry: &String| (1..=MAX_ENTRY_CHARS).contains(&entry.chars().count());
            if list.len() > MAX_LIST || !list.iter().all(fits) {
                return Err(TokenChangeError::List(name));
            }
        }
        if self.operations.len() > MAX_LIST {
            return Err(TokenChangeError::List("operations"));
        }
        match self.expires_in {
            Some(seconds) if !(1..=MAX_LIFETIME.as_secs()).contains(&seconds) => {
                Err(TokenChangeError::Expires)
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// Accepts whole seconds in any JSON spelling: `60` and `60.0`.
fn whole_seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    /// Largest integer a double represents exactly: 2^53.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let Some(number) = Option::<serde_json::Number>::deserialize(deserializer)? else {
        return Ok(None);
    };
    let whole = |double: &f64| double.fract() == 0.0 && (0.0..=EXACT).contains(double);
    let seconds =
        number.as_u64().or_else(|| number.as_f64().filter(whole).map(|double| double as u64));
    seconds.map(Some).ok_or_else(|| serde::de::Error::custom("expires_in must be whole seconds"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn token(name: &str) -> StoredToken {
        StoredToken {
            name: name.into(),
            hash: [3; 32],
            servers: Vec::new(),
            tools: vec!["a:*".into()],
            operations: vec![Operation::Write],
            created: 5,
            expires: Some(6),
        }
    }

    #[test]
    fn changed_permissions_change_the_stamp() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        fs::write(&path, "x").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let before = file_stamp(&path);
        assert_eq!(file_stamp(&path), before);
        // File system timestamps are coarse, so the change may need several attempts to change the stamp.
        let start = std::time::Instant::now();
        while file_stamp(&path) == before {
            assert!(start.elapsed().as_secs() < 10, "the stamp never changes");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        }
        assert_eq!(fs::read(&path).unwrap(), b"x");
    }

    #[test]
    fn saved_tokens_load_and_are_private() {
        let folder = tempfile::tempdir().unwrap();
        let file = TokenFile::new(&folder.path().join("data"));
        assert!(file.load().unwrap().is_empty() && file.stamp().is_none());
        let lock = file.lock().unwrap();
        file.save(vec![token("a")]).unwrap();
        let first = file.stamp();
        file.save(vec![token("a"), token("b")]).unwrap();
        drop(lock);
        assert_ne!(file.stamp(), first);
        assert_eq!(file.load().unwrap(), [token("a"), token("b")]);
        assert_eq!(fs::metadata(&file.file).unwrap().mode() & 0o777, 0o600);
        let names: Vec<_> = fs::read_dir(file.folder()).unwrap().flatten().collect();
        assert_eq!(names.len(), 3, "the file, its copy and its lock: {names:?}");
    }

    #[test]
    fn file_readable_by_others_or_malformed_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let file = TokenFile::new(folder.path());
        file.save(vec![token("a")]).unwrap();
        fs::set_permissions(&file.file, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(file.load(), Err(TokenFileError::Open { mode: 0o640, .. })));
        fs::set_permissions(&file.file, fs::Permissions::from_mode(0o600)).unwrap();
        file.save(vec![token("a"), token("a")]).unwrap();
        assert!(file.load().unwrap_err().to_string().contains("'a' occurs twice"));
        let late = StoredToken { expires: Some(u64::MAX), ..token("late") };
        file.save(vec![late]).unwrap();
        assert!(file.load().unwrap_err().to_string().contains("'late' has an expiry out of range"));
        for text in ["", "{}", r#"{"version":2,"tokens":[]}"#, r#"{"version":1,"tokens":[{}]}"#] {
            fs::write(&file.file, text).unwrap();
            assert!(matches!(file.load(), Err(TokenFileError::Broken { .. })), "{text}");
        }
    }

    // Requirements SF-1 and SF-2.
    #[test]
    fn flipped_bit_in_any_byte_is_rejected_and_the_backup_is_offered() {
        let folder = tempfile::tempdir().unwrap();
        let file = TokenFile::new(folder.path());
        file.save(vec![token("a"), StoredToken { expires: Some(1_900_000_000), ..token("b") }])
            .unwrap();
        let sound = fs::read(&file.file).unwrap();
        for at in 0..sound.len() {
            let mut flipped = sound.clone();
            flipped[at] ^= 1 << (at % 8);
            fs::write(&file.file, &flipped).unwrap();
            let error = file.load().unwrap_err().to_string();
            assert!(
                error.contains("cannot be used") && error.contains("cp -p"),
                "byte {at}: {error}"
            );
        }
        fs::write(&file.file, &sound).unwrap();
        assert_eq!(file.load().unwrap().len(), 2);
    }

    // Requirement SF-2.
    #[test]
    fn missing_file_with_backup_copy_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let file = TokenFile::new(folder.path());
        file.save(vec![token("a")]).unwrap();
        fs::remove_file(&file.file).unwrap();
        let error = file.load().unwrap_err().to_string();
        assert!(error.contains("missing") && error.contains("cp -p"), "{error}");
    }

    fn new(name: &str) -> NewAgentToken {
        NewAgentToken { name: name.into(), ..NewAgentToken::default() }
    }

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn token_is_created_rotated_and_revoked() {
        let mut tokens = Vec::new();
        let mut apply = |change: TokenChange, byte| change.apply(&mut tokens, [byte; 32], at(100));
        let made =
            apply(TokenChange::Create(NewAgentToken { expires_in: Some(5), ..new("ci") }), 1);
        let TokenChanged::Made(made) = made.unwrap() else { panic!() };
        assert_eq!((&*made.name, made.expires), ("ci", Some(105)));
        assert!(apply(TokenChange::Create(new("a")), 2).is_ok());
        let again = apply(TokenChange::Create(new("ci")), 3).unwrap_err();
        assert_eq!(
            again.to_string(),
            "Token 'ci' exists already: rotate it for a new secret, or revoke it"
        );
        let TokenChanged::Made(renewed) = apply(TokenChange::Rotate("ci".into()), 4).unwrap()
        else {
            panic!()
        };
        assert_eq!(renewed.expires, Some(105), "rotation does not extend the lifetime");
        assert_ne!(renewed.secret.expose(), made.secret.expose());
        assert!(apply(TokenChange::Revoke("ci".into()), 0).is_ok());
        for gone in [TokenChange::Revoke("ci".into()), TokenChange::Rotate("ci".into())] {
            assert_eq!(apply(gone, 0).unwrap_err().to_string(), "Token 'ci' not found");
        }
        let names: Vec<_> = tokens.iter().map(|token| &*token.name).collect();
        assert_eq!(names, ["a"]);
    }

    #[test]
    fn invalid_change_is_rejected_without_effect() {
        let long = "x".repeat(MAX_NAME_CHARS + 1);
        let mut tokens = Vec::new();
        let mut refused = |new| {
            let change = TokenChange::Create(new).apply(&mut tokens, [0; 32], at(0));
            change.unwrap_err().to_string()
        };
        for name in ["", "a b", "-a", "a:b", "ü", "a\n", &long] {
            assert!(refused(new(name)).starts_with("Invalid token name"), "{name}");
        }
        let empty = NewAgentToken { servers: vec![String::new()], ..new("a") };
        assert!(refused(empty).starts_with("Invalid servers"));
        let many = NewAgentToken { tools: vec!["x".into(); MAX_LIST + 1], ..new("a") };
        assert!(refused(many).starts_with("Invalid tools"));
        for seconds in [0, MAX_LIFETIME.as_secs() + 1] {
            let bad = NewAgentToken { expires_in: Some(seconds), ..new("a") };
            assert!(refused(bad).starts_with("Invalid expires_in"));
        }
        for (written, read) in [("60", Some(60)), ("60.0", Some(60)), ("null", None)] {
            let text = format!(r#"{{"name":"a","expires_in":{written}}}"#);
            assert_eq!(serde_json::from_str::<NewAgentToken>(&text).unwrap().expires_in, read);
        }
        for written in ["1.5", "-1", "1e300", "\"60\""] {
            let text = format!(r#"{{"name":"a","expires_in":{written}}}"#);
            assert!(serde_json::from_str::<NewAgentToken>(&text).is_err(), "{written}");
        }
        assert!(tokens.is_empty());
    }
}
