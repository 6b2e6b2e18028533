//! Checks that servers are usable: waits for a server in the running proxy, or starts one or all servers of a config in
//! a proxy in this process.

use crate::backend::{Backend, target};
use crate::error::CommandError;
use crate::format::{counted, list, text};
use crate::start_proxy::TemporaryFolder;
use crate::terminal_safe::{joined, line};
use crate::{logging, output, start_proxy};
use mcpproxy_config::Config;
use mcpproxy_config::servers::ServerEntry;
use mcpproxy_gateway::telemetry::LogHandles;
use mcpproxy_server as server;
use mcpproxy_server::App;
use mcpproxy_upstream::supervisor::Status;
use mcpproxy_upstream::unset_variable;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Poll interval for the running proxy.
const STEP: Duration = Duration::from_millis(100);

/// Waits until the running proxy has connected a server or has failed to connect it, at most until the deadline.
pub(super) async fn settled(
    backend: &Backend,
    name: &str,
    until: Instant,
) -> Result<ServerTrial, CommandError> {
    let message = || format!("waiting for server '{name}'");
    output::during(message, poll_state(backend, name, until)).await
}

async fn poll_state(
    backend: &Backend,
    name: &str,
    until: Instant,
) -> Result<ServerTrial, CommandError> {
    let start = Instant::now();
    loop {
        let servers = backend.get(&target(&["servers"], &[])).await?;
        let servers = output::parse(servers.json()?)?;
        let server = list(&servers, "/servers").iter().find(|it| text(it, "/name") == name);
        let status = server.map_or(Status::Connecting, status);
        let is_late = Instant::now() >= until;
        if status != Status::Connecting || is_late {
            let word = |pointer| server.map(|it| text(it, pointer).into_owned());
            return Ok(ServerTrial {
                name: name.to_owned(),
                status,
                reason: word("/reason").unwrap_or_default(),
                tools: word("/tools").and_then(|tools| tools.parse().ok()).unwrap_or_default(),
                unannotated: Vec::new(),
                took: start.elapsed(),
            });
        }
        tokio::time::sleep(STEP).await;
    }
}

/// Next step for a server whose environment variable is not set, if `reason` says so.
pub(super) fn set_variable(reason: &str, is_running: bool) -> Option<String> {
    let variable = line(unset_variable(reason)?);
    Some(match is_running {
        true => format!(
            "set {variable} where `mcpproxy serve` is started, and start it again; a variable set in another shell does not reach it"
        ),
        false => format!("set the environment variable {variable}"),
    })
}

fn status(server: &Value) -> Status {
    let word = text(server, "/state");
    Status::ALL.into_iter().find(|status| status.as_str() == word).unwrap_or(Status::Connecting)
}

/// Poll interval for the temporary proxy.
const TRY_STEP: Duration = Duration::from_millis(10);
/// Maximum wait for all servers.
const LIMIT: Duration = Duration::from_secs(60);

/// Result of trying one server.
#[derive(Clone, Debug)]
pub(super) struct ServerTrial {
    pub(super) name: String,
    pub(super) status: Status,
    /// Error or missing login; may be empty.
    pub(super) reason: String,
    pub(super) tools: usize,
    /// Tools marked neither read-only nor destructive; filled in only by [`try_servers`].
    pub(super) unannotated: Vec<String>,
    /// Time until the server's tools were known, or the server failed.
    pub(super) took: Duration,
}

impl ServerTrial {
    /// The result as JSON.
    pub(super) fn json(&self) -> Value {
        json!({
            "name": self.name, "state": self.status, "tools": self.tools, "reason": self.reason,
            "took_ms": u64::try_from(self.took.as_millis()).unwrap_or(u64::MAX),
        })
    }

    /// One-line summary of the result.
    pub(super) fn message(&self) -> String {
        let took = self.took.as_secs_f64();
        match self.status {
            Status::Connected if self.reason.is_empty() => {
                format!("{} listed in {took:.1} s", counted(self.tools, "tool"))
            }
            Status::Connected => {
                let tools = counted(self.tools, "tool");
                format!("{tools} listed in {took:.1} s; {}", line(&self.reason))
            }
            Status::Disabled => "disabled".to_owned(),
            Status::Failed => format!("unusable: {}", line(&self.reason)),
            Status::NeedsLogin => line(&self.reason).into_owned(),
            Status::Throttled => format!("throttled: {}", line(&self.reason)),
            Status::Connecting => format!("no response within {took:.0} s"),
        }
    }
}

