//! Handles to the tasks that own the config and the fleet's config. They send commands, await the results and hold the
//! status.
//!
//! The tasks are in the `server` crate, which depends on this one. Commands reach them through a queue rather than
//! through a mutex around their state, so that a change runs to its end even if the client that requested it
//! disconnects.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::sync::{mpsc, oneshot};
use utoipa::ToSchema;

use super::response::ApiError;
use mcpproxy_fleet::facts::{ConfigVersion, FleetFacts};
use mcpproxy_policy::Principal;

/// Maximum number of queued commands to the config task.
const CONFIG_QUEUE: usize = 16;
/// Timeout for the result of a command.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);

/// Cause of a reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReloadTrigger {
    /// The file changed.
    File,
    /// The process received SIGHUP.
    Signal,
    /// A client of the REST interface, which includes the command line, requested it.
    Api,
    /// The config of the fleet changed.
    Fleet,
}

impl ReloadTrigger {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Signal => "signal",
            Self::Api => "api",
            Self::Fleet => "fleet",
        }
    }
}

/// Command to the config task.
#[derive(Debug)]
pub enum ConfigCommand {
    /// Reloads the config.
    Reload(ReloadCommand),
    /// Reports the changes that a reload would make.
    Compare(oneshot::Sender<ConfigComparison>),
    /// Enables or disables a server in the file, and reloads it.
    Switch(SwitchCommand),
    /// Returns the settings in the file.
    Settings(oneshot::Sender<Result<FileSettings, ReloadRefused>>),
    /// Reports the changes that new settings would make.
    Preview(SettingsChange, oneshot::Sender<Result<ConfigComparison, ChangeRefused>>),
    /// Edits the file, and reloads it.
    Change(ChangeCommand),
}

/// Edit of the config file.
#[derive(Clone, Debug)]
pub enum ConfigEdit {
    Settings(SettingsChange),
    Servers(NewServers),
    /// Removes the server with this name.
    RemoveServer(Box<str>),
}

/// The settings in the config file, without secrets.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct FileSettings {
    /// Digest of the file; a change must state it.
    #[schema(pattern = "^[0-9a-f]{64}$")]
    pub digest: String,
    /// The settings. Potential secrets are `(not shown)`; secrets in command lines and URLs of servers are masked.
    #[schema(value_type = Object)]
    pub settings: Value,
    /// Keys that `changeConfig` changes, by path; `*` stands for any name.
    #[schema(value_type = Vec<String>)]
    pub patchable: &'static [&'static str],
}

/// A change of the settings in the config file.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SettingsChange {
    /// Digest of the file that the change is based on.
    #[schema(pattern = "^[0-9a-f]{64}$")]
    pub digest: String,
    /// JSON Merge Patch (RFC 7396) of at most 64 values; null removes a key.
    #[schema(value_type = Object)]
    pub patch: Map<String, Value>,
}

/// Servers to add to the config file.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewServers {
    /// At most 64 entries by name, in the form of `mcpServers` in the config or of a client's config.
    #[schema(value_type = Object)]
    pub servers: Map<String, Value>,
}

/// Request to edit the file.
#[derive(Debug)]
pub struct ChangeCommand {
    pub edit: ConfigEdit,
    pub principal: Box<str>,
    pub answer: oneshot::Sender<Result<Reloaded, ChangeRefused>>,
}

/// Reason for not editing the file; it is unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeRefused {
    /// The file changed since it was read.
    Stale,
    /// The file has no server with this name.
    UnknownServer(Box<str>),
    /// The result is invalid, or cannot be written here.
    Unusable(ReloadRefused),
}

/// Request to enable or disable a server.
#[derive(Debug)]
pub struct SwitchCommand {
    pub server: Box<str>,
    pub enable: bool,
    pub principal: Box<str>,
    pub answer: oneshot::Sender<Result<SwitchOutcome, SwitchRefused>>,
}

/// Result of enabling or disabling a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchOutcome {
    /// Whether the file was changed.
    pub changed: bool,
}

