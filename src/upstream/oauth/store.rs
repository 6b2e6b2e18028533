//! The files that logins are kept in: one for each server, for its owner's eyes only.
//!
//! A file is replaced whole or not at all. Whoever renews a token holds the server's lock, so that
//! two processes do not use one refresh token twice. What a token is good for is not known here.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use rmcp::transport::auth::AuthorizationMetadata;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Most bytes of such a file.
const MAX_FILE_BYTES: u64 = 1024 * 1024;
/// The rights that nobody but the owner may have.
const OTHERS: u32 = 0o077;

/// What a login gave. `Debug` shows no token.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Grant {
    /// The server's URL in the config: the tokens are for it alone.
    pub(super) url: String,
    /// What the tokens were asked for (RFC 8707).
    pub(super) resource: String,
    /// Where they are renewed.
    pub(super) metadata: AuthorizationMetadata,
    pub(super) client_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) client_secret: Option<String>,
    pub(super) access_token: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) refresh_token: Option<String>,
    /// What the tokens are good for, as far as the authorization server said.
    pub(super) scopes: Vec<String>,
    /// What the login asked for.
    #[serde(default)]
    pub(super) requested: Vec<String>,
    /// What the server has asked for since, at the request that it refused last.
    #[serde(default)]
    pub(super) wanted: Vec<String>,
    /// Logins in a row after which the server asked for what they had asked for.
    #[serde(default)]
    pub(super) fruitless: u32,
    /// Seconds since 1970.
    pub(super) received_at: u64,
    /// Seconds since 1970; absent: the server did not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) expires_at: Option<u64>,
}

impl Grant {
    /// What of it must not come back.
    pub(super) fn secrets(&self) -> impl Iterator<Item = &str> {
        let kept = [self.refresh_token.as_deref(), self.client_secret.as_deref()];
        std::iter::once(&*self.access_token).chain(kept.into_iter().flatten())
    }

    /// Whether there are tokens in it.
    pub(super) fn is_login(&self) -> bool {
        !self.access_token.is_empty()
    }

    /// Whether the server asked for what the login had asked for.
    pub(super) fn asked_in_vain(&self) -> bool {
        self.wanted.iter().any(|scope| self.requested.contains(scope))
    }

    /// What is worth keeping of a login that is of no use any more: who gave it, and for what.
    pub(super) fn ended(mut self) -> Self {
        self.access_token.clear();
        self.refresh_token = None;
        self.client_secret = None;
        self.expires_at = None;
        self
    }
}

impl std::fmt::Debug for Grant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grant").field("url", &self.url).finish_non_exhaustive()
    }
}

/// Why the tokens of a server cannot be read or kept.
#[derive(Debug, Error)]
pub enum TokenStoreError {
    /// Others may read or write the file.
    #[error("{} can be read by others than its owner: chmod 600 it", .0.display())]
    Open(PathBuf),
    /// The file is not one of ours.
    #[error("{} cannot be understood: remove it and log in again", .0.display())]
    Broken(PathBuf),
    /// The system says no.
    #[error("{}: {error}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// What the system says.
        error: io::Error,
    },
}

/// What tells one state of a file from another, without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    inode: u64,
    seconds: i64,
    nanoseconds: i64,
}

/// The file of one server. Its functions block.
#[derive(Clone, Debug)]
pub struct TokenStore {
    file: PathBuf,
}

impl TokenStore {
    /// The file of `server` under `data_dir`.
    #[must_use]
    pub fn new(data_dir: &Path, server: &str) -> Self {
        let name = utf8_percent_encode(server, NON_ALPHANUMERIC);
        Self { file: data_dir.join("oauth").join(format!("{name}.json")) }
    }

    /// The file as it is now; `None` if there is none.
    pub(super) fn stamp(&self) -> Option<Stamp> {
        let found = fs::metadata(&self.file).ok()?;
        Some(Stamp { inode: found.ino(), seconds: found.mtime(), nanoseconds: found.mtime_nsec() })
    }

