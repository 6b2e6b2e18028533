//! `mcpproxy policy …`: validates, tests, explains and replays policy rules.

use crate::args::{Arguments, Global, PolicyCommand, PolicyExplain};
use crate::backend::{Backend, Needs, target};
use crate::commands::activity::records_bar_of;
use crate::completion::{Vocabulary, names, suggesting, unknown_token};
use crate::error::CommandError;
use crate::format::{counted, list, text};
use crate::output::{Output, Paragraph, of_state};
use crate::table::{Cell, Column, Fit, cell};
use crate::terminal_safe::{argument, joined, line};
use crate::{args, backend, logging, start_proxy};
use futures_util::TryStreamExt;
use indicatif::ProgressBar;
use jiff::Timestamp;
use mcpproxy_admin::api::export::FLEET_MISSING;
use mcpproxy_catalog::{Catalog, Snapshot};
use mcpproxy_config::file::Loaded;
use mcpproxy_config::problem::Problem;
use mcpproxy_config::{Config, RuleFiles, rule_files};
use mcpproxy_gateway::proxy::rule_replay::{REPLAYED, RuleReplay, UnreadableRecord};
use mcpproxy_policy::SessionFacts;
use mcpproxy_policy::identity::TokenFile;
use mcpproxy_policy::intent::Sensitivity;
use mcpproxy_policy::rules::{
    CheckedRules, KnownTools, RuleAction, RuleProblem, RuleRequest, RuleSet, RuleTarget, Ruling,
    Subject,
};
use mcpproxy_runtime::nearest::nearest;
use mcpproxy_runtime::os::bounded_file::{NamedPipes, PIPE_WAIT};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

/// Runs a policy command.
pub(super) fn run(
    command: &PolicyCommand,
    global: &Global,
    output: &Output,
) -> Result<(), CommandError> {
    match command {
        PolicyCommand::Check { files } => check(files, global, output),
        PolicyCommand::Test { file, rules } => test_cases(file, rules, global, output),
        PolicyCommand::Explain(flags) => backend::with(global, Needs::Catalog, async |backend| {
            explain(flags, backend, output).await
        }),
        PolicyCommand::Replay { files, since } => replay(files, since, global, output),
    }
}

/// Tools last seen by the proxy, and agent tokens, from disk.
pub(super) fn seen_tools(config: &Config) -> (Arc<Catalog>, KnownTools) {
    let catalog = Arc::new(Catalog::new(config.catalog()));
    // Errors are ignored here, because the proxy reports unreadable catalog files.
    let _ = catalog.read_stored();
    let mut known = catalog.load().known_tools(&rule_files::servers(config));
    let tokens = TokenFile::new(&config.data_dir).load().unwrap_or_default();
    known.tokens = tokens.into_iter().map(|token| token.name).collect();
    (catalog, known)
}

/// Returns the rules of the given files, or of the config if no files are given.
pub(super) fn selected_rules(files: &[PathBuf], config: &Config) -> RuleFiles {
    match files.is_empty() {
        true => config.rules.clone(),
        false => RuleFiles {
            files: files.to_vec(),
            options: config.rules.options,
            ..RuleFiles::default()
        },
    }
}

/// Loads and validates rules; fails with a list of all problems.
fn checked(rules: &RuleFiles, known: &KnownTools) -> Result<CheckedRules, Vec<RuleProblem>> {
    let texts = rule_files::texts(rules, NamedPipes::Awaited(PIPE_WAIT))?;
    RuleSet::check(&texts, rules.options, Some(known))
}

/// Loads and validates the rules of these files, or of the config, and prints their warnings to stderr.
pub(super) fn load_rules(
    files: &[PathBuf],
    config: &Config,
    known: &KnownTools,
) -> Result<RuleSet, CommandError> {
    let CheckedRules { rules, warnings } = checked(&selected_rules(files, config), known)
        .map_err(|problems| refused(&problems, files))?;
    for warning in &warnings {
        logging::print_line(format_args!("warning: {}", joined(&warning.to_string())));
    }
    Ok(rules)
}

/// Error for the invalid rules of these files, or of the config, with the first problem and the number of further ones.
fn refused(problems: &[RuleProblem], files: &[PathBuf]) -> CommandError {
    let first = problems.iter().find(|it| it.is_error()).or(problems.first());
    let first = first.map(ToString::to_string).unwrap_or_default();
    CommandError::failed(match problems.len().saturating_sub(1) {
        0 => first,
        more => {
            let named = files.iter().map(|file| format!(" {}", argument(&file.to_string_lossy())));
            let named: String = named.collect();
            format!("{first} (and {more} more: `mcpproxy policy check{named}` lists all)")
        }
    })
}

