//! `mcpproxy fleet …`: the fleet, as the node sees it that runs here.

use std::fmt::Write as _;

use serde_json::Value;

use super::fleet_config;
use crate::cli::args::FleetCommand;
use crate::cli::backend::{Backend, target};
use crate::cli::colours::of_state;
use crate::cli::counted::counted;
use crate::cli::error::CommandError;
use crate::cli::json_pointer::{list, text};
use crate::cli::output::{Output, parse};
use crate::cli::table::{Cell, Column, Fit, cell};
use crate::cli::terminal_safe::line;

/// Characters of a commit and of a config's digest.
const SHORT: usize = 8;

/// Runs one of the commands.
pub(super) async fn run(
    command: &FleetCommand,
    backend: &Backend,
    output: &Output,
) -> Result<(), CommandError> {
    match command {
        FleetCommand::Status => status(backend, output).await,
        FleetCommand::Apply { file } => fleet_config::apply(file, backend, output).await,
        FleetCommand::Rollback => fleet_config::roll_back(backend, output).await,
    }
}

async fn status(backend: &Backend, output: &Output) -> Result<(), CommandError> {
    let answer = backend.get(&target(&["fleet"], &[("reach", Some("true"))])).await?;
    let told = parse(answer.json()?)?;
    if told.pointer("/node").is_none_or(Value::is_null) {
        let words = "the proxy that runs belongs to no fleet: cluster.store and cluster.node make it a node of one";
        return Err(CommandError::failed(words));
    }
    let mut all = told.clone();
    // Where nothing is shared there is none.
    if let (Some(all), Ok(shared)) = (all.as_object_mut(), fleet_config::standing(backend).await) {
        all.insert("shared".to_owned(), shared);
    }
    let astray = all.get("shared").map(|shared| fleet_config::astray(&told, shared));
    let astray = astray.unwrap_or_default();
    output.print(&all.to_string(), |all| match all.get("shared") {
        Some(shared) => {
            let mut shared = fleet_config::drawn(shared, output);
            if !astray.is_empty() {
                shared += "\nWhat is wrong with the config:\n";
            }
            for fault in &astray {
                let _ = writeln!(shared, "- {}", line(fault));
            }
            format!("{}\n{shared}", drawn(all, output))
        }
        None => drawn(all, output),
    })?;
    let faults = list(&told, "/faults").len() + astray.len();
    if faults == 0 {
        return Ok(());
    }
    Err(CommandError::failed(format!("the fleet has {}", counted(faults, "fault"))))
}

fn drawn(all: &Value, output: &Output) -> String {
    let number = |at: &str| all.pointer(at).and_then(Value::as_u64).unwrap_or(0);
    let mut drawn = format!(
        "Fleet {}, seen by node {}: {} of {} live.\n\n",
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
        drawn += "\nWhat is wrong:\n";
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

/// Whether it answered the node that is asked.
fn reached(node: &Value) -> &'static str {
    match node.pointer("/reached").and_then(Value::as_bool) {
        Some(true) => "yes",
        Some(false) => "no",
        None => "",
    }
}

/// How a node's clock stands to that of the node that is asked: as its own clock says, ahead is +.
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_row_says_what_is_known() {
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
    fn a_long_name_leaves_the_state_in_view() {
        for name in crate::cli::output::tests::names() {
            let all = json!({"fleet": "f", "node": "a", "living": 1, "nodes": [
                {"node": name, "state": "silent", "said": {"version": "0.1.0", "commit": "01234567",
                    "config": "fedcba9876543210", "index": "1/3", "sessions": 4,
                    "ledger": {"stored": 7, "lag_records": 3}}}], "faults": []});
            crate::cli::output::tests::fits(|output| drawn(&all, output), &["silent", "BEHIND"]);
        }
    }
}
