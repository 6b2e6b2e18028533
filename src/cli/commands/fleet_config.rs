//! The config that a fleet runs: `mcpproxy fleet apply` and `rollback`, and its part of `status`.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};

use crate::cli::backend::{Backend, target};
use crate::cli::error::CommandError;
use crate::cli::exit_code::Exit;
use crate::cli::json_pointer::{list, text};
use crate::cli::output::{Output, parse};
use crate::cli::table::{Column, Fit, cell};
use crate::cli::terminal_safe::line;
use crate::config::file;
use crate::config::fleet_config::SharedConfig;

/// Digits of a hash that are shown.
const SHORT: usize = 12;
/// The columns of the nodes, and where their values stand.
const COLUMNS: [((&str, Fit), &str); 4] = [
    (("NODE", Fit::Name), "/node"),
    (("VERSION", Fit::Rank(1)), "/version"),
    (("STATE", Fit::Whole), "/state"),
    (("WHY", Fit::Free), "/reason"),
];

/// What the fleet shares, as the node that runs knows it.
pub(super) async fn standing(backend: &Backend) -> Result<Value, CommandError> {
    let standing = backend.get(&target(&["fleet", "config"], &[])).await?;
    parse(standing.json()?)
}

/// Has the fleet run the config of a file.
pub(super) async fn apply(
    file: &Path,
    backend: &Backend,
    output: &Output,
) -> Result<(), CommandError> {
    let (shared, left_out) = shared(file)?;
    let body = String::from_utf8(shared.write()).map_err(CommandError::failed)?;
    let applied = backend.post(&target(&["fleet", "config"], &[]), body).await?;
    let mut applied = parse(applied.json()?)?;
    if let Some(applied) = applied.as_object_mut() {
        applied.insert("left_out".to_owned(), json!(left_out));
    }
    output.print(&applied.to_string(), told)
}

/// Has it run the one before again.
pub(super) async fn roll_back(backend: &Backend, output: &Output) -> Result<(), CommandError> {
    let path = target(&["fleet", "config", "rollback"], &[]);
    let back = backend.post(&path, String::new()).await?;
    output.print(back.json()?, told)
}

/// The config of a file, with its files of rules; and the keys that are left out of it.
fn shared(path: &Path) -> Result<(SharedConfig, Vec<String>), CommandError> {
    let unusable =
        |why: String| CommandError::new(Exit::Config, format!("{}: {why}", path.display()));
    if !path.is_file() {
        return Err(unusable("is no file".to_owned()));
    }
    let text = file::text(path).map_err(|problem| CommandError::new(Exit::Config, problem))?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let read = |name: &str| std::fs::read_to_string(folder.join(name));
    SharedConfig::of(&text, read).map_err(unusable)
}

fn told(applied: &Value) -> String {
    let hash: String = text(applied, "/hash").chars().take(SHORT).collect();
    let mut told = format!("The fleet runs version {} ({hash}).", text(applied, "/version"));
    let left_out: Vec<_> = list(applied, "/left_out").iter().filter_map(Value::as_str).collect();
    if !left_out.is_empty() {
        let _ = write!(told, " Left out, since each node has its own: {}.", left_out.join(", "));
    }
    told + " `mcpproxy fleet status` shows what each node makes of it."
}

/// What is wrong about what living nodes run, a line for each: all should run what the fleet runs.
pub(super) fn astray(fleet: &Value, shared: &Value) -> Vec<String> {
    let Some(version) = shared.pointer("/config/version").and_then(Value::as_u64) else {
        return Vec::new();
    };
    let living = list(fleet, "/nodes").iter().filter(|node| text(node, "/state") == "living");
    let fault = |node: &Value| {
        let name = text(node, "/node");
        let run = list(shared, "/nodes").iter().find(|run| text(run, "/node") == name);
        let Some(run) = run else {
            return Some(format!("node '{name}' lives and has not said which config it runs"));
        };
        let is_it = run.pointer("/version").and_then(Value::as_u64) == Some(version);
        match &*text(run, "/state") {
            "running" if is_it => None,
            "refused" if is_it => {
                Some(format!("node '{name}' refuses version {version}: {}", text(run, "/reason")))
            }
            _ => Some(format!("node '{name}' has not taken over version {version} yet")),
        }
    };
    living.filter_map(fault).collect()
}

/// What the fleet runs, and what each node makes of it.
pub(super) fn drawn(status: &Value, output: &Output) -> String {
    let mut told = match status.pointer("/config") {
        Some(config) if !config.is_null() => {
            let hash: String = text(config, "/hash").chars().take(SHORT).collect();
            format!(
                "The fleet runs version {} ({hash}), applied by {} on {} at {}.\n",
                text(config, "/version"),
                line(&text(config, "/by")),
                line(&text(config, "/node")),
                line(&text(config, "/at")),
            )
        }
        Some(_) | None => {
            "The fleet has no config: each node runs its own. `mcpproxy fleet apply FILE` makes one.\n".to_owned()
        }
    };
    if let Some(failing) = status.pointer("/failing").and_then(Value::as_str) {
        let _ = writeln!(told, "The store cannot be used now: {}", line(failing));
    }
    for (key, fault) in status.pointer("/faults").and_then(Value::as_object).into_iter().flatten() {
        let _ = writeln!(told, "{}: {}", line(key), line(fault.as_str().unwrap_or_default()));
    }
    let rows: Vec<_> = list(status, "/nodes")
        .iter()
        .map(|node| COLUMNS.map(|(_, column)| cell(&text(node, column)).into()).to_vec())
        .collect();
    if rows.is_empty() {
        return told;
    }
    format!("{told}\n{}", output.table(&Column::all(COLUMNS.map(|(column, _)| column)), rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn living_nodes_that_run_something_else_or_have_not_said_what_are_told() {
        let node = |name, state| json!({"node": name, "state": state});
        let run = |name, version, state| json!({"node": name, "version": version, "state": state, "reason": "no HOOK"});
        let names = ["a", "b", "c", "d"];
        let mut nodes: Vec<_> = names.iter().map(|name| node(*name, "living")).collect();
        nodes.push(node("gone", "silent"));
        let fleet = json!({"nodes": nodes});
        let runs = [run("a", 2, "running"), run("b", 1, "running"), run("c", 2, "refused")];
        let told = astray(&fleet, &json!({"config": {"version": 2}, "nodes": runs}));
        assert_eq!(
            told,
            [
                "node 'b' has not taken over version 2 yet",
                "node 'c' refuses version 2: no HOOK",
                "node 'd' lives and has not said which config it runs",
            ]
        );
        assert_eq!(astray(&fleet, &json!({"config": null, "nodes": []})), [""; 0]);
    }
}
