//! `mcpproxy status`: how the proxy that runs is, on one screen.

use std::fmt::Write as _;
use std::path::PathBuf;

use serde_json::{Value, json};
use unicode_width::UnicodeWidthStr as _;

use crate::cli::args::Global;
use crate::cli::backend::{Backend, target};
use crate::cli::colours::of_state;
use crate::cli::counted::counted;
use crate::cli::error::CommandError;
use crate::cli::exit_code::Exit;
use crate::cli::http_client::HttpClient;
use crate::cli::json_pointer::{list, text};
use crate::cli::output::{self, Output};
use crate::cli::paragraph::Paragraph;
use crate::cli::table::{TableView, cell, cut};
use crate::cli::terminal_safe::{joined, line};
use crate::cli::{load_config, logging, running_proxy};
use crate::config::file::{self, Loaded};
use crate::config::problem::Severity;
use crate::os::space;
use crate::server;

/// Columns of a reason; `upstream list` has the rest.
const REASON: usize = 100;
/// Columns before what is told.
const LABEL: usize = 11;
/// Columns of a server's state, and of its name.
const STATE: usize = 12;
const NAME: usize = 24;
/// Where a server's reason does not fit beside its name any more.
const NARROW: usize = 72;

/// What is known of a config beside what the proxy says.
struct KnownHere {
    /// The file.
    config: String,
    /// Bytes of the log.
    activity_bytes: u64,
    warnings: Vec<String>,
}

/// Runs the command; exit code 3 if no proxy runs.
pub(super) fn run(alive: bool, global: &Global, output: &Output) -> Result<(), CommandError> {
    let runtime = server::local_runtime().map_err(CommandError::failed)?;
    if alive {
        return match runtime.block_on(is_alive(global)) {
            true => output.print("{\"alive\":true}", |_| "alive".to_owned()),
            false => Err(CommandError::new(Exit::Unreachable, "no mcpproxy answers")),
        };
    }
    let loaded = match load_config::load(global, None) {
        Ok(loaded) => loaded,
        Err(failure) => return runtime.block_on(despite(failure, global, output)),
    };
    let Some(client) = runtime.block_on(running_proxy::find(&loaded.config)) else {
        output.print(&nobody(&loaded).to_string(), |it| draw(it, output.view))?;
        let words =
            format!("no mcpproxy runs on {}: `mcpproxy serve` starts one", loaded.config.listen);
        return Err(CommandError::new(Exit::Unreachable, words));
    };
    let known = KnownHere {
        config: loaded.path.display().to_string(),
        activity_bytes: space::used(&loaded.config.activity_folder()),
        warnings: warnings(&loaded),
    };
    let answer = runtime.block_on(told(client, known))?.to_string();
    output.print(&answer, |it| draw(it, output.view))
}

/// Whether a proxy answers where the config says, or where one has written that it does: of a config that cannot be used that
/// is what is left. It is asked without the key, since another may be in the file by now.
async fn is_alive(global: &Global) -> bool {
    let data = match load_config::load(global, None) {
        Ok(loaded) => {
            if running_proxy::configured(&loaded.config).without_key().is_mcpproxy().await {
                return true;
            }
            loaded.config.data_dir
        }
        Err(_) => data_folder(global),
    };
    running_proxy::announced(&data, "").await.is_some()
}

