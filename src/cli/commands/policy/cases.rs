//! `mcpproxy policy test`: a file of cases, and what the rules say to each.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::Deserialize;
use serde_json::{Value, json};

use super::inputs::{chosen, loaded, seen_tools};
use crate::catalog::Snapshot;
use crate::cli::args::Global;
use crate::cli::colours::of_state;
use crate::cli::error::CommandError;
use crate::cli::json_pointer::{list, text};
use crate::cli::load_config;
use crate::cli::output::Output;
use crate::cli::table::{Cell, Column, Fit, cell};
use crate::intent::Sensitivity;
use crate::policy::SessionFacts;
use crate::policy::rules::{RuleAction, RuleRequest, RuleSet, RuleTarget, Ruling, Subject};

/// Most bytes of a file of cases.
const MAX_FILE_BYTES: u64 = 4 * 1024 * 1024;

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum CaseFile {
    List(Vec<Case>),
    Named { cases: Vec<Case> },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    #[serde(default)]
    name: String,
    principal: String,
    #[serde(default)]
    groups: Vec<Box<str>>,
    action: String,
    tool: Option<String>,
    resource: Option<String>,
    prompt: Option<String>,
    #[serde(default)]
    args: Option<Value>,
    #[serde(default)]
    client: String,
    #[serde(default)]
    reason: String,
    sensitivity: Option<Sensitivity>,
    #[serde(default)]
    session: CaseSession,
    expect: Expected,
    rule: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct CaseSession {
    max_sensitivity: Option<Sensitivity>,
    open_world_seen: bool,
    calls: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Expected {
    Allow,
    Deny,
}

impl Expected {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}

pub(super) fn run(
    file: &Path,
    rules: &[PathBuf],
    global: &Global,
    output: &Output,
) -> Result<(), CommandError> {
    let config = load_config::load(global, None)?.config;
    let (catalog, known) = seen_tools(&config);
    let set = loaded(&chosen(rules, &config), &known)?;
    let snapshot = catalog.load();
    let cases = read(file)?;
    let mut results = Vec::new();
    let mut failed = 0;
    for (at, case) in cases.iter().enumerate() {
        let result = outcome(case, at, &set, &snapshot)?;
        failed += usize::from(result.pointer("/ok") == Some(&Value::Bool(false)));
        results.push(result);
    }
    let report = json!({"cases": results, "passed": cases.len() - failed, "failed": failed});
    output.print(&report.to_string(), |report| draw(report, output))?;
    match failed {
        0 => Ok(()),
        failed => Err(CommandError::failed(format!(
            "{failed} of {} cases came to something else",
            cases.len()
        ))),
    }
}

fn read(file: &Path) -> Result<Vec<Case>, CommandError> {
    let wrong = |error: &dyn std::fmt::Display| {
        CommandError::failed(format!("{}: {error}", file.display()))
    };
    let mut text = String::new();
    let opened = File::open(file).map_err(|error| wrong(&error))?;
    opened.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(|error| wrong(&error))?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(wrong(&format_args!("is longer than {MAX_FILE_BYTES} bytes")));
    }
    // JSON is YAML.
    let value: Value = serde_yaml_ng::from_str(&text).map_err(|error| wrong(&error))?;
    match serde_json::from_value(value).map_err(|error| wrong(&error))? {
        CaseFile::List(cases) | CaseFile::Named { cases } => Ok(cases),
    }
}

fn outcome(
    case: &Case,
    at: usize,
    set: &RuleSet,
    snapshot: &Snapshot,
) -> Result<Value, CommandError> {
    let number = at + 1;
    let wrong = |what: &str| CommandError::failed(format!("case {number}: {what}"));
    let action = RuleAction::from_word(&case.action).ok_or_else(|| {
        wrong("action must be read, write, destructive, list, read_resource or get_prompt")
    })?;
    let split = |name: &'_ str| {
        let parts = name.split_once(':');
        parts.map(|(server, own)| (server.to_owned(), own.to_owned()))
    };
    let (kind, full) = match (&case.tool, &case.resource, &case.prompt) {
        (Some(tool), None, None) => ("tool", tool),
        (None, Some(resource), None) => ("resource", resource),
        (None, None, Some(prompt)) => ("prompt", prompt),
        (_, _, _) => return Err(wrong("one of tool, resource and prompt must stand there")),
    };
    let (server, own) = split(full).ok_or_else(|| wrong("write server:name"))?;
    let known = snapshot.named(&server, &own);
    let target = match (kind, known) {
        ("tool", Some(tool)) => RuleTarget::Tool(tool),
        ("tool", None) => RuleTarget::NamedTool { server: &server, tool: &own },
        ("resource", _) => RuleTarget::Resource { server: &server, uri: &own },
        (_, _) => RuleTarget::Prompt { server: &server, name: &own },
    };
    let arguments = case.args.as_ref().map_or_else(|| "{}".to_owned(), ToString::to_string);
    let session = SessionFacts {
        max_sensitivity: case.session.max_sensitivity,
        open_world_seen: case.session.open_world_seen,
        calls: case.session.calls,
    };
    let ruling = set.decide(&RuleRequest {
        subject: Subject { id: &case.principal, groups: &case.groups },
        action,
        target,
        arguments: arguments.as_bytes(),
        sensitivity: case.sensitivity,
        reason: &case.reason,
        client: &case.client,
        session,
        now: SystemTime::now(),
    });
    let (got, by, text) = match ruling {
        Ruling::Permitted(by) => (Expected::Allow, by, String::new()),
        Ruling::Refused(denial) => (Expected::Deny, denial.rules.clone(), denial.to_string()),
    };
    let rule_fits = case.rule.as_ref().is_none_or(|rule| by.iter().any(|it| **it == **rule));
    Ok(json!({
        "case": number, "name": case.name, "principal": case.principal, "action": action.as_str(),
        kind: full, "expected": case.expect.as_str(), "expected_rule": case.rule,
        "decision": got.as_str(), "rules": by, "text": text,
        "ok": got == case.expect && rule_fits,
    }))
}

