//! The restart of a server that its operator asks for: its connection is ended, and the next one made.
//!
//! Calls in flight end with that reason. How it is connected again is [`super::server_task`]'s.

use std::sync::Arc;

use thiserror::Error;
use tokio::time::timeout;

use super::control::Control;
use super::handle::{RESPOND_WAIT, Upstream};
use super::state::Phase;

/// Why a server is not restarted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NotRestarted {
    /// It is switched off.
    #[error("it is disabled in the config: `mcpproxy upstream enable` switches it on")]
    Disabled,
    /// There is nothing to be tried.
    #[error("it cannot be tried again: {0}")]
    Stopped(Arc<str>),
    /// Its task has too much to do.
    #[error("it is busy: try again")]
    Busy,
}

impl Upstream {
    /// Ends its connection, if there is one, and has it connected again. Returns when the old one is no
    /// longer used; the new one is not waited for.
    ///
    /// # Errors
    /// [`NotRestarted`]
    pub async fn restart(&self) -> Result<(), NotRestarted> {
        let generation = {
            let state = self.state.load();
            match state.phase() {
                Phase::Disabled => return Err(NotRestarted::Disabled),
                Phase::Stopped => return Err(NotRestarted::Stopped(state.reason())),
                // It is about to be what was asked for.
                Phase::Connecting { .. } | Phase::Closing { .. } => return Ok(()),
                Phase::Waiting(waiting) => {
                    self.wishes.wish(waiting.attempt + 1);
                    return Ok(());
                }
                Phase::Discovering { live } | Phase::Connected { live, .. } => live.generation,
            }
        };
        let told = self.control.send(Control::Restart { generation });
        match timeout(RESPOND_WAIT, told).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) | Err(_) => return Err(NotRestarted::Busy),
        }
        let gone = self.state.wait_for(|state| {
            state.live().is_none_or(|live| live.generation != generation).then_some(())
        });
        timeout(RESPOND_WAIT, gone).await.map_err(|_| NotRestarted::Busy)
    }
}
