//! `mcpproxy doctor`: runs health checks and shows for each failure the command that fixes it.
//!
//! Read-only except for `--fix`, which only repairs permissions. Checks config, permissions, clock, disk, the running
//! proxy and the servers. Servers are queried from the running proxy; if none runs, they are started, listed and
//! stopped again.

use crate::args::Global;
use crate::backend::{Backend, fetch_all, target};
use crate::commands::doctor::probes::{CONFIG_PATH, Diagnosis, DiagnosisKind, edit};
use crate::commands::policy::seen_tools;
use crate::commands::status::bytes;
use crate::commands::tool_names::StoredTools;
use crate::commands::upstream::NO_CONNECTION;
use crate::error::CommandError;
use crate::format::{counted, fold_repeats, list, nonconforming_items, second_connection, text};
use crate::http_client::HttpClient;
use crate::output::{Output, Paragraph, of_state};
use crate::server_state;
use crate::server_state::{ServerTrial, try_servers};
use crate::table::TableView;
use crate::terminal_safe::{argument, line, quoted};
use crate::{hints, logging, output, running_proxy, start_proxy};
use mcpproxy_config::Config;
use mcpproxy_config::file::Loaded;
use mcpproxy_config::problem::{Problem, Severity};
use mcpproxy_config::rule_files::RULE_FILES;
use mcpproxy_policy::identity::{TokenFile, TokenFileError};
use mcpproxy_policy::intent::Unannotated;
use mcpproxy_runtime::io::egress_proxy::EgressEnvironment;
use mcpproxy_runtime::os::{private, space, state_file};
use mcpproxy_server as server;
use mcpproxy_upstream::stderr_log;
use mcpproxy_upstream::supervisor::Status;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::cell::LazyCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, SystemTime};
use tokio::runtime::LocalRuntime;
use unicode_width::UnicodeWidthStr as _;

mod probes;

/// Widths of the columns "outcome" and "check".
const OUTCOME: usize = 8;
const CHECK: usize = 8;

/// Runs all checks; exit code 1 if one fails.
pub(super) fn run(fix: bool, global: &Global, output: &Output) -> Result<(), CommandError> {
    let _log = logging::start_quiet(global);
    start_proxy::named_file_exists(global)?;
    let flags = start_proxy::flags(global, None);
    let mut found = Vec::new();
    let checked = Config::check(global.config.as_deref(), &start_proxy::variable, &flags);
    config(&checked, &mut found);
    // Problems on this machine do not prevent the other checks.
    let loaded = match checked {
        Ok(loaded) => Some(loaded),
        Err(_) => Config::load(global.config.as_deref(), &start_proxy::variable, &flags).ok(),
    };
    if let Some(loaded) = loaded {
        let of_tls = probes::check_certificates(&loaded.config, SystemTime::now());
        // A certificate problem is reported once, with its fix.
        found.retain(|it| !of_tls.iter().any(|of_tls| it.text.ends_with(&of_tls.text)));
        found.extend(of_tls);
        let environment = EgressEnvironment::of_process();
        found.extend(probes::check_egress(&loaded.config, environment, &start_proxy::variable));
        rights(&loaded, fix, &mut found);
        for problem in StoredTools::new(&loaded.config).unmatched_settings() {
            found.push(Diagnosis::new(DiagnosisKind::Odd, "config", problem.to_string()));
        }
        found.extend(tokens(&loaded));
        found.extend(fleet_files(&loaded));
        found.push(clock(&loaded, SystemTime::now()));
        found.push(disk(&loaded));
        let runtime = server::local_runtime().map_err(CommandError::failed)?;
        let running = runtime.block_on(running_proxy::find(&loaded.config));
        let running = running.filter(|client| runtime.block_on(client.is_mcpproxy()));
        let silent_process = running_proxy::announced_process(&loaded.config);
        let address = running.as_ref().map(HttpClient::address);
        found.push(probes::check_port(&loaded.config.listen, address, silent_process));
        let running = running.map(Backend::Remote);
        found.extend(running.as_ref().map(|backend| check_running(backend, &runtime)));
        // The status is read once, and only after the log is verified, because it also reports damage that was
        // repaired.
        let status =
            LazyCell::new(|| running.as_ref().map(|backend| running_status(backend, &runtime)));
        let known = || status.as_ref().and_then(|status| status.as_ref().ok());
        found.push(probes::check_log(&loaded, running.as_ref(), known, &runtime));
        found.extend(known().map(|status| rules(status, &found)).unwrap_or_default());
        // The check is skipped if embeddings are not configured.
        if loaded.config.search.embeddings.is_some() {
            found.extend(status.as_ref().map(search).unwrap_or_default());
        }
        servers(loaded, running.as_ref(), &runtime, &mut found)?;
    } else {
        let text = "nothing else was checked, because the config is invalid; a running mcpproxy keeps its previous config";
        found.push(Diagnosis::new(DiagnosisKind::Odd, "server", text.to_owned()));
    }
    let failed = found.iter().filter(|it| it.outcome == DiagnosisKind::Wrong);
    // The text of a check of a server begins with its name.
    let failed: Vec<_> = failed
        .map(|it| match it.text.split_once(": ") {
            Some((server, _)) if it.check == "server" => format!("server {server}"),
            Some(_) | None => it.check.to_owned(),
        })
        .collect();
    let wrong = failed.len();
    let findings: Vec<Value> = found.iter().map(Diagnosis::json).collect();
    let answer = json!({"ok": wrong == 0, "wrong": wrong, "findings": findings});
    output.print(&answer.to_string(), |answer| draw(answer, output.view))?;
    match wrong {
        0 => Ok(()),
        wrong => {
            let failed = line(&failed.join(", ")).into_owned();
            Err(CommandError::failed(format!("{} failed: {failed}", counted(wrong, "check"))))
        }
    }
}

