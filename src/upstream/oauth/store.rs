//! Token files: one per server, readable only by the owner.
//!
//! State files with a checksum and a last good copy ([`state_file`]), replaced atomically and durably. A renewal
//! holds the server's lock, so that no two processes use the same refresh token.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use http::HeaderValue;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use rmcp::transport::auth::{AuthorizationMetadata, OAuthTokenResponse};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::config::ClientSettings;
use crate::oauth::union;
use mcpproxy_runtime::os::bounded_file::Unreadable;
use mcpproxy_runtime::os::private;
use mcpproxy_runtime::os::state_file::{self, StateFileError};

/// Maximum size of a token file, in bytes.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// Tokens of a login with everything needed to renew them. `Debug` hides them.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Grant {
    /// The server's configured URL, to which the tokens are bound.
    pub(super) url: String,
    /// Resource parameter of the token requests (RFC 8707).
    pub(super) resource: String,
    /// Endpoints for renewals.
    pub(super) metadata: AuthorizationMetadata,
    pub(super) client_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) client_secret: Option<String>,
    pub(super) access_token: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) refresh_token: Option<String>,
    /// Granted scopes, as far as they are known.
    pub(super) scopes: Vec<String>,
    /// Scopes that the login requested.
    #[serde(default)]
    pub(super) requested: Vec<String>,
    /// Scopes that the server has required since the login.
    #[serde(default)]
    pub(super) wanted: Vec<String>,
    /// Number of consecutive logins after which the server still required scopes that they had requested.
    #[serde(default)]
    pub(super) fruitless: u32,
    /// Time of receipt in seconds since 1970.
    pub(super) received_at: u64,
    /// Expiry in seconds since 1970; absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) expires_at: Option<u64>,
    /// Settings of the client that requested the token itself; absent if a person logged in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) client: Option<ClientSettings>,
}

impl Grant {
    /// Values to redact.
    pub(super) fn secrets(&self) -> impl Iterator<Item = &str> {
        let kept = [self.refresh_token.as_deref(), self.client_secret.as_deref()];
        std::iter::once(&*self.access_token).chain(kept.into_iter().flatten())
    }

    /// Whether the grant contains a token.
    pub(super) fn is_login(&self) -> bool {
        !self.access_token.is_empty()
    }

    /// Adds the scopes that the server has required to the requested ones.
    pub(super) fn with_wanted_requested(mut self) -> Self {
        self.requested = union(self.requested.iter().chain(&self.wanted).cloned());
        self
    }

    /// Whether the server required a scope that the login had requested.
    pub(super) fn requested_in_vain(&self) -> bool {
        self.wanted.iter().any(|scope| self.requested.contains(scope))
    }

    /// Removes the tokens, keeping issuer and scopes.
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

/// Reason why a token file cannot be used.
#[derive(Debug, Error)]
pub enum TokenStoreError {
    #[error("{} can be read by users other than its owner: chmod 600 it", .0.display())]
    Open(PathBuf),
    /// The file is damaged, invalid, or missing although its copy exists.
    #[error("{} cannot be used: {reason}; {recovery}", file.display())]
    Broken {
        file: PathBuf,
        reason: String,
        /// Steps to get a usable file again.
        recovery: String,
    },
    #[error("{}: {error}", file.display())]
    Io { file: PathBuf, error: io::Error },
}

/// Version of a file, determined without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    inode: u64,
    seconds: i64,
    nanoseconds: i64,
}

/// Token file of one server. Its methods block.
#[derive(Clone, Debug)]
pub(super) struct TokenStore {
    file: PathBuf,
}

impl TokenStore {
    pub(super) fn new(data_dir: &Path, server: &str) -> Self {
        let name = utf8_percent_encode(server, NON_ALPHANUMERIC);
        Self { file: data_dir.join("oauth").join(format!("{name}.json")) }
    }

    /// Version of the file; `None` if it does not exist.
    pub(super) fn stamp(&self) -> Option<Stamp> {
        let found = fs::metadata(&self.file).ok()?;
        Some(Stamp { inode: found.ino(), seconds: found.mtime(), nanoseconds: found.mtime_nsec() })
    }

    /// Stored grant, if any.
    pub(super) fn load(&self) -> Result<Option<Grant>, TokenStoreError> {
        if private::wider(&self.file).is_some() {
            return Err(TokenStoreError::Open(self.file.clone()));
        }
        match state_file::read(&self.file, MAX_FILE_BYTES) {
            Ok(None) => Ok(None),
            Ok(Some(text)) => read_grant(&text).map(Some).map_err(|reason| self.broken(reason)),
            Err(StateFileError::Unreadable(Unreadable::Io(error))) => Err(self.io(error)),
            Err(error) => Err(self.broken(error.to_string())),
        }
    }

    /// Replaces the stored grant; durable on return.
    pub(super) fn save(&self, grant: &Grant) -> Result<(), TokenStoreError> {
        let text =
            serde_json::to_vec_pretty(grant).map_err(|error| self.io(io::Error::other(error)))?;
        let write = || {
            self.make_folder()?;
            state_file::write(&self.file, &text)
        };
        write().map_err(|error| self.io(error))
    }

