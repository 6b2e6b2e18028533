//! `mcpproxy upstream …`: lists servers, changes their config entries, shows their stderr and manages OAuth logins.
//!
//! Changes are written to the config file and applied by the running proxy, and a new server is tried. Logs come from
//! the running proxy, or from the data directory if none runs. `upstream::oauth` performs the login; a running proxy
//! notices the changed token file by itself.

pub(super) use self::list::stored_tools;
use crate::args::{Format, Global, UpstreamAdd, UpstreamCommand};
use crate::backend::{Backend, Needs, target};
use crate::completion::{Vocabulary, suggesting, unknown_server};
use crate::error::{CommandError, Exit};
use crate::format::{RepeatedLines, TimeStyle, Times, fold_repeats, list, text};
use crate::output::{Output, Paragraph, confirm, declined};
use crate::running_proxy::ReloadReport;
use crate::server_state::{ServerTrial, try_new_server};
use crate::terminal_safe::{argument, line, quoted};
use crate::{backend, hints, logging, output, running_proxy, server_state, start_proxy};
use mcpproxy_config as config;
use mcpproxy_config::edit::EditedJson;
use mcpproxy_config::edit_servers::{Servers, check_new_name};
use mcpproxy_config::file::Loaded;
use mcpproxy_config::problem::{Problem, Severity};
use mcpproxy_config::servers::ServerEntry;
use mcpproxy_config::{Config, file, rule_files};
use mcpproxy_policy::rules::KnownTools;
use mcpproxy_server as server;
use mcpproxy_upstream as upstream;
use mcpproxy_upstream::oauth::{LoggedOut, LoginError};
use mcpproxy_upstream::supervisor::Status;
use mcpproxy_upstream::{oauth, stderr_log};
use serde_json::{Map, Value, json};
use std::io::{IsTerminal as _, stdin};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use unicode_width::UnicodeWidthStr as _;

mod list;
mod show;

/// Maximum wait for a restarted server.
const RESTART_LIMIT: Duration = Duration::from_secs(45);

/// Options of `upstream add` that hardly any server has.
const OWN_OPTIONS: [&str; 3] = ["--disabled", "--no-check", "--replace"];

/// Runs an upstream command.
pub(super) fn run(
    command: UpstreamCommand,
    global: &Global,
    output: &Output,
) -> Result<(), CommandError> {
    match command {
        UpstreamCommand::List => list::run(global, output),
        UpstreamCommand::Show { name } => show::run(&name, global, output),
        UpstreamCommand::Add(flags) => add(&flags, global, output),
        UpstreamCommand::Remove { name, yes } => remove(&name, yes, global, output),
        UpstreamCommand::Enable { name } => change(&name, ServerChange::Enable, global, output),
        UpstreamCommand::Disable { name } => change(&name, ServerChange::Disable, global, output),
        UpstreamCommand::Restart { name } => {
            backend::with(global, Needs::Running, async |backend| {
                restart(&name, backend, output).await
            })
        }
        UpstreamCommand::Logs { name, follow, lines, time } => {
            logs(&name, LogsShown { follow, max_lines: lines, time }, global, output)
        }
        UpstreamCommand::Login { name, open, timeout } => {
            log_in(global, output, &name, open, timeout)
        }
        UpstreamCommand::Logout { name } => log_out(global, output, &name),
    }
}

/// Reconnects a server and waits for the result.
async fn restart(name: &str, backend: &Backend, output: &Output) -> Result<(), CommandError> {
    let response = backend.post(&target(&["servers", name, "restart"], &[]), String::new()).await;
    let restarted = suggesting(response, backend, Vocabulary::Servers, name).await;
    restarted.map_err(|mut failure| {
        failure.message =
            failure.message.replace("enable NAME", &format!("enable {}", argument(name)));
        if let Some(step) = server_state::set_variable(&failure.message, true) {
            failure.message = format!("{}: {step}", failure.message);
        }
        failure
    })?;
    let until = Instant::now() + RESTART_LIMIT;
    let trial = server_state::settled(backend, name, until).await?;
    let response = json!({"server": name, "restarted": true, "check": trial.json()});
    output.print(&response.to_string(), |_| {
        let done = if trial.status == Status::Connected { "Restarted" } else { "Tried again" };
        format!("{done} '{}': {}.", line(name), trial.message())
    })?;
    match trial.status {
        Status::Connected => Ok(()),
        Status::Disabled
        | Status::Connecting
        | Status::Failed
        | Status::NeedsLogin
        | Status::Throttled => {
            let step = next_step(&trial, true, "the config");
            Err(CommandError::failed(format!("server '{}' is not usable: {step}", line(name))))
        }
    }
}

