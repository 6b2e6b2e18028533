//! `mcpproxy fleet …`: the fleet as seen by the running node, and the config it shares.

use crate::args::FleetCommand;
use crate::backend::{Backend, target};
use crate::error::{CommandError, Exit};
use crate::format::{counted, list, text};
use crate::hints;
use crate::output::{Output, of_state, parse};
use crate::table::{Cell, Column, Fit, cell};
use crate::terminal_safe::line;
use mcpproxy_config::file;
use mcpproxy_config::fleet_config::SharedConfig;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::Path;

/// Number of characters shown of a commit and of a config digest.
const SHORT: usize = 8;

/// Runs a fleet command.
pub(super) async fn run(
    command: &FleetCommand,
    backend: &Backend,
    output: &Output,
) -> Result<(), CommandError> {
    match command {
        FleetCommand::Status => status(backend, output).await,
        FleetCommand::Apply { file } => apply(file, backend, output).await,
        FleetCommand::Rollback => roll_back(backend, output).await,
    }
}

async fn status(backend: &Backend, output: &Output) -> Result<(), CommandError> {
    let response = backend.get(&target(&["fleet"], &[("reach", Some("true"))])).await?;
    let fleet = parse(response.json()?)?;
    if fleet.pointer("/node").is_none_or(Value::is_null) {
        let message = "the running proxy is not part of a fleet: set cluster.store and cluster.node to join one";
        return Err(CommandError::failed(message));
    }
    let mut all = fleet.clone();
    // The request fails if the fleet does not share a config.
    if let (Some(all), Ok(shared)) = (all.as_object_mut(), shared_config(backend).await) {
        all.insert("shared".to_owned(), shared);
    }
    let deviations = all.get("shared").map(|shared| deviations(&fleet, shared));
    let deviations = deviations.unwrap_or_default();
    output.print(&all.to_string(), |all| match all.get("shared") {
        Some(shared) => {
            let mut shared = drawn_config(shared, output);
            if !deviations.is_empty() {
                shared += "\nConfig problems:\n";
            }
            for fault in &deviations {
                let _ = writeln!(shared, "- {}", line(fault));
            }
            format!("{}\n{shared}", drawn(all, output))
        }
        None => drawn(all, output),
    })?;
    let faults = list(&fleet, "/faults").len() + deviations.len();
    if faults == 0 {
        return Ok(());
    }
    Err(CommandError::failed(format!("the fleet has {}", counted(faults, "problem"))))
}

fn drawn(all: &Value, output: &Output) -> String {
    let number = |at: &str| all.pointer(at).and_then(Value::as_u64).unwrap_or(0);
    let mut drawn = format!(
        "Fleet {}, as seen by node {}: {} of {} alive.\n\n",
        line(&text(all, "/fleet")),
        line(&text(all, "/node")),
        number("/living"),
        counted(list(all, "/nodes").len(), "node"),
    );
    let columns = Column::all([
        ("NODE", Fit::Name),
        ("STATE", Fit::Whole),
        ("VERSION", Fit::Rank(2)),
        ("CONFIG", Fit::Rank(6)),
        ("INDEX", Fit::Rank(5)),
        ("STORED", Fit::Rank(3)),
        ("BEHIND", Fit::Rank(1)),
        ("SESSIONS", Fit::Rank(7)),
        ("CLOCK", Fit::Rank(4)),
        ("REACHED", Fit::Rank(8)),
    ]);
    let columns = Column::with_numbers(columns, &["STORED", "SESSIONS", "CLOCK"]);
    let rows = list(all, "/nodes").iter().map(row).collect();
    drawn += &output.table(&columns, rows);
    let gaps = list(all, "/chains");
    let gaps = gaps.iter().filter(|chain| !list(chain, "/gaps").is_empty());
    for chain in gaps {
        let records = chain.pointer("/missing_records").and_then(Value::as_u64).unwrap_or(0);
        let of = list(chain, "/gaps").len();
        let _ = write!(
            drawn,
            "\nChain of {}: {} missing in {}",
            line(&text(chain, "/node")),
            counted(usize::try_from(records).unwrap_or(usize::MAX), "record"),
            counted(of, "gap")
        );
    }
    if !drawn.ends_with('\n') {
        drawn.push('\n');
    }
    let faults = list(all, "/faults");
    if !faults.is_empty() {
        drawn += "\nProblems:\n";
    }
    for fault in faults.iter().filter_map(Value::as_str) {
        let _ = writeln!(drawn, "- {}", line(fault));
    }
    drawn
}

