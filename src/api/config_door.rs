//! The door between REST and the task that reads the config: wishes to have it read again, what comes of them, and how the
//! config in force stands.
//!
//! Who reads it, and what becomes of it, is the assembly's; how it is shown is `config`'s.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::sync::{mpsc, oneshot};
use utoipa::ToSchema;

use super::response::ApiError;
use crate::policy::Principal;

/// Wishes that wait for those before them.
pub const RELOAD_QUEUE: usize = 16;
/// Longest wait for the answer to a wish.
const RELOAD_WAIT: Duration = Duration::from_secs(60);

/// By which way it was asked for the config to be read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReloadDoor {
    /// The file is another.
    File,
    /// SIGHUP.
    Signal,
    /// This interface, which the command line uses too.
    Api,
    /// The fleet runs another one.
    Fleet,
}

impl ReloadDoor {
    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Signal => "signal",
            Self::Api => "api",
            Self::Fleet => "fleet",
        }
    }
}

/// What is wished of the task that has the config.
#[derive(Debug)]
pub enum ConfigWish {
    /// To have it read again.
    Reload(ReloadWish),
    /// To be told what reading it again would change. Nothing is.
    Compare(oneshot::Sender<ConfigComparison>),
    /// To have a server switched in the file, and that read.
    Switch(SwitchWish),
    /// To be told what the file says.
    Settings(oneshot::Sender<Result<FileSettings, ReloadRefused>>),
    /// To be told what other settings would change. Nothing is.
    Preview(SettingsChange, oneshot::Sender<Result<ConfigComparison, ChangeRefused>>),
    /// To have other settings written into the file, and that read.
    Change(ChangeWish),
}

/// What the config's file says, as it may be shown.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct FileSettings {
    /// What tells this state of the file from another: a change names it.
    #[schema(pattern = "^[0-9a-f]{64}$")]
    pub digest: String,
    /// What it says. What may be a secret, or says how a server is reached, is `(not shown)`.
    #[schema(value_type = Object)]
    pub settings: Value,
}

/// Other settings for the config's file.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SettingsChange {
    /// That of the file's state that was looked at.
    #[schema(pattern = "^[0-9a-f]{64}$")]
    pub digest: String,
    /// A JSON Merge Patch (RFC 7396) of at most 64 values: null takes a key out.
    #[schema(value_type = Object)]
    pub patch: Map<String, Value>,
}

/// A wish to have other settings written into the file.
#[derive(Debug)]
pub struct ChangeWish {
    /// Which.
    pub change: SettingsChange,
    /// Who wishes it.
    pub principal: Box<str>,
    /// Where the answer goes.
    pub answer: oneshot::Sender<Result<Reloaded, ChangeRefused>>,
}

/// Why settings are not changed; the file stays as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeRefused {
    /// The file is another than the one that was looked at.
    Stale,
    /// They cannot be used, or are not changed here.
    Unusable(ReloadRefused),
}

/// A wish to have a server switched on or off.
#[derive(Debug)]
pub struct SwitchWish {
    /// The server's name.
    pub server: Box<str>,
    /// What it is to be.
    pub to: ServerSwitch,
    /// Who wishes it.
    pub principal: Box<str>,
    /// Where the answer goes.
    pub answer: oneshot::Sender<Result<SwitchOutcome, SwitchRefused>>,
}

/// Whether a server is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerSwitch {
    /// It is.
    On,
    /// It is not.
    Off,
}

/// What came of switching.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchOutcome {
    /// Whether the file said something else before.
    pub changed: bool,
}

/// Why a server is not switched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwitchRefused {
    /// The file has none of that name.
    Unknown,
    /// The file cannot be changed, or what it says then is not taken over; in one line.
    Refused(String),
}

/// What the config's file says otherwise than what is in force.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct ConfigComparison {
    /// What is written otherwise: of each the key, what became of it, and the values as far as they are no secret.
    #[schema(value_type = Vec<Object>)]
    pub changes: Vec<Value>,
    /// How many more there are.
    pub left_out: usize,
    /// The keys that would apply at once.
    pub applied: Vec<String>,
    /// The keys that count from the next start on.
    pub needs_restart: Vec<String>,
    /// What is wrong or odd about the file. With an error it would not be taken over.
    pub problems: Vec<ShownProblem>,
}