/// Maximum wait for a server that a running proxy has just added.
const SETTLE_LIMIT: Duration = Duration::from_secs(45);

/// Change of a server's config entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServerChange {
    Remove,
    Enable,
    Disable,
}

/// Adds a server to the config file and tests it.
pub(super) fn add(
    flags: &UpstreamAdd,
    global: &Global,
    output: &Output,
) -> Result<(), CommandError> {
    let (loaded, _log) = start_proxy::load_with_log(global)?;
    let name = flags.name.as_str();
    check_new_name(name).map_err(CommandError::usage)?;
    if flags.command.is_empty() && flags.url.is_none() && flags.endpoint.is_none() {
        return Err(CommandError::usage(format!(
            "missing command or URL: `mcpproxy upstream add {0} -- COMMAND …` or \
             `mcpproxy upstream add {0} URL`",
            quoted(name).unwrap_or_else(|| name.into())
        )));
    }
    if let Some(own) = flags.command.iter().find(|word| OWN_OPTIONS.contains(&word.as_str())) {
        logging::print_line(format_args!(
            "warning: {own} is passed to the command: options of mcpproxy stand before it"
        ));
    }
    let members = members(flags);
    let is_taken = names(&loaded.config).any(|known| known == name);
    if is_taken && !flags.replace {
        return Err(CommandError::failed(format!(
            "server '{name}' already exists: pass --replace to replace it, or choose another name"
        )));
    }
    if !flags.no_check && !flags.disabled {
        check_entry(&members)?;
    }
    edit(&loaded, global, |json| {
        let without = Servers(json).without(name).map_err(|error| error.to_string())?;
        match without {
            // Added after the config was read.
            Some(_) if !flags.replace => Err(format!("server '{name}' already exists")),
            Some(rest) => Servers(&rest).add(name, &members).map_err(|error| error.to_string()),
            None => Servers(json).add(name, &members).map_err(|error| error.to_string()),
        }
    })?;
    let runtime = server::local_runtime().map_err(CommandError::failed)?;
    let (reloaded, client) = runtime.block_on(running_proxy::reload(&loaded));
    let trial = match (flags.no_check || flags.disabled, &reloaded, client) {
        (true, ..) => None,
        (false, ReloadReport::InForce(_), Some(client)) => {
            let until = Instant::now() + SETTLE_LIMIT;
            Some(runtime.block_on(server_state::settled(&Backend::Remote(client), name, until))?)
        }
        (false, ..) => {
            let config = start_proxy::load(global, None)?.config;
            try_new_server(config, name)?
        }
    };
    let response = json!({
        "server": name, "file": loaded.path.display().to_string(), "added": true, "replaced": is_taken,
        "proxy": reloaded.json(), "check": trial.as_ref().map(|trial| trial.json()),
    });
    let (added, to) = if is_taken { ("Replaced", "in") } else { ("Added", "to") };
    output.print(&response.to_string(), |_| {
        let mut message =
            format!("{added} '{name}' {to} {}.\n", line(&loaded.path.display().to_string()));
        if let Some(trial) = &trial {
            message += &test_line(trial, output);
        }
        message + &reloaded.message()
    })?;
    match trial {
        Some(trial) if matches!(trial.status, Status::Failed | Status::Connecting) => {
            let file = loaded.path.display().to_string();
            let step =
                next_step(&trial, matches!(reloaded, ReloadReport::InForce(_)), &line(&file));
            let word = argument(name);
            let text = format!(
                "server '{name}' was added, but is not usable: {step}; `mcpproxy upstream remove {word}` removes it"
            );
            Err(CommandError::failed(text))
        }
        Some(_) | None => Ok(()),
    }
}