fn draw(answer: &Value, TableView { width, colors }: TableView) -> String {
    let mut shown = String::new();
    let [text_indent, fix_indent] = [OUTCOME + 1 + CHECK + 1, OUTCOME + 1 + CHECK + 3];
    let [text_at, fix_at] =
        [text_indent, fix_indent].map(|at| Paragraph::new(width).indented(at).keeping_paths());
    for finding in list(answer, "/findings") {
        let [outcome, check, finding_text, fix] =
            ["/outcome", "/check", "/text", "/mend"].map(|at| text(finding, at));
        let outcome = colors.paint(&format!("{outcome:<OUTCOME$}"), of_state(&outcome));
        let finding_text = text_at.text(&line(&finding_text));
        let _ = writeln!(shown, "{outcome} {check:<CHECK$} {finding_text}");
        for logged in list(finding, "/lines") {
            let logged = fix_at.text(&line(&text(logged, "")));
            let _ = writeln!(shown, "{:indent$} | {logged}", "", indent = OUTCOME + CHECK + 1);
        }
        if !fix.is_empty() {
            // Split only between two commands, so that each can be copied.
            let fix = hints::commands(&fix);
            let mut fix = line(&fix);
            if width.is_some_and(|width| fix_indent + fix.width() > width) {
                for word in ["then", "or:"] {
                    let next = format!(",\n{:fix_indent$}{word}", "");
                    fix = fix.replace(&format!(", {word}"), &next).into();
                }
            }
            let _ = writeln!(shown, "{:indent$} → {fix}", "", indent = OUTCOME + CHECK + 1);
        }
    }
    shown
}

/// Earliest plausible clock reading: start of 2026 in Unix seconds.
const NOT_BEFORE: u64 = 1_767_225_600;
/// Tolerated clock skew in file times.
const AHEAD: Duration = Duration::from_secs(120);
/// Free bytes below which the disk check fails.
const TOO_LITTLE: u64 = 100 * 1024 * 1024;
/// Free bytes below which the disk check warns.
const LITTLE: u64 = 1024 * 1024 * 1024;
/// Name of the disk check.
const DISK: &str = "disk";
/// Permissions that the data directory should have.
const MODE: &str = "700";

/// Checks the config, including problems on this machine.
fn config(checked: &Result<Loaded, Vec<Problem>>, found: &mut Vec<Diagnosis>) {
    const CHECK: &str = "config";
    let problems = match checked {
        Ok(loaded) => {
            let missing = if loaded.path.exists() { "" } else { " (missing: defaults apply)" };
            let count = loaded.config.servers.len();
            let text = format!("{}{missing}: {}", loaded.path.display(), counted(count, "server"));
            found.push(Diagnosis::fine(CHECK, text));
            &loaded.warnings
        }
        Err(problems) => problems,
    };
    for problem in problems {
        // Permissions have a separate check.
        let of_file = problem.file.is_some() && problem.place.is_none();
        match problem.severity {
            Severity::Warning if of_file => {}
            Severity::Warning => {
                let is_of_rules = problem.key == RULE_FILES;
                let fix = if is_of_rules { fix(problem) } else { String::new() };
                let odd = Diagnosis::new(DiagnosisKind::Odd, CHECK, problem.to_string());
                found.push(Diagnosis { fix, ..odd });
            }
            Severity::Error => {
                let fix = fix(problem);
                found.push(Diagnosis::wrong(CHECK, problem.to_string(), fix));
            }
        }
    }
}