/// Where the config cannot be used: that a proxy which runs does not mind. What it says is shown, as far as the key is
/// known, and the config is the fault.
async fn despite(
    failure: CommandError,
    global: &Global,
    output: &Output,
) -> Result<(), CommandError> {
    let data = data_folder(global);
    let file = file::locate(global.config.as_deref(), &load_config::variable).ok();
    let key = load_config::variable("MCPPROXY_API_KEY").filter(|key| !key.is_empty());
    let key = key.or_else(|| file::api_key_in(&file::text(file.as_deref()?).ok()?));
    let key = key.unwrap_or_default();
    let knows = match key.is_empty() {
        true => None,
        false => running_proxy::announced(&data, &key).await,
    };
    let errors = failure.problems.iter().filter(|it| it.severity == Severity::Error);
    let known = KnownHere {
        config: file.map(|file| file.display().to_string()).unwrap_or_default(),
        activity_bytes: space::used(&data.join("activity")),
        warnings: errors.map(|problem| format!("config: {problem}")).collect(),
    };
    let answer = match knows {
        Some(client) => told(client, known).await?,
        None => {
            let Some(client) = running_proxy::announced(&data, "").await else {
                return Err(failure);
            };
            json!({
                "running": true, "address": client.authority(), "url": client.mcp_url(),
                "config": known.config, "activity_bytes": known.activity_bytes,
                "warnings": known.warnings,
            })
        }
    };
    output.print(&answer.to_string(), |it| draw(it, output.view))?;
    logging::say(format_args!(
        "the mcpproxy that runs with {} goes on by the config that it has read before",
        line(&data.display().to_string())
    ));
    Err(CommandError { exit: Exit::Failed, ..failure })
}

/// The folder of data by a config that cannot be used.
fn data_folder(global: &Global) -> PathBuf {
    let file = file::locate(global.config.as_deref(), &load_config::variable).ok();
    let text = file.and_then(|file| file::text(&file).ok()).unwrap_or_default();
    file::data_dir_in(&text, &load_config::variable, &load_config::flags(global, None))
}

/// What the proxy says.
async fn told(client: HttpClient, known: KnownHere) -> Result<Value, CommandError> {
    let place = (client.authority().to_owned(), client.mcp_url());
    let backend = Backend::Remote(client);
    let mut answers = Vec::new();
    for (segments, query) in [
        (&["status"][..], &[][..]),
        (&["servers"], &[]),
        (&["activity", "summary"], &[("period", Some("1h"))]),
        (&["config"], &[]),
    ] {
        answers.push(output::parse(backend.get(&target(segments, query)).await?.json()?)?);
    }
    let [status, servers, hour, config] = answers.as_slice() else {
        return Err(CommandError::failed("the answer is not complete"));
    };
    let mut answer = running(known, &place, status, servers, hour);
    if let (Some(answer), Some(keys)) = (answer.as_object_mut(), config.pointer("/needs_restart")) {
        answer.insert("needs_restart".to_owned(), keys.clone());
    }
    Ok(answer)
}

/// What is known without a proxy.
fn nobody(loaded: &Loaded) -> Value {
    let config = &loaded.config;
    let servers = config.servers.iter().map(|server| {
        let state = if server.upstream.enabled { "not running" } else { "disabled" };
        json!({"name": &*server.name, "state": state, "tools": 0, "reason": ""})
    });
    json!({
        "running": false, "version": env!("CARGO_PKG_VERSION"), "address": config.listen.to_string(),
        "config": loaded.path.display().to_string(), "servers": servers.collect::<Vec<_>>(),
        "activity_bytes": space::used(&config.activity_folder()), "warnings": warnings(loaded),
    })
}