/// Reason for not enabling or disabling a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwitchRefused {
    /// The file has no server with this name.
    Unknown,
    /// The file cannot be changed, or the changed file is invalid. The text is one line.
    Refused(String),
}

/// Differences between the config file and the config in force.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct ConfigComparison {
    /// The changed keys, each with the kind of change and the values, without secrets.
    #[schema(value_type = Vec<Object>)]
    pub changes: Vec<Value>,
    /// Number of further changes.
    pub left_out: usize,
    /// Keys that would take effect immediately.
    pub applied: Vec<String>,
    /// Keys that take effect at the next start.
    pub needs_restart: Vec<String>,
    /// Errors and warnings of the file. A file with an error is not applied.
    pub problems: Vec<ShownProblem>,
}

/// Request to reload the config.
#[derive(Debug)]
pub struct ReloadCommand {
    pub trigger: ReloadTrigger,
    /// Principal that requested the reload; empty if unknown.
    pub principal: Box<str>,
    /// Sender of the result; `None` if nobody awaits it.
    pub answer: Option<oneshot::Sender<ReloadOutcome>>,
}

pub type ReloadOutcome = Result<Reloaded, ReloadRefused>;

/// Result of a successful reload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct Reloaded {
    /// Changed keys that are now in force.
    pub applied: Vec<String>,
    /// Changed keys that take effect at the next start.
    pub needs_restart: Vec<String>,
    /// Whether nothing changed.
    pub unchanged: bool,
    /// Warnings about the file.
    pub warnings: Vec<ShownProblem>,
}

/// Reasons for rejecting a config; the previous one stays in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReloadRefused {
    /// All problems, at least one error.
    pub problems: Vec<ShownProblem>,
}

/// An error or a warning in the config.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ShownProblem {
    /// `error` or `warning`.
    #[schema(value_type = String, pattern = "^(error|warning)$")]
    pub severity: &'static str,
    /// Path of the key, the environment variable or the flag; empty for the whole file.
    pub key: String,
    /// Description of the problem.
    pub problem: String,
    /// The file that contains the problem, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub file: Option<String>,
    /// Line number, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub line: Option<usize>,
    /// Column in characters, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub column: Option<usize>,
}

impl ShownProblem {
    /// Renders location and problem in one line.
    pub fn line(&self) -> String {
        let problem = &self.problem;
        match (&self.file, self.line, self.column) {
            (Some(file), Some(row), Some(column)) => format!("{file}:{row}:{column}: {problem}"),
            (Some(file), _, _) => format!("{file}: {problem}"),
            (None, Some(row), Some(column)) => format!("line {row} column {column}: {problem}"),
            (None, _, _) => problem.clone(),
        }
    }
}

impl ReloadRefused {
    /// Renders the first problem and the number of further ones in one line.
    pub fn cause(&self) -> String {
        let errors: Vec<_> = self.problems.iter().filter(|it| it.severity == "error").collect();
        let first = errors.first().map(|it| it.line()).unwrap_or_default();
        match errors.len() {
            0 | 1 => first,
            more => format!("{first} (and {} more)", more - 1),
        }
    }
}

/// Status of the config in force.
#[derive(Clone, Debug)]
pub struct ConfigStanding {
    /// Path of the config file; empty if there is none.
    pub path: Box<str>,
    /// Time at which it took effect.
    pub since: SystemTime,
    /// Keys that differ in the file and take effect at the next start.
    pub needs_restart: Vec<String>,
    /// Time and reason of the rejection, if the file, or a file that it names, currently has rejected contents.
    pub rejected: Option<(SystemTime, ReloadRefused)>,
    /// The config without potential secrets.
    pub shown: Arc<Value>,
    /// Warnings about the rules in force: servers and tools that do not exist, and arguments that no longer match.
    pub rule_warnings: Vec<ShownProblem>,
}

/// Maximum number of rule warnings in the status.
const MAX_RULE_FAULTS: usize = 20;

impl ConfigStanding {
    /// Creates the status of a config that takes effect now. `shown` must not contain secrets.
    pub fn of(path: &str, shown: Value) -> Self {
        let since = SystemTime::now();
        let shown = Arc::new(shown);
        Self {
            path: path.into(),
            since,
            needs_restart: Vec::new(),
            rejected: None,
            shown,
            rule_warnings: Vec::new(),
        }
    }

