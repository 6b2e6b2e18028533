//! Refresh of JWT signing keys from a file or an issuer, and of agent tokens. `reload` detects changes of the token file.
//!
//! Only one fetch is in progress at a time. Failures are logged, and the previous keys stay in force for a bounded time ([`KeysLease`]).

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mcpproxy_policy::identity::{
    BadKeySet, FileStamp, Identity, KeySet, KeySource, MAX_KEY_SET_BYTES, file_stamp,
};
use mcpproxy_runtime::os::bounded_file::{self, NamedPipes, Unreadable};
use mcpproxy_upstream::oauth::fetch_key_set;

/// Interval of checks for a changed key file.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Refresh interval of fetched keys, and thus the maximum time that a withdrawn key stays valid.
const KEYS_FRESH: Duration = Duration::from_secs(15 * 60);
/// Timeout for the keys of a new issuer before its config is applied.
const FIRST_KEYS_WAIT: Duration = Duration::from_secs(5);
/// Minimum interval between fetches, regardless of the tokens that arrive.
const MIN_FETCH_INTERVAL: Duration = Duration::from_secs(5);

/// Grace period for keys after their issuer first published a set without usable keys, as during a two-step rotation.
const EMPTY_SET_GRACE: Duration = Duration::from_secs(15 * 60);
/// Maximum age of keys that cannot be refreshed for any reason.
const MAX_KEYS_AGE: Duration = Duration::from_secs(24 * 3600);

/// Reloads the agent tokens if their file changed. Blocks.
pub(super) fn reload_tokens(identity: &Identity) {
    match identity.reload_tokens() {
        Ok(true) => tracing::info!("agent tokens reloaded"),
        Ok(false) => {}
        Err(error) => {
            tracing::error!(%error, "the agent tokens cannot be read; the previous ones stay in force")
        }
    }
}

/// Fetches the keys of a new issuer, with a timeout. Failures are reported by the next refresh.
pub(super) async fn first_keys(source: &KeySource) -> Option<KeySet> {
    let fetched = tokio::time::timeout(FIRST_KEYS_WAIT, fetch(source)).await.ok()?;
    KeySet::parse(&fetched.ok()?).ok()
}

async fn fetch(source: &KeySource) -> Result<Vec<u8>, String> {
    match source {
        KeySource::Url(url) => fetch_key_set(url).await,
        KeySource::File(file) => {
            let path = file.clone();
            let read = tokio::task::spawn_blocking(move || read_changed(&path, None)).await;
            match read {
                Ok(Some((_, Ok(text)))) => Ok(text),
                Ok(Some((_, Err(error)))) => Err(format!("{}: {error}", file.display())),
                Ok(None) | Err(_) => Err(format!("{}: no such file", file.display())),
            }
        }
    }
}

/// Refreshes the keys of the configured issuer until aborted.
pub(super) async fn watch(identity: Arc<Identity>) {
    let identity = &*identity;
    let source = || identity.jwt().map(|jwt| jwt.settings().keys.clone());
    let mut keys = Keys::of(source());
    keys.renew(identity).await;
    loop {
        let wanted = tokio::select! {
            () = identity.keys_wanted() => true,
            () = tokio::time::sleep(CHECK_INTERVAL) => false,
        };
        let source = source();
        if source != keys.source {
            keys = Keys::of(source);
        }
        if keys.are_due(wanted) {
            keys.renew(identity).await;
        }
        keys.end(identity, Instant::now());
        if wanted {
            identity.keys_asked();
        }
    }
}

/// Refresh state of the issuer's keys.
struct Keys {
    source: Option<KeySource>,
    /// Time of the last fetch.
    asked: Option<Instant>,
    failed: bool,
    /// Stamp of the file in force.
    seen: Option<FileStamp>,
    lease: KeysLease,
}

/// Lease of the keys in force while they cannot be refreshed. Pure: the clock is an argument.
///
/// The grace period of an empty set ends only when a set with keys is read; a failed fetch does not end it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct KeysLease {
    /// Time since which every refresh has failed.
    failing_since: Option<Instant>,
    /// Time when the set was first seen empty.
    empty_since: Option<Instant>,
    has_ended: bool,
}

impl KeysLease {
    fn renewed(&mut self) {
        *self = Self::default();
    }

    /// Records a failed refresh; `is_empty` if the issuer publishes a set without usable keys.
    fn failed(&mut self, is_empty: bool, now: Instant) {
        self.failing_since.get_or_insert(now);
        if is_empty {
            self.empty_since.get_or_insert(now);
        }
    }

    /// Whether the lease ends now; returns true only once.
    fn ends(&mut self, now: Instant) -> bool {
        let is_past = |since: Option<Instant>, bound: Duration| {
            since.is_some_and(|since| now.saturating_duration_since(since) >= bound)
        };
        let ends =
            is_past(self.empty_since, EMPTY_SET_GRACE) || is_past(self.failing_since, MAX_KEYS_AGE);
        ends && !std::mem::replace(&mut self.has_ended, ends)
    }
}

impl Keys {
    fn of(source: Option<KeySource>) -> Self {
        Self { source, asked: None, failed: false, seen: None, lease: KeysLease::default() }
    }

    fn are_due(&self, wanted: bool) -> bool {
        let age = self.asked.map_or(Duration::MAX, |asked| asked.elapsed());
        match &self.source {
            None => false,
            Some(KeySource::File(_)) => true,
            Some(KeySource::Url(_)) if wanted || self.failed => age >= MIN_FETCH_INTERVAL,
            Some(KeySource::Url(_)) => age >= KEYS_FRESH,
        }
    }