pub(super) fn check(
    files: &[PathBuf],
    global: &Global,
    output: &Output,
) -> Result<(), CommandError> {
    let (Loaded { config, .. }, _log) = start_proxy::load_with_log(global)?;
    let (_catalog, known) = seen_tools(&config);
    let rules = selected_rules(files, &config);
    let (count, problems) = match checked(&rules, &known) {
        Ok(CheckedRules { rules, warnings }) => (rules.len(), warnings),
        Err(problems) => (0, problems),
    };
    let errors = problems.iter().filter(|it| it.is_error()).count();
    let report = json!({
        "files": rules.files.len() + rules.shared.len(),
        "rules": count,
        "problems": problems.iter().map(shown).collect::<Vec<_>>(),
    });
    output.print(&report.to_string(), |report| draw_check(report, output))?;
    let outcome = match (errors, problems.len()) {
        (0, 0) => return Ok(()),
        (0, _) => {
            "the rules are valid, but name servers, tools or tokens that do not exist: correct or \
             remove these names, or add the servers"
        }
        (_, _) => "the rules are invalid",
    };
    let problems = counted(problems.len(), "problem");
    Err(CommandError::failed(format!("{problems}: {outcome}")))
}

/// Problems of the rules of a config, with the tools that were seen: a reload refuses an error, and a warning names a server, a
/// tool or a token that does not exist.
pub(super) fn rule_problems(config: &Config) -> Vec<Problem> {
    let (_catalog, known) = seen_tools(config);
    let found = checked(&config.rules, &known).map_or_else(|found| found, |found| found.warnings);
    found.iter().map(rule_files::problem).collect()
}

fn shown(problem: &RuleProblem) -> Value {
    json!({
        "severity": if problem.is_error() { "error" } else { "warning" },
        "file": &*problem.file, "line": problem.line, "column": problem.column,
        "problem": problem.text, "text": problem.to_string(),
    })
}

fn draw_check(report: &Value, output: &Output) -> String {
    let mut drawn = String::new();
    let problems = list(report, "/problems");
    for problem in problems {
        // A problem quotes rules, which may span several lines.
        let shown = Paragraph::new(output.view.width).indented(2).text(&text(problem, "/text"));
        let _ = writeln!(drawn, "{shown}");
    }
    if problems.is_empty() && text(report, "/files") == "0" {
        let _ = writeln!(drawn, "There are no rules: policy.files of the config names no file.");
    } else if problems.is_empty() {
        let rules = counted(text(report, "/rules"), "rule");
        let _ = writeln!(drawn, "ok: {rules} in {}", counted(text(report, "/files"), "file"));
    }
    drawn
}

#[derive(Serialize)]
struct ExplainRequest<'a> {
    principal: &'a str,
    groups: &'a [String],
    tool: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    action: Option<&'a str>,
    args: &'a RawValue,
}

pub(super) async fn explain(
    flags: &PolicyExplain,
    backend: &Backend,
    output: &Output,
) -> Result<(), CommandError> {
    let arguments = Arguments::read(&flags.args).map_err(CommandError::usage)?;
    let request = ExplainRequest {
        principal: &flags.principal,
        groups: &flags.groups,
        tool: &flags.tool,
        action: flags.action.as_deref(),
        args: arguments.raw(),
    };
    let body = serde_json::to_string(&request).map_err(CommandError::failed)?;
    let response = backend.post("/api/v1/policy/explain", body).await;
    let response = response.map_err(CommandError::of_flags);
    let response = suggesting(response, backend, Vocabulary::Tools, &flags.tool).await?;
    let has_arguments = arguments.raw().get() != NO_ARGUMENTS;
    let unknown = match flags.principal.strip_prefix("token:") {
        Some(token) => unknown_token(token, names(backend, "tokens").await),
        None => None,
    };
    output.print(response.json()?, |explanation| {
        let mut drawn = draw_explanation(explanation, output);
        if unknown.is_some() {
            drawn = format!("By the rules alone:\n{drawn}");
        }
        let is_error = |rule: &Value| text(rule, "/outcome") == "error";
        match !has_arguments && list(explanation, "/rules").iter().any(is_error) {
            true => {
                format!("It depends on the arguments, which --args gives. Without any: {drawn}")
            }
            false => drawn,
        }
    })?;
    match unknown {
        Some(text) => Err(CommandError::failed(format!("there is {text}"))),
        None => Ok(()),
    }
}

/// Arguments of a call without arguments.
const NO_ARGUMENTS: &str = "{}";

