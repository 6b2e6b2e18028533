//! What a server's entry names, read before the server is connected to.
//!
//! It may take as long as a keyring's user does, so a thread reads that may wait, and of all servers one at a time asks a
//! keyring. What a reference is, is `config`'s; when it is read, is the task's.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinError;

use crate::upstream::config::{Config, Invalid, Target};

/// Why there is nothing to connect to, in one line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NotRead {
    /// The entry names no server, however often it is read.
    NoServer(String),
    /// What it names cannot be read now.
    NotNow(String),
}

/// What the entry comes down to, and what of that is secret. `keyring` says who may ask one.
///
/// # Errors
/// [`NotRead`]
pub(super) async fn read(
    config: &Config,
    keyring: &Arc<Semaphore>,
) -> Result<(Target, Vec<String>), NotRead> {
    let asking = match config.asks_keyring() {
        // It is never closed.
        true => Arc::clone(keyring).acquire_owned().await.ok(),
        false => None,
    };
    let config = config.clone();
    let read = apart(asking, move || {
        let target = config.target(&|name| std::env::var(name).ok())?;
        let secrets = config.secrets_of(&target);
        Ok::<_, Invalid>((target, secrets))
    });
    match read.await {
        Ok(Ok(read)) => Ok(read),
        Ok(Err(invalid)) if invalid.is_lasting() => Err(NotRead::NoServer(invalid.to_string())),
        Ok(Err(invalid)) => Err(NotRead::NotNow(invalid.to_string())),
        Err(_) => Err(NotRead::NotNow("reading its values failed".to_owned())),
    }
}

/// Runs `read` on a thread that may wait. Others may be `asking` when it has ended, and not when nobody waits for it any
/// more: a keyring's user still has its question then.
async fn apart<T: Send + 'static>(
    asking: Option<OwnedSemaphorePermit>,
    read: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    let run = move || {
        let _asking = asking;
        read()
    };
    tokio::task::spawn_blocking(run).await
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use futures_util::FutureExt;
    use serde_json::json;

    use super::*;

    /// Longest time that anything here may take.
    const PATIENCE: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn what_cannot_be_read_now_is_told_from_an_entry_that_names_no_server() {
        let keyring = Arc::new(Semaphore::new(1));
        let with = |value: &str| json!({"command": "x", "env": {"A": value}});
        for (entry, is_lasting) in [
            (json!({}), true),
            (json!({"command": "x", "url": "http://h"}), true),
            (json!({"protocol": "stdio"}), true),
            (json!({"protocol": "http"}), true),
            (with("${env:MCPPROXY_NOT_SET}"), true),
            (with("${input:a}"), true),
            (with("${file:/none"), true),
            (with("${file:/no/such/file}"), false),
            (with("${credential:none}"), false),
            (with("${keyring:no-user}"), false),
        ] {
            let config: Config = serde_json::from_value(entry.clone()).unwrap();
            let why = read(&config, &keyring).await.err().unwrap();
            assert_eq!(matches!(why, NotRead::NoServer(_)), is_lasting, "{entry}: {why:?}");
            assert_eq!(keyring.available_permits(), 1, "{entry}");
        }
    }

    #[tokio::test]
    async fn who_asks_a_keyring_does_so_alone_also_when_nobody_waits_for_the_answer_any_more() {
        let keyring = Arc::new(Semaphore::new(1));
        let (answer, answered) = mpsc::channel::<()>();
        let asking = Arc::clone(&keyring).try_acquire_owned().unwrap();
        let mut asked = Box::pin(apart(Some(asking), move || answered.recv().is_ok()));
        assert!((&mut asked).now_or_never().is_none(), "it has begun");
        // As by a server that ends.
        drop(asked);
        assert_eq!(keyring.available_permits(), 0);
        answer.send(()).unwrap();
        let next = tokio::time::timeout(PATIENCE, keyring.acquire()).await;
        assert!(next.expect("it is over").is_ok());
    }
}
