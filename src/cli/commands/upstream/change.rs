//! `mcpproxy upstream add`, `remove`, `enable` and `disable`: the servers in the config file are changed,
//! a proxy that runs is told, and a server that is added is tried.

use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::cli::args::{Global, UpstreamAdd};
use crate::cli::backend::Backend;
use crate::cli::error::CommandError;
use crate::cli::exit_code::Exit;
use crate::cli::output::Output;
use crate::cli::reload::{self, ReloadTold};
use crate::cli::suggest::unknown_server;
use crate::cli::terminal_safe::{line, quoted};
use crate::cli::try_servers::try_servers;
use crate::cli::{load_config, server_state};
use crate::config::edit::{EditedJson, Servers, check_new_name};
use crate::config::file::{self, Loaded};
use crate::config::problem::{Problem, Severity};
use crate::config::{self, Config};
use crate::server;
use crate::upstream;

/// Longest wait for a server that a running proxy has just taken up.
const SETTLE_LIMIT: Duration = Duration::from_secs(45);

/// What is done to a server in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServerChange {
    Remove,
    Enable,
    Disable,
}

/// Adds a server to the file, and tries it.
pub(super) fn add(
    flags: &UpstreamAdd,
    global: &Global,
    output: &Output,
) -> Result<(), CommandError> {
    let (loaded, _log) = load_config::load_with_log(global)?;
    let name = flags.name.as_str();
    check_new_name(name).map_err(CommandError::usage)?;
    if flags.command.is_empty() && flags.url.is_none() {
        return Err(CommandError::usage(format!(
            "how is it reached? A command: `mcpproxy upstream add {0} -- COMMAND …`; an address: \
             `mcpproxy upstream add {0} --url URL`",
            quoted(name).unwrap_or_else(|| name.into())
        )));
    }
    let members = members(flags);
    if !flags.no_check && !flags.disabled {
        look_at(&members)?;
    }
    let taken = || {
        format!(
            "there is a server '{name}' already: choose another name, or remove that one with \
             `mcpproxy upstream remove {name}`"
        )
    };
    edit(&loaded, global, |json| match Servers(json).find(name) {
        Some(_) => Err(taken()),
        None => Servers(json).add(name, &members).map_err(|error| error.to_string()),
    })?;
    let runtime = server::local_runtime().map_err(CommandError::failed)?;
    let (reloaded, client) = runtime.block_on(reload::tell(&loaded));
    let tried = match (flags.no_check || flags.disabled, &reloaded, client) {
        (true, ..) => None,
        (false, ReloadTold::InForce(_), Some(client)) => {
            let until = Instant::now() + SETTLE_LIMIT;
            Some(runtime.block_on(server_state::settled(&Backend::Remote(client), name, until))?)
        }
        (false, ..) => {
            let mut config = load_config::load(global, None)?.config;
            config.servers.retain(|server| &*server.name == name);
            try_servers(config)?.into_iter().next()
        }
    };
    let answer = json!({
        "server": name, "file": loaded.path.display().to_string(), "added": true,
        "proxy": reloaded.json(), "check": tried.as_ref().map(|tried| tried.json()),
    });
    output.print(&answer.to_string(), |_| {
        let mut told = format!("Added '{name}' to {}.\n", line(&loaded.path.display().to_string()));
        if let Some(tried) = &tried {
            told += &format!("It was tried: {}.\n", tried.told());
        }
        told + &reloaded.told()
    })
}

/// Makes one of the changes.
pub(super) fn change(
    name: &str,
    change: ServerChange,
    global: &Global,
    output: &Output,
) -> Result<(), CommandError> {
    let (loaded, _log) = load_config::load_with_log(global)?;
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
    let mut answer = Map::new();
    answer.insert("server".to_owned(), name.into());
    answer.insert("file".to_owned(), file.as_str().into());
    answer.insert(key.to_owned(), true.into());
    answer.insert("changed".to_owned(), changed.into());
    if !changed {
        return output.print(&Value::from(answer).to_string(), |_| {
            format!("'{}' is {key} already.", line(name))
        });
    }
    let runtime = server::local_runtime().map_err(CommandError::failed)?;
    let (reloaded, _) = runtime.block_on(reload::tell(&loaded));
    answer.insert("proxy".to_owned(), reloaded.json());
    output.print(&Value::from(answer).to_string(), |_| {
        format!("{word} '{}' in {}.\n{}", line(name), line(&file), reloaded.told())
    })
}

/// Changes the file, if what comes of it can be used; whether anything changed.
fn edit(
    loaded: &Loaded,
    global: &Global,
    change: impl Fn(&EditedJson) -> Result<EditedJson, String>,
) -> Result<bool, CommandError> {
    load_config::refuse_for_fleet(loaded)?;
    let flags = load_config::flags(global, None);
    let mut refused = None;
    let edited = file::edit(&loaded.path, |text| {
        let json = EditedJson::new(text).map_err(|error| error.to_string())?;
        let next = change(&json).inspect_err(|why| refused = Some(why.clone()))?;
        if let Err(problems) = config::parse(next.text(), &load_config::variable, &flags) {
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
    error.map(ToString::to_string).unwrap_or_default()
}

/// The members of the entry, in the order in which people write them.
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
    if let Some(url) = &flags.url {
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

/// Looks for what keeps the entry from working before anything is written.
fn look_at(members: &[(String, Value)]) -> Result<(), CommandError> {
    let entry = Value::Object(members.iter().cloned().collect());
    let entry: upstream::Config = serde_json::from_value(entry).map_err(CommandError::usage)?;
    match entry.mistakes(&load_config::variable).into_iter().next() {
        None => Ok(()),
        Some(mistake) => Err(CommandError::failed(format!(
            "{}: {} (--no-check adds it all the same)",
            mistake.keys.join("."),
            mistake.problem
        ))),
    }
}

/// The servers of a config by their names.
pub(super) fn names(config: &Config) -> impl Iterator<Item = &str> {
    config.servers.iter().map(|server| &*server.name)
}