    /// Removes the stored grant; returns false if there was none.
    pub(super) fn forget(&self) -> Result<bool, TokenStoreError> {
        match state_file::remove(&self.file) {
            Ok(removed) => Ok(removed),
            // The directory does not exist.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(self.io(error)),
        }
    }

    /// Locks the server's tokens against other processes until the file is dropped.
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

    /// Creates the folder of the file. A new folder is synced into its parent; otherwise a crash could lose the folder
    /// together with the login.
    fn make_folder(&self) -> io::Result<()> {
        let folder = self.file.parent().unwrap_or(Path::new("."));
        if folder.is_dir() {
            return Ok(());
        }
        private::folder(folder)?;
        match folder.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => File::open(parent)?.sync_all(),
            _ => Ok(()),
        }
    }

    fn broken(&self, reason: String) -> TokenStoreError {
        let is_sound = |text: &[u8]| read_grant(text).is_ok();
        let otherwise = "remove it and log in again";
        let recovery = state_file::recovery(&self.file, is_sound, MAX_FILE_BYTES, otherwise);
        TokenStoreError::Broken { file: self.file.clone(), reason, recovery }
    }

    fn io(&self, error: io::Error) -> TokenStoreError {
        TokenStoreError::Io { file: self.file.clone(), error }
    }
}

/// Parses the output of [`TokenStore::save`]. The error contains no values.
fn read_grant(text: &[u8]) -> Result<Grant, String> {
    serde_json::from_slice(text).map_err(|error| {
        format!("it is not a login (line {}, column {})", error.line(), error.column())
    })
}

/// Adds the tokens of a response to a grant.
pub(super) fn take(mut grant: Grant, response: &OAuthTokenResponse) -> Result<Grant, String> {
    #[derive(Deserialize)]
    struct Tokens {
        access_token: String,
        token_type: String,
        expires_in: Option<u64>,
        refresh_token: Option<String>,
        scope: Option<String>,
    }
    let tokens = serde_json::to_value(response).and_then(serde_json::from_value::<Tokens>);
    let tokens = tokens.map_err(|_| "it issued tokens that cannot be read".to_owned())?;
    if !tokens.token_type.eq_ignore_ascii_case("bearer") {
        return Err("it issued a token that is not a bearer token".to_owned());
    }
    if HeaderValue::from_str(&tokens.access_token).is_err() || tokens.access_token.is_empty() {
        return Err("it issued a token that cannot be sent in a header".to_owned());
    }
    grant.received_at = seconds();
    grant.expires_at = tokens.expires_in.map(|left| grant.received_at.saturating_add(left));
    grant.access_token = tokens.access_token;
    grant.refresh_token = tokens.refresh_token.or(grant.refresh_token);
    if let Some(scope) = tokens.scope {
        grant.scopes = scope.split_whitespace().map(str::to_owned).collect();
    }
    Ok(grant)
}

/// Current time in seconds since 1970.
pub(super) fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::unix::fs::PermissionsExt;

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
            client: None,
        }
    }

    #[test]
    fn saved_grant_is_loaded_and_private() {
        let folder = tempfile::tempdir().unwrap();
        let store = TokenStore::new(folder.path(), "a/../b c");
        assert!(store.load().unwrap().is_none() && store.stamp().is_none());
        store.save(&grant("https://a/mcp", "t1")).unwrap();
        let first = store.stamp();
        store.save(&grant("https://a/mcp", "t2")).unwrap();
        assert_ne!(store.stamp(), first);
        assert_eq!(store.load().unwrap().unwrap().access_token, "t2");
        let files: Vec<_> = fs::read_dir(folder.path().join("oauth")).unwrap().flatten().collect();
        assert_eq!(files.len(), 2, "the file and its copy: {files:?}");
        assert!(store.file.ends_with("a%2F%2E%2E%2Fb%20c.json"), "{store:?}");
        assert!(files.iter().all(|file| file.metadata().unwrap().mode() & 0o777 == 0o600));
        assert!(store.forget().unwrap() && !store.forget().unwrap());
        assert!(!format!("{:?}", grant("https://a", "t1")).contains("t1"));
    }

    #[test]
    fn exposed_or_foreign_file_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let store = TokenStore::new(folder.path(), "s");
        store.save(&grant("https://a/mcp", "t1")).unwrap();
        fs::set_permissions(&store.file, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(store.load(), Err(TokenStoreError::Open(_))));
        fs::set_permissions(&store.file, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&store.file, "{}").unwrap();
        assert!(matches!(store.load(), Err(TokenStoreError::Broken { .. })));
    }

    #[test]
    fn any_flipped_bit_is_rejected_without_naming_a_secret() {
        let folder = tempfile::tempdir().unwrap();
        let store = TokenStore::new(folder.path(), "s");
        store.save(&grant("https://a/mcp", "secret-token")).unwrap();
        let sound = fs::read(&store.file).unwrap();
        for at in 0..sound.len() {
            let mut flipped = sound.clone();
            flipped[at] ^= 1 << (at % 8);
            fs::write(&store.file, &flipped).unwrap();
            let error = store.load().unwrap_err().to_string();
            assert!(error.contains("cp -p") && !error.contains("secret"), "byte {at}: {error}");
        }
        assert!(store.forget().unwrap());
        assert!(store.load().unwrap().is_none(), "the copy is removed as well");
    }
}