    /// Digest of the shown config in 16 hexadecimal digits.
    pub fn digest(&self) -> String {
        let hash = blake3::hash(self.shown.to_string().as_bytes());
        hash.to_hex().chars().take(16).collect()
    }

    /// Reason why the file is not in force, in one line; `None` if it is in force.
    pub(crate) fn fault(&self) -> Option<String> {
        let (_, refused) = self.rejected.as_ref()?;
        Some(format!("the config file is not in force: {}", refused.cause()))
    }

    /// Warnings about the rules in force, one line each; the last line states how many are left out.
    pub(crate) fn rule_faults(&self) -> Vec<String> {
        let shown = self.rule_warnings.iter().take(MAX_RULE_FAULTS);
        let mut faults: Vec<_> = shown
            .map(|warning| {
                let line = warning.line();
                format!("{line}; the rule stays in force unchanged: correct or remove it, then run mcpproxy policy check")
            })
            .collect();
        let left_out = self.rule_warnings.len().saturating_sub(MAX_RULE_FAULTS);
        if left_out > 0 {
            faults.push(format!("{left_out} more warnings: mcpproxy policy check"));
        }
        faults
    }
}

/// Handle to the config task: sends commands, awaits their results, and holds the status. Clones share both.
#[derive(Clone, Debug)]
pub struct ConfigHandle {
    commands: mpsc::Sender<ConfigCommand>,
    standing: Arc<ArcSwap<ConfigStanding>>,
}

impl ConfigHandle {
    /// Creates the handle and the receiver of its commands.
    pub fn new(standing: ConfigStanding) -> (Self, mpsc::Receiver<ConfigCommand>) {
        let (commands, receiver) = mpsc::channel(CONFIG_QUEUE);
        (Self { commands, standing: Arc::new(ArcSwap::from_pointee(standing)) }, receiver)
    }

    pub fn standing(&self) -> Arc<ConfigStanding> {
        self.standing.load_full()
    }

    pub fn set_standing(&self, standing: ConfigStanding) {
        self.standing.store(Arc::new(standing));
    }

    /// Requests a reload after SIGHUP. If the queue is full, one of the queued commands reads the current file.
    pub fn reload_on_signal(&self) {
        let (trigger, principal) = (ReloadTrigger::Signal, "".into());
        let command = ReloadCommand { trigger, principal, answer: None };
        let _ = self.commands.try_send(ConfigCommand::Reload(command));
    }

    /// Reloads the config.
    pub(super) async fn reload(&self, principal: &Principal) -> Result<ReloadOutcome, ApiError> {
        let principal = principal.id().into();
        let trigger = ReloadTrigger::Api;
        self.send(|answer| {
            ConfigCommand::Reload(ReloadCommand { trigger, principal, answer: Some(answer) })
        })
        .await
    }

    /// Reloads the config because the fleet's config changed.
    pub async fn apply_fleet_config(&self) -> Result<ReloadOutcome, String> {
        let outcome = self.send(|answer| {
            let (trigger, principal) = (ReloadTrigger::Fleet, "".into());
            ConfigCommand::Reload(ReloadCommand { trigger, principal, answer: Some(answer) })
        });
        outcome.await.map_err(|error| error.message)
    }

    /// Reports the changes that a reload would make.
    pub(super) async fn compare(&self) -> Result<ConfigComparison, ApiError> {
        self.send(ConfigCommand::Compare).await
    }

    /// Enables or disables a server in the file, and waits until the change is in force.
    pub(super) async fn switch(
        &self,
        server: &str,
        enable: bool,
        principal: &Principal,
    ) -> Result<Result<SwitchOutcome, SwitchRefused>, ApiError> {
        let (server, principal) = (server.into(), principal.id().into());
        self.send(|answer| {
            ConfigCommand::Switch(SwitchCommand { server, enable, principal, answer })
        })
        .await
    }