/// Result of the test of a server, wrapped.
fn test_line(trial: &ServerTrial, output: &Output) -> String {
    let paragraph = Paragraph::new(output.view.width).indented(TEST_INDENT).keeping_paths();
    paragraph.text(&format!("Test: {}.", trial.message())) + "\n"
}

/// Indentation of the further lines of a test.
const TEST_INDENT: usize = 6;

/// Words of the reason if nothing listens at a server's URL.
pub(super) const NO_CONNECTION: &str = "cannot connect to ";

/// Next step for a server that is not usable; its entry is in `file`.
fn next_step(trial: &ServerTrial, is_running: bool, file: &str) -> String {
    server_state::set_variable(&trial.reason, is_running).unwrap_or_else(|| {
        let name = argument(&trial.name);
        let start = if trial.reason.contains(NO_CONNECTION) { "start it, or " } else { "" };
        format!(
            "{start}correct its entry in {file} or with `mcpproxy upstream add --replace {name} …`; \
             `mcpproxy upstream logs {name}` shows its output"
        )
    })
}

/// Removes a server. Asks first if stdin is a terminal, unless `yes` is set.
fn remove(name: &str, yes: bool, global: &Global, output: &Output) -> Result<(), CommandError> {
    let loaded = start_proxy::load(global, None)?;
    // An unknown server is reported by the change itself.
    if names(&loaded.config).any(|known| known == name) {
        let file = loaded.path.display().to_string();
        let question = format!("Remove server '{}' from {}?", line(name), line(&file));
        if !confirm("", &question, yes || !stdin().is_terminal())? {
            return declined();
        }
    }
    change(name, ServerChange::Remove, global, output)
}

/// Applies a change to the config file and the running proxy.
pub(super) fn change(
    name: &str,
    change: ServerChange,
    global: &Global,
    output: &Output,
) -> Result<(), CommandError> {
    let (loaded, _log) = start_proxy::load_with_log(global)?;
    let changed = edit(&loaded, global, |json| {
        let servers = Servers(json);
        let next = match change {
            ServerChange::Remove => servers.without(name),
            ServerChange::Enable => servers.switched(name, true),
            ServerChange::Disable => servers.switched(name, false),
        };
        let next = next.map_err(|error| error.to_string())?;
        next.ok_or_else(|| {
            unknown_server(name, servers.all().iter().map(|(name, _)| name.as_str()))
        })
    })?;
    let (word, key) = match change {
        ServerChange::Remove => ("Removed", "removed"),
        ServerChange::Enable => ("Enabled", "enabled"),
        ServerChange::Disable => ("Disabled", "disabled"),
    };
    let file = loaded.path.display().to_string();
    let mut response = Map::new();
    response.insert("server".to_owned(), name.into());
    response.insert("file".to_owned(), file.as_str().into());
    response.insert(key.to_owned(), true.into());
    response.insert("changed".to_owned(), changed.into());
    if !changed {
        return output.print(&Value::from(response).to_string(), |_| {
            format!("'{}' is already {key}.", line(name))
        });
    }
    let runtime = server::local_runtime().map_err(CommandError::failed)?;
    let (reloaded, client) = runtime.block_on(running_proxy::reload(&loaded));
    response.insert("proxy".to_owned(), reloaded.json());
    let trial = match (change, &reloaded, client) {
        (ServerChange::Enable, ReloadReport::InForce(_), Some(client)) => {
            let until = Instant::now() + SETTLE_LIMIT;
            Some(runtime.block_on(server_state::settled(&Backend::Remote(client), name, until))?)
        }
        _ => None,
    };
    if let Some(trial) = &trial {
        response.insert("check".to_owned(), trial.json());
    }
    let rules = match change {
        ServerChange::Remove => rules_about(&loaded.config, name),
        ServerChange::Enable | ServerChange::Disable => Vec::new(),
    };
    if change == ServerChange::Remove {
        response.insert("rules".to_owned(), json!(rules));
    }
    output.print(&Value::from(response).to_string(), |_| {
        let mut message = format!("{word} '{}' in {}.\n", line(name), line(&file));
        if let Some(trial) = &trial {
            message += &test_line(trial, output);
        }
        message += &reloaded.message();
        if !rules.is_empty() {
            message += &format!("\nThese rules name '{}' and stay in force:\n", line(name));
            rules.iter().for_each(|rule| message += &format!("  {}\n", line(rule)));
            message +=
                &hints::commands("Correct or remove them, then run `mcpproxy policy check`.");
        }
        message
    })?;
    match trial {
        Some(trial) if matches!(trial.status, Status::Failed | Status::Connecting) => {
            let step = next_step(&trial, true, &line(&file));
            let text = format!("server '{name}' was enabled, but is not usable: {step}");
            Err(CommandError::failed(text))
        }
        Some(_) | None => Ok(()),
    }
}