/// Fix for a config error, which is to edit the file, or to move it aside if it cannot be edited.
fn fix(problem: &Problem) -> String {
    let Some(path) = &problem.file else {
        return format!("correct or unset {}", problem.key);
    };
    let copy = state_file::copy_path(path);
    if copy.exists() {
        return format!("cp -p {} {}", word(&copy), word(path));
    }
    let (file, aside) = (path.display().to_string(), format!("{}.aside", path.display()));
    // Names that cannot be quoted are shown unquoted.
    let [file, aside] = [&file, &aside].map(|it| quoted(it).unwrap_or(Cow::Borrowed(it.as_str())));
    let can_be_edited = problem.place.is_some()
        || !problem.key.is_empty()
        || fs::metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound);
    match can_be_edited {
        true => edit(&file),
        // The file is a directory, binary data, or far too large.
        false => format!("mv {file} {aside} && mcpproxy init, or restore a backup"),
    }
}

/// Checks the permissions of other users on config and data.
fn rights(loaded: &Loaded, fix: bool, found: &mut Vec<Diagnosis>) {
    const CHECK: &str = "rights";
    let data = &loaded.config.data_dir;
    let entries = fs::read_dir(data).into_iter().flatten().flatten().map(|entry| entry.path());
    let ours = [
        "activity",
        "catalog",
        "address",
        "stderr",
        "oauth",
        "tokens",
        "results",
        "fleet",
        "embeddings",
    ];
    let is_own_entry = |path: &std::path::PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        ours.iter().any(|ours| name.starts_with(ours))
    };
    let config = (loaded.path.clone(), "600");
    let folders = std::iter::once(data.clone()).chain(entries.filter(is_own_entry));
    let folders = folders.map(|path| {
        let mode = if path.is_dir() { MODE } else { "600" };
        (path, mode)
    });
    let before = found.len();
    for (path, mode) in std::iter::once(config).chain(folders) {
        let Some(wide) = private::wider(&path) else { continue };
        let text = format!("{} is accessible to others (mode {wide:03o})", path.display());
        let command = format!("chmod {mode} {}", word(&path));
        let fixed = fix.then(|| private::restrict(&path));
        found.push(match fixed {
            Some(Ok(())) if private::wider(&path).is_none() => {
                Diagnosis::new(DiagnosisKind::Fixed, CHECK, text)
            }
            Some(Err(error)) => Diagnosis::wrong(CHECK, format!("{text}: {error}"), command),
            Some(Ok(())) | None => Diagnosis::wrong(CHECK, text, command),
        });
    }
    if found.len() == before {
        found.push(Diagnosis::fine(CHECK, "config and data are accessible only to you"));
    }
}

/// Checks whether the agent token file is usable; `None` if the file does not exist.
fn tokens(loaded: &Loaded) -> Option<Diagnosis> {
    const CHECK: &str = "tokens";
    match TokenFile::new(&loaded.config.data_dir).load() {
        Ok(tokens) if tokens.is_empty() => None,
        Ok(tokens) => Some(Diagnosis::fine(CHECK, counted(tokens.len(), "agent token"))),
        Err(TokenFileError::Broken { file, reason, recovery }) => {
            let text = format!("{} is unusable: {reason}", file.display());
            Some(Diagnosis::wrong(CHECK, text, recovery))
        }
        Err(TokenFileError::Missing { file, recovery }) => {
            let text = format!("{} is missing, but its backup copy exists", file.display());
            Some(Diagnosis::wrong(CHECK, text, recovery))
        }
        Err(error) => Some(Diagnosis::wrong(CHECK, error.to_string(), "")),
    }
}

/// Reports state files of a fleet's node that cannot be used. The shared config is part of the config's check.
fn fleet_files(loaded: &Loaded) -> impl Iterator<Item = Diagnosis> {
    let errors = loaded.config.ledger().map(|ledger| ledger.unusable_files()).unwrap_or_default();
    errors.into_iter().map(|error| Diagnosis::wrong("fleet", error, ""))
}

/// Checks whether the clock is plausible.
fn clock(loaded: &Loaded, now: SystemTime) -> Diagnosis {
    const CHECK: &str = "clock";
    const CLOCK_FIX: &str = "timedatectl set-ntp true";
    let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    if since < NOT_BEFORE {
        return Diagnosis::wrong(CHECK, "the clock is years behind", CLOCK_FIX);
    }
    let files = [loaded.path.clone(), loaded.config.activity_folder()];
    let ahead = files.iter().find(|file| {
        let changed = fs::metadata(file).and_then(|it| it.modified());
        changed.is_ok_and(|changed| changed > now + AHEAD)
    });
    match ahead {
        Some(file) => {
            let text = format!("{} has a modification time in the future", file.display());
            Diagnosis::wrong(CHECK, text, CLOCK_FIX)
        }
        None => {
            let shown = jiff::Timestamp::try_from(now).map(|now| format!("{now:.0}"));
            Diagnosis::fine(CHECK, shown.unwrap_or_default())
        }
    }
}

