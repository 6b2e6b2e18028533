//! `mcpproxy status`: shows the state of the running proxy on one screen.

use crate::args::Global;
use crate::backend::{Backend, target};
use crate::commands::policy::seen_tools;
use crate::commands::upstream::stored_tools;
use crate::error::{CommandError, Exit};
use crate::format::{counted, list, nonconforming_items, text};
use crate::http_client::HttpClient;
use crate::output::{Output, Paragraph, of_state};
use crate::table::{TableView, cell, cut_middle, whole_cell};
use crate::terminal_safe::{argument, joined, line};
use crate::{hints, logging, output, running_proxy, start_proxy};
use mcpproxy_config::file::Loaded;
use mcpproxy_config::problem::Severity;
use mcpproxy_config::{Config, file};
use mcpproxy_policy::rules::RulesMode;
use mcpproxy_runtime::os::space;
use mcpproxy_server as server;
use serde_json::{Value, json};
use std::fmt::Write as _;
use unicode_width::UnicodeWidthStr;

/// Width of the label column.
const LABEL: usize = 11;
/// Width at a terminal for the number of tools beside a server's name.
const MAX_TOOLS: usize = 11;
/// Width that a server's name may have on any terminal.
const MIN_NAME: usize = 24;

/// Facts known from the config and not from the proxy.
struct LocalFacts {
    /// Path of the config file.
    config: String,
    /// Size of the log in bytes.
    activity_bytes: u64,
    warnings: Vec<String>,
}

/// Runs the command; exit code 3 if no proxy is running.
pub(super) fn run(alive: bool, global: &Global, output: &Output) -> Result<(), CommandError> {
    let runtime = server::local_runtime().map_err(CommandError::failed)?;
    if alive {
        return match runtime.block_on(is_alive(global)) {
            true => output.print("{\"alive\":true}", |_| "alive".to_owned()),
            false => Err(CommandError::new(Exit::Unreachable, "no mcpproxy responds")),
        };
    }
    // If a named file does not exist, the proxy of a different config would be found.
    start_proxy::named_file_exists(global)?;
    let loaded = match start_proxy::load(global, None) {
        Ok(loaded) => loaded,
        Err(failure) => return runtime.block_on(with_invalid_config(failure, global, output)),
    };
    let Some(client) = runtime.block_on(running_proxy::find_for(global, &loaded.config)) else {
        let status = not_running(&loaded, problems_of_start(global));
        output.print(&status.to_string(), |it| draw(it, output.view))?;
        let message = runtime.block_on(running_proxy::none_found(global, &loaded.config));
        return Err(CommandError::new(Exit::Unreachable, message));
    };
    let known = LocalFacts {
        config: loaded.path.display().to_string(),
        activity_bytes: space::used(&loaded.config.activity_folder()),
        warnings: warnings(&loaded),
    };
    let ProxyStatus { shown, is_config_rejected } = runtime.block_on(query(client, known))?;
    output.print(&shown.to_string(), |it| draw(it, output.view))?;
    match is_config_rejected {
        true => Err(CommandError::failed(
            "the config file, or a file that it names, is invalid, and the previous config stays in force: `mcpproxy \
             doctor` shows the problems",
        )),
        false => Ok(()),
    }
}

/// Checks whether a proxy answers at the configured or the announced address; the latter works with an invalid config.
/// Sends no API key, because the key in the file may have changed.
async fn is_alive(global: &Global) -> bool {
    let data = match start_proxy::load(global, None) {
        Ok(loaded) => {
            if running_proxy::configured(&loaded.config).without_key().is_mcpproxy().await {
                return true;
            }
            loaded.config.data_dir
        }
        Err(_) => start_proxy::data_dir(global),
    };
    running_proxy::announced(&data, "").await.is_some()
}