/// Rules that name a server removed by the change, with their locations.
fn rules_about(config: &Config, name: &str) -> Vec<String> {
    let before = rule_files::servers(config);
    let mut after = before.clone();
    after.servers.remove(name);
    let warnings = |known: &KnownTools| {
        let loaded = rule_files::load(&config.rules, known);
        loaded.map(|loaded| loaded.warnings).unwrap_or_default()
    };
    let known: Vec<_> =
        warnings(&before).into_iter().map(|it| (it.file, it.line, it.column)).collect();
    let new = warnings(&after).into_iter();
    let new = new.filter(|it| !known.contains(&(Arc::clone(&it.file), it.line, it.column)));
    new.map(|warning| warning.to_string()).collect()
}

/// Edits the config file unless the result would be invalid. Returns whether the text changed.
pub(super) fn edit(
    loaded: &Loaded,
    global: &Global,
    change: impl Fn(&EditedJson) -> Result<EditedJson, String>,
) -> Result<bool, CommandError> {
    start_proxy::refuse_for_fleet(loaded)?;
    let flags = start_proxy::flags(global, None);
    let mut refused = None;
    let edited = file::edit(&loaded.path, |text| {
        let json = EditedJson::new(text).map_err(|error| error.to_string())?;
        let next = change(&json).inspect_err(|why| refused = Some(why.clone()))?;
        if let Err(problems) = config::parse(next.text(), &start_proxy::variable, &flags) {
            return Err(first_error(&problems));
        }
        let is_changed = next.text() != text;
        Ok((is_changed.then(|| next.text().to_owned()), is_changed))
    });
    match (edited, refused) {
        (Ok(changed), _) => Ok(changed),
        (Err(_), Some(why)) => Err(CommandError::failed(why)),
        (Err(problem), None) => Err(CommandError::new(Exit::Config, problem)),
    }
}

fn first_error(problems: &[Problem]) -> String {
    let error = problems.iter().find(|it| it.severity == Severity::Error);
    // Its place would be in the text that was not written.
    error.map(|error| error.text.clone()).unwrap_or_default()
}

/// Members of the entry in the usual order.
fn members(flags: &UpstreamAdd) -> Vec<(String, Value)> {
    let map = |pairs: &[(String, String)]| {
        let pairs = pairs.iter().map(|(name, value)| (name.clone(), Value::from(value.as_str())));
        Value::Object(pairs.collect())
    };
    let mut members = Vec::new();
    let mut put = |key: &str, value: Value| members.push((key.to_owned(), value));
    if let Some((program, args)) = flags.command.split_first() {
        put("command", program.as_str().into());
        if !args.is_empty() {
            put("args", args.into());
        }
    }
    if let Some(url) = flags.url.as_ref().or(flags.endpoint.as_ref()) {
        put("url", url.as_str().into());
    }
    for (key, pairs) in [("env", &flags.env), ("headers", &flags.header)] {
        if !pairs.is_empty() {
            put(key, map(pairs));
        }
    }
    if flags.disabled {
        put("enabled", false.into());
    }
    members
}

/// Checks the entry for mistakes before anything is written.
fn check_entry(members: &[(String, Value)]) -> Result<(), CommandError> {
    let entry = Value::Object(members.iter().cloned().collect());
    let entry: upstream::Config = serde_json::from_value(entry).map_err(CommandError::usage)?;
    for (keys, problem) in entry.oddities() {
        logging::print_line(format_args!("warning: {}: {problem}", keys.join(".")));
    }
    match entry.mistakes(&start_proxy::variable).into_iter().next() {
        None => Ok(()),
        Some(mistake) => Err(CommandError::failed(format!(
            "{}: {} (use --no-check to add it anyway)",
            mistake.keys.join("."),
            mistake.problem
        ))),
    }
}