fn row(node: &Value) -> Vec<Cell> {
    let number = |at: &str| node.pointer(at).and_then(Value::as_u64);
    let short = |at: &str| text(node, at).chars().take(SHORT).collect::<String>();
    let state = text(node, "/state");
    let mut name = cell(&text(node, "/node"));
    if node.pointer("/is_self") == Some(&Value::Bool(true)) {
        name += " *";
    }
    let behind =
        number("/said/ledger/lag_records").map(|records| match number("/said/ledger/lag_ms") {
            Some(ms) if ms >= 1000 => format!("{records} ({} s)", ms / 1000),
            _ => records.to_string(),
        });
    let commit = short("/said/commit");
    let version = text(node, "/said/version");
    let version = if version.is_empty() { String::new() } else { format!("{version} {commit}") };
    vec![
        name.into(),
        Cell::styled(cell(&state), of_state(&state)),
        cell(&version).into(),
        cell(&short("/said/config")).into(),
        cell(&text(node, "/said/index")).into(),
        number("/said/ledger/stored").map(|it| it.to_string()).unwrap_or_default().into(),
        behind.unwrap_or_default().into(),
        number("/said/sessions").map(|it| it.to_string()).unwrap_or_default().into(),
        clock(node).into(),
        cell(reached(node)).into(),
    ]
}

/// Whether the node answered the queried node.
fn reached(node: &Value) -> &'static str {
    match node.pointer("/reached").and_then(Value::as_bool) {
        Some(true) => "yes",
        Some(false) => "no",
        None => "",
    }
}

/// A node's clock offset relative to the queried node; + if it is ahead.
fn clock(node: &Value) -> String {
    let Some(ahead) = node.pointer("/clock_ahead_ms").and_then(Value::as_i64) else {
        return String::new();
    };
    let seconds = ahead / -1000;
    if node.pointer("/clock_is_off") == Some(&Value::Bool(true)) {
        format!("{seconds:+} s")
    } else {
        "ok".to_owned()
    }
}

/// Number of characters shown of a config hash.
const SHORT_HASH_CHARS: usize = 12;
/// Columns of the nodes with the JSON pointers of their values.
const COLUMNS: [((&str, Fit), &str); 4] = [
    (("NODE", Fit::Name), "/node"),
    (("VERSION", Fit::Rank(1)), "/version"),
    (("STATE", Fit::Whole), "/state"),
    (("REASON", Fit::Free), "/reason"),
];

/// The fleet's shared config and its state on each node.
pub(super) async fn shared_config(backend: &Backend) -> Result<Value, CommandError> {
    let shared = backend.get(&target(&["fleet", "config"], &[])).await?;
    parse(shared.json()?)
}

/// Applies a config file to the fleet.
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
    output.print(&applied.to_string(), applied_summary)
}

/// Returns the fleet to its previous config.
pub(super) async fn roll_back(backend: &Backend, output: &Output) -> Result<(), CommandError> {
    let path = target(&["fleet", "config", "rollback"], &[]);
    let back = backend.post(&path, String::new()).await?;
    output.print(back.json()?, applied_summary)
}

/// Returns the shared config of a file, including its rule files, and the per-node keys omitted from it.
fn shared(path: &Path) -> Result<(SharedConfig, Vec<String>), CommandError> {
    let unusable =
        |why: String| CommandError::new(Exit::Config, format!("{}: {why}", path.display()));
    if !path.is_file() {
        let why = if path.exists() { "not a file" } else { "does not exist" };
        return Err(unusable(why.to_owned()));
    }
    let text = file::text(path).map_err(|problem| CommandError::new(Exit::Config, problem))?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let read = |name: &str| std::fs::read_to_string(folder.join(name));
    SharedConfig::of(&text, read).map_err(unusable)
}

fn applied_summary(applied: &Value) -> String {
    let hash: String = text(applied, "/hash").chars().take(SHORT_HASH_CHARS).collect();
    let mut summary =
        format!("The fleet config is now version {} ({hash}).", text(applied, "/version"));
    let left_out: Vec<_> = list(applied, "/left_out").iter().filter_map(Value::as_str).collect();
    if !left_out.is_empty() {
        let _ = write!(summary, " Omitted per-node keys: {}.", left_out.join(", "));
    }
    summary + &hints::commands(" `mcpproxy fleet status` shows its state on each node.")
}

/// Problems of living nodes that do not run the fleet's config, one line each.
pub(super) fn deviations(fleet: &Value, shared: &Value) -> Vec<String> {
    let Some(version) = shared.pointer("/config/version").and_then(Value::as_u64) else {
        return Vec::new();
    };
    let living = list(fleet, "/nodes").iter().filter(|node| text(node, "/state") == "living");
    let fault = |node: &Value| {
        let name = text(node, "/node");
        let run = list(shared, "/nodes").iter().find(|run| text(run, "/node") == name);
        let Some(run) = run else {
            return Some(format!("node '{name}' is alive but has not reported its config"));
        };
        let is_current = run.pointer("/version").and_then(Value::as_u64) == Some(version);
        match &*text(run, "/state") {
            "running" if is_current => None,
            "refused" if is_current => {
                Some(format!("node '{name}' rejects version {version}: {}", text(run, "/reason")))
            }
            _ => Some(format!("node '{name}' has not applied version {version} yet")),
        }
    };
    living.filter_map(fault).collect()
}