fn draw_explanation(explanation: &Value, output: &Output) -> String {
    let [decision, action] = ["/decision", "/action"].map(|at| text(explanation, at));
    let is_shadow = text(explanation, "/mode") == "shadow"
        && decision == "deny"
        && text(explanation, "/decider") != "token";
    let mut outcome = match is_shadow {
        true => "allow, since policy.mode is shadow; enforced, it would be deny".to_owned(),
        false => line(&decision).into_owned(),
    };
    let by: Vec<_> = list(explanation, "/decided_by").iter().filter_map(Value::as_str).collect();
    if !by.is_empty() {
        let _ = write!(outcome, " by {}", line(&by.join(", ")));
    }
    let why = text(explanation, "/text");
    if !why.is_empty() {
        let _ = write!(outcome, ": {why}");
    }
    let paragraph = Paragraph::new(output.view.width).indented(2);
    let mut drawn = format!("{}\naction: {}\n", paragraph.text(&outcome), line(&action));
    let rules = list(explanation, "/rules");
    let others = list(explanation, "/rules_for_other_actions").iter().map(|rule| {
        let (file, at) = (text(rule, "/file"), text(rule, "/line"));
        format!("{} ({}:{at})", line(&text(rule, "/rule")), line(file_name(&file)))
    });
    let others = others.collect::<Vec<_>>().join(", ");
    if !others.is_empty() {
        let others = paragraph.text(&format!("rules for other actions only: {others}"));
        let _ = writeln!(drawn, "{others}");
    }
    if decision == "allow" {
        let checked = "Variant, arguments and limits of a call are checked apart from the rules.";
        let _ = writeln!(drawn, "{}", paragraph.text(checked));
    }
    if rules.is_empty() {
        if decision == "allow" {
            let _ = writeln!(drawn, "no rule applies to such a call");
        }
        return drawn;
    }
    let rows = rules.iter().map(|rule| {
        let saw = list(rule, "/saw").iter().map(|saw| {
            let value = text(saw, "/value");
            let value = if value.is_empty() { "(absent)" } else { &*value };
            format!("{} = {value}", text(saw, "/path"))
        });
        let outcome = match (&*text(rule, "/outcome"), text(rule, "/error")) {
            ("does_not_hold", _) => "does not hold".to_owned(),
            (outcome, error) if error.is_empty() => outcome.to_owned(),
            (outcome, error) => format!("{outcome}: {error}"),
        };
        vec![
            cell(&text(rule, "/rule")).into(),
            text(rule, "/effect").into_owned().into(),
            cell(&outcome).into(),
            cell(&saw.collect::<Vec<_>>().join(", ")).into(),
            cell(&format!("{}:{}", file_name(&text(rule, "/file")), text(rule, "/line"))).into(),
        ]
    });
    let rows: Vec<Vec<Cell>> = rows.collect();
    let columns = Column::all([
        ("RULE", Fit::Name),
        ("EFFECT", if differs(&rows, 1) { Fit::Whole } else { Fit::Rank(2) }),
        ("OUTCOME", Fit::Name),
        ("VALUES", Fit::Below),
        ("AT", Fit::Key(3)),
    ]);
    drawn + &output.table(&columns, rows)
}

/// The last part of a file's path, or the whole text if it has none.
fn file_name(path: &str) -> &str {
    Path::new(path).file_name().and_then(OsStr::to_str).unwrap_or(path)
}

/// Whether the cells of a column differ.
fn differs(rows: &[Vec<Cell>], column: usize) -> bool {
    let mut cells = rows.iter().map(|row| row.get(column));
    let first = cells.next();
    cells.any(|cell| Some(cell) != first)
}

/// Maximum size of a test case file in bytes.
const MAX_FILE_BYTES: u64 = 4 * 1024 * 1024;

/// Keys of a case.
const CASE_KEYS: [&str; 15] = [
    "principal",
    "action",
    "expect",
    "tool",
    "resource",
    "prompt",
    "args",
    "groups",
    "rule",
    "name",
    "client",
    "reason",
    "sensitivity",
    "session",
    "carries_out",
];
/// Number of the [`CASE_KEYS`] that are required; these are first.
const REQUIRED_KEYS: usize = 3;
/// Keys named as an option of `policy explain`, and the key that was meant.
const OPTION_NAMES: [(&str, &str); 1] = [("as", "principal")];

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
    /// `context.carries_out` of a resource or prompt. For a tool, it is derived from the exposure.
    #[serde(default)]
    carries_out: bool,
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

