//! `mcpproxy upstream logs`: what a server has said on stderr, from the proxy that runs, else from the
//! data folder.

use std::time::Duration;

use serde_json::{Value, json};
use unicode_width::UnicodeWidthStr as _;

use super::change::names;
use crate::cli::args::{Format, Global};
use crate::cli::backend::{Backend, target};
use crate::cli::error::CommandError;
use crate::cli::json_pointer::{list, text};
use crate::cli::output::{self, Output};
use crate::cli::paragraph::Paragraph;
use crate::cli::suggest::{Vocabulary, suggesting, unknown_server};
use crate::cli::terminal_safe::line;
use crate::cli::times::{TimeStyle, Times};
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

/// What is shown of a log.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogsShown {
    /// Also what comes from now on.
    pub(super) follow: bool,
    /// Lines to begin with.
    pub(super) most: u64,
    pub(super) time: Option<TimeStyle>,
}

/// Prints the last lines, and what comes after them if it is followed.
pub(super) fn run(
    name: &str,
    LogsShown { follow, most, time }: LogsShown,
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
        None => return Err(CommandError::failed(unknown_server(name, names(&loaded.config)))),
    };
    let mut answer = runtime.block_on(from.read(name, None, most))?;
    // An age is that of the moment in which it is shown.
    let times = || Times::new(Some(time.unwrap_or(TimeStyle::Utc)), output.terminal);
    let width = output.view.width;
    if !follow {
        let times = times();
        return output.print(&answer, |answer| match list(answer, "/lines") {
            [] => format!("'{}' has said nothing on stderr that was kept.", line(name)),
            lines => lines.iter().map(|it| shown(it, &times, width) + "\n").collect(),
        });
    }
    loop {
        let (parsed, times) = (output::parse(&answer)?, times());
        for told in list(&parsed, "/lines") {
            let told = match output.format {
                Format::Table => shown(told, &times, width),
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

/// A line of the log behind its time, below which it goes on where it is wrapped.
fn shown(told: &Value, times: &Times, width: Option<usize>) -> String {
    let time = times.exact_text(&text(told, "/time")) + " ";
    let behind = Paragraph::new(width).behind(time.width() + 1);
    behind.labelled(&time, &line(&text(told, "/line")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_stands_behind_its_time_and_below_itself() {
        let told =
            json!({"time": "2026-01-02T03:04:05.678Z", "line": "one\ntwo three four five six"});
        let times = Times::new(Some(TimeStyle::Utc), false);
        let whole = "2026-01-02T03:04:05.678Z  one\\u{a}two three four five six";
        assert_eq!(shown(&told, &times, None), whole);
        let wrapped = shown(&told, &times, Some(48));
        let mut lines = wrapped.lines().skip(1);
        assert!(
            lines.all(|line| line.starts_with(&" ".repeat(26)) && line.len() <= 48),
            "{wrapped}"
        );
        let ages = Times::new(Some(TimeStyle::Relative), false);
        assert!(shown(&told, &ages, None).contains(" ago  one"));
    }
}
