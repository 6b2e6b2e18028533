//! `mcpproxy config …` and `mcpproxy init`: check, change, locate, reload and create the config.

use crate::args::{ConfigSubcommand, Format, Global};
use crate::backend::{Needs, target};
use crate::commands::policy;
use crate::commands::tool_names::StoredTools;
use crate::error::{CommandError, problem_json};
use crate::format::{list, text};
use crate::output::Output;
use crate::terminal_safe::{joined, line};
use crate::{backend, hints, logging, output, start_proxy};
use mcpproxy_config::CONFIG_SCHEMA;
use mcpproxy_config::file::{Loaded, SCHEMA_FILE, locate};
use mcpproxy_config::problem::{Problem, Severity};
use mcpproxy_config::servers::ServerEntry;
use mcpproxy_config::{Config, file};
use mcpproxy_runtime::os::private;
use serde_json::json;
use std::convert::Infallible;
use std::fmt::Write as _;
use std::path::Path;

mod key;

/// Runs a config command.
pub(super) fn run(
    command: &ConfigSubcommand,
    global: &Global,
    output: &Output,
) -> Result<(), CommandError> {
    match command {
        ConfigSubcommand::Path => {
            let path = locate(global.config.as_deref(), &start_proxy::variable)
                .map_err(|error| start_proxy::problem(&error))?;
            let path = path.display().to_string();
            output.print(&json!({"path": path}).to_string(), |_| path.clone())
        }
        ConfigSubcommand::Check => {
            start_proxy::named_file_exists(global)?;
            let flags = start_proxy::flags(global, None);
            let loaded = Config::check(global.config.as_deref(), &start_proxy::variable, &flags);
            let mut loaded = loaded.map_err(start_proxy::unusable)?;
            loaded.warnings.extend(StoredTools::new(&loaded.config).unmatched_settings());
            // Those that are known without the tools are among the warnings.
            for problem in policy::rule_problems(&loaded.config) {
                if !loaded.warnings.contains(&problem) {
                    loaded.warnings.push(problem);
                }
            }
            if loaded.warnings.iter().any(|it| it.severity == Severity::Error) {
                return Err(start_proxy::unusable(loaded.warnings));
            }
            output.print(&report(&loaded).to_string(), draw)
        }
        ConfigSubcommand::Get { key } => key::get(key, global, output),
        ConfigSubcommand::Set { key, value } => key::change(key, Some(value), global, output),
        ConfigSubcommand::Unset { key, yes } => key::unset(key, *yes, global, output),
        ConfigSubcommand::Reload => reload(global, output),
        ConfigSubcommand::Schema => match output.format {
            Format::Table | Format::Json => output::write(CONFIG_SCHEMA.as_bytes()),
            Format::Yaml => output.print(CONFIG_SCHEMA, |_| String::new()),
        },
    }
}

/// Makes the running proxy reload its config.
pub(super) fn reload(global: &Global, output: &Output) -> Result<(), CommandError> {
    backend::with(global, Needs::Running, async |backend| {
        let done = backend.post(&target(&["config", "reload"], &[]), String::new()).await;
        let done = done.inspect_err(|failure| {
            if !failure.problems.is_empty() {
                logging::print_line("the previous config stays in force");
            }
        })?;
        output.print(done.json()?, draw_reloaded)
    })
}

/// Printed if the file is already in force; the proxy may have reloaded it by itself before.
const UNCHANGED: &str =
    "unchanged: the file is already in force (a running mcpproxy reloads a changed file by itself)";

fn draw_reloaded(reloaded: &serde_json::Value) -> String {
    let mut shown = String::new();
    for (word, at) in [("applied", "/applied"), ("restart", "/needs_restart")] {
        for key in list(reloaded, at) {
            let _ = writeln!(shown, "{word}   {}", line(key.as_str().unwrap_or_default()));
        }
    }
    for warning in list(reloaded, "/warnings") {
        let _ = writeln!(shown, "warning   {}", joined(&text(warning, "/problem")));
    }
    let unchanged = reloaded.pointer("/unchanged") == Some(&json!(true));
    let _ = writeln!(shown, "{}", if unchanged { UNCHANGED } else { "the file is in force" });
    shown
}

fn report(loaded: &Loaded) -> serde_json::Value {
    let config = &loaded.config;
    let warnings: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
    let server =
        |server: &ServerEntry| json!({"name": &*server.name, "enabled": server.upstream.enabled});
    let servers: Vec<_> = config.servers.iter().map(server).collect();
    json!({
        "path": loaded.path.display().to_string(),
        "exists": loaded.path.exists(),
        "listen": config.listen.to_string(),
        "data_dir": config.data_dir.display().to_string(),
        "servers": servers,
        "warnings": warnings,
        "problems": loaded.warnings.iter().map(problem_json).collect::<Vec<_>>(),
    })
}

