//! Interactive OAuth login with one server while the proxy runs: the operator starts it and finishes it in a browser.
//!
//! There is at most one login per server: concurrent requests get the same address. [`oauth`] implements the protocol;
//! the server's task detects new tokens through their file, as after `mcpproxy upstream login`. A login is canceled
//! when its server is retired.
//!
//! ```text
//! idle ── requested ──▶ beginning ── address known ──▶ waiting ── tokens stored ──▶ idle
//!                           └──────────────┴── failure or timeout ──▶ failed ── requested ──▶ beginning
//! ```

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use thiserror::Error;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::config::Config;
use crate::oauth::{self, LoggedIn, LoginError};
use crate::state::LoginOutcome;

/// Time limit for completing the login once the address is known.
pub(crate) const LOGIN_LIMIT: Duration = Duration::from_secs(10 * 60);
/// Maximum wait of a caller for the address.
pub(crate) const BEGIN_LIMIT: Duration = Duration::from_secs(30);

/// State of the login with a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LoginStanding {
    /// Never requested, or the last login was granted.
    #[default]
    Idle,
    /// The server and its authorization server are being queried.
    Beginning,
    /// The address must be opened in a browser.
    Waiting(WaitingLogin),
    Failed(FailedLogin),
}

/// A login that waits for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingLogin {
    /// URL to open in a browser on this machine, because the redirect goes to its loopback interface.
    pub address: Arc<str>,
    /// Time at which the login times out.
    pub until: SystemTime,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedLogin {
    /// Reason in one line, without secrets.
    pub why: Arc<str>,
    /// Whether the cause is permanent: the config entry, or a server that does not require a login. A retry fails in
    /// the same way.
    pub is_lasting: bool,
}

impl FailedLogin {
    fn new(why: &str, is_lasting: bool) -> Self {
        Self { why: why.into(), is_lasting }
    }
}

/// Reason why no address is available.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoLogin {
    #[error("it is disabled in the config: `mcpproxy upstream enable` switches it on")]
    Disabled,
    #[error("{}", .0.why)]
    Failed(FailedLogin),
    /// The login continues in the background.
    #[error("its address is not known after {BEGIN_LIMIT:?}: retry")]
    Late,
}

/// Login of one server: settings and state.
pub(crate) struct LoginSession {
    config: Config,
    standing: watch::Sender<LoginStanding>,
}

impl LoginSession {
    pub(crate) fn new(config: &Config) -> Self {
        Self { config: config.clone(), standing: watch::Sender::default() }
    }

    /// Reason why a person cannot log in, if tokens are requested without one.
    pub(crate) fn unattended(&self) -> Option<FailedLogin> {
        let why = "no login is needed: oauth.grant is client_credentials, and mcpproxy requests the tokens itself";
        self.config.is_unattended().then(|| FailedLogin::new(why, true))
    }

    pub(crate) fn standing(&self) -> LoginStanding {
        self.standing.borrow().clone()
    }

    /// Claims the right to [`run`](Self::run) a login; returns false while another login is running.
    pub(crate) fn claim(&self) -> bool {
        self.standing.send_if_modified(|standing| {
            let free = matches!(standing, LoginStanding::Idle | LoginStanding::Failed(_));
            if free {
                *standing = LoginStanding::Beginning;
            }
            free
        })
    }

    pub(crate) async fn address(&self) -> Result<WaitingLogin, NoLogin> {
        let mut standing = self.standing.subscribe();
        let known = standing.wait_for(|standing| *standing != LoginStanding::Beginning);
        let known = timeout(BEGIN_LIMIT, known).await.map_err(|_| NoLogin::Late)?;
        // The sender exists as long as `self`.
        let known = known.map_err(|_| NoLogin::Late)?.clone();
        match known {
            LoginStanding::Waiting(login) => Ok(login),
            LoginStanding::Failed(failed) => Err(NoLogin::Failed(failed)),
            LoginStanding::Idle | LoginStanding::Beginning => Err(NoLogin::Late),
        }
    }

    /// Runs the login after a successful [`claim`](Self::claim) until it ends, or until `canceled` resolves with a
    /// reason.
    pub(crate) async fn run(
        &self,
        server: &str,
        canceled: impl Future<Output = &'static str>,
    ) -> LoginOutcome {
        let ended = tokio::select! {
            ended = self.attempt(server) => ended,
            why = canceled => Err(FailedLogin::new(why, false)),
        };
        let (standing, outcome) = match ended {
            Ok(logged_in) => (LoginStanding::Idle, LoginOutcome::Granted(logged_in.issuer.into())),
            Err(failed) => {
                let why = Arc::clone(&failed.why);
                (LoginStanding::Failed(failed), LoginOutcome::Failed(why))
            }
        };
        self.standing.send_replace(standing);
        outcome
    }

    async fn attempt(&self, server: &str) -> Result<LoggedIn, FailedLogin> {
        let Some(folder) = &self.config.data_dir else {
            return Err(FailedLogin::new("there is no data directory for its tokens", true));
        };
        let show = |address: &str| {
            let until = SystemTime::now() + LOGIN_LIMIT;
            let login = WaitingLogin { address: address.into(), until };
            self.standing.send_replace(LoginStanding::Waiting(login));
        };
        let logged_in = oauth::login(server, &self.config, folder, LOGIN_LIMIT, show).await;
        logged_in.map_err(|error| {
            let is_lasting = matches!(
                error,
                LoginError::Config(_) | LoginError::NoUrl | LoginError::NotAsked(_)
            );
            FailedLogin::new(&error.to_string(), is_lasting)
        })
    }
}