fn draw(report: &Value, output: &Output) -> String {
    let rows = list(report, "/cases").iter().map(|case| {
        let ok = case.pointer("/ok") == Some(&Value::Bool(true));
        let word = if ok { "ok" } else { "FAILED" };
        let target = ["/tool", "/resource", "/prompt"].map(|at| text(case, at)).concat();
        let wanted = match text(case, "/expected_rule") {
            rule if rule.is_empty() => text(case, "/expected").into_owned(),
            rule => format!("{} by {rule}", text(case, "/expected")),
        };
        let rules: Vec<_> = list(case, "/rules").iter().filter_map(Value::as_str).collect();
        let got = match rules.is_empty() {
            true => text(case, "/decision").into_owned(),
            false => format!("{} by {}", text(case, "/decision"), rules.join(", ")),
        };
        vec![
            Cell::styled(word, of_state(word)),
            cell(&text(case, "/case")).into(),
            cell(&text(case, "/name")).into(),
            cell(&text(case, "/principal")).into(),
            cell(&text(case, "/action")).into(),
            cell(&target).into(),
            cell(&wanted).into(),
            cell(&got).into(),
        ]
    });
    let columns = Column::all([
        ("", Fit::Whole),
        ("CASE", Fit::Name),
        ("NAME", Fit::Free),
        ("PRINCIPAL", Fit::Rank(5)),
        ("ACTION", Fit::Rank(4)),
        ("TARGET", Fit::Rank(3)),
        ("EXPECTED", Fit::Rank(2)),
        ("CAME TO", Fit::Rank(1)),
    ]);
    let table = output.table(&columns, rows.collect());
    let [passed, failed] = ["/passed", "/failed"].map(|at| text(report, at));
    format!("{table}{passed} passed, {failed} failed\n")
}