/// Names of the configured servers.
pub(super) fn names(config: &Config) -> impl Iterator<Item = &str> {
    config.servers.iter().map(|server| &*server.name)
}

/// Poll interval of a followed log.
const STEP: Duration = Duration::from_millis(300);

/// Source of log lines.
enum LogSource {
    Proxy(Backend),
    Folder(Box<Config>),
}

impl LogSource {
    /// Reads lines and the cursor of the next ones, as JSON.
    async fn read(
        &self,
        name: &str,
        cursor: Option<&str>,
        max_lines: u64,
    ) -> Result<String, CommandError> {
        match self {
            Self::Proxy(backend) => {
                let limit = max_lines.to_string();
                let query = [("limit", Some(limit.as_str())), ("cursor", cursor)];
                let response = backend.get(&target(&["servers", name, "logs"], &query)).await;
                let response = suggesting(response, backend, Vocabulary::Servers, name).await?;
                response.json().map(str::to_owned)
            }
            Self::Folder(config) => {
                let after = cursor.map(str::parse).transpose().map_err(CommandError::failed)?;
                let max_lines = usize::try_from(max_lines).unwrap_or(stderr_log::MAX_LINES);
                let stored = stderr_log::read(&config.stderr_folder(), name, after, max_lines);
                let stored = stored.map_err(|error| {
                    let folder = config.stderr_folder();
                    CommandError::failed(format!("{}: {error}", folder.display()))
                })?;
                let one = |it: stderr_log::KeptLine| json!({"time": it.time, "line": it.line});
                let lines: Vec<Value> = stored.lines.into_iter().map(one).collect();
                let next = stored.next.to_string();
                Ok(json!({"server": name, "lines": lines, "next_cursor": next}).to_string())
            }
        }
    }
}

/// Display options of a log.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogsShown {
    /// Keep printing new lines.
    pub(super) follow: bool,
    /// Number of lines to start with.
    pub(super) max_lines: u64,
    pub(super) time: Option<TimeStyle>,
}

/// Prints the last lines, and new ones if `follow` is set.
pub(super) fn logs(
    name: &str,
    LogsShown { follow, max_lines, time }: LogsShown,
    global: &Global,
    output: &Output,
) -> Result<(), CommandError> {
    let (loaded, _log) = start_proxy::load_with_log(global)?;
    let runtime = server::local_runtime().map_err(CommandError::failed)?;
    let from = match runtime.block_on(running_proxy::find(&loaded.config)) {
        Some(client) => LogSource::Proxy(Backend::Remote(client)),
        None if names(&loaded.config).any(|known| known == name) => {
            LogSource::Folder(Box::new(loaded.config))
        }
        None => return Err(CommandError::failed(unknown_server(name, names(&loaded.config)))),
    };
    let mut response = runtime.block_on(from.read(name, None, max_lines))?;
    // Ages are relative to the time of printing.
    let times = || Times::new(Some(time.unwrap_or(TimeStyle::Utc)), output.terminal);
    let width = output.view.width;
    if !follow {
        let times = times();
        return output.print(&response, |response| match list(response, "/lines") {
            [] => format!(
                "No output of '{}' is stored: it has written nothing, or it did not start; \
                 `mcpproxy doctor` shows its state.",
                line(name)
            ),
            lines if output.terminal => folded(lines, &times, width),
            lines => lines.iter().map(|it| shown(it, &times, width) + "\n").collect(),
        });
    }
    loop {
        let (parsed, times) = (output::parse(&response)?, times());
        for entry in list(&parsed, "/lines") {
            let entry = match output.format {
                Format::Table => shown(entry, &times, width),
                Format::Json | Format::Yaml => output.json(&entry.to_string()).into_owned(),
            };
            if !output::write_on(entry.as_bytes())? {
                return Ok(());
            }
        }
        let cursor = text(&parsed, "/next_cursor").into_owned();
        response = runtime.block_on(async {
            tokio::time::sleep(STEP).await;
            from.read(name, Some(&cursor), stderr_log::MAX_LINES as u64).await
        })?;
    }
}