/// Checks whether there is enough free disk space.
fn disk(loaded: &Loaded) -> Diagnosis {
    let data = &loaded.config.data_dir;
    let existing = data.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
    let kept = space::used(&loaded.config.activity_folder());
    match space::free(existing) {
        Err(error) => Diagnosis::wrong(DISK, format!("{}: {error}", existing.display()), ""),
        Ok(free) => disk_space(free, data, kept),
    }
}

/// Rates the free disk space at `data`, given the log's current size.
fn disk_space(free: u64, data: &Path, kept: u64) -> Diagnosis {
    const SPACE_FIX: &str = "free disk space, or lower activity.max_size_mb";
    let text = format!("{} free at {}, the log uses {}", bytes(free), data.display(), bytes(kept));
    match free {
        0..TOO_LITTLE => Diagnosis::wrong(DISK, text, SPACE_FIX),
        TOO_LITTLE..LITTLE => {
            Diagnosis { fix: SPACE_FIX.into(), ..Diagnosis::new(DiagnosisKind::Odd, DISK, text) }
        }
        LITTLE.. => Diagnosis::fine(DISK, text),
    }
}

/// Checks whether the running proxy uses its current config files.
fn check_running(backend: &Backend, runtime: &LocalRuntime) -> Diagnosis {
    const CHECK: &str = "running";
    let response = runtime.block_on(backend.get(&target(&["config"], &[])));
    let state = match response.and_then(|answer| output::parse(answer.json()?)) {
        Ok(state) => state,
        Err(error) => return Diagnosis::wrong(CHECK, error.message, "mcpproxy status"),
    };
    let problems = list(&state, "/rejected/problems");
    let mut errors = problems.iter().filter(|problem| text(problem, "/severity") == "error");
    let Some(first) = errors.next() else {
        let later = list(&state, "/needs_restart").iter().filter_map(Value::as_str);
        let later: Vec<_> = later.collect();
        return match later.is_empty() {
            true => Diagnosis::fine(CHECK, "the config files are in force"),
            false => Diagnosis {
                fix: "restart mcpproxy".into(),
                ..Diagnosis::new(
                    DiagnosisKind::Odd,
                    CHECK,
                    format!("changed in the config file, but not in force: {}", later.join(", ")),
                )
            },
        };
    };
    let mut message = "the previous config is still in force: ".to_owned();
    for (before, at, after) in
        [("", "/file", ": "), ("line ", "/line", " "), ("column ", "/column", ": ")]
    {
        let value = text(first, at);
        if !value.is_empty() {
            message += &format!("{before}{value}{after}");
        }
    }
    message += &text(first, "/problem");
    let more = errors.count();
    if more > 0 {
        message += &format!(" (and {more} more: mcpproxy config reload)");
    }
    let file = Some(text(first, "/file")).filter(|file| !file.is_empty());
    let file = file.unwrap_or_else(|| text(&state, "/path"));
    Diagnosis::wrong(CHECK, message, edit(&word(Path::new(&*file))))
}

/// Status of the running proxy, which several checks read.
fn running_status(backend: &Backend, runtime: &LocalRuntime) -> Result<Value, CommandError> {
    let response = runtime.block_on(backend.get(&target(&["status"], &[])));
    response.and_then(|answer| output::parse(answer.json()?))
}

/// Causes of the faults of one part of the running proxy.
fn faults<'s>(status: &'s Value, part: &str) -> impl Iterator<Item = Cow<'s, str>> {
    let faults = list(status, "/faults").iter().filter(move |fault| text(fault, "/part") == part);
    faults.map(|fault| text(fault, "/cause"))
}

/// Warnings about the rules in force, as reported by the running proxy, which knows the tools. Warnings that the
/// config's check already reported, in `found`, are not repeated.
fn rules(status: &Value, found: &[Diagnosis]) -> Vec<Diagnosis> {
    let is_known = |cause: &Cow<'_, str>| {
        found.iter().any(|it| it.check == "config" && cause.starts_with(&it.text))
    };
    let causes = faults(status, "rules").filter(|cause| !is_known(cause));
    let finding = |cause| {
        let odd = Diagnosis::new(DiagnosisKind::Odd, "rules", cause);
        Diagnosis { fix: "mcpproxy policy check".to_owned(), ..odd }
    };
    causes.map(finding).collect()
}

/// Checks the endpoint of `search.embeddings`, as reported by the running proxy.
fn search(status: &Result<Value, CommandError>) -> Vec<Diagnosis> {
    const CHECK: &str = "search";
    let status = match status {
        Ok(status) => status,
        Err(error) => return vec![Diagnosis::wrong(CHECK, error.message.as_str(), "")],
    };
    // Keyword search works without the endpoint.
    let odd = faults(status, CHECK).map(|cause| Diagnosis::new(DiagnosisKind::Odd, CHECK, cause));
    let mut found: Vec<_> = odd.collect();
    if found.is_empty() {
        found.push(Diagnosis::fine(CHECK, "semantic tool search is available"));
    }
    found
}