    /// Takes the keys out of force when their lease ends.
    fn end(&mut self, identity: &Identity, now: Instant) {
        if self.lease.ends(now) {
            tracing::error!(
                "the JWT issuer's key set has been empty or unreadable for too long; rejecting JWTs"
            );
            identity.set_keys(&KeySet::default());
        }
    }

    async fn renew(&mut self, identity: &Identity) {
        let read = match &self.source {
            None => return,
            Some(KeySource::Url(url)) => {
                self.asked = Some(Instant::now());
                fetch_key_set(url).await
            }
            Some(KeySource::File(file)) => {
                let (path, seen) = (file.clone(), self.seen);
                let read = tokio::task::spawn_blocking(move || read_changed(&path, seen)).await;
                let Ok(Some((stamp, read))) = read else { return };
                self.seen = stamp;
                read.map_err(|error| format!("{}: {error}", file.display()))
            }
        };
        let mut is_empty = false;
        let keys = read.and_then(|text| {
            KeySet::parse(&text).map_err(|error| {
                is_empty = error == BadKeySet::Useless;
                error.to_string()
            })
        });
        match keys {
            Ok(keys) => {
                self.failed = false;
                self.lease.renewed();
                tracing::info!(keys = keys.len(), "JWT keys refreshed");
                identity.set_keys(&keys);
            }
            Err(error) => {
                self.failed = true;
                self.lease.failed(is_empty, Instant::now());
                tracing::warn!(
                    error,
                    "cannot refresh the JWT keys; the previous ones stay in force for a while"
                );
            }
        }
    }
}

/// Result of reading a file.
type FileRead = Result<Vec<u8>, Unreadable>;

/// Reads a file and its stamp; `None` if it is unchanged.
fn read_changed(path: &Path, seen: Option<FileStamp>) -> Option<(Option<FileStamp>, FileRead)> {
    let stamp = file_stamp(path);
    if stamp.is_some() && stamp == seen {
        return None;
    }
    let read = bounded_file::read(path, MAX_KEY_SET_BYTES as u64, NamedPipes::Refused);
    // A missing file is reported once, not at each check.
    (stamp.is_some() || seen.is_some()).then_some((stamp, read.map(|(bytes, _)| bytes)))
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use mcpproxy_policy::identity::{Algorithm, JwtVerifier, Settings, TokenFile};

    #[test]
    fn lease_ends_after_its_grace_period_for_empty_or_unreachable_key_sets() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut lease = KeysLease::default();
        assert!(!lease.ends(start + MAX_KEYS_AGE * 2), "nothing has failed");
        lease.failed(true, start);
        // Neither errors in between nor repetitions restart the period.
        lease.failed(false, start + EMPTY_SET_GRACE / 2);
        lease.failed(true, start + EMPTY_SET_GRACE / 2);
        assert!(!lease.ends(start + EMPTY_SET_GRACE - second));
        assert!(lease.ends(start + EMPTY_SET_GRACE));
        assert!(!lease.ends(start + EMPTY_SET_GRACE * 2), "once");
        lease.renewed();
        assert_eq!(lease, KeysLease::default());
        lease.failed(false, start);
        assert!(!lease.ends(start + MAX_KEYS_AGE - second));
        assert!(lease.ends(start + MAX_KEYS_AGE));
        assert_eq!(KeySet::parse(br#"{"keys":[]}"#).unwrap_err(), BadKeySet::Useless);
    }

    #[tokio::test]
    async fn keys_of_an_emptied_file_are_rejected_after_the_grace_period() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("jwks.json");
        let fixture: serde_json::Value =
            serde_json::from_str(include_str!("../../tests/data/identity/rs256.json")).unwrap();
        std::fs::write(&file, fixture["jwks"].to_string()).unwrap();
        let settings = Settings {
            issuer: "https://issuer.example".into(),
            audience: "mcp".into(),
            keys: KeySource::File(file.clone()),
            algorithms: vec![Algorithm::Rs256],
            groups_claim: "groups".into(),
        };
        let verifier = JwtVerifier::new(settings.clone());
        let identity = Identity::new(TokenFile::new(home.path()), Some(verifier));
        let token = fixture["token"].as_str().unwrap().as_bytes();
        let issued = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let counts = || identity.reader().current().prove(token, issued).is_ok();
        let mut keys = Keys::of(Some(settings.keys));
        keys.renew(&identity).await;
        assert!(counts());
        std::fs::write(&file, r#"{"keys": []}"#).unwrap();
        keys.renew(&identity).await;
        keys.end(&identity, Instant::now());
        assert!(counts(), "a set may be published in two steps");
        keys.end(&identity, Instant::now() + EMPTY_SET_GRACE);
        assert!(!counts());
        std::fs::write(&file, fixture["jwks"].to_string()).unwrap();
        keys.renew(&identity).await;
        assert!(counts(), "keys are available again");
    }

    #[test]
    fn named_pipe_as_key_file_is_reported_without_blocking() {
        let home = tempfile::tempdir().unwrap();
        let pipe = home.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let (seen, read) = read_changed(&pipe, None).unwrap();
        assert!(matches!(read, Err(Unreadable::NoFile)), "{read:?}");
        assert!(seen.is_some() && read_changed(&pipe, seen).is_none(), "it is reported once");
    }
}