fn running(
    known: KnownHere,
    (address, url): &(String, String),
    status: &Value,
    servers: &Value,
    hour: &Value,
) -> Value {
    let number = |value: &Value, at: &str| value.pointer(at).and_then(Value::as_u64).unwrap_or(0);
    let (calls, errors) = (number(hour, "/total_count"), number(hour, "/error_count"));
    let rate = if calls == 0 { 0.0 } else { errors as f64 / calls as f64 };
    let of_servers = |fault: &&Value| text(fault, "/part") != "server";
    let faults = list(status, "/faults").iter().filter(of_servers);
    let mut warnings = known.warnings;
    warnings.extend(faults.map(|fault| {
        let about = [text(fault, "/part"), text(fault, "/server")].join(" ");
        format!("{}: {}", about.trim_end(), text(fault, "/cause"))
    }));
    let servers = list(servers, "/servers").iter().map(|server| {
        json!({
            "name": text(server, "/name"), "state": text(server, "/state"),
            "tools": number(server, "/tools"), "reason": text(server, "/reason"),
        })
    });
    json!({
        "running": true, "version": text(status, "/version"), "address": address, "url": url,
        "uptime_seconds": number(status, "/uptime_seconds"),
        "config": known.config, "servers": servers.collect::<Vec<_>>(),
        "last_hour": {
            "calls": calls, "errors": errors, "error_rate": rate,
            "blocked": number(hour, "/blocked_count"), "rejected": number(hour, "/rejected_count"),
        },
        "approvals_waiting": number(status, "/load/approvals"),
        "sessions": number(status, "/load/sessions"),
        "activity_bytes": known.activity_bytes, "warnings": warnings,
    })
}

fn warnings(loaded: &Loaded) -> Vec<String> {
    loaded.warnings.iter().map(ToString::to_string).collect()
}

fn draw(status: &Value, view: TableView) -> String {
    let mut shown = String::new();
    let values = Paragraph::new(view.width).behind(LABEL);
    let mut row = |label: &str, words: &str| {
        let _ = writeln!(shown, "{}", values.labelled(label, words));
    };
    let number = |at: &str| status.pointer(at).and_then(Value::as_u64).unwrap_or_default();
    let runs = status.pointer("/running") == Some(&Value::Bool(true));
    let (version, address) = (text(status, "/version"), text(status, "/address"));
    // Without the key it says no more than that it is there.
    let is_told = status.pointer("/servers").is_some();
    match runs {
        true if !is_told => {
            let url = text(status, "/url");
            row(
                "mcpproxy",
                &format!("runs, MCP at {url}; it tells more where the api_key is known"),
            );
        }
        true => {
            let up = duration(number("/uptime_seconds"));
            row("mcpproxy", &format!("{version}, up {up}, MCP at {}", text(status, "/url")));
        }
        false => row("mcpproxy", &format!("{version}, not running (it would listen on {address})")),
    }
    row("config", &line(&text(status, "/config")));
    let servers = list(status, "/servers");
    let works = servers.iter().filter(|server| text(server, "/state") == "connected").count();
    if is_told {
        row("servers", &format!("{} ({works} connected)", servers.len()));
    }
    servers.iter().for_each(|it| shown += &server_line(it, view));
    let mut row = |label: &str, words: &str| {
        let _ = writeln!(shown, "{}", values.labelled(label, words));
    };
    if runs && is_told {
        let rate = status.pointer("/last_hour/error_rate").and_then(Value::as_f64);
        let rate = rate.unwrap_or_default() * 100.0;
        let [calls, blocked, rejected] =
            ["calls", "blocked", "rejected"].map(|it| number(&format!("/last_hour/{it}")));
        row(
            "last hour",
            &format!(
                "{}, {rate:.1} % errors, {blocked} blocked, {rejected} rejected",
                counted(calls, "call")
            ),
        );
        row("approvals", &format!("{} waiting", number("/approvals_waiting")));
        row("sessions", &number("/sessions").to_string());
    }
    row("log", &bytes(number("/activity_bytes")));
    let keys: Vec<_> = list(status, "/needs_restart").iter().filter_map(Value::as_str).collect();
    if !keys.is_empty() {
        row("restart", &format!("needed for {}", line(&keys.join(", "))));
    }
    let warnings = list(status, "/warnings");
    for warning in warnings {
        row("warning", &joined(warning.as_str().unwrap_or_default()));
    }
    if warnings.is_empty() {
        row("warnings", "none");
    }
    shown
}