/// Log lines, in which adjacent parts that differ in digits at most, such as tracebacks, are shown once with their number.
fn folded(lines: &[Value], times: &Times, width: Option<usize>) -> String {
    let keys: Vec<_> = lines.iter().map(|it| without_digits(&text(it, "/line"))).collect();
    let mut drawn = String::new();
    for RepeatedLines { lines: last, count } in fold_repeats(&keys) {
        let (first, size) = (last.end - last.len() * count, last.len());
        let all = lines.get(first..last.end).unwrap_or_default();
        let is_same = all
            .iter()
            .zip(all.iter().skip(size))
            .all(|(one, next)| text(one, "/line") == text(next, "/line"));
        let differing = if is_same { "" } else { ", apart from numbers" };
        for entry in lines.get(last).unwrap_or_default() {
            drawn += &(shown(entry, times, width) + "\n");
        }
        if let Some(first) = lines.get(first).filter(|_| count > 1) {
            let since = times.exact_text(&text(first, "/time"));
            drawn += &format!("({count} times{differing}, first at {since})\n");
        }
    }
    drawn
}

/// A line with each number replaced by one `0`.
fn without_digits(line: &str) -> String {
    let mut shown: String =
        line.chars().map(|letter| if letter.is_ascii_digit() { '0' } else { letter }).collect();
    while shown.contains("00") {
        shown = shown.replace("00", "0");
    }
    shown
}

/// A log line preceded by its time; wrapped parts are indented.
fn shown(entry: &Value, times: &Times, width: Option<usize>) -> String {
    let time = times.exact_text(&text(entry, "/time")) + " ";
    let paragraph = Paragraph::new(width).indented(time.width() + 1).keeping_paths();
    paragraph.labeled(&time, &line(&text(entry, "/line")))
}

/// Logs in to a server: prints the URL to open and waits for the redirect.
pub(super) fn log_in(
    global: &Global,
    output: &Output,
    name: &str,
    open: bool,
    limit: Duration,
) -> Result<(), CommandError> {
    let loaded = start_proxy::load(global, None)?;
    let _log = logging::start_quiet(global);
    let config = &loaded.config;
    let server = find(config, name)?;
    let show = |url: &str| {
        let message = match output.format {
            Format::Json => json!({"open": url}).to_string(),
            Format::Table | Format::Yaml => {
                format!("Open this URL in your browser to log in to {name}:\n\n  {}\n", line(url))
            }
        };
        // stdout is reserved for the result.
        logging::print_line(message);
        if open {
            open_browser(url);
        }
    };
    let runtime = server::local_runtime().map_err(CommandError::failed)?;
    let login = oauth::login(name, &server.upstream, &config.data_dir, limit, show);
    let logged_in = runtime.block_on(login).map_err(|error| failed(name, &error))?;
    let outcome = json!({
        "server": name, "issuer": logged_in.issuer, "scopes": logged_in.scopes,
        "renewable": logged_in.renewable,
    });
    output.print(&outcome.to_string(), |outcome| {
        let scopes: Vec<&str> =
            list(outcome, "/scopes").iter().filter_map(serde_json::Value::as_str).collect();
        let scopes =
            if scopes.is_empty() { String::new() } else { format!(" for {}", scopes.join(" ")) };
        line(&format!("logged in to {name} at {}{scopes}", text(outcome, "/issuer"))).into()
    })
}

/// Deletes a server's stored tokens, and revokes them at its authorization server.
pub(super) fn log_out(global: &Global, output: &Output, name: &str) -> Result<(), CommandError> {
    let loaded = start_proxy::load(global, None)?;
    let _log = logging::start_quiet(global);
    let config = &loaded.config;
    let server = find(config, name)?;
    let runtime = server::local_runtime().map_err(CommandError::failed)?;
    let logout = oauth::log_out(name, &server.upstream, &config.data_dir);
    let logged_out = runtime.block_on(logout).map_err(|error| failed(name, &error))?;
    let (was_logged_in, not_revoked) = match &logged_out {
        LoggedOut::NotLoggedIn => (false, None),
        LoggedOut::Revoked => (true, None),
        LoggedOut::Removed(reason) => (true, Some(reason)),
    };
    let revoked = logged_out == LoggedOut::Revoked;
    let mut outcome = json!({"server": name, "was_logged_in": was_logged_in, "revoked": revoked});
    if let (Some(reason), Some(members)) = (not_revoked, outcome.as_object_mut()) {
        members.insert("not_revoked".to_owned(), json!(reason));
    }
    output.print(&outcome.to_string(), |_| {
        line(&match &logged_out {
            LoggedOut::NotLoggedIn => format!("not logged in to {name}"),
            LoggedOut::Revoked => format!("logged out of {name}, tokens revoked"),
            LoggedOut::Removed(reason) => format!(
                "logged out of {name}; its tokens were not revoked and stay valid until they expire: {reason}"
            ),
        })
        .into()
    })
}