/// Checks each enabled server.
fn servers(
    loaded: Loaded,
    running: Option<&Backend>,
    runtime: &LocalRuntime,
    found: &mut Vec<Diagnosis>,
) -> Result<(), CommandError> {
    const CHECK: &str = "server";
    if let Some(backend) = running {
        let answer = runtime.block_on(backend.get(&target(&["servers"], &[])))?;
        for server in list(&output::parse(answer.json()?)?, "/servers") {
            found.extend(running_server(&loaded.config, server));
        }
        found.extend(unannotated_tools(&loaded.config, backend, runtime)?);
        return Ok(());
    }
    let mut config = loaded.config;
    let (all, read) = (config.clone(), config.intent.unannotated);
    config.servers.retain(|server| server.upstream.enabled);
    if config.servers.is_empty() {
        let mut none = Diagnosis::new(DiagnosisKind::Odd, CHECK, "no server is enabled");
        none.fix = "mcpproxy import, or mcpproxy upstream add NAME …".to_owned();
        found.push(none);
        return Ok(());
    }
    let (catalog, _) = seen_tools(&config);
    let seen = catalog.load();
    for trial in try_servers(config)? {
        let ServerTrial { name, status, took, .. } = &trial;
        let mut finding = match status {
            Status::Connected => Diagnosis::fine(CHECK, format!("{name}: {}", trial.message())),
            Status::Disabled
            | Status::Connecting
            | Status::Failed
            | Status::NeedsLogin
            | Status::Throttled => failed(&all, name, &trial.message(), false),
        };
        finding.took = Some(*took);
        found.push(finding);
        found.extend(in_quarantine(name, seen.quarantined(name).len()));
        found.extend(unannotated(name, &trial.unannotated, read));
    }
    Ok(())
}

/// Finding about tools of a server that wait for an operator, if there are any.
fn in_quarantine(name: &str, held: usize) -> Option<Diagnosis> {
    let quoted = argument(name);
    (held > 0).then(|| Diagnosis {
        fix: format!("mcpproxy tools diff {quoted}, then mcpproxy tools approve {quoted}"),
        ..Diagnosis::new(
            DiagnosisKind::Odd,
            "server",
            format!("{name}: {} in quarantine", counted(held, "tool")),
        )
    })
}

/// Findings about a server of the running proxy; none if the server is disabled.
fn running_server(config: &Config, server: &Value) -> Vec<Diagnosis> {
    let [name, state, reason] = ["/name", "/state", "/reason"].map(|at| text(server, at));
    let odd = |message: String, fix: String| Diagnosis {
        fix,
        ..Diagnosis::new(DiagnosisKind::Odd, "server", message)
    };
    let tools = counted(text(server, "/tools"), "tool");
    let mut found = vec![match &*state {
        "disabled" => return Vec::new(),
        "connected" if reason.is_empty() => Diagnosis::fine("server", format!("{name}: {tools}")),
        // The server works, but one of its lists is incomplete or out of date, or its login is insufficient.
        "connected" => odd(format!("{name}: {tools}; {reason}"), String::new()),
        "connecting" if reason.is_empty() => odd(format!("{name}: starting"), String::new()),
        "connecting" => odd(format!("{name}: {reason}"), String::new()),
        // The reason says so.
        "needs-login" => failed(config, &name, &reason, true),
        state => failed(config, &name, &format!("{state}: {reason}"), true),
    }];
    let held = server.get("quarantined").and_then(Value::as_u64).unwrap_or_default();
    found.extend(in_quarantine(&name, usize::try_from(held).unwrap_or(usize::MAX)));
    if let Some(Err(fault)) = second_connection(server) {
        found.push(odd(
            format!("{name}: {fault}"),
            format!("mcpproxy upstream logs {}", argument(&name)),
        ));
    }
    if let Some(items) = nonconforming_items(server, MAX_NAMED) {
        let message = format!("{name}: does not conform to MCP: {items}");
        found.push(odd(message, "mcpproxy upstream list".to_owned()));
    }
    found
}

/// Maximum number of tools or list items that a finding names.
const MAX_NAMED: usize = 8;