/// A wish to have the config read again.
#[derive(Debug)]
pub struct ReloadWish {
    /// By which way.
    pub door: ReloadDoor,
    /// Who wishes it; empty where nobody is known to.
    pub principal: Box<str>,
    /// Where the answer goes, if anybody waits for it.
    pub answer: Option<oneshot::Sender<ReloadOutcome>>,
}

/// What came of reading it.
pub type ReloadOutcome = Result<Reloaded, ReloadRefused>;

/// The config was read, and what it changes applied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct Reloaded {
    /// The keys that were another and are in force now.
    pub applied: Vec<String>,
    /// The keys that are another and count from the next start on.
    pub needs_restart: Vec<String>,
    /// True if nothing was another.
    pub unchanged: bool,
    /// What is odd about it.
    pub warnings: Vec<ShownProblem>,
}

/// It cannot be used; the one before stays in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReloadRefused {
    /// Everything that is wrong with it, at least one thing.
    pub problems: Vec<ShownProblem>,
}

/// Something that is wrong or odd about the config.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ShownProblem {
    /// `error` or `warning`.
    #[schema(value_type = String, pattern = "^(error|warning)$")]
    pub severity: &'static str,
    /// The path of the key, the environment variable or the flag; empty for the file as a whole.
    pub key: String,
    /// What it is.
    pub problem: String,
    /// Which file, where it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub file: Option<String>,
    /// From 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub line: Option<usize>,
    /// From 1, in characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub column: Option<usize>,
}

impl ShownProblem {
    /// In one line: where, and what.
    #[must_use]
    pub fn line_of_it(&self) -> String {
        let mut line = self.file.as_ref().map(|file| format!("{file}: ")).unwrap_or_default();
        if let (Some(row), Some(column)) = (self.line, self.column) {
            line += &format!("line {row} column {column}: ");
        }
        line + &self.problem
    }
}

impl ReloadRefused {
    /// In one line: the first problem, and how many more there are.
    #[must_use]
    pub fn cause(&self) -> String {
        let errors: Vec<_> = self.problems.iter().filter(|it| it.severity == "error").collect();
        let first = errors.first().map(|it| it.line_of_it()).unwrap_or_default();
        match errors.len() {
            0 | 1 => first,
            more => format!("{first} (and {} more)", more - 1),
        }
    }
}

/// How the config in force stands.
#[derive(Clone, Debug)]
pub struct ConfigStanding {
    /// Its file; empty where there is none.
    pub path: Box<str>,
    /// Since when it is in force.
    pub since: SystemTime,
    /// The keys that are another in the file and count from the next start on.
    pub needs_restart: Vec<String>,
    /// Why what the file, or a file that it names, holds now is not in force, and since when that is known; `None` if it is.
    pub rejected: Option<(SystemTime, ReloadRefused)>,
    /// It, without what may be a secret.
    pub shown: Arc<Value>,
}

impl ConfigStanding {
    /// One that is in force since this moment; `shown` is what may be told of it.
    #[must_use]
    pub fn of(path: &str, shown: Value) -> Self {
        let since = SystemTime::now();
        let shown = Arc::new(shown);
        Self { path: path.into(), since, needs_restart: Vec::new(), rejected: None, shown }
    }

    /// What tells one config from another, as far as it may be shown: 16 hexadecimal digits.
    #[must_use]
    pub fn digest(&self) -> String {
        let hash = blake3::hash(self.shown.to_string().as_bytes());
        hash.to_hex().chars().take(16).collect()
    }

    /// Why the file is not in force, in one line; `None` if it is.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        let (_, refused) = self.rejected.as_ref()?;
        Some(format!("the config in force is not that of the file: {}", refused.cause()))
    }
}

/// Where wishes go, and how the config stands. Clones share both.
#[derive(Clone, Debug)]
pub struct ConfigDoor {
    wishes: mpsc::Sender<ConfigWish>,
    standing: Arc<ArcSwap<ConfigStanding>>,
}

