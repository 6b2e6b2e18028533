//! How the login with one server stands, and where that is kept. Who logs in is [`super::log_in`].

use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::watch;

use super::config::Config;

/// How the login with a server stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LoginStanding {
    /// Nobody has asked for one, or the last one was granted.
    #[default]
    Idle,
    /// The server and whoever logs in for it are being asked.
    Beginning,
    /// Somebody has to open the address.
    Waiting(WaitingLogin),
    /// The last one failed.
    Failed(FailedLogin),
}

/// A login that waits for somebody to log in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingLogin {
    /// What is to be opened in a browser on this machine: the way back leads to its loopback.
    pub address: Arc<str>,
    /// When it is given up.
    pub until: SystemTime,
}

/// A login that came to nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedLogin {
    /// Why, in one line that quotes no secret.
    pub why: Arc<str>,
    /// Whether it is the server's entry in the config, or that it wants no login, so that another attempt ends the same.
    pub is_lasting: bool,
}

/// Where logins with one server are asked for.
pub(super) struct LoginDesk {
    pub(super) config: Config,
    pub(super) standing: watch::Sender<LoginStanding>,
}

impl LoginDesk {
    pub(super) fn new(config: &Config) -> Self {
        Self { config: config.clone(), standing: watch::Sender::default() }
    }
}