/// Unannotated tools of the running proxy's servers, as one finding for each server.
fn unannotated_tools(
    config: &Config,
    backend: &Backend,
    runtime: &LocalRuntime,
) -> Result<Vec<Diagnosis>, CommandError> {
    let query = [("unannotated", Some("true"))];
    let tools = runtime.block_on(fetch_all(backend, "tools", &query, u32::MAX))?;
    let mut servers: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for tool in list(&output::parse(&tools)?, "/tools") {
        if let Some((server, tool)) = text(tool, "/name").split_once(':') {
            servers.entry(server.to_owned()).or_default().push(tool.to_owned());
        }
    }
    let finding = |(server, tools): (&String, &Vec<String>)| {
        unannotated(server, tools, config.intent.unannotated)
    };
    Ok(servers.iter().filter_map(finding).collect())
}

/// Finding for tools that are marked neither read-only nor destructive (FR-043); `None` if there are no such tools.
fn unannotated(server: &str, tools: &[String], read: Unannotated) -> Option<Diagnosis> {
    let named = tools.iter().take(MAX_NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    let more = match tools.len().checked_sub(MAX_NAMED) {
        None | Some(0) => String::new(),
        Some(more) => format!(" and {more} more"),
    };
    let them = if tools.len() == 1 { "it" } else { "them" };
    let effect = match read {
        Unannotated::Allow => "sent",
        Unannotated::Warn => "sent with a warning",
        Unannotated::Write => "refused",
    };
    let text = format!(
        "{server}: {} marked neither read-only nor destructive: {named}{more}; a read of {them} is {effect}",
        counted(tools.len(), "tool")
    );
    let name = argument(server);
    (!tools.is_empty()).then(|| Diagnosis {
        fix: format!("mcpproxy tools annotate {name}"),
        ..Diagnosis::new(DiagnosisKind::Odd, "server", text)
    })
}

/// Number of a failed server's last log lines that are shown.
const LAST_LINES: usize = 5;
/// Number of lines read for this purpose, because a server may repeat a line.
const READ_LINES: usize = 50;

/// Finding for a server that is not usable, with its last output. A running proxy can restart it.
fn failed(config: &Config, name: &str, reason: &str, is_running: bool) -> Diagnosis {
    let name_word = argument(name);
    let needs_login = reason.contains("upstream login");
    let lines = match needs_login {
        true => Vec::new(),
        false => last_lines(&config.stderr_folder(), name),
    };
    let then = match is_running {
        true => format!(", then: mcpproxy upstream restart {name_word}"),
        false => String::new(),
    };
    let fix = match (server_state::set_variable(reason, is_running), lines.is_empty()) {
        _ if needs_login => format!("mcpproxy upstream login {name_word}"),
        (Some(set), _) => set,
        _ if reason.contains(NO_CONNECTION) => {
            format!("start it{then}, or: mcpproxy upstream add --replace {name_word} …")
        }
        // The server did not start, so its log has nothing to add.
        (None, true) => format!("{}{then}", edit(CONFIG_PATH)),
        (None, false) => {
            let word = if is_running { "or" } else { "then" };
            format!(
                "mcpproxy upstream logs {name_word}{then}, {word}: mcpproxy upstream add --replace {name_word} …"
            )
        }
    };
    Diagnosis { lines, ..Diagnosis::wrong("server", format!("{name}: {reason}"), fix) }
}

/// The last [`LAST_LINES`] lines of a server's log with their times. Repeated lines and tracebacks are reduced to the
/// last one. Empty if the log is unreadable, because the reason is known without it.
fn last_lines(folder: &Path, name: &str) -> Vec<String> {
    let kept = stderr_log::read(folder, name, None, READ_LINES);
    let lines = kept.map(|kept| kept.lines).unwrap_or_default();
    let keys: Vec<_> = lines.iter().map(|it| &it.line).collect();
    let blocks = fold_repeats(&keys).into_iter().filter_map(|it| lines.get(it.lines));
    let mut last: Vec<_> = blocks.flatten().map(|it| format!("{} {}", it.time, it.line)).collect();
    last.drain(..last.len().saturating_sub(LAST_LINES));
    last
}

/// Quotes a path for a shell.
fn word(path: &Path) -> String {
    let path = path.display().to_string();
    quoted(&path).map(std::borrow::Cow::into_owned).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Colors;
    use mcpproxy_config::{Config, Flags};

    #[test]
    fn findings_fit_the_terminal_and_are_indented() {
        let path = format!("/{}/mcp_config.json", "a-folder/".repeat(20));
        let answer = json!({"findings": [
            {"outcome": "wrong", "check": "config", "text": format!("{path}: no\nok  config"),
                "mend": edit(&path)},
            {"outcome": "ok", "check": "log", "text": "words of a finding ".repeat(10), "mend": ""},
        ]});
        // A path and a command stay in one piece, and may exceed the width.
        let narrow = draw(&answer, TableView { width: Some(80), colors: Colors::Plain });
        let keeps = [
            &*format!("wrong    config   {path}:\n                  no"),
            &format!(" → ${{EDITOR:-vi}} {path}\n"),
            "ok       log      words",
        ];
        keeps.iter().for_each(|kept| assert!(narrow.contains(kept), "{kept}: {narrow}"));
        let fix =
            format!("${{EDITOR:-vi}} \"$(mcpproxy config path)\", then: {}", "word ".repeat(8));
        let second = json!({"findings": [{"outcome": "wrong", "check": "server", "text": "x", "mend": fix}]});
        let shown = draw(&second, TableView { width: Some(80), colors: Colors::Plain });
        let expected =
            "→ ${EDITOR:-vi} \"$(mcpproxy config path)\",\n                    then: word";
        assert!(shown.contains(expected), "{shown}");
        let others = narrow.lines().filter(|line| !line.contains(&path));
        assert!(others.clone().all(|line| line.chars().count() <= 80), "{narrow}");
        assert!(others.skip(1).all(|line| line.starts_with("  ") || line.starts_with("ok")));
        let whole = draw(&answer, TableView { width: None, colors: Colors::Plain });
        assert_eq!(whole.lines().count(), 3, "{whole}");
    }

    #[test]
    fn cli_3_starting_server_is_not_a_fault_and_quarantine_is_shown() {
        let folder = tempfile::tempdir().unwrap();
        let flags = Flags { data_dir: Some(folder.path().into()), ..Flags::default() };
        let config = mcpproxy_config::parse("", &|_| None, &flags).unwrap().0;
        let found = |server: Value| -> Vec<_> {
            let found = running_server(&config, &server).into_iter();
            found.map(|it| (it.outcome, it.text, it.fix)).collect()
        };
        use DiagnosisKind::{Fine, Odd, Wrong};
        let starting = found(json!({"name": "s", "state": "connecting", "reason": "", "tools": 0}));
        assert_eq!(starting, [(Odd, "s: starting".to_owned(), String::new())]);
        let held = found(json!({"name": "s", "state": "connected", "tools": 3, "quarantined": 2}));
        let fix = "mcpproxy tools diff s, then mcpproxy tools approve s".to_owned();
        assert_eq!(
            held,
            [
                (Fine, "s: 3 tools".to_owned(), String::new()),
                (Odd, "s: 2 tools in quarantine".to_owned(), fix)
            ]
        );
        let second = json!({"state": "failed", "reason": "it refused initialization"});
        let server =
            json!({"name": "s", "state": "connected", "tools": 3, "second_connection": second});
        let text = "s: second connection failed: it refused initialization".to_owned();
        let fix = "mcpproxy upstream logs s".to_owned();
        assert_eq!(
            found(server),
            [(Fine, "s: 3 tools".to_owned(), String::new()), (Odd, text, fix)]
        );
        let reason = "needs login: run mcpproxy upstream login s";
        let login = found(json!({"name": "s", "state": "needs-login", "reason": reason}));
        let text = format!("s: {reason}");
        assert_eq!(login, [(Wrong, text, "mcpproxy upstream login s".to_owned())]);
        let failed = found(json!({"name": "s", "state": "failed", "reason": "no such program"}));
        let fix = "${EDITOR:-vi} \"$(mcpproxy config path)\", then: mcpproxy upstream restart s";
        assert_eq!(failed, [(Wrong, "s: failed: no such program".to_owned(), fix.to_owned())]);
        let reason = "environment variable K, referenced by env.A, is not set";
        let unset = found(json!({"name": "s", "state": "failed", "reason": reason}));
        let fix = "set K where `mcpproxy serve` is started, and start it again; a variable set in another shell does not reach it";
        assert_eq!(unset, [(Wrong, format!("s: failed: {reason}"), fix.to_owned())]);
        assert_eq!(found(json!({"name": "s", "state": "disabled"})), []);
    }

    #[test]
    fn fr_043_finding_names_unannotated_tools_and_the_command() {
        let tools: Vec<String> = (0..10).map(|number| format!("t{number}")).collect();
        let found = unannotated("sqlite", &tools, Unannotated::Warn).unwrap();
        assert_eq!(found.outcome, DiagnosisKind::Odd);
        assert_eq!(
            found.text,
            "sqlite: 10 tools marked neither read-only nor destructive: t0, t1, t2, t3, t4, t5, t6, t7 and 2 more; \
             a read of them is sent with a warning"
        );
        assert_eq!(found.fix, "mcpproxy tools annotate sqlite");
        assert!(unannotated("sqlite", &[], Unannotated::Warn).is_none());
    }

    #[test]
    fn rules_and_search_findings_come_from_the_status() {
        let status = json!({"faults": [
            {"part": "rules", "cause": "a.cedar:1:1: no server 'x'"},
            {"part": "search", "cause": "connection refused"},
            {"part": "rules", "cause": "b.cedar:2:1: no tool 'y': did you mean z?"},
        ]});
        let known = [Diagnosis::new(DiagnosisKind::Odd, "config", "b.cedar:2:1: no tool 'y'")];
        let found = rules(&status, &known);
        let texts: Vec<_> = found.iter().map(|it| (&*it.text, &*it.fix)).collect();
        assert_eq!(texts, [("a.cedar:1:1: no server 'x'", "mcpproxy policy check")]);
        let outcome = |status| {
            let found = search(&status).into_iter().map(|it| (it.outcome, it.text));
            found.collect::<Vec<_>>()
        };
        let refused = (DiagnosisKind::Odd, "connection refused".to_owned());
        assert_eq!(outcome(Ok(status)), [refused]);
        let fine = (DiagnosisKind::Fine, "semantic tool search is available".to_owned());
        assert_eq!(outcome(Ok(json!({"faults": []}))), [fine]);
        let failed = (DiagnosisKind::Wrong, "no answer".to_owned());
        assert_eq!(outcome(Err(CommandError::failed("no answer"))), [failed]);
    }

    #[test]
    fn last_lines_of_a_server_are_folded_and_keep_the_latest_time() {
        let folder = tempfile::tempdir().unwrap();
        let file = format!("{}.0.log", mcpproxy_policy::tool::server_file_stem("files"));
        let lines = |lines: &[(u32, &str)]| {
            let shown = lines
                .iter()
                .map(|(second, line)| format!("2026-01-02T03:04:{second:02}.000Z {line}\n"));
            fs::write(folder.path().join(&file), shown.collect::<String>()).unwrap();
            let last = last_lines(folder.path(), "files").into_iter();
            last.map(|line| line.split_once(":04:").unwrap().1.to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(lines(&[(1, "a"), (2, "b")]), ["01.000Z a", "02.000Z b"]);
        // Only adjacent lines are folded, and the latest remains.
        let repeated = lines(&[(1, "a"), (2, "b"), (3, "b"), (4, "b"), (5, "a")]);
        assert_eq!(repeated, ["01.000Z a", "04.000Z b", "05.000Z a"]);
        // Folding comes before the limit.
        let many: Vec<_> = (0..8).flat_map(|at| [(at, "x"), (at + 20, "x")]).collect();
        assert_eq!(lines(&many), ["27.000Z x"]);
        // A traceback of several lines, too.
        let attempts = [(1, "a"), (1, "b"), (1, "c"), (2, "a"), (2, "b"), (2, "c")];
        assert_eq!(lines(&attempts), ["02.000Z a", "02.000Z b", "02.000Z c"]);
        let names = ["0", "1", "2", "3", "4", "5", "6"];
        let different: Vec<_> = (10..17).zip(names).collect();
        let expected = ["12.000Z 2", "13.000Z 3", "14.000Z 4", "15.000Z 5", "16.000Z 6"];
        assert_eq!(lines(&different), expected);
        assert!(last_lines(folder.path(), "other").is_empty());
        assert!(last_lines(Path::new("/nowhere"), "files").is_empty());
    }

    #[test]
    fn implausible_clock_is_reported_as_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        fs::write(&path, "{}").unwrap();
        let flags = Flags { data_dir: Some(folder.path().join("data")), ..Flags::default() };
        let loaded = Config::load(Some(&path), &|_| None, &flags).unwrap();
        let now = SystemTime::now();
        assert_eq!(clock(&loaded, now).outcome, DiagnosisKind::Fine);
        let behind = clock(&loaded, SystemTime::UNIX_EPOCH + Duration::from_secs(NOT_BEFORE - 1));
        assert!(behind.outcome == DiagnosisKind::Wrong && behind.fix.contains("set-ntp"));
        fs::File::open(&path).unwrap().set_modified(now + 2 * AHEAD).unwrap();
        let ahead = clock(&loaded, now);
        assert!(ahead.outcome == DiagnosisKind::Wrong, "{ahead:?}");
        assert!(ahead.text.contains("config.json") && ahead.fix.contains("set-ntp"), "{ahead:?}");
        assert_eq!(clock(&loaded, now + 2 * AHEAD).outcome, DiagnosisKind::Fine);
    }

    #[test]
    fn low_disk_space_is_a_warning_then_an_error() {
        for (free, outcome) in [
            (0, DiagnosisKind::Wrong),
            (TOO_LITTLE - 1, DiagnosisKind::Wrong),
            (TOO_LITTLE, DiagnosisKind::Odd),
            (LITTLE - 1, DiagnosisKind::Odd),
            (LITTLE, DiagnosisKind::Fine),
        ] {
            let found = disk_space(free, Path::new("/data"), 0);
            assert_eq!(found.outcome, outcome, "{found:?}");
            assert_eq!(found.fix.is_empty(), outcome == DiagnosisKind::Fine, "{found:?}");
        }
    }
}