    /// What is kept; `None` if nothing is.
    pub(super) fn load(&self) -> Result<Option<Grant>, TokenStoreError> {
        let file = match File::open(&self.file) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.io(error)),
        };
        let rights = file.metadata().map_err(|error| self.io(error))?.permissions().mode();
        if rights & OTHERS != 0 {
            return Err(TokenStoreError::Open(self.file.clone()));
        }
        let mut text = Vec::new();
        file.take(MAX_FILE_BYTES + 1).read_to_end(&mut text).map_err(|error| self.io(error))?;
        let broken = || TokenStoreError::Broken(self.file.clone());
        if text.len() as u64 > MAX_FILE_BYTES {
            return Err(broken());
        }
        serde_json::from_slice(&text).map(Some).map_err(|_| broken())
    }

    /// Replaces what is kept.
    pub(super) fn save(&self, grant: &Grant) -> Result<(), TokenStoreError> {
        let text =
            serde_json::to_vec_pretty(grant).map_err(|error| self.io(io::Error::other(error)))?;
        let aside = self.file.with_extension(format!("{}.tmp", std::process::id()));
        let write = || {
            self.make_folder()?;
            let _ = fs::remove_file(&aside);
            let mut options = OpenOptions::new();
            let mut file = options.write(true).create_new(true).mode(0o600).open(&aside)?;
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&aside, &self.file)
        };
        write().map_err(|error| {
            let _ = fs::remove_file(&aside);
            self.io(error)
        })
    }

    /// Forgets what is kept; false if there was nothing.
    ///
    /// # Errors
    ///
    /// [`TokenStoreError::Io`]
    pub fn forget(&self) -> Result<bool, TokenStoreError> {
        match fs::remove_file(&self.file) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(self.io(error)),
        }
    }

    /// Waits until nobody else renews this server's tokens. Ends when it is dropped.
    pub(super) fn lock(&self) -> Result<File, TokenStoreError> {
        let lock = || {
            self.make_folder()?;
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(false).mode(0o600);
            let file = options.open(self.file.with_extension("lock"))?;
            file.lock()?;
            Ok(file)
        };
        lock().map_err(|error| self.io(error))
    }

    fn make_folder(&self) -> io::Result<()> {
        let folder = self.file.parent().unwrap_or(Path::new("."));
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
    }

    fn io(&self, error: io::Error) -> TokenStoreError {
        TokenStoreError::Io { file: self.file.clone(), error }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn grant(url: &str, token: &str) -> Grant {
        Grant {
            url: url.to_owned(),
            resource: url.to_owned(),
            metadata: AuthorizationMetadata::default(),
            client_id: "client".to_owned(),
            client_secret: None,
            access_token: token.to_owned(),
            refresh_token: Some("r1".to_owned()),
            scopes: vec!["mcp".to_owned()],
            requested: vec!["mcp".to_owned()],
            wanted: Vec::new(),
            fruitless: 0,
            received_at: 1,
            expires_at: None,
        }
    }

    #[test]
    fn what_is_saved_is_loaded_and_is_its_owners_alone() {
        let folder = tempfile::tempdir().unwrap();
        let store = TokenStore::new(folder.path(), "a/../b c");
        assert!(store.load().unwrap().is_none() && store.stamp().is_none());
        store.save(&grant("https://a/mcp", "t1")).unwrap();
        let first = store.stamp();
        store.save(&grant("https://a/mcp", "t2")).unwrap();
        assert_ne!(store.stamp(), first);
        assert_eq!(store.load().unwrap().unwrap().access_token, "t2");
        let files: Vec<_> = fs::read_dir(folder.path().join("oauth")).unwrap().flatten().collect();
        assert_eq!(files.len(), 1, "{files:?}");
        assert_eq!(files[0].file_name(), "a%2F%2E%2E%2Fb%20c.json");
        assert_eq!(files[0].metadata().unwrap().mode() & 0o777, 0o600);
        assert!(store.forget().unwrap() && !store.forget().unwrap());
        assert!(!format!("{:?}", grant("https://a", "t1")).contains("t1"));
    }

    #[test]
    fn a_file_that_others_may_read_or_that_is_not_ours_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let store = TokenStore::new(folder.path(), "s");
        store.save(&grant("https://a/mcp", "t1")).unwrap();
        fs::set_permissions(&store.file, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(store.load(), Err(TokenStoreError::Open(_))));
        fs::set_permissions(&store.file, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&store.file, "{}").unwrap();
        assert!(matches!(store.load(), Err(TokenStoreError::Broken(_))));
    }
}