fn draw(report: &serde_json::Value) -> String {
    let mut shown = String::new();
    let found = match report.get("exists").and_then(serde_json::Value::as_bool) {
        Some(true) => "",
        Some(false) | None => " (missing: defaults apply)",
    };
    let servers = list(report, "/servers");
    let on = servers.iter().filter(|server| server.pointer("/enabled") == Some(&json!(true)));
    let _ = writeln!(shown, "config    {}{found}", line(&text(report, "/path")));
    let _ = writeln!(shown, "listen    {}", text(report, "/listen"));
    let _ = writeln!(shown, "data      {}", line(&text(report, "/data_dir")));
    let _ = writeln!(shown, "servers   {} ({} enabled)", servers.len(), on.count());
    let warnings = list(report, "/warnings");
    for warning in warnings {
        let _ = writeln!(shown, "warning   {}", joined(warning.as_str().unwrap_or_default()));
    }
    let _ = writeln!(shown, "{}", if warnings.is_empty() { "ok" } else { "ok, with warnings" });
    shown
}

/// Next steps after `init`.
const NEXT: &str = "\
Next:
  mcpproxy import               import the servers of Claude, Cursor, VS Code and others
  mcpproxy upstream add NAME …  add your own server
  mcpproxy serve                run the proxy in front of them
  mcpproxy connect CLIENT       point your client to it";

/// The problem in the words of a file to create, if there is no file at `path`.
fn creating(problem: Problem, path: &Path) -> Problem {
    let why =
        ["cannot be read: ", "not changed: "].iter().find_map(|it| problem.text.strip_prefix(it));
    match why.filter(|_| !matches!(path.try_exists(), Ok(true))) {
        Some(why) => Problem { text: format!("cannot be created: {why}"), ..problem },
        None => problem,
    }
}

/// Creates the config file with an API key if it does not exist.
pub(super) fn init(global: &Global, output: &Output) -> Result<(), CommandError> {
    let path = locate(global.config.as_deref(), &start_proxy::variable)
        .map_err(|error| start_proxy::problem(&error))?;
    let flags = start_proxy::flags(global, None);
    let loaded = Config::load(global.config.as_deref(), &start_proxy::variable, &flags);
    let loaded = loaded.map_err(|problems| problems.into_iter().map(|it| creating(it, &path)));
    let mut loaded = loaded.map_err(|problems| start_proxy::unusable(problems.collect()))?;
    let listen = json!(loaded.config.listen.to_string());
    let made = file::edit(&loaded.path, |text| {
        let is_new = text.trim_start_matches('\u{feff}').trim().is_empty();
        let first = format!(
            "{{\n  \"$schema\": \"./{SCHEMA_FILE}\",\n  \"listen\": {listen},\n  \"mcpServers\": {{}}\n}}\n"
        );
        Ok::<_, Infallible>((is_new.then_some(first), is_new))
    });
    let made = made.map_err(|error| start_proxy::problem(&creating(error, &path)))?;
    let has_key = loaded.config.api_key.is_some();
    if made {
        // An existing blank file keeps its permissions, and is about to contain a key.
        let restricted = private::restrict(&loaded.path);
        restricted
            .map_err(|error| CommandError::failed(format!("{}: {error}", loaded.path.display())))?;
        loaded = start_proxy::load_or_default(global, None)?;
    }
    // An existing schema file may be from an older version.
    if made || loaded.path.with_file_name(SCHEMA_FILE).exists() {
        file::put_schema(&loaded.path).map_err(|error| start_proxy::problem(&error))?;
    }
    let key = loaded.ensure_api_key(start_proxy::random_key()?);
    let key = key.map_err(|error| start_proxy::problem(&error))?;
    let path = loaded.path.display().to_string();
    // Links are not followed, because the target may belong to another user.
    let wider = private::wider(&loaded.path);
    let answer = json!({"file": path, "created": made, "key_made": key && !has_key});
    output.print(&answer.to_string(), |_| {
        let path = line(&path);
        let readable = wider.map_or_else(
            || "readable only by you".to_owned(),
            |mode| format!("accessible to others (mode {mode:03o}): chmod 600 it"),
        );
        let own = match key {
            true => ", with a generated API key",
            false => ", without an API key: MCPPROXY_API_KEY is used",
        };
        let warned = wider.filter(|_| key).map_or_else(String::new, |mode| {
            format!(" The file is accessible to others (mode {mode:03o}): chmod 600 it.")
        });
        let next = hints::commands(NEXT);
        match (made, key) {
            (true, _) => format!(
                "Created {path}, {readable}{own}.\n\
                 Editors complete and check it with {SCHEMA_FILE} beside it.\n\n{next}"
            ),
            (false, true) => {
                format!("{path} exists: added an API key.{warned}\n\n{next}")
            }
            (false, false) => format!("{path} exists: nothing changed.\n\n{next}"),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problem_of_a_missing_file_is_that_it_cannot_be_created() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("none/config.json");
        let load = |path: &Path| {
            let flags = mcpproxy_config::Flags::default();
            Config::load(Some(path), &|_: &str| None, &flags).unwrap_err().remove(0)
        };
        // A directory cannot be read as a file.
        let unreadable = load(folder.path());
        let why = unreadable.text.strip_prefix("cannot be read: ").unwrap().to_owned();
        assert_eq!(
            creating(unreadable.clone(), &missing).text,
            format!("cannot be created: {why}")
        );
        assert_eq!(creating(unreadable.clone(), folder.path()), unreadable);
        let unchanged = Problem { text: "not changed: denied".to_owned(), ..unreadable.clone() };
        assert_eq!(creating(unchanged, &missing).text, "cannot be created: denied");
        let other = Problem { text: "listen: odd".to_owned(), ..unreadable };
        assert_eq!(creating(other.clone(), &missing), other);
    }
}