/// Starts all enabled servers of a config concurrently, and stops them again. Nothing is stored.
pub(super) fn try_servers(config: Config) -> Result<Vec<ServerTrial>, CommandError> {
    let scratch = TemporaryFolder::watched("check")?;
    let limit = trial_limit(config.servers.iter());
    let app = App::try_out(config, scratch.path(), LogHandles::default());
    trials(app.map_err(|error| start_proxy::not_started(&error))?, limit)
}

/// Starts a single server of a config, and stops it again. Its tools are stored as after a first call, so that they are
/// found before the proxy runs. Nothing is stored if the data directory is in use, unusable, or belongs to a fleet
/// node.
pub(super) fn try_new_server(
    mut config: Config,
    name: &str,
) -> Result<Option<ServerTrial>, CommandError> {
    let limit = trial_limit(config.servers.iter().filter(|server| &*server.name == name));
    let start = |config: Config| App::start_only(config, LogHandles::default(), Some(name));
    let stored = match config.cluster.membership() {
        None => start(config.clone())
            .inspect_err(|why| {
                let (name, why) = (line(name), joined(&why.to_string()));
                logging::print_line(format_args!(
                    "warning: the tools of '{name}' are not stored before `mcpproxy serve` runs: {why}"
                ));
            })
            .ok(),
        Some(_) => None,
    };
    let trials = match stored {
        Some(app) => trials(app, limit)?,
        None => {
            config.servers.retain(|server| &*server.name == name);
            try_servers(config)?
        }
    };
    Ok(trials.into_iter().find(|trial| trial.name == name))
}

/// Maximum wait for these servers.
fn trial_limit<'a>(servers: impl Iterator<Item = &'a ServerEntry> + Clone) -> Duration {
    let longest = servers.clone().map(|it| it.upstream.init_timeout).max();
    let longest = longest.unwrap_or_default().saturating_mul(2).min(LIMIT);
    // A server that is being installed is not interrupted.
    let upstreams = servers.map(|it| &it.upstream);
    let installing = upstreams.filter(|it| it.first_init_timeout() != it.init_timeout);
    let installing = installing.map(|it| it.first_init_timeout()).max();
    longest.max(installing.unwrap_or_default() + STEP)
}

/// Waits for the servers of a proxy, at most until the limit, and closes the proxy.
fn trials(app: App, limit: Duration) -> Result<Vec<ServerTrial>, CommandError> {
    let start = Instant::now();
    let upstreams = &app.shared().proxy.upstreams;
    let mut trials: Vec<Option<ServerTrial>> = upstreams.iter().map(|_| None).collect();
    let runtime = server::local_runtime().map_err(CommandError::failed)?;
    let message = || {
        let mut states = upstreams.states();
        states.retain(|state| state.status != Status::Disabled);
        let settled = states.iter().filter(|state| state.settled).count();
        format!("trying servers: {settled} of {} ready", states.len())
    };
    runtime.block_on(output::during(message, async {
        while trials.iter().any(Option::is_none) {
            let took = start.elapsed();
            for (state, trials) in upstreams.states().into_iter().zip(&mut trials) {
                if trials.is_none() && (state.settled || took > limit) {
                    *trials = Some(ServerTrial {
                        name: state.name.to_string(),
                        status: state.status,
                        reason: state.reason.to_string(),
                        tools: state.tools,
                        unannotated: Vec::new(),
                        took,
                    });
                }
            }
            tokio::time::sleep(TRY_STEP).await;
        }
    }));
    let mut trials: Vec<ServerTrial> = trials.into_iter().flatten().collect();
    for tool in app.shared().proxy.catalog.load().tools().iter().filter(|it| it.is_unannotated()) {
        if let Some(trial) = trials.iter_mut().find(|trial| *trial.name == *tool.name.server) {
            trial.unannotated.push(tool.name.tool.to_string());
        }
    }
    if let Err(error) = app.close() {
        logging::print_line(format_args!("warning: {error}"));
    }
    Ok(trials)
}