pub(super) fn test_cases(
    file: &Path,
    rules: &[PathBuf],
    global: &Global,
    output: &Output,
) -> Result<(), CommandError> {
    let config = start_proxy::load(global, None)?.config;
    let (catalog, known) = seen_tools(&config);
    let set = load_rules(rules, &config, &known)?;
    let snapshot = catalog.load();
    let cases = read_cases(file)?;
    let mut results = Vec::new();
    let mut failed = 0;
    for (at, case) in cases.iter().enumerate() {
        let result = outcome(case, at, &set, &snapshot).map_err(|failure| CommandError {
            message: format!("{}: {}", file.display(), failure.message),
            ..failure
        })?;
        failed += usize::from(result.pointer("/ok") == Some(&Value::Bool(false)));
        results.push(result);
    }
    let report = json!({"cases": results, "passed": cases.len() - failed, "failed": failed});
    output.print(&report.to_string(), |report| draw_cases(report, output))?;
    match failed {
        0 => Ok(()),
        failed => Err(CommandError::failed(format!("{failed} of {} cases failed", cases.len()))),
    }
}

/// Message for a file of rules that is given as a file of test cases.
const NOT_CASES: &str = "contains rules, not test cases: `mcpproxy policy check FILE` validates it, \
                         `mcpproxy guide policy` describes test cases";

fn read_cases(file: &Path) -> Result<Vec<Case>, CommandError> {
    let wrong = |error: &dyn std::fmt::Display| {
        CommandError::failed(format!("{}: {error}", file.display()))
    };
    let mut text = String::new();
    let opened = File::open(file).map_err(|error| wrong(&error))?;
    opened.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(|error| wrong(&error))?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(wrong(&format_args!("larger than {MAX_FILE_BYTES} bytes")));
    }
    // JSON is a subset of YAML.
    let value: Value = serde_yaml_ng::from_str(&text).map_err(|error| {
        let is_of_rules = file.extension().is_some_and(|it| it.eq_ignore_ascii_case("cedar"));
        if is_of_rules { wrong(&NOT_CASES) } else { wrong(&error) }
    })?;
    parsed_cases(value).map_err(|error| wrong(&error))
}

/// Reads a list of cases, alone or as the value of `cases`. An error names the case and its key.
fn parsed_cases(value: Value) -> Result<Vec<Case>, String> {
    let cases = match value {
        Value::Object(mut file) => file
            .remove("cases")
            .ok_or("missing key 'cases': the file is a list of cases, or {cases: […]}")?,
        other => other,
    };
    let Value::Array(cases) = cases else {
        return Err("expected a list of cases".to_owned());
    };
    let numbered = cases.into_iter().zip(1..);
    let parsed =
        numbered.map(|(case, at)| parsed_case(case).map_err(|error| format!("case {at}: {error}")));
    parsed.collect()
}

fn parsed_case(value: Value) -> Result<Case, String> {
    let Value::Object(case) = &value else {
        return Err("expected a map with the keys principal, action, tool and expect".to_owned());
    };
    if let Some(unknown) = case.keys().find(|key| !CASE_KEYS.contains(&key.as_str())) {
        let option = OPTION_NAMES.iter().find(|(option, _)| option == unknown).map(|(_, key)| *key);
        let advice = match option.or_else(|| nearest(unknown, CASE_KEYS)) {
            Some(meant) => format!("did you mean '{meant}'?"),
            None => format!("the keys are {}", CASE_KEYS.join(", ")),
        };
        return Err(format!("unknown key '{}': {advice}", line(unknown)));
    }
    if let Some(missing) =
        CASE_KEYS.iter().take(REQUIRED_KEYS).find(|key| !case.contains_key(**key))
    {
        return Err(format!("missing key '{missing}'"));
    }
    let case = case.clone();
    serde_json::from_value(value).map_err(|error| {
        // The error does not name the key: finds the one whose value makes a valid case invalid.
        let valid = json!({"principal": "", "action": "", "expect": "allow"});
        let is_invalid = |(key, value): &(String, Value)| {
            let mut one = valid.clone();
            one.as_object_mut()
                .into_iter()
                .for_each(|one| drop(one.insert(key.clone(), value.clone())));
            serde_json::from_value::<Case>(one).is_err()
        };
        match case.into_iter().find(is_invalid) {
            Some((key, _)) => format!("key '{key}': {error}"),
            None => error.to_string(),
        }
    })
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
        (_, _, _) => return Err(wrong("exactly one of tool, resource and prompt is required")),
    };
    let (server, own) = split(full).ok_or_else(|| wrong("names have the form server:name"))?;
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
        carries_out: case.carries_out,
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