/// Shows the status if the config is invalid, which does not affect the running proxy. Shows the proxy's state if the
/// API key is known, and fails with the config's problems.
async fn with_invalid_config(
    failure: CommandError,
    global: &Global,
    output: &Output,
) -> Result<(), CommandError> {
    let data = start_proxy::data_dir(global);
    let file = file::locate(global.config.as_deref(), &start_proxy::variable).ok();
    let found = running_proxy::of_invalid_config(global).await;
    let errors = failure.problems.iter().filter(|it| it.severity == Severity::Error);
    let known = LocalFacts {
        config: file.map(|file| file.display().to_string()).unwrap_or_default(),
        activity_bytes: space::used(&data.join("activity")),
        warnings: errors
            .map(|problem| format!("config: {problem} (mcpproxy config check)"))
            .collect(),
    };
    let response = match found {
        Some(client) => query(client, known).await?.shown,
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
    output.print(&response.to_string(), |it| draw(it, output.view))?;
    logging::print_line(format_args!(
        "the mcpproxy running with {} keeps its previous config",
        line(&data.display().to_string())
    ));
    Err(CommandError { exit: Exit::Failed, ..failure })
}

/// Status of the running proxy.
struct ProxyStatus {
    shown: Value,
    /// Whether the config file, or a file that it names, is invalid, so that the previous config stays in force.
    is_config_rejected: bool,
}

/// Queries the running proxy.
async fn query(client: HttpClient, known: LocalFacts) -> Result<ProxyStatus, CommandError> {
    let place = (client.authority().to_owned(), client.mcp_url());
    let backend = Backend::Remote(client);
    let mut responses = Vec::new();
    for (segments, query) in [
        (&["status"][..], &[][..]),
        (&["servers"], &[]),
        (&["activity", "summary"], &[("period", Some("1h"))]),
        (&["config"], &[]),
    ] {
        responses.push(output::parse(backend.get(&target(segments, query)).await?.json()?)?);
    }
    let [status, servers, hour, config] = responses.as_slice() else {
        return Err(CommandError::failed("the proxy's response is incomplete"));
    };
    let mut response = running(known, &place, status, servers, hour);
    if let Some(members) = response.as_object_mut() {
        if let Some(keys) = config.pointer("/needs_restart") {
            members.insert("needs_restart".to_owned(), keys.clone());
        }
        // A mode that the file does not set is absent.
        let mode = text(config, "/standing/policy/mode");
        let mode = if mode.is_empty() { RulesMode::Enforce.as_str() } else { &*mode };
        members.insert("policy_mode".to_owned(), mode.into());
    }
    let is_config_rejected = config.pointer("/rejected").is_some_and(|it| !it.is_null());
    Ok(ProxyStatus { shown: response, is_config_rejected })
}

/// Problems of the config on this machine, as found by `config check`. Errors may prevent the next start.
fn problems_of_start(global: &Global) -> Vec<String> {
    let flags = start_proxy::flags(global, None);
    let checked = Config::check(global.config.as_deref(), &start_proxy::variable, &flags);
    let problems = checked.map_or_else(|problems| problems, |loaded| loaded.warnings);
    let shown = problems.iter().map(|problem| match problem.severity {
        Severity::Error => format!("config: {problem} (mcpproxy doctor)"),
        Severity::Warning => problem.to_string(),
    });
    shown.collect()
}

/// Status without a running proxy.
fn not_running(loaded: &Loaded, warnings: Vec<String>) -> Value {
    let config = &loaded.config;
    let folder = config.catalog().folder.unwrap_or_default();
    let (catalog, _) = seen_tools(config);
    let seen = catalog.load();
    let servers = config.servers.iter().map(|server| {
        let state = if server.upstream.enabled { "not running" } else { "disabled" };
        let tools = stored_tools(&folder, server);
        let quarantined = seen.quarantined(&server.name).len();
        json!({
            "name": &*server.name, "state": state, "tools": tools, "reason": "",
            "quarantined": quarantined,
        })
    });
    json!({
        "running": false, "version": env!("CARGO_PKG_VERSION"), "address": config.listen.to_string(),
        "config": loaded.path.display().to_string(), "servers": servers.collect::<Vec<_>>(),
        "policy_mode": config.rules.options.mode.as_str(),
        "activity_bytes": space::used(&config.activity_folder()), "warnings": warnings,
    })
}

fn running(
    known: LocalFacts,
    (address, url): &(String, String),
    status: &Value,
    servers: &Value,
    hour: &Value,
) -> Value {
    let number = |value: &Value, at: &str| value.pointer(at).and_then(Value::as_u64).unwrap_or(0);
    let (calls, errors) = (number(hour, "/total_count"), number(hour, "/error_count"));
    let rate = if calls == 0 { 0.0 } else { errors as f64 / calls as f64 };
    let mut warnings = known.warnings;
    // Servers and the problems of the config file on disk have warnings of their own.
    let has_own = |fault: &&Value| match &*text(fault, "/part") {
        "server" => true,
        "config" => !warnings.is_empty(),
        _ => false,
    };
    let faults: Vec<_> = list(status, "/faults").iter().filter(|it| !has_own(it)).collect();
    warnings.extend(faults.into_iter().map(|fault| {
        let about = [text(fault, "/part"), text(fault, "/server")].join(" ");
        format!("{}: {}", about.trim_end(), text(fault, "/cause"))
    }));
    let quarantine = |server: &Value| {
        let held = number(server, "/quarantined");
        let name = text(server, "/name");
        let tools = counted(held, "tool");
        let named = argument(&name);
        (held > 0)
            .then(|| format!("server {name}: {tools} in quarantine (mcpproxy tools diff {named})"))
    };
    let shown = list(servers, "/servers").iter();
    warnings.extend(shown.flat_map(|it| server_warning(it).into_iter().chain(quarantine(it))));
    let servers = list(servers, "/servers").iter().map(|server| {
        json!({
            "name": text(server, "/name"), "state": text(server, "/state"),
            "tools": number(server, "/tools"), "reason": text(server, "/reason"),
            "nonconforming": server.get("nonconforming"),
            "quarantined": number(server, "/quarantined"),
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

/// Warning for a server that is failed or needs a login, with the next command.
fn server_warning(server: &Value) -> Option<String> {
    let (name, state) = (text(server, "/name"), text(server, "/state"));
    match &*state {
        "failed" => Some(format!("server {name} has failed: mcpproxy doctor")),
        "needs-login" => {
            let word = argument(&name);
            Some(format!("server {name} needs a login: mcpproxy upstream login {word}"))
        }
        _ => None,
    }
}

fn warnings(loaded: &Loaded) -> Vec<String> {
    loaded.warnings.iter().map(ToString::to_string).collect()
}

fn draw(status: &Value, view: TableView) -> String {
    let mut shown = String::new();
    let values = Paragraph::new(view.width).indented(LABEL);
    let mut row = |label: &str, words: &str| {
        let _ = writeln!(shown, "{}", values.labeled(label, words));
    };
    let number = |at: &str| status.pointer(at).and_then(Value::as_u64).unwrap_or_default();
    let runs = status.pointer("/running") == Some(&Value::Bool(true));
    let (version, address) = (text(status, "/version"), text(status, "/address"));
    // Without the API key only the address is known.
    let has_details = status.pointer("/servers").is_some();
    match runs {
        true if !has_details => {
            let url = text(status, "/url");
            row("mcpproxy", &format!("running, MCP at {url}; no details without the api_key"));
        }
        true => {
            let up = duration(number("/uptime_seconds"));
            row("mcpproxy", &format!("{version}, up {up}, MCP at {}", text(status, "/url")));
        }
        false => {
            row("mcpproxy", &format!("{version}, not running (configured address: {address})"))
        }
    }
    row("config", &line(&text(status, "/config")));
    let servers = list(status, "/servers");
    let works = servers.iter().filter(|server| text(server, "/state") == "connected").count();
    if has_details {
        row("servers", &format!("{} ({works} connected)", servers.len()));
    }
    shown += &server_lines(servers, view);
    let mut row = |label: &str, words: &str| {
        let _ = writeln!(shown, "{}", values.labeled(label, words));
    };
    if runs && has_details {
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
    if text(status, "/policy_mode") == RulesMode::Shadow.as_str() {
        row("rules", "shadow: refusals are recorded, not enforced (policy.mode)");
    }
    row("log", &bytes(number("/activity_bytes")));
    let keys: Vec<_> = list(status, "/needs_restart").iter().filter_map(Value::as_str).collect();
    if !keys.is_empty() {
        row("restart", &format!("needed for {}", line(&keys.join(", "))));
    }
    let warnings = list(status, "/warnings");
    for warning in warnings {
        row("warning", &joined(&hints::commands(warning.as_str().unwrap_or_default())));
    }
    if warnings.is_empty() {
        row("warnings", "none");
    }
    shown
}

/// The lines of the servers, in columns: state, name, and the number of tools or a reason. At a terminal, a name that does not
/// fit is cut, and a reason that does not fit beside the name has lines of its own.
fn server_lines(servers: &[Value], TableView { width, colors }: TableView) -> String {
    let states = servers.iter().map(|it| text(it, "/state").width()).max().unwrap_or_default();
    let beside = LABEL + states + 2 + 2 + MAX_TOOLS;
    let name_of = |server: &Value| {
        let name = cell(&text(server, "/name"));
        let room = width.map(|width| width.saturating_sub(beside).max(MIN_NAME));
        room.map_or(name.clone(), |room| cut_middle(&name, room))
    };
    let names = servers.iter().map(|it| name_of(it).width()).max().unwrap_or_default();
    let below = |about: &str| {
        let longest = about.split(' ').map(UnicodeWidthStr::width).max().unwrap_or_default();
        let below = Paragraph::new(width).indented(LABEL + 2);
        if width.is_some_and(|width| longest <= width) { below.keeping_paths() } else { below }
    };
    let mut shown = String::new();
    for server in servers {
        let (state, name) = (text(server, "/state"), name_of(server));
        let about = about_server(server, width);
        let is_beside =
            width.is_none_or(|width| LABEL + states + 2 + names + 2 + about.width() <= width);
        let blanks = match is_beside && !about.is_empty() {
            true => " ".repeat(names - name.width() + 2),
            false => String::new(),
        };
        let state = colors.paint(&format!("{state:<states$}"), of_state(&state));
        let _ = match is_beside {
            true => writeln!(shown, "{:LABEL$}{state}  {name}{blanks}{about}", ""),
            false => {
                writeln!(shown, "{:LABEL$}{state}  {name}\n{}", "", below(&about).block(&about))
            }
        };
    }
    shown
}

/// Number of tools of a server, or the reason of its state, and its tools in quarantine or that do not conform.
fn about_server(server: &Value, width: Option<usize>) -> String {
    let (tools, state) = (text(server, "/tools"), text(server, "/state"));
    let reason = text(server, "/reason");
    let reason = if width.is_some() { cell(&reason) } else { whole_cell(&reason) };
    let about = match (&*state, reason.is_empty()) {
        ("connected", true) => counted(&tools, "tool"),
        ("not running", true) if tools != "0" => counted(&tools, "tool"),
        ("connected", false) => format!("{}; {reason}", counted(&tools, "tool")),
        // The state says so.
        ("disabled", _) => String::new(),
        (_, _) => reason,
    };
    let held = server.pointer("/quarantined").and_then(Value::as_u64).unwrap_or_default();
    let held = (held > 0).then(|| {
        let name = text(server, "/name");
        let named = argument(&name);
        let command = format!("mcpproxy tools diff {named}");
        format!("{held} quarantined ({})", hints::commands(&command))
    });
    let about = [about].into_iter().chain(held).chain(nonconforming_items(server, 1));
    about.filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ")
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

/// Formats a size with a binary unit.
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
    use crate::output::Colors;

    #[test]
    fn durations_and_sizes_are_short() {
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
    fn cli_3_status_shows_quarantined_tools() {
        let server = json!({"name": "s", "state": "connected", "tools": 3, "quarantined": 2});
        let view = TableView { width: None, colors: Colors::Plain };
        let shown = server_lines(&[server], view);
        assert!(shown.contains("3 tools; 2 quarantined (mcpproxy tools diff s)"), "{shown}");
    }

    #[test]
    fn cli_3_status_warns_about_unusable_servers_with_the_next_command() {
        let server = |name: &str, state: &str| json!({"name": name, "state": state});
        let servers = json!({"servers": [server("a", "connected"), server("b", "failed"),
            server("c d", "needs-login"), server("e", "disabled"), server("f", "connecting")]});
        let known = LocalFacts { config: String::new(), activity_bytes: 0, warnings: Vec::new() };
        let place = (String::new(), String::new());
        let status = running(known, &place, &Value::Null, &servers, &Value::Null);
        assert_eq!(
            status["warnings"],
            json!([
                "server b has failed: mcpproxy doctor",
                "server c d needs a login: mcpproxy upstream login 'c d'"
            ])
        );
        let shown = draw(&status, TableView { width: None, colors: Colors::Plain });
        assert!(shown.contains("warning    server b has failed: mcpproxy doctor"), "{shown}");
        assert!(!shown.contains("none"), "{shown}");
    }

    #[test]
    fn status_says_that_rules_are_not_enforced() {
        let shown = |mode: &str| {
            let status = json!({"running": true, "servers": [], "policy_mode": mode});
            draw(&status, TableView { width: None, colors: Colors::Plain })
        };
        let row = "rules      shadow: refusals are recorded, not enforced (policy.mode)\n";
        assert!(shown("shadow").contains(row), "{}", shown("shadow"));
        assert!(!shown("enforce").contains("rules"), "{}", shown("enforce"));
    }

    #[test]
    fn status_fits_the_terminal_with_long_names_and_reasons() {
        for name in crate::output::tests::names() {
            let why = format!("command '/{}/server' was not found", "a-folder/".repeat(20));
            let status = json!({"running": true, "version": "0.1.0", "address": "a", "url": "http://a/mcp",
                "config": format!("/{}/mcp_config.json", "a-folder/".repeat(20)), "servers": [
                {"name": name, "state": "failed", "tools": 0, "reason": why},
                {"name": "files", "state": "connected", "tools": 3, "reason": ""}],
                "warnings": [format!("{why}\nsessions   99")]});
            let keeps = ["failed", "command '/a-", "connected", "files", "3 tools"];
            crate::output::tests::fits(|output| draw(&status, output.view), &keeps);
            let view = TableView { width: Some(50), colors: Colors::Plain };
            let narrow = draw(&status, view);
            assert!(narrow.lines().all(|line| line.width() <= 50), "{narrow}");
            assert_eq!(narrow.lines().filter(|it| it.starts_with("sessions")).count(), 1);
        }
    }

    #[test]
    fn url_in_a_reason_stays_whole() {
        let url = format!("https://registry.example/{}", "x".repeat(47));
        let servers =
            [json!({"name": "s", "state": "failed", "reason": format!("404: it is {url}")})];
        let view = TableView { width: Some(80), colors: Colors::Plain };
        let expected = format!("{:LABEL$}failed  s\n{:13}404: it is\n{:8}{url}\n", "", "", "");
        assert_eq!(server_lines(&servers, view), expected);
    }

    #[test]
    fn tool_counts_are_aligned_and_reasons_are_truncated_at_a_terminal() {
        let lines_at = |width, servers: &[(&str, &str)]| {
            let servers = servers.iter().map(|(name, reason)| {
                json!({"name": name, "state": "connected", "tools": 3, "reason": reason})
            });
            server_lines(&servers.collect::<Vec<_>>(), TableView { width, colors: Colors::Plain })
        };
        let name = "customer-analytics-warehouse-production";
        let whole = lines_at(Some(80), &[(name, "")]);
        assert_eq!(whole, format!("{:LABEL$}connected  {name}  3 tools\n", ""));
        let server_of = |name: &str, reason: &str| lines_at(None, &[(name, reason)]);
        let both = lines_at(Some(80), &[("files", ""), ("\u{65e5}\u{672c}\u{8a9e}", "")]);
        let columns: Vec<_> =
            both.lines().map(|line| line.split("3 tools").next().unwrap().width()).collect();
        assert!(matches!(columns[..], [one, other] if one == other), "{both}");
        let long = "words ".repeat(60);
        let shown = lines_at(Some(80), &[("files", &long), ("git", "")]);
        let [first, below, .., last] = shown.lines().collect::<Vec<_>>()[..] else {
            panic!("{shown}")
        };
        assert!(first.ends_with("  files") && last.ends_with("  git    3 tools"), "{shown}");
        assert!(below.starts_with(&format!("{:1$}3 tools; words", "", LABEL + 2)), "{shown}");
        assert!(shown.contains(" words…\n"), "{shown}");
        assert!(
            server_of("files", &long).contains(long.trim()),
            "output to a pipe is not truncated"
        );
        assert!(
            server_of(&"n".repeat(45), "").contains(&"n".repeat(45)),
            "output to a pipe is not truncated"
        );
    }
}
