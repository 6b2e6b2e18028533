//! What the commands share that run a proxy in this process: its log, and the errors of a proxy that
//! cannot start. Each error has its exit code and names the next step.

use super::error::CommandError;
use super::exit_code::Exit;
use super::logging::{self, Log};
use crate::activity::StoreError;
use crate::config::Logging;
use crate::config::file::{API_KEY_BYTES, Loaded};
use crate::fleet::JoinError;
use crate::server::StartError;

/// Why a proxy could not start, with its exit code.
pub(super) fn not_started(error: &StartError) -> CommandError {
    match error {
        StartError::Activity(error) => store(error),
        StartError::HostCheck(_)
        | StartError::Rules(_)
        | StartError::Tls(_)
        | StartError::FleetConfigRefused { .. } => CommandError::new(Exit::Config, error),
        StartError::Unheard(_) | StartError::FleetConfigAway { .. } => {
            CommandError::new(Exit::Unreachable, error)
        }
        StartError::Fleet(JoinError::Activity(error)) => store(error),
        StartError::Fleet(JoinError::Refused(_)) => CommandError::new(Exit::Config, error),
        StartError::Fleet(JoinError::Store { .. }) => CommandError::new(Exit::Unreachable, error),
        StartError::Fleet(JoinError::Folder { .. })
        | StartError::Facts(_)
        | StartError::Folder { .. }
        | StartError::Results { .. }
        | StartError::System(_) => CommandError::failed(error),
    }
}

/// Why the log could not be opened or closed, with its exit code.
pub(super) fn store(error: &StoreError) -> CommandError {
    let next = match error {
        StoreError::Locked => {
            ": is mcpproxy running on another address? name it with MCPPROXY_LISTEN, or use \
             another --data-dir"
        }
        StoreError::Damaged { .. } => {
            ": it is kept as it is; `mcpproxy serve --salvage` moves it aside and goes on with \
             what can be read"
        }
        StoreError::Io(_) => "",
    };
    let exit = match error {
        StoreError::Locked | StoreError::Damaged { .. } => Exit::Store,
        StoreError::Io(_) => Exit::Failed,
    };
    CommandError::new(exit, format!("{error}{next}"))
}

/// Starts the log as the config says.
pub(super) fn start_log(config: Logging) -> Log {
    logging::start(config.level.as_str(), config.format)
}

/// Says what the config was warned about.
pub(super) fn note_warnings(loaded: &Loaded) {
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
}

/// Random bytes for an API key.
pub(super) fn random_key() -> Result<[u8; API_KEY_BYTES], CommandError> {
    let mut random = [0; API_KEY_BYTES];
    getrandom::fill(&mut random)
        .map_err(|error| CommandError::failed(format!("no randomness for an API key: {error}")))?;
    Ok(random)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn act_9_a_store_that_cannot_be_used_is_exit_4() {
        let locked = not_started(&StartError::Activity(StoreError::Locked));
        let damaged = StoreError::Damaged { file: "a/b.jnl".into(), why: "bad block".into() };
        let damaged = not_started(&StartError::Activity(damaged));
        assert_eq!((locked.exit, damaged.exit), (Exit::Store, Exit::Store));
        assert!(damaged.message.contains("a/b.jnl"), "{damaged:?}");
    }
}