fn draw_cases(report: &Value, output: &Output) -> String {
    let for_people = output.view.width.is_some();
    let rows = list(report, "/cases").iter().map(|case| {
        let ok = case.pointer("/ok") == Some(&Value::Bool(true));
        let word = if ok { "ok" } else { "FAILED" };
        let target = ["/tool", "/resource", "/prompt"].map(|at| text(case, at)).concat();
        let expected = match text(case, "/expected_rule") {
            rule if rule.is_empty() => text(case, "/expected").into_owned(),
            rule => format!("{} by {rule}", text(case, "/expected")),
        };
        let rules: Vec<_> = list(case, "/rules").iter().filter_map(Value::as_str).collect();
        let got = match rules.is_empty() {
            true => text(case, "/decision").into_owned(),
            false => format!("{} by {}", text(case, "/decision"), rules.join(", ")),
        };
        let mut cells = vec![
            Cell::styled(word, of_state(word)),
            cell(&text(case, "/case")).into(),
            cell(&text(case, "/principal")).into(),
            cell(&text(case, "/action")).into(),
            cell(&target).into(),
        ];
        let name = text(case, "/name");
        match for_people {
            false => cells.extend([expected, got, name.into_owned()].map(|it| cell(&it).into())),
            // What differs from the expectation, beside the case's name.
            true => {
                let actual = (!ok).then(|| format!("actual: {got}"));
                let parts = [Some(name.into_owned()), actual].into_iter().flatten();
                let parts: Vec<_> = parts.filter(|part| !part.is_empty()).collect();
                cells.extend([cell(&expected).into(), cell(&parts.join("; ")).into()]);
            }
        }
        cells
    });
    let mut columns = Column::all([
        ("RESULT", Fit::Whole),
        ("CASE", Fit::Whole),
        ("PRINCIPAL", Fit::Key(3)),
        ("ACTION", Fit::Whole),
        ("TARGET", Fit::Key(1)),
        ("EXPECTED", Fit::Key(2)),
    ]);
    columns.extend((!for_people).then(|| Column::new("ACTUAL", Fit::Whole)));
    columns.push(Column::new("NAME", Fit::Below));
    let columns = Column::with_servers(Column::with_numbers(columns, &["CASE"]), "TARGET");
    let columns = Column::with_repeated(Column::with_repeated(columns, "PRINCIPAL"), "EXPECTED");
    let columns = Column::with_repeated(columns, "TARGET");
    let table = output.table(&columns, rows.collect());
    let [passed, failed] = ["/passed", "/failed"].map(|at| text(report, at));
    output.with_notes("", table, &format!("{passed} passed, {failed} failed"))
}

/// Counters in the order of the columns.
const COUNTED: [&str; 4] = ["calls", "newly_refused", "newly_allowed", "undecidable"];
/// Maximum size of one record in bytes.
const MAX_LINE_BYTES: usize = 64 * 1024 * 1024;
/// Maximum number of rows in the table; JSON has all rows.
const MAX_ROWS: usize = 50;

pub(super) fn replay(
    files: &[PathBuf],
    since: &str,
    global: &Global,
    output: &Output,
) -> Result<(), CommandError> {
    let config = start_proxy::load(global, None)?.config;
    let (catalog, known) = seen_tools(&config);
    let new = load_rules(files, &config, &known)?;
    let now = checked(&config.rules, &known).map_err(|problems| refused(&problems, &[]))?.rules;
    let since = args::moment("--since", since, Timestamp::now()).map_err(CommandError::usage)?;
    let types = REPLAYED.map(|kind| kind.to_string()).join(",");
    let mut replay = RuleReplay::new(now.into(), new.into(), catalog.load());
    backend::with(global, Needs::Activity, async |backend| {
        let query = [("type", Some(types.as_str())), ("start_time", Some(since.as_str()))];
        let bar = records_bar_of(backend, &query).await?;
        read_replay(backend, &query, &bar, &mut replay).await?;
        bar.finish_and_clear();
        let mut report = serde_json::to_value(replay.report()).map_err(CommandError::failed)?;
        if let Some(members) = report.as_object_mut() {
            members.insert("since".to_owned(), since.as_str().into());
        }
        output.print(&report.to_string(), |report| draw_replay(report, output))
    })
}