/// A server's line: its state, its name, and how many tools it has, or why none.
fn server_line(server: &Value, TableView { width, colours }: TableView) -> String {
    let (tools, state) = (text(server, "/tools"), text(server, "/state"));
    let reason = cut(&cell(&text(server, "/reason")), REASON);
    let about = match (&*state, reason.is_empty()) {
        ("connected", true) => counted(&tools, "tool"),
        ("connected", false) => format!("{}; {reason}", counted(&tools, "tool")),
        (_, _) => reason,
    };
    let name = cell(&text(server, "/name"));
    let name = if width.is_some() { cut(&name, NAME) } else { name };
    let blanks = " ".repeat(NAME.saturating_sub(name.width()));
    let state = colours.paint(&format!("{state:<STATE$}"), of_state(&state));
    let head = format!("{:LABEL$}{state} {name}", "");
    let beside = Paragraph::new(width);
    let told = match width {
        _ if about.is_empty() => head,
        Some(width) if width < NARROW => {
            format!("{head}\n{}", beside.behind(LABEL + 2).block(&about))
        }
        Some(_) | None => {
            let about = beside.behind(LABEL + STATE + 1 + NAME + 1).text(&about);
            format!("{head}{blanks} {about}")
        }
    };
    told + "\n"
}

fn duration(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min"),
        (0, _, _) => format!("{hours} h {minutes} min"),
        (_, _, _) => format!("{days} d {hours} h"),
    }
}

/// Bytes in the unit that people read.
pub(super) fn bytes(bytes: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match UNITS.iter().find(|(_, size)| bytes >= *size) {
        Some((unit, size)) => format!("{:.1} {unit}", bytes as f64 / *size as f64),
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::colours::Colours;

    #[test]
    fn times_and_sizes_are_short() {
        for (seconds, expected) in
            [(7, "7 s"), (61, "1 min"), (3_700, "1 h 1 min"), (200_000, "2 d 7 h")]
        {
            assert_eq!(duration(seconds), expected);
        }
        for (size, expected) in [(7, "7 bytes"), (1536, "1.5 KiB"), (1 << 21, "2.0 MiB")] {
            assert_eq!(bytes(size), expected);
        }
    }

    #[test]
    fn it_fits_the_terminal_whatever_servers_are_called_and_say() {
        for name in crate::cli::output::tests::names() {
            let why = format!("command '/{}/server' was not found", "a-folder/".repeat(20));
            let status = json!({"running": true, "version": "0.1.0", "address": "a", "url": "http://a/mcp",
                "config": format!("/{}/mcp_config.json", "a-folder/".repeat(20)), "servers": [
                {"name": name, "state": "failed", "tools": 0, "reason": why},
                {"name": "files", "state": "connected", "tools": 3, "reason": ""}],
                "warnings": [format!("{why}\nsessions   99")]});
            let keeps = ["failed", "command '/a-", "connected", "files", "3 tools"];
            crate::cli::output::tests::fits(|output| draw(&status, output.view), &keeps);
            let view = TableView { width: Some(50), colours: Colours::Plain };
            let narrow = draw(&status, view);
            assert!(narrow.lines().all(|line| line.width() <= 50), "{narrow}");
            assert_eq!(narrow.lines().filter(|it| it.starts_with("sessions")).count(), 1);
        }
    }

    #[test]
    fn the_tools_of_servers_stand_below_each_other_and_a_reason_that_is_cut_says_so() {
        let server_of = |name: &str, reason: &str| {
            let told = json!({"name": name, "state": "connected", "tools": 3, "reason": reason});
            server_line(&told, TableView { width: None, colours: Colours::Plain })
        };
        let column = |line: &str| line.split("3 tools").next().unwrap().width();
        assert_eq!(column(&server_of("files", "")), column(&server_of("\u{65e5}\u{672c}", "")));
        let long = server_of("files", &"words ".repeat(60));
        assert!(long.ends_with(" words…\n"), "{long}");
        assert!(server_of(&"n".repeat(45), "").contains(&"n".repeat(45)), "a pipe gets all of it");
    }
}
