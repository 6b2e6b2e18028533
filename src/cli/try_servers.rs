//! Servers tried by a proxy that is opened for that alone: from their start to their list of tools.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::error::CommandError;
use super::logging;
use super::spinner;
use super::start_proxy;
use super::temporary_folder::TemporaryFolder;
use super::terminal_safe::line;
use crate::cli::counted::counted;
use crate::config::Config;
use crate::server::{self, App};
use crate::telemetry::LogHandles;
use crate::upstream::supervisor::Status;

/// How often their state is looked at.
const STEP: Duration = Duration::from_millis(10);
/// Longest wait for all of them.
const LIMIT: Duration = Duration::from_secs(60);

/// What came of trying one server.
#[derive(Clone, Debug)]
pub(super) struct Tried {
    pub(super) name: String,
    pub(super) status: Status,
    /// What is wrong, or what its login lacks; may be empty.
    pub(super) reason: String,
    pub(super) tools: usize,
    /// Until its tools were known, or it had failed.
    pub(super) took: Duration,
}

impl Tried {
    /// For programs.
    pub(super) fn json(&self) -> Value {
        json!({
            "name": self.name, "state": self.status, "tools": self.tools, "reason": self.reason,
            "took_ms": u64::try_from(self.took.as_millis()).unwrap_or(u64::MAX),
        })
    }

    /// What is told of it in a line.
    pub(super) fn told(&self) -> String {
        let took = self.took.as_secs_f64();
        match self.status {
            Status::Connected if self.reason.is_empty() => {
                format!("{}, after {took:.1} s", counted(self.tools, "tool"))
            }
            Status::Connected => {
                let tools = counted(self.tools, "tool");
                format!("{tools}, after {took:.1} s; {}", line(&self.reason))
            }
            Status::Disabled => "disabled".to_owned(),
            Status::Failed => format!("cannot be used: {}", line(&self.reason)),
            Status::Connecting => format!("did not answer within {took:.0} s"),
        }
    }
}

/// Starts or reaches the enabled servers of a config, all at once, and ends them again.
pub(super) fn try_servers(config: Config) -> Result<Vec<Tried>, CommandError> {
    let scratch = TemporaryFolder::watched("check")?;
    let longest = config.servers.iter().map(|it| it.upstream.init_timeout).max();
    let limit = longest.unwrap_or_default().saturating_mul(2).min(LIMIT);
    let app = App::try_out(config, scratch.path(), LogHandles::default());
    let app = app.map_err(|error| start_proxy::not_started(&error))?;
    let start = Instant::now();
    let upstreams = &app.shared().proxy.upstreams;
    let mut tried: Vec<Option<Tried>> = upstreams.iter().map(|_| None).collect();
    let runtime = server::local_runtime().map_err(CommandError::failed)?;
    let words = || {
        let states = upstreams.states();
        let there = states.iter().filter(|state| state.settled).count();
        format!("trying servers: {there} of {} have answered", states.len())
    };
    runtime.block_on(spinner::during(words, async {
        while tried.iter().any(Option::is_none) {
            let took = start.elapsed();
            for (state, tried) in upstreams.states().into_iter().zip(&mut tried) {
                if tried.is_none() && (state.settled || took > limit) {
                    *tried = Some(Tried {
                        name: state.name.to_string(),
                        status: state.status,
                        reason: state.reason.to_string(),
                        tools: state.tools,
                        took,
                    });
                }
            }
            tokio::time::sleep(STEP).await;
        }
    }));
    if let Err(error) = app.close() {
        logging::say(format_args!("warning: {error}"));
    }
    Ok(tried.into_iter().flatten().collect())
}