/// Renders the fleet's config and its state on each node.
pub(super) fn drawn_config(status: &Value, output: &Output) -> String {
    let mut drawn = match status.pointer("/config") {
        Some(config) if !config.is_null() => {
            let hash: String = text(config, "/hash").chars().take(SHORT_HASH_CHARS).collect();
            format!(
                "The fleet runs version {} ({hash}), applied by {} on {} at {}.\n",
                text(config, "/version"),
                line(&text(config, "/by")),
                line(&text(config, "/node")),
                line(&text(config, "/at")),
            )
        }
        Some(_) | None => {
            let none = "The fleet shares no config: each node uses its own. Set one with `mcpproxy fleet apply FILE`.\n";
            hints::commands(none).into_owned()
        }
    };
    if let Some(failing) = status.pointer("/failing").and_then(Value::as_str) {
        let _ = writeln!(drawn, "The object store is unavailable: {}", line(failing));
    }
    for (key, fault) in status.pointer("/faults").and_then(Value::as_object).into_iter().flatten() {
        let _ = writeln!(drawn, "{}: {}", line(key), line(fault.as_str().unwrap_or_default()));
    }
    let rows: Vec<_> = list(status, "/nodes")
        .iter()
        .map(|node| COLUMNS.map(|(_, column)| cell(&text(node, column)).into()).to_vec())
        .collect();
    if rows.is_empty() {
        return drawn;
    }
    let columns = Column::all(COLUMNS.map(|(column, _)| column));
    let columns = Column::with_numbers(columns, &["VERSION"]);
    format!("{drawn}\n{}", output.table(&columns, rows))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fleet_row_shows_known_values() {
        let texts = |node: &Value| row(node).into_iter().map(|it| it.text).collect::<Vec<_>>();
        let node = json!({
            "node": "a", "is_self": true, "state": "living", "clock_ahead_ms": 3_600_000, "clock_is_off": true, "reached": false,
            "said": {"version": "0.1.0", "commit": "0123456789abcdef", "config": "fedcba9876543210", "index": "1/3",
                "sessions": 4, "ledger": {"stored": 7, "lag_records": 3, "lag_ms": 5400}},
        });
        assert_eq!(
            texts(&node),
            [
                "a *",
                "living",
                "0.1.0 01234567",
                "fedcba98",
                "1/3",
                "7",
                "3 (5 s)",
                "4",
                "-3600 s",
                "no"
            ]
        );
        let silent =
            json!({"node": "b\u{1b}[2J", "state": "unknown", "said": null, "clock_ahead_ms": null});
        let shown = texts(&silent);
        assert!(!shown[0].contains('\u{1b}'), "{shown:?}");
        assert_eq!(shown[1..], ["unknown", "", "", "", "", "", "", "", ""]);
    }

    #[test]
    fn fleet_table_keeps_the_state_column_beside_long_names() {
        for name in crate::output::tests::names() {
            let all = json!({"fleet": "f", "node": "a", "living": 1, "nodes": [
                {"node": name, "state": "silent", "said": {"version": "0.1.0", "commit": "01234567",
                    "config": "fedcba9876543210", "index": "1/3", "sessions": 4,
                    "ledger": {"stored": 7, "lag_records": 3}}}], "faults": []});
            crate::output::tests::fits(|output| drawn(&all, output), &["silent", "BEHIND"]);
        }
    }

    #[test]
    fn alive_nodes_with_another_or_unknown_config_are_reported() {
        let node = |name, state| json!({"node": name, "state": state});
        let run = |name, version, state| json!({"node": name, "version": version, "state": state, "reason": "no HOOK"});
        let names = ["a", "b", "c", "d"];
        let mut nodes: Vec<_> = names.iter().map(|name| node(*name, "living")).collect();
        nodes.push(node("gone", "silent"));
        let fleet = json!({"nodes": nodes});
        let runs = [run("a", 2, "running"), run("b", 1, "running"), run("c", 2, "refused")];
        let found = deviations(&fleet, &json!({"config": {"version": 2}, "nodes": runs}));
        assert_eq!(
            found,
            [
                "node 'b' has not applied version 2 yet",
                "node 'c' rejects version 2: no HOOK",
                "node 'd' is alive but has not reported its config",
            ]
        );
        assert_eq!(deviations(&fleet, &json!({"config": null, "nodes": []})), [""; 0]);
    }
}