impl ConfigDoor {
    /// The door, and where the wishes come out.
    #[must_use]
    pub fn new(standing: ConfigStanding) -> (Self, mpsc::Receiver<ConfigWish>) {
        let (wishes, wished) = mpsc::channel(RELOAD_QUEUE);
        (Self { wishes, standing: Arc::new(ArcSwap::from_pointee(standing)) }, wished)
    }

    /// How the config stands.
    #[must_use]
    pub fn standing(&self) -> Arc<ConfigStanding> {
        self.standing.load_full()
    }

    /// It stands otherwise.
    pub fn stands(&self, standing: ConfigStanding) {
        self.standing.store(Arc::new(standing));
    }

    /// SIGHUP has come. Where many wait already, one of them reads what is there.
    pub fn signalled(&self) {
        let wish = ReloadWish { door: ReloadDoor::Signal, principal: "".into(), answer: None };
        let _ = self.wishes.try_send(ConfigWish::Reload(wish));
    }

    /// Has the config read, and waits for what comes of it.
    pub(super) async fn ask(&self, principal: &Principal) -> Result<ReloadOutcome, ApiError> {
        let principal = principal.id().into();
        self.wish(|answer| {
            let wish = ReloadWish { door: ReloadDoor::Api, principal, answer: Some(answer) };
            ConfigWish::Reload(wish)
        })
        .await
    }

    /// Has the config read because the fleet's is another, and waits for what comes of it.
    ///
    /// # Errors
    /// It is not known.
    pub async fn take_over(&self) -> Result<ReloadOutcome, String> {
        let outcome = self.wish(|answer| {
            let (door, principal) = (ReloadDoor::Fleet, "".into());
            ConfigWish::Reload(ReloadWish { door, principal, answer: Some(answer) })
        });
        outcome.await.map_err(|error| error.message)
    }

    /// What reading the config again would change.
    pub(super) async fn compare(&self) -> Result<ConfigComparison, ApiError> {
        self.wish(ConfigWish::Compare).await
    }

    /// Has a server switched in the file, and waits until that is in force.
    pub(super) async fn switch(
        &self,
        server: &str,
        to: ServerSwitch,
        principal: &Principal,
    ) -> Result<Result<SwitchOutcome, SwitchRefused>, ApiError> {
        let (server, principal) = (server.into(), principal.id().into());
        self.wish(|answer| ConfigWish::Switch(SwitchWish { server, to, principal, answer })).await
    }

    /// What the file says.
    pub(super) async fn settings(&self) -> Result<Result<FileSettings, ReloadRefused>, ApiError> {
        self.wish(ConfigWish::Settings).await
    }

    /// What other settings would change.
    pub(super) async fn preview(
        &self,
        change: SettingsChange,
    ) -> Result<Result<ConfigComparison, ChangeRefused>, ApiError> {
        self.wish(|answer| ConfigWish::Preview(change, answer)).await
    }

    /// Has other settings written, and waits until they are in force.
    pub(super) async fn change(
        &self,
        change: SettingsChange,
        principal: &Principal,
    ) -> Result<Result<Reloaded, ChangeRefused>, ApiError> {
        let principal = principal.id().into();
        self.wish(|answer| ConfigWish::Change(ChangeWish { change, principal, answer })).await
    }

    /// Hands a wish over, and waits for the answer.
    async fn wish<T>(
        &self,
        wish: impl FnOnce(oneshot::Sender<T>) -> ConfigWish,
    ) -> Result<T, ApiError> {
        let unavailable = |text: &str| ApiError::new(StatusCode::SERVICE_UNAVAILABLE, text);
        let (answer, answered) = oneshot::channel();
        self.wishes.try_send(wish(answer)).map_err(|refused| match refused {
            mpsc::error::TrySendError::Full(_) => unavailable("Too many wait for a reload"),
            mpsc::error::TrySendError::Closed(_) => {
                unavailable("This proxy reads no config file again")
            }
        })?;
        match tokio::time::timeout(RELOAD_WAIT, answered).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => Err(unavailable("This proxy reads no config file again")),
            Err(_) => Err(unavailable("The reload is still under way: see /api/v1/config")),
        }
    }
}