/// Evaluates both rule sets for every record of the query.
async fn read_replay(
    backend: &Backend,
    query: &[(&str, Option<&str>)],
    bar: &ProgressBar,
    replay: &mut RuleReplay,
) -> Result<(), CommandError> {
    let mut export_query = query.to_vec();
    export_query.push(("format", Some("json")));
    let unreadable = |error: UnreadableRecord| CommandError::failed(error);
    let response = backend.stream(&target(&["activity", "export"], &export_query), None).await?;
    if let Some(missing) = response.headers.get(FLEET_MISSING).and_then(|it| it.to_str().ok()) {
        tracing::warn!(missing, "the replay lacks records of some fleet nodes");
    }
    let mut chunks = response.chunks;
    let mut rest: Vec<u8> = Vec::new();
    while let Some(chunk) = chunks.try_next().await? {
        let mut chunk = &*chunk;
        while let Some(at) = memchr::memchr(b'\n', chunk) {
            let (line, after) = chunk.split_at(at);
            chunk = after.get(1..).unwrap_or_default();
            if rest.is_empty() {
                replay.record(line).map_err(unreadable)?;
            } else {
                rest.extend_from_slice(line);
                replay.record(&rest).map_err(unreadable)?;
                rest.clear();
            }
            bar.inc(1);
        }
        if rest.len() + chunk.len() > MAX_LINE_BYTES {
            return Err(CommandError::failed("a record of the log exceeds the size limit"));
        }
        rest.extend_from_slice(chunk);
    }
    match rest.is_empty() {
        true => Ok(()),
        false => Err(CommandError::failed("the export ended within a record: try again")),
    }
}

/// Heading of the table of `policy replay`.
const COMPARED: &str =
    "Calls that the new rules would decide differently from the rules in force now:";
/// Header of the counts of calls that the new rules cannot decide.
const UNDECIDABLE: &str = "UNDECIDABLE";

fn draw_replay(report: &Value, output: &Output) -> String {
    let (all, unchanged): (Vec<&Value>, Vec<_>) =
        list(report, "/by_tool_and_principal").iter().partition(|row| is_changed(row));
    let rows = all.iter().take(MAX_ROWS).map(|row| {
        let mut cells: Vec<Cell> =
            vec![cell(&text(row, "/tool")).into(), cell(&text(row, "/principal")).into()];
        cells.extend(COUNTED.map(|name| text(row, &format!("/{name}")).into_owned().into()));
        let rules: Vec<_> = list(row, "/rules").iter().filter_map(Value::as_str).collect();
        let label = if output.view.width.is_some() && !rules.is_empty() { "by " } else { "" };
        cells.push(cell(&format!("{label}{}", rules.join(", "))).into());
        cells
    });
    let rows: Vec<Vec<Cell>> = rows.collect();
    let is_decided =
        all.iter().take(MAX_ROWS).all(|row| matches!(&*text(row, "/undecidable"), "" | "0"));
    let columns = Column::all([
        ("TOOL", Fit::Middle),
        ("PRINCIPAL", Fit::Middle),
        ("CALLS", Fit::Rank(3)),
        ("REFUSED", Fit::Whole),
        ("ALLOWED", Fit::Whole),
        (UNDECIDABLE, if is_decided { Fit::Rank(5) } else { Fit::Rank(2) }),
        ("RULES", Fit::Below),
    ]);
    let columns = Column::with_servers(Column::with_repeated(columns, "TOOL"), "TOOL");
    let columns = Column::with_repeated(columns, "PRINCIPAL");
    let columns = Column::with_numbers(columns, &["CALLS", "REFUSED", "ALLOWED", UNDECIDABLE]);
    let columns = match is_decided {
        true => Column::with_optional(columns, UNDECIDABLE),
        false => columns,
    };
    let any = !rows.is_empty();
    let table = if any { output.table(&columns, rows) } else { String::new() };
    let more = match all.len().saturating_sub(MAX_ROWS) {
        0 => String::new(),
        more => format!("… and {more} more (-o json has all)\n"),
    };
    let same = match unchanged.len() {
        0 => String::new(),
        1 => format!("1 {}tool and principal: unchanged\n", if any { "more " } else { "" }),
        same => {
            format!("{same} {}tools and principals: unchanged\n", if any { "more " } else { "" })
        }
    };
    let [calls, refused, allowed, undecidable] =
        COUNTED.map(|name| text(report, &format!("/total/{name}")));
    let total = format!(
        "{} since {}: {refused} newly refused, {allowed} newly allowed, {undecidable} undecidable",
        counted(calls, "call"),
        text(report, "/since")
    );
    let total = Paragraph::new(output.view.width).text(&total);
    let errors = rule_errors(report).map(|it| Paragraph::new(output.view.width).text(&it));
    let errors = errors.map_or_else(String::new, |it| format!("\n{it}"));
    let heading = Paragraph::new(output.view.width).text(COMPARED);
    let heading = if any { format!("{heading}\n\n") } else { String::new() };
    output.with_notes(&heading, table, &format!("{more}{same}{total}{errors}"))
}

