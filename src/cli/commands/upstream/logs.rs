//! `mcpproxy upstream logs`: what a server has said on stderr, from the proxy that runs, else from the
//! data folder.

use std::time::Duration;

use serde_json::{Value, json};

use super::change::{names, unknown};
use crate::cli::args::{Format, Global};
use crate::cli::backend::{Backend, target};
use crate::cli::error::CommandError;
use crate::cli::json_pointer::{list, text};
use crate::cli::output::{self, Output};
use crate::cli::suggest::{Vocabulary, suggesting};
use crate::cli::terminal_safe::line;
use crate::cli::{load_config, running_proxy};
use crate::config::Config;
use crate::server;
use crate::upstream::stderr_log;

/// How often a log that is followed is looked at.
const STEP: Duration = Duration::from_millis(300);

/// Where the lines come from.
enum From {
    Proxy(Backend),
    Folder(Box<Config>),
}

impl From {
    /// Lines, and the cursor of the next ones.
    async fn read(
        &self,
        name: &str,
        cursor: Option<&str>,
        most: u64,
    ) -> Result<String, CommandError> {
        match self {
            Self::Proxy(backend) => {
                let limit = most.to_string();
                let query = [("limit", Some(limit.as_str())), ("cursor", cursor)];
                let answer = backend.get(&target(&["servers", name, "logs"], &query)).await;
                let answer = suggesting(answer, backend, Vocabulary::Servers, name).await?;
                answer.json().map(str::to_owned)
            }
            Self::Folder(config) => {
                let after = cursor.map(str::parse).transpose().map_err(CommandError::failed)?;
                let most = usize::try_from(most).unwrap_or(stderr_log::MAX_LINES);
                let kept = stderr_log::read(&config.stderr_folder(), name, after, most);
                let kept = kept.map_err(|error| {
                    let folder = config.stderr_folder();
                    CommandError::failed(format!("{}: {error}", folder.display()))
                })?;
                let one = |it: stderr_log::KeptLine| json!({"time": it.time, "line": it.line});
                let lines: Vec<Value> = kept.lines.into_iter().map(one).collect();
                let next = kept.next.to_string();
                Ok(json!({"server": name, "lines": lines, "next_cursor": next}).to_string())
            }
        }
    }
}

/// Prints the last lines, and what comes after them if it is followed.
pub(super) fn run(
    name: &str,
    follow: bool,
    most: u64,
    global: &Global,
    output: &Output,
) -> Result<(), CommandError> {
    let (loaded, _log) = load_config::load_with_log(global)?;
    let runtime = server::local_runtime().map_err(CommandError::failed)?;
    let from = match runtime.block_on(running_proxy::find(&loaded.config)) {
        Some(client) => From::Proxy(Backend::Remote(client)),
        None if names(&loaded.config).any(|known| known == name) => {
            From::Folder(Box::new(loaded.config))
        }
        None => return Err(CommandError::failed(unknown(name, names(&loaded.config)))),
    };
    let mut answer = runtime.block_on(from.read(name, None, most))?;
    if !follow {
        return output.print(&answer, |answer| match list(answer, "/lines") {
            [] => format!("'{}' has said nothing on stderr that was kept.", line(name)),
            lines => lines.iter().map(|it| shown(it) + "\n").collect(),
        });
    }
    loop {
        let parsed = output::parse(&answer)?;
        for told in list(&parsed, "/lines") {
            let told = match output.format {
                Format::Table => shown(told),
                Format::Json | Format::Yaml => told.to_string(),
            };
            if !output::write_on(told.as_bytes())? {
                return Ok(());
            }
        }
        let cursor = text(&parsed, "/next_cursor").into_owned();
        answer = runtime.block_on(async {
            tokio::time::sleep(STEP).await;
            from.read(name, Some(&cursor), stderr_log::MAX_LINES as u64).await
        })?;
    }
}

fn shown(told: &Value) -> String {
    format!("{}  {}", text(told, "/time"), line(&text(told, "/line")))
}