fn find<'a>(config: &'a Config, name: &str) -> Result<&'a ServerEntry, CommandError> {
    let found = config.servers.iter().find(|server| &*server.name == name);
    let names = || config.servers.iter().map(|server| &*server.name);
    found.ok_or_else(|| CommandError::failed(unknown_server(name, names())))
}

fn failed(name: &str, error: &LoginError) -> CommandError {
    let exit = match error {
        LoginError::Config(_) => Exit::Config,
        LoginError::Unreachable(_) => Exit::Unreachable,
        LoginError::NoUrl
        | LoginError::NotAsked(_)
        | LoginError::Unusable(_)
        | LoginError::Denied(_)
        | LoginError::Late(_)
        | LoginError::Store(_) => Exit::Failed,
    };
    CommandError::new(exit, format!("{name}: {error}"))
}

/// Opens the URL with the system's browser. The URL was also printed, so a failure is only a warning.
pub(super) fn open_browser(url: &str) {
    let opener = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let mut command = Command::new(opener);
    command.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if let Err(error) = command.spawn() {
        logging::print_line(format_args!("warning: cannot open a browser ({opener}: {error})"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cli_3_repeated_traceback_is_shown_once() {
        let line = |second: u32, line: &str| json!({"time": format!("2026-01-02T03:04:0{second}Z"), "line": line});
        let path =
            format!("File \"/{}/mcp/server/fastmcp.py\", line 3", "site-packages/".repeat(5));
        let attempt = |at: u32| [line(at, "Traceback:"), line(at, &path), line(at, "KeyError")];
        let lines =
            [[line(0, "ready")].to_vec(), attempt(1).to_vec(), attempt(2).to_vec()].concat();
        let times = Times::new(Some(TimeStyle::Utc), false);
        let drawn = folded(&lines, &times, Some(80));
        assert!(
            drawn.ends_with(
                "2026-01-02T03:04:02.000Z  KeyError\n(2 times, first at 2026-01-02T03:04:01.000Z)\n"
            ),
            "{drawn}"
        );
        assert_eq!(drawn.matches("Traceback").count(), 1, "{drawn}");
        let numbered: Vec<_> =
            (1..4).map(|at| line(at, &format!("see /logs/1{at}-debug-0.log"))).collect();
        let drawn_numbered = folded(&numbered, &times, None);
        assert!(
            drawn_numbered.contains("(3 times, apart from numbers, first at "),
            "{drawn_numbered}"
        );
        assert_eq!(drawn_numbered.lines().count(), 2, "{drawn_numbered}");
        assert!(
            drawn.contains(path.split(' ').nth(1).unwrap()),
            "the path is in one piece: {drawn}"
        );
    }

    #[test]
    fn wrapped_log_line_is_indented_after_its_time() {
        let entry =
            json!({"time": "2026-01-02T03:04:05.678Z", "line": "one\ntwo three four five six"});
        let times = Times::new(Some(TimeStyle::Utc), false);
        let whole = "2026-01-02T03:04:05.678Z  one\\u{a}two three four five six";
        assert_eq!(shown(&entry, &times, None), whole);
        let wrapped = shown(&entry, &times, Some(48));
        let mut lines = wrapped.lines().skip(1);
        assert!(
            lines.all(|line| line.starts_with(&" ".repeat(26)) && line.len() <= 48),
            "{wrapped}"
        );
        let ages = Times::new(Some(TimeStyle::Relative), false);
        assert!(shown(&entry, &ages, None).contains(" ago  one"));
    }
}