    pub(super) async fn settings(&self) -> Result<Result<FileSettings, ReloadRefused>, ApiError> {
        self.send(ConfigCommand::Settings).await
    }

    /// Reports the changes that new settings would make.
    pub(super) async fn preview(
        &self,
        change: SettingsChange,
    ) -> Result<Result<ConfigComparison, ChangeRefused>, ApiError> {
        self.send(|answer| ConfigCommand::Preview(change, answer)).await
    }

    /// Edits the file, and waits until the result is in force.
    pub(super) async fn change(
        &self,
        edit: ConfigEdit,
        principal: &Principal,
    ) -> Result<Result<Reloaded, ChangeRefused>, ApiError> {
        let principal = principal.id().into();
        self.send(|answer| ConfigCommand::Change(ChangeCommand { edit, principal, answer })).await
    }

    /// Sends a command and awaits its result.
    async fn send<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> ConfigCommand,
    ) -> Result<T, ApiError> {
        let unavailable = |text: &str| ApiError::new(StatusCode::SERVICE_UNAVAILABLE, text);
        let (answer, answered) = oneshot::channel();
        const NO_RELOAD: &str = "This proxy does not reload its config";
        self.commands.try_send(command(answer)).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => {
                unavailable("Too many config requests are queued")
            }
            mpsc::error::TrySendError::Closed(_) => unavailable(NO_RELOAD),
        })?;
        match tokio::time::timeout(COMMAND_TIMEOUT, answered).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => Err(unavailable(NO_RELOAD)),
            Err(_) => Err(unavailable("The request is still being processed: see /api/v1/config")),
        }
    }
}

/// Maximum number of queued commands to the task that owns the fleet's config.
const FLEET_CONFIG_QUEUE: usize = 4;

/// Command to the task that owns the fleet's config.
#[derive(Debug)]
pub enum FleetConfigCommand {
    /// Applies a config, given as its JSON text.
    Apply(Bytes, FleetConfigCaller),
    /// Applies the previous config again.
    RollBack(FleetConfigCaller),
}

/// The principal that sent a command, and the sender of its result.
#[derive(Debug)]
pub struct FleetConfigCaller {
    pub principal: Box<str>,
    pub answer: oneshot::Sender<Result<ConfigVersion, FleetConfigRefused>>,
}

/// Reason for not changing the fleet's config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FleetConfigRefused {
    /// The new config is invalid.
    Unusable(ReloadRefused),
    /// There is no previous config.
    NothingBefore,
    /// The config cannot be stored or shared.
    Failed(String),
}

/// Handle to the task that owns the fleet's config. Clones share it.
#[derive(Clone, Debug)]
pub struct FleetConfigHandle {
    commands: mpsc::Sender<FleetConfigCommand>,
    /// The state shared by the fleet, as known to this node.
    pub(super) facts: FleetFacts,
}

impl FleetConfigHandle {
    /// Creates the handle and the receiver of its commands.
    pub fn new(facts: FleetFacts) -> (Self, mpsc::Receiver<FleetConfigCommand>) {
        let (commands, receiver) = mpsc::channel(FLEET_CONFIG_QUEUE);
        (Self { commands, facts }, receiver)
    }

    /// Sends a command and awaits its result.
    pub(super) async fn send(
        &self,
        principal: &Principal,
        command: impl FnOnce(FleetConfigCaller) -> FleetConfigCommand,
    ) -> Result<Result<ConfigVersion, FleetConfigRefused>, ApiError> {
        let unavailable = |text: &str| ApiError::new(StatusCode::SERVICE_UNAVAILABLE, text);
        let (answer, answered) = oneshot::channel();
        let caller = FleetConfigCaller { principal: principal.id().into(), answer };
        let sent = self.commands.try_send(command(caller));
        sent.map_err(|_| unavailable("Too many changes of the fleet's config are queued"))?;
        let answered = tokio::time::timeout(COMMAND_TIMEOUT, answered).await;
        answered.ok().and_then(Result::ok).ok_or_else(|| {
            unavailable(
                "It is unknown whether the fleet's config was changed: see /api/v1/fleet/config",
            )
        })
    }
}
