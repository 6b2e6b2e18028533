//! A login with a server that is asked for while the proxy runs: begun by its operator, finished in a browser.
//!
//! One at a time for each server: who asks meanwhile is given the same address. The steps are [`super::oauth`]'s, and that
//! there are tokens the server's own task notices by their file, as after `mcpproxy upstream login`. The login ends with
//! its server.
//!
//! ```text
//! idle ── asked for ──▶ beginning ── its address is known ──▶ waiting ── tokens are kept ──▶ idle
//!                           └──────────────┴── it fails, or takes too long ──▶ failed ── asked for ──▶ beginning
//! ```

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use thiserror::Error;
use tokio::time::timeout;

use super::handle::Upstream;
use super::login_desk::LoginDesk;
pub use super::login_desk::{FailedLogin, LoginStanding, WaitingLogin};
use super::oauth::{self, LoggedIn, LoginError};
use super::status::{LoginOutcome, Status};

/// How long somebody has to log in, once the address is known.
pub const LOGIN_LIMIT: Duration = Duration::from_secs(10 * 60);
/// How long whoever asks waits for the address.
pub const BEGIN_LIMIT: Duration = Duration::from_secs(30);

/// Why there is no address.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoLogin {
    /// The server is switched off.
    #[error("it is disabled in the config: `mcpproxy upstream enable` switches it on")]
    Disabled,
    /// It failed.
    #[error("{}", .0.why)]
    Failed(FailedLogin),
    /// It takes too long; it goes on.
    #[error("its address is not known after {BEGIN_LIMIT:?}: ask again")]
    Late,
}

impl Upstream {
    /// How its login stands.
    #[must_use]
    pub fn login(&self) -> LoginStanding {
        self.desk.standing.borrow().clone()
    }

    /// Takes the place of the one who logs in; false where somebody has it.
    pub(super) fn takes_login(&self) -> bool {
        self.desk.standing.send_if_modified(|standing| {
            let free = matches!(standing, LoginStanding::Idle | LoginStanding::Failed(_));
            if free {
                *standing = LoginStanding::Beginning;
            }
            free
        })
    }

    /// The address of the login under way.
    ///
    /// # Errors
    /// [`NoLogin`]
    pub(super) async fn login_address(&self) -> Result<WaitingLogin, NoLogin> {
        let mut standing = self.desk.standing.subscribe();
        let known = standing.wait_for(|standing| *standing != LoginStanding::Beginning);
        let known = timeout(BEGIN_LIMIT, known).await.map_err(|_| NoLogin::Late)?;
        // The sender lives as long as `self`.
        let known = known.map_err(|_| NoLogin::Late)?.clone();
        match known {
            LoginStanding::Waiting(login) => Ok(login),
            LoginStanding::Failed(failed) => Err(NoLogin::Failed(failed)),
            LoginStanding::Idle | LoginStanding::Beginning => Err(NoLogin::Late),
        }
    }

    /// Logs in: to be run by whoever has taken the place, to the end of the server at most.
    pub(super) async fn run_login(self: &Arc<Self>) -> LoginOutcome {
        let mut stopping = self.stop.subscribe();
        let ended = tokio::select! {
            ended = self.attempt_login() => ended,
            () = self.retired() => Err(lasting("its entry in the config is another", false)),
            _ = stopping.wait_for(Option::is_some) => Err(lasting("the proxy is shutting down", false)),
        };
        let (standing, outcome) = match ended {
            Ok(logged_in) => (LoginStanding::Idle, LoginOutcome::Granted(logged_in.issuer.into())),
            Err(failed) => {
                let why = Arc::clone(&failed.why);
                (LoginStanding::Failed(failed), LoginOutcome::Failed(why))
            }
        };
        self.desk.standing.send_replace(standing);
        outcome
    }

    async fn attempt_login(self: &Arc<Self>) -> Result<LoggedIn, FailedLogin> {
        let LoginDesk { config, standing } = &self.desk;
        let Some(folder) = &config.data_dir else {
            return Err(lasting("there is no folder for its tokens", true));
        };
        let show = |address: &str| {
            let until = SystemTime::now() + LOGIN_LIMIT;
            let login = WaitingLogin { address: address.into(), until };
            standing.send_replace(LoginStanding::Waiting(login));
        };
        let logged_in = oauth::login(&self.name, config, folder, LOGIN_LIMIT, show).await;
        logged_in.map_err(|error| {
            let is_lasting = match &error {
                LoginError::Config(_) | LoginError::NotAsked(_) => true,
                LoginError::Unreachable(_)
                | LoginError::Unusable(_)
                | LoginError::Denied(_)
                | LoginError::Late(_)
                | LoginError::Store(_) => false,
            };
            lasting(&error.to_string(), is_lasting)
        })
    }

    /// Whether the config switches it off.
    pub(super) fn is_disabled(&self) -> bool {
        self.state.load().status() == Status::Disabled
    }
}

fn lasting(why: &str, is_lasting: bool) -> FailedLogin {
    FailedLogin { why: why.into(), is_lasting }
}