/// Number of newly refused calls for which a rule cannot be evaluated, with the reasons.
fn rule_errors(report: &Value) -> Option<String> {
    let errors = report.pointer("/total/rule_errors")?.as_u64().filter(|count| *count > 0)?;
    let reasons = report.pointer("/rule_errors_because")?.as_object()?;
    let reasons: Vec<_> =
        reasons.iter().map(|(why, count)| cell(&format!("{why} ({count})"))).collect();
    Some(format!(
        "of the newly refused, {errors} because a rule cannot be evaluated: {}",
        reasons.join("; ")
    ))
}

/// Whether the new rules decide any call of a row differently, or may do so.
fn is_changed(row: &Value) -> bool {
    ["/newly_refused", "/newly_allowed", "/undecidable"]
        .iter()
        .any(|at| !matches!(&*text(row, at), "" | "0"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcpproxy_config::Flags;
    use mcpproxy_policy::rules::{RuleOptions, RuleText};

    #[test]
    fn case_file_errors_name_the_case_and_the_key() {
        let good = "principal: a, action: read, tool: 's:t', expect: allow";
        for (file, error) in [
            (format!("- {{{good}}}"), ""),
            (format!("cases: [{{{good}}}]"), ""),
            (
                "- {as: a, action: read, tool: 's:t', expect: allow}".to_owned(),
                "case 1: unknown key 'as': did you mean 'principal'?",
            ),
            (
                format!("- {{{good}}}\n- {{{good}, group: [x]}}"),
                "case 2: unknown key 'group': did you mean 'groups'?",
            ),
            (
                format!("- {{{good}, zzz: 1}}"),
                "case 1: unknown key 'zzz': the keys are principal, action,",
            ),
            (
                "- {principal: a, action: read, tool: 's:t'}".to_owned(),
                "case 1: missing key 'expect'",
            ),
            (format!("- {{{good}, groups: dev}}"), "case 1: key 'groups': invalid type: string"),
            (
                "- {principal: a, action: read, expect: denied}".to_owned(),
                "case 1: key 'expect': unknown variant `denied`, expected `allow` or `deny`",
            ),
            (
                format!("- {{{good}, session: {{call: 1}}}}"),
                "case 1: key 'session': unknown field `call`",
            ),
            ("- deny".to_owned(), "case 1: expected a map"),
            ("case: []".to_owned(), "missing key 'cases'"),
            ("7".to_owned(), "expected a list of cases"),
        ] {
            let value: Value = serde_yaml_ng::from_str(&file).unwrap();
            let found = parsed_cases(value).err().unwrap_or_default();
            assert!(
                found.starts_with(error) && found.is_empty() == error.is_empty(),
                "{file}: {found}"
            );
        }
    }

    #[test]
    fn file_of_rules_is_not_taken_for_test_cases() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("rules.cedar");
        std::fs::write(&file, "@id(\"a\")\nforbid(principal, action, resource);").unwrap();
        let failure = read_cases(&file).unwrap_err();
        assert!(failure.message.contains("rules.cedar: contains rules"), "{}", failure.message);
    }

    /// First code block of the guide's page on policy that begins with this text.
    fn guide_block(beginning: &str) -> &'static str {
        let mut blocks = include_str!("../../guide/policy.md").split("```").skip(1).step_by(2);
        let block = blocks
            .find(|block| block.split_once('\n').is_some_and(|(_, it)| it.starts_with(beginning)));
        block.and_then(|block| block.split_once('\n')).unwrap().1
    }

    #[test]
    fn case_file_of_the_guide_passes_with_the_rules_of_the_guide() {
        let text = RuleText { file: "rules.cedar".into(), text: guide_block("@id").to_owned() };
        let set = RuleSet::check(&[text], RuleOptions::default(), None).unwrap().rules;
        let flags = Flags { data_dir: Some("/data".into()), ..Flags::default() };
        let config = mcpproxy_config::parse("", &|_| None, &flags).unwrap().0;
        let catalog = Catalog::new(config.catalog());
        let cases = parsed_cases(serde_yaml_ng::from_str(guide_block("- name:")).unwrap()).unwrap();
        assert!(cases.len() > 2, "{cases:?}");
        for (at, case) in cases.iter().enumerate() {
            let result = outcome(case, at, &set, &catalog.load()).unwrap();
            assert_eq!(result["ok"], json!(true), "{result}");
        }
    }

    #[test]
    fn explanation_keeps_outcome_beside_long_names() {
        for name in crate::output::tests::names() {
            let other = json!({"rule": name, "effect": "permit", "file": name, "line": 9});
            let explanation = serde_json::json!({"decision": "deny", "decided_by": [name], "text": name,
                "action": "read", "rules_for_other_actions": [other], "rules": [{"rule": name, "effect": "forbid", "outcome": "applies", "file": name,
                    "line": 7, "saw": [{"path": "context.arguments", "value": name}]}]});
            let keeps = [
                "deny by ",
                "applies",
                "OUTCOME",
                "action: read",
                "rules for other actions only: ",
            ];
            crate::output::tests::fits(|output| draw_explanation(&explanation, output), &keeps);
        }
    }

    #[test]
    fn cli_2_replay_and_explain_keep_the_columns_that_differ() {
        let row = |principal: &str, allowed: u64| {
            serde_json::json!({"tool": "notes:delete_everything", "principal": principal, "calls": 9,
                "newly_refused": 4, "newly_allowed": allowed, "undecidable": 0, "rules": ["no-deletes", "ask"]})
        };
        let report = serde_json::json!({"since": "2026-01-02", "total": {},
            "by_tool_and_principal": [row("token:ci", 0), row("token:ops", 7)]});
        let keeps = ["REFUSED", "ALLOWED", "PRINCIPAL", "token:ci", "token:ops"];
        crate::output::tests::fits(|output| draw_replay(&report, output), &keeps);
        let rule = |name: &str, effect: &str| {
            serde_json::json!({"rule": name, "effect": effect, "outcome": "applies", "file": "/etc/mcpproxy/rules.cedar",
                "line": 7, "saw": [{"path": "context.args.path", "value": "\"/home/me/notes/today.txt\""}]})
        };
        let explanation = serde_json::json!({"decision": "deny", "decided_by": ["b"], "text": "",
            "rules": [rule("all-of-the-home-folder", "permit"), rule("nothing-of-the-system", "forbid")]});
        let keeps = ["EFFECT", "permit", "forbid"];
        crate::output::tests::fits(|output| draw_explanation(&explanation, output), &keeps);
    }

    #[test]
    fn cli_2_replay_folds_rows_without_a_change_and_names_its_baseline() {
        let row = |tool: &str, refused: u64| {
            json!({"tool": tool, "principal": "token:ci", "calls": 9, "newly_refused": refused,
                "newly_allowed": 0, "undecidable": 0, "rules": ["no-deletes"]})
        };
        let report = |rows: Vec<Value>| json!({"since": "2026-01-02", "total": {}, "by_tool_and_principal": rows});
        let some = report(vec![row("m:delete", 3), row("m:read", 0), row("m:list", 0)]);
        let keeps = [
            "rules in force now:\n\nTOOL",
            "m:delete",
            "ALLOWED",
            "\n2 more tools and principals: unchanged\n",
        ];
        crate::output::tests::fits(|output| draw_replay(&some, output), &keeps);
        let none = report(vec![row("m:read", 0)]);
        let keeps = ["1 tool and principal: unchanged\n"];
        crate::output::tests::fits(|output| draw_replay(&none, output), &keeps);
    }

    #[test]
    fn cli_2_replay_names_the_rules_that_cannot_be_evaluated() {
        let row = json!({"tool": "m:put", "principal": "token:ci", "calls": 9, "newly_refused": 3,
            "rule_errors": 2, "newly_allowed": 0, "undecidable": 0, "rules": ["big"]});
        let report = json!({"since": "2026-01-02", "total": {"newly_refused": 3, "rule_errors": 2},
            "rule_errors_because": {"rule 'big': no such key": 2}, "by_tool_and_principal": [row]});
        let keeps = ["cannot", "'big':", "(2)"];
        crate::output::tests::fits(|output| draw_replay(&report, output), &keeps);
    }

    #[test]
    fn cli_2_replay_shows_both_ends_of_long_names() {
        let row = |tool: &str, principal: &str| {
            json!({"tool": format!("knowledge-base-of-the-company:{tool}"), "calls": 9,
                "principal": format!("jwt:https://login.example/{principal}"),
                "newly_refused": 4, "newly_allowed": 1, "undecidable": 0, "rules": ["no-deletes"]})
        };
        let report = json!({"since": "2026-01-02", "total": {}, "by_tool_and_principal": [
            row("delete_entities", "ann"), row("delete_relations", "bob")]});
        let keeps = ["entities", "relations", "jwt:", "ann", "bob"];
        crate::output::tests::fits(|output| draw_replay(&report, output), &keeps);
    }

    #[test]
    fn replay_table_keeps_counts_beside_long_names() {
        for name in crate::output::tests::names() {
            let report = serde_json::json!({"since": "2026-01-02", "total": {}, "by_tool_and_principal": [
                {"tool": name, "principal": name, "calls": 9, "newly_refused": 4, "rules": [name]},
            ]});
            crate::output::tests::fits(|output| draw_replay(&report, output), &["REFUSED"]);
        }
    }
}
