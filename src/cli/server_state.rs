//! How one server of a running proxy is, once it is connected or has failed.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::backend::{Backend, target};
use super::error::CommandError;
use super::json_pointer::{list, text};
use super::output;
use super::spinner;
use super::try_servers::Tried;
use crate::upstream::supervisor::Status;

/// How often the proxy is asked.
const STEP: Duration = Duration::from_millis(100);

/// Waits until the proxy knows what a server is good for, at most until then.
pub(super) async fn settled(
    backend: &Backend,
    name: &str,
    until: Instant,
) -> Result<Tried, CommandError> {
    let words = || format!("waiting for server '{name}'");
    spinner::during(words, asked(backend, name, until)).await
}

async fn asked(backend: &Backend, name: &str, until: Instant) -> Result<Tried, CommandError> {
    let start = Instant::now();
    loop {
        let servers = backend.get(&target(&["servers"], &[])).await?;
        let servers = output::parse(servers.json()?)?;
        let server = list(&servers, "/servers").iter().find(|it| text(it, "/name") == name);
        let status = server.map_or(Status::Connecting, status);
        let is_late = Instant::now() >= until;
        if status != Status::Connecting || is_late {
            let word = |pointer| server.map(|it| text(it, pointer).into_owned());
            return Ok(Tried {
                name: name.to_owned(),
                status,
                reason: word("/reason").unwrap_or_default(),
                tools: word("/tools").and_then(|tools| tools.parse().ok()).unwrap_or_default(),
                took: start.elapsed(),
            });
        }
        tokio::time::sleep(STEP).await;
    }
}

fn status(server: &Value) -> Status {
    let word = text(server, "/state");
    let all = [Status::Disabled, Status::Connecting, Status::Connected, Status::Failed];
    all.into_iter().find(|status| status.as_str() == word).unwrap_or(Status::Connecting)
}
