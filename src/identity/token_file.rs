//! The file that agent tokens are kept in: `tokens.json` in the data folder, for its owner's eyes only, without the
//! secrets themselves.
//!
//! It is replaced whole or not at all. Whoever changes it holds the lock beside it, so that two processes lose nothing
//! of each other. Its functions block.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

use super::agent_secret::hash_of;
use crate::intent::Operation;
use crate::os::private;

/// Most tokens at a time.
pub const MAX_TOKENS: usize = 10_000;
/// Most bytes of the file.
const MAX_FILE_BYTES: u64 = 64 * 1024 * 1024;
/// The version of its form.
const VERSION: u32 = 1;
/// The latest end of a token's time, in seconds since 1970.
const MAX_EXPIRES: u64 = 1_000_000_000_000;

/// One token as it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeptToken {
    /// Its name, which no other has.
    pub name: Box<str>,
    /// The hash of its secret.
    #[serde(serialize_with = "to_hex", deserialize_with = "from_hex")]
    pub hash: [u8; 32],
    /// [`Scope::servers`](crate::policy::Scope::servers)
    pub servers: Vec<Box<str>>,
    /// [`Scope::tools`](crate::policy::Scope::tools)
    pub tools: Vec<Box<str>>,
    /// [`Scope::operations`](crate::policy::Scope::operations)
    pub operations: Vec<Operation>,
    /// When it was made, in microseconds since 1970.
    pub created: u64,
    /// When its time is up, in seconds since 1970; `None`: never.
    pub expires: Option<u64>,
}

impl KeptToken {
    /// Whether this is what is kept of `secret`, and its time is not up at `now`.
    #[must_use]
    pub fn is_of(&self, secret: &str, now: SystemTime) -> bool {
        let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        hash_of(secret.as_bytes()) == Some(self.hash) && self.expires.is_none_or(|end| since < end)
    }
}

/// Why the tokens cannot be read or kept.
#[derive(Debug, Error)]
pub enum TokenFileError {
    /// Others may read or write the file.
    #[error("{} can be read or written by others than its owner (mode {mode:03o}): chmod 600 it", file.display())]
    Open {
        /// The file.
        file: PathBuf,
        /// Its rights.
        mode: u32,
    },
    /// The file is not one of ours.
    #[error("{} cannot be understood: {reason}", file.display())]
    Broken {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The system says no.
    #[error("{}: {error}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// What the system says.
        error: io::Error,
    },
}

/// What tells one state of a file from another, without reading it: its rights among it, since what could not be read
/// is to be read once they are mended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStamp {
    inode: u64,
    bytes: u64,
    /// Seconds and nanoseconds of the last change: of what is in it, and of what is known of it.
    written: (i64, i64),
    changed: (i64, i64),
}

/// The state of a file; `None` if there is none.
#[must_use]
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
    tokens: Vec<KeptToken>,
}

/// The file of one data folder.
#[derive(Clone, Debug)]
pub struct TokenFile {
    file: PathBuf,
}

/// The lock of a file; free again when this is dropped.
#[derive(Debug)]
pub(super) struct TokenLock(#[expect(dead_code, reason = "it is held, not used")] File);

impl TokenFile {
    /// The file in `data_dir`.
    #[must_use]
    pub fn new(data_dir: &Path) -> Self {
        Self { file: data_dir.join("tokens.json") }
    }

    /// Its present state; `None` if there is none.
    #[must_use]
    pub fn stamp(&self) -> Option<FileStamp> {
        file_stamp(&self.file)
    }

    /// What is kept, in the order of the names; nothing where there is no file.
    ///
    /// # Errors
    /// [`TokenFileError`].
    pub fn load(&self) -> Result<Vec<KeptToken>, TokenFileError> {
        let file = match File::open(&self.file) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(self.io(error)),
        };
        if let Some(mode) = private::wider(&self.file) {
            return Err(TokenFileError::Open { file: self.file.clone(), mode });
        }
        let mut text = Vec::new();
        file.take(MAX_FILE_BYTES + 1).read_to_end(&mut text).map_err(|error| self.io(error))?;
        if text.len() as u64 > MAX_FILE_BYTES {
            return Err(self.broken(format!("it is larger than {MAX_FILE_BYTES} bytes")));
        }
        read_kept(&text).map_err(|reason| self.broken(reason))
    }

    /// Replaces what is kept. The caller holds the lock.
    pub(super) fn save(&self, tokens: Vec<KeptToken>) -> Result<(), TokenFileError> {
        let text = write_kept(tokens).map_err(|error| self.io(error))?;
        let aside = self.file.with_extension("json.new");
        let write = || {
            let mut file = private::create(&aside)?;
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&aside, &self.file)?;
            // That the new name is there is on disk as well.
            File::open(self.folder())?.sync_all()
        };
        write().map_err(|error| {
            let _ = fs::remove_file(&aside);
            self.io(error)
        })
    }

    /// Waits until nobody else changes the file.
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
        TokenFileError::Broken { file: self.file.clone(), reason }
    }

    fn io(&self, error: io::Error) -> TokenFileError {
        TokenFileError::Io { file: self.file.clone(), error }
    }
}

/// The tokens that the text of such a file keeps. Pure.
///
/// # Errors
/// What is wrong with it.
pub fn read_kept(text: &[u8]) -> Result<Vec<KeptToken>, String> {
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
        return Err(format!("'{}' stands twice", twice.name));
    }
    let never = |token: &&KeptToken| token.expires.is_some_and(|seconds| seconds > MAX_EXPIRES);
    if let Some(token) = tokens.iter().find(never) {
        return Err(format!("'{}' expires at no time that there is", token.name));
    }
    Ok(tokens)
}

/// The text that [`read_kept`] reads. Pure.
///
/// # Errors
/// None that is known of.
pub fn write_kept(tokens: Vec<KeptToken>) -> io::Result<Vec<u8>> {
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn token(name: &str) -> KeptToken {
        KeptToken {
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
    fn a_file_whose_rights_are_others_is_another_state() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        fs::write(&path, "x").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let before = file_stamp(&path);
        assert_eq!(file_stamp(&path), before);
        // Clocks of file systems are coarse.
        let start = std::time::Instant::now();
        while file_stamp(&path) == before {
            assert!(start.elapsed().as_secs() < 10, "it is the same state");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        }
        assert_eq!(fs::read(&path).unwrap(), b"x");
    }

    #[test]
    fn what_is_saved_is_loaded_and_is_its_owners_alone() {
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
        assert_eq!(names.len(), 2, "the file and its lock: {names:?}");
    }

    #[test]
    fn a_file_that_others_may_read_or_that_is_not_ours_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = TokenFile::new(folder.path());
        file.save(vec![token("a")]).unwrap();
        fs::set_permissions(&file.file, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(file.load(), Err(TokenFileError::Open { mode: 0o640, .. })));
        fs::set_permissions(&file.file, fs::Permissions::from_mode(0o600)).unwrap();
        file.save(vec![token("a"), token("a")]).unwrap();
        assert!(file.load().unwrap_err().to_string().ends_with("'a' stands twice"));
        let late = KeptToken { expires: Some(u64::MAX), ..token("late") };
        file.save(vec![late]).unwrap();
        assert!(file.load().unwrap_err().to_string().contains("'late' expires at no time"));
        for text in ["", "{}", r#"{"version":2,"tokens":[]}"#, r#"{"version":1,"tokens":[{}]}"#] {
            fs::write(&file.file, text).unwrap();
            assert!(matches!(file.load(), Err(TokenFileError::Broken { .. })), "{text}");
        }
    }
}
