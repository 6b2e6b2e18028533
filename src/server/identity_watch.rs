//! Keeps who there is up to date: a changed file of keys is noticed, and keys are fetched. That the file of agent tokens
//! changes is noticed by `reload`, which looks at it here.
//!
//! One fetch is under way at a time. What cannot be read or fetched is logged, and what was in force
//! stays.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::identity::{FileStamp, Identity, KeySet, KeySource, MAX_KEY_SET_BYTES, file_stamp};
use crate::os::bounded_file::{self, NamedPipes, Unreadable};
use crate::upstream::oauth::fetch_key_set;

/// How often a file of keys is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How old fetched keys become: one that the issuer has withdrawn counts no longer than this.
const KEYS_FRESH: Duration = Duration::from_secs(15 * 60);
/// Longest wait for the keys of another issuer before its config is in force.
const FIRST_KEYS_WAIT: Duration = Duration::from_secs(5);
/// How long the issuer is left alone after it was asked, whatever tokens come.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// Looks at the file of tokens once. Blocks.
pub(super) fn look(identity: &Identity) {
    match identity.reload_tokens() {
        Ok(true) => tracing::info!("the agent tokens were read"),
        Ok(false) => {}
        Err(error) => tracing::error!(%error, "the agent tokens cannot be read"),
    }
}

/// The keys of an issuer that none are known of, if they can be had in time; what is wrong is told when they are looked
/// for the next time.
pub(super) async fn first_keys(source: &KeySource) -> Option<KeySet> {
    let had = tokio::time::timeout(FIRST_KEYS_WAIT, had(source)).await.ok()?;
    KeySet::parse(&had.ok()?).ok()
}

async fn had(source: &KeySource) -> Result<Vec<u8>, String> {
    match source {
        KeySource::Url(url) => fetch_key_set(url).await,
        KeySource::File(file) => {
            let path = file.clone();
            let read = tokio::task::spawn_blocking(move || read_changed(&path, None)).await;
            match read {
                Ok(Some((_, Ok(text)))) => Ok(text),
                Ok(Some((_, Err(error)))) => Err(format!("{}: {error}", file.display())),
                Ok(None) | Err(_) => Err(format!("{}: is not there", file.display())),
            }
        }
    }
}

/// Keeps the keys of the issuer up to date until it is aborted, whichever issuer the config names.
pub(super) async fn watch(identity: Arc<Identity>) {
    let identity = &*identity;
    let source = || identity.jwt().map(|jwt| jwt.settings().keys.clone());
    let mut keys = Keys { source: source(), asked: None, failed: false, seen: None };
    keys.renew(identity).await;
    loop {
        let wanted = tokio::select! {
            () = identity.keys_wanted() => true,
            () = tokio::time::sleep(LOOK_EVERY) => false,
        };
        let source = source();
        if source != keys.source {
            keys = Keys { source, asked: None, failed: false, seen: None };
        }
        if keys.are_due(wanted) {
            keys.renew(identity).await;
        }
        if wanted {
            identity.keys_asked();
        }
    }
}

/// The keys of the issuer, as far as it was asked for them.
struct Keys {
    source: Option<KeySource>,
    /// When the issuer was asked last.
    asked: Option<Instant>,
    failed: bool,
    /// The file that is in force.
    seen: Option<FileStamp>,
}

impl Keys {
    fn are_due(&self, wanted: bool) -> bool {
        let age = self.asked.map_or(Duration::MAX, |asked| asked.elapsed());
        match &self.source {
            None => false,
            Some(KeySource::File(_)) => true,
            Some(KeySource::Url(_)) if wanted || self.failed => age >= ASK_AGAIN,
            Some(KeySource::Url(_)) => age >= KEYS_FRESH,
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
        let keys = read.and_then(|text| KeySet::parse(&text).map_err(|error| error.to_string()));
        match keys {
            Ok(keys) => {
                self.failed = false;
                tracing::info!(keys = keys.len(), "the keys of the JWTs' issuer were read");
                identity.set_keys(&keys);
            }
            Err(error) => {
                self.failed = true;
                tracing::warn!(
                    error,
                    "the keys of the JWTs' issuer cannot be had: those before stay"
                );
            }
        }
    }
}

/// What a file was found to hold.
type FileRead = Result<Vec<u8>, Unreadable>;

/// What a file holds, and its state; `None` if it is as it was `seen`.
fn read_changed(path: &Path, seen: Option<FileStamp>) -> Option<(Option<FileStamp>, FileRead)> {
    let stamp = file_stamp(path);
    if stamp.is_some() && stamp == seen {
        return None;
    }
    let read = bounded_file::read(path, MAX_KEY_SET_BYTES as u64, NamedPipes::Refused);
    // A file that is missing is told once, not each time that it is looked for.
    (stamp.is_some() || seen.is_some()).then_some((stamp, read.map(|(bytes, _)| bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_in_the_place_of_a_file_of_keys_is_told_and_not_waited_for() {
        let home = tempfile::tempdir().unwrap();
        let pipe = home.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let (seen, read) = read_changed(&pipe, None).unwrap();
        assert!(matches!(read, Err(Unreadable::NoFile)), "{read:?}");
        assert!(seen.is_some() && read_changed(&pipe, seen).is_none(), "it is told once");
    }
}
